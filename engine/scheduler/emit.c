/*
 * Tokens to records (emit.h).
 */
#include "emit.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A sequence sends a prompt in so many records a step at most, so that a long
 * echo does not hold up the others. */
#define TR_EMIT_ECHO_RECORDS 32

static void
tr_emit_touch(tr_emit_t *e, tr_response_writer_t *o)
{
    if (atomic_load_explicit(&o->held, memory_order_relaxed) == 0) {
        atomic_store_explicit(&o->held, 1, memory_order_relaxed);
        o->next_staged = e->staged;
        e->staged = o;
    }
}

/* Where its channel is fenced: does its worker take it to another engine?  What
 * the worker wanted before that is read here: the frontend thread may not have
 * come to it yet. */
static bool
tr_emit_moves(const tr_request_t *r)
{
    return (r->submit_flags & TR_SUBMIT_IDS) != 0 && !tr_request_stays(r)
           && (tr_control_get(r->writer->channel, r->id)
               & (TR_CONTROL_DETACH | TR_CONTROL_STAY))
                  == 0;
}

/* r's worker is to hear something, and perhaps does not. */
static void
tr_emit_tell(tr_emit_t *e, tr_request_t *r)
{
    if ((r->submit_flags & TR_SUBMIT_IDS) != 0 && r->writer->channel != NULL
        && e->n_told < TR_EMIT_TOLD
        && (e->n_told == 0 || e->told[e->n_told - 1] != r)) {
        e->told[e->n_told++] = r;
    }
}

/* What the worker gets, to the publisher, if r's output is kept; nothing that it
 * does not get because it has gone to another engine. */
static void
tr_emit_event(tr_emit_t *e, tr_request_t *r, uint16_t type,
              const tr_ring_piece_t *pieces, unsigned n)
{
    if (r->events == NULL || r->events_closed || e->silent) {
        return;
    }
    r->elsewhere |= tr_response_writer_fenced(r->writer) && tr_emit_moves(r);
    if (!r->elsewhere) {
        tr_events_record(r, type, pieces, n);
        e->events = r->events;
        tr_emit_tell(e, r);
    }
}

/* n_ids: of e->ids, 0 or `tokens`. */
static void
tr_emit_delta(tr_emit_t *e, const tr_sequence_t *q, uint32_t tokens,
              uint32_t text_len, uint32_t logprobs_len, uint32_t n_ids)
{
    tr_request_t *r = q->request;
    tr_wire_delta_t head = { .choice = q->choice,
                             .tokens = tokens,
                             .text_len = text_len,
                             .logprobs_len = logprobs_len,
                             .echoed = q->echoed };
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) },
                                 { e->text, text_len },
                                 { e->logprobs, logprobs_len } };
    tr_status_t rc;

    tr_emit_event(e, r, TR_RECORD_DELTA, pieces, 3); /* without ids */
    if (e->silent || tr_request_detached(r)) {
        return;
    }
    head.ids_len = n_ids * (uint32_t) sizeof(*e->ids);
    rc = tr_response_writer_delta(r->writer, r->id, &head, e->text, e->logprobs,
                                  e->ids);
    assert(rc == TR_OK); /* has_room said so */
    (void) rc;
    tr_emit_touch(e, r->writer);
}

void
tr_emit_started(tr_emit_t *e, tr_request_t *r, uint64_t now)
{
    if (r->events != NULL) {
        tr_events_started(r, now);
        e->events = r->events;
    }
    if (!tr_request_detached(r) && tr_response_writer_has_room(r->writer, 1, 0)
        && tr_response_writer_started(r->writer, r->id, r->cached_tokens)
               == TR_OK) {
        tr_emit_touch(e, r->writer);
    }
}

void
tr_emit_first_token(tr_emit_t *e, tr_request_t *r, uint64_t now)
{
    if (r->events != NULL) {
        tr_events_first_token(r, now);
        e->events = r->events;
    }
}

void
tr_emit_progress(tr_emit_t *e, tr_request_t *r, const tr_wire_usage_t *kv,
                 uint64_t now)
{
    if (tr_events_progress(r, kv, now)) {
        e->events = r->events;
    }
}

static bool
tr_emit_is_stop(const tr_sequence_t *q, int32_t token)
{
    const tr_sampling_params_t *params = &q->request->params;
    uint32_t i;

    for (i = 0; !params->ignore_eos && i < q->sampler.n_eos; i++) {
        if (q->sampler.eos[i] == token) {
            return true;
        }
    }
    for (i = 0; i < params->n_stop_tokens; i++) {
        if (params->stop_tokens[i] == token) {
            return true;
        }
    }
    return false;
}

static uint32_t
tr_emit_append(tr_emit_t *e, uint32_t len, const tr_text_out_t *out)
{
    assert(len + out->len <= sizeof(e->text));
    memcpy(e->text + len, out->text, out->len);
    return len + out->len;
}

/* The newest n tokens as e->ids.  last: the newest of them, which is not in
 * q->tokens; NULL: it is. */
static void
tr_emit_ids(tr_emit_t *e, const tr_sequence_t *q, uint32_t n,
            const int32_t *last)
{
    uint32_t kept = n - (last != NULL);

    assert(n <= TR_DELTA_TOKENS_MAX && kept <= q->len);
    memcpy(e->ids, q->tokens + q->len - kept, kept * sizeof(*e->ids));
    if (last != NULL) {
        e->ids[kept] = *last;
    }
}

/* A DELTA for the tokens that none told of yet; last: as of tr_emit_ids. */
static inline void
tr_emit_unsent(tr_emit_t *e, tr_sequence_t *q, const int32_t *last,
               uint32_t text_len, uint32_t logprobs_len)
{
    bool ids = (q->request->submit_flags & TR_SUBMIT_IDS) != 0;
    uint32_t n = q->unsent;

    q->unsent = 0;
    if (ids) {
        tr_emit_ids(e, q, n, last);
    }
    tr_emit_delta(e, q, n, text_len, logprobs_len, ids ? n : 0);
}

/* Its tokens are told though they have no text yet: they are many, or whoever
 * counts them might wait for them. */
static bool
tr_emit_tells_all(const tr_sequence_t *q)
{
    return q->unsent == TR_DELTA_TOKENS_MAX
           || (q->request->submit_flags & TR_SUBMIT_METERED) != 0;
}

/* So much of a text as fits a record, whole characters. */
static uint32_t
tr_emit_part(const char *text, uint32_t len)
{
    if (len > TR_RESPONSE_WRITER_TEXT_MAX) {
        len = TR_RESPONSE_WRITER_TEXT_MAX;
        while (((unsigned char) text[len] & 0xc0) == 0x80) {
            len--;
        }
    }
    return len;
}

/* ---- items -------------------------------------------------------------- */

/* What is said of one token of a sequence with a dialect. */
typedef struct {
    tr_emit_t *emit;
    tr_sequence_t *q;
    uint32_t len;      /* of emit->text, to be sent */
    uint32_t logprobs; /* of emit->logprobs: with the next content */
    bool owes;         /* an ITEM came, whose token is not told yet */
    const int32_t
        *stop;    /* the token that ended it, which is not in q->tokens */
    bool stopped; /* a stop string was met in content */
} tr_emit_turn_t;

/* The text so far as a record, which tells of no token yet. */
static void
tr_emit_flush(tr_emit_turn_t *t)
{
    if (t->len != 0 || t->logprobs != 0) {
        tr_emit_delta(t->emit, t->q, 0, t->len, t->logprobs, 0);
        t->len = t->logprobs = 0;
    }
}

static void
tr_emit_item(tr_emit_turn_t *t, const tr_dialect_piece_t *p)
{
    tr_request_t *r = t->q->request;
    const char *bytes = t->emit->items.bytes;
    tr_wire_item_t head = { .choice = t->q->choice,
                            .kind = p->kind,
                            .index = p->index,
                            .id_len = p->id_len,
                            .name_len = p->name_len };
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) },
                                 { bytes + p->id, p->id_len },
                                 { bytes + p->name, p->name_len } };
    tr_status_t rc;

    t->owes = true;
    tr_emit_event(t->emit, r, TR_RECORD_ITEM, pieces, 3);
    if (t->emit->silent || tr_request_detached(r)) {
        return;
    }
    rc = tr_response_writer_item(r->writer, r->id, &head, bytes + p->id,
                                 bytes + p->name);
    assert(rc == TR_OK); /* has_room said so */
    (void) rc;
    tr_emit_touch(t->emit, r->writer);
}

/* Content ends here: what was held for a stop string goes out. */
static void
tr_emit_break(tr_emit_turn_t *t)
{
    tr_text_out_t out;

    tr_text_stream_break(&t->q->text, &out);
    t->len = tr_emit_append(t->emit, t->len, &out);
    tr_emit_flush(t);
}

static void
tr_emit_pieces(tr_emit_turn_t *t)
{
    tr_emit_t *e = t->emit;
    tr_text_out_t out;
    uint32_t i;

    for (i = 0; i < e->items.n && !t->stopped; i++) {
        const tr_dialect_piece_t *p = &e->items.pieces[i];
        const char *text = e->items.bytes + p->text;

        if (p->kind == TR_DIALECT_REASONING && t->q->request->hide_reasoning) {
            continue;
        }
        if (p->begins) {
            tr_emit_break(t);
            tr_emit_item(t, p);
        }
        if (p->kind == TR_DIALECT_TEXT) {
            tr_text_stream_feed(&t->q->text, text, p->text_len, &out);
            t->len = tr_emit_append(e, t->len, &out);
            t->stopped = out.stop >= 0;
            continue;
        }
        for (uint32_t at = 0; at < p->text_len;) {
            tr_text_out_t part = { .text = text + at, .len = p->text_len - at };

            part.len = tr_emit_part(part.text, part.len);
            t->len = tr_emit_append(e, t->len, &part);
            at += part.len;
            if (at < p->text_len) {
                tr_emit_flush(t);
            }
        }
    }
}

/* The token's text through the dialect.  Returns the reason to end, 0: none. */
static uint16_t
tr_emit_push(tr_emit_turn_t *t, const tr_sampled_t *sampled)
{
    tr_emit_t *e = t->emit;
    tr_sequence_t *q = t->q;
    bool inside = tr_dialect_inside(q->dialect);
    bool forced = tr_sequence_must_say(q) >= 0;
    char text[TR_RESPONSE_WRITER_TOKEN_BYTES * 3 + 16];
    uint32_t n;

    n = tr_text_stream_detok(&q->text, sampled->token, text, sizeof(text));
    tr_dialect_push(q->dialect, sampled->token, text, n, &e->items);
    q->thoughts += inside;
    if (forced) {
        q->closing = (q->closing + 1) % q->request->n_thought_end;
    }
    if (inside || tr_dialect_inside(q->dialect)) {
        q->request->reasoning_tokens++;
    } else if (q->request->params.logprobs >= 0
               && tr_dialect_in_text(q->dialect)) {
        /* log probabilities are those of content */
        t->logprobs = tr_response_writer_encode_logprob(e->tokenizer, sampled,
                                                        e->logprobs,
                                                        sizeof(e->logprobs));
    }
    tr_emit_pieces(t);
    return t->stopped || tr_dialect_over(q->dialect) ? TR_FINISH_STOP : 0;
}

/* What was held at the end. */
static void
tr_emit_end(tr_emit_turn_t *t)
{
    tr_sequence_t *q = t->q;
    char text[16];
    uint32_t n = tr_detok_finish(&q->text.detok, text, sizeof(text));

    if (t->stopped) {
        return;
    }
    tr_dialect_push(q->dialect, -1, text, n, &t->emit->items);
    tr_emit_pieces(t);
    tr_dialect_finish(q->dialect, &t->emit->items);
    tr_emit_pieces(t);
    if (!t->stopped) {
        tr_text_out_t out;

        tr_text_stream_break(&q->text, &out);
        t->len = tr_emit_append(t->emit, t->len, &out);
    }
}

static uint16_t
tr_emit_with_dialect(tr_emit_t *e, tr_sequence_t *q,
                     const tr_sampled_t *sampled)
{
    tr_emit_turn_t t = { .emit = e, .q = q };
    uint16_t reason = 0;

    tr_sampler_accept(&q->sampler, sampled->token);
    q->unsent++;
    if (tr_emit_is_stop(q, sampled->token)) {
        t.stop = &sampled->token;
        reason = TR_FINISH_STOP;
    } else {
        q->tokens[q->len++] = sampled->token;
        reason = tr_emit_push(&t, sampled);
        if (reason == 0 && q->len == q->cap) {
            reason = TR_FINISH_LENGTH;
        }
    }
    if (reason != 0) {
        tr_emit_end(&t);
        if (t.stopped) {
            reason = TR_FINISH_STOP;
        } else if (reason == TR_FINISH_STOP && !q->request->named_call
                   && tr_dialect_calls(q->dialect) != 0) {
            reason = TR_FINISH_TOOL_CALLS;
        }
    }
    if (t.len != 0 || t.logprobs != 0 || t.owes || reason != 0
        || tr_emit_tells_all(q)) {
        tr_emit_unsent(e, q, t.stop, t.len, t.logprobs);
    }
    return reason;
}

/* ---- tokens ------------------------------------------------------------- */

uint16_t
tr_emit_token(tr_emit_t *e, tr_sequence_t *q, const tr_sampled_t *sampled)
{
    tr_request_t *r = q->request;
    int32_t token = sampled->token;
    uint32_t len = 0, logprobs = 0;
    uint16_t reason = 0;
    bool stop = tr_emit_is_stop(q, token);
    tr_text_out_t out;

    if (q->dialect != NULL) {
        return tr_emit_with_dialect(e, q, sampled);
    }
    tr_sampler_accept(&q->sampler, token);
    q->unsent++;
    if (stop) {
        reason = TR_FINISH_STOP; /* the token itself is not text */
    } else {
        q->tokens[q->len++] = token;
        tr_text_stream_push(&q->text, token, &out);
        len = tr_emit_append(e, len, &out);
        if (out.stop >= 0) {
            reason = TR_FINISH_STOP;
        } else if (q->len == q->cap) {
            reason = TR_FINISH_LENGTH;
        }
        if (r->params.logprobs >= 0) {
            logprobs = tr_response_writer_encode_logprob(e->tokenizer, sampled,
                                                         e->logprobs,
                                                         sizeof(e->logprobs));
        }
    }
    if (reason != 0) {
        tr_text_stream_finish(&q->text, &out);
        len = tr_emit_append(e, len, &out);
        if (out.stop >= 0) {
            reason = TR_FINISH_STOP;
        }
    }
    if (len != 0 || logprobs != 0 || reason != 0 || tr_emit_tells_all(q)) {
        tr_emit_unsent(e, q, stop ? &token : NULL, len, logprobs);
    }
    return reason;
}

uint16_t
tr_emit_rest(tr_emit_t *e, tr_sequence_t *q)
{
    tr_emit_turn_t t = { .emit = e, .q = q };
    tr_text_out_t out;

    if (q->sampler.n_output == 0) {
        return TR_FINISH_LENGTH;
    }
    if (q->dialect != NULL) {
        tr_emit_end(&t);
    } else {
        tr_text_stream_finish(&q->text, &out);
        t.len = tr_emit_append(e, 0, &out);
        t.stopped = out.stop >= 0;
    }
    if (t.len != 0 || t.logprobs != 0 || t.owes || q->unsent != 0) {
        tr_emit_unsent(e, q, NULL, t.len, t.logprobs);
    }
    return t.stopped ? TR_FINISH_STOP : TR_FINISH_LENGTH;
}

/* Fills one record with prompt tokens from q->echoed on; returns its text's
 * length, and that of the logprobs. */
static uint32_t
tr_emit_echo_fill(tr_emit_t *e, tr_sequence_t *q, uint32_t *logprobs)
{
    const uint32_t most = TR_RESPONSE_WRITER_TOKEN_BYTES * 3 + 16;
    uint32_t len = 0, n;

    *logprobs = 0;
    while (q->echoed < q->prompt_len
           && len + most <= TR_RESPONSE_WRITER_TEXT_MAX) {
        int32_t token = q->tokens[q->echoed];

        if (q->prompt_scores != NULL) {
            tr_sampled_t *score = &q->prompt_scores[q->echoed];

            if (q->echoed == 0) { /* nothing before it */
                score->token = token;
                score->logprob = NAN;
                score->n_top = 0;
            }
            n = tr_response_writer_encode_logprob(e->tokenizer, score,
                                                  e->logprobs + *logprobs,
                                                  (uint32_t) sizeof(e->logprobs)
                                                      - *logprobs);
            if (n == 0) {
                break;
            }
            *logprobs += n;
        }
        len += tr_detok_push(&q->echo_detok, e->tokenizer, token, e->text + len,
                             TR_RESPONSE_WRITER_TEXT_MAX - len);
        q->echoed++;
    }
    if (q->echoed == q->prompt_len) {
        len += tr_detok_finish(&q->echo_detok, e->text + len,
                               (uint32_t) sizeof(e->text) - len);
    }
    return len;
}

bool
tr_emit_echo(tr_emit_t *e, tr_sequence_t *q)
{
    uint32_t with = q->request->params.logprobs >= 0, i;

    for (i = 0; i < TR_EMIT_ECHO_RECORDS && q->echoed < q->prompt_len; i++) {
        uint32_t len, logprobs;

        if (!tr_request_detached(q->request)
            && !tr_response_writer_has_room(q->request->writer, 1, with)) {
            break;
        }
        len = tr_emit_echo_fill(e, q, &logprobs);
        tr_emit_delta(e, q, 0, len, logprobs, 0);
    }
    return i != 0;
}

void
tr_emit_kv(tr_emit_t *e, const tr_sequence_t *q, const tr_kv_usage_t *u)
{
    tr_request_t *r = q->request;
    tr_wire_kv_t kv = { .choice = q->choice };
    tr_ring_piece_t piece = { &kv, sizeof(kv) };
    tr_request_kv_t one = { 0 };
    tr_status_t rc;

    if (u->full_bytes == 0) {
        return;
    }
    tr_request_kv_add(&one, u);
    tr_request_kv_wire(&one, &kv.usage);
    tr_emit_event(e, r, TR_RECORD_KV, &piece, 1);
    if (tr_request_detached(r)) {
        return;
    }
    rc = tr_response_writer_kv(r->writer, r->id, &kv);
    assert(rc == TR_OK); /* has_room said so */
    (void) rc;
    tr_emit_touch(e, r->writer);
}

static uint64_t
tr_emit_span(uint64_t from, uint64_t to)
{
    return from != 0 && to > from ? to - from : 0;
}

void
tr_emit_pooled(tr_emit_t *e, tr_sequence_t *q)
{
    tr_request_t *r = q->request;
    const tr_pool_t *pool = &r->pool;
    const uint32_t len = pool->dimensions * (uint32_t) sizeof(float);
    double square = 0;
    uint32_t i;

    if (tr_request_detached(r)) {
        return; /* nothing waited for its room, and nobody reads it */
    }
    for (i = 0; i < pool->dimensions; i++) {
        q->pooled[i] /= pool->mean ? (float) q->prompt_len : 1.0f;
        square += (double) q->pooled[i] * (double) q->pooled[i];
    }
    for (i = 0; pool->normalise && square > 0 && i < pool->dimensions; i++) {
        q->pooled[i] = (float) ((double) q->pooled[i] / sqrt(square));
    }
    for (i = 0; i < len; i += TR_POOLED_PIECE) {
        uint32_t left = len - i;
        tr_wire_result_t head = {
            .kind = TR_RESULT_EMBEDDING,
            .flags = pool->base64 ? TR_RESULT_BASE64 : 0,
            .count = q->choice,
            .len = left < TR_POOLED_PIECE ? left : TR_POOLED_PIECE,
        };
        tr_status_t rc = tr_response_writer_result(r->writer, r->id, &head,
                                                   (const char *) q->pooled
                                                       + i);

        assert(rc == TR_OK); /* has_room said so */
        (void) rc;
    }
    tr_emit_touch(e, r->writer);
}

/* The stop string that ended a choice, where its endpoint tells that. */
static const char *
tr_emit_stop_string(const tr_sequence_t *q, uint16_t reason, uint32_t *len)
{
    const tr_request_t *r = q->request;

    if (!r->tell_stop || reason != TR_FINISH_STOP || !q->text.stopped
        || r->params.include_stop) {
        return "";
    }
    *len = r->params.stop[q->text.stop].len;
    return r->params.stop[q->text.stop].text;
}

tr_status_t
tr_emit_finish(tr_emit_t *e, tr_request_t *r, uint32_t choice, uint16_t reason,
               bool last)
{
    const tr_sequence_t *q = &r->sequences[choice];
    tr_wire_finish_t f = {
        .choice = choice,
        .reason = reason,
        .flags = (uint16_t) ((last ? TR_FINISH_LAST : 0)
                             | (r->cut ? TR_FINISH_CUT : 0)),
        .prompt_tokens = r->prompt_tokens,
        .completion_tokens = r->completion_tokens,
        .cached_tokens = r->cached_tokens,
        .preemptions = r->preemptions,
        .migrations = r->migrations,
        .queue_us = tr_emit_span(r->arrival_us, r->scheduled_us),
        .prefill_us = tr_emit_span(r->scheduled_us, r->first_token_us),
        .decode_us = tr_emit_span(r->first_token_us, r->last_token_us),
        .choice_tokens = q->sampler.n_output,
        .reasoning_tokens = r->reasoning_tokens
    };
    const char *stop = tr_emit_stop_string(q, reason, &f.tail_len);
    tr_ring_piece_t pieces[] = { { &f, sizeof(f) }, { stop, f.tail_len } };
    tr_status_t rc;

    tr_request_kv_wire(&r->kv, &f.kv);
    tr_emit_event(e, r, TR_RECORD_FINISH, pieces, 2);
    r->events_closed |= last;
    if (tr_request_detached(r) && !last) {
        return TR_OK;
    }
    rc = tr_response_writer_finish(r->writer, r->id, &f, stop);
    if (rc == TR_OK) {
        tr_emit_touch(e, r->writer);
    }
    return rc;
}

tr_status_t
tr_emit_error(tr_emit_t *e, tr_request_t *r)
{
    tr_error_record_t record;
    tr_status_t rc;

    tr_response_writer_describe_error(&r->error, r->prompt_tokens,
                                      r->completion_tokens, &record);
    if (!tr_request_goes_elsewhere(r)) {
        tr_emit_event(e, r, TR_RECORD_ERROR, record.pieces, 3);
    }
    r->events_closed = true;
    rc = tr_response_writer_error(r->writer, r->id, &r->error, r->prompt_tokens,
                                  r->completion_tokens);
    if (rc == TR_OK) {
        tr_emit_touch(e, r->writer);
    }
    return rc;
}

/* o's worker has fenced the channel in front of this step, perhaps just now: who
 * goes on elsewhere was told nothing in it. */
static void
tr_emit_unheard(tr_emit_t *e, const tr_response_writer_t *o)
{
    uint32_t i;

    for (i = 0; i < e->n_told; i++) {
        tr_request_t *r = e->told[i];

        if (r->writer == o && tr_emit_moves(r)) {
            r->elsewhere = true;
            tr_events_unsay(r);
        }
    }
}

void
tr_emit_publish(tr_emit_t *e)
{
    tr_response_writer_t *o, *next;

    for (o = e->staged; o != NULL; o = next) {
        next = o->next_staged;
        o->next_staged = NULL;
        if (!tr_response_writer_publish(o, &e->bell)) {
            tr_emit_unheard(e, o);
        }
        tr_response_writer_let_go(o); /* not to be touched after this */
    }
    e->staged = NULL;
    e->n_told = 0;
    if (e->events != NULL) {
        tr_events_publish(e->events);
        e->events = NULL;
    }
}
