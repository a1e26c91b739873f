/*
 * The rotation of heads (kernels/hadamard.h), for queries and keys behind RoPE.
 * Some log2(head_dim) additions for each element, a hundredth of the products
 * that made it.  Reference: test_kernels.c.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/hadamard.h"

typedef struct {
    float *x;
    size_t ldx;
    uint32_t heads, dim;
    float sign[TR_HEAD_DIM_MAX]; /* with the scale */
} hadamard_t;

static void
rotate_head(float *x, const float *sign, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++) {
        x[i] *= sign[i];
    }
    for (uint32_t half = 1; half < dim; half *= 2) {
        for (uint32_t at = 0; at < dim; at += 2 * half) {
            for (uint32_t i = at; i < at + half; i++) {
                float u = x[i], v = x[i + half];

                x[i] = u + v;
                x[i + half] = u - v;
            }
        }
    }
}

static void
hadamard_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const hadamard_t *a = arg;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        for (uint32_t h = 0; h < a->heads; h++) {
            rotate_head(a->x + r * a->ldx + (size_t) h * a->dim, a->sign,
                        a->dim);
        }
    }
}

int
tr_cpu_hadamard(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                uint32_t heads, uint32_t head_dim)
{
    hadamard_t a = { .x = x, .ldx = ldx, .heads = heads, .dim = head_dim };

    if (!tr_hadamard_has(head_dim) || ldx < (size_t) heads * head_dim) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t i = 0; i < head_dim; i++) {
        a.sign[i] = tr_hadamard_sign(i) / sqrtf((float) head_dim);
    }
    tr_rows_run(s, rows, 4 * (size_t) heads * head_dim, hadamard_rows, &a);
    return TR_KERNEL_OK;
}
