/*
 * The slots of an engine connection.
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

#ifndef _NGX_HTTP_TOKENRING_SLOT_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_SLOT_H_INCLUDED_


#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_tenants.h"


/* free: ctx is NULL, used is 0; abandoned by its request: used, ctx is NULL */

struct ngx_http_tokenring_slot_s {
    ngx_http_tokenring_ctx_t       *ctx;
    uint64_t                        tokens;      /* counted in conn's */
    uint32_t                        generation;
    uint32_t                        next;
    ngx_http_tokenring_use_t       *alone;       /* of one whose client left,
                                                    or NULL */
    unsigned                        used:1;
    unsigned                        known:1;     /* the engine counts it */
    unsigned                        coming:1;    /* its body is not whole */
};


/* conn->map.slots of them, all free; NGX_ERROR: without memory */
ngx_int_t ngx_http_tokenring_slots_create(ngx_http_tokenring_conn_t *conn);

/* also when there are none; their requests were told before */
void ngx_http_tokenring_slots_free(ngx_http_tokenring_conn_t *conn);

/* NGX_OK: ctx has a slot, and ctx->conn is set; NGX_DECLINED: none is free */
ngx_int_t ngx_http_tokenring_slot_take(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_ctx_t *ctx);

/* as if it had not been taken: nothing of the request was sent */
void ngx_http_tokenring_slot_return(ngx_http_tokenring_ctx_t *ctx);

/* the last part of the request's body was sent */
void ngx_http_tokenring_slot_whole(ngx_http_tokenring_ctx_t *ctx);

/* the engine's ACCEPTED came: from now on its status page counts slot n */
void ngx_http_tokenring_slot_known(ngx_http_tokenring_conn_t *conn,
    uint32_t n, u_char *payload, size_t len);

/* the engine's last record came, or nothing was sent; n is in use */
void ngx_http_tokenring_slot_free(ngx_http_tokenring_conn_t *conn,
    uint32_t n);

/* the request wants no more of the engine, which is told; conn becomes NULL */
void ngx_http_tokenring_slot_abandon(ngx_http_tokenring_ctx_t *ctx);

/* the engine may sample as many tokens of it as were taken from its tenant's
 * budgets */
void ngx_http_tokenring_allow(ngx_http_tokenring_ctx_t *ctx);

/* what the request wants now, and nothing else: TR_CONTROL_ABORT, _PAUSE,
 * _DETACH, or 0 to go on; _STAY is added where it holds */
void ngx_http_tokenring_control(ngx_http_tokenring_ctx_t *ctx, uint32_t bits);


#endif /* _NGX_HTTP_TOKENRING_SLOT_H_INCLUDED_ */
