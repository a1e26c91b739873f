/*
 * SSE clients of the dashboard: streams of server-sent events.
 *
 * A client gets the requests that the dashboard cache knows, and then every
 * tick; meanwhile the samples of the last minutes are read for it alone, in
 * slices, and only as fast as it takes them.  A slow client misses ticks and
 * gets the missing samples in the same way afterwards.  A client that asks for
 * an hour (/events?hour) gets its older part thinned out: counters only grow,
 * so every tenth sample has all that counts.
 *
 * When the worker exits, the streams end with the next tick: the page connects
 * again, to a new worker.
 */

#include "ngx_http_tokenring_dashboard_cache.h"
#include "ngx_http_tokenring_stream.h"

#include <tokenring/status.h>


static ngx_int_t ngx_http_tokenring_sse_client_header(ngx_http_request_t *r);
static ngx_http_tokenring_sse_client_t *ngx_http_tokenring_sse_client_create(
    ngx_http_request_t *r, ngx_http_tokenring_cache_t *cache);
static ngx_int_t ngx_http_tokenring_sse_client_hello(
    ngx_http_tokenring_sse_client_t *client);
static void ngx_http_tokenring_sse_client_cleanup(void *data);
static void ngx_http_tokenring_sse_client_free(void *data);
static ngx_http_tokenring_sse_client_t *ngx_http_tokenring_sse_client_of(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_tokenring_sse_client_greet(
    ngx_http_tokenring_sse_client_t *client);
static void ngx_http_tokenring_sse_client_more(
    ngx_http_tokenring_sse_client_t *client);
static ngx_uint_t ngx_http_tokenring_sse_client_sparse(redisReply *entry,
    ngx_str_t *id);
static void ngx_http_tokenring_sse_client_slice(void *data, redisReply *reply);
static ngx_int_t ngx_http_tokenring_sse_client_history(
    ngx_http_tokenring_sse_client_t *client, redisReply *reply,
    ngx_str_t *id);
static ngx_int_t ngx_http_tokenring_sse_client_samples(
    ngx_http_tokenring_sse_client_t *client, redisReply *reply,
    ngx_http_tokenring_text_t *samples, ngx_str_t *id);
static void ngx_http_tokenring_sse_client_send(
    ngx_http_tokenring_sse_client_t *client, ngx_uint_t last);
static void ngx_http_tokenring_sse_client_writer(ngx_http_request_t *r);


ngx_int_t
ngx_http_tokenring_sse_client_open(ngx_http_request_t *r,
    ngx_http_tokenring_cache_t *cache)
{
    ngx_int_t                         rc;
    ngx_http_cleanup_t               *cln;
    ngx_http_tokenring_sse_client_t  *client;

    rc = ngx_http_tokenring_sse_client_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    client = ngx_http_tokenring_sse_client_create(r, cache);
    if (client == NULL) {
        return NGX_ERROR;
    }

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring sse client: open");

    ngx_http_tokenring_cache_start(cache);
    ngx_queue_insert_tail(&cache->clients, &client->queue);

    cln->handler = ngx_http_tokenring_sse_client_cleanup;
    cln->data = client;

    if (ngx_http_tokenring_sse_client_hello(client) != NGX_OK) {
        return NGX_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_tokenring_sse_client_writer;
    r->main->count++;

    ngx_http_tokenring_sse_client_send(client, 0);

    return NGX_DONE;
}


static ngx_http_tokenring_sse_client_t *
ngx_http_tokenring_sse_client_create(ngx_http_request_t *r,
    ngx_http_tokenring_cache_t *cache)
{
    ngx_pool_cleanup_t               *cln;
    ngx_http_tokenring_sse_client_t  *client;

    client = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_sse_client_t));
    if (client == NULL) {
        return NULL;
    }

    /* HTTP/2 may still hold a part of a frame when the request is over */

    cln = ngx_pool_cleanup_add(r->pool, 0);
    if (cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_tokenring_sse_client_free;
    cln->data = client;

    client->request = r;
    client->cache = cache;
    client->history = NGX_HTTP_TOKENRING_CACHE_HISTORY;

    if (r->args.len == 4 && ngx_strncmp(r->args.data, "hour", 4) == 0) {
        client->history = NGX_HTTP_TOKENRING_CACHE_HOUR;
    }

    return client;
}


static ngx_int_t
ngx_http_tokenring_sse_client_hello(ngx_http_tokenring_sse_client_t *client)
{
    ngx_uint_t  i;

    static uint32_t  bounds[TR_STATUS_BUCKETS] = TR_STATUS_BOUNDS_US;

    if (ngx_http_tokenring_printf(&client->out, 512,
            "retry: 1000\n\ndata: {\"type\":\"hello\",\"bounds\":[")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < TR_STATUS_BUCKETS; i++) {
        if (ngx_http_tokenring_printf(&client->out, 16, "%s%uD",
                                      i ? "," : "", bounds[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_append(&client->out, "]}\n\n", 4);
}


static ngx_int_t
ngx_http_tokenring_sse_client_header(ngx_http_request_t *r)
{
    static ngx_str_t  no_store = ngx_string("no-store");

    if (ngx_http_tokenring_stream_headers(r, &no_store) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_send_header(r);
}


static void
ngx_http_tokenring_sse_client_cleanup(void *data)
{
    ngx_http_tokenring_sse_client_t *client = data;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, client->request->connection->log, 0,
                   "tokenring sse client: end, slow:%ud",
                   (u_int) client->blocked);

    ngx_queue_remove(&client->queue);
    ngx_http_tokenring_redis_forget(client->call);
    client->call = NULL;
}


static void
ngx_http_tokenring_sse_client_free(void *data)
{
    ngx_http_tokenring_sse_client_t *client = data;

    ngx_http_tokenring_text_free(&client->out);
}


/* the module's ctx is for API requests: a client is found by its cleanup */

static ngx_http_tokenring_sse_client_t *
ngx_http_tokenring_sse_client_of(ngx_http_request_t *r)
{
    ngx_http_cleanup_t  *cln;

    for (cln = r->main->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_tokenring_sse_client_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


/* the cache has finished a round */

void
ngx_http_tokenring_sse_client_tick(ngx_http_tokenring_cache_t *cache)
{
    ngx_queue_t                      *q, *next;
    ngx_connection_t                 *c;
    ngx_http_tokenring_sse_client_t  *client;

    for (q = ngx_queue_head(&cache->clients);
         q != ngx_queue_sentinel(&cache->clients);
         q = next)
    {
        /* only this client may leave now */
        next = ngx_queue_next(q);

        client = ngx_queue_data(q, ngx_http_tokenring_sse_client_t, queue);

        if (client->blocked) {
            client->greeted = 0;
            continue;
        }

        c = client->request->connection;

        if ((!client->greeted && !cache->failed && cache->redis
             && ngx_http_tokenring_sse_client_greet(client) != NGX_OK)
            || ngx_http_tokenring_append(&client->out, cache->tick.pos,
                   ngx_http_tokenring_text_len(&cache->tick))
               != NGX_OK)
        {
            ngx_http_finalize_request(client->request, NGX_ERROR);
            ngx_http_run_posted_requests(c);
            continue;
        }

        ngx_http_tokenring_sse_client_send(client, 0);
        ngx_http_run_posted_requests(c);
    }
}


/* the history: all requests at once, samples in slices */

static ngx_int_t
ngx_http_tokenring_sse_client_greet(ngx_http_tokenring_sse_client_t *client)
{
    ngx_http_tokenring_text_t  *t;

    t = &client->out;

    if (ngx_http_tokenring_printf(t, 64,
                                  "data: {\"type\":\"requests\",\"requests\":")
        != NGX_OK
        || ngx_http_tokenring_cache_requests(client->cache, t, 1) != NGX_OK
        || ngx_http_tokenring_append(t, "}\n\n", 3) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_tokenring_redis_forget(client->call);
    client->call = NULL;

    client->greeted = 1;
    client->engine = 0;
    client->left = client->history;
    client->before.len = 0;
    client->before.data = client->before_buf;
    client->catching_up = 1;

    return NGX_OK;
}


/* asks for the next slice */

static void
ngx_http_tokenring_sse_client_more(ngx_http_tokenring_sse_client_t *client)
{
    u_char                              key[256], count[NGX_INT_T_LEN];
    ngx_str_t                           argv[6];
    ngx_http_tokenring_cache_t         *cache;
    ngx_http_tokenring_cache_engine_t  *engine;

    cache = client->cache;

    while (client->engine < cache->nengines && client->left == 0) {
        client->engine++;
        client->left = client->history;
        client->before.len = 0;
    }

    if (client->engine >= cache->nengines || cache->redis == NULL) {
        client->catching_up = 0;
        return;
    }

    engine = &cache->engines[client->engine];

    ngx_str_set(&argv[0], "XREVRANGE");
    argv[1] = ngx_http_tokenring_redis_key_at(cache->redis, key, "metrics",
                                              &engine->name);

    if (client->before.len) {
        argv[2] = client->before;

    } else {
        ngx_str_set(&argv[2], "+");
    }

    ngx_str_set(&argv[3], "-");
    ngx_str_set(&argv[4], "COUNT");
    argv[5].data = count;
    argv[5].len = ngx_sprintf(count, "%d", NGX_HTTP_TOKENRING_CACHE_SLICE)
                  - count;

    client->call = ngx_http_tokenring_redis_command(cache->redis,
                       ngx_http_tokenring_sse_client_slice, client, 6, argv);

    if (client->call == NULL) {
        /* from the beginning, when Redis is back */
        client->catching_up = 0;
        client->greeted = 0;
    }
}


/* an entry of a second that is left out; its id says where to go on */

static ngx_uint_t
ngx_http_tokenring_sse_client_sparse(redisReply *entry, ngx_str_t *id)
{
    uint64_t    ms;
    ngx_str_t   name;
    ngx_uint_t  i;

    if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2
        || ngx_http_tokenring_redis_string(entry->element[0], &name) != NGX_OK
        || name.len == 0 || name.len > NGX_HTTP_TOKENRING_CACHE_ID)
    {
        return 0;
    }

    ms = 0;

    for (i = 0; i < name.len && name.data[i] >= '0' && name.data[i] <= '9'; i++)
    {
        ms = ms * 10 + (name.data[i] - '0');
    }

    if (ms / 1000 % NGX_HTTP_TOKENRING_CACHE_SPARSE == 0) {
        return 0;
    }

    *id = name;

    return 1;
}


static void
ngx_http_tokenring_sse_client_slice(void *data, redisReply *reply)
{
    ngx_http_tokenring_sse_client_t *client = data;

    size_t                      from;
    ngx_str_t                   id;
    ngx_connection_t           *c;
    ngx_http_tokenring_text_t  *t;

    client->call = NULL;

    if (client->blocked) {
        /* the buffer is in use: this slice is read again later */
        return;
    }

    if (reply == NULL) {
        client->catching_up = 0;
        client->greeted = 0;
        return;
    }

    c = client->request->connection;
    t = &client->out;
    from = ngx_http_tokenring_text_len(t);

    if (ngx_http_tokenring_sse_client_history(client, reply, &id) != NGX_OK) {
        /* leave this slice out */
        t->last = t->pos + from;
        client->left = 0;

    } else if (reply->type != REDIS_REPLY_ARRAY
               || reply->elements < NGX_HTTP_TOKENRING_CACHE_SLICE
               || id.len == 0)
    {
        client->left = 0;

    } else {
        client->left -= ngx_min(client->left, NGX_HTTP_TOKENRING_CACHE_SLICE);
        client->before.len = ngx_sprintf(client->before_buf, "(%V", &id)
                             - client->before_buf;
    }

    ngx_http_tokenring_sse_client_send(client, 0);
    ngx_http_run_posted_requests(c);
}


/* the event of a slice; id: of its last entry, empty where that is no sample */

static ngx_int_t
ngx_http_tokenring_sse_client_history(ngx_http_tokenring_sse_client_t *client,
    redisReply *reply, ngx_str_t *id)
{
    ngx_int_t                           rc;
    ngx_http_tokenring_text_t           samples, *t;
    ngx_http_tokenring_cache_engine_t  *engine;

    t = &client->out;
    engine = &client->cache->engines[client->engine];
    rc = NGX_OK;

    ngx_memzero(&samples, sizeof(ngx_http_tokenring_text_t));
    ngx_str_null(id);

    if (ngx_http_tokenring_sse_client_samples(client, reply, &samples, id)
        != NGX_OK
        || ngx_http_tokenring_put(t,
               "data: {\"type\":\"history\",\"engine\":\"")
           != NGX_OK
        || ngx_http_tokenring_json(t, engine->name.data, engine->name.len)
           != NGX_OK
        || ngx_http_tokenring_printf(t, 32, "\",\"samples\":[") != NGX_OK
        || ngx_http_tokenring_append(t, samples.pos,
                                     ngx_http_tokenring_text_len(&samples))
           != NGX_OK
        || ngx_http_tokenring_append(t, "]}\n\n", 4) != NGX_OK)
    {
        rc = NGX_ERROR;
    }

    ngx_http_tokenring_text_free(&samples);

    return rc;
}


/* id: of the last entry, empty where that was no sample */

static ngx_int_t
ngx_http_tokenring_sse_client_samples(ngx_http_tokenring_sse_client_t *client,
    redisReply *reply, ngx_http_tokenring_text_t *samples, ngx_str_t *id)
{
    size_t     i;
    ngx_int_t  rc;

    for (i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++) {

        if (client->history - client->left >= NGX_HTTP_TOKENRING_CACHE_HISTORY
            && ngx_http_tokenring_sse_client_sparse(reply->element[i], id))
        {
            continue;
        }

        rc = ngx_http_tokenring_cache_sample(samples, reply->element[i], id);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (rc == NGX_DECLINED) {
            /* not a sample, so its id may be anything */
            ngx_str_null(id);
        }
    }

    return NGX_OK;
}


/* the request may have ended when this returns */

static void
ngx_http_tokenring_sse_client_send(ngx_http_tokenring_sse_client_t *client,
    ngx_uint_t last)
{
    ngx_int_t            rc;
    ngx_buf_t           *b;
    ngx_http_request_t  *r;

    if (client->blocked) {
        return;
    }

    r = client->request;
    b = &client->buf;

    if (last || ngx_http_tokenring_text_len(&client->out)) {
        ngx_http_tokenring_stream_buf(b, &client->out, last);

        client->link.buf = b;
        client->link.next = NULL;

        rc = ngx_http_output_filter(r, &client->link);

        ngx_log_debug4(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                       "tokenring sse client: bytes:%uz last:%ui rc:%i "
                       "left:%O", ngx_http_tokenring_text_len(&client->out),
                       last, rc, ngx_buf_size(b));

        if (last || rc == NGX_ERROR) {
            ngx_http_finalize_request(r, rc);
            return;
        }

        if (ngx_http_tokenring_stream_slow(r, b, rc)) {
            client->blocked = 1;

            if (ngx_http_tokenring_stream_block(r) != NGX_OK) {
                ngx_http_finalize_request(r, NGX_ERROR);
            }

            return;
        }

        ngx_http_tokenring_text_reset(&client->out);
    }

    if (client->catching_up && client->call == NULL) {
        ngx_http_tokenring_sse_client_more(client);
    }
}


static void
ngx_http_tokenring_sse_client_writer(ngx_http_request_t *r)
{
    ngx_http_tokenring_sse_client_t  *client;

    client = ngx_http_tokenring_sse_client_of(r);

    if (client == NULL) {
        return;
    }

    switch (ngx_http_tokenring_stream_writable(r, &client->buf,
                                               client->blocked))
    {

    case NGX_OK:
        client->blocked = 0;

        ngx_http_tokenring_text_reset(&client->out);
        ngx_http_tokenring_sse_client_send(client, 0);
        return;

    case NGX_AGAIN:
        return;

    default: /* NGX_DECLINED, NGX_ERROR */
        ngx_http_finalize_request(r, r->connection->timedout
                                     ? NGX_HTTP_REQUEST_TIME_OUT : NGX_ERROR);
        return;
    }
}


/* the worker exits: end the streams that would keep it */

void
ngx_http_tokenring_sse_client_end(ngx_http_tokenring_cache_t *cache)
{
    ngx_queue_t                      *q;
    ngx_connection_t                 *c;
    ngx_http_request_t               *r;
    ngx_http_tokenring_sse_client_t  *client;

    while (!ngx_queue_empty(&cache->clients)) {

        q = ngx_queue_head(&cache->clients);
        client = ngx_queue_data(q, ngx_http_tokenring_sse_client_t, queue);
        r = client->request;
        c = r->connection;

        ngx_http_tokenring_redis_forget(client->call);
        client->call = NULL;
        client->catching_up = 0;

        r->keepalive = 0;

        if (client->blocked) {
            ngx_http_finalize_request(r, NGX_ERROR);

        } else if (ngx_http_tokenring_printf(&client->out, 32,
                                             "retry: 200\n\n")
                   != NGX_OK)
        {
            ngx_http_finalize_request(r, NGX_ERROR);

        } else {
            ngx_http_tokenring_sse_client_send(client, 1);
        }

        ngx_http_run_posted_requests(c);

        if (!ngx_queue_empty(&cache->clients)
            && ngx_queue_head(&cache->clients) == q)
        {
            /* its last bytes are being sent: it is not a client any more */
            ngx_queue_remove(q);
            ngx_queue_init(q);
        }
    }
}
