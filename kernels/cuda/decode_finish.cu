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
#define BATCH 4u /* groups of four tokens that a lane asks for at once */

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

/* Of all parts of query head lane % 8: the maximum, and the sum relative to it.
 * Lanes 8 and more have the same. */
static __device__ __forceinline__ float2
join_sums(const decode_args_t &a, uint2 span, uint32_t head)
{
    const uint32_t lane = threadIdx.x % 32, k = lane % GROUP;
    float m = -1e30f, sum = 0;

#pragma unroll 4
    for (uint32_t b = span.x + lane / GROUP; b <= span.y; b += 4) {
        float2 x = k < a.group
                       ? a.work.part_sum[(size_t) (b + head) * GROUP + k]
                       : make_float2(0, 1);
        float most = fmaxf(m, x.x);

        sum = sum * exp2_fast(m - most) + x.y * exp2_fast(x.x - most);
        m = most;
    }
#pragma unroll
    for (int d = 8; d < 32; d *= 2) {
        float m1 = __shfl_xor_sync(TR_ALL_LANES, m, d);
        float s1 = __shfl_xor_sync(TR_ALL_LANES, sum, d);
        float most = fmaxf(m, m1);

        sum = sum * exp2_fast(m - most) + s1 * exp2_fast(m1 - most);
        m = most;
    }
    return make_float2(m, sum);
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

/* A query head is `ways` warps, which take its parts in turn. */
template <int D>
static __device__ __forceinline__ void
join(const decode_args_t &a, uint32_t block, uint32_t ways, uint32_t n_heads)
{
    constexpr int N = D / 32; /* elements of a lane */
    __shared__ float out[WARPS][D];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t at = (block * WARPS + warp) / ways, way = warp % ways;
    const uint32_t head = at / a.group, k = at - head * a.group;
    const decode_head_t *h = a.work.head + head;
    const bool here = head < n_heads && h->tiles > 0;
    float x[N] = {};
    size_t to = 0;

    if (here) {
        const uint2 span = a.work.span[head];
        float2 total = join_sums(a, span, head);
        float most = __shfl_sync(TR_ALL_LANES, total.x, k);
        float by = 1 / __shfl_sync(TR_ALL_LANES, total.y, k);

#pragma unroll 8
        for (uint32_t b = span.x + way; b <= span.y; b += ways) {
            size_t place = (size_t) b + head;
            float c = exp2_fast(a.work.part_sum[place * GROUP + k].x - most);
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
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] *= by;
        }
        to = (size_t) h->row * a.ldo
             + (size_t) (h->head % a.kv.lists * a.group + k) * D + lane * N;
        if (k == 0 && way == 0) {
            no_victims(a, *h);
        }
    }
    if (ways > 1) { /* all of them have one query head */
#pragma unroll
        for (int i = 0; i < N; i++) {
            out[warp][lane * N + i] = x[i];
        }
        __syncthreads();
        if (warp > 0) {
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            for (uint32_t w = 1; w < WARPS; w++) {
                x[i] += out[w][lane * N + i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N && here; i++) {
        store_out(a, to + i, x[i]);
    }
}

/* ---- score -------------------------------------------------------------- */

/* Tokens 2j, 2j + 1, 2j + 8, 2j + 9 of a tile (dense ones: two). */
typedef struct {
    float *score;
    uint32_t exist; /* bits 2r + e */
    uint2 position[2];
    float2 old[2];
} four_t;

/* The job of a warp. */
typedef struct {
    const decode_head_t *h;
    const int32_t *table;
    const decode_layout_t *l;
    uint32_t head, segment, tile, end; /* tiles of the segment */
    uint32_t first, tokens, n, flags;
} work_t;

static __device__ __forceinline__ void
position_of(const work_t &w, uint32_t token, uint32_t bit, uint32_t &position,
            uint32_t &exist)
{
    if (w.segment == SEG_WINDOW) {
        position = decode_window_position(w.h->base, w.h->window, token);
        if (position < w.h->window_from) {
            exist &= ~bit;
        }
    } else if (w.segment == SEG_DENSE) {
        position = w.h->base + token;
    }
}

/* Group i of the job. */
static __device__ __forceinline__ void
ask(const decode_args_t &a, const work_t &w, uint32_t i, four_t &x)
{
    const decode_layout_t &l = *w.l;
    const uint32_t j = i % 4, tile = w.tile + i / 4;
    uint32_t page = l.inverse == 0 ? tile : __umulhi(tile, l.inverse);
    uint32_t token = tile * l.tile + 2 * j, left = w.tokens - token;

    if (tile >= w.end || token >= w.tokens) {
        x.exist = 0;
        return;
    }
    x.exist = 1 | (left > 1 ? 2 : 0)
              | (l.tile == 16 ? (left > 8 ? 4 : 0) | (left > 9 ? 8 : 0) : 0);
    int id = __ldg(w.table + decode_entry(a.kv, w.segment, page));
    uint8_t *at = a.kv.pool + (uint64_t) max(id, 0) * a.kv.page_bytes
                  + ((tile - page * l.tiles) * l.tile + 2 * j) * 4;

    x.score = (float *) (at + l.score);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        if (x.exist >> 2 * r & 1) {
            x.old[r] = *(const float2 *) (x.score + 8 * r);
            if (w.segment < SEG_WINDOW) {
                x.position[r] = __ldg((const uint2 *) (at + l.position)
                                      + 4 * r);
            } else {
                position_of(w, token + 8 * r, 1 << 2 * r, x.position[r].x,
                            x.exist);
                position_of(w, token + 8 * r + 1, 2 << 2 * r,
                            x.position[r].y, x.exist);
            }
        }
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

/* x / d, rounded to nearest: what the CPU finds.  d: a positive integer.  As
 * the compiler does it, less what integers do not need. */
static __device__ __forceinline__ float
divide(float x, float d)
{
    float r = reciprocal(d), y;

    r = fmaf(fmaf(-d, r, 1.0f), r, r);
    y = x * r;
    y = fmaf(fmaf(-d, y, x), r, y);
    y = fmaf(fmaf(-d, y, x), r, y);
    if (x != 0 && !(x > 0x1p-80f && x < 0x1p80f)) { /* steps out of range */
        y = __fdiv_rn(x, d);
    }
    return y;
}

/* Raises one token's score. */
static __device__ __forceinline__ float
pay(const work_t &w, uint32_t position, uint32_t index, float old, float p,
    decode_victim_t &least)
{
    bool later = position < w.n;
    float score = old + (later ? p : 0);
    decode_victim_t v = { score, position, index, 0 };

    if (w.segment < SEG_WINDOW) {
        if (!(w.flags & HEAD_BY_SUM)) {
            v.significance = later ? divide(score, (float) (w.n - position))
                                   : 0;
        }
        least = worse(v, least) ? v : least;
    }
    return score;
}

/* Dense tokens' second score. */
static __device__ __forceinline__ void
pay_recent(const work_t &w, const four_t &x, const float2 (&p)[2])
{
    float *recent = x.score + (w.l->recent - w.l->score) / 4;

    if (x.position[0].x < w.n) {
        recent[0] += p[0].x;
    }
    if ((x.exist & 2) && x.position[0].y < w.n) {
        recent[1] += p[0].y;
    }
}

static __device__ __forceinline__ void
pay_four(const work_t &w, const four_t &x, uint32_t i, const float2 (&p)[2],
         decode_victim_t &least)
{
    uint32_t index = (w.tile + i / 4) * w.l->tile + i % 4 * 2;

#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float2 y = x.old[r];

        if (x.exist >> 2 * r & 1) {
            y.x = pay(w, x.position[r].x, index + 8 * r, y.x, p[r].x, least);
        }
        if (x.exist >> 2 * r & 2) {
            y.y = pay(w, x.position[r].y, index + 8 * r + 1, y.y, p[r].y,
                      least);
        }
        if ((x.exist >> 2 * r & 3) == 3) {
            *(float2 *) (x.score + 8 * r) = y;
        } else if (x.exist >> 2 * r & 1) {
            x.score[8 * r] = y.x;
        } else if (x.exist >> 2 * r & 2) {
            x.score[8 * r + 1] = y.y;
        }
    }
    if (w.segment == SEG_DENSE && (w.flags & HEAD_RECENT) && x.exist != 0) {
        pay_recent(w, x, p);
    }
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
    decode_victim_t least = no_victim();
    float most[Q * QUAD];
    four_t x[BATCH];
    work_t w;
    size_t tile = take_job(a, job, w);
    uint32_t n = (w.end - w.tile) * 4;

#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
        ask(a, w, i * 32 + lane, x[i]);
    }
    if (!waited) {
        launch_wait();
        waited = true;
    }
    float2 total = join_sums(a, a.work.span[w.head], w.head);
    float log = lane % GROUP < a.group ? total.x + __log2f(total.y) : 1e30f;

#pragma unroll
    for (uint32_t k = 0; k < Q * QUAD; k++) {
        most[k] = __shfl_sync(TR_ALL_LANES, log, k);
    }
    for (uint32_t from = 0;;) {
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            uint32_t at = from + i * 32 + lane;
            float2 p[2];

            if (x[i].exist != 0) {
                gain<Q>(a, most, tile + at / 4, at % 4, p);
                pay_four(w, x[i], at, p, least);
            }
        }
        from += BATCH * 32;
        if (from >= n) {
            break;
        }
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            ask(a, w, from + i * 32 + lane, x[i]);
        }
    }
    if (w.segment < SEG_WINDOW) {
        report(a, w, least);
    }
}

/* The first score_blocks blocks score, the others join. */
template <int D, int Q>
static __global__ void
__launch_bounds__(THREADS, 3)
    finish_kernel(const __grid_constant__ decode_args_t a, uint32_t n_heads,
                  uint32_t score_blocks, uint32_t ways)
{
    if (blockIdx.x >= score_blocks) {
        launch_wait();
        join<D>(a, blockIdx.x - score_blocks, ways, n_heads);
        return;
    }
    const uint32_t jobs = a.work.layer->jobs;
    bool waited = false;

    for (uint32_t j = blockIdx.x * WARPS + threadIdx.x / 32; j < jobs;
         j += score_blocks * WARPS) {
        score<Q>(a, j, waited);
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
    uint32_t ways = all < s->device->blocks * WARPS ? WARPS : 1;
    uint32_t join_blocks = (all * ways + WARPS - 1) / WARPS;
    uint32_t score_blocks = (a->work.max_jobs + WARPS - 1) / WARPS;
    bool wide = a->group > QUAD;

    if (score_blocks > s->device->blocks * 4) {
        score_blocks = s->device->blocks * 4;
    }
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(score_blocks + join_blocks);
    config.blockDim = dim3(THREADS);
    config.stream = (cudaStream_t) s->stream;
    config.attrs = &early;
    config.numAttrs = s->device->dependent ? 1 : 0;
    if (size->head_dim == 128) {
        cudaLaunchKernelEx(&config,
                           wide ? finish_kernel<128, 2> : finish_kernel<128, 1>,
                           *a, n_heads, score_blocks, ways);
    } else {
        cudaLaunchKernelEx(&config,
                           wide ? finish_kernel<64, 2> : finish_kernel<64, 1>,
                           *a, n_heads, score_blocks, ways);
    }
    return tr_cuda_check();
}
