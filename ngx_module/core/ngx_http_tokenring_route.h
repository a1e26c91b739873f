/*
 * What a URI below a location of tokenring_pass asks for.
 */

#ifndef _NGX_HTTP_TOKENRING_ROUTE_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_ROUTE_H_INCLUDED_


#include "ngx_http_tokenring.h"


typedef enum {
    NGX_HTTP_TOKENRING_PROMPT = 0,
    NGX_HTTP_TOKENRING_MODELS,
    NGX_HTTP_TOKENRING_MODEL,
    NGX_HTTP_TOKENRING_REQUEST,
    NGX_HTTP_TOKENRING_REQUEST_STREAM,
    NGX_HTTP_TOKENRING_RESPONSE,
    NGX_HTTP_TOKENRING_RESPONSE_INPUT,
    NGX_HTTP_TOKENRING_NOWHERE
} ngx_http_tokenring_route_e;


/* endpoint: of a PROMPT; id: of what has one, a part of the URI */
ngx_http_tokenring_route_e ngx_http_tokenring_route(ngx_http_request_t *r,
    ngx_str_t *id, ngx_uint_t *endpoint);


#endif /* _NGX_HTTP_TOKENRING_ROUTE_H_INCLUDED_ */
