/*
 * Small copies between pinned and device memory (device.h), by a kernel:
 * between two kernels the copy engine costs 7 us, however little it copies.
 */
#include "kernels/cuda/launch.cuh"
#include "runtime.cuh"

#define THREADS 256u
#define PIECES 4u /* of 16 bytes, that a thread has at once */

typedef struct {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
} small_copy_args_t;

/* Past what is there: nothing. */
static __device__ __forceinline__ void
load_pieces(const small_copy_args_t &a, uint4 (&v)[PIECES], uint32_t &rest)
{
    size_t at = ((size_t) blockIdx.x * PIECES * THREADS + threadIdx.x) * 16;

#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++, at += THREADS * 16) {
        if (at + 16 <= a.bytes) {
            v[i] = __ldcv((const uint4 *) (a.from + at));
        }
    }
    at = a.bytes / 16 * 16 + threadIdx.x * 4;
    rest = blockIdx.x == 0 && at < a.bytes
               ? __ldcv((const uint32_t *) (a.from + at))
               : 0;
}

static __device__ __forceinline__ void
store_pieces(const small_copy_args_t &a, const uint4 (&v)[PIECES],
             uint32_t rest)
{
    size_t at = ((size_t) blockIdx.x * PIECES * THREADS + threadIdx.x) * 16;

#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++, at += THREADS * 16) {
        if (at + 16 <= a.bytes) {
            *(uint4 *) (a.to + at) = v[i];
        }
    }
    at = a.bytes / 16 * 16 + threadIdx.x * 4;
    if (blockIdx.x == 0 && at < a.bytes) {
        *(uint32_t *) (a.to + at) = rest;
    }
}

/* FETCH: nobody on the device writes what is read, so that it is asked for
 * while what is in front still runs. */
template <bool FETCH>
static __global__ void __launch_bounds__(THREADS)
    small_copy_kernel(const __grid_constant__ small_copy_args_t a)
{
    uint4 v[PIECES];
    uint32_t rest;

    launch_next();
    if (!FETCH) {
        launch_wait();
    }
    load_pieces(a, v, rest);
    if (FETCH) {
        launch_wait();
    }
    store_pieces(a, v, rest);
}

static int
small_copy(const tr_cuda_stream_t *s, void (*kernel)(small_copy_args_t),
           void *to, const void *from, size_t bytes)
{
    small_copy_args_t a = { (uint8_t *) to, (const uint8_t *) from, bytes };
    size_t blocks = (bytes + PIECES * THREADS * 16 - 1)
                    / (PIECES * THREADS * 16);

    if (bytes % 4 != 0 || (uintptr_t) to % 16 != 0 || (uintptr_t) from % 16 != 0
        || blocks > INT32_MAX) {
        return TR_KERNEL_BADARG;
    }
    use_device();
    return bytes == 0
               ? TR_KERNEL_OK
               : launch_small(s, kernel, dim3((uint32_t) blocks), THREADS, a);
}

extern "C" int
tr_cuda_fetch(const tr_cuda_stream_t *s, void *to, const void *from,
              size_t bytes)
{
    return small_copy(s, small_copy_kernel<true>, to, from, bytes);
}

extern "C" int
tr_cuda_send(const tr_cuda_stream_t *s, void *to, const void *from,
             size_t bytes)
{
    return small_copy(s, small_copy_kernel<false>, to, from, bytes);
}
