/*
 * tile_fast.cuh: 16 tokens of a prompt at once, from 16 bits to a whole tile;
 * head size 128, one metadata group.  The bits of side_move, token by token.
 *
 * A lane has four dimensions.  Four rows are loaded together (with eight a
 * multiprocessor holds fewer warps, and is slower); their ends are
 * reduced across the warp, and lane i makes the metadata of row i.  Codes meet
 * in shared memory as the tile stands in its page, and leave 16 bytes a lane.
 */
#ifndef TR_CUDA_TILE_FAST_CUH
#define TR_CUDA_TILE_FAST_CUH

#include "token.cuh"
#include "token_fast.cuh"

#define FAST_ROWS 4u

/* What a warp works in that fills tiles. */
typedef struct {
    token_smem_t token;
    uint4 tile[128]; /* 16 tokens of 128 dimensions at 8 bits */
} tile_smem_t;

typedef struct {
    uint16_t h[4];
} __align__(8) row4_t;

/* The codes of row `token` of the tile, four dimensions a lane, into `tile`. */
template <uint32_t BITS>
TR_DEVICE void
fast_key(warp_t w, uint32_t x, uint32_t token, uint8_t *tile)
{
    const uint32_t n = FAST_DIM * BITS / 16;    /* bytes of a lane in a tile */
    uint32_t in = w.lane % 8, share = 8 / BITS; /* lanes of a word */

    if (BITS < 8) {
        x = codes_pack(x, BITS, 16) << (2 * BITS * (w.lane % share));
        x |= lanes_xor(w, x, 1);
    }
    if (BITS == 2) {
        x |= lanes_xor(w, x, 2);
    }
    if (w.lane % share == 0) {
        uint32_t j = token / 8 * (n / 2) + in / share * 4;

        *(uint32_t *) (tile
                       + tr_kv_lane_byte(token % 8 * 4 + w.lane / 8, n, j)) = x;
    }
}

template <uint32_t BITS>
TR_DEVICE void
fast_value(warp_t w, uint32_t x, uint32_t token, uint8_t *tile)
{
    const uint32_t n = FAST_DIM * BITS / 16;
    uint32_t r = token / 8, sixteen = w.lane / 4, row = w.lane / 2 % 2;
    uint32_t j = BITS == 8   ? r * (n / 2) + sixteen * 4
                 : BITS == 4 ? r * (n / 2) + sixteen / 2 * 4
                             : sixteen / 2 * 4;
    uint32_t first = 0, end = 4, byte = token % 2 * 2;

    if (BITS == 8) {
        byte += row;
    } else { /* dimensions d and d + 8 in one byte: each lane stores two */
        uint32_t y = lanes_xor(w, x, 2);

        x = row == 0 ? x | y << BITS : y | x << BITS;
        first = 2 * row;
        end = first + 2;
        byte += sixteen % 2;
    }
    for (uint32_t i = first; i < end; i++) {
        uint32_t g = w.lane % 2 * 4 + i, code = x >> (8 * i) & 0xff;
        uint8_t *at = tile + tr_kv_lane_byte(token % 8 / 2 * 8 + g, n, j)
                      + byte;

        if (BITS == 2 && r == 1) { /* the lane's own of token - 8 */
            *at = (uint8_t) (*at | code << 4);
        } else {
            *at = (uint8_t) code;
        }
    }
}

/* Rows [first, first + FAST_ROWS) of the tile. */
template <uint32_t BITS>
TR_DEVICE void
fast_rows(warp_t w, place_t to, side_t s, tile_smem_t *smem, uint32_t first)
{
    bool narrow = BITS == 2 && to.layout->level.narrow;
    float lo = 0, hi = 0, scale, zero, turn;
    uint8_t *tile = (uint8_t *) smem->tile;
    row4_t row[FAST_ROWS];
    uint16_t meta[2];

#pragma unroll
    for (uint32_t i = 0; i < FAST_ROWS; i++) {
        const uint16_t *x = side_row(smem->token.from[first + i], s);

        row[i] = ((const row4_t *) x)[w.lane];
    }
#pragma unroll
    for (uint32_t i = 0; i < FAST_ROWS; i++) {
        float a = INFINITY, b = -INFINITY;

        for (uint32_t e = 0; e < 4; e++) {
            a = fminf(a, float_of(row[i].h[e]));
            b = fmaxf(b, float_of(row[i].h[e]));
        }
        a = of_ordered(lanes_min(w, ordered(a)));
        b = of_ordered(lanes_max(w, ordered(b)));
        lo = w.lane == i ? a : lo;
        hi = w.lane == i ? b : hi;
    }
    group_meta(lo, hi, BITS, narrow, meta);
    if (w.lane < FAST_ROWS) {
        to.at += first + w.lane;
        *(uint32_t *) side_meta(to, s, 0) = meta[0] | (uint32_t) meta[1] << 16;
    }
    scale = float_of(meta[0]);
    zero = float_of(meta[1]);
    turn = meta[0] == 0 ? 0 : div_rn(1, scale);
#pragma unroll
    for (uint32_t i = 0; i < FAST_ROWS; i++) {
        float z = tr_float_from_bits(lanes_from(w, tr_float_bits(zero), i));
        float k = tr_float_from_bits(lanes_from(w, tr_float_bits(scale), i));
        float r = tr_float_from_bits(lanes_from(w, tr_float_bits(turn), i));
        float four[4];
        uint32_t x;

        for (uint32_t e = 0; e < 4; e++) {
            four[e] = float_of(row[i].h[e]);
        }
        x = fast_codes(four, z, k, r, BITS);
        if (s == KEY) {
            fast_key<BITS>(w, x, first + i, tile);
        } else {
            fast_value<BITS>(w, x, first + i, tile);
        }
    }
}

template <uint32_t BITS>
TR_DEVICE void
fast_tile(warp_t w, place_t to, side_t s, tile_smem_t *smem)
{
    uint4 *out = (uint4 *) (to.page + (s == KEY ? 0 : to.layout->value)
                            + tr_kv_tile_byte(to.layout, to.at));

    for (uint32_t i = 0; i < 16; i += FAST_ROWS) {
        fast_rows<BITS>(w, to, s, smem, i);
    }
    lanes_sync(w);
    for (uint32_t i = w.lane; i < FAST_DIM * BITS / 8; i += w.lanes) {
        out[i] = smem->tile[i];
    }
    lanes_sync(w);
}

/* Is this a tile for the functions above: smem->token.from[0, n) to the places
 * from `to` on? */
TR_DEVICE bool
fast_takes(warp_t w, place_t to, uint32_t n, side_t s, const tile_smem_t *smem)
{
    const tr_kv_layout_t *l = to.layout;
    uint32_t yes = 1;

    if (w.lanes != 32 || n != 16 || l->head_dim != FAST_DIM
        || side_bits(l, s) == 16 || side_groups(l, s) != 1
        || (s == KEY && l->level.by_channel)) {
        return false;
    }
    if (w.lane < n) {
        place_t p = smem->token.from[w.lane];

        yes = p.page != NULL && side_bits(p.layout, s) == 16;
    }
    return lanes_min(w, yes) == 1;
}

TR_DEVICE void
fast_fill(warp_t w, place_t to, side_t s, tile_smem_t *smem)
{
    switch (side_bits(to.layout, s)) {
    case 8:
        fast_tile<8>(w, to, s, smem);
        break;
    case 4:
        fast_tile<4>(w, to, s, smem);
        break;
    default:
        fast_tile<2>(w, to, s, smem);
    }
}

#endif
