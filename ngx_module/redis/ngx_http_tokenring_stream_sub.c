/*
 * Stream subscriptions: what all clients that follow one request share, which
 * is one Redis subscription and one look at the request's state per second,
 * however many follow.
 *
 * The look finds what no message tells: that the engine has died, that the
 * state is final but the output has no end, that messages were lost.  It also
 * carries followers through an outage of Redis, and works without a
 * subscription, a second late.
 *
 * Silence is believed only at the third look: an engine that has lost Redis for
 * a moment has not died.  Where another engine may go on with the request, it
 * has as long as the request's record says.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_follow.h"
#include "ngx_http_tokenring_request.h"


static ngx_http_tokenring_stream_sub_t *ngx_http_tokenring_stream_sub_get(
    ngx_http_tokenring_follow_t *f);
static ngx_http_tokenring_stream_sub_t *ngx_http_tokenring_stream_sub_create(
    ngx_http_tokenring_redis_t *redis, ngx_str_t *id, uint32_t hash);
static void ngx_http_tokenring_stream_sub_free(
    ngx_http_tokenring_stream_sub_t *s);
static void ngx_http_tokenring_stream_sub_event(void *data,
    ngx_http_tokenring_channel_e what, ngx_str_t *message);
static void ngx_http_tokenring_stream_sub_message(
    ngx_http_tokenring_stream_sub_t *s, ngx_str_t *message);
static void ngx_http_tokenring_stream_sub_read(
    ngx_http_tokenring_stream_sub_t *s, ngx_uint_t all);
static ngx_http_tokenring_follow_t *ngx_http_tokenring_stream_sub_next(
    ngx_http_tokenring_stream_sub_t *s, ngx_queue_t *left);
static void ngx_http_tokenring_stream_sub_check(ngx_event_t *ev);
static void ngx_http_tokenring_stream_sub_record(void *data, redisReply *reply);
static void ngx_http_tokenring_stream_sub_last(void *data, redisReply *reply);
static uint64_t ngx_http_tokenring_stream_sub_number(redisReply *reply);
static void ngx_http_tokenring_stream_sub_engine(void *data, redisReply *reply);
static ngx_uint_t ngx_http_tokenring_stream_sub_moves(
    ngx_http_tokenring_stream_sub_t *s);
static void ngx_http_tokenring_stream_sub_silent(
    ngx_http_tokenring_stream_sub_t *s, tr_status_t status,
    const char *message);
static void ngx_http_tokenring_stream_sub_alive(
    ngx_http_tokenring_stream_sub_t *s);
static void ngx_http_tokenring_stream_sub_checked(
    ngx_http_tokenring_stream_sub_t *s);


#define NGX_HTTP_TOKENRING_LOOK     1000
#define NGX_HTTP_TOKENRING_SILENCE  3


struct ngx_http_tokenring_stream_sub_s {
    ngx_str_node_t                      sn;        /* the request's id */
    ngx_http_tokenring_redis_t         *redis;
    ngx_http_tokenring_subscription_t  *subscription;
    ngx_queue_t                         followers;
    ngx_uint_t                          epoch;     /* odd: messages come */
    uint64_t                            newest;    /* that we know of */
    ngx_msec_t                          heard;     /* last message */
    ngx_event_t                         timer;
    ngx_pool_t                         *pool;      /* of one look */
    ngx_http_tokenring_call_t          *call;
    ngx_http_tokenring_call_t          *last;
    ngx_http_tokenring_stored_t         rec;
    ngx_int_t                           known;     /* of the record */
    ngx_uint_t                          silent;    /* looks in a row */
    ngx_msec_t                          orphan;    /* since when, or 0 */
    ngx_uint_t                          missed;
    ngx_uint_t                          busy;      /* must not be freed */
    u_char                              id[TR_COMPLETION_LEN];
};


ngx_int_t
ngx_http_tokenring_stream_sub_join(ngx_http_tokenring_follow_t *f)
{
    ngx_http_tokenring_stream_sub_t  *s;

    if (f->sub) {
        return NGX_OK;
    }

    s = ngx_http_tokenring_stream_sub_get(f);
    if (s == NULL) {
        return NGX_ERROR;
    }

    f->sub = s;
    ngx_queue_insert_tail(&s->followers, &f->queue);

    return NGX_OK;
}


static ngx_http_tokenring_stream_sub_t *
ngx_http_tokenring_stream_sub_get(ngx_http_tokenring_follow_t *f)
{
    uint32_t                          hash;
    ngx_str_t                        *id, channel;
    ngx_http_tokenring_redis_t       *redis;
    ngx_http_tokenring_stream_sub_t  *s;

    redis = f->redis;
    id = &f->ctx->completion;

    hash = ngx_crc32_short(id->data, id->len);

    s = (ngx_http_tokenring_stream_sub_t *)
            ngx_str_rbtree_lookup(&redis->stream_subs, id, hash);

    if (s) {
        return s;
    }

    channel = ngx_http_tokenring_redis_key(redis, f->ctx->request->pool,
                                           "live", id);
    if (channel.data == NULL) {
        return NULL;
    }

    s = ngx_http_tokenring_stream_sub_create(redis, id, hash);
    if (s == NULL) {
        return NULL;
    }

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring stream sub: create, %V", id);

    ngx_rbtree_insert(&redis->stream_subs, &s->sn.node);

    s->subscription = ngx_http_tokenring_subscribe(redis, &channel,
                                        ngx_http_tokenring_stream_sub_event, s);
    if (s->subscription == NULL) {
        ngx_http_tokenring_stream_sub_free(s);
        return NULL;
    }

    /* look at once: the engine may be gone already */
    ngx_add_timer(&s->timer, 1);

    return s;
}


static ngx_http_tokenring_stream_sub_t *
ngx_http_tokenring_stream_sub_create(ngx_http_tokenring_redis_t *redis,
    ngx_str_t *id, uint32_t hash)
{
    ngx_http_tokenring_stream_sub_t  *s;

    s = ngx_calloc(sizeof(ngx_http_tokenring_stream_sub_t), ngx_cycle->log);
    if (s == NULL) {
        return NULL;
    }

    ngx_queue_init(&s->followers);

    s->redis = redis;
    s->heard = ngx_current_msec;

    s->timer.handler = ngx_http_tokenring_stream_sub_check;
    s->timer.data = s;
    s->timer.log = ngx_cycle->log;
    s->timer.cancelable = 1;

    ngx_memcpy(s->id, id->data, TR_COMPLETION_LEN);

    s->sn.str.data = s->id;
    s->sn.str.len = TR_COMPLETION_LEN;
    s->sn.node.key = hash;

    return s;
}


void
ngx_http_tokenring_stream_sub_leave(ngx_http_tokenring_follow_t *f)
{
    ngx_http_tokenring_stream_sub_t  *s;

    s = f->sub;

    if (s == NULL) {
        return;
    }

    f->sub = NULL;
    ngx_queue_remove(&f->queue);

    if (ngx_queue_empty(&s->followers) && !s->busy) {
        ngx_http_tokenring_stream_sub_free(s);
    }
}


static void
ngx_http_tokenring_stream_sub_free(ngx_http_tokenring_stream_sub_t *s)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring stream sub: free, %V", &s->sn.str);

    ngx_http_tokenring_stream_sub_checked(s);

    if (s->subscription) {
        ngx_http_tokenring_unsubscribe(s->subscription);
    }

    if (s->timer.timer_set) {
        ngx_del_timer(&s->timer);
    }

    ngx_rbtree_delete(&s->redis->stream_subs, &s->sn.node);

    ngx_free(s);
}


ngx_uint_t
ngx_http_tokenring_stream_sub_epoch(ngx_http_tokenring_follow_t *f)
{
    return (f->sub && (f->sub->epoch & 1)) ? f->sub->epoch : 0;
}


static void
ngx_http_tokenring_stream_sub_event(void *data,
    ngx_http_tokenring_channel_e what, ngx_str_t *message)
{
    ngx_http_tokenring_stream_sub_t *s = data;

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring stream sub: event:%d epoch:%ui, %V", what,
                   s->epoch, &s->sn.str);

    switch (what) {

    case NGX_HTTP_TOKENRING_CHANNEL_UP:
        s->epoch |= 1;
        s->heard = ngx_current_msec;
        ngx_http_tokenring_stream_sub_read(s, 1);
        break;

    case NGX_HTTP_TOKENRING_CHANNEL_DOWN:
        s->epoch = (s->epoch | 1) + 1;
        break;

    case NGX_HTTP_TOKENRING_CHANNEL_MESSAGE:
        ngx_http_tokenring_stream_sub_message(s, message);
        break;
    }
}


/* "FIRST LAST\n" and the records */

static void
ngx_http_tokenring_stream_sub_message(ngx_http_tokenring_stream_sub_t *s,
    ngx_str_t *message)
{
    u_char                       *p, *end;
    uint64_t                      number[2];
    ngx_str_t                     records;
    ngx_uint_t                    i;
    ngx_queue_t                   left;
    ngx_http_tokenring_follow_t  *f;

    p = message->data;
    end = p + message->len;

    for (i = 0; i < 2; i++) {
        number[i] = 0;

        while (p < end && *p >= '0' && *p <= '9' && number[i] < 1ull << 56) {
            number[i] = number[i] * 10 + (*p++ - '0');
        }

        if (p == end || *p++ != (i ? LF : ' ')) {
            /* ignore it: the next look shows what is missing */
            return;
        }
    }

    s->heard = ngx_current_msec;
    s->missed = 0;
    s->newest = ngx_max(s->newest, number[1]);

    records.data = p;
    records.len = end - p;

    ngx_queue_init(&left);
    ngx_queue_add(&left, &s->followers);
    ngx_queue_init(&s->followers);

    s->busy++;

    while ((f = ngx_http_tokenring_stream_sub_next(s, &left)) != NULL) {
        ngx_http_tokenring_follow_records(f, number[0], number[1], &records);
    }

    s->busy--;

    if (ngx_queue_empty(&s->followers) && !s->busy) {
        ngx_http_tokenring_stream_sub_free(s);
    }
}


/* makes all followers read again, or those that are behind */

static void
ngx_http_tokenring_stream_sub_read(ngx_http_tokenring_stream_sub_t *s,
    ngx_uint_t all)
{
    ngx_queue_t                  *q;
    ngx_http_tokenring_follow_t  *f;

    for (q = ngx_queue_head(&s->followers);
         q != ngx_queue_sentinel(&s->followers);
         q = ngx_queue_next(q))
    {
        f = ngx_queue_data(q, ngx_http_tokenring_follow_t, queue);

        if (all || f->more || f->ctx->number < s->newest) {
            ngx_http_tokenring_follow_read(f);
        }
    }
}


/* the next of those that are left, put back; it may end then */

static ngx_http_tokenring_follow_t *
ngx_http_tokenring_stream_sub_next(ngx_http_tokenring_stream_sub_t *s,
    ngx_queue_t *left)
{
    ngx_queue_t  *q;

    if (ngx_queue_empty(left)) {
        return NULL;
    }

    q = ngx_queue_head(left);
    ngx_queue_remove(q);
    ngx_queue_insert_tail(&s->followers, q);

    return ngx_queue_data(q, ngx_http_tokenring_follow_t, queue);
}


static void
ngx_http_tokenring_stream_sub_check(ngx_event_t *ev)
{
    ngx_str_t                         id, argv[6];
    ngx_http_tokenring_stream_sub_t  *s;

    s = ev->data;

    ngx_add_timer(&s->timer, NGX_HTTP_TOKENRING_LOOK);

    if (s->pool) {
        /* the previous look is not over */
        return;
    }

    if ((s->epoch & 1) && s->newest
        && ngx_current_msec - s->heard < NGX_HTTP_TOKENRING_LOOK)
    {
        s->silent = 0;
        return;
    }

    s->pool = ngx_create_pool(1024, ngx_cycle->log);
    if (s->pool == NULL) {
        return;
    }

    id = s->sn.str;

    ngx_str_set(&argv[0], "XREVRANGE");
    argv[1] = ngx_http_tokenring_redis_key(s->redis, s->pool, "out", &id);
    ngx_str_set(&argv[2], "+");
    ngx_str_set(&argv[3], "-");
    ngx_str_set(&argv[4], "COUNT");
    ngx_str_set(&argv[5], "1");

    s->call = ngx_http_tokenring_stored_ask(s->redis, s->pool, &id,
                                          ngx_http_tokenring_stream_sub_record,
                                          s);
    if (s->call == NULL || argv[1].data == NULL) {
        ngx_http_tokenring_stream_sub_checked(s);
        return;
    }

    s->last = ngx_http_tokenring_redis_command(s->redis,
                                            ngx_http_tokenring_stream_sub_last,
                                            s, 6, argv);
    if (s->last == NULL) {
        ngx_http_tokenring_stream_sub_checked(s);
    }
}


/* the look is over, or was given up */

static void
ngx_http_tokenring_stream_sub_checked(ngx_http_tokenring_stream_sub_t *s)
{
    ngx_http_tokenring_redis_forget(s->call);
    ngx_http_tokenring_redis_forget(s->last);

    s->call = NULL;
    s->last = NULL;

    if (s->pool) {
        ngx_destroy_pool(s->pool);
        s->pool = NULL;
    }
}


static void
ngx_http_tokenring_stream_sub_record(void *data, redisReply *reply)
{
    ngx_http_tokenring_stream_sub_t *s = data;

    s->call = NULL;
    s->known = ngx_http_tokenring_stored_take(s->redis, s->pool, reply,
                                              &s->rec);
}


static void
ngx_http_tokenring_stream_sub_last(void *data, redisReply *reply)
{
    ngx_http_tokenring_stream_sub_t *s = data;

    uint64_t  newest;

    s->last = NULL;

    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY
        || s->known == NGX_ERROR)
    {
        ngx_http_tokenring_stream_sub_checked(s);
        return;
    }

    newest = ngx_http_tokenring_stream_sub_number(reply);

    if (newest > s->newest) {

        /* repeatedly: the subscription does not work */

        if (s->newest && (s->epoch & 1)
            && ++s->missed >= NGX_HTTP_TOKENRING_SILENCE)
        {
            s->missed = 0;
            ngx_http_tokenring_channels_reset(s->redis);
        }

        s->newest = newest;
        s->silent = 0;
    }

    ngx_http_tokenring_stream_sub_read(s, 0);

    if (s->known == NGX_DECLINED) {
        ngx_http_tokenring_stream_sub_silent(s, TR_ERR_NOT_FOUND,
                               "This request has expired");
        return;
    }

    if (s->rec.final) {
        ngx_http_tokenring_stream_sub_silent(s, TR_ERR_CLOSED,
                               "The end of this output was not stored");
        return;
    }

    s->call = ngx_http_tokenring_heartbeat_ask(s->redis, s->pool, &s->rec,
                                          ngx_http_tokenring_stream_sub_engine,
                                          s);
    if (s->call == NULL) {
        ngx_http_tokenring_stream_sub_checked(s);
    }
}


/* the number in the id of the last entry; 0 without one */

static uint64_t
ngx_http_tokenring_stream_sub_number(redisReply *reply)
{
    u_char    *p, *end;
    uint64_t   n;
    ngx_str_t  id;

    if (reply->elements == 0
        || reply->element[0]->type != REDIS_REPLY_ARRAY
        || reply->element[0]->elements == 0
        || ngx_http_tokenring_redis_string(reply->element[0]->element[0], &id)
           != NGX_OK)
    {
        return 0;
    }

    n = 0;
    end = id.data + id.len;

    for (p = id.data; p < end && *p >= '0' && *p <= '9' && n < 1ull << 56; p++)
    {
        n = n * 10 + (*p - '0');
    }

    return n;
}


static void
ngx_http_tokenring_stream_sub_engine(void *data, redisReply *reply)
{
    ngx_http_tokenring_stream_sub_t *s = data;

    ngx_int_t  rc;

    s->call = NULL;

    rc = ngx_http_tokenring_heartbeat_take(s->redis, reply, &s->rec);

    if (rc == NGX_DECLINED && ngx_http_tokenring_stream_sub_moves(s)) {
        ngx_http_tokenring_stream_sub_checked(s);
        ngx_http_tokenring_stream_sub_alive(s);
        return;
    }

    if (rc == NGX_DECLINED) {
        ngx_http_tokenring_stream_sub_silent(s, TR_ERR_CLOSED,
                                          NGX_HTTP_TOKENRING_LOST);
        return;
    }

    ngx_http_tokenring_stream_sub_checked(s);

    if (rc == NGX_OK) {
        s->orphan = 0;
        ngx_http_tokenring_stream_sub_alive(s);
    }
}


/* its engine is gone: may another one still take the request over? */

static ngx_uint_t
ngx_http_tokenring_stream_sub_moves(ngx_http_tokenring_stream_sub_t *s)
{
    if (s->orphan == 0) {
        s->orphan = ngx_current_msec ? ngx_current_msec : 1;
    }

    return ngx_current_msec - s->orphan < s->rec.migrate * 1000;
}


/*
 * No engine will write more.  Followers that have read everything are told so;
 * the others will be at a later look, when they have.
 */

static void
ngx_http_tokenring_stream_sub_silent(ngx_http_tokenring_stream_sub_t *s,
    tr_status_t status, const char *message)
{
    ngx_queue_t                   left;
    ngx_http_tokenring_follow_t  *f;

    ngx_http_tokenring_stream_sub_checked(s);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring stream sub: silent, %V: %s", &s->sn.str,
                   message);

    if (++s->silent < NGX_HTTP_TOKENRING_SILENCE) {
        return;
    }

    ngx_queue_init(&left);
    ngx_queue_add(&left, &s->followers);
    ngx_queue_init(&s->followers);

    s->busy++;

    while ((f = ngx_http_tokenring_stream_sub_next(s, &left)) != NULL) {
        if (f->ctx->number >= s->newest
            && f->ctx->state < NGX_HTTP_TOKENRING_OVER)
        {
            ngx_http_tokenring_follow_fail(f, status, message);
        }
    }

    s->busy--;

    if (ngx_queue_empty(&s->followers) && !s->busy) {
        ngx_http_tokenring_stream_sub_free(s);
    }
}


/* the request goes on, however long it is silent; an exiting worker ends */

static void
ngx_http_tokenring_stream_sub_alive(ngx_http_tokenring_stream_sub_t *s)
{
    ngx_queue_t                  *q;
    ngx_http_tokenring_follow_t  *f;

    s->silent = 0;

    if (ngx_exiting) {
        return;
    }

    for (q = ngx_queue_head(&s->followers);
         q != ngx_queue_sentinel(&s->followers);
         q = ngx_queue_next(q))
    {
        f = ngx_queue_data(q, ngx_http_tokenring_follow_t, queue);

        f->ctx->deadline = ngx_current_msec + f->ctx->conf->idle_timeout;
    }
}
