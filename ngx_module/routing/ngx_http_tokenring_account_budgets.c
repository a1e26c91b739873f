/*
 * The budgets of an account where plans change, ngx_http_tokenring_accounts.h.
 *
 * After a reload old workers go on with the old plan, and new ones have another
 * of the same name: an account has budgets of both, as far as it has places.
 */

#include "ngx_http_tokenring_quota.h"
#include "ngx_http_tokenring_conf.h"


static void ngx_http_tokenring_account_move(ngx_http_tokenring_account_t *a,
    ngx_uint_t from, ngx_uint_t to);
static void ngx_http_tokenring_account_add(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_limit_t *limit, ngx_http_tokenring_clock_t *clock);


/*
 * The plan's budgets first, in the order of its limits.  Since a reload these
 * may be others: what was used stays with the limit of the same unit and time,
 * whatever its number is now; a new one is full.  Those of another plan of this
 * name stay behind: old workers come back to them while their streams last.
 * The last place is that of the one that was not asked for longest, and is
 * what a new one takes.
 */

void
ngx_http_tokenring_account_fit(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_http_tokenring_clock_t *clock)
{
    ngx_uint_t  i, n, place;

    for (i = 0, n = 0; i < plan->n; i++) {
        place = ngx_http_tokenring_account_place(a, plan->limits[i].kind);

        if (place < NGX_HTTP_TOKENRING_BUDGETS) {
            ngx_http_tokenring_account_move(a, place, n++);
        }
    }

    for (i = 0; n < plan->n; i++) {

        if (a->kinds[i] != plan->limits[i].kind) {
            ngx_http_tokenring_account_add(a, &plan->limits[i], clock);
            ngx_http_tokenring_account_move(a, NGX_HTTP_TOKENRING_BUDGETS - 1,
                                            i);
            n++;
        }
    }
}


ngx_uint_t
ngx_http_tokenring_account_place(ngx_http_tokenring_account_t *a, uint8_t kind)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_TOKENRING_BUDGETS; i++) {
        if (a->kinds[i] == kind) {
            break;
        }
    }

    return i;
}


/* forward: those between make room */

static void
ngx_http_tokenring_account_move(ngx_http_tokenring_account_t *a,
    ngx_uint_t from, ngx_uint_t to)
{
    uint8_t                      kind;
    ngx_uint_t                   n;
    ngx_http_tokenring_stock_t  *stocks, stock;
    ngx_http_tokenring_budget_t  budget;

    n = from - to;

    if (n == 0) {
        return;
    }

    kind = a->kinds[from];
    ngx_memmove(&a->kinds[to + 1], &a->kinds[to], n * sizeof(kind));
    a->kinds[to] = kind;

    budget = a->budgets[from];
    ngx_memmove(&a->budgets[to + 1], &a->budgets[to], n * sizeof(budget));
    a->budgets[to] = budget;

    if (a->quota) {
        stocks = a->quota->stocks;
        stock = stocks[from];
        ngx_memmove(&stocks[to + 1], &stocks[to], n * sizeof(stock));
        stocks[to] = stock;
    }
}


/* in the last place.  Whose use was forgotten while requests were under way is
 * empty, not full: two plans that need more places than there are would else
 * fill each other's budgets */

static void
ngx_http_tokenring_account_add(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_limit_t *limit, ngx_http_tokenring_clock_t *clock)
{
    ngx_uint_t                    last;
    ngx_http_tokenring_budget_t  *b;

    last = NGX_HTTP_TOKENRING_BUDGETS - 1;
    b = &a->budgets[last];

    if (a->kinds[last] && a->holds) {
        a->forgot |= ngx_http_tokenring_kind_bit(a->kinds[last]);
    }

    a->kinds[last] = limit->kind;
    ngx_http_tokenring_budget_init(b, &limit->rate, clock);

    if (a->forgot & ngx_http_tokenring_kind_bit(limit->kind)) {
        ngx_http_tokenring_budget_take(b, &limit->rate,
                                       (int64_t) limit->rate.limit);
    }

    if (a->quota) {
        ngx_memzero(&a->quota->stocks[last],
                    sizeof(ngx_http_tokenring_stock_t));
    }
}
