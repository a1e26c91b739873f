/*
 * runtime.cuh: errors, for the library's own files (runtime.cu).
 */
#ifndef TR_CUDA_RUNTIME_CUH
#define TR_CUDA_RUNTIME_CUH

#include "kernels/cuda/device.h"

/* Keeps what tr_cuda_reason says.  Returns TR_CUDA_FAILED. */
int tr_cuda_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A thread's device is 0 until it says otherwise: whoever comes from another
 * thread than the one that opened means the same device. */
void use_device(void);

/* Fills d->pairs (small_gemm.cu). */
void small_gemm_open(tr_device_props_t *d);

#endif
