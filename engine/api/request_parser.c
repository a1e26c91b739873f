/*
 * Parser threads (request_parser.h).  A mutex and a condition: this is once per
 * request, not once per token.
 *
 * Bodies wait in two lanes, by size, so that large ones can be kept off one of
 * the threads.  In a lane tenants take turns by deficit round robin (Shreedhar
 * and Varghese, 1995): each has a queue, and a visit lets it spend QUANTUM bytes
 * of body.  A request that refers to responses that are kept is away until these
 * have come (kept.h), and is then read once more.  A request whose grammar is new goes on to the compilers, for which
 * at most COMPILING_MAX wait.
 */
#include "request_parser.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/crash.h"
#include "engine/config/log.h"
#include "endpoint.h"
#include "openai_json.h"

typedef struct {
    tr_request_t *head, *tail;
    uint32_t n;
} list_t;

#define LARGE (256u << 10)  /* bytes of a body that one thread never takes */
#define QUANTUM (64u << 10) /* bytes of bodies a visit */
#define LEAST (4u << 10)    /* what the smallest body counts */
#define TENANTS 64          /* queues of a lane; tenants share them by hash */

typedef struct {
    list_t queue[TENANTS];
    uint64_t deficit[TENANTS]; /* bytes that the queue may still spend */
    uint32_t at;               /* whose turn it is */
    uint32_t n;                /* requests in all queues */
} lane_t;

enum { SMALL_LANE, LARGE_LANE, LANES };

typedef struct {
    pthread_t thread;
    bool small_only;
    int next; /* lane to be looked at first */
    tr_tokenizer_scratch_t *scratch;
    tr_request_parser_t *parser;
} worker_t;

#define COMPILING_MAX 64 /* requests whose grammar waits */
#define COMPILER_NICE 10 /* a compiler waits for a step, not a step for it */

struct tr_request_parser {
    const tr_openai_t *api;
    uint32_t queue_max;
    int done_fd;
    uint32_t outstanding; /* frontend thread only */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    lane_t lanes[LANES]; /* under the mutex, as are `done` and `stopping` */
    list_t done;
    uint32_t away; /* requests that wait for responses that are kept */
    pthread_cond_t back;
    bool stopping;
    uint32_t n_workers;
    worker_t *workers;
    /* requests with a grammar that is not known yet, and who compiles it */
    pthread_cond_t compile;
    list_t compiling; /* under the mutex */
    uint32_t n_compilers;
    pthread_t *compilers;
};

static void
list_push(list_t *l, tr_request_t *r)
{
    r->next = NULL;
    if (l->tail != NULL) {
        l->tail->next = r;
    } else {
        l->head = r;
    }
    l->tail = r;
    l->n++;
}

static tr_request_t *
list_pop(list_t *l)
{
    tr_request_t *r = l->head;

    if (r != NULL) {
        l->head = r->next;
        if (l->head == NULL) {
            l->tail = NULL;
        }
        r->next = NULL;
        l->n--;
    }
    return r;
}

static void
list_free(list_t *l)
{
    tr_request_t *r;

    while ((r = list_pop(l)) != NULL) {
        tr_request_free(r);
    }
}

static uint64_t
cost(const tr_request_t *r)
{
    return r->body_len > LEAST ? r->body_len : LEAST;
}

static void
lane_push(lane_t *l, tr_request_t *r)
{
    /* tenants are hashes, but not all of them good ones */
    uint64_t h = r->tenant * 0x9e3779b97f4a7c15ull;

    list_push(&l->queue[(h >> 32) % TENANTS], r);
    l->n++;
}

static tr_request_t *
lane_pop(lane_t *l)
{
    while (l->n != 0) {
        list_t *q = &l->queue[l->at];

        if (q->head != NULL && l->deficit[l->at] >= cost(q->head)) {
            tr_request_t *r;

            l->deficit[l->at] -= cost(q->head);
            r = list_pop(q);
            if (q->head == NULL) {
                l->deficit[l->at] = 0;
            }
            l->n--;
            return r;
        }
        l->at = (l->at + 1) % TENANTS;
        if (l->queue[l->at].head != NULL) {
            l->deficit[l->at] += QUANTUM;
        }
    }
    return NULL;
}

static void
lane_free(lane_t *l)
{
    uint32_t i;

    for (i = 0; i < TENANTS; i++) {
        list_free(&l->queue[i]);
    }
}

/* The next request for w, NULL: none that it may take.  A thread that takes
 * both kinds alternates. */
static tr_request_t *
next_request(worker_t *w)
{
    tr_request_parser_t *p = w->parser;
    tr_request_t *r;

    if (w->small_only) {
        return lane_pop(&p->lanes[SMALL_LANE]);
    }
    r = lane_pop(&p->lanes[w->next]);
    w->next = LANES - 1 - w->next;
    return r != NULL ? r : lane_pop(&p->lanes[w->next]);
}

static void
push_done(tr_request_parser_t *p, tr_request_t *r)
{
    bool first;

    pthread_mutex_lock(&p->mutex);
    first = p->done.head == NULL;
    list_push(&p->done, r);
    pthread_mutex_unlock(&p->mutex);
    if (first) {
        tr_doorbell_ring(p->done_fd);
    }
}

/* ---- grammars ---- */

static void
constrain(tr_request_t *r, tr_grammar_t *g)
{
    tr_status_t rc = tr_request_constrain(r, g);

    if (rc != TR_OK && rc != TR_ERR_NOMEM && r->replayed != 0) {
        tr_error_set(&r->error, TR_ERR_REPLAY, "",
                     "This request could not be continued at another "
                     "engine: its grammar does not allow the tokens so far");
    } else if (rc != TR_OK) {
        tr_error_set(&r->error, TR_ERR_NOMEM, "", "out of memory");
    } else if (tr_grammar_dropped(g) != 0) {
        tr_log(TR_LEVEL_INFO,
               "keywords of a schema that are not enforced request=%s n=%u",
               r->request_id, tr_grammar_dropped(g));
    }
}

/* A request that was read.  True: it went to the compilers. */
static bool
needs_compiling(tr_request_parser_t *p, tr_request_t *r)
{
    tr_grammar_t *g;
    bool full;

    /* some endpoints generate nothing */
    if (r->error.status != TR_OK || !r->constrained || r->n_sequences == 0) {
        return false;
    }
    g = tr_grammar_cache_find(p->api->grammars, &r->grammar_spec);
    if (g != NULL) {
        constrain(r, g);
        return false;
    }
    pthread_mutex_lock(&p->mutex);
    full = p->compiling.n >= COMPILING_MAX;
    if (!full) {
        list_push(&p->compiling, r);
        pthread_cond_signal(&p->compile);
    }
    pthread_mutex_unlock(&p->mutex);
    if (full) {
        tr_error_set(&r->error, TR_ERR_QUEUE_FULL, "",
                     "The engine is busy compiling grammars: %d requests "
                     "wait for that. Please try again later.",
                     COMPILING_MAX);
    }
    return !full;
}

static bool
has_left(const tr_request_t *r)
{
    return (atomic_load(&r->control) & (TR_CONTROL_ABORT | TR_CONTROL_CANCEL))
           != 0;
}

static void
compile(tr_request_parser_t *p, tr_request_t *r)
{
    tr_grammar_t *g;

    if (tr_grammar_cache_get(p->api->grammars, &r->grammar_spec, &g, &r->error)
        == TR_OK) {
        constrain(r, g);
    } else {
        tr_endpoint_name_fields(r->endpoint, &r->error);
    }
}

static void *
compiler_thread(void *arg)
{
    tr_request_parser_t *p = arg;
    tr_request_t *r;

    pthread_setname_np(pthread_self(), "tr-grammar");
    tr_crash_stack();
    (void) setpriority(PRIO_PROCESS, (id_t) gettid(), COMPILER_NICE);
    for (;;) {
        pthread_mutex_lock(&p->mutex);
        while (p->compiling.head == NULL && !p->stopping) {
            pthread_cond_wait(&p->compile, &p->mutex);
        }
        r = p->stopping ? NULL : list_pop(&p->compiling);
        pthread_mutex_unlock(&p->mutex);
        if (r == NULL) {
            return NULL;
        }
        if (!has_left(r)) {
            compile(p, r);
        }
        push_done(p, r);
    }
}

static tr_status_t
start_compilers(tr_request_parser_t *p, tr_error_t *err)
{
    uint32_t n = p->api->grammars == NULL ? 0 : p->api->grammar_threads;

    p->compilers = calloc(n + 1, sizeof(*p->compilers));
    if (p->compilers == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "no memory for %u grammar threads", n);
    }
    while (p->n_compilers < n) {
        int e = pthread_create(&p->compilers[p->n_compilers], NULL,
                               compiler_thread, p);

        if (e != 0) {
            return tr_error_set(err, TR_ERR_IO, "",
                                "cannot start a grammar thread: %s",
                                strerror(e));
        }
        p->n_compilers++;
    }
    return TR_OK;
}

/* ---- bodies ---- */

static void
come_back(tr_lookup_t *l)
{
    tr_request_parser_t *p = l->ctx;
    tr_request_t *r = l->request;

    pthread_mutex_lock(&p->mutex);
    p->away--;
    lane_push(&p->lanes[r->body_len > LARGE ? LARGE_LANE : SMALL_LANE], r);
    pthread_cond_broadcast(&p->work);
    pthread_cond_signal(&p->back);
    pthread_mutex_unlock(&p->mutex);
}

/* False: it is refused. */
static bool
send_away(tr_request_parser_t *p, tr_request_t *r)
{
    tr_lookup_t *l = r->lookup;
    bool asked;

    l->request = r;
    l->done = come_back;
    l->ctx = p;
    pthread_mutex_lock(&p->mutex);
    asked = !p->stopping && tr_lookup_ask(r->events, l);
    p->away += asked;
    pthread_mutex_unlock(&p->mutex);
    if (asked) {
        return true;
    }
    tr_error_set(&r->error, TR_ERR_QUEUE_FULL, "",
                 "Too many conversations are being read at the moment (%u); "
                 "try again later",
                 TR_LOOKUPS_MAX);
    return false;
}

static void *
parser_thread(void *arg)
{
    worker_t *w = arg;
    tr_request_parser_t *p = w->parser;
    tr_request_t *r;

    pthread_setname_np(pthread_self(), "tr-parser");
    tr_crash_stack();
    for (;;) {
        pthread_mutex_lock(&p->mutex);
        r = NULL;
        while (!p->stopping && (r = next_request(w)) == NULL) {
            pthread_cond_wait(&p->work, &p->mutex);
        }
        pthread_mutex_unlock(&p->mutex);
        if (r == NULL) {
            return NULL;
        }
        /* whoever left meanwhile is not worth the work */
        if (!has_left(r) && tr_openai_parse(p->api, w->scratch, r) == TR_AGAIN
            && send_away(p, r)) {
            continue;
        }
        if (has_left(r) || !needs_compiling(p, r)) {
            push_done(p, r);
        }
    }
}

static tr_status_t
start_workers(tr_request_parser_t *p, uint32_t threads, tr_error_t *err)
{
    int e;

    p->workers = calloc(threads, sizeof(*p->workers));
    if (p->workers == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "no memory for %u "
                            "tokenizer threads",
                            threads);
    }
    while (p->n_workers < threads) {
        worker_t *w = &p->workers[p->n_workers];

        w->parser = p;
        w->small_only = p->n_workers == 0 && threads > 1;
        w->scratch = tr_tokenizer_scratch_new(p->api->tokenizer);
        if (w->scratch == NULL) {
            return tr_error_set(err, TR_ERR_NOMEM, "",
                                "no memory for a "
                                "tokenizer thread");
        }
        e = pthread_create(&w->thread, NULL, parser_thread, w);
        if (e != 0) {
            tr_tokenizer_scratch_free(w->scratch);
            return tr_error_set(err, TR_ERR_IO, "",
                                "cannot start a tokenizer "
                                "thread: %s",
                                strerror(e));
        }
        p->n_workers++;
    }
    return TR_OK;
}

tr_status_t
tr_request_parser_start(const tr_openai_t *api, uint32_t threads,
                        uint32_t queue_max, int done_fd,
                        tr_request_parser_t **out, tr_error_t *err)
{
    tr_request_parser_t *p = calloc(1, sizeof(*p));
    tr_status_t rc;

    *out = NULL;
    if (p == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "no memory for the request parser");
    }
    tr_json_init();
    p->api = api;
    p->queue_max = queue_max;
    p->done_fd = done_fd;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->compile, NULL);
    pthread_cond_init(&p->back, NULL);
    rc = start_workers(p, threads, err);
    if (rc == TR_OK) {
        rc = start_compilers(p, err);
    }
    if (rc != TR_OK) {
        tr_request_parser_stop(p);
        return rc;
    }
    *out = p;
    return TR_OK;
}

tr_status_t
tr_request_parser_submit(tr_request_parser_t *p, tr_request_t *r)
{
    bool full;

    pthread_mutex_lock(&p->mutex);
    full = p->lanes[SMALL_LANE].n + p->lanes[LARGE_LANE].n >= p->queue_max;
    if (!full) {
        lane_push(&p->lanes[r->body_len > LARGE ? LARGE_LANE : SMALL_LANE], r);
        /* not every thread takes everything */
        pthread_cond_broadcast(&p->work);
    }
    pthread_mutex_unlock(&p->mutex);
    if (full) {
        return TR_ERR_QUEUE_FULL;
    }
    p->outstanding++;
    return TR_OK;
}

tr_request_t *
tr_request_parser_take(tr_request_parser_t *p)
{
    tr_request_t *r;

    if (p->outstanding == 0) {
        return NULL;
    }
    pthread_mutex_lock(&p->mutex);
    r = list_pop(&p->done);
    pthread_mutex_unlock(&p->mutex);
    if (r != NULL) {
        p->outstanding--;
    }
    return r;
}

void
tr_request_parser_stop(tr_request_parser_t *p)
{
    uint32_t k;

    pthread_mutex_lock(&p->mutex);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    pthread_cond_broadcast(&p->compile);
    while (p->away != 0) { /* at most TR_LOOKUP_US */
        pthread_cond_wait(&p->back, &p->mutex);
    }
    pthread_mutex_unlock(&p->mutex);
    for (k = 0; k < p->n_workers; k++) {
        pthread_join(p->workers[k].thread, NULL);
        tr_tokenizer_scratch_free(p->workers[k].scratch);
    }
    lane_free(&p->lanes[SMALL_LANE]);
    lane_free(&p->lanes[LARGE_LANE]);
    for (k = 0; k < p->n_compilers; k++) {
        pthread_join(p->compilers[k], NULL);
    }
    list_free(&p->compiling);
    list_free(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->compile);
    pthread_cond_destroy(&p->back);
    free(p->compilers);
    pthread_mutex_destroy(&p->mutex);
    free(p->workers);
    free(p);
}
