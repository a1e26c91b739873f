/*
 * Matrix products (device.h) of the device in software: cuBLASLt's
 * part, in plain C.  A block has some columns, of all rows.
 */
#include "kernels/cuda/device.h"
#include <stdlib.h>
#include <string.h>

#include "simt.h"

#define COLUMNS 16u /* of a block */

struct tr_cuda_matmul {
    uint32_t max_rows;
};

int
tr_cuda_matmul_open(const tr_device_props_t *d, uint32_t max_rows,
                    tr_cuda_matmul_t **out)
{
    (void) d;
    *out = malloc(sizeof(**out));
    if (*out == NULL) {
        return TR_CUDA_FAILED;
    }
    (*out)->max_rows = max_rows;
    return TR_KERNEL_OK;
}

void
tr_cuda_matmul_close(tr_cuda_matmul_t *m)
{
    free(m);
}

int
tr_cuda_matmul_choose(tr_cuda_matmul_t *m, const tr_cuda_stream_t *s,
                      const tr_cuda_product_t *shape,
                      const void *const *weights, uint32_t n_weights)
{
    (void) m;
    (void) s;
    (void) shape;
    (void) weights;
    (void) n_weights;
    return TR_KERNEL_OK;
}

/* Row `row` of w times row r of x. */
static float
sum(const tr_cuda_product_t *p, const float *w, uint32_t r)
{
    float x[4] = { 0 };

    for (uint32_t i = 0; i < p->k; i += 4) {
        for (uint32_t j = 0; j < 4; j++) {
            x[j] += w[i + j] * tr_float_load(p->x, r * p->ldx + i + j, p->type);
        }
    }
    return (x[0] + x[1]) + (x[2] + x[3]);
}

static void
multiply(void *arg)
{
    static _Thread_local float w[65536];
    const tr_cuda_product_t *p = arg;
    uint32_t end = (blockIdx.x + 1) * COLUMNS;

    for (uint32_t n = blockIdx.x * COLUMNS; n < end && n < p->n; n++) {
        for (uint32_t i = 0; i < p->k; i++) {
            w[i] = tr_float_load(p->w, (size_t) n * p->k + i, p->type);
        }
        for (uint32_t r = 0; r < p->rows; r++) {
            tr_float_store(p->y, r * p->ldy + n, p->out, sum(p, w, r));
        }
    }
}

int
tr_cuda_matmul(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
               const tr_cuda_product_t *product)
{
    simt_launch_t l = { .grid = { (product->n + COLUMNS - 1) / COLUMNS, 1, 1 },
                        .block = { 1, 1, 1 },
                        .cluster = 1,
                        .run = multiply,
                        .free = free };
    tr_cuda_product_t *copy;

    if (product->rows > m->max_rows || product->k % 4 != 0
        || product->k > 65536) {
        return TR_KERNEL_BADARG;
    }
    copy = malloc(sizeof(*copy));
    if (copy == NULL) {
        return TR_CUDA_FAILED;
    }
    *copy = *product;
    l.arg = copy;
    return simt_submit(s->stream, &l) == 0 ? TR_KERNEL_OK : TR_CUDA_FAILED;
}
