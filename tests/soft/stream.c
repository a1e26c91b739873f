/*
 * Streams, events and graphs: launches wait in a queue for the stream's thread.
 *
 * The thread pauses before launches, now and then for long, but no longer than
 * the host keeps away: as soon as somebody waits for the device, nothing that
 * comes too early could be seen any more, and the work goes on.
 */
#include "device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct graph graph_t;

typedef struct launch {
    struct launch *next;
    const char *name;
    soft_body_f body;
    graph_t *graph; /* instead of a body: all of its launches */
    bool point;     /* an event's: no kernel */
    _Alignas(64) uint8_t args[];
} launch_t;

struct graph {
    launch_t *first, **end;
    unsigned users; /* the owner, and replays under way */
};

typedef struct queue {
    struct queue *next; /* of all streams */
    pthread_t thread;
    launch_t *first, **end;
    graph_t *capture; /* launches go there */
    bool busy, closing;
    bool awake; /* may touch the device's memory */
    uint64_t random;
} queue_t;

typedef struct {
    uint64_t recorded, passed; /* how often */
    double us;                 /* when, last */
} event_t;

pthread_mutex_t soft_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t soft_changed = PTHREAD_COND_INITIALIZER;
const tr_stream_t soft_cpu_stream = { .threads = 1 };

static queue_t *queues;
static unsigned waiting; /* host threads that wait for the device */
static unsigned awake;   /* streams */
static uint64_t opened;  /* streams so far */
static char fault[256];
static bool lost;

/* ---- faults ------------------------------------------------------------- */

const char *
soft_fault_reason(void)
{
    return fault[0] != '\0' ? fault : NULL;
}

bool
soft_device_lost(void)
{
    return lost;
}

int
soft_check(void)
{
    int rc = TR_KERNEL_OK;

    pthread_mutex_lock(&soft_lock);
    if (soft_fault_reason() != NULL) {
        rc = soft_failed("%s", fault);
    }
    pthread_mutex_unlock(&soft_lock);
    return rc;
}

void
soft_fault(const char *name, const char *why)
{
    pthread_mutex_lock(&soft_lock);
    if (fault[0] == '\0') {
        snprintf(fault, sizeof(fault), "%s (%s)", why, name);
        fprintf(stderr, "soft device: %s; TOKENRING_SOFT_SEED=%llu\n", fault,
                (unsigned long long) soft_seed());
    }
    pthread_cond_broadcast(&soft_changed);
    pthread_mutex_unlock(&soft_lock);
}

/* Does what the environment asked of the kernel that is about to run. */
static void
fault_asked(const char *name)
{
    if (soft_fails(SOFT_KERNEL)) {
        soft_fault(name, "an illegal memory access was encountered");
    }
    if (soft_fails(SOFT_LOST)) {
        pthread_mutex_lock(&soft_lock);
        lost = true;
        pthread_mutex_unlock(&soft_lock);
        soft_fault(name, "the GPU has fallen off the bus");
    }
}

/* ---- scratch ------------------------------------------------------------ */

#define SCRATCH_MAX 32

static __thread struct {
    void *p[SCRATCH_MAX];
    size_t bytes[SCRATCH_MAX];
    unsigned used;
} scratch;

void *
soft_scratch(size_t bytes)
{
    unsigned i = scratch.used++;

    if (i == SCRATCH_MAX) {
        abort();
    }
    if (scratch.bytes[i] < bytes || scratch.p[i] == NULL) {
        free(scratch.p[i]);
        scratch.bytes[i] = tr_pad(bytes + 1, 4096);
        scratch.p[i] = aligned_alloc(64, scratch.bytes[i]);
        if (scratch.p[i] == NULL) {
            abort();
        }
    }
    memset(scratch.p[i], 0xff, bytes);
    return scratch.p[i];
}

static void
scratch_free(void)
{
    for (unsigned i = 0; i < SCRATCH_MAX; i++) {
        free(scratch.p[i]);
    }
}

/* ---- a stream's thread -------------------------------------------------- */

static uint64_t
random_next(queue_t *q)
{
    uint64_t z = q->random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Microseconds before the next launch: mostly none. */
static uint64_t
pause_length(queue_t *q)
{
    uint64_t r = random_next(q), kind = r % 512;

    if (soft_seed() == 0) {
        return 0;
    }
    r >>= 16;
    return kind == 0 ? r % 20000 : kind < 8 ? r % 2000 : kind < 64 ? r % 50 : 0;
}

/* With the lock. */
static void
take_a_break(queue_t *q)
{
    uint64_t us = pause_length(q);
    struct timespec until;

    if (us == 0) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long) us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (waiting == 0 && !q->closing
           && pthread_cond_timedwait(&soft_changed, &soft_lock, &until)
                  != ETIMEDOUT) {
    }
}

/* With the lock, which it gives up while the body runs. */
static void
run(queue_t *q, const launch_t *l)
{
    if (!l->point) {
        take_a_break(q);
    }
    pthread_mutex_unlock(&soft_lock);
    if (!l->point) {
        fault_asked(l->name);
    }
    if (soft_check() == TR_KERNEL_OK) {
        scratch.used = 0;
        l->body((void *) l->args);
    }
    pthread_mutex_lock(&soft_lock);
}

static void
graph_leave(graph_t *g)
{
    launch_t *l, *next;

    if (--g->users > 0) {
        return;
    }
    for (l = g->first; l != NULL; l = next) {
        next = l->next;
        free(l);
    }
    free(g);
}

/* With the lock: while nothing runs, nobody may touch the device's memory.  This
 * is seen to now and then, since it costs more than most kernels. */
static void
stay_awake(queue_t *q, bool yes)
{
    static uint64_t times;

    if (q->awake == yes) {
        return;
    }
    q->awake = yes;
    awake += yes ? 1u : -1u;
    if (awake == 0 && ++times % soft_guard() == 0) {
        soft_memory_open(false);
    } else if (awake == 1 && yes) {
        soft_memory_open(true);
    }
}

static void *
thread_main(void *arg)
{
    queue_t *q = arg;

    pthread_mutex_lock(&soft_lock);
    for (;;) {
        launch_t *l = q->first;

        if (l == NULL && q->closing) {
            break;
        }
        if (l == NULL) {
            pthread_cond_wait(&soft_changed, &soft_lock);
            continue;
        }
        stay_awake(q, true);
        q->busy = true;
        q->first = l->next;
        if (q->first == NULL) {
            q->end = &q->first;
        }
        if (l->graph == NULL) {
            run(q, l);
        } else {
            for (const launch_t *i = l->graph->first; i != NULL; i = i->next) {
                run(q, i);
            }
            graph_leave(l->graph);
        }
        free(l);
        if (q->first == NULL) {
            stay_awake(q, false);
        }
        q->busy = false;
        pthread_cond_broadcast(&soft_changed);
    }
    pthread_mutex_unlock(&soft_lock);
    scratch_free();
    return NULL;
}

/* ---- streams ------------------------------------------------------------ */

int
tr_cuda_stream_open(const tr_cuda_device_t *device, tr_cuda_stream_t *out)
{
    queue_t *q = calloc(1, sizeof(*q));

    if (q == NULL || soft_check() != TR_KERNEL_OK) {
        free(q);
        return TR_CUDA_FAILED;
    }
    q->end = &q->first;
    pthread_mutex_lock(&soft_lock);
    q->random = soft_seed() + 0x1000000 * ++opened;
    q->next = queues;
    queues = q;
    pthread_mutex_unlock(&soft_lock);
    if (pthread_create(&q->thread, NULL, thread_main, q) != 0) {
        abort();
    }
    out->stream = q;
    out->device = device;
    return TR_KERNEL_OK;
}

void
tr_cuda_stream_close(tr_cuda_stream_t *s)
{
    queue_t *q = s->stream, **at = &queues;

    if (q == NULL) {
        return;
    }
    pthread_mutex_lock(&soft_lock);
    q->closing = true;
    while (*at != q) {
        at = &(*at)->next;
    }
    *at = q->next;
    pthread_cond_broadcast(&soft_changed);
    pthread_mutex_unlock(&soft_lock);
    pthread_join(q->thread, NULL);
    if (q->capture != NULL) {
        graph_leave(q->capture);
    }
    free(q);
    s->stream = NULL;
}

/* With the lock: has all that was launched run? */
static bool
queue_dry(const queue_t *q)
{
    return q->first == NULL && !q->busy;
}

int
tr_cuda_stream_wait(const tr_cuda_stream_t *s)
{
    const queue_t *q = s->stream;

    if (soft_capturing()) {
        return soft_failed("a captured stream was waited for");
    }
    pthread_mutex_lock(&soft_lock);
    waiting++;
    pthread_cond_broadcast(&soft_changed);
    while (!queue_dry(q)) {
        pthread_cond_wait(&soft_changed, &soft_lock);
    }
    waiting--;
    pthread_mutex_unlock(&soft_lock);
    return soft_check();
}

void
soft_drain(void)
{
    pthread_mutex_lock(&soft_lock);
    waiting++;
    pthread_cond_broadcast(&soft_changed);
    for (const queue_t *q = queues; q != NULL;) {
        if (queue_dry(q)) {
            q = q->next;
        } else {
            pthread_cond_wait(&soft_changed, &soft_lock);
            q = queues;
        }
    }
    waiting--;
    pthread_mutex_unlock(&soft_lock);
}

bool
soft_capturing(void)
{
    bool any = false;

    pthread_mutex_lock(&soft_lock);
    for (const queue_t *q = queues; q != NULL; q = q->next) {
        any = any || q->capture != NULL;
    }
    pthread_mutex_unlock(&soft_lock);
    return any;
}

static launch_t *
launch_new(const char *name, soft_body_f body, const void *args, size_t bytes)
{
    launch_t *l = aligned_alloc(64, tr_pad(sizeof(*l) + bytes, 64));

    if (l == NULL) {
        abort();
    }
    *l = (launch_t){ .name = name, .body = body };
    if (bytes > 0) {
        memcpy(l->args, args, bytes);
    }
    return l;
}

/* With the lock. */
static void
enqueue(queue_t *q, launch_t *l)
{
    launch_t ***end = q->capture != NULL ? &q->capture->end : &q->end;

    **end = l;
    *end = &l->next;
    pthread_cond_broadcast(&soft_changed);
}

int
soft_launch(const tr_cuda_stream_t *s, const char *name, soft_body_f body,
            const void *args, size_t bytes)
{
    launch_t *l;

    if (soft_check() != TR_KERNEL_OK) {
        return TR_CUDA_FAILED;
    }
    if (soft_fails(SOFT_LAUNCH)) {
        return soft_failed("%s was not launched: too many resources requested",
                           name);
    }
    l = launch_new(name, body, args, bytes);
    pthread_mutex_lock(&soft_lock);
    enqueue(s->stream, l);
    pthread_mutex_unlock(&soft_lock);
    return TR_KERNEL_OK;
}

/* ---- events ------------------------------------------------------------- */

typedef struct {
    event_t *event;
    uint64_t which;
} point_t;

int
tr_cuda_event_open(void **event)
{
    *event = calloc(1, sizeof(event_t));
    return *event != NULL ? soft_check() : soft_failed("out of memory");
}

void
tr_cuda_event_close(void *event)
{
    if (event != NULL) {
        soft_drain(); /* streams may know it */
        free(event);
    }
}

static void
pass(void *args)
{
    const point_t *p = args;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&soft_lock);
    p->event->passed = p->which;
    p->event->us = (double) now.tv_sec * 1e6 + (double) now.tv_nsec * 1e-3;
    pthread_cond_broadcast(&soft_changed);
    pthread_mutex_unlock(&soft_lock);
}

static void
follow(void *args)
{
    const point_t *p = args;

    pthread_mutex_lock(&soft_lock);
    while (p->event->passed < p->which && soft_fault_reason() == NULL) {
        pthread_cond_wait(&soft_changed, &soft_lock);
    }
    pthread_mutex_unlock(&soft_lock);
}

/* Body in s, at the event's present count. */
static int
point(const tr_cuda_stream_t *s, void *event, soft_body_f body, bool record)
{
    queue_t *q = s->stream;
    point_t p = { .event = event };
    launch_t *l;

    if (soft_check() != TR_KERNEL_OK) {
        return TR_CUDA_FAILED;
    }
    pthread_mutex_lock(&soft_lock);
    if (q->capture != NULL) {
        pthread_mutex_unlock(&soft_lock);
        return soft_failed("events do not go into a graph");
    }
    p.which = p.event->recorded += record;
    l = launch_new("event", body, &p, sizeof(p));
    l->point = true;
    enqueue(q, l);
    pthread_mutex_unlock(&soft_lock);
    return TR_KERNEL_OK;
}

int
tr_cuda_event_record(const tr_cuda_stream_t *s, void *event)
{
    return point(s, event, pass, true);
}

int
tr_cuda_event_follow(const tr_cuda_stream_t *s, void *event)
{
    return point(s, event, follow, false);
}

int
tr_cuda_event_passed(void *event)
{
    const event_t *e = event;
    bool passed;

    if (soft_check() != TR_KERNEL_OK) {
        return TR_CUDA_FAILED;
    }
    pthread_mutex_lock(&soft_lock);
    passed = e->passed == e->recorded;
    pthread_mutex_unlock(&soft_lock);
    return passed;
}

int
tr_cuda_event_wait(void *event)
{
    const event_t *e = event;

    pthread_mutex_lock(&soft_lock);
    waiting++;
    pthread_cond_broadcast(&soft_changed);
    while (e->passed != e->recorded && soft_fault_reason() == NULL) {
        pthread_cond_wait(&soft_changed, &soft_lock);
    }
    waiting--;
    pthread_mutex_unlock(&soft_lock);
    return soft_check();
}

int
tr_cuda_event_time(void *from, void *to, double *us)
{
    const event_t *a = from, *b = to;

    if (tr_cuda_event_passed(from) != 1 || tr_cuda_event_passed(to) != 1
        || a->recorded == 0 || b->recorded == 0) {
        return soft_failed("the time of an event that has not passed");
    }
    *us = b->us - a->us;
    return TR_KERNEL_OK;
}

/* ---- graphs ------------------------------------------------------------- */

int
tr_cuda_graph_begin(const tr_cuda_stream_t *s)
{
    queue_t *q = s->stream;
    graph_t *g = calloc(1, sizeof(*g));

    if (g == NULL || soft_check() != TR_KERNEL_OK) {
        free(g);
        return TR_CUDA_FAILED;
    }
    g->end = &g->first;
    g->users = 1;
    pthread_mutex_lock(&soft_lock);
    if (q->capture != NULL) {
        pthread_mutex_unlock(&soft_lock);
        free(g);
        return soft_failed("the stream is already being captured");
    }
    q->capture = g;
    pthread_mutex_unlock(&soft_lock);
    return TR_KERNEL_OK;
}

int
tr_cuda_graph_end(const tr_cuda_stream_t *s, void **graph)
{
    queue_t *q = s->stream;

    pthread_mutex_lock(&soft_lock);
    *graph = q->capture;
    q->capture = NULL;
    pthread_mutex_unlock(&soft_lock);
    return *graph != NULL ? soft_check() : soft_failed("nothing was captured");
}

int
tr_cuda_graph_launch(const tr_cuda_stream_t *s, void *graph)
{
    queue_t *q = s->stream;
    graph_t *g = graph;
    launch_t *l;

    if (soft_check() != TR_KERNEL_OK) {
        return TR_CUDA_FAILED;
    }
    l = launch_new("graph", NULL, NULL, 0);
    l->graph = g;
    pthread_mutex_lock(&soft_lock);
    if (q->capture != NULL) {
        pthread_mutex_unlock(&soft_lock);
        free(l);
        return soft_failed("a graph does not go into a graph");
    }
    g->users++;
    enqueue(q, l);
    pthread_mutex_unlock(&soft_lock);
    return TR_KERNEL_OK;
}

void
tr_cuda_graph_close(void *graph)
{
    if (graph != NULL) {
        pthread_mutex_lock(&soft_lock);
        graph_leave(graph);
        pthread_mutex_unlock(&soft_lock);
    }
}
