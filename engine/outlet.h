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

typedef struct {
    tr_ring_shared_t *shared; /* private memory all the same */
    uint8_t *data;
    uint32_t capacity;
    tr_ring_producer_t producer; /* step loop only */
    tr_ring_consumer_t consumer; /* front thread only */
    uint64_t full_since_us;      /* step loop only: 0, or when it filled up */
} tr_outlet_t;

/* capacity: bytes, power of two. */
tr_status_t tr_outlet_init(tr_outlet_t *o, uint32_t capacity);
void tr_outlet_free(tr_outlet_t *o);

/* Step loop: is there room for one more step of `n` sequences of this channel
 * (with logprobs if so)?  Asked before a sequence joins a batch. */
bool tr_outlet_has_room(tr_outlet_t *o, uint32_t n, bool logprobs);

/* Step loop: stage one record each; they become visible with
 * tr_outlet_publish, once a step.  They cannot fail when has_room said yes. */
tr_status_t tr_outlet_delta(tr_outlet_t *o, uint64_t id, uint32_t choice,
    uint32_t tokens, const char *text, uint32_t text_len,
    const void *logprobs, uint32_t logprobs_len);
tr_status_t tr_outlet_finish(tr_outlet_t *o, uint64_t id,
    const tr_wire_finish_t *finish);
tr_status_t tr_outlet_error(tr_outlet_t *o, uint64_t id,
    const tr_error_t *err, uint32_t prompt_tokens, uint32_t completion_tokens);

/* 1 when the front thread slept and must be woken. */
int tr_outlet_publish(tr_outlet_t *o);

/* Encodes one token's logprob entry (wire.h) at out; bytes written, 0 when it
 * does not fit. */
uint32_t tr_outlet_encode_logprob(const tr_tokenizer_t *t,
    const tr_sampled_t *sampled, void *out, uint32_t cap);

#endif
