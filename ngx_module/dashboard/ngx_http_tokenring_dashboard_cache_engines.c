/*
 * The engines in the dashboard cache: the list, heartbeats, samples.
 *
 * An engine keeps its index while it is listed, since clients go through the
 * engines by index; the samples of a round are those after the last one that
 * was sent.
 */

#include "ngx_http_tokenring_dashboard_cache.h"


static void ngx_http_tokenring_cache_name(ngx_http_tokenring_cache_t *cache,
    ngx_str_t *name, uint64_t seen);
static void ngx_http_tokenring_cache_ask(
    ngx_http_tokenring_cache_engine_t *engine);
static void ngx_http_tokenring_cache_fetch_fields(
    ngx_http_tokenring_cache_engine_t *engine, const char *kind,
    ngx_http_tokenring_reply_pt handler);
static ngx_int_t ngx_http_tokenring_cache_read_fields(
    ngx_http_tokenring_cache_engine_t *engine, ngx_http_tokenring_text_t *t,
    redisReply *reply);
static void ngx_http_tokenring_cache_heart(void *data, redisReply *reply);
static void ngx_http_tokenring_cache_card(void *data, redisReply *reply);
static void ngx_http_tokenring_cache_samples(void *data, redisReply *reply);


static ngx_str_t  ngx_http_tokenring_heart_fields[] = {
    ngx_string("run"), ngx_string("state"), ngx_string("model"),
    ngx_string("backend"), ngx_string("kv_policy"), ngx_string("started"),
    ngx_string("heartbeat"), ngx_string("host"), ngx_string("version"),
    ngx_string("max_model_len"), ngx_string("page_bytes"),
    ngx_string("pages"), ngx_string("levels"), ngx_string("level_bytes"),
    ngx_string("full_token_bytes"), ngx_string("weights"),
    ngx_string("weights_file_bytes"), ngx_string("weights_bytes"),
    ngx_string("parameters")
};

static ngx_str_t  ngx_http_tokenring_sample_fields[] = {
    ngx_string("run"), ngx_string("running"), ngx_string("waiting"),
    ngx_string("prompt_tokens"), ngx_string("generation_tokens"),
    ngx_string("stop"), ngx_string("length"), ngx_string("aborted"),
    ngx_string("error"), ngx_string("preemptions"),
    ngx_string("gpu_percent"), ngx_string("gpu_milliwatts"),
    ngx_string("kv_request_bytes"), ngx_string("kv_request_full_bytes"),
    ngx_string("kv_free"), ngx_string("kv_used"),
    ngx_string("kv_swapped"), ngx_string("kv_cached"),
    ngx_string("kv_files_bytes"), ngx_string("kv_host_bytes"),
    ngx_string("kv_guard_warnings"),
    ngx_string("kv_tokens"), ngx_string("kv_full_bytes"),
    ngx_string("ttft"), ngx_string("inter_token"), ngx_string("e2e")
};


void
ngx_http_tokenring_cache_names(void *data, redisReply *reply)
{
    ngx_http_tokenring_cache_t *cache = data;

    size_t      i;
    uint64_t    seen;
    ngx_str_t   name;
    ngx_uint_t  n;

    if (!ngx_http_tokenring_cache_usable(cache, reply, REDIS_REPLY_ARRAY)) {
        goto done;
    }

    for (n = 0; n < cache->nengines; n++) {
        cache->engines[n].listed = 0;
    }

    for (i = 0; i + 1 < reply->elements; i += 2) {
        if (ngx_http_tokenring_redis_string(reply->element[i], &name)
            == NGX_OK
            && ngx_http_tokenring_redis_number(reply->element[i + 1], &seen)
               == NGX_OK
            && name.len && name.len <= NGX_HTTP_TOKENRING_CACHE_NAME)
        {
            ngx_http_tokenring_cache_name(cache, &name, seen);
        }
    }

    for (n = 0; n < cache->nengines; n++) {
        if (cache->engines[n].listed) {
            ngx_http_tokenring_cache_ask(&cache->engines[n]);
        }
    }

done:

    ngx_http_tokenring_cache_next(cache);
}


/* a listed engine: at its old index, else in a free place */

static void
ngx_http_tokenring_cache_name(ngx_http_tokenring_cache_t *cache,
    ngx_str_t *name, uint64_t seen)
{
    ngx_uint_t                          n;
    ngx_http_tokenring_cache_engine_t  *engine, *room;

    room = NULL;

    for (n = 0; n < cache->nengines; n++) {
        engine = &cache->engines[n];

        if (engine->name.len == name->len
            && ngx_memcmp(engine->name.data, name->data, name->len) == 0)
        {
            goto found;
        }

        if (!engine->listed && room == NULL) {
            room = engine;
        }
    }

    if (cache->nengines < NGX_HTTP_TOKENRING_CACHE_ENGINES) {
        engine = &cache->engines[cache->nengines++];
        ngx_memzero(engine, sizeof(ngx_http_tokenring_cache_engine_t));

    } else if (room) {
        engine = room;

    } else {
        return;
    }

    engine->cache = cache;
    engine->name.data = engine->name_buf;
    engine->name.len = name->len;
    engine->last.data = engine->last_buf;
    engine->last.len = 0;

    ngx_memcpy(engine->name_buf, name->data, name->len);

found:

    engine->seen = seen;
    engine->listed = 1;
}


static void
ngx_http_tokenring_cache_ask(ngx_http_tokenring_cache_engine_t *engine)
{
    u_char                       key[256], id[NGX_HTTP_TOKENRING_CACHE_ID + 1];
    ngx_str_t                    argv[6];
    ngx_http_tokenring_redis_t  *redis;

    redis = engine->cache->redis;

    ngx_http_tokenring_cache_fetch_fields(engine, "engine",
                                          ngx_http_tokenring_cache_heart);

    argv[1] = ngx_http_tokenring_redis_key_at(redis, key, "metrics",
                                              &engine->name);

    if (engine->last.len) {
        ngx_str_set(&argv[0], "XRANGE");
        argv[2].data = id;
        argv[2].len = ngx_sprintf(id, "(%V", &engine->last) - id;
        ngx_str_set(&argv[3], "+");
        ngx_str_set(&argv[5], "100");

    } else {
        ngx_str_set(&argv[0], "XREVRANGE");
        ngx_str_set(&argv[2], "+");
        ngx_str_set(&argv[3], "-");
        ngx_str_set(&argv[5], "1");
    }

    ngx_str_set(&argv[4], "COUNT");

    ngx_http_tokenring_cache_command(engine->cache,
                                     ngx_http_tokenring_cache_samples, engine,
                                     6, argv);

    ngx_str_set(&argv[0], "ZREVRANGE");
    argv[1] = ngx_http_tokenring_redis_key_at(redis, key, "requests",
                                              &engine->name);
    ngx_str_set(&argv[2], "0");
    argv[3].data = id;
    argv[3].len = ngx_sprintf(id, "%d", NGX_HTTP_TOKENRING_CACHE_REQUESTS - 1)
                  - id;
    ngx_str_set(&argv[4], "WITHSCORES");

    ngx_http_tokenring_cache_command(engine->cache,
                                     ngx_http_tokenring_cache_latest, engine,
                                     5, argv);
}


/* HMGET of a hash that has a heartbeat's fields */

static void
ngx_http_tokenring_cache_fetch_fields(
    ngx_http_tokenring_cache_engine_t *engine, const char *kind,
    ngx_http_tokenring_reply_pt handler)
{
    u_char      key[256];
    ngx_str_t   argv[NGX_HTTP_TOKENRING_REDIS_ARGS];
    ngx_uint_t  i, n;

    n = ngx_http_tokenring_nelts(ngx_http_tokenring_heart_fields);

    ngx_str_set(&argv[0], "HMGET");
    argv[1] = ngx_http_tokenring_redis_key_at(engine->cache->redis, key, kind,
                                              &engine->name);

    for (i = 0; i < n; i++) {
        argv[2 + i] = ngx_http_tokenring_heart_fields[i];
    }

    ngx_http_tokenring_cache_command(engine->cache, handler, engine, 2 + n,
                                     argv);
}


/* NGX_DECLINED: it has none of them */

static ngx_int_t
ngx_http_tokenring_cache_read_fields(
    ngx_http_tokenring_cache_engine_t *engine, ngx_http_tokenring_text_t *t,
    redisReply *reply)
{
    ngx_int_t  n;

    if (!ngx_http_tokenring_cache_usable(engine->cache, reply,
                                         REDIS_REPLY_ARRAY))
    {
        return NGX_ERROR;
    }

    (void) ngx_http_tokenring_append(t, "{", 1);

    n = ngx_http_tokenring_cache_fields(t, ngx_http_tokenring_heart_fields,
            ngx_http_tokenring_nelts(ngx_http_tokenring_heart_fields),
            reply);

    if (n <= 0 || ngx_http_tokenring_append(t, "}", 1) != NGX_OK) {
        ngx_http_tokenring_text_reset(t);
        return n == 0 ? NGX_DECLINED : NGX_ERROR;
    }

    return NGX_OK;
}


/* a heartbeat that has expired has no fields: the card says whose it was */

static void
ngx_http_tokenring_cache_heart(void *data, redisReply *reply)
{
    ngx_http_tokenring_cache_engine_t *engine = data;

    if (ngx_http_tokenring_cache_read_fields(engine, &engine->heart, reply)
        == NGX_DECLINED)
    {
        ngx_http_tokenring_cache_fetch_fields(engine, "card",
                                              ngx_http_tokenring_cache_card);
    }

    ngx_http_tokenring_cache_next(engine->cache);
}


static void
ngx_http_tokenring_cache_card(void *data, redisReply *reply)
{
    ngx_http_tokenring_cache_engine_t *engine = data;

    (void) ngx_http_tokenring_cache_read_fields(engine, &engine->card, reply);

    ngx_http_tokenring_cache_next(engine->cache);
}


static void
ngx_http_tokenring_cache_samples(void *data, redisReply *reply)
{
    ngx_http_tokenring_cache_engine_t *engine = data;

    size_t                      i;
    ngx_int_t                   rc;
    ngx_str_t                   id;
    ngx_http_tokenring_text_t  *t;

    t = &engine->samples;

    if (!ngx_http_tokenring_cache_usable(engine->cache, reply,
                                         REDIS_REPLY_ARRAY))
    {
        goto done;
    }

    for (i = 0; i < reply->elements; i++) {

        rc = ngx_http_tokenring_cache_sample(t, reply->element[i], &id);

        if (rc == NGX_ERROR) {
            ngx_http_tokenring_text_reset(t);
            break;
        }

        if (rc == NGX_OK) {
            engine->last.len = id.len;
            ngx_memcpy(engine->last_buf, id.data, id.len);
        }
    }

done:

    ngx_http_tokenring_cache_next(engine->cache);
}


ngx_int_t
ngx_http_tokenring_cache_sample(ngx_http_tokenring_text_t *t,
    redisReply *entry, ngx_str_t *id)
{
    size_t       i, j;
    ngx_str_t    name, value;
    redisReply  *fields;

    if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2
        || ngx_http_tokenring_redis_string(entry->element[0], id) != NGX_OK
        || id->len == 0 || id->len > NGX_HTTP_TOKENRING_CACHE_ID
        || entry->element[1]->type != REDIS_REPLY_ARRAY)
    {
        return NGX_DECLINED;
    }

    fields = entry->element[1];

    if ((ngx_http_tokenring_text_len(t)
         && ngx_http_tokenring_append(t, ",", 1) != NGX_OK)
        || ngx_http_tokenring_put(t, "{\"id\":\"") != NGX_OK
        || ngx_http_tokenring_json(t, id->data, id->len) != NGX_OK
        || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i + 1 < fields->elements; i += 2) {

        if (ngx_http_tokenring_redis_string(fields->element[i], &name)
            != NGX_OK
            || ngx_http_tokenring_redis_string(fields->element[i + 1], &value)
               != NGX_OK
            || value.len > NGX_HTTP_TOKENRING_CACHE_VALUE)
        {
            continue;
        }

        for (j = 0;
             j < ngx_http_tokenring_nelts(ngx_http_tokenring_sample_fields);
             j++)
        {
            if (name.len == ngx_http_tokenring_sample_fields[j].len
                && ngx_memcmp(name.data,
                              ngx_http_tokenring_sample_fields[j].data,
                              name.len) == 0)
            {
                if (ngx_http_tokenring_printf(t, 64, ",\"%V\":\"", &name)
                    != NGX_OK
                    || ngx_http_tokenring_json(t, value.data, value.len)
                       != NGX_OK
                    || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK)
                {
                    return NGX_ERROR;
                }

                break;
            }
        }
    }

    return ngx_http_tokenring_append(t, "}", 1);
}
