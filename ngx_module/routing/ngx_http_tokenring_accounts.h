/*
 * An account is what a tenant has used of its plan.  A hold is what one running
 * request takes from an account until it ends: a seat, and tokens in advance.
 * Both are in shared memory, so that all workers count together, also after a
 * reload.
 *
 * One lock protects all accounts; it is held only for the arithmetic of a few
 * budgets.  When the memory is full, the account that was idle for longest is
 * dropped; one with running requests never is.
 *
 * A hold belongs to the worker of its request.  A worker that crashes cannot
 * give its holds back; the worker that replaces it does, before it takes any
 * request, or, where none does, whoever looks at an account next.
 */

#ifndef _NGX_HTTP_TOKENRING_ACCOUNTS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_ACCOUNTS_H_INCLUDED_


#include "ngx_http_tokenring_tenants.h"


/* what this host has of a plan that several share (_quota.h) */

typedef struct ngx_http_tokenring_quota_s  ngx_http_tokenring_quota_t;


/* what one tenant has used of one plan; all fields need the lock */

typedef struct {
    ngx_rbtree_node_t               node;    /* key: of the hash */
    ngx_queue_t                     queue;
    u_char                          name[NGX_HTTP_TOKENRING_TENANT];
    uint8_t                         kinds[NGX_HTTP_TOKENRING_BUDGETS];
                                             /* of budgets; 0: none.  First
                                                those of the plan that was asked
                                                for last */
    ngx_http_tokenring_budget_t     budgets[NGX_HTTP_TOKENRING_BUDGETS];
    ngx_uint_t                      holds;   /* of them, `seated` are served,
                                                and `waiting` are in the line */
    ngx_http_tokenring_quota_t     *quota;   /* NULL: it was never shared */
    ngx_queue_t                     line;
    uint16_t                        seats;   /* of the plan, 0: any number */
    uint16_t                        forgot;  /* kinds that had no place, as
                                                bits, while holds last */
    uint32_t                        seated;
    uint32_t                        waiting;
    uint32_t                        days;    /* that have begun: what was taken
                                                of an earlier one is not given
                                                back */
} ngx_http_tokenring_account_t;


/* of sixteen, 0 for no kind */
#define ngx_http_tokenring_kind_bit(kind)  ((uint16_t) ((1u << (kind)) >> 1))


/* where the request of a hold is */

typedef enum {
    NGX_HTTP_TOKENRING_IN_LINE = 0,
    NGX_HTTP_TOKENRING_SEATED,
    NGX_HTTP_TOKENRING_SERVED
} ngx_http_tokenring_seat_e;


struct ngx_http_tokenring_hold_s {
    ngx_queue_t                     queue;   /* of its worker's */
    ngx_http_tokenring_account_t   *account;
    uint32_t                        leased;  /* tokens that its answer may still
                                                have, and were taken from the
                                                budgets: its worker writes it,
                                                without the lock */
    uint32_t                        drawn;   /* what was taken for it on the
                                                account's day `days` */
    uint32_t                        days;
    uint16_t                        kinds;   /* of budgets that it takes from,
                                                as bits */
    unsigned                        shared:1; /* it took from the quota, too */
    unsigned                        kept:1;  /* its engine goes on with it when
                                                its worker dies: what is leased
                                                is used up then */
    unsigned                        waits:1; /* it came to the line, and was not
                                                let in.  As `leased` */
    ngx_queue_t                     line;    /* of its account's, if in it */
    ngx_atomic_t                    seat;    /* ngx_http_tokenring_seat_e: who
                                                has the lock writes it, its
                                                worker looks at it without */
};


void ngx_http_tokenring_now(ngx_http_tokenring_clock_t *clock);

void ngx_http_tokenring_accounts_lock(ngx_shm_zone_t *zone);
void ngx_http_tokenring_accounts_unlock(ngx_shm_zone_t *zone);

/* the account of this name as it is, NULL: there is none */
ngx_http_tokenring_account_t *ngx_http_tokenring_account_known(
    ngx_shm_zone_t *zone, u_char *name);

/* what is done to one account under the lock */

typedef struct {
    ngx_shm_zone_t                 *zone;
    ngx_http_tokenring_clock_t      clock;
    ngx_http_tokenring_account_t   *account;
} ngx_http_tokenring_turn_t;

/* locks, and finds the account of a request's tenant, refilled; NULL: the zone
 * has no room for one */
ngx_http_tokenring_account_t *ngx_http_tokenring_account_open(
    ngx_http_tokenring_use_t *use, ngx_http_tokenring_turn_t *turn);

/* unlocks.  Of a plan that hosts share, what is low is asked for; over: what is
 * left goes back, if no request of the tenant is under way */
void ngx_http_tokenring_account_close(ngx_http_tokenring_use_t *use,
    ngx_http_tokenring_turn_t *turn, ngx_uint_t over);

/* 1: this worker exits, and asks Redis nothing more */
extern ngx_uint_t  ngx_http_tokenring_accounts_left;

/* the budgets of this plan stand first, in its order */
void ngx_http_tokenring_account_fit(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_http_tokenring_clock_t *clock);

/* where its budget of this kind stands; NGX_HTTP_TOKENRING_BUDGETS: it has
 * none.  One of the plan of a turn stands where the plan has it */
ngx_uint_t ngx_http_tokenring_account_place(ngx_http_tokenring_account_t *a,
    uint8_t kind);

/* a hold for one more request, at the end of the line if no seat is free;
 * NULL: the zone has no room */
ngx_http_tokenring_hold_t *ngx_http_tokenring_hold(ngx_shm_zone_t *zone,
    ngx_http_tokenring_account_t *a, ngx_http_tokenring_plan_t *plan);

/* so much was taken from the budgets of its account for it, now */
void ngx_http_tokenring_hold_draw(ngx_http_tokenring_hold_t *hold, uint32_t n);

/* it gives up its seat, or its place in the line */
void ngx_http_tokenring_hold_rise(ngx_http_tokenring_hold_t *hold);

/* what a budget of this kind would get back if the hold ended now: of tokens,
 * those that it has leased; of requests, 1 if it was never let in; of a day,
 * what was taken on that.  rate: that of the kind, with a limit of 1 */
int64_t ngx_http_tokenring_hold_unused(ngx_http_tokenring_hold_t *hold,
    uint8_t kind, ngx_http_tokenring_rate_t *rate);

/* gives back what the request has not used, and its seat to the first in the
 * line; then frees the hold */
void ngx_http_tokenring_hold_end(ngx_shm_zone_t *zone,
    ngx_http_tokenring_hold_t *hold);


/* _tenants.c */

/* takes tokens of a prompt and of an answer from the budgets of tokens */
void ngx_http_tokenring_take(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, int64_t in, int64_t out);

/* tokens that answers may still take; asked: where that is none, Redis may
 * give more */
int64_t ngx_http_tokenring_left(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_http_tokenring_clock_t *clock,
    ngx_uint_t *asked);


#endif /* _NGX_HTTP_TOKENRING_ACCOUNTS_H_INCLUDED_ */
