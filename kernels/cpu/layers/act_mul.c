/*
 * The gate of an MLP: out = act(gate) * up, gate and up being the two halves of
 * one product's row; and the activations, one row at a time.  Reference:
 * test_kernels.c.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

void
tr_silu_row_c(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
}

/* x / 2 (1 + tanh(u)) = x / (1 + e^-2u) */
void
tr_gelu_tanh_row_c(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i];
        float u = TR_GELU_SLOPE * (g + TR_GELU_CUBE * g * g * g);

        out[i] = g / (1.0f + expf(-2 * u)) * up[i];
    }
}

#define OAI_SLOPE 1.702f
#define OAI_LIMIT 7.0f

void
tr_oai_row_c(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = fminf(gate[i], OAI_LIMIT);
        float u = fminf(fmaxf(up[i], -OAI_LIMIT), OAI_LIMIT);

        out[i] = (u + 1) * (g / (1.0f + expf(-OAI_SLOPE * g)));
    }
}

typedef struct {
    const float *x;
    float *out;
    size_t ldx, ldo;
    uint32_t n;
    tr_act_row_f row;
} gate_t;

static void
gate_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const gate_t *a = arg;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        const float *x = a->x + r * a->ldx;

        a->row(x, x + a->n, a->out + r * a->ldo, a->n);
    }
}

int
tr_cpu_act_mul(const tr_stream_t *s, const float *x, size_t ldx, uint32_t rows,
               uint32_t n, float *out, size_t ldo, tr_act_row_f row)
{
    gate_t a = { x, out, ldx, ldo, n, row };

    if (row == NULL || ldx < 2 * (size_t) n || ldo < n) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows, n, gate_rows, &a);
    return TR_KERNEL_OK;
}
