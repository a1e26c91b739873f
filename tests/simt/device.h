/*
 * device.h: what CUDA C++ has and C++ has not, for the device in software.
 *
 * Comes in front of each file of kernels/cuda (-include) that the host's
 * compiler translates, and takes the place of its *ptx.cuh (ptx.h).
 */
#ifndef TR_TESTS_SIMT_DEVICE_H
#define TR_TESTS_SIMT_DEVICE_H

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <vector_functions.h>

#include "simt.h"

#undef __shared__
#define __shared__ thread_local
#undef __noinline__
#define __noinline__ __attribute__((noinline))
#undef __launch_bounds__
#define __launch_bounds__(...)

/* From here on this is device code; the toolkit's headers are not. */
#define __CUDA_ARCH__ (SIMT_CODE * 10)
#if SIMT_CODE == 90
#define __CUDA_ARCH_FEAT_SM90_ALL
#endif
#define __CUDA_RUNTIME_H__ /* <cuda_runtime.h> is this file */

/* ---- launches ------------------------------------------------------------ */

template <typename... P> struct simt_call_t {
    void (*kernel)(P...);
    std::tuple<P...> args;

    static void
    run(void *arg)
    {
        simt_call_t *c = (simt_call_t *) arg;

        std::apply(c->kernel, c->args);
    }
    static void
    free(void *arg)
    {
        delete (simt_call_t *) arg;
    }
};

static inline simt_dim_t
simt_dim(dim3 d)
{
    return { d.x, d.y, d.z };
}

template <typename... P> struct simt_launcher_t {
    void (*kernel)(P...);
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    uint32_t cluster;

    int
    operator()(P... args)
    {
        simt_launch_t l = { simt_dim(grid),
                            simt_dim(block),
                            (uint32_t) shared,
                            cluster,
                            simt_call_t<P...>::run,
                            simt_call_t<P...>::free,
                            new simt_call_t<P...>{
                                kernel, std::tuple<P...>(args...) } };

        return simt_submit(stream, &l);
    }
};

/* kernel<<<grid, block, shared, stream>>> */
template <typename... P>
static inline simt_launcher_t<P...>
simt_launched(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared = 0,
              cudaStream_t stream = NULL)
{
    return { kernel, grid, block, shared, stream, 1 };
}

template <typename... P, typename... A>
static inline cudaError_t
cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...),
                   A &&...args)
{
    simt_launcher_t<P...> l = { kernel,      c->gridDim,
                                c->blockDim, c->dynamicSmemBytes,
                                c->stream,   1 };

    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) {
            l.cluster = c->attrs[i].val.clusterDim.x;
        }
    }
    return (cudaError_t) l((P) args...);
}

template <typename... P>
static inline cudaError_t
cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute what, int value)
{
    return cudaFuncSetAttribute((const void *) kernel, what, value);
}

template <typename... P>
static inline cudaError_t
cudaFuncGetAttributes(cudaFuncAttributes *out, void (*kernel)(P...))
{
    return cudaFuncGetAttributes(out, (const void *) kernel);
}

template <typename... P>
static inline cudaError_t
cudaOccupancyMaxActiveClusters(int *n, void (*kernel)(P...),
                               const cudaLaunchConfig_t *config)
{
    return cudaOccupancyMaxActiveClusters(n, (const void *) kernel, config);
}

template <typename T>
static inline cudaError_t
cudaMalloc(T **out, size_t bytes)
{
    return cudaMalloc((void **) out, bytes);
}

/* ---- meetings ------------------------------------------------------------ */

static inline void
simt_whole(unsigned mask)
{
    if (mask != 0xffffffffu) {
        simt_die("a meeting of some lanes (%x)", mask);
    }
}

static inline void
__syncwarp(unsigned mask = 0xffffffffu)
{
    simt_whole(mask);
    simt_meet(NULL, 0);
}

static inline void
__syncthreads(void)
{
    simt_block_sync();
}

template <typename T>
static inline T
simt_from(T x, unsigned lane)
{
    T y;

    static_assert(sizeof(T) <= SIMT_POST, "a lane's post");
    memcpy(&y, simt_meet(&x, sizeof(x))[lane], sizeof(y));
    return y;
}

static inline unsigned
simt_lane(void)
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))
           % 32;
}

template <typename T>
static inline T
__shfl_sync(unsigned mask, T x, int lane)
{
    simt_whole(mask);
    return simt_from(x, (unsigned) lane % 32);
}

template <typename T>
static inline T
__shfl_xor_sync(unsigned mask, T x, int other)
{
    simt_whole(mask);
    return simt_from(x, simt_lane() ^ (unsigned) other);
}

template <typename T>
static inline T
__shfl_up_sync(unsigned mask, T x, unsigned d)
{
    simt_whole(mask);
    return simt_from(x, simt_lane() >= d ? simt_lane() - d : simt_lane());
}

static inline unsigned
__ballot_sync(unsigned mask, int x)
{
    unsigned bit = x != 0, y, all = 0;
    const simt_post_t *post;

    simt_whole(mask);
    post = simt_meet(&bit, sizeof(bit));
    for (unsigned i = 0; i < 32; i++) {
        memcpy(&y, post[i], sizeof(y));
        all |= y << i;
    }
    return all;
}

static inline int
__any_sync(unsigned mask, int x)
{
    return __ballot_sync(mask, x) != 0;
}

static inline unsigned
__reduce_min_sync(unsigned mask, unsigned x)
{
    const simt_post_t *post;

    simt_whole(mask);
    post = simt_meet(&x, sizeof(x));
    for (unsigned i = 0; i < 32; i++) {
        unsigned y;

        memcpy(&y, post[i], sizeof(y));
        x = y < x ? y : x;
    }
    return x;
}

/* ---- memory -------------------------------------------------------------- */

template <typename T>
static inline T
__ldg(const T *p)
{
    if ((uintptr_t) p % sizeof(T) != 0) {
        simt_die("a load of %zu bytes from %p", sizeof(T), (const void *) p);
    }
    return *p;
}

template <typename T>
static inline T
__ldcg(const T *p)
{
    return __ldg(p);
}

template <typename T>
static inline T
__ldcv(const T *p)
{
    return __ldg(p);
}

template <typename T>
static inline void
__stcg(T *p, T x)
{
    *p = x;
}

static inline void
__threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void
__nanosleep(unsigned)
{
}

static inline void
__threadfence_block(void)
{
}

template <typename T, typename U>
static inline T
atomicAdd(T *p, U x)
{
    return __atomic_fetch_add(p, (T) x, __ATOMIC_RELAXED);
}

static inline float
atomicAdd(float *p, float x)
{
    float old = *p, sum;

    do {
        sum = old + x;
    } while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
    return old;
}

template <typename T, typename U>
static inline T
atomicOr(T *p, U x)
{
    return __atomic_fetch_or(p, (T) x, __ATOMIC_RELAXED);
}

/* ---- arithmetic ---------------------------------------------------------- */

template <typename A, typename B>
static constexpr typename std::common_type<A, B>::type
min(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;

    return (T) a < (T) b ? (T) a : (T) b;
}

template <typename A, typename B>
static constexpr typename std::common_type<A, B>::type
max(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;

    return (T) a < (T) b ? (T) b : (T) a;
}

static inline float
__uint_as_float(unsigned u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}

static inline float
__int_as_float(int u)
{
    return __uint_as_float((unsigned) u);
}

static inline unsigned
__float_as_uint(float x)
{
    unsigned u;

    memcpy(&u, &x, 4);
    return u;
}

static inline float
__fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float
__fmul_rn(float a, float b)
{
    return a * b;
}

static inline float
__fadd_rn(float a, float b)
{
    return a + b;
}

static inline float
__fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float
__fdividef(float a, float b)
{
    return a / b;
}

static inline double
__dadd_rn(double a, double b)
{
    return a + b;
}

static inline double
__dmul_rn(double a, double b)
{
    return a * b;
}

/* The host's headers have something else by these names. */
#define __expf expf
#define __log2f log2f

static inline float
rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

static inline int
__float2int_rn(float x)
{
    return x != x          ? 0
           : x >= 0x1p31f  ? INT32_MAX
           : x <= -0x1p31f ? INT32_MIN
                           : (int) nearbyintf(x);
}

static inline int
__ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int
__popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline unsigned
__umulhi(unsigned a, unsigned b)
{
    return (unsigned) ((uint64_t) a * b >> 32);
}

static inline unsigned long long
__umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long) ((unsigned __int128) a * b >> 64);
}

/* Bytes of b:a; a nibble's fourth bit spreads the byte's sign. */
static inline unsigned
__byte_perm(unsigned a, unsigned b, unsigned s)
{
    uint64_t all = (uint64_t) b << 32 | a;
    unsigned r = 0;

    for (unsigned i = 0; i < 4; i++) {
        unsigned n = s >> 4 * i & 15;
        unsigned byte = (unsigned) (all >> (n & 7) * 8) & 255;

        if (n & 8) {
            byte = byte & 128 ? 255 : 0;
        }
        r |= byte << 8 * i;
    }
    return r;
}

#include "ptx.h"

#endif
