/*
 * decode_score.cuh: raises the scores of a row of tiles by the probabilities of
 * their tokens, and finds the least significant of these.
 *
 * A row is ROW_TILES tiles of a segment, which a warp does at once.  Lane
 * 2t + i has of tile t the tokens 4i .. 4i + 3, and in tiles of 16 those 8
 * further on: scores, positions and weights of four tokens are 16 bytes each.
 * Which token is the least significant must be found as the CPU does, by
 * rounded divisions: those are only done for what an estimate leaves.
 */
#ifndef TR_CUDA_DECODE_SCORE_CUH
#define TR_CUDA_DECODE_SCORE_CUH

#include "decode.cuh"
#include "ptx.cuh"

#define SCORE_WARPS 4u  /* of a block */
#define SCORE_BLOCKS 4u /* that a multiprocessor has at once */
#define LANE_TOKENS 8 /* the second half only in tiles of 16 */
#define NEVER 0x7f800000u /* bits of the significance of no token: infinity */

static __device__ __forceinline__ bool
worse(const decode_victim_t &a, const decode_victim_t &b)
{
    return a.significance < b.significance
           || (a.significance == b.significance && a.position < b.position);
}

static __device__ __forceinline__ decode_victim_t
no_victim(void)
{
    decode_victim_t v = { __uint_as_float(NEVER), 0xffffffffu, 0, 0 };

    return v;
}

/* Significances are not negative, so their bits are in order, too. */
static __device__ __forceinline__ decode_victim_t
least_of_warp(decode_victim_t v)
{
    uint32_t bits = __float_as_uint(v.significance);
    uint32_t least = __reduce_min_sync(TR_ALL_LANES, bits);
    uint32_t position = __reduce_min_sync(
        TR_ALL_LANES, bits == least ? v.position : 0xffffffffu);
    uint32_t who = __ballot_sync(TR_ALL_LANES,
                                 bits == least && v.position == position);

    v.significance = __uint_as_float(least);
    v.position = position;
    v.index = __shfl_sync(TR_ALL_LANES, v.index, __ffs((int) who) - 1);
    return v;
}

/* The job of a block, as far as its warps' rows need it. */
typedef struct {
    const int32_t *table; /* entry of the segment's first page */
    int step;             /* from there to the next page's */
    uint32_t index;       /* of the head, in the layer */
    uint32_t tokens, n, trace;
    uint32_t last; /* tile of the segment */
    uint32_t segment, flags, layout;
} work_t;

/* words: of the job, one a lane. */
static __device__ __forceinline__ work_t
unpack(const decode_args_t &a, uint32_t words)
{
    const uint32_t what = __shfl_sync(TR_ALL_LANES, words, 6);
    const uint32_t head = __shfl_sync(TR_ALL_LANES, words, 0);
    work_t w;

    w.index = __shfl_sync(TR_ALL_LANES, words, 1);
    w.tokens = __shfl_sync(TR_ALL_LANES, words, 2);
    w.n = __shfl_sync(TR_ALL_LANES, words, 3);
    w.trace = __shfl_sync(TR_ALL_LANES, words, 4);
    w.segment = what & 255;
    w.layout = what >> 8 & 255;
    w.flags = what >> 16;
    w.last = decode_tiles(&a.layouts.of[w.layout], w.tokens) - 1;
    w.table = a.kv.tables + (size_t) head * a.kv.table_len
              + decode_entry(a.kv, w.segment, 0);
    w.step = w.segment == 1 || w.segment == 3 ? -1 : 1;
    return w;
}

/* A lane's tokens of a row. */
typedef struct {
    float *score;   /* of the first */
    uint32_t exist; /* bits: which there are */
    float old[LANE_TOKENS];
    uint32_t position[LANE_TOKENS];
} tokens_t;

#define ALL_EXIST 255u

/* The lane's tile of a row, of the segment; behind its end the last one, so
 * that what is read is there. */
static __device__ __forceinline__ uint32_t
tile_of(const work_t &w, uint32_t row)
{
    return min(row * ROW_TILES + threadIdx.x % 32 / 2, w.last);
}

static __device__ __forceinline__ uint32_t
page_index(const decode_layout_t &l, uint32_t tile)
{
    return l.inverse == 0 ? tile : __umulhi(tile, l.inverse);
}

/* Id of the page that has the lane's tile. */
static __device__ __forceinline__ int
page_of(const decode_args_t &a, const work_t &w, uint32_t row)
{
    int page = (int) page_index(a.layouts.of[w.layout], tile_of(w, row));

    return __ldg(w.table + w.step * page);
}

/* The lane's first token there, as if its page began with scores.  Pages of a
 * window that never had a token have no id. */
static __device__ __forceinline__ uint8_t *
token_at(const decode_args_t &a, const work_t &w, uint32_t row, int page)
{
    const decode_layout_t &l = a.layouts.of[w.layout];
    const uint32_t tile = tile_of(w, row);
    const uint32_t in_page = tile - page_index(l, tile) * l.tiles;

    return a.kv.pool + (uint64_t) max(page, 0) * a.kv.page_bytes
           + in_page * l.tile * 4 + threadIdx.x % 2 * 16;
}

/* Which of the lane's tokens of a row exist. */
static __device__ __forceinline__ uint32_t
existing(const decode_args_t &a, const work_t &w, uint32_t row)
{
    const bool wide = a.layouts.of[w.layout].tile == 16;
    const uint32_t token = (row * ROW_TILES + threadIdx.x % 32 / 2)
                               * (wide ? 16 : 8)
                           + threadIdx.x % 2 * 4;
    const uint32_t left = token < w.tokens ? w.tokens - token : 0;

    if (wide && left >= 12) {
        return ALL_EXIST;
    }
    uint32_t few = left >= 4 ? 15u : (1u << left) - 1;
    uint32_t more = left > 8 && wide ? left - 8 : 0;

    return few | ((1u << more) - 1) << 4;
}

/* Where a page does not say it. */
static __device__ __forceinline__ void
compute_positions(const decode_args_t &a, const work_t &w, uint32_t row,
                  tokens_t &x)
{
    const decode_head_t *h = a.work.head + w.index;
    const uint32_t base = h->base, window = h->window, from = h->window_from;
    const uint32_t token = tile_of(w, row) * a.layouts.of[w.layout].tile
                           + threadIdx.x % 2 * 4;

#pragma unroll
    for (uint32_t i = 0; i < LANE_TOKENS; i++) {
        uint32_t at = token + i / 4 * 8 + i % 4, position = base + at;

        if (w.segment == SEG_WINDOW && (x.exist >> i & 1)) {
            position = decode_window_position(base, window, at);
            if (position < from) {
                x.exist &= ~(1u << i);
            }
        }
        x.position[i] = position;
    }
}

/* Asks for scores and positions; page: see page_of. */
static __device__ __forceinline__ void
ask(const decode_args_t &a, const work_t &w, uint32_t row, int page,
    tokens_t &x)
{
    const decode_layout_t &l = a.layouts.of[w.layout];
    uint8_t *at = token_at(a, w, row, page);

    x.score = (float *) (at + l.score);
    x.exist = existing(a, w, row);
#pragma unroll
    for (int r = 0; r < 2; r++) { /* dense tiles: r = 1 is not used */
        float4 s = *(const float4 *) (at + l.score + 32 * r);

        x.old[4 * r] = s.x;
        x.old[4 * r + 1] = s.y;
        x.old[4 * r + 2] = s.z;
        x.old[4 * r + 3] = s.w;
    }
    if (w.segment >= SEG_WINDOW) {
        compute_positions(a, w, row, x);
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint4 p = __ldg((const uint4 *) (at + l.position + 32 * r));

        x.position[4 * r] = p.x;
        x.position[4 * r + 1] = p.y;
        x.position[4 * r + 2] = p.z;
        x.position[4 * r + 3] = p.w;
    }
}

/* What attention left of a tile. */
template <int K> struct trace_t {
    uint4 weights[K]; /* four words: tokens c and c + 8 */
    float max[K];
};

template <int K>
static __device__ __forceinline__ void
load_trace(const decode_args_t &a, const work_t &w, uint32_t row,
           trace_t<K> &out)
{
    const uint32_t tile = w.trace + tile_of(w, row);
    const uint4 *from = (const uint4 *) a.work.weights
                        + (tile * (2 * K) + threadIdx.x % 2);
    const float *max = a.work.maxima + tile * K;

    if (K % 4 == 0) {
#pragma unroll
        for (int k = 0; k < K / 4; k++) {
            float4 m = *(const float4 *) (max + 4 * k);

            out.max[4 * k] = m.x;
            out.max[4 * k + 1] = m.y;
            out.max[4 * k + 2] = m.z;
            out.max[4 * k + 3] = m.w;
        }
    } else {
#pragma unroll
        for (int k = 0; k < K; k++) {
            out.max[k] = max[k];
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        out.weights[k] = from[2 * k];
    }
}

/* Brings what a row will read into the L2 cache. */
template <int K>
static __device__ __forceinline__ void
ask_ahead(const decode_args_t &a, const work_t &w, uint32_t row, int page)
{
    const decode_layout_t &l = a.layouts.of[w.layout];
    const uint32_t lane = threadIdx.x % 32, tile = row * ROW_TILES;
    const uint32_t tiles = min(w.last + 1 - tile, ROW_TILES);
    const size_t from = w.trace + tile;
    const uint8_t *at = token_at(a, w, row, page);

    prefetch_l2(at + l.score);
    if (w.segment < SEG_WINDOW) {
        prefetch_l2(at + l.position);
    }
    if (lane * 128 < tiles * (32 * K)) {
        prefetch_l2((const uint8_t *) a.work.weights + from * (32 * K)
                    + lane * 128);
    }
    if (lane * 128 < tiles * (4 * K)) {
        prefetch_l2((const uint8_t *) a.work.maxima + from * (4 * K)
                    + lane * 128);
    }
}

/* The largest probabilities of the group; most: of the head. */
template <int K>
static __device__ __forceinline__ void
gain(const trace_t<K> &t, const float (&most)[K], float (&p)[LANE_TOKENS])
{
#pragma unroll
    for (int k = 0; k < K; k++) {
        float by = exp2_fast(t.max[k] - most[k]);
        uint32_t of[4] = { t.weights[k].x, t.weights[k].y, t.weights[k].z,
                           t.weights[k].w };

#pragma unroll
        for (int c = 0; c < 4; c++) {
            float2 y = half2_floats(of[c]);

            p[c] = k == 0 ? y.x * by : fmaxf(p[c], y.x * by);
            p[4 + c] = k == 0 ? y.y * by : fmaxf(p[4 + c], y.y * by);
        }
    }
}

/* Raises the scores, x.old; about: what is about the significance of each. */
static __device__ __forceinline__ void
pay(const work_t &w, tokens_t &x, const float (&p)[LANE_TOKENS],
    float (&about)[LANE_TOKENS])
{
#pragma unroll
    for (int i = 0; i < LANE_TOKENS; i++) {
        bool later = x.position[i] < w.n;
        float per = later ? reciprocal((float) (w.n - x.position[i])) : 0;

        x.old[i] += later ? p[i] : 0;
        about[i] = w.flags & HEAD_BY_SUM ? x.old[i] : x.old[i] * per;
    }
    if (x.exist == ALL_EXIST) {
        *(float4 *) x.score = make_float4(x.old[0], x.old[1], x.old[2],
                                          x.old[3]);
        *(float4 *) (x.score + 8) = make_float4(x.old[4], x.old[5], x.old[6],
                                                x.old[7]);
        return;
    }
#pragma unroll
    for (int i = 0; i < LANE_TOKENS; i++) {
        if (x.exist >> i & 1) {
            x.score[i / 4 * 8 + i % 4] = x.old[i];
        } else {
            about[i] = __uint_as_float(NEVER);
        }
    }
}

/* Dense tokens' second score. */
static __device__ __forceinline__ void
pay_recent(const decode_args_t &a, const work_t &w, const tokens_t &x,
           const float (&p)[LANE_TOKENS])
{
    const decode_layout_t &l = a.layouts.of[w.layout];
    float *recent = x.score + (l.recent - l.score) / 4;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        if ((x.exist >> i & 1) && x.position[i] < w.n) {
            recent[i] += p[i];
        }
    }
}

/* The least significant of those tokens that may be, as the CPU rounds; the
 * lane's so far is `least`.  bound: the warp's least estimate so far. */
static __device__ __forceinline__ void
choose(const work_t &w, uint32_t row, const tokens_t &x,
       const float (&about)[LANE_TOKENS], uint32_t &bound,
       decode_victim_t &least)
{
    float mine = about[0], most;
    uint32_t mask = 0;

#pragma unroll
    for (int i = 1; i < LANE_TOKENS; i++) {
        mine = fminf(mine, about[i]);
    }
    bound = min(bound, __reduce_min_sync(TR_ALL_LANES, __float_as_uint(mine)));
    /* `about` is right to 2^-22, or to the smallest normal number */
    most = fmaf(__uint_as_float(bound), 1 + 0x1p-20f, 0x1p-126f);
    if (!(mine <= most)) {
        return;
    }
#pragma unroll
    for (int i = 0; i < LANE_TOKENS; i++) {
        mask |= about[i] <= most ? 1u << i : 0;
    }
    mask &= x.exist;
#pragma unroll 1
    while (mask != 0) { /* there are few */
        uint32_t bit = __ffs((int) mask) - 1;
        decode_victim_t v = { 0, 0, 0, 0 };

        mask &= mask - 1;
        v.index = tile_of(w, row) * 16 + threadIdx.x % 2 * 4 + bit / 4 * 8
                  + bit % 4;
#pragma unroll
        for (int i = 0; i < LANE_TOKENS; i++) {
            if (i == (int) bit) {
                v.significance = x.old[i];
                v.position = x.position[i];
            }
        }
        if (!(w.flags & HEAD_BY_SUM)) {
            v.significance = v.position < w.n
                                 ? __fdiv_rn(v.significance,
                                             (float) (w.n - v.position))
                                 : 0;
        }
        least = worse(v, least) ? v : least;
    }
}

#endif
