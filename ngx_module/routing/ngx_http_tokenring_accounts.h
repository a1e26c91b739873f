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
    ngx_uint_t                      holds;
} ngx_http_tokenring_account_t;


struct ngx_http_tokenring_hold_s {
    ngx_queue_t                     queue;   /* of its worker's */
    ngx_http_tokenring_account_t   *account;
    uint64_t                        leased;  /* tokens that its answer may still
                                                have, and were taken from the
                                                budgets: its worker writes it,
                                                without the lock */
};


void ngx_http_tokenring_now(ngx_http_tokenring_clock_t *clock);

/* the zone of all accounts, locked */
ngx_shm_zone_t *ngx_http_tokenring_accounts_lock(
    ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_accounts_unlock(ngx_shm_zone_t *zone);

/* the account of a tenant, refilled; NULL: the zone has no room for one */
ngx_http_tokenring_account_t *ngx_http_tokenring_account(ngx_shm_zone_t *zone,
    ngx_http_tokenring_use_t *use, ngx_http_tokenring_clock_t *clock);

/* one more request of an account; NULL: the zone has no room */
ngx_http_tokenring_hold_t *ngx_http_tokenring_hold(ngx_shm_zone_t *zone,
    ngx_http_tokenring_account_t *a);

/* what it has leased goes back; then it is free */
void ngx_http_tokenring_hold_end(ngx_shm_zone_t *zone,
    ngx_http_tokenring_hold_t *hold);

#endif /* _NGX_HTTP_TOKENRING_ACCOUNTS_H_INCLUDED_ */
