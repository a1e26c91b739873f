/*
 * Products of 8 bits by 8 bits (device_fp8.h): the launchers.  The kernels are in
 * fp8_gemm.cuh.
 */
#include "fp8_gemm.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/runtime/runtime.cuh"
#include "kernels/cuda/tensor.cuh"

/* ---- rows in 8 bits ------------------------------------------------------- */

template <bool BLOCKS>
static int
round_launch(const tr_cuda_stream_t *s, const tr_cuda_fp8_round_t *a)
{
    uint32_t each = (a->k / 16 + FP8_ROUND_THREADS - 1) / FP8_ROUND_THREADS;

    return launch_small(s,
                        each <= 1   ? fp8_round_kernel<BLOCKS, 1>
                        : each <= 4 ? fp8_round_kernel<BLOCKS, 4>
                                    : fp8_round_kernel<BLOCKS, 8>,
                        dim3(a->rows), FP8_ROUND_THREADS, *a);
}

static_assert(TR_FP8_COLUMNS == 8 * 16 * FP8_ROUND_THREADS,
              "what a block has of a row");

extern "C" int
tr_cuda_fp8_round(const tr_cuda_stream_t *s, const tr_cuda_fp8_round_t *a)
{
    if (!tr_cuda_fp8_round_valid(a) || s->device->code != 90) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0) {
        return TR_KERNEL_OK;
    }
    return a->blocks ? round_launch<true>(s, a) : round_launch<false>(s, a);
}

/* ---- products ------------------------------------------------------------- */

template <int HALVES, bool BLOCKS, bool GATED>
static cudaError_t
prepare(void)
{
    return cudaFuncSetAttribute(fp8_kernel<HALVES, BLOCKS, GATED>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int) fp8_smem<HALVES>::bytes);
}

template <int HALVES>
static void
prepare_all(void)
{
    prepare<HALVES, false, false>();
    prepare<HALVES, false, true>();
    prepare<HALVES, true, false>();
    prepare<HALVES, true, true>();
}

void
fp8_gemm_open(const tr_device_props_t *d)
{
    if (d->code == 90) {
        prepare_all<1>();
        prepare_all<2>();
        cudaGetLastError(); /* a launch says what is wrong */
    }
}

extern "C" bool
tr_cuda_fp8_fits(const tr_device_props_t *d, tr_weight_form_t f, uint32_t n,
                 uint32_t k)
{
    return d->code == 90 && tr_cuda_fp8_shape(f, n, k);
}

/* Codes of x: 128 of k for 128 tokens. */
static bool
map_tokens(CUtensorMap *map, const tr_cuda_fp8_gemm_t *a)
{
    static const cuuint32_t step[2] = { 1, 1 };
    cuuint64_t dims[2] = { a->k, a->rows }, strides[1] = { a->k };
    cuuint32_t box[2] = { FP8_K, FP8_TOKENS };

    return tensor_encode() != NULL
           && tensor_encode()(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, a->x.codes,
                              dims, strides, box, step,
                              CU_TENSOR_MAP_INTERLEAVE_NONE,
                              CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
                  == CUDA_SUCCESS;
}

/* In how many rounds of all multiprocessors tiles of so many halves are done, in
 * halves. */
static uint32_t
rounds_of(const tr_device_props_t *d, const tr_cuda_fp8_gemm_t *a,
          uint32_t halves)
{
    uint32_t tokens = halves * FP8_TOKENS;
    uint32_t tiles = (a->rows + tokens - 1) / tokens
                     * ((a->n + FP8_ROWS - 1) / FP8_ROWS);

    return (tiles + d->blocks - 1) / d->blocks * halves;
}

template <int HALVES>
static int
launch(const tr_cuda_stream_t *s, const tr_cuda_fp8_gemm_t *a)
{
    const uint32_t tokens = HALVES * FP8_TOKENS;
    fp8_args_t args = {};
    CUtensorMap map;
    bool blocks = a->form.group != 0;

    if (!map_tokens(&map, a)) {
        return TR_KERNEL_BADARG;
    }
    args.p = *a;
    args.scales = (const float *) ((const uint8_t *) a->w
                                   + tr_weight_code_bytes(a->form, a->n, a->k));
    args.across = (a->rows + tokens - 1) / tokens;
    args.tiles = args.across * ((a->n + FP8_ROWS - 1) / FP8_ROWS);
    return launch_with(s, true, fp8_smem<HALVES>::bytes,
                       a->gated ? blocks ? fp8_kernel<HALVES, true, true>
                                         : fp8_kernel<HALVES, false, true>
                       : blocks ? fp8_kernel<HALVES, true, false>
                                : fp8_kernel<HALVES, false, false>,
                       dim3(args.tiles < s->device->blocks ? args.tiles
                                                           : s->device->blocks),
                       FP8_THREADS, args, map);
}

extern "C" int
tr_cuda_fp8_gemm(const tr_cuda_stream_t *s, const tr_cuda_fp8_gemm_t *a)
{
    if (!tr_cuda_fp8_gemm_valid(a) || s->device->code != 90) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows == 0) {
        return TR_KERNEL_OK;
    }
    return rounds_of(s->device, a, 2) <= rounds_of(s->device, a, 1)
               ? launch<2>(s, a)
               : launch<1>(s, a);
}
