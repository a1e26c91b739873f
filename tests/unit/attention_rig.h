/*
 * A KV cache for attention tests that is filled with random bytes by the
 * definitions of kv_layout.h and kernels.h alone, and attention over it in
 * double precision.  Whatever holds no token is NaN.
 */
#ifndef TR_ATTENTION_RIG_H
#define TR_ATTENTION_RIG_H

#include "model_rig.h"

#include <math.h>

#define BED_SLOTS 4
#define BED_LAYERS 2
#define BED_LAYER 1u /* the one that is used */
#define BED_LISTS_MAX 2

typedef struct {
    uint32_t dim, lists, group;
    const tr_kv_level_t *levels; /* of lists; the first one of the window */
    uint32_t n_levels;
    uint32_t max_len, max_dense;
    float scale; /* of keys and values */
} bed_wish_t;

typedef struct {
    tr_kv_view_t kv;
    tr_page_plan_t plan;
    tr_kv_seq_t seq[BED_SLOTS];
    uint32_t group, heads, max_len;
    uint32_t first; /* position of a slot's first token, for bed_fill_head */
    float scale, softmax_scale;
    size_t pool_bytes;
    uint8_t *before; /* the pool as it was filled */
    int32_t *tables;
    uint32_t *count;
    tr_kv_victim_t *victim;
    uint64_t *rng;
} bed_t;

/* A cached token. */
typedef struct {
    int32_t run; /* list, TR_KV_WINDOW, or -9: dense */
    const tr_kv_layout_t *l;
    size_t page; /* offset in the pool */
    uint32_t token, index, position;
} bed_token_t;

#define BED_DENSE (-9)

static inline void *
bed_alloc(size_t n)
{
    void *p = aligned_alloc(64, tr_pad(n + 1, 64));

    assert_non_null(p);
    return p;
}

/* The compiler's own conversion, which is slow where it is a call. */
static inline double
bed_half(const uint8_t *p)
{
    static double *all;
    uint16_t u;

    if (all == NULL) {
        all = bed_alloc(65536 * sizeof(double));
        for (uint32_t i = 0; i < 65536; i++) {
            _Float16 h;

            u = (uint16_t) i;
            memcpy(&h, &u, 2);
            all[i] = h;
        }
    }
    memcpy(&u, p, 2);
    return all[u];
}

static inline void
bed_put_half(uint8_t *p, float x)
{
    _Float16 h = (_Float16) x;

    memcpy(p, &h, 2);
}

static inline uint32_t
bed_pages(uint32_t tokens, const tr_kv_layout_t *l)
{
    return (tokens + l->tokens - 1) / l->tokens;
}

/* Tables with a page of its own for every entry, dealt at random. */
static inline void
bed_tables(bed_t *b)
{
    tr_kv_view_t *v = &b->kv;
    size_t n = (size_t) BED_SLOTS * BED_LAYERS * v->lists * v->table_len;

    b->tables = bed_alloc(n * sizeof(int32_t));
    for (size_t i = 0; i < n; i++) {
        b->tables[i] = (int32_t) i;
    }
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = rig_next(b->rng) % (i + 1);
        int32_t t = b->tables[i];

        b->tables[i] = b->tables[j];
        b->tables[j] = t;
    }
    v->tables = b->tables;
    b->pool_bytes = n * v->page_bytes;
    v->pool = bed_alloc(b->pool_bytes);
    memset(v->pool, 0xff, b->pool_bytes);
    b->before = bed_alloc(b->pool_bytes);
}

static inline void
bed_open(bed_t *b, const bed_wish_t *w, uint64_t *rng)
{
    tr_page_wish_t wish = { w->dim, w->levels, w->n_levels,
                            true,   true,      rig_below(rng, 2) };
    tr_kv_view_t *v = &b->kv;
    uint32_t pages = 1;
    size_t heads = (size_t) BED_SLOTS * BED_LAYERS * w->lists;

    *b = (bed_t){ .group = w->group,
                  .heads = w->lists * w->group,
                  .max_len = w->max_len,
                  .scale = w->scale,
                  .softmax_scale = 1 / sqrtf((float) w->dim),
                  .rng = rng };
    assert_int_equal(tr_page_plan(&wish, &b->plan), 0);
    *v = (tr_kv_view_t){ .page_bytes = b->plan.page_bytes,
                         .layers = BED_LAYERS,
                         .lists = w->lists,
                         .head_dim = w->dim,
                         .n_layouts = b->plan.n,
                         .layout = b->plan.layout,
                         .seq = b->seq };
    v->at_window = bed_pages(w->max_dense, &b->plan.layout[0]);
    for (uint32_t i = 1; i < b->plan.n; i++) {
        uint32_t n = bed_pages(w->max_len, &b->plan.layout[i]) + 1;

        pages = n > pages ? n : pages;
    }
    v->at_pair[0] = v->at_window + (w->n_levels ? pages : 0);
    v->pair_len[0] = w->n_levels ? pages + 1 : 0;
    v->at_pair[1] = v->at_pair[0] + v->pair_len[0];
    v->pair_len[1] = w->n_levels > 2 ? pages + 1 : 0;
    v->table_len = v->at_pair[1] + v->pair_len[1];
    bed_tables(b);
    b->count = bed_alloc(heads * TR_KV_LISTS_MAX * sizeof(uint32_t));
    b->victim = bed_alloc(heads * TR_KV_LISTS_MAX * sizeof(tr_kv_victim_t));
    memset(b->count, 0, heads * TR_KV_LISTS_MAX * sizeof(uint32_t));
    memset(b->victim, 0xff, heads * TR_KV_LISTS_MAX * sizeof(tr_kv_victim_t));
    v->count = b->count;
    v->victim = b->victim;
}

static inline void
bed_close(bed_t *b)
{
    free(b->kv.pool);
    free(b->before);
    free(b->tables);
    free(b->count);
    free(b->victim);
}

/* A {scale, zero} whose codes span about [-scale, scale]; none is written where
 * one is already. */
static inline void
bed_meta(bed_t *b, uint8_t *p, uint32_t bits)
{
    static const uint8_t none[4] = { 0xff, 0xff, 0xff, 0xff };
    float size = b->scale * (0.5f + (float) rig_below(b->rng, 100) / 100);

    if (memcmp(p, none, 4) == 0) {
        float step = 2 * size / (float) ((1u << bits) - 1);

        bed_put_half(p, step > 6.1e-8f ? step : 6.1e-8f);
        bed_put_half(p + 2,
                     -size * (0.8f + (float) rig_below(b->rng, 40) / 100));
    }
}

/* Random codes, metadata, score, and the position of one token. */
static inline void
bed_fill(bed_t *b, const tr_kv_layout_t *l, uint8_t *page, uint32_t token,
         uint32_t position)
{
    uint32_t kb = l->level.key_bits, vb = l->level.value_bits;
    float score = (float) rig_below(b->rng, 1000) / 100;

    for (uint32_t d = 0; d < l->head_dim; d++) {
        if (kb == 16) {
            bed_put_half(page + tr_kv_key_row(l, token) + 2 * d,
                         rig_normal(b->rng) * b->scale);
        } else {
            bed_meta(b, page + tr_kv_key_meta(l, token, d), kb);
            tr_kv_code_set(page, tr_kv_key_code(l, token, d), kb,
                           rig_below(b->rng, 1u << kb));
        }
        if (vb == 16) {
            bed_put_half(page + tr_kv_value_row(l, token) + 2 * d,
                         rig_normal(b->rng) * b->scale);
        } else {
            bed_meta(b, page + tr_kv_value_meta(l, token, d), vb);
            tr_kv_code_set(page, tr_kv_value_code(l, token, d), vb,
                           rig_below(b->rng, 1u << vb));
        }
    }
    if (l->score != 0) {
        memcpy(page + l->score + token * 4, &score, 4);
    }
    if (l->position != 0) {
        tr_kv_position_put(l, page, token, position);
    }
    if (l->recent != 0) {
        score = 0;
        memcpy(page + l->recent + token * 4, &score, 4);
    }
}

/* Visits the tokens of a head whose dense part ends before `len`; f may be
 * NULL.  Returns how many there are. */
static inline uint32_t
bed_tokens(const bed_t *b, int32_t slot, uint32_t list, uint32_t len,
           bed_token_t *out)
{
    const tr_kv_view_t *v = &b->kv;
    const tr_kv_seq_t *s = &v->seq[slot];
    const int32_t *table = tr_kv_table(v, slot, BED_LAYER, list);
    size_t head = tr_kv_head(v, slot, BED_LAYER, list);
    uint32_t n = 0;

    for (uint32_t l = 0; l < s->n_lists; l++) {
        const tr_kv_layout_t *y = &v->layout[s->list_layout[l]];

        for (uint32_t i = 0; i < b->count[head * TR_KV_LISTS_MAX + l]; i++) {
            int32_t page = table[tr_kv_list_entry(v, l, i / y->tokens)];

            out[n] = (bed_token_t){
                (int32_t) l,   y, (size_t) page * v->page_bytes,
                i % y->tokens, i, UINT32_MAX
            };
            if (y->position != 0) {
                out[n].position = tr_kv_position_at(y, v->pool + out[n].page,
                                                    out[n].token);
            }
            n++;
        }
    }
    for (uint32_t p = s->window_from; p < s->base; p++) {
        const tr_kv_layout_t *y = &v->layout[s->window_layout];
        uint32_t i = p % s->window;

        out[n++] = (bed_token_t){
            TR_KV_WINDOW,
            y,
            (size_t) table[v->at_window + i / y->tokens] * v->page_bytes,
            i % y->tokens,
            i,
            p
        };
    }
    for (uint32_t p = s->base; p < len; p++) {
        const tr_kv_layout_t *y = &v->layout[0];
        uint32_t i = p - s->base;

        out[n++] = (bed_token_t){
            BED_DENSE,     y, (size_t) table[i / y->tokens] * v->page_bytes,
            i % y->tokens, i, p
        };
    }
    return n;
}

/* Fills a head: every token of its lists with a position of its own, one of the
 * first `below`, in random order. */
static inline void
bed_fill_head(bed_t *b, int32_t slot, uint32_t list, uint32_t below,
              uint32_t len)
{
    bed_token_t *t = bed_alloc((size_t) (b->max_len + 1) * sizeof(*t));
    uint32_t *order = bed_alloc((size_t) (below + 1) * sizeof(*order));
    uint32_t n = bed_tokens(b, slot, list, len, t);

    for (uint32_t i = 0; i < below; i++) {
        uint32_t j = rig_below(b->rng, i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0, listed = 0; i < n; i++) {
        uint32_t position = t[i].run >= 0 ? b->first + order[listed++]
                                          : t[i].position;

        assert_true(listed <= below);
        bed_fill(b, t[i].l, b->kv.pool + t[i].page, t[i].token, position);
    }
    free(t);
    free(order);
}

/* ---- the reference ---- */

/* x as it is, and the size of the terms it is made of. */
static inline double
bed_key(const bed_t *b, const bed_token_t *t, uint32_t d, double *size)
{
    const uint8_t *page = b->before + t->page;
    uint32_t bits = t->l->level.key_bits;
    double x, scale, zero;

    if (bits == 16) {
        x = bed_half(page + tr_kv_key_row(t->l, t->token) + 2 * d);
        *size = fabs(x);
        return x;
    }
    scale = bed_half(page + tr_kv_key_meta(t->l, t->token, d));
    zero = bed_half(page + tr_kv_key_meta(t->l, t->token, d) + 2);
    x = scale * tr_kv_code_get(page, tr_kv_key_code(t->l, t->token, d), bits);
    *size = fabs(x) + fabs(zero);
    return x + zero;
}

static inline double
bed_value(const bed_t *b, const bed_token_t *t, uint32_t d, double *size)
{
    const uint8_t *page = b->before + t->page;
    uint32_t bits = t->l->level.value_bits;
    double x, scale, zero;

    if (bits == 16) {
        x = bed_half(page + tr_kv_value_row(t->l, t->token) + 2 * d);
        *size = fabs(x);
        return x;
    }
    scale = bed_half(page + tr_kv_value_meta(t->l, t->token, d));
    zero = bed_half(page + tr_kv_value_meta(t->l, t->token, d) + 2);
    x = scale * tr_kv_code_get(page, tr_kv_value_code(t->l, t->token, d), bits);
    *size = fabs(x) + fabs(zero);
    return x + zero;
}

/* p[i] = probability of token i for query q; returns the relative error to
 * expect of one in single precision. */
static inline double
bed_softmax(const bed_t *b, const bed_token_t *t, uint32_t n, const float *q,
            double *p)
{
    double max = -INFINITY, sum = 0, error = 0;

    for (uint32_t i = 0; i < n; i++) {
        double terms = 0;

        p[i] = 0;
        for (uint32_t d = 0; d < b->kv.head_dim; d++) {
            double size;

            p[i] += q[d] * bed_key(b, &t[i], d, &size) * b->softmax_scale;
            terms += fabs(q[d] * b->softmax_scale) * size;
        }
        error = fmax(error, terms);
        max = fmax(max, p[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        p[i] = exp(p[i] - max);
        sum += p[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        p[i] /= sum;
    }
    return 1e-5 + 1e-6 * error;
}

/* One query head against its reference; best[i] = max(best[i], p[i]). */
static inline double
bed_check_head(const bed_t *b, const bed_token_t *t, uint32_t n, const float *q,
               const float *out, double *best, const char *what)
{
    double *p = bed_alloc(n * sizeof(double));
    double error = bed_softmax(b, t, n, q, p);

    for (uint32_t d = 0; d < b->kv.head_dim; d++) {
        double want = 0, terms = 0, size;

        for (uint32_t i = 0; i < n; i++) {
            want += p[i] * bed_value(b, &t[i], d, &size);
            terms += p[i] * size;
        }
        if (!(fabs(out[d] - want) <= error * terms)) {
            fail_msg("%s: dim %u is %.9g, expected %.9g to %.3g (%u tokens, "
                     "head size %u, group %u)",
                     what, d, out[d], want, error * terms, n, b->kv.head_dim,
                     b->group);
        }
    }
    for (uint32_t i = 0; best != NULL && i < n; i++) {
        best[i] = fmax(best[i], p[i]);
    }
    free(p);
    return error;
}

static inline float
bed_score(const uint8_t *pool, const bed_token_t *t)
{
    float x;

    memcpy(&x, pool + t->page + t->l->score + t->token * 4, 4);
    return x;
}

/* The victims of a head are the least of its scores as they are now. */
static inline void
bed_check_victims(const bed_t *b, int32_t slot, uint32_t list, uint32_t now,
                  const bed_token_t *t, uint32_t n, const char *what)
{
    const tr_kv_seq_t *s = &b->seq[slot];
    const tr_kv_victim_t *victim = b->victim
                                   + tr_kv_head(&b->kv, slot, BED_LAYER, list)
                                         * TR_KV_LISTS_MAX;

    for (uint32_t l = 0; l < s->n_lists; l++) {
        tr_kv_victim_t want = { INFINITY, 0 };
        uint32_t at = UINT32_MAX;

        for (uint32_t i = 0; i < n; i++) {
            float x;

            if (t[i].run != (int32_t) l || t[i].l->score == 0) {
                continue;
            }
            x = bed_score(b->kv.pool, &t[i]);
            if (!s->by_sum) {
                x = t[i].position == now ? 0
                                         : x / (float) (now - t[i].position);
            }
            if (x < want.significance
                || (x == want.significance && t[i].position < at)) {
                want = (tr_kv_victim_t){ x, t[i].index };
                at = t[i].position;
            }
        }
        if (victim[l].index != want.index
            || victim[l].significance != want.significance) {
            fail_msg("%s: victim of list %u is %u (%.9g), expected %u (%.9g)",
                     what, l, victim[l].index, victim[l].significance,
                     want.index, want.significance);
        }
    }
}

/* ---- running it ---- */

typedef struct {
    int32_t slot;
    uint32_t pos, n;
} bed_part_t;

/* Attention for rows pos .. pos + n of some slots; q and out: [rows][heads *
 * dim], in order. */
static inline void
bed_run(bed_t *b, const tr_kernels_t *k, int threads, const bed_part_t *parts,
        uint32_t n_parts, const float *q, float *out)
{
    tr_stream_t s = { threads, rig_team() };
    uint32_t n = 0, seq_row[BED_SLOTS + 1] = { 0 }, *pos;
    int32_t slot[BED_SLOTS];
    size_t ld = (size_t) b->heads * b->kv.head_dim, bytes;
    tr_rows_t rows = { 0, n_parts, NULL, slot, seq_row };
    void *work;

    for (uint32_t i = 0; i < n_parts; i++) {
        n += parts[i].n;
    }
    pos = bed_alloc(n * sizeof(*pos));
    for (uint32_t i = 0; i < n_parts; i++) {
        slot[i] = parts[i].slot;
        for (uint32_t j = 0; j < parts[i].n; j++) {
            pos[rows.n_rows++] = parts[i].pos + j;
        }
        seq_row[i + 1] = rows.n_rows;
    }
    rows.row_pos = pos;
    bytes = k->attention_work(&s, n, n_parts, b->first + b->max_len, b->heads,
                              b->kv.lists, b->kv.head_dim);
    work = bed_alloc(bytes + 64);
    memset(work, 0xff, bytes + 64);
    assert_int_equal(k->attention(&s, &b->kv, BED_LAYER, &rows, q, ld, b->heads,
                                  b->softmax_scale, out, ld, work),
                     0);
    for (uint32_t i = 0; i < 64; i++) { /* it kept to its workspace */
        assert_int_equal(((uint8_t *) work)[bytes + i], 0xff);
    }
    free(work);
    free(pos);
}

#endif
