/*
 * The end of decode attention: what is only known when all parts of a head are.
 *
 *   join    blocks: the outputs of a head's parts; many heads: a warp for each
 *           query head, few: a block
 *   score   warps: each takes a job of the plan's list, JOB_TILES tiles of a
 *           segment, raises their scores by the largest probability of the
 *           group, and finds the least significant token of them; the last job
 *           of a list chooses among the jobs' finds
 *
 * The kernel starts while the attend kernel still runs, where the device can do
 * that: scores and positions, which that one leaves alone, are asked for before
 * it waits.
 */
#include "decode_score.cuh"

#include <cuda_runtime.h>

/* The first `blocks` blocks work off the list of jobs, then the query heads,
 * where a warp joins one; else every other block joins one. */
template <int D, int Q>
static __global__ void
__launch_bounds__(FINISH_THREADS, 3)
    finish_kernel(const __grid_constant__ decode_args_t a, uint32_t blocks,
                  uint32_t by_warp)
{
    if (blockIdx.x >= blocks) {
        launch_wait();
        join_by_block<D>(a, blockIdx.x - blocks);
        return;
    }
    const uint32_t jobs = a.work.layer->jobs;
    bool waited = false;

    /* neighbours in different blocks: few jobs use many of them */
    for (uint32_t i = blockIdx.x + threadIdx.x / 32 * blocks;
         i < jobs + by_warp; i += blocks * FINISH_WARPS) {
        if (i < jobs) {
            score<Q>(a, i, waited);
            continue;
        }
        if (!waited) {
            launch_wait();
            waited = true;
        }
        join_by_warp<D>(a, i - jobs);
    }
}

/* ---- launcher ----------------------------------------------------------- */

int
decode_finish(const tr_cuda_stream_t *s, const decode_args_t *a,
              const tr_cuda_decode_size_t *size, uint32_t n_seqs)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    uint32_t n_heads = n_seqs * a->kv.lists, all = n_heads * a->group;
    /* few query heads have many parts each */
    bool by_warp = all >= s->device->blocks * FINISH_WARPS;
    uint32_t blocks = (a->work.max_jobs + FINISH_WARPS - 1) / FINISH_WARPS;
    bool wide = a->group > QUAD;

    if (blocks > s->device->blocks * 3 || by_warp) {
        blocks = s->device->blocks * 3; /* all that run at once */
    }
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(blocks + (by_warp ? 0 : all));
    config.blockDim = dim3(FINISH_THREADS);
    config.stream = (cudaStream_t) s->stream;
    config.attrs = &early;
    config.numAttrs = s->device->dependent ? 1 : 0;
    if (size->head_dim == 128) {
        cudaLaunchKernelEx(&config,
                           wide ? finish_kernel<128, 2> : finish_kernel<128, 1>,
                           *a, blocks, by_warp ? all : 0);
    } else {
        cudaLaunchKernelEx(&config,
                           wide ? finish_kernel<64, 2> : finish_kernel<64, 1>,
                           *a, blocks, by_warp ? all : 0);
    }
    return tr_cuda_check();
}
