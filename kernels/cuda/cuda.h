/*
 * cuda.h: the launchers of the CUDA backend, and what they promise.
 *
 * Decode attention over the differentiated KV cache (kernels.h says where a
 * sequence's tokens are, kv_layout.h what a page holds).  A step is
 *
 *   tr_cuda_decode_plan      once: shares the work of every layer out
 *   tr_cuda_decode, ..       once a layer, in their order: outputs, the scores
 *                            of the layer before, and victims of the one before
 *                            that
 *   tr_cuda_decode_score     once: what is left of the last layers
 *
 * All launchers take a stream, check what they can see from the host, return 0,
 * TR_KERNEL_BADARG or TR_CUDA_FAILED, and neither allocate nor synchronise;
 * they can be captured into a CUDA graph.  Arrays are device memory, except
 * the view's layouts, which are read on the host during the call.
 */
#ifndef TR_CUDA_H
#define TR_CUDA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TR_CUDA_FAILED (-2) /* the runtime said no; tr_cuda_reason */

/* A device, as far as launchers must know it.  Filled once by tr_cuda_open. */
typedef struct {
    int ordinal;
    uint32_t blocks; /* multiprocessors */
    uint32_t shared; /* bytes of shared memory that a block can have */
    uint32_t l2;     /* bytes of the L2 cache */
    uint32_t code;   /* 10 times the compute capability that the code which runs
                      * was compiled for; not above the device's */
    uint32_t pairs;  /* clusters of two blocks, each with a multiprocessor to
                      * itself, that run at once; 0: not known */
    bool dependent;  /* a kernel can begin before the one before it ends */
    bool unfinished; /* benchmarks: leave out the end of decode attention */
} tr_cuda_device_t;

typedef struct {
    void *stream; /* cudaStream_t */
    const tr_cuda_device_t *device;
} tr_cuda_stream_t;

/* Makes the calling thread's current device ready; 0 or TR_CUDA_FAILED. */
int tr_cuda_open(int ordinal, tr_cuda_device_t *out);

/* What the runtime said last, of this thread. */
const char *tr_cuda_reason(void);

/* How much a workspace must hold. */
typedef struct {
    uint32_t layers, lists, head_dim;
    uint32_t max_seqs;
    uint32_t heads;       /* query heads */
    uint64_t max_tokens;  /* that all sequences of a step together cache in one
                           * layer and list */
    uint32_t page_tokens; /* the fewest that a page of a layout in use holds */
} tr_cuda_decode_size_t;

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing. */
size_t tr_cuda_decode_work(const tr_cuda_device_t *d,
                           const tr_cuda_decode_size_t *size);

/* Reads counts and sequences of all layers and shares their pages out over the
 * multiprocessors, by bytes; sets the victims of lists that have none.
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

/* tr_kernels_t.attention for sequences of one row, as far as `out` goes. Head
 * sizes 64 and 128, up to 8 query heads a list, levels with one metadata group
 * by token (all bits), positions of one width; anything else is
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
 * The rest of tr_kernels_t.attention, scores and victims, comes a layer later:
 * layers are decoded in their order, each once behind a plan or behind
 * tr_cuda_decode_score, in one stream or in ones that wait (events); decode of
 * a layer adds to the scores of the one before what its tokens were given, and
 * sets the victims of the one before that.  Until then the pages, tables and
 * sequences of scored sequences stay as they are in that layer; kv, rows, size
 * and work are the same.  (In a kernel that streams pages, warps come to their
 * ends at different times, which this fills.)  Of layers but the first, tables
 * and what the plan left are read while a kernel in front that lets others
 * begin early (launch.cuh) still runs.
 *
 * Bytes moved: codes and metadata once; q and out; of scored tokens their
 * weights, 2 bytes for each query head of the list, into the workspace and, for
 * the layer before, out of it, with their positions and scores, which are
 * written. */
int tr_cuda_decode(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                   uint32_t layer, const tr_rows_t *rows,
                   const tr_cuda_queries_t *queries,
                   const tr_cuda_decode_size_t *size, void *work);

/* Behind tr_cuda_decode of the last layer, kv->layers - 1: its scores, its
 * victims, and those of the layer before.  Without scored sequences it does
 * nothing and may be left out. */
int tr_cuda_decode_score(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                         const tr_rows_t *rows,
                         const tr_cuda_decode_size_t *size, void *work);

/* ---- everything else: attention_generic.cu ---- */

/* How much the generic kernel's workspace must hold. */
typedef struct {
    uint32_t lists, head_dim, heads;
    uint32_t max_rows, max_seqs;
    uint32_t max_len; /* positions of one sequence */
} tr_cuda_generic_size_t;

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing. */
size_t tr_cuda_attention_work(const tr_cuda_generic_size_t *size);

/* tr_kernels_t.attention for all that it allows: any number of rows of a
 * sequence, all levels and groupings, up to TR_GROUP_MAX query heads a list,
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
