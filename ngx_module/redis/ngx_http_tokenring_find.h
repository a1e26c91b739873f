/*
 * Finding a request in Redis for a client that names it.
 *
 * A find is a part of its caller's structure, in r->pool; the caller ends it
 * when r ends.
 */

#ifndef _NGX_HTTP_TOKENRING_FIND_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_FIND_H_INCLUDED_


#include "ngx_http_tokenring_state.h"

#include <ngx_event.h>


/* rc: NGX_OK: it is find->rec, and the client may see it; NGX_DECLINED: for
 * this client there is no such request; NGX_ERROR: unknown.  May end r */

typedef void (*ngx_http_tokenring_found_pt)(void *data, ngx_int_t rc);

/* to be zeroed; the caller sets the first five fields */

typedef struct {
    ngx_http_request_t           *request;
    ngx_http_tokenring_redis_t   *redis;
    ngx_str_t                     id;
    ngx_http_tokenring_found_pt   handler;
    void                         *data;
    ngx_http_tokenring_stored_t   rec;
    ngx_http_tokenring_call_t    *call;
    ngx_event_t                   timer;
    ngx_uint_t                    again;         /* looks before this one */
    unsigned                      response:1;    /* set by the caller: one that
                                                    is kept, by its holder */
} ngx_http_tokenring_find_t;

/* NGX_OK: handler is called once, later, unless _end is called before;
 * NGX_ERROR: Redis cannot be reached */
ngx_int_t ngx_http_tokenring_find(ngx_http_tokenring_find_t *find);
void ngx_http_tokenring_find_end(ngx_http_tokenring_find_t *find);


#endif /* _NGX_HTTP_TOKENRING_FIND_H_INCLUDED_ */
