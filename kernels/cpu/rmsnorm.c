/*
 * RMS normalisation of hidden states and of heads (Qwen3), and the bias of a
 * projection (Qwen2).  The sum of squares runs in LANES partial sums, so that
 * the compiler may vectorise it without reordering: the result is the same on
 * every processor.  Reference: test_kernels.c.
 */
#include "cpu.h"

#include <math.h>

#define LANES 16u

static float
sum_of_squares(const float *x, uint32_t n)
{
    float lane[LANES] = { 0 };
    float sum = 0;
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            lane[j] += x[i + j] * x[i + j];
        }
    }
    for (uint32_t j = 0; i + j < n; j++) {
        lane[j] += x[i + j] * x[i + j];
    }
    for (uint32_t j = 0; j < LANES; j++) {
        sum += lane[j];
    }
    return sum;
}

int
tr_cpu_rmsnorm(const tr_stream_t *s, const float *x, size_t ldx, uint32_t rows,
               uint32_t heads, uint32_t n, const float *weight, float eps,
               float *y, size_t ldy)
{
    if (n == 0 || ldx < (size_t) heads * n || ldy < (size_t) heads * n) {
        return TR_KERNEL_BADARG;
    }
#pragma omp parallel for TR_PARALLEL_ROWS(s, rows, (size_t) heads *n)
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            const float *in = x + r * ldx + (size_t) h * n;
            float *out = y + r * ldy + (size_t) h * n;
            float scale = 1.0f / sqrtf(sum_of_squares(in, n) / (float) n + eps);

            for (uint32_t i = 0; i < n; i++) {
                out[i] = in[i] * scale * weight[i];
            }
        }
    }
    return TR_KERNEL_OK;
}

int
tr_cpu_add_bias(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                const float *bias, uint32_t n)
{
    if (ldx < n) {
        return TR_KERNEL_BADARG;
    }
#pragma omp parallel for TR_PARALLEL_ROWS(s, rows, n)
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            x[r * ldx + i] += bias[i];
        }
    }
    return TR_KERNEL_OK;
}
