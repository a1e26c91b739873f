/*
 * manager.h: who has which page, decided on the device.
 *
 * What engine/kv/kv_cache.h does for the CPU: slots, page tables, the ring of free
 * pages, the moves of a step and the plan of a prompt, page for page the same
 * (DiffKV, SOSP 2025, section 5.2 and 5.3).  Decisions are those of kv_rule.h.
 * The host says which requests go on and for how long; it never waits for the
 * device, but reads a small report whenever a copy of it has arrived.
 *
 *   create
 *   open -> prompt -> step, step ..       dense pages, chunk by chunk
 *        -> plan_prompts                  what each token becomes, new pages
 *           (kv_compress moves the tokens)
 *        -> install_prompts               old pages come back
 *        -> step, step ..                 one token a request and step
 *        -> close, or give and take when it is preempted
 *   tally                                 what each slot holds, for the host
 *
 * Every launcher takes many requests at once: all layers and heads are planned
 * side by side, and one sum in the order (request, layer, list, level) gives
 * each head its range of the ring.  A request for which there are no pages is
 * stalled: nothing of it changes, its bit is set in the report, and seq_slot is
 * -1, so that kernels pass it over.  Others behind it go on.
 *
 * Launchers are as cuda.h says: a stream, no allocation, no waiting, can be
 * captured into a graph; they must run in the order of one stream.  Arrays are
 * device memory and borrowed until the launch has run.
 */
#ifndef TR_CUDA_MANAGER_H
#define TR_CUDA_MANAGER_H

#include "kernels/kv_rule.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/layers/model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TR_CUDA_SLOTS_MAX 4096u

/* ---- what goes in ------------------------------------------------------- */

typedef struct {
    uint32_t slots;       /* at most TR_CUDA_SLOTS_MAX */
    uint32_t pages;       /* of the pool, below 2^30 */
    uint32_t max_len;     /* tokens of one sequence */
    uint32_t max_prompts; /* compressed by one launch, at most */
} tr_cuda_manager_size_t;

/* A slot is taken: `seq` before its first token, as tr_kv_open makes it. */
typedef struct {
    int32_t slot;
    tr_kv_seq_t seq;
    tr_kv_rule_t rule;
} tr_cuda_open_t;

/* tr_kv_prompt: the prompt now computed ends at `len`. */
typedef struct {
    int32_t slot;
    uint32_t len;
} tr_cuda_begin_t;

#define TR_CUDA_ANY UINT32_MAX
#define TR_CUDA_NEXT UINT32_MAX

/* tr_kv_reserve.  The host may not know yet that an earlier step stalled:
 * `from` says how many tokens it takes the slot to have (TR_CUDA_ANY: as many
 * as there are), and the request stalls when that is not so. */
typedef struct {
    int32_t slot; /* -1: no request, to fill a batch up */
    uint32_t from;
    uint32_t len; /* positions [0, len), or TR_CUDA_NEXT: one more */
} tr_cuda_ask_t;

/* tr_kv_compress.  rule: tr_kv_policy_for(policy, len). */
typedef struct {
    int32_t slot;
    uint32_t len;
    tr_kv_rule_t rule;
} tr_cuda_complete_t;

/* The dense half of tr_kv_fork: pages for positions [0, len) of `to` were
 * granted before, and nothing of it was computed. */
typedef struct {
    int32_t from, to;
    uint32_t len;
} tr_cuda_fork_t;

/* ---- what comes out ----------------------------------------------------- */

typedef enum {
    TR_CUDA_GRANTED,
    TR_CUDA_STALLED, /* no pages, or not at `from` */
    TR_CUDA_REFUSED  /* no such slot, or lengths that cannot be */
} tr_cuda_result_t;

/* For the host, to be copied whenever it likes. */
typedef struct {
    uint64_t start, end; /* of the free ring (engine/kv/kv_pages.h): end - start
                          * pages are free */
    uint64_t steps;     /* launches of step so far: which one the bits are of */
    uint32_t n_stalled; /* in the last step */
    uint32_t n_refused; /* in all */
    uint32_t faults;    /* pages that were not where they must be; not 0: the
                          * cache cannot be trusted any more */
    uint32_t pages[TR_KV_LAYOUTS_MAX];        /* in use, by layout */
    uint32_t stalled[TR_CUDA_SLOTS_MAX / 32]; /* bit by slot, last step */
} tr_cuda_report_t;

#define TR_CUDA_EDGES 2u

/* What a slot holds, all heads together. */
typedef struct {
    uint32_t tokens; /* positions that were reserved */
    uint32_t base, window_from;
    uint32_t dense_pages; /* of a head */
    uint32_t pages;       /* of all heads, also when they are elsewhere */
    bool open;
    bool dense; /* coming tokens are dense */
    bool out;
    uint32_t listed[TR_KV_LISTS_MAX]; /* tokens by list, modulo 2^32 */
    /* heads that can take a page for a list in the next step, at most; and in
     * the step after that */
    uint32_t edge[TR_CUDA_EDGES];
} tr_cuda_tally_t;

/* One prompt between plan and install. */
typedef struct {
    tr_kv_seq_t from, to;
    int32_t slot; /* -1: stalled or refused */
    uint32_t n_dense, observe;
    uint32_t len, dense_pages, pages, old_pages;
    uint64_t first; /* in the ring: of the new pages */
    uint32_t given; /* of all old pages, those before this prompt's */
    bool granted, move;
    tr_kv_rule_t rule;
} tr_cuda_job_t;

/* ---- the manager -------------------------------------------------------- */

/* Segments of a layout that the manager reads. */
typedef struct {
    uint32_t tokens, score, position, recent;
    uint32_t position_bytes;
} tr_cuda_place_t;

struct tr_cuda_slot;
struct tr_cuda_head_plan;
struct tr_cuda_wish;

/* Pointers into the one block of device memory that the caller gave.  A plain
 * value that may be copied. */
typedef struct {
    tr_kv_view_t view; /* for all kernels; layouts as in the view given */

    /* In this order and without gaps but for alignment, so that the host copies
     * them together: result is tr_cuda_result_t by request of the last step or
     * plan_prompts, tally is by slot. */
    tr_cuda_report_t *report;
    uint8_t *result;
    tr_cuda_tally_t *tally;

    /* of the last step, by request */
    int32_t *seq_slot;  /* slot, -1: passed over (tr_rows_t.seq_slot) */
    uint32_t *position; /* of its first new token, when it asked for one that it
                         * did not have (row_pos of a decode step) */

    /* of the last plan_prompts, by request */
    tr_kv_compress_t *compress; /* for the kernel that moves the tokens; slot
                                 * -1: nothing to move */
    tr_cuda_job_t *job;
    int32_t *to_tables; /* [prompts][layers][lists][table_len] */
    int8_t *dest;       /* [prompts][layers][lists][dest_len] */
    uint32_t dest_len;

    /* the manager's own */
    tr_cuda_manager_size_t size;
    uint32_t heads, chunks; /* layers * lists, in blocks */
    tr_cuda_place_t place[TR_KV_LAYOUTS_MAX];
    int32_t *tables, *ring;
    uint32_t *owner; /* slot by page, UINT32_MAX: free */
    tr_kv_seq_t *seq;
    uint32_t *count;
    tr_kv_move_t *move;
    tr_kv_victim_t *victim;
    struct tr_cuda_slot *slot;
    struct tr_cuda_wish *wish;      /* [slots] */
    tr_kv_seq_t *closed;            /* [slots] of the requests of a close */
    int8_t *want;                   /* [slots][heads] */
    uint32_t *part;                 /* [slots][chunks] */
    uint32_t *before;               /* [slots][heads] pages of heads before */
    struct tr_cuda_head_plan *head; /* [max_prompts][heads] */
    uint32_t *ticket;               /* blocks that have arrived */
} tr_cuda_manager_t;

/* Bytes of the memory for such a manager; 0: a size outside of what is said
 * above.  shape: the geometry of tables and pages as tr_kv_view gives it; its
 * arrays are not looked at, except the layouts, on the host. */
size_t tr_cuda_manager_memory(const tr_kv_view_t *shape,
                              const tr_cuda_manager_size_t *size);

/* memory: so many bytes of the device, 256-byte aligned, owned by the caller;
 * all pages are free and all slots closed.  *out is complete on return. */
int tr_cuda_manager_create(const tr_cuda_stream_t *s, const tr_kv_view_t *shape,
                           const tr_cuda_manager_size_t *size, void *memory,
                           tr_cuda_manager_t *out);

/* Slots of one call are all different.  n: at most size.slots (max_prompts for
 * prompts); 0 is nothing.  TR_KERNEL_BADARG: n beyond that. */
int tr_cuda_manager_open(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                         const tr_cuda_open_t *open, uint32_t n);
int tr_cuda_manager_prompt(const tr_cuda_stream_t *s,
                           const tr_cuda_manager_t *m,
                           const tr_cuda_begin_t *begin, uint32_t n);
int tr_cuda_manager_step(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                         const tr_cuda_ask_t *ask, uint32_t n);
/* Pages come back in the order of the slots given. */
int tr_cuda_manager_close(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                          const int32_t *slots, uint32_t n);

/* All pages are granted, in the order of the requests, before any old page
 * comes back; between the two launches the slot still has its old tables. */
int tr_cuda_manager_plan_prompts(const tr_cuda_stream_t *s,
                                 const tr_cuda_manager_t *m,
                                 const tr_cuda_complete_t *complete,
                                 uint32_t n);
int tr_cuda_manager_install_prompts(const tr_cuda_stream_t *s,
                                    const tr_cuda_manager_t *m, uint32_t n);

/* Copies pages, scores included, and from where `recent` was counted; also the
 * tokens of history, unless that is NULL.  No slot is both from and to, or twice
 * to.  What cannot be is refused, alone. */
int tr_cuda_manager_fork(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                         const tr_cuda_history_t *history,
                         const tr_cuda_fork_t *fork, uint32_t n);

/* tally[i] for the slots [0, n), n at most size.slots.  Bytes moved: counts of
 * open slots. */
int tr_cuda_manager_tally(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                          uint32_t n);

/* Preemption (tr_kv_swap_out, tr_kv_swap_in); store.h copies the pages and
 * rewrites the tables.  give: the slot's pages, as the copy listed them, come
 * back to the ring, n [1] of them, or nothing happens when n is 0.  The slot is
 * out: steps and prompts refuse it.  take: before it comes in, pages are granted
 * into pages[], as many as it has (at most max), and *n is their number, or 0
 * when there are not so many; the slot is in again. */
int tr_cuda_manager_give(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                         int32_t slot, const int32_t *pages, const uint32_t *n);
int tr_cuda_manager_take(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                         int32_t slot, int32_t *pages, uint32_t *n,
                         uint32_t max);

#ifdef __cplusplus
}
#endif

#endif
