/*
 * kv_append and kv_compress through the backend's table: sequences that are
 * prompts, are compressed, generate, and are prompts again, under a policy that
 * moves tokens at random, against lists of kv_model.h.  Every token must be
 * where the model has it, bit for bit, with its score and position; free pages
 * are full of NaN, and plans that cannot be followed change nothing.
 */
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
    tr_page_wish_t wish = { c->dim, levels, 0, true, true };
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
    uint32_t end = l->score ? l->score : b->plan.page_bytes;
    uint32_t parts[2][2] = { { l->key_meta, l->value },
                             { l->value_meta, end } };

    for (int k = 0; k < 2; k++) {
        for (uint32_t i = parts[k][0]; i != 0 && i < parts[k][1]; i += 2) {
            uint16_t h;

            memcpy(&h, p + i, 2);
            if ((h & 0x7c00) == 0x7c00) {
                fail_msg("metadata at byte %u of a page is 0x%04x", i, h);
            }
        }
    }
    for (uint32_t i = 0; l->score && i < 2 * l->tokens; i++) {
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

/* ---- a step ---- */

/* A move of one head that a policy could have decided, in table, counts and
 * model; `in`: the new token's layout, or NULL without a window. */
static void
random_move(bed_t *b, uint32_t slot, uint32_t i, uint32_t from, uint32_t leaves)
{
    const tr_kv_seq_t *q = &b->seq[slot];
    tr_kv_move_t *m = &b->move[slot * HEADS + i];
    head_t *h = &b->head[slot * HEADS + i];
    int32_t *row = row_of(b, slot, i);
    uint32_t l;

    *m = (tr_kv_move_t){ .to = TR_KV_STAYS,
                         .victim_from = TR_KV_STAYS,
                         .victim_to = TR_KV_NOWHERE,
                         .leaves = (uint8_t) leaves,
                         .leave_pos = from };
    if (leaves == 0) {
        return;
    }
    m->to = (int8_t) rig_below(&rng, q->n_lists + 1) - 1; /* -1: nowhere */
    if (m->to < 0) {
        return;
    }
    l = (uint32_t) m->to;
    m->index = h->count[l];
    if (leaves == 1 && h->count[l] > 0 && rig_below(&rng, 2)) {
        uint32_t at = rig_below(&rng, h->count[l]);
        uint32_t below = q->n_lists - 1 - l;
        int8_t to = below == 0 || rig_below(&rng, 3) == 0
                        ? TR_KV_NOWHERE
                        : (int8_t) (l + 1 + rig_below(&rng, below));

        m->victim_from = m->to;
        m->victim_index = m->index = at;
        m->victim_to = to;
        if (to >= 0) {
            stored_t *t = &h->list[to][h->count[to]];
            const tr_kv_layout_t *a = &b->plan.layout[q->list_layout[l]];
            const tr_kv_layout_t *z = &b->plan.layout[q->list_layout[to]];

            m->victim_target = h->count[to]++;
            *t = h->list[l][at];
            model_move(a, z, false, &t->k);
            model_move(a, z, true, &t->v);
            list_room(b, row, q, (uint32_t) to, h->count[to]);
        }
    } else {
        h->count[l] += leaves;
        list_room(b, row, q, l, h->count[l]);
    }
    if (q->window) {
        stored_t *t = &h->list[l][m->index];
        const tr_kv_layout_t *a = &b->plan.layout[q->window_layout];
        const tr_kv_layout_t *z = &b->plan.layout[q->list_layout[l]];

        for (uint32_t n = 0; n < leaves; n++) {
            t[n] = h->at[from + n];
            model_move(a, z, true, &t[n].v);
            if (!z->level.by_channel) {
                model_move(a, z, false, &t[n].k);
            }
        }
        if (z->level.by_channel) {
            model_tile(z, t);
        }
    }
}

/* Decides for the token that comes next to a compressed slot. */
static void
plan_step(bed_t *b, uint32_t slot)
{
    tr_kv_seq_t *q = &b->seq[slot];
    uint32_t full = q->window && q->base - q->window_from == q->window;
    uint32_t leaves = q->window == 0 ? 1 : full ? b->c->leaves : 0;
    uint32_t from = q->window ? q->window_from : q->base;

    for (uint32_t i = 0; i < HEADS; i++) {
        random_move(b, slot, i, from, leaves);
        if (q->window) {
            uint32_t n = q->base < q->window ? q->base + 1 : q->window;

            part_room(b, row_of(b, slot, i), b->kv.at_window, q->window_layout,
                      n);
        }
        memcpy(b->count + (slot * HEADS + i) * TR_KV_LISTS_MAX,
               b->head[slot * HEADS + i].count, sizeof(b->head[0].count));
    }
    q->base++;
    q->window_from = q->window ? q->window_from + leaves : q->base;
}

/* Angles that rotate without rounding: quarter turns. */
static void
quarter_turns(float *angles, uint32_t half)
{
    static const float turn[4][2] = {
        { 1, 0 }, { 0, 1 }, { -1, 0 }, { 0, -1 }
    };

    for (uint32_t i = 0; i < half; i++) {
        uint32_t t = rig_below(&rng, 4);

        angles[i] = turn[t][0];
        angles[half + i] = turn[t][1];
    }
}

/* Puts the row's token into the model of one head. */
static void
expect(bed_t *b, uint32_t slot, uint32_t i, uint32_t pos, const float *k,
       const float *v, const float *angles)
{
    const tr_kv_seq_t *q = &b->seq[slot];
    head_t *h = &b->head[slot * HEADS + i];
    uint32_t half = b->c->dim / 2, layout = 0;
    stored_t *t = &h->at[pos];
    float key[TR_HEAD_DIM_MAX];

    for (uint32_t d = 0; d < half; d++) {
        key[d] = k[d] * angles[d] - k[half + d] * angles[half + d];
        key[half + d] = k[half + d] * angles[d] + k[d] * angles[half + d];
    }
    if (pos < q->base && q->window == 0) {
        const tr_kv_move_t *m = &b->move[slot * HEADS + i];

        if (m->to < 0) {
            return;
        }
        t = &h->list[m->to][m->index];
        layout = q->list_layout[m->to];
    } else if (pos < q->base) {
        layout = q->window_layout;
    }
    model_quantise(&b->plan.layout[layout], false, key, &t->k);
    model_quantise(&b->plan.layout[layout], true, v, &t->v);
    t->position = layout == 0 ? 0 : pos; /* dense pages have none */
    t->score = 0;
    h->recent[pos] = 0;
}

/* Stores n[s] tokens more of each slot in one step, all layers. */
static void
append(bed_t *b, const uint32_t *n)
{
    uint32_t dim = b->c->dim, pos[SLOTS * 64], seq_row[SLOTS + 1];
    size_t ld = LISTS * dim + 8;
    int32_t slot[SLOTS];
    tr_rows_t rows = { 0, 0, pos, slot, seq_row };
    float *k, *v, *angles;

    for (uint32_t s = 0; s < SLOTS; s++) {
        bool step = b->seq[s].n_lists > 0 && b->seq[s].base == b->len[s];

        if (n[s] == 0) {
            continue;
        }
        seq_row[rows.n_seqs] = rows.n_rows;
        slot[rows.n_seqs++] = (int32_t) s;
        for (uint32_t i = 0; i < n[s]; i++) {
            pos[rows.n_rows++] = b->len[s] + i;
        }
        if (n[s] == 1 && step) {
            plan_step(b, s);
        } else {
            for (uint32_t i = 0; i < HEADS; i++) {
                part_room(b, row_of(b, s, i), 0, 0,
                          b->len[s] + n[s] - b->seq[s].base);
            }
        }
        b->len[s] += n[s];
    }
    seq_row[rows.n_seqs] = rows.n_rows;
    k = some((rows.n_rows + 1) * ld * sizeof(float));
    v = some((rows.n_rows + 1) * ld * sizeof(float));
    angles = some((rows.n_rows + 1) * dim * sizeof(float));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        tr_stream_t s = any_stream();

        for (uint32_t r = 0; r < rows.n_rows; r++) {
            quarter_turns(angles + r * dim, dim / 2);
            for (uint32_t i = 0; i < LISTS * dim; i++) {
                k[r * ld + i] = rig_normal(&rng);
                v[r * ld + i] = rig_normal(&rng) * 1e-2f;
            }
            for (uint32_t l = 0; l < LISTS; l++) {
                expect(b, (uint32_t) slot[tr_seq_of(seq_row, rows.n_seqs, r)],
                       layer * LISTS + l, pos[r], k + r * ld + l * dim,
                       v + r * ld + l * dim, angles + r * dim);
            }
        }
        assert_int_equal(any_kernels()->kv_append(&s, &b->kv, layer, &rows, k,
                                                  v, ld, angles),
                         TR_KERNEL_OK);
    }
    free(k);
    free(v);
    free(angles);
}

/* ---- a compression ---- */

typedef struct {
    stored_t t;
    const tr_kv_layout_t *layout;
    int from;       /* list, or TR_KV_WINDOW, TR_KV_NOWHERE for dense */
    uint32_t index; /* in that list */
} source_t;

static uint32_t
sources(bed_t *b, uint32_t slot, uint32_t i, uint32_t observe, source_t *out)
{
    const tr_kv_seq_t *q = &b->seq[slot];
    const head_t *h = &b->head[slot * HEADS + i];
    uint32_t n = 0, len = b->len[slot];

    for (uint32_t l = 0; l < q->n_lists; l++) {
        for (uint32_t j = 0; j < h->count[l]; j++) {
            out[n++] = (source_t){ h->list[l][j],
                                   &b->plan.layout[q->list_layout[l]], (int) l,
                                   j };
        }
    }
    for (uint32_t p = q->window ? q->window_from : q->base; p < len; p++) {
        out[n] = (source_t){
            h->at[p], &b->plan.layout[p < q->base ? q->window_layout : 0],
            TR_KV_WINDOW, p
        };
        out[n].t.position = p;
        if (p >= q->base) {
            out[n].from = TR_KV_NOWHERE;
            if (observe) {
                out[n].t.score = tr_kv_observed(h->recent[p], len - 1 - p,
                                                observe);
            }
        }
        n++;
    }
    return n;
}

/* Random choices; a list by channel gets a multiple of 32. */
static void
choose(const bed_t *b, const source_t *s, uint32_t n, int8_t *dest)
{
    uint32_t got[TR_KV_LISTS_MAX] = { 0 };
    bool keep = rig_below(&rng, 2); /* what is listed stays as it is */

    for (uint32_t i = 0; i < n; i++) {
        int8_t low = s[i].from >= 0 ? (int8_t) s[i].from : 0;

        if (s[i].from < 0 && s[i].index >= b->to.window_from && b->to.window) {
            dest[i] = TR_KV_WINDOW;
            continue;
        }
        dest[i] = (int8_t) (low
                            + (int8_t) rig_below(&rng,
                                                 b->to.n_lists - low + 1));
        if (keep && s[i].from >= 0) {
            dest[i] = low;
        }
        if (dest[i] == (int8_t) b->to.n_lists) {
            dest[i] = TR_KV_NOWHERE;
        } else {
            got[dest[i]]++;
        }
    }
    for (uint32_t i = n; i-- > 0;) {
        if (dest[i] >= 0
            && b->plan.layout[b->to.list_layout[dest[i]]].level.by_channel
            && got[dest[i]] % TR_KV_CHANNEL_TOKENS) {
            got[dest[i]]--;
            dest[i] = TR_KV_NOWHERE;
        }
    }
}

static bool
whole_tile(const source_t *const *s)
{
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++) {
        if (s[i]->from < 0 || !s[i]->layout->level.by_channel
            || s[i]->from != s[0]->from || s[0]->index % 32 != 0
            || s[i]->index != s[0]->index + i) {
            return false;
        }
    }
    return true;
}

/* The model of list l after the choices. */
static void
expect_list(bed_t *b, head_t *h, uint32_t l, const source_t *s, uint32_t n,
            const int8_t *dest)
{
    const tr_kv_layout_t *to = &b->plan.layout[b->to.list_layout[l]];
    const source_t *tile[TR_KV_CHANNEL_TOKENS];
    uint32_t got = 0;

    for (uint32_t i = 0; i < n; i++) {
        stored_t *t = &h->list[l][got];

        if (dest[i] != (int8_t) l) {
            continue;
        }
        *t = s[i].t;
        model_move(s[i].layout, to, true, &t->v);
        tile[got++ % TR_KV_CHANNEL_TOKENS] = &s[i];
        if (!to->level.by_channel) {
            model_move(s[i].layout, to, false, &t->k);
        } else if (got % TR_KV_CHANNEL_TOKENS == 0) {
            t -= TR_KV_CHANNEL_TOKENS - 1;
            if (!whole_tile(tile)) {
                model_tile(to, t);
            } else if (tile[0]->layout->level.key_bits != to->level.key_bits) {
                for (uint32_t j = 0; j < TR_KV_CHANNEL_TOKENS; j++) {
                    model_downgrade(&t[j].k, to->level.key_bits, false,
                                    b->c->dim);
                }
            }
        }
    }
    h->count[l] = got;
}

static void
expect_head(bed_t *b, uint32_t slot, uint32_t i, const source_t *s, uint32_t n,
            const int8_t *dest)
{
    head_t *h = &b->head[slot * HEADS + i];
    int32_t *row = b->to_tables + i * b->kv.table_len;

    for (uint32_t l = 0; l < b->to.n_lists; l++) {
        expect_list(b, h, l, s, n, dest);
        list_room(b, row, &b->to, l, h->count[l]);
    }
    for (uint32_t j = 0; j < n; j++) {
        if (dest[j] == TR_KV_WINDOW) {
            stored_t *t = &h->at[s[j].t.position];

            *t = s[j].t;
            model_move(s[j].layout, &b->plan.layout[b->to.window_layout], false,
                       &t->k);
            model_move(s[j].layout, &b->plan.layout[b->to.window_layout], true,
                       &t->v);
        }
    }
    if (b->to.window) {
        part_room(b, row, b->kv.at_window, b->to.window_layout,
                  b->to.base < b->to.window ? b->to.base : b->to.window);
    }
}

static void
compress_target(bed_t *b, uint32_t slot)
{
    const case_t *c = b->c;
    uint32_t len = b->len[slot], from = len > c->window ? len - c->window : 0;

    if (c->leaves == TR_KV_CHANNEL_TOKENS) {
        from = (from + 31) / 32 * 32;
    }
    b->to = (tr_kv_seq_t){ .base = len,
                           .window_from = c->window ? from : len,
                           .window = c->window,
                           .n_lists = (uint8_t) c->n_lists,
                           .scored = true };
    for (uint32_t l = 0; l < c->n_lists; l++) {
        b->to.list_layout[l] = layout_of(b, &c->list[l]);
    }
    if (c->window) {
        b->to.window_layout = layout_of(b, &c->window_level);
    }
}

static void
compress(bed_t *b, uint32_t slot)
{
    const tr_kernels_t *kernels = any_kernels();
    tr_stream_t stream = any_stream();
    uint32_t observe = rig_below(&rng, 3) ? 0 : 1 + rig_below(&rng, 40);
    tr_kv_compress_t c = { .slot = (int32_t) slot,
                           .n_dense = b->len[slot] - b->seq[slot].base,
                           .to = &b->to,
                           .to_tables = b->to_tables,
                           .dest = b->dest,
                           .dest_len = 2 * LEN_MAX,
                           .observe = observe };
    source_t *s = some(2 * LEN_MAX * sizeof(*s));
    void *work = some(kernels->kv_compress_work(&stream, b->c->dim));
    size_t row = b->kv.table_len * sizeof(int32_t);

    compress_target(b, slot);
    memset(b->to_tables, 0xff, HEADS * row);
    for (uint32_t i = 0; i < HEADS; i++) {
        int8_t *dest = b->dest + i * c.dest_len;
        uint32_t n = sources(b, slot, i, observe, s);

        choose(b, s, n, dest);
        expect_head(b, slot, i, s, n, dest);
    }
    assert_int_equal(kernels->kv_compress(&stream, &b->kv, &c, work),
                     TR_KERNEL_OK);
    for (uint32_t i = 0; i < HEADS; i++) {
        int32_t *old = row_of(b, slot, i);

        for (uint32_t e = 0; e < b->kv.table_len; e++) {
            give(b, &old[e]);
        }
        memcpy(old, b->to_tables + i * b->kv.table_len, row);
        memcpy(b->count + (slot * HEADS + i) * TR_KV_LISTS_MAX,
               b->head[slot * HEADS + i].count, sizeof(b->head[0].count));
    }
    b->seq[slot] = b->to;
    free(s);
    free(work);
}

/* ---- tests ---- */

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

/* Prompts in chunks, steps beside them, later turns. */
static void
test_sequences(void **state)
{
    (void) state;
    for (uint32_t c = 0; c < N_CASES; c++) {
        bed_t *b = bed_open(&cases[c]);
        uint32_t left[SLOTS] = { 0 }; /* of the prompt; then of the answer */
        uint32_t turn[SLOTS] = { 0 };

        for (uint32_t round = 0; round < 160; round++) {
            uint32_t n[SLOTS];

            for (uint32_t s = 0; s < SLOTS; s++) {
                bool dense = b->len[s] > b->seq[s].base || b->len[s] == 0;

                if (left[s] == 0 && dense && b->len[s] > 0) {
                    pay(b, s);
                    compress(b, s);
                    check_slot(b, s);
                    left[s] = 40 + rig_below(&rng, 60);
                    dense = false;
                } else if (left[s] == 0) {
                    left[s] = 1 + rig_below(&rng, turn[s]++ ? 40 : 450);
                    dense = true;
                }
                n[s] = dense ? 1 + rig_below(&rng, 60) : 1;
                n[s] = n[s] < left[s] ? n[s] : left[s];
                /* one token alone would be a step of a compressed slot */
                if (dense && b->seq[s].n_lists && b->len[s] == b->seq[s].base
                    && n[s] == 1) {
                    n[s] = left[s] = 2;
                }
                if (b->len[s] + n[s] + 100 > LEN_MAX) {
                    n[s] = 0;
                    continue;
                }
                left[s] -= n[s];
            }
            append(b, n);
            pay(b, round % SLOTS);
            if (round % 16 == 0) {
                check_slot(b, rig_below(&rng, SLOTS));
            }
        }
        for (uint32_t s = 0; s < SLOTS; s++) {
            check_slot(b, s);
        }
        bed_close(b);
    }
}

/* A slot with lists and window, ready for a step of one token. */
static bed_t *
bed_ready(const case_t *c, uint32_t len)
{
    bed_t *b = bed_open(c);
    uint32_t n[SLOTS] = { 60, 0, 0 };

    for (uint32_t i = 0; i < len / 60; i++) {
        append(b, n);
    }
    compress(b, 0);
    n[0] = 1;
    for (uint32_t i = 0; i < 2 * c->leaves + 8; i++) {
        append(b, n);
    }
    check_slot(b, 0);
    return b;
}

static uint8_t *
pool_copy(const bed_t *b)
{
    uint8_t *copy = some(b->pages * b->kv.page_bytes);

    memcpy(copy, b->kv.pool, b->pages * b->kv.page_bytes);
    return copy;
}

static int
try_step(bed_t *b, uint32_t n_rows)
{
    uint32_t pos[2] = { b->seq[0].base - 1, b->seq[0].base };
    uint32_t seq_row[2] = { 0, n_rows };
    int32_t slot = 0;
    tr_rows_t rows = { n_rows, 1, pos, &slot, seq_row };
    float x[4 * LISTS * 128] = { 0 };
    tr_stream_t s = any_stream();

    return any_kernels()->kv_append(&s, &b->kv, 1, &rows, x, x,
                                    (size_t) LISTS * b->c->dim, x);
}

static void
test_bad_steps(void **state)
{
    bed_t *b = bed_ready(&cases[0], 180);
    tr_kv_seq_t seq;
    tr_kv_move_t *m = &b->move[HEADS - 1], good;
    uint8_t *before;

    (void) state;
    while (m->victim_from < 0 || m->victim_to < 0) {
        append(b, (uint32_t[]){ 1, 0, 0 });
    }
    good = *m;
    seq = b->seq[0];
    before = pool_copy(b);
    for (uint32_t i = 0; i < 26; i++) {
        uint32_t *count = &b->count[(HEADS - 1) * TR_KV_LISTS_MAX], had;
        uint32_t n_rows = 1;
        int32_t *row = row_of(b, 0, HEADS - 1), saved = row[b->kv.at_window];

        had = count[m->to];
        /* clang-format off */
        switch (i) {
        case 0: m->to = 2; break;
        case 1: m->to = -3; break;
        case 2: m->index = b->head[HEADS - 1].count[m->to]; break;
        case 3: m->index = UINT32_MAX; break;
        case 4: m->leaves = 0; break;
        case 5: m->leaves = 33; break;
        case 6: m->leave_pos = b->seq[0].base - 1; break;
        case 7: m->leave_pos -= 1; break;
        case 8: m->leave_pos = UINT32_MAX; break;
        case 9: m->victim_from = 2; break;
        case 10: m->victim_from = -1; break;
        case 11: m->victim_to = 2; break;
        case 12: m->victim_to = -3; break;
        case 13: m->victim_index = UINT32_MAX; break;
        case 14: m->victim_index = LEN_MAX * 16; break;
        case 15: m->victim_target += 1; break;
        case 16: m->victim_from = 1; m->victim_to = 0; break; /* bits go up */
        case 17: b->seq[0].list_layout[0] = 9; break;
        case 18: b->seq[0].list_layout[1] = 0; break;
        case 19: b->seq[0].window_layout = 9; break;
        case 20: b->seq[0].window_from -= 1; break;
        case 21: n_rows = 2; break;
        case 22: b->seq[0].n_lists = 0; break;
        case 23: b->seq[0].n_lists = 5; break;
        case 24: m->index = count[m->to] = 0; break;
        default: row[b->kv.at_window] = -1; break; /* one page a window */
        }
        /* clang-format on */
        if (try_step(b, n_rows) != TR_KERNEL_BADARG) {
            fail_msg("case %u was not refused", i);
        }
        *m = good;
        count[m->to] = had;
        b->seq[0] = seq;
        row[b->kv.at_window] = saved;
    }
    assert_memory_equal(before, b->kv.pool, b->pages * b->kv.page_bytes);
    assert_int_equal(try_step(b, 1), TR_KERNEL_OK);
    free(before);
    bed_close(b);
}

/* Lists by channel have no victims, and take whole tiles. */
static void
test_bad_tiles(void **state)
{
    bed_t *b = bed_ready(&cases[6], 180);
    tr_kv_move_t *m = &b->move[HEADS - 1], good;
    uint32_t last = b->count[(HEADS - 1) * TR_KV_LISTS_MAX] - 32;
    uint8_t *before;

    (void) state;
    /* 32 tokens leave a full window */
    *m = (tr_kv_move_t){ 0,
                         TR_KV_STAYS,
                         TR_KV_NOWHERE,
                         32,
                         b->seq[0].base - 1 - b->c->window,
                         last,
                         0,
                         0 };
    b->seq[0].window_from = b->seq[0].base - 32;
    for (uint32_t i = 0; i < HEADS; i++) {
        part_room(b, row_of(b, 0, i), b->kv.at_window, b->seq[0].window_layout,
                  b->c->window);
    }
    for (uint32_t i = 0; i + 1 < HEADS; i++) {
        b->move[i].to = TR_KV_NOWHERE;
        b->move[i].victim_from = TR_KV_STAYS;
    }
    good = *m;
    before = pool_copy(b);
    for (uint32_t i = 0; i < 4; i++) {
        /* clang-format off */
        switch (i) {
        case 0: m->victim_from = 0; break;
        case 1: m->leaves = 1; break;
        case 2: m->leaves = 31; break;
        default: m->index -= 1; break;
        }
        /* clang-format on */
        if (try_step(b, 1) != TR_KERNEL_BADARG) {
            fail_msg("case %u was not refused", i);
        }
        *m = good;
    }
    assert_memory_equal(before, b->kv.pool, b->pages * b->kv.page_bytes);
    assert_int_equal(try_step(b, 1), TR_KERNEL_OK);
    free(before);
    bed_close(b);
}

/* What a compression of slot 0 needs, made by hand. */
typedef struct {
    bed_t *b;
    tr_kv_compress_t c;
    uint32_t n; /* sources of head 0 */
} plan_t;

static plan_t
plan_good(bed_t *b)
{
    plan_t p = { .b = b,
                 .c = { .slot = 0,
                        .n_dense = b->len[0] - b->seq[0].base,
                        .to = &b->to,
                        .to_tables = b->to_tables,
                        .dest = b->dest,
                        .dest_len = 2 * LEN_MAX } };
    source_t *s = some(2 * LEN_MAX * sizeof(*s));

    compress_target(b, 0);
    for (uint32_t i = 0; i < HEADS; i++) {
        uint32_t n = sources(b, 0, i, 0, s);

        choose(b, s, n, b->dest + i * p.c.dest_len);
        p.n = i == 0 ? n : p.n;
    }
    /* every entry has a page: what is written is not looked at */
    for (size_t i = 0; i < (size_t) HEADS * b->kv.table_len; i++) {
        b->to_tables[i] = b->free_page[i % b->n_free];
    }
    free(s);
    return p;
}

static void
refused(const plan_t *p, const char *what)
{
    const tr_kernels_t *k = any_kernels();
    tr_stream_t s = any_stream();
    uint8_t work[256];

    assert_in_range(k->kv_compress_work(&s, p->b->c->dim), 0, sizeof(work));
    if (k->kv_compress(&s, &p->b->kv, &p->c, work) != TR_KERNEL_BADARG) {
        fail_msg("%s was not refused", what);
    }
}

#define REFUSED(what, ...)                                               \
    do {                                                                 \
        p = plan_good(b);                                                \
        __VA_ARGS__;                                                     \
        refused(&p, what);                                               \
        memcpy(b->seq, seq, sizeof(seq));                                \
        memcpy(row_of(b, 0, 0), row, sizeof(int32_t) * b->kv.table_len); \
    } while (0)

static void
test_bad_plans(void **state)
{
    bed_t *b = bed_ready(&cases[0], 180), *channel = bed_ready(&cases[6], 180);
    tr_kv_seq_t seq[SLOTS];
    uint8_t *before;
    int32_t *row;
    plan_t p;

    (void) state;
    append(b, (uint32_t[]){ 60, 0, 0 });
    memcpy(seq, b->seq, sizeof(seq));
    row = some(sizeof(int32_t) * b->kv.table_len);
    memcpy(row, row_of(b, 0, 0), sizeof(int32_t) * b->kv.table_len);
    before = pool_copy(b);
    REFUSED("too little room for choices", p.c.dest_len = p.n - 1);
    REFUSED("an unknown list", b->dest[p.n / 2] = 2);
    REFUSED("an unknown place", b->dest[p.n / 2] = -4);
    REFUSED("STAYS", b->dest[p.n / 2] = TR_KV_STAYS);
    REFUSED("bits that go up", b->dest[b->count[0]] = 0);
    REFUSED("a listed token for the window", b->dest[0] = TR_KV_WINDOW);
    REFUSED("a window with a hole", b->dest[p.n - 1] = 0);
    REFUSED("a window that is too long", b->to.window_from--);
    REFUSED("an old token for the window", b->dest[p.n - 30] = TR_KV_WINDOW);
    REFUSED("an old token for a new one in the window",
            b->dest[p.n - 30] = TR_KV_WINDOW, b->dest[p.n - 1] = 0);
    REFUSED("a base elsewhere", b->to.base++);
    REFUSED("no lists", b->to.n_lists = 0);
    REFUSED("too many lists", b->to.n_lists = 5);
    REFUSED("a list without layout", b->to.list_layout[1] = 0);
    REFUSED("a layout too many", b->to.list_layout[1] = 9);
    REFUSED("a window without layout", b->to.window_layout = 9);
    REFUSED("a list without page", memset(b->to_tables + b->kv.at_pair[0], 0xff,
                                          4 * b->kv.pair_len[0]));
    REFUSED("a window without page", b->to_tables[b->kv.at_window] = -1);
    REFUSED("a source without page", row_of(b, 0, 0)[b->kv.at_pair[0]] = -1);
    REFUSED("dense tokens without page", row_of(b, 0, 0)[0] = -1);
    REFUSED("more dense tokens than pages", p.c.n_dense += LEN_MAX,
            b->to.base += LEN_MAX);
    assert_memory_equal(before, b->kv.pool, b->pages * b->kv.page_bytes);
    free(before);
    free(row);
    bed_close(b);

    b = bed_ready(&cases[0], 180);
    append(b, (uint32_t[]){ 10, 0, 0 });
    p = plan_good(b);
    b->to.window = 100; /* begins among tokens that are in lists */
    b->to.window_from = b->to.base - 100;
    for (uint32_t i = 0; i < HEADS; i++) {
        const uint32_t *had = &b->count[i * TR_KV_LISTS_MAX];

        memset(b->dest + i * p.c.dest_len + had[0] + had[1], TR_KV_WINDOW,
               b->to.base - b->seq[0].window_from);
    }
    refused(&p, "a window of tokens that are listed");
    p = plan_good(b);
    b->dest[p.n - 30] = TR_KV_WINDOW; /* it was in the old window */
    b->dest[p.n - 1] = 0;
    refused(&p, "an old token of the old window");
    p = plan_good(b);
    b->dest[p.n - 15] = 0; /* it was in the old window, too, and stays */
    b->dest[p.n - 30] = TR_KV_WINDOW;
    refused(&p, "a token of the old window for another");
    bed_close(b);

    b = channel;
    append(b, (uint32_t[]){ 60, 0, 0 });
    before = pool_copy(b);
    p = plan_good(b);
    for (uint32_t i = 0; i < p.n; i++) {
        if (b->dest[i] == 0) {
            b->dest[i] = TR_KV_NOWHERE;
            break;
        }
    }
    refused(&p, "a tile by channel that is not full");
    assert_memory_equal(before, b->kv.pool, b->pages * b->kv.page_bytes);
    free(before);
    bed_close(b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_bad_steps),
        cmocka_unit_test(test_bad_tiles),
        cmocka_unit_test(test_bad_plans),
    };

    rng = rig_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
