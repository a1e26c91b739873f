/*
 * Rotary frequencies, as config.json spells them.
 *
 * transformers 4 writes rope_theta and rope_scaling { rope_type or type, factor,
 * ... }; transformers 5 writes rope_parameters with both inside, and where
 * sliding layers have frequencies of their own, one such object for each type of
 * layer.  In the older spelling a family says what sliding layers have.
 */
#include "model_config_internal.h"

#include <math.h>
#include <string.h>

#include "engine/config/log.h"

/* Of what frequencies are made from; they are floats in the end. */
#define ROPE_MIN 1e-6
#define ROPE_MAX 1e15

typedef tr_config_reader_t reader_t;

static double
number(reader_t *r, json_t *rope, const char *key, double otherwise)
{
    return tr_config_number(r, rope, key, otherwise, ROPE_MIN, ROPE_MAX);
}

static uint32_t
original(reader_t *r, json_t *rope)
{
    return tr_config_uint(r, rope, "original_max_position_embeddings", -1, 1,
                          TR_POSITIONS_MAX);
}

static void
read_linear(reader_t *r, json_t *rope, tr_model_config_t *c, tr_rope_t *t)
{
    (void) c;
    t->factor = number(r, rope, "factor", -1);
}

static void
read_llama3(reader_t *r, json_t *rope, tr_model_config_t *c, tr_rope_t *t)
{
    (void) c;
    t->factor = number(r, rope, "factor", -1);
    t->low = number(r, rope, "low_freq_factor", -1);
    t->high = number(r, rope, "high_freq_factor", -1);
    t->original = original(r, rope);
    if (r->rc == TR_OK && !(t->high > t->low)) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "high_freq_factor",
                             "config.json: high_freq_factor is %g, expected "
                             "more than the low_freq_factor %g",
                             t->high, t->low);
    }
}

/* YaRN's temperature of attention, on both sides of the product. */
static double
yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The context is that of the first training times `factor`, whatever
 * max_position_embeddings says: some configs keep the first training's there. */
static void
read_yarn(reader_t *r, json_t *rope, tr_model_config_t *c, tr_rope_t *t)
{
    double one = tr_config_number(r, rope, "mscale", 0, 0, ROPE_MAX);
    double all = tr_config_number(r, rope, "mscale_all_dim", 0, 0, ROPE_MAX);
    double temp = tr_config_number(r, rope, "llama_4_scaling_beta", 0, 0,
                                   ROPE_MAX);

    t->factor = tr_config_number(r, rope, "factor", -1, 1, ROPE_MAX);
    t->original = original(r, rope);
    t->beta_fast = number(r, rope, "beta_fast", 32);
    t->beta_slow = number(r, rope, "beta_slow", 1);
    t->truncate = tr_config_bool(r, rope, "truncate", true);
    if (r->rc != TR_OK) {
        return;
    }
    t->amp = one != 0 && all != 0
                 ? yarn_mscale(t->factor, one) / yarn_mscale(t->factor, all)
                 : yarn_mscale(t->factor, 1);
    t->amp = number(r, rope, "attention_factor", t->amp);
    c->recipe.query_temp.beta = (float) temp;
    c->recipe.query_temp.original = t->original;
    if (t->original * t->factor <= TR_POSITIONS_MAX) {
        c->recipe.max_positions = (uint32_t) (t->original * t->factor);
    }
}

/* A number for each pair that rotates; their count is checked when that is
 * known (read_longrope). */
static uint32_t
read_stretch(reader_t *r, json_t *rope, const char *key,
             float out[TR_HEAD_DIM_MAX / 2])
{
    json_t *list = tr_config_field(r, rope, key), *v;
    size_t i;

    json_array_foreach (list, i, v) {
        double x = json_number_value(v);

        if (i == TR_HEAD_DIM_MAX / 2 || !json_is_number(v) || !(x >= ROPE_MIN)
            || !(x <= ROPE_MAX)) {
            tr_config_fail(r, TR_ERR_FORMAT, key,
                           i == TR_HEAD_DIM_MAX / 2
                               ? "a longrope factor for more pairs than a "
                                 "head can have"
                               : "a longrope factor is not a positive number");
            return 0;
        }
        out[i] = (float) x;
    }
    return (uint32_t) json_array_size(list);
}

/* LongRoPE (section 3.3): one list of factors for sequences of up to `original`
 * tokens, another for longer ones, and one amplitude for both.  Phi-3's first
 * files call it su, and have `original` beside rope_scaling. */
static void
read_longrope(reader_t *r, json_t *rope, tr_model_config_t *c, tr_rope_t *t)
{
    const char *key = "original_max_position_embeddings";
    json_t *there = tr_config_field(r, rope, key);
    uint32_t n[2], pairs = c->recipe.rotary_dim / 2;

    t->original = tr_config_uint(r, there ? rope : r->root, key, -1, 2,
                                 TR_POSITIONS_MAX);
    n[0] = read_stretch(r, rope, "short_factor", t->stretch[0]);
    n[1] = read_stretch(r, rope, "long_factor", t->stretch[1]);
    if (r->rc == TR_OK && (n[0] != pairs || n[1] != pairs)) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "long_factor",
                             "config.json: %u short and %u long factors of "
                             "longrope, expected %u, one for each pair that "
                             "rotates",
                             n[0], n[1], pairs);
    }
    if (r->rc != TR_OK) {
        return;
    }
    t->factor = number(r, rope, "factor",
                       (double) c->recipe.max_positions / t->original);
    t->amp = number(r, rope, "attention_factor",
                    t->factor <= 1
                        ? 1
                        : sqrt(1 + log(t->factor) / log(t->original)));
}

static const struct {
    const char *name;
    tr_rope_type_t type;
    void (*read)(reader_t *r, json_t *rope, tr_model_config_t *c, tr_rope_t *t);
} types[] = {
    { "default", TR_ROPE_DEFAULT, NULL },
    { "linear", TR_ROPE_LINEAR, read_linear },
    { "llama3", TR_ROPE_LLAMA3, read_llama3 },
    { "yarn", TR_ROPE_YARN, read_yarn },
    { "longrope", TR_ROPE_LONGROPE, read_longrope },
    { "su", TR_ROPE_LONGROPE, read_longrope },
};

#define TYPES (sizeof(types) / sizeof(types[0]))
#define TYPE_NAMES "default, linear, llama3, yarn or longrope"

/* rope_type and what it needs; without one nothing is scaled. */
static void
read_type(reader_t *r, json_t *rope, tr_model_config_t *c, tr_rope_t *t)
{
    json_t *name = tr_config_field(r, rope, "rope_type");
    json_t *old = tr_config_field(r, rope, "type");
    json_t *factor = json_object_get(rope, "factor"); /* not read here */
    const char *text;
    char shown[TR_CONFIG_SHOWN];

    name = name ? name : old;
    if (r->rc != TR_OK
        || (name == NULL && (factor == NULL || json_is_null(factor)))) {
        return;
    }
    tr_config_show(name ? name : factor, shown);
    if (name == NULL) { /* it scales, and does not say how */
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "rope_type",
                             "config.json: rope_type is missing beside "
                             "factor %s, expected " TYPE_NAMES,
                             shown);
        return;
    }
    text = json_string_value(name);
    for (size_t i = 0; text != NULL && i < TYPES; i++) {
        if (strcmp(text, types[i].name) == 0) {
            t->type = types[i].type;
            if (types[i].read != NULL) {
                types[i].read(r, rope, c, t);
            }
            return;
        }
    }
    r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "rope_scaling",
                         "config.json: rope type %s is not supported, "
                         "expected " TYPE_NAMES,
                         shown);
}

/* The dims that rotate: a share of the head. */
static void
read_partial(reader_t *r, json_t *rope, tr_model_config_t *c)
{
    double all = c->family->partial_rotary ? c->family->partial_rotary : 1;
    double part = tr_config_number(r, r->root, "partial_rotary_factor", all,
                                   ROPE_MIN, 1);

    if (rope != NULL) {
        part = tr_config_number(r, rope, "partial_rotary_factor", part,
                                ROPE_MIN, 1);
    }
    c->recipe.rotary_dim = (uint32_t) (c->recipe.head_dim * part);
    if (r->rc == TR_OK
        && (c->recipe.rotary_dim == 0 || c->recipe.rotary_dim % 2 != 0)) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "partial_rotary_factor",
                             "config.json: partial_rotary_factor %g rotates "
                             "%u of %u dims, expected an even number",
                             part, c->recipe.rotary_dim, c->recipe.head_dim);
    }
}

/* A table, from an object of config.json (NULL: there is none). */
static void
read_table(reader_t *r, json_t *rope, tr_model_config_t *c, tr_rope_t *t)
{
    char shown[TR_CONFIG_SHOWN];

    t->type = TR_ROPE_DEFAULT;
    t->amp = 1;
    if (r->rc == TR_OK && rope != NULL && !json_is_object(rope)) {
        tr_config_show(rope, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "rope_scaling",
                             "config.json: rope_scaling is %s, expected an "
                             "object or null",
                             shown);
        return;
    }
    t->theta = number(r, r->root, "rope_theta",
                      c->family->theta ? c->family->theta : 10000.0);
    if (rope != NULL) {
        t->theta = number(r, rope, "rope_theta", t->theta);
        read_type(r, rope, c, t);
    }
}

static bool
any_slides(const tr_model_config_t *c)
{
    for (uint32_t l = 0; l < c->recipe.layers; l++) {
        if (c->recipe.layer[l].rope == 1) {
            return true;
        }
    }
    return false;
}

void
tr_config_ropes(reader_t *r, tr_model_config_t *c)
{
    tr_recipe_t *recipe = &c->recipe;
    json_t *rope = tr_config_field(r, r->root, "rope_parameters");
    json_t *full = rope ? tr_config_field(r, rope, "full_attention") : NULL;
    json_t *sliding = rope ? tr_config_field(r, rope, "sliding_attention")
                           : NULL;
    const char *name = full ? "rope_parameters.full_attention"
                            : "rope_parameters";
    json_t *scaling = tr_config_field(r, r->root, "rope_scaling");
    tr_rope_t *local = &recipe->rope[1];
    double theta;

    if (rope == NULL) {
        rope = scaling;
        name = "rope_scaling";
    }
    if (r->rc == TR_OK && sliding != NULL
        && (full == NULL || !c->family->local_rope)) {
        tr_config_fail(r, TR_ERR_UNSUPPORTED, "rope_parameters",
                       full == NULL
                           ? "rope_parameters has sliding_attention and no "
                             "full_attention"
                           : "rope_parameters has sliding_attention, expected "
                             "one table: layers of this model_type share it");
        return;
    }
    rope = full ? full : rope;
    recipe->n_ropes = 1;
    recipe->rope_interleaved = c->family->rope_interleaved;
    if (json_is_object(rope)) {
        tr_config_watch(r, name, rope);
    }
    read_partial(r, rope, c);
    read_table(r, rope, c, &recipe->rope[0]);
    if (r->rc != TR_OK || !c->family->local_rope) {
        return;
    }
    theta = number(r, r->root, "rope_local_base_freq",
                   c->family->local_theta ? c->family->local_theta
                                          : recipe->rope[0].theta);
    if (!any_slides(c)) {
        return;
    }
    recipe->n_ropes = 2;
    if (sliding != NULL) {
        tr_config_watch(r, "rope_parameters.sliding_attention", sliding);
        read_table(r, sliding, c, local);
        return;
    }
    local->type = TR_ROPE_DEFAULT; /* what stretches is for the other layers */
    local->amp = 1;
    local->theta = theta;
}
