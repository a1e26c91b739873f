/*
 * What the step loop says: tokens become text, text and ends become records.
 *
 * Records are staged in the response writers during a step and published once
 * at its end, with one ring of the doorbell for each channel that sleeps.
 */
#ifndef TR_EMIT_H
#define TR_EMIT_H

#include "request.h"

/* Requests of a step of which it is known whether their workers heard it. */
#define TR_EMIT_TOLD 1024u

typedef struct {
    const tr_tokenizer_t *tokenizer; /* borrowed */
    tr_response_writer_t
        *staged;                 /* response writers with unpublished records */
    tr_request_events_t *events; /* something was told there */
    tr_request_t *told[TR_EMIT_TOLD]; /* of those that can move */
    uint32_t n_told;
    tr_bell_t bell; /* of the step loop's thread */
    bool silent;    /* nothing is told: tokens were, by another engine */
    char text[TR_RESPONSE_WRITER_TEXT_MAX + TR_DIALECT_TEXT_MAX];
    tr_dialect_out_t items;
    uint8_t logprobs[TR_RESPONSE_WRITER_LOGPROB_MAX];
    int32_t ids[TR_DELTA_TOKENS_MAX];
} tr_emit_t;

/* Says that r has left the queue, if there is room: what follows says so
 * too. */
void tr_emit_started(tr_emit_t *e, tr_request_t *r, uint64_t now);
/* Tells the publisher of r's first token. */
void tr_emit_first_token(tr_emit_t *e, tr_request_t *r, uint64_t now);
/* Tells it how far r is (request_events.h). */
void tr_emit_progress(tr_emit_t *e, tr_request_t *r, const tr_wire_usage_t *kv,
                      uint64_t now);

/* Takes what was sampled: appends it to q->tokens unless it ends the sequence
 * by itself, and stages the text that it completes; at q's end, or after
 * TR_DELTA_TOKENS_MAX tokens without text, a DELTA without any.  The response
 * writer has room.  Returns 0, or the enum tr_finish_reason for which q
 * ended. */
uint16_t tr_emit_token(tr_emit_t *e, tr_sequence_t *q,
                       const tr_sampled_t *sampled);

/* q ends without another token: stages what is held of its text.  The response
 * writer has room.  Returns the enum tr_finish_reason for which q ended: LENGTH,
 * or STOP where what was held has a stop string. */
uint16_t tr_emit_rest(tr_emit_t *e, tr_sequence_t *q);

/* Stages prompt text (and logprobs) of an echoing sequence as far as the
 * response writer has room.  Returns whether anything was staged. */
bool tr_emit_echo(tr_emit_t *e, tr_sequence_t *q);

/* The vector of a sequence whose prompt is complete.  The response writer has
 * room. */
void tr_emit_pooled(tr_emit_t *e, tr_sequence_t *q);

/* KV of one choice.  The response writer has room. */
void tr_emit_kv(tr_emit_t *e, const tr_sequence_t *q, const tr_kv_usage_t *u);

/* FINISH of one choice, with the request's totals. TR_AGAIN: no room; the
 * publisher was told nevertheless, once. */
tr_status_t tr_emit_finish(tr_emit_t *e, tr_request_t *r, uint32_t choice,
                           uint16_t reason, bool last);

/* ERROR from r->error. TR_AGAIN as above. */
tr_status_t tr_emit_error(tr_emit_t *e, tr_request_t *r);

/* Shows everything staged, and rings whose workers sleep; then the publisher is
 * shown what they have heard.  Before a request is given back: its end is told by
 * another thread, and must come after this. */
void tr_emit_publish(tr_emit_t *e);

#endif
