/*
 * manager_fixture.h: the CPU's page manager (engine/kv/kv_cache.h) and a
 * device's (kernels/kv_manager/manager.h) under the same random operations,
 * compared after each: tables, counts, candidates, moves, sequences, the free
 * ring, the owners.
 *
 * The device is behind one function, so that the same operations drive a GPU
 * (test_manager.c) and the manager's programs run as plain C
 * (tests/unit/kv/test_kv_device.c).  Tokens are moved on the CPU, scores and
 * positions alone; the device reads them from a copy of the pool.
 */
#ifndef TR_TESTS_GPU_MANAGER_FIXTURE_H
#define TR_TESTS_GPU_MANAGER_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kv_manager/manager_core.h"

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_internal.h"
#include "kernels/kernels.h"

/* ---- the device --------------------------------------------------------- */

typedef enum {
    FIXTURE_OPEN,
    FIXTURE_BEGIN,
    FIXTURE_STEP,
    FIXTURE_CLOSE,
    FIXTURE_PLAN,
    FIXTURE_INSTALL,
    FIXTURE_FILL, /* of one that takes some layers at a time; in: anything */
    FIXTURE_GIVE, /* in: slot, n, the pages */
    FIXTURE_TAKE, /* the same, filled */
    FIXTURE_FORK,
    FIXTURE_TALLY, /* of n slots; in: anything */
    FIXTURE_CUT,
    FIXTURE_RESTORE,
    FIXTURE_INSTALL_CUT, /* of n; in: anything */
    FIXTURE_ABSORB,
    FIXTURE_SHARE /* and, so much more, the kind */
} fixture_op_t;

typedef struct {
    void *arg;
    /* A manager of this shape; *mirror: its memory on the host, laid out by
     * manager_lay, is valid after fetch.  pool: of the CPU. */
    bool (*create)(void *arg, const tr_kv_view_t *shape,
                   const tr_kv_manager_size_t *size, const uint8_t *pool,
                   uint64_t pool_bytes, tr_kv_manager_t *mirror);
    void (*destroy)(void *arg);
    /* The pool or, in the mirror, candidates and tables have changed. */
    void (*pool)(void *arg);
    void (*arrays)(void *arg);
    /* in: n inputs of `each` bytes, on the host */
    bool (*run)(void *arg, fixture_op_t op, void *in, size_t each, uint32_t n);
    void (*fetch)(void *arg);
    /* Are n pages of the device's pool equal to n others? */
    bool (*same_pages)(void *arg, const int32_t *a, const int32_t *b,
                       uint32_t n);
    /* A page of the device's pool. */
    void (*page)(void *arg, int32_t page, void *out);
    /* A copy of n numbers that the device can read, until destroy. */
    const double *(*copy)(void *arg, const double *from, size_t n);
} fixture_device_t;

/* ---- random numbers ----------------------------------------------------- */

static uint64_t fixture_random_state;

static uint32_t
fixture_random(uint32_t n)
{
    fixture_random_state ^= fixture_random_state << 13;
    fixture_random_state ^= fixture_random_state >> 7;
    fixture_random_state ^= fixture_random_state << 17;
    return (uint32_t) ((fixture_random_state >> 32) % n);
}

static void
fixture_seed(uint64_t seed)
{
    fixture_random_state = seed * 0x9e3779b97f4a7c15u + 88172645463325252u;
    for (int i = 0; i < 8; i++) {
        fixture_random(2);
    }
}

#define FIXTURE_POLICIES 3u
#define FIXTURE_SLOTS 24u
#define FIXTURE_PROMPTS 5u
#define FIXTURE_LIST (1u << 16) /* pages of a slot, and two numbers */

typedef struct {
    tr_kv_cache_t *kv;
    tr_kv_policy_t *policy[FIXTURE_POLICIES];
    const double *device_alpha[FIXTURE_POLICIES];
    uint32_t n_policies;
    const fixture_device_t *device;
    tr_kv_manager_t mirror;
    struct {
        bool open, out;
        bool prompt; /* being computed up to `goal` */
        uint32_t policy, goal;
        uint32_t lender; /* the slot, and 1, that it borrows of; 0: none */
    } slot[FIXTURE_SLOTS];
    uint32_t slots;
    bool lends; /* prompts of full pages that can be cut, and many cuts */
    /* what happened */
    uint64_t steps, stalls, staged, compressed, swaps, forks, shares, cuts,
        lent, absorbed, pages;
    bool failed;
} fixture_t;

/* Does anybody borrow of slot i?  Then it is neither written nor closed. */
static inline bool
fixture_lends(const fixture_t *w, uint32_t i)
{
    bool lends = false;

    for (uint32_t j = 0; j < w->slots; j++) {
        lends = lends || (w->slot[j].open && w->slot[j].lender == i + 1);
    }
    return lends;
}

/* Notes the first difference. */
#define FIXTURE_SAME(w, condition, ...)                            \
    do {                                                           \
        if (!(w)->failed && !(condition)) {                        \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            printf(__VA_ARGS__);                                   \
            printf("\n");                                          \
            (w)->failed = true;                                    \
        }                                                          \
    } while (0)

/* ---- tokens in pages ---------------------------------------------------- */

typedef struct {
    uint8_t *score, *position, *recent; /* NULL: the level has none */
    uint32_t position_bytes;
} fixture_place_t;

static fixture_place_t
fixture_place(const tr_kv_view_t *v, const int32_t *row, uint32_t layout,
              uint32_t entry, uint32_t at)
{
    const tr_kv_layout_t *l = &v->layout[layout];
    uint8_t *page = tr_kv_page_at(v, row[entry]);

    return (fixture_place_t){
        l->score ? page + l->score + at * 4 : NULL,
        l->position ? page + l->position + at * l->position_bytes : NULL,
        l->recent ? page + l->recent + at * 4 : NULL, l->position_bytes
    };
}

static fixture_place_t
fixture_tiered(const tr_kv_view_t *v, const tr_kv_seq_t *q, const int32_t *row,
               uint32_t l, uint32_t i)
{
    uint32_t tokens = v->layout[q->tier_layout[l]].tokens;

    return fixture_place(v, row, q->tier_layout[l],
                         tr_kv_tier_entry(v, l, i / tokens), i % tokens);
}

static fixture_place_t
fixture_windowed(const tr_kv_view_t *v, const tr_kv_seq_t *q,
                 const int32_t *row, uint32_t pos)
{
    uint32_t tokens = v->layout[q->window_layout].tokens;
    uint32_t at = tr_kv_window_entry(q, pos);

    return fixture_place(v, row, q->window_layout, v->at_window + at / tokens,
                         at % tokens);
}

static float
fixture_score(fixture_place_t p)
{
    float f = 0;

    if (p.score != NULL) {
        memcpy(&f, p.score, 4);
    }
    return f;
}

static uint32_t
fixture_position(fixture_place_t p, uint32_t otherwise)
{
    return p.position != NULL
               ? tr_kv_position_load(p.position, p.position_bytes)
               : otherwise;
}

static void
fixture_put(fixture_place_t p, float score, uint32_t position)
{
    if (p.score != NULL) {
        memcpy(p.score, &score, 4);
    }
    if (p.position != NULL) {
        memcpy(p.position, &position, p.position_bytes);
    }
}

/* The move of one head, and the new token. */
static void
fixture_append(const tr_kv_view_t *v, int32_t slot, uint32_t head)
{
    const tr_kv_seq_t *q = &v->seq[slot];
    size_t at = (size_t) slot * v->layers * v->kv_heads + head;
    const int32_t *row = v->tables + at * v->table_len;
    const tr_kv_move_t *m = &v->move[at];

    if (m->candidate_from >= 0 && m->candidate_to >= 0) {
        fixture_place_t p = fixture_tiered(v, q, row,
                                           (uint32_t) m->candidate_from,
                                           m->candidate_index);

        fixture_put(fixture_tiered(v, q, row, (uint32_t) m->candidate_to,
                                   m->candidate_target),
                    fixture_score(p), fixture_position(p, 0));
    }
    for (uint32_t i = 0; m->to >= 0 && i < m->leaves; i++) {
        float score = q->window == 0
                          ? 0
                          : fixture_score(
                              fixture_windowed(v, q, row, m->leave_pos + i));

        fixture_put(fixture_tiered(v, q, row, (uint32_t) m->to, m->index + i),
                    score, m->leave_pos + i);
    }
    if (q->window != 0) {
        fixture_put(fixture_windowed(v, q, row, q->base - 1), 0, q->base - 1);
    }
}

static void
fixture_compress_one(const tr_kv_view_t *v, const tr_kv_compress_t *c,
                     const int32_t *row, int8_t dest, fixture_place_t from,
                     uint32_t pos, bool uncompressed, uint32_t *count)
{
    float score = fixture_score(from), recent;

    pos = fixture_position(from, pos);
    if (uncompressed && c->observe != 0) {
        recent = 0;
        if (from.recent != NULL) {
            memcpy(&recent, from.recent, 4);
        }
        score = tr_kv_observed(recent, c->to->base - 1 - pos, c->observe);
    }
    if (dest == TR_KV_WINDOW) {
        fixture_put(fixture_windowed(v, c->to, row, pos), score, pos);
    } else if (dest >= 0) {
        fixture_put(fixture_tiered(v, c->to, row, (uint32_t) dest,
                                   count[dest]++),
                    score, pos);
    }
}

/* tr_kernels_t.kv_compress, scores and positions alone. */
static int
fixture_compress(const tr_stream_t *stream, const tr_kv_view_t *v,
                 const tr_kv_compress_t *c, void *work)
{
    const tr_kv_seq_t *q = &v->seq[c->slot];

    (void) stream;
    (void) work;
    for (uint32_t head = 0; head < v->layers * v->kv_heads; head++) {
        size_t at = (size_t) c->slot * v->layers * v->kv_heads + head;
        const int32_t *row = v->tables + at * v->table_len;
        const int32_t *to = c->to_tables + (size_t) head * v->table_len;
        const int8_t *dest = c->dest + head * c->dest_len;
        uint32_t count[TR_KV_TIERS_MAX], i;

        if (tr_kv_slides(v, head / v->kv_heads)
            || !tr_kv_compress_has(c, v->kv_heads, head)) {
            continue;
        }
        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            count[l] = tr_kv_compress_stay(c, head, l);
        }
        for (uint32_t l = 0; l < q->n_tiers; l++) {
            for (i = tr_kv_compress_skip(c, head, l);
                 i < v->count[at * TR_KV_TIERS_MAX + l]; i++) {
                fixture_compress_one(v, c, to, *dest++,
                                     fixture_tiered(v, q, row, l, i), i, false,
                                     count);
            }
        }
        for (i = 0; i < tr_kv_windowed(q); i++) {
            uint32_t pos = tr_kv_windowed_position(q, i);

            fixture_compress_one(v, c, to, *dest++,
                                 fixture_windowed(v, q, row, pos), pos, false,
                                 count);
        }
        for (i = 0; i < c->n_uncompressed; i++) {
            uint32_t tokens = v->layout[0].tokens;

            fixture_compress_one(v, c, to, *dest++,
                                 fixture_place(v, row, 0, i / tokens,
                                               i % tokens),
                                 q->base + i, true, count);
        }
    }
    return TR_KERNEL_OK;
}

static size_t
fixture_compress_work(const tr_stream_t *s, uint32_t head_dim)
{
    (void) s;
    (void) head_dim;
    return 64;
}

static const tr_kernels_t fixture_kernels = {
    .name = "fixture",
    .kv_compress = fixture_compress,
    .kv_compress_work = fixture_compress_work
};

/* ---- what attention does ------------------------------------------------ */

/* Few values, so that there are equals; sometimes one that hurts. */
static float
fixture_more(void)
{
    switch (fixture_random(40)) {
    case 0:
        return fixture_random(30) == 0 ? __builtin_nanf("") : 0.5f;
    case 1:
        return fixture_random(30) == 0 ? __builtin_inff() : 1e-30f;
    case 2:
        return 4;
    default:
        return fixture_random(2) ? 0
                                 : (float) fixture_random(1u << 20) * 0x1p-22f;
    }
}

static void
fixture_add(uint8_t *at, float more)
{
    float f;

    if (at != NULL) {
        memcpy(&f, at, 4);
        f += more;
        memcpy(at, &f, 4);
    }
}

/* Some tokens of a head get more score; then its candidates, as of position
 * n. */
static void
fixture_attend_head(const tr_kv_cache_t *kv, int32_t slot, uint32_t head,
                    uint32_t n)
{
    const tr_kv_view_t *v = &kv->view;
    const tr_kv_seq_t *q = &v->seq[slot];
    const int32_t *row = manager_row(&kv->m, slot, head);
    const uint32_t *count = manager_counts(&kv->m, slot, head);
    const uint32_t *frozen = manager_frozen(&kv->m, q, slot, head);
    uint32_t uncompressed = kv->m.slot[slot].tokens - q->base;

    for (uint32_t l = 0; l < q->n_tiers; l++) {
        tr_kv_candidate_t best = { __builtin_inff(), 0 };
        uint32_t least = 0;

        for (uint32_t i = frozen != NULL ? frozen[l] : 0;
             i < count[l] && v->layout[q->tier_layout[l]].score != 0; i++) {
            fixture_place_t p = fixture_tiered(v, q, row, l, i);
            uint32_t pos = fixture_position(p, 0);
            float own;

            if (fixture_random(4) == 0) {
                fixture_add(p.score, fixture_more());
            }
            own = q->by_sum ? fixture_score(p)
                            : tr_kv_significance(fixture_score(p), pos, n + 1);
            if (own < best.significance
                || (own == best.significance && pos < least)) {
                best = (tr_kv_candidate_t){ own, i };
                least = pos;
            }
        }
        v->candidate[manager_head(&kv->m, slot, head) * TR_KV_TIERS_MAX + l] =
            best;
    }
    for (uint32_t i = 0; i < tr_kv_windowed(q); i++) {
        uint32_t pos = tr_kv_windowed_position(q, i);

        fixture_add(fixture_windowed(v, q, row, pos).score, fixture_more());
    }
    for (uint32_t i = 0; i < uncompressed; i++) {
        fixture_place_t p = fixture_place(v, row, 0, i / v->layout[0].tokens,
                                          i % v->layout[0].tokens);

        fixture_add(p.score, fixture_more());
        fixture_add(p.recent, fixture_more());
    }
}

/* Positions [before, len) of a head that slides have a place. */
static void
fixture_slid(const tr_kv_cache_t *kv, int32_t slot, uint32_t head,
             uint32_t before, uint32_t len)
{
    uint32_t tokens = kv->plan.layout[0].tokens;

    for (uint32_t i = before; i < len; i++) {
        fixture_put(fixture_place(&kv->view, manager_row(&kv->m, slot, head), 0,
                                  i / tokens, i % tokens),
                    0, i);
    }
}

/* A step was granted up to `len`, from `before` tokens. */
static void
fixture_attend(fixture_t *w, int32_t slot, uint32_t before, uint32_t len)
{
    const tr_kv_cache_t *kv = w->kv;
    const tr_kv_seq_t *q = &kv->m.seq[slot];
    bool step = len <= q->base;

    for (uint32_t head = 0; head < kv->heads; head++) {
        if (manager_slides(&kv->m, q, head)) {
            fixture_slid(kv, slot, head, before, len);
            continue;
        }
        if (step) {
            fixture_append(&kv->view, slot, head);
        }
        for (uint32_t i = before; i < len && !step; i++) {
            uint32_t tokens = kv->plan.layout[0].tokens, at = i - q->base;
            fixture_place_t p = fixture_place(&kv->view,
                                              manager_row(&kv->m, slot, head),
                                              0, at / tokens, at % tokens);

            fixture_put(p, 0, i);
            if (p.recent != NULL) {
                memset(p.recent, 0, 4);
            }
        }
        fixture_attend_head(kv, slot, head, len - 1);
    }
}

/* ---- comparison --------------------------------------------------------- */

static void
fixture_compare_head(fixture_t *w, int32_t slot, uint32_t head)
{
    const tr_kv_cache_t *kv = w->kv;
    const int32_t *mine = manager_row(&kv->m, slot, head);
    const int32_t *theirs = manager_row(&w->mirror, slot, head);
    size_t at = manager_head(&kv->m, slot, head) * TR_KV_TIERS_MAX;
    manager_run_t run[MANAGER_RUNS];
    uint32_t n, i, j, held = kv->m.seq[slot].shared, entries = 0;

    n = manager_runs(&kv->m, &kv->m.seq[slot], head,
                     manager_counts(&kv->m, slot, head), NULL,
                     manager_dense(&kv->m.slot[slot]), run);
    FIXTURE_SAME(w, memcmp(mine, theirs, held * sizeof(*mine)) == 0,
                 "slot %d head %u: shared pages", slot, head);
    for (i = 0; i < n; i++) {
        for (j = 0; j < run[i].n; j++, held++) {
            int32_t e = (int32_t) run[i].entry + (int32_t) j * run[i].step;

            FIXTURE_SAME(w, mine[e] == theirs[e],
                         "slot %d head %u entry %d: page %d, device %d", slot,
                         head, e, mine[e], theirs[e]);
        }
    }
    for (i = 0; i < kv->view.table_len; i++) {
        entries += theirs[i] != -1;
    }
    FIXTURE_SAME(w, entries == held, "slot %d head %u: %u pages, device %u",
                 slot, head, held, entries);
    FIXTURE_SAME(w,
                 memcmp(manager_counts(&kv->m, slot, head),
                        manager_counts(&w->mirror, slot, head),
                        TR_KV_TIERS_MAX * 4)
                     == 0,
                 "slot %d head %u", slot, head);
    FIXTURE_SAME(w,
                 !kv->m.seq[slot].frozen
                     || (memcmp(kv->m.frozen + at, w->mirror.frozen + at,
                                TR_KV_TIERS_MAX * 4)
                             == 0
                         && memcmp(kv->m.borrowed + at, w->mirror.borrowed + at,
                                   TR_KV_TIERS_MAX * 4)
                                == 0),
                 "slot %d head %u: frozen, or borrowed", slot, head);
    FIXTURE_SAME(w,
                 memcmp(kv->m.candidate + at, w->mirror.candidate + at,
                        TR_KV_TIERS_MAX * sizeof(tr_kv_candidate_t))
                     == 0,
                 "slot %d head %u", slot, head);
}

static void
fixture_compare(fixture_t *w)
{
    const tr_kv_cache_t *kv = w->kv;
    const tr_kv_manager_t *m = &w->mirror;

    w->device->fetch(w->device->arg);
    FIXTURE_SAME(w, m->report->faults == 0, "%u faults", m->report->faults);
    FIXTURE_SAME(w,
                 m->report->start == kv->m.report->start
                     && m->report->end == kv->m.report->end,
                 "ring [%llu, %llu), device [%llu, %llu)",
                 (unsigned long long) kv->m.report->start,
                 (unsigned long long) kv->m.report->end,
                 (unsigned long long) m->report->start,
                 (unsigned long long) m->report->end);
    FIXTURE_SAME(w, memcmp(m->ring, kv->m.ring, kv->m.size.pages * 4) == 0,
                 " ");
    FIXTURE_SAME(w, memcmp(m->owner, kv->m.owner, kv->m.size.pages * 4) == 0,
                 " ");
    FIXTURE_SAME(w,
                 memcmp(m->kept, kv->m.kept,
                        (size_t) kv->m.size.blocks * kv->heads * 4)
                     == 0,
                 "kept blocks");
    for (uint32_t i = 0; i < kv->plan.n; i++) {
        FIXTURE_SAME(w, m->report->pages[i] == kv->m.report->pages[i],
                     "layout %u: %u pages, device %u", i,
                     kv->m.report->pages[i], m->report->pages[i]);
    }
    for (uint32_t i = 0; i < w->slots && !w->failed; i++) {
        const tr_kv_slot_t *s = &kv->m.slot[i];
        const tr_kv_slot_t *t = &m->slot[i];

        FIXTURE_SAME(w, t->open == s->open, "slot %u", i);
        for (uint32_t k = 0; k < kv->heads * kv->view.table_len && !s->open;
             k++) {
            FIXTURE_SAME(w, manager_row(m, (int32_t) i, 0)[k] == -1,
                         "slot %u, closed: entry %u", i, k);
        }
        if (!s->open) {
            continue;
        }
        FIXTURE_SAME(w,
                     t->tokens == s->tokens
                         && t->uncompressed == s->uncompressed
                         && t->out == s->out
                         && t->uncompressed_pages == s->uncompressed_pages
                         && t->near_pages == s->near_pages
                         && t->near_from == s->near_from && t->pages == s->pages
                         && t->frozen_pages == s->frozen_pages
                         && t->borrowed == s->borrowed,
                     "slot %u: tokens %u %u, uncompressed %d %d, uncompressed "
                     "pages %u %u,"
                     " pages %u %u, frozen %u %u, borrowed %u %u",
                     i, s->tokens, t->tokens, s->uncompressed, t->uncompressed,
                     s->uncompressed_pages, t->uncompressed_pages, s->pages,
                     t->pages, s->frozen_pages, t->frozen_pages, s->borrowed,
                     t->borrowed);
        FIXTURE_SAME(w,
                     memcmp(&m->seq[i], &kv->m.seq[i], sizeof(tr_kv_seq_t))
                         == 0,
                     "slot %u", i);
        for (uint32_t head = 0; head < kv->heads && !w->failed; head++) {
            fixture_compare_head(w, (int32_t) i, head);
        }
    }
}

#endif
