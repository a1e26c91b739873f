/*
 * Sampling (device.h): the launcher: scan, then choose (sample.cuh).
 *
 * Bytes moved: logits once by scan.  By choose, for a row that is drawn from,
 * once more without top-k or top-p, else twice; logprobs read the raw logits
 * once more, with alternatives twice; penalties write the row and its counts.
 */
#include "kernels/cuda/launch.cuh"
#include "sample_row.cuh"

#define SCAN_THREADS 256u
#define CHOOSE_THREADS 1024u

static __global__ void __launch_bounds__(SCAN_THREADS)
    scan_kernel(const __grid_constant__ sample_args_t a)
{
    __shared__ uint64_t meet[MEET];
    block_t b = { threadIdx.x, SCAN_THREADS };

    launch_wait();
    launch_next();
    scan_piece(&a, b, meet, blockIdx.y, blockIdx.x);
}

static __global__ void __launch_bounds__(CHOOSE_THREADS)
    choose_kernel(const __grid_constant__ sample_args_t a, uint32_t places)
{
    __shared__ sample_smem_t smem;
    block_t b = { threadIdx.x, CHOOSE_THREADS };

    launch_wait();
    launch_next();
    choose_block(&a, b, &smem, blockIdx.x, places);
}

extern "C" size_t
tr_cuda_sample_work(const tr_device_props_t *, uint32_t rows, uint32_t vocab)
{
    sample_args_t a;

    return sample_divide(&a, rows, vocab, NULL);
}

extern "C" int
tr_cuda_sample(const tr_cuda_stream_t *s, const tr_cuda_sample_t *in)
{
    sample_args_t a;
    int rc;

    if (in->vocab == 0 || in->ld < in->vocab || in->vocab > INT32_MAX / 2
        || in->vocab > BINS * SEGMENT || in->rows > 65535) {
        return TR_KERNEL_BADARG;
    }
    if (in->rows == 0) {
        return TR_KERNEL_OK;
    }
    sample_args(&a, in);
    rc = launch_small(s, scan_kernel, dim3(a.pieces, in->rows), SCAN_THREADS,
                      a);
    if (rc != TR_KERNEL_OK) {
        return rc;
    }
    return launch_small(s, choose_kernel,
                        dim3(in->rows + sample_places(in->rows)),
                        CHOOSE_THREADS, a, sample_places(in->rows));
}
