/*
 * The requests in the dashboard cache: the latest of all engines, read until
 * they are over.
 *
 * Every engine lists its own latest requests by arrival; the newest of all are
 * shown.  Each is read in every round until its state is final, and sent to
 * clients when it has changed.
 */

#include "ngx_http_tokenring_dashboard_cache.h"
#include "ngx_http_tokenring_state.h"


static ngx_http_tokenring_cache_request_t *ngx_http_tokenring_cache_take(
    ngx_http_tokenring_cache_t *cache, u_char *id);
static void ngx_http_tokenring_cache_got(void *data, redisReply *reply);


/* neither the owner nor any prompt or output */

static ngx_str_t  ngx_http_tokenring_request_fields[] = {
    ngx_string("state"), ngx_string("engine"), ngx_string("run"),
    ngx_string("model"), ngx_string("endpoint"), ngx_string("request_id"),
    ngx_string("resumable"), ngx_string("detach"), ngx_string("stream"),
    ngx_string("created"), ngx_string("started"), ngx_string("first_token"),
    ngx_string("finished"), ngx_string("choices"),
    ngx_string("prompt_tokens"), ngx_string("completion_tokens"),
    ngx_string("cached_tokens"), ngx_string("preemptions"),
    ngx_string("finish_reason"), ngx_string("kv_bytes"),
    ngx_string("kv_full_bytes"), ngx_string("share_high"),
    ngx_string("share_low"), ngx_string("share_pruned"),
    ngx_string("kv_policy"), ngx_string("kv_tokens_full"),
    ngx_string("kv_tokens_high"), ngx_string("kv_tokens_low"),
    ngx_string("kv_tokens_pruned"),
    ngx_string("error_status"), ngx_string("error"), ngx_string("gap")
};


/* merges the latest requests of one engine into those of all */

void
ngx_http_tokenring_cache_latest(void *data, redisReply *reply)
{
    ngx_http_tokenring_cache_engine_t *engine = data;

    size_t                              i;
    uint64_t                            created;
    ngx_str_t                           id;
    ngx_uint_t                          n, last;
    ngx_http_tokenring_cache_t         *cache;
    ngx_http_tokenring_cache_latest_t  *latest;

    cache = engine->cache;
    latest = cache->latest;

    if (!ngx_http_tokenring_cache_usable(cache, reply, REDIS_REPLY_ARRAY)) {
        goto done;
    }

    for (i = 0; i + 1 < reply->elements; i += 2) {

        if (ngx_http_tokenring_redis_string(reply->element[i], &id) != NGX_OK
            || id.len != NGX_HTTP_TOKENRING_ID_LEN
            || !tr_wire_is_hex((char *) id.data, id.len) || id.data[0] == '\0'
            || ngx_http_tokenring_redis_number(reply->element[i + 1],
                                               &created)
               != NGX_OK)
        {
            continue;
        }

        for (n = cache->nlatest; n && latest[n - 1].created < created; n--) {
            /* void */
        }

        if (n == NGX_HTTP_TOKENRING_CACHE_REQUESTS) {
            continue;
        }

        last = ngx_min(cache->nlatest, NGX_HTTP_TOKENRING_CACHE_REQUESTS - 1);

        ngx_memmove(&latest[n + 1], &latest[n],
                    (last - n) * sizeof(ngx_http_tokenring_cache_latest_t));

        ngx_memcpy(latest[n].id, id.data, NGX_HTTP_TOKENRING_ID_LEN);
        latest[n].created = created;
        cache->nlatest = last + 1;
    }

done:

    ngx_http_tokenring_cache_next(cache);
}


/* the request with this id, removed from its old place, or a new one */

static ngx_http_tokenring_cache_request_t *
ngx_http_tokenring_cache_take(ngx_http_tokenring_cache_t *cache, u_char *id)
{
    ngx_uint_t                           i;
    ngx_http_tokenring_cache_request_t  *request;

    for (i = 0; i < cache->nrequests; i++) {
        request = cache->requests[i];

        if (request
            && ngx_memcmp(request->id, id, NGX_HTTP_TOKENRING_ID_LEN) == 0)
        {
            cache->requests[i] = NULL;
            return request;
        }
    }

    request = ngx_calloc(sizeof(ngx_http_tokenring_cache_request_t),
                         ngx_cycle->log);
    if (request) {
        request->cache = cache;
        ngx_memcpy(request->id, id, NGX_HTTP_TOKENRING_ID_LEN);
    }

    return request;
}


/* the latest requests of all engines become those that are shown */

void
ngx_http_tokenring_cache_gather(ngx_http_tokenring_cache_t *cache)
{
    ngx_uint_t                           i, n;
    ngx_http_tokenring_cache_request_t  *request;
    ngx_http_tokenring_cache_request_t
        *next[NGX_HTTP_TOKENRING_CACHE_REQUESTS];

    n = 0;

    for (i = 0; i < cache->nlatest; i++) {
        request = ngx_http_tokenring_cache_take(cache, cache->latest[i].id);

        if (request) {
            request->created = cache->latest[i].created;
            next[n++] = request;
        }
    }

    for (i = 0; i < cache->nrequests; i++) {
        if (cache->requests[i]) {
            ngx_http_tokenring_text_free(&cache->requests[i]->json);
            ngx_free(cache->requests[i]);
        }
    }

    ngx_memcpy(cache->requests, next, n * sizeof(next[0]));
    cache->nrequests = n;

    for (i = 0; i < n; i++) {
        if (next[i]->final) {
            continue;
        }

        if (ngx_http_tokenring_cache_fetch(cache->redis, next[i]->id,
                                           ngx_http_tokenring_cache_got,
                                           next[i]))
        {
            cache->pending++;

        } else {
            cache->failed = 1;
        }
    }
}


ngx_http_tokenring_call_t *
ngx_http_tokenring_cache_fetch(ngx_http_tokenring_redis_t *redis, u_char *id,
    ngx_http_tokenring_reply_pt handler, void *data)
{
    u_char      key[256];
    ngx_str_t   argv[NGX_HTTP_TOKENRING_REDIS_ARGS], name;
    ngx_uint_t  i, n;

    n = ngx_http_tokenring_nelts(ngx_http_tokenring_request_fields);

    name.data = id;
    name.len = NGX_HTTP_TOKENRING_ID_LEN;

    ngx_str_set(&argv[0], "HMGET");
    argv[1] = ngx_http_tokenring_redis_key_at(redis, key, "req", &name);

    for (i = 0; i < n; i++) {
        argv[2 + i] = ngx_http_tokenring_request_fields[i];
    }

    return ngx_http_tokenring_redis_command(redis, handler, data, 2 + n, argv);
}


ngx_int_t
ngx_http_tokenring_cache_request(ngx_http_tokenring_text_t *t, u_char *id,
    redisReply *reply, ngx_uint_t *final)
{
    ngx_int_t  n;
    ngx_str_t  state;

    *final = 0;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0) {
        return NGX_DECLINED;
    }

    if (ngx_http_tokenring_printf(t, 64, "{\"id\":\"%*s\"",
                                  (size_t) NGX_HTTP_TOKENRING_ID_LEN, id)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    n = ngx_http_tokenring_cache_fields(t, ngx_http_tokenring_request_fields,
            ngx_http_tokenring_nelts(ngx_http_tokenring_request_fields),
            reply);

    if (n == NGX_ERROR || ngx_http_tokenring_append(t, "}", 1) != NGX_OK) {
        return NGX_ERROR;
    }

    if (n == 0) {
        return NGX_DECLINED;
    }

    if (ngx_http_tokenring_redis_string(reply->element[0], &state) == NGX_OK) {
        (void) ngx_http_tokenring_state_known(&state, final);
    }

    return NGX_OK;
}


static void
ngx_http_tokenring_cache_got(void *data, redisReply *reply)
{
    ngx_http_tokenring_cache_request_t *request = data;

    uint32_t                    crc;
    ngx_int_t                   rc;
    ngx_uint_t                  final;
    ngx_http_tokenring_text_t  *t;

    t = &request->json;

    if (!ngx_http_tokenring_cache_usable(request->cache, reply,
                                         REDIS_REPLY_ARRAY))
    {
        goto done;
    }

    ngx_http_tokenring_text_reset(t);

    rc = ngx_http_tokenring_cache_request(t, request->id, reply, &final);

    if (rc != NGX_OK) {
        ngx_http_tokenring_text_reset(t);
        request->crc = 0;

        /* it has expired */
        request->final = (rc == NGX_DECLINED);
        goto done;
    }

    crc = ngx_crc32_long(t->pos, ngx_http_tokenring_text_len(t));

    request->changed = (crc != request->crc);
    request->crc = crc;
    request->final = final ? 1 : 0;

done:

    ngx_http_tokenring_cache_next(request->cache);
}


ngx_int_t
ngx_http_tokenring_cache_requests(ngx_http_tokenring_cache_t *cache,
    ngx_http_tokenring_text_t *t, ngx_uint_t all)
{
    ngx_uint_t                           i;
    ngx_http_tokenring_cache_request_t  *request;

    if (ngx_http_tokenring_append(t, "[", 1) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < cache->nrequests; i++) {
        request = cache->requests[i];

        if (ngx_http_tokenring_text_len(&request->json) == 0
            || (!all && !request->changed))
        {
            continue;
        }

        if ((t->last[-1] != '['
             && ngx_http_tokenring_append(t, ",", 1) != NGX_OK)
            || ngx_http_tokenring_append(t, request->json.pos,
                   ngx_http_tokenring_text_len(&request->json))
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_append(t, "]", 1);
}
