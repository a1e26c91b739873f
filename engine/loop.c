/*
 * The step loop's thread (loop.h).
 *
 * What other threads may touch: two lock-free stacks of requests, each emptied
 * at once (the intake, which the loop turns round, and those that are over), the
 * wake flag with its eventfd, three counters, and the snapshot under a mutex
 * that is held for a copy.  Everything else belongs to the loop's thread.
 *
 * A request that ended, but whose last record found no room in its outlet, has
 * given back everything but itself and waits in `ending`.  One whose last record
 * is staged goes back just before that is published: the peer may use its slot
 * again as soon as it has seen the record.
 */
#include "loop.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "emit.h"
#include "log.h"
#include "scheduler.h"

/* How often pauses and full outlets are looked at while there is work. */
#define TR_LOOP_CHECK_US 250000

/* How long, at the end, the last records may wait for room. */
#define TR_LOOP_FLUSH_US 500000

typedef struct {
    tr_request_t *first, *last;
} tr_request_list_t;

struct tr_loop {
    tr_executor_t *executor;
    tr_status_counters_t *counters;
    int front_fd;
    uint32_t max_queue;
    uint64_t stall_timeout_us, paused_timeout_us, check_us;

    /* shared with other threads */
    tr_request_t *_Atomic intake; /* linked by next, newest first */
    tr_request_t *_Atomic over;   /* the same */
    _Atomic uint32_t woken, asleep, stop;
    _Atomic uint32_t draining;    /* nobody is scheduled for the first time */
    _Atomic uint32_t outstanding; /* requests inside */
    _Atomic uint32_t queued;      /* of these, never scheduled */
    int wake_fd;
    pthread_mutex_t snapshot_lock;
    tr_status_admission_t snapshot;

    /* the loop's own */
    pthread_t thread;
    tr_scheduler_t scheduler;
    tr_emit_t emit;
    tr_request_list_t requests, ending;
    tr_request_t *leaving; /* forgotten in this turn, linked by next */
    bool news;             /* for the front thread */
    uint32_t n_requests;
    uint32_t n_quiet;       /* requests inside that tr_loop_echo looks after */
    uint64_t next_check_us; /* of pauses and full outlets */
    uint64_t step, last_step_us;
    tr_batch_item_t *items;              /* [max_num_seqs] */
    uint8_t level_of[TR_KV_LAYOUTS_MAX]; /* row of the status page */
};

static uint64_t
tr_loop_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t) ts.tv_sec * 1000000u + (uint64_t) ts.tv_nsec / 1000u;
}

static void
tr_loop_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void
tr_request_append(tr_request_list_t *l, tr_request_t *r)
{
    r->next = NULL;
    r->prev = l->last;
    if (l->last != NULL) {
        l->last->next = r;
    } else {
        l->first = r;
    }
    l->last = r;
}

static void
tr_request_unlink(tr_request_list_t *l, tr_request_t *r)
{
    if (r->prev != NULL) {
        r->prev->next = r->next;
    } else {
        l->first = r->next;
    }
    if (r->next != NULL) {
        r->next->prev = r->prev;
    } else {
        l->last = r->prev;
    }
    r->prev = r->next = NULL;
}

/* Requests for which more is to do than to sample tokens. */
static bool
tr_loop_quiet(const tr_request_t *r)
{
    return r->echo || r->params.max_tokens == 0;
}

/* ---- the end of a request ----------------------------------------------- */

/* Stages the record that ends r (r->error, its last choice, or the abort).
 * False: no room. */
static bool
tr_loop_last_record(tr_loop_t *l, tr_request_t *r)
{
    if (r->error.status != TR_OK) {
        return tr_emit_error(&l->emit, r) == TR_OK;
    }
    if (r->open_sequences == 0) { /* detached: its end had to wait for room */
        return tr_emit_finish(&l->emit, r, r->last_choice, r->finish_reason,
                              true)
               == TR_OK;
    }
    return tr_emit_finish(&l->emit, r, r->aborted_choice, TR_FINISH_ABORTED,
                          true)
           == TR_OK;
}

/* From here on the front thread owns r, as soon as the step is shown. */
static void
tr_loop_forget(tr_loop_t *l, tr_request_t *r)
{
    r->next = l->leaving;
    l->leaving = r;
    if (r->scheduled_us == 0) {
        atomic_fetch_sub(&l->queued, 1);
    }
    l->n_requests--;
    l->n_quiet -= tr_loop_quiet(r);
    atomic_fetch_sub(&l->outstanding, 1);
}

/* KV figures of a choice that ends, before its pages go; they may be swapped
 * out. */
static void
tr_loop_account(tr_loop_t *l, const tr_sequence_t *q)
{
    tr_request_t *r = q->request;
    tr_kv_usage_t u;
    double full;

    if (q->kv_slot < 0) {
        return;
    }
    tr_kv_usage(l->executor->kv, q->kv_slot, &u);
    full = (double) u.full_bytes;
    r->kv_bytes += u.bytes;
    r->kv_full_bytes += u.full_bytes;
    r->kv_high += u.share_high * full;
    r->kv_low += u.share_low * full;
    r->kv_pruned += u.share_pruned * full;
}

/* The same of a request that ends, over all. */
static void
tr_loop_count_cache(tr_loop_t *l, const tr_request_t *r)
{
    tr_status_counters_t *c = l->counters;

    if (r->kv_full_bytes != 0) {
        tr_loop_count(&c->kv_bytes, r->kv_bytes);
        tr_loop_count(&c->kv_full_bytes_high, (uint64_t) r->kv_high);
        tr_loop_count(&c->kv_full_bytes_low, (uint64_t) r->kv_low);
        tr_loop_count(&c->kv_full_bytes_pruned, (uint64_t) r->kv_pruned);
        tr_status_observe_ratio(&c->kv_ratio, (double) r->kv_bytes
                                                  / (double) r->kv_full_bytes);
    }
}

/* Ends r before its time: r->error says why, TR_OK: it was aborted. */
static void
tr_loop_end(tr_loop_t *l, tr_request_t *r)
{
    uint32_t i;

    for (i = r->n_sequences; i-- != 0;) {
        if (r->sequences[i].state != TR_SEQ_DONE) {
            r->aborted_choice = i;
            tr_loop_account(l, &r->sequences[i]);
            tr_scheduler_remove(&l->scheduler, &r->sequences[i]);
        }
    }
    tr_loop_count(r->error.status == TR_OK
                          || r->error.status == TR_ERR_CANCELLED
                      ? &l->counters->requests_aborted
                      : &l->counters->requests_error,
                  1);
    tr_loop_count_cache(l, r);
    tr_request_unlink(&l->requests, r);
    /* nobody kept room for the end of a detached one: tr_loop_retry asks */
    if (!tr_request_detached(r) && tr_loop_last_record(l, r)) {
        tr_loop_forget(l, r);
    } else {
        tr_request_append(&l->ending, r);
    }
}

static void
tr_loop_fail(tr_loop_t *l, tr_request_t *r, tr_status_t status,
             const char *text)
{
    tr_error_set(&r->error, status, "", "%s", text);
    tr_log(tr_status_info(status).level, "request failed id=%s reason=\"%s\"",
           r->request_id, text);
    tr_loop_end(l, r);
}

/* A turn's time is taken before its requests are: they may be younger. */
static uint64_t
tr_loop_since(uint64_t from, uint64_t now)
{
    return now > from ? now - from : 0;
}

/* One choice reached its end. */
static void
tr_loop_finish(tr_loop_t *l, tr_sequence_t *q, uint16_t reason, uint64_t now)
{
    tr_request_t *r = q->request;
    bool last = --r->open_sequences == 0;
    tr_status_t rc;

    tr_loop_account(l, q);
    tr_scheduler_remove(&l->scheduler, q);
    r->last_choice = q->choice;
    r->finish_reason = reason;
    rc = last && tr_request_detached(r)
             ? TR_AGAIN
             : tr_emit_finish(&l->emit, r, q->choice, reason, last);
    assert(rc == TR_OK || tr_request_detached(r)); /* has_room said so */
    if (last) {
        tr_loop_count(reason == TR_FINISH_STOP ? &l->counters->requests_stop
                                               : &l->counters->requests_length,
                      1);
        tr_status_observe(&l->counters->e2e, tr_loop_since(r->arrival_us, now));
        tr_loop_count_cache(l, r);
        tr_request_unlink(&l->requests, r);
        if (rc == TR_OK) {
            tr_loop_forget(l, r);
        } else {
            tr_request_append(&l->ending, r);
        }
    }
}

/* Those whose last record found no room try again. */
static void
tr_loop_retry(tr_loop_t *l)
{
    tr_request_t *r, *next;

    for (r = l->ending.first; r != NULL; r = next) {
        next = r->next;
        /* asks to be woken first, so that no release is missed */
        (void) tr_outlet_has_room(r->outlet, 1, 0);
        if (tr_loop_last_record(l, r)) {
            tr_request_unlink(&l->ending, r);
            tr_loop_forget(l, r);
        }
    }
}

/* ---- requests and wishes ------------------------------------------------ */

static void
tr_loop_wish(tr_loop_t *l, tr_request_t *r, uint64_t now)
{
    r->wishes = atomic_load_explicit(&r->control, memory_order_acquire);
    if ((r->wishes & TR_CONTROL_ABORT) != 0) {
        r->error.status = TR_OK;
        tr_loop_end(l, r);
    } else if ((r->wishes & TR_CONTROL_CANCEL) != 0) {
        tr_error_set(&r->error, TR_ERR_CANCELLED, "", "%s", TR_CANCELLED);
        tr_loop_end(l, r);
    } else if ((r->wishes & TR_CONTROL_PAUSE) == 0) {
        r->paused_since_us = 0;
    } else if (r->paused_since_us == 0) {
        r->paused_since_us = now;
    }
}

static void
tr_loop_take(tr_loop_t *l, uint64_t now)
{
    tr_request_t *r, *next, *in_order = NULL;

    if (atomic_load_explicit(&l->intake, memory_order_relaxed) == NULL) {
        return;
    }
    for (r = atomic_exchange(&l->intake, NULL); r != NULL; r = next) {
        next = r->next;
        r->next = in_order;
        in_order = r;
    }
    for (r = in_order; r != NULL; r = next) {
        next = r->next;
        tr_request_append(&l->requests, r);
        l->n_requests++;
        l->n_quiet += tr_loop_quiet(r);
        tr_scheduler_add(&l->scheduler, r);
        tr_loop_wish(l, r, now); /* it may have come before the request */
    }
}

static void
tr_loop_wishes(tr_loop_t *l, uint64_t now)
{
    tr_request_t *r, *next;

    for (r = l->requests.first; r != NULL; r = next) {
        next = r->next;
        tr_loop_wish(l, r, now);
    }
}

/* Ends what was paused, or could not write, for too long. */
static void
tr_loop_check(tr_loop_t *l, uint64_t now)
{
    tr_request_t *r, *next;

    for (r = l->requests.first; r != NULL; r = next) {
        tr_outlet_t *o = r->outlet;

        next = r->next;
        if (r->paused_since_us != 0) {
            if (now - r->paused_since_us >= l->paused_timeout_us) {
                tr_loop_fail(l, r, TR_ERR_TIMEOUT,
                             "the client read nothing for too long");
            }
        } else if (o->full_since_us != 0
                   && now - o->full_since_us >= l->stall_timeout_us
                   && !tr_request_detached(r)) {
            /* full_since is looked at only when somebody wants to write */
            if (tr_outlet_has_room(o, 1, r->params.logprobs >= 0)) {
                o->full_since_us = 0;
            } else {
                tr_loop_fail(l, r, TR_ERR_TIMEOUT,
                             "the channel took no output for too long");
            }
        }
    }
    l->next_check_us = now + l->check_us;
}

/* Refuses who still waits for a first step. */
static void
tr_loop_refuse(tr_loop_t *l)
{
    tr_request_t *r, *next;

    for (r = l->requests.first; r != NULL; r = next) {
        next = r->next;
        if (r->scheduled_us == 0) {
            tr_error_set(&r->error, TR_ERR_DRAINING, "", "%s",
                         "The engine is shutting down");
            tr_loop_end(l, r);
        }
    }
}

/* ---- a step ------------------------------------------------------------- */

static void
tr_loop_scheduled(tr_loop_t *l, tr_request_t *r, uint64_t now)
{
    if (r->scheduled_us != 0) {
        return;
    }
    r->scheduled_us = now;
    tr_emit_started(&l->emit, r, now);
    atomic_fetch_sub(&l->queued, 1);
    tr_loop_count(&l->counters->prompt_tokens, r->prompt_tokens);
    tr_status_observe(&l->counters->queue_time,
                      tr_loop_since(r->arrival_us, now));
}

static void
tr_loop_batch(tr_loop_t *l, tr_batch_t *batch, uint64_t now)
{
    tr_scheduler_t *s = &l->scheduler;
    uint32_t i;

    for (i = 0; i < s->n_rows; i++) {
        const tr_row_t *row = &s->rows[i];
        tr_sequence_t *q = row->sequence;
        tr_batch_item_t *item = &l->items[i];

        tr_loop_scheduled(l, q->request, now);
        memset(item, 0, sizeof(*item));
        item->kv_slot = q->kv_slot;
        item->pos = row->pos;
        item->n = row->n;
        item->tokens = q->tokens + row->pos;
        item->sample = row->sample;
        if (row->sample) {
            item->sampler = &q->sampler;
            item->number = q->sampler.n_output;
            item->out = &q->sampled;
        }
        if (row->score) {
            item->scores = &q->prompt_scores[row->pos + 1];
            item->top = q->request->params.logprobs;
        }
    }
    batch->items = l->items;
    batch->n_items = s->n_rows;
    batch->n_tokens = s->n_tokens;
}

static void
tr_loop_token(tr_loop_t *l, tr_sequence_t *q, uint64_t now)
{
    tr_request_t *r = q->request;
    uint16_t reason;

    r->completion_tokens++;
    r->last_token_us = now;
    if (r->first_token_us == 0) {
        r->first_token_us = now;
        tr_emit_first_token(&l->emit, r, now);
        tr_status_observe(&l->counters->ttft,
                          tr_loop_since(r->arrival_us, now));
    }
    if (q->last_token_us != 0) {
        tr_status_observe(&l->counters->inter_token, now - q->last_token_us);
    }
    q->last_token_us = now;
    if (l->executor->due != NULL) {
        q->due_us = l->executor->due(l->executor, q->kv_slot, now);
    }
    reason = tr_emit_token(&l->emit, q);
    if (reason != 0) {
        tr_loop_finish(l, q, reason, now);
    }
}

/* What came out of the step, row by row.  A choice whose request has failed in
 * an earlier row is DONE by now. */
static void
tr_loop_apply(tr_loop_t *l, tr_status_t rc, uint64_t now)
{
    tr_scheduler_t *s = &l->scheduler;
    uint64_t tokens = 0;
    uint32_t i;

    for (i = 0; i < s->n_rows; i++) {
        const tr_row_t *row = &s->rows[i];
        tr_sequence_t *q = row->sequence;
        tr_status_t status = rc != TR_OK ? rc : l->items[i].status;

        if (q->state == TR_SEQ_DONE) {
            continue;
        }
        if (status != TR_OK) {
            tr_loop_fail(l, q->request, status,
                         "the model could not compute this request");
            continue;
        }
        q->computed += row->n;
        if (row->sample) {
            tokens++;
            tr_loop_token(l, q, now);
        }
    }
    tr_loop_count(&l->counters->generation_tokens, tokens);
}

/* Echoed prompts, and requests that want nothing else. */
static bool
tr_loop_echo(tr_loop_t *l, uint64_t now)
{
    tr_sequence_t *q, *next;
    bool progress = false;

    for (q = l->scheduler.running.first; q != NULL; q = next) {
        tr_request_t *r = q->request;

        next = q->next;
        if (!tr_loop_quiet(r) || (r->wishes & TR_CONTROL_PAUSE) != 0
            || (q->prompt_scores != NULL && q->computed + 1 < q->prompt_len)) {
            continue;
        }
        tr_loop_scheduled(l, r, now);
        if (tr_sequence_echoes(q)) {
            if (tr_emit_echo(&l->emit, q)) {
                r->outlet->full_since_us = 0;
                progress = true;
            } else if (r->outlet->full_since_us == 0) {
                r->outlet->full_since_us = now;
            }
        }
        if (!tr_sequence_echoes(q) && r->params.max_tokens == 0
            && (tr_request_detached(r)
                || tr_outlet_has_room(r->outlet, 1, 0))) {
            tr_loop_finish(l, q, TR_FINISH_LENGTH, now);
            progress = true;
        }
    }
    return progress;
}

static void
tr_loop_publish_snapshot(tr_loop_t *l)
{
    const tr_kv_cache_t *kv = l->executor->kv;
    uint32_t queued = atomic_load_explicit(&l->queued, memory_order_relaxed);
    uint32_t running = l->scheduler.n_running_requests;
    tr_kv_totals_t totals;
    tr_status_admission_t a;
    uint32_t i;

    tr_kv_totals(kv, &totals);
    a = (tr_status_admission_t){
        .running = running,
        .waiting = l->n_requests > running ? l->n_requests - running : 0,
        .queue_free = l->max_queue > queued ? l->max_queue - queued : 0,
        .last_step_us = l->last_step_us,
        .step = l->step,
        .kv_free_pages = tr_kv_free_pages(kv),
        .kv_tokens = totals.tokens,
        .kv_full_bytes = totals.full_bytes,
        .kv_swapped_pages = totals.swapped_pages
    };
    for (i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        a.kv_used_pages[l->level_of[i]] += totals.pages[i];
    }
    a.state = TR_ENGINE_READY;
    if (a.running != l->snapshot.running || a.waiting != l->snapshot.waiting) {
        l->news = true; /* workers choose an engine by these */
    }
    pthread_mutex_lock(&l->snapshot_lock);
    l->snapshot = a;
    pthread_mutex_unlock(&l->snapshot_lock);
}

static void
tr_loop_tell_front(tr_loop_t *l)
{
    const uint64_t one = 1;

    if (l->news) {
        l->news = false;
        (void) !write(l->front_fd, &one, sizeof(one));
    }
}

/* What is staged, to the peers; who is over, to the front thread. */
static void
tr_loop_show(tr_loop_t *l)
{
    tr_request_t *r, *next;

    tr_emit_publish_report(&l->emit);
    for (r = l->leaving; r != NULL; r = next) {
        next = r->next;
        r->next = atomic_load_explicit(&l->over, memory_order_relaxed);
        while (!atomic_compare_exchange_weak(&l->over, &r->next, r)) {
        }
        l->news = true;
    }
    l->leaving = NULL;
    tr_emit_publish(&l->emit);
}

/* One turn.  False: nothing was done and nothing can be before the next due
 * time, a wake, or the next check. */
static bool
tr_loop_turn(tr_loop_t *l)
{
    tr_scheduler_t *s = &l->scheduler;
    uint64_t now = tr_loop_now(), changes = s->changes;
    uint64_t preemptions = s->preemptions, swaps = s->swaps,
             recomputations = s->recomputations;
    bool busy = false;
    tr_batch_t batch;
    tr_status_t rc;

    if (atomic_exchange_explicit(&l->woken, 0, memory_order_acquire) != 0) {
        tr_loop_wishes(l, now);
    }
    tr_loop_take(l, now);
    if (atomic_load_explicit(&l->draining, memory_order_acquire) != 0) {
        tr_loop_refuse(l);
    }
    if (now >= l->next_check_us) {
        tr_loop_check(l, now);
    }
    tr_loop_retry(l);
    tr_scheduler_compose(s, now);
    if (s->hopeless != NULL) {
        tr_loop_fail(l, s->hopeless->request, s->why,
                     s->why == TR_ERR_CONTEXT_LENGTH
                         ? "the KV cache has no room for this request, even "
                           "alone"
                         : "the KV cache could not be compressed");
        busy = true;
    }
    if (s->n_rows != 0) {
        uint64_t end;

        tr_loop_batch(l, &batch, now);
        tr_loop_show(l); /* who has started: the step may be long */
        tr_loop_tell_front(l);
        rc = tr_executor_run(l->executor, &batch);
        end = tr_loop_now();
        l->step++;
        tr_status_observe(&l->counters->step_time, end - now);
        if (rc != TR_OK) {
            tr_log(TR_LEVEL_ERROR, "step failed status=%s sequences=%u",
                   tr_status_info(rc).name, batch.n_items);
        }
        tr_loop_apply(l, rc, end);
        busy = true;
    }
    if (l->n_quiet != 0) {
        busy |= tr_loop_echo(l, now);
    }
    if (s->changes != changes) {
        tr_loop_count(&l->counters->preemptions, s->preemptions - preemptions);
        tr_loop_count(&l->counters->kv_swaps, s->swaps - swaps);
        tr_loop_count(&l->counters->kv_recomputations,
                      s->recomputations - recomputations);
        busy = true;
    }
    tr_loop_show(l);
    l->last_step_us = tr_loop_now(); /* also of a turn without a batch */
    tr_loop_publish_snapshot(l);
    tr_loop_tell_front(l);
    return busy;
}

static bool
tr_loop_called(tr_loop_t *l)
{
    return atomic_load(&l->woken) != 0 || atomic_load(&l->intake) != NULL
           || atomic_load(&l->stop) != 0;
}

/* Until something happens: a wake, the time when a sequence is due, or, with
 * requests inside that can do nothing, the next check. */
static void
tr_loop_sleep(tr_loop_t *l)
{
    struct pollfd pfd = { .fd = l->wake_fd, .events = POLLIN };
    uint64_t until = l->scheduler.next_due_us, now, ignored;
    struct timespec ts, *timeout = NULL;
    int n = -1;

    if (l->requests.first != NULL && (until == 0 || l->next_check_us < until)) {
        until = l->next_check_us;
    }
    atomic_store(&l->asleep, 1);
    while (n == -1 && !tr_loop_called(l)) {
        if (until != 0) {
            now = tr_loop_now();
            now = until > now ? until - now : 0;
            ts.tv_sec = (time_t) (now / 1000000u);
            ts.tv_nsec = (long) (now % 1000000u) * 1000;
            timeout = &ts;
        }
        n = ppoll(&pfd, 1, timeout, NULL);
        if (n == -1) {
            tr_bell_interrupted(&l->emit.bell);
        }
    }
    if (n > 0) {
        (void) !read(l->wake_fd, &ignored, sizeof(ignored));
    }
    atomic_store(&l->asleep, 0);
}

/* Ends what is inside.  The last records have a while to find room; then their
 * requests go back without. */
static void
tr_loop_end_all(tr_loop_t *l)
{
    uint64_t begun = tr_loop_now();
    tr_request_t *r, *next;

    tr_loop_take(l, begun);
    for (r = l->requests.first; r != NULL; r = next) {
        next = r->next;
        tr_error_set(&r->error, TR_ERR_DRAINING, "", "%s",
                     "the engine is stopping");
        tr_loop_end(l, r);
    }
    for (;;) {
        tr_loop_retry(l);
        tr_loop_show(l);
        if (l->ending.first == NULL
            || tr_loop_now() - begun >= TR_LOOP_FLUSH_US) {
            break;
        }
        poll(NULL, 0, 1);
    }
    while ((r = l->ending.first) != NULL) {
        tr_request_unlink(&l->ending, r);
        tr_loop_forget(l, r);
    }
    tr_loop_show(l);
}

static void *
tr_loop_main(void *arg)
{
    tr_loop_t *l = arg;

    pthread_setname_np(pthread_self(), "tr-loop");
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0); /* due times are meant exactly */
    tr_bell_open(&l->emit.bell);
    while (atomic_load_explicit(&l->stop, memory_order_acquire) == 0) {
        if (!tr_loop_turn(l)) {
            tr_loop_sleep(l);
        }
    }
    tr_loop_end_all(l);
    tr_bell_close(&l->emit.bell);
    return NULL;
}

/* ---- what other threads call -------------------------------------------- */

static void
tr_loop_free(tr_loop_t *l)
{
    if (l->wake_fd >= 0) {
        close(l->wake_fd);
    }
    pthread_mutex_destroy(&l->snapshot_lock);
    tr_scheduler_free(&l->scheduler);
    free(l->items);
    free(l);
}

static uint64_t
tr_loop_check_interval(const tr_loop_t *l)
{
    uint64_t us = l->stall_timeout_us < l->paused_timeout_us
                      ? l->stall_timeout_us
                      : l->paused_timeout_us;

    us /= 4;
    us = us < 1000 ? 1000 : us;
    return us < TR_LOOP_CHECK_US ? us : TR_LOOP_CHECK_US;
}

tr_status_t
tr_loop_start(const tr_config_t *config, tr_executor_t *executor,
              const tr_tokenizer_t *tokenizer, tr_status_counters_t *counters,
              int front_fd, tr_loop_t **out, tr_error_t *err)
{
    char name[TR_STATUS_LEVELS][16];
    uint64_t bytes[TR_STATUS_LEVELS];
    tr_loop_t *l;
    tr_status_t rc;
    int e;

    *out = NULL;
    if (tr_tokenizer_max_token_bytes(tokenizer) > TR_OUTLET_TOKEN_BYTES) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "the tokenizer has a token of %u bytes, at most %u"
                            " are supported",
                            tr_tokenizer_max_token_bytes(tokenizer),
                            TR_OUTLET_TOKEN_BYTES);
    }
    l = calloc(1, sizeof(*l));
    if (l == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory for the loop");
    }
    l->executor = executor;
    l->counters = counters;
    l->front_fd = front_fd;
    l->max_queue = config->max_queue;
    l->stall_timeout_us = config->channel_stall_timeout_us;
    l->paused_timeout_us = config->paused_timeout_us;
    l->check_us = tr_loop_check_interval(l);
    l->emit.tokenizer = tokenizer;
    pthread_mutex_init(&l->snapshot_lock, NULL);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->items = calloc(config->max_num_seqs, sizeof(*l->items));
    rc = tr_scheduler_init(&l->scheduler, executor->kv, config->max_num_seqs,
                           config->max_batch_tokens,
                           config->prefill_kv_fraction);
    if (l->wake_fd < 0 || l->items == NULL || rc != TR_OK) {
        tr_loop_free(l);
        return tr_error_set(err, TR_ERR_NOMEM, "max_num_seqs",
                            "no memory or descriptors for a loop of %u"
                            " sequences",
                            config->max_num_seqs);
    }
    tr_executor_levels(executor, l->level_of, name, bytes);
    tr_loop_publish_snapshot(l);
    e = pthread_create(&l->thread, NULL, tr_loop_main, l);
    if (e != 0) {
        tr_loop_free(l);
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "cannot start the step"
                            " loop's thread: %s",
                            strerror(e));
    }
    *out = l;
    return TR_OK;
}

static void
tr_loop_ring(tr_loop_t *l)
{
    const uint64_t one = 1;

    if (atomic_load(&l->asleep) != 0 && atomic_exchange(&l->asleep, 0) != 0) {
        (void) !write(l->wake_fd, &one, sizeof(one));
    }
}

tr_status_t
tr_loop_reserve(tr_loop_t *l, const tr_request_t *r)
{
    uint32_t i;

    for (i = 0; i < r->n_sequences; i++) {
        if (r->sequences[i].cap > l->executor->max_model_len) {
            return TR_ERR_CONTEXT_LENGTH;
        }
    }
    if (!tr_scheduler_fits(l->executor->kv, r)) {
        return TR_ERR_CONTEXT_LENGTH;
    }
    if (atomic_load(&l->queued) >= l->max_queue) {
        return TR_ERR_QUEUE_FULL;
    }
    atomic_fetch_add(&l->queued, 1);
    atomic_fetch_add(&l->outstanding, 1);
    return TR_OK;
}

void
tr_loop_submit(tr_loop_t *l, tr_request_t *r)
{
    r->next = atomic_load_explicit(&l->intake, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&l->intake, &r->next, r)) {
    }
    tr_loop_ring(l);
}

tr_request_t *
tr_loop_over(tr_loop_t *l)
{
    if (atomic_load_explicit(&l->over, memory_order_relaxed) == NULL) {
        return NULL;
    }
    return atomic_exchange(&l->over, NULL);
}

void
tr_loop_wake(tr_loop_t *l)
{
    atomic_store(&l->woken, 1);
    tr_loop_ring(l);
}

void
tr_loop_drain(tr_loop_t *l)
{
    atomic_store(&l->draining, 1);
    tr_loop_wake(l);
}

void
tr_loop_snapshot(tr_loop_t *l, tr_status_admission_t *out)
{
    pthread_mutex_lock(&l->snapshot_lock);
    *out = l->snapshot;
    pthread_mutex_unlock(&l->snapshot_lock);
}

uint32_t
tr_loop_outstanding(tr_loop_t *l)
{
    return atomic_load(&l->outstanding);
}

tr_request_t *
tr_loop_stop(tr_loop_t *l)
{
    tr_request_t *over;

    atomic_store(&l->stop, 1);
    tr_loop_wake(l);
    pthread_join(l->thread, NULL);
    over = tr_loop_over(l);
    tr_loop_free(l);
    return over;
}
