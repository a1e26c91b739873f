/*
 * kv_append on the device: a warp for each row, head and side.  What is common
 * is done by append_fast.cuh, the rest out of line by append.cuh.
 */
#include "append.cuh"
#include "append_fast.cuh"
#include "launch.cuh"

#define WARPS 4u

/* Kept small: a kernel that comes once a layer finds no instruction in a
 * cache. */
static __device__ __noinline__ void
append_rest(append_t t, token_room_t *room)
{
    t.room = room;
    append_any(&t);
}

/* The warp's head; false: there are no more. */
static __device__ __forceinline__ bool
warp_head(const append_args_t *a, append_t *t)
{
    uint32_t i = blockIdx.y * WARPS + threadIdx.x / 32;

    t->w = (warp_t){ threadIdx.x % 32, 32 };
    t->row = blockIdx.x;
    t->list = i / 2;
    t->side = i % 2 == 0 ? KEY : VALUE;
    return t->list < a->kv.lists;
}

/* The moves of a step need no token of it; a layer is a plane of the grid. */
static __global__ void
__launch_bounds__(32 * WARPS, 12)
    moves_kernel(const __grid_constant__ append_args_t a)
{
    __shared__ token_room_t room[WARPS];
    append_t t;

    launch_wait();
    launch_next();
    if (warp_head(&a, &t) && append_open(&t, &a, blockIdx.z)
        && t.pos < t.seq->base && !fast_moves(&t)) {
        append_rest(t, &room[threadIdx.x / 32]);
    }
}

static __global__ void
__launch_bounds__(32 * WARPS, 10)
    append_kernel(const __grid_constant__ append_args_t a)
{
    __shared__ token_room_t room[WARPS];
    append_t t;
    place_t p;
    bool there = warp_head(&a, &t) && append_open(&t, &a, a.layer);
    bool fast = there && fast_target(&t, &p);

    launch_wait();
    launch_next();
    if (fast) {
        fast_token(&t, p);
    } else if (there) {
        append_rest(t, &room[threadIdx.x / 32]);
    }
}

/* Are the addresses of a step's numbers those that append_fast.cuh takes? */
static bool
keys_fast(const tr_cuda_keys_t *in)
{
    return in->type != TR_F32 && in->ld % 4 == 0 && (uintptr_t) in->k % 8 == 0
           && (uintptr_t) in->v % 8 == 0 && (uintptr_t) in->angles % 16 == 0;
}

static int
launch(const tr_cuda_stream_t *s, append_args_t *a, const tr_kv_view_t *kv,
       const tr_rows_t *rows, uint32_t layers, uint32_t *refused)
{
    dim3 blocks(rows->n_rows, (kv->lists * 2 + WARPS - 1) / WARPS, layers);

    if (kv->head_dim == 0 || kv->head_dim > TR_HEAD_DIM_MAX || kv->head_dim % 16
        || kv->lists == 0 || kv->lists > UINT16_MAX || layers > UINT16_MAX
        || rows->n_rows > INT32_MAX || kv->n_layouts == 0
        || kv->n_layouts > TR_KV_LAYOUTS_MAX) {
        return TR_KERNEL_BADARG;
    }
    if (rows->n_rows == 0 || rows->n_seqs == 0 || layers == 0) {
        return TR_KERNEL_OK;
    }
    a->kv = *kv;
    a->kv.layout = NULL;
    memcpy(a->layout, kv->layout, kv->n_layouts * sizeof(*kv->layout));
    a->rows = *rows;
    a->fast = a->fast && kv->head_dim == FAST_DIM;
    a->refused = refused;
    return launch_small(s, a->part == MOVES ? moves_kernel : append_kernel,
                        blocks, 32 * WARPS, *a);
}

extern "C" int
tr_cuda_kv_moves(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                 const tr_rows_t *rows, uint32_t *refused)
{
    append_args_t a = {};

    a.part = MOVES;
    a.fast = true;
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
    a.fast = keys_fast(in);
    a.layer = layer;
    return launch(s, &a, kv, rows, 1, refused);
}
