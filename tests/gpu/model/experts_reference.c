/*
 * Layers with experts as plain C: what the device's kernels are compared with, and
 * what the software device (tests/soft) runs in their place.
 *
 * The router is the CPU backend's own: both backends must choose the same experts.
 * tests/unit/kernels/test_kernels.c holds it against its definition.  The rest has
 * no counterpart there, which orders rows in the engine and computes in FP32, and
 * is written out here as loops.
 */
#include "experts_reference.h"

#include "model_reference.h"

#include <stdlib.h>

#include "kernels/cpu/cpu.h"

int
tr_ref_route(const tr_cuda_route_t *a)
{
    const tr_stream_t alone = { .threads = 1 };
    const tr_route_t *t = &a->route;
    float logits[TR_EXPERTS_MAX];

    if (!tr_cuda_route_allowed(t) || a->ld < t->experts) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        size_t at = (size_t) r * t->top_k;
        int rc;

        for (uint32_t e = 0; e < t->experts; e++) { /* what the CPU gets */
            logits[e] = a->logits[r * a->ld + e]
                        + (a->logit_bias == NULL ? 0 : a->logit_bias[e]);
        }
        rc = tr_cpu_route(&alone, t, logits, t->experts, 1, a->choice_bias,
                          a->expert + at, a->weight + at);
        if (rc != TR_KERNEL_OK) {
            return rc;
        }
    }
    return TR_KERNEL_OK;
}

int
tr_ref_order(const tr_cuda_order_t *a)
{
    uint32_t n = a->rows * a->top_k, at = 0;

    if (a->experts == 0 || a->experts > TR_EXPERTS_MAX || a->top_k == 0) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t e = 0; e < a->experts && n != 0; e++) {
        a->first[e] = at;
        for (uint32_t i = 0; i < n; i++) {
            if (a->expert[i] == e) {
                a->row[at] = i / a->top_k;
                a->place[i] = at++;
            }
        }
        a->first[e + 1] = at;
    }
    return TR_KERNEL_OK;
}

int
tr_ref_choose(const tr_cuda_choose_t *a)
{
    const tr_cuda_norm_t *n = &a->norm;
    tr_cuda_route_t route = a->route;
    int rc = tr_cuda_choose_fits(n->rows, n->n) ? tr_ref_norm(n)
                                                : TR_KERNEL_BADARG;

    for (uint32_t r = 0; r < n->rows && rc == TR_KERNEL_OK; r++) {
        for (uint32_t e = 0; e < a->route.route.experts; e++) {
            float sum = 0;

            for (uint32_t i = 0; i < n->n; i++) {
                sum += tr_float_load(n->out, r * n->ldo + i, n->type)
                       * tr_float_load(a->w, (size_t) e * n->n + i, n->type);
            }
            a->logits[r * a->route.ld + e] = sum;
        }
    }
    route.logits = a->logits;
    rc = rc == TR_KERNEL_OK ? tr_ref_route(&route) : rc;
    return rc == TR_KERNEL_OK ? tr_ref_order(&a->order) : rc;
}

/* Row i of an expert's weights; of packed ones as they are in 16 bits. */
static void
load_weights(const tr_cuda_experts_t *a, uint32_t expert, uint32_t i, float *to)
{
    uint32_t row = expert * a->n + i, rows = a->experts * a->n;

    for (uint32_t j = 0; j < a->k; j++) {
        if (a->form.format == TR_WEIGHT_16) {
            to[j] = tr_float_load(a->w, (size_t) row * a->k + j, a->type);
        } else {
            uint16_t rounded;

            tr_float_store(&rounded, 0, TR_BF16,
                           tr_weight_load(a->form, a->w, rows, a->k, row, j));
            to[j] = tr_float_load(&rounded, 0, TR_BF16);
        }
    }
}

/* A place by row i of its expert. */
static float
expert_sum(const tr_cuda_experts_t *a, uint32_t e, uint32_t i, uint32_t p,
           const float *w)
{
    size_t row = (a->row == NULL ? p : a->row[p]) * a->ldx;
    float sum = 0;

    for (uint32_t j = 0; j < a->k; j++) {
        sum += tr_float_load(a->x, row + j, a->type) * w[j];
    }
    return sum + (a->bias == NULL ? 0 : a->bias[(size_t) e * a->n + i]);
}

int
tr_ref_experts(const tr_cuda_experts_t *a)
{
    uint32_t n = a->gated ? a->n / 2 : a->n;
    float *w;

    if (!tr_cuda_experts_shape(a)) {
        return TR_KERNEL_BADARG;
    }
    w = malloc(2ul * a->k * sizeof(*w));
    if (w == NULL) {
        return TR_CUDA_FAILED;
    }
    for (uint32_t e = 0; e < a->experts && a->places != 0; e++) {
        for (uint32_t i = 0; i < n && a->first[e] < a->first[e + 1]; i++) {
            load_weights(a, e, i, w);
            if (a->gated) {
                load_weights(a, e, n + i, w + a->k);
            }
            for (uint32_t p = a->first[e]; p < a->first[e + 1]; p++) {
                float sum = expert_sum(a, e, i, p, w);

                if (a->gated) {
                    sum = tr_ref_act(a->act, sum,
                                     expert_sum(a, e, n + i, p, w + a->k));
                }
                tr_float_store(a->y, p * a->ldy + i, a->type, sum);
            }
        }
    }
    free(w);
    return TR_KERNEL_OK;
}

int
tr_ref_sum_experts(const tr_cuda_sum_experts_t *a)
{
    if (a->n == 0 || a->top_k == 0 || a->ldx < a->n || a->ldo < a->n
        || !tr_dtype_is_short(a->type)
        || (a->shared != NULL && a->lds < a->n)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        for (uint32_t i = 0; i < a->n; i++) {
            float sum = 0;

            for (uint32_t k = 0; k < a->top_k; k++) {
                size_t at = (size_t) r * a->top_k + k;

                sum += a->weight[at]
                       * tr_float_load(a->x, a->place[at] * a->ldx + i,
                                       a->type);
            }
            if (a->shared != NULL) {
                sum += tr_float_load(a->shared, r * a->lds + i, a->type);
            }
            tr_float_store(a->out, r * a->ldo + i, a->type, sum);
        }
    }
    return TR_KERNEL_OK;
}
