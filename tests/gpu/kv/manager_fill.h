/*
 * manager_fill.h: random scores for all tokens of all slots (manager_fill.cu).
 */
#ifndef MANAGER_FILL_H
#define MANAGER_FILL_H

#include "kernels/cuda/device_manager.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Into the pages of m on the device; a cudaError_t. */
int manager_fill(const tr_kv_manager_t *m, void *stream);

#ifdef __cplusplus
}
#endif

#endif
