/*
 * Regular expressions to rules: the whole text has to match.
 *
 * A repetition whose bounds are small is written out; any other is a rule that
 * is counted (TR_SITE_REPEAT), so that a bound of a million costs nothing.
 */
#include "grammar_internal.h"

#include <stdio.h>

#define WRITTEN_OUT 64u /* nodes of a repetition that is written out */

typedef struct {
    tr_rules_t *b;
    const tr_regex_tree_t *t;
    char *why; /* [128] */
    tr_status_t rc;
} emit_t;

/* Nodes of a tree; stops at `most`. */
static uint32_t
size_of(const tr_regex_tree_t *t, uint32_t node, uint32_t most)
{
    uint32_t n = 0;

    for (;;) {
        const tr_regex_node_t *x = &t->nodes[node];

        if (++n >= most) {
            return most;
        }
        switch (x->kind) {
        case TR_REGEX_CAT:
        case TR_REGEX_ALT:
            n += size_of(t, x->b, most - n);
            node = x->a;
            break;
        case TR_REGEX_REPEAT: {
            uint32_t times = x->max == TR_UNBOUNDED ? x->min + 1 : x->max;
            uint32_t inner = size_of(t, x->a, most);

            return times != 0 && inner >= (most - n) / times
                       ? most
                       : n + inner * times;
        }
        default:
            return n;
        }
    }
}

/* Takes nothing, whatever stands there: anchors alone. */
static bool
takes_nothing(const tr_regex_tree_t *t, uint32_t node)
{
    for (;;) {
        const tr_regex_node_t *x = &t->nodes[node];

        switch (x->kind) {
        case TR_REGEX_EMPTY:
        case TR_REGEX_BEGIN:
        case TR_REGEX_END:
            return true;
        case TR_REGEX_CAT:
        case TR_REGEX_ALT:
            if (!takes_nothing(t, x->b)) {
                return false;
            }
            node = x->a;
            break;
        case TR_REGEX_REPEAT:
            node = x->a;
            break;
        default:
            return false;
        }
    }
}

static void emit(emit_t *e, uint32_t node, uint32_t from, uint32_t to,
                 bool first, bool last);

static void
emit_loop(emit_t *e, const tr_regex_node_t *x, uint32_t from, uint32_t to)
{
    uint32_t in = tr_rules_state(e->b), out = tr_rules_state(e->b);

    tr_rules_empty(e->b, from, in);
    emit(e, x->a, in, out, false, false);
    tr_rules_empty(e->b, out, in);
    tr_rules_empty(e->b, x->min == 0 ? in : out, to);
}

static void
emit_repeat(emit_t *e, const tr_regex_node_t *x, uint32_t from, uint32_t to)
{
    uint32_t times = x->max == TR_UNBOUNDED ? x->min : x->max, next, rule;
    uint32_t inner = size_of(e->t, x->a, WRITTEN_OUT + 1);

    if (x->max == TR_UNBOUNDED && x->min <= 1) {
        emit_loop(e, x, from, to);
        return;
    }
    if ((uint64_t) times * inner > WRITTEN_OUT) {
        rule = tr_rules_rule(e->b, "repetition");
        if (e->b->failed == TR_OK) {
            emit(e, x->a, e->b->rules[rule].start, e->b->rules[rule].accept,
                 false, false);
            tr_rules_repeat(e->b, from, rule, x->min, x->max, to);
        }
        return;
    }
    for (uint32_t i = 0; i < times; i++) {
        if (i >= x->min) {
            tr_rules_empty(e->b, from, to);
        }
        next = tr_rules_state(e->b);
        emit(e, x->a, from, next, false, false);
        from = next;
    }
    if (x->max == TR_UNBOUNDED) {
        tr_regex_node_t rest = { TR_REGEX_REPEAT, x->a, 0, 0, TR_UNBOUNDED };

        emit_loop(e, &rest, from, to);
        return;
    }
    tr_rules_empty(e->b, from, to);
}

/* first, last: nothing stands before, or behind. */
static void
emit(emit_t *e, uint32_t node, uint32_t from, uint32_t to, bool first,
     bool last)
{
    while (e->rc == TR_OK && e->b->failed == TR_OK) {
        const tr_regex_node_t *x = &e->t->nodes[node];
        uint32_t middle;

        switch (x->kind) {
        case TR_REGEX_EMPTY:
            tr_rules_empty(e->b, from, to);
            return;
        case TR_REGEX_BEGIN:
        case TR_REGEX_END:
            if (!(x->kind == TR_REGEX_BEGIN ? first : last)) {
                e->rc = TR_ERR_UNSUPPORTED;
                snprintf(e->why, 128,
                         "an anchor that is not at the beginning or the end");
            }
            tr_rules_empty(e->b, from, to);
            return;
        case TR_REGEX_SET:
            tr_charset_rules(e->b, from, &e->t->sets[x->a], false, to);
            return;
        case TR_REGEX_REPEAT:
            emit_repeat(e, x, from, to);
            return;
        case TR_REGEX_ALT:
            emit(e, x->b, from, to, first, last);
            node = x->a;
            break;
        case TR_REGEX_CAT:
            middle = tr_rules_state(e->b);
            emit(e, x->b, middle, to, first && takes_nothing(e->t, x->a), last);
            last = last && takes_nothing(e->t, x->b);
            to = middle;
            node = x->a;
            break;
        }
    }
}

tr_status_t
tr_regex_rules(tr_rules_t *b, const tr_regex_tree_t *t, uint32_t from,
               uint32_t to, char why[128])
{
    emit_t e = { b, t, why, TR_OK };

    emit(&e, t->root, from, to, true, true);
    return e.rc;
}
