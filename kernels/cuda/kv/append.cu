/*
 * kv_append on the device: a warp for each row, head and side, and for some of
 * a row's queries; for the moves of a step, one for eight heads.  What is
 * common is done by append_fast.cuh, append_heads.cuh and append_moves.cuh, the
 * rest out of line by append.cuh.
 */
#include "append.cuh"
#include "append_fast.cuh"
#include "append_moves.cuh"
#include "kernels/cuda/launch.cuh"

#define WARPS 4u
#define MOVES_BLOCKS 10u /* of a multiprocessor */
#define HEADS_ROWS 512u  /* of a step; more are better off by themselves */

/* Kept small: a kernel that comes once a layer finds no instruction in a
 * cache. */
static __device__ __noinline__ void
append_rest(append_t t, token_smem_t *smem)
{
    t.smem = smem;
    append_any(&t);
}

/* `each` heads of all layers a warp. */
static __global__ void __launch_bounds__(32 * WARPS, MOVES_BLOCKS)
    moves_kernel(const __grid_constant__ append_args_t a, uint32_t heads,
                 uint32_t each, bool beside)
{
    __shared__ moves_smem_t rooms[WARPS];
    moves_smem_t *smem = &rooms[threadIdx.x / 32];
    uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * each;
    uint32_t end = first + each < heads ? first + each : heads;
    warp_t w = { threadIdx.x % 32, 32 };
    uint32_t rest;

    if (!beside) {
        launch_wait();
    }
    launch_next();
    rest = moves_fast(&a, w, smem, first, end);
    for (; rest != 0; rest &= rest - 1) {
        append_t t = {};

        t.w = w;
        moves_open(&t, &a, first + __ffs((int) rest) - 1);
        for (uint32_t side = 0; side < 2; side++) {
            t.side = side == 0 ? KEY : VALUE;
            append_rest(t, &smem->token);
        }
    }
    if (beside) {
        launch_wait(); /* who waits for this one also waits for that */
    }
}

static __global__ void __launch_bounds__(32 * WARPS, 10)
    append_kernel(const __grid_constant__ append_args_t a)
{
    __shared__ token_smem_t smem[WARPS];
    uint32_t i = blockIdx.y * WARPS + threadIdx.x / 32;
    uint32_t sides = a.kv.kv_heads * 2, query = (i - sides) * HEADS_AT_ONCE;
    append_t t;
    place_t p;
    bool there, fast;

    t.w = (warp_t){ threadIdx.x % 32, 32 };
    t.row = blockIdx.x;
    t.kv_head = i / 2;
    t.side = i % 2 == 0 ? KEY : VALUE;
    there = t.kv_head < a.kv.kv_heads && append_open(&t, &a, a.layer);
    fast = there && fast_target(&t, &p);
    launch_wait();
    launch_next();
    if (i >= sides) {
        if (query < a.heads.n) {
            heads_rotate(&a, t.w, blockIdx.x, query);
        }
    } else if (fast) {
        fast_token(&t, p);
    } else if (there) {
        append_rest(t, &smem[threadIdx.x / 32]);
    }
}

/* Are the addresses of a step's numbers those that append_fast.cuh takes? */
static bool
keys_fast(const tr_cuda_keys_t *in)
{
    return in->type != TR_F32 && in->ld % 4 == 0 && (uintptr_t) in->k % 8 == 0
           && (uintptr_t) in->v % 8 == 0 && (uintptr_t) in->angles % 16 == 0;
}

/* Can the step's launch do what tr_cuda_qkv does?  What that would refuse is
 * left to it, and a page's min/max, for which a warp reads other rows' keys. */
static bool
heads_fast(const append_args_t *a, const tr_cuda_qkv_t *h)
{
    size_t q = (size_t) h->heads * h->head_dim;
    size_t kv = (size_t) h->kv_heads * h->head_dim;
    const uint16_t *k = (const uint16_t *) h->qkv + q;

    return a->fast && h->rows <= HEADS_ROWS && h->rows == a->rows.n_rows
           && h->heads != 0 && h->kv_heads == a->kv.kv_heads
           && h->head_dim == FAST_DIM && h->type == a->in.type
           && h->ld == a->in.ld && h->ld >= q + 2 * kv && h->q_norm == NULL
           && h->k_norm == NULL && a->in.k == k && a->in.v == k + kv
           && (uintptr_t) h->qkv % 8 == 0 && (uintptr_t) h->bias % 16 == 0
           && (uintptr_t) h->angles % 16 == 0
           && (uintptr_t) h->key_shift % 16 == 0
           && (h->key_angles == NULL
                   ? a->in.angles != NULL && !h->hadamard
                         && h->key_shift == NULL
                   : a->in.angles == NULL && a->layout[0].minmax == 0
                         && h->key_angles == h->angles);
}

/* The heads before their append, or with it. */
static int
heads_take(const tr_cuda_stream_t *s, append_args_t *a, const tr_cuda_qkv_t *h)
{
    if (!heads_fast(a, h)) {
        return tr_cuda_qkv(s, h);
    }
    a->heads = heads_of(h);
    return TR_KERNEL_OK;
}

/* What both launches are given; TR_KERNEL_OK and n_rows 0: nothing to do. */
static int
args_make(append_args_t *a, const tr_kv_view_t *kv, const tr_rows_t *rows,
          uint32_t *refused)
{
    if (kv->head_dim == 0 || kv->head_dim > TR_HEAD_DIM_MAX || kv->head_dim % 16
        || kv->kv_heads == 0 || kv->kv_heads > UINT16_MAX
        || rows->n_rows > INT32_MAX || kv->n_layouts == 0
        || kv->n_layouts > TR_KV_LAYOUTS_MAX) {
        return TR_KERNEL_BADARG;
    }
    a->kv = *kv;
    a->kv.layout = NULL;
    memcpy(a->layout, kv->layout, kv->n_layouts * sizeof(*kv->layout));
    a->rows = *rows;
    if (rows->n_seqs == 0) {
        a->rows.n_rows = 0;
    }
    a->fast = kv->head_dim == FAST_DIM;
    a->refused = refused;
    return TR_KERNEL_OK;
}

extern "C" int
tr_cuda_kv_moves(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                 const tr_rows_t *rows, bool beside, uint32_t *refused)
{
    append_args_t a = {};
    uint64_t heads = (uint64_t) kv->layers * rows->n_rows * kv->kv_heads;
    uint64_t warps = (uint64_t) s->device->blocks * MOVES_BLOCKS * WARPS;
    uint32_t each = heads <= warps ? 1 : heads <= 4 * warps ? 4 : MOVES_HEADS;
    int rc = args_make(&a, kv, rows, refused);

    if (rc != TR_KERNEL_OK || heads > UINT32_MAX / 2) {
        return TR_KERNEL_BADARG;
    }
    if (heads == 0 || a.rows.n_rows == 0) {
        return TR_KERNEL_OK;
    }
    a.part = MOVES;
    return launch_small(s, moves_kernel,
                        dim3((uint32_t) ((heads + each * WARPS - 1)
                                         / (each * WARPS))),
                        32 * WARPS, a, (uint32_t) heads, each, beside);
}

extern "C" int
tr_cuda_kv_append(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                  uint32_t layer, const tr_rows_t *rows,
                  const tr_cuda_keys_t *in, uint32_t *refused)
{
    append_args_t a = {};
    int rc = args_make(&a, kv, rows, refused);
    uint32_t warps;

    if (rc != TR_KERNEL_OK || in->ld < (size_t) kv->kv_heads * kv->head_dim
        || layer >= kv->layers) {
        return TR_KERNEL_BADARG;
    }
    a.part = in->moved ? TOKENS : ALL_OF_IT;
    a.in = *in;
    a.in.heads = NULL;
    a.fast = a.fast && keys_fast(in);
    a.layer = layer;
    if (in->heads != NULL) {
        rc = heads_take(s, &a, in->heads);
    }
    if (rc != TR_KERNEL_OK || a.rows.n_rows == 0) {
        return rc;
    }
    warps = kv->kv_heads * 2 + (a.heads.n + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE;
    /* with heads it is the product that is before it */
    return launch_with(s, a.heads.n == 0 || in->heads->early, 0, append_kernel,
                       dim3(rows->n_rows, (warps + WARPS - 1) / WARPS),
                       32 * WARPS, a);
}
