/*
 * What the ring tests share: a ring in ordinary memory whose indices begin at
 * any offset, numbered records whose length and bytes follow from their number,
 * and a small generator of pseudo-random numbers (same seed, same test).
 */
#ifndef RING_FIXTURE_H
#define RING_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tokenring/channel.h>
#include <tokenring/ring.h>

typedef struct {
    tr_ring_shared_t *shared;
    uint8_t *data;
    uint32_t capacity;
    tr_ring_producer_t p;
    tr_ring_consumer_t c;
    uint8_t *buf; /* tr_ring_max_payload bytes, exactly */
    uint32_t max;
} ring_t;

/* Both sides agree that `start` bytes have passed. */
static inline void
ring_begin(ring_t *r, uint64_t start)
{
    atomic_store(&r->shared->tail, start);
    atomic_store(&r->shared->head, start);
    atomic_store(&r->shared->consumer_asleep, 0);
    atomic_store(&r->shared->producer_waiting, 0);
    tr_ring_producer_init(&r->p, r->shared, r->data, r->capacity);
    tr_ring_consumer_init(&r->c, r->shared, r->data, r->capacity);
    r->p.tail = r->p.published = r->p.head = start;
    r->c.head = r->c.released = r->c.tail = start;
}

static inline void
ring_make(ring_t *r, uint32_t capacity)
{
    r->capacity = capacity;
    r->max = tr_ring_max_payload(capacity);
    r->shared = aligned_alloc(TR_CACHE_LINE, sizeof(*r->shared));
    r->data = aligned_alloc(TR_CACHE_LINE, capacity);
    r->buf = malloc(r->max);
    assert_non_null(r->shared);
    assert_non_null(r->data);
    assert_non_null(r->buf);
    memset(r->shared, 0, sizeof(*r->shared));
    memset(r->data, 0, capacity);
    ring_begin(r, 0);
}

static inline void
ring_free(ring_t *r)
{
    free(r->shared);
    free(r->data);
    free(r->buf);
}

/* splitmix64 */
static inline uint64_t
ring_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Record number n: its length (mostly short, sometimes the longest) ... */
static inline uint32_t
ring_length(uint64_t n, uint32_t max)
{
    uint64_t state = n, x = ring_random(&state);

    if ((x & 63) == 0) {
        return max;
    }
    return (uint32_t) ((x >> 8) % ((x & 7) == 0 ? max + 1 : 65));
}

/* ... and its bytes. */
static inline void
ring_fill(uint64_t n, uint8_t *at, uint32_t len)
{
    uint32_t i;

    for (i = 0; i < len; i++) {
        at[i] = (uint8_t) (n * 131 + i * 7 + (n >> 8));
    }
}

static inline int
ring_matches(uint64_t n, const uint8_t *at, uint32_t len)
{
    uint32_t i;

    for (i = 0; i < len; i++) {
        if (at[i] != (uint8_t) (n * 131 + i * 7 + (n >> 8))) {
            return 0;
        }
    }
    return 1;
}

/* Stages record n, in three pieces of uneven length. */
static inline tr_status_t
ring_put_number(tr_ring_producer_t *p, uint64_t n, uint32_t len,
                uint8_t *scratch)
{
    uint32_t first = len / 3, second = len / 2 - first;
    tr_ring_piece_t pieces[3];

    ring_fill(n, scratch, len);
    pieces[0] = (tr_ring_piece_t){ scratch, first };
    pieces[1] = (tr_ring_piece_t){ scratch + first, second };
    pieces[2] = (tr_ring_piece_t){ scratch + first + second,
                                   len - first - second };
    return tr_ring_put(p, (uint16_t) (n % 1000), (uint16_t) (n & 1),
                       n << 32 | (n & 0xffff), pieces, 3);
}

/* Is this record n, whole? */
static inline int
ring_is_number(const tr_record_t *rec, const uint8_t *payload, uint64_t n,
               uint32_t len)
{
    return rec->length == len && rec->type == n % 1000 && rec->flags == (n & 1)
           && rec->id == (n << 32 | (n & 0xffff))
           && ring_matches(n, payload, len);
}

#endif
