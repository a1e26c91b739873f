/*
 * Another engine for a request that lost its own.
 *
 * A request goes to another engine as long as its client has seen nothing of
 * the answer: once if its engine dies (a request that kills engines must not
 * kill them all), and as often as there are untried engines if its engine
 * refuses it because it is full or draining.  With tokenring_migrate it may
 * lose as many as one that has begun, and waits as long for the next.
 *
 * So the body must be kept to be sent again: up to tokenring_retry_buffer,
 * where an engine has more than one socket, and until the first token of a
 * stream.  A body that another module has read is there anyway.  A body that
 * is gathered before any engine gets it (_body.c) is kept in the same place,
 * regardless of these limits.
 *
 * The request starts anew, with another completion id: in Redis the first run
 * has its own state and output, which the second must not continue.  (A request
 * whose client knows the id and whose output is stored is not sent again.)
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_render.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"


static ngx_buf_t *ngx_http_tokenring_body_room(ngx_http_tokenring_ctx_t *ctx,
    size_t size);
static size_t ngx_http_tokenring_body_next(ngx_http_tokenring_ctx_t *ctx,
    size_t size);
static ngx_uint_t ngx_http_tokenring_body_full(ngx_http_tokenring_ctx_t *ctx,
    ngx_chain_t *in);
static void ngx_http_tokenring_body_charge(ngx_http_tokenring_ctx_t *ctx,
    size_t size);
static ngx_uint_t ngx_http_tokenring_may_retry(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_reset(ngx_http_tokenring_ctx_t *ctx);


#define NGX_HTTP_TOKENRING_KEPT  4096


/* bytes of bodies that this worker has gathered whole */

static size_t  ngx_http_tokenring_body_bytes;


/* copies what was read, if it could be sent again */

ngx_int_t
ngx_http_tokenring_body_keep(ngx_http_tokenring_ctx_t *ctx, ngx_chain_t *in)
{
    size_t       size, n;
    u_char      *p;
    ngx_buf_t   *b;
    ngx_uint_t   gathering;

    if (ctx->lost_body) {
        return NGX_OK;
    }

    if (ctx->routed && ngx_http_tokenring_body_full(ctx, in)) {
        return NGX_DECLINED;
    }

    gathering = (ctx->state == NGX_HTTP_TOKENRING_GATHER);

    if (!gathering && ctx->group->conns.nelts < 2
        && ctx->conf->migrate == 0)
    {
        ngx_http_tokenring_body_forget(ctx);
        return NGX_OK;
    }

    for ( /* void */ ; in; in = in->next) {
        size = in->buf->last - in->buf->pos;

        if (!gathering
            && ctx->kept_size + size > ctx->conf->retry_buffer)
        {
            ngx_http_tokenring_body_forget(ctx);
            return NGX_OK;
        }

        ctx->kept_size += size;

        for (p = in->buf->pos; size; p += n, size -= n) {
            b = ngx_http_tokenring_body_room(ctx, size);
            if (b == NULL) {
                return NGX_ERROR;
            }

            n = ngx_min(size, (size_t) (b->end - b->last));
            b->last = ngx_cpymem(b->last, p, n);
        }
    }

    return NGX_OK;
}


/* the last buffer, or a new one, as large as the announced rest if possible */

static ngx_buf_t *
ngx_http_tokenring_body_room(ngx_http_tokenring_ctx_t *ctx, size_t size)
{
    ngx_buf_t    *b;
    ngx_pool_t   *pool;
    ngx_chain_t  *cl;

    if (ctx->kept == NULL) {
        ctx->last_kept = &ctx->kept;

    } else {
        b = (*ctx->last_kept)->buf;

        if (b->last < b->end) {
            return b;
        }

        ctx->last_kept = &(*ctx->last_kept)->next;
    }

    pool = ctx->request->pool;

    cl = ngx_alloc_chain_link(pool);
    if (cl == NULL) {
        return NULL;
    }

    size = ngx_http_tokenring_body_next(ctx, size);

    cl->buf = ngx_create_temp_buf(pool, size);
    cl->next = NULL;

    if (cl->buf == NULL) {
        return NULL;
    }

    *ctx->last_kept = cl;

    if (ctx->routed) {
        ngx_http_tokenring_body_charge(ctx, size);
    }

    return cl->buf;
}


/* how large the buffer for the next `size` bytes is */

static size_t
ngx_http_tokenring_body_next(ngx_http_tokenring_ctx_t *ctx, size_t size)
{
    off_t                rest, most;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (r->headers_in.chunked) {
        return ngx_max(size, NGX_HTTP_TOKENRING_KEPT);
    }

    /* kept_size includes these bytes already */
    rest = r->headers_in.content_length_n - (off_t) ctx->kept_size
           + (off_t) size;

    if (ctx->state != NGX_HTTP_TOKENRING_GATHER) {
        most = (off_t) ctx->conf->retry_buffer;

    } else {
        /* of all that is gathered, no more than has come already */
        most = (off_t) ngx_http_tokenring_body_held(ctx);
        most = ngx_max(most, (off_t) ctx->kept_size);
    }

    rest = ngx_min(rest, most);

    return ngx_max(size, (size_t) ngx_max(rest, 0));
}


/* the body will not be sent again */

void
ngx_http_tokenring_body_forget(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_chain_t  *cl;

    ctx->lost_body = 1;

    for (cl = ctx->kept; cl; cl = cl->next) {
        /* small ones are a part of the pool and stay */
        (void) ngx_pfree(ctx->request->pool, cl->buf->start);
    }

    ctx->kept = NULL;
    ctx->kept_size = 0;

    ngx_http_tokenring_body_uncharge(ctx);
}


/*
 * Bodies that are gathered whole, to read what they ask for: together they take
 * no more memory than tokenring_body_memory.  For one that does not fit, those
 * that come the slowest end.
 */

static ngx_uint_t
ngx_http_tokenring_body_full(ngx_http_tokenring_ctx_t *ctx, ngx_chain_t *in)
{
    size_t       size, most;
    ngx_buf_t   *b;
    ngx_uint_t   n;

    for (size = 0; in; in = in->next) {
        size += in->buf->last - in->buf->pos;
    }

    if (ctx->kept) {
        /* the rest of its last buffer was counted with it */
        b = (*ctx->last_kept)->buf;
        size -= ngx_min(size, (size_t) (b->end - b->last));
    }

    most = ctx->conf->body_memory;

    for (n = 0; ngx_http_tokenring_body_bytes + size > most; n++) {

        if (ctx->charged + size > most
            || n == TR_SHED_MOST
            || ngx_http_tokenring_upload_yield(ctx) != NGX_OK)
        {
            return 1;
        }
    }

    return 0;
}


static void
ngx_http_tokenring_body_charge(ngx_http_tokenring_ctx_t *ctx, size_t size)
{
    ctx->charged += size;
    ngx_http_tokenring_body_bytes += size;
}


void
ngx_http_tokenring_body_uncharge(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_body_bytes -= ctx->charged;
    ctx->charged = 0;
}


/* everything read so far is to be sent: our own positions, the kept bytes */

ngx_int_t
ngx_http_tokenring_body_rewind(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl, *in;

    for (in = ctx->kept; in; in = in->next) {

        b = ngx_alloc_buf(ctx->request->pool);
        if (b == NULL) {
            return NGX_ERROR;
        }

        cl = ngx_alloc_chain_link(ctx->request->pool);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        *b = *in->buf;

        cl->buf = b;
        cl->next = NULL;

        *ctx->last_body = cl;
        ctx->last_body = &cl->next;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_tokenring_may_retry(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t  i;

    if (ctx->gone || ctx->conn || ctx->lost_body || ctx->follow) {
        return 0;
    }

    if (ctx->before == NGX_HTTP_TOKENRING_READ) {
        /* the body is still on its way: there is nothing to send again */
        return 0;
    }

    if (ctx->resumable && ctx->request->header_sent) {
        /* the client knows the id, and output is stored under it */
        return 0;
    }

    for (i = 0; i < ctx->nchoices; i++) {
        if (ctx->choices[i].begun) {
            return 0;
        }
    }

    switch (ctx->error) {

    case TR_ERR_CLOSED:
    case TR_ERR_LOST:
        /* once, or as often as it might move if it had begun */
        return !ctx->retried || ngx_http_tokenring_move_left(ctx);

    case TR_ERR_QUEUE_FULL:
    case TR_ERR_DRAINING:
    case TR_ERR_MOVED:
        /* only if an engine said so, not if none was found */
        return ctx->body_sent != NGX_HTTP_TOKENRING_NOTHING;

    default:
        return 0;
    }
}


/*
 * A request whose error was not sent yet.  NGX_OK: it goes on elsewhere, or
 * has ended; NGX_DECLINED: no engine takes it, the error stands.
 */

ngx_int_t
ngx_http_tokenring_retry(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t    rc;
    ngx_uint_t   retry_after;
    tr_status_t  error;

    if (!ngx_http_tokenring_may_retry(ctx)) {
        return NGX_DECLINED;
    }

    error = ctx->error;
    retry_after = ctx->retry_after;

    /* from the beginning: any engine will do */
    ctx->moving = 0;

    if (error != TR_ERR_QUEUE_FULL && ctx->conf->migrate && !ctx->anew) {
        /* as those that had begun, it waits where none is there just now */
        ctx->anew = 1;
        ctx->move_deadline = ngx_current_msec + ctx->conf->migrate_timeout;

        if (error == TR_ERR_CLOSED) {
            ctx->tried = 0;
        }
    }

    rc = ngx_http_tokenring_admit(ctx);

    if (rc == NGX_DECLINED) {
        ctx->retry_after = retry_after;
        return NGX_DECLINED;
    }

    if (rc == NGX_AGAIN && ctx->anew) {
        /* also for the one that it had, when that has started again */
        ctx->tried = 0;
    }

    ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                  "tokenring: sent again to another engine, request=%V "
                  "status=%s", &ctx->request_id, tr_status_info(error).name);

    ngx_http_tokenring_count(retries);

    if (ngx_http_tokenring_died(error)) {
        ctx->moves += ctx->retried;
        ctx->retried = 1;
    }

    ngx_http_tokenring_reset(ctx);

    if (rc == NGX_AGAIN) {
        return NGX_OK;
    }

    (void) ngx_http_tokenring_body_again(ctx);

    return NGX_OK;
}


/* a kept body has an engine, or was refused; may end the request */

void
ngx_http_tokenring_body_resend(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->conn) {
        (void) ngx_http_tokenring_body_again(ctx);

    } else {
        ngx_http_tokenring_flush(ctx);
    }
}


/*
 * As it was before it was sent.  What ACCEPTED said about the form of the
 * response stays: a keep-alive comment may have begun the stream.
 */

static void
ngx_http_tokenring_reset(ngx_http_tokenring_ctx_t *ctx)
{
    u_char  *p;

    ngx_http_tokenring_move_forget(ctx);
    ngx_http_tokenring_choices_free(ctx);

    ctx->moving = 0;
    ctx->halted = 0;
    ctx->replay = NULL;
    ctx->result = NULL;
    ctx->choices = NULL;
    ctx->nchoices = 0;
    ctx->items = 0;
    ctx->left = 0;
    ctx->pending = 0;

    ngx_http_tokenring_text_reset(&ctx->head);

    ctx->first_us = 0;
    ctx->last_us = 0;
    ctx->prompt_tokens = 0;
    ctx->completion_tokens = 0;
    ctx->reason = 0;
    ngx_memzero(&ctx->totals, sizeof(tr_wire_finish_t));

    ctx->error = TR_OK;
    ctx->refused = 0;
    ctx->unserved = 0;
    ctx->retry_after = 0;
    ctx->param.len = 0;
    ctx->message.len = 0;

    ctx->number = 0;
    ctx->late_number = 0;
    ctx->stored = 0;
    ctx->after = 0;
    ctx->error_number = 0;
    ngx_http_tokenring_text_free(&ctx->queue);
    ngx_http_tokenring_text_free(&ctx->repeated);

    ctx->body_sent = NGX_HTTP_TOKENRING_NOTHING;
    ctx->spoken = 0;
    ctx->paused = 0;
    ctx->cut = 0;

    if (ctx->request->header_sent) {
        /* a comment has begun the response, whose headers have the id */
        return;
    }

    p = ngx_pnalloc(ctx->request->pool, TR_COMPLETION_LEN);

    if (p) {
        (void) ngx_http_tokenring_name_completion(ctx, p);
    }
}
