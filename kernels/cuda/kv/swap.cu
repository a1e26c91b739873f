/*
 * Preemption on the device (engine/kv/kv_host.c): a slot's pages to pinned host
 * memory and back, straight through the bus: a kernel reads and writes host
 * memory in whole lines, so that pages anywhere need no staging.
 *
 * The first kernel counts the pages before each head, the second copies, all or
 * a piece of them.  Order of heads and parts: device.h.  And pages that files get and give, through memory
 * of the device: a copy engine does the rest, so that no block waits for the bus
 * beside a decode step.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/device.h"

#include <cuda_runtime.h>

#define THREADS 256u
#define PARTS (TR_KV_TIERS_MAX + 2u)
/* Blocks that share a head's pages: of a whole slot, and of a piece, which has
 * few heads' */
#define BLOCKS_HEAD 4u
#define BLOCKS_PIECE 16u

typedef struct {
    tr_kv_view_t kv;
    uint32_t tokens[TR_KV_LAYOUTS_MAX]; /* of a page */
    tr_cuda_swap_t swap;
    int32_t *tables;
    uint32_t *before; /* [layers * kv_heads] pages of the heads before */
    uint32_t *pages;
} swap_args_t;

/* Of a head that slides; its step is 1. */
static __device__ uint32_t
slid_pages(const swap_args_t &a, uint32_t h, uint32_t *entry)
{
    const int32_t *row = a.tables
                         + ((size_t) a.swap.slot * a.kv.layers * a.kv.kv_heads
                            + h)
                               * a.kv.table_len;
    uint32_t from = a.swap.near_from, end = a.swap.near_pages;

    while (from < end && row[from] < 0) {
        from++;
    }
    while (from < end && row[end - 1] < 0) {
        end--;
    }
    *entry = from;
    return end - from;
}

/* Pages of a part of head h, and its first entry and step. */
static __device__ uint32_t
part_pages(const swap_args_t &a, uint32_t h, uint32_t part, uint32_t *entry,
           int32_t *step)
{
    const tr_kv_view_t *kv = &a.kv;
    const tr_kv_seq_t *seq = &kv->seq[a.swap.slot];
    uint32_t heads = kv->layers * kv->kv_heads, n = 0, tokens = 1;

    *step = 1;
    *entry = 0;
    if (seq->n_tiers != 0 && tr_kv_slides(kv, h / kv->kv_heads)) {
        return part == 0 ? slid_pages(a, h, entry) : 0;
    }
    if (part == 0) {
        return a.swap.uncompressed_pages;
    }
    if (part == 1) {
        *entry = kv->at_window;
        if (seq->window > 0) {
            tokens = a.tokens[seq->window_layout];
            n = min(seq->base, seq->sinks + seq->window);
        }
    } else if (part - 2 < seq->n_tiers) {
        uint32_t l = part - 2;

        *entry = tr_kv_tier_entry(kv, l, 0);
        *step = l % 2 == 0 ? 1 : -1;
        tokens = a.tokens[seq->tier_layout[l]];
        n = kv->count[((size_t) a.swap.slot * heads + h) * TR_KV_TIERS_MAX + l];
    }
    return (n + tokens - 1) / tokens;
}

static __global__ void __launch_bounds__(THREADS)
    count_kernel(const __grid_constant__ swap_args_t a)
{
    uint32_t heads = a.kv.layers * a.kv.kv_heads, sum = 0;
    uint32_t per = (heads + THREADS - 1) / THREADS;
    uint32_t first = min(threadIdx.x * per, heads);
    uint32_t end = min(first + per, heads);
    __shared__ uint32_t below[THREADS + 1];

    for (uint32_t h = first; h < end; h++) {
        a.before[h] = sum;
        for (uint32_t p = 0; p < PARTS; p++) {
            uint32_t entry;
            int32_t step;

            sum += part_pages(a, h, p, &entry, &step);
        }
    }
    below[threadIdx.x + 1] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        below[0] = 0;
        for (uint32_t i = 0; i < THREADS; i++) {
            below[i + 1] += below[i];
        }
        *a.pages = below[THREADS] > a.swap.max_pages
                           || (a.swap.go != NULL && *a.swap.go == 0)
                       ? 0
                       : below[THREADS];
    }
    __syncthreads();
    for (uint32_t h = first; h < end; h++) {
        a.before[h] += below[threadIdx.x];
    }
}

static __device__ void
page_copy(const swap_args_t &a, int32_t from, int32_t to)
{
    const uint4 *in = (const uint4 *) (a.swap.from + from * a.kv.page_bytes);
    uint4 *out = (uint4 *) (a.swap.to + to * a.kv.page_bytes);

    for (uint32_t i = threadIdx.x; i < a.kv.page_bytes / 16; i += THREADS) {
        out[i] = in[i];
    }
}

static __global__ void __launch_bounds__(THREADS)
    swap_kernel(const __grid_constant__ swap_args_t a)
{
    uint32_t h = blockIdx.y, heads = a.kv.layers * a.kv.kv_heads;
    uint32_t at = a.before[h], end = min(a.swap.last, *a.pages);
    int32_t *row = a.tables
                   + ((size_t) a.swap.slot * heads + h) * a.kv.table_len;

    if (at >= end
        || (h + 1 < heads ? a.before[h + 1] : *a.pages) <= a.swap.first) {
        return;
    }
    for (uint32_t p = 0; p < PARTS; p++) {
        uint32_t entry, n;
        int32_t step;

        n = part_pages(a, h, p, &entry, &step);
        for (uint32_t i =
                 (at < a.swap.first ? a.swap.first - at : 0) + blockIdx.x;
             i < n && at + i < end; i += gridDim.x) {
            uint32_t k = at + i - a.swap.first;
            int32_t *e = row + entry + (int64_t) i * step;
            int32_t from = *e & ~a.swap.unmark, to = a.swap.taken[k];

            __syncthreads(); /* all have read the entry */
            if (a.swap.to != NULL) {
                page_copy(a, from, to);
            }
            if (threadIdx.x == 0) {
                a.swap.given[k] = from;
                *e = to | a.swap.mark;
            }
        }
        at += n;
    }
}

extern "C" size_t
tr_cuda_kv_swap_work(const tr_kv_view_t *kv)
{
    return (size_t) kv->layers * kv->kv_heads * sizeof(uint32_t);
}

extern "C" int
tr_cuda_kv_swap(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                int32_t *tables, const tr_cuda_swap_t *swap, uint32_t *pages,
                void *work)
{
    uint32_t heads = kv->layers * kv->kv_heads;
    bool whole = swap->first == 0 && swap->last >= swap->max_pages;
    cudaStream_t stream = (cudaStream_t) s->stream;
    swap_args_t a;

    if (swap->slot < 0 || heads == 0 || heads > 65535 || kv->page_bytes % 16
        || kv->n_layouts == 0 || kv->n_layouts > TR_KV_LAYOUTS_MAX
        || swap->uncompressed_pages > kv->at_window
        || swap->near_pages > kv->at_window
        || swap->near_from > swap->near_pages || swap->first > swap->last) {
        return TR_KERNEL_BADARG;
    }
    a.kv = *kv;
    for (uint32_t i = 0; i < kv->n_layouts; i++) {
        a.tokens[i] = kv->layout[i].tokens;
    }
    a.swap = *swap;
    a.tables = tables;
    a.before = (uint32_t *) work;
    a.pages = pages;
    count_kernel<<<1, THREADS, 0, stream>>>(a);
    swap_kernel<<<dim3(whole ? BLOCKS_HEAD : BLOCKS_PIECE, heads), THREADS, 0,
                  stream>>>(a);
    return tr_cuda_check();
}

/* ---- pages to and from files ---------------------------------------------- */

typedef struct {
    uint8_t *pool;
    size_t page_bytes;
    tr_cuda_kv_pages_t a;
} pages_args_t;

/* Block (page i). */
static __global__ void __launch_bounds__(THREADS)
    pages_kernel(const __grid_constant__ pages_args_t p)
{
    uint32_t i = blockIdx.x;
    int32_t page = p.a.table[p.a.ref[i]];
    uint4 *flat = (uint4 *) (p.a.flat + i * p.page_bytes), *in_pool;

    if (page < 0 || (uint32_t) page >= p.a.pages) {
        return;
    }
    in_pool = (uint4 *) (p.pool + (size_t) page * p.page_bytes);
    for (uint32_t k = threadIdx.x; k < p.page_bytes / 16; k += THREADS) {
        if (p.a.out) {
            flat[k] = in_pool[k];
        } else {
            in_pool[k] = flat[k];
        }
    }
}

extern "C" int
tr_cuda_kv_pages(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                 const tr_cuda_kv_pages_t *a)
{
    pages_args_t p = { kv->pool, kv->page_bytes, *a };

    if (kv->page_bytes % 16 || a->table == NULL || a->ref == NULL
        || a->flat == NULL || (uintptr_t) a->flat % 16 || a->n > INT32_MAX) {
        return TR_KERNEL_BADARG;
    }
    if (a->n == 0) {
        return TR_KERNEL_OK;
    }
    pages_kernel<<<a->n, THREADS, 0, (cudaStream_t) s->stream>>>(p);
    return tr_cuda_check();
}
