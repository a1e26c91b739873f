/*
 * Split-KV reduction: the outputs of decode attention, from the parts of each
 * query head.  Where there are many heads, a warp reduces one; where there
 * are few, a block does; where few heads have hundreds of parts, a block
 * reduces 32 elements of one.  Further blocks find the candidates of the
 * layer two before: attention of the layer before has raised the last of its
 * scores.
 *
 * The kernel starts while the attend kernel still runs, where the device can
 * do that.  All blocks of the attend kernel run by then, and each says when
 * its warps have left their parts, long before the last warp is done with
 * scores.  So outputs are made while other multiprocessors still raise
 * scores.
 */
#include "decode_reduce.cuh"
#include "decode_candidate.cuh"
#include "kernels/cuda/launch.cuh"

static_assert(REDUCE_WARPS <= SETTLE_WARPS, "settle_by_block has room for all");

/* Nobody raises scores any more of the layer whose candidates were settled: its
 * piles are full again. i: of the blocks that settle them. */
static __device__ __forceinline__ void
end_scores(const decode_args_t &a, uint32_t i)
{
    if (i == 0 && threadIdx.x < PILES) {
        a.raised.claimed[threadIdx.x * CLAIM_WORDS] = 0;
    }
}

/* One block waits for the end of attention, so that who waits for this kernel
 * also waits for that one. */
static __device__ __forceinline__ void
end_reduce(void)
{
    if (blockIdx.x == gridDim.x - 1) {
        launch_wait();
    }
}

template <int D>
static __global__ void __launch_bounds__(MANY_THREADS)
    reduce_warps(const __grid_constant__ decode_args_t a, uint32_t shares,
                 uint32_t blocks)
{
    uint32_t i = (blockIdx.x * MANY_THREADS + threadIdx.x) / 32;

    launch_next();
    if (blockIdx.x >= blocks) {
        const uint32_t at = blockIdx.x - blocks, warps = MANY_THREADS / 32;

        settle_by_warp(a, a.raised, at * warps + threadIdx.x / 32,
                       (gridDim.x - blocks) * warps);
        end_scores(a, at);
    } else {
        reduce_by_warp<D>(a, i, shares);
    }
    end_reduce();
}

/* Each block E elements of a query head. */
template <int D, int E>
static __global__ void __launch_bounds__(REDUCE_THREADS, E == warp_share(D)
                                                             ? HEAD_BLOCKS
                                                             : SHARE_BLOCKS)
    reduce_blocks(const __grid_constant__ decode_args_t a, uint32_t blocks)
{
    launch_next();
    if (blockIdx.x >= blocks) {
        settle_share(a, a.raised, blockIdx.x - blocks, gridDim.x - blocks);
        end_scores(a, blockIdx.x - blocks);
    } else {
        reduce_by_block<D, E>(a, blockIdx.x);
    }
    end_reduce();
}

/* ---- launcher ----------------------------------------------------------- */

uint32_t
decode_candidate_blocks(const decode_args_t *a, uint32_t warps)
{
    return a->few_jobs ? a->jobs : (a->jobs + warps - 1) / warps;
}

/* Of a layer, behind those that reduce. */
static uint32_t
candidate_blocks(const decode_args_t *a, uint32_t warps)
{
    return a->layer > 1 ? decode_candidate_blocks(a, warps) : 0;
}

/* As many blocks for a query head as leave room for all at once on an idle
 * device: those of a second wave begin 2 us later.  Else a warp a head, or half
 * of one. */
template <int D>
static int
reduce(const tr_cuda_stream_t *s, const decode_args_t *a, uint32_t heads)
{
    constexpr int E = warp_share(D);
    const uint32_t shares = heads * (D / REDUCE_SHARE), few = heads * (D / E);
    const uint32_t more = candidate_blocks(a, REDUCE_WARPS);

    if (shares + more <= s->device->blocks * SHARE_BLOCKS) {
        return launch_small(s, reduce_blocks<D, REDUCE_SHARE>,
                            dim3(shares + more), REDUCE_THREADS, *a, shares);
    }
    if (few + more <= s->device->blocks * HEAD_BLOCKS) {
        return launch_small(s, reduce_blocks<D, E>, dim3(few + more),
                            REDUCE_THREADS, *a, few);
    }

    const uint32_t warps = MANY_THREADS / 32;
    const uint32_t blocks = (few + warps - 1) / warps;

    return launch_small(s, reduce_warps<D>,
                        dim3(blocks + candidate_blocks(a, warps)), MANY_THREADS,
                        *a, few, blocks);
}

int
decode_reduce(const tr_cuda_stream_t *s, const decode_args_t *a,
              uint32_t n_seqs)
{
    const uint32_t heads = n_seqs * a->kv.kv_heads * a->group;

    return a->kv.head_dim == 64    ? reduce<64>(s, a, heads)
           : a->kv.head_dim == 128 ? reduce<128>(s, a, heads)
                                   : reduce<256>(s, a, heads);
}
