/*
 * The frontend: the thread that serves worker connections and publishes the
 * status page.
 *
 * One epoll watches the listening socket, the sockets and doorbells of workers,
 * and one eventfd that the request parser and the step loop ring.  Each turn
 * serves the connections round robin, a bounded number of bytes each, and
 * sleeps when none has more to do.  While requests run it wakes at least every
 * 100 ms to publish the status page, otherwise only on an event.  Output does
 * not pass through this thread: the step loop writes it.
 */
#ifndef TR_FRONTEND_H
#define TR_FRONTEND_H

#include <tokenring/status.h>

#include "engine/config/config.h"
#include "engine/api/request_parser.h"
#include "engine/transport/listener.h"
#include "engine/scheduler/loop.h"

typedef struct tr_front tr_frontend_t;

typedef struct {
    const tr_config_t *config;   /* borrowed */
    tr_listener_t *listener;     /* borrowed, open */
    tr_status_page_t *status;    /* borrowed, card filled */
    int status_fd;               /* borrowed */
    int wake_fd;                 /* borrowed: parser and loop ring it */
    tr_request_parser_t *parser; /* given: stopped by the frontend thread */
    tr_loop_t *loop;             /* given: stopped by the frontend thread */
    tr_request_events_t *events; /* borrowed; NULL: nothing is published */
} tr_frontend_options_t;

/* Starts the thread; the status page says READY when it returns.  On failure
 * parser and loop stay the caller's. */
tr_status_t tr_frontend_start(const tr_frontend_options_t *options,
                              tr_frontend_t **out, tr_error_t *err);

/* Refuses new requests, lets the others finish for drain_us, then ends them,
 * stops loop and parser and closes the connections.  Blocks until the thread
 * ends. */
void tr_frontend_end(tr_frontend_t *f, uint64_t drain_us);

/* Any thread: a tr_frontend_end under way does not wait any longer. */
void tr_frontend_hurry(tr_frontend_t *f);

/* After tr_frontend_end. */
void tr_frontend_free(tr_frontend_t *f);

#endif
