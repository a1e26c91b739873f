/*
 * device_layers.h: what a forward pass computes beside attention and matrix
 * products, as part of the device's interface (device.h).
 *
 * The residual stream `hidden` is FP32; what enters and leaves a product is of
 * the model's 16-bit type T (TR_F16 or TR_BF16), rounded to nearest even; what
 * is too large for it becomes infinity, which ends as TR_CUDA_BAD_LOGITS.  Sums
 * are FP32, in an order that depends on the row's length alone.  Rows beyond
 * `rows` are not touched, nor columns beyond a row's; addresses and distances
 * that are multiples of 16 bytes are faster.  One layer is
 *
 *   norm: hidden += delta of the layer before; T <- rmsnorm   product qkv
 *   qkv: bias, norms of heads, q rotated                      append, attention
 *   product o
 *   norm: hidden += o; T <- rmsnorm                           product gate_up
 *   act_mul                                                   product down
 *
 * with row_norm before qkv where all heads of a row are normalised at once.
 * In small batches a chain of small_gemm may replace all but append and
 * attention.
 */
#ifndef TR_CUDA_DEVICE_LAYERS_H
#define TR_CUDA_DEVICE_LAYERS_H

#include "kernels/act.h"
#include "kernels/cuda/launch_types.h"
#include "kernels/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t rows, vocab, hidden;
    const int32_t *token;    /* [rows]; < 0: what history has at (slot, pos) */
    const int32_t *row_slot; /* [rows]; < 0: padding, any token will do */
    const uint32_t *row_pos; /* [rows] */
    tr_cuda_history_t history; /* given tokens are entered as they came; token
                                * NULL: none is kept */
    const void *table;         /* [vocab][hidden] of T */
    tr_dtype_t type;
    float scale; /* embeddings are multiplied with it, in FP32 */
    float *out;  /* [rows][ldo] */
    size_t ldo;
} tr_cuda_embed_t;

/* A token outside the vocabulary, or beyond history, counts as 0. */
int tr_cuda_embed(const tr_cuda_stream_t *s, const tr_cuda_embed_t *a);

/* A table of angles. */
typedef struct {
    uint32_t rows, half;
    const uint32_t *row_pos;    /* [rows] */
    const float *inv_freq;      /* [half] */
    const float *inv_freq_long; /* of rows whose row_long is not 0 */
    const uint8_t *row_long;    /* [rows], or NULL: none is */
    const float *amp;           /* [half], or NULL: 1 */
    float temp;                 /* 0, or times 1 + temp ln(1 +
                                      * floor(position / temp_original)) */
    uint32_t temp_original;
    float *angles; /* [rows][2][half] */
} tr_cuda_angles_t;

/* tr_kernels_t.rope_angles: FP32 products of position and frequency, cosine and
 * sine of them to the last bit or nearly so, up to any position, times amp and
 * the queries' temperature. */
int tr_cuda_rope_angles(const tr_cuda_stream_t *s, const tr_cuda_angles_t *a);

typedef struct {
    uint32_t rows, n;
    float *hidden; /* [rows][ldh] */
    size_t ldh;
    const void *delta; /* [rows][ldd] of T, added to hidden first; NULL: none */
    size_t ldd;
    const float *bias; /* [n], added after delta, not without; NULL: none */
    const float *post_weight; /* [n]: delta and bias are normalised before they
                               * are added; not without delta; NULL: none */
    float scale;              /* what is added is multiplied with it */
    const float *weight; /* [n], a weight: it is read before the launch before
                          * this one has ended; NULL: hidden as it is */
    float eps;
    const uint32_t *gather; /* NULL, or [rows]: row i of out (and delta's use)
                             * is hidden row gather[i], which is not written */
    void *out;              /* [rows][ldo] of T */
    size_t ldo;
    tr_dtype_t type;
    bool full; /* out is FP32 */
} tr_cuda_norm_t;

/* hidden += scale * (delta + bias), or with post_weight scale * rmsnorm(delta +
 * bias) * post_weight; out = hidden / sqrt(mean(hidden^2) + eps) * weight.  With
 * gather, delta is of the gathered row. */
int tr_cuda_norm(const tr_cuda_stream_t *s, const tr_cuda_norm_t *a);

/* Sums of rows that come piece by piece: item i has rows [first[i], first[i + 1])
 * of all, and x has `rows` of them, from `at` on. */
typedef struct {
    uint32_t items, n, at, rows;
    const float *x; /* [rows][ldx] */
    size_t ldx;
    const uint32_t *first; /* [items + 1] */
    float *out;            /* [items][ldo] */
    size_t ldo;
} tr_cuda_pool_t;

/* out of each item that has rows in x: their sum, in their order, on top of what
 * is there, unless its first row is among them. */
int tr_cuda_pool(const tr_cuda_stream_t *s, const tr_cuda_pool_t *a);

typedef struct {
    uint32_t rows, heads, kv_heads, head_dim;
    void *qkv; /* [rows][ld] of T: heads * head_dim, then keys, then values */
    size_t ld;
    tr_dtype_t type;
    const float
        *bias; /* [(heads + 2 * kv_heads) * head_dim] or NULL; a weight, as
                        * that of the norm */
    const float *q_norm, *k_norm; /* [head_dim] or NULL, both or none */
    float eps;
    const float *angles; /* [rows][2][head_dim / 2] of queries */
    /* as angles: keys are turned, too, and then get key_shift, [kv_heads *
     * head_dim] (engine/model/centre.h); NULL: they are not, and do not */
    const float *key_angles, *key_shift;
    bool hadamard; /* with key_angles: in the end R takes queries and keys
                    * (kernels/hadamard.h) */
    bool early;    /* tr_cuda_kv_append: the launch before it lets it begin */
} tr_cuda_qkv_t;

/* In place: bias, then the norms, then queries are rotated, in FP32 between.
 * Keys stay as they are before RoPE (tr_cuda_kv_append rotates them), unless
 * there are key_angles.  head_dim: a multiple of 16 up to TR_HEAD_DIM_MAX; with
 * hadamard a power of two. */
int tr_cuda_qkv(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a);

/* Before tr_cuda_qkv, in place: bias, then all queries of a row are normalised
 * together, and all its keys; q_norm and k_norm are [heads * head_dim] and
 * [kv_heads * head_dim] here.  What is not said of these is not looked at. */
int tr_cuda_row_norm(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a);

/* Bits 1 << tr_act_t: what tr_cuda_act_mul has, and what
 * TR_CUDA_SMALL_GEMM_GATED has. */
#define TR_CUDA_ACTS \
    (1u << TR_ACT_SILU | 1u << TR_ACT_GELU_TANH | 1u << TR_ACT_OAI)
#define TR_CUDA_SMALL_GEMM_ACTS (1u << TR_ACT_SILU)

static inline bool
tr_cuda_has_act(uint32_t acts, tr_act_t act)
{
    return (unsigned) act < TR_ACTS && (acts >> act & 1);
}

/* out[r][i] = act(x[r][i]) * x[r][n + i], i < n, of T; TR_ACT_OAI as act.h has
 * it. */
int tr_cuda_act_mul(const tr_cuda_stream_t *s, tr_act_t act, const void *x,
                    size_t ldx, uint32_t rows, uint32_t n, tr_dtype_t type,
                    void *out, size_t ldo);

/* x[r][i] *= scale; then, unless cap is 0, x = cap * tanh(x / cap); FP32. */
int tr_cuda_scale_cap(const tr_cuda_stream_t *s, float *x, size_t ldx,
                      uint32_t rows, uint32_t n, float scale, float cap);

/* Rows of a layer's input, to where they are kept (engine/kv/kv_inputs.h). */
typedef struct {
    uint32_t rows, n; /* columns, of 16 bits; a multiple of 8 */
    const void *x;    /* [rows][ldx], aligned to 16 bytes, as what follows */
    size_t ldx;
    const uint32_t *row_chunk; /* [rows] the chunk, and 1; 0: it is not kept */
    const uint32_t *row_pos;   /* [rows] its place is that modulo tokens */
    uint32_t layer, layers, tokens; /* of a chunk */
    size_t row_bytes; /* from a row there to the next, a multiple of 16 */
    uint8_t *memory;  /* pinned host memory: [chunks][layers][tokens] rows */
} tr_cuda_keep_rows_t;

int tr_cuda_keep_rows(const tr_cuda_stream_t *s, const tr_cuda_keep_rows_t *a);

/* out[i] = kind[i] == wanted ? slot[i] : -1: which sequences of a batch go to
 * which attention, after the manager has said who stalls. */
int tr_cuda_select(const tr_cuda_stream_t *s, const int32_t *slot,
                   const uint8_t *kind, uint32_t n, uint8_t wanted,
                   int32_t *out);

/* load_format dummy: element i of x is uniform with standard deviation sd, a
 * function of (seed, first + i) alone: the one of
 * engine/model/cpu/model_weights.c. */
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
