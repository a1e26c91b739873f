/*
 * The end of requests.
 *
 * A request that has ended, but whose last record found no room in its response
 * writer, has released everything but itself and waits in `ending`.  Once the
 * last record is staged, the request returns to the frontend thread just behind
 * its publication (tr_loop_show): the worker may use the slot again as soon as it
 * has seen the record.  What a batch in flight still computes for it is dropped
 * (scheduler.h).
 */
#include "loop_internal.h"

#include <assert.h>

void
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

void
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

/* Stages the record that ends r (r->error, its last choice, or the abort).
 * False: no room, beside what is kept for batches under way. */
static bool
tr_loop_last_record(tr_loop_t *l, tr_request_t *r)
{
    if (r->writer->owed != 0 && !tr_response_writer_has_room(r->writer, 1, 0)) {
        return false;
    }
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

void
tr_loop_settle(tr_loop_t *l, tr_request_t *r)
{
    tr_status_fresh_clear(l->counters, r->fresh);
    r->fresh = 0;
    atomic_store(&r->settled, 1);
    l->news |= r->charges != 0; /* others may wait for that */
}

void
tr_loop_forget(tr_loop_t *l, tr_request_t *r)
{
    tr_loop_settle(l, r);
    assert(l->n_requests != 0); /* each request leaves once */
    r->next = l->leaving;
    l->leaving = r;
    if (r->scheduled_us == 0) {
        atomic_fetch_sub(&l->queued, 1);
    }
    l->n_requests--;
    l->n_quiet -= tr_loop_quiet(r);
    l->n_masked -= tr_loop_constrained(r);
    atomic_fetch_sub(&l->outstanding, 1);
}

/* KV figures of a choice that ends, before its pages go; they may be swapped
 * out. */
static void
tr_loop_account(tr_loop_t *l, const tr_sequence_t *q)
{
    tr_kv_usage_t u;

    if (q->kv_slot >= 0) {
        tr_kv_usage(l->executor->kv, q->kv_slot, &u);
        tr_request_kv_add(&q->request->kv, &u);
    }
}

/* The same of a request that ends, over all. */
static void
tr_loop_count_cache(tr_loop_t *l, const tr_request_t *r)
{
    tr_status_counters_t *c = l->counters;
    const tr_request_kv_t *kv = &r->kv;

    if (kv->full_bytes != 0) {
        tr_loop_count(&c->kv_bytes, kv->bytes);
        tr_loop_count(&c->kv_full_bytes_high, (uint64_t) kv->share_high);
        tr_loop_count(&c->kv_full_bytes_low, (uint64_t) kv->share_low);
        tr_loop_count(&c->kv_full_bytes_pruned, (uint64_t) kv->share_pruned);
        tr_status_observe_ratio(&c->kv_ratio,
                                (double) kv->bytes / (double) kv->full_bytes);
    }
}

void
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

void
tr_loop_fail(tr_loop_t *l, tr_request_t *r, tr_status_t status,
             const char *text)
{
    tr_error_set(&r->error, status, "", "%s", text);
    tr_log(tr_status_info(status).level, "request failed id=%s reason=\"%s\"",
           r->request_id, text);
    tr_loop_end(l, r);
}

void
tr_loop_finish(tr_loop_t *l, tr_sequence_t *q, uint16_t reason, uint64_t now)
{
    tr_request_t *r = q->request;
    bool last = --r->open_sequences == 0;
    tr_kv_usage_t u = q->left; /* the end came when it had just made way */
    tr_status_t rc;

    assert(q->state != TR_SEQ_DONE); /* a choice ends once */
    if (q->kv_slot >= 0) {
        tr_kv_usage(l->executor->kv, q->kv_slot, &u);
    }
    tr_request_kv_add(&r->kv, &u);
    if (r->include_kv) {
        tr_emit_kv(&l->emit, q, &u);
    }
    tr_scheduler_keep(&l->scheduler, q);
    tr_scheduler_remove(&l->scheduler, q);
    r->last_choice = q->choice;
    r->finish_reason = reason;
    rc = last && tr_request_detached(r)
             ? TR_AGAIN
             : tr_emit_finish(&l->emit, r, q->choice, reason, last);
    assert(rc == TR_OK || tr_request_detached(r)); /* has_room said so */
    if (last) {
        tr_loop_count(reason == TR_FINISH_LENGTH ? &l->counters->requests_length
                                                 : &l->counters->requests_stop,
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

void
tr_loop_cut(tr_loop_t *l, tr_request_t *r, uint64_t now)
{
    uint32_t i;

    r->cut = true;
    for (i = 0; i < r->n_sequences; i++) {
        tr_sequence_t *q = &r->sequences[i];

        if (q->state == TR_SEQ_DONE) {
            continue;
        }
        if (!tr_request_detached(r)
            && !tr_response_writer_has_room(r->writer, tr_sequence_rows(q),
                                            r->params.logprobs >= 0)) {
            l->cutting = true; /* batches under way may have it */
            return;
        }
        tr_loop_finish(l, q, tr_emit_rest(&l->emit, q), now);
    }
}

void
tr_loop_retry(tr_loop_t *l)
{
    tr_request_t *r, *next;

    for (r = l->ending.first; r != NULL; r = next) {
        next = r->next;
        /* asks to be woken first, so that no release is missed */
        (void) tr_response_writer_has_room(r->writer, 1, 0);
        if (tr_loop_last_record(l, r)) {
            tr_request_unlink(&l->ending, r);
            tr_loop_forget(l, r);
        }
    }
}
