/*
 * What happens to a request between its submission and its end: the records of
 * the engine, the hang-up of the client, and the clock.
 *
 * Records only change the ctx and mark it dirty; what they mean for the client
 * is worked out when the request is flushed (_send.c).  A client that hangs up
 * is told to the engine at once, but the request stays for up to a second: the
 * engine's last record has the exact counts for the log.
 */

#include "ngx_http_tokenring.h"


static ngx_int_t ngx_http_tokenring_accepted(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_started(ngx_http_tokenring_ctx_t *ctx,
    size_t len);
static ngx_int_t ngx_http_tokenring_delta(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_finish(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static ngx_int_t ngx_http_tokenring_error(ngx_http_tokenring_ctx_t *ctx,
    u_char *payload, size_t len);
static void ngx_http_tokenring_read_handler(ngx_http_request_t *r);
static void ngx_http_tokenring_arm(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_expired(ngx_http_tokenring_ctx_t *ctx);


/* NGX_ERROR: nobody should listen to this engine any longer */

ngx_int_t
ngx_http_tokenring_record(ngx_http_tokenring_ctx_t *ctx, tr_record_t *rec,
    u_char *payload)
{
    ngx_int_t                   rc;
    ngx_http_tokenring_peer_t  *peer;

    peer = ctx->peer;

    if (rec->type != TR_RECORD_STARTED) {
        /* as the engine counts them for Redis */
        ctx->number++;
    }

    switch (rec->type) {

    case TR_RECORD_ACCEPTED:
        rc = ngx_http_tokenring_accepted(ctx, payload, rec->length);
        break;

    case TR_RECORD_STARTED:
        rc = ngx_http_tokenring_started(ctx, rec->length);
        break;

    case TR_RECORD_DELTA:
        rc = ngx_http_tokenring_delta(ctx, payload, rec->length);
        break;

    case TR_RECORD_FINISH:
        rc = ngx_http_tokenring_finish(ctx, payload, rec->length);
        break;

    case TR_RECORD_ERROR:
        rc = ngx_http_tokenring_error(ctx, payload, rec->length);
        break;

    default:
        rc = NGX_DECLINED;
        break;
    }

    if (rc == NGX_DECLINED) {
        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                      "tokenring: bad record, type=%ud length=%uD request=%V",
                      (u_int) rec->type, rec->length, &ctx->request_id);

        if (peer) {
            ngx_http_tokenring_break(peer, "it sent a record that is "
                                     "malformed or out of order");
        }

        return NGX_ERROR;
    }

    if (rc == NGX_ERROR) {
        ngx_http_tokenring_fail(ctx, TR_ERR_NOMEM,
                                "The gateway ran out of memory");
        ngx_http_tokenring_dirty(peer, ctx);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_accepted(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    tr_wire_bytes_t     model;
    tr_wire_accepted_t  head;

    if (tr_wire_accepted_parse(payload, len, &head, &model) != TR_OK
        || head.choices > NGX_HTTP_TOKENRING_CHOICES_MAX
        || head.endpoint != ctx->endpoint
        || head.model_len > TR_NAME_MAX
        || ctx->accepted
        || ctx->phase < NGX_HTTP_TOKENRING_QUEUE)
    {
        return NGX_DECLINED;
    }

    ctx->accepted = 1;
    ctx->prompt_tokens = head.prompt_tokens;
    ctx->created = head.created;
    ctx->stream = (head.flags & TR_ACCEPTED_STREAM) ? 1 : 0;
    ctx->include_usage = (head.flags & TR_ACCEPTED_INCLUDE_USAGE) ? 1 : 0;
    ctx->with_logprobs = (head.flags & TR_ACCEPTED_LOGPROBS) ? 1 : 0;

    ctx->model.data = ngx_pnalloc(ctx->request->pool, model.len);
    if (ctx->model.data == NULL) {
        return NGX_ERROR;
    }

    ctx->model.len = model.len;
    ngx_memcpy(ctx->model.data, model.data, model.len);

    ctx->choices = ngx_pcalloc(ctx->request->pool,
                        head.choices * sizeof(ngx_http_tokenring_choice_t));
    if (ctx->choices == NULL) {
        return NGX_ERROR;
    }

    ctx->nchoices = head.choices;
    ctx->left = head.choices;

    if (ctx->gone) {
        return NGX_OK;
    }

    /* queue_timeout goes on until STARTED; comments begin */
    ctx->sent = ngx_current_msec;
    ngx_http_tokenring_arm(ctx);

    if (!ctx->stream) {
        return NGX_OK;
    }

    if (ctx->detach) {
        /* its headers go now */
        ngx_http_tokenring_dirty(ctx->peer, ctx);
    }

    return ngx_http_tokenring_render_heads(ctx);
}


static ngx_int_t
ngx_http_tokenring_started(ngx_http_tokenring_ctx_t *ctx, size_t len)
{
    if (tr_wire_started_parse(len) != TR_OK || !ctx->accepted) {
        return NGX_DECLINED;
    }

    if (ctx->phase == NGX_HTTP_TOKENRING_QUEUE) {
        ngx_http_tokenring_deadline(ctx, NGX_HTTP_TOKENRING_PREFILL);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_delta(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    size_t                        limit;
    tr_wire_bytes_t               text, logprobs;
    tr_wire_delta_t               head;
    ngx_http_tokenring_choice_t  *choice;

    if (tr_wire_delta_parse(payload, len, &head, &text, &logprobs) != TR_OK
        || !ctx->accepted
        || head.choice >= ctx->nchoices
        || ctx->choices[head.choice].reason
        || (logprobs.len
            && (!ctx->with_logprobs
                || ngx_http_tokenring_logprobs_check(&logprobs) != NGX_OK)))
    {
        return NGX_DECLINED;
    }

    ctx->completion_tokens += head.tokens;
    ctx->last_us = ctx->peer ? ctx->peer->now : ngx_http_tokenring_clock();

    if (ctx->first_us == 0) {
        ctx->first_us = ctx->last_us;

        if (ctx->stream) {
            /* the client will have seen some of it: it stays where it is */
            ngx_http_tokenring_forget(ctx);
        }
    }

    if (ctx->gone || ctx->error) {
        return NGX_OK;
    }

    if (ctx->phase < NGX_HTTP_TOKENRING_DECODE) {
        ngx_http_tokenring_deadline(ctx, NGX_HTTP_TOKENRING_DECODE);

    } else {
        /* the timer looks at it when it fires */
        ctx->deadline = ngx_current_msec + ctx->conf->idle_timeout;
    }

    /* past what a pause may leave in the rings, an engine that goes on */

    limit = (ctx->stream && ctx->peer)
            ? ctx->conf->buffer_size
              + 2 * (size_t) ctx->peer->map.response_capacity
              + NGX_HTTP_TOKENRING_RESPONSE_MAX / 64
            : NGX_HTTP_TOKENRING_RESPONSE_MAX;

    if (ctx->pending + len > limit) {
        ngx_http_tokenring_control(ctx, TR_CONTROL_ABORT);
        ngx_http_tokenring_fail(ctx, TR_ERR_INTERNAL,
                                "The response is too large for the gateway");
        ngx_http_tokenring_dirty(ctx->peer, ctx);
        return NGX_OK;
    }

    if (ctx->resumable && ctx->stream) {
        if (ngx_http_tokenring_queue_delta(ctx, head.choice, &text, &logprobs)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        goto queued;
    }

    choice = &ctx->choices[head.choice];

    if (ngx_http_tokenring_append(&choice->text, text.data, text.len) != NGX_OK
        || (logprobs.len
            && ngx_http_tokenring_append(&choice->logprobs, logprobs.data,
                                         logprobs.len)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    ctx->pending += text.len + logprobs.len;

    if (!ctx->stream) {
        return NGX_OK;
    }

queued:

    ngx_http_tokenring_dirty(ctx->peer, ctx);

    if (ctx->pending > ctx->conf->buffer_size && !ctx->paused && ctx->peer) {
        ctx->paused = 1;
        ngx_http_tokenring_control(ctx, TR_CONTROL_PAUSE);

        if (ngx_http_tokenring_counters) {
            (void) ngx_atomic_fetch_add(&ngx_http_tokenring_counters->pauses,
                                        1);
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_finish(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    ngx_uint_t         last;
    tr_wire_finish_t   head;

    if (tr_wire_finish_parse(payload, len, &head) != TR_OK) {
        return NGX_DECLINED;
    }

    last = head.flags & TR_FINISH_LAST;

    if (ctx->accepted && head.choice < ctx->nchoices
        && ctx->choices[head.choice].reason == 0)
    {
        ctx->choices[head.choice].reason = head.reason;
        ctx->left--;

        if (ctx->resumable && ctx->stream && !ctx->gone && !ctx->error
            && head.reason != TR_FINISH_ABORTED
            && ngx_http_tokenring_queue_finish(ctx, head.choice) != NGX_OK)
        {
            return NGX_ERROR;
        }

    } else if (head.reason != TR_FINISH_ABORTED) {
        return NGX_DECLINED;
    }

    if (last && ctx->left && head.reason != TR_FINISH_ABORTED) {
        return NGX_DECLINED;
    }

    /* the log names the reason of the first choice, or what ended them all */

    if (head.choice == 0 || head.reason == TR_FINISH_ABORTED) {
        ctx->reason = head.reason;
    }

    ctx->totals = head;

    if (last) {
        ctx->over = 1;
        ctx->totalled = 1;
        ctx->prompt_tokens = head.prompt_tokens;
        ctx->completion_tokens = head.completion_tokens;
    }

    if (ctx->phase < NGX_HTTP_TOKENRING_DECODE) {
        ctx->phase = NGX_HTTP_TOKENRING_DECODE;
    }

    ctx->deadline = ngx_current_msec + ctx->conf->idle_timeout;

    if (head.reason == TR_FINISH_ABORTED && !ctx->gone && !ctx->error) {
        ctx->error_number = ctx->resumable ? ctx->number : 0;

        if (ctx->follow) {
            ctx->error = TR_ERR_CANCELLED;
            ngx_str_set(&ctx->message, "The client left this request");

        } else {
            ctx->error = TR_ERR_CLOSED;
            ngx_str_set(&ctx->message, "The engine aborted this request");
        }
    }

    if (ctx->stream || last || ctx->error) {
        ngx_http_tokenring_dirty(ctx->peer, ctx);
    }

    return NGX_OK;
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

    ctx->over = 1;
    ctx->error = head.status;
    ctx->error_number = ctx->resumable ? ctx->number : 0;
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

    ngx_http_tokenring_dirty(ctx->peer, ctx);

    return NGX_OK;
}


/* the gateway's own reason to end a request; to be flushed by the caller */

void
ngx_http_tokenring_fail(ngx_http_tokenring_ctx_t *ctx, tr_status_t error,
    const char *message)
{
    if (ctx->over || ctx->error) {
        ctx->over = 1;
        return;
    }

    ctx->error = error;
    ctx->over = 1;
    ctx->param.len = 0;
    ctx->message.data = (u_char *) message;
    ctx->message.len = ngx_strlen(message);

    if (tr_status_info(error).http == NGX_HTTP_SERVICE_UNAVAILABLE) {
        ctx->retry_after = NGX_HTTP_TOKENRING_RETRY_AFTER;
    }
}


/* from now on the client has only to stay */

void
ngx_http_tokenring_watch(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_event_t         *rev;
    ngx_http_request_t  *r;

    r = ctx->request;
    rev = r->connection->read;

    r->read_event_handler = ngx_http_tokenring_read_handler;
    r->write_event_handler = ngx_http_tokenring_write_handler;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else {
        (void) ngx_handle_read_event(rev, 0);
    }
}


static void
ngx_http_tokenring_read_handler(ngx_http_request_t *r)
{
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    /* an internal redirect after our end leaves the handler without a ctx */

    if (ctx && ngx_http_tokenring_client_left(r)) {
        ngx_http_tokenring_hang_up(ctx);
    }
}


ngx_uint_t
ngx_http_tokenring_client_left(ngx_http_request_t *r)
{
    int                n;
    char               byte;
    ngx_err_t          err;
    socklen_t          len;
    ngx_event_t       *rev;
    ngx_connection_t  *c;

    c = r->connection;
    rev = c->read;

    if (c->error) {
        return 1;
    }

    if (r->stream) {
        return 0;
    }

#if (NGX_HTTP_V3 || (NGX_COMPAT && nginx_version >= 1025000))
    if (c->quic) {
        if (rev->error || c->write->error) {
            c->error = 1;
        }

        return c->error;
    }
#endif

    err = 0;
    len = sizeof(ngx_err_t);

#if (NGX_HAVE_EPOLLRDHUP)
    if ((ngx_event_flags & NGX_USE_EPOLL_EVENT) && ngx_use_epoll_rdhup) {

        if (!rev->pending_eof) {
            return 0;
        }

        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len)
            == -1)
        {
            err = ngx_socket_errno;
        }

        goto left;
    }
#endif

    n = recv(c->fd, &byte, 1, MSG_PEEK);

    if (n == -1) {
        err = ngx_socket_errno;
    }

    if ((ngx_event_flags & NGX_USE_LEVEL_EVENT) && rev->active && n > 0) {
        (void) ngx_del_event(rev, NGX_READ_EVENT, 0);
    }

    if (n > 0 || err == NGX_EAGAIN) {
        return 0;
    }

#if (NGX_HAVE_EPOLLRDHUP)
left:
#endif

    rev->eof = 1;
    c->error = 1;

    if (err) {
        rev->error = 1;
    }

    ngx_log_error(NGX_LOG_INFO, c->log, err,
                  "client prematurely closed connection");

    return 1;
}


void
ngx_http_tokenring_hang_up(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t           i;
    ngx_http_request_t  *r;

    if (ctx->gone) {
        return;
    }

    r = ctx->request;

    ctx->gone = 1;
    r->connection->error = 1;

    if (ctx->peer == NULL || ctx->phase < NGX_HTTP_TOKENRING_QUEUE
        || ctx->detach)
    {
        ngx_http_tokenring_finalize(ctx, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        return;
    }

    ngx_http_tokenring_control(ctx, TR_CONTROL_ABORT);

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    if (r->connection->write->timer_set) {
        ngx_del_timer(r->connection->write);
    }

    for (i = 0; i < ctx->nchoices; i++) {
        ngx_http_tokenring_text_free(&ctx->choices[i].text);
        ngx_http_tokenring_text_free(&ctx->choices[i].logprobs);
    }

    ngx_http_tokenring_text_free(&ctx->queue);

    ctx->pending = 0;

    ngx_http_tokenring_deadline(ctx, NGX_HTTP_TOKENRING_GONE);
}


/* a new phase and its time limit */

void
ngx_http_tokenring_deadline(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_phase_e phase)
{
    ngx_msec_t  limit;

    ctx->phase = phase;

    switch (phase) {

    case NGX_HTTP_TOKENRING_WAIT:
        limit = NGX_HTTP_TOKENRING_HANDSHAKE + NGX_HTTP_TOKENRING_RETRY;
        break;

    case NGX_HTTP_TOKENRING_PREFILL:
        limit = ctx->conf->first_token_timeout;
        break;

    case NGX_HTTP_TOKENRING_DECODE:
        limit = ctx->conf->idle_timeout;
        break;

    case NGX_HTTP_TOKENRING_GONE:
        limit = NGX_HTTP_TOKENRING_HOLD;
        break;

    default:
        limit = ctx->conf->queue_timeout;
        break;
    }

    if (ctx->follow) {
        limit = ctx->conf->idle_timeout;
    }

    ctx->deadline = ngx_current_msec + limit;

    ngx_http_tokenring_arm(ctx);
}


/* the timer moves only when it has to be earlier */

static void
ngx_http_tokenring_arm(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_msec_t      at, comment;
    ngx_msec_int_t  left;

    at = ctx->deadline;
    comment = ctx->conf->keepalive_comment;

    if (comment && ctx->stream && !ctx->gone) {
        comment += ctx->sent;

        if ((ngx_msec_int_t) (comment - at) < 0) {
            at = comment;
        }
    }

    if (ctx->timer.timer_set
        && (ngx_msec_int_t) (ctx->timer.timer.key - at) <= 0)
    {
        return;
    }

    left = (ngx_msec_int_t) (at - ngx_current_msec);

    ngx_add_timer(&ctx->timer, (ngx_msec_t) ngx_max(left, 1));
}


void
ngx_http_tokenring_timer(ngx_event_t *ev)
{
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = ev->data;
    c = ctx->request->connection;

    ngx_http_set_log_request(c->log, ctx->request);

    /* a client that is slow is send_timeout's business */

    if (ctx->blocked && !ctx->gone) {
        ctx->deadline = ngx_current_msec + ctx->conf->idle_timeout;
        ctx->sent = ngx_current_msec;
    }

    if ((ngx_msec_int_t) (ctx->deadline - ngx_current_msec) <= 0) {
        ngx_http_tokenring_expired(ctx);
        ngx_http_run_posted_requests(c);
        return;
    }

    if (ctx->conf->keepalive_comment && ctx->stream && !ctx->gone
        && ngx_current_msec - ctx->sent >= ctx->conf->keepalive_comment)
    {
        ctx->comment = 1;
        ctx->sent = ngx_current_msec;
    }

    ngx_http_tokenring_arm(ctx);

    if (ctx->comment) {
        ngx_http_tokenring_flush(ctx);
        ngx_http_run_posted_requests(c);
    }
}


static void
ngx_http_tokenring_expired(ngx_http_tokenring_ctx_t *ctx)
{
    tr_status_t   error;
    const char   *message;

    error = TR_ERR_TIMEOUT;

    if (ctx->follow) {
        ngx_http_tokenring_follow_expired(ctx);
        return;
    }

    switch (ctx->phase) {

    case NGX_HTTP_TOKENRING_WAIT:
        error = TR_ERR_NO_ENGINE;
        message = "No engine is available";
        break;

    case NGX_HTTP_TOKENRING_BODY:

        if (!ctx->is_waiting) {
            /* the client's turn: client_body_timeout watches over it */
            ngx_http_tokenring_deadline(ctx, NGX_HTTP_TOKENRING_BODY);
            return;
        }

        message = "The engine did not take the request in time";
        break;

    case NGX_HTTP_TOKENRING_QUEUE:
        message = "The request waited too long in the engine's queue";
        break;

    case NGX_HTTP_TOKENRING_PREFILL:
        message = "The engine did not produce the first token in time";
        break;

    case NGX_HTTP_TOKENRING_DECODE:
        message = "The engine did not produce the next token in time";
        break;

    case NGX_HTTP_TOKENRING_GONE:
        ngx_http_tokenring_finalize(ctx, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        return;

    default:
        return;
    }

    if (ctx->is_waiting) {
        ngx_http_tokenring_wait_end(ctx);
    }

    ngx_http_tokenring_fail(ctx, error, message);
    ngx_http_tokenring_slot_abandon(ctx);

    /* if the client takes nothing now, send_timeout ends it */
    ngx_add_timer(&ctx->timer, ctx->conf->idle_timeout);

    ngx_http_tokenring_flush(ctx);
}


/* the request ends, by whatever way; r and its connection are still there */

void
ngx_http_tokenring_cleanup(void *data)
{
    ngx_http_tokenring_ctx_t  *ctx = data;

    ctx->phase = NGX_HTTP_TOKENRING_DONE;

    ngx_http_tokenring_socket_return(ctx->request->connection);

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    if (ctx->is_dirty) {
        ngx_queue_remove(&ctx->dirty);
        ctx->is_dirty = 0;
    }

    if (ctx->is_waiting) {
        ngx_http_tokenring_wait_end(ctx);
    }

    if (ctx->peer && ctx->submitted && !ctx->error) {
        /* ended by nginx itself: an HTTP/3 connection, a shutdown's limit */
        ctx->gone = 1;
    }

    ngx_http_tokenring_slot_abandon(ctx);

    if (ctx->follow) {
        ngx_http_tokenring_follow_end(ctx);
    }

    if (ctx->counted) {
        ctx->counted = 0;
        (void) ngx_atomic_fetch_add(
                   &ctx->shared->processes[ngx_process_slot].active, -1);
    }
}


/* the memory goes last: output filters may hold on to the buffers until then */

void
ngx_http_tokenring_pool_cleanup(void *data)
{
    ngx_http_tokenring_ctx_t  *ctx = data;

    ngx_uint_t  i;

    if (ctx->choices) {
        for (i = 0; i < ctx->nchoices; i++) {
            ngx_http_tokenring_text_free(&ctx->choices[i].text);
            ngx_http_tokenring_text_free(&ctx->choices[i].logprobs);
        }
    }

    ngx_http_tokenring_text_free(&ctx->queue);
    ngx_http_tokenring_text_free(&ctx->head);
    ngx_http_tokenring_text_free(&ctx->out);
}
