/*
 * kernels.h: the host backend's interface, one table of launchers
 * (tr_kernels_t) that computes a model's layers and writes and reads its KV
 * cache.  The engine's CPU model runs on it; implemented by kernels/cpu, in one
 * table for each instruction set.  A GPU's is kernels/cuda/device.h.
 *
 *   dtype.h        number types and conversions
 *   kv_layout.h    what stands where in a page; kv_view.h: the cache around it
 *   operands.h     rows of a step, matrices, what launchers return
 *   thread_pool.h  the threads that a launcher uses
 *
 * This folder depends on no other: it takes pointers, shapes and tables.  All
 * pointers are borrowed for the call.  A launcher takes the stream it runs on,
 * checks its arguments, returns TR_KERNEL_OK or TR_KERNEL_BADARG, and never
 * allocates: what it needs beyond its operands is a workspace given by the
 * caller, sized by the backend itself.
 *
 * The promise that every implementation makes: the bits of a row's result
 * depend on that row's operands and on the cache of its sequence, not on the
 * number of rows, on its place among them, on threads, or on where a prompt was
 * cut.
 */
#ifndef TR_KERNELS_H
#define TR_KERNELS_H

#include "act.h"
#include "kv_view.h"
#include "operands.h"
#include "route.h"
#include "thread_pool.h"

/* What stands for a weight: the number itself, or an integer. */
typedef enum {
    TR_CODES_NONE,
    TR_CODES_INT8,  /* 0 to 255 */
    TR_CODES_INT4,  /* 0 to 15 */
    TR_CODES_MXFP4, /* E2M1: weight = 2 * (what it says) * scale */
    TR_CODES
} tr_codes_t;

#define TR_CODES_COLUMNS 32u /* of x that share a scale; divides all groups */

/* Weights as integers: weight = (code - zero) * scale.  x becomes integers of 8
 * bits for the product, which is exact but for that and for FP32 sums over
 * TR_CODES_COLUMNS columns each. */
typedef struct {
    tr_codes_t codes;
    uint32_t group;    /* columns of an output that share a scale */
    tr_dtype_t scales; /* what they are kept in */
    bool zeros;        /* groups have zero points; else: the middle code */
    void *work;        /* borrowed: codes_work(), for products; matrices that
                        * are multiplied one after the other share it */
} tr_cpu_codes_t;

/* A weight matrix [n][k] (outputs, inputs), in the backend's layout, or as rows
 * of 16 bits that stand in a file. */
typedef struct {
    uint32_t n, k;
    void *data; /* matrix_bytes(n, k, dtype), or codes_bytes(), 64-byte
                 * aligned; NULL: `mapped` */
    tr_dtype_t dtype;
    tr_cpu_codes_t codes; /* unless NONE in place of dtype */
    /* Borrowed: [n / TR_COL_PAD], where the first of so many rows is, one behind
     * the other; where matrix_maps() says that there is such a form. */
    const void *const *mapped;
} tr_cpu_matrix_t;

typedef struct tr_kernels tr_kernels_t;

struct tr_kernels {
    const char *name; /* "cpu-avx512" */

    /* Room for a matrix. */
    size_t (*matrix_bytes)(uint32_t n, uint32_t k, tr_dtype_t dtype);

    /* May rows of such a matrix stay where they are? */
    bool (*matrix_maps)(uint32_t n, uint32_t k, tr_dtype_t dtype);

    /* Stores rows [row, row + rows) of m from src, [rows][m->k] of `dtype`
     * (no alignment needed), as m->dtype, or quantised: to INT8 from the largest
     * magnitude of a group, to INT4 with the code 0 for the largest.  A matrix is
     * complete when all rows were stored.  Calls for different rows may run in
     * parallel. */
    int (*matrix_pack)(const tr_cpu_matrix_t *m, uint32_t row, uint32_t rows,
                       const void *src, tr_dtype_t dtype);

    /* Room for a matrix of codes; 0: no kernel has it. */
    size_t (*codes_bytes)(uint32_t n, uint32_t k, const tr_cpu_codes_t *codes);
    /* Workspace for products of so many rows. */
    size_t (*codes_work)(uint32_t rows, uint32_t k);
    /* Stores a row as it is: codes [k], a byte each; scales, zeros (where the
     * matrix has them, at most 256): [k / group]. */
    int (*codes_pack)(const tr_cpu_matrix_t *m, uint32_t row,
                      const uint8_t *codes, const float *scales,
                      const uint32_t *zeros);

    /* y[rows][n] = x[rows][k] * m^T, plus what y held when `add`.  Weights of 16
     * bits give the bits that the same numbers give in FP32. */
    int (*matmul)(const tr_stream_t *s, const tr_cpu_matrix_t *m,
                  const float *x, size_t ldx, uint32_t rows, float *y,
                  size_t ldy, int add);

    /* y[r] = row ids[r] of m: the token embedding. */
    int (*embedding)(const tr_stream_t *s, const tr_cpu_matrix_t *m,
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
     * inv_freq[i], i < half, both times amp[i] and row_scale[r] (NULL: 1). */
    int (*rope_angles)(const tr_stream_t *s, const uint32_t *row_pos,
                       uint32_t rows, const float *inv_freq, const float *amp,
                       const float *row_scale, uint32_t half, float *angles);

    /* y[r][i] += scale * x[r][i], i < n. */
    int (*add_scaled)(const tr_stream_t *s, const float *x, size_t ldx,
                      uint32_t rows, uint32_t n, float scale, float *y,
                      size_t ldy);

    /* x[r][i] *= scale; then, unless cap is 0, x = cap * tanh(x / cap). */
    int (*scale_cap)(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                     uint32_t n, float scale, float cap);

    /* expert, weight: [rows][route->top_k], from the router's logits,
     * [rows][experts]; bias, [experts] or NULL, counts in the choice alone. */
    int (*route)(const tr_stream_t *s, const tr_route_t *route,
                 const float *logits, size_t ld, uint32_t rows,
                 const float *bias, uint32_t *expert, float *weight);

    /* y[r] = sum over k, in order, of weight[r][k] * x[place[r][k]], n
     * columns. */
    int (*sum_experts)(const tr_stream_t *s, const float *x, size_t ldx,
                       uint32_t rows, uint32_t top_k, uint32_t n,
                       const uint32_t *place, const float *weight, float *y,
                       size_t ldy);

    /* Rotates each head's pairs (i, i + head_dim / 2), in place. */
    int (*rope)(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                uint32_t heads, uint32_t head_dim, const float *angles);

    /* Each head becomes R times it (hadamard.h), in place. */
    int (*hadamard)(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                    uint32_t heads, uint32_t head_dim);

    /* Bits 1 << tr_act_t: what act_mul and gated know. */
    uint32_t acts;

    /* out[r][i] = act(x[r][i]) * x[r][n + i], i < n. */
    int (*act_mul)(const tr_stream_t *s, tr_act_t act, const float *x,
                   size_t ldx, uint32_t rows, uint32_t n, float *out,
                   size_t ldo);

    /* matmul by m, then act_mul of what came, n = m->n / 2: the same bits, but
     * what is between them stays in the core that made it.  For few rows: at
     * most TR_GATED_ROWS; n: a multiple of TR_COL_PAD. */
    int (*gated)(const tr_stream_t *s, tr_act_t act, const tr_cpu_matrix_t *m,
                 const float *x, size_t ldx, uint32_t rows, float *out,
                 size_t ldo);

    /* Stores the step's keys and values, [rows][kv_heads * head_dim] each, for
     * which pages are reserved.  Keys are stored rotated by the angles, or with
     * angles NULL as they are.  A row at position p: p >= base:
     * dense, FP16 rounded to nearest even, finite values saturated to +-65504,
     * scores zeroed, min/max updated. p < base (then p = base - 1, the only row
     * of its sequence): the head's move is done, then the token enters the
     * window, or its tier.
     *
     * Quantisation of a group: zero = FP16(min), scale = FP16((max - min) /
     * (2^bits - 1)), at least the smallest FP16 when max > min; code =
     * clamp(round((x - zero) / scale)) by round to nearest even in FP32, 0 when
     * scale is 0.  Narrow 2-bit groups give up their ends for finer steps in
     * between: scale = FP16((max - min) / 5), zero = FP16(min + (max - min) /
     * 5) (four steps of one standard deviation, near the least squared error
     * for normal data; spread from end to end they are 1.6 wide).  A token that
     * goes from fewer bits to the same number keeps its codes and metadata;
     * downgrading is integer: 8 to 4 bits (q + 8) / 17, scale * 17; 4 to 2 bits
     * (q + 2) / 5, scale * 5, or narrow, the scale * 3 first, zero + scale, and
     * min(3, (max(q, 2) - 2) / 3); 8 to 2 by way of 4; from 16 bits, or to
     * another grouping, from the stored values.  Score and position go along (a
     * source without scores has score 0, position 0). Metadata is finite
     * whatever comes: infinities count as +-65504, a NaN has code 0, the
     * group's smallest value; zero is never -0.
     *
     * Who writes the only token of a page of a tier or window clears the page's
     * metadata and scores: given out, a page is full of what it held before.
     *
     * TR_KERNEL_BADARG, and nothing is written: a place outside its part of the
     * table, or without page; a target beyond `count`; layout 0 for a tier or
     * the window; a candidate or the window by channel; bits that go up. */
    int (*kv_append)(const tr_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows, const float *k,
                     const float *v, size_t ld, const float *angles);

    /* Moves all that a slot caches, all layers; see tr_kv_compress_t.  Only
     * reads the old pages.  Refuses as kv_append does; also a tiered token for
     * the window, a window that does not take exactly its positions, and a
     * number of tokens for a tier by channel that is no multiple of
     * TR_KV_CHANNEL_TOKENS.  work: kv_compress_work() bytes. */
    int (*kv_compress)(const tr_stream_t *s, const tr_kv_view_t *kv,
                       const tr_kv_compress_t *c, void *work);
    size_t (*kv_compress_work)(const tr_stream_t *s, uint32_t head_dim);

    /* What c changed for these queries, between kv_compress and the old pages'
     * return.  FP32; every token is read once.  work: kv_compare_work() bytes,
     * 64-byte aligned. */
    int (*kv_compare)(const tr_stream_t *s, const tr_kv_view_t *kv,
                      const tr_kv_compress_t *c, const tr_kv_compare_t *q,
                      void *work);
    size_t (*kv_compare_work)(const tr_stream_t *s, uint32_t n, uint32_t heads,
                              uint32_t kv_heads, uint32_t head_dim);

    /* out[r][h] = softmax(scale * q[r][h] . K) V over what KV head h / (heads /
     * kv_heads) caches of the row's sequence: all its tiers, its window, and
     * uncompressed positions [base, row_pos[r]]; q and out: [rows][heads *
     * head_dim], q rotated.  Adds to scores, and sets the candidates of heads
     * with tiers when the sequence has one row.  Bytes of the cache that hold
     * no such token are never used, whatever they hold.  head_dim: a multiple
     * of 16 up to TR_HEAD_DIM_MAX; heads / kv_heads up to TR_GROUP_MAX.
     * work: attention_work() bytes, 64-byte aligned. */
    int (*attention)(const tr_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows, const float *q,
                     size_t ldq, uint32_t heads, float scale, float *out,
                     size_t ldo, void *work);
    /* max_len: tokens of one sequence */
    size_t (*attention_work)(const tr_stream_t *s, uint32_t max_rows,
                             uint32_t max_seqs, uint32_t max_len,
                             uint32_t heads, uint32_t kv_heads,
                             uint32_t head_dim);
};

/*
 * The CPU backend.  isa: NULL for the best that this processor has, or "c",
 * "avx2", "avx512"; NULL is returned for one that it has not.  The first call
 * that returns "c" probes OpenBLAS (kernels/cpu/gemm/matmul_blas.c) and keeps it
 * to one thread a call, since we spread matrices over threads ourselves.
 */
const tr_kernels_t *tr_kernels_cpu(const char *isa);

#endif
