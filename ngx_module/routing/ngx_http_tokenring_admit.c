/*
 * Admission: an engine for a request, or a wait for one whose handshake is
 * under way, or why there is none.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_models.h"
#include "ngx_http_tokenring_prefix.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_slot.h"


static void ngx_http_tokenring_wake_group(ngx_http_tokenring_group_t *group);


/*
 * NGX_OK: the request has a connection and a slot; NGX_AGAIN: it waits for
 * one; NGX_DECLINED: it is refused, and the error is in ctx.
 */

ngx_int_t
ngx_http_tokenring_admit(ngx_http_tokenring_ctx_t *ctx)
{
    tr_status_t                 rc;
    const char                 *message;
    ngx_http_tokenring_conn_t  *conn;

    do {
        rc = ngx_http_tokenring_choose(ctx, &conn);

        if (rc == TR_OK && ngx_http_tokenring_slot_take(conn, ctx) == NGX_OK) {
            ngx_http_tokenring_prefix_note(ctx, conn);
            return NGX_OK;
        }

    } while (rc != TR_AGAIN && !ctx->moving
             && ngx_http_tokenring_fall_back(ctx));

    if (rc == TR_AGAIN || ctx->moving || ctx->anew) {
        ngx_http_tokenring_set_state(ctx,
                                     (ctx->state <= NGX_HTTP_TOKENRING_WAIT)
                                     ? NGX_HTTP_TOKENRING_WAIT
                                     : NGX_HTTP_TOKENRING_HELD);

        ngx_http_tokenring_watch(ctx);

        return NGX_AGAIN;
    }

    switch (rc) {

    case TR_ERR_DRAINING:
        message = "The engine is shutting down";
        break;

    case TR_ERR_NO_ENGINE:
        message = ctx->wanted.len
                  ? "No engine that serves this model is available"
                  : "No engine is available";
        break;

    default:
        rc = TR_ERR_QUEUE_FULL;
        message = ctx->request->reading_body
                  ? "The engine's queue is full, or too many large requests "
                    "are being uploaded"
                  : "The engine's queue is full";
        break;
    }

    ngx_http_tokenring_fail(ctx, rc, message);
    ctx->retry_after = NGX_HTTP_TOKENRING_RETRY_AFTER;

    return NGX_DECLINED;
}


/* a handshake has succeeded or failed: try the waiting requests again */

void
ngx_http_tokenring_wake(ngx_http_tokenring_engine_t *engine)
{
    ngx_uint_t                    i;
    ngx_http_tokenring_group_t  **groups;

    groups = engine->groups.elts;

    for (i = 0; i < engine->groups.nelts; i++) {
        ngx_http_tokenring_wake_group(groups[i]);
    }
}


static void
ngx_http_tokenring_wake_group(ngx_http_tokenring_group_t *group)
{
    ngx_queue_t                waiting, *q;
    ngx_http_tokenring_ctx_t  *ctx;

    if (ngx_queue_empty(&group->waiting)) {
        return;
    }

    ngx_queue_init(&waiting);
    ngx_queue_add(&waiting, &group->waiting);
    ngx_queue_init(&group->waiting);

    while (!ngx_queue_empty(&waiting)) {
        q = ngx_queue_head(&waiting);
        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, wait);

        ngx_http_tokenring_resume_waiting(ctx);
    }
}


void
ngx_http_tokenring_resume_waiting(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_uint_t           held;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    held = (ctx->state == NGX_HTTP_TOKENRING_HELD);

    /* an engine whose handshake has ended may serve another model */

    rc = held ? NGX_OK : ngx_http_tokenring_pick_early(ctx);

    if (rc == NGX_OK) {
        rc = ngx_http_tokenring_admit(ctx);

        if (rc == NGX_AGAIN) {
            return;
        }

    } else if (rc == NGX_AGAIN) {
        rc = NGX_OK;

    } else if (rc == NGX_ERROR) {
        ngx_http_tokenring_fail(ctx, TR_ERR_NOMEM,
                                "The gateway ran out of memory");
    }

    if (held) {
        /* its body is kept; the reference to r is that of reading the body */
        ngx_http_tokenring_body_resend(ctx);
        ngx_http_run_posted_requests(c);
        return;
    }

    if (rc == NGX_OK) {
        rc = ngx_http_tokenring_body_read(ctx);

        if (rc < NGX_HTTP_SPECIAL_RESPONSE) {
            /* drop the reference of the wait; reading holds its own */
            ngx_http_finalize_request(r, NGX_DONE);
            ngx_http_run_posted_requests(c);
            return;
        }

        rc = ngx_http_tokenring_send_http_error(r, rc);

    } else {
        rc = ngx_http_tokenring_send_failure(ctx);
    }

    ngx_http_tokenring_finalize(ctx, rc);

    ngx_http_run_posted_requests(c);
}
