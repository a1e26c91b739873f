/*
 * A connection to an engine, from connect() to its loss.
 *
 * Every worker has one connection to every engine socket.  It is made when the
 * worker starts, and again after at most a second (with jitter) when it is
 * lost; a request that finds none tries at once.  The handshake has three
 * steps: connect, HELLO, and WELCOME with the descriptors of the channel.  From
 * then on nothing travels on the socket: while it is open, the engine lives.
 *
 * An engine on demand is connected to when a request needs it, which starts it,
 * and left when it has had none for a while, which lets it end.
 *
 * An outage makes one line in the error log when it begins, one for each new
 * reason that keeps it going, and one when it ends.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_slot.h"

#include <tokenring/handshake.h>


/* the longest pause between two attempts, ms; the shortest is half of it */
#define NGX_HTTP_TOKENRING_RECONNECT  1000


static ngx_int_t ngx_http_tokenring_socket(ngx_http_tokenring_conn_t *conn);
static ngx_int_t ngx_http_tokenring_socket_events(ngx_connection_t *c);
static void ngx_http_tokenring_connected(ngx_event_t *wev);
static void ngx_http_tokenring_socket_read(ngx_event_t *rev);
static void ngx_http_tokenring_lost(ngx_http_tokenring_conn_t *conn);
static void ngx_http_tokenring_welcome(ngx_http_tokenring_conn_t *conn);
static void ngx_http_tokenring_ready(ngx_http_tokenring_conn_t *conn,
    tr_welcome_t *welcome);
static ngx_uint_t ngx_http_tokenring_refused(ngx_http_tokenring_conn_t *conn,
    tr_welcome_t *welcome);
static void ngx_http_tokenring_complain(ngx_http_tokenring_conn_t *conn,
    ngx_err_t err, const char *what);
static void ngx_http_tokenring_redial(ngx_http_tokenring_conn_t *conn);
static void ngx_http_tokenring_reconnect(ngx_event_t *ev);
static void ngx_http_tokenring_unused(ngx_http_tokenring_conn_t *conn);
static void ngx_http_tokenring_lose_requests(ngx_http_tokenring_conn_t *conn);


/* once a process, before anything else happens to the connection */

void
ngx_http_tokenring_conn_init(ngx_http_tokenring_conn_t *conn)
{
    conn->state = NGX_HTTP_TOKENRING_IDLE;
    conn->to_engine = -1;

    ngx_queue_init(&conn->dirty);
    ngx_queue_init(&conn->starving);

    conn->reconnect.handler = ngx_http_tokenring_reconnect;
    conn->reconnect.data = conn;
    conn->reconnect.log = ngx_cycle->log;
    conn->reconnect.cancelable = 1;

    conn->probe.handler = ngx_http_tokenring_probe_event;
    conn->probe.data = conn;
    conn->probe.log = ngx_cycle->log;
    conn->probe.cancelable = 1;
}


void
ngx_http_tokenring_connect(ngx_http_tokenring_conn_t *conn)
{
    int                rc;
    ngx_err_t          err;
    ngx_connection_t  *c;

    if (conn->reconnect.handler == NULL) {
        /* a process that reloads itself does not call init_process again */
        ngx_http_tokenring_conn_init(conn);
    }

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring conn: connect to %V", &conn->addr.name);

    conn->attempted = ngx_current_msec;

    if (conn->reconnect.timer_set) {
        ngx_del_timer(&conn->reconnect);
    }

    if (ngx_http_tokenring_socket(conn) != NGX_OK) {
        ngx_http_tokenring_redial(conn);
        return;
    }

    c = conn->sock;

    rc = connect(c->fd, conn->addr.sockaddr, conn->addr.socklen);

    if (rc == -1 && ngx_socket_errno != NGX_EINPROGRESS) {
        err = ngx_socket_errno;

        ngx_http_tokenring_complain(conn, err, "connect() failed");
        ngx_http_tokenring_close(conn);
        return;
    }

    conn->state = NGX_HTTP_TOKENRING_CONNECTING;

    c->write->cancelable = 1;
    ngx_add_timer(c->write, conn->start_timeout);

    if (rc == 0) {
        c->write->ready = 1;
        ngx_post_event(c->write, &ngx_posted_events);
    }
}


static ngx_int_t
ngx_http_tokenring_socket(ngx_http_tokenring_conn_t *conn)
{
    ngx_socket_t       s;
    ngx_connection_t  *c;

    s = ngx_socket(AF_UNIX, SOCK_STREAM, 0);

    if (s == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_socket_errno,
                      ngx_socket_n " failed");
        return NGX_ERROR;
    }

    if (ngx_nonblocking(s) == -1 || fcntl(s, F_SETFD, FD_CLOEXEC) == -1) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_socket_errno,
                      "setting up the socket of %V failed", &conn->addr.name);
        goto failed;
    }

    c = ngx_get_connection(s, ngx_cycle->log);
    if (c == NULL) {
        goto failed;
    }

    c->data = conn;
    c->log = ngx_cycle->log;
    c->read->log = ngx_cycle->log;
    c->write->log = ngx_cycle->log;
    c->read->handler = ngx_http_tokenring_socket_read;
    c->write->handler = ngx_http_tokenring_connected;
    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;

    if (ngx_http_tokenring_socket_events(c) != NGX_OK) {
        ngx_close_connection(c);
        return NGX_ERROR;
    }

    conn->sock = c;

    return NGX_OK;

failed:

    if (ngx_close_socket(s) == -1) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_socket_errno,
                      ngx_close_socket_n " failed");
    }

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_tokenring_socket_events(ngx_connection_t *c)
{
    ngx_int_t  event;

    if (ngx_add_conn) {
        return ngx_add_conn(c);
    }

    event = (ngx_event_flags & NGX_USE_CLEAR_EVENT) ? NGX_CLEAR_EVENT
                                                    : NGX_LEVEL_EVENT;

    if (ngx_add_event(c->read, NGX_READ_EVENT, event) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_add_event(c->write, NGX_WRITE_EVENT, event);
}


/* write event: connected or failed; later, the timeout of the handshake */

static void
ngx_http_tokenring_connected(ngx_event_t *wev)
{
    int                         err;
    socklen_t                   len;
    tr_hello_t                  hello;
    ngx_connection_t           *c;
    ngx_http_tokenring_conn_t  *conn;

    c = wev->data;
    conn = c->data;

    if (wev->timedout) {
        ngx_http_tokenring_complain(conn, NGX_ETIMEDOUT,
                                    "the engine did not answer the handshake");
        ngx_http_tokenring_close(conn);
        return;
    }

    if (conn->state != NGX_HTTP_TOKENRING_CONNECTING) {
        if (!(ngx_event_flags & NGX_USE_CLEAR_EVENT)) {
            (void) ngx_del_event(wev, NGX_WRITE_EVENT, 0);
        }

        return;
    }

    err = 0;
    len = sizeof(int);

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1) {
        err = ngx_socket_errno;
    }

    if (err) {
        ngx_http_tokenring_complain(conn, err, "connect() failed");
        ngx_http_tokenring_close(conn);
        return;
    }

    tr_hello_init(&hello, TR_ROLE_WORKER);
    hello.slots = conn->nslots;
    hello.request_ring = conn->ring;
    hello.response_ring = conn->ring;

    if (tr_fds_send(c->fd, &hello, sizeof(tr_hello_t), NULL, 0) == -1) {
        ngx_http_tokenring_complain(conn, ngx_socket_errno,
                                    "sending HELLO failed");
        ngx_http_tokenring_close(conn);
        return;
    }

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring conn: connected, HELLO sent, fd:%d slots:%uD "
                   "ring:%uD socket:%V", c->fd, conn->nslots, conn->ring,
                   &conn->addr.name);

    conn->state = NGX_HTTP_TOKENRING_HANDSHAKING;
}


static void
ngx_http_tokenring_socket_read(ngx_event_t *rev)
{
    char                        byte;
    ssize_t                     n;
    ngx_connection_t           *c;
    ngx_http_tokenring_conn_t  *conn;

    c = rev->data;
    conn = c->data;

    if (conn->state == NGX_HTTP_TOKENRING_HANDSHAKING) {
        ngx_http_tokenring_welcome(conn);
        return;
    }

    if (conn->state == NGX_HTTP_TOKENRING_CONNECTING) {
        /* the write event reports the result */
        return;
    }

    if (conn->broken == NULL) {
        n = recv(c->fd, &byte, 1, 0);

        if (n == -1 && ngx_socket_errno == NGX_EAGAIN) {
            return;
        }

        if (n == 1) {
            conn->broken = "it sent data on the socket after the handshake";

        } else {
            ngx_http_tokenring_hear(conn);
        }
    }

    ngx_http_tokenring_lost(conn);
}


static void
ngx_http_tokenring_lost(ngx_http_tokenring_conn_t *conn)
{
    if (conn->broken) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "tokenring: channel closed, engine=%V socket=%V: %s",
                      &conn->engine->name, &conn->addr.name, conn->broken);

        ngx_http_tokenring_count(protocol_errors);

    } else {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "tokenring: engine lost, engine=%V socket=%V "
                      "requests=%ui", &conn->engine->name, &conn->addr.name,
                      conn->outstanding);
    }

    ngx_http_tokenring_count(engine_losses);

    ngx_http_tokenring_close(conn);
}


/*
 * What the engine said before it was lost still counts.  It is read in one
 * pass: space is returned at its end, so that an engine that goes on writing
 * has us read no more than fits in the rings.
 */

void
ngx_http_tokenring_hear(ngx_http_tokenring_conn_t *conn)
{
    (void) ngx_http_tokenring_drain(conn, NGX_MAX_INT_T_VALUE);

    ngx_http_tokenring_flush_dirty(conn);
}


static void
ngx_http_tokenring_welcome(ngx_http_tokenring_conn_t *conn)
{
    int           fds[TR_CHANNEL_FDS];
    ssize_t       n;
    unsigned      got;
    tr_welcome_t  welcome;

    n = tr_fds_receive(conn->sock->fd, &welcome, sizeof(tr_welcome_t), fds,
                       TR_CHANNEL_FDS, &got);

    if (n == -1 && ngx_socket_errno == NGX_EAGAIN) {
        return;
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring conn: WELCOME, bytes:%z fds:%ud socket:%V",
                   n, got, &conn->addr.name);

    if (n != sizeof(tr_welcome_t)) {
        ngx_http_tokenring_complain(conn, (n == -1) ? ngx_socket_errno : 0,
                                    "no WELCOME was received");
        goto failed;
    }

    if (ngx_http_tokenring_refused(conn, &welcome)) {
        goto failed;
    }

    if (got != TR_CHANNEL_FDS) {
        ngx_http_tokenring_complain(conn, 0, "WELCOME without descriptors");
        goto failed;
    }

    got = 0;

    if (ngx_http_tokenring_channel_open(conn, fds) != NGX_OK) {
        ngx_http_tokenring_complain(conn, 0, "its channel is invalid");
        goto failed;
    }

    ngx_http_tokenring_ready(conn, &welcome);

    return;

failed:

    while (got) {
        close(fds[--got]);
    }

    ngx_http_tokenring_close(conn);
}


static void
ngx_http_tokenring_ready(ngx_http_tokenring_conn_t *conn,
    tr_welcome_t *welcome)
{
    conn->state = NGX_HTTP_TOKENRING_READY;
    conn->complaint = 0;
    conn->features = tr_features(welcome->features);
    conn->asked = ngx_current_msec;
    conn->pinged = ngx_current_msec;
    conn->heard = ngx_current_msec;
    conn->missed = 0;

    ngx_del_timer(conn->sock->write);

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "tokenring: connected, engine=%V socket=%V version=%uD "
                  "slots=%uD", &conn->engine->name, &conn->addr.name,
                  welcome->version, conn->map.slots);

    ngx_http_tokenring_process_connected(conn, 1);

    if (conn->ondemand) {
        ngx_add_timer(&conn->reconnect, conn->idle);
    }

    ngx_http_tokenring_wake(conn->engine);
}


static ngx_uint_t
ngx_http_tokenring_refused(ngx_http_tokenring_conn_t *conn,
    tr_welcome_t *welcome)
{
    char         why[TR_WELCOME_MESSAGE], text[256];
    tr_status_t  rc;

    rc = tr_welcome_check(welcome, why);

    if (rc == TR_OK) {
        return 0;
    }

    if (rc == TR_ERR_VERSION) {
        snprintf(text, sizeof(text), "the engine speaks versions %u to %u of "
                 "the channel, this module %u to %u", welcome->version_min,
                 welcome->version_max, TR_ABI_VERSION_MIN, TR_ABI_VERSION);

    } else {
        snprintf(text, sizeof(text), "refused: \"%s\"", why);
    }

    ngx_http_tokenring_complain(conn, 0, text);

    return 1;
}


/* one line per reason, however often we try */

static void
ngx_http_tokenring_complain(ngx_http_tokenring_conn_t *conn, ngx_err_t err,
    const char *what)
{
    uint32_t    complaint;
    ngx_uint_t  level;

    complaint = ngx_crc32_short((u_char *) what, ngx_strlen(what)) + err;

    level = (complaint == conn->complaint) ? NGX_LOG_DEBUG : NGX_LOG_ERR;

    ngx_log_error(level, ngx_cycle->log, err,
                  "tokenring: cannot use engine, engine=%V socket=%V: %s",
                  &conn->engine->name, &conn->addr.name, what);

    conn->complaint = complaint;
}


/* for callers that still use the memory of the channel */

void
ngx_http_tokenring_break(ngx_http_tokenring_conn_t *conn, const char *why)
{
    if (conn->broken == NULL && conn->state == NGX_HTTP_TOKENRING_READY) {
        ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                       "tokenring conn: broken, socket:%V: %s",
                       &conn->addr.name, why);

        conn->broken = why;
        ngx_post_event(conn->sock->read, &ngx_posted_events);
    }
}


/* from any state: afterwards nothing is open, and nobody waits for us */

void
ngx_http_tokenring_close(ngx_http_tokenring_conn_t *conn)
{
    ngx_uint_t  ready;

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring conn: close, state:%d outstanding:%ui socket:%V",
                   conn->state, conn->outstanding, &conn->addr.name);

    ready = (conn->state == NGX_HTTP_TOKENRING_READY);

    conn->state = NGX_HTTP_TOKENRING_IDLE;
    conn->broken = NULL;

    if (conn->sock) {
        ngx_close_connection(conn->sock);
        conn->sock = NULL;
    }

    if (conn->probe.timer_set) {
        ngx_del_timer(&conn->probe);
    }

    if (ready) {
        ngx_http_tokenring_process_connected(conn, 0);
        ngx_http_tokenring_lose_requests(conn);
        ngx_http_tokenring_channel_close(conn);

        /* some may go to another engine, or to this one, reconnected */
        ngx_http_tokenring_flush_dirty(conn);
    }

    ngx_http_tokenring_wake(conn->engine);
    ngx_http_tokenring_redial(conn);
}


/* the process ends: to the engine, the closed socket ends our requests */

void
ngx_http_tokenring_exit(ngx_http_tokenring_conn_t *conn)
{
    if (conn->reconnect.timer_set) {
        ngx_del_timer(&conn->reconnect);
    }

    if (conn->probe.timer_set) {
        ngx_del_timer(&conn->probe);
    }

    if (conn->sock) {
        ngx_close_connection(conn->sock);
        conn->sock = NULL;
    }

    if (conn->state == NGX_HTTP_TOKENRING_READY) {
        ngx_http_tokenring_process_connected(conn, 0);
        ngx_http_tokenring_channel_close(conn);
    }

    conn->state = NGX_HTTP_TOKENRING_IDLE;
}


static void
ngx_http_tokenring_lose_requests(ngx_http_tokenring_conn_t *conn)
{
    uint32_t                        i;
    ngx_http_tokenring_ctx_t       *ctx;
    ngx_http_tokenring_suspects_t   suspects;

    ngx_http_tokenring_suspects(conn, &suspects);

    for (i = 0; i < conn->map.slots; i++) {
        ctx = conn->slots[i].ctx;

        if (ctx == NULL) {
            continue;
        }

        conn->slots[i].ctx = NULL;
        ctx->conn = NULL;

        ngx_http_tokenring_suspect(ctx, &suspects);
        ngx_http_tokenring_fail(ctx, TR_ERR_CLOSED,
                                NGX_HTTP_TOKENRING_LOST);
        ngx_http_tokenring_dirty(conn, ctx);
    }
}


static void
ngx_http_tokenring_redial(ngx_http_tokenring_conn_t *conn)
{
    ngx_msec_t  delay;

    if (conn->ondemand) {
        /* by the next request */
        if (conn->reconnect.timer_set) {
            ngx_del_timer(&conn->reconnect);
        }

        return;
    }

    if (ngx_exiting || ngx_terminate || ngx_quit || conn->reconnect.timer_set) {
        return;
    }

    delay = NGX_HTTP_TOKENRING_RECONNECT / 2
            + ngx_random() % (NGX_HTTP_TOKENRING_RECONNECT / 2);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring conn: again in %M ms, socket:%V", delay,
                   &conn->addr.name);

    ngx_add_timer(&conn->reconnect, delay);
}


static void
ngx_http_tokenring_reconnect(ngx_event_t *ev)
{
    ngx_http_tokenring_conn_t  *conn;

    conn = ev->data;

    if (conn->ondemand) {
        ngx_http_tokenring_unused(conn);
        return;
    }

    if (ngx_exiting || conn->state != NGX_HTTP_TOKENRING_IDLE) {
        return;
    }

    ngx_http_tokenring_connect(conn);
}


/* leaves an engine on demand that has had no request for a while */

static void
ngx_http_tokenring_unused(ngx_http_tokenring_conn_t *conn)
{
    ngx_msec_t  quiet;

    if (conn->state != NGX_HTTP_TOKENRING_READY || conn->broken) {
        return;
    }

    quiet = ngx_current_msec - conn->heard;

    if (conn->outstanding || quiet < conn->idle) {
        ngx_add_timer(&conn->reconnect,
                      conn->outstanding ? conn->idle : conn->idle - quiet);
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "tokenring: left an unused engine, engine=%V socket=%V",
                  &conn->engine->name, &conn->addr.name);

    ngx_http_tokenring_close(conn);
}
