/*
 * /health, answered from the engines' status pages.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_status.h"


static ngx_int_t ngx_http_tokenring_health_header(ngx_http_request_t *r,
    ngx_uint_t ok);
static ngx_int_t ngx_http_tokenring_health_engine(
    ngx_http_tokenring_text_t *t, ngx_http_tokenring_engine_t *engine,
    ngx_msec_t stall, ngx_uint_t *ok);
static void ngx_http_tokenring_health_retry(ngx_http_tokenring_conn_t *conn);


/* an engine on demand that could not be reached is tried again, ms: its next
 * request may not come while it is not healthy */
#define NGX_HTTP_TOKENRING_HEALTH_RETRY  5000


/* healthy: every requested engine has a socket that accepts requests, or starts
 * it for one */

ngx_int_t
ngx_http_tokenring_health_handler(ngx_http_request_t *r)
{
    ngx_int_t                        rc;
    ngx_uint_t                       i, ok;
    ngx_http_tokenring_text_t       *t, *list;
    ngx_http_tokenring_engine_t    **engines;
    ngx_http_tokenring_loc_conf_t   *tlcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    t = ngx_http_tokenring_text_create(r->pool);
    list = ngx_http_tokenring_text_create(r->pool);

    if (t == NULL || list == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);
    engines = tlcf->shown->elts;
    ok = 1;

    for (i = 0; i < tlcf->shown->nelts; i++) {
        if ((i && ngx_http_tokenring_put(list, ",") != NGX_OK)
            || ngx_http_tokenring_health_engine(list, engines[i],
                                                tlcf->stall_timeout, &ok)
               != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (ngx_http_tokenring_printf(t, 64, "{\"status\":\"%s\",\"engines\":[",
                                  ok ? "ok" : "unavailable")
        != NGX_OK
        || ngx_http_tokenring_append(t, list->pos,
                                     ngx_http_tokenring_text_len(list))
           != NGX_OK
        || ngx_http_tokenring_put(t, "]}\n") != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_tokenring_health_header(r, ok) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_body(r, ok ? NGX_HTTP_OK
                                              : NGX_HTTP_SERVICE_UNAVAILABLE,
                                        "application/json", t);
}


static ngx_int_t
ngx_http_tokenring_health_header(ngx_http_request_t *r, ngx_uint_t ok)
{
    ngx_str_t  value;

    if (!ok) {
        ngx_str_set(&value, "1");

        if (ngx_http_tokenring_add_header(r, "Retry-After", &value)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    ngx_str_set(&value, "no-store");

    return ngx_http_tokenring_add_header(r, "Cache-Control", &value);
}


static ngx_int_t
ngx_http_tokenring_health_engine(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_engine_t *engine, ngx_msec_t stall, ngx_uint_t *ok)
{
    ngx_uint_t                  i, ready, stopped;
    const char                 *why, *reason;
    ngx_http_tokenring_conn_t  *conns;

    conns = engine->conns.elts;
    ready = 0;
    stopped = 0;
    reason = "not connected";

    for (i = 0; i < engine->conns.nelts; i++) {

        /* an answer is for the next one who asks */
        ngx_http_tokenring_ping(&conns[i]);

        if (ngx_http_tokenring_healthy(&conns[i], stall, &why)) {
            ready++;

        } else if (conns[i].state == NGX_HTTP_TOKENRING_READY) {
            reason = why;

        } else if (conns[i].ondemand && conns[i].complaint == 0) {
            stopped = 1;

        } else if (conns[i].ondemand) {
            ngx_http_tokenring_health_retry(&conns[i]);
        }
    }

    if (ready == 0 && stopped) {
        /* the next request starts it */
        return ngx_http_tokenring_printf(t, engine->name.len + 128,
                   "{\"name\":\"%V\",\"status\":\"stopped\",\"sockets\":%ui,"
                   "\"ready\":0}",
                   &engine->name, engine->conns.nelts);
    }

    if (ready) {
        return ngx_http_tokenring_printf(t, engine->name.len + 128,
                   "{\"name\":\"%V\",\"status\":\"ok\",\"sockets\":%ui,"
                   "\"ready\":%ui}",
                   &engine->name, engine->conns.nelts, ready);
    }

    *ok = 0;

    return ngx_http_tokenring_printf(t, engine->name.len + 192,
               "{\"name\":\"%V\",\"status\":\"unavailable\","
               "\"reason\":\"%s\",\"sockets\":%ui,\"ready\":0}",
               &engine->name, reason, engine->conns.nelts);
}


static void
ngx_http_tokenring_health_retry(ngx_http_tokenring_conn_t *conn)
{
    if (conn->state == NGX_HTTP_TOKENRING_IDLE
        && !ngx_exiting
        && ngx_current_msec - conn->attempted
           >= NGX_HTTP_TOKENRING_HEALTH_RETRY)
    {
        ngx_http_tokenring_connect(conn);
    }
}
