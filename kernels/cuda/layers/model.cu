/*
 * Launchers of a layer's small kernels (device.h).  The kernels are in
 * model.cuh.
 *
 * Work is divided so that both a batch of one row and a prompt of thousands
 * fill the device: rows times pieces of a row, one block a row for the norm,
 * groups of lanes for heads.
 */
#include "kernels/cuda/launch.cuh"
#include "model.cuh"

#define THREADS 128u
#define NORM_THREADS_MAX 1024u
#define NORM_THREADS 640u /* of rows up to 5,120 */
#define NORM_BLOCKS 3u    /* of which a multiprocessor then has this many */
#define ROW_NORM_THREADS 256u

/* Of threads that each take eight. */
static uint32_t
blocks_of(uint64_t eights)
{
    return (uint32_t) ((eights + THREADS - 1) / THREADS);
}

/* ---- embedding ---------------------------------------------------------- */

template <tr_dtype_t T>
static __global__ void __launch_bounds__(THREADS)
    embed_kernel(const __grid_constant__ tr_cuda_embed_t a, bool wide)
{
    launch_wait();
    launch_next();
    embed_eight(&a, T, wide, blockIdx.x, blockIdx.y * THREADS + threadIdx.x);
}

extern "C" int
tr_cuda_embed(const tr_cuda_stream_t *s, const tr_cuda_embed_t *a)
{
    dim3 blocks(a->rows, blocks_of(eights(a->hidden)));
    bool wide = embed_wide(a);

    if (a->vocab == 0 || a->hidden == 0 || a->ldo < a->hidden
        || !tr_dtype_is_short(a->type) || blocks.y > 65535) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0) {
        return TR_KERNEL_OK;
    }
    /* plainly: the first of a graph's branch would come late otherwise */
    return launch_plain(s,
                        a->type == TR_F16 ? embed_kernel<TR_F16>
                                          : embed_kernel<TR_BF16>,
                        blocks, THREADS, *a, wide);
}

/* ---- RoPE's angles ------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS)
    angles_kernel(const __grid_constant__ tr_cuda_angles_t a, uint64_t n)
{
    uint64_t i = (uint64_t) blockIdx.x * THREADS + threadIdx.x;

    launch_wait();
    launch_next();
    if (i < n) {
        rope_angle(&a, (uint32_t) (i / a.half), (uint32_t) (i % a.half));
    }
}

extern "C" int
tr_cuda_rope_angles(const tr_cuda_stream_t *s, const tr_cuda_angles_t *a)
{
    uint64_t n = (uint64_t) a->rows * a->half;

    if (a->half == 0 || n > INT32_MAX
        || (a->row_long != NULL && a->inv_freq_long == NULL)
        || (a->temp != 0 && a->temp_original == 0)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    return launch_small(s, angles_kernel, dim3(blocks_of(n)), THREADS, *a, n);
}

/* ---- norm --------------------------------------------------------------- */

/* MOST: threads of a block; ONCE: a thread for each eight numbers of a row. */
template <tr_dtype_t T, uint32_t MOST, bool ONCE>
static __global__ void __launch_bounds__(MOST,
                                         MOST == NORM_THREADS ? NORM_BLOCKS : 1)
    norm_kernel(const __grid_constant__ tr_cuda_norm_t a, bool wide)
{
    __shared__ uint64_t meet[MEET];
    block_t b = { threadIdx.x, blockDim.x };
    uint32_t first = threadIdx.x * 8;
    /* a weight: nobody writes it */
    eight_t weight = eight_load(a.weight, first, eight_count(a.n, first),
                                TR_F32, wide);

    launch_wait();
    launch_next();
    norm_row(&a, T, wide, ONCE, b, meet, &weight, blockIdx.x);
}

/* Norms that norm_row has not. */
template <tr_dtype_t T, tr_dtype_t OUT>
static __global__ void __launch_bounds__(NORM_THREADS_MAX)
    norm_post_kernel(const __grid_constant__ tr_cuda_norm_t a, bool wide)
{
    __shared__ uint64_t meet[MEET];
    block_t b = { threadIdx.x, blockDim.x };

    launch_wait();
    launch_next();
    norm_row_post(&a, T, OUT, wide, b, meet, blockIdx.x);
}

template <tr_dtype_t T>
static int
norm_launch(const tr_cuda_stream_t *s, const tr_cuda_norm_t *a)
{
    uint32_t threads = (eights(a->n) + 31) / 32 * 32;
    bool wide = norm_wide(a);

    if (!norm_plain(a)) {
        return launch_plain(
            s, a->full ? norm_post_kernel<T, TR_F32> : norm_post_kernel<T, T>,
            dim3(a->rows),
            threads < NORM_THREADS_MAX ? threads : NORM_THREADS_MAX, *a, wide);
    }
    if (threads > NORM_THREADS_MAX) {
        return launch_plain(s, norm_kernel<T, NORM_THREADS_MAX, false>,
                            dim3(a->rows), NORM_THREADS_MAX, *a, wide);
    }
    return launch_plain(s,
                        threads <= NORM_THREADS
                            ? norm_kernel<T, NORM_THREADS, true>
                            : norm_kernel<T, NORM_THREADS_MAX, true>,
                        dim3(a->rows), threads, *a, wide);
}

extern "C" int
tr_cuda_norm(const tr_cuda_stream_t *s, const tr_cuda_norm_t *a)
{
    if (a->n == 0 || a->ldh < a->n || a->ldo < a->n
        || !tr_dtype_is_short(a->type) || (a->delta != NULL && a->ldd < a->n)
        || (a->delta == NULL && a->post_weight != NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0) {
        return TR_KERNEL_OK;
    }
    return a->type == TR_F16 ? norm_launch<TR_F16>(s, a)
                             : norm_launch<TR_BF16>(s, a);
}

/* ---- pooling ------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS)
    pool_kernel(const __grid_constant__ tr_cuda_pool_t a)
{
    launch_wait();
    launch_next();
    pool_one(&a, blockIdx.y, blockIdx.x * THREADS + threadIdx.x);
}

extern "C" int
tr_cuda_pool(const tr_cuda_stream_t *s, const tr_cuda_pool_t *a)
{
    if (a->n == 0 || a->ldx < a->n || a->ldo < a->n || a->items > 65535) {
        return TR_KERNEL_BADARG;
    }
    if (a->items == 0 || a->rows == 0) {
        return TR_KERNEL_OK;
    }
    return launch_plain(s, pool_kernel, dim3(blocks_of(a->n), a->items),
                        THREADS, *a);
}

/* ---- queries, keys, values ---------------------------------------------- */

template <tr_dtype_t T>
static __global__ void __launch_bounds__(THREADS)
    qkv_kernel(const __grid_constant__ tr_cuda_qkv_t a, bool wide, uint32_t end)
{
    uint32_t groups = 32 / qkv_lanes(a.head_dim);
    uint32_t warp = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    warp_t w = { threadIdx.x % 32, 32 };
    qkv_item_t q;

    qkv_open(&a, wide, w, warp * groups, end, &q);
    launch_wait();
    launch_next();
    qkv_item(&a, T, wide, w, &q);
}

extern "C" int
tr_cuda_qkv(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a)
{
    uint64_t end = (uint64_t) a->rows * qkv_heads(a);
    bool wide = qkv_wide(a);

    if (a->head_dim == 0 || a->head_dim > TR_HEAD_DIM_MAX || a->head_dim % 16
        || a->heads == 0
        || a->ld < ((size_t) a->heads + 2 * (size_t) a->kv_heads) * a->head_dim
        || !tr_dtype_is_short(a->type)
        || (a->q_norm == NULL) != (a->k_norm == NULL)
        || (a->key_angles == NULL && (a->hadamard || a->key_shift != NULL))
        || (a->hadamard && !tr_hadamard_has(a->head_dim)) || end > INT32_MAX) {
        return TR_KERNEL_BADARG;
    }
    if (end == 0) {
        return TR_KERNEL_OK;
    }
    return launch_plain(s,
                        a->type == TR_F16 ? qkv_kernel<TR_F16>
                                          : qkv_kernel<TR_BF16>,
                        dim3(blocks_of(end * qkv_lanes(a->head_dim))), THREADS,
                        *a, wide, (uint32_t) end);
}

template <tr_dtype_t T>
static __global__ void __launch_bounds__(ROW_NORM_THREADS)
    row_norm_kernel(const __grid_constant__ tr_cuda_qkv_t a, bool wide)
{
    __shared__ uint64_t meet[MEET];
    block_t b = { threadIdx.x, ROW_NORM_THREADS };

    launch_wait();
    launch_next();
    row_norm_side(&a, T, wide, b, meet, blockIdx.x, blockIdx.y);
}

extern "C" int
tr_cuda_row_norm(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a)
{
    if (a->head_dim == 0 || a->head_dim % 16 || a->heads == 0
        || a->kv_heads == 0
        || a->ld < ((size_t) a->heads + 2 * (size_t) a->kv_heads) * a->head_dim
        || !tr_dtype_is_short(a->type) || a->q_norm == NULL
        || a->k_norm == NULL) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0) {
        return TR_KERNEL_OK;
    }
    return launch_plain(s,
                        a->type == TR_F16 ? row_norm_kernel<TR_F16>
                                          : row_norm_kernel<TR_BF16>,
                        dim3(a->rows, a->bias != NULL ? 3 : 2),
                        ROW_NORM_THREADS, *a, row_norm_wide(a));
}

/* ---- the MLP's gate ----------------------------------------------------- */

template <tr_dtype_t T, tr_act_t ACT>
static __global__ void __launch_bounds__(THREADS)
    act_kernel(const __grid_constant__ act_args_t a, bool wide)
{
    launch_wait();
    launch_next();
    act_eight<ACT>(&a, T, wide, blockIdx.x, blockIdx.y * THREADS + threadIdx.x);
}

typedef void (*act_kernel_t)(const act_args_t, bool);

template <tr_dtype_t T>
static act_kernel_t
act_kernel_of(tr_act_t act)
{
    return act == TR_ACT_GELU_TANH ? act_kernel<T, TR_ACT_GELU_TANH>
           : act == TR_ACT_OAI     ? act_kernel<T, TR_ACT_OAI>
                                   : act_kernel<T, TR_ACT_SILU>;
}

extern "C" int
tr_cuda_act_mul(const tr_cuda_stream_t *s, tr_act_t act, const void *x,
                size_t ldx, uint32_t rows, uint32_t n, tr_dtype_t type,
                void *out, size_t ldo)
{
    act_args_t a = { x, out, ldx, ldo, n };
    dim3 blocks(rows, blocks_of(eights(n)));
    bool wide = act_wide(&a);

    if (!tr_cuda_has_act(TR_CUDA_ACTS, act) || ldx < 2 * (size_t) n || ldo < n
        || !tr_dtype_is_short(type) || blocks.y > 65535) {
        return TR_KERNEL_BADARG;
    }
    if (rows == 0 || n == 0) {
        return TR_KERNEL_OK;
    }
    return launch_plain(s,
                        type == TR_F16 ? act_kernel_of<TR_F16>(act)
                                       : act_kernel_of<TR_BF16>(act),
                        blocks, THREADS, a, wide);
}

/* ---- rows that are kept -------------------------------------------------- */

/* A block a row: all of it leaves at once. */
static __global__ void __launch_bounds__(THREADS)
    keep_rows_kernel(const __grid_constant__ tr_cuda_keep_rows_t a)
{
    uint32_t row = blockIdx.x, chunk = a.row_chunk[row];
    const uint4 *from = (const uint4 *) ((const uint16_t *) a.x + row * a.ldx);
    size_t at = ((size_t) (chunk - 1) * a.layers + a.layer) * a.tokens
                + a.row_pos[row] % a.tokens;
    uint4 *to = (uint4 *) (a.memory + at * a.row_bytes);

    launch_wait();
    launch_next();
    for (uint32_t i = threadIdx.x; chunk != 0 && i < a.n / 8; i += THREADS) {
        to[i] = from[i];
    }
}

extern "C" int
tr_cuda_keep_rows(const tr_cuda_stream_t *s, const tr_cuda_keep_rows_t *a)
{
    if (a->n % 8 != 0 || a->ldx < a->n || a->ldx % 8 != 0
        || a->row_bytes < 2ull * a->n || a->row_bytes % 16 != 0
        || (uintptr_t) a->x % 16 != 0 || (uintptr_t) a->memory % 16 != 0
        || a->layer >= a->layers || a->tokens == 0) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0 || a->n == 0) {
        return TR_KERNEL_OK;
    }
    return launch_small(s, keep_rows_kernel, dim3(a->rows), THREADS, *a);
}

/* ---- logits ------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
    scale_cap_kernel(float *x, size_t ldx, uint32_t n, float scale, float cap)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    float *at = x + blockIdx.y * ldx + i;

    launch_wait();
    launch_next();
    if (i < n) {
        *at = scale_capped(*at, scale, cap);
    }
}

extern "C" int
tr_cuda_scale_cap(const tr_cuda_stream_t *s, float *x, size_t ldx,
                  uint32_t rows, uint32_t n, float scale, float cap)
{
    if (ldx < n || rows > 65535 || !(cap >= 0)) {
        return TR_KERNEL_BADARG;
    }
    if (rows == 0 || n == 0) {
        return TR_KERNEL_OK;
    }
    return launch_plain(s, scale_cap_kernel, dim3(blocks_of(n), rows), THREADS,
                        x, ldx, n, scale, cap);
}

/* ---- the rest ----------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
    select_kernel(const int32_t *slot, const uint8_t *kind, uint32_t n,
                  uint8_t wanted, int32_t *out)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;

    launch_wait();
    launch_next();
    if (i < n) {
        out[i] = kind[i] == wanted ? slot[i] : -1;
    }
}

extern "C" int
tr_cuda_select(const tr_cuda_stream_t *s, const int32_t *slot,
               const uint8_t *kind, uint32_t n, uint8_t wanted, int32_t *out)
{
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    return launch_small(s, select_kernel, dim3(blocks_of(n)), THREADS, slot,
                        kind, n, wanted, out);
}

static __global__ void __launch_bounds__(THREADS)
    random_kernel(void *x, size_t n, tr_dtype_t type, uint64_t seed,
                  uint64_t first, float sd, bool wide)
{
    size_t i = (size_t) blockIdx.x * THREADS + threadIdx.x;

    launch_wait();
    launch_next();
    random_eight(x, n, type, seed, first, sd, wide, i);
}

extern "C" int
tr_cuda_fill_random(const tr_cuda_stream_t *s, void *x, size_t n,
                    tr_dtype_t type, uint64_t seed, uint64_t first, float sd)
{
    if (n > (size_t) INT32_MAX * 8 * THREADS) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    return launch_small(s, random_kernel, dim3(blocks_of(n / 8 + 1)), THREADS,
                        x, n, type, seed, first, sd, is_wide(x));
}

static __global__ void __launch_bounds__(THREADS)
    convert_kernel(const void *from, tr_dtype_t from_type, void *to,
                   tr_dtype_t to_type, size_t n, bool wide)
{
    size_t i = (size_t) blockIdx.x * THREADS + threadIdx.x;

    launch_wait();
    launch_next();
    convert_eight(from, from_type, to, to_type, n, wide, i);
}

extern "C" int
tr_cuda_convert(const tr_cuda_stream_t *s, const void *from,
                tr_dtype_t from_type, void *to, tr_dtype_t to_type, size_t n)
{
    if (n > (size_t) INT32_MAX * 8 * THREADS) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    return launch_small(s, convert_kernel, dim3(blocks_of(n / 8 + 1)), THREADS,
                        from, from_type, to, to_type, n,
                        is_wide(from) && is_wide(to));
}
