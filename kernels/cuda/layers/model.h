/*
 * model.h: what a forward pass computes beside attention and matrix products.
 *
 * The residual stream `hidden` is FP32; what enters and leaves a product is of
 * the model's 16-bit type T (TR_F16 or TR_BF16), rounded to nearest even; what
 * is too large for it becomes infinity, which ends as TR_CUDA_BAD_LOGITS.  Sums
 * are FP32, in an order that depends on the row's length alone.  Launchers are
 * as cuda.h says.  Rows beyond `rows` are not touched, nor columns beyond a
 * row's; addresses and distances that are multiples of 16 bytes are faster.
 * One layer is
 *
 *   norm: hidden += delta of the layer before; T <- rmsnorm   product qkv
 *   qkv: bias, norms of heads, q rotated                      append, attention
 *   product o
 *   norm: hidden += o; T <- rmsnorm                           product gate_up
 *   silu_mul                                                  product down
 *
 * With few rows there may be small_gemm.h's products instead of all these but append and
 * attention.
 */
#ifndef TR_CUDA_MODEL_H
#define TR_CUDA_MODEL_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tokens that stand at each position of a slot, as far as they were
 * computed or sampled: the device knows the token that a decode step begins
 * with before the host does. */
typedef struct {
    int32_t *token; /* [slots][len] */
    size_t len;
} tr_cuda_history_t;

typedef struct {
    uint32_t rows, vocab, hidden;
    const int32_t *token;    /* [rows]; < 0: what history has at (slot, pos) */
    const int32_t *row_slot; /* [rows]; < 0: padding, any token will do */
    const uint32_t *row_pos; /* [rows] */
    tr_cuda_history_t history; /* given tokens are entered as they came; token
                                * NULL: none is kept */
    const void *table;         /* [vocab][hidden] of T */
    tr_dtype_t type;
    float *out; /* [rows][ldo] */
    size_t ldo;
} tr_cuda_embed_t;

/* A token outside the vocabulary, or beyond history, counts as 0. */
int tr_cuda_embed(const tr_cuda_stream_t *s, const tr_cuda_embed_t *a);

/* tr_kernels_t.rope_angles: FP32 products of position and frequency, cosine and
 * sine of them to the last bit or nearly so, up to any position. */
int tr_cuda_rope_angles(const tr_cuda_stream_t *s, const uint32_t *row_pos,
                        uint32_t rows, const float *inv_freq, uint32_t half,
                        float *angles);

typedef struct {
    uint32_t rows, n;
    float *hidden; /* [rows][ldh] */
    size_t ldh;
    const void *delta; /* [rows][ldd] of T, added to hidden first; NULL: none */
    size_t ldd;
    const float *bias;   /* [n], added after delta, not without; NULL: none */
    const float *weight; /* [n], a weight: it is read before the launch before
                          * this one has ended */
    float eps;
    const uint32_t *gather; /* NULL, or [rows]: row i of out (and delta's use)
                             * is hidden row gather[i], which is not written */
    void *out;              /* [rows][ldo] of T */
    size_t ldo;
    tr_dtype_t type;
} tr_cuda_norm_t;

/* hidden += delta + bias; out = hidden / sqrt(mean(hidden^2) + eps) * weight.
 * With gather, delta is of the gathered row. */
int tr_cuda_norm(const tr_cuda_stream_t *s, const tr_cuda_norm_t *a);

typedef struct {
    uint32_t rows, heads, lists, head_dim;
    void *qkv; /* [rows][ld] of T: heads * head_dim, then keys, then values */
    size_t ld;
    tr_dtype_t type;
    const float *bias; /* [(heads + 2 * lists) * head_dim] or NULL; a weight, as
                        * that of the norm */
    const float *q_norm, *k_norm; /* [head_dim] or NULL, both or none */
    float eps;
    const float *angles; /* [rows][2][head_dim / 2] */
    bool early; /* tr_cuda_kv_append: the launch before it lets it begin */
} tr_cuda_qkv_t;

/* In place: bias, then the norms, then queries are rotated, in FP32 between.
 * Keys stay as they are before RoPE (store.h rotates them).  head_dim: a
 * multiple of 16 up to TR_HEAD_DIM_MAX. */
int tr_cuda_qkv(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a);

/* out[r][i] = silu(x[r][i]) * x[r][n + i], i < n, of T. */
int tr_cuda_silu_mul(const tr_cuda_stream_t *s, const void *x, size_t ldx,
                     uint32_t rows, uint32_t n, tr_dtype_t type, void *out,
                     size_t ldo);

/* out[i] = kind[i] == wanted ? slot[i] : -1: which sequences of a batch go to
 * which attention, after the manager has said who stalls. */
int tr_cuda_select(const tr_cuda_stream_t *s, const int32_t *slot,
                   const uint8_t *kind, uint32_t n, uint8_t wanted,
                   int32_t *out);

/* load_format dummy: element i of x is uniform with standard deviation sd, a
 * function of (seed, first + i) alone: the one of engine/model/cpu/model_weights.c. */
int tr_cuda_fill_random(const tr_cuda_stream_t *s, void *x, size_t n,
                        tr_dtype_t type, uint64_t seed, uint64_t first,
                        float sd);

/* from [n] of one type to another, any of the three, to nearest even. */
int tr_cuda_convert(const tr_cuda_stream_t *s, const void *from,
                    tr_dtype_t from_type, void *to, tr_dtype_t to_type,
                    size_t n);

#ifdef __cplusplus
}
#endif

#endif
