/*
 * What an engine's status page says, as lines of /metrics (_metrics.c).
 *
 * Each line has the labels of its engine and socket.  A page is read while the
 * engine writes it: figures that belong together may be of different moments.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_metrics_engine.h"


/* one of the counters that differ in a label; the last has no value */

typedef struct {
    const char                    *value;
    size_t                         offset;
} ngx_http_tokenring_part_t;


/* bytes of the bound of a bucket, as text */
#define NGX_HTTP_TOKENRING_BOUND  32


static ngx_int_t ngx_http_tokenring_labels(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, const char *suffix);
static ngx_int_t ngx_http_tokenring_sample_buckets(
    ngx_http_tokenring_page_t *page, ngx_http_tokenring_conn_t *conn,
    const char *name, char (*bound)[NGX_HTTP_TOKENRING_BOUND], ngx_uint_t n,
    size_t count, size_t sum);


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


ngx_int_t
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


ngx_int_t
ngx_http_tokenring_sample_u32(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    uint32_t  value;

    ngx_memcpy(&value, (u_char *) &conn->admission + offset, sizeof(uint32_t));

    return ngx_http_tokenring_value(page, conn, name, value);
}


ngx_int_t
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


ngx_int_t
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


/* the counter of keys, and that of values behind it; once there was a prompt */

ngx_int_t
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


/* nothing at all where the engine does not know */

ngx_int_t
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


ngx_int_t
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


ngx_int_t
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


ngx_int_t
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


ngx_int_t
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


ngx_int_t
ngx_http_tokenring_sample_page_bytes(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    return ngx_http_tokenring_value(page, conn, name,
                                    conn->card.kv_page_bytes);
}


ngx_int_t
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


ngx_int_t
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

ngx_int_t
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


ngx_int_t
ngx_http_tokenring_sample_workers(ngx_http_tokenring_page_t *page,
    ngx_http_tokenring_conn_t *conn, const char *name, size_t offset)
{
    return ngx_http_tokenring_value(page, conn, name,
                                    ngx_http_tokenring_workers(conn));
}
