/*
 * FP16 and quantised groups for any processor; kv_quant.h is the body.
 * Reference: test_kv_store.c.
 */
#include "cpu.h"

#define TR_NAME(name) name##_c

static inline uint16_t
half_of(float f)
{
    _Float16 h = (_Float16) f;
    uint16_t u;

    memcpy(&u, &h, 2);
    return u;
}
#define TO_HALF(f) half_of(f)

#include "kv_quant.h"

static void
to_half_c(const float *x, uint16_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) { /* a NaN stays one */
        out[i] = half_of(saturated(x[i]));
    }
}

static void
from_half_c(const uint16_t *h, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = tr_float_from_half(h[i]);
    }
}

const tr_kv_codec_t tr_kv_codec_c = {
    .to_half = to_half_c,
    .from_half = from_half_c,
    .quantise = quantise_c,
    .quantise_channels = quantise_channels_c,
};
