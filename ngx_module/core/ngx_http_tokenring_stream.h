/*
 * What all event streams have in common: answers (_send.c) and the dashboard's
 * (_sse_client.c).
 *
 * A stream has one buffer.  While the client does not take all of it, the
 * stream is blocked: nothing is written to the buffer, and the write event
 * leads to ngx_http_tokenring_stream_writable().
 */

#ifndef _NGX_HTTP_TOKENRING_STREAM_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_STREAM_H_INCLUDED_


#include "ngx_http_tokenring_text.h"


/* sets the headers of a stream, borrowing the value of Cache-Control; the
 * caller sends them.  NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_stream_headers(ngx_http_request_t *r,
    ngx_str_t *cache_control);

/* b refers to what t has, to be flushed; last: it is the end of the stream */
void ngx_http_tokenring_stream_buf(ngx_buf_t *b, ngx_http_tokenring_text_t *t,
    ngx_uint_t last);

/* does the output filters' rc mean that the client has not taken all of b? */
ngx_uint_t ngx_http_tokenring_stream_slow(ngx_http_request_t *r, ngx_buf_t *b,
    ngx_int_t rc);

/* waits until the client takes more, for send_timeout; NGX_ERROR: no event */
ngx_int_t ngx_http_tokenring_stream_block(ngx_http_request_t *r);

/*
 * A write event.  NGX_OK: a blocked stream goes on; NGX_AGAIN: not yet;
 * NGX_DECLINED: the client is lost, or timed out; NGX_ERROR: no event.
 */
ngx_int_t ngx_http_tokenring_stream_writable(ngx_http_request_t *r,
    ngx_buf_t *b, ngx_uint_t blocked);


#endif /* _NGX_HTTP_TOKENRING_STREAM_H_INCLUDED_ */
