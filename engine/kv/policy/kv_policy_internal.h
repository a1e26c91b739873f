/*
 * What the policies' files share: reading and printing settings, and the small
 * decisions that more than one of them makes.
 */
#ifndef TR_KV_POLICY_INTERNAL_H
#define TR_KV_POLICY_INTERNAL_H

#include "kv_policy.h"

/* ---- settings (kv_policy_settings.c) ------------------------------------ */

/* Applies "KEY=VALUE,KEY=VALUE" (may be empty) to p. */
tr_status_t tr_kv_settings_read(const tr_kv_policy_row_t *row, const char *text,
                                tr_kv_policy_t *p, tr_error_t *err);

/* Writes p->spec: the name and every setting of the kind, as it is now. */
tr_status_t tr_kv_settings_print(const tr_kv_policy_row_t *row,
                                 tr_kv_policy_t *p, tr_error_t *err);

/* Does any head of a policy with thresholds forget tokens (kv_policy.c)? */
bool tr_kv_policy_forgets(const tr_kv_policy_t *p);

/* Thresholds (kv_policy_alpha.c): do they fit the policy and each other?  If
 * not, text says what is wrong. */
#define TR_KV_ALPHA_TEXT 200
bool tr_kv_alpha_fit(const tr_kv_policy_t *p, double high, double low,
                     char text[TR_KV_ALPHA_TEXT]);

/* Reads p->alpha_file into p->alpha_of. */
tr_status_t tr_kv_alpha_read(tr_kv_policy_t *p, tr_error_t *err);

/* ---- levels (kv_policy_levels.c) ---------------------------------------- */

/* Completes p->level and p->window_level, whose bits are set: p->groups pairs
 * of metadata where there are fewer than 16 bits, scores when p->scored.  A
 * window level that was not given becomes the best level.  Refuses levels that
 * are not in order, a window below the best of them, and head sizes that pages
 * cannot hold. */
tr_status_t tr_kv_levels_check(tr_kv_policy_t *p, uint32_t head_dim,
                               tr_error_t *err);

/* As above for one level; groups: 1, 2 or 4 that divide what they must. */
tr_status_t tr_kv_level_check(const tr_kv_policy_t *p, tr_kv_level_t *level,
                              uint32_t groups, uint32_t head_dim,
                              tr_error_t *err);

/* ---- charges ------------------------------------------------------------ */

/* Everything goes to tier 0. */
void tr_kv_charge_all(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
                      uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX]);

/* Budget `index` for n tokens: in tokens, or the share of them. */
static inline uint32_t
tr_kv_budget(const tr_kv_policy_t *p, uint32_t index, uint32_t n)
{
    return tr_kv_rule_budget(&p->rule, index, n);
}

/* Tokens outside the window, and not among its sinks. */
static inline uint32_t
tr_kv_outside(const tr_kv_policy_t *p, uint32_t n)
{
    uint32_t held = p->window + tr_kv_rule_sinks(&p->rule, n);

    return n > held ? n - held : 0;
}

#endif
