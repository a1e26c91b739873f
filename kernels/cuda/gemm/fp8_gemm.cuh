/*
 * fp8_gemm.cuh: products of 8 bits by 8 bits (device.h), and the rounding of rows
 * to 8 bits.
 *
 * D = W X^T, W being packed (kernels/weight_form.h): tiles of 128 rows of w by 128
 * or 256 rows of x ("tokens" here, to tell them apart).  One block a
 * multiprocessor takes tiles in turn:
 *
 *   producer    one thread brings 128 of k of a tile's w and x, and where scales
 *               are of blocks theirs, into a ring of slots
 *   consumers   two warpgroups multiply 64 rows of w each, 128 tokens a time.
 *               w comes from registers: a lane's words of a block are what the
 *               tensor core wants of it, if the columns of x stand in the order
 *               of those words (fp8_place).  x comes from shared memory
 *   epilogue    scales, or gate times up; turned in shared memory, so that rows
 *               of y are written 16 bytes a lane
 *
 * Tensor cores keep fewer bits than FP32 of sums of FP8: every 128 of k these are
 * added to sums in registers, with their scales where those are of blocks.  While
 * one warpgroup does that the other one multiplies.  An element's sums are made in
 * one order, whatever the tile: a row's bits are its own.
 */
#ifndef TR_CUDA_FP8_GEMM_CUH
#define TR_CUDA_FP8_GEMM_CUH

#include <cuda_bf16.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/wgmma.cuh"

#define FP8_K 128u                  /* of a slot */
#define FP8_ROWS 128u               /* of w in a tile */
#define FP8_TOKENS 128u             /* whose sums are made at once */
#define FP8_SIDE (FP8_K * FP8_ROWS) /* bytes of a slot's w, or 128 tokens */
#define FP8_THREADS 384u

/* What of shared memory is where, from an address that 1024 divides; of tiles of
 * HALVES x 128 tokens. */
template <int HALVES> struct fp8_smem {
    static constexpr uint32_t slots = HALVES == 2 ? 4 : 6;
    static constexpr uint32_t slot = FP8_SIDE * (1 + HALVES); /* w, then x */
    static constexpr uint32_t scales = 512 * (1 + HALVES);    /* likewise */
    static constexpr uint32_t out = slots * (slot + scales);
    static constexpr uint32_t full = out + 2 * 8192; /* barriers */
    static constexpr uint32_t empty = full + 8 * slots;
    static constexpr uint32_t bytes = empty + 8 * slots + 1024;
};

typedef struct {
    tr_cuda_fp8_gemm_t p;
    const float *scales;    /* of w */
    uint32_t across, tiles; /* tiles of tokens; all */
} fp8_args_t;

#define FP8_TURN 8u /* tiles of tokens that are done for some rows of w */

/* Where tile `tile` begins: those that run at once share rows of w and tokens,
 * which they find in the L2 cache. */
static __device__ __forceinline__ void
fp8_tile(const fp8_args_t &a, uint32_t tile, uint32_t tokens, uint32_t &row,
         uint32_t &token)
{
    uint32_t down = a.tiles / a.across, turn = tile / (FP8_TURN * down);
    uint32_t rest = tile - turn * FP8_TURN * down;
    uint32_t wide = min(FP8_TURN, a.across - turn * FP8_TURN);

    token = (turn * FP8_TURN + rest % wide) * tokens;
    row = rest / wide * FP8_ROWS;
}

/* A place in the ring. */
typedef struct {
    uint32_t slot, parity;
} fp8_slot_t;

template <int HALVES>
static __device__ __forceinline__ void
fp8_next(fp8_slot_t &s)
{
    if (++s.slot == fp8_smem<HALVES>::slots) {
        s.slot = 0;
        s.parity ^= 1;
    }
}

/* ---- the producer --------------------------------------------------------- */

/* A slot: rows [row, row + rows) of w. */
template <int HALVES, bool BLOCKS>
static __device__ __forceinline__ void
fp8_load(const fp8_args_t &a, const CUtensorMap &map, uint32_t base,
         uint32_t slot, uint32_t step, uint32_t row, uint32_t rows,
         uint32_t token)
{
    typedef fp8_smem<HALVES> smem;
    uint32_t at = base + slot * smem::slot, bar = base + smem::full + 8 * slot;
    uint32_t scales = base + smem::slots * smem::slot + slot * smem::scales;
    uint32_t strips = a.p.n / TR_WEIGHT_ROWS;
    const uint8_t *w = (const uint8_t *) a.p.w
                       + ((size_t) 2 * step * strips + row / TR_WEIGHT_ROWS)
                             * 1024;

    bar_expect(bar, rows * FP8_K + HALVES * FP8_SIDE
                        + (BLOCKS ? rows * 4 + HALVES * 512 : 0));
    for (uint32_t h = 0; h < HALVES; h++) {
        copy_tile(at + (1 + h) * FP8_SIDE, &map, step * FP8_K,
                  token + h * FP8_TOKENS, bar);
    }
    copy_bulk(at, w, rows * 64, bar);
    copy_bulk(at + FP8_SIDE / 2, w + (size_t) strips * 1024, rows * 64, bar);
    if (BLOCKS) {
        copy_bulk(scales, a.scales + (size_t) step * a.p.n + row, rows * 4,
                  bar);
        copy_bulk(scales + 512, a.p.x.scales + (size_t) step * a.p.x.ld + token,
                  HALVES * 512, bar);
    }
}

/* One thread. */
template <int HALVES, bool BLOCKS>
static __device__ __forceinline__ void
fp8_produce(const fp8_args_t &a, const CUtensorMap &map, uint32_t base)
{
    typedef fp8_smem<HALVES> smem;
    fp8_slot_t s = { 0, 1 };

    for (uint32_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        uint32_t row, token;

        fp8_tile(a, tile, HALVES * FP8_TOKENS, row, token);
        for (uint32_t step = 0; step < a.p.k / FP8_K; step++) {
            bar_wait(base + smem::empty + 8 * s.slot, s.parity);
            fp8_load<HALVES, BLOCKS>(a, map, base, s.slot, step, row,
                                     min(FP8_ROWS, a.p.n - row), token);
            fp8_next<HALVES>(s);
        }
    }
}

/* ---- multiplying ---------------------------------------------------------- */

/* A slot's codes of the lane's rows g and g + 8 of its warp's strip, 32 columns
 * each. */
static __device__ __forceinline__ void
fp8_fetch(uint32_t (&f)[4][4], uint32_t at)
{
    uint4 v[4];

    at += threadIdx.x / 32 * 1024 + threadIdx.x % 32 * 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = shared_load16(at + i / 2 * (FP8_SIDE / 2) + i % 2 * 512);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[i][0] = __byte_perm(v[i].x, v[i].y, 0x6420);
        f[i][1] = __byte_perm(v[i].x, v[i].y, 0x7531);
        f[i][2] = __byte_perm(v[i].z, v[i].w, 0x6420);
        f[i][3] = __byte_perm(v[i].z, v[i].w, 0x7531);
    }
}

/* sums += part, scaled where scales are of blocks: those of 128 rows of w are at
 * `scales`, and behind them those of tokens. */
template <bool BLOCKS>
static __device__ __forceinline__ void
fp8_add(float (&sums)[64], const float (&part)[64], uint32_t scales,
        uint32_t half)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float w[2];

    if (!BLOCKS) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            sums[i] += part[i];
        }
        return;
    }
    w[0] = __uint_as_float(
        shared_load4(scales + (threadIdx.x / 32 * 16 + g) * 4));
    w[1] = __uint_as_float(
        shared_load4(scales + (threadIdx.x / 32 * 16 + g + 8) * 4));
#pragma unroll
    for (int j = 0; j < 16; j++) {
        uint2 two = shared_load8(scales + 512 + half * 512
                                 + (8 * j + 2 * t) * 4);

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = __uint_as_float(i % 2 ? two.y : two.x);

            sums[4 * j + i] += part[4 * j + i] * (x * w[i / 2]);
        }
    }
}

/* A tile's sums: of 128 tokens each. */
template <int HALVES, bool BLOCKS>
static __device__ __forceinline__ void
fp8_multiply(uint32_t base, uint32_t steps, fp8_slot_t &s,
             float (&sums)[HALVES][64])
{
    typedef fp8_smem<HALVES> smem;
    uint32_t f[1][4][4];

#pragma unroll
    for (int i = 0; i < HALVES * 64; i++) {
        sums[i / 64][i % 64] = 0;
    }
    bar_wait(base + smem::full + 8 * s.slot, s.parity);
    __syncwarp(); /* warps multiply as one */
    fp8_fetch(f[0], base + s.slot * smem::slot);
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
        const uint32_t x = base + s.slot * smem::slot + FP8_SIDE;
        const uint32_t empty = base + smem::empty + 8 * s.slot;
        const uint32_t scales = base + smem::slots * smem::slot
                                + s.slot * smem::scales;

#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            float part[64];

            wgmma_begin();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                wgmma_fp8(part, f[0][i],
                          wgmma_operand(x + h * FP8_SIDE + i * 32, 1024, 16),
                          i > 0);
            }
            wgmma_end();
            wgmma_wait<0>();
            wgmma_touch(part);
            if (BLOCKS) {
                fp8_add<BLOCKS>(sums[h], part, scales, h);
            }
            if (h == HALVES - 1) { /* what is next comes beside the sums */
                wgmma_touch(f[0]);
                __syncwarp();
                if (threadIdx.x % 32 == 0) {
                    bar_arrive(empty);
                }
                fp8_next<HALVES>(s);
                if (step + 1 < steps) {
                    bar_wait(base + smem::full + 8 * s.slot, s.parity);
                    __syncwarp();
                    fp8_fetch(f[0], base + s.slot * smem::slot);
                }
            }
            if (!BLOCKS) {
                fp8_add<BLOCKS>(sums[h], part, scales, h);
            }
        }
    }
}

/* ---- results -------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t
fp8_two(float a, float b)
{
    __nv_bfloat162 p = __floats2bfloat162_rn(a, b);
    uint32_t bits;

    memcpy(&bits, &p, 4);
    return bits;
}

static __device__ __forceinline__ float
fp8_act(float x)
{
    return x * reciprocal(1 + exp2_fast(x * -1.4426950409f));
}

/* Sums of eight tokens become pairs of BF16: of rows g and of rows g + 8, or gated
 * of both. */
template <bool BLOCKS, bool GATED>
static __device__ __forceinline__ void
fp8_finish(const fp8_args_t &a, const float *sums, const float (&w)[2],
           uint32_t token, uint32_t (&out)[2])
{
    float v[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float x = 1;

        if (!BLOCKS) {
            x = token + i % 2 < a.p.rows ? __ldg(a.p.x.scales + token + i % 2)
                                         : 0;
        }
        v[i] = sums[i] * (w[i / 2] * x);
    }
    if (GATED) {
        out[0] = fp8_two(fp8_act(v[0]) * v[2], fp8_act(v[1]) * v[3]);
    } else {
        out[0] = fp8_two(v[0], v[1]);
        out[1] = fp8_two(v[2], v[3]);
    }
}

/* 64 tokens of a warpgroup's 64 rows, from where they were turned: a lane has 16
 * bytes of a row of y. */
template <bool GATED>
static __device__ __forceinline__ void
fp8_store(const fp8_args_t &a, uint32_t at, uint32_t row, uint32_t token)
{
    constexpr uint32_t chunks = GATED ? 4 : 8; /* of a token */
    const bool pairs = !GATED && a.p.form.order == TR_WEIGHT_PAIRS;

#pragma unroll
    for (uint32_t i = 0; i < chunks / 2; i++) {
        uint32_t index = i * 128 + threadIdx.x % 128;
        uint32_t t = index / chunks, c = index % chunks;
        uint32_t column = GATED   ? row / 2 + c * 8
                          : pairs ? row / 2 + c / 2 * 8 + c % 2 * (a.p.n / 2)
                                  : row + c * 8;
        uint4 v = shared_load16(at + t * 128 + (c ^ t % 8) * 16);

        if (token + t < a.p.rows && row < a.p.n) {
            *(uint4 *) ((__nv_bfloat16 *) a.p.y + (size_t) (token + t) * a.p.ldy
                        + column) = v;
        }
    }
}

/* Of 64 tokens from `token` on: sums[32]. */
template <bool BLOCKS, bool GATED>
static __device__ __forceinline__ void
fp8_results(const fp8_args_t &a, uint32_t at, uint32_t row, uint32_t token,
            const float (&w)[2], const float *sums)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    uint32_t out[8][2];
    int barrier = 2 + (int) (threadIdx.x / 128);

#pragma unroll
    for (int j = 0; j < 8; j++) {
        fp8_finish<BLOCKS, GATED>(a, sums + 4 * j, w,
                                  token + 8 * j + lane % 4 * 2, out[j]);
    }
    bar_named(barrier, 128); /* what was there is read */
#pragma unroll
    for (uint32_t j = 0; j < 8; j += GATED ? 4 : 2) {
        uint32_t t = (j + (GATED ? lane / 8 : lane / 16)) * 8 + lane % 8;
        uint32_t c = GATED ? warp : 2 * warp + lane / 8 % 2;
        uint32_t to = at + t * 128 + (c ^ t % 8) * 16;

        if (GATED) {
            store_turned(to, out[j][0], out[j + 1][0], out[(j + 2) % 8][0],
                         out[(j + 3) % 8][0]);
        } else {
            store_turned(to, out[j][0], out[j][1], out[j + 1][0],
                         out[j + 1][1]);
        }
    }
    bar_named(barrier, 128);
    fp8_store<GATED>(a, at, row, token);
}

/* ---- the kernel ----------------------------------------------------------- */

template <int HALVES, bool BLOCKS, bool GATED>
static __device__ __forceinline__ void
fp8_consume(const fp8_args_t &a, uint32_t base)
{
    typedef fp8_smem<HALVES> smem;
    uint32_t group = threadIdx.x / 128, at = base + smem::out + group * 8192;
    uint32_t strip = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    fp8_slot_t s = { 0, 0 };

    for (uint32_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        uint32_t row, token;
        float sums[HALVES][64], w[2] = { 1, 1 };

        fp8_tile(a, tile, HALVES * FP8_TOKENS, row, token);
        fp8_multiply<HALVES, BLOCKS>(base, a.p.k / FP8_K, s, sums);
        if (!BLOCKS && row + group * 64 < a.p.n) {
            w[0] = __ldg(a.scales + row + strip);
            w[1] = __ldg(a.scales + row + strip + 8);
        }
#pragma unroll
        for (int i = 0; i < 2 * HALVES; i++) {
            fp8_results<BLOCKS, GATED>(a, at, row + group * 64, token + i * 64,
                                       w, sums[i / 2] + i % 2 * 32);
        }
    }
}

template <int HALVES, bool BLOCKS, bool GATED>
static __global__ void __launch_bounds__(FP8_THREADS, 1)
    fp8_kernel(const __grid_constant__ fp8_args_t a,
               const __grid_constant__ CUtensorMap map)
{
    typedef fp8_smem<HALVES> smem;
    extern __shared__ uint8_t shared[];
    uint32_t base = (smem_address(shared) + 1023) / 1024 * 1024;

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < smem::slots; i++) {
            bar_init(base + smem::full + 8 * i, 1);
            bar_init(base + smem::empty + 8 * i, 8);
        }
        fence_init();
    }
    __syncthreads();
    launch_wait();
    launch_next();
    if (threadIdx.x >= 256) {
        registers_less<40>();
        if (threadIdx.x == 256) {
            fp8_produce<HALVES, BLOCKS>(a, map, base);
        }
    } else {
        registers_more<232>();
        fp8_consume<HALVES, BLOCKS, GATED>(a, base);
    }
}

/* ---- rows in 8 bits ------------------------------------------------------- */

#define FP8_ROUND_THREADS 256u

/* Sixteen columns' largest magnitude. */
static __device__ __forceinline__ float
fp8_most(const uint4 (&v)[2])
{
    const __nv_bfloat162 *two = (const __nv_bfloat162 *) v;
    float most = 0;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        float2 x = __bfloat1622float2(two[i]);

        most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
    }
    return most;
}

static __device__ __forceinline__ uint32_t
fp8_codes(__nv_bfloat162 two, float by)
{
    float2 x = __bfloat1622float2(two);

    return fp8_pair(x.x * by, x.y * by);
}

/* Sixteen columns, in the order in which a lane of a product has a block's. */
static __device__ __forceinline__ uint4
fp8_sixteen(const uint4 (&v)[2], float by)
{
    const __nv_bfloat162 *two = (const __nv_bfloat162 *) v;
    uint32_t out[4];

#pragma unroll
    for (int t = 0; t < 4; t++) {
        out[t] = fp8_codes(two[t], by) | fp8_codes(two[t + 4], by) << 16;
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* The largest of a row, of which each thread has some. */
static __device__ __forceinline__ float
fp8_most_of_row(float most, float *meet)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, d));
    }
    if (threadIdx.x % 32 == 0) {
        meet[threadIdx.x / 32] = most;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < FP8_ROUND_THREADS / 32; i++) {
        most = fmaxf(most, meet[i]);
    }
    return most;
}

/* A row, by a block; up to MOST sixteens a thread. */
template <bool BLOCKS, uint32_t MOST>
static __global__ void __launch_bounds__(FP8_ROUND_THREADS)
    fp8_round_kernel(const __grid_constant__ tr_cuda_fp8_round_t a)
{
    __shared__ float meet[FP8_ROUND_THREADS / 32];
    uint32_t row = blockIdx.x, sixteens = a.k / 16;
    const uint4 *x = (const uint4 *) ((const __nv_bfloat16 *) a.x
                                      + (size_t) row * a.ldx);
    uint4 v[MOST][2];
    float most[MOST], all = 0;

    launch_wait();
    launch_next();
#pragma unroll
    for (uint32_t i = 0; i < MOST; i++) {
        uint32_t c = i * FP8_ROUND_THREADS + threadIdx.x;

        v[i][0] = v[i][1] = make_uint4(0, 0, 0, 0);
        if (c < sixteens) {
            v[i][0] = x[2 * c];
            v[i][1] = x[2 * c + 1];
        }
        most[i] = fp8_most(v[i]);
        all = fmaxf(all, most[i]);
    }
    if (!BLOCKS) {
        all = fp8_most_of_row(all, meet);
    }
#pragma unroll
    for (uint32_t i = 0; i < MOST; i++) {
        uint32_t c = i * FP8_ROUND_THREADS + threadIdx.x;

        if (BLOCKS) {
            all = most[i];
#pragma unroll
            for (int d = 4; d > 0; d /= 2) {
                all = fmaxf(all, __shfl_xor_sync(TR_ALL_LANES, all, d));
            }
        }
        if (c >= sixteens) {
            continue;
        }
        if (BLOCKS ? c % 8 == 0 : c == 0) {
            a.to.scales[BLOCKS ? (size_t) (c / 8) * a.to.ld + row : row] =
                all >= TR_FP8_LEAST ? all / TR_FP8_MOST : 1;
        }
        ((uint4 *) (a.to.codes + (size_t) row * a.k))[c] = fp8_sixteen(
            v[i], all >= TR_FP8_LEAST ? TR_FP8_MOST / all : 1);
    }
}

#endif
