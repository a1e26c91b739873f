/*
 * runtime.cuh: what runtime.cu and the rest of the library share.
 */
#ifndef TR_CUDA_RUNTIME_CUH
#define TR_CUDA_RUNTIME_CUH

#include "kernels/cuda/device.h"

/* Keeps what tr_cuda_reason says.  Returns TR_CUDA_FAILED. */
int tr_cuda_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A thread's device is 0 until it says otherwise: whoever comes from another
 * thread than the one that opened means the same device. */
void use_device(void);

/* When a device is opened: gives the kernels of decode attention their shared
 * memory (decode.cu); fills d->pairs (small_gemm.cu). */
void decode_open(const tr_device_props_t *d);
void small_gemm_open(tr_device_props_t *d);
void fp8_gemm_open(const tr_device_props_t *d);

#endif
