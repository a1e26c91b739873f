/*
 * Bodies that are on their way from their clients, in this worker.
 *
 * Whoever sends a body holds memory, and above client_body_buffer_size a place
 * at the engine.  client_body_timeout alone would let a client hold them with a
 * byte a minute.  So a body must come with a mean of tokenring_body_rate once
 * five seconds have passed (408 otherwise).  And when no more bodies can be
 * taken, the slowest one ends, not the newest.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"


/* the mean is that of so long a time, at least, ms */
#define NGX_HTTP_TOKENRING_UPLOAD_MEAN   5000

/* how old the slowest upload must be to end before others, ms */
#define NGX_HTTP_TOKENRING_UPLOAD_YOUNG  1000

#define NGX_HTTP_TOKENRING_UPLOAD_CHECK  1000


static void ngx_http_tokenring_upload_check(ngx_event_t *ev);
static ngx_uint_t ngx_http_tokenring_upload_slow(
    ngx_http_tokenring_ctx_t *ctx, ngx_msec_t least);
static void ngx_http_tokenring_upload_stop(ngx_http_tokenring_ctx_t *ctx);


static ngx_queue_t       ngx_http_tokenring_uploads;
static ngx_event_t       ngx_http_tokenring_upload_event;
static ngx_connection_t  ngx_http_tokenring_upload_dummy;


void
ngx_http_tokenring_upload_begin(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_event_t  *ev;

    if (ctx->uploading || ctx->conf->body_rate == 0) {
        return;
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
    ctx->upload_start = ngx_current_msec;
    ctx->uploaded = 0;

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
        ctx->uploaded += ngx_buf_size(cl->buf);
    }
}


/* slower than it may be, over at least that time */

static ngx_uint_t
ngx_http_tokenring_upload_slow(ngx_http_tokenring_ctx_t *ctx,
    ngx_msec_t least)
{
    ngx_msec_t  age;

    age = ngx_current_msec - ctx->upload_start;

    return age >= least
           && ctx->state != NGX_HTTP_TOKENRING_STARVED
           && ctx->state != NGX_HTTP_TOKENRING_HELD
           && (uint64_t) ctx->uploaded * 1000
              < (uint64_t) ctx->conf->body_rate * age;
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

        if (ngx_http_tokenring_upload_slow(ctx,
                                           NGX_HTTP_TOKENRING_UPLOAD_MEAN))
        {
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
                  "tokenring: the body comes too slowly, bytes=%O in %M ms, "
                  "request=%V", ctx->uploaded,
                  ngx_current_msec - ctx->upload_start, &ctx->request_id);

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

        if (ctx->conn != conn
            || !ngx_http_tokenring_upload_slow(ctx,
                                              NGX_HTTP_TOKENRING_UPLOAD_YOUNG))
        {
            continue;
        }

        rate = (uint64_t) ctx->uploaded * 1000
               / (ngx_current_msec - ctx->upload_start);

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
