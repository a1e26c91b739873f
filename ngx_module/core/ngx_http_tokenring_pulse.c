/*
 * Signs of life of an engine: pings, and whether it takes requests.
 *
 * A stopped engine keeps its socket and its status page.  So where nothing was
 * heard for a while it is pinged: by whoever asks for its health, and twice a
 * second while requests are with it.  An idle engine is not woken.
 *
 * One that hangs is left by those that it has not answered.  Where others can
 * go on elsewhere, too, it is fenced: its channel is closed.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_slot.h"


/* how long nothing is heard before the engine is pinged, ms; how long it may
 * take for an answer */
#define NGX_HTTP_TOKENRING_PROBE      500
#define NGX_HTTP_TOKENRING_PONG       2000

/* how often one is pinged that is heard: its step loop may hang all the same */
#define NGX_HTTP_TOKENRING_PULSE      2000


static ngx_uint_t ngx_http_tokenring_answers(ngx_http_tokenring_conn_t *conn,
    ngx_msec_t stall);
static ngx_uint_t ngx_http_tokenring_hangs(ngx_http_tokenring_conn_t *conn);
static void ngx_http_tokenring_fence(ngx_http_tokenring_conn_t *conn);
static void ngx_http_tokenring_leave(ngx_http_tokenring_conn_t *conn);


/*
 * An engine may be stopped between the two answers: the step loop's is not
 * waited for, but its time goes on from the first ping without one.
 */

void
ngx_http_tokenring_ping(ngx_http_tokenring_conn_t *conn)
{
    if (conn->state != NGX_HTTP_TOKENRING_READY
        || conn->broken
        || !(conn->features & TR_FEATURE_PING)
        || !tr_channel_front_answers(&conn->map))
    {
        return;
    }

    if (tr_channel_loop_answers(&conn->map)) {
        conn->pinged = ngx_current_msec;

    } else if (ngx_current_msec - conn->asked < NGX_HTTP_TOKENRING_PROBE) {
        return;
    }

    conn->asked = ngx_current_msec;

    if (tr_channel_ping(&conn->map)) {
        ngx_http_tokenring_ring(conn);
    }
}


static ngx_uint_t
ngx_http_tokenring_answers(ngx_http_tokenring_conn_t *conn, ngx_msec_t stall)
{
    if (!(conn->features & TR_FEATURE_PING)) {
        return 1;
    }

    return (tr_channel_front_answers(&conn->map)
            || ngx_current_msec - conn->asked < NGX_HTTP_TOKENRING_PONG)
           && (tr_channel_loop_answers(&conn->map)
               || ngx_current_msec - conn->pinged
                  < ngx_max(stall, NGX_HTTP_TOKENRING_PONG));
}


void
ngx_http_tokenring_probe(ngx_http_tokenring_conn_t *conn)
{
    if (!conn->probe.timer_set && (conn->features & TR_FEATURE_PING)) {
        ngx_add_timer(&conn->probe, NGX_HTTP_TOKENRING_PROBE);
    }
}


void
ngx_http_tokenring_probe_event(ngx_event_t *ev)
{
    ngx_http_tokenring_conn_t  *conn;

    conn = ev->data;

    if (conn->state != NGX_HTTP_TOKENRING_READY
        || conn->broken
        || conn->outstanding == 0)
    {
        conn->missed = 0;
        return;
    }

    /* in turns of ours: a worker that was stopped, too, blames nobody */

    conn->missed = tr_channel_front_answers(&conn->map) ? 0 : conn->missed + 1;

    if (ngx_current_msec - conn->heard >= NGX_HTTP_TOKENRING_PROBE
        || ngx_current_msec - conn->pinged >= NGX_HTTP_TOKENRING_PULSE)
    {
        ngx_http_tokenring_ping(conn);
    }

    ngx_add_timer(&conn->probe, NGX_HTTP_TOKENRING_PROBE);

    if (ngx_http_tokenring_hangs(conn)) {
        ngx_http_tokenring_fence(conn);
        return;
    }

    if (conn->missed >= NGX_HTTP_TOKENRING_PONG / NGX_HTTP_TOKENRING_PROBE) {
        ngx_http_tokenring_leave(conn);
    }
}


/*
 * Does the engine hang, with requests that need not wait until it goes on, but
 * can move (_migrate.c)?  Its frontend thread is given two seconds, its step
 * loop tokenring_stall_timeout.
 */

static ngx_uint_t
ngx_http_tokenring_hangs(ngx_http_tokenring_conn_t *conn)
{
    uint32_t                   i;
    ngx_msec_t                 age;
    ngx_uint_t                 mute;
    ngx_http_tokenring_ctx_t  *ctx;

    if (conn->missed == 0 && tr_channel_loop_answers(&conn->map)) {
        return 0;
    }

    mute = (conn->missed >= NGX_HTTP_TOKENRING_PONG / NGX_HTTP_TOKENRING_PROBE);
    age = ngx_current_msec - conn->pinged;

    for (i = 0; i < conn->map.slots; i++) {
        ctx = conn->slots[i].ctx;

        if (ctx && ctx->movable && ngx_http_tokenring_move_left(ctx)
            && (mute || age >= ngx_max(ctx->conf->stall_timeout,
                                       NGX_HTTP_TOKENRING_PONG)))
        {
            return 1;
        }
    }

    return 0;
}


/*
 * Its channel is closed: whatever it does when it goes on, no client hears it,
 * and it ends the requests that it finds without a worker.  Ours are at other
 * engines by then; what it still writes to Redis of those is refused there.
 */

static void
ngx_http_tokenring_fence(ngx_http_tokenring_conn_t *conn)
{
    tr_channel_fence(&conn->map);
    ngx_http_tokenring_hear(conn);

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "tokenring: channel closed, engine=%V socket=%V "
                  "requests=%ui: the engine does not answer",
                  &conn->engine->name, &conn->addr.name, conn->outstanding);

    ngx_http_tokenring_count(engine_losses);

    ngx_http_tokenring_close(conn);
}


/* those that the engine has not answered at all go elsewhere, or fail */

static void
ngx_http_tokenring_leave(ngx_http_tokenring_conn_t *conn)
{
    uint32_t                   i, n;
    ngx_http_tokenring_ctx_t  *ctx;

    n = 0;

    for (i = 0; i < conn->map.slots; i++) {
        ctx = conn->slots[i].ctx;

        if (ctx == NULL
            || (ctx->state != NGX_HTTP_TOKENRING_QUEUED
                && ctx->state != NGX_HTTP_TOKENRING_STARVED))
        {
            continue;
        }

        ngx_http_tokenring_fail(ctx, TR_ERR_CLOSED,
                                "The engine does not answer");
        ngx_http_tokenring_slot_abandon(ctx);
        ngx_http_tokenring_dirty(conn, ctx);
        n++;
    }

    if (n) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "tokenring: the engine does not answer, engine=%V "
                      "socket=%V requests=%uD", &conn->engine->name,
                      &conn->addr.name, n);

        ngx_http_tokenring_flush_dirty(conn);
    }
}


/*
 * Does the engine accept requests?  Answered from its status page alone.  An
 * idle engine makes no steps, so only one that has work can be stalled.
 */

ngx_uint_t
ngx_http_tokenring_healthy(ngx_http_tokenring_conn_t *conn, ngx_msec_t stall,
    const char **why)
{
    uint64_t                now;
    tr_status_admission_t  *a;

    if (conn->state != NGX_HTTP_TOKENRING_READY || conn->broken) {
        *why = "not connected";
        return 0;
    }

    a = &conn->admission;
    (void) tr_status_read(conn->page, a);

    if (!ngx_http_tokenring_answers(conn, stall)) {
        *why = "not answering";
        return 0;
    }

    if (a->state == TR_ENGINE_LOADING) {
        *why = "loading";
        return 0;
    }

    if (a->state == TR_ENGINE_DRAINING) {
        *why = "draining";
        return 0;
    }

    if (a->state != TR_ENGINE_READY) {
        *why = "failed";
        return 0;
    }

    now = ngx_http_tokenring_clock();

    if (a->running && now > a->last_step_us
        && now - a->last_step_us > (uint64_t) stall * 1000)
    {
        *why = "stalled";
        return 0;
    }

    *why = "ready";
    return 1;
}
