/*
 * The gate of the Llama MLP: out = silu(gate) * up, gate and up being the two
 * halves of one product's row.  Reference: test_kernels.c.
 */
#include "cpu.h"

#include <math.h>

void
tr_silu_row_c(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
}

int
tr_cpu_silu_mul(const tr_stream_t *s, const float *x, size_t ldx, uint32_t rows,
                uint32_t n, float *out, size_t ldo, tr_silu_row_f row)
{
    if (ldx < 2 * (size_t) n || ldo < n) {
        return TR_KERNEL_BADARG;
    }
#pragma omp parallel for TR_PARALLEL_ROWS(s, rows, n)
    for (uint32_t r = 0; r < rows; r++) {
        row(x + r * ldx, x + r * ldx + n, out + r * ldo, n);
    }
    return TR_KERNEL_OK;
}
