/*
 * Rows at uncompressed positions in vectors, written once over the few
 * operations that an instruction set brings: attention_avx2.c and
 * attention_avx512.c define V_* and include this.  attention.c says what a tile
 * is and why its sums run in the order they do.
 *
 * Per block of 64 positions: keys are converted to FP32 and transposed to
 * [dim][position], values converted to [position][dim]; then two small matrix
 * products with the softmax between them,
 *
 *     S [rows][64] = Q [rows][dim] * K     each element a FMA chain over dim
 *     O [rows][dim] = keep * O + P * V     each element a FMA chain over p
 *
 * both by the micro-kernels of attention_product.h.  In decode, where the rows
 * are one group, keys and values are used once: they are converted on the way
 * into the product instead; and they come from memory, so those of the next
 * tile are asked for on the way.
 * Positions after the last query read as zeros and get weight zero, so stale
 * bytes of a page, NaN included, are never touched.
 *
 * Blocks of a tier or the window go the same way, but for how keys and values
 * become FP32.  They come first, and every row sees all of them.
 *
 * Included after one of vec_*.h and the definition of V_ROWS and V_VECS.
 */
#include "attention.h"
#include "kernels/cpu/vec_exp.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define BLOCK TR_TILE_BLOCK
#define BLOCK_VECS (BLOCK / V_WIDTH)

#include "attention_product.h"

static const uint16_t zero_row[TR_HEAD_DIM_MAX];

/* Addresses of positions [b, b + n), of zeros before `from` and after `last`:
 * divisions once a block, not a token. */
static inline void
find_block(const tr_kv_view_t *kv, const int32_t *table, uint32_t b, uint32_t n,
           uint32_t from, uint32_t last, const uint16_t **key,
           const uint16_t **value)
{
    size_t dim = kv->head_dim, to_value = kv->layout[0].value / 2;
    uint32_t tokens = kv->layout[0].tokens;
    uint32_t i = from > b ? (from - b < n ? from - b : n) : 0;
    uint32_t entry = (b + i) / tokens, at = (b + i) % tokens;

    for (uint32_t j = 0; j < i; j++) {
        key[j] = value[j] = zero_row;
    }
    while (i < n) {
        uint32_t run = last - (b + i) + 1;
        const uint16_t *k;

        if (b + i > last) {
            key[i] = value[i] = zero_row;
            i++;
            continue;
        }
        run = run < tokens - at ? run : tokens - at;
        run = run < n - i ? run : n - i;
        k = (const uint16_t *) tr_kv_page_at(kv, table[entry]) + at * dim;
        for (uint32_t j = 0; j < run; j++, i++, k += dim) {
            key[i] = k;
            value[i] = k + to_value;
        }
        entry++;
        at = 0;
    }
}

/* n keys, transposed; n is a multiple of 16.  ahead: NULL, or n rows that are
 * wanted later. */
static void
load_keys(const uint16_t *const *key, const uint16_t *const *ahead, uint32_t n,
          uint32_t dim, float *keys)
{
    for (uint32_t i = 0; i < n; i += V_WIDTH) {
        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            vec v[V_WIDTH];

            load_square(key + i, ahead == NULL ? NULL : ahead + i, d, v);
            for (uint32_t j = 0; j < V_WIDTH; j++) {
                v_store(keys + (size_t) (d + j) * BLOCK + i, v[j]);
            }
        }
    }
}

static void
load_values(const uint16_t *const *value, const uint16_t *const *ahead,
            uint32_t n, uint32_t dim, float *values)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            if (ahead != NULL && d % LINE_HALVES == 0) {
                __builtin_prefetch(ahead[i] + d, 0, 2);
            }
            v_store(values + (size_t) i * dim + d, v_from_half(value[i] + d));
        }
    }
}

/* Zeros up to a multiple of 16 tokens: what is there counts with weight 0. */
static uint32_t
pad_block(uint32_t n)
{
    return (uint32_t) tr_pad(n, 16);
}

/* Keys of a run's block, transposed; returns the padded number. */
static uint32_t
load_run_keys(const tr_kv_layout_t *l, const tr_block_t *b, float *keys)
{
    const uint16_t *row[BLOCK];
    uint32_t dim = l->head_dim, n = pad_block(b->n);
    float key[TR_HEAD_DIM_MAX];

    for (uint32_t i = 0; i < n; i++) {
        row[i] = i < b->n ? (const uint16_t *) (b->page
                                                + tr_kv_key_row(l, b->token[i]))
                          : zero_row;
    }
    if (l->level.key_bits == 16) {
        load_keys(row, NULL, n, dim, keys);
        return n;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i < b->n) {
            tr_unpack_key(l, b->page, b->token[i], key);
        } else {
            memset(key, 0, sizeof(key));
        }
        for (uint32_t d = 0; d < dim; d++) {
            keys[(size_t) d * BLOCK + i] = key[d];
        }
    }
    return n;
}

static void
load_run_values(const tr_kv_layout_t *l, const tr_block_t *b, float *values)
{
    for (uint32_t i = 0; i < pad_block(b->n); i++) {
        if (i < b->n && l->level.value_bits == 16) {
            const uint16_t *row =
                (const uint16_t *) (b->page + tr_kv_value_row(l, b->token[i]));

            load_values(&row, NULL, 1, l->head_dim,
                        values + (size_t) i * l->head_dim);
        } else if (i < b->n) {
            tr_unpack_value(l, b->page, b->token[i],
                            values + (size_t) i * l->head_dim);
        } else {
            memset(values + (size_t) i * l->head_dim, 0,
                   l->head_dim * sizeof(float));
        }
    }
}

/* Columns [from, n) of a vector that begins at column `at`, others `rest`. */
static inline __attribute__((always_inline)) vec
v_between(vec v, uint32_t at, uint32_t from, uint32_t n, vec rest)
{
    v = v_first(n > at ? n - at : 0, v, rest);
    return from > at ? v_first(from - at, rest, v) : v;
}

/* Turns a row's scores into weights e^(s - m), m being the row's new maximum;
 * columns [from, n) of `vecs` vectors count (all when `full`).  Returns their
 * sum. */
static inline __attribute__((always_inline)) float
softmax_row(float *s, uint32_t from, uint32_t n, uint32_t vecs, bool full,
            float *max)
{
    vec v[BLOCK_VECS], top = v_set1(*max), total = v_set1(0);

    for (uint32_t j = 0; j < vecs; j++) {
        v[j] = v_load(s + j * V_WIDTH);
        if (!full) {
            v[j] = v_between(v[j], j * V_WIDTH, from, n, v_set1(-INFINITY));
        }
        top = v_max(top, v[j]);
    }
    *max = v_hmax(top);
    top = v_set1(*max);
    for (uint32_t j = 0; j < vecs; j++) {
        v[j] = v_exp(v_sub(v[j], top));
        if (!full) {
            v[j] = v_between(v[j], j * V_WIDTH, from, n, v_set1(0));
        }
        v_store(s + j * V_WIDTH, v[j]);
        total = v_add(total, v[j]);
    }
    return v_hsum(total);
}

/* Which columns of a block a row sees: [from, end). */
typedef struct {
    uint32_t from, end;
} seen_t;

/* Softmax of n rows of scores, lds apart and `width` columns wide, of which row
 * i sees seen[i].  keep: by how much what was summed before shrinks. */
static inline void
softmax_rows(float *s, size_t lds, uint32_t n, uint32_t width,
             const seen_t *seen, float *max, float *sum, float *keep)
{
    float shrink[V_WIDTH] = { 0 }, total[V_ROWS];

    for (uint32_t i = 0; i < n; i++) {
        float before = max[i];

        if (seen[i].end >= BLOCK && seen[i].from == 0) {
            total[i] = softmax_row(s + i * lds, 0, BLOCK, BLOCK_VECS, true,
                                   &max[i]);
        } else {
            total[i] = softmax_row(s + i * lds, seen[i].from, seen[i].end,
                                   width / V_WIDTH, false, &max[i]);
        }
        shrink[i] = before - max[i];
    }
    v_store(shrink, v_exp(v_load(shrink)));
    for (uint32_t i = 0; i < n; i++) {
        keep[i] = shrink[i];
        sum[i] = sum[i] * keep[i] + total[i];
    }
}

/* What a scored tile keeps of a block, one block behind the other. */
typedef struct {
    float *weight; /* [rows][width], relative to e^peak */
    float *peak;   /* [rows, padded], the rows' maxima by then */
} kept_t;

/* Block of `width` columns at *kept, which moves on. */
static inline kept_t
kept_block(const tr_attention_tile_t *t, uint32_t width, float **kept)
{
    size_t rows = (size_t) t->n_pos * t->group;
    kept_t k = { *kept, *kept + rows * width };

    *kept = k.peak + tr_pad(rows, 16);
    return k;
}

/* Columns of the uncompressed block from b on. */
static inline uint32_t
uncompressed_width(const tr_attention_tile_t *t, uint32_t b)
{
    uint32_t n = pad_block(t->pos + t->n_pos - b);

    return n < BLOCK ? n : BLOCK;
}

/* A tile in the making; scratch memory. */
typedef struct {
    const tr_attention_tile_t *t;
    uint32_t dim, rows;
    float *keys, *values; /* of the block */
    float *q, *o;         /* [rows][dim] */
    float *max, *sum;     /* [rows] */
    float *s;             /* weights of V_ROWS rows or of all, lds apart */
    size_t lds;
    kept_t kept; /* of the block; NULL unless scored */
    float *next; /* what the next block keeps */
} tile_t;

static void
tile_begin(tile_t *a, const tr_attention_tile_t *t, float *scratch)
{
    uint32_t dim = t->kv->head_dim;

    a->t = t;
    a->dim = dim;
    a->rows = t->n_pos * t->group;
    a->keys = scratch;
    a->values = a->keys + (size_t) BLOCK * dim;
    a->q = a->values + (size_t) BLOCK * dim;
    a->o = a->q + (size_t) TR_TILE_ROWS * dim;
    a->s = a->o + (size_t) TR_TILE_ROWS * dim;
    a->lds = BLOCK;
    a->max = a->s + (size_t) TR_TILE_ROWS * BLOCK;
    a->sum = a->max + TR_TILE_ROWS;
    a->kept = (kept_t){ NULL, NULL };
    a->next = t->kept;
    for (uint32_t r = 0; r < a->rows; r++) {
        const float *in = t->q + r / t->group * t->ldq + r % t->group * dim;

        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            v_store(a->q + r * dim + d,
                    v_mul(v_load(in + d), v_set1(t->scale)));
            v_store(a->o + r * dim + d, v_set1(0));
        }
        /* a row of a limited reach may see nothing of its first blocks */
        a->max[r] = t->reach != 0 ? -1e30f : -INFINITY;
        a->sum[r] = 0;
    }
}

/* Scored, the weights of a block stay. */
static inline void
keep_block(tile_t *a, uint32_t width)
{
    if (a->t->lse != NULL) {
        a->kept = kept_block(a->t, width, &a->next);
        a->lds = width;
    }
}

/* Where keys and values of a block are, and those of one wanted later. */
typedef struct {
    const uint16_t *const *key, *const *value;
    const uint16_t *const *next_key, *const *next_value; /* or NULL */
} halves_t;

/* Rows [r, r + n) take in a block that is `width` columns wide for them, of
 * which row r + i sees seen[i]; from: NULL when keys and values were
 * converted. */
static inline __attribute__((always_inline)) void
tile_rows(tile_t *a, uint32_t r, uint32_t n, uint32_t width, const seen_t *seen,
          const halves_t *from)
{
    uint32_t dim = a->dim;
    float keep[V_ROWS], *s = a->s;
    size_t lds = a->lds;

    if (a->kept.weight != NULL) {
        s = a->kept.weight + r * lds;
    }
    if (from == NULL) {
        product(n, width, dim, a->q + r * dim, dim, a->keys, BLOCK, s, lds,
                NULL);
    } else {
        key_products(n, a->q + r * dim, dim, from->key, from->next_key, width,
                     s, lds);
    }
    softmax_rows(s, lds, n, width, seen, a->max + r, a->sum + r, keep);
    if (a->kept.weight != NULL) {
        memcpy(a->kept.peak + r, a->max + r, n * sizeof(float));
    }
    if (from == NULL) {
        product(n, dim, width, s, lds, a->values, dim, a->o + r * dim, dim,
                keep);
    } else {
        product_half(n, dim, width, s, lds, from->value, from->next_value,
                     a->o + r * dim, dim, keep);
    }
}

static void
tile_run_block(tile_t *a, const tr_run_t *run, uint32_t i)
{
    uint32_t width;
    seen_t seen[V_ROWS];
    tr_block_t block;

    tr_run_block(a->t->kv, run, i, &block);
    if (block.n == 0) {
        return;
    }
    width = load_run_keys(run->layout, &block, a->keys);
    load_run_values(run->layout, &block, a->values);
    keep_block(a, width);
    for (uint32_t j = 0; j < V_ROWS; j++) {
        seen[j] = (seen_t){ 0, block.n };
    }
    for (uint32_t r = 0; r < a->rows; r += V_ROWS) {
        tile_rows(a, r, a->rows - r < V_ROWS ? a->rows - r : V_ROWS, width,
                  seen, NULL);
    }
}

static void
tile_uncompressed_block(tile_t *a, uint32_t b)
{
    const tr_attention_tile_t *t = a->t;
    uint32_t last = t->pos + t->n_pos - 1, rows = a->rows;
    /* rows that lie before the block see nothing of it */
    uint32_t first = b > t->pos ? (b - t->pos) * t->group : 0;
    /* what lies after the last query has weight zero: leave it out, here for
     * the tile, below for each group of rows */
    uint32_t used = uncompressed_width(t, b),
             from_token = tr_tile_from(t, t->pos);
    seen_t seen[V_ROWS];
    const uint16_t *key[BLOCK] = { NULL }, *value[BLOCK] = { NULL };
    const uint16_t *next_key[BLOCK], *next_value[BLOCK];
    bool ahead = t->n_next > b;
    const halves_t from = { key, value, ahead ? next_key : NULL,
                            ahead ? next_value : NULL };

    keep_block(a, used);
    find_block(t->kv, t->table, b, used, from_token, last, key, value);
    if (ahead) {
        find_block(t->kv, t->next_table, b, used, 0, t->n_next - 1, next_key,
                   next_value);
    }
    if (rows > V_ROWS) {
        load_keys(key, ahead ? next_key : NULL, used, a->dim, a->keys);
        load_values(value, ahead ? next_value : NULL, used, a->dim, a->values);
    }
    for (uint32_t r = first; r < rows; r += V_ROWS) {
        uint32_t n = rows - r < V_ROWS ? rows - r : V_ROWS;
        uint32_t end = t->pos + (r + n - 1) / t->group;
        uint32_t width = pad_block(end - b + 1);

        for (uint32_t i = 0; i < n; i++) {
            uint32_t pos = t->pos + (r + i) / t->group;
            uint32_t sees = tr_tile_from(t, pos);

            seen[i] = (seen_t){ sees > b ? sees - b : 0, pos - b + 1 };
        }
        tile_rows(a, r, n, width < used ? width : used, seen,
                  rows > V_ROWS ? NULL : &from);
    }
}

static void
attention_tile(const tr_attention_tile_t *t, float *scratch)
{
    uint32_t last = t->pos + t->n_pos - 1;
    tile_t a;

    tile_begin(&a, t, scratch);
    for (uint32_t i = 0; i < t->n_runs; i++) {
        for (uint32_t b = 0; b < tr_run_blocks(&t->run[i]); b++) {
            tile_run_block(&a, &t->run[i], b);
        }
    }
    for (uint32_t b = tr_tile_from(t, t->pos) / BLOCK * BLOCK; b <= last;
         b += BLOCK) {
        tile_uncompressed_block(&a, b);
    }
    for (uint32_t r = 0; r < a.rows; r++) {
        uint32_t p = r / t->group, h = r % t->group;
        float *out = t->out + p * t->ldo + h * a.dim;
        float sum = tr_sum_with_sink(t->sink, h, a.max[r], a.sum[r]);
        vec inverse = v_set1(1.0f / sum);

        for (uint32_t d = 0; d < a.dim; d += V_WIDTH) {
            v_store(out + d, v_mul(v_load(a.o + r * a.dim + d), inverse));
        }
        if (t->lse != NULL) {
            t->lse[r] = a.max[r] + logf(sum);
        }
    }
}
