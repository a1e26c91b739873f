/*
 * Prefixes outside of the pool: how the step loop uses the store of files
 * (engine/store/store.h) and the shelf in host memory (engine/store/shelf.h) of a
 * KV cache that reuses prefixes (kv_cache.h).  What is kept at the end of an answer
 * is copied to both, where there are both.
 *
 *   at admission   tr_kv_find, then tr_kv_store_look: has the shelf, or have files,
 *                  more of this prompt?  ASKED: the request waits some turns; then
 *                  tr_kv_find again, which finds what was loaded
 *   at each turn   tr_kv_store_turn copies pages from and to both
 *
 * Without either all of these do nothing.
 */
#ifndef TR_KV_STORE_H
#define TR_KV_STORE_H

#include "engine/base/siphash.h"
#include "engine/store/shelf.h"
#include "kv_cache.h"

/* Slots of what comes from a file, and from the shelf, at once. */
#define TR_KV_FILE_GETS 1u
#define TR_KV_SHELF_GETS 3u

typedef struct tr_kv_store tr_kv_store_t;

/* Gives the cache a store in this directory, of at most `limit` bytes.  Files
 * that were not used for ttl_us go; 0: none for its age.  identity: a hash of all
 * that pages depend on besides policies and layouts.  *err names cache_dir. */
tr_status_t tr_kv_store_open(tr_kv_cache_t *kv, const char *dir, uint64_t limit,
                             uint64_t ttl_us,
                             const uint8_t identity[TR_STORE_ID_BYTES],
                             tr_error_t *err);
/* Gives it a shelf of this many bytes of host memory, pinned where the pool is a
 * device's.  *err names cache_memory. */
tr_status_t tr_kv_shelf_open(tr_kv_cache_t *kv, uint64_t bytes,
                             tr_error_t *err);
/* wake is called from the store's threads when the next turn has work. */
void tr_kv_store_wakes(tr_kv_cache_t *kv, void (*wake)(void *arg), void *arg);
/* Stores what still waits to be stored, for `us` at most. */
void tr_kv_store_flush(tr_kv_cache_t *kv, uint64_t us);
/* Flushes for five seconds at most, and closes.  The step loop's last call;
 * tr_kv_cache_free does it where nobody has. */
void tr_kv_store_close(tr_kv_cache_t *kv);

typedef enum {
    TR_KV_LOOK_NOTHING, /* there is no more: go on */
    TR_KV_LOOK_ASKED,   /* files are read: wait while tr_kv_store_looks */
    TR_KV_LOOK_COMES, /* from the shelf: wait likewise, and ask again should it
                       * be gone by then, because others wanted its pages */
    TR_KV_LOOK_LATER, /* what is read for others helps: ask after the next turn */
    TR_KV_LOOK_FULL, /* the shelf has more, but enough of it is being read: ask
                       * when it is no longer tr_kv_store_full */
    TR_KV_LOOK_BUSY  /* it reads for others: ask again, but not for long */
} tr_kv_look_t;

/* Has the shelf, or have files, more than the first `from` of tokens[0, n)?  If so
 * it is read in the name of `owner`, which tr_kv_store_looks takes. */
tr_kv_look_t tr_kv_store_look(tr_kv_cache_t *kv, const void *owner,
                              const tr_kv_policy_t *policy,
                              const tr_prefix_key_t *key, const int32_t *tokens,
                              uint32_t n, uint32_t from);
/* Is what was asked for in owner's name still being read? */
bool tr_kv_store_looks(const tr_kv_cache_t *kv, const void *owner);

/* Is as much read from the shelf as can be at once? */
bool tr_kv_store_full(const tr_kv_cache_t *kv);

/* So many tokens of prompts were computed in so long a turn: what is sooner
 * computed than brought from the shelf is not brought. */
void tr_kv_computed(tr_kv_cache_t *kv, uint64_t tokens, uint64_t us);

/* Copies a few pieces each way; returns whether it did anything. */
bool tr_kv_store_turn(tr_kv_cache_t *kv);
/* What was last used before goes from the shelf. */
void tr_kv_shelf_expire(tr_kv_cache_t *kv, uint64_t before);
/* All 0 without files, and without a shelf. */
void tr_kv_store_stats(const tr_kv_cache_t *kv, tr_store_stats_t *out);
void tr_kv_shelf_stats(const tr_kv_cache_t *kv, tr_shelf_stats_t *out);
bool tr_kv_shelf_sound(const tr_kv_cache_t *kv);

/* ---- kv_prefix.c, kv_kept.c */

/* A kept slot, or a node of the prefix tree with all in front of it, is worth
 * storing; and: it has left the cache. */
void tr_kv_store_want(tr_kv_cache_t *kv, bool slot, uint32_t id);
void tr_kv_store_gone(tr_kv_cache_t *kv, bool slot, uint32_t id);
/* Is it still to be put on the shelf? */
bool tr_kv_store_waits(const tr_kv_cache_t *kv, bool slot, uint32_t id);
/* Gives up what is being loaded, for its pages; and: how many these are. */
bool tr_kv_store_yield(tr_kv_cache_t *kv);
uint64_t tr_kv_store_pages(const tr_kv_cache_t *kv);

#endif
