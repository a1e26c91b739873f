/*
 * GET and DELETE of /v1/requests/ID, DELETE of /v1/responses/ID, GET of
 * /v1/responses/ID/input_items: content handlers, where Redis is configured.
 */

#ifndef _NGX_HTTP_TOKENRING_REQUESTS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_REQUESTS_H_INCLUDED_


#include "ngx_http_tokenring.h"


/* id is borrowed from r */
ngx_int_t ngx_http_tokenring_request_state(ngx_http_request_t *r,
    ngx_str_t *id);
ngx_int_t ngx_http_tokenring_request_cancel(ngx_http_request_t *r,
    ngx_str_t *id);


/* of /v1/responses/ID: a response that is kept */
ngx_int_t ngx_http_tokenring_response_delete(ngx_http_request_t *r,
    ngx_str_t *id);
ngx_int_t ngx_http_tokenring_response_input(ngx_http_request_t *r,
    ngx_str_t *id);


#endif /* _NGX_HTTP_TOKENRING_REQUESTS_H_INCLUDED_ */
