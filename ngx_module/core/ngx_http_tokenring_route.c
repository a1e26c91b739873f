/*
 * Routes: what a URI below a location of tokenring_pass asks for.
 *
 * Paths are relative to the location: what precedes "/v1" in the location (or
 * the whole prefix of a location without "/v1") is the administrator's, what
 * follows is OpenAI's API.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_route.h"


static ngx_http_tokenring_route_e ngx_http_tokenring_route_request(
    ngx_http_request_t *r, ngx_str_t *id);
static ngx_http_tokenring_route_e ngx_http_tokenring_route_response(
    ngx_http_request_t *r, ngx_str_t *id);
static ngx_http_tokenring_route_e ngx_http_tokenring_route_models(
    ngx_str_t *id);
static size_t ngx_http_tokenring_prefix_len(ngx_http_request_t *r);
static size_t ngx_http_tokenring_version_at(u_char *p, size_t len);


ngx_uint_t
ngx_http_tokenring_endpoint_of(ngx_http_request_t *r)
{
    ngx_str_t   id;
    ngx_uint_t  endpoint;

    return (ngx_http_tokenring_route(r, &id, &endpoint)
            == NGX_HTTP_TOKENRING_PROMPT) ? endpoint : 0;
}


/* how much of the URI is the administrator's, and not the API's */

static size_t
ngx_http_tokenring_prefix_len(ngx_http_request_t *r)
{
    size_t                     n;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (clcf->exact_match || clcf->named || clcf->noname
#if (NGX_PCRE)
        || clcf->regex
#endif
        || clcf->name.len > r->uri.len
        || ngx_strncmp(r->uri.data, clcf->name.data, clcf->name.len) != 0)
    {
        /* also for a URI that `rewrite ... break` moved out of its location */
        return ngx_http_tokenring_version_at(r->uri.data, r->uri.len);
    }

    n = ngx_http_tokenring_version_at(clcf->name.data, clcf->name.len);

    while (n && n == clcf->name.len && clcf->name.data[n - 1] == '/') {
        n--;
    }

    return n;
}


ngx_http_tokenring_route_e
ngx_http_tokenring_route(ngx_http_request_t *r, ngx_str_t *id,
    ngx_uint_t *endpoint)
{
    size_t     n;
    ngx_str_t  path;

    n = ngx_http_tokenring_prefix_len(r);

    path.data = r->uri.data + n;
    path.len = r->uri.len - n;

    if (path.len < sizeof("/v1/") - 1
        || ngx_strncmp(path.data, "/v1/", sizeof("/v1/") - 1) != 0)
    {
        return NGX_HTTP_TOKENRING_NOWHERE;
    }

    path.data += sizeof("/v1/") - 1;
    path.len -= sizeof("/v1/") - 1;

    *endpoint = tr_endpoint_by_path((const char *) path.data, path.len);

    if (*endpoint) {
        return NGX_HTTP_TOKENRING_PROMPT;
    }

    if (path.len > sizeof("requests/") - 1
        && ngx_strncmp(path.data, "requests/", sizeof("requests/") - 1) == 0)
    {
        id->data = path.data + sizeof("requests/") - 1;
        id->len = path.len - (sizeof("requests/") - 1);

        return ngx_http_tokenring_route_request(r, id);
    }

    if (path.len > sizeof("responses/") - 1
        && ngx_strncmp(path.data, "responses/", sizeof("responses/") - 1) == 0)
    {
        id->data = path.data + sizeof("responses/") - 1;
        id->len = path.len - (sizeof("responses/") - 1);

        return ngx_http_tokenring_route_response(r, id);
    }

    if (path.len < sizeof("models") - 1
        || ngx_strncmp(path.data, "models", sizeof("models") - 1) != 0)
    {
        return NGX_HTTP_TOKENRING_NOWHERE;
    }

    id->data = path.data + sizeof("models") - 1;
    id->len = path.len - (sizeof("models") - 1);

    return ngx_http_tokenring_route_models(id);
}


/* models and models/ID */

static ngx_http_tokenring_route_e
ngx_http_tokenring_route_models(ngx_str_t *id)
{
    if (id->len == 0) {
        return NGX_HTTP_TOKENRING_MODELS;
    }

    if (id->len > 1 && id->data[0] == '/') {
        id->data++;
        id->len--;
        return NGX_HTTP_TOKENRING_MODEL;
    }

    return NGX_HTTP_TOKENRING_NOWHERE;
}


/* requests/ID and requests/ID/stream, if Redis is configured */

static ngx_http_tokenring_route_e
ngx_http_tokenring_route_request(ngx_http_request_t *r, ngx_str_t *id)
{
    size_t                          len;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    if (tlcf->redis == NULL) {
        return NGX_HTTP_TOKENRING_NOWHERE;
    }

    len = sizeof("/stream") - 1;

    if (id->len > len
        && ngx_strncmp(id->data + id->len - len, "/stream", len) == 0)
    {
        id->len -= len;
        return NGX_HTTP_TOKENRING_REQUEST_STREAM;
    }

    return NGX_HTTP_TOKENRING_REQUEST;
}


/* responses/ID and responses/ID/input_items, if Redis is configured */

static ngx_http_tokenring_route_e
ngx_http_tokenring_route_response(ngx_http_request_t *r, ngx_str_t *id)
{
    size_t                          len;
    ngx_http_tokenring_route_e      route;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    route = NGX_HTTP_TOKENRING_RESPONSE;
    len = sizeof("/input_items") - 1;

    if (id->len > len
        && ngx_strncmp(id->data + id->len - len, "/input_items", len) == 0)
    {
        id->len -= len;
        route = NGX_HTTP_TOKENRING_RESPONSE_INPUT;
    }

    return (tlcf->redis == NULL
            || ngx_strlchr(id->data, id->data + id->len, '/'))
           ? NGX_HTTP_TOKENRING_NOWHERE : route;
}


/* the offset of "/v1" as a whole segment of a path, or the path's length */

static size_t
ngx_http_tokenring_version_at(u_char *p, size_t len)
{
    size_t  i;

    for (i = 0; i + 3 <= len; i++) {
        if (p[i] == '/' && p[i + 1] == 'v' && p[i + 2] == '1'
            && (i + 3 == len || p[i + 3] == '/'))
        {
            return i;
        }
    }

    return len;
}
