/*
 * The table that the engine loads (api.h).  Positions are those of
 * TR_CUDA_FUNCTIONS.  Plain C as well: the software device of the tests is
 * compiled with this very file.
 */
#include "api.h"

__attribute__((visibility("default"))) const tr_cuda_api_t *
tr_cuda_api(void)
{
#define TR_CUDA_FUNCTION(name) tr_cuda_##name,
    static const tr_cuda_api_t api = { TR_CUDA_API_VERSION,
                                       (uint32_t) sizeof(tr_cuda_api_t),
                                       TR_CUDA_FUNCTIONS(TR_CUDA_FUNCTION) };
#undef TR_CUDA_FUNCTION

    return &api;
}
