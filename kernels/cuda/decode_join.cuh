/*
 * decode_join.cuh: the parts of a query head, joined.
 */
#ifndef TR_CUDA_DECODE_JOIN_CUH
#define TR_CUDA_DECODE_JOIN_CUH

#include "decode.cuh"
#include "ptx.cuh"

#define JOIN_THREADS 256u
#define JOIN_WARPS (JOIN_THREADS / 32)

/* {max, sum relative to it}: those of lanes that differ in the bits from `low`
 * up, together. */
static __device__ __forceinline__ float2
join_lanes(float2 x, int low)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        if (d < low) {
            break;
        }
        float m = __shfl_xor_sync(TR_ALL_LANES, x.x, d);
        float sum = __shfl_xor_sync(TR_ALL_LANES, x.y, d);
        float most = fmaxf(x.x, m);

        x.y = x.y * exp2_fast(x.x - most) + sum * exp2_fast(m - most);
        x.x = most;
    }
    return x;
}

/* Of all parts, of query head k + lane % K of those of the list; one that does
 * not exist has no sum that means anything. */
template <uint32_t K>
static __device__ __forceinline__ float2
join_sums(const decode_args_t &a, uint2 span, uint32_t head, uint32_t k)
{
    const uint32_t lane = threadIdx.x % 32;
    const float2 *from = a.work.part_sum + (size_t) head * GROUP + k + lane % K;
    float2 all = make_float2(-1e30f, 0);

    if (k + lane % K < a.group) {
#pragma unroll 8
        for (uint32_t b = span.x + lane / K; b <= span.y; b += 32 / K) {
            float2 x = from[(size_t) b * GROUP];
            float most = fmaxf(all.x, x.x);

            all.y = all.y * exp2_fast(all.x - most)
                    + x.y * exp2_fast(x.x - most);
            all.x = most;
        }
    }
    return join_lanes(all, K);
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

/* Parts way, way + ways, .. of query head `at` of the step, over the sum of
 * all; false: it has none.  to: where the lane's elements belong. */
template <int D>
static __device__ __forceinline__ bool
join(const decode_args_t &a, uint32_t at, uint32_t way, uint32_t ways,
     float (&x)[D / 32], size_t &to)
{
    constexpr int N = D / 32; /* elements of a lane */
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t head = at / a.group, k = at - head * a.group;
    const decode_head_t *h = a.work.head + head;

#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = 0;
    }
    if (h->tiles == 0) {
        return false;
    }
    const uint2 span = a.work.span[head];
    const float2 total = join_sums<1>(a, span, head, k);
    const float by = 1 / total.y;

#pragma unroll 8
    for (uint32_t b = span.x + way; b <= span.y; b += ways) {
        size_t place = (size_t) b + head;
        float c = exp2_fast(a.work.part_sum[place * GROUP + k].x - total.x)
                  * by;
        const float *from = a.work.part_out + (place * a.group + k) * D
                            + lane * N;

        if (D == 128) {
            float4 y = *(const float4 *) from;

            x[0] += y.x * c;
            x[1] += y.y * c;
            x[N - 2] += y.z * c;
            x[N - 1] += y.w * c;
        } else {
            float2 y = *(const float2 *) from;

            x[0] += y.x * c;
            x[1] += y.y * c;
        }
    }
    to = (size_t) h->row * a.ldo
         + (size_t) (h->head % a.kv.lists * a.group + k) * D + lane * N;
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

template <int D>
static __device__ __forceinline__ void
join_by_block(const decode_args_t &a, uint32_t at)
{
    constexpr int N = D / 32;
    __shared__ float out[JOIN_WARPS][D];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x[N];
    size_t to = 0;
    bool any = join<D>(a, at, warp, JOIN_WARPS, x, to);

#pragma unroll
    for (int i = 0; i < N; i++) {
        out[warp][lane * N + i] = x[i];
    }
    __syncthreads();
    if (warp > 0 || !any) {
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        for (uint32_t w = 1; w < JOIN_WARPS; w++) {
            x[i] += out[w][lane * N + i];
        }
        store_out(a, to + i, x[i]);
    }
}

#endif
