/*
 * Batches under way (scheduler.h): what a sequence has of them, and what
 * becomes of its rows when they arrive, when it loses its pages, or ends
 * before.
 *
 * A row counts in its sequence from depart on: `computed` and `under_way` have
 * its tokens, `ahead` the one that it samples.  A row that is computed leaves
 * `computed` as it is; one that is not takes its tokens back, and those of the
 * row behind it, which cannot be computed either.
 */
#include "scheduler_parts.h"

#include <assert.h>

/* The row of q in flight f, NULL: none that still counts. */
static tr_row_t *
tr_flight_row(tr_scheduler_t *s, const tr_sequence_t *q, uint32_t f)
{
    tr_flight_t *flight = &s->flight[f];
    tr_row_t *row = &flight->rows[q->row[f]];

    return q->row[f] < flight->n_rows && row->sequence == q ? row : NULL;
}

/* Nothing more comes of this row: its place in the response writer is free. */
static void
tr_flight_forget(tr_row_t *row)
{
    tr_response_writer_t *o = row->sequence->request->writer;

    o->owed -= row->owed;
    o->owed_logprobs -= row->owed_logprobs;
    row->sequence = NULL;
}

void
tr_scheduler_depart(tr_scheduler_t *s)
{
    uint32_t f = tr_scheduler_next(s), i;

    assert(s->n_flying < TR_SEQ_FLIGHTS);
    for (i = 0; i < s->n_rows; i++) {
        tr_row_t *row = &s->rows[i];
        tr_sequence_t *q = row->sequence;

        q->computed += row->n;
        q->under_way += row->n;
        q->ahead += row->sample;
        q->row[f] = i;
        row->cached = true;
        row->owed = !tr_request_detached(q->request);
        row->owed_logprobs = row->owed && q->request->params.logprobs >= 0;
        q->request->writer->owed += row->owed;
        q->request->writer->owed_logprobs += row->owed_logprobs;
    }
    s->flight[f].n_rows = s->n_rows;
    s->n_flying++;
}

/* The tokens of a row are not stored, nor is its sample known. */
static void
tr_flight_take_back(tr_row_t *row)
{
    tr_sequence_t *q = row->sequence;

    q->ahead -= row->sample;
    if (row->cached) {
        q->under_way -= row->n;
        q->computed -= row->n;
    }
    tr_flight_forget(row);
}

void
tr_scheduler_landed(tr_scheduler_t *s, tr_row_t *row, bool computed)
{
    tr_sequence_t *q = row->sequence;
    bool cached = row->cached;
    tr_row_t *behind;

    if (computed) {
        q->ahead -= row->sample;
        q->under_way -= cached ? row->n : 0;
        tr_flight_forget(row);
        return;
    }
    tr_flight_take_back(row);
    if (cached && s->n_flying > 1) {
        behind = tr_flight_row(s, q, (s->first + 1) % TR_SEQ_FLIGHTS);
        if (behind != NULL) {
            tr_flight_take_back(behind);
        }
    }
}

void
tr_scheduler_arrived(tr_scheduler_t *s)
{
    assert(s->n_flying != 0);
    s->flight[s->first].n_rows = 0;
    s->first = (s->first + 1) % TR_SEQ_FLIGHTS;
    s->n_flying--;
}

void
tr_scheduler_lose(tr_scheduler_t *s, tr_sequence_t *q)
{
    uint32_t f;

    for (f = 0; f < TR_SEQ_FLIGHTS; f++) {
        tr_row_t *row = tr_flight_row(s, q, f);

        if (row != NULL) {
            row->cached = false;
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

    for (f = 0; f < TR_SEQ_FLIGHTS; f++) {
        tr_row_t *row = tr_flight_row(s, q, f);

        if (row != NULL) {
            tr_flight_forget(row);
        }
    }
    q->ahead = q->under_way = 0;
}

/* ---- checks ------------------------------------------------------------- */

bool
tr_scheduler_flights_sound(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint32_t under_way = 0, ahead = 0, f, i;

    for (f = 0; f < TR_SEQ_FLIGHTS; f++) {
        const tr_flight_t *flight = &s->flight[f];

        for (i = 0; i < flight->n_rows; i++) {
            const tr_row_t *row = &flight->rows[i];

            if (row->sequence != q) {
                continue;
            }
            if (q->row[f] != i) {
                return false;
            }
            under_way += row->cached ? row->n : 0;
            ahead += row->sample;
        }
    }
    return under_way == q->under_way && ahead == q->ahead
           && q->under_way <= q->computed && q->computed <= tr_sequence_known(q)
           && tr_sequence_known(q) <= q->cap;
}
