/*
 * prompt_context.cuh: what of a sequence was compressed, unpacked for the rows
 * of a prompt that stand behind it.
 *
 * Prompt attention reads 16-bit tiles.  Before it runs, one kernel unpacks what
 * a KV head holds in tiers and window into scratch memory, in the order tiers 0,
 * 1, .., window: FP16 numbers as the tensor cores want them in shared memory
 * (wgmma.cuh), so that a tile is fetched as one run of bytes.  Each layer uses
 * the same scratch.  A (sequence, KV head) has room for what its `base` can be,
 * keys and then values; behind its tokens, up to a multiple of
 * TR_CUDA_CONTEXT_TILE, come zeros that nobody sees.
 *
 * Numbers are those that the codes stand for, rounded to FP16 as the tokens of
 * uncompressed pages are.
 */
#ifndef TR_CUDA_PROMPT_CONTEXT_CUH
#define TR_CUDA_PROMPT_CONTEXT_CUH

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"

#define CONTEXT_NONE (~0u)

/* One (sequence, KV head). */
typedef struct {
    uint32_t tokens, padded;
    uint8_t *key, *value;
} prompt_context_t;

/* Place of row r, 16-byte chunk c of its dimensions, `columns` times 64. */
static __host__ __device__ __forceinline__ uint32_t
atom_place(uint32_t columns, uint32_t r, uint32_t c)
{
    return (r / 8 * columns + c / 8) * 1024 + r % 8 * 128 + ((c ^ r) & 7) * 16;
}

/* at: rows in front of the sequence's; head: the how many-th of those that have
 * scratch now. */
static __device__ __forceinline__ prompt_context_t
context_of(const tr_kv_view_t *kv, int32_t slot, uint32_t layer,
           uint32_t kv_head, uint8_t *memory, uint32_t at, uint32_t head)
{
    const tr_kv_seq_t *seq = &kv->seq[slot];
    const uint32_t *count = kv->count
                            + tr_kv_head(kv, slot, layer, kv_head)
                                  * TR_KV_TIERS_MAX;
    uint32_t rows = tr_cuda_context_rows(seq->base);
    prompt_context_t c = { tr_kv_windowed(seq), 0, NULL, NULL };

    for (uint32_t l = 0; l < seq->n_tiers; l++) {
        c.tokens += count[l];
    }
    c.padded = tr_cuda_context_rows(c.tokens);
    c.key = memory + ((size_t) at + (size_t) head * rows) * (4 * kv->head_dim);
    c.value = c.key + (size_t) rows * (2 * kv->head_dim);
    return c;
}

/* What is unpacked by one launch. */
typedef struct {
    const tr_kv_view_t *kv;
    const tr_rows_t *rows;
    uint32_t layer, first_head, n_heads; /* KV heads */
    uint32_t most;                       /* tokens of a sequence */
    const uint32_t *at; /* [n_seqs] rows in front, or CONTEXT_NONE */
    uint8_t *memory;
} context_job_t;

/* prompt_context.cu */
int prompt_unpack(cudaStream_t stream, const context_job_t *job);

#endif
