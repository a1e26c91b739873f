/*
 * Layers with experts on the CPU: every row goes to the few that the router
 * chooses (kernels/route.h).
 *
 * Rows are put in the order of experts, so that each has one product of all its
 * rows: read once, its weights serve all of them.  What comes out is summed up row
 * by row in the order of the choice.  A product's bits are those of the row alone,
 * so a row's result does not depend on who goes to the same expert.
 */
#include "model.h"

#include <string.h>

/* Where every row stands in the order of experts: w->place, w->first. */
static void
order_rows(tr_experts_work_t *w, const tr_route_t *route, uint32_t n)
{
    uint32_t all = n * route->top_k;

    memset(w->first, 0, (route->experts + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < all; i++) {
        w->first[w->chosen[i] + 1]++;
    }
    for (uint32_t e = 0; e < route->experts; e++) {
        w->first[e + 1] += w->first[e];
    }
    for (uint32_t i = 0; i < all; i++) {
        w->place[i] = w->first[w->chosen[i]]++;
    }
    for (uint32_t e = route->experts; e > 0; e--) { /* back to the beginnings */
        w->first[e] = w->first[e - 1];
    }
    w->first[0] = 0;
}

/* out = act(x Wgate) * (x Wup) Wdown of rows side by side, with biases where the
 * pointers are not NULL. */
static int
mlp(tr_model_t *m, tr_act_t act, const tr_cpu_matrix_t *gate_up,
    const tr_cpu_matrix_t *down, const float *gate_up_bias,
    const float *down_bias, const float *x, uint32_t n, float *out)
{
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    int rc = k->matmul(s, gate_up, x, m->ld_hidden, n, m->gate_up,
                       m->ld_gate_up, 0);

    if (gate_up_bias != NULL) {
        rc |= k->add_bias(s, m->gate_up, m->ld_gate_up, n, gate_up_bias,
                          gate_up->n);
    }
    rc |= k->act_mul(s, act, m->gate_up, m->ld_gate_up, n, gate_up->n / 2,
                     m->mlp, m->ld_mlp);
    rc |= k->matmul(s, down, m->mlp, m->ld_mlp, n, out, m->ld_hidden, 0);
    if (down_bias != NULL) {
        rc |= k->add_bias(s, out, m->ld_hidden, n, down_bias, down->n);
    }
    return rc;
}

/* Expert e's rows.  What a product writes behind its rows belongs to those of the
 * next expert, whose turn is later. */
static int
one_expert(tr_model_t *m, tr_act_t act, const tr_weights_t *w, uint32_t e)
{
    const tr_experts_work_t *t = &m->experts;
    uint32_t first = t->first[e], n = t->first[e + 1] - first;
    tr_cpu_matrix_t gate_up = tr_model_expert(
        m->kernels, &w->matrix[TR_PART_EXPERT_GATE_UP], e);
    tr_cpu_matrix_t down = tr_model_expert(m->kernels,
                                           &w->matrix[TR_PART_EXPERT_DOWN], e);
    const float *gate_up_bias = w->vector[TR_PART_EXPERT_GATE_UP_BIAS];
    const float *down_bias = w->vector[TR_PART_EXPERT_DOWN_BIAS];

    return mlp(m, act, &gate_up, &down,
               gate_up_bias ? gate_up_bias + (size_t) e * gate_up.n : NULL,
               down_bias ? down_bias + (size_t) e * down.n : NULL,
               t->input + first * m->ld_hidden, n,
               t->output + first * m->ld_hidden);
}

/* The one that all rows go to, on top of y. */
static int
shared_expert(tr_model_t *m, tr_act_t act, const tr_weights_t *w,
              const float *x, uint32_t n, float *y)
{
    float *out = m->experts.output;

    return mlp(m, act, &w->matrix[TR_PART_SHARED_GATE_UP],
               &w->matrix[TR_PART_SHARED_DOWN], NULL, NULL, x, n, out)
           | m->kernels->add_scaled(&m->stream, out, m->ld_hidden, n,
                                    m->config.recipe.hidden, 1, y,
                                    m->ld_hidden);
}

int
tr_model_experts(tr_model_t *m, const tr_layer_recipe_t *layer,
                 const tr_weights_t *w, const float *x, uint32_t n, float *y)
{
    const tr_moe_t *moe = &m->config.recipe.moe;
    const tr_route_t *route = &moe->route;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    tr_experts_work_t *t = &m->experts;
    uint32_t hidden = m->config.recipe.hidden;
    int rc = k->matmul(s, &w->matrix[TR_PART_ROUTER], x, m->ld_hidden, n,
                       t->scores, t->ld_scores, 0);

    if (moe->router_bias) {
        rc |= k->add_bias(s, t->scores, t->ld_scores, n,
                          w->vector[TR_PART_ROUTER_BIAS], route->experts);
    }
    rc |= k->route(s, route, t->scores, t->ld_scores, n,
                   w->vector[TR_PART_CHOICE_BIAS], t->chosen, t->weight);
    if (rc != 0) {
        return rc;
    }
    order_rows(t, route, n);
    for (uint32_t i = 0; i < n * route->top_k; i++) {
        memcpy(t->input + t->place[i] * m->ld_hidden,
               x + i / route->top_k * m->ld_hidden, hidden * sizeof(float));
    }
    for (uint32_t e = 0; e < route->experts; e++) {
        if (t->first[e + 1] > t->first[e]) {
            rc |= one_expert(m, layer->act, w, e);
        }
    }
    rc |= k->sum_experts(s, t->output, m->ld_hidden, n, route->top_k, hidden,
                         t->place, t->weight, y, m->ld_hidden);
    return moe->shared != 0 ? rc | shared_expert(m, layer->act, w, x, n, y)
                            : rc;
}
