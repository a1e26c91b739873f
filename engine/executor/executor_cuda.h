/*
 * What the files of the executor on a GPU share: executor_cuda.c (opening,
 * memory, graphs), executor_cuda_batch.c (what a batch uploads) and
 * executor_cuda_step.c (launches and results).  Nobody else includes this but
 * tests and benchmarks.
 *
 * A step of pure decode is padded to one of a few batch sizes (a bucket) with
 * sequences of slot -1.  Steps of a bucket differ only in one block of memory,
 * the upload; their launches are a CUDA graph that was captured at start.  Other
 * steps launch their kernels one by one.
 *
 * Late rows are those of constrained requests whose mask depends on the token
 * that the batch before samples.  The launches of a step leave them out.  Once
 * the host has that token and has computed the masks, it uploads them in a
 * stream of their own, while the step computes, and samples the late rows by
 * launches behind it.  Steps without late rows have none of this.
 *
 * Two batches may be in flight.  Each has pinned memory for its upload and its
 * results, and an event.  The device has one upload and one set of results;
 * stream order keeps one batch from overwriting the other's.
 */
#ifndef TR_EXECUTOR_CUDA_H
#define TR_EXECUTOR_CUDA_H

#include "executor.h"
#include "engine/kv/kv_device.h"
#include "engine/model/cuda/model_cuda.h"

#define TR_CUDA_SLOTS 2
#define TR_CUDA_BUCKETS_MAX 64

/* Tokens that one sequence may be forbidden to sample (min_tokens): stop tokens,
 * the model's end tokens, the end of a chat's turn. */
#define TR_CUDA_BAR_MAX (TR_STOP_TOKENS_MAX + TR_EOS_MAX + 1)

/* Offsets in an upload of so many rows, sequences, samples and pooled rows. */
typedef struct {
    size_t token, row_slot, row_pos, row_chunk, row_long, seq_row, path, gather,
        sampling;
    size_t pool, pool_first;
    size_t size;
} tr_cuda_upload_t;

#define TR_CUDA_NOBODY UINT32_MAX

/* Where the result of a sampled row goes. */
typedef struct {
    uint32_t item;  /* TR_CUDA_NOBODY: it is padding */
    uint32_t index; /* of the token within the item */
    bool score;     /* else it samples */
} tr_cuda_want_t;

typedef struct {
    uint8_t *upload; /* pinned, as are the next five */
    tr_cuda_bias_t *bias;
    int32_t *bar;
    tr_cuda_sampled_t *sampled; /* [max_rows] */
    tr_cuda_top_t *top;         /* [max_rows][TR_CUDA_TOP_MAX] */
    float *pooled;              /* [max_seqs][width] */
    void *begun, *done;         /* events */
    tr_cuda_want_t *wants;      /* [max_rows] */
    tr_status_t *status;        /* [max_seqs] what submit says of an item */
    bool *stalled;              /* [max_seqs] */
    uint32_t *pools;            /* [max_seqs] whose vector: items */
    uint32_t n_wants, n_bias, n_bar, n_pools, n_pool_rows;
    uint32_t n_late;         /* rows that are still to be sampled */
    uint32_t n_rows, n_seqs; /* of the launches, with padding */
    bool top_wanted, graph, failed;
} tr_cuda_slot_t;

/* Masks of the late rows.  One buffer is enough: a batch is complete before the
 * masks of the next one are known. */
typedef struct {
    tr_cuda_stream_t stream;
    void *arrived;    /* event */
    uint8_t *pinned;  /* at, then masks */
    int32_t *at;      /* [max_rows] which mask a sampled row has, -1: none */
    uint32_t *mask;   /* [max_seqs][words] */
    uint32_t words;   /* of a mask */
    size_t mask_from; /* offset of masks */
} tr_cuda_masks_t;

typedef struct {
    uint64_t steps, graphs; /* completed; of these, replayed */
    double device_us;       /* from the first copy to the last, on the device */
} tr_cuda_times_t;

typedef struct {
    tr_executor_t base;
    const tr_device_t *cuda;
    tr_cuda_device_info_t info;
    size_t memory_size; /* bytes at `memory` */
    tr_device_props_t device;
    tr_cuda_stream_t stream;
    tr_model_cuda_t *model;
    uint32_t max_rows, max_seqs;

    uint8_t *memory; /* of the device: the next seven point into it */
    uint8_t *upload;
    tr_cuda_bias_t *bias;
    int32_t *bar;
    tr_cuda_sampled_t *sampled;
    tr_cuda_top_t *top;
    float *pooled; /* [max_seqs][width] */
    uint8_t *late; /* as masks.pinned */

    float *logits; /* pinned, [vocab]; NULL until an item wants some */
    tr_cuda_masks_t masks;
    tr_cuda_slot_t slots[TR_CUDA_SLOTS];
    uint32_t oldest, under_way;
    tr_kv_device_row_t *rows; /* [max_seqs] of the batch being submitted */
    uint32_t *bases;          /* the same, as tr_cuda_step_t.host_base */
    uint8_t *inputs;          /* pinned, swap_memory; NULL: none */
    tr_cuda_return_t
        *returns; /* of the batch being submitted: at most a chunk's
                                * rows each, and one more a sequence */
    uint32_t n_returns;

    uint32_t bucket[TR_CUDA_BUCKETS_MAX], n_buckets;
    void *graph[TR_CUDA_BUCKETS_MAX];
    uint32_t decode_paths; /* attention paths that a decode step may need */
    bool direct;           /* tests: launch kernels instead of graphs */
    bool gone;             /* the device is lost */
    tr_cuda_times_t times;
} tr_executor_cuda_t;

/* executor_cuda_batch.c */

/* An upload's arrays, here or on the device. */
typedef struct {
    int32_t *token, *row_slot;
    uint32_t *row_pos, *row_chunk, *seq_row;
    uint8_t *row_long, *path;
    uint32_t *gather;
    tr_cuda_sampling_t *sampling;
    uint32_t *pool, *pool_first;
} tr_cuda_arrays_t;

void tr_cuda_lay_upload(uint32_t rows, uint32_t seqs, uint32_t samples,
                        uint32_t pools, tr_cuda_upload_t *out);
tr_cuda_arrays_t tr_cuda_arrays(uint8_t *base, const tr_cuda_upload_t *l);

/* Does a batch keep to its bounds?  One that did not would overrun buffers. */
bool tr_cuda_batch_fits(const tr_executor_cuda_t *x, const tr_batch_t *batch);
/* The bucket of a batch of pure decode; -1: the batch is not that. */
int tr_cuda_bucket(const tr_executor_cuda_t *x, const tr_batch_t *batch);
/* Lays out the masks; returns how many bytes all of them take. */
size_t tr_cuda_lay_masks(tr_cuda_masks_t *m, uint32_t vocab, uint32_t rows,
                         uint32_t seqs);
/* Fills in the masks of a batch's late rows; returns how many bytes are to be
 * uploaded. */
size_t tr_cuda_gather_masks(tr_cuda_masks_t *m, const tr_cuda_slot_t *t,
                            const tr_batch_t *batch);
/* Rows whose logits are wanted. */
uint32_t tr_cuda_count_samples(const tr_batch_t *batch);
/* Rows that are part of a vector. */
uint32_t tr_cuda_count_pools(const tr_batch_t *batch);
/* Fills the slot's pinned memory and x->rows, with padding up to so many
 * sequences and samples; returns which paths of attention there are. */
uint32_t tr_cuda_flatten(tr_executor_cuda_t *x, tr_cuda_slot_t *t,
                         const tr_batch_t *batch, const tr_cuda_upload_t *l,
                         uint32_t n_seqs, uint32_t n_samples);

/* Fills x->returns: none where the batch is not of those. */
void tr_cuda_gather_returns(tr_executor_cuda_t *x, const tr_batch_t *batch);

/* executor_cuda_wait.c */

/* Until there is memory enough, or it has waited for as long as it may. */
tr_status_t tr_executor_cuda_await(tr_executor_cuda_t *x,
                                   const tr_config_t *config, tr_error_t *err);

/* executor_cuda_step.c */

tr_status_t tr_executor_cuda_submit(tr_executor_t *e, const tr_batch_t *batch);
void tr_executor_cuda_sample(tr_executor_t *e, const tr_batch_t *batch);
tr_status_t tr_executor_cuda_complete(tr_executor_t *e,
                                      const tr_batch_t *batch);

/* Runs a step of a bucket that is all padding, so that CUDA loads its kernels. */
tr_status_t tr_executor_cuda_idle(tr_executor_cuda_t *x, uint32_t bucket);

/* The launches of a decode step of this size, as they are captured. */
int tr_executor_cuda_launch(tr_executor_cuda_t *x, uint32_t bucket);

#endif
