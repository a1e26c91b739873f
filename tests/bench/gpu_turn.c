/*
 * bench_gpu turn: a conversation that comes back.
 *
 * A prompt is computed, and what its policy leaves of it is kept.  Then it comes
 * again with new tokens at its end: what is found of it is taken over, copied where
 * it is compressed, and the new tokens are computed behind it.  Beside that the
 * time to compute everything anew, prompt and new tokens.
 */
#include "gpu_fixture.h"

#include <stdio.h>
#include <string.h>

#define ROUNDS 5u

static const tr_prefix_key_t nobodys;

/* The first n tokens, those that are found first; ms until the next one is
 * there.  *slot stays open. */
static double
begin(fixture_t *b, uint32_t n, bool find, int32_t *slot, uint32_t *found)
{
    tr_kv_cache_t *kv = b->e->kv;
    tr_kv_found_t f = { .match = { .node = TR_PREFIX_NONE,
                                   .part = TR_PREFIX_NONE } };
    double begun = fixture_now_ms();
    tr_sampled_t out;

    *slot = tr_kv_open(kv, NULL);
    if (*slot < 0) {
        fixture_die("turn", "no slot");
    }
    if (find) {
        tr_kv_find(kv, NULL, &nobodys, b->prompt, n - 1, &f);
    }
    *found = f.tokens;
    fixture_must(tr_kv_adopt(kv, *slot, &nobodys, &f), "a copy");
    tr_kv_prompt(kv, *slot, n);
    if (!fixture_compute(b, *slot, *found, n, &out)) {
        fixture_die("turn", "the pool does not hold the prompt");
    }
    return fixture_now_ms() - begun;
}

static double
again(fixture_t *b, uint32_t n, bool find, uint32_t *found)
{
    double best = 0;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        int32_t slot;
        double ms = begin(b, n, find, &slot, found);

        best = i == 0 || ms < best ? ms : best;
        tr_kv_close(b->e->kv, slot);
        fixture_settle(b);
    }
    return best;
}

void
fixture_turn(fixture_t *b, uint32_t context, uint32_t fresh)
{
    tr_kv_cache_t *kv = b->e->kv;
    uint32_t n = context + fresh, found;
    double anew, next, same;
    int32_t slot;

    if (!tr_kv_reuses(kv, NULL)) {
        fixture_die("turn", "this policy's prefixes are not reused");
    }
    anew = again(b, n, false, &found);
    begin(b, context, false, &slot, &found);
    if (!fixture_compress(b, slot, context)) {
        fixture_die("turn", "the pool does not hold the compressed prompt");
    }
    fixture_settle(b);
    tr_kv_keep(kv, slot, b->prompt, context, true);
    tr_kv_close(kv, slot);
    fixture_settle(b);
    same = again(b, context, true, &found);
    next = again(b, n, true, &found);
    if (found != context) {
        fixture_die("turn", "not all of the prompt was found");
    }
    printf(" new=%u found=%u anew_ms=%.2f turn_ms=%.2f again_ms=%.2f"
           " turn_share=%.4f again_share=%.4f\n",
           fresh, found, anew, next, same, next / anew, same / anew);
}
