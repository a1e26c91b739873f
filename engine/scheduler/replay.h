/*
 * Requests that come from another engine (wire.h: replay blocks).
 *
 * The state of a sequence after some output is a function of the request, of its
 * creation time, of its seed and of the ids of that output.  So the ids are
 * processed as if they had just been sampled here, by the code that takes sampled
 * tokens (emit.h), which sends nothing meanwhile.  The sequence then waits like
 * one that was preempted: with output, but without a cache.
 *
 * Both are called by the request parser, in this order, around its own work.
 */
#ifndef TR_REPLAY_H
#define TR_REPLAY_H

#include "request.h"

/* Before r is parsed: checks its block, if it has one, and takes the seed and
 * the time from it.  TR_ERR_REPLAY: r->error says what is wrong. */
tr_status_t tr_replay_begin(tr_request_t *r,
                            const uint8_t model_id[TR_MODEL_ID]);

/* After r was laid out: takes the ids of the block.  TR_ERR_REPLAY: they are not
 * output of this request; TR_ERR_NOMEM. */
tr_status_t tr_replay(tr_request_t *r, const tr_tokenizer_t *t, uint32_t vocab);

#endif
