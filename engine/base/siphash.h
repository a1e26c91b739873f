/*
 * SipHash-2-4 with 128 bits: a hash under a key, for who has the key a proof of
 * where something comes from (Aumasson and Bernstein, 2012).
 */
#ifndef TR_SIPHASH_H
#define TR_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TR_SIPHASH_BYTES 16u

static inline uint64_t
tr_sip_left(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static inline void
tr_sip_rounds(uint64_t v[4], int n)
{
    while (n-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = tr_sip_left(v[1], 13) ^ v[0];
        v[3] = tr_sip_left(v[3], 16) ^ v[2];
        v[0] = tr_sip_left(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = tr_sip_left(v[1], 17) ^ v[2];
        v[3] = tr_sip_left(v[3], 21) ^ v[0];
        v[2] = tr_sip_left(v[2], 32);
    }
}

/* Of len bytes, on a little-endian machine. */
static inline void
tr_siphash(const uint8_t key[TR_SIPHASH_BYTES], const void *bytes, size_t len,
           uint8_t out[TR_SIPHASH_BYTES])
{
    const uint8_t *at = bytes;
    uint64_t k[2], v[4], word, hash[2];
    size_t i;

    memcpy(k, key, sizeof(k));
    v[0] = 0x736f6d6570736575u ^ k[0];
    v[1] = 0x646f72616e646f6du ^ k[1] ^ 0xee;
    v[2] = 0x6c7967656e657261u ^ k[0];
    v[3] = 0x7465646279746573u ^ k[1];
    for (i = 0; i + 8 <= len; i += 8) {
        memcpy(&word, at + i, 8);
        v[3] ^= word;
        tr_sip_rounds(v, 2);
        v[0] ^= word;
    }
    word = 0;
    if (len != i) {
        memcpy(&word, at + i, len - i);
    }
    word |= (uint64_t) len << 56;
    v[3] ^= word;
    tr_sip_rounds(v, 2);
    v[0] ^= word;
    v[2] ^= 0xee;
    tr_sip_rounds(v, 4);
    hash[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    tr_sip_rounds(v, 4);
    hash[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
    memcpy(out, hash, sizeof(hash));
}

#endif
