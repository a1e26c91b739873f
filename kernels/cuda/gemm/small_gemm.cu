/*
 * Small-batch GEMM (device.h): the launcher.  The kernel is small_gemm.cuh.
 */
#include <stdlib.h>
#include <unistd.h>

#include "small_gemm.cuh"
#include "small_gemm_direct_fp8.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/runtime/runtime.cuh"
#include "kernels/cuda/tensor.cuh"

/* ---- shares --------------------------------------------------------------- */

/* Rows of x that are multiplied. */
static uint32_t
columns_of(uint32_t rows)
{
    return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

#define TILE_WHOLE \
    128u /* fewer rows of w, and all of k: too much of x is
                         * read */

/* Rows of w for each of so many, in as few rounds as tiles allow. */
static uint32_t
tile_of(uint32_t n, uint32_t units)
{
    uint32_t all = (n + GEMM_TILE_MAX - 1) / GEMM_TILE_MAX;
    uint32_t parts = (all + units - 1) / units * units;
    uint32_t tile = (n + parts - 1) / parts;

    return tile <= 32 ? 32 : (tile + 15) / 16 * 16;
}

static gemm_tiling_t
tiling_of(const tr_device_props_t *d, uint32_t n, uint32_t k)
{
    gemm_tiling_t h = {};

    h.split = h.teams = 1;
    h.tile = tile_of(n, d->pairs * GEMM_CLUSTER);
    if (h.tile < TILE_WHOLE) {
        h.split = GEMM_CLUSTER;
        h.tile = tile_of(n, d->pairs);
    }
    h.tiles = (n + h.tile - 1) / h.tile;
    /* few rows of w: more of k, since each slot costs time, too */
    h.depth = h.tile <= 64 && k % (2 * GEMM_K_BLOCK * h.split) == 0 ? 2 : 1;
    h.steps = k / (GEMM_K_BLOCK * h.depth);
    h.piece = h.tile * GEMM_K_BLOCK * 2;
    h.w = h.depth * h.piece;
    return h;
}

/* The same tiles, of packed w: its slots are small, and hold whole groups.
 * Groups of warps for which a tile has no rows take other slots of it. */
static gemm_tiling_t
tiling_of_form(const tr_device_props_t *d, tr_weight_form_t form, uint32_t n,
               uint32_t k)
{
    gemm_tiling_t h = tiling_of(d, n, k);

    if (form.format == TR_WEIGHT_16) {
        return h;
    }
    h.depth = k % (2 * GEMM_K_BLOCK) == 0 ? 2 : 1;
    h.steps = k / (GEMM_K_BLOCK * h.depth);
    h.groups = form.group == 0 ? 0 : h.depth * GEMM_K_BLOCK / form.group;
    h.piece = h.tile / TR_WEIGHT_ROWS * tr_weight_block(form.format);
    h.w = h.depth * h.piece + h.groups * h.tile * 4;
    h.w = (h.w + 1023) / 1024 * 1024; /* x is aligned to that */
    h.teams = GEMM_WARPS / 4 / gemm_groups(h);
    return h;
}

/* The same tiles, of packed w that goes to registers. */
static gemm_tiling_t
tiling_direct(const tr_device_props_t *d, uint32_t n, uint32_t k)
{
    gemm_tiling_t h = tiling_of(d, n, k);

    h.depth = DIRECT_COLUMNS / GEMM_K_BLOCK;
    h.steps = k / DIRECT_COLUMNS;
    h.ways = direct_ways(h);
    return h;
}

extern "C" bool
tr_cuda_small_gemm_fits(const tr_device_props_t *d, uint32_t n, uint32_t k)
{
    return d->code == 90 && d->dependent && d->pairs > 0 && n % 64 == 0
           && k % 64 == 0 && n > 0 && k > 0;
}

extern "C" uint32_t
tr_cuda_small_gemm_parts(const tr_device_props_t *d, uint32_t rows, uint32_t n,
                         uint32_t k)
{
    gemm_tiling_t h = tiling_of(d, n, k);

    if (h.split == 1 || h.tiles > TR_CUDA_SMALL_GEMM_PARTS) {
        return 0; /* the kernel has no other */
    }
    return rows > 32 && h.tile > 64 ? 0 : h.tiles;
}

/* What a block has of shared memory, for all products of the chain.  False: it
 * is not enough.  A team leaves a slot when it is at its next one, as many slots
 * on as there are teams; if that were the same slot, or one before it, it would
 * wait for itself. */
static bool
smem_plan(const tr_device_props_t *d, uint32_t columns, gemm_args_t *a)
{
    for (uint32_t p = 0; p < a->phases; p++) {
        uint32_t received = gemm_received(a->phase[p].tiling, columns);
        uint32_t partial = gemm_partial(a->phase[p].tiling, columns);

        a->received = received > a->received ? received : a->received;
        a->partial = partial > a->partial ? partial : a->partial;
    }
    if (d->shared < gemm_shared(0, a->received + a->partial)) {
        return false;
    }
    a->ring = (d->shared - gemm_shared(0, a->received + a->partial)) / 1024
              * 1024;
    for (uint32_t p = 0; p < a->phases; p++) {
        gemm_tiling_t *h = &a->phase[p].tiling;

        h->slots = a->ring / gemm_slot(*h, columns);
        h->slots = h->slots < GEMM_SLOTS_MAX ? h->slots : GEMM_SLOTS_MAX;
        if (h->slots <= h->teams) {
            return false;
        }
    }
    return true;
}

typedef void gemm_kernel_t(const gemm_args_t, const gemm_maps_t);

/* Is a kernel for this kind alone faster than that for all?  Measured on an H100
 * with the products of a layer of Llama-3-8B (docs/benchmarks.md): without the
 * other loops ptxas has registers enough to leave products on their way, but what
 * it makes of those is not always faster. */
static constexpr bool
has_its_own(gemm_kind_t kind, int n)
{
    return kind == GEMM_IN_16_BITS || (kind == GEMM_FP8_ROWS && n >= 32)
           || (kind == GEMM_INT4_32 && n <= 32)
           || (kind == GEMM_INT4_64 && n <= 16)
           || (kind == GEMM_INT4_128 && n != 32);
}

template <int N, gemm_kind_t KIND>
static gemm_kernel_t *
kernel_for(void)
{
    if constexpr (has_its_own(KIND, N)) {
        return small_gemm_kernel<N, KIND, false>;
    } else {
        return small_gemm_kernel<N, GEMM_ANY, false>;
    }
}

/* By warps: of 8 columns alone. */
static gemm_kernel_t *
kernel_by_warps(gemm_kind_t kind)
{
    switch (kind) {
    case GEMM_FP8_ROWS:
        return small_gemm_kernel<8, GEMM_FP8_ROWS, true>;
    case GEMM_INT4_32:
        return small_gemm_kernel<8, GEMM_INT4_32, true>;
    case GEMM_INT4_64:
        return small_gemm_kernel<8, GEMM_INT4_64, true>;
    case GEMM_INT4_128:
        return small_gemm_kernel<8, GEMM_INT4_128, true>;
    default:
        return small_gemm_kernel<8, GEMM_ANY, true>;
    }
}

/* The kernel for weights of a kind, for N columns. */
template <int N>
static gemm_kernel_t *
kernel_of(gemm_kind_t kind)
{
    switch (kind) {
    case GEMM_IN_16_BITS:
        return kernel_for<N, GEMM_IN_16_BITS>();
    case GEMM_FP8_ROWS:
        return kernel_for<N, GEMM_FP8_ROWS>();
    case GEMM_INT4_32:
        return kernel_for<N, GEMM_INT4_32>();
    case GEMM_INT4_64:
        return kernel_for<N, GEMM_INT4_64>();
    case GEMM_INT4_128:
        return kernel_for<N, GEMM_INT4_128>();
    default:
        return small_gemm_kernel<N, GEMM_ANY, false>;
    }
}

/* ---- without a ring -------------------------------------------------------- */

typedef void gemm_direct_t(const gemm_args_t);

/* Packed forms that have such kernels. */
static gemm_direct_t *const direct_kernels[] = {
    small_gemm_direct_kernel<direct_int4_t<32>>,
    small_gemm_direct_kernel<direct_int4_t<64>>,
    small_gemm_direct_kernel<direct_int4_t<128>>,
    small_gemm_direct_kernel<direct_fp8_t<0>>,
    small_gemm_direct_kernel<direct_fp8_t<128>>
};

static gemm_direct_t *
direct_kernel(tr_weight_form_t form)
{
    return form.format == TR_WEIGHT_FP8
               ? direct_kernels[form.group == 0 ? 3 : 4]
               : direct_kernels[form.group == 32   ? 0
                                : form.group == 64 ? 1
                                                   : 2];
}

/* Smaller products are faster through the ring: of 4,096 x 4,096 this takes longer,
 * of 6,144 x 4,096 as long, of more weights less (docs/benchmarks.md). */
#define DIRECT_FP8_LEAST (20u << 20)

/* What a chain of INT4 needs, with 8 rows.  False: it is too much. */
static bool
direct_plan_int4(gemm_args_t *a)
{
    uint32_t x = 0, partial = 0;

    for (uint32_t p = 0; p < a->phases; p++) {
        x = max(x, 8 * direct_row(a->phase[p].tiling));
        partial = max(partial, direct_partial(a->phase[p].tiling));
    }
    for (uint32_t p = 0; p < a->phases; p++) {
        a->phase[p].tiling.x = x;
    }
    a->ring = (x + partial + 1023) / 1024 * 1024;
    return gemm_shared(a->ring, a->received) <= DIRECT_SHARED;
}

/* Likewise of FP8, whose pieces are there, too: as many as there is room for.
 * False: it is too much with 8 rows, or the chain's products are small. */
static bool
direct_plan_fp8(const tr_device_props_t *d, gemm_args_t *a)
{
    const uint32_t group = a->phase[0].p.form.group;
    uint32_t most = 0, stages = DIRECT_FP8_STAGES_MAX;
    uint64_t weights = 0;

    for (uint32_t p = 0; p < a->phases; p++) {
        gemm_phase_t *f = &a->phase[p];
        gemm_tiling_t *h = &f->tiling;

        if (h->steps > GEMM_SLOTS_MAX * DIRECT_FP8_X_PIECES) {
            return false;
        }
        h->x = f->p.rows * direct_row(*h);
        a->pieces = max(a->pieces, h->x + direct_partial(*h));
        most = max(most, 8 * direct_row(*h) + direct_partial(*h));
        weights += (uint64_t) f->p.n * f->p.k;
    }
    most = (most + 127) / 128 * 128
           + direct_fp8_bytes(group, DIRECT_FP8_STAGES_MIN);
    if (gemm_shared((most + 1023) / 1024 * 1024, a->received)
            > DIRECT_FP8_SHARED
        || (!d->few_fp8 && weights < (uint64_t) DIRECT_FP8_LEAST * a->phases)) {
        return false;
    }
    a->pieces = (a->pieces + 127) / 128 * 128;
    do {
        a->stages = stages;
        a->ring = (a->pieces + direct_fp8_bytes(group, stages) + 1023) / 1024
                  * 1024;
    } while (gemm_shared(a->ring, a->received) > d->shared
             && --stages >= DIRECT_FP8_STAGES_MIN);
    return true;
}

/* The kernel for a chain of up to 8 rows, all of whose products have weights of one
 * packed form, and x that fits; NULL: it is not one.  That depends on shapes and
 * forms alone. */
static gemm_direct_t *
direct_plan(const tr_device_props_t *d, const gemm_args_t *of, gemm_args_t *a)
{
    const tr_weight_form_t form = of->phase[0].p.form;

    *a = *of;
    for (uint32_t p = 0; p < a->phases; p++) {
        gemm_phase_t *f = &a->phase[p];
        gemm_tiling_t *h = &f->tiling;

        *h = tiling_direct(d, f->p.n, f->p.k);
        if (f->p.form.format != form.format || f->p.form.group != form.group
            || f->p.k % DIRECT_COLUMNS != 0 || h->steps < h->split) {
            return NULL;
        }
        a->received = max(a->received, gemm_received(*h, 8));
    }
    return (form.format == TR_WEIGHT_INT4 && direct_plan_int4(a))
                   || (form.format == TR_WEIGHT_FP8 && direct_plan_fp8(d, a))
               ? direct_kernel(form)
               : NULL;
}

static int
direct_launch(const tr_cuda_stream_t *s, gemm_direct_t *kernel,
              const gemm_args_t *a)
{
    uint32_t shared = gemm_shared(a->ring, a->received);

    if (s->device->shared < shared) {
        return TR_KERNEL_BADARG;
    }
    return launch_clusters(s, true, shared, GEMM_CLUSTER, kernel,
                           dim3(s->device->pairs * GEMM_CLUSTER),
                           DIRECT_THREADS, *a);
}

/* ---- opening -------------------------------------------------------------- */

template <typename K>
static cudaError_t
prepare_one(const tr_device_props_t *d, K *kernel)
{
    return cudaFuncSetAttribute(kernel,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int) d->shared);
}

template <int N>
static cudaError_t
prepare(const tr_device_props_t *d)
{
    cudaError_t e = cudaSuccess;

    for (int i = 0; i <= GEMM_ANY && e == cudaSuccess; i++) {
        gemm_kind_t kind = (gemm_kind_t) i;

        e = prepare_one(d, kernel_of<N>(kind));
        if (e == cudaSuccess && N == 8 && kind != GEMM_IN_16_BITS) {
            e = prepare_one(d, kernel_by_warps(kind));
        }
    }
    return e;
}

static cudaError_t
prepare_direct(const tr_device_props_t *d)
{
    cudaError_t e = cudaSuccess;

    for (gemm_direct_t *kernel : direct_kernels) {
        if (e == cudaSuccess) {
            e = prepare_one(d, kernel);
        }
    }
    return e;
}

/* Of one product; of a chain the kind that all packed ones have. */
static gemm_kind_t
kind_of(const gemm_phase_t *f)
{
    const tr_weight_form_t w = f->p.form;

    return w.format == TR_WEIGHT_16    ? GEMM_IN_16_BITS
           : f->tiling.depth != 2      ? GEMM_ANY
           : w.format == TR_WEIGHT_FP8 ? w.group == 0 ? GEMM_FP8_ROWS : GEMM_ANY
           : w.group == 32             ? GEMM_INT4_32
           : w.group == 64             ? GEMM_INT4_64
                                       : GEMM_INT4_128;
}

static gemm_kind_t
kind_of_chain(const gemm_args_t *a)
{
    gemm_kind_t all = GEMM_IN_16_BITS;

    for (uint32_t p = 0; p < a->phases; p++) {
        gemm_kind_t kind = kind_of(&a->phase[p]);

        if (kind != GEMM_IN_16_BITS) {
            all = all == GEMM_IN_16_BITS || all == kind ? kind : GEMM_ANY;
        }
    }
    return all;
}

/* Blocks wait for each other, so all must run at once.  Under MPS another
 * process may have some multiprocessors, and wait for those that this one
 * has. */
static bool
shared_with_others(void)
{
    return getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL
           || access("/tmp/nvidia-mps", F_OK) == 0;
}

void
small_gemm_open(tr_device_props_t *d)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    int n = 0;

    if (d->code != 90 || shared_with_others()) {
        return;
    }
    config.blockDim = dim3(GEMM_THREADS);
    config.gridDim = dim3(GEMM_CLUSTER * d->blocks);
    config.dynamicSmemBytes = d->shared; /* one a multiprocessor */
    config.attrs = &attribute;
    config.numAttrs = 1;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = GEMM_CLUSTER;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    if (prepare_direct(d) == cudaSuccess && prepare<8>(d) == cudaSuccess
        && prepare<16>(d) == cudaSuccess && prepare<32>(d) == cudaSuccess
        && prepare<64>(d) == cudaSuccess
        && cudaOccupancyMaxActiveClusters(
               &n, small_gemm_kernel<64, GEMM_ANY, false>, &config)
               == cudaSuccess) {
        d->pairs = (uint32_t) n;
    }
    cudaGetLastError(); /* without it there are other products */
}

/* ---- launching ------------------------------------------------------------ */

static bool
map_encode(CUtensorMap *map, const void *at, uint32_t rank,
           const cuuint64_t *dims, const cuuint64_t *strides,
           const cuuint32_t *box)
{
    static const cuuint32_t step[5] = { 1, 1, 1, 1, 1 };

    return tensor_encode()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank,
                           (void *) at, dims, strides, box, step,
                           CU_TENSOR_MAP_INTERLEAVE_NONE,
                           CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
           == CUDA_SUCCESS;
}

/* w as eights of rows, of gate and up in turn: then a thread that multiplies
 * has sums of both. */
static bool
map_weights(CUtensorMap *map, const gemm_phase_t *f)
{
    uint32_t both = f->p.mode == TR_CUDA_SMALL_GEMM_GATED ? 2 : 1;
    cuuint64_t row = (cuuint64_t) f->p.k * 2;
    cuuint64_t dims[5] = { GEMM_K_BLOCK, 8, both, f->p.n / 8 / both,
                           f->p.k / GEMM_K_BLOCK };
    cuuint64_t strides[4] = { row, row * f->p.n / both, row * 8,
                              GEMM_K_BLOCK * 2 };
    cuuint32_t box[5] = { GEMM_K_BLOCK, 8, both, f->tiling.tile / 8 / both,
                          f->tiling.depth };

    return map_encode(map, f->p.w, 5, dims, strides, box);
}

static bool
map_rows(CUtensorMap *map, const gemm_phase_t *f, uint32_t columns)
{
    cuuint64_t dims[3] = { GEMM_K_BLOCK, f->p.rows, f->p.k / GEMM_K_BLOCK };
    cuuint64_t strides[2] = { f->p.ldx * 2, GEMM_K_BLOCK * 2 };
    cuuint32_t box[3] = { GEMM_K_BLOCK, columns, f->tiling.depth };

    return map_encode(map, f->p.x, 3, dims, strides, box);
}

template <int N>
static int
launch(const tr_cuda_stream_t *s, gemm_args_t *a)
{
    gemm_kind_t kind = kind_of_chain(a);
    bool warps = N == 8 && s->device->trial && kind != GEMM_IN_16_BITS;
    gemm_maps_t maps = {};

    if (tensor_encode() == NULL || !smem_plan(s->device, N, a)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t p = 0; p < a->phases; p++) {
        bool is_packed = a->phase[p].p.form.format != TR_WEIGHT_16;

        if ((!is_packed && !map_weights(&maps.w[p], &a->phase[p]))
            || !map_rows(&maps.x[p], &a->phase[p], N)) {
            return TR_KERNEL_BADARG;
        }
    }
    return launch_clusters(s, true,
                           gemm_shared(a->ring, a->received + a->partial),
                           GEMM_CLUSTER,
                           warps ? kernel_by_warps(kind) : kernel_of<N>(kind),
                           dim3(s->device->pairs * GEMM_CLUSTER), GEMM_THREADS,
                           *a, maps);
}

static bool
aligned(const void *p)
{
    return ((uintptr_t) p & 15) == 0;
}

/* Gate and up alternate where both are one thread's, and nowhere else but in a
 * plain product. */
static bool
pairs_right(const tr_cuda_small_gemm_t *p)
{
    return p->form.format == TR_WEIGHT_16 || p->mode == TR_CUDA_SMALL_GEMM_PLAIN
           || (p->form.order == TR_WEIGHT_PAIRS)
                  == (p->mode == TR_CUDA_SMALL_GEMM_GATED);
}

static bool
gemm_valid(const tr_cuda_small_gemm_t *p)
{
    bool residual = p->mode == TR_CUDA_SMALL_GEMM_RESIDUAL;
    uint32_t n = p->mode == TR_CUDA_SMALL_GEMM_GATED ? p->n / 2 : p->n;

    return p->mode <= TR_CUDA_SMALL_GEMM_RESIDUAL
           && tr_weight_valid(p->form, p->n, p->k) && pairs_right(p)
           && p->rows <= TR_CUDA_SMALL_GEMM_ROWS && p->ldx >= p->k
           && p->ldx % 8 == 0 && p->x != NULL && p->w != NULL && aligned(p->x)
           && aligned(p->w) && aligned(p->y) && aligned(p->hidden)
           && aligned(p->bias) && aligned(p->weight)
           && (p->mode != TR_CUDA_SMALL_GEMM_GATED
               || tr_cuda_has_act(TR_CUDA_SMALL_GEMM_ACTS, p->act))
           && (residual || p->y != NULL)
           && (p->y == NULL || (p->ldy >= n && p->ldy % 4 == 0))
           && (!residual
               || (p->hidden != NULL && p->ldh >= n && p->ldh % 4 == 0
                   && (p->y == NULL || p->weight != NULL)))
           && (residual || p->parts == 0
               || (p->squares != NULL && p->norm_n > 0));
}

extern "C" int
tr_cuda_small_gemm(const tr_cuda_stream_t *s, const tr_cuda_small_gemm_t *of,
                   uint32_t n, uint32_t *barrier)
{
    gemm_args_t a = {}, direct;
    gemm_direct_t *kernel;

    if (n == 0 || n > TR_CUDA_SMALL_GEMM_CHAIN || barrier == NULL) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t p = 0; p < n; p++) {
        if (!tr_cuda_small_gemm_fits(s->device, of[p].n, of[p].k)
            || !gemm_valid(&of[p]) || of[p].rows != of[0].rows
            || (of[p].mode == TR_CUDA_SMALL_GEMM_RESIDUAL
                && tr_cuda_small_gemm_parts(s->device, of[p].rows, of[p].n,
                                            of[p].k)
                       == 0)) {
            return TR_KERNEL_BADARG;
        }
        a.phase[p].p = of[p];
        a.phase[p].tiling = tiling_of_form(s->device, of[p].form, of[p].n,
                                           of[p].k);
    }
    if (of[0].rows == 0) {
        return TR_KERNEL_OK;
    }
    a.phases = n;
    a.barrier = barrier;
    if (of[0].rows <= 8
        && (kernel = direct_plan(s->device, &a, &direct)) != NULL) {
        return direct_launch(s, kernel, &direct);
    }
    switch (columns_of(of[0].rows)) {
    case 8:
        return launch<8>(s, &a);
    case 16:
        return launch<16>(s, &a);
    case 32:
        return launch<32>(s, &a);
    default:
        return launch<64>(s, &a);
    }
}
