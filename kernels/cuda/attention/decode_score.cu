/*
 * What no later layer is left to do (decode.cuh): scores of a step's last
 * layer, and candidates of its last two.
 */
#include "decode_score.cuh"
#include "kernels/cuda/launch.cuh"

#define THREADS 384u
#define CANDIDATE_THREADS 256u

static_assert(CANDIDATE_THREADS / 32 <= SETTLE_WARPS,
              "settle_by_block has room for all");

template <int K>
static __global__ void __launch_bounds__(THREADS, 1)
    score_kernel(const __grid_constant__ decode_args_t a)
{
    launch_next();
    launch_wait();
    score_rows<K>(a, a.left);
}

static __global__ void __launch_bounds__(CANDIDATE_THREADS)
    candidate_kernel(const __grid_constant__ decode_args_t a)
{
    launch_wait();
    if (a.layer
        > 0) { /* the reduction kernel of the last layer came too early */
        settle_share(a, a.before, blockIdx.x, gridDim.x);
    }
    settle_share(a, a.left, blockIdx.x, gridDim.x);
    if (blockIdx.x == 0 && threadIdx.x < PILES) {
        a.before.claimed[threadIdx.x * CLAIM_WORDS] = 0;
        a.left.claimed[threadIdx.x * CLAIM_WORDS] = 0;
    }
}

/* ---- launcher ----------------------------------------------------------- */

typedef void (*score_t)(const decode_args_t);

static const score_t kernels[SCORED_GROUP] = {
    score_kernel<1>, score_kernel<2>, score_kernel<3>, score_kernel<4>,
    score_kernel<5>, score_kernel<6>, score_kernel<7>, score_kernel<8>,
};

extern "C" int
tr_cuda_decode_score(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                     const tr_rows_t *rows, const tr_cuda_decode_size_t *size,
                     void *work)
{
    decode_args_t a;
    int rc;

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (!decode_args(s->device, kv, kv->layers - 1, rows, size, work, &a)) {
        return TR_KERNEL_BADARG;
    }
    if (!a.scored) {
        return TR_KERNEL_OK;
    }
    rc = launch_small(s, kernels[a.group - 1], dim3(s->device->blocks), THREADS,
                      a);
    if (rc != TR_KERNEL_OK) {
        return rc;
    }
    return launch_small(s, candidate_kernel,
                        dim3(decode_candidate_blocks(&a,
                                                     CANDIDATE_THREADS / 32)),
                        CANDIDATE_THREADS, a);
}
