/*
 * decode_join.cuh: the parts of a query head, joined.
 */
#ifndef TR_CUDA_DECODE_JOIN_CUH
#define TR_CUDA_DECODE_JOIN_CUH

#include "decode.cuh"
#include "ptx.cuh"

#define JOIN_THREADS 256u /* where there are many query heads */
#define JOIN_WARPS (JOIN_THREADS / 32)
#define JOIN_MOST 32u /* warps for each of few, which have many parts */

#define EARLY 4 /* parts that are asked for before all sums are known */

/* {max, sum relative to it} of all parts of a query head. */
static __device__ __forceinline__ float2
join_sums(const float2 *from, uint2 span)
{
    float2 all = make_float2(-1e30f, 0);

#pragma unroll 8
    for (uint32_t b = span.x + threadIdx.x % 32; b <= span.y; b += 32) {
        float2 x = from[(size_t) b * GROUP];
        float most = fmaxf(all.x, x.x);

        all.y = all.y * exp2_fast(all.x - most) + x.y * exp2_fast(x.x - most);
        all.x = most;
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        float m = __shfl_xor_sync(TR_ALL_LANES, all.x, d);
        float sum = __shfl_xor_sync(TR_ALL_LANES, all.y, d);
        float most = fmaxf(all.x, m);

        all.y = all.y * exp2_fast(all.x - most) + sum * exp2_fast(m - most);
        all.x = most;
    }
    return all;
}

static __device__ __forceinline__ void
store_out(const decode_args_t &a, size_t at, float x)
{
    if (a.out_type == TR_F32) {
        ((float *) a.out)[at] = x;
    } else if (a.out_type == TR_F16) {
        ((__half *) a.out)[at] = __float2half_rn(x);
    } else {
        uint32_t u = __float_as_uint(x);

        u += 0x7fff + (u >> 16 & 1); /* to nearest even */
        ((uint16_t *) a.out)[at] = (uint16_t) (u >> 16);
    }
}

/* The lane's elements of a part. */
template <int D>
static __device__ __forceinline__ void
load_part(const float *from, float (&y)[D / 32])
{
    constexpr int N = D / 32;

    if (D == 128) {
        float4 v = *(const float4 *) from;

        y[0] = v.x;
        y[1] = v.y;
        y[N - 2] = v.z;
        y[N - 1] = v.w;
    } else {
        float2 v = *(const float2 *) from;

        y[0] = v.x;
        y[1] = v.y;
    }
}

/* Parts way, way + ways, .. of query head `at` of the step, over the sum of
 * all; false: it has none.  to: where the lane's elements belong.  Where the
 * parts are is all that must be read before them, and that the plan left: it is
 * read while attention still runs. */
template <int D>
static __device__ __forceinline__ bool
join(const decode_args_t &a, uint32_t at, uint32_t way, uint32_t ways,
     float (&x)[D / 32], size_t &to)
{
    constexpr int N = D / 32; /* elements of a lane */
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t head = at / a.group, k = at - head * a.group;
    const decode_head_t *h = a.work.head + head;
    const uint2 span = a.work.span[head];
    const uint32_t tiles = h->tiles, row = h->row, list = h->head % a.kv.lists;
    const float2 *sums = a.work.part_sum + (size_t) head * GROUP + k;
    const float *outs = a.work.part_out + ((size_t) head * a.group + k) * D
                        + lane * N;
    const size_t step = (size_t) a.group * D;
    float max[EARLY], y[EARLY][N];

    launch_wait();
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = 0;
    }
    if (tiles == 0) {
        return false;
    }
#pragma unroll
    for (uint32_t i = 0; i < EARLY; i++) {
        uint32_t b = span.x + way + i * ways;

        max[i] = -INFINITY;
        if (b <= span.y) {
            max[i] = sums[(size_t) b * GROUP].x;
            load_part<D>(outs + b * step, y[i]);
        }
    }
    const float2 total = join_sums(sums, span);
    const float by = 1 / total.y;

#pragma unroll
    for (uint32_t i = 0; i < EARLY; i++) {
        if (span.x + way + i * ways <= span.y) {
            float c = exp2_fast(max[i] - total.x) * by;

#pragma unroll
            for (int n = 0; n < N; n++) {
                x[n] += y[i][n] * c;
            }
        }
    }
#pragma unroll 4
    for (uint32_t b = span.x + way + EARLY * ways; b <= span.y; b += ways) {
        float c = exp2_fast(sums[(size_t) b * GROUP].x - total.x) * by;

        load_part<D>(outs + b * step, y[0]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            x[n] += y[0][n] * c;
        }
    }
    to = (size_t) row * a.ldo + (size_t) (list * a.group + k) * D + lane * N;
    if (way == 0 && lane == 0) { /* for the scores */
        a.left.total[head * GROUP + k] = total.x + __log2f(total.y);
    }
    return true;
}

template <int D>
static __device__ __forceinline__ void
join_by_warp(const decode_args_t &a, uint32_t at)
{
    float x[D / 32];
    size_t to = 0;

    if (join<D>(a, at, 0, 1, x, to)) {
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            store_out(a, to + i, x[i]);
        }
    }
}

/* WARPS: of the block. */
template <int D, int WARPS>
static __device__ __forceinline__ void
join_by_block(const decode_args_t &a, uint32_t at)
{
    constexpr int N = D / 32;
    __shared__ __align__(16) float out[WARPS][D];
    __shared__ size_t begin;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x[N], sum = 0;
    size_t to = 0;
    bool any = join<D>(a, at, warp, WARPS, x, to);

#pragma unroll
    for (int i = 0; i < N; i++) {
        out[warp][lane * N + i] = x[i];
    }
    if (threadIdx.x == 0) {
        begin = to;
    }
    __syncthreads();
    if (threadIdx.x >= D || !any) {
        return;
    }
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
        sum += out[w][threadIdx.x];
    }
    store_out(a, begin + threadIdx.x, sum);
}

#endif
