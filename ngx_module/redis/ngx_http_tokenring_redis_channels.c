/*
 * Subscriptions: one connection per worker and Redis, however many listen.
 *
 * A subscription exists from subscribe to unsubscribe and survives every
 * outage: its listener hears DOWN, and UP when messages come again.  The
 * connection is made when the first one is wanted.
 *
 * Redis confirms in order, so a channel that was given up is subscribed again
 * only after Redis has confirmed the UNSUBSCRIBE: hiredis keeps one callback
 * per channel, and drops it with the confirmation, which must not hit the new
 * one.
 */

#include "ngx_http_tokenring_redis_conn.h"


static void ngx_http_tokenring_channel_send(
    ngx_http_tokenring_subscription_t *s);
static void ngx_http_tokenring_channel_leave(
    ngx_http_tokenring_subscription_t *s);
static void ngx_http_tokenring_channel_free(
    ngx_http_tokenring_subscription_t *s);
static void ngx_http_tokenring_channel_message(redisAsyncContext *ac,
    void *reply, void *data);
static ngx_http_tokenring_subscription_t *ngx_http_tokenring_channel_find(
    ngx_http_tokenring_redis_t *redis, redisReply *r, ngx_str_t *what);
static void ngx_http_tokenring_channel_left(
    ngx_http_tokenring_subscription_t *s);
static ngx_http_tokenring_subscription_t *ngx_http_tokenring_channel_next(
    ngx_http_tokenring_redis_t *redis, ngx_http_tokenring_subscription_t *s);


#define ngx_http_tokenring_channel_is(what, text)                             \
    ((what)->len == sizeof(text) - 1                                          \
     && ngx_strncmp((what)->data, text, sizeof(text) - 1) == 0)


ngx_http_tokenring_subscription_t *
ngx_http_tokenring_subscribe(ngx_http_tokenring_redis_t *redis,
    ngx_str_t *channel, ngx_http_tokenring_channel_pt handler, void *data)
{
    uint32_t                            hash;
    ngx_http_tokenring_redis_conn_t    *conn;
    ngx_http_tokenring_subscription_t  *s;

    ngx_http_tokenring_redis_start(redis);

    hash = ngx_crc32_long(channel->data, channel->len);

    s = (ngx_http_tokenring_subscription_t *)
            ngx_str_rbtree_lookup(&redis->subscriptions, channel, hash);

    if (s) {
        if (s->handler) {
            return NULL;
        }

        /* it is leaving: it is subscribed again after the confirmation */

        s->handler = handler;
        s->data = data;

        return s;
    }

    s = ngx_alloc(sizeof(ngx_http_tokenring_subscription_t) + channel->len,
                  ngx_cycle->log);
    if (s == NULL) {
        return NULL;
    }

    ngx_memzero(s, sizeof(ngx_http_tokenring_subscription_t));

    s->sn.str.data = (u_char *) s + sizeof(ngx_http_tokenring_subscription_t);
    s->sn.str.len = channel->len;
    s->sn.node.key = hash;
    s->redis = redis;
    s->handler = handler;
    s->data = data;

    ngx_memcpy(s->sn.str.data, channel->data, channel->len);

    ngx_rbtree_insert(&redis->subscriptions, &s->sn.node);
    redis->nsubscriptions++;

    conn = &redis->channels;

    if (conn->state == NGX_HTTP_TOKENRING_REDIS_READY) {
        ngx_http_tokenring_channel_send(s);

    } else if (conn->state == NGX_HTTP_TOKENRING_REDIS_IDLE
               && (!conn->tried || ngx_current_msec - conn->attempted
                                   >= NGX_HTTP_TOKENRING_REDIS_RETRY))
    {
        (void) ngx_http_tokenring_redis_connect(conn);
    }

    return s;
}


void
ngx_http_tokenring_unsubscribe(ngx_http_tokenring_subscription_t *s)
{
    s->handler = NULL;
    s->data = NULL;

    if (s->leaving) {
        /* it was to come back, but Redis has not confirmed yet */
        return;
    }

    if (s->sent || s->up) {
        ngx_http_tokenring_channel_leave(s);
        return;
    }

    ngx_http_tokenring_channel_free(s);
}


static void
ngx_http_tokenring_channel_send(ngx_http_tokenring_subscription_t *s)
{
    redisAsyncContext  *ac;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: subscribe to %V", &s->sn.str);

    ac = s->redis->channels.ac;

    if (redisAsyncCommand(ac, ngx_http_tokenring_channel_message, s->redis,
                          "SUBSCRIBE %b", s->sn.str.data, s->sn.str.len)
        == REDIS_OK)
    {
        s->sent = 1;
    }
}


static void
ngx_http_tokenring_channel_leave(ngx_http_tokenring_subscription_t *s)
{
    redisAsyncContext  *ac;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: unsubscribe from %V", &s->sn.str);

    ac = s->redis->channels.ac;

    s->up = 0;
    s->leaving = 1;

    if (redisAsyncCommand(ac, NULL, NULL, "UNSUBSCRIBE %b", s->sn.str.data,
                          s->sn.str.len)
        != REDIS_OK)
    {
        /* the connection ends, and the subscription with it */
        ngx_http_tokenring_redis_close(&s->redis->channels,
                                       "UNSUBSCRIBE failed");
    }
}


static void
ngx_http_tokenring_channel_free(ngx_http_tokenring_subscription_t *s)
{
    ngx_http_tokenring_redis_t  *redis;

    redis = s->redis;

    ngx_rbtree_delete(&redis->subscriptions, &s->sn.node);
    redis->nsubscriptions--;

    ngx_free(s);

    if (redis->nsubscriptions == 0 && redis->channels.reconnect.timer_set) {
        ngx_del_timer(&redis->channels.reconnect);
    }
}


/* all replies on this connection: {what, channel, count or message} */

static void
ngx_http_tokenring_channel_message(redisAsyncContext *ac, void *reply,
    void *data)
{
    ngx_http_tokenring_redis_t *redis = data;

    ngx_str_t                           what, text;
    redisReply                         *r;
    ngx_http_tokenring_subscription_t  *s;

    r = reply;

    if (redis->channels.ac != ac) {
        return;
    }

    s = ngx_http_tokenring_channel_find(redis, r, &what);

    if (s == NULL) {
        return;
    }

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: %V of %V, up:%ud wanted:%d", &what,
                   &s->sn.str, (u_int) s->up, s->handler != NULL);

    if (ngx_http_tokenring_channel_is(&what, "message")) {

        if (s->handler && s->up
            && ngx_http_tokenring_redis_string(r->element[2], &text) == NGX_OK)
        {
            s->handler(s->data, NGX_HTTP_TOKENRING_CHANNEL_MESSAGE, &text);
        }

        return;
    }

    if (ngx_http_tokenring_channel_is(&what, "unsubscribe")) {
        ngx_http_tokenring_channel_left(s);
        return;
    }

    if (ngx_http_tokenring_channel_is(&what, "subscribe") && s->sent) {
        s->sent = 0;
        ngx_http_tokenring_redis_works(&redis->channels);

        if (!s->leaving) {
            s->up = 1;
            s->handler(s->data, NGX_HTTP_TOKENRING_CHANNEL_UP, NULL);
        }
    }
}


/* the subscription of a reply; NULL: none, or another form */

static ngx_http_tokenring_subscription_t *
ngx_http_tokenring_channel_find(ngx_http_tokenring_redis_t *redis,
    redisReply *r, ngx_str_t *what)
{
    uint32_t   hash;
    ngx_str_t  name;

    if (r == NULL
        || (r->type != REDIS_REPLY_ARRAY
#ifdef REDIS_REPLY_PUSH
            && r->type != REDIS_REPLY_PUSH
#endif
            )
        || r->elements < 3
        || ngx_http_tokenring_redis_string(r->element[0], what) != NGX_OK
        || ngx_http_tokenring_redis_string(r->element[1], &name) != NGX_OK)
    {
        return NULL;
    }

    hash = ngx_crc32_long(name.data, name.len);

    return (ngx_http_tokenring_subscription_t *)
               ngx_str_rbtree_lookup(&redis->subscriptions, &name, hash);
}


/* Redis has confirmed UNSUBSCRIBE */

static void
ngx_http_tokenring_channel_left(ngx_http_tokenring_subscription_t *s)
{
    if (!s->leaving) {
        return;
    }

    s->leaving = 0;

    if (s->handler) {
        ngx_http_tokenring_channel_send(s);
        return;
    }

    ngx_http_tokenring_channel_free(s);
}


void
ngx_http_tokenring_channels_reset(ngx_http_tokenring_redis_t *redis)
{
    ngx_http_tokenring_redis_close(&redis->channels, "messages were lost");
}


/* the connection is ready: subscribe to everything that is wanted */

void
ngx_http_tokenring_channels_up(ngx_http_tokenring_redis_t *redis)
{
    ngx_http_tokenring_subscription_t  *s;

    s = NULL;

    while ((s = ngx_http_tokenring_channel_next(redis, s)) != NULL) {
        ngx_http_tokenring_channel_send(s);
    }
}


/* it is lost; a listener may unsubscribe, or subscribe to something else */

void
ngx_http_tokenring_channels_down(ngx_http_tokenring_redis_t *redis)
{
    ngx_uint_t                          was;
    ngx_http_tokenring_subscription_t  *s, *next;

    s = ngx_http_tokenring_channel_next(redis, NULL);

    while (s) {
        was = s->up;

        s->sent = 0;
        s->up = 0;
        s->leaving = 0;

        next = ngx_http_tokenring_channel_next(redis, s);

        if (s->handler == NULL) {
            ngx_http_tokenring_channel_free(s);

        } else if (was) {
            s->handler(s->data, NGX_HTTP_TOKENRING_CHANNEL_DOWN, NULL);
        }

        s = next;
    }
}


void
ngx_http_tokenring_channels_free(ngx_http_tokenring_redis_t *redis)
{
    ngx_http_tokenring_subscription_t  *s;

    while ((s = ngx_http_tokenring_channel_next(redis, NULL)) != NULL) {
        ngx_http_tokenring_channel_free(s);
    }
}


static ngx_http_tokenring_subscription_t *
ngx_http_tokenring_channel_next(ngx_http_tokenring_redis_t *redis,
    ngx_http_tokenring_subscription_t *s)
{
    ngx_rbtree_node_t  *node;

    if (s) {
        node = ngx_rbtree_next(&redis->subscriptions, &s->sn.node);

    } else if (redis->subscriptions.root == redis->subscriptions.sentinel) {
        node = NULL;

    } else {
        node = ngx_rbtree_min(redis->subscriptions.root,
                              redis->subscriptions.sentinel);
    }

    return (ngx_http_tokenring_subscription_t *) node;
}
