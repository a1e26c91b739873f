/*
 * launch_types.h: what a launch on a device always has: the device's properties
 * and a stream; and the tokens' history, which several entries share.  The
 * interface itself is device.h.
 */
#ifndef TR_CUDA_LAUNCH_TYPES_H
#define TR_CUDA_LAUNCH_TYPES_H

#include "kernels/kv_view.h"
#include "kernels/operands.h"

#define TR_CUDA_FAILED (-2) /* the runtime said no; tr_cuda_reason */

/* A device, as far as launchers must know it.  Filled once by tr_cuda_open. */
typedef struct {
    int ordinal;
    uint32_t blocks; /* multiprocessors */
    uint32_t shared; /* bytes of shared memory that a block can have */
    uint32_t l2;     /* bytes of the L2 cache */
    uint32_t code;   /* 10 times the compute capability that the code which runs
                      * was compiled for; not above the device's */
    uint32_t pairs;  /* clusters of two blocks, each with a multiprocessor to
                      * itself, that run at once; 0: not known */
    bool dependent;  /* a kernel can begin before the one before it ends */
    bool trial; /* kernels may run that have not passed their tests on a GPU
                      * yet (cuda_trial); set by whoever opened the device */
    bool unfinished; /* benchmarks: leave out the end of decode attention */
    bool few_fp8;    /* tests: few rows of FP8 have their kernel however small
                      * the weights are (small_gemm.cu) */
} tr_device_props_t;

typedef struct {
    void *stream; /* cudaStream_t */
    const tr_device_props_t *device;
} tr_cuda_stream_t;

/* The tokens that stand at each position of a slot, as far as they were
 * computed or sampled: the device knows the token that a decode step begins
 * with before the host does. */
typedef struct {
    int32_t *token; /* [slots][len] */
    size_t len;
} tr_cuda_history_t;

#endif
