/*
 * The policies, by name.
 */
#include "kv_policy.h"

#include <stdio.h>
#include <string.h>

#include "log.h"

static const tr_kv_policy_t *const tr_kv_policies[] = { &tr_kv_policy_full };

#define TR_KV_POLICIES (sizeof(tr_kv_policies) / sizeof(tr_kv_policies[0]))

const tr_kv_policy_t *
tr_kv_policy_find(const char *name, tr_error_t *err)
{
    char known[256];
    size_t i, used = 0;

    known[0] = '\0';
    for (i = 0; i < TR_KV_POLICIES; i++) {
        if (strcmp(tr_kv_policies[i]->name, name) == 0) {
            return tr_kv_policies[i];
        }
        if (used < sizeof(known)) {
            used += (size_t) snprintf(known + used, sizeof(known) - used,
                                      "%s%s", i == 0 ? "" : ", ",
                                      tr_kv_policies[i]->name);
        }
    }
    tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                 "unknown KV policy \"%.64s\": known are %s", name, known);
    return NULL;
}
