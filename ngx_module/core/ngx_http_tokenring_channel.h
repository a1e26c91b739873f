/*
 * The channel of an engine connection: slots, doorbells, and the way of
 * records to their requests.
 *
 * A slot is a request's place at the engine.  It belongs to the connection and
 * is taken by a request, which finds it by ctx->conn and ctx->id:
 *
 *     free --take--> used by a ctx --last record--> free
 *                      |       |
 *                      |       +--return (nothing was sent)--> free
 *                      +--abandon--> used by nobody --last record--> free
 *
 * A record for a slot that nobody uses is dropped, and so is one of an earlier
 * generation of its slot.
 */

#ifndef _NGX_HTTP_TOKENRING_CHANNEL_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_CHANNEL_H_INCLUDED_


#include "ngx_http_tokenring_engine.h"


/* free: ctx is NULL, used is 0; abandoned by its request: used, ctx is NULL */

struct ngx_http_tokenring_slot_s {
    ngx_http_tokenring_ctx_t       *ctx;
    uint64_t                        tokens;      /* counted in conn's */
    uint32_t                        generation;
    uint32_t                        next;
    unsigned                        used:1;
    unsigned                        known:1;     /* the engine counts it */
    unsigned                        coming:1;    /* its body is not whole */
};


/* takes the descriptors, also when it fails; NGX_ERROR: it is not acceptable */
ngx_int_t ngx_http_tokenring_channel_open(ngx_http_tokenring_conn_t *conn,
    int fds[TR_CHANNEL_FDS]);
void ngx_http_tokenring_channel_close(ngx_http_tokenring_conn_t *conn);

/* NGX_OK: ctx has a slot, and ctx->conn is set; NGX_DECLINED: none is free */
ngx_int_t ngx_http_tokenring_slot_take(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_ctx_t *ctx);

/* as if it had not been taken: nothing of the request was sent */
void ngx_http_tokenring_slot_return(ngx_http_tokenring_ctx_t *ctx);

/* the last part of the request's body was sent */
void ngx_http_tokenring_slot_whole(ngx_http_tokenring_ctx_t *ctx);

/* the request wants no more of the engine, which is told; conn becomes NULL */
void ngx_http_tokenring_slot_abandon(ngx_http_tokenring_ctx_t *ctx);

/* what the request wants now, and nothing else: TR_CONTROL_ABORT, _PAUSE,
 * _DETACH, or 0 to go on */
void ngx_http_tokenring_control(ngx_http_tokenring_ctx_t *ctx, uint32_t bits);

/*
 * Takes records out of the rings, at most budget of them and once round the
 * rings.  NGX_OK: empty; NGX_AGAIN: the budget is spent; NGX_ERROR: broken.
 */
ngx_int_t ngx_http_tokenring_drain(ngx_http_tokenring_conn_t *conn,
    ngx_uint_t budget);

/* the request has something to tell its client; conn may be NULL */
void ngx_http_tokenring_dirty(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_ctx_t *ctx);

/* tells them all; any request may have ended when this returns */
void ngx_http_tokenring_flush_dirty(ngx_http_tokenring_conn_t *conn);

/* wakes the engine */
void ngx_http_tokenring_ring(ngx_http_tokenring_conn_t *conn);

/* monotonic, in microseconds, the same for engine and worker */
uint64_t ngx_http_tokenring_clock(void);


#endif /* _NGX_HTTP_TOKENRING_CHANNEL_H_INCLUDED_ */
