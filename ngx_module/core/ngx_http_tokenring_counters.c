/*
 * The gateway's own counters: requests by status, pauses, retries, losses.
 *
 * They are in a shared memory zone that survives reloads.  Gauges are kept per
 * worker process, so that a worker that was killed takes its share with it.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"

#include <tokenring/version.h>

#include <signal.h>


#define NGX_HTTP_TOKENRING_ZONE_SIZE  (128 * 1024)

#define ngx_http_tokenring_gateway_counter(member)                           \
    offsetof(ngx_http_tokenring_shared_t, member)


/* a counter in /metrics */

typedef struct {
    const char  *name;
    const char  *help;
    size_t       offset;
} ngx_http_tokenring_gateway_t;


static ngx_int_t ngx_http_tokenring_zone_init(ngx_shm_zone_t *zone,
    void *data);
static ngx_int_t ngx_http_tokenring_log_handler(ngx_http_request_t *r);


ngx_http_tokenring_shared_t  *ngx_http_tokenring_counters;


/* statuses that have a counter of their own; the last counter is for others */

static ngx_uint_t
    ngx_http_tokenring_statuses[NGX_HTTP_TOKENRING_STATUSES - 1] = {
    200, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 499, 500, 502, 503,
    504
};


static struct {
    ngx_msec_t   ms;
    const char  *le;
} ngx_http_tokenring_pauses[NGX_HTTP_TOKENRING_PAUSES] = {
    { 10, "0.01" }, { 25, "0.025" }, { 50, "0.05" }, { 100, "0.1" },
    { 250, "0.25" }, { 500, "0.5" }, { 1000, "1" }, { 2500, "2.5" },
    { 5000, "5" }, { 10000, "10" }, { 20000, "20" }, { 30000, "30" },
    { 60000, "60" }, { 300000, "300" }
};


static ngx_http_tokenring_gateway_t  ngx_http_tokenring_gateway[] = {

    { "tokenring_gateway_pauses_total",
      "Requests paused because their client was slow.",
      ngx_http_tokenring_gateway_counter(pauses) },

    { "tokenring_gateway_slow_uploads_total",
      "Requests ended because their body came too slowly.",
      ngx_http_tokenring_gateway_counter(slow_uploads) },

    { "tokenring_gateway_limited_total",
      "Requests refused because their tenant was at a limit of its plan.",
      ngx_http_tokenring_gateway_counter(limited) },

    { "tokenring_gateway_engine_losses_total",
      "Connections to engines that were lost.",
      ngx_http_tokenring_gateway_counter(engine_losses) },

    { "tokenring_gateway_retries_total",
      "Requests sent again, to another engine.",
      ngx_http_tokenring_gateway_counter(retries) },

    { "tokenring_gateway_migrations_total",
      "Requests that continued at another engine after they had begun.",
      ngx_http_tokenring_gateway_counter(migrations) },

    { "tokenring_gateway_unmovable_total",
      "Requests that lost their engine and could not continue.",
      ngx_http_tokenring_gateway_counter(unmovable) },

    { "tokenring_gateway_refused_total",
      "Requests refused because engines crashed while they started them.",
      ngx_http_tokenring_gateway_counter(refused) },

    { "tokenring_gateway_prefix_lookups_total",
      "Requests whose beginning was looked up (tokenring_prefix_affinity).",
      ngx_http_tokenring_gateway_counter(prefix_lookups) },

    { "tokenring_gateway_prefix_hits_total",
      "Requests sent to an engine that had received their beginning.",
      ngx_http_tokenring_gateway_counter(prefix_hits) },

    { "tokenring_gateway_prefix_stale_total",
      "Requests whose beginning that engine no longer had cached.",
      ngx_http_tokenring_gateway_counter(prefix_stale) },

    { "tokenring_gateway_protocol_errors_total",
      "Channels closed because an engine broke the protocol.",
      ngx_http_tokenring_gateway_counter(protocol_errors) },

    { NULL, NULL, 0 }
};


/* is the process of this entry alive? */

static ngx_uint_t
ngx_http_tokenring_alive(ngx_http_tokenring_process_t *p)
{
    return p->pid && (p->pid == (ngx_atomic_uint_t) ngx_pid
                      || kill((ngx_pid_t) p->pid, 0) == 0
                      || ngx_errno == NGX_EPERM);
}


/* workers connected to this socket */

ngx_uint_t
ngx_http_tokenring_workers(ngx_http_tokenring_conn_t *conn)
{
    ngx_uint_t                     i, n;
    ngx_http_tokenring_process_t  *p;

    n = 0;

    for (i = 0; ngx_http_tokenring_counters && i < NGX_MAX_PROCESSES; i++) {
        p = &ngx_http_tokenring_counters->processes[i];

        if (p->connected & ((ngx_atomic_uint_t) 1 << (conn->number % 64))
            && ngx_http_tokenring_alive(p))
        {
            n++;
        }
    }

    return n;
}


/* requests in all workers */

static ngx_uint_t
ngx_http_tokenring_active(ngx_http_tokenring_shared_t *shared)
{
    ngx_uint_t                     i, n;
    ngx_http_tokenring_process_t  *p;

    n = 0;

    for (i = 0; i < NGX_MAX_PROCESSES; i++) {
        p = &shared->processes[i];

        if (p->active && ngx_http_tokenring_alive(p)) {
            n += p->active;
        }
    }

    return n;
}


ngx_int_t
ngx_http_tokenring_gateway_json(ngx_http_tokenring_text_t *out)
{
    ngx_uint_t                    i;
    ngx_http_tokenring_shared_t  *shared;

    shared = ngx_http_tokenring_counters;

    if (shared == NULL) {
        return ngx_http_tokenring_put(out, "null");
    }

    if (ngx_http_tokenring_put(out, "{\"requests\":{") != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < NGX_HTTP_TOKENRING_STATUSES - 1; i++) {
        if (ngx_http_tokenring_printf(out, 64, "\"%ui\":%uA,",
                                      ngx_http_tokenring_statuses[i],
                                      shared->requests[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_printf(out, 96, "\"other\":%uA},\"active\":%ui",
                                  shared->requests[i],
                                  ngx_http_tokenring_active(shared))
        != NGX_OK
        || ngx_http_tokenring_tally_json(out) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "}");
}


static ngx_int_t
ngx_http_tokenring_gateway_requests(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_shared_t *shared)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_TOKENRING_STATUSES - 1; i++) {
        if (ngx_http_tokenring_printf(out, 128,
                "tokenring_gateway_requests_total{status=\"%ui\"} %uA\n",
                ngx_http_tokenring_statuses[i], shared->requests[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_printf(out, 128,
                "tokenring_gateway_requests_total{status=\"other\"} %uA\n",
                shared->requests[i]);
}


void
ngx_http_tokenring_count_pause(ngx_msec_t ms)
{
    ngx_uint_t  i;

    if (ngx_http_tokenring_counters == NULL) {
        return;
    }

    for (i = 0; i < NGX_HTTP_TOKENRING_PAUSES; i++) {
        if (ms <= ngx_http_tokenring_pauses[i].ms) {
            break;
        }
    }

    ngx_http_tokenring_count(pauses_moved[i]);
    (void) ngx_atomic_fetch_add(&ngx_http_tokenring_counters->pauses_moved_ms,
                                ms);
}


static ngx_int_t
ngx_http_tokenring_gateway_pauses(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_shared_t *shared)
{
    ngx_uint_t         i;
    ngx_atomic_uint_t  sum, ms;

    if (ngx_http_tokenring_printf(out, 256,
            "# HELP tokenring_gateway_migration_seconds "
            "From the loss of an engine to the next token from another.\n"
            "# TYPE tokenring_gateway_migration_seconds histogram\n")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    sum = 0;

    for (i = 0; i < NGX_HTTP_TOKENRING_PAUSES; i++) {
        sum += shared->pauses_moved[i];

        if (ngx_http_tokenring_printf(out, 128,
                "tokenring_gateway_migration_seconds_bucket{le=\"%s\"} %uA\n",
                ngx_http_tokenring_pauses[i].le, sum)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    sum += shared->pauses_moved[i];
    ms = shared->pauses_moved_ms;

    return ngx_http_tokenring_printf(out, 256,
               "tokenring_gateway_migration_seconds_bucket{le=\"+Inf\"} %uA\n"
               "tokenring_gateway_migration_seconds_sum %uA.%03uA\n"
               "tokenring_gateway_migration_seconds_count %uA\n",
               sum, ms / 1000, ms % 1000, sum);
}


/* as Prometheus text */

ngx_int_t
ngx_http_tokenring_gateway_metrics(ngx_http_tokenring_text_t *out)
{
    ngx_http_tokenring_shared_t   *shared;
    ngx_http_tokenring_gateway_t  *family;

    shared = ngx_http_tokenring_counters;

    if (shared == NULL) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_printf(out, 512,
            "# HELP tokenring_gateway_build_info "
            "The version of the module.\n"
            "# TYPE tokenring_gateway_build_info gauge\n"
            "tokenring_gateway_build_info{version=\"" TR_VERSION "\"} 1\n"
            "# HELP tokenring_gateway_requests_total "
            "Requests to tokenring_pass locations by status.\n"
            "# TYPE tokenring_gateway_requests_total counter\n")
        != NGX_OK
        || ngx_http_tokenring_gateway_requests(out, shared) != NGX_OK
        || ngx_http_tokenring_printf(out, 256,
            "# HELP tokenring_gateway_active_requests "
            "Requests in the workers now.\n"
            "# TYPE tokenring_gateway_active_requests gauge\n"
            "tokenring_gateway_active_requests %ui\n",
            ngx_http_tokenring_active(shared))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (family = ngx_http_tokenring_gateway; family->name; family++) {

        if (ngx_http_tokenring_printf(out, 512,
                "# HELP %s %s\n# TYPE %s counter\n%s %uA\n",
                family->name, family->help, family->name, family->name,
                *(ngx_atomic_t *) ((u_char *) shared + family->offset))
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_gateway_pauses(out, shared) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_tally_metrics(out);
}


ngx_int_t
ngx_http_tokenring_init_counters(ngx_conf_t *cf,
    ngx_http_tokenring_main_conf_t *tmcf)
{
    ngx_str_t                   name;
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    ngx_str_set(&name, "tokenring");

    tmcf->zone = ngx_shared_memory_add(cf, &name, NGX_HTTP_TOKENRING_ZONE_SIZE,
                                       &ngx_http_tokenring_module);
    if (tmcf->zone == NULL) {
        return NGX_ERROR;
    }

    tmcf->zone->init = ngx_http_tokenring_zone_init;
    tmcf->zone->data = ngx_pcalloc(cf->pool, sizeof(void *));
    if (tmcf->zone->data == NULL) {
        return NGX_ERROR;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_LOG_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_tokenring_log_handler;

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_zone_init(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t               *shpool;
    ngx_http_tokenring_shared_t  **shared;

    shared = zone->data;

    if (data) {
        /* a reload: the zone of the old configuration */
        *shared = *(ngx_http_tokenring_shared_t **) data;
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    if (zone->shm.exists) {
        *shared = shpool->data;
        return NGX_OK;
    }

    *shared = ngx_slab_calloc(shpool, sizeof(ngx_http_tokenring_shared_t));
    if (*shared == NULL) {
        return NGX_ERROR;
    }

    shpool->data = *shared;

    return NGX_OK;
}


void
ngx_http_tokenring_process_reset(ngx_http_tokenring_shared_t *shared)
{
    ngx_http_tokenring_process_t  *p;

    p = &shared->processes[ngx_process_slot];

    p->active = 0;
    p->connected = 0;
    p->pid = (ngx_atomic_uint_t) ngx_pid;
}


void
ngx_http_tokenring_process_connected(ngx_http_tokenring_conn_t *conn,
    ngx_uint_t on)
{
    ngx_atomic_uint_t              bit;
    ngx_http_tokenring_process_t  *p;

    if (ngx_http_tokenring_counters == NULL) {
        return;
    }

    p = &ngx_http_tokenring_counters->processes[ngx_process_slot];
    bit = (ngx_atomic_uint_t) 1 << (conn->number % 64);

    /* only this process writes it */
    p->connected = on ? (p->connected | bit) : (p->connected & ~bit);
}


/* log phase: every request to a location of ours */

static ngx_int_t
ngx_http_tokenring_log_handler(ngx_http_request_t *r)
{
    ngx_uint_t                      i, status;
    ngx_http_tokenring_ctx_t       *ctx;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    if (ngx_http_tokenring_counters == NULL) {
        return NGX_OK;
    }

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    if (!tlcf->passes && !tlcf->errors && ctx == NULL) {
        return NGX_OK;
    }

    if (ctx) {
        ngx_http_tokenring_tally(ctx);
    }

    status = r->err_status ? r->err_status : r->headers_out.status;

    for (i = 0; i < NGX_HTTP_TOKENRING_STATUSES - 1; i++) {
        if (ngx_http_tokenring_statuses[i] == status) {
            break;
        }
    }

    (void) ngx_atomic_fetch_add(&ngx_http_tokenring_counters->requests[i], 1);

    return NGX_OK;
}
