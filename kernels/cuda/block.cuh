/*
 * block.cuh: sums, maxima and scans over the threads of a block, and rows of
 * numbers in steps of eight or four.
 *
 * `meet` is shared memory of the block; it may be used again as soon as a
 * function has returned.
 */
#ifndef TR_CUDA_BLOCK_CUH
#define TR_CUDA_BLOCK_CUH

#include <cuda_bf16.h>

#include "lanes.cuh"

#define MEET 32u /* warps of a block, at most */
#define TR_EVERY_LANE 0xffffffffu

/* The sum of x, in an order that depends on the number of lanes alone. */
TR_DEVICE float
block_sum(block_t b, float x, uint64_t *meet)
{
    float *smem = (float *) meet, sum = 0;

    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(TR_EVERY_LANE, x, d);
    }
    if (b.lane % 32 == 0) {
        smem[b.lane / 32] = x;
    }
    __syncthreads();
    for (uint32_t i = 0; i < b.lanes / 32; i++) {
        sum += smem[i];
    }
    __syncthreads();
    return sum;
}

TR_DEVICE uint64_t
block_max(block_t b, uint64_t x, uint64_t *meet)
{
    for (int d = 16; d > 0; d /= 2) {
        uint64_t y = __shfl_xor_sync(TR_EVERY_LANE, x, d);

        x = y > x ? y : x;
    }
    if (b.lane % 32 == 0) {
        meet[b.lane / 32] = x;
    }
    __syncthreads();
    for (uint32_t i = 0; i < b.lanes / 32; i++) {
        x = meet[i] > x ? meet[i] : x;
    }
    __syncthreads();
    return x;
}

/* The sum of all lower lanes' x; of all in *total. */
TR_DEVICE uint64_t
block_scan(block_t b, uint64_t x, uint64_t *meet, uint64_t *total)
{
    uint64_t below = 0, all = 0;

    uint32_t lane = b.lane % 32, warp = b.lane / 32;
    uint64_t sum = x;

    for (uint32_t d = 1; d < 32; d *= 2) {
        uint64_t y = __shfl_up_sync(TR_EVERY_LANE, sum, d);

        sum += lane >= d ? y : 0;
    }
    if (lane == 31) {
        meet[warp] = sum;
    }
    __syncthreads();
    for (uint32_t i = 0; i < b.lanes / 32; i++) {
        below += i < warp ? meet[i] : 0;
        all += meet[i];
    }
    __syncthreads();
    below += sum - x;
    *total = all;
    return below;
}

/* What *p was before x was added. */
TR_DEVICE uint32_t
lane_add(uint32_t *p, uint32_t x)
{
    return atomicAdd(p, x);
}

/* To shared memory, which adds 32 bits at a time; whole once all lanes have
 * met. */
TR_DEVICE void
lane_add_long(uint64_t *p, uint64_t x)
{
    uint32_t *half = (uint32_t *) p, low = (uint32_t) x;
    uint32_t high = (uint32_t) (x >> 32);

    high += atomicAdd(&half[0], low) > ~low; /* carry */
    if (high != 0) {
        atomicAdd(&half[1], high);
    }
}

/* *to += x of each lane; all lanes come, nobody waits.  The order has no
 * influence on whole numbers. */
TR_DEVICE void
block_gather(block_t b, uint64_t *to, uint64_t x)
{
    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(TR_EVERY_LANE, x, d);
    }
    if (b.lane % 32 == 0 && x != 0) {
        lane_add_long(to, x);
    }
}

TR_DEVICE void
lane_or(uint32_t *p, uint32_t x)
{
    atomicOr(p, x);
}

/* ---- eight numbers ------------------------------------------------------ */

typedef struct {
    float x[8];
} eight_t;

/* Is an address (NULL is), are n elements of a size, a multiple of 16 bytes? */
TR_HD bool
is_wide(const void *p)
{
    return ((uintptr_t) p & 15) == 0;
}

TR_HD bool
is_wide(size_t n, size_t size)
{
    return n * size % 16 == 0;
}

TR_DEVICE float2
pair_open(uint32_t u, tr_dtype_t type)
{
    float2 f;

    if (type == TR_BF16) {
        f.x = tr_float_from_bits(u << 16);
        f.y = tr_float_from_bits(u & 0xffff0000u);
    } else {
        f.x = float_of((uint16_t) u);
        f.y = float_of((uint16_t) (u >> 16));
    }
    return f;
}

TR_DEVICE uint32_t
pair_close(float x, float y, tr_dtype_t type)
{
    uint32_t u;

    if (type == TR_BF16) {
        __nv_bfloat162 p = __floats2bfloat162_rn(x, y);

        memcpy(&u, &p, 4);
    } else {
        __half2 p = __floats2half2_rn(x, y);

        memcpy(&u, &p, 4);
    }
    return u;
}

/* Elements [at, at + n) of p, n up to 8, then zeros.  wide: at and p are
 * multiples of 16 bytes. */
TR_DEVICE eight_t
eight_load(const void *p, size_t at, uint32_t n, tr_dtype_t type, bool wide)
{
    eight_t e;

    if (!wide || n < 8) {
        for (uint32_t i = 0; i < 8; i++) {
            e.x[i] = i < n ? number_load(p, at + i, type) : 0;
        }
        return e;
    }
    if (type == TR_F32) {
        const float4 *from = (const float4 *) ((const float *) p + at);
        float4 u = from[0], v = from[1];

        e.x[0] = u.x, e.x[1] = u.y, e.x[2] = u.z, e.x[3] = u.w;
        e.x[4] = v.x, e.x[5] = v.y, e.x[6] = v.z, e.x[7] = v.w;
    } else {
        uint4 u = *(const uint4 *) ((const uint16_t *) p + at);
        float2 f[4] = { pair_open(u.x, type), pair_open(u.y, type),
                        pair_open(u.z, type), pair_open(u.w, type) };

        for (uint32_t i = 0; i < 4; i++) {
            e.x[2 * i] = f[i].x;
            e.x[2 * i + 1] = f[i].y;
        }
    }
    return e;
}

TR_DEVICE void
eight_store(void *p, size_t at, uint32_t n, tr_dtype_t type, bool wide,
            const eight_t *e)
{
    if (!wide || n < 8) {
        for (uint32_t i = 0; i < 8; i++) {
            if (i < n) {
                tr_float_store(p, at + i, type, e->x[i]);
            }
        }
        return;
    }
    if (type == TR_F32) {
        float4 *to = (float4 *) ((float *) p + at);

        to[0] = make_float4(e->x[0], e->x[1], e->x[2], e->x[3]);
        to[1] = make_float4(e->x[4], e->x[5], e->x[6], e->x[7]);
    } else {
        uint4 u = make_uint4(pair_close(e->x[0], e->x[1], type),
                             pair_close(e->x[2], e->x[3], type),
                             pair_close(e->x[4], e->x[5], type),
                             pair_close(e->x[6], e->x[7], type));

        *(uint4 *) ((uint16_t *) p + at) = u;
    }
}

/* How many of the eight from `at` on are there. */
TR_DEVICE uint32_t
eight_count(uint32_t n, uint32_t at)
{
    return at >= n ? 0 : n - at < 8 ? n - at : 8;
}

#endif
