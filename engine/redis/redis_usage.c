/*
 * Usage by tenant and day (redis_usage.h): rows by a hash, each in one of the
 * lists.
 */
#include "redis_usage.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define PRESSES (TR_USAGE_ROWS / 8)

_Static_assert(TR_USAGE_LISTS + TR_USAGE_ROWS <= UINT16_MAX,
               "rows have numbers");

/* ---- lists -------------------------------------------------------------- */

static void
leave(tr_usage_t *u, tr_usage_row_t *row)
{
    u->rows[row->before].after = row->after;
    u->rows[row->after].before = row->before;
    u->n_due -= row->list == TR_USAGE_DUE;
}

/* At its end. */
static void
join(tr_usage_t *u, tr_usage_row_t *row, enum tr_usage_list list)
{
    tr_usage_row_t *head = &u->rows[list];
    uint16_t at = (uint16_t) tr_usage_at(u, row);

    row->list = (uint8_t) list;
    row->before = head->before;
    row->after = (uint16_t) list;
    u->rows[head->before].after = at;
    head->before = at;
    u->n_due += list == TR_USAGE_DUE;
}

static void
move(tr_usage_t *u, tr_usage_row_t *row, enum tr_usage_list list)
{
    leave(u, row);
    join(u, row, list);
}

static tr_usage_row_t *
first(tr_usage_t *u, enum tr_usage_list list)
{
    uint16_t at = u->rows[list].after;

    return at == (uint16_t) list ? NULL : &u->rows[at];
}

/* ---- rows --------------------------------------------------------------- */

static uint16_t *
bucket(tr_usage_t *u, uint64_t tenant, uint32_t day)
{
    return &u->buckets[((tenant + day) * 0x9e3779b97f4a7c15ull >> 32)
                       % TR_USAGE_ROWS];
}

static void
forget(tr_usage_t *u, tr_usage_row_t *row)
{
    uint16_t *at = bucket(u, row->tenant, row->day);

    while (&u->rows[*at] != row) {
        at = &u->rows[*at].chain;
    }
    *at = row->chain;
    leave(u, row);
    if (row->day >= u->forgot) {
        u->forgot = row->day + 1;
    }
}

/* In no list; NULL: Redis has not confirmed any. */
static tr_usage_row_t *
place(tr_usage_t *u)
{
    tr_usage_row_t *row;

    if (u->n < TR_USAGE_LISTS + TR_USAGE_ROWS) {
        return &u->rows[u->n++];
    }
    row = first(u, TR_USAGE_CLEAN);
    if (row != NULL) {
        forget(u, row);
    }
    return row;
}

/* That of a tenant's day, or a new one; NULL: there is none. */
static tr_usage_row_t *
find(tr_usage_t *u, uint64_t tenant, uint32_t day)
{
    uint16_t *chain = bucket(u, tenant, day), at;
    tr_usage_row_t *row;

    for (at = *chain; at != 0; at = u->rows[at].chain) {
        row = &u->rows[at];
        if (row->tenant == tenant && row->day == day) {
            return row;
        }
    }
    row = place(u);
    if (row != NULL) {
        *row = (tr_usage_row_t){ .tenant = tenant,
                                 .day = day,
                                 .chain = *chain,
                                 .known = day >= u->forgot };
        *chain = (uint16_t) tr_usage_at(u, row);
        join(u, row, TR_USAGE_DUE);
    }
    return row;
}

void
tr_usage_init(tr_usage_t *u)
{
    uint16_t i;

    memset(u, 0, sizeof(*u));
    for (i = 0; i < TR_USAGE_LISTS; i++) {
        u->rows[i].before = u->rows[i].after = i;
    }
    u->n = TR_USAGE_LISTS;
}

bool
tr_usage_add(tr_usage_t *u, uint64_t tenant, uint32_t day, uint64_t in,
             uint64_t out)
{
    tr_usage_row_t *row = find(u, tenant, day);

    if (row == NULL) {
        return false;
    }
    row->requests++;
    row->in += in;
    row->out += out;
    if (row->list == TR_USAGE_SENT) {
        row->more = true;
    } else if (row->list == TR_USAGE_CLEAN) {
        move(u, row, TR_USAGE_DUE);
    }
    return true;
}

/* ---- Redis -------------------------------------------------------------- */

bool
tr_usage_presses(const tr_usage_t *u)
{
    return u->n_due >= PRESSES && !u->refused;
}

const tr_usage_row_t *
tr_usage_next(tr_usage_t *u)
{
    tr_usage_row_t *row = first(u, TR_USAGE_DUE);

    if (row != NULL) {
        row->turn = ++u->turn;
        row->more = false;
        move(u, row, TR_USAGE_SENT);
    }
    return row;
}

uint32_t
tr_usage_at(const tr_usage_t *u, const tr_usage_row_t *row)
{
    return (uint32_t) (row - u->rows);
}

static bool
waits(const tr_usage_row_t *row, uint32_t turn)
{
    return row->list == TR_USAGE_SENT && row->turn == turn;
}

void
tr_usage_written(tr_usage_t *u, uint32_t at, uint32_t turn, bool ok)
{
    tr_usage_row_t *row = &u->rows[at];

    if (waits(row, turn)) {
        u->refused = !ok;
        move(u, row, ok && !row->more ? TR_USAGE_CLEAN : TR_USAGE_DUE);
    }
}

void
tr_usage_found(tr_usage_t *u, uint32_t at, uint32_t turn, const uint64_t had[3])
{
    tr_usage_row_t *row = &u->rows[at];

    if (waits(row, turn)) {
        row->requests += had[0];
        row->in += had[1];
        row->out += had[2];
        row->known = true;
        u->refused = false;
        move(u, row, TR_USAGE_DUE);
    }
}

void
tr_usage_again(tr_usage_t *u)
{
    tr_usage_row_t *row;

    while ((row = first(u, TR_USAGE_SENT)) != NULL
           || (row = first(u, TR_USAGE_CLEAN)) != NULL) {
        move(u, row, TR_USAGE_DUE);
    }
}

void
tr_usage_day(uint32_t day, char out[16])
{
    time_t at = (time_t) day * 86400;
    struct tm tm;

    gmtime_r(&at, &tm);
    strftime(out, 16, "%Y-%m-%d", &tm);
}
