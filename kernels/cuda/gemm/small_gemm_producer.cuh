/*
 * small_gemm_producer.cuh: the two TMA producer threads of a block of
 * small_gemm.cuh.  They load operand tiles for the MMA warps.
 */
#ifndef TR_CUDA_SMALL_GEMM_PRODUCER_CUH
#define TR_CUDA_SMALL_GEMM_PRODUCER_CUH

#include "small_gemm_smem.cuh"

/* A product, as a thread that brings operands sees it: what it asks for takes
 * some of its time each, so all is at hand. */
typedef struct {
    const CUtensorMap *map_w, *map_x;
    uint32_t ring, bytes, slots; /* the first slot; bytes of one; how many */
    uint32_t w;                  /* bytes of w in a slot, in front of x */
    uint32_t early, full, empty; /* barriers of the first slot */
    uint32_t begin, depth;       /* pieces of k: the first, those of a slot */
    uint32_t steps, eights;      /* slots of a tile; eights of rows to the
                                  * next */
    uint32_t k, left, eight;     /* what is asked for next */
    uint32_t slot, parity;       /* and where that goes */
    uint32_t uses;               /* of slots, all in all */

    /* of packed w; at: NULL: it is not */
    const uint8_t *at, *scales; /* codes; scales, both of the next tile */
    uint32_t block, blocks;     /* bytes of a block; how many a piece of w has,
                                 * all tiles together */
    uint32_t piece, groups;     /* gemm_tiling_t */
    uint32_t tile, first;       /* rows of a tile; the tile's first row */
    uint32_t stride;            /* tiles to the next */
    uint32_t n, columns;        /* rows in all; columns of a scale, or 0 */
} gemm_producer_t;

/* Rows of the tile that w has. */
static __device__ __forceinline__ uint32_t
gemm_tile_rows(const gemm_producer_t &b)
{
    return min(b.tile, b.n - b.first);
}

static __device__ __forceinline__ void
gemm_producer_packed(const gemm_args_t &a, uint32_t p,
                     const gemm_block_tiles_t &part, gemm_producer_t &b)
{
    const gemm_phase_t &f = a.phase[p];
    const tr_weight_form_t form = f.p.form;

    b.at = NULL;
    b.tile = b.first = b.stride = 0;
    if (form.format == TR_WEIGHT_16) {
        return;
    }
    b.at = (const uint8_t *) f.p.w;
    b.scales = b.at + tr_weight_code_bytes(form, f.p.n, f.p.k);
    b.block = tr_weight_block(form.format);
    b.blocks = f.p.n / TR_WEIGHT_ROWS;
    b.piece = f.tiling.piece;
    b.groups = f.tiling.groups;
    b.tile = f.tiling.tile;
    b.first = part.first * b.tile;
    b.stride = part.stride;
    b.n = f.p.n;
    b.columns = form.group;
}

/* Bytes of w that come into a slot. */
template <bool PACKED>
static __device__ __forceinline__ uint32_t
gemm_weight_bytes(const gemm_producer_t &b)
{
    if (PACKED && b.at != NULL) {
        uint32_t rows = gemm_tile_rows(b);

        return b.depth * (rows / TR_WEIGHT_ROWS) * b.block
               + b.groups * rows * 4;
    }
    return b.w;
}

static __device__ __forceinline__ void
gemm_load_packed(const gemm_producer_t &b, uint32_t bar, uint64_t policy)
{
    uint32_t rows = gemm_tile_rows(b), to = b.ring + b.slot * b.bytes;

    for (uint32_t d = 0; d < b.depth; d++) {
        copy_engine(to + d * b.piece,
                    b.at
                        + ((size_t) (b.k + d) * b.blocks
                           + b.first / TR_WEIGHT_ROWS)
                              * b.block,
                    rows / TR_WEIGHT_ROWS * b.block, bar, policy);
    }
    for (uint32_t g = 0; g < b.groups; g++) {
        copy_engine(to + b.depth * b.piece + g * b.tile * 4,
                    b.scales
                        + ((size_t) (b.k * GEMM_K_BLOCK / b.columns + g) * b.n
                           + b.first)
                              * 4,
                    rows * 4, bar, policy);
    }
}

static __device__ __forceinline__ gemm_producer_t
gemm_producer_open(const gemm_args_t &a, const gemm_maps_t &maps,
                   const gemm_smem_t &s, uint32_t p, uint32_t columns)
{
    const gemm_tiling_t &h = a.phase[p].tiling;
    uint32_t eights = h.tile / 8;
    gemm_block_tiles_t part = gemm_block_tiles(h);
    gemm_producer_t b;

    if (a.phase[p].p.mode == TR_CUDA_SMALL_GEMM_GATED) {
        eights /= 2;
    }
    b.map_w = &maps.w[p];
    b.map_x = &maps.x[p];
    b.ring = s.ring;
    b.bytes = gemm_slot(h, columns);
    b.slots = h.slots;
    b.w = h.w;
    b.early = gemm_early(s, p, 0);
    b.full = gemm_full(s, p, 0);
    b.empty = gemm_empty(s, p, 0);
    b.depth = h.depth;
    b.begin = part.step * h.depth;
    b.steps = part.steps;
    b.eights = part.stride * eights;
    b.k = b.begin;
    b.left = b.steps;
    b.eight = part.first * eights;
    b.slot = 0;
    b.parity = 1;
    b.uses = part.tiles * part.steps;
    gemm_producer_packed(a, p, part, b);
    return b;
}

static __device__ __forceinline__ void
gemm_producer_next(gemm_producer_t &b)
{
    b.k += b.depth;
    if (--b.left == 0) {
        b.k = b.begin;
        b.left = b.steps;
        b.eight += b.eights;
        b.first += b.stride * b.tile;
    }
    if (++b.slot == b.slots) {
        b.slot = 0;
        b.parity ^= 1;
    }
}

template <bool PACKED>
static __device__ __forceinline__ void
gemm_load_weights(const gemm_producer_t &b, uint32_t bar, uint64_t policy)
{
    if (PACKED && b.at != NULL) {
        gemm_load_packed(b, bar + 8 * b.slot, policy);
        return;
    }
    copy_weights(b.ring + b.slot * b.bytes, b.map_w, b.k, b.eight,
                 bar + 8 * b.slot, policy);
}

/* Until a product, all of which has been asked for, is read as far as it stands
 * in the ring below `end`; from: the first of its slots that has not been
 * waited for. (A slot's last use but one has ended when its last is asked for:
 * a parity is enough.) */
static __device__ __forceinline__ void
gemm_wait_slots(const gemm_producer_t &b, uint32_t end, uint32_t &from)
{
    for (; from < b.slots && from < b.uses && from * b.bytes < end; from++) {
        bar_wait(b.empty + 8 * from, (b.uses - 1 - from) / b.slots & 1);
    }
}

/* One thread: the w that slots have first.  Few requests are on their way at
 * once: a long queue in front of the memory would keep others waiting, for x
 * and for the word where blocks barrier. */
template <bool PACKED>
static __device__ __forceinline__ void
gemm_produce_early(const gemm_args_t &a, const gemm_maps_t &maps,
                   const gemm_smem_t &s, uint32_t columns)
{
    uint64_t policy = l2_policy();
    gemm_producer_t before = {}, b;

    for (uint32_t p = 0; p < a.phases; p++) {
        if (!PACKED || a.phase[p].p.form.format == TR_WEIGHT_16) {
            prefetch_map(&maps.w[p]);
        }
    }
    for (uint32_t p = 0; p < a.phases; p++) {
        uint32_t from = 0, most;

        b = gemm_producer_open(a, maps, s, p, columns);
        most = max(GEMM_EARLY / b.w, 1u);
        if (p > 0) {
            bar_wait(GEMM_SMEM(s, asked) + 8 * (p - 1), 0);
        }
        for (uint32_t i = 0; i < min(b.uses, b.slots); i++) {
            if (p > 0) {
                gemm_wait_slots(before, (i + 1) * b.bytes, from);
            }
            if (i >= most) {
                bar_wait(b.early + 8 * (i - most), 0);
            }
            bar_expect(b.early + 8 * b.slot, gemm_weight_bytes<PACKED>(b));
            gemm_load_weights<PACKED>(b, b.early, policy);
            gemm_producer_next(b);
        }
        before = b;
    }
}

/* One thread: x, all other w, and the news that blocks have met. */
template <bool PACKED>
static __device__ __forceinline__ void
gemm_produce(const gemm_args_t &a, const gemm_maps_t &maps,
             const gemm_smem_t &s, uint32_t columns)
{
    uint64_t once = l2_policy(), again = l2_policy_stay();
    uint32_t bit;

    for (uint32_t p = 0; p < a.phases; p++) {
        prefetch_map(&maps.x[p]);
    }
    launch_wait();
    bit = load_acquire(a.barrier) & GEMM_GRID_PHASE;
    for (uint32_t p = 0; p < a.phases; p++) {
        gemm_producer_t b = gemm_producer_open(a, maps, s, p, columns);

        if (p > 0) { /* all blocks have written what is in front */
            while ((load_acquire(a.barrier) & GEMM_GRID_PHASE) == bit) {
            }
            bit ^= GEMM_GRID_PHASE;
            fence_async_global();
        }
        bar_arrive(GEMM_SMEM(s, go) + 8 * p);
        for (uint32_t i = 0; i < b.uses; i++) {
            uint32_t bytes = b.bytes - b.w;

            if (i >= b.slots) {
                bar_wait(b.empty + 8 * b.slot, b.parity);
                bytes += gemm_weight_bytes<PACKED>(b);
            }
            bar_expect(b.full + 8 * b.slot, bytes);
            if (i >= b.slots) {
                gemm_load_weights<PACKED>(b, b.full, once);
            }
            copy_rows(b.ring + b.slot * b.bytes + b.w, b.map_x, b.k,
                      b.full + 8 * b.slot, again);
            gemm_producer_next(b);
        }
        bar_arrive(GEMM_SMEM(s, asked) + 8 * p);
    }
}

#endif
