/*
 * The states of a request, and what ends it besides the engine's records
 * (_record.c): the client leaves, a time limit, the gateway gives up.
 *
 * When a client leaves, the engine is told at once, but the request is held for
 * up to a second: the engine's last record has the exact counts for the log.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_render.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_follow.h"
#include "ngx_http_tokenring_slot.h"


/* how long a request waits for its last record after the client left, ms */
#define NGX_HTTP_TOKENRING_HOLD  1000

/* how often a request that moves looks for an engine, ms */
#define NGX_HTTP_TOKENRING_AGAIN  100


static ngx_uint_t ngx_http_tokenring_on_its_way(
    ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_requeue(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_ctx_state_e state);
static ngx_msec_t ngx_http_tokenring_limit(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_read_handler(ngx_http_request_t *r);
static ngx_uint_t ngx_http_tokenring_socket_ended(ngx_connection_t *c,
    ngx_err_t *err);
static void ngx_http_tokenring_expired(ngx_http_tokenring_ctx_t *ctx);
static const char *ngx_http_tokenring_overdue(ngx_http_tokenring_ctx_t *ctx,
    tr_status_t *error);


/* the states that may follow, as drawn in ngx_http_tokenring_request.h */

#define ngx_http_tokenring_to(state)  (1 << NGX_HTTP_TOKENRING_##state)

static struct {
    const char  *name;
    ngx_uint_t   next;
} ngx_http_tokenring_states[] = {

    { "new", ngx_http_tokenring_to(SEAT)
             | ngx_http_tokenring_to(WAIT) | ngx_http_tokenring_to(READ)
             | ngx_http_tokenring_to(GATHER)
             | ngx_http_tokenring_to(QUEUED) | ngx_http_tokenring_to(OVER)
             | ngx_http_tokenring_to(DONE) },

    { "seat", ngx_http_tokenring_to(WAIT) | ngx_http_tokenring_to(READ)
              | ngx_http_tokenring_to(GATHER)
              | ngx_http_tokenring_to(OVER) | ngx_http_tokenring_to(DONE) },

    { "wait", ngx_http_tokenring_to(WAIT) | ngx_http_tokenring_to(READ)
              | ngx_http_tokenring_to(GATHER)
              | ngx_http_tokenring_to(OVER) | ngx_http_tokenring_to(DONE) },

    { "read", ngx_http_tokenring_to(GATHER) | ngx_http_tokenring_to(SEND)
              | ngx_http_tokenring_to(OVER) | ngx_http_tokenring_to(DONE) },

    { "gather", ngx_http_tokenring_to(HELD) | ngx_http_tokenring_to(SEND)
                | ngx_http_tokenring_to(OVER) | ngx_http_tokenring_to(DONE) },

    { "held", ngx_http_tokenring_to(HELD) | ngx_http_tokenring_to(SEND)
              | ngx_http_tokenring_to(OVER) | ngx_http_tokenring_to(DONE) },

    { "send", ngx_http_tokenring_to(STARVED) | ngx_http_tokenring_to(QUEUED)
              | ngx_http_tokenring_to(OVER) | ngx_http_tokenring_to(DONE) },

    { "starved", ngx_http_tokenring_to(SEND) | ngx_http_tokenring_to(OVER)
                 | ngx_http_tokenring_to(DONE) },

    { "queued", ngx_http_tokenring_to(ACCEPTED) | ngx_http_tokenring_to(OVER)
                | ngx_http_tokenring_to(DONE) },

    { "accepted", ngx_http_tokenring_to(PREFILL)
                  | ngx_http_tokenring_to(DECODE) | ngx_http_tokenring_to(OVER)
                  | ngx_http_tokenring_to(DONE) },

    { "prefill", ngx_http_tokenring_to(DECODE) | ngx_http_tokenring_to(OVER)
                 | ngx_http_tokenring_to(DONE) },

    { "decode", ngx_http_tokenring_to(OVER) | ngx_http_tokenring_to(DONE) },

    { "over", ngx_http_tokenring_to(HELD) | ngx_http_tokenring_to(SEND)
              | ngx_http_tokenring_to(DONE) },

    { "done", 0 }
};


void
ngx_http_tokenring_set_state(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_ctx_state_e state)
{
    ngx_log_t                       *log;
    ngx_msec_t                       limit;
    ngx_http_tokenring_ctx_state_e   from;

    from = ctx->state;
    log = ctx->request->connection->log;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, log, 0,
                   "tokenring request: %s to %s",
                   ngx_http_tokenring_states[from].name,
                   ngx_http_tokenring_states[state].name);

    if (!(ngx_http_tokenring_states[from].next & (1 << state))) {
        ngx_log_error(NGX_LOG_ALERT, log, 0,
                      "tokenring: a request cannot go from %s to %s, "
                      "request=%V", ngx_http_tokenring_states[from].name,
                      ngx_http_tokenring_states[state].name,
                      &ctx->request_id);
        ngx_debug_point();
    }

    ngx_http_tokenring_requeue(ctx, state);

    if (from == state) {
        /* it is one wait, however many handshakes fail in it */
        return;
    }

    ctx->before = from;
    ctx->state = state;

    limit = ngx_http_tokenring_limit(ctx);

    if (limit && !ctx->gone) {
        ctx->deadline = ngx_current_msec + limit;
        ngx_http_tokenring_arm(ctx);
    }
}


/* the queue in which a request waits belongs to its state */

static void
ngx_http_tokenring_requeue(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_ctx_state_e state)
{
    switch (ctx->state) {

    case NGX_HTTP_TOKENRING_SEAT:
    case NGX_HTTP_TOKENRING_WAIT:
    case NGX_HTTP_TOKENRING_HELD:
    case NGX_HTTP_TOKENRING_STARVED:
        ngx_queue_remove(&ctx->wait);
        break;

    default:
        break;
    }

    switch (state) {

    case NGX_HTTP_TOKENRING_SEAT:
        ngx_queue_insert_tail(ngx_http_tokenring_seat_queue(), &ctx->wait);
        break;

    case NGX_HTTP_TOKENRING_WAIT:
    case NGX_HTTP_TOKENRING_HELD:
        ngx_queue_insert_tail(&ctx->group->waiting, &ctx->wait);
        break;

    case NGX_HTTP_TOKENRING_STARVED:
        ngx_queue_insert_tail(&ctx->conn->starving, &ctx->wait);
        break;

    default:
        break;
    }
}


/* to another engine, which has not accepted it: one time limit for it all */

static ngx_uint_t
ngx_http_tokenring_on_its_way(ngx_http_tokenring_ctx_t *ctx)
{
    return (ctx->moving || ctx->anew)
           && ctx->state < NGX_HTTP_TOKENRING_ACCEPTED;
}


/* the time limit of the state; 0: the one of the state before goes on */

static ngx_msec_t
ngx_http_tokenring_limit(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_msec_t      limit;
    ngx_msec_int_t  left;

    if (ngx_http_tokenring_on_its_way(ctx)) {
        left = (ngx_msec_int_t) (ctx->move_deadline - ngx_current_msec);
        return ngx_max(left, 1);
    }

    switch (ctx->state) {

    case NGX_HTTP_TOKENRING_SEAT:
        limit = ctx->use->plan->wait ? ctx->use->plan->wait
                                     : ctx->conf->queue_timeout;
        break;

    case NGX_HTTP_TOKENRING_WAIT:
    case NGX_HTTP_TOKENRING_HELD:
        limit = ngx_http_tokenring_group_handshake(ctx->group)
                + NGX_HTTP_TOKENRING_RETRY;
        break;

    case NGX_HTTP_TOKENRING_READ:
    case NGX_HTTP_TOKENRING_GATHER:
    case NGX_HTTP_TOKENRING_SEND:
    case NGX_HTTP_TOKENRING_QUEUED:
        limit = ctx->conf->queue_timeout;
        break;

    case NGX_HTTP_TOKENRING_PREFILL:
        limit = ctx->conf->first_token_timeout;
        break;

    case NGX_HTTP_TOKENRING_DECODE:
        limit = ctx->conf->idle_timeout;
        break;

    default:
        limit = 0;
        break;
    }

    return (limit && ctx->follow) ? ctx->conf->idle_timeout : limit;
}


/* the gateway ends the request with an error; the caller flushes */

void
ngx_http_tokenring_fail(ngx_http_tokenring_ctx_t *ctx, tr_status_t error,
    const char *message)
{
    if (ctx->state < NGX_HTTP_TOKENRING_OVER) {
        ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_OVER);

    } else {
        return;
    }

    if (ctx->error) {
        return;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: fail, status:%s: %s",
                   tr_status_info(error).name, message);

    ctx->error = error;
    ctx->param.len = 0;
    ctx->message.data = (u_char *) message;
    ctx->message.len = ngx_strlen(message);

    if (tr_status_info(error).http == NGX_HTTP_SERVICE_UNAVAILABLE) {
        ctx->retry_after = NGX_HTTP_TOKENRING_RETRY_AFTER;
    }
}


/* from now on nothing is read from the client, but its leaving is noticed */

void
ngx_http_tokenring_watch(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_event_t         *rev;
    ngx_http_request_t  *r;

    r = ctx->request;
    rev = r->connection->read;

    r->read_event_handler = ngx_http_tokenring_read_handler;
    r->write_event_handler = ngx_http_tokenring_write_handler;

    if (rev->timer_set) {
        /* client_body_timeout: the client is not to blame */
        ngx_del_timer(rev);
    }

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
    ngx_err_t          err;
    ngx_event_t       *rev;
    ngx_connection_t  *c;

    c = r->connection;
    rev = c->read;

    if (c->error) {
        return 1;
    }

    if (r->stream) {
        /*
         * client_body_timeout began again with each DATA frame, although we do
         * not read: the client is not to blame
         */
        rev->timedout = 0;
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

    if (!ngx_http_tokenring_socket_ended(c, &err)) {
        return 0;
    }

    rev->eof = 1;
    c->error = 1;

    if (err) {
        rev->error = 1;
    }

    ngx_log_error(NGX_LOG_INFO, c->log, err,
                  "client prematurely closed connection");

    return 1;
}


/* err: why, 0 when it was simply closed */

static ngx_uint_t
ngx_http_tokenring_socket_ended(ngx_connection_t *c, ngx_err_t *err)
{
    int           n;
    char          byte;
    ngx_event_t  *rev;

    rev = c->read;
    *err = 0;

#if (NGX_HAVE_EPOLLRDHUP)
    if ((ngx_event_flags & NGX_USE_EPOLL_EVENT) && ngx_use_epoll_rdhup) {
        socklen_t  len;

        if (!rev->pending_eof) {
            return 0;
        }

        len = sizeof(ngx_err_t);

        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) err, &len)
            == -1)
        {
            *err = ngx_socket_errno;
        }

        return 1;
    }
#endif

    n = recv(c->fd, &byte, 1, MSG_PEEK);

    if (n == -1) {
        *err = ngx_socket_errno;
    }

    if ((ngx_event_flags & NGX_USE_LEVEL_EVENT) && rev->active && n > 0) {
        (void) ngx_del_event(rev, NGX_READ_EVENT, 0);
    }

    return !(n > 0 || *err == NGX_EAGAIN);
}


void
ngx_http_tokenring_hang_up(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_request_t  *r;

    if (ctx->gone) {
        return;
    }

    r = ctx->request;

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring request: the client is gone, state:%s "
                   "detach:%ud has slot:%d",
                   ngx_http_tokenring_states[ctx->state].name,
                   (u_int) ctx->detach, ctx->conn != NULL);

    ctx->gone = 1;
    r->connection->error = 1;

    if (ctx->conn == NULL || ctx->state < NGX_HTTP_TOKENRING_QUEUED
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

    ngx_http_tokenring_choices_free(ctx);
    ngx_http_tokenring_text_free(&ctx->queue);
    ngx_http_tokenring_text_free(&ctx->repeated);

    ctx->pending = 0;

    ctx->deadline = ngx_current_msec + NGX_HTTP_TOKENRING_HOLD;
    ngx_http_tokenring_arm(ctx);
}


/* the timer is moved only if it must fire earlier */

void
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

    if ((ctx->moving || ctx->anew) && ctx->state == NGX_HTTP_TOKENRING_HELD
        && (ngx_msec_int_t) (ngx_current_msec + NGX_HTTP_TOKENRING_AGAIN - at)
           < 0)
    {
        at = ngx_current_msec + NGX_HTTP_TOKENRING_AGAIN;
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

    /* send_timeout watches over a slow client */

    if (ctx->blocked && !ctx->gone) {

        if (!ngx_http_tokenring_on_its_way(ctx)) {
            ctx->deadline = ngx_current_msec + ctx->conf->idle_timeout;
        }

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
        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, c->log, 0,
                       "tokenring request: a comment is due");

        ctx->comment = 1;
        ctx->sent = ngx_current_msec;
    }

    if ((ctx->moving || ctx->anew)
        && ctx->state == NGX_HTTP_TOKENRING_HELD)
    {
        if (ngx_http_tokenring_move_retry(ctx) == NGX_DONE) {
            ngx_http_run_posted_requests(c);
            return;
        }
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

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: time is up, state:%s gone:%ud",
                   ngx_http_tokenring_states[ctx->state].name,
                   (u_int) ctx->gone);

    if (ctx->follow) {
        ngx_http_tokenring_follow_expired(ctx);
        return;
    }

    if (ctx->gone) {
        ngx_http_tokenring_finalize(ctx, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        return;
    }

    if (ctx->state == NGX_HTTP_TOKENRING_SEAT) {
        ngx_http_tokenring_seat_expired(ctx);
        return;
    }

    message = ngx_http_tokenring_overdue(ctx, &error);

    if (message == NULL) {
        return;
    }

    ngx_http_tokenring_fail(ctx, error, message);
    ngx_http_tokenring_slot_abandon(ctx);

    /* if the client does not read, send_timeout ends it */
    ngx_add_timer(&ctx->timer, ctx->conf->idle_timeout);

    ngx_http_tokenring_flush(ctx);
}


/* what did not come in time, by the state; NULL: it may still come */

static const char *
ngx_http_tokenring_overdue(ngx_http_tokenring_ctx_t *ctx, tr_status_t *error)
{
    *error = TR_ERR_TIMEOUT;

    switch (ngx_http_tokenring_on_its_way(ctx) ? NGX_HTTP_TOKENRING_HELD
                                               : ctx->state)
    {

    case NGX_HTTP_TOKENRING_WAIT:
    case NGX_HTTP_TOKENRING_HELD:
        *error = TR_ERR_NO_ENGINE;
        return "No engine is available";

    case NGX_HTTP_TOKENRING_READ:
    case NGX_HTTP_TOKENRING_GATHER:
    case NGX_HTTP_TOKENRING_SEND:
        /* it is the client's turn, and client_body_timeout watches over it */
        ctx->deadline = ngx_current_msec + ngx_http_tokenring_limit(ctx);
        ngx_http_tokenring_arm(ctx);
        return NULL;

    case NGX_HTTP_TOKENRING_STARVED:
        return "The engine did not accept the request in time";

    case NGX_HTTP_TOKENRING_QUEUED:
    case NGX_HTTP_TOKENRING_ACCEPTED:
        return "The request waited too long in the engine's queue";

    case NGX_HTTP_TOKENRING_PREFILL:
        return "The engine did not produce the first token in time";

    case NGX_HTTP_TOKENRING_DECODE:
        return "The engine did not produce the next token in time";

    case NGX_HTTP_TOKENRING_OVER:
        /* the error is known already: fail() does not replace it */
        return "";

    default: /* NGX_HTTP_TOKENRING_NEW, NGX_HTTP_TOKENRING_SEAT,
                NGX_HTTP_TOKENRING_DONE */
        return NULL;
    }
}


/* the request ends, for whatever reason; r and its connection still exist */

void
ngx_http_tokenring_cleanup(void *data)
{
    ngx_http_tokenring_ctx_t  *ctx = data;

    if (ctx->state == NGX_HTTP_TOKENRING_DONE) {
        return;
    }

    ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_DONE);

    if (ctx->conn && ctx->body_sent && !ctx->error) {
        /*
         * ended by nginx itself: an HTTP/3 connection, worker_shutdown_timeout
         */
        ctx->gone = 1;
    }

    /* before its tenant is told what it had: it may go on */
    ngx_http_tokenring_slot_abandon(ctx);

    ngx_http_tokenring_tenant_end(ctx);
    ngx_http_tokenring_upload_end(ctx);
    ngx_http_tokenring_body_uncharge(ctx);
    ngx_http_tokenring_move_forget(ctx);

    ngx_http_tokenring_socket_return(ctx->request->connection);

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    if (ctx->is_dirty) {
        ngx_queue_remove(&ctx->dirty);
        ctx->is_dirty = 0;
    }

    if (ctx->follow) {
        ngx_http_tokenring_follow_end(ctx);
    }

    if (ctx->shared) {
        (void) ngx_atomic_fetch_add(
                   &ctx->shared->processes[ngx_process_slot].active, -1);
    }
}


/* freed with the pool: output filters may hold the buffers until then */

void
ngx_http_tokenring_pool_cleanup(void *data)
{
    ngx_http_tokenring_ctx_t  *ctx = data;

    ngx_http_tokenring_choices_free(ctx);
    ngx_http_tokenring_text_free(&ctx->queue);
    ngx_http_tokenring_text_free(&ctx->repeated);
    ngx_http_tokenring_text_free(&ctx->head);
    ngx_http_tokenring_text_free(&ctx->out);
}
