/*
 * Errors in OpenAI's form: {"error":{"message","type","param","code"}}, or in
 * that of the API that the path belongs to.
 *
 * What our handler refuses or the engine reports is looked up in the table of
 * error.h.  What NGINX refuses before our handler runs (413, limit_req,
 * auth_request ...)  would be an HTML page: tokenring_error, as the content
 * handler of a named location for error_page, gives it the same form.
 */

#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"


static void ngx_http_tokenring_log_error(ngx_http_request_t *r,
    tr_status_info_t *info, const char *message);


typedef struct {
    ngx_uint_t   status;
    const char  *type;
    const char  *code;
    const char  *message;
} ngx_http_tokenring_http_error_t;


/* NGINX's own errors, in OpenAI's form */

static ngx_http_tokenring_http_error_t  ngx_http_tokenring_http_errors[] = {
    { 400, "invalid_request_error", NULL,
      "The HTTP request is malformed" },
    { 401, "authentication_error", "invalid_api_key",
      "This request is not authorized: a valid API key is required" },
    { 403, "permission_error", "forbidden",
      "This request is not allowed" },
    { 404, "invalid_request_error", "not_found",
      "Not found" },
    { 405, "invalid_request_error", "method_not_allowed",
      "This URL does not accept this method" },
    { 408, "invalid_request_error", "request_timeout",
      "The request did not arrive in time" },
    { 411, "invalid_request_error", "length_required",
      "The request has no Content-Length" },
    { 413, "invalid_request_error", "request_too_large",
      "The request body is larger than this server accepts" },
    { 414, "invalid_request_error", "uri_too_long",
      "The request URI is too long" },
    { 415, "invalid_request_error", "unsupported_media_type",
      "The type of the request body is not supported" },
    { 429, "rate_limit_error", "rate_limit_exceeded",
      "Too many requests: slow down and try again" },
    { 431, "invalid_request_error", "headers_too_large",
      "The request headers are too large" },
    { 500, "server_error", "internal_error",
      "Internal server error" },
    { 502, "server_error", "bad_gateway",
      "The server could not reach its backend" },
    { 503, "server_error", "unavailable",
      "The server is not available: try again later" },
    { 504, "server_error", "timeout",
      "The server did not answer in time" },
    { 0, NULL, NULL, NULL }
};


ngx_int_t
ngx_http_tokenring_render_error(ngx_http_tokenring_text_t *t,
    const char *type, const char *code, ngx_str_t *param, ngx_str_t *message)
{
    if (ngx_http_tokenring_append(t, "{", 1) != NGX_OK
        || ngx_http_tokenring_render_error_field(t, type, code, param,
                                                 message)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_append(t, "}", 1);
}


/* "error":{...} */

ngx_int_t
ngx_http_tokenring_render_error_field(ngx_http_tokenring_text_t *t,
    const char *type, const char *code, ngx_str_t *param, ngx_str_t *message)
{
    if (ngx_http_tokenring_printf(t, 32, "\"error\":{\"message\":\"")
        != NGX_OK
        || ngx_http_tokenring_json(t, message->data, message->len) != NGX_OK
        || ngx_http_tokenring_printf(t, 128, "\",\"type\":\"%s\",\"param\":",
                                     type)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (param && param->len) {
        if (ngx_http_tokenring_append(t, "\"", 1) != NGX_OK
            || ngx_http_tokenring_json(t, param->data, param->len) != NGX_OK
            || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK)
        {
            return NGX_ERROR;
        }

    } else if (ngx_http_tokenring_append(t, "null", 4) != NGX_OK) {
        return NGX_ERROR;
    }

    if (code == NULL) {
        return ngx_http_tokenring_printf(t, 32, ",\"code\":null}");
    }

    return ngx_http_tokenring_printf(t, 128, ",\"code\":\"%s\"}", code);
}


/* an error of ours, with or without a ctx */

ngx_int_t
ngx_http_tokenring_send_error(ngx_http_request_t *r, tr_status_t status,
    const char *message)
{
    ngx_str_t         text;
    ngx_uint_t        retry_after;
    tr_status_info_t  info;

    info = tr_status_info(status);

    ngx_http_tokenring_log_error(r, &info, message);

    text.data = (u_char *) message;
    text.len = ngx_strlen(message);

    retry_after = (info.http == 429 || info.http == 503)
                  ? NGX_HTTP_TOKENRING_RETRY_AFTER : 0;

    return ngx_http_tokenring_send_error_body(r, info.http, info.type,
                                              info.code, NULL, &text,
                                              retry_after);
}


/* the error in ctx; its message may quote the client, so it is not logged */

ngx_int_t
ngx_http_tokenring_send_failure(ngx_http_tokenring_ctx_t *ctx)
{
    tr_status_info_t     info;
    ngx_http_request_t  *r;

    r = ctx->request;
    info = tr_status_info(ctx->error);

    ngx_http_tokenring_log_error(r, &info, NULL);

    return ngx_http_tokenring_send_error_body(r, info.http, info.type,
                                              info.code, &ctx->param,
                                              &ctx->message,
                                              ctx->retry_after);
}


/* NGINX's error from reading the body */

ngx_int_t
ngx_http_tokenring_send_http_error(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_str_t                         text;
    ngx_http_tokenring_http_error_t  *e;

    if (r->header_sent || r->connection->error) {
        return status;
    }

    for (e = ngx_http_tokenring_http_errors; e->status; e++) {
        if (e->status == status) {
            break;
        }
    }

    if (e->status == 0) {
        return status;
    }

    /* the rest of the body is not read */

    r->keepalive = 0;
    r->lingering_close = 1;

    text.data = (u_char *) e->message;
    text.len = ngx_strlen(e->message);

    return ngx_http_tokenring_send_error_body(r, status, e->type, e->code,
                                              NULL, &text, 0);
}


/* the handler of tokenring_error, in a location that error_page names */

ngx_int_t
ngx_http_tokenring_error_handler(ngx_http_request_t *r)
{
    ngx_str_t                         text;
    ngx_uint_t                        status, retry_after;
    ngx_http_tokenring_http_error_t  *e;

    status = r->err_status ? r->err_status : NGX_HTTP_NOT_FOUND;

    /* 494 to 497 are NGINX's own kinds of 400 */

    if (status == 494) {
        status = 431;

    } else if (status >= 495 && status <= 497) {
        status = 400;
    }

    for (e = ngx_http_tokenring_http_errors; e->status; e++) {
        if (e->status == status) {
            break;
        }
    }

    if (e->status == 0) {
        for (e = ngx_http_tokenring_http_errors;
             e->status != ((status >= 500) ? 500 : 400);
             e++)
        {
            /* void */
        }
    }

    text.data = (u_char *) e->message;
    text.len = ngx_strlen(e->message);

    retry_after = (status == 429 || status == 503)
                  ? NGX_HTTP_TOKENRING_RETRY_AFTER : 0;

    r->err_status = 0;

    return ngx_http_tokenring_send_error_body(r, status, e->type, e->code,
                                              NULL, &text, retry_after);
}


ngx_int_t
ngx_http_tokenring_send_error_body(ngx_http_request_t *r, ngx_uint_t status,
    const char *type, const char *code, ngx_str_t *param, ngx_str_t *message,
    ngx_uint_t retry_after)
{
    u_char                               *p;
    ngx_str_t                             value;
    ngx_http_tokenring_ctx_t             *ctx;
    ngx_http_tokenring_text_t            *t;
    const ngx_http_tokenring_endpoint_t  *endpoint;

    /* a body that was partly read cannot be discarded: close the connection */

    if (ngx_http_discard_request_body(r) != NGX_OK || r->reading_body) {
        r->keepalive = 0;
        r->lingering_close = 1;
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);
    endpoint = ngx_http_tokenring_endpoint(ctx ? ctx->endpoint
                                        : ngx_http_tokenring_endpoint_of(r));

    t = ngx_http_tokenring_text_create(r->pool);

    if (t == NULL
        || ((endpoint && endpoint->error)
            ? endpoint->error(t, status, param, message,
                              ctx ? &ctx->request_id : NULL)
            : ngx_http_tokenring_render_error(t, type, code, param, message))
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (retry_after) {
        p = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
        if (p == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        value.data = p;
        value.len = ngx_sprintf(p, "%ui", retry_after) - p;

        if (ngx_http_tokenring_add_header(r, "Retry-After", &value)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if ((ctx ? ngx_http_tokenring_add_ids(ctx)
             : ngx_http_tokenring_add_request_id(r))
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_body(r, status, "application/json", t);
}


static void
ngx_http_tokenring_log_error(ngx_http_request_t *r, tr_status_info_t *info,
    const char *message)
{
    ngx_uint_t                 level;
    ngx_str_t                  id;
    ngx_http_tokenring_ctx_t  *ctx;

    static ngx_uint_t  levels[] = {
        NGX_LOG_ERR, NGX_LOG_WARN, NGX_LOG_NOTICE, NGX_LOG_INFO, NGX_LOG_DEBUG
    };

    level = levels[info->level];

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    if (ctx) {
        id = ctx->request_id;

    } else {
        ngx_str_set(&id, "-");
    }

    ngx_log_error(level, r->connection->log, 0,
                  "tokenring: refused, status=%d error=%s request=%V%s%s",
                  info->http, info->name, &id, message ? ": " : "",
                  message ? message : "");
}
