/*
 * The inbox: two rings with a producer each, read as one.  No output is met
 * before its ACCEPTED, nobody sleeps through a record, and a producer that
 * waits for room is rung, whichever ring it writes.
 */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "tests/unit/fixtures/ring_fixture.h"
#include <tokenring/wire.h>

#define PATIENCE_MS 60000 /* a wake-up that has not come by then is lost */
#define SLOTS 64u

typedef struct {
    tr_channel_map_t map;
    tr_ring_producer_t answers, responses;
    tr_inbox_t in;
    uint8_t *buf;
    uint32_t max;
    int fd, to_peer, to_front, to_loop;
} pair_t;

static void
pair_open(pair_t *p, uint32_t ring)
{
    memset(p, 0, sizeof(*p));
    assert_int_equal(tr_channel_create(SLOTS, 0, ring, 1, &p->map, &p->fd),
                     TR_OK);
    tr_ring_producer_init(&p->answers, p->map.answer, p->map.answer_data,
                          p->map.answer_capacity);
    tr_ring_producer_init(&p->responses, p->map.response, p->map.response_data,
                          p->map.response_capacity);
    tr_inbox_init(&p->in, &p->map);
    p->max = tr_inbox_max_payload(&p->map);
    p->buf = malloc(p->max);
    p->to_peer = tr_doorbell_create();
    p->to_front = tr_doorbell_create();
    p->to_loop = tr_doorbell_create();
}

static void
pair_close(pair_t *p)
{
    close(p->fd);
    close(p->to_peer);
    close(p->to_front);
    close(p->to_loop);
    tr_channel_unmap(&p->map);
    free(p->buf);
}

static void
put(tr_ring_producer_t *p, uint16_t type, uint64_t id)
{
    assert_int_equal(tr_ring_put(p, type, 0, id, NULL, 0), TR_OK);
    tr_ring_publish(p);
}

static void
expect(pair_t *p, uint16_t type, uint64_t id)
{
    tr_record_t rec;

    assert_int_equal(tr_inbox_get(&p->in, &rec, p->buf, p->max), TR_OK);
    assert_int_equal(rec.type, type);
    assert_int_equal(rec.id, id);
}

static void
test_answers_come_first(void **state)
{
    tr_record_t rec;
    pair_t p;

    (void) state;
    pair_open(&p, 4096);
    assert_int_equal(p.max, tr_ring_max_payload(TR_CHANNEL_ANSWERS));
    assert_int_equal(tr_inbox_get(&p.in, &rec, p.buf, p.max), TR_AGAIN);
    put(&p.responses, TR_RECORD_DELTA, 1);
    put(&p.responses, TR_RECORD_DELTA, 2);
    put(&p.answers, TR_RECORD_ACCEPTED, 3);
    expect(&p, TR_RECORD_ACCEPTED, 3);
    expect(&p, TR_RECORD_DELTA, 1);
    /* what was seen of the output before is as old as it was */
    put(&p.answers, TR_RECORD_ACCEPTED, 4);
    put(&p.responses, TR_RECORD_DELTA, 4);
    expect(&p, TR_RECORD_ACCEPTED, 4);
    expect(&p, TR_RECORD_DELTA, 2);
    expect(&p, TR_RECORD_DELTA, 4);
    assert_int_equal(tr_inbox_get(&p.in, &rec, p.buf, p.max), TR_AGAIN);
    pair_close(&p);
}

static void
test_either_ring_wakes(void **state)
{
    tr_ring_producer_t *ring;
    pair_t p;
    int i;

    (void) state;
    pair_open(&p, 4096);
    for (i = 0; i < 4; i++) {
        ring = i % 2 ? &p.answers : &p.responses;
        assert_int_equal(tr_inbox_sleep(&p.in), TR_AGAIN);
        tr_ring_put(ring, TR_RECORD_ERROR, 0, 1, NULL, 0);
        if (i < 2) {
            assert_int_equal(tr_ring_publish(ring), 1);
        } else { /* woken by something else, it wants no ring */
            tr_inbox_awake(&p.in);
            assert_int_equal(tr_ring_publish(ring), 0);
        }
        /* not to sleep on top of it, and not to look asleep */
        assert_int_equal(tr_inbox_sleep(&p.in), TR_OK);
        assert_int_equal(atomic_load(&p.map.response->consumer_asleep), 0);
        expect(&p, TR_RECORD_ERROR, 1);
        tr_inbox_awake(&p.in);
        assert_int_equal(atomic_load(&p.map.answer->consumer_asleep), 0);
    }
    pair_close(&p);
}

static void
test_either_ring_can_be_bad(void **state)
{
    tr_record_t rec;
    int i;

    (void) state;
    for (i = 0; i < 4; i++) {
        pair_t p;

        pair_open(&p, 4096);
        atomic_store(i % 2 ? &p.map.answer->tail : &p.map.response->tail,
                     i < 2 ? UINT64_MAX - 7 : 4);
        assert_int_equal(tr_inbox_get(&p.in, &rec, p.buf, p.max),
                         TR_ERR_PROTOCOL);
        assert_int_equal(tr_inbox_sleep(&p.in), TR_ERR_PROTOCOL);
        pair_close(&p);
    }
}

/* ---- three threads ------------------------------------------------------ */

#define REQUESTS 60000u

typedef struct {
    pair_t pair;
    _Atomic uint32_t accepted; /* front: requests given to the loop */
    _Atomic uint32_t ended;    /* peer: whose slots are free again */
    const char *_Atomic failed;
    unsigned sleeps, waits;
} trio_t;

static void
trio_put(trio_t *t, tr_ring_producer_t *ring, int bell, uint16_t type,
         uint32_t n, uint32_t len)
{
    static const uint8_t bytes[1000];
    tr_ring_piece_t piece = { bytes, len };
    struct pollfd p = { .fd = bell, .events = POLLIN };

    while (tr_ring_put(ring, type, 0, n, &piece, 1) == TR_AGAIN) {
        if (tr_ring_publish(ring)) {
            tr_doorbell_ring(t->pair.to_peer);
        }
        if (tr_ring_wait_space(ring, len) == TR_AGAIN) {
            if (poll(&p, 1, PATIENCE_MS) != 1) {
                t->failed = "a producer was never rung";
                return;
            }
            tr_doorbell_drain(bell);
        }
    }
}

/* Accepts, shows it, and only then tells the loop. */
static void *
trio_front(void *arg)
{
    trio_t *t = arg;
    uint32_t n;

    for (n = 1; n <= REQUESTS && t->failed == NULL; n++) {
        while (n > atomic_load(&t->ended) + SLOTS && t->failed == NULL) {
        }
        trio_put(t, &t->pair.answers, t->pair.to_front, TR_RECORD_ACCEPTED, n,
                 n % 100);
        if (tr_ring_publish(&t->pair.answers)) {
            tr_doorbell_ring(t->pair.to_peer);
        }
        atomic_store_explicit(&t->accepted, n, memory_order_release);
    }
    return NULL;
}

/* Output at once, some of it in steps of several records. */
static void *
trio_loop(void *arg)
{
    trio_t *t = arg;
    uint32_t n = 0;

    while (n < REQUESTS && t->failed == NULL) {
        uint32_t known = atomic_load_explicit(&t->accepted,
                                              memory_order_acquire);

        while (n < known) {
            n++;
            trio_put(t, &t->pair.responses, t->pair.to_loop, TR_RECORD_DELTA, n,
                     n % 900);
            trio_put(t, &t->pair.responses, t->pair.to_loop, TR_RECORD_FINISH,
                     n, 80);
        }
        if (tr_ring_publish(&t->pair.responses)) {
            tr_doorbell_ring(t->pair.to_peer);
        }
    }
    return NULL;
}

static const char *
trio_record(trio_t *t, const tr_record_t *rec, uint32_t *accepted,
            uint32_t *ended)
{
    switch (rec->type) {
    case TR_RECORD_ACCEPTED:
        return rec->id == ++*accepted ? NULL : "an answer is missing";
    case TR_RECORD_DELTA:
        if (rec->id > *accepted) {
            return "output before its ACCEPTED";
        }
        return rec->id == *ended + 1 ? NULL : "output is out of order";
    default:
        atomic_store(&t->ended, ++*ended);
        return rec->id == *ended ? NULL : "an end is missing";
    }
}

static const char *
trio_peer(trio_t *t)
{
    struct pollfd p = { .fd = t->pair.to_peer, .events = POLLIN };
    uint32_t accepted = 0, ended = 0;
    const char *bad = NULL;
    tr_record_t rec;

    while (ended < REQUESTS && bad == NULL) {
        tr_status_t rc = tr_inbox_get(&t->pair.in, &rec, t->pair.buf,
                                      t->pair.max);

        if (rc == TR_OK) {
            bad = trio_record(t, &rec, &accepted, &ended);
            if (rec.id % 3 != 0) {
                continue;
            }
        }
        if (tr_inbox_release(&t->pair.in)) { /* an engine's one doorbell */
            tr_doorbell_ring(t->pair.to_front);
            tr_doorbell_ring(t->pair.to_loop);
            t->waits++;
        }
        if (rc == TR_AGAIN) {
            rc = tr_inbox_sleep(&t->pair.in);
            if (rc == TR_AGAIN) {
                t->sleeps++;
                if (poll(&p, 1, PATIENCE_MS) != 1) {
                    return "the peer was never rung";
                }
                tr_doorbell_drain(p.fd);
                tr_inbox_awake(&t->pair.in);
                rc = TR_OK;
            }
        }
        if (rc != TR_OK) {
            return "a ring is bad";
        }
    }
    return bad;
}

/* Both records of a request as close together as they can be, for a peer that
 * looks all the time: reading the rings in the other order fails here. */
static void *
trio_burst(void *arg)
{
    trio_t *t = arg;
    uint32_t n;

    for (n = 1; n <= REQUESTS; n++) {
        while (atomic_load(&t->ended) + 1 != n && t->failed == NULL) {
        }
        tr_ring_put(&t->pair.answers, TR_RECORD_ACCEPTED, 0, n, NULL, 0);
        tr_ring_put(&t->pair.responses, TR_RECORD_DELTA, 0, n, NULL, 0);
        tr_ring_put(&t->pair.responses, TR_RECORD_FINISH, 0, n, NULL, 0);
        tr_ring_publish(&t->pair.answers);
        tr_ring_publish(&t->pair.responses);
    }
    return NULL;
}

static void
test_no_output_before_accepted(void **state)
{
    static trio_t t;
    uint32_t accepted = 0, ended = 0;
    const char *bad = NULL;
    pthread_t thread;
    tr_record_t rec;

    (void) state;
    pair_open(&t.pair, 4096);
    assert_int_equal(pthread_create(&thread, NULL, trio_burst, &t), 0);
    while (ended < REQUESTS && bad == NULL) {
        tr_status_t rc = tr_inbox_get(&t.pair.in, &rec, t.pair.buf, t.pair.max);

        if (rc == TR_OK) {
            tr_inbox_release(&t.pair.in);
            bad = trio_record(&t, &rec, &accepted, &ended);
        } else if (rc != TR_AGAIN) {
            bad = "a ring is bad";
        }
    }
    t.failed = bad;
    pthread_join(thread, NULL);
    if (bad != NULL) {
        fail_msg("%s, request %u", bad, ended + 1);
    }
    pair_close(&t.pair);
}

static void
test_three_threads(void **state)
{
    static trio_t t;
    pthread_t front, loop;
    const char *bad;

    (void) state;
    pair_open(&t.pair, 4096);
    assert_int_equal(pthread_create(&front, NULL, trio_front, &t), 0);
    assert_int_equal(pthread_create(&loop, NULL, trio_loop, &t), 0);
    bad = trio_peer(&t);
    if (bad != NULL) {
        t.failed = bad;
    }
    if (t.failed != NULL) {
        print_error("%s\n", t.failed);
        _exit(1); /* the producers may wait for ever */
    }
    pthread_join(front, NULL);
    pthread_join(loop, NULL);
    assert_true(t.sleeps > 0);
    assert_true(t.waits > 0);
    pair_close(&t.pair);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_come_first),
        cmocka_unit_test(test_either_ring_wakes),
        cmocka_unit_test(test_either_ring_can_be_bad),
        cmocka_unit_test(test_no_output_before_accepted),
        cmocka_unit_test(test_three_threads),
    };

    return cmocka_run_group_tests_name("inbox", tests, NULL, NULL);
}
