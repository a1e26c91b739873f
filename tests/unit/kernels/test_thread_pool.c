/*
 * The thread pool: every index of every loop is visited exactly once, by a
 * worker below the loop's thread count, before the loop returns; also when
 * loops follow each other at once, when helpers slept, and when there are more
 * threads than cores.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/thread_pool.h"

#define N_MAX 700
#define THREADS_MAX 7

typedef struct {
    _Atomic uint32_t visits[N_MAX];
    _Atomic uint32_t bad; /* workers or ranges that must not be */
    uint32_t n, grain, threads;
} loop_t;

static void
visit(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    loop_t *l = arg;

    if (worker >= l->threads || first >= end || end > l->n) {
        atomic_fetch_add(&l->bad, 1);
        return;
    }
    for (uint32_t i = first; i < end; i++) {
        atomic_fetch_add(&l->visits[i], 1);
    }
}

static void
run_once(tr_thread_pool_t *t, loop_t *l, uint32_t n, uint32_t grain,
         uint32_t threads)
{
    memset(l, 0, sizeof(*l));
    l->n = n;
    l->grain = grain;
    l->threads = threads;
    tr_thread_pool_run(t, (int) threads, n, grain, visit, l);
    assert_int_equal(l->bad, 0);
    for (uint32_t i = 0; i < N_MAX; i++) {
        assert_int_equal(l->visits[i], i < n);
    }
}

static void
test_each_index_once(void **state)
{
    static loop_t loop;
    uint32_t seed = 12345;

    (void) state;
    for (int threads = 1; threads <= THREADS_MAX; threads += 2) {
        tr_thread_pool_t *t = tr_thread_pool_new(threads);

        assert_non_null(t);
        for (int i = 0; i < 3000; i++) {
            uint32_t n, grain, use;

            seed = seed * 1664525u + 1013904223u;
            n = (seed >> 8) % N_MAX;
            grain = (seed >> 20) % 40;
            use = 1 + (seed >> 27) % (uint32_t) threads;
            run_once(t, &loop, n, grain, use);
            if (i % 1000 == 0) { /* long enough for helpers to sleep */
                nanosleep(&(struct timespec){ 0, 3000000 }, NULL);
            }
        }
        tr_thread_pool_free(t);
    }
}

static void
test_without_a_pool(void **state)
{
    static loop_t loop;

    (void) state;
    run_once(NULL, &loop, 100, 7, 1);
    run_once(NULL, &loop, 0, 1, 1);
    tr_thread_pool_free(NULL);
    assert_true(tr_thread_pool_cores() >= 1);
}

/* Results written by helpers are visible to the caller without more ado. */
static void
fill(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    uint32_t *out = arg;

    (void) worker;
    for (uint32_t i = first; i < end; i++) {
        out[i] = out[i] * 2 + i;
    }
}

static void
test_writes_are_seen(void **state)
{
    static uint32_t got[N_MAX], want[N_MAX];
    tr_thread_pool_t *t = tr_thread_pool_new(4);

    (void) state;
    assert_non_null(t);
    for (int i = 0; i < 2000; i++) {
        tr_thread_pool_run(t, 4, N_MAX, 9, fill, got);
        fill(want, 0, N_MAX, 0);
        assert_memory_equal(got, want, sizeof(got));
    }
    tr_thread_pool_free(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_index_once),
        cmocka_unit_test(test_without_a_pool),
        cmocka_unit_test(test_writes_are_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
