/*
 * centre.h: which layers are centred, by what, and the table.
 */
#include "centre.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

bool
tr_centre_fits(const tr_recipe_t *r, uint32_t layer)
{
    const tr_layer_recipe_t *l = &r->layer[layer];

    return (l->biases & TR_BIAS_QKV) != 0 && l->qk_norm == TR_QK_NORM_NONE
           && !l->sinks;
}

/* ---- what is taken off a pair -------------------------------------------- */

/* Of a pair that turns by w a position, over the first n positions of `reach`. */
static tr_centre_pair_t
pair_of(double w, double n, double reach)
{
    double phi = (n - 1) * w / 2, half = w / 2;
    double mean = w == 0 ? 1 : sin(n * half) / (n * sin(half));
    double most = fmax(phi, (reach - 1) * w - phi);
    double g = most < M_PI / 2 ? fmin(mean, 2 * cos(most)) : 0;

    /* least: what rounding makes of a pair that does not turn */
    return (tr_centre_pair_t){
        (float) g, (float) phi, (float) sqrt(fmax(0, 1 - 2 * g * mean + g * g))
    };
}

void
tr_centre_pairs(const tr_recipe_t *r, uint32_t layer,
                tr_centre_pair_t pair[TR_HEAD_DIM_MAX / 2])
{
    float inv_freq[TR_HEAD_DIM_MAX / 2], amp[TR_HEAD_DIM_MAX / 2];
    uint32_t reach = r->max_positions < TR_CENTRE_REACH ? r->max_positions
                                                        : TR_CENTRE_REACH;
    uint32_t n = reach < TR_CENTRE_MEAN ? reach : TR_CENTRE_MEAN;

    tr_recipe_rope(r, r->layer[layer].rope, false, inv_freq, amp);
    for (uint32_t i = 0; i < r->head_dim / 2; i++) {
        pair[i] = pair_of(inv_freq[i], n, reach);
    }
}

/* ---- the table ----------------------------------------------------------- */

/* Elements of a layer. */
static size_t
of_layer(const tr_recipe_t *r)
{
    return (size_t) r->kv_heads * r->head_dim;
}

/* A tensor's key biases go to the table.  room: of all rows of the part. */
static tr_status_t
take_bias(tr_centre_t *c, const tr_safetensors_t *st,
          const tr_equalise_t *equalise, const tr_model_tensor_t *t,
          float *room, tr_error_t *err)
{
    const tr_recipe_t *r = c->recipe;
    size_t first = (size_t) r->query_heads * r->head_dim, n = of_layer(r);
    const tr_tensor_t *tensor;
    tr_status_t rc = tr_model_tensor_find(st, t, &tensor, err);

    if (rc != TR_OK) {
        return rc;
    }
    tr_model_vector_expand(r, t, tensor, room);
    if (tr_equalise_has(equalise, t)) {
        tr_equalise_scale(equalise, t, 0, t->rows, room);
    }
    for (uint32_t i = 0; i < t->rows; i++) {
        size_t row = t->row + (size_t) i;

        if (row >= first && row < first + n) {
            c->shift[t->layer * n + row - first] = room[i];
        }
    }
    return TR_OK;
}

/* x: a layer's biases, which become -c.  False: they are not finite. */
static bool
shift_of(const tr_recipe_t *r, uint32_t layer, float *x)
{
    float inv_freq[TR_HEAD_DIM_MAX / 2], amp[TR_HEAD_DIM_MAX / 2];
    tr_centre_pair_t pair[TR_HEAD_DIM_MAX / 2];
    uint32_t half = r->head_dim / 2;
    bool finite = true;

    tr_recipe_rope(r, r->layer[layer].rope, false, inv_freq, amp);
    tr_centre_pairs(r, layer, pair);
    for (uint32_t h = 0; h < r->kv_heads; h++, x += r->head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            double g = (double) pair[i].g * (double) amp[i];
            double c = g * cos((double) pair[i].phi);
            double s = g * sin((double) pair[i].phi);
            double u = (double) x[i], v = (double) x[half + i];

            finite = finite && isfinite(x[i]) && isfinite(x[half + i]);
            x[i] = (float) (v * s - u * c);
            x[half + i] = (float) (-v * c - u * s);
        }
    }
    return finite;
}

static bool
any(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (x[i] != 0) {
            return true;
        }
    }
    return false;
}

static void
shift_layers(tr_centre_t *c)
{
    const tr_recipe_t *r = c->recipe;
    size_t n = of_layer(r);

    for (uint32_t l = 0; l < r->layers; l++) {
        float *shift = c->shift + l * n;

        if (!tr_centre_fits(r, l)) {
            continue;
        }
        if (!shift_of(r, l, shift)) {
            tr_log(TR_LEVEL_WARN,
                   "kv_centre layer=%u: its key bias is not finite, expected "
                   "numbers: keys are not centred there",
                   l);
            continue;
        }
        c->has[l] = any(shift, n);
        c->layers += c->has[l];
    }
    tr_log(c->layers != 0 ? TR_LEVEL_NOTICE : TR_LEVEL_INFO,
           "kv_centre: keys centred in %u of %u layers", c->layers, r->layers);
}

static tr_status_t
take_biases(tr_centre_t *c, const tr_model_config_t *config,
            const tr_safetensors_t *st, const tr_equalise_t *equalise,
            tr_error_t *err)
{
    const tr_recipe_t *r = c->recipe;
    float *room = malloc(
        ((size_t) r->query_heads * r->head_dim + 2 * of_layer(r))
        * sizeof(float));
    tr_model_tensor_t t;
    uint32_t at = 0;
    tr_status_t rc = room != NULL ? TR_OK
                                  : tr_error_set(err, TR_ERR_NOMEM, "kv_centre",
                                                 "out of memory");

    while (rc == TR_OK && tr_model_tensor_next(config, &at, &t)) {
        if (t.part == TR_PART_QKV_BIAS && tr_centre_fits(r, t.layer)) {
            rc = take_bias(c, st, equalise, &t, room, err);
        }
    }
    free(room);
    return rc;
}

tr_status_t
tr_centre_choose(const tr_model_config_t *config, const tr_safetensors_t *st,
                 const tr_equalise_t *equalise, tr_centre_t **out,
                 tr_error_t *err)
{
    const tr_recipe_t *r = &config->recipe;
    tr_centre_t *c = calloc(1, sizeof(*c));
    tr_status_t rc;

    if (c != NULL) {
        c->recipe = r;
        c->has = calloc(r->layers, sizeof(*c->has));
        c->shift = calloc(r->layers * of_layer(r), sizeof(*c->shift));
    }
    if (c == NULL || c->has == NULL || c->shift == NULL) {
        tr_centre_free(c);
        return tr_error_set(err, TR_ERR_NOMEM, "kv_centre", "out of memory");
    }
    rc = take_biases(c, config, st, equalise, err);
    if (rc != TR_OK) {
        tr_centre_free(c);
        return rc;
    }
    shift_layers(c);
    *out = c;
    return TR_OK;
}

void
tr_centre_free(tr_centre_t *c)
{
    if (c != NULL) {
        free(c->shift);
        free(c->has);
    }
    free(c);
}

const float *
tr_centre_shift(const tr_centre_t *c, uint32_t layer)
{
    return c != NULL && c->has[layer] ? c->shift + layer * of_layer(c->recipe)
                                      : NULL;
}
