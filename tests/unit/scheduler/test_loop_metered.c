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

/* One that has spent what it may, and gets no more: all choices end as at their
 * length, and what is held of their texts comes. */
static void
metered_and_cut(void **state)
{
    fixture_t b = { 0 };
    tr_request_t *r = request(10, 100);
    client_t *c;
    uint32_t i;

    (void) state;
    fixture_start(&b, 100, 4);
    r->n = 3;
    r->submit_flags = TR_SUBMIT_METERED;
    r->allowed = 7;
    c = submit(&b, r, 0);
    while (told(c) < 7) {
        frontend_turn(&b, true);
    }
    control(&b, c, TR_CONTROL_END);
    frontend_until_ended(&b, c);
    assert_int_equal(c->last.completion_tokens, 7);
    assert_int_equal(c->last.flags, TR_FINISH_LAST | TR_FINISH_CUT);
    for (i = 0; i < 3; i++) {
        assert_int_equal(c->choice[i].finished, 1);
        assert_int_equal(c->choice[i].reason, TR_FINISH_LENGTH);
    }
    assert_int_equal(told(c), 7);
    assert_int_equal(atomic_load(&b.counters.requests_length), 1);
    assert_int_equal(atomic_load(&b.counters.requests_aborted), 0);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* Those that may have nothing at all, whose prompts wait, are being computed, or
 * are there. */
static void
metered_without_any(void **state)
{
    fixture_t b = { 0 };
    client_t *c[3];
    uint32_t i;

    (void) state;
    fixture_start(&b, 100, 4);
    for (i = 0; i < 3; i++) {
        tr_request_t *r = request(30, 100);

        r->submit_flags = TR_SUBMIT_METERED;
        c[i] = submit(&b, r, i % 2);
    }
    for (i = 0; i < 3; i++) {
        control(&b, c[i], TR_CONTROL_END);
        frontend_until_ended(&b, c[i]);
        assert_int_equal(c[i]->last.completion_tokens, 0);
        assert_int_equal(c[i]->choice[0].reason, TR_FINISH_LENGTH);
        assert_int_equal(c[i]->last.flags, TR_FINISH_LAST | TR_FINISH_CUT);
    }
    frontend_until_ended(&b, submit(&b, request(3, 30), 1)); /* as ever */
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* One that goes on without its client ends when it has spent what it may, of
 * which its worker hears nothing until then. */
static void
metered_and_alone(void **state)
{
    fixture_t b = { 0 };
    tr_request_t *r = request(10, 100);
    client_t *c;

    (void) state;
    fixture_start(&b, 100, 4);
    r->n = 2;
    r->submit_flags = TR_SUBMIT_METERED | TR_SUBMIT_DETACH;
    r->allowed = 5;
    c = submit(&b, r, 0);
    while (told(c) < 5) {
        frontend_turn(&b, true);
    }
    atomic_store(&r->allowed, 40);
    c->aborted = true; /* no more is heard but its end */
    control(&b, c, TR_CONTROL_DETACH | TR_CONTROL_END);
    frontend_until_ended(&b, c);
    assert_int_equal(c->last.completion_tokens, 40);
    assert_int_equal(c->last.reason, TR_FINISH_LENGTH);
    assert_int_equal(c->last.flags, TR_FINISH_LAST | TR_FINISH_CUT);
    assert_int_equal(atomic_load(&b.counters.generation_tokens), 40);
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
        cmocka_unit_test(metered_and_cut),
        cmocka_unit_test(metered_without_any),
        cmocka_unit_test(metered_and_alone),
    };
    int failed = cmocka_run_group_tests_name("at once", tests, setup, teardown);

    late = true;
    return failed + cmocka_run_group_tests_name("late", tests, setup, teardown);
}
