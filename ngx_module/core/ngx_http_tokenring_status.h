/*
 * What is answered from the engines' status pages, at once: /v1/models
 * (_list.c) and health (_status.c).  Both return what a content handler
 * returns.
 */

#ifndef _NGX_HTTP_TOKENRING_STATUS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_STATUS_H_INCLUDED_


#include "ngx_http_tokenring.h"


/* the list of models, or the one of this id (borrowed; NULL: the list) */
ngx_int_t ngx_http_tokenring_models(ngx_http_request_t *r, ngx_str_t *id);

/* handler of tokenring_health */
ngx_int_t ngx_http_tokenring_health_handler(ngx_http_request_t *r);


#endif /* _NGX_HTTP_TOKENRING_STATUS_H_INCLUDED_ */
