/*
 * Budgets that several hosts share (`shared` of tokenring_plan): a quota.
 *
 * Redis holds what is left of them.  Each host draws a twentieth at a time
 * from there, or less where little is left, before it uses any of it, and keeps
 * that as its stock, in its account of the tenant: answers are leased from the
 * stock as they are from a budget of this host alone.  So all hosts together
 * never use more than there is.  What a host had drawn when it died is lost.
 *
 * Days are Redis's: each reply says which it is and when it ends, so that this
 * host's clock has no part in it.  What is of another day is never given back.
 *
 * Nothing blocks on Redis: whoever finds the stock low asks for more, and a
 * request that finds it empty pauses until the reply is there (SEAT, or without
 * an allowance).  While Redis is unreachable, the stock is all there is, or
 * with `hosts` this host's part of the plan.
 *
 * Functions with an account need the zone's lock, the others must not have it.
 */

#ifndef _NGX_HTTP_TOKENRING_QUOTA_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_QUOTA_H_INCLUDED_


#include "ngx_http_tokenring_accounts.h"


/* of one budget; times are ngx_current_msec */

typedef struct {
    int64_t                         have;    /* taken and not used; below 0:
                                                owed */
    int64_t                         paying;  /* owed, and told to Redis, whose
                                                reply is to come */
    int64_t                         rest;    /* in Redis, by its last reply */
    uint64_t                        day;     /* that all this is of: Redis's.
                                                0: it has not said */
    uint64_t                        ends;    /* when that day does */
    uint64_t                        next;    /* not asked again before */
    uint64_t                        until;   /* then it will have something */
} ngx_http_tokenring_stock_t;


struct ngx_http_tokenring_quota_s {
    ngx_http_tokenring_stock_t      stocks[NGX_HTTP_TOKENRING_BUDGETS];
    uint64_t                        told;    /* Redis's clock, by its replies */
    uint64_t                        tried;   /* when Redis was asked last */
    uint64_t                        away;    /* when it did not reply, or 0 */
    uint64_t                        asking;  /* 1: the reply is to come */
};


/* what Redis is asked for; made with the lock, sent without */

typedef struct {
    u_char                          account[NGX_HTTP_TOKENRING_TENANT];
    ngx_uint_t                      n;
    struct {
        uint64_t                    day;
        uint64_t                    limit;
        uint64_t                    period;
        int64_t                     pay;     /* owed; below 0: given back */
        int64_t                     want;
        uint8_t                     kind;
    } parts[NGX_HTTP_TOKENRING_BUDGETS];
} ngx_http_tokenring_ask_t;


/* the tokenring_redis of shared plans; NGX_ERROR: logged */
ngx_int_t ngx_http_tokenring_init_quota(ngx_conf_t *cf);

/* what this host may still use; below 1: nothing */
int64_t ngx_http_tokenring_quota_left(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t i);

/* nothing is left here, but perhaps in Redis: it is being asked */
ngx_uint_t ngx_http_tokenring_quota_unknown(ngx_http_tokenring_account_t *a,
    ngx_uint_t i, ngx_http_tokenring_clock_t *clock);

/* ms until n more are there, and until all is */
uint64_t ngx_http_tokenring_quota_wait(ngx_http_tokenring_account_t *a,
    ngx_uint_t i, ngx_http_tokenring_clock_t *clock);
uint64_t ngx_http_tokenring_quota_reset(ngx_http_tokenring_limit_t *limit,
    int64_t left, ngx_http_tokenring_clock_t *clock);

/* is more to be asked for?  over: the last request of this host has ended, and
 * what it has goes back.  1: send it */
ngx_uint_t ngx_http_tokenring_quota_ask(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_http_tokenring_clock_t *clock,
    ngx_uint_t over, ngx_http_tokenring_ask_t *ask);
void ngx_http_tokenring_quota_send(ngx_http_tokenring_ask_t *ask);

/* nothing is left of a day that has gone, and nothing is owed.  1: a day has
 * begun, by Redis's clock; where that is not known, if this host's has begun
 * one */
ngx_uint_t ngx_http_tokenring_quota_day(ngx_http_tokenring_account_t *a,
    ngx_uint_t i, ngx_http_tokenring_clock_t *clock, ngx_uint_t begun);

/* its engine has used all it is allowed to: it is charged again when Redis has
 * replied, unless it ends before */
void ngx_http_tokenring_quota_starve(ngx_http_tokenring_use_t *use);
void ngx_http_tokenring_quota_leave(ngx_http_tokenring_use_t *use);
/* a reply has come: those who wait in this worker; those of others look by
 * themselves */
void ngx_http_tokenring_quota_wake(void);


#endif /* _NGX_HTTP_TOKENRING_QUOTA_H_INCLUDED_ */
