/*
 * Connections to Redis: made, greeted, lost, and made again.
 *
 * A worker has two to each Redis, for commands and for subscriptions, both with
 * hiredis's asynchronous API (ngx_http_tokenring_redis_events.c).
 *
 *   IDLE --connect--> CONNECTING --greeted--> READY
 *    ^                (TLS, AUTH, SELECT, PING)  |
 *    +---- error, end, or no reply in time ------+
 *
 * A lost connection is made again after a delay that grows to some seconds, and
 * at once for a command that comes more than 100 ms after the last attempt.  An
 * outage makes one line in the error log for each reason, and one when it ends.
 */

#include "ngx_http_tokenring_redis_conn.h"


#define NGX_HTTP_TOKENRING_REDIS_BACKOFF  8000

#define ngx_http_tokenring_redis_use(conn)                                    \
    ((conn)->subscriber ? "channels" : "commands")


static void ngx_http_tokenring_redis_conn_init(
    ngx_http_tokenring_redis_t *redis, ngx_http_tokenring_redis_conn_t *conn);
static redisAsyncContext *ngx_http_tokenring_redis_dial(
    ngx_http_tokenring_redis_t *redis);
static ngx_int_t ngx_http_tokenring_redis_greet(
    ngx_http_tokenring_redis_conn_t *conn);
static ngx_int_t ngx_http_tokenring_redis_say(
    ngx_http_tokenring_redis_conn_t *conn, ngx_uint_t argc, ngx_str_t *argv);
static void ngx_http_tokenring_redis_greeted(redisAsyncContext *ac,
    void *reply, void *data);
static void ngx_http_tokenring_redis_ready(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_down(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_retry(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_reconnect(ngx_event_t *ev);


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
    ngx_rbtree_init(&redis->stream_subs, &redis->stream_subs_sentinel,
                    ngx_str_rbtree_insert_value);
}


void
ngx_http_tokenring_redis_open(ngx_http_tokenring_redis_t *redis)
{
    ngx_http_tokenring_redis_start(redis);
    (void) ngx_http_tokenring_redis_connect(&redis->commands);
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


/* NGX_OK: in progress */

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

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: connect to %V for %s, fd:%d",
                   &redis->name, ngx_http_tokenring_redis_use(conn),
                   ac->c.fd);

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

    /* a numeric address: hiredis has nothing to resolve */

    len = ngx_sock_ntop(addr->sockaddr, addr->socklen, text,
                        NGX_SOCKADDR_STRLEN, 0);

    text[len] = '\0';

    return redisAsyncConnect((char *) text, ngx_inet_get_port(addr->sockaddr));
}


/* who we are, which database, and is it Redis at all? */

static ngx_int_t
ngx_http_tokenring_redis_greet(ngx_http_tokenring_redis_conn_t *conn)
{
    u_char                       db[NGX_INT_T_LEN], who[64];
    ngx_str_t                    argv[3];
    ngx_uint_t                   argc;
    ngx_http_tokenring_redis_t  *redis;

    redis = conn->redis;

    if (redis->password.len) {
        ngx_str_set(&argv[0], "AUTH");
        argc = 1;

        if (redis->user.len) {
            argv[argc++] = redis->user;
        }

        argv[argc++] = redis->password;

        if (ngx_http_tokenring_redis_say(conn, argc, argv) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (redis->db) {
        ngx_str_set(&argv[0], "SELECT");
        argv[1].data = db;
        argv[1].len = ngx_sprintf(db, "%i", redis->db) - db;

        if (ngx_http_tokenring_redis_say(conn, 2, argv) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    *ngx_sprintf(who, "tokenring-%s-%P",
                 conn->subscriber ? "channels" : "worker", ngx_pid)
        = '\0';

    if (redisAsyncCommand(conn->ac, NULL, NULL, "CLIENT SETNAME %s", who)
        != REDIS_OK)
    {
        return NGX_ERROR;
    }

    ngx_str_set(&argv[0], "PING");

    return ngx_http_tokenring_redis_say(conn, 1, argv);
}


/* a command of the greeting whose reply matters */

static ngx_int_t
ngx_http_tokenring_redis_say(ngx_http_tokenring_redis_conn_t *conn,
    ngx_uint_t argc, ngx_str_t *argv)
{
    size_t       lens[3];
    ngx_uint_t   i;
    const char  *words[3];

    for (i = 0; i < argc; i++) {
        words[i] = (char *) argv[i].data;
        lens[i] = argv[i].len;
    }

    if (redisAsyncCommandArgv(conn->ac, ngx_http_tokenring_redis_greeted, conn,
                              (int) argc, words, lens)
        != REDIS_OK)
    {
        return NGX_ERROR;
    }

    conn->step++;

    return NGX_OK;
}


/* the last reply of the greeting makes the connection ready */

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

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: greeted, type:%d left:%ui for %s",
                   r->type, conn->step, ngx_http_tokenring_redis_use(conn));

    /* NOPERM to PING is a reply of Redis, too */

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
    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: ready, %V for %s", &conn->redis->name,
                   ngx_http_tokenring_redis_use(conn));

    conn->state = NGX_HTTP_TOKENRING_REDIS_READY;

    if (conn->subscriber) {
        /* it works when a subscription is confirmed */
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
                  &conn->redis->name, ngx_http_tokenring_redis_use(conn));

    conn->works = 1;
    conn->failures = 0;
    conn->ncomplaints = 0;

    ngx_memzero(conn->complaints, sizeof(conn->complaints));
}


/* hiredis gives up: an error of the socket, or end of file */

void
ngx_http_tokenring_redis_gone(void *data)
{
    ngx_http_tokenring_redis_conn_t *conn = data;

    const char  *why;

    why = ngx_http_tokenring_redis_tls_why(conn);

    if (why == NULL) {
        why = (conn->ac->errstr && conn->ac->errstr[0]) ? conn->ac->errstr
                                                        : "closed";
    }

    ngx_http_tokenring_redis_log(conn, why, ngx_strlen(why));
    ngx_http_tokenring_redis_down(conn);
}


/* we give up; also from within a callback of hiredis */

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
    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: down, %V for %s, state:%d pending:%ui",
                   &conn->redis->name, ngx_http_tokenring_redis_use(conn),
                   conn->state, conn->pending);

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


static void
ngx_http_tokenring_redis_retry(ngx_http_tokenring_redis_conn_t *conn)
{
    ngx_msec_t  delay;

    if (ngx_exiting || ngx_terminate || ngx_quit || conn->reconnect.timer_set
        || (conn->subscriber && conn->redis->nsubscriptions == 0))
    {
        return;
    }

    delay = NGX_HTTP_TOKENRING_REDIS_RETRY << ngx_min(conn->failures, 7);
    delay = ngx_min(delay, NGX_HTTP_TOKENRING_REDIS_BACKOFF);

    delay = delay / 2 + ngx_random() % (delay / 2);

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: again in %M ms, %V for %s", delay,
                   &conn->redis->name, ngx_http_tokenring_redis_use(conn));

    ngx_add_timer(&conn->reconnect, delay);
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


/* one line per reason, however often we try, even if reasons alternate */

void
ngx_http_tokenring_redis_log(ngx_http_tokenring_redis_conn_t *conn,
    const char *what, size_t len)
{
    uint32_t    complaint;
    ngx_str_t   text;
    ngx_uint_t  i, n, level;

    text.data = (u_char *) what;
    text.len = ngx_min(len, 200);

    complaint = ngx_crc32_short(text.data, text.len) | 1;

    level = NGX_LOG_ERR;
    n = sizeof(conn->complaints) / sizeof(conn->complaints[0]);

    for (i = 0; i < n; i++) {
        if (conn->complaints[i] == complaint) {
            level = NGX_LOG_DEBUG;
        }
    }

    if (level == NGX_LOG_ERR) {
        conn->complaints[conn->ncomplaints++ % n] = complaint;
    }

    ngx_log_error(level, ngx_cycle->log, 0,
                  "tokenring: cannot use Redis, redis=%V for=%s: %V",
                  &conn->redis->name, ngx_http_tokenring_redis_use(conn),
                  &text);
}
