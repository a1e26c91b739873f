/*
 * Prefixes in files: what the step loop does with the store (engine/store/store.h)
 * of its KV cache, which is here and reuses prefixes (kv_cache.h).
 *
 *   admission:   find -> store_look -> ASKED .. wait for a turn .. -> find
 *   every turn:  store_turn
 *
 * Without a store all of these do nothing.
 */
#ifndef TR_KV_STORE_H
#define TR_KV_STORE_H

#include "engine/base/siphash.h"
#include "engine/store/store.h"
#include "kv_cache.h"

typedef struct tr_kv_store tr_kv_store_t;

/* The cache has a store in this directory from now on, of so many bytes and, but
 * for 0, files used within the TTL; identity: of all that its pages depend on
 * beside policies and layouts.  *err names cache_dir. */
tr_status_t tr_kv_store_open(tr_kv_cache_t *kv, const char *dir, uint64_t limit,
                             uint64_t ttl_us,
                             const uint8_t identity[TR_STORE_ID_BYTES],
                             tr_error_t *err);
/* wake: called from other threads when a turn has something to do. */
void tr_kv_store_wakes(tr_kv_cache_t *kv, void (*wake)(void *arg), void *arg);
/* Writes what is to be written yet, for so long at most. */
void tr_kv_store_flush(tr_kv_cache_t *kv, uint64_t us);
/* The same for five seconds at most.  The step loop's last call; tr_kv_cache_free does it where there was none. */
void tr_kv_store_close(tr_kv_cache_t *kv);

typedef enum {
    TR_KV_LOOK_NOTHING, /* go on without */
    TR_KV_LOOK_ASKED,   /* the answer will come: wait while store_looks */
    TR_KV_LOOK_LATER, /* what comes is of use: ask again after the next turn */
    TR_KV_LOOK_BUSY   /* it looks for others: ask again, but not for long */
} tr_kv_look_t;

/* Do files have more than the first `from` of tokens[0, n)?  Asks for `owner`. */
tr_kv_look_t tr_kv_store_look(tr_kv_cache_t *kv, const void *owner,
                              const tr_kv_policy_t *policy,
                              const tr_prefix_key_t *key, const int32_t *tokens,
                              uint32_t n, uint32_t from);
/* Is what owner asked for on its way? */
bool tr_kv_store_looks(const tr_kv_cache_t *kv, const void *owner);

/* Copies a piece each way at most.  Returns whether there was something to
 * do. */
bool tr_kv_store_turn(tr_kv_cache_t *kv);
void tr_kv_store_stats(const tr_kv_cache_t *kv, tr_store_stats_t *out);

/* ---- kv_prefix.c, kv_kept.c */

/* A kept slot, or a node with all in front of it, is worth storing; and it is
 * there no more. */
void tr_kv_store_want(tr_kv_cache_t *kv, bool slot, uint32_t id);
void tr_kv_store_gone(tr_kv_cache_t *kv, bool slot, uint32_t id);
/* Gives up what is being loaded; its pages until then. */
bool tr_kv_store_yield(tr_kv_cache_t *kv);
uint64_t tr_kv_store_pages(const tr_kv_cache_t *kv);

#endif
