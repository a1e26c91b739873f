/*
 * What requests use that go on without their clients (_alone.c).
 */

#ifndef _NGX_HTTP_TOKENRING_ALONE_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_ALONE_H_INCLUDED_


#include "ngx_http_tokenring_tenants.h"

#include <tokenring/wire.h>


/* ctx's client leaves, and its engine goes on: the engine is told so, and what
 * is returned belongs to its slot; NULL: nothing of it is counted here */
ngx_http_tokenring_use_t *ngx_http_tokenring_alone(
    ngx_http_tokenring_ctx_t *ctx);

/* its ACCEPTED comes only now */
void ngx_http_tokenring_alone_accepted(ngx_http_tokenring_use_t *use,
    tr_wire_accepted_t *head);

/* takes what its prompt had, and what is there for its answer */
void ngx_http_tokenring_alone_draw(ngx_http_tokenring_use_t *use, int64_t in);

/* it has ended, with so many tokens: frees use */
void ngx_http_tokenring_alone_end(ngx_http_tokenring_use_t *use,
    uint64_t tokens);


#endif /* _NGX_HTTP_TOKENRING_ALONE_H_INCLUDED_ */
