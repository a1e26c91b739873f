/*
 * Resolves names (redis_resolve.h) with glibc's getaddrinfo_a.
 */
#include "redis_resolve.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct tr_redis_resolve {
    struct gaicb request;
    struct gaicb *list[1];
    struct addrinfo hints;
    char host[256];
    int failed; /* to be started at all */
    tr_redis_resolve_t *next;
};

/* Left before glibc's thread was done with them: freed when it is. */
static tr_redis_resolve_t *left;

static void
end(tr_redis_resolve_t *r)
{
    if (r->request.ar_result != NULL) {
        freeaddrinfo(r->request.ar_result);
    }
    free(r);
}

static void
sweep(void)
{
    tr_redis_resolve_t **at = &left, *r;

    while ((r = *at) != NULL) {
        if (gai_error(&r->request) == EAI_INPROGRESS) {
            at = &r->next;
        } else {
            *at = r->next;
            end(r);
        }
    }
}

tr_redis_resolve_t *
tr_redis_resolve_start(const char *host)
{
    tr_redis_resolve_t *r = calloc(1, sizeof(*r));

    sweep();
    if (r == NULL) {
        return NULL;
    }
    snprintf(r->host, sizeof(r->host), "%s", host);
    r->hints.ai_socktype = SOCK_STREAM;
    r->request.ar_name = r->host;
    r->request.ar_request = &r->hints;
    r->list[0] = &r->request;
    r->failed = getaddrinfo_a(GAI_NOWAIT, r->list, 1, NULL);
    return r;
}

tr_status_t
tr_redis_resolve_look(tr_redis_resolve_t *r, unsigned turn,
                      char out[TR_REDIS_ADDRESS], const char **why)
{
    int rc = r->failed != 0 ? r->failed : gai_error(&r->request);
    const struct addrinfo *first = r->request.ar_result, *at;
    unsigned n = 0;

    if (rc == EAI_INPROGRESS) {
        return TR_AGAIN;
    }
    if (rc == 0) {
        for (at = first; at != NULL; at = at->ai_next) {
            n++;
        }
        for (at = first; n != 0 && turn % n != 0; turn--) {
            at = at->ai_next;
        }
        rc = at == NULL
                 ? EAI_NONAME
                 : getnameinfo(at->ai_addr, at->ai_addrlen, out,
                               TR_REDIS_ADDRESS, NULL, 0, NI_NUMERICHOST);
    }
    *why = rc != 0 ? gai_strerror(rc) : NULL;
    return rc == 0 ? TR_OK : TR_ERR_IO;
}

void
tr_redis_resolve_free(tr_redis_resolve_t *r)
{
    if (r == NULL) {
        return;
    }
    if (r->failed == 0 && gai_error(&r->request) == EAI_INPROGRESS
        && gai_cancel(&r->request) == EAI_NOTCANCELED) {
        r->next = left; /* glibc's thread still writes there */
        left = r;
        return;
    }
    end(r);
}
