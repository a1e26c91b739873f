/*
 * The request parser: the threads that turn bodies into requests (openai.h), and
 * those that compile grammars which are not known yet, so that neither a large
 * prompt nor a schema holds up the frontend thread or the step loop.
 *
 * Requests wait by size and by tenant, and come back in one list.  The frontend
 * thread is the only one that gives and takes; a request belongs to the request
 * parser in between.
 */
#ifndef TR_REQUEST_PARSER_H
#define TR_REQUEST_PARSER_H

#include "openai.h"
#include "engine/scheduler/request.h"

typedef struct tr_request_parser tr_request_parser_t;

/* api (and what it points to) is borrowed until tr_request_parser_stop.
 * done_fd: an eventfd (borrowed), written when the first of several requests is
 * done. */
tr_status_t tr_request_parser_start(const tr_openai_t *api, uint32_t threads,
                                    uint32_t queue_max, int done_fd,
                                    tr_request_parser_t **out, tr_error_t *err);

/* TR_OK: the request is the parser's; TR_ERR_QUEUE_FULL: it stays the
 * caller's. */
tr_status_t tr_request_parser_submit(tr_request_parser_t *p, tr_request_t *r);

/* The next request that is done (r->error tells how), in the order in which
 * they were finished; NULL when there is none. */
tr_request_t *tr_request_parser_take(tr_request_parser_t *p);

/* Ends the threads after the parses under way and frees everything that was
 * not taken back. */
void tr_request_parser_stop(tr_request_parser_t *p);

#endif
