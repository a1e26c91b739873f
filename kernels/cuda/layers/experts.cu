/*
 * Launchers of layers with experts (device.h).  The kernels are in experts.cuh,
 * those of packed weights in experts_packed.cuh, those with few rows in
 * experts_few.cuh and experts_choose.cuh.
 *
 * Grids depend on counts that the host knows: rows, experts, outputs.  How many
 * rows an expert has is known on the device alone, so a product has as many
 * blocks as there can be tiles; those without one end at once.
 */
#include "experts.cuh"
#include "experts_choose.cuh"
#include "experts_few.cuh"
#include "experts_packed.cuh"
#include "kernels/cuda/launch.cuh"

#define THREADS 128u

/* Rows of an expert from which weights are better read for many at once. */
#define MANY 16u

/* Blocks for each multiprocessor from which it does not matter how they fall. */
#define EVEN_BLOCKS 8u

/* ---- the router ---------------------------------------------------------- */

static __global__ void __launch_bounds__(ROUTE_WARPS * 32)
    route_kernel(const __grid_constant__ tr_cuda_route_t a)
{
    __shared__ route_smem_t smem[ROUTE_WARPS];
    uint32_t warp = threadIdx.x / 32, row = blockIdx.x * ROUTE_WARPS + warp;

    launch_wait();
    launch_next();
    if (row < a.rows) {
        route_row(&a, row, threadIdx.x % 32, &smem[warp]);
    }
}

extern "C" int
tr_cuda_route(const tr_cuda_stream_t *s, const tr_cuda_route_t *a)
{
    if (!tr_cuda_route_allowed(&a->route) || a->ld < a->route.experts) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0) {
        return TR_KERNEL_OK;
    }
    return launch_plain(s, route_kernel,
                        dim3((a->rows + ROUTE_WARPS - 1) / ROUTE_WARPS),
                        ROUTE_WARPS * 32, *a);
}

/* ---- the order of experts ------------------------------------------------ */

static __global__ void __launch_bounds__(ORDER_THREADS)
    order_kernel(const __grid_constant__ tr_cuda_order_t a)
{
    __shared__ uint64_t meet[MEET];
    block_t b = { threadIdx.x, ORDER_THREADS };

    launch_wait();
    launch_next();
    order_expert(&a, b, meet, blockIdx.x);
}

extern "C" int
tr_cuda_order(const tr_cuda_stream_t *s, const tr_cuda_order_t *a)
{
    if (a->experts == 0 || a->experts > TR_EXPERTS_MAX || a->top_k == 0
        || (uint64_t) a->rows * a->top_k > INT32_MAX) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0) {
        return TR_KERNEL_OK;
    }
    return launch_small(s, order_kernel, dim3(a->experts), ORDER_THREADS, *a);
}

/* ---- few rows: all of that ------------------------------------------------ */

template <tr_dtype_t T>
static __global__ void __launch_bounds__(CHOOSE_THREADS)
    choose_kernel(const __grid_constant__ tr_cuda_choose_t a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ uint64_t meet[MEET];
    __shared__ uint32_t flag;
    uint16_t *rows = (uint16_t *) shared;
    block_t b = { threadIdx.x, CHOOSE_THREADS };
    uint32_t expert = blockIdx.x * CHOOSE_WARPS + threadIdx.x / 32;
    bool mine = expert < a.route.route.experts;

    for (uint32_t i = threadIdx.x % 32 * 64; mine && i < a.norm.n; i += 2048) {
        prefetch_l2((const uint16_t *) a.w + (size_t) expert * a.norm.n + i);
    }
    launch_wait();
    launch_next();
    for (uint32_t r = 0; r < a.norm.rows; r++) {
        choose_norm(&a.norm, T, b, meet, r, rows);
    }
    __syncthreads();
    if (mine) {
        choose_logits(&a, T, rows, expert, threadIdx.x % 32);
    }
    if (choose_last(a.meet, &flag)) {
        choose_write(&a.norm, T, b, rows);
        __syncthreads();
        choose_rest(&a, b, meet, (choose_smem_t *) shared);
    }
}

static bool
choose_valid(const tr_cuda_choose_t *a)
{
    const tr_cuda_norm_t *n = &a->norm;
    uint32_t experts = a->route.route.experts;

    return tr_cuda_choose_fits(n->rows, n->n) && n->n != 0
           && tr_cuda_route_allowed(&a->route.route) && a->route.ld >= experts
           && a->order.experts == experts && a->order.rows == n->rows
           && a->order.top_k == a->route.route.top_k && a->route.rows == n->rows
           && n->weight != NULL && n->gather == NULL && n->post_weight == NULL
           && !n->full
           && (n->delta == NULL || (n->scale == 1 && n->ldd >= n->n))
           && n->ldh >= n->n && n->ldo >= n->n && tr_dtype_is_short(n->type)
           && norm_wide(n) && is_wide(a->w);
}

extern "C" int
tr_cuda_choose(const tr_cuda_stream_t *s, const tr_cuda_choose_t *a)
{
    uint32_t bytes = a->norm.rows * a->norm.n * 2;
    uint32_t blocks = (a->route.route.experts + CHOOSE_WARPS - 1)
                      / CHOOSE_WARPS;

    if (!choose_valid(a)) {
        return TR_KERNEL_BADARG;
    }
    if (a->norm.rows == 0) {
        return TR_KERNEL_OK;
    }
    if (bytes < sizeof(choose_smem_t)) {
        bytes = sizeof(choose_smem_t);
    }
    return launch_with(s, true, bytes,
                       a->norm.type == TR_F16 ? choose_kernel<TR_F16>
                                              : choose_kernel<TR_BF16>,
                       dim3(blocks), CHOOSE_THREADS, *a);
}

/* ---- products ------------------------------------------------------------ */

/* 8 B places a tile, 16 A outputs a warp; F: weights of T, or packed. */
template <tr_weight_format_t F, tr_dtype_t T, int A, int B>
static __global__ void __launch_bounds__(EXPERT_WARPS * 32)
    experts_kernel(const __grid_constant__ tr_cuda_experts_t a)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert, place;
    uint32_t n = (blockIdx.x * (blockDim.x / 32) + warp) * 16 * A;

    launch_wait();
    launch_next();
    if (tile_find(&a, blockIdx.y, 8 * B, lane, &expert, &place) && n < a.n) {
        uint32_t end = a.first[expert + 1];

        end = end < place + 8 * B ? end : place + 8 * B;
        if constexpr (F == TR_WEIGHT_16) {
            expert_tile<T, A, B>(&a, expert, n, place, end, lane);
        } else {
            expert_tile_packed<F, A, B>(&a, expert, n, place, end, lane);
        }
    }
}

/* Few tiles: A: 2: gated. */
template <tr_weight_format_t F, tr_dtype_t T, int A>
static __global__ void __launch_bounds__(EXPERT_WARPS * 32)
    experts_few_kernel(const __grid_constant__ tr_cuda_experts_t a)
{
    __shared__ float meet[EXPERT_WARPS - 1][A * 4][32];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert, place;
    uint32_t n = blockIdx.x * 16, end;
    const uint16_t *inputs[1];
    float c[A][1][4] = {};

    launch_wait();
    launch_next();
    if (!tile_find(&a, blockIdx.y, 8, lane, &expert, &place)) {
        return; /* all of the block */
    }
    end = min(a.first[expert + 1], place + 8);
    expert_inputs<1>(&a, place, end, lane, inputs);
    if constexpr (F == TR_WEIGHT_16) {
        few_part<T, A>(&a, expert, n, inputs, warp, lane, c);
    } else {
        few_part_packed<F, A>(&a, expert, n, inputs, warp, lane, c);
    }
    if (A == 2 && a.ahead != NULL && place == a.first[expert]) {
        few_call<F>(&a, expert);
    }
    few_join<A>(c, meet, warp, lane);
    if (warp == 0) {
        few_store<A>(&a, T, expert, n, place, end, lane, c);
    }
}

template <tr_weight_format_t F, tr_dtype_t T>
static int
experts_launch_few(const tr_cuda_stream_t *s, const tr_cuda_experts_t *a)
{
    uint32_t tiles = a->places / 8
                     + (a->places < a->experts ? a->places : a->experts);
    uint32_t outputs = a->gated ? a->n / 2 : a->n;

    return launch_small(s,
                        a->gated ? experts_few_kernel<F, T, 2>
                                 : experts_few_kernel<F, T, 1>,
                        dim3((outputs + 15) / 16, tiles), EXPERT_WARPS * 32,
                        *a);
}

template <tr_weight_format_t F, tr_dtype_t T>
static int
experts_launch(const tr_cuda_stream_t *s, const tr_cuda_experts_t *a, bool many)
{
    uint32_t rows = many ? 64 : 8, outputs = many ? 32 : 16;
    uint32_t tiles = a->places / rows
                     + (a->places < a->experts ? a->places : a->experts);
    uint32_t blocks = (a->n + outputs - 1) / outputs;
    uint32_t warps = EXPERT_WARPS;

    if (tr_cuda_experts_few(s->device, a->places, a->experts,
                            a->gated ? a->n / 2 : a->n)) {
        return experts_launch_few<F, T>(s, a);
    }
    if (tiles > 65535) {
        return TR_KERNEL_BADARG;
    }
    /* of few blocks some multiprocessors would have one more, and the others wait
     * for them: then a block is a warp */
    if (blocks / EXPERT_WARPS * tiles < EVEN_BLOCKS * s->device->blocks) {
        warps = 1;
    }
    return launch_small(s,
                        many ? experts_kernel<F, T, 2, 8>
                             : experts_kernel<F, T, 1, 1>,
                        dim3((blocks + warps - 1) / warps, tiles), warps * 32,
                        *a);
}

static bool
experts_valid(const tr_cuda_stream_t *s, const tr_cuda_experts_t *a)
{
    return tr_cuda_experts_shape(a) && is_wide(a->x) && is_wide(a->w)
           && (a->form.format == TR_WEIGHT_16 || s->device->code == 90)
           && (!a->gated
               || tr_cuda_experts_few(s->device, a->places, a->experts,
                                      a->n / 2))
           && (a->ahead == NULL
               || (a->gated && is_wide(a->ahead)
                   && tr_cuda_experts_ahead(a->form, a->experts, a->ahead_n,
                                            a->n / 2)));
}

extern "C" int
tr_cuda_experts(const tr_cuda_stream_t *s, const tr_cuda_experts_t *a)
{
    bool many;

    if (!experts_valid(s, a)) {
        return TR_KERNEL_BADARG;
    }
    if (a->places == 0) {
        return TR_KERNEL_OK;
    }
    many = a->places / a->experts >= MANY;
    switch (a->form.format) {
    case TR_WEIGHT_FP8:
        return experts_launch<TR_WEIGHT_FP8, TR_BF16>(s, a, many);
    case TR_WEIGHT_INT4:
        return experts_launch<TR_WEIGHT_INT4, TR_BF16>(s, a, many);
    case TR_WEIGHT_MXFP4:
        return experts_launch<TR_WEIGHT_MXFP4, TR_BF16>(s, a, many);
    default:
        return a->type == TR_F16
                   ? experts_launch<TR_WEIGHT_16, TR_F16>(s, a, many)
                   : experts_launch<TR_WEIGHT_16, TR_BF16>(s, a, many);
    }
}

/* ---- the sum ------------------------------------------------------------- */

template <tr_dtype_t T>
static __global__ void __launch_bounds__(THREADS)
    sum_kernel(const __grid_constant__ tr_cuda_sum_experts_t a, bool wide)
{
    launch_wait();
    launch_next();
    sum_eight(&a, T, wide, blockIdx.x, blockIdx.y * THREADS + threadIdx.x);
}

extern "C" int
tr_cuda_sum_experts(const tr_cuda_stream_t *s, const tr_cuda_sum_experts_t *a)
{
    uint32_t eights = (a->n + 7) / 8;

    if (a->n == 0 || a->top_k == 0 || a->ldx < a->n || a->ldo < a->n
        || !tr_dtype_is_short(a->type)
        || (a->shared != NULL && a->lds < a->n)) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0) {
        return TR_KERNEL_OK;
    }
    return launch_small(s,
                        a->type == TR_F16 ? sum_kernel<TR_F16>
                                          : sum_kernel<TR_BF16>,
                        dim3(a->rows, (eights + THREADS - 1) / THREADS),
                        THREADS, *a, sum_wide(a));
}
