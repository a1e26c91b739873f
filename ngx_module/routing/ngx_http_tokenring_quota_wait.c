/*
 * Requests whose engines have sampled all that they are allowed to, and whose
 * budget is in Redis (ngx_http_tokenring_quota.h): they wait for its reply, and
 * look again now and then, since it may have come to another worker.
 */

#include "ngx_http_tokenring_quota.h"
#include "ngx_http_tokenring_alone.h"
#include "ngx_http_tokenring_request.h"


/* ms: how often they look */
#define NGX_HTTP_TOKENRING_QUOTA_LOOK  20


static void ngx_http_tokenring_quota_handler(ngx_event_t *ev);


/* of this worker */

static ngx_queue_t  ngx_http_tokenring_starving;
static ngx_event_t  ngx_http_tokenring_quota_event;


void
ngx_http_tokenring_quota_starve(ngx_http_tokenring_use_t *use)
{
    ngx_event_t  *ev;

    ev = &ngx_http_tokenring_quota_event;

    if (ev->handler == NULL) {
        ngx_queue_init(&ngx_http_tokenring_starving);

        ev->handler = ngx_http_tokenring_quota_handler;
        ev->log = ngx_cycle->log;
        ev->data = &ngx_http_tokenring_starving;
    }

    if (!use->starved) {
        use->starved = 1;
        ngx_queue_insert_tail(&ngx_http_tokenring_starving, &use->queue);
    }

    if (!ev->timer_set) {
        ngx_add_timer(ev, NGX_HTTP_TOKENRING_QUOTA_LOOK);
    }
}


void
ngx_http_tokenring_quota_leave(ngx_http_tokenring_use_t *use)
{
    if (use->starved) {
        use->starved = 0;
        ngx_queue_remove(&use->queue);
    }
}


void
ngx_http_tokenring_quota_wake(void)
{
    ngx_event_t  *ev;

    ngx_http_tokenring_seat_freed();

    ev = &ngx_http_tokenring_quota_event;

    if (ev->handler && !ngx_queue_empty(&ngx_http_tokenring_starving)) {
        ngx_post_event(ev, &ngx_posted_next_events);
    }
}


static void
ngx_http_tokenring_quota_handler(ngx_event_t *ev)
{
    ngx_queue_t                all, *q;
    ngx_http_tokenring_use_t  *use;

    if (ngx_queue_empty(&ngx_http_tokenring_starving)) {
        return;
    }

    /* who still gets nothing comes back to the queue; one may end another */

    ngx_queue_init(&all);
    ngx_queue_add(&all, &ngx_http_tokenring_starving);
    ngx_queue_init(&ngx_http_tokenring_starving);

    while (!ngx_queue_empty(&all)) {
        q = ngx_queue_head(&all);
        use = ngx_queue_data(q, ngx_http_tokenring_use_t, queue);

        ngx_http_tokenring_quota_leave(use);

        if (use->ctx) {
            ngx_http_tokenring_charge_again(use->ctx);

        } else {
            ngx_http_tokenring_alone_draw(use, 0);
        }
    }
}
