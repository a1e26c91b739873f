/*
 * Quantising, the body of kv_quant.c and of its copies for wider instruction
 * sets.  All give the same bits: division and rounding are exact, nothing here
 * is a product plus a sum that one of them could fuse, and no zero has a sign.
 *
 * A group is stored as {scale, zero} in FP16 and codes, x = code * scale + zero
 * (kernels.h).  Whatever comes in, metadata is finite: infinities count as
 * +-65504, and a NaN has code 0, the group's smallest value.
 *
 * The includer defines vec with its operations (vec_*.h), TR_NAME(name) and
 *
 *   TO_HALF(float)         FP16, nearest even
 *   codes_store(at, vec)   V_WIDTH bytes, 0 <= lane <= 255, nearest even
 *
 * v_min and v_max give their second operand when one is NaN.
 */
#include "kv_store.h"

#include <math.h>

#define HALF_MAX 65504.0f

static inline float
saturated(float x)
{
    x = x > HALF_MAX ? HALF_MAX : x;
    return x < -HALF_MAX ? -HALF_MAX : x;
}

/* {scale, zero} of a group with these ends; lo > hi: nothing but NaN. */
static inline void
group_meta(float lo, float hi, uint32_t bits, bool narrow, uint16_t meta[2])
{
    float steps = narrow ? 5 : (float) ((1u << bits) - 1);

    if (!(lo <= hi)) {
        lo = hi = 0;
    }
    lo = saturated(lo) + 0.0f; /* -0 becomes 0 */
    hi = saturated(hi) + 0.0f;
    meta[0] = TO_HALF((hi - lo) / steps);
    if (meta[0] == 0 && hi > lo) {
        meta[0] = 1;
    }
    meta[1] = TO_HALF(narrow ? lo + (hi - lo) / steps : lo);
}

static inline void
quantise_at(const float *x, vec zero, vec scale, vec top, uint8_t *codes)
{
    vec q = v_div(v_sub(v_load(x), zero), scale);

    codes_store(codes, v_min(v_max(q, v_set1(0)), top));
}

/* Where the vector that begins at i of n is taken: the last overlaps. */
static inline uint32_t
vector_at(uint32_t i, uint32_t n)
{
    return i + V_WIDTH <= n ? i : n - V_WIDTH;
}

static void
TR_NAME(quantise)(const float *x, uint32_t n, uint32_t bits, bool narrow,
                  uint8_t *codes, uint16_t meta[2])
{
    vec lo = v_set1(INFINITY), hi = v_set1(-INFINITY), zero, scale, top;
    float wide[V_WIDTH];
    uint8_t wide_codes[V_WIDTH];

    if (n < V_WIDTH) { /* a short group, filled up with its first */
        for (uint32_t i = 0; i < V_WIDTH; i++) {
            wide[i] = x[i < n ? i : 0];
        }
        TR_NAME(quantise)(wide, V_WIDTH, bits, narrow, wide_codes, meta);
        memcpy(codes, wide_codes, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += V_WIDTH) {
        vec y = v_load(x + vector_at(i, n));

        lo = v_min(y, lo);
        hi = v_max(y, hi);
    }
    group_meta(-v_hmax(v_sub(v_set1(0), lo)), v_hmax(hi), bits, narrow, meta);
    if (meta[0] == 0) {
        memset(codes, 0, n);
        return;
    }
    scale = v_set1(tr_float_from_half(meta[0]));
    zero = v_set1(tr_float_from_half(meta[1]));
    top = v_set1((float) ((1u << bits) - 1));
    for (uint32_t i = 0; i < n; i += V_WIDTH) {
        uint32_t at = vector_at(i, n);

        quantise_at(x + at, zero, scale, top, codes + at);
    }
}

/* V_WIDTH channels of TR_KV_CHANNEL_TOKENS tokens. */
static inline void
channels(const float *x, uint32_t dim, uint32_t bits, uint8_t *codes,
         uint16_t *meta)
{
    vec lo = v_set1(INFINITY), hi = v_set1(-INFINITY);
    vec top = v_set1((float) ((1u << bits) - 1));
    float least[V_WIDTH], most[V_WIDTH], scale[V_WIDTH], zero[V_WIDTH];

    for (uint32_t r = 0; r < TR_KV_CHANNEL_TOKENS; r++) {
        vec y = v_load(x + r * dim);

        lo = v_min(y, lo);
        hi = v_max(y, hi);
    }
    v_store(least, lo);
    v_store(most, hi);
    for (uint32_t j = 0; j < V_WIDTH; j++) {
        group_meta(least[j], most[j], bits, false, meta + 2 * j);
        scale[j] = tr_float_from_half(meta[2 * j]);
        zero[j] = tr_float_from_half(meta[2 * j + 1]);
        if (meta[2 * j] == 0) { /* all codes 0 */
            scale[j] = INFINITY;
        }
    }
    for (uint32_t r = 0; r < TR_KV_CHANNEL_TOKENS; r++) {
        quantise_at(x + r * dim, v_load(zero), v_load(scale), top,
                    codes + r * dim);
    }
}

static void
TR_NAME(quantise_channels)(const float *x, uint32_t dim, uint32_t bits,
                           uint8_t *codes, uint16_t *meta)
{
    for (uint32_t d = 0; d < dim; d += V_WIDTH) {
        channels(x + d, dim, bits, codes + d, meta + 2 * d);
    }
}
