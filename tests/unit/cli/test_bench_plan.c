/*
 * The plan and the arithmetic of `tokenring bench`: lengths are what was asked
 * for, runs repeat, percentiles are by nearest rank.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cli/bench.h"

static void
test_lengths_parse_or_are_refused(void **state)
{
    static const char *const good[] = { "1",   "128",           "64:256",
                                        "7:7", "normal:256:64", "normal:10:0" };
    static const char *const bad[] = {
        "",   "0",       "-1",       "x",          "12x",   "9:3", "0:4", "3:",
        ":3", "normal:", "normal:5", "normal:0:1", "1:2:3", "nan", "inf", "1e99"
    };
    tr_length_t l;
    size_t i;

    (void) state;
    for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(tr_length_parse(good[i], &l));
    }
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(tr_length_parse(bad[i], &l));
    }
}

static void
test_uniform_lengths_reach_both_ends_and_nothing_else(void **state)
{
    tr_rng_t r = { 7 };
    tr_length_t l;
    unsigned seen[6] = { 0 }, i;

    (void) state;
    assert_true(tr_length_parse("3:5", &l));
    for (i = 0; i < 3000; i++) {
        uint32_t n = tr_length_draw(&l, &r);

        assert_in_range(n, 3, 5);
        seen[n]++;
    }
    for (i = 3; i <= 5; i++) {
        assert_in_range(seen[i], 850, 1150);
    }
}

static void
test_normal_lengths_have_their_mean_and_deviation(void **state)
{
    tr_rng_t r = { 1 };
    tr_length_t l;
    double sum = 0, squares = 0, mean, n = 20000;
    int i;

    (void) state;
    assert_true(tr_length_parse("normal:200:20", &l));
    for (i = 0; i < (int) n; i++) {
        double x = tr_length_draw(&l, &r);

        sum += x;
        squares += x * x;
    }
    mean = sum / n;
    assert_true(fabs(mean - 200) < 1);
    assert_true(fabs(sqrt(squares / n - mean * mean) - 20) < 1);
    assert_true(tr_length_parse("normal:1:50", &l));
    for (i = 0; i < 1000; i++) {
        assert_true(tr_length_draw(&l, &r) >= 1);
    }
}

static void
test_poisson_gaps_have_mean_one_and_the_right_tail(void **state)
{
    tr_rng_t r = { 42 };
    double sum = 0, n = 20000;
    int i, over_two = 0;

    (void) state;
    for (i = 0; i < (int) n; i++) {
        double x = tr_rng_exponential(&r);

        assert_true(x >= 0);
        sum += x;
        over_two += x > 2;
    }
    assert_true(fabs(sum / n - 1) < 0.03);
    assert_true(fabs(over_two / n - exp(-2)) < 0.01);
}

static void
test_the_same_seed_gives_the_same_run(void **state)
{
    tr_rng_t a = { 5 }, b = { 5 }, c = { 6 };
    int i, differ = 0;

    (void) state;
    for (i = 0; i < 100; i++) {
        uint64_t x = tr_rng_next(&a);

        assert_true(x == tr_rng_next(&b));
        differ += x != tr_rng_next(&c);
    }
    assert_int_equal(differ, 100);
}

static void
test_percentiles_are_by_nearest_rank(void **state)
{
    tr_times_t t = { 0 };
    uint64_t i;

    (void) state;
    assert_int_equal(tr_times_percentile(&t, 0.5), 0);
    for (i = 100; i >= 1; i--) {
        tr_times_add(&t, i);
    }
    assert_int_equal(tr_times_percentile(&t, 0), 1);
    assert_int_equal(tr_times_percentile(&t, 0.5), 50);
    assert_int_equal(tr_times_percentile(&t, 0.99), 99);
    assert_int_equal(tr_times_percentile(&t, 1), 100);
    {
        tr_bench_result_t r = { .ttft = t };

        tr_bench_free(&r);
    }
}

static void
test_errors_are_counted_by_kind(void **state)
{
    tr_bench_result_t r = { 0 };
    char kind[32];
    int i;

    (void) state;
    tr_bench_error(&r, "http_429", "first");
    tr_bench_error(&r, "connect", "nobody");
    tr_bench_error(&r, "http_429", "second");
    assert_int_equal(r.n_errors, 2);
    assert_int_equal(r.errors[0].n, 2);
    assert_string_equal(r.errors[0].example, "first");
    for (i = 0; i < 100; i++) {
        snprintf(kind, sizeof(kind), "kind_%d", i);
        tr_bench_error(&r, kind, "");
    }
    assert_int_equal(r.n_errors, TR_BENCH_KINDS);
    assert_string_equal(r.errors[TR_BENCH_KINDS - 1].kind, "others");
    assert_int_equal(r.bad, 103);
    assert_int_equal(r.errors[TR_BENCH_KINDS - 1].n,
                     100 - (TR_BENCH_KINDS - 3));
}

/* So much later, with a token a millisecond since the beginning. */
static bool
tell(tr_steady_t *s, uint64_t *now, uint64_t ms, uint32_t streams)
{
    *now += ms * 1000;
    return tr_steady_tell(s, *now, streams, *now / 1000);
}

static void
test_the_steady_state_begins_when_no_more_streams_come(void **state)
{
    tr_steady_t s = { .seconds = 2 };
    uint64_t now = 1000000;

    (void) state;
    assert_false(tell(&s, &now, 0, 0)); /* nobody runs yet */
    assert_false(tell(&s, &now, 9000, 0));
    assert_int_equal(s.begin_us, 0);
    for (uint32_t n = 10; n <= 300; n += 10) {
        assert_false(tell(&s, &now, 1000, n));
    }
    assert_int_equal(s.grown_us, now);
    for (uint32_t i = 1; i < 5; i++) { /* 1% up and down is no growth */
        assert_false(tell(&s, &now, 1000, 298 + 5 * (i % 2)));
        assert_int_equal(s.begin_us, 0);
    }
    assert_false(tell(&s, &now, 1000, 300));
    assert_int_equal(s.begin_us, now);
    assert_false(tell(&s, &now, 1000, 400)); /* more after all: once more */
    assert_int_equal(s.begin_us, 0);
    assert_false(tell(&s, &now, 5000, 390));
    assert_int_equal(s.begin_tokens, now / 1000);
    assert_false(tell(&s, &now, 1999, 390));
    assert_true(tell(&s, &now, 1, 390));
    assert_int_equal(s.end_us - s.begin_us, 2000000);
    assert_int_equal(s.end_tokens - s.begin_tokens, 2000);
    assert_int_equal(s.streams, 400);
    assert_int_equal(s.end_us, now);
    assert_true(tell(&s, &now, 1000, 500)); /* it stays so */
    assert_int_equal(s.end_us, now - 1000000);
}

static void
test_nothing_is_steady_unasked(void **state)
{
    tr_steady_t s = { .seconds = 0 };

    (void) state;
    assert_false(tr_steady_tell(&s, 1, 4, 0));
    assert_false(tr_steady_tell(&s, 1ull << 40, 4, 100));
}

static void
test_staggered_requests_have_every_age(void **state)
{
    (void) state;
    for (uint64_t n = 10; n <= 1000; n *= 10) {
        uint32_t in[10] = { 0 };

        for (uint64_t i = 0; i < n; i++) {
            double age = tr_stagger(i);

            assert_true(age >= 0 && age < 1);
            in[(int) (age * 10)]++;
        }
        for (int k = 0; k < 10; k++) {
            assert_in_range(in[k], n / 10 - 1, n / 10 + 1);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths_parse_or_are_refused),
        cmocka_unit_test(test_uniform_lengths_reach_both_ends_and_nothing_else),
        cmocka_unit_test(test_normal_lengths_have_their_mean_and_deviation),
        cmocka_unit_test(test_poisson_gaps_have_mean_one_and_the_right_tail),
        cmocka_unit_test(test_the_same_seed_gives_the_same_run),
        cmocka_unit_test(test_percentiles_are_by_nearest_rank),
        cmocka_unit_test(test_errors_are_counted_by_kind),
        cmocka_unit_test(
            test_the_steady_state_begins_when_no_more_streams_come),
        cmocka_unit_test(test_nothing_is_steady_unasked),
        cmocka_unit_test(test_staggered_requests_have_every_age),
    };

    return cmocka_run_group_tests_name("bench_plan", tests, NULL, NULL);
}
