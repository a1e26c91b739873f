/*
 * append_heads.cuh: stores a step straight from the output of the QKV product:
 * biases are added on the way, and warps of their own rotate the queries in
 * place.
 *
 * One launch does what tr_cuda_qkv and an append would do, bit for bit: both
 * are short, and the second would wait for the first.
 */
#ifndef TR_CUDA_APPEND_HEADS_CUH
#define TR_CUDA_APPEND_HEADS_CUH

#include "append_check.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/lanes_hadamard.cuh"
#include "token_fast.cuh"

#define HEADS_AT_ONCE 4u /* queries of a row that a warp rotates */

/* x as 16 bits have it, which is what tr_cuda_qkv leaves. */
TR_DEVICE float
rounded(float x, tr_dtype_t type)
{
    return pair_open(pair_close(x, 0, type), type).x;
}

/* Four neighbours of 16 bits. */
TR_DEVICE void
four_open(uint2 u, tr_dtype_t type, float *x)
{
    float2 a = pair_open(u.x, type), b = pair_open(u.y, type);

    x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y;
}

TR_DEVICE void
four_add(float *x, const float *bias)
{
    float4 b = *(const float4 *) bias;

    x[0] += b.x, x[1] += b.y, x[2] += b.z, x[3] += b.w;
}

/* Where queries and biases of a product's rows are. */
TR_HD append_heads_t
heads_of(const tr_cuda_qkv_t *h)
{
    const float *bias = h->bias;
    size_t q = (size_t) h->heads * h->head_dim;
    size_t kv = (size_t) h->kv_heads * h->head_dim;
    append_heads_t out = {};

    out.q = h->qkv;
    out.angles = h->angles;
    out.k_shift = h->key_shift;
    out.n = h->heads;
    out.keys = h->key_angles != NULL;
    out.hadamard = h->hadamard;
    if (bias != NULL) {
        out.q_bias = bias;
        out.k_bias = bias + q;
        out.v_bias = bias + q + kv;
    }
    return out;
}

/* A lane's four neighbours of a head become those of R times it.  All lanes
 * of the warp come. */
TR_DEVICE void
four_hadamard(warp_t w, float *x)
{
    lane_signs<4>(x, w.lane * 4, FAST_DIM);
    lane_butterflies<4>(x);
#pragma unroll
    for (uint32_t d = 1; d < FAST_DIM / 4; d *= 2) {
        lanes_butterfly<4>(w, d, x);
    }
}

/* What RoPE makes of four neighbours, whose partners lane ^ 16 has. */
TR_DEVICE void
four_rotate(warp_t w, const float *cosine, const float *sine, float *x)
{
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        float y = tr_float_from_bits(lanes_xor(w, tr_float_bits(x[e]), 16));
        float v = mul_rn(y, sine[e]);

        x[e] = add_rn(mul_rn(x[e], cosine[e]), w.lane < 16 ? -v : v);
    }
}

/* Four neighbours of the row's key as tr_cuda_qkv leaves them with
 * key_angles. */
TR_DEVICE void
heads_key(const append_t *t, float *x)
{
    const tr_cuda_keys_t *in = &t->a->in;
    const append_heads_t *h = &t->a->heads;
    uint32_t first = t->kv_head * FAST_DIM + t->w.lane * 4;
    size_t at = t->row * in->ld + first;
    const float *angles = h->angles + (size_t) t->row * FAST_DIM
                          + t->w.lane * 4 % (FAST_DIM / 2);
    float4 c = *(const float4 *) angles;
    float4 s = *(const float4 *) (angles + FAST_DIM / 2);
    float cosine[4] = { c.x, c.y, c.z, c.w }, sine[4] = { s.x, s.y, s.z, s.w };

    four_open(*(const uint2 *) ((const uint16_t *) in->k + at), in->type, x);
    if (h->k_bias != NULL) {
        four_add(x, h->k_bias + first);
    }
    four_rotate(t->w, cosine, sine, x);
    if (h->k_shift != NULL) {
        four_add(x, h->k_shift + first);
    }
    if (h->hadamard) {
        four_hadamard(t->w, x);
    }
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        x[e] = rounded(x[e], in->type);
    }
}

/* Query heads first .. of a row, a lane four neighbours of each. */
TR_DEVICE void
heads_rotate(const append_args_t *a, warp_t w, uint32_t row, uint32_t first)
{
    const append_heads_t *h = &a->heads;
    uint32_t pair = w.lane * 4 % (FAST_DIM / 2);
    const float *angles = h->angles + (size_t) row * FAST_DIM + pair;
    uint2 *at = (uint2 *) ((uint16_t *) h->q + row * a->in.ld) + w.lane
                + (size_t) first * (FAST_DIM / 4);
    uint32_t n = h->n - first < HEADS_AT_ONCE ? h->n - first : HEADS_AT_ONCE;
    float4 c = *(const float4 *) angles;
    float4 s = *(const float4 *) (angles + FAST_DIM / 2);
    float cosine[4] = { c.x, c.y, c.z, c.w }, sine[4] = { s.x, s.y, s.z, s.w };
    uint2 u[HEADS_AT_ONCE];

#pragma unroll
    for (uint32_t i = 0; i < HEADS_AT_ONCE; i++) {
        u[i] = i < n ? at[i * (FAST_DIM / 4)] : make_uint2(0, 0);
    }
#pragma unroll
    for (uint32_t i = 0; i < HEADS_AT_ONCE; i++) {
        float x[4];

        four_open(u[i], a->in.type, x);
        if (h->q_bias != NULL && i < n) {
            four_add(x, h->q_bias + (first + i) * FAST_DIM + w.lane * 4);
        }
        four_rotate(w, cosine, sine, x);
        if (h->hadamard) {
            four_hadamard(w, x);
        }
        if (i < n) {
            at[i * (FAST_DIM / 4)] = make_uint2(pair_close(x[0], x[1],
                                                           a->in.type),
                                                pair_close(x[2], x[3],
                                                           a->in.type));
        }
    }
}

#endif
