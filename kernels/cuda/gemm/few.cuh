/*
 * few.cuh: the kernel of few.h.
 *
 * Every multiprocessor has a block, from the first product of the chain to the
 * last; blocks are clusters of two.  A block has, of each product, a tile of rows
 * of w; where there are not enough rows for all blocks, a cluster has a tile and
 * its blocks half of k each.  x has few rows, which are the columns of D = W X^T:
 *
 *   one thread asks the copy engine for pieces of 64 of k, of the tile's rows of w
 *   and of x, into a ring of slots.  Before all blocks have met behind a product,
 *   the next one's x is not there, but its w is: another thread asks for that, as
 *   far as slots are free
 *   four groups of four warps multiply 64 rows of w each
 *   the blocks of a cluster exchange sums, each finishes every other row of x:
 *   scale, gate or residual, from registers
 *
 * Groups that a tile has no rows for leave a product out.
 */
#ifndef TR_CUDA_FEW_CUH
#define TR_CUDA_FEW_CUH

#include "few_bring.cuh"
#include "few_finish.cuh"

/* ---- multiplying ---------------------------------------------------------- */

/* Where a group is in the ring. */
typedef struct {
    uint32_t slot, parity;
    bool later; /* than a slot's first use */
} few_turn_t;

/* c[4j + 2r + b]: row 16 w + 8r + g of the group's 64, row 8j + 2t + b of x, in
 * lane 4g + t of the group's warp w. */
template <int N, int DEPTH>
static __device__ __forceinline__ void
few_multiply(const few_args_t &a, const few_room_t &s, uint32_t p,
             uint32_t steps, few_turn_t &t, float (&c)[N / 2])
{
    const few_share_t &h = a.phase[p].share;
    uint32_t rows = s.ring + threadIdx.x / 128 * 64 * FEW_PIECE * 2;
    uint32_t piece = h.tile * FEW_PIECE * 2, bytes = few_slot(h, N);
    uint32_t x = s.ring + DEPTH * piece;
    uint32_t full = few_full(s, p, 0), early = few_early(s, p, 0);
    uint32_t empty = few_empty(s, p, 0), slots = h.slots, left = 0;

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

            multiply(c,
                     wgmma_operand(rows + at + d * piece + k % 4 * 32, 1024,
                                   16),
                     wgmma_operand(x + at + d * (N * FEW_PIECE * 2)
                                       + k % 4 * 32,
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
few_go(const few_room_t &s, uint32_t p)
{
    bar_wait(FEW_AT(s, go) + 8 * p, 0);
    __syncwarp();
}

/* By the warps of groups that have rows.  got: parity of that barrier. */
template <int N>
static __device__ __forceinline__ void
few_product(const few_args_t &a, const few_room_t &s, uint32_t p,
            uint32_t &got)
{
    const few_phase_t &f = a.phase[p];
    const bool residual = f.p.mode == TR_CUDA_FEW_RESIDUAL;
    uint32_t threads = few_groups(f.share) * 128;
    few_part_t part = few_part(f.share);
    few_turn_t t = { 0, 0, false };
    few_held_t<N> held;

    for (uint32_t i = 0; i < part.tiles; i++) {
        uint32_t tile = part.first + i * part.stride;
        few_place_t l = few_place(f, tile);
        float c[N / 2];

        if (residual) {
            few_ask_columns<N>(f, l, held);
        }
        if (i == 0) {
            few_go(s, p);
        }
        if (residual) {
            few_ask_residual<N>(f, l, held);
        } else if (i == 0) {
            few_ask_squares<N>(f, 0, held);
        }
        if (f.share.depth == 2) {
            few_multiply<N, 2>(a, s, p, part.steps, t, c);
        } else {
            few_multiply<N, 1>(a, s, p, part.steps, t, c);
        }
        if (!residual && i == 0) {
            few_scales<N>(f, s, held);
        }
        /* scales are there; nobody reads the squares of the tile before */
        bar_named(1, threads);
        if (f.share.split > 1) {
            few_exchange<N>(f, s, got, c);
            got ^= 1;
        }
        if (residual) {
            few_residual<N>(f, s, tile, l, held, c);
        } else if (f.p.mode == TR_CUDA_FEW_GATED) {
            few_scaled<N, true>(f, s, l, c);
        } else {
            few_scaled<N, false>(f, s, l, c);
        }
    }
    if (part.tiles == 0) {
        few_go(s, p); /* blocks meet once at a time */
    }
    if (p + 1 < a.phases) {
        fence_async_global(); /* the copy engine reads what has been written */
        bar_named(1, threads);
        if (threadIdx.x == 0) {
            /* together they add FEW_MET */
            add_release(a.meet,
                        blockIdx.x == 0 ? FEW_MET - (gridDim.x - 1) : 1);
        }
        __syncwarp();
    }
}

template <int N>
static __global__ void
__launch_bounds__(FEW_THREADS)
    few_kernel(const __grid_constant__ few_args_t args,
               const __grid_constant__ few_maps_t maps)
{
    extern __shared__ uint8_t shared[];
    few_room_t s = few_begin(args, shared);
    const few_args_t &a = ((const few_behind_t *) (shared + s.behind
                                                   - smem_address(shared)))
                              ->args;
    uint32_t warp = threadIdx.x / 32, got = 0;

    launch_next();
    if (warp >= FEW_WARPS) {
        if (threadIdx.x == 32 * FEW_WARPS) {
            few_bring_early(a, maps, s, N);
        } else if (threadIdx.x == 32 * FEW_WARPS + 32) {
            few_bring(a, maps, s, N);
        }
        __syncwarp();
        cluster_wait();
        launch_wait();
        return;
    }
    cluster_wait();
    launch_wait();
    for (uint32_t p = 0; p < a.phases; p++) {
        const few_share_t &h = a.phase[p].share;

        if (warp / 4 < few_groups(h)) {
            few_product<N>(a, s, p, got);
        } else if (h.split > 1 && few_part(h).tiles > 0) {
            got ^= 1;
        }
    }
}

#endif
