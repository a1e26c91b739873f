/*
 * token_codes.cuh: numbers to codes and metadata, fewer bits, and codes to the
 * words of a page: the same bits as kv_quant.h and kv_codes.h in kernels/cpu/kv.
 */
#ifndef TR_CUDA_TOKEN_CODES_CUH
#define TR_CUDA_TOKEN_CODES_CUH

#include "token_page.cuh"

/* ---- quantising --------------------------------------------------------- */

/* {scale, zero} of a group with these ends; lo > hi: nothing but NaN
 * (kernels/cpu/kv/kv_quant.h). */
TR_DEVICE void
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

TR_DEVICE uint8_t
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
TR_DEVICE uint8_t
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

TR_DEVICE void
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
TR_DEVICE uint32_t
codes_pack(uint32_t x, uint32_t bits, uint32_t far)
{
    uint32_t m = (1u << bits) - 1, y = x >> 8;

    return (x & m) | (x >> (16 - bits) & m << bits)
           | ((y & m) | (y >> (16 - bits) & m << bits)) << far;
}

/* Stores the codes of a key, word by word. */
TR_DEVICE void
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
                word |= codes_pack(x[i], bits, unit * bits / 2)
                        << (2 * bits * i);
            }
        }
        j = p.at % 16 / 8 * (n / 2) + d % quarter / unit * (unit * bits / 8);
        at = p.page + tr_kv_tile_byte(p.layout, p.at)
             + tr_kv_lane_byte(p.at % 8 * 4 + d / quarter, n, j);
        if (half) {
            *(uint16_t *) at = (uint16_t) word;
        } else {
            *(uint32_t *) at = word;
        }
    }
}

/* Stores the codes of a value: half words, which at 2 bits are shared with the
 * token 8 places off.  No other warp may be at that tile of 16 tokens. */
TR_DEVICE void
value_pack(warp_t w, place_t p, const uint8_t *codes, uint32_t dim,
           uint32_t bits)
{
    uint32_t words = bits == 8 ? dim / 16 : dim / 32, n = dim * bits / 16;
    uint32_t r = p.at % 16 / 8, shift = bits == 2 ? 4 * r : 0;

    for (uint32_t i = w.lane; i < 8 * words; i += w.lanes) {
        uint32_t k = i / 8, g = i % 8, x;
        uint32_t j = (bits == 2 ? 0 : r * (n / 2)) + 4 * k;
        uint16_t *at = (uint16_t *) (p.page + p.layout->value
                                     + tr_kv_tile_byte(p.layout, p.at)
                                     + tr_kv_lane_byte(p.at % 8 / 2 * 8 + g, n,
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
        f(w, p, smem->codes, dim, bits); \
        break;
#define PACK_CASES(f, dim) \
    PACK_CASE(f, dim, 8) PACK_CASE(f, dim, 4) PACK_CASE(f, dim, 2)
#define PACK_BY_SHAPE(f)                 \
    switch (dim << 4 | bits) {           \
        PACK_CASES(f, 64u)               \
        PACK_CASES(f, 128u)              \
    default:                             \
        f(w, p, smem->codes, dim, bits); \
    }

/* Stores what is in shared memory; the warp has met before and meets after. */
TR_DEVICE void
side_pack(warp_t w, place_t p, side_t s, const token_smem_t *smem)
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

#endif
