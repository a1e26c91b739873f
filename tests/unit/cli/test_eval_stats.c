/*
 * The intervals of `tokenring eval`: Wilson's and Newcombe's against values
 * worked out elsewhere, coverage by simulation, clusters widen.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cli/eval/eval_stats.h"

static void
near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance)) {
        fail_msg("%.6f is not %.6f within %g", a, b, tolerance);
    }
}

static tr_paired_t
interval(unsigned both, unsigned first, unsigned other, unsigned neither)
{
    tr_pairs_t p = { 0 };
    tr_paired_t out;
    uint64_t cluster = 1;

    while (both + first + other + neither != 0) {
        int kind = both ? 0 : first ? 1 : other ? 2 : 3;

        tr_pairs_add(&p, cluster++, kind == 0 || kind == 1,
                     kind == 0 || kind == 2);
        *(kind == 0   ? &both
          : kind == 1 ? &first
          : kind == 2 ? &other
                      : &neither) -= 1;
    }
    tr_pairs_interval(&p, &out);
    return out;
}

static void
test_wilson_is_as_published(void **state)
{
    double low, high;

    (void) state;
    /* Newcombe 1998, "Two-sided confidence intervals for the single
     * proportion", table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29 */
    tr_wilson(81, 263, &low, &high);
    near(low, 0.2553, 5e-5);
    near(high, 0.3662, 5e-5);
    tr_wilson(15, 148, &low, &high);
    near(low, 0.0624, 5e-5);
    near(high, 0.1605, 5e-5);
    tr_wilson(0, 20, &low, &high);
    near(low, 0, 1e-12);
    near(high, 0.1611, 5e-5);
    tr_wilson(1, 29, &low, &high);
    near(low, 0.0061, 5e-5);
    near(high, 0.1718, 5e-5);
}

/* An interval by direct square and add with phi = 0, where it is 0. */
static void
test_equal_answers_have_an_interval_around_zero(void **state)
{
    tr_paired_t i = interval(300, 0, 0, 0);
    double low, high;

    (void) state;
    tr_wilson(300, 300, &low, &high);
    near(i.diff, 0, 0);
    near(i.low, -(1 - low), 1e-12);
    near(i.high, 1 - low, 1e-12);
    assert_true(i.low > -0.013); /* 300 equal pairs tell 1.3 points apart */
}

static void
test_the_difference_is_newcombes(void **state)
{
    /* the first example of Newcombe 1998, "Improved confidence intervals for the
     * difference between binomial proportions based on paired data", by method
     * 10; there the difference is of the first and the second */
    tr_paired_t i = interval(36, 12, 2, 0);

    (void) state;
    near(-i.diff, 0.2, 1e-12);
    near(-i.high, 0.0569, 6e-5);
    near(-i.low, 0.3404, 6e-5);
}

static void
test_sides_are_mirror_images(void **state)
{
    tr_paired_t a = interval(200, 9, 3, 20), b = interval(200, 3, 9, 20);

    (void) state;
    near(a.diff, -b.diff, 1e-15);
    near(a.low, -b.high, 1e-12);
    near(a.high, -b.low, 1e-12);
    assert_true(a.low < a.diff && a.diff < a.high);
}

static void
test_turns_that_fail_together_widen_the_interval(void **state)
{
    tr_pairs_t apart = { 0 }, together = { 0 };
    tr_paired_t a, b;

    (void) state;
    for (unsigned i = 0; i < 800; i++) {
        int lost = i % 40 == 0; /* 20 turns, each in its own conversation */
        int block = i / 4 % 40 == 0; /* 20 turns, in 5 conversations of 4 */

        tr_pairs_add(&apart, i / 4 + 1, 1, !lost);
        tr_pairs_add(&together, i / 4 + 1, 1, !block);
    }
    tr_pairs_interval(&apart, &a);
    tr_pairs_interval(&together, &b);
    near(a.diff, b.diff, 1e-12);
    assert_true(b.high - b.low > 1.7 * (a.high - a.low));
    assert_true(b.high - b.low < 3 * (a.high - a.low));
}

static void
test_no_pairs_give_no_number(void **state)
{
    tr_pairs_t p = { 0 };
    tr_paired_t out;

    (void) state;
    tr_pairs_interval(&p, &out);
    assert_true(isnan(out.diff) && isnan(out.low) && isnan(out.high));
}

static void
test_intervals_cover_the_truth(void **state)
{
    /* 400 pairs, both right 96%, only the first 2.5%, only the other 0.5% */
    unsigned covered = 0, runs = 2000;

    (void) state;
    srand(1);
    for (unsigned r = 0; r < runs; r++) {
        unsigned n[4] = { 0 };
        tr_paired_t i;

        for (unsigned k = 0; k < 400; k++) {
            int x = rand() % 1000;

            n[x < 960 ? 0 : x < 985 ? 1 : x < 990 ? 2 : 3]++;
        }
        i = interval(n[0], n[1], n[2], n[3]);
        covered += i.low <= -0.02 && -0.02 <= i.high;
    }
    print_message("covered %.3f\n", (double) covered / runs);
    assert_true(covered >= 0.93 * runs && covered <= 0.985 * runs);
}

static void
test_the_bootstrap_is_that_of_a_mean(void **state)
{
    double x[400], low, high;

    (void) state;
    for (int i = 0; i < 400; i++) { /* deviation 1, mean 3 */
        x[i] = 3 + (i % 2 ? 1 : -1);
    }
    tr_bootstrap_mean(x, 400, &low, &high);
    near(low, 3 - 1.96 / 20, 0.02);
    near(high, 3 + 1.96 / 20, 0.02);
    tr_bootstrap_mean(x, 0, &low, &high);
    assert_true(isnan(low) && isnan(high));
}

/* So many pairs, all right, and the interval just holds; one less, and not. */
static void
test_how_many_pairs_a_loss_needs(void **state)
{
    static const double losses[] = { 0.002, 0.01, 0.013, 0.05, 0.5 };

    (void) state;
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        unsigned n = (unsigned) tr_pairs_needed(losses[i]);

        assert_true(interval(n, 0, 0, 0).low >= -losses[i]);
        assert_true(n == 1 || interval(n - 1, 0, 0, 0).low < -losses[i]);
    }
    near(tr_pairs_needed(0.01), 381, 0);
    near(tr_pairs_needed(1), 1, 0);
    assert_true(isinf(tr_pairs_needed(0)));
}

static void
test_divergence(void **state)
{
    const float even[] = { 3, 3, 3, 3 }, one[] = { -400, 500, -400, -400 };
    const float a[] = { 0, 1, 2, -3 }, b[] = { 1, 0, 2.5f, 4 };
    const float shifted[] = { 100, 101, 102, 97 };
    const float none[] = { 0, 1, 2, -INFINITY }, bad[] = { 0, NAN, 2, 1 };
    double za = 0, zb = 0, sum = 0;

    (void) state;
    near(tr_kl_divergence(even, even, 4), 0, 0);
    near(tr_kl_divergence(a, shifted, 4), 0, 1e-12);
    near(tr_kl_divergence(one, even, 4), log(4), 1e-12);
    for (int i = 0; i < 4; i++) {
        za += exp(a[i]);
        zb += exp(b[i]);
    }
    for (int i = 0; i < 4; i++) {
        sum += exp(a[i]) / za * log(exp(a[i]) / za / (exp(b[i]) / zb));
    }
    near(tr_kl_divergence(a, b, 4), sum, 1e-12);
    assert_true(isinf(tr_kl_divergence(a, none, 4)));
    near(tr_kl_divergence(none, none, 4), 0, 0);
    assert_true(isnan(tr_kl_divergence(a, bad, 4)));
    assert_true(isnan(tr_kl_divergence(bad, a, 4)));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wilson_is_as_published),
        cmocka_unit_test(test_equal_answers_have_an_interval_around_zero),
        cmocka_unit_test(test_the_difference_is_newcombes),
        cmocka_unit_test(test_sides_are_mirror_images),
        cmocka_unit_test(test_turns_that_fail_together_widen_the_interval),
        cmocka_unit_test(test_no_pairs_give_no_number),
        cmocka_unit_test(test_intervals_cover_the_truth),
        cmocka_unit_test(test_the_bootstrap_is_that_of_a_mean),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_how_many_pairs_a_loss_needs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
