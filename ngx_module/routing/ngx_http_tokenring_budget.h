/*
 * A budget: so many units in a time, as a plan gives them (tokenring_plan).
 *
 * One of a second, minute or hour refills evenly, up to what it holds: after a
 * pause all of it may be spent at once, then as it comes (GCRA).  One of a day
 * is whole again when a day of UTC begins.  It may be overdrawn, and then owes.
 * What was used is kept, not what is left: so the limit may change meanwhile.
 *
 * Plain C, without NGINX: tests/unit/module/test_budget.c.  Who uses it from
 * several processes locks it.
 */

#ifndef _NGX_HTTP_TOKENRING_BUDGET_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_BUDGET_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define NGX_HTTP_TOKENRING_LIMIT_MAX  1000000000000ull


typedef struct {
    uint64_t                        limit;   /* units, 1 to the maximum */
    uint64_t                        period;  /* ms, 1 to an hour; 0: a day */
} ngx_http_tokenring_rate_t;


typedef struct {
    int64_t                         used;    /* units * period; of a day: units.
                                                More than it holds is owed */
    uint64_t                        since;   /* ms; of a day: which one */
} ngx_http_tokenring_budget_t;


/* now: ms of a clock that never goes back; unix_s: seconds of UTC */
typedef struct {
    uint64_t                        now;
    uint64_t                        unix_s;
} ngx_http_tokenring_clock_t;


/* which day of UTC it is */
uint64_t ngx_http_tokenring_day(const ngx_http_tokenring_clock_t *clock);

/* "200k/m": units with k, m or g (thousands), then /s, /m, /h or /d; 0, or
 * -1 */
int ngx_http_tokenring_rate_parse(const unsigned char *p, size_t n,
    ngx_http_tokenring_rate_t *rate);

/* a full one */
void ngx_http_tokenring_budget_init(ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate,
    const ngx_http_tokenring_clock_t *clock);

/* what has come since; before each of the functions below */
void ngx_http_tokenring_budget_refill(ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate,
    const ngx_http_tokenring_clock_t *clock);

/* whole units that are left, below 0: owed */
int64_t ngx_http_tokenring_budget_left(const ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate);

/* takes n units, or gives them back if n is negative */
void ngx_http_tokenring_budget_take(ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate, int64_t n);

/* ms until n units are left, 1 <= n <= limit; 0: they are */
uint64_t ngx_http_tokenring_budget_wait(const ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate,
    const ngx_http_tokenring_clock_t *clock, uint64_t n);


#endif /* _NGX_HTTP_TOKENRING_BUDGET_H_INCLUDED_ */
