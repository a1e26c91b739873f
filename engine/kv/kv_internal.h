/*
 * What the files of the KV cache share: kv_ops.c (kv_cache.h's functions),
 * kv_cache.c (what a cache is made of), kv_host.c and kv_host_cut.c (the cache that
 * is here), kv_prefix.c (what it reuses), kv_kept.c and kv_lend.c (compressed), those of
 * kv_store_internal.h (in files) and kv_host_files.c, kv_usage.c, kv_check.c, and
 * those of a device's cache (kv_device_internal.h).
 * Nobody else includes this but tests.
 *
 * Who has which page is the manager's to decide (kernels/kv_manager): the
 * host's cache runs it, a device's sends it commands.  Everything that a kernel
 * reads is an array by slot and head (kernels.h) that the manager owns.
 */
#ifndef TR_KV_INTERNAL_H
#define TR_KV_INTERNAL_H

#include <assert.h>

#include "kv_cache.h"
#include "kv_pages.h"
#include "kv_store.h"
#include "kernels/kv_manager/host.h"
#include "kernels/kv_manager/manager_cut.h"
#include "kernels/kv_manager/manager_prompt.h"
#include "kernels/kv_manager/manager_step.h"

/* In a table: the page is in the swap pool.  -1 has the bit, too. */
#define TR_KV_HOST 0x40000000

/* The policy of a slot: as it was opened, and for the length of its last
 * prompt. */
typedef struct {
    tr_kv_policy_t origin, begun;
} tr_kv_slot_policy_t;

/* Of a slot: its last shared block (tr_kv_seq_t.shared of them), and whose it
 * is. */
typedef struct {
    bool on;
    uint32_t node;
    bool fresh;    /* it has kept a block that was not there */
    bool loaded;   /* from a file */
    uint64_t lent; /* its tokens in shared blocks */
    tr_prefix_key_t key;
} tr_kv_sharer_t;

/* Of a slot whose policy can be cut: whose it is, what is kept of it, and who borrows
 * whose pages (kv_lend.c). */
typedef struct {
    bool on;              /* it has a key */
    bool ends;            /* its close keeps it */
    bool kept;            /* nobody's: it is there for others */
    bool loaded;          /* from a file */
    uint32_t n;           /* ends, kept: tokens */
    uint32_t finds, pins; /* who found it; and all for whose sake it stays */
    uint32_t lender;      /* its slot, and 1; 0: it borrows nothing */
    uint32_t lent;        /* tokens in front of where it was cut from that */
    uint32_t borrowers;   /* slots whose lender it is, */
    uint32_t borrower;    /* the last of them (kv_lend.c) */
    uint64_t used;        /* kept: last time, us */
    tr_prefix_key_t key;
    /* kept, as it is counted: pages that come back when it goes, at least; the
     * slot's tokens, of which n are known; pages by layout */
    uint32_t held, tokens;
    uint32_t pages[TR_KV_LAYOUTS_MAX];
} tr_kv_kept_t;

typedef struct {
    tr_prefix_t *tree;    /* a node's number is its block's (m.kept) */
    tr_kv_sharer_t *slot; /* [slots] */
    uint64_t now;
    uint64_t lent; /* of all slots */

    /* kv_kept.c; NULL: nothing compressed is kept */
    tr_kv_kept_t *kept; /* [slots] */
    int32_t *tokens;    /* [slots][max_len], mapped */
    size_t tokens_size;
    uint32_t n_kept;
    uint32_t n_lenders; /* slots that somebody borrows of */
    uint64_t
        idle_pages; /* of kept slots that nobody pins, or that can be absorbed; */
    bool idle_known; /* or it has changed */
    uint64_t kept_tokens, kept_evicted, kept_expired;
    uint64_t kept_held; /* tokens of kept slots, known or not */
    uint64_t kept_pages[TR_KV_LAYOUTS_MAX]; /* of all kept slots */
    bool turn; /* whose turn it is to make room: the tree's */
} tr_kv_reuse_t;

/* Where prefixes go, and come from: files, or the shelf. */
typedef enum { TR_KV_FILES, TR_KV_SHELF, TR_KV_LANES } tr_kv_lane_t;

/* A piece of what goes there, and its pages: each is the one whose id is entry
 * ref[i] of an array of the manager's, `tables` from the rows of `slot` on, or
 * `kept`. */
typedef struct {
    int32_t slot; /* -1: kept */
    const uint32_t *ref;
    uint32_t n;
    uint8_t *memory; /* one page behind the other */
    uint32_t buffer; /* which of those under way it is */
} tr_kv_piece_t;

/* How pages go there and come from there (kv_store.c), by lanes that know nothing
 * of each other.  TR_AGAIN: not yet, it is to be asked again; any other status but
 * TR_OK: it cannot be. */
typedef struct {
    uint32_t buffers[TR_KV_LANES]; /* pieces under way, each way, at most, */
    uint32_t at_once[TR_KV_LANES]; /* and begun in a turn of `turn_us`, */
    uint32_t turn_us; /* or of less; in proportion in a longer one */
    uint32_t readers; /* threads that read a file */
    uint32_t chunk;   /* most bytes of a piece on the shelf */
    /* For pieces of so many pages.  *memory: `bytes` of it, that pieces are copied
     * from and to; or NULL: any will do.  close: also where open has not been, or
     * failed. */
    tr_status_t (*open)(tr_kv_cache_t *kv, tr_kv_lane_t lane,
                        uint32_t piece_pages, uint64_t bytes, uint8_t **memory,
                        tr_error_t *err);
    void (*close)(tr_kv_cache_t *kv, tr_kv_lane_t lane);
    /* No batch follows: what was asked of the cache is done now. */
    void (*launch)(tr_kv_cache_t *kv);
    /* What a kept slot is, and its counts; slot -1: kept blocks.  `again`: as
     * asked before.  TR_OK: `out` gets what is kept. */
    tr_status_t (*see)(tr_kv_cache_t *kv, tr_kv_lane_t lane, int32_t slot,
                       bool again, tr_kv_seq_t *seq, uint32_t *counts);
    tr_status_t (*out)(tr_kv_cache_t *kv, tr_kv_lane_t lane,
                       const tr_kv_piece_t *piece);
    /* A slot has its pages, which are to be filled: of these tokens. */
    tr_status_t (*begin)(tr_kv_cache_t *kv, tr_kv_lane_t lane, int32_t slot,
                         const int32_t *tokens, uint32_t n);
    tr_status_t (*in)(tr_kv_cache_t *kv, tr_kv_lane_t lane,
                      const tr_kv_piece_t *piece);
    /* Nothing that was begun that way last is in the buffer's way any more. */
    tr_status_t (*moved)(const tr_kv_cache_t *kv, tr_kv_lane_t lane, bool out,
                         uint32_t buffer);
    /* The slot of `begin` is closed next, with pieces under way. */
    void (*stop)(tr_kv_cache_t *kv, tr_kv_lane_t lane);
} tr_kv_files_t;

/* What differs between a cache that is here and one on a device; each entry is
 * the function of kv_cache.h of that name, but for the last two. */
typedef struct {
    void (*free)(tr_kv_cache_t *kv);
    bool (*settled)(const tr_kv_cache_t *kv);
    uint64_t (*free_pages)(const tr_kv_cache_t *kv);
    int32_t (*open)(tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
    void (*close)(tr_kv_cache_t *kv, int32_t slot);
    void (*prompt)(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
    void (*reserve_batch)(tr_kv_cache_t *kv, const int32_t *slots,
                          const uint32_t *lens, uint32_t n,
                          tr_status_t *result);
    tr_status_t (*compress)(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
    tr_status_t (*stage)(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
    bool (*compressing)(const tr_kv_cache_t *kv, int32_t slot);
    tr_status_t (*fork)(tr_kv_cache_t *kv, int32_t from, int32_t to,
                        uint32_t len);
    tr_status_t (*swap_out)(tr_kv_cache_t *kv, int32_t slot);
    tr_status_t (*swap_in)(tr_kv_cache_t *kv, int32_t slot);
    bool (*coming)(const tr_kv_cache_t *kv, int32_t slot); /* NULL: never */
    void (*usage)(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out);
    void (*usage_in)(const tr_kv_cache_t *kv, int32_t slot,
                     const tr_page_plan_t *plan, tr_kv_usage_t *out);
    void (*totals)(const tr_kv_cache_t *kv, tr_kv_totals_t *out);
    bool (*sound)(const tr_kv_cache_t *kv);
    /* Pages in the ring: at least so many, less than none where more was asked
     * for. */
    int64_t (*ring)(const tr_kv_cache_t *kv);
    /* manager_share.h: one record, and its slot's counts. */
    void (*share)(tr_kv_cache_t *kv, tr_kv_share_kind_t kind,
                  const tr_kv_share_t *share);

    /* kv_kept.c.  Gives a slot's pages back, and the slot. */
    void (*release)(tr_kv_cache_t *kv, int32_t slot);
    /* Pages that this brings, at least; pages: by layout, of those that the
     * totals have. */
    uint32_t (*held)(const tr_kv_cache_t *kv, int32_t slot,
                     uint32_t pages[TR_KV_LAYOUTS_MAX]);
    /* Pages that the first c tokens of a compressed slot take in another one,
     * at most. */
    uint64_t (*copy_pages)(const tr_kv_cache_t *kv, int32_t from, uint32_t c);
    /* They go there, on pages that both have or on copies (tr_kv_lend_cut); `to`
     * was just opened.  With `evict`, others make room.  TR_AGAIN: there is none,
     * nothing was changed. */
    tr_status_t (*copy)(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t c,
                        bool evict);
    /* Has anybody said what the slot borrows?  NULL: it is always known. */
    bool (*told)(const tr_kv_cache_t *kv, int32_t slot);
    /* Is it known what the slot has? */
    bool (*can_absorb)(const tr_kv_cache_t *kv, int32_t to);
    void (*absorb)(tr_kv_cache_t *kv, const tr_kv_absorb_t *absorb);
    /* Pages for what comes from elsewhere; others make room.  TR_AGAIN as
     * above. */
    tr_status_t (*restore)(tr_kv_cache_t *kv, const tr_kv_restore_t *restore);
    const tr_kv_files_t *files;
} tr_kv_ops_t;

struct tr_kv_cache {
    const tr_kv_ops_t *ops;
    tr_kv_config_t config;       /* policies: only while it is created */
    const tr_kv_policy_t *usual; /* of slots for which none is named */
    tr_page_plan_t plan;
    tr_kv_view_t view; /* what kernels get */
    uint32_t heads;    /* layers * kv_heads */
    uint32_t near;     /* of these, in layers that slide, */
    uint32_t reach;    /* of which the longest reach is this one */

    /* Here: the manager.  On a device: a mirror of its slots and sequences, as
     * they will be when all that was asked is done; the rest of it is not
     * there. */
    tr_kv_manager_t m;
    tr_kv_slot_policy_t *policy; /* [slots] */
    int32_t *free_slots;
    uint32_t n_free_slots;
    tr_kv_pages_t swap; /* n = 0: there is none */
    tr_kv_totals_t
        totals; /* tokens and swapped_pages; pages are the report's */

    /* the cache that is here: memory of the pool, and of the manager with its
     * workspaces, mapped: touched as far as they are used */
    uint8_t *pool, *memory;
    size_t pool_size, memory_size;
    tr_kv_page_request_t *ask; /* [slots] */
    void *work, *kernel_work;
    int32_t *moved; /* [swap.n] pages of a slot that goes out or comes in */
    uint8_t *shelf_memory; /* NULL: no shelf */
    tr_kv_reuse_t *reuse;  /* NULL: nothing is kept for others */
    tr_kv_store_t *store;  /* NULL: nor elsewhere */
    uint64_t stages;       /* that prompts have taken (tr_kv_stage) */
};

/* Heads that slots of this policy have in layers that slide. */
static inline uint32_t
tr_kv_near(const tr_kv_cache_t *kv, const tr_kv_policy_t *p)
{
    return p->n_levels != 0 ? kv->near : 0;
}

/* Layers that the compression of a prompt of len tokens takes at a time
 * (tr_kv_complete_t): where prompts have stages, a thirty-second of all; 0: all at
 * once, as those do that have none.  These alone are compared (kv_guard.h). */
static inline uint32_t
tr_kv_at_once(const tr_kv_cache_t *kv, uint32_t len)
{
    return kv->config.stage == 0 || len <= kv->config.stage
               ? 0
               : (kv->config.layers + 31) / 32;
}

static inline tr_kv_slot_t *
tr_kv_slot(const tr_kv_cache_t *kv, int32_t slot)
{
    assert(slot >= 0 && (uint32_t) slot < kv->config.slots);
    assert(kv->m.slot[slot].open);
    return &kv->m.slot[slot];
}

/* Of the cache that is here: kv_usage.c, kv_check.c. */
void tr_kv_host_usage(const tr_kv_cache_t *kv, int32_t slot,
                      tr_kv_usage_t *out);
void tr_kv_host_usage_in(const tr_kv_cache_t *kv, int32_t slot,
                         const tr_page_plan_t *plan, tr_kv_usage_t *out);
void tr_kv_host_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out);
bool tr_kv_host_sound(const tr_kv_cache_t *kv);

/* kv_prefix.c */
tr_status_t tr_kv_reuse_create(tr_kv_cache_t *kv, tr_error_t *err);
void tr_kv_reuse_free(tr_kv_cache_t *kv);
/* Blocks that a pool of so many pages can keep. */
uint32_t tr_kv_reuse_blocks(const tr_kv_cache_t *kv, uint32_t pages);
/* Pages in blocks that no slot holds: they can be had. */
uint64_t tr_kv_reuse_idle(const tr_kv_cache_t *kv);
/* Has blocks go until `pages` are free; false: there are too few, and nothing
 * changed.  For this slot. */
bool tr_kv_reuse_room(tr_kv_cache_t *kv, int32_t slot, uint64_t pages);
/* The first blocks of `from`, as far as [0, len) covers them, are shared by
 * `to`, which has no pages. */
void tr_kv_reuse_fork(tr_kv_cache_t *kv, int32_t from, int32_t to,
                      uint32_t len);
/* The slot is closed next. */
void tr_kv_reuse_close(tr_kv_cache_t *kv, int32_t slot);
/* Adds what is kept to what slots hold alone: tokens, pages[0], cached_pages. */
void tr_kv_reuse_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out);

/* kv_kept.c: of slots whose policy can be cut. */
tr_status_t tr_kv_kept_create(tr_kv_cache_t *kv, tr_error_t *err);
void tr_kv_kept_free(tr_kv_cache_t *kv);
bool tr_kv_kept_cuts(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
void tr_kv_kept_find(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                     const tr_prefix_key_t *key, const int32_t *tokens,
                     uint32_t n, tr_kv_found_t *found);
void tr_kv_kept_drop(tr_kv_cache_t *kv, tr_kv_found_t *found);
tr_status_t tr_kv_kept_adopt(tr_kv_cache_t *kv, int32_t slot,
                             const tr_prefix_key_t *key, tr_kv_found_t *found);
/* Positions [0, n) of a slot that is closed next are to be kept. */
void tr_kv_kept_end(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
                    uint32_t n);
/* Does each head of a slot that is as q, with [heads][TR_KV_TIERS_MAX] counts,
 * have each of its tokens in one place? */
bool tr_kv_kept_adds_up(const tr_kv_cache_t *kv, const tr_kv_seq_t *q,
                        const uint32_t *counts);
/* A slot just opened, and adopted, gets pages for what a file says: so many
 * tokens, seq.window_from and sinks and tokens that nobody knows behind them, and
 * counts as above.  TR_AGAIN: there is no room; TR_ERR_INVALID: that cannot
 * be. */
tr_status_t tr_kv_kept_restore(tr_kv_cache_t *kv, int32_t slot, uint32_t n,
                               const uint32_t number[TR_STORE_NUMBERS],
                               const uint32_t *counts);
/* They are filled: its close keeps it. */
void tr_kv_kept_restored(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
                         uint32_t n);
/* The slot is closed: true, it is kept and stays open. */
bool tr_kv_kept_close(tr_kv_cache_t *kv, int32_t slot);
/* One that nobody pins goes, the one used longest ago; only if that was before
 * this time.  False: there is none. */
bool tr_kv_kept_evict(tr_kv_cache_t *kv, uint64_t before);

/* A kept slot goes, or is absorbed, and is counted no longer. */
void tr_kv_kept_forget(tr_kv_cache_t *kv, int32_t slot);
/* What a slot holds is known anew: if it is kept, it is counted so. */
void tr_kv_kept_told(tr_kv_cache_t *kv, int32_t slot);
/* What is counted of kept slots is what they hold. */
bool tr_kv_kept_sound(const tr_kv_cache_t *kv);

/* kv_lend.c: pages of kept slots that stand in others' tables, too. */
/* How the first c tokens of `from` come to a slot just opened, and, when they have,
 * who lends what. */
tr_kv_cut_t tr_kv_lend_cut(const tr_kv_cache_t *kv, int32_t from, int32_t to,
                           uint32_t c);
/* Pages that it takes then, at most, and borrows, at least. */
uint64_t tr_kv_lend_own(const tr_kv_cache_t *kv, const tr_kv_cut_t *cut);
uint64_t tr_kv_lend_least(const tr_kv_cache_t *kv, const tr_kv_cut_t *cut);
void tr_kv_lend(tr_kv_cache_t *kv, const tr_kv_cut_t *cut);
/* For the sake of the slot, it and all that it borrows stay; and no longer. */
void tr_kv_lend_pin(tr_kv_cache_t *kv, int32_t slot);
void tr_kv_lend_unpin(tr_kv_cache_t *kv, int32_t slot);
/* A slot is kept from now on: what it borrows is no longer in use. */
void tr_kv_lend_keep(tr_kv_cache_t *kv, int32_t slot);
/* A slot goes, or has copies of all its pages. */
void tr_kv_lend_end(tr_kv_cache_t *kv, int32_t slot);
/* Can the slot's lender become part of it?  It does. */
bool tr_kv_lend_absorbs(const tr_kv_cache_t *kv, int32_t slot);
void tr_kv_lend_absorb(tr_kv_cache_t *kv, int32_t slot);
/* Some slot that others need the half of is absorbed; false: there is none.  More:
 * one of which more may come back than tr_kv_lend_idle says. */
bool tr_kv_lend_absorb_one(tr_kv_cache_t *kv);
bool tr_kv_lend_more(tr_kv_cache_t *kv);
/* What slots borrow, or whether they can absorb, may be otherwise than it was. */
void tr_kv_lend_told(const tr_kv_cache_t *kv);
/* Pages that can be had of what is kept compressed. */
uint64_t tr_kv_lend_idle(const tr_kv_cache_t *kv);
/* Tokens and pages of kept slots that others use are counted once. */
void tr_kv_lend_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out);
bool tr_kv_lend_sound(const tr_kv_cache_t *kv);

/* kv_host_cut.c: tr_kv_ops_t. */
uint32_t tr_kv_host_held(const tr_kv_cache_t *kv, int32_t slot,
                         uint32_t pages[TR_KV_LAYOUTS_MAX]);
uint64_t tr_kv_host_copy_pages(const tr_kv_cache_t *kv, int32_t from,
                               uint32_t c);
tr_status_t tr_kv_host_copy(tr_kv_cache_t *kv, int32_t from, int32_t to,
                            uint32_t c, bool evict);
bool tr_kv_host_can_absorb(const tr_kv_cache_t *kv, int32_t to);
void tr_kv_host_absorb_slot(tr_kv_cache_t *kv, const tr_kv_absorb_t *absorb);
tr_status_t tr_kv_host_restore(tr_kv_cache_t *kv,
                               const tr_kv_restore_t *restore);

/* kv_host_files.c */
extern const tr_kv_files_t tr_kv_host_files;

/* What both kinds of cache do alike (kv_cache.c). */
/* Checks the configuration, plans pages. */
tr_status_t tr_kv_shape(tr_kv_cache_t *kv, const tr_kv_config_t *config,
                        tr_error_t *err);
/* Which part of a table's row is whose, for a pool of so many pages. */
void tr_kv_lay_tables(tr_kv_cache_t *kv, uint32_t pages);
/* The free slots, and their policies. */
bool tr_kv_slots_memory(tr_kv_cache_t *kv);
/* A slot of this policy, *open being what the manager is told; false: none is
 * free.  And back. */
bool tr_kv_take_slot(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                     tr_kv_open_t *open);
void tr_kv_drop_slot(tr_kv_cache_t *kv, int32_t slot);

/* kv_usage.c */
/* Where the tokens of a slot stand, summed over heads. */
typedef struct {
    uint64_t uncompressed, window, tiered[TR_KV_TIERS_MAX];
} tr_kv_standing_t;

/* The usage of a slot of so many tokens, whose pages take `bytes`. */
void tr_kv_usage_fill(const tr_kv_cache_t *kv, const tr_kv_policy_t *p,
                      uint32_t tokens, uint64_t bytes,
                      const tr_kv_standing_t *at, tr_kv_usage_t *out);
/* Bytes and shares of a slot with these counts, [heads][TR_KV_TIERS_MAX]. */
void tr_kv_usage_of(const tr_kv_cache_t *kv, int32_t slot,
                    const uint32_t *counts, const tr_page_plan_t *plan,
                    tr_kv_usage_t *out);
/* The most pages that a head can need for n compressed tokens: all in the tier
 * with the fewest tokens a page, but for one in each other. */
uint32_t tr_kv_worst_copy(const tr_page_plan_t *plan, const tr_kv_policy_t *p,
                          uint32_t n);
/* Pages of a head's window when its last prompt had n tokens. */
uint32_t tr_kv_policy_window(const tr_page_plan_t *plan,
                             const tr_kv_policy_t *p, uint32_t n);
/* Adds a policy's levels to those in level[0 .. *n), each once; false: there
 * are more than `room`. */
bool tr_kv_levels_of(const tr_kv_policy_t *p, tr_kv_level_t *level, uint32_t *n,
                     uint32_t room);
/* Index of a level's layout in a plan, -1: it has none. */
int tr_kv_layout_of(const tr_page_plan_t *plan, const tr_kv_level_t *level);

#endif
