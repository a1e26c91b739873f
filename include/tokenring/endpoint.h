/*
 * The endpoints that take a prompt: what every side knows of them.
 *
 * An endpoint is one row in each of three tables, keyed by enum tr_endpoint:
 *
 *   here                                          its path, its name
 *   engine/api/endpoint.c                         body to request (parse)
 *   ngx_module/core/ngx_http_tokenring_endpoint.c records to response (render)
 *
 * The values travel in SUBMIT and ACCEPTED (wire.h), the names stand in Redis
 * (docs/redis.md): neither changes once it was released.  A value or a name that
 * has no row is refused; it is never taken for another endpoint.
 */
#ifndef TOKENRING_ENDPOINT_H
#define TOKENRING_ENDPOINT_H

#include <stddef.h>
#include <string.h>

enum tr_endpoint {
    TR_ENDPOINT_CHAT = 1,
    TR_ENDPOINT_COMPLETIONS = 2,
    TR_ENDPOINTS /* one more than the last */
};

typedef struct {
    const char *name; /* in Redis */
    const char *path; /* of its POST, behind /v1/ */
} tr_endpoint_info_t;

/* NULL: there is no such endpoint. */
static inline const tr_endpoint_info_t *
tr_endpoint_info(unsigned endpoint)
{
    static const tr_endpoint_info_t table[TR_ENDPOINTS] = {
        [TR_ENDPOINT_CHAT] = { "chat", "chat/completions" },
        [TR_ENDPOINT_COMPLETIONS] = { "completions", "completions" },
    };

    return endpoint < TR_ENDPOINTS && table[endpoint].name != NULL
               ? &table[endpoint]
               : NULL;
}

static inline int
tr_endpoint_is(const char *text, const char *bytes, size_t len)
{
    return strlen(text) == len && memcmp(text, bytes, len) == 0;
}

/* The enum tr_endpoint of a name or of a path, 0: there is none. */
static inline unsigned
tr_endpoint_by_name(const char *name, size_t len)
{
    unsigned i;

    for (i = 1; i < TR_ENDPOINTS; i++) {
        if (tr_endpoint_is(tr_endpoint_info(i)->name, name, len)) {
            return i;
        }
    }
    return 0;
}

static inline unsigned
tr_endpoint_by_path(const char *path, size_t len)
{
    unsigned i;

    for (i = 1; i < TR_ENDPOINTS; i++) {
        if (tr_endpoint_is(tr_endpoint_info(i)->path, path, len)) {
            return i;
        }
    }
    return 0;
}

#endif
