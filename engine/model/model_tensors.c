/*
 * Names and shapes of a model's tensors (model_tensors.h).
 */
#include "model_tensors.h"

#include <stdio.h>

#include "engine/config/log.h"

/* ---- the list ----------------------------------------------------------- */

tr_part_shape_t
tr_part_shape(const tr_model_config_t *c, tr_part_t part)
{
    const tr_part_shape_t none = { 0, 0 };
    uint32_t q = c->query_heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    switch (part) {
    case TR_PART_EMBED:
        return (tr_part_shape_t){ c->vocab, c->hidden };
    case TR_PART_HEAD:
        return c->tied ? none : (tr_part_shape_t){ c->vocab, c->hidden };
    case TR_PART_QKV:
        return (tr_part_shape_t){ q + 2 * kv, c->hidden };
    case TR_PART_O:
        return (tr_part_shape_t){ c->hidden, q };
    case TR_PART_GATE_UP:
        return (tr_part_shape_t){ 2 * c->intermediate, c->hidden };
    case TR_PART_DOWN:
        return (tr_part_shape_t){ c->hidden, c->intermediate };
    case TR_PART_FINAL_NORM:
    case TR_PART_INPUT_NORM:
    case TR_PART_POST_NORM:
        return (tr_part_shape_t){ c->hidden, 1 };
    case TR_PART_Q_NORM:
    case TR_PART_K_NORM:
        return c->qk_norm ? (tr_part_shape_t){ c->head_dim, 1 } : none;
    case TR_PART_QKV_BIAS:
        return c->qkv_bias ? (tr_part_shape_t){ q + 2 * kv, 1 } : none;
    case TR_PART_O_BIAS:
        return c->o_bias ? (tr_part_shape_t){ c->hidden, 1 } : none;
    case TR_PARTS:
        break;
    }
    return none;
}

/* Tensors of a layer, behind "model.layers.N."; order is that of loading. */
static const struct {
    tr_part_t part;
    const char *name;
    enum { ALL, FIRST_HALF, SECOND_HALF, QUERIES, KEYS, VALUES } rows;
} of_layer[] = {
    { TR_PART_QKV, "self_attn.q_proj.weight", QUERIES },
    { TR_PART_QKV, "self_attn.k_proj.weight", KEYS },
    { TR_PART_QKV, "self_attn.v_proj.weight", VALUES },
    { TR_PART_QKV_BIAS, "self_attn.q_proj.bias", QUERIES },
    { TR_PART_QKV_BIAS, "self_attn.k_proj.bias", KEYS },
    { TR_PART_QKV_BIAS, "self_attn.v_proj.bias", VALUES },
    { TR_PART_O, "self_attn.o_proj.weight", ALL },
    { TR_PART_O_BIAS, "self_attn.o_proj.bias", ALL },
    { TR_PART_Q_NORM, "self_attn.q_norm.weight", ALL },
    { TR_PART_K_NORM, "self_attn.k_norm.weight", ALL },
    { TR_PART_GATE_UP, "mlp.gate_proj.weight", FIRST_HALF },
    { TR_PART_GATE_UP, "mlp.up_proj.weight", SECOND_HALF },
    { TR_PART_DOWN, "mlp.down_proj.weight", ALL },
    { TR_PART_INPUT_NORM, "input_layernorm.weight", ALL },
    { TR_PART_POST_NORM, "post_attention_layernorm.weight", ALL },
};

#define OF_LAYER (sizeof(of_layer) / sizeof(of_layer[0]))

static const struct {
    tr_part_t part;
    const char *name;
} of_model[] = {
    { TR_PART_EMBED, "model.embed_tokens.weight" },
    { TR_PART_HEAD, "lm_head.weight" },
    { TR_PART_FINAL_NORM, "model.norm.weight" },
};

#define OF_MODEL (sizeof(of_model) / sizeof(of_model[0]))

/* Which of the part's rows a tensor of a layer is. */
static void
place(const tr_model_config_t *c, uint32_t i, tr_model_tensor_t *t)
{
    uint32_t q = c->query_heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    uint32_t all = tr_part_shape(c, t->part).rows;

    switch (of_layer[i].rows) {
    case ALL:
        t->row = 0;
        t->rows = all;
        break;
    case FIRST_HALF:
    case SECOND_HALF:
        t->row = of_layer[i].rows == FIRST_HALF ? 0 : all / 2;
        t->rows = all / 2;
        break;
    case QUERIES:
        t->row = 0;
        t->rows = q;
        break;
    case KEYS:
    case VALUES:
        t->row = of_layer[i].rows == KEYS ? q : q + kv;
        t->rows = kv;
        break;
    }
}

/* The k-th place of the list, with those that this model does not have. */
static bool
at(const tr_model_config_t *c, uint32_t k, tr_model_tensor_t *t)
{
    tr_part_shape_t shape;

    t->layer = 0;
    if (k < OF_MODEL) {
        t->part = of_model[k].part;
        shape = tr_part_shape(c, t->part);
        t->row = 0;
        t->rows = shape.rows;
        snprintf(t->name, sizeof(t->name), "%s", of_model[k].name);
    } else {
        uint32_t i = (k - OF_MODEL) % OF_LAYER;

        t->layer = (k - OF_MODEL) / OF_LAYER;
        t->part = of_layer[i].part;
        shape = tr_part_shape(c, t->part);
        place(c, i, t);
        snprintf(t->name, sizeof(t->name), "model.layers.%u.%s", t->layer,
                 of_layer[i].name);
    }
    t->columns = shape.columns;
    return shape.rows != 0;
}

bool
tr_model_tensor(const tr_model_config_t *c, uint32_t i, tr_model_tensor_t *out)
{
    uint32_t n = OF_MODEL + c->layers * OF_LAYER, layer = 0, of_each = 0, k;

    /* all layers are alike: skip whole ones */
    for (k = 0; k < OF_MODEL; k++) {
        if (at(c, k, out) && i-- == 0) {
            return true;
        }
    }
    for (k = OF_MODEL; k < OF_MODEL + OF_LAYER; k++) {
        of_each += at(c, k, out);
    }
    layer = i / of_each;
    i %= of_each;
    for (k = OF_MODEL + layer * OF_LAYER; k < n; k++) {
        if (at(c, k, out) && i-- == 0) {
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
