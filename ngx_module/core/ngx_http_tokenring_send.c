/*
 * From what is pending to the client.
 *
 * All streams of a worker share one output buffer.  It is filled (_openai.c),
 * passed to the output filters with the flush flag, and reused once it is sent:
 * so it stays in the CPU cache for the next stream.  A slow client keeps the
 * buffer until it is sent, and the next stream allocates another; what arrives
 * for the slow client meanwhile stays pending, in the form in which it came,
 * and the engine is asked to pause before that becomes too much.
 *
 * Nothing is sent before the first token, so that an error until then gets its
 * own HTTP status; the exception is a keep-alive comment that is due.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_render.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_slot.h"
#include "ngx_http_tokenring_stream.h"
#include "ngx_http_tokenring_follow.h"


#define NGX_HTTP_TOKENRING_KEPT   1024
#define NGX_HTTP_TOKENRING_LINKS  8

/* bytes of the shared output buffer, between streams */
#define NGX_HTTP_TOKENRING_SPARE_MAX  (256 * 1024)


static ngx_uint_t ngx_http_tokenring_tells_failure(
    ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_stream(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_stream_chunks(
    ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_stream_out(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t last);
static void ngx_http_tokenring_whole(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_out_take(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_out_return(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_output(ngx_http_tokenring_ctx_t *ctx);
static u_char *ngx_http_tokenring_together(ngx_http_request_t *r);
static ngx_int_t ngx_http_tokenring_stream_header(
    ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_begin(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_block(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_resume(ngx_http_tokenring_ctx_t *ctx);


/* the shared output buffer, while no stream uses it */

static ngx_http_tokenring_text_t  ngx_http_tokenring_spare;


/* the request may have ended when this returns */

void
ngx_http_tokenring_flush(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (ctx->state == NGX_HTTP_TOKENRING_DONE) {
        return;
    }

    if (ctx->gone) {
        if (ctx->state == NGX_HTTP_TOKENRING_OVER || ctx->conn == NULL) {
            ngx_http_tokenring_finalize(ctx, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        }

        return;
    }

    if (ctx->error) {
        rc = ngx_http_tokenring_move(ctx);

        if (rc == NGX_OK && ctx->stream) {
            /* what the lost engine has told goes out meanwhile */
            ngx_http_tokenring_stream(ctx);
        }

        if (rc != NGX_DECLINED) {
            return;
        }
    }

    if (ctx->error && ngx_http_tokenring_retry(ctx) == NGX_OK) {
        return;
    }

    if (ctx->state == NGX_HTTP_TOKENRING_OVER) {
        ngx_http_tokenring_seat_leave(ctx);
    }

    if (ctx->error && !ctx->spoken && !ctx->request->header_sent
        && !ngx_http_tokenring_tells_failure(ctx))
    {
        ngx_http_tokenring_finalize(ctx,
                                    ngx_http_tokenring_send_failure(ctx));
        return;
    }

    if (ctx->stream) {
        ngx_http_tokenring_stream(ctx);
        return;
    }

    if (ctx->state == NGX_HTTP_TOKENRING_OVER) {
        ngx_http_tokenring_whole(ctx);
        return;
    }

    if (ctx->follow) {
        ngx_http_tokenring_follow_more(ctx);
    }
}


/* a response that is kept and failed is an object that says so */

static ngx_uint_t
ngx_http_tokenring_tells_failure(ngx_http_tokenring_ctx_t *ctx)
{
    return ctx->reread && ctx->choices
           && (ctx->error_number || ctx->error == TR_ERR_CLOSED);
}


void
ngx_http_tokenring_finalize(ngx_http_tokenring_ctx_t *ctx, ngx_int_t rc)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring request: finalize, rc:%i", rc);

    ngx_http_tokenring_cleanup(ctx);

    if (rc == NGX_HTTP_CLIENT_CLOSED_REQUEST) {
        /* for the log: the client will not see it */
        r->headers_out.status = NGX_HTTP_CLIENT_CLOSED_REQUEST;
    }

    ngx_http_finalize_request(r, rc);
}


static void
ngx_http_tokenring_stream(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (ctx->detach && !ctx->request->header_sent
        && ctx->state < NGX_HTTP_TOKENRING_OVER
        && ngx_http_tokenring_begin(ctx) != NGX_OK)
    {
        ngx_http_tokenring_finalize(ctx, NGX_ERROR);
        return;
    }

    while (!ctx->blocked) {

        rc = ngx_http_tokenring_stream_chunks(ctx);

        if (rc == NGX_DONE) {
            return;
        }

        if (rc == NGX_DECLINED) {
            break;
        }
    }

    ngx_http_tokenring_resume(ctx);
}


/*
 * As much as the output buffer takes.  NGX_DECLINED: there is nothing, or the
 * client is slow; NGX_DONE: the request may be over.
 */

static ngx_int_t
ngx_http_tokenring_stream_chunks(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_uint_t           last;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_tokenring_out_take(ctx);

    rc = ngx_http_tokenring_render_chunks(ctx);

    if (rc == NGX_ERROR) {
        ngx_http_tokenring_finalize(ctx, NGX_ERROR);
        return NGX_DONE;
    }

    last = (rc == NGX_DONE);

    if (rc == 0) {
        ngx_http_tokenring_out_return(ctx);
        return NGX_DECLINED;
    }

    if (!r->header_sent) {
        rc = ngx_http_tokenring_stream_header(ctx);

        if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
            ngx_http_tokenring_finalize(ctx, rc);
            return NGX_DONE;
        }
    }

    rc = ngx_http_tokenring_stream_out(ctx, last);

    if (last) {
        ngx_http_tokenring_finalize(ctx, rc);
        return NGX_DONE;
    }

    if (rc == NGX_ERROR) {
        ngx_http_tokenring_hang_up(ctx);
        return NGX_DONE;
    }

    if (ngx_http_tokenring_stream_slow(r, &ctx->buf, rc)) {
        if (ngx_http_tokenring_block(ctx) != NGX_OK) {
            ngx_http_tokenring_finalize(ctx, NGX_ERROR);
            return NGX_DONE;
        }

        return NGX_DECLINED;
    }

    ngx_http_tokenring_out_return(ctx);

    return NGX_OK;
}


/* what was rendered, to the client */

static ngx_int_t
ngx_http_tokenring_stream_out(ngx_http_tokenring_ctx_t *ctx, ngx_uint_t last)
{
    ngx_int_t   rc;
    ngx_buf_t  *b;

    b = &ctx->buf;

    ngx_http_tokenring_stream_buf(b, &ctx->out, last);

    ctx->link.buf = b;
    ctx->link.next = NULL;
    ctx->sent = ngx_current_msec;

    rc = ngx_http_tokenring_output(ctx);

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring send: bytes:%uz last:%ui rc:%i left:%O",
                   ngx_http_tokenring_text_len(&ctx->out), last, rc,
                   ngx_buf_size(b));

    return rc;
}


static void
ngx_http_tokenring_out_take(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->out.start == NULL) {
        ctx->out = ngx_http_tokenring_spare;
        ngx_memzero(&ngx_http_tokenring_spare,
                    sizeof(ngx_http_tokenring_text_t));
    }

    ngx_http_tokenring_text_reset(&ctx->out);
}


/* only when no filter refers to it any more; what one large answer needed is
 * not kept for ever */

static void
ngx_http_tokenring_out_return(ngx_http_tokenring_ctx_t *ctx)
{
    if (ngx_http_tokenring_spare.start
        || (size_t) (ctx->out.end - ctx->out.start)
           > NGX_HTTP_TOKENRING_SPARE_MAX)
    {
        ngx_http_tokenring_text_free(&ctx->out);
        return;
    }

    ngx_http_tokenring_spare = ctx->out;
    ngx_memzero(&ctx->out, sizeof(ngx_http_tokenring_text_t));
}


/*
 * With the first event, the filters allocate from the pool what they reuse for
 * all others: remember where that is, to prefetch it.
 */

static ngx_int_t
ngx_http_tokenring_output(ngx_http_tokenring_ctx_t *ctx)
{
    u_char              *from, *to;
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (ctx->kept_by_filters) {
        return ngx_http_output_filter(r, &ctx->link);
    }

    from = ngx_http_tokenring_together(r);
    if (from == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_output_filter(r, &ctx->link);

    to = ngx_pnalloc(r->pool, 1);
    if (to == NULL) {
        return NGX_ERROR;
    }

    ctx->kept_by_filters = from;

    /* unless the pool had to grow */

    if (to > from && to - from <= NGX_HTTP_TOKENRING_KEPT) {
        ctx->kept_by_filters_size = to - from;
    }

    return rc;
}


/*
 * Makes the filters allocate in one place: in one block of the pool, and with
 * new chain links instead of the scattered ones that the request's headers and
 * body left behind.  Returns where that begins.
 */

static u_char *
ngx_http_tokenring_together(ngx_http_request_t *r)
{
    size_t        left;
    ngx_uint_t    i;
    ngx_pool_t   *block;
    ngx_chain_t  *links;

    block = r->pool->current;
    left = block->d.end - block->d.last;

    if (left < NGX_HTTP_TOKENRING_KEPT && ngx_pnalloc(r->pool, left) == NULL) {
        return NULL;
    }

    links = ngx_palloc(r->pool,
                       NGX_HTTP_TOKENRING_LINKS * sizeof(ngx_chain_t));
    if (links == NULL) {
        return NULL;
    }

    for (i = 0; i < NGX_HTTP_TOKENRING_LINKS; i++) {
        ngx_free_chain(r->pool, &links[i]);
    }

    return (u_char *) links;
}


static ngx_int_t
ngx_http_tokenring_stream_header(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_connection_t          *c;
    ngx_http_request_t        *r;
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_str_t  no_cache = ngx_string("no-cache");

    r = ctx->request;
    c = r->connection;

    if (ngx_http_tokenring_stream_headers(r, &no_cache) != NGX_OK
        || ngx_http_tokenring_add_ids(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* the first request on a connection has no TCP_NODELAY yet */

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (r->http_version < NGX_HTTP_VERSION_20 && clcf->tcp_nodelay
        && ngx_tcp_nodelay(c) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_tokenring_socket_take(c);

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, c->log, 0,
                   "tokenring send: head of the stream");

    return ngx_http_send_header(r);
}


/* a client that may leave needs the id before the first token */

static ngx_int_t
ngx_http_tokenring_begin(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    rc = ngx_http_tokenring_stream_header(ctx);

    if (rc == NGX_ERROR || rc > NGX_OK) {
        return NGX_ERROR;
    }

    rc = ngx_http_send_special(r, NGX_HTTP_FLUSH);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    return (rc == NGX_AGAIN || r->buffered) ? ngx_http_tokenring_block(ctx)
                                            : NGX_OK;
}


/* wait until the client takes more */

static ngx_int_t
ngx_http_tokenring_block(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring send: the client is slow, pending:%uz",
                   ctx->pending);

    ctx->blocked = 1;

    return ngx_http_tokenring_stream_block(ctx->request);
}


static void
ngx_http_tokenring_resume(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->paused && ctx->pending <= ctx->conf->buffer_size / 2) {
        ctx->paused = 0;
        ctx->deadline = ngx_current_msec + ctx->conf->idle_timeout;
        ngx_http_tokenring_control(ctx, 0);
    }

    if (ctx->follow) {
        ngx_http_tokenring_follow_more(ctx);
    }
}


void
ngx_http_tokenring_write_handler(ngx_http_request_t *r)
{
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    if (ctx == NULL) {
        /* an internal redirect after the end of our request */
        return;
    }

    switch (ngx_http_tokenring_stream_writable(r, &ctx->buf, ctx->blocked)) {

    case NGX_OK:
        ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                       "tokenring send: the client takes more, pending:%uz",
                       ctx->pending);

        ctx->blocked = 0;
        ngx_http_tokenring_flush(ctx);
        return;

    case NGX_AGAIN:
        return;

    case NGX_DECLINED:
        ngx_http_tokenring_hang_up(ctx);
        return;

    default: /* NGX_ERROR */
        ngx_http_tokenring_finalize(ctx, NGX_ERROR);
        return;
    }
}


static void
ngx_http_tokenring_whole(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (ngx_http_tokenring_render_whole(ctx) != NGX_OK
        || ngx_http_tokenring_add_ids(ctx) != NGX_OK)
    {
        ngx_http_tokenring_finalize(ctx, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    rc = ngx_http_tokenring_send_body(r, NGX_HTTP_OK, "application/json",
                                      &ctx->out);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring send: whole answer, bytes:%uz rc:%i",
                   ngx_http_tokenring_text_len(&ctx->out), rc);

    ngx_http_tokenring_finalize(ctx, rc);
}


/* a response in one piece; the text stays the caller's and must outlive r */

ngx_int_t
ngx_http_tokenring_send_body(ngx_http_request_t *r, ngx_uint_t status,
    const char *type, ngx_http_tokenring_text_t *t)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    r->headers_out.status = status;
    r->headers_out.content_length_n = ngx_http_tokenring_text_len(t);
    r->headers_out.content_type.data = (u_char *) type;
    r->headers_out.content_type.len = ngx_strlen(type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    /* an answer that was made is given, whatever If-Match says */
    r->disable_not_modified = 1;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->start = t->start;
    b->pos = t->pos;
    b->last = t->last;
    b->end = t->end;
    b->temporary = ngx_http_tokenring_text_len(t) ? 1 : 0;
    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


ngx_int_t
ngx_http_tokenring_add_header(ngx_http_request_t *r, const char *key,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key.data = (u_char *) key;
    h->key.len = ngx_strlen(key);
    h->value = *value;
    h->lowcase_key = NULL;

#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    return NGX_OK;
}


/* the request's id, also by the name that Anthropic gives it, what is left of
 * its tenant's budgets, and the id under which it is found in Redis */

ngx_int_t
ngx_http_tokenring_add_ids(ngx_http_tokenring_ctx_t *ctx)
{
    const ngx_http_tokenring_endpoint_t  *endpoint;

    if (ngx_http_tokenring_add_header(ctx->request, "X-Request-Id",
                                      &ctx->request_id)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    endpoint = ngx_http_tokenring_endpoint(ctx->endpoint);

    if (endpoint && endpoint->error == ngx_http_tokenring_messages_error
        && ngx_http_tokenring_add_header(ctx->request, "Request-Id",
                                         &ctx->request_id)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_limit_headers(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    if ((ctx->body_sent == NGX_HTTP_TOKENRING_NOTHING && !ctx->follow)
        || (ctx->conf->redis == NULL && !ctx->resumable))
    {
        return NGX_OK;
    }

    return ngx_http_tokenring_add_header(ctx->request, "X-Tokenring-Id",
                                         &ctx->completion);
}
