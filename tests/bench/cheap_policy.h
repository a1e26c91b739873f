/*
 * cheap_policy.h: a policy whose decisions cost nothing, so that benchmarks of
 * page managers measure pages.  Every head has its own shares of the tokens.
 */
#ifndef CHEAP_POLICY_H
#define CHEAP_POLICY_H

#include <string.h>

#include "engine/kv/policy/kv_policy.h"

/* A head keeps its own shares of the tokens: from an eighth to a half at the
 * high level, as many at the low one. */
static uint32_t
share_of(uint32_t layer, uint32_t list)
{
    return 32 + (layer * 37 + list * 101) % 96;
}

static int
cheap_leave(const tr_kv_policy_t *p, const tr_kv_mark_t *t,
            const uint32_t *count)
{
    uint32_t share = share_of(t->layer, t->list);
    uint32_t at = t->position * 2654435769u >> 24;

    (void) p;
    (void) count;
    return at < share ? 0 : at < 2 * share ? 1 : TR_KV_NOWHERE;
}

static void
cheap_prompt(const tr_kv_policy_t *p, const tr_kv_prompt_t *h, int8_t *to)
{
    uint32_t n = h->n * share_of(h->layer, h->list) / 256;

    (void) p;
    memset(to, 0, n);
    memset(to + n, 1, n);
    memset(to + 2 * n, TR_KV_NOWHERE, h->n - 2 * n);
}

static const tr_kv_policy_t cheap = { .name = "cheap",
                                      .spec = "cheap",
                                      .n_levels = 2,
                                      .level = { { 8, 4, 1, 1, 0, 0 },
                                                 { 4, 2, 1, 1, 0, 0 } },
                                      .window = 64,
                                      .window_level = { 8, 4, 1, 1, 0, 0 },
                                      .leaves = 1,
                                      .prompt = cheap_prompt,
                                      .leave = cheap_leave };

#endif
