/*
 * kv_quant.c with AVX-512: same bits.
 */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/vec_avx512.h"

#define TR_NAME(name) name##_avx512
#define TO_HALF(f) ((uint16_t) _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT))

static inline void
codes_store(uint8_t *at, vec x)
{
    _mm_storeu_si128((__m128i *) at,
                     _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

#include "kv_quant.h"

static void
to_half_avx512(const float *x, uint16_t *out, uint32_t n)
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
from_half_avx512(const uint16_t *h, float *out, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        v_store(out + i, v_from_half(h + i));
    }
    if (i < n) {
        __m128i x = _mm_loadu_si128((const __m128i *) (h + i));

        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(x));
    }
}

const tr_kv_codec_t tr_kv_codec_avx512 = {
    .to_half = to_half_avx512,
    .from_half = from_half_avx512,
    .quantise = quantise_avx512,
    .quantise_channels = quantise_channels_avx512,
};
