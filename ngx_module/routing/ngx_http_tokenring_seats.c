/*
 * Seats: a plan says how many requests of a tenant are served at once (seats=),
 * and how many more wait for that (queue=).
 *
 * Who waits stands in a line in shared memory, whose order holds over all
 * workers (_accounts.c): whoever ends gives its seat to the first.  That one's
 * worker finds out by itself: at once where it freed the seat, else within the
 * time below.  A body is read only then, so a client that waits costs little.
 */

#include "ngx_http_tokenring_accounts.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"


/* how often a worker looks while any of its requests waits, ms */
#define NGX_HTTP_TOKENRING_LOOK  20


static void ngx_http_tokenring_seat_handler(ngx_event_t *ev);
static void ngx_http_tokenring_seat_take(ngx_http_tokenring_ctx_t *ctx);


/* of this worker: requests in the state SEAT */

static ngx_queue_t  ngx_http_tokenring_seat_waiting;
static ngx_event_t  ngx_http_tokenring_seat_event;


ngx_queue_t *
ngx_http_tokenring_seat_queue(void)
{
    ngx_event_t  *ev;

    ev = &ngx_http_tokenring_seat_event;

    if (ev->handler == NULL) {
        ngx_queue_init(&ngx_http_tokenring_seat_waiting);

        ev->handler = ngx_http_tokenring_seat_handler;
        ev->log = ngx_cycle->log;
        ev->data = &ngx_http_tokenring_seat_waiting;
    }

    if (!ev->timer_set) {
        ngx_add_timer(ev, NGX_HTTP_TOKENRING_LOOK);
    }

    return &ngx_http_tokenring_seat_waiting;
}


void
ngx_http_tokenring_seat_freed(void)
{
    ngx_event_t  *ev;

    ev = &ngx_http_tokenring_seat_event;

    if (ev->handler && !ngx_queue_empty(&ngx_http_tokenring_seat_waiting)) {
        ngx_post_event(ev, &ngx_posted_next_events);
    }
}


void
ngx_http_tokenring_seat_leave(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_shm_zone_t  *zone;

    if (ctx->use == NULL || ctx->use->hold == NULL
        || ctx->use->plan->seats == 0
        || ctx->use->hold->seat != NGX_HTTP_TOKENRING_SEATED)
    {
        return;
    }

    zone = ctx->use->zone;

    ngx_http_tokenring_accounts_lock(zone);
    ngx_http_tokenring_hold_rise(ctx->use->hold);
    ngx_http_tokenring_accounts_unlock(zone);

    ngx_http_tokenring_seat_freed();
}


static void
ngx_http_tokenring_seat_handler(ngx_event_t *ev)
{
    ngx_queue_t                seated, *q, *next;
    ngx_http_tokenring_ctx_t  *ctx;

    ngx_queue_init(&seated);

    for (q = ngx_queue_head(&ngx_http_tokenring_seat_waiting);
         q != ngx_queue_sentinel(&ngx_http_tokenring_seat_waiting);
         q = next)
    {
        next = ngx_queue_next(q);
        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, wait);

        if (ctx->use->hold->seat != NGX_HTTP_TOKENRING_IN_LINE) {
            ngx_queue_remove(q);
            ngx_queue_insert_tail(&seated, q);
        }
    }

    /* each leaves the queue with its state; one may end another, which then
     * leaves it, too */

    while (!ngx_queue_empty(&seated)) {
        q = ngx_queue_head(&seated);

        ngx_http_tokenring_seat_take(ngx_queue_data(q,
                                          ngx_http_tokenring_ctx_t, wait));
    }

    if (!ngx_queue_empty(&ngx_http_tokenring_seat_waiting) && !ev->timer_set) {
        ngx_add_timer(ev, NGX_HTTP_TOKENRING_LOOK);
    }
}


/* what a budget had when it came may be gone; or Redis has not told yet */

static void
ngx_http_tokenring_seat_take(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_connection_t           *c;
    ngx_http_tokenring_view_t   empty;

    switch (ngx_http_tokenring_still_has(ctx, &empty)) {

    case NGX_OK:
        ctx->use->hold->waits = 0;
        ngx_http_tokenring_resume_waiting(ctx);
        return;

    case NGX_AGAIN:
        ngx_queue_remove(&ctx->wait);
        ngx_queue_insert_tail(&ngx_http_tokenring_seat_waiting, &ctx->wait);
        return;

    default: /* NGX_DECLINED */
        break;
    }

    c = ctx->request->connection;

    ngx_http_set_log_request(c->log, ctx->request);

    ngx_http_tokenring_finalize(ctx,
                                ngx_http_tokenring_limit_refuse(ctx, &empty));

    ngx_http_run_posted_requests(c);
}


void
ngx_http_tokenring_seat_expired(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_finalize(ctx, ngx_http_tokenring_seat_refuse(ctx));
}
