/*
 * What tenants have used of this engine, by the day: tokens of requests that have
 * ended.  The publisher writes it to Redis (docs/redis.md), as sums since the
 * engine started, so that writing twice is harmless and readers add up engines.
 *
 * A request that goes on at another engine is counted there alone, with all its
 * tokens, as the gateway's log does.  Publisher thread only.
 */
#ifndef TR_REDIS_USAGE_H
#define TR_REDIS_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#define TR_USAGE_ROWS 1024u /* tenants of today and yesterday */

typedef struct {
    uint64_t tenant; /* as SUBMIT has it */
    uint32_t day;    /* of UTC, since 1970 */
    bool used;
    bool dirty; /* Redis has not all of it */
    uint64_t requests, in, out;
} tr_usage_row_t;

typedef struct {
    tr_usage_row_t rows[TR_USAGE_ROWS];
} tr_usage_t;

/* One more request that ended on this day; false: there is no room. */
bool tr_usage_add(tr_usage_t *u, uint64_t tenant, uint32_t day, uint64_t in,
                  uint64_t out);

/* Redis may have lost what it had. */
void tr_usage_again(tr_usage_t *u);

/* One that is to be written, from *at on, and is so no more; NULL: none is. */
const tr_usage_row_t *tr_usage_next(tr_usage_t *u, uint32_t *at);

/* "2026-11-27" */
void tr_usage_day(uint32_t day, char out[16]);

#endif
