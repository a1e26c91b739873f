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

#include <cuda_bf16.h>

#include "few.h"
#include "few_ptx.cuh"
#include "model.cuh"

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

/* ---- bringing ------------------------------------------------------------- */

/* A product, as a thread that brings operands sees it: what it asks for takes
 * some of its time each, so all is at hand. */
typedef struct {
    const CUtensorMap *map_w, *map_x;
    uint32_t ring, bytes, slots; /* the first slot; bytes of one; how many */
    uint32_t w;                  /* bytes of w in a slot, in front of x */
    uint32_t early, full, empty; /* barriers of the first slot */
    uint32_t begin, depth;       /* pieces of k: the first, those of a slot */
    uint32_t steps, eights;      /* slots of a tile; eights of rows to the next */
    uint32_t k, left, eight;     /* what is asked for next */
    uint32_t slot, parity;       /* and where that goes */
    uint32_t uses;               /* of slots, all in all */
} few_bring_t;

static __device__ __forceinline__ few_bring_t
few_bring_open(const few_args_t &a, const few_maps_t &maps,
               const few_room_t &s, uint32_t p, uint32_t columns)
{
    const few_share_t &h = a.phase[p].share;
    uint32_t eights = h.tile / 8;
    few_part_t part = few_part(h);
    few_bring_t b;

    if (a.phase[p].p.mode == TR_CUDA_FEW_GATED) {
        eights /= 2;
    }
    b.map_w = &maps.w[p];
    b.map_x = &maps.x[p];
    b.ring = s.ring;
    b.bytes = few_slot(h, columns);
    b.slots = h.slots;
    b.w = h.depth * h.tile * FEW_PIECE * 2;
    b.early = few_early(s, p, 0);
    b.full = few_full(s, p, 0);
    b.empty = few_empty(s, p, 0);
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
    return b;
}

static __device__ __forceinline__ void
few_bring_next(few_bring_t &b)
{
    b.k += b.depth;
    if (--b.left == 0) {
        b.k = b.begin;
        b.left = b.steps;
        b.eight += b.eights;
    }
    if (++b.slot == b.slots) {
        b.slot = 0;
        b.parity ^= 1;
    }
}

static __device__ __forceinline__ void
few_ask_weights(const few_bring_t &b, uint32_t bar, uint64_t policy)
{
    copy_weights(b.ring + b.slot * b.bytes, b.map_w, b.k, b.eight,
                 bar + 8 * b.slot, policy);
}

/* Until a product, all of which has been asked for, is read as far as it stands in
 * the ring below `end`; from: the first of its slots that has not been waited for.
 * (A slot's last use but one has ended when its last is asked for: a parity is
 * enough.) */
static __device__ __forceinline__ void
few_free(const few_bring_t &b, uint32_t end, uint32_t &from)
{
    for (; from < b.slots && from < b.uses && from * b.bytes < end; from++) {
        bar_wait(b.empty + 8 * from, (b.uses - 1 - from) / b.slots & 1);
    }
}

/* One thread: the w that slots have first.  Few requests are on their way at once: a
 * long queue in front of the memory would keep others waiting, for x and for the
 * word where blocks meet. */
static __device__ __forceinline__ void
few_bring_early(const few_args_t &a, const few_maps_t &maps,
                const few_room_t &s, uint32_t columns)
{
    uint64_t policy = l2_policy();
    few_bring_t before = {}, b;

    for (uint32_t p = 0; p < a.phases; p++) {
        prefetch_map(&maps.w[p]);
    }
    for (uint32_t p = 0; p < a.phases; p++) {
        uint32_t from = 0, most;

        b = few_bring_open(a, maps, s, p, columns);
        most = max(FEW_EARLY / b.w, 1u);
        if (p > 0) {
            bar_wait(FEW_AT(s, asked) + 8 * (p - 1), 0);
        }
        for (uint32_t i = 0; i < min(b.uses, b.slots); i++) {
            if (p > 0) {
                few_free(before, (i + 1) * b.bytes, from);
            }
            if (i >= most) {
                bar_wait(b.early + 8 * (i - most), 0);
            }
            bar_expect(b.early + 8 * b.slot, b.w);
            few_ask_weights(b, b.early, policy);
            few_bring_next(b);
        }
        before = b;
    }
}

/* One thread: x, all other w, and the news that blocks have met. */
static __device__ __forceinline__ void
few_bring(const few_args_t &a, const few_maps_t &maps, const few_room_t &s,
          uint32_t columns)
{
    uint64_t once = l2_policy(), again = l2_policy_stay();
    uint32_t bit;

    for (uint32_t p = 0; p < a.phases; p++) {
        prefetch_map(&maps.x[p]);
    }
    launch_wait();
    bit = load_acquire(a.meet) & FEW_MET;
    for (uint32_t p = 0; p < a.phases; p++) {
        few_bring_t b = few_bring_open(a, maps, s, p, columns);

        if (p > 0) { /* all blocks have written what is in front */
            while ((load_acquire(a.meet) & FEW_MET) == bit) {
            }
            bit ^= FEW_MET;
            fence_async_global();
        }
        bar_arrive(FEW_AT(s, go) + 8 * p);
        for (uint32_t i = 0; i < b.uses; i++) {
            uint32_t bytes = b.bytes - b.w;

            if (i >= b.slots) {
                bar_wait(b.empty + 8 * b.slot, b.parity);
                bytes = b.bytes;
            }
            bar_expect(b.full + 8 * b.slot, bytes);
            if (i >= b.slots) {
                few_ask_weights(b, b.full, once);
            }
            copy_rows(b.ring + b.slot * b.bytes + b.w, b.map_x, b.k,
                      b.full + 8 * b.slot, again);
            few_bring_next(b);
        }
        bar_arrive(FEW_AT(s, asked) + 8 * p);
    }
}

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

/* ---- finishing ------------------------------------------------------------ */

/* What a thread's sums belong to: see few_multiply. */
typedef struct {
    uint32_t column; /* of the product, of r 0; GATED: of its result */
    uint32_t row;    /* of x, of j and b 0 */
    uint32_t mine;   /* bit b: rows of x that this block finishes */
    bool inside;     /* the column is one */
} few_place_t;

static __device__ __forceinline__ few_place_t
few_place(const few_phase_t &f, uint32_t tile)
{
    const few_share_t &h = f.share;
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
    few_place_t l;

    l.row = lane % 4 * 2;
    l.mine = h.split == 1 ? 3 : 1u << blockIdx.x % h.split;
    if (f.p.mode == TR_CUDA_FEW_GATED) {
        l.column = tile * (h.tile / 2) + row / 2 + lane / 4;
        l.inside = row < h.tile && l.column < f.p.n / 2;
    } else {
        l.column = tile * h.tile + row + lane / 4;
        l.inside = row < h.tile && l.column < f.p.n; /* n, tile: by 16 */
    }
    return l;
}

/* Sums of the rows of x that this block finishes are those of both blocks. */
template <int N>
static __device__ __forceinline__ void
few_exchange(const few_phase_t &f, const few_room_t &s, uint32_t parity,
             float (&c)[N / 2])
{
    const int CHUNK = N == 8 ? 2 : 4;
    uint32_t threads = few_groups(f.share) * 128, bar = FEW_AT(s, got);
    uint32_t at = s.received + threadIdx.x * CHUNK * 4;
    bool odd = blockIdx.x % 2 != 0;

    if (threadIdx.x == 0) {
        bar_expect(bar, few_received(f.share, N));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N / 4; i += CHUNK) {
        float v[4];

#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            v[j] = odd ? c[2 * (i + j)] : c[2 * (i + j) + 1];
        }
        cluster_store<CHUNK>(at + i * threads * 4, v, bar, blockIdx.x % 2 ^ 1);
    }
    bar_wait(bar, parity);
#pragma unroll
    for (int i = 0; i < N / 4; i += CHUNK) {
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            float v = __uint_as_float(
                shared_load4(at + i * threads * 4 + j * 4));

            if (odd) {
                c[2 * (i + j) + 1] += v;
            } else {
                c[2 * (i + j)] += v;
            }
        }
    }
}

static __device__ __forceinline__ float
few_total(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(TR_ALL_LANES, x, d);
    }
    return x;
}

/* What comes from memory while the block multiplies. */
template <int N>
struct few_held_t {
    /* RESIDUAL: hidden, as its sums are; else two parts of the squares of each of
     * four rows */
    float x[N < 32 ? 8 : N / 4];
    float bias[2], weight[2];
};

/* Row of x that a warp scales as its i-th. */
static __device__ __forceinline__ uint32_t
few_scaled_row(const few_phase_t &f, uint32_t i)
{
    uint32_t at = threadIdx.x / 32 + i * few_groups(f.share) * 4;

    return f.share.split == 1 ? at : at * 2 + blockIdx.x % 2;
}

/* Parts of the sums of squares of four rows of the warp, from its i-th on. */
template <int N>
static __device__ __forceinline__ void
few_ask_squares(const few_phase_t &f, uint32_t i, few_held_t<N> &held)
{
    uint32_t lane = threadIdx.x % 32, parts = f.p.parts;

#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t r = few_scaled_row(f, i + j);

#pragma unroll
        for (uint32_t b = 0; b < 2; b++) {
            held.x[2 * j + b] = r < f.p.rows && lane + 32 * b < parts
                                     ? __ldcg(f.p.squares + r * parts + lane
                                              + 32 * b)
                                     : 0;
        }
    }
}

/* RMSNorm's scales of the rows of x that this block finishes, by the warps that
 * multiply; held: of the first four. */
template <int N>
static __device__ __forceinline__ void
few_scales(const few_phase_t &f, const few_room_t &s, few_held_t<N> &held)
{
    uint32_t lane = threadIdx.x % 32, parts = f.p.parts;

    for (uint32_t i = 0; few_scaled_row(f, i) < f.p.rows; i += 4) {
        if (i > 0) {
            few_ask_squares<N>(f, i, held);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t r = few_scaled_row(f, i + j);
            float x = held.x[2 * j] + held.x[2 * j + 1];

            if (r >= f.p.rows) {
                break;
            }
            for (uint32_t k = lane + 64; k < parts; k += 32) {
                x += __ldcg(f.p.squares + r * parts + k);
            }
            x = few_total(x);
            if (lane == 0) {
                shared_store4(FEW_AT(s, scales) + r * 4,
                              parts == 0 ? 1
                                         : 1.0f
                                               / sqrtf(x / (float) f.p.norm_n
                                                       + f.p.eps));
            }
        }
    }
    __syncwarp();
}

/* Is this a row of x, and one that this block finishes? */
static __device__ __forceinline__ bool
few_mine(const few_phase_t &f, const few_place_t &l, uint32_t j, uint32_t b)
{
    return (l.mine >> b & 1) != 0 && l.row + 8 * j + b < f.p.rows;
}

template <int N>
static __device__ __forceinline__ void
few_ask_columns(const few_phase_t &f, const few_place_t &l,
                few_held_t<N> &held)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        held.bias[r] = l.inside && f.p.bias != NULL
                           ? f.p.bias[l.column + 8 * r]
                           : 0;
        held.weight[r] = l.inside && f.p.y != NULL
                             ? f.p.weight[l.column + 8 * r]
                             : 0;
    }
}

template <int N>
static __device__ __forceinline__ void
few_ask_residual(const few_phase_t &f, const few_place_t &l,
                 few_held_t<N> &held)
{
    uint32_t ld = (uint32_t) f.p.ldh, odd = blockIdx.x % FEW_CLUSTER;
    const float *hidden = f.p.hidden + (l.row + odd) * ld + l.column;

#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        held.x[i] = l.inside && few_mine(f, l, i / 2, odd)
                             ? __ldcg(hidden + i / 2 * 8 * ld + i % 2 * 8)
                             : 0;
    }
}

static __device__ __forceinline__ float
few_silu(float x)
{
    return x * reciprocal(1 + exp2_fast(x * -1.4426950409f));
}

/* PLAIN, GATED. */
template <int N, bool GATED>
static __device__ __forceinline__ void
few_scaled(const few_phase_t &f, const few_room_t &s, const few_place_t &l,
           const float (&c)[N / 2])
{
    uint32_t ld = (uint32_t) f.p.ldy, scales = FEW_AT(s, scales) + l.row * 4;
    __nv_bfloat16 *y = (__nv_bfloat16 *) f.p.y + l.row * ld + l.column;

    if (!l.inside) {
        return;
    }
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            __nv_bfloat16 *to = y + (8 * j + b) * ld;
            float scale, u = c[4 * j + b], v = c[4 * j + 2 + b];

            if (!few_mine(f, l, j, b)) {
                continue;
            }
            scale = __uint_as_float(shared_load4(scales + (8 * j + b) * 4));
            if (GATED) {
                *to = __float2bfloat16_rn(few_silu(u * scale) * (v * scale));
            } else {
                to[0] = __float2bfloat16_rn(u * scale);
                to[8] = __float2bfloat16_rn(v * scale);
            }
        }
    }
}

/* Adds up what warps have of a row's squares. */
static __device__ __forceinline__ void
few_squares(const few_phase_t &f, const few_room_t &s, uint32_t tile,
            const few_place_t &l)
{
    uint32_t warps = few_groups(f.share) * 4, r = threadIdx.x;

    bar_named(1, warps * 32);
    if (r < f.p.rows && (l.mine >> r % 2 & 1) != 0) {
        float sum = 0;

#pragma unroll 4
        for (uint32_t w = 0; w < warps; w++) {
            sum += __uint_as_float(shared_load4(
                FEW_AT(s, squares) + (w * TR_CUDA_FEW_ROWS + r) * 4));
        }
        f.p.squares_out[r * f.share.tiles + tile] = sum;
    }
    __syncwarp();
}

template <int N>
static __device__ __forceinline__ void
few_residual(const few_phase_t &f, const few_room_t &s, uint32_t tile,
             const few_place_t &l, const few_held_t<N> &held,
             const float (&c)[N / 2])
{
    uint32_t ldh = (uint32_t) f.p.ldh, ldy = (uint32_t) f.p.ldy;
    uint32_t odd = blockIdx.x % FEW_CLUSTER, row = l.row + odd;
    uint32_t squares = FEW_AT(s, squares)
                       + (threadIdx.x / 32 * TR_CUDA_FEW_ROWS + row) * 4;
    float *hidden = f.p.hidden + row * ldh + l.column;
    __nv_bfloat16 *y = (__nv_bfloat16 *) f.p.y + row * ldy + l.column;

#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float sum = 0;

        if (l.inside && few_mine(f, l, j, odd)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float h = held.x[2 * j + r] + held.bias[r]
                          + (odd ? c[4 * j + 2 * r + 1] : c[4 * j + 2 * r]);

                hidden[8 * j * ldh + 8 * r] = h;
                if (f.p.y != NULL) {
                    y[8 * j * ldy + 8 * r] = __float2bfloat16_rn(
                        h * held.weight[r]);
                }
                sum += h * h;
            }
        }
#pragma unroll
        for (int d = 4; d < 32; d *= 2) {
            sum += __shfl_xor_sync(TR_ALL_LANES, sum, d);
        }
        if (threadIdx.x % 32 < 4) {
            shared_store4(squares + 8 * j * 4, sum);
        }
    }
    if (f.p.squares_out != NULL) {
        few_squares(f, s, tile, l);
    }
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
