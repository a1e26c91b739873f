/*
 * What tenants use, and what they are told of it.
 *
 * A request is let in while all budgets of its plan have something left.  It
 * is then one request; its prompt is taken when the engine has counted it, and
 * its answer as it comes.  Where that empties a budget the answer is cut
 * (_record.c).  What was overdrawn, by a long prompt or by many answers at
 * once, is owed, and nothing is let in until it has come in again.
 *
 * One lock for all tenants: it is held for the arithmetic of a few budgets,
 * when a request begins, for its prompt, for 64 tokens each, and at its end
 * (once more, to tell the client what is left).  When the memory is full, the
 * tenant that was quiet for longest is forgotten.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_tenants.h"

#include <ngx_sha1.h>


typedef struct {
    ngx_rbtree_t                    tree;
    ngx_rbtree_node_t               sentinel;
    ngx_queue_t                     queue;   /* the last one used first */
    ngx_http_tokenring_tally_t     *tally;   /* shown or not */
} ngx_http_tokenring_tenants_t;


typedef struct {
    ngx_rbtree_node_t               node;    /* key: of the hash */
    ngx_queue_t                     queue;
    u_char                          name[NGX_HTTP_TOKENRING_TENANT];
    uint8_t                         kinds[NGX_HTTP_TOKENRING_BUDGETS];
    ngx_http_tokenring_budget_t     budgets[NGX_HTTP_TOKENRING_BUDGETS];
} ngx_http_tokenring_account_t;


/* tokens of an answer that are charged together, at most */
#define NGX_HTTP_TOKENRING_CHARGE  64


/* a budget that is empty, and when it is not any more */

typedef struct {
    ngx_http_tokenring_limit_t     *limit;
    int64_t                         left;
    uint64_t                        wait;    /* ms */
    uint64_t                        reset;   /* ms, until it is full */
} ngx_http_tokenring_view_t;


static void ngx_http_tokenring_now(ngx_http_tokenring_clock_t *clock);
static ngx_shm_zone_t *ngx_http_tokenring_tenants_lock(
    ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_tenants_unlock(ngx_shm_zone_t *zone);
static ngx_http_tokenring_account_t *ngx_http_tokenring_account(
    ngx_shm_zone_t *zone, ngx_http_tokenring_use_t *use,
    ngx_http_tokenring_clock_t *clock);
static ngx_http_tokenring_account_t *ngx_http_tokenring_account_find(
    ngx_http_tokenring_tenants_t *t, ngx_rbtree_key_t key, u_char *name);
static void ngx_http_tokenring_account_name(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_use_t *use);
static void ngx_http_tokenring_account_fit(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_http_tokenring_clock_t *clock);
static ngx_http_tokenring_account_t *ngx_http_tokenring_account_new(
    ngx_shm_zone_t *zone);
static ngx_int_t ngx_http_tokenring_plan_of(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_plan_t **plan);
static ngx_int_t ngx_http_tokenring_limit_refuse(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_view_t *view);
static void ngx_http_tokenring_look(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *requests, ngx_http_tokenring_view_t *tokens);
static ngx_int_t ngx_http_tokenring_limit_header(ngx_http_request_t *r,
    const char *key, const char *format, uint64_t value);
static u_char *ngx_http_tokenring_duration(u_char *p, uint64_t ms);


ngx_int_t
ngx_http_tokenring_tenants_init(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t               *shpool;
    ngx_http_tokenring_tenants_t  *t;

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    if (data || zone->shm.exists) {
        /* a reload: what the old configuration has counted */
        zone->data = data ? data : shpool->data;
        return NGX_OK;
    }

    t = ngx_slab_alloc(shpool, sizeof(ngx_http_tokenring_tenants_t));
    if (t == NULL) {
        return NGX_ERROR;
    }

    ngx_rbtree_init(&t->tree, &t->sentinel, ngx_rbtree_insert_value);
    ngx_queue_init(&t->queue);

    /* now, while there is room: a reload may show the tenants of a zone that
     * is full */

    t->tally = ngx_http_tokenring_tally_create(shpool);
    if (t->tally == NULL) {
        return NGX_ERROR;
    }

    shpool->data = t;
    shpool->log_nomem = 0;

    zone->data = t;

    return NGX_OK;
}


ngx_http_tokenring_tally_t *
ngx_http_tokenring_tenants_tally(ngx_shm_zone_t *zone)
{
    return ((ngx_http_tokenring_tenants_t *) zone->data)->tally;
}


static void
ngx_http_tokenring_now(ngx_http_tokenring_clock_t *clock)
{
    clock->now = ngx_current_msec;
    clock->unix_s = (uint64_t) ngx_time();
}


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
ngx_http_tokenring_tenants_lock(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_shm_zone_t                  *zone;
    ngx_http_tokenring_main_conf_t  *tmcf;

    tmcf = ngx_http_get_module_main_conf(ctx->request,
                                         ngx_http_tokenring_module);
    zone = tmcf->tenants;

    ngx_shmtx_lock(&((ngx_slab_pool_t *) zone->shm.addr)->mutex);

    return zone;
}


static void
ngx_http_tokenring_tenants_unlock(ngx_shm_zone_t *zone)
{
    ngx_shmtx_unlock(&((ngx_slab_pool_t *) zone->shm.addr)->mutex);
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


/* the account of a tenant, refilled; NULL: the zone has no room for one */

static ngx_http_tokenring_account_t *
ngx_http_tokenring_account(ngx_shm_zone_t *zone, ngx_http_tokenring_use_t *use,
    ngx_http_tokenring_clock_t *clock)
{
    ngx_uint_t                     i;
    ngx_rbtree_key_t               key;
    ngx_http_tokenring_plan_t     *plan;
    ngx_http_tokenring_account_t  *a;
    ngx_http_tokenring_tenants_t  *t;

    t = zone->data;
    plan = use->plan;

    ngx_memcpy(&key, use->account, sizeof(ngx_rbtree_key_t));

    a = ngx_http_tokenring_account_find(t, key, use->account);

    if (a == NULL) {
        a = ngx_http_tokenring_account_new(zone);
        if (a == NULL) {
            return NULL;
        }

        ngx_memcpy(a->name, use->account, NGX_HTTP_TOKENRING_TENANT);
        a->node.key = key;

        ngx_rbtree_insert(&t->tree, &a->node);

    } else {
        ngx_queue_remove(&a->queue);
    }

    ngx_queue_insert_head(&t->queue, &a->queue);

    ngx_http_tokenring_account_fit(a, plan, clock);

    for (i = 0; i < plan->n; i++) {
        ngx_http_tokenring_budget_refill(&a->budgets[i],
                                         &plan->limits[i].rate, clock);
    }

    return a;
}


/*
 * Its budgets, in the order of the plan's limits.  Since a reload these may be
 * others: what was used stays with the first limit of the same unit and time,
 * whatever its number is now; a new one is full.
 */

static void
ngx_http_tokenring_account_fit(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_http_tokenring_clock_t *clock)
{
    uint8_t                      kinds[NGX_HTTP_TOKENRING_BUDGETS], kind;
    ngx_uint_t                   i, j;
    ngx_http_tokenring_budget_t  budgets[NGX_HTTP_TOKENRING_BUDGETS];

    for (i = 0; i < NGX_HTTP_TOKENRING_BUDGETS; i++) {
        kinds[i] = (i < plan->n) ? plan->limits[i].kind : 0;
    }

    if (ngx_memcmp(kinds, a->kinds, sizeof(kinds)) == 0) {
        return;
    }

    for (i = 0; i < plan->n; i++) {
        kind = kinds[i];

        for (j = 0; j < NGX_HTTP_TOKENRING_BUDGETS; j++) {
            if (a->kinds[j] == kind) {
                break;
            }
        }

        if (j == NGX_HTTP_TOKENRING_BUDGETS) {
            ngx_http_tokenring_budget_init(&budgets[i], &plan->limits[i].rate,
                                           clock);
            continue;
        }

        budgets[i] = a->budgets[j];
        a->kinds[j] = 0;
    }

    ngx_memcpy(a->budgets, budgets,
               plan->n * sizeof(ngx_http_tokenring_budget_t));
    ngx_memcpy(a->kinds, kinds, sizeof(kinds));
}


static ngx_http_tokenring_account_t *
ngx_http_tokenring_account_find(ngx_http_tokenring_tenants_t *t,
    ngx_rbtree_key_t key, u_char *name)
{
    ngx_rbtree_node_t             *node;
    ngx_http_tokenring_account_t  *a;

    node = t->tree.root;

    while (node != t->tree.sentinel) {

        if (key != node->key) {
            node = (key < node->key) ? node->left : node->right;
            continue;
        }

        a = (ngx_http_tokenring_account_t *) node;

        /* half of a SHA-1 is equal only if all of it is */
        return (ngx_memcmp(a->name, name, NGX_HTTP_TOKENRING_TENANT) == 0)
               ? a : NULL;
    }

    return NULL;
}


static ngx_http_tokenring_account_t *
ngx_http_tokenring_account_new(ngx_shm_zone_t *zone)
{
    ngx_queue_t                   *q;
    ngx_slab_pool_t               *shpool;
    ngx_http_tokenring_account_t  *a;
    ngx_http_tokenring_tenants_t  *t;

    t = zone->data;
    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    for ( ;; ) {
        a = ngx_slab_calloc_locked(shpool,
                                   sizeof(ngx_http_tokenring_account_t));

        if (a || ngx_queue_empty(&t->queue)) {
            return a;
        }

        q = ngx_queue_last(&t->queue);
        a = ngx_queue_data(q, ngx_http_tokenring_account_t, queue);

        ngx_queue_remove(q);
        ngx_rbtree_delete(&t->tree, &a->node);
        ngx_slab_free_locked(shpool, a);
    }
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
            return (plans[i]->n || plans[i]->share) ? NGX_OK : NGX_DECLINED;
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
    ngx_uint_t                     i;
    ngx_shm_zone_t                *zone;
    ngx_http_tokenring_use_t      *use;
    ngx_http_tokenring_plan_t     *plan;
    ngx_http_tokenring_view_t      empty;
    ngx_http_tokenring_clock_t     clock;
    ngx_http_tokenring_budget_t   *b;
    ngx_http_tokenring_account_t  *a;

    *rc = ngx_http_tokenring_plan_of(ctx, &plan);

    if (*rc == NGX_DECLINED) {
        return NGX_OK;
    }

    use = (*rc == NGX_OK) ? ngx_pcalloc(ctx->request->pool,
                                        sizeof(ngx_http_tokenring_use_t))
                          : NULL;
    if (use == NULL) {
        *rc = ngx_http_tokenring_send_error(ctx->request, TR_ERR_INTERNAL,
                                    "The limits of this request are unknown");
        return NGX_DECLINED;
    }

    use->plan = plan;
    ngx_http_tokenring_account_name(ctx, use);

    ctx->use = use;
    empty.limit = NULL;

    ngx_http_tokenring_now(&clock);

    zone = ngx_http_tokenring_tenants_lock(ctx);
    a = ngx_http_tokenring_account(zone, use, &clock);

    for (i = 0; a && i < plan->n; i++) {
        b = &a->budgets[i];

        if (ngx_http_tokenring_budget_left(b, &plan->limits[i].rate) >= 1) {
            continue;
        }

        /* of several, what takes longest: before that it would be in vain */

        if (empty.limit == NULL
            || ngx_http_tokenring_budget_wait(b, &plan->limits[i].rate, &clock,
                                              1)
               > empty.wait)
        {
            empty.limit = &plan->limits[i];
            empty.left = ngx_http_tokenring_budget_left(b,
                                                  &plan->limits[i].rate);
            empty.wait = ngx_http_tokenring_budget_wait(b,
                                            &plan->limits[i].rate, &clock, 1);
        }
    }

    for (i = 0; a && empty.limit == NULL && i < plan->n; i++) {
        if (plan->limits[i].unit == NGX_HTTP_TOKENRING_UNIT_REQUESTS) {
            ngx_http_tokenring_budget_take(&a->budgets[i],
                                           &plan->limits[i].rate, 1);
        }
    }

    ngx_http_tokenring_tenants_unlock(zone);

    if (empty.limit == NULL) {
        return NGX_OK;
    }

    *rc = ngx_http_tokenring_limit_refuse(ctx, &empty);

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_tokenring_limit_refuse(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *view)
{
    u_char               text[256], *p;
    ngx_str_t            message, no;
    ngx_uint_t           day;
    const char          *type;
    ngx_http_request_t  *r;

    static const char   *units[] = { "requests", "prompt tokens",
                                     "tokens of answers", "tokens" };

    r = ctx->request;
    day = (view->limit->rate.period == 0);
    type = (view->limit->unit == NGX_HTTP_TOKENRING_UNIT_REQUESTS) ? "requests"
                                                              : "tokens";

    ngx_http_tokenring_count(limited);
    ctx->limited = 1;

    p = ngx_snprintf(text, sizeof(text) - 32,
                     "Rate limit reached: %uL %s in a %s. Please try again in ",
                     view->limit->rate.limit, units[view->limit->unit],
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

    if (day && ngx_http_tokenring_add_header(r, "x-should-retry", &no)
               != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_error_body(r, NGX_HTTP_TOO_MANY_REQUESTS,
               day ? "insufficient_quota" : type,
               day ? "insufficient_quota" : "rate_limit_exceeded",
               NULL, &message, (ngx_uint_t) ((view->wait + 999) / 1000));
}


ngx_uint_t
ngx_http_tokenring_charge(ngx_http_tokenring_ctx_t *ctx)
{
    int64_t                        in, out, take, left;
    ngx_uint_t                     i;
    ngx_shm_zone_t                *zone;
    ngx_http_tokenring_use_t      *use;
    ngx_http_tokenring_plan_t     *plan;
    ngx_http_tokenring_clock_t     clock;
    ngx_http_tokenring_limit_t    *limit;
    ngx_http_tokenring_account_t  *a;

    use = ctx->use;

    if (use == NULL) {
        return 1;
    }

    /* one that began again at another engine pays for one answer alone */

    in = (int64_t) (ctx->prompt_tokens - use->in);
    out = (int64_t) (ctx->completion_tokens - use->out);

    in = ngx_max(in, 0);
    out = ngx_max(out, 0);

    if (in == 0 && out == 0) {
        return 1;
    }

    use->in += in;
    use->out += out;

    plan = use->plan;
    left = NGX_HTTP_TOKENRING_CHARGE * 4;

    ngx_http_tokenring_now(&clock);

    zone = ngx_http_tokenring_tenants_lock(ctx);
    a = ngx_http_tokenring_account(zone, use, &clock);

    for (i = 0; a && i < plan->n; i++) {
        limit = &plan->limits[i];

        if (limit->unit == NGX_HTTP_TOKENRING_UNIT_REQUESTS) {
            continue;
        }

        take = (limit->unit == NGX_HTTP_TOKENRING_UNIT_IN) ? in
               : (limit->unit == NGX_HTTP_TOKENRING_UNIT_OUT) ? out
               : in + out;

        ngx_http_tokenring_budget_take(&a->budgets[i], &limit->rate, take);

        if (limit->unit != NGX_HTTP_TOKENRING_UNIT_IN) {
            /* what an answer may still take */
            left = ngx_min(left, ngx_http_tokenring_budget_left(
                                           &a->budgets[i], &limit->rate));
        }
    }

    ngx_http_tokenring_tenants_unlock(zone);

    /* the nearer the end, the more often */
    use->next = use->out + ngx_max(left / 4, 1);

    return left > 0;
}


/* of each kind, the budget of which the smallest share is left */

static void
ngx_http_tokenring_look(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *requests, ngx_http_tokenring_view_t *tokens)
{
    int64_t                        left;
    ngx_uint_t                     i;
    ngx_shm_zone_t                *zone;
    ngx_http_tokenring_view_t     *view;
    ngx_http_tokenring_clock_t     clock;
    ngx_http_tokenring_limit_t    *limit;
    ngx_http_tokenring_account_t  *a;

    requests->limit = NULL;
    tokens->limit = NULL;

    ngx_http_tokenring_now(&clock);

    zone = ngx_http_tokenring_tenants_lock(ctx);
    a = ngx_http_tokenring_account(zone, ctx->use, &clock);

    for (i = 0; a && i < ctx->use->plan->n; i++) {
        limit = &ctx->use->plan->limits[i];
        view = (limit->unit == NGX_HTTP_TOKENRING_UNIT_REQUESTS) ? requests
                                                            : tokens;

        left = ngx_http_tokenring_budget_left(&a->budgets[i], &limit->rate);

        if (view->limit == NULL
            || (double) left / (double) limit->rate.limit
               < (double) view->left / (double) view->limit->rate.limit)
        {
            view->limit = limit;
            view->left = left;
            view->reset = ngx_http_tokenring_budget_wait(&a->budgets[i],
                                                  &limit->rate, &clock,
                                                  limit->rate.limit);
        }
    }

    ngx_http_tokenring_tenants_unlock(zone);
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

    if (ctx->use == NULL) {
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
                                            view[i].limit->rate.limit)
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
