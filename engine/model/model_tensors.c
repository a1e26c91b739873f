/*
 * Names and shapes of a model's tensors (model_tensors.h).
 */
#include "model_tensors.h"

#include <stdio.h>

#include "engine/config/log.h"

#include "model_families.h"

/* ---- the list ----------------------------------------------------------- */

/* Which of the part's rows a tensor is. */
static void
place(const tr_recipe_t *r, tr_tensor_rows_t rows, uint32_t all,
      tr_model_tensor_t *t)
{
    uint32_t q = r->query_heads * r->head_dim, kv = r->kv_heads * r->head_dim;

    switch (rows) {
    case TR_ROWS_ALL:
        t->row = 0;
        t->rows = all;
        break;
    case TR_ROWS_FIRST_HALF:
    case TR_ROWS_SECOND_HALF:
        t->row = rows == TR_ROWS_FIRST_HALF ? 0 : all / 2;
        t->rows = all / 2;
        break;
    case TR_ROWS_QUERIES:
        t->row = 0;
        t->rows = q;
        break;
    case TR_ROWS_KEYS:
    case TR_ROWS_VALUES:
        t->row = rows == TR_ROWS_KEYS ? q : q + kv;
        t->rows = kv;
        break;
    }
}

/* A tensor by its name in the family's list; false: the recipe has no such part. */
static bool
describe(const tr_recipe_t *r, const tr_tensor_name_t *name, uint32_t layer,
         tr_model_tensor_t *t)
{
    tr_part_shape_t shape = tr_part_shape(r, name->part, layer);

    t->part = name->part;
    t->layer = layer;
    t->columns = shape.columns;
    place(r, name->rows, shape.rows, t);
    if (tr_part_layered(name->part)) {
        snprintf(t->name, sizeof(t->name), "model.layers.%u.%s", layer,
                 name->name);
    } else {
        snprintf(t->name, sizeof(t->name), "%s", name->name);
    }
    return shape.rows != 0;
}

bool
tr_model_tensor_next(const tr_model_config_t *c, uint32_t *at,
                     tr_model_tensor_t *out)
{
    const tr_tensor_name_t *names = c->family->tensors;
    uint32_t of_model = 0, of_layer = 0;

    while (!tr_part_layered(names[of_model].part)) {
        of_model++;
    }
    while (names[of_model + of_layer].name != NULL) {
        of_layer++;
    }
    while (*at < of_model + c->recipe.layers * of_layer) {
        uint32_t k = (*at)++;
        uint32_t layer = k < of_model ? 0 : (k - of_model) / of_layer;

        if (describe(&c->recipe, &names[k - layer * of_layer], layer, out)) {
            return true;
        }
    }
    return false;
}

/* ---- files -------------------------------------------------------------- */

tr_status_t
tr_model_tensor_find(const tr_safetensors_t *st,
                     const tr_model_tensor_t *tensor, const tr_tensor_t **out,
                     tr_error_t *err)
{
    const tr_tensor_t *t = tr_safetensors_find(st, tensor->name);
    bool matrix = tensor->part < TR_PART_MATRICES;
    char shape[128] = "", want[32] = "";
    size_t n = 0;

    if (t == NULL) {
        return tr_error_set(err, TR_ERR_FORMAT, tensor->name,
                            "tensor \"%s\" is missing, config.json asks for it",
                            tensor->name);
    }
    if (t->n_dims == (matrix ? 2u : 1u) && t->dims[0] == tensor->rows
        && (!matrix || t->dims[1] == tensor->columns)) {
        *out = t;
        return TR_OK;
    }
    for (uint32_t i = 0; i < t->n_dims && n < sizeof(shape); i++) {
        n += (size_t) snprintf(shape + n, sizeof(shape) - n, "%s%llu",
                               i ? ", " : "", (unsigned long long) t->dims[i]);
    }
    if (matrix) {
        snprintf(want, sizeof(want), ", %u", tensor->columns);
    }
    return tr_error_set(err, TR_ERR_FORMAT, tensor->name,
                        "%s: tensor \"%s\" has shape [%s], config.json says "
                        "[%u%s]",
                        t->file, tensor->name, shape, tensor->rows, want);
}

/* ---- order of rows ------------------------------------------------------ */

/* Rows [0, n) of the part belong to heads that rotate. */
static uint32_t
rotating_rows(const tr_recipe_t *r, const tr_model_tensor_t *t)
{
    switch (t->part) {
    case TR_PART_QKV:
    case TR_PART_QKV_BIAS:
        return (r->query_heads + r->kv_heads) * r->head_dim;
    case TR_PART_Q_NORM:
    case TR_PART_K_NORM:
        return t->rows;
    default:
        return 0;
    }
}

bool
tr_model_tensor_reordered(const tr_recipe_t *r, const tr_model_tensor_t *t)
{
    return (r->rotary_dim != r->head_dim || r->rope_interleaved)
           && t->row < rotating_rows(r, t);
}

uint32_t
tr_model_tensor_source(const tr_recipe_t *r, const tr_model_tensor_t *t,
                       uint32_t row)
{
    uint32_t d = row % r->head_dim;

    /* a tensor begins where a head does */
    return t->row + row < rotating_rows(r, t)
               ? row - d + tr_recipe_rotary_source(r, d)
               : row;
}

void
tr_model_vector_expand(const tr_recipe_t *r, const tr_model_tensor_t *t,
                       const tr_tensor_t *tensor, float *out)
{
    bool norm = t->part < TR_PART_QKV_BIAS;

    for (uint32_t i = 0; i < t->rows; i++) {
        out[i] = tr_float_load(tensor->data, tr_model_tensor_source(r, t, i),
                               tensor->dtype);
        out[i] += norm && r->norm_plus_one ? 1.0f : 0.0f;
    }
}

/* ---- random weights ----------------------------------------------------- */

static inline uint64_t
mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t
tr_model_tensor_seed(uint64_t seed, const char *name)
{
    for (const char *p = name; *p; p++) {
        seed = mix(seed ^ (unsigned char) *p);
    }
    return seed;
}

void
tr_model_fill_random(float *x, size_t n, uint64_t seed, uint64_t first,
                     float sd)
{
    for (size_t i = 0; i < n; i++) {
        float u = (float) (mix(seed + first + i) >> 40) * 0x1p-24f;

        x[i] = (2 * u - 1) * sd * 1.7320508f;
    }
}
