/*
 * The vector operations of AVX-512, under the names that vec_exp.h,
 * silu_mul and attention_tile.h are written in.
 */
#ifndef TR_VEC_AVX512_H
#define TR_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define V_WIDTH 16u

typedef __m512 vec;

#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, v) _mm512_storeu_ps(p, v)
#define v_set1(f) _mm512_set1_ps(f)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_min(a, b) _mm512_min_ps(a, b)
#define v_max(a, b) _mm512_max_ps(a, b)
#define v_hmax(a) _mm512_reduce_max_ps(a)
#define v_hsum(a) _mm512_reduce_add_ps(a)
#define v_lane0(a) _mm512_cvtss_f32(a)
#define v_from_half(p) \
    _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (p)))

static inline vec
v_first(uint32_t n, vec a, vec b)
{
    __mmask16 m = n >= 16 ? 0xffff : (__mmask16) ((1u << n) - 1);

    return _mm512_mask_blend_ps(m, b, a);
}

static inline vec
v_exp2i(vec shifted)
{
    __m512i n = _mm512_castps_si512(shifted);

    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

/* 16 x 16, by 32-bit, 64-bit, then 128-bit pieces. */
static inline void
v_transpose(vec v[16])
{
    __m512 a[16], b[16];

    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            __m512d x = _mm512_castps_pd(a[i + j]);
            __m512d y = _mm512_castps_pd(a[i + j + 2]);

            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    }
    /* b[4g + c]: rows 4g..4g+3 of columns c, 4 + c, 8 + c, 12 + c */
    for (int c = 0; c < 4; c++) {
        __m512 lo0 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88);
        __m512 lo1 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        __m512 hi0 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd);
        __m512 hi1 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);

        v[c] = _mm512_shuffle_f32x4(lo0, lo1, 0x88);
        v[8 + c] = _mm512_shuffle_f32x4(lo0, lo1, 0xdd);
        v[4 + c] = _mm512_shuffle_f32x4(hi0, hi1, 0x88);
        v[12 + c] = _mm512_shuffle_f32x4(hi0, hi1, 0xdd);
    }
}

#endif
