/*
 * Checks and charges that several policies share (kv_policy_internal.h).
 */
#include "kv_policy_internal.h"

#include "engine/config/log.h"

/* ---- levels ------------------------------------------------------------- */

tr_status_t
tr_kv_level_check(const tr_kv_policy_t *p, tr_kv_level_t *level,
                  uint32_t groups, uint32_t head_dim, tr_error_t *err)
{
    bool wide = level->key_bits == 16 && level->value_bits == 16;

    if (!wide && head_dim % 32 != 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy %s: head size %u: levels below 16 bits"
                            " need a multiple of 32",
                            p->name, head_dim);
    }
    if (groups != 1 && groups != 2 && groups != 4) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy %s: %u metadata groups: expected 1, 2"
                            " or 4",
                            p->name, groups);
    }
    if (level->value_bits < 16 && head_dim / 16 % groups != 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy %s: %u metadata groups do not divide"
                            " a head of %u into multiples of 16",
                            p->name, groups, head_dim);
    }
    level->key_groups = level->key_bits < 16 ? (uint8_t) groups : 1;
    level->value_groups = level->value_bits < 16 ? (uint8_t) groups : 1;
    level->by_channel = 0;
    level->scored = p->scored;
    level->narrow = 0;
    level->placed = 0;
    return TR_OK;
}

/* Of so few numbers the largest are not far out: four codes from end to end are
 * nearer to the best step than three fifths of it. */
#define NARROW_DIMS 64u

tr_status_t
tr_kv_levels_check(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err)
{
    tr_status_t rc = TR_OK;

    if (p->sinks > 0 && p->window == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy %s: sinks=%u stand in front of the"
                            " window: expected a window of 1 or more, or 0",
                            p->name, p->sinks);
    }
    if (p->window_level.key_bits == 0 || p->window == 0) {
        p->window_level = p->level[0];
    }
    if (p->window_level.key_bits < p->level[0].key_bits
        || p->window_level.value_bits < p->level[0].value_bits) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy %s: window_level=%u/%u is below the"
                            " level %u/%u, to which tokens leave the window:"
                            " expected at least as many bits",
                            p->name, p->window_level.key_bits,
                            p->window_level.value_bits, p->level[0].key_bits,
                            p->level[0].value_bits);
    }
    for (uint32_t i = 0; i < p->n_levels && rc == TR_OK; i++) {
        const tr_kv_level_t *a = &p->level[i == 0 ? 0 : i - 1];
        const tr_kv_level_t *b = &p->level[i];

        if (i > 0
            && (b->key_bits > a->key_bits || b->value_bits > a->value_bits
                || (b->key_bits == a->key_bits
                    && b->value_bits == a->value_bits))) {
            return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                                "KV policy %s: level %u/%u after %u/%u:"
                                " expected fewer bits, best level first",
                                p->name, b->key_bits, b->value_bits,
                                a->key_bits, a->value_bits);
        }
        rc = tr_kv_level_check(p, &p->level[i], p->groups, head_dim, err);
        p->level[i].narrow = (b->key_bits == 2 || b->value_bits == 2)
                             && head_dim / p->groups >= NARROW_DIMS;
    }
    return rc == TR_OK ? tr_kv_level_check(p, &p->window_level, p->groups,
                                           head_dim, err)
                       : rc;
}

/* ---- charges ------------------------------------------------------------ */

void
tr_kv_charge_all(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
                 uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX])
{
    (void) layer;
    (void) kv_head;
    tokens[0] = tr_kv_outside(p, n);
}
