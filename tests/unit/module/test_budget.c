/*
 * Budgets of tenants against a count that forgets nothing: whatever is asked for
 * at whatever times, no window lets more through than its limit and what it
 * refilled meanwhile, nothing that is due is withheld, and the time that a client
 * is told to wait is the time that it takes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_module/routing/ngx_http_tokenring_budget.h"
#include "tests/unit/fixtures/random.h"

#define DAY 86400u

typedef ngx_http_tokenring_rate_t rate_t;
typedef ngx_http_tokenring_budget_t budget_t;
typedef ngx_http_tokenring_clock_t timer_at_t;

static uint64_t
draw(uint64_t n)
{
    return ((uint64_t) random_below(1u << 30) << 30 | random_below(1u << 30))
           % n;
}

static bool
parse(const char *text, rate_t *rate)
{
    return ngx_http_tokenring_rate_parse((const unsigned char *) text,
                                         strlen(text), rate)
           == 0;
}

static void
test_parse(void **state)
{
    static const char *const bad[] = {
        "",      "m",        "60",      "60/",
        "/m",    "60/y",     "60/mm",   "0/m",
        "-1/m",  "1.5k/m",   "60 /m",   "k/m",
        "6kk/m", "99999g/m", "1001g/m", "99999999999999999999/d"
    };
    rate_t r;
    size_t i;

    (void) state;
    assert_true(parse("60/m", &r) && r.limit == 60 && r.period == 60000);
    assert_true(parse("200k/m", &r) && r.limit == 200000);
    assert_true(parse("5m/d", &r) && r.limit == 5000000 && r.period == 0);
    assert_true(parse("7/s", &r) && r.limit == 7 && r.period == 1000);
    assert_true(parse("1000g/h", &r) && r.limit == 1000000000000u
                && r.period == 3600000);
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(parse(bad[i], &r));
    }
}

/* One that takes a unit whenever it may. */
static void
test_evenly(void **state)
{
    timer_at_t at = { 5000, 0 };
    rate_t r = { 60, 60000 };
    uint64_t taken = 0, i;
    budget_t b;

    (void) state;
    ngx_http_tokenring_budget_init(&b, &r, &at);
    for (i = 0; i < 600000; i++, at.now++) {
        ngx_http_tokenring_budget_refill(&b, &r, &at);
        if (ngx_http_tokenring_budget_left(&b, &r) >= 1) {
            ngx_http_tokenring_budget_take(&b, &r, 1);
            taken++;
        }
    }
    /* what it held, and one a second for ten minutes less a millisecond */
    assert_int_equal(taken, 60 + 599);
}

/* Units * period that are left. */
static int64_t
rest(const budget_t *b, const rate_t *r)
{
    return (int64_t) (r->limit * r->period) - b->used;
}

/* Left, as a sum over all that was ever taken. */
static void
check_sum(const budget_t *b, const rate_t *r, uint64_t since, uint64_t now,
          int64_t taken)
{
    /* since it was last full: what came, less what was taken */
    __int128 parts = (__int128) r->limit * r->period
                     - (__int128) taken * r->period
                     + (__int128) (now - since) * r->limit;

    assert_true(parts <= (__int128) r->limit * r->period);
    assert_true(rest(b, r) == (int64_t) parts);
}

static void
test_random(void **state)
{
    static const uint64_t limits[] = { 1, 3, 60, 999, 200000, 1000000000000u };
    static const uint64_t periods[] = { 1000, 60000, 3600000 };
    uint32_t round, step;

    (void) state;
    for (round = 0; round < 2000; round++) {
        rate_t r = { limits[draw(6)], periods[draw(3)] };
        timer_at_t at = { draw(1u << 30), 0 };
        uint64_t since = at.now, wait;
        int64_t taken = 0, n;
        budget_t b, later;

        ngx_http_tokenring_budget_init(&b, &r, &at);
        for (step = 0; step < 100; step++) {
            at.now += draw(draw(2) ? 10 : 2 * r.period);
            ngx_http_tokenring_budget_refill(&b, &r, &at);
            if (b.used == 0) {
                since = at.now;
                taken = 0;
            }
            /* who owes much takes nothing: a debt has an end (test_edges) */
            n = rest(&b, &r) < 0 && draw(4) != 0
                    ? 0
                    : (int64_t) draw(draw(2) ? 3 : r.limit + 2);
            n = rest(&b, &r) < -(int64_t) (r.limit * r.period / 8) ? 0 : n;
            ngx_http_tokenring_budget_take(&b, &r, n);
            taken += n;
            check_sum(&b, &r, since, at.now, taken);

            n = (int64_t) draw(r.limit) + 1;
            wait = ngx_http_tokenring_budget_wait(&b, &r, &at, (uint64_t) n);
            later = b;
            if (wait != 0) {
                assert_true(ngx_http_tokenring_budget_left(&b, &r) < n);
                at.now += wait - 1;
                ngx_http_tokenring_budget_refill(&later, &r, &at);
                assert_true(ngx_http_tokenring_budget_left(&later, &r) < n);
                at.now++;
            }
            ngx_http_tokenring_budget_refill(&later, &r, &at);
            assert_true(ngx_http_tokenring_budget_left(&later, &r) >= n);
            at.now -= wait;
        }
    }
}

static void
test_days(void **state)
{
    timer_at_t at = { 1, 3 * DAY + DAY - 10 };
    rate_t r = { 100, 0 };
    budget_t b;

    (void) state;
    ngx_http_tokenring_budget_init(&b, &r, &at);
    ngx_http_tokenring_budget_take(&b, &r, 130);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), -30);
    assert_int_equal(ngx_http_tokenring_budget_wait(&b, &r, &at, 1), 10000);
    at.unix_s += 9;
    at.now += 9000;
    ngx_http_tokenring_budget_refill(&b, &r, &at);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), -30);
    at.unix_s++;
    ngx_http_tokenring_budget_refill(&b, &r, &at);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), 100);
    /* a clock that was put back gives nothing */
    ngx_http_tokenring_budget_take(&b, &r, 100);
    at.unix_s -= DAY;
    ngx_http_tokenring_budget_refill(&b, &r, &at);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), 0);
    /* but one that was wrong by days withholds nothing until then */
    at.unix_s += 400 * DAY;
    ngx_http_tokenring_budget_refill(&b, &r, &at);
    ngx_http_tokenring_budget_take(&b, &r, 100);
    at.unix_s -= 399 * DAY;
    ngx_http_tokenring_budget_refill(&b, &r, &at);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), 100);
    ngx_http_tokenring_budget_take(&b, &r, 30);
    ngx_http_tokenring_budget_refill(&b, &r, &at);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), 70);
}

/* What was used stays used when the limit becomes another. */
static void
test_other_limit(void **state)
{
    static const uint64_t periods[] = { 1000, 3600000, 0 };
    timer_at_t at = { 5000, DAY };
    budget_t b;
    size_t i;

    (void) state;
    for (i = 0; i < sizeof(periods) / sizeof(periods[0]); i++) {
        rate_t r = { 100, periods[i] };

        ngx_http_tokenring_budget_init(&b, &r, &at);
        ngx_http_tokenring_budget_take(&b, &r, 100);
        r.limit = 150;
        ngx_http_tokenring_budget_refill(&b, &r, &at);
        assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), 50);
        r.limit = 10;
        ngx_http_tokenring_budget_refill(&b, &r, &at);
        assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), -90);
        ngx_http_tokenring_budget_take(&b, &r, INT64_MAX);
        r.limit = 1;
        ngx_http_tokenring_budget_take(&b, &r, 1);
        assert_true(ngx_http_tokenring_budget_left(&b, &r) < 0);
    }
}

static void
test_edges(void **state)
{
    timer_at_t at = { 1000, 0 };
    rate_t r = { 1000000000000u, 3600000 };
    budget_t b;
    uint32_t i;

    (void) state;
    ngx_http_tokenring_budget_init(&b, &r, &at);
    for (i = 0; i < 10; i++) {
        ngx_http_tokenring_budget_take(&b, &r, INT64_MAX);
    }
    assert_true(ngx_http_tokenring_budget_left(&b, &r) < 0);
    at.now = UINT64_MAX;
    ngx_http_tokenring_budget_refill(&b, &r, &at);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), r.limit);
    /* no more than full comes back */
    ngx_http_tokenring_budget_take(&b, &r, 5);
    ngx_http_tokenring_budget_take(&b, &r, -3);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), r.limit - 2);
    ngx_http_tokenring_budget_take(&b, &r, -3);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), r.limit);
    /* nor does an earlier clock take anything */
    ngx_http_tokenring_budget_take(&b, &r, 5);
    at.now = 1;
    ngx_http_tokenring_budget_refill(&b, &r, &at);
    assert_int_equal(ngx_http_tokenring_budget_left(&b, &r), r.limit - 5);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),  cmocka_unit_test(test_evenly),
        cmocka_unit_test(test_random), cmocka_unit_test(test_days),
        cmocka_unit_test(test_edges),  cmocka_unit_test(test_other_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
