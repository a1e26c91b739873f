/*
 * The records that travel through the rings, as bytes.
 *
 *   worker -> engine   SUBMIT   one API request: a fixed head, then the raw
 *                               JSON body in as many parts as it takes
 *   engine -> worker   ACCEPTED what the worker must know to answer: streaming
 *                               or not, how many choices, which model; in the
 *                               ring of answers, ahead of all that follows
 *                      STARTED  the request left the engine's queue
 *                      DELTA    new text of one choice (and logprobs)
 *                      FINISH   one choice ended; the last one carries totals
 *                      ERROR    the request failed, in OpenAI's terms
 *
 * ABORT, PAUSE and RESUME are no records: they live in the channel's control
 * words (channel.h), where they collapse and never wait for space.
 *
 * The worker does not read the body: JSON parsing of a large body would hold up
 * its event loop (tens of milliseconds), so the engine's parser threads do it.
 *
 * All integers are in host order: both ends are on one host.  Variable parts
 * follow the fixed head in the order of their length fields.  A reader checks
 * every length against the record before use (the tr_wire_*_parse functions);
 * what they return points into the caller's private copy of the payload.
 *
 * For every request the engine sends, in this order: at most one ACCEPTED, at
 * most one STARTED, then DELTAs, with one FINISH per choice, the last of them
 * with TR_FINISH_LAST; or at any point one ERROR, which ends the request.
 * Exactly one of (FINISH with LAST, ERROR) is sent for every request whose first
 * SUBMIT part was read, also after an abort: it frees the slot.
 */
#ifndef TOKENRING_WIRE_H
#define TOKENRING_WIRE_H

#include <stdint.h>
#include <string.h>

#include <tokenring/endpoint.h>
#include <tokenring/error.h>
#include <tokenring/ring.h>

enum tr_record_type {
    TR_RECORD_SUBMIT = 1,
    TR_RECORD_ACCEPTED = 16,
    TR_RECORD_DELTA = 17,
    TR_RECORD_FINISH = 18,
    TR_RECORD_ERROR = 19,
    TR_RECORD_STARTED = 20
};

#define TR_ID_SLOT(id) ((uint32_t) ((id) &0xffffffffu))
#define TR_ID_GENERATION(id) ((uint32_t) ((id) >> 32))
#define TR_ID(slot, generation) \
    ((uint64_t) (slot) | (uint64_t) (generation) << 32)

/* ---- SUBMIT ------------------------------------------------------------- */

#define TR_REQUEST_ID_MAX 64
#define TR_BODY_UNKNOWN UINT64_MAX

#define TR_SUBMIT_RESUMABLE 0x0001u /* its output is kept in Redis */
#define TR_SUBMIT_DETACH 0x0002u    /* goes on without client and channel */
#define TR_COMPLETION_LEN 32u
#define TR_OWNER_LEN 40u

/* First part: this head, then body bytes.  Later parts: body bytes only.  The
 * last part is the one without TR_FLAG_MORE (it may be empty).  The first part
 * is the one whose generation its slot has not seen; parts that still come
 * after the request has ended (refused, aborted) are dropped by that. */
typedef struct {
    uint16_t endpoint;                  /* enum tr_endpoint */
    uint16_t flags;                     /* TR_SUBMIT_* */
    uint32_t request_id_len;            /* <= TR_REQUEST_ID_MAX */
    uint64_t body_len;                  /* bytes, or TR_BODY_UNKNOWN */
    uint64_t received_us;               /* CLOCK_MONOTONIC at arrival, us */
    char request_id[TR_REQUEST_ID_MAX]; /* X-Request-Id, printable ASCII */
    /* who this is among all requests: lower-case hex digits of 128 random
     * bits, or all NUL (then it is in no Redis) */
    char completion[TR_COMPLETION_LEN];
    /* whose it is: lower-case hex digits of a SHA-1 (docs/redis.md), or all
     * NUL: anybody's */
    char owner[TR_OWNER_LEN];
} tr_wire_submit_t;

_Static_assert(sizeof(tr_wire_submit_t) == 160, "SUBMIT head");

/* ---- ACCEPTED ----------------------------------------------------------- */

#define TR_ACCEPTED_STREAM 0x0001u
#define TR_ACCEPTED_INCLUDE_USAGE 0x0002u
#define TR_ACCEPTED_LOGPROBS 0x0004u /* DELTAs carry logprobs */

typedef struct {
    uint16_t endpoint; /* echoed */
    uint16_t flags;    /* TR_ACCEPTED_* */
    uint32_t choices;  /* >= 1: prompts * n */
    uint32_t prompt_tokens;
    uint32_t model_len; /* followed by the model name, UTF-8 */
    int64_t created;    /* Unix time, s */
} tr_wire_accepted_t;

_Static_assert(sizeof(tr_wire_accepted_t) == 24, "ACCEPTED head");

/* ---- STARTED ------------------------------------------------------------ */

/* No payload.  Sent when the request first joins a batch, before that step is
 * run: the time until then is the queue's, the time after it prefill.  A reader
 * must not count on it: DELTA and FINISH say the same. */

/* ---- DELTA -------------------------------------------------------------- */

/* Followed by text (UTF-8, whole characters), then logprobs (a sequence of
 * tr_wire_logprob_t, see below).  Large ones are split by the engine into
 * several DELTAs, never into parts. */
typedef struct {
    uint32_t choice;
    uint32_t tokens; /* tokens this DELTA stands for; text may be empty */
    uint32_t text_len;
    uint32_t logprobs_len; /* bytes */
} tr_wire_delta_t;

_Static_assert(sizeof(tr_wire_delta_t) == 16, "DELTA head");

/* One token: head, its bytes, then `top` alternatives of
 * {tr_wire_top_t, bytes}.  A prompt token echoed without a predecessor has
 * logprob NAN ("null" in JSON).  Entries are not aligned: memcpy. */
typedef struct {
    int32_t token;
    float logprob;
    uint16_t bytes_len;
    uint16_t top;
} tr_wire_logprob_t;

typedef struct {
    int32_t token;
    float logprob;
    uint16_t bytes_len;
    uint16_t reserved;
} tr_wire_top_t;

_Static_assert(sizeof(tr_wire_logprob_t) == 12, "logprob head");
_Static_assert(sizeof(tr_wire_top_t) == 12, "top head");

/* ---- FINISH ------------------------------------------------------------- */

enum tr_finish_reason {
    TR_FINISH_STOP = 1,   /* eos, stop token or stop string: "stop" */
    TR_FINISH_LENGTH = 2, /* max_tokens or the context's end: "length" */
    TR_FINISH_ABORTED = 3 /* the worker asked; no client sees it */
};

#define TR_FINISH_LAST 0x0001u /* the request is over, its slot is free */

typedef struct {
    uint32_t choice;
    uint16_t reason; /* enum tr_finish_reason */
    uint16_t flags;  /* TR_FINISH_* */
    /* totals of the request up to now; final with TR_FINISH_LAST */
    uint32_t prompt_tokens;
    uint32_t completion_tokens;
    uint32_t cached_tokens; /* prompt tokens that were not computed again */
    uint32_t preemptions;
    uint64_t queue_us;      /* arrival at the engine to first scheduled */
    uint64_t prefill_us;    /* first scheduled to first token */
    uint64_t decode_us;     /* first token to last */
    uint64_t kv_bytes;      /* KV pages held at the end, bytes */
    uint64_t kv_full_bytes; /* the same tokens at 16 bits, bytes */
    float share_high;       /* of cached tokens kept at the highest level */
    float share_low;        /* ... at lower levels */
    float share_pruned;     /* ... dropped */
    uint32_t reserved;
} tr_wire_finish_t;

_Static_assert(sizeof(tr_wire_finish_t) == 80, "FINISH is 80 bytes");

/* ---- ERROR -------------------------------------------------------------- */

/* Followed by param, then message (UTF-8). */
typedef struct {
    int32_t status;         /* tr_status_t */
    uint32_t retry_after_s; /* 0: no header */
    uint32_t param_len;     /* 0: null */
    uint32_t message_len;
    uint32_t prompt_tokens; /* usage so far, for logs */
    uint32_t completion_tokens;
} tr_wire_error_t;

_Static_assert(sizeof(tr_wire_error_t) == 24, "ERROR head");

/* ---- checked reading ---------------------------------------------------- */

typedef struct {
    const char *data;
    uint32_t len;
} tr_wire_bytes_t;

static inline tr_status_t
tr_wire_take(const uint8_t **at, size_t *left, void *out, size_t n)
{
    if (n > *left) {
        return TR_ERR_PROTOCOL;
    }
    memcpy(out, *at, n);
    *at += n;
    *left -= n;
    return TR_OK;
}

static inline tr_status_t
tr_wire_take_bytes(const uint8_t **at, size_t *left, uint32_t n,
                   tr_wire_bytes_t *out)
{
    if (n > *left) {
        return TR_ERR_PROTOCOL;
    }
    out->data = (const char *) *at;
    out->len = n;
    *at += n;
    *left -= n;
    return TR_OK;
}

/* n lower-case hex digits, or n NULs. */
static inline int
tr_wire_is_hex(const char *at, size_t n)
{
    size_t i, digits = 0, nuls = 0;

    for (i = 0; i < n; i++) {
        digits += (at[i] >= '0' && at[i] <= '9')
                  || (at[i] >= 'a' && at[i] <= 'f');
        nuls += at[i] == '\0';
    }
    return digits == n || nuls == n;
}

/* First part of a SUBMIT; *body is what follows the head. */
static inline tr_status_t
tr_wire_submit_parse(const void *payload, size_t len, tr_wire_submit_t *head,
                     tr_wire_bytes_t *body)
{
    const uint8_t *at = (const uint8_t *) payload;
    uint32_t i;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->request_id_len > TR_REQUEST_ID_MAX
        || tr_endpoint_info(head->endpoint) == NULL
        || (head->body_len != TR_BODY_UNKNOWN && len > head->body_len)
        || !tr_wire_is_hex(head->completion, TR_COMPLETION_LEN)
        || !tr_wire_is_hex(head->owner, TR_OWNER_LEN) || len > UINT32_MAX) {
        return TR_ERR_PROTOCOL;
    }
    for (i = 0; i < head->request_id_len; i++) {
        if (head->request_id[i] < 0x21 || head->request_id[i] > 0x7e) {
            return TR_ERR_PROTOCOL;
        }
    }
    return tr_wire_take_bytes(&at, &len, (uint32_t) len, body);
}

static inline tr_status_t
tr_wire_accepted_parse(const void *payload, size_t len,
                       tr_wire_accepted_t *head, tr_wire_bytes_t *model)
{
    const uint8_t *at = (const uint8_t *) payload;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->choices == 0
        || tr_wire_take_bytes(&at, &len, head->model_len, model) != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

static inline tr_status_t
tr_wire_started_parse(size_t len)
{
    return len == 0 ? TR_OK : TR_ERR_PROTOCOL;
}

static inline tr_status_t
tr_wire_delta_parse(const void *payload, size_t len, tr_wire_delta_t *head,
                    tr_wire_bytes_t *text, tr_wire_bytes_t *logprobs)
{
    const uint8_t *at = (const uint8_t *) payload;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || tr_wire_take_bytes(&at, &len, head->text_len, text) != TR_OK
        || tr_wire_take_bytes(&at, &len, head->logprobs_len, logprobs) != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

/* Next entry of a DELTA's logprobs; the caller then takes head->top
 * alternatives with tr_wire_top_next.  TR_AGAIN at the end. */
static inline tr_status_t
tr_wire_logprob_next(tr_wire_bytes_t *left, tr_wire_logprob_t *head,
                     tr_wire_bytes_t *bytes)
{
    const uint8_t *at = (const uint8_t *) left->data;
    size_t n = left->len;

    if (n == 0) {
        return TR_AGAIN;
    }
    if (tr_wire_take(&at, &n, head, sizeof(*head)) != TR_OK
        || tr_wire_take_bytes(&at, &n, head->bytes_len, bytes) != TR_OK) {
        return TR_ERR_PROTOCOL;
    }
    left->data = (const char *) at;
    left->len = (uint32_t) n;
    return TR_OK;
}

static inline tr_status_t
tr_wire_top_next(tr_wire_bytes_t *left, tr_wire_top_t *head,
                 tr_wire_bytes_t *bytes)
{
    const uint8_t *at = (const uint8_t *) left->data;
    size_t n = left->len;

    if (tr_wire_take(&at, &n, head, sizeof(*head)) != TR_OK
        || tr_wire_take_bytes(&at, &n, head->bytes_len, bytes) != TR_OK) {
        return TR_ERR_PROTOCOL;
    }
    left->data = (const char *) at;
    left->len = (uint32_t) n;
    return TR_OK;
}

static inline tr_status_t
tr_wire_finish_parse(const void *payload, size_t len, tr_wire_finish_t *head)
{
    if (len != sizeof(*head)) {
        return TR_ERR_PROTOCOL;
    }
    memcpy(head, payload, sizeof(*head));
    if (head->reason < TR_FINISH_STOP || head->reason > TR_FINISH_ABORTED) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

static inline tr_status_t
tr_wire_error_parse(const void *payload, size_t len, tr_wire_error_t *head,
                    tr_wire_bytes_t *param, tr_wire_bytes_t *message)
{
    const uint8_t *at = (const uint8_t *) payload;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->status >= 0
        || tr_wire_take_bytes(&at, &len, head->param_len, param) != TR_OK
        || tr_wire_take_bytes(&at, &len, head->message_len, message) != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

#endif
