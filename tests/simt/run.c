/*
 * Fibers, blocks and multiprocessors of the device in software (simt.h).
 *
 * A multiprocessor's thread switches to fibers and back with setjmp and longjmp
 * on stacks of their own.  A fiber that has to wait goes back to its
 * multiprocessor; whoever comes last to a meeting wakes the others, and what may
 * come from elsewhere, a copy or another block's word, is looked for in each pass
 * over all fibers.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mp.h"

#define STACK (256u << 10)
#define PATIENCE 60      /* seconds without anything done */
#define GRID_MOST 65535u /* blocks in y, and in z, that a GPU takes */

SIMT_TLS simt_dim_t threadIdx, blockIdx, blockDim, gridDim;
extern _Thread_local uint8_t shared[SIMT_SHARED];
extern _Thread_local uint32_t shared_before[SIMT_SHARED / 4];
_Thread_local mp_t *simt_mp;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, ended;
    mp_t *mp[MULTIPROCESSORS_MAX];
    uint32_t n;
    uint64_t launches, seed;
    uint32_t running;
    const simt_launch_t *job;
    cluster_t cluster[MULTIPROCESSORS_MAX];
} device = { .lock = PTHREAD_MUTEX_INITIALIZER,
             .work = PTHREAD_COND_INITIALIZER,
             .ended = PTHREAD_COND_INITIALIZER };

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- saying what is wrong ------------------------------------------------ */

static const char *
state_name(state_t s)
{
    static const char *const name[] = { "runs or asks again", "meets its warp",
                                        "__syncthreads",      "named barrier",
                                        "barrier at",         "done" };

    return name[s];
}

static void
who_waits(const mp_t *m)
{
    for (uint32_t i = 0, from = 0; i < m->threads; i++) {
        const fiber_t *f = &m->fiber[i], *next = f + 1;

        if (i + 1 < m->threads && next->state == f->state
            && next->at_bar == f->at_bar) {
            continue;
        }
        fprintf(stderr, "  threads %u to %u: %s", from, i,
                state_name(f->state));
        fprintf(stderr, f->state == NAMES || f->state == WAITS ? " %u\n" : "\n",
                f->at_bar);
        from = i + 1;
    }
}

void
simt_die(const char *format, ...)
{
    va_list args;

    fflush(stdout);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (simt_mp != NULL) {
        fprintf(stderr, ": block %u,%u,%u, thread %u\n", blockIdx.x, blockIdx.y,
                blockIdx.z, simt_mp->now);
        who_waits(simt_mp);
    }
    fputc('\n', stderr);
    abort();
}

/* ---- fibers -------------------------------------------------------------- */

uint32_t
simt_random(mp_t *m, uint32_t below)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (uint32_t) (m->random >> 33) % below;
}

void
simt_leave(state_t state)
{
    fiber_t *f = &simt_mp->fiber[simt_mp->now];

    f->state = state;
    if (_setjmp(f->resume) == 0) {
        _longjmp(simt_mp->home, 1);
    }
}

static void
fiber_main(void)
{
    for (;;) {
        device.job->run(device.job->arg);
        if (simt_mp->fiber[simt_mp->now].products > 0) {
            simt_die("products that nobody waited for");
        }
        simt_mp->done++;
        simt_mp->done_something = true;
        simt_leave(DONE);
    }
}

static void
go_to(mp_t *m, uint32_t i)
{
    fiber_t *f = &m->fiber[i];
    const simt_dim_t *d = &device.job->block;

    m->now = i;
    threadIdx = (simt_dim_t){ i % d->x, i / d->x % d->y, i / d->x / d->y };
    if (_setjmp(m->home) != 0) {
        return;
    }
    if (f->begun) {
        _longjmp(f->resume, 1);
    }
    f->begun = true;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = m->stacks + (size_t) i * STACK;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
    setcontext(&f->context);
}

void
simt_yield(void)
{
    simt_leave(READY);
}

uint8_t *
simt_shared_of(uint32_t rank)
{
    return device.mp[simt_mp->index - simt_mp->rank + rank]->shared;
}

/* ---- blocks -------------------------------------------------------------- */

static void
block_begin(mp_t *m, const simt_launch_t *l, uint32_t index)
{
    blockIdx = (simt_dim_t){ index % l->grid.x, index / l->grid.x % l->grid.y,
                             index / l->grid.x / l->grid.y };
    blockDim = l->block;
    gridDim = l->grid;
    m->threads = l->block.x * l->block.y * l->block.z;
    m->done = m->synced = m->copies = 0;
    m->blocks++;
    m->rank = index % l->cluster;
    m->cluster_blocks = l->cluster;
    m->cluster = &device.cluster[m->index / l->cluster];
    m->random = (0x9e3779b97f4a7c15u * (device.launches + (device.seed << 32)))
                ^ ((uint64_t) index << 32 | 1);
    memset(m->named, 0, sizeof(m->named));
    memset(shared, 0xff, l->shared);
    memset(shared_before, 0xff, l->shared);
    for (uint32_t i = 0; i < m->threads; i++) {
        m->fiber[i].state = READY;
        m->fiber[i].products = m->fiber[i].n_groups = 0;
        m->fiber[i].made = 0;
    }
    for (uint32_t i = 0; i * SIMT_WARP < m->threads; i++) {
        uint32_t n = m->threads - i * SIMT_WARP;

        m->warp[i].all = n >= SIMT_WARP ? UINT32_MAX : (1u << n) - 1;
        m->warp[i].came = 0;
    }
    m->held = m->held_for = 0;
    m->since = time(NULL);
}

/* waits: set when it waits for what another block, or a copy, may bring. */
static bool
can_run(const fiber_t *f, bool *waits)
{
    if (f->state == WAITS) {
        *waits = true;
        return simt_bar_parity(f->at_bar) != f->parity;
    }
    *waits = *waits || f->state == READY;
    return f->state == READY;
}

/* Now and then some warps are left behind, so that others come as far ahead as they
 * can: most of all behind a barrier. */
void
simt_hold_warps(mp_t *m)
{
    if (simt_random(m, 4) == 0) {
        m->held = (uint32_t) (m->random & m->random >> 32);
        m->held_for = 1u << simt_random(m, 9);
    }
}

/* Once over all that can run; false: there is nobody who could, ever. */
static bool
block_pass(mp_t *m)
{
    uint32_t warps = (m->threads + SIMT_WARP - 1) / SIMT_WARP;
    uint32_t from = simt_random(m, warps), turn = simt_random(m, SIMT_WARP);
    uint32_t back = simt_random(m, 2) ? SIMT_WARP - 1 : 0;
    bool waits = false;

    if (m->held_for == 0) {
        m->held = 0;
        m->held_for = 1 + simt_random(m, 200);
        simt_hold_warps(m);
    }
    m->held_for--;
    for (uint32_t i = 0; i < warps; i++) {
        uint32_t w = (from + i) % warps * SIMT_WARP;

        if (m->held >> w / SIMT_WARP & 1) {
            waits = true;
            continue;
        }
        for (uint32_t j = 0; j < SIMT_WARP; j++) {
            uint32_t k = w + (((turn + j) % SIMT_WARP) ^ back);

            if (k < m->threads && can_run(&m->fiber[k], &waits)) {
                go_to(m, k);
            }
        }
    }
    return waits;
}

static void
block_run(mp_t *m, const simt_launch_t *l, uint32_t index)
{
    block_begin(m, l, index);
    while (m->done < m->threads || m->copies > 0) {
        bool waits;

        m->done_something = false;
        waits = block_pass(m);
        simt_copies_arrive(m, !m->done_something);
        if (m->done_something) {
            m->since = 0;
            continue;
        }
        if (m->held != 0) {
            m->held = 0; /* the others wait for these */
            continue;
        }
        if (!waits) {
            simt_die("nobody can go on");
        }
        sched_yield(); /* another block may */
        if (m->since == 0) {
            m->since = time(NULL);
        } else if (time(NULL) - m->since > PATIENCE) {
            simt_die("nothing done for %d s", PATIENCE);
        }
    }
}

/* ---- multiprocessors ----------------------------------------------------- */

static void *
mp_main(void *arg)
{
    mp_t *m = arg;
    uint64_t seen = 0;

    simt_mp = m;
    m->shared = shared;
    pthread_mutex_lock(&device.lock);
    for (;;) {
        while (device.launches == seen) {
            pthread_cond_wait(&device.work, &device.lock);
        }
        seen = device.launches;
        pthread_mutex_unlock(&device.lock);

        const simt_launch_t *l = device.job;
        uint32_t blocks = l->grid.x * l->grid.y * l->grid.z;
        uint32_t n = device.n / l->cluster * l->cluster;

        for (uint32_t i = m->index; m->index < n && i < blocks; i += n) {
            block_run(m, l, i);
        }
        pthread_mutex_lock(&device.lock);
        if (--device.running == 0) {
            pthread_cond_signal(&device.ended);
        }
    }
    return NULL;
}

void *
simt_alloc(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED) {
        simt_die("no memory");
    }
    return p;
}

static uint32_t
setting(const char *name, uint32_t otherwise, uint32_t least, uint32_t most)
{
    const char *s = getenv(name);
    long x = s != NULL ? strtol(s, NULL, 10) : (long) otherwise;

    return x < (long) least ? least : x > (long) most ? most : (uint32_t) x;
}

static void
device_open(void)
{
    device.n = setting("SIMT_MULTIPROCESSORS", 4, 1, MULTIPROCESSORS_MAX);
    simt_halves_open();
    device.seed = setting("SIMT_SEED", 1, 1, INT32_MAX);
    for (uint32_t i = 0; i < device.n; i++) {
        mp_t *m = simt_alloc(sizeof(*m));

        device.mp[i] = m;
        m->index = i;
        m->stacks = simt_alloc((size_t) SIMT_THREADS_MAX * STACK);
        simt_copies_open(m);
    }
    for (uint32_t i = 0; i < device.n; i++) {
        if (pthread_create(&device.mp[i]->thread, NULL, mp_main, device.mp[i])
            != 0) {
            simt_die("no thread");
        }
    }
}

uint32_t
simt_multiprocessors(void)
{
    pthread_once(&once, device_open);
    return device.n;
}

void
simt_launch(const simt_launch_t *l)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

    if (l->grid.y > GRID_MOST || l->grid.z > GRID_MOST) {
        simt_die("a grid of %u x %u x %u blocks", l->grid.x, l->grid.y,
                 l->grid.z);
    }
    simt_multiprocessors();
    pthread_mutex_lock(&one);
    pthread_mutex_lock(&device.lock);
    device.job = l;
    device.running = device.n;
    device.launches++;
    memset(device.cluster, 0, sizeof(device.cluster));
    pthread_cond_broadcast(&device.work);
    while (device.running > 0) {
        pthread_cond_wait(&device.ended, &device.lock);
    }
    pthread_mutex_unlock(&device.lock);
    pthread_mutex_unlock(&one);
}
