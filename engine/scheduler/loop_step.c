/*
 * Steps: a composed batch goes to the executor, and its results become text,
 * records and finished requests.
 *
 * Up to `ahead` batches are in flight while the next is composed (executor.h);
 * with 0, a batch is completed as soon as it was submitted.  The newest token
 * of a sequence with a chunk in flight is not known yet: its next chunk is
 * submitted without it, and the device fills it in.  When that token ends the
 * sequence, the result of the next chunk is dropped.  What hangs on the token, a
 * mask, follows when the batch before is complete (tr_loop_sample_batch).
 */
#include "loop_internal.h"

#include <assert.h>
#include <string.h>

#include "engine/base/clock.h"

/* True: it had waited until now. */
static bool
tr_loop_scheduled(tr_loop_t *l, tr_request_t *r, uint64_t now)
{
    if (r->scheduled_us != 0) {
        return false;
    }
    r->scheduled_us = now;
    r->fresh = tr_status_fresh_set(l->counters, r->name);
    tr_emit_started(&l->emit, r, now);
    atomic_fetch_sub(&l->queued, 1);
    if (r->migrations != 0) { /* counted where it began */
        tr_loop_count(&l->counters->replayed_tokens, r->replayed);
        r->first_token_us = r->replayed != 0 ? now : 0;
        return true;
    }
    tr_loop_count(&l->counters->prompt_tokens, r->prompt_tokens);
    tr_status_observe(&l->counters->queue_time,
                      tr_loop_since(r->arrival_us, now));
    return true;
}

#define TR_LOOP_NOT_COMPUTED "the model could not compute this request"
#define TR_LOOP_NOT_HELD \
    "The grammar of this answer became too ambiguous, too deep or too large"

/* A whole batch failed.  With an empty one goes what the cache was asked:
 * nobody who has something there can go on, and it is not asked again. */
static void
tr_loop_broken(tr_loop_t *l, tr_status_t rc, uint32_t sequences)
{
    tr_request_t *r, *next;

    tr_log(TR_LEVEL_ERROR, "step failed status=%s sequences=%u",
           tr_status_info(rc).name, sequences);
    if (sequences != 0) {
        return;
    }
    l->lost = true;
    for (r = l->requests.first; r != NULL; r = next) {
        next = r->next;
        if (r->scheduled_us != 0) {
            tr_loop_fail(l, r, rc, TR_LOOP_NOT_COMPUTED);
        }
    }
}

/* Everything that submit reads is here now; it may be gone by complete. */
static void
tr_loop_item(const tr_loop_t *l, tr_batch_item_t *item, const tr_chunk_t *chunk,
             tr_sampled_t *out)
{
    tr_sequence_t *q = chunk->sequence;

    /* whoever made way or ended has lost its chunk before this */
    assert(q->state == TR_SEQ_RUNNING && q->kv_slot >= 0);
    memset(item, 0, sizeof(*item));
    item->kv_slot = q->kv_slot;
    item->pos = chunk->pos;
    item->n = chunk->n;
    item->is_long = q->is_long;
    if (chunk->pos + chunk->n <= q->len) {
        item->tokens = q->tokens + chunk->pos;
    } else {
        assert(q->ahead == 1 && chunk->n == 1);
    }
    item->inputs = chunk->keeps || chunk->returns ? q->inputs : NULL;
    item->returns = chunk->returns;
    item->sample = chunk->sample;
    if (chunk->sample) {
        item->sampler = &q->sampler;
        item->number = q->sampler.n_output + q->ahead;
        item->out = out;
        item->late = l->n_masked != 0 && l->executor->sample != NULL
                     && tr_loop_may_mask(chunk);
    }
    item->pooled = q->pooled;
    item->pool_mean = q->request->pool.mean;
    if (chunk->score) {
        item->scores = &q->prompt_scores[chunk->pos + 1];
        item->top = q->request->params.logprobs;
    }
}

bool
tr_loop_submit_batch(tr_loop_t *l, uint64_t now)
{
    tr_scheduler_t *s = &l->scheduler;
    tr_loop_batch_t *f = &l->in_flight[tr_scheduler_next(s)];
    bool started = false;
    tr_status_t rc;
    uint32_t i;

    /* f is free: its last batch was completed before this one was composed */
    assert(s->n_in_flight < TR_BATCHES_IN_FLIGHT);
    for (i = 0; i < s->n_chunks; i++) {
        started |= tr_loop_scheduled(l, s->chunks[i].sequence->request, now);
        tr_loop_item(l, &f->items[i], &s->chunks[i], &f->sampled[i]);
        f->refused[i] = TR_OK;
    }
    f->batch = (tr_batch_t){ f->items, s->n_chunks, s->n_tokens };
    f->begun_us = now;
    if (l->executor->sample == NULL) {
        tr_loop_mask(l, f, s->chunks);
    }
    tr_loop_show(l); /* who has started: the step may be long */
    if (started) {
        tr_loop_publish_snapshot(l); /* so is there room in the queue */
    }
    tr_loop_tell_front(l);
    rc = l->executor->submit(l->executor, &f->batch);
    if (rc == TR_OK) {
        tr_scheduler_submit(s);
        return true;
    }
    tr_loop_broken(l, rc, s->n_chunks);
    for (i = 0; i < s->n_chunks; i++) {
        tr_sequence_t *q = s->chunks[i].sequence;

        if (q->state != TR_SEQ_DONE) { /* its request failed before */
            tr_loop_fail(l, q->request, rc, TR_LOOP_NOT_COMPUTED);
        }
    }
    return false;
}

void
tr_loop_sample_batch(tr_loop_t *l)
{
    const tr_scheduler_t *s = &l->scheduler;
    uint32_t newest = (s->first + s->n_in_flight - 1) % TR_BATCHES_IN_FLIGHT;
    tr_loop_batch_t *f = &l->in_flight[newest];

    if (l->executor->sample != NULL) {
        assert(s->n_in_flight == 1);
        tr_loop_mask(l, f, s->in_flight[newest].chunks);
        l->executor->sample(l->executor, &f->batch);
    }
}

/* Says how far r is, with what its choices hold of the KV cache. */
static void
tr_loop_tell_progress(tr_loop_t *l, tr_request_t *r, uint64_t now)
{
    tr_request_kv_t kv = r->kv; /* of those that have ended */
    tr_wire_usage_t wire;
    tr_kv_usage_t u;
    uint32_t i;

    for (i = 0; i < r->n_sequences; i++) {
        if (r->sequences[i].kv_slot >= 0) {
            tr_kv_usage(l->executor->kv, r->sequences[i].kv_slot, &u);
            tr_request_kv_add(&kv, &u);
        }
    }
    tr_request_kv_wire(&kv, &wire);
    tr_emit_progress(&l->emit, r, &wire, now);
}

/* Ahead of what q says in this step, when it was not told for a while. */
static void
tr_loop_tell_kv(tr_loop_t *l, tr_sequence_t *q, uint64_t now)
{
    tr_kv_usage_t u;

    if (q->kv_slot < 0
        || (q->kv_told_us != 0 && now - q->kv_told_us < TR_KV_PERIOD_US)) {
        return;
    }
    q->kv_told_us = now;
    tr_kv_usage(l->executor->kv, q->kv_slot, &u);
    tr_emit_kv(&l->emit, q, &u);
}

static void
tr_loop_token(tr_loop_t *l, tr_sequence_t *q, const tr_sampled_t *sampled,
              uint64_t now)
{
    tr_request_t *r = q->request;
    uint16_t reason;

    r->completion_tokens++;
    if (r->completion_tokens == r->replayed + TR_STATUS_FRESH_TOKENS) {
        tr_loop_settle(l, r);
    }
    r->last_token_us = now;
    if (r->first_token_us == 0) {
        r->first_token_us = now;
        tr_emit_first_token(&l->emit, r, now);
        tr_status_observe(&l->counters->ttft,
                          tr_loop_since(r->arrival_us, now));
    } else if (tr_events_progress_due(r, now)) {
        tr_loop_tell_progress(l, r, now);
    }
    if (q->last_token_us != 0) {
        tr_status_observe(&l->counters->inter_token, now - q->last_token_us);
    }
    q->last_token_us = now;
    if (l->executor->due != NULL && q->kv_slot >= 0) {
        q->due_us = l->executor->due(l->executor, q->kv_slot, now);
    }
    if (r->include_kv) {
        tr_loop_tell_kv(l, q, now);
    }
    if (q->matcher != NULL && tr_loop_follow(l, q, sampled->token) != TR_OK) {
        tr_loop_fail(l, r, TR_ERR_UNSUPPORTED, TR_LOOP_NOT_HELD);
        return;
    }
    reason = tr_emit_token(&l->emit, q, sampled);
    if (reason != 0) {
        tr_loop_finish(l, q, reason, now);
    }
}

/* A prompt whose vector was wanted is complete. */
static void
tr_loop_pooled(tr_loop_t *l, tr_sequence_t *q, uint64_t now)
{
    tr_request_t *r = q->request;

    r->last_token_us = now;
    if (r->first_token_us == 0) {
        r->first_token_us = now;
    }
    tr_emit_pooled(&l->emit, q);
    tr_loop_finish(l, q, TR_FINISH_STOP, now);
}

/* What came of one chunk that is still wanted. */
static void
tr_loop_apply(tr_loop_t *l, tr_chunk_t *chunk, tr_status_t status,
              const tr_sampled_t *sampled, uint64_t now)
{
    tr_sequence_t *q = chunk->sequence;
    tr_request_t *r = q->request;
    bool sample = chunk->sample;

    tr_scheduler_chunk_done(&l->scheduler, chunk, status == TR_OK);
    if (status == TR_OK && sample && q->pooled != NULL) {
        tr_loop_pooled(l, q, now);
    } else if (status == TR_OK && sample) {
        tr_loop_count(&l->counters->generation_tokens, 1);
        tr_loop_token(l, q, sampled, now);
        if (r->open_sequences != 0 && r->error.status == TR_OK
            && tr_request_spent(r)) {
            tr_loop_cut(l, r, now);
        }
    } else if (status != TR_OK && status != TR_AGAIN) {
        tr_loop_fail(l, r, status,
                     status == TR_ERR_UNSUPPORTED ? TR_LOOP_NOT_HELD
                                                  : TR_LOOP_NOT_COMPUTED);
    }
}

void
tr_loop_complete_batch(tr_loop_t *l)
{
    tr_scheduler_t *s = &l->scheduler;
    tr_loop_batch_t *f = &l->in_flight[s->first];
    tr_chunk_t *chunks = s->in_flight[s->first].chunks;
    tr_status_t rc;
    uint64_t now;
    uint32_t i;

    /* item i of the executor's batch is chunk i of the scheduler's */
    assert(s->n_in_flight != 0
           && f->batch.n_items == s->in_flight[s->first].n_chunks);
    for (i = 0; i < f->batch.n_items; i++) {
        if (chunks[i].sequence == NULL) {
            f->items[i].out = f->items[i].scores = NULL;
            f->items[i].pooled = NULL;
        }
    }
    rc = l->executor->complete(l->executor, &f->batch);
    now = tr_now_us();
    l->step++;
    tr_status_observe(&l->counters->step_time,
                      now
                          - (f->begun_us > l->completed_us ? f->begun_us
                                                           : l->completed_us));
    l->completed_us = now;
    if (rc != TR_OK) {
        tr_loop_broken(l, rc, f->batch.n_items);
    } else {
        l->lost = false;
    }
    for (i = 0; i < f->batch.n_items; i++) {
        /* an earlier chunk may have ended its request */
        if (chunks[i].sequence != NULL) {
            tr_status_t status = rc != TR_OK ? rc
                                 : f->items[i].status != TR_OK
                                     ? f->items[i].status
                                     : f->refused[i];

            tr_loop_apply(l, &chunks[i], status, &f->sampled[i], now);
        }
    }
    tr_scheduler_batch_done(s);
}

bool
tr_loop_echo(tr_loop_t *l, uint64_t now)
{
    tr_sequence_t *q, *next;
    bool progress = false;

    for (q = l->scheduler.running.first; q != NULL; q = next) {
        tr_request_t *r = q->request;

        next = q->next;
        if ((!tr_sequence_echoes(q) && r->params.max_tokens != 0)
            || (r->commands & TR_CONTROL_PAUSE) != 0
            || (q->prompt_scores != NULL
                && q->computed - q->under_way + 1 < q->prompt_len)) {
            continue;
        }
        if (!tr_request_detached(r)
            && !tr_response_writer_has_room(r->writer, 1,
                                            r->params.logprobs >= 0)) {
            if (r->writer->full_since_us == 0 && r->writer->owed == 0) {
                r->writer->full_since_us = now;
            }
            continue;
        }
        tr_loop_scheduled(l, r, now);
        if (tr_sequence_echoes(q) && tr_emit_echo(&l->emit, q)) {
            r->writer->full_since_us = 0;
            progress = true;
        }
        if (!tr_sequence_echoes(q) && r->params.max_tokens == 0
            && (tr_request_detached(r)
                || tr_response_writer_has_room(r->writer, 1, 0))) {
            tr_loop_finish(l, q, TR_FINISH_LENGTH, now);
            progress = true;
        }
    }
    return progress;
}

void
tr_loop_tell_front(tr_loop_t *l)
{
    const uint64_t one = 1;

    if (l->news) {
        l->news = false;
        (void) !write(l->frontend_fd, &one, sizeof(one));
    }
}

void
tr_loop_show(tr_loop_t *l)
{
    tr_request_t *r, *next;

    /* their workers may submit in their places before they are given back */
    atomic_store(&l->showing, 1);
    tr_emit_publish(&l->emit);
    for (r = l->leaving; r != NULL; r = next) {
        next = r->next;
        r->next = atomic_load_explicit(&l->over, memory_order_relaxed);
        while (!atomic_compare_exchange_weak(&l->over, &r->next, r)) {
        }
        l->news = true;
    }
    l->leaving = NULL;
    atomic_store(&l->showing, 0);
}
