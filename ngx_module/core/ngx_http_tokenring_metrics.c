/*
 * /metrics: Prometheus text (0.0.4) of every engine, from the status pages
 * (_metrics_engine.c), and of the gateway, which has counters of its own
 * (_counters.c).  The samples of a family must stand together, so the outer
 * loop is over families and the inner one over the sockets of the engines.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_metrics_engine.h"
#include "ngx_http_tokenring_send.h"


typedef struct {
    const char                    *name;
    const char                    *type;
    const char                    *help;
    ngx_http_tokenring_sample_pt   sample;
    size_t                         offset;
} ngx_http_tokenring_family_t;


static ngx_int_t ngx_http_tokenring_metrics_family(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_family_t *family);


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
      "Free slots in the queue.",
      ngx_http_tokenring_sample_u32,
      ngx_http_tokenring_admission(queue_free) },

    { "tokenring_steps_total", "counter",
      "Steps of the engine's loop.",
      ngx_http_tokenring_sample_u64, ngx_http_tokenring_admission(step) },

    { "tokenring_kv_cache_usage_ratio", "gauge",
      "Used pages of the KV cache, 0 to 1.",
      ngx_http_tokenring_sample_usage, 0 },

    { "tokenring_kv_cache_pages", "gauge",
      "Pages of the KV cache by level (bits of keys/values); \"cached\": "
      "prefixes not in use, \"free\": empty.",
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
      "Compressed caches that were recomputed, since swap memory was full.",
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
      "Prompts that found a cached prefix.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_hits) },

    { "tokenring_prefix_tokens_total", "counter",
      "Tokens of the cached prefixes that were found.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_tokens) },

    { "tokenring_prefix_cuts_total", "counter",
      "Cached prefixes that were found and ended within a block.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_cuts) },

    { "tokenring_prefix_evicted_blocks_total", "counter",
      "Cached blocks of pages that were evicted.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_evicted) },

    { "tokenring_prefix_expired_blocks_total", "counter",
      "Cached blocks of pages that expired (cache_ttl).",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_expired) },

    { "tokenring_prefix_blocks", "gauge",
      "Blocks of pages in the prefix cache.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(prefix_blocks) },

    { "tokenring_prefix_files", "gauge",
      "Files with prefixes in cache_dir.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(store_files) },

    { "tokenring_prefix_files_bytes", "gauge",
      "Bytes of the files with prefixes.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(store_bytes) },

    { "tokenring_prefix_files_written_total", "counter",
      "Prefixes that were written to files.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(store_stored) },

    { "tokenring_prefix_files_read_total", "counter",
      "Prefixes that were loaded from files.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(store_loaded) },

    { "tokenring_prefix_files_tokens_total", "counter",
      "Tokens of the prefixes that were loaded from files.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(store_tokens) },

    { "tokenring_prefix_files_failed_total", "counter",
      "Files with prefixes that could not be written, or were damaged.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(store_failed) },

    { "tokenring_prefix_files_skipped_total", "counter",
      "Prefixes that were evicted before they were written to a file.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(store_skipped) },

    { "tokenring_prefix_host", "gauge",
      "Prefixes in host memory (cache_memory).",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(shelf_items) },

    { "tokenring_prefix_host_bytes", "gauge",
      "Bytes of the prefixes in host memory.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(shelf_bytes) },

    { "tokenring_prefix_host_written_total", "counter",
      "Prefixes that were copied to host memory.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(shelf_stored) },

    { "tokenring_prefix_host_read_total", "counter",
      "Prefixes that came back from host memory.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(shelf_loaded) },

    { "tokenring_prefix_host_tokens_total", "counter",
      "Tokens of the prefixes that came back from host memory.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(shelf_tokens) },

    { "tokenring_prefix_host_evicted_total", "counter",
      "Prefixes that left host memory: no room, or too old.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(shelf_evicted) },

    { "tokenring_prefix_host_skipped_total", "counter",
      "Prefixes that found no room in host memory, or were evicted first.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(shelf_skipped) },

    { "tokenring_kv_guard_prompts_total", "counter",
      "Prompts that were compared while they were compressed (kv_guard).",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(kv_guard_prompts) },

    { "tokenring_kv_guard_warnings", "gauge",
      "KV policies that were found to lose answers with this model.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(kv_guard_over) },

    { "tokenring_kv_guard_error_ratio", "gauge",
      "How far attention moves when keys or values are compressed.",
      ngx_http_tokenring_sample_guard,
      ngx_http_tokenring_counter(kv_guard_keys) },

    { "tokenring_kv_guard_bound_ratio", "gauge",
      "Bound of the error ratio above which a KV policy loses answers.",
      ngx_http_tokenring_sample_guard,
      ngx_http_tokenring_counter(kv_guard_keys_bound) },

    { "tokenring_weights_bytes", "gauge",
      "Memory that the weights take, mapped files included.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(weights_bytes) },

    { "tokenring_weights_file_bytes", "gauge",
      "Bytes of the weights in the model's files.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(weights_file_bytes) },

    { "tokenring_gpu_use_ratio", "gauge",
      "GPU utilisation, 0 to 1; absent where it is not known.",
      ngx_http_tokenring_sample_gpu_use, 0 },

    { "tokenring_gpu_power_watts", "gauge",
      "Power of the GPU; absent where it is not known.",
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
      "Requests whose state, output or usage in Redis is incomplete.",
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

    { "tokenring_grammar_masks_total", "counter",
      "Tokens chosen among those that a schema or grammar allowed.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(masks) },

    { "tokenring_grammar_masks_single_total", "counter",
      "Tokens that were the only one a schema or grammar allowed.",
      ngx_http_tokenring_sample_counter,
      ngx_http_tokenring_counter(masks_single) },

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
