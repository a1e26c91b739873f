/*
 * Stores a step's keys and values in the cache.  Keys arrive before RoPE, with
 * the angles of their positions, because what is cached may one day be
 * something else than the rotated key.  Reference: test_kv_store.c.
 *
 * Rows are shared out among threads by dense page: whoever has a row that
 * begins a page, or a sequence, takes the rows after it that belong to the same
 * page, too.  So a page's digest has one writer.
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

typedef struct {
    const tr_kv_view_t *kv;
    uint32_t layer;
    const tr_rows_t *rows;
    const float *k, *v, *angles;
    size_t ld;
    tr_to_half_f to_half;
} append_t;

/* Smallest and largest key by channel; `first` begins them. */
static void
digest_update(uint16_t *digest, const uint16_t *key, uint32_t dim, bool first)
{
    if (first) {
        memcpy(digest, key, 2ul * dim);
        memcpy(digest + dim, key, 2ul * dim);
        return;
    }
    for (uint32_t d = 0; d < dim; d++) {
        float x = tr_float_from_half(key[d]);

        if (x < tr_float_from_half(digest[d])) {
            digest[d] = key[d];
        }
        if (x > tr_float_from_half(digest[dim + d])) {
            digest[dim + d] = key[d];
        }
    }
}

static void
rotate(const float *k, const float *cosine, uint32_t half, float *out)
{
    const float *sine = cosine + half;

    for (uint32_t i = 0; i < half; i++) {
        out[i] = k[i] * cosine[i] - k[half + i] * sine[i];
        out[half + i] = k[half + i] * cosine[i] + k[i] * sine[i];
    }
}

/* Token i of the slot's dense pages. */
static void
append_dense(const append_t *a, const int32_t *table, uint32_t i,
             const float *k, const float *v, const float *angles)
{
    const tr_kv_layout_t *l = &a->kv->layout[0];
    uint32_t dim = a->kv->head_dim, at = i % l->tokens;
    uint8_t *page = tr_kv_page_at(a->kv, table[i / l->tokens]);
    uint16_t *key = (uint16_t *) page + (size_t) at * dim;
    float rotated[TR_HEAD_DIM_MAX];

    rotate(k, angles, dim / 2, rotated);
    a->to_half(rotated, key, dim);
    a->to_half(v, (uint16_t *) (page + l->value) + (size_t) at * dim, dim);
    if (l->level.scored) {
        memset(page + l->score + 4 * at, 0, 4);
        memset(page + l->recent + 4 * at, 0, 4);
    }
    if (l->digest) {
        digest_update((uint16_t *) (page + l->digest), key, dim, at == 0);
    }
}

/* Rows that one worker must take in one go begin here. */
static bool
piece_begins(const append_t *a, uint32_t row, uint32_t seq)
{
    const tr_rows_t *rows = a->rows;
    uint32_t base = a->kv->seq[rows->seq_slot[seq]].base;

    return row == rows->seq_row[seq]
           || (rows->row_pos[row] - base) % a->kv->layout[0].tokens == 0;
}

static void
append_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const append_t *a = arg;
    const tr_rows_t *rows = a->rows;
    uint32_t dim = a->kv->head_dim;
    bool mine = false;

    (void) worker;
    for (uint32_t r = first; r < rows->n_rows; r++) {
        uint32_t seq = tr_seq_of(rows->seq_row, rows->n_seqs, r);
        int32_t slot = rows->seq_slot[seq];

        if (piece_begins(a, r, seq)) {
            mine = r < end;
            if (!mine) {
                return;
            }
        }
        for (uint32_t l = 0; mine && l < a->kv->lists; l++) {
            append_dense(a, tr_kv_table(a->kv, slot, a->layer, l),
                         rows->row_pos[r] - a->kv->seq[slot].base,
                         a->k + r * a->ld + l * dim,
                         a->v + r * a->ld + l * dim,
                         a->angles + (size_t) r * dim);
        }
    }
}

/* Are there pages for what a sequence brings? */
static bool
rows_valid(const append_t *a, uint32_t seq)
{
    const tr_kv_view_t *kv = a->kv;
    const tr_rows_t *rows = a->rows;
    int32_t slot = rows->seq_slot[seq];
    uint32_t first = rows->seq_row[seq], end = rows->seq_row[seq + 1];
    uint32_t base = kv->seq[slot].base, tokens = kv->layout[0].tokens;

    if (first == end) {
        return true;
    }
    if (rows->row_pos[first] < base
        || (rows->row_pos[end - 1] - base) / tokens >= kv->at_window) {
        return false;
    }
    for (uint32_t l = 0; l < kv->lists; l++) {
        const int32_t *table = tr_kv_table(kv, slot, a->layer, l);

        for (uint32_t i = (rows->row_pos[first] - base) / tokens;
             i <= (rows->row_pos[end - 1] - base) / tokens; i++) {
            if (table[i] < 0) {
                return false;
            }
        }
    }
    return true;
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
    for (uint32_t i = 0; i < rows->n_seqs; i++) {
        if (!rows_valid(&a, i)) {
            return TR_KERNEL_BADARG;
        }
    }
    tr_rows_run(s, rows->n_rows, (size_t) kv->lists * dim, append_rows, &a);
    return TR_KERNEL_OK;
}
