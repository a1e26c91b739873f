/*
 * small_gemm.h: matrix products of few rows, with what stands between them.
 *
 * With few rows a product takes what its weights take to come from memory; what
 * is left of a decode step are the gaps, where one product has ended, a small
 * kernel adds and normalises, and the next has not yet asked for its weights.
 * Here some products are one kernel, a chain:
 *
 *   - weights stream without a gap: those of a product are asked for while the
 *     one in front of it ends, those of the first while the kernel in front does;
 *   - a product writes what the next one reads: the residual is added and
 *     weighed, or the gate applied, where the sums are.
 *
 * RMSNorm is a weight for each column and a scale for each row, and a scale can
 * as well follow a product as go before it: TR_CUDA_SMALL_GEMM_RESIDUAL leaves hidden *
 * weight and, of each row, parts of the sum of hidden^2; the product behind it
 * makes the scale of these and applies it to its FP32 sums.
 *
 * A row's bits depend on the shape and on the class of `rows` (up to 8, 16, 32,
 * 64), not on other rows.  BF16 alone: FP16 has no room for rows that are not
 * normalised.  Compute capability 9.0 alone.
 */
#ifndef TR_CUDA_SMALL_GEMM_H
#define TR_CUDA_SMALL_GEMM_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TR_CUDA_SMALL_GEMM_ROWS 64u   /* at most */
#define TR_CUDA_SMALL_GEMM_PARTS 256u /* of a row's sum of squares, at most */
#define TR_CUDA_SMALL_GEMM_CHAIN 4u   /* products, at most */

typedef enum {
    TR_CUDA_SMALL_GEMM_PLAIN, /* y = scale x w^T */
    TR_CUDA_SMALL_GEMM_GATED, /* y = silu(scale x g^T) * (scale x u^T), w = [g; u]
                           * with n / 2 rows each */
    TR_CUDA_SMALL_GEMM_RESIDUAL, /* hidden += x w^T + bias; y = hidden * weight */
} tr_cuda_small_gemm_mode_t;

typedef struct {
    tr_cuda_small_gemm_mode_t mode;
    uint32_t rows, n, k;
    const void *x; /* [rows][ldx] BF16 */
    const void *w; /* [n][k] BF16; a weight: it is read before the launch before
                    * this one has ended */
    void *y;       /* [rows][ldy] BF16, ldy that of n, or n / 2 when GATED;
                    * RESIDUAL: NULL: none */
    size_t ldx, ldy; /* elements; multiples of 8 and 4 */

    /* PLAIN, GATED: scale = 1 / sqrt(sum / norm_n + eps), the sum being that of
     * squares[row][0 .. parts); parts 0: 1 */
    const float *squares;
    uint32_t parts, norm_n;
    float eps;

    /* RESIDUAL */
    float *hidden; /* [rows][ldh], ldh a multiple of 4 */
    size_t ldh;
    const float *bias, *weight; /* [n]; bias NULL: none; weight not without y */
    float *squares_out; /* [rows][tr_cuda_small_gemm_parts]; NULL: none */
} tr_cuda_small_gemm_t;

/* Can such products be done?  n and k: multiples of 64, of some hundreds. */
bool tr_cuda_small_gemm_fits(const tr_cuda_device_t *d, uint32_t n, uint32_t k);

/* Parts of a row's sum of squares that a RESIDUAL product leaves; 0: it is not
 * done, n being more than some 16,000, or with more than 32 rows 4,000: a second
 * group of warps would have few rows, and that is slower than to do without. */
uint32_t tr_cuda_small_gemm_parts(const tr_cuda_device_t *d, uint32_t rows,
                                  uint32_t n, uint32_t k);

/* a[0 .. n), of as many rows each; one reads what those before it wrote.
 * 16-byte aligned addresses.  barrier: a word of the device's memory, 0 before its
 * first use; chains that may run at once have one each. */
int tr_cuda_small_gemm(const tr_cuda_stream_t *s, const tr_cuda_small_gemm_t *a,
                       uint32_t n, uint32_t *barrier);

#ifdef __cplusplus
}
#endif

#endif
