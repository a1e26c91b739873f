/*
 * Bodies that are on their way from their clients, in this worker.
 *
 * Whoever sends a body holds memory, and above client_body_buffer_size a place
 * at the engine.  client_body_timeout alone would let a client hold them with a
 * byte a minute.  So a body must come with a mean of tokenring_body_rate over
 * the last five seconds (408 otherwise), however much came before.
 *
 * And when no more bodies can be taken, the slowest one ends, not the newest:
 * the slowest of those to an engine where its places are taken, and the one
 * that upload.h chooses where there is no body memory.  Both searches walk over
 * all uploads of this worker, at most one for each client that it serves.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"


#define NGX_HTTP_TOKENRING_UPLOAD_CHECK  1000


static void ngx_http_tokenring_upload_check(ngx_event_t *ev);
static ngx_uint_t ngx_http_tokenring_upload_slow(
    ngx_http_tokenring_ctx_t *ctx, ngx_uint_t seconds);
static void ngx_http_tokenring_upload_stop(ngx_http_tokenring_ctx_t *ctx);
static ngx_http_tokenring_ctx_t *ngx_http_tokenring_upload_worst(
    ngx_http_tokenring_ctx_t *ctx);


static ngx_queue_t       ngx_http_tokenring_uploads;
static ngx_event_t       ngx_http_tokenring_upload_event;
static ngx_connection_t  ngx_http_tokenring_upload_dummy;


void
ngx_http_tokenring_upload_begin(ngx_http_tokenring_ctx_t *ctx)
{
    u_char        tenant[NGX_HTTP_TOKENRING_TENANT];
    ngx_event_t  *ev;

    if (ctx->uploading) {
        return;
    }

    if (ctx->routed) {
        ngx_http_tokenring_tenant(ctx, tenant);
        ngx_memcpy(&ctx->upload_tenant, tenant, sizeof(ctx->upload_tenant));
    }

    ev = &ngx_http_tokenring_upload_event;

    if (ev->handler == NULL) {
        ngx_queue_init(&ngx_http_tokenring_uploads);

        ngx_http_tokenring_upload_dummy.fd = (ngx_socket_t) -1;

        ev->handler = ngx_http_tokenring_upload_check;
        ev->data = &ngx_http_tokenring_upload_dummy;
        ev->log = ngx_cycle->log;
        ev->cancelable = 1;
    }

    ctx->uploading = 1;
    tr_pace_start(&ctx->pace, ngx_current_msec);

    ngx_queue_insert_tail(&ngx_http_tokenring_uploads, &ctx->upload);

    if (!ev->timer_set) {
        ngx_add_timer(ev, NGX_HTTP_TOKENRING_UPLOAD_CHECK);
    }
}


void
ngx_http_tokenring_upload_end(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->uploading) {
        ctx->uploading = 0;
        ngx_queue_remove(&ctx->upload);
    }
}


/* more of it has come, or all of it */

void
ngx_http_tokenring_upload_count(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_chain_t         *cl;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (!ctx->uploading) {
        return;
    }

    if (!r->reading_body) {
        ngx_http_tokenring_upload_end(ctx);
        return;
    }

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        tr_pace_add(&ctx->pace, ngx_current_msec, ngx_buf_size(cl->buf));
    }
}


/* slower than it may be, in the last seconds, which have passed since */

static ngx_uint_t
ngx_http_tokenring_upload_slow(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t seconds)
{
    if (ctx->state == NGX_HTTP_TOKENRING_STARVED
        || ctx->state == NGX_HTTP_TOKENRING_HELD)
    {
        /* nothing is read */
        return 0;
    }

    return ngx_current_msec - ctx->pace.since_ms >= seconds * 1000
           && tr_pace_rate(&ctx->pace, ngx_current_msec, seconds)
              < ctx->conf->body_rate;
}


static void
ngx_http_tokenring_upload_check(ngx_event_t *ev)
{
    ngx_queue_t               *q, *next;
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *ctx;

    for (q = ngx_queue_head(&ngx_http_tokenring_uploads);
         q != ngx_queue_sentinel(&ngx_http_tokenring_uploads);
         q = next)
    {
        /* ending one upload ends no other */
        next = ngx_queue_next(q);

        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, upload);

        if (ngx_http_tokenring_upload_slow(ctx, TR_PACE_SECONDS)) {
            c = ctx->request->connection;

            ngx_http_tokenring_upload_stop(ctx);
            ngx_http_run_posted_requests(c);
        }
    }

    if (!ngx_queue_empty(&ngx_http_tokenring_uploads) && !ngx_exiting) {
        ngx_add_timer(ev, NGX_HTTP_TOKENRING_UPLOAD_CHECK);
    }
}


static void
ngx_http_tokenring_upload_stop(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_log_t  *log;

    log = ctx->request->connection->log;

    ngx_http_set_log_request(log, ctx->request);

    ngx_log_error(NGX_LOG_INFO, log, 0,
                  "tokenring: the body comes too slowly, bytes a second=%uL "
                  "for %uL ms, request=%V",
                  tr_pace_rate(&ctx->pace, ngx_current_msec, TR_PACE_SECONDS),
                  (uint64_t) ngx_current_msec - ctx->pace.since_ms,
                  &ctx->request_id);

    ngx_http_tokenring_count(slow_uploads);

    ngx_http_tokenring_body_fail(ctx, NGX_HTTP_REQUEST_TIME_OUT);
}


/* NGX_OK: the slowest upload to conn has ended, and its place is free */

ngx_int_t
ngx_http_tokenring_upload_shed(ngx_http_tokenring_conn_t *conn)
{
    uint64_t                   rate, least;
    ngx_queue_t               *q;
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *ctx, *slowest;

    if (ngx_http_tokenring_upload_event.handler == NULL) {
        return NGX_DECLINED;
    }

    slowest = NULL;
    least = 0;

    for (q = ngx_queue_head(&ngx_http_tokenring_uploads);
         q != ngx_queue_sentinel(&ngx_http_tokenring_uploads);
         q = ngx_queue_next(q))
    {
        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, upload);

        if (ctx->conn != conn || !ngx_http_tokenring_upload_slow(ctx, 1)) {
            continue;
        }

        rate = tr_pace_rate(&ctx->pace, ngx_current_msec, 1);

        if (slowest == NULL || rate < least) {
            slowest = ctx;
            least = rate;
        }
    }

    if (slowest == NULL) {
        return NGX_DECLINED;
    }

    c = slowest->request->connection;

    ngx_http_tokenring_upload_stop(slowest);
    ngx_http_run_posted_requests(c);

    return NGX_OK;
}


/* of the bodies that are gathered, the one to end for ctx; NULL: none */

static ngx_http_tokenring_ctx_t *
ngx_http_tokenring_upload_worst(ngx_http_tokenring_ctx_t *ctx)
{
    tr_shed_t                  shed;
    ngx_queue_t               *q, *all;
    ngx_http_tokenring_ctx_t  *it, *worst;

    all = &ngx_http_tokenring_uploads;
    worst = NULL;

    tr_shed_start(&shed, ctx->conf->body_memory, ctx->upload_tenant,
                  ngx_current_msec);

    for (q = ngx_queue_head(all); q != all; q = ngx_queue_next(q)) {
        it = ngx_queue_data(q, ngx_http_tokenring_ctx_t, upload);
        tr_shed_count(&shed, it->upload_tenant, it->charged);
    }

    for (q = ngx_queue_head(all); q != all; q = ngx_queue_next(q)) {
        it = ngx_queue_data(q, ngx_http_tokenring_ctx_t, upload);

        /* without a rate, it ends if it stands still */

        if (it != ctx
            && it->state == NGX_HTTP_TOKENRING_GATHER
            && tr_shed_worse(&shed, &it->pace, it->upload_tenant, it->charged,
                             ngx_max(it->conf->body_rate, 1)))
        {
            worst = it;
        }
    }

    return worst;
}


ngx_int_t
ngx_http_tokenring_upload_yield(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *worst;

    if (ngx_http_tokenring_upload_event.handler == NULL) {
        return NGX_DECLINED;
    }

    worst = ngx_http_tokenring_upload_worst(ctx);

    if (worst == NULL) {
        return NGX_DECLINED;
    }

    c = worst->request->connection;

    ngx_http_set_log_request(c->log, worst->request);

    ngx_http_tokenring_count(slow_uploads);

    ngx_http_tokenring_body_forget(worst);

    ngx_http_tokenring_fail(worst, TR_ERR_QUEUE_FULL,
                            "Too many requests are being uploaded, and this "
                            "one came the slowest");
    worst->retry_after = NGX_HTTP_TOKENRING_RETRY_AFTER;
    ngx_http_tokenring_flush(worst);

    ngx_http_run_posted_requests(c);

    return NGX_OK;
}
