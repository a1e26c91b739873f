/*
 * store.h: the launchers that write the KV cache of the CUDA backend: a step's
 * keys and values, the compression of prompts, preemption.  What they do is
 * said in kernels.h (kv_append, tr_kv_compress_t); bytes are those of the CPU
 * backend, but for the sign and payload of a 16-bit NaN.
 *
 * As all launchers (cuda.h) they check what they can see from the host, neither
 * allocate nor synchronise, and can be captured into a graph.  Arrays are
 * device memory, except the view's layouts.  What only the device can see is
 * checked there: what the contract excludes is left as it is, and counted in
 * `refused`, which the caller cleared and may look at when it likes.
 */
#ifndef TR_CUDA_STORE_H
#define TR_CUDA_STORE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/layers/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys before RoPE and values of a step's rows.  heads: NULL, or what k and v
 * are part of: then what tr_cuda_qkv (model.h) does comes first, where that can
 * be in the same launch; k and v are left with or without their bias. */
typedef struct {
    const void *k, *v; /* [n_rows][lists * head_dim] each */
    size_t ld;         /* elements */
    tr_dtype_t type;
    const float *angles; /* [n_rows][2][head_dim / 2], as rope_angles does */
    bool moved;          /* tr_cuda_kv_moves was called for this step */
    const tr_cuda_qkv_t *heads;
} tr_cuda_keys_t;

/* tr_kernels_t.kv_append.  Rows of sequences with seq_slot < 0 are left out.  A
 * head whose place or move is not allowed is skipped, alone; refused (NULL is
 * fine) counts such (row, head) pairs.  Only the numbers and the pages may be
 * written by the launch just before: rows, tables, counts, sequences and moves
 * are read before it has ended.
 * Bytes moved: k and v read; each token written, downgraded or moved is read
 * and written once. */
int tr_cuda_kv_append(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                      uint32_t layer, const tr_rows_t *rows,
                      const tr_cuda_keys_t *in, uint32_t *refused);

/* tr_kernels_t.kv_compress for n slots at once.  jobs: [n] on the device, and
 * so is what they point to; slot < 0: nothing to do.  max_len: no head of a job
 * has more tokens.  refused: [n]; 1 for a job that is not allowed,
 * of which nothing is written, else 0 (cleared here).  No page that a job fills
 * is a source of another.  work: tr_cuda_kv_compress_work() bytes, 256-byte
 * aligned, needs no clearing, for this n and max_len or larger ones. */
int tr_cuda_kv_compress(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                        const tr_kv_compress_t *jobs, uint32_t n,
                        uint32_t max_len, uint32_t *refused, void *work);
size_t tr_cuda_kv_compress_work(const tr_kv_view_t *kv, uint32_t n,
                                uint32_t max_len);

/* The moves of a step's rows in all layers at once, before the first layer's
 * kv_append: victims, and who leaves a window.  They depend on no token of the
 * step, and one launch hides what 32 would wait for.  Appends with `moved` then
 * store the tokens alone; what is refused here loses its move, not its token.
 * beside: the launch just before it is this step's tr_cuda_decode_plan, which it has
 * nothing to do with: both run at once. */
int tr_cuda_kv_moves(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                     const tr_rows_t *rows, bool beside, uint32_t *refused);

/* One slot's pages on their way to another pool.  They go in the order of
 * heads; of a head, its dense pages, its window's (of min(base, window) slots),
 * its lists' in order: as engine/kv_cache takes and gives them. */
typedef struct {
    int32_t slot;
    uint32_t dense_pages; /* of every head; from entry 0 of its row */
    uint32_t max_pages;   /* that taken and given have room for */
    const int32_t *taken; /* [pages] where they go, ids of the other pool */
    int32_t *given;       /* [pages] where they were */
    uint8_t *from, *to;   /* pools of page_bytes; host memory is pinned */
    int32_t mark, unmark; /* bits set in the entries, bits cleared in them
                            * before they are ids */
    const uint32_t *go;   /* NULL, or [1] on the device: 0: nothing happens */
} tr_cuda_swap_t;

/* Copies the pages of a slot and rewrites its rows of `tables`, which are the
 * view's; counts and sequence are those of the slot.  pages: on the device, how
 * many were copied: 0 when they are more than max_pages, and then nothing is.
 * work: tr_cuda_kv_swap_work() bytes. */
int tr_cuda_kv_swap(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                    int32_t *tables, const tr_cuda_swap_t *swap,
                    uint32_t *pages, void *work);
size_t tr_cuda_kv_swap_work(const tr_kv_view_t *kv);

#ifdef __cplusplus
}
#endif

#endif
