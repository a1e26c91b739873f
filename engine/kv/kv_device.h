/*
 * The KV cache of a device: kv_cache.h's functions where pages, tables and
 * scores live on a GPU and its manager (kernels/kv_manager/manager.h) decides.
 *
 * What the step loop asks (open, reserve, compress, swap, close) becomes a list
 * of commands, in order; the executor launches it before its next batch.  What
 * the device knows comes back with the batch's results: pages that are free,
 * what every slot holds, who stalled.  Until then the host goes by what it
 * knows for certain:
 *
 *   free pages     at least: the last report, less all that was asked since and
 *                  could be taken, plus all that surely came back
 *   reserve        uncompressed pages: exact, against that bound.  A compressed
 *                  slot's next token: granted, unless the last report says
 *                  that it stalled and nothing was given back since; the device
 *                  has the last word, and the row's status is TR_AGAIN when
 *                  there was none
 *   compress       granted when the bound has room for the largest copy; else
 *                  it is tried: TR_AGAIN, and the slot waits for what became of
 *                  it.  When it was done, the next call says TR_OK; when not,
 *                  TR_AGAIN until something was given back
 *   swap           out: when host memory has room for the most that the slot
 *                  can hold; in: exact
 *   find, adopt, keep  at once: blocks have numbers (kernels/kv_manager/
 *                  manager_share.h), and which pages they have is known there.
 *                  Blocks that nobody holds count as free: who asks for pages
 *                  that the bound lacks has some go first
 *   usage, totals  as of the last report; tr_kv_usage_in waits for the device
 *
 * tr_kv_settled (kv_cache.h) says that nothing is under way: only then TR_AGAIN
 * means that there really is no room.
 *
 * Slots are closed and opened again while batches with rows of them are under
 * way; a later turn (tr_kv_prompt on a slot that is compressed) only when none
 * of its rows is.
 */
#ifndef TR_KV_DEVICE_H
#define TR_KV_DEVICE_H

#include "kernels/cuda/device.h"

#include "kv_cache.h"

typedef struct {
    const tr_device_t *cuda;        /* borrowed, as is all here */
    const tr_cuda_stream_t *stream; /* of the batches */
    uint32_t max_seqs;              /* of a batch */
    uint32_t max_prompts;           /* compressed by one launch */
    tr_cuda_history_t history;      /* tr_kv_fork copies it, too; token NULL:
                                     * there is none */
    /* of config.guard, which is without kernels: the matrix of a step's
     * queries, which begin its rows, and sinks of softmax; type of 16 bits */
    size_t guard_ld;
    tr_dtype_t guard_type;
    const float *const *guard_sinks; /* on the device, or NULL */
} tr_kv_device_t;

/* Batches under way at most: begun, and not settled. */
#define TR_KV_IN_FLIGHT 2u

/* config.kernels and config.stream are not looked at; config.memory: bytes of
 * device memory for all that is allocated here, the pool and the manager's
 * arrays.  swap_memory is pinned host memory.  Waits for the stream. */
tr_status_t tr_kv_device_create(const tr_kv_config_t *config,
                                const tr_kv_device_t *device,
                                tr_kv_cache_t **out, tr_error_t *err);

/* What kernels need; constant. */
const tr_kv_manager_t *tr_kv_device_manager(const tr_kv_cache_t *kv);

/* What positions of a slot are compressed: those below; after the commands
 * given so far, if nothing stalls. */
uint32_t tr_kv_device_base(const tr_kv_cache_t *kv, int32_t slot);

/* One sequence of a batch: rows at [pos, pos + n) of a slot; -1: padding.  A
 * slot is in a batch once.  A row that is not where its slot is, because an
 * earlier one stalled, stalls. */
typedef struct {
    int32_t slot;
    uint32_t pos, n;
} tr_kv_device_row_t;

/* Before a batch: launches the commands, and uploads what the batch's sequences
 * ask of the manager.  n = 0: commands alone.  0, or TR_CUDA_FAILED: nothing is
 * under way, and never will be again. */
int tr_kv_device_begin(tr_kv_cache_t *kv, const tr_kv_device_row_t *rows,
                       uint32_t n);
/* In the batch, before all that reads seq_slot: the manager's step for n
 * sequences, at least those of tr_kv_device_begin; the others are padding.  May
 * be captured: its arguments depend on n alone. */
int tr_kv_device_step(tr_kv_cache_t *kv, uint32_t n);
/* Rows [row, row + n) of the coming batch stand at positions from pos on: which
 * of them the step must keep for the guard.  false: none. */
bool tr_kv_device_keep(tr_kv_cache_t *kv, int32_t slot, uint32_t pos,
                       uint32_t row, uint32_t n, tr_kv_guard_keep_t *out);
/* Behind the batch: sends the report on its way. */
int tr_kv_device_end(tr_kv_cache_t *kv);
/* The oldest batch's report has arrived (the caller waited for its event);
 * stalled: [n], the sequences of tr_kv_device_begin.  TR_ERR_INTERNAL: the
 * manager reports faults, the cache cannot be trusted. */
tr_status_t tr_kv_device_settle(tr_kv_cache_t *kv, bool *stalled);

#endif
