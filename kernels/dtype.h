/*
 * dtype.h: the number types of weights, activations and the cache, their names
 * and sizes, and exact conversions between them, for host and device code.  All
 * rounding is to nearest even; test_kv_store.c compares faster code with this.
 */
#ifndef TR_DTYPE_H
#define TR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Inline functions that a GPU's code calls, too. */
#ifdef __CUDACC__
#define TR_HD static __host__ __device__ inline
#else
#define TR_HD static inline
#endif

typedef enum { TR_F32, TR_F16, TR_BF16, TR_DTYPES } tr_dtype_t;

/* Bytes of an element. */
TR_HD uint32_t
tr_dtype_size(tr_dtype_t dtype)
{
    return dtype == TR_F32 ? 4 : 2;
}

TR_HD bool
tr_dtype_is_short(tr_dtype_t dtype)
{
    return dtype == TR_F16 || dtype == TR_BF16;
}

/* "bf16", as settings and logs have it; "BF16", as safetensors has it. */
static inline const char *
tr_dtype_name(tr_dtype_t dtype)
{
    return dtype == TR_F32 ? "f32" : dtype == TR_F16 ? "f16" : "bf16";
}

static inline const char *
tr_dtype_stored_name(tr_dtype_t dtype)
{
    return dtype == TR_F32 ? "F32" : dtype == TR_F16 ? "F16" : "BF16";
}

TR_HD float
tr_float_from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, 4);
    return f;
}

/* Exact, subnormals and NaN included. */
TR_HD float
tr_float_from_half(uint16_t h)
{
    uint32_t sign = (uint32_t) (h & 0x8000) << 16;
    uint32_t magnitude = (uint32_t) (h & 0x7fff) << 13;
    float f;

    if (magnitude >= 0x0f800000) { /* infinity, NaN */
        return tr_float_from_bits(sign | magnitude | 0x7f800000);
    }
    /* the exponent is rebased by 112 in the float domain */
    f = tr_float_from_bits(magnitude) * 0x1p112f;
    return sign ? -f : f;
}

/* Element i of src, which need not be aligned. */
TR_HD float
tr_float_load(const void *src, size_t i, tr_dtype_t dtype)
{
    uint32_t u;
    uint16_t h;

    if (dtype == TR_F32) {
        memcpy(&u, (const uint8_t *) src + 4 * i, 4);
        return tr_float_from_bits(u);
    }
    memcpy(&h, (const uint8_t *) src + 2 * i, 2);
    return dtype == TR_BF16 ? tr_float_from_bits((uint32_t) h << 16)
                            : tr_float_from_half(h);
}

TR_HD uint32_t
tr_float_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, 4);
    return u;
}

/* To nearest even; what is too large becomes infinity.  A NaN keeps its sign
 * alone. */
TR_HD uint16_t
tr_half_from_float(float f)
{
    uint32_t u = tr_float_bits(f), sign = u >> 16 & 0x8000, x = u & 0x7fffffff;

    if (x > 0x7f800000) {
        return (uint16_t) (sign | 0x7e00);
    }
    if (x >= 0x477ff000) { /* from 65520 on */
        return (uint16_t) (sign | 0x7c00);
    }
    if (x < 0x38800000) { /* subnormal: the sum's last bit is worth 2^-24 */
        x = tr_float_bits(tr_float_from_bits(x) + 0.5f) - 0x3f000000;
        return (uint16_t) (sign | x);
    }
    x += 0xc8000fff + (x >> 13 & 1); /* the exponent is rebased by 112 */
    return (uint16_t) (sign | x >> 13);
}

TR_HD uint16_t
tr_bf16_from_float(float f)
{
    uint32_t u = tr_float_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000) {
        return (uint16_t) ((u >> 16 & 0x8000) | 0x7fc0);
    }
    return (uint16_t) ((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Element i of dst, aligned to its own size. */
TR_HD void
tr_float_store(void *dst, size_t i, tr_dtype_t dtype, float f)
{
    if (dtype == TR_F32) {
        ((float *) dst)[i] = f;
    } else {
        ((uint16_t *) dst)[i] = dtype == TR_BF16 ? tr_bf16_from_float(f)
                                                 : tr_half_from_float(f);
    }
}

#endif
