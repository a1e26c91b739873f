/*
 * The request body, as it comes from the client.
 *
 * It is read unbuffered, so that it never becomes a temporary file.  If the
 * body is not complete at once, the request returns its slot, so that a slow
 * client occupies no engine: the body is gathered here until it is complete, or
 * longer than client_body_buffer_size.  A longer one is passed on as it
 * arrives (_submit.c), in one of the slots reserved for incomplete bodies.
 * Where the body says which engine gets the request, it is gathered whole.
 *
 * Another module (mirror) may have read the body first, and may still need it:
 * then we read it from memory or from its temporary file and leave it in place.
 * So we do with a file that NGINX has written for us: over HTTP/2 it buffers a
 * body that was complete before we asked, and client_body_in_file_only applies.
 * A module that has consumed it leaves only its length, which must not be
 * trusted: an engine that gets less than was announced closes the channel.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_models.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_resumable.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_slot.h"


/* of a file that is scanned, bytes at a time */
#define NGX_HTTP_TOKENRING_SCANNED  16384


static void ngx_http_tokenring_body_handler(ngx_http_request_t *r);
static void ngx_http_tokenring_body_event(ngx_http_request_t *r);
static void ngx_http_tokenring_body_gather(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_body_routed(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_body_scan(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_body_whole(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_body_hold(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_body_add(ngx_http_tokenring_ctx_t *ctx,
    ngx_buf_t *b);
static ngx_int_t ngx_http_tokenring_body_copy(ngx_http_tokenring_ctx_t *ctx);


/* the request has a connection and a slot, or its body says where it goes */

ngx_int_t
ngx_http_tokenring_body_read(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    ctx->body = NULL;
    ctx->last_body = &ctx->body;

    ctx->foreign_body = (r->request_body != NULL);

    ngx_http_tokenring_set_state(ctx, ctx->conn ? NGX_HTTP_TOKENRING_READ
                                                : NGX_HTTP_TOKENRING_GATHER);

    r->request_body_no_buffering = 1;

    return ngx_http_read_client_request_body(r,
                                             ngx_http_tokenring_body_handler);
}


static void
ngx_http_tokenring_body_handler(ngx_http_request_t *r)
{
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    r->read_event_handler = ngx_http_tokenring_body_event;
    r->write_event_handler = ngx_http_tokenring_write_handler;

    if (r->request_body && r->request_body->temp_file) {
        ctx->foreign_body = 1;
    }

    if (ctx->routed) {
        ngx_http_tokenring_body_routed(ctx);
        return;
    }

    if (!r->reading_body && ngx_http_tokenring_body_ahead(ctx) != NGX_OK) {
        ngx_http_tokenring_body_fail(ctx, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    if (ctx->foreign_body || r->request_body == NULL) {

        if (ngx_http_tokenring_body_copy(ctx) != NGX_OK) {
            ngx_http_tokenring_body_fail(ctx, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }

    } else if (r->reading_body) {

        ngx_http_tokenring_upload_begin(ctx);
        ngx_http_tokenring_slot_return(ctx);

        ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_GATHER);

        ngx_http_tokenring_body_gather(ctx);
        return;

    } else {
        ngx_http_tokenring_body_take(ctx);
    }

    ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_SEND);

    (void) ngx_http_tokenring_body_send(ctx);
}


/* the model in the body is needed before an engine is chosen */

static void
ngx_http_tokenring_body_routed(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    if (!ctx->foreign_body && r->request_body) {

        if (r->reading_body) {
            ngx_http_tokenring_upload_begin(ctx);
        }

        ngx_http_tokenring_body_gather(ctx);
        return;
    }

    if (ngx_http_tokenring_body_scan(ctx) != NGX_OK) {
        ngx_http_tokenring_body_fail(ctx, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_http_tokenring_body_whole(ctx);
}


/* of a body that another module has read, or that is in a file */

static ngx_int_t
ngx_http_tokenring_body_scan(ngx_http_tokenring_ctx_t *ctx)
{
    off_t         at;
    size_t        size;
    u_char       *p;
    ssize_t       n;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    cl = ctx->request->request_body ? ctx->request->request_body->bufs : NULL;
    p = NULL;

    for ( /* void */ ; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            ngx_http_tokenring_scan(ctx->scan, b->pos, b->last - b->pos);
            continue;
        }

        if (p == NULL) {
            p = ngx_palloc(ctx->request->pool, NGX_HTTP_TOKENRING_SCANNED);
            if (p == NULL) {
                return NGX_ERROR;
            }
        }

        for (at = b->file_pos; at < b->file_last; at += n) {
            size = (size_t) ngx_min(b->file_last - at,
                                    NGX_HTTP_TOKENRING_SCANNED);

            n = ngx_read_file(b->file, p, size, at);

            if (n != (ssize_t) size) {
                return NGX_ERROR;
            }

            ngx_http_tokenring_scan(ctx->scan, p, n);
        }
    }

    return NGX_OK;
}


/* all of it is kept, or as much as is kept of a slow client's; may end it */

static void
ngx_http_tokenring_body_whole(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ctx->routed ? ngx_http_tokenring_pick(ctx) : NGX_OK;

    if (rc == NGX_OK && ngx_http_tokenring_admit(ctx) == NGX_AGAIN) {
        return;
    }

    ngx_http_tokenring_body_resend(ctx);
}


/* how many bytes of a slow client's body we keep */

size_t
ngx_http_tokenring_body_held(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(ctx->request, ngx_http_core_module);

    return clcf->client_body_buffer_size;
}


/* reads what has arrived; may end the request */

static void
ngx_http_tokenring_body_gather(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    for ( ;; ) {

        rc = ngx_http_tokenring_body_hold(ctx);

        if (rc == NGX_DECLINED) {
            ngx_http_tokenring_fail(ctx, TR_ERR_QUEUE_FULL,
                                    "Too many requests are being uploaded");
            ctx->retry_after = NGX_HTTP_TOKENRING_RETRY_AFTER;
            ngx_http_tokenring_flush(ctx);
            return;
        }

        if (rc != NGX_OK) {
            ngx_http_tokenring_body_fail(ctx, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }

        if (!r->reading_body
            || (!ctx->routed
                && ctx->kept_size >= ngx_http_tokenring_body_held(ctx)))
        {
            break;
        }

        if (ngx_http_tokenring_body_more(ctx) != NGX_OK) {
            return;
        }
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring body: kept:%uz whole:%d", ctx->kept_size,
                   !r->reading_body);

    if ((ctx->group->conns.nelts < 2 && ctx->conf->migrate == 0)
        || ctx->kept_size > ctx->conf->retry_buffer)
    {
        /* it cannot be retried; the bytes stay until the engine has them */
        ctx->lost_body = 1;
    }

    ngx_http_tokenring_body_whole(ctx);
}


/* copies what was read: NGINX needs its buffer back to read on */

static ngx_int_t
ngx_http_tokenring_body_hold(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_chain_t         *cl, *next;
    ngx_http_request_t  *r;

    r = ctx->request;

    rc = ngx_http_tokenring_body_keep(ctx, r->request_body->bufs);

    if (rc != NGX_OK) {
        return rc;
    }

    for (cl = r->request_body->bufs; cl; cl = next) {
        next = cl->next;

        if (ctx->routed) {
            ngx_http_tokenring_scan(ctx->scan, cl->buf->pos,
                                    cl->buf->last - cl->buf->pos);
        }

        cl->buf->pos = cl->buf->last;
        ngx_free_chain(r->pool, cl);
    }

    r->request_body->bufs = NULL;

    return NGX_OK;
}


/* the request has another connection: send the body from the beginning */

ngx_int_t
ngx_http_tokenring_body_again(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r;

    r = ctx->request;

    /* NGINX reads on only when the buffers that it gave us are consumed */

    for (cl = ctx->body; cl; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
    }

    ctx->body = NULL;
    ctx->last_body = &ctx->body;

    r->read_event_handler = ngx_http_tokenring_body_event;
    r->write_event_handler = ngx_http_tokenring_write_handler;

    ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_SEND);

    /* while it waited for an engine nothing was read */
    tr_pace_start(&ctx->pace, ngx_current_msec);

    rc = ngx_http_tokenring_body_ahead(ctx);

    if (rc == NGX_OK) {
        rc = ctx->foreign_body ? ngx_http_tokenring_body_copy(ctx)
                               : ngx_http_tokenring_body_rewind(ctx);
    }

    if (rc != NGX_OK) {
        ngx_http_tokenring_body_fail(ctx, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return NGX_DONE;
    }

    return ngx_http_tokenring_body_send(ctx);
}


/* first a replay block, then the name of the model, if there are such */

ngx_int_t
ngx_http_tokenring_body_ahead(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_buf_t  *b;

    ctx->ahead = 0;

    if (ctx->moving) {
        ctx->replay->pos = ctx->replay->start;

        if (ngx_http_tokenring_body_add(ctx, ctx->replay) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ctx->asked.len) {
        b = ngx_calloc_buf(ctx->request->pool);
        if (b == NULL) {
            return NGX_ERROR;
        }

        b->pos = ctx->asked.data;
        b->last = b->pos + ctx->asked.len;
        b->memory = 1;

        if (ngx_http_tokenring_body_add(ctx, b) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_body_add(ngx_http_tokenring_ctx_t *ctx, ngx_buf_t *b)
{
    ngx_chain_t  *cl;

    cl = ngx_alloc_chain_link(ctx->request->pool);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    cl->buf = b;
    cl->next = NULL;

    *ctx->last_body = cl;
    ctx->last_body = &cl->next;

    ctx->ahead += b->last - b->pos;

    return NGX_OK;
}


/* the client has sent more, or is gone */

static void
ngx_http_tokenring_body_event(ngx_http_request_t *r)
{
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    if (ctx == NULL) {
        /* an internal redirect after the end of our request */
        return;
    }

    if (ctx->state == NGX_HTTP_TOKENRING_STARVED) {

        /* nothing is read now, but notice a client that leaves */

        if (ngx_http_tokenring_client_left(r)) {
            ngx_http_tokenring_hang_up(ctx);
        }

        return;
    }

    if (ctx->state == NGX_HTTP_TOKENRING_GATHER) {
        ngx_http_tokenring_body_gather(ctx);
        return;
    }

    (void) ngx_http_tokenring_body_send(ctx);
}


/*
 * NGX_OK: more was read, or the end reached; NGX_AGAIN: nothing now;
 * NGX_ERROR: the request has ended.
 */

ngx_int_t
ngx_http_tokenring_body_more(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    rc = ngx_http_read_unbuffered_request_body(r);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring body: read, rc:%i more:%ud", rc,
                   (u_int) r->reading_body);

    ngx_http_tokenring_upload_count(ctx);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {

        if (r->connection->error) {
            ngx_http_tokenring_hang_up(ctx);

        } else {
            ngx_http_tokenring_body_fail(ctx, rc);
        }

        return NGX_ERROR;
    }

    return (r->request_body->bufs == NULL && r->reading_body) ? NGX_AGAIN
                                                              : NGX_OK;
}


/* moves what was read to our chain */

void
ngx_http_tokenring_body_take(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_chain_t         *cl;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (r->request_body == NULL) {
        return;
    }

    if (ngx_http_tokenring_body_keep(ctx, r->request_body->bufs) != NGX_OK) {
        /* no memory: it cannot be retried, then */
        ngx_http_tokenring_body_forget(ctx);
    }

    *ctx->last_body = r->request_body->bufs;
    r->request_body->bufs = NULL;

    for (cl = *ctx->last_body; cl; cl = cl->next) {
        ctx->last_body = &cl->next;
    }
}


/* a body that another module may need: our own positions, the same bytes */

static ngx_int_t
ngx_http_tokenring_body_copy(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_buf_t           *b;
    ngx_chain_t         *cl, *in;
    ngx_http_request_t  *r;

    r = ctx->request;

    in = r->request_body ? r->request_body->bufs : NULL;

    for ( /* void */ ; in; in = in->next) {

        b = ngx_alloc_buf(r->pool);
        if (b == NULL) {
            return NGX_ERROR;
        }

        cl = ngx_alloc_chain_link(r->pool);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        *b = *in->buf;

        if (ngx_buf_in_memory(b)) {
            b->in_file = 0;
        }

        cl->buf = b;
        cl->next = NULL;

        *ctx->last_body = cl;
        ctx->last_body = &cl->next;
    }

    if (r->reading_body
        || (r->headers_in.content_length_n > 0
            && ngx_http_tokenring_body_len(ctx)
               < (uint64_t) r->headers_in.content_length_n))
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "tokenring: another module has consumed the body of this "
                      "request");
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* the gateway could not read the body */

void
ngx_http_tokenring_body_fail(ngx_http_tokenring_ctx_t *ctx, ngx_int_t rc)
{
    ngx_http_tokenring_slot_abandon(ctx);

    if (ctx->request->header_sent) {
        ngx_http_tokenring_fail(ctx, TR_ERR_INTERNAL,
                                "The gateway could not read the body of this "
                                "request again");
        ngx_http_tokenring_flush(ctx);
        return;
    }

    ngx_http_tokenring_finalize(ctx,
                         ngx_http_tokenring_send_http_error(ctx->request, rc));
}
