/*
 * decode_join.cuh: the parts of a query head, joined.
 */
#ifndef TR_CUDA_DECODE_JOIN_CUH
#define TR_CUDA_DECODE_JOIN_CUH

#include "decode.cuh"
#include "ptx.cuh"

#define JOIN_THREADS 128u /* where there are many query heads */
#define JOIN_WARPS 8u     /* for each of some */
#define JOIN_MOST 32u     /* for each of few, which have many parts */

#define EARLY 6 /* parts that are asked for before their sums are known */
#define POLL 100 /* ns */

/* All parts of the layer are there.  Of the block, all threads come. */
static __device__ __forceinline__ void
await_parts(const decode_args_t &a)
{
    if (a.ended == NULL) {
        launch_wait();
        return;
    }
    if (threadIdx.x == 0) {
        while (load_relaxed(a.ended) < a.blocks) {
            __nanosleep(POLL);
        }
        (void) load_acquire(a.ended);
    }
    __syncthreads();
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

/* Where the parts of a query head are, and where its output belongs; of outputs
 * the lane's elements. */
typedef struct {
    const float2 *sums; /* of the first part */
    const float *outs;
    size_t to;
    uint32_t step; /* floats from a part's output to the next one's */
    uint32_t n;    /* parts; 0: the head has none */
    float *total;  /* for the scores */
} joined_t;

/* Query head `at` of the step, by what the plan left: it is read while attention
 * still runs. */
template <int D>
static __device__ __forceinline__ joined_t
find_parts(const decode_args_t &a, uint32_t at)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t head = at / a.group, k = at - head * a.group;
    const decode_head_t *h = a.work.head + head;
    const uint2 span = a.work.span[head];
    const uint32_t tiles = h->tiles, row = h->row, list = h->head % a.kv.lists;
    const size_t place = (size_t) span.x + head;
    joined_t j;

    j.n = tiles > 0 ? span.y - span.x + 1 : 0;
    j.sums = a.work.part_sum + place * GROUP + k;
    j.step = a.group * D;
    j.outs = a.work.part_out + place * j.step + k * D + lane * (D / 32);
    j.to = (size_t) row * a.ldo + (size_t) (list * a.group + k) * D
           + lane * (D / 32);
    j.total = a.left.total + (size_t) head * GROUP + k;
    return j;
}

static __device__ __forceinline__ float
warp_sum(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(TR_ALL_LANES, x, d);
    }
    return x;
}

static __device__ __forceinline__ float
warp_max(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        x = fmaxf(x, __shfl_xor_sync(TR_ALL_LANES, x, d));
    }
    return x;
}

/* Parts way, way + ways, .. over the sum of all; those of the first 32 have their
 * weights from the lane that read their sums. */
template <int D>
static __device__ __forceinline__ void
join(const joined_t &j, uint32_t way, uint32_t ways, float (&x)[D / 32])
{
    constexpr int N = D / 32; /* elements of a lane */
    const uint32_t n = j.n;
    const uint32_t lane = threadIdx.x % 32;
    const float2 none = make_float2(-1e30f, 0);
    float2 mine = lane < n ? j.sums[(size_t) lane * GROUP] : none, all;
    float y[EARLY][N], most, by, weight;

#pragma unroll
    for (uint32_t i = 0; i < EARLY; i++) {
        uint32_t b = way + i * ways;

        if (b < n) {
            load_part<D>(j.outs + (size_t) b * j.step, y[i]);
        } else {
#pragma unroll
            for (int c = 0; c < N; c++) {
                y[i][c] = 0;
            }
        }
    }
    all = mine;
#pragma unroll 4
    for (uint32_t b = lane + 32; b < n; b += 32) {
        float2 s = j.sums[(size_t) b * GROUP];

        most = fmaxf(all.x, s.x);
        all.y = all.y * exp2_fast(all.x - most) + s.y * exp2_fast(s.x - most);
        all.x = most;
    }
    most = warp_max(all.x);
    all.y = warp_sum(all.y * exp2_fast(all.x - most));
    by = 1 / all.y;
    weight = exp2_fast(mine.x - most) * by;
#pragma unroll
    for (int c = 0; c < N; c++) {
        x[c] = 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < EARLY; i++) {
        uint32_t b = way + i * ways;
        float w = __shfl_sync(TR_ALL_LANES, weight, b % 32);

        if (b >= n) {
            w = 0;
        } else if (ways > 1 && b >= 32) {
            w = exp2_fast(j.sums[(size_t) b * GROUP].x - most) * by;
        }
#pragma unroll
        for (int c = 0; c < N; c++) {
            x[c] = fmaf(y[i][c], w, x[c]);
        }
    }
#pragma unroll 4
    for (uint32_t b = way + EARLY * ways; b < n; b += ways) {
        float w = exp2_fast(j.sums[(size_t) b * GROUP].x - most) * by;

        load_part<D>(j.outs + (size_t) b * j.step, y[0]);
#pragma unroll
        for (int c = 0; c < N; c++) {
            x[c] = fmaf(y[0][c], w, x[c]);
        }
    }
    if (way == 0 && lane == 0) {
        *j.total = most + __log2f(all.y);
    }
}

template <int D>
static __device__ __forceinline__ void
join_by_warp(const decode_args_t &a, uint32_t at)
{
    const joined_t j = find_parts<D>(a, at);
    float x[D / 32];

    await_parts(a);
    if (j.n == 0) {
        return;
    }
    join<D>(j, 0, 1, x);
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        store_out(a, j.to + c, x[c]);
    }
}

/* WARPS: of the block. */
template <int D, int WARPS>
static __device__ __forceinline__ void
join_by_block(const decode_args_t &a, uint32_t at)
{
    constexpr int N = D / 32;
    __shared__ __align__(16) float out[WARPS][D];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const joined_t j = find_parts<D>(a, at);
    float x[N], sum = 0;

    await_parts(a);
    if (j.n == 0) {
        return;
    }
    join<D>(j, warp, WARPS, x);
#pragma unroll
    for (int i = 0; i < N; i++) {
        out[warp][lane * N + i] = x[i];
    }
    __syncthreads();
    if (threadIdx.x >= D) {
        return;
    }
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
        sum += out[w][threadIdx.x];
    }
    store_out(a, j.to - lane * N + threadIdx.x, sum);
}

#endif
