/*
 * Rules of JSON in whose strings none of some texts stands.
 *
 * Where arguments are marked-up text, a value that is JSON ends with its closing
 * mark, and so its strings must not have the mark in them.  Each state is copied
 * once for each node of the marks' automaton (marks.c) that a string may have
 * come to there; a byte that would complete a mark has no edge.
 *
 * Marks begin with '<', which JSON has within strings alone, and have no quote in
 * them: so every rule ends at the automaton's beginning, and only one that begins
 * within a string begins elsewhere.  For '<' a string may have \u003c, which is
 * no mark: nothing that a schema asks for becomes impossible.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

#define NONE UINT32_MAX

/* (number, node) to number: open addressing. */
typedef struct {
    uint64_t *keys; /* 0: free */
    uint32_t *values;
    uint32_t n, cap;
} map_t;

typedef struct {
    uint32_t state, node, copy;
} task_t;

struct tr_bars {
    tr_marks_t texts;
    map_t states, rules, ends; /* ends: of rules that have a copy */
    map_t escapes;             /* of '<' before a state, behind the backslash */
    task_t *tasks;             /* states whose edges are still to be copied */
    uint32_t n_tasks, cap_tasks;
};

static uint64_t
key_of(uint32_t number, uint32_t node)
{
    return (uint64_t) number << 32 | (node + 1u);
}

static uint32_t
place_of(const map_t *m, uint64_t key)
{
    uint64_t x = key;
    uint32_t at = (uint32_t) tr_splitmix64(&x) & (m->cap - 1);

    while (m->keys[at] != 0 && m->keys[at] != key) {
        at = (at + 1) & (m->cap - 1);
    }
    return at;
}

static uint32_t
map_find(const map_t *m, uint64_t key)
{
    uint32_t at = m->cap != 0 ? place_of(m, key) : 0;

    return m->cap != 0 && m->keys[at] == key ? m->values[at] : NONE;
}

static void
map_free(map_t *m)
{
    free(m->keys);
    free(m->values);
    memset(m, 0, sizeof(*m));
}

static bool
map_grow(map_t *m)
{
    map_t wide = { .cap = m->cap == 0 ? 256 : 2 * m->cap };

    wide.keys = calloc(wide.cap, sizeof(*wide.keys));
    wide.values = calloc(wide.cap, sizeof(*wide.values));
    if (wide.keys == NULL || wide.values == NULL) {
        map_free(&wide);
        return false;
    }
    for (uint32_t i = 0; i < m->cap; i++) {
        if (m->keys[i] != 0) {
            uint32_t at = place_of(&wide, m->keys[i]);

            wide.keys[at] = m->keys[i];
            wide.values[at] = m->values[i];
        }
    }
    wide.n = m->n;
    map_free(m);
    *m = wide;
    return true;
}

static void
map_set(tr_rules_t *b, map_t *m, uint64_t key, uint32_t value)
{
    uint32_t at;

    if (2 * m->n >= m->cap && !map_grow(m)) {
        b->failed = TR_ERR_NOMEM;
        return;
    }
    at = place_of(m, key);
    m->n += m->keys[at] == 0;
    m->keys[at] = key;
    m->values[at] = value;
}

/* ---- copies */

static uint32_t
state_of(tr_rules_t *b, tr_bars_t *bars, uint32_t state, uint32_t node)
{
    uint32_t copy = map_find(&bars->states, key_of(state, node));

    if (copy != NONE || b->failed != TR_OK) {
        return copy != NONE ? copy : 0;
    }
    if (bars->n_tasks == bars->cap_tasks) {
        uint32_t cap = bars->cap_tasks == 0 ? 64 : 2 * bars->cap_tasks;
        task_t *tasks = realloc(bars->tasks, cap * sizeof(*tasks));

        if (tasks == NULL) {
            b->failed = TR_ERR_NOMEM;
            return 0;
        }
        bars->tasks = tasks;
        bars->cap_tasks = cap;
    }
    copy = tr_rules_state(b);
    if (b->failed == TR_OK) {
        b->tick[copy] = b->tick[state];
        map_set(b, &bars->states, key_of(state, node), copy);
        bars->tasks[bars->n_tasks++] = (task_t){ state, node, copy };
    }
    return copy;
}

static uint32_t
rule_of(tr_rules_t *b, tr_bars_t *bars, uint32_t rule, uint32_t node)
{
    uint32_t copy = map_find(&bars->rules, key_of(rule, node)), start, accept;
    tr_rule_t said = b->rules[rule];

    if (copy != NONE || b->failed != TR_OK) {
        return copy != NONE ? copy : 0;
    }
    map_set(b, &bars->ends, key_of(said.accept, 0), rule);
    start = state_of(b, bars, said.start, node);
    accept = state_of(b, bars, said.accept, 0);
    copy = tr_rules_rule_of(b, said.name, start, accept);
    map_set(b, &bars->rules, key_of(rule, node), copy);
    return copy;
}

/* '<' as an escape, from `copy` to `to`. */
static void
copy_escape(tr_rules_t *b, tr_bars_t *bars, uint32_t copy, uint32_t to)
{
    static const char behind[] = "u003c";
    uint32_t state = map_find(&bars->escapes, key_of(to, 0));

    if (state == NONE && b->failed == TR_OK) {
        state = tr_rules_state(b);
        tr_rules_text(b, state, behind, sizeof(behind) - 1, to);
        map_set(b, &bars->escapes, key_of(to, 0), state);
    }
    if (b->failed == TR_OK) {
        tr_rules_bytes(b, copy, '\\', '\\', state);
    }
}

/* The bytes lo to hi from a state at this node, as far as they complete nothing. */
static void
copy_bytes(tr_rules_t *b, tr_bars_t *bars, const task_t *t,
           const tr_edge_t *edge)
{
    const tr_mark_node_t *nodes = bars->texts.nodes;
    const uint32_t *next = nodes[t->node].next;
    uint32_t lo = edge->lo, hi;

    for (; lo <= edge->hi && b->failed == TR_OK; lo = hi + 1) {
        for (hi = lo; hi < edge->hi && next[hi + 1] == next[lo]; hi++) {
        }
        if (nodes[next[lo]].mark == TR_NO_MARK) {
            tr_rules_bytes(b, t->copy, (uint8_t) lo, (uint8_t) hi,
                           state_of(b, bars, edge->target, next[lo]));
        }
    }
    if (edge->lo <= '<' && '<' <= edge->hi) {
        copy_escape(b, bars, t->copy, state_of(b, bars, edge->target, 0));
    }
}

static void
copy_call(tr_rules_t *b, tr_bars_t *bars, const task_t *t,
          const tr_site_t *site)
{
    uint32_t rule = rule_of(b, bars, site->rule, t->node);
    uint32_t to = state_of(b, bars, site->to, 0);

    if (site->kind == TR_SITE_CALL) {
        tr_rules_call(b, t->copy, rule, to);
    } else if (site->kind == TR_SITE_LENGTH) {
        tr_rules_length(b, t->copy, rule, site->min, site->max, to);
    } else if (t->node == 0) {
        tr_rules_repeat(b, t->copy, rule, site->min, site->max, to);
    } else if (b->failed == TR_OK) {
        b->failed = TR_ERR_INTERNAL; /* no string is a list of rules */
    }
}

static void
copy_state(tr_rules_t *b, tr_bars_t *bars, const task_t *t)
{
    uint32_t e;

    if (t->node != 0 && map_find(&bars->ends, key_of(t->state, 0)) != NONE
        && b->failed == TR_OK) {
        b->failed = TR_ERR_INTERNAL; /* a rule that ends within a string */
    }
    for (e = b->first[t->state]; e != NONE && b->failed == TR_OK;
         e = b->edges[e].next) {
        tr_edge_t edge = b->edges[e]; /* edges move when some are added */

        switch (edge.kind) {
        case TR_EDGE_EMPTY:
            tr_rules_empty(b, t->copy, state_of(b, bars, edge.target, t->node));
            break;
        case TR_EDGE_BYTES:
            copy_bytes(b, bars, t, &edge);
            break;
        case TR_EDGE_CALL: {
            tr_site_t site = b->sites[edge.target];

            copy_call(b, bars, t, &site);
            break;
        }
        default: {
            tr_token_edge_t token = b->tokens[edge.target];

            tr_rules_token(b, t->copy, token.token,
                           state_of(b, bars, token.to, 0));
        }
        }
    }
}

uint32_t
tr_rules_barred(tr_rules_t *b, tr_bars_t *bars, uint32_t rule)
{
    uint32_t copy = b->failed == TR_OK ? rule_of(b, bars, rule, 0) : 0;

    while (bars->n_tasks > 0 && b->failed == TR_OK) {
        task_t task = bars->tasks[--bars->n_tasks];

        copy_state(b, bars, &task);
    }
    return copy;
}

void
tr_bars_reset(tr_bars_t *bars)
{
    map_free(&bars->states);
    map_free(&bars->rules);
    map_free(&bars->ends);
    map_free(&bars->escapes);
    bars->n_tasks = 0;
}

tr_bars_t *
tr_bars_new(tr_marks_t *texts)
{
    tr_bars_t *bars = calloc(1, sizeof(*bars));

    if (bars == NULL) {
        tr_marks_free(texts);
        return NULL;
    }
    bars->texts = *texts;
    memset(texts, 0, sizeof(*texts));
    return bars;
}

void
tr_bars_free(tr_bars_t *bars)
{
    if (bars != NULL) {
        tr_bars_reset(bars);
        tr_marks_free(&bars->texts);
        free(bars->tasks);
    }
    free(bars);
}
