/*
 * The rows of act_mul.c in vectors; act_mul_avx2.c and act_mul_avx512.c define
 * TR_NAME and include this.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec_exp.h"

void
TR_NAME(tr_silu_row)(const float *gate, const float *up, float *out, uint32_t n)
{
    uint32_t i = 0;

    for (; i + V_WIDTH <= n; i += V_WIDTH) {
        vec g = v_load(gate + i);
        vec down = v_add(v_set1(1.0f), v_exp(v_sub(v_set1(0), g)));

        v_store(out + i, v_mul(v_div(g, down), v_load(up + i)));
    }
    tr_silu_row_c(gate + i, up + i, out + i, n - i);
}

void
TR_NAME(tr_gelu_tanh_row)(const float *gate, const float *up, float *out,
                          uint32_t n)
{
    uint32_t i = 0;

    for (; i + V_WIDTH <= n; i += V_WIDTH) {
        vec g = v_load(gate + i);
        vec cube = v_mul(v_mul(g, g), v_mul(g, v_set1(TR_GELU_CUBE)));
        vec u = v_mul(v_set1(-2 * TR_GELU_SLOPE), v_add(g, cube));
        vec down = v_add(v_set1(1.0f), v_exp(u));

        v_store(out + i, v_mul(v_div(g, down), v_load(up + i)));
    }
    tr_gelu_tanh_row_c(gate + i, up + i, out + i, n - i);
}
