/*
 * matmul_library.cuh: cuBLASLt, for matmul.cu.
 *
 * It is loaded when the first product is opened: it has half a gigabyte, which
 * a program that only asks for the GPU's name does not need.
 */
#ifndef TR_CUDA_MATMUL_LIBRARY_CUH
#define TR_CUDA_MATMUL_LIBRARY_CUH

#include "kernels/cuda/runtime/runtime.cuh"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

/* clang-format off */
#define LT_FUNCTIONS(F)                                                  \
    F(Create) F(Destroy) F(GetVersion) F(GetStatusString) F(Matmul)      \
    F(MatmulDescCreate) F(MatmulDescDestroy) F(MatmulDescSetAttribute)   \
    F(MatrixLayoutInit_internal) F(MatmulPreferenceCreate)               \
    F(MatmulPreferenceDestroy) F(MatmulPreferenceSetAttribute)           \
    F(MatmulAlgoGetHeuristic) F(MatmulAlgoConfigGetAttribute)
/* clang-format on */

static struct {
    void *handle;
#define LT_MEMBER(name) decltype(&cublasLt##name) name;
    LT_FUNCTIONS(LT_MEMBER)
#undef LT_MEMBER
} lt;

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LT_NAME "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

/* Where the system looks, then where the toolkit puts it. */
static void *
lt_find(void)
{
    static const char *const places[] = {
        LT_NAME,
        "/usr/local/cuda/lib64/" LT_NAME,
        "/usr/local/cuda/lib/" LT_NAME,
        "/usr/local/cuda-" TEXT(CUBLAS_VER_MAJOR) "/lib64/" LT_NAME,
    };
    void *handle = NULL;

    for (uint32_t i = 0; i < 4 && handle == NULL; i++) {
        handle = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    }
    return handle;
}

static int
lt_load(void)
{
    void *handle;

    if (lt.handle != NULL) {
        return TR_KERNEL_OK;
    }
    handle = lt_find();
    if (handle == NULL) {
        return tr_cuda_say("%s was not found: install cuBLAS of CUDA %d, or "
                           "let LD_LIBRARY_PATH name its folder",
                           LT_NAME, CUBLAS_VER_MAJOR);
    }
#define LT_LOAD(name)                                                     \
    *(void **) &lt.name = dlsym(handle, "cublasLt" #name);                \
    if (lt.name == NULL) {                                                \
        dlclose(handle);                                                  \
        return tr_cuda_say("%s has no function cublasLt" #name, LT_NAME); \
    }
    LT_FUNCTIONS(LT_LOAD)
#undef LT_LOAD
    lt.handle = handle;
    return TR_KERNEL_OK;
}

static int
lt_checked(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) {
        return TR_KERNEL_OK;
    }
    cudaGetLastError();
    return tr_cuda_say("cuBLASLt: %s: %s", what, lt.GetStatusString(status));
}

#endif
