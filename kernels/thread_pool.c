/*
 * The thread pool (thread_pool.h).
 *
 * A loop is published as a ticket: its number in the upper half, the next
 * unclaimed piece in the lower half.  Who increments the lower half owns that
 * piece.  Before the description of the next loop is written the ticket is
 * closed under the new number, so that a helper that has read half of a new
 * description cannot claim with an old ticket: its exchange fails.
 */
#include "thread_pool.h"

#include <errno.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CLOSED 0xffffffffu
#define SPINS 3000 /* of some 50 ns each: longer than a step pauses */

typedef struct {
    tr_thread_pool_t *pool;
    uint32_t worker;
    pthread_t thread;
} helper_t;

struct tr_thread_pool {
    _Alignas(64) _Atomic uint64_t ticket; /* loop << 32 | next piece */
    _Alignas(64) _Atomic uint32_t done;   /* pieces of this loop finished */
    /* what the loop is; read by helpers before they claim */
    _Alignas(64) _Atomic(tr_thread_pool_f) f;
    _Atomic(void *) arg;
    _Atomic uint32_t n, grain, pieces, workers;
    _Alignas(64) _Atomic uint32_t bell; /* futex */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t stop;
    uint32_t n_helpers;
    helper_t helpers[];
};

static void
futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Claims and does pieces of loop number `loop` until there are none. */
static void
pool_work(tr_thread_pool_t *t, uint32_t loop, uint32_t worker)
{
    uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_acquire);

    for (;;) {
        uint32_t piece = (uint32_t) ticket;
        uint32_t pieces = atomic_load_explicit(&t->pieces,
                                               memory_order_relaxed);
        uint32_t n = atomic_load_explicit(&t->n, memory_order_relaxed);
        uint32_t grain = atomic_load_explicit(&t->grain, memory_order_relaxed);
        tr_thread_pool_f f = atomic_load_explicit(&t->f, memory_order_relaxed);
        void *arg = atomic_load_explicit(&t->arg, memory_order_relaxed);
        uint32_t workers = atomic_load_explicit(&t->workers,
                                                memory_order_relaxed);
        uint32_t first;

        if (ticket >> 32 != loop || piece == CLOSED || piece >= pieces
            || worker >= workers) {
            return;
        }
        if (!atomic_compare_exchange_weak_explicit(&t->ticket, &ticket,
                                                   ticket + 1,
                                                   memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue;
        }
        first = piece * grain;
        f(arg, first, n - first < grain ? n : first + grain, worker);
        atomic_fetch_add_explicit(&t->done, 1, memory_order_release);
        ticket = atomic_load_explicit(&t->ticket, memory_order_acquire);
    }
}

/* The number of a loop that is not `seen`, looked for and slept for. */
static uint32_t
pool_await(tr_thread_pool_t *t, uint32_t seen)
{
    for (;;) {
        uint32_t bell;

        for (int i = 0; i < SPINS; i++) {
            uint64_t ticket = atomic_load_explicit(&t->ticket,
                                                   memory_order_acquire);

            if (ticket >> 32 != seen && (uint32_t) ticket != CLOSED) {
                return (uint32_t) (ticket >> 32);
            }
            if (atomic_load_explicit(&t->stop, memory_order_relaxed)) {
                return seen;
            }
            _mm_pause();
        }
        bell = atomic_load(&t->bell);
        atomic_fetch_add(&t->sleepers, 1);
        if (atomic_load(&t->ticket) >> 32 == seen && !atomic_load(&t->stop)) {
            futex(&t->bell, FUTEX_WAIT, bell);
        }
        atomic_fetch_sub(&t->sleepers, 1);
    }
}

static void *
pool_helper(void *arg)
{
    helper_t *h = arg;
    uint32_t seen = 0;

    prctl(PR_SET_NAME, "tr-compute");
    while (!atomic_load_explicit(&h->pool->stop, memory_order_acquire)) {
        seen = pool_await(h->pool, seen);
        pool_work(h->pool, seen, h->worker);
    }
    return NULL;
}

int
tr_thread_pool_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return n > 0 ? n : 1;
}

tr_thread_pool_t *
tr_thread_pool_new(int threads)
{
    size_t helpers = threads > 1 ? (size_t) threads - 1 : 0;
    size_t size = sizeof(tr_thread_pool_t) + helpers * sizeof(helper_t);
    tr_thread_pool_t *t = aligned_alloc(64, (size + 63) & ~(size_t) 63);

    if (t == NULL) {
        return NULL;
    }
    *t = (tr_thread_pool_t){ .ticket = CLOSED };
    for (size_t i = 0; i < helpers; i++) {
        helper_t *h = &t->helpers[i];

        h->pool = t;
        h->worker = (uint32_t) i + 1;
        if (pthread_create(&h->thread, NULL, pool_helper, h) != 0) {
            tr_thread_pool_free(t);
            return NULL;
        }
        t->n_helpers++;
    }
    return t;
}

static void
pool_ring(tr_thread_pool_t *t, uint32_t helpers)
{
    if (atomic_load(&t->sleepers) != 0) {
        atomic_fetch_add(&t->bell, 1);
        futex(&t->bell, FUTEX_WAKE, helpers);
    }
}

void
tr_thread_pool_free(tr_thread_pool_t *t)
{
    if (t == NULL) {
        return;
    }
    atomic_store(&t->stop, 1);
    atomic_fetch_add(&t->bell, 1);
    futex(&t->bell, FUTEX_WAKE, t->n_helpers);
    for (uint32_t i = 0; i < t->n_helpers; i++) {
        pthread_join(t->helpers[i].thread, NULL);
    }
    free(t);
}

void
tr_thread_pool_run(tr_thread_pool_t *t, int threads, uint32_t n, uint32_t grain,
                   tr_thread_pool_f f, void *arg)
{
    uint32_t pieces, loop, spins = 0;

    if (n == 0) {
        return;
    }
    grain = grain == 0 ? 1 : grain;
    pieces = (n - 1) / grain + 1;
    if (t == NULL || t->n_helpers == 0 || threads <= 1 || pieces == 1) {
        f(arg, 0, n, 0);
        return;
    }
    loop = (uint32_t) (atomic_load_explicit(&t->ticket, memory_order_relaxed)
                       >> 32)
           + 1;
    atomic_store(&t->ticket, (uint64_t) loop << 32 | CLOSED);
    atomic_store_explicit(&t->f, f, memory_order_relaxed);
    atomic_store_explicit(&t->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&t->n, n, memory_order_relaxed);
    atomic_store_explicit(&t->grain, grain, memory_order_relaxed);
    atomic_store_explicit(&t->pieces, pieces, memory_order_relaxed);
    atomic_store_explicit(&t->workers, (uint32_t) threads,
                          memory_order_relaxed);
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    atomic_store(&t->ticket, (uint64_t) loop << 32);
    pool_ring(t, pieces - 1 < t->n_helpers ? pieces - 1 : t->n_helpers);
    pool_work(t, loop, 0);
    while (atomic_load_explicit(&t->done, memory_order_acquire) != pieces) {
        if (++spins < SPINS) {
            _mm_pause();
        } else {
            sched_yield(); /* who holds the last piece may need this core */
        }
    }
}
