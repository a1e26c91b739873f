/*
 * decode_score.cuh: what a probability leaves behind: scores and victims.
 *
 * A tile's weights are known before the softmax sum of its head is.  They are
 * kept, as FP16 relative to the tile's own maximum, in a trace:
 *
 *   16 bytes   address of the 16 scores (0: not scored), segment | which tokens
 *              exist << 16, index of the first token in its segment
 *   8 a pair   the maxima to which the weights of query heads 2c, 2c + 1 relate
 *   64 a pair  weights {2c, 2c + 1} of 16 tokens
 *
 * Traces stay in shared memory, or go to the workspace when a block has more
 * tiles than that holds.  When max and sum are known, the scores are read,
 * increased and written once, and the least significant token comes along.
 */
#ifndef TR_CUDA_DECODE_SCORE_CUH
#define TR_CUDA_DECODE_SCORE_CUH

#include "decode_block.cuh"

#define AT_ONCE 4 /* quarters of tiles a thread asks for together */

static __device__ __forceinline__ bool
worse(const victim_t &a, const victim_t &b)
{
    return a.significance < b.significance
           || (a.significance == b.significance && a.position < b.position);
}

static __device__ __forceinline__ victim_t
no_victim(void)
{
    victim_t v = { __int_as_float(0x7f800000), 0xffffffffu, 0 };

    return v;
}

/* Four tokens' scores. */
struct quarter_t {
    float *score;
    float4 old;
    uint4 position;
    uint32_t segment, index, exists;
};

static __device__ __forceinline__ void
ask(const decode_args_t &a, const decode_head_t &h, const uint8_t *trace,
    uint32_t sub, quarter_t *x)
{
    uint4 info = *(const uint4 *) trace;
    uint64_t at = (uint64_t) info.y << 32 | info.x;

    x->segment = info.z & 7;
    x->exists = at == 0 ? 0 : info.z >> (16 + sub * 4) & 15;
    x->index = info.w + sub * 4;
    x->score = (float *) at + sub * 4;
    if (x->exists == 0) {
        return;
    }
    const decode_layout_t &l = a.layouts.of[h.layout[x->segment]];

    x->old = *(const float4 *) x->score;
    if (x->segment < SEG_WINDOW) {
        x->position = __ldg((const uint4 *) ((const uint8_t *) x->score
                                             + l.position - l.score));
    } else if (x->segment == SEG_WINDOW) {
        x->position.x = window_position(h, x->index);
        x->position.y = window_position(h, x->index + 1);
        x->position.z = window_position(h, x->index + 2);
        x->position.w = window_position(h, x->index + 3);
    } else {
        x->position.x = h.base + x->index;
        x->position.y = x->position.x + 1;
        x->position.z = x->position.x + 2;
        x->position.w = x->position.x + 3;
    }
}

/* The largest probability of each of four tokens; total: {max, 1 / sum}. */
static __device__ __forceinline__ float4
gain(const uint8_t *trace, uint32_t sub, uint32_t group, const float2 *total)
{
    uint32_t pairs = (group + 1) / 2;
    const uint8_t *weights = trace + 16 + (pairs + 1) / 2 * 16 + sub * 16;
    float4 most = make_float4(0, 0, 0, 0);

    for (uint32_t c = 0; c < pairs; c++) {
        float2 base = *(const float2 *) (trace + 16 + c * 8);
        uint4 w = *(const uint4 *) (weights + c * 64);
        float2 t0 = total[2 * c], t1 = total[2 * c + 1];
        float f0 = exp2_fast(base.x - t0.x) * t0.y;
        float f1 = 2 * c + 1 < group ? exp2_fast(base.y - t1.x) * t1.y : 0;
        float2 p = half2_floats(w.x);

        most.x = fmaxf(most.x, fmaxf(p.x * f0, p.y * f1));
        p = half2_floats(w.y);
        most.y = fmaxf(most.y, fmaxf(p.x * f0, p.y * f1));
        p = half2_floats(w.z);
        most.z = fmaxf(most.z, fmaxf(p.x * f0, p.y * f1));
        p = half2_floats(w.w);
        most.w = fmaxf(most.w, fmaxf(p.x * f0, p.y * f1));
    }
    return most;
}

/* One token; its new score.  Exact division is slow, and needed only where an
 * inexact one says that it might be the least. */
static __device__ __forceinline__ float
pay(const decode_head_t &h, uint32_t segment, uint32_t position, uint32_t index,
    bool exists, float score, float p, victim_t (&least)[TR_KV_LISTS_MAX])
{
    bool later = position < h.n;
    float n = (float) (h.n - position), bound = least[0].significance, mean;

    score += later ? p : 0;
    mean = later ? __fdividef(score, n) : 0;
    mean = h.flags & HEAD_BY_SUM ? score : mean;
#pragma unroll
    for (uint32_t l = 1; l < TR_KV_LISTS_MAX; l++) {
        bound = segment == l ? least[l].significance : bound;
    }
    if (exists && segment < SEG_WINDOW && mean <= bound * 1.0001f) {
        victim_t v = { mean, position, index };

        if (later && !(h.flags & HEAD_BY_SUM)) {
            v.significance = __fdiv_rn(score, n);
        }
#pragma unroll
        for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
            if (segment == l && worse(v, least[l])) {
                least[l] = v;
            }
        }
    }
    return score;
}

static __device__ __forceinline__ void
pay_quarter(const decode_args_t &a, const decode_head_t &h, const quarter_t &x,
            const float4 &p, victim_t (&least)[TR_KV_LISTS_MAX])
{
    const uint4 &at = x.position;
    float4 s = x.old;

    s.x = pay(h, x.segment, at.x, x.index, x.exists & 1, s.x, p.x, least);
    s.y = pay(h, x.segment, at.y, x.index + 1, x.exists & 2, s.y, p.y, least);
    s.z = pay(h, x.segment, at.z, x.index + 2, x.exists & 4, s.z, p.z, least);
    s.w = pay(h, x.segment, at.w, x.index + 3, x.exists & 8, s.w, p.w, least);
    if (x.exists == 15) {
        *(float4 *) x.score = s;
    } else { /* what does not exist stays as it is */
        if (x.exists & 1) {
            x.score[0] = s.x;
        }
        if (x.exists & 2) {
            x.score[1] = s.y;
        }
        if (x.exists & 4) {
            x.score[2] = s.z;
        }
        if (x.exists & 8) {
            x.score[3] = s.w;
        }
    }
    if (x.segment == SEG_DENSE && (h.flags & HEAD_RECENT)) {
        const decode_layout_t &l = a.layouts.of[h.layout[SEG_DENSE]];
        float *recent = (float *) ((uint8_t *) x.score + l.recent - l.score);

        const float gain[4] = { at.x < h.n ? p.x : 0, at.y < h.n ? p.y : 0,
                                at.z < h.n ? p.z : 0, at.w < h.n ? p.w : 0 };

#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (x.exists >> i & 1) {
                recent[i] += gain[i];
            }
        }
    }
}

/* All traces of a part; total: {max, 1 / sum} of the head. */
static __device__ __forceinline__ void
update_scores(const decode_args_t &a, const decode_head_t &h,
              const uint8_t *trace, uint32_t tiles, const float2 *total,
              victim_t (&least)[TR_KV_LISTS_MAX])
{
    uint32_t stride = decode_trace_bytes(a.group), n = tiles * 4;

    for (uint32_t from = threadIdx.x; from < n; from += AT_ONCE * WORKERS) {
        quarter_t x[AT_ONCE];

#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++) {
            uint32_t i = from + j * WORKERS;

            x[j].exists = 0;
            if (i < n) {
                ask(a, h, trace + (size_t) (i / 4) * stride, i % 4, &x[j]);
            }
        }
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++) {
            uint32_t i = from + j * WORKERS;

            if (x[j].exists != 0) {
                float4 p = gain(trace + (size_t) (i / 4) * stride, i % 4,
                                a.group, total);

                pay_quarter(a, h, x[j], p, least);
            }
        }
    }
}

/* The least of the 32 lanes. */
static __device__ __forceinline__ victim_t
least_of_warp(victim_t v)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        victim_t o;

        o.significance = __shfl_xor_sync(TR_ALL_LANES, v.significance, d);
        o.position = __shfl_xor_sync(TR_ALL_LANES, v.position, d);
        o.index = __shfl_xor_sync(TR_ALL_LANES, v.index, d);
        if (worse(o, v)) {
            v = o;
        }
    }
    return v;
}

/* The least of all workers; lane 0 of warp 0 has them.  Ends with a barrier
 * behind which traces may be overwritten. */
template <int D>
static __device__ __forceinline__ void
least_of_block(shared_t<D> *sh, uint32_t n_lists,
               victim_t (&least)[TR_KV_LISTS_MAX])
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
    for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
        if (l < n_lists) {
            victim_t v = least_of_warp(least[l]);

            if (lane == 0) {
                sh->victim[l][warp] = v;
            }
        }
    }
    named_barrier(1, WORKERS);
    if (warp != 0) {
        return;
    }
#pragma unroll
    for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
        if (l < n_lists) {
            least[l] = least_of_warp(lane < WARPS ? sh->victim[l][lane]
                                                  : no_victim());
        }
    }
}

static __device__ __forceinline__ void
store_victim(const decode_args_t &a, const decode_head_t &h, uint32_t l,
             const victim_t &v)
{
    tr_kv_victim_t *to = a.kv.victim + (size_t) h.head * TR_KV_LISTS_MAX + l;

    to->significance = v.significance;
    to->index = v.index;
}

#endif
