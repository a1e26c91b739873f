/*
 * The vector operations of AVX2 with FMA and F16C, under the names that
 * vec_exp.h, silu_mul and attention_tile.h are written in.
 */
#ifndef TR_VEC_AVX2_H
#define TR_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define V_WIDTH 8u

typedef __m256 vec;

#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, v) _mm256_storeu_ps(p, v)
#define v_set1(f) _mm256_set1_ps(f)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)
#define v_div(a, b) _mm256_div_ps(a, b)
#define v_min(a, b) _mm256_min_ps(a, b)
#define v_max(a, b) _mm256_max_ps(a, b)
#define v_lane0(a) _mm256_cvtss_f32(a)
#define v_from_half(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p)))

static inline float
v_hmax(vec a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a),
                          _mm256_extractf128_ps(a, 1));

    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ps(x, _mm_shuffle_ps(x, x, 1)));
}

static inline float
v_hsum(vec a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a),
                          _mm256_extractf128_ps(a, 1));

    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

static inline vec
v_first(uint32_t n, vec a, vec b)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i limit = _mm256_set1_epi32((int) (n < 8 ? n : 8));

    return _mm256_blendv_ps(b, a,
                            _mm256_castsi256_ps(
                                _mm256_cmpgt_epi32(limit, lane)));
}

static inline vec
v_exp2i(vec shifted)
{
    __m256i n = _mm256_castps_si256(shifted);

    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* 8 x 8, by 32-bit, 64-bit, then 128-bit pieces. */
static inline void
v_transpose(vec v[8])
{
    __m256 a[8], b[8];

    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; j++) {
            __m256d x = _mm256_castps_pd(a[i + j]);
            __m256d y = _mm256_castps_pd(a[i + j + 2]);

            b[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
            b[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
        }
    }
    for (int c = 0; c < 4; c++) {
        v[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
        v[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
}

#endif
