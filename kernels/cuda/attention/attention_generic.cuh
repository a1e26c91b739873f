/*
 * attention_generic.cuh: attention over everything that kernels.h allows, as
 * the formulas say it; what the fast kernels do not list comes here.
 *
 *   generic_choose   Quest: which uncompressed pages a decode step reads
 *   generic_attend   a row and up to 8 query heads of a KV head, by tiles of 16
 *                    tokens, keys and values unpacked to FP32
 *   generic_merge    the parts of a row that blocks shared
 *   generic_score    16 tokens: what the queries of a sequence add, in order
 *   generic_candidates  the least significant token of each tier of a head
 *
 * A head's tokens are tiles: those of tiers, window, uncompressed pages.  A
 * part is part_tiles of them, from fixed places.  Parts are softmaxes of their
 * own that are merged in order, by one block or by many: the same bits.
 */
#ifndef TR_CUDA_ATTENTION_GENERIC_CUH
#define TR_CUDA_ATTENTION_GENERIC_CUH

#include "attention_head.cuh"

/* ---- attention ---------------------------------------------------------- */

/* A softmax so far: sums are relative to e^max. */
typedef struct {
    float max[HEADS], sum[HEADS], out[HEADS][TR_HEAD_DIM_MAX];
} generic_sum_t;

typedef struct {
    float q[HEADS][TR_HEAD_DIM_MAX];
    generic_sum_t part, all;
    float x[TILE_TOKENS * (TR_HEAD_DIM_MAX + 1)];
    float weight[HEADS][TILE_TOKENS];
    float keep[HEADS];
} attend_smem_t;

TR_DEVICE void
sum_clear(block_t b, generic_sum_t *s, uint32_t dim)
{
    for (uint32_t e = b.lane; e < HEADS * dim; e += b.lanes) {
        s->out[e / dim][e % dim] = 0;
    }
    for (uint32_t h = b.lane; h < HEADS; h += b.lanes) {
        s->max[h] = -INFINITY;
        s->sum[h] = 0;
    }
}

/* e^(x - max), 0 when nothing was there yet. */
TR_DEVICE float
share_of(float x, float max)
{
    return x == -INFINITY ? 0 : expf(x - max);
}

/* What of the old sum and of the new one goes into their sum. */
TR_DEVICE float
merge_shares(float max, float with, float *share)
{
    float m = with > max || with != with ? with : max;

    share[0] = share_of(max, m);
    share[1] = share_of(with, m);
    return m;
}

TR_DEVICE float
merge(float x, float y, const float *share)
{
    return add_rn(mul_rn(x, share[0]), mul_rn(y, share[1]));
}

/* all = all and part together, in that order. */
TR_DEVICE void
sum_merge(block_t b, attend_smem_t *smem, uint32_t heads, uint32_t dim)
{
    generic_sum_t *all = &smem->all;
    const generic_sum_t *part = &smem->part;
    float share[2];

    lanes_sync(b);
    for (uint32_t e = b.lane; e < heads * dim; e += b.lanes) {
        uint32_t h = e / dim, d = e % dim;

        merge_shares(all->max[h], part->max[h], share);
        all->out[h][d] = merge(all->out[h][d], part->out[h][d], share);
    }
    lanes_sync(b);
    for (uint32_t h = b.lane; h < heads; h += b.lanes) {
        float m = merge_shares(all->max[h], part->max[h], share);

        all->sum[h] = merge(all->sum[h], part->sum[h], share);
        all->max[h] = m;
    }
    lanes_sync(b);
}

/* Softmax of a tile's logits, smem->weight; what is kept of the sum so far. */
TR_DEVICE void
tile_weigh(attend_smem_t *smem, uint32_t h)
{
    float *w = smem->weight[h], max = smem->part.max[h], sum = 0;

    for (uint32_t k = 0; k < TILE_TOKENS; k++) {
        max = w[k] > max || w[k] != w[k] ? w[k] : max;
    }
    smem->keep[h] = share_of(smem->part.max[h], max);
    for (uint32_t k = 0; k < TILE_TOKENS; k++) {
        w[k] = share_of(w[k], max);
        sum += w[k];
    }
    smem->part.max[h] = max;
    smem->part.sum[h] = smem->part.sum[h] * smem->keep[h] + sum;
}

TR_DEVICE void
tile_attend(block_t b, const generic_head_t *head, const generic_tile_t *t,
            attend_smem_t *smem, uint32_t heads)
{
    uint32_t dim = head->a->kv.head_dim;

    tile_load(b, t, KEY, smem->x);
    lanes_sync(b);
    for (uint32_t e = b.lane; e < heads * TILE_TOKENS; e += b.lanes) {
        uint32_t h = e / TILE_TOKENS, k = e % TILE_TOKENS;
        float sum = 0;

        for (uint32_t d = 0; d < dim; d++) {
            sum += smem->q[h][d] * smem->x[k * (dim + 1) + d];
        }
        smem->weight[h][k] = t->used >> k & 1 ? sum * head->a->queries.scale
                                              : -INFINITY;
    }
    lanes_sync(b);
    for (uint32_t h = b.lane; h < heads; h += b.lanes) {
        tile_weigh(smem, h);
    }
    tile_load(b, t, VALUE, smem->x);
    lanes_sync(b);
    for (uint32_t e = b.lane; e < heads * dim; e += b.lanes) {
        uint32_t h = e / dim, d = e % dim;
        float sum = smem->part.out[h][d] * smem->keep[h];

        for (uint32_t k = 0; k < TILE_TOKENS; k++) {
            sum += smem->weight[h][k] * smem->x[k * (dim + 1) + d];
        }
        smem->part.out[h][d] = sum;
    }
    lanes_sync(b);
}

/* What a query head's sink adds to the sum of weights. */
TR_DEVICE float
sink_share(const generic_args_t *a, uint32_t head, float max)
{
    const float *sinks = a->kv.sinks == NULL ? NULL : a->kv.sinks[a->layer];

    return sinks == NULL ? 0 : expf(sinks[head] - max);
}

/* The whole of a row is in smem->all. */
TR_DEVICE void
row_finish(block_t b, const generic_args_t *a, const generic_sum_t *all,
           uint32_t row, uint32_t first, uint32_t heads)
{
    uint32_t dim = a->kv.head_dim;

    for (uint32_t e = b.lane; e < heads * dim; e += b.lanes) {
        uint32_t h = e / dim, d = e % dim;
        float sum = all->sum[h] + sink_share(a, first + h, all->max[h]);

        out_store(a, row, first + h, d,
                  sum == 0 ? 0 : div_rn(all->out[h][d], sum));
    }
    for (uint32_t h = b.lane; h < heads; h += b.lanes) {
        float sum = all->sum[h] + sink_share(a, first + h, all->max[h]);

        a->lse[(size_t) row * a->queries.heads + first + h] = all->max[h]
                                                              + logf(sum);
    }
}

/* The query heads that piece i of a KV head has: first, how many. */
TR_HD uint32_t
heads_of(const generic_args_t *a, uint32_t kv_head, uint32_t i, uint32_t *first)
{
    uint32_t left = a->group - i * HEADS;

    *first = kv_head * a->group + i * HEADS;
    return left < HEADS ? left : HEADS;
}

/* A row, a KV head's piece of heads, and of a row that is alone a part. */
TR_DEVICE void
generic_attend(const generic_args_t *a, block_t b, attend_smem_t *smem,
               uint32_t row, uint32_t kv_head, uint32_t piece, uint32_t part)
{
    uint32_t s = seq_of(a->rows.seq_row, a->rows.n_seqs, row);
    uint32_t dim = a->kv.head_dim, size = a->part_tiles, first, heads, tiles;
    generic_head_t head;
    bool alone;

    if (!head_open(&head, a, s, kv_head) || row < head.first
        || row >= head.end) {
        return; /* of nobody, or of a sequence that others attend */
    }
    alone = head.end - head.first == 1;
    head_query(&head, s, kv_head, row);
    tiles = head_tiles(&head);
    if (part > 0 && (!alone || part * size >= tiles)) {
        return;
    }
    heads = heads_of(a, kv_head, piece, &first);
    for (uint32_t e = b.lane; e < heads * dim; e += b.lanes) {
        smem->q[e / dim][e % dim] = query_load(a, row, first + e / dim,
                                               e % dim);
    }
    sum_clear(b, &smem->all, dim);
    for (uint32_t p = part; p == part || p * size < tiles; p++) {
        uint32_t end = (p + 1) * size < tiles ? (p + 1) * size : tiles;

        sum_clear(b, &smem->part, dim);
        lanes_sync(b);
        for (uint32_t i = p * size; i < end; i++) {
            generic_tile_t t;

            if (head_tile(&head, i, &t) && t.used != 0) {
                tile_attend(b, &head, &t, smem, heads);
            }
        }
        if (alone) {
            break;
        }
        sum_merge(b, smem, heads, dim);
    }
    if (!alone) {
        row_finish(b, a, &smem->all, row, first, heads);
        return;
    }
    for (uint32_t e = b.lane; e < heads * (dim + 2); e += b.lanes) {
        uint32_t h = e / (dim + 2), d = e % (dim + 2);
        size_t at = ((size_t) s * a->parts + part) * a->queries.heads + first
                    + h;

        a->partial[at * (dim + 2) + d] = d < dim    ? smem->part.out[h][d]
                                         : d == dim ? smem->part.max[h]
                                                    : smem->part.sum[h];
    }
}

/* The parts of the row of sequence s, when it is alone. */
TR_DEVICE void
generic_merge(const generic_args_t *a, block_t b, attend_smem_t *smem,
              uint32_t s, uint32_t kv_head, uint32_t piece)
{
    uint32_t dim = a->kv.head_dim, first, heads, tiles;
    generic_head_t head;

    if (!head_open(&head, a, s, kv_head) || head.end - head.first != 1) {
        return;
    }
    head_query(&head, s, kv_head, head.first);
    tiles = head_tiles(&head);
    heads = heads_of(a, kv_head, piece, &first);
    sum_clear(b, &smem->all, dim);
    for (uint32_t p = 0; p == 0 || (p < a->parts && p * a->part_tiles < tiles);
         p++) {
        for (uint32_t e = b.lane; e < heads * (dim + 2); e += b.lanes) {
            uint32_t h = e / (dim + 2), d = e % (dim + 2);
            size_t at = ((size_t) s * a->parts + p) * a->queries.heads + first
                        + h;
            float x = a->partial[at * (dim + 2) + d];

            *(d < dim    ? &smem->part.out[h][d]
              : d == dim ? &smem->part.max[h]
                         : &smem->part.sum[h]) = x;
        }
        sum_merge(b, smem, heads, dim);
    }
    row_finish(b, a, &smem->all, head.first, first, heads);
}

#endif
