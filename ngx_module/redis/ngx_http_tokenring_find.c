/*
 * Finding a request in Redis for a client that names it.
 *
 * A client knows an id before Redis does: it comes with the headers of the
 * answer, and the engine writes to Redis a little later (redis_flush, 50 ms by
 * default, or longer on a machine that is very busy).  So an id that is not
 * found is looked up twice more before the client is told so.  One of another
 * owner is looked up as often: the two must not differ in time, either.
 */

#include "ngx_http_tokenring_find.h"


static ngx_int_t ngx_http_tokenring_find_ask(ngx_http_tokenring_find_t *find);
static void ngx_http_tokenring_find_answer(void *data, redisReply *reply);
static void ngx_http_tokenring_find_again(ngx_event_t *ev);


/* ms before each further look; the first is a few flushes of an engine */
static const ngx_msec_t  ngx_http_tokenring_find_waits[] = { 250, 750 };


ngx_int_t
ngx_http_tokenring_find(ngx_http_tokenring_find_t *find)
{
    find->timer.handler = ngx_http_tokenring_find_again;
    find->timer.data = find;
    find->timer.log = find->request->connection->log;

    return ngx_http_tokenring_find_ask(find);
}


void
ngx_http_tokenring_find_end(ngx_http_tokenring_find_t *find)
{
    ngx_http_tokenring_redis_forget(find->call);
    find->call = NULL;

    if (find->timer.timer_set) {
        ngx_del_timer(&find->timer);
    }
}


static ngx_int_t
ngx_http_tokenring_find_ask(ngx_http_tokenring_find_t *find)
{
    find->call = ngx_http_tokenring_stored_ask(find->redis,
                                               find->request->pool, &find->id,
                                               ngx_http_tokenring_find_answer,
                                               find);

    return find->call ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_tokenring_find_answer(void *data, redisReply *reply)
{
    ngx_http_tokenring_find_t *find = data;

    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = find->request;
    find->call = NULL;

    ngx_http_set_log_request(r->connection->log, r);

    rc = ngx_http_tokenring_stored_take(find->redis, r->pool, reply,
                                        &find->rec);

    if (rc == NGX_OK) {
        rc = ngx_http_tokenring_stored_allowed(r, &find->id, &find->rec);
    }

    if (rc == NGX_OK && find->response) {
        rc = ngx_http_tokenring_stored_held(r, &find->rec);
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring find: %V, rc:%i again:%ui", &find->id, rc,
                   find->again);

    if (rc == NGX_DECLINED
        && find->again < sizeof(ngx_http_tokenring_find_waits)
                         / sizeof(ngx_msec_t))
    {
        ngx_add_timer(&find->timer,
                      ngx_http_tokenring_find_waits[find->again++]);
        return;
    }

    find->handler(find->data, rc);
}


static void
ngx_http_tokenring_find_again(ngx_event_t *ev)
{
    ngx_http_tokenring_find_t *find = ev->data;

    ngx_http_set_log_request(ev->log, find->request);

    if (ngx_http_tokenring_find_ask(find) != NGX_OK) {
        find->handler(find->data, NGX_ERROR);
    }
}
