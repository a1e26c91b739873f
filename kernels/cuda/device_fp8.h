/*
 * device_fp8.h: matrix products of 8 bits by 8 bits, as part of the device's
 * interface (device.h).
 *
 *   fp8_round   rows of x in FP8 (E4M3), a scale a row, or for 128 columns of it
 *   fp8_gemm    x w^T of those, w packed in FP8 (kernels/weight_form.h)
 *
 * Tensor cores do twice as many operations with 8 bits as with 16: with many rows
 * a product takes little more than half the time.  Rounding a row to three bits of
 * fraction changes a result by some percent of its size: whoever asks for it must
 * want that (cuda_activations in conf/engine.conf).
 *
 * Sums are FP32 every 128 columns; within these they are the tensor core's, which
 * drops what is 2^-13 of the largest.  A row's bits do not depend on other rows.
 * Compute capability 9.0 alone.
 */
#ifndef TR_CUDA_DEVICE_FP8_H
#define TR_CUDA_DEVICE_FP8_H

#include "kernels/act.h"
#include "kernels/cuda/launch_types.h"
#include "kernels/dtype.h"
#include "kernels/operands.h"
#include "kernels/weight_form.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TR_FP8_MOST 448.0f     /* the largest E4M3 */
#define TR_FP8_LEAST 0x1p-100f /* below, a row counts as zeros */
#define TR_FP8_BLOCK 128u     /* columns that share a scale, where not all do */
#define TR_FP8_COLUMNS 32768u /* at most */
#define TR_FP8_PAD 256u

/* Rows in 8 bits: x[r][c] is codes[r][place] * scale, place being c but for its
 * lowest four bits (tr_fp8_place). */
typedef struct {
    uint8_t *codes; /* [rows][k], 16-byte aligned */
    float *scales;  /* [rows], or by blocks [k / TR_FP8_BLOCK][ld] */
    size_t ld;      /* by blocks: a multiple of TR_FP8_PAD, at least rows */
} tr_cuda_fp8_t;

/* Where column c stands: as a lane has the columns of packed weights. */
TR_HD uint32_t
tr_fp8_place(uint32_t c)
{
    return (c & ~15u) | (c % 8 / 2 * 4 + c % 16 / 8 * 2 + c % 2);
}

typedef struct {
    uint32_t rows, k; /* k: a multiple of 128 */
    bool blocks;      /* a scale for TR_FP8_BLOCK columns, not for a row */
    const void *x;    /* [rows][ldx] BF16, 16-byte aligned */
    size_t ldx;       /* elements; a multiple of 8 */
    tr_cuda_fp8_t to;
} tr_cuda_fp8_round_t;

/* scale = largest / TR_FP8_MOST, codes rounded to the nearest; of what is less than
 * TR_FP8_LEAST the scale is 1.  Bytes moved: 3 rows k. */
int tr_cuda_fp8_round(const tr_cuda_stream_t *s, const tr_cuda_fp8_round_t *a);

typedef struct {
    uint32_t rows, n, k;
    bool gated; /* y = act(x g^T) * (x u^T), w = [g; u], n / 2 rows each */
    tr_act_t act;
    tr_cuda_fp8_t x; /* by blocks if w is */
    const void *w;
    tr_weight_form_t form; /* of w: FP8; PAIRS when gated, and may be else */
    void *y;               /* [rows][ldy] BF16, 16-byte aligned */
    size_t ldy;            /* elements; a multiple of 8 */
} tr_cuda_fp8_gemm_t;

#define TR_CUDA_FP8_ACTS (1u << TR_ACT_SILU) /* of gated ones */

static inline bool
tr_cuda_fp8_shape(tr_weight_form_t f, uint32_t n, uint32_t k)
{
    return f.format == TR_WEIGHT_FP8 && tr_weight_valid(f, n, k)
           && k % TR_FP8_BLOCK == 0 && k <= TR_FP8_COLUMNS;
}

static inline bool
tr_cuda_fp8_valid(const tr_cuda_fp8_t *x, bool blocks, uint32_t rows)
{
    return x->codes != NULL && x->scales != NULL
           && ((uintptr_t) x->codes & 15) == 0
           && ((uintptr_t) x->scales & 15) == 0
           && (!blocks || (x->ld >= rows && x->ld % TR_FP8_PAD == 0));
}

static inline bool
tr_cuda_fp8_round_valid(const tr_cuda_fp8_round_t *a)
{
    return a->k > 0 && a->k % TR_FP8_BLOCK == 0 && a->k <= TR_FP8_COLUMNS
           && a->x != NULL && ((uintptr_t) a->x & 15) == 0 && a->ldx >= a->k
           && a->ldx % 8 == 0 && tr_cuda_fp8_valid(&a->to, a->blocks, a->rows);
}

static inline bool
tr_cuda_fp8_gemm_valid(const tr_cuda_fp8_gemm_t *a)
{
    bool pairs = a->form.order == TR_WEIGHT_PAIRS;

    return tr_cuda_fp8_shape(a->form, a->n, a->k) && a->w != NULL
           && ((uintptr_t) a->w & 15) == 0 && a->y != NULL
           && ((uintptr_t) a->y & 15) == 0 && a->ldy % 8 == 0
           && a->ldy >= (a->gated ? a->n / 2 : a->n)
           && (!a->gated
               || (pairs && (unsigned) a->act < TR_ACTS
                   && (TR_CUDA_FP8_ACTS >> a->act & 1)))
           && tr_cuda_fp8_valid(&a->x, a->form.group != 0, a->rows);
}

/* Does the device have products with such weights? */
bool tr_cuda_fp8_fits(const tr_device_props_t *d, tr_weight_form_t f,
                      uint32_t n, uint32_t k);

/* Bytes moved, at the least: those of w, x and y; operations: 2 rows n k. */
int tr_cuda_fp8_gemm(const tr_cuda_stream_t *s, const tr_cuda_fp8_gemm_t *a);

#ifdef __cplusplus
}
#endif

#endif
