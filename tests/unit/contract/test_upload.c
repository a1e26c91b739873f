/*
 * How fast a body comes, and which one ends where there is no room.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tokenring/upload.h>

#define MIB ((uint64_t) 1 << 20)

/* Against a list of all that came. */
static void
test_rate_is_that_of_the_last_seconds(void **state)
{
    static uint64_t when[1000], size[1000];
    uint64_t start = 12345678, now = start, sum, from, time;
    unsigned i, k, seconds;
    tr_pace_t p;

    (void) state;
    tr_pace_start(&p, now);
    assert_true(tr_pace_rate(&p, now, 5) == UINT64_MAX);
    for (i = 0; i < 1000; i++) {
        now += (uint64_t) (rand() % 100 == 0 ? rand() % 20000 : rand() % 700);
        when[i] = now;
        size[i] = (uint64_t) rand() % 100000;
        tr_pace_add(&p, now, size[i]);
        now += (uint64_t) (rand() % 300);
        seconds = 1 + (unsigned) rand() % TR_PACE_SECONDS;
        time = now - start;
        from = start;
        if (time / 1000 > seconds) {
            from = start + (time / 1000 - seconds) * 1000;
            time = now - from;
        }
        for (sum = 0, k = 0; k <= i; k++) {
            sum += when[k] >= from ? size[k] : 0;
        }
        if (time != 0) {
            assert_int_equal(tr_pace_rate(&p, now, seconds), sum * 1000 / time);
        }
    }
}

/* 16 MiB at once, then a byte a minute. */
static void
test_what_came_at_first_is_forgotten(void **state)
{
    tr_pace_t p;

    (void) state;
    tr_pace_start(&p, 1000);
    tr_pace_add(&p, 1010, 16 * MIB);
    assert_true(tr_pace_rate(&p, 6000, 5) > MIB);
    assert_int_equal(tr_pace_rate(&p, 7000, 5), 0);
    tr_pace_add(&p, 61000, 1);
    assert_int_equal(tr_pace_rate(&p, 62000, 5), 0);
    /* more than a counter takes */
    tr_pace_add(&p, 62000, UINT64_MAX);
    tr_pace_add(&p, 62000, 1);
    assert_true(tr_pace_rate(&p, 62001, 1) > MIB);
}

/* A body that began so long ago and gets so many bytes a second. */
typedef struct {
    uint64_t tenant, held, age_ms, rate;
} body_t;

#define NOW 1000000u
#define NONE 99

static unsigned
ends(const body_t *bodies, unsigned n, uint64_t limit, uint64_t tenant)
{
    unsigned i, worst = NONE;
    uint64_t at;
    tr_pace_t p;
    tr_shed_t s;

    tr_shed_start(&s, limit, tenant, NOW);
    for (i = 0; i < n; i++) {
        tr_shed_count(&s, bodies[i].tenant, bodies[i].held);
    }
    for (i = 0; i < n; i++) {
        tr_pace_start(&p, NOW - bodies[i].age_ms);
        for (at = p.since_ms + 500; at < NOW; at += 1000) {
            tr_pace_add(&p, at, bodies[i].rate);
        }
        if (tr_shed_worse(&s, &p, bodies[i].tenant, bodies[i].held, 4096)) {
            worst = i;
        }
    }
    return worst;
}

static void
test_the_slowest_of_who_holds_most_ends(void **state)
{
    const body_t bodies[] = {
        { 1, 2 * MIB, 9000, 0 },      { 2, 8 * MIB, 9000, 2000 },
        { 2, 8 * MIB, 9000, 1000 },   { 2, 8 * MIB, 9000, 900000 },
        { 3, 20 * MIB, 9000, 90000 },
    };
    const body_t small[] = {
        { 2, MIB / 64, 9000, 0 },
        { 2, 16 * MIB, 9000, 20 },
        { 2, 16 * MIB, 9000, 3000 },
    };

    (void) state;
    assert_int_equal(ends(bodies, 5, 64 * MIB, 7), 2);
    assert_int_equal(ends(bodies, 5, 64 * MIB, 2), 2);
    assert_int_equal(ends(bodies, 1, 64 * MIB, 7), 0);
    /* for what it holds: small ones do not stand in front of large ones */
    assert_int_equal(ends(small, 3, 64 * MIB, 7), 1);
}

static void
test_who_is_fast_or_new_stays(void **state)
{
    body_t bodies[] = {
        { 1, 16 * MIB, 4900, 5000 },
        { 1, 17 * MIB, 4900, 5000 },
        { 2, 8 * MIB, 900, 0 },
        { 3, 0, 9000, 0 }, /* holds nothing */
    };

    (void) state;
    assert_int_equal(ends(bodies, 4, 64 * MIB, 7), NONE);
    /* above half of the room, and for a while */
    bodies[0].age_ms = bodies[1].age_ms = 5000;
    assert_int_equal(ends(bodies, 4, 64 * MIB, 7), 1);
    assert_int_equal(ends(bodies, 4, 64 * MIB, 1), NONE);
    assert_int_equal(ends(bodies, 4, 66 * MIB, 7), NONE);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_is_that_of_the_last_seconds),
        cmocka_unit_test(test_what_came_at_first_is_forgotten),
        cmocka_unit_test(test_the_slowest_of_who_holds_most_ends),
        cmocka_unit_test(test_who_is_fast_or_new_stays),
    };

    return cmocka_run_group_tests_name("upload", tests, NULL, NULL);
}
