/*
 * Statements, and a rendering as a whole (jinja.h).
 */
#include "jinja_run.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 20000000u
#define MEMORY_MIN ((size_t) 16 << 20)

/* ---- scopes and variables ----------------------------------------------- */

static value_t
given(render_t *r, const string_t *name)
{
    value_t *there = tr_jinja_dict_find(&r->arena, r->variables, name), v;

    if (there != NULL) {
        return *there;
    }
    return tr_jinja_global(name, &v) ? v : MISSING;
}

void
tr_jinja_enter(render_t *r, const entries_t *e)
{
    for (uint32_t i = 0; i < e->n; i++) {
        const entry_t *n = &e->entries[i];

        if (n->load == LOAD_RESOLVE) {
            r->frame->slots[n->at.slot] = given(r, n->name);
        } else if (n->load == LOAD_ALIAS) {
            r->frame->slots[n->at.slot] = *tr_jinja_slot(r, n->alias);
        } else if (n->load == LOAD_UNDEFINED) {
            r->frame->slots[n->at.slot] = MISSING;
        }
    }
}

void
tr_jinja_assign(render_t *r, const node_t *target, value_t v)
{
    value_t *at;
    list_t l;

    switch (target->kind) {
    case N_NAME:
        *tr_jinja_slot(r, target->ref) = v;
        break;
    case N_NSREF:
        r->arena.place = target->place;
        at = tr_jinja_slot(r, target->ref);
        if (at->kind != K_NAMESPACE) {
            tr_jinja_fail(&r->arena, "\"%.*s\" is no namespace",
                          target->name->len, target->name->data);
        }
        tr_jinja_dict_set(&r->arena, at->dict, of_string(target->attr), v);
        break;
    default:
        r->arena.place = target->place;
        l = tr_jinja_items(r, v);
        if (l.n != target->n) {
            tr_jinja_fail(&r->arena, "%u values for %u names", l.n, target->n);
        }
        for (uint32_t i = 0; i < l.n; i++) {
            tr_jinja_assign(r, target->items[i], l.items[i]);
        }
        break;
    }
}

/* ---- loops -------------------------------------------------------------- */

bool
tr_jinja_loop_next(render_t *r, loop_t *l, value_t *out)
{
    const for_t *f = l->node ? l->node->loop : NULL;

    while (l->next < l->items.n) {
        *out = l->items.items[l->next++];
        if (f == NULL || f->test == NULL) {
            return true;
        }
        tr_jinja_assign(r, f->test_target, *out);
        if (tr_jinja_truth(r, tr_jinja_eval(r, f->test))) {
            return true;
        }
    }
    return false;
}

static bool
advance(render_t *r, loop_t *l)
{
    value_t next = l->after;

    if (next.kind == K_MISSING && !tr_jinja_loop_next(r, l, &next)) {
        return false;
    }
    l->after = MISSING;
    l->index0++;
    l->before = l->current;
    l->current = next;
    return true;
}

static flow_t
run_for(render_t *r, const node_t *n)
{
    const for_t *f = n->loop;
    loop_t *l = tr_jinja_zalloc(&r->arena, sizeof(*l));
    value_t v = tr_jinja_eval(r, f->iter);
    flow_t flow = FLOW_ON;
    bool whole = false; /* an iteration came to its end */

    r->arena.place = n->place;
    l->items = tr_jinja_items(r, v);
    l->node = n;
    l->index0 = -1;
    tr_jinja_enter(r, &f->test_entries);
    while (flow != FLOW_BREAK && advance(r, l)) {
        if (++r->steps > r->max_steps) {
            tr_jinja_charge(r, 0);
        }
        tr_jinja_assign(r, f->target, l->current);
        if (f->uses_loop) {
            *tr_jinja_slot(r, f->loop_at) = (value_t){ .kind = K_LOOP,
                                                       .loop = l };
        }
        tr_jinja_enter(r, &n->entries);
        flow = tr_jinja_exec(r, n->items, n->n);
        whole |= flow == FLOW_ON;
    }
    /* as jinja2: its else runs too when break or continue left all of them */
    if (f->n_otherwise > 0 && !whole) {
        tr_jinja_enter(r, &f->else_entries);
        return tr_jinja_exec(r, f->otherwise, f->n_otherwise);
    }
    return FLOW_ON;
}

/* ---- statements --------------------------------------------------------- */

static flow_t
run_if(render_t *r, const node_t *n)
{
    for (uint32_t i = 0; i < n->n; i++) {
        const node_t *b = n->items[i];

        if (b->a == NULL || tr_jinja_truth(r, tr_jinja_eval(r, b->a))) {
            return tr_jinja_exec(r, b->items, b->n);
        }
    }
    return FLOW_ON;
}

/* What a body writes, as a value; *flow: it was left by break or continue. */
static value_t
captured(render_t *r, const node_t *n, flow_t *flow)
{
    builder_t text = { 0 }, *out = r->out;

    r->out = &text;
    tr_jinja_enter(r, &n->entries);
    *flow = tr_jinja_exec(r, n->items, n->n);
    r->out = out;
    return of_string(tr_jinja_built(&r->arena, &text));
}

/* The filters of a block, the innermost of which has no value of its own. */
static value_t
filtered(render_t *r, const node_t *filter, value_t v)
{
    arguments_t args;

    if (filter->a != NULL) {
        v = filtered(r, filter->a, v);
    }
    args = tr_jinja_arguments(r, filter->call);
    r->arena.place = filter->place;
    if (filter->known == 0) {
        tr_jinja_fail(&r->arena, "there is no filter \"%.*s\"",
                      filter->name->len, filter->name->data);
    }
    return tr_jinja_filter(r, filter->known, filter->name, v, &args);
}

static flow_t
run_block(render_t *r, const node_t *n)
{
    flow_t flow;
    value_t v = captured(r, n, &flow);

    if (flow != FLOW_ON) {
        return flow;
    }
    if (n->b != NULL) {
        v = filtered(r, n->b, v);
    }
    if (n->kind == N_SETBLOCK) {
        tr_jinja_assign(r, n->a, v);
    } else {
        tr_jinja_print(r, r->out, v);
    }
    return FLOW_ON;
}

static value_t
make_macro(render_t *r, const node_t *n)
{
    macro_t *m = tr_jinja_alloc(&r->arena, sizeof(*m));

    *m = (macro_t){ n, r->frame };
    return (value_t){ .kind = K_MACRO, .macro = m };
}

/* The call gets what the block writes as the keyword `caller`. */
static void
run_call(render_t *r, const node_t *n)
{
    arguments_t args, all;
    value_t f = tr_jinja_eval(r, n->a->a);

    args = tr_jinja_arguments(r, n->a->call);
    all = args;
    all.names = tr_jinja_alloc(&r->arena,
                               (args.n_names + 1) * sizeof(string_t *));
    all.values = tr_jinja_alloc(&r->arena,
                                (args.n_names + 1) * sizeof(value_t));
    for (uint32_t i = 0; i < args.n_names; i++) {
        all.names[i] = args.names[i];
        all.values[i] = args.values[i];
    }
    all.names[args.n_names] = tr_jinja_string(&r->arena, "caller", 6,
                                              TR_JINJA_T);
    all.values[args.n_names] = make_macro(r, n);
    all.n_names++;
    r->arena.place = n->place;
    tr_jinja_print(r, r->out, tr_jinja_call(r, f, &all));
}

static void
check_output(render_t *r)
{
    if (r->max_output != 0 && r->out->len > r->max_output) {
        tr_jinja_fail_as(&r->arena, TR_ERR_CONTEXT_LENGTH,
                         "The prompt is longer than %llu bytes.",
                         (unsigned long long) r->max_output);
    }
}

#define OPERANDS 32

/* Writes a + b + c without making the sums, when all of them are plain text. */
static void
print_sum(render_t *r, const node_t *n)
{
    const node_t *parts[OPERANDS];
    value_t values[OPERANDS], sum;
    uint32_t k = OPERANDS, from;
    bool plain = true;

    while (n->kind == N_ADD && k > 1) {
        parts[--k] = n;
        n = n->a;
    }
    from = --k;
    values[from] = tr_jinja_eval(r, n);
    for (; k < OPERANDS; k++) {
        if (k > from) {
            values[k] = tr_jinja_eval(r, parts[k]->b);
        }
        plain &= values[k].kind == K_STRING && !values[k].s->markup;
    }
    sum = values[from];
    for (k = from; k < OPERANDS; k++) {
        if (plain) {
            tr_jinja_put_string(&r->arena, r->out, values[k].s);
        } else if (k > from) {
            r->arena.place = parts[k]->place;
            sum = tr_jinja_arithmetic(r, N_ADD, sum, values[k]);
        }
    }
    if (!plain) {
        tr_jinja_print(r, r->out, sum);
    }
}

static void
print_expression(render_t *r, const node_t *n)
{
    if (n->kind == N_ADD) {
        print_sum(r, n);
    } else if (n->kind == N_CONCAT) {
        for (uint32_t i = 0; i < n->n; i++) {
            tr_jinja_print(r, r->out, tr_jinja_eval(r, n->items[i]));
        }
    } else {
        tr_jinja_print(r, r->out, tr_jinja_eval(r, n));
    }
    check_output(r);
}

static flow_t
run_statement(render_t *r, const node_t *n)
{
    flow_t flow;

    switch (n->kind) {
    case N_DATA:
        tr_jinja_put_string(&r->arena, r->out, n->value.s);
        return FLOW_ON;
    case N_PRINT:
        print_expression(r, n->a);
        return FLOW_ON;
    case N_IF:
        return run_if(r, n);
    case N_FOR:
        return run_for(r, n);
    case N_SET:
        tr_jinja_assign(r, n->a, tr_jinja_eval(r, n->b));
        return FLOW_ON;
    case N_SETBLOCK:
    case N_FILTERBLOCK:
        return run_block(r, n);
    case N_MACRO:
        *tr_jinja_slot(r, n->ref) = make_macro(r, n);
        return FLOW_ON;
    case N_CALLBLOCK:
        run_call(r, n);
        return FLOW_ON;
    case N_SCOPE:
        tr_jinja_print(r, r->out, captured(r, n, &flow));
        return FLOW_ON;
    case N_BREAK:
        return FLOW_BREAK;
    default:
        return FLOW_CONTINUE;
    }
}

flow_t
tr_jinja_exec(render_t *r, node_t *const *body, uint32_t n)
{
    flow_t flow = FLOW_ON;

    if (++r->levels > TR_JINJA_LEVELS) {
        tr_jinja_fail(&r->arena, "statements and calls nest deeper than %u",
                      TR_JINJA_LEVELS);
    }
    for (uint32_t i = 0; i < n && flow == FLOW_ON; i++) {
        r->arena.place = body[i]->place;
        if (++r->steps > r->max_steps) {
            tr_jinja_charge(r, 0);
        }
        flow = run_statement(r, body[i]);
    }
    r->levels--;
    return flow;
}

/* ---- the whole ---------------------------------------------------------- */

render_t *
tr_jinja_render_new(const tr_jinja_t *t, const tr_jinja_limits_t *limits)
{
    render_t *r = calloc(1, sizeof(*r));

    if (r == NULL) {
        return NULL;
    }
    r->tree = t;
    r->arena.limit = limits->memory ? limits->memory : MEMORY_MIN;
    r->arena.name = t->arena.name;
    r->arena.source = t->arena.source;
    r->arena.source_len = t->arena.source_len;
    r->max_steps = limits->steps ? limits->steps : STEPS_MAX;
    r->max_output = limits->output;
    r->now = limits->now;
    return r;
}

void
tr_jinja_render_free(render_t *r)
{
    if (r != NULL) {
        tr_jinja_arena_free(&r->arena);
        json_decref(r->parsed);
        free(r);
    }
}

static void
run(render_t *r, tr_jinja_fill_pt fill, void *arg, tr_jinja_text_t *out)
{
    builder_t *text = tr_jinja_zalloc(&r->arena, sizeof(*text));

    r->variables = tr_jinja_dict(&r->arena, 16);
    fill(r, arg);
    r->frame = tr_jinja_zalloc(&r->arena, sizeof(*r->frame));
    r->frame->slots = tr_jinja_zalloc(&r->arena,
                                      (r->tree->n_slots + 1) * sizeof(value_t));
    r->out = text;
    tr_jinja_enter(r, &r->tree->entries);
    tr_jinja_exec(r, r->tree->body, r->tree->n);
    check_output(r);
    *out = (tr_jinja_text_t){ text->len ? text->data : "", text->tags,
                              text->len, r->steps };
}

tr_status_t
tr_jinja_render(render_t *r, tr_jinja_fill_pt fill, void *arg,
                tr_jinja_text_t *out, tr_error_t *err)
{
    jmp_buf escape;

    r->arena.err = err;
    r->arena.escape = &escape;
    r->arena.status = TR_OK;
    if (setjmp(escape) != 0) {
        return r->arena.status;
    }
    run(r, fill, arg, out);
    return TR_OK;
}

void
tr_jinja_set(render_t *r, const char *name, value_t v)
{
    tr_jinja_dict_set(&r->arena, r->variables,
                      of_string(tr_jinja_string(&r->arena, name, strlen(name),
                                                TR_JINJA_T)),
                      v);
}
