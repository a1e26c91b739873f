/*
 * model_reference.h: what the kernels of device.h beside attention and the
 * cache compute, as plain C over host memory.
 *
 * The same arguments, but for the stream and, of sampling, the workspace, which
 * is not looked at; the same checks and results.  Tests compare the kernels
 * with these, and tests/soft plays the device with them.  Sums are FP32 from
 * left to right, those of sampling double; nothing is fast.
 */
#ifndef TR_TESTS_GPU_MODEL_REFERENCE_H
#define TR_TESTS_GPU_MODEL_REFERENCE_H

#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

int tr_ref_embed(const tr_cuda_embed_t *a);
int tr_ref_rope_angles(const tr_cuda_angles_t *a);
int tr_ref_norm(const tr_cuda_norm_t *a);
int tr_ref_pool(const tr_cuda_pool_t *a);
int tr_ref_qkv(const tr_cuda_qkv_t *a);
int tr_ref_row_norm(const tr_cuda_qkv_t *a);
float tr_ref_act(tr_act_t act, float gate, float up);
int tr_ref_act_mul(tr_act_t act, const void *x, size_t ldx, uint32_t rows,
                   uint32_t n, tr_dtype_t type, void *out, size_t ldo);
/* a's pointers are host memory. */
int tr_ref_keep_rows(const tr_cuda_keep_rows_t *a);
int tr_ref_scale_cap(float *x, size_t ldx, uint32_t rows, uint32_t n,
                     float scale, float cap);
/* A row's squares are one part.  _sums: x w^T is known, [rows][ld]. */
int tr_ref_small_gemm(const tr_cuda_small_gemm_t *a);
int tr_ref_unpack(const tr_cuda_unpack_t *a);
int tr_ref_fp8_round(const tr_cuda_fp8_round_t *a);
int tr_ref_fp8_gemm(const tr_cuda_fp8_gemm_t *a); /* sums are double */
int tr_ref_small_gemm_sums(const tr_cuda_small_gemm_t *a, const float *sums,
                           size_t ld);
int tr_ref_select(const int32_t *slot, const uint8_t *kind, uint32_t n,
                  uint8_t wanted, int32_t *out);
int tr_ref_fill_random(void *x, size_t n, tr_dtype_t type, uint64_t seed,
                       uint64_t first, float sd);
int tr_ref_convert(const void *from, tr_dtype_t from_type, void *to,
                   tr_dtype_t to_type, size_t n);

/* Takes memory of its own: TR_CUDA_FAILED when there is none. */
int tr_ref_sample(const tr_cuda_sample_t *a);

#ifdef __cplusplus
}
#endif

#endif
