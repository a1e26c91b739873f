/*
 * launch.cuh: how small kernels are launched.
 *
 * With programmatic dependent launch where the device has it: a kernel's blocks
 * are resident when the kernel before it ends.  Behind a matrix product,
 * plainly: cuBLASLt's kernels never let the next kernel begin early, and one
 * that waits for it begins 0.3 us later than a plain one.
 *
 * A kernel that may begin early calls launch_wait (ptx.cuh) in every thread
 * before it touches what others read or write, even if the thread has no work:
 * only then does its end mean that the kernels before it have ended as well.
 * Exceptions: the reduction of decode attention is told by a counter, and one
 * block of it waits for the end; a step's moves may run beside the plan in
 * front and wait at their end; what is fetched from the host is read before.
 */
#ifndef TR_CUDA_LAUNCH_CUH
#define TR_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/launch_types.h"
#include "kernels/cuda/ptx.cuh"

/* The CUDA runtime's last error as a launcher's result (runtime.cu). */
int tr_cuda_check(void);

/* early: it may begin before the kernel in front of it ends; shared: bytes of
 * shared memory asked for at the launch; cluster: blocks of one. */
template <typename... P, typename... A>
static int
launch_clusters(const tr_cuda_stream_t *s, bool early, uint32_t shared,
                uint32_t cluster, void (*kernel)(P...), dim3 blocks,
                uint32_t threads, A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2] = {};
    uint32_t n = 0;

    if (early && s->device->dependent) {
        attribute[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attribute[n].id = cudaLaunchAttributeClusterDimension;
        attribute[n].val.clusterDim.x = cluster;
        attribute[n].val.clusterDim.y = 1;
        attribute[n++].val.clusterDim.z = 1;
    }
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = (cudaStream_t) s->stream;
    config.attrs = attribute;
    config.numAttrs = n;
    cudaLaunchKernelEx(&config, kernel, (P) args...);
    return tr_cuda_check();
}

template <typename... P, typename... A>
static int
launch_with(const tr_cuda_stream_t *s, bool early, uint32_t shared,
            void (*kernel)(P...), dim3 blocks, uint32_t threads, A... args)
{
    return launch_clusters(s, early, shared, 1, kernel, blocks, threads,
                           args...);
}

template <typename... P, typename... A>
static int
launch_small(const tr_cuda_stream_t *s, void (*kernel)(P...), dim3 blocks,
             uint32_t threads, A... args)
{
    return launch_with(s, true, 0, kernel, blocks, threads, args...);
}

template <typename... P, typename... A>
static int
launch_plain(const tr_cuda_stream_t *s, void (*kernel)(P...), dim3 blocks,
             uint32_t threads, A... args)
{
    return launch_with(s, false, 0, kernel, blocks, threads, args...);
}

#endif
