/*
 * A KV policy: what is kept of each cached token, and how exactly.
 *
 * A policy is a table of levels (best first, one tier each), a window of recent
 * tokens, and a rule (kernels/kv_rule.h) by which the page manager decides, on
 * the host and on a device.  It never touches page bytes.  Everything else
 * (pages, tables, kernels) is common to all policies.
 *
 * To add one:
 *   1. A file kv_policy_NAME.c with its row (tr_kv_policy_row_t).
 *   2. The row's extern at the end of this header, and its name in POLICIES of
 *      kv_policy.c.
 *   3. Settings that no policy has yet: rows in kv_policy_settings.c.
 *   4. A rule that decides as none of kv_rule.h does: a kind of its own there.
 *   5. docs/kv-cache.md, and the tests that go through all policies
 *      (CONTRIBUTING.md).
 */
#ifndef TR_KV_POLICY_H
#define TR_KV_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kv_rule.h"
#include <tokenring/error.h>

#define TR_KV_SPEC_MAX 255u
#define TR_KV_ALPHA_MAX 1000.0

typedef struct tr_kv_policy tr_kv_policy_t;

typedef struct tr_kv_policy_row tr_kv_policy_row_t;

struct tr_kv_policy {
    const tr_kv_policy_row_t *row;
    const char *name;              /* "diffkv" */
    char spec[TR_KV_SPEC_MAX + 1]; /* canonical: name and all its settings */

    /* What decisions depend on, by name here and as a whole for the manager. */
    union {
        struct {
            TR_KV_RULE_FIELDS
        };
        tr_kv_rule_t rule;
    };

    tr_kv_level_t level[TR_KV_TIERS_MAX];
    tr_kv_level_t window_level;
    bool minmax; /* needs page min/max of uncompressed pages */

    /* settings that only its own file looks at */
    char alpha_file[128]; /* "": none; read into alpha_of */
    uint32_t groups;      /* metadata pairs of a key, and of a value */
    uint32_t group;       /* dimensions that share one; 0: all of a head */
    uint32_t bits;
};

/* Reads "NAME" or "NAME:KEY=VALUE,KEY=VALUE": see docs/kv-cache.md for the
 * policies and their settings.  layers, kv_heads, head_dim: of the model, for
 * levels and settings by head.  *err names what is unknown or out of range,
 * the value, and what would be right.  Free with tr_kv_policy_free. */
tr_status_t tr_kv_policy_create(const char *spec, uint32_t layers,
                                uint32_t kv_heads, uint32_t head_dim,
                                tr_kv_policy_t **out, tr_error_t *err);
void tr_kv_policy_free(tr_kv_policy_t *p);

/* Other thresholds for one request, in a copy of the struct; NAN leaves one as
 * it is.  TR_ERR_INVALID: the policy has none, or out of range; err->param is
 * kv_alpha_high or kv_alpha_low. */
tr_status_t tr_kv_policy_override(tr_kv_policy_t *copy, double alpha_high,
                                  double alpha_low, tr_error_t *err);

/* Can what it compressed be cut at any position?  Yes where nothing is forgotten
 * and where each token stands is known: by order, or by the positions that
 * stand beside scores.  The second has all levels of a policy that could be cut
 * if they did store these, without scores where nobody reads them. */
bool tr_kv_policy_cuts(const tr_kv_policy_t *p);
/* Of how many of its last levels nothing is ever moved or forgotten: no score
 * there is read. */
uint8_t tr_kv_policy_settled(const tr_kv_policy_t *p);
void tr_kv_policy_position(tr_kv_policy_t *p);

/* May its prompts stand at `level`, "K/V", while they are computed (tr_kv_stage)?
 * Always at 16/16, which means that they have no stages; else it must be its best
 * level, and a decision that needs no more than that of a token.  The error says
 * why not. */
tr_status_t tr_kv_policy_prefill(const tr_kv_policy_t *p, const char *level,
                                 tr_error_t *err);
#define TR_KV_PREFILL_NONE "16/16"

/* "full, uniform, diffkv, ..." */
const char *tr_kv_policy_names(void);

/* A policy's row, in its own file. */
struct tr_kv_policy_row {
    const char *name;
    const char *settings; /* names it takes, separated by blanks */
    uint32_t levels_max;  /* of the setting `levels` */
    /* Fills p (zeroed, name and shape of the model set) with its rule and its
     * defaults; the settings are then read over them. */
    void (*init)(tr_kv_policy_t *p, uint32_t head_dim);
    /* NULL, or derives levels from the settings, and refuses what makes no
     * sense. */
    tr_status_t (*check)(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err);
    /* NULL, or fixes in a slot's copy of the policy what depends on the length
     * n of the prompt (window, budget): tr_kv_policy_for. */
    void (*begin)(tr_kv_policy_t *copy, uint32_t n);
    /* What a head is charged at admission for a sequence of n tokens: so many
     * are expected in each tier, tokens[0 .. n_levels).  NULL: there are no
     * tiers. */
    void (*charge)(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
                   uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX]);
};

/* The policy for a sequence whose (first) prompt has n tokens.  The larger n,
 * the larger the window. */
static inline void
tr_kv_policy_for(const tr_kv_policy_t *p, uint32_t n, tr_kv_policy_t *copy)
{
    *copy = *p;
    if (p->row->begin != NULL) {
        p->row->begin(copy, n);
    }
}

extern const tr_kv_policy_row_t tr_kv_policy_full, tr_kv_policy_uniform,
    tr_kv_policy_diffkv, tr_kv_policy_static, tr_kv_policy_int4,
    tr_kv_policy_kivi, tr_kv_policy_snapkv, tr_kv_policy_h2o,
    tr_kv_policy_streamingllm, tr_kv_policy_quest;

#endif
