/*
 * streamingllm: StreamingLLM (ICLR 2024).  The first tokens ("attention sinks")
 * and the most recent ones, at 16 bits; all others are forgotten.  A recent
 * part given as a fraction is one of the prompt's length.
 *
 * The paper counts positions within the cache, so that a text may grow beyond
 * what the model was trained for; here keys keep the positions that they had.
 */
#include "kv_policy_internal.h"

static void
streaming_begin(tr_kv_policy_t *copy, uint32_t n)
{
    uint32_t recent = tr_kv_budget(copy, 1, n);

    copy->window = recent > 0 ? recent : 1;
}

static void
streaming_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
                 uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX])
{
    uint32_t outside = tr_kv_outside(p, n);

    (void) layer;
    (void) kv_head;
    tokens[0] = p->sinks < outside ? p->sinks : outside;
}

static void
streaming_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_SINKS;
    p->n_levels = 1;
    p->level[0] = (tr_kv_level_t){ .key_bits = 16, .value_bits = 16 };
    p->window = 1;
    p->sinks = 4;
    p->budget[1] = 1020;
}

const tr_kv_policy_row_t tr_kv_policy_streamingllm = {
    .name = "streamingllm",
    .settings = "sinks recent",
    .init = streaming_init,
    .check = tr_kv_levels_check,
    .begin = streaming_begin,
    .charge = streaming_charge
};
