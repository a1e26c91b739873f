/*
 * The step loop with a real model and KV policies: a crowd of requests in a
 * cache that is too small for them, with pauses and aborts, gets byte for byte
 * what each gets alone in a large one.  Nothing is computed again on the way:
 * who makes way comes back from the swap memory.  The same with an executor that
 * answers a batch later.
 */
#include "policy_bench.h"

#define CROWD 20
#define CROWDS 5 /* until somebody has made way */

static void
run_policy(const char *spec, uint64_t memory)
{
    ask_t *asks = calloc(CROWD, sizeof(*asks));
    uint64_t state = seed;

    for (uint32_t i = 0; i < CROWD; i++) {
        asks[i].prompt_len = 1 + rig_below(&state, i % 4 == 0 ? 450 : 120);
        asks[i].params = plain(i, 40 + rig_below(&state, 60));
        asks[i].n = i % 5 == 0 ? 1 + rig_below(&state, CHOICES) : 1;
    }
    run_alone(spec, asks, CROWD);
    for (int late = 0; late < 2; late++) {
        made_way_t done = { 0 };

        /* on a busy machine requests may come so late that all find room */
        for (int i = 0; i < CROWDS && done.swaps == 0; i++) {
            done = run_crowd(spec, asks, CROWD, memory, 64 << 20, late);
            assert_int_equal(done.recomputed, 0);
            compare(spec, asks, CROWD);
        }
        assert_true(done.swaps > 0);
    }
    free(asks);
}

static void
test_diffkv(void **state)
{
    (void) state;
    run_policy("diffkv", 5 << 20);
}

static void
test_uniform(void **state)
{
    (void) state;
    run_policy("uniform:levels=4/4", 4 << 20);
}

static void
test_quest(void **state)
{
    (void) state;
    run_policy("quest:budget=64", 5 << 20);
}

/* Without swap memory all come to their end, if not to the same. */
static void
test_without_swap(void **state)
{
    ask_t *asks = calloc(CROWD, sizeof(*asks));
    uint64_t random = seed;

    (void) state;
    for (uint32_t i = 0; i < CROWD; i++) {
        asks[i].prompt_len = 1 + rig_below(&random, 100);
        asks[i].params = plain(i, 60 + rig_below(&random, 60));
        asks[i].n = 1;
    }
    for (int late = 0; late < 2; late++) {
        made_way_t done = run_crowd("diffkv", asks, CROWD, 4 << 20, 0, late);

        assert_true(done.preemptions > 0);
        assert_int_equal(done.swaps, 0);
    }
    free(asks);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diffkv),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_quest),
        cmocka_unit_test(test_without_swap),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
