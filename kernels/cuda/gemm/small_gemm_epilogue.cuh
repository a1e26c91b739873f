/*
 * small_gemm_epilogue.cuh: what happens to the sums of small_gemm.cuh.  The
 * blocks of a cluster add theirs; RMSNorm's scale is computed and applied; then
 * comes the gate or the residual.
 */
#ifndef TR_CUDA_SMALL_GEMM_EPILOGUE_CUH
#define TR_CUDA_SMALL_GEMM_EPILOGUE_CUH

#include <cuda_bf16.h>

#include "small_gemm_smem.cuh"

/* What a thread's sums belong to: see gemm_multiply. */
typedef struct {
    uint32_t column; /* of the product, of r 0; GATED: of its result; of
                      * pairs that of the first */
    uint32_t row;    /* of x, of j and b 0 */
    uint32_t mine;   /* bit b: rows of x that this block finishes */
    bool inside;     /* the column is one */
} gemm_fragment_t;

static __device__ __forceinline__ gemm_fragment_t
gemm_fragment(const gemm_phase_t &f, uint32_t tile)
{
    const gemm_tiling_t &h = f.tiling;
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
    gemm_fragment_t l;

    l.row = lane % 4 * 2;
    l.mine = h.split == 1 ? 3 : 1u << blockIdx.x % h.split;
    if (f.p.mode == TR_CUDA_SMALL_GEMM_GATED
        || f.p.form.order == TR_WEIGHT_PAIRS) {
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
gemm_cluster_reduce(const gemm_phase_t &f, const gemm_smem_t &s,
                    uint32_t parity, float (&c)[N / 2])
{
    const int CHUNK = N == 8 ? 2 : 4;
    uint32_t threads = gemm_groups(f.tiling) * 128, bar = GEMM_SMEM(s, got);
    uint32_t at = s.received + threadIdx.x * CHUNK * 4;
    bool odd = blockIdx.x % 2 != 0;

    if (threadIdx.x == 0) {
        bar_expect(bar, gemm_received(f.tiling, N));
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
gemm_warp_sum(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(TR_ALL_LANES, x, d);
    }
    return x;
}

/* What comes from memory while the block multiplies. */
template <int N> struct gemm_prefetched_t {
    /* RESIDUAL: hidden, as its sums are; else two parts of the squares of each
     * of four rows */
    float x[N < 32 ? 8 : N / 4];
    float bias[2], weight[2];
};

/* Row of x that a warp scales as its i-th. */
static __device__ __forceinline__ uint32_t
gemm_scaled_row(const gemm_phase_t &f, uint32_t i)
{
    uint32_t at = threadIdx.x / 32 + i * gemm_groups(f.tiling) * 4;

    return f.tiling.split == 1 ? at : at * 2 + blockIdx.x % 2;
}

/* Parts of the sums of squares of four rows of the warp, from its i-th on. */
template <int N>
static __device__ __forceinline__ void
gemm_prefetch_squares(const gemm_phase_t &f, uint32_t i,
                      gemm_prefetched_t<N> &prefetched)
{
    uint32_t lane = threadIdx.x % 32, parts = f.p.parts;

#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t r = gemm_scaled_row(f, i + j);

#pragma unroll
        for (uint32_t b = 0; b < 2; b++) {
            prefetched.x[2 * j + b] = r < f.p.rows && lane + 32 * b < parts
                                          ? __ldcg(f.p.squares + r * parts
                                                   + lane + 32 * b)
                                          : 0;
        }
    }
}

/* RMSNorm's scales of the rows of x that this block finishes, by the warps that
 * multiply; prefetched: of the first four. */
template <int N>
static __device__ __forceinline__ void
gemm_scales(const gemm_phase_t &f, const gemm_smem_t &s,
            gemm_prefetched_t<N> &prefetched)
{
    uint32_t lane = threadIdx.x % 32, parts = f.p.parts;

    for (uint32_t i = 0; gemm_scaled_row(f, i) < f.p.rows; i += 4) {
        if (i > 0) {
            gemm_prefetch_squares<N>(f, i, prefetched);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t r = gemm_scaled_row(f, i + j);
            float x = prefetched.x[2 * j] + prefetched.x[2 * j + 1];

            if (r >= f.p.rows) {
                break;
            }
            for (uint32_t k = lane + 64; k < parts; k += 32) {
                x += __ldcg(f.p.squares + r * parts + k);
            }
            x = gemm_warp_sum(x);
            if (lane == 0) {
                shared_store4(GEMM_SMEM(s, scales) + r * 4,
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
gemm_owns(const gemm_phase_t &f, const gemm_fragment_t &l, uint32_t j,
          uint32_t b)
{
    return (l.mine >> b & 1) != 0 && l.row + 8 * j + b < f.p.rows;
}

template <int N>
static __device__ __forceinline__ void
gemm_prefetch_columns(const gemm_phase_t &f, const gemm_fragment_t &l,
                      gemm_prefetched_t<N> &prefetched)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        prefetched.bias[r] = l.inside && f.p.bias != NULL
                                 ? f.p.bias[l.column + 8 * r]
                                 : 0;
        prefetched.weight[r] = l.inside && f.p.y != NULL
                                   ? f.p.weight[l.column + 8 * r]
                                   : 0;
    }
}

template <int N>
static __device__ __forceinline__ void
gemm_prefetch_residual(const gemm_phase_t &f, const gemm_fragment_t &l,
                       gemm_prefetched_t<N> &prefetched)
{
    uint32_t ld = (uint32_t) f.p.ldh, odd = blockIdx.x % GEMM_CLUSTER;
    const float *hidden = f.p.hidden + (l.row + odd) * ld + l.column;

#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        prefetched.x[i] = l.inside && gemm_owns(f, l, i / 2, odd)
                              ? __ldcg(hidden + i / 2 * 8 * ld + i % 2 * 8)
                              : 0;
    }
}

static_assert(TR_CUDA_SMALL_GEMM_ACTS == 1u << TR_ACT_SILU,
              "what gemm_act computes");

static __device__ __forceinline__ float
gemm_act(float x)
{
    return x * reciprocal(1 + exp2_fast(x * -1.4426950409f));
}

/* PLAIN, GATED. */
template <int N, bool GATED>
static __device__ __forceinline__ void
gemm_store_scaled(const gemm_phase_t &f, const gemm_smem_t &s,
                  const gemm_fragment_t &l, const float (&c)[N / 2])
{
    uint32_t ld = (uint32_t) f.p.ldy, scales = GEMM_SMEM(s, scales) + l.row * 4;
    uint32_t other = f.p.form.order == TR_WEIGHT_PAIRS ? f.p.n / 2 : 8;
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

            if (!gemm_owns(f, l, j, b)) {
                continue;
            }
            scale = __uint_as_float(shared_load4(scales + (8 * j + b) * 4));
            if (GATED) {
                *to = __float2bfloat16_rn(gemm_act(u * scale) * (v * scale));
            } else {
                to[0] = __float2bfloat16_rn(u * scale);
                to[other] = __float2bfloat16_rn(v * scale);
            }
        }
    }
}

/* Adds up what warps have of a row's squares. */
static __device__ __forceinline__ void
gemm_store_squares(const gemm_phase_t &f, const gemm_smem_t &s, uint32_t tile,
                   const gemm_fragment_t &l)
{
    uint32_t warps = gemm_groups(f.tiling) * 4, r = threadIdx.x;

    bar_named(1, warps * 32);
    if (r < f.p.rows && (l.mine >> r % 2 & 1) != 0) {
        float sum = 0;

#pragma unroll 4
        for (uint32_t w = 0; w < warps; w++) {
            sum += __uint_as_float(shared_load4(
                GEMM_SMEM(s, squares) + (w * TR_CUDA_SMALL_GEMM_ROWS + r) * 4));
        }
        f.p.squares_out[r * f.tiling.tiles + tile] = sum;
    }
    __syncwarp();
}

template <int N>
static __device__ __forceinline__ void
gemm_store_residual(const gemm_phase_t &f, const gemm_smem_t &s, uint32_t tile,
                    const gemm_fragment_t &l,
                    const gemm_prefetched_t<N> &prefetched,
                    const float (&c)[N / 2])
{
    uint32_t ldh = (uint32_t) f.p.ldh, ldy = (uint32_t) f.p.ldy;
    uint32_t odd = blockIdx.x % GEMM_CLUSTER, row = l.row + odd;
    uint32_t squares = GEMM_SMEM(s, squares)
                       + (threadIdx.x / 32 * TR_CUDA_SMALL_GEMM_ROWS + row) * 4;
    float *hidden = f.p.hidden + row * ldh + l.column;
    __nv_bfloat16 *y = (__nv_bfloat16 *) f.p.y + row * ldy + l.column;

#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float sum = 0;

        if (l.inside && gemm_owns(f, l, j, odd)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float h = prefetched.x[2 * j + r] + prefetched.bias[r]
                          + (odd ? c[4 * j + 2 * r + 1] : c[4 * j + 2 * r]);

                hidden[8 * j * ldh + 8 * r] = h;
                if (f.p.y != NULL) {
                    y[8 * j * ldy + 8 * r] = __float2bfloat16_rn(
                        h * prefetched.weight[r]);
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
        gemm_store_squares(f, s, tile, l);
    }
}

#endif
