/*
 * host.h: the page manager on the host: its programs on the threads of a stream,
 * done on return.  What each does is said in manager.h.
 *
 * Memory is the caller's: tr_kv_host_memory bytes that are zero, 256-byte
 * aligned, of which only what is used is touched (but for the ring of pages).
 */
#ifndef TR_KV_MANAGER_HOST_H
#define TR_KV_MANAGER_HOST_H

#include "manager.h"
#include "kernels/operands.h"
#include "kernels/thread_pool.h"

/* Debug builds fill pages that come and go, so that what one held is not read by
 * its next owner: as FP16 it is a NaN, which a softmax cannot miss. */
#if defined(TR_DEBUG) || defined(__SANITIZE_ADDRESS__) \
    || defined(__SANITIZE_THREAD__)
#define TR_KV_POISON 0xff
#endif

size_t tr_kv_host_memory(const tr_kv_view_t *shape,
                         const tr_kv_manager_size_t *size);
/* 0, or TR_KERNEL_BADARG as tr_cuda_manager_create says. */
int tr_kv_host_create(const tr_kv_view_t *shape,
                      const tr_kv_manager_size_t *size, void *memory,
                      tr_kv_manager_t *out);

void tr_kv_host_open(const tr_kv_manager_t *m, const tr_kv_open_t *open,
                     uint32_t n);
void tr_kv_host_prompt(const tr_kv_manager_t *m, const tr_kv_begin_t *begin,
                       uint32_t n);
void tr_kv_host_step(const tr_stream_t *s, const tr_kv_manager_t *m,
                     const tr_kv_page_request_t *ask, uint32_t n);
void tr_kv_host_close(const tr_stream_t *s, const tr_kv_manager_t *m,
                      const int32_t *slots, uint32_t n);

/* work: tr_kv_host_prompt_work bytes, 64-byte aligned; touched as far as the
 * prompts are long. */
size_t tr_kv_host_prompt_work(const tr_stream_t *s, const tr_kv_manager_t *m);
void tr_kv_host_plan_prompts(const tr_stream_t *s, const tr_kv_manager_t *m,
                             const tr_kv_complete_t *complete, uint32_t n,
                             void *work);
void tr_kv_host_install_prompts(const tr_stream_t *s, const tr_kv_manager_t *m,
                                uint32_t n);

/* A request that takes its layers some at a time: after plan_prompts, for each of
 * tr_kv_parts, kv_compress and install, and between these fill. */
void tr_kv_host_fill_prompts(const tr_stream_t *s, const tr_kv_manager_t *m,
                             uint32_t n);

/* Behind either, kv_compress moves what m->compress says, and then: */
void tr_kv_host_plan_cuts(const tr_stream_t *s, const tr_kv_manager_t *m,
                          const tr_kv_cut_t *cuts, uint32_t n);
void tr_kv_host_plan_restores(const tr_kv_manager_t *m,
                              const tr_kv_restore_t *restores, uint32_t n);
/* history: [slots][history_len] tokens of each slot, copied too, or NULL. */
void tr_kv_host_install_cuts(const tr_stream_t *s, const tr_kv_manager_t *m,
                             int32_t *history, uint32_t history_len,
                             uint32_t n);

void tr_kv_host_absorb(const tr_kv_manager_t *m, const tr_kv_absorb_t *absorb,
                       uint32_t n);

/* history as above. */
void tr_kv_host_fork(const tr_stream_t *s, const tr_kv_manager_t *m,
                     int32_t *history, uint32_t history_len,
                     const tr_kv_fork_t *fork, uint32_t n);
/* manager_share.h; history as above. */
void tr_kv_host_share(const tr_kv_manager_t *m, int32_t *history,
                      uint32_t history_len, tr_kv_share_kind_t kind,
                      const tr_kv_share_t *share, uint32_t n);
void tr_kv_host_tally(const tr_kv_manager_t *m, uint32_t n);
void tr_kv_host_give(const tr_kv_manager_t *m, int32_t slot,
                     const int32_t *pages, uint32_t n, uint32_t first,
                     uint32_t last);
void tr_kv_host_take(const tr_kv_manager_t *m, int32_t slot, int32_t *pages,
                     uint32_t *n, uint32_t max);

#endif
