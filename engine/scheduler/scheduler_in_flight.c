/*
 * Batches in flight (scheduler.h): the chunks that a sequence has in them, and
 * what happens to these when results arrive, when the sequence loses its pages,
 * or when it ends first.
 *
 * A chunk counts from submit on: `computed` and `under_way` include its tokens,
 * `ahead` the token that it samples.  If the device has computed it, `computed`
 * stays as it is; if not, its tokens are taken off again, and those of the
 * chunk behind it, which cannot be computed either.
 */
#include "scheduler_internal.h"

#include <assert.h>

/* The chunk of q in batch f in flight, NULL: none that still counts. */
static tr_chunk_t *
tr_in_flight_chunk(tr_scheduler_t *s, const tr_sequence_t *q, uint32_t f)
{
    tr_in_flight_t *batch = &s->in_flight[f];
    tr_chunk_t *chunk = &batch->chunks[q->chunk[f]];

    return q->chunk[f] < batch->n_chunks && chunk->sequence == q ? chunk : NULL;
}

/* Tokens of its sequence's prompt. */
static uint32_t
tr_in_flight_prompt(const tr_chunk_t *chunk)
{
    uint32_t end = chunk->sequence->prompt_len;
    uint32_t prompt = chunk->pos < end ? end - chunk->pos : 0;

    return prompt < chunk->n ? prompt : chunk->n;
}

/* Nothing more comes of this chunk: its place in the response writer is
 * free. */
static void
tr_in_flight_forget(tr_chunk_t *chunk)
{
    tr_response_writer_t *o = chunk->sequence->request->writer;

    assert(o->owed >= chunk->owed);
    o->owed -= chunk->owed;
    o->owed_logprobs -= chunk->owed_logprobs;
    chunk->sequence = NULL;
}

void
tr_scheduler_submit(tr_scheduler_t *s)
{
    uint32_t f = tr_scheduler_next(s), i;

    assert(s->n_in_flight < TR_BATCHES_IN_FLIGHT);
    for (i = 0; i < s->n_chunks; i++) {
        tr_chunk_t *chunk = &s->chunks[i];
        tr_sequence_t *q = chunk->sequence;

        /* chunks of a sequence follow each other without a gap */
        assert(q->state == TR_SEQ_RUNNING && chunk->pos == q->computed);
        q->computed += chunk->n;
        q->under_way += chunk->n;
        q->ahead += chunk->sample;
        q->request->sampling += chunk->sample;
        q->chunk[f] = i;
        if (chunk->keeps) {
            q->inputs_to = q->computed;
        }
        chunk->cached = true;
        chunk->owed = tr_request_detached(q->request) ? 0 : tr_sequence_rows(q);
        chunk->owed_logprobs = chunk->owed != 0
                               && q->request->params.logprobs >= 0;
        q->request->writer->owed += chunk->owed;
        q->request->writer->owed_logprobs += chunk->owed_logprobs;
    }
    s->in_flight[f].n_chunks = s->n_chunks;
    s->n_in_flight++;
}

/* The tokens of a chunk are not stored, nor is its sample known. */
static void
tr_in_flight_take_back(tr_chunk_t *chunk)
{
    tr_sequence_t *q = chunk->sequence;

    q->ahead -= chunk->sample;
    q->request->sampling -= chunk->sample;
    tr_scheduler_lose_inputs(chunk);
    if (chunk->cached) {
        q->under_way -= chunk->n;
        q->computed -= chunk->n;
    }
    tr_in_flight_forget(chunk);
}

void
tr_scheduler_chunk_done(tr_scheduler_t *s, tr_chunk_t *chunk, bool computed)
{
    tr_sequence_t *q = chunk->sequence;
    bool cached = chunk->cached;
    tr_chunk_t *behind;

    assert(s->n_in_flight != 0 && q != NULL);
    if (computed) {
        uint32_t prompt = tr_in_flight_prompt(chunk);

        s->counts.prefilled += chunk->returns ? 0 : prompt;
        if (chunk->returns) {
            s->inputs->returned += chunk->n;
        }
        q->ahead -= chunk->sample;
        q->request->sampling -= chunk->sample;
        q->under_way -= cached ? chunk->n : 0;
        if (prompt != 0) {
            tr_fair_computed(q, prompt);
        }
        if (chunk->sample && q->pooled == NULL) {
            tr_fair_charge(q->request->client, TR_FAIR_OUTPUT);
        }
        tr_in_flight_forget(chunk);
        if (cached && prompt != 0) {
            tr_scheduler_keep_prompt(s, q);
        }
        return;
    }
    tr_in_flight_take_back(chunk);
    if (cached && s->n_in_flight > 1) {
        behind = tr_in_flight_chunk(s, q,
                                    (s->first + 1) % TR_BATCHES_IN_FLIGHT);
        if (behind != NULL) {
            tr_in_flight_take_back(behind);
        }
    }
}

void
tr_scheduler_batch_done(tr_scheduler_t *s)
{
    assert(s->n_in_flight != 0);
    s->in_flight[s->first].n_chunks = 0;
    s->first = (s->first + 1) % TR_BATCHES_IN_FLIGHT;
    s->n_in_flight--;
}

void
tr_scheduler_lose(tr_scheduler_t *s, tr_sequence_t *q)
{
    uint32_t f;

    for (f = 0; f < TR_BATCHES_IN_FLIGHT; f++) {
        tr_chunk_t *chunk = tr_in_flight_chunk(s, q, f);

        if (chunk != NULL) {
            tr_scheduler_lose_inputs(chunk);
            chunk->cached = false;
        }
    }
    if (q->ahead != 0) { /* a token that may be its last */
        tr_kv_usage(s->kv, q->kv_slot, &q->left);
    }
    tr_kv_close(s->kv, q->kv_slot);
    q->kv_slot = -1;
    q->computed = q->under_way = 0;
    q->offered = 0;
}

void
tr_scheduler_disown(tr_scheduler_t *s, tr_sequence_t *q)
{
    uint32_t f;

    for (f = 0; f < TR_BATCHES_IN_FLIGHT; f++) {
        tr_chunk_t *chunk = tr_in_flight_chunk(s, q, f);

        if (chunk != NULL) {
            /* the device computes it all the same */
            tr_fair_computed(q, tr_in_flight_prompt(chunk));
            tr_in_flight_forget(chunk);
        }
    }
    q->request->sampling -= q->ahead;
    q->ahead = q->under_way = 0;
}

/* ---- checks ------------------------------------------------------------- */

bool
tr_scheduler_in_flight_sound(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint32_t under_way = 0, ahead = 0, f, i;

    for (f = 0; f < TR_BATCHES_IN_FLIGHT; f++) {
        const tr_in_flight_t *batch = &s->in_flight[f];

        for (i = 0; i < batch->n_chunks; i++) {
            const tr_chunk_t *chunk = &batch->chunks[i];

            if (chunk->sequence != q) {
                continue;
            }
            if (q->chunk[f] != i) {
                return false;
            }
            under_way += chunk->cached ? chunk->n : 0;
            ahead += chunk->sample;
        }
    }
    return under_way == q->under_way && ahead == q->ahead
           && q->under_way <= q->computed && q->computed <= tr_sequence_known(q)
           && tr_sequence_known(q) <= q->cap;
}
