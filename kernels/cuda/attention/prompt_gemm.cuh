/*
 * prompt_gemm.cuh: the three products of prompt attention, twice.
 *
 *   logits      S[64, N] = A B^T     A = queries, B = keys, both in shared memory
 *   values      O[64, D] += P V      P in registers, V in shared memory
 *   columns     S[64, 64] = A B^T    A = keys in registers, B = queries
 *
 * Four warps have 16 rows each, accumulators as mma() has them: c[4j + 2r + b]
 * is row 8r + g, column 8j + 2t + b of lane 4g + t.  warps_t multiplies at once
 * with a warp's instruction; groups_t with Hopper's, which four warps issue
 * together and which runs on beside them until wait().
 */
#ifndef TR_CUDA_PROMPT_GEMM_CUH
#define TR_CUDA_PROMPT_GEMM_CUH

#include "kernels/cuda/wgmma.cuh"

/* Address of row r, 16-byte chunk c of a tile (wgmma.cuh). */
template <int D>
static __device__ __forceinline__ uint32_t
tile_at(uint32_t at, uint32_t r, uint32_t c)
{
    return at + (r / 8 * (D / 64) + c / 8) * 1024 + r % 8 * 128
           + ((c ^ r) & 7) * 16;
}

static __device__ __forceinline__ float (&quad(float *c))[4]
{
    return *(float(*)[4]) c;
}

struct warps_t {
    static const bool GROUPS = false;

    static __device__ __forceinline__ void
    begin(void)
    {
    }

    static __device__ __forceinline__ void
    end(void)
    {
    }

    template <int N>
    static __device__ __forceinline__ void
    wait(void)
    {
        __syncwarp();
    }

    /* Adds a's 16 dimensions `k` times those of B's N rows. */
    template <int D, int N>
    static __device__ __forceinline__ void
    step(float (&c)[N / 2], const uint32_t (&a)[4], uint32_t b, int k)
    {
        uint32_t lane = threadIdx.x % 32, m = lane / 8;

#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            uint32_t r[4];

            load_matrices<false>(r, tile_at<D>(b, 8 * (j + m / 2) + lane % 8,
                                               2 * k + m % 2));
            mma(quad(c + 4 * j), a, r[0], r[1]);
            mma(quad(c + 4 * j + 4), a, r[2], r[3]);
        }
    }

    template <int D, int N>
    static __device__ __forceinline__ void
    logits(float (&c)[N / 2], uint32_t a, uint32_t b)
    {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        uint32_t m = lane / 8;

#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            c[i] = 0;
        }
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t r[4];

            load_matrices<false>(r,
                                 tile_at<D>(a, 16 * warp + m % 2 * 8 + lane % 8,
                                            2 * k + m / 2));
            step<D, N>(c, r, b, k);
        }
    }

    template <int D>
    static __device__ __forceinline__ void
    columns(float (&c)[32], const uint32_t (&a)[D / 16][4], uint32_t b)
    {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            c[i] = 0;
        }
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            step<D, 64>(c, a[k], b, k);
        }
    }

    template <int D, int N>
    static __device__ __forceinline__ void
    values(float (&c)[D / 2], const uint32_t (&p)[N / 16][4], uint32_t v)
    {
        uint32_t lane = threadIdx.x % 32, m = lane / 8;

#pragma unroll
        for (int k = 0; k < N / 16; k++) {
#pragma unroll
            for (int j = 0; j < D / 8; j += 2) {
                uint32_t r[4];

                load_matrices<true>(r,
                                    tile_at<D>(v, 16 * k + m % 2 * 8 + lane % 8,
                                               j + m / 2));
                mma(quad(c + 4 * j), p[k], r[0], r[1]);
                mma(quad(c + 4 * j + 4), p[k], r[2], r[3]);
            }
        }
    }
};

struct groups_t {
    static const bool GROUPS = true;

    static __device__ __forceinline__ void
    begin(void)
    {
        wgmma_begin();
    }

    static __device__ __forceinline__ void
    end(void)
    {
        wgmma_end();
    }

    template <int N>
    static __device__ __forceinline__ void
    wait(void)
    {
        wgmma_wait<N>();
    }

    /* Sixteen dimensions are 32 bytes of a row, four times that an atom; atoms
     * of the same dimensions are D / 64 apart. */
    template <int D>
    static __device__ __forceinline__ uint64_t
    rows(uint32_t at, int k)
    {
        return wgmma_operand(at + k / 4 * 1024 + k % 4 * 32, D * 16, 16);
    }

    template <int D, int N>
    static __device__ __forceinline__ void
    logits(float (&c)[N / 2], uint32_t a, uint32_t b)
    {
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            wgmma_ss(c, rows<D>(a, k), rows<D>(b, k), k > 0);
        }
    }

    template <int D>
    static __device__ __forceinline__ void
    columns(float (&c)[32], const uint32_t (&a)[D / 16][4], uint32_t b)
    {
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            wgmma_rs<0>(c, a[k], rows<D>(b, k), k > 0);
        }
    }

    /* Sixteen tokens are twice D / 64 atoms. */
    template <int D, int N>
    static __device__ __forceinline__ void
    values(float (&c)[D / 2], const uint32_t (&p)[N / 16][4], uint32_t v)
    {
#pragma unroll
        for (int k = 0; k < N / 16; k++) {
            wgmma_rs<1>(c, p[k], wgmma_operand(v + k * D * 32, D * 16, 1024),
                        true);
        }
    }
};

#endif
