/*
 * Accounts and holds (ngx_http_tokenring_accounts.h).
 */

#include "ngx_http_tokenring_quota.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_request.h"


typedef struct {
    ngx_rbtree_t                    tree;
    ngx_rbtree_node_t               sentinel;
    ngx_queue_t                     queue;   /* the last one used first */
    ngx_queue_t                     workers;
    uint64_t                        swept;   /* ms: what dead ones held */
    ngx_http_tokenring_tally_t     *tally;   /* shown or not */
} ngx_http_tokenring_tenants_t;


/* a place among NGINX's processes, and what its worker holds */

typedef struct {
    ngx_queue_t                     queue;
    ngx_queue_t                     holds;
    ngx_int_t                       slot;
    ngx_pid_t                       pid;
} ngx_http_tokenring_holder_t;


/* ms: between two looks for workers that died */
#define NGX_HTTP_TOKENRING_SWEEP  1000


static ngx_http_tokenring_account_t *ngx_http_tokenring_account(
    ngx_shm_zone_t *zone, ngx_http_tokenring_use_t *use,
    ngx_http_tokenring_clock_t *clock);
static ngx_http_tokenring_account_t *ngx_http_tokenring_account_find(
    ngx_http_tokenring_tenants_t *t, ngx_rbtree_key_t key, u_char *name);
static void ngx_http_tokenring_account_refill(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t i,
    ngx_http_tokenring_clock_t *clock);
static ngx_uint_t ngx_http_tokenring_account_share(ngx_shm_zone_t *zone,
    ngx_http_tokenring_account_t *a);
static void ngx_http_tokenring_account_seat(ngx_http_tokenring_account_t *a);
static ngx_http_tokenring_account_t *ngx_http_tokenring_account_new(
    ngx_shm_zone_t *zone);
static ngx_uint_t ngx_http_tokenring_account_forget(ngx_shm_zone_t *zone);
static ngx_http_tokenring_holder_t *ngx_http_tokenring_holder(
    ngx_shm_zone_t *zone);
static void ngx_http_tokenring_holder_end(ngx_shm_zone_t *zone,
    ngx_http_tokenring_holder_t *holder);
static void ngx_http_tokenring_accounts_sweep(ngx_shm_zone_t *zone,
    ngx_http_tokenring_clock_t *clock);


ngx_uint_t  ngx_http_tokenring_accounts_left;


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
    ngx_queue_init(&t->workers);

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


void
ngx_http_tokenring_now(ngx_http_tokenring_clock_t *clock)
{
    clock->now = ngx_current_msec;
    clock->unix_s = (uint64_t) ngx_time();
}


void
ngx_http_tokenring_accounts_lock(ngx_shm_zone_t *zone)
{
    ngx_shmtx_lock(&((ngx_slab_pool_t *) zone->shm.addr)->mutex);
}


void
ngx_http_tokenring_accounts_unlock(ngx_shm_zone_t *zone)
{
    ngx_shmtx_unlock(&((ngx_slab_pool_t *) zone->shm.addr)->mutex);
}


ngx_http_tokenring_account_t *
ngx_http_tokenring_account_known(ngx_shm_zone_t *zone, u_char *name)
{
    ngx_rbtree_key_t  key;

    ngx_memcpy(&key, name, sizeof(ngx_rbtree_key_t));

    return ngx_http_tokenring_account_find(zone->data, key, name);
}


ngx_http_tokenring_account_t *
ngx_http_tokenring_account_open(ngx_http_tokenring_use_t *use,
    ngx_http_tokenring_turn_t *turn)
{
    ngx_http_tokenring_now(&turn->clock);

    turn->zone = use->zone;

    ngx_http_tokenring_accounts_lock(turn->zone);

    ngx_http_tokenring_accounts_sweep(turn->zone, &turn->clock);

    turn->account = ngx_http_tokenring_account(turn->zone, use, &turn->clock);

    return turn->account;
}


void
ngx_http_tokenring_account_close(ngx_http_tokenring_use_t *use,
    ngx_http_tokenring_turn_t *turn, ngx_uint_t over)
{
    ngx_uint_t                     send;
    ngx_http_tokenring_ask_t       ask;
    ngx_http_tokenring_account_t  *a;

    a = turn->account;

    if (a == NULL || !use->plan->shared) {
        send = 0;

    } else if (over) {
        send = (a->holds == 0);

    } else {
        /* nothing more for the last one, whose answer is there */
        send = (a->holds > 1 || !use->ended);
    }

    send = send && !ngx_http_tokenring_accounts_left
           && ngx_http_tokenring_quota_ask(a, use->plan, &turn->clock, over,
                                           &ask);

    ngx_http_tokenring_accounts_unlock(turn->zone);

    if (send) {
        ngx_http_tokenring_quota_send(&ask);
    }
}


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

    /* a worker of before a reload may have another plan */

    if (!ngx_exiting || a->seats == 0) {
        a->seats = (uint16_t) plan->seats;
    }

    ngx_http_tokenring_account_seat(a);

    if (plan->shared && !ngx_http_tokenring_account_share(zone, a)) {
        return NULL;
    }

    for (i = 0; i < plan->n; i++) {
        ngx_http_tokenring_account_refill(a, plan, i, clock);
    }

    return a;
}


/* what has come since; a day that has begun ends what was left of the last */

static void
ngx_http_tokenring_account_refill(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t i,
    ngx_http_tokenring_clock_t *clock)
{
    uint64_t                      since;
    ngx_uint_t                    begun;
    ngx_http_tokenring_rate_t    *rate;
    ngx_http_tokenring_budget_t  *b;

    rate = &plan->limits[i].rate;
    b = &a->budgets[i];
    since = b->since;

    ngx_http_tokenring_budget_refill(b, rate, clock);

    if (rate->period) {
        return;
    }

    begun = (b->since != since);

    if (plan->shared) {
        begun = ngx_http_tokenring_quota_day(a, i, clock, begun);
    }

    a->days += begun;
}


/* its quota.  0: the zone has no room for it, and the account is as new */

static ngx_uint_t
ngx_http_tokenring_account_share(ngx_shm_zone_t *zone,
    ngx_http_tokenring_account_t *a)
{
    a->holds++;

    while (a->quota == NULL) {
        a->quota = ngx_slab_calloc_locked((ngx_slab_pool_t *) zone->shm.addr,
                                          sizeof(ngx_http_tokenring_quota_t));

        if (a->quota == NULL && !ngx_http_tokenring_account_forget(zone)) {
            break;
        }
    }

    a->holds--;

    return a->quota != NULL;
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
    ngx_slab_pool_t               *shpool;
    ngx_http_tokenring_account_t  *a;

    _Static_assert(sizeof(ngx_http_tokenring_account_t) <= 256
                   && sizeof(ngx_http_tokenring_hold_t) <= 64,
                   "as docs/directives.md has it, and a slab");

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    do {
        a = ngx_slab_calloc_locked(shpool,
                                   sizeof(ngx_http_tokenring_account_t));

    } while (a == NULL && ngx_http_tokenring_account_forget(zone));

    if (a) {
        ngx_queue_init(&a->line);
    }

    return a;
}


/* free seats go to those who wait, first come, first served */

static void
ngx_http_tokenring_account_seat(ngx_http_tokenring_account_t *a)
{
    ngx_queue_t                *q;
    ngx_http_tokenring_hold_t  *hold;

    while (!ngx_queue_empty(&a->line)
           && (a->seats == 0 || a->seated < a->seats))
    {
        q = ngx_queue_head(&a->line);
        hold = ngx_queue_data(q, ngx_http_tokenring_hold_t, line);

        ngx_queue_remove(q);

        a->waiting--;
        a->seated++;
        hold->seat = NGX_HTTP_TOKENRING_SEATED;
    }
}


/* the one that was quiet for longest, of those that nobody holds; 0: there is
 * none */

static ngx_uint_t
ngx_http_tokenring_account_forget(ngx_shm_zone_t *zone)
{
    ngx_queue_t                   *q;
    ngx_http_tokenring_account_t  *a;
    ngx_http_tokenring_tenants_t  *t;

    t = zone->data;

    for (q = ngx_queue_last(&t->queue);
         q != ngx_queue_sentinel(&t->queue);
         q = ngx_queue_prev(q))
    {
        a = ngx_queue_data(q, ngx_http_tokenring_account_t, queue);

        if (a->holds == 0) {
            ngx_queue_remove(q);
            ngx_rbtree_delete(&t->tree, &a->node);

            if (a->quota) {
                ngx_slab_free_locked((ngx_slab_pool_t *) zone->shm.addr,
                                     a->quota);
            }

            ngx_slab_free_locked((ngx_slab_pool_t *) zone->shm.addr, a);

            return 1;
        }
    }

    return 0;
}


/* of this process */

static ngx_http_tokenring_holder_t *
ngx_http_tokenring_holder(ngx_shm_zone_t *zone)
{
    ngx_queue_t                   *q;
    ngx_http_tokenring_holder_t   *holder;
    ngx_http_tokenring_tenants_t  *t;

    t = zone->data;

    for (q = ngx_queue_head(&t->workers);
         q != ngx_queue_sentinel(&t->workers);
         q = ngx_queue_next(q))
    {
        holder = ngx_queue_data(q, ngx_http_tokenring_holder_t, queue);

        if (holder->slot == ngx_process_slot) {
            return holder;
        }
    }

    do {
        holder = ngx_slab_calloc_locked((ngx_slab_pool_t *) zone->shm.addr,
                                        sizeof(ngx_http_tokenring_holder_t));

    } while (holder == NULL && ngx_http_tokenring_account_forget(zone));

    if (holder) {
        holder->slot = ngx_process_slot;
        holder->pid = ngx_pid;
        ngx_queue_init(&holder->holds);
        ngx_queue_insert_tail(&t->workers, &holder->queue);
    }

    return holder;
}


ngx_http_tokenring_hold_t *
ngx_http_tokenring_hold(ngx_shm_zone_t *zone, ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan)
{
    ngx_uint_t                    i;
    ngx_http_tokenring_hold_t    *hold;
    ngx_http_tokenring_holder_t  *holder;

    /* not to be forgotten for what follows */
    a->holds++;

    holder = ngx_http_tokenring_holder(zone);

    do {
        hold = ngx_slab_calloc_locked((ngx_slab_pool_t *) zone->shm.addr,
                                      sizeof(ngx_http_tokenring_hold_t));

    } while (hold == NULL && ngx_http_tokenring_account_forget(zone));

    if (hold == NULL || holder == NULL) {
        if (hold) {
            ngx_slab_free_locked((ngx_slab_pool_t *) zone->shm.addr, hold);
        }

        a->holds--;
        return NULL;
    }

    hold->account = a;
    hold->days = a->days;
    hold->shared = plan->shared;

    for (i = 0; i < plan->n; i++) {
        hold->kinds |= ngx_http_tokenring_kind_bit(plan->limits[i].kind);
    }

    ngx_queue_insert_tail(&holder->holds, &hold->queue);

    ngx_queue_insert_tail(&a->line, &hold->line);
    a->waiting++;

    ngx_http_tokenring_account_seat(a);

    return hold;
}


void
ngx_http_tokenring_hold_draw(ngx_http_tokenring_hold_t *hold, uint32_t n)
{
    if (hold->days != hold->account->days) {
        hold->days = hold->account->days;
        hold->drawn = 0;
    }

    hold->drawn += n;
}


void
ngx_http_tokenring_hold_rise(ngx_http_tokenring_hold_t *hold)
{
    ngx_http_tokenring_account_t  *a;

    a = hold->account;

    switch (hold->seat) {

    case NGX_HTTP_TOKENRING_SERVED:
        return;

    case NGX_HTTP_TOKENRING_SEATED:
        a->seated--;
        break;

    default: /* NGX_HTTP_TOKENRING_IN_LINE */
        ngx_queue_remove(&hold->line);
        a->waiting--;
        break;
    }

    hold->seat = NGX_HTTP_TOKENRING_SERVED;

    ngx_http_tokenring_account_seat(a);
}


int64_t
ngx_http_tokenring_hold_unused(ngx_http_tokenring_hold_t *hold, uint8_t kind,
    ngx_http_tokenring_rate_t *rate)
{
    ngx_uint_t                 now;
    ngx_http_tokenring_unit_e  unit;

    if (!(hold->kinds & ngx_http_tokenring_kind_bit(kind))) {
        /* it took nothing from there */
        return 0;
    }

    unit = ngx_http_tokenring_kind(kind, rate);
    now = rate->period || hold->days == hold->account->days;

    switch (unit) {

    case NGX_HTTP_TOKENRING_UNIT_REQUESTS:
        return now ? hold->waits : 0;

    case NGX_HTTP_TOKENRING_UNIT_IN:
        return 0;

    default: /* NGX_HTTP_TOKENRING_UNIT_OUT, NGX_HTTP_TOKENRING_UNIT_TOKENS */

        if (rate->period) {
            return hold->leased;
        }

        /* what was taken first is used first */
        return now ? ngx_min(hold->leased, hold->drawn) : 0;
    }
}


void
ngx_http_tokenring_hold_end(ngx_shm_zone_t *zone,
    ngx_http_tokenring_hold_t *hold)
{
    int64_t                        n;
    ngx_uint_t                     i;
    ngx_http_tokenring_rate_t      rate;
    ngx_http_tokenring_account_t  *a;

    a = hold->account;

    for (i = 0; i < NGX_HTTP_TOKENRING_BUDGETS; i++) {
        n = ngx_http_tokenring_hold_unused(hold, a->kinds[i], &rate);

        if (n) {
            ngx_http_tokenring_budget_take(&a->budgets[i], &rate, -n);

            if (hold->shared && a->quota) {
                a->quota->stocks[i].have += n;
            }
        }
    }

    ngx_http_tokenring_hold_rise(hold);

    a->holds--;

    if (a->holds == 0) {
        a->forgot = 0;
    }

    ngx_queue_remove(&hold->queue);
    ngx_slab_free_locked((ngx_slab_pool_t *) zone->shm.addr, hold);
}


static void
ngx_http_tokenring_holder_end(ngx_shm_zone_t *zone,
    ngx_http_tokenring_holder_t *holder)
{
    ngx_queue_t                *q;
    ngx_http_tokenring_hold_t  *hold;

    while (!ngx_queue_empty(&holder->holds)) {
        q = ngx_queue_head(&holder->holds);
        hold = ngx_queue_data(q, ngx_http_tokenring_hold_t, queue);

        if (hold->kept) {
            hold->leased = 0;
        }

        ngx_http_tokenring_hold_end(zone, hold);
    }
}


/*
 * Two processes that live never have one place: what stands there was left by
 * one that died.
 */

void
ngx_http_tokenring_accounts_begin(ngx_shm_zone_t *zone)
{
    ngx_slab_pool_t              *shpool;
    ngx_http_tokenring_holder_t  *holder;

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    ngx_shmtx_lock(&shpool->mutex);

    holder = ngx_http_tokenring_holder(zone);

    if (holder) {
        holder->pid = ngx_pid;
        ngx_http_tokenring_holder_end(zone, holder);
    }

    ngx_shmtx_unlock(&shpool->mutex);
}


/* one that died in its place, after a reload, is not replaced */

static void
ngx_http_tokenring_accounts_sweep(ngx_shm_zone_t *zone,
    ngx_http_tokenring_clock_t *clock)
{
    ngx_queue_t                   *q;
    ngx_http_tokenring_holder_t   *holder;
    ngx_http_tokenring_tenants_t  *t;

    t = zone->data;

    if (clock->now - t->swept < NGX_HTTP_TOKENRING_SWEEP) {
        return;
    }

    t->swept = clock->now;

    for (q = ngx_queue_head(&t->workers);
         q != ngx_queue_sentinel(&t->workers);
         q = ngx_queue_next(q))
    {
        holder = ngx_queue_data(q, ngx_http_tokenring_holder_t, queue);

        if (!ngx_queue_empty(&holder->holds)
            && kill(holder->pid, 0) == -1 && ngx_errno == NGX_ESRCH)
        {
            ngx_http_tokenring_holder_end(zone, holder);
        }
    }
}
