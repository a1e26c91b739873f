/*
 * device_manager.h: the page manager on a device (kernels/kv_manager/manager.h).
 *
 * The host says which requests go on and for how long; it never waits for the
 * device, but reads a small report whenever a copy of it has arrived.
 *
 * Every launcher takes many requests at once: all layers and heads are planned
 * side by side.  Launchers are as device.h says: a stream, no allocation, no
 * waiting, can be captured into a graph; they must run in the order of one
 * stream.  Arrays are device memory and borrowed until the launch has run.
 */
#ifndef TR_CUDA_DEVICE_MANAGER_H
#define TR_CUDA_DEVICE_MANAGER_H

#include "kernels/cuda/launch_types.h"
#include "kernels/kv_manager/manager.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the memory for such a manager; 0: a size outside of what is said
 * above.  shape: the geometry of tables and pages as tr_kv_view gives it; its
 * arrays are not looked at, except the layouts, on the host. */
size_t tr_cuda_manager_memory(const tr_kv_view_t *shape,
                              const tr_kv_manager_size_t *size);

/* memory: so many bytes of the device, 256-byte aligned, owned by the caller;
 * all pages are free and all slots closed.  *out is complete on return. */
int tr_cuda_manager_create(const tr_cuda_stream_t *s, const tr_kv_view_t *shape,
                           const tr_kv_manager_size_t *size, void *memory,
                           tr_kv_manager_t *out);

/* Slots of one call are all different.  n: at most size.slots (max_prompts for
 * prompts); 0 is nothing.  TR_KERNEL_BADARG: n beyond that. */
int tr_cuda_manager_open(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                         const tr_kv_open_t *open, uint32_t n);
int tr_cuda_manager_prompt(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                           const tr_kv_begin_t *begin, uint32_t n);
int tr_cuda_manager_step(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                         const tr_kv_page_request_t *ask, uint32_t n);
/* Pages come back in the order of the slots given. */
int tr_cuda_manager_close(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                          const int32_t *slots, uint32_t n);

/* All pages are granted, in the order of the requests, before any old page
 * comes back; between the two launches the slot still has its old tables. */
int tr_cuda_manager_plan_prompts(const tr_cuda_stream_t *s,
                                 const tr_kv_manager_t *m,
                                 const tr_kv_complete_t *complete, uint32_t n);
int tr_cuda_manager_install_prompts(const tr_cuda_stream_t *s,
                                    const tr_kv_manager_t *m, uint32_t n);
/* One request that takes its layers some at a time (tr_kv_complete_t.layers): the
 * next of them get their pages, between an install and the next kv_compress. */
int tr_cuda_manager_fill_prompts(const tr_cuda_stream_t *s,
                                 const tr_kv_manager_t *m, uint32_t n);

/* The beginnings of compressed slots into others (kernels/kv_manager/manager_cut.h),
 * or pages for what comes from elsewhere: planned as prompts are; then
 * tr_cuda_kv_compress moves what m->compress says, and install puts the pages into
 * the tables and sees to scores and history, unless that is NULL.  No slot is
 * twice `to`, or both.  What cannot be is refused, alone; the longest slot that
 * is cut counts for kv_compress.  count of a restore is device memory. */
int tr_cuda_manager_plan_cuts(const tr_cuda_stream_t *s,
                              const tr_kv_manager_t *m, const tr_kv_cut_t *cuts,
                              uint32_t n);
int tr_cuda_manager_plan_restores(const tr_cuda_stream_t *s,
                                  const tr_kv_manager_t *m,
                                  const tr_kv_restore_t *restores, uint32_t n);
int tr_cuda_manager_install_cuts(const tr_cuda_stream_t *s,
                                 const tr_kv_manager_t *m,
                                 const tr_cuda_history_t *history, uint32_t n);

/* `from` of each record is closed, and `to` has what it lent (manager_cut.h).  No slot
 * is in two records.  What cannot be is refused, alone. */
int tr_cuda_manager_absorb(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                           const tr_kv_absorb_t *absorb, uint32_t n);

/* Copies pages, scores included, and from where `recent` was counted; also the
 * tokens of history, unless that is NULL.  No slot is both from and to, or twice
 * to.  What cannot be is refused, alone. */
int tr_cuda_manager_fork(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                         const tr_cuda_history_t *history,
                         const tr_kv_fork_t *fork, uint32_t n);

/* Blocks that are kept for others (kernels/kv_manager/manager_share.h), n records
 * of one kind, none of which depends on another; also the tokens of history,
 * unless that is NULL.  What cannot be is refused, alone. */
int tr_cuda_manager_share(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                          const tr_cuda_history_t *history,
                          tr_kv_share_kind_t kind, const tr_kv_share_t *share,
                          uint32_t n);

/* tally[i] for the slots [0, n), n at most size.slots.  Bytes moved: counts of
 * open slots. */
int tr_cuda_manager_tally(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                          uint32_t n);

/* Preemption (tr_kv_swap_out, tr_kv_swap_in); tr_cuda_kv_swap copies the pages and
 * rewrites the tables.  give: of the slot's n [1] pages, [first, last) come back to
 * the ring, which are in pages[] as the copy tiered them; nothing happens when n
 * is 0.  With last TR_KV_ALL_PAGES the slot is out: steps and prompts refuse it.
 * take: before it comes in, pages are granted
 * into pages[], as many as it has (at most max), and *n is their number, or 0
 * when there are not so many; the slot is in again. */
int tr_cuda_manager_give(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                         int32_t slot, const int32_t *pages, const uint32_t *n,
                         uint32_t first, uint32_t last);
int tr_cuda_manager_take(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                         int32_t slot, int32_t *pages, uint32_t *n,
                         uint32_t max);

#ifdef __cplusplus
}
#endif

#endif
