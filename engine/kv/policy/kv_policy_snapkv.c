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
#include "kv_policy_parts.h"

#include "engine/config/log.h"

static bool
candidate(const tr_kv_prompt_t *head, uint32_t i)
{
    return tr_kv_recent_counts(head->from[i], head->recent[i]);
}

static float
pooled(const tr_kv_policy_t *p, const tr_kv_prompt_t *head, uint32_t i)
{
    uint32_t reach = p->pool / 2, from = i > reach ? i - reach : 0;
    uint32_t to = head->n - i > reach ? i + reach : head->n - 1;
    float most = 0;

    for (uint32_t j = from; j <= to; j++) {
        if (candidate(head, j)) {
            most = tr_kv_recent_pool(&p->rule, most, head->position[i],
                                     head->position[j], head->recent[j]);
        }
    }
    return most;
}

static void
snapkv_prompt(const tr_kv_policy_t *p, const tr_kv_prompt_t *head, int8_t *to)
{
    uint32_t candidates = 0, k[TR_KV_LISTS_MAX] = { 0 };
    uint64_t cut;

    for (uint32_t i = 0; i < head->n; i++) {
        bool counts = candidate(head, i);

        head->work[i] = counts ? pooled(p, head, i) : TR_KV_KEPT;
        candidates += counts;
    }
    tr_kv_rule_ranks(&p->rule, head->length, head->n, candidates, k);
    cut = tr_kv_rank_cut(head->work, head->position, head->n, k[0]);
    for (uint32_t i = 0; i < head->n; i++) {
        uint64_t key = tr_kv_rank_key(head->work[i], head->position[i]);

        to[i] = (int8_t) tr_kv_rank_level(&p->rule, key, &cut, head->from[i]);
    }
}

static void
snapkv_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t list,
              uint32_t n, uint32_t tokens[TR_KV_LISTS_MAX])
{
    uint32_t outside = tr_kv_outside(p, n), kept = tr_kv_budget(p, 0, outside);

    (void) layer;
    (void) list;
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
    p->prompt = snapkv_prompt;
    p->leave = tr_kv_leave_all;
    p->downgrade = tr_kv_downgrade_none;
    p->charge = snapkv_charge;
    p->read = tr_kv_read_all;
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

const tr_kv_policy_kind_t tr_kv_policy_snapkv = { .name = "snapkv",
                                                  .settings = "budget pool",
                                                  .init = snapkv_init,
                                                  .check = snapkv_check };
