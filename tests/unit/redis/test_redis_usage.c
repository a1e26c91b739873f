/*
 * Usage of tenants by the day: rows, what is to be written, and a table that is
 * full (redis_usage.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/redis/redis_usage.h"

static tr_usage_t *
fresh(void)
{
    tr_usage_t *u = calloc(1, sizeof(*u));

    assert_non_null(u);
    return u;
}

static uint32_t
written(tr_usage_t *u)
{
    uint32_t at = 0, n = 0;

    while (tr_usage_next(u, &at) != NULL) {
        n++;
    }
    return n;
}

static void
sums(void **state)
{
    tr_usage_t *u = fresh();
    const tr_usage_row_t *row;
    uint32_t at = 0;

    (void) state;
    assert_int_equal(written(u), 0);
    assert_true(tr_usage_add(u, 7, 100, 10, 3));
    assert_true(tr_usage_add(u, 7, 100, 5, 4));
    row = tr_usage_next(u, &at);
    assert_non_null(row);
    assert_int_equal(row->requests, 2);
    assert_int_equal(row->in, 15);
    assert_int_equal(row->out, 7);
    assert_null(tr_usage_next(u, &at));
    /* only what has changed, until Redis may have lost it */
    assert_true(tr_usage_add(u, 8, 100, 1, 1));
    assert_true(tr_usage_add(u, 7, 101, 1, 1));
    assert_int_equal(written(u), 2);
    assert_int_equal(written(u), 0);
    tr_usage_again(u);
    assert_int_equal(written(u), 3);
    free(u);
}

/* Rows of days that are over make room, once they were written: neither those of
 * today nor of yesterday, whose sums go on. */
static void
full(void **state)
{
    tr_usage_t *u = fresh();
    uint32_t i;

    (void) state;
    for (i = 0; i < TR_USAGE_ROWS; i++) {
        assert_true(tr_usage_add(u, i, 100, 1, 1));
    }
    assert_false(tr_usage_add(u, TR_USAGE_ROWS, 100, 1, 1));
    assert_true(tr_usage_add(u, 5, 100, 1, 1));
    assert_int_equal(written(u), TR_USAGE_ROWS);
    assert_false(tr_usage_add(u, 5, 101, 1, 1));
    tr_usage_again(u);
    assert_false(tr_usage_add(u, 5, 102, 1, 1)); /* not written yet */
    written(u);
    for (i = 0; i < TR_USAGE_ROWS; i++) {
        assert_true(tr_usage_add(u, i, 102, 2, 2));
        assert_true(tr_usage_add(u, i, 102, 2, 2));
    }
    assert_false(tr_usage_add(u, TR_USAGE_ROWS, 102, 1, 1));
    for (i = 0; i < TR_USAGE_ROWS; i++) {
        assert_int_equal(u->rows[i].day, 102);
        assert_int_equal(u->rows[i].in, 4);
    }
    free(u);
}

static void
days(void **state)
{
    char text[16];

    (void) state;
    tr_usage_day(0, text);
    assert_string_equal(text, "1970-01-01");
    tr_usage_day(19782, text);
    assert_string_equal(text, "2024-02-29");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),
        cmocka_unit_test(full),
        cmocka_unit_test(days),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
