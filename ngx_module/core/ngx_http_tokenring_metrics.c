/*
 * /metrics: Prometheus text (0.0.4) of every engine, from the status pages, and
 * of the gateway, which has counters of its own (_counters.c).  The samples of
 * a family must stand together, so the outer loop is over families and the
 * inner one over the sockets of the engines.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_send.h"


typedef struct {
    ngx_http_tokenring_text_t     *out;
    ngx_array_t                   *engines;
    ngx_msec_t                     stall;
} ngx_http_tokenring_page_t;


typedef ngx_int_t (*ngx_http_tokenring_sample_pt)(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);


typedef struct {
    const char                    *name;
    const char                    *type;
    const char                    *help;
    ngx_http_tokenring_sample_pt   sample;
    size_t                         offset;
} ngx_http_tokenring_family_t;


/* one of the counters that differ in a label; the last has no value */

typedef struct {
    const char                    *value;
    size_t                         offset;
} ngx_http_tokenring_part_t;


/* bytes of the bound of a bucket, as text */
#define NGX_HTTP_TOKENRING_BOUND  32


static ngx_int_t ngx_http_tokenring_metrics_family(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_family_t *family);
static ngx_int_t ngx_http_tokenring_labels(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, const char *suffix);
static ngx_int_t ngx_http_tokenring_sample_up(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_u32(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_u64(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_counter(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_guard(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_gpu_use(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_gpu_power(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_reasons(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_usage(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_pages(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_page_bytes(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_kept(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_ratios(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_workers(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_histogram(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, size_t offset);
static ngx_int_t ngx_http_tokenring_sample_buckets(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, char (*bound)[NGX_HTTP_TOKENRING_BOUND], ngx_uint_t n,
    size_t count, size_t sum);


#define ngx_http_tokenring_admission(field)                                   \
    offsetof(tr_status_admission_t, field)
#define ngx_http_tokenring_counter(field)                                     \
    offsetof(tr_status_counters_t, field)


static ngx_http_tokenring_family_t  ngx_http_tokenring_families[] = {

    { "tokenring_up", "gauge",
      "Whether the engine accepts requests from this worker.",
      ngx_http_tokenring_sample_up, 0 },

    { "tokenring_connected_workers", "gauge",
      "NGINX workers connected to the engine.",
      ngx_http_tokenring_sample_workers, 0 },

    { "tokenring_num_requests_running", "gauge",
      "Requests in prefill or decode.",
      ngx_http_tokenring_sample_u32, ngx_http_tokenring_admission(running) },

    { "tokenring_num_requests_waiting", "gauge",
      "Requests queued, preempted ones included.",
      ngx_http_tokenring_sample_u32, ngx_http_tokenring_admission(waiting) },

    { "tokenring_outstanding_tokens", "gauge",
      "Tokens that the current requests will have cached at their end.",
      ngx_http_tokenring_sample_u64,
      ngx_http_tokenring_admission(outstanding_tokens) },

    { "tokenring_queue_free", "gauge",
      "Free places in the queue.",
      ngx_http_tokenring_sample_u32,
      ngx_http_tokenring_admission(queue_free) },

    { "tokenring_steps_total", "counter",
      "Steps of the engine's loop.",
      ngx_http_tokenring_sample_u64, ngx_http_tokenring_admission(step) },

    { "tokenring_kv_cache_usage_ratio", "gauge",
      "Used pages of the KV cache, 0 to 1.",
      ngx_http_tokenring_sample_usage, 0 },

    { "tokenring_kv_cache_pages", "gauge",
      "Pages of the KV cache by level (bits of keys/values); \"cached\" hold "
      "prefixes that nobody uses now, \"free\" nothing.",
      ngx_http_tokenring_sample_pages, 0 },

    { "tokenring_kv_cache_page_bytes", "gauge",
      "Bytes of a page of the KV cache.",
      ngx_http_tokenring_sample_page_bytes, 0 },

    { "tokenring_kv_cache_tokens", "gauge",
      "Tokens in the KV cache.",
      ngx_http_tokenring_sample_u64,
      ngx_http_tokenring_admission(kv_tokens) },

    { "tokenring_kv_cache_fp16_bytes", "gauge",
      "What the tokens in the KV cache would take at 16 bits.",
      ngx_http_tokenring_sample_u64,
      ngx_http_tokenring_admission(kv_full_bytes) },

    { "tokenring_kv_cache_swapped_pages", "gauge",
      "Pages of preempted requests in the swap memory.",
      ngx_http_tokenring_sample_u64,
      ngx_http_tokenring_admission(kv_swapped_pages) },

    { "tokenring_kv_swaps_total", "counter",
      "Preemptions that moved pages to the swap memory.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(kv_swaps) },

    { "tokenring_kv_recomputations_total", "counter",
      "Compressed caches that did not fit there and were recomputed.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(kv_recomputations) },

    { "tokenring_prefill_tokens_total", "counter",
      "Prompt tokens that were computed; the others were cached.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefill_tokens) },

    { "tokenring_prefix_queries_total", "counter",
      "Prompts that looked for a cached prefix.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_queries) },

    { "tokenring_prefix_hits_total", "counter",
      "Of these, prompts that found one.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_hits) },

    { "tokenring_prefix_tokens_total", "counter",
      "Tokens of the prefixes that were found.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_tokens) },

    { "tokenring_prefix_cuts_total", "counter",
      "Of the prefixes that were found, those that ended within a block.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_cuts) },

    { "tokenring_prefix_evicted_blocks_total", "counter",
      "Cached blocks of pages that made room.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_evicted) },

    { "tokenring_prefix_expired_blocks_total", "counter",
      "Cached blocks of pages that nobody used for cache_ttl.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_expired) },

    { "tokenring_prefix_blocks", "gauge",
      "Blocks of pages that are kept for prompts that begin alike.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_blocks) },

    { "tokenring_kv_guard_prompts_total", "counter",
      "Prompts that were compared while they were compressed (kv_guard).",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(kv_guard_prompts) },

    { "tokenring_kv_guard_warnings", "gauge",
      "KV policies that lose answers with this model, as far as is known.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(kv_guard_over) },

    { "tokenring_kv_guard_error_ratio", "gauge",
      "How far attention moves when keys or values are compressed.",
      ngx_http_tokenring_sample_guard,
      ngx_http_tokenring_counter(kv_guard_keys) },

    { "tokenring_kv_guard_bound_ratio", "gauge",
      "Above which a KV policy loses answers.",
      ngx_http_tokenring_sample_guard,
      ngx_http_tokenring_counter(kv_guard_keys_bound) },

    { "tokenring_gpu_use_ratio", "gauge",
      "Part of the time that the GPU computes, where it tells, 0 to 1.",
      ngx_http_tokenring_sample_gpu_use, 0 },

    { "tokenring_gpu_power_watts", "gauge",
      "Power that the GPU takes, where it tells.",
      ngx_http_tokenring_sample_gpu_power, 0 },

    { "tokenring_redis_up", "gauge",
      "Whether Redis accepts what the engine writes.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(redis_up) },

    { "tokenring_redis_outages_total", "counter",
      "Times that Redis stopped accepting what the engine wrote.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(redis_outages) },

    { "tokenring_redis_lost_requests_total", "counter",
      "Requests whose state or output in Redis is incomplete.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(redis_lost) },

    { "tokenring_redis_refusals_total", "counter",
      "Commands of the engine that Redis answered with an error.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(redis_refusals) },

    { "tokenring_redis_held_bytes", "gauge",
      "State and output in the engine's memory, not in Redis yet.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(redis_held_bytes) },

    { "tokenring_kv_request_bytes_total", "counter",
      "KV cache that requests held at their end.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(kv_bytes) },

    { "tokenring_kv_request_fp16_bytes_total", "counter",
      "What the same tokens take at 16 bits, by how they were kept.",
      ngx_http_tokenring_sample_kept, 0 },

    { "tokenring_kv_request_ratio", "histogram",
      "KV cache of a request at its end, relative to 16 bits.",
      ngx_http_tokenring_sample_ratios, 0 },

    { "tokenring_prompt_tokens_total", "counter",
      "Prompt tokens processed.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prompt_tokens) },

    { "tokenring_generation_tokens_total", "counter",
      "Tokens generated.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(generation_tokens) },

    { "tokenring_replayed_tokens_total", "counter",
      "Tokens of requests that came from another engine.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(replayed_tokens) },

    { "tokenring_preemptions_total", "counter",
      "Times that a request lost its pages to others.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(preemptions) },

    { "tokenring_request_success_total", "counter",
      "Requests that ended, by reason.",
      ngx_http_tokenring_sample_reasons, 0 },

    { "tokenring_request_errors_total", "counter",
      "Requests that ended with an error in the engine.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(requests_error) },

    { "tokenring_channels_opened_total", "counter",
      "Channels opened by the engine.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(channels_opened) },

    { "tokenring_channel_errors_total", "counter",
      "Channels that the engine closed for a protocol error.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(channel_errors) },

    { "tokenring_time_to_first_token_seconds", "histogram",
      "From arrival to the first token.",
      ngx_http_tokenring_sample_histogram, ngx_http_tokenring_counter(ttft) },

    { "tokenring_inter_token_latency_seconds", "histogram",
      "Between two tokens of one choice.",
      ngx_http_tokenring_sample_histogram,
      ngx_http_tokenring_counter(inter_token) },

    { "tokenring_e2e_request_latency_seconds", "histogram",
      "From arrival to the end.",
      ngx_http_tokenring_sample_histogram, ngx_http_tokenring_counter(e2e) },

    { "tokenring_request_queue_time_seconds", "histogram",
      "From arrival to the first step that worked on the request.",
      ngx_http_tokenring_sample_histogram,
      ngx_http_tokenring_counter(queue_time) },

    { "tokenring_step_seconds", "histogram",
      "Duration of one step of the engine's loop.",
      ngx_http_tokenring_sample_histogram,
      ngx_http_tokenring_counter(step_time) },

    { NULL, NULL, NULL, NULL, 0 }
};


ngx_int_t
ngx_http_tokenring_metrics_handler(ngx_http_request_t *r)
{
    ngx_int_t                       rc;
    ngx_http_tokenring_page_t       page;
    ngx_http_tokenring_family_t    *family;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    page.out = ngx_http_tokenring_text_create(r->pool);
    page.engines = tlcf->shown;
    page.stall = tlcf->stall_timeout;

    if (page.out == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    for (family = ngx_http_tokenring_families; family->name; family++) {
        if (ngx_http_tokenring_metrics_family(&page, family) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (ngx_http_tokenring_gateway_metrics(page.out) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_body(r, NGX_HTTP_OK,
                                 "text/plain; version=0.0.4; charset=utf-8",
                                 page.out);
}


/* a family, with a sample of each connection that has one */

static ngx_int_t
ngx_http_tokenring_metrics_family(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_family_t *family)
{
    ngx_uint_t                     i, j;
    ngx_http_tokenring_conn_t     *conns;
    ngx_http_tokenring_engine_t  **engines;

    if (ngx_http_tokenring_printf(page->out, 512,
                                  "# HELP %s %s\n# TYPE %s %s\n",
                                  family->name, family->help,
                                  family->name, family->type)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    engines = page->engines->elts;

    for (i = 0; i < page->engines->nelts; i++) {
        conns = engines[i]->conns.elts;

        for (j = 0; j < engines[i]->conns.nelts; j++) {

            if (conns[j].state == NGX_HTTP_TOKENRING_READY) {
                (void) tr_status_read(conns[j].page, &conns[j].admission);

            } else if (family->sample != ngx_http_tokenring_sample_up
                       && family->sample != ngx_http_tokenring_sample_workers)
            {
                continue;
            }

            if (family->sample(page, &conns[j], family->name, family->offset)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


/* name_suffix{engine="main",replica="0",model_name="x" without the brace */

static ngx_int_t
ngx_http_tokenring_labels(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, const char *suffix)
{
    if (ngx_http_tokenring_printf(page->out, 256 + conn->engine->name.len,
                                  "%s%s{engine=\"%V\",replica=\"%ui\"",
                                  name, suffix, &conn->engine->name,
                                  conn->replica)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (conn->state != NGX_HTTP_TOKENRING_READY) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_printf(page->out, 32, ",model_name=\"") != NGX_OK
        || ngx_http_tokenring_label(page->out, conn->card.model) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_append(page->out, "\"", 1);
}


static ngx_int_t
ngx_http_tokenring_sample_up(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    const char  *why;

    if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(page->out, 32, "} %d\n",
                                     ngx_http_tokenring_healthy(conn,
                                                     page->stall, &why)
                                     ? 1 : 0);
}


static ngx_int_t
ngx_http_tokenring_value(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, uint64_t value)
{
    if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(page->out, 32, "} %uL\n", value);
}


static ngx_int_t
ngx_http_tokenring_sample_u32(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    uint32_t  value;

    ngx_memcpy(&value, (u_char *) &conn->admission + offset, sizeof(uint32_t));

    return ngx_http_tokenring_value(page, conn, name, value);
}


static ngx_int_t
ngx_http_tokenring_sample_u64(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    uint64_t  value;

    ngx_memcpy(&value, (u_char *) &conn->admission + offset, sizeof(uint64_t));

    return ngx_http_tokenring_value(page, conn, name, value);
}


static uint64_t
ngx_http_tokenring_load(ngx_http_tokenring_conn_t *conn, size_t offset)
{
    uintptr_t  p;

    p = (uintptr_t) &conn->page->counters + offset;

    return atomic_load_explicit((_Atomic uint64_t *) p, memory_order_relaxed);
}


static ngx_int_t
ngx_http_tokenring_sample_counter(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    return ngx_http_tokenring_value(page, conn, name,
                                    ngx_http_tokenring_load(conn, offset));
}


/* counters that differ in a label */

static ngx_int_t
ngx_http_tokenring_sample_parts(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, const char *label,
    ngx_http_tokenring_part_t *part)
{
    for ( /* void */ ; part->value; part++) {
        if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK
            || ngx_http_tokenring_printf(page->out, 96,
                                   ",%s=\"%s\"} %uL\n", label, part->value,
                                   ngx_http_tokenring_load(conn,
                                                           part->offset))
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* nothing at all where the engine does not know */

/* the counter of keys, and that of values behind it; once there was a prompt */

static ngx_int_t
ngx_http_tokenring_sample_guard(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    uint64_t    millionths;
    ngx_uint_t  i;

    static const char  *parts[] = { "keys", "values" };

    if (ngx_http_tokenring_load(conn,
                                ngx_http_tokenring_counter(kv_guard_prompts))
        == 0)
    {
        return NGX_OK;
    }

    for (i = 0; i < 2; i++) {
        millionths = ngx_http_tokenring_load(conn,
                                             offset + i * sizeof(uint64_t));

        if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK
            || ngx_http_tokenring_printf(page->out, 64,
                                         ",part=\"%s\"} %uL.%06uL\n", parts[i],
                                         millionths / 1000000,
                                         millionths % 1000000)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_sample_gpu_use(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    uint64_t  percent;

    if (!(conn->page->counters.gpu_known & TR_STATUS_GPU_USE)) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK) {
        return NGX_ERROR;
    }

    percent = conn->page->counters.gpu_use_percent;

    return ngx_http_tokenring_printf(page->out, 64, "} %uL.%02uL\n",
                                     percent / 100, percent % 100);
}


static ngx_int_t
ngx_http_tokenring_sample_gpu_power(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    uint64_t  milliwatts;

    if (!(conn->page->counters.gpu_known & TR_STATUS_GPU_POWER)) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK) {
        return NGX_ERROR;
    }

    milliwatts = conn->page->counters.gpu_milliwatts;

    return ngx_http_tokenring_printf(page->out, 64, "} %uL.%03uL\n",
                                     milliwatts / 1000, milliwatts % 1000);
}


static ngx_int_t
ngx_http_tokenring_sample_reasons(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    static ngx_http_tokenring_part_t  reasons[] = {
        { "stop", ngx_http_tokenring_counter(requests_stop) },
        { "length", ngx_http_tokenring_counter(requests_length) },
        { "abort", ngx_http_tokenring_counter(requests_aborted) },
        { NULL, 0 }
    };

    return ngx_http_tokenring_sample_parts(page, conn, name,
                                           "finished_reason", reasons);
}


static ngx_int_t
ngx_http_tokenring_sample_usage(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    double  usage;

    usage = 0;

    if (conn->card.kv_pages
        && conn->admission.kv_free_pages <= conn->card.kv_pages)
    {
        usage = 1.0 - (double) conn->admission.kv_free_pages
                      / (double) conn->card.kv_pages;
    }

    if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(page->out, 32, "} %.6f\n", usage);
}


static ngx_int_t
ngx_http_tokenring_sample_pages(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    uint64_t    cached, free;
    ngx_uint_t  i;

    /* the two are written at different moments */
    free = conn->admission.kv_free_pages;
    cached = ngx_http_tokenring_load(conn,
                                ngx_http_tokenring_counter(kv_cached_pages));
    cached = ngx_min(cached, free);

    for (i = 0; i < conn->card.kv_levels; i++) {
        if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK
            || ngx_http_tokenring_printf(page->out, 16, ",level=\"") != NGX_OK
            || ngx_http_tokenring_label(page->out, conn->card.level_name[i])
               != NGX_OK
            || ngx_http_tokenring_printf(page->out, 32, "\"} %uL\n",
                                         conn->admission.kv_used_pages[i])
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK
        || ngx_http_tokenring_printf(page->out, 64,
                                     ",level=\"cached\"} %uL\n", cached)
           != NGX_OK
        || ngx_http_tokenring_labels(page, conn, name, "") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(page->out, 64, ",level=\"free\"} %uL\n",
                                     free - cached);
}


static ngx_int_t
ngx_http_tokenring_sample_page_bytes(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    return ngx_http_tokenring_value(page, conn, name,
                                    conn->card.kv_page_bytes);
}


static ngx_int_t
ngx_http_tokenring_sample_kept(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    static ngx_http_tokenring_part_t  shares[] = {
        { "high", ngx_http_tokenring_counter(kv_full_bytes_high) },
        { "low", ngx_http_tokenring_counter(kv_full_bytes_low) },
        { "pruned", ngx_http_tokenring_counter(kv_full_bytes_pruned) },
        { NULL, 0 }
    };

    return ngx_http_tokenring_sample_parts(page, conn, name, "kept", shares);
}


static ngx_int_t
ngx_http_tokenring_sample_ratios(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    char        bound[TR_STATUS_RATIOS][NGX_HTTP_TOKENRING_BOUND];
    size_t      at;
    ngx_uint_t  i;

    static double  bounds[TR_STATUS_RATIOS] = TR_STATUS_RATIO_BOUNDS;

    for (i = 0; i < TR_STATUS_RATIOS; i++) {
        (void) snprintf(bound[i], NGX_HTTP_TOKENRING_BOUND, "%g", bounds[i]);
    }

    at = ngx_http_tokenring_counter(kv_ratio);

    return ngx_http_tokenring_sample_buckets(page, conn, name, bound,
               TR_STATUS_RATIOS, at + offsetof(tr_status_ratios_t, count),
               at + offsetof(tr_status_ratios_t, sum_millionths));
}


/* bounds in microseconds, as seconds without zeros at the end */

static ngx_int_t
ngx_http_tokenring_sample_histogram(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    char        bound[TR_STATUS_BUCKETS][NGX_HTTP_TOKENRING_BOUND];
    size_t      n;
    ngx_uint_t  i;

    static uint32_t  bounds[TR_STATUS_BUCKETS] = TR_STATUS_BOUNDS_US;

    for (i = 0; i < TR_STATUS_BUCKETS; i++) {
        n = snprintf(bound[i], NGX_HTTP_TOKENRING_BOUND, "%u.%06u",
                     bounds[i] / 1000000, bounds[i] % 1000000);

        while (bound[i][n - 1] == '0' && bound[i][n - 2] != '.') {
            n--;
        }

        bound[i][n] = '\0';
    }

    return ngx_http_tokenring_sample_buckets(page, conn, name, bound,
               TR_STATUS_BUCKETS,
               offset + offsetof(tr_status_histogram_t, count),
               offset + offsetof(tr_status_histogram_t, sum_us));
}


/*
 * A histogram of n + 1 counters at the offset count, the last one without a
 * bound, and the sum of its values in millionths at the offset sum.
 */

static ngx_int_t
ngx_http_tokenring_sample_buckets(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name,
    char (*bound)[NGX_HTTP_TOKENRING_BOUND], ngx_uint_t n, size_t count,
    size_t sum)
{
    uint64_t    value, total;
    ngx_uint_t  i;

    total = 0;

    for (i = 0; i <= n; i++) {
        total += ngx_http_tokenring_load(conn, count + i * sizeof(uint64_t));

        if (ngx_http_tokenring_labels(page, conn, name, "_bucket") != NGX_OK
            || ngx_http_tokenring_printf(page->out, 96, ",le=\"%s\"} %uL\n",
                                         (i < n) ? bound[i] : "+Inf", total)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    value = ngx_http_tokenring_load(conn, sum);

    if (ngx_http_tokenring_labels(page, conn, name, "_sum") != NGX_OK
        || ngx_http_tokenring_printf(page->out, 64, "} %uL.%06uL\n",
                                     value / 1000000, value % 1000000)
           != NGX_OK
        || ngx_http_tokenring_labels(page, conn, name, "_count") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(page->out, 32, "} %uL\n", total);
}


static ngx_int_t
ngx_http_tokenring_sample_workers(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    return ngx_http_tokenring_value(page, conn, name,
                                    ngx_http_tokenring_workers(conn));
}
