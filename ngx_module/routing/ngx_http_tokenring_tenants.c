/*
 * What tenants use.
 *
 * A request is let in while all budgets of its plan have something left.  It
 * is then one request; its prompt is taken when the engine has counted it.
 * What was overdrawn by a long prompt is owed, and nothing is let in until it
 * has come in again.
 *
 * Its answer never overdraws: the engine samples what it is allowed to, and
 * that was taken from the budgets before (a lease).  While it comes, it gets
 * the next one; the more requests of the tenant are under way, and the less is
 * left, the smaller.  Where nothing is left the answer is cut (_record.c), and
 * what it has not used of its leases goes back at its end.
 *
 * Where hosts share a plan, what is left is this host's stock, and a request
 * that finds it empty waits for Redis (_quota.h) before either is decided.
 *
 * One that goes on without its client draws all that it may have (_alone.c).
 */

#include "ngx_http_tokenring_quota.h"
#include "ngx_http_tokenring_slot.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"

#include <ngx_sha1.h>


/* tokens of an answer that are taken together, at most */
#define NGX_HTTP_TOKENRING_LEASE   256
#define NGX_HTTP_TOKENRING_CHARGE  64


static ngx_shm_zone_t *ngx_http_tokenring_zone(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_account_name(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_use_t *use);
static ngx_int_t ngx_http_tokenring_plan_of(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_plan_t **plan);
static ngx_int_t ngx_http_tokenring_enter(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *empty);
static void ngx_http_tokenring_find_empty(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t requests,
    ngx_http_tokenring_clock_t *clock, ngx_http_tokenring_view_t *empty);
static void ngx_http_tokenring_take_request(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan);
static void ngx_http_tokenring_take_one(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t i, int64_t n);
static uint64_t ngx_http_tokenring_lease(ngx_http_tokenring_ctx_t *ctx,
    int64_t left);
static ngx_uint_t ngx_http_tokenring_goes_on(ngx_http_tokenring_ctx_t *ctx,
    int64_t left, ngx_uint_t asked);


void
ngx_http_tokenring_tenant(ngx_http_tokenring_ctx_t *ctx,
    u_char hash[NGX_HTTP_TOKENRING_TENANT])
{
    u_char                digest[20];
    ngx_str_t             name;
    const char           *kind;
    ngx_sha1_t            sha1;
    ngx_connection_t     *c;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6  *sin6;
#endif

    if (ctx->conf->tenant
        && ngx_http_complex_value(ctx->request, ctx->conf->tenant, &name)
           == NGX_OK
        && name.len)
    {
        kind = "tenant:";
        goto hash;
    }

    kind = "addr:";
    c = ctx->request->connection;
    name = c->addr_text;

#if (NGX_HAVE_INET6)

    if (c->sockaddr->sa_family == AF_INET6) {
        /* the network that one client has for itself */
        sin6 = (struct sockaddr_in6 *) c->sockaddr;
        name.data = sin6->sin6_addr.s6_addr;
        name.len = 8;

        if (IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
            name.data += 12;
            name.len = 4;
        }
    }

#endif

hash:

    ngx_sha1_init(&sha1);
    ngx_sha1_update(&sha1, kind, ngx_strlen(kind));
    ngx_sha1_update(&sha1, name.data, name.len);
    ngx_sha1_final(digest, &sha1);

    ngx_memcpy(hash, digest, NGX_HTTP_TOKENRING_TENANT);
}


static ngx_shm_zone_t *
ngx_http_tokenring_zone(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_main_conf_t  *tmcf;

    tmcf = ngx_http_get_module_main_conf(ctx->request,
                                         ngx_http_tokenring_module);
    return tmcf->tenants;
}


/* of a tenant in a plan: one that changes between plans finds each as it left
 * it */

static void
ngx_http_tokenring_account_name(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_use_t *use)
{
    u_char      digest[20], tenant[NGX_HTTP_TOKENRING_TENANT];
    ngx_sha1_t  sha1;

    ngx_http_tokenring_tenant(ctx, tenant);

    ngx_sha1_init(&sha1);
    ngx_sha1_update(&sha1, tenant, sizeof(tenant));
    ngx_sha1_update(&sha1, use->plan->name.data, use->plan->name.len);
    ngx_sha1_final(digest, &sha1);

    ngx_memcpy(use->account, digest, NGX_HTTP_TOKENRING_TENANT);
}


/* NGX_DECLINED: none; NGX_ERROR: there is no such plan, or no memory */

static ngx_int_t
ngx_http_tokenring_plan_of(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_plan_t **plan)
{
    ngx_str_t                         name;
    ngx_uint_t                        i;
    ngx_http_tokenring_plan_t       **plans;
    ngx_http_tokenring_main_conf_t   *tmcf;

    if (ctx->conf->limits == NULL) {
        return NGX_DECLINED;
    }

    if (ngx_http_complex_value(ctx->request, ctx->conf->limits, &name)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (name.len == 0) {
        return NGX_DECLINED;
    }

    tmcf = ngx_http_get_module_main_conf(ctx->request,
                                         ngx_http_tokenring_module);

    plans = tmcf->plans.elts;

    for (i = 0; i < tmcf->plans.nelts; i++) {
        if (plans[i]->name.len == name.len
            && ngx_memcmp(plans[i]->name.data, name.data, name.len) == 0)
        {
            *plan = plans[i];
            return NGX_OK;
        }
    }

    ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                  "tokenring: no tokenring_plan \"%V\", request=%V", &name,
                  &ctx->request_id);

    return NGX_ERROR;
}


ngx_int_t
ngx_http_tokenring_admit_tenant(ngx_http_tokenring_ctx_t *ctx, ngx_int_t *rc)
{
    ngx_http_tokenring_use_t   *use;
    ngx_http_tokenring_plan_t  *plan;
    ngx_http_tokenring_view_t   empty;

    *rc = ngx_http_tokenring_plan_of(ctx, &plan);

    if (*rc == NGX_DECLINED) {
        return NGX_OK;
    }

    use = (*rc == NGX_OK) ? ngx_pcalloc(ctx->request->pool,
                                        sizeof(ngx_http_tokenring_use_t))
                          : NULL;
    if (use == NULL) {
        goto failed;
    }

    use->plan = plan;
    use->ctx = ctx;
    use->zone = ngx_http_tokenring_zone(ctx);
    ngx_http_tokenring_account_name(ctx, use);

    ctx->use = use;

    if (plan->n == 0 && plan->seats == 0) {
        return NGX_OK;
    }

    switch (ngx_http_tokenring_enter(ctx, &empty)) {

    case NGX_OK:
        return NGX_OK;

    case NGX_AGAIN:
        return NGX_AGAIN;

    case NGX_DECLINED:
        *rc = empty.limit ? ngx_http_tokenring_limit_refuse(ctx, &empty)
                          : ngx_http_tokenring_seat_refuse(ctx);
        return NGX_DECLINED;

    default: /* NGX_ERROR */
        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                      "tokenring: the zone of tokenring_tenants is too small "
                      "for the requests under way, request=%V",
                      &ctx->request_id);
    }

failed:

    *rc = ngx_http_tokenring_send_error(ctx->request, TR_ERR_INTERNAL,
                                    "The limits of this request are unknown");
    return NGX_DECLINED;
}


/* NGX_AGAIN: it waits for a seat, or for Redis; NGX_DECLINED: a budget is
 * empty, or else nobody more may wait; NGX_ERROR: the zone has no room */

static ngx_int_t
ngx_http_tokenring_enter(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *empty)
{
    ngx_int_t                      rc;
    ngx_http_tokenring_use_t      *use;
    ngx_http_tokenring_plan_t     *plan;
    ngx_http_tokenring_turn_t      turn;
    ngx_http_tokenring_account_t  *a;

    use = ctx->use;
    plan = use->plan;
    rc = NGX_ERROR;

    a = ngx_http_tokenring_account_open(ctx->use, &turn);

    if (a) {
        ngx_http_tokenring_find_empty(a, plan, 1, &turn.clock, empty);

        if (empty->limit
            || (plan->seats && a->seated >= plan->seats
                && a->waiting >= plan->queue))
        {
            rc = NGX_DECLINED;

        } else {
            use->hold = ngx_http_tokenring_hold(turn.zone, a, plan);
        }
    }

    if (use->hold) {
        use->hold->kept = ctx->detach;
        use->asks = empty->asked;

        rc = (use->hold->seat == NGX_HTTP_TOKENRING_SEATED && !use->asks)
             ? NGX_OK : NGX_AGAIN;

        if (!use->asks) {
            ngx_http_tokenring_take_request(a, plan);
            use->hold->waits = (rc == NGX_AGAIN);
        }
    }

    ngx_http_tokenring_account_close(ctx->use, &turn, 0);

    return rc;
}


ngx_int_t
ngx_http_tokenring_still_has(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *empty)
{
    ngx_int_t                      rc;
    ngx_http_tokenring_use_t      *use;
    ngx_http_tokenring_turn_t      turn;
    ngx_http_tokenring_account_t  *a;

    use = ctx->use;
    a = ngx_http_tokenring_account_open(ctx->use, &turn);

    ngx_http_tokenring_find_empty(a, use->plan, use->asks, &turn.clock, empty);

    rc = empty->limit ? NGX_DECLINED : empty->asked ? NGX_AGAIN : NGX_OK;

    if (rc == NGX_OK && use->asks) {
        ngx_http_tokenring_take_request(a, use->plan);
        use->asks = 0;
    }

    ngx_http_tokenring_account_close(ctx->use, &turn, 0);

    return rc;
}


/* of several, what takes longest: before that it would be in vain.  requests:
 * also those of requests */

static void
ngx_http_tokenring_find_empty(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t requests,
    ngx_http_tokenring_clock_t *clock, ngx_http_tokenring_view_t *empty)
{
    uint64_t                     wait;
    ngx_uint_t                   i;
    ngx_http_tokenring_limit_t  *limit;

    empty->limit = NULL;
    empty->asked = 0;

    for (i = 0; i < plan->n; i++) {
        limit = &plan->limits[i];

        if ((!requests && limit->unit == NGX_HTTP_TOKENRING_UNIT_REQUESTS)
            || ngx_http_tokenring_quota_left(a, plan, i) >= 1)
        {
            continue;
        }

        if (plan->shared && ngx_http_tokenring_quota_unknown(a, i, clock)) {
            empty->asked = 1;
            continue;
        }

        wait = plan->shared
               ? ngx_http_tokenring_quota_wait(a, i, clock)
               : ngx_http_tokenring_budget_wait(&a->budgets[i], &limit->rate,
                                                clock, 1);

        if (empty->limit == NULL || wait > empty->wait) {
            empty->limit = limit;
            empty->wait = wait;
        }
    }
}


/* a request that is let in, from the budgets of them */

static void
ngx_http_tokenring_take_request(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan)
{
    ngx_uint_t  i;

    for (i = 0; i < plan->n; i++) {
        if (plan->limits[i].unit == NGX_HTTP_TOKENRING_UNIT_REQUESTS) {
            ngx_http_tokenring_take_one(a, plan, i, 1);
        }
    }
}


/* from one budget: here, and from what was taken of all hosts' */

static void
ngx_http_tokenring_take_one(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t i, int64_t n)
{
    ngx_http_tokenring_budget_take(&a->budgets[i], &plan->limits[i].rate, n);

    if (plan->shared) {
        a->quota->stocks[i].have -= n;
    }
}


void
ngx_http_tokenring_take(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, int64_t in, int64_t out)
{
    int64_t                      n;
    ngx_uint_t                   i;
    ngx_http_tokenring_limit_t  *limit;

    for (i = 0; i < plan->n; i++) {
        limit = &plan->limits[i];

        switch (limit->unit) {

        case NGX_HTTP_TOKENRING_UNIT_IN:
            n = in;
            break;

        case NGX_HTTP_TOKENRING_UNIT_OUT:
            n = out;
            break;

        case NGX_HTTP_TOKENRING_UNIT_TOKENS:
            n = in + out;
            break;

        default: /* NGX_HTTP_TOKENRING_UNIT_REQUESTS */
            n = 0;
            break;
        }

        ngx_http_tokenring_take_one(a, plan, i, n);
    }
}


int64_t
ngx_http_tokenring_left(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_http_tokenring_clock_t *clock,
    ngx_uint_t *asked)
{
    int64_t                      left, n;
    ngx_uint_t                   i;
    ngx_http_tokenring_limit_t  *limit;

    left = NGX_HTTP_TOKENRING_LIMIT_MAX;
    *asked = plan->shared;

    for (i = 0; i < plan->n; i++) {
        limit = &plan->limits[i];

        if (limit->unit != NGX_HTTP_TOKENRING_UNIT_OUT
            && limit->unit != NGX_HTTP_TOKENRING_UNIT_TOKENS)
        {
            continue;
        }

        n = ngx_http_tokenring_quota_left(a, plan, i);
        left = ngx_min(left, n);

        if (n < 1 && plan->shared
            && !ngx_http_tokenring_quota_unknown(a, i, clock))
        {
            *asked = 0;
        }
    }

    return left;
}


/* how many tokens it may have beyond those that it was given: where half of its
 * last lease is used, its part of what is left, and at least one.  Who waits
 * for a seat has no part yet */

static uint64_t
ngx_http_tokenring_lease(ngx_http_tokenring_ctx_t *ctx, int64_t left)
{
    uint64_t                       n;
    ngx_http_tokenring_use_t      *use;
    ngx_http_tokenring_account_t  *a;

    use = ctx->use;

    if (!use->metered
        || ctx->conn == NULL
        || ctx->cut
        || ctx->state >= NGX_HTTP_TOKENRING_OVER
        || left < 1
        || use->taken - use->out > use->lease / 2
        || use->taken >= use->most)
    {
        return 0;
    }

    a = use->hold->account;

    n = (uint64_t) left / (2 * (a->holds - a->waiting));
    n = ngx_max(n, 1);
    n = ngx_min(n, NGX_HTTP_TOKENRING_LEASE);

    return ngx_min(n, use->most - use->taken);
}


ngx_uint_t
ngx_http_tokenring_charge(ngx_http_tokenring_ctx_t *ctx)
{
    int64_t                        in, left;
    uint64_t                       out, n;
    ngx_uint_t                     asked;
    ngx_http_tokenring_use_t      *use;
    ngx_http_tokenring_turn_t      turn;
    ngx_http_tokenring_account_t  *a;

    use = ctx->use;

    if (use == NULL || use->hold == NULL || use->plan->n == 0) {
        return 1;
    }

    /* one that began again at another engine pays for one answer alone */

    in = ngx_max((int64_t) (ctx->prompt_tokens - use->in), 0);

    use->in += in;
    use->out = ngx_max(use->out, ctx->completion_tokens);
    use->ended = ctx->state >= NGX_HTTP_TOKENRING_OVER;

    /* beyond what was leased, or of an answer without leases */
    out = (use->out > use->taken) ? use->out - use->taken : 0;

    a = ngx_http_tokenring_account_open(ctx->use, &turn);

    ngx_http_tokenring_take(a, use->plan, in, out);
    use->taken += out;

    left = ngx_http_tokenring_left(a, use->plan, &turn.clock, &asked);
    n = ngx_http_tokenring_lease(ctx, left);

    ngx_http_tokenring_take(a, use->plan, 0, n);
    ngx_http_tokenring_hold_draw(use->hold, (uint32_t) n);
    use->taken += n;
    use->hold->leased = use->taken - use->out;

    ngx_http_tokenring_account_close(ctx->use, &turn, 0);

    if (n) {
        use->lease = n;
        ngx_http_tokenring_allow(ctx);
    }

    return ngx_http_tokenring_goes_on(ctx, left, asked);
}


void
ngx_http_tokenring_charge_again(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->state < NGX_HTTP_TOKENRING_OVER && ctx->conn == NULL) {
        /* it moves: to an engine that has nothing to sample, either */
        ngx_http_tokenring_quota_starve(ctx->use);
        return;
    }

    if (!ngx_http_tokenring_charge(ctx)) {
        ngx_http_tokenring_end_here(ctx);
    }
}


/* when to charge again, and whether there is a reason to */

static ngx_uint_t
ngx_http_tokenring_goes_on(ngx_http_tokenring_ctx_t *ctx, int64_t left,
    ngx_uint_t asked)
{
    uint64_t                   leased;
    ngx_http_tokenring_use_t  *use;

    use = ctx->use;
    leased = use->taken - use->out;
    asked = asked && left < 1 && ctx->state < NGX_HTTP_TOKENRING_OVER;

    if (use->metered && use->taken >= use->most && use->out <= use->most) {
        /* it has all that it can have */
        use->next = use->most + 1;
        return 1;
    }

    if (use->metered && use->out <= use->most) {
        use->next = use->out
                    + ngx_max((int64_t) (leased - use->lease / 2), 1);

        if (leased == 0 && asked) {
            ngx_http_tokenring_quota_starve(ctx->use);
        }

        return leased > 0 || asked;
    }

    /* also of an engine that does not keep to it; the nearer the end, the more
     * often */

    left = ngx_min(left, NGX_HTTP_TOKENRING_CHARGE * 4);
    use->next = use->out + ngx_max(left / 4, 1);

    return left > 0 || asked;
}


void
ngx_http_tokenring_spend(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_use_t  *use;

    use = ctx->use;

    if (use == NULL || use->hold == NULL || use->plan->n == 0) {
        return;
    }

    if (ctx->completion_tokens > use->out) {
        use->hold->leased = (use->taken > ctx->completion_tokens)
                            ? use->taken - ctx->completion_tokens : 0;
    }

    if (ctx->completion_tokens >= use->next
        && !ngx_http_tokenring_charge(ctx))
    {
        ngx_http_tokenring_end_here(ctx);
    }
}


ngx_uint_t
ngx_http_tokenring_meter(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t                 i, meters;
    ngx_http_tokenring_use_t  *use;

    use = ctx->use;
    meters = 0;

    if (use == NULL || use->hold == NULL
        || !tr_endpoint_info(ctx->endpoint)->generates
        || !(ctx->conn->features & TR_FEATURE_ALLOW))
    {
        return 0;
    }

    for (i = 0; i < use->plan->n; i++) {
        meters |= use->plan->limits[i].unit == NGX_HTTP_TOKENRING_UNIT_OUT
                  || use->plan->limits[i].unit
                     == NGX_HTTP_TOKENRING_UNIT_TOKENS;
    }

    use->metered = meters;

    if (meters) {
        ngx_http_tokenring_allow(ctx);
    }

    return meters;
}


void
ngx_http_tokenring_accepted_most(ngx_http_tokenring_ctx_t *ctx, uint64_t most)
{
    if (ctx->use) {
        ctx->use->most = ngx_min(most, UINT32_MAX);
    }
}


void
ngx_http_tokenring_tenant_end(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_use_t   *use;
    ngx_http_tokenring_turn_t   turn;

    use = ctx->use;

    if (use == NULL || use->hold == NULL) {
        return;
    }

    ngx_http_tokenring_charge(ctx);
    ngx_http_tokenring_quota_leave(use);

    (void) ngx_http_tokenring_account_open(ctx->use, &turn);

    ngx_http_tokenring_hold_end(turn.zone, use->hold);
    use->hold = NULL;

    ngx_http_tokenring_account_close(ctx->use, &turn, 1);

    ngx_http_tokenring_seat_freed();
}
