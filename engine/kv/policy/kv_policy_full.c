/*
 * full: every token of every head is kept at 16 bits and read at every step.
 * What all other policies are compared with.
 */
#include "kv_policy_parts.h"

static void
full_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t list, uint32_t n,
            uint32_t tokens[TR_KV_LISTS_MAX])
{
    (void) p;
    (void) layer;
    (void) list;
    (void) n;
    (void) tokens; /* there are no lists */
}

static void
full_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_DENSE;
    p->charge = full_charge;
    p->read = tr_kv_read_all;
}

const tr_kv_policy_kind_t tr_kv_policy_full = { .name = "full",
                                                .settings = "",
                                                .init = full_init };
