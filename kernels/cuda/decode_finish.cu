/*
 * The end of decode attention: what is only known when all parts of a head are.
 *
 *   join    blocks: the outputs of a head's parts; many heads: a warp for each
 *           query head, few: a block
 *   score   warps: each takes a job of the plan's list, up to JOB_TILES tiles of
 *           a segment, raises their scores by the largest probability of the
 *           group, and finds the least significant token of them; the last job
 *           of a list chooses among the jobs' finds
 *
 * A lane has four tokens at a time, g, g + 1, g + 8 and g + 9 of a tile, whose
 * scores, positions and weights are neighbours in memory.
 *
 * The kernel starts while the attend kernel still runs, where the device can do
 * that: scores and positions, which that one leaves alone, are asked for before
 * it waits.
 */
#include "decode.cuh"
#include "ptx.cuh"

#include <cuda_runtime.h>

#define THREADS 256u
#define WARPS (THREADS / 32)
#define BATCH (JOB_TILES * 4 / 32) /* groups of four tokens of a lane */

static __device__ __forceinline__ bool
worse(const decode_victim_t &a, const decode_victim_t &b)
{
    return a.significance < b.significance
           || (a.significance == b.significance && a.position < b.position);
}

static __device__ __forceinline__ decode_victim_t
no_victim(void)
{
    decode_victim_t v = { __int_as_float(0x7f800000), 0xffffffffu, 0, 0 };

    return v;
}

static __device__ __forceinline__ decode_victim_t
least_of_warp(decode_victim_t v)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        decode_victim_t o;

        o.significance = __shfl_xor_sync(TR_ALL_LANES, v.significance, d);
        o.position = __shfl_xor_sync(TR_ALL_LANES, v.position, d);
        o.index = __shfl_xor_sync(TR_ALL_LANES, v.index, d);
        o.pad = 0;
        v = worse(o, v) ? o : v;
    }
    return v;
}

/* {max, sum relative to it}: those of lanes that differ in the bits from `low`
 * up, together. */
static __device__ __forceinline__ float2
join_lanes(float2 x, int low)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        if (d < low) {
            break;
        }
        float m = __shfl_xor_sync(TR_ALL_LANES, x.x, d);
        float sum = __shfl_xor_sync(TR_ALL_LANES, x.y, d);
        float most = fmaxf(x.x, m);

        x.y = x.y * exp2_fast(x.x - most) + sum * exp2_fast(m - most);
        x.x = most;
    }
    return x;
}

/* Of all parts, of query head k + lane % K of those of the list; one that does
 * not exist has no sum that means anything. */
template <uint32_t K>
static __device__ __forceinline__ float2
join_sums(const decode_args_t &a, uint2 span, uint32_t head, uint32_t k)
{
    const uint32_t lane = threadIdx.x % 32;
    const float2 *from = a.work.part_sum + (size_t) head * GROUP + k + lane % K;
    float2 all = make_float2(-1e30f, 0);

    if (k + lane % K < a.group) {
#pragma unroll 8
        for (uint32_t b = span.x + lane / K; b <= span.y; b += 32 / K) {
            float2 x = from[(size_t) b * GROUP];
            float most = fmaxf(all.x, x.x);

            all.y = all.y * exp2_fast(all.x - most)
                    + x.y * exp2_fast(x.x - most);
            all.x = most;
        }
    }
    return join_lanes(all, K);
}

/* ---- join --------------------------------------------------------------- */

static __device__ __forceinline__ void
store_out(const decode_args_t &a, size_t at, float x)
{
    if (a.out_type == TR_F32) {
        ((float *) a.out)[at] = x;
    } else if (a.out_type == TR_F16) {
        ((__half *) a.out)[at] = __float2half_rn(x);
    } else {
        uint32_t u = __float_as_uint(x);

        u += 0x7fff + (u >> 16 & 1); /* to nearest even */
        ((uint16_t *) a.out)[at] = (uint16_t) (u >> 16);
    }
}

/* Lists that no job scores. */
static __device__ __forceinline__ void
no_victims(const decode_args_t &a, const decode_head_t &h)
{
    uint32_t l = threadIdx.x % 32;

    if (l < h.n_lists && (h.flags & HEAD_SCORED)
        && (h.tokens[l] == 0 || !a.layouts.of[h.layout[l]].scored)) {
        tr_kv_victim_t *to = a.kv.victim + (size_t) h.head * TR_KV_LISTS_MAX
                             + l;

        to->significance = __int_as_float(0x7f800000);
        to->index = 0;
    }
}

/* Parts way, way + ways, .. of query head `at` of the step, over the sum of all;
 * false: it has none.  to: where the lane's elements belong. */
template <int D>
static __device__ __forceinline__ bool
join(const decode_args_t &a, uint32_t at, uint32_t way, uint32_t ways,
     float (&x)[D / 32], size_t &to)
{
    constexpr int N = D / 32; /* elements of a lane */
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t head = at / a.group, k = at - head * a.group;
    const decode_head_t *h = a.work.head + head;

#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = 0;
    }
    if (h->tiles == 0) {
        return false;
    }
    const uint2 span = a.work.span[head];
    const float2 total = join_sums<1>(a, span, head, k);
    const float by = 1 / total.y;

#pragma unroll 8
    for (uint32_t b = span.x + way; b <= span.y; b += ways) {
        size_t place = (size_t) b + head;
        float c = exp2_fast(a.work.part_sum[place * GROUP + k].x - total.x) * by;
        const float *from = a.work.part_out + (place * a.group + k) * D
                            + lane * N;

        if (D == 128) {
            float4 y = *(const float4 *) from;

            x[0] += y.x * c;
            x[1] += y.y * c;
            x[N - 2] += y.z * c;
            x[N - 1] += y.w * c;
        } else {
            float2 y = *(const float2 *) from;

            x[0] += y.x * c;
            x[1] += y.y * c;
        }
    }
    to = (size_t) h->row * a.ldo
         + (size_t) (h->head % a.kv.lists * a.group + k) * D + lane * N;
    if (k == 0 && way == 0) {
        no_victims(a, *h);
    }
    return true;
}

template <int D>
static __device__ __forceinline__ void
join_by_warp(const decode_args_t &a, uint32_t at)
{
    float x[D / 32];
    size_t to = 0;

    if (join<D>(a, at, 0, 1, x, to)) {
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            store_out(a, to + i, x[i]);
        }
    }
}

template <int D>
static __device__ __forceinline__ void
join_by_block(const decode_args_t &a, uint32_t at)
{
    constexpr int N = D / 32;
    __shared__ float out[WARPS][D];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x[N];
    size_t to = 0;
    bool any = join<D>(a, at, warp, WARPS, x, to);

#pragma unroll
    for (int i = 0; i < N; i++) {
        out[warp][lane * N + i] = x[i];
    }
    __syncthreads();
    if (warp > 0 || !any) {
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        for (uint32_t w = 1; w < WARPS; w++) {
            x[i] += out[w][lane * N + i];
        }
        store_out(a, to + i, x[i]);
    }
}

/* ---- score -------------------------------------------------------------- */

/* Tokens 2j + 8r + e of a tile, r, e < 2 (dense tiles: r is 0). */
typedef struct {
    float *score;   /* of the first */
    uint32_t exist; /* bits 2r + e */
    uint32_t position[2][2];
    float old[2][2]; /* then new */
} four_t;

/* The job of a warp. */
typedef struct {
    const decode_head_t *h;
    const int32_t *table;
    const decode_layout_t *l;
    uint32_t head, segment, tile, end; /* tiles of the segment */
    uint32_t first, tokens, n, flags;
} work_t;

/* Page of a tile, at the lane's first token. */
static __device__ __forceinline__ uint8_t *
token_at(const decode_args_t &a, const work_t &w, uint32_t tile, uint32_t j)
{
    const decode_layout_t &l = *w.l;
    uint32_t page = l.inverse == 0 ? tile : __umulhi(tile, l.inverse);
    int id = __ldg(w.table + decode_entry(a.kv, w.segment, page));

    return a.kv.pool + (uint64_t) max(id, 0) * a.kv.page_bytes
           + ((tile - page * l.tiles) * l.tile + 2 * j) * 4;
}

/* Where a page does not say it. */
static __device__ __forceinline__ void
compute_positions(const work_t &w, uint32_t token, four_t &x)
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t at = token + i / 2 * 8 + i % 2, position = w.h->base + at;

        if (w.segment == SEG_WINDOW && (x.exist >> i & 1)) {
            position = decode_window_position(w.h->base, w.h->window, at);
            if (position < w.h->window_from) {
                x.exist &= ~(1u << i);
            }
        }
        x.position[i / 2][i % 2] = position;
    }
}

/* Group i of the job: its scores and positions. */
static __device__ __forceinline__ void
ask(const decode_args_t &a, const work_t &w, uint32_t i, four_t &x)
{
    const uint32_t j = i % 4, tile = w.tile + i / 4;
    uint32_t token = tile * w.l->tile + 2 * j;
    int left = (int) w.tokens - (int) token;

    x.exist = 0;
    if (tile >= w.end) {
        return;
    }
    x.exist = (left > 0 ? 1 : 0) | (left > 1 ? 2 : 0);
    uint8_t *at = token_at(a, w, tile, j);
    float2 s = *(const float2 *) (at + w.l->score);

    x.score = (float *) (at + w.l->score);
    x.old[0][0] = s.x;
    x.old[0][1] = s.y;
    if (w.l->tile == 16) {
        x.exist |= (left > 8 ? 4 : 0) | (left > 9 ? 8 : 0);
        s = *(const float2 *) (at + w.l->score + 32);
        x.old[1][0] = s.x;
        x.old[1][1] = s.y;
    }
    if (w.segment < SEG_WINDOW) {
        uint2 u = __ldg((const uint2 *) (at + w.l->position));
        uint2 v = __ldg((const uint2 *) (at + w.l->position + 32));

        x.position[0][0] = u.x;
        x.position[0][1] = u.y;
        x.position[1][0] = v.x;
        x.position[1][1] = v.y;
    } else {
        compute_positions(w, token, x);
    }
}

/* The largest probabilities of a group of tokens, p[r] of 2j + 8r and the next;
 * tile: of the layer. */
template <int Q>
static __device__ __forceinline__ void
gain(const decode_args_t &a, const float (&most)[Q * QUAD], size_t tile,
     uint32_t j, float2 (&p)[2])
{
    p[0] = p[1] = make_float2(0, 0);
#pragma unroll
    for (int q = 0; q < Q; q++) {
        const uint4 *from = (const uint4 *) (a.work.weights
                                             + (tile * Q + q) * 32 + j * 8);
        const float4 m = *(const float4 *) (a.work.maxima
                                            + (tile * Q + q) * QUAD);
        const uint4 u = from[0], v = from[1];

#pragma unroll
        for (uint32_t t = 0; t < QUAD; t++) {
            float by = exp2_fast((t == 0   ? m.x
                                  : t == 1 ? m.y
                                  : t == 2 ? m.z
                                           : m.w)
                                 - most[q * QUAD + t]);
            float2 x = half2_floats(t == 0   ? u.x
                                    : t == 1 ? u.y
                                    : t == 2 ? u.z
                                             : u.w);
            float2 y = half2_floats(t == 0   ? v.x
                                    : t == 1 ? v.y
                                    : t == 2 ? v.z
                                             : v.w);

            p[0].x = fmaxf(p[0].x, x.x * by);
            p[0].y = fmaxf(p[0].y, y.x * by);
            p[1].x = fmaxf(p[1].x, x.y * by);
            p[1].y = fmaxf(p[1].y, y.y * by);
        }
    }
}

/* Raises the scores of a group; returns the least of what is about its
 * significance, which `about` has for each. */
static __device__ __forceinline__ float
pay(const work_t &w, four_t &x, const float2 (&p)[2], float (&about)[4])
{
    float least = __int_as_float(0x7f800000);

#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t position = x.position[r][e];
            bool later = position < w.n;
            float score = x.old[r][e] + (later ? e ? p[r].y : p[r].x : 0);
            float per = later ? reciprocal((float) (w.n - position)) : 0;

            x.old[r][e] = score;
            score = w.flags & HEAD_BY_SUM ? score : score * per;
            score = x.exist >> (2 * r + e) & 1 ? score
                                               : __int_as_float(0x7f800000);
            about[2 * r + e] = score;
            least = fminf(least, score);
        }
        if ((x.exist >> 2 * r & 3) == 3) {
            *(float2 *) (x.score + 8 * r) = make_float2(x.old[r][0],
                                                        x.old[r][1]);
        } else if (x.exist >> 2 * r & 1) {
            x.score[8 * r] = x.old[r][0];
        } else if (x.exist >> 2 * r & 2) {
            x.score[8 * r + 1] = x.old[r][1];
        }
    }
    return least;
}

/* Dense tokens' second score. */
static __device__ __forceinline__ void
pay_recent(const work_t &w, const four_t &x, const float2 &p)
{
    float *recent = x.score + (w.l->recent - w.l->score) / 4;

    if ((x.exist & 1) && x.position[0][0] < w.n) {
        recent[0] += p.x;
    }
    if ((x.exist & 2) && x.position[0][1] < w.n) {
        recent[1] += p.y;
    }
}

/* The least significant of the lane's tokens in `mask`, bits 4i + 2r + e;
 * significances as the CPU rounds them.  There are few. */
static __device__ __forceinline__ decode_victim_t
choose(const decode_args_t &a, const work_t &w, uint32_t mask)
{
    const uint32_t lane = threadIdx.x % 32;
    decode_victim_t least = no_victim();

    for (; mask != 0; mask &= mask - 1) {
        uint32_t bit = __ffs((int) mask) - 1, i = bit / 4 * 32 + lane;
        uint32_t tile = w.tile + i / 4, more = bit / 2 % 2 * 8 + bit % 2;
        const uint8_t *at = token_at(a, w, tile, i % 4) + more * 4;
        decode_victim_t v = { *(const float *) (at + w.l->score),
                              __ldg((const uint32_t *) (at + w.l->position)),
                              tile * w.l->tile + i % 4 * 2 + more, 0 };

        if (!(w.flags & HEAD_BY_SUM)) {
            v.significance = v.position < w.n
                                 ? __fdiv_rn(v.significance,
                                             (float) (w.n - v.position))
                                 : 0;
        }
        least = worse(v, least) ? v : least;
    }
    return least;
}

/* The warp's find; the last job of the list chooses among all. */
static __device__ __forceinline__ void
report(const decode_args_t &a, const work_t &w, decode_victim_t least)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t tiles = decode_tiles(w.l, w.tokens), before = 0;
    uint32_t jobs = (tiles + JOB_TILES - 1) / JOB_TILES;

    least = least_of_warp(least);
    if (jobs > 1) {
        uint32_t *arrived = a.work.arrived + w.head * TR_KV_LISTS_MAX
                            + w.segment;

        if (lane == 0) {
            __stcg((uint4 *) a.work.victim + w.first + w.tile / JOB_TILES,
                   make_uint4(__float_as_uint(least.significance),
                              least.position, least.index, 0));
            __threadfence();
            before = atomicAdd(arrived, 1u);
            __threadfence();
        }
        if (__shfl_sync(TR_ALL_LANES, before, 0) + 1 != jobs) {
            return;
        }
        least = no_victim();
        for (uint32_t i = lane; i < jobs; i += 32) {
            uint4 u = __ldcg((const uint4 *) a.work.victim + w.first + i);
            decode_victim_t o = { __uint_as_float(u.x), u.y, u.z, 0 };

            least = worse(o, least) ? o : least;
        }
        least = least_of_warp(least);
        if (lane == 0) { /* for the next launch with this plan */
            *arrived = 0;
        }
    }
    if (lane == 0) {
        tr_kv_victim_t *to = a.kv.victim
                             + (size_t) w.h->head * TR_KV_LISTS_MAX
                             + w.segment;

        to->significance = least.significance;
        to->index = least.index;
    }
}

/* Reads job j; returns the tile of the layer at which it begins. */
static __device__ __forceinline__ size_t
take_job(const decode_args_t &a, uint32_t j, work_t &w)
{
    const uint4 job = __ldg((const uint4 *) a.work.job + j);

    w.head = job.x;
    w.segment = job.y;
    w.tile = job.z;
    w.first = job.w;
    w.h = a.work.head + w.head;
    w.l = &a.layouts.of[w.h->layout[w.segment]];
    w.tokens = w.h->tokens[w.segment];
    w.end = min(w.tile + JOB_TILES, decode_tiles(w.l, w.tokens));
    w.n = w.h->n;
    w.flags = w.h->flags;
    w.table = a.kv.tables + (size_t) w.h->head * a.kv.table_len;

    size_t n = w.h->tiles_before + w.tile;

    for (uint32_t s = 0; s < w.segment; s++) {
        n += decode_tiles(&a.layouts.of[w.h->layout[s]], w.h->tokens[s]);
    }
    return n;
}

template <int Q>
static __device__ __forceinline__ void
score(const decode_args_t &a, uint32_t job, bool &waited)
{
    const uint32_t lane = threadIdx.x % 32;
    float most[Q * QUAD], about[BATCH][4], least = __int_as_float(0x7f800000);
    uint32_t mask = 0;
    four_t x[BATCH];
    work_t w;
    size_t tile = take_job(a, job, w);

#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
        ask(a, w, i * 32 + lane, x[i]);
    }
    if (!waited) {
        launch_wait();
        waited = true;
    }
    float2 total = join_sums<Q * QUAD>(a, a.work.span[w.head], w.head, 0);
    float log = lane % (Q * QUAD) < a.group ? total.x + __log2f(total.y)
                                            : 1e30f;

#pragma unroll
    for (uint32_t k = 0; k < Q * QUAD; k++) {
        most[k] = __shfl_sync(TR_ALL_LANES, log, k);
    }
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
        uint32_t at = i * 32 + lane;
        float2 p[2];

        if (x[i].exist != 0) {
            gain<Q>(a, most, tile + at / 4, at % 4, p);
            least = fminf(least, pay(w, x[i], p, about[i]));
            if (w.segment == SEG_DENSE && (w.flags & HEAD_RECENT)) {
                pay_recent(w, x[i], p[0]);
            }
        }
    }
    if (w.segment >= SEG_WINDOW) {
        return;
    }
    /* `about` is right to 2^-22, or to the smallest normal number */
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        least = fminf(least, __shfl_xor_sync(TR_ALL_LANES, least, d));
    }
    least = fmaf(least, 1 + 0x1p-20f, 0x1p-126f);
#pragma unroll
    for (uint32_t i = 0; i < BATCH * 4; i++) {
        bool may = (x[i / 4].exist >> i % 4 & 1) && about[i / 4][i % 4] <= least;

        mask |= may ? 1u << i : 0;
    }
    report(a, w, choose(a, w, mask));
}

/* The first `blocks` blocks work off the list of jobs, then the query heads,
 * where a warp joins one; else every other block joins one. */
template <int D, int Q>
static __global__ void
__launch_bounds__(THREADS, 3)
    finish_kernel(const __grid_constant__ decode_args_t a, uint32_t blocks,
                  uint32_t by_warp)
{
    if (blockIdx.x >= blocks) {
        launch_wait();
        join_by_block<D>(a, blockIdx.x - blocks);
        return;
    }
    const uint32_t jobs = a.work.layer->jobs;
    bool waited = false;

    /* neighbours in different blocks: few jobs use many of them */
    for (uint32_t i = blockIdx.x + threadIdx.x / 32 * blocks; i < jobs + by_warp;
         i += blocks * WARPS) {
        if (i < jobs) {
            score<Q>(a, i, waited);
            continue;
        }
        if (!waited) {
            launch_wait();
            waited = true;
        }
        join_by_warp<D>(a, i - jobs);
    }
}

/* ---- launcher ----------------------------------------------------------- */

int
decode_finish(const tr_cuda_stream_t *s, const decode_args_t *a,
              const tr_cuda_decode_size_t *size, uint32_t n_seqs)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    uint32_t n_heads = n_seqs * a->kv.lists, all = n_heads * a->group;
    /* few query heads have many parts each */
    bool by_warp = all >= s->device->blocks * WARPS;
    uint32_t blocks = (a->work.max_jobs + WARPS - 1) / WARPS;
    bool wide = a->group > QUAD;

    if (blocks > s->device->blocks * 3 || by_warp) {
        blocks = s->device->blocks * 3; /* all that run at once */
    }
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(blocks + (by_warp ? 0 : all));
    config.blockDim = dim3(THREADS);
    config.stream = (cudaStream_t) s->stream;
    config.attrs = &early;
    config.numAttrs = s->device->dependent ? 1 : 0;
    if (size->head_dim == 128) {
        cudaLaunchKernelEx(&config,
                           wide ? finish_kernel<128, 2> : finish_kernel<128, 1>,
                           *a, blocks, by_warp ? all : 0);
    } else {
        cudaLaunchKernelEx(&config,
                           wide ? finish_kernel<64, 2> : finish_kernel<64, 1>,
                           *a, blocks, by_warp ? all : 0);
    }
    return tr_cuda_check();
}
