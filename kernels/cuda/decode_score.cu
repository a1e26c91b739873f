/*
 * Scores of the tokens that decode attention has attended, and victims.
 *
 * A block takes a job of the plan's list, up to JOB_ROWS rows of a segment of
 * a head (decode_score.cuh), which its warps share.  They find the segment's
 * victim among them; where it has several jobs, the last one that is done
 * chooses among all finds.
 *
 * The kernel's time is that of memory, so it asks for what it reads as soon as
 * it knows where that is: the job of the block's next turn, page ids of a
 * warp's row after the next, and through the L2 cache all else of the next one.
 * It starts while the join kernel still runs, where the device can do that, and
 * waits for it when a first row's scores and positions, which no other kernel of
 * the layer changes, are under way.
 */
#include "decode_score.cuh"
#include "launch.cuh"

#define WARPS SCORE_WARPS
#define THREADS (WARPS * 32)

static __device__ __forceinline__ uint32_t
load_job(const decode_args_t &a, uint32_t job, uint32_t jobs)
{
    const uint32_t lane = threadIdx.x % 32;

    return lane < 8 && job < jobs
               ? __ldg((const uint32_t *) (a.work.job + job) + lane)
               : 0;
}

/* Logarithms of the sums of the group's query heads. */
template <int K>
static __device__ __forceinline__ void
load_totals(const decode_args_t &a, const work_t &w, float (&most)[K])
{
    const float4 *from = (const float4 *) (a.work.total
                                           + (size_t) w.index * GROUP);
    float4 x = from[0], y = K > 4 ? from[1] : x;
    const float all[GROUP] = { x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w };

#pragma unroll
    for (int k = 0; k < K; k++) {
        most[k] = all[k];
    }
}

/* A warp's rows of the job, from its first on; returns the lane's find. */
template <int K>
static __device__ __forceinline__ decode_victim_t
score_rows(const decode_args_t &a, const work_t &w, uint32_t row, bool &waited)
{
    const uint32_t end = min(row + JOB_ROWS, w.last / ROW_TILES + 1);
    decode_victim_t least = no_victim();
    uint32_t bound = NEVER;
    float most[K];

    row += threadIdx.x / 32;
    if (row >= end) {
        return least;
    }
    int page = page_of(a, w, row), next = page_of(a, w, row + WARPS);

    if (waited) {
        load_totals<K>(a, w, most);
    }
    for (; row < end; row += WARPS) {
        float p[LANE_TOKENS], about[LANE_TOKENS];
        trace_t<K> trace;
        tokens_t x;

        ask(a, w, row, page, x);
        if (!waited) {
            launch_wait();
            waited = true;
            load_totals<K>(a, w, most);
        }
        load_trace<K>(a, w, row, trace);
        if (row + WARPS < end) {
            ask_ahead<K>(a, w, row + WARPS, next);
        }
        page = next;
        next = page_of(a, w, row + 2 * WARPS);
        gain<K>(trace, most, p);
        pay(w, x, p, about);
        if (w.segment < SEG_WINDOW) {
            choose(w, row, x, about, bound, least);
        } else if (w.segment == SEG_DENSE && (w.flags & HEAD_RECENT)) {
            pay_recent(a, w, x, p);
        }
    }
    return least;
}

/* The block's find; the last job of the list chooses among all.  For the first
 * warp; words: of the job. */
static __device__ __forceinline__ void
report(const decode_args_t &a, const work_t &w, uint32_t words,
       decode_victim_t least)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t jobs = w.last / (JOB_ROWS * ROW_TILES) + 1;
    const uint32_t head = __shfl_sync(TR_ALL_LANES, words, 0);
    const uint32_t row = __shfl_sync(TR_ALL_LANES, words, 5);
    const uint32_t first = __shfl_sync(TR_ALL_LANES, words, 7);
    uint32_t before = 0;

    if (jobs > 1) {
        uint32_t *arrived = a.work.arrived + w.index * TR_KV_LISTS_MAX
                            + w.segment;

        if (lane == 0) {
            __stcg((uint4 *) a.work.victim + first + row / JOB_ROWS,
                   make_uint4(__float_as_uint(least.significance),
                              least.position, least.index, 0));
            __threadfence();
            before = atomicAdd(arrived, 1u);
            __threadfence();
        }
        if (__shfl_sync(TR_ALL_LANES, before, 0) + 1 != jobs) {
            return;
        }
        least = no_victim();
        for (uint32_t i = lane; i < jobs; i += 32) {
            uint4 u = __ldcg((const uint4 *) a.work.victim + first + i);
            decode_victim_t o = { __uint_as_float(u.x), u.y, u.z, 0 };

            least = worse(o, least) ? o : least;
        }
        least = least_of_warp(least);
        if (lane == 0) { /* for the next launch with this plan */
            *arrived = 0;
        }
    }
    if (lane == 0) {
        tr_kv_victim_t *to = a.kv.victim + (size_t) head * TR_KV_LISTS_MAX
                             + w.segment;

        to->significance = least.significance;
        to->index = least.index;
    }
}

template <int K>
static __global__ void
__launch_bounds__(THREADS, SCORE_BLOCKS)
    score_kernel(const __grid_constant__ decode_args_t a)
{
    __shared__ decode_victim_t find[2][WARPS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t jobs = a.work.layer->jobs;
    uint32_t job = blockIdx.x, next = load_job(a, job, jobs), turn = 0;
    bool waited = false;

    for (; job < jobs; job += gridDim.x) {
        const uint32_t words = next;
        const work_t w = unpack(a, words);

        next = load_job(a, job + gridDim.x, jobs);
        decode_victim_t least = score_rows<K>(
            a, w, __shfl_sync(TR_ALL_LANES, words, 5), waited);

        if (w.segment >= SEG_WINDOW) {
            continue;
        }
        least = least_of_warp(least);
        if (lane == 0) {
            find[turn][warp] = least;
        }
        __syncthreads();
        if (warp == 0) {
            least = lane < WARPS ? find[turn][lane] : no_victim();
            report(a, w, words, least_of_warp(least));
        }
        turn ^= 1; /* others go on while the first warp reads */
    }
    if (!waited) {
        launch_wait();
    }
}

/* ---- launcher ----------------------------------------------------------- */

typedef void (*score_t)(const decode_args_t);

static const score_t kernels[GROUP] = {
    score_kernel<1>, score_kernel<2>, score_kernel<3>, score_kernel<4>,
    score_kernel<5>, score_kernel<6>, score_kernel<7>, score_kernel<8>,
};

extern "C" int
tr_cuda_decode_score(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows,
                     const tr_cuda_decode_size_t *size, void *work)
{
    decode_args_t a;
    uint32_t blocks;

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (!decode_args(s->device, kv, layer, rows, size, work, &a)) {
        return TR_KERNEL_BADARG;
    }
    /* as many as run at once; odd, or with two lists a head some blocks would
     * have all the long ones */
    blocks = s->device->blocks * SCORE_BLOCKS - 1 | 1;
    if (blocks > a.work.max_jobs) {
        blocks = a.work.max_jobs;
    }
    return launch_small(s, kernels[a.group - 1], dim3(blocks), THREADS, a);
}
