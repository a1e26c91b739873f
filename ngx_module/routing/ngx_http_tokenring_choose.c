/*
 * Which engine gets a request: the one with the least to do.
 *
 * Looked up on the engines' status pages, with nobody asked, when a request
 * comes and again when its body is complete or its engine has refused it.
 */

#include "ngx_http_tokenring_affinity.h"
#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_prefix.h"
#include "ngx_http_tokenring_request.h"


static ngx_uint_t ngx_http_tokenring_suits(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn);
static ngx_uint_t ngx_http_tokenring_takes(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn, tr_status_t *rc);
static ngx_http_tokenring_conn_t *ngx_http_tokenring_least_loaded(
    ngx_http_tokenring_ctx_t *ctx, ngx_uint_t *pending, tr_status_t *rc);
static ngx_uint_t ngx_http_tokenring_start(ngx_http_tokenring_ctx_t *ctx);
static ngx_http_tokenring_conn_t *ngx_http_tokenring_warmest(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_conn_t *least);
static ngx_http_tokenring_conn_t *ngx_http_tokenring_preferred(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_conn_t *least);
static ngx_uint_t ngx_http_tokenring_may_connect(ngx_http_tokenring_ctx_t *ctx);
static ngx_uint_t ngx_http_tokenring_handshakes(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn);
static ngx_uint_t ngx_http_tokenring_crowded(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn);
static ngx_http_tokenring_conn_t *ngx_http_tokenring_make_room(
    ngx_http_tokenring_ctx_t *ctx);


/*
 * The load of an engine, in tokens: prompts and, as far as can be known,
 * answers of all its requests (docs/fleet.md has the rule).  The engine counts
 * them on its status page, for all workers; those that we have sent and it has
 * not counted yet are added.  A page that is late, or an engine that does not
 * count, cannot hide our own prompts.
 */

uint64_t
ngx_http_tokenring_conn_load(ngx_http_tokenring_conn_t *conn)
{
    uint64_t  tokens;

    /* written by the engine: no value may cause an overflow below */
    tokens = ngx_min(conn->admission.outstanding_tokens,
                     (uint64_t) 1 << 40);

    return ngx_max(tokens, conn->known) + conn->guessed + 1;
}


/* the bit of a connection in a mask; beyond 64, connections share bits */

uint64_t
ngx_http_tokenring_conn_bit(ngx_http_tokenring_conn_t *conn)
{
    return (uint64_t) 1 << (conn->number % 64);
}


ngx_uint_t
ngx_http_tokenring_conn_may_serve(ngx_http_tokenring_conn_t *conn,
    ngx_str_t *model)
{
    uint32_t     i;
    const char  *name;

    if (conn->card.model[0] == '\0') {
        return 1;
    }

    for (i = 0; (name = tr_status_model_name(&conn->card, i)) != NULL; i++) {

        if (ngx_strlen(name) == model->len
            && ngx_memcmp(name, model->data, model->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


ngx_msec_t
ngx_http_tokenring_group_handshake(ngx_http_tokenring_group_t *group)
{
    ngx_uint_t                   i;
    ngx_msec_t                   longest;
    ngx_http_tokenring_conn_t  **conns;

    conns = group->conns.elts;
    longest = NGX_HTTP_TOKENRING_HANDSHAKE;

    for (i = 0; i < group->conns.nelts; i++) {
        longest = ngx_max(longest, conns[i]->start_timeout);
    }

    return longest;
}


ngx_uint_t
ngx_http_tokenring_group_mixed(ngx_http_tokenring_group_t *group)
{
    char                        *model;
    ngx_uint_t                   i;
    ngx_http_tokenring_conn_t  **conns;

    conns = group->conns.elts;
    model = NULL;

    for (i = 0; i < group->conns.nelts; i++) {

        if (conns[i]->card.model[0] == '\0') {
            continue;
        }

        /* all of their names: what is behind them is zero */

        if (model && ngx_memcmp(conns[i]->card.model, model, TR_NAME_MAX) != 0)
        {
            return 1;
        }

        model = conns[i]->card.model;
    }

    return 0;
}


void
ngx_http_tokenring_group_model(ngx_http_tokenring_group_t *group,
    ngx_str_t *model)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_conn_t  **conns;

    conns = group->conns.elts;

    ngx_str_null(model);

    for (i = 0; i < group->conns.nelts && model->len == 0; i++) {
        model->data = (u_char *) conns[i]->card.model;
        model->len = ngx_strlen(conns[i]->card.model);
    }
}


/*
 * Is it one for this request?  One that moves goes where its model_id is, one
 * that names a model where that is served.
 */

static ngx_uint_t
ngx_http_tokenring_suits(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn)
{
    if (ctx->tried & ngx_http_tokenring_conn_bit(conn)) {
        return 0;
    }

    return ctx->wanted.len == 0 || ctx->moving
           || ngx_http_tokenring_conn_may_serve(conn, &ctx->wanted);
}


/*
 * May this connection take the request?  *rc: why not, if that is worse news
 * than what it was.
 */

static ngx_uint_t
ngx_http_tokenring_takes(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn, tr_status_t *rc)
{
    const char  *why;

    if (conn->state == NGX_HTTP_TOKENRING_READY
        && ((ctx->endpoint > TR_ENDPOINT_COMPLETIONS
             && !(conn->features & TR_FEATURE_ITEMS))
            || (ctx->asked.len && !(conn->features & TR_FEATURE_MODEL))
            || (ctx->moving && !ngx_http_tokenring_move_fits(ctx, conn))))
    {
        return 0;
    }

    if (!ngx_http_tokenring_healthy(conn, ctx->conf->stall_timeout, &why)) {

        if (conn->state == NGX_HTTP_TOKENRING_READY
            && conn->admission.state == TR_ENGINE_DRAINING
            && *rc == TR_ERR_NO_ENGINE)
        {
            *rc = TR_ERR_DRAINING;
        }

        return 0;
    }

    if (conn->admission.queue_free == 0
        || conn->outstanding >= conn->map.slots)
    {
        *rc = TR_ERR_QUEUE_FULL;
        return 0;
    }

    return 1;
}


/*
 * The connection with the least load, of those not tried yet; TR_AGAIN: a
 * handshake is in progress.  Incomplete bodies get at most half of the slots,
 * so that clients who send slowly, or not at all, cannot shut out the others.
 * Where all such places are taken, one upload that is slow makes room.
 */

tr_status_t
ngx_http_tokenring_choose(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t **out)
{
    ngx_uint_t                  pending;
    tr_status_t                 rc;
    ngx_http_tokenring_conn_t  *best;

    ctx->group->turn++;

    pending = 0;
    rc = TR_ERR_NO_ENGINE;

    best = ngx_http_tokenring_least_loaded(ctx, &pending, &rc);

    if (best == NULL && rc == TR_ERR_QUEUE_FULL) {
        best = ngx_http_tokenring_make_room(ctx);

    } else if (best) {
        best = ngx_http_tokenring_preferred(ctx, best);
    }

    if (best) {
        ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                       "tokenring request: engine %V, replica:%ui load:%uL "
                       "outstanding:%ui", &best->engine->name, best->replica,
                       ngx_http_tokenring_conn_load(best), best->outstanding);

        *out = best;
        return TR_OK;
    }

    if (!pending) {
        pending = ngx_http_tokenring_start(ctx);
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: no engine of %V, pending:%ui status:%s",
                   &ctx->group->name, pending, tr_status_info(rc).name);

    return pending ? TR_AGAIN : rc;
}


/*
 * NULL: none takes the request now, and rc says why, unless a handshake is
 * pending
 */

static ngx_http_tokenring_conn_t *
ngx_http_tokenring_least_loaded(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t *pending, tr_status_t *rc)
{
    uint64_t                      load, best_load;
    ngx_uint_t                    i, n;
    ngx_http_tokenring_conn_t    *conn, **conns, *best;
    ngx_http_tokenring_group_t   *group;

    group = ctx->group;

    n = group->conns.nelts;
    conns = group->conns.elts;

    best = NULL;
    best_load = 0;

    for (i = 0; i < n; i++) {
        conn = conns[(group->turn + i) % n];

        if (!ngx_http_tokenring_suits(ctx, conn)) {
            continue;
        }

        if (ngx_http_tokenring_handshakes(ctx, conn)) {
            *pending = 1;
            continue;
        }

        if (!ngx_http_tokenring_takes(ctx, conn, rc)) {
            continue;
        }

        if (ngx_http_tokenring_crowded(ctx, conn)) {
            *rc = TR_ERR_QUEUE_FULL;
            continue;
        }

        load = ngx_http_tokenring_conn_load(conn);

        if (best == NULL || load * best->weight < best_load * conn->weight) {
            best = conn;
            best_load = load;
        }
    }

    return best;
}


/* starts one that is started by who connects, if there is such a one: at once,
 * also where the last one has just ended, unless it could not be started */

static ngx_uint_t
ngx_http_tokenring_start(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t                    i, n;
    ngx_http_tokenring_conn_t    *conn, **conns;
    ngx_http_tokenring_group_t   *group;

    group = ctx->group;

    n = group->conns.nelts;
    conns = group->conns.elts;

    for (i = 0; i < n; i++) {
        conn = conns[(group->turn + i) % n];

        if (conn->ondemand
            && conn->state == NGX_HTTP_TOKENRING_IDLE
            && ngx_http_tokenring_may_connect(ctx)
            && (conn->complaint == 0
                || ngx_current_msec - conn->attempted
                   >= NGX_HTTP_TOKENRING_RETRY)
            && ngx_http_tokenring_suits(ctx, conn))
        {
            ngx_http_tokenring_connect(conn);

            if (conn->state == NGX_HTTP_TOKENRING_CONNECTING) {
                return 1;
            }
        }
    }

    return 0;
}


/*
 * The connection whose engine has most of the body's beginning in its cache, of
 * those that have not much more to do than the one that has the least; that
 * one, if none has any.
 */

static ngx_http_tokenring_conn_t *
ngx_http_tokenring_warmest(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *least)
{
    uint64_t                     bound;
    ngx_uint_t                   i, n, most;
    tr_status_t                  rc;
    ngx_http_tokenring_conn_t   *conn, **conns, *best;

    ngx_http_tokenring_prefix_look(ctx);

    /* of the loads divided by the weights, as above */

    bound = ngx_http_tokenring_conn_load(least);
    bound += bound / 4 + NGX_HTTP_TOKENRING_WARM * least->weight;

    conns = ctx->group->conns.elts;
    best = least;
    most = 0;
    rc = TR_OK;

    for (i = 0; i < ctx->group->conns.nelts; i++) {
        conn = conns[i];
        n = ngx_http_tokenring_prefix_match(ctx, conn);

        if (n > most
            && ngx_http_tokenring_suits(ctx, conn)
            && ngx_http_tokenring_takes(ctx, conn, &rc)
            && !ngx_http_tokenring_crowded(ctx, conn)
            && ngx_http_tokenring_conn_load(conn) * least->weight
               <= bound * conn->weight)
        {
            most = n;
            best = conn;
        }
    }

    return best;
}


/*
 * Where it is wanted that something of the request decides, and not the load
 * alone: first what is in a cache, then tokenring_affinity.
 */

static ngx_http_tokenring_conn_t *
ngx_http_tokenring_preferred(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *least)
{
    uint64_t                     value;
    ngx_uint_t                   i, n;
    tr_status_t                  rc;
    ngx_http_tokenring_conn_t  **conns, *best, *may[64];

    best = ctx->prefix ? ngx_http_tokenring_warmest(ctx, least) : NULL;

    if (best && ngx_http_tokenring_prefix_match(ctx, best)) {
        return best;
    }

    if (!ngx_http_tokenring_affinity_value(ctx, &value)) {
        return least;
    }

    conns = ctx->group->conns.elts;
    rc = TR_OK;

    for (i = 0, n = 0; i < ctx->group->conns.nelts && n < 64; i++) {

        if (ngx_http_tokenring_suits(ctx, conns[i])
            && ngx_http_tokenring_takes(ctx, conns[i], &rc)
            && !ngx_http_tokenring_crowded(ctx, conns[i]))
        {
            may[n++] = conns[i];
        }
    }

    return n ? ngx_http_tokenring_affinity_best(may, n, value) : least;
}


/* a worker that only ends its requests connects for those without an engine */

static ngx_uint_t
ngx_http_tokenring_may_connect(ngx_http_tokenring_ctx_t *ctx)
{
    return !ngx_exiting || ctx->moving || ctx->anew;
}


/* is it being connected?  An idle one is from now on, if its time has come and
 * that does not start it */

static ngx_uint_t
ngx_http_tokenring_handshakes(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn)
{
    if (conn->state == NGX_HTTP_TOKENRING_IDLE
        && !conn->ondemand
        && ngx_http_tokenring_may_connect(ctx)
        && ngx_current_msec - conn->attempted >= NGX_HTTP_TOKENRING_RETRY)
    {
        ngx_http_tokenring_connect(conn);
    }

    return conn->state == NGX_HTTP_TOKENRING_CONNECTING
           || conn->state == NGX_HTTP_TOKENRING_HANDSHAKING;
}


/* has it as many incomplete bodies as it may, and would this be another? */

static ngx_uint_t
ngx_http_tokenring_crowded(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn)
{
    return ctx->request->reading_body
           && conn->coming >= conn->map.slots / 2;
}


/* the first connection whose slowest upload may end for this one; NULL: none */

static ngx_http_tokenring_conn_t *
ngx_http_tokenring_make_room(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t                    i, n;
    tr_status_t                   rc;
    ngx_http_tokenring_conn_t    *conn, **conns;
    ngx_http_tokenring_group_t   *group;

    group = ctx->group;

    n = group->conns.nelts;
    conns = group->conns.elts;

    rc = TR_ERR_NO_ENGINE;

    for (i = 0; i < n; i++) {
        conn = conns[(group->turn + i) % n];

        if (ngx_http_tokenring_suits(ctx, conn)
            && ngx_http_tokenring_takes(ctx, conn, &rc)
            && ngx_http_tokenring_crowded(ctx, conn)
            && ngx_http_tokenring_upload_shed(conn) == NGX_OK)
        {
            return conn;
        }
    }

    return NULL;
}
