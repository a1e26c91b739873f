/*
 * The outbox: what the publisher knows about requests and has yet to write to
 * Redis.
 *
 * Every request has fields (the hash tr:req) and, if it is resumable, output:
 * the records that its worker got, numbered from 1, collected into entries (of
 * the stream tr:out).  At most one entry of a request is on its way to Redis,
 * so that the next one cannot overtake one that is refused; meanwhile records
 * collect in the last entry.  Once sent, an entry never changes: sent again
 * after a lost connection, it is either new to Redis or exactly what Redis has.
 *
 *   kept  [1..20][21..33] | [34..41]    [42..47]
 *          acknowledged     on its way   open
 *
 * Acknowledged entries are kept while there is room, in case Redis comes back
 * without them.  All memory is counted.  Where it would exceed the limit,
 * acknowledged entries are dropped first; then the output of the request at
 * hand ends in an ERROR record (a gap).  For a new request, the oldest request
 * that has ended and could not be written is forgotten.
 *
 * Requests with something to write are in the list `due`.
 *
 * A request that was at another engine is `muted` until it goes on here, and
 * then has an epoch: how many engines had it.  It begins with the last records
 * of that engine, in entries of one record each, and asks Redis which of them it
 * has.  Where Redis has met a later epoch, another engine has taken the request
 * over: it is `fenced`, and nothing more of it is written.
 */
#ifndef TR_REDIS_OUTBOX_H
#define TR_REDIS_OUTBOX_H

#include <stddef.h>

#include "engine/scheduler/request_events.h"
#include "redis_usage.h"

#define TR_OUTBOX_BUCKETS 4096
#define TR_OUTBOX_ENTRY \
    16384u /* an entry is closed when it has so many bytes */

#define TR_OUTBOX_POLICY 31 /* of its name, longer ones are cut */

/* Groups of fields that Redis has not seen. */
#define TR_OUTBOX_IDENTITY 0x1u  /* who and what */
#define TR_OUTBOX_STATE 0x2u     /* state and times */
#define TR_OUTBOX_ACCEPTED 0x4u  /* choices, prompt_tokens, kv_policy */
#define TR_OUTBOX_FINAL 0x8u     /* the end */
#define TR_OUTBOX_PROGRESS 0x10u /* tokens, and the KV cache, until now */
#define TR_OUTBOX_KEPT 0x20u     /* what a response that is kept answers */

typedef struct tr_outbox_entry {
    struct tr_outbox_entry *next;
    uint32_t first, last; /* numbers of its records */
    bool sent;            /* it may stand in Redis: not to be changed */
    size_t len, cap;
    uint8_t *bytes; /* {u32 length, u16 type, u16 0, payload}.. */
} tr_outbox_entry_t;

typedef struct tr_outbox_request {
    uint64_t id; /* event_id */
    struct tr_outbox_request *chain, *chain_completion;
    struct tr_outbox_request *prev, *next;         /* of all, by arrival */
    struct tr_outbox_request *due_prev, *due_next; /* of those that are due */
    struct tr_outbox_request *chain_ending;
    bool due;

    char completion[TR_COMPLETION_LEN + 1];
    char owner[TR_OWNER_LEN + 1];
    char request_id[TR_REQUEST_ID_MAX + 1];
    uint16_t endpoint, flags;
    uint64_t tenant;
    uint8_t state; /* enum tr_request_state */
    bool stream, detached, ended;
    bool cancelling;                   /* through tr:ctl */
    uint32_t epoch;                    /* engines that had it before */
    uint16_t migrate_s;                /* how long it may be without one */
    bool muted;                        /* it may go on here */
    bool fenced;                       /* it goes on elsewhere, or: */
    bool left;                         /* it was given up for that */
    bool claimed;                      /* Redis was told of the epoch */
    tr_event_progress_t progress;      /* while it runs */
    char policy[TR_OUTBOX_POLICY + 1]; /* the KV policy's name */
    int64_t created_ms, started_ms, first_token_ms, finished_ms; /* Unix */
    tr_event_end_t end;

    /* fields, as Redis has them */
    bool counted;             /* as lost */
    uint8_t dirty, writing;   /* TR_OUTBOX_*; writing: on their way */
    int64_t expires_ms;       /* when their time to live was set */
    tr_event_kept_t answered; /* what a kept response does; its text is owned,
                               * NULL: it is not kept */

    /* output */
    bool output;        /* it is kept */
    bool closed;        /* its last record is in */
    bool gap;           /* that is an ERROR because something was lost */
    bool began;         /* something was sent */
    bool sending;       /* `unacked` is on its way */
    bool unsure;        /* what Redis has of it must be asked first */
    bool asking;        /* it was asked */
    uint32_t last;      /* number of its last record */
    uint32_t inherited; /* of the last one of the engine before, until Redis
                         * has said how many it has; else UINT32_MAX */
    int64_t output_expires_ms;
    tr_outbox_entry_t *kept, *tail, *unacked;
} tr_outbox_request_t;

typedef struct {
    tr_outbox_request_t *by_id[TR_OUTBOX_BUCKETS];
    tr_outbox_request_t *by_completion[TR_OUTBOX_BUCKETS];
    tr_outbox_request_t *first, *last; /* by arrival */
    tr_outbox_request_t *due_first, *due_last;
    uint32_t n, live; /* requests; those whose end was not told */
    size_t bytes, limit;
    size_t spare;        /* of these, in acknowledged entries */
    uint64_t lost;       /* requests of which something was lost */
    int64_t realtime_us; /* Unix time minus CLOCK_MONOTONIC */
    tr_usage_t usage;    /* of requests that have ended */
    /* ends that were told in this round, and before */
    tr_outbox_request_t *ending, *ended_before;
} tr_outbox_t;

void tr_outbox_init(tr_outbox_t *l, size_t limit);
void tr_outbox_free(tr_outbox_t *l);

/* Takes one thing that was told (request_events.h); the payload is borrowed. */
void tr_outbox_take(tr_outbox_t *l, const tr_record_t *rec,
                    const uint8_t *payload);
/* Applies the ends that were told before this round. */
void tr_outbox_apply_ends(tr_outbox_t *l);
/* The engine stops: what has not ended, has failed. */
void tr_outbox_end_all(tr_outbox_t *l);

/* NULL when there is none that has not ended. */
tr_outbox_request_t *tr_outbox_find(tr_outbox_t *l, uint64_t id);
tr_outbox_request_t *
tr_outbox_find_completion(tr_outbox_t *l,
                          const char completion[TR_COMPLETION_LEN]);

/* Is there one that Redis does not have all of? */
bool tr_outbox_holds(tr_outbox_t *l, const char completion[TR_COMPLETION_LEN]);

/* Puts q at the end of the due list, if it is not in it. */
void tr_outbox_due(tr_outbox_t *l, tr_outbox_request_t *q);
/* Takes the first of the due list out of it; NULL: nobody is. */
tr_outbox_request_t *tr_outbox_next(tr_outbox_t *l);
/* May another engine take q over, or has this one? */
static inline bool
tr_outbox_moves(const tr_outbox_request_t *q)
{
    return q->epoch != 0 || (q->flags & TR_SUBMIT_IDS) != 0;
}

/* There is something to write of q and nothing in the way of it. */
bool tr_outbox_can_write(const tr_outbox_request_t *q);

/* ---- answers of Redis --------------------------------------------------- */

/* The fields that were on their way are there, or not. */
void tr_outbox_fields_done(tr_outbox_t *l, tr_outbox_request_t *q, bool ok);
/* They were written to a hash that had none of the others any more: expired,
 * evicted, flushed.  To be told ahead of tr_outbox_fields_done. */
void tr_outbox_fields_gone(tr_outbox_request_t *q);
/* The entry that was on its way is there, or not. */
void tr_outbox_entry_done(tr_outbox_t *l, tr_outbox_request_t *q, bool ok);
/* Redis has q's output up to this number, 0: nothing. */
void tr_outbox_found(tr_outbox_t *l, tr_outbox_request_t *q, uint32_t last);
/* Another engine has taken q over. */
void tr_outbox_fenced(tr_outbox_t *l, tr_outbox_request_t *q);
/* Redis will never take this request's fields, or output. */
void tr_outbox_give_up_fields(tr_outbox_t *l, tr_outbox_request_t *q);
void tr_outbox_give_up_output(tr_outbox_t *l, tr_outbox_request_t *q);
/* Nothing is on its way any more, and what Redis has is not known. */
void tr_outbox_reset(tr_outbox_t *l);
/* Frees q if it has ended and Redis has all of it. */
void tr_outbox_settle(tr_outbox_t *l, tr_outbox_request_t *q);

#endif
