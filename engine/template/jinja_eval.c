/*
 * Expressions.
 */
#include "jinja_run.h"

#include <string.h>

void
tr_jinja_charge(render_t *r, uint64_t bytes)
{
    r->steps += bytes >> 8;
    if (r->steps > r->max_steps) {
        tr_jinja_fail_as(&r->arena, TR_ERR_INVALID,
                         "The chat template exceeded its limit of %llu steps.",
                         (unsigned long long) r->max_steps);
    }
}

bool
tr_jinja_truth(render_t *r, value_t v)
{
    int64_t n;

    switch (v.kind) {
    case K_MISSING:
    case K_UNDEFINED:
    case K_NONE:
        return false;
    case K_BOOL:
        return v.b;
    case K_INT:
        return v.i != 0;
    case K_FLOAT:
        return v.f != 0;
    default:
        return !tr_jinja_length(r, v, &n) || n != 0;
    }
}

value_t *
tr_jinja_slot(render_t *r, ref_t at)
{
    frame_t *f = r->frame;

    for (uint16_t i = 0; i < at.hops; i++) {
        f = f->outer;
    }
    return &f->slots[at.slot];
}

static value_t
sequence(render_t *r, const node_t *n)
{
    list_t *l = tr_jinja_list(&r->arena, n->n);

    for (uint32_t i = 0; i < n->n; i++) {
        l->items[i] = tr_jinja_eval(r, n->items[i]);
    }
    return (value_t){ .kind = n->kind == N_LIST ? K_LIST : K_TUPLE, .list = l };
}

static value_t
dictionary(render_t *r, const node_t *n)
{
    dict_t *d = tr_jinja_dict(&r->arena, n->n / 2);

    for (uint32_t i = 0; i < n->n; i += 2) {
        value_t key = tr_jinja_eval(r, n->items[i]);
        value_t v = tr_jinja_eval(r, n->items[i + 1]);

        if (!tr_jinja_hashable(key)) {
            tr_jinja_fail(&r->arena, "%s cannot be a key", tr_jinja_type(key));
        }
        tr_jinja_dict_set(&r->arena, d, key, v);
    }
    return of_dict(d);
}

static value_t
concatenation(render_t *r, const node_t *n)
{
    string_t *s = tr_jinja_str(r, tr_jinja_eval(r, n->items[0]));

    for (uint32_t i = 1; i < n->n; i++) {
        s = tr_jinja_concat(&r->arena, s,
                            tr_jinja_str(r, tr_jinja_eval(r, n->items[i])));
    }
    if (s->markup) { /* "~" makes plain text */
        s = tr_jinja_slice(&r->arena, s, 0, s->len);
        s->markup = false;
    }
    return of_string(s);
}

static value_t
comparison(render_t *r, const node_t *n)
{
    value_t left = tr_jinja_eval(r, n->a);

    for (uint32_t i = 0; i < n->n; i++) {
        const node_t *operand = n->items[i];
        value_t right = tr_jinja_eval(r, operand->a);

        r->arena.place = operand->place;
        if (!tr_jinja_compare(r, (compare_t) operand->op, left, right)) {
            return of_bool(false);
        }
        left = right;
    }
    return of_bool(true);
}

static value_t
filtered(render_t *r, const node_t *n, value_t v)
{
    arguments_t args = tr_jinja_arguments(r, n->call);

    r->arena.place = n->place;
    return tr_jinja_filter(r, n->known, n->name, v, &args);
}

static value_t
tested(render_t *r, const node_t *n)
{
    value_t v = tr_jinja_eval(r, n->a);
    arguments_t args = tr_jinja_arguments(r, n->call);

    r->arena.place = n->place;
    if (n->known == 0) {
        tr_jinja_fail(&r->arena, "there is no test \"%.*s\"", n->name->len,
                      n->name->data);
    }
    return of_bool(tr_jinja_test(r, n->known, n->name, v, &args));
}

static value_t
unary(render_t *r, const node_t *n)
{
    value_t v = tr_jinja_eval(r, n->a);

    r->arena.place = n->place;
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (!is_number(v)) {
        tr_jinja_fail(&r->arena, "%s has no sign", tr_jinja_type(v));
    }
    if (v.kind == K_FLOAT) {
        v.f = n->kind == N_NEG ? -v.f : v.f;
        return v;
    }
    v.i = v.kind == K_BOOL ? v.b : v.i;
    v.kind = K_INT;
    if (n->kind == N_NEG) {
        if (v.i == INT64_MIN) {
            tr_jinja_fail(&r->arena, "a number is too large");
        }
        v.i = -v.i;
    }
    return v;
}

static value_t
called(render_t *r, const node_t *n)
{
    value_t f;
    arguments_t args;

    /* a method is called where it stands, without a value of its own */
    f = tr_jinja_eval(r, n->a);
    args = tr_jinja_arguments(r, n->call);
    r->arena.place = n->place;
    return tr_jinja_call(r, f, &args);
}

static value_t
item(render_t *r, const node_t *n)
{
    value_t v = tr_jinja_eval(r, n->a);

    if (n->b->kind == N_SLICE) {
        return tr_jinja_getslice(r, v, n->b);
    }
    {
        value_t key = tr_jinja_eval(r, n->b);

        r->arena.place = n->place;
        return tr_jinja_getitem(r, v, key);
    }
}

static value_t
arithmetic(render_t *r, const node_t *n)
{
    value_t left = tr_jinja_eval(r, n->a);
    value_t right = tr_jinja_eval(r, n->b);

    r->arena.place = n->place;
    return tr_jinja_arithmetic(r, (node_kind_t) n->kind, left, right);
}

static value_t
evaluate(render_t *r, const node_t *n)
{
    value_t v;

    switch (n->kind) {
    case N_CONST:
        return n->value;
    case N_NAME:
        v = *tr_jinja_slot(r, n->ref);
        return v.kind == K_MISSING ? of_undefined(n->name) : v;
    case N_LIST:
    case N_TUPLE:
        return sequence(r, n);
    case N_DICT:
        return dictionary(r, n);
    case N_GETATTR:
        v = tr_jinja_eval(r, n->a);
        r->arena.place = n->place;
        return tr_jinja_getattr(r, v, n->name);
    case N_GETITEM:
        return item(r, n);
    case N_CALL:
        return called(r, n);
    case N_FILTER:
        if (n->known == 0) {
            r->arena.place = n->place;
            tr_jinja_fail(&r->arena, "there is no filter \"%.*s\"",
                          n->name->len, n->name->data);
        }
        /* a filter without a value has what its block wrote (N_NAME 0) */
        return filtered(r, n, tr_jinja_eval(r, n->a));
    case N_TEST:
        return tested(r, n);
    case N_NOT:
        return of_bool(!tr_jinja_truth(r, tr_jinja_eval(r, n->a)));
    case N_NEG:
    case N_POS:
        return unary(r, n);
    case N_AND:
        v = tr_jinja_eval(r, n->a);
        return tr_jinja_truth(r, v) ? tr_jinja_eval(r, n->b) : v;
    case N_OR:
        v = tr_jinja_eval(r, n->a);
        return tr_jinja_truth(r, v) ? v : tr_jinja_eval(r, n->b);
    case N_CONCAT:
        return concatenation(r, n);
    case N_COMPARE:
        return comparison(r, n);
    case N_COND:
        if (tr_jinja_truth(r, tr_jinja_eval(r, n->b))) {
            return tr_jinja_eval(r, n->a);
        }
        return n->c ? tr_jinja_eval(r, n->c) : UNDEFINED;
    default:
        return arithmetic(r, n);
    }
}

value_t
tr_jinja_eval(render_t *r, const node_t *n)
{
    value_t v;

    if (++r->steps > r->max_steps) {
        tr_jinja_charge(r, 0);
    }
    if (++r->levels > TR_JINJA_LEVELS) {
        r->arena.place = n->place;
        tr_jinja_fail(&r->arena, "expressions and calls nest deeper than %u",
                      TR_JINJA_LEVELS);
    }
    v = evaluate(r, n);
    r->levels--;
    return v;
}
