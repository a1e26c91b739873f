/*
 * The step loop: the thread that owns the executor, the KV cache and all
 * requests inside.  It sleeps when there is nothing to do.  A turn of it:
 *
 *   take new requests, read their control words      loop.c
 *   let the scheduler compose a batch                scheduler.h
 *   submit the batch to the executor                 loop_step.c
 *   complete the batch before: tokens to text and    loop_step.c, emit.h
 *     records, finished requests leave               loop_end.c
 *   make the masks that hang on these tokens         loop_masks.c
 *   publish the records, ring workers that sleep     loop_step.c
 *
 * To read it, start with tr_loop_turn in loop.c.
 *
 * On the CPU, submit computes, and a batch is completed at once.  On a GPU the
 * next batch is composed and submitted while one is in flight, so an abort
 * takes effect within two steps.
 *
 * The frontend thread is told when a request is over, when a ring has no room,
 * and when the status page would change.
 *
 * A step holds no lock and allocates nothing.
 */
#ifndef TR_LOOP_H
#define TR_LOOP_H

#include "engine/config/config.h"
#include "engine/executor/executor.h"
#include "request.h"
#include "engine/tokenizer/tokenizer.h"
#include <tokenring/status.h>

typedef struct tr_loop tr_loop_t;

/* Starts the thread.  executor, tokenizer, counters: borrowed, outlive it.
 * frontend_fd: an eventfd (borrowed) that is written when the frontend thread
 * should take what is over and look at the snapshot. */
tr_status_t tr_loop_start(const tr_config_t *config, tr_executor_t *executor,
                          const tr_tokenizer_t *tokenizer,
                          tr_status_counters_t *counters, int frontend_fd,
                          tr_loop_t **out, tr_error_t *err);

/* Frontend thread: takes a place for a request.  TR_ERR_QUEUE_FULL when
 * max_queue requests wait, TR_ERR_CONTEXT_LENGTH when a prompt with its
 * max_tokens can never fit the model's context or the KV pool.  After TR_OK the
 * request must be submitted. */
tr_status_t tr_loop_reserve(tr_loop_t *l, const tr_request_t *r);

/* Frontend thread: passes a request on (given), whose ACCEPTED is published:
 * its output may appear at once. */
void tr_loop_submit(tr_loop_t *l, tr_request_t *r);

/* Frontend thread: the requests that are over (given), linked by next; NULL
 * when there are none.  _now: with all those whose workers have seen their last
 * records; it waits for them, which is for microseconds. */
tr_request_t *tr_loop_over(tr_loop_t *l);
tr_request_t *tr_loop_over_now(tr_loop_t *l);

/* Frontend thread: request->control changed, or a ring has room again. */
void tr_loop_wake(tr_loop_t *l);

/* Frontend thread: asks for a sign of life, which is there, and the frontend
 * thread told, as soon as tr_loop_beat has reached what this returns. */
uint64_t tr_loop_ask(tr_loop_t *l);
uint64_t tr_loop_beat(const tr_loop_t *l);

/* Frontend thread: from now on requests that were never scheduled end with
 * ERROR TR_ERR_DRAINING; those that were go on. */
void tr_loop_drain(tr_loop_t *l);

/* Frontend thread.  on: requests whose gateway keeps what they were told (IDS)
 * end with TR_ERR_MOVED between two steps, until it is taken back. */
void tr_loop_move(tr_loop_t *l, bool on);

/* Any thread: a consistent copy of the figures for the status page. */
void tr_loop_snapshot(tr_loop_t *l, tr_status_admission_t *out);

/* Frontend thread: requests inside (queued or running). */
uint32_t tr_loop_outstanding(tr_loop_t *l);

/* Frontend thread: those of them that were never scheduled. */
uint32_t tr_loop_queued(tr_loop_t *l);

/* Frontend thread: ends the thread after the current step and frees the loop.
 * Requests still inside end with ERROR TR_ERR_DRAINING as far as their rings
 * have room; all of them, and those that were over, come back (given), linked
 * by next. */
tr_request_t *tr_loop_stop(tr_loop_t *l);

#endif
