/*
 * Intake: the threads that turn bodies into requests (openai.h), so that a
 * large prompt never holds up the frontend thread or the step loop.
 *
 * One bounded queue in, one list out.  The frontend thread is the only one that
 * gives and takes; a request belongs to intake in between.
 */
#ifndef TR_INTAKE_H
#define TR_INTAKE_H

#include "openai.h"
#include "engine/scheduler/request.h"

typedef struct tr_intake tr_intake_t;

/* api (and what it points to) is borrowed until tr_intake_stop.  done_fd: an
 * eventfd (borrowed), written when the first of several requests is done. */
tr_status_t tr_intake_start(const tr_openai_t *api, uint32_t threads,
                            uint32_t queue_max, int done_fd, tr_intake_t **out,
                            tr_error_t *err);

/* TR_OK: the request is intake's; TR_ERR_QUEUE_FULL: it stays the caller's. */
tr_status_t tr_intake_submit(tr_intake_t *i, tr_request_t *r);

/* The next request that is done (r->error tells how), in the order in which
 * they were finished; NULL when there is none. */
tr_request_t *tr_intake_take(tr_intake_t *i);

/* Requests given and not yet taken back. */
uint32_t tr_intake_outstanding(const tr_intake_t *i);

/* Ends the threads after the parses under way and frees everything that was
 * not taken back. */
void tr_intake_stop(tr_intake_t *i);

#endif
