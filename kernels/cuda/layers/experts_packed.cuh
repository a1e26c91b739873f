/*
 * experts_packed.cuh: products of experts whose weights are packed
 * (kernels/weight_form.h), as functions of a warp.
 *
 * As in experts.cuh, 16 outputs by 8 rows by 16 inputs a time; but a lane reads
 * codes, 16 or 32 bytes of a block of 16 outputs x 64 inputs, and their scales, and
 * makes BF16 of them in registers, just before the tensor cores take them.  The
 * order of sums is that of weights in 16 bits, and what is multiplied is what
 * those would be: so are the results.
 */
#ifndef TR_CUDA_EXPERTS_PACKED_CUH
#define TR_CUDA_EXPERTS_PACKED_CUH

#include "experts.cuh"
#include "kernels/cuda/packed.cuh"

/* Where a lane's codes and scales are, at the first inputs of a strip (16
 * outputs). */
typedef struct {
    const uint8_t *codes;
    const uint32_t *scales;
} strip_t;

/* What a lane has of a strip's 64 inputs. */
typedef struct {
    uint4 one, two;       /* codes; two: of FP8, inputs 32 and on */
    uint32_t scale[2][2]; /* of inputs 0 .. 31, and on; of rows g and g + 8.  Of
                           * MXFP4 [0][0] has all */
} strip_block_t;

template <tr_weight_format_t F>
TR_DEVICE strip_t
strip_of(const tr_cuda_experts_t *a, uint32_t strip, uint32_t lane)
{
    const uint8_t *w = (const uint8_t *) a->w;
    const uint32_t *scales = (const uint32_t *) (w
                                                 + tr_weight_code_bytes(
                                                     a->form, a->experts * a->n,
                                                     a->k));
    strip_t s = { w + (size_t) strip * tr_weight_block(F) + lane * 16,
                  scales + (F == TR_WEIGHT_MXFP4 ? strip * 8 : strip * 16)
                      + lane / 4 };

    return s;
}

/* Its inputs 64 chunk and on. */
template <tr_weight_format_t F>
TR_DEVICE void
strip_load(const tr_cuda_experts_t *a, const strip_t &s, uint32_t chunk,
           strip_block_t &b)
{
    const uint32_t rows = a->experts * a->n;
    const uint8_t *codes = s.codes
                           + (size_t) chunk * (rows / TR_WEIGHT_ROWS)
                                 * tr_weight_block(F);

    b.one = __ldg((const uint4 *) codes);
    if (F == TR_WEIGHT_FP8) {
        b.two = __ldg((const uint4 *) (codes + 512));
    }
    if (F == TR_WEIGHT_MXFP4) {
        b.scale[0][0] = __ldg(s.scales + (size_t) chunk * (rows / 2));
        return;
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        if (half == 0 || a->form.group == 32) {
            uint32_t group = a->form.group == 0
                                 ? 0
                                 : (chunk * 64 + half * 32) / a->form.group;
            const uint32_t *at = s.scales + (size_t) group * rows;

            b.scale[half][0] = __ldg(at);
            b.scale[half][1] = __ldg(at + 8);
        } else {
            b.scale[1][0] = b.scale[0][0];
            b.scale[1][1] = b.scale[0][1];
        }
    }
}

/* The weights of a step, 16 inputs, as operand a of mma_bf16. */
template <tr_weight_format_t F>
TR_DEVICE void
strip_step(const strip_block_t &b, int step, uint32_t (&w)[4])
{
    const uint4 &q = F == TR_WEIGHT_FP8 && step >= 2 ? b.two : b.one;
    const uint32_t word = step == 0   ? q.x
                          : step == 1 ? q.y
                          : step == 2 ? q.z
                                      : q.w;

    if (F == TR_WEIGHT_FP8) {
        packed_fp8_weights(w, step % 2 ? q.z : q.x, step % 2 ? q.w : q.y,
                           b.scale[step / 2]);
    } else if (F == TR_WEIGHT_INT4) {
        packed_int4_weights(w, word, b.scale[step / 2]);
    } else {
        const uint32_t scale[2] = { packed_mxfp4_scale(b.scale[0][0], step / 2),
                                    packed_mxfp4_scale(b.scale[0][0],
                                                       step / 2 + 2) };

        packed_mxfp4(w, word);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = bf16_mul(w[i], scale[i % 2]);
        }
    }
}

/* expert_tile of packed weights. */
template <tr_weight_format_t F, int A, int B>
TR_DEVICE void
expert_tile_packed(const tr_cuda_experts_t *a, uint32_t expert, uint32_t n,
                   uint32_t place, uint32_t end, uint32_t lane)
{
    const uint16_t *inputs[B];
    strip_t strips[A];
    float c[A][B][4] = {};

#pragma unroll
    for (int i = 0; i < A; i++) {
        uint32_t row = n + i * 16 < a->n ? n + i * 16 : n;

        strips[i] = strip_of<F>(a, (expert * a->n + row) / TR_WEIGHT_ROWS,
                                lane);
    }
    expert_inputs<B>(a, place, end, lane, inputs);
#pragma unroll(A == 1 ? 4 : 1)
    for (uint32_t chunk = 0; chunk < a->k / TR_WEIGHT_COLUMNS; chunk++) {
        strip_block_t b[A];

#pragma unroll
        for (int i = 0; i < A; i++) {
            strip_load<F>(a, strips[i], chunk, b[i]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 v[B];

#pragma unroll
            for (int j = 0; j < B; j++) {
                v[j] = *(const uint4 *) (inputs[j] + chunk * TR_WEIGHT_COLUMNS
                                         + half * 32 + lane % 4 * 8);
            }
#pragma unroll
            for (int i = 0; i < A; i++) {
                uint32_t one[4], two[4];

                strip_step<F>(b[i], 2 * half, one);
                strip_step<F>(b[i], 2 * half + 1, two);
#pragma unroll
                for (int j = 0; j < B; j++) {
                    mma_bf16(c[i][j], one, v[j].x, v[j].y);
                    mma_bf16(c[i][j], two, v[j].z, v[j].w);
                }
            }
        }
    }
    expert_store<A, B>(a, TR_BF16, expert, n, place, end, lane, c);
}

#endif
