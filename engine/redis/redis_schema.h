/*
 * The commands that the publisher sends: the keys and fields of docs/redis.md
 * are made here, but for the list of engines (redis_publisher_write.c).  A new
 * field of a request comes through request_events.h and redis_outbox.h, and is
 * read by ngx_module/redis/ngx_http_tokenring_state.c.
 *
 * This only builds commands; it knows no connection and no clock.
 */
#ifndef TR_REDIS_SCHEMA_H
#define TR_REDIS_SCHEMA_H

#include <tokenring/status.h>

#include "engine/config/config.h"
#include "redis_link.h"
#include "redis_outbox.h"

typedef struct {
    const tr_config_t *config;      /* borrowed */
    const tr_status_page_t *status; /* borrowed */
    char run[17];                   /* the engine's generation, in hex */
    char host[128];
    long pid;
    int64_t started_ms; /* Unix */
} tr_redis_schema_t;

void tr_redis_schema_init(tr_redis_schema_t *w, const tr_config_t *config,
                          const tr_status_page_t *status, int64_t now_ms);

/* PREFIX + "req:{ID}" and the like, appended as an argument. */
void tr_redis_schema_key(const tr_redis_schema_t *w, tr_redis_command_t *c,
                         const char *kind, const char *name);

/* ---- of a request ------------------------------------------------------- */

/* HSET of these groups of fields (TR_OUTBOX_*). */
void tr_redis_schema_fields(const tr_redis_schema_t *w, tr_redis_command_t *c,
                            const tr_outbox_request_t *q, unsigned groups);
/* The field `holder` of a response that is kept. */
void tr_redis_schema_holder(const uint8_t holder[TR_HOLDER],
                            char out[2 * TR_HOLDER + 1]);
void tr_redis_schema_expire(const tr_redis_schema_t *w, tr_redis_command_t *c,
                            const char *kind, const char *name,
                            uint64_t ttl_us);
/* Says that q is at this engine now: writes of those that had it before are
 * refused (`FENCED`), and what they said of its end is forgotten. */
void tr_redis_schema_claim(const tr_redis_schema_t *w, tr_redis_command_t *c,
                           const tr_outbox_request_t *q);
/* XADD of q->unacked; with PUBLISH, where another engine may take q over. */
void tr_redis_schema_entry(const tr_redis_schema_t *w, tr_redis_command_t *c,
                           const tr_outbox_request_t *q);
/* PUBLISH of the same, for the others; scratch (of at least the entry's length + 32 bytes) is
 * the caller's. */
void tr_redis_schema_live(const tr_redis_schema_t *w, tr_redis_command_t *c,
                          const tr_outbox_request_t *q, char *scratch);
/* ZADD to the engine's latest requests. */
void tr_redis_schema_latest(const tr_redis_schema_t *w, tr_redis_command_t *c,
                            const tr_outbox_request_t *q);

/* HSET of what a tenant used here on a day; the key goes by itself after
 * TR_USAGE_TTL_US. */
#define TR_USAGE_TTL_US (40ull * 86400 * 1000000)
void tr_redis_schema_usage(const tr_redis_schema_t *w, tr_redis_command_t *c,
                           const tr_usage_row_t *row);
/* HMGET of the same: requests, in, out. */
void tr_redis_schema_used(const tr_redis_schema_t *w, tr_redis_command_t *c,
                          const tr_usage_row_t *row);
void tr_redis_schema_usage_expire(const tr_redis_schema_t *w,
                                  tr_redis_command_t *c,
                                  const tr_usage_row_t *row);

/* ---- of the engine ------------------------------------------------------ */

void tr_redis_schema_heartbeat(const tr_redis_schema_t *w,
                               tr_redis_command_t *c, int64_t now_ms);
/* The heartbeat's fields that do not change, for who comes when it has gone. */
void tr_redis_schema_card(const tr_redis_schema_t *w, tr_redis_command_t *c);
void tr_redis_schema_sample(const tr_redis_schema_t *w, tr_redis_command_t *c,
                            int64_t now_ms);

#endif
