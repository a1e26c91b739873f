/*
 * The content handler of tokenring_pass: what begins a request.
 *
 * Where a URI leads is in _route.c.  A request is admitted by the engines'
 * status pages before its body is read, and once more if the body was waited
 * for (_body.c).
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_models.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_resumable.h"
#include "ngx_http_tokenring_route.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_status.h"
#include "ngx_http_tokenring_follow.h"
#include "ngx_http_tokenring_requests.h"

#include <sys/random.h>


static ngx_int_t ngx_http_tokenring_list(ngx_http_request_t *r,
    ngx_str_t *id);
static ngx_int_t ngx_http_tokenring_stored(ngx_http_request_t *r,
    ngx_str_t *id);
static ngx_int_t ngx_http_tokenring_kept(ngx_http_request_t *r,
    ngx_str_t *id);
static ngx_int_t ngx_http_tokenring_prompt(ngx_http_request_t *r,
    ngx_uint_t endpoint);
static ngx_int_t ngx_http_tokenring_is_json(ngx_http_request_t *r);
static ngx_int_t ngx_http_tokenring_refuse_type(ngx_http_request_t *r);
static ngx_str_t *ngx_http_tokenring_encoding(ngx_http_request_t *r);
static ngx_int_t ngx_http_tokenring_refuse_encoding(ngx_http_request_t *r,
    ngx_str_t *encoding);
static ngx_int_t ngx_http_tokenring_complete(ngx_http_request_t *r,
    ngx_uint_t endpoint);
static ngx_int_t ngx_http_tokenring_start(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_nowhere(ngx_http_request_t *r);
static ngx_int_t ngx_http_tokenring_refuse_method(ngx_http_request_t *r,
    ngx_str_t *allow, const char *message);
static ngx_int_t ngx_http_tokenring_client_id(ngx_http_request_t *r,
    ngx_str_t *id);
static ngx_int_t ngx_http_tokenring_name_request(
    ngx_http_tokenring_ctx_t *ctx);


ngx_int_t
ngx_http_tokenring_handler(ngx_http_request_t *r)
{
    ngx_str_t                   id;
    ngx_uint_t                  endpoint;
    ngx_http_tokenring_route_e  route;

    static ngx_str_t  get = ngx_string("GET, HEAD");
    static ngx_str_t  get_only = ngx_string("GET");

    if (r != r->main) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "tokenring_pass does not work in a subrequest");
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    route = ngx_http_tokenring_route(r, &id, &endpoint);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring handler: %V, route:%d", &r->uri, route);

    switch (route) {

    case NGX_HTTP_TOKENRING_MODELS:
    case NGX_HTTP_TOKENRING_MODEL:

        if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
            return ngx_http_tokenring_refuse_method(r, &get,
                                                 "This URL accepts only GET");
        }

        return ngx_http_tokenring_list(r,
                        (route == NGX_HTTP_TOKENRING_MODEL) ? &id : NULL);

    case NGX_HTTP_TOKENRING_REQUEST:
        return ngx_http_tokenring_stored(r, &id);

    case NGX_HTTP_TOKENRING_REQUEST_STREAM:
    case NGX_HTTP_TOKENRING_RESPONSE_INPUT:

        if (r->method != NGX_HTTP_GET) {
            return ngx_http_tokenring_refuse_method(r, &get_only,
                                                 "This URL accepts only GET");
        }

        return (route == NGX_HTTP_TOKENRING_RESPONSE_INPUT)
               ? ngx_http_tokenring_response_input(r, &id)
               : ngx_http_tokenring_follow(r, &id);

    case NGX_HTTP_TOKENRING_RESPONSE:
        return ngx_http_tokenring_kept(r, &id);

    case NGX_HTTP_TOKENRING_NOWHERE:
        return ngx_http_tokenring_nowhere(r);

    default: /* NGX_HTTP_TOKENRING_PROMPT */
        return ngx_http_tokenring_prompt(r, endpoint);
    }
}


/* a request whose state is in Redis */

static ngx_int_t
ngx_http_tokenring_stored(ngx_http_request_t *r, ngx_str_t *id)
{
    static ngx_str_t  allow = ngx_string("GET, HEAD, DELETE");

    if (r->method == NGX_HTTP_DELETE) {
        return ngx_http_tokenring_request_cancel(r, id);
    }

    if (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)) {
        return ngx_http_tokenring_request_state(r, id);
    }

    return ngx_http_tokenring_refuse_method(r, &allow,
                                       "This URL accepts only GET and DELETE");
}


/* a response that is kept there */

static ngx_int_t
ngx_http_tokenring_kept(ngx_http_request_t *r, ngx_str_t *id)
{
    static ngx_str_t  allow = ngx_string("GET, DELETE");

    if (r->method == NGX_HTTP_DELETE) {
        return ngx_http_tokenring_response_delete(r, id);
    }

    if (r->method == NGX_HTTP_GET) {
        return ngx_http_tokenring_follow_response(r, id);
    }

    return ngx_http_tokenring_refuse_method(r, &allow,
                                       "This URL accepts only GET and DELETE");
}


/* a prompt must be what a page of another origin cannot send unasked */

static ngx_int_t
ngx_http_tokenring_prompt(ngx_http_request_t *r, ngx_uint_t endpoint)
{
    ngx_str_t  *encoding;

    static ngx_str_t  post = ngx_string("POST");

    if (r->method != NGX_HTTP_POST) {
        return ngx_http_tokenring_refuse_method(r, &post,
                                                "This URL accepts only POST");
    }

    if (ngx_http_tokenring_is_json(r) != NGX_OK) {
        return ngx_http_tokenring_refuse_type(r);
    }

    encoding = ngx_http_tokenring_encoding(r);

    if (encoding != NULL) {
        return ngx_http_tokenring_refuse_encoding(r, encoding);
    }

    return ngx_http_tokenring_complete(r, endpoint);
}


/*
 * application/json, or a type that ends in +json.  What a page of another
 * origin may send without asking first (text/plain, forms, no type at all) is
 * none: such a page must not make an engine work that listens to this host.
 */

static ngx_int_t
ngx_http_tokenring_is_json(ngx_http_request_t *r)
{
    size_t      n;
    ngx_str_t  *type;

    if (r->headers_in.content_type == NULL) {
        return NGX_DECLINED;
    }

    type = &r->headers_in.content_type->value;

    for (n = 0; n < type->len && type->data[n] != ';'; n++) { /* void */ }

    while (n && (type->data[n - 1] == ' ' || type->data[n - 1] == '\t')) {
        n--;
    }

    if (n == sizeof("application/json") - 1
        && ngx_strncasecmp(type->data, (u_char *) "application/json", n) == 0)
    {
        return NGX_OK;
    }

    if (n > sizeof("application/+json") - 1
        && ngx_strncasecmp(type->data, (u_char *) "application/",
                           sizeof("application/") - 1)
           == 0
        && ngx_strncasecmp(type->data + n - (sizeof("+json") - 1),
                           (u_char *) "+json", sizeof("+json") - 1)
           == 0)
    {
        return NGX_OK;
    }

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_tokenring_refuse_type(ngx_http_request_t *r)
{
    u_char      text[192], *p;
    ngx_str_t  *type;

    if (r->headers_in.content_type == NULL) {
        return ngx_http_tokenring_send_error(r, TR_ERR_MEDIA_TYPE,
                   "This request has no Content-Type. Expected "
                   "application/json");
    }

    type = &r->headers_in.content_type->value;

    p = ngx_snprintf(text, sizeof(text) - 1, "Unsupported Content-Type \"%*s\""
                     ". Expected application/json",
                     ngx_min(type->len, 64), type->data);
    *p = '\0';

    return ngx_http_tokenring_send_error(r, TR_ERR_MEDIA_TYPE, (char *) text);
}


/* what a body was compressed with; the engine reads JSON as it is */

static ngx_str_t *
ngx_http_tokenring_encoding(ngx_http_request_t *r)
{
    ngx_str_t  *value;

    value = ngx_http_tokenring_header_in(r, "Content-Encoding");

    if (value == NULL || value->len == 0
        || (value->len == sizeof("identity") - 1
            && ngx_strncasecmp(value->data, (u_char *) "identity", value->len)
               == 0))
    {
        return NULL;
    }

    return value;
}


static ngx_int_t
ngx_http_tokenring_refuse_encoding(ngx_http_request_t *r, ngx_str_t *encoding)
{
    u_char  text[192], *p;

    p = ngx_snprintf(text, sizeof(text) - 1, "Unsupported Content-Encoding "
                     "\"%*s\". Expected a body that is not compressed",
                     ngx_min(encoding->len, 64), encoding->data);
    *p = '\0';

    return ngx_http_tokenring_send_error(r, TR_ERR_MEDIA_TYPE, (char *) text);
}


static ngx_int_t
ngx_http_tokenring_list(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_int_t  rc;

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    return ngx_http_tokenring_models(r, id);
}


/* a prompt: its body is sent to an engine as it arrives, or it is refused */

static ngx_int_t
ngx_http_tokenring_complete(ngx_http_request_t *r, ngx_uint_t endpoint)
{
    ngx_int_t                     rc;
    ngx_http_tokenring_ctx_t     *ctx;
    ngx_http_tokenring_group_t   *group;
    ngx_http_tokenring_models_t  *models;

    rc = ngx_http_tokenring_where(r, &group, &models);

    if (rc == NGX_DECLINED) {
        return ngx_http_tokenring_send_error(r, TR_ERR_NOT_FOUND,
                   "Not found: no engine of this server is behind this URL");
    }

    ctx = (rc == NGX_OK) ? ngx_http_tokenring_create_ctx(r, endpoint) : NULL;
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->group = group;
    ctx->models = models;

    rc = ngx_http_tokenring_start(ctx);

    if (rc != NGX_DONE) {
        ngx_http_tokenring_cleanup(ctx);
    }

    return rc;
}


/* NGX_DONE: the request goes on; what else it returns is its end */

static ngx_int_t
ngx_http_tokenring_start(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t    rc;
    const char  *why;
    tr_status_t  status;

    status = ngx_http_tokenring_resumable_init(ctx, &why);

    if (status != TR_OK) {
        ngx_http_tokenring_fail(ctx, status, why);
        return ngx_http_tokenring_send_failure(ctx);
    }

    switch (ngx_http_tokenring_admit_tenant(ctx, &rc)) {

    case NGX_OK:
        break;

    case NGX_AGAIN:
        ctx->request->main->count++;

        ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_SEAT);
        ngx_http_tokenring_watch(ctx);

        return NGX_DONE;

    default: /* NGX_DECLINED */
        return rc;
    }

    rc = ngx_http_tokenring_pick_early(ctx);

    if (rc == NGX_OK) {
        rc = ngx_http_tokenring_admit(ctx);

    } else if (rc == NGX_ERROR) {
        ngx_http_tokenring_fail(ctx, TR_ERR_NOMEM,
                                "The gateway ran out of memory");
    }

    if (rc == NGX_AGAIN && !ctx->routed) {
        ctx->request->main->count++;
        return NGX_DONE;
    }

    if (rc != NGX_OK && !ctx->routed) {
        return ngx_http_tokenring_send_failure(ctx);
    }

    rc = ngx_http_tokenring_body_read(ctx);

    if (rc < NGX_HTTP_SPECIAL_RESPONSE) {
        return NGX_DONE;
    }

    return ngx_http_tokenring_send_http_error(ctx->request, rc);
}


static ngx_int_t
ngx_http_tokenring_nowhere(ngx_http_request_t *r)
{
    u_char                    *p, *last, text[384];
    ngx_uint_t                 i;
    const tr_endpoint_info_t  *info;

    p = text;
    last = text + sizeof(text) - 1;

    p = ngx_slprintf(p, last, "Not found: this server has ");

    for (i = 1; i < TR_ENDPOINTS; i++) {
        info = tr_endpoint_info(i);

        if (info) {
            p = ngx_slprintf(p, last, "/v1/%s, ", info->path);
        }
    }

    p = ngx_slprintf(p, last, "/v1/models");
    *p = '\0';

    return ngx_http_tokenring_send_error(r, TR_ERR_NOT_FOUND, (char *) text);
}


static ngx_int_t
ngx_http_tokenring_refuse_method(ngx_http_request_t *r, ngx_str_t *allow,
    const char *message)
{
    if (ngx_http_tokenring_add_header(r, "Allow", allow) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_error(r, TR_ERR_METHOD, message);
}


ngx_http_tokenring_ctx_t *
ngx_http_tokenring_create_ctx(ngx_http_request_t *r, ngx_uint_t endpoint)
{
    ngx_pool_cleanup_t        *pcln;
    ngx_http_cleanup_t        *cln;
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_ctx_t));
    if (ctx == NULL) {
        return NULL;
    }

    ctx->request = r;
    ctx->conf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);
    ctx->endpoint = endpoint;
    ctx->start_us = ngx_http_tokenring_clock();

    ctx->timer.handler = ngx_http_tokenring_timer;
    ctx->timer.data = ctx;
    ctx->timer.log = r->connection->log;

    pcln = ngx_pool_cleanup_add(r->pool, 0);
    if (pcln == NULL) {
        return NULL;
    }

    pcln->handler = ngx_http_tokenring_pool_cleanup;
    pcln->data = ctx;

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_tokenring_cleanup;
    cln->data = ctx;

    if (ngx_http_tokenring_name_request(ctx) != NGX_OK) {
        return NULL;
    }

    if (ngx_http_tokenring_counters) {
        ctx->shared = ngx_http_tokenring_counters;
        (void) ngx_atomic_fetch_add(
                   &ctx->shared->processes[ngx_process_slot].active, 1);
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "tokenring request: create, id:%V completion:%V",
                   &ctx->request_id, &ctx->completion);

    ngx_http_set_ctx(r, ctx, ngx_http_tokenring_module);

    return ctx;
}


/*
 * For responses without a ctx: errors, models, stored requests.  The id is the
 * client's, or a new one, which stands in no log: it tells answers apart.
 */

ngx_int_t
ngx_http_tokenring_add_request_id(ngx_http_request_t *r)
{
    u_char     *p, random[TR_COMPLETION_LEN / 2];
    ngx_str_t   id;

    if (ngx_http_tokenring_client_id(r, &id) != NGX_OK) {

        p = ngx_pnalloc(r->pool, sizeof("req_") - 1 + TR_COMPLETION_LEN);

        if (p == NULL
            || getrandom(random, sizeof(random), GRND_NONBLOCK)
               != (ssize_t) sizeof(random))
        {
            return NGX_ERROR;
        }

        id.data = p;
        id.len = sizeof("req_") - 1 + TR_COMPLETION_LEN;

        p = ngx_cpymem(p, "req_", sizeof("req_") - 1);
        ngx_hex_dump(p, random, sizeof(random));
    }

    return ngx_http_tokenring_add_header(r, "X-Request-Id", &id);
}


/* the client's X-Request-Id, if that can go into a log and a header */

static ngx_int_t
ngx_http_tokenring_client_id(ngx_http_request_t *r, ngx_str_t *id)
{
    size_t      i;
    ngx_str_t  *value;

    value = ngx_http_tokenring_header_in(r, "X-Request-Id");

    if (value == NULL || value->len == 0 || value->len > TR_REQUEST_ID_MAX) {
        return NGX_DECLINED;
    }

    for (i = 0; i < value->len; i++) {
        if (value->data[i] < 0x21 || value->data[i] > 0x7e) {
            return NGX_DECLINED;
        }
    }

    *id = *value;

    return NGX_OK;
}


/* 128 random bits in hex, at p */

ngx_int_t
ngx_http_tokenring_name_completion(ngx_http_tokenring_ctx_t *ctx, u_char *p)
{
    u_char  random[TR_COMPLETION_LEN / 2];

    if (getrandom(random, sizeof(random), GRND_NONBLOCK)
        != (ssize_t) sizeof(random))
    {
        ngx_log_error(NGX_LOG_ALERT, ctx->request->connection->log, ngx_errno,
                      "getrandom() failed");
        return NGX_ERROR;
    }

    ctx->completion.data = p;
    ctx->completion.len = TR_COMPLETION_LEN;

    ngx_hex_dump(p, random, sizeof(random));

    return NGX_OK;
}


/*
 * The id of the completion is always ours, since it must not be guessed; the
 * id of the request is the client's, if it has one.
 */

static ngx_int_t
ngx_http_tokenring_name_request(ngx_http_tokenring_ctx_t *ctx)
{
    u_char              *p;
    ngx_http_request_t  *r;

    r = ctx->request;

    p = ngx_pnalloc(r->pool, sizeof("req_") - 1 + TR_COMPLETION_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ctx->request_id.data = p;
    ctx->request_id.len = sizeof("req_") - 1 + TR_COMPLETION_LEN;

    p = ngx_cpymem(p, "req_", sizeof("req_") - 1);

    if (ngx_http_tokenring_name_completion(ctx, p) != NGX_OK) {
        return NGX_ERROR;
    }

    (void) ngx_http_tokenring_client_id(r, &ctx->request_id);

    return NGX_OK;
}
