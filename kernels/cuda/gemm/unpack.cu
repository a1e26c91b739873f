/*
 * Packed weights (kernels/weight_form.h) in 16 bits (device.h), for products that
 * read a weight many times.
 *
 * A warp has a block of 16 rows x 64 columns, 128 bytes a row when it is BF16: it
 * makes them in registers, turns them in shared memory, and writes 16 bytes a
 * lane.  Read: bits / 8 bytes a weight, written: 2.
 */
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/runtime/runtime.cuh"
#include "kernels/cuda/packed.cuh"

#define UNPACK_WARPS 8u
#define UNPACK_PITCH 36u /* words of a row, so that rows have other banks */

/* Scale words of rows g and g + 8 of a strip, of the group of a column. */
static __device__ __forceinline__ void
unpack_scales(const tr_cuda_unpack_t &a, uint32_t strip, uint32_t column,
              uint32_t (&word)[2])
{
    const uint32_t *scales = (const uint32_t *) ((const uint8_t *) a.w
                                                 + tr_weight_code_bytes(a.form,
                                                                        a.n,
                                                                        a.k));
    size_t group = a.form.group == 0 ? 0 : column / a.form.group;
    uint32_t row = strip * TR_WEIGHT_ROWS + threadIdx.x % 32 / 4;

    word[0] = __ldg(scales + group * a.n + row);
    word[1] = __ldg(scales + group * a.n + row + 8);
}

/* A step of the lane: rows g, g + 8 at columns 2 t, then the same at 2 t + 8. */
static __device__ __forceinline__ void
unpack_step(const tr_cuda_unpack_t &a, const uint8_t *lane, uint32_t step,
            const uint32_t (&word)[2], uint32_t (&out)[4])
{
    if (a.form.format == TR_WEIGHT_FP8) {
        const uint32_t *w = (const uint32_t *) (lane + step / 2 * 512
                                                + step % 2 * 8);

        packed_fp8_weights(out, __ldg(w), __ldg(w + 1), word);
    } else {
        packed_int4_weights(out, __ldg((const uint32_t *) lane + step), word);
    }
}

static __global__ void __launch_bounds__(32 * UNPACK_WARPS)
    unpack_kernel(const __grid_constant__ tr_cuda_unpack_t a)
{
    __shared__ uint32_t rows[UNPACK_WARPS][TR_WEIGHT_ROWS * UNPACK_PITCH];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t strips = a.n / TR_WEIGHT_ROWS;
    uint32_t block = blockIdx.x * UNPACK_WARPS + warp;
    uint32_t strip = block % strips, chunk = block / strips;
    const uint8_t *codes = (const uint8_t *) a.w
                           + (size_t) block * tr_weight_block(a.form.format)
                           + lane * 16;
    uint32_t *to = rows[warp], word[2], out[4];

    if (chunk * TR_WEIGHT_COLUMNS >= a.k) {
        return;
    }
#pragma unroll
    for (uint32_t step = 0; step < 4; step++) {
        uint32_t at = lane / 4 * UNPACK_PITCH + step * 8 + lane % 4;

        unpack_scales(a, strip, chunk * TR_WEIGHT_COLUMNS + step * 16, word);
        unpack_step(a, codes, step, word, out);
        to[at] = out[0];
        to[at + 8 * UNPACK_PITCH] = out[1];
        to[at + 4] = out[2];
        to[at + 8 * UNPACK_PITCH + 4] = out[3];
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t r = i * 4 + lane / 8, c = lane % 8;
        uint32_t row = tr_weight_row(a.form, a.n, strip * TR_WEIGHT_ROWS + r);
        const uint4 v = *(const uint4 *) (to + r * UNPACK_PITCH + c * 4);

        *(uint4 *) ((uint16_t *) a.out + (size_t) row * a.k
                    + chunk * TR_WEIGHT_COLUMNS + c * 8) = v;
    }
}

extern "C" int
tr_cuda_unpack(const tr_cuda_stream_t *s, const tr_cuda_unpack_t *a)
{
    size_t blocks;

    if (a->form.format == TR_WEIGHT_16 || !tr_weight_valid(a->form, a->n, a->k)
        || a->w == NULL || a->out == NULL || ((uintptr_t) a->w & 15) != 0
        || ((uintptr_t) a->out & 15) != 0 || s->device->code != 90) {
        return TR_KERNEL_BADARG;
    }
    blocks = (size_t) a->n / TR_WEIGHT_ROWS * (a->k / TR_WEIGHT_COLUMNS);
    blocks = (blocks + UNPACK_WARPS - 1) / UNPACK_WARPS;
    if (blocks > INT32_MAX) {
        return TR_KERNEL_BADARG;
    }
    return launch_plain(s, unpack_kernel, dim3((uint32_t) blocks),
                        32 * UNPACK_WARPS, *a);
}
