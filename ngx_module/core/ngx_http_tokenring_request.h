/*
 * An API request on its way: the ctx, and what happens to it.
 *
 * A ctx lives in r->pool and ends with the request.  Whatever may end the
 * request says so; then the caller must not touch ctx any more.  Texts in it
 * are its own and are freed with the pool; strings are borrowed from the pool
 * or are literals.
 *
 *     _handler.c    where a request begins: routes
 *     _admit.c      an engine for it, or a wait
 *     _record.c     what the engine's records do to it
 *     _suspects.c   is it why engines crash?
 *     _request.c    what else ends it: hang-ups, timers
 */

#ifndef _NGX_HTTP_TOKENRING_REQUEST_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_REQUEST_H_INCLUDED_


/* nginx's own come first: they say what libc's headers declare */
#include "ngx_http_tokenring.h"
#include "ngx_http_tokenring_scan.h"
#include "ngx_http_tokenring_tenants.h"
#include "ngx_http_tokenring_text.h"

#include <ngx_event.h>

#include <tokenring/error.h>
#include <tokenring/ring.h>
#include <tokenring/status.h>
#include <tokenring/upload.h>
#include <tokenring/wire.h>


/* of an error that an engine told, bytes */
#define NGX_HTTP_TOKENRING_MESSAGE_MAX  4096


/* tool calls and reasoning of a choice (_items.c) */

typedef struct {
    uint16_t                        kind;    /* of the text that comes now */
    uint32_t                        index;   /* of the newest call */

    /* where text and calls are blocks or items (_messages.c, _responses.c) */
    uint16_t                        open;    /* kind of the block that is, 0 */
    uint16_t                        called;  /* there is a call */
    uint32_t                        blocks;  /* so far */
    uint64_t                        sequence; /* events so far */

    /* JSON: the inside of the open item's text, the call's id and name as
     * members, and the items that are complete */
    ngx_http_tokenring_text_t       said;
    ngx_http_tokenring_text_t       call;
    ngx_http_tokenring_text_t       output;
    ngx_http_tokenring_text_t       reasoning;
    ngx_http_tokenring_text_t       calls;   /* JSON, open at its end */
} ngx_http_tokenring_items_t;


/* what an endpoint computed that generates nothing (_result.c) */

typedef struct {
    ngx_http_tokenring_text_t       ids;     /* i32 */
    ngx_http_tokenring_text_t       text;
    uint32_t                        context;
    ngx_uint_t                      base64;  /* of embeddings, in choices */
} ngx_http_tokenring_result_t;


typedef struct {
    ngx_http_tokenring_text_t       text;
    ngx_http_tokenring_text_t       logprobs;
    ngx_http_tokenring_items_t     *items;   /* NULL: text alone */
    uint64_t                        offset;  /* characters shown so far */
    uint64_t                        tokens;  /* generated so far */
    ngx_http_tokenring_text_t       ids;     /* of those told, to be moved */
    uint32_t                        told;
    uint32_t                        echoed;
    tr_wire_usage_t                *kv;      /* held now; NULL: not told */
    unsigned                        reason:8;
    unsigned                        begun:1;
    unsigned                        ended:1;
} ngx_http_tokenring_choice_t;


/*
 * The life of a request: its states, and the time limit of each, which begins
 * when the state is entered.
 *
 *     NEW       not admitted yet               none
 *     SEAT      its tenant has as many as it   wait= of its plan, or
 *               may at once; no body read      tokenring_queue_timeout
 *     WAIT      in group->waiting, for a       that of a handshake
 *               handshake; no body read
 *     READ      has a slot; NGINX is asked     tokenring_queue_timeout (1)
 *               for the body
 *     GATHER    no slot; the body is kept      tokenring_queue_timeout (1)
 *               here until it is complete
 *     HELD      in group->waiting, for a       that of a handshake
 *               handshake; the body is kept
 *     SEND      has a slot; the body goes      tokenring_queue_timeout (1)
 *               into the ring
 *     STARVED   in conn->starving: the ring    that of SEND goes on
 *               is full
 *     QUEUED    the engine has all of it       tokenring_queue_timeout
 *     ACCEPTED  in the engine's queue          that of QUEUED goes on
 *     PREFILL   scheduled, no token yet        tokenring_first_token_timeout
 *     DECODE    tokens arrive                  tokenring_idle_timeout, again
 *                                              with each token
 *     OVER      the engine has nothing more    none; send_timeout for a slow
 *               to say, the rest is sent       client
 *     DONE      finalized                      none
 *
 * (1) When it is over it begins again: the client is slow, not the engine, and
 * client_body_timeout watches over the client.
 *
 * Events, and the state that follows.  Empty: cannot happen.  A dot: nothing
 * changes.  An x: the engine broke the protocol, and its channel is closed.
 * "error" is an ERROR record, the loss of the engine, the end of the time
 * limit, or the gateway giving up.
 *
 *               engine   handshake  all of     ring     ring has
 *               chosen   pending    body sent  full     space     FINISH  error
 *     NEW(7)    READ(6)  WAIT                                             OVER
 *     SEAT      READ(6)  WAIT                                             OVER
 *     WAIT      READ(6)  WAIT                                             OVER
 *     READ      (2)                                                       OVER
 *     GATHER    SEND     HELD                                             OVER
 *     HELD      SEND     HELD                                             OVER
 *     SEND                          QUEUED     STARVED            OVER(3) OVER
 *     STARVED                                           SEND      OVER(3) OVER
 *
 *               ACCEPTED   STARTED   DELTA     FINISH(4)  error
 *     QUEUED    ACCEPTED   x         x         OVER(3)    OVER
 *     ACCEPTED  x          PREFILL   DECODE    OVER       OVER
 *     PREFILL   x          .         DECODE    OVER       OVER
 *     DECODE    x          .         .         OVER       OVER
 *     OVER      x          .         .         .          SEND, HELD(5), or .
 *
 * (2) By itself: to SEND with a complete body, else to GATHER, without a slot.
 * Over HTTP/2, a body that has ended already is read in a later event.
 * (3) If the engine aborted the request, else x.
 * (4) With the LAST flag, which an abort always has.  Without it, as DELTA.
 * (5) Another engine: if the client has seen nothing of the answer (_retry.c),
 * or if the request may go on there (_migrate.c).  Then HELD, SEND, STARVED and
 * QUEUED together have the time limit of tokenring_migrate, from the loss on,
 * and ACCEPTED begins that of QUEUED.
 *
 * (6) GATHER, with no engine chosen, if that depends on the body (_models.c).
 *
 * (7) Or SEAT, if its tenant has no seat free (_seats.c).
 *
 * ECHO, ITEM, RESULT and KV change no state.  ECHO comes in QUEUED, the others
 * from ACCEPTED on: elsewhere they are an x, too.
 *
 * A request ends, with DONE,
 *
 *     in OVER, when everything was sent;
 *     in READ, GATHER or SEND, when its body cannot be read;
 *     in any state, when nginx ends it;
 *     when its client leaves: at once if no engine has all of it, or if it may
 *     go on without the client (detach).  Otherwise ctx->gone is set, the
 *     engine is told to abort, and the states go on for at most a second, to
 *     OVER: the last record has the exact counts.
 *
 * A request that is read from Redis (ctx->follow) has no engine and no body: it
 * goes from NEW to QUEUED, and its records come from Redis.
 *
 * Only ngx_http_tokenring_set_state() changes the state.  A step that is not
 * drawn here is logged as an alert, and stops at debug_points.
 */

typedef enum {
    NGX_HTTP_TOKENRING_NEW = 0,
    NGX_HTTP_TOKENRING_SEAT,
    NGX_HTTP_TOKENRING_WAIT,
    NGX_HTTP_TOKENRING_READ,
    NGX_HTTP_TOKENRING_GATHER,
    NGX_HTTP_TOKENRING_HELD,
    NGX_HTTP_TOKENRING_SEND,
    NGX_HTTP_TOKENRING_STARVED,
    NGX_HTTP_TOKENRING_QUEUED,
    NGX_HTTP_TOKENRING_ACCEPTED,
    NGX_HTTP_TOKENRING_PREFILL,
    NGX_HTTP_TOKENRING_DECODE,
    NGX_HTTP_TOKENRING_OVER,
    NGX_HTTP_TOKENRING_DONE
} ngx_http_tokenring_ctx_state_e;


/* how much of the request the engine has; also needed when it is over */

typedef enum {
    NGX_HTTP_TOKENRING_NOTHING = 0,
    NGX_HTTP_TOKENRING_PART,
    NGX_HTTP_TOKENRING_WHOLE
} ngx_http_tokenring_body_e;


/* a run of an engine that did not go on with a request */

typedef struct ngx_http_tokenring_note_s  ngx_http_tokenring_note_t;

struct ngx_http_tokenring_note_s {
    ngx_http_tokenring_conn_t      *conn;
    uint64_t                        generation;
    ngx_uint_t                      gave;    /* it back, from its queue */
    ngx_http_tokenring_note_t      *next;
};


/* what every token touches comes first, in few cache lines */

struct ngx_http_tokenring_ctx_s {
    ngx_http_request_t             *request;
    ngx_http_tokenring_loc_conf_t  *conf;
    ngx_http_tokenring_group_t     *group;   /* where it may go */
    ngx_http_tokenring_conn_t      *conn;    /* NULL without a slot */
    uint64_t                        id;

    ngx_queue_t                     dirty;   /* in conn->dirty */

    ngx_http_tokenring_ctx_state_e  state;
    ngx_http_tokenring_ctx_state_e  before;  /* the state before */

    unsigned                        endpoint:8;
    unsigned                        body_sent:2;

    /* options of the request: the same in all states */
    unsigned                        resumable:1;
    unsigned                        detach:1;    /* may go on alone */
    unsigned                        reread:1;    /* a response that is kept:
                                                    as this request wants it */
    unsigned                        restream:1;  /* as a stream */

    /* the form of the response, as ACCEPTED said; another engine keeps it,
     * since the response may have begun */
    unsigned                        stream:1;
    unsigned                        include_usage:1;
    unsigned                        with_logprobs:1;
    unsigned                        usage_stats:1;  /* in each chunk */
    unsigned                        items:1;        /* choices have them */
    unsigned                        ordered:1;      /* as its endpoint */
    unsigned                        tier:2;         /* enum tr_tier, if the
                                                       client asked for one */

    /* the client and its socket, which change in any state */
    unsigned                        gone:1;      /* it left before the end */
    unsigned                        blocked:1;   /* it takes nothing now */
    unsigned                        comment:1;   /* a keep-alive is due */
    unsigned                        spoken:1;    /* a record was queued: an
                                                    error is an event after */

    /* flow control towards the engine, which is independent of the state */
    unsigned                        paused:1;
    unsigned                        cut:1;       /* a budget is empty: the
                                                    engine was told to end */
    unsigned                        is_dirty:1;  /* in conn->dirty */

    /* whether the body can be sent again, whatever the state */
    unsigned                        foreign_body:1;  /* read by another, or
                                                        in a file: it stays */
    unsigned                        lost_body:1;     /* it is not kept */
    unsigned                        retried:1;       /* an engine died */
    unsigned                        uploading:1;     /* in the uploads */
    unsigned                        limited:1;       /* by its plan: 429 */
    unsigned                        routed:1;        /* its body says where it
                                                        goes */
    unsigned                        picked:1;        /* that is known but for
                                                        the engine */

    /* a request that can go on at another engine (_migrate.c) */
    unsigned                        with_ids:1;      /* DELTAs have them */
    unsigned                        movable:1;       /* all is kept for it */
    unsigned                        stored:1;        /* its output, in Redis */
    unsigned                        stays:1;         /* told its engine so */
    unsigned                        moving:1;        /* not accepted there */
    unsigned                        refused:1;       /* by an engine there */
    unsigned                        unserved:1;      /* accepted, given back */
    unsigned                        halted:1;        /* nothing told there */
    unsigned                        anew:1;          /* lost its engine before
                                                        it began, and waits */

    /* an error to send, after what came before it */
    tr_status_t                     error;

    ngx_http_tokenring_result_t    *result;  /* NULL: it generates text */

    ngx_uint_t                      nchoices;
    ngx_http_tokenring_choice_t    *choices;

    /* text and logprobs not rendered yet, bytes */
    size_t                          pending;

    /* resumable streams: numbers of records */
    uint64_t                        number;  /* of the last that arrived */
    uint64_t                        after;   /* of the last the client has */
    ngx_http_tokenring_follow_t    *follow;  /* it is read from Redis */
    uint64_t                        skip;    /* events that the client has */

    ngx_msec_t                      deadline;
    ngx_msec_t                      sent;    /* last output, for comments */
    uint64_t                        first_us;
    uint64_t                        last_us;
    uint64_t                        completion_tokens;
    ngx_http_tokenring_use_t       *use;     /* NULL: without a plan */

    ngx_http_tokenring_text_t       head;    /* of every chunk */
    ngx_str_t                       tail;    /* of a chunk with text only */
    ngx_http_tokenring_text_t       out;     /* unless it is spare, _send.c */
    ngx_chain_t                     link;
    ngx_buf_t                       buf;

    /* what the output filters keep for this stream, to be prefetched */
    u_char                         *kept_by_filters;
    size_t                          kept_by_filters_size;

    ngx_queue_t                     wait;    /* in the queue of the state */
    ngx_queue_t                     upload;  /* bodies that are coming */
    uint64_t                        upload_tenant;  /* hashed, if routed */
    tr_pace_t                       pace;    /* of its body */
    ngx_event_t                     timer;

    ngx_str_t                       request_id;
    ngx_str_t                       completion;  /* 32 hex digits */
    ngx_http_tokenring_models_t    *models;  /* NULL: those of the engines */
    ngx_http_tokenring_scan_t      *scan;    /* of its body, if routed */
    ngx_http_tokenring_prefix_t    *prefix;  /* NULL: not looked at */
    ngx_str_t                       asked;   /* the model that it names */
    ngx_str_t                       wanted;  /* an engine's; empty: any */
    ngx_uint_t                      falls;   /* to another model */

    ngx_chain_t                    *body;
    ngx_chain_t                   **last_body;
    size_t                          ahead;   /* bytes of it, before the body */
    ngx_buf_t                      *piece;   /* of a body in a file */
    ngx_chain_t                    *kept;    /* the whole body, to send again */
    ngx_chain_t                   **last_kept;
    size_t                          kept_size;
    size_t                          charged; /* bytes, to the body memory */
    uint64_t                        tried;   /* bit: conn_bit() */
    ngx_uint_t                      moves;
    ngx_uint_t                      given;   /* of these, for no loss */
    uint64_t                        moved_at; /* tokens at the last of them */
    ngx_uint_t                      charges; /* see _suspects.c */
    ngx_msec_t                      move_deadline;  /* to be accepted by */
    ngx_msec_t                      halted_since;   /* if halted */
    ngx_http_tokenring_note_t      *notes;   /* of its moves */
    ngx_buf_t                      *replay;  /* block ahead of the body */
    size_t                          held;    /* bytes, of the worker's */
    ngx_http_tokenring_text_t       late[2]; /* its last records, which Redis
                                                may lack: older, newer */
    ngx_msec_t                      late_since;   /* of the newer ones */
    uint64_t                        late_number;  /* of the last of them */
    uint64_t                        seed;
    uint64_t                        exact_id;
    uint8_t                         model_id[TR_MODEL_ID];
    uint32_t                        max_model_len;
    ngx_http_tokenring_shared_t    *shared;

    ngx_http_tokenring_text_t       repeated; /* from ECHOs */

    /* from ACCEPTED */
    ngx_str_t                       model;
    ngx_str_t                       policy;  /* of the KV cache */
    int64_t                         created;
    ngx_uint_t                      left;    /* choices not finished */

    uint64_t                        error_number;
    ngx_http_tokenring_text_t       queue;
    ngx_str_t                       key;     /* whose it is */

    /* for the log */
    uint64_t                        start_us;
    uint64_t                        prompt_tokens;
    tr_wire_finish_t                totals;
    ngx_uint_t                      reason;
    ngx_str_t                       stop;    /* string that ended it */

    /* of the error */
    ngx_uint_t                      retry_after;
    ngx_str_t                       param;
    ngx_str_t                       message;
};


/* _variables.c */

/* is it known how many tokens it has taken? */
ngx_uint_t ngx_http_tokenring_counted(ngx_http_tokenring_ctx_t *ctx);


/* _handler.c */

/* handler of tokenring_pass */
ngx_int_t ngx_http_tokenring_handler(ngx_http_request_t *r);

/* of r->pool, with its cleanups, and r's ctx from now on; NULL: no memory */
ngx_http_tokenring_ctx_t *ngx_http_tokenring_create_ctx(ngx_http_request_t *r,
    ngx_uint_t endpoint);

/* the endpoint that r's path names, 0: none of those that take a prompt */
ngx_uint_t ngx_http_tokenring_endpoint_of(ngx_http_request_t *r);

/* a new completion id, TR_COMPLETION_LEN bytes at p; NGX_ERROR: no random */
ngx_int_t ngx_http_tokenring_name_completion(ngx_http_tokenring_ctx_t *ctx,
    u_char *p);

/* X-Request-Id for a response without a ctx */
ngx_int_t ngx_http_tokenring_add_request_id(ngx_http_request_t *r);


/* _admit.c */

/*
 * NGX_OK: the request has a connection and a slot; NGX_AGAIN: it waits for one;
 * NGX_DECLINED: it is refused, the failure stands in ctx.
 */
ngx_int_t ngx_http_tokenring_admit(ngx_http_tokenring_ctx_t *ctx);

/* what it waited for is there, or may be: it goes on, or ends */
void ngx_http_tokenring_resume_waiting(ngx_http_tokenring_ctx_t *ctx);

/* a handshake of the engine has ended, well or badly: those who wait are looked
 * at again, and may end */
void ngx_http_tokenring_wake(ngx_http_tokenring_engine_t *engine);


/* is this error the end of the request's engine, or of its device? */
#define ngx_http_tokenring_died(error)                                        \
    ((error) == TR_ERR_CLOSED || (error) == TR_ERR_LOST)


/* _suspects.c */

typedef struct {
    ngx_uint_t                      n;
    uint64_t                        names[TR_STATUS_FRESH];
} ngx_http_tokenring_suspects_t;

/* who was being started when this connection's engine crashed; n is 0 if it has
 * not.  Its status page is still mapped */
void ngx_http_tokenring_suspects(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_suspects_t *suspects);

/* charges the request if it is one of them, and fails it with TR_ERR_REFUSED if
 * it is known by now to be the reason */
void ngx_http_tokenring_suspect(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_suspects_t *suspects);

/* is its body, which is complete, that of one which was refused so? */
ngx_uint_t ngx_http_tokenring_suspect_known(ngx_http_tokenring_ctx_t *ctx);


/* _record.c */

/*
 * A record of the engine's, from its ring or from Redis (conn is NULL then);
 * payload is borrowed.  Nothing is sent and nothing ends, ctx becomes dirty.
 * NGX_ERROR: nobody should listen to this engine any longer.
 */
ngx_int_t ngx_http_tokenring_record(ngx_http_tokenring_ctx_t *ctx,
    tr_record_t *rec, u_char *payload);

/* of these, an ACCEPTED (_accepted.c); NGX_DECLINED: it is not right;
 * NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_accepted(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);

/* the engine is told to end it, and the answer is what has come until then */
void ngx_http_tokenring_end_here(ngx_http_tokenring_ctx_t *ctx);


/* _request.c */

/* the gateway's own reason to end a request, unless there is one; message is a
 * literal.  The caller flushes */
void ngx_http_tokenring_fail(ngx_http_tokenring_ctx_t *ctx, tr_status_t error,
    const char *message);

/* from now on the client has only to stay; it may have left already, which is
 * seen later, from the event loop */
void ngx_http_tokenring_watch(ngx_http_tokenring_ctx_t *ctx);

/*
 * A new state: ctx leaves the queue of the one that it had, joins that of the
 * new one, and gets its time limit.  WAIT and HELD may be entered again, at the
 * end of the queue: the time goes on.
 */
void ngx_http_tokenring_set_state(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_ctx_state_e state);

/* the timer fires no later than ctx->deadline, or the next comment */
void ngx_http_tokenring_arm(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_timer(ngx_event_t *ev);

/* has it?  Asks the socket where nobody else does */
ngx_uint_t ngx_http_tokenring_client_left(ngx_http_request_t *r);

/* it has, or nothing can be sent to it; may end the request */
void ngx_http_tokenring_hang_up(ngx_http_tokenring_ctx_t *ctx);

/* the request ends; called once or more often, data is the ctx */
void ngx_http_tokenring_cleanup(void *data);
void ngx_http_tokenring_pool_cleanup(void *data);


#endif /* _NGX_HTTP_TOKENRING_REQUEST_H_INCLUDED_ */
