/*
 * Which engines had a body's beginning before (_prefix.c).
 */

#ifndef _NGX_HTTP_TOKENRING_PREFIX_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_PREFIX_H_INCLUDED_


#include "ngx_http_tokenring_request.h"


/* bytes of a block, and how many blocks of a body are looked at */
#define NGX_HTTP_TOKENRING_PREFIX_BLOCK   1024
#define NGX_HTTP_TOKENRING_PREFIX_BLOCKS  64


/* of r->pool */

struct ngx_http_tokenring_prefix_s {
    ngx_uint_t                      n;       /* blocks */
    ngx_uint_t                      matched; /* of these, at its engine */
    uint64_t                        hash[NGX_HTTP_TOKENRING_PREFIX_BLOCKS];
    uint64_t                        generation[
                                            NGX_HTTP_TOKENRING_PREFIX_BLOCKS];
};


/* are bodies here to be looked at, and gathered for that? */
ngx_uint_t ngx_http_tokenring_prefix_wanted(ngx_http_tokenring_ctx_t *ctx);

/* all of the body is here: makes ctx->prefix, NULL if there is none */
void ngx_http_tokenring_prefix_read(ngx_http_tokenring_ctx_t *ctx);

/* looks up where ctx->prefix was; then how many blocks of it this engine has */
void ngx_http_tokenring_prefix_look(ngx_http_tokenring_ctx_t *ctx);
ngx_uint_t ngx_http_tokenring_prefix_match(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn);

/* the request goes to this engine */
void ngx_http_tokenring_prefix_note(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn);

/* the engine has begun it, with so many tokens from its cache */
void ngx_http_tokenring_prefix_started(ngx_http_tokenring_ctx_t *ctx,
    uint32_t cached_tokens);


#endif /* _NGX_HTTP_TOKENRING_PREFIX_H_INCLUDED_ */
