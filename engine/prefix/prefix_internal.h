/*
 * What the files of the prefix tree share: prefix.c has nodes, keys and who
 * goes; prefix_check.c looks at all of it.
 */
#ifndef TR_PREFIX_INTERNAL_H
#define TR_PREFIX_INTERNAL_H

#include "prefix.h"

/* Two lists of leaves that nobody holds, oldest first. */
enum { LIST_ALL, LIST_KEY, LISTS };

typedef struct {
    uint32_t first, last;
} prefix_list_t;

typedef struct {
    uint32_t parent; /* NONE: its tokens are the first */
    uint32_t key;
    uint32_t kids;        /* root of its children's search tree */
    uint32_t left, right; /* in that of its siblings; left: next free */
    uint32_t rank;        /* random: above those below it */
    uint32_t n_tokens;    /* 0: free */
    uint32_t n_kids;
    uint32_t held; /* pins, and children that are held */
    uint64_t used; /* when, last */
    uint32_t older[LISTS], newer[LISTS];
} prefix_node_t;

typedef struct {
    tr_prefix_key_t key;
    uint32_t kids, nodes; /* nodes 0: free */
    prefix_list_t list;
} prefix_owner_t;

struct tr_prefix {
    tr_prefix_config_t config;
    prefix_node_t *node;   /* [blocks] */
    int32_t *tokens;       /* [blocks][block_tokens] */
    prefix_owner_t *owner; /* [keys] */
    uint32_t *by_key;      /* [keys] owners: stats.keys in order, then free */
    uint32_t free;         /* first node that was used and is free */
    uint32_t fresh;        /* nodes from here on were never used */
    uint64_t random;
    prefix_list_t list;
    tr_prefix_stats_t stats;
};

static inline const int32_t *
prefix_tokens(const tr_prefix_t *t, uint32_t node)
{
    return t->tokens + (size_t) node * t->config.block_tokens;
}

/* A leaf that nobody holds. */
static inline bool
prefix_can_go(const prefix_node_t *v)
{
    return v->n_kids == 0 && v->held == 0;
}

int tr_prefix_key_compare(const tr_prefix_key_t *a, const tr_prefix_key_t *b);

/* Tokens n of a node against a[0, n): below, above, or 0; *common: how many
 * they begin with alike. */
int tr_prefix_compare(const tr_prefix_t *t, uint32_t node, const int32_t *a,
                      uint32_t n, uint32_t *common);

#endif
