/*
 * The vector tile of attention, written once over the few operations that an
 * instruction set brings: attention_avx2.c and attention_avx512.c define V_*
 * and include this.  attention.c says what a tile is and why its sums run in
 * the order they do.
 *
 * Per block of 64 positions: keys are converted to FP32 and transposed to
 * [dim][position], values converted to [position][dim]; then two small matrix
 * products with the softmax between them,
 *
 *     S [rows][64] = Q [rows][dim] * K       each element one FMA chain over dim
 *     O [rows][dim] = keep * O + P * V       each element one FMA chain over p
 *
 * both by one micro-kernel of V_ROWS rows times V_VECS vectors in registers.
 * Positions after the last query read as zeros and get weight zero, so stale
 * bytes of a page, NaN included, are never touched.
 *
 * Needs: V_WIDTH, V_ROWS, V_VECS, vec, v_load, v_store, v_set1, v_fma, v_mul,
 * v_add, v_sub, v_max, v_from_half (V_WIDTH halves), v_first (first n lanes of
 * a, the rest of b), v_hmax, v_hsum, v_exp2i (2^n for integral n held in the
 * low bits of a shifted float), v_lane0, v_transpose (V_WIDTH vectors).
 */
#include "cpu.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define BLOCK TR_TILE_BLOCK
#define BLOCK_VECS (BLOCK / V_WIDTH)

static const uint16_t zero_row[TR_HEAD_DIM_MAX];

/* e^x as in silu_row.h; e^0 is exactly 1. */
static inline vec
v_exp(vec x)
{
    const vec magic = v_set1(12582912.0f);
    vec shifted, n, r, p;

    x = v_max(v_set1(-87.0f), x); /* NaN: the second operand passes */
    shifted = v_fma(x, v_set1(1.44269504f), magic);
    n = v_sub(shifted, magic);
    r = v_fma(n, v_set1(-0.693359375f), x);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    p = v_set1(1.3981999507e-3f);
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_fma(v_mul(p, r), r, v_add(r, v_set1(1.0f)));
    return v_mul(p, v_exp2i(shifted));
}

/* c[rows][vecs] = keep[row] * c + a[rows][k] * b[k][vecs]; without keep, c
 * starts at zero.  rows and vecs are constants wherever this is inlined. */
static inline __attribute__((always_inline)) void
micro(uint32_t rows, uint32_t vecs, uint32_t k, const float *a, size_t lda,
    const float *b, size_t ldb, float *c, size_t ldc, const float *keep)
{
    vec acc[V_ROWS][V_VECS];

    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t v = 0; v < vecs; v++) {
            acc[r][v] = keep ? v_mul(v_set1(keep[r]),
                                   v_load(c + r * ldc + v * V_WIDTH))
                             : v_set1(0);
        }
    }
    for (uint32_t i = 0; i < k; i++) {
        vec bv[V_VECS];

        for (uint32_t v = 0; v < vecs; v++) {
            bv[v] = v_load(b + i * ldb + v * V_WIDTH);
        }
        for (uint32_t r = 0; r < rows; r++) {
            vec av = v_set1(a[r * lda + i]);

            for (uint32_t v = 0; v < vecs; v++) {
                acc[r][v] = v_fma(av, bv[v], acc[r][v]);
            }
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t v = 0; v < vecs; v++) {
            v_store(c + r * ldc + v * V_WIDTH, acc[r][v]);
        }
    }
}

static inline __attribute__((always_inline)) void
micro_rows(uint32_t rows, uint32_t vecs, uint32_t k, const float *a,
    size_t lda, const float *b, size_t ldb, float *c, size_t ldc,
    const float *keep)
{
    switch (rows) {
    case 1:
        micro(1, vecs, k, a, lda, b, ldb, c, ldc, keep);
        return;
    case 2:
        micro(2, vecs, k, a, lda, b, ldb, c, ldc, keep);
        return;
    case 3:
        micro(3, vecs, k, a, lda, b, ldb, c, ldc, keep);
        return;
    case 4:
        micro(4, vecs, k, a, lda, b, ldb, c, ldc, keep);
        return;
    case 5:
        micro(5, vecs, k, a, lda, b, ldb, c, ldc, keep);
        return;
    default:
        micro(6, vecs, k, a, lda, b, ldb, c, ldc, keep);
        return;
    }
}

/* Any number of columns that is a multiple of the vector. */
static void
product(uint32_t rows, uint32_t columns, uint32_t k, const float *a,
    size_t lda, const float *b, size_t ldb, float *c, size_t ldc,
    const float *keep)
{
    uint32_t j = 0;

    for (; j + V_VECS * V_WIDTH <= columns; j += V_VECS * V_WIDTH) {
        micro_rows(rows, V_VECS, k, a, lda, b + j, ldb, c + j, ldc, keep);
    }
    for (; j < columns; j += V_WIDTH) {
        micro_rows(rows, 1, k, a, lda, b + j, ldb, c + j, ldc, keep);
    }
}

/* Keys and values of positions [b, b + BLOCK), those after `last` as zeros. */
static void
load_block(const tr_attention_tile_t *t, uint32_t b, uint32_t last, float *keys,
    float *values)
{
    const tr_kv_view_t *kv = t->kv;
    uint32_t dim = kv->head_dim;
    const uint16_t *key[BLOCK], *value[BLOCK];

    for (uint32_t i = 0; i < BLOCK; i++) {
        bool stored = b + i <= last;

        key[i] = stored ? tr_kv_key(kv, t->table, b + i) : zero_row;
        value[i] = stored ? key[i] + (size_t) kv->page_tokens * dim : zero_row;
    }
    for (uint32_t i = 0; i < BLOCK; i += V_WIDTH) {
        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            vec v[V_WIDTH];

            for (uint32_t j = 0; j < V_WIDTH; j++) {
                v[j] = v_from_half(key[i + j] + d);
            }
            v_transpose(v);
            for (uint32_t j = 0; j < V_WIDTH; j++) {
                v_store(keys + (size_t) (d + j) * BLOCK + i, v[j]);
            }
        }
    }
    for (uint32_t i = 0; i < BLOCK; i++) {
        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            v_store(values + (size_t) i * dim + d, v_from_half(value[i] + d));
        }
    }
}

/* Turns scores into weights; n of them count.  Updates the row's maximum and
 * sum, and says by how much what was summed before shrinks. */
static inline void
softmax_row(float *s, uint32_t n, float *max, float *sum, float *keep)
{
    vec v[BLOCK_VECS], top = v_set1(*max), total = v_set1(0);
    float m;

    for (uint32_t j = 0; j < BLOCK_VECS; j++) {
        uint32_t left = n > j * V_WIDTH ? n - j * V_WIDTH : 0;

        v[j] = v_first(left, v_load(s + j * V_WIDTH), v_set1(-INFINITY));
        top = v_max(top, v[j]);
    }
    m = v_hmax(top);
    for (uint32_t j = 0; j < BLOCK_VECS; j++) {
        uint32_t left = n > j * V_WIDTH ? n - j * V_WIDTH : 0;

        v[j] = v_first(left, v_exp(v_sub(v[j], v_set1(m))), v_set1(0));
        v_store(s + j * V_WIDTH, v[j]);
        total = v_add(total, v[j]);
    }
    *keep = v_lane0(v_exp(v_set1(*max - m)));
    *sum = *sum * *keep + v_hsum(total);
    *max = m;
}

static void
attention_tile(const tr_attention_tile_t *t, float *scratch)
{
    uint32_t dim = t->kv->head_dim, rows = t->n_pos * t->group;
    uint32_t last = t->pos + t->n_pos - 1;
    float *keys = scratch, *values = keys + (size_t) BLOCK * dim;
    float *q = values + (size_t) BLOCK * dim;
    float *o = q + (size_t) TR_TILE_ROWS * dim;
    float *s = o + (size_t) TR_TILE_ROWS * dim;
    float *max = s + (size_t) TR_TILE_ROWS * BLOCK;
    float *sum = max + TR_TILE_ROWS, *keep = sum + TR_TILE_ROWS;

    for (uint32_t r = 0; r < rows; r++) {
        const float *in = t->q + r / t->group * t->ldq + r % t->group * dim;

        for (uint32_t d = 0; d < dim; d++) {
            q[r * dim + d] = in[d] * t->scale;
            o[r * dim + d] = 0;
        }
        max[r] = -INFINITY;
        sum[r] = 0;
    }
    for (uint32_t b = 0; b <= last; b += BLOCK) {
        /* rows that lie before the block see nothing of it */
        uint32_t first = b > t->pos ? (b - t->pos) * t->group : 0;

        load_block(t, b, last, keys, values);
        for (uint32_t r = first; r < rows; r += V_ROWS) {
            uint32_t n = rows - r < V_ROWS ? rows - r : V_ROWS;

            product(n, BLOCK, dim, q + r * dim, dim, keys, BLOCK, s, BLOCK,
                NULL);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t pos = t->pos + (r + i) / t->group;
                uint32_t seen = pos - b + 1 < BLOCK ? pos - b + 1 : BLOCK;

                softmax_row(s + i * BLOCK, seen, &max[r + i], &sum[r + i],
                    &keep[i]);
            }
            product(n, dim, BLOCK, s, BLOCK, values, dim, o + r * dim, dim,
                keep);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        float *out = t->out + r / t->group * t->ldo + r % t->group * dim;
        float inverse = 1.0f / sum[r];

        for (uint32_t d = 0; d < dim; d++) {
            out[d] = o[r * dim + d] * inverse;
        }
    }
}
