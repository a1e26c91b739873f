/*
 * kernels.h: the one interface to what computes.
 *
 * This folder knows nobody: it takes pointers, shapes and tables.  cpu/ holds
 * the C implementations, cuda/ (later) the same behind a C ABI.  A backend is
 * one tr_kernels_t, a table of launchers.  A launcher takes the stream it runs
 * on, checks its arguments, returns 0 or TR_KERNEL_*, and never allocates:
 * what it needs beyond its operands is a workspace given by the caller, sized
 * by the backend itself.
 *
 * Shapes are [rows][columns], row-major; ld* are distances between rows, in
 * elements.  "rows" are the tokens of one step: prefill chunks and decode
 * tokens of many sequences, one after the other.
 *
 * The promise that every backend makes: the bits of a row's result depend on
 * that row's operands and on the cache of its sequence, not on the number of
 * rows, on its place among them, on threads, or on where a prompt was cut.
 */
#ifndef TR_KERNELS_H
#define TR_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TR_KERNEL_OK 0
#define TR_KERNEL_BADARG (-1) /* a shape that the contract excludes */

/* Row buffers given to matmul have room for rows rounded up to a multiple of
 * TR_ROW_PAD, and the rows in that padding may be read and overwritten; their
 * contents have no influence.  ldy is a multiple of TR_COL_PAD, and columns
 * from n up to that multiple are overwritten too. */
#define TR_ROW_PAD 24u
#define TR_COL_PAD 64u

static inline size_t
tr_pad(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

#define TR_HEAD_DIM_MAX 256u
#define TR_GROUP_MAX 32u /* query heads on one KV head */

typedef enum { TR_F32, TR_F16, TR_BF16 } tr_dtype_t;

static inline float
tr_float_from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, 4);
    return f;
}

/* Exact, subnormals and NaN included. */
static inline float
tr_float_from_half(uint16_t h)
{
    uint32_t sign = (uint32_t) (h & 0x8000) << 16;
    uint32_t magnitude = (uint32_t) (h & 0x7fff) << 13;
    float f;

    if (magnitude >= 0x0f800000) { /* infinity, NaN */
        return tr_float_from_bits(sign | magnitude | 0x7f800000);
    }
    /* the exponent is rebased by 112 in the float domain */
    f = tr_float_from_bits(magnitude) * 0x1p112f;
    return sign ? -f : f;
}

/* Element i of src, which need not be aligned. */
static inline float
tr_float_load(const void *src, size_t i, tr_dtype_t dtype)
{
    uint32_t u;
    uint16_t h;

    if (dtype == TR_F32) {
        memcpy(&u, (const uint8_t *) src + 4 * i, 4);
        return tr_float_from_bits(u);
    }
    memcpy(&h, (const uint8_t *) src + 2 * i, 2);
    return dtype == TR_BF16 ? tr_float_from_bits((uint32_t) h << 16)
                            : tr_float_from_half(h);
}

/*
 * Where cached keys and values lie.  The pool is an array of equal pages; the
 * table of (slot, layer, list) names the pages of its tokens in order, token
 * position p being in entry p / page_tokens at index p % page_tokens.  A 16-bit
 * page holds keys, FP16 [page_tokens][head_dim], then values, FP16
 * [page_tokens][head_dim].  lists = KV heads.  All borrowed from the KV cache.
 */
typedef struct {
    uint8_t *pool; /* [pages * page_bytes], 64-byte aligned */
    uint64_t page_bytes;
    uint32_t page_tokens;
    uint32_t layers, lists, head_dim;
    const int32_t *tables; /* [slots][layers][lists][table_len], page ids */
    uint32_t table_len;
} tr_kv_view_t;

static inline const int32_t *
tr_kv_table(const tr_kv_view_t *v, int32_t slot, uint32_t layer, uint32_t list)
{
    return v->tables
           + (((size_t) slot * v->layers + layer) * v->lists + list)
                 * v->table_len;
}

/* The key of position p; its value lies page_tokens * head_dim further. */
static inline uint16_t *
tr_kv_key(const tr_kv_view_t *v, const int32_t *table, uint32_t p)
{
    return (uint16_t *) (v->pool
                         + (uint64_t) table[p / v->page_tokens] * v->page_bytes)
           + (size_t) (p % v->page_tokens) * v->head_dim;
}

/* The rows of one step, in flat arrays.  Sequence s has the rows
 * [seq_row[s], seq_row[s + 1]), at consecutive positions. */
typedef struct {
    uint32_t n_rows, n_seqs;
    const uint32_t *row_pos; /* [n_rows] position of the row's token */
    const int32_t *seq_slot; /* [n_seqs] slot in the KV cache */
    const uint32_t *seq_row; /* [n_seqs + 1] */
} tr_rows_t;

/* A weight matrix [n][k] (outputs, inputs), FP32, in the backend's layout. */
typedef struct {
    uint32_t n, k;
    float *data; /* matrix_floats(n, k) floats, 64-byte aligned */
} tr_matrix_t;

/* Where launchers run.  CPU: a team of threads (cpu/team.h), borrowed, and how
 * many of them to use; without a team everything runs in the caller. */
struct tr_team;
typedef struct {
    int threads;
    struct tr_team *team;
} tr_stream_t;

typedef struct tr_kernels tr_kernels_t;

struct tr_kernels {
    const char *name; /* "cpu-avx512" */

    /* Room for a matrix, in floats. */
    size_t (*matrix_floats)(uint32_t n, uint32_t k);

    /* Stores rows [row, row + rows) of m from src, [rows][m->k] of `dtype`
     * (no alignment needed).  A matrix is complete when all rows were stored.
     * Calls for different rows may run in parallel. */
    int (*matrix_pack)(const tr_matrix_t *m, uint32_t row, uint32_t rows,
                       const void *src, tr_dtype_t dtype);

    /* y[rows][n] = x[rows][k] * m^T, plus what y held when `add`. */
    int (*matmul)(const tr_stream_t *s, const tr_matrix_t *m, const float *x,
                  size_t ldx, uint32_t rows, float *y, size_t ldy, int add);

    /* y[r] = row ids[r] of m: the token embedding. */
    int (*embedding)(const tr_stream_t *s, const tr_matrix_t *m,
                     const int32_t *ids, uint32_t rows, float *y, size_t ldy);

    /* x[r][i] += bias[i], i < n. */
    int (*add_bias)(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                    const float *bias, uint32_t n);

    /* y = x / sqrt(mean(x^2) + eps) * weight for each of `heads` groups of n
     * columns of every row, heads = 1 for a hidden state.  x may be y. */
    int (*rmsnorm)(const tr_stream_t *s, const float *x, size_t ldx,
                   uint32_t rows, uint32_t heads, uint32_t n,
                   const float *weight, float eps, float *y, size_t ldy);

    /* angles[r][0][i] = cos, angles[r][1][i] = sin of row_pos[r] *
     * inv_freq[i], i < half. */
    int (*rope_angles)(const tr_stream_t *s, const uint32_t *row_pos,
                       uint32_t rows, const float *inv_freq, uint32_t half,
                       float *angles);

    /* Rotates each head's pairs (i, i + head_dim / 2), in place. */
    int (*rope)(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                uint32_t heads, uint32_t head_dim, const float *angles);

    /* out[r][i] = silu(x[r][i]) * x[r][n + i], i < n. */
    int (*silu_mul)(const tr_stream_t *s, const float *x, size_t ldx,
                    uint32_t rows, uint32_t n, float *out, size_t ldo);

    /* Stores the step's keys (before RoPE) and values, [rows][lists *
     * head_dim] each, at their positions as FP16, rounded to nearest even,
     * finite values saturated to +-65504.  Pages for them are reserved. */
    int (*kv_append)(const tr_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows, const float *k,
                     const float *v, size_t ld, const float *angles);

    /* out[r][h] = softmax(scale * q[r][h] . K) V over positions
     * [0, row_pos[r]] of the row's sequence, on list h / (heads / lists);
     * q and out: [rows][heads * head_dim], q rotated.  Bytes of the cache
     * beyond row_pos are never used, whatever they hold. head_dim: a multiple
     * of 16 up to TR_HEAD_DIM_MAX; heads / lists up to TR_GROUP_MAX.
     * work: attention_work() bytes, 64-byte aligned. */
    int (*attention)(const tr_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows, const float *q,
                     size_t ldq, uint32_t heads, float scale, float *out,
                     size_t ldo, void *work);
    size_t (*attention_work)(const tr_stream_t *s, uint32_t max_seqs,
                             uint32_t head_dim);
};

/*
 * The CPU backend.  isa: NULL for the best that this processor has, or "c",
 * "avx2", "avx512"; NULL is returned for one that it has not.  The first call
 * probes OpenBLAS (matmul.c) and keeps it to one thread a call, since we spread
 * matrices over threads ourselves.
 */
const tr_kernels_t *tr_kernels_cpu(const char *isa);

#endif
