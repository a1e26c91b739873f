/*
 * full: every token of every head is kept at 16 bits and read at every step.
 * What all other policies are compared with.
 */
#include "kv_policy_internal.h"

static void
full_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_FULL;
}

const tr_kv_policy_row_t tr_kv_policy_full = { .name = "full",
                                               .settings = "",
                                               .init = full_init };
