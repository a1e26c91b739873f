/*
 * GET and DELETE of /v1/requests/ID, and DELETE of /v1/responses/ID.
 *
 * Both read the request from Redis, and the heartbeat of its engine unless the
 * request is over; DELETE then tells the engine, wherever it runs, by a message
 * on its channel.  The answer to DELETE says that the engine was told, not that
 * the request has ended: its state says that.
 *
 * A response that is kept and over is deleted with all that Redis has of it.
 *
 * The HTTP request waits for Redis no longer than tokenring_redis's timeout.  A
 * request of another owner gets exactly the answer of an unknown id.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_find.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_requests.h"
#include "ngx_http_tokenring_send.h"


typedef struct {
    ngx_http_tokenring_find_t     find;
    ngx_http_tokenring_call_t    *call;
    unsigned                      cancel:1;
    unsigned                      drop:1;        /* a kept response */
} ngx_http_tokenring_lookup_t;


static ngx_int_t ngx_http_tokenring_lookup(ngx_http_request_t *r,
    ngx_str_t *name, ngx_uint_t cancel, ngx_uint_t drop);
static void ngx_http_tokenring_lookup_cleanup(void *data);
static void ngx_http_tokenring_lookup_found(void *data, ngx_int_t rc);
static void ngx_http_tokenring_lookup_engine(void *data, redisReply *reply);
static void ngx_http_tokenring_lookup_over(ngx_http_tokenring_lookup_t *l);
static ngx_uint_t ngx_http_tokenring_lookup_number(
    ngx_http_tokenring_lookup_t *l, redisReply *reply);
static void ngx_http_tokenring_lookup_dropped(void *data, redisReply *reply);
static ngx_int_t ngx_http_tokenring_lookup_cancel(
    ngx_http_tokenring_lookup_t *l);
static void ngx_http_tokenring_lookup_told(void *data, redisReply *reply);
static ngx_int_t ngx_http_tokenring_lookup_send(ngx_http_tokenring_lookup_t *l,
    ngx_uint_t status, ngx_uint_t cancelling);
static void ngx_http_tokenring_lookup_end(ngx_http_tokenring_lookup_t *l,
    ngx_int_t rc);


ngx_int_t
ngx_http_tokenring_request_state(ngx_http_request_t *r, ngx_str_t *name)
{
    return ngx_http_tokenring_lookup(r, name, 0, 0);
}


ngx_int_t
ngx_http_tokenring_request_cancel(ngx_http_request_t *r, ngx_str_t *name)
{
    return ngx_http_tokenring_lookup(r, name, 1, 0);
}


ngx_int_t
ngx_http_tokenring_response_delete(ngx_http_request_t *r, ngx_str_t *name)
{
    return ngx_http_tokenring_lookup(r, name, 0, 1);
}


static ngx_int_t
ngx_http_tokenring_lookup(ngx_http_request_t *r, ngx_str_t *name,
    ngx_uint_t cancel, ngx_uint_t drop)
{
    ngx_int_t                       rc;
    ngx_http_cleanup_t             *cln;
    ngx_http_tokenring_lookup_t    *l;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    cln = ngx_http_cleanup_add(r, sizeof(ngx_http_tokenring_lookup_t));
    if (cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    l = cln->data;

    ngx_memzero(l, sizeof(ngx_http_tokenring_lookup_t));

    cln->handler = ngx_http_tokenring_lookup_cleanup;

    l->cancel = cancel;
    l->drop = drop;

    l->find.response = drop;
    l->find.request = r;
    l->find.redis = tlcf->redis;
    l->find.handler = ngx_http_tokenring_lookup_found;
    l->find.data = l;

    if (ngx_http_tokenring_request_id(name, &l->find.id) != NGX_OK) {
        return drop ? ngx_http_tokenring_send_no_response(r)
                    : ngx_http_tokenring_send_unknown(r);
    }

    if (ngx_http_tokenring_find(&l->find) != NGX_OK) {
        return ngx_http_tokenring_send_away(r);
    }

    r->main->count++;

    return NGX_DONE;
}


static void
ngx_http_tokenring_lookup_cleanup(void *data)
{
    ngx_http_tokenring_lookup_t *l = data;

    ngx_http_tokenring_find_end(&l->find);

    ngx_http_tokenring_redis_forget(l->call);
    l->call = NULL;
}


static void
ngx_http_tokenring_lookup_found(void *data, ngx_int_t rc)
{
    ngx_http_tokenring_lookup_t *l = data;

    ngx_http_request_t  *r;

    r = l->find.request;

    if (rc == NGX_DECLINED) {
        ngx_http_tokenring_lookup_end(l,
                l->drop ? ngx_http_tokenring_send_no_response(r)
                        : ngx_http_tokenring_send_unknown(r));
        return;
    }

    if (rc == NGX_OK && l->find.rec.final) {
        ngx_http_tokenring_lookup_over(l);
        return;
    }

    if (rc == NGX_OK) {
        l->call = ngx_http_tokenring_heartbeat_ask(l->find.redis, r->pool,
                                             &l->find.rec,
                                             ngx_http_tokenring_lookup_engine,
                                             l);
        if (l->call) {
            return;
        }
    }

    ngx_http_tokenring_lookup_end(l, ngx_http_tokenring_send_away(r));
}


static void
ngx_http_tokenring_lookup_engine(void *data, redisReply *reply)
{
    ngx_http_tokenring_lookup_t *l = data;

    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = l->find.request;
    l->call = NULL;

    ngx_http_set_log_request(r->connection->log, r);

    rc = ngx_http_tokenring_heartbeat_take(l->find.redis, reply, &l->find.rec);

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring lookup: heartbeat of %V, rc:%i cancel:%ud",
                   &l->find.rec.engine, rc, (u_int) l->cancel);

    if (rc == NGX_ERROR) {
        ngx_http_tokenring_lookup_end(l, ngx_http_tokenring_send_away(r));
        return;
    }

    if (rc == NGX_OK && l->cancel) {
        if (ngx_http_tokenring_lookup_cancel(l) != NGX_OK) {
            ngx_http_tokenring_lookup_end(l, ngx_http_tokenring_send_away(r));
        }

        return;
    }

    if (rc == NGX_OK && l->drop) {
        ngx_http_tokenring_lookup_end(l,
                ngx_http_tokenring_send_error(r, TR_ERR_INVALID,
                    "This response is still being generated"));
        return;
    }

    /* the request is over, or its engine is gone */

    ngx_http_tokenring_lookup_over(l);
}


/* nothing is written of it any more */

static void
ngx_http_tokenring_lookup_over(ngx_http_tokenring_lookup_t *l)
{
    ngx_uint_t                   i;
    ngx_str_t                    argv[3];
    ngx_http_tokenring_redis_t  *redis;

    static const char  *kinds[] = { "req", "out" };

    if (!l->drop) {
        ngx_http_tokenring_lookup_end(l,
                ngx_http_tokenring_lookup_send(l, NGX_HTTP_OK, 0));
        return;
    }

    redis = l->find.redis;

    ngx_str_set(&argv[0], "DEL");

    for (i = 0; i < 2; i++) {
        argv[i + 1] = ngx_http_tokenring_redis_key(redis,
                                                   l->find.request->pool,
                                                   kinds[i], &l->find.id);
    }

    if (argv[1].data && argv[2].data) {
        l->call = ngx_http_tokenring_redis_command(redis,
                                            ngx_http_tokenring_lookup_dropped,
                                            l, 3, argv);
        if (l->call) {
            return;
        }
    }

    ngx_http_tokenring_lookup_end(l,
                            ngx_http_tokenring_send_away(l->find.request));
}


/* 0: no number came, and the client has been told that Redis is away */

static ngx_uint_t
ngx_http_tokenring_lookup_number(ngx_http_tokenring_lookup_t *l,
    redisReply *reply)
{
    ngx_http_request_t  *r;

    r = l->find.request;
    l->call = NULL;

    ngx_http_set_log_request(r->connection->log, r);

    if (reply == NULL || reply->type != REDIS_REPLY_INTEGER) {

        if (reply) {
            ngx_http_tokenring_redis_complain(l->find.redis, reply);
        }

        ngx_http_tokenring_lookup_end(l, ngx_http_tokenring_send_away(r));
        return 0;
    }

    return 1;
}


static void
ngx_http_tokenring_lookup_dropped(void *data, redisReply *reply)
{
    ngx_http_tokenring_lookup_t *l = data;

    ngx_int_t                   rc;
    ngx_http_request_t         *r;
    ngx_http_tokenring_text_t  *t;

    r = l->find.request;

    if (!ngx_http_tokenring_lookup_number(l, reply)) {
        return;
    }

    t = ngx_http_tokenring_text_create(r->pool);

    if (t == NULL
        || ngx_http_tokenring_printf(t, 128, "{\"id\":\"resp_%V\","
                                     "\"object\":\"response\","
                                     "\"deleted\":true}\n", &l->find.id)
           != NGX_OK
        || ngx_http_tokenring_add_request_id(r) != NGX_OK)
    {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;

    } else {
        rc = ngx_http_tokenring_send_body(r, NGX_HTTP_OK, "application/json",
                                          t);
    }

    ngx_http_tokenring_lookup_end(l, rc);
}


static ngx_int_t
ngx_http_tokenring_lookup_cancel(ngx_http_tokenring_lookup_t *l)
{
    u_char                      *p;
    ngx_str_t                    argv[3];
    ngx_pool_t                  *pool;
    ngx_http_tokenring_redis_t  *redis;

    redis = l->find.redis;
    pool = l->find.request->pool;

    ngx_str_set(&argv[0], "PUBLISH");

    argv[1] = ngx_http_tokenring_redis_key(redis, pool, "ctl",
                                           &l->find.rec.engine);

    p = ngx_pnalloc(pool, sizeof("cancel ") - 1 + l->find.id.len);

    if (argv[1].data == NULL || p == NULL) {
        return NGX_ERROR;
    }

    argv[2].data = p;
    argv[2].len = ngx_sprintf(p, "cancel %V", &l->find.id) - p;

    l->call = ngx_http_tokenring_redis_command(redis,
                                               ngx_http_tokenring_lookup_told,
                                               l, 3, argv);

    return l->call ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_tokenring_lookup_told(void *data, redisReply *reply)
{
    ngx_http_tokenring_lookup_t *l = data;

    ngx_http_request_t  *r;

    r = l->find.request;

    if (!ngx_http_tokenring_lookup_number(l, reply)) {
        return;
    }

    if (reply->integer == 0) {
        ngx_http_tokenring_lookup_end(l,
                ngx_http_tokenring_send_error(r, TR_ERR_NO_REDIS,
                    "The engine of this request cannot be reached now"));
        return;
    }

    ngx_http_tokenring_lookup_end(l,
            ngx_http_tokenring_lookup_send(l, NGX_HTTP_ACCEPTED, 1));
}


static ngx_int_t
ngx_http_tokenring_lookup_send(ngx_http_tokenring_lookup_t *l,
    ngx_uint_t status, ngx_uint_t cancelling)
{
    ngx_http_request_t         *r;
    ngx_http_tokenring_text_t  *t;

    static ngx_str_t  no_store = ngx_string("no-store");

    r = l->find.request;

    t = ngx_http_tokenring_text_create(r->pool);

    if (t == NULL
        || ngx_http_tokenring_stored_json(t, &l->find.id, &l->find.rec,
                                          cancelling)
           != NGX_OK
        || ngx_http_tokenring_add_header(r, "Cache-Control", &no_store)
           != NGX_OK
        || ngx_http_tokenring_add_request_id(r) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_body(r, status, "application/json", t);
}


static void
ngx_http_tokenring_lookup_end(ngx_http_tokenring_lookup_t *l, ngx_int_t rc)
{
    ngx_connection_t  *c;

    c = l->find.request->connection;

    ngx_http_finalize_request(l->find.request, rc);
    ngx_http_run_posted_requests(c);
}
