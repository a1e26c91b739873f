/*
 * Redis's connections: hiredis's asynchronous API on NGINX's event loop.
 *
 * hiredis owns the descriptor: it connects, reads, writes and closes.  We wrap
 * an ngx_connection_t around it, which brings the events, and take the wrapping
 * off again (ngx_http_tokenring_redis_detach) before hiredis closes.  hiredis
 * reads 16 KiB for each event, so that events are level-triggered: what it left
 * is reported again.  A write is posted to the end of the turn of the loop, so
 * that commands of one turn leave together; only a socket that is full gets a
 * write event.
 *
 * hiredis has no time limits (0.14): each connection has a timer for the oldest
 * command without a reply.  When it is over, the connection is closed, since
 * replies come in order: whoever waits is told that there is none.  Handlers
 * are told so from an event of its own, never from within their own calls.
 *
 * A lost connection is made again after a pause that grows to some seconds, and
 * at once for a command that comes later than 100 ms after the last attempt.
 * An outage is a line in the error log for each reason, and one when it ends.
 */

#include "ngx_http_tokenring_redis.h"


#define NGX_HTTP_TOKENRING_REDIS_BACKOFF  8000


static void ngx_http_tokenring_redis_conn_init(
    ngx_http_tokenring_redis_t *redis, ngx_http_tokenring_redis_conn_t *conn);
static redisAsyncContext *ngx_http_tokenring_redis_dial(
    ngx_http_tokenring_redis_t *redis);
static ngx_int_t ngx_http_tokenring_redis_attach(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_detach(
    ngx_http_tokenring_redis_conn_t *conn);
static ngx_int_t ngx_http_tokenring_redis_greet(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_greeted(redisAsyncContext *ac,
    void *reply, void *data);
static void ngx_http_tokenring_redis_ready(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_read(ngx_event_t *ev);
static void ngx_http_tokenring_redis_write(ngx_event_t *ev);
static void ngx_http_tokenring_redis_add_read(void *data);
static void ngx_http_tokenring_redis_del_read(void *data);
static void ngx_http_tokenring_redis_add_write(void *data);
static void ngx_http_tokenring_redis_del_write(void *data);
static void ngx_http_tokenring_redis_gone(void *data);
static void ngx_http_tokenring_redis_down(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_connected(const redisAsyncContext *ac,
    int status);
static void ngx_http_tokenring_redis_answered(redisAsyncContext *ac,
    void *reply, void *data);
static void ngx_http_tokenring_redis_lost(ngx_event_t *ev);
static void ngx_http_tokenring_redis_arm(
    ngx_http_tokenring_redis_conn_t *conn, ngx_msec_t deadline);
static void ngx_http_tokenring_redis_timer(ngx_event_t *ev);
static void ngx_http_tokenring_redis_retry(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_reconnect(ngx_event_t *ev);
static void ngx_http_tokenring_redis_log(ngx_http_tokenring_redis_conn_t *conn,
    const char *what, size_t len);


void
ngx_http_tokenring_redis_start(ngx_http_tokenring_redis_t *redis)
{
    if (redis->ready) {
        return;
    }

    redis->ready = 1;

    ngx_http_tokenring_redis_conn_init(redis, &redis->commands);
    ngx_http_tokenring_redis_conn_init(redis, &redis->channels);

    redis->channels.subscriber = 1;

    ngx_queue_init(&redis->lost);

    redis->losing.handler = ngx_http_tokenring_redis_lost;
    redis->losing.data = redis;
    redis->losing.log = ngx_cycle->log;

    ngx_rbtree_init(&redis->subscriptions, &redis->sentinel,
                    ngx_str_rbtree_insert_value);
    ngx_rbtree_init(&redis->subjects, &redis->subjects_sentinel,
                    ngx_str_rbtree_insert_value);
}


static void
ngx_http_tokenring_redis_conn_init(ngx_http_tokenring_redis_t *redis,
    ngx_http_tokenring_redis_conn_t *conn)
{
    ngx_memzero(conn, sizeof(ngx_http_tokenring_redis_conn_t));

    conn->redis = redis;

    ngx_queue_init(&conn->calls);

    conn->timer.handler = ngx_http_tokenring_redis_timer;
    conn->timer.data = conn;
    conn->timer.log = ngx_cycle->log;
    conn->timer.cancelable = 1;

    conn->reconnect.handler = ngx_http_tokenring_redis_reconnect;
    conn->reconnect.data = conn;
    conn->reconnect.log = ngx_cycle->log;
    conn->reconnect.cancelable = 1;
}


void
ngx_http_tokenring_redis_exit(ngx_http_tokenring_redis_t *redis)
{
    ngx_uint_t                        i;
    ngx_queue_t                      *q;
    redisAsyncContext                *ac;
    ngx_http_tokenring_redis_conn_t  *conn;

    if (!redis->ready) {
        return;
    }

    for (i = 0; i < 2; i++) {
        conn = i ? &redis->channels : &redis->commands;
        ac = conn->ac;

        if (ac) {
            ngx_http_tokenring_redis_detach(conn);
            redisAsyncFree(ac);
        }

        if (conn->timer.timer_set) {
            ngx_del_timer(&conn->timer);
        }

        if (conn->reconnect.timer_set) {
            ngx_del_timer(&conn->reconnect);
        }
    }

    if (redis->losing.posted) {
        ngx_delete_posted_event(&redis->losing);
    }

    while (!ngx_queue_empty(&redis->lost)) {
        q = ngx_queue_head(&redis->lost);
        ngx_queue_remove(q);
        ngx_free(ngx_queue_data(q, ngx_http_tokenring_call_t, queue));
    }

    ngx_http_tokenring_channels_free(redis);

    redis->ready = 0;
}


/* NGX_OK: under way */

ngx_int_t
ngx_http_tokenring_redis_connect(ngx_http_tokenring_redis_conn_t *conn)
{
    redisAsyncContext           *ac;
    ngx_http_tokenring_redis_t  *redis;

    static const char  no_memory[] = "out of memory";

    redis = conn->redis;

    conn->attempted = ngx_current_msec;
    conn->tried = 1;

    if (conn->reconnect.timer_set) {
        ngx_del_timer(&conn->reconnect);
    }

    ac = ngx_http_tokenring_redis_dial(redis);

    if (ac == NULL || ac->err) {
        ngx_http_tokenring_redis_log(conn, ac ? ac->errstr : no_memory,
                                     ngx_strlen(ac ? ac->errstr : no_memory));

        if (ac) {
            redisAsyncFree(ac);
        }

        conn->failures++;
        ngx_http_tokenring_redis_retry(conn);
        return NGX_ERROR;
    }

    conn->ac = ac;
    conn->step = 0;
    conn->state = NGX_HTTP_TOKENRING_REDIS_CONNECTING;

    if (ngx_http_tokenring_redis_attach(conn) != NGX_OK
        || ngx_http_tokenring_redis_greet(conn) != NGX_OK)
    {
        ngx_http_tokenring_redis_close(conn, no_memory);
        return NGX_ERROR;
    }

    conn->deadline = ngx_current_msec + redis->timeout;
    ngx_http_tokenring_redis_arm(conn, conn->deadline);

    return NGX_OK;
}


static redisAsyncContext *
ngx_http_tokenring_redis_dial(ngx_http_tokenring_redis_t *redis)
{
    size_t       len;
    u_char       text[NGX_SOCKADDR_STRLEN + 1];
    ngx_addr_t  *addr;

    if (redis->naddrs == 0) {
        return redisAsyncConnectUnix((char *) redis->path);
    }

    addr = &redis->addrs[redis->turn++ % redis->naddrs];

    /* digits only: hiredis has nothing to resolve */

    len = ngx_sock_ntop(addr->sockaddr, addr->socklen, text,
                        NGX_SOCKADDR_STRLEN, 0);

    text[len] = '\0';

    return redisAsyncConnect((char *) text, ngx_inet_get_port(addr->sockaddr));
}


static ngx_int_t
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

    conn->c = c;

    ac->ev.data = conn;
    ac->ev.addRead = ngx_http_tokenring_redis_add_read;
    ac->ev.delRead = ngx_http_tokenring_redis_del_read;
    ac->ev.addWrite = ngx_http_tokenring_redis_add_write;
    ac->ev.delWrite = ngx_http_tokenring_redis_del_write;
    ac->ev.cleanup = ngx_http_tokenring_redis_gone;

    ngx_http_tokenring_redis_add_read(conn);

    /* this one also asks for the event of the connect */

    if (redisAsyncSetConnectCallback(ac, ngx_http_tokenring_redis_connected)
        != REDIS_OK
        || !c->read->active || !c->write->active)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* takes our connection off hiredis's descriptor, which stays open */

static void
ngx_http_tokenring_redis_detach(ngx_http_tokenring_redis_conn_t *conn)
{
    ngx_connection_t   *c;
    redisAsyncContext  *ac;

    ac = conn->ac;
    c = conn->c;

    conn->ac = NULL;
    conn->c = NULL;
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

    ngx_free_connection(c);

    c->fd = (ngx_socket_t) -1;
}


/* who we are, which database, and is that a Redis at all */

static ngx_int_t
ngx_http_tokenring_redis_greet(ngx_http_tokenring_redis_conn_t *conn)
{
    u_char                       db[NGX_INT_T_LEN + 1], who[64];
    redisCallbackFn             *fn;
    redisAsyncContext           *ac;
    ngx_http_tokenring_redis_t  *redis;

    ac = conn->ac;
    redis = conn->redis;
    fn = ngx_http_tokenring_redis_greeted;

    if (redis->user.len) {
        if (redisAsyncCommand(ac, fn, conn, "AUTH %b %b", redis->user.data,
                              redis->user.len, redis->password.data,
                              redis->password.len)
            != REDIS_OK)
        {
            return NGX_ERROR;
        }

        conn->step++;

    } else if (redis->password.len) {
        if (redisAsyncCommand(ac, fn, conn, "AUTH %b", redis->password.data,
                              redis->password.len)
            != REDIS_OK)
        {
            return NGX_ERROR;
        }

        conn->step++;
    }

    if (redis->db) {
        *ngx_sprintf(db, "%i", redis->db) = '\0';

        if (redisAsyncCommand(ac, fn, conn, "SELECT %s", db) != REDIS_OK) {
            return NGX_ERROR;
        }

        conn->step++;
    }

    *ngx_sprintf(who, "tokenring-%s-%P",
                 conn->subscriber ? "channels" : "worker", ngx_pid)
        = '\0';

    if (redisAsyncCommand(ac, NULL, NULL, "CLIENT SETNAME %s", who)
        != REDIS_OK
        || redisAsyncCommand(ac, fn, conn, "PING") != REDIS_OK)
    {
        return NGX_ERROR;
    }

    conn->step++;

    return NGX_OK;
}


/* the last answer of the greeting makes the connection ready */

static void
ngx_http_tokenring_redis_greeted(redisAsyncContext *ac, void *reply,
    void *data)
{
    ngx_http_tokenring_redis_conn_t *conn = data;

    redisReply  *r;

    r = reply;

    if (conn->ac != ac || r == NULL) {
        return;
    }

    conn->step--;

    /* a user who may not PING is one, too */

    if (r->type == REDIS_REPLY_ERROR
        && (conn->step || ngx_strncmp(r->str, "NOPERM", 6) != 0))
    {
        ngx_http_tokenring_redis_close(conn, r->str);
        return;
    }

    if (conn->step == 0) {
        ngx_http_tokenring_redis_ready(conn);
    }
}


static void
ngx_http_tokenring_redis_ready(ngx_http_tokenring_redis_conn_t *conn)
{
    conn->state = NGX_HTTP_TOKENRING_REDIS_READY;

    if (conn->subscriber) {
        /* whether it is of use is seen when a subscription is confirmed */
        ngx_http_tokenring_channels_up(conn->redis);
        return;
    }

    ngx_http_tokenring_redis_works(conn);
}


void
ngx_http_tokenring_redis_works(ngx_http_tokenring_redis_conn_t *conn)
{
    if (conn->works) {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "tokenring: connected to Redis, redis=%V for=%s",
                  &conn->redis->name,
                  conn->subscriber ? "channels" : "commands");

    conn->works = 1;
    conn->failures = 0;
    conn->complaint = 0;
}


static void
ngx_http_tokenring_redis_connected(const redisAsyncContext *ac, int status)
{
    /* the greeting tells; but hiredis asks for write events through this */
}


static void
ngx_http_tokenring_redis_read(ngx_event_t *ev)
{
    ngx_connection_t                 *c;
    ngx_http_tokenring_redis_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    redisAsyncHandleRead(conn->ac);
}


static void
ngx_http_tokenring_redis_write(ngx_event_t *ev)
{
    ngx_connection_t                 *c;
    ngx_http_tokenring_redis_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    conn->writing = 1;

    redisAsyncHandleWrite(conn->ac);

    conn->writing = 0;
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


/* hiredis gives up: an error of the socket, or the end of it */

static void
ngx_http_tokenring_redis_gone(void *data)
{
    ngx_http_tokenring_redis_conn_t *conn = data;

    const char  *why;

    why = (conn->ac->errstr && conn->ac->errstr[0]) ? conn->ac->errstr
                                                    : "closed";

    ngx_http_tokenring_redis_log(conn, why, ngx_strlen(why));
    ngx_http_tokenring_redis_down(conn);
}


/* we give up; also from within a handler of hiredis's */

void
ngx_http_tokenring_redis_close(ngx_http_tokenring_redis_conn_t *conn,
    const char *why)
{
    redisAsyncContext  *ac;

    ac = conn->ac;

    if (ac == NULL) {
        return;
    }

    ngx_http_tokenring_redis_log(conn, why, ngx_strlen(why));
    ngx_http_tokenring_redis_down(conn);

    redisAsyncFree(ac);
}


static void
ngx_http_tokenring_redis_down(ngx_http_tokenring_redis_conn_t *conn)
{
    ngx_http_tokenring_redis_detach(conn);

    if (conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }

    conn->failures++;

    if (conn->subscriber) {
        ngx_http_tokenring_channels_down(conn->redis);
    }

    ngx_http_tokenring_redis_retry(conn);
}


ngx_http_tokenring_call_t *
ngx_http_tokenring_redis_command(ngx_http_tokenring_redis_t *redis,
    ngx_http_tokenring_reply_pt handler, void *data, ngx_uint_t argc,
    ngx_str_t *argv)
{
    size_t                            lens[NGX_HTTP_TOKENRING_REDIS_ARGS];
    ngx_uint_t                        i;
    const char                       *words[NGX_HTTP_TOKENRING_REDIS_ARGS];
    ngx_http_tokenring_call_t        *call;
    ngx_http_tokenring_redis_conn_t  *conn;

    /* a process that reloads itself does not call init_process again */
    ngx_http_tokenring_redis_start(redis);

    conn = &redis->commands;

    if (conn->state == NGX_HTTP_TOKENRING_REDIS_IDLE) {

        if (conn->tried && ngx_current_msec - conn->attempted
                           < NGX_HTTP_TOKENRING_RETRY)
        {
            return NULL;
        }

        if (ngx_http_tokenring_redis_connect(conn) != NGX_OK) {
            return NULL;
        }
    }

    if (conn->pending >= NGX_HTTP_TOKENRING_REDIS_PENDING
        || argc > NGX_HTTP_TOKENRING_REDIS_ARGS)
    {
        return NULL;
    }

    for (i = 0; i < argc; i++) {
        words[i] = (char *) argv[i].data;
        lens[i] = argv[i].len;
    }

    call = ngx_alloc(sizeof(ngx_http_tokenring_call_t), ngx_cycle->log);
    if (call == NULL) {
        return NULL;
    }

    call->conn = conn;
    call->handler = handler;
    call->data = data;
    call->deadline = ngx_current_msec + redis->timeout;

    if (redisAsyncCommandArgv(conn->ac, ngx_http_tokenring_redis_answered,
                              call, (int) argc, words, lens)
        != REDIS_OK)
    {
        ngx_free(call);
        return NULL;
    }

    ngx_queue_insert_tail(&conn->calls, &call->queue);
    conn->pending++;

    ngx_http_tokenring_redis_arm(conn, call->deadline);

    return call;
}


void
ngx_http_tokenring_redis_forget(ngx_http_tokenring_call_t *call)
{
    if (call) {
        call->handler = NULL;
    }
}


static void
ngx_http_tokenring_redis_answered(redisAsyncContext *ac, void *reply,
    void *data)
{
    ngx_http_tokenring_call_t *call = data;

    void                             *waiter;
    ngx_http_tokenring_redis_t       *redis;
    ngx_http_tokenring_reply_pt       handler;
    ngx_http_tokenring_redis_conn_t  *conn;

    conn = call->conn;
    redis = conn->redis;

    ngx_queue_remove(&call->queue);
    conn->pending--;

    if (reply == NULL) {

        /* whoever closes may be in the middle of something */

        ngx_queue_insert_tail(&redis->lost, &call->queue);
        ngx_post_event(&redis->losing, &ngx_posted_events);
        return;
    }

    handler = call->handler;
    waiter = call->data;

    ngx_free(call);

    if (handler) {
        handler(waiter, reply);
    }
}


static void
ngx_http_tokenring_redis_lost(ngx_event_t *ev)
{
    void                         *waiter;
    ngx_queue_t                  *q;
    ngx_http_tokenring_call_t    *call;
    ngx_http_tokenring_redis_t   *redis;
    ngx_http_tokenring_reply_pt   handler;

    redis = ev->data;

    while (!ngx_queue_empty(&redis->lost)) {
        q = ngx_queue_head(&redis->lost);
        ngx_queue_remove(q);

        call = ngx_queue_data(q, ngx_http_tokenring_call_t, queue);

        handler = call->handler;
        waiter = call->data;

        ngx_free(call);

        if (handler) {
            handler(waiter, NULL);
        }
    }
}


/* the timer moves only when it has to be earlier */

static void
ngx_http_tokenring_redis_arm(ngx_http_tokenring_redis_conn_t *conn,
    ngx_msec_t deadline)
{
    ngx_msec_int_t  left;

    if (conn->timer.timer_set
        && (ngx_msec_int_t) (conn->timer.timer.key - deadline) <= 0)
    {
        return;
    }

    left = (ngx_msec_int_t) (deadline - ngx_current_msec);

    ngx_add_timer(&conn->timer, (ngx_msec_t) ngx_max(left, 1));
}


static void
ngx_http_tokenring_redis_timer(ngx_event_t *ev)
{
    ngx_queue_t                      *q;
    ngx_msec_t                        deadline;
    ngx_http_tokenring_call_t        *call;
    ngx_http_tokenring_redis_conn_t  *conn;

    conn = ev->data;

    if (conn->state == NGX_HTTP_TOKENRING_REDIS_CONNECTING) {
        deadline = conn->deadline;

    } else if (!ngx_queue_empty(&conn->calls)) {
        q = ngx_queue_head(&conn->calls);
        call = ngx_queue_data(q, ngx_http_tokenring_call_t, queue);
        deadline = call->deadline;

    } else {
        return;
    }

    if ((ngx_msec_int_t) (deadline - ngx_current_msec) <= 0) {
        ngx_http_tokenring_redis_close(conn, "no answer in time");
        return;
    }

    ngx_http_tokenring_redis_arm(conn, deadline);
}


static void
ngx_http_tokenring_redis_retry(ngx_http_tokenring_redis_conn_t *conn)
{
    ngx_msec_t  delay;

    if (ngx_exiting || ngx_terminate || ngx_quit || conn->reconnect.timer_set
        || (conn->subscriber && conn->redis->nsubscriptions == 0))
    {
        return;
    }

    delay = NGX_HTTP_TOKENRING_RETRY << ngx_min(conn->failures, 7);
    delay = ngx_min(delay, NGX_HTTP_TOKENRING_REDIS_BACKOFF);

    ngx_add_timer(&conn->reconnect, delay / 2 + ngx_random() % (delay / 2));
}


static void
ngx_http_tokenring_redis_reconnect(ngx_event_t *ev)
{
    ngx_http_tokenring_redis_conn_t  *conn;

    conn = ev->data;

    if (ngx_exiting || conn->state != NGX_HTTP_TOKENRING_REDIS_IDLE) {
        return;
    }

    (void) ngx_http_tokenring_redis_connect(conn);
}


/* one line for each thing that is wrong, however often we try */

static void
ngx_http_tokenring_redis_log(ngx_http_tokenring_redis_conn_t *conn,
    const char *what, size_t len)
{
    uint32_t    complaint;
    ngx_str_t   text;
    ngx_uint_t  level;

    text.data = (u_char *) what;
    text.len = ngx_min(len, 200);

    complaint = ngx_crc32_short(text.data, text.len) | 1;

    level = (complaint == conn->complaint) ? NGX_LOG_DEBUG : NGX_LOG_ERR;

    ngx_log_error(level, ngx_cycle->log, 0,
                  "tokenring: no Redis, redis=%V for=%s: %V",
                  &conn->redis->name,
                  conn->subscriber ? "channels" : "commands", &text);

    conn->complaint = complaint;
}


void
ngx_http_tokenring_redis_complain(ngx_http_tokenring_redis_t *redis,
    redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        ngx_http_tokenring_redis_log(&redis->commands, reply->str,
                                     (size_t) reply->len);
    }
}
