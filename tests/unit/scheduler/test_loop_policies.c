/*
 * The step loop with a real model and KV policies: many requests in a cache
 * that is too small for them, with pauses and aborts, get byte for byte what
 * each gets alone in a large one.  Nothing is computed again on the way:
 * who makes way comes back from the swap memory.  The same with an executor
 * that answers a batch later.
 */
#include "tests/unit/fixtures/policy_fixture.h"

#define TOGETHER 20
#define TRIES 5 /* until somebody has made way */

static void
run_policy(const char *spec, uint64_t memory)
{
    ask_t *asks = calloc(TOGETHER, sizeof(*asks));
    uint64_t state = seed;

    for (uint32_t i = 0; i < TOGETHER; i++) {
        asks[i].prompt_len = 1 + rng_below(&state, i % 4 == 0 ? 450 : 120);
        asks[i].params = plain(i, 40 + rng_below(&state, 60));
        asks[i].n = i % 5 == 0 ? 1 + rng_below(&state, CHOICES) : 1;
    }
    run_alone(spec, asks, TOGETHER);
    for (int late = 0; late < 2; late++) {
        made_way_t done = { 0 };

        /* on a busy machine requests may come so late that all find room */
        for (int i = 0; i < TRIES && done.swaps == 0; i++) {
            done = run_together(spec, asks, TOGETHER, memory, 64 << 20, late);
            assert_int_equal(done.recomputed, 0);
            compare(spec, asks, TOGETHER);
        }
        assert_true(done.swaps > 0);
    }
    free(asks);
}

static void
test_diffkv(void **state)
{
    (void) state;
    run_policy("diffkv:alpha_high=1,alpha_low=0.02", 5 << 20);
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
    ask_t *asks = calloc(TOGETHER, sizeof(*asks));
    uint64_t random = seed;

    (void) state;
    for (uint32_t i = 0; i < TOGETHER; i++) {
        asks[i].prompt_len = 1 + rng_below(&random, 100);
        asks[i].params = plain(i, 60 + rng_below(&random, 60));
        asks[i].n = 1;
    }
    for (int late = 0; late < 2; late++) {
        made_way_t done = run_together("diffkv:alpha_high=1,alpha_low=0.02",
                                       asks, TOGETHER, 4 << 20, 0, late);

        assert_true(done.preemptions > 0);
        assert_int_equal(done.swaps, 0);
    }
    free(asks);
}

/* ---- slots -------------------------------------------------------------- */

#define POOL 24u /* pages a head */

static void
until_said(fixture_loop_t *l, ask_t *asks, uint32_t i, uint32_t tokens)
{
    while (asks[i].together[0].tokens < tokens) {
        assert_non_null(l->request[i]);
        turn(l, asks, true);
    }
}

static uint64_t
swapped(fixture_loop_t *l)
{
    tr_status_admission_t a;

    tr_loop_snapshot(l->loop, &a);
    return a.kv_swapped_pages;
}

static void
set_control(fixture_loop_t *l, uint32_t i, uint32_t control)
{
    atomic_store(&l->request[i]->control, control);
    tr_loop_wake(l->loop);
}

/* Two may run, so there are four slots.  Paused ones make way for one that
 * grows, until it and three that are swapped out have all slots: who comes then
 * needs no page of anybody, but a slot, and one of the three loses its cache.
 * That is counted in a turn in which nobody is preempted. */
static void
test_lost_slots_are_counted(void **state)
{
    static const uint32_t pages[] = { 1, 12, 8, 4, 1 }; /* of prompts */
    tr_config_t c = settings("quest:budget=64", 0, 64 << 20);
    ask_t *asks = calloc(5, sizeof(*asks));
    tr_kv_policy_t *quest;
    tr_page_plan_t plan;
    tr_error_t err;
    uint32_t page, i;
    fixture_loop_t l;

    (void) state;
    assert_int_equal(tr_kv_policy_create(c.kv_policy, 8, 2, 64, &quest, &err),
                     TR_OK);
    assert_int_equal(tr_kv_policy_plan(quest, 64, c.max_model_len, &plan),
                     TR_OK);
    tr_kv_policy_free(quest);
    page = plan.layout[0].tokens;
    assert_true(POOL * page <= c.max_model_len);
    c.kv_memory = (uint64_t) POOL * 16 * plan.page_bytes;
    c.max_num_seqs = 2;
    start_with(&l, &c, false);
    for (i = 0; i < 5; i++) {
        asks[i].n = 1;
        asks[i].prompt_len = pages[i] * page - 4;
        asks[i].params = plain(i, (POOL - pages[i]) * page);
    }
    submit(&l, &asks[0], 0);
    for (i = 1; i < 4; i++) {
        uint64_t before = swapped(&l);

        submit(&l, &asks[i], i);
        until_said(&l, asks, i, 1);
        set_control(&l, i, TR_CONTROL_PAUSE);
        while (swapped(&l) == before) {
            turn(&l, asks, true);
        }
    }
    assert_int_equal(atomic_load(&l.counters.kv_swaps), 3);
    assert_int_equal(atomic_load(&l.counters.kv_recomputations), 0);
    submit(&l, &asks[4], 4);
    until_said(&l, asks, 4, 1);
    assert_int_equal(atomic_load(&l.counters.kv_swaps), 3);
    assert_int_equal(atomic_load(&l.counters.kv_recomputations), 1);
    for (i = 0; i < 5; i++) {
        if (l.request[i] != NULL) {
            set_control(&l, i, TR_CONTROL_ABORT);
        }
    }
    while (l.open != 0) {
        turn(&l, asks, true);
    }
    stop(&l);
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
        cmocka_unit_test(test_lost_slots_are_counted),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
