/*
 * prefix.h: which prefixes are cached: a radix tree of token ids for each cache
 * key.
 *
 * A node is a block: up to block_tokens tokens that follow those of its parent.
 * Who has the pages that hold them, one for each head of the model, finds them by
 * the node's number (kernels/kv_manager/manager_share.h).  All blocks of a path
 * but the last are full, so that a path of k full blocks is k pages of each head,
 * which a sequence puts into its own table as they are.  What it shares of a
 * block only in part it copies (a cut): the pages of a block serve any number of
 * its tokens.
 *
 *   key A ── [The sky is] ── [blue today]            a leaf may be partly full
 *                      └──── [grey, and] ── [so]
 *   key B ── [The sky is]                            others' pages are not seen
 *
 * No block is the beginning of another one beside it, but for one that somebody
 * holds.  Siblings stand in a search tree by their tokens, where those that have
 * most in common with given tokens are on the way to where these would stand; so
 * the longest match is found in logarithmic time among however many siblings.
 *
 * References.  Who uses the pages of a path pins its last node; that holds every
 * node in front of it.  A node is held while it is pinned or a child of it is
 * held, which one counter says: pin and unpin stop at the first node that stays
 * as it was.  Leaves that nobody holds can go, the one used longest ago first:
 * those of a key that has more than an equal share of all blocks, when that key
 * wants room, else of all keys.  When the last leaf of a node goes, the node
 * becomes one.
 *
 * The function in the configuration hears when a node goes; its number may then
 * come again.  Nothing allocates after create; one thread calls.  A key is
 * compared as a whole: nobody can make up a salt that meets another's.
 */
#ifndef TR_PREFIX_H
#define TR_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_PREFIX_NONE UINT32_MAX
#define TR_PREFIX_KEY_MAX 160u

typedef struct tr_prefix tr_prefix_t;

/* Whose prefixes: compared byte by byte. */
typedef struct {
    uint32_t len;
    uint8_t bytes[TR_PREFIX_KEY_MAX];
} tr_prefix_key_t;

/* With how many of n tokens both begin. */
static inline uint32_t
tr_prefix_common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;

    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

typedef struct {
    uint32_t block_tokens; /* of a full block */
    uint32_t blocks;       /* at most, not 0; nodes are numbers below it */
    uint32_t keys;         /* that have blocks at once, at most, not 0 */
    uint64_t seed;         /* of the shape of search trees; any */
    /* A node has gone: its pages are nobody's any more. */
    void (*give)(void *arg, uint32_t node);
    void *arg;
} tr_prefix_config_t;

/* The longest prefix of some tokens. */
typedef struct {
    uint32_t tokens; /* in all */
    uint32_t blocks; /* full blocks, all of whose tokens are shared */
    uint32_t node;   /* the last of them, or NONE */
    uint32_t part;   /* the block behind them that shares more, or NONE */
    uint32_t part_tokens;
} tr_prefix_match_t;

typedef struct {
    uint32_t nodes, held; /* blocks; of these, that cannot go */
    uint64_t tokens, held_tokens;
    uint32_t keys;
    uint64_t evicted; /* blocks that went for want of room */
    uint64_t expired; /* ... because they were old */
} tr_prefix_stats_t;

/* NULL: no memory. */
tr_prefix_t *tr_prefix_create(const tr_prefix_config_t *config);
/* Gives nothing back. */
void tr_prefix_free(tr_prefix_t *t);

/* The longest prefix of tokens[0, n) that the key has; nothing changes. */
void tr_prefix_match(const tr_prefix_t *t, const tr_prefix_key_t *key,
                     const int32_t *tokens, uint32_t n, tr_prefix_match_t *out);

/* Holds a node and all in front of it; and no more.  now: never less than
 * before, any unit. */
void tr_prefix_pin(tr_prefix_t *t, uint32_t node);
void tr_prefix_unpin(tr_prefix_t *t, uint32_t node, uint64_t now);

typedef enum {
    TR_PREFIX_NEW,   /* *node is new */
    TR_PREFIX_THERE, /* *node has these tokens, and perhaps more */
    TR_PREFIX_FULL   /* there is no room for a block, or a key */
} tr_prefix_add_t;

/* tokens[0, n), n at most block_tokens, follow `parent` (NONE: they are the
 * first), which is full and held, or NONE.  A block that holds the beginning of
 * these tokens and nothing else goes, if nobody holds it. */
tr_prefix_add_t tr_prefix_add(tr_prefix_t *t, const tr_prefix_key_t *key,
                              uint32_t parent, const int32_t *tokens,
                              uint32_t n, uint64_t now, uint32_t *node);

/* One leaf goes, to make room for this key (NULL: for anybody).  False: all are
 * held. */
bool tr_prefix_evict(tr_prefix_t *t, const tr_prefix_key_t *key);
/* Leaves that were last used before this time go, and what becomes a leaf. */
void tr_prefix_expire(tr_prefix_t *t, uint64_t before);

/* A node's own tokens, and whose it is; valid while it is there. */
const int32_t *tr_prefix_tokens(const tr_prefix_t *t, uint32_t node,
                                uint32_t *n);
const tr_prefix_key_t *tr_prefix_key(const tr_prefix_t *t, uint32_t node);
uint32_t tr_prefix_parent(const tr_prefix_t *t, uint32_t node);
void tr_prefix_stats(const tr_prefix_t *t, tr_prefix_stats_t *out);

/* Calls f for each node, in no order. */
void tr_prefix_each(const tr_prefix_t *t, void (*f)(void *arg, uint32_t node),
                    void *arg);

/* Everything agrees.  Linear; for tests and for the end of a run. */
bool tr_prefix_sound(const tr_prefix_t *t);

#endif
