/*
 * From what is pending to the client (_send.c), and the last step into its
 * socket (_socket.c).
 */

#ifndef _NGX_HTTP_TOKENRING_SEND_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_SEND_H_INCLUDED_


#include "ngx_http_tokenring_text.h"


/* sends what there is to send, or looks for another engine; the request may
 * have ended when this returns */
void ngx_http_tokenring_flush(ngx_http_tokenring_ctx_t *ctx);

/* the client takes more: a write_event_handler */
void ngx_http_tokenring_write_handler(ngx_http_request_t *r);

/* ends the request: ctx is gone with it */
void ngx_http_tokenring_finalize(ngx_http_tokenring_ctx_t *ctx, ngx_int_t rc);

/* key is a literal, value is borrowed by r; NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_add_header(ngx_http_request_t *r,
    const char *key, ngx_str_t *value);
ngx_int_t ngx_http_tokenring_add_ids(ngx_http_tokenring_ctx_t *ctx);

/* a response in one piece, as a content handler returns; t stays the caller's
 * and must outlive r */
ngx_int_t ngx_http_tokenring_send_body(ngx_http_request_t *r,
    ngx_uint_t status, const char *type, ngx_http_tokenring_text_t *t);


/* small events leave this connection in one piece, until it is returned */
void ngx_http_tokenring_socket_take(ngx_connection_t *c);
void ngx_http_tokenring_socket_return(ngx_connection_t *c);


#endif /* _NGX_HTTP_TOKENRING_SEND_H_INCLUDED_ */
