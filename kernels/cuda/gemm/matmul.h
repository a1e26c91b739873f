/*
 * matmul.h: matrix products, by cuBLASLt (those of few rows: small_gemm.h).
 *
 * y[rows][n] = x[rows][k] * w[n][k]^T, all row-major, x and w of one 16-bit
 * type, FP32 sums.  Weights are kept as the model's files have them: rows of k.
 *
 * The algorithm is chosen once for each (n, k, types) and class of rows, when
 * the model is opened, so that the same shape always gives the same bits; rows
 * are rounded up to their class (tr_cuda_matmul_rows), whose padding rows may
 * be read and written: contents have no influence.
 */
#ifndef TR_CUDA_MATMUL_H
#define TR_CUDA_MATMUL_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_cuda_matmul tr_cuda_matmul_t;

typedef struct {
    uint32_t rows, n, k;
    tr_dtype_t type; /* of x and w: TR_F16 or TR_BF16 */
    tr_dtype_t out;  /* of y: the same, or TR_F32 */
    const void *x, *w;
    void *y;
    size_t ldx, ldy; /* elements; 16-byte multiples, as all addresses */
} tr_cuda_product_t;

/* Rows that a product of `rows` rows is computed for; buffers of x and y have
 * that many.  The same on every device.  Finest where products stop being bound
 * by their weights: from there on, rows that only pad cost as much as others. */
static inline uint32_t
tr_cuda_matmul_rows(uint32_t rows)
{
    uint32_t step = rows <= 16     ? 8
                    : rows <= 64   ? 16
                    : rows <= 256  ? 32
                    : rows <= 512  ? 16
                    : rows <= 1024 ? 64
                                   : 128;

    return (rows + step - 1) / step * step;
}

/* Host.  max_rows bounds the classes. */
int tr_cuda_matmul_open(const tr_cuda_device_t *d, uint32_t max_rows,
                        tr_cuda_matmul_t **out);
void tr_cuda_matmul_close(tr_cuda_matmul_t *m);

/* Host: chooses the algorithms of (n, k, type, out) for all classes of rows.
 * They are timed with matrices like w, [n_weights] that are used in turn, as the
 * layers of a model are; x and y as in a product of max_rows, which are written
 * to.  n_weights 0: the library's first suggestion stands. */
int tr_cuda_matmul_choose(tr_cuda_matmul_t *m, const tr_cuda_stream_t *s,
                          const tr_cuda_product_t *shape,
                          const void *const *weights, uint32_t n_weights);

/* A product of a chosen shape.  Can be captured.  TR_KERNEL_BADARG: it was not
 * chosen, or is not aligned. */
int tr_cuda_matmul(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
                   const tr_cuda_product_t *product);

#ifdef __cplusplus
}
#endif

#endif
