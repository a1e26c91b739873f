/*
 * The page manager's launches (device_manager.h).  What a block does is in
 * kernels/kv_manager; here is which blocks run it.  The last block to arrive
 * goes on with what needs all of them, so that a step takes two launches.
 *
 *   step             plan, last: sum              grant
 *   close            release, last: ends          recycle
 *   plan_prompts     classify, last of a prompt: total, last of all: admit
 *                                                 fill
 *   install_prompts  install, last: settle
 *   fill_prompts     fill
 *   plan_cuts        cut, last of a request: total, last of all: admit
 *   plan_restores    restore, likewise             fill
 *   install_cuts     as of prompts                 rescore
 *   absorb           absorb, last: absorbed
 *   give, take       one block each
 *   share            a block each, last: shared    (or copy: a head each)
 *   fork, tally      one launch each
 *
 * Traffic of a step: for each head its counts, a candidate and its move, and
 * three to six sectors of tables and pages; nothing is read twice.
 */
#include "kernels/cuda/device_manager.h"
#include "kernels/cuda/launch.cuh"

#include "kernels/kv_manager/manager_cut.h"
#include "kernels/kv_manager/manager_prompt.h"
#include "kernels/kv_manager/manager_share.h"
#include "kernels/kv_manager/manager_slot.h"
#include "kernels/kv_manager/manager_step.h"
#include "kernels/kv_manager/manager_tally.h"

#include <cuda_runtime.h>

#define RESET_BLOCKS 512u
#define GRANT_BLOCKS 8u /* that share a prompt's uncompressed pages, at least */
#define FORK_BLOCKS 4u  /* that share a head's pages */

/* ---- who is last -------------------------------------------------------- */

/* True in all threads of the last of n blocks that ask, which then sees what
 * the others have written.  The ticket is 0 again. */
static __device__ bool
last_block(uint32_t *ticket, uint32_t n)
{
    __shared__ bool last;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1u) == n - 1;
        if (last) {
            *ticket = 0;
        }
    }
    __syncthreads();
    if (last) {
        __threadfence();
    }
    return last;
}

/* ---- kernels ------------------------------------------------------------ */

static __global__ void
reset_kernel(const __grid_constant__ tr_kv_manager_t m)
{
    manager_reset(&m, (size_t) blockIdx.x * blockDim.x + threadIdx.x,
                  (size_t) gridDim.x * blockDim.x);
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    open_kernel(const __grid_constant__ tr_kv_manager_t m,
                const tr_kv_open_t *open)
{
    manager_open(&m, &open[blockIdx.x]);
}

static __global__ void
begin_kernel(const __grid_constant__ tr_kv_manager_t m,
             const tr_kv_begin_t *begin, uint32_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n) {
        manager_begin(&m, &begin[i]);
    }
}

/* Grid (chunks, requests). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    plan_kernel(const __grid_constant__ tr_kv_manager_t m,
                const tr_kv_page_request_t *ask)
{
    __shared__ union {
        manager_plan_t plan;
        manager_grants_t grants;
    } s;

    manager_plan(&m, ask, blockIdx.y, blockIdx.x, &s.plan);
    if (last_block(&m.ticket[TICKET_STEP], gridDim.x * gridDim.y)) {
        manager_sum(&m, gridDim.y, &s.grants);
    }
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    grant_kernel(const __grid_constant__ tr_kv_manager_t m)
{
    __shared__ manager_grant_t s;

    manager_grant(&m, blockIdx.y, blockIdx.x, gridDim.x, &s);
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    release_kernel(const __grid_constant__ tr_kv_manager_t m,
                   const int32_t *slots)
{
    __shared__ manager_release_t s;

    manager_release(&m, slots, blockIdx.x, &s);
    if (last_block(&m.ticket[TICKET_CLOSE], gridDim.x)) {
        manager_ends(&m, gridDim.x);
    }
}

/* Grid (heads / warps, requests). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    recycle_kernel(const __grid_constant__ tr_kv_manager_t m)
{
    manager_recycle(&m, blockIdx.y, blockIdx.x);
}

/* Behind the plan of a head of request blockIdx.y. */
static __device__ void
admit_last(const tr_kv_manager_t *m, manager_total_t *total)
{
    if (!last_block(&m->ticket[TICKETS + blockIdx.y], gridDim.x)) {
        return;
    }
    manager_total_job(m, blockIdx.y, total);
    if (last_block(&m->ticket[TICKET_PROMPTS], gridDim.y)) {
        manager_admit(m, gridDim.y);
    }
}

/* Grid (heads, requests). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    classify_kernel(const __grid_constant__ tr_kv_manager_t m,
                    const tr_kv_complete_t *complete)
{
    __shared__ union {
        manager_prompt_t prompt;
        manager_total_t total;
    } s;

    manager_classify(&m, complete, blockIdx.y, blockIdx.x, &s.prompt);
    admit_last(&m, &s.total);
}

/* Grid (heads, requests). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    cut_kernel(const __grid_constant__ tr_kv_manager_t m,
               const tr_kv_cut_t *cuts)
{
    __shared__ union {
        manager_cut_t cut;
        manager_total_t total;
    } s;

    manager_cut_head(&m, cuts, blockIdx.y, blockIdx.x, &s.cut);
    admit_last(&m, &s.total);
}

/* Grid (heads, requests). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    restore_kernel(const __grid_constant__ tr_kv_manager_t m,
                   const tr_kv_restore_t *restores)
{
    __shared__ union {
        manager_cut_t cut;
        manager_total_t total;
    } s;

    manager_restore_head(&m, restores, blockIdx.y, blockIdx.x, &s.cut);
    admit_last(&m, &s.total);
}

/* Grid (heads, requests). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    rescore_kernel(const __grid_constant__ tr_kv_manager_t m,
                   tr_cuda_history_t history)
{
    manager_rescore(&m, history.token, history.len, blockIdx.y, blockIdx.x);
}

/* Grid (heads, records). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    absorb_kernel(const __grid_constant__ tr_kv_manager_t m,
                  const tr_kv_absorb_t *absorb)
{
    __shared__ manager_absorb_t s;

    manager_absorb(&m, absorb, blockIdx.y, blockIdx.x, &s);
    if (last_block(&m.ticket[TICKET_SHARE], gridDim.x * gridDim.y)) {
        manager_absorbed(&m, absorb, gridDim.y);
    }
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    fill_kernel(const __grid_constant__ tr_kv_manager_t m)
{
    manager_fill(&m, blockIdx.y, blockIdx.x);
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    install_kernel(const __grid_constant__ tr_kv_manager_t m)
{
    __shared__ manager_install_t s;

    manager_install(&m, blockIdx.y, blockIdx.x, &s);
    if (last_block(&m.ticket[TICKET_INSTALL], gridDim.x * gridDim.y)) {
        manager_settle_prompts(&m, gridDim.y);
    }
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    give_kernel(const __grid_constant__ tr_kv_manager_t m, int32_t slot,
                const int32_t *pages, const uint32_t *n, uint32_t first,
                uint32_t last)
{
    __shared__ manager_swap_t s;

    if (*n != 0) {
        manager_give(&m, slot, pages, *n, first, last, &s);
    }
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    take_kernel(const __grid_constant__ tr_kv_manager_t m, int32_t slot,
                int32_t *pages, uint32_t *n, uint32_t max)
{
    __shared__ manager_swap_t s;

    manager_take(&m, slot, pages, n, max, &s);
}

/* Grid (blocks, heads, requests). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    fork_kernel(const __grid_constant__ tr_kv_manager_t m,
                tr_cuda_history_t history, const tr_kv_fork_t *fork)
{
    manager_fork(&m, history.token, history.len, &fork[blockIdx.z], blockIdx.y,
                 blockIdx.x, gridDim.x);
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    share_kernel(const __grid_constant__ tr_kv_manager_t m,
                 tr_cuda_history_t history, tr_kv_share_kind_t kind,
                 const tr_kv_share_t *share)
{
    manager_share(&m, history.token, history.len, kind, share, blockIdx.x);
    if (last_block(&m.ticket[TICKET_SHARE], gridDim.x)) {
        manager_shared(&m, kind, gridDim.x);
    }
}

/* Grid (records, heads). */
static __global__ void __launch_bounds__(MANAGER_THREADS)
    copy_kept_kernel(const __grid_constant__ tr_kv_manager_t m,
                     tr_cuda_history_t history, const tr_kv_share_t *share)
{
    manager_copy_kept(&m, history.token, history.len, &share[blockIdx.x],
                      blockIdx.y);
}

static __global__ void __launch_bounds__(MANAGER_THREADS)
    tally_kernel(const __grid_constant__ tr_kv_manager_t m)
{
    __shared__ manager_tally_t s;

    manager_tally(&m, (int32_t) blockIdx.x, &s);
}

/* ---- launchers ---------------------------------------------------------- */

extern "C" size_t
tr_cuda_manager_memory(const tr_kv_view_t *shape,
                       const tr_kv_manager_size_t *size)
{
    tr_kv_manager_t m;

    return manager_lay(shape, size, NULL, &m);
}

extern "C" int
tr_cuda_manager_create(const tr_cuda_stream_t *s, const tr_kv_view_t *shape,
                       const tr_kv_manager_size_t *size, void *memory,
                       tr_kv_manager_t *out)
{
    if (memory == NULL || (uintptr_t) memory % 256 != 0
        || manager_lay(shape, size, memory, out) == 0) {
        return TR_KERNEL_BADARG;
    }
    reset_kernel<<<RESET_BLOCKS, MANAGER_THREADS, 0,
                   (cudaStream_t) s->stream>>>(*out);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_open(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     const tr_kv_open_t *open, uint32_t n)
{
    if (n > m->size.slots || (n != 0 && open == NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    open_kernel<<<n, MANAGER_THREADS, 0, (cudaStream_t) s->stream>>>(*m, open);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_prompt(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                       const tr_kv_begin_t *begin, uint32_t n)
{
    if (n > m->size.slots || (n != 0 && begin == NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    begin_kernel<<<manager_ceil(n, MANAGER_THREADS), MANAGER_THREADS, 0,
                   (cudaStream_t) s->stream>>>(*m, begin, n);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_step(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     const tr_kv_page_request_t *ask, uint32_t n)
{
    cudaStream_t stream = (cudaStream_t) s->stream;
    dim3 grid(m->chunks, n);
    dim3 grants(m->chunks > GRANT_BLOCKS ? m->chunks : GRANT_BLOCKS, n);

    if (n > m->size.slots || (n != 0 && ask == NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    plan_kernel<<<grid, MANAGER_THREADS, 0, stream>>>(*m, ask);
    grant_kernel<<<grants, MANAGER_THREADS, 0, stream>>>(*m);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_close(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                      const int32_t *slots, uint32_t n)
{
    cudaStream_t stream = (cudaStream_t) s->stream;
    dim3 grid(manager_ceil(m->heads, MANAGER_WARPS), n);

    if (n > m->size.slots || (n != 0 && slots == NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    release_kernel<<<n, MANAGER_THREADS, 0, stream>>>(*m, slots);
    recycle_kernel<<<grid, MANAGER_THREADS, 0, stream>>>(*m);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_plan_prompts(const tr_cuda_stream_t *s,
                             const tr_kv_manager_t *m,
                             const tr_kv_complete_t *complete, uint32_t n)
{
    cudaStream_t stream = (cudaStream_t) s->stream;
    dim3 heads(m->heads, n), warps(manager_ceil(m->heads, MANAGER_WARPS), n);

    if (n > m->size.max_prompts || (n != 0 && complete == NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    classify_kernel<<<heads, MANAGER_THREADS, 0, stream>>>(*m, complete);
    fill_kernel<<<warps, MANAGER_THREADS, 0, stream>>>(*m);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_fill_prompts(const tr_cuda_stream_t *s,
                             const tr_kv_manager_t *m, uint32_t n)
{
    dim3 warps(manager_ceil(m->heads, MANAGER_WARPS), n);

    if (n > m->size.max_prompts) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    fill_kernel<<<warps, MANAGER_THREADS, 0, (cudaStream_t) s->stream>>>(*m);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_install_prompts(const tr_cuda_stream_t *s,
                                const tr_kv_manager_t *m, uint32_t n)
{
    dim3 warps(manager_ceil(m->heads, MANAGER_WARPS), n);

    if (n > m->size.max_prompts) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    install_kernel<<<warps, MANAGER_THREADS, 0, (cudaStream_t) s->stream>>>(*m);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_plan_cuts(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                          const tr_kv_cut_t *cuts, uint32_t n)
{
    cudaStream_t stream = (cudaStream_t) s->stream;
    dim3 heads(m->heads, n), warps(manager_ceil(m->heads, MANAGER_WARPS), n);

    if (n > m->size.max_prompts || (n != 0 && cuts == NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    cut_kernel<<<heads, MANAGER_THREADS, 0, stream>>>(*m, cuts);
    fill_kernel<<<warps, MANAGER_THREADS, 0, stream>>>(*m);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_plan_restores(const tr_cuda_stream_t *s,
                              const tr_kv_manager_t *m,
                              const tr_kv_restore_t *restores, uint32_t n)
{
    cudaStream_t stream = (cudaStream_t) s->stream;
    dim3 heads(m->heads, n), warps(manager_ceil(m->heads, MANAGER_WARPS), n);

    if (n > m->size.max_prompts || (n != 0 && restores == NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    restore_kernel<<<heads, MANAGER_THREADS, 0, stream>>>(*m, restores);
    fill_kernel<<<warps, MANAGER_THREADS, 0, stream>>>(*m);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_install_cuts(const tr_cuda_stream_t *s,
                             const tr_kv_manager_t *m,
                             const tr_cuda_history_t *history, uint32_t n)
{
    const tr_cuda_history_t none = { NULL, 0 };
    cudaStream_t stream = (cudaStream_t) s->stream;
    int rc = tr_cuda_manager_install_prompts(s, m, n);

    if (rc != TR_KERNEL_OK || n == 0) {
        return rc;
    }
    rescore_kernel<<<dim3(m->heads, n), MANAGER_THREADS, 0, stream>>>(
        *m, history != NULL ? *history : none);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_absorb(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                       const tr_kv_absorb_t *absorb, uint32_t n)
{
    if (n > m->size.slots || (n != 0 && absorb == NULL)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    absorb_kernel<<<dim3(m->heads, n), MANAGER_THREADS, 0,
                    (cudaStream_t) s->stream>>>(*m, absorb);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_give(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     int32_t slot, const int32_t *pages, const uint32_t *n,
                     uint32_t first, uint32_t last)
{
    if (slot < 0 || (uint32_t) slot >= m->size.slots || pages == NULL
        || n == NULL || first > last) {
        return TR_KERNEL_BADARG;
    }
    give_kernel<<<1, MANAGER_THREADS, 0, (cudaStream_t) s->stream>>>(*m, slot,
                                                                     pages, n,
                                                                     first,
                                                                     last);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_take(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     int32_t slot, int32_t *pages, uint32_t *n, uint32_t max)
{
    if (slot < 0 || (uint32_t) slot >= m->size.slots || pages == NULL
        || n == NULL) {
        return TR_KERNEL_BADARG;
    }
    take_kernel<<<1, MANAGER_THREADS, 0, (cudaStream_t) s->stream>>>(*m, slot,
                                                                     pages, n,
                                                                     max);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_fork(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     const tr_cuda_history_t *history, const tr_kv_fork_t *fork,
                     uint32_t n)
{
    tr_cuda_history_t none = { NULL, 0 };

    if (n > m->size.slots || (n != 0 && fork == NULL) || m->heads > 65535
        || m->view.page_bytes % 16 != 0) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    fork_kernel<<<dim3(FORK_BLOCKS, m->heads, n), MANAGER_THREADS, 0,
                  (cudaStream_t) s->stream>>>(*m,
                                              history != NULL ? *history : none,
                                              fork);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_share(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                      const tr_cuda_history_t *history, tr_kv_share_kind_t kind,
                      const tr_kv_share_t *share, uint32_t n)
{
    const tr_cuda_history_t none = { NULL, 0 };
    const tr_cuda_history_t known = history != NULL ? *history : none;
    cudaStream_t stream = (cudaStream_t) s->stream;

    if ((n != 0 && share == NULL) || n > INT32_MAX || m->heads > 65535
        || m->view.page_bytes % 16 != 0) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    if (kind == TR_KV_COPY) {
        copy_kept_kernel<<<dim3(n, m->heads), MANAGER_THREADS, 0, stream>>>(
            *m, known, share);
    } else {
        share_kernel<<<n, MANAGER_THREADS, 0, stream>>>(*m, known, kind, share);
    }
    return tr_cuda_check();
}

extern "C" int
tr_cuda_manager_tally(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                      uint32_t n)
{
    if (n > m->size.slots) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    tally_kernel<<<n, MANAGER_THREADS, 0, (cudaStream_t) s->stream>>>(*m);
    return tr_cuda_check();
}
