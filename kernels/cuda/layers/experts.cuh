/*
 * experts.cuh: layers with experts, as functions of a warp or a block: whom a
 * row goes to, rows in the order of experts, an expert's products, and the sum
 * of what a row's experts made (device.h).
 *
 * Products come from tensor cores, 16 outputs by 8 rows by 16 inputs a time,
 * with operands straight from memory: a lane reads 16 bytes of a row, which are
 * eight of 32 inputs, and as both operands take them in that order, sums are the
 * same whatever their order is called.  Weights are read once for all rows of a
 * tile; a row's bits depend on it alone, since every sum runs through its inputs
 * in one order.
 */
#ifndef TR_CUDA_EXPERTS_CUH
#define TR_CUDA_EXPERTS_CUH

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.cuh"

/* ---- the router ---------------------------------------------------------- */

#define ROUTE_WARPS 2u

/* Of a warp. */
typedef struct {
    float score[TR_EXPERTS_MAX], choice[TR_EXPERTS_MAX];
    float group[TR_EXPERTS_MAX];
} route_smem_t;

#define NOBODY 0xffffffffu

typedef struct {
    float x;
    uint32_t i; /* NOBODY: there is none */
} best_t;

TR_DEVICE float
warp_sum(float x)
{
    for (int d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(TR_EVERY_LANE, x, d);
    }
    return x;
}

TR_DEVICE float
warp_max(float x)
{
    for (int d = 16; d > 0; d /= 2) {
        x = fmaxf(x, __shfl_xor_sync(TR_EVERY_LANE, x, d));
    }
    return x;
}

/* The better of two: of equals the lower index. */
TR_DEVICE best_t
better(best_t a, best_t b)
{
    bool second = b.i != NOBODY
                  && (a.i == NOBODY || b.x > a.x || (b.x == a.x && b.i < a.i));

    return second ? b : a;
}

/* Of [from, to) of x, those that are not taken; bit i of a lane's `taken` is
 * that of lane + 32 i.  A NaN counts as the smallest. */
TR_DEVICE best_t
best_of(const float *x, uint32_t from, uint32_t to, uint32_t lane,
        uint32_t taken)
{
    best_t best = { 0, NOBODY };

    for (uint32_t i = from / 32; i * 32 < to; i++) {
        uint32_t e = i * 32 + lane;

        if (e >= from && e < to && !(taken >> i & 1)) {
            best_t mine = { x[e] == x[e] ? x[e] : -INFINITY, e };

            best = better(best, mine);
        }
    }
    for (int d = 16; d > 0; d /= 2) {
        best_t other = { __shfl_xor_sync(TR_EVERY_LANE, best.x, d),
                         __shfl_xor_sync(TR_EVERY_LANE, best.i, d) };

        best = better(best, other);
    }
    return best;
}

TR_DEVICE uint32_t
take_one(uint32_t taken, uint32_t e, uint32_t lane)
{
    return e % 32 == lane ? taken | 1u << e / 32 : taken;
}

/* Scores of a row, by which weights are formed, and what the choice goes by. */
TR_DEVICE void
route_score(const tr_cuda_route_t *a, uint32_t row, uint32_t lane,
            route_smem_t *s)
{
    const float *logits = a->logits + (size_t) row * a->ld;
    const tr_route_t *t = &a->route;
    float max = -INFINITY, sum = 0;

    for (uint32_t e = lane; e < t->experts; e += 32) {
        s->score[e] = logits[e]
                      + (a->logit_bias == NULL ? 0 : a->logit_bias[e]);
        max = fmaxf(max, s->score[e]);
    }
    max = warp_max(max);
    for (uint32_t e = lane; e < t->experts; e += 32) {
        float x = s->score[e];

        x = t->score == TR_ROUTE_TOP_SOFTMAX ? x
            : t->score == TR_ROUTE_SIGMOID   ? 1 / (1 + expf(-x))
                                             : expf(x - max);
        s->score[e] = x;
        sum += x;
    }
    sum = warp_sum(sum);
    for (uint32_t e = lane; e < t->experts; e += 32) {
        if (t->score == TR_ROUTE_SOFTMAX) {
            s->score[e] /= sum;
        }
        s->choice[e] = s->score[e]
                       + (a->choice_bias == NULL ? 0 : a->choice_bias[e]);
    }
    __syncwarp();
}

/* The lane's experts that are in none of the best groups. */
TR_DEVICE uint32_t
route_groups(const tr_route_t *t, uint32_t lane, route_smem_t *s)
{
    uint32_t size = t->experts / t->groups, kept = 0, taken = 0;

    for (uint32_t g = 0; g < t->groups; g++) {
        uint32_t from = g * size, to = from + size;
        best_t first = best_of(s->choice, from, to, lane, 0), second;

        second = best_of(s->choice, from, to, lane, take_one(0, first.i, lane));
        if (lane == 0) {
            s->group[g] = s->choice[first.i]
                          + (size > 1 ? s->choice[second.i] : 0);
        }
    }
    __syncwarp();
    for (uint32_t i = 0; i < t->top_groups; i++) {
        kept = take_one(kept, best_of(s->group, 0, t->groups, lane, kept).i,
                        lane);
    }
    __syncwarp(); /* before scores of groups become marks */
    for (uint32_t g = lane, i = 0; g < t->groups; g += 32, i++) {
        s->group[g] = kept >> i & 1 ? 1.0f : 0.0f;
    }
    __syncwarp();
    for (uint32_t e = lane, i = 0; e < t->experts; e += 32, i++) {
        taken |= s->group[e / size] != 0 ? 0 : 1u << i;
    }
    return taken;
}

/* A row, by a warp. */
TR_DEVICE void
route_row(const tr_cuda_route_t *a, uint32_t row, uint32_t lane,
          route_smem_t *s)
{
    const tr_route_t *t = &a->route;
    size_t at = (size_t) row * t->top_k + lane;
    uint32_t taken = 0, mine = 0;
    float weight = 0, sum;

    route_score(a, row, lane, s);
    if (t->groups > 1) {
        taken = route_groups(t, lane, s);
    }
    for (uint32_t k = 0; k < t->top_k; k++) {
        uint32_t e = best_of(s->choice, 0, t->experts, lane, taken).i;

        taken = take_one(taken, e, lane);
        if (lane == k) {
            mine = e;
            weight = s->score[e];
        }
    }
    if (t->score == TR_ROUTE_TOP_SOFTMAX) { /* the first is the largest */
        float max = __shfl_sync(TR_EVERY_LANE, weight, 0);

        weight = lane < t->top_k ? expf(weight - max) : 0;
    }
    sum = warp_sum(weight);
    if (lane < t->top_k) {
        a->expert[at] = mine;
        a->weight[at] = t->renorm || t->score == TR_ROUTE_TOP_SOFTMAX
                            ? weight / sum * t->scale
                            : weight * t->scale;
    }
    __syncwarp();
}

/* ---- the order of experts ------------------------------------------------ */

#define ORDER_THREADS 256u

/* Expert e's place in the order, and where its rows go: by a block each. */
TR_DEVICE void
order_expert(const tr_cuda_order_t *a, block_t b, uint64_t *meet, uint32_t e)
{
    uint32_t n = a->rows * a->top_k;
    uint64_t below = 0, base, here;

    for (uint32_t i = b.lane; i < n; i += b.lanes) {
        below += a->expert[i] < e;
    }
    block_scan(b, below, meet, &base);
    if (b.lane == 0) {
        a->first[e] = (uint32_t) base;
        if (e + 1 == a->experts) {
            a->first[a->experts] = n;
        }
    }
    for (uint32_t from = 0; from < n; from += b.lanes) {
        uint32_t i = from + b.lane;
        bool mine = i < n && a->expert[i] == e;
        uint32_t at = (uint32_t) (base + block_scan(b, mine, meet, &here));

        if (mine) {
            a->place[i] = at;
            a->row[at] = i / a->top_k;
        }
        base += here;
    }
}

/* ---- products ------------------------------------------------------------ */

#define EXPERT_WARPS 4u

/* c += a b of 16 bits, of either type. */
template <tr_dtype_t T>
TR_DEVICE void
mma_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (T == TR_BF16) {
        mma_bf16(c, a, b0, b1);
    } else {
        mma(c, a, b0, b1);
    }
}

/* Which expert tile `tile` of R places belongs to, and its first place; false:
 * there are fewer tiles.  All lanes of a warp come. */
TR_DEVICE bool
tile_find(const tr_cuda_experts_t *a, uint32_t tile, uint32_t R, uint32_t lane,
          uint32_t *expert, uint32_t *place)
{
    for (uint32_t from = 0; from < a->experts; from += 32) {
        uint32_t e = from + lane, first = 0, tiles = 0, sum;
        uint32_t all, hit;

        if (e < a->experts) {
            first = a->first[e];
            tiles = (a->first[e + 1] - first + R - 1) / R;
        }
        sum = tiles;
        for (uint32_t d = 1; d < 32; d *= 2) {
            uint32_t y = __shfl_up_sync(TR_EVERY_LANE, sum, d);

            sum += lane >= d ? y : 0;
        }
        all = __shfl_sync(TR_EVERY_LANE, sum, 31);
        if (tile < all) {
            hit = (uint32_t) __ffs(
                      (int) __ballot_sync(TR_EVERY_LANE, tile < sum))
                  - 1;
            *expert = from + hit;
            *place = __shfl_sync(TR_EVERY_LANE,
                                 first + (tile - (sum - tiles)) * R, hit);
            return true;
        }
        tile -= all;
    }
    return false;
}

/* c += 32 inputs from `at` on of the lane's rows; TAIL: those behind the rows' end
 * count as 0. */
template <tr_dtype_t T, int A, int B, bool TAIL>
TR_DEVICE void
expert_step(const uint16_t *const (&weights)[2 * A],
            const uint16_t *const (&inputs)[B], uint32_t at, uint32_t k,
            float (&c)[A][B][4])
{
    const bool there = !TAIL || at < k;
    uint4 u[2 * A], v[B];

#pragma unroll
    for (int i = 0; i < 2 * A; i++) {
        u[i] = there ? *(const uint4 *) (weights[i] + at)
                     : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < B; i++) {
        v[i] = there ? *(const uint4 *) (inputs[i] + at)
                     : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < A; i++) {
        const uint4 &p = u[2 * i], &q = u[2 * i + 1];
        const uint32_t one[4] = { p.x, q.x, p.y, q.y };
        const uint32_t two[4] = { p.z, q.z, p.w, q.w };

#pragma unroll
        for (int j = 0; j < B; j++) {
            mma_of<T>(c[i][j], one, v[j].x, v[j].y);
            mma_of<T>(c[i][j], two, v[j].z, v[j].w);
        }
    }
}

/* The rows of x at places `place` and on; in place of those from `end` on the
 * first is read again. */
template <int B>
TR_DEVICE void
expert_inputs(const tr_cuda_experts_t *a, uint32_t place, uint32_t end,
              uint32_t lane, const uint16_t *(&inputs)[B])
{
#pragma unroll
    for (int i = 0; i < B; i++) {
        uint32_t at = place + i * 8 + lane / 4;

        at = at < end ? at : place;
        inputs[i] = (const uint16_t *) a->x
                    + (a->row == NULL ? at : a->row[at]) * a->ldx;
    }
}

/* Sums become outputs, those that there are. */
template <int A, int B>
TR_DEVICE void
expert_store(const tr_cuda_experts_t *a, tr_dtype_t type, uint32_t expert,
             uint32_t n, uint32_t place, uint32_t end, uint32_t lane,
             const float (&c)[A][B][4])
{
    const uint32_t g = lane / 4, t = lane % 4;

#pragma unroll
    for (int i = 0; i < A; i++) {
#pragma unroll
        for (int j = 0; j < B; j++) {
#pragma unroll
            for (uint32_t x = 0; x < 4; x++) {
                uint32_t out = n + i * 16 + x / 2 * 8 + g;
                uint32_t at = place + j * 8 + 2 * t + x % 2;
                float y = c[i][j][x];

                if (out < a->n && at < end) {
                    y += a->bias == NULL
                             ? 0
                             : a->bias[(size_t) expert * a->n + out];
                    tr_float_store(a->y, at * a->ldy + out, type, y);
                }
            }
        }
    }
}

/* 16 A outputs from `n` on for 8 B places from `place` on, of a warp.  In place of
 * outputs and places that there are not, one that there is is computed again, and
 * not stored. */
template <tr_dtype_t T, int A, int B>
TR_DEVICE void
expert_tile(const tr_cuda_experts_t *a, uint32_t expert, uint32_t n,
            uint32_t place, uint32_t end, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
    const uint16_t *w = (const uint16_t *) a->w + (size_t) expert * a->n * a->k;
    const uint16_t *weights[2 * A], *inputs[B];
    float c[A][B][4] = {};

#pragma unroll
    for (int i = 0; i < 2 * A; i++) {
        uint32_t row = n + i * 8 + g;

        weights[i] = w + (size_t) (row < a->n ? row : a->n - 1) * a->k;
    }
    expert_inputs<B>(a, place, end, lane, inputs);
    /* few rows: what is under way is what keeps memory busy */
#pragma unroll(A == 1 ? 4 : 2)
    for (uint32_t k = 0; k < a->k / 32; k++) {
        expert_step<T, A, B, false>(weights, inputs, k * 32 + t * 8, a->k, c);
    }
    if (a->k % 32 != 0) {
        expert_step<T, A, B, true>(weights, inputs, a->k / 32 * 32 + t * 8,
                                   a->k, c);
    }
    expert_store<A, B>(a, T, expert, n, place, end, lane, c);
}

/* ---- the sum ------------------------------------------------------------- */

/* Elements 8 i .. of row r: what its experts made, in the order of the choice,
 * and what the one that all rows go to did. */
TR_DEVICE void
sum_eight(const tr_cuda_sum_experts_t *a, tr_dtype_t type, bool wide,
          uint32_t r, uint32_t i)
{
    uint32_t n = eight_count(a->n, 8 * i);
    eight_t sum = {};

    if (n == 0) {
        return;
    }
    for (uint32_t k = 0; k < a->top_k; k++) {
        size_t at = (size_t) r * a->top_k + k;
        eight_t x = eight_load(a->x, a->place[at] * a->ldx + 8 * i, n, type,
                               wide);

        for (uint32_t j = 0; j < 8; j++) {
            sum.x[j] += a->weight[at] * x.x[j];
        }
    }
    if (a->shared != NULL) {
        eight_t x = eight_load(a->shared, r * a->lds + 8 * i, n, type, wide);

        for (uint32_t j = 0; j < 8; j++) {
            sum.x[j] += x.x[j];
        }
    }
    eight_store(a->out, r * a->ldo + 8 * i, n, type, wide, &sum);
}

TR_HD bool
sum_wide(const tr_cuda_sum_experts_t *a)
{
    return is_wide(a->x) && is_wide(a->ldx, 2) && is_wide(a->out)
           && is_wide(a->ldo, 2) && is_wide(a->shared)
           && (a->shared == NULL || is_wide(a->lds, 2));
}

#endif
