/*
 * Decode attention: one query a sequence over pages of all levels, with scores
 * updated and victims found in the same pass.
 *
 * One block a multiprocessor works off its range of the plan (decode.cuh).
 * Every warp has the next unit's keys under way while it multiplies this one's
 * values, and the values while it multiplies the keys, also from one head to
 * the next.
 *
 * A head that was cut is joined through the workspace: each part writes its
 * (max, sum, output); the last to arrive joins the outputs; parts whose tokens
 * are scored wait at the end of the block's range until all have arrived.  All
 * blocks are resident, hence the cooperative launch, and a block has written
 * all its parts before it waits for one, so the waiting ends.
 *
 * Softmax is in log2 units.  A warp's maximum is only raised when a logit
 * exceeds it by 8, so weights, kept as 2^7 times the exponential, stay below
 * 2^15, and FP16 is exact to 11 bits down to 2^-21.
 */
#include "decode_block.cuh"
#include "decode_feed.cuh"
#include "decode_score.cuh"

#include <cuda_runtime.h>

#define TRACE_TILES 640u /* in shared memory, at most */
#define RAISED 7.0f      /* weights are 2^7 * exp2(logit - max) */
#define SLACK 15.0f      /* and at most 2^15 */

/* ---- a tile ------------------------------------------------------------- */

/* A warp's softmax and output, columns 2t and 2t + 1. */
template <int D> struct state_t {
    float max[2]; /* less RAISED */
    float sum[2], zero[2];
    float shrink; /* values are multiplied by this power of two */
    output_t<D> out;
};

template <int D>
static __device__ __forceinline__ void
state_init(state_t<D> &s)
{
    s.max[0] = s.max[1] = -1e30f;
    s.sum[0] = s.sum[1] = s.zero[0] = s.zero[1] = 0;
    s.shrink = 0x1p40f;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        s.out.o[i][0] = s.out.o[i][1] = s.out.o[i][2] = s.out.o[i][3] = 0;
    }
    s.out.none[0] = s.out.none[1] = s.out.none[2] = s.out.none[3] = 0;
}

/* Largest over the eight lanes of a column pair. */
static __device__ __forceinline__ float
column_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(TR_ALL_LANES, x, 4));
    x = fmaxf(x, __shfl_xor_sync(TR_ALL_LANES, x, 8));
    return fmaxf(x, __shfl_xor_sync(TR_ALL_LANES, x, 16));
}

static __device__ __forceinline__ float
column_sum(float x)
{
    x += __shfl_xor_sync(TR_ALL_LANES, x, 4);
    x += __shfl_xor_sync(TR_ALL_LANES, x, 8);
    return x + __shfl_xor_sync(TR_ALL_LANES, x, 16);
}

/* Makes room for larger logits or scales; rare. */
template <int D>
static __device__ __forceinline__ void
rescale(state_t<D> &s, float y0, float y1, float scale)
{
    float m0 = fmaxf(s.max[0], column_max(y0) - RAISED);
    float m1 = fmaxf(s.max[1], column_max(y1) - RAISED);
    float c0 = exp2_fast(s.max[0] - m0), c1 = exp2_fast(s.max[1] - m1);
    float shrink = s.shrink;

    scale = column_max(scale);
    if (scale * shrink > 1) { /* to [1/2, 1) */
        shrink = __uint_as_float((253 - (__float_as_uint(scale) >> 23)) << 23);
    }
    s.max[0] = m0;
    s.max[1] = m1;
    s.sum[0] *= c0;
    s.sum[1] *= c1;
    s.zero[0] *= c0;
    s.zero[1] *= c1;
    c0 *= shrink / s.shrink;
    c1 *= shrink / s.shrink;
    s.shrink = shrink;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        s.out.o[i][0] *= c0;
        s.out.o[i][1] *= c1;
        s.out.o[i][2] *= c0;
        s.out.o[i][3] *= c1;
    }
    s.out.none[0] *= c0;
    s.out.none[1] *= c1;
    s.out.none[2] *= c0;
    s.out.none[3] *= c1;
}

/* Which of the 16 tokens of tile i of a unit exist. */
static __device__ __forceinline__ uint32_t
existing(const decode_head_t &h, const unit_t &u, uint32_t i)
{
    uint32_t lane = threadIdx.x % 32, before = i * TILE;
    uint32_t here = u.exist > before ? u.exist - before : 0;
    uint32_t mask = here >= TILE ? 0xffff : (1u << here) - 1;

    if (u.segment == SEG_WINDOW) {
        mask &= __ballot_sync(TR_ALL_LANES,
                              lane < here
                                  && window_position(h, u.token + before + lane)
                                         >= h.window_from);
    }
    return mask;
}

/* A unit's codes and metadata on their way.  16-bit values are not among them:
 * they are asked for when their turn comes. */
struct stage_t {
    uint4 r[8];       /* keys, then values */
    uint32_t meta[2]; /* lane t: of token g's key, g + 8's key, g's value, .. */
};

template <int D, int KEY, int VALUE>
static __device__ __forceinline__ void
load_keys(const decode_layout_t &l, const unit_t &u, stage_t &st)
{
    constexpr int N = decode_unit(KEY, VALUE), R = tile_loads(D, KEY);
    const uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t tile = u.page_tile + (n * TILE < u.room ? n : 0);
        const uint8_t *at = u.page + tile * (2 * D * KEY);

        if (KEY == 16) {
            load_rows<D>(st.r, at, (int) lane, u.room > 8 ? 8 : 0);
        } else {
            const uint32_t t = lane % 4;
            const uint8_t *meta = u.page + (t < 2 ? l.key_meta : l.value_meta);

            load_codes<D, KEY>(st.r + n * R, at, (int) lane);
            st.meta[n] = load_stream4(meta + tile * 64 + t % 2 * 32
                                      + lane / 4 * 4);
        }
    }
}

template <int D, int KEY, int VALUE>
static __device__ __forceinline__ void
load_values(const decode_layout_t &l, const unit_t &u, stage_t &st)
{
    constexpr int N = decode_unit(KEY, VALUE), R = tile_loads(D, VALUE);
    const uint32_t lane = threadIdx.x % 32;

    if (VALUE == 16) {
        return;
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t tile = u.page_tile + (n * TILE < u.room ? n : 0);
        load_codes<D, VALUE>(st.r + N * tile_loads(D, KEY) + n * R,
                             u.page + l.value + tile * (2 * D * VALUE),
                             (int) (lane % 4 * 8 + lane / 4));
    }
}

/* c = K q^T of a tile, from what the offset of the codes begins with. */
template <int D, int BITS>
static __device__ __forceinline__ void
logits(float (&c)[2][4], const head_t<D> &head, const uint4 *r)
{
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int off = BITS == 8 ? OFF8 : BITS == 4 ? OFF4 : OFF2;
    float2 begin = make_float2(0, 0);

    if (BITS != 16) {
        begin = *(const float2 *) &head.begin[off][2 * t];
    }
    c[0][0] = c[0][2] = begin.x;
    c[0][1] = c[0][3] = begin.y;
    c[1][0] = c[1][1] = c[1][2] = c[1][3] = 0;
    if (BITS == 8) {
        logits8<D>(c, r, lane, &head.query[0][0]);
    } else if (BITS == 4) {
        logits4<D>(c, r, lane, &head.query[0][0]);
    } else if (BITS == 2) {
        logits2<D>(c, r, lane, &head.query[0][0]);
    } else {
        logits_dense<D>(c, r, lane, &head.query_dense[0][0]);
    }
}

template <int D, int BITS>
static __device__ __forceinline__ void
values(output_t<D> &out, const uint4 *r, const uint32_t (&w)[2])
{
    if (BITS == 8) {
        values8<D>(out, r, w[0], w[1]);
    } else if (BITS == 4) {
        values4<D>(out, r, w[0], w[1]);
    } else {
        values2<D>(out, r, w[0], w[1]);
    }
}

/* The bits of tokens 2t, 2t + 1 and the two 8 further on that exist. */
static __device__ __forceinline__ void
keep_existing(uint32_t exists, uint32_t (&keep)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t two = exists >> (i * 8 + threadIdx.x % 4 * 2) & 3;

        keep[i] = (two & 1 ? 0xffffu : 0) | (two & 2 ? 0xffff0000u : 0);
    }
}

/* What a tile's weights leave for the score update; see decode_score.cuh. */
static __device__ __forceinline__ void
leave_trace(uint32_t group, uint8_t *trace, uint64_t score, const unit_t &u,
            uint32_t i, uint32_t exists, const float (&max)[2],
            const float (&p)[2][2])
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t pairs = (group + 1) / 2;
    uint8_t *weights = trace + 16 + (pairs + 1) / 2 * 16 + t * 64 + g * 4;

    if (lane == 0) {
        *(uint4 *) trace = make_uint4((uint32_t) score,
                                      (uint32_t) (score >> 32),
                                      u.segment | exists << 16,
                                      u.token + i * TILE);
    }
    if (t < pairs) {
        if (g == 0) {
            *(float2 *) (trace + 16 + t * 8) = make_float2(max[0], max[1]);
        }
        *(uint32_t *) weights = half2_bits(p[0][0], p[0][1]);
        *(uint32_t *) (weights + 32) = half2_bits(p[1][0], p[1][1]);
    }
}

/* Unit u, which is in st; the next one is on its way when this returns, if it
 * is of the same layout. */
template <int D, bool WIDE, int KEY, int VALUE>
static __device__ __forceinline__ void
attend(const decode_args_t &a, const head_t<D> &head, const unit_t &u,
       const unit_t &next, stage_t &st, uint8_t *trace, state_t<D> &s)
{
    constexpr int N = decode_unit(KEY, VALUE);
    const int lane = threadIdx.x % 32, g = lane / 4;
    const decode_layout_t &l = a.layouts.of[u.layout];
    float y[N][2][2], p[2][2], y0 = -INFINITY, y1 = -INFINITY, scale = 0;
    uint32_t exists[N];
    const uint8_t *wide = u.page + l.value + u.page_tile * (32 * D);
    const uint32_t up = u.room > 8 ? 8 : 0; /* rows between g and the second */
    const float2 col_sum = *(const float2 *) &head.sum[lane % 4 * 2];
    const float2 to_logit = *(const float2 *) &head.to_logit[lane % 4 * 2];
    uint4 v0[4], v1[4]; /* 16-bit values */
    float2 vm[N][2];

    if (WIDE) {
        load_columns<D>(v0, wide, lane, up, 0);
    } else if (KEY == 16) {
        load_rows<D>(st.r, u.page + u.page_tile * (32 * D), lane, up);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        float c[2][4];

        exists[n] = existing(head.part.h, u, n);
        logits<D, KEY>(c, head, st.r + n * tile_loads(D, KEY));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bool ok = (exists[n] >> (g + 8 * r) & 1) != 0;
            float2 km = make_float2(1, 0);

            vm[n][r] = km;
            if (KEY != 16) {
                km = half2_floats(of_lane(st.meta[n], (lane & ~3) | r));
                vm[n][r] = half2_floats(
                    of_lane(st.meta[n], (lane & ~3) | 2 | r));
                vm[n][r].x = ok ? vm[n][r].x : 0;
                vm[n][r].y = ok ? vm[n][r].y : 0;
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float z = (c[0][2 * r + k] + c[1][2 * r + k]) * km.x
                          + km.y * (k == 0 ? col_sum.x : col_sum.y);

                y[n][r][k] = ok ? z * (k == 0 ? to_logit.x : to_logit.y)
                                : -INFINITY;
            }
            y0 = fmaxf(y0, y[n][r][0]);
            y1 = fmaxf(y1, y[n][r][1]);
            scale = fmaxf(scale, vm[n][r].x);
        }
    }
    if (WIDE && D == 128) {
        load_columns<D>(v1, wide, lane, up, 1);
    } else if (WIDE || (KEY != 16 && next.layout == u.layout)) {
        load_keys<D, KEY, VALUE>(l, next, st);
    }
    if (__any_sync(TR_ALL_LANES, y0 - s.max[0] > SLACK || y1 - s.max[1] > SLACK
                                     || scale * s.shrink > 1)) {
        rescale<D>(s, y0, y1, scale);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t w[2];

#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v = vm[n][r].x * s.shrink;

            p[r][0] = exp2_fast(y[n][r][0] - s.max[0]);
            p[r][1] = exp2_fast(y[n][r][1] - s.max[1]);
            s.sum[0] += p[r][0];
            s.sum[1] += p[r][1];
            s.zero[0] += p[r][0] * vm[n][r].y;
            s.zero[1] += p[r][1] * vm[n][r].y;
            w[r] = transpose(half2_bits(p[r][0] * v, p[r][1] * v));
        }
        if (VALUE == 16) {
            uint32_t keep[2];

            keep_existing(exists[n], keep);
            if (WIDE) {
                values_dense<D>(s.out, v0, 0, keep, w[0], w[1]);
                if (D == 128) {
                    load_keys<D, KEY, VALUE>(l, next, st);
                    values_dense<D>(s.out, v1, 1, keep, w[0], w[1]);
                }
            } else {
                values_mixed<D>(s.out, wide, lane, up, keep, w[0], w[1]);
            }
        } else {
            values<D, VALUE>(s.out,
                             st.r + N * tile_loads(D, KEY)
                                 + n * tile_loads(D, VALUE),
                             w);
        }
        if (trace != NULL && n * TILE < u.room) {
            leave_trace(a.group, trace + (size_t) (u.tile + n) * a.trace_bytes,
                        l.scored ? (uint64_t) (u.page + l.score
                                               + (u.page_tile + n) * (TILE * 4))
                                 : 0,
                        u, n, exists[n], s.max, p);
        }
    }
    if (KEY != 16 && next.layout == u.layout) {
        load_values<D, KEY, VALUE>(l, next, st);
    }
}

/* CASE(key bits, value bits) for the pairs of less than 16 for which there is
 * code; see bits_listed. */
#define FOR_ALL_BITS(CASE) \
    CASE(8, 8)             \
    CASE(8, 4)             \
    CASE(4, 2)             \
    CASE(8, 2)             \
    CASE(4, 4)             \
    CASE(2, 2)

/* WIDE: an engine without levels.  With levels 16 bits are rare in a decode
 * step (a prompt's last token): they get along without registers of their
 * own. */
template <int D, bool WIDE>
static __device__ __forceinline__ void
load_any(const decode_args_t &a, const unit_t &u, stage_t &st)
{
    const decode_layout_t &l = a.layouts.of[u.layout];

    if (WIDE) {
        return load_keys<D, 16, 16>(l, u, st);
    }
#define LOAD(KEY, VALUE)                      \
    case KEY << 8 | VALUE:                    \
        load_keys<D, KEY, VALUE>(l, u, st);   \
        load_values<D, KEY, VALUE>(l, u, st); \
        break;
    switch (l.key_bits << 8 | l.value_bits) {
        FOR_ALL_BITS(LOAD)
    }
#undef LOAD
}

template <int D, bool WIDE>
static __device__ __forceinline__ void
attend_any(const decode_args_t &a, const head_t<D> &head, const unit_t &u,
           const unit_t &next, stage_t &st, uint8_t *trace, state_t<D> &s)
{
    const decode_layout_t &l = a.layouts.of[u.layout];

    if (WIDE || l.key_bits == 16) {
        return attend<D, WIDE, 16, 16>(a, head, u, next, st, trace, s);
    }
#define ATTEND(KEY, VALUE)                                            \
    case KEY << 8 | VALUE:                                            \
        attend<D, false, KEY, VALUE>(a, head, u, next, st, trace, s); \
        break;
    switch (l.key_bits << 8 | l.value_bits) {
        FOR_ALL_BITS(ATTEND)
    }
#undef ATTEND
}

/* ---- the end of a head -------------------------------------------------- */

static __device__ __forceinline__ void
store_out(const decode_args_t &a, const decode_head_t &h, uint32_t d_head,
          uint32_t d, uint32_t dim, float x)
{
    uint32_t list = h.head % a.kv.lists;
    size_t at = (size_t) h.row * a.ldo
                + (size_t) (list * a.group + d_head) * dim + d;

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

/* Joins the warps: sh->total becomes {max, sum}, the merge buffer each warp's
 * output relative to max. */
template <int D>
static __device__ __forceinline__ void
join_warps(const decode_args_t &a, shared_t<D> *sh, float *merge, bool dense,
           state_t<D> &s)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t g = lane / 4, t = lane % 4;
    float m0 = -1e30f, m1 = -1e30f, sum;

#pragma unroll
    for (int k = 0; k < 2; k++) {
        s.sum[k] = column_sum(s.sum[k]);
        s.zero[k] = column_sum(s.zero[k]);
        if (g == 0) {
            sh->warp_sum[warp][2 * t + k] = make_float2(s.max[k], s.sum[k]);
        }
    }
    named_barrier(1, WORKERS);
    for (uint32_t w = 0; w < WARPS; w++) {
        m0 = fmaxf(m0, sh->warp_sum[w][2 * t].x);
        m1 = fmaxf(m1, sh->warp_sum[w][2 * t + 1].x);
    }
    if (2 * t < a.group) {
        float c0 = exp2_fast(s.max[0] - m0), c1 = exp2_fast(s.max[1] - m1);
        float by = 1 / s.shrink;
        float *to = merge + (size_t) (warp * a.group + 2 * t) * (D + 4);

#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int d = decode_dim(dense, i, half, (int) g);
                float n0 = s.out.none[2 * half], n1 = s.out.none[2 * half + 1];

                to[d] = ((s.out.o[i][2 * half] - n0) * by + s.zero[0]) * c0;
                if (2 * t + 1 < a.group) {
                    to[D + 4 + d] = ((s.out.o[i][2 * half + 1] - n1) * by
                                     + s.zero[1])
                                    * c1;
                }
            }
        }
    }
    if (threadIdx.x < GROUP) {
        m0 = -1e30f;
        sum = 0;
        for (uint32_t w = 0; w < WARPS; w++) {
            m0 = fmaxf(m0, sh->warp_sum[w][threadIdx.x].x);
        }
        for (uint32_t w = 0; w < WARPS; w++) {
            float2 x = sh->warp_sum[w][threadIdx.x];

            sum += exp2_fast(x.x - m0) * x.y;
        }
        sh->total[threadIdx.x] = make_float2(m0, sum);
    }
    named_barrier(1, WORKERS);
}

static __device__ __forceinline__ uint32_t
part_slot(const decode_head_t &h, uint32_t block)
{
    return block * 2 + (block == h.first ? 1 : 0);
}

/* The part's sums to the workspace; true in the block that was last. */
template <int D>
static __device__ __forceinline__ bool
publish(const decode_args_t &a, shared_t<D> *sh, const part_t &part,
        const float *merge)
{
    size_t slot = part_slot(part.h, blockIdx.x);
    float *to = a.work.part_out + slot * GROUP * D;

    for (uint32_t e = threadIdx.x; e < a.group * D; e += WORKERS) {
        uint32_t q = e / D, d = e % D;
        float x = 0;

        for (uint32_t w = 0; w < WARPS; w++) {
            x += merge[(size_t) (w * a.group + q) * (D + 4) + d];
        }
        __stcg(to + e, x);
    }
    if (threadIdx.x < GROUP) {
        __stcg(a.work.part_sum + slot * GROUP + threadIdx.x,
               sh->total[threadIdx.x]);
    }
    __threadfence();
    named_barrier(1, WORKERS);
    if (threadIdx.x == 0) {
        uint32_t before = atomicAdd(a.work.arrived + 2 * part.index, 1u);

        __threadfence();
        sh->last_one = before + 1 == part.h.parts;
    }
    named_barrier(1, WORKERS);
    return sh->last_one != 0;
}

/* {max, sum} of all parts into sh->total; one warp a query head. */
template <int D>
static __device__ __forceinline__ void
join_sums(const decode_args_t &a, shared_t<D> *sh, const decode_head_t &h)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    for (uint32_t q = warp; q < GROUP; q += WARPS) {
        float m = -1e30f, sum = 0;

        for (uint32_t i = lane; i < h.parts; i += 32) {
            size_t slot = part_slot(h, h.first + i);
            float2 x = __ldcg(a.work.part_sum + slot * GROUP + q);
            float most = fmaxf(m, x.x);

            sum = sum * exp2_fast(m - most) + x.y * exp2_fast(x.x - most);
            m = most;
        }
#pragma unroll
        for (int d = 16; d > 0; d /= 2) {
            float m1 = __shfl_xor_sync(TR_ALL_LANES, m, d);
            float s1 = __shfl_xor_sync(TR_ALL_LANES, sum, d);
            float most = fmaxf(m, m1);

            sum = sum * exp2_fast(m - most) + s1 * exp2_fast(m1 - most);
            m = most;
        }
        if (lane == 0) {
            sh->total[q] = make_float2(m, sum);
        }
    }
    named_barrier(1, WORKERS);
}

/* The outputs of all parts, which have all arrived; sh->total is theirs. */
template <int D>
static __device__ __forceinline__ void
join_parts(const decode_args_t &a, const shared_t<D> *sh, const part_t &part)
{
    const decode_head_t &h = part.h;

    for (uint32_t e = threadIdx.x; e < a.group * D; e += WORKERS) {
        uint32_t q = e / D;
        float2 total = sh->total[q];
        float x = 0;

#pragma unroll 4
        for (uint32_t i = 0; i < h.parts; i++) {
            size_t slot = part_slot(h, h.first + i);
            float m = __ldcg(&a.work.part_sum[slot * GROUP + q].x);

            x += exp2_fast(m - total.x)
                 * __ldcg(a.work.part_out + slot * GROUP * D + e);
        }
        store_out(a, h, q, e % D, D, x / total.y);
    }
}

/* Scores of a part whose head's {max, sum} is in sh->total, and its victims:
 * the head's own, or a candidate for the last part to choose from. */
template <int D>
static __device__ __noinline__ void
score(const decode_args_t &a, shared_t<D> *sh, const part_t &part,
      const uint8_t *trace)
{
    const decode_head_t &h = part.h;
    victim_t least[TR_KV_LISTS_MAX];

#pragma unroll
    for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
        least[l] = no_victim();
    }
    if (threadIdx.x < GROUP) {
        sh->total[threadIdx.x].y = 1 / sh->total[threadIdx.x].y;
    }
    named_barrier(1, WORKERS);
    update_scores(a, h, trace, part.tiles, sh->total, least);
    least_of_block<D>(sh, h.n_lists, least);
    if (threadIdx.x >= 32 || h.n_lists == 0) {
        return;
    }
    if (h.parts == 1) {
        if (threadIdx.x == 0) {
#pragma unroll
            for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
                if (l < h.n_lists) {
                    store_victim(a, h, l, least[l]);
                }
            }
        }
        return;
    }
    size_t slot = part_slot(h, blockIdx.x);
    uint32_t before = 0;

    if (threadIdx.x == 0) {
#pragma unroll
        for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
            __stcg(a.work.part_victim + slot * TR_KV_LISTS_MAX + l,
                   make_uint4(__float_as_uint(least[l].significance),
                              least[l].position, least[l].index, 0));
        }
        __threadfence();
        before = atomicAdd(a.work.arrived + 2 * part.index + 1, 1u);
        __threadfence();
    }
    if (__shfl_sync(TR_ALL_LANES, before, 0) + 1 != h.parts) {
        return;
    }
    for (uint32_t l = 0; l < h.n_lists; l++) {
        victim_t v = no_victim();

        for (uint32_t i = threadIdx.x; i < h.parts; i += 32) {
            uint4 u = __ldcg(
                a.work.part_victim
                + (size_t) part_slot(h, h.first + i) * TR_KV_LISTS_MAX + l);
            victim_t o = { __uint_as_float(u.x), u.y, u.z };

            v = worse(o, v) ? o : v;
        }
        v = least_of_warp(v);
        if (threadIdx.x == 0) {
            store_victim(a, h, l, v);
        }
    }
}

/* Waits until all parts of a head have arrived, then scores this one. */
template <int D>
static __device__ __forceinline__ void
score_when_complete(const decode_args_t &a, shared_t<D> *sh, const part_t &part,
                    const uint8_t *trace)
{
    if (threadIdx.x == 0) {
        while (load_acquire(a.work.arrived + 2 * part.index) != part.h.parts) {
            __nanosleep(100);
        }
    }
    named_barrier(1, WORKERS);
    join_sums<D>(a, sh, part.h);
    score<D>(a, sh, part, trace);
}

/* ---- workers ------------------------------------------------------------ */

/* A warp's way through the block's range: the unit in its queue whose codes are
 * in stage, or on their way. */
struct reader_t {
    uint32_t slot, phase;
    stage_t stage;
};

/* The warp's units of a part. */
template <int D, bool WIDE>
static __device__ __forceinline__ void
attend_part(const decode_args_t &a, shared_t<D> *sh, const head_t<D> &head,
            uint8_t *trace, reader_t &mine, state_t<D> &s)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    state_init<D>(s);
    while (sh->unit[warp][mine.slot].head == head.part.index) {
        const unit_t &u = sh->unit[warp][mine.slot];
        uint32_t slot = (mine.slot + 1) % QUEUE;
        const unit_t &next = sh->unit[warp][slot];

        mine.phase ^= slot == 0;
        mbar_wait(&sh->full[warp][slot], mine.phase);
        attend_any<D, WIDE>(a, head, u, next, mine.stage, trace, s);
        if (!WIDE && next.layout != u.layout) {
            load_any<D, WIDE>(a, next, mine.stage);
        }
        __syncwarp(); /* all lanes have read */
        if (lane == 0) {
            mbar_arrive(&sh->empty[warp][mine.slot]);
        }
        mine.slot = slot;
    }
}

/* Where a part's traces go: behind those of the part that still waits. */
static __device__ __forceinline__ uint8_t *
trace_of(const decode_args_t &a, uint8_t *shared, const part_t &part,
         uint32_t taken)
{
    uint32_t stride = decode_trace_bytes(a.group);

    if (!(part.h.flags & HEAD_SCORED)) {
        return NULL;
    }
    return taken + part.tiles <= a.trace_tiles
               ? shared + a.trace + (size_t) taken * stride
               : a.work.spill + part.spill * stride;
}

template <int D, bool WIDE>
static __device__ __forceinline__ void
work(const decode_args_t &a, shared_t<D> *sh, uint8_t *shared)
{
    const uint32_t warp = threadIdx.x / 32;
    float *merge = (float *) (shared + a.merge);
    reader_t mine;
    const uint8_t *waiting = NULL;
    uint32_t taken = 0;

    mine.slot = mine.phase = 0;
    mbar_wait(&sh->full[warp][0], 0);
    load_any<D, WIDE>(a, sh->unit[warp][0], mine.stage);
    for (uint32_t n = 0;; n++) {
        const head_t<D> &head = sh->head[n % 2];
        const part_t &part = head.part;
        state_t<D> s;

        mbar_wait(&sh->ready[n % 2], n / 2 & 1);
        if (part.stop) {
            break;
        }
        const decode_head_t &h = part.h;
        uint8_t *trace = trace_of(a, shared, part, taken);

        attend_part<D, WIDE>(a, sh, head, trace, mine, s);
        join_warps<D>(a, sh, merge, WIDE, s);
        if (h.parts == 1) {
            for (uint32_t e = threadIdx.x; e < a.group * D; e += WORKERS) {
                uint32_t q = e / D, d = e % D;
                float y = 0;

                for (uint32_t w = 0; w < WARPS; w++) {
                    y += merge[(size_t) (w * a.group + q) * (D + 4) + d];
                }
                store_out(a, h, q, d, D, y / sh->total[q].y);
            }
            if (trace != NULL) {
                named_barrier(1, WORKERS); /* total is inverted there */
                score<D>(a, sh, part, trace);
            }
        } else {
            if (publish<D>(a, sh, part, merge)) {
                join_sums<D>(a, sh, h);
                join_parts<D>(a, sh, part);
                named_barrier(1, WORKERS);
            }
            if (trace != NULL && part.begins) {
                score_when_complete<D>(a, sh, part, trace);
            } else if (trace != NULL) { /* others may be far from done */
                if (threadIdx.x == 0) {
                    sh->waiting = part;
                }
                waiting = trace;
                taken = part.tiles <= a.trace_tiles ? part.tiles : 0;
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            mbar_arrive(&sh->free[n % 2]);
        }
    }
    if (waiting != NULL) {
        named_barrier(1, WORKERS);
        score_when_complete<D>(a, sh, sh->waiting, waiting);
    }
}

template <int D, bool WIDE>
static __global__ void
__launch_bounds__(BLOCK, 1)
    decode_kernel(const __grid_constant__ decode_args_t a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    shared_t<D> *sh = (shared_t<D> *) shared;
    uint32_t warp = threadIdx.x / 32;

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < 2; i++) {
            mbar_init(&sh->ready[i], 32);
            mbar_init(&sh->free[i], WARPS);
        }
        for (uint32_t i = 0; i < WARPS * QUEUE; i++) {
            mbar_init(&sh->full[i / QUEUE][i % QUEUE], 1);
            mbar_init(&sh->empty[i / QUEUE][i % QUEUE], 1);
        }
    }
    __syncthreads();
    if (warp < WARPS) {
        work<D, WIDE>(a, sh, shared);
    } else if (warp == WARPS) {
        feed_units<D>(a, sh);
    } else {
        feed_queries<D>(a, sh);
    }
}

/* ---- launchers ---------------------------------------------------------- */

static __thread cudaError_t last_error;

int
tr_cuda_check(void)
{
    last_error = cudaGetLastError();
    return last_error == cudaSuccess ? TR_KERNEL_OK : TR_CUDA_FAILED;
}

extern "C" const char *
tr_cuda_reason(void)
{
    return cudaGetErrorString(last_error);
}

static void
allow_shared(void (*kernel)(const decode_args_t), int bytes)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
}

extern "C" int
tr_cuda_open(int ordinal, tr_cuda_device_t *out)
{
    int blocks = 0, shared = 0;

    cudaSetDevice(ordinal);
    cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, ordinal);
    cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                           ordinal);
    allow_shared(decode_kernel<64, false>, shared);
    allow_shared(decode_kernel<64, true>, shared);
    allow_shared(decode_kernel<128, false>, shared);
    allow_shared(decode_kernel<128, true>, shared);
    out->ordinal = ordinal;
    out->blocks = (uint32_t) blocks;
    out->shared = (uint32_t) shared;
    return tr_cuda_check();
}

/* Divides shared memory; false when it is too small. */
static bool
divide(decode_args_t *a, const tr_cuda_device_t *d, uint32_t dim,
       size_t head_bytes)
{
    uint32_t at = (uint32_t) (head_bytes + 127) / 128 * 128;

    a->merge = at;
    at += (WARPS * a->group * (dim + 4) * 4 + 127) / 128 * 128;
    a->trace = at;
    if (at > d->shared) {
        return false;
    }
    /* what is left is L1 cache */
    a->trace_tiles = (d->shared - at) / decode_trace_bytes(a->group);
    a->trace_tiles = a->trace_tiles < TRACE_TILES ? a->trace_tiles
                                                  : TRACE_TILES;
    return true;
}

template <int D, bool WIDE>
static int
launch(const tr_cuda_stream_t *s, decode_args_t *a)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cooperative = {};

    if (!divide(a, s->device, D, sizeof(shared_t<D>))) {
        return TR_KERNEL_BADARG;
    }
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    config.gridDim = dim3(s->device->blocks);
    config.blockDim = dim3(BLOCK);
    config.dynamicSmemBytes = a->trace
                              + a->trace_tiles * decode_trace_bytes(a->group);
    config.stream = (cudaStream_t) s->stream;
    config.attrs = &cooperative;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, decode_kernel<D, WIDE>, *a);
    return tr_cuda_check();
}

extern "C" int
tr_cuda_decode(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
               uint32_t layer, const tr_rows_t *rows,
               const tr_cuda_queries_t *queries,
               const tr_cuda_decode_size_t *size, void *work)
{
    decode_args_t a;
    size_t heads = (size_t) size->max_seqs * size->lists;

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (layer >= kv->layers || rows->n_seqs > size->max_seqs
        || kv->lists != size->lists || kv->lists == 0
        || queries->heads % kv->lists != 0 || queries->heads != size->heads
        || queries->heads / kv->lists > GROUP || queries->heads == 0
        || decode_layouts(kv, &a.layouts) != TR_KERNEL_OK) {
        return TR_KERNEL_BADARG;
    }
    a.kv = *kv;
    a.work = decode_work(s->device, size, work);
    a.work.head += layer * heads;
    a.work.cut += (size_t) layer * (s->device->blocks + 1);
    a.work.arrived += layer * heads * 2;
    a.q = queries->q;
    a.out = queries->out;
    a.ldq = queries->ldq;
    a.ldo = queries->ldo;
    a.q_type = queries->q_type;
    a.out_type = queries->out_type;
    a.group = queries->heads / kv->lists;
    a.trace_bytes = decode_trace_bytes(a.group);
    a.scale = queries->scale * 1.4426950408889634f;
    if (kv->head_dim == 128) {
        return kv->n_layouts == 1 ? launch<128, true>(s, &a)
                                  : launch<128, false>(s, &a);
    }
    if (kv->head_dim == 64) {
        return kv->n_layouts == 1 ? launch<64, true>(s, &a)
                                  : launch<64, false>(s, &a);
    }
    return TR_KERNEL_BADARG;
}
