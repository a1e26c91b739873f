/*
 * lanes_hadamard.cuh: R of kernels/hadamard.h by lanes that share a head's
 * numbers.
 *
 * Sums come in tr_hadamard's order, neighbours first, so that the results are
 * its bits: what a lane has, then what lanes 1, 2, 4, .. apart have.
 */
#ifndef TR_CUDA_LANES_HADAMARD_CUH
#define TR_CUDA_LANES_HADAMARD_CUH

#include "kernels/cuda/lanes.cuh"
#include "kernels/hadamard.h"

/* x[N]: channels [at, at + N) of a head of dim, with their signs and the scale.
 * A product that were fused with a sum would not be rounded. */
template <uint32_t N>
TR_DEVICE void
lane_signs(float *x, uint32_t at, uint32_t dim)
{
    float scale = div_rn(1, sqrtf((float) dim));

#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        x[i] = mul_rn(x[i], tr_hadamard_sign(at + i) * scale);
    }
}

/* Among the lane's N numbers. */
template <uint32_t N>
TR_DEVICE void
lane_butterflies(float *x)
{
#pragma unroll
    for (uint32_t d = 1; d < N; d *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            if ((i & d) == 0) {
                float u = x[i], v = x[i + d];

                x[i] = u + v;
                x[i + d] = u - v;
            }
        }
    }
}

/* Among lanes d apart.  All lanes of the warp come. */
template <uint32_t N>
TR_DEVICE void
lanes_butterfly(warp_t w, uint32_t d, float *x)
{
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        float y = tr_float_from_bits(lanes_xor(w, tr_float_bits(x[i]), d));

        x[i] = (w.lane & d) == 0 ? x[i] + y : y - x[i];
    }
}

#endif
