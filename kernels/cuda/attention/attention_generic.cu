/*
 * The generic attention kernels (attention_generic.cuh): correct for everything
 * that kernels.h allows, and slow.  Each phase is a launch of its own; blocks
 * without a sequence or a part return at once.
 */
#include "attention_score.cuh"
#include "kernels/cuda/launch.cuh"

#include <cuda_runtime.h>

#define SCORE_BLOCKS 256u /* that share the tiles of a KV head */

static __global__ void __launch_bounds__(LANES)
    choose_kernel(const __grid_constant__ generic_args_t a)
{
    __shared__ choose_smem_t smem;
    block_t b = { threadIdx.x, LANES };

    generic_choose(&a, b, &smem, blockIdx.x, blockIdx.y);
}

static __global__ void __launch_bounds__(LANES)
    attend_kernel(const __grid_constant__ generic_args_t a)
{
    __shared__ attend_smem_t smem;
    uint32_t pieces = (a.group + HEADS - 1) / HEADS;
    block_t b = { threadIdx.x, LANES };

    generic_attend(&a, b, &smem, blockIdx.x, blockIdx.y / pieces,
                   blockIdx.y % pieces, blockIdx.z);
}

static __global__ void __launch_bounds__(LANES)
    merge_kernel(const __grid_constant__ generic_args_t a)
{
    __shared__ attend_smem_t smem;
    uint32_t pieces = (a.group + HEADS - 1) / HEADS;
    block_t b = { threadIdx.x, LANES };

    generic_merge(&a, b, &smem, blockIdx.x, blockIdx.y / pieces,
                  blockIdx.y % pieces);
}

static __global__ void __launch_bounds__(LANES)
    score_kernel(const __grid_constant__ generic_args_t a)
{
    __shared__ score_smem_t smem;
    uint32_t i = blockIdx.z;
    block_t b = { threadIdx.x, LANES };

    while (generic_score(&a, b, &smem, blockIdx.x, blockIdx.y, i)) {
        i += gridDim.z;
    }
}

static __global__ void __launch_bounds__(LANES)
    candidates_kernel(const __grid_constant__ generic_args_t a)
{
    __shared__ candidate_smem_t smem;
    block_t b = { threadIdx.x, LANES };

    generic_candidates(&a, b, &smem, blockIdx.x, blockIdx.y);
}

/* Tiles of a head, at most: pages of 8 tokens are half tiles, and tiers and
 * window cover up to twice max_len slots. */
static uint32_t
tiles_most(const tr_cuda_generic_size_t *size)
{
    return size->max_len / 4 + RUNS * 2;
}

/* Lays the workspace out; its end. */
static size_t
divide(generic_args_t *a, const tr_cuda_generic_size_t *size, uint8_t *work)
{
    size_t end, pages;

    a->part_tiles = part_size(tiles_most(size));
    a->parts = tiles_most(size) / a->part_tiles + 1;
    a->pages = size->max_len / 8 + 1;
    pages = (size_t) size->max_seqs * size->kv_heads * a->pages * 4;
    a->partial = (float *) work;
    end = tr_pad((size_t) size->max_seqs * a->parts * size->heads
                     * (size->head_dim + 2) * 4,
                 256);
    a->lse = (float *) (work + end);
    end += tr_pad((size_t) size->max_rows * size->heads * 4, 256);
    a->bound = (uint32_t *) (work + end);
    end += tr_pad(pages, 256);
    a->chosen = (int32_t *) (work + end);
    return end + tr_pad(pages, 256);
}

extern "C" size_t
tr_cuda_attention_work(const tr_cuda_generic_size_t *size)
{
    generic_args_t a;

    return divide(&a, size, NULL);
}

static bool
args_valid(const tr_kv_view_t *kv, uint32_t layer, const tr_rows_t *rows,
           const tr_cuda_queries_t *q, const tr_cuda_generic_size_t *size)
{
    uint32_t group = kv->kv_heads ? q->heads / kv->kv_heads : 0;
    size_t row = (size_t) q->heads * kv->head_dim;

    return group > 0 && group <= TR_GROUP_MAX && q->heads % kv->kv_heads == 0
           && kv->head_dim > 0 && kv->head_dim <= TR_HEAD_DIM_MAX
           && kv->head_dim % 16 == 0 && layer < kv->layers && kv->n_layouts > 0
           && kv->n_layouts <= TR_KV_LAYOUTS_MAX && q->ldq >= row
           && q->ldo >= row && rows->n_seqs <= size->max_seqs
           && rows->n_seqs <= rows->n_rows && rows->n_rows <= size->max_rows
           && kv->kv_heads == size->kv_heads && kv->head_dim == size->head_dim
           && q->heads == size->heads;
}

extern "C" int
tr_cuda_attention(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                  uint32_t layer, const tr_rows_t *rows,
                  const tr_cuda_queries_t *queries,
                  const tr_cuda_generic_size_t *size, void *work)
{
    cudaStream_t stream = (cudaStream_t) s->stream;
    uint32_t pieces, tiles;
    generic_args_t a;

    if (!args_valid(kv, layer, rows, queries, size)) {
        return TR_KERNEL_BADARG;
    }
    if (rows->n_rows == 0 || rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    a.kv = *kv;
    a.kv.layout = NULL;
    memcpy(a.layout, kv->layout, kv->n_layouts * sizeof(*kv->layout));
    a.rows = *rows;
    a.queries = *queries;
    a.layer = layer;
    a.group = queries->heads / kv->kv_heads;
    divide(&a, size, (uint8_t *) work);
    pieces = (a.group + HEADS - 1) / HEADS * kv->kv_heads;
    tiles = tiles_most(size) < SCORE_BLOCKS ? tiles_most(size) : SCORE_BLOCKS;
    choose_kernel<<<dim3(rows->n_seqs, kv->kv_heads), LANES, 0, stream>>>(a);
    attend_kernel<<<dim3(rows->n_rows, pieces, a.parts), LANES, 0, stream>>>(a);
    merge_kernel<<<dim3(rows->n_seqs, pieces), LANES, 0, stream>>>(a);
    score_kernel<<<dim3(rows->n_seqs, kv->kv_heads, tiles), LANES, 0, stream>>>(
        a);
    candidates_kernel<<<dim3(rows->n_seqs, kv->kv_heads), LANES, 0, stream>>>(
        a);
    return tr_cuda_check();
}
