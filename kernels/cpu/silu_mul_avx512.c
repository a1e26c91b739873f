/* silu_row.h compiled for this instruction set; see silu_mul.c. */
#include "cpu.h"
#include "silu_row.h"

void
tr_silu_row_avx512(const float *gate, const float *up, float *out, uint32_t n)
{
    tr_silu_row(gate, up, out, n);
}
