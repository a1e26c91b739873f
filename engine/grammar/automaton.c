/*
 * Deterministic states of rules, made when first visited: a state is a set of
 * the rule's own states, and how it was entered (TR_STATE_KEY).  The caller
 * holds the grammar's lock.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

/* What the empty edges lead to from g->list[0 .. n): only what matters stays.
 * Returns how many. */
static uint32_t
close_set(tr_grammar_t *g, uint32_t n)
{
    const tr_program_t *p = &g->program;
    uint32_t kept = 0;

    for (uint32_t at = 0; at < n; at++) {
        uint32_t s = g->list[at];

        g->cost += p->first[s + 1] - p->first[s];
        for (uint32_t i = p->first[s]; i < p->first[s + 1]; i++) {
            uint32_t to = p->moves[i].target;

            if (p->moves[i].kind == TR_EDGE_EMPTY
                && g->mark[to] != g->generation) {
                g->mark[to] = g->generation;
                g->list[n++] = to;
            }
        }
        if (p->flags[s] & TR_NFA_MATTERS) {
            g->list[kept++] = s;
        }
    }
    return kept;
}

int
tr_number_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

    return (x > y) - (x < y);
}

static void
sort(uint32_t *list, uint32_t n)
{
    if (n > 24) {
        qsort(list, n, sizeof(*list), tr_number_order);
        return;
    }
    for (uint32_t i = 1; i < n; i++) {
        uint32_t x = list[i], k = i;

        for (; k > 0 && list[k - 1] > x; k--) {
            list[k] = list[k - 1];
        }
        list[k] = x;
    }
}

/* Fills in what the set's edges say; returns false when memory is out. */
static bool
describe(tr_grammar_t *g, tr_state_t *d)
{
    const tr_program_t *p = &g->program;
    uint32_t n_sites = 0, n_tokens = 0;

    for (int fill = 0; fill < 2; fill++) {
        n_sites = n_tokens = 0;
        for (uint32_t k = 0; k < d->n_set; k++) {
            uint32_t s = d->set[k];

            if (p->flags[s] & TR_NFA_ACCEPT) {
                d->flags |= TR_STATE_ACCEPT;
            }
            if (p->flags[s] & TR_NFA_FINAL) {
                d->flags |= TR_STATE_FINAL;
            }
            for (uint32_t i = p->first[s]; i < p->first[s + 1]; i++) {
                const tr_move_t *m = &p->moves[i];

                if (m->kind == TR_EDGE_BYTES) {
                    d->flags |= TR_STATE_BYTES;
                } else if (m->kind == TR_EDGE_CALL) {
                    if (fill) {
                        d->sites[n_sites] = m->target;
                    }
                    n_sites++;
                } else if (m->kind == TR_EDGE_TOKEN) {
                    if (fill) {
                        d->tokens[n_tokens] = m->target;
                    }
                    n_tokens++;
                }
            }
        }
        if (fill) {
            break;
        }
        if (n_sites + n_tokens > 0) {
            uint32_t *room = tr_grammar_alloc(&g->states, (n_sites + n_tokens)
                                                              * sizeof(*room));

            if (room == NULL) {
                return false;
            }
            d->sites = room;
            d->tokens = room + n_sites;
        }
    }
    d->n_sites = n_sites;
    d->n_tokens = n_tokens;
    d->flags |= (n_sites > 0 ? TR_STATE_CALLS : 0)
                | (n_tokens > 0 ? TR_STATE_TOKENS : 0);
    return true;
}

/* The state of g->list[0 .. n), which is closed and sorted. */
static uint32_t
find_or_make(tr_grammar_t *g, uint32_t n, uint8_t key)
{
    uint32_t hash = 2166136261u ^ key, at, *set;
    size_t size = sizeof(tr_state_t) + g->program.n_classes * sizeof(uint32_t);
    tr_state_t *d;

    for (uint32_t i = 0; i < n; i++) {
        hash = (hash ^ g->list[i]) * 16777619u;
        hash ^= hash >> 15;
    }
    for (at = g->state_bucket[hash % TR_STATE_BUCKETS]; at != 0;
         at = d->chain) {
        d = tr_state_at(g, at);
        if (d->hash == hash && d->n_set == n && (d->flags & TR_STATE_KEY) == key
            && memcmp(d->set, g->list, n * sizeof(*g->list)) == 0) {
            return at;
        }
    }
    d = tr_grammar_alloc(&g->states, size);
    set = tr_grammar_alloc(&g->states, n * sizeof(*set));
    if (d == NULL || set == NULL) {
        g->spent = true;
        return TR_DEAD;
    }
    memcpy(set, g->list, n * sizeof(*set));
    *d = (tr_state_t){ .hash = hash, .n_set = n, .flags = key, .set = set };
    memset(d->row, 0xff, g->program.n_classes * sizeof(uint32_t));
    if (!describe(g, d)) {
        g->spent = true;
        return TR_DEAD;
    }
    at = (uint32_t) (((uint8_t *) d - g->states.base) / 16);
    d->chain = g->state_bucket[hash % TR_STATE_BUCKETS];
    g->state_bucket[hash % TR_STATE_BUCKETS] = at;
    return at;
}

static void
begin(tr_grammar_t *g)
{
    if (++g->generation == 0) {
        memset(g->mark, 0, g->program.n_states * sizeof(*g->mark));
        g->generation = 1;
    }
}

static uint32_t
state_of(tr_grammar_t *g, uint32_t nfa, uint8_t key)
{
    uint32_t n;

    begin(g);
    g->list[0] = nfa;
    g->mark[nfa] = g->generation;
    n = close_set(g, 1);
    sort(g->list, n);
    return n == 0 ? TR_DEAD : find_or_make(g, n, key);
}

uint32_t
tr_state_start(tr_grammar_t *g, uint32_t rule)
{
    tr_rule_t *r = &g->program.rules[rule];

    if (r->start_state == 0) {
        r->start_state = state_of(g, r->start, TR_STATE_START);
    }
    return r->start_state;
}

uint32_t
tr_state_behind(tr_grammar_t *g, uint32_t site)
{
    tr_site_t *s = &g->program.sites[site];

    if (s->to_state == 0) {
        s->to_state = state_of(g, s->to, 0);
    }
    return s->to_state;
}

uint32_t
tr_state_behind_token(tr_grammar_t *g, uint32_t token_edge)
{
    tr_token_edge_t *t = &g->program.tokens[token_edge];

    if (t->to_state == 0) {
        t->to_state = state_of(g, t->to, 0);
    }
    return t->to_state;
}

uint32_t
tr_state_make(tr_grammar_t *g, uint32_t state, uint8_t class_of, uint8_t byte)
{
    const tr_program_t *p = &g->program;
    tr_state_t *d = tr_state_at(g, state);
    bool tick = true;
    uint32_t n = 0, next;

    begin(g);
    for (uint32_t k = 0; k < d->n_set; k++) {
        uint32_t s = d->set[k];

        g->cost += p->first[s + 1] - p->first[s];
        for (uint32_t i = p->first[s]; i < p->first[s + 1]; i++) {
            const tr_move_t *m = &p->moves[i];

            if (m->kind == TR_EDGE_BYTES && m->lo <= byte && byte <= m->hi
                && g->mark[m->target] != g->generation) {
                g->mark[m->target] = g->generation;
                g->list[n++] = m->target;
                tick = tick && (p->flags[m->target] & TR_NFA_TICK);
            }
        }
    }
    if (n == 0) {
        d->row[class_of] = TR_DEAD;
        return TR_DEAD;
    }
    n = close_set(g, n);
    sort(g->list, n);
    next = n == 0 ? TR_DEAD : find_or_make(g, n, tick ? TR_STATE_TICK : 0);
    if (next != TR_DEAD || !g->spent) {
        d->row[class_of] = next;
    }
    return next;
}
