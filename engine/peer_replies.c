/*
 * The way out: answers of the front thread and output of the step loop to one
 * peer (peer.h).
 *
 * Both go into the response ring, which only this thread writes.  When it is
 * full the peer is asked to ring (producer_waiting) and nothing more is taken
 * from the outlet, which fills up and holds this peer's requests, and only
 * them.  A peer that takes nothing for channel_stall_timeout is closed.
 */
#include "peer.h"

#include <string.h>
#include <time.h>

#include "log.h"

/* Room in the response ring for one record of `need` payload bytes.  TR_AGAIN:
 * the peer is asked to ring. */
static tr_status_t
want_space(tr_peer_t *p, uint32_t need)
{
    tr_status_t rc;

    if (tr_ring_space(&p->responses) >= need) {
        return TR_OK;
    }
    if (tr_ring_publish(&p->responses)) {
        p->ring = true;
    }
    rc = tr_ring_wait_space(&p->responses, need);
    if (rc == TR_AGAIN) {
        p->blocked = true;
        if (p->blocked_since_us == 0) {
            p->blocked_since_us = p->env->now_us;
        }
    }
    return rc;
}

static tr_status_t
put(tr_peer_t *p, uint16_t type, uint64_t id, const tr_ring_piece_t *pieces,
    unsigned n)
{
    uint32_t need = 1; /* a record without payload takes space, too */
    tr_status_t rc;
    unsigned i;

    rc = tr_ring_put(&p->responses, type, 0, id, pieces, n);
    if (rc == TR_AGAIN) {
        for (i = 0; i < n; i++) {
            need += (uint32_t) pieces[i].len;
        }
        rc = want_space(p, need);
        if (rc == TR_OK) {
            rc = tr_ring_put(&p->responses, type, 0, id, pieces, n);
        }
    }
    if (rc == TR_OK) {
        p->blocked_since_us = 0;
    }
    return rc;
}

/* ---- answers ------------------------------------------------------------ */

void
tr_peer_reply(tr_peer_t *p, tr_request_t *r)
{
    p->slots[TR_ID_SLOT(r->id)].state = TR_SLOT_REPLY;
    r->next = NULL;
    if (p->replies_tail != NULL) {
        p->replies_tail->next = r;
    } else {
        p->replies = r;
    }
    p->replies_tail = r;
}

static tr_status_t
put_error(tr_peer_t *p, const tr_request_t *r)
{
    tr_wire_error_t head = {
        .status = r->error.status,
        .retry_after_s = tr_retry_after(r->error.status),
        .param_len = (uint32_t) strlen(r->error.param),
        .message_len = (uint32_t) strlen(r->error.text),
    };
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) },
                                 { r->error.param, head.param_len },
                                 { r->error.text, head.message_len } };
    tr_status_info_t info = tr_status_info(r->error.status);
    tr_status_t rc;

    rc = put(p, TR_RECORD_ERROR, r->id, pieces, 3);
    if (rc == TR_OK) {
        /* a client's mistake is no error of ours */
        if (info.http >= 500) {
            atomic_fetch_add(&p->env->status->counters.requests_error, 1);
        }
        tr_log(info.level,
               "request refused id=%s channel=%u status=%s "
               "param=%s",
               r->request_id, p->number, info.name,
               r->error.param[0] ? r->error.param : "-");
    }
    return rc;
}

static tr_status_t
put_aborted(tr_peer_t *p, const tr_request_t *r)
{
    tr_wire_finish_t finish = { .reason = TR_FINISH_ABORTED,
                                .flags = TR_FINISH_LAST };
    tr_ring_piece_t piece = { &finish, sizeof(finish) };
    tr_status_t rc = put(p, TR_RECORD_FINISH, r->id, &piece, 1);

    if (rc == TR_OK) {
        atomic_fetch_add(&p->env->status->counters.requests_aborted, 1);
    }
    return rc;
}

static tr_status_t
put_accepted(tr_peer_t *p, const tr_request_t *r)
{
    const char *model = p->env->config->served_model_name;
    tr_wire_accepted_t head = {
        .endpoint = r->endpoint,
        .flags = (uint16_t) ((r->stream ? TR_ACCEPTED_STREAM : 0)
                             | (r->include_usage ? TR_ACCEPTED_INCLUDE_USAGE
                                                 : 0)
                             | (r->params.logprobs >= 0 ? TR_ACCEPTED_LOGPROBS
                                                        : 0)),
        .choices = r->n_sequences,
        .prompt_tokens = r->prompt_tokens,
        .model_len = (uint32_t) strlen(model),
        .created = (int64_t) time(NULL),
    };
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) },
                                 { model, head.model_len } };

    return put(p, TR_RECORD_ACCEPTED, r->id, pieces, 2);
}

/* Offers r to the step loop; when it does not want it, r->error says why. */
static tr_status_t
offer(tr_peer_t *p, tr_request_t *r)
{
    tr_status_t rc = TR_ERR_DRAINING;

    if (!p->env->draining) {
        rc = tr_loop_submit(p->env->loop, r);
    }
    switch (rc) {
    case TR_OK:
        return TR_OK;
    case TR_ERR_QUEUE_FULL:
        return tr_error_set(&r->error, rc, "",
                            "Too many requests are waiting "
                            "(%u); try again later",
                            p->env->config->max_queue);
    case TR_ERR_CONTEXT_LENGTH:
        return tr_error_set(&r->error, rc,
                            r->endpoint == TR_ENDPOINT_CHAT ? "messages"
                                                            : "prompt",
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

/* ACCEPTED goes out only after the step loop has taken the request, and before
 * any of its output: the outlet is emptied by this thread, later. */
static tr_status_t
accept_request(tr_peer_t *p, tr_peer_slot_t *s)
{
    tr_request_t *r = s->request;
    uint32_t need = sizeof(tr_wire_accepted_t) + sizeof(tr_wire_error_t)
                    + TR_NAME_MAX + TR_ERROR_PARAM + TR_ERROR_TEXT;
    tr_status_t rc = want_space(p, need);

    if (rc != TR_OK) {
        return rc;
    }
    if (offer(p, r) == TR_OK) {
        s->state = TR_SLOT_RUNNING;
        return put_accepted(p, r);
    }
    rc = put_error(p, r);
    if (rc == TR_OK) {
        tr_peer_end(p, s);
    }
    return rc;
}

static tr_status_t
answer(tr_peer_t *p, tr_request_t *r)
{
    tr_peer_slot_t *s = &p->slots[TR_ID_SLOT(r->id)];
    tr_status_t rc;

    if (atomic_load(&r->control) & TR_CONTROL_ABORT) {
        rc = put_aborted(p, r);
    } else if (r->error.status != TR_OK) {
        rc = put_error(p, r);
    } else {
        return accept_request(p, s);
    }
    if (rc == TR_OK) {
        tr_peer_end(p, s);
    }
    return rc;
}

/* ---- output ------------------------------------------------------------- */

/* True when this record ends its request. */
static bool
ends_request(const tr_record_t *rec, const void *payload)
{
    tr_wire_finish_t finish;

    if (rec->type == TR_RECORD_ERROR) {
        return true;
    }
    if (rec->type != TR_RECORD_FINISH || rec->length != sizeof(finish)) {
        return false;
    }
    memcpy(&finish, payload, sizeof(finish));
    return (finish.flags & TR_FINISH_LAST) != 0;
}

static void
request_ended(tr_peer_t *p, uint64_t id)
{
    tr_peer_slot_t *s = &p->slots[TR_ID_SLOT(id)];

    if (s->request != NULL && s->request->id == id) {
        tr_peer_end(p, s);
    }
}

/* The outlet is empty: sleep, unless something came meanwhile. */
static void
sleep_outlet(tr_peer_t *p)
{
    if (tr_ring_release(&p->outlet.consumer)) {
        p->env->wake_loop = true;
    }
    p->out_ready = tr_ring_sleep(&p->outlet.consumer) == TR_OK;
}

static tr_status_t
forward(tr_peer_t *p)
{
    size_t bytes = 0;
    const void *payload;
    tr_status_t rc = TR_OK;
    tr_record_t rec;

    while (bytes < TR_PEER_TURN_BYTES) {
        tr_ring_piece_t piece;

        rc = tr_ring_peek(&p->outlet.consumer, &rec, &payload);
        if (rc != TR_OK) {
            sleep_outlet(p);
            return rc == TR_AGAIN ? TR_OK : rc;
        }
        piece = (tr_ring_piece_t){ payload, rec.length };
        rc = put(p, rec.type, rec.id, &piece, 1);
        if (rc != TR_OK) {
            break;
        }
        bytes += sizeof(rec) + rec.length;
        tr_ring_skip(&p->outlet.consumer, &rec);
        if (ends_request(&rec, payload)) {
            request_ended(p, rec.id);
        }
    }
    if (tr_ring_release(&p->outlet.consumer)) {
        p->env->wake_loop = true;
    }
    return rc;
}

tr_status_t
tr_peer_send(tr_peer_t *p)
{
    tr_status_t rc = TR_OK;

    while (p->replies != NULL) {
        tr_request_t *r = p->replies, *next = r->next;

        rc = answer(p, r);
        if (rc != TR_OK) {
            break;
        }
        p->replies = next;
        if (next == NULL) {
            p->replies_tail = NULL;
        }
    }
    if (rc == TR_OK) {
        rc = forward(p);
    }
    return rc == TR_AGAIN ? TR_OK : rc;
}

void
tr_peer_discard(tr_peer_t *p)
{
    const void *payload;
    tr_record_t rec;

    if (p->outlet.shared == NULL) {
        return;
    }
    do {
        while (tr_ring_peek(&p->outlet.consumer, &rec, &payload) == TR_OK) {
            tr_ring_skip(&p->outlet.consumer, &rec);
            if (ends_request(&rec, payload)) {
                request_ended(p, rec.id);
            }
        }
        sleep_outlet(p);
    } while (p->out_ready);
}
