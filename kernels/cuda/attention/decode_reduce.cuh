/*
 * decode_reduce.cuh: the split-KV reduction (flash decoding's second pass). The
 * attention kernel leaves, of each query head, one partial output for each
 * range of the cache that a warp read; the output is their sum, each weighted
 * by its sum of weights, over the sum of all weights.  A warp loads its parts
 * and their sums all together, to wait for memory once and not once for each;
 * then the warps of a block add up what they have.
 */
#ifndef TR_CUDA_DECODE_REDUCE_CUH
#define TR_CUDA_DECODE_REDUCE_CUH

#include "kernels/cuda/block.cuh"
#include "decode.cuh"
#include "kernels/cuda/ptx.cuh"

#define MANY_THREADS 128u /* of blocks whose warps have a query head each */
/* Threads of a block that reduces one query head, or some of its elements. */
#define REDUCE_THREADS 256u
#define REDUCE_WARPS (REDUCE_THREADS / 32)
#define REDUCE_SHARE 32 /* elements */

/* Parts of a lane at once: of a warp that has a query head; of warps that share
 * one; of warps that share some elements of one; of these, where so many are
 * all. */
#ifdef TR_SMALL_PARTS /* of a test, which then has more of them */
#define WARP_PARTS 1
#define HEAD_PARTS 1
#define SHARE_PARTS 2
#define SHARE_FEW 1
#else
#define WARP_PARTS 6
#define HEAD_PARTS 4
#define SHARE_PARTS 8
#define SHARE_FEW 3
#endif

/* Blocks that a multiprocessor has at a time, at least: of a head each, or of a
 * share. */
#define HEAD_BLOCKS 5
#define SHARE_BLOCKS 4

#define NO_PART (-1e30f) /* the logarithm of no weight */
#define POLL 100         /* ns */

/* All parts of the layer are there.  Of the block, all threads come. */
static __device__ __forceinline__ void
await_parts(const decode_args_t &a)
{
    if (a.ended == NULL) {
        launch_wait();
        return;
    }
    if (threadIdx.x == 0) {
        while (load_acquire(a.ended) < a.blocks) {
            __nanosleep(POLL);
        }
    }
    __syncthreads();
}

/* Four elements of the output, from `at` on, each times `by`. */
static __device__ __forceinline__ void
store_out(const decode_args_t &a, size_t at, const float (&x)[4], float by)
{
    const float y[4] = { x[0] * by, x[1] * by, x[2] * by, x[3] * by };

    if (a.out_type == TR_F32) {
        *(float4 *) ((float *) a.out + at) = make_float4(y[0], y[1], y[2],
                                                         y[3]);
    } else {
        const tr_dtype_t type = (tr_dtype_t) a.out_type;

        *(uint2 *) ((uint16_t *) a.out
                    + at) = make_uint2(pair_close(y[0], y[1], type),
                                       pair_close(y[2], y[3], type));
    }
}

/* Where the parts of a query head are, for the lane, and where its elements
 * belong. */
typedef struct {
    const float2 *sums; /* of the first part */
    const float *outs;  /* of it, the lane's first element */
    size_t to;
    uint32_t step; /* floats from a part's output to the next one's */
    uint32_t n;    /* parts; 0: the head has none */
    float *total;  /* for the scores */
    float sink;    /* of the query head, in log2 units, where there are any */
} parts_t;

/* Query head `at` of the step, the lane's elements from `first` on: by what the
 * plan left, which is read while attention still runs. */
template <int D>
static __device__ __forceinline__ parts_t
find_parts(const decode_args_t &a, uint32_t at, uint32_t first)
{
    const uint32_t head = a.group_inverse == 0 ? at
                                               : __umulhi(at, a.group_inverse);
    const uint32_t k = at - head * a.group;
    const decode_span_t s = a.work.span[head];
    const uint32_t place = s.first + head;
    parts_t j;

    j.n = s.last - s.first + 1;
    j.step = a.group * D;
    j.sums = a.work.part_sum + (size_t) place * GROUP + k;
    j.outs = a.work.part_out + (size_t) place * j.step + k * D + first;
    j.to = s.row * a.ldo + s.kv_head * j.step + k * D + first;
    j.total = a.left.total + head * GROUP + k;
    j.sink = -INFINITY;
    if (a.kv.sinks != NULL && a.kv.sinks[a.layer] != NULL) {
        j.sink = a.kv.sinks[a.layer][s.kv_head * a.group + k]
                 * 1.4426950408889634f;
    }
    return j;
}

/* What was found of a query head: the sum of parts, weighted by 2 to their
 * logarithm less `most`, and the sum of the weights. */
typedef struct {
    float x[4]; /* of a lane's elements */
    float most, weights;
} found_t;

/* From now on by another maximum, which is not less. */
static __device__ __forceinline__ void
weigh_by(found_t &f, float most)
{
    const float by = exp2_fast(f.most - most);

#pragma unroll
    for (int c = 0; c < 4; c++) {
        f.x[c] *= by;
    }
    f.weights *= by;
    f.most = most;
}

static __device__ __forceinline__ void
add_found(found_t &f, found_t more)
{
    const float most = fmaxf(f.most, more.most);

    weigh_by(f, most);
    weigh_by(more, most);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        f.x[c] += more.x[c];
    }
    f.weights += more.weights;
}

/* The lane's first N of parts from, from + STEP, .. */
template <uint32_t N, uint32_t STEP>
static __device__ __forceinline__ found_t
reduce_some(const parts_t &j, uint32_t from)
{
    float2 sum[N];
    float4 y[N];
    found_t f = { { 0, 0, 0, 0 }, NO_PART, 0 };

#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t part = from + i * STEP;

        sum[i] = make_float2(NO_PART, 0);
        y[i] = make_float4(0, 0, 0, 0);
        if (part < j.n) {
            sum[i] = j.sums[part * GROUP];
            y[i] = *(const float4 *) (j.outs + part * j.step);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        f.most = fmaxf(f.most, sum[i].x);
    }
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        const float by = exp2_fast(sum[i].x - f.most);

        f.weights = fmaf(sum[i].y, by, f.weights);
        f.x[0] = fmaf(y[i].x, by, f.x[0]);
        f.x[1] = fmaf(y[i].y, by, f.x[1]);
        f.x[2] = fmaf(y[i].z, by, f.x[2]);
        f.x[3] = fmaf(y[i].w, by, f.x[3]);
    }
    return f;
}

/* All parts that are the warp's, of WARPS that share E elements of a query
 * head: N of a lane at once, or FEW, if these are all.  Neighbouring lanes have
 * these elements, four each; when there are fewer than 128, other lanes have
 * other parts.  In the end every lane has what the warp found of its
 * elements. */
template <int E, uint32_t FEW, uint32_t N, uint32_t WARPS>
static __device__ __forceinline__ found_t
reduce_parts(const parts_t &j, uint32_t warp)
{
    constexpr uint32_t LANES = E / 4, AT_ONCE = 32 / LANES;
    constexpr uint32_t STEP = AT_ONCE * WARPS;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t from = warp * AT_ONCE + lane / LANES;
    found_t f;

    if (FEW < N && j.n <= FEW * STEP) {
        f = reduce_some<FEW, STEP>(j, from);
    } else {
        f = reduce_some<N, STEP>(j, from);
#pragma unroll 1
        for (from += N * STEP; from < j.n; from += N * STEP) {
            add_found(f, reduce_some<N, STEP>(j, from));
        }
    }
    if constexpr (LANES == 32) {
        return f;
    }

    float most = f.most;

#pragma unroll
    for (uint32_t d = LANES; d < 32; d *= 2) {
        most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, d));
    }
    weigh_by(f, most);
#pragma unroll
    for (uint32_t d = LANES; d < 32; d *= 2) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            f.x[c] += __shfl_xor_sync(TR_ALL_LANES, f.x[c], d);
        }
        f.weights += __shfl_xor_sync(TR_ALL_LANES, f.weights, d);
    }
    return f;
}

static __device__ __forceinline__ void
store_reduced(const decode_args_t &a, const parts_t &j, const found_t &f,
              bool leads)
{
    /* beyond 2^126 the quotient is 0, as it should be nearly */
    const float weights = f.weights + exp2_fast(j.sink - f.most);

    store_out(a, j.to, f.x, __fdividef(1, weights));
    if (leads) { /* has the head's first element */
        *j.total = f.most + __log2f(weights);
    }
}

/* Elements of a query head that a warp can have: four a lane. */
static __host__ __device__ constexpr int
warp_share(int dim)
{
    return dim < 128 ? dim : 128;
}

/* Share `at` of a query head, if there is one; all warps of the block wait in one
 * place. */
template <int D>
static __device__ __forceinline__ void
reduce_by_warp(const decode_args_t &a, uint32_t at, uint32_t shares)
{
    constexpr int E = warp_share(D);
    const uint32_t lane = threadIdx.x % 32, i = min(at, shares - 1);
    const uint32_t first = i % (D / E) * E;
    const parts_t j = find_parts<D>(a, i / (D / E), first + lane % (E / 4) * 4);

    await_parts(a);
    if (at < shares && j.n > 0) {
        const found_t f = reduce_parts<E, WARP_PARTS, WARP_PARTS, 1>(j, 0);

        if (lane < E / 4) {
            store_reduced(a, j, f, first == 0 && lane == 0);
        }
    }
}

/* E elements of a query head: share `at` of all. */
template <int D, int E>
static __device__ __forceinline__ void
reduce_by_block(const decode_args_t &a, uint32_t at)
{
    __shared__ float4 out[REDUCE_WARPS][E / 4];
    __shared__ float2 sums[REDUCE_WARPS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t first = at % (D / E) * E;
    const parts_t j = find_parts<D>(a, at / (D / E),
                                    first + lane % (E / 4) * 4);
    found_t f;

    await_parts(a);
    if (j.n == 0) {
        return;
    }
    f = E == warp_share(D)
            ? reduce_parts<E, HEAD_PARTS, HEAD_PARTS, REDUCE_WARPS>(j, warp)
            : reduce_parts<E, SHARE_FEW, SHARE_PARTS, REDUCE_WARPS>(j, warp);
    if (lane < E / 4) {
        out[warp][lane] = make_float4(f.x[0], f.x[1], f.x[2], f.x[3]);
    }
    if (lane == 0) {
        sums[warp] = make_float2(f.most, f.weights);
    }
    __syncthreads();
    if (threadIdx.x >= E / 4) {
        return;
    }
    f = { { 0, 0, 0, 0 }, NO_PART, 0 };
#pragma unroll
    for (uint32_t w = 0; w < REDUCE_WARPS; w++) {
        f.most = fmaxf(f.most, sums[w].x);
    }
#pragma unroll
    for (uint32_t w = 0; w < REDUCE_WARPS; w++) {
        const float by = exp2_fast(sums[w].x - f.most);
        const float4 o = out[w][lane];

        f.weights = fmaf(sums[w].y, by, f.weights);
        f.x[0] = fmaf(o.x, by, f.x[0]);
        f.x[1] = fmaf(o.y, by, f.x[1]);
        f.x[2] = fmaf(o.z, by, f.x[2]);
        f.x[3] = fmaf(o.w, by, f.x[3]);
    }
    store_reduced(a, j, f, first == 0 && lane == 0);
}

#endif
