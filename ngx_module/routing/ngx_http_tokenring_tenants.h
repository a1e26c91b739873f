/*
 * Tenants: whose a request is, and what its plan lets it use.
 *
 * What each tenant has used stands in shared memory, for all workers and over
 * reloads, by a hash of the tenant's name and of its plan's: an account.  Plans
 * live in the cycle's pool.
 */

#ifndef _NGX_HTTP_TOKENRING_TENANTS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_TENANTS_H_INCLUDED_


#include "ngx_http_tokenring.h"
#include "ngx_http_tokenring_budget.h"
#include "ngx_http_tokenring_text.h"


/* budgets of a plan */
#define NGX_HTTP_TOKENRING_BUDGETS  8

/* bytes of the hash of a tenant's name, or of its account's */
#define NGX_HTTP_TOKENRING_TENANT   16

/* seats of a plan, and places in its line; hosts that share it */
#define NGX_HTTP_TOKENRING_SEATS_MAX  65535
#define NGX_HTTP_TOKENRING_HOSTS_MAX  1000


typedef enum {
    NGX_HTTP_TOKENRING_UNIT_REQUESTS = 0,
    NGX_HTTP_TOKENRING_UNIT_IN,
    NGX_HTTP_TOKENRING_UNIT_OUT,
    NGX_HTTP_TOKENRING_UNIT_TOKENS       /* both */
} ngx_http_tokenring_unit_e;


typedef struct {
    ngx_http_tokenring_unit_e       unit;
    ngx_http_tokenring_rate_t       rate;    /* this host's part */
    ngx_http_tokenring_rate_t       whole;
    ngx_str_t                       text;    /* as it was configured */
    uint8_t                         kind;    /* unit and time, never 0 */
} ngx_http_tokenring_limit_t;


typedef struct {
    ngx_str_t                       name;
    ngx_uint_t                      n;
    ngx_http_tokenring_limit_t      limits[NGX_HTTP_TOKENRING_BUDGETS];
    ngx_uint_t                      share;   /* beside other tenants, 0: 1 */
    ngx_uint_t                      seats;   /* requests at once, 0: any */
    ngx_uint_t                      queue;   /* more that wait for a seat */
    ngx_msec_t                      wait;    /* for how long, 0: the location's
                                                tokenring_queue_timeout */
    ngx_uint_t                      choices; /* of a request, 0: any number */
    ngx_uint_t                      tier;    /* enum tr_tier, 0: the default */
    ngx_uint_t                      hosts;   /* that share it, 0: 1.  Limits,
                                                seats and queue are this one's
                                                part */
    unsigned                        shared:1; /* by hosts with one Redis: a
                                                 part is for want of it */
    unsigned                        defined:1;
    u_char                         *file;    /* where it was first named */
    ngx_uint_t                      line;
} ngx_http_tokenring_plan_t;


/* what tenants have used, by name (_tally.c) */

typedef struct ngx_http_tokenring_tally_s  ngx_http_tokenring_tally_t;


/* what a request has of its tenant's account (_accounts.h) */

typedef struct ngx_http_tokenring_hold_s  ngx_http_tokenring_hold_t;


/* a request whose tenant has a plan */

typedef struct {
    ngx_http_tokenring_plan_t      *plan;
    u_char                          account[NGX_HTTP_TOKENRING_TENANT];
    ngx_http_tokenring_hold_t      *hold;    /* NULL: refused, or over */
    uint64_t                        in;      /* tokens, charged up to now */
    uint64_t                        out;     /* that have come */
    uint64_t                        taken;   /* from budgets, for its answer:
                                                what the engine may sample */
    uint64_t                        lease;   /* of these, the last part */
    uint64_t                        most;    /* that its answer can have */
    uint64_t                        next;    /* of the answer, when to charge
                                                again */
    ngx_queue_t                     queue;   /* of those who starve */
    ngx_shm_zone_t                 *zone;    /* of its account */
    ngx_http_tokenring_ctx_t       *ctx;     /* NULL: its client has left, and
                                                it goes on (_alone.c), there: */
    ngx_http_tokenring_conn_t      *conn;
    uint64_t                        id;
    unsigned                        starved:1;
    unsigned                        ended:1; /* no more of it comes */
    unsigned                        asks:1;  /* not let in: nothing was taken
                                                before Redis has replied */
    unsigned                        metered:1;
} ngx_http_tokenring_use_t;


/* how a budget stands */

typedef struct {
    ngx_http_tokenring_limit_t     *limit;   /* NULL: there is none */
    ngx_uint_t                      asked;   /* Redis: perhaps there is more */
    int64_t                         left;
    uint64_t                        wait;    /* ms, until it is not empty */
    uint64_t                        reset;   /* ms, until it is full */
} ngx_http_tokenring_view_t;


/* _tenants_conf.c */

/* the directives tokenring_plan, tokenring_tenants, tokenring_limits */
char *ngx_http_tokenring_set_plan(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_tokenring_set_tenants(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_tokenring_set_limits(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* the unit of a limit's kind, which is not 0, and its rate with a limit of 1 */
ngx_http_tokenring_unit_e ngx_http_tokenring_kind(uint8_t kind,
    ngx_http_tokenring_rate_t *rate);

/* the configuration is complete */
ngx_int_t ngx_http_tokenring_init_tenants(ngx_conf_t *cf);


/* _tenants.c */

/* whose a request is, hashed: what tokenring_tenant says, or else the client's
 * address */
void ngx_http_tokenring_tenant(ngx_http_tokenring_ctx_t *ctx,
    u_char hash[NGX_HTTP_TOKENRING_TENANT]);

/*
 * A new request, whose body was not read: takes it from the budget of requests,
 * which gets it back if it waits for a seat and is not let in.
 * NGX_OK: it may go on; NGX_AGAIN: when it has a seat; NGX_DECLINED: it was
 * refused, and the content handler returns *rc.
 */
ngx_int_t ngx_http_tokenring_admit_tenant(ngx_http_tokenring_ctx_t *ctx,
    ngx_int_t *rc);

/* it waited, and a seat is free.  NGX_AGAIN: Redis is being asked;
 * NGX_DECLINED: a budget is empty by now */
ngx_int_t ngx_http_tokenring_still_has(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *empty);

/* its SUBMIT is next: 1 where the engine samples only what it is allowed to,
 * which it is told */
ngx_uint_t ngx_http_tokenring_meter(ngx_http_tokenring_ctx_t *ctx);

/* the engine says how many tokens its answer can have; before it is charged */
void ngx_http_tokenring_accepted_most(ngx_http_tokenring_ctx_t *ctx,
    uint64_t most);

/* takes what it has used up to now, and of what is left the next part of its
 * answer, if it has a plan.  0: a budget of tokens is empty */
ngx_uint_t ngx_http_tokenring_charge(ngx_http_tokenring_ctx_t *ctx);

/* the same, after a reply of Redis; where its budget is empty it ends */
void ngx_http_tokenring_charge_again(ngx_http_tokenring_ctx_t *ctx);

/* more of its answer has come; where its budget is empty it ends */
void ngx_http_tokenring_spend(ngx_http_tokenring_ctx_t *ctx);

/* it is over: what it has not used goes back */
void ngx_http_tokenring_tenant_end(ngx_http_tokenring_ctx_t *ctx);


/* _limits.c */

/* 429, for what is empty; what the content handler returns */
ngx_int_t ngx_http_tokenring_limit_refuse(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_view_t *empty);

/* 429, for want of a seat */
ngx_int_t ngx_http_tokenring_seat_refuse(ngx_http_tokenring_ctx_t *ctx);

/* x-ratelimit-*: what is left; NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_limit_headers(ngx_http_tokenring_ctx_t *ctx);


/* _seats.c */

/* where those of this worker wait who have no seat; somebody joins it now */
ngx_queue_t *ngx_http_tokenring_seat_queue(void);

/* somebody of this worker has given up a seat, or a place in a line */
void ngx_http_tokenring_seat_freed(void);

/* nothing more comes of it: it gives up its seat, before its client has all and
 * sends the next */
void ngx_http_tokenring_seat_leave(ngx_http_tokenring_ctx_t *ctx);

/* it has waited for one as long as it may: it ends */
void ngx_http_tokenring_seat_expired(ngx_http_tokenring_ctx_t *ctx);


/* _accounts.c */

/* of the zone's shared memory */
ngx_int_t ngx_http_tokenring_tenants_init(ngx_shm_zone_t *zone, void *data);

/* the worker's first act: what one before it in its place left */
void ngx_http_tokenring_accounts_begin(ngx_shm_zone_t *zone);

/* of the zone */
ngx_http_tokenring_tally_t *ngx_http_tokenring_tenants_tally(
    ngx_shm_zone_t *zone);


/* _tally.c */

ngx_http_tokenring_tally_t *ngx_http_tokenring_tally_create(
    ngx_slab_pool_t *shpool);

/* one more request, in the log phase */
void ngx_http_tokenring_tally(ngx_http_tokenring_ctx_t *ctx);

/* all of it, as Prometheus text, or ,"tenants":[..]; nothing where it is not
 * shown.  NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_tally_metrics(ngx_http_tokenring_text_t *out);
ngx_int_t ngx_http_tokenring_tally_json(ngx_http_tokenring_text_t *out);


#endif /* _NGX_HTTP_TOKENRING_TENANTS_H_INCLUDED_ */
