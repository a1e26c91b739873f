/*
 * The plan of a decode step: describes the heads of every layer, cuts each
 * layer's tiles into ranges of equal bytes, and lists the segments whose scores
 * are to be raised, with an index of their rows.
 *
 * One block a layer.  Sums over heads stay in shared memory, where the cuts are
 * looked up, so that a step's plan takes a few microseconds.
 */
#include "decode.cuh"
#include "kernels/cuda/launch.cuh"

#include <cuda_runtime.h>

#define THREADS 1024u
#define RANGE_COST 192u     /* of a range, at least: 12 KiB */
#define SHARED_HEADS 10000u /* whose sums fit into 48 KiB with the rest */
/* Bytes of parts and traces that the L2 cache is asked to keep, of an H200's 50
 * MB: with more, less stays. */
#define L2_KEEPS 10e6f
#define L2_SHARE 0.2f
#define STAY_LEAST 0.0625f /* a share cannot be 0 */

/* ---- workspace ---------------------------------------------------------- */

static size_t
take(size_t *at, size_t bytes)
{
    size_t begin = *at;

    *at += (bytes + 255) / 256 * 256;
    return begin;
}

decode_work_t
decode_work(const tr_device_props_t *d, const tr_cuda_decode_size_t *size,
            void *at)
{
    size_t heads = (size_t) size->max_seqs * size->kv_heads, end = 0;
    size_t layers = size->layers, all = heads * layers;
    uint32_t group = size->kv_heads == 0 ? 1 : size->heads / size->kv_heads;
    uint32_t warps = decode_warps(d, size->head_dim, group, false);
    size_t places = heads + warps;
    size_t traces, jobs = heads * SEGMENTS, rows;
    uint8_t *base = (uint8_t *) at;
    decode_work_t w;

    /* uncompressed tiles have eight tokens; a segment's last may have one */
    traces = size->max_tokens * size->kv_heads / 8 + 2 * jobs;
    traces += traces % 2;
    rows = traces / ROW_TILES + jobs;
    w.max_heads = (uint32_t) heads;
    w.max_ranges = warps;
    w.max_jobs = (uint32_t) jobs;
    w.max_index = (uint32_t) (rows / INDEX_ROWS + 1);
    w.max_traces = (uint32_t) traces;
#define TAKE(field, type, n) \
    (field) = (type *) (base + take(&end, (n) * sizeof(type)))
    TAKE(w.layer, decode_layer_t, layers);
    TAKE(w.head, decode_head_t, all);
    TAKE(w.before, uint32_t, all + layers);
    TAKE(w.cut, decode_cut_t, ((size_t) w.max_ranges + 1) * layers);
    TAKE(w.job, decode_job_t, jobs * layers);
    TAKE(w.index, uint32_t, w.max_index * layers);
    TAKE(w.claimed, uint32_t, PILES * CLAIM_WORDS * layers);
    TAKE(w.span, decode_span_t, all);
    TAKE(w.part_sum, float2, places * GROUP);
    TAKE(w.part_out, float, (places * group * size->head_dim));
    TAKE(w.ended, uint32_t, layers);
    for (int i = 0; i < 2; i++) {
        TAKE(w.left[i].total, float, (heads * GROUP));
        TAKE(w.left[i].weights, uint32_t, traces * group * 4);
        TAKE(w.left[i].maxima, float, (traces * group));
        TAKE(w.left[i].find, decode_candidate_t, rows);
    }
#undef TAKE
    w.bytes = end;
    return w;
}

int
decode_layouts(const tr_kv_view_t *kv, decode_layouts_t *out)
{
    uint32_t dim = kv->head_dim;

    if (kv->n_layouts == 0 || kv->n_layouts > TR_KV_LAYOUTS_MAX) {
        return TR_KERNEL_BADARG;
    }
    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < kv->n_layouts; i++) {
        const tr_kv_layout_t *l = &kv->layout[i];
        decode_layout_t *o = &out->of[i];
        bool wide = l->level.key_bits == 16;
        uint32_t bytes;

        if (l->head_dim != dim || !tr_cuda_decode_level(&l->level)) {
            return TR_KERNEL_BADARG;
        }
        o->key_bits = l->level.key_bits;
        o->value_bits = l->level.value_bits;
        o->tile = wide ? 8 : 16;
        o->tokens = l->tokens;
        o->tiles = l->tokens / o->tile;
        o->bytes = wide ? o->tile * dim * 2 : l->tile;
        o->value = l->value;
        o->score = l->score;
        o->position = l->position;
        o->recent = l->recent;
        o->scored = l->level.scored;
        o->groups = wide ? 1 : l->level.key_groups;
        out->grouped = out->grouped || o->groups > 1;
        bytes = o->tile
                * (dim * (o->key_bits + o->value_bits) / 8
                   + (wide ? 0 : 8u * o->groups));
        /* instructions take their time, too: measured */
        o->cost = bytes / 64 + (wide ? 0 : o->key_bits == 8 ? 4 : 7);
        if (l->tokens % o->tile != 0 || o->tiles == 0
            || (!wide && l->tile != bytes)) { /* see unit_step */
            return TR_KERNEL_BADARG;
        }
        o->inverse = o->tiles == 1 ? 0 : UINT32_MAX / o->tiles + 1;
    }
    return TR_KERNEL_OK;
}

/* ---- device ------------------------------------------------------------- */

typedef struct {
    tr_kv_view_t kv;
    tr_rows_t rows;
    decode_layouts_t layouts;
    decode_work_t work;
    uint32_t group;
    uint32_t warps; /* of the attend kernel */
    float keeps;    /* bytes that the L2 cache is asked to keep */
} plan_args_t;

/* What is summed over heads; live: those that have tiles. */
typedef struct {
    uint32_t cost, traces, jobs, rows, live;
} sums_t;

static __device__ __forceinline__ sums_t
plus(const sums_t &a, const sums_t &b)
{
    sums_t s = { a.cost + b.cost, a.traces + b.traces, a.jobs + b.jobs,
                 a.rows + b.rows, a.live + b.live };

    return s;
}

static __device__ __forceinline__ uint32_t
rows_of(uint32_t tiles)
{
    return (tiles + ROW_TILES - 1) / ROW_TILES;
}

/* How many tokens each segment of h has, and their layout. */
static __device__ __forceinline__ void
describe_tokens(const plan_args_t &a, const tr_kv_seq_t &s, decode_head_t &h)
{
    uint4 count = *(const uint4 *) (a.kv.count
                                    + (size_t) h.head * TR_KV_TIERS_MAX);

#pragma unroll
    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        uint32_t tokens = l == 0   ? count.x
                          : l == 1 ? count.y
                          : l == 2 ? count.z
                                   : count.w;

        h.tokens[l] = l < s.n_tiers ? tokens : 0;
        h.layout[l] = l < s.n_tiers ? s.tier_layout[l] : 0;
    }
    h.tokens[SEG_WINDOW] = tr_kv_windowed(&s) > 0
                               ? min(s.base, s.sinks + s.window)
                               : 0;
    h.layout[SEG_WINDOW] = s.window_layout;
    h.tokens[SEG_UNCOMPRESSED] = h.n >= s.base ? h.n - s.base + 1 : 0;
    h.layout[SEG_UNCOMPRESSED] = 0;
}

/* Fills h, all but traces_before; returns what is summed. */
static __device__ __forceinline__ sums_t
describe(const plan_args_t &a, uint32_t layer, uint32_t i, decode_head_t &h)
{
    uint32_t seq = i / a.kv.kv_heads, kv_head = i - seq * a.kv.kv_heads;
    int32_t slot = a.rows.seq_slot[seq];
    uint32_t row = a.rows.seq_row[seq];
    sums_t sums = { 0, 0, 0, 0, 0 };

    h.tiles = 0;
    if (slot < 0 || a.rows.seq_row[seq + 1] - row != 1) {
        return sums;
    }
    const tr_kv_seq_t s = *tr_kv_seq_of(&a.kv, slot, layer);
    size_t head = ((size_t) slot * a.kv.layers + layer) * a.kv.kv_heads
                  + kv_head;
    uint32_t n = a.rows.row_pos[row];

    h.head = (uint32_t) head;
    h.row = row;
    h.n = n;
    h.base = s.base;
    h.window = s.window;
    h.window_from = s.window_from;
    h.n_tiers = s.n_tiers;
    h.flags = (uint8_t) ((s.scored ? HEAD_SCORED : 0)
                         | (s.by_sum ? HEAD_BY_SUM : 0)
                         | (s.frozen ? HEAD_FROZEN : 0)
                         | (n >= s.recent_from ? HEAD_RECENT : 0));
    describe_tokens(a, s, h);
    if (h.tokens[SEG_WINDOW] != tr_kv_windowed(&s)) {
        h.flags |= HEAD_HOLES;
    }
    uint32_t reach = tr_kv_reach(&a.kv, layer);

    if (reach != 0) { /* base is 0 */
        uint32_t per = a.layouts.of[0].tokens;
        uint32_t unseen = n >= reach ? n - reach + 1 : 0;

        h.window = unseen / per;
        h.window_from = unseen % per;
        h.tokens[SEG_UNCOMPRESSED] -= h.window * per;
    }
#pragma unroll
    for (uint32_t k = 0; k < SEGMENTS; k++) {
        const decode_layout_t &l = a.layouts.of[h.layout[k]];
        uint32_t tiles = decode_tiles(&l, h.tokens[k]);

        h.tiles += tiles;
        sums.traces += decode_even(decode_traces(&l, tiles));
        sums.cost += tiles * l.cost;
        if (s.scored && l.scored) {
            sums.jobs += tiles > 0;
            sums.rows += rows_of(tiles);
        }
    }
    sums.live = h.tiles > 0;
    return sums;
}

/* Tiers without tokens that could be one have no candidate; no job says so. */
static __device__ __forceinline__ void
no_candidates(const plan_args_t &a, const decode_head_t &h)
{
#pragma unroll
    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        if (l < h.n_tiers && (h.flags & HEAD_SCORED)
            && (h.tokens[l] == 0 || !a.layouts.of[h.layout[l]].scored)) {
            a.kv.candidate[(size_t) h.head * TR_KV_TIERS_MAX + l] = {
                __int_as_float(0x7f800000), 0
            };
        }
    }
}

/* Sums of all lower threads; `total` is that of the block. */
static __device__ __forceinline__ sums_t
block_scan(sums_t x, sums_t *total)
{
    __shared__ sums_t of_warp[THREADS / 32];
    const sums_t none = { 0, 0, 0, 0, 0 };
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sums_t sum = x, below;

#pragma unroll
    for (uint32_t d = 1; d < 32; d *= 2) {
        sums_t y = { __shfl_up_sync(TR_ALL_LANES, sum.cost, d),
                     __shfl_up_sync(TR_ALL_LANES, sum.traces, d),
                     __shfl_up_sync(TR_ALL_LANES, sum.jobs, d),
                     __shfl_up_sync(TR_ALL_LANES, sum.rows, d),
                     __shfl_up_sync(TR_ALL_LANES, sum.live, d) };

        sum = lane >= d ? plus(sum, y) : sum;
    }
    __syncthreads();
    if (lane == 31) {
        of_warp[warp] = sum;
    }
    __syncthreads();
    below = of_warp[lane];
#pragma unroll
    for (uint32_t d = 1; d < 32; d *= 2) {
        sums_t y = { __shfl_up_sync(TR_ALL_LANES, below.cost, d),
                     __shfl_up_sync(TR_ALL_LANES, below.traces, d),
                     __shfl_up_sync(TR_ALL_LANES, below.jobs, d),
                     __shfl_up_sync(TR_ALL_LANES, below.rows, d),
                     __shfl_up_sync(TR_ALL_LANES, below.live, d) };

        below = lane >= d ? plus(below, y) : below;
    }
    total->cost = __shfl_sync(TR_ALL_LANES, below.cost, 31);
    total->traces = __shfl_sync(TR_ALL_LANES, below.traces, 31);
    total->jobs = __shfl_sync(TR_ALL_LANES, below.jobs, 31);
    total->rows = __shfl_sync(TR_ALL_LANES, below.rows, 31);
    total->live = __shfl_sync(TR_ALL_LANES, below.live, 31);
    uint32_t from = warp > 0 ? warp - 1 : 0;
    sums_t lower = { __shfl_sync(TR_ALL_LANES, below.cost, from),
                     __shfl_sync(TR_ALL_LANES, below.traces, from),
                     __shfl_sync(TR_ALL_LANES, below.jobs, from),
                     __shfl_sync(TR_ALL_LANES, below.rows, from),
                     __shfl_sync(TR_ALL_LANES, below.live, from) };

    lower = warp > 0 ? lower : none;
    sum.cost += lower.cost - x.cost;
    sum.traces += lower.traces - x.traces;
    sum.jobs += lower.jobs - x.jobs;
    sum.rows += lower.rows - x.rows;
    sum.live += lower.live - x.live;
    return sum;
}

/* The jobs of head i, from `job` on; rows: those of all jobs before. */
static __device__ __forceinline__ void
list_jobs(const plan_args_t &a, uint32_t i, const decode_head_t &h,
          decode_job_t *job, uint32_t rows)
{
    uint32_t before = h.traces_before;

    if (!(h.flags & HEAD_SCORED)) {
        return;
    }
#pragma unroll
    for (uint32_t k = 0; k < SEGMENTS; k++) {
        const decode_layout_t &l = a.layouts.of[h.layout[k]];
        uint32_t tiles = decode_tiles(&l, h.tokens[k]);

        if (tiles > 0 && l.scored) {
            uint4 *to = (uint4 *) job++;

            to[0] = make_uint4(h.head, i, h.tokens[k], h.n);
            to[1] = make_uint4(before, rows,
                               k | h.layout[k] << 8 | (uint32_t) h.flags << 16,
                               rows_of(tiles));
            rows += rows_of(tiles);
        }
        before += decode_even(decode_traces(&l, tiles));
    }
}

/* The job of each row that INDEX_ROWS divides. */
static __device__ __forceinline__ void
index_rows(const decode_job_t *job, uint32_t jobs, uint32_t *index)
{
    for (uint32_t j = threadIdx.x; j < jobs; j += THREADS) {
        uint32_t from = job[j].before, to = from + job[j].rows;

        for (uint32_t i = (from + INDEX_ROWS - 1) / INDEX_ROWS;
             i * INDEX_ROWS < to; i++) {
            index[i] = j;
        }
    }
}

/* The tile at which `target` falls. */
static __device__ __forceinline__ decode_cut_t
cut_at(const plan_args_t &a, const decode_head_t *heads, const uint32_t *before,
       uint32_t n_heads, uint32_t target)
{
    uint32_t lo = 0, hi = n_heads; /* before[lo] <= target < before[hi] */
    decode_cut_t c;

    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;

        if (before[mid] <= target) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    const decode_head_t &h = heads[lo];

    c.head = lo;
    c.tile = 0;
    target -= before[lo];
#pragma unroll 1
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        const decode_layout_t *l = &a.layouts.of[h.layout[i]];
        uint32_t tiles = decode_tiles(l, h.tokens[i]);

        if (target < tiles * l->cost) {
            c.tile += target / l->cost;
            break;
        }
        c.tile += tiles;
        target -= tiles * l->cost;
    }
    return c;
}

/* Of each head, the range that has its first tile, and the one that has its
 * last: what range b has from one cut to the next. */
static __device__ __forceinline__ void
note_spans(decode_span_t *span, uint32_t b, const decode_cut_t &from,
           const decode_cut_t &to)
{
    for (uint32_t h = from.head + (from.tile > 0); h < to.head + (to.tile > 0);
         h++) {
        span[h].first = b;
    }
    for (uint32_t h = from.head; h < to.head; h++) {
        span[h].last = b;
    }
}

/* The share of the traces that stays in the L2 cache. */
static __device__ __forceinline__ float
share_to_stay(const plan_args_t &a, uint32_t ranges, const sums_t &sums)
{
    float parts = (float) (ranges + sums.live) * a.group * a.kv.head_dim * 4;
    /* of scored tiles, nearly all of 16 tokens */
    float traces = (float) sums.rows * ROW_TILES * a.group * 36;

    return fminf(fmaxf((a.keeps - parts) / (2 * traces + 1), STAY_LEAST), 1);
}

/* Describes a layer's heads, those with something to do one after the other;
 * before: the costs in front of each, and all of them at the end. */
static __device__ __forceinline__ sums_t
plan_heads(const plan_args_t &a, uint32_t layer, uint32_t n_heads,
           uint32_t *before, decode_span_t *span, decode_job_t *job)
{
    decode_head_t *head = a.work.head + (size_t) layer * a.work.max_heads;
    sums_t sums = { 0, 0, 0, 0, 0 };

    for (uint32_t from = 0; from < n_heads; from += THREADS) {
        uint32_t i = from + threadIdx.x;
        sums_t mine = { 0, 0, 0, 0, 0 }, all;
        decode_head_t h;

        if (i < n_heads) {
            mine = describe(a, layer, i, h);
        }
        sums_t at = plus(sums, block_scan(mine, &all));

        if (mine.live) {
            h.traces_before = at.traces;
            head[at.live] = h;
            span[at.live].row = h.row;
            span[at.live].kv_head = i % a.kv.kv_heads;
            before[at.live] = at.cost;
            list_jobs(a, at.live, h, job + at.jobs, at.rows);
            no_candidates(a, h);
        }
        sums = plus(sums, all);
    }
    for (uint32_t i = sums.live + threadIdx.x; i < n_heads; i += THREADS) {
        span[i] = { 1, 0, 0, 0 }; /* heads with nothing to do have no parts */
    }
    if (threadIdx.x == 0) {
        before[sums.live] = sums.cost;
    }
    return sums;
}

/* Cuts a layer into ranges of like cost; their number. */
static __device__ __forceinline__ uint32_t
plan_ranges(const plan_args_t &a, uint32_t layer, const sums_t &sums,
            const uint32_t *before, decode_span_t *span)
{
    const decode_head_t *head = a.work.head + (size_t) layer * a.work.max_heads;
    decode_cut_t *cut = a.work.cut + (size_t) layer * (a.work.max_ranges + 1);
    uint32_t ranges = max(1u, sums.cost / RANGE_COST);

    ranges = min(ranges, a.warps);
    for (uint32_t b = threadIdx.x; b <= a.work.max_ranges; b += THREADS) {
        decode_cut_t c = { sums.live, 0 };

        if (b < ranges && sums.cost > 0) {
            c = cut_at(a, head, before, sums.live,
                       (uint32_t) ((uint64_t) sums.cost * b / ranges));
        }
        cut[b] = c;
    }
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < ranges; b += THREADS) {
        note_spans(span, b, cut[b], cut[b + 1]);
    }
    return ranges;
}

static __global__ void __launch_bounds__(THREADS)
    plan_kernel(const __grid_constant__ plan_args_t a)
{
    extern __shared__ uint32_t shared_before[];
    const uint32_t layer = blockIdx.x, n_heads = a.rows.n_seqs * a.kv.kv_heads;
    decode_job_t *job = a.work.job + (size_t) layer * a.work.max_jobs;
    decode_span_t *span = a.work.span + (size_t) layer * a.work.max_heads;
    uint32_t *before = n_heads <= SHARED_HEADS
                           ? shared_before
                           : a.work.before
                                 + (size_t) layer * (a.work.max_heads + 1);
    uint32_t ranges;
    sums_t sums;

    launch_next();
    sums = plan_heads(a, layer, n_heads, before, span, job);
    __syncthreads();
    if (threadIdx.x < PILES) {
        a.work.claimed[(layer * PILES + threadIdx.x) * CLAIM_WORDS] = 0;
    }
    index_rows(job, sums.jobs,
               a.work.index + (size_t) layer * a.work.max_index);
    ranges = plan_ranges(a, layer, sums, before, span);
    if (threadIdx.x == 0) {
        decode_layer_t l = { ranges, sums.jobs, sums.rows,
                             share_to_stay(a, ranges, sums) };

        a.work.layer[layer] = l;
        a.work.ended[layer] = 0;
    }
}

/* ---- launchers ---------------------------------------------------------- */

extern "C" size_t
tr_cuda_decode_work(const tr_device_props_t *d,
                    const tr_cuda_decode_size_t *size)
{
    return decode_work(d, size, NULL).bytes;
}

extern "C" int
tr_cuda_decode_plan(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                    const tr_rows_t *rows, const tr_cuda_decode_size_t *size,
                    void *work)
{
    plan_args_t a;
    uint32_t heads, bytes;

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (rows->n_seqs > size->max_seqs || kv->kv_heads != size->kv_heads
        || kv->kv_heads == 0 || kv->layers != size->layers
        || kv->head_dim != size->head_dim || size->heads == 0
        || size->heads % size->kv_heads != 0
        || size->heads / size->kv_heads > GROUP
        || decode_layouts(kv, &a.layouts) != TR_KERNEL_OK) {
        return TR_KERNEL_BADARG;
    }
    a.kv = *kv;
    a.rows = *rows;
    a.work = decode_work(s->device, size, work);
    a.group = size->heads / size->kv_heads;
    a.warps = decode_warps(s->device, size->head_dim, a.group,
                           a.layouts.grouped);
    a.keeps = fminf(L2_KEEPS, (float) s->device->l2 * L2_SHARE);
    heads = rows->n_seqs * kv->kv_heads;
    bytes = heads <= SHARED_HEADS ? (heads + 1) * 4 : 0;
    /* plainly: moves begin with it, and what they need is in front */
    return launch_with(s, false, bytes, plan_kernel, dim3(kv->layers), THREADS,
                       a);
}
