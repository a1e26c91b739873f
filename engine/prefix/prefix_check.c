/*
 * Does everything in the prefix tree agree?  (tr_prefix_sound)
 */
#include "prefix_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const tr_prefix_t *t;
    uint32_t parent, owner; /* of the siblings */
    uint32_t n, held;       /* siblings met; of these, held */
    uint32_t last;          /* the one before in order */
    uint32_t *met;          /* [blocks] how often */
} walk_t;

/* In order; the depth is that of a search tree. */
static bool
walk(walk_t *w, uint32_t node)
{
    const tr_prefix_t *t = w->t;
    const prefix_node_t *v = &t->node[node];
    uint32_t kid[2] = { v->left, v->right }, common, i;

    if (v->n_tokens == 0 || v->n_tokens > t->config.block_tokens
        || v->parent != w->parent || v->key != w->owner || w->met[node]++ != 0
        || (v->n_kids != 0 && v->n_tokens != t->config.block_tokens)) {
        return false;
    }
    for (i = 0; i < 2; i++) {
        if (kid[i] != TR_PREFIX_NONE && (t->node[kid[i]].rank > v->rank)) {
            return false;
        }
    }
    if (v->left != TR_PREFIX_NONE && !walk(w, v->left)) {
        return false;
    }
    if (w->last != TR_PREFIX_NONE
        && tr_prefix_compare(t, w->last, prefix_tokens(t, node), v->n_tokens,
                             &common)
               >= 0) {
        return false;
    }
    w->last = node;
    w->n++;
    w->held += v->held != 0;
    return v->right == TR_PREFIX_NONE || walk(w, v->right);
}

static bool
siblings_sound(const tr_prefix_t *t, uint32_t root, uint32_t parent,
               uint32_t owner, uint32_t *met, walk_t *w)
{
    *w = (walk_t){ .t = t,
                   .parent = parent,
                   .owner = owner,
                   .last = TR_PREFIX_NONE,
                   .met = met };
    return root == TR_PREFIX_NONE || walk(w, root);
}

static bool
list_sound(const tr_prefix_t *t, const prefix_list_t *l, uint32_t which,
           uint32_t owner, uint32_t n)
{
    uint32_t before = TR_PREFIX_NONE, node = l->first, met = 0;

    for (; node != TR_PREFIX_NONE; node = t->node[node].newer[which]) {
        const prefix_node_t *v = &t->node[node];

        if (v->n_tokens == 0 || !prefix_can_go(v) || v->older[which] != before
            || (which == LIST_KEY && v->key != owner)
            || (before != TR_PREFIX_NONE && t->node[before].used > v->used)
            || met++ == n) {
            return false;
        }
        before = node;
    }
    return met == n && l->last == before;
}

/* Keys are in order, and each has the nodes and leaves that it says. */
static bool
keys_sound(const tr_prefix_t *t, uint32_t *met)
{
    uint32_t i, j;

    for (i = 0; i < t->stats.keys; i++) {
        uint32_t owner = t->by_key[i], nodes = 0, leaves = 0;
        const prefix_owner_t *o = &t->owner[owner];
        walk_t w;

        for (j = 0; j < t->fresh; j++) {
            const prefix_node_t *v = &t->node[j];

            if (v->n_tokens != 0 && v->key == owner) {
                nodes++;
                leaves += prefix_can_go(v);
            }
        }
        if (o->nodes == 0 || o->nodes != nodes
            || !siblings_sound(t, o->kids, TR_PREFIX_NONE, owner, met, &w)
            || !list_sound(t, &o->list, LIST_KEY, owner, leaves)
            || (i != 0
                && tr_prefix_key_compare(&t->owner[t->by_key[i - 1]].key,
                                         &o->key)
                       >= 0)) {
            return false;
        }
    }
    return true;
}

bool
tr_prefix_sound(const tr_prefix_t *t)
{
    tr_prefix_stats_t sum = { 0 };
    uint32_t i, leaves = 0, n = t->fresh, unused = 0;
    uint32_t *met = calloc((size_t) n + 1, sizeof(*met));
    bool sound = met != NULL && keys_sound(t, met);

    for (i = 0; i < n && sound; i++) {
        const prefix_node_t *v = &t->node[i];
        walk_t w;

        if (v->n_tokens == 0) {
            continue;
        }
        sound = siblings_sound(t, v->kids, i, v->key, met, &w)
                && w.n == v->n_kids && w.held <= v->held;
        sum.nodes++;
        sum.tokens += v->n_tokens;
        sum.held += v->held != 0;
        sum.held_tokens += v->held != 0 ? v->n_tokens : 0;
        leaves += prefix_can_go(v);
    }
    for (i = 0; i < n && sound; i++) { /* each stands somewhere, once */
        sound = met[i] == (t->node[i].n_tokens != 0);
    }
    for (i = t->free; i != TR_PREFIX_NONE && unused <= n; i = t->node[i].left) {
        unused++;
    }
    free(met);
    return sound && n <= t->config.blocks && sum.nodes + unused == n
           && sum.nodes == t->stats.nodes && sum.held == t->stats.held
           && sum.tokens == t->stats.tokens
           && sum.held_tokens == t->stats.held_tokens
           && list_sound(t, &t->list, LIST_ALL, 0, leaves);
}
