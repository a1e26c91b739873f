/*
 * TLS to Redis, where hiredis_ssl was found at compile time (hiredis 1.0 and
 * later; Debian 12's 0.14 has none).
 *
 * hiredis_ssl reads and writes, and thereby does the handshake: nothing blocks.
 * Verification is ours: the certificate must be signed by a known CA and match
 * the name or address of the server, which hiredis_ssl alone does not check.
 * Files are read with the configuration, by the master process.
 *
 * OpenSSL's error queue is per process: errors left by NGINX's own connections
 * must not be taken for Redis's, nor the other way round.  So it is cleared
 * before and after each event of a connection to Redis.
 */

#include "ngx_http_tokenring_redis_conn.h"

#if (NGX_HTTP_TOKENRING_REDIS_TLS)

#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>


static ngx_int_t ngx_http_tokenring_redis_tls_trust(ngx_conf_t *cf,
    ngx_http_tokenring_redis_tls_t *tls);
static ngx_int_t ngx_http_tokenring_redis_tls_own(ngx_conf_t *cf,
    ngx_http_tokenring_redis_tls_t *tls);
static ngx_int_t ngx_http_tokenring_redis_tls_failed(ngx_conf_t *cf,
    const char *what, ngx_str_t *file);
static int ngx_http_tokenring_redis_tls_no_password(char *buf, int size,
    int rwflag, void *data);
static ngx_int_t ngx_http_tokenring_redis_tls_begin(
    ngx_http_tokenring_redis_conn_t *conn);
static ngx_int_t ngx_http_tokenring_redis_tls_expect(SSL *ssl,
    ngx_http_tokenring_redis_tls_t *tls);
static const char *ngx_http_tokenring_redis_tls_describe(SSL *ssl,
    ngx_http_tokenring_redis_tls_t *tls);
static const char *ngx_http_tokenring_redis_tls_reason(void);

#endif


typedef struct {
    ngx_str_t    name;
    ngx_uint_t   offset;                          /* of the file's name */
} ngx_http_tokenring_redis_tls_file_t;


static ngx_http_tokenring_redis_tls_file_t  ngx_http_tokenring_redis_tls_files[]
    =
{
    { ngx_string("tls_ca="), offsetof(ngx_http_tokenring_redis_tls_t, ca) },
    { ngx_string("tls_cert="), offsetof(ngx_http_tokenring_redis_tls_t, cert) },
    { ngx_string("tls_key="), offsetof(ngx_http_tokenring_redis_tls_t, key) },
    { ngx_null_string, 0 }
};


/* combinations are checked when all parameters are known */

ngx_int_t
ngx_http_tokenring_redis_tls_parameter(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *value)
{
    ngx_str_t                            *to;
    ngx_http_tokenring_redis_tls_t       *tls;
    ngx_http_tokenring_redis_tls_file_t  *file;

    tls = &redis->tls;

    if (ngx_strcmp(value->data, "tls") == 0) {
        tls->on = 1;
        return NGX_OK;
    }

    if (ngx_strcmp(value->data, "tls_verify=off") == 0) {
        tls->insecure = 1;
        return NGX_OK;
    }

    if (ngx_strcmp(value->data, "tls_verify=on") == 0) {
        tls->insecure = 0;
        return NGX_OK;
    }

    if (ngx_strncmp(value->data, "tls_name=", 9) == 0 && value->len > 9) {
        tls->name.data = value->data + 9;
        tls->name.len = value->len - 9;
        return NGX_OK;
    }

    for (file = ngx_http_tokenring_redis_tls_files; file->name.len; file++) {

        if (value->len > file->name.len
            && ngx_strncmp(value->data, file->name.data, file->name.len) == 0)
        {
            to = (ngx_str_t *) ((u_char *) tls + file->offset);
            to->data = value->data + file->name.len;
            to->len = value->len - file->name.len;

            return ngx_conf_full_name(cf->cycle, to, 1);
        }
    }

    return NGX_DECLINED;
}


ngx_int_t
ngx_http_tokenring_redis_tls_check(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis, ngx_str_t *host)
{
    const char                      *why;
    ngx_http_tokenring_redis_tls_t  *tls;

    tls = &redis->tls;
    why = NULL;

    if (!tls->on) {

        if (tls->ca.len == 0 && tls->cert.len == 0 && tls->key.len == 0
            && tls->name.len == 0 && !tls->insecure)
        {
            return NGX_OK;
        }

        why = "has tls_* parameters without \"tls\"";

#if !(NGX_HTTP_TOKENRING_REDIS_TLS)
    } else {
        why = "has \"tls\", but this module was built without hiredis_ssl "
              "(hiredis 1.0 or later)";
#else
    } else if (redis->naddrs == 0) {
        why = "has \"tls\" with a Unix socket, which has none";

    } else if ((tls->cert.len == 0) != (tls->key.len == 0)) {
        why = "needs tls_cert= and tls_key= together";
#endif
    }

    if (why) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "tokenring_redis \"%V\" %s",
                           &redis->name, why);
        return NGX_ERROR;
    }

    if (tls->name.len) {
        return NGX_OK;
    }

    /* the default name is the host, an IPv6 address without its brackets */

    if (host->len > 2 && host->data[0] == '[') {
        host->data++;
        host->len -= 2;
    }

    tls->name.len = host->len;
    tls->name.data = ngx_pnalloc(cf->pool, host->len + 1);
    if (tls->name.data == NULL) {
        return NGX_ERROR;
    }

    *ngx_cpymem(tls->name.data, host->data, host->len) = '\0';

    return NGX_OK;
}


#if !(NGX_HTTP_TOKENRING_REDIS_TLS)


ngx_int_t
ngx_http_tokenring_redis_tls_init(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis)
{
    return NGX_OK;
}


void
ngx_http_tokenring_redis_tls_free(ngx_http_tokenring_redis_t *redis)
{
}


ngx_int_t
ngx_http_tokenring_redis_tls(ngx_http_tokenring_redis_conn_t *conn)
{
    return NGX_OK;
}


void
ngx_http_tokenring_redis_tls_clear(ngx_http_tokenring_redis_conn_t *conn)
{
}


const char *
ngx_http_tokenring_redis_tls_why(ngx_http_tokenring_redis_conn_t *conn)
{
    return NULL;
}


#else


ngx_int_t
ngx_http_tokenring_redis_tls_init(ngx_conf_t *cf,
    ngx_http_tokenring_redis_t *redis)
{
    ngx_int_t                        rc;
    ngx_http_tokenring_redis_tls_t  *tls;

    tls = &redis->tls;

    if (!tls->on) {
        return NGX_OK;
    }

    ERR_clear_error();

    tls->ctx = SSL_CTX_new(TLS_client_method());
    if (tls->ctx == NULL) {
        return ngx_http_tokenring_redis_tls_failed(cf, "SSL_CTX_new()", NULL);
    }

    SSL_CTX_set_min_proto_version(tls->ctx, TLS1_2_VERSION);

    rc = ngx_http_tokenring_redis_tls_trust(cf, tls);

    if (rc == NGX_OK && tls->cert.len) {
        rc = ngx_http_tokenring_redis_tls_own(cf, tls);
    }

    ERR_clear_error();

    return rc;
}


/* which certificates are trusted */

static ngx_int_t
ngx_http_tokenring_redis_tls_trust(ngx_conf_t *cf,
    ngx_http_tokenring_redis_tls_t *tls)
{
    if (tls->ca.len) {

        if (SSL_CTX_load_verify_locations(tls->ctx, (char *) tls->ca.data,
                                          NULL)
            != 1)
        {
            return ngx_http_tokenring_redis_tls_failed(cf, "tls_ca",
                                                       &tls->ca);
        }

    } else if (SSL_CTX_set_default_verify_paths(tls->ctx) != 1) {
        return ngx_http_tokenring_redis_tls_failed(cf,
                                      "the system's certificates", NULL);
    }

    SSL_CTX_set_verify(tls->ctx,
                       tls->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER,
                       NULL);

    return NGX_OK;
}


/* our own certificate */

static ngx_int_t
ngx_http_tokenring_redis_tls_own(ngx_conf_t *cf,
    ngx_http_tokenring_redis_tls_t *tls)
{
    /* for a key with a password, OpenSSL would ask on the terminal */

    SSL_CTX_set_default_passwd_cb(tls->ctx,
                                  ngx_http_tokenring_redis_tls_no_password);

    if (SSL_CTX_use_certificate_chain_file(tls->ctx, (char *) tls->cert.data)
        != 1)
    {
        return ngx_http_tokenring_redis_tls_failed(cf, "tls_cert",
                                                   &tls->cert);
    }

    /* this also checks that key and certificate match */

    if (SSL_CTX_use_PrivateKey_file(tls->ctx, (char *) tls->key.data,
                                    SSL_FILETYPE_PEM)
        != 1)
    {
        return ngx_http_tokenring_redis_tls_failed(cf, "tls_key", &tls->key);
    }

    return NGX_OK;
}


static int
ngx_http_tokenring_redis_tls_no_password(char *buf, int size, int rwflag,
    void *data)
{
    return 0;
}


static ngx_int_t
ngx_http_tokenring_redis_tls_failed(ngx_conf_t *cf, const char *what,
    ngx_str_t *file)
{
    ngx_str_t    none = ngx_null_string;
    const char  *reason;

    reason = ngx_http_tokenring_redis_tls_reason();

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "tokenring_redis cannot use %s%s%V%s: %s", what,
                       file ? " \"" : "", file ? file : &none,
                       file ? "\"" : "", reason ? reason : "out of memory");
    ERR_clear_error();

    return NGX_ERROR;
}


void
ngx_http_tokenring_redis_tls_free(ngx_http_tokenring_redis_t *redis)
{
    SSL_CTX_free(redis->tls.ctx);
    redis->tls.ctx = NULL;
}


/*
 * The first event of a connection says that it succeeded or failed.  A failure
 * is left to hiredis, since reading the socket's error clears it.
 */

ngx_int_t
ngx_http_tokenring_redis_tls(ngx_http_tokenring_redis_conn_t *conn)
{
    socklen_t      len;
    ngx_sockaddr_t peer;

    if (!conn->redis->tls.on) {
        return NGX_OK;
    }

    ERR_clear_error();

    len = sizeof(ngx_sockaddr_t);

    if (conn->ssl || getpeername(conn->c->fd, &peer.sockaddr, &len) == -1) {
        return NGX_OK;
    }

    return ngx_http_tokenring_redis_tls_begin(conn);
}


static ngx_int_t
ngx_http_tokenring_redis_tls_begin(ngx_http_tokenring_redis_conn_t *conn)
{
    SSL                             *ssl;
    const char                      *why;
    redisContext                    *c;
    ngx_http_tokenring_redis_tls_t  *tls;

    tls = &conn->redis->tls;
    c = &conn->ac->c;

    ssl = SSL_new(tls->ctx);

    if (ssl == NULL || ngx_http_tokenring_redis_tls_expect(ssl, tls) != NGX_OK)
    {
        SSL_free(ssl);
        ngx_http_tokenring_redis_close(conn, "out of memory");
        return NGX_ERROR;
    }

    if (redisInitiateSSL(c, ssl) != REDIS_OK) {

        /* a fast Redis has answered by now; ssl is still ours */

        why = ngx_http_tokenring_redis_tls_describe(ssl, tls);

        ngx_http_tokenring_redis_close(conn, why ? why : c->errstr);
        SSL_free(ssl);
        ERR_clear_error();
        return NGX_ERROR;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring redis: TLS begins, %V as \"%V\"",
                   &conn->redis->name, &tls->name);

    conn->ssl = ssl;

    return NGX_OK;
}


/* the name or address that the certificate must match */

static ngx_int_t
ngx_http_tokenring_redis_tls_expect(SSL *ssl,
    ngx_http_tokenring_redis_tls_t *tls)
{
    const char  *name;

    name = (char *) tls->name.data;

    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1) {
        return NGX_OK;
    }

    ERR_clear_error();

    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);

    if (SSL_set_tlsext_host_name(ssl, name) != 1
        || SSL_set1_host(ssl, name) != 1)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


void
ngx_http_tokenring_redis_tls_clear(ngx_http_tokenring_redis_conn_t *conn)
{
    if (conn->redis->tls.on) {
        ERR_clear_error();
    }
}


const char *
ngx_http_tokenring_redis_tls_why(ngx_http_tokenring_redis_conn_t *conn)
{
    if (conn->ssl == NULL) {
        return NULL;
    }

    return ngx_http_tokenring_redis_tls_describe(conn->ssl, &conn->redis->tls);
}


static const char *
ngx_http_tokenring_redis_tls_describe(SSL *ssl,
    ngx_http_tokenring_redis_tls_t *tls)
{
    long         rc;
    const char  *reason;

    static u_char  why[200];

    rc = SSL_get_verify_result(ssl);

    if (rc != X509_V_OK && !tls->insecure) {
        *ngx_snprintf(why, sizeof(why) - 1,
                      "its certificate is refused, name=%V: %s", &tls->name,
                      X509_verify_cert_error_string(rc))
            = '\0';

        return (char *) why;
    }

    reason = ngx_http_tokenring_redis_tls_reason();

    if (reason == NULL) {
        return NULL;
    }

    *ngx_snprintf(why, sizeof(why) - 1, "TLS: %s", reason) = '\0';

    return (char *) why;
}


/* the first error is the cause; the others say who passed it on */

static const char *
ngx_http_tokenring_redis_tls_reason(void)
{
    unsigned long  e;

    e = ERR_peek_error();

    if (e == 0) {
        return NULL;
    }

#ifdef ERR_SYSTEM_ERROR
    if (ERR_SYSTEM_ERROR(e)) {
        return strerror(ERR_GET_REASON(e));
    }
#endif

    return ERR_reason_error_string(e);
}


#endif /* NGX_HTTP_TOKENRING_REDIS_TLS */
