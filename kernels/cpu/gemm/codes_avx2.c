/* The product of a panel of codes in AVX2. */
#include "kernels/cpu/vec_avx2.h"

#include "codes.h"

#define V_CODES_ROWS 2u
#define V_CODES_VECS 2u
#define TR_NAME(name) name##_avx2

#define vi_half(a) _mm256_srli_epi16(a, 4) /* the upper half of each byte */
#define vi_lookup(table, i) _mm256_shuffle_epi8(table, i)
#define vi_mxfp4() _mm256_broadcastsi128_si256(_mm_setr_epi8(CODES_MXFP4))
#define vi_pairs(a, b) _mm256_madd_epi16(a, b)
#define vi_wide(p) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) (p)))
#define vi_umax(a, b) _mm256_max_epu32(a, b)
#define vi_round(v) _mm256_cvtps_epi32(v)

/* Bytes times signed bytes, four to a lane; in pairs of 16 bits, which are exact
 * (VPMADDUBSW would saturate). */
static inline __m256i
vi_dot(__m256i sum, __m256i w, __m256i q)
{
    __m256i even = _mm256_and_si256(w, _mm256_set1_epi16(0xff));
    __m256i odd = _mm256_srli_epi16(w, 8);
    __m256i q_even = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8);
    __m256i q_odd = _mm256_srai_epi16(q, 8);

    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, q_even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, q_odd));
}

static inline uint32_t
vi_hmax(__m256i a)
{
    __m128i x = _mm_max_epu32(_mm256_castsi256_si128(a),
                              _mm256_extracti128_si256(a, 1));

    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
    return (uint32_t) _mm_cvtsi128_si32(x);
}

static inline int32_t
vi_hsum(__m256i a)
{
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a),
                              _mm256_extracti128_si256(a, 1));

    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
    return _mm_cvtsi128_si32(x);
}

static inline void
vi_store_bytes(int8_t *p, __m256i a)
{
    __m128i x = _mm_packs_epi32(_mm256_castsi256_si128(a),
                                _mm256_extracti128_si256(a, 1));

    _mm_storel_epi64((__m128i *) p, _mm_packs_epi16(x, x));
}

#include "codes_tile.h"
