/*
 * Resolves names without blocking: a resolver may take half a minute.
 *
 * Each answer gives the next of the name's addresses, so that all of them are
 * tried in turn.  For one thread of a process.
 */
#ifndef TR_REDIS_RESOLVE_H
#define TR_REDIS_RESOLVE_H

#include <tokenring/error.h>

#define TR_REDIS_ADDRESS 64 /* bytes of a numeric address, with its NUL */

typedef struct tr_redis_resolve tr_redis_resolve_t;

/* NULL when memory is out. */
tr_redis_resolve_t *tr_redis_resolve_start(const char *host);

/* TR_AGAIN: not yet; TR_OK: `out` is the `turn`th address, modulo their number;
 * TR_ERR_IO: *why says why there is none (a static text). */
tr_status_t tr_redis_resolve_look(tr_redis_resolve_t *r, unsigned turn,
                                  char out[TR_REDIS_ADDRESS], const char **why);

/* Ends it, whether it is done or not.  A search that cannot be cancelled any
 * more keeps its memory until it is done; a later start frees that. */
void tr_redis_resolve_free(tr_redis_resolve_t *r);

#endif
