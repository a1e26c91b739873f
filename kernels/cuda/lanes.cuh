/*
 * lanes.cuh: what device code that must equal the CPU's bit for bit is written
 * in.
 *
 * Such code is plain functions for a warp or a block of threads, "lanes", that
 * share work as `for (i = lane; i < n; i += lanes)` and meet at lanes_sync.
 * They compile for the host, too, with any number of lanes: a test without a
 * GPU runs them (tests/gpu/emulate.h), lane after lane in random order between
 * two meetings, so that a missing one shows.
 *
 * Arithmetic that is rounded goes through the functions below: nvcc would fuse
 * a product and a sum into one operation, which rounds once.
 */
#ifndef TR_CUDA_LANES_CUH
#define TR_CUDA_LANES_CUH

#include <math.h>

#include <cuda_fp16.h>

#include "../kernels.h"

/* A warp on the device: lanes = 32. */
typedef struct {
    uint32_t lane, lanes;
} warp_t;

/* A block of threads. */
typedef struct {
    uint32_t lane, lanes;
} block_t;

#ifndef __CUDA_ARCH__
/* Given by a test that runs device code on the host. */
extern "C" void tr_emulate_sync(void);
extern "C" float *tr_emulate_room(void); /* 64 bits a lane */
#endif

TR_HD void
lanes_sync(warp_t)
{
#ifdef __CUDA_ARCH__
    __syncwarp();
#else
    tr_emulate_sync();
#endif
}

TR_HD void
lanes_sync(block_t)
{
#ifdef __CUDA_ARCH__
    __syncthreads();
#else
    tr_emulate_sync();
#endif
}

/* The smallest x of a warp; NaN counts for nothing. */
TR_HD float
lanes_least(warp_t w, float x)
{
#ifdef __CUDA_ARCH__
    for (int d = 16; d > 0; d /= 2) {
        x = fminf(x, __shfl_xor_sync(0xffffffffu, x, d));
    }
    (void) w;
#else
    float *room = tr_emulate_room();

    room[w.lane] = x;
    tr_emulate_sync();
    for (uint32_t i = 0; i < w.lanes; i++) {
        x = fminf(x, room[i]);
    }
    tr_emulate_sync();
#endif
    return x;
}

/* The smallest and the largest of a warp's x, what lane `from` has, what lane
 * ^ mask has. */
#ifndef __CUDA_ARCH__
static inline uint32_t
lanes_exchange(warp_t w, uint32_t x, uint32_t from)
{
    float *room = tr_emulate_room();

    memcpy(&room[w.lane], &x, 4);
    tr_emulate_sync();
    memcpy(&x, &room[from], 4);
    tr_emulate_sync();
    return x;
}
#endif

TR_HD uint32_t
lanes_min(warp_t w, uint32_t x)
{
#ifdef __CUDA_ARCH__
    (void) w;
    return __reduce_min_sync(0xffffffffu, x);
#else
    for (uint32_t d = 1; d < w.lanes; d *= 2) { /* a power of two of them */
        uint32_t y = lanes_exchange(w, x, w.lane ^ d);

        x = y < x ? y : x;
    }
    return x;
#endif
}

TR_HD uint32_t
lanes_max(warp_t w, uint32_t x)
{
    return ~lanes_min(w, ~x);
}

TR_HD uint32_t
lanes_from(warp_t w, uint32_t x, uint32_t from)
{
#ifdef __CUDA_ARCH__
    (void) w;
    return __shfl_sync(0xffffffffu, x, (int) from);
#else
    return lanes_exchange(w, x, from);
#endif
}

TR_HD uint32_t
lanes_xor(warp_t w, uint32_t x, uint32_t mask)
{
#ifdef __CUDA_ARCH__
    (void) w;
    return __shfl_xor_sync(0xffffffffu, x, (int) mask);
#else
    return lanes_exchange(w, x, w.lane ^ mask);
#endif
}

/* ---- arithmetic, rounded to nearest even -------------------------------- */

TR_HD float
mul_rn(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

TR_HD float
add_rn(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

TR_HD float
div_rn(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

/* FP16; all but NaN saturate.  A NaN keeps its sign alone. */
TR_HD uint16_t
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

TR_HD float
float_of(uint16_t h)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(h));
#else
    return tr_float_from_half(h);
#endif
}

/* Element i of an aligned array. */
TR_HD float
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
