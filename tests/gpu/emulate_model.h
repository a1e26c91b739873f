/*
 * emulate_model.h: the kernels of model.h and sample.h on the host (emulate.h
 * says how).  `lanes`: of a block, or of a warp, then a power of two that has
 * room for a head (qkv).  Blocks come in random order.  Arguments are not
 * checked.
 */
#ifndef TR_TESTS_GPU_EMULATE_MODEL_H
#define TR_TESTS_GPU_EMULATE_MODEL_H

#include <cuda/model.h>
#include <cuda/sample.h>

#ifdef __cplusplus
extern "C" {
#endif

void emulate_embed(const tr_cuda_embed_t *a);
void emulate_rope_angles(const uint32_t *row_pos, uint32_t rows,
                         const float *inv_freq, uint32_t half, float *angles);
void emulate_norm(const tr_cuda_norm_t *a, uint32_t lanes);
void emulate_qkv(const tr_cuda_qkv_t *a, uint32_t lanes);
void emulate_silu_mul(const void *x, size_t ldx, uint32_t rows, uint32_t n,
                      tr_dtype_t type, void *out, size_t ldo);
void emulate_fill_random(void *x, size_t n, tr_dtype_t type, uint64_t seed,
                         uint64_t first, float sd);
void emulate_convert(const void *from, tr_dtype_t from_type, void *to,
                     tr_dtype_t to_type, size_t n);

size_t emulate_sample_work(uint32_t rows, uint32_t vocab);
void emulate_sample(const tr_cuda_sample_t *a, uint32_t lanes);

#ifdef __cplusplus
}
#endif

#endif
