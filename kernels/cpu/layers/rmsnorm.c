/*
 * RMS normalisation of hidden states and of heads, and the bias of a
 * projection.  The sum of squares runs in LANES partial sums, however
 * wide vectors are: AVX2 and AVX-512 (rmsnorm_vec.h) give the same bits.
 * Reference: test_kernels.c.
 */
#include "kernels/cpu/cpu.h"

#define LANES TR_NORM_LANES

static float
sum_of_squares(const float *x, uint32_t n)
{
    float lane[LANES] = { 0 };
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            lane[j] += x[i + j] * x[i + j];
        }
    }
    for (uint32_t j = 0; i + j < n; j++) {
        lane[j] += x[i + j] * x[i + j];
    }
    return tr_norm_sum(lane);
}

void
tr_norm_row_c(const float *x, const float *weight, float *y, uint32_t n,
              float eps)
{
    float scale = tr_norm_scale(sum_of_squares(x, n), n, eps);

    for (uint32_t i = 0; i < n; i++) {
        y[i] = x[i] * scale * weight[i];
    }
}

typedef struct {
    const float *x, *weight;
    float *y;
    size_t ldx, ldy;
    uint32_t heads, n;
    float eps;
    tr_norm_row_f row;
} norm_t;

static void
norm_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const norm_t *a = arg;
    uint32_t n = a->n;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        for (uint32_t h = 0; h < a->heads; h++) {
            a->row(a->x + r * a->ldx + (size_t) h * n, a->weight,
                   a->y + r * a->ldy + (size_t) h * n, n, a->eps);
        }
    }
}

int
tr_cpu_rmsnorm(const tr_stream_t *s, const float *x, size_t ldx, uint32_t rows,
               uint32_t heads, uint32_t n, const float *weight, float eps,
               float *y, size_t ldy, tr_norm_row_f row)
{
    norm_t a = { x, weight, y, ldx, ldy, heads, n, eps, row };

    if (n == 0 || ldx < (size_t) heads * n || ldy < (size_t) heads * n) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows, (size_t) heads * n, norm_rows, &a);
    return TR_KERNEL_OK;
}

typedef struct {
    float *x;
    const float *bias;
    size_t ldx;
    uint32_t n;
} bias_t;

static void
bias_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const bias_t *a = arg;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        for (uint32_t i = 0; i < a->n; i++) {
            a->x[r * a->ldx + i] += a->bias[i];
        }
    }
}

int
tr_cpu_add_bias(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                const float *bias, uint32_t n)
{
    bias_t a = { x, bias, ldx, n };

    if (ldx < n) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows, n, bias_rows, &a);
    return TR_KERNEL_OK;
}
