/* The product of a panel of codes in AVX-512, without its dot products. */
#include "kernels/cpu/vec_avx512.h"

#define V_CODES_ROWS 3u
#define V_CODES_VECS 2u
#define TR_NAME(name) name##_avx512

/* Bytes times signed bytes, four to a lane; in pairs of 16 bits, which are
 * exact. */
static inline __m512i
vi_dot(__m512i sum, __m512i w, __m512i q)
{
    __m512i even = _mm512_and_si512(w, _mm512_set1_epi16(0xff));
    __m512i odd = _mm512_srli_epi16(w, 8);
    __m512i q_even = _mm512_srai_epi16(_mm512_slli_epi16(q, 8), 8);
    __m512i q_odd = _mm512_srai_epi16(q, 8);

    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even, q_even));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(odd, q_odd));
}

#include "codes_ops_avx512.h"
#include "codes_tile.h"
