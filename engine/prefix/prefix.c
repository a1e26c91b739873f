/*
 * The prefix tree (prefix.h): search trees of siblings, keys, references, and
 * which leaf goes first.
 */
#include "prefix_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- siblings ----------------------------------------------------------- */

int
tr_prefix_compare(const tr_prefix_t *t, uint32_t node, const int32_t *a,
                  uint32_t n, uint32_t *common)
{
    const int32_t *b = prefix_tokens(t, node);
    uint32_t m = t->node[node].n_tokens;
    uint32_t i = tr_prefix_common(a, b, n < m ? n : m);

    *common = i;
    if (i < n && i < m) {
        return b[i] < a[i] ? -1 : 1;
    }
    return m < n ? -1 : m > n;
}

/* Of the siblings below `root` the one that begins with most of a[0, n);
 * *common: how many tokens that are, 0 and NONE: no token. */
static uint32_t
nearest(const tr_prefix_t *t, uint32_t root, const int32_t *a, uint32_t n,
        uint32_t *common)
{
    uint32_t best = TR_PREFIX_NONE, most = 0, c;

    while (root != TR_PREFIX_NONE) {
        int order = tr_prefix_compare(t, root, a, n, &c);

        if (c > most) {
            most = c;
            best = root;
        }
        if (order == 0) {
            break;
        }
        root = order < 0 ? t->node[root].right : t->node[root].left;
    }
    *common = most;
    return best;
}

/* Those below `root` that come before a[0, n), and the others. */
static void
split(tr_prefix_t *t, uint32_t root, const int32_t *a, uint32_t n,
      uint32_t *left, uint32_t *right)
{
    uint32_t c;

    while (root != TR_PREFIX_NONE) {
        if (tr_prefix_compare(t, root, a, n, &c) < 0) {
            *left = root;
            left = &t->node[root].right;
            root = *left;
        } else {
            *right = root;
            right = &t->node[root].left;
            root = *right;
        }
    }
    *left = *right = TR_PREFIX_NONE;
}

/* All of `left` come before all of `right`. */
static uint32_t
merge(tr_prefix_t *t, uint32_t left, uint32_t right)
{
    uint32_t root, *at = &root;

    while (left != TR_PREFIX_NONE && right != TR_PREFIX_NONE) {
        if (t->node[left].rank > t->node[right].rank) {
            *at = left;
            at = &t->node[left].right;
            left = *at;
        } else {
            *at = right;
            at = &t->node[right].left;
            right = *at;
        }
    }
    *at = left != TR_PREFIX_NONE ? left : right;
    return root;
}

static void
sibling_insert(tr_prefix_t *t, uint32_t *at, uint32_t node)
{
    prefix_node_t *v = &t->node[node];
    const int32_t *a = prefix_tokens(t, node);
    uint32_t c;

    while (*at != TR_PREFIX_NONE && t->node[*at].rank >= v->rank) {
        at = tr_prefix_compare(t, *at, a, v->n_tokens, &c) < 0
                 ? &t->node[*at].right
                 : &t->node[*at].left;
    }
    split(t, *at, a, v->n_tokens, &v->left, &v->right);
    *at = node;
}

static void
sibling_remove(tr_prefix_t *t, uint32_t *at, uint32_t node)
{
    const prefix_node_t *v = &t->node[node];
    uint32_t c;

    while (*at != node) {
        assert(*at != TR_PREFIX_NONE);
        at = tr_prefix_compare(t, *at, prefix_tokens(t, node), v->n_tokens, &c)
                     < 0
                 ? &t->node[*at].right
                 : &t->node[*at].left;
    }
    *at = merge(t, v->left, v->right);
}

/* ---- who goes first ----------------------------------------------------- */

static prefix_list_t *
list_of(tr_prefix_t *t, const prefix_node_t *v, uint32_t which)
{
    return which == LIST_ALL ? &t->list : &t->owner[v->key].list;
}

/* The node of a list behind which one used at this time goes; NONE: it is the
 * first.  Looked for from both ends: new leaves are the newest, and a node that
 * becomes a leaf is about as old as the last one that went. */
static uint32_t
list_place(const tr_prefix_t *t, const prefix_list_t *l, uint32_t which,
           uint64_t used)
{
    uint32_t old = l->first, young = l->last;

    for (;;) {
        if (young == TR_PREFIX_NONE || t->node[young].used <= used) {
            return young;
        }
        if (t->node[old].used > used) {
            return t->node[old].older[which];
        }
        young = t->node[young].older[which];
        old = t->node[old].newer[which];
    }
}

static void
list_insert(tr_prefix_t *t, uint32_t node)
{
    prefix_node_t *v = &t->node[node];

    for (uint32_t which = 0; which < LISTS; which++) {
        prefix_list_t *l = list_of(t, v, which);
        uint32_t before = list_place(t, l, which, v->used);

        v->older[which] = before;
        v->newer[which] = before != TR_PREFIX_NONE
                              ? t->node[before].newer[which]
                              : l->first;
        if (before != TR_PREFIX_NONE) {
            t->node[before].newer[which] = node;
        } else {
            l->first = node;
        }
        if (v->newer[which] != TR_PREFIX_NONE) {
            t->node[v->newer[which]].older[which] = node;
        } else {
            l->last = node;
        }
    }
}

static void
list_remove(tr_prefix_t *t, uint32_t node)
{
    const prefix_node_t *v = &t->node[node];

    for (uint32_t which = 0; which < LISTS; which++) {
        prefix_list_t *l = list_of(t, v, which);

        if (v->older[which] != TR_PREFIX_NONE) {
            t->node[v->older[which]].newer[which] = v->newer[which];
        } else {
            l->first = v->newer[which];
        }
        if (v->newer[which] != TR_PREFIX_NONE) {
            t->node[v->newer[which]].older[which] = v->older[which];
        } else {
            l->last = v->older[which];
        }
    }
}

/* ---- keys --------------------------------------------------------------- */

int
tr_prefix_key_compare(const tr_prefix_key_t *a, const tr_prefix_key_t *b)
{
    int order;

    assert(a->len <= TR_PREFIX_KEY_MAX && b->len <= TR_PREFIX_KEY_MAX);
    if (a->len != b->len) {
        return a->len < b->len ? -1 : 1;
    }
    order = memcmp(a->bytes, b->bytes, a->len);
    return order;
}

/* Where the key stands in by_key, or would. */
static uint32_t
key_place(const tr_prefix_t *t, const tr_prefix_key_t *key, bool *there)
{
    uint32_t low = 0, high = t->stats.keys;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = tr_prefix_key_compare(&t->owner[t->by_key[middle]].key,
                                          key);

        if (order == 0) {
            *there = true;
            return middle;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *there = false;
    return low;
}

static uint32_t
key_find(const tr_prefix_t *t, const tr_prefix_key_t *key)
{
    bool there;
    uint32_t at = key_place(t, key, &there);

    return there ? t->by_key[at] : TR_PREFIX_NONE;
}

/* The key's owner, which may be new; NONE: there are too many. */
static uint32_t
key_take(tr_prefix_t *t, const tr_prefix_key_t *key)
{
    bool there;
    uint32_t at = key_place(t, key, &there), owner;
    prefix_owner_t *o;

    if (there) {
        return t->by_key[at];
    }
    if (t->stats.keys == t->config.keys) {
        return TR_PREFIX_NONE;
    }
    owner = t->by_key[t->stats.keys];
    memmove(&t->by_key[at + 1], &t->by_key[at],
            (t->stats.keys - at) * sizeof(*t->by_key));
    t->by_key[at] = owner;
    t->stats.keys++;
    o = &t->owner[owner];
    o->key = *key;
    o->kids = o->list.first = o->list.last = TR_PREFIX_NONE;
    o->nodes = 0;
    return owner;
}

static void
key_drop(tr_prefix_t *t, uint32_t owner)
{
    bool there;
    uint32_t at = key_place(t, &t->owner[owner].key, &there);

    assert(there && t->by_key[at] == owner);
    t->stats.keys--;
    memmove(&t->by_key[at], &t->by_key[at + 1],
            (t->stats.keys - at) * sizeof(*t->by_key));
    t->by_key[t->stats.keys] = owner;
}

/* ---- nodes -------------------------------------------------------------- */

/* The root of the search tree in which a node stands. */
static uint32_t *
root_of(tr_prefix_t *t, uint32_t parent, uint32_t owner)
{
    return parent != TR_PREFIX_NONE ? &t->node[parent].kids
                                    : &t->owner[owner].kids;
}

/* A leaf that nobody holds goes. */
static void
drop(tr_prefix_t *t, uint32_t node)
{
    prefix_node_t *v = &t->node[node], *parent = NULL;

    assert(prefix_can_go(v) && v->n_tokens != 0);
    list_remove(t, node);
    sibling_remove(t, root_of(t, v->parent, v->key), node);
    t->stats.nodes--;
    t->stats.tokens -= v->n_tokens;
    t->config.give(t->config.arg, node);
    if (v->parent != TR_PREFIX_NONE) {
        parent = &t->node[v->parent];
        parent->n_kids--;
        parent->used = parent->used > v->used ? parent->used : v->used;
        if (prefix_can_go(parent)) {
            list_insert(t, v->parent);
        }
    }
    if (--t->owner[v->key].nodes == 0) {
        key_drop(t, v->key);
    }
    v->n_tokens = 0;
    v->left = t->free;
    t->free = node;
}

static uint32_t
take_node(tr_prefix_t *t, uint32_t parent, uint32_t owner,
          const int32_t *tokens, uint32_t n, uint64_t now)
{
    uint32_t node = t->free;
    prefix_node_t *v;

    if (node == TR_PREFIX_NONE) {
        node = t->fresh++;
    }
    v = &t->node[node];
    t->free = node == t->free ? v->left : t->free;
    memset(v, 0, sizeof(*v));
    v->parent = parent;
    v->key = owner;
    v->kids = TR_PREFIX_NONE;
    v->n_tokens = n;
    v->used = now;
    /* SplitMix64 */
    t->random += 0x9e3779b97f4a7c15ull;
    v->rank = (uint32_t) ((t->random ^ t->random >> 30) * 0xbf58476d1ce4e5b9ull
                          >> 32);
    memcpy(t->tokens + (size_t) node * t->config.block_tokens, tokens,
           n * sizeof(*tokens));
    return node;
}

tr_prefix_add_t
tr_prefix_add(tr_prefix_t *t, const tr_prefix_key_t *key, uint32_t parent,
              const int32_t *tokens, uint32_t n, uint64_t now, uint32_t *node)
{
    uint32_t owner, near, common;

    assert(n != 0 && n <= t->config.block_tokens);
    assert(parent == TR_PREFIX_NONE
           || (t->node[parent].n_tokens == t->config.block_tokens
               && t->node[parent].held != 0));
    *node = TR_PREFIX_NONE;
    owner = key_take(t, key);
    if (owner == TR_PREFIX_NONE) {
        return TR_PREFIX_FULL;
    }
    near = nearest(t, *root_of(t, parent, owner), tokens, n, &common);
    if (common == n) {
        *node = near;
        return TR_PREFIX_THERE;
    }
    if (t->free == TR_PREFIX_NONE && t->fresh == t->config.blocks) {
        if (t->owner[owner].nodes == 0) {
            key_drop(t, owner);
        }
        return TR_PREFIX_FULL;
    }
    *node = take_node(t, parent, owner, tokens, n, now);
    sibling_insert(t, root_of(t, parent, owner), *node);
    if (parent != TR_PREFIX_NONE) {
        assert(t->node[parent].key == owner);
        t->node[parent].n_kids++; /* held: it is in no list */
    }
    t->owner[owner].nodes++;
    t->stats.nodes++;
    t->stats.tokens += n;
    list_insert(t, *node);
    if (near != TR_PREFIX_NONE && common == t->node[near].n_tokens
        && prefix_can_go(&t->node[near])) {
        drop(t, near); /* says nothing that the new one does not */
    }
    return TR_PREFIX_NEW;
}

void
tr_prefix_match(const tr_prefix_t *t, const tr_prefix_key_t *key,
                const int32_t *tokens, uint32_t n, tr_prefix_match_t *out)
{
    uint32_t owner = key_find(t, key), root, block = t->config.block_tokens;

    *out = (tr_prefix_match_t){ .node = TR_PREFIX_NONE,
                                .part = TR_PREFIX_NONE };
    if (owner == TR_PREFIX_NONE) {
        return;
    }
    root = t->owner[owner].kids;
    while (out->tokens < n) {
        uint32_t left = n - out->tokens, common;
        uint32_t near = nearest(t, root, tokens + out->tokens,
                                left < block ? left : block, &common);

        out->tokens += common;
        if (common != block) {
            out->part = near;
            out->part_tokens = common;
            return;
        }
        out->node = near;
        out->blocks++;
        root = t->node[near].kids;
    }
}

/* ---- references --------------------------------------------------------- */

void
tr_prefix_pin(tr_prefix_t *t, uint32_t node)
{
    for (; node != TR_PREFIX_NONE; node = t->node[node].parent) {
        prefix_node_t *v = &t->node[node];

        assert(v->n_tokens != 0);
        if (prefix_can_go(v)) {
            list_remove(t, node);
        }
        if (v->held++ != 0) {
            return;
        }
        t->stats.held++;
        t->stats.held_tokens += v->n_tokens;
    }
}

void
tr_prefix_unpin(tr_prefix_t *t, uint32_t node, uint64_t now)
{
    for (; node != TR_PREFIX_NONE; node = t->node[node].parent) {
        prefix_node_t *v = &t->node[node];

        assert(v->n_tokens != 0 && v->held != 0);
        if (--v->held != 0) {
            return;
        }
        t->stats.held--;
        t->stats.held_tokens -= v->n_tokens;
        v->used = now > v->used ? now : v->used;
        if (v->n_kids == 0) {
            list_insert(t, node);
        }
    }
}

bool
tr_prefix_evict(tr_prefix_t *t, const tr_prefix_key_t *key)
{
    uint32_t owner = key != NULL ? key_find(t, key) : TR_PREFIX_NONE;
    uint32_t node = t->list.first;

    if (owner != TR_PREFIX_NONE && t->owner[owner].list.first != TR_PREFIX_NONE
        && (uint64_t) t->owner[owner].nodes * t->stats.keys > t->stats.nodes) {
        node = t->owner[owner].list.first;
    }
    if (node == TR_PREFIX_NONE) {
        return false;
    }
    drop(t, node);
    t->stats.evicted++;
    return true;
}

void
tr_prefix_expire(tr_prefix_t *t, uint64_t before)
{
    while (t->list.first != TR_PREFIX_NONE
           && t->node[t->list.first].used < before) {
        drop(t, t->list.first);
        t->stats.expired++;
    }
}

/* ---- the tree ----------------------------------------------------------- */

const int32_t *
tr_prefix_tokens(const tr_prefix_t *t, uint32_t node, uint32_t *n)
{
    *n = t->node[node].n_tokens;
    return prefix_tokens(t, node);
}

const tr_prefix_key_t *
tr_prefix_key(const tr_prefix_t *t, uint32_t node)
{
    return &t->owner[t->node[node].key].key;
}

uint32_t
tr_prefix_parent(const tr_prefix_t *t, uint32_t node)
{
    return t->node[node].parent;
}

void
tr_prefix_stats(const tr_prefix_t *t, tr_prefix_stats_t *out)
{
    *out = t->stats;
}

void
tr_prefix_each(const tr_prefix_t *t, void (*f)(void *arg, uint32_t node),
               void *arg)
{
    for (uint32_t i = 0; i < t->fresh; i++) {
        if (t->node[i].n_tokens != 0) {
            f(arg, i);
        }
    }
}

/* Zeros, touched as far as they are used. */
static void *
map(size_t n, size_t size)
{
    void *at = mmap(NULL, n * size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

static void
unmap(void *at, size_t n, size_t size)
{
    if (at != NULL) {
        munmap(at, n * size);
    }
}

static size_t
token_bytes(const tr_prefix_t *t)
{
    return t->config.block_tokens * sizeof(*t->tokens);
}

tr_prefix_t *
tr_prefix_create(const tr_prefix_config_t *config)
{
    tr_prefix_t *t = calloc(1, sizeof(*t));
    size_t n = config->blocks;

    if (t == NULL) {
        return NULL;
    }
    t->config = *config;
    t->random = config->seed;
    t->node = map(n, sizeof(*t->node));
    t->tokens = map(n, token_bytes(t));
    t->owner = map(config->keys, sizeof(*t->owner));
    t->by_key = map(config->keys, sizeof(*t->by_key));
    if (t->node == NULL || t->tokens == NULL || t->owner == NULL
        || t->by_key == NULL) {
        tr_prefix_free(t);
        return NULL;
    }
    for (uint32_t i = 0; i < config->keys; i++) {
        t->by_key[i] = i;
    }
    t->free = t->list.first = t->list.last = TR_PREFIX_NONE;
    return t;
}

void
tr_prefix_free(tr_prefix_t *t)
{
    if (t != NULL) {
        size_t n = t->config.blocks;

        unmap(t->node, n, sizeof(*t->node));
        unmap(t->tokens, n, token_bytes(t));
        unmap(t->owner, t->config.keys, sizeof(*t->owner));
        unmap(t->by_key, t->config.keys, sizeof(*t->by_key));
        free(t);
    }
}
