/*
 * h2o: H2O (NeurIPS 2023).  Each head keeps `budget` tokens at 16 bits, half of
 * them the most recent, half those with the largest accumulated attention
 * ("heavy hitters").  At each step the token that leaves the recent half joins
 * the others, and the one of them with the least sum is forgotten for good.  A
 * budget given as a fraction is one of the prompt's length.
 */
#include "kv_policy_parts.h"

#include "engine/config/log.h"

static void
h2o_begin(tr_kv_policy_t *copy, uint32_t n)
{
    uint32_t total = tr_kv_budget(copy, 0, n);

    copy->window = total > 2 ? total / 2 : 1;
    copy->budget[1] = total > 2 ? total - copy->window : 1;
}

static void
h2o_prompt(const tr_kv_policy_t *p, const tr_kv_prompt_t *head, int8_t *to)
{
    uint64_t cut = tr_kv_rank_cut(head->score, head->position, head->n,
                                  p->budget[1]);

    for (uint32_t i = 0; i < head->n; i++) {
        uint64_t key = tr_kv_rank_key(head->score[i], head->position[i]);

        to[i] = (int8_t) tr_kv_rank_level(&p->rule, key, &cut, head->from[i]);
    }
}

static int
h2o_downgrade(const tr_kv_policy_t *p, uint32_t list,
              const tr_kv_mark_t *victim, const uint32_t *count)
{
    return tr_kv_rule_downgrade(&p->rule, list, victim, count);
}

static void
h2o_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t list, uint32_t n,
           uint32_t tokens[TR_KV_LISTS_MAX])
{
    uint32_t outside = tr_kv_outside(p, n);

    (void) layer;
    (void) list;
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
    p->begin = h2o_begin;
    p->prompt = h2o_prompt;
    p->leave = tr_kv_leave_all;
    p->downgrade = h2o_downgrade;
    p->charge = h2o_charge;
    p->read = tr_kv_read_all;
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

const tr_kv_policy_kind_t tr_kv_policy_h2o = {
    .name = "h2o", .settings = "budget", .init = h2o_init, .check = h2o_check
};
