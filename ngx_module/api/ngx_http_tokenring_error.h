/*
 * Errors in OpenAI's shape: {"error":{"message","type","param","code"}}.
 *
 * The functions that send return what a content handler returns, and what
 * ngx_http_finalize_request() takes.  Messages are borrowed.
 */

#ifndef _NGX_HTTP_TOKENRING_ERROR_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_ERROR_H_INCLUDED_


#include "ngx_http_tokenring_text.h"

#include <tokenring/error.h>


/* seconds, in Retry-After of 429 and 503 */
#define NGX_HTTP_TOKENRING_RETRY_AFTER  1

/* what clients are told when an engine dies */
#define NGX_HTTP_TOKENRING_LOST                                               \
    "The engine was lost while it processed this request"

/* and one that is why they die */
#define NGX_HTTP_TOKENRING_REFUSED                                            \
    "This request was being started when two engines stopped, and is not "    \
    "started again."


/* as OpenAI's: {"error":{...}}; code and param may be NULL; NGX_ERROR without
 * memory */
ngx_int_t ngx_http_tokenring_render_error(ngx_http_tokenring_text_t *t,
    const char *type, const char *code, ngx_str_t *param, ngx_str_t *message);

/* the same without the outer braces */
ngx_int_t ngx_http_tokenring_render_error_field(ngx_http_tokenring_text_t *t,
    const char *type, const char *code, ngx_str_t *param, ngx_str_t *message);

/* our own error, with or without a ctx; the message is logged, so that it must
 * not quote the client */
ngx_int_t ngx_http_tokenring_send_error(ngx_http_request_t *r,
    tr_status_t status, const char *message);

/* the error that stands in ctx */
ngx_int_t ngx_http_tokenring_send_failure(ngx_http_tokenring_ctx_t *ctx);

/* one that has no tr_status_t; retry_after in seconds, 0: no header */
ngx_int_t ngx_http_tokenring_send_error_body(ngx_http_request_t *r,
    ngx_uint_t status, const char *type, const char *code, ngx_str_t *param,
    ngx_str_t *message, ngx_uint_t retry_after);

/* one of NGINX's own, such as a body that could not be read */
ngx_int_t ngx_http_tokenring_send_http_error(ngx_http_request_t *r,
    ngx_uint_t status);

/* handler of tokenring_error */
ngx_int_t ngx_http_tokenring_error_handler(ngx_http_request_t *r);


#endif /* _NGX_HTTP_TOKENRING_ERROR_H_INCLUDED_ */
