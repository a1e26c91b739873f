/*
 * uniform: every token at one level, for instance 8-bit keys with 4-bit values.
 * With it the precision of keys is weighed against that of values (DiffKV,
 * figure 8).
 */
#include "kv_policy_internal.h"

static void
uniform_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_ALL;
    p->n_levels = 1;
    p->level[0] = (tr_kv_level_t){ .key_bits = 8, .value_bits = 4 };
}

const tr_kv_policy_row_t tr_kv_policy_uniform = {
    .name = "uniform",
    .settings = "levels window window_level sinks groups",
    .levels_max = 1,
    .init = uniform_init,
    .check = tr_kv_levels_check,
    .charge = tr_kv_charge_all
};
