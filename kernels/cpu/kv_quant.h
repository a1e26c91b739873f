/*
 * Quantising, the body of kv_quant.c and of its copies for wider instruction
 * sets: plain loops that the compiler makes vectors of.  All give the same
 * bits: division and rounding are exact, and nothing here is a product plus a
 * sum that one of them could fuse.
 *
 * A group is stored as {scale, zero} in FP16 and codes, x = code * scale + zero
 * (kernels.h).  Whatever comes in, metadata is finite: infinities count as
 * +-65504, and a NaN has code 0, the group's smallest value.
 *
 * The includer defines TO_HALF(float) and a suffix, TR_NAME(name).
 */
#include "kv_store.h"

#include <math.h>

#define LANES 16u
#define HALF_MAX 65504.0f

static inline float
saturated(float x)
{
    x = x > HALF_MAX ? HALF_MAX : x;
    return x < -HALF_MAX ? -HALF_MAX : x;
}

/* {scale, zero} of a group with these ends; lo > hi: nothing but NaN. */
static inline void
group_meta(float lo, float hi, uint32_t bits, uint16_t meta[2])
{
    if (!(lo <= hi)) {
        lo = hi = 0;
    }
    lo = saturated(lo);
    hi = saturated(hi);
    meta[0] = TO_HALF((hi - lo) / (float) ((1u << bits) - 1));
    if (meta[0] == 0 && hi > lo) {
        meta[0] = 1;
    }
    meta[1] = TO_HALF(lo);
}

/* What is added to 0 <= x < 2^22 stands in the lowest bits afterwards, rounded
 * to nearest even. */
#define ROUND_MAGIC 0x1.8p23f

static inline uint8_t
code_of(float x, float zero, float scale, float top)
{
    uint32_t u;
    float q = (x - zero) / scale;

    q = q > 0 ? q : 0; /* NaN: 0 */
    q = q < top ? q : top;
    q += ROUND_MAGIC;
    memcpy(&u, &q, 4);
    return (uint8_t) u;
}

static void
TR_NAME(quantise)(const float *x, uint32_t n, uint32_t bits, uint8_t *codes,
                  uint16_t meta[2])
{
    float lo[LANES], hi[LANES], scale, zero, top = (float) ((1u << bits) - 1);
    uint32_t i = 0;

    for (uint32_t j = 0; j < LANES; j++) {
        lo[j] = INFINITY;
        hi[j] = -INFINITY;
    }
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            lo[j] = x[i + j] < lo[j] ? x[i + j] : lo[j];
            hi[j] = x[i + j] > hi[j] ? x[i + j] : hi[j];
        }
    }
    for (; i < n; i++) {
        lo[0] = x[i] < lo[0] ? x[i] : lo[0];
        hi[0] = x[i] > hi[0] ? x[i] : hi[0];
    }
    for (uint32_t step = LANES / 2; step > 0; step /= 2) {
        for (uint32_t j = 0; j < step; j++) {
            lo[j] = lo[j + step] < lo[j] ? lo[j + step] : lo[j];
            hi[j] = hi[j + step] > hi[j] ? hi[j + step] : hi[j];
        }
    }
    group_meta(lo[0], hi[0], bits, meta);
    if (meta[0] == 0) {
        memset(codes, 0, n);
        return;
    }
    scale = tr_float_from_half(meta[0]);
    zero = tr_float_from_half(meta[1]);
    for (i = 0; i < n; i++) {
        codes[i] = code_of(x[i], zero, scale, top);
    }
}

/* LANES channels of TR_KV_CHANNEL_TOKENS tokens. */
static void
TR_NAME(channels)(const float *x, uint32_t dim, uint32_t bits, uint8_t *codes,
                  uint16_t *meta)
{
    float lo[LANES], hi[LANES], scale[LANES], zero[LANES];
    float top = (float) ((1u << bits) - 1);

    for (uint32_t j = 0; j < LANES; j++) {
        lo[j] = INFINITY;
        hi[j] = -INFINITY;
    }
    for (uint32_t r = 0; r < TR_KV_CHANNEL_TOKENS; r++) {
        for (uint32_t j = 0; j < LANES; j++) {
            float y = x[r * dim + j];

            lo[j] = y < lo[j] ? y : lo[j];
            hi[j] = y > hi[j] ? y : hi[j];
        }
    }
    for (uint32_t j = 0; j < LANES; j++) {
        group_meta(lo[j], hi[j], bits, meta + 2 * j);
        scale[j] = tr_float_from_half(meta[2 * j]);
        zero[j] = tr_float_from_half(meta[2 * j + 1]);
        if (meta[2 * j] == 0) { /* all codes 0 */
            scale[j] = INFINITY;
        }
    }
    for (uint32_t r = 0; r < TR_KV_CHANNEL_TOKENS; r++) {
        for (uint32_t j = 0; j < LANES; j++) {
            codes[r * dim + j] = code_of(x[r * dim + j], zero[j], scale[j],
                                         top);
        }
    }
}

static void
TR_NAME(quantise_channels)(const float *x, uint32_t dim, uint32_t bits,
                           uint8_t *codes, uint16_t *meta)
{
    for (uint32_t d = 0; d < dim; d += LANES) {
        TR_NAME(channels)(x + d, dim, bits, codes + d, meta + 2 * d);
    }
}
