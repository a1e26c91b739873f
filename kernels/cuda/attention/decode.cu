/*
 * Decode attention: one query a sequence over pages of all levels.
 *
 * Every warp works alone: it takes a range of the layer's tiles (decode.cuh),
 * streams them through its ring (decode_iterator.cuh), attends them unit by
 * unit (decode_attend.cuh) and leaves a part for each head in the workspace;
 * the reduction kernel makes outputs of these.  What a part holds depends on
 * the plan alone, so results repeat bit by bit.
 *
 * Each level has its own loop, over the units of one segment; the units that
 * are copied ahead may already belong to the next segment.
 *
 * Warps read equal bytes and yet finish up to 15 us apart.  Those that are
 * done raise scores of the layer before (decode_score.cuh) until none are
 * left.
 *
 * A range's pages are looked up while the kernel before this one still runs:
 * that one may write pages, but neither block tables nor the plan.
 */
#include "decode_attend.cuh"
#include "decode_score.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/runtime/runtime.cuh"

#include <cuda_runtime.h>

/* Warps of a block, as far as they fit: fewer of more registers, where a lane has 96
 * words of queries and outputs or more. */
static __host__ __device__ constexpr uint32_t
warps_of(int dim, int quads)
{
    return dim > 128 || dim * quads > 256 ? 8 : 12;
}

/* Slots of a ring, as far as they fit: one of them is attended while the others
 * are on their way.  With two, all warps together have nearly as much under way
 * as memory needs; with four, whatever else is read waits in a longer queue.  Of
 * fewer warps each has more under way. */
static __host__ __device__ constexpr uint32_t
slots_of(int dim, int quads)
{
    return warps_of(dim, quads) == 12 || dim > 128 ? 3 : 4;
}

#define SLOTS_LEAST 2u
#define ENDED 16u /* bytes behind the rings: how many warps left their parts */

template <int KEY, int VALUE, int M, bool REACH, int D, int Q, int Z>
static __device__ __forceinline__ void
attend_run(const decode_args_t &a, ring_t &ring, cursor_t &c, const run_t &run,
           const bytes_t<D, Q, Z> &bytes, state_t<D, Q, Z> &s)
{
    constexpr bool GROUPED = Z > 1;
    const uint32_t end = run.token + run.rest;
    const bool traced = run.what & RUN_TRACED, holes = run.what & RUN_HOLES;
    const uint32_t unseen = REACH ? __ldg(&a.work.head[run.head].window_from)
                                  : 0;
    query_t<D, Q, KEY, M> query;
    pace_t pace = run.pace;
    uint32_t rest = run.rest;

    if constexpr (KEY == 16) {
        load_uncompressed(a, run, query);
    } else {
        arrange(bytes, query);
    }
    change_units<VALUE>(s);
    s.trace = run.trace;
    do {
        uint32_t n = pace.take(unit_tiles(KEY, VALUE));
        unit_t u = { run.head, end - rest, min(n * tile_tokens(KEY), rest),
                     n,        holes,      unseen };

        produce<D, GROUPED>(a, c, ring);
        bar_wait(ring.bars + ring.at * 8, ring.parity);
        attend_unit<D, Q, KEY, VALUE, M, Z, REACH>(
            a, query, u, ring.slots + ring.at * slot_bytes(D, GROUPED), traced,
            ring.stay, s);
        rest -= u.exist;
        if (pace.left == 0) {
            pace.turn_page();
        }
        ring.at++;
        if (ring.at == a.slots) {
            ring.at = 0;
            ring.parity ^= 1;
        }
        __syncwarp(); /* before the slot is filled again */
    } while (rest > 0);
}

/* CASE(key bits, value bits) for which there is code: tr_cuda_decode_level. */
#define FOR_ALL_BITS(CASE) \
    CASE(8, 8)             \
    CASE(8, 4)             \
    CASE(4, 2)             \
    CASE(8, 2)             \
    CASE(4, 4)             \
    CASE(2, 2)             \
    CASE(16, 16)

/* CASE(key bits, value bits, groups), likewise. */
#define FOR_ALL_GROUPS(CASE) \
    CASE(8, 4, 2)            \
    CASE(4, 2, 2)            \
    CASE(4, 4, 2)            \
    CASE(8, 4, 4)            \
    CASE(4, 2, 4)            \
    CASE(4, 4, 4)

/* A run of any level. */
template <int D, int Q, int Z>
static __device__ __forceinline__ void
attend_any(const decode_args_t &a, ring_t &ring, cursor_t &c, const run_t &run,
           bytes_t<D, Q, Z> &bytes, state_t<D, Q, Z> &s)
{
    const decode_layout_t &l = a.layouts.of[run.layout()];

    if (l.key_bits != 16) {
        load_bytes(a, run, bytes);
    }
#define GROUPS(KEY, VALUE, M)                                        \
    case M << 16 | KEY << 8 | VALUE:                                 \
        attend_run<KEY, VALUE, M, false>(a, ring, c, run, bytes, s); \
        break;
#define ATTEND(KEY, VALUE) GROUPS(KEY, VALUE, 1)
    switch (l.groups << 16 | l.key_bits << 8 | l.value_bits) {
        FOR_ALL_BITS(ATTEND)
    default:
        if constexpr (Z > 1) {
            switch (l.groups << 16 | l.key_bits << 8 | l.value_bits) {
                FOR_ALL_GROUPS(GROUPS)
            }
        }
    }
#undef ATTEND
#undef GROUPS
}

static __device__ __forceinline__ void
open_ring(uint32_t at, uint32_t bytes, uint32_t slots, ring_t &ring)
{
    ring.slots = at;
    ring.notes = ring.slots + slots * bytes;
    ring.bars = ring.notes + slots * (uint32_t) sizeof(run_t);
    ring.at = ring.free = ring.parity = 0;
    ring.policy = l2_policy();
    if (threadIdx.x % 32 < slots) {
        bar_init(ring.bars + threadIdx.x % 32 * 8, ARRIVALS);
    }
    fence_init();
    __syncwarp();
}

/* The warp has left its parts.  ended: warps of the block that have. */
static __device__ __forceinline__ void
tell_ended(const decode_args_t &a, uint32_t *ended)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        __threadfence_block();
        if (atomicAdd(ended, 1u) == blockDim.x / 32 - 1) {
            __threadfence_block();
            add_release(a.ended, 1);
        }
    }
}

/* What is left of the scores of the layer before. */
template <int Q>
static __device__ __forceinline__ void
raise_scores(const decode_args_t &a)
{
    if (a.layer == 0 || !a.scored) {
        return;
    }
    if constexpr (Q > 2) {
        return;
    } else if constexpr (Q == 1) {
        switch (a.group) {
        case 1:
            score_rows<1>(a, a.before);
            break;
        case 2:
            score_rows<2>(a, a.before);
            break;
        case 3:
            score_rows<3>(a, a.before);
            break;
        default:
            score_rows<4>(a, a.before);
        }
    } else {
        switch (a.group) {
        case 5:
            score_rows<5>(a, a.before);
            break;
        case 6:
            score_rows<6>(a, a.before);
            break;
        case 7:
            score_rows<7>(a, a.before);
            break;
        default:
            score_rows<8>(a, a.before);
        }
    }
}

template <int D, int Q, decode_mode_t MODE>
static __device__ __forceinline__ void
attend_range(const decode_args_t &a, uint8_t *shared)
{
    /* neighbours in different blocks: few ranges use many of them */
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t range = blockIdx.x + warp * gridDim.x;
    uint32_t head = 0;
    bool any = false;
    constexpr bool GROUPED = decode_grouped(MODE);
    constexpr int Z = GROUPED ? GROUPS_MOST : 1;
    state_t<D, Q, Z> s;
    cursor_t c;
    ring_t ring;
    bytes_t<D, Q, Z> bytes;
    run_t run;

    open_ring(smem_address(shared) + warp * ring_bytes(D, a.slots, GROUPED),
              slot_bytes(D, GROUPED), a.slots, ring);
    if (a.layer == 0) { /* the plan may be right in front */
        launch_wait();
    }
    ring.stay = l2_policy_stay(__ldg(&a.work.layer->stay));
    take_range(a, range, c, ring);
    ask_units(a, c);
    launch_wait();
    launch_next(); /* so that what comes next finds the plan, too */
    if (a.ended != NULL && blockIdx.x == 0 && threadIdx.x == 0) {
        *a.ended_old = 0; /* nobody looks at it any more */
    }
#pragma unroll 1
    for (uint32_t i = 0; i < a.slots - 1; i++) {
        produce<D, GROUPED>(a, c, ring);
    }
    __syncwarp();
    for (;;) {
        run = read_note(ring);
        if (any && (run.what == NO_RUN || run.head != head)) {
            store_part(a, head, range, s);
            any = false;
        }
        if (run.what == NO_RUN) {
            return;
        }
        if (!any) {
            head = run.head;
            any = true;
            state_init(s);
        }
        if constexpr (MODE == DECODE_ALL || GROUPED) {
            attend_any(a, ring, c, run, bytes, s);
        } else {
            attend_run<16, 16, 1, MODE == DECODE_REACH>(a, ring, c, run, bytes,
                                                        s);
        }
    }
}

template <int D, int Q, decode_mode_t MODE>
static __global__ void __launch_bounds__(warps_of(D, Q) * 32, 1)
    attend_kernel(const __grid_constant__ decode_args_t a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    uint32_t *ended = (uint32_t *) (shared
                                    + blockDim.x / 32
                                          * ring_bytes(D, a.slots,
                                                       decode_grouped(MODE)));

    if (threadIdx.x == 0) {
        *ended = 0;
    }
    __syncthreads();
    attend_range<D, Q, MODE>(a, shared);
    if (a.ended != NULL) {
        tell_ended(a, ended);
    }
    if constexpr (MODE != DECODE_UNCOMPRESSED && has_scores(D, Q)) {
        raise_scores<Q>(a);
    }
}

/* ---- launchers ---------------------------------------------------------- */

typedef void (*attend_t)(const decode_args_t);

/* Quads of a warp. */
static uint32_t
quads_of(uint32_t group)
{
    return group <= QUAD ? 1 : group <= 2 * QUAD ? 2 : 4;
}

template <int D, decode_mode_t MODE>
static attend_t
attend_of(uint32_t quads)
{
    if constexpr (MODE == DECODE_ALL || MODE == DECODE_GROUPED || D == 256) {
        return quads == 1 ? attend_kernel<D, 1, MODE>
                          : attend_kernel<D, 2, MODE>;
    } else {
        return quads == 1   ? attend_kernel<D, 1, MODE>
               : quads == 2 ? attend_kernel<D, 2, MODE>
                            : attend_kernel<D, 4, MODE>;
    }
}

template <int D>
static attend_t
attend_with(decode_mode_t mode, uint32_t quads)
{
    return mode == DECODE_UNCOMPRESSED
               ? attend_of<D, DECODE_UNCOMPRESSED>(quads)
               : attend_of<D, DECODE_REACH>(quads);
}

/* The kernel of a mode, a head size and a group that decode_has allows. */
static attend_t
attend_for(decode_mode_t mode, uint32_t dim, uint32_t group)
{
    const uint32_t quads = quads_of(group);

    if (mode == DECODE_ALL) {
        return dim == 64 ? attend_of<64, DECODE_ALL>(quads)
                         : attend_of<128, DECODE_ALL>(quads);
    }
    if (mode == DECODE_GROUPED) {
        return dim == 64 ? attend_of<64, DECODE_GROUPED>(quads)
                         : attend_of<128, DECODE_GROUPED>(quads);
    }
    return dim == 64    ? attend_with<64>(mode, quads)
           : dim == 128 ? attend_with<128>(mode, quads)
                        : attend_with<256>(mode, quads);
}

/* Of a ring: as many as all warps can have. */
static uint32_t
attend_slots(const tr_device_props_t *d, uint32_t dim, uint32_t group,
             bool grouped)
{
    const int quads = (int) quads_of(group);
    const uint32_t most = slots_of((int) dim, quads);

    return warps_of((int) dim, quads) * ring_bytes(dim, most, grouped) + ENDED
                   <= d->shared
               ? most
               : SLOTS_LEAST;
}

/* Warps of the attend kernel's blocks, of which each multiprocessor has one. */
static uint32_t
attend_warps(const tr_device_props_t *d, uint32_t dim, uint32_t group,
             bool grouped)
{
    const uint32_t slots = attend_slots(d, dim, group, grouped);
    const uint32_t most = warps_of((int) dim, (int) quads_of(group));
    const uint32_t fit = (d->shared - ENDED) / ring_bytes(dim, slots, grouped);

    return fit < 1 ? 1 : fit < most ? fit : most;
}

uint32_t
decode_warps(const tr_device_props_t *d, uint32_t head_dim, uint32_t group,
             bool grouped)
{
    const uint32_t plain = attend_warps(d, head_dim, group, false);
    const uint32_t warps = attend_warps(d, head_dim, group, grouped);

    /* the workspace has places for so many */
    return d->blocks * (warps < plain ? warps : plain);
}

void
decode_open(const tr_device_props_t *d)
{
    for (uint32_t i = 0; i < DECODE_MODES * 9; i++) {
        const decode_mode_t mode = (decode_mode_t) (i / 9);
        const uint32_t dim = 64u << i % 3, group = 4u << i / 3 % 3;

        if (!decode_has(dim, group,
                        mode == DECODE_UNCOMPRESSED || mode == DECODE_REACH)) {
            continue;
        }
        const void *kernel = (const void *) attend_for(mode, dim, group);

        cudaFuncSetAttribute(kernel,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int) d->shared);
        cudaFuncSetAttribute(kernel,
                             cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    }
}

/* Are uncompressed tokens without scores all there is? */
static bool
decode_plain(const tr_kv_view_t *kv)
{
    return kv->n_layouts == 1 && !kv->layout[0].level.scored;
}

/* Does a layer see but its last tokens, which are uncompressed? */
static bool
decode_slides(const tr_kv_view_t *kv, uint32_t layer)
{
    return kv->reach != NULL && (decode_plain(kv) || tr_kv_slides(kv, layer));
}

static bool
aligned(const void *p)
{
    return ((uintptr_t) p & 15) == 0;
}

static decode_left_t
left_by(const decode_work_t *w, uint32_t layer)
{
    decode_left_t left = w->left[layer % 2];

    left.layer = w->layer + layer;
    left.head = w->head + (size_t) layer * w->max_heads;
    left.job = w->job + (size_t) layer * w->max_jobs;
    left.index = w->index + (size_t) layer * w->max_index;
    left.claimed = w->claimed + (size_t) layer * PILES * CLAIM_WORDS;
    return left;
}

bool
decode_args(const tr_device_props_t *d, const tr_kv_view_t *kv, uint32_t layer,
            const tr_rows_t *rows, const tr_cuda_decode_size_t *size,
            void *work, decode_args_t *out)
{
    bool long_positions = false;

    if (layer >= kv->layers || rows->n_seqs > size->max_seqs
        || kv->kv_heads != size->kv_heads || kv->kv_heads == 0
        || size->heads % kv->kv_heads != 0 || size->heads == 0
        || !decode_has(kv->head_dim, size->heads / kv->kv_heads,
                       decode_plain(kv))
        || kv->head_dim != size->head_dim
        || decode_layouts(kv, &out->layouts) != TR_KERNEL_OK) {
        return false;
    }
    out->kv = *kv;
    out->layer = layer;
    out->scored = out->short_positions = false;
    for (uint32_t i = 0; i < kv->n_layouts; i++) {
        const uint32_t bytes = kv->layout[i].position_bytes;

        out->scored = out->scored || out->layouts.of[i].scored;
        out->short_positions = out->short_positions || bytes == 2;
        long_positions = long_positions || bytes == 4;
    }
    if (out->short_positions && long_positions) {
        return false;
    }
    out->jobs = out->scored ? rows->n_seqs * kv->kv_heads * (kv->n_layouts + 1)
                            : 0;
    out->few_jobs = out->jobs <= d->blocks;
    out->work = decode_work(d, size, work);
    out->left = left_by(&out->work, layer);
    out->before = layer > 0 ? left_by(&out->work, layer - 1) : out->left;
    out->raised = layer > 1 ? left_by(&out->work, layer - 2) : out->left;
    out->blocks = d->blocks;
    out->grouped = out->layouts.grouped && !decode_slides(kv, layer);
    out->slots = attend_slots(d, kv->head_dim, size->heads / kv->kv_heads,
                              out->grouped);
    out->ended = NULL;
    if (kv->layers > 1) {
        out->ended = out->work.ended + layer;
        out->ended_old = out->work.ended + (layer > 0 ? layer : kv->layers) - 1;
    }
    out->work.layer += layer;
    out->work.head += (size_t) layer * out->work.max_heads;
    out->work.cut += (size_t) layer * (out->work.max_ranges + 1);
    out->work.span += (size_t) layer * out->work.max_heads;
    out->group = size->heads / kv->kv_heads;
    out->group_inverse = out->group == 1 ? 0 : UINT32_MAX / out->group + 1;
    return true;
}

extern "C" int
tr_cuda_decode(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
               uint32_t layer, const tr_rows_t *rows,
               const tr_cuda_queries_t *queries,
               const tr_cuda_decode_size_t *size, void *work)
{
    uint32_t warps;
    decode_args_t a;
    bool uncompressed;
    decode_mode_t mode;
    int rc;

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    uncompressed = decode_plain(kv);
    if (!decode_args(s->device, kv, layer, rows, size, work, &a)
        || queries->heads != size->heads || queries->ldq % 8 != 0
        || queries->ldo % 8 != 0 || !aligned(queries->q)
        || !aligned(queries->out)) {
        return TR_KERNEL_BADARG;
    }
    mode = decode_slides(kv, layer) ? DECODE_REACH
           : uncompressed           ? DECODE_UNCOMPRESSED
           : a.grouped              ? DECODE_GROUPED
                                    : DECODE_ALL;
    a.reaches = mode == DECODE_REACH;
    a.q = queries->q;
    a.out = queries->out;
    a.ldq = queries->ldq;
    a.ldo = queries->ldo;
    a.q_type = queries->q_type;
    a.out_type = queries->out_type;
    a.scale = queries->scale * 1.4426950408889634f;
    warps = decode_warps(s->device, kv->head_dim, a.group, a.layouts.grouped)
            / s->device->blocks;
    rc = launch_with(s, true,
                     warps * ring_bytes(kv->head_dim, a.slots, a.grouped)
                         + ENDED,
                     attend_for(mode, kv->head_dim, a.group),
                     dim3(s->device->blocks), warps * 32, a);
    if (rc != TR_KERNEL_OK || s->device->unfinished) {
        return rc;
    }
    return decode_reduce(s, &a, rows->n_seqs);
}
