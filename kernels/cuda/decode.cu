/*
 * Decode attention: one query a sequence over pages of all levels.
 *
 * Every warp is on its own: it takes a range of the layer's tiles (decode.cuh),
 * streams them through its ring (decode_walk.cuh), attends them unit by unit
 * (decode_attend.cuh) and leaves each head's part in the workspace.  The finish
 * kernel does the rest.  What a part holds depends on the plan alone, so
 * results repeat bit by bit.
 *
 * The code for a level is a loop of its own over the units of one segment; what
 * is copied ahead may already belong to another one.
 */
#include "decode_attend.cuh"

#include <cuda_runtime.h>

#define WARPS 4u /* of a block */

template <int D, int Q, int STAGES, int KEY, int VALUE>
static __device__ __forceinline__ void
attend_run(const decode_args_t &a, ring_t &ring, cursor_t &c, unit_t &u,
           state_t<D, Q> &s)
{
    const decode_head_t *h = a.work.head + u.head;
    const uint32_t run = u.run;
    const bool traced = (h->flags & HEAD_SCORED) != 0
                        && a.layouts.of[u.layout()].scored;
    query_t<D, Q, KEY> query;

    load_query(a, h, query);
    change_units<D, Q, VALUE>(s);
    do {
        produce<D, STAGES, KEY, VALUE>(a, c, ring);
        copy_commit();
        attend_unit<D, Q, KEY, VALUE>(a, h, query, u,
                                      ring.slots + ring.at * slot_bytes(D),
                                      traced, s);
        if (!traced) {
            s.tile += u.tiles();
        }
        ring.at = ring.at + 1 == STAGES ? 0 : ring.at + 1;
        copy_wait<STAGES - 2>();
        __syncwarp();
        u = read_note(ring);
    } while (u.run == run);
}

/* CASE(key bits, value bits) for which there is code; see bits_listed. */
#define FOR_ALL_BITS(CASE) \
    CASE(8, 8)             \
    CASE(8, 4)             \
    CASE(4, 2)             \
    CASE(8, 2)             \
    CASE(4, 4)             \
    CASE(2, 2)             \
    CASE(16, 16)

/* Where part (range, head) begins and whether it reaches the head's ends. */
template <int D, int Q>
static __device__ __forceinline__ void
begin_part(const decode_args_t &a, uint32_t range, uint32_t head,
           state_t<D, Q> &s)
{
    const decode_head_t *h = a.work.head + head;
    const decode_cut_t from = a.work.cut[range], to = a.work.cut[range + 1];
    uint32_t begin = from.head == head ? from.tile : 0;
    uint32_t end = to.head == head ? to.tile : h->tiles;

    state_init<D, Q>(s);
    s.tile = h->tiles_before + begin;
    if (threadIdx.x % 32 == 0) {
        if (begin == 0) {
            a.work.span[head].x = range;
        }
        if (end == h->tiles) {
            a.work.span[head].y = range;
        }
    }
}

template <int D, int Q, int STAGES, int BLOCKS>
static __global__ void
__launch_bounds__(WARPS * 32, BLOCKS)
    attend_kernel(const __grid_constant__ decode_args_t a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t bytes = STAGES * (slot_bytes(D) + NOTE_BYTES);
    /* neighbours in different blocks: few ranges use many of them */
    const uint32_t range = blockIdx.x + threadIdx.x / 32 * gridDim.x;
    uint32_t head = 0;
    bool any = false;
    state_t<D, Q> s;
    cursor_t c;
    ring_t ring;
    unit_t u;

    launch_next();
    ring.slots = smem_address(shared) + threadIdx.x / 32 * bytes;
    ring.notes = ring.slots + STAGES * slot_bytes(D);
    ring.at = ring.free = 0;
    ring.policy = l2_policy();
    take_range(a, range, c);
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) {
        produce<D, STAGES, 0, 0>(a, c, ring);
        copy_commit();
    }
    copy_wait<STAGES - 2>();
    __syncwarp();
    u = read_note(ring);
    while (u.run != NO_RUN) {
        if (!any || u.head != head) {
            if (any) {
                store_part<D, Q>(a, head, range, s);
            }
            head = u.head;
            any = true;
            begin_part<D, Q>(a, range, head, s);
        }
        const decode_layout_t &l = a.layouts.of[u.layout()];

#define ATTEND(KEY, VALUE)                                      \
    case KEY << 8 | VALUE:                                      \
        attend_run<D, Q, STAGES, KEY, VALUE>(a, ring, c, u, s); \
        break;
        switch (l.key_bits << 8 | l.value_bits) {
            FOR_ALL_BITS(ATTEND)
        }
#undef ATTEND
    }
    if (any) {
        store_part<D, Q>(a, head, range, s);
    }
    copy_wait<0>();
}

/* ---- launchers ---------------------------------------------------------- */

typedef void (*attend_t)(const decode_args_t);

/* Of a ring; and of a multiprocessor, as far as they fit. */
#define STAGES 4
#define BLOCKS 3

static attend_t
attend(uint32_t dim, uint32_t group)
{
    if (dim == 64) {
        return group <= QUAD ? attend_kernel<64, 1, STAGES, BLOCKS>
                             : attend_kernel<64, 2, STAGES, BLOCKS>;
    }
    return group <= QUAD ? attend_kernel<128, 1, STAGES, BLOCKS>
                         : attend_kernel<128, 2, STAGES, BLOCKS>;
}

static uint32_t
shared_bytes(uint32_t dim)
{
    return WARPS * STAGES * (slot_bytes((int) dim) + NOTE_BYTES);
}

/* Blocks of the attend kernel: all that run at once (1 KiB of shared memory of
 * each is the system's). */
static uint32_t
attend_blocks(const tr_cuda_device_t *d, uint32_t dim)
{
    uint32_t fit = (d->shared + 1024) / (shared_bytes(dim) + 1024);

    return d->blocks * (fit < 1 ? 1 : fit < BLOCKS ? fit : BLOCKS);
}

uint32_t
decode_warps(const tr_cuda_device_t *d, uint32_t head_dim)
{
    return attend_blocks(d, head_dim) * WARPS;
}

void
decode_open(void)
{
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t dim = i & 1 ? 64 : 128;
        const void *kernel = (const void *) attend(dim, i & 2 ? 8 : 4);

        cudaFuncSetAttribute(kernel,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int) shared_bytes(dim));
        cudaFuncSetAttribute(kernel,
                             cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    }
}

static bool
aligned(const void *p)
{
    return ((uintptr_t) p & 15) == 0;
}

extern "C" int
tr_cuda_decode(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
               uint32_t layer, const tr_rows_t *rows,
               const tr_cuda_queries_t *queries,
               const tr_cuda_decode_size_t *size, void *work)
{
    decode_args_t a;

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (layer >= kv->layers || rows->n_seqs > size->max_seqs
        || kv->lists != size->lists || kv->lists == 0
        || queries->heads % kv->lists != 0 || queries->heads != size->heads
        || queries->heads / kv->lists > GROUP || queries->heads == 0
        || (kv->head_dim != 64 && kv->head_dim != 128)
        || kv->head_dim != size->head_dim || queries->ldq % 8 != 0
        || queries->ldo % 8 != 0 || !aligned(queries->q)
        || !aligned(queries->out)
        || decode_layouts(kv, &a.layouts) != TR_KERNEL_OK) {
        return TR_KERNEL_BADARG;
    }
    a.kv = *kv;
    a.work = decode_work(s->device, size, work);
    a.work.layer += layer;
    a.work.head += (size_t) layer * a.work.max_heads;
    a.work.cut += (size_t) layer * (a.work.max_ranges + 1);
    a.work.job += (size_t) layer * a.work.max_jobs;
    a.work.arrived += (size_t) layer * a.work.max_heads * TR_KV_LISTS_MAX;
    a.q = queries->q;
    a.out = queries->out;
    a.ldq = queries->ldq;
    a.ldo = queries->ldo;
    a.q_type = queries->q_type;
    a.out_type = queries->out_type;
    a.group = queries->heads / kv->lists;
    a.scale = queries->scale * 1.4426950408889634f;
    attend(kv->head_dim,
           a.group)<<<attend_blocks(s->device, kv->head_dim), WARPS * 32,
                      shared_bytes(kv->head_dim), (cudaStream_t) s->stream>>>(
        a);
    if (s->device->unfinished) {
        return tr_cuda_check();
    }
    return decode_finish(s, &a, size, rows->n_seqs);
}
