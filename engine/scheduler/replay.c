/*
 * Replaying told tokens (replay.h).
 */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

#include "emit.h"
#include "engine/config/log.h"

static tr_status_t
refuse(tr_request_t *r, const char *what, uint32_t choice)
{
    return tr_error_set(&r->error, TR_ERR_REPLAY, "",
                        "This request could not be continued at another "
                        "engine: %s (choice %u)",
                        what, choice);
}

tr_status_t
tr_replay_begin(tr_request_t *r, const uint8_t model_id[TR_MODEL_ID])
{
    tr_wire_replay_t head;
    tr_wire_bytes_t rest;

    if (r->replay_len == 0) {
        return TR_OK;
    }
    if (tr_wire_replay_parse(r->ahead, r->replay_len, &head, &rest) != TR_OK
        || head.epoch == 0) {
        return refuse(r, "its replay block is malformed", 0);
    }
    if (model_id == NULL || memcmp(head.model_id, model_id, TR_MODEL_ID) != 0) {
        return refuse(r, "it ran on another model", 0);
    }
    r->seed = head.seed;
    r->created = head.created;
    r->migrations = head.epoch;
    return TR_OK;
}

/* Tells nothing of a prompt's echo up to where it was. */
static void
replay_echo(tr_sequence_t *q, const tr_tokenizer_t *t, uint32_t echoed)
{
    char text[TR_RESPONSE_WRITER_TOKEN_BYTES * 3 + 16];

    while (q->echoed < echoed) {
        tr_detok_push(&q->echo_detok, t, q->tokens[q->echoed++], text,
                      sizeof(text));
    }
}

static tr_status_t
replay_choice(tr_emit_t *e, tr_sequence_t *q,
              const tr_wire_replay_choice_t *head, tr_wire_bytes_t ids,
              uint32_t vocab)
{
    tr_request_t *r = q->request;
    tr_sampled_t sampled = { 0 };
    uint32_t i;

    if (head->echoed > q->prompt_len || (head->echoed != 0 && !r->echo)
        || (head->tokens != 0 && r->echo && head->echoed != q->prompt_len)) {
        return refuse(r, "more of its prompt was echoed than there is",
                      q->choice);
    }
    if (head->tokens > q->cap - q->prompt_len
                           + (head->reason == TR_FINISH_STOP
                              || head->reason == TR_FINISH_TOOL_CALLS)) {
        return refuse(r, "it has more tokens than max_tokens", q->choice);
    }
    replay_echo(q, e->tokenizer, head->echoed);
    r->replayed += head->tokens;
    if (head->reason != 0) {
        q->sampler.n_output = head->tokens;
        q->state = TR_SEQ_DONE;
        r->open_sequences--;
        return TR_OK;
    }
    for (i = 0; i < head->tokens; i++) {
        memcpy(&sampled.token, ids.data + i * sizeof(int32_t),
               sizeof(sampled.token));
        if (sampled.token < 0 || (uint32_t) sampled.token >= vocab) {
            return refuse(r, "a token is not in the vocabulary", q->choice);
        }
        if (tr_emit_token(e, q, &sampled) != 0) {
            return refuse(r, "it would have ended earlier", q->choice);
        }
    }
    /* what was told is told up to a DELTA */
    return q->unsent == 0 ? TR_OK
                          : refuse(r, "its text would differ", q->choice);
}

/* The records that Redis may lack, where the output is kept. */
static tr_status_t
take_tail(tr_request_t *r, uint64_t number, tr_wire_bytes_t tail)
{
    const uint8_t *bytes = (const uint8_t *) tail.data, *payload;
    tr_record_t rec;
    tr_status_t rc;
    uint64_t n = 0;
    size_t at = 0;

    while ((rc = tr_kept_record(bytes, tail.len, &at, &rec, &payload))
           == TR_OK) {
        n++;
    }
    if (rc != TR_AGAIN || n > number || number > UINT32_MAX / 2) {
        return refuse(r, "its last records are malformed", 0);
    }
    r->told_number = number;
    if (tail.len != 0) {
        r->told = malloc(tail.len);
        if (r->told == NULL) {
            return tr_error_set(&r->error, TR_ERR_NOMEM, "", "out of memory");
        }
        memcpy(r->told, bytes, tail.len);
        r->told_len = tail.len;
    }
    return TR_OK;
}

tr_status_t
tr_replay(tr_request_t *r, const tr_tokenizer_t *t, uint32_t vocab)
{
    tr_wire_replay_choice_t choice;
    tr_wire_replay_t head;
    tr_wire_bytes_t rest, ids;
    tr_status_t rc = TR_OK;
    tr_emit_t *e;
    uint32_t i;

    if (r->replay_len == 0) {
        return TR_OK;
    }
    (void) tr_wire_replay_parse(r->ahead, r->replay_len, &head, &rest);
    if (head.choices != r->n_sequences
        || head.prompt_tokens != r->prompt_tokens) {
        return refuse(r, "it has other choices or another prompt here", 0);
    }
    e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return tr_error_set(&r->error, TR_ERR_NOMEM, "", "out of memory");
    }
    e->tokenizer = t;
    e->silent = true;
    for (i = 0; i < head.choices && rc == TR_OK; i++) {
        rc = tr_wire_replay_next(&rest, &choice, &ids);
        if (rc == TR_OK) {
            rc = replay_choice(e, &r->sequences[i], &choice, ids, vocab);
        }
    }
    if (rc == TR_OK) {
        rc = take_tail(r, head.number, rest);
    }
    if (rc == TR_OK && r->open_sequences == 0) {
        rc = refuse(r, "it has already ended", 0);
    }
    free(e);
    r->completion_tokens = r->replayed;
    return rc;
}
