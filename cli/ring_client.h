/*
 * A client of an engine's rings, for the command line and for tests.
 *
 * It plays the part that an NGINX worker plays, without an event loop of its
 * own: connect, submit as many requests as there are slots, take records as
 * they come.  One thread uses one client; nothing here is shared.
 *
 *     tr_ring_client_connect(path, 1000, &c, &err);
 *     tr_ring_client_submit(c, TR_ENDPOINT_CHAT, "req-1", json, len, -1, &id,
 *                           &err);
 *     while (tr_ring_client_poll(c, -1, &event, &err) == TR_OK) { ... }
 *
 * To wait for several clients (or for timers) poll tr_ring_client_fd for
 * reading, after tr_ring_client_poll(c, 0, ...) has said TR_AGAIN: it is that
 * answer which asks the engine to ring.
 *
 * All timeouts are in milliseconds: 0 does not wait, -1 waits for ever.
 */
#ifndef TR_RING_CLIENT_H
#define TR_RING_CLIENT_H

#include <stdbool.h>

#include <tokenring/channel.h>
#include <tokenring/wire.h>

typedef struct tr_ring_client tr_ring_client_t;

/* Sizes of the channel; zeroes mean the engine's defaults. */
typedef struct {
    uint32_t slots;         /* requests in flight */
    uint32_t request_ring;  /* bytes */
    uint32_t response_ring; /* bytes */
} tr_ring_client_options_t;

/* One checked record.  The bytes point into the client and stay until its next
 * tr_ring_client_poll. */
typedef struct {
    uint64_t id;
    uint16_t type; /* TR_RECORD_ACCEPTED, _STARTED, _DELTA, _ITEM, _RESULT, _KV,
                    * _FINISH or _ERROR */
    bool last;     /* the request is over, its id is dead */
    union {
        tr_wire_accepted_t accepted;
        tr_wire_started_t started;
        tr_wire_delta_t delta;
        tr_wire_item_t item;
        tr_wire_result_t result;
        tr_wire_kv_t kv;
        tr_wire_finish_t finish;
        tr_wire_error_t error;
    } head;
    tr_wire_bytes_t text;     /* ACCEPTED: model, DELTA: text, ERROR: message;
                               * ITEM: a tool's name; RESULT */
    tr_wire_bytes_t logprobs; /* DELTA */
    tr_wire_bytes_t param;    /* ERROR; ACCEPTED: the KV policy's name; ITEM: a
                               * call's id */
} tr_ring_event_t;

/* Connects and shakes hands.  options: NULL for the defaults.
 * TR_ERR_NO_ENGINE: nobody listens there; TR_ERR_VERSION: both version ranges
 * are in err; TR_ERR_TIMEOUT, TR_ERR_CLOSED (refused, with the reason),
 * TR_ERR_PROTOCOL, TR_ERR_IO, TR_ERR_NOMEM, TR_ERR_INVALID (the path). */
tr_status_t tr_ring_client_connect(const char *path,
                                   const tr_ring_client_options_t *options,
                                   int timeout_ms, tr_ring_client_t **out,
                                   tr_error_t *err);

/* The same, small, for who wants something of the engine itself (enum
 * tr_drain_request).  TR_OK: it was granted, the status page shows it soon.
 * TR_ERR_CLOSED: refused, the reason is in err. */
tr_status_t tr_ring_client_drain(const char *path, uint32_t drain,
                                 int timeout_ms, tr_ring_client_t **out,
                                 tr_error_t *err);

/* Ends what is in flight: the engine sees the hang-up.  NULL is allowed. */
void tr_ring_client_close(tr_ring_client_t *c);

/* Sends one request, in parts, waiting for space.  request_id may be NULL.
 * TR_OK: *id is in flight until its event with `last`.  TR_AGAIN: every slot
 * is taken; nothing happened.  TR_ERR_TIMEOUT: the engine did not take the
 * body in time (what was sent is aborted).  TR_ERR_INVALID, TR_ERR_CLOSED,
 * TR_ERR_PROTOCOL. */
tr_status_t tr_ring_client_submit(tr_ring_client_t *c, uint16_t endpoint,
                                  const char *request_id, const void *body,
                                  size_t body_len, int timeout_ms, uint64_t *id,
                                  tr_error_t *err);

/* Commands; they never wait.  An aborted request still ends with an event.
 * Dead ids are ignored; a pause does not take back an abort. */
void tr_ring_client_abort(tr_ring_client_t *c, uint64_t id);
void tr_ring_client_pause(tr_ring_client_t *c, uint64_t id);
void tr_ring_client_resume(tr_ring_client_t *c, uint64_t id);

/* The next event.  TR_AGAIN: none within the time, or a signal came.
 * TR_ERR_CLOSED: the engine has gone (all it had published was delivered
 * first); TR_ERR_PROTOCOL. */
tr_status_t tr_ring_client_poll(tr_ring_client_t *c, int timeout_ms,
                                tr_ring_event_t *event, tr_error_t *err);

/* Readable when tr_ring_client_poll may have news.  Borrowed. */
int tr_ring_client_fd(const tr_ring_client_t *c);

/* Requests whose last event has not come yet. */
uint32_t tr_ring_client_in_flight(const tr_ring_client_t *c);
uint32_t tr_ring_client_slots(const tr_ring_client_t *c);

/* Of the engine's run: another engine, another number. */
uint64_t tr_ring_client_generation(const tr_ring_client_t *c);

/* The mapped status page, borrowed until close.  Its strings are the engine's
 * memory: read them with tr_status_card_copy. */
const tr_status_page_t *tr_ring_client_status(const tr_ring_client_t *c);

/* The admission block, or the last copy while the engine is writing it. */
void tr_ring_client_admission(tr_ring_client_t *c, tr_status_admission_t *out);

#endif
