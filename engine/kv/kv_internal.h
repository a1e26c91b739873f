/*
 * What the files of the KV cache share: kv_ops.c (kv_cache.h's functions),
 * kv_cache.c (slots, dense pages), kv_step.c (a step of generation),
 * kv_compress.c (the end of a prompt), kv_swap.c, kv_usage.c, kv_check.c, and
 * those of a device's cache (kv_device_parts.h).  Nobody else includes this but
 * tests.
 *
 * Everything that a kernel reads is an array by slot and head (kernels.h), so
 * that a GPU can hold it.  What is decided for one head is a function of the
 * view and the policy alone; what all heads need together is added up in the
 * order (request, layer, list, level), and a head's pages are the part of the
 * free ring that this sum assigns to it.
 */
#ifndef TR_KV_INTERNAL_H
#define TR_KV_INTERNAL_H

#include <assert.h>

#include "kv_cache.h"
#include "kv_pages.h"

/* In a table: the page is in the swap pool.  -1 has the bit, too. */
#define TR_KV_HOST 0x40000000

/* Heads planned by one thread at a time: some microseconds of work. */
#define TR_KV_GRAIN 256u
/* From so many heads on, a step is planned on the stream's thread pool. */
#define TR_KV_PARALLEL 2048u

typedef struct {
    bool open;
    bool dense;            /* coming tokens are dense */
    bool out;              /* pages are in the swap pool */
    uint32_t tokens;       /* positions that were reserved */
    uint32_t prompt;       /* where the prompt ends, 0: nobody said */
    uint32_t dense_pages;  /* of each head */
    uint64_t pages;        /* of all heads, dense ones included */
    tr_kv_policy_t origin; /* as it was opened */
    tr_kv_policy_t policy; /* for the length of its last prompt */
} tr_kv_slot_t;

/* What the sequence of one reservation asks for; constant over its heads. */
typedef struct {
    int32_t slot;
    uint32_t len;
    enum { TR_KV_ASK_NOTHING, TR_KV_ASK_DENSE, TR_KV_ASK_STEP } kind;
    uint32_t more;      /* dense pages a head */
    uint32_t n;         /* tokens so far */
    uint32_t leaves;    /* tokens that leave the window now */
    uint32_t leave_pos; /* the first of them */
    bool window_page;   /* the new token begins a page of the window */
    bool scored;        /* the leaving token has a score: */
    uint32_t entry;     /* in the page of this entry */
    uint32_t offset;    /* at this byte */
    bool granted;
    uint64_t pages;
    uint64_t first; /* where in the ring they are */
} tr_kv_ask_t;

/* What becomes of one head at the end of a prompt. */
typedef struct {
    uint32_t count[TR_KV_LISTS_MAX];
    tr_kv_victim_t victim[TR_KV_LISTS_MAX];
    uint32_t pages;
} tr_kv_head_plan_t;

/* What differs between a cache that is here and one on a device; each entry is
 * the function of kv_cache.h of that name. */
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
    bool (*compressing)(const tr_kv_cache_t *kv, int32_t slot);
    tr_status_t (*fork)(tr_kv_cache_t *kv, int32_t from, int32_t to,
                        uint32_t len);
    tr_status_t (*swap_out)(tr_kv_cache_t *kv, int32_t slot);
    tr_status_t (*swap_in)(tr_kv_cache_t *kv, int32_t slot);
    void (*usage)(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out);
    void (*usage_in)(const tr_kv_cache_t *kv, int32_t slot,
                     const tr_page_plan_t *plan, tr_kv_usage_t *out);
    void (*totals)(const tr_kv_cache_t *kv, tr_kv_totals_t *out);
    bool (*sound)(const tr_kv_cache_t *kv);
} tr_kv_ops_t;

struct tr_kv_cache {
    const tr_kv_ops_t *ops;
    tr_kv_config_t config;       /* policies: only while it is created */
    const tr_kv_policy_t *usual; /* of slots for which none is named */
    tr_page_plan_t plan;
    tr_kv_pages_t pages;
    tr_kv_pages_t swap; /* n = 0: there is none */
    tr_kv_view_t view;  /* the arrays below, as kernels see them */
    uint32_t heads;     /* layers * lists */
    uint32_t dense_len; /* table entries for dense pages */

    size_t tables_size; /* bytes */
    int32_t *tables;
    tr_kv_seq_t *seq;
    uint32_t *count;
    tr_kv_move_t *move;
    tr_kv_victim_t *victim;
    tr_kv_slot_t *slot;
    int32_t *free_slots;
    uint32_t n_free_slots;
    tr_kv_totals_t totals;

    /* of one batch of reservations (kv_step.c) */
    tr_kv_ask_t *ask; /* [slots] */
    int8_t *want;     /* [slots][heads] the list, or TR_KV_WINDOW, for which a
                       * head takes a page, or TR_KV_NOWHERE */

    /* of one prompt (kv_compress.c), mapped: touched as far as it is long */
    size_t prompt_size;
    uint8_t *prompt_memory;
    int8_t *dest;            /* [heads][max_len] */
    int32_t *to_tables;      /* [heads][table_len] */
    tr_kv_head_plan_t *head; /* [heads] */
    uint8_t *work;           /* [threads][work_size] */
    size_t work_size;
    void *kernel_work;
};

static inline tr_kv_slot_t *
tr_kv_slot(const tr_kv_cache_t *kv, int32_t slot)
{
    assert(slot >= 0 && (uint32_t) slot < kv->config.slots);
    assert(kv->slot[slot].open);
    return &kv->slot[slot];
}

static inline size_t
tr_kv_head_at(const tr_kv_cache_t *kv, int32_t slot, uint32_t head)
{
    return (size_t) slot * kv->heads + head;
}

static inline int32_t *
tr_kv_row(const tr_kv_cache_t *kv, int32_t slot, uint32_t head)
{
    return kv->tables + tr_kv_head_at(kv, slot, head) * kv->view.table_len;
}

static inline uint32_t *
tr_kv_counts(const tr_kv_cache_t *kv, int32_t slot, uint32_t head)
{
    return kv->count + tr_kv_head_at(kv, slot, head) * TR_KV_LISTS_MAX;
}

static inline uint32_t
tr_kv_ceil(uint64_t n, uint32_t by)
{
    return (uint32_t) ((n + by - 1) / by);
}

/* Pages of the window of a sequence of n tokens: slots are used in the order
 * of positions, so that a ring that has not been filled is not all there. */
static inline uint32_t
tr_kv_window_pages(const tr_page_plan_t *plan, const tr_kv_seq_t *q, uint32_t n)
{
    return tr_kv_ceil(n < q->window ? n : q->window,
                      plan->layout[q->window_layout].tokens);
}

/* Runs of entries in a head's row: dense pages, the window's, each list's. */
typedef struct {
    uint32_t layout;
    uint32_t entry, n;
    int32_t step; /* 1, or -1 for lists that grow downwards */
} tr_kv_run_t;

#define TR_KV_RUNS (2 + TR_KV_LISTS_MAX)

/* The runs of a head with these counts, in the order in which its pages are
 * taken and given back; returns how many. */
static inline uint32_t
tr_kv_runs(const tr_kv_cache_t *kv, const tr_kv_seq_t *q, const uint32_t *count,
           uint32_t dense_pages, tr_kv_run_t out[TR_KV_RUNS])
{
    uint32_t n = 0, l;

    if (dense_pages != 0) {
        out[n++] = (tr_kv_run_t){ 0, 0, dense_pages, 1 };
    }
    if (q->base != 0 && q->window != 0) {
        out[n++] = (tr_kv_run_t){ q->window_layout, kv->view.at_window,
                                  tr_kv_window_pages(&kv->plan, q, q->base),
                                  1 };
    }
    for (l = 0; l < q->n_lists; l++) {
        uint32_t tokens = kv->plan.layout[q->list_layout[l]].tokens;

        if (count[l] != 0) {
            out[n++] = (tr_kv_run_t){ q->list_layout[l],
                                      tr_kv_list_entry(&kv->view, l, 0),
                                      tr_kv_ceil(count[l], tokens),
                                      l % 2 == 0 ? 1 : -1 };
        }
    }
    return n;
}

/* The cache that is here: kv_cache.c, kv_step.c, kv_compress.c, kv_swap.c,
 * kv_usage.c, kv_check.c. */
extern const tr_kv_ops_t tr_kv_host_ops;
void tr_kv_host_free(tr_kv_cache_t *kv);
uint64_t tr_kv_host_free_pages(const tr_kv_cache_t *kv);
int32_t tr_kv_host_open(tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
void tr_kv_host_close(tr_kv_cache_t *kv, int32_t slot);
void tr_kv_host_prompt(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
void tr_kv_host_reserve_batch(tr_kv_cache_t *kv, const int32_t *slots,
                              const uint32_t *lens, uint32_t n,
                              tr_status_t *result);
tr_status_t tr_kv_host_compress(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
tr_status_t tr_kv_host_fork(tr_kv_cache_t *kv, int32_t from, int32_t to,
                            uint32_t len);
tr_status_t tr_kv_host_swap_out(tr_kv_cache_t *kv, int32_t slot);
tr_status_t tr_kv_host_swap_in(tr_kv_cache_t *kv, int32_t slot);
void tr_kv_host_usage(const tr_kv_cache_t *kv, int32_t slot,
                      tr_kv_usage_t *out);
void tr_kv_host_usage_in(const tr_kv_cache_t *kv, int32_t slot,
                         const tr_page_plan_t *plan, tr_kv_usage_t *out);
void tr_kv_host_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out);
bool tr_kv_host_sound(const tr_kv_cache_t *kv);

/* What both kinds of cache do alike. */
/* Checks the configuration, plans pages. */
tr_status_t tr_kv_shape(tr_kv_cache_t *kv, const tr_kv_config_t *config,
                        tr_error_t *err);
/* Which part of a table's row is whose, for a pool of kv->pages.n. */
void tr_kv_lay_tables(tr_kv_cache_t *kv);
/* The arrays by slot alone. */
bool tr_kv_slots_memory(tr_kv_cache_t *kv);
/* A slot of this policy without pages, -1: none is free; and back. */
int32_t tr_kv_take_slot(tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
void tr_kv_drop_slot(tr_kv_cache_t *kv, int32_t slot);
/* What a reservation asks for; of a step, without its pages. */
void tr_kv_ask(const tr_kv_cache_t *kv, int32_t slot, uint32_t len,
               tr_kv_ask_t *a);
/* A slot's policy and sequence when its prompt of len tokens is compressed. */
void tr_kv_prompt_target(const tr_kv_cache_t *kv, int32_t slot, uint32_t len,
                         tr_kv_policy_t *p, tr_kv_seq_t *to);
/* Bytes and shares of a slot with these counts, [heads][TR_KV_LISTS_MAX]. */
void tr_kv_usage_of(const tr_kv_cache_t *kv, int32_t slot,
                    const uint32_t *counts, const tr_page_plan_t *plan,
                    tr_kv_usage_t *out);
/* The most pages that a head can need for n compressed tokens: all in the list
 * with the fewest tokens a page, but for one in each other. */
uint32_t tr_kv_worst_copy(const tr_page_plan_t *plan, const tr_kv_policy_t *p,
                          uint32_t n);

/* kv_cache.c */
uint32_t tr_kv_release_row(tr_kv_cache_t *kv, int32_t slot, uint32_t head);
void tr_kv_set_reading(tr_kv_cache_t *kv, int32_t slot);
/* kv_compress.c */
bool tr_kv_prompt_memory(tr_kv_cache_t *kv);

/* kv_usage.c */
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
