/*
 * kv_compress on the device, for any number of slots (compress.cuh), and what it
 * changed for a slot's queries (compare.cuh).
 */
#include "compare.cuh"
#include "compress_index.cuh"
#include "compress_tile.cuh"
#include "kernels/cuda/launch.cuh"

#include <cuda_runtime.h>

#define WARPS 4u
#define MOVE_BLOCKS 8      /* on a multiprocessor: 64 registers a thread */
#define WARP_TILES 2u      /* that a warp takes, where there are many */
#define BLOCKS_LEAST 4096u /* of a launch, if there is work for them */

static __global__ void __launch_bounds__(INDEX_LANES)
    index_kernel(const __grid_constant__ compress_args_t a)
{
    __shared__ index_smem_t smem;
    block_t b = { threadIdx.x, INDEX_LANES };

    compress_index(&a, b, &smem, blockIdx.y,
                   compress_first(&a, blockIdx.y) + blockIdx.x);
}

/* Of jobs that are new. */
static __global__ void
clear_kernel(const __grid_constant__ compress_args_t a, uint32_t n)
{
    uint32_t j = blockIdx.x * blockDim.x + threadIdx.x;

    if (j < n && a.jobs[j].first_layer == 0) {
        a.refused[j] = 0;
    }
}

static __global__ void __launch_bounds__(32 * WARPS, MOVE_BLOCKS)
    move_kernel(const __grid_constant__ compress_args_t a)
{
    __shared__ tile_smem_t smem[WARPS];
    uint32_t warp = threadIdx.x / 32, i = blockIdx.x * WARPS + warp;
    side_t side = blockIdx.y % 2 == 0 ? KEY : VALUE;
    warp_t w = { threadIdx.x % 32, 32 };

    compress_tiles(&a, w, &smem[warp], side, blockIdx.z,
                   compress_first(&a, blockIdx.z) + blockIdx.y / 2, i,
                   gridDim.x * WARPS);
}

static __global__ void __launch_bounds__(32 * COMPARE_WARPS)
    compare_kernel(const __grid_constant__ compare_args_t a)
{
    __shared__ compare_smem_t smem;
    block_t b = { threadIdx.x, 32 * COMPARE_WARPS };
    uint32_t kv_heads = a.compress.kv.kv_heads;

    compare_head(&a, b, &smem, blockIdx.x / kv_heads, blockIdx.x % kv_heads,
                 blockIdx.y * COMPARE_WARPS * COMPARE_ROWS);
}

/* The workspace; its end. */
static size_t
divide(compress_args_t *a, const tr_kv_view_t *kv, uint32_t n, uint32_t max_len,
       uint8_t *work)
{
    size_t heads = (size_t) n * kv->layers * kv->kv_heads;
    size_t order = tr_pad(heads * sizeof(compress_head_t), 256);

    a->head = (compress_head_t *) work;
    a->order = (uint32_t *) (work + order);
    return order + tr_pad(heads * max_len * sizeof(uint32_t), 256);
}

extern "C" size_t
tr_cuda_kv_compress_work(const tr_kv_view_t *kv, uint32_t n, uint32_t max_len)
{
    compress_args_t a;

    return divide(&a, kv, n, max_len, NULL);
}

/* Blocks that share the tiles of a head's side. */
static uint32_t
blocks_of(uint32_t max_len, uint32_t sides)
{
    uint32_t most = max_len / (16 * WARPS) + 1, few = most / WARP_TILES + 1;
    uint32_t want = BLOCKS_LEAST / sides + 1;

    want = want > few ? want : few;
    return want < most ? want : most;
}

/* The arguments of both; false: not allowed. */
static bool
fill_args(compress_args_t *a, const tr_kv_view_t *kv,
          const tr_kv_compress_t *jobs, uint32_t n, uint32_t max_len,
          uint32_t *refused, void *work)
{
    uint32_t heads = kv->layers * kv->kv_heads;

    if (kv->head_dim == 0 || kv->head_dim > TR_HEAD_DIM_MAX || kv->head_dim % 16
        || kv->n_layouts == 0 || kv->n_layouts > TR_KV_LAYOUTS_MAX || heads == 0
        || heads > 32767 || n > 65535 || refused == NULL) {
        return false;
    }
    a->kv = *kv;
    a->kv.layout = NULL;
    memcpy(a->layout, kv->layout, kv->n_layouts * sizeof(*kv->layout));
    a->jobs = jobs;
    a->max_len = max_len;
    a->refused = refused;
    divide(a, kv, n, max_len, (uint8_t *) work);
    return true;
}

extern "C" int
tr_cuda_kv_compress(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                    const tr_kv_compress_t *jobs, uint32_t n, uint32_t layers,
                    uint32_t max_len, uint32_t *refused, void *work)
{
    uint32_t heads = layers * kv->kv_heads, blocks;
    cudaStream_t stream = (cudaStream_t) s->stream;
    compress_args_t a;

    if (layers == 0 || layers > kv->layers
        || !fill_args(&a, kv, jobs, n, max_len, refused, work)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    blocks = blocks_of(max_len, heads * 2 * n);
    if (layers == kv->layers) {
        cudaMemsetAsync(refused, 0, n * sizeof(*refused), stream);
    } else {
        clear_kernel<<<(n + INDEX_LANES - 1) / INDEX_LANES, INDEX_LANES, 0,
                       stream>>>(a, n);
    }
    index_kernel<<<dim3(heads, n), INDEX_LANES, 0, stream>>>(a);
    move_kernel<<<dim3(blocks, heads * 2, n), 32 * WARPS, 0, stream>>>(a);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_kv_compare(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                   const tr_kv_compress_t *jobs, uint32_t n, uint32_t max_len,
                   uint32_t *refused, const tr_cuda_kv_compare_t *q, void *work)
{
    cudaStream_t stream = (cudaStream_t) s->stream;
    uint32_t rows, per = COMPARE_WARPS * COMPARE_ROWS;
    compare_args_t a;

    if (!fill_args(&a.compress, kv, jobs, n, max_len, refused, work)
        || q->n_layers > TR_CUDA_COMPARE_LAYERS || q->n > q->rows
        || q->heads == 0 || q->heads % kv->kv_heads != 0
        || q->ld < (size_t) q->heads * kv->head_dim
        || (q->type != TR_F16 && q->type != TR_BF16)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t i = 0; i < q->n_layers; i++) {
        if (q->layer[i] >= kv->layers) {
            return TR_KERNEL_BADARG;
        }
    }
    a.n_jobs = n;
    a.q = *q;
    rows = q->n * (q->heads / kv->kv_heads);
    cudaMemsetAsync(q->change, 0,
                    (size_t) q->n_layers * kv->kv_heads * kv->head_dim
                        * sizeof(*q->change),
                    stream);
    if (n != 0 && rows != 0 && q->n_layers != 0) {
        compare_kernel<<<dim3(q->n_layers * kv->kv_heads,
                              (rows + per - 1) / per),
                         32 * COMPARE_WARPS, 0, stream>>>(a);
    }
    return tr_cuda_check();
}
