/*
 * The dashboard cache: what SSE clients see of Redis (docs/redis.md), or,
 * without one, of the engines of this NGINX (_dashboard_cache_local.c).
 *
 * A round asks Redis three times in a row, once a second and only while
 * somebody looks: for the names of the engines; for the heartbeat of each, its
 * samples since the last round and its latest requests; and for the requests
 * that are new or not over.  The end of a round is one event for all clients.
 * Every round ends: each command is answered, with a reply or without one.
 *
 * What Redis holds was written by others.  Names and values are bounded, only
 * known fields are read, and everything is written as a JSON string.
 */

#include "ngx_http_tokenring_dashboard_cache.h"
#include "ngx_http_tokenring_metrics.h"


static void ngx_http_tokenring_cache_timer(ngx_event_t *ev);
static void ngx_http_tokenring_cache_round(ngx_http_tokenring_cache_t *cache);
static void ngx_http_tokenring_cache_end(ngx_http_tokenring_cache_t *cache);
static ngx_int_t ngx_http_tokenring_cache_object(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_text_t *json);
static ngx_int_t ngx_http_tokenring_cache_away(
    ngx_http_tokenring_cache_t *cache, ngx_http_tokenring_text_t *t);
static ngx_int_t ngx_http_tokenring_cache_redis(
    ngx_http_tokenring_cache_t *cache, ngx_http_tokenring_text_t *t);
static ngx_int_t ngx_http_tokenring_cache_render(
    ngx_http_tokenring_cache_t *cache);


/* the first client has come */

void
ngx_http_tokenring_cache_start(ngx_http_tokenring_cache_t *cache)
{
    if (!cache->ready) {
        cache->ready = 1;

        ngx_queue_init(&cache->clients);

        cache->timer.handler = ngx_http_tokenring_cache_timer;
        cache->timer.data = cache;
        cache->timer.log = ngx_cycle->log;
    }

    if (!cache->timer.timer_set) {
        ngx_add_timer(&cache->timer, 1);
    }
}


static void
ngx_http_tokenring_cache_timer(ngx_event_t *ev)
{
    ngx_http_tokenring_cache_t  *cache;

    cache = ev->data;

    if (ngx_exiting) {
        /* the worker waits for this timer */
        ngx_http_tokenring_sse_client_end(cache);
        return;
    }

    if (ngx_queue_empty(&cache->clients)) {
        if (cache->pending == 0) {
            ngx_http_tokenring_cache_free(cache);
            return;
        }

    } else if (cache->pending == 0) {
        ngx_http_tokenring_cache_round(cache);
    }

    ngx_add_timer(&cache->timer, NGX_HTTP_TOKENRING_CACHE_TICK);
}


static void
ngx_http_tokenring_cache_round(ngx_http_tokenring_cache_t *cache)
{
    u_char      key[128];
    ngx_str_t   argv[5];
    ngx_uint_t  i;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring dashboard: round, engines:%ui requests:%ui",
                   cache->nengines, cache->nrequests);

    cache->failed = 0;
    cache->gathering = 0;
    cache->nlatest = 0;

    ngx_http_tokenring_text_reset(&cache->reason);

    for (i = 0; i < cache->nrequests; i++) {
        cache->requests[i]->changed = 0;
    }

    for (i = 0; i < cache->nengines; i++) {
        ngx_http_tokenring_text_reset(&cache->engines[i].heart);
        ngx_http_tokenring_text_reset(&cache->engines[i].card);
        ngx_http_tokenring_text_reset(&cache->engines[i].samples);
    }

    /* held until all commands are sent */

    cache->pending++;

    if (cache->redis) {
        ngx_http_tokenring_redis_start(cache->redis);

        ngx_str_set(&argv[0], "ZREVRANGE");
        argv[1].data = key;
        argv[1].len = ngx_sprintf(key, "%Vengines", &cache->redis->prefix)
                      - key;
        ngx_str_set(&argv[2], "0");
        argv[3].data = key + argv[1].len;
        argv[3].len = ngx_sprintf(argv[3].data, "%d",
                                  NGX_HTTP_TOKENRING_CACHE_ENGINES - 1)
                      - argv[3].data;
        ngx_str_set(&argv[4], "WITHSCORES");

        ngx_http_tokenring_cache_command(cache, ngx_http_tokenring_cache_names,
                                         cache, 5, argv);
    }

    ngx_http_tokenring_cache_next(cache);
}


void
ngx_http_tokenring_cache_command(ngx_http_tokenring_cache_t *cache,
    ngx_http_tokenring_reply_pt handler, void *data, ngx_uint_t argc,
    ngx_str_t *argv)
{
    if (ngx_http_tokenring_redis_command(cache->redis, handler, data, argc,
                                         argv))
    {
        cache->pending++;

    } else {
        cache->failed = 1;
    }
}


/* one reply less is pending; the last one starts the next step */

void
ngx_http_tokenring_cache_next(ngx_http_tokenring_cache_t *cache)
{
    if (--cache->pending) {
        return;
    }

    if (!cache->failed && !cache->gathering && cache->redis) {
        cache->gathering = 1;
        cache->pending = 1;

        ngx_http_tokenring_cache_gather(cache);

        if (--cache->pending) {
            return;
        }
    }

    ngx_http_tokenring_cache_end(cache);
}


static void
ngx_http_tokenring_cache_end(ngx_http_tokenring_cache_t *cache)
{
    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring dashboard: round is over, engines:%ui failed:%ud",
                   cache->nengines, (u_int) cache->failed);

    if (ngx_exiting || ngx_queue_empty(&cache->clients)) {
        return;
    }

    ngx_http_tokenring_text_reset(&cache->tick);

    if (ngx_http_tokenring_cache_render(cache) == NGX_OK) {
        ngx_http_tokenring_sse_client_tick(cache);
    }
}


void
ngx_http_tokenring_cache_free(ngx_http_tokenring_cache_t *cache)
{
    ngx_uint_t  i;

    for (i = 0; i < cache->nengines; i++) {
        ngx_http_tokenring_text_free(&cache->engines[i].heart);
        ngx_http_tokenring_text_free(&cache->engines[i].card);
        ngx_http_tokenring_text_free(&cache->engines[i].samples);
    }

    for (i = 0; i < cache->nrequests; i++) {
        ngx_http_tokenring_text_free(&cache->requests[i]->json);
        ngx_free(cache->requests[i]);
    }

    ngx_http_tokenring_text_free(&cache->tick);
    ngx_http_tokenring_text_free(&cache->reason);

    cache->nengines = 0;
    cache->nrequests = 0;
}


ngx_uint_t
ngx_http_tokenring_cache_usable(ngx_http_tokenring_cache_t *cache,
    redisReply *reply, int type)
{
    if (reply == NULL) {
        cache->failed = 1;
        return 0;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        ngx_http_tokenring_redis_complain(cache->redis, reply);

        if (ngx_strncmp(reply->str, "WRONGTYPE", 9) == 0) {
            /* somebody else's key: do without */
            return 0;
        }

        cache->failed = 1;

        ngx_http_tokenring_text_reset(&cache->reason);
        (void) ngx_http_tokenring_json(&cache->reason, (u_char *) reply->str,
                                       ngx_min((size_t) reply->len, 200));
        return 0;
    }

    return reply->type == type;
}


ngx_int_t
ngx_http_tokenring_cache_fields(ngx_http_tokenring_text_t *t, ngx_str_t *names,
    ngx_uint_t n, redisReply *reply)
{
    ngx_int_t   found;
    ngx_str_t   value;
    ngx_uint_t  i;

    found = 0;

    for (i = 0; i < n && i < reply->elements; i++) {

        if (ngx_http_tokenring_redis_string(reply->element[i], &value)
            != NGX_OK)
        {
            continue;
        }

        value.len = ngx_http_tokenring_cut(value.data, value.len,
                                           NGX_HTTP_TOKENRING_CACHE_VALUE);

        if (ngx_http_tokenring_printf(t, 64, "%s\"%V\":\"",
                                      t->last[-1] == '{' ? "" : ",", &names[i])
            != NGX_OK
            || ngx_http_tokenring_json(t, value.data, value.len) != NGX_OK
            || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK)
        {
            return NGX_ERROR;
        }

        found++;
    }

    return found;
}


/* ---- what clients get --------------------------------------------------- */

ngx_int_t
ngx_http_tokenring_cache_tell(ngx_http_tokenring_text_t *t, ngx_str_t *name,
    uint64_t seen, ngx_http_tokenring_text_t *heart,
    ngx_http_tokenring_text_t *card, ngx_http_tokenring_text_t *samples)
{
    if ((t->last[-1] != '[' && ngx_http_tokenring_append(t, ",", 1) != NGX_OK)
        || ngx_http_tokenring_put(t, "{\"name\":\"") != NGX_OK
        || ngx_http_tokenring_json(t, name->data, name->len) != NGX_OK
        || ngx_http_tokenring_printf(t, 64, "\",\"seen\":\"%uL\",\"heart\":",
                                     seen)
           != NGX_OK
        || ngx_http_tokenring_cache_object(t, heart) != NGX_OK
        || ngx_http_tokenring_put(t, ",\"card\":") != NGX_OK
        || ngx_http_tokenring_cache_object(t, card) != NGX_OK
        || ngx_http_tokenring_put(t, ",\"samples\":[") != NGX_OK
        || ngx_http_tokenring_append(t, samples->pos,
               ngx_http_tokenring_text_len(samples))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "]}");
}


static ngx_int_t
ngx_http_tokenring_cache_object(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_text_t *json)
{
    size_t  len;

    len = ngx_http_tokenring_text_len(json);

    return ngx_http_tokenring_append(t, len ? json->pos : (u_char *) "null",
                                     len ? len : 4);
}


static ngx_int_t
ngx_http_tokenring_cache_render(ngx_http_tokenring_cache_t *cache)
{
    uint64_t                    now;
    ngx_uint_t                  up;
    ngx_time_t                 *tp;
    ngx_http_tokenring_text_t  *t;

    t = &cache->tick;
    tp = ngx_timeofday();
    now = (uint64_t) tp->sec * 1000 + tp->msec;
    up = cache->redis && !cache->failed;

    if (ngx_http_tokenring_printf(t, 128,
            "data: {\"type\":\"tick\",\"now\":%uL,\"redis\":\"%s\",",
            now, up ? "up" : cache->redis ? "away" : "none")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_put(t, "\"gateway\":") != NGX_OK
        || ngx_http_tokenring_gateway_json(t) != NGX_OK
        || ngx_http_tokenring_append(t, ",", 1) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (cache->redis == NULL) {
        if (ngx_http_tokenring_put(t, "\"engines\":[") != NGX_OK
            || ngx_http_tokenring_cache_local(cache, t, now) != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ngx_http_tokenring_put(t, "],\"requests\":[]}\n\n");
    }

    return up ? ngx_http_tokenring_cache_redis(cache, t)
              : ngx_http_tokenring_cache_away(cache, t);
}


/* Redis cannot be reached, and why, or which it is */

static ngx_int_t
ngx_http_tokenring_cache_away(ngx_http_tokenring_cache_t *cache,
    ngx_http_tokenring_text_t *t)
{
    size_t     len;
    ngx_int_t  rc;

    if (ngx_http_tokenring_put(t, "\"reason\":\"") != NGX_OK) {
        return NGX_ERROR;
    }

    len = ngx_http_tokenring_text_len(&cache->reason);

    rc = len ? ngx_http_tokenring_append(t, cache->reason.pos, len)
             : ngx_http_tokenring_json(t, cache->redis->name.data,
                                       cache->redis->name.len);
    if (rc != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "\"}\n\n");
}


static ngx_int_t
ngx_http_tokenring_cache_redis(ngx_http_tokenring_cache_t *cache,
    ngx_http_tokenring_text_t *t)
{
    ngx_uint_t                          i;
    ngx_http_tokenring_cache_engine_t  *engine;

    if (ngx_http_tokenring_put(t, "\"engines\":[") != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < cache->nengines; i++) {
        if (!cache->engines[i].listed) {
            continue;
        }

        engine = &cache->engines[i];

        if (ngx_http_tokenring_cache_tell(t, &engine->name, engine->seen,
                                          &engine->heart, &engine->card,
                                          &engine->samples)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_put(t, "],\"requests\":") != NGX_OK
        || ngx_http_tokenring_cache_requests(cache, t, 0) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "}\n\n");
}
