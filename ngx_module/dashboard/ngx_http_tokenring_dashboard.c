/*
 * tokenring_dashboard: a page that shows the fleet.
 *
 * The location has three parts: the page's files, a fixed list, from disk;
 * /events, one stream of everything that the page shows (_sse_client.c); and
 * /requests/ID, the state of one request.  All of it is for administrators:
 * owners are not checked, and neither prompts nor outputs are read.
 *
 * The page has a content security policy that allows its own files and its own
 * origin, and nothing else; what Redis holds is text to it, never markup.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_dashboard.h"
#include "ngx_http_tokenring_dashboard_cache.h"
#include "ngx_http_tokenring_send.h"


typedef struct {
    ngx_str_t                       name;
    ngx_str_t                       type;
} ngx_http_tokenring_file_t;


/* a request whose state is being read */

typedef struct {
    ngx_http_request_t             *request;
    ngx_http_tokenring_call_t      *call;
    u_char                         *id;
} ngx_http_tokenring_look_t;


static ngx_int_t ngx_http_tokenring_dashboard_file(ngx_http_request_t *r,
    ngx_http_tokenring_cache_t *cache, ngx_http_tokenring_file_t *file);
static ngx_int_t ngx_http_tokenring_dashboard_send_file(ngx_http_request_t *r,
    ngx_str_t *path, ngx_open_file_info_t *of);
static ngx_int_t ngx_http_tokenring_dashboard_request(ngx_http_request_t *r,
    ngx_http_tokenring_cache_t *cache, u_char *id);
static void ngx_http_tokenring_dashboard_cleanup(void *data);
static void ngx_http_tokenring_dashboard_got(void *data, redisReply *reply);
static char *ngx_http_tokenring_dashboard_path(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_str_t *path);
static void ngx_http_tokenring_dashboard_unset(void *data);


#define NGX_HTTP_TOKENRING_DASHBOARD_PATH  "/usr/share/tokenring/dashboard"

#define NGX_HTTP_TOKENRING_SCRIPT                                             \
    ngx_string("text/javascript; charset=utf-8")
#define NGX_HTTP_TOKENRING_STYLE   ngx_string("text/css; charset=utf-8")


static ngx_http_tokenring_file_t  ngx_http_tokenring_files[] = {
    { ngx_string("index.html"), ngx_string("text/html; charset=utf-8") },
    { ngx_string("base.css"), NGX_HTTP_TOKENRING_STYLE },
    { ngx_string("style.css"), NGX_HTTP_TOKENRING_STYLE },
    { ngx_string("icon.svg"), ngx_string("image/svg+xml") },
    { ngx_string("app.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("charts.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("dom.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("fleet.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("format.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("palette.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("series.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("theme.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("themes.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("views.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("vendor/uPlot.esm.js"), NGX_HTTP_TOKENRING_SCRIPT },
    { ngx_string("vendor/uPlot.min.css"), NGX_HTTP_TOKENRING_STYLE },
    { ngx_null_string, ngx_null_string }
};


static struct {
    const char  *name;
    ngx_str_t    value;
} ngx_http_tokenring_file_headers[] = {
    { "Content-Security-Policy",
      ngx_string("default-src 'none'; script-src 'self'; style-src 'self'; "
                 "connect-src 'self'; img-src 'self' data:; "
                 "base-uri 'none'; form-action 'none'; "
                 "frame-ancestors 'none'; "
                 "require-trusted-types-for 'script'") },
    { "X-Content-Type-Options", ngx_string("nosniff") },
    { "X-Frame-Options", ngx_string("DENY") },
    { "Referrer-Policy", ngx_string("no-referrer") },
    { "Cross-Origin-Opener-Policy", ngx_string("same-origin") },
    { "Cross-Origin-Resource-Policy", ngx_string("same-origin") },
    { "Cache-Control", ngx_string("no-cache") },
    { NULL, ngx_null_string }
};


ngx_int_t
ngx_http_tokenring_dashboard_handler(ngx_http_request_t *r)
{
    ngx_int_t                       rc;
    ngx_str_t                       rest;
    ngx_http_tokenring_file_t      *file;
    ngx_http_tokenring_cache_t     *cache;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    static ngx_str_t  requests = ngx_string("requests/");

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    if (r != r->main) {
        /* not for error_page or auth_request */
        return NGX_HTTP_FORBIDDEN;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    cache = tlcf->dashboard;
    cache->redis = tlcf->redis;

    if (r->uri.len < cache->location.len
        || ngx_strncmp(r->uri.data, cache->location.data, cache->location.len)
           != 0)
    {
        return NGX_HTTP_NOT_FOUND;
    }

    rest.data = r->uri.data + cache->location.len;
    rest.len = r->uri.len - cache->location.len;

    if (rest.len == 6 && ngx_strncmp(rest.data, "events", 6) == 0) {
        return ngx_http_tokenring_sse_client_open(r, cache);
    }

    if (rest.len == requests.len + NGX_HTTP_TOKENRING_ID_LEN
        && ngx_strncmp(rest.data, requests.data, requests.len) == 0)
    {
        return ngx_http_tokenring_dashboard_request(r, cache,
                                                    rest.data + requests.len);
    }

    for (file = ngx_http_tokenring_files; file->name.len; file++) {
        if (rest.len == 0
            || (rest.len == file->name.len
                && ngx_memcmp(rest.data, file->name.data, rest.len) == 0))
        {
            return ngx_http_tokenring_dashboard_file(r, cache, file);
        }
    }

    return NGX_HTTP_NOT_FOUND;
}


/* ---- files -------------------------------------------------------------- */

static ngx_int_t
ngx_http_tokenring_dashboard_file(ngx_http_request_t *r,
    ngx_http_tokenring_cache_t *cache, ngx_http_tokenring_file_t *file)
{
    ngx_str_t                  path;
    ngx_uint_t                 i;
    ngx_open_file_info_t       of;
    ngx_http_core_loc_conf_t  *clcf;

    path.len = cache->path.len + 1 + file->name.len;
    path.data = ngx_pnalloc(r->pool, path.len + 1);
    if (path.data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    *ngx_sprintf(path.data, "%V/%V", &cache->path, &file->name) = '\0';

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    ngx_memzero(&of, sizeof(ngx_open_file_info_t));

    of.read_ahead = clcf->read_ahead;
    of.directio = NGX_OPEN_FILE_DIRECTIO_OFF;
    of.valid = clcf->open_file_cache_valid;
    of.min_uses = clcf->open_file_cache_min_uses;
    of.errors = clcf->open_file_cache_errors;
    of.events = clcf->open_file_cache_events;

    if (ngx_open_cached_file(clcf->open_file_cache, &path, &of, r->pool)
        != NGX_OK
        || !of.is_file)
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, of.err,
                      "tokenring: the dashboard's \"%V\" cannot be read",
                      &path);
        return NGX_HTTP_NOT_FOUND;
    }

    r->headers_out.content_type = file->type;

    for (i = 0; i < file->type.len && file->type.data[i] != ';'; i++) {
        /* void */
    }

    r->headers_out.content_type_len = i;
    r->headers_out.content_type_lowcase = NULL;

    for (i = 0; ngx_http_tokenring_file_headers[i].name; i++) {
        if (ngx_http_tokenring_add_header(r,
                ngx_http_tokenring_file_headers[i].name,
                &ngx_http_tokenring_file_headers[i].value)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    return ngx_http_tokenring_dashboard_send_file(r, &path, &of);
}


/* as nginx's static module does; a filter makes 304 of it */

static ngx_int_t
ngx_http_tokenring_dashboard_send_file(ngx_http_request_t *r, ngx_str_t *path,
    ngx_open_file_info_t *of)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = of->size;
    r->headers_out.last_modified_time = of->mtime;

    if (ngx_http_set_etag(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->file = ngx_pcalloc(r->pool, sizeof(ngx_file_t));
    if (b->file == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b->file_pos = 0;
    b->file_last = of->size;
    b->in_file = b->file_last ? 1 : 0;
    b->last_buf = 1;
    b->last_in_chain = 1;

    b->file->fd = of->fd;
    b->file->name = *path;
    b->file->log = r->connection->log;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


/* ---- one request -------------------------------------------------------- */

static ngx_int_t
ngx_http_tokenring_dashboard_request(ngx_http_request_t *r,
    ngx_http_tokenring_cache_t *cache, u_char *id)
{
    ngx_http_cleanup_t         *cln;
    ngx_http_tokenring_look_t  *look;

    if (!tr_wire_is_hex((char *) id, NGX_HTTP_TOKENRING_ID_LEN)
        || id[0] == '\0')
    {
        return NGX_HTTP_NOT_FOUND;
    }

    if (cache->redis == NULL) {
        return NGX_HTTP_SERVICE_UNAVAILABLE;
    }

    look = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_look_t));
    cln = ngx_http_cleanup_add(r, 0);

    if (look == NULL || cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    look->request = r;
    look->id = id;
    look->call = ngx_http_tokenring_cache_fetch(cache->redis, id,
                     ngx_http_tokenring_dashboard_got, look);

    if (look->call == NULL) {
        return NGX_HTTP_SERVICE_UNAVAILABLE;
    }

    cln->handler = ngx_http_tokenring_dashboard_cleanup;
    cln->data = look;

    r->read_event_handler = ngx_http_test_reading;
    r->main->count++;

    return NGX_DONE;
}


static void
ngx_http_tokenring_dashboard_cleanup(void *data)
{
    ngx_http_tokenring_look_t *look = data;

    ngx_http_tokenring_redis_forget(look->call);
}


static void
ngx_http_tokenring_dashboard_got(void *data, redisReply *reply)
{
    ngx_http_tokenring_look_t *look = data;

    ngx_int_t                   rc;
    ngx_uint_t                  final;
    ngx_connection_t           *c;
    ngx_http_request_t         *r;
    ngx_http_tokenring_text_t  *t;

    static ngx_str_t  no_store = ngx_string("no-store");

    look->call = NULL;

    r = look->request;
    c = r->connection;
    rc = NGX_HTTP_SERVICE_UNAVAILABLE;

    t = ngx_http_tokenring_text_create(r->pool);

    if (t == NULL) {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;

    } else if (reply && reply->type != REDIS_REPLY_ERROR) {
        rc = ngx_http_tokenring_cache_request(t, look->id, reply, &final);

        if (rc == NGX_DECLINED) {
            rc = NGX_HTTP_NOT_FOUND;

        } else if (rc != NGX_OK
                   || ngx_http_tokenring_add_header(r, "Cache-Control",
                                                    &no_store)
                      != NGX_OK)
        {
            rc = NGX_HTTP_INTERNAL_SERVER_ERROR;

        } else {
            rc = ngx_http_tokenring_send_body(r, NGX_HTTP_OK,
                                              "application/json", t);
        }
    }

    ngx_http_finalize_request(r, rc);
    ngx_http_run_posted_requests(c);
}


/* ---- configuration ------------------------------------------------------ */

/* tokenring_dashboard [PATH] */

char *
ngx_http_tokenring_set_dashboard(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_tokenring_loc_conf_t  *tlcf = conf;

    ngx_pool_cleanup_t          *cln;
    ngx_http_core_loc_conf_t    *clcf;
    ngx_http_tokenring_cache_t  *cache;

    if (tlcf->dashboard) {
        return "is duplicate";
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->noname || clcf->named || clcf->exact_match
#if (NGX_PCRE)
        || clcf->regex
#endif
        || clcf->name.len == 0 || clcf->name.data[clcf->name.len - 1] != '/')
    {
        return "needs a prefix location that ends with \"/\"";
    }

    cache = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_cache_t));
    cln = ngx_pool_cleanup_add(cf->pool, 0);

    if (cache == NULL || cln == NULL) {
        return NGX_CONF_ERROR;
    }

    cache->location = clcf->name;
    cache->main = ngx_http_conf_get_module_main_conf(cf,
                                                   ngx_http_tokenring_module);

    if (ngx_http_tokenring_dashboard_path(cf, cmd, &cache->path)
        != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    /* a single process that reloads must not keep the timer, nor its memory */

    cln->handler = ngx_http_tokenring_dashboard_unset;
    cln->data = cache;

    tlcf->dashboard = cache;

    clcf->auto_redirect = 1;

    return ngx_http_tokenring_serve(cf, cmd, tlcf,
                                    ngx_http_tokenring_dashboard_handler);
}


/* the directory, which must have the page in it */

static char *
ngx_http_tokenring_dashboard_path(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_str_t *path)
{
    ngx_str_t        *value, index;
    ngx_file_info_t   fi;

    value = cf->args->elts;

    if (cf->args->nelts == 2) {
        *path = value[1];

        while (path->len > 1 && path->data[path->len - 1] == '/') {
            path->len--;
        }

    } else {
        ngx_str_set(path, NGX_HTTP_TOKENRING_DASHBOARD_PATH);
    }

    if (ngx_conf_full_name(cf->cycle, path, 0) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    index.len = path->len + sizeof("/index.html") - 1;
    index.data = ngx_pnalloc(cf->pool, index.len + 1);
    if (index.data == NULL) {
        return NGX_CONF_ERROR;
    }

    *ngx_sprintf(index.data, "%V/index.html", path) = '\0';

    if (ngx_file_info(index.data, &fi) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"%V\" was not found: \"%V\" takes the directory "
                           "of the dashboard's files", &index, &cmd->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static void
ngx_http_tokenring_dashboard_unset(void *data)
{
    ngx_http_tokenring_cache_t *cache = data;

    if (cache->timer.timer_set) {
        ngx_del_timer(&cache->timer);
    }

    ngx_http_tokenring_cache_free(cache);
}
