/*
 * Response writers: records arrive as they were staged, has_room keeps its promise at
 * every offset of the ring, a full response writer asks to be woken, a dead one
 * drops what it is given and never touches its ring, and the last record may be
 * followed at once by tr_response_writer_free.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/unit/fixtures/random.h"
#include "tests/unit/fixtures/response_writer_fixture.h"

static uint8_t buf[TR_RING_MAX / 4];
static void
writer_refuses_sizes(void **state)
{
    static const uint32_t bad[] = { 0, TR_RESPONSE_WRITER_MIN / 2,
                                    TR_RESPONSE_WRITER_MIN + 8,
                                    TR_RING_MAX * 2 };
    tr_ring_shared_t shared;
    tr_ring_consumer_t peer;
    tr_response_writer_t o;
    unsigned i;

    (void) state;
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tr_response_writer_init(&o, &shared, &shared, bad[i],
                                                 -1, -1),
                         TR_ERR_INVALID);
    }
    writer_make(&o, &peer, TR_RESPONSE_WRITER_MIN, -1, -1);
    writer_unmake(&o, &peer);
}

/* Counts what was rung. */
static uint64_t
rings(int fd)
{
    uint64_t n = 0;

    return read(fd, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

static void
writer_records(void **state)
{
    int bell = eventfd(0, EFD_NONBLOCK);
    tr_ring_consumer_t peer;
    tr_response_writer_t o;
    tr_record_t rec;
    tr_wire_delta_t head = { .choice = 2,
                             .tokens = 3,
                             .text_len = 3,
                             .logprobs_len = 2,
                             .ids_len = 12,
                             .echoed = 9 },
                    delta;
    const int32_t ids[] = { 11, -1, 13 };
    tr_wire_finish_t finish = { .choice = 2,
                                .reason = TR_FINISH_LENGTH,
                                .flags = TR_FINISH_LAST,
                                .completion_tokens = 7 },
                     finish2;
    tr_wire_item_t item = { .choice = 2,
                            .kind = TR_ITEM_TOOL_CALL,
                            .id_len = 5,
                            .name_len = 4 },
                   item2;
    tr_wire_error_t error;
    tr_wire_bytes_t a, b, d;
    tr_error_t err = { .status = TR_ERR_TIMEOUT };

    (void) state;
    writer_make(&o, &peer, TR_RESPONSE_WRITER_MIN, bell, -1);
    strcpy(err.param, "p");
    strcpy(err.text, "too slow");
    assert_int_equal(tr_ring_sleep(&peer), TR_AGAIN);
    assert_int_equal(tr_response_writer_item(&o, 5, &item, "call1", "find"),
                     TR_OK);
    assert_int_equal(tr_response_writer_delta(&o, 5, &head, "abc", "xy", ids),
                     TR_OK);
    assert_int_equal(tr_response_writer_finish(&o, 5, &finish, ""), TR_OK);
    assert_int_equal(tr_response_writer_error(&o, 6, &err, 10, 4), TR_OK);
    /* nothing is seen before the step is published */
    assert_int_equal(tr_ring_get(&peer, &rec, buf, sizeof(buf)), TR_AGAIN);
    writer_show(&o);
    assert_int_equal(rings(bell), 1);
    writer_show(&o);
    assert_int_equal(rings(bell), 0);

    assert_int_equal(tr_ring_get(&peer, &rec, buf, sizeof(buf)), TR_OK);
    assert_int_equal(rec.type, TR_RECORD_ITEM);
    assert_int_equal(rec.flags, TR_FLAG_MORE);
    assert_int_equal(rec.id, 5);
    assert_int_equal(tr_wire_item_parse(buf, rec.length, &item2, &a, &b),
                     TR_OK);
    assert_memory_equal(&item, &item2, sizeof(item));
    assert_memory_equal(a.data, "call1", 5);
    assert_memory_equal(b.data, "find", 4);

    assert_int_equal(tr_ring_get(&peer, &rec, buf, sizeof(buf)), TR_OK);
    assert_int_equal(rec.type, TR_RECORD_DELTA);
    assert_int_equal(rec.id, 5);
    assert_int_equal(tr_wire_delta_parse(buf, rec.length, &delta, &a, &b, &d),
                     TR_OK);
    assert_memory_equal(&delta, &head, sizeof(head));
    assert_memory_equal(d.data, ids, sizeof(ids));
    assert_memory_equal(a.data, "abc", 3);
    assert_memory_equal(b.data, "xy", 2);

    assert_int_equal(tr_ring_get(&peer, &rec, buf, sizeof(buf)), TR_OK);
    assert_int_equal(rec.type, TR_RECORD_FINISH);
    assert_int_equal(tr_wire_finish_parse(buf, rec.length, &finish2, NULL),
                     TR_OK);
    assert_memory_equal(&finish, &finish2, sizeof(finish));

    assert_int_equal(tr_ring_get(&peer, &rec, buf, sizeof(buf)), TR_OK);
    assert_int_equal(rec.type, TR_RECORD_ERROR);
    assert_int_equal(rec.id, 6);
    assert_int_equal(tr_wire_error_parse(buf, rec.length, &error, &a, &b),
                     TR_OK);
    assert_int_equal(error.status, TR_ERR_TIMEOUT);
    assert_int_equal(error.prompt_tokens, 10);
    assert_int_equal(error.completion_tokens, 4);
    assert_memory_equal(a.data, "p", 1);
    assert_memory_equal(b.data, "too slow", 8);
    writer_unmake(&o, &peer);
    close(bell);
}

/* Consumes k records, or all. */
static int
drain(tr_ring_consumer_t *peer, uint32_t k)
{
    tr_record_t rec;

    while (k-- != 0 && tr_ring_get(peer, &rec, buf, sizeof(buf)) == TR_OK) {
    }
    return tr_ring_release(peer);
}

static void
writer_room_is_kept(void **state)
{
    static const char text[TR_RESPONSE_WRITER_TEXT_MAX];
    static const char logprobs[TR_RESPONSE_WRITER_LOGPROB_MAX];
    static const int32_t ids[TR_DELTA_TOKENS_MAX];
    tr_wire_delta_t head;
    tr_wire_finish_t finish = { .reason = TR_FINISH_STOP };
    int front = eventfd(0, EFD_NONBLOCK);
    tr_ring_consumer_t peer;
    tr_response_writer_t o;
    uint32_t step, i, full = 0;

    (void) state;
    writer_make(&o, &peer, TR_RESPONSE_WRITER_MIN * 2, -1, front);
    for (step = 0; step < 20000; step++) {
        uint32_t n = 1 + random_below(12);
        uint32_t with = random_below(3) == 0 ? random_below(6) % (n + 1) : 0;

        if (!tr_response_writer_has_room(&o, n, with)) {
            full++;
            assert_int_equal(atomic_load(&peer.shared->producer_waiting), 1);
            /* the frontend thread hears of it, once until it has looked */
            assert_false(tr_response_writer_has_room(&o, n, with));
            assert_int_equal(rings(front), 1);
            assert_int_equal(atomic_exchange(&o.waits, 0), 1);
            /* whoever makes room is told to say so */
            assert_int_equal(drain(&peer, 1 + random_below(20)), 1);
            continue;
        }
        for (i = 0; i < n; i++) {
            bool most = random_below(2) == 0;
            uint32_t len = most ? sizeof(text) : random_below(sizeof(text));
            uint32_t lp = i >= with ? 0
                          : most    ? (uint32_t) sizeof(logprobs)
                                    : random_below(sizeof(logprobs));

            assert_int_equal(tr_response_writer_started(&o, i, 0), TR_OK);
            head = (tr_wire_delta_t){
                .text_len = len,
                .logprobs_len = lp,
                .ids_len = most ? sizeof(ids) : 4 * random_below(3),
            };
            head.tokens = head.ids_len / 4;
            assert_int_equal(tr_response_writer_delta(&o, i, &head, text,
                                                      logprobs, ids),
                             TR_OK);
            assert_int_equal(tr_response_writer_finish(&o, i, &finish, ""),
                             TR_OK);
        }
        writer_show(&o);
        if (random_below(4) == 0) {
            drain(&peer, UINT32_MAX);
        }
    }
    assert_true(full > 100);
    /* an empty response writer of any size takes a sequence with logprobs */
    drain(&peer, UINT32_MAX);
    assert_true(tr_response_writer_has_room(&o, 1, 1));
    writer_unmake(&o, &peer);
    close(front);
}

static void
writer_smallest_takes_one(void **state)
{
    tr_ring_consumer_t peer;
    tr_response_writer_t o;

    (void) state;
    writer_make(&o, &peer, TR_RESPONSE_WRITER_MIN, -1, -1);
    assert_true(tr_response_writer_has_room(&o, 1, 1));
    writer_unmake(&o, &peer);
}

/* Puts records of a kilobyte until the ring is full, or n. */
static uint32_t
fill(tr_response_writer_t *o, uint32_t n)
{
    static const char text[1000];
    const tr_wire_delta_t head = { .tokens = 1, .text_len = sizeof(text) };
    uint32_t i;

    for (i = 0; i < n; i++) {
        if (tr_response_writer_delta(o, 1, &head, text, NULL, NULL) != TR_OK) {
            break;
        }
    }
    return i;
}

/* The peer has gone: the loop goes on as if there were room. */
static void
writer_closed(void **state)
{
    tr_wire_finish_t finish = { .reason = TR_FINISH_STOP };
    int bell = eventfd(0, EFD_NONBLOCK);
    tr_ring_shared_t before;
    tr_ring_consumer_t peer;
    tr_response_writer_t o;

    (void) state;
    writer_make(&o, &peer, TR_RESPONSE_WRITER_MIN, bell, -1);
    assert_int_equal(tr_ring_sleep(&peer), TR_AGAIN);
    fill(&o, 3);
    tr_response_writer_close(&o);
    before = *peer.shared;
    assert_int_equal(fill(&o, 1000), 1000);
    assert_true(tr_response_writer_has_room(&o, 4096, 4096));
    assert_int_equal(tr_response_writer_started(&o, 1, 0), TR_OK);
    assert_int_equal(tr_response_writer_finish(&o, 1, &finish, ""), TR_OK);
    writer_show(&o);
    assert_memory_equal(&before, peer.shared, sizeof(before));
    assert_int_equal(rings(bell), 0);
    writer_unmake(&o, &peer);
    close(bell);
}

/* The peer claims to have read what was never written, or less than before. */
static void
writer_bad_index(void **state)
{
    static const uint64_t lies[] = { UINT64_MAX & ~7ull,
                                     TR_RESPONSE_WRITER_MIN * 2, 8, 4096 + 4 };
    int front = eventfd(0, EFD_NONBLOCK);
    unsigned i;

    (void) state;
    for (i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        tr_ring_consumer_t peer;
        tr_response_writer_t o;

        writer_make(&o, &peer, TR_RESPONSE_WRITER_MIN, -1, front);
        fill(&o, 40);
        writer_show(&o);
        drain(&peer, 20);
        while (tr_response_writer_has_room(&o, 1, 0)) {
            fill(&o, 1);
            writer_show(&o);
        }
        assert_int_equal(atomic_load(&o.broken), TR_RESPONSE_WRITER_SOUND);
        rings(front);
        atomic_store(&peer.shared->head, lies[i]);
        if (i % 2 == 0) {
            assert_true(tr_response_writer_has_room(&o, 1, 0));
        } else {
            assert_int_equal(fill(&o, 1000), 1000);
        }
        assert_int_equal(atomic_load(&o.broken), TR_RESPONSE_WRITER_BAD_INDEX);
        assert_int_equal(rings(front), 1);
        assert_int_equal(fill(&o, 1000), 1000);
        writer_show(&o);
        writer_unmake(&o, &peer);
    }
    close(front);
}

static void
writer_logprobs(void **state)
{
    tr_tokenizer_t *t;
    tr_error_t err;
    tr_sampled_t s = { .logprob = -1.5f, .n_top = 2 };
    tr_wire_bytes_t left, bytes;
    tr_wire_logprob_t head;
    tr_wire_top_t top;
    uint8_t out[256];
    uint32_t len, n, cap;

    (void) state;
    assert_int_equal(tr_tokenizer_load("models/pocket", &t, &err), TR_OK);
    s.token = tr_tokenizer_find(t, "b");
    s.top[0] = (tr_top_t){ tr_tokenizer_find(t, "a"), -0.25f };
    s.top[1] = (tr_top_t){ s.token, -1.5f };
    len = tr_response_writer_encode_logprob(t, &s, out, sizeof(out));
    assert_int_equal(len, sizeof(head) + 1 + 2 * (sizeof(top) + 1));
    for (cap = 0; cap < len; cap++) {
        assert_int_equal(tr_response_writer_encode_logprob(t, &s, out, cap), 0);
    }
    assert_int_equal(tr_response_writer_encode_logprob(t, &s, out, len), len);

    left = (tr_wire_bytes_t){ (const char *) out, len };
    assert_int_equal(tr_wire_logprob_next(&left, &head, &bytes), TR_OK);
    assert_int_equal(head.token, s.token);
    assert_true(head.logprob == -1.5f);
    assert_int_equal(head.top, 2);
    assert_int_equal(bytes.len, 1);
    assert_int_equal(bytes.data[0], 'b');
    for (n = 0; n < 2; n++) {
        assert_int_equal(tr_wire_top_next(&left, &top, &bytes), TR_OK);
        assert_int_equal(top.token, s.top[n].token);
        assert_true(top.logprob == s.top[n].logprob);
        assert_int_equal(bytes.data[0], n == 0 ? 'a' : 'b');
    }
    assert_int_equal(tr_wire_logprob_next(&left, &head, &bytes), TR_AGAIN);

    /* an id without bytes, an unknown probability */
    s = (tr_sampled_t){ .token = -1, .logprob = NAN };
    assert_int_equal(tr_response_writer_encode_logprob(t, &s, out, sizeof(out)),
                     sizeof(head));
    tr_tokenizer_free(t);
}

/* ---- two threads -------------------------------------------------------- */

#define LIVES 2000

static tr_response_writer_t *_Atomic handed;

static void *
produce(void *arg)
{
    tr_wire_finish_t finish = { .reason = TR_FINISH_STOP,
                                .flags = TR_FINISH_LAST };
    uint32_t i;

    (void) arg;
    for (i = 0; i < LIVES; i++) {
        tr_response_writer_t *o;

        while ((o = atomic_exchange(&handed, NULL)) == NULL) {
        }
        assert_true(tr_response_writer_has_room(o, 1, 0));
        atomic_store(&o->held, 1);
        tr_response_writer_finish(o, 9, &finish, "");
        writer_show(o);
    }
    return NULL;
}

/* The consumer frees the response writer as soon as it sees the last record. */
static void
writer_freed_at_once(void **state)
{
    tr_ring_consumer_t peer;
    pthread_t thread;
    tr_record_t rec;
    uint32_t i;

    (void) state;
    pthread_create(&thread, NULL, produce, NULL);
    for (i = 0; i < LIVES; i++) {
        tr_response_writer_t *o = malloc(sizeof(*o));

        writer_make(o, &peer, TR_RESPONSE_WRITER_MIN, -1, -1);
        atomic_store(&handed, o);
        while (tr_ring_get(&peer, &rec, buf, sizeof(buf)) == TR_AGAIN) {
        }
        assert_int_equal(rec.type, TR_RECORD_FINISH);
        writer_unmake(o, &peer);
        free(o);
    }
    pthread_join(thread, NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_refuses_sizes),
        cmocka_unit_test(writer_records),
        cmocka_unit_test(writer_room_is_kept),
        cmocka_unit_test(writer_smallest_takes_one),
        cmocka_unit_test(writer_closed),
        cmocka_unit_test(writer_bad_index),
        cmocka_unit_test(writer_logprobs),
        cmocka_unit_test(writer_freed_at_once),
    };

    random_state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
