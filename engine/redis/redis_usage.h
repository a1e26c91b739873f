/*
 * What tenants have used of this engine, by the day: tokens of requests that have
 * ended.  The publisher writes it to Redis (docs/redis.md), as sums since the
 * engine started, so that writing twice is harmless and readers add up engines.
 *
 * There are more tenants than rows.  A row that Redis has confirmed can be
 * forgotten, the one that was written longest ago first; who comes back is counted
 * from nothing, and when Redis has said what it had of it, the sum of both is
 * written.  No other writes these fields.  So the totals are exact, also where a
 * connection is lost: what was not confirmed is asked, or written, again.  Lost is
 * what Redis itself loses of a row that was forgotten, and, counted as such
 * (tr_outbox_t lost), what comes while all rows wait for Redis.
 *
 * A request that goes on at another engine is counted there alone, with all its
 * tokens, as the gateway's log does.  Publisher thread only.
 */
#ifndef TR_REDIS_USAGE_H
#define TR_REDIS_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#define TR_USAGE_ROWS 4096u /* tenants of a day */

/* Where a row is. */
enum tr_usage_list {
    TR_USAGE_DUE,   /* Redis has not all of it */
    TR_USAGE_SENT,  /* a command is under way */
    TR_USAGE_CLEAN, /* Redis has it */
    TR_USAGE_LISTS
};

typedef struct {
    uint64_t tenant; /* as SUBMIT has it */
    uint64_t requests, in, out;
    uint32_t day;           /* of UTC, since 1970 */
    uint32_t turn;          /* of its last command */
    uint16_t before, after; /* in its list */
    uint16_t chain;         /* in its bucket; 0: the last */
    uint8_t list;
    bool known; /* what Redis had before is in it */
    bool more;  /* something came while it was under way */
} tr_usage_row_t;

typedef struct {
    /* the first ones head the lists, the oldest comes first */
    tr_usage_row_t rows[TR_USAGE_LISTS + TR_USAGE_ROWS];
    uint16_t buckets[TR_USAGE_ROWS]; /* 0: empty */
    uint32_t n;                      /* of rows, with the heads */
    uint32_t n_due;
    uint32_t turn;
    uint32_t forgot; /* no row of this day or a later one was forgotten */
    bool refused;    /* the last reply was an error */
} tr_usage_t;

void tr_usage_init(tr_usage_t *u);

/* One more request that ended on this day; false: there is no room. */
bool tr_usage_add(tr_usage_t *u, uint64_t tenant, uint32_t day, uint64_t in,
                  uint64_t out);

/* So many rows wait to be written, and Redis takes them, that they should be
 * before they are once a second. */
bool tr_usage_presses(const tr_usage_t *u);

/* The next one that is due: its sums are to be written if they are known, else
 * asked for.  NULL: none is. */
const tr_usage_row_t *tr_usage_next(tr_usage_t *u);

/* For the tag of that command, with the row's turn. */
uint32_t tr_usage_at(const tr_usage_t *u, const tr_usage_row_t *row);

/* Its reply: it is written, or must be sent again.  An old turn's is ignored. */
void tr_usage_written(tr_usage_t *u, uint32_t at, uint32_t turn, bool ok);

/* Its reply: what Redis has. */
void tr_usage_found(tr_usage_t *u, uint32_t at, uint32_t turn,
                    const uint64_t had[3]);

/* Redis may have lost what it had, and no reply comes for what was sent. */
void tr_usage_again(tr_usage_t *u);

/* "2026-11-27" */
void tr_usage_day(uint32_t day, char out[16]);

#endif
