/*
 * device_attention.h: attention over the KV cache, as part of the device's
 * interface (device.h): of sequences that decode, of prompts, and a fallback for
 * everything else.
 */
#ifndef TR_CUDA_DEVICE_ATTENTION_H
#define TR_CUDA_DEVICE_ATTENTION_H

#include "kernels/cuda/launch_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- decode --------------------------------------------------------------
 *
 * Over the differentiated KV cache (kv_view.h says where a sequence's tokens
 * are, kv_layout.h what a page holds).  A step is
 *
 *   tr_cuda_decode_plan      once: shares the work of every layer out
 *   tr_cuda_decode, ..       once a layer, in their order: outputs, the scores
 *                            of the layer before, and candidates of the one
 *                            before that
 *   tr_cuda_decode_score     once: what is left of the last layers
 */

/* Levels that it has: by token, values of no more bits than keys; with two or
 * four groups those of 4 bits, and of 8 and 4. */
static inline bool
tr_cuda_decode_level(const tr_kv_level_t *l)
{
    const uint32_t key = l->key_bits, value = l->value_bits;
    const uint32_t groups = l->key_groups;

    if (key == 16 || value == 16) {
        return key == value;
    }
    return !l->by_channel && value <= key && groups == l->value_groups
           && (groups == 1
               || ((groups == 2 || groups == 4)
                   && (key == 4 || (key == 8 && value == 4))));
}

/* How much a workspace must hold. */
typedef struct {
    uint32_t layers, kv_heads, head_dim;
    uint32_t max_seqs;
    uint32_t heads;       /* query heads */
    uint64_t max_tokens;  /* that all sequences of a step together cache in one
                           * layer and KV head */
    uint32_t page_tokens; /* the fewest that a page of a layout in use holds */
} tr_cuda_decode_size_t;

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing. */
size_t tr_cuda_decode_work(const tr_device_props_t *d,
                           const tr_cuda_decode_size_t *size);

/* Reads counts and sequences of all layers and shares their pages out over the
 * multiprocessors, by bytes; sets the candidates of tiers that have none.
 * Sequences with more than one row, or with seq_slot < 0, are left out: their
 * outputs and scores are not touched.  What is launched behind it with leave to
 * begin early (launch.cuh) may do so at once; when it begins, all in front of
 * the plan has ended. */
int tr_cuda_decode_plan(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                        const tr_rows_t *rows,
                        const tr_cuda_decode_size_t *size, void *work);

/* Queries and results of a step's rows, [n_rows][heads * head_dim]. */
typedef struct {
    const void *q; /* rotated */
    void *out;
    size_t ldq, ldo; /* elements; multiples of 8 */
    tr_dtype_t q_type, out_type;
    uint32_t heads;
    float scale;
} tr_cuda_queries_t;

/* tr_kernels_t.attention for sequences of one row, as far as `out` goes, with
 * sinks, and with a reach where uncompressed pages without scores are the only
 * layout.  Head sizes 64 and 128, up to 8 query heads a KV head, and where that
 * is the only layout, also 256, and up to 16 with 64 and 128; levels with one
 * metadata group by token (all bits), positions of one width; anything else is
 * TR_KERNEL_BADARG.  All pages are read (read_pages is not looked at).  Queries
 * are rounded to 15 bits, relative to a head's largest; their products with
 * codes are exact, all other sums FP32.  q and out are 16-byte aligned.  The
 * same step gives the same bits. Unlike kernels.h promises, another batch may
 * not: the plan cuts a layer into ranges of equal bytes, and where a head is
 * cut depends on the other sequences.  Cuts at token counts of its own would
 * have to be about 128 tokens apart to fill all multiprocessors evenly, which
 * is ten times as many parts to store and reduce (33 MB a layer of 64 x 4096
 * tokens, whose pages of K4V2 have 243).
 *
 * The rest of tr_kernels_t.attention, scores and candidates, comes a layer
 * later: layers are decoded in their order, each once behind a plan or behind
 * tr_cuda_decode_score, in one stream or in ones that wait (events); decode of
 * a layer adds to the scores of the one before what its tokens were given, and
 * sets the candidates of the one before that.  Until then the pages, tables and
 * sequences of scored sequences stay as they are in that layer; kv, rows, size
 * and work are the same.  (In a kernel that streams pages, warps come to their
 * ends at different times, which this fills.)  Of layers but the first, tables
 * and what the plan left are read while a kernel in front that lets others
 * begin early (launch.cuh) still runs.
 *
 * Bytes moved: codes and metadata once; q and out; of scored tokens their
 * weights, 2 bytes for each query head of the KV head, into the workspace and,
 * for the layer before, out of it, with their positions and scores, which are
 * written. */
int tr_cuda_decode(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                   uint32_t layer, const tr_rows_t *rows,
                   const tr_cuda_queries_t *queries,
                   const tr_cuda_decode_size_t *size, void *work);

/* Behind tr_cuda_decode of the last layer, kv->layers - 1: its scores, its
 * candidates, and those of the layer before.  Without scored sequences it does
 * nothing and may be left out. */
int tr_cuda_decode_score(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                         const tr_rows_t *rows,
                         const tr_cuda_decode_size_t *size, void *work);

/* ---- prompts -------------------------------------------------------------
 *
 * tr_kernels_t.attention for sequences of more than one row whose cache is all
 * uncompressed (base 0): causal attention at the speed of the tensor cores,
 * and, for pages that carry scores, the exact sums of kv_view.h in a second
 * pass over the keys.
 */

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
    uint32_t kv_heads, head_dim, heads;
    uint32_t max_rows, max_seqs;
    uint32_t max_len; /* positions of one sequence */
    tr_prompt_path_t path;
    /* tr_cuda_prompt_behind: rows of scratch (tr_cuda_context_rows), at least
     * those of one KV head of the longest sequence; 0: it is not called */
    uint32_t context;
} tr_cuda_prompt_size_t;

/* How many rows of scratch a KV head takes that may hold so many compressed
 * tokens; a row is a key and a value of 16 bits. */
#define TR_CUDA_CONTEXT_TILE 128u

TR_HD uint32_t
tr_cuda_context_rows(uint32_t tokens)
{
    return (tokens + TR_CUDA_CONTEXT_TILE - 1) / TR_CUDA_CONTEXT_TILE
           * TR_CUDA_CONTEXT_TILE;
}

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing:
 * about 2 * head_dim + 8 for each row and query head, and the scratch. */
size_t tr_cuda_prompt_work(const tr_cuda_prompt_size_t *size);

/* out, and the scores of scored sequences; none of layers with a reach.  Head
 * sizes 64 and 128, up to 8 query heads a KV head, and where uncompressed pages
 * without scores are the only layout up to 16, and on 9.0 head size 256 with up to
 * 8; a positive scale; anything else is TR_KERNEL_BADARG.
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

/* The same for sequences of more than one row behind compressed tokens (base >
 * 0), at positions from base on: later turns.  What their KV heads hold in
 * tiers and window is unpacked into the scratch, rounded to FP16, and comes in
 * front of the uncompressed tokens; scored tokens get their scores wherever
 * they stand.  All levels; no layer has a reach, any may have sinks.
 *
 * base: host, [n_seqs], at least the sequence's; 0: the sequence is left out, as
 * are those with seq_slot < 0, with one row, or with base 0.  What the scratch
 * does not hold at once is computed for some sequences after others, and of one
 * that it does not hold, for some KV heads after others.
 * Bytes moved, beside tr_cuda_prompt's: for each KV head what it holds, once,
 * and 8 * head_dim for each of its tokens. */
int tr_cuda_prompt_behind(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                          uint32_t layer, const tr_rows_t *rows,
                          const uint32_t *base,
                          const tr_cuda_queries_t *queries,
                          const tr_cuda_prompt_size_t *size, void *work);

/* ---- everything else -----------------------------------------------------
 *
 * A correct but unoptimised fallback kernel (attention_generic.cu).
 */

/* How much the generic kernel's workspace must hold. */
typedef struct {
    uint32_t kv_heads, head_dim, heads;
    uint32_t max_rows, max_seqs;
    uint32_t max_len; /* positions of one sequence */
} tr_cuda_generic_size_t;

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing. */
size_t tr_cuda_attention_work(const tr_cuda_generic_size_t *size);

/* tr_kernels_t.attention for all that it allows: any number of rows of a
 * sequence, all levels and groupings, up to TR_GROUP_MAX query heads a KV head,
 * Quest's choice of pages.  Simple and slow; FP32 throughout.  Sequences with
 * seq_slot < 0, or with rows where the contract has none, are left out. */
int tr_cuda_attention(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                      uint32_t layer, const tr_rows_t *rows,
                      const tr_cuda_queries_t *queries,
                      const tr_cuda_generic_size_t *size, void *work);

#ifdef __cplusplus
}
#endif

#endif
