/*
 * A KV policy: what is kept of each cached token, and how exactly.
 *
 * A policy is a table of levels (best first, one list each), a window of recent
 * tokens, and five decisions.  It decides; it never touches page bytes.
 * Everything else (pages, tables, kernels) is common to all policies.  One file
 * a policy, kv_policy_NAME.c; kv_policy.c lists them and reads their settings.
 *
 * Decisions are pure functions of their arguments: the same marks give the
 * same levels on every backend, in any order.
 *
 * Positions count from 0.  When N tokens are cached and have been attended to
 * (the last query is position N - 1), N is the "length" below, and the token
 * at position t has seen N - 1 - t later queries.
 */
#ifndef TR_KV_POLICY_H
#define TR_KV_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kv_rule.h"
#include <tokenring/error.h>

#define TR_KV_SPEC_MAX 255u
#define TR_KV_ALPHA_MAX 1000.0

/* The tokens of one head outside the window, when a prompt is complete. */
typedef struct {
    uint32_t layer, list, length;
    uint32_t n;
    const uint32_t *position; /* [n] */
    const int8_t *from;       /* [n] list that holds it now, or TR_KV_NOWHERE:
                               * it is new (dense or leaving the window).  A
                               * listed token may only stay or go down. */
    const float *score;       /* [n] as the token will carry it: over all later
                               * queries, or, when the policy observes, for
                               * dense tokens recent * (later queries) /
                               * min(observe, later queries) */
    const float *recent;      /* [n] over the last observation_window queries
                               * of the prompt; negative for tokens that are
                               * not dense, for which nobody counted it */
    float *work;              /* [2 * n] for the policy's own use */
} tr_kv_prompt_t;

typedef struct tr_kv_policy tr_kv_policy_t;

struct tr_kv_policy {
    const char *name;              /* "diffkv" */
    char spec[TR_KV_SPEC_MAX + 1]; /* canonical: name and all its settings */

    /* What decisions depend on, by name here and as a whole for inline
     * functions and devices.  kind: whose functions these are, when they are
     * those of kv_rule.h. */
    union {
        struct {
            TR_KV_RULE_FIELDS
        };
        tr_kv_rule_t rule;
    };

    tr_kv_level_t level[TR_KV_LISTS_MAX];
    tr_kv_level_t window_level;
    bool digest; /* needs digests of dense pages */

    /* settings that only its own file looks at */
    char alpha_file[128]; /* "": none; read into alpha_of */
    uint32_t groups;      /* metadata pairs of a key, and of a value */
    uint32_t group;       /* dimensions that share one; 0: all of a head */
    uint32_t bits;

    /* 0. NULL, or fixes in a slot's copy of the policy what depends on the
     * length n of the prompt (window, budget).  Called before anything below is
     * asked, by tr_kv_policy_for. */
    void (*begin)(tr_kv_policy_t *copy, uint32_t n);
    /* 1. What the tokens of a complete prompt become: to[i] is a list or
     * TR_KV_NOWHERE. */
    void (*prompt)(const tr_kv_policy_t *p, const tr_kv_prompt_t *head,
                   int8_t *to);
    /* 2. What the token that leaves the window becomes: a list or
     * TR_KV_NOWHERE. count: tokens of each list before. */
    int (*leave)(const tr_kv_policy_t *p, const tr_kv_mark_t *token,
                 const uint32_t *count);
    /* 3. What becomes of the least significant token of `list`, to which a
     * token was just added (count: with it): a lower list, TR_KV_NOWHERE, or
     * TR_KV_STAYS.  May be the token just added. */
    int (*downgrade)(const tr_kv_policy_t *p, uint32_t list,
                     const tr_kv_mark_t *victim, const uint32_t *count);
    /* 4. What a head is charged at admission for a sequence of n tokens: so
     * many are expected in each list, tokens[0 .. n_levels). */
    void (*charge)(const tr_kv_policy_t *p, uint32_t layer, uint32_t list,
                   uint32_t n, uint32_t tokens[TR_KV_LISTS_MAX]);
    /* 5. How many of a head's n dense pages of `page_tokens` a decode step
     * reads in layers >= read_from; 0: all. */
    uint32_t (*read)(const tr_kv_policy_t *p, uint32_t n, uint32_t page_tokens);
};

/* Reads "NAME" or "NAME:KEY=VALUE,KEY=VALUE": see docs/kv-cache.md for the
 * policies and their settings.  layers, lists, head_dim: of the model, for
 * levels and settings by head.  *err names what is unknown or out of range,
 * the value, and what would be right.  Free with tr_kv_policy_free. */
tr_status_t tr_kv_policy_create(const char *spec, uint32_t layers,
                                uint32_t lists, uint32_t head_dim,
                                tr_kv_policy_t **out, tr_error_t *err);
void tr_kv_policy_free(tr_kv_policy_t *p);

/* The policy for a sequence whose (first) prompt has n tokens.  The larger n,
 * the larger the window. */
static inline void
tr_kv_policy_for(const tr_kv_policy_t *p, uint32_t n, tr_kv_policy_t *copy)
{
    *copy = *p;
    if (p->begin != NULL) {
        p->begin(copy, n);
    }
}

/* Other thresholds for one request, in a copy of the struct; NAN leaves one as
 * it is.  TR_ERR_INVALID: the policy has none, or out of range; err->param is
 * kv_alpha_high or kv_alpha_low. */
tr_status_t tr_kv_policy_override(tr_kv_policy_t *copy, double alpha_high,
                                  double alpha_low, tr_error_t *err);

/* "full, uniform, diffkv, ..." */
const char *tr_kv_policy_names(void);

/* Each policy's file: `init` fills p (zeroed, name and shape of the model set)
 * with its defaults and its functions; then kv_policy.c applies the settings,
 * and calls `check`, which derives levels from them and refuses what makes no
 * sense. */
typedef struct {
    const char *name;
    const char *settings; /* names it takes, separated by blanks */
    uint32_t levels_max;  /* of the setting `levels` */
    void (*init)(tr_kv_policy_t *p, uint32_t head_dim);
    tr_status_t (*check)(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err);
} tr_kv_policy_kind_t;

extern const tr_kv_policy_kind_t tr_kv_policy_full, tr_kv_policy_uniform,
    tr_kv_policy_diffkv, tr_kv_policy_static, tr_kv_policy_int4,
    tr_kv_policy_kivi, tr_kv_policy_snapkv, tr_kv_policy_h2o,
    tr_kv_policy_streamingllm, tr_kv_policy_quest;

#endif
