/*
 * kv_view.h: the KV cache as kernels see it: a pool of pages (kv_layout.h), the
 * table of each slot's pages, and where a token is.  All arrays are borrowed
 * from the manager of pages and, with a GPU, live on the device; only
 * `candidate` and the pages' contents are written by kernels.  A "head" is a
 * (slot, layer, KV head).
 *
 * A cached token of a head is in one of three places:
 *
 *   uncompressed
 *           16-bit pages in order: position p is token p - base.  Here prompts
 *           stand while they are computed; `full` never leaves it.
 *   window  a ring of the most recent tokens: position p is token p % window.
 *           In front of it stand the first tokens, for good, when a policy has
 *           sinks (tr_kv_window_entry).
 *   tiers   up to TR_KV_TIERS_MAX tiers, one for each level of the policy, best
 *           level first; tokens in no order, [0, count) without gaps.  Their
 *           positions and scores are in the page.
 *
 * A head's row of the table has the uncompressed pages from entry 0, those of
 * the window from at_window, then two bidirectional parts: tiers 0 and 1 grow
 * from the ends of the first towards each other, tiers 2 and 3 in the second
 * (DiffKV section 5.2).
 *
 * The first tokens of a tier may be frozen, in whole pages: others read these, too
 * (kv_manager/manager_cut.h).  They have no scores that anybody reads or writes,
 * stay where they are, and nobody is moved to their places.
 *
 * Layers may slide: a query sees the last tokens alone (reach).  Their heads are
 * not compressed, whatever the others do: all stands in uncompressed pages, which
 * go when nobody can see them any more.  For kernels these heads are those of
 * another sequence, tr_kv_seq_of.
 *
 * Scores: every scored token has an FP32 sum.  A query at position n adds, to
 * each token before it that its head caches, the largest softmax probability
 * that a query head of the group gives it; the token's own query adds nothing.
 * In uncompressed pages `recent` is the same sum over the queries from
 * recent_from on.  Sums are formed query by query in ascending order, so that
 * chunks do not matter.
 */
#ifndef TR_KV_VIEW_H
#define TR_KV_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv_layout.h"

#define TR_KV_TIERS_MAX 4u
#define TR_KV_SLIDES_MAX 256u /* layers, where some slide */

#define TR_KV_NOWHERE (-1)      /* in place of a tier: the token is forgotten */
#define TR_KV_STAYS (-2)        /* nobody is moved */
#define TR_KV_WINDOW (-3)       /* the window */
#define TR_KV_UNCOMPRESSED (-4) /* uncompressed pages */

typedef struct {
    uint32_t base;         /* positions from here on are uncompressed */
    uint32_t window_from;  /* positions [window_from, base) are in the ring */
    uint32_t window;       /* ring slots; 0: none, new tokens go to a tier */
    uint32_t sinks;        /* so are [0, sinks), in front of it; at most
                            * window_from, 0 without a window */
    uint8_t n_tiers;       /* 0: all is uncompressed */
    uint8_t window_layout; /* index of a layout */
    uint8_t tier_layout[TR_KV_TIERS_MAX];
    uint8_t settled; /* of the last so many tiers nobody is ever moved:
                            * attention may leave their scores as they are */
    bool scored;     /* attention updates scores */
    bool by_sum;     /* the candidate is the token of least score, else the
                            * one of least score / (n - position) */
    bool frozen; /* tr_kv_view_t.frozen says of how many tokens that holds */
    uint32_t recent_from;
    /* The first uncompressed pages of each head, whole ones, that are cached for
     * others, too (manager_share.h): nobody writes into them. */
    uint32_t shared;
    /* Quest: a decode step reads, in layers >= read_layer, only the read_pages
     * uncompressed pages whose min/max promises most, the last one always among
     * them; 0: all */
    uint32_t read_layer, read_pages;
} tr_kv_seq_t;

/* Where the window's part has position p: sinks, then the ring, which begins
 * behind them. */
TR_HD uint32_t
tr_kv_window_entry(const tr_kv_seq_t *q, uint32_t p)
{
    return p < q->sinks ? p : q->sinks + (p - q->sinks) % q->window;
}

/* How many tokens the window's part has, and the position of the i-th of them,
 * in order of position. */
TR_HD uint32_t
tr_kv_windowed(const tr_kv_seq_t *q)
{
    return q->window == 0 ? 0 : q->sinks + q->base - q->window_from;
}

TR_HD uint32_t
tr_kv_windowed_position(const tr_kv_seq_t *q, uint32_t i)
{
    return i < q->sinks ? i : q->window_from + (i - q->sinks);
}

/* Is a position one that stands there? */
TR_HD bool
tr_kv_in_window(const tr_kv_seq_t *q, uint32_t p)
{
    return p < q->sinks || p >= q->window_from;
}

/* What kv_append does to one head when the token at position base - 1 comes,
 * decided before the step.  In this order: the candidate goes from its tier to
 * another (or nowhere), `leaves` tokens from position leave_pos on go from the
 * window to tier `to` (or nowhere) at [index, index + leaves), the new token
 * is stored in the window.  Without a window the new token itself is the one
 * that leaves.  index may be the place that the candidate left. */
typedef struct {
    int8_t to;             /* tier, TR_KV_NOWHERE, TR_KV_STAYS: nobody leaves */
    int8_t candidate_from; /* tier, TR_KV_STAYS: nobody */
    int8_t candidate_to;   /* tier, TR_KV_NOWHERE */
    uint8_t leaves;        /* 1, or TR_KV_CHANNEL_TOKENS to a tier by channel,
                         * whose index is then a multiple of it */
    uint32_t leave_pos;
    uint32_t index;
    uint32_t candidate_index;  /* in candidate_from */
    uint32_t candidate_target; /* in candidate_to */
} tr_kv_move_t;

/* The eviction candidate of a tier: its least significant token, as of the last
 * query. */
typedef struct {
    float significance; /* see by_sum; +infinity when the tier is empty */
    uint32_t index;     /* of equals, the one of lowest position */
} tr_kv_candidate_t;

typedef struct {
    uint8_t *pool; /* [pages][page_bytes], 64-byte aligned */
    uint64_t page_bytes;
    uint32_t layers, kv_heads, head_dim;
    uint32_t n_layouts;
    const tr_kv_layout_t *layout; /* [n_layouts], layout[0] is uncompressed */
    const int32_t *tables;        /* [slots][layers][kv_heads][table_len] */
    uint32_t table_len, at_window;
    uint32_t at_pair[2], pair_len[2];
    const tr_kv_seq_t *seq; /* [slots] */
    const uint32_t *count;  /* [slots][layers][kv_heads][TR_KV_TIERS_MAX], of a
                               * step: as they are after its moves */
    /* the same: the first tokens of each tier that are frozen, in whole pages;
     * read where a sequence says that it has some */
    const uint32_t *frozen;
    const tr_kv_move_t *move; /* [slots][layers][kv_heads] */
    tr_kv_candidate_t
        *candidate; /* [slots][layers][kv_heads][TR_KV_TIERS_MAX] */
    /* [layers], or NULL: a query sees that many positions, its own included; 0:
     * all.  Such layers slide, or base is 0 and nothing is scored. */
    const uint32_t *reach;
    uint32_t slides[TR_KV_SLIDES_MAX / 32]; /* bit by layer: tr_kv_slides */
    const tr_kv_seq_t *sliding; /* any slot, to a layer that slides: all 0 */
    /* [layers] of [query heads], or NULL, as an element may be: a sum of
     * softmax begins with e^sink, which stands for no token (gpt-oss) */
    const float *const *sinks;
} tr_kv_view_t;

TR_HD uint32_t
tr_kv_reach(const tr_kv_view_t *v, uint32_t layer)
{
    return v->reach == NULL ? 0 : v->reach[layer];
}

TR_HD bool
tr_kv_slides(const tr_kv_view_t *v, uint32_t layer)
{
    return layer < TR_KV_SLIDES_MAX
           && (v->slides[layer / 32] >> layer % 32 & 1);
}

/* Frozen tokens by tier of a head, counted over all slots; NULL: there are none. */
TR_HD const uint32_t *
tr_kv_frozen(const tr_kv_view_t *v, const tr_kv_seq_t *q, size_t head)
{
    return q->frozen ? v->frozen + head * TR_KV_TIERS_MAX : NULL;
}

/* A slot, as the heads of a layer have it. */
TR_HD const tr_kv_seq_t *
tr_kv_seq_of(const tr_kv_view_t *v, int32_t slot, uint32_t layer)
{
    return tr_kv_slides(v, layer) ? v->sliding : &v->seq[slot];
}

TR_HD size_t
tr_kv_head(const tr_kv_view_t *v, int32_t slot, uint32_t layer,
           uint32_t kv_head)
{
    return ((size_t) slot * v->layers + layer) * v->kv_heads + kv_head;
}

TR_HD const int32_t *
tr_kv_table(const tr_kv_view_t *v, int32_t slot, uint32_t layer,
            uint32_t kv_head)
{
    return v->tables + tr_kv_head(v, slot, layer, kv_head) * v->table_len;
}

/* Entry of a head's row that holds page i of tier l. */
TR_HD uint32_t
tr_kv_tier_entry(const tr_kv_view_t *v, uint32_t l, uint32_t i)
{
    uint32_t at = v->at_pair[l / 2];

    return l % 2 == 0 ? at + i : at + v->pair_len[l / 2] - 1 - i;
}

TR_HD uint8_t *
tr_kv_page_at(const tr_kv_view_t *v, int32_t page)
{
    return v->pool + (uint64_t) page * v->page_bytes;
}

/* A new home for everything that a slot caches, as its policy decided when a
 * prompt was complete.  Sources in this order, for each head: tiers 0, 1, ..
 * in order, the window in order of position, uncompressed pages in order; dest has one
 * byte for each.  Tokens that go to a tier take its places in that order, behind
 * those that stay; those that go to the window take tr_kv_window_entry, sinks among
 * them. */
typedef struct {
    int32_t slot;
    uint32_t n_uncompressed;  /* uncompressed tokens, from position base on */
    const tr_kv_seq_t *to;    /* the slot afterwards, n_uncompressed then 0 */
    const int32_t *to_tables; /* [layers][kv_heads][table_len] pages to fill;
                               * none of them is a source */
    const int8_t *dest;       /* [layers][kv_heads][dest_len]: tier, NOWHERE or
                               * WINDOW */
    size_t dest_len;
    /* [layers][kv_heads][TR_KV_TIERS_MAX], or NULL: the first tokens of each tier
     * afterwards, in whole pages that are there already.  They are the slot's own
     * frozen ones and no sources; of a cut, which is of another slot's tokens,
     * these are all sources, and what is in such a page goes nowhere. */
    const uint32_t *stay;
    bool cut;
    uint32_t observe; /* w > 0: an uncompressed token's score becomes recent *
                       * (later queries) / min(w, later queries), w being the
                       * number of queries from recent_from on */
    /* Layers [first_layer, first_layer + layers) alone; layers 0: all. */
    uint32_t first_layer, layers;
} tr_kv_compress_t;

/* Is a head, counted over all layers, one that this is about? */
TR_HD bool
tr_kv_compress_has(const tr_kv_compress_t *c, uint32_t kv_heads, uint32_t head)
{
    uint32_t layer = head / kv_heads;

    return c->layers == 0
           || (layer >= c->first_layer && layer - c->first_layer < c->layers);
}

/* How many tokens stay in tier l of a head, counted over all layers; and of the
 * slot's tokens there, how many are no sources. */
TR_HD uint32_t
tr_kv_compress_stay(const tr_kv_compress_t *c, uint32_t head, uint32_t l)
{
    return c->stay == NULL ? 0 : c->stay[head * TR_KV_TIERS_MAX + l];
}

TR_HD uint32_t
tr_kv_compress_skip(const tr_kv_compress_t *c, uint32_t head, uint32_t l)
{
    return c->cut ? 0 : tr_kv_compress_stay(c, head, l);
}

/* A channel of what attention gives, over all queries and the query heads of a
 * group: the sum of its squares with the old pages of a compression, and of the
 * squares of how far it moves with new keys and old values, and with old keys and
 * new values.  What was dropped is missing in both. */
typedef struct {
    float whole, keys, values;
} tr_kv_change_t;

/* Queries of a prompt's end, asked of all that a slot caches as it is and as a
 * tr_kv_compress_t that was carried out has it. */
typedef struct {
    uint32_t n_layers;
    const uint32_t *layer; /* [n_layers] */
    uint32_t first, n;     /* they stand at uncompressed positions
                            * [first, first + n), the last of the slot */
    uint32_t heads;
    float scale;
    /* [n_layers][n][heads * head_dim], turned as kv_append turns keys; layers
     * are ld apart */
    const float *q;
    size_t ld;
    const float *const *sinks; /* as in tr_kv_view_t, or NULL */
    tr_kv_change_t *change;    /* [n_layers][kv_heads][head_dim] */
} tr_kv_compare_t;

/* An uncompressed token's score after tr_kv_compress_t.observe = w queries,
 * `later` queries having come after it. */
TR_HD float
tr_kv_observed(float recent, uint32_t later, uint32_t w)
{
    return later == 0
               ? 0
               : recent * (float) later / (float) (w < later ? w : later);
}

#endif
