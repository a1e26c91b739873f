/*
 * lanes.cuh: the basis of device code whose results must equal the CPU's bit
 * for bit.
 *
 * Such code is plain functions for a warp or a block of threads ("lanes") that
 * divide work as `for (i = lane; i < n; i += lanes)` and synchronise with
 * lanes_sync.
 *
 * Rounded arithmetic goes through the functions below: nvcc would fuse a
 * product and a sum into one operation, which rounds once.
 */
#ifndef TR_CUDA_LANES_CUH
#define TR_CUDA_LANES_CUH

#include <math.h>

#include <cuda_fp16.h>

#include "kernels/dtype.h"

#define TR_DEVICE static __device__ inline

/* A warp on the device: lanes = 32. */
typedef struct {
    uint32_t lane, lanes;
} warp_t;

/* A block of threads. */
typedef struct {
    uint32_t lane, lanes;
} block_t;

TR_DEVICE void
lanes_sync(warp_t)
{
    __syncwarp();
}

TR_DEVICE void
lanes_sync(block_t)
{
    __syncthreads();
}

/* The smallest x of a warp; NaN counts for nothing. */
TR_DEVICE float
lanes_least(warp_t w, float x)
{
    for (int d = 16; d > 0; d /= 2) {
        x = fminf(x, __shfl_xor_sync(0xffffffffu, x, d));
    }
    (void) w;
    return x;
}

/* The smallest and the largest of a warp's x, what lane `from` has, what lane
 * ^ mask has. */
TR_DEVICE uint32_t
lanes_min(warp_t w, uint32_t x)
{
    (void) w;
    return __reduce_min_sync(0xffffffffu, x);
}

TR_DEVICE uint32_t
lanes_max(warp_t w, uint32_t x)
{
    return ~lanes_min(w, ~x);
}

TR_DEVICE uint32_t
lanes_from(warp_t w, uint32_t x, uint32_t from)
{
    (void) w;
    return __shfl_sync(0xffffffffu, x, (int) from);
}

TR_DEVICE uint32_t
lanes_xor(warp_t w, uint32_t x, uint32_t mask)
{
    (void) w;
    return __shfl_xor_sync(0xffffffffu, x, (int) mask);
}

/* ---- arithmetic, rounded to nearest even -------------------------------- */

TR_DEVICE float
mul_rn(float a, float b)
{
    return __fmul_rn(a, b);
}

TR_DEVICE float
add_rn(float a, float b)
{
    return __fadd_rn(a, b);
}

TR_DEVICE float
div_rn(float a, float b)
{
    return __fdiv_rn(a, b);
}

/* FP16; all but NaN saturate.  A NaN keeps its sign alone. */
TR_DEVICE uint16_t
half_of(float x)
{
    uint16_t h;

    if (x != x) {
        uint32_t u;

        memcpy(&u, &x, 4);
        return (uint16_t) ((u >> 16 & 0x8000) | 0x7e00);
    }
    x = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;

    __half y = __float2half_rn(x);

    memcpy(&h, &y, 2);
    return h;
}

TR_DEVICE float
float_of(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

/* Element i of an aligned array. */
TR_DEVICE float
number_load(const void *src, size_t i, tr_dtype_t type)
{
    uint16_t h;

    if (type == TR_F32) {
        return ((const float *) src)[i];
    }
    h = ((const uint16_t *) src)[i];
    return type == TR_BF16 ? tr_float_from_bits((uint32_t) h << 16)
                           : float_of(h);
}

#endif
