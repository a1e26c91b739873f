/*
 * packed.cuh: codes of packed weights (kernels/weight_form.h) become pairs of
 * BF16, exactly: a warp's words of a block are operands of tensor cores then.
 */
#ifndef TR_CUDA_PACKED_CUH
#define TR_CUDA_PACKED_CUH

#include "kernels/cuda/ptx.cuh"
#include "kernels/weight_form.h"

#define PACKED_2_120 0x7b807b80u /* 2^120, twice */

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

#endif
