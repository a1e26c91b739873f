/*
 * small_gemm_ptx.cuh: instructions of small_gemm.cuh without a name in CUDA
 * C++, beside those of wgmma.cuh, which also says how a tile lies in shared
 * memory.
 */
#ifndef TR_CUDA_SMALL_GEMM_PTX_CUH
#define TR_CUDA_SMALL_GEMM_PTX_CUH

#include "kernels/cuda/wgmma.cuh"

/* ---- c += a b: 64 x N x 16, BF16, both from shared memory ----------------- */

static __device__ __forceinline__ void
multiply(float (&c)[4], uint64_t a, uint64_t b)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES4 "}, %4, %5, p, 1, 1, 0, 0; }"
                 : WGMMA_SUMS4(c, 0)
                 : "l"(a), "l"(b));
#endif
}

static __device__ __forceinline__ void
multiply(float (&c)[8], uint64_t a, uint64_t b)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES8 "}, %8, %9, p, 1, 1, 0, 0; }"
                 : WGMMA_SUMS8(c, 0)
                 : "l"(a), "l"(b));
#endif
}

static __device__ __forceinline__ void
multiply(float (&c)[16], uint64_t a, uint64_t b)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES16 "}, %16, %17, p, 1, 1, 0, 0; }"
                 : WGMMA_SUMS16(c, 0)
                 : "l"(a), "l"(b));
#endif
}

static __device__ __forceinline__ void
multiply(float (&c)[32], uint64_t a, uint64_t b)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES32 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : WGMMA_SUMS32(c, 0)
                 : "l"(a), "l"(b));
#endif
}

/* The same, a from registers as mma() of ptx.cuh has it; add 0: c = a b. */
static __device__ __forceinline__ void
multiply(float (&c)[4], const uint32_t (&a)[4], uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %9, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES4 "}, {%4,%5,%6,%7}, %8, p, 1, 1, 0; }"
                 : WGMMA_SUMS4(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "r"(add));
#endif
}

static __device__ __forceinline__ void
multiply(float (&c)[8], const uint32_t (&a)[4], uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES8 "}, {%8,%9,%10,%11}, %12, p, 1, 1, 0; }"
                 : WGMMA_SUMS8(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "r"(add));
#endif
}

static __device__ __forceinline__ void
multiply(float (&c)[16], const uint32_t (&a)[4], uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES16 "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0; }"
                 : WGMMA_SUMS16(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "r"(add));
#endif
}

static __device__ __forceinline__ void
multiply(float (&c)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
#if TR_WGMMA
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0; }"
                 : WGMMA_SUMS32(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "r"(add));
#endif
}

/* ---- clusters ------------------------------------------------------------ */

/* All threads of all blocks of the cluster come; each waits once, later. */
static __device__ __forceinline__ void
cluster_arrive(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void
cluster_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* N numbers, to where block `rank` of the cluster has what is `at` here; there
 * the bytes count for its barrier. */
template <int N>
static __device__ __forceinline__ void
cluster_store(uint32_t at, const float (&v)[4], uint32_t bar, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;"
                 : "+r"(bar)
                 : "r"(rank));
    if (N == 4) {
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::"
                     "bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(at),
                     "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(bar)
                     : "memory");
    } else {
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::"
                     "bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(at),
                     "f"(v[0]), "f"(v[1]), "r"(bar)
                     : "memory");
    }
#endif
}

/* ---- the copy engine ------------------------------------------------------ */

/* Brings a map to where the copy engine looks for it. */
static __device__ __forceinline__ void
prefetch_map(const CUtensorMap *map)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

/* Some eights of rows of w, of them some pieces of k; policy: see l2_policy. */
static __device__ __forceinline__ void
copy_weights(uint32_t dst, const CUtensorMap *map, uint32_t piece,
             uint32_t eight, uint32_t bar, uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile."
                 "mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%4, %4, %4, %5, %3}], [%2], %6;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(piece), "r"(0), "r"(eight), "l"(policy)
                 : "memory");
#endif
}

/* All rows of x, of them some pieces of k. */
static __device__ __forceinline__ void
copy_rows(uint32_t dst, const CUtensorMap *map, uint32_t piece, uint32_t bar,
          uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile."
                 "mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%4, %4, %3}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(piece), "r"(0), "l"(policy)
                 : "memory");
#endif
}

/* What ordinary instructions wrote to device memory, the copy engine reads; on
 * both sides of what tells that it was written. */
static __device__ __forceinline__ void
fence_async_global(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

/* ---- memory --------------------------------------------------------------- */

static __device__ __forceinline__ void
shared_store4(uint32_t at, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

#endif
