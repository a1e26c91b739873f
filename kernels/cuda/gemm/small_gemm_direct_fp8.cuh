/*
 * small_gemm_direct_fp8.cuh: pieces of FP8 for small_gemm_direct.cuh.
 *
 * A piece of FP8 has twice the bytes of one of INT4, and registers have no room for
 * as many as memory needs to stay busy.  So a warp has places for some in shared
 * memory, a barrier each: one lane asks the copy engine for a piece, all lanes
 * multiply it and ask for the next in its place.  No warp waits for another, as
 * those of the common ring do.  With many rows x takes a while to come, too, so
 * pieces of its first columns are multiplied when those are there.
 */
#ifndef TR_CUDA_SMALL_GEMM_DIRECT_FP8_CUH
#define TR_CUDA_SMALL_GEMM_DIRECT_FP8_CUH

#include "small_gemm_direct.cuh"
#include "kernels/cuda/wgmma.cuh"

#define DIRECT_FP8_SHARED \
    (227u << 10) /* what a chain may need of shared memory */
#define DIRECT_FP8_STAGES_MAX 8u
#define DIRECT_FP8_STAGES_MIN 2u
#define DIRECT_FP8_CODES 2048u                  /* bytes of a piece */
#define DIRECT_FP8_SCALES (TR_WEIGHT_ROWS * 4u) /* likewise, of blocks of 128 */
#define DIRECT_FP8_X_PIECES 16u

/* Bytes of a piece's place: codes, then scales. */
TR_HD constexpr uint32_t
direct_fp8_place(uint32_t group)
{
    return DIRECT_FP8_CODES + (group == 0 ? 0 : DIRECT_FP8_SCALES);
}

/* Bytes of all warps' pieces, then of their barriers. */
TR_HD uint32_t
direct_fp8_bytes(uint32_t group, uint32_t stages)
{
    return GEMM_WARPS * stages * (direct_fp8_place(group) + 8);
}

/* Pieces of FP8 that a warp has under way.  GROUP 0: scales are of rows. */
template <int GROUP> struct direct_fp8_t {
    static constexpr uint32_t X_PIECES = DIRECT_FP8_X_PIECES;
    static constexpr uint32_t CALLED = 0; /* the engine has enough to do */

    uint32_t place, bar;  /* the first; its barrier */
    uint32_t stages;      /* how many there is room for */
    uint32_t now, parity; /* the next to be multiplied */
    uint32_t left;        /* of the tile, not asked for */
    uint64_t policy;
    direct_at_t next; /* the next to ask for */
};

template <int GROUP>
static __device__ __forceinline__ void
direct_open(const gemm_args_t &a, const gemm_smem_t &s, direct_fp8_t<GROUP> &r)
{
    uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * a.stages;
    uint32_t at = s.ring + a.pieces;

    r.place = at + first * direct_fp8_place(GROUP);
    r.bar = at + GEMM_WARPS * a.stages * direct_fp8_place(GROUP) + first * 8;
    r.stages = a.stages;
    r.now = r.parity = 0;
    r.policy = l2_policy();
    if (lane < a.stages) {
        bar_init(r.bar + lane * 8, 1);
    }
    fence_init();
    __syncwarp();
}

/* Asks for the warp's next piece. */
template <int GROUP>
static __device__ __forceinline__ void
direct_load(const direct_part_t &o, direct_fp8_t<GROUP> &r, uint32_t stage)
{
    const uint32_t half = DIRECT_FP8_CODES / 2; /* of 64 columns */
    uint32_t piece = o.begin + r.next.piece, strip = o.first + r.next.strip;
    uint32_t to = r.place + stage * direct_fp8_place(GROUP);
    uint32_t bar = r.bar + 8 * stage;

    if (threadIdx.x % 32 == 0) { /* whose codes and scales are the first */
        const uint8_t *codes = o.codes
                               + ((size_t) (2 * piece) * o.blocks + strip)
                                     * half;

        bar_expect(bar, direct_fp8_place(GROUP));
        copy_engine(to, codes, half, bar, r.policy);
        copy_engine(to + half, codes + (size_t) o.blocks * half, half, bar,
                    r.policy);
        if (GROUP != 0) {
            copy_engine(to + DIRECT_FP8_CODES,
                        o.scales
                            + ((size_t) piece * o.blocks + strip)
                                  * DIRECT_FP8_SCALES,
                        DIRECT_FP8_SCALES, bar, r.policy);
        }
    }
    __syncwarp();
    direct_next(o, r.next);
}

/* The first pieces of a tile; all places are free. */
template <int GROUP>
static __device__ __forceinline__ void
direct_fill(const direct_part_t &o, direct_fp8_t<GROUP> &r)
{
    uint32_t many = min(o.all, r.stages), stage = r.now;

    r.next = direct_first(o);
    r.left = o.all - many;
#pragma unroll 1
    for (uint32_t i = 0; i < many; i++) {
        direct_load(o, r, stage);
        stage = stage + 1 == r.stages ? 0 : stage + 1;
    }
}

/* c += a piece's part of the sums; place: the piece's; x: the lane's address of its
 * first columns. */
template <int GROUP>
static __device__ __forceinline__ void
direct_multiply_fp8(uint32_t place, uint32_t x, float (&c)[2][4])
{
    const uint32_t lane = threadIdx.x % 32;
    float part[2][4] = {};
    uint4 w[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = shared_load16(place + lane * 16 + i * 512);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t a[2][4], b[4];

        load_matrices<false>(b, x + i * 64);
        packed_fp8(a[0], w[i].x, w[i].y);
        packed_fp8(a[1], w[i].z, w[i].w);
        mma_bf16(GROUP == 0 ? c[0] : part[0], a[0], b[0], b[1]);
        mma_bf16(GROUP == 0 ? c[1] : part[1], a[1], b[2], b[3]);
    }
    if (GROUP != 0) {
        const uint32_t at = place + DIRECT_FP8_CODES + lane / 4 * 4;
        const float scale[2] = { __uint_as_float(shared_load4(at)),
                                 __uint_as_float(shared_load4(at + 32)) };

#pragma unroll
        for (int j = 0; j < 4; j++) {
            c[0][j] += (part[0][j] + part[1][j]) * scale[j / 2];
        }
    }
}

/* Multiplies the warp's next piece when it is there, and asks for another in its
 * place. */
template <int GROUP>
static __device__ __forceinline__ void
direct_take(const direct_part_t &o, direct_fp8_t<GROUP> &r, uint32_t x,
            float (&c)[2][4])
{
    bar_wait(r.bar + 8 * r.now, r.parity);
    __syncwarp();
    direct_multiply_fp8<GROUP>(r.place + r.now * direct_fp8_place(GROUP), x, c);
    __syncwarp(); /* all lanes have read it */
    if (r.left > 0) {
        direct_load(o, r, r.now);
        r.left--;
    }
    if (++r.now == r.stages) {
        r.now = 0;
        r.parity ^= 1;
    }
}

/* As those of INT4, but x comes in parts. */
template <int GROUP>
static __device__ __forceinline__ void
direct_sums(const gemm_smem_t &s, const gemm_phase_t &f, const direct_part_t &o,
            uint32_t full, direct_fp8_t<GROUP> &r)
{
    const uint32_t way = threadIdx.x / 32 % o.ways, x = direct_x(s, f);
    direct_at_t at = direct_first(o);
    float c[2][4] = {};

#pragma unroll 1
    for (uint32_t i = 0; i < o.all; i++) {
        uint32_t strip = at.strip;

        if (full != 0) {
            bar_wait(full + at.piece / DIRECT_FP8_X_PIECES * 8, 0);
        }
        direct_take(o, r, x + at.piece * 256, c);
        direct_next(o, at);
        if (at.strip != strip) {
            direct_leave(direct_sum_at(s, f, o, strip, way), c);
            fence_async(); /* the next product's x may come to there */
#pragma unroll 1
            for (uint32_t j = 0; full != 0 && j < o.pieces;
                 j += DIRECT_FP8_X_PIECES) {
                bar_wait(full + j / DIRECT_FP8_X_PIECES * 8, 0);
            }
            full = 0;
        }
    }
}

#endif
