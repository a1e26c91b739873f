/*
 * The token embedding: rows of a packed matrix, gathered.  The matrix is kept
 * in the layout of matmul.c so that tied embeddings are stored once; reading a
 * row with a stride costs nothing beside the step's products.
 */
#include "kernels/cpu/cpu.h"

typedef struct {
    const tr_cpu_matrix_t *m;
    const int32_t *ids;
    float *y;
    size_t ldy;
} gather_t;

static void
gather_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const gather_t *a = arg;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        float *out = a->y + r * a->ldy;
        const void *in;
        size_t step;

        if (a->m->codes.codes != TR_CODES_NONE) {
            tr_cpu_codes_load(a->m, (uint32_t) a->ids[r], out);
            continue;
        }
        in = tr_cpu_matrix_row(a->m, (uint32_t) a->ids[r], &step);
        for (uint32_t k = 0; k < a->m->k; k++) {
            out[k] = tr_float_load(in, k * step, a->m->dtype);
        }
    }
}

int
tr_cpu_embedding(const tr_stream_t *s, const tr_cpu_matrix_t *m,
                 const int32_t *ids, uint32_t rows, float *y, size_t ldy)
{
    gather_t a = { m, ids, y, ldy };

    for (uint32_t r = 0; r < rows; r++) {
        if (ids[r] < 0 || (uint32_t) ids[r] >= m->n) {
            return TR_KERNEL_BADARG;
        }
    }
    tr_rows_run(s, rows, m->k, gather_rows, &a);
    return TR_KERNEL_OK;
}
