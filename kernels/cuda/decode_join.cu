/*
 * The outputs of decode attention, from the parts of each query head: many
 * query heads, a warp each; few, which have many parts, a block.
 *
 * The kernel starts while the attend kernel still runs, where the device can do
 * that.
 */
#include "decode_join.cuh"
#include "launch.cuh"

template <int D>
static __global__ void
__launch_bounds__(JOIN_THREADS)
    join_warps(const __grid_constant__ decode_args_t a, uint32_t heads)
{
    uint32_t i = blockIdx.x * JOIN_WARPS + threadIdx.x / 32;

    launch_next();
    launch_wait();
    if (i < heads) {
        join_by_warp<D>(a, i);
    }
}

template <int D>
static __global__ void
__launch_bounds__(JOIN_THREADS)
    join_blocks(const __grid_constant__ decode_args_t a)
{
    launch_next();
    launch_wait();
    join_by_block<D>(a, blockIdx.x);
}

/* ---- launcher ----------------------------------------------------------- */

int
decode_join(const tr_cuda_stream_t *s, const decode_args_t *a, uint32_t n_seqs)
{
    uint32_t heads = n_seqs * a->kv.lists * a->group;
    uint32_t blocks = (heads + JOIN_WARPS - 1) / JOIN_WARPS;
    bool wide = a->kv.head_dim == 128;

    if (heads >= s->device->blocks * JOIN_WARPS) {
        return launch_small(s, wide ? join_warps<128> : join_warps<64>,
                            dim3(blocks), JOIN_THREADS, *a, heads);
    }
    return launch_small(s, wide ? join_blocks<128> : join_blocks<64>,
                        dim3(heads), JOIN_THREADS, *a);
}
