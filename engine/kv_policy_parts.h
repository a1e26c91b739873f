/*
 * What the policies' files share: reading and printing settings, and the small
 * decisions that more than one of them makes.
 */
#ifndef TR_KV_POLICY_PARTS_H
#define TR_KV_POLICY_PARTS_H

#include "kv_policy.h"

/* ---- settings (kv_policy_settings.c) ------------------------------------ */

/* Applies "KEY=VALUE,KEY=VALUE" (may be empty) to p. */
tr_status_t tr_kv_settings_read(const tr_kv_policy_kind_t *kind,
                                const char *text, tr_kv_policy_t *p,
                                tr_error_t *err);

/* Writes p->spec: the name and every setting of the kind, as it is now. */
tr_status_t tr_kv_settings_print(const tr_kv_policy_kind_t *kind,
                                 tr_kv_policy_t *p, tr_error_t *err);

#endif
