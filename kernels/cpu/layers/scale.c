/*
 * The scalings that some families have: what a layer adds to the residual
 * stream, embeddings, and logits with their cap.  Reference: test_kernels.c.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

typedef struct {
    const float *x;
    float *y;
    size_t ldx, ldy;
    uint32_t n;
    float scale, cap;
} scale_t;

static void
add_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const scale_t *a = arg;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;

        for (uint32_t i = 0; i < a->n; i++) {
            y[i] += a->scale * x[i];
        }
    }
}

int
tr_cpu_add_scaled(const tr_stream_t *s, const float *x, size_t ldx,
                  uint32_t rows, uint32_t n, float scale, float *y, size_t ldy)
{
    scale_t a = { x, y, ldx, ldy, n, scale, 0 };

    if (ldx < n || ldy < n) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows, n, add_rows, &a);
    return TR_KERNEL_OK;
}

static void
scale_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const scale_t *a = arg;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        float *y = a->y + r * a->ldy;

        for (uint32_t i = 0; i < a->n; i++) {
            y[i] *= a->scale;
        }
        for (uint32_t i = 0; a->cap != 0 && i < a->n; i++) {
            y[i] = a->cap * tanhf(y[i] / a->cap);
        }
    }
}

int
tr_cpu_scale_cap(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                 uint32_t n, float scale, float cap)
{
    scale_t a = { NULL, x, 0, ldx, n, scale, cap };

    if (ldx < n || !(cap >= 0)) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows, n, scale_rows, &a);
    return TR_KERNEL_OK;
}
