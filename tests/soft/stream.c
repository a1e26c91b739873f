/*
 * Streams, events and graphs: launches wait in a queue for the stream's thread.
 *
 * The thread pauses before launches, now and then for long, but no longer than
 * the host keeps away: as soon as somebody waits for the device, nothing that
 * comes too early could be seen any more, and the work goes on.
 *
 * A graph has a branch for each stream that was captured with it.  Its launches run
 * one after the other, the branches' mixed as chance has it, as far as nothing
 * waits for an event: what is not waited for does come too late.
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
    uint32_t record,
        follow; /* of a graph, instead of a body: its points, from 1 */
    _Alignas(64) uint8_t args[];
} launch_t;

#define BRANCHES_MAX 4u
#define POINTS_MAX 32u

struct graph {
    launch_t *first[BRANCHES_MAX], **end[BRANCHES_MAX];
    uint32_t branches, points;
    uint64_t number; /* of the capture */
    unsigned users;  /* the owner, and replays under way */
};

typedef struct queue {
    struct queue *next; /* of all streams */
    pthread_t thread;
    launch_t *first, **end;
    graph_t *capture; /* launches go there, */
    uint32_t branch;  /* to this one */
    bool busy, closing;
    bool awake; /* may touch the device's memory */
    uint64_t random;
} queue_t;

typedef struct {
    uint64_t recorded, passed; /* how often */
    double us;                 /* when, last */
    uint64_t capture;          /* in which it was recorded last; 0: in none, */
    uint32_t point;            /* as this one */
} event_t;

pthread_mutex_t soft_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t soft_changed = PTHREAD_COND_INITIALIZER;
const tr_stream_t soft_cpu_stream = { .threads = 1 };

static queue_t *queues;
static unsigned waiting;  /* host threads that wait for the device */
static unsigned awake;    /* streams */
static uint64_t opened;   /* streams so far */
static uint64_t captures; /* so far */
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
    for (uint32_t b = 0; b < g->branches; b++) {
        for (l = g->first[b]; l != NULL; l = next) {
            next = l->next;
            free(l);
        }
    }
    free(g);
}

/* With the lock: the launches of a graph. */
static void
replay(queue_t *q, const graph_t *g)
{
    const launch_t *at[BRANCHES_MAX];
    bool passed[POINTS_MAX + 1] = { true };

    memcpy(at, g->first, sizeof(at));
    for (;;) {
        uint64_t from = soft_seed() == 0 ? 0 : random_next(q);
        const launch_t *l = NULL;

        for (uint32_t i = 0; i < g->branches && l == NULL; i++) {
            uint32_t b = (uint32_t) ((from + i) % g->branches);

            if (at[b] != NULL && passed[at[b]->follow]) {
                l = at[b];
                at[b] = l->next;
            }
        }
        if (l == NULL) {
            return; /* graph_end has seen to it that nothing is left */
        }
        if (l->record != 0) {
            passed[l->record] = true;
        } else if (l->follow == 0) {
            run(q, l);
        }
    }
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
            replay(q, l->graph);
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

/* With the lock: no stream is captured for it any more. */
static void
capture_leave(const graph_t *g)
{
    for (queue_t *q = queues; q != NULL; q = q->next) {
        q->capture = q->capture == g ? NULL : q->capture;
    }
}

int
tr_cuda_stream_open(const tr_device_props_t *device, tr_cuda_stream_t *out)
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
    if (q->capture != NULL && q->branch == 0) {
        pthread_mutex_lock(&soft_lock);
        capture_leave(q->capture);
        pthread_mutex_unlock(&soft_lock);
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
    launch_t ***end = q->capture != NULL ? &q->capture->end[q->branch]
                                         : &q->end;

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

/* With the lock: the graph that is being captured, if it still is. */
static graph_t *
captured(uint64_t number)
{
    for (const queue_t *q = queues; q != NULL && number != 0; q = q->next) {
        if (q->capture != NULL && q->capture->number == number) {
            return q->capture;
        }
    }
    return NULL;
}

static void
branch_open(queue_t *q, graph_t *g)
{
    q->capture = g;
    q->branch = g->branches++;
    g->end[q->branch] = &g->first[q->branch];
}

/* With the lock: a point of a graph.  A stream that follows one becomes a branch. */
static const char *
point_captured(queue_t *q, event_t *event, bool record)
{
    graph_t *g = record ? q->capture : captured(event->capture);
    launch_t *l;

    if (g == NULL || (q->capture != NULL && q->capture != g)) {
        return "an event from outside does not go into a graph";
    }
    if (g->branches == BRANCHES_MAX || g->points == POINTS_MAX) {
        return "too many branches or events in a graph";
    }
    if (q->capture == NULL) {
        branch_open(q, g);
    }
    l = launch_new("event", NULL, NULL, 0);
    if (record) {
        event->capture = g->number;
        l->record = event->point = ++g->points;
    } else {
        l->follow = event->point;
    }
    enqueue(q, l);
    return NULL;
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
    if (q->capture != NULL || (!record && captured(p.event->capture) != NULL)) {
        const char *why = point_captured(q, event, record);

        pthread_mutex_unlock(&soft_lock);
        return why == NULL ? TR_KERNEL_OK : soft_failed("%s", why);
    }
    p.event->capture = record ? 0 : p.event->capture;
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
    g->users = 1;
    pthread_mutex_lock(&soft_lock);
    if (q->capture != NULL) {
        pthread_mutex_unlock(&soft_lock);
        free(g);
        return soft_failed("the stream is already being captured");
    }
    g->number = ++captures;
    branch_open(q, g);
    pthread_mutex_unlock(&soft_lock);
    return TR_KERNEL_OK;
}

/* With the lock: has a branch something that nobody waits for? */
static bool
branch_left(const graph_t *g, uint32_t branch)
{
    uint32_t last = 0;

    for (const launch_t *l = g->first[branch]; l != NULL; l = l->next) {
        last = l->record;
    }
    for (uint32_t b = 0; b < g->branches && last != 0; b++) {
        for (const launch_t *l = g->first[b]; l != NULL; l = l->next) {
            if (b != branch && l->follow == last) {
                return false;
            }
        }
    }
    return true;
}

int
tr_cuda_graph_end(const tr_cuda_stream_t *s, void **graph)
{
    const queue_t *q = s->stream;
    graph_t *g;
    bool left = false;

    pthread_mutex_lock(&soft_lock);
    *graph = g = q->capture;
    for (uint32_t b = 1; g != NULL && b < g->branches; b++) {
        left = left || branch_left(g, b);
    }
    capture_leave(g);
    if (left) {
        graph_leave(g);
        *graph = NULL;
    }
    pthread_mutex_unlock(&soft_lock);
    return left ? soft_failed("a stream was not waited for in a graph")
           : *graph != NULL ? soft_check()
                            : soft_failed("nothing was captured");
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
