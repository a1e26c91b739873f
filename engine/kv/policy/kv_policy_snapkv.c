/*
 * snapkv: SnapKV (NeurIPS 2024).  At the end of a prompt each head keeps the
 * `budget` tokens to which the last 32 queries paid most attention, smoothed by
 * a maximum over `pool` neighbours, and those 32 tokens; at 16 bits.  Generated
 * tokens are all kept.  The attention of a query group is its maximum, as
 * everywhere here (kernels.h).
 *
 * In a later turn the same happens to that turn's prompt: `budget` tokens of it
 * (or that fraction of it) are added to what is kept already.
 */
#include "kv_policy_internal.h"

#include "engine/config/log.h"

static void
snapkv_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
              uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX])
{
    uint32_t outside = tr_kv_outside(p, n), kept = tr_kv_budget(p, 0, outside);

    (void) layer;
    (void) kv_head;
    tokens[0] = kept < outside ? kept : outside;
}

static void
snapkv_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_RECENT;
    p->n_levels = 1;
    p->level[0] = (tr_kv_level_t){ .key_bits = 16, .value_bits = 16 };
    p->window = TR_KV_OBSERVATION_WINDOW;
    p->observe = TR_KV_OBSERVATION_WINDOW;
    p->budget[0] = 1024;
    p->pool = 7;
}

static tr_status_t
snapkv_check(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err)
{
    tr_status_t rc = tr_kv_levels_check(p, head_dim, err);

    p->scored = true; /* prompts only: the levels have no scores */
    if (rc == TR_OK && p->pool % 2 == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy snapkv: pool=%u: expected an odd"
                            " number of tokens to 255",
                            p->pool);
    }
    return rc;
}

const tr_kv_policy_row_t tr_kv_policy_snapkv = { .name = "snapkv",
                                                 .settings = "budget pool",
                                                 .init = snapkv_init,
                                                 .check = snapkv_check,
                                                 .charge = snapkv_charge };
