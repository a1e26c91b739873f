/*
 * The request body: from the client (_body.c) into the request ring
 * (_submit.c), and what is kept of it for another engine (_retry.c).
 *
 * What is kept lies in r->pool.  Most of these functions may end the request,
 * which each says: then ctx must not be touched any more.
 */

#ifndef _NGX_HTTP_TOKENRING_BODY_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_BODY_H_INCLUDED_


#include "ngx_http_tokenring.h"

#include <tokenring/wire.h>


/* what goes ahead of the body, where ctx->body begins; NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_body_ahead(ngx_http_tokenring_ctx_t *ctx);

/* begins; ctx has a slot, or is routed.  Returns as
 * ngx_http_read_client_request_body() does */
ngx_int_t ngx_http_tokenring_body_read(ngx_http_tokenring_ctx_t *ctx);

/* sends what is there, and reads more if the ring takes it; NGX_DONE: the
 * request has ended */
ngx_int_t ngx_http_tokenring_body_send(ngx_http_tokenring_ctx_t *ctx);

/* the same from the beginning, to another engine */
ngx_int_t ngx_http_tokenring_body_again(ngx_http_tokenring_ctx_t *ctx);

/* reads what the client has sent: NGX_OK: more was read, or the end reached;
 * NGX_AGAIN: nothing now; NGX_ERROR: the request has ended */
ngx_int_t ngx_http_tokenring_body_more(ngx_http_tokenring_ctx_t *ctx);

/* moves what was read to ctx->body */
void ngx_http_tokenring_body_take(ngx_http_tokenring_ctx_t *ctx);

/* bytes that are announced to the engine, or TR_BODY_UNKNOWN */
uint64_t ngx_http_tokenring_body_len(ngx_http_tokenring_ctx_t *ctx);

/* the ring may have space for those that wait for it; may end them */
void ngx_http_tokenring_body_feed(ngx_http_tokenring_conn_t *conn);

/* the body is on its way from the client; it has come, or the request ends */
void ngx_http_tokenring_upload_begin(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_upload_end(ngx_http_tokenring_ctx_t *ctx);

/* after each read: counts what came; the last one ends it */
void ngx_http_tokenring_upload_count(ngx_http_tokenring_ctx_t *ctx);

/* the gateway could not read the body: the request ends with this status, or,
 * if its answer has begun, with an error event */
void ngx_http_tokenring_body_fail(ngx_http_tokenring_ctx_t *ctx, ngx_int_t rc);

/* ends the slowest upload to this engine; NGX_DECLINED: none is slow enough.
 * Only the request of that upload may have ended when this returns */
ngx_int_t ngx_http_tokenring_upload_shed(ngx_http_tokenring_conn_t *conn);

/* the same of those that are gathered whole, of the tenant whose uploads take
 * most of that memory; ctx, which is given more, stays */
ngx_int_t ngx_http_tokenring_upload_yield(ngx_http_tokenring_ctx_t *ctx);

/* bytes that a slow client may have us hold (client_body_buffer_size) */
size_t ngx_http_tokenring_body_held(ngx_http_tokenring_ctx_t *ctx);


/* copies what was read, if it could be sent again; NGX_ERROR: no memory;
 * NGX_DECLINED: above tokenring_body_memory, and no other upload is slow enough
 * to end for this one */
ngx_int_t ngx_http_tokenring_body_keep(ngx_http_tokenring_ctx_t *ctx,
    ngx_chain_t *in);

/* what the request has of tokenring_body_memory is others' again */
void ngx_http_tokenring_body_uncharge(ngx_http_tokenring_ctx_t *ctx);

/* gives up what is kept: the request stays with its engine */
void ngx_http_tokenring_body_forget(ngx_http_tokenring_ctx_t *ctx);

/* puts what is kept into ctx->body again; NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_body_rewind(ngx_http_tokenring_ctx_t *ctx);

/* _migrate.c: a request that has begun and lost its engine.  NGX_OK: it goes on
 * at another one, or waits for one; NGX_DONE: it has ended; NGX_DECLINED: it
 * cannot */
ngx_int_t ngx_http_tokenring_move(ngx_http_tokenring_ctx_t *ctx);

/* what is kept for that: from ACCEPTED on, with each DELTA, to the end */
void ngx_http_tokenring_move_keep(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_accepted_t *head);
void ngx_http_tokenring_move_told(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_delta_t *head, const tr_wire_bytes_t *ids);

/* a record was taken: what Redis may lack of it is kept */
void ngx_http_tokenring_move_tail(ngx_http_tokenring_ctx_t *ctx,
    tr_record_t *rec, u_char *payload);
void ngx_http_tokenring_move_forget(ngx_http_tokenring_ctx_t *ctx);

/* it cannot go on elsewhere: a drain with --move is to wait for it */
void ngx_http_tokenring_move_stays(ngx_http_tokenring_ctx_t *ctx);

/* its engine has sent this error: notes whether another engine may go on */
void ngx_http_tokenring_move_error(ngx_http_tokenring_ctx_t *ctx,
    tr_status_t status);

/* has this run of an engine refused it, or (gave) given it back? */
ngx_uint_t ngx_http_tokenring_move_noted(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn, ngx_uint_t gave);

/* may this request go on there? */
ngx_uint_t ngx_http_tokenring_move_left(ngx_http_tokenring_ctx_t *ctx);
ngx_uint_t ngx_http_tokenring_move_fits(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn);

/* looks again for an engine; NGX_DONE: the request has ended */
ngx_int_t ngx_http_tokenring_move_retry(ngx_http_tokenring_ctx_t *ctx);

/* a request with an error that was not told.  NGX_OK: it goes on at another
 * engine, or has ended; NGX_DECLINED: nobody takes it, the error stands */
ngx_int_t ngx_http_tokenring_retry(ngx_http_tokenring_ctx_t *ctx);

/* a body that was held has an engine, or there is none for it; may end it */
void ngx_http_tokenring_body_resend(ngx_http_tokenring_ctx_t *ctx);


#endif /* _NGX_HTTP_TOKENRING_BODY_H_INCLUDED_ */
