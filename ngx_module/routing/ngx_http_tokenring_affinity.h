/*
 * Requests of one value stay at one engine (_affinity.c).
 */

#ifndef _NGX_HTTP_TOKENRING_AFFINITY_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_AFFINITY_H_INCLUDED_


#include "ngx_http_tokenring.h"


/* tokens of load that an engine may have beyond what it is compared with, so
 * that little load does not decide: of _choose.c and _affinity.c */
#define NGX_HTTP_TOKENRING_WARM  2048


/* has the request a value?  *hash: of it */
ngx_uint_t ngx_http_tokenring_affinity_value(ngx_http_tokenring_ctx_t *ctx,
    uint64_t *hash);

/* of n > 0 connections that may take it */
ngx_http_tokenring_conn_t *ngx_http_tokenring_affinity_best(
    ngx_http_tokenring_conn_t **conns, ngx_uint_t n, uint64_t value);


#endif /* _NGX_HTTP_TOKENRING_AFFINITY_H_INCLUDED_ */
