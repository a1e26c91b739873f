/*
 * A KV policy: what is kept of each cached token, and how exactly.
 *
 * A policy is a table of levels (pairs of key bits and value bits, best first)
 * and five decisions.  It decides; it never touches page bytes.  Everything
 * else (pages, tables, kernels) is common to all policies.  One file a policy,
 * kv_policy_NAME.c; kv_policy.c lists them.
 *
 * Decisions see one token of one head through a tr_kv_mark_t.  They are pure
 * functions of their arguments: the same marks give the same levels on every
 * backend, in any order.
 */
#ifndef TR_KV_POLICY_H
#define TR_KV_POLICY_H

#include <stdint.h>

#include <tokenring/error.h>

#define TR_KV_LEVELS_MAX 4
#define TR_KV_DROP (-1) /* in place of a level: the token is forgotten */

typedef struct {
    uint8_t key_bits, value_bits; /* 16, 8, 4 or 2 */
} tr_kv_level_t;

typedef struct {
    uint32_t layer, list; /* which head */
    uint32_t position;    /* of the token */
    uint32_t length;      /* tokens of the sequence so far */
    float significance;   /* mean attention that later queries paid to it */
} tr_kv_mark_t;

typedef struct tr_kv_policy tr_kv_policy_t;

struct tr_kv_policy {
    const char *name;
    uint32_t window; /* most recent tokens that no decision touches */
    uint32_t n_levels;
    tr_kv_level_t level[TR_KV_LEVELS_MAX];

    /* 1. What a prompt token becomes when its prompt is complete. */
    int (*prompt)(const tr_kv_policy_t *p, const tr_kv_mark_t *token);
    /* 2. What the token that leaves the window becomes. */
    int (*leave)(const tr_kv_policy_t *p, const tr_kv_mark_t *token);
    /* 3. What becomes of the least significant token at `level`, after a token
     * was added there; `level` itself: nobody is downgraded. */
    int (*downgrade)(const tr_kv_policy_t *p, int level,
                     const tr_kv_mark_t *victim);
    /* 4. What a head is charged for a sequence of n tokens: at most tokens[l]
     * of them at level l. */
    void (*charge)(const tr_kv_policy_t *p, uint32_t layer, uint32_t list,
                   uint32_t n, uint32_t tokens[TR_KV_LEVELS_MAX]);
    /* 5. Which of a head's n pages a step reads: their indices, ascending, go
     * to chosen[n]; returns how many.  bound[i] is the largest logit that
     * page i can give, NULL when the levels keep no digest. */
    uint32_t (*read)(const tr_kv_policy_t *p, uint32_t n, const float *bound,
                     uint32_t *chosen);
};

extern const tr_kv_policy_t tr_kv_policy_full;

/* Borrowed, static; NULL with *err listing the known names. */
const tr_kv_policy_t *tr_kv_policy_find(const char *name, tr_error_t *err);

#endif
