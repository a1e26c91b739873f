/*
 * kivi: KIVI (ICML 2024).  Keys are quantised by channel, 32 tokens sharing a
 * scale and zero point, values by token in groups of 32 dimensions; the most
 * recent tokens stay at 16 bits.
 *
 * KIVI quantises keys when the residual is full and values one by one; here
 * both leave the window 32 at a time, so that of a window of 128 there are 97
 * to 128 tokens at 16 bits.
 */
#include "kv_policy_internal.h"

#include "engine/config/log.h"

#define VALUE_GROUP 32u /* dimensions */

static void
kivi_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_ALL;
    p->n_levels = 1;
    p->bits = 2;
    p->window = 128;
    p->window_level = (tr_kv_level_t){
        .key_bits = 16, .value_bits = 16, .key_groups = 1, .value_groups = 1
    };
    p->leaves = TR_KV_CHANNEL_TOKENS;
}

static tr_status_t
kivi_check(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err)
{
    tr_status_t rc;

    if (p->bits != 2 && p->bits != 4) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy kivi: bits=%u: expected 2 or 4",
                            p->bits);
    }
    if (p->window == 0 || p->window % TR_KV_CHANNEL_TOKENS != 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy kivi: window=%u: expected a multiple"
                            " of 32 above 0",
                            p->window);
    }
    p->level[0].key_bits = p->level[0].value_bits = (uint8_t) p->bits;
    rc = tr_kv_level_check(p, &p->level[0], 1, head_dim, err);
    p->level[0].value_groups = (uint8_t) (head_dim / VALUE_GROUP);
    p->level[0].by_channel = 1;
    return rc;
}

const tr_kv_policy_row_t tr_kv_policy_kivi = { .name = "kivi",
                                               .settings = "bits window",
                                               .init = kivi_init,
                                               .check = kivi_check,
                                               .charge = tr_kv_charge_all };
