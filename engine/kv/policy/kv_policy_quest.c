/*
 * quest: Quest (ICML 2024).  Everything is kept at 16 bits, but a decode step
 * reads, from layer `from` on, only the pages that promise most attention: by
 * the product of the query with the smallest and largest key of the page,
 * channel by channel.  Quest's chunk of 16 tokens is the uncompressed page of
 * our pool, which has 16 at head size 128 and 24 at 64, more with other
 * policies in the engine; `budget` tokens' worth of them is read.
 */
#include "kv_policy_internal.h"

static void
quest_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->kind = TR_KV_RULE_PAGES;
    p->minmax = true;
    p->budget[0] = 1024;
    p->read_from = 2;
}

const tr_kv_policy_row_t tr_kv_policy_quest = { .name = "quest",
                                                .settings = "budget from",
                                                .init = quest_init };
