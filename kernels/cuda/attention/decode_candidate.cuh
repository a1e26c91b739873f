/*
 * decode_candidate.cuh: the least significant token of each tier, which the
 * next token downgrades or drops (DiffKV, SOSP 2025, section 4).  Raising a
 * row of scores leaves the least of that row (decode_score.cuh); here two of
 * them are compared, and the least of a tier is found once all its rows are
 * raised.
 */
#ifndef TR_CUDA_DECODE_CANDIDATE_CUH
#define TR_CUDA_DECODE_CANDIDATE_CUH

#include "decode.cuh"
#include "kernels/cuda/ptx.cuh"

#define SETTLE_WARPS 8u   /* of a block that settles candidates, at most */
#define SETTLE_ROWS 32u   /* of a tier, for each of them: one a lane */
#define NEVER 0x7f800000u /* bits of the significance of no token: infinity */

static __device__ __forceinline__ bool
worse(const decode_candidate_t &a, const decode_candidate_t &b)
{
    return a.significance < b.significance
           || (a.significance == b.significance && a.position < b.position);
}

static __device__ __forceinline__ decode_candidate_t
no_candidate(void)
{
    decode_candidate_t v = { __uint_as_float(NEVER), 0xffffffffu, 0, 0 };

    return v;
}

/* Significances are not negative, so their bits are in order, too. */
static __device__ __forceinline__ decode_candidate_t
least_of_warp(decode_candidate_t v)
{
    uint32_t bits = __float_as_uint(v.significance);
    uint32_t least = __reduce_min_sync(TR_ALL_LANES, bits);
    uint32_t position = __reduce_min_sync(TR_ALL_LANES, bits == least
                                                            ? v.position
                                                            : 0xffffffffu);
    uint32_t who = __ballot_sync(TR_ALL_LANES,
                                 bits == least && v.position == position);

    v.significance = __uint_as_float(least);
    v.position = position;
    v.index = __shfl_sync(TR_ALL_LANES, v.index, __ffs((int) who) - 1);
    return v;
}

/* A job, as its candidate needs it. */
typedef struct {
    uint32_t head, rows, before, segment;
} sought_t;

static __device__ __forceinline__ sought_t
load_sought(const decode_left_t &left, uint32_t job)
{
    const uint4 *from = (const uint4 *) (left.job + job);
    const uint4 x = __ldg(from), y = __ldg(from + 1);
    sought_t s = { x.x, y.w, y.y, y.z & 255 };

    return s;
}

/* The least of what was found in rows from, from + step, .. of a tier, of the
 * warp. */
static __device__ __forceinline__ decode_candidate_t
least_found(const decode_left_t &left, const sought_t &s, uint32_t from,
            uint32_t step)
{
    decode_candidate_t least = no_candidate();

    for (uint32_t i = from; i < s.rows; i += step) {
        uint4 u = __ldcg((const uint4 *) (left.find + s.before + i));
        decode_candidate_t o = { __uint_as_float(u.x), u.y, u.z, 0 };

        least = worse(o, least) ? o : least;
    }
    return least_of_warp(least);
}

static __device__ __forceinline__ void
put_candidate(const decode_args_t &a, const sought_t &s,
              const decode_candidate_t &v)
{
    a.kv.candidate[(size_t) s.head * TR_KV_TIERS_MAX + s.segment] = {
        v.significance, v.index
    };
}

/* The candidates of a layer's tiers: job `at` and every step'th from there, of the
 * warp. */
static __device__ __forceinline__ void
settle_by_warp(const decode_args_t &a, const decode_left_t &left, uint32_t at,
               uint32_t step)
{
    const uint32_t lane = threadIdx.x % 32;

    for (uint32_t i = at; i < left.layer->jobs; i += step) {
        const sought_t s = load_sought(left, i);

        if (s.segment < SEG_WINDOW) {
            decode_candidate_t v = least_found(left, s, lane, 32);

            if (lane == 0) {
                put_candidate(a, s, v);
            }
        }
    }
}

/* .. of the block, whose first warp is enough for a short one. */
static __device__ __forceinline__ void
settle_by_block(const decode_args_t &a, const decode_left_t &left, uint32_t at,
                uint32_t step)
{
    __shared__ decode_candidate_t found[SETTLE_WARPS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (uint32_t i = at; i < left.layer->jobs; i += step) {
        const sought_t s = load_sought(left, i);
        const uint32_t warps = min((s.rows + SETTLE_ROWS - 1) / SETTLE_ROWS,
                                   blockDim.x / 32);
        decode_candidate_t v = no_candidate();

        if (s.segment >= SEG_WINDOW) {
            continue;
        }
        if (warp < warps) {
            v = least_found(left, s, threadIdx.x, warps * 32);
        }
        if (warps > 1) {
            if (lane == 0) {
                found[warp] = v;
            }
            __syncthreads();
            v = lane < warps ? found[lane] : no_candidate();
            v = least_of_warp(v);
            __syncthreads(); /* it is written again */
        }
        if (threadIdx.x == 0) {
            put_candidate(a, s, v);
        }
    }
}

/* .. of a block of as many as are launched for it (decode_candidate_blocks). */
static __device__ __forceinline__ void
settle_share(const decode_args_t &a, const decode_left_t &left, uint32_t block,
             uint32_t blocks)
{
    const uint32_t warps = blockDim.x / 32;

    if (a.few_jobs) {
        settle_by_block(a, left, block, blocks);
    } else {
        settle_by_warp(a, left, block * warps + threadIdx.x / 32,
                       blocks * warps);
    }
}

#endif
