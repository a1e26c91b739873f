/*
 * Intake threads (intake.h).  A mutex and a condition: this is once per
 * request, not once per token.
 */
#include "intake.h"

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
    tr_intake_t *intake;
} worker_t;

struct tr_intake {
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
worker_run(void *arg)
{
    worker_t *w = arg;
    tr_intake_t *in = w->intake;
    tr_request_t *r;
    bool first;

    pthread_setname_np(pthread_self(), "tr-intake");
    for (;;) {
        pthread_mutex_lock(&in->mutex);
        while (in->waiting.head == NULL && !in->stopping) {
            pthread_cond_wait(&in->work, &in->mutex);
        }
        r = in->stopping ? NULL : list_pop(&in->waiting);
        pthread_mutex_unlock(&in->mutex);
        if (r == NULL) {
            return NULL;
        }
        /* whoever left meanwhile is not worth the work */
        if (!(atomic_load(&r->control)
              & (TR_CONTROL_ABORT | TR_CONTROL_CANCEL))) {
            tr_openai_parse(in->api, w->scratch, r);
        }
        pthread_mutex_lock(&in->mutex);
        first = in->done.head == NULL;
        list_push(&in->done, r);
        pthread_mutex_unlock(&in->mutex);
        if (first) {
            tr_doorbell_ring(in->done_fd);
        }
    }
}

static tr_status_t
start_workers(tr_intake_t *in, uint32_t threads, tr_error_t *err)
{
    int e;

    in->workers = calloc(threads, sizeof(*in->workers));
    if (in->workers == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "no memory for %u "
                            "tokenizer threads",
                            threads);
    }
    while (in->n_workers < threads) {
        worker_t *w = &in->workers[in->n_workers];

        w->intake = in;
        w->scratch = tr_tokenizer_scratch_new(in->api->tokenizer);
        if (w->scratch == NULL) {
            return tr_error_set(err, TR_ERR_NOMEM, "",
                                "no memory for a "
                                "tokenizer thread");
        }
        e = pthread_create(&w->thread, NULL, worker_run, w);
        if (e != 0) {
            tr_tokenizer_scratch_free(w->scratch);
            return tr_error_set(err, TR_ERR_IO, "",
                                "cannot start a tokenizer "
                                "thread: %s",
                                strerror(e));
        }
        in->n_workers++;
    }
    return TR_OK;
}

tr_status_t
tr_intake_start(const tr_openai_t *api, uint32_t threads, uint32_t queue_max,
                int done_fd, tr_intake_t **out, tr_error_t *err)
{
    tr_intake_t *in = calloc(1, sizeof(*in));
    tr_status_t rc;

    *out = NULL;
    if (in == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory for intake");
    }
    tr_json_init();
    in->api = api;
    in->queue_max = queue_max;
    in->done_fd = done_fd;
    pthread_mutex_init(&in->mutex, NULL);
    pthread_cond_init(&in->work, NULL);
    rc = start_workers(in, threads, err);
    if (rc != TR_OK) {
        tr_intake_stop(in);
        return rc;
    }
    *out = in;
    return TR_OK;
}

tr_status_t
tr_intake_submit(tr_intake_t *i, tr_request_t *r)
{
    bool full;

    pthread_mutex_lock(&i->mutex);
    full = i->waiting.n >= i->queue_max;
    if (!full) {
        list_push(&i->waiting, r);
        pthread_cond_signal(&i->work);
    }
    pthread_mutex_unlock(&i->mutex);
    if (full) {
        return TR_ERR_QUEUE_FULL;
    }
    i->outstanding++;
    return TR_OK;
}

tr_request_t *
tr_intake_take(tr_intake_t *i)
{
    tr_request_t *r;

    if (i->outstanding == 0) {
        return NULL;
    }
    pthread_mutex_lock(&i->mutex);
    r = list_pop(&i->done);
    pthread_mutex_unlock(&i->mutex);
    if (r != NULL) {
        i->outstanding--;
    }
    return r;
}

uint32_t
tr_intake_outstanding(const tr_intake_t *i)
{
    return i->outstanding;
}

void
tr_intake_stop(tr_intake_t *i)
{
    uint32_t k;

    pthread_mutex_lock(&i->mutex);
    i->stopping = true;
    pthread_cond_broadcast(&i->work);
    pthread_mutex_unlock(&i->mutex);
    for (k = 0; k < i->n_workers; k++) {
        pthread_join(i->workers[k].thread, NULL);
        tr_tokenizer_scratch_free(i->workers[k].scratch);
    }
    list_free(&i->waiting);
    list_free(&i->done);
    pthread_cond_destroy(&i->work);
    pthread_mutex_destroy(&i->mutex);
    free(i->workers);
    free(i);
}
