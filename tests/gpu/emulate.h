/*
 * emulate.h: runs the device code of kernels/cuda/lanes.cuh on the host.
 *
 * The lanes of a warp or block are fibers.  Between two meetings they run one
 * after the other in random order, so that what one lane reads of another
 * without a meeting is likely to be wrong; lanes that do not all come to a
 * meeting end the program.  Launchers are as those of store.h and cuda.h, with
 * all arrays on the host; `lanes` is how many a warp, and a block, has.
 */
#ifndef TR_TESTS_GPU_EMULATE_H
#define TR_TESTS_GPU_EMULATE_H

#include <cuda/store.h>

#ifdef __cplusplus
extern "C" {
#endif

int emulate_kv_append(const tr_kv_view_t *kv, uint32_t layer,
                      const tr_rows_t *rows, const tr_cuda_keys_t *in,
                      uint32_t *refused, uint32_t lanes);

/* Can a warp of so many lanes take `heads` on the way? */
bool emulate_heads(const tr_kv_view_t *kv, uint32_t lanes);
int emulate_kv_moves(const tr_kv_view_t *kv, const tr_rows_t *rows,
                     uint32_t *refused, uint32_t lanes);

int emulate_kv_compress(const tr_kv_view_t *kv, const tr_kv_compress_t *jobs,
                        uint32_t n, uint32_t max_len, uint32_t *refused,
                        uint32_t lanes);

int emulate_attention(const tr_kv_view_t *kv, uint32_t layer,
                      const tr_rows_t *rows, const tr_cuda_queries_t *queries,
                      const tr_cuda_generic_size_t *size, uint32_t lanes);

#ifdef __cplusplus
}
#endif

#endif
