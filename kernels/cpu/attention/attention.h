/*
 * What the files of attention share: where a head's tokens are, and the pieces
 * that a step is cut into.  attention.c says how.
 *
 *   attention.c          the launcher: phases, threads, workspace
 *   attention_uncompressed.c
 *                        pieces of rows at uncompressed positions
 *   attention_turns.c    the order in which their tiles add to scores
 *   attention_rows.c     pieces of rows over tiers and window
 *   attention_parts.c    runs and parts of a head, Quest's choice of pages
 *   attention_unpack.c   one token of a quantised page in FP32
 *   attention_c.c        all pieces in plain C, the reference
 *   attention_tile.h     vector code: rows at uncompressed positions
 *   attention_product.h  vector code: their products
 *   attention_score.h    vector code: what these rows add to scores; Quest
 *   attention_tier.h     vector code: parts of a row over tiers and window
 *   attention_key.h, attention_value.h, attention_field.h
 *                        their logits, values, products with codes
 *   attention_row.h      vector code: scores and candidates of such a row
 */
#ifndef TR_KERNELS_CPU_ATTENTION_H
#define TR_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/cpu.h"

#define TR_TILE_ROWS 96u
#define TR_TILE_BLOCK 64u /* tokens taken together */

/* Tokens of one head in pages of one layout: a tier, or the window. */
typedef struct {
    const tr_kv_layout_t *layout;
    const int32_t *pages; /* page i is pages[i * step] */
    int32_t step;
    uint32_t slots;           /* the tokens are in [0, slots), but for .. */
    uint32_t hole_from, hole; /* .. a ring's free slots, round the end */
    uint32_t ring;            /* where the ring begins */
    uint32_t frozen; /* the first so many have no scores: whole pages */
    int32_t tier;    /* TR_KV_WINDOW for the window */
} tr_run_t;

#define TR_RUNS_MAX (TR_KV_TIERS_MAX + 1u)

/* Those of a head that hold tokens, tiers first; returns how many. */
uint32_t tr_attention_runs(const tr_kv_view_t *kv, int32_t slot, uint32_t layer,
                           uint32_t kv_head, tr_run_t *run);

static inline const uint8_t *
tr_run_page(const tr_kv_view_t *kv, const tr_run_t *r, uint32_t i)
{
    return tr_kv_page_at(kv, r->pages[(int64_t) i * r->step]);
}

static inline uint32_t
tr_run_pages(const tr_run_t *r)
{
    return (r->slots + r->layout->tokens - 1) / r->layout->tokens;
}

/* Slots of page i that are below the end. */
static inline uint32_t
tr_run_used(const tr_run_t *r, uint32_t i)
{
    uint32_t left = r->slots - i * r->layout->tokens;

    return left < r->layout->tokens ? left : r->layout->tokens;
}

/* Is a slot below the end in use? */
static inline bool
tr_run_has(const tr_run_t *r, uint32_t slot)
{
    uint32_t from_hole = slot >= r->hole_from
                             ? slot - r->hole_from
                             : slot + r->slots - r->ring - r->hole_from;

    return slot < r->ring || from_hole >= r->hole;
}

/* Bit i: is token first + i of page `page` in use?  16 of them. */
static inline uint32_t
tr_run_mask(const tr_run_t *r, uint32_t page, uint32_t first)
{
    uint32_t n = tr_run_used(r, page), mask = 0;

    n = n > first ? n - first : 0;
    n = n < 16 ? n : 16;
    if (r->hole == 0) {
        return (1u << n) - 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = page * r->layout->tokens + first + i;

        mask |= (uint32_t) tr_run_has(r, slot) << i;
    }
    return mask;
}

/* A block: up to TR_TILE_BLOCK tokens of one page of a run.  Blocks of a run
 * are numbered through its pages. */
typedef struct {
    const uint8_t *page;
    uint32_t n;
    uint16_t token[TR_TILE_BLOCK]; /* of the page */
} tr_block_t;

uint32_t tr_run_blocks(const tr_run_t *r);
/* Has block i scores?  Its page may be frozen, or have none. */
bool tr_run_scored(const tr_run_t *r, uint32_t i);
void tr_run_block(const tr_kv_view_t *kv, const tr_run_t *r, uint32_t i,
                  tr_block_t *out);

/* Rows at uncompressed positions: query positions [pos, pos + n_pos) of a
 * sequence with the query heads of one KV head, which share its pages. */
typedef struct {
    const tr_kv_view_t *kv;
    const tr_run_t *run; /* what lies before the uncompressed tokens */
    uint32_t n_runs;
    const int32_t *table; /* pages of uncompressed tokens */
    uint32_t pos, n_pos;  /* as for reach; n_pos * group <= TR_TILE_ROWS */
    uint32_t reach; /* uncompressed tokens that a query sees, its own included;
                           * 0: all before it; else no runs, nothing scored */
    uint32_t group; /* query heads */
    const float *q; /* [n_pos][group * head_dim] */
    size_t ldq;
    float *out; /* the same shape */
    size_t ldo;
    float scale;
    const float *sink; /* [group], or NULL; tr_kv_view_t */
    /* NULL, or the rows add to scores: what a tile leaves for that, logarithms
     * of the rows' sums of e^logit, [n_pos * group], and, as an instruction set
     * likes it, tr_tile_kept() floats */
    float *lse, *kept;
    uint32_t recent_from; /* queries that count in `recent`, as for reach */
    /* uncompressed tokens that the next tile reads, to be asked for
     * meanwhile */
    const int32_t *next_table;
    uint32_t n_next;
} tr_attention_tile_t;

/* A softmax's sum, relative to e^max, with the sink of a query head. */
static inline float
tr_sum_with_sink(const float *sink, uint32_t head, float max, float sum)
{
    return sink != NULL ? sum + expf(sink[head] - max) : sum;
}

/* The first uncompressed token that the query of token `pos` sees. */
static inline uint32_t
tr_tile_from(const tr_attention_tile_t *t, uint32_t pos)
{
    return t->reach != 0 && pos >= t->reach ? pos - t->reach + 1 : 0;
}

/* Floats of scratch that a tile needs. */
static inline size_t
tr_tile_floats(size_t head_dim)
{
    /* keys, values, queries, outputs, weights, and two figures a row */
    return 2 * TR_TILE_BLOCK * head_dim + 2 * TR_TILE_ROWS * head_dim
           + TR_TILE_ROWS * TR_TILE_BLOCK + 2 * TR_TILE_ROWS;
}

/* Columns that a tile has at most, blocks padded to 16: a block is a page's
 * tokens (8 or more), tiers and window cover twice `base` slots. */
static inline uint32_t
tr_tile_columns(uint32_t base, uint32_t uncompressed)
{
    return 4 * base + uncompressed + TR_RUNS_MAX * 16 + TR_TILE_BLOCK;
}

/* Rows of a scored tile: as many as of others, but over very many columns
 * fewer, so that what they keep has bounds; and enough of them to be worth a
 * pass over the keys. */
#define TR_KEPT_FLOATS (2048u << 10)
#define TR_KEPT_ROWS 24u

static inline uint32_t
tr_tile_kept_rows(uint32_t group, uint32_t columns)
{
    uint32_t n = TR_KEPT_FLOATS / columns;
    uint32_t least = group > TR_KEPT_ROWS ? group : TR_KEPT_ROWS;

    n = n < TR_TILE_ROWS ? n : TR_TILE_ROWS;
    return n > least ? n : least;
}

/* Floats that these rows keep: a weight a column, a maximum a block (of 16
 * columns or more).  Grows with `columns`. */
static inline size_t
tr_tile_kept(uint32_t group, uint32_t columns)
{
    size_t least = (size_t) tr_tile_kept_rows(group, UINT32_MAX) * columns;
    size_t n = (size_t) TR_TILE_ROWS * columns;

    n = n < TR_KEPT_FLOATS ? n : TR_KEPT_FLOATS;
    n = n > least ? n : least;
    return n + (n / 16 + columns + TR_TILE_ROWS);
}

/* The tokens of a block that rows add to: of a run's block `at`, or (run NULL)
 * uncompressed tokens from `at` on that stand before the tile's last. */
typedef struct {
    uint32_t n;
    float *score[TR_TILE_BLOCK], *recent[TR_TILE_BLOCK]; /* recent: or NULL */
    tr_block_t block;                                    /* of a run */
} tr_scored_t;

void tr_attention_scored(const tr_attention_tile_t *t, const tr_run_t *run,
                         uint32_t at, tr_scored_t *out);

/* A row over tiers and window: one head of a sequence that has one row.  Its
 * tokens are taken in tiles of 16 slots of a page; tiles are numbered through
 * the pages of all runs, and each has 16 logits. */
typedef struct {
    const tr_kv_view_t *kv;
    tr_run_t run[TR_RUNS_MAX];
    uint32_t n_runs;
    uint32_t position; /* of the row */
    uint32_t group;
    const float *q; /* [group * head_dim] */
    float *out;     /* the same */
    float scale;
    const float *sink; /* [group], or NULL */
    bool scored, by_sum;
    tr_kv_candidate_t *candidate; /* [TR_KV_TIERS_MAX] */
    float *logits;                /* [group][stride] */
    size_t stride;
    float *partial; /* [parts][group][head_dim + 2]: sum of p * value, largest
                      * logit, sum of p */
    const uint8_t *next; /* NULL, or a page to be asked for meanwhile */
} tr_attention_row_t;

/* A part: pages [page, page + pages) of a run, about TR_PART_SLOTS slots.  The
 * cut depends on the cache alone, never on threads. */
#define TR_PART_SLOTS 1024u
#define TR_PART_SLOTS_MAX 2048u /* with the rounding of pages to tiles */

typedef struct {
    const tr_run_t *run;
    uint32_t page, pages;
    uint32_t tile, tiles; /* number of the first tile */
} tr_part_t;

uint32_t tr_row_parts(const tr_attention_row_t *t);
void tr_row_part(const tr_attention_row_t *t, uint32_t i, tr_part_t *out);

/* Tiles of a whole page. */
static inline uint32_t
tr_page_tiles(const tr_kv_layout_t *l)
{
    return (l->tokens + 15) / 16;
}

/* Iterates over the tiles of a part; begun with all zero. */
typedef struct {
    const uint8_t *page;
    uint32_t i;     /* pages before this one */
    uint32_t first; /* token of the page */
    uint32_t slot;  /* the same token, of the run */
    uint32_t tile;
    uint32_t mask; /* bit j: token first + j is in use */
} tr_tile_iterator_t;

static inline bool
tr_part_next(const tr_attention_row_t *t, const tr_part_t *p,
             tr_tile_iterator_t *s)
{
    if (s->page == NULL) {
        s->tile = p->tile;
    } else {
        s->first += 16;
        s->tile++;
        if (s->first >= tr_run_used(p->run, p->page + s->i)) {
            s->first = 0;
            s->i++;
        }
    }
    if (s->i == p->pages) {
        return false;
    }
    s->page = tr_run_page(t->kv, p->run, p->page + s->i);
    s->slot = (p->page + s->i) * p->run->layout->tokens + s->first;
    s->mask = tr_run_mask(p->run, p->page + s->i, s->first);
    return true;
}

/* Floats of scratch that a part needs. */
static inline size_t
tr_part_floats(size_t head_dim)
{
    /* weights and queries of up to 4 heads, a tile of keys or values */
    return 4 * TR_PART_SLOTS_MAX + 4 * head_dim + 16 * head_dim;
}

/* One implementation: what runs on one thread. */
typedef struct tr_attention_isa {
    void (*tile)(const tr_attention_tile_t *t, float *scratch);
    /* adds to scores what a tile that has been computed gives them */
    void (*score)(const tr_attention_tile_t *t, float *scratch);
    /* part i of a row: its logits and its partial result */
    void (*part)(const tr_attention_row_t *t, uint32_t i, float *scratch);
    /* adds to the scores of a row's tokens and finds its candidates; lse:
     * [group] */
    void (*row_score)(const tr_attention_row_t *t, const float *lse);
    /* upper bounds of the logits in an uncompressed page, the maximum over a
     * group: q: [group * head_dim]; minmax: FP16 [2][head_dim] */
    float (*bound)(const float *q, uint32_t group, const uint16_t *minmax,
                   uint32_t head_dim);
} tr_attention_isa_t;

extern const tr_attention_isa_t tr_attention_c, tr_attention_avx2,
    tr_attention_avx512;

/* Quest: the `want` of n uncompressed pages that promise most, in order, the
 * last always among them; of equals the first.  1 <= want < n.  bound: [2 n],
 * the first n in the order of tr_attention_order, the rest for its own use. */
void tr_attention_choose(const int32_t *pages, uint32_t n, uint32_t want,
                         uint32_t *bound, int32_t *chosen);
/* A float as an integer of the same order; NaN is largest. */
uint32_t tr_attention_order(float x);

/* Where the codes of a tile are: map[token][dim] = bit of the tile; for 8, 4
 * and 2 bits, head_dim a multiple of 32. */
const uint16_t *tr_code_map(bool value, uint32_t bits, uint32_t head_dim);

/* The key or value of a token of a page, in FP32. */
void tr_unpack_key(const tr_kv_layout_t *l, const uint8_t *page, uint32_t token,
                   float *out);
/* The codes of a key, as they are; not for 16 bits. */
void tr_unpack_key_codes(const tr_kv_layout_t *l, const uint8_t *page,
                         uint32_t token, float *out);
void tr_unpack_value(const tr_kv_layout_t *l, const uint8_t *page,
                     uint32_t token, float *out);

#endif
