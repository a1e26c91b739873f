/*
 * The arithmetic of budgets, in integers: a unit of a continuous budget is
 * worth as many parts as its period has milliseconds, and each millisecond
 * brings as many parts as the limit has units.  So nothing is ever rounded.
 */

#include "ngx_http_tokenring_budget.h"


#define NGX_HTTP_TOKENRING_DAY  86400u

/* more is never owed: no sum of it overflows */
#define NGX_HTTP_TOKENRING_DEBT_MAX  4000000000000000000ll


static int64_t ngx_http_tokenring_budget_full(
    const ngx_http_tokenring_rate_t *rate);
static int64_t ngx_http_tokenring_budget_rest(
    const ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate);
static int64_t ngx_http_tokenring_budget_parts(
    const ngx_http_tokenring_rate_t *rate);


/* N/TIME: digits, perhaps k, m or g, and /s, /m, /h or /d */

int
ngx_http_tokenring_rate_parse(const unsigned char *p, size_t n,
    ngx_http_tokenring_rate_t *rate)
{
    size_t    i;
    uint64_t  limit, unit, period;

    limit = 0;

    for (i = 0; i < n && p[i] >= '0' && p[i] <= '9'; i++) {
        limit = limit * 10 + (p[i] - '0');

        if (limit > NGX_HTTP_TOKENRING_LIMIT_MAX) {
            return -1;
        }
    }

    if (i == 0 || i == n) {
        return -1;
    }

    unit = (p[i] == 'k') ? 1000
           : (p[i] == 'm') ? 1000000
           : (p[i] == 'g') ? 1000000000 : 1;

    if (unit != 1) {
        i++;
    }

    if (limit == 0 || limit > NGX_HTTP_TOKENRING_LIMIT_MAX / unit
        || n - i != 2 || p[i] != '/')
    {
        return -1;
    }

    switch (p[i + 1]) {

    case 's':
        period = 1000;
        break;

    case 'm':
        period = 60 * 1000;
        break;

    case 'h':
        period = 3600 * 1000;
        break;

    case 'd':
        period = 0;
        break;

    default:
        return -1;
    }

    rate->limit = limit * unit;
    rate->period = period;

    return 0;
}


uint64_t
ngx_http_tokenring_day(const ngx_http_tokenring_clock_t *clock)
{
    return clock->unix_s / NGX_HTTP_TOKENRING_DAY;
}


static int64_t
ngx_http_tokenring_budget_parts(const ngx_http_tokenring_rate_t *rate)
{
    return rate->period ? (int64_t) rate->period : 1;
}


static int64_t
ngx_http_tokenring_budget_rest(const ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate)
{
    return ngx_http_tokenring_budget_full(rate) - b->used;
}


static int64_t
ngx_http_tokenring_budget_full(const ngx_http_tokenring_rate_t *rate)
{
    return (int64_t) rate->limit * ngx_http_tokenring_budget_parts(rate);
}


void
ngx_http_tokenring_budget_init(ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate,
    const ngx_http_tokenring_clock_t *clock)
{
    b->used = 0;
    b->since = rate->period ? clock->now
                            : ngx_http_tokenring_day(clock);
}


void
ngx_http_tokenring_budget_refill(ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate,
    const ngx_http_tokenring_clock_t *clock)
{
    uint64_t  day, gone;

    if (rate->period == 0) {
        day = ngx_http_tokenring_day(clock);

        /* a day ahead at most: a clock that is put right at midnight; further
         * ahead it was wrong, and what it began is not waited for */

        if (day > b->since || day + 1 < b->since) {
            b->used = 0;
            b->since = day;
        }

        return;
    }

    /* another process may have looked at the clock a little later */

    if (clock->now <= b->since) {
        return;
    }

    gone = clock->now - b->since;
    b->since = clock->now;

    if (gone > (uint64_t) b->used / rate->limit) {
        b->used = 0;

    } else {
        b->used -= (int64_t) (gone * rate->limit);
    }
}


int64_t
ngx_http_tokenring_budget_left(const ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate)
{
    int64_t  parts, rest;

    parts = ngx_http_tokenring_budget_parts(rate);
    rest = ngx_http_tokenring_budget_rest(b, rate);

    return (rest >= 0) ? rest / parts : -((-rest + parts - 1) / parts);
}


void
ngx_http_tokenring_budget_take(ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate, int64_t n)
{
    int64_t  parts, most;

    parts = ngx_http_tokenring_budget_parts(rate);
    most = ngx_http_tokenring_budget_full(rate) + NGX_HTTP_TOKENRING_DEBT_MAX;

    if (n > 0 && n > (most - b->used) / parts) {
        b->used = most;
        return;
    }

    if (n < 0 && -n >= b->used / parts) {
        b->used = 0;
        return;
    }

    b->used += n * parts;
}


uint64_t
ngx_http_tokenring_budget_wait(const ngx_http_tokenring_budget_t *b,
    const ngx_http_tokenring_rate_t *rate,
    const ngx_http_tokenring_clock_t *clock, uint64_t n)
{
    int64_t  want, rest;

    want = (int64_t) n * ngx_http_tokenring_budget_parts(rate);
    rest = ngx_http_tokenring_budget_rest(b, rate);

    if (rest >= want) {
        return 0;
    }

    if (rate->period == 0) {
        return (NGX_HTTP_TOKENRING_DAY
                - clock->unix_s % NGX_HTTP_TOKENRING_DAY) * 1000;
    }

    return ((uint64_t) (want - rest) + rate->limit - 1) / rate->limit;
}
