/*
 * Calls through an engine's ring (client.h over ring_client.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#include "client.h"
#include "ring_client.h"

typedef struct {
    tr_client_t base;
    tr_ring_client_t *ring;
    tr_call_t **calls; /* by slot */
    uint32_t n_calls;
    uint64_t serial;
} ring_t;

static tr_status_t
ring_submit(tr_client_t *base, tr_call_t *call, uint16_t endpoint,
            const char *body, size_t len, tr_error_t *err)
{
    ring_t *c = (ring_t *) base;
    char name[TR_REQUEST_ID_MAX + 1];
    tr_status_t rc;

    snprintf(name, sizeof(name), "cli-%d-%llu", (int) getpid(),
             (unsigned long long) c->serial++);
    call->kind = TR_ITEM_TEXT;
    rc = tr_ring_client_submit(c->ring, endpoint, name, body, len, 10000,
                               &call->id, err);
    if (rc == TR_OK) {
        c->calls[TR_ID_SLOT(call->id)] = call;
    }
    return rc;
}

static void
ring_finish(tr_call_t *call, const tr_ring_event_t *e)
{
    const tr_wire_finish_t *f = &e->head.finish;

    if (f->choice == 0) {
        snprintf(call->result.finish, sizeof(call->result.finish), "%s",
                 f->reason == TR_FINISH_STOP         ? "stop"
                 : f->reason == TR_FINISH_LENGTH     ? "length"
                 : f->reason == TR_FINISH_TOOL_CALLS ? "tool_calls"
                                                     : "aborted");
    }
    if (e->last) {
        call->result.ok = f->reason != TR_FINISH_ABORTED;
        call->result.has_usage = true;
        call->result.prompt_tokens = f->prompt_tokens;
        call->result.completion_tokens = f->completion_tokens;
        call->result.has_times = call->result.has_kv = true;
        call->result.decode_us = f->decode_us;
        call->result.kv_bytes = f->kv.bytes;
        call->result.kv_full_bytes = f->kv.full_bytes;
        if (!call->result.ok) {
            tr_call_fail(call, "aborted", "aborted");
        }
    }
}

static void
ring_error(tr_call_t *call, const tr_ring_event_t *e)
{
    tr_status_info_t info = tr_status_info(e->head.error.status);

    call->result.prompt_tokens = e->head.error.prompt_tokens;
    call->result.completion_tokens = e->head.error.completion_tokens;
    tr_call_fail(call, info.code != NULL ? info.code : info.type,
                 "%.*s%s%.*s%s", (int) e->text.len, e->text.data,
                 e->param.len != 0 ? " (" : "", (int) e->param.len,
                 e->param.data, e->param.len != 0 ? ")" : "");
}

static void
ring_event(ring_t *c, const tr_ring_event_t *e)
{
    uint32_t slot = TR_ID_SLOT(e->id);
    tr_call_t *call = slot < c->n_calls ? c->calls[slot] : NULL;

    if (call == NULL || call->id != e->id) {
        return;
    }
    if (e->type == TR_RECORD_ITEM && e->head.item.choice == 0) {
        call->kind = e->head.item.kind;
    } else if (e->type == TR_RECORD_DELTA && e->head.delta.choice == 0) {
        c->base.events->text(call->user, call->kind, e->text.data, e->text.len,
                             e->head.delta.tokens);
    } else if (e->type == TR_RECORD_FINISH) {
        ring_finish(call, e);
    } else if (e->type == TR_RECORD_ERROR) {
        ring_error(call, e);
    }
    if (e->last) {
        c->calls[slot] = NULL;
        tr_client_done(&c->base, call);
    }
}

/* The engine is gone: all that was in flight ends. */
static void
ring_lost(ring_t *c, const char *why)
{
    uint32_t i;

    for (i = 0; i < c->n_calls; i++) {
        tr_call_t *call = c->calls[i];

        if (call != NULL) {
            c->calls[i] = NULL;
            tr_call_fail(call, "closed", "%s", why);
            tr_client_done(&c->base, call);
        }
    }
}

static tr_status_t
ring_run(tr_client_t *base, int timeout_ms, tr_error_t *err)
{
    ring_t *c = (ring_t *) base;
    tr_ring_event_t event;
    tr_status_t rc;
    int n = 0;

    do {
        rc = tr_ring_client_poll(c->ring, n == 0 ? timeout_ms : 0, &event, err);
        if (rc == TR_OK) {
            ring_event(c, &event);
        }
    } while (rc == TR_OK && ++n < 4096);
    if (rc != TR_OK && rc != TR_AGAIN) {
        ring_lost(c, err->text);
        return rc;
    }
    return TR_OK;
}

static void
ring_abort(tr_client_t *base, tr_call_t *call)
{
    tr_ring_client_abort(((ring_t *) base)->ring, call->id);
}

static void
ring_close(tr_client_t *base)
{
    ring_t *c = (ring_t *) base;
    uint32_t i;

    for (i = 0; i < c->n_calls; i++) {
        free(c->calls[i]);
    }
    tr_ring_client_close(c->ring);
    free(c->calls);
    free(c);
}

static const tr_client_ops_t ring_ops = { ring_submit, ring_run, ring_abort,
                                          ring_close };

tr_status_t
tr_client_open_ring(const char *path, tr_client_t **out, tr_error_t *err)
{
    tr_status_card_t card;
    ring_t *c = calloc(1, sizeof(*c));
    tr_status_t rc;

    if (c == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    rc = tr_ring_client_connect(path, NULL, 5000, &c->ring, err);
    if (rc != TR_OK) {
        free(c);
        return rc;
    }
    c->n_calls = tr_ring_client_slots(c->ring);
    c->calls = calloc(c->n_calls, sizeof(*c->calls));
    if (c->calls == NULL) {
        ring_close(&c->base);
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    tr_status_card_copy(tr_ring_client_status(c->ring), &card);
    c->base.ops = &ring_ops;
    memcpy(c->base.model, card.model, sizeof(c->base.model));
    snprintf(c->base.where, sizeof(c->base.where), "engine %.500s", path);
    c->base.max_model_len = card.max_model_len;
    *out = &c->base;
    return TR_OK;
}
