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


typedef enum {
    NGX_HTTP_TOKENRING_WAIT = 0,  /* for an engine's handshake */
    NGX_HTTP_TOKENRING_BODY,      /* the client sends, we or the ring take */
    NGX_HTTP_TOKENRING_QUEUE,     /* all sent, not scheduled yet */
    NGX_HTTP_TOKENRING_PREFILL,   /* scheduled, no token yet */
    NGX_HTTP_TOKENRING_DECODE,
    NGX_HTTP_TOKENRING_GONE,      /* client left: until the last counts */
    NGX_HTTP_TOKENRING_DONE       /* finalized, or about to be */
} ngx_http_tokenring_phase_e;


/* what every token touches comes first, in few cache lines */

struct ngx_http_tokenring_ctx_s {
    ngx_http_request_t             *request;
    ngx_http_tokenring_loc_conf_t  *conf;
    ngx_http_tokenring_conn_t      *conn;    /* NULL without a slot */
    uint64_t                        id;

    ngx_queue_t                     dirty;   /* in conn->dirty */

    unsigned                        endpoint:8;
    unsigned                        foreign_body:1;  /* read before us */
    unsigned                        gathering:1;     /* no engine has it yet */
    unsigned                        lost_body:1;     /* not to be sent again */
    unsigned                        retried:1;       /* its engine died */
    unsigned                        begun:1;         /* its body is read */
    unsigned                        submitted:1;     /* a part is out */
    unsigned                        complete:1;      /* and so is the last */
    unsigned                        resumable:1;
    unsigned                        detach:1;        /* may go on alone */
    unsigned                        owned:1;         /* key is valid */
    unsigned                        spoken:1;        /* an event is due */
    unsigned                        accepted:1;
    unsigned                        stream:1;
    unsigned                        include_usage:1;
    unsigned                        with_logprobs:1;
    unsigned                        over:1;          /* LAST or ERROR came */
    unsigned                        totalled:1;      /* totals are final */
    unsigned                        paused:1;
    unsigned                        blocked:1;       /* client is slow */
    unsigned                        ended:1;         /* all rendered */
    unsigned                        gone:1;
    unsigned                        is_dirty:1;
    unsigned                        is_waiting:1;
    unsigned                        comment:1;      /* one is due */
    unsigned                        counted:1;

    ngx_http_tokenring_phase_e      phase;

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

    ngx_queue_t                     wait;    /* in starving or waiting */
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

/* leaves the queue, engine->waiting or conn->starving */
void ngx_http_tokenring_wait_end(ngx_http_tokenring_ctx_t *ctx);


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

/* a new phase and its time limit */
void ngx_http_tokenring_deadline(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_phase_e phase);

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
