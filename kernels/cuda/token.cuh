/*
 * token.cuh: a token in a page of the KV cache, as a warp handles it: how it
 * gets in, and what happens to it when it moves (kernels.h, kv_append).  The
 * counterpart of cpu/kv_store.c, whose bits it gives.
 *
 * A token has two sides, its key and its value, which share nothing: each may
 * be another warp's.  The key's warp has the page's key metadata, the value's
 * all that follows the value codes: their metadata, scores, positions.
 *
 * Numbers come from registers or a page, d by lane; codes meet in the warp's
 * room and are packed from there word by word.
 */
#ifndef TR_CUDA_TOKEN_CUH
#define TR_CUDA_TOKEN_CUH

#include "lanes.cuh"

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
} token_room_t;

typedef enum { KEY, VALUE } side_t;

TR_HD uint32_t
side_bits(const tr_kv_layout_t *l, side_t s)
{
    return s == KEY ? l->level.key_bits : l->level.value_bits;
}

TR_HD uint32_t
side_groups(const tr_kv_layout_t *l, side_t s)
{
    return s == KEY ? l->level.key_groups : l->level.value_groups;
}

/* The metadata group of a dimension; by token. */
TR_HD uint32_t
side_group(const tr_kv_layout_t *l, side_t s, uint32_t d)
{
    uint32_t m = side_groups(l, s), quarter = l->head_dim / 4;

    if (m == 1) {
        return 0;
    }
    return s == KEY ? d % quarter / (quarter / m) : d / (l->head_dim / m);
}

/* The row of a 16-bit side. */
TR_HD uint16_t *
side_row(place_t p, side_t s)
{
    return (uint16_t *) (p.page + (s == KEY ? 0 : p.layout->value))
           + (size_t) p.at * p.layout->head_dim;
}

/* The pair {scale, zero} that a dimension uses. */
TR_HD uint16_t *
side_meta(place_t p, side_t s, uint32_t d)
{
    return (uint16_t *) (p.page
                         + (s == KEY ? tr_kv_key_meta(p.layout, p.at, d)
                                     : tr_kv_value_meta(p.layout, p.at, d)));
}

TR_HD uint32_t
side_code(place_t p, side_t s, uint32_t d)
{
    tr_kv_code_t at = s == KEY ? tr_kv_key_code(p.layout, p.at, d)
                               : tr_kv_value_code(p.layout, p.at, d);

    return tr_kv_code_get(p.page, at, side_bits(p.layout, s));
}

TR_HD float
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

TR_HD float
token_score(place_t p)
{
    return p.layout->level.scored
               ? ((const float *) (p.page + p.layout->score))[p.at]
               : 0;
}

TR_HD uint32_t
token_position(place_t p)
{
    return p.layout->position
               ? ((const uint32_t *) (p.page + p.layout->position))[p.at]
               : 0;
}

/* By one lane. */
TR_HD void
token_mark(place_t p, float score, uint32_t position)
{
    if (p.layout->level.scored) {
        ((float *) (p.page + p.layout->score))[p.at] = score;
    }
    if (p.layout->position) {
        ((uint32_t *) (p.page + p.layout->position))[p.at] = position;
    }
}

/* ---- a page that is given out ------------------------------------------- */

TR_HD void
words_clear(warp_t w, uint8_t *page, uint32_t first, uint32_t end)
{
    for (uint32_t i = first + 4 * w.lane; i < end; i += 4 * w.lanes) {
        *(uint32_t *) (page + i) = 0;
    }
}

/* Zeroes what a side has beside codes, of tokens [first, end); with the page's
 * last token, to the page's end (cpu/kv_place.c, tr_kv_page_clear).  By channel
 * first and end are multiples of TR_KV_CHANNEL_TOKENS. */
TR_HD void
tokens_clear(warp_t w, uint8_t *page, const tr_kv_layout_t *l, side_t s,
             uint32_t first, uint32_t end, uint64_t page_bytes)
{
    uint32_t pair = 4 * side_groups(l, s), after;

    if (s == KEY) {
        if (l->level.by_channel) {
            pair = 4 * l->head_dim / TR_KV_CHANNEL_TOKENS;
        }
        if (l->key_meta) {
            words_clear(w, page, l->key_meta + first * pair,
                        l->key_meta + end * pair);
        }
        return;
    }
    after = l->value + l->tokens * l->head_dim * l->level.value_bits / 8;
    if (l->value_meta) {
        words_clear(w, page, l->value_meta + first * pair,
                    l->value_meta + end * pair);
        after += l->tokens * pair;
    }
    if (l->level.scored) {
        words_clear(w, page, l->score + 4 * first, l->score + 4 * end);
        words_clear(w, page, l->position + 4 * first, l->position + 4 * end);
        after += 8 * l->tokens;
    }
    if (end == l->tokens) {
        words_clear(w, page, after, (uint32_t) page_bytes);
    }
}

/* ---- quantising --------------------------------------------------------- */

/* {scale, zero} of a group with these ends; lo > hi: nothing but NaN
 * (cpu/kv_quant.h). */
TR_HD void
group_meta(float lo, float hi, uint32_t bits, bool narrow, uint16_t *meta)
{
    float steps = narrow ? 5 : (float) ((1u << bits) - 1), step;

    if (!(lo <= hi)) {
        lo = hi = 0;
    }
    lo = lo > 65504.0f ? 65504.0f : lo < -65504.0f ? -65504.0f : lo;
    hi = hi > 65504.0f ? 65504.0f : hi < -65504.0f ? -65504.0f : hi;
    lo = add_rn(lo, 0); /* -0 becomes 0 */
    hi = add_rn(hi, 0);
    step = div_rn(add_rn(hi, -lo), steps);
    meta[0] = half_of(step);
    if (meta[0] == 0 && hi > lo) {
        meta[0] = 1;
    }
    meta[1] = half_of(narrow ? add_rn(lo, step) : lo);
}

TR_HD uint8_t
code_of(float x, uint16_t scale, uint16_t zero, uint32_t bits)
{
    float top = (float) ((1u << bits) - 1), q;
    uint32_t u;

    if (scale == 0) {
        return 0;
    }
    q = div_rn(add_rn(x, -float_of(zero)), float_of(scale));
    q = q > 0 ? q : 0; /* NaN, too */
    q = q < top ? q : top;
    q = add_rn(q, 12582912.0f); /* now its last bits are the nearest integer */
    memcpy(&u, &q, 4);
    return (uint8_t) u;
}

/* Fewer bits; see kernels.h. */
TR_HD uint8_t
code_downgrade(uint32_t q, uint32_t from, uint32_t to, bool narrow)
{
    if (from == 8) {
        q = (q + 8) / 17;
    }
    if (to == 2 && narrow) {
        q = ((q < 2 ? 2 : q) - 2) / 3;
        q = q > 3 ? 3 : q;
    } else if (to == 2) {
        q = (q + 2) / 5;
    }
    return (uint8_t) q;
}

TR_HD void
meta_downgrade(const uint16_t *meta, uint16_t *out, uint32_t from, uint32_t to,
               bool narrow)
{
    uint16_t scale = meta[0], zero = meta[1];

    if (from == 8) {
        scale = half_of(mul_rn(float_of(scale), 17));
    }
    if (to == 2) {
        scale = half_of(mul_rn(float_of(scale), narrow ? 3 : 5));
    }
    if (to == 2 && narrow) {
        zero = half_of(add_rn(float_of(zero), float_of(scale)));
    }
    out[0] = scale;
    out[1] = zero;
}

/* ---- codes to their places ---------------------------------------------- */

/* Four codes of a word: those of even dimensions together, odd ones `far`
 * bits on (kv_layout.h, tr_kv_key_code). */
TR_HD uint32_t
codes_join(uint32_t x, uint32_t bits, uint32_t far)
{
    uint32_t m = (1u << bits) - 1, y = x >> 8;

    return (x & m) | (x >> (16 - bits) & m << bits)
           | ((y & m) | (y >> (16 - bits) & m << bits)) << far;
}

/* Stores the codes of a key, word by word. */
TR_HD void
key_pack(warp_t w, place_t p, const uint8_t *codes, uint32_t dim, uint32_t bits)
{
    uint32_t quarter = dim / 4, unit = 32 / bits, n = dim * bits / 16;
    bool half = quarter % unit != 0; /* 2 bits, head size 96: half words */

    unit = half ? 8 : unit;
    for (uint32_t u = w.lane; u < dim / unit; u += w.lanes) {
        const uint32_t *x = (const uint32_t *) (codes + u * unit);
        uint32_t d = u * unit, word = x[0], j;
        uint8_t *at;

        if (bits < 8) {
            word = 0;
            for (uint32_t i = 0; i < unit / 4; i++) {
                word |= codes_join(x[i], bits, unit * bits / 2)
                        << (2 * bits * i);
            }
        }
        j = p.at % 16 / 8 * (n / 2) + d % quarter / unit * (unit * bits / 8);
        at = p.page
             + tr_kv_lane_byte(p.at / 16, p.at % 8 * 4 + d / quarter, n, j);
        if (half) {
            *(uint16_t *) at = (uint16_t) word;
        } else {
            *(uint32_t *) at = word;
        }
    }
}

/* Stores the codes of a value: half words, which at 2 bits are shared with the
 * token 8 places off.  No other warp may be at that tile of 16 tokens. */
TR_HD void
value_pack(warp_t w, place_t p, const uint8_t *codes, uint32_t dim,
           uint32_t bits)
{
    uint32_t words = bits == 8 ? dim / 16 : dim / 32, n = dim * bits / 16;
    uint32_t r = p.at % 16 / 8, shift = bits == 2 ? 4 * r : 0;

    for (uint32_t i = w.lane; i < 8 * words; i += w.lanes) {
        uint32_t k = i / 8, g = i % 8, x;
        uint32_t j = (bits == 2 ? 0 : r * (n / 2)) + 4 * k;
        uint16_t *at = (uint16_t *) (p.page + p.layout->value
                                     + tr_kv_lane_byte(p.at / 16,
                                                       p.at % 8 / 2 * 8 + g, n,
                                                       j)
                                     + p.at % 2 * 2);

        if (bits == 8) {
            x = codes[16 * k + g] | (uint32_t) codes[16 * k + 8 + g] << 8;
        } else {
            x = codes[32 * k + g] | (uint32_t) codes[32 * k + 8 + g] << bits
                | (codes[32 * k + 16 + g]
                   | (uint32_t) codes[32 * k + 24 + g] << bits)
                      << 8;
        }
        if (bits == 2) {
            x = (*at & ~(0x0f0fu << shift)) | x << shift;
        }
        *at = (uint16_t) x;
    }
}

/* Calls f with head size and bits as constants where they are common. */
#define PACK_CASE(f, dim, bits)          \
    case (dim) << 4 | (bits):            \
        f(w, p, room->codes, dim, bits); \
        break;
#define PACK_CASES(f, dim) \
    PACK_CASE(f, dim, 8) PACK_CASE(f, dim, 4) PACK_CASE(f, dim, 2)
#define PACK_BY_SHAPE(f)                 \
    switch (dim << 4 | bits) {           \
        PACK_CASES(f, 64u)               \
        PACK_CASES(f, 128u)              \
    default:                             \
        f(w, p, room->codes, dim, bits); \
    }

/* Stores what is in the room; the warp has met before and meets after. */
TR_HD void
side_pack(warp_t w, place_t p, side_t s, const token_room_t *room)
{
    uint32_t dim = p.layout->head_dim, bits = side_bits(p.layout, s);

    lanes_sync(w);
    if (s == KEY) {
        PACK_BY_SHAPE(key_pack)
    } else {
        PACK_BY_SHAPE(value_pack)
    }
    lanes_sync(w);
}

/* ---- in, and about ------------------------------------------------------ */

/* Stores the numbers room->x, each lane its own; by token. */
TR_HD void
side_put(warp_t w, place_t to, side_t s, token_room_t *room)
{
    const tr_kv_layout_t *l = to.layout;
    uint32_t dim = l->head_dim, bits = side_bits(l, s);
    bool narrow = bits == 2 && l->level.narrow;

    if (bits == 16) {
        for (uint32_t d = w.lane; d < dim; d += w.lanes) {
            side_row(to, s)[d] = half_of(room->x[d]);
        }
        lanes_sync(w);
        return;
    }
    for (uint32_t j = 0; j < side_groups(l, s); j++) {
        float lo = INFINITY, less = INFINITY; /* less: of the negatives */
        uint16_t meta[2];

        for (uint32_t d = w.lane; d < dim; d += w.lanes) {
            if (side_group(l, s, d) == j) {
                lo = fminf(lo, room->x[d]);
                less = fminf(less, -room->x[d]);
            }
        }
        group_meta(lanes_least(w, lo), -lanes_least(w, less), bits, narrow,
                   meta);
        for (uint32_t d = w.lane; d < dim; d += w.lanes) {
            if (side_group(l, s, d) == j) {
                room->codes[d] = code_of(room->x[d], meta[0], meta[1], bits);
            }
        }
        if (w.lane == 0) {
            uint16_t *at = (uint16_t *) (to.page
                                         + (s == KEY ? l->key_meta
                                                     : l->value_meta))
                           + 2 * (to.at * side_groups(l, s) + j);

            at[0] = meta[0];
            at[1] = meta[1];
        }
    }
    side_pack(w, to, s, room);
}

/* Equal grouping: codes stay, or are divided. */
TR_HD void
side_keep(warp_t w, place_t from, place_t to, side_t s, token_room_t *room)
{
    const tr_kv_layout_t *a = from.layout, *b = to.layout;
    uint32_t bits = side_bits(a, s), less = side_bits(b, s);
    uint32_t groups = side_groups(b, s);
    uint16_t *old = (uint16_t *) (from.page
                                  + (s == KEY ? a->key_meta : a->value_meta))
                    + 2 * from.at * groups;
    uint16_t *now = (uint16_t *) (to.page
                                  + (s == KEY ? b->key_meta : b->value_meta))
                    + 2 * to.at * groups;

    for (uint32_t d = w.lane; d < b->head_dim; d += w.lanes) {
        uint32_t q = side_code(from, s, d);

        room->codes[d] = bits == less ? (uint8_t) q
                                      : code_downgrade(q, bits, less,
                                                       b->level.narrow);
    }
    for (uint32_t j = w.lane; j < groups; j += w.lanes) {
        if (bits == less) {
            now[2 * j] = old[2 * j];
            now[2 * j + 1] = old[2 * j + 1];
        } else {
            meta_downgrade(old + 2 * j, now + 2 * j, bits, less,
                           b->level.narrow);
        }
    }
    side_pack(w, to, s, room);
}

/* Moves one side of a token; to a place by token. */
TR_HD void
side_move(warp_t w, place_t from, place_t to, side_t s, token_room_t *room)
{
    const tr_kv_layout_t *a = from.layout, *b = to.layout;
    bool same = side_groups(a, s) == side_groups(b, s)
                && !(s == KEY && a->level.by_channel);

    if (side_bits(b, s) == 16) {
        for (uint32_t d = w.lane; d < b->head_dim; d += w.lanes) {
            side_row(to, s)[d] = side_row(from, s)[d];
        }
        lanes_sync(w);
    } else if (side_bits(a, s) == 16 || !same) {
        for (uint32_t d = w.lane; d < b->head_dim; d += w.lanes) {
            room->x[d] = side_number(from, s, d);
        }
        side_put(w, to, s, room);
    } else {
        side_keep(w, from, to, s, room);
    }
}

/* ---- keys by channel ---------------------------------------------------- */

/* Are these a whole tile by channel, in order? */
TR_HD bool
tile_whole(const place_t *from)
{
    if (!from[0].layout->level.by_channel
        || from[0].at % TR_KV_CHANNEL_TOKENS != 0) {
        return false;
    }
    for (uint32_t i = 1; i < TR_KV_CHANNEL_TOKENS; i++) {
        if (from[i].page != from[0].page || from[i].at != from[0].at + i) {
            return false;
        }
    }
    return true;
}

/* A channel's pair: as it was when the tile is whole, else from its numbers. */
TR_HD void
channel_meta(const place_t *from, place_t to, uint32_t d, bool whole)
{
    uint32_t bits = from[0].layout->level.key_bits;
    uint32_t less = to.layout->level.key_bits;
    uint16_t *now = side_meta(to, KEY, d);
    float lo = INFINITY, hi = -INFINITY;

    if (whole) {
        const uint16_t *old = side_meta(from[0], KEY, d);

        if (bits == less) {
            now[0] = old[0];
            now[1] = old[1];
        } else {
            meta_downgrade(old, now, bits, less, false);
        }
        return;
    }
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++) {
        float x = side_number(from[i], KEY, d);

        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    group_meta(lo, hi, less, false, now);
}

/* Moves the keys of the TR_KV_CHANNEL_TOKENS tokens room->from to the places
 * from `to` on, which are by channel. */
TR_HD void
tile_move(warp_t w, place_t to, token_room_t *room)
{
    const place_t *from = room->from;
    uint32_t dim = to.layout->head_dim, less = to.layout->level.key_bits;
    bool whole = tile_whole(from);

    for (uint32_t d = w.lane; d < dim; d += w.lanes) {
        channel_meta(from, to, d, whole);
    }
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++, to.at++) {
        uint32_t bits = from[i].layout->level.key_bits;

        for (uint32_t d = w.lane; d < dim; d += w.lanes) {
            const uint16_t *meta = side_meta(to, KEY, d); /* the lane's own */

            if (!whole) {
                room->codes[d] = code_of(side_number(from[i], KEY, d), meta[0],
                                         meta[1], less);
                continue;
            }
            room->codes[d] = (uint8_t) side_code(from[i], KEY, d);
            if (bits != less) {
                room->codes[d] = code_downgrade(room->codes[d], bits, less,
                                                false);
            }
        }
        side_pack(w, to, KEY, room);
    }
}

/* May a token go from one layout to the other?  Bits never go up. */
TR_HD bool
token_goes(const tr_kv_layout_t *from, const tr_kv_layout_t *to)
{
    return from->level.key_bits >= to->level.key_bits
           && from->level.value_bits >= to->level.value_bits;
}

#endif
