/*
 * Hashes and random numbers that several parts use.  None withstands somebody
 * who chooses its input: tables that clients fill bound their chains, or take
 * keys that clients do not choose.
 */
#ifndef TR_HASH_H
#define TR_HASH_H

#include <stddef.h>
#include <stdint.h>

/* What FNV-1a begins with. */
#define TR_FNV1A_32 2166136261u
#define TR_FNV1A_64 0xcbf29ce484222325ull

/* FNV-1a: the hash of what gave h, followed by len bytes of data. */
static inline uint32_t
tr_fnv1a_32(uint32_t h, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++) {
        h = (h ^ p[i]) * 16777619u;
    }
    return h;
}

static inline uint64_t
tr_fnv1a_64(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++) {
        h = (h ^ p[i]) * 0x100000001b3ull;
    }
    return h;
}

#define TR_SPLITMIX64_STEP 0x9e3779b97f4a7c15ull

/* SplitMix64 (Steele, Lea and Flood, 2014): the next number of a sequence.  Any
 * state is good: neighbours give unlike numbers. */
static inline uint64_t
tr_splitmix64(uint64_t *state)
{
    uint64_t z = (*state += TR_SPLITMIX64_STEP);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

#endif
