/*
 * The ring: one producer, one consumer, records of any length.
 *
 * A ring is a power-of-two byte array in shared memory and four cache lines of
 * indices and flags.  Indices count bytes since the start and are masked on
 * use, so full and empty differ, and a hostile index is noticed: it may only
 * grow, and never runs more than the capacity ahead.
 *
 * A record is a 16-byte header and a payload, aligned to 8 bytes.  It never
 * wraps: a PAD record fills the end of the array instead.  A payload is at most
 * capacity / 4 - 16 bytes; longer bodies go in parts (TR_FLAG_MORE).
 *
 *   put, put ... publish  ->  [ shared memory ]  ->  get, get ... release
 *
 * tr_ring_put stages records that the consumer cannot see; tr_ring_publish
 * shows all of them with one store.  tr_ring_get consumes privately;
 * tr_ring_release gives the space back.  Each side keeps its own index in
 * private memory and checks what it reads of the other's: TR_ERR_PROTOCOL means
 * that the channel must be closed.
 *
 * A doorbell (a write to an eventfd) is needed only when the other side has
 * said that it sleeps.  The consumer sets consumer_asleep, looks at the index
 * once more, and sleeps only if nothing came; the producer publishes, takes the
 * flag, and rings if it was set.  These steps are seq_cst.  A producer that
 * waits for space does the same with producer_waiting.  Both sides start awake.
 * Release before you sleep, and publish before you wait for space, or the two
 * sides wait for each other.
 */
#ifndef TOKENRING_RING_H
#define TOKENRING_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <tokenring/error.h>

#define TR_RING_MIN 4096u       /* bytes, smallest capacity */
#define TR_RING_MAX (64u << 20) /* bytes, largest capacity */
#define TR_CACHE_LINE 64

/* In shared memory, 256 bytes: one cache line a field. */
typedef struct {
    /* written by the producer: bytes published */
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t tail;
    uint8_t pad0[TR_CACHE_LINE - 8];
    /* written by the consumer: bytes released */
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t head;
    uint8_t pad1[TR_CACHE_LINE - 8];
    /* the consumer sets 1, the producer takes it back to 0 */
    _Alignas(TR_CACHE_LINE) _Atomic uint32_t consumer_asleep;
    uint8_t pad2[TR_CACHE_LINE - 4];
    /* the producer sets 1, the consumer takes it back to 0 */
    _Alignas(TR_CACHE_LINE) _Atomic uint32_t producer_waiting;
    uint8_t pad3[TR_CACHE_LINE - 4];
} tr_ring_shared_t;

#define TR_RECORD_PAD 0xffffu
#define TR_FLAG_MORE 0x0001u /* more parts of this body follow */

/* Record header, 16 bytes, written by the producer. */
typedef struct {
    uint32_t length; /* bytes of payload, without header and padding */
    uint16_t type;   /* enum tr_record_type (wire.h), or TR_RECORD_PAD */
    uint16_t flags;  /* TR_FLAG_* */
    uint64_t id;     /* of the request: TR_ID (wire.h) */
} tr_record_t;

/* Private to the producer; shared and data are borrowed. */
typedef struct {
    tr_ring_shared_t *shared;
    uint8_t *data; /* capacity bytes */
    uint32_t capacity;
    uint64_t tail;      /* staged */
    uint64_t published; /* what the consumer has been shown */
    uint64_t head;      /* last checked value of the consumer's */
} tr_ring_producer_t;

/* Private to the consumer; shared and data are borrowed. */
typedef struct {
    tr_ring_shared_t *shared;
    const uint8_t *data;
    uint32_t capacity;
    uint64_t head;     /* consumed */
    uint64_t released; /* what the producer has been shown */
    uint64_t tail;     /* last checked value of the producer's */
} tr_ring_consumer_t;

/* A piece of a payload. */
typedef struct {
    const void *base;
    size_t len;
} tr_ring_piece_t;

/* capacity: a power of two in [TR_RING_MIN, TR_RING_MAX].  Starts empty. */
static inline void tr_ring_producer_init(tr_ring_producer_t *p,
                                         tr_ring_shared_t *shared, void *data,
                                         uint32_t capacity);
static inline void tr_ring_consumer_init(tr_ring_consumer_t *c,
                                         tr_ring_shared_t *shared,
                                         const void *data, uint32_t capacity);

/* Largest payload of one record. */
static inline uint32_t tr_ring_max_payload(uint32_t capacity);

/* Producer: stages one record of n pieces.  TR_AGAIN: no space, nothing staged;
 * TR_ERR_TOO_LARGE: over tr_ring_max_payload; TR_ERR_PROTOCOL. */
static inline tr_status_t tr_ring_put(tr_ring_producer_t *p, uint16_t type,
                                      uint16_t flags, uint64_t id,
                                      const tr_ring_piece_t *pieces,
                                      unsigned n);

/* Bytes of payload that tr_ring_put would take now, 0 when none. */
static inline uint32_t tr_ring_space(tr_ring_producer_t *p);

/* Shows what was staged.  1: the consumer sleeps and must be rung. */
static inline int tr_ring_publish(tr_ring_producer_t *p);

/* Consumer: what is published from now on is not taken.  What was published
 * before still is.  The producer, where it must know which of both: the same as
 * tr_ring_publish, or -1: it is not taken, nor is anything behind it. */
#define TR_RING_CLOSED 1u /* in the producer's index, of multiples of 8 */
static inline void tr_ring_close(tr_ring_shared_t *shared);
static inline int tr_ring_publish_open(tr_ring_producer_t *p);

/* The records that were staged and not published, one after the other, from
 * *at, at first p->published, on; NULL: no more.  They may be changed. */
static inline uint8_t *tr_ring_staged(tr_ring_producer_t *p, uint64_t *at);

/* TR_AGAIN: wait, the doorbell will ring when space was released; TR_OK: `need`
 * bytes of payload are free already, do not wait; TR_ERR_PROTOCOL. */
static inline tr_status_t tr_ring_wait_space(tr_ring_producer_t *p,
                                             uint32_t need);

/* Consumer: copies the next record to *rec and buf (tr_ring_max_payload bytes
 * are enough).  TR_AGAIN: empty; TR_ERR_PROTOCOL. */
static inline tr_status_t tr_ring_get(tr_ring_consumer_t *c, tr_record_t *rec,
                                      void *buf, size_t size);

/* The two halves of tr_ring_get: look notes what was published (TR_OK,
 * TR_AGAIN, TR_ERR_PROTOCOL), next takes of what was noted, and no more. */
static inline tr_status_t tr_ring_look(tr_ring_consumer_t *c);
static inline tr_status_t tr_ring_next(tr_ring_consumer_t *c, tr_record_t *rec,
                                       void *buf, size_t size);

/* Gives consumed space back.  1: the producer waits for it and must be rung. */
static inline int tr_ring_release(tr_ring_consumer_t *c);

/* TR_AGAIN: sleep, the doorbell will ring; TR_OK: records are there, do not
 * sleep; TR_ERR_PROTOCOL. */
static inline tr_status_t tr_ring_sleep(tr_ring_consumer_t *c);

/* After waking up for another reason: no doorbell is needed now. */
static inline void tr_ring_awake(tr_ring_consumer_t *c);

#include <tokenring/ring_inline.h>

#endif
