/*
 * What the device's kernels for layers with experts compute, as plain loops.
 */
#include "experts_reference.h"

#include <math.h>

/* ---- the router ---------------------------------------------------------- */

/* Of two numbers, a NaN counting as the smallest. */
static bool
larger(float x, float y)
{
    return x > y || (y != y && x == x);
}

static uint32_t
best_of(const float *x, uint32_t n, const bool *taken)
{
    uint32_t best = n;

    for (uint32_t i = 0; i < n; i++) {
        if (!taken[i] && (best == n || larger(x[i], x[best]))) {
            best = i;
        }
    }
    return best;
}

static void
score_row(const tr_cuda_route_t *a, uint32_t row, float *score)
{
    const tr_route_t *t = &a->route;
    float max = -INFINITY, sum = 0;

    for (uint32_t e = 0; e < t->experts; e++) {
        score[e] = a->logits[row * a->ld + e]
                   + (a->logit_bias == NULL ? 0 : a->logit_bias[e]);
        max = fmaxf(max, score[e]);
    }
    for (uint32_t e = 0; e < t->experts; e++) {
        score[e] = t->score == TR_ROUTE_TOP_SOFTMAX ? score[e]
                   : t->score == TR_ROUTE_SIGMOID   ? 1 / (1 + expf(-score[e]))
                                                    : expf(score[e] - max);
        sum += score[e];
    }
    for (uint32_t e = 0; t->score == TR_ROUTE_SOFTMAX && e < t->experts; e++) {
        score[e] /= sum;
    }
}

/* Experts that are in none of the best groups are taken. */
static void
drop_groups(const tr_route_t *t, const float *choice, bool *taken)
{
    uint32_t size = t->experts / t->groups;
    float score[TR_EXPERTS_MAX];
    bool kept[TR_EXPERTS_MAX] = { false };

    for (uint32_t g = 0; g < t->groups; g++) {
        const float *x = choice + g * size;
        bool seen[TR_EXPERTS_MAX] = { false };
        uint32_t first = best_of(x, size, seen);

        seen[first] = true;
        score[g] = x[first] + (size > 1 ? x[best_of(x, size, seen)] : 0);
    }
    for (uint32_t i = 0; i < t->top_groups; i++) {
        kept[best_of(score, t->groups, kept)] = true;
    }
    for (uint32_t e = 0; e < t->experts; e++) {
        taken[e] = !kept[e / size];
    }
}

static void
weigh(const tr_route_t *t, float *weight)
{
    float sum = 0, max = weight[0];

    for (uint32_t k = 0; k < t->top_k; k++) {
        weight[k] = t->score == TR_ROUTE_TOP_SOFTMAX ? expf(weight[k] - max)
                                                     : weight[k];
        sum += weight[k];
    }
    for (uint32_t k = 0; k < t->top_k; k++) {
        weight[k] = t->renorm || t->score == TR_ROUTE_TOP_SOFTMAX
                        ? weight[k] / sum * t->scale
                        : weight[k] * t->scale;
    }
}

int
tr_ref_route(const tr_cuda_route_t *a)
{
    const tr_route_t *t = &a->route;
    float score[TR_EXPERTS_MAX], choice[TR_EXPERTS_MAX];

    if (!tr_cuda_route_allowed(t) || a->ld < t->experts) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        uint32_t *expert = a->expert + (size_t) r * t->top_k;
        float *weight = a->weight + (size_t) r * t->top_k;
        bool taken[TR_EXPERTS_MAX] = { false };

        score_row(a, r, score);
        for (uint32_t e = 0; e < t->experts; e++) {
            choice[e] = score[e]
                        + (a->choice_bias == NULL ? 0 : a->choice_bias[e]);
        }
        if (t->groups > 1) {
            drop_groups(t, choice, taken);
        }
        for (uint32_t k = 0; k < t->top_k; k++) {
            expert[k] = best_of(choice, t->experts, taken);
            taken[expert[k]] = true;
            weight[k] = score[expert[k]];
        }
        weigh(t, weight);
    }
    return TR_KERNEL_OK;
}

/* ---- order, products, sum ------------------------------------------------ */

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
tr_ref_experts(const tr_cuda_experts_t *a)
{
    const uint16_t *w = a->w;

    if (a->experts == 0 || a->experts > TR_EXPERTS_MAX || a->k == 0
        || a->k % 8 != 0 || a->n == 0 || a->ldx < a->k || a->ldx % 8 != 0
        || a->ldy < a->n || !tr_dtype_is_short(a->type)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t e = 0; e < a->experts && a->places != 0; e++) {
        for (uint32_t p = a->first[e]; p < a->first[e + 1]; p++) {
            size_t row = (a->row == NULL ? p : a->row[p]) * a->ldx;

            for (uint32_t i = 0; i < a->n; i++) {
                size_t at = ((size_t) e * a->n + i) * a->k;
                float sum = 0;

                for (uint32_t j = 0; j < a->k; j++) {
                    sum += tr_float_load(a->x, row + j, a->type)
                           * tr_float_load(w, at + j, a->type);
                }
                sum += a->bias == NULL ? 0 : a->bias[(size_t) e * a->n + i];
                tr_float_store(a->y, p * a->ldy + i, a->type, sum);
            }
        }
    }
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
