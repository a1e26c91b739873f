/*
 * small_gemm_smem.cuh: how a product is divided among blocks, and the layout of
 * a block's shared memory: the ring of slots, the other block's sums, those of
 * teams, then barriers and flags between warps.
 */
#ifndef TR_CUDA_SMALL_GEMM_SMEM_CUH
#define TR_CUDA_SMALL_GEMM_SMEM_CUH

#include "kernels/cuda/device.h"
#include "small_gemm_ptx.cuh"

#define GEMM_WARPS 16u /* that multiply */
#define GEMM_THREADS (32 * (GEMM_WARPS + 2))
#define GEMM_K_BLOCK 64u   /* of k: 128 bytes a row */
#define GEMM_TILE_MAX 256u /* rows of w: 64 a group */
#define GEMM_SLOTS_MAX 24u
#define GEMM_CLUSTER 2u
#define GEMM_EARLY (64u << 10) /* bytes of w on their way before x is there */
#define GEMM_GRID_PHASE 0x80000000u /* see barrier */

/* How a product is shared out. */
typedef struct {
    uint32_t tile, tiles;  /* rows of one, how many */
    uint32_t split;        /* blocks that have one: 1 or GEMM_CLUSTER */
    uint32_t depth;        /* pieces of k in a slot */
    uint32_t w;            /* bytes of a slot in front of x */
    uint32_t piece;        /* bytes of one piece of w in it */
    uint32_t groups;       /* packed: groups of columns in a slot */
    uint32_t teams;        /* packed: of groups, which take slots in turn */
    uint32_t ways;         /* direct: warps that share a strip */
    uint32_t x;            /* direct: bytes of x, in front of its sums */
    uint32_t steps, slots; /* slots of a tile; of the ring */
} gemm_tiling_t;

typedef struct {
    tr_cuda_small_gemm_t p;
    gemm_tiling_t tiling;
} gemm_phase_t;

typedef struct {
    gemm_phase_t phase[TR_CUDA_SMALL_GEMM_CHAIN];
    uint32_t phases;
    uint32_t ring, received, partial; /* bytes */
    /* direct, FP8: where pieces of w are in the ring, behind x and sums; how many
     * a warp has */
    uint32_t pieces, stages;
    uint32_t *barrier; /* its highest bit changes when all
                                       * blocks have come */
} gemm_args_t;

typedef struct {
    CUtensorMap w[TR_CUDA_SMALL_GEMM_CHAIN], x[TR_CUDA_SMALL_GEMM_CHAIN];
} gemm_maps_t;

/* ---- shares --------------------------------------------------------------- */

TR_HD uint32_t
gemm_groups(const gemm_tiling_t &h)
{
    return (h.tile + 63) / 64;
}

TR_HD uint32_t
gemm_slot(const gemm_tiling_t &h, uint32_t columns)
{
    return h.w + h.depth * columns * GEMM_K_BLOCK * 2;
}

/* Sums that a block gets from its neighbour. */
TR_HD uint32_t
gemm_received(const gemm_tiling_t &h, uint32_t columns)
{
    return h.split == 1 ? 0 : gemm_groups(h) * 128 * columns;
}

/* Sums of the teams behind the first. */
TR_HD uint32_t
gemm_partial(const gemm_tiling_t &h, uint32_t columns)
{
    return (h.teams - 1) * gemm_groups(h) * 256 * columns;
}

/* What a block has of a product: some tiles, some of their steps. */
typedef struct {
    uint32_t first, stride, tiles;
    uint32_t step, steps;
} gemm_block_tiles_t;

static __device__ __forceinline__ gemm_block_tiles_t
gemm_block_tiles(const gemm_tiling_t &h)
{
    bool whole = h.split == 1, even = blockIdx.x % GEMM_CLUSTER == 0;
    uint32_t half = h.steps / 2;
    gemm_block_tiles_t r;

    r.first = whole ? blockIdx.x : blockIdx.x / GEMM_CLUSTER;
    r.stride = whole ? gridDim.x : gridDim.x / GEMM_CLUSTER;
    r.tiles = 0; /* at most a few: a division takes longer */
    for (uint32_t t = r.first; t < h.tiles; t += r.stride) {
        r.tiles++;
    }
    r.step = whole || even ? 0 : half;
    r.steps = whole ? h.steps : even ? half : h.steps - half;
    return r;
}

/* ---- shared memory -------------------------------------------------------- */

/* Behind the ring.  The last group multiplies 64 rows of any slot, and so may
 * read up to 6 KB of this, for sums that nobody wants. */
typedef struct {
    float squares[GEMM_WARPS][TR_CUDA_SMALL_GEMM_ROWS];
    float scales[TR_CUDA_SMALL_GEMM_ROWS];
    /* a slot's first w */
    uint64_t early[TR_CUDA_SMALL_GEMM_CHAIN][GEMM_SLOTS_MAX];
    /* its x, and other w */
    uint64_t full[TR_CUDA_SMALL_GEMM_CHAIN][GEMM_SLOTS_MAX];
    uint64_t empty[TR_CUDA_SMALL_GEMM_CHAIN][GEMM_SLOTS_MAX];
    uint64_t go[TR_CUDA_SMALL_GEMM_CHAIN];    /* what the product reads is
                                               * there */
    uint64_t asked[TR_CUDA_SMALL_GEMM_CHAIN]; /* for all that it reads */
    uint64_t got;                             /* the neighbour's sums */
    gemm_args_t args; /* constants would have to be fetched, again and again */
} gemm_smem_tail_t;

static_assert(sizeof(gemm_smem_tail_t) >= 6 * 1024,
              "what is read behind the ring");

/* With what aligns the ring; sums: received and partial. */
TR_HD uint32_t
gemm_shared(uint32_t ring, uint32_t sums)
{
    return 1024 + ring + sums + (uint32_t) sizeof(gemm_smem_tail_t);
}

/* Addresses in shared memory. */
typedef struct {
    uint32_t ring, received, partial, tail;
} gemm_smem_t;

#define GEMM_SMEM(s, member) \
    ((s).tail + (uint32_t) offsetof(gemm_smem_tail_t, member))

static __device__ __forceinline__ uint32_t
gemm_full(const gemm_smem_t &s, uint32_t phase, uint32_t slot)
{
    return GEMM_SMEM(s, full) + 8 * (phase * GEMM_SLOTS_MAX + slot);
}

static __device__ __forceinline__ uint32_t
gemm_early(const gemm_smem_t &s, uint32_t phase, uint32_t slot)
{
    return GEMM_SMEM(s, early) + 8 * (phase * GEMM_SLOTS_MAX + slot);
}

static __device__ __forceinline__ uint32_t
gemm_empty(const gemm_smem_t &s, uint32_t phase, uint32_t slot)
{
    return GEMM_SMEM(s, empty) + 8 * (phase * GEMM_SLOTS_MAX + slot);
}

static __device__ __forceinline__ gemm_smem_t
gemm_smem_open(const gemm_args_t &a, uint8_t *shared)
{
    gemm_smem_t s;
    uint32_t *to;

    s.ring = (smem_address(shared) + 1023) / 1024 * 1024;
    s.received = s.ring + a.ring;
    s.partial = s.received + a.received;
    s.tail = s.partial + a.partial;
    to = (uint32_t *) &(
             (gemm_smem_tail_t *) (shared + s.tail - smem_address(shared)))
             ->args;
    for (uint32_t i = threadIdx.x; i < sizeof(a) / 4; i += blockDim.x) {
        to[i] = ((const uint32_t *) &a)[i];
    }
    for (uint32_t i = threadIdx.x; i < a.phases * GEMM_SLOTS_MAX;
         i += blockDim.x) {
        uint32_t p = i / GEMM_SLOTS_MAX, slot = i % GEMM_SLOTS_MAX;

        bar_init(gemm_full(s, p, slot), 1);
        bar_init(gemm_early(s, p, slot), 1);
        bar_init(gemm_empty(s, p, slot), gemm_groups(a.phase[p].tiling) * 4);
        if (slot == 0) {
            bar_init(GEMM_SMEM(s, go) + 8 * p, 1);
            bar_init(GEMM_SMEM(s, asked) + 8 * p, 1);
        }
    }
    if (threadIdx.x == 0) {
        bar_init(GEMM_SMEM(s, got), 1);
    }
    fence_init();
    __syncthreads();
    cluster_arrive();
    return s;
}

#endif
