/*
 * tensor.cuh: what describes a matrix to the copy engine (CUtensorMap), which
 * the driver makes; nothing is linked with the driver.
 */
#ifndef TR_CUDA_TENSOR_CUH
#define TR_CUDA_TENSOR_CUH

#include <cuda.h>
#include <cuda_runtime.h>

typedef CUresult (*tensor_encode_t)(CUtensorMap *, CUtensorMapDataType,
                                    cuuint32_t, void *, const cuuint64_t *,
                                    const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion,
                                    CUtensorMapFloatOOBfill);

/* cuTensorMapEncodeTiled; NULL: the driver has none. */
static inline tensor_encode_t
tensor_encode(void)
{
    static tensor_encode_t known;
    cudaDriverEntryPointQueryResult found;
    void *encode = NULL;
    cudaError_t e;

    if (known != NULL) {
        return known;
    }
#if CUDART_VERSION >= 12050
    e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode,
                                         12000, cudaEnableDefault, &found);
#else
    e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode,
                                cudaEnableDefault, &found);
#endif
    known = e == cudaSuccess ? (tensor_encode_t) encode : NULL;
    return known;
}

#endif
