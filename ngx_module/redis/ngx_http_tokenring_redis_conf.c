/*
 * tokenring_redis: which Redis, which user, and how to connect.
 *
 * Locations that name the same server with the same parameters share its
 * connections.  Names are resolved when the configuration is read: a worker
 * must not wait for a resolver.  The password comes from a file, so that it is
 * in no configuration and on no command line; it is never logged.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_redis_conn.h"


static char *ngx_http_tokenring_redis_read(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis);
static ngx_int_t ngx_http_tokenring_redis_address(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *value, ngx_str_t *host);
static ngx_int_t ngx_http_tokenring_redis_parameter(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *value);
static ngx_int_t ngx_http_tokenring_redis_password(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis);
static ngx_http_tokenring_redis_t *ngx_http_tokenring_redis_share_one(
    ngx_conf_t *cf, ngx_http_tokenring_redis_t *redis);
static ngx_uint_t ngx_http_tokenring_redis_equal(
    ngx_http_tokenring_redis_t *a, ngx_http_tokenring_redis_t *b);
static ngx_uint_t ngx_http_tokenring_redis_same(ngx_str_t *a, ngx_str_t *b);
static void ngx_http_tokenring_redis_cleanup(void *data);


#define NGX_HTTP_TOKENRING_REDIS_PASSWORD  1024


/*
 * tokenring_redis ADDRESS [user=NAME] [password_file=PATH] [db=N]
 *                 [prefix=TEXT] [timeout=TIME]
 *                 [tls [tls_ca=PATH] [tls_cert=PATH tls_key=PATH]
 *                      [tls_name=NAME] [tls_verify=off]];
 * tokenring_redis off;
 */

char *
ngx_http_tokenring_set_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t  *tlcf = conf;

    char                            *rv;
    ngx_str_t                       *value;
    ngx_http_tokenring_redis_t      *redis;
    ngx_http_tokenring_main_conf_t  *tmcf;

    if (tlcf->redis != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);
    tmcf->redis = 1;

    value = cf->args->elts;

    if (value[1].len == 3 && ngx_strncmp(value[1].data, "off", 3) == 0) {

        if (cf->args->nelts > 2) {
            return "takes no parameters after \"off\"";
        }

        tlcf->redis = NULL;
        return NGX_CONF_OK;
    }

    redis = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_redis_t));
    if (redis == NULL) {
        return NGX_CONF_ERROR;
    }

    rv = ngx_http_tokenring_redis_read(cf, redis);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    tlcf->redis = ngx_http_tokenring_redis_share_one(cf, redis);

    return tlcf->redis ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static char *
ngx_http_tokenring_redis_read(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis)
{
    ngx_str_t   *value, host;
    ngx_uint_t   i;

    value = cf->args->elts;

    redis->timeout = 1000;
    ngx_str_set(&redis->prefix, "tr:");

    if (ngx_http_tokenring_redis_address(cf, redis, &value[1], &host)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_tokenring_redis_parameter(cf, redis, &value[i])
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    if (redis->user.len && redis->password_file.len == 0) {
        return "has user= without password_file=";
    }

    if ((redis->password_file.len
         && ngx_http_tokenring_redis_password(cf, redis) != NGX_OK)
        || ngx_http_tokenring_redis_tls_check(cf, redis, &host) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_tokenring_redis_address(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *value, ngx_str_t *host)
{
    ngx_url_t  u;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = *value;
    u.default_port = 6379;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s in tokenring_redis \"%V\"",
                           u.err ? u.err : "invalid address", &u.url);
        return NGX_ERROR;
    }

    redis->name = *value;
    *host = u.host;

#if (NGX_HAVE_UNIX_DOMAIN)

    if (u.family == AF_UNIX) {

        if (value->data[sizeof("unix:") - 1] != '/') {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "relative path in \"%V\", expected unix:/PATH",
                               value);
            return NGX_ERROR;
        }

        redis->path = value->data + sizeof("unix:") - 1;
        return NGX_OK;
    }

#endif

    if (u.naddrs == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no host in tokenring_redis \"%V\"", &u.url);
        return NGX_ERROR;
    }

    redis->addrs = u.addrs;
    redis->naddrs = u.naddrs;

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_redis_parameter(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *value)
{
    ngx_str_t   s;
    ngx_int_t   n;
    ngx_msec_t  ms;

    n = ngx_http_tokenring_redis_tls_parameter(cf, redis, value);

    if (n != NGX_DECLINED) {
        return n;
    }

    if (ngx_strncmp(value->data, "user=", 5) == 0 && value->len > 5) {
        redis->user.data = value->data + 5;
        redis->user.len = value->len - 5;
        return NGX_OK;
    }

    if (ngx_strncmp(value->data, "password_file=", 14) == 0
        && value->len > 14)
    {
        redis->password_file.data = value->data + 14;
        redis->password_file.len = value->len - 14;
        return ngx_conf_full_name(cf->cycle, &redis->password_file, 1);
    }

    if (ngx_strncmp(value->data, "db=", 3) == 0) {
        n = ngx_atoi(value->data + 3, value->len - 3);

        if (n != NGX_ERROR && n <= 65535) {
            redis->db = n;
            return NGX_OK;
        }
    }

    if (ngx_strncmp(value->data, "prefix=", 7) == 0 && value->len <= 64 + 7) {
        redis->prefix.data = value->data + 7;
        redis->prefix.len = value->len - 7;
        return NGX_OK;
    }

    if (ngx_strncmp(value->data, "timeout=", 8) == 0) {
        s.data = value->data + 8;
        s.len = value->len - 8;
        ms = ngx_parse_time(&s, 0);

        if (ms != (ngx_msec_t) NGX_ERROR && ms > 0) {
            redis->timeout = ms;
            return NGX_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\" of tokenring_redis", value);

    return NGX_ERROR;
}


/* reads the first line of the file */

static ngx_int_t
ngx_http_tokenring_redis_password(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis)
{
    u_char    *p, *end;
    ssize_t    n;
    ngx_fd_t   fd;

    p = ngx_pnalloc(cf->pool, NGX_HTTP_TOKENRING_REDIS_PASSWORD);
    if (p == NULL) {
        return NGX_ERROR;
    }

    fd = ngx_open_file(redis->password_file.data, NGX_FILE_RDONLY,
                       NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" failed",
                           &redis->password_file);
        return NGX_ERROR;
    }

    n = ngx_read_fd(fd, p, NGX_HTTP_TOKENRING_REDIS_PASSWORD);

    if (n == -1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_read_fd_n " \"%V\" failed",
                           &redis->password_file);
    }

    (void) ngx_close_file(fd);

    if (n == -1) {
        return NGX_ERROR;
    }

    end = ngx_strlchr(p, p + n, LF);

    if (end == NULL) {
        end = p + n;
    }

    if (end > p && end[-1] == CR) {
        end--;
    }

    if (end == p || n == NGX_HTTP_TOKENRING_REDIS_PASSWORD) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must hold a password of at most %d bytes "
                           "in its first line", &redis->password_file,
                           NGX_HTTP_TOKENRING_REDIS_PASSWORD - 1);
        return NGX_ERROR;
    }

    redis->password.data = p;
    redis->password.len = end - p;

    return NGX_OK;
}


/* the same Redis if it is known already, or this one */

static ngx_http_tokenring_redis_t *
ngx_http_tokenring_redis_share_one(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis)
{
    ngx_uint_t                        i;
    ngx_pool_cleanup_t               *cln;
    ngx_http_tokenring_redis_t      **known;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    known = tmcf->redises.elts;

    for (i = 0; i < tmcf->redises.nelts; i++) {
        if (ngx_http_tokenring_redis_equal(known[i], redis)) {
            return known[i];
        }
    }

    known = ngx_array_push(&tmcf->redises);
    if (known == NULL) {
        return NULL;
    }

    *known = redis;

    /* a single process that reloads frees this before it exits */

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_tokenring_redis_cleanup;
    cln->data = redis;

    return (ngx_http_tokenring_redis_tls_init(cf, redis) == NGX_OK) ? redis
                                                                    : NULL;
}


static ngx_uint_t
ngx_http_tokenring_redis_equal(ngx_http_tokenring_redis_t *a,
    ngx_http_tokenring_redis_t *b)
{
    return a->db == b->db
           && a->timeout == b->timeout
           && a->tls.on == b->tls.on
           && a->tls.insecure == b->tls.insecure
           && ngx_http_tokenring_redis_same(&a->name, &b->name)
           && ngx_http_tokenring_redis_same(&a->user, &b->user)
           && ngx_http_tokenring_redis_same(&a->password_file,
                                            &b->password_file)
           && ngx_http_tokenring_redis_same(&a->prefix, &b->prefix)
           && ngx_http_tokenring_redis_same(&a->tls.ca, &b->tls.ca)
           && ngx_http_tokenring_redis_same(&a->tls.cert, &b->tls.cert)
           && ngx_http_tokenring_redis_same(&a->tls.key, &b->tls.key)
           && ngx_http_tokenring_redis_same(&a->tls.name, &b->tls.name);
}


static ngx_uint_t
ngx_http_tokenring_redis_same(ngx_str_t *a, ngx_str_t *b)
{
    return a->len == b->len
           && (a->len == 0 || ngx_memcmp(a->data, b->data, a->len) == 0);
}


static void
ngx_http_tokenring_redis_cleanup(void *data)
{
    ngx_http_tokenring_redis_exit(data);
    ngx_http_tokenring_redis_tls_free(data);
}
