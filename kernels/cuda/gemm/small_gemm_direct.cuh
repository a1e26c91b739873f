/*
 * small_gemm_direct.cuh: products of up to 8 rows with packed weights
 * (kernels/weight_form.h), whose warps fetch their own, without a common ring.
 *
 * Tiles, clusters, the exchange of sums and what becomes of them are those of
 * small_gemm.cuh.  Here all 16 warps of a block multiply; of a tile each takes
 * pieces of 128 columns of a strip (16 rows of w), in turn with the others:
 *
 *   - a warp has its next pieces under way: INT4 in its lanes' registers, FP8 in
 *     shared memory (small_gemm_direct_fp8.cuh).  Those of the next product are
 *     asked for before the sums of this one are added up, and what comes behind
 *     INT4's is called into the L2 cache;
 *   - x is copied to shared memory whole, and is read from there as operand b;
 *   - `ways` warps have parts of a strip's sums.  They leave them in shared memory,
 *     and the first warps, one a strip, add them in the order of ways.
 *
 * Which warp has which piece depends on the shape alone, so a row's bits do.
 */
#ifndef TR_CUDA_SMALL_GEMM_DIRECT_CUH
#define TR_CUDA_SMALL_GEMM_DIRECT_CUH

#include "small_gemm_epilogue.cuh"
#include "small_gemm_packed.cuh"

#define DIRECT_THREADS (32 * GEMM_WARPS)
#define DIRECT_COLUMNS 128u        /* of a piece */
#define DIRECT_PARTIAL (64u << 10) /* bytes of the ways' sums, at most */
#define DIRECT_SHARED \
    (220u << 10)       /* what a chain of INT4 may need of shared memory */
#define DIRECT_PAD 16u /* bytes between rows of x: other banks */
#define DIRECT_DEPTH 4 /* INT4: pieces that a lane has under way */

/* ---- shares --------------------------------------------------------------- */

TR_HD uint32_t
direct_strips(const gemm_tiling_t &h)
{
    return h.tile / TR_WEIGHT_ROWS;
}

/* Bytes from a row of x to the next, where they are copied to. */
TR_HD uint32_t
direct_row(const gemm_tiling_t &h)
{
    return (h.steps + h.split - 1) / h.split * DIRECT_COLUMNS * 2 + DIRECT_PAD;
}

TR_HD uint32_t
direct_partial(const gemm_tiling_t &h)
{
    return direct_strips(h) * h.ways * 512;
}

/* Warps that share a strip: all, unless that needs too much memory, or some
 * would have nothing of it. */
TR_HD uint32_t
direct_ways(const gemm_tiling_t &h)
{
    uint32_t ways = GEMM_WARPS, least = h.steps / h.split;

    while (
        ways > 1
        && (ways > least || direct_strips(h) * ways * 512 > DIRECT_PARTIAL)) {
        ways /= 2;
    }
    return ways;
}

/* ---- pieces --------------------------------------------------------------- */

/* What a lane has of one of INT4: codes, and the words of a group's scales: those
 * of rows g and g + 8, of the t-th quarter of the columns. */
typedef struct {
    uint4 w[2];
    uint32_t scale[2];
} direct_piece_t;

/* Where a warp is in a tile. */
typedef struct {
    uint32_t strip, piece; /* of the tile; of the block's part of k */
} direct_at_t;

/* What a warp has of a tile. */
typedef struct {
    const uint8_t *codes, *scales; /* the lane's, of the matrix's first piece */
    uint32_t first, strips;        /* the tile's first strip; how many it has */
    uint32_t blocks;               /* strips of the matrix */
    uint32_t begin, pieces;        /* the block's part of k */
    uint32_t ways, of; /* warps that share a strip; groups of such */
    uint32_t all;      /* pieces of the warp */
} direct_part_t;

/* Pieces of INT4 that a warp has under way. */
template <int GROUP> struct direct_int4_t {
    /* columns of x that come at once, in pieces: all */
    static constexpr uint32_t X_PIECES = UINT32_MAX;
    /* bytes of w that a block calls for */
    static constexpr uint32_t CALLED = 160u << 10;

    direct_piece_t piece[DIRECT_DEPTH];
    direct_at_t next; /* the next to ask for */
};

static __device__ __forceinline__ direct_at_t
direct_first(const direct_part_t &o)
{
    uint32_t warp = threadIdx.x / 32;

    return direct_at_t{ warp / o.ways, warp % o.ways };
}

/* The warp's next piece. */
static __device__ __forceinline__ void
direct_next(const direct_part_t &o, direct_at_t &at)
{
    at.piece += o.ways;
    if (at.piece >= o.pieces) { /* there are as many as ways, at least */
        at.piece -= o.pieces;
        at.strip += o.of;
    }
}

static __device__ __forceinline__ direct_part_t
direct_part(const gemm_phase_t &f, const gemm_block_tiles_t &part,
            uint32_t tile)
{
    const gemm_tiling_t &h = f.tiling;
    const tr_weight_form_t form = f.p.form;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine;
    direct_part_t o;

    o.codes = (const uint8_t *) f.p.w + lane * 16;
    o.scales = (const uint8_t *) f.p.w
               + tr_weight_code_bytes(form, f.p.n, f.p.k) + lane / 4 * 4;
    o.blocks = f.p.n / TR_WEIGHT_ROWS;
    o.first = tile * direct_strips(h);
    o.strips = min(direct_strips(h), o.blocks - o.first);
    o.begin = part.step;
    o.pieces = part.steps;
    o.ways = h.ways;
    o.of = GEMM_WARPS / h.ways;
    mine = (o.strips + o.of - 1 - warp / o.ways) / o.of * o.pieces;
    o.all = (mine + o.ways - 1 - warp % o.ways) / o.ways;
    return o;
}

/* The warp's place for pieces of INT4: registers, of which nobody need know. */
template <int GROUP>
static __device__ __forceinline__ void
direct_open(const gemm_args_t &, const gemm_smem_t &, direct_int4_t<GROUP> &)
{
}

/* Asks for a piece. */
template <int GROUP>
static __device__ __forceinline__ void
direct_load(const direct_part_t &o, const direct_at_t &at, direct_piece_t &q)
{
    const uint32_t bytes = 512, GROUPS = DIRECT_COLUMNS / GROUP;
    uint32_t piece = o.begin + at.piece, strip = o.first + at.strip;
    const uint8_t *from = o.codes
                          + ((size_t) (2 * piece) * o.blocks + strip) * bytes;
    uint32_t group = piece * GROUPS + threadIdx.x % 4 * GROUPS / 4;
    const uint8_t *scale = o.scales
                           + ((size_t) group * o.blocks + strip)
                                 * (TR_WEIGHT_ROWS * 4);

    q.w[0] = load_once16(from);
    q.w[1] = load_once16(from + (size_t) o.blocks * bytes);
    q.scale[0] = load_once4(scale);
    q.scale[1] = load_once4(scale + 32);
}

/* The first pieces of a tile. */
template <int GROUP>
static __device__ __forceinline__ void
direct_fill(const direct_part_t &o, direct_int4_t<GROUP> &r)
{
    r.next = direct_first(o);
#pragma unroll
    for (uint32_t i = 0; i < DIRECT_DEPTH; i++) {
        if (i < o.all) {
            direct_load<GROUP>(o, r.next, r.piece[i]);
            direct_next(o, r.next);
        }
    }
}

/* Calls what the block reads first of a product into the L2 cache. */
static __device__ __forceinline__ void
direct_call(const gemm_phase_t &f, uint32_t called)
{
    const uint32_t bytes = tr_weight_block(f.p.form.format);
    gemm_block_tiles_t part = gemm_block_tiles(f.tiling);
    direct_part_t o;
    uint32_t line;

    if (part.tiles == 0) {
        return;
    }
    o = direct_part(f, part, part.first);
    line = o.strips * bytes; /* of 64 columns */
    for (uint32_t i = threadIdx.x; i < 2 * o.pieces && (i + 1) * line <= called;
         i += DIRECT_THREADS) {
        prefetch_l2_bytes(
            (const uint8_t *) f.p.w
                + ((size_t) (2 * o.begin + i) * o.blocks + o.first) * bytes,
            line);
    }
}

/* ---- multiplying ---------------------------------------------------------- */

/* Zeros and scales of the group that begins at quarter `quarter` of the piece. */
template <int GROUP>
static __device__ __forceinline__ void
direct_scales(const direct_piece_t &q, int quarter, uint32_t (&zero)[2],
              float (&scale)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t word = q.scale[r];

        if (GROUP < (int) DIRECT_COLUMNS) {
            word = __shfl_sync(TR_ALL_LANES, word,
                               (int) (threadIdx.x & 28) + quarter);
        }
        zero[r] = packed_int4_zero(word);
        scale[r] = packed_int4_scale(word);
    }
}

/* c += a piece's part of the sums; x: the lane's address of its first columns. */
template <int GROUP>
static __device__ __forceinline__ void
direct_multiply(const direct_piece_t &q, uint32_t x, float (&c)[2][4])
{
    const int OF = GROUP / 32; /* quarters of a group */
    float part[2][4], scale[2];
    uint32_t zero[2];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 &w = q.w[i / 2];
        uint32_t a[2][4], b[4];

        if (i % OF == 0) {
            direct_scales<GROUP>(q, i, zero, scale);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                part[j / 4][j % 4] = 0;
            }
        }
        load_matrices<false>(b, x + i * 64);
        packed_int4(a[0], i % 2 ? w.z : w.x, zero);
        packed_int4(a[1], i % 2 ? w.w : w.y, zero);
        mma_bf16(part[0], a[0], b[0], b[1]);
        mma_bf16(part[1], a[1], b[2], b[3]);
        if ((i + 1) % OF == 0) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                c[0][j] += (part[0][j] + part[1][j]) * scale[j / 2];
            }
        }
    }
}

/* Where the lane reads a product's x.  In place of rows that there are not, the
 * last. */
static __device__ __forceinline__ uint32_t
direct_x(const gemm_smem_t &s, const gemm_phase_t &f)
{
    uint32_t lane = threadIdx.x % 32;

    return s.ring + min(lane % 8, f.p.rows - 1) * direct_row(f.tiling)
           + lane / 8 * 16;
}

/* Where the lane leaves, or finds, what a way has of a strip's sums. */
static __device__ __forceinline__ uint32_t
direct_sum_at(const gemm_smem_t &s, const gemm_phase_t &f,
              const direct_part_t &o, uint32_t strip, uint32_t way)
{
    return s.ring + f.tiling.x + (strip * o.ways + way) * 512
           + threadIdx.x % 32 * 16;
}

/* A strip's sums, to where all find them; c becomes 0. */
static __device__ __forceinline__ void
direct_leave(uint32_t to, float (&c)[2][4])
{
    shared_store8(to, __float_as_uint(c[0][0] + c[1][0]),
                  __float_as_uint(c[0][1] + c[1][1]));
    shared_store8(to + 8, __float_as_uint(c[0][2] + c[1][2]),
                  __float_as_uint(c[0][3] + c[1][3]));
#pragma unroll
    for (int k = 0; k < 8; k++) {
        c[k / 4][k % 4] = 0;
    }
}

/* The warp's part of a tile's sums.  full: barriers of x's parts, or 0: it is
 * there. */
template <int GROUP>
static __device__ __forceinline__ void
direct_sums(const gemm_smem_t &s, const gemm_phase_t &f, const direct_part_t &o,
            uint32_t full, direct_int4_t<GROUP> &r)
{
    const uint32_t way = threadIdx.x / 32 % o.ways, x = direct_x(s, f);
    direct_at_t at = direct_first(o);
    float c[2][4] = {};

    if (full != 0) {
        bar_wait(full, 0);
        __syncwarp();
    }
#pragma unroll 1
    for (uint32_t i = 0; i < o.all; i += DIRECT_DEPTH) {
#pragma unroll
        for (uint32_t j = 0; j < DIRECT_DEPTH; j++) {
            uint32_t strip = at.strip;

            if (i + j >= o.all) {
                break;
            }
            direct_multiply<GROUP>(r.piece[j], x + at.piece * 256, c);
            if (i + j + DIRECT_DEPTH < o.all) {
                direct_load<GROUP>(o, r.next, r.piece[j]);
                direct_next(o, r.next);
            }
            direct_next(o, at);
            if (at.strip != strip) {
                direct_leave(direct_sum_at(s, f, o, strip, way), c);
            }
        }
    }
}

/* A strip's sums, of all ways; by the warp that has its number. */
static __device__ __forceinline__ void
direct_add(const gemm_smem_t &s, const gemm_phase_t &f, const direct_part_t &o,
           float (&c)[4])
{
    const uint32_t strip = threadIdx.x / 32;

    c[0] = c[1] = c[2] = c[3] = 0;
    for (uint32_t i = 0; strip < o.strips && i < o.ways; i++) {
        uint4 v = shared_load16(direct_sum_at(s, f, o, strip, i));

        c[0] += __uint_as_float(v.x);
        c[1] += __uint_as_float(v.y);
        c[2] += __uint_as_float(v.z);
        c[3] += __uint_as_float(v.w);
    }
}

/* ---- a product ------------------------------------------------------------ */

/* x of a product to shared memory, the columns of so many pieces at once, and to
 * as many barriers.  By a warp. */
static __device__ __forceinline__ void
direct_copy_x(const gemm_smem_t &s, const gemm_phase_t &f, uint32_t pieces,
              uint32_t bar)
{
    gemm_block_tiles_t part = gemm_block_tiles(f.tiling);
    uint32_t lane = threadIdx.x % 32, most = part.tiles == 0 ? 0 : part.steps;

#pragma unroll 1
    for (uint32_t i = 0; i < most; i += min(pieces, most - i), bar += 8) {
        uint32_t bytes = min(pieces, most - i) * DIRECT_COLUMNS * 2;

        if (lane == 0) {
            bar_expect(bar, f.p.rows * bytes);
        }
        __syncwarp();
        if (lane < f.p.rows) {
            copy_engine(s.ring + lane * direct_row(f.tiling)
                            + i * DIRECT_COLUMNS * 2,
                        (const uint8_t *) f.p.x
                            + ((size_t) lane * f.p.ldx
                               + (part.step + i) * DIRECT_COLUMNS)
                                  * 2,
                        bytes, bar, l2_policy_stay());
        }
    }
    __syncwarp();
}

/* By the first warp: what the product reads is there, and x is asked for. */
template <typename R>
static __device__ __forceinline__ void
direct_begin(const gemm_args_t &a, const gemm_smem_t &s, uint32_t p,
             uint32_t &bit)
{
    uint32_t lane = threadIdx.x % 32;

    if (p > 0) { /* all blocks have written what is in front */
        if (lane == 0) {
            while ((load_acquire(a.barrier) & GEMM_GRID_PHASE) == bit) {
            }
        }
        bit ^= GEMM_GRID_PHASE;
        __syncwarp();
        fence_async_global();
    }
    if (lane == 0) {
        bar_arrive(GEMM_SMEM(s, go) + 8 * p);
    }
    direct_copy_x(s, a.phase[p], R::X_PIECES, gemm_full(s, p, 0));
}

/* A tile's sums become its results, by the warps of groups that have rows. */
static __device__ __forceinline__ void
direct_finish(const gemm_args_t &a, const gemm_smem_t &s, uint32_t p,
              uint32_t tile, bool first, const gemm_fragment_t &l,
              gemm_prefetched_t<8> &prefetched, const float (&scale)[2],
              uint32_t got, float (&c)[4])
{
    const gemm_phase_t &f = a.phase[p];
    const bool residual = f.p.mode == TR_CUDA_SMALL_GEMM_RESIDUAL;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        c[j] *= scale[j / 2];
    }
    if (!residual && first) {
        gemm_scales<8>(f, s, prefetched);
    }
    /* scales are there; nobody reads the squares of the tile before */
    bar_named(1, gemm_groups(f.tiling) * 128);
    if (f.tiling.split > 1) {
        gemm_cluster_reduce<8>(f, s, got, c);
    }
    if (residual) {
        gemm_store_residual<8>(f, s, tile, l, prefetched, c);
    } else if (f.p.mode == TR_CUDA_SMALL_GEMM_GATED) {
        gemm_store_scaled<8, true>(f, s, l, c);
    } else {
        gemm_store_scaled<8, false>(f, s, l, c);
    }
}

/* Of the tile behind, or of the next product, the first pieces. */
template <typename R>
static __device__ __forceinline__ void
direct_ahead(const gemm_args_t &a, uint32_t p, const gemm_block_tiles_t &part,
             uint32_t i, R &r)
{
    gemm_block_tiles_t of = part;

    if (i + 1 == part.tiles || part.tiles == 0) {
        if (++p == a.phases) {
            return;
        }
        of = gemm_block_tiles(a.phase[p].tiling);
        if (of.tiles == 0) {
            return;
        }
        i = 0;
    } else {
        i++;
    }
    direct_fill(direct_part(a.phase[p], of, of.first + i * of.stride), r);
}

template <typename R>
static __device__ __forceinline__ void
direct_product(const gemm_args_t &a, const gemm_smem_t &s, uint32_t p, R &r,
               uint32_t &got)
{
    const gemm_phase_t &f = a.phase[p];
    const bool residual = f.p.mode == TR_CUDA_SMALL_GEMM_RESIDUAL;
    const bool finishes = threadIdx.x / 128 < gemm_groups(f.tiling);
    gemm_block_tiles_t part = gemm_block_tiles(f.tiling);
    gemm_prefetched_t<8> prefetched;

    for (uint32_t i = 0; i < part.tiles; i++) {
        uint32_t tile = part.first + i * part.stride;
        gemm_fragment_t l = gemm_fragment(f, tile);
        direct_part_t o = direct_part(f, part, tile);
        float c[4], scale[2] = { 1, 1 };

        if (finishes) {
            gemm_row_scales(f, tile, scale);
            if (residual) {
                gemm_prefetch_columns<8>(f, l, prefetched);
            }
        }
        if (i == 0) {
            bar_wait(GEMM_SMEM(s, go) + 8 * p, 0);
            __syncwarp();
        }
        if (finishes && residual) {
            gemm_prefetch_residual<8>(f, l, prefetched);
        } else if (finishes && i == 0) {
            gemm_prefetch_squares<8>(f, 0, prefetched);
        }
        if (i > 0) {
            __syncthreads(); /* sums of the tile before have been read */
        }
        direct_sums(s, f, o, i == 0 ? gemm_full(s, p, 0) : 0, r);
        direct_ahead(a, p, part, i, r);
        if (R::CALLED > 0 && i + 1 == part.tiles && p + 1 < a.phases) {
            direct_call(a.phase[p + 1], R::CALLED);
        }
        __syncthreads();
        if (finishes) {
            direct_add(s, f, o, c);
            direct_finish(a, s, p, tile, i == 0, l, prefetched, scale, got, c);
        }
        if (f.tiling.split > 1) {
            got ^= 1;
        }
    }
    if (part.tiles == 0) {
        bar_wait(GEMM_SMEM(s, go) + 8 * p, 0); /* blocks meet once at a time */
        __syncwarp();
        direct_ahead(a, p, part, 0, r);
    }
    if (finishes && p + 1 < a.phases) {
        gemm_end_phase(a, gemm_groups(f.tiling) * 128);
    }
}

/* R: how a warp has its pieces: direct_int4_t or direct_fp8_t. */
template <typename R>
static __global__ void __launch_bounds__(DIRECT_THREADS)
    small_gemm_direct_kernel(const __grid_constant__ gemm_args_t args)
{
    extern __shared__ uint8_t shared[];
    gemm_smem_t s = gemm_smem_open(args, shared);
    const gemm_args_t &a = ((const gemm_smem_tail_t *) (shared + s.tail
                                                        - smem_address(shared)))
                               ->args;
    gemm_block_tiles_t part = gemm_block_tiles(a.phase[0].tiling);
    uint32_t got = 0, bit = 0;
    R r;

    launch_next();
    direct_open(a, s, r);
    if (part.tiles != 0) {
        direct_fill(direct_part(a.phase[0], part, part.first), r);
    }
    cluster_wait();
    launch_wait();
    if (threadIdx.x < 32) {
        bit = load_acquire(a.barrier) & GEMM_GRID_PHASE;
    }
    for (uint32_t p = 0; p < a.phases; p++) {
        if (threadIdx.x < 32) {
            direct_begin<R>(a, s, p, bit);
        }
        direct_product(a, s, p, r, got);
    }
}

#endif
