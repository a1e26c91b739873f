/*
 * The vector operations of AVX2 with FMA and F16C, under the names that
 * vec_exp.h, act_mul and attention_tile.h are written in.
 */
#ifndef TR_VEC_AVX2_H
#define TR_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define V_WIDTH 8u

typedef __m256 vec;
typedef __m256i veci;
typedef __m256 vmask;

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
#define v_from_bf16(p)                     \
    _mm256_castsi256_ps(_mm256_slli_epi32( \
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) (p))), 16))

/* Of pairs of 16 bits in each 32: numbers of the first, of the second. */
#define v_bf16_first(v) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 16))
#define v_bf16_second(v)                                         \
    _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), \
                                         _mm256_set1_epi32((int) 0xffff0000)))
#define v_half_first(v) \
    v_halves(           \
        _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0xffff)))
#define v_half_second(v) v_halves(_mm256_srli_epi32(_mm256_castps_si256(v), 16))

static inline vec
v_halves(__m256i words)
{
    __m256i twice = _mm256_packus_epi32(words, words);

    return _mm256_cvtph_ps(
        _mm256_castsi256_si128(_mm256_permute4x64_epi64(twice, 0x08)));
}

#define v_select(m, a, b) _mm256_blendv_ps(b, a, m) /* m ? a : b */
#define v_less(a, b) _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define v_equal(a, b) _mm256_cmp_ps(a, b, _CMP_EQ_OQ)

#define vi_load(p) _mm256_loadu_si256((const __m256i *) (p))
#define vi_store(p, a) _mm256_storeu_si256((__m256i *) (p), a)
#define vi_set1(x) _mm256_set1_epi32((int) (x))
#define vi_add(a, b) _mm256_add_epi32(a, b)
#define vi_sub(a, b) _mm256_sub_epi32(a, b)
#define vi_and(a, b) _mm256_and_si256(a, b)
#define vi_high(a) _mm256_srli_epi32(a, 16) /* the upper half of each */
#define vi_float(a) _mm256_cvtepi32_ps(a)
#define vi_of(v) _mm256_castps_si256(v)
#define vi_select(m, a, b) \
    vi_of(v_select(m, _mm256_castsi256_ps(a), _mm256_castsi256_ps(b)))
#define vi_less(a, b) _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a))
#define vi_lanes() _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
#define vm_and(a, b) _mm256_and_ps(a, b)
#define vm_or(a, b) _mm256_or_ps(a, b)

/* Lane i is on when bit i is. */
static inline vmask
vm_bits(uint32_t bits)
{
    __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);

    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(
        _mm256_and_si256(_mm256_set1_epi32((int) bits), lane), lane));
}

/* Lanes of the mask; the others are not read or written. */
#define v_load_some(m, p) _mm256_maskload_ps(p, vi_of(m))
#define vi_load_some(m, p) _mm256_maskload_epi32((const int *) (p), vi_of(m))
#define v_store_some(m, p, v) _mm256_maskstore_ps(p, vi_of(m), v)

/* Of 2 bytes each; all 8 or none are there. */
static inline veci
vi_load_short(vmask m, const void *p)
{
    return _mm256_movemask_ps(m) == 0
               ? _mm256_setzero_si256()
               : _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p));
}

/* In every four lanes two of a, then two of b. */
#define v_pairs(a, b) _mm256_blend_ps(a, b, 0xcc)

/* The lower 8 lanes to lo; there are no others. */
static inline void
v_store_eights(float *lo, float *hi, vec v)
{
    (void) hi;
    _mm256_storeu_ps(lo, v);
}

/* FP16 pairs of 8 tokens, of those in the mask. */
static inline void
v_meta(const void *p, vmask m, vec *scale, vec *zero)
{
    __m256i w = vi_load_some(m, p);
    /* scale 0-3, zero 0-3, scale 4-7, zero 4-7 */
    __m256i x = _mm256_packus_epi32(_mm256_and_si256(w,
                                                     _mm256_set1_epi32(0xffff)),
                                    _mm256_srli_epi32(w, 16));

    x = _mm256_permute4x64_epi64(x, 0xd8);
    *scale = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
    *zero = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
}

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
