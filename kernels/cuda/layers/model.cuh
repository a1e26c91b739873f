/*
 * model.cuh: the small kernels of a layer, as functions of a thread, warp or
 * block (lanes.cuh).
 *
 * All of them are bound by memory, and none reads a byte twice.  A thread takes
 * eight numbers at a time, in accesses of 16 bytes where addresses and rows are
 * multiples of that (`wide`), else one by one.
 */
#ifndef TR_CUDA_MODEL_CUH
#define TR_CUDA_MODEL_CUH

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/lanes_hadamard.cuh"
#include "kernels/cuda/layers/act.cuh"

TR_HD uint32_t
eights(uint32_t n)
{
    return n / 8 + (n % 8 != 0);
}

/* ---- embedding: reads 2 bytes and writes 4 an element -------------------- */

TR_HD bool
embed_wide(const tr_cuda_embed_t *a)
{
    return is_wide(a->table) && is_wide(a->out) && is_wide(a->hidden, 2)
           && is_wide(a->ldo, 4);
}

/* The token of row r, which history has when the row has not; `enter`: history
 * learns it. */
TR_DEVICE int32_t
embed_token(const tr_cuda_embed_t *a, uint32_t r, bool enter)
{
    int32_t token = a->token[r], slot = a->row_slot[r];
    uint32_t pos = a->row_pos[r];

    if (slot >= 0 && a->history.token != NULL && pos < a->history.len) {
        int32_t *known = a->history.token + (size_t) slot * a->history.len
                         + pos;

        if (token < 0) {
            token = *known;
        } else if (enter) {
            *known = token;
        }
    }
    return token;
}

/* Elements 8 i .. 8 i + 7 of row r. */
TR_DEVICE void
embed_eight(const tr_cuda_embed_t *a, tr_dtype_t type, bool wide, uint32_t r,
            uint32_t i)
{
    uint32_t n = eight_count(a->hidden, 8 * i);
    int32_t token;
    eight_t e;

    if (n == 0) {
        return;
    }
    token = embed_token(a, r, i == 0);
    token = token < 0 || (uint32_t) token >= a->vocab ? 0 : token;
    e = eight_load(a->table, (size_t) token * a->hidden + 8 * i, n, type, wide);
    for (uint32_t j = 0; j < 8; j++) {
        e.x[j] *= a->scale;
    }
    eight_store(a->out, r * a->ldo + 8 * i, n, TR_F32, wide, &e);
}

/* ---- RoPE's angles: writes 8 bytes a pair, once a step ------------------- */

/* Double precision: FP32 has other reductions of large angles on the device
 * than in the C library. */
TR_DEVICE void
rope_angle(const tr_cuda_angles_t *a, uint32_t r, uint32_t i)
{
    uint32_t pos = a->row_pos[r];
    bool is_long = a->row_long != NULL && a->row_long[r] != 0;
    float angle = mul_rn((float) pos,
                         (is_long ? a->inv_freq_long : a->inv_freq)[i]);
    float *out = a->angles + (size_t) r * 2 * a->half + i;
    float amp = a->amp == NULL ? 1 : a->amp[i];
    double s, c;

    if (a->temp != 0) {
        amp *= 1 + a->temp * logf(1 + (float) (pos / a->temp_original));
    }
    sincos((double) angle, &s, &c);
    out[0] = (float) c * amp;
    out[a->half] = (float) s * amp;
}

/* ---- norm: reads 4 + 2 bytes, writes 4 + 2 an element -------------------- */

TR_HD bool
norm_wide(const tr_cuda_norm_t *a)
{
    return is_wide(a->hidden) && is_wide(a->ldh, 4) && is_wide(a->delta)
           && is_wide(a->weight) && is_wide(a->bias) && is_wide(a->post_weight)
           && is_wide(a->out) && is_wide(a->ldo, 2)
           && (a->delta == NULL || is_wide(a->ldd, 2));
}

/* Elements of hidden with what delta and bias add; n of them. */
TR_DEVICE eight_t
norm_load(const tr_cuda_norm_t *a, tr_dtype_t type, bool wide, size_t row,
          uint32_t i, uint32_t n)
{
    eight_t h = eight_load(a->hidden, row * a->ldh + i, n, TR_F32, wide), d;

    if (a->delta == NULL) {
        return h;
    }
    d = eight_load(a->delta, row * a->ldd + i, n, type, wide);
    for (uint32_t j = 0; j < 8; j++) {
        h.x[j] += d.x[j];
    }
    if (a->bias != NULL) {
        d = eight_load(a->bias, i, n, TR_F32, wide);
        for (uint32_t j = 0; j < 8; j++) {
            h.x[j] += d.x[j];
        }
    }
    return h;
}

/* type: of out. */
TR_DEVICE void
norm_store(const tr_cuda_norm_t *a, tr_dtype_t type, bool wide, uint32_t r,
           uint32_t i, uint32_t n, const eight_t *weight, float scale,
           eight_t *h)
{
    for (uint32_t j = 0; j < 8; j++) {
        h->x[j] = h->x[j] * scale * weight->x[j];
    }
    eight_store(a->out, r * a->ldo + i, n, type, wide, h);
}

/* Row r of out, by a block.  A lane keeps its first eight numbers, so that rows
 * of up to 8 x lanes are read once; the rest comes from the L1 cache again.
 * `weight`: of the first eight, which do not depend on the kernel before.
 * `once`: there is no rest, which saves a block half of its registers. */
TR_DEVICE void
norm_row(const tr_cuda_norm_t *a, tr_dtype_t type, bool wide, bool once,
         block_t b, uint64_t *meet, const eight_t *weight, uint32_t r)
{
    size_t row = a->gather == NULL ? r : a->gather[r];
    uint32_t first = b.lane * 8, step = b.lanes * 8;
    uint32_t count = eight_count(a->n, first);
    eight_t mine = {}, h, w;
    float sum = 0, scale;

    for (uint32_t i = first; i < a->n; i += step) {
        uint32_t n = i == first ? count : eight_count(a->n, i);

        h = norm_load(a, type, wide, row, i, n);
        if (a->gather == NULL && a->delta != NULL) {
            eight_store(a->hidden, row * a->ldh + i, n, TR_F32, wide, &h);
        }
        for (uint32_t j = 0; j < 8; j++) {
            sum += h.x[j] * h.x[j];
        }
        if (i == first) {
            mine = h;
        }
        if (once) {
            break;
        }
    }
    sum = block_sum(b, sum, meet);
    scale = 1.0f / sqrtf(sum / (float) a->n + a->eps);
    if (first < a->n) {
        norm_store(a, type, wide, r, first, count, weight, scale, &mine);
    }
    for (uint32_t i = first + step; !once && i < a->n; i += step) {
        uint32_t n = eight_count(a->n, i);

        h = a->gather == NULL
                ? eight_load(a->hidden, row * a->ldh + i, n, TR_F32, wide)
                : norm_load(a, type, wide, row, i, n);
        w = eight_load(a->weight, i, n, TR_F32, wide);
        norm_store(a, type, wide, r, i, n, &w, scale, &h);
    }
}

/* Is it one that norm_row does?  The others have norm_row_post. */
TR_HD bool
norm_plain(const tr_cuda_norm_t *a)
{
    return a->weight != NULL && !a->full
           && (a->delta == NULL || (a->post_weight == NULL && a->scale == 1));
}

/* Eight of delta and bias. */
TR_DEVICE eight_t
post_load(const tr_cuda_norm_t *a, tr_dtype_t type, bool wide, size_t row,
          uint32_t i, uint32_t n)
{
    eight_t d = eight_load(a->delta, row * a->ldd + i, n, type, wide);

    if (a->bias != NULL) {
        eight_t bias = eight_load(a->bias, i, n, TR_F32, wide);

        for (uint32_t j = 0; j < 8; j++) {
            d.x[j] += bias.x[j];
        }
    }
    return d;
}

/* By what delta's elements are multiplied before post_weight. */
TR_DEVICE float
post_scale(const tr_cuda_norm_t *a, tr_dtype_t type, bool wide, block_t b,
           uint64_t *meet, size_t row)
{
    float sum = 0;

    if (a->post_weight == NULL) {
        return a->scale;
    }
    for (uint32_t i = b.lane * 8; i < a->n; i += b.lanes * 8) {
        eight_t d = post_load(a, type, wide, row, i, eight_count(a->n, i));

        for (uint32_t j = 0; j < 8; j++) {
            sum += d.x[j] * d.x[j];
        }
    }
    sum = block_sum(b, sum, meet);
    return a->scale / sqrtf(sum / (float) a->n + a->eps);
}

/* Eight of hidden with what is added, `by` being post_scale. */
TR_DEVICE eight_t
post_sum(const tr_cuda_norm_t *a, tr_dtype_t type, bool wide, size_t row,
         uint32_t i, uint32_t n, float by)
{
    eight_t h = eight_load(a->hidden, row * a->ldh + i, n, TR_F32, wide), d, w;

    if (a->delta == NULL) {
        return h;
    }
    d = post_load(a, type, wide, row, i, n);
    if (a->post_weight != NULL) {
        w = eight_load(a->post_weight, i, n, TR_F32, wide);
        for (uint32_t j = 0; j < 8; j++) {
            d.x[j] *= w.x[j];
        }
    }
    for (uint32_t j = 0; j < 8; j++) {
        h.x[j] += by * d.x[j];
    }
    return h;
}

/* norm_row for all that device.h allows: what is added may be normalised and
 * scaled, out may be hidden as it is, or FP32.  A row comes from the L1 cache when it is
 * read again. */
TR_DEVICE void
norm_row_post(const tr_cuda_norm_t *a, tr_dtype_t type, tr_dtype_t out,
              bool wide, block_t b, uint64_t *meet, uint32_t r)
{
    size_t row = a->gather == NULL ? r : a->gather[r];
    bool enters = a->gather == NULL && a->delta != NULL;
    uint32_t step = b.lanes * 8;
    float by = a->delta == NULL ? 0 : post_scale(a, type, wide, b, meet, row);
    float sum = 0, scale;

    for (uint32_t i = b.lane * 8; i < a->n; i += step) {
        uint32_t n = eight_count(a->n, i);
        eight_t h = post_sum(a, type, wide, row, i, n, by);

        if (enters) {
            eight_store(a->hidden, row * a->ldh + i, n, TR_F32, wide, &h);
        }
        for (uint32_t j = 0; j < 8; j++) {
            sum += h.x[j] * h.x[j];
        }
        if (a->weight == NULL) {
            eight_store(a->out, r * a->ldo + i, n, out, wide, &h);
        }
    }
    if (a->weight == NULL) {
        return;
    }
    sum = block_sum(b, sum, meet);
    scale = 1.0f / sqrtf(sum / (float) a->n + a->eps);
    for (uint32_t i = b.lane * 8; i < a->n; i += step) {
        uint32_t n = eight_count(a->n, i);
        eight_t w = eight_load(a->weight, i, n, TR_F32, wide);
        /* a lane reads what it has written itself */
        eight_t h = enters ? eight_load(a->hidden, row * a->ldh + i, n, TR_F32,
                                        wide)
                           : post_sum(a, type, wide, row, i, n, by);

        norm_store(a, out, wide, r, i, n, &w, scale, &h);
    }
}

/* ---- pooling: reads 4 bytes an element ------------------------------------ */

/* Number i of an item. */
TR_DEVICE void
pool_one(const tr_cuda_pool_t *a, uint32_t item, uint32_t i)
{
    uint32_t begin = a->first[item], end = a->first[item + 1];
    uint32_t from = begin < a->at ? a->at : begin;
    uint32_t to = end > a->at + a->rows ? a->at + a->rows : end;
    float *out = a->out + item * a->ldo + i;
    float sum = 0;

    if (i >= a->n || from >= to) {
        return;
    }
    sum = from == begin ? 0 : *out;
    for (uint32_t r = from; r < to; r++) {
        sum += a->x[(r - a->at) * a->ldx + i];
    }
    *out = sum;
}

/* ---- queries, keys, values: reads and writes 2 bytes an element ---------- */

TR_HD bool
qkv_wide(const tr_cuda_qkv_t *a)
{
    return is_wide(a->qkv) && is_wide(a->ld, 2) && is_wide(a->bias)
           && is_wide(a->q_norm) && is_wide(a->k_norm) && is_wide(a->angles)
           && is_wide(a->key_angles) && is_wide(a->key_shift);
}

/* Heads that change: values only by a bias, keys by that or a norm. */
TR_HD uint32_t
qkv_heads(const tr_cuda_qkv_t *a)
{
    bool keys = a->k_norm != NULL || a->key_angles != NULL;

    return a->bias != NULL ? a->heads + 2 * a->kv_heads
           : keys          ? a->heads + a->kv_heads
                           : a->heads;
}

/* Lanes of a head, each with eight pairs; a power of two. */
TR_HD uint32_t
qkv_lanes(uint32_t head_dim)
{
    uint32_t n = 1;

    while (n * 16 < head_dim) {
        n *= 2;
    }
    return n;
}

TR_DEVICE void
qkv_weigh(const float *weight, uint32_t at, bool wide, float scale, eight_t *x)
{
    eight_t w = eight_load(weight, at, 8, TR_F32, wide);

    for (uint32_t j = 0; j < 8; j++) {
        x->x[j] = x->x[j] * scale * w.x[j];
    }
}

TR_DEVICE void
qkv_rotate(const eight_t *c, const eight_t *s, eight_t *lo, eight_t *hi)
{
    for (uint32_t j = 0; j < 8; j++) {
        float u = lo->x[j], v = hi->x[j];

        lo->x[j] = add_rn(mul_rn(u, c->x[j]), -mul_rn(v, s->x[j]));
        hi->x[j] = add_rn(mul_rn(v, c->x[j]), mul_rn(u, s->x[j]));
    }
}

/* R of a head, of which each lane of a group has eight pairs.  All lanes of the
 * warp come. */
TR_DEVICE void
qkv_hadamard(warp_t w, uint32_t group, uint32_t pair, uint32_t half,
             eight_t *lo, eight_t *hi)
{
    lane_signs<8>(lo->x, pair, 2 * half);
    lane_signs<8>(hi->x, half + pair, 2 * half);
    lane_butterflies<8>(lo->x);
    lane_butterflies<8>(hi->x);
    for (uint32_t d = 1; d < group; d *= 2) {
        lanes_butterfly<8>(w, d, lo->x);
        lanes_butterfly<8>(w, d, hi->x);
    }
    for (uint32_t j = 0; j < 8; j++) {
        float u = lo->x[j], v = hi->x[j];

        lo->x[j] = u + v;
        hi->x[j] = u - v;
    }
}

TR_DEVICE void
eight_add(eight_t *to, const eight_t *x)
{
    for (uint32_t j = 0; j < 8; j++) {
        to->x[j] += x->x[j];
    }
}

/* A lane's eight pairs of a head. */
typedef struct {
    uint32_t r, h, pair; /* row, head, first pair */
    bool there;
    eight_t bias_lo, bias_hi;
} qkv_item_t;

/* Of heads [first, ..) of the flat (row, head) numbers, as many as the warp has
 * groups of lanes; `end` of them there are.  The bias is a weight, which nobody
 * writes. */
TR_DEVICE void
qkv_open(const tr_cuda_qkv_t *a, bool wide, warp_t w, uint32_t first,
         uint32_t end, qkv_item_t *q)
{
    uint32_t heads = qkv_heads(a), half = a->head_dim / 2;
    uint32_t group = qkv_lanes(a->head_dim), item = first + w.lane / group;
    uint32_t bias;

    q->pair = w.lane % group * 8;
    q->there = item < end && q->pair < half;
    q->r = q->there ? item / heads : 0;
    q->h = q->there ? item - q->r * heads : 0;
    if (q->there && a->bias != NULL) {
        bias = q->h * a->head_dim + q->pair;
        q->bias_lo = eight_load(a->bias, bias, 8, TR_F32, wide);
        q->bias_hi = eight_load(a->bias, bias + half, 8, TR_F32, wide);
    }
}

/* What keys are given behind RoPE. */
TR_DEVICE void
qkv_shift(const tr_cuda_qkv_t *a, bool wide, const qkv_item_t *q, eight_t *lo,
          eight_t *hi)
{
    uint32_t at = (q->h - a->heads) * a->head_dim + q->pair;
    eight_t u = eight_load(a->key_shift, at, 8, TR_F32, wide);
    eight_t v = eight_load(a->key_shift, at + a->head_dim / 2, 8, TR_F32, wide);

    eight_add(lo, &u);
    eight_add(hi, &v);
}

/* All lanes of the warp come. */
TR_DEVICE void
qkv_item(const tr_cuda_qkv_t *a, tr_dtype_t type, bool wide, warp_t w,
         const qkv_item_t *q)
{
    uint32_t half = a->head_dim / 2, group = qkv_lanes(a->head_dim);
    const float *weight = q->h < a->heads                 ? a->q_norm
                          : q->h < a->heads + a->kv_heads ? a->k_norm
                                                          : NULL;
    size_t at = q->r * a->ld + (size_t) q->h * a->head_dim + q->pair;
    bool key = q->h >= a->heads && q->h < a->heads + a->kv_heads;
    const float *angles = (key ? a->key_angles : a->angles)
                          + (size_t) q->r * a->head_dim + q->pair;
    bool turns = q->there
                 && (q->h < a->heads || (key && a->key_angles != NULL));
    eight_t lo = {}, hi = {}, c = {}, s = {};
    float sum = 0;

    if (q->there) {
        lo = eight_load(a->qkv, at, 8, type, wide);
        hi = eight_load(a->qkv, at + half, 8, type, wide);
    }
    if (turns) { /* asked for before the others are looked at */
        c = eight_load(angles, 0, 8, TR_F32, wide);
        s = eight_load(angles, half, 8, TR_F32, wide);
    }
    if (q->there && a->bias != NULL) {
        eight_add(&lo, &q->bias_lo);
        eight_add(&hi, &q->bias_hi);
    }
    if (a->q_norm != NULL) { /* all lanes come */
        for (uint32_t j = 0; j < 8; j++) {
            sum += lo.x[j] * lo.x[j] + hi.x[j] * hi.x[j];
        }
        for (uint32_t d = 1; d < group; d *= 2) {
            sum += tr_float_from_bits(lanes_xor(w, tr_float_bits(sum), d));
        }
    }
    if (q->there && weight != NULL) {
        float scale = 1.0f / sqrtf(sum / (float) a->head_dim + a->eps);

        qkv_weigh(weight, q->pair, wide, scale, &lo);
        qkv_weigh(weight, q->pair + half, wide, scale, &hi);
    }
    if (turns) {
        qkv_rotate(&c, &s, &lo, &hi);
    }
    if (turns && key && a->key_shift != NULL) {
        qkv_shift(a, wide, q, &lo, &hi);
    }
    if (a->hadamard) { /* all lanes come */
        eight_t u = lo, v = hi;

        qkv_hadamard(w, group, q->pair, half, &u, &v);
        lo = turns ? u : lo;
        hi = turns ? v : hi;
    }
    if (!q->there) {
        return;
    }
    eight_store(a->qkv, at, 8, type, wide, &lo);
    eight_store(a->qkv, at + half, 8, type, wide, &hi);
}

/* ---- all heads of a row: reads 4 and writes 2 bytes an element ----------- */

TR_HD bool
row_norm_wide(const tr_cuda_qkv_t *a)
{
    return is_wide(a->qkv) && is_wide(a->ld, 2) && is_wide(a->bias)
           && is_wide(a->q_norm) && is_wide(a->k_norm);
}

/* Elements that a row has of queries, keys or values (`side`), and where they
 * begin. */
TR_DEVICE uint32_t
side_of(const tr_cuda_qkv_t *a, uint32_t side, uint32_t *first)
{
    uint32_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;

    *first = side == 0 ? 0 : q + (side - 1) * kv;
    return side == 0 ? q : kv;
}

/* Eight of a side with their bias. */
TR_DEVICE eight_t
side_load(const tr_cuda_qkv_t *a, tr_dtype_t type, bool wide, size_t row,
          uint32_t at)
{
    eight_t x = eight_load(a->qkv, row * a->ld + at, 8, type, wide);

    if (a->bias != NULL) {
        eight_t bias = eight_load(a->bias, at, 8, TR_F32, wide);

        eight_add(&x, &bias);
    }
    return x;
}

/* One side of a row, by a block; values only get their bias. */
TR_DEVICE void
row_norm_side(const tr_cuda_qkv_t *a, tr_dtype_t type, bool wide, block_t b,
              uint64_t *meet, uint32_t r, uint32_t side)
{
    const float *weight = side == 0 ? a->q_norm : side == 1 ? a->k_norm : NULL;
    uint32_t first, n = side_of(a, side, &first);
    float sum = 0, scale;

    for (uint32_t i = b.lane * 8; weight != NULL && i < n; i += b.lanes * 8) {
        eight_t x = side_load(a, type, wide, r, first + i);

        for (uint32_t j = 0; j < 8; j++) {
            sum += x.x[j] * x.x[j];
        }
    }
    sum = block_sum(b, sum, meet);
    scale = 1.0f / sqrtf(sum / (float) n + a->eps);
    for (uint32_t i = b.lane * 8; i < n; i += b.lanes * 8) {
        eight_t x = side_load(a, type, wide, r, first + i);

        if (weight != NULL) {
            qkv_weigh(weight, i, wide, scale, &x);
        }
        eight_store(a->qkv, r * a->ld + first + i, 8, type, wide, &x);
    }
}

/* ---- the MLP's gate: reads 4 bytes and writes 2 an element --------------- */

typedef struct {
    const void *x;
    void *out;
    size_t ldx, ldo;
    uint32_t n;
} act_args_t;

TR_HD bool
act_wide(const act_args_t *a)
{
    return is_wide(a->x) && is_wide(a->ldx, 2) && is_wide(a->out)
           && is_wide(a->ldo, 2) && is_wide(a->n, 2);
}

template <tr_act_t ACT>
TR_DEVICE void
act_eight(const act_args_t *a, tr_dtype_t type, bool wide, uint32_t r,
          uint32_t i)
{
    uint32_t n = eight_count(a->n, 8 * i);
    eight_t gate, up;

    if (n == 0) {
        return;
    }
    gate = eight_load(a->x, r * a->ldx + 8 * i, n, type, wide);
    up = eight_load(a->x, r * a->ldx + a->n + 8 * i, n, type, wide);
    for (uint32_t j = 0; j < 8; j++) {
        gate.x[j] = act_of<ACT>(gate.x[j], up.x[j]);
    }
    eight_store(a->out, r * a->ldo + 8 * i, n, type, wide, &gate);
}

/* ---- logits: reads and writes 4 bytes an element ------------------------- */

TR_DEVICE float
scale_capped(float x, float scale, float cap)
{
    x *= scale;
    return cap == 0 ? x : cap * tanhf(x / cap);
}

/* ---- weights: writes what they have ------------------------------------- */

/* As engine/model/cpu/model_weights.c: the same numbers on every machine. */
TR_DEVICE uint64_t
random_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

TR_DEVICE float
random_weight(uint64_t number, float sd)
{
    float u = (float) (random_mix(number) >> 40) * 0x1p-24f;

    return mul_rn(mul_rn(2 * u - 1, sd), 1.7320508f);
}

/* Elements 8 i .. of [n]. */
TR_DEVICE uint32_t
eight_count_long(size_t n, size_t i)
{
    size_t at = 8 * i;

    return at >= n ? 0 : n - at < 8 ? (uint32_t) (n - at) : 8;
}

TR_DEVICE void
random_eight(void *x, size_t n, tr_dtype_t type, uint64_t seed, uint64_t first,
             float sd, bool wide, size_t i)
{
    uint32_t count = eight_count_long(n, i);
    eight_t e;

    for (uint32_t j = 0; j < 8; j++) {
        e.x[j] = random_weight(seed + first + 8 * i + j, sd);
    }
    eight_store(x, 8 * i, count, type, wide, &e);
}

TR_DEVICE void
convert_eight(const void *from, tr_dtype_t from_type, void *to,
              tr_dtype_t to_type, size_t n, bool wide, size_t i)
{
    uint32_t count = eight_count_long(n, i);
    eight_t e = eight_load(from, 8 * i, count, from_type, wide);

    eight_store(to, 8 * i, count, to_type, wide, &e);
}

#endif
