/*
 * The request body, into the request ring.
 *
 * It is sent in SUBMIT records, in parts as large as the ring allows.  When the
 * ring is full, the request waits in the connection's queue and reads nothing
 * more from its client: TCP (or the HTTP/2 window) holds the client back.  The
 * engine rings when there is space.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_resumable.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_slot.h"


#define NGX_HTTP_TOKENRING_PIECES  16


static void ngx_http_tokenring_body_wait(ngx_http_tokenring_conn_t *conn);
static ngx_int_t ngx_http_tokenring_body_put(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_body_starve(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_body_head(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_submit_t *head);
static tr_status_t ngx_http_tokenring_body_part(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t *last);
static ngx_chain_t *ngx_http_tokenring_body_pieces(
    ngx_http_tokenring_ctx_t *ctx, tr_ring_piece_t *pieces, unsigned *n,
    size_t *room);
static void ngx_http_tokenring_body_used(ngx_http_tokenring_ctx_t *ctx,
    size_t n);
static ngx_int_t ngx_http_tokenring_body_load(ngx_http_tokenring_ctx_t *ctx);


/* sends as much as possible now; NGX_DONE: the request has ended */

ngx_int_t
ngx_http_tokenring_body_send(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t  rc;

    for ( ;; ) {

        if (ctx->conn == NULL) {
            /* the engine was lost or refused it: an error follows */
            return NGX_OK;
        }

        if (!ctx->request->reading_body
            && ngx_http_tokenring_suspect_known(ctx))
        {
            ngx_http_tokenring_fail(ctx, TR_ERR_REFUSED,
                                    NGX_HTTP_TOKENRING_REFUSED);
            ngx_http_tokenring_slot_abandon(ctx);
            ngx_http_tokenring_flush(ctx);
            return NGX_DONE;
        }

        rc = ngx_http_tokenring_body_put(ctx);

        if (rc == NGX_DONE) {
            ctx->body_sent = NGX_HTTP_TOKENRING_WHOLE;
            ngx_http_tokenring_slot_whole(ctx);

            if (ctx->routed && ctx->lost_body) {
                /* it was kept to be read, and goes nowhere else */
                ngx_http_tokenring_body_forget(ctx);
            }

            ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_QUEUED);
            ngx_http_tokenring_watch(ctx);
            return NGX_OK;
        }

        if (rc == NGX_DECLINED) {
            ngx_http_tokenring_body_fail(ctx, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return NGX_DONE;
        }

        if (rc != NGX_OK) {
            /* NGX_AGAIN: it waits for space; NGX_ERROR: the channel closes */
            return NGX_OK;
        }

        rc = ngx_http_tokenring_body_more(ctx);

        if (rc != NGX_OK) {
            return (rc == NGX_ERROR) ? NGX_DONE : NGX_OK;
        }

        ngx_http_tokenring_body_take(ctx);
    }
}


/* the ring may have space again: first come, first served */

void
ngx_http_tokenring_body_feed(ngx_http_tokenring_conn_t *conn)
{
    ngx_queue_t               *q;
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *ctx;

    while (!ngx_queue_empty(&conn->starving) && !conn->broken
           && tr_ring_space(&conn->requests)
              >= tr_ring_max_payload(conn->map.request_capacity))
    {
        q = ngx_queue_head(&conn->starving);
        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, wait);
        c = ctx->request->connection;

        ngx_http_set_log_request(c->log, ctx->request);

        ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_SEND);

        /* nothing was read: its rate is that from now on */
        tr_pace_start(&ctx->pace, ngx_current_msec);

        (void) ngx_http_tokenring_body_send(ctx);

        ngx_http_run_posted_requests(c);
    }

    if (!ngx_queue_empty(&conn->starving) && !conn->broken) {
        ngx_http_tokenring_body_wait(conn);
    }
}


/* asks the engine to ring when there is space, unless there is by now */

static void
ngx_http_tokenring_body_wait(ngx_http_tokenring_conn_t *conn)
{
    tr_status_t  rc;

    rc = tr_ring_wait_space(&conn->requests,
                            tr_ring_max_payload(conn->map.request_capacity));

    if (rc == TR_OK) {
        ngx_post_event(conn->doorbell->read, &ngx_posted_next_events);

    } else if (rc != TR_AGAIN) {
        ngx_http_tokenring_break(conn, "its request ring's index is "
                                       "out of range");
    }
}


/*
 * NGX_OK: all that we have is in the ring; NGX_DONE: and that was the end;
 * NGX_AGAIN: no space, the request waits for it; NGX_DECLINED: a file cannot
 * be read.
 */

static ngx_int_t
ngx_http_tokenring_body_put(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t                   rc;
    ngx_uint_t                  last;
    tr_status_t                 put;
    ngx_http_tokenring_conn_t  *conn;

    conn = ctx->conn;
    last = 0;
    rc = NGX_OK;

    while (ctx->body || !ctx->request->reading_body) {

        if (ctx->body && ctx->body->buf->in_file
            && ngx_http_tokenring_body_load(ctx) != NGX_OK)
        {
            rc = NGX_DECLINED;
            break;
        }

        put = ngx_http_tokenring_body_part(ctx, &last);

        if (put == TR_OK) {
            ctx->body_sent = NGX_HTTP_TOKENRING_PART;

            if (last) {
                rc = NGX_DONE;
                break;
            }

            continue;
        }

        if (put != TR_AGAIN) {
            ngx_http_tokenring_break(conn, "its request ring's index is "
                                           "out of range");
            rc = NGX_ERROR;
            break;
        }

        rc = NGX_AGAIN;
        break;
    }

    /* publish before waiting, or both sides would wait for each other */

    if (tr_ring_publish(&conn->requests)) {
        ngx_http_tokenring_ring(conn);
    }

    if (rc == NGX_AGAIN) {
        ngx_http_tokenring_body_starve(ctx);
    }

    return rc;
}


/* the ring is full */

static void
ngx_http_tokenring_body_starve(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_event_t  *rev;

    ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_STARVED);

    rev = ctx->request->connection->read;

    if (rev->timer_set) {
        /* client_body_timeout: the client is not to blame */
        ngx_del_timer(rev);
    }

    ngx_http_tokenring_body_wait(ctx->conn);
}


/* what stands in front of the body */

static void
ngx_http_tokenring_body_head(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_submit_t *head)
{
    u_char  tenant[NGX_HTTP_TOKENRING_TENANT];

    ngx_memzero(head, sizeof(tr_wire_submit_t));

    head->endpoint = (uint16_t) ctx->endpoint;
    head->request_id_len = (uint32_t) ctx->request_id.len;
    head->body_len = ngx_http_tokenring_body_len(ctx);
    head->model_len = (uint32_t) ctx->asked.len;
    head->received_us = ctx->start_us;
    head->charges = (uint8_t) ngx_min(ctx->charges, 255);

    if (ctx->moving) {
        head->replay_len = (uint32_t) ngx_buf_size(ctx->replay);
    }

    if (ctx->conf->migrate
        && (ctx->conn->features & TR_FEATURE_IDS)
        && (ctx->conn->features & TR_FEATURE_REPLAY))
    {
        head->flags |= TR_SUBMIT_IDS;
        head->migrate_s =
            (uint16_t) ngx_min(ctx->conf->migrate_timeout / 1000 + 1, 65535);
        ctx->with_ids = 1;
    }

    ngx_memcpy(head->request_id, ctx->request_id.data, ctx->request_id.len);
    ngx_memcpy(head->completion, ctx->completion.data, TR_COMPLETION_LEN);

    if (ngx_http_tokenring_meter(ctx)) {
        head->flags |= TR_SUBMIT_METERED;
    }

    ngx_http_tokenring_resumable_submit(ctx, head);
    ngx_http_tokenring_tenant(ctx, tenant);
    ngx_memcpy(&head->tenant, tenant, sizeof(head->tenant));

    if (ctx->use) {
        head->share = (uint16_t) ctx->use->plan->share;
        head->choices = (uint16_t) ctx->use->plan->choices;
        head->tier = (uint8_t) ctx->use->plan->tier;
    }

    ngx_http_tokenring_cache_key(ctx->request, head->cache_key);

    if (ctx->endpoint == TR_ENDPOINT_RESPONSES) {
        ngx_http_tokenring_holder(ctx->request, head->holder);
    }
}


/* one record of what has arrived */

static tr_status_t
ngx_http_tokenring_body_part(ngx_http_tokenring_ctx_t *ctx, ngx_uint_t *last)
{
    size_t            room, body;
    uint16_t          flags;
    unsigned          n;
    ngx_chain_t      *rest;
    tr_status_t       rc;
    tr_ring_piece_t   pieces[NGX_HTTP_TOKENRING_PIECES];
    tr_wire_submit_t  head;

    n = 0;
    room = tr_ring_max_payload(ctx->conn->map.request_capacity);

    if (ctx->body_sent == NGX_HTTP_TOKENRING_NOTHING) {
        ngx_http_tokenring_body_head(ctx, &head);

        pieces[n].base = &head;
        pieces[n].len = sizeof(tr_wire_submit_t);
        room -= pieces[n++].len;
    }

    body = room;
    rest = ngx_http_tokenring_body_pieces(ctx, pieces, &n, &room);
    body -= room;

    *last = (rest == NULL && !ctx->request->reading_body);
    flags = *last ? 0 : TR_FLAG_MORE;

    rc = tr_ring_put(&ctx->conn->requests, TR_RECORD_SUBMIT, flags, ctx->id,
                     pieces, n);

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring body: into the ring, first:%d bytes:%uz "
                   "last:%ui rc:%d",
                   ctx->body_sent == NGX_HTTP_TOKENRING_NOTHING, body, *last,
                   rc);

    if (rc == TR_OK) {
        ngx_http_tokenring_body_used(ctx, body);

    } else {
        *last = 0;
    }

    return rc;
}


/* what has arrived, n pieces and `room` bytes at most; returns what is left */

static ngx_chain_t *
ngx_http_tokenring_body_pieces(ngx_http_tokenring_ctx_t *ctx,
    tr_ring_piece_t *pieces, unsigned *n, size_t *room)
{
    size_t        size;
    ngx_chain_t  *cl;

    for (cl = ctx->body;
         cl && !cl->buf->in_file && *room && *n < NGX_HTTP_TOKENRING_PIECES;
         cl = cl->next)
    {
        size = ngx_min((size_t) (cl->buf->last - cl->buf->pos), *room);

        pieces[*n].base = cl->buf->pos;
        pieces[(*n)++].len = size;

        *room -= size;

        if (size < (size_t) (cl->buf->last - cl->buf->pos)) {
            break;
        }
    }

    return cl;
}


static void
ngx_http_tokenring_body_used(ngx_http_tokenring_ctx_t *ctx, size_t n)
{
    size_t        size;
    ngx_chain_t  *cl;

    while (ctx->body && !ctx->body->buf->in_file) {
        cl = ctx->body;
        size = cl->buf->last - cl->buf->pos;

        if (size > n) {
            cl->buf->pos += n;
            return;
        }

        cl->buf->pos = cl->buf->last;
        n -= size;

        ctx->body = cl->next;
        ngx_free_chain(ctx->request->pool, cl);
    }

    if (ctx->body == NULL) {
        ctx->last_body = &ctx->body;
    }
}


/* the length that is announced to the engine, if it is known */

uint64_t
ngx_http_tokenring_body_len(ngx_http_tokenring_ctx_t *ctx)
{
    uint64_t             len;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (r->reading_body) {

        /* for a chunked body, content_length_n is what has arrived so far */

        return (r->headers_in.chunked || r->headers_in.content_length_n < 0)
               ? TR_BODY_UNKNOWN
               : (uint64_t) r->headers_in.content_length_n;
    }

    len = 0;

    for (cl = ctx->body; cl; cl = cl->next) {
        len += ngx_buf_size(cl->buf);
    }

    return len - ctx->ahead;
}


/* reads the next bytes of a file into a buffer in front of the rest */

static ngx_int_t
ngx_http_tokenring_body_load(ngx_http_tokenring_ctx_t *ctx)
{
    size_t                     size;
    ssize_t                    n;
    ngx_buf_t                 *b, *file;
    ngx_chain_t               *cl;
    ngx_http_request_t        *r;
    ngx_http_core_loc_conf_t  *clcf;

    r = ctx->request;
    file = ctx->body->buf;

    if (ctx->piece == NULL) {
        clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

        ctx->piece = ngx_create_temp_buf(r->pool,
                                         clcf->client_body_buffer_size);
        if (ctx->piece == NULL) {
            return NGX_ERROR;
        }
    }

    cl = ngx_alloc_chain_link(r->pool);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    b = ctx->piece;

    size = (size_t) ngx_min(file->file_last - file->file_pos,
                            b->end - b->start);

    n = ngx_read_file(file->file, b->start, size, file->file_pos);

    if (n != (ssize_t) size) {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                      "tokenring: the file of a request body ended early, "
                      "read=%z wanted=%uz file=%V", n, size,
                      &file->file->name);
        return NGX_ERROR;
    }

    file->file_pos += n;

    if (file->file_pos == file->file_last) {
        file->in_file = 0;
        file->pos = file->last;
    }

    b->pos = b->start;
    b->last = b->start + n;

    cl->buf = b;
    cl->next = ctx->body;
    ctx->body = cl;

    return NGX_OK;
}
