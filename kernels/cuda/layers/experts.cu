/*
 * Launchers of layers with experts (device.h).  The kernels are in experts.cuh,
 * those of packed weights in experts_packed.cuh.
 *
 * Grids depend on counts that the host knows: rows, experts, outputs.  How many
 * rows an expert has is known on the device alone, so a product has as many
 * blocks as there can be tiles; those without one end at once.
 */
#include "experts.cuh"
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

template <tr_weight_format_t F, tr_dtype_t T>
static int
experts_launch(const tr_cuda_stream_t *s, const tr_cuda_experts_t *a, bool many)
{
    uint32_t rows = many ? 64 : 8, outputs = many ? 32 : 16;
    uint32_t tiles = a->places / rows
                     + (a->places < a->experts ? a->places : a->experts);
    uint32_t blocks = (a->n + outputs - 1) / outputs;
    uint32_t warps = EXPERT_WARPS;

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
    bool packed = a->form.format != TR_WEIGHT_16;

    return a->experts != 0 && a->experts <= TR_EXPERTS_MAX && a->k != 0
           && a->k % 8 == 0 && a->n != 0 && a->ldx >= a->k && a->ldx % 8 == 0
           && a->ldy >= a->n && tr_dtype_is_short(a->type) && is_wide(a->x)
           && is_wide(a->w)
           && (!packed
               || (tr_weight_valid_experts(a->form, a->experts, a->n, a->k)
                   && a->type == TR_BF16 && s->device->code == 90));
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
