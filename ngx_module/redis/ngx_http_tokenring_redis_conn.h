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

/* NGX_OK: in progress */
ngx_int_t ngx_http_tokenring_redis_connect(
    ngx_http_tokenring_redis_conn_t *conn);

/* the connection works: end of an outage */
void ngx_http_tokenring_redis_works(ngx_http_tokenring_redis_conn_t *conn);

/* we give up; also from within a callback of hiredis; why is logged */
void ngx_http_tokenring_redis_close(ngx_http_tokenring_redis_conn_t *conn,
    const char *why);

/* hiredis has given up; data is the connection */
void ngx_http_tokenring_redis_gone(void *data);

void ngx_http_tokenring_redis_log(ngx_http_tokenring_redis_conn_t *conn,
    const char *what, size_t len);

/* _redis_events.c */

/* events for conn->ac, until they are detached */
ngx_int_t ngx_http_tokenring_redis_attach(
    ngx_http_tokenring_redis_conn_t *conn);
void ngx_http_tokenring_redis_detach(ngx_http_tokenring_redis_conn_t *conn);

/* _redis_tls.c */

/* NGX_DECLINED: not a TLS parameter; NGX_ERROR was logged */
ngx_int_t ngx_http_tokenring_redis_tls_parameter(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *value);

/* checks the parameters together; host is that of the address, without port */
ngx_int_t ngx_http_tokenring_redis_tls_check(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *host);

ngx_int_t ngx_http_tokenring_redis_tls_init(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis);
void ngx_http_tokenring_redis_tls_free(ngx_http_tokenring_redis_t *redis);

/* before each event; NGX_ERROR: the connection was closed */
ngx_int_t ngx_http_tokenring_redis_tls(ngx_http_tokenring_redis_conn_t *conn);

/* after each event: clears OpenSSL's errors, which are kept per process */
void ngx_http_tokenring_redis_tls_clear(ngx_http_tokenring_redis_conn_t *conn);

/* what went wrong in TLS, or NULL */
const char *ngx_http_tokenring_redis_tls_why(
    ngx_http_tokenring_redis_conn_t *conn);


/* _redis_commands.c */

/* the timer fires no later than deadline */
void ngx_http_tokenring_redis_arm(ngx_http_tokenring_redis_conn_t *conn,
    ngx_msec_t deadline);
void ngx_http_tokenring_redis_timer(ngx_event_t *ev);

/* tells the callers that their reply will not come */
void ngx_http_tokenring_redis_lost(ngx_event_t *ev);


/* _redis_channels.c */

/* the connection is ready, or lost */
void ngx_http_tokenring_channels_up(ngx_http_tokenring_redis_t *redis);
void ngx_http_tokenring_channels_down(ngx_http_tokenring_redis_t *redis);
void ngx_http_tokenring_channels_free(ngx_http_tokenring_redis_t *redis);


#endif /* _NGX_HTTP_TOKENRING_REDIS_CONN_H_INCLUDED_ */
