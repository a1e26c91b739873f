/*
 * A channel: what one NGINX worker shares with one engine.
 *
 * The engine makes a memfd, seals it, and passes it over its Unix socket
 * (handshake.h) with two eventfds, one doorbell each way, and the status page.
 * The receiver checks seals and size before it maps.  The socket stays open:
 * when it hangs up, the other side is gone.  The command line takes a channel
 * as a worker does, and what is said of workers here holds for it.
 *
 * The memfd: a header page, with the pulse behind the header, the control
 * words, the allowances, the dirty bitmap of both, three rings.
 *
 *   ring       from, to                   records (wire.h)
 *   requests   worker -> frontend thread  SUBMIT
 *   answers    frontend thread -> worker  ACCEPTED, or the end of one that
 *                                         the step loop never had
 *   responses  step loop -> worker        STARTED, DELTA, FINISH, ERROR
 *
 * The engine publishes ACCEPTED before its step loop learns of the request.  So
 * a worker that looks at the responses, then takes all answers, and then what
 * it saw of the responses never meets output without its ACCEPTED; that is
 * tr_inbox_get.
 *
 * Control words.  Each request owns slot TR_ID_SLOT(id).  The worker writes
 * generation << 32 | ABORT | PAUSE | DETACH | .. with one store, sets the slot's
 * dirty bit, and rings if the engine sleeps; no space in a ring is needed.  The
 * engine takes the dirty bits with an exchange and reads the words.  It reads
 * the word once more when a SUBMIT is complete, since the word can overtake the
 * body.  A slot is used again, with the next generation (the first is 1), only
 * after FINISH with LAST, or ERROR.
 *
 * Allowances.  Of a request with TR_SUBMIT_METERED the worker says beside the
 * control word how many tokens may be sampled, over all its choices and with
 * those of a replay block: generation << 32 | tokens.  It only grows.  The engine
 * never samples one more, also ahead of what it has told; a request that has
 * spent it waits, with its cache, until the worker raises it or says END.
 *
 * Pulse.  A worker that wonders whether the engine lives counts `ping` up and
 * rings.  The frontend thread copies the word to pong_front at its next turn,
 * and to pong_loop once the step loop has begun a turn.
 *
 * Needs _GNU_SOURCE (memfd_create, seals) before the first system header.
 */
#ifndef TOKENRING_CHANNEL_H
#define TOKENRING_CHANNEL_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>

#include <tokenring/error.h>
#include <tokenring/handshake.h>
#include <tokenring/ring.h>
#include <tokenring/status.h>

#define TR_CHANNEL_SLOTS_MAX 65536u
#define TR_CHANNEL_SLOTS_DEFAULT 4096u
#define TR_CHANNEL_RING_DEFAULT (1u << 20) /* bytes */
#define TR_CHANNEL_ANSWERS (64u << 10)     /* bytes of the ring of answers */

/* Nobody can resize a channel.  When both sides have mapped it the worker,
 * whose mapping is the second one, adds the rest: then nobody can map it for
 * writing any more, nor punch holes into it, whose pages might be missing when
 * they are touched (a SIGBUS); the engine takes no request before.  The status
 * page has all seals at once: nobody can write it but the engine, through the
 * mapping that it made before sealing. */
#define TR_CHANNEL_SEALS (F_SEAL_GROW | F_SEAL_SHRINK)
#define TR_CHANNEL_SEALS_LAST (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define TR_STATUS_SEALS (TR_CHANNEL_SEALS | TR_CHANNEL_SEALS_LAST)

#define TR_CONTROL_ABORT 0x1u
#define TR_CONTROL_PAUSE 0x2u
/* The client of a TR_SUBMIT_DETACH request has left: send only its end. */
#define TR_CONTROL_DETACH 0x4u
/* The worker has not kept what a move takes: a drain that moves requests lets
 * this one end here. */
#define TR_CONTROL_STAY 0x8u
/* No more will be allowed of a TR_SUBMIT_METERED request: its choices end as at
 * their length, with TR_FINISH_CUT; at once, or, with DETACH, when it has spent
 * what it may. */
#define TR_CONTROL_END 0x10u

/* First page of the memfd; written by the engine, before it is shared. */
typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t slots; /* multiple of 64 */
    uint64_t size;  /* of the whole memfd */
    uint64_t generation;
    uint64_t control_offset; /* _Atomic uint64_t[slots]; the worker writes */
    uint64_t allow_offset;   /* _Atomic uint64_t[slots]; the worker writes */
    uint64_t dirty_offset;   /* _Atomic uint64_t[slots / 64]; the worker sets,
                              * the engine takes */
    uint64_t request_offset; /* tr_ring_shared_t, then data */
    uint64_t answer_offset;
    uint64_t response_offset;
    uint32_t request_capacity, answer_capacity, response_capacity;
    uint32_t reserved;
} tr_channel_header_t;

#define TR_CHANNEL_PULSE 1024 /* offset in the header page */

typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t ping; /* the worker writes */
    _Atomic uint64_t fenced; /* the worker: its requests go on elsewhere */
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t pong_front; /* the engine */
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t pong_loop;
} tr_channel_pulse_t;

/* Either side's private view. */
typedef struct {
    tr_channel_header_t *map; /* shared: not read again after attach */
    tr_channel_pulse_t *pulse;
    uint64_t pinged; /* engine: the last ping that it has seen */
    size_t size;     /* bytes mapped there */
    uint32_t slots;
    uint64_t generation;
    _Atomic uint64_t *control, *allow;
    _Atomic uint64_t *dirty;
    tr_ring_shared_t *request, *answer, *response;
    uint8_t *request_data, *answer_data, *response_data;
    uint32_t request_capacity, answer_capacity, response_capacity;
} tr_channel_map_t;

/* Engine: makes a channel.  Sizes are rounded up to powers of two (rings) and
 * multiples of 64 (slots) and bounded; 0 means the default.  Worker: checks
 * seals, size and header of a received memfd, then maps it.  fd is the caller's
 * in both cases. */
static inline tr_status_t tr_channel_create(uint32_t slots,
                                            uint32_t request_capacity,
                                            uint32_t response_capacity,
                                            uint64_t generation,
                                            tr_channel_map_t *out, int *fd);
static inline tr_status_t tr_channel_attach(int fd, tr_channel_map_t *out);
static inline void tr_channel_unmap(tr_channel_map_t *map);
/* Engine: has the worker added its seals? */
static inline int tr_channel_sealed(int fd);

/* The same for the status page.  The engine fills in the card before the first
 * welcome, and has the only mapping that can be written. */
static inline tr_status_t tr_status_create(uint64_t generation,
                                           tr_status_page_t **out, int *fd);
static inline tr_status_t tr_status_attach(int fd,
                                           const tr_status_page_t **out);
static inline void tr_status_unmap(const tr_status_page_t *page);

/* Doorbells: non-blocking eventfds; one whose counter is full has been rung. */
static inline int tr_doorbell_create(void);
static inline void tr_doorbell_ring(int fd);
static inline void tr_doorbell_drain(int fd);

/* Worker: asks the engine for its pongs.  1: ring the engine.  Is that answered,
 * by the frontend thread, by the loop? */
static inline int tr_channel_ping(tr_channel_map_t *map);
static inline int tr_channel_front_answers(const tr_channel_map_t *map);
static inline int tr_channel_loop_answers(const tr_channel_map_t *map);

/* Worker, before it closes a channel: what its requests that can move have been
 * told until now is all that they were told here.  Engine: is it so? */
static inline void tr_channel_fence(tr_channel_map_t *map);
static inline int tr_channel_fenced(const tr_channel_map_t *map);

/* Engine: 1 when there is a new ping, which pong_front then answers;
 * tr_channel_pong answers it for the loop. */
static inline int tr_channel_pinged(tr_channel_map_t *map);
static inline void tr_channel_pong(tr_channel_map_t *map);

/* Engine: tr_ring_sleep for the ring of requests, the control words and the
 * pulse, which share a doorbell.  TR_OK: records, dirty bits or a ping are
 * there, do not sleep. */
static inline tr_status_t tr_channel_sleep(tr_channel_map_t *map,
                                           tr_ring_consumer_t *requests);

/* Worker: both rings that come from the engine, in the order told above.  The
 * calls do what those of ring.h with these names do. */
typedef struct {
    tr_ring_consumer_t answers;
    tr_ring_consumer_t responses;
} tr_inbox_t;

static inline void tr_inbox_init(tr_inbox_t *in, const tr_channel_map_t *map);
static inline uint32_t tr_inbox_max_payload(const tr_channel_map_t *map);
static inline tr_status_t tr_inbox_get(tr_inbox_t *in, tr_record_t *rec,
                                       void *buf, size_t size);
static inline int tr_inbox_release(tr_inbox_t *in);
static inline tr_status_t tr_inbox_sleep(tr_inbox_t *in);
static inline void tr_inbox_awake(tr_inbox_t *in);

/* Worker: sets the control word of a request.  1: ring the engine. */
static inline int tr_control_set(tr_channel_map_t *map, uint64_t id,
                                 uint32_t bits);

/* Engine: the control word's bits, 0 when it is of another generation. */
static inline uint32_t tr_control_get(const tr_channel_map_t *map, uint64_t id);

/* Worker: the request may have so many tokens, from 0 on.  Before its SUBMIT and
 * whenever that grows.  1: ring the engine. */
static inline int tr_allow_set(tr_channel_map_t *map, uint64_t id,
                               uint32_t tokens);

/* Engine: that, 0 when it is of another generation. */
static inline uint32_t tr_allow_get(tr_channel_map_t *map, uint64_t id);

/* Engine: takes a word of dirty bits; bit b of word w is slot 64 * w + b. */
static inline uint64_t tr_control_take(tr_channel_map_t *map, uint32_t word);

#include <tokenring/channel_inline.h>

#endif
