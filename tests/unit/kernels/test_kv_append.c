/*
 * kv_append and kv_compress through the backend's table: sequences that are
 * prompts, are compressed, generate, and are prompts again, under a policy that
 * moves tokens at random, against tiers of kv_model.h.  What must be refused is
 * test_kv_append_bad.c.
 */
#include "tests/unit/fixtures/kv/kv_append_step.h"

/* Prompts in chunks, steps beside them, later turns. */
static void
test_sequences(void **state)
{
    (void) state;
    for (uint32_t c = 0; c < N_CASES; c++) {
        kv_fixture_t *b = kv_fixture_open(&cases[c]);
        uint32_t left[SLOTS] = { 0 }; /* of the prompt; then of the answer */
        uint32_t turn[SLOTS] = { 0 };

        for (uint32_t round = 0; round < 160; round++) {
            uint32_t n[SLOTS];

            for (uint32_t s = 0; s < SLOTS; s++) {
                bool uncompressed = b->len[s] > b->seq[s].base
                                    || b->len[s] == 0;

                if (left[s] == 0 && uncompressed && b->len[s] > 0) {
                    pay(b, s);
                    compress(b, s);
                    check_slot(b, s);
                    left[s] = 40 + rng_below(&rng, 60);
                    uncompressed = false;
                } else if (left[s] == 0) {
                    left[s] = 1 + rng_below(&rng, turn[s]++ ? 40 : 450);
                    uncompressed = true;
                }
                n[s] = uncompressed ? 1 + rng_below(&rng, 60) : 1;
                n[s] = n[s] < left[s] ? n[s] : left[s];
                /* one token alone would be a step of a compressed slot */
                if (uncompressed && b->seq[s].n_tiers
                    && b->len[s] == b->seq[s].base && n[s] == 1) {
                    n[s] = left[s] = 2;
                }
                if (b->len[s] + n[s] + 100 > LEN_MAX) {
                    n[s] = 0;
                    continue;
                }
                left[s] -= n[s];
            }
            append(b, n);
            pay(b, round % SLOTS);
            if (round % 16 == 0) {
                check_slot(b, rng_below(&rng, SLOTS));
            }
        }
        for (uint32_t s = 0; s < SLOTS; s++) {
            check_slot(b, s);
        }
        kv_fixture_close(b);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
