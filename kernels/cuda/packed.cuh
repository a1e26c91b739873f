/*
 * packed.cuh: codes of packed weights (kernels/weight_form.h) become pairs of
 * BF16, exactly: a warp's words of a block are operands of tensor cores then.
 * Or weights, in BF16 rounded once, where scales are multiplied at once.
 */
#ifndef TR_CUDA_PACKED_CUH
#define TR_CUDA_PACKED_CUH

#include <cuda_bf16.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/weight_form.h"

#define PACKED_2_120 0x7b807b80u /* 2^120, twice */
#define PACKED_2_126 0x7e807e80u

/* Codes of FP8 in bytes 1 and 3.  Put where BF16 has exponent and fraction they
 * are 2^-120 of what they mean, subnormal ones included. */
static __device__ __forceinline__ uint32_t
packed_fp8_pair(uint32_t w)
{
    return bf16_mul((w & 0x80008000u) | (w >> 4 & 0x07f007f0u), PACKED_2_120);
}

/* A step, 16 columns: words of the lane as operand a of mma(). */
static __device__ __forceinline__ void
packed_fp8(uint32_t (&a)[4], uint32_t low, uint32_t high)
{
    a[0] = packed_fp8_pair(low << 8);
    a[1] = packed_fp8_pair(low);
    a[2] = packed_fp8_pair(high << 8);
    a[3] = packed_fp8_pair(high);
}

/* 128 + zero, twice, of a row's scale word. */
static __device__ __forceinline__ uint32_t
packed_int4_zero(uint32_t scale)
{
    return 0x43004300u + (scale & 0xff) * 0x10001u;
}

static __device__ __forceinline__ float
packed_int4_scale(uint32_t scale)
{
    return __uint_as_float(scale & ~0xffu);
}

/* The same of INT4: 128 + code is 0x4300 | code.  zero: of both rows. */
static __device__ __forceinline__ void
packed_int4(uint32_t (&a)[4], uint32_t w, const uint32_t (&zero)[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = bf16_sub((w >> 4 * i & 0x000f000fu) | 0x43004300u, zero[i % 2]);
    }
}

/* The same of MXFP4, without its scales.  Put where BF16 has exponent and fraction
 * codes are 2^-126 of what they mean. */
static __device__ __forceinline__ void
packed_mxfp4(uint32_t (&a)[4], uint32_t w)
{
    const uint32_t sign = 0x80008000u, code = 0x01c001c0u;

    a[0] = (w << 12 & sign) | (w << 6 & code);
    a[1] = (w << 8 & sign) | (w << 2 & code);
    a[2] = (w << 4 & sign) | (w >> 2 & code);
    a[3] = (w & sign) | (w >> 6 & code);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = bf16_mul(a[i], PACKED_2_126);
    }
}

/* 2^(byte - 127), twice, of the byte of a word of scales. */
static __device__ __forceinline__ uint32_t
packed_mxfp4_scale(uint32_t word, uint32_t byte)
{
    uint32_t twice = (word >> 8 * byte & 0xff) * 0x00800080u;

    return twice != 0 ? twice : 0x00400040u;
}

static __device__ __forceinline__ uint32_t
packed_scaled(uint32_t pair, float scale)
{
    __nv_bfloat162 p = __floats2bfloat162_rn(__uint_as_float(pair << 16)
                                                 * scale,
                                             __uint_as_float(pair & 0xffff0000u)
                                                 * scale);
    uint32_t r;

    memcpy(&r, &p, 4);
    return r;
}

/* A step of FP8, or INT4 (w0 alone), as weights: `word` has the scales of rows g
 * and g + 8. */
static __device__ __forceinline__ void
packed_fp8_weights(uint32_t (&a)[4], uint32_t w0, uint32_t w1,
                   const uint32_t (&word)[2])
{
    packed_fp8(a, w0, w1);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = packed_scaled(a[i], __uint_as_float(word[i % 2]));
    }
}

static __device__ __forceinline__ void
packed_int4_weights(uint32_t (&a)[4], uint32_t w, const uint32_t (&word)[2])
{
    const uint32_t zero[2] = { packed_int4_zero(word[0]),
                               packed_int4_zero(word[1]) };

    packed_int4(a, w, zero);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = packed_scaled(a[i], packed_int4_scale(word[i % 2]));
    }
}

#endif
