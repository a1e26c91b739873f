/*
 * device_kv.h: the KV cache, as part of the device's interface (device.h): a
 * step's keys and values, the compression of prompts, pages on their way to
 * another pool (preemption) or to files.
 *
 * What they do is said in kernels.h (kv_append) and kv_view.h (tr_kv_compress_t); bytes
 * are those of the CPU backend, but for the sign and payload of a 16-bit NaN.
 * What only the device can see is checked there: what the contract excludes is
 * left as it is, and counted in `refused`, which the caller cleared and may
 * look at when it likes.
 */
#ifndef TR_CUDA_DEVICE_KV_H
#define TR_CUDA_DEVICE_KV_H

#include "kernels/cuda/device_layers.h"
#include "kernels/cuda/launch_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys before RoPE and values of a step's rows.  heads: NULL, or what k and v
 * are part of: then what tr_cuda_qkv does comes first, where that can
 * be in the same launch; k and v are left with or without their bias, and keys
 * that `heads` rotates with or without that. */
typedef struct {
    const void *k, *v; /* [n_rows][kv_heads * head_dim] each */
    size_t ld;         /* elements */
    tr_dtype_t type;
    const float *angles; /* [n_rows][2][head_dim / 2], as rope_angles does;
                          * NULL: keys are stored as they are */
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
 * so is what they point to; slot < 0: nothing to do.  layers: those of each job,
 * at most (tr_kv_compress_t.layers; kv->layers where that is 0).  max_len: no head
 * of a job has more tokens.  refused: [n]; 1 for a job that is not allowed, of
 * which nothing is written in these layers, else 0 (cleared here, unless
 * tr_kv_compress_t.first_layer is not 0).  No page that a job fills
 * is a source of another.  work: tr_cuda_kv_compress_work() bytes, 256-byte
 * aligned, needs no clearing, for this n and max_len or larger ones. */
int tr_cuda_kv_compress(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                        const tr_kv_compress_t *jobs, uint32_t n,
                        uint32_t layers, uint32_t max_len, uint32_t *refused,
                        void *work);
size_t tr_cuda_kv_compress_work(const tr_kv_view_t *kv, uint32_t n,
                                uint32_t max_len);

/* Queries of a prompt's end, as tr_kv_compare_t has them. */
#define TR_CUDA_COMPARE_LAYERS 8u

typedef struct {
    int32_t slot;
    uint32_t first, n; /* at uncompressed positions [first, first + n) */
    uint32_t n_layers, layer[TR_CUDA_COMPARE_LAYERS];
    uint32_t heads;
    float scale;
    const void *q; /* [n_layers][rows][ld], of which n rows are queries */
    uint32_t rows;
    size_t ld;              /* elements */
    tr_dtype_t type;        /* of 16 bits */
    tr_kv_change_t *change; /* [n_layers][kv_heads][head_dim]; all 0 when no
                             * job of the slot was carried out */
} tr_cuda_kv_compare_t;

/* tr_kernels_t.kv_compare for the job of one slot, right behind
 * tr_cuda_kv_compress with the same arguments, before the old pages go back.
 * Sums of floats in any order.  Bytes moved: the old and the new places of the
 * slot's tokens in these layers, for each 8 queries of a KV head. */
int tr_cuda_kv_compare(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                       const tr_kv_compress_t *jobs, uint32_t n,
                       uint32_t max_len, uint32_t *refused,
                       const tr_cuda_kv_compare_t *q, void *work);

/* The moves of a step's rows in all layers at once, before the first layer's
 * kv_append: candidates, and who leaves a window.  They depend on no token of
 * the step, and one launch hides what 32 would wait for.  Appends with `moved`
 * then store the tokens alone; what is refused here loses its move, not its
 * token. beside: the launch just before it is this step's tr_cuda_decode_plan,
 * which it has nothing to do with: both run at once. */
int tr_cuda_kv_moves(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                     const tr_rows_t *rows, bool beside, uint32_t *refused);

/* One slot's pages on their way to another pool.  They go in the order of
 * heads; of a head, its uncompressed pages, its window's (of min(base, sinks +
 * window) slots), its tiers' in order: as the host's cache takes and gives
 * them.  Heads of layers that slide have uncompressed pages alone, unless the slot
 * has no tiers: those that there are between near_from and near_pages. */
typedef struct {
    int32_t slot;
    uint32_t uncompressed_pages; /* of every head; from entry 0 of its row */
    uint32_t near_pages, near_from;
    uint32_t max_pages;   /* of the slot */
    uint32_t first, last; /* of them only [first, last) move now */
    const int32_t
        *taken;     /* [last - first] where they go, ids of the other pool */
    int32_t *given; /* [last - first] where they were */
    uint8_t *from, *to; /* pools of page_bytes; host memory is pinned.  to NULL:
                           * tables are rewritten, no page is copied */
    int32_t mark, unmark; /* bits set in the entries, bits cleared in them
                            * before they are ids */
    const uint32_t *go;   /* NULL, or [1] on the device: 0: nothing happens */
} tr_cuda_swap_t;

/* Copies pages of a slot and rewrites its rows of `tables`, which are the view's;
 * counts and sequence are those of the slot.  pages: on the device, how many the
 * slot has: 0 when they are more than max_pages, and then nothing is copied.  In
 * pieces the order stays as long as nothing else happens to the slot.
 * work: tr_cuda_kv_swap_work() bytes. */
int tr_cuda_kv_swap(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                    int32_t *tables, const tr_cuda_swap_t *swap,
                    uint32_t *pages, void *work);
size_t tr_cuda_kv_swap_work(const tr_kv_view_t *kv);

/* Some pages, and where they lie one behind the other. */
typedef struct {
    const int32_t *table; /* of the manager's; page i is table[ref[i]] */
    const uint32_t *ref;  /* [n], or pinned host memory */
    uint32_t n;
    uint32_t
        pages; /* of the pool: an entry that is none of them is passed over */
    uint8_t *flat; /* n * page_bytes, 16-byte aligned */
    bool out;      /* pages into flat; else flat into pages */
} tr_cuda_kv_pages_t;

/* Pages on their way to and from files, beside steps: few blocks, all at once.
 * Bytes moved: n pages read, and written. */
int tr_cuda_kv_pages(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                     const tr_cuda_kv_pages_t *a);

#ifdef __cplusplus
}
#endif

#endif
