/*
 * TLS to Redis, where hiredis_ssl was found when this was compiled.
 *
 * hiredis_ssl does the handshake, reading and writing.  Verification is ours:
 * the certificate must be signed by a known CA and be valid for the name or
 * address of Redis (redis_tls_name, or the host of redis), which hiredis_ssl
 * does not check.
 *
 * Without hiredis_ssl the configuration refuses `redis_tls yes`, and these
 * functions do nothing.
 */
#ifndef TR_REDIS_TLS_H
#define TR_REDIS_TLS_H

#include <hiredis/hiredis.h>
#include <stddef.h>

#include "engine/config/config.h"

typedef struct {
    void *context;  /* SSL_CTX, owned */
    void *session;  /* SSL of the connection that is, hiredis's */
    char name[256]; /* that the certificate must be good for */
    bool insecure;  /* nothing is verified */
} tr_redis_tls_t;

/* Reads the files that config names.  Without redis_tls it does nothing. */
tr_status_t tr_redis_tls_open(tr_redis_tls_t *t, const tr_config_t *config,
                              tr_error_t *err);
void tr_redis_tls_close(tr_redis_tls_t *t);
bool tr_redis_tls_on(const tr_redis_tls_t *t);

/* c is connected: from now on it speaks TLS.  False: why says so. */
bool tr_redis_tls_begin(tr_redis_tls_t *t, redisContext *c, char *why,
                        size_t size);
/* Ahead of reading or writing: errors of before are not this connection's. */
void tr_redis_tls_clear(const tr_redis_tls_t *t);
/* What went wrong, if it went wrong there: false when nothing did. */
bool tr_redis_tls_why(const tr_redis_tls_t *t, char *why, size_t size);
/* The connection is about to go, and the session with it. */
void tr_redis_tls_end(tr_redis_tls_t *t);

#endif
