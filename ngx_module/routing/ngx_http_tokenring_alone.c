/*
 * What requests use that go on without their clients (X-Tokenring-Detach),
 * where their tenants have budgets.
 *
 * The engine tells nothing of such a request but its end.  So when its client
 * leaves, all that its answer may still have is drawn from the budgets, or what
 * is left; what it did not use goes back at its end.  Until Redis has given all
 * of it, where hosts share the plan, it stands among those who starve
 * (_quota.c).
 *
 * A worker that dies cannot give back what such an answer had: the engine goes
 * on with it.
 */

#include "ngx_http_tokenring_quota.h"
#include "ngx_http_tokenring_alone.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_slot.h"


static void ngx_http_tokenring_alone_tell(ngx_http_tokenring_use_t *use,
    ngx_uint_t more);


ngx_http_tokenring_use_t *
ngx_http_tokenring_alone(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_use_t  *use;

    if (ctx->use == NULL || ctx->use->hold == NULL || !ctx->use->metered) {
        return NULL;
    }

    ngx_http_tokenring_charge(ctx);
    ngx_http_tokenring_quota_leave(ctx->use);

    use = ngx_alloc(sizeof(ngx_http_tokenring_use_t), ngx_cycle->log);

    if (use == NULL) {
        /* the engine may use what it has, which is not given back, and no more:
         * nobody would allow it more */
        ngx_http_tokenring_control(ctx, TR_CONTROL_END);
        ctx->use->hold->leased = 0;
        return NULL;
    }

    *use = *ctx->use;
    use->ctx = NULL;
    use->ended = 0;
    use->conn = ctx->conn;
    use->id = ctx->id;

    ctx->use->hold = NULL;

    ngx_http_tokenring_alone_draw(use, 0);
    ngx_http_tokenring_seat_freed();

    return use;
}


void
ngx_http_tokenring_alone_accepted(ngx_http_tokenring_use_t *use,
    tr_wire_accepted_t *head)
{
    uint64_t  in;

    in = (head->prompt_tokens > use->in) ? head->prompt_tokens - use->in : 0;

    use->in += in;
    use->most = ngx_min(head->max_total, UINT32_MAX);

    ngx_http_tokenring_alone_draw(use, (int64_t) in);
}


void
ngx_http_tokenring_alone_draw(ngx_http_tokenring_use_t *use, int64_t in)
{
    int64_t                        left, n;
    ngx_uint_t                     more;
    ngx_http_tokenring_turn_t      turn;
    ngx_http_tokenring_account_t  *a;

    a = ngx_http_tokenring_account_open(use, &turn);
    more = 0;

    if (a) {
        ngx_http_tokenring_hold_rise(use->hold);

        ngx_http_tokenring_take(a, use->plan, in, 0);

        left = ngx_http_tokenring_left(a, use->plan, &turn.clock, &more);
        n = ngx_min(left, (int64_t) use->most - (int64_t) use->taken);
        n = ngx_max(n, 0);

        ngx_http_tokenring_take(a, use->plan, 0, n);
        ngx_http_tokenring_hold_draw(use->hold, (uint32_t) n);

        use->taken += n;
        use->hold->leased = use->taken - use->out;
    }

    ngx_http_tokenring_account_close(use, &turn, 0);

    if (use->most && use->taken >= use->most) {
        more = 0;

    } else if (use->most == 0) {
        /* how much it may have says ACCEPTED */
        more = 1;

    } else if (more) {
        ngx_http_tokenring_quota_starve(use);
    }

    ngx_http_tokenring_alone_tell(use, more);
}


static void
ngx_http_tokenring_alone_tell(ngx_http_tokenring_use_t *use, ngx_uint_t more)
{
    uint32_t           bits;
    ngx_uint_t         ring;
    tr_channel_map_t  *map;

    map = &use->conn->map;
    bits = TR_CONTROL_DETACH | (more ? 0 : TR_CONTROL_END);

    ring = tr_allow_set(map, use->id, (uint32_t) use->taken);
    ring |= tr_control_set(map, use->id, bits);

    if (ring) {
        ngx_http_tokenring_ring(use->conn);
    }
}


void
ngx_http_tokenring_alone_end(ngx_http_tokenring_use_t *use, uint64_t tokens)
{
    ngx_http_tokenring_turn_t  turn;

    ngx_http_tokenring_quota_leave(use);

    (void) ngx_http_tokenring_account_open(use, &turn);

    use->hold->leased = (use->taken > tokens) ? use->taken - tokens : 0;

    ngx_http_tokenring_hold_end(turn.zone, use->hold);

    ngx_http_tokenring_account_close(use, &turn, 1);
    ngx_http_tokenring_seat_freed();

    ngx_free(use);
}
