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

/* Bytes that are read once; volatile, so that they are asked for where the
 * code says. */
static __device__ __forceinline__ uint4
load_stream(const uint8_t *p)
{
    uint4 r;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p));
    return r;
}

static __device__ __forceinline__ uint2
load_stream8(const uint8_t *p)
{
    uint2 r;

    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(r.x), "=r"(r.y)
                 : "l"(p));
    return r;
}

static __device__ __forceinline__ uint32_t
load_stream4(const uint8_t *p)
{
    uint32_t r;

    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}

/* Into the L2 cache. */
static __device__ __forceinline__ void
prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* (w & MASK) | BITS */
template <uint32_t MASK, uint32_t BITS>
static __device__ __forceinline__ uint32_t
pick(uint32_t w)
{
    uint32_t r;

    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(r)
        : "r"(w), "n"(MASK), "r"(BITS));
    return r;
}

static __device__ __forceinline__ float
exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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

/* ---- mbarriers ---------------------------------------------------------- */

static __device__ __forceinline__ void
mbar_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_address(bar)),
                 "r"(count)
                 : "memory");
}

static __device__ __forceinline__ void
mbar_arrive(uint64_t *bar)
{
    asm volatile(
        "{ .reg .b64 state;\n"
        "mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(smem_address(bar))
        : "memory");
}

static __device__ __forceinline__ bool
mbar_test(uint64_t *bar, uint32_t parity)
{
    uint32_t done;

    asm volatile("{ .reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(smem_address(bar)), "r"(parity)
                 : "memory");
    return done != 0;
}

static __device__ __forceinline__ void
mbar_wait(uint64_t *bar, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900 /* sleeps in between */
    uint32_t done = 0, at = smem_address(bar);

    while (!done) {
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
    }
#else
    while (!mbar_test(bar, parity)) {
    }
#endif
}

/* Barrier `id` (1 .. 15) of the first `threads` threads of a block. */
static __device__ __forceinline__ void
named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ uint32_t
load_acquire(const uint32_t *p)
{
    uint32_t v;

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(v)
                 : "l"(p)
                 : "memory");
    return v;
}

#endif
