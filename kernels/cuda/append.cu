/*
 * kv_append on the device: a warp for each row, head and side (append.cuh).
 */
#include "append.cuh"
#include "decode.cuh"

#include <cuda_runtime.h>

#define WARPS 4u

static __global__ void
__launch_bounds__(32 * WARPS, 8) append_kernel(
    const __grid_constant__ append_args_t a, uint32_t tasks)
{
    __shared__ token_room_t room[WARPS];
    uint32_t warp = threadIdx.x / 32, task = blockIdx.x * WARPS + warp;
    warp_t w = { threadIdx.x % 32, 32 };

    if (task < tasks) {
        append_task(&a, w, &room[warp], task);
    }
}

static int
launch(const tr_cuda_stream_t *s, append_args_t *a, const tr_kv_view_t *kv,
       const tr_rows_t *rows, uint32_t layers, uint32_t *refused)
{
    uint64_t tasks = (uint64_t) layers * rows->n_rows * kv->lists * 2;

    if (kv->head_dim == 0 || kv->head_dim > TR_HEAD_DIM_MAX || kv->head_dim % 16
        || kv->lists == 0 || kv->n_layouts == 0
        || kv->n_layouts > TR_KV_LAYOUTS_MAX || tasks > UINT32_MAX / 2) {
        return TR_KERNEL_BADARG;
    }
    if (rows->n_rows == 0 || rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    a->kv = *kv;
    a->kv.layout = NULL;
    memcpy(a->layout, kv->layout, kv->n_layouts * sizeof(*kv->layout));
    a->rows = *rows;
    a->refused = refused;
    append_kernel<<<(uint32_t) ((tasks + WARPS - 1) / WARPS), 32 * WARPS, 0,
                    (cudaStream_t) s->stream>>>(*a, (uint32_t) tasks);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_kv_moves(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                 const tr_rows_t *rows, uint32_t *refused)
{
    append_args_t a = {};

    a.part = MOVES;
    return launch(s, &a, kv, rows, kv->layers, refused);
}

extern "C" int
tr_cuda_kv_append(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                  uint32_t layer, const tr_rows_t *rows,
                  const tr_cuda_keys_t *in, uint32_t *refused)
{
    append_args_t a = {};

    if (in->ld < (size_t) kv->lists * kv->head_dim || layer >= kv->layers) {
        return TR_KERNEL_BADARG;
    }
    a.part = in->moved ? TOKENS : ALL_OF_IT;
    a.in = *in;
    a.layer = layer;
    return launch(s, &a, kv, rows, 1, refused);
}
