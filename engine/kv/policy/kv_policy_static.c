/*
 * static: the levels of diffkv, but every head has the same budget: of N tokens
 * so far, high * N at the first level and low * N at the second, given to the
 * most significant tokens outside the window.  What DiffKV's figure 9 compares
 * its budgets by head with.  With one level that level has low * N.
 *
 * A prompt is ranked exactly.  While tokens are generated the budgets hold at
 * every step, with one move: when both together have room, the leaving token
 * goes to the first level and, if that is full, its least significant token one
 * down; when they have none, the leaving token goes to the last level and the
 * least significant token there is forgotten.
 */
#include "kv_policy_internal.h"

#include "engine/config/log.h"

static void
static_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
              uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX])
{
    uint32_t outside = tr_kv_outside(p, n), given = 0;

    (void) layer;
    (void) kv_head;
    for (uint32_t l = 0; l < p->n_levels; l++) {
        uint32_t sum = tr_kv_share_upto(&p->rule, l, n);

        sum = sum < outside ? sum : outside;
        tokens[l] = sum - given;
        given = sum;
    }
}

static void
static_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_SHARE;
    p->n_levels = 2;
    p->level[0] = (tr_kv_level_t){ .key_bits = 8, .value_bits = 4 };
    p->level[1] = (tr_kv_level_t){ .key_bits = 4, .value_bits = 2 };
    p->window = 64;
    p->scored = true;
    p->fraction[0] = 0.25;
    p->fraction[1] = 0.35;
}

static tr_status_t
static_check(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err)
{
    if (p->window == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy static: window=0 would forget new"
                            " tokens before they are read: expected 1 or more");
    }
    return tr_kv_levels_check(p, head_dim, err);
}

const tr_kv_policy_row_t tr_kv_policy_static = {
    .name = "static",
    .settings = "levels window window_level sinks groups high low observe",
    .levels_max = 2,
    .init = static_init,
    .check = static_check,
    .charge = static_charge
};
