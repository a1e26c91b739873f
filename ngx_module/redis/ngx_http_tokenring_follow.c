/*
 * GET of /v1/requests/ID/stream: the stream of a request, repeated and
 * continued.
 *
 * The engine's records are in a Redis stream, many per entry.  They pass
 * through the same code that renders them when they come from a ring, in a ctx
 * without a connection, so that the bytes are the same.  The stream is read in
 * pages, the next one when the client has taken the last: a slow client costs a
 * page of memory, however long the answer is.
 *
 * A client that has read everything listens to the request's channel
 * (_stream_sub.c).  Once the subscription is confirmed, the stream is read once
 * more; a message then continues exactly where the stream ended, or is known
 * already, or shows that we must read again.  A client too slow for the channel
 * goes back to reading.
 *
 * GET of /v1/responses/ID is the same, for responses that are kept: whole, or
 * as a stream, whatever it was at first; its events have numbers of their own.
 *
 * Reading begins at the first record even if the client has seen some: which
 * choices have begun, and where, depends on them.  What the client has is not
 * sent again.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_follow.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_resumable.h"
#include "ngx_http_tokenring_send.h"

#include <tokenring/handshake.h>


static ngx_http_tokenring_ctx_t *ngx_http_tokenring_follow_ctx(
    ngx_http_request_t *r, ngx_str_t *id);
static ngx_int_t ngx_http_tokenring_follow_begin(
    ngx_http_tokenring_follow_t *f);
static ngx_int_t ngx_http_tokenring_follow_after(ngx_http_request_t *r,
    uint64_t *after);
static ngx_int_t ngx_http_tokenring_follow_start(
    ngx_http_tokenring_follow_t *f);
static ngx_int_t ngx_http_tokenring_follow_ask(ngx_http_tokenring_follow_t *f);
static void ngx_http_tokenring_follow_found(void *data, ngx_int_t rc);
static void ngx_http_tokenring_follow_page(void *data, redisReply *reply);
static void ngx_http_tokenring_follow_unread(ngx_http_tokenring_follow_t *f);
static ngx_int_t ngx_http_tokenring_follow_entry(
    ngx_http_tokenring_follow_t *f, redisReply *entry);
static ngx_int_t ngx_http_tokenring_follow_take(
    ngx_http_tokenring_follow_t *f, uint64_t last, ngx_str_t *records);
static void ngx_http_tokenring_follow_settle(ngx_http_tokenring_follow_t *f,
    ngx_uint_t entries);
static void ngx_http_tokenring_follow_bad(ngx_http_tokenring_follow_t *f);
static void ngx_http_tokenring_follow_flush(ngx_http_tokenring_follow_t *f);


/* entries of a page; an entry has about 50 ms of output */
#define NGX_HTTP_TOKENRING_PAGE  64

/* no ring carries a longer record */
#define NGX_HTTP_TOKENRING_RECORD_MAX  (TR_RING_MAX / 4)


typedef struct {
    uint32_t    length;
    uint16_t    type;
    uint16_t    reserved;
} ngx_http_tokenring_stored_head_t;


ngx_int_t
ngx_http_tokenring_follow(ngx_http_request_t *r, ngx_str_t *name)
{
    uint64_t                      after;
    ngx_int_t                     rc;
    ngx_str_t                     id;
    ngx_http_tokenring_ctx_t     *ctx;

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_tokenring_request_id(name, &id) != NGX_OK) {
        return ngx_http_tokenring_send_unknown(r);
    }

    if (ngx_http_tokenring_follow_after(r, &after) != NGX_OK) {
        return ngx_http_tokenring_send_error(r, TR_ERR_INVALID,
                   "Last-Event-ID (or ?after=) must be the id of an event, a "
                   "decimal number");
    }

    ctx = ngx_http_tokenring_follow_ctx(r, &id);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->after = after;
    ctx->resumable = 1;

    return ngx_http_tokenring_follow_begin(ctx->follow);
}


ngx_int_t
ngx_http_tokenring_follow_response(ngx_http_request_t *r, ngx_str_t *name)
{
    uint64_t                   after;
    ngx_int_t                  rc;
    ngx_str_t                  id, stream, arg;
    ngx_http_tokenring_ctx_t  *ctx;

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_tokenring_request_id(name, &id) != NGX_OK) {
        return ngx_http_tokenring_send_no_response(r);
    }

    if (ngx_http_arg(r, (u_char *) "stream", 6, &stream) != NGX_OK) {
        ngx_str_set(&stream, "false");
    }

    if (!(stream.len == 4 && ngx_strncmp(stream.data, "true", 4) == 0)
        && !(stream.len == 5 && ngx_strncmp(stream.data, "false", 5) == 0))
    {
        return ngx_http_tokenring_send_error(r, TR_ERR_INVALID,
                   "Invalid 'stream' in the URL. Expected true or false");
    }

    ctx = ngx_http_tokenring_follow_ctx(r, &id);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->reread = 1;
    ctx->restream = (stream.len == 4);
    ctx->follow->find.response = 1;

    if (ngx_http_arg(r, (u_char *) "starting_after", 14, &arg) == NGX_OK) {

        if (!ctx->restream || ngx_http_tokenring_decimal(&arg, &after) != NGX_OK
            || after == (uint64_t) -1)
        {
            ngx_http_tokenring_cleanup(ctx);
            return ngx_http_tokenring_send_error(r, TR_ERR_INVALID,
                       "'starting_after' in the URL must be the number of an "
                       "event, and needs stream=true");
        }

        ctx->skip = after + 1;
    }

    return ngx_http_tokenring_follow_begin(ctx->follow);
}


static ngx_http_tokenring_ctx_t *
ngx_http_tokenring_follow_ctx(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_http_tokenring_ctx_t     *ctx;
    ngx_http_tokenring_follow_t  *f;

    f = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_follow_t));
    if (f == NULL) {
        return NULL;
    }

    ctx = ngx_http_tokenring_create_ctx(r, 0); /* its record says it */
    if (ctx == NULL) {
        return NULL;
    }

    ctx->follow = f;
    ctx->completion = *id;

    f->ctx = ctx;
    f->redis = ctx->conf->redis;

    return ctx;
}


static ngx_int_t
ngx_http_tokenring_follow_begin(ngx_http_tokenring_follow_t *f)
{
    ngx_http_request_t  *r;

    r = f->ctx->request;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring follow: %V, after:%uL", &f->ctx->completion,
                   f->ctx->after);

    if (ngx_http_tokenring_follow_start(f) != NGX_OK) {
        ngx_http_tokenring_cleanup(f->ctx);
        return ngx_http_tokenring_send_away(r);
    }

    r->main->count++;

    return NGX_DONE;
}


/* the last event that the client has: in the header of browsers, or the URL */

static ngx_int_t
ngx_http_tokenring_follow_after(ngx_http_request_t *r, uint64_t *after)
{
    ngx_str_t  *value, arg;

    *after = 0;

    value = ngx_http_tokenring_header_in(r, "Last-Event-ID");

    if (value == NULL || value->len == 0) {

        if (ngx_http_arg(r, (u_char *) "after", 5, &arg) != NGX_OK) {
            return NGX_OK;
        }

        value = &arg;
    }

    return ngx_http_tokenring_decimal(value, after);
}


/* asks for the state and the first page at once: replies keep the order */

static ngx_int_t
ngx_http_tokenring_follow_start(ngx_http_tokenring_follow_t *f)
{
    ngx_http_request_t        *r;
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = f->ctx;
    r = ctx->request;

    f->output = ngx_http_tokenring_redis_key(f->redis, r->pool, "out",
                                             &ctx->completion);
    if (f->output.data == NULL) {
        return NGX_ERROR;
    }

    f->find.request = r;
    f->find.redis = f->redis;
    f->find.id = ctx->completion;
    f->find.handler = ngx_http_tokenring_follow_found;
    f->find.data = f;

    if (ngx_http_tokenring_find(&f->find) != NGX_OK
        || ngx_http_tokenring_follow_ask(f) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_QUEUED);
    ngx_http_tokenring_watch(ctx);

    return NGX_OK;
}


/* asks for a page of what follows our last record */

static ngx_int_t
ngx_http_tokenring_follow_ask(ngx_http_tokenring_follow_t *f)
{
    u_char     from[NGX_INT64_LEN + 4], count[NGX_INT_T_LEN];
    ngx_str_t  argv[6];

    ngx_str_set(&argv[0], "XRANGE");

    argv[1] = f->output;

    /* ids of entries are LAST-0, so LAST-1 is what follows */

    argv[2].data = from;
    argv[2].len = ngx_sprintf(from, "%uL-1", f->ctx->number) - from;

    ngx_str_set(&argv[3], "+");
    ngx_str_set(&argv[4], "COUNT");

    argv[5].data = count;
    argv[5].len = ngx_sprintf(count, "%d", NGX_HTTP_TOKENRING_PAGE) - count;

    f->epoch = ngx_http_tokenring_stream_sub_epoch(f);
    f->fresh = 0;

    f->reading = ngx_http_tokenring_redis_command(f->redis,
                                                ngx_http_tokenring_follow_page,
                                                f, 6, argv);
    if (f->reading == NULL) {
        f->more = 1;
        return NGX_ERROR;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, f->ctx->request->connection->log, 0,
                   "tokenring follow: read a page, after:%uL epoch:%ui",
                   f->ctx->number, f->epoch);

    f->more = 0;

    return NGX_OK;
}


static void
ngx_http_tokenring_follow_found(void *data, ngx_int_t rc)
{
    ngx_http_tokenring_follow_t *f = data;

    ngx_connection_t             *c;
    ngx_http_request_t           *r;
    ngx_http_tokenring_ctx_t     *ctx;
    ngx_http_tokenring_stored_t  *rec;

    ctx = f->ctx;
    rec = &f->find.rec;
    r = ctx->request;
    c = r->connection;

    if (rc == NGX_DECLINED) {
        rc = ctx->reread ? ngx_http_tokenring_send_no_response(r)
                         : ngx_http_tokenring_send_unknown(r);

    } else if (rc == NGX_ERROR) {
        rc = ngx_http_tokenring_send_away(r);

    } else if (!rec->resumable && !ctx->reread) {
        rc = ngx_http_tokenring_send_error(r, TR_ERR_NOT_FOUND,
                 "The output of this request was not stored: "
                 "tokenring_resumable was off");

    } else if (rec->wire < TR_STORED_VERSION_MIN
               || rec->wire > TR_STORED_VERSION)
    {
        rc = ngx_http_tokenring_send_error(r, TR_ERR_NO_REDIS,
                 "The output of this request has an incompatible version");

    } else if (rec->endpoint == 0) {
        rc = ngx_http_tokenring_send_error(r, TR_ERR_NO_REDIS,
                 "The output of this request is of an endpoint that this "
                 "gateway does not know");

    } else {
        f->allowed = 1;
        ctx->endpoint = rec->endpoint;

        /* also if the first page came early */
        ngx_http_tokenring_follow_more(ctx);
        return;
    }

    ngx_http_tokenring_finalize(ctx, rc);
    ngx_http_run_posted_requests(c);
}


static void
ngx_http_tokenring_follow_page(void *data, redisReply *reply)
{
    ngx_http_tokenring_follow_t *f = data;

    size_t                     i;
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = f->ctx;
    c = ctx->request->connection;

    f->reading = NULL;

    ngx_http_set_log_request(c->log, ctx->request);

    if (!f->allowed) {
        /* the owner is not known yet: read again when it is */
        f->more = 1;
        return;
    }

    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {

        if (reply) {
            ngx_http_tokenring_redis_complain(f->redis, reply);
        }

        ngx_http_tokenring_follow_unread(f);
        ngx_http_run_posted_requests(c);
        return;
    }

    if (reply->type != REDIS_REPLY_ARRAY) {
        ngx_http_tokenring_follow_bad(f);
        ngx_http_tokenring_follow_flush(f);
        return;
    }

    for (i = 0;
         i < reply->elements && ctx->state < NGX_HTTP_TOKENRING_OVER;
         i++)
    {
        if (ngx_http_tokenring_follow_entry(f, reply->element[i]) != NGX_OK) {
            ngx_http_tokenring_follow_bad(f);
            break;
        }
    }

    if (ctx->state < NGX_HTTP_TOKENRING_OVER) {
        ngx_http_tokenring_follow_settle(f, reply->elements);
    }

    ngx_http_tokenring_follow_flush(f);
}


/* no page: who has seen nothing is told, the others wait */

static void
ngx_http_tokenring_follow_unread(ngx_http_tokenring_follow_t *f)
{
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = f->ctx;

    if (ctx->number == 0) {
        ngx_http_tokenring_finalize(ctx,
                               ngx_http_tokenring_send_away(ctx->request));
        return;
    }

    /* the stream subscription notices when Redis is back */
    f->more = 1;

    if (ngx_http_tokenring_stream_sub_join(f) != NGX_OK) {
        ngx_http_tokenring_finalize(ctx, NGX_ERROR);
    }
}


/* {"LAST-0", {"r", records}} */

static ngx_int_t
ngx_http_tokenring_follow_entry(ngx_http_tokenring_follow_t *f,
    redisReply *entry)
{
    size_t       i;
    uint64_t     last;
    ngx_str_t    s, records;
    redisReply  *fields;

    if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2
        || ngx_http_tokenring_redis_string(entry->element[0], &s) != NGX_OK
        || s.len < 3 || ngx_strncmp(s.data + s.len - 2, "-0", 2) != 0)
    {
        return NGX_DECLINED;
    }

    s.len -= 2;

    if (ngx_http_tokenring_decimal(&s, &last) != NGX_OK) {
        return NGX_DECLINED;
    }

    fields = entry->element[1];

    if (fields->type != REDIS_REPLY_ARRAY) {
        return NGX_DECLINED;
    }

    for (i = 0; i + 1 < fields->elements; i += 2) {
        if (ngx_http_tokenring_redis_string(fields->element[i], &s) == NGX_OK
            && s.len == 1 && s.data[0] == 'r'
            && ngx_http_tokenring_redis_string(fields->element[i + 1],
                                               &records)
               == NGX_OK)
        {
            return ngx_http_tokenring_follow_take(f, last, &records);
        }
    }

    return NGX_DECLINED;
}


/*
 * Takes the records up to number last.  NGX_DECLINED: they are malformed, or
 * not those that come next.
 */

static ngx_int_t
ngx_http_tokenring_follow_take(ngx_http_tokenring_follow_t *f, uint64_t last,
    ngx_str_t *records)
{
    u_char                           *p;
    size_t                            left;
    tr_record_t                       rec;
    ngx_http_tokenring_ctx_t         *ctx;
    ngx_http_tokenring_stored_head_t  head;

    ctx = f->ctx;
    p = records->data;
    left = records->len;

    while (left) {

        if (left < sizeof(ngx_http_tokenring_stored_head_t)
            || ctx->state >= NGX_HTTP_TOKENRING_OVER)
        {
            return NGX_DECLINED;
        }

        ngx_memcpy(&head, p, sizeof(ngx_http_tokenring_stored_head_t));

        p += sizeof(ngx_http_tokenring_stored_head_t);
        left -= sizeof(ngx_http_tokenring_stored_head_t);

        if (head.length > left || head.length > NGX_HTTP_TOKENRING_RECORD_MAX
            || head.reserved)
        {
            return NGX_DECLINED;
        }

        ngx_memzero(&rec, sizeof(tr_record_t));

        rec.length = head.length;
        rec.type = head.type;

        if (ngx_http_tokenring_record(ctx, &rec, p) != NGX_OK) {
            return NGX_DECLINED;
        }

        p += head.length;
        left -= head.length;
    }

    return (ctx->number == last || ctx->error == TR_ERR_NOMEM) ? NGX_OK
                                                               : NGX_DECLINED;
}


/* a page was read and the answer is not over: what next? */

static void
ngx_http_tokenring_follow_settle(ngx_http_tokenring_follow_t *f,
    ngx_uint_t entries)
{
    ngx_uint_t                 epoch;
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = f->ctx;

    if (entries >= NGX_HTTP_TOKENRING_PAGE) {
        f->more = 1;
        return;
    }

    if (ctx->number == 0 && f->find.rec.final) {
        ngx_http_tokenring_fail(ctx, TR_ERR_NOT_FOUND,
                                "The output of this request has expired");
        return;
    }

    if (ngx_http_tokenring_stream_sub_join(f) != NGX_OK) {
        ngx_http_tokenring_fail(ctx, TR_ERR_NOMEM,
                                "The gateway ran out of memory");
        return;
    }

    epoch = ngx_http_tokenring_stream_sub_epoch(f);

    if (epoch == 0) {
        /* it will tell when the subscription is confirmed */
        return;
    }

    if (epoch == f->epoch && !f->fresh) {
        ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                       "tokenring follow: caught up, has:%uL", ctx->number);

        f->caught = 1;
        return;
    }

    f->more = 1;
}


/* the client has taken everything, or there is more */

void
ngx_http_tokenring_follow_more(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_follow_t  *f;

    f = ctx->follow;

    if (!f->more || f->reading || !f->allowed || ctx->blocked
        || ctx->state >= NGX_HTTP_TOKENRING_OVER
        || (ctx->stream && ctx->pending > ctx->conf->buffer_size / 2))
    {
        return;
    }

    if (ngx_http_tokenring_follow_ask(f) != NGX_OK) {
        /* the stream subscription notices when Redis is back */
        (void) ngx_http_tokenring_stream_sub_join(f);
    }
}


void
ngx_http_tokenring_follow_read(ngx_http_tokenring_follow_t *f)
{
    f->caught = 0;
    f->fresh = 1;
    f->more = 1;

    ngx_http_tokenring_follow_more(f->ctx);
}


void
ngx_http_tokenring_follow_records(ngx_http_tokenring_follow_t *f,
    uint64_t first, uint64_t last, ngx_str_t *records)
{
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = f->ctx;

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring follow: message %uL to %uL, has:%uL caught:%ud",
                   first, last, ctx->number, (u_int) f->caught);

    if (!f->caught) {
        f->fresh = 1;
        return;
    }

    if (last <= ctx->number) {
        return;
    }

    if (first != ctx->number + 1 || ctx->blocked
        || (ctx->stream && ctx->pending > ctx->conf->buffer_size / 2))
    {
        ngx_http_tokenring_follow_read(f);
        return;
    }

    ngx_http_set_log_request(ctx->request->connection->log, ctx->request);

    if (ngx_http_tokenring_follow_take(f, last, records) != NGX_OK) {
        ngx_http_tokenring_follow_bad(f);
    }

    ngx_http_tokenring_follow_flush(f);
}


void
ngx_http_tokenring_follow_fail(ngx_http_tokenring_follow_t *f,
    tr_status_t status, const char *message)
{
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = f->ctx;

    ngx_http_set_log_request(ctx->request->connection->log, ctx->request);

    ngx_http_tokenring_fail(ctx, status, message);
    ngx_http_tokenring_follow_flush(f);
}


/* what Redis has was not written by an engine */

static void
ngx_http_tokenring_follow_bad(ngx_http_tokenring_follow_t *f)
{
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = f->ctx;

    ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                  "tokenring: bad output in Redis, redis=%V id=%V after=%uL",
                  &f->redis->name, &ctx->completion, ctx->number);

    ngx_http_tokenring_fail(ctx, TR_ERR_PROTOCOL,
                            "The stored output of this request is corrupt");
}


/* the request may have ended when this returns */

static void
ngx_http_tokenring_follow_flush(ngx_http_tokenring_follow_t *f)
{
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = f->ctx;
    c = ctx->request->connection;

    if (ctx->state == NGX_HTTP_TOKENRING_OVER && ctx->blocked) {
        /* send_timeout watches over the rest */
        ctx->deadline = ngx_current_msec + ctx->conf->idle_timeout;
    }

    ngx_http_tokenring_flush(ctx);
    ngx_http_run_posted_requests(c);
}


/* nothing was heard of the request or its engine for too long */

void
ngx_http_tokenring_follow_expired(ngx_http_tokenring_ctx_t *ctx)
{
    if (ngx_exiting && ctx->request->header_sent) {
        /* cut off: the client resumes, with a new worker */
        ngx_http_tokenring_finalize(ctx, NGX_ERROR);
        return;
    }

    ngx_http_tokenring_fail(ctx, TR_ERR_TIMEOUT,
                            "The output of this request timed out");

    /* if the client does not read, send_timeout ends it */
    ngx_add_timer(&ctx->timer, ctx->conf->idle_timeout);

    ngx_http_tokenring_flush(ctx);
}


void
ngx_http_tokenring_follow_end(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_follow_t  *f;

    f = ctx->follow;

    ngx_http_tokenring_find_end(&f->find);

    ngx_http_tokenring_redis_forget(f->reading);
    f->reading = NULL;
    f->more = 0;

    ngx_http_tokenring_stream_sub_leave(f);
}
