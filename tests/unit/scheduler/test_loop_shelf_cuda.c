/*
 * Prefixes in host memory on a device (kv_shelf.c), by the engine's own loop and a
 * real model: a conversation that others have driven out of the pool is found to the
 * token when it comes back, and by nobody else; and many at once, in a pool that is
 * too small, with aborts and pauses, while prefixes come and go.
 *
 *   TR_CUDA_LIBRARY   a GPU's library instead of the software device
 *   test_loop_shelf_cuda crowd   one of them
 */
#include "tests/unit/fixtures/kept_cuda_fixture.h"

static ask_t asks[REQUESTS];

/* ---- a conversation that comes back -------------------------------------- */

static void
returns_of(const char *spec)
{
    bool full = strcmp(spec, "full") == 0;
    tr_config_t c = cuda_settings(spec);
    tr_status_counters_t *s;
    fixture_loop_t l;

    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < 8; i++) {
        asks[i].prompt_len = asks[i].same = 300;
        asks[i].text = i;
        asks[i].n = 1;
        asks[i].reuse = true;
        asks[i].params = plain(1, 30);
    }
    c.kv_memory = full ? 5 << 20 : 4 << 20;
    c.cache_memory = 64 << 20;
    start_with(&l, &c, false);
    s = &l.counters;
    /* until the first one was driven out */
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(cached(&l, asks, i), 0);
    }
    assert_true(atomic_load(&s->prefix_evicted) != 0);
    asks[5].text = 0;
    assert_int_equal(cached(&l, asks, 5), 299);
    assert_true(!full
                || same_answer(&asks[0].together[0], &asks[5].together[0]));
    assert_int_equal(atomic_load(&s->shelf_loaded), 1);
    assert_true(atomic_load(&s->shelf_tokens) >= 299);
    asks[6].text = 0; /* somebody else's */
    asks[6].key.len = 1;
    assert_int_equal(cached(&l, asks, 6), 0);
    assert_int_equal(atomic_load(&s->shelf_loaded), 1);
    assert_null(tr_loop_stop(l.loop));
    end_engine(&l);
}

static void
returns(void **unused)
{
    (void) unused;
    returns_of("full");
    returns_of("diffkv:alpha_high=12,alpha_low=0");
    returns_of("uniform:levels=8/4");
}

/* ---- many at once -------------------------------------------------------- */

#define CROWD 24u

/* Whether prefixes came and went. */
static bool
crowd_of(const char *spec, uint64_t state)
{
    tr_config_t c = cuda_settings(spec);
    uint64_t stored, loaded, skipped;
    fixture_loop_t l;

    crowd_asks(asks, CROWD, 4, false, &state);
    c.kv_memory = 25 << 17; /* tables among it */
    c.swap_memory = 64 << 20;
    c.cache_memory = 8 << 20;
    start_with(&l, &c, false);
    crowd_runs(&l, asks, CROWD, &state);
    stored = atomic_load(&l.counters.shelf_stored);
    loaded = atomic_load(&l.counters.shelf_loaded);
    skipped = atomic_load(&l.counters.shelf_skipped);
    print_message("%s: written %llu, read %llu, skipped %llu\n", spec,
                  (unsigned long long) stored, (unsigned long long) loaded,
                  (unsigned long long) skipped);
    assert_true(tr_kv_shelf_sound(l.executor->kv));
    end_engine(&l);
    return stored != 0 && loaded != 0;
}

static void
crowd(void **unused)
{
    static const char *const specs[] = { "full", "int4",
                                         "diffkv:alpha_high=12,alpha_low=0" };
    bool some = false;

    (void) unused;
    for (uint32_t i = 0; i < 3 || !some; i++) {
        assert_true(i < 12);
        some = crowd_of(specs[i % 3], seed ^ (178 + i)) || some;
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(returns),
                                        cmocka_unit_test(crowd) };

    cmocka_set_test_filter(argc > 1 ? argv[1] : "*");
    return cmocka_run_group_tests_name("loop_shelf_cuda", tests, setup,
                                       teardown);
}
