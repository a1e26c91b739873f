/*
 * decode_score.cuh: raises the scores of a layer by the probabilities of its
 * tokens, and finds the least significant of these.
 *
 * A few blocks at a time share a queue of the layer's rows.  A warp takes the
 * next row whenever it is done with one, so one that comes late takes fewer.
 * (One queue for all: taking 8,000 rows takes 18 us.)  A row is ROW_TILES
 * tiles of a segment, which a warp handles at once.  Of tile t, lane 2t + i
 * has the tokens 4i .. 4i + 3, and in tiles of 16 also those 8 further on.
 * Scores, four-byte positions and weights of four tokens are 16 bytes each;
 * two-byte positions come eight at a time and change lanes.  While a warp
 * handles a row, it claims the next one and prefetches it into the L2 cache.
 *
 * The least significant token must be the one that the CPU finds, by rounded
 * divisions: those are only done for tokens that an estimate leaves.
 */
#ifndef TR_CUDA_DECODE_SCORE_CUH
#define TR_CUDA_DECODE_SCORE_CUH

#include "decode.cuh"
#include "decode_candidate.cuh"
#include "kernels/cuda/ptx.cuh"

#define LANE_TOKENS 8 /* the second half only in tiles of 16 */

/* A job, as far as its rows need it, and a row of it. */
typedef struct {
    const int32_t *table; /* entry of the segment's first page */
    uint32_t index;       /* of the head, in the layer */
    uint32_t tokens, n, trace;
    uint32_t find;   /* the row, of the layer's */
    uint32_t what;   /* segment | layout << 8 | flags << 16 */
    uint32_t row;    /* of the segment */
    uint32_t frozen; /* its first tokens, which are left alone: whole pages */

    __device__ __forceinline__ uint32_t
    segment() const
    {
        return what & 255;
    }
    __device__ __forceinline__ uint32_t
    flags() const
    {
        return what >> 16;
    }
    __device__ __forceinline__ const decode_layout_t &
    layout(const decode_args_t &a) const
    {
        return a.layouts.of[what >> 8 & 255];
    }
    __device__ __forceinline__ uint32_t
    last(const decode_args_t &a) const /* tile of the segment */
    {
        return decode_tiles(&layout(a), tokens) - 1;
    }
} work_t;

/* A lane's tokens of a row. */
typedef struct {
    float *score;   /* of the first */
    uint32_t exist; /* bits: which there are */
    float old[LANE_TOKENS];
    uint32_t position[LANE_TOKENS];
    uint4 pairs; /* as they stand in the page, of two bytes each: of eight
                  * tokens of the tile, the first ones in the even lane */
} tokens_t;

#define ALL_EXIST 255u

/* The lane's tile of a row, of the segment; behind its end the last one, so
 * that what is read is there. */
static __device__ __forceinline__ uint32_t
tile_of(const decode_args_t &a, const work_t &w)
{
    return min(w.row * ROW_TILES + threadIdx.x % 32 / 2, w.last(a));
}

static __device__ __forceinline__ uint32_t
page_index(const decode_layout_t &l, uint32_t tile)
{
    return l.inverse == 0 ? tile : __umulhi(tile, l.inverse);
}

/* Id of the page that has the lane's tile. */
static __device__ __forceinline__ int
page_of(const decode_args_t &a, const work_t &w)
{
    int page = (int) page_index(w.layout(a), tile_of(a, w));

    return __ldg(w.table
                 + (w.segment() == 1 || w.segment() == 3 ? -page : page));
}

/* Pages of a window that never had a token have no id. */
static __device__ __forceinline__ uint8_t *
page_at(const decode_args_t &a, int page)
{
    return a.kv.pool + (uint64_t) max(page, 0) * a.kv.page_bytes;
}

/* Of the page, the lane's first token there. */
static __device__ __forceinline__ uint32_t
token_of(const decode_args_t &a, const work_t &w)
{
    const decode_layout_t &l = w.layout(a);
    const uint32_t tile = tile_of(a, w);

    return (tile - page_index(l, tile) * l.tiles) * l.tile
           + threadIdx.x % 2 * 4;
}

/* Where the page has the positions that the lane reads. */
template <bool SHORT>
static __device__ __forceinline__ uint32_t
position_byte(const decode_layout_t &l, uint32_t token)
{
    const uint32_t half = threadIdx.x % 2;

    return l.position
           + (SHORT ? (token - half * 4) * 2 + (l.tile == 16 ? half * 16 : 0)
                    : token * 4);
}

/* Which of the lane's tokens of a row exist. */
static __device__ __forceinline__ uint32_t
existing(const decode_args_t &a, const work_t &w)
{
    const bool wide = w.layout(a).tile == 16;
    const uint32_t token = (w.row * ROW_TILES + threadIdx.x % 32 / 2)
                               * (wide ? 16 : 8)
                           + threadIdx.x % 2 * 4;
    const uint32_t left = token < w.tokens && token >= w.frozen
                              ? w.tokens - token
                              : 0;

    if (wide && left >= 12) {
        return ALL_EXIST;
    }
    uint32_t few = left >= 4 ? 15u : (1u << left) - 1;
    uint32_t more = left > 8 && wide ? left - 8 : 0;

    return few | ((1u << more) - 1) << 4;
}

/* Where a page does not say it. */
static __device__ __forceinline__ void
compute_positions(const decode_args_t &a, const decode_left_t &left,
                  const work_t &w, tokens_t &x)
{
    const decode_head_t *h = left.head + w.index;
    const uint32_t base = h->base, window = h->window, from = h->window_from;
    const uint32_t token = tile_of(a, w) * w.layout(a).tile
                           + threadIdx.x % 2 * 4;
    const bool ring = w.segment() == SEG_WINDOW;
    const uint32_t sinks = ring ? decode_sinks(a.kv, h) : 0;

#pragma unroll
    for (uint32_t i = 0; i < LANE_TOKENS; i++) {
        uint32_t at = token + i / 4 * 8 + i % 4, position = base + at;

        if (ring && (x.exist >> i & 1)) {
            position = at < sinks ? at
                                  : decode_window_position(base, window, at);
            if (at >= sinks && position < from) {
                x.exist &= ~(1u << i);
            }
        }
        x.position[i] = position;
    }
}

/* Asks for scores and positions; page: see page_of. */
template <bool SHORT>
static __device__ __forceinline__ void
ask(const decode_args_t &a, const decode_left_t &left, const work_t &w,
    int page, tokens_t &x)
{
    const decode_layout_t &l = w.layout(a);
    const uint32_t token = token_of(a, w);
    uint8_t *at = page_at(a, page);

    x.score = (float *) (at + l.score) + token;
    x.exist = existing(a, w);
#pragma unroll
    for (int r = 0; r < 2; r++) { /* uncompressed tiles: r = 1 is not used */
        float4 s = *(const float4 *) (x.score + 8 * r);

        x.old[4 * r] = s.x;
        x.old[4 * r + 1] = s.y;
        x.old[4 * r + 2] = s.z;
        x.old[4 * r + 3] = s.w;
    }
    if (w.segment() >= SEG_WINDOW) {
        compute_positions(a, left, w, x);
        return;
    }
    at += position_byte<SHORT>(l, token);
    if (SHORT) {
        x.pairs = __ldg((const uint4 *) at);
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        /* tiles of 8 have no second half: it may be behind the page */
        uint4 p = __ldg((const uint4 *) (at + (l.tile == 16 ? 32 * r : 0)));

        x.position[4 * r] = p.x;
        x.position[4 * r + 1] = p.y;
        x.position[4 * r + 2] = p.z;
        x.position[4 * r + 3] = p.w;
    }
}

/* Positions of two bytes to the lanes whose tokens have them. */
static __device__ __forceinline__ void
unpack_positions(const work_t &w, tokens_t &x)
{
    const bool odd = threadIdx.x % 2;
    const uint4 p = x.pairs;
    uint2 own = odd ? make_uint2(p.z, p.w) : make_uint2(p.x, p.y);
    uint2 other = odd ? make_uint2(p.x, p.y) : make_uint2(p.z, p.w);

    if (w.segment() >= SEG_WINDOW) {
        return;
    }
    other.x = __shfl_xor_sync(TR_ALL_LANES, other.x, 1);
    other.y = __shfl_xor_sync(TR_ALL_LANES, other.y, 1);

    const uint32_t of[4] = { odd ? other.x : own.x, odd ? other.y : own.y,
                             odd ? own.x : other.x, odd ? own.y : other.y };

#pragma unroll
    for (int i = 0; i < LANE_TOKENS; i++) {
        x.position[i] = i % 2 ? of[i / 2] >> 16 : of[i / 2] & 0xffff;
    }
}

/* What attention left of a tile. */
template <int K> struct trace_t {
    uint4 weights[K]; /* the lane's four words: tokens c and c + 8 */
    float max[K];
};

template <int K>
static __device__ __forceinline__ void
load_trace(const decode_args_t &a, const decode_left_t &left, const work_t &w,
           trace_t<K> &out)
{
    const uint32_t half = threadIdx.x % 2;
    const uint32_t trace = w.trace + decode_traces(&w.layout(a), tile_of(a, w));
    const uint4 *from = (const uint4 *) left.weights + (size_t) trace * K;
    const float *max = left.maxima + decode_maximum(a.work, trace) * K;

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
    if (w.layout(a).tile == 16) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            out.weights[k] = from[2 * k + half];
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        uint2 two = ((const uint2 *) (from + k))[half];

        out.weights[k] = make_uint4(two.x & 0xffff, two.x >> 16, two.y & 0xffff,
                                    two.y >> 16);
    }
}

/* Brings what a row will read into the L2 cache. */
template <int K, bool SHORT>
static __device__ __forceinline__ void
ask_ahead(const decode_args_t &a, const decode_left_t &left, const work_t &w,
          int page)
{
    const decode_layout_t &l = w.layout(a);
    const uint32_t lane = threadIdx.x % 32, tile = w.row * ROW_TILES;
    const uint32_t tiles = min(w.last(a) + 1 - tile, ROW_TILES);
    const uint32_t traces = decode_traces(&l, tiles);
    const size_t from = w.trace + decode_traces(&l, tile);
    const uint32_t token = token_of(a, w);
    const uint8_t *at = page_at(a, page);

    prefetch_l2(at + l.score + token * 4);
    if (w.segment() < SEG_WINDOW) {
        prefetch_l2(at + position_byte<SHORT>(l, token));
    }
    if (lane * 128 < traces * (16 * K)) {
        prefetch_l2((const uint8_t *) left.weights + from * (16 * K)
                    + lane * 128);
    }
    if (lane * 128 < traces * (2 * K)) {
        prefetch_l2((const uint8_t *) left.maxima + from / 2 * (4 * K)
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
        about[i] = w.flags() & HEAD_BY_SUM ? x.old[i] : x.old[i] * per;
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

/* Uncompressed tokens' second score. */
static __device__ __forceinline__ void
pay_recent(const decode_args_t &a, const work_t &w, const tokens_t &x,
           const float (&p)[LANE_TOKENS])
{
    const decode_layout_t &l = w.layout(a);
    float *recent = x.score + (l.recent - l.score) / 4;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        if ((x.exist >> i & 1) && x.position[i] < w.n) {
            recent[i] += p[i];
        }
    }
}

/* The least significant of those tokens that may be, as the CPU rounds. */
static __device__ __forceinline__ decode_candidate_t
choose(const decode_args_t &a, const work_t &w, const tokens_t &x,
       const float (&about)[LANE_TOKENS])
{
    decode_candidate_t least = no_candidate();
    float mine = about[0], most;
    uint32_t mask = 0;

#pragma unroll
    for (int i = 1; i < LANE_TOKENS; i++) {
        mine = fminf(mine, about[i]);
    }
    /* `about` is right to 2^-22, or to the smallest normal number */
    most = fmaf(__uint_as_float(
                    __reduce_min_sync(TR_ALL_LANES, __float_as_uint(mine))),
                1 + 0x1p-20f, 0x1p-126f);
#pragma unroll
    for (int i = 0; i < LANE_TOKENS; i++) {
        mask |= about[i] <= most ? 1u << i : 0;
    }
    mask &= x.exist;
#pragma unroll 1
    while (mask != 0) { /* there are few */
        uint32_t bit = __ffs((int) mask) - 1;
        decode_candidate_t v = { 0, 0, 0, 0 };

        mask &= mask - 1;
        v.index = tile_of(a, w) * 16 + threadIdx.x % 2 * 4 + bit / 4 * 8
                  + bit % 4;
#pragma unroll
        for (int i = 0; i < LANE_TOKENS; i++) {
            if (i == (int) bit) {
                v.significance = x.old[i];
                v.position = x.position[i];
            }
        }
        if (!(w.flags() & HEAD_BY_SUM)) {
            v.significance = v.position < w.n
                                 ? __fdiv_rn(v.significance,
                                             (float) (w.n - v.position))
                                 : 0;
        }
        least = worse(v, least) ? v : least;
    }
    return least_of_warp(least);
}

/* ---- rows of a layer ----------------------------------------------------- */

/* 32 jobs, one a lane. */
typedef struct {
    uint4 words[2];
    uint32_t end; /* row of the layer behind the lane's job */
} jobs_t;

static __device__ __forceinline__ void
load_jobs(const decode_left_t &left, uint32_t job, jobs_t &j)
{
    const uint32_t at = job + threadIdx.x % 32;
    const uint4 *from = (const uint4 *) (left.job + at);

    j.end = 0xffffffffu;
    if (at < left.layer->jobs) {
        j.words[0] = __ldg(from);
        j.words[1] = __ldg(from + 1);
        j.end = j.words[1].y + j.words[1].w;
    }
}

static __device__ __forceinline__ uint32_t
word_of(uint32_t x, uint32_t lane)
{
    return __shfl_sync(TR_ALL_LANES, x, lane);
}

/* Row `row` of the layer, which is not before the first of j's jobs. */
static __device__ __forceinline__ void
find_row(const decode_args_t &a, const decode_left_t &left, uint32_t row,
         jobs_t &j, work_t &w)
{
    uint32_t behind = __ballot_sync(TR_ALL_LANES, j.end > row), lane, head;

    if (behind == 0) { /* a job has a row at least, so one of 32 has this one */
        load_jobs(left, __ldg(left.index + row / INDEX_ROWS), j);
        behind = __ballot_sync(TR_ALL_LANES, j.end > row);
    }
    lane = __ffs((int) behind) - 1;
    head = word_of(j.words[0].x, lane);
    w.index = word_of(j.words[0].y, lane);
    w.tokens = word_of(j.words[0].z, lane);
    w.n = word_of(j.words[0].w, lane);
    w.trace = word_of(j.words[1].x, lane);
    w.row = row - word_of(j.words[1].y, lane);
    w.what = word_of(j.words[1].z, lane);
    w.frozen = 0;
    if ((w.flags() & HEAD_FROZEN) && w.segment() < SEG_WINDOW) {
        w.frozen = __ldg(a.kv.frozen + (size_t) head * TR_KV_TIERS_MAX
                         + w.segment());
    }
    w.find = row;
    w.table = a.kv.tables + (size_t) head * a.kv.table_len
              + decode_entry(a.kv, w.segment(), 0);
}

/* Logarithms of the sums of the group's query heads. */
template <int K>
static __device__ __forceinline__ void
load_totals(const decode_left_t &left, const work_t &w, float (&most)[K])
{
    const float4 *from = (const float4 *) (left.total
                                           + (size_t) w.index * GROUP);
    float4 x = from[0], y = K > 4 ? from[1] : x;
    const float all[SCORED_GROUP] = { x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w };

#pragma unroll
    for (int k = 0; k < K; k++) {
        most[k] = all[k];
    }
}

/* A row that a warp has taken, and the lane's page of it. */
typedef struct {
    work_t w;
    int page;
    bool there; /* or there is no more */
} row_t;

/* Rows that the warps of some blocks have to themselves. */
typedef struct {
    uint32_t *claimed; /* how many of them warps have */
    uint32_t first, end;
} pile_t;

/* Every PILESth block has the same pile, so that blocks of all parts of the
 * device do: neighbours may be equally fast. */
static __device__ __forceinline__ pile_t
find_pile(const decode_left_t &left)
{
    const uint32_t blocks = gridDim.x, i = blockIdx.x % PILES;
    const uint32_t few = blocks / PILES, more = blocks % PILES;
    const uint32_t from = i * few + min(i, more); /* blocks of lower piles */
    const uint64_t rows = __ldg(&left.layer->rows);
    pile_t p = { left.claimed + i * CLAIM_WORDS,
                 (uint32_t) (rows * from / blocks),
                 (uint32_t) (rows * (from + few + (i < more)) / blocks) };

    return p;
}

/* Takes a row, the number of which lane 0 is told when it comes. */
static __device__ __forceinline__ uint32_t
claim(const pile_t &p)
{
    return threadIdx.x % 32 == 0 ? atomicAdd(p.claimed, 1u) : 0;
}

/* The row of a claim. */
static __device__ __forceinline__ row_t
take_row(const decode_args_t &a, const decode_left_t &left, const pile_t &p,
         uint32_t claimed, jobs_t &j)
{
    uint32_t n = p.first + word_of(claimed, 0);
    row_t r;

    r.there = n < p.end;
    if (r.there) {
        find_row(a, left, n, j, r.w);
        r.page = page_of(a, r.w);
    }
    return r;
}

/* Raises the scores of what a layer left, as long as no other warp has, and
 * leaves what was found in each row. */
template <int K, bool SHORT>
static __device__ __forceinline__ void
score_rows_of(const decode_args_t &a, const decode_left_t &left)
{
    const pile_t pile = find_pile(left);
    jobs_t j = { {}, 0 };
    row_t now = take_row(a, left, pile, claim(pile), j), next;
    uint32_t claimed = now.there ? claim(pile) : 0;

    for (; now.there; now = next) {
        const work_t &w = now.w;
        float p[LANE_TOKENS], about[LANE_TOKENS], most[K];
        trace_t<K> trace;
        tokens_t x;

        next = take_row(a, left, pile, claimed, j);
        if (next.there) {
            claimed = claim(pile);
        }
        ask<SHORT>(a, left, w, now.page, x);
        load_totals<K>(left, w, most);
        load_trace<K>(a, left, w, trace);
        if (next.there) {
            ask_ahead<K, SHORT>(a, left, next.w, next.page);
        }
        if (SHORT) {
            unpack_positions(w, x);
        }
        gain<K>(trace, most, p);
        pay(w, x, p, about);
        if (w.segment() < SEG_WINDOW) {
            decode_candidate_t least = choose(a, w, x, about);

            if (threadIdx.x % 32 == 0) {
                __stcg((uint4 *) (left.find + w.find),
                       make_uint4(__float_as_uint(least.significance),
                                  least.position, least.index, 0));
            }
        } else if (w.segment() == SEG_UNCOMPRESSED
                   && (w.flags() & HEAD_RECENT)) {
            pay_recent(a, w, x, p);
        }
    }
}

template <int K>
static __device__ __forceinline__ void
score_rows(const decode_args_t &a, const decode_left_t &left)
{
    if (a.short_positions) {
        score_rows_of<K, true>(a, left);
    } else {
        score_rows_of<K, false>(a, left);
    }
}

#endif
