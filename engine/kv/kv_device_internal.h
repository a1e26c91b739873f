/*
 * What the files of a device's KV cache share (kv_device.h):
 *
 *   kv_device.c         opens it: memory, layouts, manager
 *   kv_device_list.c    the list of commands for the device, and its launches
 *   kv_device_slots.c   kv_cache.h's functions: grants pages, adds commands
 *   kv_device_swap.c    slots that go out and come in, in pieces
 *   kv_device_share.c   blocks that are shared, and kept for later requests
 *   kv_device_cut.c     copies of what is kept compressed, room for what comes
 *   kv_device_files.c   pages to and from files and the shelf
 *   kv_device_settle.c  batches: what the device reports of each
 *   kv_device_usage.c   memory and tokens that slots hold
 *   kv_device_guard.c   the guard: how far compressing a prompt moves attention
 *
 * The device runs behind the host, so the host keeps a mirror: slots and
 * sequences in the cache's own manager (kv_internal.h) as they will be on the
 * device once all commands have run, none of them stalled.  A batch has a serial
 * number; a command belongs to the batch that it precedes.
 *
 * How many pages are free at least?  Those of the last report, less the most
 * that all commands since may take, plus the least that they give back.  The
 * device runs commands in the list's order, and the rows of a batch last: so the
 * sum up to any command is a bound for the device at that command.
 */
#ifndef TR_KV_DEVICE_INTERNAL_H
#define TR_KV_DEVICE_INTERNAL_H

#include "kv_device.h"
#include "kv_internal.h"

#define TR_KV_NEVER UINT64_MAX

/* ---- commands ----------------------------------------------------------- */

typedef enum {
    TR_KV_DO_OPEN,
    TR_KV_DO_BEGIN,
    TR_KV_DO_FORK,
    TR_KV_DO_LEND,
    TR_KV_DO_CEDE,
    TR_KV_DO_COPY,
    /* from here on the ring of free pages changes: kept in order */
    TR_KV_DO_ASK,
    TR_KV_DO_COMPLETE,
    TR_KV_DO_STAGES, /* the same, some layers at a time: one at a time */
    TR_KV_DO_CUT,
    TR_KV_DO_ABSORB,
    TR_KV_DO_RESTORE,
    TR_KV_DO_OUT,
    TR_KV_DO_IN,
    TR_KV_DO_CLOSE,
    TR_KV_DO_MERGE,
    TR_KV_DO_RECLAIM
} tr_kv_do_t;

typedef struct {
    int32_t slot;
    uint32_t uncompressed_pages;
    uint32_t near_pages, near_from; /* of heads that slide */
    uint32_t pages;                 /* at most */
    uint32_t first, last;           /* which of them move now */
    bool ends;                      /* these are the last */
    bool take;                      /* in: the pages of all are granted first */
    bool drop;                      /* nothing is copied: it is closed next */
    uint32_t at; /* out: their ids in the list's; in: in g->arrived */
} tr_kv_swap_t;

/* A slot of which not all pages have gone into a list yet. */
typedef struct {
    tr_kv_do_t kind; /* OUT or IN; else it does not move */
    tr_kv_swap_t all;
    uint32_t done; /* pages that have */
    int32_t id;    /* of host memory, of the next; out */
    bool taken;    /* in */
} tr_kv_moving_t;

typedef struct {
    tr_kv_cut_t cut;
    uint32_t tokens; /* that the slot has which is cut, at most */
} tr_kv_cut_command_t;

typedef struct {
    union {
        tr_kv_open_t open;
        tr_kv_begin_t begin;
        tr_kv_fork_t fork;
        tr_kv_page_request_t ask;
        tr_kv_complete_t complete;
        tr_kv_cut_command_t cut;
        tr_kv_absorb_t absorb;
        tr_kv_restore_t restore; /* its counts are the list's */
        tr_kv_swap_t move;       /* out and in */
        int32_t close;
    };
    uint32_t next; /* of its group */
} tr_kv_command_t;

/* One of manager_share.h: a prompt may have thousands. */
typedef struct {
    tr_kv_share_t what;
    uint32_t next; /* of its group */
} tr_kv_share_command_t;

/* Commands of one launch. */
typedef struct {
    tr_kv_do_t kind;
    uint32_t n, first, last; /* in command, or in share */
} tr_kv_group_t;

#define TR_KV_NO_GROUP UINT32_MAX

typedef struct {
    tr_kv_command_t *command;     /* [room] */
    tr_kv_share_command_t *share; /* [share_room] */
    tr_kv_group_t *group;         /* [room + share_room] */
    uint32_t room, share_room;
    uint32_t n, n_shares, n_groups;
    uint32_t ring; /* the last group that changes the ring */
    /* The last one that lends or copies kept blocks, that makes some, and that
     * does away with some; -1: there is none. */
    int64_t lends, cedes, reclaims;
    int32_t *ids; /* [swap pages] where slots that go out go */
    uint32_t n_ids;
    uint32_t n_moved; /* pages of slots that go out and come in */
    uint32_t *counts; /* [heads][TR_KV_TIERS_MAX] of a restore, the only one */
    bool restores;
    uint64_t number; /* of the list, for tr_kv_mirror_t.list */
} tr_kv_list_t;

/* ---- slots -------------------------------------------------------------- */

/* What becomes of a compression. */
typedef enum {
    TR_KV_NO_TRIAL,
    TR_KV_SURE,  /* it fits for certain, and is not yet reported */
    TR_KV_TRIED, /* it may fit: the report will tell */
    TR_KV_DONE   /* it did fit; tr_kv_compress has not said so yet */
} tr_kv_trial_t;

/* What is known of a slot besides tr_kv_slot_t, whose `pages` are the most that
 * it may hold. */
typedef struct {
    uint64_t opened;  /* the first batch that it can be in */
    uint64_t touched; /* the batch of its last command */
    uint64_t low;     /* pages that it holds at least */
    uint32_t frozen;  /* those in which tokens are frozen, at least */
    uint32_t told;    /* tokens that commands have told the device of */

    tr_kv_trial_t trial;
    uint64_t trial_of, trial_returns;
    uint32_t trial_len;
    /* g->returns when it was refused, or stalled last; TR_KV_NEVER: it was
     * not */
    uint64_t denied, stalled;

    uint64_t needed; /* g->needs when it was granted its next token, */
    uint64_t need;   /* which takes so many pages */
    uint64_t row_of[TR_KV_IN_FLIGHT];
    uint32_t row_pos[TR_KV_IN_FLIGHT]; /* in the batch row_of */

    uint64_t list;  /* the last list with a command for it, */
    uint32_t group; /* and that command's group */

    int32_t ids; /* the first of its pages in host memory, -1: none */
    uint32_t n_ids;
    tr_kv_moving_t moving;

    uint32_t steps; /* since a report had its counts; TR_KV_EDGES or more: too
                     * many to go by them, or no report had */
    bool counted;
    tr_kv_tally_t last; /* of the last report */
} tr_kv_mirror_t;

/* ---- batches ------------------------------------------------------------ */

/* Of each batch under way, and of the next, whose commands are collected. */
typedef struct {
    uint64_t claimed, returned; /* pages */
    uint64_t ceded;             /* pages that are kept and no slot's any more */
    uint64_t returns;           /* g->returns before its step */
    uint32_t n_rows, n_slots;   /* slots that its report tells of */
    uint32_t n_completed;       /* compressions asked for, */
    uint32_t n_cuts;            /* copies, */
    uint32_t n_refused;         /* and launched of both */
    tr_kv_device_row_t *rows;   /* [max_seqs] */
} tr_kv_batch_t;

#define TR_KV_BATCHES (TR_KV_IN_FLIGHT + 1u)

/* Of one batch: compressions and copies, at most `slots` of each. */
#define TR_KV_REFUSED(slots) (2 * (slots))

/* Pinned memory of a batch: what is uploaded, and what comes back. */
typedef struct {
    uint8_t *in;
    int32_t *ids;
    uint32_t *counts;
    uint8_t *out;
    uint32_t *refused;
} tr_kv_pinned_t;

typedef struct tr_kv_gpu_files tr_kv_gpu_files_t; /* kv_device_files.c */

typedef struct {
    tr_kv_cache_t kv; /* what everybody has a pointer to */
    tr_kv_device_t device;
    tr_kv_manager_t m;
    tr_kv_mirror_t *mirror; /* [slots] */
    tr_kv_list_t list;
    bool failed;  /* a launch did */
    bool flushed; /* commands were launched that no batch has reported */

    uint64_t next;         /* serial of the coming batch, from 1 */
    uint64_t oldest;       /* of those under way */
    uint64_t free;         /* pages, by the last report, */
    uint64_t reported;     /* of this batch */
    uint64_t returns;      /* how often something was given back */
    uint64_t needed;       /* pages that rows to come may take */
    uint64_t needs;        /* how often that began anew */
    tr_kv_report_t report; /* the last */
    tr_kv_batch_t batch[TR_KV_BATCHES];
    tr_kv_pinned_t pinned[TR_KV_IN_FLIGHT];

    /* device memory; input has asks [max_seqs], then commands */
    uint8_t *pool, *memory, *input;
    size_t input_size, answer_size;
    void *compress_work, *swap_work;
    uint32_t *refused;   /* [TR_KV_REFUSED(slots)] by compression and copy of a
                        * batch */
    int32_t *ids;        /* as in the list, */
    uint32_t *counts_in; /* and its counts */
    int32_t *moved[2];   /* [swap_max] pages of one slot, there and here */
    uint32_t *n_moved;   /* [1] */
    int32_t *arrived;    /* [swap_max + 1] of each slot that comes in, how many
                          * pages it got, and these */
    uint32_t swap_max;
    /* Slots that go out or come in; pages of them before one batch; those that
     * come in, and what of `arrived` is theirs; pages that those which go out
     * surely give back in pieces to come */
    int32_t *moving; /* [slots] */
    uint32_t n_moving, piece, n_in, arriving;
    uint64_t leaving;
    uint32_t *counts;   /* pinned, of all slots; NULL: nobody has asked */
    uint64_t counts_of; /* list.number when they were fetched */
    /* Of config.guard: queries [layers][QUERIES][guard_ld] and what a comparison
     * found, on the device; the same in pinned memory, when the batch of
     * guard_of has come back, if guard_slot is not -1 */
    uint8_t *guard_queries;
    tr_kv_change_t *guard_change, *guard_told;
    uint64_t guard_of;
    int32_t guard_slot;
    double *alpha;                                   /* of policies, by head */
    const double *alpha_host[TR_KV_LAYOUTS_MAX * 4]; /* whose they are */
    uint32_t n_alpha;

    tr_kv_gpu_files_t *files[TR_KV_LANES]; /* NULL: there are none */

    /* pages of host memory: those of a slot, and the free ones, are chains */
    int32_t *id_next; /* [swap.n] */
    int32_t id_free;
    uint32_t n_free_ids;
} tr_kv_gpu_t;

/* The smaller one. */
static inline uint64_t
tr_kv_less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline tr_kv_gpu_t *
tr_kv_gpu(const tr_kv_cache_t *kv)
{
    return (tr_kv_gpu_t *) (uintptr_t) kv; /* its first member */
}

static inline tr_kv_batch_t *
tr_kv_batch(tr_kv_gpu_t *g, uint64_t serial)
{
    return &g->batch[serial % TR_KV_BATCHES];
}

static inline tr_kv_pinned_t *
tr_kv_pinned(tr_kv_gpu_t *g, uint64_t serial)
{
    return &g->pinned[serial % TR_KV_IN_FLIGHT];
}

/* kv_device_list.c */
size_t tr_kv_list_bytes(uint32_t room, uint32_t share_room);
void tr_kv_list_empty(tr_kv_list_t *l);
/* A command for this slot (other: another that it reads, or -1), to be filled.
 * A full list is launched first, which waits for the device. */
tr_kv_command_t *tr_kv_command(tr_kv_gpu_t *g, tr_kv_do_t kind, int32_t slot,
                               int32_t other);
void tr_kv_share_command(tr_kv_gpu_t *g, tr_kv_share_kind_t kind,
                         const tr_kv_share_t *what);
/* Launches the list from the pinned memory of a batch; false: g->failed. */
bool tr_kv_launch(tr_kv_gpu_t *g, const tr_kv_pinned_t *pinned);
/* The same at once, outside of a batch; returns when it was done. */
bool tr_kv_flush(tr_kv_gpu_t *g);

/* kv_device_swap.c */
static inline bool
tr_kv_is_moving(const tr_kv_gpu_t *g, int32_t slot)
{
    return g->mirror[slot].moving.kind == TR_KV_DO_OUT
           || g->mirror[slot].moving.kind == TR_KV_DO_IN;
}
/* What one batch may be preceded by goes into the list, or all. */
void tr_kv_move_some(tr_kv_gpu_t *g, bool all);
/* All that is left of a slot's move does; drop: without its bytes. */
void tr_kv_finish_move(tr_kv_gpu_t *g, int32_t slot, bool drop);
/* So many more pages of one that goes out; false: none does. */
bool tr_kv_leave_more(tr_kv_gpu_t *g, uint64_t pages);
/* The bound becomes so much if that is on its way out. */
void tr_kv_await(tr_kv_gpu_t *g, uint64_t pages);
tr_status_t tr_kv_gpu_swap_out(tr_kv_cache_t *kv, int32_t slot);
tr_status_t tr_kv_gpu_swap_in(tr_kv_cache_t *kv, int32_t slot);
bool tr_kv_gpu_coming(const tr_kv_cache_t *kv, int32_t slot);

/* kv_device_guard.c */
size_t tr_kv_guard_query_bytes(const tr_kv_gpu_t *g);
size_t tr_kv_guard_change_bytes(const tr_kv_gpu_t *g);
/* A slot's prompt of len tokens begins; it is closed. */
void tr_kv_guard_prompt(tr_kv_gpu_t *g, int32_t slot, uint32_t len);
void tr_kv_guard_close(tr_kv_gpu_t *g, int32_t slot);
/* Between the move and the install of n prompts, of which `slot` has one of len
 * tokens. */
int tr_kv_guard_launch(tr_kv_gpu_t *g, int32_t slot, uint32_t len, uint32_t n,
                       uint32_t longest, uint32_t *refused);
/* A batch has come back. */
void tr_kv_guard_settle(tr_kv_gpu_t *g, uint64_t serial);

/* kv_device_slots.c: tr_kv_ops_t. */
int32_t tr_kv_gpu_open(tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
void tr_kv_gpu_close(tr_kv_cache_t *kv, int32_t slot);
void tr_kv_gpu_release(tr_kv_cache_t *kv, int32_t slot);
void tr_kv_gpu_prompt(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
void tr_kv_gpu_reserve_batch(tr_kv_cache_t *kv, const int32_t *slots,
                             const uint32_t *lens, uint32_t n,
                             tr_status_t *result);
tr_status_t tr_kv_gpu_compress(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
tr_status_t tr_kv_gpu_stage(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
tr_status_t tr_kv_gpu_fork(tr_kv_cache_t *kv, int32_t from, int32_t to,
                           uint32_t len);
/* The most pages of a copy that becomes `to`, and the fewest. */
uint64_t tr_kv_worst_copy_of(const tr_kv_gpu_t *g, const tr_kv_seq_t *to);
uint64_t tr_kv_least_copy_of(const tr_kv_gpu_t *g, const tr_kv_seq_t *to);
/* Pages in the ring, at least; negative when more may have been asked for. */
int64_t tr_kv_bound(const tr_kv_gpu_t *g);
/* Pages that the next token of a compressed slot can take. */
uint64_t tr_kv_step_pages(const tr_kv_gpu_t *g, int32_t slot);
/* The mirror after that token. */
void tr_kv_step_mirror(tr_kv_gpu_t *g, int32_t slot);
/* Rows that were granted do not come, or have come. */
void tr_kv_forget_needs(tr_kv_gpu_t *g);
/* A slot is not in the coming batch after all. */
void tr_kv_forget_need(tr_kv_gpu_t *g, int32_t slot);
/* A slot keeps the first n of its pages in host memory. */
void tr_kv_trim_ids(tr_kv_gpu_t *g, int32_t slot, uint32_t n);

/* kv_device_share.c: tr_kv_ops_t. */
int64_t tr_kv_gpu_ring(const tr_kv_cache_t *kv);
void tr_kv_gpu_share(tr_kv_cache_t *kv, tr_kv_share_kind_t kind,
                     const tr_kv_share_t *what);
uint64_t tr_kv_gpu_free_pages(const tr_kv_cache_t *kv);
/* Blocks that nobody holds go, until `pages` are in the ring or none is left. */
void tr_kv_make_room(tr_kv_gpu_t *g, int32_t slot, uint64_t pages);

/* kv_device_cut.c: tr_kv_ops_t. */
uint32_t tr_kv_gpu_held(const tr_kv_cache_t *kv, int32_t slot,
                        uint32_t pages[TR_KV_LAYOUTS_MAX]);
bool tr_kv_gpu_told(const tr_kv_cache_t *kv, int32_t slot);
uint64_t tr_kv_gpu_copy_pages(const tr_kv_cache_t *kv, int32_t from,
                              uint32_t c);
tr_status_t tr_kv_gpu_copy(tr_kv_cache_t *kv, int32_t from, int32_t to,
                           uint32_t c, bool evict);

bool tr_kv_gpu_can_absorb(const tr_kv_cache_t *kv, int32_t to);
void tr_kv_gpu_absorb(tr_kv_cache_t *kv, const tr_kv_absorb_t *absorb);
tr_status_t tr_kv_gpu_restore(tr_kv_cache_t *kv,
                              const tr_kv_restore_t *restore);

/* kv_device_files.c */
extern const tr_kv_files_t tr_kv_gpu_files;

/* kv_device_usage.c: tr_kv_ops_t. */
void tr_kv_gpu_usage(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out);
void tr_kv_gpu_usage_in(const tr_kv_cache_t *kv, int32_t slot,
                        const tr_page_plan_t *plan, tr_kv_usage_t *out);
void tr_kv_gpu_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out);
bool tr_kv_gpu_sound(const tr_kv_cache_t *kv);

#endif
