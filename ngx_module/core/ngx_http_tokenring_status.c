/*
 * What is answered from the engines' status pages, without asking an engine:
 * the list of models, and health.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_status.h"


static ngx_int_t ngx_http_tokenring_model(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_conn_t *conn);
static ngx_int_t ngx_http_tokenring_policies(ngx_http_tokenring_text_t *t,
    u_char *list);
static ngx_uint_t ngx_http_tokenring_seen(
    ngx_http_tokenring_engine_t *engine, ngx_uint_t n);
static ngx_int_t ngx_http_tokenring_health_engine(
    ngx_http_tokenring_text_t *t, ngx_http_tokenring_engine_t *engine,
    ngx_msec_t stall, ngx_uint_t *ok);


/* /v1/models, or the one model of this id */

ngx_int_t
ngx_http_tokenring_models(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_uint_t                       i, n, ready;
    ngx_http_tokenring_conn_t       *conns;
    ngx_http_tokenring_text_t       *t;
    ngx_http_tokenring_engine_t     *engine;
    ngx_http_tokenring_loc_conf_t   *tlcf;

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);
    engine = tlcf->engine;
    conns = engine->conns.elts;

    t = ngx_http_tokenring_text_create(r->pool);
    if (t == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (id == NULL
        && ngx_http_tokenring_put(t, "{\"object\":\"list\",\"data\":[")
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ready = 0;
    n = 0;

    for (i = 0; i < engine->conns.nelts; i++) {

        if (conns[i].state != NGX_HTTP_TOKENRING_READY) {
            continue;
        }

        ready = 1;

        if (id) {
            if (id->len != ngx_strlen(conns[i].card.model)
                || ngx_strncmp(id->data, conns[i].card.model, id->len) != 0)
            {
                continue;
            }

        } else if (ngx_http_tokenring_seen(engine, i)) {
            continue;
        }

        if ((n++ && ngx_http_tokenring_put(t, ",") != NGX_OK)
            || ngx_http_tokenring_model(t, &conns[i]) != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (id) {
            break;
        }
    }

    if (!ready) {
        return ngx_http_tokenring_send_error(r, TR_ERR_NO_ENGINE,
                                             "No engine is available");
    }

    if (id && n == 0) {
        return ngx_http_tokenring_send_error(r, TR_ERR_MODEL_NOT_FOUND,
                                         "There is no model with this name");
    }

    if ((id == NULL && ngx_http_tokenring_put(t, "]}") != NGX_OK)
        || ngx_http_tokenring_add_request_id(r) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_body(r, NGX_HTTP_OK, "application/json", t);
}


/* the same model behind several sockets is listed once */

static ngx_uint_t
ngx_http_tokenring_seen(ngx_http_tokenring_engine_t *engine, ngx_uint_t n)
{
    ngx_uint_t                  i;
    ngx_http_tokenring_conn_t  *conns;

    conns = engine->conns.elts;

    for (i = 0; i < n; i++) {
        if (conns[i].state == NGX_HTTP_TOKENRING_READY
            && ngx_strcmp(conns[i].card.model, conns[n].card.model) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
ngx_http_tokenring_model(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_conn_t *conn)
{
    if (ngx_http_tokenring_put(t, "{\"id\":\"") != NGX_OK
        || ngx_http_tokenring_json(t, (u_char *) conn->card.model,
                                   ngx_strlen(conn->card.model))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_printf(t, 192, "\",\"object\":\"model\","
            "\"created\":%L,\"owned_by\":\"tokenring\","
            "\"max_model_len\":%uD,\"kv_policies\":[",
            conn->card.created, conn->card.max_model_len)
        != NGX_OK
        || ngx_http_tokenring_policies(t, (u_char *) conn->card.kv_policies)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "]}");
}


/* what a request's kv_policy may be, separated by blanks: the default first */

static ngx_int_t
ngx_http_tokenring_policies(ngx_http_tokenring_text_t *t, u_char *list)
{
    u_char  *end;

    while (*list) {
        end = (u_char *) ngx_strchr(list, ' ');

        if (end == NULL) {
            end = list + ngx_strlen(list);
        }

        if ((t->last[-1] != '['
             && ngx_http_tokenring_append(t, ",", 1) != NGX_OK)
            || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK
            || ngx_http_tokenring_json(t, list, end - list) != NGX_OK
            || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK)
        {
            return NGX_ERROR;
        }

        list = *end ? end + 1 : end;
    }

    return NGX_OK;
}


/* healthy: every requested engine has a socket that accepts requests */

ngx_int_t
ngx_http_tokenring_health_handler(ngx_http_request_t *r)
{
    ngx_int_t                        rc;
    ngx_str_t                        value;
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

    if (!ok) {
        ngx_str_set(&value, "1");

        if (ngx_http_tokenring_add_header(r, "Retry-After", &value)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    ngx_str_set(&value, "no-store");

    if (ngx_http_tokenring_add_header(r, "Cache-Control", &value) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_body(r, ok ? NGX_HTTP_OK
                                              : NGX_HTTP_SERVICE_UNAVAILABLE,
                                        "application/json", t);
}


static ngx_int_t
ngx_http_tokenring_health_engine(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_engine_t *engine, ngx_msec_t stall, ngx_uint_t *ok)
{
    ngx_uint_t                  i, ready;
    const char                 *why, *reason;
    ngx_http_tokenring_conn_t  *conns;

    conns = engine->conns.elts;
    ready = 0;
    reason = "not connected";

    for (i = 0; i < engine->conns.nelts; i++) {

        /* an answer is for the next one who asks */
        ngx_http_tokenring_ping(&conns[i]);

        if (ngx_http_tokenring_healthy(&conns[i], stall, &why)) {
            ready++;

        } else if (conns[i].state == NGX_HTTP_TOKENRING_READY) {
            reason = why;
        }
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
