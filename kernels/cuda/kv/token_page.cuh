/*
 * token_page.cuh: where a token stands in its page: its two sides, score and
 * position, and what is cleared when a page is given out.
 */
#ifndef TR_CUDA_TOKEN_PAGE_CUH
#define TR_CUDA_TOKEN_PAGE_CUH

#include "kernels/cuda/lanes.cuh"

/* Token `at` of a page. */
typedef struct {
    uint8_t *page;
    const tr_kv_layout_t *layout;
    uint32_t at;
} place_t;

/* What a warp works in. */
typedef struct {
    float x[TR_HEAD_DIM_MAX];
    place_t from[TR_KV_CHANNEL_TOKENS];
    uint8_t codes[TR_HEAD_DIM_MAX];
} token_smem_t;

typedef enum { KEY, VALUE } side_t;

TR_DEVICE uint32_t
side_bits(const tr_kv_layout_t *l, side_t s)
{
    return s == KEY ? l->level.key_bits : l->level.value_bits;
}

TR_DEVICE uint32_t
side_groups(const tr_kv_layout_t *l, side_t s)
{
    return s == KEY ? l->level.key_groups : l->level.value_groups;
}

/* The metadata group of a dimension; by token. */
TR_DEVICE uint32_t
side_group(const tr_kv_layout_t *l, side_t s, uint32_t d)
{
    uint32_t m = side_groups(l, s), quarter = l->head_dim / 4;

    if (m == 1) {
        return 0;
    }
    return s == KEY ? d % quarter / (quarter / m) : d / (l->head_dim / m);
}

/* The row of a 16-bit side. */
TR_DEVICE uint16_t *
side_row(place_t p, side_t s)
{
    return (uint16_t *) (p.page
                         + (s == KEY ? tr_kv_key_row(p.layout, p.at)
                                     : tr_kv_value_row(p.layout, p.at)));
}

/* The pair {scale, zero} that a dimension uses. */
TR_DEVICE uint16_t *
side_meta(place_t p, side_t s, uint32_t d)
{
    return (uint16_t *) (p.page
                         + (s == KEY ? tr_kv_key_meta(p.layout, p.at, d)
                                     : tr_kv_value_meta(p.layout, p.at, d)));
}

TR_DEVICE uint32_t
side_code(place_t p, side_t s, uint32_t d)
{
    tr_kv_code_t at = s == KEY ? tr_kv_key_code(p.layout, p.at, d)
                               : tr_kv_value_code(p.layout, p.at, d);

    return tr_kv_code_get(p.page, at, side_bits(p.layout, s));
}

TR_DEVICE float
side_number(place_t p, side_t s, uint32_t d)
{
    const uint16_t *meta;

    if (side_bits(p.layout, s) == 16) {
        return float_of(side_row(p, s)[d]);
    }
    meta = side_meta(p, s, d);
    return add_rn(mul_rn((float) side_code(p, s, d), float_of(meta[0])),
                  float_of(meta[1]));
}

/* ---- score and position ------------------------------------------------- */

TR_DEVICE float
token_score(place_t p)
{
    return p.layout->level.scored
               ? ((const float *) (p.page + p.layout->score))[p.at]
               : 0;
}

TR_DEVICE uint32_t
token_position(place_t p)
{
    return p.layout->position ? tr_kv_position_at(p.layout, p.page, p.at) : 0;
}

/* By one lane. */
TR_DEVICE void
token_put_stats(place_t p, float score, uint32_t position)
{
    if (p.layout->level.scored) {
        ((float *) (p.page + p.layout->score))[p.at] = score;
    }
    if (p.layout->position) {
        tr_kv_position_put(p.layout, p.page, p.at, position);
    }
}

/* ---- a page that is given out ------------------------------------------- */

TR_DEVICE void
words_clear(warp_t w, uint8_t *page, uint32_t first, uint32_t end)
{
    for (uint32_t i = first + 4 * w.lane; i < end; i += 4 * w.lanes) {
        *(uint32_t *) (page + i) = 0;
    }
}

/* Pairs {scale, zero} by token, of tokens [first, end). */
TR_DEVICE void
pairs_clear(warp_t w, uint8_t *page, const tr_kv_layout_t *l, side_t s,
            uint32_t first, uint32_t end)
{
    const uint32_t m = side_groups(l, s), some = TR_KV_TILE * m;

    page += s == KEY ? l->key_meta : l->value_meta;
    for (uint32_t i = first * m + w.lane; i < end * m; i += w.lanes) {
        *(uint32_t *) (page + i / some * l->tile + i % some * 4) = 0;
    }
}

/* Zeroes what a side has beside codes, of tokens [first, end); with the page's
 * last token, to the page's end (tr_kv_page_clear in kernels/cpu/kv/kv_place.c).
 * By channel first and end are multiples of TR_KV_CHANNEL_TOKENS. */
TR_DEVICE void
tokens_clear(warp_t w, uint8_t *page, const tr_kv_layout_t *l, side_t s,
             uint32_t first, uint32_t end, uint64_t page_bytes)
{
    const uint32_t channels = 4 * l->head_dim / TR_KV_CHANNEL_TOKENS;
    uint32_t after = tr_kv_tiles_end(l);

    if (s == KEY) {
        if (l->level.by_channel) {
            words_clear(w, page, l->key_meta + first * channels,
                        l->key_meta + end * channels);
        } else if (l->key_meta) {
            pairs_clear(w, page, l, s, first, end);
        }
        return;
    }
    if (l->value_meta) {
        pairs_clear(w, page, l, s, first, end);
    }
    if (l->level.by_channel) {
        after += l->tokens * channels;
    }
    if (l->level.scored) {
        words_clear(w, page, l->score + 4 * first, l->score + 4 * end);
        after += 4 * l->tokens;
    }
    if (l->position) {
        words_clear(w, page, l->position + l->position_bytes * first,
                    l->position + l->position_bytes * end);
        after += l->position_bytes * l->tokens;
    }
    if (end == l->tokens) {
        words_clear(w, page, after, (uint32_t) page_bytes);
    }
}

#endif
