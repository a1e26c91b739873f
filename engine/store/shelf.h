/*
 * The shelf: cached prefixes in host memory, between the KV pool of a device and
 * the files of store.h.
 *
 * An item is what it is there: whose, the tokens, counts and numbers, and pages.
 * These lie in chunks of the shelf's memory, all of one size, that are chained; so
 * nothing is ever moved to make room.  Who has an item put waits for nobody:
 *
 *   put     -> chunks, one behind the other, are filled -> put_over
 *   find    -> hold -> chunks are read                  -> drop
 *
 * An item that is being filled is not found, one that is held does not go.  Of the
 * others the one used longest ago goes when room is wanted.  An item that begins
 * with all of another's tokens takes its place.
 *
 * Finding.  Each item has a hash for every TR_STORE_BLOCK tokens, of all tokens in
 * front of there with key and policy.  With the query's hashes one look at an item
 * says whether it shares more than the best one so far, however much they all have
 * in common; the tokens of the best are then compared.
 *
 * No threads, and nothing allocates after create.
 */
#ifndef TR_SHELF_H
#define TR_SHELF_H

#include "store.h"

#define TR_SHELF_NONE UINT32_MAX

typedef struct tr_shelf tr_shelf_t;

typedef struct {
    uint8_t *memory; /* [chunks * chunk_bytes], borrowed until it is freed */
    uint32_t chunks; /* not 0 */
    uint32_t page_bytes, chunk_pages;
    uint32_t counts;  /* of each item */
    uint32_t max_len; /* tokens of an item, at most */
} tr_shelf_config_t;

typedef struct {
    uint64_t items, bytes;   /* there are, with so many bytes of chunks */
    uint64_t stored, loaded; /* items, ever */
    uint64_t loaded_tokens;  /* of these */
    uint64_t evicted;        /* that went for want of room, or were too old */
    uint64_t skipped;        /* that were not whole when their pages went */
} tr_shelf_stats_t;

/* NULL: no memory. */
tr_shelf_t *tr_shelf_create(const tr_shelf_config_t *config);
/* NULL: nothing. */
void tr_shelf_free(tr_shelf_t *s);

/* ---- put ---------------------------------------------------------------- */

/* Room for an item of at least a token and a page, which is copied but for its
 * pages.  NONE: there is none, or others have all of it (*there). */
uint32_t tr_shelf_put(tr_shelf_t *s, const tr_store_item_t *item, uint64_t now,
                      bool *there);
/* All of it is there: it can be found; or it goes. */
void tr_shelf_put_over(tr_shelf_t *s, uint32_t id, bool whole);

/* ---- get ---------------------------------------------------------------- */

/* The item that shares most of tokens[0, n) and more than `from`, *common of them;
 * NONE: none does, by whole blocks of TR_STORE_BLOCK. */
uint32_t tr_shelf_find(const tr_shelf_t *s, const tr_prefix_key_t *key,
                       const uint8_t policy[TR_STORE_ID_BYTES],
                       const int32_t *tokens, uint32_t n, uint32_t from,
                       uint32_t *common);
/* It stays; and may go again: `read`, it was. */
void tr_shelf_hold(tr_shelf_t *s, uint32_t id, uint64_t now);
void tr_shelf_drop(tr_shelf_t *s, uint32_t id, bool read);
/* What it is; its tokens and counts are the shelf's. */
void tr_shelf_item(const tr_shelf_t *s, uint32_t id, tr_store_item_t *out);

/* ---- chunks ------------------------------------------------------------- */

uint32_t tr_shelf_first(const tr_shelf_t *s, uint32_t id);
/* The one behind, NONE: that was the last. */
uint32_t tr_shelf_behind(const tr_shelf_t *s, uint32_t chunk);
uint8_t *tr_shelf_chunk(const tr_shelf_t *s, uint32_t chunk);

/* ---- the rest ----------------------------------------------------------- */

/* Items that nobody holds, and that were last used before, go. */
void tr_shelf_expire(tr_shelf_t *s, uint64_t before);
void tr_shelf_skip(tr_shelf_t *s);
void tr_shelf_stats(const tr_shelf_t *s, tr_shelf_stats_t *out);
/* Everything agrees; for tests. */
bool tr_shelf_sound(const tr_shelf_t *s);

#endif
