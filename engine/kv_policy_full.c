/*
 * full: every token of every head is kept at 16 bits and read at every step.
 * What all other policies are compared with.
 */
#include "kv_policy.h"

static int
tr_kv_full_keep(const tr_kv_policy_t *p, const tr_kv_mark_t *token)
{
    (void) p;
    (void) token;
    return 0;
}

static int
tr_kv_full_downgrade(const tr_kv_policy_t *p, int level,
                     const tr_kv_mark_t *victim)
{
    (void) p;
    (void) victim;
    return level;
}

static void
tr_kv_full_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t list,
                  uint32_t n, uint32_t tokens[TR_KV_LEVELS_MAX])
{
    (void) p;
    (void) layer;
    (void) list;
    tokens[0] = n;
}

static uint32_t
tr_kv_full_read(const tr_kv_policy_t *p, uint32_t n, const float *bound,
                uint32_t *chosen)
{
    uint32_t i;

    (void) p;
    (void) bound;
    for (i = 0; i < n; i++) {
        chosen[i] = i;
    }
    return n;
}

const tr_kv_policy_t tr_kv_policy_full = { .name = "full",
                                           .window = 0,
                                           .n_levels = 1,
                                           .level = { { 16, 16 } },
                                           .prompt = tr_kv_full_keep,
                                           .leave = tr_kv_full_keep,
                                           .downgrade = tr_kv_full_downgrade,
                                           .charge = tr_kv_full_charge,
                                           .read = tr_kv_full_read };
