/*
 * attention_generic.cuh: attention over everything that kernels.h allows, as
 * the formulas say it; what the fast kernels do not list comes here.
 *
 *   generic_choose   Quest: which dense pages a decode step reads
 *   generic_attend   a row and up to 8 query heads of a list, tile by tile of
 *                    16 tokens, keys and values unpacked to FP32
 *   generic_merge    the parts of a row that blocks shared
 *   generic_score    16 tokens: what the queries of a sequence add, in order
 *   generic_victims  the least significant token of each list of a head
 *
 * A head's tokens are tiles: those of lists, window, dense pages.  A part is
 * PART_TILES of them, from fixed places.  Parts are softmaxes of their own that
 * are merged in order, by one block or by many: the same bits.
 */
#ifndef TR_CUDA_ATTENTION_GENERIC_CUH
#define TR_CUDA_ATTENTION_GENERIC_CUH

#include "append.cuh"

#define TILE_TOKENS 16u
#define PART_TILES 256u
#define HEADS 8u      /* query heads of a block */
#define ROWS 8u       /* queries that are scored together */
#define LANES 128u    /* of a block */
#define LANES_MAX 128u
#define RUN_WINDOW TR_KV_LISTS_MAX
#define RUN_DENSE (TR_KV_LISTS_MAX + 1u)
#define RUNS (TR_KV_LISTS_MAX + 2u)

typedef struct {
    tr_kv_view_t kv; /* its layouts are below */
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
    tr_rows_t rows;
    tr_cuda_queries_t queries;
    uint32_t layer, group;
    uint32_t parts, pages; /* of a sequence, at most; of Quest's choice */
    float *partial;  /* [n_seqs][parts][heads][head_dim + 2]: of rows that are
                      * alone in their sequence; sum of p * value, largest
                      * logit, sum of p */
    float *lse;      /* [n_rows][heads] logarithms of the sums of e^logit */
    uint32_t *bound; /* [n_seqs][lists][pages] */
    int32_t *chosen; /* the same */
} generic_args_t;

/* A head of a sequence, for a query at position n. */
typedef struct {
    const generic_args_t *a;
    const tr_kv_seq_t *seq;
    const int32_t *table, *dense; /* dense: its pages, or those chosen */
    const uint32_t *count;
    uint32_t first, end; /* rows of the sequence */
    uint32_t n, n_dense;
} generic_head_t;

/* 16 tokens of a page, or fewer. */
typedef struct {
    place_t at;
    uint32_t used; /* bit i: token at.at + i is there */
    uint32_t run, index; /* of the first, in its run */
} generic_tile_t;

/* ---- rows and types ----------------------------------------------------- */

TR_HD float
query_load(const generic_args_t *a, uint32_t row, uint32_t head, uint32_t d)
{
    return number_load(a->queries.q,
                       row * a->queries.ldq + (size_t) head * a->kv.head_dim
                           + d,
                       a->queries.q_type);
}

TR_HD void
out_store(const generic_args_t *a, uint32_t row, uint32_t head, uint32_t d,
          float x)
{
    size_t i = row * a->queries.ldo + (size_t) head * a->kv.head_dim + d;
    uint32_t u;

    memcpy(&u, &x, 4);
    if (a->queries.out_type == TR_F32) {
        ((float *) a->queries.out)[i] = x;
    } else if (a->queries.out_type == TR_F16) {
        ((uint16_t *) a->queries.out)[i] = half_of(x);
    } else {
        u = x != x ? u | 0x400000 : u + 0x7fff + (u >> 16 & 1);
        ((uint16_t *) a->queries.out)[i] = (uint16_t) (u >> 16);
    }
}

/* Sequence s is attended: it has a slot, and rows where kernels.h has them. */
TR_HD bool
head_open(generic_head_t *h, const generic_args_t *a, uint32_t s,
          uint32_t list)
{
    int32_t slot = a->rows.seq_slot[s];
    size_t head;

    h->a = a;
    h->first = a->rows.seq_row[s];
    h->end = a->rows.seq_row[s + 1];
    if (slot < 0 || h->first >= h->end) {
        return false;
    }
    h->seq = &a->kv.seq[slot];
    head = tr_kv_head(&a->kv, slot, a->layer, list);
    h->table = a->kv.tables + head * a->kv.table_len;
    h->dense = h->table;
    h->count = a->kv.count + head * TR_KV_LISTS_MAX;
    h->n = a->rows.row_pos[h->first];
    h->n_dense = 0;
    return h->n >= h->seq->base
           || (h->end - h->first == 1 && h->n + 1 == h->seq->base);
}

/* Does this step of Quest read some dense pages only? */
TR_HD bool
quest_chooses(const generic_head_t *h)
{
    const tr_kv_seq_t *q = h->seq;
    const tr_kv_layout_t *l = &h->a->layout[0];

    return h->end - h->first == 1 && h->n >= q->base && q->read_pages > 0
           && (h->n - q->base) / l->tokens + 1 > q->read_pages
           && (h->n - q->base) / l->tokens + 1 <= h->a->pages
           && h->a->layer >= q->read_layer && !q->scored && l->digest != 0;
}

/* The query is that of `row`. */
TR_HD void
head_query(generic_head_t *h, uint32_t s, uint32_t list, uint32_t row)
{
    const generic_args_t *a = h->a;
    uint32_t per = a->layout[0].tokens;

    h->n = a->rows.row_pos[row];
    h->n_dense = h->n >= h->seq->base ? h->n - h->seq->base + 1 : 0;
    h->dense = h->table;
    if (quest_chooses(h)) {
        h->dense = a->chosen + ((size_t) s * a->kv.lists + list) * a->pages;
        h->n_dense = (h->seq->read_pages - 1) * per + (h->n_dense - 1) % per
                     + 1;
    }
}

/* ---- tiles -------------------------------------------------------------- */

/* Slots of a run, and its layout; 0 when there is none. */
TR_HD uint32_t
run_slots(const generic_head_t *h, uint32_t run, const tr_kv_layout_t **l)
{
    const tr_kv_seq_t *q = h->seq;

    *l = &h->a->layout[0];
    if (run == RUN_DENSE) {
        return h->n_dense;
    }
    if (run == RUN_WINDOW) {
        *l = &h->a->layout[q->window_layout];
        return q->window == 0 || q->base <= q->window_from ? 0
               : q->base < q->window                       ? q->base
                                                           : q->window;
    }
    *l = &h->a->layout[run < q->n_lists ? q->list_layout[run] : 0];
    return run < q->n_lists ? h->count[run] : 0;
}

TR_HD uint32_t
layout_tiles(const tr_kv_layout_t *l, uint32_t tokens)
{
    return tokens / l->tokens * ((l->tokens + TILE_TOKENS - 1) / TILE_TOKENS)
           + (tokens % l->tokens + TILE_TOKENS - 1) / TILE_TOKENS;
}

TR_HD uint32_t
head_tiles(const generic_head_t *h)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < RUNS; r++) {
        const tr_kv_layout_t *l;
        uint32_t slots = run_slots(h, r, &l);

        n += layout_tiles(l, slots);
    }
    return n;
}

/* Page `i` of a run. */
TR_HD int32_t
run_page(const generic_head_t *h, uint32_t run, uint32_t i)
{
    const tr_kv_view_t *kv = &h->a->kv;

    return run == RUN_DENSE    ? h->dense[i]
           : run == RUN_WINDOW ? h->table[kv->at_window + i]
                               : h->table[tr_kv_list_entry(kv, run, i)];
}

/* Tile i of a head: false when there are fewer. */
TR_HD bool
head_tile(const generic_head_t *h, uint32_t i, generic_tile_t *t)
{
    const tr_kv_seq_t *q = h->seq;
    uint32_t run = 0, slots, per, page, n;
    const tr_kv_layout_t *l;

    for (;; run++) {
        if (run == RUNS) {
            return false;
        }
        slots = run_slots(h, run, &l);
        n = layout_tiles(l, slots);
        if (i < n) {
            break;
        }
        i -= n;
    }
    per = (l->tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    page = i / per;
    t->run = run;
    t->at.layout = l;
    t->at.at = i % per * TILE_TOKENS;
    t->at.page = tr_kv_page_at(&h->a->kv, run_page(h, run, page));
    t->index = page * l->tokens + t->at.at;
    n = (page + 1) * l->tokens;
    n = (n < slots ? n : slots) - t->index;
    n = n < TILE_TOKENS ? n : TILE_TOKENS;
    t->used = (1u << n) - 1;
    for (uint32_t k = 0; run == RUN_WINDOW && k < n; k++) {
        uint32_t age = (t->index + k + q->window - q->window_from % q->window)
                       % q->window;

        if (age >= q->base - q->window_from) { /* a free slot of the ring */
            t->used &= ~(1u << k);
        }
    }
    return true;
}

/* x[token][d]: one side of a tile, 0 where no token is; rows are dim + 1
 * apart, so that 16 of them fall on different banks. */
TR_HD void
tile_load(block_t b, const generic_tile_t *t, side_t side, float *x)
{
    uint32_t dim = t->at.layout->head_dim;

    for (uint32_t e = b.lane; e < TILE_TOKENS * dim; e += b.lanes) {
        place_t p = t->at;
        uint32_t k = e / dim, d = e % dim;

        p.at += k;
        x[k * (dim + 1) + d] = t->used >> k & 1 ? side_number(p, side, d) : 0;
    }
}

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
} attend_room_t;

TR_HD void
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
TR_HD float
share_of(float x, float max)
{
    return x == -INFINITY ? 0 : expf(x - max);
}

/* What of the old sum and of the new one goes into their sum. */
TR_HD float
merge_shares(float max, float with, float *share)
{
    float m = with > max || with != with ? with : max;

    share[0] = share_of(max, m);
    share[1] = share_of(with, m);
    return m;
}

TR_HD float
merge(float x, float y, const float *share)
{
    return add_rn(mul_rn(x, share[0]), mul_rn(y, share[1]));
}

/* all = all and part together, in that order. */
TR_HD void
sum_merge(block_t b, attend_room_t *room, uint32_t heads, uint32_t dim)
{
    generic_sum_t *all = &room->all;
    const generic_sum_t *part = &room->part;
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

/* Softmax of a tile's logits, room->weight; what is kept of the sum so far. */
TR_HD void
tile_weigh(attend_room_t *room, uint32_t h)
{
    float *w = room->weight[h], max = room->part.max[h], sum = 0;

    for (uint32_t k = 0; k < TILE_TOKENS; k++) {
        max = w[k] > max || w[k] != w[k] ? w[k] : max;
    }
    room->keep[h] = share_of(room->part.max[h], max);
    for (uint32_t k = 0; k < TILE_TOKENS; k++) {
        w[k] = share_of(w[k], max);
        sum += w[k];
    }
    room->part.max[h] = max;
    room->part.sum[h] = room->part.sum[h] * room->keep[h] + sum;
}

TR_HD void
tile_attend(block_t b, const generic_head_t *head, const generic_tile_t *t,
            attend_room_t *room, uint32_t heads)
{
    uint32_t dim = head->a->kv.head_dim;

    tile_load(b, t, KEY, room->x);
    lanes_sync(b);
    for (uint32_t e = b.lane; e < heads * TILE_TOKENS; e += b.lanes) {
        uint32_t h = e / TILE_TOKENS, k = e % TILE_TOKENS;
        float sum = 0;

        for (uint32_t d = 0; d < dim; d++) {
            sum += room->q[h][d] * room->x[k * (dim + 1) + d];
        }
        room->weight[h][k] = t->used >> k & 1 ? sum * head->a->queries.scale
                                              : -INFINITY;
    }
    lanes_sync(b);
    for (uint32_t h = b.lane; h < heads; h += b.lanes) {
        tile_weigh(room, h);
    }
    tile_load(b, t, VALUE, room->x);
    lanes_sync(b);
    for (uint32_t e = b.lane; e < heads * dim; e += b.lanes) {
        uint32_t h = e / dim, d = e % dim;
        float sum = room->part.out[h][d] * room->keep[h];

        for (uint32_t k = 0; k < TILE_TOKENS; k++) {
            sum += room->weight[h][k] * room->x[k * (dim + 1) + d];
        }
        room->part.out[h][d] = sum;
    }
    lanes_sync(b);
}

/* The whole of a row is in room->all. */
TR_HD void
row_finish(block_t b, const generic_args_t *a, const generic_sum_t *all,
           uint32_t row, uint32_t first, uint32_t heads)
{
    uint32_t dim = a->kv.head_dim;

    for (uint32_t e = b.lane; e < heads * dim; e += b.lanes) {
        uint32_t h = e / dim, d = e % dim;

        out_store(a, row, first + h, d,
                  all->sum[h] == 0 ? 0 : div_rn(all->out[h][d], all->sum[h]));
    }
    for (uint32_t h = b.lane; h < heads; h += b.lanes) {
        a->lse[(size_t) row * a->queries.heads + first + h]
            = all->max[h] + logf(all->sum[h]);
    }
}

/* The query heads that piece i of a list has: first, how many. */
TR_HD uint32_t
heads_of(const generic_args_t *a, uint32_t list, uint32_t i, uint32_t *first)
{
    uint32_t left = a->group - i * HEADS;

    *first = list * a->group + i * HEADS;
    return left < HEADS ? left : HEADS;
}

/* A row, a list's piece of heads, and of a row that is alone a part. */
TR_HD void
generic_attend(const generic_args_t *a, block_t b, attend_room_t *room,
               uint32_t row, uint32_t list, uint32_t piece, uint32_t part)
{
    uint32_t s = seq_of(a->rows.seq_row, a->rows.n_seqs, row);
    uint32_t dim = a->kv.head_dim, first, heads, tiles;
    generic_head_t head;
    bool alone;

    if (!head_open(&head, a, s, list) || row >= head.end) {
        return;
    }
    alone = head.end - head.first == 1;
    head_query(&head, s, list, row);
    tiles = head_tiles(&head);
    if (part > 0 && (!alone || part * PART_TILES >= tiles)) {
        return;
    }
    heads = heads_of(a, list, piece, &first);
    for (uint32_t e = b.lane; e < heads * dim; e += b.lanes) {
        room->q[e / dim][e % dim] = query_load(a, row, first + e / dim,
                                               e % dim);
    }
    sum_clear(b, &room->all, dim);
    for (uint32_t p = part; p == part || p * PART_TILES < tiles; p++) {
        uint32_t end = (p + 1) * PART_TILES < tiles ? (p + 1) * PART_TILES
                                                    : tiles;

        sum_clear(b, &room->part, dim);
        lanes_sync(b);
        for (uint32_t i = p * PART_TILES; i < end; i++) {
            generic_tile_t t;

            if (head_tile(&head, i, &t)) {
                tile_attend(b, &head, &t, room, heads);
            }
        }
        if (alone) {
            break;
        }
        sum_merge(b, room, heads, dim);
    }
    if (!alone) {
        row_finish(b, a, &room->all, row, first, heads);
        return;
    }
    for (uint32_t e = b.lane; e < heads * (dim + 2); e += b.lanes) {
        uint32_t h = e / (dim + 2), d = e % (dim + 2);
        size_t at = ((size_t) s * a->parts + part) * a->queries.heads + first
                    + h;

        a->partial[at * (dim + 2) + d] = d < dim    ? room->part.out[h][d]
                                         : d == dim ? room->part.max[h]
                                                    : room->part.sum[h];
    }
}

/* The parts of the row of sequence s, when it is alone. */
TR_HD void
generic_merge(const generic_args_t *a, block_t b, attend_room_t *room,
              uint32_t s, uint32_t list, uint32_t piece)
{
    uint32_t dim = a->kv.head_dim, first, heads, tiles;
    generic_head_t head;

    if (!head_open(&head, a, s, list) || head.end - head.first != 1) {
        return;
    }
    head_query(&head, s, list, head.first);
    tiles = head_tiles(&head);
    heads = heads_of(a, list, piece, &first);
    sum_clear(b, &room->all, dim);
    for (uint32_t p = 0; p == 0 || (p < a->parts && p * PART_TILES < tiles);
         p++) {
        for (uint32_t e = b.lane; e < heads * (dim + 2); e += b.lanes) {
            uint32_t h = e / (dim + 2), d = e % (dim + 2);
            size_t at = ((size_t) s * a->parts + p) * a->queries.heads + first
                        + h;
            float x = a->partial[at * (dim + 2) + d];

            *(d < dim    ? &room->part.out[h][d]
              : d == dim ? &room->part.max[h]
                         : &room->part.sum[h])
                = x;
        }
        sum_merge(b, room, heads, dim);
    }
    row_finish(b, a, &room->all, head.first, first, heads);
}

#endif
