/*
 * small_gemm.cuh: the kernel of small-batch GEMM (device.h).
 *
 * One persistent kernel computes a chain of products: every multiprocessor runs
 * one block from the first product to the last, and blocks form clusters of
 * two.  x has few rows, which are the columns of D = W X^T.  The rows of w are
 * cut into tiles, one for each block; where there are too few, one for each
 * cluster, whose blocks then take half of k each.
 *
 *   producers   one thread loads pieces of 64 of k, of the tile's rows of w and
 *               of x, into a ring of slots (TMA).  The next product's x exists
 *               only when all blocks have finished this one, but its w can be
 *               loaded before: a second thread does so while slots are free
 *   consumers   four warpgroups multiply 64 rows of w each
 *   epilogue    the two blocks of a cluster exchange sums; each finishes every
 *               other row of x, from registers: scale, gate or residual
 *
 * A warpgroup for which the tile has no rows skips the product, or where weights
 * are packed takes some of its slots (gemm_team).
 *
 * Weights may be packed (small_gemm_packed.cuh); chains of 16-bit weights alone
 * have a kernel of their own, which knows nothing of that, and so have chains
 * whose packed weights are all of one kind, where that is faster.  WARPS: packed
 * weights are multiplied by warps, not by warpgroups.  Chains of up to 8 rows whose
 * weights all are INT4 of one form, or FP8 and large, need no ring
 * (small_gemm_direct.cuh).
 */
#ifndef TR_CUDA_SMALL_GEMM_CUH
#define TR_CUDA_SMALL_GEMM_CUH

#include "small_gemm_producer.cuh"
#include "small_gemm_epilogue.cuh"
#include "small_gemm_packed.cuh"

/* ---- multiplying ---------------------------------------------------------- */

/* c[4j + 2r + b]: row 16 w + 8r + g of the group's 64, row 8j + 2t + b of x, in
 * lane 4g + t of the group's warp w. */
template <int N, int DEPTH>
static __device__ __forceinline__ void
gemm_multiply(const gemm_args_t &a, const gemm_smem_t &s, uint32_t p,
              uint32_t steps, gemm_pipeline_t &t, float (&c)[N / 2])
{
    const gemm_tiling_t &h = a.phase[p].tiling;
    uint32_t rows = s.ring + threadIdx.x / 128 * 64 * GEMM_K_BLOCK * 2;
    uint32_t piece = h.tile * GEMM_K_BLOCK * 2, bytes = gemm_slot(h, N);
    uint32_t x = s.ring + DEPTH * piece;
    uint32_t full = gemm_full(s, p, 0), early = gemm_early(s, p, 0);
    uint32_t empty = gemm_empty(s, p, 0), slots = h.slots, left = 0;

#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        c[i] = 0;
    }
    wgmma_touch(c);
#pragma unroll 1
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t at = t.slot * bytes;

        if (!t.later) {
            bar_wait(early + 8 * t.slot, 0);
        }
        bar_wait(full + 8 * t.slot, t.parity);
        __syncwarp(); /* warps multiply as one */
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4 * DEPTH; k++) {
            uint32_t d = k / 4;

            multiply(
                c, wgmma_operand(rows + at + d * piece + k % 4 * 32, 1024, 16),
                wgmma_operand(x + at + d * (N * GEMM_K_BLOCK * 2) + k % 4 * 32,
                              1024, 16));
        }
        wgmma_end();
        wgmma_wait<1>(); /* the step before has been read */
        if (i > 0 && threadIdx.x % 32 == 0) {
            bar_arrive(left);
        }
        __syncwarp();
        left = empty + 8 * t.slot;
        if (++t.slot == slots) {
            t.slot = 0;
            t.parity ^= 1;
            t.later = true;
        }
    }
    wgmma_wait<0>();
    wgmma_touch(c);
    if (steps > 0 && threadIdx.x % 32 == 0) {
        bar_arrive(left);
    }
    __syncwarp();
}

/* ---- a product ------------------------------------------------------------ */

static __device__ __forceinline__ void
gemm_wait_input(const gemm_smem_t &s, uint32_t p)
{
    bar_wait(GEMM_SMEM(s, go) + 8 * p, 0);
    __syncwarp();
}

/* A tile's sums. */
template <int N, gemm_kind_t KIND, bool WARPS>
static __device__ __forceinline__ void
gemm_sums(const gemm_args_t &a, const gemm_smem_t &s, uint32_t p,
          uint32_t steps, gemm_pipeline_t &t, float (&c)[N / 2])
{
    const gemm_phase_t &f = a.phase[p];

    if (KIND != GEMM_IN_16_BITS && f.p.form.format != TR_WEIGHT_16) {
        gemm_multiply_packed<N, KIND, WARPS>(a, s, p, steps, t, c);
        if (f.tiling.teams > 1) {
            gemm_join_teams<N>(f.tiling, s, c);
        }
    } else if (f.tiling.depth == 2) {
        gemm_multiply<N, 2>(a, s, p, steps, t, c);
    } else {
        gemm_multiply<N, 1>(a, s, p, steps, t, c);
    }
}

/* The next phase may read what this block has written. */
static __device__ __forceinline__ void
gemm_end_phase(const gemm_args_t &a, uint32_t threads)
{
    fence_async_global(); /* the copy engine reads what has been written */
    bar_named(1, threads);
    if (threadIdx.x == 0) {
        /* together they add GEMM_GRID_PHASE */
        add_release(a.barrier,
                    blockIdx.x == 0 ? GEMM_GRID_PHASE - (gridDim.x - 1) : 1);
    }
    __syncwarp();
}

/* By the warps of groups that have rows.  got: parity of that barrier. */
template <int N, gemm_kind_t KIND, bool WARPS>
static __device__ __forceinline__ void
gemm_product(const gemm_args_t &a, const gemm_smem_t &s, uint32_t p,
             uint32_t &got)
{
    const gemm_phase_t &f = a.phase[p];
    const bool residual = f.p.mode == TR_CUDA_SMALL_GEMM_RESIDUAL;
    uint32_t threads = gemm_groups(f.tiling) * 128;
    gemm_block_tiles_t part = gemm_block_tiles(f.tiling);
    gemm_pipeline_t t = { 0, 0, false };
    gemm_prefetched_t<N> prefetched;

    for (uint32_t i = 0; i < part.tiles; i++) {
        uint32_t tile = part.first + i * part.stride;
        gemm_fragment_t l = gemm_fragment(f, tile);
        float c[N / 2], scale[2];

        if (KIND != GEMM_IN_16_BITS) {
            gemm_row_scales(f, tile, scale);
        }
        if (residual) {
            gemm_prefetch_columns<N>(f, l, prefetched);
        }
        if (i == 0) {
            gemm_wait_input(s, p);
        }
        if (residual) {
            gemm_prefetch_residual<N>(f, l, prefetched);
        } else if (i == 0) {
            gemm_prefetch_squares<N>(f, 0, prefetched);
        }
        gemm_sums<N, KIND, WARPS>(a, s, p, part.steps, t, c);
        if (KIND != GEMM_IN_16_BITS) {
#pragma unroll
            for (int j = 0; j < N / 2; j++) {
                c[j] *= scale[j / 2 % 2];
            }
        }
        if (!residual && i == 0) {
            gemm_scales<N>(f, s, prefetched);
        }
        /* scales are there; nobody reads the squares of the tile before */
        bar_named(1, threads);
        if (f.tiling.split > 1) {
            gemm_cluster_reduce<N>(f, s, got, c);
            got ^= 1;
        }
        if (residual) {
            gemm_store_residual<N>(f, s, tile, l, prefetched, c);
        } else if (f.p.mode == TR_CUDA_SMALL_GEMM_GATED) {
            gemm_store_scaled<N, true>(f, s, l, c);
        } else {
            gemm_store_scaled<N, false>(f, s, l, c);
        }
    }
    if (part.tiles == 0) {
        gemm_wait_input(s, p); /* blocks barrier once at a time */
    }
    if (p + 1 < a.phases) {
        gemm_end_phase(a, threads);
    }
}

/* By the warps of teams behind the first. */
template <int N, gemm_kind_t KIND, bool WARPS>
static __device__ __forceinline__ void
gemm_help(const gemm_args_t &a, const gemm_smem_t &s, uint32_t p)
{
    gemm_block_tiles_t part = gemm_block_tiles(a.phase[p].tiling);
    gemm_pipeline_t t = { 0, 0, false };
    float c[N / 2];

    for (uint32_t i = 0; i < part.tiles; i++) {
        gemm_sums<N, KIND, WARPS>(a, s, p, part.steps, t, c);
    }
}

template <int N, gemm_kind_t KIND, bool WARPS>
static __global__ void __launch_bounds__(GEMM_THREADS)
    small_gemm_kernel(const __grid_constant__ gemm_args_t args,
                      const __grid_constant__ gemm_maps_t maps)
{
    extern __shared__ uint8_t shared[];
    gemm_smem_t s = gemm_smem_open(args, shared);
    const gemm_args_t &a = ((const gemm_smem_tail_t *) (shared + s.tail
                                                        - smem_address(shared)))
                               ->args;
    uint32_t warp = threadIdx.x / 32, got = 0;

    launch_next();
    if (warp >= GEMM_WARPS) {
        if (threadIdx.x == 32 * GEMM_WARPS) {
            gemm_produce_early<KIND != GEMM_IN_16_BITS>(a, maps, s, N);
        } else if (threadIdx.x == 32 * GEMM_WARPS + 32) {
            gemm_produce<KIND != GEMM_IN_16_BITS>(a, maps, s, N);
        }
        __syncwarp();
        cluster_wait();
        launch_wait();
        return;
    }
    cluster_wait();
    launch_wait();
    for (uint32_t p = 0; p < a.phases; p++) {
        const gemm_tiling_t &h = a.phase[p].tiling;

        if (warp / 4 < gemm_groups(h)) {
            gemm_product<N, KIND, WARPS>(a, s, p, got);
            continue;
        }
        if (KIND != GEMM_IN_16_BITS && warp / 4 < gemm_groups(h) * h.teams) {
            gemm_help<N, KIND, WARPS>(a, s, p);
        }
        if (h.split > 1 && gemm_block_tiles(h).tiles > 0) {
            got ^= 1;
        }
    }
}

#endif
