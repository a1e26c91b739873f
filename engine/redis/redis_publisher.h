/*
 * The Redis publisher: a thread that writes the state and output of requests to
 * Redis, as docs/redis.md describes, and receives the ids of requests to
 * cancel.
 *
 *   events (request_events.h) --> outbox (redis_outbox.h) --> commands
 *     (redis_schema.h) --> connection (redis_link.h)
 *   a second connection is subscribed to PREFIXctl:{NAME}
 *
 * Everything since the last flush leaves in one pipeline, about every
 * redis_flush while requests are inside; an idle engine sends its heartbeat
 * once a second.  The thread blocks in poll alone, so it keeps emptying its
 * rings whatever Redis does.
 *
 * Serving never waits for it.  While Redis is away or refuses writes, state and
 * output wait in the outbox, within redis_buffer; what does not fit is counted
 * (tokenring_redis_lost_requests_total).  An outage logs two lines: one when it
 * begins, one when it ends.
 */
#ifndef TR_REDIS_PUBLISHER_H
#define TR_REDIS_PUBLISHER_H

#include <tokenring/status.h>

#include "engine/config/config.h"
#include "engine/scheduler/request_events.h"

typedef struct tr_redis_publisher tr_redis_publisher_t;

/* config (with redis set) and status are borrowed until
 * tr_redis_publisher_stop, as is frontend_fd, an eventfd that wakes the
 * frontend thread. */
tr_status_t tr_redis_publisher_start(const tr_config_t *config,
                                     tr_status_page_t *status, int frontend_fd,
                                     tr_redis_publisher_t **out,
                                     tr_error_t *err);

/* Where frontend thread and step loop tell it. */
tr_request_events_t *tr_redis_publisher_events(tr_redis_publisher_t *r);

/* After the frontend thread and the step loop have ended: what is still inside
 * has failed.  Writes what can be written within a second, and frees. */
void tr_redis_publisher_stop(tr_redis_publisher_t *r);

#endif
