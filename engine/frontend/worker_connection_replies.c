/*
 * The way out: the frontend thread's answers to one worker
 * (worker_connection.h).
 *
 * They go into the ring of answers, which only this thread writes.  When it is
 * full the worker is asked to ring (producer_waiting) and its further answers
 * wait; a worker that takes nothing for channel_stall_timeout is closed.
 */
#include "worker_connection.h"

#include <assert.h>
#include <string.h>
#include <time.h>

#include "engine/api/endpoint.h"
#include "engine/config/log.h"

/* Room in the ring of answers for one record of `need` payload bytes.
 * TR_AGAIN: the worker is asked to ring. */
static tr_status_t
want_space(tr_connection_t *c, uint32_t need)
{
    tr_status_t rc;

    if (tr_ring_space(&c->answers) >= need) {
        return TR_OK;
    }
    if (tr_ring_publish(&c->answers)) {
        c->ring = true;
    }
    rc = tr_ring_wait_space(&c->answers, need);
    if (rc == TR_AGAIN) {
        c->blocked = true;
        if (c->blocked_since_us == 0) {
            c->blocked_since_us = c->env->now_us;
        }
    }
    return rc;
}

static tr_status_t
put(tr_connection_t *c, uint16_t type, uint64_t id,
    const tr_ring_piece_t *pieces, unsigned n)
{
    uint32_t need = 1; /* a record without payload takes space, too */
    tr_status_t rc;
    unsigned i;

    rc = tr_ring_put(&c->answers, type, 0, id, pieces, n);
    if (rc == TR_AGAIN) {
        for (i = 0; i < n; i++) {
            need += (uint32_t) pieces[i].len;
        }
        rc = want_space(c, need);
        if (rc == TR_OK) {
            rc = tr_ring_put(&c->answers, type, 0, id, pieces, n);
        }
    }
    if (rc == TR_OK) {
        c->blocked_since_us = 0;
    }
    return rc;
}

/* ---- answers ------------------------------------------------------------ */

static void
enqueue(tr_connection_t *c, tr_request_t *r)
{
    c->slots[TR_ID_SLOT(r->id)].state = TR_SLOT_REPLY;
    r->next = NULL;
    if (c->replies_tail != NULL) {
        c->replies_tail->next = r;
    } else {
        c->replies = r;
    }
    c->replies_tail = r;
}

void
tr_connection_unqueue(tr_connection_t *c, tr_request_t *r)
{
    tr_request_t **at = &c->replies, *before = NULL;

    while (*at != NULL && *at != r) {
        before = *at;
        at = &before->next;
    }
    if (*at == r) {
        *at = r->next;
        if (c->replies_tail == r) {
            c->replies_tail = before;
        }
    }
}

static tr_status_t
put_error(tr_connection_t *c, tr_request_t *r)
{
    tr_status_info_t info = tr_status_info(r->error.status);
    tr_error_record_t record;
    tr_status_t rc;

    tr_response_writer_describe_error(&r->error, 0, 0, &record);
    rc = put(c, TR_RECORD_ERROR, r->id, record.pieces, 3);
    if (rc == TR_OK) {
        if (!tr_request_goes_elsewhere(r)) {
            tr_events_answer(r, TR_RECORD_ERROR, record.pieces, 3);
        }
        /* a client's mistake is no error of ours */
        if (info.http >= 500) {
            atomic_fetch_add(&c->env->status->counters.requests_error, 1);
        }
        tr_log(info.level,
               "request refused id=%s channel=%u status=%s "
               "param=%s",
               r->request_id, c->number, info.name,
               r->error.param[0] ? r->error.param : "-");
    }
    return rc;
}

static tr_status_t
put_aborted(tr_connection_t *c, tr_request_t *r)
{
    tr_wire_finish_t finish = { .reason = TR_FINISH_ABORTED,
                                .flags = TR_FINISH_LAST };
    tr_ring_piece_t piece = { &finish, sizeof(finish) };
    tr_status_t rc = put(c, TR_RECORD_FINISH, r->id, &piece, 1);

    if (rc == TR_OK) {
        tr_events_answer(r, TR_RECORD_FINISH, &piece, 1);
        atomic_fetch_add(&c->env->status->counters.requests_aborted, 1);
    }
    return rc;
}

/* Its client has left, and its worker is told nothing but its end; of one that is
 * metered also what it may need, or it would be allowed nothing. */
static bool
untold(const tr_connection_t *c, const tr_request_t *r)
{
    return (atomic_load(&r->control) & TR_CONTROL_DETACH) != 0
           && ((r->submit_flags & TR_SUBMIT_METERED) == 0
               || c->state != TR_CONNECTION_OPEN);
}

static tr_status_t
put_accepted(tr_connection_t *c, tr_request_t *r)
{
    const char *model = r->served_as != NULL
                            ? r->served_as
                            : c->env->config->served_model_name;
    const char *policy = r->kv_policy != NULL ? r->kv_policy->name : "";
    tr_wire_accepted_t head = {
        .endpoint = r->endpoint,
        .flags = (uint16_t) ((r->stream ? TR_ACCEPTED_STREAM : 0)
                             | (r->include_usage ? TR_ACCEPTED_INCLUDE_USAGE
                                                 : 0)
                             | (r->params.logprobs >= 0 ? TR_ACCEPTED_LOGPROBS
                                                        : 0)
                             | (r->usage_stats ? TR_ACCEPTED_USAGE_STATS : 0)
                             | (r->include_kv ? TR_ACCEPTED_KV : 0)
                             | (r->dialect != NULL ? TR_ACCEPTED_ITEMS : 0)
                             | (r->events != NULL && tr_request_output_kept(r)
                                    ? TR_ACCEPTED_STORED
                                    : 0)),
        .choices = r->result != NULL ? 1 : r->n_sequences,
        .prompt_tokens = r->prompt_tokens,
        .model_len = (uint32_t) strlen(model),
        .created = r->created,
        .policy_len = (uint32_t) strlen(policy),
        .tier = r->names_tier ? r->tier : 0,
        .seed = r->seed,
        .exact_id = c->env->status->card.exact_id,
        .max_total = r->max_total,
    };
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) },
                                 { model, head.model_len },
                                 { policy, head.policy_len } };

    if (r->pool.width == 0) { /* vectors may have been told in part */
        memcpy(head.model_id, c->env->status->card.model_id, TR_MODEL_ID);
    }
    tr_events_moved(r);
    tr_events_answer(r, TR_RECORD_ACCEPTED, pieces, 3);
    if (untold(c, r)) {
        return TR_OK;
    }
    return put(c, TR_RECORD_ACCEPTED, r->id, pieces, 3);
}

/* Asks the step loop for a place; when there is none, r->error says why. */
static tr_status_t
reserve(tr_connection_t *c, tr_request_t *r)
{
    tr_status_t rc = TR_ERR_DRAINING;

    if (!c->env->draining && c->env->loop != NULL) {
        rc = tr_loop_reserve(c->env->loop, r);
    }
    switch (rc) {
    case TR_OK:
        return TR_OK;
    case TR_ERR_QUEUE_FULL:
        return tr_error_set(&r->error, rc, "",
                            "Too many requests are waiting "
                            "(%u); try again later",
                            c->env->config->max_queue);
    case TR_ERR_CONTEXT_LENGTH:
        return tr_error_set(&r->error, rc,
                            tr_endpoint(r->endpoint)->prompt_field,
                            "This request needs more KV cache than this "
                            "engine has (kv_memory). Please reduce the length "
                            "of the prompt, the completion or 'n'.");
    case TR_ERR_DRAINING:
        return tr_error_set(&r->error, rc, "", "The engine is shutting down");
    default:
        return tr_error_set(&r->error, rc, "",
                            "The engine could not take the "
                            "request (%s)",
                            tr_status_info(rc).name);
    }
}

/* What the response repeats, as far as there is room; with ring false, to Redis
 * alone. */
static tr_status_t
send_repeated(tr_connection_t *c, tr_request_t *r, bool ring)
{
    uint32_t most = tr_ring_max_payload(c->answers.capacity) / 2 & ~7u;
    tr_status_t rc;

    if (r->migrations != 0) { /* the worker and Redis have it */
        return TR_OK;
    }
    most = most < TR_RESULT_MAX ? most : TR_RESULT_MAX;
    while (r->repeated_sent < r->repeated_len) {
        uint32_t left = r->repeated_len - r->repeated_sent;
        tr_ring_piece_t piece = { r->repeated + r->repeated_sent,
                                  left < most ? left : most };

        rc = ring ? put(c, TR_RECORD_ECHO, r->id, &piece, 1) : TR_OK;
        if (rc != TR_OK) {
            return rc;
        }
        tr_events_answer(r, TR_RECORD_ECHO, &piece, 1);
        r->repeated_sent += (uint32_t) piece.len;
    }
    return TR_OK;
}

/* On to the loop.  The publisher sees what it was told before it can see what
 * the loop tells. */
static void
submit(tr_connection_t *c, tr_request_t *r)
{
    tr_events_show(c->env->events);
    tr_suspects_parsed(c->env, r);
    tr_loop_submit(c->env->loop, r);
}

/* ACCEPTED goes out only when the step loop has a place for the request, and is
 * to be seen before the loop learns of it: output follows at once, in another
 * ring. */
static tr_status_t
accept_request(tr_connection_t *c, tr_request_slot_t *s)
{
    tr_request_t *r = s->request;
    uint32_t need = sizeof(tr_wire_accepted_t) + sizeof(tr_wire_error_t)
                    + TR_NAME_MAX + TR_ERROR_PARAM + TR_ERROR_TEXT;
    tr_status_t rc;

    tr_events_keep(r);
    rc = send_repeated(c, r, !(atomic_load(&r->control) & TR_CONTROL_DETACH));
    if (rc == TR_OK) {
        rc = want_space(c, need);
    }
    assert(s->state == TR_SLOT_REPLY); /* it is passed on once */
    if (rc != TR_OK) {
        return rc;
    }
    if (reserve(c, r) == TR_OK) {
        s->state = TR_SLOT_RUNNING;
        tr_connection_charge_tokens(c, s);
        rc = put_accepted(c, r);
        if (tr_ring_publish(&c->answers)) {
            c->ring = true;
        }
        submit(c, r);
        return rc;
    }
    rc = put_error(c, r);
    if (rc == TR_OK) {
        tr_connection_end(c, s);
    }
    return rc;
}

/* ---- results ------------------------------------------------------------ */

static tr_status_t
put_result(tr_connection_t *c, tr_request_t *r, tr_wire_result_t head,
           const void *bytes)
{
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) }, { bytes, head.len } };

    return put(c, TR_RECORD_RESULT, r->id, pieces, 2);
}

/* The next part of n bytes from *sent on. */
static tr_status_t
put_part(tr_connection_t *c, tr_request_t *r, uint16_t kind, const void *bytes,
         uint32_t n, uint32_t *sent)
{
    uint32_t most = tr_ring_max_payload(c->answers.capacity) / 2 & ~7u;
    uint32_t left = n - *sent;
    tr_wire_result_t head = { .kind = kind };
    tr_status_t rc;

    most = most < TR_RESULT_MAX ? most : TR_RESULT_MAX;
    head.len = left < most ? left : most;
    rc = put_result(c, r, head, (const char *) bytes + *sent);
    if (rc == TR_OK) {
        *sent += head.len;
    }
    return rc;
}

/* The answer to a request that generates nothing, as far as there is room:
 * TR_AGAIN goes on where it stopped. */
static tr_status_t
send_result(tr_connection_t *c, tr_request_slot_t *s)
{
    tr_request_t *r = s->request;
    tr_result_t *result = r->result;
    tr_wire_finish_t finish = { .reason = TR_FINISH_STOP,
                                .flags = TR_FINISH_LAST,
                                .prompt_tokens = r->prompt_tokens };
    tr_ring_piece_t piece = { &finish, sizeof(finish) };
    tr_status_t rc = TR_OK;

    if (!result->accepted) {
        rc = put_accepted(c, r);
        result->accepted = rc == TR_OK;
    }
    if (rc == TR_OK && !result->context_sent) {
        tr_wire_result_t head = { .kind = TR_RESULT_CONTEXT,
                                  .count = result->context };

        rc = put_result(c, r, head, "");
        result->context_sent = rc == TR_OK;
    }
    while (rc == TR_OK && result->ids_sent < result->n_ids * 4) {
        rc = put_part(c, r, TR_RESULT_TOKENS, result->ids, result->n_ids * 4,
                      &result->ids_sent);
    }
    while (rc == TR_OK && result->text_sent < result->text_len) {
        rc = put_part(c, r, TR_RESULT_TEXT, result->text, result->text_len,
                      &result->text_sent);
    }
    if (rc == TR_OK) {
        rc = put(c, TR_RECORD_FINISH, r->id, &piece, 1);
    }
    if (rc == TR_OK) {
        atomic_fetch_add(&c->env->status->counters.requests_stop, 1);
        tr_connection_end(c, s);
    }
    return rc;
}

/* A cancelled request that the loop does not have yet fails. */
static void
look_for_cancel(tr_request_t *r)
{
    if ((atomic_load(&r->control) & TR_CONTROL_CANCEL)
        && r->error.status == TR_OK) {
        tr_error_set(&r->error, TR_ERR_CANCELLED, "", TR_CANCELLED);
    }
}

void
tr_connection_reply(tr_connection_t *c, tr_request_t *r)
{
    tr_request_slot_t *s = &c->slots[TR_ID_SLOT(r->id)];
    uint32_t control = atomic_load(&r->control);

    look_for_cancel(r);
    if (untold(c, r) && !(control & TR_CONTROL_ABORT)
        && r->error.status == TR_OK && r->result == NULL
        && reserve(c, r) == TR_OK) {
        s->state = TR_SLOT_RUNNING;
        tr_connection_charge_tokens(c, s);
        tr_events_keep(r);
        (void) send_repeated(c, r, false);
        (void) put_accepted(c, r);
        submit(c, r);
    } else if (c->state == TR_CONNECTION_OPEN) {
        enqueue(c, r);
    } else {
        atomic_fetch_add(r->error.status == TR_OK
                             ? &c->env->status->counters.requests_aborted
                             : &c->env->status->counters.requests_error,
                         1);
        tr_connection_end(c, s);
    }
}

static tr_status_t
answer(tr_connection_t *c, tr_request_t *r)
{
    tr_request_slot_t *s = &c->slots[TR_ID_SLOT(r->id)];
    tr_status_t rc;

    look_for_cancel(r);
    if (atomic_load(&r->control) & TR_CONTROL_ABORT) {
        rc = put_aborted(c, r);
    } else if (r->error.status != TR_OK) {
        rc = put_error(c, r);
    } else if (r->result != NULL) {
        return send_result(c, s);
    } else {
        return accept_request(c, s);
    }
    if (rc == TR_OK) {
        tr_connection_end(c, s);
    }
    return rc;
}

tr_status_t
tr_connection_send(tr_connection_t *c)
{
    tr_status_t rc = TR_OK;

    while (c->replies != NULL) {
        tr_request_t *r = c->replies, *next = r->next;

        rc = answer(c, r);
        if (rc != TR_OK) {
            break;
        }
        c->replies = next;
        if (next == NULL) {
            c->replies_tail = NULL;
        }
    }
    return rc == TR_AGAIN ? TR_OK : rc;
}
