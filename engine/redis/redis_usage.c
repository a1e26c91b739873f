/*
 * Usage by tenant and day (redis_usage.h): an open table.
 */
#include "redis_usage.h"

#include <stdio.h>
#include <time.h>

/* The row of a tenant's day, or a place for it: an empty one, or that of a day
 * which nothing is added to any more.  NULL: there is none. */
static tr_usage_row_t *
find(tr_usage_t *u, uint64_t tenant, uint32_t day)
{
    uint64_t at = (tenant + day) * 0x9e3779b97f4a7c15ull >> 32;
    tr_usage_row_t *place = NULL;
    uint32_t i;

    for (i = 0; i < TR_USAGE_ROWS; i++) {
        tr_usage_row_t *row = &u->rows[(at + i) % TR_USAGE_ROWS];

        if (!row->used) {
            return place != NULL ? place : row;
        }
        if (row->tenant == tenant && row->day == day) {
            return row;
        }
        if (place == NULL && !row->dirty && row->day + 1 < day) {
            place = row;
        }
    }
    return place;
}

bool
tr_usage_add(tr_usage_t *u, uint64_t tenant, uint32_t day, uint64_t in,
             uint64_t out)
{
    tr_usage_row_t *row = find(u, tenant, day);

    if (row == NULL) {
        return false;
    }
    if (!row->used || row->tenant != tenant || row->day != day) {
        *row = (tr_usage_row_t){ .tenant = tenant, .day = day, .used = true };
    }
    row->requests++;
    row->in += in;
    row->out += out;
    row->dirty = true;
    return true;
}

void
tr_usage_again(tr_usage_t *u)
{
    for (uint32_t i = 0; i < TR_USAGE_ROWS; i++) {
        u->rows[i].dirty = u->rows[i].used;
    }
}

const tr_usage_row_t *
tr_usage_next(tr_usage_t *u, uint32_t *at)
{
    while (*at < TR_USAGE_ROWS) {
        tr_usage_row_t *row = &u->rows[(*at)++];

        if (row->dirty) {
            row->dirty = false;
            return row;
        }
    }
    return NULL;
}

void
tr_usage_day(uint32_t day, char out[16])
{
    time_t at = (time_t) day * 86400;
    struct tm tm;

    gmtime_r(&at, &tm);
    strftime(out, 16, "%Y-%m-%d", &tm);
}
