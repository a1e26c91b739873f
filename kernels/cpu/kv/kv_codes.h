/*
 * Key and value codes between a token's own arrays and the words of a page
 * (kv_layout.h).  tr_kv_key_code and tr_kv_value_code define where a code
 * stands; here eight codes at a time take their places.  Everything is inline
 * and takes its shape as arguments, so that a caller who names head size and
 * bits gets straight code.
 *
 *   codes   one byte each, by dimension
 *   stripe  the bytes of one token, as they stand in its page, one piece after
 *           the other: what a token takes along when it moves at equal bits
 */
#ifndef TR_KV_CODES_H
#define TR_KV_CODES_H

#include "kernels/kv_layout.h"
#include "kernels/operands.h"

#define TR_INLINE static inline __attribute__((always_inline))

/* A token's codes, and its stripe, have at most so many bytes. */
#define TR_CODES_MAX TR_HEAD_DIM_MAX

TR_INLINE uint64_t
load64(const uint8_t *p)
{
    uint64_t x;

    memcpy(&x, p, 8);
    return x;
}

/* Eight 4-bit codes: even dimensions in the lower half word. */
TR_INLINE uint32_t
nibbles_pack(uint64_t x)
{
    uint64_t even = x & 0x000f000f000f000f, odd = x >> 8 & 0x000f000f000f000f;

    even = (even | even >> 12) & 0x000000ff000000ff;
    odd = (odd | odd >> 12) & 0x000000ff000000ff;
    return (uint32_t) ((even | even >> 24) & 0xffff)
           | (uint32_t) (odd | odd >> 24) << 16;
}

TR_INLINE uint64_t
nibbles_unpack(uint32_t w)
{
    uint64_t even = w & 0xffff, odd = w >> 16;

    even = (even | even << 24) & 0x000000ff000000ff;
    even = (even | even << 12) & 0x000f000f000f000f;
    odd = (odd | odd << 24) & 0x000000ff000000ff;
    odd = (odd | odd << 12) & 0x000f000f000f000f;
    return even | odd << 8;
}

/* Eight 2-bit codes: even dimensions in the lower byte. */
TR_INLINE uint32_t
pairs_pack(uint64_t x)
{
    uint64_t even = x & 0x0003000300030003, odd = x >> 8 & 0x0003000300030003;

    even = (even | even >> 14) & 0x0000000f0000000f;
    odd = (odd | odd >> 14) & 0x0000000f0000000f;
    return (uint32_t) ((even | even >> 28) & 0xff)
           | (uint32_t) ((odd | odd >> 28) & 0xff) << 8;
}

TR_INLINE uint64_t
pairs_unpack(uint32_t w)
{
    uint64_t even = w & 0xff, odd = w >> 8 & 0xff;

    even = (even | even << 28) & 0x0000000f0000000f;
    even = (even | even << 14) & 0x0003000300030003;
    odd = (odd | odd << 28) & 0x0000000f0000000f;
    odd = (odd | odd << 14) & 0x0003000300030003;
    return even | odd << 8;
}

/* Do 2-bit keys stand in whole words of 16 dimensions? (else half words) */
TR_INLINE bool
key_words(uint32_t dim)
{
    return dim / 4 % 16 == 0;
}

/* codes [dim] -> stripe [dim * bits / 8] */
TR_INLINE void
key_pack(uint32_t dim, uint32_t bits, const uint8_t *codes, uint8_t *stripe)
{
    if (bits == 8) {
        memcpy(stripe, codes, dim);
        return;
    }
    for (uint32_t i = 0; i < dim / 8; i++) {
        uint64_t x = load64(codes + 8 * i);

        if (bits == 4) {
            uint32_t w = nibbles_pack(x);

            memcpy(stripe + 4 * i, &w, 4);
            continue;
        }
        uint32_t w = pairs_pack(x);

        if (key_words(dim)) { /* bytes: even, even, odd, odd */
            stripe[i / 2 * 4 + i % 2] = (uint8_t) w;
            stripe[i / 2 * 4 + i % 2 + 2] = (uint8_t) (w >> 8);
        } else {
            stripe[2 * i] = (uint8_t) w;
            stripe[2 * i + 1] = (uint8_t) (w >> 8);
        }
    }
}

TR_INLINE void
key_unpack(uint32_t dim, uint32_t bits, const uint8_t *stripe, uint8_t *codes)
{
    if (bits == 8) {
        memcpy(codes, stripe, dim);
        return;
    }
    for (uint32_t i = 0; i < dim / 8; i++) {
        uint64_t x;

        if (bits == 4) {
            uint32_t w;

            memcpy(&w, stripe + 4 * i, 4);
            x = nibbles_unpack(w);
        } else if (key_words(dim)) {
            x = pairs_unpack(stripe[i / 2 * 4 + i % 2]
                             | (uint32_t) stripe[i / 2 * 4 + i % 2 + 2] << 8);
        } else {
            x = pairs_unpack(stripe[2 * i] | (uint32_t) stripe[2 * i + 1] << 8);
        }
        memcpy(codes + 8 * i, &x, 8);
    }
}

/* The largest power of two that divides n, at most 16. */
TR_INLINE uint32_t
piece_of(uint32_t n)
{
    n &= 0u - n;
    return n > 16 ? 16 : n;
}

/* Copies the stripe of a token's key to the codes of its tile, or back. */
TR_INLINE void
key_stripe(uint32_t dim, uint32_t bits, uint8_t *codes, uint32_t token,
           uint8_t *stripe, bool store)
{
    uint32_t n = dim * bits / 16; /* bytes of a lane in a tile */
    uint32_t piece = piece_of(n / 2);
    uint32_t first = token % 16 / 8 * (n / 2), lane = token % 8 * 4;

    for (uint32_t t = 0; t < 4; t++) {
        for (uint32_t j = 0; j < n / 2; j += piece) {
            uint8_t *at = codes + tr_kv_lane_byte(lane + t, n, first + j);

            if (store) {
                memcpy(at, stripe + t * (n / 2) + j, piece);
            } else {
                memcpy(stripe + t * (n / 2) + j, at, piece);
            }
        }
    }
}

/* Words of a lane that a value has a half of. */
TR_INLINE uint32_t
value_words(uint32_t dim, uint32_t bits)
{
    return bits == 8 ? dim / 16 : dim / 32;
}

/* The lower four bytes of x, each a half word. */
TR_INLINE uint64_t
bytes_spread(uint64_t x)
{
    x = (x & 0xffffffff) | (x & 0xffffffff) << 16;
    x &= 0x0000ffff0000ffff;
    return (x | x << 8) & 0x00ff00ff00ff00ff;
}

TR_INLINE uint64_t
bytes_gather(uint64_t x)
{
    x &= 0x00ff00ff00ff00ff;
    x = (x | x >> 8) & 0x0000ffff0000ffff;
    return (x | x >> 16) & 0xffffffff;
}

/* codes [dim] -> stripe [words][8] of half words, word k of lane g at 8k + g;
 * 2-bit codes in the lower half of each byte. */
TR_INLINE void
value_pack(uint32_t dim, uint32_t bits, const uint8_t *codes, uint16_t *stripe)
{
    uint32_t words = value_words(dim, bits);

    for (uint32_t k = 0; k < words; k++) {
        uint64_t even, odd, x[2];

        if (bits == 8) {
            even = load64(codes + 16 * k);
            odd = load64(codes + 16 * k + 8);
        } else {
            even = load64(codes + 32 * k) | load64(codes + 32 * k + 8) << bits;
            odd = load64(codes + 32 * k + 16)
                  | load64(codes + 32 * k + 24) << bits;
        }
        x[0] = bytes_spread(even) | bytes_spread(odd) << 8;
        x[1] = bytes_spread(even >> 32) | bytes_spread(odd >> 32) << 8;
        memcpy(stripe + 8 * k, x, 16);
    }
}

TR_INLINE void
value_unpack(uint32_t dim, uint32_t bits, const uint16_t *stripe,
             uint8_t *codes)
{
    uint32_t words = value_words(dim, bits);
    uint64_t mask = bits == 4 ? 0x0f0f0f0f0f0f0f0f : 0x0303030303030303;

    for (uint32_t k = 0; k < words; k++) {
        uint64_t x[2], even, odd, row[4];

        memcpy(x, stripe + 8 * k, 16);
        even = bytes_gather(x[0]) | bytes_gather(x[1]) << 32;
        odd = bytes_gather(x[0] >> 8) | bytes_gather(x[1] >> 8) << 32;
        if (bits == 8) {
            memcpy(codes + 16 * k, &even, 8);
            memcpy(codes + 16 * k + 8, &odd, 8);
            continue;
        }
        row[0] = even & mask;
        row[1] = even >> bits & mask;
        row[2] = odd & mask;
        row[3] = odd >> bits & mask;
        memcpy(codes + 32 * k, row, 32);
    }
}

/* Where the half words of a token's value are that go with word k: that of lane
 * g is g chunks on.  `codes` is where the value codes of its tile begin. */
TR_INLINE uint8_t *
value_at(uint32_t dim, uint32_t bits, uint8_t *codes, uint32_t token,
         uint32_t k)
{
    uint32_t n = dim * bits / 16, r = token % 16 / 8, lane = token % 8 / 2 * 8;
    uint32_t first = bits == 2 ? 0 : r * (n / 2);

    return codes + tr_kv_lane_byte(lane, n, first + 4 * k) + token % 2 * 2;
}

/* Copies the stripe of a token's value to the codes of its tile. */
TR_INLINE void
value_store(uint32_t dim, uint32_t bits, uint8_t *codes, uint32_t token,
            const uint16_t *stripe)
{
    uint32_t chunk = piece_of(dim * bits / 16), shift = token % 16 / 8 * 4;

    for (uint32_t k = 0; k < value_words(dim, bits); k++) {
        uint8_t *at = value_at(dim, bits, codes, token, k);

        for (uint32_t g = 0; g < 8; g++, at += chunk) {
            uint16_t x = stripe[8 * k + g], old;

            if (bits == 2) { /* shared with the token 8 places off */
                memcpy(&old, at, 2);
                x = (uint16_t) ((old & ~(0x0f0f << shift)) | x << shift);
            }
            memcpy(at, &x, 2);
        }
    }
}

/* And back. */
TR_INLINE void
value_load(uint32_t dim, uint32_t bits, uint8_t *codes, uint32_t token,
           uint16_t *stripe)
{
    uint32_t chunk = piece_of(dim * bits / 16), shift = token % 16 / 8 * 4;

    for (uint32_t k = 0; k < 2 * value_words(dim, bits); k++) {
        const uint8_t *at = value_at(dim, bits, codes, token, k / 2)
                            + k % 2 * 4 * chunk;
        uint64_t four = 0; /* whole, so that they can be loaded whole */

        for (uint32_t g = 0; g < 4; g++) {
            uint16_t x;

            memcpy(&x, at + g * chunk, 2);
            four |= (uint64_t) x << 16 * g;
        }
        if (bits == 2) {
            four = four >> shift & 0x0f0f0f0f0f0f0f0f;
        }
        memcpy(stripe + 4 * k, &four, 8);
    }
}

/* Fewer bits: the codes are divided, (q + 8) / 17 from 8 to 4 bits and
 * (q + 2) / 5 from 4 to 2; as products that have the same whole part for every
 * q, four to a word. */
TR_INLINE uint64_t
codes_divide(uint64_t x, uint32_t from, uint32_t to)
{
    uint64_t even = x & 0x00ff00ff00ff00ff, odd = x >> 8 & 0x00ff00ff00ff00ff;

    if (from == 8) {
        even = (even + 0x0008000800080008) * 241 >> 12 & 0x000f000f000f000f;
        odd = (odd + 0x0008000800080008) * 241 >> 12 & 0x000f000f000f000f;
    }
    if (to == 2) {
        even = (even + 0x0002000200020002) * 52 >> 8 & 0x0003000300030003;
        odd = (odd + 0x0002000200020002) * 52 >> 8 & 0x0003000300030003;
    }
    return even | odd << 8;
}

/* Narrow: 4 bits to the middle of 2, q of 4, 7 and 10 being the last of a
 * step; (q - 2) / 3 as a product. */
TR_INLINE void
codes_middle(uint8_t *codes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint8_t q = codes[i] < 2 ? 2 : codes[i];

        q = (uint8_t) ((uint8_t) ((q - 2) * 11) >> 5);
        codes[i] = q > 3 ? 3 : q;
    }
}

TR_INLINE void
codes_downgrade(uint8_t *codes, uint32_t n, uint32_t from, uint32_t to,
                bool narrow)
{
    if (to == 2 && narrow) {
        if (from == 8) {
            codes_downgrade(codes, n, 8, 4, false);
        }
        codes_middle(codes, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += 8) {
        uint64_t x = codes_divide(load64(codes + i), from, to);

        memcpy(codes + i, &x, 8);
    }
}

#endif
