/*
 * The adapter between hiredis and NGINX's event loop.
 *
 * hiredis owns the descriptor: it connects, reads, writes and closes.  We wrap
 * an ngx_connection_t around it for the events, and remove the wrapping
 * (ngx_http_tokenring_redis_detach) before hiredis closes.  hiredis reads 16
 * KiB per event, so events are level-triggered: what it left is reported again.
 * A write is posted to the end of the turn of the event loop, so that the
 * commands of one turn leave together; only a full socket gets a write event.
 *
 * TLS begins with the first event after the connect, before hiredis sees it;
 * from then on hiredis reads and writes through it, and asks for the events of
 * the handshake like any others.
 */

#include "ngx_http_tokenring_redis_conn.h"


static void ngx_http_tokenring_redis_unwatch(ngx_connection_t *c);
static void ngx_http_tokenring_redis_connected(const redisAsyncContext *ac,
    int status);
static void ngx_http_tokenring_redis_read(ngx_event_t *ev);
static void ngx_http_tokenring_redis_write(ngx_event_t *ev);
static void ngx_http_tokenring_redis_add_read(void *data);
static void ngx_http_tokenring_redis_del_read(void *data);
static void ngx_http_tokenring_redis_add_write(void *data);
static void ngx_http_tokenring_redis_del_write(void *data);


ngx_int_t
ngx_http_tokenring_redis_attach(ngx_http_tokenring_redis_conn_t *conn)
{
    ngx_connection_t   *c;
    redisAsyncContext  *ac;

    ac = conn->ac;

    if (fcntl(ac->c.fd, F_SETFD, FD_CLOEXEC) == -1) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      "fcntl(FD_CLOEXEC) failed");
        return NGX_ERROR;
    }

    c = ngx_get_connection(ac->c.fd, ngx_cycle->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->data = conn;
    c->log = ngx_cycle->log;
    c->read->log = ngx_cycle->log;
    c->write->log = ngx_cycle->log;
    c->read->handler = ngx_http_tokenring_redis_read;
    c->write->handler = ngx_http_tokenring_redis_write;
    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: attach, fd:%d *%uA", c->fd, c->number);

    conn->c = c;

    ac->ev.data = conn;
    ac->ev.addRead = ngx_http_tokenring_redis_add_read;
    ac->ev.delRead = ngx_http_tokenring_redis_del_read;
    ac->ev.addWrite = ngx_http_tokenring_redis_add_write;
    ac->ev.delWrite = ngx_http_tokenring_redis_del_write;
    ac->ev.cleanup = ngx_http_tokenring_redis_gone;

    ngx_http_tokenring_redis_add_read(conn);

    /* this also asks for the write event of the connect */

    if (redisAsyncSetConnectCallback(ac, ngx_http_tokenring_redis_connected)
        != REDIS_OK
        || !c->read->active || !c->write->active)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* removes our connection from hiredis's descriptor, which stays open */

void
ngx_http_tokenring_redis_detach(ngx_http_tokenring_redis_conn_t *conn)
{
    ngx_connection_t   *c;
    redisAsyncContext  *ac;

    ac = conn->ac;
    c = conn->c;

    conn->ac = NULL;
    conn->c = NULL;
    conn->ssl = NULL;
    conn->works = 0;
    conn->state = NGX_HTTP_TOKENRING_REDIS_IDLE;

    if (ac) {
        ac->ev.addRead = NULL;
        ac->ev.delRead = NULL;
        ac->ev.addWrite = NULL;
        ac->ev.delWrite = NULL;
        ac->ev.cleanup = NULL;
    }

    if (c == NULL) {
        return;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: detach, fd:%d *%uA", c->fd, c->number);

    ngx_http_tokenring_redis_unwatch(c);
    ngx_free_connection(c);

    c->fd = (ngx_socket_t) -1;
}


/* no event reaches the connection any more */

static void
ngx_http_tokenring_redis_unwatch(ngx_connection_t *c)
{
    if (ngx_del_conn) {
        ngx_del_conn(c, 0);

    } else {
        if (c->read->active || c->read->disabled) {
            ngx_del_event(c->read, NGX_READ_EVENT, 0);
        }

        if (c->write->active || c->write->disabled) {
            ngx_del_event(c->write, NGX_WRITE_EVENT, 0);
        }
    }

    if (c->read->posted) {
        ngx_delete_posted_event(c->read);
    }

    if (c->write->posted) {
        ngx_delete_posted_event(c->write);
    }

    c->read->closed = 1;
    c->write->closed = 1;
}


static void
ngx_http_tokenring_redis_connected(const redisAsyncContext *ac, int status)
{
    /*
     * the greeting reports the result; but hiredis needs this for write events
     */
}


static void
ngx_http_tokenring_redis_read(ngx_event_t *ev)
{
    ngx_connection_t                 *c;
    ngx_http_tokenring_redis_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    if (ngx_http_tokenring_redis_tls(conn) != NGX_OK) {
        return;
    }

    redisAsyncHandleRead(conn->ac);

    ngx_http_tokenring_redis_tls_clear(conn);
}


static void
ngx_http_tokenring_redis_write(ngx_event_t *ev)
{
    ngx_connection_t                 *c;
    ngx_http_tokenring_redis_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    if (ngx_http_tokenring_redis_tls(conn) != NGX_OK) {
        return;
    }

    conn->writing = 1;

    redisAsyncHandleWrite(conn->ac);

    conn->writing = 0;

    ngx_http_tokenring_redis_tls_clear(conn);
}


static void
ngx_http_tokenring_redis_add_read(void *data)
{
    ngx_http_tokenring_redis_conn_t *conn = data;

    ngx_event_t  *rev;

    rev = conn->c->read;

    if (!rev->active
        && ngx_add_event(rev, NGX_READ_EVENT, NGX_LEVEL_EVENT) != NGX_OK)
    {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "tokenring: no read event for Redis");
    }
}


static void
ngx_http_tokenring_redis_del_read(void *data)
{
    ngx_http_tokenring_redis_conn_t *conn = data;

    if (conn->c->read->active) {
        (void) ngx_del_event(conn->c->read, NGX_READ_EVENT, 0);
    }
}


static void
ngx_http_tokenring_redis_add_write(void *data)
{
    ngx_http_tokenring_redis_conn_t *conn = data;

    ngx_event_t  *wev;

    wev = conn->c->write;

    if (wev->active) {
        return;
    }

    if (!conn->writing && (conn->ac->c.flags & REDIS_CONNECTED)) {
        ngx_post_event(wev, &ngx_posted_events);
        return;
    }

    if (ngx_add_event(wev, NGX_WRITE_EVENT, NGX_LEVEL_EVENT) != NGX_OK) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "tokenring: no write event for Redis");
    }
}


static void
ngx_http_tokenring_redis_del_write(void *data)
{
    ngx_http_tokenring_redis_conn_t *conn = data;

    if (conn->c->write->active) {
        (void) ngx_del_event(conn->c->write, NGX_WRITE_EVENT, 0);
    }
}
