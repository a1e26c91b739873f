/*
 * Finished rules: what they must be, and how they are packed.
 *
 *  - Who calls a rule that may be empty may also pass by: an empty edge says so,
 *    and a call itself always takes something.
 *  - A rule that calls itself before it has taken anything is refused.
 *  - An edge from which no end can be reached is cut away.  So every state that
 *    an answer can reach leads to an end, and no mask is empty.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#define NONE UINT32_MAX

typedef struct {
    tr_rules_t *b;
    uint32_t *stack, n_stack; /* states; [n_states] */
    uint32_t *mark, generation;
    bool *live;                 /* [n_states] an end can be reached */
    uint32_t *owner;            /* [n_states] rule + 1 whose accept it is */
    uint32_t *into, *into_edge; /* edges into a state, by state */
    uint32_t *callers, *caller; /* sites of a rule, by rule */
    uint32_t *from_of;          /* [n_edges] */
} finish_t;

static void
visit(finish_t *f, uint32_t state)
{
    if (f->mark[state] != f->generation) {
        f->mark[state] = f->generation;
        f->stack[f->n_stack++] = state;
    }
}

/* Does the rule reach its end without taking anything? */
static bool
is_nullable(finish_t *f, const tr_rule_t *rule)
{
    const tr_rules_t *b = f->b;

    f->generation++;
    f->n_stack = 0;
    visit(f, rule->start);
    while (f->n_stack > 0) {
        uint32_t s = f->stack[--f->n_stack], e;

        if (s == rule->accept) {
            return true;
        }
        for (e = b->first[s]; e != NONE; e = b->edges[e].next) {
            tr_rules_count(f->b, 1);
            if (b->edges[e].kind == TR_EDGE_EMPTY) {
                visit(f, b->edges[e].target);
            } else if (b->edges[e].kind == TR_EDGE_CALL) {
                const tr_site_t *site = &b->sites[b->edges[e].target];

                if (site->kind != TR_SITE_LENGTH
                    && b->rules[site->rule].nullable) {
                    visit(f, site->to);
                }
            }
        }
    }
    return false;
}

/* Which rule a state is of: its callers are asked again when a rule turns out
 * to be nullable. */
static void
find_nullable(finish_t *f, uint32_t *rule_of)
{
    tr_rules_t *b = f->b;
    uint32_t *queue = f->from_of; /* free by now, large enough with rules */
    uint32_t n = 0, i;
    bool *queued = calloc(b->n_rules + 1, sizeof(*queued));

    if (queued == NULL) {
        b->failed = TR_ERR_NOMEM;
        return;
    }
    for (i = 0; i < b->n_rules; i++) {
        queue[n++] = i;
        queued[i] = true;
    }
    while (n > 0 && b->failed == TR_OK) {
        uint32_t r = queue[--n];

        queued[r] = false;
        if (b->rules[r].nullable || !is_nullable(f, &b->rules[r])) {
            continue;
        }
        b->rules[r].nullable = true;
        for (i = f->callers[r]; i < f->callers[r + 1]; i++) {
            uint32_t caller = rule_of[b->sites[f->caller[i]].from];

            if (caller != NONE && !queued[caller]) {
                queued[caller] = true;
                queue[n++] = caller;
            }
        }
    }
    free(queued);
    for (i = 0; i < b->n_sites && b->failed == TR_OK; i++) {
        const tr_site_t site = b->sites[i];

        if (site.kind != TR_SITE_LENGTH && b->rules[site.rule].nullable) {
            tr_rules_empty(b, site.from, site.to);
            b->sites[i].min = 0;
        }
    }
}

/* The rule of each state that can be reached from a start. */
static void
find_owners(finish_t *f, uint32_t *rule_of)
{
    tr_rules_t *b = f->b;

    memset(rule_of, 0xff, b->n_states * sizeof(*rule_of));
    f->generation++;
    for (uint32_t r = 0; r < b->n_rules; r++) {
        f->n_stack = 0;
        visit(f, b->rules[r].start);
        while (f->n_stack > 0) {
            uint32_t s = f->stack[--f->n_stack], e;

            rule_of[s] = r;
            for (e = b->first[s]; e != NONE; e = b->edges[e].next) {
                const tr_edge_t *edge = &b->edges[e];

                visit(f, edge->kind == TR_EDGE_CALL ? b->sites[edge->target].to
                         : edge->kind == TR_EDGE_TOKEN
                             ? b->tokens[edge->target].to
                             : edge->target);
            }
        }
    }
}

static bool
find_callers(finish_t *f)
{
    const tr_rules_t *b = f->b;
    uint32_t i;

    f->callers = calloc((size_t) b->n_rules + 2, sizeof(*f->callers));
    f->caller = calloc((size_t) b->n_sites + 1, sizeof(*f->caller));
    if (f->callers == NULL || f->caller == NULL) {
        return false;
    }
    for (i = 0; i < b->n_sites; i++) {
        f->callers[b->sites[i].rule + 2]++;
    }
    for (i = 0; i <= b->n_rules; i++) {
        f->callers[i + 1] += f->callers[i];
    }
    for (i = 0; i < b->n_sites; i++) {
        f->caller[f->callers[b->sites[i].rule + 1]++] = i;
    }
    return true;
}

/* ---- rules that call themselves at once */

/* The rules that r calls before it has taken anything go onto the stack. */
static void
push_first_calls(finish_t *f, uint32_t r, uint32_t *list, uint32_t *n,
                 uint32_t cap)
{
    const tr_rules_t *b = f->b;

    f->generation++;
    f->n_stack = 0;
    visit(f, b->rules[r].start);
    while (f->n_stack > 0) {
        uint32_t s = f->stack[--f->n_stack], e;

        for (e = b->first[s]; e != NONE; e = b->edges[e].next) {
            tr_rules_count(f->b, 1);
            if (b->edges[e].kind == TR_EDGE_EMPTY) {
                visit(f, b->edges[e].target);
            } else if (b->edges[e].kind == TR_EDGE_CALL && *n < cap) {
                list[(*n)++] = b->sites[b->edges[e].target].rule;
            }
        }
    }
}

/* Depth first; a rule met again while it is open is left-recursive. */
static uint32_t
find_left_recursion(finish_t *f)
{
    tr_rules_t *b = f->b;
    enum { NEW, OPEN, DONE };
    uint32_t cap = b->n_sites + b->n_rules + 1, found = NONE, n = 0;
    uint8_t *colour = calloc(b->n_rules, 1);
    uint32_t *list = malloc((size_t) cap * sizeof(*list));

    if (colour == NULL || list == NULL) {
        b->failed = TR_ERR_NOMEM;
    }
    for (uint32_t r = 0; b->failed == TR_OK && found == NONE && r < b->n_rules;
         r++) {
        if (colour[r] == NEW) {
            list[n++] = r;
        }
        while (n > 0 && found == NONE && b->failed == TR_OK) {
            uint32_t at = list[n - 1], first = n;

            if (colour[at] != NEW) { /* back from its calls, or seen */
                colour[at] = DONE;
                n--;
                continue;
            }
            colour[at] = OPEN;
            push_first_calls(f, at, list, &n, cap);
            for (uint32_t i = first; i < n;) {
                if (colour[list[i]] == OPEN) {
                    found = list[i];
                    break;
                }
                if (colour[list[i]] == DONE) {
                    list[i] = list[--n];
                } else {
                    i++;
                }
            }
        }
    }
    free(colour);
    free(list);
    return found;
}

/* ---- what reaches an end */

static bool
find_edges_into(finish_t *f)
{
    const tr_rules_t *b = f->b;
    uint32_t s, e;

    f->into = calloc((size_t) b->n_states + 2, sizeof(*f->into));
    f->into_edge = calloc((size_t) b->n_edges + 1, sizeof(*f->into_edge));
    free(f->from_of);
    f->from_of = calloc((size_t) b->n_edges + 1, sizeof(*f->from_of));
    if (f->into == NULL || f->into_edge == NULL || f->from_of == NULL) {
        return false;
    }
#define TARGET(edge)                                                \
    ((edge)->kind == TR_EDGE_CALL    ? b->sites[(edge)->target].to  \
     : (edge)->kind == TR_EDGE_TOKEN ? b->tokens[(edge)->target].to \
                                     : (edge)->target)
    for (s = 0; s < b->n_states; s++) {
        for (e = b->first[s]; e != NONE; e = b->edges[e].next) {
            f->from_of[e] = s;
            f->into[TARGET(&b->edges[e]) + 2]++;
        }
    }
    for (s = 0; s <= b->n_states; s++) {
        f->into[s + 1] += f->into[s];
    }
    for (s = 0; s < b->n_states; s++) {
        for (e = b->first[s]; e != NONE; e = b->edges[e].next) {
            f->into_edge[f->into[TARGET(&b->edges[e]) + 1]++] = e;
        }
    }
    return true;
}

static void
make_live(finish_t *f, uint32_t state)
{
    if (!f->live[state]) {
        f->live[state] = true;
        f->stack[f->n_stack++] = state;
    }
}

/* Backwards from the ends of rules; a call counts when the called rule can come
 * to its end, too. */
static void
find_live(finish_t *f)
{
    const tr_rules_t *b = f->b;
    uint32_t i;

    f->n_stack = 0;
    for (i = 0; i < b->n_rules; i++) {
        make_live(f, b->rules[i].accept);
    }
    while (f->n_stack > 0) {
        uint32_t s = f->stack[--f->n_stack];

        for (i = f->into[s]; i < f->into[s + 1]; i++) {
            const tr_edge_t *edge = &b->edges[f->into_edge[i]];

            if (edge->kind != TR_EDGE_CALL
                || f->live[b->rules[b->sites[edge->target].rule].start]) {
                make_live(f, f->from_of[f->into_edge[i]]);
            }
        }
        if (f->owner[s] == NONE) {
            continue;
        }
        /* s is the start of a rule: who calls it may have waited for that */
        for (uint32_t r = f->owner[s], k = f->callers[r]; k < f->callers[r + 1];
             k++) {
            const tr_site_t *site = &b->sites[f->caller[k]];

            if (f->live[site->to]) {
                make_live(f, site->from);
            }
        }
    }
}

/* ---- packing */

static bool
edge_lives(const finish_t *f, const tr_edge_t *edge)
{
    const tr_rules_t *b = f->b;

    return f->live[TARGET(edge)]
           && (edge->kind != TR_EDGE_CALL
               || f->live[b->rules[b->sites[edge->target].rule].start]);
}

static void
find_classes(tr_program_t *p)
{
    bool cut[257] = { false };

    for (uint32_t i = 0; i < p->first[p->n_states]; i++) {
        if (p->moves[i].kind == TR_EDGE_BYTES) {
            cut[p->moves[i].lo] = true;
            cut[p->moves[i].hi + 1] = true;
        }
    }
    p->n_classes = 1;
    for (uint32_t c = 0; c < 256; c++) {
        if (c > 0 && cut[c]) {
            p->n_classes++;
        }
        p->class_of[c] = (uint8_t) (p->n_classes - 1);
    }
}

/* Does `state` lead to the end of its rule, and to nothing else? */
static bool
only_ends(const tr_program_t *p, uint32_t state)
{
    for (uint32_t steps = 0; steps < 16; steps++) {
        uint32_t n = p->first[state + 1] - p->first[state];

        if (p->flags[state] & (TR_NFA_ACCEPT | TR_NFA_FINAL)) {
            return n == 0;
        }
        if (n != 1 || p->moves[p->first[state]].kind != TR_EDGE_EMPTY) {
            return false;
        }
        state = p->moves[p->first[state]].target;
    }
    return false;
}

static tr_status_t
pack(finish_t *f, tr_program_t *p)
{
    tr_rules_t *b = f->b;
    uint32_t s, e, n = 0;

    p->n_states = b->n_states;
    p->n_rules = b->n_rules;
    p->n_sites = b->n_sites;
    p->n_tokens = b->n_tokens;
    p->first = calloc((size_t) b->n_states + 1, sizeof(*p->first));
    p->moves = calloc((size_t) b->n_edges + 1, sizeof(*p->moves));
    p->flags = calloc((size_t) b->n_states + 1, 1);
    if (p->first == NULL || p->moves == NULL || p->flags == NULL) {
        return TR_ERR_NOMEM;
    }
    for (s = 0; s < b->n_states; s++) {
        p->first[s] = n;
        p->flags[s] = b->tick[s] ? TR_NFA_TICK : 0;
        for (e = b->first[s]; e != NONE; e = b->edges[e].next) {
            const tr_edge_t *edge = &b->edges[e];

            if (edge_lives(f, edge)) {
                p->moves[n++] = (tr_move_t){ edge->kind, edge->lo, edge->hi,
                                             edge->target };
                if (edge->kind != TR_EDGE_EMPTY) {
                    p->flags[s] |= TR_NFA_MATTERS;
                }
            }
        }
    }
    p->first[s] = n;
    for (s = 0; s < b->n_rules; s++) {
        bool whole = s == 0 && f->callers[0] == f->callers[1];

        p->flags[b->rules[s].accept] |= (whole ? TR_NFA_FINAL : TR_NFA_ACCEPT)
                                        | TR_NFA_MATTERS;
    }
    p->sites = b->sites;
    p->rules = b->rules;
    p->tokens = b->tokens;
    b->sites = NULL;
    b->rules = NULL;
    b->tokens = NULL;
    for (s = 0; s < p->n_sites; s++) {
        p->sites[s].tail = p->sites[s].kind == TR_SITE_CALL
                           && only_ends(p, p->sites[s].to);
    }
    find_classes(p);
    return TR_OK;
}

static tr_status_t
check(finish_t *f, const char *param, tr_error_t *err)
{
    tr_rules_t *b = f->b;
    uint32_t *rule_of = malloc(((size_t) b->n_states + 1) * sizeof(*rule_of));
    uint32_t bad = NONE;

    if (rule_of == NULL || !find_callers(f)) {
        free(rule_of);
        return TR_ERR_NOMEM;
    }
    find_owners(f, rule_of);
    find_nullable(f, rule_of);
    free(rule_of);
    if (b->failed == TR_OK) {
        bad = find_left_recursion(f);
    }
    if (b->failed != TR_OK) {
        return b->failed;
    }
    if (bad != NONE) {
        return tr_error_set(err, TR_ERR_INVALID, param,
                            "Invalid '%s': the rule '%.64s' calls itself "
                            "before it has matched anything, which is not "
                            "supported.",
                            param,
                            b->rules[bad].name ? b->rules[bad].name : "");
    }
    if (!find_edges_into(f)) {
        return TR_ERR_NOMEM;
    }
    find_live(f);
    if (!f->live[b->rules[0].start]) {
        return tr_error_set(err, TR_ERR_INVALID, param,
                            "Invalid '%s': no text could match.", param);
    }
    return TR_OK;
}

tr_status_t
tr_program_finish(tr_rules_t *b, tr_program_t *out, const char *param,
                  tr_error_t *err)
{
    finish_t f = { .b = b };
    size_t n = (size_t) b->n_states + 1;
    tr_status_t rc = b->failed;

    memset(out, 0, sizeof(*out));
    err->status = TR_OK;
    if (rc == TR_OK) {
        f.stack = malloc(n * sizeof(*f.stack));
        f.mark = calloc(n, sizeof(*f.mark));
        f.live = calloc(n, sizeof(*f.live));
        f.owner = malloc(n * sizeof(*f.owner));
        f.from_of = malloc((n + b->n_rules) * sizeof(*f.from_of));
        rc = f.stack == NULL || f.mark == NULL || f.live == NULL
                     || f.owner == NULL || f.from_of == NULL
                 ? TR_ERR_NOMEM
                 : TR_OK;
    }
    if (rc == TR_OK) {
        memset(f.owner, 0xff, n * sizeof(*f.owner));
        for (uint32_t r = 0; r < b->n_rules; r++) {
            f.owner[b->rules[r].start] = r;
        }
        rc = check(&f, param, err);
    }
    if (rc == TR_OK) {
        rc = pack(&f, out);
    }
    free(f.stack);
    free(f.mark);
    free(f.live);
    free(f.owner);
    free(f.from_of);
    free(f.into);
    free(f.into_edge);
    free(f.callers);
    free(f.caller);
    if (rc == TR_ERR_NOMEM) {
        tr_error_set(err, rc, "", "out of memory");
    } else if (rc == TR_ERR_UNSUPPORTED) {
        rc = tr_error_set(err, TR_ERR_INVALID, param,
                          "Invalid '%s': it is too complex: it needs more than "
                          "%u states, %u MiB, or too much work to compile.",
                          param, TR_GRAMMAR_STATES, TR_GRAMMAR_MEMORY >> 20);
    }
    if (rc != TR_OK) {
        tr_program_free(out);
    }
    return rc;
}

void
tr_program_free(tr_program_t *p)
{
    free(p->first);
    free(p->moves);
    free(p->flags);
    free(p->sites);
    free(p->rules);
    free(p->tokens);
    memset(p, 0, sizeof(*p));
}
