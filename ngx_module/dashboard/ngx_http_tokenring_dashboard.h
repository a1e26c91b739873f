/*
 * The dashboard: one page that shows the whole fleet, as Redis has it, or
 * without a Redis the engines of this NGINX.
 *
 * The dashboard cache (ngx_http_tokenring_cache_t) is what the SSE clients of
 * one worker share: while somebody looks, it reads the fleet from Redis once a
 * second and gives everybody the same event.  An SSE client is an open stream
 * of events.
 *
 *     _dashboard.c                 the directive, the page's files, one
 *                                  request's state
 *     _dashboard_cache.c           rounds of reading Redis, and the event that
 *                                  a round makes
 *     _dashboard_cache_engines.c   heartbeats and samples
 *     _dashboard_cache_local.c     the same of this NGINX's engines, without
 *                                  Redis
 *     _dashboard_cache_requests.c  the latest requests
 *     _sse_client.c                streams of events, and the history that
 *                                  each begins with
 */

#ifndef _NGX_HTTP_TOKENRING_DASHBOARD_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_DASHBOARD_H_INCLUDED_


#include "ngx_http_tokenring.h"


/* handler of tokenring_dashboard, and the directive */
ngx_int_t ngx_http_tokenring_dashboard_handler(ngx_http_request_t *r);
char *ngx_http_tokenring_set_dashboard(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


#endif /* _NGX_HTTP_TOKENRING_DASHBOARD_H_INCLUDED_ */
