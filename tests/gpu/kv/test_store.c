/*
 * What writes the KV cache on the GPU against the CPU backend, byte for byte:
 * prompts in chunks, their compression, steps with moves and downgrades, later
 * turns, compression of what was compressed, refusals, swaps.  All levels, head
 * sizes, groups; numbers from 1e-6 to 1e4, NaN and infinities; pages that are
 * NaN throughout.
 *
 *   test_store [rounds [seed]]
 */
#include "store_ops.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

/* Scores that attention would have left, on both sides. */
static void
score_uncompressed(fixture_t *b)
{
    const tr_kv_layout_t *l = &b->plan.layout[0];

    for (uint32_t s = 0; s < FIXTURE_SLOTS && l->score; s++) {
        for (uint32_t h = 0; h < b->host.layers * b->host.kv_heads; h++) {
            for (uint32_t i = 0; i < b->uncompressed[s]; i++) {
                uint8_t *page = tr_kv_page_at(&b->host,
                                              fixture_row(b, s,
                                                          h)[i / l->tokens]);
                float x[2] = { (float) random_unit(), (float) random_unit() };

                memcpy(page + l->score + i % l->tokens * 4, &x[0], 4);
                memcpy(page + l->recent + i % l->tokens * 4, &x[1], 4);
            }
        }
    }
    fixture_put(b->other.pool, b->host.pool, b->pages * b->host.page_bytes);
}

static bool
turn(fixture_t *b)
{
    uint32_t n[FIXTURE_SLOTS], chunks = 1 + random_below(3), steps;
    uint32_t room = b->max_len / 6;

    for (uint32_t i = 0; i < chunks; i++) {
        for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
            n[s] = random_below(3) == 0 ? 0 : random_below(room);
        }
        if (!store_uncompressed(b, n)) {
            return false;
        }
    }
    score_uncompressed(b);
    if (!store_compress(b, 1 + random_below(15))) {
        return false;
    }
    steps = random_below(b->max_len / 6);
    for (uint32_t i = 0; i < steps; i++) {
        if (!store_step(b)) {
            return false;
        }
    }
    return store_swap(b, random_below(FIXTURE_SLOTS)) && store_pages(b);
}

static bool
one_round(const fixture_side_t *side)
{
    fixture_t b;
    bool ok;

    fixture_open(&b, side);
    ok = turn(&b) && turn(&b);
    if (!ok) {
        fixture_describe(&b);
    }
    fixture_close(&b);
    return ok;
}

static void
say_what(void)
{
    printf("%llu comparisons of all pages, %llu tokens compressed\n",
           (unsigned long long) store_checks, (unsigned long long) store_moved);
}

int
main(int argc, char **argv)
{
    return fixture_rounds(argc, argv, "store", 1, one_round, say_what);
}
