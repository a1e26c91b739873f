/*
 * Requests of one value stay at one engine (tokenring_affinity): a session,
 * say, or a user.
 *
 * Rendezvous hashing: each engine has a score for a value, and the one with the
 * best of those that may take the request gets it.  So when an engine comes or
 * goes, only its own values move.  One that has more than 1.25 times as much to
 * do as they have on average, and a little more, is passed over for the next.
 */

#include "ngx_http_tokenring_affinity.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_request.h"


static uint64_t ngx_http_tokenring_affinity_mix(uint64_t x);
static uint64_t ngx_http_tokenring_affinity_log(uint64_t u);
static uint64_t ngx_http_tokenring_affinity_score(
    ngx_http_tokenring_conn_t *conn, uint64_t value);


ngx_uint_t
ngx_http_tokenring_affinity_value(ngx_http_tokenring_ctx_t *ctx,
    uint64_t *hash)
{
    size_t     i;
    ngx_str_t  value;

    if (ctx->conf->affinity == NULL
        || ngx_http_complex_value(ctx->request, ctx->conf->affinity, &value)
           != NGX_OK
        || value.len == 0)
    {
        return 0;
    }

    *hash = 0;

    for (i = 0; i < value.len; i++) {
        *hash = ngx_http_tokenring_affinity_mix(*hash ^ value.data[i]);
    }

    return 1;
}


/* the finisher of SplitMix64: each bit of x changes half of the result's */

static uint64_t
ngx_http_tokenring_affinity_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;

    return x ^ (x >> 31);
}


/* -log2(u / 2^64), of which the last 16 bits are a fraction */

static uint64_t
ngx_http_tokenring_affinity_log(uint64_t u)
{
    uint64_t    m, log;
    ngx_uint_t  i, zeros;

    u |= 1;
    zeros = __builtin_clzll(u);
    m = u << zeros >> 32;
    log = 0;

    for (i = 0; i < 16; i++) {
        m *= m;
        log = log << 1 | m >> 63;
        m >>= 31 + (m >> 63);
    }

    return ((uint64_t) (zeros + 1) << 16) - log;
}


/*
 * The least is the best: the time until the first of `weight` equal clocks
 * rings.  From its socket, so that it is the same in all workers, and after a
 * reload.
 */

static uint64_t
ngx_http_tokenring_affinity_score(ngx_http_tokenring_conn_t *conn,
    uint64_t value)
{
    uint64_t  name;

    name = ngx_murmur_hash2(conn->addr.name.data, conn->addr.name.len);

    return (ngx_http_tokenring_affinity_log(
                ngx_http_tokenring_affinity_mix(value ^ name)) << 20)
           / conn->weight;
}


/*
 * Of the n that may take it: the one with the best score that has not too much
 * to do.  One always has no more than the average.
 */

ngx_http_tokenring_conn_t *
ngx_http_tokenring_affinity_best(ngx_http_tokenring_conn_t **conns,
    ngx_uint_t n, uint64_t value)
{
    uint64_t                    all, weights, load, score, least;
    ngx_uint_t                  i;
    ngx_http_tokenring_conn_t  *best;

    all = 0;
    weights = 0;

    for (i = 0; i < n; i++) {
        all += ngx_http_tokenring_conn_load(conns[i]);
        weights += conns[i]->weight;
    }

    best = NULL;
    least = 0;

    for (i = 0; i < n; i++) {
        load = ngx_http_tokenring_conn_load(conns[i]);
        score = ngx_http_tokenring_affinity_score(conns[i], value);

        if ((best == NULL || score < least)
            && load * weights
               <= (all + all / 4 + NGX_HTTP_TOKENRING_WARM * weights)
                  * conns[i]->weight)
        {
            best = conns[i];
            least = score;
        }
    }

    return best;
}
