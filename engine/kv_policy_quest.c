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
    uint32_t pages = p->budget[0] / page_tokens
                     + (p->budget[0] % page_tokens != 0);

    if (p->fraction[0] > 0) {
        pages = (uint32_t) (p->fraction[0] * n + 0.999999);
    }
    pages = pages > 0 ? pages : 1;
    return pages < n ? pages : 0;
}

static void
quest_init(tr_kv_policy_t *p, uint32_t head_dim)
{
    (void) head_dim;
    p->digest = true;
    p->budget[0] = 1024;
    p->read_from = 2;
    p->charge = quest_charge;
    p->read = quest_read;
}

const tr_kv_policy_kind_t tr_kv_policy_quest = { .name = "quest",
                                                 .settings = "budget from",
                                                 .init = quest_init };
