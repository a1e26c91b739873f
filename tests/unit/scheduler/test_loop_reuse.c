/*
 * Reuse of prefixes through the step loop, with a real model on the CPU: many
 * requests that begin alike, in a pool that is too small for them, with
 * pauses, aborts, echo, logprobs and several choices.  Every answer has the same
 * bits as when it is computed alone from its first token.  Then what is reported:
 * tokens that were not computed, exactly.
 */
#include "tests/unit/fixtures/policy_fixture.h"

static ask_t asks[REQUESTS];

/* What a request is about: few texts, long and short beginnings. */
static void
make_asks(uint32_t n)
{
    uint64_t state = seed ^ 77;

    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < n; i++) {
        ask_t *a = &asks[i];

        a->prompt_len = 20 + rng_below(&state, 200);
        a->text = rng_below(&state, 3);
        a->same = rng_below(&state, a->prompt_len + 40);
        a->n = 1 + (rng_below(&state, 4) == 0) * rng_below(&state, CHOICES);
        a->reuse = rng_below(&state, 8) != 0;
        a->key.len = rng_below(&state, 4) == 0; /* somebody else's */
        a->echo = rng_below(&state, 8) == 0;
        a->params = plain(i, 8 + rng_below(&state, 30));
        if (rng_below(&state, 4) == 0) {
            a->params.logprobs = 2;
        }
    }
}

static void
same_bits(void **unused)
{
    made_way_t done;

    (void) unused;
    make_asks(REQUESTS);
    run_alone("full", asks, REQUESTS);
    done = run_together("full", asks, REQUESTS, 4 << 20, 0, false);
    print_message("reused %u, cuts %u, evicted %u\n", (uint32_t) done.reused,
                  (uint32_t) done.cuts, (uint32_t) done.evicted);
    compare("full", asks, REQUESTS);
    assert_true(done.preemptions != 0 && done.evicted != 0);
    assert_true(done.reused != 0 && done.cuts != 0);
}

/* Beside requests whose caches are compressed and swapped out. */
static void
among_others(void **unused)
{
    tr_config_t c = settings("full", 5 << 20, 64 << 20);
    uint64_t state = seed + 5;
    uint32_t turns = 0;
    fixture_loop_t l;

    (void) unused;
    make_asks(REQUESTS);
    for (uint32_t i = 1; i < REQUESTS; i += 2) {
        asks[i].reuse = false;
    }
    snprintf(c.kv_policies, sizeof(c.kv_policies), "uniform:levels=8/4");
    start_with(&l, &c, false);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        submit(&l, &asks[i], i);
    }
    while (l.open != 0) {
        if (!turn(&l, asks, true) || ++turns % 50 == 0 || turns >= 400) {
            resume(&l);
        } else {
            disturb(&l, asks, REQUESTS, &state);
        }
    }
    stop(&l);
}

/* ---- what is reported --------------------------------------------------- */

/* Each count by hand: 16-bit pages of models/pocket alone hold 24 tokens, whose
 * borders do not matter. */
static void
exactly(void **unused)
{
    tr_config_t c = settings("full", 32 << 20, 0);
    fixture_loop_t l;

    (void) unused;
    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < 12; i++) {
        asks[i].prompt_len = 150;
        asks[i].same = 150;
        asks[i].n = 1;
        asks[i].reuse = true;
        asks[i].params = plain(1, 30);
        asks[i].params.temperature = 0;
    }
    start_with(&l, &c, false);
    assert_int_equal(cached(&l, asks, 0), 0);
    assert_int_equal(cached(&l, asks, 1), 149); /* all but the last token */
    asks[2].same = 101;
    assert_int_equal(cached(&l, asks, 2), 101);
    asks[3].prompt_len = asks[3].same = 60; /* the beginning alone */
    assert_int_equal(cached(&l, asks, 3), 59);
    asks[4].reuse = false; /* neither reads */
    asks[4].text = 2;
    assert_int_equal(cached(&l, asks, 4), 0);
    asks[5].text = 2; /* nor writes */
    assert_int_equal(cached(&l, asks, 5), 0);
    asks[6].key.len = 1; /* somebody else's */
    assert_int_equal(cached(&l, asks, 6), 0);
    asks[7].n = 3; /* counts once */
    assert_int_equal(cached(&l, asks, 7), 149);
    asks[8].echo = true; /* no token's probability is known without it */
    asks[8].params.logprobs = 1;
    assert_int_equal(cached(&l, asks, 8), 0);
    asks[9].echo = true;
    assert_int_equal(cached(&l, asks, 9), 149);
    asks[10].params.max_tokens = 0;
    assert_int_equal(cached(&l, asks, 10), 0);
    assert_int_equal(atomic_load(&l.counters.prefix_queries), 8);
    assert_int_equal(atomic_load(&l.counters.prefix_hits), 5);
    assert_int_equal(atomic_load(&l.counters.prefix_tokens),
                     149 + 101 + 59 + 149 + 149);
    assert_int_equal(atomic_load(&l.counters.prefill_tokens),
                     /* requests 0 to 9, and a token for each choice of 7 */
                     150 + 1 + 49 + 1 + 150 + 150 + 150 + 3 + 150 + 1);
    stop(&l);
}

/* Twenty prompts at once that begin alike: one computes what they share, the
 * others wait for it. */
static void
waiters(void **unused)
{
    tr_config_t c = settings("full", 64 << 20, 0);
    uint64_t computed;
    fixture_loop_t l;

    (void) unused;
    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < 20; i++) {
        asks[i].prompt_len = 480 + i % 5;
        asks[i].same = 460;
        asks[i].n = 1;
        asks[i].reuse = true;
        asks[i].params = plain(i, 4);
    }
    run_alone("full", asks, 20);
    start_with(&l, &c, false);
    for (uint32_t i = 0; i < 20; i++) {
        submit(&l, &asks[i], i);
    }
    while (l.open != 0) {
        turn(&l, asks, true);
    }
    compare("full", asks, 20);
    computed = atomic_load(&l.counters.prefill_tokens);
    /* whole blocks of a running prompt are shared: at most 24 tokens less */
    assert_in_range(computed, 460 + 20 * 20, 460 + 20 * (24 + 24) + 100);
    stop(&l);
}

/* Prefixes that nobody uses go by themselves, also while nothing happens. */
static void
old_ones_go(void **unused)
{
    tr_config_t c = settings("full", 32 << 20, 0);
    fixture_loop_t l;

    (void) unused;
    memset(asks, 0, sizeof(asks));
    asks[0].prompt_len = asks[0].same = 100;
    asks[0].n = 1;
    asks[0].reuse = true;
    asks[0].params = plain(1, 3);
    asks[1] = asks[0];
    c.cache_ttl_us = 300000;
    start_with(&l, &c, false);
    assert_int_equal(cached(&l, asks, 0), 0);
    for (uint32_t i = 0; i < 6000
                         && (atomic_load(&l.counters.prefix_expired) == 0
                             || atomic_load(&l.counters.kv_cached_pages) != 0);
         i++) {
        usleep(10000);
    }
    assert_int_equal(atomic_load(&l.counters.kv_cached_pages), 0);
    assert_int_equal(atomic_load(&l.counters.prefix_blocks), 0);
    assert_true(atomic_load(&l.counters.prefix_expired) != 0);
    assert_int_equal(cached(&l, asks, 1), 0);
    stop(&l);
}

/* A prompt that takes every page, asked twice: what the second one finds must
 * not be what it has no room beside. */
static void
fills_the_pool(void **unused)
{
    tr_config_t c = settings("full", 2 << 20, 0);
    fixture_loop_t l;

    (void) unused;
    memset(asks, 0, sizeof(asks));
    start_with(&l, &c, false);
    assert_in_range(l.executor->max_model_len, 100, 599); /* the pool's */
    for (uint32_t i = 0; i < 2; i++) {
        asks[i].prompt_len = asks[i].same = l.executor->max_model_len - 1;
        asks[i].n = 1;
        asks[i].reuse = true;
        asks[i].params = plain(1, 1);
        submit(&l, &asks[i], i);
        for (uint32_t turns = 0; l.open != 0; turns++) {
            if (turns == 6000) { /* of at most 20 ms */
                fail_msg("request %u waits for pages that it pins", i);
            }
            turn(&l, asks, true);
        }
    }
    assert_in_range(asks[1].last.cached_tokens, asks[1].prompt_len / 2,
                    asks[1].prompt_len - 1);
    stop(&l);
}

/* ---- compressed --------------------------------------------------------- */

static void
ask_compressed(uint32_t n)
{
    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < n; i++) {
        asks[i].prompt_len = asks[i].same = 400;
        asks[i].n = 1;
        asks[i].reuse = true;
        asks[i].params = plain(1, 30);
        asks[i].params.logprobs = 2;
    }
}

static void
start_compressed(fixture_loop_t *l, const char *spec, uint64_t memory)
{
    tr_config_t c = settings(spec, memory, 16 << 20);

    strcpy(c.kv_reuse, "yes");
    start_with(l, &c, false);
}

/* Counts by hand.  How often a token was cached depends on nothing else. */
static void
counts_of(const char *spec)
{
    fixture_loop_t l;

    ask_compressed(8);
    start_compressed(&l, spec, 32 << 20);
    assert_int_equal(cached(&l, asks, 0), 0);
    assert_int_equal(cached(&l, asks, 1), 399); /* all but the last token */
    asks[2].same = 301;
    assert_int_equal(cached(&l, asks, 2), 301);
    asks[3].prompt_len = asks[3].same = 350; /* the beginning alone */
    assert_int_equal(cached(&l, asks, 3), 349);
    asks[4].reuse = false;
    assert_int_equal(cached(&l, asks, 4), 0);
    asks[5].key.len = 1; /* somebody else's */
    assert_int_equal(cached(&l, asks, 5), 0);
    asks[6].same = 20; /* not worth it */
    assert_int_equal(cached(&l, asks, 6), 0);
    asks[7].n = 2; /* choices copy their own prompt */
    assert_int_equal(cached(&l, asks, 7), 0);
    assert_true(atomic_load(&l.counters.kv_cached_pages) != 0);
    assert_true(tr_kv_sound(l.executor->kv));
    stop(&l);
}

static void
compressed_counts(void **unused)
{
    (void) unused;
    counts_of("uniform:levels=8/4");
    counts_of("uniform:levels=8/8,window=32,sinks=4");
    counts_of("int4");
    counts_of("diffkv:alpha_high=12,alpha_low=0");
    counts_of("diffkv:levels=8/8+8/4+4/2,alpha_high=2,alpha_low=0");
}

/* Under one level, a copy has the same bits whatever it was cut from: behind
 * other ends and other answers, in the middle of a page or of the window. */
static void
cuts_alike(const char *spec, uint32_t cut)
{
    answer_t first;
    uint32_t i;

    for (i = 0; i < 2; i++) {
        fixture_loop_t l;

        ask_compressed(4);
        asks[i].same = asks[3].same = cut;
        asks[i].prompt_len = cut + 30 + 150 * i;
        start_compressed(&l, spec, 32 << 20);
        assert_int_equal(cached(&l, asks, i), 0);
        assert_int_equal(cached(&l, asks, 3), cut);
        if (i != 0) {
            assert_int_equal(asks[3].together[0].len, first.len);
            assert_int_equal(asks[3].together[0].logprobs, first.logprobs);
            assert_memory_equal(asks[3].together[0].text, first.text,
                                first.len);
        }
        first = asks[3].together[0];
        stop(&l);
    }
}

static void
compressed_bits(void **unused)
{
    (void) unused;
    cuts_alike("uniform:levels=8/4", 200);
    cuts_alike("uniform:levels=4/2", 333);
    cuts_alike("uniform:levels=8/8,window=16,sinks=4", 257);
    cuts_alike("int4", 144);
}

/* A crowd in a pool that is too small for it, with pauses and aborts. */
static void
compressed_requests(void **unused)
{
    static const char *const specs[] = {
        "diffkv:alpha_high=12,alpha_low=0", "uniform:levels=8/4",
        "diffkv:alpha_high=1,alpha_low=0,sinks=4"
    };

    uint32_t hits = 0;

    (void) unused;
    for (uint32_t k = 0; k < 3; k++) {
        uint64_t state = seed + k;
        uint32_t turns = 0;
        fixture_loop_t l;

        make_asks(REQUESTS);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            asks[i].prompt_len += 100;
            asks[i].same += rng_below(&state, 150);
        }
        start_compressed(&l, specs[k], 5 << 20);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            submit(&l, &asks[i], i);
        }
        while (l.open != 0) {
            if (!turn(&l, asks, true) || ++turns % 50 == 0 || turns >= 400) {
                resume(&l);
            } else {
                disturb(&l, asks, REQUESTS, &state);
            }
        }
        print_message("%s: hits %u, cuts %u, evicted %u\n", specs[k],
                      (uint32_t) atomic_load(&l.counters.prefix_hits),
                      (uint32_t) atomic_load(&l.counters.prefix_cuts),
                      (uint32_t) atomic_load(&l.counters.prefix_evicted));
        hits += (uint32_t) atomic_load(&l.counters.prefix_hits);
        assert_true(atomic_load(&l.counters.prefix_evicted) != 0);
        stop(&l);
    }
    assert_true(hits != 0); /* of few, one policy may have none */
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(exactly),
                                        cmocka_unit_test(waiters),
                                        cmocka_unit_test(old_ones_go),
                                        cmocka_unit_test(fills_the_pool),
                                        cmocka_unit_test(same_bits),
                                        cmocka_unit_test(among_others),
                                        cmocka_unit_test(compressed_counts),
                                        cmocka_unit_test(compressed_bits),
                                        cmocka_unit_test(compressed_requests) };

    return cmocka_run_group_tests_name("loop_reuse", tests, setup, teardown);
}
