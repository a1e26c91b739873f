/*
 * Outlets: the ring of ring.h in private memory, with the records of wire.h
 * (outlet.h).  The producing side never waits: room for a whole step is asked
 * for before the step.
 */
#include "outlet.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TR_OUTLET_MIN / 4 - sizeof(tr_record_t)
                   >= sizeof(tr_wire_delta_t) + TR_OUTLET_TEXT_MAX
                          + TR_OUTLET_LOGPROB_MAX,
               "one step of one sequence fits a record of the least outlet");

/* Bytes in the ring: records are aligned, headers included. */
#define TR_OUTLET_RECORD(payload) \
    (sizeof(tr_record_t) + (((payload) + 7) & ~(uint64_t) 7))

tr_status_t
tr_outlet_init(tr_outlet_t *o, uint32_t capacity)
{
    void *memory;

    memset(o, 0, sizeof(*o));
    if (capacity < TR_OUTLET_MIN || capacity > TR_RING_MAX
        || (capacity & (capacity - 1)) != 0) {
        return TR_ERR_INVALID;
    }
    memory = aligned_alloc(TR_CACHE_LINE, sizeof(tr_ring_shared_t) + capacity);
    if (memory == NULL) {
        return TR_ERR_NOMEM;
    }
    memset(memory, 0, sizeof(tr_ring_shared_t));
    o->shared = memory;
    o->data = (uint8_t *) memory + sizeof(tr_ring_shared_t);
    o->capacity = capacity;
    tr_ring_producer_init(&o->producer, o->shared, o->data, capacity);
    tr_ring_consumer_init(&o->consumer, o->shared, o->data, capacity);
    return TR_OK;
}

void
tr_outlet_free(tr_outlet_t *o)
{
    while (atomic_load_explicit(&o->publishing, memory_order_acquire) != 0) {
        sched_yield();
    }
    free(o->shared);
    memset(o, 0, sizeof(*o));
}

static bool
tr_outlet_fits(const tr_outlet_t *o, uint64_t need)
{
    return need <= o->capacity - (o->producer.tail - o->producer.head);
}

bool
tr_outlet_has_room(tr_outlet_t *o, uint32_t n, uint32_t logprobs)
{
    tr_ring_producer_t *p = &o->producer;
    const uint64_t text = TR_OUTLET_RECORD(0) /* STARTED */
                          + TR_OUTLET_RECORD(sizeof(tr_wire_delta_t)
                                             + TR_OUTLET_TEXT_MAX)
                          + TR_OUTLET_RECORD(sizeof(tr_wire_finish_t));
    uint64_t need;

    /* one record may be pushed to the start of the ring by a PAD of its size */
    need = n * text + logprobs * (uint64_t) TR_OUTLET_LOGPROB_MAX + text
           + (logprobs != 0 ? TR_OUTLET_LOGPROB_MAX : 0);
    if (tr_outlet_fits(o, need)) {
        return true;
    }
    if (tr_ring_refresh_head(p, memory_order_acquire) == TR_OK
        && tr_outlet_fits(o, need)) {
        return true;
    }
    atomic_store_explicit(&o->shared->producer_waiting, 1,
                          memory_order_seq_cst);
    if (tr_ring_refresh_head(p, memory_order_seq_cst) == TR_OK
        && tr_outlet_fits(o, need)) {
        atomic_store_explicit(&o->shared->producer_waiting, 0,
                              memory_order_seq_cst);
        return true;
    }
    return false;
}

tr_status_t
tr_outlet_started(tr_outlet_t *o, uint64_t id)
{
    return tr_ring_put(&o->producer, TR_RECORD_STARTED, 0, id, NULL, 0);
}

tr_status_t
tr_outlet_delta(tr_outlet_t *o, uint64_t id, uint32_t choice, uint32_t tokens,
                const char *text, uint32_t text_len, const void *logprobs,
                uint32_t logprobs_len)
{
    tr_wire_delta_t head = { choice, tokens, text_len, logprobs_len };
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) },
                                 { text, text_len },
                                 { logprobs, logprobs_len } };

    return tr_ring_put(&o->producer, TR_RECORD_DELTA, 0, id, pieces, 3);
}

tr_status_t
tr_outlet_finish(tr_outlet_t *o, uint64_t id, const tr_wire_finish_t *finish)
{
    tr_ring_piece_t piece = { finish, sizeof(*finish) };

    return tr_ring_put(&o->producer, TR_RECORD_FINISH, 0, id, &piece, 1);
}

tr_status_t
tr_outlet_error(tr_outlet_t *o, uint64_t id, const tr_error_t *err,
                uint32_t prompt_tokens, uint32_t completion_tokens)
{
    tr_wire_error_t head = {
        .status = err->status,
        .retry_after_s = tr_retry_after(err->status),
        .param_len = (uint32_t) strnlen(err->param, sizeof(err->param)),
        .message_len = (uint32_t) strnlen(err->text, sizeof(err->text)),
        .prompt_tokens = prompt_tokens,
        .completion_tokens = completion_tokens
    };
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) },
                                 { err->param, head.param_len },
                                 { err->text, head.message_len } };

    return tr_ring_put(&o->producer, TR_RECORD_ERROR, 0, id, pieces, 3);
}

int
tr_outlet_publish(tr_outlet_t *o)
{
    int ring;

    /* once the records can be seen, the front thread may free the outlet */
    atomic_store_explicit(&o->publishing, 1, memory_order_relaxed);
    ring = tr_ring_publish(&o->producer);
    atomic_store_explicit(&o->publishing, 0, memory_order_release);
    return ring;
}

uint32_t
tr_outlet_encode_logprob(const tr_tokenizer_t *t, const tr_sampled_t *sampled,
                         void *out, uint32_t cap)
{
    tr_wire_logprob_t head = { sampled->token, sampled->logprob, 0,
                               (uint16_t) sampled->n_top };
    uint8_t *at = out;
    uint32_t len, i;
    const char *bytes;

    bytes = tr_tokenizer_token_bytes(t, sampled->token, &len);
    if (len > UINT16_MAX || sizeof(head) + len > cap) {
        return 0;
    }
    head.bytes_len = (uint16_t) len;
    memcpy(at, &head, sizeof(head));
    if (len != 0) {
        memcpy(at + sizeof(head), bytes, len);
    }
    at += sizeof(head) + len;
    for (i = 0; i < sampled->n_top; i++) {
        tr_wire_top_t top = { sampled->top[i].token, sampled->top[i].logprob, 0,
                              0 };

        bytes = tr_tokenizer_token_bytes(t, top.token, &len);
        if (len > UINT16_MAX
            || sizeof(top) + len > cap - (size_t) (at - (uint8_t *) out)) {
            return 0;
        }
        top.bytes_len = (uint16_t) len;
        memcpy(at, &top, sizeof(top));
        if (len != 0) {
            memcpy(at + sizeof(top), bytes, len);
        }
        at += sizeof(top) + len;
    }
    return (uint32_t) (at - (uint8_t *) out);
}
