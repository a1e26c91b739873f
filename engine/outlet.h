/*
 * An outlet: the bounded queue from the step loop to one channel.
 *
 * The step loop is the only producer, the front thread the only consumer; what
 * travels are the records of wire.h, byte for byte, so that the front thread
 * only copies.  It is the same ring as in shared memory, in private memory.
 * A full outlet pauses the requests of its channel and nobody else.
 *
 * Ownership: with the record that ends a request (FINISH with TR_FINISH_LAST,
 * or ERROR) the request passes back to the front thread, which frees it; the
 * step loop has forgotten it by then.
 */
#ifndef TR_OUTLET_H
#define TR_OUTLET_H

#include "sampling.h"
#include "tokenizer.h"
#include <tokenring/wire.h>

/* What one sequence may add to an outlet in one step, in bytes; a tokenizer
 * with longer tokens is refused when the loop starts. */
#define TR_OUTLET_TOKEN_BYTES 512
#define TR_OUTLET_TEXT_MAX \
    (TR_STOP_STRING_BYTES + TR_OUTLET_TOKEN_BYTES * 3 + 32)
#define TR_OUTLET_LOGPROB_MAX  \
    ((1 + TR_TOP_LOGPROBS_MAX) \
     * (sizeof(tr_wire_logprob_t) + TR_OUTLET_TOKEN_BYTES))

#define TR_OUTLET_MIN (64u << 10)

/* What an ERROR says about trying again, in seconds; 0: nothing. */
static inline uint32_t
tr_retry_after(tr_status_t status)
{
    tr_status_info_t info = tr_status_info(status);

    return info.http == 429 || info.http == 503 ? 1 : 0;
}

typedef struct tr_outlet tr_outlet_t;

struct tr_outlet {
    tr_ring_shared_t *shared; /* private memory all the same */
    uint8_t *data;
    uint32_t capacity;
    tr_ring_producer_t producer; /* step loop only */
    tr_ring_consumer_t consumer; /* front thread only */
    uint64_t full_since_us;      /* step loop only: 0, or when it filled up */

    /* step loop only: sequences that joined the batch of step `turn`, and the
     * list of outlets in which records are staged */
    uint64_t turn;
    uint32_t batch, batch_logprobs;
    bool staged;
    tr_outlet_t *next_staged;
    _Atomic uint32_t publishing; /* the step loop is inside */
};

/* capacity: bytes, power of two, at least TR_OUTLET_MIN. */
tr_status_t tr_outlet_init(tr_outlet_t *o, uint32_t capacity);
/* Front thread, after the last of its requests came back.  The record that
 * ended it may have been seen while the step loop was still publishing it:
 * this waits (less than a microsecond) until it is out. */
void tr_outlet_free(tr_outlet_t *o);

/* Step loop: is there room for one more step of `n` sequences of this channel,
 * `logprobs` of them with logprobs?  Asked before a sequence joins a batch.
 * If not, the front thread is asked to call tr_loop_wake when it has made
 * room (tr_ring_release returns 1 then). */
bool tr_outlet_has_room(tr_outlet_t *o, uint32_t n, uint32_t logprobs);

/* Step loop: stage one record each; they become visible with
 * tr_outlet_publish, once a step.  They cannot fail when has_room said yes. */
tr_status_t tr_outlet_started(tr_outlet_t *o, uint64_t id);
tr_status_t tr_outlet_delta(tr_outlet_t *o, uint64_t id, uint32_t choice,
                            uint32_t tokens, const char *text,
                            uint32_t text_len, const void *logprobs,
                            uint32_t logprobs_len);
tr_status_t tr_outlet_finish(tr_outlet_t *o, uint64_t id,
                             const tr_wire_finish_t *finish);
tr_status_t tr_outlet_error(tr_outlet_t *o, uint64_t id, const tr_error_t *err,
                            uint32_t prompt_tokens, uint32_t completion_tokens);

/* 1 when the front thread slept and must be woken. */
int tr_outlet_publish(tr_outlet_t *o);

/* Encodes one token's logprob entry (wire.h) at out; bytes written, 0 when it
 * does not fit.  TR_OUTLET_LOGPROB_MAX always suffices. */
uint32_t tr_outlet_encode_logprob(const tr_tokenizer_t *t,
                                  const tr_sampled_t *sampled, void *out,
                                  uint32_t cap);

#endif
