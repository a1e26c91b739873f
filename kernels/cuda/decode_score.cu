/*
 * Scores of the tokens that decode attention has attended, and victims.
 *
 * A warp takes a job of the plan's list, JOB_TILES tiles of a segment, raises
 * their scores by the largest probability of the group, and finds the least
 * significant token of them; the last job of a list chooses among the jobs'
 * finds.
 */
#include "decode_score.cuh"
#include "launch.cuh"

template <int Q>
static __global__ void
__launch_bounds__(SCORE_THREADS, 3)
    score_kernel(const __grid_constant__ decode_args_t a)
{
    const uint32_t jobs = a.work.layer->jobs;
    bool waited = false;

    /* neighbours in different blocks: few jobs use many of them */
    for (uint32_t i = blockIdx.x + threadIdx.x / 32 * gridDim.x; i < jobs;
         i += gridDim.x * SCORE_WARPS) {
        score<Q>(a, i, waited);
    }
    if (!waited) {
        launch_wait();
    }
}

/* ---- launcher ----------------------------------------------------------- */

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
    blocks = (a.work.max_jobs + SCORE_WARPS - 1) / SCORE_WARPS;
    if (blocks > s->device->blocks * 3) {
        blocks = s->device->blocks * 3; /* all that run at once */
    }
    return launch_small(s, a.group > QUAD ? score_kernel<2> : score_kernel<1>,
                        dim3(blocks), SCORE_THREADS, a);
}
