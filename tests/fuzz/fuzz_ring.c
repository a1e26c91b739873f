/*
 * Fuzzes both sides of a ring whose other side is hostile.  An input is a list
 * of operations, one byte each with its operands; between them the peer writes
 * what it likes into data and indices.  The ring must answer every call, stay
 * inside its memory (ASan watches the buffers, which have exactly their sizes),
 * and keep its private indices sane.
 */
#include <assert.h>
#include <stdlib.h>

#include <tokenring/ring.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CAPACITY TR_RING_MIN

typedef struct {
    const uint8_t *at;
    size_t left;
} input_t;

static uint64_t
take(input_t *in, size_t n)
{
    uint64_t v = 0;

    if (n > in->left) {
        n = in->left;
    }
    memcpy(&v, in->at, n);
    in->at += n;
    in->left -= n;
    return v;
}

typedef struct {
    tr_ring_shared_t *shared;
    uint8_t *data, *buf;
    uint32_t max;
    tr_ring_producer_t p;
    tr_ring_consumer_t c;
} ring_t;

/* The peer's next claim: near the truth, or anything. */
static uint64_t
claim(input_t *in, uint64_t truth)
{
    uint64_t v = take(in, 2);

    return v & 0x8000 ? take(in, 8) : truth + (v & 0x1fff);
}

static void
hostile(ring_t *r, input_t *in, unsigned what)
{
    uint64_t place, word;

    switch (what) {
    case 0:
        atomic_store(&r->shared->tail, claim(in, r->c.head));
        break;
    case 1:
        atomic_store(&r->shared->head, claim(in, r->p.head));
        break;
    case 2:
        place = take(in, 2) % (CAPACITY / 8) * 8;
        word = take(in, 8);
        memcpy(r->data + place, &word, 8);
        break;
    default: /* a header where the reader looks next */
        place = r->c.head & (CAPACITY - 1);
        word = take(in, 8);
        memcpy(r->data + place, &word, 8);
        break;
    }
}

static tr_status_t
consume(ring_t *r, unsigned what)
{
    tr_record_t rec;
    tr_status_t rc;

    switch (what) {
    case 0:
        rc = tr_ring_get(&r->c, &rec, r->buf, r->max);
        assert(rc != TR_OK || rec.length <= r->max);
        break;
    case 1:
        tr_ring_release(&r->c);
        rc = TR_OK;
        break;
    case 2: /* in two steps, as the inbox does it */
        rc = tr_ring_look(&r->c);
        if (rc == TR_OK) {
            rc = tr_ring_next(&r->c, &rec, r->buf, r->max);
            assert(rc != TR_OK || rec.length <= r->max);
        }
        break;
    default:
        rc = tr_ring_sleep(&r->c);
        break;
    }
    assert(rc == TR_OK || rc == TR_AGAIN || rc == TR_ERR_PROTOCOL);
    assert(r->c.released <= r->c.head && r->c.head <= r->c.tail);
    assert(r->c.tail - r->c.released <= CAPACITY);
    return rc;
}

static tr_status_t
produce(ring_t *r, input_t *in, unsigned what)
{
    tr_ring_piece_t piece = { r->buf, take(in, 2) % (r->max + 2) };
    uint32_t space;
    tr_status_t rc = TR_OK;

    switch (what) {
    case 0:
        rc = tr_ring_put(&r->p, (uint16_t) take(in, 1), 0, 1, &piece,
                         piece.len <= r->max);
        assert(rc != TR_ERR_TOO_LARGE);
        break;
    case 1:
        tr_ring_publish(&r->p);
        break;
    case 2:
        space = tr_ring_space(&r->p);
        assert(space <= r->max);
        break;
    default:
        rc = tr_ring_wait_space(&r->p, (uint32_t) piece.len);
        assert((rc == TR_ERR_TOO_LARGE) == (piece.len > r->max));
        rc = rc == TR_ERR_TOO_LARGE ? TR_OK : rc;
        break;
    }
    assert(r->p.head <= r->p.published && r->p.published <= r->p.tail);
    assert(r->p.tail - r->p.head <= CAPACITY);
    return rc;
}

/* Both sides work on the same memory, but at places of their own: what one
 * publishes is one more hostile claim for the other. */
static void
run(ring_t *r, input_t *in)
{
    while (in->left != 0) {
        unsigned op = (unsigned) take(in, 1) % 12;
        tr_status_t rc = TR_OK;

        if (op < 4) {
            hostile(r, in, op);
        } else if (op < 8) {
            rc = consume(r, op - 4);
        } else {
            rc = produce(r, in, op - 8);
        }
        if (rc == TR_ERR_PROTOCOL) {
            return; /* the channel is closed */
        }
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = { data, size };
    uint64_t start;
    ring_t r;

    r.max = tr_ring_max_payload(CAPACITY);
    r.shared = aligned_alloc(TR_CACHE_LINE, sizeof(*r.shared));
    r.data = calloc(1, CAPACITY);
    r.buf = calloc(1, r.max);
    memset(r.shared, 0, sizeof(*r.shared));
    tr_ring_producer_init(&r.p, r.shared, r.data, CAPACITY);
    tr_ring_consumer_init(&r.c, r.shared, r.data, CAPACITY);
    start = take(&in, 2) * 8;
    r.p.tail = r.p.published = r.p.head = start;
    r.c.head = r.c.released = r.c.tail = start;
    atomic_store(&r.shared->tail, start);
    atomic_store(&r.shared->head, start);
    run(&r, &in);
    free(r.shared);
    free(r.data);
    free(r.buf);
    return 0;
}
