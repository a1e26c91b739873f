/*
 * api.h: the CUDA backend as one table of functions.
 *
 * The engine does not link CUDA: `backend cuda` loads libtokenring_cuda.so and
 * takes this table from it, so that one engine serves machines with and without
 * a GPU.  Tests load another library with the same table, in which everything
 * runs on the CPU, in the order of its stream but later, as on a device
 * (tests/soft).
 *
 * The entries are the functions of the headers below, under their names without
 * the prefix tr_cuda_.
 */
#ifndef TR_CUDA_API_H
#define TR_CUDA_API_H

#include "cuda.h"
#include "kernels/cuda/gemm/small_gemm.h"
#include "kernels/cuda/kv/manager.h"
#include "kernels/cuda/gemm/matmul.h"
#include "kernels/cuda/layers/model.h"
#include "kernels/cuda/attention/prompt.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/sampling/sample.h"
#include "kernels/cuda/kv/store.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TR_CUDA_API_VERSION 7u

/* name, of every function in the table */
/* clang-format off */
#define TR_CUDA_FUNCTIONS(F)                                               \
    F(open) F(reason) F(device_info) F(alive)                              \
    F(alloc) F(release) F(pin) F(unpin)                                    \
    F(stream_open) F(stream_close) F(stream_wait) F(copy) F(fill)          \
    F(fetch) F(send)                                                       \
    F(event_open) F(event_close) F(event_record) F(event_passed)           \
    F(event_wait) F(event_time) F(event_follow)                            \
    F(graph_begin) F(graph_end) F(graph_launch) F(graph_close)             \
    F(matmul_open) F(matmul_close) F(matmul_choose) F(matmul)              \
    F(small_gemm) F(small_gemm_fits) F(small_gemm_parts)                   \
    F(embed) F(rope_angles) F(norm) F(silu_mul) F(fill_random)             \
    F(convert) F(select) F(sample) F(sample_work)                          \
    F(decode_work) F(decode_plan) F(decode) F(decode_score)                \
    F(attention_work) F(attention)                                         \
    F(prompt_work) F(prompt)                                               \
    F(kv_append) F(kv_moves) F(kv_compress) F(kv_compress_work)            \
    F(kv_swap) F(kv_swap_work)                                             \
    F(manager_memory) F(manager_create) F(manager_open) F(manager_prompt)  \
    F(manager_step) F(manager_close) F(manager_plan_prompts)               \
    F(manager_install_prompts) F(manager_give) F(manager_take)             \
    F(manager_fork) F(manager_tally)
/* clang-format on */

typedef struct {
    uint32_t version; /* TR_CUDA_API_VERSION */
    uint32_t size;    /* of this struct */
#define TR_CUDA_FUNCTION(name) __typeof__(tr_cuda_##name) *name;
    TR_CUDA_FUNCTIONS(TR_CUDA_FUNCTION)
#undef TR_CUDA_FUNCTION
} tr_cuda_api_t;

/* What the library exports. */
#define TR_CUDA_API_SYMBOL "tr_cuda_api"
const tr_cuda_api_t *tr_cuda_api(void);

#ifdef __cplusplus
}
#endif

#endif
