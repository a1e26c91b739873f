/*
 * The channel of an engine connection: doorbells, and the way of records to
 * their requests, which it finds by their slots (_slot.h).
 */

#ifndef _NGX_HTTP_TOKENRING_CHANNEL_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_CHANNEL_H_INCLUDED_


#include "ngx_http_tokenring_engine.h"


/* takes the descriptors, also when it fails; NGX_ERROR: it is not acceptable */
ngx_int_t ngx_http_tokenring_channel_open(ngx_http_tokenring_conn_t *conn,
    int fds[TR_CHANNEL_FDS]);
void ngx_http_tokenring_channel_close(ngx_http_tokenring_conn_t *conn);

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
