/* Operations of codes_tile.h that both kinds of AVX-512 share. */
#ifndef TR_CODES_OPS_AVX512_H
#define TR_CODES_OPS_AVX512_H

#include "codes.h"

#define vi_half(a) _mm512_srli_epi16(a, 4) /* the upper half of each byte */
#define vi_lookup(table, i) _mm512_shuffle_epi8(table, i)
#define vi_mxfp4() _mm512_broadcast_i32x4(_mm_setr_epi8(CODES_MXFP4))
#define vi_pairs(a, b) _mm512_madd_epi16(a, b)
#define vi_wide(p) \
    _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) (p)))
#define vi_umax(a, b) _mm512_max_epu32(a, b)
#define vi_hmax(a) _mm512_reduce_max_epu32(a)
#define vi_hsum(a) _mm512_reduce_add_epi32(a)
#define vi_round(v) _mm512_cvtps_epi32(v)
#define vi_store_bytes(p, a) \
    _mm_storeu_si128((__m128i *) (p), _mm512_cvtepi32_epi8(a))

#endif
