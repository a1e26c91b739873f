/*
 * The publisher's outbox: numbers and entries, one on its way at a time, what a
 * lost connection or a Redis without memory leaves behind, the bound on memory.
 * Last, a model of Redis that refuses, forgets, loses answers and applies old
 * commands late: whatever it does, a stream has no hole, and ends as it should.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/redis/redis_outbox.h"
#include "tests/unit/fixtures/random.h"

#define MIB (1u << 20)

/* ---- telling ------------------------------------------------------------ */

static void
tell(tr_outbox_t *l, uint64_t id, uint16_t type, const void *payload,
     uint32_t len)
{
    tr_record_t rec = { .length = len, .type = type, .id = id };

    tr_outbox_take(l, &rec, payload);
}

static void
tell_arrived(tr_outbox_t *l, uint64_t id, uint16_t flags)
{
    tr_event_arrived_t note = { .endpoint = TR_ENDPOINT_CHAT,
                                .flags = flags,
                                .arrival_us = 1000 };
    char digits[TR_COMPLETION_LEN + 1];

    snprintf(digits, sizeof(digits), "%032llx", (unsigned long long) id);
    memcpy(note.completion, digits, TR_COMPLETION_LEN);
    tell(l, id, TR_EVENT_ARRIVED, &note, sizeof(note));
}

static void
tell_delta(tr_outbox_t *l, uint64_t id, const char *text)
{
    uint8_t payload[sizeof(tr_wire_delta_t) + 65536];
    tr_wire_delta_t head = { .tokens = 1, .text_len = (uint32_t) strlen(text) };

    memcpy(payload, &head, sizeof(head));
    memcpy(payload + sizeof(head), text, head.text_len);
    tell(l, id, TR_RECORD_DELTA, payload,
         (uint32_t) sizeof(head) + head.text_len);
}

static void
tell_finish(tr_outbox_t *l, uint64_t id)
{
    tr_wire_finish_t finish = { .reason = TR_FINISH_STOP,
                                .flags = TR_FINISH_LAST };

    tell(l, id, TR_RECORD_FINISH, &finish, sizeof(finish));
}

static void
tell_end(tr_outbox_t *l, uint64_t id, bool lost)
{
    tr_event_end_t end = {
        .state = TR_REQUEST_DONE, .lost = lost, .choices = 1, .ended_us = 2000
    };

    tell(l, id, TR_EVENT_END, &end, sizeof(end));
    tr_outbox_apply_ends(l);
    tr_outbox_apply_ends(l);
}

/* What is due, as the publisher would write it. */
static void
send_fields(tr_outbox_request_t *q)
{
    q->writing = q->dirty;
    q->dirty = 0;
}

static void
send_entry(tr_outbox_request_t *q)
{
    q->sending = q->began = q->unacked->sent = true;
}

/* ---- entries ------------------------------------------------------------ */

static void
test_records_gather(void **state)
{
    tr_outbox_request_t *q;
    tr_outbox_t l;

    (void) state;
    tr_outbox_init(&l, MIB);
    tell_arrived(&l, 7, TR_SUBMIT_RESUMABLE);
    q = tr_outbox_find(&l, 7);
    assert_non_null(q);
    tell_delta(&l, 7, "one");
    tell_delta(&l, 7, "two");
    assert_ptr_equal(q->unacked, q->tail);
    assert_int_equal(q->unacked->first, 1);
    assert_int_equal(q->unacked->last, 2);
    assert_int_equal(q->unacked->len, 2 * (8 + sizeof(tr_wire_delta_t) + 3));

    /* what is on its way does not grow; one is on its way at a time */
    send_entry(q);
    tell_delta(&l, 7, "three");
    assert_int_equal(q->unacked->last, 2);
    assert_int_equal(q->tail->first, 3);
    tell_delta(&l, 7, "four");
    assert_int_equal(q->tail->last, 4);
    send_fields(q);
    assert_false(tr_outbox_can_write(q));
    tr_outbox_entry_done(&l, q, true);
    assert_true(tr_outbox_can_write(q));
    assert_int_equal(q->unacked->first, 3);
    assert_int_equal(q->kept->first, 1); /* for comfort */
    assert_true(l.spare > 0);

    tr_outbox_free(&l);
    assert_int_equal(l.bytes, 0);
    assert_int_equal(l.n, 0);
}

static void
test_nothing_is_kept_of_others(void **state)
{
    tr_outbox_request_t *q;
    tr_outbox_t l;

    (void) state;
    tr_outbox_init(&l, MIB);
    tell_arrived(&l, 1, 0);
    tell_delta(&l, 1, "text");
    tell_delta(&l, 2, "of nobody");
    q = tr_outbox_find(&l, 1);
    assert_null(q->kept);
    send_fields(q);
    tr_outbox_fields_done(&l, q, true);
    tell_end(&l, 1, false);
    assert_int_equal(q->state, TR_REQUEST_DONE);
    assert_null(tr_outbox_find_completion(&l, q->completion));
    send_fields(q);
    tr_outbox_fields_done(&l, q, true);
    assert_int_equal(l.n, 0);
    assert_int_equal(l.bytes, 0);
    tr_outbox_free(&l);
}

/* The last record of an entry that was read as {length, type, 0, payload}. */
static uint16_t
last_type(const tr_outbox_entry_t *e, const uint8_t **payload, uint32_t *len)
{
    size_t at = 0;
    uint16_t type = 0;

    while (at < e->len) {
        memcpy(len, e->bytes + at, 4);
        memcpy(&type, e->bytes + at + 4, 2);
        *payload = e->bytes + at + 8;
        at += 8 + *len;
    }
    assert_int_equal(at, e->len);
    return type;
}

/* No record said that it ended: an ERROR does. */
static void
test_an_end_without_a_last_record(void **state)
{
    tr_outbox_request_t *q;
    const uint8_t *payload = NULL;
    tr_wire_error_t head = { 0 };
    tr_wire_bytes_t param, message;
    tr_outbox_t l;
    uint32_t len = 0;

    (void) state;
    tr_outbox_init(&l, MIB);
    tell_arrived(&l, 3, TR_SUBMIT_RESUMABLE);
    tell_delta(&l, 3, "x");
    tell_end(&l, 3, false);
    q = tr_outbox_find(&l, 3);
    assert_int_equal(q->last, 2);
    assert_false(q->gap);
    assert_int_equal(last_type(q->tail, &payload, &len), TR_RECORD_ERROR);
    assert_int_equal(tr_wire_error_parse(payload, len, &head, &param, &message),
                     TR_OK);
    assert_int_equal(head.status, TR_ERR_CANCELLED);
    tr_outbox_free(&l);
}

/* The same id twice at once: the second one is nobody. */
static void
test_an_id_twice(void **state)
{
    tr_event_arrived_t note = { .flags = TR_SUBMIT_RESUMABLE };
    tr_outbox_t l;

    (void) state;
    memset(note.completion, 'a', TR_COMPLETION_LEN);
    tr_outbox_init(&l, MIB);
    tell(&l, 1, TR_EVENT_ARRIVED, &note, sizeof(note));
    tell(&l, 2, TR_EVENT_ARRIVED, &note, sizeof(note));
    assert_null(tr_outbox_find(&l, 2));
    assert_int_equal(l.lost, 1);
    tell_delta(&l, 2, "x");
    tell_end(&l, 2, false);
    assert_int_equal(tr_outbox_find(&l, 1)->last, 0);
    tr_outbox_free(&l);
    assert_int_equal(l.bytes, 0);
}

/* ---- loss --------------------------------------------------------------- */

static void
test_lost_records_end_the_stream(void **state)
{
    tr_outbox_request_t *q;
    const uint8_t *payload = NULL;
    tr_outbox_t l;
    uint32_t len = 0;

    (void) state;
    tr_outbox_init(&l, MIB);
    tell_arrived(&l, 3, TR_SUBMIT_RESUMABLE);
    tell_delta(&l, 3, "sent");
    q = tr_outbox_find(&l, 3);
    send_entry(q);
    tell_delta(&l, 3, "not sent");
    tell(&l, 3, TR_EVENT_LOST, NULL, 0);
    assert_true(q->gap);
    assert_int_equal(l.lost, 1);
    /* what may stand there stays, the ERROR follows it */
    assert_int_equal(q->last, 2);
    assert_int_equal(q->tail->first, 2);
    assert_int_equal(last_type(q->tail, &payload, &len), TR_RECORD_ERROR);
    tell_delta(&l, 3, "no more");
    tell_end(&l, 3, true);
    assert_int_equal(q->last, 2);
    assert_int_equal(l.lost, 1);
    tr_outbox_free(&l);
}

static void
test_memory_is_bounded(void **state)
{
    static char text[4096];
    tr_outbox_request_t *q;
    tr_outbox_t l;
    uint64_t id;
    unsigned i;

    (void) state;
    memset(text, 'x', sizeof(text) - 1);
    tr_outbox_init(&l, MIB);
    for (id = 1; id <= 20; id++) {
        tell_arrived(&l, id, TR_SUBMIT_RESUMABLE);
    }
    for (i = 0; i < 10000; i++) {
        tell_delta(&l, 1 + i % 20, text);
        assert_in_range(l.bytes, 0, MIB + 20 * 1024);
    }
    assert_int_equal(l.lost, 20);
    for (id = 1; id <= 20; id++) {
        q = tr_outbox_find(&l, id);
        assert_true(q->gap);
        assert_true(q->closed);
        tell_end(&l, id, false);
    }
    /* requests that ended make way for new ones, the oldest first */
    for (id = 21; id <= 5000; id++) {
        tell_arrived(&l, id, 0);
        tell_end(&l, id, false);
        assert_in_range(l.bytes, 0, MIB + 20 * 1024);
    }
    assert_null(tr_outbox_find(&l, 1));
    assert_non_null(tr_outbox_find(&l, 5000));
    assert_true(l.lost >= 5000 - MIB / sizeof(tr_outbox_request_t) - 20);
    tr_outbox_free(&l);
    assert_int_equal(l.bytes, 0);
}

/* Acknowledged output goes first. */
static void
test_spare_output_makes_way(void **state)
{
    static char text[4096];
    tr_outbox_request_t *a, *b;
    tr_outbox_t l;
    unsigned i;

    (void) state;
    memset(text, 'x', sizeof(text) - 1);
    tr_outbox_init(&l, MIB);
    tell_arrived(&l, 1, TR_SUBMIT_RESUMABLE);
    tell_arrived(&l, 2, TR_SUBMIT_RESUMABLE);
    a = tr_outbox_find(&l, 1);
    b = tr_outbox_find(&l, 2);
    for (i = 0; i < 100; i++) {
        tell_delta(&l, 1, text);
        send_entry(a);
        tr_outbox_entry_done(&l, a, true);
    }
    assert_int_equal(a->kept->first, 1);
    for (i = 0; i < 100; i++) {
        tell_delta(&l, 2, text);
    }
    assert_int_equal(l.lost, 0);
    assert_int_equal(b->last, 100);
    assert_null(a->kept);
    assert_int_equal(a->last, 100);
    tr_outbox_free(&l);
}

/* ---- moves -------------------------------------------------------------- */

static void
tell_moved(tr_outbox_t *l, uint64_t id, uint64_t number, unsigned records)
{
    tr_event_arrived_t note = { .endpoint = TR_ENDPOINT_CHAT,
                                .flags = TR_SUBMIT_RESUMABLE | TR_SUBMIT_IDS,
                                .moved = 1 };
    static const uint8_t record[8] = { 0, 0, 0, 0, TR_RECORD_DELTA, 0, 0, 0 };
    tr_event_moved_t moved = { .told_len = records * sizeof(record),
                               .number = number,
                               .epoch = 1 };
    unsigned i;

    memset(note.completion, '0' + (int) id, TR_COMPLETION_LEN);
    tell(l, id, TR_EVENT_ARRIVED, &note, sizeof(note));
    /* until it has a place here, nobody writes of it */
    assert_null(tr_outbox_next(l));
    assert_false(tr_outbox_can_write(tr_outbox_find(l, id)));
    moved.told = malloc(moved.told_len);
    assert_non_null(moved.told);
    for (i = 0; i < records; i++) {
        memcpy(moved.told + i * sizeof(record), record, sizeof(record));
    }
    tell(l, id, TR_EVENT_MOVED, &moved, sizeof(moved));
}

static void
test_it_goes_on_where_redis_is(void **state)
{
    uint32_t has;

    (void) state;
    for (has = 5; has <= 11; has++) {
        tr_outbox_request_t *q;
        tr_outbox_t l;

        /* records 7 to 10 came with it, and Redis has them up to `has` */
        tr_outbox_init(&l, MIB);
        tell_moved(&l, 1, 10, 4);
        q = tr_outbox_find(&l, 1);
        assert_int_equal(q->epoch, 1);
        assert_ptr_equal(tr_outbox_next(&l), q);
        assert_true(q->unsure);
        tell(&l, 1, TR_RECORD_ACCEPTED, "", 0); /* Redis has the first one */
        tell_delta(&l, 1, "on");
        assert_int_equal(q->tail->last, 11);
        tr_outbox_found(&l, q, has);
        assert_int_equal(q->unacked->first, has + 1);
        assert_int_equal(q->gap, has < 6 || has > 10);
        tr_outbox_free(&l);
        assert_int_equal(l.bytes, 0);
    }
}

/* What it used is counted where it ends. */
static void
test_usage_is_counted_where_it_ends(void **state)
{
    tr_event_end_t end = { .state = TR_REQUEST_FAILED,
                           .status = TR_ERR_DRAINING,
                           .completion_tokens = 7,
                           .ended_us = 2000 };
    const tr_usage_row_t *row = NULL;
    tr_outbox_t l;
    uint64_t id;

    (void) state;
    tr_outbox_init(&l, MIB);
    for (id = 1; id <= 2; id++) {
        tell_arrived(&l, id, TR_SUBMIT_IDS);
        tr_outbox_find(&l, id)->tenant = 99;
        end.moves = id == 1;
        tell(&l, id, TR_EVENT_END, &end, sizeof(end));
        tr_outbox_apply_ends(&l);
        tr_outbox_apply_ends(&l);
        row = tr_usage_next(&l.usage);
        assert_int_equal(row != NULL, id == 2);
    }
    assert_int_equal(row->requests, 1);
    assert_int_equal(row->out, 7);
    tr_outbox_free(&l);
}

static void
test_another_engine_has_it(void **state)
{
    tr_event_end_t end = { .state = TR_REQUEST_FAILED, .elsewhere = 1 };
    tr_outbox_request_t *q;
    tr_outbox_t l;

    (void) state;
    tr_outbox_init(&l, MIB);
    /* Redis says so: nothing more is written, and nothing is lost */
    tell_arrived(&l, 1, TR_SUBMIT_RESUMABLE | TR_SUBMIT_IDS);
    q = tr_outbox_find(&l, 1);
    tell_delta(&l, 1, "a");
    send_entry(q);
    send_fields(q);
    tr_outbox_fenced(&l, q);
    tell_delta(&l, 1, "b");
    tr_outbox_reset(&l);
    assert_false(tr_outbox_can_write(q));
    assert_null(tr_outbox_next(&l));
    tell_end(&l, 1, false);
    assert_int_equal(l.n, 0);

    /* it was given up for that: no end is written */
    tell_arrived(&l, 2, TR_SUBMIT_RESUMABLE | TR_SUBMIT_IDS);
    q = tr_outbox_find(&l, 2);
    tell_delta(&l, 2, "a");
    tell(&l, 2, TR_EVENT_END, &end, sizeof(end));
    tr_outbox_apply_ends(&l);
    tr_outbox_apply_ends(&l);
    assert_true(q->left);
    assert_null(q->unacked);
    assert_false(q->gap);
    assert_int_equal(q->dirty & TR_OUTBOX_FINAL, 0);
    assert_int_equal(q->state, TR_REQUEST_QUEUED);
    send_fields(q);
    tr_outbox_fields_done(&l, q, true);
    assert_int_equal(l.n, 0);
    assert_int_equal(l.lost, 0);
    tr_outbox_free(&l);
}

static void
test_one_that_found_no_place(void **state)
{
    tr_event_arrived_t note = { .endpoint = TR_ENDPOINT_CHAT,
                                .flags = TR_SUBMIT_RESUMABLE | TR_SUBMIT_IDS,
                                .moved = 1 };
    tr_outbox_t l;

    (void) state;
    tr_outbox_init(&l, MIB);
    memset(note.completion, 'a', TR_COMPLETION_LEN);
    tell(&l, 3, TR_EVENT_ARRIVED, &note, sizeof(note));
    tell_delta(&l, 3, "no");
    tell_end(&l, 3, false);
    assert_null(tr_outbox_next(&l));
    assert_int_equal(l.n, 0);
    assert_int_equal(l.bytes, 0);
    tr_outbox_free(&l);
}

/* ---- a Redis that comes back -------------------------------------------- */

static void
test_reset_begins_anew(void **state)
{
    tr_outbox_request_t *q;
    tr_outbox_t l;

    (void) state;
    tr_outbox_init(&l, MIB);
    tell_arrived(&l, 1, TR_SUBMIT_RESUMABLE);
    q = tr_outbox_find(&l, 1);
    tell_delta(&l, 1, "a");
    send_entry(q);
    send_fields(q);
    tr_outbox_entry_done(&l, q, true);
    tr_outbox_fields_done(&l, q, true);
    tell_delta(&l, 1, "b");
    send_entry(q);
    tr_outbox_reset(&l);
    assert_true(q->unsure);
    assert_int_equal(q->dirty,
                     TR_OUTBOX_IDENTITY | TR_OUTBOX_STATE | TR_OUTBOX_ACCEPTED);
    tell_delta(&l, 1, "c"); /* not into what was sent */
    assert_int_equal(q->tail->first, 3);

    tr_outbox_found(&l, q, 2); /* the answer was lost, not the entry */
    assert_int_equal(q->unacked->first, 3);
    tr_outbox_found(&l, q, 1);
    assert_int_equal(q->unacked->first, 2);
    tr_outbox_found(&l, q, 0); /* it came back empty, and gets all again */
    assert_int_equal(q->unacked->first, 1);
    assert_false(q->gap);

    tr_outbox_found(&l, q, 9); /* that is not ours */
    assert_true(q->gap);
    assert_int_equal(q->unacked->first, 10);
    tr_outbox_free(&l);
    assert_int_equal(l.bytes, 0);
}

/* ---- a model ------------------------------------------------------------ */

#define MODEL_RECORDS 4096

/* A stream of it: the payload's number by the record's, 0: ERROR. */
typedef struct {
    uint32_t records[MODEL_RECORDS], n;
    bool border[MODEL_RECORDS + 1]; /* an entry ends there */
    bool there, ended, error;
} model_stream_t;

/* A command that the connection took with it: applied later, or never. */
typedef struct {
    bool there;
    uint64_t id;
    uint32_t first, last;
    uint32_t numbers[MODEL_RECORDS];
    bool ends, error;
} model_command_t;

typedef struct {
    tr_outbox_t l;
    model_stream_t streams[8];
    model_command_t late[8];
    uint32_t told[8]; /* deltas */
    bool finished[8];
} model_t;

static void
read_entry(const tr_outbox_entry_t *e, model_command_t *c)
{
    uint32_t len, n = 0, number;
    char digits[7] = "";
    uint16_t type;
    size_t at;

    c->first = e->first;
    c->last = e->last;
    c->ends = c->error = false;
    for (at = 0; at < e->len; at += 8 + len) {
        memcpy(&len, e->bytes + at, 4);
        memcpy(&type, e->bytes + at + 4, 2);
        assert_false(c->ends);
        if (type == TR_RECORD_DELTA) {
            memcpy(digits, e->bytes + at + 8 + sizeof(tr_wire_delta_t), 6);
            number = (uint32_t) atoi(digits);
        } else {
            number = 0;
            c->ends = true;
            c->error = type == TR_RECORD_ERROR;
        }
        c->numbers[n++] = number;
    }
    assert_int_equal(n, e->last - e->first + 1);
}

/* XADD: refused when it is not after the last one (or there is none and it is
 * not the first).  True: the id is there now. */
static int
apply(model_t *m, const model_command_t *c)
{
    model_stream_t *s = &m->streams[c->id];
    uint32_t i;

    if (!s->there && c->first != 1) {
        return 0; /* nil */
    }
    if (s->there && c->last <= s->n) {
        return 1; /* equal or smaller */
    }
    assert_false(s->ended);
    assert_int_equal(c->first, s->n + 1); /* a hole */
    s->there = true;
    for (i = 0; i < c->last - c->first + 1; i++) {
        s->records[s->n++] = c->numbers[i];
        if (c->numbers[i] != 0) {
            assert_int_equal(c->numbers[i], s->n); /* in order, none missing */
        }
    }
    s->border[s->n] = true;
    s->ended = c->ends;
    s->error = c->error;
    return 1;
}

static void
write_one(model_t *m, tr_outbox_request_t *q)
{
    static model_command_t c;
    uint32_t what = random_below(20);
    uint64_t id = q->id;
    int rc;

    if (q->dirty != 0 && q->writing == 0) {
        send_fields(q);
        tr_outbox_fields_done(&m->l, q, what != 0);
    }
    q = tr_outbox_find(&m->l, id);
    if (q != NULL && q->unsure) {
        const model_stream_t *s = &m->streams[id];

        tr_outbox_found(&m->l, q, s->there ? s->n : 0);
        q = tr_outbox_find(&m->l, id);
    }
    if (q == NULL || q->unacked == NULL || q->sending) {
        return;
    }
    c.id = id;
    read_entry(q->unacked, &c);
    send_entry(q);
    if (what == 1) { /* refused */
        tr_outbox_entry_done(&m->l, q, false);
        return;
    }
    if (what == 2) { /* the connection goes; it may have been applied */
        if (random_below(2) == 0) {
            apply(m, &c);
        } else {
            m->late[c.id] = c;
            m->late[c.id].there = random_below(2) == 0;
        }
        tr_outbox_reset(&m->l);
        return;
    }
    rc = apply(m, &c);
    if (rc == 0) {
        q->sending = false;
        tr_outbox_found(&m->l, q, 0);
    } else {
        tr_outbox_entry_done(&m->l, q, true);
    }
}

/* What a Redis of the day before has: less of everything. */
static void
forget(model_t *m)
{
    unsigned i;

    for (i = 0; i < 8; i++) {
        model_stream_t *s = &m->streams[i];

        m->late[i].there = false; /* nobody is there to apply them */
        if (s->there && random_below(4) == 0) {
            s->n = random_below(s->n + 1);
            while (!s->border[s->n] && s->n != 0) {
                s->n--;
            }
            s->there = s->n != 0;
            memset(s->border + s->n + 1, 0, MODEL_RECORDS - s->n);
            s->ended = s->error = false;
        }
    }
    tr_outbox_reset(&m->l);
}

static void
tell_something(model_t *m, uint64_t id)
{
    char text[8];

    if (m->finished[id]) {
        return;
    }
    if (random_below(200) == 0) {
        tell_finish(&m->l, id);
        tell_end(&m->l, id, false);
        m->finished[id] = true;
    } else if (m->told[id] < 1000) {
        snprintf(text, sizeof(text), "%06u", ++m->told[id]);
        tell_delta(&m->l, id, text);
    }
}

/* Returns how many streams are complete. */
static unsigned
model_round(size_t limit)
{
    static model_t m;
    tr_outbox_request_t *q;
    unsigned i, ended = 0;
    uint64_t id;

    memset(&m, 0, sizeof(m));
    tr_outbox_init(&m.l, limit);
    for (id = 0; id < 8; id++) {
        tell_arrived(&m.l, id, TR_SUBMIT_RESUMABLE);
    }
    for (i = 0; i < 3000; i++) {
        id = random_below(8);
        tell_something(&m, id);
        if (m.late[id].there && random_below(4) == 0) {
            m.late[id].there = false;
            apply(&m, &m.late[id]);
        }
        if (random_below(3) == 0 && (q = tr_outbox_next(&m.l)) != NULL) {
            write_one(&m, q);
        }
        if (random_below(1000) == 0) {
            forget(&m);
        }
    }
    for (id = 0; id < 8; id++) {
        if (!m.finished[id]) {
            tell_finish(&m.l, id);
            tell_end(&m.l, id, false);
        }
    }
    for (i = 0; i < 100000 && (q = tr_outbox_next(&m.l)) != NULL; i++) {
        write_one(&m, q);
    }
    assert_int_equal(m.l.n, 0); /* all is written, nothing is held */
    assert_int_equal(m.l.bytes, 0);
    assert_int_equal(m.l.spare, 0);
    for (id = 0; id < 8; id++) {
        model_stream_t *s = &m.streams[id];

        /* an end, unless it forgot what was complete */
        if (s->there && s->ended) {
            assert_true(s->error || s->n == m.told[id] + 1);
        }
        ended += s->there && s->ended && !s->error;
    }
    tr_outbox_free(&m.l);
    return ended;
}

static void
test_whatever_redis_does(void **state)
{
    const char *seed = getenv("TR_SEED");
    unsigned i, complete = 0;

    (void) state;
    random_state = seed != NULL ? strtoull(seed, NULL, 10)
                                : (uint64_t) time(NULL);
    print_message("TR_SEED=%llu\n", (unsigned long long) random_state);
    for (i = 0; i < 60; i++) {
        complete += model_round(i % 2 != 0 ? MIB : 24 * 1024);
    }
    print_message("%u of %u streams are complete\n", complete, 60 * 8);
    assert_in_range(complete, 60, 60 * 8 - 60);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records_gather),
        cmocka_unit_test(test_nothing_is_kept_of_others),
        cmocka_unit_test(test_an_end_without_a_last_record),
        cmocka_unit_test(test_an_id_twice),
        cmocka_unit_test(test_lost_records_end_the_stream),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_spare_output_makes_way),
        cmocka_unit_test(test_it_goes_on_where_redis_is),
        cmocka_unit_test(test_usage_is_counted_where_it_ends),
        cmocka_unit_test(test_another_engine_has_it),
        cmocka_unit_test(test_one_that_found_no_place),
        cmocka_unit_test(test_reset_begins_anew),
        cmocka_unit_test(test_whatever_redis_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
