/*
 * Viewers of the dashboard: streams of server-sent events.
 *
 * A viewer is greeted with the requests that the cache knows and gets every
 * tick of it from then on; meanwhile the samples of the last minutes are read
 * for it alone, a slice at a time, and only as fast as it takes them.  A viewer
 * that is slow misses ticks and then gets the missing samples in the same way.
 *
 * When the worker exits, the streams end with the next tick: the page comes
 * back, to a new worker.
 */

#include "ngx_http_tokenring_dashboard.h"


static ngx_int_t ngx_http_tokenring_viewer_header(ngx_http_request_t *r);
static void ngx_http_tokenring_viewer_cleanup(void *data);
static void ngx_http_tokenring_viewer_free(void *data);
static ngx_http_tokenring_viewer_t *ngx_http_tokenring_viewer_of(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_tokenring_viewer_greet(
    ngx_http_tokenring_viewer_t *viewer);
static void ngx_http_tokenring_viewer_more(
    ngx_http_tokenring_viewer_t *viewer);
static void ngx_http_tokenring_viewer_slice(void *data, redisReply *reply);
static void ngx_http_tokenring_viewer_send(
    ngx_http_tokenring_viewer_t *viewer, ngx_uint_t last);
static ngx_int_t ngx_http_tokenring_viewer_block(
    ngx_http_tokenring_viewer_t *viewer);
static void ngx_http_tokenring_viewer_writer(ngx_http_request_t *r);


ngx_int_t
ngx_http_tokenring_viewer_open(ngx_http_request_t *r,
    ngx_http_tokenring_cache_t *cache)
{
    ngx_int_t                     rc;
    ngx_uint_t                    i;
    ngx_pool_cleanup_t           *pcln;
    ngx_http_cleanup_t           *cln;
    ngx_http_tokenring_viewer_t  *viewer;

    static uint32_t  bounds[TR_STATUS_BUCKETS] = TR_STATUS_BOUNDS_US;

    rc = ngx_http_tokenring_viewer_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    viewer = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_viewer_t));
    if (viewer == NULL) {
        return NGX_ERROR;
    }

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    /* HTTP/2 may still hold a part of a frame when the request is over */

    pcln = ngx_pool_cleanup_add(r->pool, 0);
    if (pcln == NULL) {
        return NGX_ERROR;
    }

    pcln->handler = ngx_http_tokenring_viewer_free;
    pcln->data = viewer;

    viewer->request = r;
    viewer->cache = cache;

    ngx_http_tokenring_cache_start(cache);
    ngx_queue_insert_tail(&cache->viewers, &viewer->queue);

    cln->handler = ngx_http_tokenring_viewer_cleanup;
    cln->data = viewer;

    if (ngx_http_tokenring_printf(&viewer->out, 512,
            "retry: 1000\n\ndata: {\"type\":\"hello\",\"bounds\":[")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < TR_STATUS_BUCKETS; i++) {
        if (ngx_http_tokenring_printf(&viewer->out, 16, "%s%uD",
                                      i ? "," : "", bounds[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_append(&viewer->out, "]}\n\n", 4) != NGX_OK) {
        return NGX_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_tokenring_viewer_writer;
    r->main->count++;

    ngx_http_tokenring_viewer_send(viewer, 0);

    return NGX_DONE;
}


static ngx_int_t
ngx_http_tokenring_viewer_header(ngx_http_request_t *r)
{
    static ngx_str_t  no_store = ngx_string("no-store");
    static ngx_str_t  no = ngx_string("no");

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = -1;

    ngx_str_set(&r->headers_out.content_type,
                "text/event-stream; charset=utf-8");
    r->headers_out.content_type_len = sizeof("text/event-stream") - 1;
    r->headers_out.content_type_lowcase = NULL;
    ngx_str_set(&r->headers_out.charset, "utf-8");

    ngx_http_clear_accept_ranges(r);

    if (ngx_http_tokenring_add_header(r, "Cache-Control", &no_store) != NGX_OK
        || ngx_http_tokenring_add_header(r, "X-Accel-Buffering", &no)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

#if (NGX_HTTP_GZIP)
    /* compressed, events would wait for each other */
    r->gzip_tested = 1;
    r->gzip_ok = 0;
#endif

    return ngx_http_send_header(r);
}


static void
ngx_http_tokenring_viewer_cleanup(void *data)
{
    ngx_http_tokenring_viewer_t *viewer = data;

    ngx_queue_remove(&viewer->queue);
    ngx_http_tokenring_redis_forget(viewer->call);
    viewer->call = NULL;
}


static void
ngx_http_tokenring_viewer_free(void *data)
{
    ngx_http_tokenring_viewer_t *viewer = data;

    ngx_http_tokenring_text_free(&viewer->out);
}


/* the module's ctx is that of an API request: a viewer is found otherwise */

static ngx_http_tokenring_viewer_t *
ngx_http_tokenring_viewer_of(ngx_http_request_t *r)
{
    ngx_http_cleanup_t  *cln;

    for (cln = r->main->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_tokenring_viewer_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


/* a round of the cache is over */

void
ngx_http_tokenring_viewer_tick(ngx_http_tokenring_cache_t *cache)
{
    ngx_queue_t                  *q, *next;
    ngx_connection_t             *c;
    ngx_http_tokenring_viewer_t  *viewer;

    for (q = ngx_queue_head(&cache->viewers);
         q != ngx_queue_sentinel(&cache->viewers);
         q = next)
    {
        /* the viewer may leave, nobody else does */
        next = ngx_queue_next(q);

        viewer = ngx_queue_data(q, ngx_http_tokenring_viewer_t, queue);

        if (viewer->blocked) {
            viewer->greeted = 0;
            continue;
        }

        c = viewer->request->connection;

        if ((!viewer->greeted && !cache->failed && cache->redis
             && ngx_http_tokenring_viewer_greet(viewer) != NGX_OK)
            || ngx_http_tokenring_append(&viewer->out, cache->tick.pos,
                   ngx_http_tokenring_text_len(&cache->tick))
               != NGX_OK)
        {
            ngx_http_finalize_request(viewer->request, NGX_ERROR);
            ngx_http_run_posted_requests(c);
            continue;
        }

        ngx_http_tokenring_viewer_send(viewer, 0);
        ngx_http_run_posted_requests(c);
    }
}


/* what was before: all requests now, samples bit by bit */

static ngx_int_t
ngx_http_tokenring_viewer_greet(ngx_http_tokenring_viewer_t *viewer)
{
    ngx_http_tokenring_text_t  *t;

    t = &viewer->out;

    if (ngx_http_tokenring_printf(t, 64,
                                  "data: {\"type\":\"requests\",\"requests\":")
        != NGX_OK
        || ngx_http_tokenring_cache_requests(viewer->cache, t, 1) != NGX_OK
        || ngx_http_tokenring_append(t, "}\n\n", 3) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_tokenring_redis_forget(viewer->call);
    viewer->call = NULL;

    viewer->greeted = 1;
    viewer->engine = 0;
    viewer->left = NGX_HTTP_TOKENRING_CACHE_HISTORY;
    viewer->before.len = 0;
    viewer->before.data = viewer->before_buf;
    viewer->catching_up = 1;

    return NGX_OK;
}


/* asks for the next slice */

static void
ngx_http_tokenring_viewer_more(ngx_http_tokenring_viewer_t *viewer)
{
    u_char                              key[256], count[NGX_INT_T_LEN];
    ngx_str_t                           argv[6];
    ngx_http_tokenring_cache_t         *cache;
    ngx_http_tokenring_cache_engine_t  *engine;

    cache = viewer->cache;

    while (viewer->engine < cache->nengines && viewer->left == 0) {
        viewer->engine++;
        viewer->left = NGX_HTTP_TOKENRING_CACHE_HISTORY;
        viewer->before.len = 0;
    }

    if (viewer->engine >= cache->nengines || cache->redis == NULL) {
        viewer->catching_up = 0;
        return;
    }

    engine = &cache->engines[viewer->engine];

    ngx_str_set(&argv[0], "XREVRANGE");
    argv[1].data = key;
    argv[1].len = ngx_sprintf(key, "%Vmetrics:{%V}", &cache->redis->prefix,
                              &engine->name)
                  - key;

    if (viewer->before.len) {
        argv[2] = viewer->before;

    } else {
        ngx_str_set(&argv[2], "+");
    }

    ngx_str_set(&argv[3], "-");
    ngx_str_set(&argv[4], "COUNT");
    argv[5].data = count;
    argv[5].len = ngx_sprintf(count, "%d", NGX_HTTP_TOKENRING_CACHE_SLICE)
                  - count;

    viewer->call = ngx_http_tokenring_redis_command(cache->redis,
                       ngx_http_tokenring_viewer_slice, viewer, 6, argv);

    if (viewer->call == NULL) {
        /* from the beginning, when Redis is there */
        viewer->catching_up = 0;
        viewer->greeted = 0;
    }
}


static void
ngx_http_tokenring_viewer_slice(void *data, redisReply *reply)
{
    ngx_http_tokenring_viewer_t *viewer = data;

    size_t                              i, from;
    ngx_int_t                           rc;
    ngx_str_t                           id;
    ngx_connection_t                   *c;
    ngx_http_tokenring_text_t           samples, *t;
    ngx_http_tokenring_cache_engine_t  *engine;

    viewer->call = NULL;

    if (viewer->blocked) {
        /* the buffer is on its way: this slice is asked for again then */
        return;
    }

    if (reply == NULL) {
        viewer->catching_up = 0;
        viewer->greeted = 0;
        return;
    }

    c = viewer->request->connection;
    t = &viewer->out;
    from = ngx_http_tokenring_text_len(t);
    engine = &viewer->cache->engines[viewer->engine];

    ngx_memzero(&samples, sizeof(ngx_http_tokenring_text_t));
    ngx_str_null(&id);
    rc = NGX_OK;

    for (i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++) {
        rc = ngx_http_tokenring_cache_sample(&samples, reply->element[i], &id);

        if (rc == NGX_ERROR) {
            break;
        }

        if (rc == NGX_DECLINED) {
            /* no sample, so that its id may be anything */
            ngx_str_null(&id);
        }
    }

    if (rc == NGX_ERROR
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
        /* it goes without */
        t->last = t->pos + from;
        viewer->left = 0;

    } else if (i < NGX_HTTP_TOKENRING_CACHE_SLICE || id.len == 0) {
        viewer->left = 0;

    } else {
        viewer->left -= ngx_min(viewer->left, NGX_HTTP_TOKENRING_CACHE_SLICE);
        viewer->before.len = ngx_sprintf(viewer->before_buf, "(%V", &id)
                             - viewer->before_buf;
    }

    ngx_http_tokenring_text_free(&samples);

    ngx_http_tokenring_viewer_send(viewer, 0);
    ngx_http_run_posted_requests(c);
}


/* the request may be gone when this returns */

static void
ngx_http_tokenring_viewer_send(ngx_http_tokenring_viewer_t *viewer,
    ngx_uint_t last)
{
    ngx_int_t            rc;
    ngx_buf_t           *b;
    ngx_http_request_t  *r;

    if (viewer->blocked) {
        return;
    }

    r = viewer->request;
    b = &viewer->buf;

    if (last || ngx_http_tokenring_text_len(&viewer->out)) {
        b->start = viewer->out.start;
        b->pos = viewer->out.pos;
        b->last = viewer->out.last;
        b->end = viewer->out.end;
        b->temporary = (b->last > b->pos);
        b->flush = 1;
        b->last_buf = last;
        b->last_in_chain = 1;
        b->tag = (ngx_buf_tag_t) &ngx_http_tokenring_module;

        viewer->link.buf = b;
        viewer->link.next = NULL;

        rc = ngx_http_output_filter(r, &viewer->link);

        if (last || rc == NGX_ERROR) {
            ngx_http_finalize_request(r, rc);
            return;
        }

        if (rc == NGX_AGAIN || ngx_buf_size(b) || r->buffered) {
            if (ngx_http_tokenring_viewer_block(viewer) != NGX_OK) {
                ngx_http_finalize_request(r, NGX_ERROR);
            }

            return;
        }

        ngx_http_tokenring_text_reset(&viewer->out);
    }

    if (viewer->catching_up && viewer->call == NULL) {
        ngx_http_tokenring_viewer_more(viewer);
    }
}


/* wait until the viewer takes more */

static ngx_int_t
ngx_http_tokenring_viewer_block(ngx_http_tokenring_viewer_t *viewer)
{
    ngx_event_t               *wev;
    ngx_http_request_t        *r;
    ngx_http_core_loc_conf_t  *clcf;

    r = viewer->request;
    wev = r->connection->write;
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    viewer->blocked = 1;

    if (!wev->delayed) {
        ngx_add_timer(wev, clcf->send_timeout);
    }

    return ngx_handle_write_event(wev, clcf->send_lowat);
}


static void
ngx_http_tokenring_viewer_writer(ngx_http_request_t *r)
{
    ngx_int_t                     rc;
    ngx_event_t                  *wev;
    ngx_connection_t             *c;
    ngx_http_core_loc_conf_t     *clcf;
    ngx_http_tokenring_viewer_t  *viewer;

    c = r->connection;
    wev = c->write;
    viewer = ngx_http_tokenring_viewer_of(r);

    if (viewer == NULL) {
        return;
    }

    if (wev->timedout) {
        wev->timedout = 0;
        c->timedout = 1;
        ngx_log_error(NGX_LOG_INFO, c->log, NGX_ETIMEDOUT,
                      "tokenring: viewer timed out");
        ngx_http_finalize_request(r, NGX_HTTP_REQUEST_TIME_OUT);
        return;
    }

    if (c->error || (wev->error && r->http_version >= NGX_HTTP_VERSION_20)) {
        ngx_http_finalize_request(r, NGX_ERROR);
        return;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (!viewer->blocked || wev->delayed) {
        (void) ngx_handle_write_event(wev, viewer->blocked ? clcf->send_lowat
                                                           : 0);
        return;
    }

    rc = ngx_http_output_filter(r, NULL);

    if (rc == NGX_ERROR) {
        ngx_http_finalize_request(r, NGX_ERROR);
        return;
    }

    if (rc == NGX_AGAIN || ngx_buf_size(&viewer->buf) || r->buffered) {
        if (ngx_http_tokenring_viewer_block(viewer) != NGX_OK) {
            ngx_http_finalize_request(r, NGX_ERROR);
        }

        return;
    }

    /* limit_rate may have set one of its own: who would wake us then? */

    if (wev->timer_set && !wev->delayed) {
        ngx_del_timer(wev);
    }

    viewer->blocked = 0;

    ngx_http_tokenring_text_reset(&viewer->out);
    ngx_http_tokenring_viewer_send(viewer, 0);
}


/* the worker exits: nobody keeps it */

void
ngx_http_tokenring_viewer_end(ngx_http_tokenring_cache_t *cache)
{
    ngx_queue_t                  *q;
    ngx_connection_t             *c;
    ngx_http_request_t           *r;
    ngx_http_tokenring_viewer_t  *viewer;

    while (!ngx_queue_empty(&cache->viewers)) {

        q = ngx_queue_head(&cache->viewers);
        viewer = ngx_queue_data(q, ngx_http_tokenring_viewer_t, queue);
        r = viewer->request;
        c = r->connection;

        ngx_http_tokenring_redis_forget(viewer->call);
        viewer->call = NULL;
        viewer->catching_up = 0;

        r->keepalive = 0;

        if (viewer->blocked) {
            ngx_http_finalize_request(r, NGX_ERROR);

        } else if (ngx_http_tokenring_printf(&viewer->out, 32,
                                             "retry: 200\n\n")
                   != NGX_OK)
        {
            ngx_http_finalize_request(r, NGX_ERROR);

        } else {
            ngx_http_tokenring_viewer_send(viewer, 1);
        }

        ngx_http_run_posted_requests(c);

        if (!ngx_queue_empty(&cache->viewers)
            && ngx_queue_head(&cache->viewers) == q)
        {
            /* its last bytes are on their way: it is no viewer any more */
            ngx_queue_remove(q);
            ngx_queue_init(q);
        }
    }
}
