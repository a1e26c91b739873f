/*
 * What a client is told of its plan: refusals, and x-ratelimit-* of OpenAI.
 */

#include "ngx_http_tokenring_quota.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"


#define NGX_HTTP_TOKENRING_SOON  60000  /* ms: a client may wait for that */


static void ngx_http_tokenring_look(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *requests, ngx_http_tokenring_view_t *tokens);
static void ngx_http_tokenring_look_one(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_account_t *a, ngx_uint_t i,
    ngx_http_tokenring_clock_t *clock, ngx_http_tokenring_view_t *view);
static uint64_t ngx_http_tokenring_limit_of(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_limit_t *limit);
static ngx_int_t ngx_http_tokenring_limit_header(ngx_http_request_t *r,
    const char *key, const char *format, uint64_t value);
static u_char *ngx_http_tokenring_duration(u_char *p, uint64_t ms);


ngx_int_t
ngx_http_tokenring_limit_refuse(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *view)
{
    u_char               text[256], *p;
    ngx_str_t            message, no;
    ngx_uint_t           day, spent;
    const char          *type;
    ngx_http_request_t  *r;

    static const char   *units[] = { "requests", "prompt tokens",
                                     "tokens of answers", "tokens" };

    r = ctx->request;
    day = (view->limit->rate.period == 0);

    /* not at the end of a day, nor while Redis does not say what is left */
    spent = day && view->wait > NGX_HTTP_TOKENRING_SOON;

    type = (view->limit->unit == NGX_HTTP_TOKENRING_UNIT_REQUESTS) ? "requests"
                                                              : "tokens";

    ngx_http_tokenring_count(limited);
    ctx->limited = 1;

    p = ngx_snprintf(text, sizeof(text) - 32,
                     "Rate limit reached: %uL %s in a %s. Please try again in ",
                     ngx_http_tokenring_limit_of(ctx, view->limit),
                     units[view->limit->unit],
                     day ? "day"
                         : (view->limit->rate.period == 1000) ? "second"
                         : (view->limit->rate.period == 60000) ? "minute"
                         : "hour");
    p = ngx_http_tokenring_duration(p, view->wait);
    *p++ = '.';

    message.data = text;
    message.len = p - text;

    ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                  "tokenring: the tenant is at its limit, plan=\"%V\" "
                  "limit=%V request=%V", &ctx->use->plan->name,
                  &view->limit->text, &ctx->request_id);

    if (ngx_http_tokenring_limit_header(r, "retry-after-ms", "%uL", view->wait)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_str_set(&no, "false");

    if (spent && ngx_http_tokenring_add_header(r, "x-should-retry", &no)
                 != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_error_body(r, NGX_HTTP_TOO_MANY_REQUESTS,
               spent ? "insufficient_quota" : type,
               spent ? "insufficient_quota" : "rate_limit_exceeded",
               NULL, &message, (ngx_uint_t) ((view->wait + 999) / 1000));
}


ngx_int_t
ngx_http_tokenring_seat_refuse(ngx_http_tokenring_ctx_t *ctx)
{
    u_char                      text[256], *p;
    ngx_str_t                   message;
    ngx_http_tokenring_plan_t  *plan;

    plan = ctx->use->plan;

    ngx_http_tokenring_count(limited);
    ctx->limited = 1;

    p = ngx_snprintf(text, sizeof(text),
                     "Rate limit reached: %ui requests at once, and %ui more "
                     "that wait. Please try again when one of yours has ended.",
                     plan->seats, plan->queue);

    message.data = text;
    message.len = p - text;

    ngx_log_error(NGX_LOG_INFO, ctx->request->connection->log, 0,
                  "tokenring: the tenant has no seat, plan=\"%V\" seats=%ui "
                  "queue=%ui request=%V", &plan->name, plan->seats, plan->queue,
                  &ctx->request_id);

    if (ngx_http_tokenring_limit_header(ctx->request, "retry-after-ms", "%uL",
                                   NGX_HTTP_TOKENRING_RETRY_AFTER * 1000)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_error_body(ctx->request,
               NGX_HTTP_TOO_MANY_REQUESTS, "requests", "rate_limit_exceeded",
               NULL, &message, NGX_HTTP_TOKENRING_RETRY_AFTER);
}


/* of each kind, the budget of which the smallest share is left */

static void
ngx_http_tokenring_look(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *requests, ngx_http_tokenring_view_t *tokens)
{
    ngx_uint_t                     i;
    ngx_http_tokenring_turn_t      turn;
    ngx_http_tokenring_view_t      one, *view;
    ngx_http_tokenring_account_t  *a;

    requests->limit = NULL;
    tokens->limit = NULL;

    a = ngx_http_tokenring_account_open(ctx->use, &turn);

    for (i = 0; a && i < ctx->use->plan->n; i++) {
        ngx_http_tokenring_look_one(ctx, a, i, &turn.clock, &one);

        view = (one.limit->unit == NGX_HTTP_TOKENRING_UNIT_REQUESTS) ? requests
                                                                : tokens;

        if (view->limit == NULL
            || (double) one.left / (double) one.limit->rate.limit
               < (double) view->left / (double) view->limit->rate.limit)
        {
            *view = one;
        }
    }

    ngx_http_tokenring_account_close(ctx->use, &turn, 0);
}


static void
ngx_http_tokenring_look_one(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_account_t *a, ngx_uint_t i,
    ngx_http_tokenring_clock_t *clock, ngx_http_tokenring_view_t *view)
{
    int64_t                       n, most;
    ngx_http_tokenring_rate_t     rate;
    ngx_http_tokenring_limit_t   *limit;
    ngx_http_tokenring_budget_t   b;

    limit = &ctx->use->plan->limits[i];
    view->limit = limit;

    /* its own lease is what it may have, not what it has had */

    n = ctx->use->hold ? ngx_http_tokenring_hold_unused(ctx->use->hold,
                                                        limit->kind, &rate)
                       : 0;

    if (ctx->use->plan->shared) {
        most = (int64_t) limit->whole.limit;
        view->left = ngx_http_tokenring_quota_left(a, ctx->use->plan, i) + n;

        if (!a->quota->away) {
            view->left += a->quota->stocks[i].rest;
        }

        view->left = ngx_min(view->left, most);
        view->reset = ngx_http_tokenring_quota_reset(limit, view->left, clock);
        return;
    }

    b = a->budgets[i];

    if (n) {
        ngx_http_tokenring_budget_take(&b, &rate, -n);
    }

    view->left = ngx_http_tokenring_budget_left(&b, &limit->rate);
    view->reset = ngx_http_tokenring_budget_wait(&b, &limit->rate, clock,
                                                 limit->rate.limit);
}


/* of all hosts where they share it, else of this one */

static uint64_t
ngx_http_tokenring_limit_of(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_limit_t *limit)
{
    return ctx->use->plan->shared ? limit->whole.limit : limit->rate.limit;
}


ngx_int_t
ngx_http_tokenring_limit_headers(ngx_http_tokenring_ctx_t *ctx)
{
    u_char                     *p;
    ngx_str_t                   value;
    ngx_uint_t                  i;
    ngx_http_request_t         *r;
    ngx_http_tokenring_view_t   view[2];

    static const char  *limit[] = { "x-ratelimit-limit-requests",
                                    "x-ratelimit-limit-tokens" };
    static const char  *left[] = { "x-ratelimit-remaining-requests",
                                   "x-ratelimit-remaining-tokens" };
    static const char  *reset[] = { "x-ratelimit-reset-requests",
                                    "x-ratelimit-reset-tokens" };

    if (ctx->use == NULL || ctx->use->plan->n == 0) {
        return NGX_OK;
    }

    r = ctx->request;

    /* of an answer that comes whole, all of it */
    ngx_http_tokenring_charge(ctx);

    ngx_http_tokenring_look(ctx, &view[0], &view[1]);

    for (i = 0; i < 2; i++) {

        if (view[i].limit == NULL) {
            continue;
        }

        p = ngx_pnalloc(r->pool, 64);
        if (p == NULL) {
            return NGX_ERROR;
        }

        value.data = p;
        value.len = ngx_http_tokenring_duration(p, view[i].reset) - p;

        if (ngx_http_tokenring_limit_header(r, limit[i], "%uL",
                               ngx_http_tokenring_limit_of(ctx, view[i].limit))
            != NGX_OK
            || ngx_http_tokenring_limit_header(r, left[i], "%uL",
                                         (uint64_t) ngx_max(view[i].left, 0))
               != NGX_OK
            || ngx_http_tokenring_add_header(r, reset[i], &value) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_limit_header(ngx_http_request_t *r, const char *key,
    const char *format, uint64_t value)
{
    u_char     *p;
    ngx_str_t   text;

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    text.data = p;
    text.len = ngx_sprintf(p, format, value) - p;

    return ngx_http_tokenring_add_header(r, key, &text);
}


/* as OpenAI has it: 120ms, 1s, 6m0s, 1h2m3s; at most 32 bytes */

static u_char *
ngx_http_tokenring_duration(u_char *p, uint64_t ms)
{
    uint64_t  s;

    if (ms < 1000) {
        return ngx_sprintf(p, "%uLms", ms);
    }

    s = (ms + 999) / 1000;

    if (s >= 3600) {
        p = ngx_sprintf(p, "%uLh", s / 3600);
    }

    if (s >= 60) {
        p = ngx_sprintf(p, "%uLm", s % 3600 / 60);
    }

    return ngx_sprintf(p, "%uLs", s % 60);
}
