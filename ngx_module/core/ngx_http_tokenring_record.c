/*
 * What the engine's records do to a request.
 *
 * They only change the ctx and mark it dirty; what the client gets is worked
 * out when the request is flushed (_send.c).  A record that does not fit the
 * request's state is a protocol error, and closes the channel.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_prefix.h"
#include "ngx_http_tokenring_render.h"
#include "ngx_http_tokenring_slot.h"


/* what a correct engine never exceeds */
#define NGX_HTTP_TOKENRING_RESPONSE_MAX  (64 * 1024 * 1024)


static ngx_int_t ngx_http_tokenring_echo(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_started(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_delta(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static void ngx_http_tokenring_delta_count(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_delta_t *head);
static ngx_int_t ngx_http_tokenring_delta_keep(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_delta_t *head, tr_wire_bytes_t *text, tr_wire_bytes_t *logprobs);
static ngx_uint_t ngx_http_tokenring_exceeds(ngx_http_tokenring_ctx_t *ctx,
    size_t len);
static ngx_int_t ngx_http_tokenring_item(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_result(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_kv(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_finish(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_finish_choice(
    ngx_http_tokenring_ctx_t *ctx, tr_wire_finish_t *head);
static ngx_int_t ngx_http_tokenring_finish_keep(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_finish_t *head, tr_wire_bytes_t *stop);
static void ngx_http_tokenring_finish_aborted(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_error(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static void ngx_http_tokenring_over(ngx_http_tokenring_ctx_t *ctx);


/* what an engine sends; NGX_DECLINED: it may not send that, or not now */

static const struct {
    const char   *name;
    ngx_int_t   (*handler)(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
                           size_t len);
} ngx_http_tokenring_records[] = {
    [TR_RECORD_ACCEPTED] = { "ACCEPTED", ngx_http_tokenring_accepted },
    [TR_RECORD_DELTA] = { "DELTA", ngx_http_tokenring_delta },
    [TR_RECORD_FINISH] = { "FINISH", ngx_http_tokenring_finish },
    [TR_RECORD_ERROR] = { "ERROR", ngx_http_tokenring_error },
    [TR_RECORD_STARTED] = { "STARTED", ngx_http_tokenring_started },
    [TR_RECORD_ITEM] = { "ITEM", ngx_http_tokenring_item },
    [TR_RECORD_RESULT] = { "RESULT", ngx_http_tokenring_result },
    [TR_RECORD_ECHO] = { "ECHO", ngx_http_tokenring_echo },
    [TR_RECORD_KV] = { "KV", ngx_http_tokenring_kv },
};

#define NGX_HTTP_TOKENRING_RECORDS                                            \
    (sizeof(ngx_http_tokenring_records) / sizeof(ngx_http_tokenring_records[0]))


#if (NGX_DEBUG)

static void
ngx_http_tokenring_record_debug(ngx_http_tokenring_ctx_t *ctx,
    tr_record_t *rec)
{
    const char  *name;

    /* a token must not fetch its connection, which is in no CPU cache, only to
     * find that nothing is logged: debug_connection alone does not show it */

    if (rec->type == TR_RECORD_DELTA
        && !(ngx_cycle->log->log_level & NGX_LOG_DEBUG_HTTP))
    {
        return;
    }

    name = (rec->type < NGX_HTTP_TOKENRING_RECORDS)
           ? ngx_http_tokenring_records[rec->type].name : NULL;

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring record: %s, number:%uL length:%uD pending:%uz",
                   name ? name : "unknown", ctx->number, rec->length,
                   ctx->pending);
}

#else
#define ngx_http_tokenring_record_debug(ctx, rec)
#endif


/* NGX_ERROR: the channel must be closed */

ngx_int_t
ngx_http_tokenring_record(ngx_http_tokenring_ctx_t *ctx, tr_record_t *rec,
    u_char *payload)
{
    ngx_int_t                   rc;
    ngx_uint_t                  type, again;
    ngx_http_tokenring_conn_t  *conn;

    conn = ctx->conn;
    type = rec->type;

    again = (type == TR_RECORD_ACCEPTED && ctx->moving);

    if (type != TR_RECORD_STARTED && !again) {
        /* counted as the engine counts them for Redis */
        ctx->number++;
    }

    ngx_http_tokenring_record_debug(ctx, rec);

    rc = (type < NGX_HTTP_TOKENRING_RECORDS
          && ngx_http_tokenring_records[type].handler)
         ? ngx_http_tokenring_records[type].handler(ctx, payload, rec->length)
         : NGX_DECLINED;

    if (rc == NGX_DECLINED) {
        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                      "tokenring: bad record, type=%ud length=%uD request=%V",
                      (u_int) rec->type, rec->length, &ctx->request_id);

        if (conn) {
            ngx_http_tokenring_break(conn, "it sent a record that is "
                                     "malformed or out of order");
        }

        return NGX_ERROR;
    }

    if (rc == NGX_ERROR) {
        ngx_http_tokenring_fail(ctx, TR_ERR_NOMEM,
                                "The gateway ran out of memory");
        ngx_http_tokenring_dirty(conn, ctx);
    }

    if (ctx->with_ids && conn && !again) {
        ngx_http_tokenring_move_tail(ctx, rec, payload);
    }

    return NGX_OK;
}


/* a part of what the response repeats of the request */

static ngx_int_t
ngx_http_tokenring_echo(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    if (len == 0
        || len > TR_RESULT_MAX
        || ngx_http_tokenring_text_len(&ctx->repeated) + len > TR_ECHO_MAX
        || ctx->state != NGX_HTTP_TOKENRING_QUEUED)
    {
        return NGX_DECLINED;
    }

    if (ctx->gone || ctx->error) {
        return NGX_OK;
    }

    return ngx_http_tokenring_append(&ctx->repeated, payload, len);
}


static ngx_int_t
ngx_http_tokenring_started(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    tr_wire_started_t  head;

    if (tr_wire_started_parse(payload, len, &head) != TR_OK
        || ctx->state < NGX_HTTP_TOKENRING_ACCEPTED)
    {
        return NGX_DECLINED;
    }

    ngx_http_tokenring_prefix_started(ctx, head.cached_tokens);

    if (ctx->state == NGX_HTTP_TOKENRING_ACCEPTED) {
        ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_PREFILL);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_delta(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    tr_wire_bytes_t  text, logprobs, ids;
    tr_wire_delta_t  head;

    if (tr_wire_delta_parse(payload, len, &head, &text, &logprobs, &ids)
        != TR_OK
        || ctx->state < NGX_HTTP_TOKENRING_ACCEPTED
        || head.choice >= ctx->nchoices
        || ctx->choices[head.choice].reason
        || (logprobs.len
            && (!ctx->with_logprobs
                || ngx_http_tokenring_logprobs_check(&logprobs) != NGX_OK)))
    {
        return NGX_DECLINED;
    }

    if (ctx->with_ids) {
        ngx_http_tokenring_move_told(ctx, &head, &ids);
    }

    ngx_http_tokenring_delta_count(ctx, &head);

    if (ctx->gone || ctx->error) {
        return NGX_OK;
    }

    if (ctx->state < NGX_HTTP_TOKENRING_DECODE) {
        ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_DECODE);

    } else {
        /* the timer checks it when it fires */
        ctx->deadline = ngx_current_msec + ctx->conf->idle_timeout;
    }

    if (ngx_http_tokenring_exceeds(ctx, len)) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_delta_keep(ctx, &head, &text, &logprobs)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!ctx->stream) {
        return NGX_OK;
    }

    ngx_http_tokenring_dirty(ctx->conn, ctx);

    if (ctx->pending > ctx->conf->buffer_size && !ctx->paused && !ctx->cut
        && ctx->conn)
    {
        ctx->paused = 1;
        ngx_http_tokenring_control(ctx, TR_CONTROL_PAUSE);
        ngx_http_tokenring_count(pauses);
    }

    return NGX_OK;
}


/* what its tokens cost, and when they came: also when nobody hears of them */

static void
ngx_http_tokenring_delta_count(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_delta_t *head)
{
    ctx->completion_tokens += head->tokens;

    ngx_http_tokenring_spend(ctx);

    ctx->last_us = ctx->conn ? ctx->conn->now : ngx_http_tokenring_clock();

    if (ctx->halted) {
        ctx->halted = 0;
        ngx_http_tokenring_count_pause(ngx_current_msec - ctx->halted_since);
    }

    if (ctx->first_us == 0) {
        ctx->first_us = ctx->last_us;

        if (ctx->stream && !ctx->movable) {
            /* the client will see some of it, so it cannot be retried */
            ngx_http_tokenring_body_forget(ctx);
        }
    }
}


/* its text, until the client takes it: as a record, or with the choice's */

static ngx_int_t
ngx_http_tokenring_delta_keep(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_delta_t *head, tr_wire_bytes_t *text, tr_wire_bytes_t *logprobs)
{
    ngx_http_tokenring_choice_t  *choice;

    if (ngx_http_tokenring_queues(ctx)) {
        return ngx_http_tokenring_queue_delta(ctx, head, text, logprobs);
    }

    choice = &ctx->choices[head->choice];
    choice->tokens += head->tokens;

    if (ngx_http_tokenring_item_text(ctx, head->choice, text) != NGX_OK
        || (logprobs->len
            && ngx_http_tokenring_append(&choice->logprobs, logprobs->data,
                                         logprobs->len)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    ctx->pending += text->len + logprobs->len;

    return NGX_OK;
}


/*
 * More than the rings can hold after a pause: the engine ignores it.  Then the
 * request ends, and no other.
 */

static ngx_uint_t
ngx_http_tokenring_exceeds(ngx_http_tokenring_ctx_t *ctx, size_t len)
{
    size_t  limit;

    limit = (ctx->stream && ctx->conn)
            ? ctx->conf->buffer_size
              + 2 * (size_t) ctx->conn->map.response_capacity
              + NGX_HTTP_TOKENRING_RESPONSE_MAX / 64
            : NGX_HTTP_TOKENRING_RESPONSE_MAX;

    if (ctx->pending + len <= limit) {
        return 0;
    }

    ngx_http_tokenring_control(ctx, TR_CONTROL_ABORT);
    ngx_http_tokenring_fail(ctx, TR_ERR_INTERNAL,
                            "The response is too large for the gateway");
    ngx_http_tokenring_dirty(ctx->conn, ctx);

    return 1;
}


/* what the text that follows in a choice is */

static ngx_int_t
ngx_http_tokenring_item(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    tr_wire_item_t   head;
    tr_wire_bytes_t  id, name;

    if (tr_wire_item_parse(payload, len, &head, &id, &name) != TR_OK
        || ctx->state < NGX_HTTP_TOKENRING_ACCEPTED
        || head.choice >= ctx->nchoices
        || ctx->choices[head.choice].items == NULL
        || ctx->choices[head.choice].reason)
    {
        return NGX_DECLINED;
    }

    if (ctx->gone || ctx->error || ngx_http_tokenring_exceeds(ctx, len)) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_queues(ctx)) {
        return ngx_http_tokenring_queue_item(ctx, &head, &id, &name);
    }

    ctx->pending += len;

    return ngx_http_tokenring_item_begin(ctx, head.choice, &head, &id, &name);
}


/*
 * Its tenant has no tokens left: the engine ends it as at its length, and says
 * that in its FINISH, which is also what Redis gets.
 */

void
ngx_http_tokenring_end_here(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->cut || ctx->conn == NULL || ctx->use == NULL
        || !ctx->use->metered)
    {
        return;
    }

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: a budget is empty, tokens:%uL",
                   ctx->completion_tokens);

    ctx->cut = 1;
    ngx_http_tokenring_control(ctx, 0);
}


/* a part of what an endpoint computed */

static ngx_int_t
ngx_http_tokenring_result(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    tr_wire_bytes_t   bytes;
    tr_wire_result_t  head;

    if (tr_wire_result_parse(payload, len, &head, &bytes) != TR_OK
        || ctx->state < NGX_HTTP_TOKENRING_ACCEPTED
        || ctx->result == NULL)
    {
        return NGX_DECLINED;
    }

    if (ctx->gone || ctx->error) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_exceeds(ctx, bytes.len)) {
        return NGX_OK;
    }

    ctx->pending += bytes.len;

    switch (head.kind) {

    case TR_RESULT_TOKENS:
        return ngx_http_tokenring_append(&ctx->result->ids, bytes.data,
                                         bytes.len);

    case TR_RESULT_TEXT:
        return ngx_http_tokenring_append(&ctx->result->text, bytes.data,
                                         bytes.len);

    case TR_RESULT_EMBEDDING:

        if (head.count >= ctx->nchoices) {
            return NGX_DECLINED;
        }

        ctx->result->base64 = head.flags & TR_RESULT_BASE64;

        return ngx_http_tokenring_append(&ctx->choices[head.count].text,
                                         bytes.data, bytes.len);

    default: /* TR_RESULT_CONTEXT */
        ctx->result->context = head.count;
        return NGX_OK;
    }
}


/* what a choice holds of the KV cache: for the usage of its next chunk */

static ngx_int_t
ngx_http_tokenring_kv(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    tr_wire_kv_t                  head;
    ngx_http_tokenring_choice_t  *choice;

    if (tr_wire_kv_parse(payload, len, &head) != TR_OK
        || ctx->state < NGX_HTTP_TOKENRING_ACCEPTED
        || head.choice >= ctx->nchoices)
    {
        return NGX_DECLINED;
    }

    choice = &ctx->choices[head.choice];

    if (choice->reason || choice->kv == NULL) {
        return NGX_DECLINED;
    }

    if (ctx->gone || ctx->error) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_queues(ctx)) {
        return ngx_http_tokenring_queue_kv(ctx, &head);
    }

    *choice->kv = head.usage;

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_finish(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    ngx_int_t         rc;
    ngx_uint_t        last;
    tr_wire_bytes_t   stop;
    tr_wire_finish_t  head;

    if (tr_wire_finish_parse(payload, len, &head, &stop) != TR_OK) {
        return NGX_DECLINED;
    }

    head.flags &= TR_FINISH_LAST|TR_FINISH_CUT;
    last = head.flags & TR_FINISH_LAST;

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: choice %uD finished, reason:%ud "
                   "last:%ui tokens:%uL", head.choice, (u_int) head.reason,
                   last, (uint64_t) head.completion_tokens);

    rc = ngx_http_tokenring_finish_choice(ctx, &head);

    if (rc == NGX_OK) {
        rc = ngx_http_tokenring_finish_keep(ctx, &head, &stop);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    if (last) {
        ctx->prompt_tokens = head.prompt_tokens;
        ctx->completion_tokens = head.completion_tokens;
        ngx_http_tokenring_over(ctx);

    } else if (ctx->state == NGX_HTTP_TOKENRING_ACCEPTED
               || ctx->state == NGX_HTTP_TOKENRING_PREFILL)
    {
        ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_DECODE);
    }

    if (!ctx->gone) {
        ctx->deadline = ngx_current_msec + ctx->conf->idle_timeout;
    }

    if (head.reason == TR_FINISH_ABORTED && !ctx->gone && !ctx->error) {
        ngx_http_tokenring_finish_aborted(ctx);
    }

    if (ctx->stream || last || ctx->error) {
        ngx_http_tokenring_dirty(ctx->conn, ctx);
    }

    return NGX_OK;
}


/* its choice ends, or an abort ends all: NGX_DECLINED where neither can be */

static ngx_int_t
ngx_http_tokenring_finish_choice(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_finish_t *head)
{
    ngx_uint_t  last;

    last = head->flags & TR_FINISH_LAST;

    if (ctx->state >= NGX_HTTP_TOKENRING_ACCEPTED
        && head->choice < ctx->nchoices
        && ctx->choices[head->choice].reason == 0)
    {
        ctx->choices[head->choice].reason = head->reason;
        ctx->left--;

        if (!ngx_http_tokenring_queues(ctx)) {
            ctx->choices[head->choice].tokens = head->choice_tokens;

        } else if (!ctx->gone && !ctx->error
                   && head->reason != TR_FINISH_ABORTED
                   && ngx_http_tokenring_queue_finish(ctx, head) != NGX_OK)
        {
            return NGX_ERROR;
        }

    } else if (head->reason != TR_FINISH_ABORTED) {
        return NGX_DECLINED;
    }

    if (head->reason == TR_FINISH_ABORTED ? !last : (last && ctx->left)) {
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* what the request keeps of a FINISH: reason, totals, the stop string */

static ngx_int_t
ngx_http_tokenring_finish_keep(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_finish_t *head, tr_wire_bytes_t *stop)
{
    /* the log has the reason of the first choice, or what ended all of them */

    if (head->choice == 0 || head->reason == TR_FINISH_ABORTED) {
        ctx->reason = head->reason;
    }

    ctx->totals = *head;

    if (ctx->ordered && stop->len) {
        ctx->stop.data = ngx_pnalloc(ctx->request->pool, stop->len);
        if (ctx->stop.data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(ctx->stop.data, stop->data, stop->len);
        ctx->stop.len = stop->len;
    }

    return NGX_OK;
}


/* the engine aborted it, and nobody here had asked */

static void
ngx_http_tokenring_finish_aborted(ngx_http_tokenring_ctx_t *ctx)
{
    ctx->error_number = (ctx->resumable || ctx->reread) ? ctx->number : 0;

    if (ctx->follow) {
        ctx->error = TR_ERR_CANCELLED;
        ngx_str_set(&ctx->message, "The client left this request");

    } else {
        ctx->error = TR_ERR_CLOSED;
        ngx_str_set(&ctx->message, "The engine aborted this request");
    }
}


static ngx_int_t
ngx_http_tokenring_error(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    tr_wire_bytes_t   param, message;
    tr_wire_error_t   head;

    if (tr_wire_error_parse(payload, len, &head, &param, &message) != TR_OK) {
        return NGX_DECLINED;
    }

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: engine's error:%s",
                   tr_status_info(head.status).name);

    ngx_http_tokenring_move_error(ctx, head.status);
    ngx_http_tokenring_over(ctx);

    ctx->error = head.status;
    ctx->error_number = (ctx->resumable || ctx->reread) ? ctx->number : 0;
    ctx->retry_after = head.retry_after_s;

    if (head.prompt_tokens) {
        ctx->prompt_tokens = head.prompt_tokens;
    }

    if (head.completion_tokens) {
        ctx->completion_tokens = head.completion_tokens;
    }

    param.len = ngx_min(param.len, TR_ERROR_PARAM);
    message.len = ngx_min(message.len, NGX_HTTP_TOKENRING_MESSAGE_MAX);

    ctx->param.data = ngx_pnalloc(ctx->request->pool,
                                  param.len + message.len + 1);
    if (ctx->param.data == NULL) {
        ctx->param.len = 0;
        ctx->message.len = 0;

    } else {
        ctx->message.data = ngx_cpymem(ctx->param.data, param.data, param.len);
        ngx_memcpy(ctx->message.data, message.data, message.len);
        ctx->param.len = param.len;
        ctx->message.len = message.len;
    }

    ngx_http_tokenring_dirty(ctx->conn, ctx);

    return NGX_OK;
}


/* unless the gateway gave up before */

static void
ngx_http_tokenring_over(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->state < NGX_HTTP_TOKENRING_OVER) {
        ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_OVER);
    }
}
