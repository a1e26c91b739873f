/*
 * Which policy `tokenring calibrate` takes: the least memory within a tolerance,
 * or what loses least in a memory; what has no number never; and the curve that
 * it prints and writes, in the order of memory.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/eval/calibrate_curve.h"

#define POINTS 6u

/* Memory, mean difference, points lost in the worst family, KL. */
static tr_curve_point_t
point(const char *spec, double memory, double diff, double lost, double kl)
{
    tr_curve_point_t p = { .accuracy = 1 + diff,
                           .kv_ratio = memory,
                           .diff = { diff, diff - 0.01, diff + 0.01 },
                           .lost = lost,
                           .lost_low = lost - 1,
                           .lost_high = lost + 1,
                           .with_kl = !isnan(kl),
                           .kl = kl,
                           .kl_low = kl / 2,
                           .kl_high = kl * 2,
                           .perplexity = 1 + kl };

    snprintf(p.spec, sizeof(p.spec), "%s", spec);
    snprintf(p.family, sizeof(p.family), "sums");
    return p;
}

static const char *
best_of(const tr_curve_point_t *p, uint32_t n, tr_curve_goal_t goal)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++) {
        if (tr_curve_better(&p[i], &p[best], &goal)) {
            best = i;
        }
        assert_false(tr_curve_better(&p[i], &p[i], &goal));
    }
    return p[best].spec;
}

static void
test_what_is_chosen(void **state)
{
    const tr_curve_point_t p[] = {
        point("nothing", 0.10, NAN, NAN, NAN),
        point("least", 0.20, -0.050, 6.0, NAN),
        point("low", 0.25, -0.010, 1.5, NAN),
        point("middle", 0.30, -0.004, 0.5, NAN),
        point("same", 0.35, -0.004, 0.9, NAN),
        point("high", 0.45, 0.000, 0.1, NAN),
    };

    (void) state;
    assert_string_equal(best_of(p, POINTS, (tr_curve_goal_t){ 1, 0 }),
                        "middle");
    assert_string_equal(best_of(p, POINTS, (tr_curve_goal_t){ 2, 0 }), "low");
    assert_string_equal(best_of(p, POINTS, (tr_curve_goal_t){ 0.05, 0 }),
                        "high");
    /* what a memory allows; of equals what has more bits */
    assert_string_equal(best_of(p, POINTS, (tr_curve_goal_t){ 1, 0.4 }),
                        "same");
    assert_string_equal(best_of(p, POINTS, (tr_curve_goal_t){ 1, 0.3 }),
                        "middle");
    assert_string_equal(best_of(p, POINTS, (tr_curve_goal_t){ 1, 1 }), "high");
    assert_string_equal(best_of(p, POINTS, (tr_curve_goal_t){ 1, 0.27 }),
                        "low");
    /* nothing fits: the nearest */
    assert_string_equal(best_of(p + 1, POINTS - 1,
                                (tr_curve_goal_t){ 1, 0.15 }),
                        "least");
    /* what fits without a number is the last choice */
    assert_string_equal(best_of(p, 2, (tr_curve_goal_t){ 1, 0.25 }), "least");
}

/* With a text, the divergence decides, but not against the tolerance. */
static void
test_divergence_decides(void **state)
{
    const tr_curve_point_t p[] = {
        point("a", 0.25, 0.000, 0.0, 0.030),
        point("b", 0.28, -0.002, 0.4, 0.010),
        point("c", 0.29, 0.000, 3.0, 0.001),
        point("d", 0.50, 0.000, 0.0, 0.0001),
    };

    (void) state;
    assert_string_equal(best_of(p, 4, (tr_curve_goal_t){ 1, 0.3 }), "b");
    assert_string_equal(best_of(p, 4, (tr_curve_goal_t){ 5, 0.3 }), "c");
    assert_string_equal(best_of(p, 4, (tr_curve_goal_t){ 1, 0 }), "a");
}

static void
test_the_curve(void **state)
{
    static tr_curve_t curve;
    const tr_curve_goal_t goal = { 1, 0.4 };
    const tr_curve_point_t p[] = {
        point("high", 0.45, 0, 0, 0.001),   point("low", 0.25, 0, 0.5, 0.020),
        point("worse", 0.30, 0, 2, 0.030),  point("low", 0.25, 0, 0.5, 0.020),
        point("broken", 0.2, 0, NAN, 0.05), point("even", 0.25, 0, 0, 0.021),
    };
    const char *order[] = { "broken", "low", "even", "worse", "high" };
    const bool dominated[] = { false, false, true, true, false };
    char *text = NULL, *at;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    json_t *all;

    (void) state;
    curve.n = 0;
    for (uint32_t i = 0; i < POINTS; i++) {
        tr_curve_add(&curve, &p[i]);
    }
    assert_int_equal(curve.n, 5);
    tr_curve_print(&curve, &goal, f);
    fclose(f);
    all = tr_curve_json(&curve, &goal);
    at = text;
    for (uint32_t i = 0; i < 5; i++) {
        const json_t *o = json_array_get(all, i);

        assert_string_equal(json_string_value(json_object_get(o, "policy")),
                            order[i]);
        assert_int_equal(json_is_true(json_object_get(o, "dominated")),
                         dominated[i]);
        at = strstr(at + 1, order[i]);
        assert_non_null(at);
    }
    assert_non_null(strstr(text, "low\n"));
    assert_non_null(strstr(text, "even, another is better\n"));
    assert_non_null(
        strstr(text, "worse, another is better, beyond the tolerance\n"));
    assert_non_null(strstr(text, "high, beyond the memory\n"));
    assert_true(json_is_null(
        json_object_get(json_array_get(all, 0), "most_lost_points")));
    assert_true(json_real_value(json_object_get(json_array_get(all, 1), "kl"))
                == 0.020);
    json_decref(all);
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_chosen),
        cmocka_unit_test(test_divergence_decides),
        cmocka_unit_test(test_the_curve),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
