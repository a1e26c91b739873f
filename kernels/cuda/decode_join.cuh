/*
 * decode_join.cuh: the parts of a query head, joined: their outputs, each by the sum
 * of its weights, over the sum of all (split-K attention, as in flash decoding).
 * A warp asks for its parts and their sums all together, to wait for memory once and
 * not once for each; then the warps of a block join what they have found.
 */
#ifndef TR_CUDA_DECODE_JOIN_CUH
#define TR_CUDA_DECODE_JOIN_CUH

#include "decode.cuh"
#include "ptx.cuh"

#define MANY_THREADS 128u /* of blocks whose warps have a query head each */
#define JOIN_THREADS 256u /* of those that join one, or a share of its elements */
#define JOIN_WARPS (JOIN_THREADS / 32)
#define JOIN_SHARE 32 /* elements */

/* Parts at once (join_some): of a warp that has a query head; of one of eight that
 * share a head, or a share of it. */
#define WARP_PARTS 6
#define HEAD_PARTS 4
#define SHARE_PARTS 8

/* Blocks that a multiprocessor has at a time, at least: of a head each, or of a share. */
#define HEAD_BLOCKS 5
#define SHARE_BLOCKS 4

#define NO_PART (-1e30f) /* the logarithm of no weight */
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
        while (load_acquire(a.ended) < a.blocks) {
            __nanosleep(POLL);
        }
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

/* Where the parts of a query head are, and where its output belongs. */
typedef struct {
    const float2 *sums; /* of the first part */
    const float *outs;
    size_t to;
    uint32_t step; /* floats from a part's output to the next one's */
    uint32_t n;    /* parts; 0: the head has none */
    float *total;  /* for the scores */
} joined_t;

/* Query head `at` of the step, from element `first` on, by what the plan left: it is
 * read while attention still runs. */
template <int D>
static __device__ __forceinline__ joined_t
find_parts(const decode_args_t &a, uint32_t at, uint32_t first)
{
    const uint32_t head = at / a.group, k = at - head * a.group;
    const decode_head_t *h = a.work.head + head;
    const uint2 span = a.work.span[head];
    const uint32_t tiles = h->tiles, row = h->row, list = h->head % a.kv.lists;
    const size_t place = (size_t) span.x + head;
    joined_t j;

    j.n = tiles > 0 ? span.y - span.x + 1 : 0;
    j.sums = a.work.part_sum + place * GROUP + k;
    j.step = a.group * D;
    j.outs = a.work.part_out + place * j.step + k * D + first;
    j.to = (size_t) row * a.ldo + (size_t) (list * a.group + k) * D + first;
    j.total = first == 0 ? a.left.total + (size_t) head * GROUP + k : NULL;
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

/* What was found of a query head: the sum of parts, weighted by 2 to their logarithm
 * less `most`, and the sum of the weights. */
typedef struct {
    float x[4]; /* of a lane's elements */
    float most, weights;
} found_t;

static __device__ __forceinline__ void
add_found(found_t &f, const found_t &more)
{
    const float most = fmaxf(f.most, more.most);
    const float by = exp2_fast(f.most - most);
    const float more_by = exp2_fast(more.most - most);

#pragma unroll
    for (int c = 0; c < 4; c++) {
        f.x[c] = fmaf(f.x[c], by, more.x[c] * more_by);
    }
    f.weights = fmaf(f.weights, by, more.weights * more_by);
    f.most = most;
}

/* N times as many parts as a warp reads at once, of E elements each: those from part
 * `from` on, then those a STEP further, .. */
template <int E, uint32_t N, uint32_t STEP>
static __device__ __forceinline__ found_t
join_some(const joined_t &j, uint32_t from)
{
    constexpr uint32_t LANES = E / 4, AT_ONCE = 32 / LANES;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t part = from + lane / LANES; /* the lane's first */
    const uint32_t own = from + lane / AT_ONCE * STEP + lane % AT_ONCE;
    const float *outs = j.outs + lane % LANES * 4;
    float2 sum = make_float2(NO_PART, 0); /* of the part that is the lane's own */
    float4 y[N];
    found_t f = { { 0, 0, 0, 0 }, 0, 0 };

    static_assert(N * AT_ONCE <= 32, "each part is the own one of a lane");
    if (lane < N * AT_ONCE && own < j.n) {
        sum = j.sums[(size_t) own * GROUP];
    }
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        y[i] = make_float4(0, 0, 0, 0);
        if (part + i * STEP < j.n) {
            y[i] = *(const float4 *) (outs + (size_t) (part + i * STEP) * j.step);
        }
    }
    f.most = warp_max(sum.x);
    sum.x = exp2_fast(sum.x - f.most);
    f.weights = warp_sum(sum.y * sum.x);
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        float w = __shfl_sync(TR_ALL_LANES, sum.x, i * AT_ONCE + lane / LANES);

        f.x[0] = fmaf(y[i].x, w, f.x[0]);
        f.x[1] = fmaf(y[i].y, w, f.x[1]);
        f.x[2] = fmaf(y[i].z, w, f.x[2]);
        f.x[3] = fmaf(y[i].w, w, f.x[3]);
    }
    return f;
}

/* All parts that are the warp's, of WARPS that share a query head. */
template <int E, uint32_t N, uint32_t WARPS>
static __device__ __forceinline__ found_t
join(const joined_t &j, uint32_t warp)
{
    constexpr uint32_t LANES = E / 4, AT_ONCE = 32 / LANES;
    constexpr uint32_t STEP = AT_ONCE * WARPS;
    uint32_t from = warp * AT_ONCE;
    found_t f = join_some<E, N, STEP>(j, from);

#pragma unroll 1
    for (from += N * STEP; from < j.n; from += N * STEP) {
        add_found(f, join_some<E, N, STEP>(j, from));
    }
#pragma unroll
    for (uint32_t d = LANES; d < 32; d *= 2) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            f.x[c] += __shfl_xor_sync(TR_ALL_LANES, f.x[c], d);
        }
    }
    return f;
}

template <int D>
static __device__ __forceinline__ void
join_by_warp(const decode_args_t &a, uint32_t at)
{
    const uint32_t lane = threadIdx.x % 32;
    const joined_t j = find_parts<D>(a, at, 0);
    found_t f;
    float by;

    await_parts(a);
    if (j.n == 0) {
        return;
    }
    f = join<D, WARP_PARTS, 1>(j, 0);
    by = 1 / f.weights;
#pragma unroll
    for (uint32_t c = 0; c < 4; c++) {
        if (lane < D / 4) {
            store_out(a, j.to + lane * 4 + c, f.x[c] * by);
        }
    }
    if (lane == 0) {
        *j.total = f.most + __log2f(f.weights);
    }
}

/* E elements of a query head: share `at` of all. */
template <int D, int E>
static __device__ __forceinline__ void
join_by_block(const decode_args_t &a, uint32_t at)
{
    __shared__ __align__(16) float out[JOIN_WARPS][E];
    __shared__ float2 sums[JOIN_WARPS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const joined_t j = find_parts<D>(a, at / (D / E), at % (D / E) * E);
    float most = NO_PART, weights = 0, sum = 0;
    found_t f;

    await_parts(a);
    if (j.n == 0) {
        return;
    }
    f = join<E, E == D ? HEAD_PARTS : SHARE_PARTS, JOIN_WARPS>(j, warp);
    if (lane < E / 4) {
        *(float4 *) (out[warp] + lane * 4) =
            make_float4(f.x[0], f.x[1], f.x[2], f.x[3]);
    }
    if (lane == 0) {
        sums[warp] = make_float2(f.most, f.weights);
    }
    __syncthreads();
    if (threadIdx.x >= E) {
        return;
    }
#pragma unroll
    for (uint32_t w = 0; w < JOIN_WARPS; w++) {
        most = fmaxf(most, sums[w].x);
    }
#pragma unroll
    for (uint32_t w = 0; w < JOIN_WARPS; w++) {
        float by = exp2_fast(sums[w].x - most);

        weights = fmaf(sums[w].y, by, weights);
        sum = fmaf(out[w][threadIdx.x], by, sum);
    }
    store_out(a, j.to + threadIdx.x, sum / weights);
    if (threadIdx.x == 0 && j.total != NULL) {
        *j.total = most + __log2f(weights);
    }
}

#endif
