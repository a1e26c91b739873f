/*
 * manager_core.h: how the page manager works (manager.h), in programs of one
 * block of threads that compile for a device and, as plain C, for the host.
 *
 * A program is a sequence of phases.  EACH (i, n) is a phase over n items, in
 * any order: the threads of a block share them, and all are done before the
 * next phase begins.  EACH_THREAD is a phase with a sum or the like of every
 * thread's own.  What lives longer than a phase is in the block's shared
 * memory, or the same for all threads.  On the host a block is one thread, so
 * that a phase is a loop.  EACH_FEW is EACH over at most as many items as a
 * device's block has threads.  There it is no loop, which the compiler would
 * unroll: the planning of a step was 28% longer with such loops, and 9% slower.
 *
 * A program is named after what it does.  Which blocks run it, and that the
 * last block of one goes on with the next, is said by the two drivers:
 * manager.cu and host.c.
 */
#ifndef TR_KV_MANAGER_CORE_H
#define TR_KV_MANAGER_CORE_H

#include <assert.h>

#include "manager.h"

/* Threads of a block, partial sums added by one of them, and threads that share
 * a head's pages.  Tests of the host's code have more than one thread, too. */
#if defined(__CUDACC__) || defined(__CUDA_ARCH__)
#define MANAGER_THREADS 256u
#endif
#ifndef MANAGER_THREADS
#define MANAGER_THREADS 1u
#define MANAGER_KEEPS_KEYS /* of ranks; others form them anew */
#endif
#if MANAGER_THREADS > 1
#define MANAGER_GROUP 16u
#define MANAGER_WARP 32u
#else
#define MANAGER_GROUP 1u
#define MANAGER_WARP 1u
#endif
#define MANAGER_GROUPS (MANAGER_THREADS / MANAGER_GROUP)
#define MANAGER_WARPS (MANAGER_THREADS / MANAGER_WARP)
#define MANAGER_CHUNK 256u /* heads of a step that a block plans */
#define MANAGER_NOBODY UINT32_MAX
#define MANAGER_SHARED (UINT32_MAX - 1) /* kept for others (manager_share.h) */
#define MANAGER_NEVER UINT32_MAX        /* pages that no pool has */

#ifdef __CUDA_ARCH__
#define EACH_THREAD(tid)                                    \
    for (uint32_t tid = threadIdx.x, once_ = 1; once_ != 0; \
         once_ = 0, __syncthreads())
/* Heads of a chunk go through some steps of a phase side by side: on a device
 * in a thread each, on the host so many at a time, so that what they read, each
 * in another page, comes from memory together.  EACH_AHEAD is such a step,
 * without a wait; MINE is what a head keeps from one to the next.  What comes
 * last in a program need not wait either: a driver does before another program
 * begins. */
#define MANAGER_AHEAD MANAGER_CHUNK
static_assert(MANAGER_CHUNK <= MANAGER_THREADS
                  && TR_KV_SLOTS_MAX / 32 <= MANAGER_THREADS,
              "a thread each (EACH_AHEAD, EACH_FEW)");
#define EACH_AHEAD(i, n) \
    for (uint32_t i = threadIdx.x, once_ = i < (n); once_ != 0; once_ = 0)
#define EACH_FEW(i, n) \
    EACH_THREAD (i)    \
        if (i < (n))
#define MANAGER_ROLLED _Pragma("unroll 1") /* the loop is short, its code not */
#define MANAGER_ASSERT(x) ((void) 0)
#define MANAGER_OWN(type, name) type name
#define MINE(name, i) name
#define MANAGER_PREFETCH(at) ((void) (at))
#define MANAGER_WAIT() __syncthreads()
#define MANAGER_ADD(at, n) ((void) atomicAdd(at, n))
#define MANAGER_ADD_ALL(at, n) ((void) atomicAdd(at, n))
#define MANAGER_NEXT(at) \
    ((uint64_t) atomicAdd((unsigned long long *) (at), 1ull))
#define MANAGER_OR(at, bits) ((void) atomicOr(at, bits))
#define MANAGER_POPC(x) ((uint32_t) __popc(x))
#else
/* Tests run the threads of a phase in other orders, too. */
#ifndef MANAGER_ORDER
#define MANAGER_ORDER(i, n) (i)
#endif
#define EACH_THREAD(tid)                                              \
    for (uint32_t each_ = 0, tid = MANAGER_ORDER(0, MANAGER_THREADS); \
         each_ < MANAGER_THREADS;                                     \
         each_++, tid = MANAGER_ORDER(each_, MANAGER_THREADS))
#define MANAGER_AHEAD 32u
#define EACH_AHEAD(i, n) for (uint32_t i = 0; i < (n); i++)
#define EACH_FEW(i, n) EACH (i, n)
#define MANAGER_ROLLED
#define MANAGER_ASSERT(x) assert(x)
#define MANAGER_OWN(type, name) type name[MANAGER_AHEAD]
#define MINE(name, i) name[i]
#define MANAGER_PREFETCH(at) __builtin_prefetch(at)
#define MANAGER_WAIT() ((void) 0)
#define MANAGER_ADD(at, n) ((void) (*(at) += (n)))
/* Blocks run side by side. */
#define MANAGER_ADD_ALL(at, n) \
    ((void) __atomic_fetch_add(at, n, __ATOMIC_RELAXED))
#define MANAGER_NEXT(at) __atomic_fetch_add(at, 1, __ATOMIC_RELAXED)
#define MANAGER_OR(at, bits) ((void) (*(at) |= (bits)))
#define MANAGER_POPC(x) ((uint32_t) __builtin_popcount(x))
#endif

/* A page was given out, or came back. */
#ifndef MANAGER_POISON
#define MANAGER_POISON(m, page) ((void) 0)
#endif

#define EACH(i, n)     \
    EACH_THREAD (tid_) \
        for (uint32_t i = tid_; i < (n); i += MANAGER_THREADS)

/* A slot, beyond what kernels see of it. */
typedef struct tr_kv_slot {
    uint32_t tokens; /* positions that were reserved */
    uint32_t prompt; /* where the prompt ends */
    uint32_t uncompressed_pages;
    uint32_t near_pages, near_from;  /* tr_kv_tally_t */
    uint32_t pages;                  /* of all heads */
    uint32_t frozen_pages, borrowed; /* tr_kv_tally_t */
    bool open;
    bool uncompressed; /* coming tokens are uncompressed */
    bool out;          /* its pages are elsewhere */
    tr_kv_rule_t rule;
} tr_kv_slot_t;

typedef enum {
    NEED_IDLE, /* no request */
    NEED_REFUSED,
    NEED_NOTHING, /* all is there, or pages is MANAGER_NEVER */
    NEED_UNCOMPRESSED,
    NEED_STEP,
    NEED_CLOSE
} need_kind_t;

/* What one request of a launch wants; the same for all its heads. */
typedef struct tr_kv_need {
    int32_t slot;
    need_kind_t kind;
    uint32_t len;
    uint32_t n;                     /* tokens so far */
    uint32_t uncompressed_pages;    /* of a head, before */
    uint32_t more;                  /* uncompressed pages a head */
    uint32_t near_pages, near_from; /* before, of one that slides */
    uint32_t near_more;             /* pages that it takes; */
    bool near_turns;                /* its oldest page becomes its next one */
    uint32_t leaves;                /* tokens that leave the window now */
    uint32_t leave_pos;             /* the first of them */
    uint32_t entry;                 /* its score is in the page of this entry */
    uint32_t offset;                /* at this byte */
    bool scored;                    /* it has one */
    bool window_page; /* the new token begins a page of the window */
    bool granted;
    uint32_t pages;
    uint64_t first; /* where in the ring they are, or come to */
} manager_need_t;

/* What becomes of one head at the end of a prompt. */
typedef struct tr_kv_head_plan {
    uint32_t count[TR_KV_TIERS_MAX];
    tr_kv_candidate_t candidate[TR_KV_TIERS_MAX];
    uint32_t pages, old_pages;
    uint32_t before, old_before; /* those of the heads before it */
    uint32_t borrowed;           /* pages: tr_kv_job_t */
} tr_kv_head_plan_t;

/* Tickets: of each kind of launch, and of each prompt. */
enum {
    TICKET_STEP,
    TICKET_CLOSE,
    TICKET_PROMPTS,
    TICKET_INSTALL,
    TICKET_SHARE,
    TICKETS
};

TR_HD uint32_t
manager_ceil(uint32_t n, uint32_t by)
{
    return n / by + (n % by != 0);
}

TR_HD size_t
manager_head(const tr_kv_manager_t *m, int32_t slot, uint32_t head)
{
    return (size_t) slot * m->heads + head;
}

TR_HD int32_t *
manager_row(const tr_kv_manager_t *m, int32_t slot, uint32_t head)
{
    return m->tables + manager_head(m, slot, head) * m->view.table_len;
}

TR_HD uint32_t *
manager_counts(const tr_kv_manager_t *m, int32_t slot, uint32_t head)
{
    return m->count + manager_head(m, slot, head) * TR_KV_TIERS_MAX;
}

/* Frozen tokens of a head by tier, and those in pages of others; NULL: none. */
TR_HD const uint32_t *
manager_frozen(const tr_kv_manager_t *m, const tr_kv_seq_t *q, int32_t slot,
               uint32_t head)
{
    return q->frozen ? m->frozen + manager_head(m, slot, head) * TR_KV_TIERS_MAX
                     : NULL;
}

TR_HD const uint32_t *
manager_borrowed(const tr_kv_manager_t *m, const tr_kv_seq_t *q, int32_t slot,
                 uint32_t head)
{
    return q->frozen
               ? m->borrowed + manager_head(m, slot, head) * TR_KV_TIERS_MAX
               : NULL;
}

/* ---- heads that slide --------------------------------------------------- */

/* Where nothing is compressed they are as all others. */
TR_HD bool
manager_slides(const tr_kv_manager_t *m, const tr_kv_seq_t *q, uint32_t head)
{
    return m->near != 0 && q->n_tiers != 0
           && tr_kv_slides(&m->view, head / m->view.kv_heads);
}

/* How many of a slot's heads do. */
TR_HD uint32_t
manager_near(const tr_kv_manager_t *m, const tr_kv_seq_t *q)
{
    return q->n_tiers != 0 ? m->near : 0;
}

/* The first page that a query at position n sees of such a head. */
TR_HD uint32_t
manager_seen_from(const tr_kv_manager_t *m, uint32_t n)
{
    return n < m->size.reach ? 0 : (n + 1 - m->size.reach) / m->place[0].tokens;
}

/* ---- memory ------------------------------------------------------------- */

TR_HD void *
manager_take_area(uint8_t *base, size_t *at, size_t bytes)
{
    size_t begin = *at;

    *at += (bytes + 255) / 256 * 256;
    return base == NULL ? NULL : base + begin;
}

/* Fills m but for its arrays; false: refused. */
static inline bool
manager_shape(const tr_kv_view_t *shape, const tr_kv_manager_size_t *size,
              tr_kv_manager_t *m)
{
    uint64_t heads = (uint64_t) shape->layers * shape->kv_heads;

    if (heads == 0 || heads > UINT32_MAX / TR_KV_SLOTS_MAX || size->slots == 0
        || size->slots > TR_KV_SLOTS_MAX || size->pages == 0
        || size->pages >= 1u << 30 || size->max_len == 0
        || size->max_prompts == 0 || size->max_prompts > size->slots
        || shape->n_layouts == 0 || shape->n_layouts > TR_KV_LAYOUTS_MAX
        || shape->table_len == 0) {
        return false;
    }
    memset(m, 0, sizeof(*m));
    m->view = *shape;
    m->size = *size;
    m->heads = (uint32_t) heads;
    for (uint32_t l = 0; l < shape->layers; l++) {
        m->near += tr_kv_slides(shape, l) ? shape->kv_heads : 0;
    }
    if (m->near != 0 && size->reach == 0) {
        return false;
    }
    m->chunks = manager_ceil(m->heads, MANAGER_CHUNK);
    m->dest_len = (size->max_len + 15) / 16 * 16;
    for (uint32_t i = 0; i < shape->n_layouts; i++) {
        const tr_kv_layout_t *l = &shape->layout[i];

        m->place[i].tokens = l->tokens;
        m->place[i].score = l->score;
        m->place[i].position = l->position;
        m->place[i].position_bytes = l->position_bytes;
        m->place[i].recent = l->recent;
    }
    return true;
}

/* Fills m for this memory (NULL: none yet); returns its bytes, 0: refused. */
static inline size_t
manager_lay(const tr_kv_view_t *shape, const tr_kv_manager_size_t *size,
            void *memory, tr_kv_manager_t *m)
{
    uint8_t *base = (uint8_t *) memory;
    size_t at = 0, heads, rows;

    if (!manager_shape(shape, size, m)) {
        return 0;
    }
    heads = m->heads;
    rows = heads * size->slots;
#define TAKE(field, type, n) \
    m->field = (type *) manager_take_area(base, &at, (n) * sizeof(type))
    TAKE(report, tr_kv_report_t, 1);
    TAKE(result, uint8_t, size->slots);
    TAKE(tally, tr_kv_tally_t, size->slots);
    TAKE(ticket, uint32_t, TICKETS + size->max_prompts);
    TAKE(slot, tr_kv_slot_t, size->slots);
    TAKE(seq, tr_kv_seq_t, size->slots);
    TAKE(seq_slot, int32_t, size->slots);
    TAKE(position, uint32_t, size->slots);
    TAKE(need, manager_need_t, size->slots);
    TAKE(closed, tr_kv_seq_t, size->slots);
    TAKE(ring, int32_t, (size_t) size->pages);
    TAKE(owner, uint32_t, (size_t) size->pages);
    TAKE(kept, int32_t, heads * size->blocks);
    TAKE(kept_token, int32_t, (size_t) m->place[0].tokens * size->blocks);
    TAKE(order, uint32_t, heads);
    TAKE(sliding, tr_kv_seq_t, 1);
    TAKE(tables, int32_t, rows * shape->table_len);
    TAKE(count, uint32_t, rows * TR_KV_TIERS_MAX);
    TAKE(frozen, uint32_t, rows * TR_KV_TIERS_MAX);
    TAKE(borrowed, uint32_t, rows * TR_KV_TIERS_MAX);
    TAKE(move, tr_kv_move_t, rows);
    TAKE(candidate, tr_kv_candidate_t, rows * TR_KV_TIERS_MAX);
    TAKE(want, int8_t, rows);
    TAKE(part, uint32_t, (size_t) size->slots * m->chunks);
    TAKE(before, uint32_t, rows);
    TAKE(compress, tr_kv_compress_t, size->max_prompts);
    TAKE(job, tr_kv_job_t, size->max_prompts);
    TAKE(head, tr_kv_head_plan_t, heads * size->max_prompts);
    TAKE(to_tables, int32_t, heads * size->max_prompts * shape->table_len);
    TAKE(stay, uint32_t, heads * size->max_prompts * TR_KV_TIERS_MAX);
    TAKE(dest, int8_t, heads * size->max_prompts * m->dest_len);
#undef TAKE
    m->view.tables = m->tables;
    m->view.seq = m->seq;
    m->view.sliding = m->sliding;
    m->view.count = m->count;
    m->view.frozen = m->frozen;
    m->view.move = m->move;
    m->view.candidate = m->candidate;
    return at;
}

TR_HD void
manager_order(const tr_kv_manager_t *m)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < 2 * m->heads; i++) {
        uint32_t head = i % m->heads;

        if (tr_kv_slides(&m->view, head / m->view.kv_heads)
            == (i >= m->heads)) {
            m->order[at++] = head;
        }
    }
}

/* Thread t of n: pages and slots as they are before the first slot is
 * opened. */
TR_HD void
manager_reset_pages(const tr_kv_manager_t *m, size_t t, size_t n)
{
    uint32_t i;

    for (size_t j = t; j < m->size.pages; j += n) {
        m->ring[j] = (int32_t) j;
        m->owner[j] = MANAGER_NOBODY;
    }
    for (size_t j = t; j < (size_t) m->heads * m->size.blocks; j += n) {
        m->kept[j] = -1;
    }
    for (size_t j = t; j < m->size.slots; j += n) {
        memset(&m->slot[j], 0, sizeof(m->slot[j]));
        memset(&m->seq[j], 0, sizeof(m->seq[j]));
    }
    if (t == 0) {
        manager_order(m);
        memset(m->sliding, 0, sizeof(*m->sliding));
        memset(m->report, 0, sizeof(*m->report));
        m->report->end = m->size.pages;
        for (i = 0; i < TICKETS + m->size.max_prompts; i++) {
            m->ticket[i] = 0;
        }
    }
}

/* And their tables. */
TR_HD void
manager_reset(const tr_kv_manager_t *m, size_t t, size_t n)
{
    size_t tables = (size_t) m->size.slots * m->heads * m->view.table_len;

    for (size_t j = t; j < tables; j += n) {
        m->tables[j] = -1;
    }
    manager_reset_pages(m, t, n);
}

/* Of a token of a tier's page. */
TR_HD uint32_t
manager_position(const tr_kv_manager_t *m, const tr_kv_segments_t *place,
                 int32_t page, uint32_t token)
{
    return tr_kv_position_load(tr_kv_page_at(&m->view, page) + place->position
                                   + token * place->position_bytes,
                               place->position_bytes);
}

/* ---- the free ring ------------------------------------------------------ */

TR_HD void
manager_fetch(const tr_kv_manager_t *m, uint64_t at, int32_t slot,
              int32_t *entry)
{
    int32_t page = m->ring[at % m->size.pages];

    if (page < 0 || m->owner[page] != MANAGER_NOBODY) {
        MANAGER_ADD_ALL(&m->report->faults, 1);
    } else {
        m->owner[page] = (uint32_t) slot;
        MANAGER_POISON(m, page);
    }
    *entry = page;
}

TR_HD void
manager_store(const tr_kv_manager_t *m, uint64_t at, int32_t slot,
              int32_t *entry)
{
    int32_t page = *entry;

    if (page < 0 || (uint32_t) page >= m->size.pages
        || m->owner[page] != (uint32_t) slot) {
        MANAGER_ADD_ALL(&m->report->faults, 1);
        page = -1;
    } else {
        m->owner[page] = MANAGER_NOBODY;
        MANAGER_POISON(m, page);
    }
    m->ring[at % m->size.pages] = page;
    *entry = -1;
}

/* ---- runs of a row ------------------------------------------------------ */

/* Entries of a head's row in the order in which its pages are taken and given
 * back: uncompressed pages, the window's, each tier's, but for those of the first
 * `skip` tokens of the tier (NULL: 0). */
typedef struct {
    uint32_t layout, entry, n;
    int32_t step; /* 1, or -1 for tiers that grow downwards */
} manager_run_t;

#define MANAGER_RUNS (2 + TR_KV_TIERS_MAX)

/* Uncompressed pages of a slot's heads: [0, pages), and of those that slide
 * [near_from, near). */
typedef struct {
    uint32_t pages, near, near_from;
} manager_dense_t;

TR_HD manager_dense_t
manager_none(void)
{
    manager_dense_t d = { 0, 0, 0 };

    return d;
}

TR_HD manager_dense_t
manager_dense(const tr_kv_slot_t *s)
{
    manager_dense_t d = { s->uncompressed_pages, s->near_pages, s->near_from };

    return d;
}

TR_HD uint32_t
manager_window_pages(const tr_kv_manager_t *m, const tr_kv_seq_t *q, uint32_t n)
{
    uint32_t all = q->sinks + q->window;

    return manager_ceil(n < all ? n : all, m->place[q->window_layout].tokens);
}

TR_HD uint32_t
manager_runs(const tr_kv_manager_t *m, const tr_kv_seq_t *q, uint32_t head,
             const uint32_t *count, const uint32_t *skip, manager_dense_t dense,
             manager_run_t out[MANAGER_RUNS])
{
    bool slides = manager_slides(m, q, head);
    /* those in front are not its own */
    uint32_t first = slides ? dense.near_from : q->shared;
    uint32_t end = slides ? dense.near : dense.pages, n = 0;

    if (end > first) {
        out[n].layout = 0;
        out[n].entry = first;
        out[n].n = end - first;
        out[n++].step = 1;
    }
    if (slides) {
        return n;
    }
    if (q->base != 0 && q->window != 0) {
        out[n].layout = q->window_layout;
        out[n].entry = m->view.at_window;
        out[n].n = manager_window_pages(m, q, q->base);
        out[n++].step = 1;
    }
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        uint32_t from = skip != NULL ? skip[l] : 0;

        if (count[l] > from) {
            uint32_t tokens = m->place[q->tier_layout[l]].tokens;

            out[n].layout = q->tier_layout[l];
            out[n].entry = tr_kv_tier_entry(&m->view, l, from / tokens);
            out[n].n = manager_ceil(count[l] - from, tokens);
            out[n++].step = l % 2 == 0 ? 1 : -1;
        }
    }
    return n;
}

/* ---- copies ------------------------------------------------------------- */

/* What a thread copies at a time; pages are a multiple of it. */
typedef struct {
#ifdef __CUDACC__
    uint4 word;
#else
    uint32_t word[4];
#endif
} manager_words_t;

/* Thread tid's share of a page. */
TR_HD void
manager_copy_page(const tr_kv_manager_t *m, int32_t from, int32_t to,
                  uint32_t tid)
{
    const manager_words_t *in = (const manager_words_t *) (const void *)
        tr_kv_page_at(&m->view, from);
    manager_words_t *out = (manager_words_t *) (void *) tr_kv_page_at(&m->view,
                                                                      to);

    for (size_t i = tid; i < m->view.page_bytes / sizeof(*in);
         i += MANAGER_THREADS) {
        out[i] = in[i];
    }
}

/* ---- sums of a block ---------------------------------------------------- */

/* Each thread's value is in part[]; when manager_group has been there for each
 * group the sum of all lower threads is manager_below. */
typedef struct {
    uint32_t part[MANAGER_THREADS];
    uint32_t group[MANAGER_GROUPS];
} manager_sum_t;

TR_HD void
manager_group(manager_sum_t *s, uint32_t group)
{
    s->group[group] = 0;
    for (uint32_t i = 0; i < MANAGER_GROUP; i++) {
        s->group[group] += s->part[group * MANAGER_GROUP + i];
    }
}

TR_HD uint32_t
manager_below(const manager_sum_t *s, uint32_t tid)
{
    uint32_t sum = 0, i;

    for (i = 0; i < tid / MANAGER_GROUP; i++) {
        sum += s->group[i];
    }
    for (i = tid / MANAGER_GROUP * MANAGER_GROUP; i < tid; i++) {
        sum += s->part[i];
    }
    return sum;
}

TR_HD uint32_t
manager_total(const manager_sum_t *s)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < MANAGER_GROUPS; i++) {
        sum += s->group[i];
    }
    return sum;
}

#endif
