/*
 * Who joins alone (suspects.c), without an engine: time passes, and requests
 * settle, as the test says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/frontend/worker_connection.h"

static tr_status_page_t page;

static void
env_make(tr_frontend_env_t *env)
{
    memset(&page, 0, sizeof(page));
    memset(env, 0, sizeof(*env));
    env->status = &page;
    env->now_us = 1000000;
}

/* As the frontend thread and the loop do. */
static void
start(tr_request_t *r)
{
    r->fresh = tr_status_fresh_set(&page.counters, r->name);
    assert_int_not_equal(r->fresh, 0);
}

static void
settle(tr_request_t *r)
{
    tr_status_fresh_clear(&page.counters, r->fresh);
    r->fresh = 0;
    atomic_store(&r->settled, 1);
}

static void
test_nobody_waits_without_suspects(void **state)
{
    tr_request_t a = { .name = 1 }, b = { .name = 2 };
    tr_frontend_env_t env;

    (void) state;
    env_make(&env);
    assert_false(tr_suspects_hold(&env, &a));
    start(&a);
    assert_false(tr_suspects_hold(&env, &b));
    assert_false(env.held);
    assert_null(env.alone);
}

static void
test_a_suspect_waits_for_those_that_start(void **state)
{
    tr_request_t old = { .name = 1 }, new = { .name = 2 };
    tr_request_t suspect = { .name = 3, .charges = 1 };
    tr_frontend_env_t env;

    (void) state;
    env_make(&env);
    assert_false(tr_suspects_hold(&env, &old));
    start(&old);
    assert_true(tr_suspects_hold(&env, &suspect));
    assert_true(env.held);
    /* who comes meanwhile does not keep it waiting */
    assert_true(tr_suspects_hold(&env, &new));
    settle(&old);
    assert_false(tr_suspects_hold(&env, &suspect));
    assert_ptr_equal(env.alone, &suspect);
    start(&suspect);
    assert_true(tr_suspects_hold(&env, &new));
    settle(&suspect);
    env.suspects = 0; /* as a release counts */
    assert_false(tr_suspects_hold(&env, &new));
    assert_null(env.alone);
}

static void
test_suspects_join_one_at_a_time(void **state)
{
    tr_request_t one = { .name = 1, .charges = 1 };
    tr_request_t two = { .name = 2, .charges = 1 };
    tr_frontend_env_t env;

    (void) state;
    env_make(&env);
    assert_false(tr_suspects_hold(&env, &one));
    start(&one);
    assert_true(tr_suspects_hold(&env, &two));
    /* in the loop's queue it starts no longer, and is alone all the same */
    tr_status_fresh_clear(&page.counters, one.fresh);
    assert_true(tr_suspects_hold(&env, &two));
    tr_suspects_end(&env, &one);
    assert_false(tr_suspects_hold(&env, &two));
    assert_ptr_equal(env.alone, &two);
}

static void
test_waiting_has_bounds(void **state)
{
    tr_request_t slow = { .name = 1 }, other = { .name = 2 };
    tr_request_t suspect = { .name = 3, .charges = 1 };
    tr_request_t second = { .name = 4, .charges = 2 };
    tr_frontend_env_t env;

    (void) state;
    env_make(&env);
    start(&slow);
    assert_true(tr_suspects_hold(&env, &suspect));
    assert_true(tr_suspects_hold(&env, &other));
    env.now_us += 4900000;
    assert_true(tr_suspects_hold(&env, &other));
    env.now_us += 200000;
    assert_false(tr_suspects_hold(&env, &other));
    assert_true(tr_suspects_hold(&env, &suspect));
    env.now_us += 10000000;
    /* with company: nobody would be named by a crash now */
    assert_false(tr_suspects_hold(&env, &suspect));
    assert_null(env.alone);
    assert_true(tr_suspects_hold(&env, &second));
}

static void
test_names_of_those_that_start(void **state)
{
    static const char id[] = "0123456789abcdef0123456789abcdef";
    uint64_t names[TR_STATUS_FRESH];
    uint32_t i, place[TR_STATUS_FRESH];
    tr_status_counters_t *c = &page.counters;
    char bad[TR_COMPLETION_LEN] = { 0 };

    (void) state;
    memset(&page, 0, sizeof(page));
    assert_true(tr_completion_name(id) == 0x0123456789abcdefull);
    assert_true(tr_completion_name(bad) == 0);
    memcpy(bad, id, sizeof(bad));
    bad[15] = 'G';
    assert_true(tr_completion_name(bad) == 0);
    assert_int_equal(tr_status_fresh_set(c, 0), 0);
    assert_int_equal(tr_status_fresh(c, names), 0);
    for (i = 0; i < TR_STATUS_FRESH; i++) {
        place[i] = tr_status_fresh_set(c, 1000 + i);
        assert_int_not_equal(place[i], 0);
    }
    assert_int_equal(tr_status_fresh_set(c, 5), 0); /* full */
    tr_status_fresh_clear(c, 0);                    /* of one without a place */
    assert_int_equal(tr_status_fresh(c, names), TR_STATUS_FRESH);
    tr_status_fresh_clear(c, place[7]);
    assert_int_equal(tr_status_fresh(c, names), TR_STATUS_FRESH - 1);
    for (i = 0; i < TR_STATUS_FRESH - 1; i++) {
        assert_true(names[i] != 1007);
    }
    assert_int_equal(tr_status_fresh_set(c, 5), place[7]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_waits_without_suspects),
        cmocka_unit_test(test_a_suspect_waits_for_those_that_start),
        cmocka_unit_test(test_suspects_join_one_at_a_time),
        cmocka_unit_test(test_waiting_has_bounds),
        cmocka_unit_test(test_names_of_those_that_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
