/*
 * int4: keys and values of every token at 4 bits, asymmetric, with one scale
 * and zero point a token and head or a group of its dimensions: what Atom
 * (MLSys 2024) and QServe (MLSys 2025) do with the KV cache.
 */
#include "kv_policy_internal.h"

#include "engine/config/log.h"

static void
int4_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_ALL;
    p->n_levels = 1;
    p->level[0] = (tr_kv_level_t){ .key_bits = 4, .value_bits = 4 };
}

static tr_status_t
int4_check(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err)
{
    if (p->group == 0) {
        p->group = head_dim;
    }
    if (head_dim % p->group != 0 || head_dim / p->group > 4
        || head_dim / p->group == 3) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy int4: group=%u: expected the head size"
                            " %u, a half or a quarter of it",
                            p->group, head_dim);
    }
    p->groups = head_dim / p->group;
    return tr_kv_levels_check(p, head_dim, err);
}

const tr_kv_policy_row_t tr_kv_policy_int4 = { .name = "int4",
                                               .settings = "group",
                                               .init = int4_init,
                                               .check = int4_check,
                                               .charge = tr_kv_charge_all };
