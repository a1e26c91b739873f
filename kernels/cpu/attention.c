/*
 * Attention on the paged cache, for prefill chunks and decode alike: how a step
 * is cut into tiles, and the plain C tile, the reference for the vector ones.
 *
 * A tile is one KV head with a run of query positions and all query heads of
 * its group, so that a page is read once for the group.  Tiles are independent
 * and are handed to threads as these become free.
 *
 * The order of every sum is fixed by absolute positions: softmax runs over
 * blocks of TR_TILE_BLOCK positions starting at multiples of it, inside a block
 * in order.  So a row's bits depend neither on the chunk it came in nor on the
 * rows beside it; a decoded token equals the same token prefilled.
 */
#include "cpu.h"

#include <math.h>
#include <string.h>

static inline float
half_at(const uint16_t *p)
{
    _Float16 h;

    memcpy(&h, p, 2);
    return (float) h;
}

/* The key (at 0) or value (at layout[0].value) of dense token i. */
static const uint16_t *
dense_row(const tr_attention_tile_t *t, uint32_t i, uint32_t at)
{
    uint32_t tokens = t->kv->layout[0].tokens;
    const uint8_t *page = tr_kv_page_at(t->kv, t->table[i / tokens]);

    return (const uint16_t *) (page + at)
           + (size_t) (i % tokens) * t->kv->head_dim;
}

/* One query head of one position; o: [head_dim]. */
static void
attend(const tr_attention_tile_t *t, uint32_t pos, const float *q, float *o)
{
    const tr_kv_view_t *kv = t->kv;
    const tr_kv_layout_t *l = &kv->layout[0];
    uint32_t dim = kv->head_dim;
    float max = -INFINITY, sum = 0;

    memset(o, 0, dim * sizeof(float));
    for (uint32_t b = 0; b <= pos; b += TR_TILE_BLOCK) {
        uint32_t n = pos - b + 1 < TR_TILE_BLOCK ? pos - b + 1 : TR_TILE_BLOCK;
        float score[TR_TILE_BLOCK], block_max = max, keep;

        for (uint32_t i = 0; i < n; i++) {
            const uint16_t *key = dense_row(t, b + i, 0);

            score[i] = 0;
            for (uint32_t d = 0; d < dim; d++) {
                score[i] += q[d] * t->scale * half_at(key + d);
            }
            block_max = score[i] > block_max ? score[i] : block_max;
        }
        keep = expf(max - block_max);
        max = block_max;
        sum *= keep;
        for (uint32_t d = 0; d < dim; d++) {
            o[d] *= keep;
        }
        for (uint32_t i = 0; i < n; i++) {
            const uint16_t *value = dense_row(t, b + i, l->value);
            float p = expf(score[i] - max);

            sum += p;
            for (uint32_t d = 0; d < dim; d++) {
                o[d] += p * half_at(value + d);
            }
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        o[d] /= sum;
    }
}

void
tr_attention_tile_c(const tr_attention_tile_t *t, float *scratch)
{
    uint32_t dim = t->kv->head_dim;

    for (uint32_t p = 0; p < t->n_pos; p++) {
        for (uint32_t h = 0; h < t->group; h++) {
            attend(t, t->pos + p, t->q + p * t->ldq + h * dim, scratch);
            memcpy(t->out + p * t->ldo + h * dim, scratch, dim * sizeof(float));
        }
    }
}

static size_t
tile_bytes(uint32_t head_dim)
{
    return tr_pad(tr_tile_floats(head_dim) * sizeof(float), 64);
}

size_t
tr_cpu_attention_work(const tr_stream_t *s, uint32_t max_rows,
                      uint32_t max_seqs, uint32_t max_len, uint32_t heads,
                      uint32_t lists, uint32_t head_dim)
{
    (void) max_rows;
    (void) max_len;
    (void) heads;
    (void) lists;
    return tr_pad(((size_t) max_seqs + 1) * sizeof(uint32_t), 64)
           + (size_t) s->threads * tile_bytes(head_dim);
}

typedef struct {
    const tr_kv_view_t *kv;
    uint32_t layer;
    const tr_rows_t *rows;
    const float *q;
    float *out;
    size_t ldq, ldo;
    float scale;
    uint32_t group, tile_pos;
    const uint32_t *starts; /* [n_seqs + 1], first tile of each sequence */
    uint8_t *scratch;
    tr_attention_tile_f tile;
} tiles_t;

static void
tiles_run(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const tiles_t *a = arg;
    const tr_rows_t *rows = a->rows;
    uint32_t dim = a->kv->head_dim, lists = a->kv->lists;
    float *scratch = (float *) (a->scratch + worker * tile_bytes(dim));

    for (uint32_t i = first; i < end; i++) {
        uint32_t seq = tr_seq_of(a->starts, rows->n_seqs, i);
        uint32_t list = (i - a->starts[seq]) % lists;
        uint32_t row = rows->seq_row[seq]
                       + (i - a->starts[seq]) / lists * a->tile_pos;
        uint32_t left = rows->seq_row[seq + 1] - row;
        size_t column = (size_t) list * a->group * dim;
        tr_attention_tile_t t = {
            .kv = a->kv,
            .table = tr_kv_table(a->kv, rows->seq_slot[seq], a->layer, list),
            .pos = rows->row_pos[row] - a->kv->seq[rows->seq_slot[seq]].base,
            .n_pos = left < a->tile_pos ? left : a->tile_pos,
            .group = a->group,
            .q = a->q + row * a->ldq + column,
            .ldq = a->ldq,
            .out = a->out + row * a->ldo + column,
            .ldo = a->ldo,
            .scale = a->scale,
        };

        a->tile(&t, scratch);
    }
}

int
tr_cpu_attention(const tr_stream_t *s, const tr_kv_view_t *kv, uint32_t layer,
                 const tr_rows_t *rows, const float *q, size_t ldq,
                 uint32_t heads, float scale, float *out, size_t ldo,
                 void *work, tr_attention_tile_f tile)
{
    uint32_t group = kv->lists ? heads / kv->lists : 0;
    uint32_t dim = kv->head_dim, *starts = work;
    tiles_t a = {
        kv,
        layer,
        rows,
        q,
        out,
        ldq,
        ldo,
        scale,
        group,
        0,
        starts,
        (uint8_t *) work + tr_pad((rows->n_seqs + 1) * sizeof(uint32_t), 64),
        tile
    };

    if (group == 0 || group > TR_GROUP_MAX || heads % kv->lists
        || dim > TR_HEAD_DIM_MAX || dim % 16 || layer >= kv->layers
        || ldq < (size_t) heads * dim || ldo < (size_t) heads * dim) {
        return TR_KERNEL_BADARG;
    }
    a.tile_pos = TR_TILE_ROWS / group;
    starts[0] = 0;
    for (uint32_t i = 0; i < rows->n_seqs; i++) {
        uint32_t n = rows->seq_row[i + 1] - rows->seq_row[i];

        starts[i + 1] = starts[i]
                        + (n + a.tile_pos - 1) / a.tile_pos * kv->lists;
    }
    tr_team_run(s->team, s->threads, starts[rows->n_seqs], 1, tiles_run, &a);
    return TR_KERNEL_OK;
}
