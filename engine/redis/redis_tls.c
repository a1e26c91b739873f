/*
 * TLS to Redis (redis_tls.h).
 */
#include "redis_tls.h"

#include <stdio.h>
#include <string.h>

#ifdef TR_REDIS_TLS

#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "engine/config/log.h"
#include "engine/config/redis_address.h"
#include "redis_command.h"

/* The first error is the cause; those that follow say who passed it on. */
static const char *
reason(void)
{
    unsigned long e = ERR_peek_error();

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

/* ---- files -------------------------------------------------------------- */

static tr_status_t
fails(const char *setting, const char *file, tr_error_t *err)
{
    const char *why = reason();

    return tr_error_set(err, TR_ERR_INVALID, setting,
                        "%s %s cannot be used: %s", setting, file,
                        why != NULL ? why : "out of memory");
}

/* A key with a password would have OpenSSL ask on the terminal. */
static int
no_password(char *buf, int size, int rwflag, void *data)
{
    (void) buf;
    (void) size;
    (void) rwflag;
    (void) data;
    return 0;
}

static tr_status_t
trust(tr_redis_tls_t *t, const tr_config_t *config, tr_error_t *err)
{
    const char *ca = config->redis_tls_ca;

    SSL_CTX_set_verify(t->context,
                       t->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (ca[0] == '\0') {
        return SSL_CTX_set_default_verify_paths(t->context) == 1
                   ? TR_OK
                   : fails("redis_tls_ca", "of the system", err);
    }
    return SSL_CTX_load_verify_locations(t->context, ca, NULL) == 1
               ? TR_OK
               : fails("redis_tls_ca", ca, err);
}

static tr_status_t
own_certificate(tr_redis_tls_t *t, const tr_config_t *config, tr_error_t *err)
{
    const char *cert = config->redis_tls_cert, *key = config->redis_tls_key;

    if (cert[0] == '\0') {
        return TR_OK;
    }
    SSL_CTX_set_default_passwd_cb(t->context, no_password);
    if (SSL_CTX_use_certificate_chain_file(t->context, cert) != 1) {
        return fails("redis_tls_cert", cert, err);
    }
    /* that the two belong together is checked with it */
    if (SSL_CTX_use_PrivateKey_file(t->context, key, SSL_FILETYPE_PEM) != 1) {
        return fails("redis_tls_key", key, err);
    }
    return TR_OK;
}

tr_status_t
tr_redis_tls_open(tr_redis_tls_t *t, const tr_config_t *config, tr_error_t *err)
{
    tr_redis_address_t address;
    tr_status_t rc;

    memset(t, 0, sizeof(*t));
    if (!config->redis_tls) {
        return TR_OK;
    }
    tr_redis_parse_address(config->redis, &address);
    snprintf(t->name, sizeof(t->name), "%s",
             config->redis_tls_name[0] != '\0' ? config->redis_tls_name
                                               : address.host);
    t->insecure = !config->redis_tls_verify;
    ERR_clear_error();
    t->context = SSL_CTX_new(TLS_client_method());
    if (t->context == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "redis_tls",
                            "no memory for TLS to Redis");
    }
    SSL_CTX_set_min_proto_version(t->context, TLS1_2_VERSION);
    rc = trust(t, config, err);
    return rc == TR_OK ? own_certificate(t, config, err) : rc;
}

void
tr_redis_tls_close(tr_redis_tls_t *t)
{
    SSL_CTX_free(t->context);
    t->context = NULL;
}

/* ---- a connection ------------------------------------------------------- */

bool
tr_redis_tls_on(const tr_redis_tls_t *t)
{
    return t->context != NULL;
}

/* The name, or the address, that the certificate must be good for. */
static bool
expect(SSL *ssl, const char *name)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1) {
        return true;
    }
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set_tlsext_host_name(ssl, name) == 1
           && SSL_set1_host(ssl, name) == 1;
}

/* What went wrong with it, if it went wrong there. */
static bool
describe(const tr_redis_tls_t *t, const SSL *ssl, char *why, size_t size)
{
    const char *text;
    long rc = SSL_get_verify_result(ssl);

    if (rc != X509_V_OK && !t->insecure) {
        snprintf(why, size, "its certificate is refused, name=%.64s: %s",
                 t->name, X509_verify_cert_error_string(rc));
        return true;
    }
    text = reason();
    if (text != NULL) {
        snprintf(why, size, "TLS: %s", text);
    }
    return text != NULL;
}

bool
tr_redis_tls_begin(tr_redis_tls_t *t, redisContext *c, char *why, size_t size)
{
    SSL *ssl = SSL_new(t->context);

    if (ssl == NULL || !expect(ssl, t->name)) {
        snprintf(why, size, "no memory");
        SSL_free(ssl);
        return false;
    }
    ERR_clear_error();
    if (redisInitiateSSL(c, ssl) != REDIS_OK) {
        if (!describe(t, ssl, why, size)) {
            snprintf(why, size, "%s", c->errstr);
        }
        SSL_free(ssl); /* it is hiredis's only when that went well */
        return false;
    }
    t->session = ssl;
    return true;
}

void
tr_redis_tls_clear(const tr_redis_tls_t *t)
{
    if (t->session != NULL) {
        ERR_clear_error();
    }
}

bool
tr_redis_tls_why(const tr_redis_tls_t *t, char *why, size_t size)
{
    return t->session != NULL && describe(t, t->session, why, size);
}

void
tr_redis_tls_end(tr_redis_tls_t *t)
{
    t->session = NULL;
}

#else /* without hiredis_ssl, which the configuration refuses to ask for */

tr_status_t
tr_redis_tls_open(tr_redis_tls_t *t, const tr_config_t *config, tr_error_t *err)
{
    (void) config;
    (void) err;
    memset(t, 0, sizeof(*t));
    return TR_OK;
}

void
tr_redis_tls_close(tr_redis_tls_t *t)
{
    (void) t;
}

bool
tr_redis_tls_on(const tr_redis_tls_t *t)
{
    (void) t;
    return false;
}

bool
tr_redis_tls_begin(tr_redis_tls_t *t, redisContext *c, char *why, size_t size)
{
    (void) t;
    (void) c;
    snprintf(why, size, "built without hiredis_ssl");
    return false;
}

void
tr_redis_tls_clear(const tr_redis_tls_t *t)
{
    (void) t;
}

bool
tr_redis_tls_why(const tr_redis_tls_t *t, char *why, size_t size)
{
    (void) t;
    (void) why;
    (void) size;
    return false;
}

void
tr_redis_tls_end(tr_redis_tls_t *t)
{
    (void) t;
}

#endif
