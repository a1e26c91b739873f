/*
 * kv_append_bed.h: a small KV cache with a model of what must be in it, for the
 * tests of kv_append and kv_compress: plan, pages, tables, and the comparison of
 * every token with the model's (kv_model.h), bit for bit, with its score and
 * position.  Free pages are full of NaN.
 */
#ifndef KV_APPEND_BED_H
#define KV_APPEND_BED_H

#include "kv_model.h"

#include <cpu/cpu.h>

#define SLOTS 3
#define LAYERS 2u
#define LISTS 2u
#define HEADS (LAYERS * LISTS)
#define LEN_MAX 700u

static uint64_t rng;

typedef struct {
    uint32_t dim, n_lists, window, leaves;
    tr_kv_level_t list[3], window_level;
} case_t;

/* One head, as it should be. */
typedef struct {
    uint32_t count[TR_KV_LISTS_MAX];
    stored_t *list[TR_KV_LISTS_MAX]; /* [LEN_MAX] */
    stored_t *at;                    /* [LEN_MAX] by position: window, dense */
    float *recent;                   /* [LEN_MAX] of dense tokens */
} head_t;

typedef struct {
    const case_t *c;
    tr_page_plan_t plan;
    tr_kv_view_t kv;
    tr_kv_seq_t seq[SLOTS], to;
    uint32_t len[SLOTS];
    int32_t *tables, *to_tables, *free_page;
    uint32_t n_free, pages;
    uint32_t count[SLOTS * HEADS * TR_KV_LISTS_MAX];
    tr_kv_move_t move[SLOTS * HEADS];
    int8_t dest[HEADS * 2 * LEN_MAX];
    head_t head[SLOTS * HEADS];
} bed_t;

static void *
some(size_t n)
{
    void *p = calloc(1, n);

    assert_non_null(p);
    return p;
}

static const tr_kernels_t *
any_kernels(void)
{
    static const char *const isa[] = { "c", "avx2", "avx512" };
    const tr_kernels_t *k = tr_kernels_cpu(isa[rig_below(&rng, 3)]);

    return k ? k : tr_kernels_cpu("c");
}

static tr_stream_t
any_stream(void)
{
    return (tr_stream_t){ 1 + (int) rig_below(&rng, 3), rig_team() };
}

/* ---- a bed: plan, pages, tables ---- */

static uint8_t
layout_of(const bed_t *b, const tr_kv_level_t *v)
{
    for (uint8_t i = 1; i < b->plan.n; i++) {
        if (tr_kv_level_equal(&b->plan.layout[i].level, v)) {
            return i;
        }
    }
    fail();
    return 0;
}

static bed_t *
bed_open(const case_t *c)
{
    bed_t *b = some(sizeof(*b));
    tr_kv_level_t levels[4];
    tr_page_wish_t wish = { c->dim, levels, 0, true, true, rig_below(&rng, 2) };
    tr_kv_view_t *v = &b->kv;
    bool known = c->window == 0;
    size_t rows;

    for (uint32_t i = 0; i < c->n_lists; i++) {
        levels[wish.n_levels++] = c->list[i];
        known |= tr_kv_level_equal(&c->list[i], &c->window_level);
    }
    if (!known) {
        levels[wish.n_levels++] = c->window_level;
    }
    assert_int_equal(tr_page_plan(&wish, &b->plan), 0);
    b->c = c;
    *v = (tr_kv_view_t){ .page_bytes = b->plan.page_bytes,
                         .layers = LAYERS,
                         .lists = LISTS,
                         .head_dim = c->dim,
                         .n_layouts = b->plan.n,
                         .layout = b->plan.layout,
                         .seq = b->seq,
                         .count = b->count,
                         .move = b->move };
    v->at_window = LEN_MAX / b->plan.layout[0].tokens + 1;
    v->at_pair[0] = v->at_window + (c->window + 15) / 8 + 1;
    v->pair_len[0] = LEN_MAX / 16 + 2;
    v->at_pair[1] = v->at_pair[0] + v->pair_len[0];
    v->pair_len[1] = c->n_lists > 2 ? LEN_MAX / 16 + 2 : 0;
    v->table_len = v->at_pair[1] + v->pair_len[1];
    rows = (size_t) SLOTS * HEADS * v->table_len;
    b->pages = (uint32_t) (SLOTS + 1) * HEADS * 110;
    v->pool = aligned_alloc(64, b->pages * v->page_bytes);
    assert_non_null(v->pool);
    memset(v->pool, 0xff, b->pages * v->page_bytes);
    b->tables = some(rows * sizeof(int32_t));
    memset(b->tables, 0xff, rows * sizeof(int32_t));
    v->tables = b->tables;
    b->to_tables = some(HEADS * v->table_len * sizeof(int32_t));
    b->free_page = some(b->pages * sizeof(int32_t));
    for (; b->n_free < b->pages; b->n_free++) {
        b->free_page[b->n_free] = (int32_t) b->n_free;
    }
    for (uint32_t h = 0; h < SLOTS * HEADS; h++) {
        for (uint32_t l = 0; l < c->n_lists; l++) {
            b->head[h].list[l] = some(LEN_MAX * sizeof(stored_t));
        }
        b->head[h].at = some(LEN_MAX * sizeof(stored_t));
        b->head[h].recent = some(LEN_MAX * sizeof(float));
    }
    return b;
}

static void
bed_close(bed_t *b)
{
    for (uint32_t h = 0; h < SLOTS * HEADS; h++) {
        for (uint32_t l = 0; l < b->c->n_lists; l++) {
            free(b->head[h].list[l]);
        }
        free(b->head[h].at);
        free(b->head[h].recent);
    }
    free(b->kv.pool);
    free(b->tables);
    free(b->to_tables);
    free(b->free_page);
    free(b);
}

static void
give(bed_t *b, int32_t *entry)
{
    if (*entry >= 0) {
        memset(tr_kv_page_at(&b->kv, *entry), 0xff, b->kv.page_bytes);
        b->free_page[b->n_free++] = *entry;
        *entry = -1;
    }
}

static void
take(bed_t *b, int32_t *entry)
{
    uint32_t i = rig_below(&rng, b->n_free);

    assert_int_equal(*entry, -1);
    assert_true(b->n_free > 0);
    *entry = b->free_page[i];
    b->free_page[i] = b->free_page[--b->n_free];
}

static int32_t *
row_of(bed_t *b, uint32_t slot, uint32_t h)
{
    return b->tables + ((size_t) slot * HEADS + h) * b->kv.table_len;
}

/* Pages so that list l of a row has n tokens, the window or dense part too. */
static void
list_room(bed_t *b, int32_t *row, const tr_kv_seq_t *q, uint32_t l, uint32_t n)
{
    uint32_t tokens = b->plan.layout[q->list_layout[l]].tokens;

    for (uint32_t i = 0; i * tokens < n; i++) {
        uint32_t e = tr_kv_list_entry(&b->kv, l, i);

        if (row[e] < 0) {
            take(b, &row[e]);
        }
    }
}

static void
part_room(bed_t *b, int32_t *row, uint32_t at, uint32_t layout, uint32_t n)
{
    for (uint32_t i = 0; i * b->plan.layout[layout].tokens < n; i++) {
        if (row[at + i] < 0) {
            take(b, &row[at + i]);
        }
    }
}

/* ---- is everything where it should be? ---- */

/* No place of a page, taken or not, has a NaN beside its codes. */
static void
metadata_finite(const bed_t *b, const uint8_t *p, const tr_kv_layout_t *l)
{
    const bool wide = l->level.key_bits == 16 && l->level.value_bits == 16;
    const uint32_t end = l->score ? l->score : b->plan.page_bytes;

    for (uint32_t i = tr_kv_tiles_end(l); !wide && i < end; i += 2) {
        uint16_t h;

        memcpy(&h, p + i, 2);
        if ((h & 0x7c00) == 0x7c00) {
            fail_msg("behind the tiles of a page, byte %u is 0x%04x", i, h);
        }
    }
    for (uint32_t i = 0; i < 2 * l->tokens * b->c->dim; i++) {
        uint32_t token = i / 2 / b->c->dim, d = i / 2 % b->c->dim;
        uint32_t at = i % 2 ? tr_kv_value_meta(l, token, d)
                            : tr_kv_key_meta(l, token, d);
        uint16_t pair[2];

        if ((i % 2 ? l->value_meta : l->key_meta) == 0) {
            continue;
        }
        memcpy(pair, p + at, 4);
        if ((pair[0] & 0x7c00) == 0x7c00 || (pair[1] & 0x7c00) == 0x7c00) {
            fail_msg("metadata at byte %u of a page is 0x%04x, 0x%04x", at,
                     pair[0], pair[1]);
        }
    }
    const uint32_t each = 4 + (l->recent ? 4 : l->position_bytes);

    for (uint32_t i = 0; l->score && i < each * l->tokens / 4; i++) {
        float x;

        memcpy(&x, p + l->score + 4 * i, 4);
        assert_false(isnan(x));
    }
}

static void
check_digest(const bed_t *b, const int32_t *row, const head_t *h, uint32_t base,
             uint32_t len)
{
    const tr_kv_layout_t *l = &b->plan.layout[0];

    for (uint32_t first = base; first < len; first += l->tokens) {
        const uint8_t *page = tr_kv_page_at(&b->kv,
                                            row[(first - base) / l->tokens]);

        for (uint32_t d = 0; d < b->c->dim; d++) {
            float lo = INFINITY, hi = -INFINITY;
            uint16_t is[2];

            for (uint32_t p = first; p < len && p < first + l->tokens; p++) {
                float x = tr_float_from_half(h->at[p].k.half[d]);

                lo = fminf(lo, x);
                hi = fmaxf(hi, x);
            }
            memcpy(&is[0], page + l->digest + 2 * d, 2);
            memcpy(&is[1], page + l->digest + 2 * (b->c->dim + d), 2);
            assert_true(tr_float_from_half(is[0]) == lo);
            assert_true(tr_float_from_half(is[1]) == hi);
        }
    }
}

static void
check_head(bed_t *b, uint32_t slot, uint32_t head)
{
    const tr_kv_seq_t *q = &b->seq[slot];
    const int32_t *row = row_of(b, slot, head);
    const head_t *h = &b->head[slot * HEADS + head];

    for (uint32_t l = 0; l < q->n_lists; l++) {
        for (uint32_t i = 0; i < h->count[l]; i++) {
            tr_kv_place_t p = tr_kv_place_list(&b->kv, row, q, l, i);

            model_check(p.page, p.layout, p.at, &h->list[l][i]);
            if (p.at == 0) {
                metadata_finite(b, p.page, p.layout);
            }
        }
    }
    for (uint32_t p = q->window ? q->window_from : q->base; p < b->len[slot];
         p++) {
        tr_kv_place_t at = p < q->base
                               ? tr_kv_place_window(&b->kv, row, q,
                                                    p % q->window)
                               : tr_kv_place_dense(&b->kv, row, p - q->base);

        model_check(at.page, at.layout, at.at, &h->at[p]);
        if (p >= q->base) {
            float recent;

            memcpy(&recent, at.page + at.layout->recent + 4 * at.at, 4);
            assert_true(recent == h->recent[p]);
        } else if (at.at % 16 == 0) {
            metadata_finite(b, at.page, at.layout);
        }
    }
    check_digest(b, row, h, q->base, b->len[slot]);
}

static void
check_slot(bed_t *b, uint32_t slot)
{
    for (uint32_t h = 0; h < HEADS; h++) {
        check_head(b, slot, h);
    }
}

/* As if attention had run: scores of some tokens grow. */
static void
pay(bed_t *b, uint32_t slot)
{
    tr_kv_seq_t *q = &b->seq[slot];

    for (uint32_t i = 0; i < HEADS; i++) {
        head_t *h = &b->head[slot * HEADS + i];
        const int32_t *row = row_of(b, slot, i);

        for (uint32_t l = 0; l < q->n_lists; l++) {
            if (h->count[l] > 0) {
                uint32_t n = rig_below(&rng, h->count[l]);
                stored_t *t = &h->list[l][n];

                t->score += (float) rig_below(&rng, 100) / 100;
                tr_kv_mark(tr_kv_place_list(&b->kv, row, q, l, n), t->score,
                           t->position);
            }
        }
        for (uint32_t p = q->base; p < b->len[slot]; p++) {
            tr_kv_place_t at = tr_kv_place_dense(&b->kv, row, p - q->base);

            h->at[p].score += (float) rig_below(&rng, 100) / 100;
            h->recent[p] += (float) rig_below(&rng, 100) / 100;
            tr_kv_mark(at, h->at[p].score, p);
            memcpy(at.page + at.layout->recent + 4 * at.at, &h->recent[p], 4);
        }
        for (uint32_t p = q->window_from; q->window && p < q->base; p++) {
            h->at[p].score += (float) rig_below(&rng, 100) / 100;
            tr_kv_mark(tr_kv_place_window(&b->kv, row, q, p % q->window),
                       h->at[p].score, p);
        }
    }
}

/* ---- layouts to try ---- */

#define V(k, v, kg, vg, ch, sc, na) \
    {                               \
        k, v, kg, vg, ch, sc, na    \
    }

static const case_t cases[] = {
    { 64,
      2,
      24,
      1,
      { V(8, 4, 1, 1, 0, 1, 0), V(4, 2, 1, 1, 0, 1, 1) },
      V(8, 4, 1, 1, 0, 1, 0) },
    { 128,
      3,
      40,
      1,
      { V(16, 16, 1, 1, 0, 1, 0), V(8, 4, 1, 1, 0, 1, 0),
        V(4, 2, 1, 1, 0, 1, 1) },
      V(16, 16, 1, 1, 0, 1, 0) },
    { 96,
      2,
      16,
      1,
      { V(8, 8, 2, 3, 0, 1, 0), V(2, 4, 2, 3, 0, 1, 0) },
      V(16, 8, 1, 1, 0, 1, 0) },
    { 256, 1, 7, 1, { V(4, 4, 4, 4, 0, 0, 0) }, V(8, 8, 4, 4, 0, 0, 0) },
    { 64, 1, 0, 1, { V(4, 4, 1, 1, 0, 0, 0) }, V(0, 0, 0, 0, 0, 0, 0) },
    { 128,
      2,
      0,
      1,
      { V(8, 4, 1, 1, 0, 1, 0), V(4, 4, 1, 2, 0, 1, 0) },
      V(0, 0, 0, 0, 0, 0, 0) },
    { 64, 1, 64, 32, { V(2, 2, 1, 4, 1, 0, 0) }, V(16, 16, 1, 1, 0, 0, 0) },
    { 128, 1, 96, 32, { V(4, 2, 1, 1, 1, 1, 0) }, V(16, 16, 1, 1, 0, 1, 0) },
    { 64,
      2,
      130,
      1,
      { V(8, 2, 2, 1, 0, 1, 0), V(2, 2, 2, 1, 0, 1, 0) },
      V(8, 8, 2, 1, 0, 1, 0) },
};
#define N_CASES (sizeof(cases) / sizeof(cases[0]))

#endif
