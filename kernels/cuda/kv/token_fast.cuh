/*
 * token_fast.cuh: one token of head size 128, with one metadata group a side,
 * by a whole warp that keeps its numbers and codes in registers: the bits of
 * side_put and side_move (token.cuh) in a tenth of the instructions.
 *
 * A lane has four dimensions, and their codes as the bytes of a word.  Of a key
 * they are 4 l .. 4 l + 3: a word of the page at 8 bits, a half or a quarter of
 * one at fewer.  Of a value they are g, g + 8, g + 16, g + 24 of every 32,
 * g = l % 8: at 4 and 2 bits a half word, at 8 bits two of them.  So a value's
 * codes go from one number of bits to another without other lanes.
 *
 * A code is a quotient rounded twice, to FP32 and to an integer.  The product
 * with the reciprocal is within 1e-4 of it, which decides, but near the middle
 * of two integers; there the quotient itself is taken.
 */
#ifndef TR_CUDA_TOKEN_FAST_CUH
#define TR_CUDA_TOKEN_FAST_CUH

#include "token_codes.cuh"

#define FAST_DIM 128u

/* Is a layout one of those? */
TR_DEVICE bool
fast_layout(const tr_kv_layout_t *l)
{
    const tr_kv_level_t *v = &l->level;

    return l->head_dim == FAST_DIM && v->key_bits < 16 && v->value_bits < 16
           && v->key_groups == 1 && v->value_groups == 1 && !v->by_channel;
}

/* The token's {scale, zero}, as one word. */
TR_DEVICE uint32_t *
fast_meta(place_t p, side_t s)
{
    uint32_t at = s == KEY ? p.layout->key_meta : p.layout->value_meta;

    return (uint32_t *) (p.page + at + tr_kv_tile_byte(p.layout, p.at))
           + p.at % TR_KV_TILE;
}

/* ---- numbers to codes --------------------------------------------------- */

/* A number that is not NaN, as an integer of the same order. */
TR_DEVICE uint32_t
ordered(float x)
{
    uint32_t u = tr_float_bits(x);

    return u >> 31 ? ~u : u | 0x80000000u;
}

TR_DEVICE float
of_ordered(uint32_t u)
{
    return tr_float_from_bits(u >> 31 ? u & 0x7fffffffu : ~u);
}

/* The ends of a warp's numbers, four a lane; lo > hi: nothing but NaN. */
TR_DEVICE void
fast_ends(warp_t w, const float *x, float *lo, float *hi)
{
    float a = INFINITY, b = -INFINITY;

#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        a = fminf(a, x[e]);
        b = fmaxf(b, x[e]);
    }
    *lo = of_ordered(lanes_min(w, ordered(a)));
    *hi = of_ordered(lanes_max(w, ordered(b)));
}

/* The codes of four numbers: code_of for a scale with the reciprocal `turn`,
 * which are both 0 for scale 0. */
TR_DEVICE uint32_t
fast_codes(const float *x, float zero, float scale, float turn, uint32_t bits)
{
    const float top = (float) ((1u << bits) - 1), magic = 12582912.0f;
    float n[4], far = 0; /* far: from the nearest integer, the farthest */

#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        float q = mul_rn(add_rn(x[e], -zero), turn);

        q = fminf(fmaxf(q, 0), top); /* NaN is 0 */
        n[e] = add_rn(q, magic);
        far = fmaxf(far, fabsf(add_rn(q, -add_rn(n[e], -magic))));
    }
    if (far > 0.4999f) {
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            float q = div_rn(add_rn(x[e], -zero), scale);

            n[e] = add_rn(fminf(fmaxf(q, 0), top), magic);
        }
    }
    return (tr_float_bits(n[0]) & 0xff) | (tr_float_bits(n[1]) & 0xff) << 8
           | (tr_float_bits(n[2]) & 0xff) << 16 | tr_float_bits(n[3]) << 24;
}

/* code_downgrade of four codes. */
TR_DEVICE uint32_t
fast_downgrade(uint32_t x, uint32_t from, uint32_t to, bool narrow)
{
    if (from == 8) { /* (q + 8) / 17, two codes at a time: 241 / 4096 */
        uint32_t a = ((x & 0x00ff00ffu) + 0x00080008u) * 241;
        uint32_t b = ((x >> 8 & 0x00ff00ffu) + 0x00080008u) * 241;

        x = (a >> 12 & 0x000f000fu) | (b >> 12 & 0x000f000fu) << 8;
    }
    if (to == 2 && narrow) {
        uint32_t y = 0;

#pragma unroll
        for (uint32_t e = 0; e < 32; e += 8) {
            y |= (uint32_t) code_downgrade(x >> e & 15, 4, 2, true) << e;
        }
        return y;
    }
    if (to == 2) { /* (q + 2) / 5: 13 / 64 */
        x = (x + 0x02020202u) * 13 >> 6 & 0x03030303u;
    }
    return x;
}

/* ---- codes in a page ---------------------------------------------------- */

/* Where a token's codes begin, and how far on the lane's are: a word of a key,
 * which lanes share below 8 bits; a half word of a value, at 8 bits also the
 * one after the next. */
TR_DEVICE uint8_t *
fast_base(place_t p, side_t s, uint32_t bits)
{
    uint32_t half = 4 * bits; /* bytes of a place of a tile, of one token */
    uint32_t j = s == VALUE && bits == 2 ? 0 : p.at % 16 / 8 * half;
    uint32_t place = s == KEY ? p.at % 8 * 4 : p.at % 8 / 2 * 8;

    if (s == VALUE) {
        p.page += p.layout->value + p.at % 2 * 2;
    }
    return p.page + tr_kv_tile_byte(p.layout, p.at) + j / 16 * 512 + j % 16
           + place * 16;
}

TR_DEVICE uint32_t
fast_lane(warp_t w, side_t s, uint32_t bits)
{
    uint32_t j = s == KEY ? w.lane % 8 * bits / 8 * 4
                          : w.lane / 8 * (bits == 8 ? 8 : 4);

    return j / 16 * 512 + j % 16 + (s == KEY ? w.lane / 8 : w.lane % 8) * 16;
}

/* What is there. */
TR_DEVICE uint32_t
fast_load(const uint8_t *at, side_t s, uint32_t bits)
{
    uint32_t u;

    if (s == KEY) {
        return *(const uint32_t *) at;
    }
    u = *(const uint16_t *) at;
    return bits == 8 ? u | (uint32_t) ((const uint16_t *) at)[2] << 16 : u;
}

/* The lane's codes out of it. */
TR_DEVICE uint32_t
fast_open(warp_t w, uint32_t u, uint32_t token, side_t s, uint32_t bits)
{
    uint32_t m = (1u << bits) - 1;
    uint32_t a = s == KEY ? 16 : bits, b = s == KEY ? bits : 8;

    if (bits == 8) {
        return u;
    }
    if (s == KEY) {
        u >>= 2 * bits * (w.lane & (8 / bits - 1));
    } else if (bits == 2) {
        u >>= token % 16 / 8 * 4;
    }
    return (u & m) | (u >> a & m) << 8 | (u >> b & m) << 16
           | (u >> (a + b) & m) << 24;
}

/* Stores the lane's codes x; `was`: what fast_load found at `at`, of a value of
 * 2 bits, whose half words two tokens share. */
TR_DEVICE void
fast_store(warp_t w, uint8_t *at, uint32_t token, side_t s, uint32_t bits,
           uint32_t x, uint32_t was)
{
    uint32_t m = (1u << bits) - 1, share = 8 / bits, shift;

    if (s == KEY) {
        if (bits < 8) {
            x = codes_pack(x, bits, 16) << (2 * bits * (w.lane & (share - 1)));
            x |= lanes_xor(w, x, 1);
        }
        if (bits == 2) {
            x |= lanes_xor(w, x, 2);
        }
        if ((w.lane & (share - 1)) == 0) {
            *(uint32_t *) at = x;
        }
        return;
    }
    if (bits == 8) {
        ((uint16_t *) at)[2] = (uint16_t) (x >> 16);
    } else {
        x = (x & m) | (x >> 8 & m) << bits | (x >> 16 & m) << 8
            | (x >> 24) << (8 + bits);
    }
    if (bits == 2) {
        shift = token % 16 / 8 * 4;
        x = (was & ~(0x0f0fu << shift)) | x << shift;
    }
    *(uint16_t *) at = (uint16_t) x;
}

/* ---- in ----------------------------------------------------------------- */

/* side_put of the lane's four numbers. */
TR_DEVICE void
fast_put(warp_t w, place_t to, side_t s, const float *x)
{
    uint32_t bits = side_bits(to.layout, s), was = 0, codes;
    uint8_t *at = fast_base(to, s, bits) + fast_lane(w, s, bits);
    float lo, hi, scale;
    uint16_t meta[2];

    if (s == VALUE && bits == 2) {
        was = fast_load(at, s, bits);
    }
    fast_ends(w, x, &lo, &hi);
    group_meta(lo, hi, bits, bits == 2 && to.layout->level.narrow, meta);
    scale = float_of(meta[0]);
    codes = fast_codes(x, float_of(meta[1]), scale,
                       meta[0] == 0 ? 0 : div_rn(1, scale), bits);
    if (w.lane == 0) {
        *fast_meta(to, s) = meta[0] | (uint32_t) meta[1] << 16;
    }
    fast_store(w, at, to.at, s, bits, codes, was);
}

#endif
