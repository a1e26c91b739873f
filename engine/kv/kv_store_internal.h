/*
 * What the files of prefixes outside of the pool share (kv_store.h): kv_store.c
 * opens and closes, looks and takes turns, kv_store_out.c has what is on its way
 * to a file or the shelf, kv_store_in.c what comes from a file, kv_shelf.c both
 * ways between pool and shelf.
 *
 * All are the step loop's, and wait for nobody: a turn copies a few pieces each
 * way where the pages are here, and has a device copy some where they are there
 * (tr_kv_files_t in kv_internal.h).
 */
#ifndef TR_KV_STORE_INTERNAL_H
#define TR_KV_STORE_INTERNAL_H

#include "engine/store/shelf.h"
#include "kv_plan.h"
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
    tr_kv_lane_t lane;
    uint32_t *ref; /* [pages of the pool], mapped: touched as far as used */
    int32_t slot;  /* whose rows they are in; -1: of kept blocks */
    uint32_t n, at;
    uint32_t begun, over;
} kv_store_way_t;

/* Where what is kept goes to: its functions. */
typedef struct {
    /* To be filled; NULL: it is not ready for another one. */
    tr_store_item_t *(*item)(tr_kv_store_t *s);
    /* It was filled; false: it is not wanted. */
    bool (*go)(tr_kv_cache_t *kv);
    /* Of its next piece; NULL: not yet. */
    uint8_t *(*room)(tr_kv_store_t *s);
    void (*full)(tr_kv_store_t *s); /* the oldest of these */
    bool (*lost)(const tr_kv_store_t *s);
    void (*over)(tr_kv_store_t *s); /* all of them */
    void (*stop)(tr_kv_store_t *s); /* there will be no more */
    void (*skip)(tr_kv_store_t *s); /* one was not stored */
} kv_store_to_t;

typedef struct {
    const kv_store_to_t *to; /* NULL: there is no such place */
    kv_store_kept_t queue[KV_STORE_QUEUE];
    uint32_t n_queue;
    bool putting;
    bool seeing; /* putting: what it is is not yet known */
    bool asked;  /* seeing: it was asked for */
    kv_store_kept_t what;
    kv_store_way_t way;
} kv_store_put_t;

/* Turns in which what is to come may find no pages. */
#define KV_STORE_TRIES 16u

/* An item that comes from the shelf. */
typedef struct {
    const void *owner; /* who asked; NULL: nobody */
    uint32_t id;       /* held */
    uint32_t chunk;    /* its next */
    uint32_t tries;    /* to have pages */
    uint64_t since;    /* when it was asked for, us */
    int32_t slot;      /* -1: none yet */
    bool begun;
    tr_kv_policy_t policy;
    kv_store_way_t way;
} kv_shelf_get_t;

struct tr_kv_store {
    uint32_t piece_pages[TR_KV_LANES];
    size_t refs_size;
    bool taking; /* what comes takes pages: from others than what comes */
    kv_store_put_t put[TR_KV_LANES];

    tr_store_t *files; /* NULL: there are none */
    uint8_t *memory;   /* of pieces, where a device copies them */
    const void *owner; /* who asked; NULL: nobody */
    uint64_t since;    /* when the store's last word came, us, */
    uint64_t asked;    /* and when it was asked, */
    uint32_t from;     /* for what is behind so many tokens */
    uint32_t tries;    /* to have pages */
    bool stopping;     /* what was asked for is not wanted any more */
    tr_kv_policy_t policy;
    int32_t get_slot; /* -1: none */
    kv_store_way_t in;

    tr_shelf_t *shelf;          /* NULL: there is none */
    tr_store_item_t shelf_item; /* that is being put, */
    uint32_t shelf_id;
    uint32_t shelf_chunk;                 /* and its next */
    kv_shelf_get_t get[TR_KV_SHELF_GETS]; /* the oldest first */
    tr_kv_turns_t computes;               /* a prompt's tokens */
    uint64_t turn_us;                     /* of the last turn */
    tr_kv_speed_t brings[TR_KV_LANES];    /* bytes from there */
    const void *doubts[TR_KV_LANES];      /* who last made it doubt that */
    uint32_t n_gets;
};

/* kv_store.c */
/* Which policy, with all settings, and thresholds by head. */
void kv_store_identify(const tr_kv_policy_t *p, uint8_t out[TR_STORE_ID_BYTES]);
/* kv->store, made if it is not there; NULL: no memory. */
tr_kv_store_t *kv_store_made(tr_kv_cache_t *kv);
/* A way of this lane; false: no memory. */
bool kv_store_open_way(const tr_kv_store_t *s, kv_store_way_t *way,
                       tr_kv_lane_t lane);
/* Is what this lane has sooner here than so many tokens of it are computed?
 * unknown: what it says as long as speeds are not known.  Who waits asks again and
 * again, which is one doubt. */
bool kv_store_is_worth(tr_kv_store_t *s, tr_kv_lane_t lane, const void *owner,
                       double bytes, uint32_t tokens, bool unknown);
/* Where the pages of a slot are that is as `seq`, with these counts by head, in
 * the order of files; how many. */
uint32_t kv_store_list(const tr_kv_cache_t *kv, const tr_kv_seq_t *seq,
                       const uint32_t *counts, uint32_t uncompressed_pages,
                       uint32_t *ref);
/* Pieces under way whose time has come are over: TR_OK, all are; TR_AGAIN: not
 * yet; else they could not be copied.  each: NULL, or called for each. */
tr_status_t kv_store_arrived(tr_kv_cache_t *kv, kv_store_way_t *way, bool out,
                             void (*each)(tr_kv_store_t *s));
/* How many pieces of a lane may be begun in this turn, each way. */
uint32_t kv_store_at_once(const tr_kv_cache_t *kv, tr_kv_lane_t lane);
/* What the next piece is, without its memory; false: it is not time for it. */
bool kv_store_next(const tr_kv_cache_t *kv, const kv_store_way_t *way, bool out,
                   tr_kv_piece_t *piece);

/* kv_store_out.c, kv_store_in.c, kv_shelf.c: a turn; whether it did anything, or
 * waits for what comes soon. */
bool kv_store_put(tr_kv_cache_t *kv, kv_store_put_t *p);
bool kv_store_get(tr_kv_cache_t *kv);
bool kv_shelf_get(tr_kv_cache_t *kv);

/* kv_store_out.c */
extern const kv_store_to_t kv_store_to_files;

/* kv_store_in.c.  A slot of this policy with the item's pages, not filled, which
 * `way` lists; TR_AGAIN: there is no room. */
tr_status_t kv_store_take(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                          const tr_store_item_t *item, kv_store_way_t *way,
                          int32_t *slot);
/* It is filled, and kept. */
void kv_store_filled(tr_kv_cache_t *kv, int32_t slot,
                     const tr_store_item_t *item);

/* kv_shelf.c */
extern const kv_store_to_t kv_store_to_shelf;
void kv_shelf_close(tr_kv_cache_t *kv);
/* As tr_kv_store_look, where the shelf has what is worth it; false: it has not. */
bool kv_shelf_look(tr_kv_cache_t *kv, const void *owner,
                   const tr_kv_policy_t *policy, const tr_prefix_key_t *key,
                   const int32_t *tokens, uint32_t n, uint32_t from,
                   tr_kv_look_t *look);
/* As tr_kv_store_looks, _yield, _pages. */
bool kv_shelf_looks(const tr_kv_store_t *s, const void *owner);
bool kv_shelf_yield(tr_kv_cache_t *kv);
uint64_t kv_shelf_pages(const tr_kv_cache_t *kv);

#endif
