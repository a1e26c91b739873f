/*
 * Stores a step's keys and values in the cache.  Keys arrive before RoPE, with
 * the angles of their positions, because what is cached may one day be
 * something else than the rotated key.  Reference: test_kernels.c.
 */
#include "cpu.h"

#include <string.h>

void
tr_to_half_c(const float *x, uint16_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float f = x[i];
        _Float16 h;

        f = f > 65504.0f ? 65504.0f : f; /* a NaN stays one */
        f = f < -65504.0f ? -65504.0f : f;
        h = (_Float16) f;
        memcpy(out + i, &h, 2);
    }
}

static void
append_row(const tr_kv_view_t *kv, const int32_t *table, uint32_t pos,
           const float *k, const float *v, const float *cosine,
           tr_to_half_f to_half)
{
    uint32_t dim = kv->head_dim, half = dim / 2;
    uint16_t *key = tr_kv_key(kv, table, pos);
    const float *sine = cosine + half;
    float rotated[TR_HEAD_DIM_MAX];

    for (uint32_t i = 0; i < half; i++) {
        rotated[i] = k[i] * cosine[i] - k[half + i] * sine[i];
        rotated[half + i] = k[half + i] * cosine[i] + k[i] * sine[i];
    }
    to_half(rotated, key, dim);
    to_half(v, key + (size_t) kv->page_tokens * dim, dim);
}

typedef struct {
    const tr_kv_view_t *kv;
    uint32_t layer;
    const tr_rows_t *rows;
    const float *k, *v, *angles;
    size_t ld;
    tr_to_half_f to_half;
} append_t;

static void
append_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const append_t *a = arg;
    const tr_rows_t *rows = a->rows;
    uint32_t dim = a->kv->head_dim;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        uint32_t seq = tr_seq_of(rows->seq_row, rows->n_seqs, r);
        int32_t slot = rows->seq_slot[seq];

        for (uint32_t l = 0; l < a->kv->lists; l++) {
            append_row(a->kv, tr_kv_table(a->kv, slot, a->layer, l),
                       rows->row_pos[r], a->k + r * a->ld + l * dim,
                       a->v + r * a->ld + l * dim, a->angles + (size_t) r * dim,
                       a->to_half);
        }
    }
}

int
tr_cpu_kv_append(const tr_stream_t *s, const tr_kv_view_t *kv, uint32_t layer,
                 const tr_rows_t *rows, const float *k, const float *v,
                 size_t ld, const float *angles, tr_to_half_f to_half)
{
    uint32_t dim = kv->head_dim;
    append_t a = { kv, layer, rows, k, v, angles, ld, to_half };

    if (dim > TR_HEAD_DIM_MAX || dim % 16 || ld < (size_t) kv->lists * dim
        || layer >= kv->layers) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows->n_rows, (size_t) kv->lists * dim, append_rows, &a);
    return TR_KERNEL_OK;
}
