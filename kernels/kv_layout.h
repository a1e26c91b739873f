/*
 * kv_layout.h: what stands where in a page of the KV cache.
 *
 * All pages of an engine have one size.  When a page is given out it is
 * configured for one level: how many bits a key and a value have, and what
 * metadata goes with them.  A level has one layout (DiffKV, SOSP 2025, section
 * 5.2, "Unified Pages"): tiles of 16 tokens, of which a kernel takes one in a
 * single copy, and behind them segments of the whole page:
 *
 *   tile       key codes | value codes | key metadata | value metadata
 *   page       tiles | key metadata by channel | scores, FP32 sums
 *                    | positions, u32 or, below TR_KV_SHORT, u16
 *   uncompressed
 *   page       keys | values | scores | recent scores | min/max
 *
 * Metadata is FP16 {scale, zero}: x = code * scale + zero.  It is kept by token
 * (one pair for each group of a token's dimensions) or, for keys, by channel
 * (one pair for each dimension of TR_KV_CHANNEL_TOKENS tokens).  16-bit codes
 * are FP16 rows [tokens][head_dim] and have none; where keys and values both
 * are (an uncompressed page), all keys stand in front of all values.
 *
 * Codes of 8, 4 and 2 bits stand where a tensor core wants them: in each tile
 * the words of lane 0, 1, .. 31 as m16n8k16 takes its A operand, in chunks of
 * up to 16 bytes a lane.  tr_kv_key_code and tr_kv_value_code are the
 * definition; fast code is tested against them.
 *
 *   keys    A = K[token, dim]: lane 4g + t has tokens g, g + 8 of the tile and
 *           dimensions [t D/4, (t + 1) D/4)
 *   values  A = V^T[dim, token]: place 8t + g has dimensions g, g + 8 of every
 *           16 and tokens 2t, 2t + 1, 2t + 8, 2t + 9
 */
#ifndef TR_KV_LAYOUT_H
#define TR_KV_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "dtype.h"

#define TR_KV_LAYOUTS_MAX 12 /* levels of one engine, uncompressed included */
#define TR_KV_CHANNEL_TOKENS 32u /* tokens that share a channel's metadata */
#define TR_KV_SHORT 65536u       /* positions below have 2 bytes, not 4 */

/* How a token is stored.  Two levels are the same when all fields are. */
typedef struct {
    uint8_t key_bits, value_bits; /* 16, 8, 4 or 2 */
    uint8_t key_groups;           /* metadata pairs a key; 1, 2, 4 */
    uint8_t value_groups;         /* metadata pairs a value; divides D/16 */
    uint8_t by_channel;           /* key metadata by channel: key_groups is 1 */
    uint8_t scored;               /* with scores and positions */
    uint8_t narrow;               /* 2-bit codes span the middle three fifths
                                   * of a group (kernels.h); by token alone */
    uint8_t placed;               /* with positions, if not scored */
} tr_kv_level_t;

#define TR_KV_TILE 16u /* tokens */

/* Offsets in bytes from the start of the page, of the first tile where there
 * are tiles; 0 for what the level does not have (key codes are always
 * first). */
typedef struct {
    tr_kv_level_t level;
    uint32_t head_dim;
    uint32_t tokens; /* in a page */
    uint32_t tile;   /* bytes from one tile of TR_KV_TILE tokens to the next */
    uint32_t key_meta;
    uint32_t value;
    uint32_t value_meta;
    uint32_t score;    /* float [tokens] */
    uint32_t position; /* [tokens], tr_kv_position_at; none if uncompressed */
    uint32_t position_bytes; /* of one: 2 or 4 */
    uint32_t recent; /* float [tokens]; uncompressed pages only (kernels.h) */
    uint32_t minmax; /* FP16 [2][head_dim], smallest and largest key of the
                        * page by channel; uncompressed pages only */
} tr_kv_layout_t;

/* The layouts of an engine.  layout[0] is the uncompressed one: 16-bit pages in
 * which prompts stand while they are computed, and in which `full` leaves
 * them. */
typedef struct {
    uint32_t page_bytes; /* multiple of 128 */
    uint32_t n;
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
} tr_page_plan_t;

typedef struct {
    uint32_t head_dim; /* a multiple of 16; of 32 with levels below 16 bits */
    const tr_kv_level_t *levels; /* [n_levels] of tiers and windows, distinct */
    uint32_t n_levels;           /* 0: all is uncompressed */
    bool uncompressed_scored;    /* uncompressed pages carry score and recent */
    bool uncompressed_minmax;
    bool short_positions; /* all are below TR_KV_SHORT */
} tr_page_spec_t;

/* Chooses the page size: a multiple of 128 between 96 head sizes (6 KiB at
 * least, 12 at most) and 24 KiB that wastes least, summed over `levels` and a
 * little of the uncompressed layout; the smallest of equals.  Wasted is what is
 * left over in each page, half of the last page of a tier of 2,048 tokens, or
 * 1,024 where there are two levels or more, and a tenth of those tiles that a
 * GPU attends to alone (kv_layout.c).  Tokens a page are multiples of 16 (8
 * with 16-bit keys and values, 32 by channel).  0, or -1: a level or head size
 * outside what is said above. */
int tr_page_plan(const tr_page_spec_t *spec, tr_page_plan_t *out);

/* Bytes a token, everything included: page_bytes / tokens. */
TR_HD double
tr_kv_layout_token_bytes(const tr_page_plan_t *plan, uint32_t i)
{
    return (double) plan->page_bytes / plan->layout[i].tokens;
}

TR_HD bool
tr_kv_level_equal(const tr_kv_level_t *a, const tr_kv_level_t *b)
{
    return a->key_bits == b->key_bits && a->value_bits == b->value_bits
           && a->key_groups == b->key_groups
           && a->value_groups == b->value_groups
           && a->by_channel == b->by_channel && a->scored == b->scored
           && a->narrow == b->narrow && a->placed == b->placed;
}

/* Where a code stands: byte of the page, and how far to shift that byte. */
typedef struct {
    uint32_t byte;
    uint32_t shift;
} tr_kv_code_t;

/* The tile of a token of the page begins so many bytes behind the first. */
TR_HD uint32_t
tr_kv_tile_byte(const tr_kv_layout_t *l, uint32_t token)
{
    return token / TR_KV_TILE * l->tile;
}

/* Byte of the row of a 16-bit key. */
TR_HD uint32_t
tr_kv_key_row(const tr_kv_layout_t *l, uint32_t token)
{
    return tr_kv_tile_byte(l, token) + token % TR_KV_TILE * l->head_dim * 2;
}

TR_HD uint32_t
tr_kv_value_row(const tr_kv_layout_t *l, uint32_t token)
{
    return l->value + tr_kv_key_row(l, token);
}

/* Where tiles end, or uncompressed values. */
TR_HD uint32_t
tr_kv_tiles_end(const tr_kv_layout_t *l)
{
    return l->level.key_bits == 16 && l->level.value_bits == 16
               ? l->value + l->tokens * l->head_dim * 2
               : l->tokens / TR_KV_TILE * l->tile;
}

/* Byte j of a lane's `n` bytes of a tile, in chunks of a power of two. */
TR_HD uint32_t
tr_kv_lane_byte(uint32_t lane, uint32_t n, uint32_t j)
{
    uint32_t chunk = n & (0u - n);

    chunk = chunk > 16 ? 16 : chunk;
    return j / chunk * (32 * chunk) + lane * chunk + j % chunk;
}

/* One of a page's positions, of 2 or 4 bytes, aligned. */
TR_HD uint32_t
tr_kv_position_load(const uint8_t *at, uint32_t bytes)
{
    return bytes == 2 ? *(const uint16_t *) (const void *) at
                      : *(const uint32_t *) (const void *) at;
}

/* The position of a token of the page, in layouts that have them. */
TR_HD uint32_t
tr_kv_position_at(const tr_kv_layout_t *l, const uint8_t *page, uint32_t token)
{
    return tr_kv_position_load(page + l->position + token * l->position_bytes,
                               l->position_bytes);
}

TR_HD void
tr_kv_position_put(const tr_kv_layout_t *l, uint8_t *page, uint32_t token,
                   uint32_t position)
{
    page += l->position + token * l->position_bytes;
    if (l->position_bytes == 2) {
        *(uint16_t *) (void *) page = (uint16_t) position;
    } else {
        *(uint32_t *) (void *) page = position;
    }
}

/* Key code of (token of the page, dimension); not for 16 bits. */
TR_HD tr_kv_code_t
tr_kv_key_code(const tr_kv_layout_t *l, uint32_t token, uint32_t dim)
{
    uint32_t bits = l->level.key_bits, quarter = l->head_dim / 4;
    uint32_t n = l->head_dim * bits / 16; /* bytes of a lane in a tile */
    uint32_t g = token % 8, r = token % 16 / 8;
    uint32_t t = dim / quarter, d = dim % quarter;
    uint32_t unit = 32 / bits; /* dimensions of a word */
    uint32_t i, bit, j;

    if (quarter % unit != 0) { /* 2 bits, head size 96: half words */
        unit = 8;
    }
    i = d % unit;
    if (bits == 8) {
        bit = i * 8;
    } else { /* dimensions 4k, 4k + 1 a half word apart, as one mask wants */
        bit = (i & 1) * (unit * bits / 2) + i / 4 * (2 * bits)
              + (i % 4 >> 1) * bits;
    }
    j = r * (n / 2) + d / unit * (unit * bits / 8) + bit / 8;
    return (tr_kv_code_t){
        tr_kv_tile_byte(l, token) + tr_kv_lane_byte(g * 4 + t, n, j), bit % 8
    };
}

/* Value code of (token of the page, dimension); not for 16 bits. */
TR_HD tr_kv_code_t
tr_kv_value_code(const tr_kv_layout_t *l, uint32_t token, uint32_t dim)
{
    uint32_t bits = l->level.value_bits;
    uint32_t n = l->head_dim * bits / 16;
    uint32_t r = token % 16 / 8, t = token % 8 / 2, x = token & 1;
    uint32_t i = dim / 16, row = dim % 16 / 8, g = dim % 8;
    uint32_t bit, j;

    if (bits == 8) {
        bit = x * 16 + row * 8;
        j = r * (n / 2) + i * 4;
    } else if (bits == 4) {
        bit = x * 16 + (i & 1) * 8 + row * 4;
        j = r * (n / 2) + i / 2 * 4;
    } else { /* four tokens a word */
        bit = x * 16 + (i & 1) * 8 + r * 4 + row * 2;
        j = i / 2 * 4;
    }
    j += bit / 8;
    return (tr_kv_code_t){ l->value + tr_kv_tile_byte(l, token)
                               + tr_kv_lane_byte(t * 8 + g, n, j),
                           bit % 8 };
}

TR_HD uint32_t
tr_kv_code_get(const uint8_t *page, tr_kv_code_t at, uint32_t bits)
{
    return (page[at.byte] >> at.shift) & ((1u << bits) - 1);
}

TR_HD void
tr_kv_code_set(uint8_t *page, tr_kv_code_t at, uint32_t bits, uint32_t code)
{
    uint32_t mask = ((1u << bits) - 1) << at.shift;

    page[at.byte] = (uint8_t) ((page[at.byte] & ~mask) | (code << at.shift));
}

/* Byte of the {scale, zero} that a key's dimension uses.  Group j of M = the
 * dimensions with (d mod D/4) div (D/4M) = j, so that each lane has all. */
TR_HD uint32_t
tr_kv_key_meta(const tr_kv_layout_t *l, uint32_t token, uint32_t dim)
{
    uint32_t quarter = l->head_dim / 4, m = l->level.key_groups;

    if (l->level.by_channel) {
        return l->key_meta
               + (token / TR_KV_CHANNEL_TOKENS * l->head_dim + dim) * 4;
    }
    return l->key_meta + tr_kv_tile_byte(l, token)
           + (token % TR_KV_TILE * m + dim % quarter / (quarter / m)) * 4;
}

/* Group j of M of a value = the dimensions [j D/M, (j + 1) D/M). */
TR_HD uint32_t
tr_kv_value_meta(const tr_kv_layout_t *l, uint32_t token, uint32_t dim)
{
    uint32_t m = l->level.value_groups;

    return l->value_meta + tr_kv_tile_byte(l, token)
           + (token % TR_KV_TILE * m + dim / (l->head_dim / m)) * 4;
}

#endif
