/*
 * FP16 and quantised groups for any processor; kv_quant.h is the body.
 * Reference: test_kv_store.c.
 */
#include "kernels/cpu/cpu.h"

#define TR_NAME(name) name##_c
#define V_WIDTH 1u

typedef float vec;

#define v_load(p) (*(p))
#define v_store(p, v) (*(p) = (v))
#define v_set1(f) ((float) (f))
#define v_sub(a, b) ((a) - (b))
#define v_div(a, b) ((a) / (b))
#define v_min(a, b) ((a) < (b) ? (a) : (b))
#define v_max(a, b) ((a) > (b) ? (a) : (b))
#define v_hmax(a) (a)

/* What is added to 0 <= x < 2^22 stands in the lowest bits afterwards, rounded
 * to nearest even. */
static inline void
codes_store(uint8_t *at, float x)
{
    uint32_t u;

    x += 0x1.8p23f;
    memcpy(&u, &x, 4);
    *at = (uint8_t) u;
}

#define TO_HALF(f) tr_kv_half(f)

#include "kv_quant.h"

static void
to_half_c(const float *x, uint16_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = tr_kv_half(x[i]);
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
