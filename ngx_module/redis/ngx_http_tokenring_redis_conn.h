/*
 * Connections to Redis, for the files that make them: the rest of the module
 * uses ngx_http_tokenring_redis.h.
 *
 * A connection is a part of its redis.  It owns hiredis's context (ac), which
 * owns the descriptor, and the ngx_connection_t round that descriptor (c).
 * Both are NULL while it is IDLE.
 */

#ifndef _NGX_HTTP_TOKENRING_REDIS_CONN_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_REDIS_CONN_H_INCLUDED_


#include "ngx_http_tokenring_redis.h"


/* no more than one attempt to connect in this time, ms */
#define NGX_HTTP_TOKENRING_REDIS_RETRY    100


/* _redis.c */

/* NGX_OK: under way */
ngx_int_t ngx_http_tokenring_redis_connect(
    ngx_http_tokenring_redis_conn_t *conn);

/* it is of use */
void ngx_http_tokenring_redis_works(ngx_http_tokenring_redis_conn_t *conn);

/* we give up; also from within a handler of hiredis's */
void ngx_http_tokenring_redis_close(ngx_http_tokenring_redis_conn_t *conn,
    const char *why);

/* hiredis has given up (data is the connection) */
void ngx_http_tokenring_redis_gone(void *data);

void ngx_http_tokenring_redis_log(ngx_http_tokenring_redis_conn_t *conn,
    const char *what, size_t len);

/* _redis_events.c */

/* events for conn->ac, from now until they are taken off again */
ngx_int_t ngx_http_tokenring_redis_attach(
    ngx_http_tokenring_redis_conn_t *conn);
void ngx_http_tokenring_redis_detach(ngx_http_tokenring_redis_conn_t *conn);

/* _redis_tls.c */

/* NGX_DECLINED: not one of TLS; NGX_ERROR was logged */
ngx_int_t ngx_http_tokenring_redis_tls_parameter(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *value);

/* host: of the address, without its port; what was given is fit to be used */
ngx_int_t ngx_http_tokenring_redis_tls_check(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *host);

ngx_int_t ngx_http_tokenring_redis_tls_init(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis);
void ngx_http_tokenring_redis_tls_free(ngx_http_tokenring_redis_t *redis);

/* ahead of each event: NGX_ERROR closed the connection */
ngx_int_t ngx_http_tokenring_redis_tls(ngx_http_tokenring_redis_conn_t *conn);

/* after it: errors of OpenSSL are kept for the process, not for a connection */
void ngx_http_tokenring_redis_tls_clear(ngx_http_tokenring_redis_conn_t *conn);

/* what went wrong, if it went wrong there; else NULL */
const char *ngx_http_tokenring_redis_tls_why(
    ngx_http_tokenring_redis_conn_t *conn);


/* _redis_commands.c */

/* the timer runs, no later than this */
void ngx_http_tokenring_redis_arm(ngx_http_tokenring_redis_conn_t *conn,
    ngx_msec_t deadline);
void ngx_http_tokenring_redis_timer(ngx_event_t *ev);

/* tells those who wait for a reply that will not come */
void ngx_http_tokenring_redis_lost(ngx_event_t *ev);


/* _redis_channels.c */

/* the connection is there, or is not any more */
void ngx_http_tokenring_channels_up(ngx_http_tokenring_redis_t *redis);
void ngx_http_tokenring_channels_down(ngx_http_tokenring_redis_t *redis);
void ngx_http_tokenring_channels_free(ngx_http_tokenring_redis_t *redis);


#endif /* _NGX_HTTP_TOKENRING_REDIS_CONN_H_INCLUDED_ */
