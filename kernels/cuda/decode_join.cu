/*
 * The outputs of decode attention, from the parts of each query head: many
 * query heads, a warp each; few, which have many parts, a block.  Behind these
 * come blocks for victims of two layers before: attention of the layer before has
 * raised the last of those scores.
 *
 * The kernel starts while the attend kernel still runs, where the device can do
 * that: then that one's blocks all run, and each will say when its warps have left
 * their parts, long before the last of them is done with scores.  So outputs are
 * made while other multiprocessors still raise scores.
 */
#include "decode_join.cuh"
#include "decode_score.cuh"
#include "launch.cuh"

/* Block i of those for victims. */
template <int WARPS>
static __device__ __forceinline__ void
settle_block(const decode_args_t &a, uint32_t i, uint32_t blocks)
{
    settle_victims(a, a.raised, i * WARPS + threadIdx.x / 32, blocks * WARPS);
    if (i == 0 && threadIdx.x < PILES) {
        a.raised.claimed[threadIdx.x * CLAIM_WORDS] = 0;
    }
}

/* One block waits for the end of attention, so that who waits for this kernel also
 * waits for that one. */
static __device__ __forceinline__ void
end_join(void)
{
    if (blockIdx.x == gridDim.x - 1) {
        launch_wait();
    }
}

template <int D>
static __global__ void
__launch_bounds__(JOIN_THREADS)
    join_warps(const __grid_constant__ decode_args_t a, uint32_t heads,
               uint32_t blocks)
{
    uint32_t i = (blockIdx.x * JOIN_THREADS + threadIdx.x) / 32;

    launch_next();
    if (blockIdx.x >= blocks) {
        settle_block<JOIN_THREADS / 32>(a, blockIdx.x - blocks,
                                        gridDim.x - blocks);
    } else if (i < heads) {
        join_by_warp<D>(a, i);
    } else {
        await_parts(a);
    }
    end_join();
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
    end_join();
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
    uint32_t more = a->layer > 1 ? decode_victim_blocks(a, n_seqs) : 0;
    bool wide = a->kv.head_dim == 128;

    if (heads >= s->device->blocks * JOIN_WARPS) {
        uint32_t warps = JOIN_THREADS / 32;
        uint32_t blocks = (heads + warps - 1) / warps;

        more = more * JOIN_WARPS / warps;
        return launch_small(s, wide ? join_warps<128> : join_warps<64>,
                            dim3(blocks + more), JOIN_THREADS, *a, heads,
                            blocks);
    }
    if (heads > s->device->blocks) {
        return launch_small(s,
                            wide ? join_blocks<128, JOIN_WARPS>
                                 : join_blocks<64, JOIN_WARPS>,
                            dim3(heads + more), JOIN_WARPS * 32, *a, heads);
    }
    more = (more * JOIN_WARPS + JOIN_MOST - 1) / JOIN_MOST;
    return launch_small(s,
                        wide ? join_blocks<128, JOIN_MOST>
                             : join_blocks<64, JOIN_MOST>,
                        dim3(heads + more), JOIN_MOST * 32, *a, heads);
}
