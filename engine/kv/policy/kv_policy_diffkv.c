/*
 * diffkv: the KV compression policy of DiffKV (SOSP 2025, section 4).
 *
 * A token's significance is the mean attention that later queries paid to it.
 * It is compared with thresholds alpha / N, N being the number of tokens so far:
 * the average token has 1 / N, so that alpha = 1 means "at least average".  What
 * reaches alpha_high / N is kept at the first level, what reaches alpha_low / N
 * at the second, the rest is forgotten.  Every head decides for itself, so that
 * each takes the memory that its attention needs.
 *
 * With alpha_low = 0 nothing is forgotten, and since nobody is promoted, what
 * reached the last level stays there: its scores would never be read, so that
 * level keeps none (8 bytes a token less).
 *
 * Levels may be one to three.  One: kept from alpha_low on.  Three: alpha_top,
 * alpha_high, alpha_low.  A significance equal to a threshold keeps the better
 * level.  Thresholds are rounded to single precision once and compared in it
 * (kv_rule.h), so that a GPU decides the same.
 *
 * The newest tokens, and the first ones, lie in front of the levels with 8 bits for
 * keys and values: in some models the first token's value is far larger than all
 * others, and is what four bits of it lose.
 */
#include "kv_policy_internal.h"

#include <math.h>

#include "engine/config/log.h"

/* alpha_high where it is not given: what models that were tuned to have outliers
 * bear with two levels (docs/benchmarks.md).  Of three it is below alpha_top. */
#define ALPHA_HIGH 9
#define ALPHA_HIGH_OF_THREE 1
/* First and newest tokens, together a page of these bits for heads of 64 and 128
 * (tr_page_plan). */
#define SINKS 4
#define WINDOW 44
#define WINDOW_BITS 8
#define NOT_GIVEN UINT32_MAX

/* How much reaches a threshold depends on the text.  For the model in
 * models/pocket (groups of three query heads) 0.85 of all tokens reach alpha 1,
 * and about 1.4 / alpha larger ones; we charge a little more.  No bound: who is
 * wrong waits for pages later. */
static void
diffkv_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
              uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX])
{
    float t[TR_KV_TIERS_MAX];
    uint32_t outside = tr_kv_outside(p, n), given = 0;

    /* base 1: the alphas themselves */
    tr_kv_thresholds(&p->rule, layer, kv_head, 0, 1, t);
    for (uint32_t i = 0; i < p->n_levels; i++) {
        double share = t[i] > 1.5f ? 1.5 / t[i] : 1;
        uint32_t upto;

        upto = (uint32_t) (share * outside + 0.5);
        upto = upto < given ? given : upto;
        tokens[i] = upto - given;
        given = upto;
    }
}

static void
diffkv_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_THRESHOLD;
    p->n_levels = 2;
    p->level[0] = (tr_kv_level_t){ .key_bits = 8, .value_bits = 4 };
    p->level[1] = (tr_kv_level_t){ .key_bits = 4, .value_bits = 2 };
    p->window = WINDOW;
    p->sinks = NOT_GIVEN;
    p->scored = true;
    p->alpha_top = 4;
    p->alpha_high = NAN; /* not given (diffkv_check) */
    p->alpha_low = 0;
}

static uint8_t
at_least(uint8_t bits, uint8_t least)
{
    return bits > least ? bits : least;
}

/* What was not given of the tokens in front of the levels. */
static void
diffkv_front(tr_kv_policy_t *p)
{
    if (p->sinks == NOT_GIVEN) {
        p->sinks = p->window != 0 ? SINKS : 0;
    }
    /* codes of 8/8 by groups have no fast attention on a GPU */
    if (p->window_level.key_bits == 0 && p->groups == 1) {
        p->window_level.key_bits = at_least(p->level[0].key_bits, WINDOW_BITS);
        p->window_level.value_bits = at_least(p->level[0].value_bits,
                                              WINDOW_BITS);
    }
}

static tr_status_t
diffkv_check(tr_kv_policy_t *p, uint32_t head_dim, tr_error_t *err)
{
    char text[TR_KV_ALPHA_TEXT];
    tr_status_t rc;

    if (isnan(p->alpha_high)) {
        p->alpha_high = p->n_levels > 2 ? ALPHA_HIGH_OF_THREE : ALPHA_HIGH;
    }
    diffkv_front(p);
    if (!tr_kv_alpha_fit(p, p->alpha_high, p->alpha_low, text)) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy diffkv: %s", text);
    }
    rc = tr_kv_levels_check(p, head_dim, err);
    if (rc == TR_OK && p->alpha_file[0] != '\0') {
        rc = tr_kv_alpha_read(p, err);
    }
    if (rc == TR_OK && p->n_levels > 1 && !tr_kv_policy_forgets(p)) {
        p->level[p->n_levels - 1].scored = 0;
    }
    return rc;
}

const tr_kv_policy_row_t tr_kv_policy_diffkv = {
    .name = "diffkv",
    .settings = "levels window window_level sinks groups alpha_top alpha_high"
                " alpha_low alpha_file base observe",
    .levels_max = 3,
    .init = diffkv_init,
    .check = diffkv_check,
    .charge = diffkv_charge
};
