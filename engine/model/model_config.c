/*
 * model_config.h: reading and checking.
 *
 * What keys there are, and where each goes, stands in the family's table
 * (model_families.c); here is what a row cannot say.
 *
 * Spellings.  transformers 4 writes rope_theta and rope_scaling { rope_type or
 * type, factor, ... }; transformers 5 writes rope_parameters with both inside.
 * null counts as absent everywhere.
 */
#include "model_config.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/operands.h"

#include "engine/config/log.h"

#include "model_families.h"

/* Of what frequencies are made from; they are floats in the end. */
#define ROPE_MIN 1e-6
#define ROPE_MAX 1e15

#define SHOWN 65 /* bytes of a value in a message */

typedef struct {
    json_t *root;
    tr_error_t *err;
    tr_status_t rc; /* of the first failure; later reads do nothing */
} reader_t;

static json_t *
field(json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);

    return json_is_null(v) ? NULL : v;
}

static void
fail(reader_t *r, tr_status_t status, const char *key, const char *text)
{
    if (r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, status, key, "config.json: %s", text);
    }
}

/* What a field holds, for messages. */
static void
show(json_t *v, char text[SHOWN])
{
    char *all = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT
                                  | JSON_REAL_PRECISION(15));

    snprintf(text, SHOWN, "%s", all ? all : "?");
    free(all);
}

/* An integer in [min, max]; absent: `otherwise`, or an error when that is
 * negative. */
static uint32_t
read_uint(reader_t *r, json_t *object, const char *key, int64_t otherwise,
          uint32_t min, uint32_t max)
{
    json_t *v = field(object, key);
    json_int_t n = v ? json_integer_value(v) : otherwise;

    if (r->rc != TR_OK) {
        return 0;
    }
    if (v == NULL && otherwise < 0) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                             "config.json: %s is missing", key);
        return 0;
    }
    if (v == NULL) {
        return (uint32_t) otherwise;
    }
    if (!json_is_integer(v) || n < (json_int_t) min || n > (json_int_t) max) {
        char shown[SHOWN];

        show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                             "config.json: %s is %s, expected an integer "
                             "from %u to %u",
                             key, shown, min, max);
        return 0;
    }
    return (uint32_t) n;
}

/* A number in [min, max]; absent: `otherwise`, or an error when that is
 * negative. */
static double
read_number(reader_t *r, json_t *object, const char *key, double otherwise,
            double min, double max)
{
    json_t *v = field(object, key);
    double x = json_number_value(v);

    if (r->rc != TR_OK || (v == NULL && otherwise >= 0)) {
        return otherwise;
    }
    if (v == NULL) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                             "config.json: %s is missing", key);
    } else if (!json_is_number(v) || !(x >= min && x <= max)) {
        char shown[SHOWN];

        show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                             "config.json: %s is %s, expected a positive "
                             "number, from %g to %g",
                             key, shown, min, max);
    }
    return x;
}

static bool
read_bool(reader_t *r, const char *key, bool otherwise)
{
    json_t *v = field(r->root, key);

    if (v != NULL && !json_is_boolean(v) && r->rc == TR_OK) {
        char shown[SHOWN];

        show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                             "config.json: %s is %s, expected true or false",
                             key, shown);
    }
    return v == NULL ? otherwise : json_is_true(v);
}

/* ---- by the family's row -------------------------------------------------- */

static void
read_family(reader_t *r, tr_model_config_t *c)
{
    const char *type = json_string_value(field(r->root, "model_type"));
    char names[TR_FAMILY_NAMES];

    c->family = tr_family_find(type ? type : "");
    if (c->family == NULL) {
        tr_family_names(names);
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "model_type",
                             "config.json: model_type is \"%.64s\", expected "
                             "%s",
                             type ? type : "", names);
        return;
    }
    c->model_type = c->family->model_type;
}

static void
check_act(reader_t *r, const char *key, tr_act_t expected)
{
    const char *act = json_string_value(field(r->root, key));

    if (act != NULL && strcmp(act, tr_act_name(expected)) != 0
        && r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, key,
                             "config.json: %s is \"%.64s\", expected %s", key,
                             act, tr_act_name(expected));
    }
}

static void
check_false(reader_t *r, const char *key)
{
    if (read_bool(r, key, false) && r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, key,
                             "config.json: %s is true, expected false", key);
    }
}

static void
read_key(reader_t *r, const tr_config_key_t *k, tr_model_config_t *c)
{
    void *to = (uint8_t *) c + k->at;

    switch (k->kind) {
    case TR_KEY_UINT:
        *(uint32_t *) to = read_uint(r, r->root, k->name,
                                     (int64_t) k->otherwise, (uint32_t) k->min,
                                     (uint32_t) k->max);
        break;
    case TR_KEY_FLOAT:
        *(float *) to = (float) read_number(r, r->root, k->name, k->otherwise,
                                            k->min, k->max);
        break;
    case TR_KEY_BOOL:
        *(bool *) to = read_bool(r, k->name, false);
        break;
    case TR_KEY_TOKEN:
        *(int32_t *) to = (int32_t) read_uint(r, r->root, k->name, UINT32_MAX,
                                              0, INT32_MAX);
        break;
    case TR_KEY_ACT:
        check_act(r, k->name, c->family->layer.act);
        break;
    case TR_KEY_FALSE:
        check_false(r, k->name);
        break;
    case TR_KEY_ABSENT:
        if (field(r->root, k->name) != NULL) {
            fail(r, TR_ERR_UNSUPPORTED, k->name, k->reason);
        }
        break;
    }
}

/* All layers as the row has them, and what follows from the keys. */
static void
fill_layers(tr_model_config_t *c)
{
    for (uint32_t l = 0; l < c->recipe.layers; l++) {
        c->recipe.layer[l] = c->family->layer;
    }
    if (c->family->fold != NULL) {
        c->family->fold(c);
    }
}

/* ---- heads and positions -------------------------------------------------- */

/* Sizes that were left out, and whether all fit together. */
static void
complete_heads(reader_t *r, tr_recipe_t *c)
{
    c->kv_heads = c->kv_heads != 0 ? c->kv_heads : c->query_heads;
    if (c->head_dim == 0 && c->hidden % c->query_heads) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "hidden_size",
                             "config.json: hidden_size %u is no multiple of "
                             "num_attention_heads %u, and head_dim is missing",
                             c->hidden, c->query_heads);
        return;
    }
    c->head_dim = c->head_dim != 0 ? c->head_dim : c->hidden / c->query_heads;
    if (c->head_dim % 16 || c->head_dim > TR_HEAD_DIM_MAX) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "head_dim",
                             "config.json: head_dim is %u, expected a multiple "
                             "of 16 up to %u",
                             c->head_dim, TR_HEAD_DIM_MAX);
        return;
    }
    if (c->query_heads % c->kv_heads
        || c->query_heads / c->kv_heads > TR_GROUP_MAX) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "num_key_value_heads",
                             "config.json: %u query heads on %u key-value "
                             "heads, expected a "
                             "whole number of at most %u for each",
                             c->query_heads, c->kv_heads, TR_GROUP_MAX);
    }
    c->attn_scale = 1.0f / sqrtf((float) c->head_dim);
}

static void
read_window(reader_t *r, tr_model_config_t *c)
{
    tr_recipe_t *recipe = &c->recipe;
    uint32_t window = read_uint(r, r->root, "sliding_window", 0, 0, UINT32_MAX);

    if (window == 0
        || !read_bool(r, "use_sliding_window", c->family->always_slides)
        || window >= recipe->max_positions) {
        return;
    }
    /* up to the window's length, sliding attention is plain attention */
    recipe->max_positions = window;
    for (uint32_t l = 0; l < recipe->layers; l++) {
        recipe->layer[l].reach = window;
    }
}

/* ---- rope ----------------------------------------------------------------- */

static void
read_llama3(reader_t *r, json_t *rope, tr_rope_t *t)
{
    t->type = TR_ROPE_LLAMA3;
    t->factor = read_number(r, rope, "factor", -1, ROPE_MIN, ROPE_MAX);
    t->low = read_number(r, rope, "low_freq_factor", -1, ROPE_MIN, ROPE_MAX);
    t->high = read_number(r, rope, "high_freq_factor", -1, ROPE_MIN, ROPE_MAX);
    t->original = read_uint(r, rope, "original_max_position_embeddings", -1, 1,
                            TR_POSITIONS_MAX);
    if (r->rc == TR_OK && !(t->high > t->low)) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "high_freq_factor",
                             "config.json: high_freq_factor is %g, expected "
                             "more than the low_freq_factor %g",
                             t->high, t->low);
    }
}

/* rope_type and what it needs; without one nothing is scaled. */
static void
read_rope_type(reader_t *r, json_t *rope, tr_rope_t *t)
{
    json_t *name = field(rope, "rope_type"), *factor = field(rope, "factor");
    char shown[SHOWN];

    name = name ? name : field(rope, "type");
    if (name == NULL && factor != NULL && r->rc == TR_OK) {
        /* it scales, and does not say how */
        show(factor, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "rope_type",
                             "config.json: rope_type is missing beside "
                             "factor %s, expected default, linear or "
                             "llama3",
                             shown);
    }
    if (name == NULL) {
        return;
    }
    show(name, shown);
    if (strcmp(shown, "\"linear\"") == 0) {
        t->type = TR_ROPE_LINEAR;
        t->factor = read_number(r, rope, "factor", -1, ROPE_MIN, ROPE_MAX);
    } else if (strcmp(shown, "\"llama3\"") == 0) {
        read_llama3(r, rope, t);
    } else if (strcmp(shown, "\"default\"") != 0 && r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "rope_scaling",
                             "config.json: rope type %s is not supported, "
                             "expected default, linear or llama3",
                             shown);
    }
}

static void
read_rope(reader_t *r, tr_rope_t *t)
{
    json_t *rope = field(r->root, "rope_parameters");
    char shown[SHOWN];

    if (rope == NULL) {
        rope = field(r->root, "rope_scaling");
    }
    if (r->rc == TR_OK && rope != NULL && !json_is_object(rope)) {
        show(rope, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "rope_scaling",
                             "config.json: rope_scaling is %s, expected an "
                             "object or null",
                             shown);
        return;
    }
    t->theta = read_number(r, r->root, "rope_theta", 10000.0, ROPE_MIN,
                           ROPE_MAX);
    if (rope != NULL) {
        t->theta = read_number(r, rope, "rope_theta", t->theta, ROPE_MIN,
                               ROPE_MAX);
        read_rope_type(r, rope, t);
    }
}

/* ---- end tokens ----------------------------------------------------------- */

static void
add_eos(reader_t *r, tr_model_config_t *c, const char *file, json_t *v)
{
    json_int_t id = json_integer_value(v);

    if (r->rc != TR_OK) {
        return;
    }
    if (!json_is_integer(v) || id < 0 || id >= (json_int_t) c->recipe.vocab) {
        char shown[SHOWN];

        show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "eos_token_id",
                             "%s: eos_token_id holds %s, expected a token id "
                             "below %u",
                             file, shown, c->recipe.vocab);
        return;
    }
    for (uint32_t i = 0; i < c->n_eos; i++) {
        if (c->eos[i] == id) {
            return;
        }
    }
    if (c->n_eos == TR_EOS_MAX) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "eos_token_id",
                             "%s: more than %d end tokens", file, TR_EOS_MAX);
        return;
    }
    c->eos[c->n_eos++] = (int32_t) id;
}

/* One id or a list of them. */
static void
read_eos(reader_t *r, tr_model_config_t *c, const char *file, json_t *root)
{
    json_t *v = field(root, "eos_token_id");

    if (!json_is_array(v)) {
        if (v != NULL) {
            add_eos(r, c, file, v);
        }
        return;
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        add_eos(r, c, file, json_array_get(v, i));
    }
}

static tr_status_t
load_json(const char *dir, const char *name, json_t **out, tr_error_t *err)
{
    char path[1024];
    json_error_t je;

    if (snprintf(path, sizeof(path), "%s/%s", dir, name)
        >= (int) sizeof(path)) {
        return tr_error_set(err, TR_ERR_INVALID, "model",
                            "%.100s...: path longer than %zu bytes", dir,
                            sizeof(path));
    }
    if (access(path, R_OK) != 0) {
        return tr_error_set(err, errno == ENOENT ? TR_ERR_NOT_FOUND : TR_ERR_IO,
                            "model", "%.300s: cannot read: %s", path,
                            strerror(errno));
    }
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(*out)) {
        json_t *other = *out;

        *out = NULL;
        tr_error_set(err, TR_ERR_FORMAT, "", "%s: line %d: %s", name,
                     other ? 1 : je.line,
                     other ? "not a JSON object" : je.text);
        json_decref(other);
        return TR_ERR_FORMAT;
    }
    return TR_OK;
}

/* Absent is fine; its end tokens join those of config.json. */
static void
read_generation(reader_t *r, const char *dir, tr_model_config_t *c)
{
    tr_error_t ignored;
    json_t *root = NULL;
    tr_status_t rc = load_json(dir, "generation_config.json", &root, &ignored);

    if (rc == TR_ERR_NOT_FOUND) {
        return;
    }
    if (rc != TR_OK) {
        r->rc = rc;
        *r->err = ignored;
        return;
    }
    read_eos(r, c, "generation_config.json", root);
    json_decref(root);
}

static void
read_recipe(reader_t *r, tr_model_config_t *c)
{
    for (const tr_config_key_t *k = c->family->keys; k->name != NULL; k++) {
        read_key(r, k, c);
    }
    if (r->rc == TR_OK) {
        complete_heads(r, &c->recipe);
    }
    if (r->rc == TR_OK) {
        fill_layers(c);
        read_window(r, c);
        c->recipe.n_ropes = 1;
        read_rope(r, &c->recipe.rope[0]);
    }
}

tr_status_t
tr_model_config_load(const char *dir, tr_model_config_t *c, tr_error_t *err)
{
    reader_t r = { .err = err };

    *c = (tr_model_config_t){ 0 };
    r.rc = load_json(dir, "config.json", &r.root, err);
    if (r.rc != TR_OK) {
        return r.rc;
    }
    read_family(&r, c);
    if (r.rc == TR_OK) {
        read_recipe(&r, c);
    }
    read_eos(&r, c, "config.json", r.root);
    if (r.rc == TR_OK) {
        read_generation(&r, dir, c);
    }
    json_decref(r.root);
    return r.rc;
}
