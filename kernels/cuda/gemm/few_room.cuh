/*
 * few_room.cuh: how few.cuh's products are shared out to blocks, and what stands
 * where in a block's shared memory: the ring of slots, the neighbour's sums, and
 * behind them barriers and what warps tell each other.
 */
#ifndef TR_CUDA_FEW_ROOM_CUH
#define TR_CUDA_FEW_ROOM_CUH

#include "few.h"
#include "few_ptx.cuh"

#define FEW_WARPS 16u /* that multiply */
#define FEW_THREADS (32 * (FEW_WARPS + 2))
#define FEW_PIECE 64u     /* of k: 128 bytes a row */
#define FEW_TILE_MAX 256u /* rows of w: 64 a group */
#define FEW_SLOTS_MAX 24u
#define FEW_CLUSTER 2u
#define FEW_EARLY (64u << 10) /* bytes of w on their way before x is there */
#define FEW_MET 0x80000000u   /* see meet */

/* How a product is shared out. */
typedef struct {
    uint32_t tile, tiles;  /* rows of one, how many */
    uint32_t split;        /* blocks that have one: 1 or FEW_CLUSTER */
    uint32_t depth;        /* pieces of k in a slot */
    uint32_t steps, slots; /* slots of a tile; of the ring */
} few_share_t;

typedef struct {
    tr_cuda_few_t p;
    few_share_t share;
} few_phase_t;

typedef struct {
    few_phase_t phase[TR_CUDA_FEW_CHAIN];
    uint32_t phases;
    uint32_t ring, received; /* bytes */
    uint32_t *meet;          /* its highest bit changes when all blocks have come */
} few_args_t;

typedef struct {
    CUtensorMap w[TR_CUDA_FEW_CHAIN], x[TR_CUDA_FEW_CHAIN];
} few_maps_t;

/* ---- shares --------------------------------------------------------------- */

TR_HD uint32_t
few_groups(const few_share_t &h)
{
    return (h.tile + 63) / 64;
}

TR_HD uint32_t
few_slot(const few_share_t &h, uint32_t columns)
{
    return h.depth * (h.tile + columns) * FEW_PIECE * 2;
}

/* Sums that a block gets from its neighbour. */
TR_HD uint32_t
few_received(const few_share_t &h, uint32_t columns)
{
    return h.split == 1 ? 0 : few_groups(h) * 128 * columns;
}

/* What a block has of a product: some tiles, some of their steps. */
typedef struct {
    uint32_t first, stride, tiles;
    uint32_t step, steps;
} few_part_t;

static __device__ __forceinline__ few_part_t
few_part(const few_share_t &h)
{
    bool whole = h.split == 1, even = blockIdx.x % FEW_CLUSTER == 0;
    uint32_t half = h.steps / 2;
    few_part_t r;

    r.first = whole ? blockIdx.x : blockIdx.x / FEW_CLUSTER;
    r.stride = whole ? gridDim.x : gridDim.x / FEW_CLUSTER;
    r.tiles = 0; /* at most a few: a division takes longer */
    for (uint32_t t = r.first; t < h.tiles; t += r.stride) {
        r.tiles++;
    }
    r.step = whole || even ? 0 : half;
    r.steps = whole ? h.steps : even ? half : h.steps - half;
    return r;
}

/* ---- shared memory -------------------------------------------------------- */

/* Behind the ring.  The last group multiplies 64 rows of any slot, and so may read
 * up to 6 KB of this, for sums that nobody wants. */
typedef struct {
    float squares[FEW_WARPS][TR_CUDA_FEW_ROWS];
    float scales[TR_CUDA_FEW_ROWS];
    uint64_t early[TR_CUDA_FEW_CHAIN][FEW_SLOTS_MAX]; /* a slot's first w */
    uint64_t full[TR_CUDA_FEW_CHAIN][FEW_SLOTS_MAX];  /* its x, and other w */
    uint64_t empty[TR_CUDA_FEW_CHAIN][FEW_SLOTS_MAX];
    uint64_t go[TR_CUDA_FEW_CHAIN];    /* what the product reads is there */
    uint64_t asked[TR_CUDA_FEW_CHAIN]; /* for all that it reads */
    uint64_t got;                      /* the neighbour's sums */
    few_args_t args; /* constants would have to be fetched, again and again */
} few_behind_t;

static_assert(sizeof(few_behind_t) >= 6 * 1024, "what is read behind the ring");

/* With what aligns the ring. */
TR_HD uint32_t
few_shared(uint32_t ring, uint32_t received)
{
    return 1024 + ring + received + (uint32_t) sizeof(few_behind_t);
}

/* Addresses in shared memory. */
typedef struct {
    uint32_t ring, received, behind;
} few_room_t;

#define FEW_AT(s, member) ((s).behind + (uint32_t) offsetof(few_behind_t, member))

static __device__ __forceinline__ uint32_t
few_full(const few_room_t &s, uint32_t phase, uint32_t slot)
{
    return FEW_AT(s, full) + 8 * (phase * FEW_SLOTS_MAX + slot);
}

static __device__ __forceinline__ uint32_t
few_early(const few_room_t &s, uint32_t phase, uint32_t slot)
{
    return FEW_AT(s, early) + 8 * (phase * FEW_SLOTS_MAX + slot);
}

static __device__ __forceinline__ uint32_t
few_empty(const few_room_t &s, uint32_t phase, uint32_t slot)
{
    return FEW_AT(s, empty) + 8 * (phase * FEW_SLOTS_MAX + slot);
}

static __device__ __forceinline__ few_room_t
few_begin(const few_args_t &a, uint8_t *shared)
{
    few_room_t s;
    uint32_t *to;

    s.ring = (smem_address(shared) + 1023) / 1024 * 1024;
    s.received = s.ring + a.ring;
    s.behind = s.received + a.received;
    to = (uint32_t *) &((few_behind_t *) (shared + s.behind
                                          - smem_address(shared)))
             ->args;
    for (uint32_t i = threadIdx.x; i < sizeof(a) / 4; i += FEW_THREADS) {
        to[i] = ((const uint32_t *) &a)[i];
    }
    for (uint32_t i = threadIdx.x; i < a.phases * FEW_SLOTS_MAX;
         i += FEW_THREADS) {
        uint32_t p = i / FEW_SLOTS_MAX, slot = i % FEW_SLOTS_MAX;

        bar_init(few_full(s, p, slot), 1);
        bar_init(few_early(s, p, slot), 1);
        bar_init(few_empty(s, p, slot), few_groups(a.phase[p].share) * 4);
        if (slot == 0) {
            bar_init(FEW_AT(s, go) + 8 * p, 1);
            bar_init(FEW_AT(s, asked) + 8 * p, 1);
        }
    }
    if (threadIdx.x == 0) {
        bar_init(FEW_AT(s, got), 1);
    }
    fence_init();
    __syncthreads();
    cluster_arrive();
    return s;
}

#endif
