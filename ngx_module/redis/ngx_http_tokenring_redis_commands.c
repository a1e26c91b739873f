/*
 * Commands: sent with a handler, answered in order, or not at all.
 *
 * hiredis (0.14) has no timeouts: each connection has a timer for its oldest
 * command without a reply.  When it expires, the connection is closed, since
 * replies come in order; everyone who waits is told that there is no reply.
 * They are told from an event of its own, never from within their own calls.
 */

#include "ngx_http_tokenring_redis_conn.h"


/* the most commands without a reply on one connection */
#define NGX_HTTP_TOKENRING_REDIS_PENDING  16384


static ngx_int_t ngx_http_tokenring_redis_send(
    ngx_http_tokenring_call_t *call, ngx_uint_t argc, ngx_str_t *argv);
static ngx_int_t ngx_http_tokenring_redis_reach(
    ngx_http_tokenring_redis_conn_t *conn);
static void ngx_http_tokenring_redis_answered(redisAsyncContext *ac,
    void *reply, void *data);


ngx_http_tokenring_call_t *
ngx_http_tokenring_redis_command(ngx_http_tokenring_redis_t *redis,
    ngx_http_tokenring_reply_pt handler, void *data, ngx_uint_t argc,
    ngx_str_t *argv)
{
    ngx_http_tokenring_call_t        *call;
    ngx_http_tokenring_redis_conn_t  *conn;

    /* a process that reloads itself does not call init_process again */
    ngx_http_tokenring_redis_start(redis);

    conn = &redis->commands;

    if (ngx_http_tokenring_redis_reach(conn) != NGX_OK) {
        return NULL;
    }

    if (conn->pending >= NGX_HTTP_TOKENRING_REDIS_PENDING
        || argc > NGX_HTTP_TOKENRING_REDIS_ARGS)
    {
        return NULL;
    }

    call = ngx_alloc(sizeof(ngx_http_tokenring_call_t), ngx_cycle->log);
    if (call == NULL) {
        return NULL;
    }

    call->conn = conn;
    call->handler = handler;
    call->data = data;
    call->deadline = ngx_current_msec + redis->timeout;

    if (ngx_http_tokenring_redis_send(call, argc, argv) != NGX_OK) {
        ngx_free(call);
        return NULL;
    }

    ngx_queue_insert_tail(&conn->calls, &call->queue);
    conn->pending++;

    /* the first two words are the command and its key: no data of clients */

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: command %p %V %V, pending:%ui", call,
                   &argv[0], &argv[1], conn->pending);

    /* an exiting worker waits for the reply, as the caller does */
    conn->timer.cancelable = 0;

    ngx_http_tokenring_redis_arm(conn, call->deadline);

    return call;
}


static ngx_int_t
ngx_http_tokenring_redis_send(ngx_http_tokenring_call_t *call, ngx_uint_t argc,
    ngx_str_t *argv)
{
    size_t       lens[NGX_HTTP_TOKENRING_REDIS_ARGS];
    ngx_uint_t   i;
    const char  *words[NGX_HTTP_TOKENRING_REDIS_ARGS];

    for (i = 0; i < argc; i++) {
        words[i] = (char *) argv[i].data;
        lens[i] = argv[i].len;
    }

    return (redisAsyncCommandArgv(call->conn->ac,
                                  ngx_http_tokenring_redis_answered, call,
                                  (int) argc, words, lens)
            == REDIS_OK) ? NGX_OK : NGX_ERROR;
}


/* connected, or connecting */

static ngx_int_t
ngx_http_tokenring_redis_reach(ngx_http_tokenring_redis_conn_t *conn)
{
    if (conn->state != NGX_HTTP_TOKENRING_REDIS_IDLE) {
        return NGX_OK;
    }

    if (conn->tried
        && ngx_current_msec - conn->attempted < NGX_HTTP_TOKENRING_REDIS_RETRY)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_redis_connect(conn);
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

    if (conn->pending == 0) {
        conn->timer.cancelable = 1;
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: reply %p, type:%d pending:%ui", call,
                   reply ? ((redisReply *) reply)->type : -1, conn->pending);

    if (reply == NULL) {

        /* the caller that closes may not expect handlers to run now */

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


void
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

        ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                       "tokenring redis: no reply to %p, wanted:%d", call,
                       call->handler != NULL);

        handler = call->handler;
        waiter = call->data;

        ngx_free(call);

        if (handler) {
            handler(waiter, NULL);
        }
    }
}


/* the timer is moved only if it must fire earlier */

void
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


void
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


void
ngx_http_tokenring_redis_complain(ngx_http_tokenring_redis_t *redis,
    redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        ngx_http_tokenring_redis_log(&redis->commands, reply->str,
                                     (size_t) reply->len);
    }
}
