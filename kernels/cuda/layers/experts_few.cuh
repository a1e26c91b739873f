/*
 * experts_few.cuh: products of experts of which there are few tiles
 * (tr_cuda_experts_few), as functions of a block.
 *
 * A tile is 8 places by 16 outputs; gated, it has 16 rows of gate and 16 of up.
 * Its four warps take 64 inputs in turn: so four times as much of the weights is
 * under way as if it were one warp's.  The first adds what the others have, in
 * their order, and applies the activation.  Weights in 16 bits and packed give the
 * same bits, since steps and their order are the same.
 */
#ifndef TR_CUDA_EXPERTS_FEW_CUH
#define TR_CUDA_EXPERTS_FEW_CUH

#include "act.cuh"
#include "experts_packed.cuh"

/* The first row of strip i, gate or up, of outputs from n on; where it ends. */
TR_DEVICE uint32_t
few_row(const tr_cuda_experts_t *a, uint32_t n, uint32_t i)
{
    return n + i * (a->n / 2);
}

template <int A>
TR_DEVICE uint32_t
few_end(const tr_cuda_experts_t *a, uint32_t i)
{
    return A == 1 ? a->n : (i + 1) * (a->n / 2);
}

/* A warp's part of the sums; weights in 16 bits. */
template <tr_dtype_t T, int A>
TR_DEVICE void
few_part(const tr_cuda_experts_t *a, uint32_t expert, uint32_t n,
         const uint16_t *const (&inputs)[1], uint32_t warp, uint32_t lane,
         float (&c)[A][1][4])
{
    const uint16_t *w = (const uint16_t *) a->w + (size_t) expert * a->n * a->k;
    const uint32_t first = lane % 4 * 8, whole = a->k / 64;
    const uint16_t *weights[2 * A];

#pragma unroll
    for (uint32_t i = 0; i < 2 * A; i++) {
        uint32_t row = few_row(a, n, i / 2) + i % 2 * 8 + lane / 4;

        weights[i] = w + (size_t) min(row, few_end<A>(a, i / 2) - 1) * a->k;
    }
#pragma unroll 2
    for (uint32_t k = warp; k < whole; k += EXPERT_WARPS) {
        expert_step<T, A, 1, false>(weights, inputs, k * 64 + first, a->k, c);
        expert_step<T, A, 1, false>(weights, inputs, k * 64 + 32 + first, a->k,
                                    c);
    }
    if (a->k % 64 != 0 && whole % EXPERT_WARPS == warp) {
        expert_step<T, A, 1, true>(weights, inputs, whole * 64 + first, a->k,
                                   c);
        expert_step<T, A, 1, true>(weights, inputs, whole * 64 + 32 + first,
                                   a->k, c);
    }
}

/* c += a strip's 64 inputs. */
template <tr_weight_format_t F>
TR_DEVICE void
few_strip(const strip_block_t &b, const uint4 (&v)[2], float (&c)[4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t one[4], two[4];

        strip_step<F>(b, 2 * half, one);
        strip_step<F>(b, 2 * half + 1, two);
        mma_bf16(c, one, v[half].x, v[half].y);
        mma_bf16(c, two, v[half].z, v[half].w);
    }
}

/* few_part of packed weights. */
template <tr_weight_format_t F, int A>
TR_DEVICE void
few_part_packed(const tr_cuda_experts_t *a, uint32_t expert, uint32_t n,
                const uint16_t *const (&inputs)[1], uint32_t warp,
                uint32_t lane, float (&c)[A][1][4])
{
    strip_t strips[A];

#pragma unroll
    for (uint32_t i = 0; i < A; i++) {
        strips[i] = strip_of<F>(
            a, (expert * a->n + few_row(a, n, i)) / TR_WEIGHT_ROWS, lane);
    }
#pragma unroll 2
    for (uint32_t chunk = warp; chunk < a->k / TR_WEIGHT_COLUMNS;
         chunk += EXPERT_WARPS) {
        const uint16_t *x = inputs[0] + chunk * TR_WEIGHT_COLUMNS
                            + lane % 4 * 8;
        const uint4 v[2] = { *(const uint4 *) x, *(const uint4 *) (x + 32) };
        strip_block_t b[A];

#pragma unroll
        for (int i = 0; i < A; i++) {
            strip_load<F>(a, strips[i], chunk, b[i]);
        }
#pragma unroll
        for (int i = 0; i < A; i++) {
            few_strip<F>(b[i], v, c[i][0]);
        }
    }
}

#define FEW_CALLED 2048u /* bytes that a thread calls for */

/* What an expert's next product reads, into the L2 cache: some by each block of
 * the expert. */
template <tr_weight_format_t F>
TR_DEVICE void
few_call(const tr_cuda_experts_t *a, uint32_t expert)
{
    const bool packed = F != TR_WEIGHT_16;
    const uint32_t n = a->ahead_n, k = a->n / 2;
    /* pieces of it are contiguous, and so are their experts' */
    const uint32_t pieces = packed ? k / TR_WEIGHT_COLUMNS : 1;
    const uint32_t bytes = packed ? n / TR_WEIGHT_ROWS * tr_weight_block(F)
                                  : n * k * 2;
    const uint32_t of = (bytes + FEW_CALLED - 1) / FEW_CALLED;

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < pieces * of;
         i += gridDim.x * blockDim.x) {
        uint32_t at = i % of * FEW_CALLED;

        prefetch_l2_bytes((const uint8_t *) a->ahead
                              + ((size_t) (i / of) * a->experts + expert)
                                    * bytes
                              + at,
                          min(bytes - at, FEW_CALLED));
    }
}

/* The first warp gets all sums. */
template <int A>
TR_DEVICE void
few_join(float (&c)[A][1][4], float (*meet)[A * 4][32], uint32_t warp,
         uint32_t lane)
{
    if (warp > 0) {
#pragma unroll
        for (int i = 0; i < A * 4; i++) {
            meet[warp - 1][i][lane] = c[i / 4][0][i % 4];
        }
    }
    __syncthreads();
    for (uint32_t w = 1; warp == 0 && w < EXPERT_WARPS; w++) {
#pragma unroll
        for (int i = 0; i < A * 4; i++) {
            c[i / 4][0][i % 4] += meet[w - 1][i][lane];
        }
    }
}

TR_DEVICE float
few_biased(const tr_cuda_experts_t *a, uint32_t expert, uint32_t row, float sum)
{
    return sum + (a->bias == NULL ? 0 : a->bias[(size_t) expert * a->n + row]);
}

/* Sums become outputs, those that there are; by the first warp. */
template <int A>
TR_DEVICE void
few_store(const tr_cuda_experts_t *a, tr_dtype_t type, uint32_t expert,
          uint32_t n, uint32_t place, uint32_t end, uint32_t lane,
          const float (&c)[A][1][4])
{
#pragma unroll
    for (uint32_t x = 0; x < 4; x++) {
        uint32_t out = n + x / 2 * 8 + lane / 4;
        uint32_t at = place + lane % 4 * 2 + x % 2;
        float y;

        if (out >= few_end<A>(a, 0) || at >= end) {
            continue;
        }
        y = few_biased(a, expert, out, c[0][0][x]);
        if (A == 2) {
            y = act_any(a->act, y,
                        few_biased(a, expert, out + a->n / 2, c[A - 1][0][x]));
        }
        tr_float_store(a->y, at * a->ldy + out, type, y);
    }
}

#endif
