/*
 * The Redis publisher: a thread that tells Redis what the engine does, as
 * docs/redis.md says, and hears from Redis which requests are to be cancelled.
 *
 *   rings (request_events.h) --> outbox (redis_outbox.h) --> commands
 *     (redis_schema.h) --> connection (redis_link.h)
 *   a second connection is subscribed to PREFIXctl:{NAME}
 *
 * Everything that came since the last flush leaves in one pipeline, one flush
 * about every redis_flush while requests are inside; an idle engine is heard
 * once a second.  The thread never blocks but in poll, so its rings are emptied
 * in time whatever Redis does.
 *
 * Serving never waits for it.  When Redis is away or refuses writes, state and
 * output wait in the outbox, within redis_buffer; what does not fit is counted
 * (tokenring_redis_lost_requests_total).  An outage is two lines in the log.
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
