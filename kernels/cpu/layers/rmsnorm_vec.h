/*
 * One row of rmsnorm (rmsnorm.c) in vectors; rmsnorm_avx2.c and
 * rmsnorm_avx512.c define TR_NAME and include this.  Vector j of LANES / V_WIDTH
 * holds the lanes from j * V_WIDTH on.
 */
#include "kernels/cpu/cpu.h"

#define VECS (TR_NORM_LANES / V_WIDTH)

static inline float
sum_of_squares(const float *x, uint32_t n)
{
    float lane[TR_NORM_LANES];
    vec sum[VECS];
    uint32_t i = 0;

    for (uint32_t j = 0; j < VECS; j++) {
        sum[j] = v_set1(0);
    }
    for (; i + TR_NORM_LANES <= n; i += TR_NORM_LANES) {
        for (uint32_t j = 0; j < VECS; j++) {
            vec v = v_load(x + i + j * V_WIDTH);

            sum[j] = v_fma(v, v, sum[j]);
        }
    }
    for (uint32_t j = 0; j < VECS; j++) {
        v_store(lane + j * V_WIDTH, sum[j]);
    }
    for (uint32_t j = 0; i + j < n; j++) {
        lane[j] = __builtin_fmaf(x[i + j], x[i + j], lane[j]);
    }
    return tr_norm_sum(lane);
}

void
TR_NAME(tr_norm_row)(const float *x, const float *weight, float *y, uint32_t n,
                     float eps)
{
    float scale = tr_norm_scale(sum_of_squares(x, n), n, eps);
    uint32_t i = 0;

    for (; i + V_WIDTH <= n; i += V_WIDTH) {
        v_store(y + i,
                v_mul(v_mul(v_load(x + i), v_set1(scale)), v_load(weight + i)));
    }
    for (; i < n; i++) {
        y[i] = x[i] * scale * weight[i];
    }
}
