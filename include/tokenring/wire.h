/*
 * The records that travel through the rings.
 *
 *   worker -> engine   SUBMIT   one API request: a fixed head, then a replay
 *                               block, a model name and the raw JSON body in as
 *                               many parts as they take
 *   engine -> worker   ECHO     what the response repeats of the request; comes
 *                               in parts, in the ring of answers, before ACCEPTED
 *                      ACCEPTED what the worker must know to answer: streaming
 *                               or not, how many choices, which model; comes in
 *                               the ring of answers, before all that follows
 *                      STARTED  the request joins its first batch, whose step
 *                               comes next: the queue ends and prefill begins;
 *                               may be missing
 *                      DELTA    new text of one choice, log probabilities, and
 *                               token ids where the SUBMIT asked for them
 *                      ITEM     what follows of one choice is a tool call, or the
 *                               reasoning of the model, or text again
 *                      RESULT   what an endpoint computed that generates no text,
 *                               in the ring of answers, before FINISH
 *                      KV       what one choice holds of the KV cache now, where
 *                               the request asked for that
 *                      FINISH   one choice ended; the last one has the totals
 *                      ERROR    the request failed, in OpenAI's terms
 *
 * Abort and pause are no records: they are control words (channel.h).
 *
 * For every request the engine sends, in this order: ECHOs, at most one
 * ACCEPTED, at most one STARTED, then DELTAs, ITEMs, KVs, RESULTs and one FINISH
 * per choice, the last of them with TR_FINISH_LAST; or at any point one ERROR,
 * which ends it.  Exactly one of (FINISH with LAST, ERROR) is sent for every
 * request whose first SUBMIT part was read, also after an abort: it frees the
 * slot.
 *
 * All integers are in host order: both ends are on one host.  Variable parts
 * follow the fixed head in the order of their length fields.  The parse
 * functions below check every length; what they return points into the
 * caller's private copy of the payload.
 */
#ifndef TOKENRING_WIRE_H
#define TOKENRING_WIRE_H

#include <stdint.h>

#include <tokenring/endpoint.h>
#include <tokenring/error.h>
#include <tokenring/ring.h>

enum tr_record_type {
    TR_RECORD_SUBMIT = 1,
    TR_RECORD_ACCEPTED = 16,
    TR_RECORD_DELTA = 17,
    TR_RECORD_FINISH = 18,
    TR_RECORD_ERROR = 19,
    TR_RECORD_STARTED = 20,
    TR_RECORD_ITEM = 21,
    TR_RECORD_RESULT = 22,
    TR_RECORD_ECHO = 23,
    TR_RECORD_KV = 24
};

/* What Redis keeps (docs/redis.md): the records as the worker gets them, but
 * without token ids.  It has a version of its own, since streams there outlive
 * engines and gateways; 4 and before were those of the channel. */
#define TR_STORED_VERSION 5u
#define TR_STORED_VERSION_MIN 5u

#define TR_ID_SLOT(id) ((uint32_t) ((id) &0xffffffffu))
#define TR_ID_GENERATION(id) ((uint32_t) ((id) >> 32))
#define TR_ID(slot, generation) \
    ((uint64_t) (slot) | (uint64_t) (generation) << 32)

#define TR_REQUEST_ID_MAX 64
#define TR_BODY_UNKNOWN UINT64_MAX
#define TR_SUBMIT_RESUMABLE 0x0001u /* its output is kept in Redis */
#define TR_SUBMIT_DETACH 0x0002u    /* goes on without client and channel */
#define TR_SUBMIT_IDS 0x0004u       /* its DELTAs carry token ids */
/* It samples no more tokens than the worker allows (channel.h), and a DELTA tells
 * of each token at once. */
#define TR_SUBMIT_METERED 0x0008u
#define TR_MODEL_ID 16u /* bytes: which weights and tokenizer */
#define TR_CACHE_KEY 16u
#define TR_HOLDER 8u
#define TR_TRACE_MAX 56u
#define TR_SUBMIT_MODEL_MAX 256u
#define TR_SUBMIT_SHARE_MAX 1000u
#define TR_SUBMIT_CHOICES_MAX 4096u
#define TR_REPLAY_MAX (8u << 20)    /* bytes of a replay block */
#define TR_REPLAY_IDS (1u << 20)    /* of all choices in it */
#define TR_REPLAY_TAIL (128u << 10) /* bytes of records in it */
#define TR_COMPLETION_LEN 32u
#define TR_OWNER_LEN 40u

/* How soon a request is served beside others: as its tenant's plan has it, or as
 * it asks (service_tier), whichever is less. */
enum tr_tier { TR_TIER_FLEX = 1, TR_TIER_DEFAULT = 2, TR_TIER_PRIORITY = 3 };

/* SUBMIT.  First part: this head, then bytes; later parts: bytes only.  The
 * bytes are replay_len of a replay block, model_len of a model's name, and the
 * body, and parts may end anywhere among them.  The last part has no
 * TR_FLAG_MORE and may be empty.  A first part has a generation that is new to
 * its slot; parts that come after the request has ended are dropped. */
typedef struct {
    uint16_t endpoint;                  /* not checked: tr_endpoint_info() */
    uint16_t flags;                     /* TR_SUBMIT_* */
    uint32_t request_id_len;            /* <= TR_REQUEST_ID_MAX */
    uint64_t body_len;                  /* bytes, or TR_BODY_UNKNOWN: of the
                                         * body alone */
    uint64_t received_us;               /* CLOCK_MONOTONIC at arrival, us */
    char request_id[TR_REQUEST_ID_MAX]; /* X-Request-Id, printable ASCII */
    /* the completion's id, 128 random bits in lower-case hex, or all NUL: the
     * request is not in Redis */
    char completion[TR_COMPLETION_LEN];
    /* who may read it: a SHA-1 in lower-case hex (docs/redis.md), or all NUL:
     * anybody */
    char owner[TR_OWNER_LEN];
    uint32_t replay_len; /* <= TR_REPLAY_MAX; 0: none */
    uint32_t model_len;  /* <= TR_SUBMIT_MODEL_MAX; 0: the engine's business;
                          * else the model that the gateway read in the body */
    uint64_t tenant;     /* whose it is, hashed; 0: nobody's in particular */
    uint16_t share;      /* of the tenant beside others, up to
                          * TR_SUBMIT_SHARE_MAX; 0: 1 */
    uint16_t choices;    /* prompts * n, at most; 0: the engine's limit alone */
    uint8_t charges;     /* engines that ended themselves while it started */
    uint8_t tier;       /* enum tr_tier: of its tenant's plan, 0: the default */
    uint16_t migrate_s; /* how long it may be without an engine, which are to
                          * take it over; 0: it ends with its engine */
    /* hash of who may read and go on with its response, where that is kept;
     * 0: nobody in particular */
    uint8_t holder[TR_HOLDER];
    /* keyed hash of what may share a cache with it; 0: with anybody */
    uint8_t cache_key[TR_CACHE_KEY];
    char trace[TR_TRACE_MAX]; /* traceparent, printable ASCII, then NULs;
                               * nobody reads it yet */
} tr_wire_submit_t;           /* 264 bytes */

/* A replay block: how far a request was at another engine, which goes on here.
 * This head, then for each choice its head and the ids of the tokens that were
 * told, none for a choice that has ended; then, where its output is stored in
 * Redis, tail_len bytes of its last records, which may not be there yet: {u32
 * length, u16 type, u16 0, payload of length bytes} each.
 * The engine takes the ids as output that it has made itself and told.  An
 * ERROR with TR_ERR_REPLAY says that they cannot be this request's output. */
typedef struct {
    uint64_t seed;   /* of its ACCEPTED, as are model_id, choices
                         * and prompt_tokens */
    int64_t created; /* the prompt may have the date in it */
    uint64_t number; /* of its last record, as in Redis; 0: not stored */
    uint8_t model_id[TR_MODEL_ID];
    uint32_t choices, prompt_tokens;
    uint32_t epoch; /* engines that had it */
    uint32_t tail_len;
    uint64_t reserved2; /* 0 */
} tr_wire_replay_t;     /* 64 bytes */

typedef struct {
    uint32_t tokens; /* that were told */
    uint32_t echoed; /* prompt tokens, with echo */
    uint16_t reason; /* enum tr_finish_reason, 0: it goes on */
    uint16_t flags;  /* 0 */
    uint32_t reserved;
} tr_wire_replay_choice_t; /* 16 bytes, then `tokens` int32_t unless reason */

#define TR_ACCEPTED_STREAM 0x0001u
#define TR_ACCEPTED_INCLUDE_USAGE 0x0002u
#define TR_ACCEPTED_LOGPROBS 0x0004u    /* DELTAs carry logprobs */
#define TR_ACCEPTED_USAGE_STATS 0x0008u /* usage in each chunk of the stream */
#define TR_ACCEPTED_KV 0x0010u          /* KVs come, for these */
#define TR_ACCEPTED_ITEMS 0x0020u       /* ITEMs may come */
#define TR_ACCEPTED_STORED 0x0040u      /* its output is kept in Redis */

typedef struct {
    uint16_t endpoint; /* of the SUBMIT */
    uint16_t flags;    /* TR_ACCEPTED_* */
    uint32_t choices;  /* >= 1: prompts * n */
    uint32_t prompt_tokens;
    uint32_t model_len;            /* followed by the model name, UTF-8 */
    int64_t created;               /* Unix time, s */
    uint32_t policy_len;           /* then the KV policy's name, UTF-8 */
    uint32_t tier;                 /* enum tr_tier; 0: the request named none */
    uint64_t seed;                 /* of its sampling, the engine's own too */
    uint8_t model_id[TR_MODEL_ID]; /* as on the status page's card */
    uint64_t exact_id;             /* likewise */
    uint64_t max_total; /* completion tokens of all choices, at most */
} tr_wire_accepted_t;   /* ACCEPTED, 72 bytes */

typedef struct {
    uint32_t cached_tokens; /* of the prompt, that need not be computed */
    uint32_t reserved;
} tr_wire_started_t; /* STARTED, 8 bytes */

/* DELTA, followed by text (UTF-8, whole characters), logprobs (entries as
 * below), and ids.  The text belongs to the choice's newest ITEM; before the
 * first one it is the answer's content.  Large ones become several DELTAs, never
 * parts.  What text was told follows from the ids told: text that is held back
 * is told with the token that frees it, and before a FINISH every token has been
 * told. */
typedef struct {
    uint32_t choice;
    uint32_t tokens; /* tokens this DELTA stands for; text may be empty */
    uint32_t text_len;
    uint32_t logprobs_len; /* bytes */
    uint32_t ids_len;      /* bytes: 0, or those of `tokens` int32_t */
    uint32_t echoed;       /* prompt tokens given out up to now, with echo */
} tr_wire_delta_t;         /* 24 bytes */

/* At most so many tokens wait for the DELTA that tells of them. */
#define TR_DELTA_TOKENS_MAX 64u

enum tr_item_kind {
    TR_ITEM_TEXT = 1,      /* content of the answer */
    TR_ITEM_REASONING = 2, /* what the model thought before */
    TR_ITEM_TOOL_CALL = 3  /* text is the call's arguments: JSON as it came */
};

#define TR_ITEM_ID_MAX 96u
#define TR_ITEM_NAME_MAX 64u

/* ITEM, followed by the id and the name of a tool call (neither for other
 * kinds).  It ends with the next ITEM of its choice, or FINISH.  It has
 * TR_FLAG_MORE: the token that began it is told by a record that follows, a
 * DELTA (perhaps without text) or FINISH.  The engine shows all records of a
 * token at once. */
typedef struct {
    uint32_t choice;
    uint16_t kind;     /* enum tr_item_kind */
    uint16_t flags;    /* 0 */
    uint32_t index;    /* of a tool call among those of its choice, from 0 */
    uint32_t id_len;   /* <= TR_ITEM_ID_MAX */
    uint32_t name_len; /* <= TR_ITEM_NAME_MAX */
    uint32_t reserved;
} tr_wire_item_t; /* 24 bytes */

#define TR_ECHO_MAX (8u << 20) /* bytes of all ECHOs of a request */

/* ECHO: members of a JSON object, without its braces, 1 to TR_RESULT_MAX bytes
 * of them: parts may end anywhere. */

enum tr_result_kind {
    TR_RESULT_TOKENS = 1,   /* bytes: i32 ids */
    TR_RESULT_TEXT = 2,     /* bytes: UTF-8 */
    TR_RESULT_CONTEXT = 3,  /* count: tokens that the model's context has */
    TR_RESULT_EMBEDDING = 4 /* bytes: float32, of the choice `count`; in the
                             * ring of responses */
};

#define TR_RESULT_MAX 32768u /* bytes of one */

#define TR_RESULT_BASE64 0x0001u /* an EMBEDDING that is wanted in base64 */

/* RESULT, followed by len bytes.  A kind may come in several, one after the
 * other, in any place. */
typedef struct {
    uint16_t kind;  /* enum tr_result_kind */
    uint16_t flags; /* TR_RESULT_BASE64, of an EMBEDDING */
    uint32_t count; /* of CONTEXT, of EMBEDDING; else 0 */
    uint32_t len;   /* bytes, <= TR_RESULT_MAX; TOKENS, EMBEDDING: a multiple
                     * of 4 */
    uint32_t reserved;
} tr_wire_result_t; /* 16 bytes */

/* One token of logprobs: this head, the token's bytes, then `top` alternatives,
 * each a tr_wire_top_t and its bytes.  An echoed prompt token without a
 * predecessor has logprob NAN ("null" in JSON).  Not aligned: use memcpy. */
typedef struct {
    int32_t token;
    float logprob;
    uint16_t bytes_len;
    uint8_t top, flags; /* TR_LOGPROB_* */
} tr_wire_logprob_t;    /* 12 bytes */

#define TR_LOGPROB_HIDDEN 0x01u /* a special token: no part of the text */

typedef struct {
    int32_t token;
    float logprob;
    uint16_t bytes_len, reserved;
} tr_wire_top_t; /* 12 bytes */

enum tr_finish_reason {
    TR_FINISH_STOP = 1,      /* eos, stop token or stop string: "stop" */
    TR_FINISH_LENGTH = 2,    /* max_tokens or the context's end: "length" */
    TR_FINISH_ABORTED = 3,   /* the worker asked; no client sees it */
    TR_FINISH_TOOL_CALLS = 4 /* as STOP, with calls: "tool_calls" */
};

/* What is held of the KV cache: by one choice, or by several together. */
typedef struct {
    uint64_t bytes;      /* KV pages held, bytes */
    uint64_t full_bytes; /* the same tokens at 16 bits, bytes; 0: unknown */
    /* the same as tokens, averaged over layers and KV heads: kept at 16 bits
     * (not compressed, or that is their level), at the policy's highest level,
     * at lower levels, dropped */
    uint32_t tokens_full, tokens_high, tokens_low, tokens_pruned;
    /* of cached tokens: at 16 bits or the highest level, lower, dropped */
    float share_high, share_low, share_pruned;
    uint32_t reserved;
} tr_wire_usage_t; /* 48 bytes */

/* KV: before the DELTA or FINISH of its choice that it describes; at most one
 * in TR_KV_PERIOD_US for each choice, and one at its end. */
#define TR_KV_PERIOD_US 100000u

typedef struct {
    uint32_t choice;
    uint32_t reserved;
    tr_wire_usage_t usage;
} tr_wire_kv_t; /* KV, 56 bytes */

#define TR_FINISH_LAST 0x0001u /* the request is over, its slot is free */
#define TR_FINISH_CUT 0x0002u  /* its allowance ended it */

typedef struct {
    uint32_t choice;
    uint16_t reason; /* enum tr_finish_reason */
    uint16_t flags;  /* TR_FINISH_* */
    /* totals of the request up to now; final with TR_FINISH_LAST */
    uint32_t prompt_tokens, completion_tokens;
    uint32_t cached_tokens; /* prompt tokens that were not computed again */
    uint32_t preemptions;
    uint64_t queue_us;         /* arrival at the engine to first scheduled */
    uint64_t prefill_us;       /* first scheduled to first token */
    uint64_t decode_us;        /* first token to last */
    tr_wire_usage_t kv;        /* of the choices that ended, at their ends */
    uint32_t choice_tokens;    /* of this choice: completion tokens */
    uint32_t reasoning_tokens; /* of the completion tokens of all choices */
    uint32_t migrations;       /* engines that it had before this one */
    uint32_t tail_len;         /* bytes that follow: the stop string that
                                * ended it, for endpoints that tell it; who
                                * does not know them skips them */
} tr_wire_finish_t;            /* FINISH, 112 bytes */

/* ERROR, followed by param, then message (UTF-8). */
typedef struct {
    int32_t status;         /* tr_status_t */
    uint32_t retry_after_s; /* 0: no header */
    uint32_t param_len;     /* 0: null */
    uint32_t message_len;
    uint32_t prompt_tokens, completion_tokens; /* so far, for logs */
} tr_wire_error_t;                             /* 24 bytes */

/* Bytes of a payload, borrowed from it. */
typedef struct {
    const char *data;
    uint32_t len;
} tr_wire_bytes_t;

/* What a completion's id is called on a status page; 0: it is no such id. */
static inline uint64_t tr_completion_name(const char id[TR_COMPLETION_LEN]);

/* Each reads one payload of len bytes: TR_OK, or TR_ERR_PROTOCOL when a length
 * or a value is impossible.  submit_parse is for the first part; bytes: what
 * follows its head.  ids and tail may be NULL. */
static inline tr_status_t tr_wire_submit_parse(const void *in, size_t len,
                                               tr_wire_submit_t *head,
                                               tr_wire_bytes_t *bytes);
/* rest: the choices, to be taken with next, head->choices times; ids may not be
 * aligned. */
static inline tr_status_t tr_wire_replay_parse(const void *in, size_t len,
                                               tr_wire_replay_t *head,
                                               tr_wire_bytes_t *rest);
static inline tr_status_t tr_wire_replay_next(tr_wire_bytes_t *rest,
                                              tr_wire_replay_choice_t *head,
                                              tr_wire_bytes_t *ids);
static inline tr_status_t tr_wire_accepted_parse(const void *in, size_t len,
                                                 tr_wire_accepted_t *head,
                                                 tr_wire_bytes_t *model,
                                                 tr_wire_bytes_t *policy);
static inline tr_status_t tr_wire_started_parse(const void *in, size_t len,
                                                tr_wire_started_t *head);
static inline tr_status_t tr_wire_delta_parse(const void *in, size_t len,
                                              tr_wire_delta_t *head,
                                              tr_wire_bytes_t *text,
                                              tr_wire_bytes_t *logprobs,
                                              tr_wire_bytes_t *ids);
static inline tr_status_t tr_wire_item_parse(const void *in, size_t len,
                                             tr_wire_item_t *head,
                                             tr_wire_bytes_t *id,
                                             tr_wire_bytes_t *name);
static inline tr_status_t tr_wire_result_parse(const void *in, size_t len,
                                               tr_wire_result_t *head,
                                               tr_wire_bytes_t *bytes);
static inline tr_status_t tr_wire_kv_parse(const void *in, size_t len,
                                           tr_wire_kv_t *head);
static inline tr_status_t tr_wire_finish_parse(const void *in, size_t len,
                                               tr_wire_finish_t *head,
                                               tr_wire_bytes_t *tail);
static inline tr_status_t tr_wire_error_parse(const void *in, size_t len,
                                              tr_wire_error_t *head,
                                              tr_wire_bytes_t *param,
                                              tr_wire_bytes_t *message);

/* Takes the next entry of a DELTA's logprobs, TR_AGAIN at the end; then its
 * head->top alternatives with tr_wire_top_next. */
static inline tr_status_t tr_wire_logprob_next(tr_wire_bytes_t *left,
                                               tr_wire_logprob_t *head,
                                               tr_wire_bytes_t *bytes);
static inline tr_status_t tr_wire_top_next(tr_wire_bytes_t *left,
                                           tr_wire_top_t *head,
                                           tr_wire_bytes_t *bytes);

#include <tokenring/wire_inline.h>

#endif
