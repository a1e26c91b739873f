/*
 * Layout and bodies of ring.h, which includes this.
 */
#ifndef TOKENRING_RING_INLINE_H
#define TOKENRING_RING_INLINE_H

#include <stddef.h>
#include <string.h>

#include <tokenring/ring.h>

_Static_assert(sizeof(tr_ring_shared_t) == 256, "ring header is four lines");
_Static_assert(offsetof(tr_ring_shared_t, head) == 64, "head has its line");
_Static_assert(offsetof(tr_ring_shared_t, consumer_asleep) == 128, "line 2");
_Static_assert(offsetof(tr_ring_shared_t, producer_waiting) == 192, "line 3");
_Static_assert(sizeof(tr_record_t) == 16, "record header is 16 bytes");

static inline uint64_t
tr_ring_align8(uint64_t n)
{
    return (n + 7) & ~(uint64_t) 7;
}

static inline void
tr_ring_producer_init(tr_ring_producer_t *p, tr_ring_shared_t *shared,
                      void *data, uint32_t capacity)
{
    memset(p, 0, sizeof(*p));
    p->shared = shared;
    p->data = (uint8_t *) data;
    p->capacity = capacity;
}

static inline void
tr_ring_consumer_init(tr_ring_consumer_t *c, tr_ring_shared_t *shared,
                      const void *data, uint32_t capacity)
{
    memset(c, 0, sizeof(*c));
    c->shared = shared;
    c->data = (const uint8_t *) data;
    c->capacity = capacity;
}

static inline uint32_t
tr_ring_max_payload(uint32_t capacity)
{
    return capacity / 4 - (uint32_t) sizeof(tr_record_t);
}

/* Reads and checks the consumer's index: it may only move forward, in steps of
 * 8, and never past what was published. */
static inline tr_status_t
tr_ring_refresh_head(tr_ring_producer_t *p, memory_order order)
{
    uint64_t head = atomic_load_explicit(&p->shared->head, order);

    if (head < p->head || head > p->published || (head & 7) != 0) {
        return TR_ERR_PROTOCOL;
    }
    p->head = head;
    return TR_OK;
}

/* Bytes that a record of `len` payload bytes takes at the present tail: the
 * record itself, and the PAD before it when it would wrap. */
static inline uint64_t
tr_ring_footprint(const tr_ring_producer_t *p, uint32_t len, uint64_t *pad)
{
    uint64_t size = sizeof(tr_record_t) + tr_ring_align8(len);
    uint64_t at = p->tail & (p->capacity - 1);

    *pad = (at + size > p->capacity) ? p->capacity - at : 0;
    return size + *pad;
}

static inline tr_status_t
tr_ring_put(tr_ring_producer_t *p, uint16_t type, uint16_t flags, uint64_t id,
            const tr_ring_piece_t *pieces, unsigned n)
{
    uint64_t len = 0, pad, need;
    uint8_t *at;
    unsigned i;
    tr_record_t rec;

    for (i = 0; i < n; i++) {
        if (pieces[i].len > tr_ring_max_payload(p->capacity) - len) {
            return TR_ERR_TOO_LARGE;
        }
        len += pieces[i].len;
    }
    need = tr_ring_footprint(p, (uint32_t) len, &pad);
    if (need > p->capacity - (p->tail - p->head)) {
        tr_status_t rc = tr_ring_refresh_head(p, memory_order_acquire);

        if (rc != TR_OK) {
            return rc;
        }
        if (need > p->capacity - (p->tail - p->head)) {
            return TR_AGAIN;
        }
    }
    memset(&rec, 0, sizeof(rec));
    if (pad != 0) {
        /* pad is a multiple of 8; below 16 only the first word fits, which is
         * enough for length and type */
        rec.length = (uint32_t) pad;
        rec.type = TR_RECORD_PAD;
        memcpy(p->data + (p->tail & (p->capacity - 1)), &rec, 8);
        p->tail += pad;
    }
    rec.length = (uint32_t) len;
    rec.type = type;
    rec.flags = flags;
    rec.id = id;
    at = p->data + (p->tail & (p->capacity - 1));
    memcpy(at, &rec, sizeof(rec));
    at += sizeof(rec);
    for (i = 0; i < n; i++) {
        if (pieces[i].len != 0) {
            memcpy(at, pieces[i].base, pieces[i].len);
            at += pieces[i].len;
        }
    }
    p->tail += sizeof(rec) + tr_ring_align8(len);
    return TR_OK;
}

static inline uint32_t
tr_ring_space(tr_ring_producer_t *p)
{
    uint64_t free_bytes, at, to_end, best;

    if (tr_ring_refresh_head(p, memory_order_acquire) != TR_OK) {
        return 0;
    }
    free_bytes = p->capacity - (p->tail - p->head);
    at = p->tail & (p->capacity - 1);
    to_end = p->capacity - at;
    best = free_bytes < to_end ? free_bytes : to_end;
    if (free_bytes > to_end && free_bytes - to_end > best) {
        best = free_bytes - to_end; /* behind a PAD */
    }
    if (best <= sizeof(tr_record_t)) {
        return 0;
    }
    best -= sizeof(tr_record_t);
    return best < tr_ring_max_payload(p->capacity)
               ? (uint32_t) best
               : tr_ring_max_payload(p->capacity);
}

static inline int
tr_ring_wakes_consumer(tr_ring_producer_t *p)
{
    /* a plain look first: the exchange would take the line from a busy peer */
    if (atomic_load_explicit(&p->shared->consumer_asleep, memory_order_seq_cst)
        == 0) {
        return 0;
    }
    return atomic_exchange_explicit(&p->shared->consumer_asleep, 0,
                                    memory_order_seq_cst)
           == 1;
}

static inline int
tr_ring_publish(tr_ring_producer_t *p)
{
    if (p->tail == p->published) {
        return 0;
    }
    p->published = p->tail;
    atomic_store_explicit(&p->shared->tail, p->tail, memory_order_seq_cst);
    return tr_ring_wakes_consumer(p);
}

static inline void
tr_ring_close(tr_ring_shared_t *shared)
{
    atomic_fetch_or_explicit(&shared->tail, TR_RING_CLOSED,
                             memory_order_seq_cst);
}

static inline int
tr_ring_publish_open(tr_ring_producer_t *p)
{
    uint64_t shown = p->published;

    if (p->tail == p->published) {
        return 0;
    }
    if (!atomic_compare_exchange_strong_explicit(&p->shared->tail, &shown,
                                                 p->tail, memory_order_seq_cst,
                                                 memory_order_seq_cst)) {
        return -1;
    }
    p->published = p->tail;
    return tr_ring_wakes_consumer(p);
}

static inline uint8_t *
tr_ring_staged(tr_ring_producer_t *p, uint64_t *at)
{
    uint8_t *record;
    uint32_t length;
    uint16_t type;

    while (*at != p->tail) {
        record = p->data + (*at & (p->capacity - 1));
        memcpy(&length, record + offsetof(tr_record_t, length), sizeof(length));
        memcpy(&type, record + offsetof(tr_record_t, type), sizeof(type));
        if (type != TR_RECORD_PAD) {
            *at += sizeof(tr_record_t) + tr_ring_align8(length);
            return record;
        }
        *at += length;
    }
    return NULL;
}

static inline tr_status_t
tr_ring_wait_space(tr_ring_producer_t *p, uint32_t need)
{
    uint64_t pad, want;
    tr_status_t rc;

    if (need > tr_ring_max_payload(p->capacity)) {
        return TR_ERR_TOO_LARGE;
    }
    atomic_store_explicit(&p->shared->producer_waiting, 1,
                          memory_order_seq_cst);
    rc = tr_ring_refresh_head(p, memory_order_seq_cst);
    if (rc != TR_OK) {
        return rc;
    }
    want = tr_ring_footprint(p, need, &pad);
    if (want > p->capacity - (p->tail - p->head)) {
        return TR_AGAIN;
    }
    atomic_store_explicit(&p->shared->producer_waiting, 0,
                          memory_order_seq_cst);
    return TR_OK;
}

/* Reads and checks the producer's index: forward, in steps of 8, and at most
 * the capacity ahead of what was released. */
static inline tr_status_t
tr_ring_refresh_tail(tr_ring_consumer_t *c, memory_order order)
{
    uint64_t tail = atomic_load_explicit(&c->shared->tail, order);

    tail &= ~(uint64_t) TR_RING_CLOSED;
    if (tail < c->tail || tail - c->released > c->capacity || (tail & 7) != 0) {
        return TR_ERR_PROTOCOL;
    }
    c->tail = tail;
    return TR_OK;
}

static inline tr_status_t
tr_ring_look(tr_ring_consumer_t *c)
{
    tr_status_t rc;

    if (c->head == c->tail) {
        rc = tr_ring_refresh_tail(c, memory_order_acquire);
        if (rc != TR_OK) {
            return rc;
        }
    }
    return c->head == c->tail ? TR_AGAIN : TR_OK;
}

static inline tr_status_t
tr_ring_next(tr_ring_consumer_t *c, tr_record_t *rec, void *buf, size_t size)
{
    while (c->head != c->tail) {
        uint64_t have = c->tail - c->head;
        uint64_t at = c->head & (c->capacity - 1);
        uint64_t to_end = c->capacity - at;

        /* The header is copied out once and only the copy is looked at; the
         * fence keeps the compiler from going back to the peer's memory. */
        memset(rec, 0, sizeof(*rec));
        memcpy(rec, c->data + at, to_end < 16 ? 8 : sizeof(*rec));
        atomic_signal_fence(memory_order_seq_cst);

        if (rec->type == TR_RECORD_PAD) {
            if (rec->length != to_end || to_end > have) {
                return TR_ERR_PROTOCOL;
            }
            c->head += to_end;
            continue;
        }
        if (to_end < sizeof(*rec) || rec->length > to_end - sizeof(*rec)
            || rec->length > tr_ring_max_payload(c->capacity)
            || rec->length > size
            || sizeof(*rec) + tr_ring_align8(rec->length) > have) {
            return TR_ERR_PROTOCOL;
        }
        memcpy(buf, c->data + at + sizeof(*rec), rec->length);
        c->head += sizeof(*rec) + tr_ring_align8(rec->length);
        return TR_OK;
    }
    return TR_AGAIN;
}

static inline tr_status_t
tr_ring_get(tr_ring_consumer_t *c, tr_record_t *rec, void *buf, size_t size)
{
    tr_status_t rc;

    do {
        rc = tr_ring_look(c);
        if (rc == TR_OK) {
            rc = tr_ring_next(c, rec, buf, size);
        } else {
            return rc;
        }
    } while (rc == TR_AGAIN); /* it was a PAD */
    return rc;
}

static inline int
tr_ring_release(tr_ring_consumer_t *c)
{
    if (c->head == c->released) {
        return 0;
    }
    c->released = c->head;
    atomic_store_explicit(&c->shared->head, c->head, memory_order_seq_cst);
    if (atomic_load_explicit(&c->shared->producer_waiting, memory_order_seq_cst)
        == 0) {
        return 0;
    }
    return atomic_exchange_explicit(&c->shared->producer_waiting, 0,
                                    memory_order_seq_cst)
           == 1;
}

static inline tr_status_t
tr_ring_sleep(tr_ring_consumer_t *c)
{
    tr_status_t rc;

    atomic_store_explicit(&c->shared->consumer_asleep, 1, memory_order_seq_cst);
    rc = tr_ring_refresh_tail(c, memory_order_seq_cst);
    if (rc != TR_OK) {
        return rc;
    }
    if (c->tail == c->head) {
        return TR_AGAIN;
    }
    atomic_store_explicit(&c->shared->consumer_asleep, 0, memory_order_seq_cst);
    return TR_OK;
}

static inline void
tr_ring_awake(tr_ring_consumer_t *c)
{
    if (atomic_load_explicit(&c->shared->consumer_asleep, memory_order_relaxed)
        != 0) {
        atomic_store_explicit(&c->shared->consumer_asleep, 0,
                              memory_order_relaxed);
    }
}

#endif
