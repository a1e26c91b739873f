/*
 * Usage of tenants by the day: rows, what is to be written, and more tenants than
 * rows (redis_usage.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/redis/redis_usage.h"

static tr_usage_t *
fresh(void)
{
    tr_usage_t *u = calloc(1, sizeof(*u));

    assert_non_null(u);
    tr_usage_init(u);
    return u;
}

/* All that is due, and Redis confirms it. */
static uint32_t
written(tr_usage_t *u)
{
    static const uint64_t nothing[3];
    const tr_usage_row_t *row;
    uint32_t n = 0;

    while ((row = tr_usage_next(u)) != NULL) {
        if (row->known) {
            n++;
            tr_usage_written(u, tr_usage_at(u, row), row->turn, true);
        } else {
            tr_usage_found(u, tr_usage_at(u, row), row->turn, nothing);
        }
    }
    return n;
}

static void
sums(void **state)
{
    tr_usage_t *u = fresh();
    const tr_usage_row_t *row;

    (void) state;
    assert_int_equal(written(u), 0);
    assert_true(tr_usage_add(u, 7, 100, 10, 3));
    assert_true(tr_usage_add(u, 7, 100, 5, 4));
    row = tr_usage_next(u);
    assert_non_null(row);
    assert_true(row->known);
    assert_int_equal(row->requests, 2);
    assert_int_equal(row->in, 15);
    assert_int_equal(row->out, 7);
    assert_null(tr_usage_next(u));
    /* what comes meanwhile is written when that is confirmed */
    assert_true(tr_usage_add(u, 7, 100, 1, 1));
    assert_null(tr_usage_next(u));
    tr_usage_written(u, tr_usage_at(u, row), row->turn, true);
    assert_int_equal(written(u), 1);
    /* only what has changed, until Redis may have lost it */
    assert_true(tr_usage_add(u, 8, 100, 1, 1));
    assert_true(tr_usage_add(u, 7, 101, 1, 1));
    assert_int_equal(written(u), 2);
    assert_int_equal(written(u), 0);
    tr_usage_again(u);
    assert_int_equal(written(u), 3);
    free(u);
}

/* Only rows that Redis has confirmed make room. */
static void
full(void **state)
{
    tr_usage_t *u = fresh();
    const tr_usage_row_t *row;
    uint32_t i;

    (void) state;
    for (i = 0; i < TR_USAGE_ROWS; i++) {
        assert_true(tr_usage_add(u, i, 100, 1, 1));
    }
    assert_false(tr_usage_add(u, TR_USAGE_ROWS, 100, 1, 1));
    assert_true(tr_usage_add(u, 5, 100, 1, 1));
    assert_true(tr_usage_presses(u));
    row = tr_usage_next(u);
    assert_int_equal(row->tenant, 0);
    assert_false(tr_usage_add(u, TR_USAGE_ROWS, 100, 1, 1));
    tr_usage_written(u, tr_usage_at(u, row), row->turn, false);
    assert_false(tr_usage_presses(u)); /* in vain */
    assert_false(tr_usage_add(u, TR_USAGE_ROWS, 100, 1, 1));
    assert_int_equal(written(u), TR_USAGE_ROWS);
    assert_false(tr_usage_presses(u));

    /* the one that was written longest ago: 1, for 0 came last */
    assert_true(tr_usage_add(u, 1, 100, 1, 1));
    assert_int_equal(written(u), 1);
    assert_true(tr_usage_add(u, TR_USAGE_ROWS, 100, 1, 1));
    row = tr_usage_next(u);
    assert_int_equal(row->tenant, TR_USAGE_ROWS);
    assert_false(row->known);
    tr_usage_written(u, tr_usage_at(u, row), row->turn, false);
    assert_true(tr_usage_add(u, 2, 100, 1, 1));
    assert_true(tr_usage_add(u, 3, 101, 1, 1)); /* of a day that none forgot */
    row = tr_usage_next(u);
    assert_int_equal(row->tenant, TR_USAGE_ROWS);
    row = tr_usage_next(u);
    assert_int_equal(row->tenant, 2);
    assert_false(row->known);
    assert_int_equal(row->requests, 1);
    row = tr_usage_next(u);
    assert_int_equal(row->day, 101);
    assert_true(row->known);
    tr_usage_again(u);
    assert_false(tr_usage_add(u, TR_USAGE_ROWS + 1, 100, 1, 1));
    free(u);
}

/* ---- many tenants, and a Redis that goes ------------------------------- */

#define TENANTS 5000u
#define DAYS 2u
#define REQUESTS 40000u
#define UNDER_WAY (4 * TR_USAGE_ROWS)

typedef struct {
    uint32_t at, turn;
    uint64_t *stored; /* of Redis */
    uint64_t values[3];
    bool question;
} command_t;

typedef struct {
    tr_usage_t *u;
    uint64_t true_sums[DAYS][TENANTS][3];
    uint64_t stored[DAYS][TENANTS][3]; /* in Redis */
    command_t sent[UNDER_WAY];         /* a ring */
    uint32_t head, tail;
    uint32_t forgotten;
    unsigned seed;
} world_t;

static uint32_t
chance(world_t *w, uint32_t below)
{
    return (uint32_t) rand_r(&w->seed) % below;
}

static void
send_all(world_t *w)
{
    const tr_usage_row_t *row;
    command_t *c;

    while ((row = tr_usage_next(w->u)) != NULL) {
        assert_true(w->tail - w->head < UNDER_WAY);
        c = &w->sent[w->tail++ % UNDER_WAY];
        *c = (command_t){ .at = tr_usage_at(w->u, row),
                          .turn = row->turn,
                          .stored = w->stored[row->day - 100][row->tenant],
                          .values = { row->requests, row->in, row->out },
                          .question = !row->known };
        w->forgotten += c->question;
    }
}

/* The next command comes to Redis, and perhaps its reply to us. */
static void
arrive(world_t *w, bool refused, bool reply)
{
    const command_t *c = &w->sent[w->head++ % UNDER_WAY];

    if (!c->question && !refused) {
        memcpy(c->stored, c->values, sizeof(c->values));
    }
    if (!reply) {
        return;
    }
    if (c->question && !refused) {
        tr_usage_found(w->u, c->at, c->turn, c->stored);
    } else {
        tr_usage_written(w->u, c->at, c->turn, !refused);
    }
}

static void
settle(world_t *w)
{
    do {
        send_all(w);
        while (w->head != w->tail) {
            arrive(w, false, true);
        }
    } while (w->u->n_due != 0);
}

static void
trouble(world_t *w)
{
    uint32_t n = w->tail - w->head, some = n == 0 ? 0 : chance(w, n);

    switch (chance(w, 3)) {
    case 0: /* the connection is lost: some came there, of the rest none will */
        while (some-- != 0) {
            arrive(w, false, false);
        }
        w->head = w->tail;
        tr_usage_again(w->u);
        break;
    case 1: /* an outage on one connection: replies still come */
        tr_usage_again(w->u);
        break;
    default:
        while (some-- != 0) {
            arrive(w, chance(w, 2) == 0, true);
        }
    }
}

static void
one_request(world_t *w, uint32_t i)
{
    /* a few come often; some end after midnight, or are told late */
    uint32_t tenant = chance(w, 4) == 0 ? chance(w, 20) : chance(w, TENANTS);
    uint32_t day = (i + chance(w, 2000)) * DAYS / (REQUESTS + 2000);
    uint64_t in = chance(w, 1000), out = chance(w, 1000);
    uint64_t *sum = w->true_sums[day][tenant];

    if (!tr_usage_add(w->u, tenant, 100 + day, in, out)) {
        settle(w);
        assert_true(tr_usage_add(w->u, tenant, 100 + day, in, out));
    }
    sum[0]++;
    sum[1] += in;
    sum[2] += out;
}

static void
many(void **state)
{
    world_t *w = calloc(1, sizeof(*w));
    uint32_t i;

    (void) state;
    assert_non_null(w);
    w->u = fresh();
    for (w->seed = 1; w->seed <= 3; w->seed++) {
        unsigned seed = w->seed;

        memset(w->true_sums, 0, sizeof(w->true_sums));
        memset(w->stored, 0, sizeof(w->stored));
        tr_usage_init(w->u);
        w->head = w->tail = w->forgotten = 0;
        for (i = 0; i < REQUESTS; i++) {
            one_request(w, i);
            if (tr_usage_presses(w->u) || chance(w, 300) == 0) {
                send_all(w);
            }
            if (chance(w, 4) != 0 && w->head != w->tail) {
                arrive(w, false, true);
                if (w->head != w->tail) {
                    arrive(w, false, true);
                }
            }
            if (chance(w, 2000) == 0) {
                trouble(w);
            }
        }
        settle(w);
        assert_true(w->forgotten > 1000);
        assert_memory_equal(w->stored, w->true_sums, sizeof(w->stored));
        w->seed = seed;
    }
    free(w->u);
    free(w);
}

static void
days(void **state)
{
    char text[16];

    (void) state;
    tr_usage_day(0, text);
    assert_string_equal(text, "1970-01-01");
    tr_usage_day(19782, text);
    assert_string_equal(text, "2024-02-29");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),
        cmocka_unit_test(full),
        cmocka_unit_test(many),
        cmocka_unit_test(days),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
