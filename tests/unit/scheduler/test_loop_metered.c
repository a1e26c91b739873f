/*
 * The step loop and requests that are metered (TR_SUBMIT_METERED): no token is
 * sampled that a tenant's budget has not allowed, whatever runs ahead.
 */
#include "tests/unit/fixtures/loop_fixture.h"

static uint32_t
told(const client_t *c)
{
    uint32_t n = 0, i;

    for (i = 0; i < c->n; i++) {
        n += c->choice[i].tokens;
    }
    return n;
}

/* A request that is metered has never a token more than it may, all its choices
 * together and also of steps that run ahead; nothing is computed that is not
 * told.  What it says is what it says without. */
static void
metered(void **state)
{
    static const uint32_t steps[] = { 0, 1, 2, 3, 7, 8, 50, 51, 52, 200, 300 };
    fixture_t b = { 0 };
    tr_request_t *r = request(70, 100);
    client_t *c, *other;
    uint32_t i, samples = 0;

    (void) state;
    fixture_start(&b, 100, 20);
    r->n = 3;
    r->submit_flags = TR_SUBMIT_METERED;
    c = submit(&b, r, 0);
    for (i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        atomic_store(&r->allowed, steps[i]);
        tr_loop_wake(b.loop);
        while (told(c) < steps[i]) {
            frontend_turn(&b, true);
        }
        /* as many turns as others take: nothing more comes */
        if (steps[i] < 300) {
            other = submit(&b, request(3, 30), 1);
            frontend_until_ended(&b, other);
            samples += 30;
            frontend_turn(&b, false);
            assert_int_equal(told(c), steps[i]);
            assert_int_equal(atomic_load(&b.counters.generation_tokens),
                             samples + steps[i]);
        }
    }
    frontend_until_ended(&b, c);
    check(c);
    assert_int_equal(told(c), 300);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* One that may have nothing more can still be ended. */
static void
metered_and_ended(void **state)
{
    fixture_t b = { 0 };
    tr_request_t *r = request(10, 100);
    client_t *c;

    (void) state;
    fixture_start(&b, 100, 4);
    r->submit_flags = TR_SUBMIT_METERED;
    r->allowed = 5;
    c = submit(&b, r, 0);
    while (told(c) < 5) {
        frontend_turn(&b, true);
    }
    c->aborted = true;
    control(&b, c, TR_CONTROL_ABORT);
    frontend_until_ended(&b, c);
    assert_int_equal(c->last.completion_tokens, 5);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metered),
        cmocka_unit_test(metered_and_ended),
    };
    int failed = cmocka_run_group_tests_name("at once", tests, setup, teardown);

    late = true;
    return failed + cmocka_run_group_tests_name("late", tests, setup, teardown);
}
