/*
 * Parser threads (request_parser.h).  A mutex and a condition: this is once per
 * request, not once per token.
 */
#include "request_parser.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "openai_json.h"

typedef struct {
    tr_request_t *head, *tail;
    uint32_t n;
} list_t;

typedef struct {
    pthread_t thread;
    tr_tokenizer_scratch_t *scratch;
    tr_request_parser_t *parser;
} worker_t;

struct tr_request_parser {
    const tr_openai_t *api;
    uint32_t queue_max;
    int done_fd;
    uint32_t outstanding; /* frontend thread only */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    list_t waiting, done; /* under the mutex, as is `stopping` */
    bool stopping;
    uint32_t n_workers;
    worker_t *workers;
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

static void *
parser_thread(void *arg)
{
    worker_t *w = arg;
    tr_request_parser_t *p = w->parser;
    tr_request_t *r;
    bool first;

    pthread_setname_np(pthread_self(), "tr-parser");
    for (;;) {
        pthread_mutex_lock(&p->mutex);
        while (p->waiting.head == NULL && !p->stopping) {
            pthread_cond_wait(&p->work, &p->mutex);
        }
        r = p->stopping ? NULL : list_pop(&p->waiting);
        pthread_mutex_unlock(&p->mutex);
        if (r == NULL) {
            return NULL;
        }
        /* whoever left meanwhile is not worth the work */
        if (!(atomic_load(&r->control)
              & (TR_CONTROL_ABORT | TR_CONTROL_CANCEL))) {
            tr_openai_parse(p->api, w->scratch, r);
        }
        pthread_mutex_lock(&p->mutex);
        first = p->done.head == NULL;
        list_push(&p->done, r);
        pthread_mutex_unlock(&p->mutex);
        if (first) {
            tr_doorbell_ring(p->done_fd);
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
    rc = start_workers(p, threads, err);
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
    full = p->waiting.n >= p->queue_max;
    if (!full) {
        list_push(&p->waiting, r);
        pthread_cond_signal(&p->work);
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

uint32_t
tr_request_parser_outstanding(const tr_request_parser_t *p)
{
    return p->outstanding;
}

void
tr_request_parser_stop(tr_request_parser_t *p)
{
    uint32_t k;

    pthread_mutex_lock(&p->mutex);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
    for (k = 0; k < p->n_workers; k++) {
        pthread_join(p->workers[k].thread, NULL);
        tr_tokenizer_scratch_free(p->workers[k].scratch);
    }
    list_free(&p->waiting);
    list_free(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->mutex);
    free(p->workers);
    free(p);
}
