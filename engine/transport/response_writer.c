/*
 * Response writers (response_writer.h).  What is in here runs in the step
 * loop's thread, but for making, closing and freeing.
 */
#include "response_writer.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/log.h"

#define BELL_PERIOD_NS 100000000L

_Static_assert(TR_RESPONSE_WRITER_MIN / 4 - sizeof(tr_record_t)
                   >= sizeof(tr_wire_delta_t) + TR_RESPONSE_WRITER_TEXT_MAX
                          + TR_RESPONSE_WRITER_LOGPROB_MAX
                          + TR_RESPONSE_WRITER_IDS_MAX,
               "one step of one sequence fits a record of the smallest ring");

/* Bytes in the ring: records are aligned, headers included. */
#define TR_RESPONSE_WRITER_RECORD(payload) \
    (sizeof(tr_record_t) + (((payload) + 7) & ~(uint64_t) 7))

tr_status_t
tr_response_writer_init(tr_response_writer_t *o, tr_ring_shared_t *shared,
                        void *data, uint32_t capacity, int bell_fd,
                        int frontend_fd)
{
    memset(o, 0, sizeof(*o));
    if (capacity < TR_RESPONSE_WRITER_MIN || capacity > TR_RING_MAX
        || (capacity & (capacity - 1)) != 0) {
        return TR_ERR_INVALID;
    }
    tr_ring_producer_init(&o->ring, shared, data, capacity);
    o->bell_fd = bell_fd;
    o->frontend_fd = frontend_fd;
    return TR_OK;
}

void
tr_response_writer_close(tr_response_writer_t *o)
{
    atomic_store(&o->closed, 1);
}

void
tr_response_writer_free(tr_response_writer_t *o)
{
    while (atomic_load_explicit(&o->held, memory_order_acquire) != 0) {
        sched_yield();
    }
    memset(o, 0, sizeof(*o));
}

/* ---- room --------------------------------------------------------------- */

static void
tr_response_writer_tell_front(const tr_response_writer_t *o)
{
    const uint64_t one = 1;

    (void) !write(o->frontend_fd, &one, sizeof(one));
}

static void
tr_response_writer_break(tr_response_writer_t *o,
                         enum tr_response_writer_fault fault)
{
    atomic_store(&o->broken, fault);
    tr_response_writer_tell_front(o);
}

static bool
tr_response_writer_dead(const tr_response_writer_t *o)
{
    return atomic_load_explicit(&o->closed, memory_order_relaxed) != 0
           || atomic_load_explicit(&o->broken, memory_order_relaxed) != 0;
}

/* True also when the worker's index is impossible: the response writer is dead
 * then. */
static bool
tr_response_writer_fits(tr_response_writer_t *o, uint64_t need, bool look)
{
    tr_ring_producer_t *p = &o->ring;

    if (look && tr_ring_refresh_head(p, memory_order_seq_cst) != TR_OK) {
        tr_response_writer_break(o, TR_RESPONSE_WRITER_BAD_INDEX);
        return true;
    }
    return need <= p->capacity - (p->tail - p->head);
}

bool
tr_response_writer_has_room(tr_response_writer_t *o, uint32_t n,
                            uint32_t logprobs)
{
    const uint64_t text = TR_RESPONSE_WRITER_RECORD(sizeof(tr_wire_started_t))
                          + TR_RESPONSE_WRITER_RECORD(
                              sizeof(tr_wire_delta_t)
                              + TR_RESPONSE_WRITER_TEXT_MAX
                              + TR_RESPONSE_WRITER_IDS_MAX)
                          + TR_RESPONSE_WRITER_RECORD(sizeof(tr_wire_finish_t))
                          /* now, and at the end */
                          + 2 * TR_RESPONSE_WRITER_RECORD(sizeof(tr_wire_kv_t));
    uint64_t need;

    n += o->owed;
    logprobs += o->owed_logprobs;
    /* one record may be pushed to the start of the ring by a PAD of its size */
    need = n * text + logprobs * (uint64_t) TR_RESPONSE_WRITER_LOGPROB_MAX
           + text + (logprobs != 0 ? TR_RESPONSE_WRITER_LOGPROB_MAX : 0);
    if (tr_response_writer_fits(o, need, false) || tr_response_writer_dead(o)
        || tr_response_writer_fits(o, need, true)) {
        return true;
    }
    /* `waits` first: when the worker rings, the frontend thread must find it */
    if (atomic_exchange(&o->waits, 1) == 0) {
        tr_response_writer_tell_front(o);
    }
    atomic_store_explicit(&o->ring.shared->producer_waiting, 1,
                          memory_order_seq_cst);
    if (tr_response_writer_fits(o, need, true)) {
        atomic_store_explicit(&o->ring.shared->producer_waiting, 0,
                              memory_order_seq_cst);
        return true;
    }
    return false;
}

/* ---- records ------------------------------------------------------------ */

static tr_status_t
tr_response_writer_put(tr_response_writer_t *o, uint16_t type, uint16_t flags,
                       uint64_t id, const tr_ring_piece_t *pieces, unsigned n)
{
    tr_status_t rc;

    if (tr_response_writer_dead(o)) {
        return TR_OK;
    }
    rc = tr_ring_put(&o->ring, type, flags, id, pieces, n);
    if (rc == TR_ERR_PROTOCOL) {
        tr_response_writer_break(o, TR_RESPONSE_WRITER_BAD_INDEX);
        return TR_OK;
    }
    return rc;
}

tr_status_t
tr_response_writer_started(tr_response_writer_t *o, uint64_t id,
                           uint32_t cached_tokens)
{
    tr_wire_started_t head = { .cached_tokens = cached_tokens };
    tr_ring_piece_t piece = { &head, sizeof(head) };

    return tr_response_writer_put(o, TR_RECORD_STARTED, 0, id, &piece, 1);
}

tr_status_t
tr_response_writer_delta(tr_response_writer_t *o, uint64_t id,
                         const tr_wire_delta_t *head, const char *text,
                         const void *logprobs, const int32_t *ids)
{
    tr_ring_piece_t pieces[] = { { head, sizeof(*head) },
                                 { text, head->text_len },
                                 { logprobs, head->logprobs_len },
                                 { ids, head->ids_len } };

    return tr_response_writer_put(o, TR_RECORD_DELTA, 0, id, pieces, 4);
}

tr_status_t
tr_response_writer_item(tr_response_writer_t *o, uint64_t id,
                        const tr_wire_item_t *item, const char *item_id,
                        const char *name)
{
    tr_ring_piece_t pieces[] = { { item, sizeof(*item) },
                                 { item_id, item->id_len },
                                 { name, item->name_len } };

    return tr_response_writer_put(o, TR_RECORD_ITEM, TR_FLAG_MORE, id, pieces,
                                  3);
}

tr_status_t
tr_response_writer_kv(tr_response_writer_t *o, uint64_t id,
                      const tr_wire_kv_t *kv)
{
    tr_ring_piece_t piece = { kv, sizeof(*kv) };

    return tr_response_writer_put(o, TR_RECORD_KV, 0, id, &piece, 1);
}

tr_status_t
tr_response_writer_result(tr_response_writer_t *o, uint64_t id,
                          const tr_wire_result_t *head, const void *bytes)
{
    tr_ring_piece_t pieces[] = { { head, sizeof(*head) },
                                 { bytes, head->len } };

    return tr_response_writer_put(o, TR_RECORD_RESULT, 0, id, pieces, 2);
}

tr_status_t
tr_response_writer_finish(tr_response_writer_t *o, uint64_t id,
                          const tr_wire_finish_t *finish, const char *tail)
{
    tr_ring_piece_t pieces[] = { { finish, sizeof(*finish) },
                                 { tail, finish->tail_len } };

    return tr_response_writer_put(o, TR_RECORD_FINISH, 0, id, pieces, 2);
}

void
tr_response_writer_describe_error(const tr_error_t *err, uint32_t prompt_tokens,
                                  uint32_t completion_tokens,
                                  tr_error_record_t *out)
{
    out->head = (tr_wire_error_t){
        .status = err->status,
        .retry_after_s = tr_retry_after(err->status),
        .param_len = (uint32_t) strnlen(err->param, sizeof(err->param)),
        .message_len = (uint32_t) strnlen(err->text, sizeof(err->text)),
        .prompt_tokens = prompt_tokens,
        .completion_tokens = completion_tokens
    };
    out->pieces[0] = (tr_ring_piece_t){ &out->head, sizeof(out->head) };
    out->pieces[1] = (tr_ring_piece_t){ err->param, out->head.param_len };
    out->pieces[2] = (tr_ring_piece_t){ err->text, out->head.message_len };
}

tr_status_t
tr_response_writer_error(tr_response_writer_t *o, uint64_t id,
                         const tr_error_t *err, uint32_t prompt_tokens,
                         uint32_t completion_tokens)
{
    tr_error_record_t record;

    tr_response_writer_describe_error(err, prompt_tokens, completion_tokens,
                                      &record);
    return tr_response_writer_put(o, TR_RECORD_ERROR, 0, id, record.pieces, 3);
}

bool
tr_response_writer_publish(tr_response_writer_t *o, tr_bell_t *bell)
{
    int rc = tr_response_writer_dead(o) ? 0 : tr_ring_publish_open(&o->ring);

    if (rc == 1 && !tr_bell_ring(bell, o->bell_fd)) {
        tr_response_writer_break(o, TR_RESPONSE_WRITER_BAD_BELL);
    }
    return rc != -1;
}

void
tr_response_writer_let_go(tr_response_writer_t *o)
{
    atomic_store_explicit(&o->held, 0, memory_order_release);
}

void
tr_response_writer_open_bell(tr_bell_t *bell)
{
    int err = tr_bell_open(bell, BELL_PERIOD_NS);

    if (err != 0) {
        tr_log(TR_LEVEL_WARN, "no timer to guard doorbells error=\"%s\"",
               strerror(err));
    }
}

uint32_t
tr_response_writer_encode_logprob(const tr_tokenizer_t *t,
                                  const tr_sampled_t *sampled, void *out,
                                  uint32_t cap)
{
    tr_wire_logprob_t head = {
        sampled->token, sampled->logprob, 0, (uint8_t) sampled->n_top,
        tr_tokenizer_is_special(t, sampled->token) ? TR_LOGPROB_HIDDEN : 0
    };
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
