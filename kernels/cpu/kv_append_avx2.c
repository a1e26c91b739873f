/* The FP16 conversion of kv_append.c with F16C: same bits. */
#include "cpu.h"

#include <immintrin.h>

void
tr_to_half_avx2(const float *x, uint16_t *out, uint32_t n)
{
    const __m256 top = _mm256_set1_ps(65504.0f);
    const __m256 bottom = _mm256_set1_ps(-65504.0f);
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 f = _mm256_loadu_ps(x + i);

        /* min and max return their second operand when one is NaN */
        f = _mm256_max_ps(bottom, _mm256_min_ps(top, f));
        _mm_storeu_si128((__m128i *) (out + i),
                         _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT));
    }
    tr_to_half_c(x + i, out + i, n - i);
}
