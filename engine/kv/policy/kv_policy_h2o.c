/*
 * h2o: H2O (NeurIPS 2023).  Each head keeps `budget` tokens at 16 bits, half of
 * them the most recent, half those with the largest accumulated attention
 * ("heavy hitters").  At each step the token that leaves the recent half joins
 * the others, and the one of them with the least sum is forgotten for good.  A
 * budget given as a fraction is one of the prompt's length.
 */
#include "kv_policy_internal.h"

#include "engine/config/log.h"

static void
h2o_begin(tr_kv_policy_t *copy, uint32_t n)
{
    uint32_t total = tr_kv_budget(copy, 0, n);

    copy->window = total > 2 ? total / 2 : 1;
    copy->budget[1] = total > 2 ? total - copy->window : 1;
}

static void
h2o_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
           uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX])
{
    uint32_t outside = tr_kv_outside(p, n);

    (void) layer;
    (void) kv_head;
    tokens[0] = p->budget[1] < outside ? p->budget[1] : outside;
}

static void
h2o_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_BUDGET;
    p->n_levels = 1;
    p->level[0] = (tr_kv_level_t){ .key_bits = 16, .value_bits = 16 };
    p->window = 1;
    p->scored = true;
    p->by_sum = true;
    p->fraction[0] = 0.2;
}

static tr_status_t
h2o_check(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err)
{
    if (p->fraction[0] == 0 && p->budget[0] < 2) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy h2o: budget=%u: expected 2 tokens or"
                            " more, or a fraction above 0",
                            p->budget[0]);
    }
    return tr_kv_levels_check(p, head_dim, err);
}

const tr_kv_policy_row_t tr_kv_policy_h2o = { .name = "h2o",
                                              .settings = "budget",
                                              .init = h2o_init,
                                              .check = h2o_check,
                                              .begin = h2o_begin,
                                              .charge = h2o_charge };
