/*
 * The outputs of decode attention, from the parts of each query head: many
 * query heads, a warp each; few, which have many parts, a block.  Behind these
 * come blocks for the victims of the layer before, whose scores attention has
 * raised on its way.
 *
 * The kernel starts while the attend kernel still runs, where the device can do
 * that.
 */
#include "decode_join.cuh"
#include "decode_score.cuh"
#include "launch.cuh"

/* Block i of those for victims. */
template <int WARPS>
static __device__ __forceinline__ void
settle_block(const decode_args_t &a, uint32_t i, uint32_t blocks)
{
    settle_victims(a, a.before, i * WARPS + threadIdx.x / 32, blocks * WARPS);
    if (i == 0 && threadIdx.x < PILES) {
        a.before.claimed[threadIdx.x * CLAIM_WORDS] = 0;
    }
}

template <int D>
static __global__ void
__launch_bounds__(JOIN_THREADS)
    join_warps(const __grid_constant__ decode_args_t a, uint32_t heads,
               uint32_t blocks)
{
    uint32_t i = blockIdx.x * JOIN_WARPS + threadIdx.x / 32;

    launch_next();
    if (blockIdx.x >= blocks) {
        settle_block<JOIN_WARPS>(a, blockIdx.x - blocks, gridDim.x - blocks);
    } else if (i < heads) {
        join_by_warp<D>(a, i);
    } else {
        launch_wait();
    }
}

template <int D, int WARPS>
static __global__ void
__launch_bounds__(WARPS * 32)
    join_blocks(const __grid_constant__ decode_args_t a, uint32_t heads)
{
    launch_next();
    if (blockIdx.x >= heads) {
        settle_block<WARPS>(a, blockIdx.x - heads, gridDim.x - heads);
    } else {
        join_by_block<D, WARPS>(a, blockIdx.x);
    }
}

/* ---- launcher ----------------------------------------------------------- */

uint32_t
decode_victim_blocks(const decode_args_t *a, uint32_t n_seqs)
{
    uint32_t jobs = n_seqs * a->kv.lists * (a->kv.n_layouts + 1);

    return a->scored ? (jobs + JOIN_WARPS - 1) / JOIN_WARPS : 0;
}

int
decode_join(const tr_cuda_stream_t *s, const decode_args_t *a, uint32_t n_seqs)
{
    uint32_t heads = n_seqs * a->kv.lists * a->group;
    uint32_t blocks = (heads + JOIN_WARPS - 1) / JOIN_WARPS;
    uint32_t more = a->layer > 0 ? decode_victim_blocks(a, n_seqs) : 0;
    bool wide = a->kv.head_dim == 128;

    if (heads >= s->device->blocks * JOIN_WARPS) {
        return launch_small(s, wide ? join_warps<128> : join_warps<64>,
                            dim3(blocks + more), JOIN_THREADS, *a, heads,
                            blocks);
    }
    if (heads > s->device->blocks) {
        return launch_small(s,
                            wide ? join_blocks<128, JOIN_WARPS>
                                 : join_blocks<64, JOIN_WARPS>,
                            dim3(heads + more), JOIN_THREADS, *a, heads);
    }
    more = (more * JOIN_WARPS + JOIN_MOST - 1) / JOIN_MOST;
    return launch_small(s,
                        wide ? join_blocks<128, JOIN_MOST>
                             : join_blocks<64, JOIN_MOST>,
                        dim3(heads + more), JOIN_MOST * 32, *a, heads);
}
