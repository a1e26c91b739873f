/*
 * Layers with experts: which of them a row goes to (kernels/route.h), and the
 * weighted sum of what they made of it.  A row's bits are its own: the sum runs in
 * the order of its choice.  Reference: test_kernels.c.
 */
#include "kernels/cpu/cpu.h"

#include <string.h>

typedef struct {
    const tr_route_t *route;
    const float *logits, *bias;
    size_t ld;
    uint32_t *expert;
    float *weight;
} route_args_t;

/* Scores of a row, by which weights are formed. */
static void
score_row(const tr_route_t *t, const float *logits, float *score)
{
    float max = -INFINITY, sum = 0;

    if (t->score == TR_ROUTE_TOP_SOFTMAX) {
        memcpy(score, logits, t->experts * sizeof(float));
        return;
    }
    for (uint32_t e = 0; e < t->experts; e++) {
        max = fmaxf(max, logits[e]);
    }
    for (uint32_t e = 0; e < t->experts; e++) {
        score[e] = t->score == TR_ROUTE_SIGMOID ? 1 / (1 + expf(-logits[e]))
                                                : expf(logits[e] - max);
        sum += score[e];
    }
    for (uint32_t e = 0; t->score == TR_ROUTE_SOFTMAX && e < t->experts; e++) {
        score[e] /= sum;
    }
}

/* The largest of x[n] that is not `taken`; a NaN counts as the smallest. */
static uint32_t
best_of(const float *x, uint32_t n, const bool *taken)
{
    uint32_t best = n;

    for (uint32_t i = 0; i < n; i++) {
        if (!taken[i] && (best == n || x[i] > x[best])) {
            best = i;
        }
    }
    return best;
}

/* Marks as taken what is in none of the best groups. */
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
weigh_row(const tr_route_t *t, float *weight)
{
    float sum = 0, max = weight[0];

    if (t->score == TR_ROUTE_TOP_SOFTMAX) { /* the first is the largest */
        for (uint32_t k = 0; k < t->top_k; k++) {
            weight[k] = expf(weight[k] - max);
        }
    }
    for (uint32_t k = 0; k < t->top_k; k++) {
        sum += weight[k];
    }
    for (uint32_t k = 0; k < t->top_k; k++) {
        weight[k] = t->renorm || t->score == TR_ROUTE_TOP_SOFTMAX
                        ? weight[k] / sum * t->scale
                        : weight[k] * t->scale;
    }
}

static void
route_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const route_args_t *a = arg;
    const tr_route_t *t = a->route;
    float score[TR_EXPERTS_MAX], choice[TR_EXPERTS_MAX];

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        uint32_t *expert = a->expert + (size_t) r * t->top_k;
        float *weight = a->weight + (size_t) r * t->top_k;
        bool taken[TR_EXPERTS_MAX] = { false };

        score_row(t, a->logits + r * a->ld, score);
        for (uint32_t e = 0; e < t->experts; e++) {
            choice[e] = score[e] + (a->bias ? a->bias[e] : 0);
        }
        if (t->groups > 1) {
            drop_groups(t, choice, taken);
        }
        for (uint32_t k = 0; k < t->top_k; k++) {
            expert[k] = best_of(choice, t->experts, taken);
            taken[expert[k]] = true;
            weight[k] = score[expert[k]];
        }
        weigh_row(t, weight);
    }
}

int
tr_cpu_route(const tr_stream_t *s, const tr_route_t *route, const float *logits,
             size_t ld, uint32_t rows, const float *bias, uint32_t *expert,
             float *weight)
{
    route_args_t a = { route, logits, bias, ld, expert, weight };

    if (route->experts > TR_EXPERTS_MAX || route->top_k > TR_TOP_K_MAX
        || route->top_k == 0 || route->groups == 0
        || route->experts % route->groups || route->top_groups == 0
        || route->top_groups > route->groups
        || route->top_k > route->experts / route->groups * route->top_groups
        || ld < route->experts) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows, (size_t) route->experts * (route->top_k + 8),
                route_rows, &a);
    return TR_KERNEL_OK;
}

typedef struct {
    const float *x, *weight;
    const uint32_t *place;
    float *y;
    size_t ldx, ldy;
    uint32_t top_k, n;
} sum_t;

static void
sum_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const sum_t *a = arg;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        float *y = a->y + r * a->ldy;

        memset(y, 0, a->n * sizeof(float));
        for (uint32_t k = 0; k < a->top_k; k++) {
            size_t at = (size_t) r * a->top_k + k;
            const float *x = a->x + a->place[at] * a->ldx;

            for (uint32_t i = 0; i < a->n; i++) {
                y[i] += a->weight[at] * x[i];
            }
        }
    }
}

int
tr_cpu_sum_experts(const tr_stream_t *s, const float *x, size_t ldx,
                   uint32_t rows, uint32_t top_k, uint32_t n,
                   const uint32_t *place, const float *weight, float *y,
                   size_t ldy)
{
    sum_t a = { x, weight, place, y, ldx, ldy, top_k, n };

    if (ldx < n || ldy < n) {
        return TR_KERNEL_BADARG;
    }
    tr_rows_run(s, rows, (size_t) n * top_k, sum_rows, &a);
    return TR_KERNEL_OK;
}
