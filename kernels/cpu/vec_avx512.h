/*
 * The vector operations of AVX-512, under the names that vec_exp.h,
 * act_mul and attention_tile.h are written in.
 */
#ifndef TR_VEC_AVX512_H
#define TR_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define V_WIDTH 16u

typedef __m512 vec;
typedef __m512i veci;
typedef __mmask16 vmask;

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
#define v_from_bf16(p)                     \
    _mm512_castsi512_ps(_mm512_slli_epi32( \
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) (p))), 16))

/* Of pairs of 16 bits in each 32: numbers of the first, of the second. */
#define v_bf16_first(v) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 16))
#define v_bf16_second(v)                                         \
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), \
                                         _mm512_set1_epi32((int) 0xffff0000)))
#define v_half_first(v) \
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_castps_si512(v)))
#define v_half_second(v) \
    _mm512_cvtph_ps(     \
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)))

#define v_select(m, a, b) _mm512_mask_blend_ps(m, b, a) /* m ? a : b */
#define v_less(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define v_equal(a, b) _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)

#define vi_load(p) _mm512_loadu_si512(p)
#define vi_store(p, a) _mm512_storeu_si512(p, a)
#define vi_set1(x) _mm512_set1_epi32((int) (x))
#define vi_add(a, b) _mm512_add_epi32(a, b)
#define vi_sub(a, b) _mm512_sub_epi32(a, b)
#define vi_and(a, b) _mm512_and_si512(a, b)
#define vi_high(a) _mm512_srli_epi32(a, 16) /* the upper half of each */
#define vi_float(a) _mm512_cvtepi32_ps(a)
#define vi_of(v) _mm512_castps_si512(v)
#define vi_select(m, a, b) _mm512_mask_blend_epi32(m, b, a)
#define vi_less(a, b) _mm512_cmplt_epi32_mask(a, b)
#define vi_lanes() \
    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define vm_bits(bits) ((__mmask16) (bits))
#define vm_and(a, b) ((__mmask16) ((a) & (b)))
#define vm_or(a, b) ((__mmask16) ((a) | (b)))

/* Lanes of the mask; the others are not read or written. */
#define v_load_some(m, p) _mm512_maskz_loadu_ps(m, p)
#define vi_load_some(m, p) _mm512_maskz_loadu_epi32(m, p)
#define vi_load_short(m, p) /* of 2 bytes each */ \
    _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p))
#define v_store_some(m, p, v) _mm512_mask_storeu_ps(p, m, v)

/* In every four lanes two of a, then two of b. */
#define v_pairs(a, b) _mm512_mask_blend_ps(0xcccc, a, b)

/* The lower 8 lanes to lo, the upper ones to hi. */
static inline void
v_store_eights(float *lo, float *hi, vec v)
{
    _mm256_storeu_ps(lo, _mm512_castps512_ps256(v));
    _mm256_storeu_ps(hi, _mm512_extractf32x8_ps(v, 1));
}

/* FP16 pairs of 16 tokens, of those in the mask. */
static inline void
v_meta(const void *p, vmask m, vec *scale, vec *zero)
{
    __m512i w = _mm512_maskz_loadu_epi32(m, p);

    *scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(w));
    *zero = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(w, 16)));
}

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
