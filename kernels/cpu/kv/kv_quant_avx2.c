/*
 * kv_quant.c with AVX2 and F16C: same bits.
 */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/vec_avx2.h"

#define TR_NAME(name) name##_avx2
#define TO_HALF(f) ((uint16_t) _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT))

static inline void
codes_store(uint8_t *at, vec x)
{
    __m256i i = _mm256_cvtps_epi32(x);
    __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(i),
                                _mm256_extracti128_si256(i, 1));

    _mm_storel_epi64((__m128i *) at, _mm_packus_epi16(w, w));
}

#include "kv_quant.h"

static void
to_half_avx2(const float *x, uint16_t *out, uint32_t n)
{
    const __m256 top = _mm256_set1_ps(HALF_MAX);
    const __m256 bottom = _mm256_set1_ps(-HALF_MAX);

    for (uint32_t i = 0; i < n; i += 8) {
        __m256 f = _mm256_loadu_ps(x + i);

        /* min and max return their second operand when one is NaN */
        f = _mm256_max_ps(bottom, _mm256_min_ps(top, f));
        _mm_storeu_si128((__m128i *) (out + i),
                         _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT));
    }
}

static void
from_half_avx2(const uint16_t *h, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        v_store(out + i, v_from_half(h + i));
    }
}

const tr_kv_codec_t tr_kv_codec_avx2 = {
    .to_half = to_half_avx2,
    .from_half = from_half_avx2,
    .quantise = quantise_avx2,
    .quantise_channels = quantise_channels_avx2,
};
