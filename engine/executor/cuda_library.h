/*
 * The CUDA backend's library (kernels/cuda/device.h), loaded when `backend cuda`
 * asks for it: the engine itself needs neither CUDA nor a GPU.
 */
#ifndef TR_CUDA_LIBRARY_H
#define TR_CUDA_LIBRARY_H

#include "kernels/cuda/device.h"
#include <tokenring/error.h>

#define TR_CUDA_LIBRARY_NAME "libtokenring_cuda.so"

/* path: the file; "" looks beside the running program, in its ../lib/tokenring
 * and ../lib, and where the system looks.  *out lives until the process ends:
 * a library is loaded once and never unloaded.  TR_ERR_NOT_FOUND,
 * TR_ERR_VERSION; TR_ERR_FORMAT: it is something else. */
tr_status_t tr_cuda_library_open(const char *path, const tr_device_t **out,
                                 tr_error_t *err);

/* Is device `ordinal` one that we can use?  *out as far as it is known. */
tr_status_t tr_cuda_library_check(const tr_device_t *cuda, uint32_t ordinal,
                                  tr_cuda_device_info_t *out, tr_error_t *err);

#endif
