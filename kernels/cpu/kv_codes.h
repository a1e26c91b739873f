/*
 * Key and value codes between a token's own arrays and the words of a page
 * (kv_layout.h).  tr_kv_key_code and tr_kv_value_code define where a code
 * stands; here eight codes at a time take their places.  Everything is inline
 * and takes its shape as arguments, so that a caller who names head size and
 * bits gets straight code.
 *
 *   codes   one byte each; keys by dimension, values as [8][dim / 8]: code
 *           (g, m) is dimension 8m + g, in which order a page has them
 *   stripe  the bytes of one token, as they stand in its page, one piece after
 *           the other: what a token takes along when it moves at equal bits
 */
#ifndef TR_KV_CODES_H
#define TR_KV_CODES_H

#include <kernels.h>

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

/* Copies the stripe of a token's key to its page, or back. */
TR_INLINE void
key_stripe(uint32_t dim, uint32_t bits, uint8_t *page, uint32_t token,
           uint8_t *stripe, bool store)
{
    uint32_t n = dim * bits / 16; /* bytes of a lane in a tile */
    uint32_t piece = piece_of(n / 2);
    uint32_t first = token % 16 / 8 * (n / 2), lane = token % 8 * 4;

    for (uint32_t t = 0; t < 4; t++) {
        for (uint32_t j = 0; j < n / 2; j += piece) {
            uint8_t *at = page
                          + tr_kv_lane_byte(token / 16, lane + t, n, first + j);

            if (store) {
                memcpy(at, stripe + t * (n / 2) + j, piece);
            } else {
                memcpy(stripe + t * (n / 2) + j, at, piece);
            }
        }
    }
}

/* 8 x 8 bytes, in place: byte j of x[i] becomes byte i of x[j]. */
TR_INLINE void
transpose8(uint64_t x[8])
{
    for (uint32_t step = 4; step > 0; step /= 2) {
        const uint64_t mask = step == 4   ? 0x00000000ffffffff
                              : step == 2 ? 0x0000ffff0000ffff
                                          : 0x00ff00ff00ff00ff;

        for (uint32_t i = 0; i < 8; i++) {
            if ((i & step) == 0) {
                uint64_t swap = (x[i] >> (8 * step) ^ x[i + step]) & mask;

                x[i + step] ^= swap;
                x[i] ^= swap << (8 * step);
            }
        }
    }
}

/* Codes by dimension to the order of a value's codes. */
TR_INLINE void
value_order(uint32_t dim, const uint8_t *by_dim, uint8_t *codes)
{
    uint32_t m = 0, n = dim / 8;

    for (; m + 8 <= n; m += 8) {
        uint64_t x[8];

        for (uint32_t i = 0; i < 8; i++) {
            x[i] = load64(by_dim + 8 * (m + i));
        }
        transpose8(x);
        for (uint32_t g = 0; g < 8; g++) {
            memcpy(codes + g * n + m, &x[g], 8);
        }
    }
    for (; m < n; m++) {
        for (uint32_t g = 0; g < 8; g++) {
            codes[g * n + m] = by_dim[8 * m + g];
        }
    }
}

/* codes [8][dim / 8] -> stripe of half words, a row g after the other; 2-bit
 * codes stand in the lower nibble of each byte. */
TR_INLINE void
value_pack(uint32_t dim, uint32_t bits, const uint8_t *codes, uint16_t *stripe)
{
    if (bits == 8) {
        memcpy(stripe, codes, dim);
        return;
    }
    for (uint32_t i = 0; i < dim / 4; i++) {
        uint32_t x;

        memcpy(&x, codes + 4 * i, 4);
        x = bits == 4 ? (x | x >> 4) & 0x00ff00ff : (x | x >> 6) & 0x000f000f;
        stripe[i] = (uint16_t) (x | x >> 8);
    }
}

TR_INLINE void
value_unpack(uint32_t dim, uint32_t bits, const uint16_t *stripe,
             uint8_t *codes)
{
    if (bits == 8) {
        memcpy(codes, stripe, dim);
        return;
    }
    for (uint32_t i = 0; i < dim / 4; i++) {
        uint32_t x = stripe[i];

        x = (x | x << 8) & 0x00ff00ff;
        x = bits == 4 ? (x | x << 4) & 0x0f0f0f0f : (x | x << 6) & 0x03030303;
        memcpy(codes + 4 * i, &x, 4);
    }
}

/* Copies the stripe of a token's value to its page, or back.  `codes` is where
 * the page's value codes begin. */
TR_INLINE void
value_stripe(uint32_t dim, uint32_t bits, uint8_t *codes, uint32_t token,
             uint16_t *stripe, bool store)
{
    uint32_t n = dim * bits / 16, words = bits == 8 ? dim / 16 : dim / 32;
    uint32_t r = token % 16 / 8, lane = token % 8 / 2 * 8;
    uint32_t first = bits == 2 ? 0 : r * (n / 2);

    for (uint32_t k = 0; k < words; k++) {
        uint8_t *at = codes
                      + tr_kv_lane_byte(token / 16, lane, n, first + 4 * k)
                      + token % 2 * 2;
        uint32_t chunk = piece_of(n);

        for (uint32_t g = 0; g < 8; g++, at += chunk) {
            uint16_t *mine = &stripe[g * words + k], old;

            if (bits != 2) {
                memcpy(store ? (void *) at : mine, store ? mine : (void *) at,
                       2);
                continue;
            }
            memcpy(&old, at, 2); /* shared with the token 8 places off */
            if (store) {
                old = (uint16_t) ((old & ~(0x0f0f << 4 * r)) | *mine << 4 * r);
                memcpy(at, &old, 2);
            } else {
                *mine = old >> 4 * r & 0x0f0f;
            }
        }
    }
}

#endif
