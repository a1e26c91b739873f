/*
 * quest: Quest (ICML 2024).  Everything is kept at 16 bits, but a decode step
 * reads, from layer `from` on, only the pages that promise most attention: by
 * the product of the query with the smallest and largest key of the page,
 * channel by channel.  Quest's chunk of 16 tokens is the dense page of our pool,
 * which has 16 at head size 128 and 24 at 64, more with other policies in the
 * engine; `budget` tokens' worth of them is read.
 */
#include "kv_policy_parts.h"

static void
quest_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t list, uint32_t n,
             uint32_t tokens[TR_KV_LISTS_MAX])
{
    (void) p;
    (void) layer;
    (void) list;
    (void) n;
    (void) tokens; /* there are no lists */
}

static uint32_t
quest_read(const tr_kv_policy_t *p, uint32_t n, uint32_t page_tokens)
{
    return tr_kv_rule_read(&p->rule, n, page_tokens);
}

static void
quest_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_PAGES;
    p->digest = true;
    p->budget[0] = 1024;
    p->read_from = 2;
    p->charge = quest_charge;
    p->read = quest_read;
}

const tr_kv_policy_kind_t tr_kv_policy_quest = { .name = "quest",
                                                 .settings = "budget from",
                                                 .init = quest_init };
