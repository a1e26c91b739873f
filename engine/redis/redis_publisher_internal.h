/*
 * What the files of the publisher share: redis_publisher.c is the thread,
 * redis_publisher_write.c sends commands, redis_publisher_replies.c takes
 * replies, redis_publisher_control.c takes messages from others through Redis,
 * redis_publisher_lookup.c reads responses that are kept.
 */
#ifndef TR_REDIS_PUBLISHER_INTERNAL_H
#define TR_REDIS_PUBLISHER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "redis_outbox.h"
#include "redis_schema.h"
#include "redis_publisher.h"

#define TR_REDIS_PUBLISHER_BEAT_US 1000000u
/* Pause after Redis was reached and said no: asking sooner changes nothing. */
#define TR_REDIS_PUBLISHER_REFUSED_US 2000000u

/* What a command was. */
enum {
    TR_TAG_BEAT,
    TR_TAG_FIELDS, /* id: the request; number: of fields */
    TR_TAG_ENTRY,  /* id: the same; number: its last record */
    TR_TAG_ASK,    /* the same */
    TR_TAG_CLAIM,  /* the same */
    TR_TAG_TURN,   /* id: of a lookup; number: of its turn */
    TR_TAG_USAGE,  /* written; id: of the row; number: its turn */
    TR_TAG_USED,   /* asked for; the same */
    TR_TAG_MINOR   /* nobody waits for it */
};

struct tr_redis_publisher {
    const tr_config_t *config;
    tr_status_page_t *status;
    tr_request_events_t events;
    tr_outbox_t outbox;
    tr_redis_schema_t schema;
    tr_redis_link_t data, control;
    tr_redis_command_t command; /* the one being put together */
    pthread_t thread;
    int wake_fd;
    _Atomic int stop;
    uint8_t *buf; /* one record */
    size_t buf_size;
    char *scratch; /* a PUBLISH */
    size_t scratch_size;

    uint64_t now_us;
    uint64_t flushed_us, beat_us; /* last time */
    bool open;                    /* Redis takes what is written */
    bool hurry;                   /* more to write than one flush took */
    bool latest;                  /* requests joined the latest ones */
    uint64_t outage_us;           /* 0, or since when it does not */
    uint64_t lost_before;
    tr_lookup_t *lookups; /* under way, the oldest first */
    uint64_t next_lookup;
    bool deaf; /* the control channel could not be heard, which was logged */
};

/* ---- redis_publisher.c
 * --------------------------------------------------------- */

void tr_redis_publisher_outage_begins(tr_redis_publisher_t *r,
                                      const char *reason);
void tr_redis_publisher_outage_ends(tr_redis_publisher_t *r);
/* Brings the counters of the status page up to date. */
void tr_redis_publisher_count(tr_redis_publisher_t *r);
/* Takes what was told until now. */
void tr_redis_publisher_take(tr_redis_publisher_t *r);

/* ---- redis_publisher_write.c
 * --------------------------------------------------- */

/* Sends r->command; q: the request that it is about, or NULL. */
void tr_redis_publisher_send(tr_redis_publisher_t *r, uint16_t kind,
                             const tr_outbox_request_t *q);
/* Everything that is due, as far as it fits. */
void tr_redis_publisher_flush(tr_redis_publisher_t *r);
/* What tenants have used since the last time, or what Redis has of it. */
void tr_redis_publisher_usage(tr_redis_publisher_t *r);
/* What is to be said once a second. */
void tr_redis_publisher_beat(tr_redis_publisher_t *r);

/* ---- redis_publisher_lookup.c
 * -------------------------------------------------- */

/* Takes lookups, goes on with those that are under way, ends them. */
void tr_redis_publisher_look_up(tr_redis_publisher_t *r);
/* When it is to be called though nothing came; UINT64_MAX: never. */
uint64_t tr_redis_publisher_look_up_at(const tr_redis_publisher_t *r);
void tr_redis_publisher_look_up_lost(tr_redis_publisher_t *r);
/* The answer to a TR_TAG_TURN. */
void tr_redis_publisher_found(tr_redis_publisher_t *r,
                              const tr_redis_tag_t *tag,
                              const redisReply *reply);

/* ---- the two connections: redis_publisher_replies.c,
 * redis_publisher_control.c -------- */

extern const tr_redis_events_t tr_redis_publisher_data_events;
extern const tr_redis_events_t tr_redis_publisher_control_events;

#endif
