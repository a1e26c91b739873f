/*
 * Request events: what the engine tells the Redis publisher about requests.
 *
 *   frontend thread --ring--.
 *                           +--> publisher thread --> Redis
 *   step loop --------ring--'          |
 *   frontend thread <-----cancel-------'
 *
 * There are two bounded rings in private memory, one for each thread that
 * writes.  Writing an event never allocates, waits or takes a lock.  When a
 * ring is full the event is lost; the request remembers that (events_lost), and
 * its output in Redis then ends in an error instead of having a hole.
 *
 * The end of a request is never lost.  The frontend thread writes it, once for
 * every arrival that it wrote, and an arrival is written only when the ring has
 * room for the ends of all requests inside.
 *
 * Order: the publisher reads the step loop's ring up to where it stood before
 * it read the frontend thread's ring, so it knows a request before it sees its
 * records.  It applies ends one round later, so it has the records before the
 * end.
 *
 * A request whose `events` is NULL is not published: no Redis is configured, or
 * the request has no completion id.
 */
#ifndef TR_REQUEST_EVENTS_H
#define TR_REQUEST_EVENTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <tokenring/ring.h>
#include <tokenring/wire.h>

typedef struct tr_request tr_request_t;
typedef struct tr_lookup tr_lookup_t;

enum tr_event_type {
    TR_EVENT_ARRIVED = 1, /* tr_event_arrived_t */
    TR_EVENT_STARTED,     /* u64: CLOCK_MONOTONIC, us */
    TR_EVENT_FIRST,       /* the same: its first token */
    TR_EVENT_PROGRESS,    /* tr_event_progress_t */
    TR_EVENT_DETACHED,    /* its client has left, it goes on */
    TR_EVENT_LOST,        /* a record did not fit; no more follow */
    TR_EVENT_END,         /* tr_event_end_t */
    TR_EVENT_KEPT,        /* tr_event_kept_t: a response that is kept */
    TR_EVENT_MOVED,       /* tr_event_moved_t: it goes on here */
    TR_EVENT_RECORDS = 16
    /* from 16 on: records of wire.h, as they are.  ACCEPTED of every request,
     * the others of those whose output is kept. */
};

enum tr_request_state {
    TR_REQUEST_QUEUED,
    TR_REQUEST_PREFILL,
    TR_REQUEST_DECODE,
    TR_REQUEST_DONE, /* this and all after it are final */
    TR_REQUEST_FAILED,
    TR_REQUEST_CANCELLED
};

typedef struct {
    char completion[TR_COMPLETION_LEN];
    char owner[TR_OWNER_LEN];
    char request_id[TR_REQUEST_ID_MAX];
    uint16_t endpoint, flags; /* TR_SUBMIT_* */
    uint16_t moved;           /* 1: it was at another engine, MOVED follows when
                               * this one has a place for it */
    uint16_t migrate_s;       /* of SUBMIT */
    uint64_t arrival_us;      /* CLOCK_MONOTONIC */
    uint64_t tenant;          /* of the SUBMIT */
} tr_event_arrived_t;

/* How far a request is, is told so often at most. */
#define TR_EVENT_PROGRESS_US 1000000u

typedef struct {
    uint32_t tokens; /* of all choices until now */
    uint32_t reserved;
    tr_wire_usage_t kv; /* of all choices now */
} tr_event_progress_t;

#define TR_EVENT_MESSAGE 192

typedef struct {
    uint8_t state;         /* DONE, FAILED, CANCELLED */
    uint8_t lost;          /* records of it are missing */
    uint8_t elsewhere;     /* another engine goes on with it: no end */
    uint8_t moves;         /* the same, or what it used is counted there */
    uint8_t finish_reason; /* enum tr_finish_reason */
    int32_t status;        /* tr_status_t; TR_OK when there is nothing to say */
    uint32_t prompt_tokens, completion_tokens;
    uint32_t cached_tokens; /* of the prompts, not computed again */
    uint32_t preemptions;
    uint32_t choices;
    uint64_t scheduled_us, first_token_us, ended_us; /* 0: never */
    tr_wire_usage_t kv;
    char message[TR_EVENT_MESSAGE]; /* NUL-terminated */
} tr_event_end_t;

/* What a response that is kept was an answer to: an array of JSON items, then
 * the ids of the responses that it goes on from, oldest first, 32 digits each.
 * `text` is the publisher's, to be freed. */
typedef struct {
    char *text;
    uint64_t input_len;
    uint32_t ancestors_len;
    uint32_t reserved;
    uint8_t holder[TR_HOLDER];
} tr_event_kept_t;

/* What Redis has of it was written by another engine, up to record `number`, or
 * not quite: `told` has the last of these records.  It is the publisher's, to be
 * freed. */
typedef struct {
    uint8_t *told;
    uint64_t told_len, number;
    uint32_t epoch; /* engines that had it */
    uint32_t reserved;
} tr_event_moved_t;

#define TR_EVENTS_FRONTEND_RING (2u << 20)
#define TR_EVENTS_LOOP_RING (4u << 20)
#define TR_EVENTS_CANCELS 256

typedef struct {
    tr_ring_producer_t frontend;                 /* frontend thread's end */
    tr_ring_producer_t loop;                     /* step loop's end */
    tr_ring_consumer_t from_frontend, from_loop; /* the publisher's ends */
    void *frontend_memory, *loop_memory;         /* owned */
    int publisher_fd; /* eventfd, borrowed: wakes the publisher */
    int frontend_fd;  /* eventfd, borrowed: wakes the frontend thread */

    uint64_t next_id;      /* frontend thread only */
    uint32_t inside;       /* arrivals told whose end was not */
    _Atomic uint64_t lost; /* requests that the publisher never heard of */

    /* publisher to frontend thread: requests to be cancelled */
    uint64_t cancels[TR_EVENTS_CANCELS];
    _Atomic uint32_t cancels_tail, cancels_head;

    /* parser threads to publisher: responses that are asked for (kept.h) */
    pthread_mutex_t asking;
    tr_lookup_t *asked;         /* under `asking`; the newest first */
    _Atomic uint32_t n_lookups; /* those that were not freed */
} tr_request_events_t;

/* The descriptors are borrowed until tr_events_free. */
tr_status_t tr_events_init(tr_request_events_t *t, int publisher_fd,
                           int frontend_fd);
void tr_events_free(tr_request_events_t *t);

/* ---- frontend thread
 * ------------------------------------------------------- */

/* r has arrived: makes its events published, if it has a completion id and
 * there is room. t may be NULL. */
void tr_events_arrived(tr_request_events_t *t, tr_request_t *r,
                       const tr_wire_submit_t *head);
/* A record that the frontend thread answers with. */
void tr_events_answer(tr_request_t *r, uint16_t type,
                      const tr_ring_piece_t *pieces, unsigned n);
void tr_events_detached(tr_request_t *r);
/* r's response is kept, if it is to be: ahead of all records of it. */
void tr_events_keep(tr_request_t *r);
/* It was at another engine, and goes on here: ahead of its ACCEPTED. */
void tr_events_moved(tr_request_t *r);
/* r is over and about to be freed. */
void tr_events_end(tr_request_t *r, uint64_t now_us);
/* Shows what was told; once a turn.  t may be NULL. */
void tr_events_show(tr_request_events_t *t);
/* The next request that is to be cancelled (its event_id), 0: none.  t may be
 * NULL. */
uint64_t tr_events_cancelled(tr_request_events_t *t);

/* ---- step loop ---------------------------------------------------------- */

void tr_events_started(tr_request_t *r, uint64_t now_us);
void tr_events_first_token(tr_request_t *r, uint64_t now_us);
/* Is it time to say how far r is?  And says it; false: that did not fit, the
 * next time will do. */
bool tr_events_progress_due(const tr_request_t *r, uint64_t now_us);
bool tr_events_progress(tr_request_t *r, const tr_wire_usage_t *kv,
                        uint64_t now_us);
/* A record of r's output, if that is kept. */
void tr_events_record(tr_request_t *r, uint16_t type,
                      const tr_ring_piece_t *pieces, unsigned n);
/* r's worker has not heard the records that were told since the last
 * tr_events_publish: nor does the publisher. */
void tr_events_unsay(const tr_request_t *r);
/* Shows what was told; once a step, when the workers were shown it: Redis must
 * not have what a worker cannot have. */
void tr_events_publish(tr_request_events_t *t);

/* ---- publisher ----------------------------------------------------------- */

/* Looks how far the step loop's ring may be read. */
void tr_events_look(tr_request_events_t *t);

/* False when the mailbox is full. */
bool tr_events_cancel(tr_request_events_t *t, uint64_t id);

#endif
