/*
 * ptx.cuh: the machine's instructions that CUDA C++ has no name for.
 *
 * Everything here is one instruction or a short loop around one.
 */
#ifndef TR_CUDA_PTX_CUH
#define TR_CUDA_PTX_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#define TR_ALL_LANES 0xffffffffu

static __device__ __forceinline__ uint32_t
smem_address(const void *p)
{
    return (uint32_t) __cvta_generic_to_shared(p);
}

/* c += a b: 16 x 8 x 16, FP16 to FP32.  Lane 4g + t has of A the rows g, g + 8
 * and columns 2t, 2t + 1, 2t + 8, 2t + 9; of B those rows of column g; of C
 * rows g, g + 8 of columns 2t, 2t + 1. */
static __device__ __forceinline__ void
mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same of BF16. */
static __device__ __forceinline__ void
mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same with one step of 8: 16 x 8 x 8.  Lane 4g + t has of A the rows g and
 * g + 8 of columns 2t, 2t + 1. */
static __device__ __forceinline__ void
mma_short(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* c += a b: 16 x 8 x 32, unsigned and signed bytes, exact.  Lane 4g + t has of
 * A rows g and g + 8 (a0, a1) of columns 4t .. 4t + 3, and again (a2, a3) of
 * columns 16 + 4t ..; of B those rows of column g; of C as above. */
static __device__ __forceinline__ void
mma_bytes(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
          uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The first half of its columns. */
static __device__ __forceinline__ void
mma_bytes_short(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* Transposes an 8 x 8 matrix of 16-bit elements, row g in lanes 4g .. 4g + 3 */
static __device__ __forceinline__ uint32_t
transpose(uint32_t x)
{
    uint32_t y;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                 : "=r"(y)
                 : "r"(x));
    return y;
}

static __device__ __forceinline__ float
exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float
reciprocal(float x)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t
half2_bits(float lo, float hi)
{
    __half2 h = __floats2half2_rn(lo, hi);

    return *(uint32_t *) &h;
}

static __device__ __forceinline__ float2
half2_floats(uint32_t bits)
{
    return __half22float2(*(__half2 *) &bits);
}

/* ---- copies to shared memory --------------------------------------------- */

/* 16 bytes past the L1 cache; policy: see l2_policy. */
static __device__ __forceinline__ void
copy_async16(uint32_t dst, const uint8_t *src, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B "
                 "[%0], [%1], 16, %2;" ::"r"(dst),
                 "l"(src), "l"(policy)
                 : "memory");
}

/* This thread arrives at a barrier when its copies so far are there. */
static __device__ __forceinline__ void
copy_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar)
                 : "memory");
}

/* Contiguous bytes, a multiple of 16, by the copy engine; see bar_expect. */
static __device__ __forceinline__ void
copy_engine(uint32_t dst, const uint8_t *src, uint32_t bytes, uint32_t bar,
            uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
#endif
}

/* ---- pairs of BF16, rounded once ------------------------------------------ */

static __device__ __forceinline__ uint32_t
bf16_mul(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
#endif
    return a;
}

static __device__ __forceinline__ uint32_t
bf16_sub(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ >= 900
    asm("sub.rn.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
#endif
    return a;
}

/* Two numbers as FP8 (E4M3), rounded to the nearest, large ones to the largest. */
static __device__ __forceinline__ uint32_t
fp8_pair(float lo, float hi)
{
    uint16_t r = 0;

#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
#endif
    return r;
}

/* The line at p, into the L2 cache. */
static __device__ __forceinline__ void
prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* The same for contiguous bytes, a multiple of 16, at a multiple of 16. */
static __device__ __forceinline__ void
prefetch_l2_bytes(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p),
                 "r"(bytes)
                 : "memory");
#endif
}

/* What streams through the L2 cache leaves it first. */
static __device__ __forceinline__ uint64_t
l2_policy(void)
{
    uint64_t p;

    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}

/* What is read soon stays. */
static __device__ __forceinline__ uint64_t
l2_policy_stay(void)
{
    uint64_t p;

    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    return p;
}

/* .. as far as there is room: of all that is written with it, a share. */
static __device__ __forceinline__ uint64_t
l2_policy_stay(float share)
{
    uint64_t p;

    asm("createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, %1;"
        : "=l"(p)
        : "f"(share));
    return p;
}

static __device__ __forceinline__ void
store_hinted(void *p, uint32_t x, uint64_t policy)
{
    asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" ::"l"(p), "r"(x),
                 "l"(policy)
                 : "memory");
}

/* Device memory that is read once, by this thread alone, and never written; past
 * the L1 cache.  Asked for here, whatever stands between this and its use. */
static __device__ __forceinline__ uint4
load_once16(const void *p)
{
    uint4 r;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p));
    return r;
}

/* The same of what other lanes read, too. */
static __device__ __forceinline__ uint32_t
load_once4(const void *p)
{
    uint32_t r;

    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}

static __device__ __forceinline__ uint4
shared_load16(uint32_t at)
{
    uint4 r;

    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"(at)
                 : "memory");
    return r;
}

static __device__ __forceinline__ uint32_t
shared_load4(uint32_t at)
{
    uint32_t r;

    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(at) : "memory");
    return r;
}

static __device__ __forceinline__ uint2
shared_load8(uint32_t at)
{
    uint2 r;

    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                 : "=r"(r.x), "=r"(r.y)
                 : "r"(at)
                 : "memory");
    return r;
}

static __device__ __forceinline__ void
shared_store8(uint32_t at, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(at), "r"(x), "r"(y)
                 : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements; lane l has the address of row l % 8
 * of matrix l / 8.  Lane 4g + t gets elements 2t, 2t + 1 of row g, or of column
 * g when transposed. */
template <bool TRANSPOSED>
static __device__ __forceinline__ void
load_matrices(uint32_t (&r)[4], uint32_t at)
{
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
                     "{%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, "
                     "[%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    }
}

/* ---- barriers in shared memory ------------------------------------------ */

static __device__ __forceinline__ void
bar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count)
                 : "memory");
}

static __device__ __forceinline__ void
bar_arrive(uint32_t bar)
{
    asm volatile("{ .reg .b64 state;\n"
                 "mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(bar)
                 : "memory");
}

static __device__ __forceinline__ void
bar_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done = 0;

    while (!done) {
#if __CUDA_ARCH__ >= 900 /* sleeps in between */
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
#else
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
#endif
    }
}

/* So many arrivals. */
static __device__ __forceinline__ void
bar_arrive_for(uint32_t bar, uint32_t count)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b64 state;\n"
                 "mbarrier.arrive.shared.b64 state, [%0], %1; }" ::"r"(bar),
                 "r"(count)
                 : "memory");
#endif
}

/* Arrives, and lets the phase end only when `bytes` were copied, too. */
static __device__ __forceinline__ void
bar_expect(uint32_t bar, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .b64 state;\n"
        "mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(bar),
        "r"(bytes)
        : "memory");
#endif
}

/* Barriers were initialised. */
static __device__ __forceinline__ void
fence_init(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

/* ---- what blocks tell each other ----------------------------------------- */

static __device__ __forceinline__ uint32_t
load_acquire(const uint32_t *p)
{
    uint32_t x;

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(x)
                 : "l"(p)
                 : "memory");
    return x;
}

/* What this thread knows to be written, others see that see the sum. */
static __device__ __forceinline__ void
add_release(uint32_t *p, uint32_t x)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x)
                 : "memory");
}

/* ---- dependent launches -------------------------------------------------- */

/* The next kernel of the stream may begin; it must call launch_wait before it
 * reads what this one writes. */
static __device__ __forceinline__ void
launch_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Until the kernel before is complete and its writes are visible. */
static __device__ __forceinline__ void
launch_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
