/*
 * Automata over code points (char_automaton.c) as rules of bytes: each character
 * as JSON spells it in a string.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

static int
by_target(const void *a, const void *b)
{
    const tr_arc_t *x = a, *y = b;

    return x->to != y->to ? (x->to > y->to) - (x->to < y->to)
                          : (x->lo > y->lo) - (x->lo < y->lo);
}

/* How the characters of a set that take several bytes, or an escape, are spelled
 * on the way to one target.  Mostly these are the same from every state, and then
 * all states share it: else each state that a mask walks through would have
 * states of its own in the middle of its characters. */
typedef struct {
    tr_charset_t set;
    uint32_t state;
} spelled_t;

/* Those of *from go to *plain, or to *odd, which take an escape or several bytes. */
static void
part_set(const tr_charset_t *from, tr_charset_t *plain, tr_charset_t *odd)
{
    static const uint32_t begins[] = { 0,    0x20,     '"',  '"' + 1,
                                       '\\', '\\' + 1, 0x80, TR_CODE_POINTS };

    plain->n = odd->n = 0;
    for (uint32_t i = 0; i < from->n; i++) {
        for (uint32_t k = 0; k + 1 < sizeof(begins) / sizeof(begins[0]); k++) {
            uint32_t lo = from->ranges[i].lo, hi = from->ranges[i].hi;

            lo = lo > begins[k] ? lo : begins[k];
            hi = hi < begins[k + 1] ? hi : begins[k + 1] - 1;
            if (lo <= hi) {
                tr_charset_add(k % 2 != 0 ? plain : odd, lo, hi);
            }
        }
    }
    tr_charset_normalise(plain);
    tr_charset_normalise(odd);
}

/* The characters of *odd from a state to `to`, as they were spelled before. */
static void
spell_odd(tr_rules_t *b, uint32_t from, const tr_charset_t *odd, uint32_t to,
          spelled_t *was)
{
    if (odd->n == 0) {
        return;
    }
    if (was->set.n == 0) {
        for (uint32_t i = 0; i < odd->n; i++) {
            tr_charset_add(&was->set, odd->ranges[i].lo, odd->ranges[i].hi);
        }
        was->state = tr_rules_state(b);
        tr_charset_rules(b, was->state, odd, true, to);
    }
    if (was->set.n == odd->n
        && memcmp(was->set.ranges, odd->ranges, odd->n * sizeof(*odd->ranges))
               == 0) {
        tr_rules_empty(b, from, was->state);
    } else {
        tr_charset_rules(b, from, odd, true, to);
    }
}

void
tr_chars_rules(tr_rules_t *b, const tr_chars_t *a, uint32_t from, uint32_t to)
{
    uint32_t first = b->n_states;
    tr_charset_t set = { 0 }, plain = { 0 }, odd = { 0 };
    tr_arc_t *arcs = malloc((a->n_arcs + 1) * sizeof(*arcs));
    spelled_t *spelled = calloc(a->n + 1, sizeof(*spelled));

    if (arcs == NULL || spelled == NULL) {
        b->failed = TR_ERR_NOMEM;
    }
    for (uint32_t s = 0; s < a->n; s++) {
        tr_rules_state(b);
    }
    tr_rules_empty(b, from, first);
    for (uint32_t s = 0; s < a->n && b->failed == TR_OK; s++) {
        uint32_t n = a->first[s + 1] - a->first[s];

        if (a->accept[s]) {
            tr_rules_bytes(b, first + s, '"', '"', to);
        }
        memcpy(arcs, a->arcs + a->first[s], n * sizeof(*arcs));
        qsort(arcs, n, sizeof(*arcs), by_target);
        for (uint32_t i = 0; i < n; i++) {
            tr_charset_add(&set, arcs[i].lo, arcs[i].hi);
            if (i + 1 == n || arcs[i + 1].to != arcs[i].to) {
                tr_charset_normalise(&set);
                part_set(&set, &plain, &odd);
                tr_charset_rules(b, first + s, &plain, true,
                                 first + arcs[i].to);
                spell_odd(b, first + s, &odd, first + arcs[i].to,
                          &spelled[arcs[i].to]);
                set.n = 0;
            }
        }
        if (set.failed || plain.failed || odd.failed) {
            b->failed = TR_ERR_NOMEM;
        }
    }
    for (uint32_t s = 0; spelled != NULL && s < a->n; s++) {
        if (spelled[s].set.failed) {
            b->failed = TR_ERR_NOMEM;
        }
        tr_charset_free(&spelled[s].set);
    }
    tr_charset_free(&set);
    tr_charset_free(&plain);
    tr_charset_free(&odd);
    free(spelled);
    free(arcs);
}
