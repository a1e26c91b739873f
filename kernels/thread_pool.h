/*
 * thread_pool.h: the threads that a CPU stream's kernels run on.
 *
 * The caller works too, and is never held up by a helper that the kernel has
 * not scheduled: tasks are claimed one by one, and at the end the caller waits
 * only for tasks that somebody has begun.  On a machine with idle cores all
 * take part; on a busy one the caller does the work itself.  (In OpenMP
 * all meet at a barrier after every loop, some forty a decode step, and each
 * waits for the slowest to be scheduled.)
 *
 * Helpers look for the next loop for some tens of microseconds, then sleep: an
 * idle pool uses no CPU.
 */
#ifndef TR_THREAD_POOL_H
#define TR_THREAD_POOL_H

#include <stdint.h>

typedef struct tr_thread_pool tr_thread_pool_t;

/* Where a kernel runs: a pool, borrowed, and how many of its threads to use;
 * without a pool everything runs in the caller. */
typedef struct {
    int threads;
    tr_thread_pool_t *thread_pool;
} tr_stream_t;

/* Work on [first, end), as `worker` (0: the caller), below the thread count. */
typedef void (*tr_thread_pool_f)(void *arg, uint32_t first, uint32_t end,
                                 uint32_t worker);

/* Cores that this process may run on, at least 1. */
int tr_thread_pool_cores(void);

/* threads >= 1, the caller included.  NULL: out of memory or threads. */
tr_thread_pool_t *tr_thread_pool_new(int threads);
void tr_thread_pool_free(tr_thread_pool_t *t); /* NULL is fine */

/* Covers [0, n) in pieces of `grain`, by at most `threads` threads.  Returns
 * when all is done.  One caller at a time; t NULL: the caller alone. */
void tr_thread_pool_run(tr_thread_pool_t *t, int threads, uint32_t n,
                        uint32_t grain, tr_thread_pool_f f, void *arg);

#endif
