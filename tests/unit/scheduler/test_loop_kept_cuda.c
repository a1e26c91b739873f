/*
 * What a copy of a compressed prefix holds on a device, token by token
 * (test_loop_kept.c): requests to a real model leave their caches behind, and
 * cuts of these, and of cuts, at any position, have in every head exactly the
 * tokens in front of it, with codes, metadata, level, scores and history.  What
 * the host counts is what is there, and at the end no page is missing.  Then what is
 * reported: tokens that were not computed, exactly.  And many at once that begin
 * alike, in a pool that is too small for them, with aborts and pauses.
 *
 *   TR_PREFIX_OPS=N   operations of each policy (default 60)
 *   TR_CUDA_LIBRARY   a GPU's library instead of the software device
 *   test_loop_kept_cuda crowd   one of them
 */
#include "tests/unit/fixtures/kept_cuda_fixture.h"

static ask_t asks[REQUESTS];
static const tr_prefix_key_t nobodys;

static uint32_t
operations(void)
{
    const char *n = getenv("TR_PREFIX_OPS");
    uint64_t all = n != NULL ? strtoull(n, NULL, 10) : 60;

    return (uint32_t) (all > 5000 ? 5000 : all); /* each is long */
}

/* Requests that have ended leave prefixes. */
static void
run_engine(fixture_loop_t *l, const char *spec, uint32_t prompts)
{
    tr_config_t c = cuda_settings(spec);

    start_with(l, &c, false);
    leave_prefixes(l, asks, prompts);
    settle(l->executor);
}

/* ---- cuts --------------------------------------------------------------- */

/* One prefix is found, cut, compared, and kept or dropped. */
static void
cut_once(seen_t *seen, uint64_t *state, uint32_t *kept, uint32_t *shorter)
{
    tr_executor_t *e = &seen->x->base;
    tr_kv_cache_t *kv = e->kv;
    tr_prefix_key_t key = nobodys;
    int32_t tokens[600], slot, from;
    uint32_t text = rng_below(state, 4), n = 33 + rng_below(state, 450), k;
    tr_kv_found_t found, was;
    uint64_t left;

    for (k = 0; k < n; k++) {
        tokens[k] = (int32_t) (300 + (k * 37 + text * 101) % 3000);
    }
    tr_kv_time(kv, kv->reuse->now + 1);
    left = tr_kv_free_pages(kv);
    tr_kv_find(kv, NULL, &key, tokens, n, &found);
    if (found.kept == 0) {
        return;
    }
    assert_true(tr_kv_free_pages(kv) < left); /* what is pinned is not free */
    from = (int32_t) found.kept - 1;
    assert_true(found.tokens <= n
                && found.cut == (found.tokens < kv->reuse->kept[from].n));
    *shorter += found.cut;
    n = found.tokens;
    was = found;
    slot = tr_kv_open(kv, NULL);
    assert_true(slot >= 0);
    assert_int_equal(tr_kv_adopt(kv, slot, &key, &found), TR_OK);
    assert_true(tr_kv_sound(kv));
    assert_true(tr_kv_held_pages(kv, slot) <= was.own);
    settle(e);
    assert_true(tr_kv_borrowed_pages(kv, slot) >= was.lent);
    look(seen);
    compare_slots(&seen->kv, from, &seen->kv, slot, seen->kv.m.seq[from].base,
                  n);
    compare_history(seen, slot, tokens, n);
    if (rng_below(state, 2) == 0) {
        /* a prefix of what is kept is not kept beside it */
        tokens[n - 1] = (int32_t) (4000 + rng_below(state, 9));
        assert_int_equal(seen->x->cuda->copy(
                             &seen->x->stream,
                             seen->x->model->history.token
                                 + (size_t) slot * seen->x->model->history.len
                                 + n - 1,
                             memcpy(seen->history, &tokens[n - 1], 4), 4),
                         0);
        assert_int_equal(seen->x->cuda->stream_wait(&seen->x->stream), 0);
        tr_kv_keep(kv, slot, tokens, n, true);
        *kept += 1;
    }
    tr_kv_close(kv, slot);
    if (rng_below(state, 16) == 0) {
        tr_kv_kept_evict(kv, UINT64_MAX);
    }
}

static void
cuts_of(const char *spec)
{
    uint64_t state = seed + 9;
    uint32_t kept = 0, shorter = 0, i;
    fixture_loop_t l;
    seen_t seen;

    run_engine(&l, spec, 4);
    assert_true(l.executor->kv->reuse->n_kept >= 3);
    seen_open(&seen, l.executor);
    for (i = 0; i < operations()
                || ((kept <= 10 || shorter <= 10) && i < 20 * operations());
         i++) {
        cut_once(&seen, &state, &kept, &shorter);
        settle(l.executor);
    }
    print_message("%s: kept %u, cut %u\n", spec, kept, shorter);
    assert_true(kept > 10 && shorter > 10);
    seen_close(&seen);
    end_engine(&l);
}

static void
cuts(void **unused)
{
    (void) unused;
    cuts_of("diffkv:alpha_high=12,alpha_low=0");
    cuts_of("diffkv:levels=8/8+8/4+4/2,alpha_high=2,alpha_low=0,sinks=4");
    cuts_of("uniform:levels=8/4,window=32");
    cuts_of("int4");
}

/* ---- what is reported --------------------------------------------------- */

static void
exactly_of(const char *spec)
{
    tr_config_t c = cuda_settings(spec);
    fixture_loop_t l;

    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < 8; i++) {
        asks[i].prompt_len = asks[i].same = 300;
        asks[i].n = 1;
        asks[i].reuse = true;
        asks[i].params = plain(1, 30);
    }
    start_with(&l, &c, false);
    assert_int_equal(cached(&l, asks, 0), 0);
    assert_int_equal(cached(&l, asks, 1), 299); /* all but the last token */
    asks[2].same = 200;
    assert_int_equal(cached(&l, asks, 2), 200);
    asks[3].key.len = 1; /* somebody else's */
    assert_int_equal(cached(&l, asks, 3), 0);
    asks[4].n = 3; /* they copy their own prompt */
    assert_int_equal(cached(&l, asks, 4), 0);
    asks[5].reuse = false;
    assert_int_equal(cached(&l, asks, 5), 0);
    asks[6].prompt_len = asks[6].same = 250; /* the beginning alone */
    assert_int_equal(cached(&l, asks, 6), 249);
    asks[7].params.max_tokens = 1; /* ends with its prompt */
    assert_int_equal(cached(&l, asks, 7), 299);
    assert_int_equal(atomic_load(&l.counters.prefix_tokens),
                     299 + 200 + 249 + 299);
    assert_int_equal(atomic_load(&l.counters.prefill_tokens),
                     /* each choice of 4 begins with the prompt's last token */
                     300 + 1 + 100 + 300 + (300 + 2) + 300 + 1 + 1);
    assert_null(tr_loop_stop(l.loop));
    end_engine(&l);
}

static void
exactly(void **unused)
{
    (void) unused;
    exactly_of("diffkv:alpha_high=12,alpha_low=0");
    exactly_of("uniform:levels=8/4");
}

/* ---- many at once ------------------------------------------------------- */

#define CROWD 18u

/* Did somebody find something, and did something make room? */
static bool
crowd_of(const char *spec, uint64_t state)
{
    tr_config_t c = cuda_settings(spec);
    uint64_t found, evicted;
    fixture_loop_t l;

    crowd_asks(asks, CROWD, 2, true, &state);
    c.kv_memory = 3 << 20;
    c.swap_memory = 64 << 20;
    start_with(&l, &c, false);
    crowd_runs(&l, asks, CROWD, &state);
    found = atomic_load(&l.counters.prefix_tokens);
    evicted = atomic_load(&l.counters.prefix_evicted);
    print_message("%s: found %llu, evicted %llu, preemptions %llu\n", spec,
                  (unsigned long long) found, (unsigned long long) evicted,
                  (unsigned long long) atomic_load(&l.counters.preemptions));
    end_engine(&l);
    return found != 0 && evicted != 0;
}

static void
crowd(void **unused)
{
    static const char *const specs[] = { "diffkv:alpha_high=12,alpha_low=0",
                                         "int4" };

    (void) unused;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t tries = 0;

        while (!crowd_of(specs[i], seed ^ (77 + tries))) {
            assert_true(++tries < 6);
        }
    }
}

/* Prompts that are compressed behind each 32 tokens of them. */
static void
stages(void **unused)
{
    (void) unused;
    stages_taken = 0;
    prefill_level = "8/4";
    for (uint32_t i = 0; i < 2; i++) {
        (void) crowd_of("diffkv:alpha_high=12,alpha_low=0", seed ^ (99 + i));
        (void) crowd_of("uniform:levels=8/4", seed ^ (199 + i));
    }
    prefill_level = NULL;
    assert_true(stages_taken > 0);
}

/* What was found is not charged for as if it was computed. */
static void
few_pages(void **unused)
{
    (void) unused;
    find_in_few_pages(cuda_settings("uniform:levels=8/4"), asks);
    find_in_few_pages(cuda_settings("int4"), asks);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cuts),
                                        cmocka_unit_test(exactly),
                                        cmocka_unit_test(few_pages),
                                        cmocka_unit_test(crowd),
                                        cmocka_unit_test(stages) };

    cmocka_set_test_filter(argc > 1 ? argv[1] : "*");
    return cmocka_run_group_tests_name("loop_kept_cuda", tests, setup,
                                       teardown);
}
