/*
 * Accounts: what each tenant has used of its plan, in shared memory, for all
 * workers and over reloads.  And holds: what one request has of an account
 * until it ends.
 *
 * One lock for all tenants: it is held for the arithmetic of a few budgets.
 * When the memory is full, the tenant that was quiet for longest is forgotten,
 * but none of which a request is under way.
 *
 * A hold belongs to the worker of its request.  One that dies gives nothing
 * back; whoever takes its place does, before it serves anybody.
 */

#ifndef _NGX_HTTP_TOKENRING_ACCOUNTS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_ACCOUNTS_H_INCLUDED_


#include "ngx_http_tokenring_tenants.h"


/* of a tenant in a plan; its fields are looked at under the lock */

typedef struct {
    ngx_rbtree_node_t               node;    /* key: of the hash */
    ngx_queue_t                     queue;
    u_char                          name[NGX_HTTP_TOKENRING_TENANT];
    uint8_t                         kinds[NGX_HTTP_TOKENRING_BUDGETS];
    ngx_http_tokenring_budget_t     budgets[NGX_HTTP_TOKENRING_BUDGETS];
    ngx_uint_t                      holds;   /* of them, `seated` are served,
                                                and `waiting` are in the line */
    ngx_queue_t                     line;
    uint32_t                        seats;   /* of the plan, 0: any number */
    uint32_t                        seated;
    uint32_t                        waiting;
} ngx_http_tokenring_account_t;


/* of a hold */

typedef enum {
    NGX_HTTP_TOKENRING_IN_LINE = 0,
    NGX_HTTP_TOKENRING_SEATED,
    NGX_HTTP_TOKENRING_SERVED
} ngx_http_tokenring_seat_e;


struct ngx_http_tokenring_hold_s {
    ngx_queue_t                     queue;   /* of its worker's */
    ngx_http_tokenring_account_t   *account;
    uint64_t                        leased;  /* tokens that its answer may still
                                                have, and were taken from the
                                                budgets: its worker writes it,
                                                without the lock */
    ngx_atomic_t                    waits;   /* 1: it came to the line, and was
                                                not let in.  As `leased` */
    ngx_queue_t                     line;    /* of its account's, if in it */
    ngx_atomic_t                    seat;    /* ngx_http_tokenring_seat_e: who
                                                has the lock writes it, its
                                                worker looks at it without */
};


void ngx_http_tokenring_now(ngx_http_tokenring_clock_t *clock);

/* the zone of all accounts, locked */
ngx_shm_zone_t *ngx_http_tokenring_accounts_lock(
    ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_accounts_unlock(ngx_shm_zone_t *zone);

/* the account of a tenant, refilled; NULL: the zone has no room for one */
ngx_http_tokenring_account_t *ngx_http_tokenring_account(ngx_shm_zone_t *zone,
    ngx_http_tokenring_use_t *use, ngx_http_tokenring_clock_t *clock);

/* one more request of an account, at the end of the line if no seat is free;
 * NULL: the zone has no room */
ngx_http_tokenring_hold_t *ngx_http_tokenring_hold(ngx_shm_zone_t *zone,
    ngx_http_tokenring_account_t *a);

/* it gives up its seat, or its place in the line */
void ngx_http_tokenring_hold_rise(ngx_http_tokenring_hold_t *hold);

/* what a budget of this kind gets back of it if it ends now: of tokens, what it
 * has leased; of requests, 1 if it was not let in.  rate: that of the kind,
 * with a limit of 1 */
int64_t ngx_http_tokenring_hold_unused(ngx_http_tokenring_hold_t *hold,
    uint8_t kind, ngx_http_tokenring_rate_t *rate);

/* what it has not used goes back, and its seat to the first in the line; then
 * it is free */
void ngx_http_tokenring_hold_end(ngx_shm_zone_t *zone,
    ngx_http_tokenring_hold_t *hold);

#endif /* _NGX_HTTP_TOKENRING_ACCOUNTS_H_INCLUDED_ */
