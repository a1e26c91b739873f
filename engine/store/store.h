/*
 * The store: cached prefixes in files, so that conversations survive a restart
 * and a kill of the engine, and engines of one host find each other's.
 *
 * It knows nothing of a KV cache: an item is whose it is, the tokens, so many
 * counts and numbers, and pages, all of one size.  What these mean is
 * engine/kv/kv_store.c's.
 *
 * Files.  A directory of mode 0700 that has a random key (`key`), and for each
 * item a file of mode 0600, written under another name and renamed when it is
 * whole: a header (store_internal.h), tokens, counts, a tag for each piece of
 * pages, and from a multiple of 4,096 bytes on the pages.  Tags are SipHash under
 * the directory's key, the header has one over all in front of the pages: what
 * was truncated, changed or made by others is not taken for the engine's, nor by
 * an engine with another model, policy or version (`identity`, `policy`).
 *
 * Names.  h(0) is the hash of identity, policy and cache key, h(i) that of h(i-1)
 * and the next 64 tokens, under the directory's key; so who lists the directory
 * learns no prompt, and cannot confirm a guess.  An item of n tokens has the name
 * h(n / 64) and, as links, some of those in front of it: those a power of two of
 * blocks from its start or its end.  Who begins alike looks for its own names,
 * the longest first, and then compares tokens; so several engines may share a
 * directory, and what one stores the others find.  An item that is the beginning
 * of a newer one goes.
 *
 * Threads.  One writes, one reads; the step loop hands over pages piece by
 * piece, waits for nobody and allocates nothing:
 *
 *   put:  tr_store_put -> put_go -> room, full, room, full ..     or put_stop
 *   get:  tr_store_get -> LOOKING -> NONE
 *                                 -> FOUND -> get_go -> piece, taken .. -> DONE
 *                                                                   or FAILED
 *                                    (or get_stop at any time) -> get_over
 *
 * Several pieces may be asked for before the first of them is full, or taken:
 * who copies them by a device does so.
 */
#ifndef TR_STORE_H
#define TR_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "engine/prefix/prefix.h"

#define TR_STORE_BLOCK 64u /* tokens between names */
#define TR_STORE_BUFFERS_MAX 16u
#define TR_STORE_READERS_MAX 8u
#define TR_STORE_NUMBERS 3u
#define TR_STORE_ID_BYTES 16u

typedef struct tr_store tr_store_t;

typedef struct {
    const char *dir; /* borrowed for the call; made if it is not there */
    uint64_t limit;  /* bytes of all files; the ones used longest ago go */
    uint64_t ttl_us; /* those not used for so long go, too; 0: they stay */
    uint8_t identity[TR_STORE_ID_BYTES]; /* what all pages depend on */
    uint32_t page_bytes;
    uint32_t counts;    /* of each item */
    uint32_t max_len;   /* tokens of an item, at most */
    uint32_t max_pages; /* of an item */
    /* Pieces that wait between both sides, each way: 2 to
     * TR_STORE_BUFFERS_MAX; and where: 2 * buffers * tr_store_piece_bytes,
     * borrowed until the store is closed, or NULL: it has memory of its own. */
    uint32_t buffers;
    uint8_t *memory;
    /* Threads that read an item's pieces, 1 to TR_STORE_READERS_MAX, of which
     * buffers are a multiple: one reads and checks 1 to 2 GB/s. */
    uint32_t readers;
} tr_store_config_t;

typedef struct {
    tr_prefix_key_t key;
    uint8_t policy[TR_STORE_ID_BYTES];
    uint32_t n_tokens, n_pages;
    uint32_t number[TR_STORE_NUMBERS];
    int32_t *tokens;  /* [max_len], the store's */
    uint32_t *counts; /* [config.counts], likewise */
} tr_store_item_t;

/* Could a store be opened in dir?  Makes and writes nothing.  *err names cache_dir
 * and says what is wrong with it. */
tr_status_t tr_store_check(const char *dir, tr_error_t *err);
/* The same words, and those of what only opening finds. */
tr_status_t tr_store_open(const tr_store_config_t *config, tr_store_t **out,
                          tr_error_t *err);
/* What is under way is given up; NULL: nothing. */
void tr_store_close(tr_store_t *s);
/* Called from the store's threads when there is something for the step loop. */
void tr_store_wakes(tr_store_t *s, void (*wake)(void *arg), void *arg);

/* Pages of a piece, but for the last of an item; and its bytes. */
uint32_t tr_store_piece_pages(uint32_t page_bytes);
size_t tr_store_piece_bytes(uint32_t page_bytes);

/* ---- put ---------------------------------------------------------------- */

/* An item to fill, at least 64 tokens and a page; NULL: another one is being
 * written. */
tr_store_item_t *tr_store_put(tr_store_t *s);
void tr_store_put_go(tr_store_t *s);
/* Where its next piece goes, each time the one behind; NULL: not yet, or it is
 * not wanted any more.  The i-th of an item is in buffer i % buffers. */
uint8_t *tr_store_put_room(tr_store_t *s);
/* The oldest of those is full. */
void tr_store_put_full(tr_store_t *s);
/* There will be no more pieces of it. */
void tr_store_put_stop(tr_store_t *s);
/* Nothing is being written. */
bool tr_store_put_idle(const tr_store_t *s);

/* ---- get ---------------------------------------------------------------- */

typedef enum {
    TR_STORE_IDLE,
    TR_STORE_LOOKING,
    TR_STORE_NONE,
    TR_STORE_FOUND,
    TR_STORE_LOADING,
    TR_STORE_DONE,
    TR_STORE_FAILED /* the file is damaged, and gone */
} tr_store_get_t;

/* Looks for the longest item that shares more than `from` of tokens[0, n), which
 * are copied.  False: it is busy. */
bool tr_store_get(tr_store_t *s, const tr_prefix_key_t *key,
                  const uint8_t policy[TR_STORE_ID_BYTES],
                  const int32_t *tokens, uint32_t n, uint32_t from);
tr_store_get_t tr_store_get_state(const tr_store_t *s);
/* FOUND and behind: the item; valid until get_over or get_stop. */
const tr_store_item_t *tr_store_got(const tr_store_t *s);
void tr_store_get_go(tr_store_t *s);
/* The next piece, each time the one behind; NULL: not yet. */
const uint8_t *tr_store_get_piece(tr_store_t *s);
/* The oldest of those is taken.  The last one: DONE. */
void tr_store_get_taken(tr_store_t *s);
/* NONE, DONE or FAILED was seen. */
void tr_store_get_over(tr_store_t *s);
/* FOUND or LOADING: nobody wants it any more. */
void tr_store_get_stop(tr_store_t *s);

/* ---- figures ------------------------------------------------------------ */

typedef struct {
    uint64_t stored, loaded; /* items */
    uint64_t loaded_tokens;  /* of these */
    uint64_t failed;  /* files that could not be written, or were damaged */
    uint64_t skipped; /* items that nobody had time to write */
    uint64_t files, bytes; /* there are, when last looked */
} tr_store_stats_t;

void tr_store_stats(const tr_store_t *s, tr_store_stats_t *out);
/* An item was not stored, since one is being written. */
void tr_store_skip(tr_store_t *s);

#endif
