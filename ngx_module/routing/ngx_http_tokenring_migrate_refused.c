/*
 * Engines that do not go on with a request that moves (_migrate.c).
 *
 * The client has it begun, so what such an engine says is not the client's
 * error: it is noted for that run of the engine, and another one is looked for.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_request.h"


static void ngx_http_tokenring_move_refused(ngx_http_tokenring_ctx_t *ctx,
    tr_status_t status);
static ngx_int_t ngx_http_tokenring_move_note(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t gave);


/* an error of the engine's, before it is known what becomes of it */

void
ngx_http_tokenring_move_error(ngx_http_tokenring_ctx_t *ctx,
    tr_status_t status)
{
    if (!ctx->movable || ctx->state >= NGX_HTTP_TOKENRING_OVER) {
        return;
    }

    if (ctx->moving) {
        ngx_http_tokenring_move_refused(ctx, status);
        return;
    }

    /*
     * It stops while the request is in its queue, and gives it back: no loss,
     * but for an engine that does so again.
     */

    if (status == TR_ERR_DRAINING
        && ctx->state == NGX_HTTP_TOKENRING_ACCEPTED
        && !ngx_http_tokenring_move_noted(ctx, ctx->conn, 1)
        && ngx_http_tokenring_move_note(ctx, 1) == NGX_OK)
    {
        ctx->unserved = 1;
    }
}


/*
 * It is on its way, and what is wrong is not its own: the client has it begun.
 * The engine that was to continue it does not, and another may.  It is asked
 * again soon if it has no place just now; if there is any other reason, when it
 * has been started anew.
 */

static void
ngx_http_tokenring_move_refused(ngx_http_tokenring_ctx_t *ctx,
    tr_status_t status)
{
    if (ngx_http_tokenring_died(status) || status == TR_ERR_CANCELLED) {
        return;
    }

    ctx->refused = 1;

    if (status == TR_ERR_QUEUE_FULL
        || status == TR_ERR_DRAINING
        || status == TR_ERR_MOVED)
    {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                  "tokenring: does not go on at this engine, engine=%V "
                  "socket=%V request=%V status=%s",
                  &ctx->conn->engine->name, &ctx->conn->addr.name,
                  &ctx->request_id, tr_status_info(status).name);

    /* without memory for that, it is asked again */
    (void) ngx_http_tokenring_move_note(ctx, 0);
}


/* this run of the engine will not go on with it; gave: has given it back */

static ngx_int_t
ngx_http_tokenring_move_note(ngx_http_tokenring_ctx_t *ctx, ngx_uint_t gave)
{
    ngx_http_tokenring_note_t  *note;

    note = ngx_palloc(ctx->request->pool, sizeof(ngx_http_tokenring_note_t));
    if (note == NULL) {
        return NGX_ERROR;
    }

    note->conn = ctx->conn;
    note->generation = ctx->conn->map.generation;
    note->gave = gave;
    note->next = ctx->notes;

    ctx->notes = note;

    return NGX_OK;
}


ngx_uint_t
ngx_http_tokenring_move_noted(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn, ngx_uint_t gave)
{
    ngx_http_tokenring_note_t  *note;

    for (note = ctx->notes; note; note = note->next) {
        if (note->conn == conn
            && note->generation == conn->map.generation
            && note->gave == gave)
        {
            return 1;
        }
    }

    return 0;
}
