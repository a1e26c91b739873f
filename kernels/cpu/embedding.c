/*
 * The token embedding: rows of a packed matrix, gathered.  The matrix is kept
 * in the layout of matmul.c so that tied embeddings are stored once; reading a
 * row with a stride costs nothing beside the step's products.
 */
#include "cpu.h"

int
tr_cpu_embedding(const tr_stream_t *s, const tr_matrix_t *m, const int32_t *ids,
                 uint32_t rows, float *y, size_t ldy)
{
    for (uint32_t r = 0; r < rows; r++) {
        if (ids[r] < 0 || (uint32_t) ids[r] >= m->n) {
            return TR_KERNEL_BADARG;
        }
    }
#pragma omp parallel for TR_PARALLEL_ROWS(s, rows, m->k)
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t stride;
        const float *in = tr_cpu_matrix_row(m, (uint32_t) ids[r], &stride);
        float *out = y + r * ldy;

        for (uint32_t k = 0; k < m->k; k++) {
            out[k] = in[(size_t) k * stride];
        }
    }
    return TR_KERNEL_OK;
}
