/*
 * model_cuda.h: layers with experts (kernels/cuda/device.h).
 *
 *   norm, product of the router, who goes to whom, rows in the order of experts:
 *   of a single row one launch; products gate and up of each expert's rows, with few
 *   rows with the activation, product down; the weighted sum, which becomes the
 *   layer's delta.  Where a model has an expert that all rows go to, its products
 *   come behind the first of these.
 *
 * Every launch depends on the number of rows alone, so that a step with experts
 * is a graph as others are.
 */
#include "model_cuda.h"

static tr_cuda_experts_t
product_of(const tr_model_cuda_t *m, uint32_t layer, tr_part_t part,
           tr_part_t bias, uint32_t places)
{
    const tr_cuda_experts_work_t *t = &m->experts;
    tr_part_shape_t shape = tr_part_shape(&m->config.recipe, part, layer);
    uint32_t experts = m->config.recipe.moe.route.experts;

    return (tr_cuda_experts_t){ .places = places,
                                .experts = experts,
                                .n = shape.rows / experts,
                                .k = shape.columns,
                                .first = t->first,
                                .w = m->layers[layer].part[part],
                                .bias = m->layers[layer].part[bias],
                                .type = m->type,
                                .form = m->layers[layer].form[part] };
}

/* Whom rows go to, and their places, from the norm in front of it all. */
static tr_cuda_choose_t
choice_of(tr_model_cuda_t *m, uint32_t layer, uint32_t rows)
{
    const tr_moe_t *moe = &m->config.recipe.moe;
    const tr_cuda_experts_work_t *t = &m->experts;
    void *const *w = m->layers[layer].part;

    return (tr_cuda_choose_t){ .norm = tr_model_cuda_norm_mlp(m, layer, rows),
                               .w = w[TR_PART_ROUTER],
                               .logits = t->logits,
                               .route = { .route = moe->route,
                                          .rows = rows,
                                          .logits = t->logits,
                                          .ld = t->ld_logits,
                                          .logit_bias = w[TR_PART_ROUTER_BIAS],
                                          .choice_bias = w[TR_PART_CHOICE_BIAS],
                                          .expert = t->expert,
                                          .weight = t->weight },
                               .order = { .rows = rows,
                                          .top_k = moe->route.top_k,
                                          .experts = moe->route.experts,
                                          .expert = t->expert,
                                          .first = t->first,
                                          .place = t->place,
                                          .row = t->row },
                               .meet = t->meet };
}

static bool
choose(tr_model_cuda_t *m, uint32_t layer, uint32_t rows)
{
    const tr_cuda_choose_t c = choice_of(m, layer, rows);

    /* of 8 rows that takes longer than the four launches */
    if (rows == 1 && tr_cuda_choose_fits(rows, c.norm.n)
        && c.norm.weight != NULL && c.norm.post_weight == NULL
        && c.norm.scale == 1) {
        return tr_model_cuda_launched(m, m->cuda->choose(m->stream, &c),
                                      "choose");
    }
    return tr_model_cuda_launched(m, m->cuda->norm(m->stream, &c.norm), "norm")
           && tr_model_cuda_multiply(m, m->stream, TR_PART_ROUTER, layer,
                                     m->normed, m->ld_hidden, rows, c.logits,
                                     c.route.ld)
           && tr_model_cuda_launched(m, m->cuda->route(m->stream, &c.route),
                                     "route")
           && tr_model_cuda_launched(m, m->cuda->order(m->stream, &c.order),
                                     "order");
}

static bool
act_mul(tr_model_cuda_t *m, uint32_t layer, const void *x, size_t ldx,
        uint32_t rows, uint32_t n, void *out, size_t ldo)
{
    tr_act_t act = (tr_act_t) m->config.recipe.layer[layer].act;

    return tr_model_cuda_launched(m,
                                  m->cuda->act_mul(m->stream, act, x, ldx, rows,
                                                   n, m->type, out, ldo),
                                  "act_mul");
}

/* Is the activation done with the products before it? */
static bool
gates(const tr_model_cuda_t *m, const tr_cuda_experts_t *up)
{
    return tr_cuda_experts_few(m->stream->device, up->places, up->experts,
                               up->n / 2)
           && (up->form.format == TR_WEIGHT_16 || up->n % 32 == 0);
}

/* So many bytes of the second product are called into the L2 cache while the first
 * ends: half of one. */
#define AHEAD (24u << 20)

static bool
calls(const tr_cuda_experts_t *up, const tr_cuda_experts_t *down)
{
    uint64_t bytes = tr_weight_bytes(up->form, up->experts * down->n, down->k)
                     / up->experts;

    return up->gated && memcmp(&up->form, &down->form, sizeof(up->form)) == 0
           && down->k == up->n / 2 && bytes * up->places <= AHEAD
           && tr_cuda_experts_ahead(up->form, up->experts, down->n, down->k);
}

/* The experts' results, in their order. */
static bool
multiply(tr_model_cuda_t *m, uint32_t layer, uint32_t places)
{
    const tr_cuda_experts_work_t *t = &m->experts;
    tr_cuda_experts_t up = product_of(m, layer, TR_PART_EXPERT_GATE_UP,
                                      TR_PART_EXPERT_GATE_UP_BIAS, places);
    tr_cuda_experts_t down = product_of(m, layer, TR_PART_EXPERT_DOWN,
                                        TR_PART_EXPERT_DOWN_BIAS, places);

    up.row = t->row;
    up.x = m->normed;
    up.ldx = m->ld_hidden;
    up.gated = gates(m, &up);
    up.act = (tr_act_t) m->config.recipe.layer[layer].act;
    up.y = up.gated ? t->mlp : t->gate_up;
    up.ldy = up.gated ? t->ld_mlp : t->ld_gate_up;
    down.x = t->mlp;
    down.ldx = t->ld_mlp;
    down.y = t->output;
    down.ldy = m->ld_hidden;
    if (m->stream->device->trial && calls(&up, &down)) {
        up.ahead = down.w;
        up.ahead_n = down.n;
    }
    return tr_model_cuda_launched(m, m->cuda->experts(m->stream, &up),
                                  "experts")
           && (up.gated
               || act_mul(m, layer, t->gate_up, t->ld_gate_up, places,
                          m->config.recipe.moe.width, t->mlp, t->ld_mlp))
           && tr_model_cuda_launched(m, m->cuda->experts(m->stream, &down),
                                     "experts");
}

/* The one that all rows go to. */
static bool
multiply_shared(tr_model_cuda_t *m, uint32_t layer, uint32_t rows)
{
    return tr_model_cuda_multiply(m, m->stream, TR_PART_SHARED_GATE_UP, layer,
                                  m->normed, m->ld_hidden, rows, m->gate_up,
                                  m->ld_gate_up)
           && act_mul(m, layer, m->gate_up, m->ld_gate_up, rows,
                      m->config.recipe.moe.shared, m->mlp, m->ld_mlp)
           && tr_model_cuda_multiply(m, m->stream, TR_PART_SHARED_DOWN, layer,
                                     m->mlp, m->ld_mlp, rows, m->experts.shared,
                                     m->ld_hidden);
}

bool
tr_model_cuda_experts(tr_model_cuda_t *m, uint32_t layer, uint32_t rows)
{
    const tr_recipe_t *r = &m->config.recipe;
    const tr_cuda_experts_work_t *t = &m->experts;
    bool shared = r->moe.shared != 0;
    const tr_cuda_sum_experts_t sum = { .rows = rows,
                                        .top_k = r->moe.route.top_k,
                                        .n = r->hidden,
                                        .x = t->output,
                                        .ldx = m->ld_hidden,
                                        .place = t->place,
                                        .weight = t->weight,
                                        .shared = shared ? t->shared : NULL,
                                        .lds = m->ld_hidden,
                                        .out = m->delta,
                                        .ldo = m->ld_hidden,
                                        .type = m->type };

    return choose(m, layer, rows)
           && (!shared || multiply_shared(m, layer, rows))
           && multiply(m, layer, rows * r->moe.route.top_k)
           && tr_model_cuda_launched(m, m->cuda->sum_experts(m->stream, &sum),
                                     "sum_experts");
}
