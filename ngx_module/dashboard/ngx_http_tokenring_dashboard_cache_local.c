/*
 * The engines of this NGINX, from their status pages: what a dashboard without
 * a Redis shows.
 *
 * They are told as those of Redis (docs/redis.md): a heartbeat and a sample of
 * now.  What was before, the requests and the engines of other hosts are known
 * to nobody here.
 */

#include "ngx_http_tokenring_dashboard_cache.h"
#include "ngx_http_tokenring_engine.h"


static ngx_int_t ngx_http_tokenring_cache_conn(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_conn_t *conn, uint64_t now);
static ngx_int_t ngx_http_tokenring_cache_conn_away(
    ngx_http_tokenring_text_t *t, ngx_http_tokenring_conn_t *conn);
static ngx_int_t ngx_http_tokenring_cache_conn_heart(
    ngx_http_tokenring_text_t *t, ngx_http_tokenring_conn_t *conn,
    uint64_t now);
static ngx_int_t ngx_http_tokenring_cache_conn_card(
    ngx_http_tokenring_text_t *t, tr_status_card_t *card);
static ngx_int_t ngx_http_tokenring_cache_conn_weights(
    ngx_http_tokenring_text_t *t, ngx_http_tokenring_conn_t *conn);
static ngx_int_t ngx_http_tokenring_cache_conn_sample(
    ngx_http_tokenring_text_t *t, ngx_http_tokenring_conn_t *conn,
    uint64_t now);
static ngx_int_t ngx_http_tokenring_cache_text(ngx_http_tokenring_text_t *t,
    const char *name, char *value);
static ngx_int_t ngx_http_tokenring_cache_number(ngx_http_tokenring_text_t *t,
    const char *name, uint64_t value);
static ngx_int_t ngx_http_tokenring_cache_histogram(
    ngx_http_tokenring_text_t *t, const char *name,
    const tr_status_histogram_t *h);


static char  *ngx_http_tokenring_engine_states[] = {
    "loading", "ready", "draining", "failed"
};


ngx_int_t
ngx_http_tokenring_cache_local(ngx_http_tokenring_cache_t *cache,
    ngx_http_tokenring_text_t *t, uint64_t now)
{
    ngx_uint_t                     i, j;
    ngx_http_tokenring_conn_t     *conns;
    ngx_http_tokenring_engine_t  **engines;

    engines = cache->main->engines.elts;

    for (i = 0; i < cache->main->engines.nelts; i++) {
        conns = engines[i]->conns.elts;

        for (j = 0; j < engines[i]->conns.nelts; j++) {
            if (ngx_http_tokenring_cache_conn(t, &conns[j], now) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_cache_conn(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_conn_t *conn, uint64_t now)
{
    u_char                     buf[NGX_HTTP_TOKENRING_CACHE_NAME
                                   + NGX_INT_T_LEN];
    ngx_int_t                  rc;
    ngx_str_t                  name;
    ngx_uint_t                 ready;
    ngx_http_tokenring_text_t  heart, card, samples;

    /* several sockets have one name here, each of them may be an engine */

    name.data = buf;
    name.len = ngx_min(conn->engine->name.len, NGX_HTTP_TOKENRING_CACHE_NAME);
    ngx_memcpy(buf, conn->engine->name.data, name.len);

    if (conn->engine->conns.nelts > 1) {
        name.len = ngx_sprintf(buf + name.len, "/%ui", conn->replica) - buf;
    }

    ready = (conn->state == NGX_HTTP_TOKENRING_READY);

    ngx_memzero(&heart, sizeof(ngx_http_tokenring_text_t));
    ngx_memzero(&card, sizeof(ngx_http_tokenring_text_t));
    ngx_memzero(&samples, sizeof(ngx_http_tokenring_text_t));

    if (ready) {
        (void) tr_status_read(conn->page, &conn->admission);

        rc = ngx_http_tokenring_cache_conn_heart(&heart, conn, now);

        if (rc == NGX_OK) {
            rc = ngx_http_tokenring_cache_conn_sample(&samples, conn, now);
        }

    } else {
        rc = ngx_http_tokenring_cache_conn_away(&card, conn);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_tokenring_cache_tell(t, &name, ready ? now : 0, &heart,
                                           &card, &samples);
    }

    ngx_http_tokenring_text_free(&heart);
    ngx_http_tokenring_text_free(&card);
    ngx_http_tokenring_text_free(&samples);

    return rc;
}


/* the last card of an engine that does not run now, if there ever was one */

static ngx_int_t
ngx_http_tokenring_cache_conn_away(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_conn_t *conn)
{
    ngx_uint_t  stopped;

    /* it runs when it is needed, as far as we know */
    stopped = (conn->ondemand && conn->complaint == 0);

    if (!stopped && conn->card.model[0] == '\0') {
        return NGX_OK;
    }

    if (ngx_http_tokenring_printf(t, 32, "{\"state\":\"%s\"",
                                  stopped ? "stopped" : "gone")
        != NGX_OK
        || ngx_http_tokenring_cache_conn_card(t, &conn->card) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_append(t, "}", 1);
}


static ngx_int_t
ngx_http_tokenring_cache_conn_heart(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_conn_t *conn, uint64_t now)
{
    if (ngx_http_tokenring_printf(t, 128,
            "{\"run\":\"%016xL\",\"state\":\"%s\",\"heartbeat\":\"%uL\"",
            conn->page->generation,
            ngx_http_tokenring_engine_states[conn->admission.state % 4], now)
        != NGX_OK
        || ngx_http_tokenring_cache_conn_card(t, &conn->card) != NGX_OK
        || ngx_http_tokenring_cache_conn_weights(t, conn) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_append(t, "}", 1);
}


/* ,"name":"value" for each: the card is our copy, and ends its strings */

static ngx_int_t
ngx_http_tokenring_cache_conn_card(ngx_http_tokenring_text_t *t,
    tr_status_card_t *card)
{
    uint32_t  i;

    if (ngx_http_tokenring_cache_text(t, "model", card->model) != NGX_OK
        || ngx_http_tokenring_cache_text(t, "backend", card->backend) != NGX_OK
        || ngx_http_tokenring_cache_text(t, "kv_policy", card->kv_policy)
           != NGX_OK
        || ngx_http_tokenring_cache_number(t, "started",
               (uint64_t) card->created * 1000)
           != NGX_OK
        || ngx_http_tokenring_cache_number(t, "page_bytes",
                                           card->kv_page_bytes)
           != NGX_OK
        || ngx_http_tokenring_cache_number(t, "pages", card->kv_pages)
           != NGX_OK
        || ngx_http_tokenring_cache_number(t, "full_token_bytes",
                                           card->kv_full_token_bytes)
           != NGX_OK
        || ngx_http_tokenring_put(t, ",\"levels\":\"") != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < card->kv_levels; i++) {
        if ((i && ngx_http_tokenring_append(t, " ", 1) != NGX_OK)
            || ngx_http_tokenring_json(t, (u_char *) card->level_name[i],
                                       ngx_strlen(card->level_name[i]))
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_append(t, "\"", 1);
}


/* nothing where an engine has no weights */

static ngx_int_t
ngx_http_tokenring_cache_conn_weights(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_conn_t *conn)
{
    char                         format[TR_STATUS_FORMAT];
    const tr_status_counters_t  *c;

    c = &conn->page->counters;

    if (c->weights_bytes == 0) {
        return NGX_OK;
    }

    tr_status_weights_format(conn->page, format);

    if (ngx_http_tokenring_cache_text(t, "weights", format) != NGX_OK
        || ngx_http_tokenring_cache_number(t, "weights_file_bytes",
                                           c->weights_file_bytes)
           != NGX_OK
        || ngx_http_tokenring_cache_number(t, "weights_bytes",
                                           c->weights_bytes)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_cache_number(t, "parameters",
                                           conn->card.parameters);
}


static ngx_int_t
ngx_http_tokenring_cache_numbers(ngx_http_tokenring_text_t *t,
    const tr_status_admission_t *a, const tr_status_counters_t *c)
{
    ngx_uint_t  i;

    const struct {
        const char  *name;
        uint64_t     value;
    } numbers[] = {
        { "running", a->running },
        { "waiting", a->waiting },
        { "prompt_tokens", c->prompt_tokens },
        { "generation_tokens", c->generation_tokens },
        { "stop", c->requests_stop },
        { "length", c->requests_length },
        { "aborted", c->requests_aborted },
        { "error", c->requests_error },
        { "preemptions", c->preemptions },
        { "kv_request_bytes", c->kv_bytes },
        { "kv_request_full_bytes", c->kv_full_bytes_high + c->kv_full_bytes_low
                                   + c->kv_full_bytes_pruned },
        { "kv_free", a->kv_free_pages },
        { "kv_swapped", a->kv_swapped_pages },
        { "kv_cached", c->kv_cached_pages },
        { "kv_files_bytes", c->store_bytes },
        { "kv_host_bytes", c->shelf_bytes },
        { "kv_guard_warnings", c->kv_guard_over },
        { "kv_tokens", a->kv_tokens },
        { "kv_full_bytes", a->kv_full_bytes }
    };

    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (ngx_http_tokenring_cache_number(t, numbers[i].name,
                                            numbers[i].value)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_cache_conn_sample(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_conn_t *conn, uint64_t now)
{
    uint32_t                     i;
    tr_status_admission_t       *a;
    const tr_status_counters_t  *c;

    a = &conn->admission;
    c = &conn->page->counters;

    if (ngx_http_tokenring_printf(t, 128,
            "{\"id\":\"%uL-0\",\"run\":\"%016xL\"",
            now, conn->page->generation)
        != NGX_OK
        || ngx_http_tokenring_cache_numbers(t, a, c) != NGX_OK
        || ngx_http_tokenring_put(t, ",\"kv_used\":\"") != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < conn->card.kv_levels; i++) {
        if (ngx_http_tokenring_printf(t, 32, "%s%uL", i ? " " : "",
                                      a->kv_used_pages[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_append(t, "\"", 1) != NGX_OK
        || ((c->gpu_known & TR_STATUS_GPU_USE)
            && ngx_http_tokenring_cache_number(t, "gpu_percent",
                                               c->gpu_use_percent)
               != NGX_OK)
        || ((c->gpu_known & TR_STATUS_GPU_POWER)
            && ngx_http_tokenring_cache_number(t, "gpu_milliwatts",
                                               c->gpu_milliwatts)
               != NGX_OK)
        || ngx_http_tokenring_cache_histogram(t, "ttft", &c->ttft) != NGX_OK
        || ngx_http_tokenring_cache_histogram(t, "inter_token",
                                              &c->inter_token)
           != NGX_OK
        || ngx_http_tokenring_cache_histogram(t, "e2e", &c->e2e) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_append(t, "}", 1);
}


static ngx_int_t
ngx_http_tokenring_cache_text(ngx_http_tokenring_text_t *t, const char *name,
    char *value)
{
    if (ngx_http_tokenring_printf(t, 64, ",\"%s\":\"", name) != NGX_OK
        || ngx_http_tokenring_json(t, (u_char *) value, ngx_strlen(value))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_append(t, "\"", 1);
}


static ngx_int_t
ngx_http_tokenring_cache_number(ngx_http_tokenring_text_t *t,
    const char *name, uint64_t value)
{
    return ngx_http_tokenring_printf(t, 96, ",\"%s\":\"%uL\"", name, value);
}


static ngx_int_t
ngx_http_tokenring_cache_histogram(ngx_http_tokenring_text_t *t,
    const char *name, const tr_status_histogram_t *h)
{
    ngx_uint_t  i;

    if (ngx_http_tokenring_printf(t, 64, ",\"%s\":\"", name) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i <= TR_STATUS_BUCKETS; i++) {
        if (ngx_http_tokenring_printf(t, 32, "%s%uL", i ? " " : "",
                                      (uint64_t) h->count[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_append(t, "\"", 1);
}
