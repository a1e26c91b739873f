/*
 * Rotary position embedding, the half-split form of Llama: pairs are
 * (i, i + head_dim / 2).  The angles of a step's positions are computed once
 * and serve all layers and heads; as in the published models the angle is the
 * FP32 product of position and frequency.  Reference: test_kernels.c.
 */
#include "cpu.h"

#include <math.h>

int
tr_cpu_rope_angles(const tr_stream_t *s, const uint32_t *row_pos, uint32_t rows,
                   const float *inv_freq, uint32_t half, float *angles)
{
#pragma omp parallel for TR_PARALLEL_ROWS(s, rows, (size_t) half * 16)
    for (uint32_t r = 0; r < rows; r++) {
        float *out = angles + (size_t) r * half * 2;

        for (uint32_t i = 0; i < half; i++) {
            float a = (float) row_pos[r] * inv_freq[i];

            out[i] = cosf(a);
            out[half + i] = sinf(a);
        }
    }
    return TR_KERNEL_OK;
}

int
tr_cpu_rope(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
            uint32_t heads, uint32_t head_dim, const float *angles)
{
    uint32_t half = head_dim / 2;

    if (head_dim % 2 || ldx < (size_t) heads * head_dim) {
        return TR_KERNEL_BADARG;
    }
#pragma omp parallel for TR_PARALLEL_ROWS(s, rows, (size_t) heads *head_dim)
    for (uint32_t r = 0; r < rows; r++) {
        const float *c = angles + (size_t) r * head_dim, *d = c + half;

        for (uint32_t h = 0; h < heads; h++) {
            float *lo = x + r * ldx + (size_t) h * head_dim;
            float *hi = lo + half;

            for (uint32_t i = 0; i < half; i++) {
                float u = lo[i], v = hi[i];

                lo[i] = u * c[i] - v * d[i];
                hi[i] = v * c[i] + u * d[i];
            }
        }
    }
    return TR_KERNEL_OK;
}
