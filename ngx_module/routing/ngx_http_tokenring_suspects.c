/*
 * Requests that may be why engines end.
 *
 * An engine that crashed has left on its status page who was being started
 * (status.h).  Each of these is charged, and joins the next engine alone
 * (engine/frontend/suspects.c).  One that was alone when that crashed, too, is
 * refused, and so is whatever has the same body, for ten minutes.
 *
 * An engine that was killed has crashed by nobody's fault: only the number of
 * moves bounds what its requests may cost.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"

#include <ngx_md5.h>


#define NGX_HTTP_TOKENRING_REFUSED_TIME  600

/* of those that were never alone when an engine crashed */
#define NGX_HTTP_TOKENRING_CHARGES       3


static ngx_uint_t ngx_http_tokenring_suspect_body(
    ngx_http_tokenring_ctx_t *ctx, uint64_t hash[2]);
static void ngx_http_tokenring_suspect_note(ngx_http_tokenring_ctx_t *ctx);


/* who was being started at the engine that was lost */

void
ngx_http_tokenring_suspects(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_suspects_t *suspects)
{
    tr_status_page_t  *page;

    suspects->n = 0;

    page = (tr_status_page_t *) (uintptr_t) conn->page;

    if (page && atomic_load_explicit(&page->counters.crashed,
                                     memory_order_acquire))
    {
        suspects->n = tr_status_fresh(&page->counters, suspects->names);
    }
}


/* is it one of them?  Then its error says so, once it is named */

void
ngx_http_tokenring_suspect(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_suspects_t *suspects)
{
    uint64_t    name;
    ngx_uint_t  i;

    if (suspects->n == 0 || ctx->body_sent != NGX_HTTP_TOKENRING_WHOLE) {
        return;
    }

    name = tr_completion_name((const char *) ctx->completion.data);

    for (i = 0; i < suspects->n && suspects->names[i] != name; i++) {
        /* void */
    }

    if (i == suspects->n) {
        return;
    }

    ctx->charges++;

    ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                  "tokenring: an engine crashed while it started this, "
                  "request=%V charges=%ui others=%ui", &ctx->request_id,
                  ctx->charges, suspects->n - 1);

    if (ctx->charges >= NGX_HTTP_TOKENRING_CHARGES
        || (ctx->charges == 2 && suspects->n == 1))
    {
        ngx_http_tokenring_suspect_note(ctx);
        ngx_http_tokenring_count(refused);
        ngx_http_tokenring_fail(ctx, TR_ERR_REFUSED,
                                NGX_HTTP_TOKENRING_REFUSED);
    }
}


/* has its body, all of which is here, ended engines before? */

ngx_uint_t
ngx_http_tokenring_suspect_known(ngx_http_tokenring_ctx_t *ctx)
{
    time_t                          now;
    uint64_t                        hash[2];
    ngx_uint_t                      i;
    ngx_http_tokenring_shared_t    *shared;
    ngx_http_tokenring_refused_t   *refused;

    shared = ngx_http_tokenring_counters;
    now = ngx_time();

    if (shared == NULL
        || now >= (time_t) shared->refused_until
        || !ngx_http_tokenring_suspect_body(ctx, hash))
    {
        return 0;
    }

    for (i = 0; i < NGX_HTTP_TOKENRING_REFUSED_BODIES; i++) {
        refused = &shared->refused_bodies[i];

        if (refused->hash[0] == hash[0] && refused->hash[1] == hash[1]
            && now < (time_t) refused->until)
        {
            ngx_http_tokenring_count(refused);
            return 1;
        }
    }

    return 0;
}


/* in the place of the oldest; two workers may take the same one */

static void
ngx_http_tokenring_suspect_note(ngx_http_tokenring_ctx_t *ctx)
{
    uint64_t                       hash[2];
    ngx_uint_t                     i;
    ngx_http_tokenring_shared_t   *shared;
    ngx_http_tokenring_refused_t  *refused, *oldest;

    shared = ngx_http_tokenring_counters;

    if (shared == NULL || !ngx_http_tokenring_suspect_body(ctx, hash)) {
        return;
    }

    oldest = &shared->refused_bodies[0];

    for (i = 1; i < NGX_HTTP_TOKENRING_REFUSED_BODIES; i++) {
        refused = &shared->refused_bodies[i];

        if (refused->until < oldest->until) {
            oldest = refused;
        }
    }

    oldest->until = 0;
    ngx_memory_barrier();
    oldest->hash[0] = hash[0];
    oldest->hash[1] = hash[1];
    ngx_memory_barrier();
    oldest->until = ngx_time() + NGX_HTTP_TOKENRING_REFUSED_TIME;

    shared->refused_until = oldest->until;
}


/* of the endpoint and the body; 0: the body is not kept in memory */

static ngx_uint_t
ngx_http_tokenring_suspect_body(ngx_http_tokenring_ctx_t *ctx,
    uint64_t hash[2])
{
    u_char               digest[16], endpoint;
    ngx_md5_t            md5;
    ngx_chain_t         *in, *cl;
    ngx_http_request_t  *r;

    r = ctx->request;
    in = ctx->kept;

    if (in == NULL && ctx->foreign_body && r->request_body) {
        in = r->request_body->bufs;
    }

    if (in == NULL) {
        return 0;
    }

    endpoint = ctx->endpoint;

    ngx_md5_init(&md5);
    ngx_md5_update(&md5, &endpoint, 1);

    for (cl = in; cl; cl = cl->next) {

        if (!ngx_buf_in_memory(cl->buf)) {
            return 0;
        }

        ngx_md5_update(&md5, cl->buf->pos, cl->buf->last - cl->buf->pos);
    }

    ngx_md5_final(digest, &md5);
    ngx_memcpy(hash, digest, 16);

    return 1;
}
