/*
 * attention_head.cuh: what the generic kernel is given, and where a head's
 * tokens are: its runs (tiers, window, uncompressed pages), tile by tile.
 */
#ifndef TR_CUDA_ATTENTION_HEAD_CUH
#define TR_CUDA_ATTENTION_HEAD_CUH

#include "kernels/cuda/kv/append.cuh"

#define TILE_TOKENS 16u
#define PARTS 32u           /* of a row, about, */
#define PART_TILES_MIN 16u  /* but of no fewer tiles, */
#define PART_TILES_MAX 256u /* nor of more */
#define HEADS 8u            /* query heads of a block */
#define ROWS 8u             /* queries that are scored together */
#define LANES 128u          /* of a block */
#define LANES_MAX 128u
#define RUN_WINDOW TR_KV_TIERS_MAX
#define RUN_UNCOMPRESSED (TR_KV_TIERS_MAX + 1u)
#define RUNS (TR_KV_TIERS_MAX + 2u)

typedef struct {
    tr_kv_view_t kv; /* its layouts are below */
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
    tr_rows_t rows;
    tr_cuda_queries_t queries;
    uint32_t layer, group;
    /* of a sequence, at most; tiles of each; of Quest's choice */
    uint32_t parts, part_tiles, pages;
    float *partial;  /* [n_seqs][parts][heads][head_dim + 2]: of rows that are
                      * alone in their sequence; sum of p * value, largest
                      * logit, sum of p */
    float *lse;      /* [n_rows][heads] logarithms of the sums of e^logit */
    uint32_t *bound; /* [n_seqs][kv_heads][pages] */
    int32_t *chosen; /* the same */
} generic_args_t;

/* A head of a sequence, for a query at position n. */
typedef struct {
    const generic_args_t *a;
    const tr_kv_seq_t *seq;
    const int32_t *table, *uncompressed; /* its pages, or those chosen */
    const uint32_t *count;
    const uint32_t *frozen; /* NULL: none */
    uint32_t first, end;    /* rows of the sequence */
    uint32_t n, n_uncompressed;
    uint32_t unseen; /* uncompressed tokens before the query's reach */
} generic_head_t;

/* 16 tokens of a page, or fewer. */
typedef struct {
    place_t at;
    uint32_t used;       /* bit i: token at.at + i is there */
    uint32_t run, index; /* of the first, in its run */
} generic_tile_t;

/* Blocks work on the parts of a row side by side, but every part takes memory:
 * tiles of each, where a row has at most so many. */
static inline uint32_t
part_size(uint32_t tiles)
{
    uint32_t n = tiles / PARTS;

    return n < PART_TILES_MIN   ? PART_TILES_MIN
           : n < PART_TILES_MAX ? n
                                : PART_TILES_MAX;
}

/* ---- rows and types ----------------------------------------------------- */

TR_DEVICE float
query_load(const generic_args_t *a, uint32_t row, uint32_t head, uint32_t d)
{
    return number_load(a->queries.q,
                       row * a->queries.ldq + (size_t) head * a->kv.head_dim
                           + d,
                       a->queries.q_type);
}

TR_DEVICE void
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
TR_DEVICE bool
head_open(generic_head_t *h, const generic_args_t *a, uint32_t s,
          uint32_t kv_head)
{
    int32_t slot = a->rows.seq_slot[s];
    size_t head;

    h->a = a;
    h->first = a->rows.seq_row[s];
    h->end = a->rows.seq_row[s + 1];
    if (slot < 0 || h->first >= h->end) {
        return false;
    }
    h->seq = tr_kv_seq_of(&a->kv, slot, a->layer);
    head = tr_kv_head(&a->kv, slot, a->layer, kv_head);
    h->table = a->kv.tables + head * a->kv.table_len;
    h->uncompressed = h->table;
    h->count = a->kv.count + head * TR_KV_TIERS_MAX;
    h->frozen = tr_kv_frozen(&a->kv, h->seq, head);
    h->n = a->rows.row_pos[h->first];
    h->n_uncompressed = h->unseen = 0;
    return h->n >= h->seq->base
           || (h->end - h->first == 1 && h->n + 1 == h->seq->base);
}

/* Does this step of Quest read some uncompressed pages only? */
TR_DEVICE bool
quest_chooses(const generic_head_t *h)
{
    const tr_kv_seq_t *q = h->seq;
    const tr_kv_layout_t *l = &h->a->layout[0];

    return h->end - h->first == 1 && h->n >= q->base && q->read_pages > 0
           && (h->n - q->base) / l->tokens + 1 > q->read_pages
           && (h->n - q->base) / l->tokens + 1 <= h->a->pages
           && h->a->layer >= q->read_layer && !q->scored && l->minmax != 0;
}

TR_DEVICE uint32_t
unseen_of(const generic_head_t *h)
{
    uint32_t reach = tr_kv_reach(&h->a->kv, h->a->layer);

    return reach != 0 && h->n_uncompressed > reach ? h->n_uncompressed - reach
                                                   : 0;
}

/* The query is that of `row`. */
TR_DEVICE void
head_query(generic_head_t *h, uint32_t s, uint32_t kv_head, uint32_t row)
{
    const generic_args_t *a = h->a;
    uint32_t per = a->layout[0].tokens;

    h->n = a->rows.row_pos[row];
    h->n_uncompressed = h->n >= h->seq->base ? h->n - h->seq->base + 1 : 0;
    h->unseen = unseen_of(h);
    h->uncompressed = h->table;
    if (quest_chooses(h)) {
        h->uncompressed = a->chosen
                          + ((size_t) s * a->kv.kv_heads + kv_head) * a->pages;
        h->n_uncompressed = (h->seq->read_pages - 1) * per
                            + (h->n_uncompressed - 1) % per + 1;
    }
}

/* ---- tiles -------------------------------------------------------------- */

/* Slots of a run, and its layout; 0 when there is none. */
TR_DEVICE uint32_t
run_slots(const generic_head_t *h, uint32_t run, const tr_kv_layout_t **l)
{
    const tr_kv_seq_t *q = h->seq;

    *l = &h->a->layout[0];
    if (run == RUN_UNCOMPRESSED) {
        return h->n_uncompressed;
    }
    if (run == RUN_WINDOW) {
        *l = &h->a->layout[q->window_layout];
        return tr_kv_windowed(q) == 0           ? 0
               : q->base < q->sinks + q->window ? q->base
                                                : q->sinks + q->window;
    }
    *l = &h->a->layout[run < q->n_tiers ? q->tier_layout[run] : 0];
    return run < q->n_tiers ? h->count[run] : 0;
}

/* Of these the first have no scores, in whole pages. */
TR_DEVICE uint32_t
run_frozen(const generic_head_t *h, uint32_t run)
{
    return run < h->seq->n_tiers && h->frozen != NULL ? h->frozen[run] : 0;
}

TR_DEVICE uint32_t
layout_tiles(const tr_kv_layout_t *l, uint32_t tokens)
{
    return tokens / l->tokens * ((l->tokens + TILE_TOKENS - 1) / TILE_TOKENS)
           + (tokens % l->tokens + TILE_TOKENS - 1) / TILE_TOKENS;
}

TR_DEVICE uint32_t
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
TR_DEVICE int32_t
run_page(const generic_head_t *h, uint32_t run, uint32_t i)
{
    const tr_kv_view_t *kv = &h->a->kv;

    return run == RUN_UNCOMPRESSED ? h->uncompressed[i]
           : run == RUN_WINDOW     ? h->table[kv->at_window + i]
                                   : h->table[tr_kv_tier_entry(kv, run, i)];
}

/* Tile i of a head: false when there are fewer. */
TR_DEVICE bool
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
    if (run == RUN_UNCOMPRESSED && t->index < h->unseen) {
        uint32_t below = h->unseen - t->index;

        t->used = below < TILE_TOKENS ? t->used >> below << below : 0;
    }
    for (uint32_t k = 0; run == RUN_WINDOW && k < n; k++) {
        uint32_t at = t->index + k - q->sinks; /* in the ring */
        uint32_t age = (at + q->window
                        - (q->window_from - q->sinks) % q->window)
                       % q->window;

        if (t->index + k >= q->sinks
            && age >= q->base - q->window_from) { /* a free slot of the ring */
            t->used &= ~(1u << k);
        }
    }
    return true;
}

/* x[token][d]: one side of a tile, 0 where no token is; rows are dim + 1
 * apart, so that 16 of them fall on different banks. */
TR_DEVICE void
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

#endif
