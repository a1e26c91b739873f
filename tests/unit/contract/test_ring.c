/*
 * The ring alone: bytes and indices in one thread, with the peer's memory
 * forged where it must be refused, then two threads with real doorbells.
 * test_ring_process.c has the two processes.
 */
#include "tests/unit/fixtures/ring_fixture.h"

#include <poll.h>
#include <pthread.h>

#define CAPACITY TR_RING_MIN

static void
put_and_get(ring_t *r, uint64_t n, uint32_t len)
{
    tr_record_t rec;

    assert_int_equal(ring_put_number(&r->p, n, len, r->buf), TR_OK);
    tr_ring_publish(&r->p);
    memset(r->buf, 0, r->max);
    assert_int_equal(tr_ring_get(&r->c, &rec, r->buf, r->max), TR_OK);
    assert_true(ring_is_number(&rec, r->buf, n, len));
    assert_int_equal(tr_ring_get(&r->c, &rec, r->buf, r->max), TR_AGAIN);
    tr_ring_release(&r->c);
    assert_int_equal(r->c.head, r->p.tail);
}

/* Every length at every place, so every kind of wrap and PAD, 8 bytes to
 * nearly a quarter of the ring. */
static void
test_every_length_at_every_offset(void **state)
{
    uint32_t at, len;
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    for (at = 0; at < CAPACITY; at += 8) {
        for (len = 0; len <= r.max; len += (len < 40 ? 1 : 8)) {
            uint64_t start = (1ull << 40) + at;
            uint32_t size = 16 + (len + 7) / 8 * 8;
            uint64_t pad = at + size > CAPACITY ? CAPACITY - at : 0;

            ring_begin(&r, start);
            put_and_get(&r, len + 1, len);
            assert_int_equal(r.p.tail - start, size + pad);
        }
    }
    ring_free(&r);
}

/* tr_ring_space is exact: that much goes in, one byte more does not. */
static void
test_space_is_exact(void **state)
{
    uint64_t seed = 1, put = 0, got = 0;
    uint8_t *scratch;
    tr_record_t rec;
    ring_t r;
    int i;

    (void) state;
    ring_make(&r, CAPACITY);
    scratch = malloc(r.max + 1);
    for (i = 0; i < 200000; i++) {
        uint32_t len = ring_length(put, r.max), space = tr_ring_space(&r.p);
        tr_ring_piece_t more = { scratch, (size_t) space + 1 };
        uint64_t before = r.p.tail;
        tr_status_t rc;

        if (space != 0 || r.p.tail - r.p.head == CAPACITY) {
            rc = tr_ring_put(&r.p, 1, 0, 1, &more, 1);
            assert_int_equal(rc, space == r.max ? TR_ERR_TOO_LARGE : TR_AGAIN);
            assert_int_equal(r.p.tail, before);
        }
        rc = ring_put_number(&r.p, put, len, scratch);
        if (len != 0 && space != 0) {
            assert_int_equal(rc, len <= space ? TR_OK : TR_AGAIN);
        }
        if (rc == TR_OK) {
            put++;
            tr_ring_publish(&r.p);
        } else {
            assert_int_equal(rc, TR_AGAIN);
            assert_int_equal(r.p.tail, before);
        }
        while (tr_splitmix64(&seed) % 3 == 0) {
            rc = tr_ring_get(&r.c, &rec, r.buf, r.max);
            if (rc == TR_AGAIN) {
                assert_int_equal(put, got);
                break;
            }
            assert_int_equal(rc, TR_OK);
            assert_true(
                ring_is_number(&rec, r.buf, got, ring_length(got, r.max)));
            got++;
            tr_ring_release(&r.c);
        }
    }
    assert_true(got > 50000);
    free(scratch);
    ring_free(&r);
}

/* Filled to the last byte; full is not empty. */
static void
test_full_to_the_last_byte(void **state)
{
    tr_record_t rec;
    unsigned i, n;
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    for (n = 0; ring_put_number(&r.p, n, r.max, r.buf) == TR_OK; n++) {
    }
    assert_int_equal(n, 4);
    assert_int_equal(r.p.tail - r.p.head, CAPACITY);
    assert_int_equal(tr_ring_space(&r.p), 0);
    assert_int_equal(ring_put_number(&r.p, n, 0, r.buf), TR_AGAIN);
    tr_ring_publish(&r.p);
    for (i = 0; i < n; i++) {
        assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_OK);
        assert_true(ring_is_number(&rec, r.buf, i, r.max));
    }
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_AGAIN);
    /* consumed, but not released: still full for the producer */
    assert_int_equal(ring_put_number(&r.p, n, 0, r.buf), TR_AGAIN);
    tr_ring_release(&r.c);
    assert_int_equal(tr_ring_space(&r.p), r.max);
    ring_free(&r);
}

static void
test_too_large_is_refused(void **state)
{
    tr_ring_piece_t pieces[3];
    tr_record_t rec;
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    assert_int_equal(r.max, CAPACITY / 4 - 16);
    pieces[0] = (tr_ring_piece_t){ r.data, r.max };
    pieces[1] = (tr_ring_piece_t){ r.data, 1 };
    assert_int_equal(tr_ring_put(&r.p, 1, 0, 1, pieces, 2), TR_ERR_TOO_LARGE);
    /* lengths whose sum wraps around to something small */
    pieces[0].len = 16;
    pieces[1].len = SIZE_MAX - 7;
    pieces[2] = (tr_ring_piece_t){ r.data, 8 };
    assert_int_equal(tr_ring_put(&r.p, 1, 0, 1, pieces, 3), TR_ERR_TOO_LARGE);
    assert_int_equal(tr_ring_wait_space(&r.p, r.max + 1), TR_ERR_TOO_LARGE);
    assert_int_equal(r.p.tail, 0);
    assert_int_equal(atomic_load(&r.shared->producer_waiting), 0);
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_AGAIN);
    ring_free(&r);
}

static void
test_staged_is_invisible_until_published(void **state)
{
    tr_record_t rec;
    ring_t r;
    int i;

    (void) state;
    ring_make(&r, CAPACITY);
    assert_int_equal(tr_ring_publish(&r.p), 0);
    for (i = 0; i < 3; i++) {
        assert_int_equal(ring_put_number(&r.p, (uint64_t) i, 9, r.buf), TR_OK);
    }
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_AGAIN);
    assert_int_equal(atomic_load(&r.shared->tail), 0);
    tr_ring_publish(&r.p);
    for (i = 0; i < 3; i++) {
        assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_OK);
        assert_true(ring_is_number(&rec, r.buf, (uint64_t) i, 9));
    }
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_AGAIN);
    ring_free(&r);
}

/* The doorbell rings once for a sleeper, never for one who is awake. */
/* What was published before the consumer closed the ring is taken, and what comes
 * behind that is not; the producer knows which. */
static void
test_closed(void **state)
{
    tr_record_t rec;
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    ring_begin(&r, 8000);
    assert_int_equal(tr_ring_put(&r.p, 1, 0, 11, NULL, 0), TR_OK);
    assert_int_equal(tr_ring_publish_open(&r.p), 0);
    assert_int_equal(tr_ring_put(&r.p, 1, 0, 12, NULL, 0), TR_OK);
    tr_ring_close(r.shared);
    assert_int_equal(tr_ring_publish_open(&r.p), -1);
    assert_int_equal(tr_ring_put(&r.p, 1, 0, 13, NULL, 0), TR_OK);
    assert_int_equal(tr_ring_publish_open(&r.p), -1);
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_OK);
    assert_int_equal(rec.id, 11);
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_AGAIN);
    ring_free(&r);
}

static void
test_doorbell_edge(void **state)
{
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    ring_put_number(&r.p, 1, 5, r.buf);
    assert_int_equal(tr_ring_publish(&r.p), 0); /* awake from the start */
    /* something came before it could sleep */
    assert_int_equal(tr_ring_sleep(&r.c), TR_OK);
    assert_int_equal(atomic_load(&r.shared->consumer_asleep), 0);
    r.c.head = r.c.tail;
    assert_int_equal(tr_ring_sleep(&r.c), TR_AGAIN);
    assert_int_equal(atomic_load(&r.shared->consumer_asleep), 1);
    assert_int_equal(tr_ring_publish(&r.p), 0); /* nothing staged */
    ring_put_number(&r.p, 2, 5, r.buf);
    assert_int_equal(tr_ring_publish(&r.p), 1);
    ring_put_number(&r.p, 3, 5, r.buf);
    assert_int_equal(tr_ring_publish(&r.p), 0);
    /* a peer that writes nonsense into the flag is not rung for it */
    atomic_store(&r.shared->consumer_asleep, 7);
    ring_put_number(&r.p, 4, 5, r.buf);
    assert_int_equal(tr_ring_publish(&r.p), 0);
    ring_free(&r);
}

static void
test_waiting_for_space_edge(void **state)
{
    tr_record_t rec;
    unsigned n = 0;
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    while (ring_put_number(&r.p, n, r.max, r.buf) == TR_OK) {
        n++;
    }
    tr_ring_publish(&r.p);
    assert_int_equal(tr_ring_release(&r.c), 0);
    assert_int_equal(tr_ring_wait_space(&r.p, 1), TR_AGAIN);
    assert_int_equal(atomic_load(&r.shared->producer_waiting), 1);
    assert_int_equal(tr_ring_release(&r.c), 0); /* nothing to give back */
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_OK);
    assert_int_equal(tr_ring_release(&r.c), 1);
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_OK);
    assert_int_equal(tr_ring_release(&r.c), 0); /* rung already */
    assert_int_equal(tr_ring_wait_space(&r.p, r.max), TR_OK);
    assert_int_equal(atomic_load(&r.shared->producer_waiting), 0);
    assert_int_equal(ring_put_number(&r.p, n, r.max, r.buf), TR_OK);
    ring_free(&r);
}

/* ---- a hostile peer ----------------------------------------------------- */

/* What a consumer says when the producer claims `tail`. */
static void
expect_tail(ring_t *r, uint64_t start, uint64_t tail, tr_status_t want)
{
    tr_record_t rec;
    tr_status_t rc;

    ring_begin(r, start);
    atomic_store(&r->shared->tail, tail);
    rc = tr_ring_get(&r->c, &rec, r->buf, r->max);
    assert_int_equal(rc, want);
    ring_begin(r, start);
    atomic_store(&r->shared->tail, tail);
    assert_int_equal(tr_ring_sleep(&r->c), want);
}

static void
test_impossible_tail_is_refused(void **state)
{
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY); /* zeroes: every place holds an empty record */
    expect_tail(&r, 8000, 8000, TR_AGAIN);
    expect_tail(&r, 8000, 8000 + CAPACITY, TR_OK);
    expect_tail(&r, 8000, 8000 + CAPACITY + 8, TR_ERR_PROTOCOL);
    expect_tail(&r, 8000, UINT64_MAX - 7, TR_ERR_PROTOCOL);
    expect_tail(&r, 8000, 7992, TR_ERR_PROTOCOL);
    expect_tail(&r, 8000, 0, TR_ERR_PROTOCOL);
    expect_tail(&r, 8000, 8016, TR_OK);
    expect_tail(&r, 8000, 8017, TR_OK); /* closed, which is the consumer's */
    expect_tail(&r, 8000, 8018, TR_ERR_PROTOCOL);
    expect_tail(&r, 8000, 8020, TR_ERR_PROTOCOL);
    ring_free(&r);
}

static void
test_tail_may_not_go_back(void **state)
{
    tr_record_t rec;
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    atomic_store(&r.shared->tail, 64);
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_OK);
    atomic_store(&r.shared->tail, 32);
    assert_int_equal(tr_ring_sleep(&r.c), TR_ERR_PROTOCOL);
    ring_free(&r);
}

/* What a producer says when the consumer claims `head`, 64 bytes published. */
static void
expect_head(ring_t *r, uint64_t start, uint64_t head, tr_status_t want)
{
    uint32_t space;

    ring_begin(r, start);
    ring_put_number(&r->p, 1, 48, r->buf);
    tr_ring_publish(&r->p);
    atomic_store(&r->shared->head, head);
    space = tr_ring_space(&r->p);
    assert_int_equal(space != 0, want == TR_OK);
    assert_int_equal(tr_ring_wait_space(&r->p, 8), want);
    /* a put looks at the peer's index only when it needs space */
    r->p.tail = r->p.head + CAPACITY;
    assert_int_equal(ring_put_number(&r->p, 1, 8, r->buf),
                     want == TR_OK ? TR_AGAIN : want);
}

static void
test_impossible_head_is_refused(void **state)
{
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    expect_head(&r, 8192, 8192, TR_OK);
    expect_head(&r, 8192, 8192 + 64, TR_OK);
    expect_head(&r, 8192, 8192 + 72, TR_ERR_PROTOCOL);
    expect_head(&r, 8192, UINT64_MAX - 7, TR_ERR_PROTOCOL);
    expect_head(&r, 8192, 8184, TR_ERR_PROTOCOL);
    expect_head(&r, 8192, 8193, TR_ERR_PROTOCOL);
    expect_head(&r, 8192, 8196, TR_ERR_PROTOCOL);
    ring_free(&r);
}

/* A forged header at offset `at`, with `have` bytes published. */
static tr_status_t
forged(ring_t *r, uint32_t at, uint64_t have, uint32_t length, uint16_t type,
       size_t buf_size)
{
    tr_record_t rec = { .length = length, .type = type, .id = 1 }, got;
    tr_status_t rc;
    uint8_t *buf = malloc(buf_size ? buf_size : 1);

    ring_begin(r, at);
    memset(r->data, 0, r->capacity);
    memcpy(r->data + at, &rec, r->capacity - at < 16 ? 8 : 16);
    atomic_store(&r->shared->tail, at + have);
    rc = tr_ring_get(&r->c, &got, buf, buf_size);
    free(buf);
    return rc;
}

/* Each pair differs in one number, and only the second is refused. */
static void
test_impossible_records_are_refused(void **state)
{
    const uint32_t end = CAPACITY;
    uint32_t max;
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    max = r.max;
    /* longer than any record may be */
    assert_int_equal(forged(&r, 0, end, max, 1, max), TR_OK);
    assert_int_equal(forged(&r, 0, end, max + 1, 1, end), TR_ERR_PROTOCOL);
    assert_int_equal(forged(&r, 0, end, UINT32_MAX, 1, end), TR_ERR_PROTOCOL);
    assert_int_equal(forged(&r, 0, end, UINT32_MAX - 15, 1, end),
                     TR_ERR_PROTOCOL);
    /* longer than what was published */
    assert_int_equal(forged(&r, 0, 48, 32, 1, max), TR_OK);
    assert_int_equal(forged(&r, 0, 48, 33, 1, max), TR_ERR_PROTOCOL);
    assert_int_equal(forged(&r, 0, 16, 0, 1, max), TR_OK);
    assert_int_equal(forged(&r, 0, 8, 0, 1, max), TR_ERR_PROTOCOL);
    /* over the end of the array */
    assert_int_equal(forged(&r, end - 64, 96, 48, 1, max), TR_OK);
    assert_int_equal(forged(&r, end - 64, 96, 49, 1, max), TR_ERR_PROTOCOL);
    assert_int_equal(forged(&r, end - 8, 96, 0, 1, max), TR_ERR_PROTOCOL);
    /* longer than the reader's buffer */
    assert_int_equal(forged(&r, 0, 96, 20, 1, 20), TR_OK);
    assert_int_equal(forged(&r, 0, 96, 20, 1, 19), TR_ERR_PROTOCOL);
    /* a PAD ends the array, no more and no less, and was published */
    assert_int_equal(forged(&r, end - 64, 96, 64, TR_RECORD_PAD, max), TR_OK);
    assert_int_equal(forged(&r, end - 64, 96, 56, TR_RECORD_PAD, max),
                     TR_ERR_PROTOCOL);
    assert_int_equal(forged(&r, end - 64, 96, 72, TR_RECORD_PAD, max),
                     TR_ERR_PROTOCOL);
    assert_int_equal(forged(&r, end - 64, 56, 64, TR_RECORD_PAD, max),
                     TR_ERR_PROTOCOL);
    assert_int_equal(forged(&r, end - 8, 32, 8, TR_RECORD_PAD, max), TR_OK);
    assert_int_equal(forged(&r, end - 8, 32, 16, TR_RECORD_PAD, max),
                     TR_ERR_PROTOCOL);
    ring_free(&r);
}

/* PADs all over: the reader comes to an end. */
static void
test_nothing_but_pads(void **state)
{
    tr_record_t pad = { .length = CAPACITY, .type = TR_RECORD_PAD }, rec;
    ring_t r;

    (void) state;
    ring_make(&r, CAPACITY);
    memcpy(r.data, &pad, sizeof(pad));
    atomic_store(&r.shared->tail, CAPACITY);
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_AGAIN);
    atomic_store(&r.shared->tail, 2 * CAPACITY);
    /* not released yet, so the producer cannot have written it */
    assert_int_equal(tr_ring_get(&r.c, &rec, r.buf, r.max), TR_ERR_PROTOCOL);
    ring_free(&r);
}

/* Whatever bytes are in there: an answer, never a byte out of bounds (ASan
 * watches data and buf). */
static void
test_noise_is_survived(void **state)
{
    uint64_t seed = 42;
    unsigned counts[3] = { 0, 0, 0 };
    tr_record_t rec;
    ring_t r;
    int i, k;

    (void) state;
    ring_make(&r, CAPACITY);
    for (i = 0; i < 100000; i++) {
        uint64_t start = tr_splitmix64(&seed) % (2 * CAPACITY) & ~7ull;

        ring_begin(&r, start);
        for (k = 0; k < 32; k++) {
            /* small lengths, so that some of it makes sense */
            uint64_t word = tr_splitmix64(&seed) & 0xffff000007ffull;

            memcpy(r.data + tr_splitmix64(&seed) % (CAPACITY / 8) * 8, &word,
                   8);
        }
        atomic_store(&r.shared->tail,
                     start + (tr_splitmix64(&seed) % (CAPACITY + 64) & ~7ull));
        for (k = 0; k < 16; k++) {
            tr_status_t rc = tr_ring_get(&r.c, &rec, r.buf, r.max);

            counts[rc == TR_OK ? 0 : rc == TR_AGAIN ? 1 : 2]++;
            if (rc != TR_OK) {
                break;
            }
        }
    }
    assert_true(counts[0] > 1000 && counts[1] > 100 && counts[2] > 1000);
    ring_free(&r);
}

/* ---- two threads -------------------------------------------------------- */

#define PATIENCE_MS 60000 /* a wake-up that has not come by then is lost */

typedef struct {
    ring_t ring;
    int to_consumer, to_producer;
    uint64_t records;
    uint64_t seed;
    unsigned sleeps, waits;
    const char *failed;
} duo_t;

static int
duo_wait(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    if (poll(&p, 1, PATIENCE_MS) != 1) {
        return 0;
    }
    tr_doorbell_drain(fd);
    return 1;
}

static void *
duo_produce(void *arg)
{
    duo_t *d = arg;
    uint8_t *scratch = malloc(d->ring.max);
    uint64_t n = 0;

    while (n < d->records && d->failed == NULL) {
        uint32_t len = ring_length(n, d->ring.max);
        tr_status_t rc = ring_put_number(&d->ring.p, n, len, scratch);

        if (rc == TR_OK) {
            n++;
            if (tr_splitmix64(&d->seed) % 4 != 0) {
                continue; /* a batch */
            }
        }
        if (tr_ring_publish(&d->ring.p)) {
            tr_doorbell_ring(d->to_consumer);
        }
        if (rc == TR_AGAIN && tr_ring_wait_space(&d->ring.p, len) == TR_AGAIN) {
            d->waits++;
            if (!duo_wait(d->to_producer)) {
                d->failed = "the producer was never rung";
            }
        } else if (rc != TR_OK && rc != TR_AGAIN) {
            d->failed = "the producer refused";
        }
    }
    if (tr_ring_publish(&d->ring.p)) {
        tr_doorbell_ring(d->to_consumer);
    }
    free(scratch);
    return NULL;
}

static const char *
duo_consume(duo_t *d)
{
    uint64_t n = 0;
    tr_record_t rec;

    while (n < d->records) {
        tr_status_t rc = tr_ring_get(&d->ring.c, &rec, d->ring.buf,
                                     d->ring.max);

        if (rc == TR_OK) {
            if (!ring_is_number(&rec, d->ring.buf, n,
                                ring_length(n, d->ring.max))) {
                return "a record is not what was put";
            }
            n++;
            if (n % 3 != 0) {
                continue;
            }
        }
        if (tr_ring_release(&d->ring.c)) {
            tr_doorbell_ring(d->to_producer);
        }
        if (rc == TR_OK) {
            continue;
        }
        if (rc == TR_AGAIN) {
            rc = tr_ring_sleep(&d->ring.c);
        }
        if (rc == TR_AGAIN) {
            d->sleeps++;
            if (!duo_wait(d->to_consumer)) {
                return "the consumer was never rung";
            }
        } else if (rc != TR_OK) {
            return "the consumer refused";
        }
    }
    return NULL;
}

static void
test_two_threads(void **state)
{
    const char *failed;
    pthread_t thread;
    duo_t d;

    (void) state;
    memset(&d, 0, sizeof(d));
    ring_make(&d.ring, CAPACITY);
    d.to_consumer = tr_doorbell_create();
    d.to_producer = tr_doorbell_create();
    d.records = 400000;
    d.seed = 7;
    assert_int_equal(pthread_create(&thread, NULL, duo_produce, &d), 0);
    failed = duo_consume(&d);
    if (failed != NULL) {
        print_error("%s\n", failed);
        _exit(1); /* the producer may wait for ever */
    }
    pthread_join(thread, NULL);
    assert_null(d.failed);
    /* both edges were really walked */
    assert_true(d.sleeps > 0);
    assert_true(d.waits > 0);
    close(d.to_consumer);
    close(d.to_producer);
    ring_free(&d.ring);
}

/* ---- a body larger than the ring ---------------------------------------- */

#define BODY_BYTES (8u << 20)

static uint8_t
body_byte(uint32_t i)
{
    return (uint8_t) (i * 2654435761u >> 24);
}

static void *
body_produce(void *arg)
{
    duo_t *d = arg;
    uint8_t *body = malloc(BODY_BYTES);
    uint32_t i, at = 0;

    for (i = 0; i < BODY_BYTES; i++) {
        body[i] = body_byte(i);
    }
    while (at < BODY_BYTES) {
        uint32_t left = BODY_BYTES - at;
        uint32_t n = left < d->ring.max ? left : d->ring.max;
        tr_ring_piece_t piece = { body + at, n };
        tr_status_t rc = tr_ring_put(&d->ring.p, 1, n < left ? TR_FLAG_MORE : 0,
                                     77, &piece, 1);

        if (rc == TR_OK) {
            at += n;
        }
        if (tr_ring_publish(&d->ring.p)) {
            tr_doorbell_ring(d->to_consumer);
        }
        if (rc == TR_AGAIN && tr_ring_wait_space(&d->ring.p, n) == TR_AGAIN) {
            duo_wait(d->to_producer);
        }
    }
    free(body);
    return NULL;
}

static void
test_large_body_in_parts(void **state)
{
    uint32_t at = 0, parts = 0, i;
    tr_record_t rec = { .flags = TR_FLAG_MORE };
    pthread_t thread;
    duo_t d;

    (void) state;
    memset(&d, 0, sizeof(d));
    ring_make(&d.ring, 64 << 10);
    d.to_consumer = tr_doorbell_create();
    d.to_producer = tr_doorbell_create();
    assert_int_equal(pthread_create(&thread, NULL, body_produce, &d), 0);
    while (rec.flags & TR_FLAG_MORE) {
        tr_status_t rc = tr_ring_get(&d.ring.c, &rec, d.ring.buf, d.ring.max);

        if (rc == TR_OK) {
            for (i = 0; i < rec.length; i++) {
                if (d.ring.buf[i] != body_byte(at + i)) {
                    fail_msg("byte %u is wrong", at + i);
                }
            }
            at += rec.length;
            parts++;
        }
        if (tr_ring_release(&d.ring.c)) {
            tr_doorbell_ring(d.to_producer);
        }
        if (rc == TR_AGAIN) {
            rec.flags = TR_FLAG_MORE;
            if (tr_ring_sleep(&d.ring.c) == TR_AGAIN) {
                assert_true(duo_wait(d.to_consumer));
            }
        }
    }
    pthread_join(thread, NULL);
    assert_int_equal(at, BODY_BYTES);
    assert_int_equal(parts, (BODY_BYTES + d.ring.max - 1) / d.ring.max);
    close(d.to_consumer);
    close(d.to_producer);
    ring_free(&d.ring);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_at_every_offset),
        cmocka_unit_test(test_space_is_exact),
        cmocka_unit_test(test_full_to_the_last_byte),
        cmocka_unit_test(test_too_large_is_refused),
        cmocka_unit_test(test_staged_is_invisible_until_published),
        cmocka_unit_test(test_closed),
        cmocka_unit_test(test_doorbell_edge),
        cmocka_unit_test(test_waiting_for_space_edge),
        cmocka_unit_test(test_impossible_tail_is_refused),
        cmocka_unit_test(test_tail_may_not_go_back),
        cmocka_unit_test(test_impossible_head_is_refused),
        cmocka_unit_test(test_impossible_records_are_refused),
        cmocka_unit_test(test_nothing_but_pads),
        cmocka_unit_test(test_noise_is_survived),
        cmocka_unit_test(test_two_threads),
        cmocka_unit_test(test_large_body_in_parts),
    };

    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
