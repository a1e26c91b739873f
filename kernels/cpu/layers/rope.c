/*
 * Rotary position embedding, the half-split form: pairs are
 * (i, i + head_dim / 2).  The angles of a step's positions are computed once
 * and serve all layers and heads; as in the published models the angle is the
 * FP32 product of position and frequency.  Reference: test_kernels.c.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

typedef struct {
    const uint32_t *row_pos;
    const float *inv_freq, *amp, *row_scale;
    uint32_t half;
    float *angles;
} angles_t;

static void
angle_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const angles_t *a = arg;
    uint32_t half = a->half;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        float *out = a->angles + (size_t) r * half * 2;

        float row = a->row_scale ? a->row_scale[r] : 1;

        for (uint32_t i = 0; i < half; i++) {
            float angle = (float) a->row_pos[r] * a->inv_freq[i];
            float amp = a->amp ? a->amp[i] * row : row;

            out[i] = cosf(angle) * amp;
            out[half + i] = sinf(angle) * amp;
        }
    }
}

int
tr_cpu_rope_angles(const tr_stream_t *s, const uint32_t *row_pos, uint32_t rows,
                   const float *inv_freq, const float *amp,
                   const float *row_scale, uint32_t half, float *angles)
{
    angles_t a = { row_pos, inv_freq, amp, row_scale, half, angles };

    tr_rows_run(s, rows, (size_t) half * 16, angle_rows, &a);
    return TR_KERNEL_OK;
}

typedef struct {
    float *x;
    size_t ldx;
    uint32_t heads, half;
    const float *angles;
} rope_t;

static void
rope_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const rope_t *a = arg;
    uint32_t half = a->half;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        const float *c = a->angles + (size_t) r * half * 2, *d = c + half;

        for (uint32_t h = 0; h < a->heads; h++) {
            float *lo = a->x + r * a->ldx + (size_t) h * half * 2;
            float *hi = lo + half;

            for (uint32_t i = 0; i < half; i++) {
                float u = lo[i], v = hi[i];

                lo[i] = u * c[i] - v * d[i];
                hi[i] = v * c[i] + u * d[i];
            }
        }
    }
}

int
tr_cpu_rope(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
            uint32_t heads, uint32_t head_dim, const float *angles)
{
    rope_t a = { x, ldx, heads, head_dim / 2, angles };

    if (head_dim % 2 || ldx < (size_t) heads * head_dim) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows, (size_t) heads * head_dim, rope_rows, &a);
    return TR_KERNEL_OK;
}
