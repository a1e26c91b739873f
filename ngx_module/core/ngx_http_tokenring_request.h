/*
 * An API request on its way: the ctx, and what happens to it.
 *
 * A ctx lives in r->pool and ends with the request.  Whatever may end the
 * request says so; then the caller must not touch ctx any more.  Texts in it
 * are its own and are freed with the pool; strings are borrowed from the pool
 * or are literals.
 *
 *     _handler.c    where a request begins: routes, admission, waiting
 *     _record.c     what the engine's records do to it
 *     _request.c    what else ends it: hang-ups, timers
 */

#ifndef _NGX_HTTP_TOKENRING_REQUEST_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_REQUEST_H_INCLUDED_


#include "ngx_http_tokenring_text.h"

#include <ngx_event.h>

#include <tokenring/error.h>
#include <tokenring/ring.h>
#include <tokenring/wire.h>


/* of an error that an engine told, bytes */
#define NGX_HTTP_TOKENRING_MESSAGE_MAX  4096


typedef struct {
    ngx_http_tokenring_text_t       text;
    ngx_http_tokenring_text_t       logprobs;
    uint64_t                        offset;  /* characters shown so far */
    unsigned                        reason:8;
    unsigned                        begun:1;
    unsigned                        ended:1;
} ngx_http_tokenring_choice_t;


/*
 * The life of a request.
 *
 *     state     what it is, and where          time limit, from entering it
 *
 *     NEW       not admitted yet               none
 *     WAIT      in engine->waiting, for a      a handshake's
 *               handshake; body untouched
 *     READ      has a slot; NGINX is asked     tokenring_queue_timeout (1)
 *               for the body
 *     GATHER    no slot; the body is kept      tokenring_queue_timeout (1)
 *               here until it is whole
 *     HELD      in engine->waiting, for a      a handshake's
 *               handshake; body kept
 *     SEND      the body goes into the ring    tokenring_queue_timeout (1)
 *     STARVED   in conn->starving: the ring    goes on
 *               is full
 *     QUEUED    all was sent                   tokenring_queue_timeout
 *     ACCEPTED  in the engine's queue          goes on
 *     PREFILL   scheduled, no token yet        tokenring_first_token_timeout
 *     DECODE    tokens come                    tokenring_idle_timeout, from
 *                                              each token
 *     OVER      no record is expected; what    goes on; a slow client has
 *               is pending is sent             send_timeout
 *     DONE      finalized, or about to be      none
 *
 * (1) begins again when it is over: the client is slow, not the engine, and
 * client_body_timeout watches over it.
 *
 * What happens, and the next state.  A dot: it cannot happen, or nothing
 * changes.  An x: the engine broke the protocol, and its channel is closed.
 *
 *               engine  none    body   ring  ring   record              error
 *               chosen  yet     sent   full  space  ACCE STAR DELT LAST fail
 *     NEW       READ    WAIT    .      .     .      .    .    .    .    OVER
 *     WAIT      READ    WAIT    .      .     .      .    .    .    .    OVER
 *     READ      .       .       .      .     .      .    .    .    .    .
 *     GATHER    SEND    HELD    .      .     .      .    .    .    .    OVER
 *     HELD      SEND    HELD    .      .     .      .    .    .    .    OVER
 *     SEND      .       .       QUEUED STARV .      x    x    x    (2)  OVER
 *     STARVED   .       .       .      .     SEND   x    x    x    (2)  OVER
 *     QUEUED    .       .       .      .     .      ACCE x    x    (2)  OVER
 *     ACCEPTED  .       .       .      .     .      x    PREF DECO OVER OVER
 *     PREFILL   .       .       .      .     .      x    .    DECO OVER OVER
 *     DECODE    .       .       .      .     .      x    .    .    OVER OVER
 *     OVER      SEND(3) HELD(3) .      .     .      x    .    .    .    .
 *
 *     READ goes on by itself: to SEND with a body that is whole, else, giving
 *     its slot back, to GATHER.
 *     LAST is FINISH with the last flag; a FINISH without it is as DELTA.
 *     error, fail: an ERROR record, the engine is lost, the time is up, the
 *     gateway gives up.
 *     (2) OVER if the engine aborted the request, else x.
 *     (3) an error that the client has not seen: another engine may take the
 *     request (_retry.c).
 *
 *     all was sent, in OVER:  DONE
 *     the body is not to be read (READ, GATHER, SEND): DONE, with NGINX's error
 *     the client leaves:      DONE, at once where no engine has the whole body
 *                             (or the request may go on alone, "detach"); else
 *                             ctx->gone is set, the engine is told to abort,
 *                             and it goes on for at most a second, to OVER or
 *                             DONE: the last record has the exact counts
 *     nginx ends the request: DONE
 *
 * One that is read from Redis (ctx->follow) has neither engine nor body: it
 * goes from NEW to QUEUED, and its records come from there.
 *
 * ngx_http_tokenring_set_state() is the only place where the state changes;
 * what is not in the table is logged as an alert, and stops at a debug point.
 */

typedef enum {
    NGX_HTTP_TOKENRING_NEW = 0,
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


/* what the engine has of the body: what it may know of the request, also when
 * that is over */

typedef enum {
    NGX_HTTP_TOKENRING_NOTHING = 0,
    NGX_HTTP_TOKENRING_PART,
    NGX_HTTP_TOKENRING_WHOLE
} ngx_http_tokenring_body_e;


/* what every token touches comes first, in few cache lines */

struct ngx_http_tokenring_ctx_s {
    ngx_http_request_t             *request;
    ngx_http_tokenring_loc_conf_t  *conf;
    ngx_http_tokenring_conn_t      *conn;    /* NULL without a slot */
    uint64_t                        id;

    ngx_queue_t                     dirty;   /* in conn->dirty */

    ngx_http_tokenring_ctx_state_e  state;
    ngx_http_tokenring_ctx_state_e  before;  /* the state before, for the log */

    unsigned                        endpoint:8;
    unsigned                        body_sent:2;

    /* how it was asked for: the same in all states */
    unsigned                        resumable:1;
    unsigned                        detach:1;    /* may go on alone */

    /* what the response is like; it stays when another engine takes over,
     * since the response may have begun */
    unsigned                        stream:1;
    unsigned                        include_usage:1;
    unsigned                        with_logprobs:1;

    /* the client and its socket: may come at any state */
    unsigned                        gone:1;      /* it left before the end */
    unsigned                        blocked:1;   /* it takes nothing now */
    unsigned                        comment:1;   /* a keep-alive is due */
    unsigned                        spoken:1;    /* an event is in the queue,
                                                    or was: errors follow it */

    /* the engine: flow control goes its own way */
    unsigned                        paused:1;
    unsigned                        is_dirty:1;  /* in conn->dirty */

    /* whether the body can be sent again: of the body, not of a state */
    unsigned                        foreign_body:1;  /* read before us */
    unsigned                        lost_body:1;     /* is not kept */
    unsigned                        retried:1;       /* its engine died */

    /* an error to tell, once what came before it is told */
    tr_status_t                     error;

    ngx_uint_t                      nchoices;
    ngx_http_tokenring_choice_t    *choices;

    /* text and logprobs not rendered yet, bytes */
    size_t                          pending;

    /* resumable streams: numbers of records, and those not rendered yet */
    uint64_t                        number;  /* of the last that came */
    uint64_t                        after;   /* the client has those to this */
    ngx_http_tokenring_follow_t    *follow;  /* it is read from Redis */

    ngx_msec_t                      deadline;
    ngx_msec_t                      sent;    /* last output, for comments */
    uint64_t                        first_us;
    uint64_t                        last_us;
    uint64_t                        completion_tokens;

    ngx_http_tokenring_text_t       head;    /* of every chunk */
    ngx_str_t                       tail;    /* of a chunk with text only */
    ngx_http_tokenring_text_t       out;     /* unless it is spare, _send.c */
    ngx_chain_t                     link;
    ngx_buf_t                       buf;

    /* what the output filters keep for this stream, to be fetched ahead */
    u_char                         *kept_by_filters;
    size_t                          kept_by_filters_size;

    ngx_queue_t                     wait;    /* where the state says */
    ngx_event_t                     timer;

    ngx_str_t                       request_id;
    ngx_str_t                       completion;  /* 32 hex digits */
    ngx_chain_t                    *body;
    ngx_chain_t                   **last_body;
    ngx_buf_t                      *piece;   /* of a body in a file */
    ngx_chain_t                    *kept;    /* the whole body, to send again */
    ngx_chain_t                   **last_kept;
    size_t                          kept_size;
    uint64_t                        tried;   /* bit: replica of the engine */
    ngx_http_tokenring_shared_t    *shared;

    /* from ACCEPTED */
    ngx_str_t                       model;
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

    /* of the error */
    ngx_uint_t                      retry_after;
    ngx_str_t                       param;
    ngx_str_t                       message;
};


/* _handler.c */

/* handler of tokenring_pass */
ngx_int_t ngx_http_tokenring_handler(ngx_http_request_t *r);

/* of r->pool, with its cleanups, and r's ctx from now on; NULL: no memory */
ngx_http_tokenring_ctx_t *ngx_http_tokenring_create_ctx(ngx_http_request_t *r,
    ngx_uint_t endpoint);

/*
 * NGX_OK: the request has a connection and a slot; NGX_AGAIN: it waits for one;
 * NGX_DECLINED: it is refused, the failure stands in ctx.
 */
ngx_int_t ngx_http_tokenring_admit(ngx_http_tokenring_ctx_t *ctx);

/* a new completion id, TR_COMPLETION_LEN bytes at p; NGX_ERROR: no random */
ngx_int_t ngx_http_tokenring_name_completion(ngx_http_tokenring_ctx_t *ctx,
    u_char *p);

/* a handshake has ended, well or badly: those who wait are looked at again,
 * and may end */
void ngx_http_tokenring_wake(ngx_http_tokenring_engine_t *engine);


/* _record.c */

/*
 * A record of the engine's, from its ring or from Redis (conn is NULL then);
 * payload is borrowed.  Nothing is sent and nothing ends, ctx becomes dirty.
 * NGX_ERROR: nobody should listen to this engine any longer.
 */
ngx_int_t ngx_http_tokenring_record(ngx_http_tokenring_ctx_t *ctx,
    tr_record_t *rec, u_char *payload);


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
