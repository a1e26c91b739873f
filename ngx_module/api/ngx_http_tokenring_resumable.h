/*
 * Answers that can be taken up again, and whose they are.
 */

#ifndef _NGX_HTTP_TOKENRING_RESUMABLE_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_RESUMABLE_H_INCLUDED_


#include "ngx_http_tokenring.h"

#include <tokenring/error.h>
#include <tokenring/wire.h>


/* what the location and the client want; *why is a literal, set with an error
 * that is to be told to the client */
tr_status_t ngx_http_tokenring_resumable_init(ngx_http_tokenring_ctx_t *ctx,
    const char **why);

/* the same, for the engine */
void ngx_http_tokenring_resumable_submit(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_submit_t *head);

/* what Redis keeps of a key: TR_OWNER_LEN bytes at owner */
void ngx_http_tokenring_owner(ngx_str_t *id, ngx_str_t *key, u_char *owner);

/* whose cached prefixes it shares: TR_CACHE_KEY bytes at key */
void ngx_http_tokenring_cache_key(ngx_http_request_t *r, u_char *key);

/* who may go on with its response: TR_HOLDER bytes at holder */
void ngx_http_tokenring_holder(ngx_http_request_t *r, u_char *holder);

/* the value of a header of the request, borrowed from r, or NULL */
ngx_str_t *ngx_http_tokenring_header_in(ngx_http_request_t *r,
    const char *name);


#endif /* _NGX_HTTP_TOKENRING_RESUMABLE_H_INCLUDED_ */
