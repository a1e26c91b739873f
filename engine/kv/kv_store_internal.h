/*
 * What the files of prefixes in files share (kv_store.h): kv_store.c opens and
 * closes, looks and takes turns, kv_store_out.c has what is on its way to a file,
 * kv_store_in.c what comes from one.
 *
 * Both are the step loop's, and wait for nobody: a turn copies a few pieces each
 * way where the pages are here, and has a device copy some where they are there
 * (tr_kv_files_t in kv_internal.h).
 */
#ifndef TR_KV_STORE_INTERNAL_H
#define TR_KV_STORE_INTERNAL_H

#include "kv_internal.h"
#include "kv_store.h"

#define KV_STORE_QUEUE 64u

/* What is to be stored: a kept slot, or the path to a node of the tree. */
typedef struct {
    bool slot;
    uint32_t id;
} kv_store_kept_t;

/* An item's pages on their way: where each is (tr_kv_piece_t), and pieces that
 * were begun, and are over. */
typedef struct {
    uint32_t *ref; /* [pages of the pool], mapped: touched as far as used */
    int32_t slot;  /* whose rows they are in; -1: of kept blocks */
    uint32_t n, at;
    uint32_t begun, over;
} kv_store_way_t;

struct tr_kv_store {
    tr_store_t *files;
    uint8_t *memory; /* of pieces, where a device copies them */
    uint32_t buffers;
    size_t refs_size;

    kv_store_kept_t queue[KV_STORE_QUEUE];
    uint32_t n_queue;
    bool putting;
    bool seeing; /* putting: what it is is not yet known */
    bool asked;  /* seeing: it was asked for */
    kv_store_kept_t what;
    kv_store_way_t out;

    const void *owner; /* who asked; NULL: nobody */
    uint64_t since;    /* when the store's last word came, us */
    bool stopping;     /* what was asked for is not wanted any more */
    tr_kv_policy_t policy;
    int32_t get_slot; /* -1: none */
    kv_store_way_t in;
};

/* kv_store.c */
/* Which policy, with all settings, and thresholds by head. */
void kv_store_identify(const tr_kv_policy_t *p, uint8_t out[TR_STORE_ID_BYTES]);
/* Where the pages of a slot are that is as `seq`, with these counts by head, in
 * the order of files; how many. */
uint32_t kv_store_list(const tr_kv_cache_t *kv, const tr_kv_seq_t *seq,
                       const uint32_t *counts, uint32_t uncompressed_pages,
                       uint32_t *ref);
/* Pieces under way whose time has come are over: TR_OK, all are; TR_AGAIN: not
 * yet; else they could not be copied.  each: called for each. */
tr_status_t kv_store_arrived(tr_kv_cache_t *kv, kv_store_way_t *way, bool out,
                             void (*each)(tr_store_t *files));
/* What the next piece is, without its memory; false: it is not time for it. */
bool kv_store_next(const tr_kv_cache_t *kv, const kv_store_way_t *way, bool out,
                   tr_kv_piece_t *piece);

/* kv_store_out.c, kv_store_in.c: a turn; whether it did anything, or waits for
 * what comes soon. */
bool kv_store_put(tr_kv_cache_t *kv);
bool kv_store_get(tr_kv_cache_t *kv);

#endif
