/*
 * decode_score.cuh: raises scores by the probabilities of a head's tokens, and
 * finds the least significant ones.
 *
 * A lane has four tokens at a time, g, g + 1, g + 8 and g + 9 of a tile, whose
 * scores, positions and weights are neighbours in memory; a warp has all of a
 * job's tokens in registers.  Which of them is the least significant must be
 * found as the CPU does, by rounded divisions: those are only done for what an
 * estimate leaves.
 */
#ifndef TR_CUDA_DECODE_SCORE_CUH
#define TR_CUDA_DECODE_SCORE_CUH

#include "decode_join.cuh"

#define SCORE_THREADS 256u
#define SCORE_WARPS (SCORE_THREADS / 32)
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
        tr_kv_victim_t *to = a.kv.victim + (size_t) w.h->head * TR_KV_LISTS_MAX
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
        bool may = (x[i / 4].exist >> i % 4 & 1)
                   && about[i / 4][i % 4] <= least;

        mask |= may ? 1u << i : 0;
    }
    report(a, w, choose(a, w, mask));
}

#endif
