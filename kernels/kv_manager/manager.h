/*
 * manager.h: the page manager: who has which page of a KV cache.
 *
 * It decides what DiffKV calls memory management (SOSP 2025, section 5.2 and
 * 5.3): slots, block tables, the ring of free pages, the moves of a step, and
 * the plan of a prompt.  What becomes of a token is a rule's choice
 * (kv_rule.h).  There is one manager, in plain C, for the host and for a
 * device: its programs (manager_core.h and the files that include it) know
 * neither.  Two drivers say which blocks run them: host.c, and
 * kernels/cuda/kv/manager.cu.
 *
 * The life of a page:
 *
 *      ring[start, end): the free pages, by time
 *        |                          ^
 *        | fetch, from start        | store, at end
 *        v                          |
 *      a head's row of the table; owner[page] is the slot
 *
 *      | uncompressed | window ..  | tier 0 > .. < tier 1 | tier 2 > .. < tier 3 |
 *      0              at_window    at_pair[0]             at_pair[1]
 *
 *   fetched by   step            uncompressed pages for a chunk of a prompt;
 *                                then, when a head's window or tier begins a
 *                                page, that one
 *                plan_prompts    window and tiers, into to_tables
 *                take            all that the slot had
 *   stored by    install_prompts all that the slot had; what is in to_tables
 *                                takes its place
 *                close, give     all that the slot has
 *
 * One sum in the order (request, layer, head, tier) gives each head its range
 * of the ring, so that all heads take and give side by side, and page numbers
 * do not depend on threads; but for absorb, whose heads store as they come.
 *
 * The order of calls for a slot, each of them for many slots at once:
 *
 *   open -> prompt -> step, step ..       uncompressed pages, chunk by chunk
 *        -> plan_prompts                  what each token becomes, new pages
 *           (kv_compress moves the tokens)
 *        -> install_prompts               old pages come back
 *        -> step, step ..                 one token a request and step
 *        -> close, or give and take when it is preempted
 *   .. -> step -> plan_prompts, ..        by tr_kv_rule_stage, and some layers
 *        -> prompt -> step, ..            at a time: the prompt goes on
 *   open -> plan_cuts                     the beginning of another slot
 *           (kv_compress moves the tokens)
 *        -> install_cuts -> prompt        a later turn of it
 *        -> absorb                        takes over what it borrows
 *   tally                                 what each slot holds, for the host
 *
 * Heads of layers that slide (kv_view.h) are not compressed with the others: they
 * keep uncompressed pages from entry `near_from` on, one after the other, as many
 * as their reach sees.  What a prompt had in front of that comes back at its end;
 * then the oldest page becomes the next one.
 *
 * Uncompressed pages can be kept for others, block by block (manager_share.h): a
 * slot gives them up, and others put them into their tables or copy them.  They
 * are then no slot's, and come back to the ring when their keeper says so.
 *
 * Pages of tiers can be lent (manager_cut.h): they stay their slot's, and stand in
 * the tables of others, too, in front of each tier, where all tokens are frozen.  Who
 * lends some is neither written nor closed, but absorbed, as long as anybody borrows
 * them; who counts them (engine/kv/kv_kept.c) sees to that.
 *
 * A request for which there are no pages is stalled: nothing of it changes, its
 * bit is set in the report, and seq_slot is -1, so that kernels pass it over.
 * Others behind it go on.
 *
 * Sizes are in tokens, pages or bytes as said; a "head" is a (layer, KV head).
 * Nothing here allocates, waits or fails: what cannot be is refused and
 * counted.
 */
#ifndef TR_KV_MANAGER_H
#define TR_KV_MANAGER_H

#include "kernels/kv_rule.h"

#define TR_KV_SLOTS_MAX 4096u

/* ---- what goes in ------------------------------------------------------- */

typedef struct {
    uint32_t slots;       /* at most TR_KV_SLOTS_MAX */
    uint32_t pages;       /* of the pool, below 2^30 */
    uint32_t max_len;     /* tokens of one sequence */
    uint32_t max_prompts; /* compressed by one launch, at most */
    uint32_t blocks;      /* kept for others, at most; 0: none are */
    uint32_t reach;       /* the longest of the layers that slide */
} tr_kv_manager_size_t;

/* A slot is taken: `seq` before its first token, as tr_kv_open makes it. */
typedef struct {
    int32_t slot;
    tr_kv_seq_t seq;
    tr_kv_rule_t rule;
} tr_kv_open_t;

/* tr_kv_prompt: the prompt now computed ends at `len`. */
typedef struct {
    int32_t slot;
    uint32_t len;
} tr_kv_begin_t;

#define TR_KV_ANY UINT32_MAX
#define TR_KV_NEXT UINT32_MAX
#define TR_KV_ALL_PAGES UINT32_MAX

/* tr_kv_reserve.  Who asks may not know yet that an earlier step stalled:
 * `from` says how many tokens it takes the slot to have (TR_KV_ANY: as many as
 * there are), and the request stalls when that is not so. */
typedef struct {
    int32_t slot; /* -1: no request, to fill a batch up */
    uint32_t from;
    uint32_t len; /* positions [0, len), or TR_KV_NEXT: one more */
} tr_kv_page_request_t;

/* tr_kv_compress.  rule: tr_kv_policy_for(policy, len).  layers: so many are
 * planned, moved and installed at a time, so that old pages of the first are new
 * ones of the others; 0: all.  One such request is a launch of its own. */
typedef struct {
    int32_t slot;
    uint32_t len;
    uint32_t layers;
    tr_kv_rule_t rule;
} tr_kv_complete_t;

/* How many times the layers of such a request are moved and installed. */
TR_HD uint32_t
tr_kv_parts(uint32_t layers, uint32_t at_once)
{
    return at_once == 0 ? 1 : (layers + at_once - 1) / at_once;
}

/* The uncompressed half of tr_kv_fork: pages for positions [0, len) of `to`
 * were granted before, and nothing of it was computed. */
typedef struct {
    int32_t from, to;
    uint32_t len;
} tr_kv_fork_t;

/* Which pages of a slot that is cut the new one gets as they are: none; those that
 * are borrowed already; all of which every token is in front of the cut. */
typedef enum {
    TR_KV_CUT_COPIES,
    TR_KV_CUT_BORROWS,
    TR_KV_CUT_SHARES
} tr_kv_by_t;

/* The first len tokens of a compressed slot, each at its level, into another one
 * that was just opened with the same levels (manager_cut.h). */
typedef struct {
    int32_t from, to;
    uint32_t len;
    tr_kv_by_t by;
} tr_kv_cut_t;

/* `from` is closed.  Its pages that `to` borrows are `to`'s own from now on; the others
 * come back. */
typedef struct {
    int32_t from, to;
} tr_kv_absorb_t;

/* A slot just opened gets pages for tokens that come from elsewhere. */
typedef struct {
    int32_t slot;
    uint32_t len, window_from, sinks; /* of tr_kv_seq_t; base is len */
    const uint32_t *count;            /* [heads][TR_KV_TIERS_MAX] */
} tr_kv_restore_t;

/* What becomes of a block: page `entry` of each head of a slot, and the kept
 * block that has the number `block` (manager_share.h). */
typedef enum {
    TR_KV_LEND,   /* the kept block becomes the slot's next one */
    TR_KV_CEDE,   /* the slot's first own block is kept from now on */
    TR_KV_MERGE,  /* ... or its like is, which takes its place */
    TR_KV_COPY,   /* the slot's own block becomes like the kept one */
    TR_KV_RECLAIM /* nobody reads the kept one any more: its pages come back */
} tr_kv_share_kind_t;

typedef struct {
    int32_t slot; /* not looked at to reclaim, nor is entry */
    uint32_t entry, block;
} tr_kv_share_t;

/* ---- what comes out ----------------------------------------------------- */

typedef enum {
    TR_KV_GRANTED,
    TR_KV_STALLED, /* no pages, or not at `from` */
    TR_KV_REFUSED  /* no such slot, or lengths that cannot be */
} tr_kv_result_t;

/* For the host, to be copied whenever it likes. */
typedef struct {
    uint64_t start, end; /* of the free ring: end - start pages are free */
    uint64_t steps;     /* launches of step so far: which one the bits are of */
    uint32_t n_stalled; /* in the last step */
    uint32_t n_refused; /* in all */
    uint32_t faults;    /* pages that were not where they must be; not 0: the
                          * cache cannot be trusted any more */
    uint32_t pages[TR_KV_LAYOUTS_MAX];      /* in use, by layout */
    uint32_t stalled[TR_KV_SLOTS_MAX / 32]; /* bit by slot, last step */
} tr_kv_report_t;

#define TR_KV_EDGES 2u

/* What a slot holds, all heads together. */
typedef struct {
    uint32_t tokens; /* positions that were reserved */
    uint32_t base, window_from, sinks;
    uint32_t uncompressed_pages;    /* of a head */
    uint32_t near_pages, near_from; /* of one that slides: up to, and from */
    uint32_t pages; /* of all heads, also when they are elsewhere */
    /* Pages of all heads in which tokens are frozen; of these, those of other
     * slots, which are not among `pages`. */
    uint32_t frozen_pages, borrowed;
    bool open;
    bool uncompressed; /* coming tokens are uncompressed */
    bool out;
    uint32_t tiered[TR_KV_TIERS_MAX];     /* tokens by tier, modulo 2^32 */
    uint32_t tier_pages[TR_KV_TIERS_MAX]; /* its own */
    /* heads that can take a page for a tier in the next step, at most; and in
     * the step after that */
    uint32_t edge[TR_KV_EDGES];
} tr_kv_tally_t;

/* One prompt between plan and install. */
typedef struct {
    tr_kv_seq_t from, to;
    int32_t slot;   /* -1: stalled or refused */
    int32_t source; /* whose tokens move, -1: nobody's */
    uint32_t n_uncompressed, observe;
    uint32_t len, uncompressed_pages, pages, old_pages;
    uint32_t layers, at_layer; /* at a time, 0: all; the next of them */
    uint32_t peak; /* most that it has taken from the ring at any time */
    uint32_t near_from, near_to; /* heads that slide give these pages back */
    uint64_t first;              /* in the ring: of the new pages */
    uint32_t given;    /* of all old pages, those before this prompt's */
    uint32_t borrowed; /* of a cut: pages */
    tr_kv_by_t by;
    bool granted, move;
    tr_kv_rule_t rule;
} tr_kv_job_t;

/* ---- the manager -------------------------------------------------------- */

/* Segments of a layout that the manager reads. */
typedef struct {
    uint32_t tokens, score, position, recent;
    uint32_t position_bytes;
} tr_kv_segments_t;

struct tr_kv_slot;
struct tr_kv_head_plan;
struct tr_kv_need;

/* Arrays in the one block of memory that the caller gave, of the device or
 * here.  A plain value that may be copied.  All are written by the manager's
 * programs alone, except: `candidate` by attention, `tables` by who moves a
 * slot out or in (give, take), and pages' contents by kernels. */
typedef struct {
    tr_kv_view_t view; /* for all kernels; layouts as in the view given */

    /* In this order and without gaps but for alignment, so that the host copies
     * them together. */
    tr_kv_report_t *report; /* [1] */
    uint8_t *result;      /* [slots] tr_kv_result_t by request of the last step
                             * or plan_prompts */
    tr_kv_tally_t *tally; /* [slots] by slot */

    /* of the last step, by request */
    int32_t *seq_slot;  /* [slots] slot, -1: passed over (tr_rows_t.seq_slot) */
    uint32_t *position; /* [slots] of its first new token, when it asked for one
                         * that it did not have (row_pos of a decode step) */

    /* of the last plan_prompts, by request */
    tr_kv_compress_t *compress; /* [prompts] for the kernel that moves the
                                 * tokens; slot -1: nothing to move */
    tr_kv_job_t *job;           /* [prompts] */
    int32_t *to_tables;         /* [prompts][heads][table_len] new pages */
    int8_t *dest;      /* [prompts][heads][dest_len] what becomes of each
                                 * token (tr_kv_compress_t) */
    uint32_t *stay;    /* [prompts][heads][TR_KV_TIERS_MAX] and how many in
                                 * front stay (the same) */
    uint32_t dest_len; /* max_len, rounded up to 16 */

    tr_kv_manager_size_t size;
    uint32_t heads, chunks; /* layers * kv_heads, in blocks of a step */
    uint32_t near;          /* of the heads, those that slide */
    tr_kv_segments_t place[TR_KV_LAYOUTS_MAX];

    /* pages: the ring's index i is ring[i modulo pages]; [start, end) of the
     * report are free */
    int32_t *ring;       /* [pages] page ids */
    uint32_t *owner;     /* [pages] slot by page, UINT32_MAX: free, one less:
                          * kept for others */
    int32_t *kept;       /* [blocks][heads] their pages, */
    int32_t *kept_token; /* [blocks][tokens of a page] and what the history said
                          * of them, where there is one */

    uint32_t *order;      /* [heads] those that slide come last */
    tr_kv_seq_t *sliding; /* [1] tr_kv_view_t */

    /* slots, as kernels see them: kernels.h */
    int32_t *tables;  /* [slots][heads][table_len], -1: no page */
    tr_kv_seq_t *seq; /* [slots] */
    uint32_t *count;  /* [slots][heads][TR_KV_TIERS_MAX] */
    /* the same, where seq.frozen: frozen tokens, and how many of them stand in
     * pages of other slots; whole pages */
    uint32_t *frozen, *borrowed;
    tr_kv_move_t *move; /* [slots][heads] of the last step that was granted,
                             * or asked for */
    tr_kv_candidate_t *candidate; /* [slots][heads][TR_KV_TIERS_MAX] */
    struct tr_kv_slot *slot;      /* [slots] and beyond that: manager_core.h */

    /* of one launch */
    struct tr_kv_need *need; /* [slots] by request */
    tr_kv_seq_t *closed;     /* [slots] of the requests of a close */
    int8_t *want;            /* [slots][heads] the tier, or TR_KV_WINDOW, for
                                   * which a head takes a page in a step, or
                                   * TR_KV_NOWHERE */
    uint32_t *part;          /* [slots][chunks] how many do */
    uint32_t *before;        /* [slots][heads] pages of heads before */
    struct tr_kv_head_plan *head; /* [prompts][heads] */
    uint32_t *ticket;             /* device: blocks that have arrived */
} tr_kv_manager_t;

#endif
