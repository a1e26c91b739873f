/*
 * prompt.h: attention of the chunks of prompts over dense pages.
 *
 * tr_kernels_t.attention for sequences of more than one row whose cache is all
 * dense (base 0): causal attention at the speed of the tensor cores, and, for
 * pages that carry scores, the exact sums of kernels.h in a second pass over
 * the keys.  tr_cuda_decode answers for sequences of one row, tr_cuda_attention
 * for everything else.
 *
 * As all launchers (cuda.h): takes a stream, checks what the host can see,
 * returns 0, TR_KERNEL_BADARG or TR_CUDA_FAILED, neither allocates nor
 * synchronises, and can be captured into a graph.
 */
#ifndef TR_CUDA_PROMPT_H
#define TR_CUDA_PROMPT_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What computes.  The device chooses; tests and benchmarks may. */
typedef enum {
    TR_PROMPT_BEST,
    TR_PROMPT_WARPS,       /* products of a warp, asynchronous copies: sm_80 */
    TR_PROMPT_BOXES,       /* products of a warp, copy engine: sm_90a, as the
                            * two below */
    TR_PROMPT_GROUPS,      /* products of four warps, copy engine */
    TR_PROMPT_ALTERNATING, /* the same; two groups take turns to multiply and
                            * to compute exponentials */
    TR_PROMPT_PATHS
} tr_prompt_path_t;

/* How much a workspace must hold. */
typedef struct {
    uint32_t lists, head_dim, heads;
    uint32_t max_rows, max_seqs;
    uint32_t max_len; /* positions of one sequence */
    tr_prompt_path_t path;
} tr_cuda_prompt_size_t;

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing:
 * about 2 * head_dim + 8 for each row and query head. */
size_t tr_cuda_prompt_work(const tr_cuda_prompt_size_t *size);

/* out, and the scores of scored sequences.  Head sizes 64 and 128, up to 8
 * query heads a list, a positive scale; anything else is TR_KERNEL_BADARG.
 * Sequences with seq_slot < 0, with one row, or with base > 0 are left out:
 * their outputs and scores are not touched.  Queries are rounded to FP16,
 * relative to a head's largest, weights to FP16; sums are in FP32.  A row's
 * bits do not depend on the chunk that it comes in.
 * Operations: 4 * head_dim for each query head and pair of a query and a key
 * that it sees, half as many again with scores. */
int tr_cuda_prompt(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                   uint32_t layer, const tr_rows_t *rows,
                   const tr_cuda_queries_t *queries,
                   const tr_cuda_prompt_size_t *size, void *work);

#ifdef __cplusplus
}
#endif

#endif
