/*
 * model_config.h: reading and checking.
 *
 * What keys there are, and where each goes, stands in the family's table
 * (model_families.c); here is what a row cannot say.
 *
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

#include "model_config_internal.h"

void
tr_config_fail(tr_config_reader_t *r, tr_status_t status, const char *key,
               const char *text)
{
    if (r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, status, key, "config.json: %s", text);
    }
}

/* What a field holds, for messages. */
void
tr_config_show(json_t *v, char text[TR_CONFIG_SHOWN])
{
    char *all = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT
                                  | JSON_REAL_PRECISION(15));

    snprintf(text, TR_CONFIG_SHOWN, "%s", all ? all : "?");
    free(all);
}

/* An integer in [min, max]; absent: `otherwise`, or an error when that is
 * negative. */
uint32_t
tr_config_uint(tr_config_reader_t *r, json_t *object, const char *key,
               int64_t otherwise, uint32_t min, uint32_t max)
{
    json_t *v = tr_config_field(r, object, key);
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
        char shown[TR_CONFIG_SHOWN];

        tr_config_show(v, shown);
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
double
tr_config_number(tr_config_reader_t *r, json_t *object, const char *key,
                 double otherwise, double min, double max)
{
    json_t *v = tr_config_field(r, object, key);
    double x = json_number_value(v);

    if (r->rc != TR_OK || (v == NULL && otherwise >= 0)) {
        return otherwise;
    }
    if (v == NULL) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                             "config.json: %s is missing", key);
    } else if (!json_is_number(v) || !(x >= min && x <= max)) {
        char shown[TR_CONFIG_SHOWN];

        tr_config_show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                             "config.json: %s is %s, expected a positive "
                             "number, from %g to %g",
                             key, shown, min, max);
    }
    return x;
}

bool
tr_config_bool(tr_config_reader_t *r, json_t *object, const char *key,
               bool otherwise)
{
    json_t *v = tr_config_field(r, object, key);

    if (v != NULL && !json_is_boolean(v) && r->rc == TR_OK) {
        char shown[TR_CONFIG_SHOWN];

        tr_config_show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                             "config.json: %s is %s, expected true or false",
                             key, shown);
    }
    return v == NULL ? otherwise : json_is_true(v);
}

/* ---- by the family's row -------------------------------------------------- */

/* A model for text and more keeps what we run in text_config, with a model_type
 * of its own; its end tokens may stand beside it. */
static void
enter_text_config(tr_config_reader_t *r)
{
    json_t *text = json_object_get(r->root, "text_config");

    tr_config_watch(r, "", r->root);
    if (json_is_object(text)) {
        r->outer = r->root;
        r->root = text;
        tr_config_watch(r, "text_config", text);
    }
}

static void
read_family(tr_config_reader_t *r, tr_model_config_t *c)
{
    const char *type = json_string_value(
        tr_config_field(r, r->root, "model_type"));
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
check_act(tr_config_reader_t *r, const char *key, tr_act_t expected)
{
    const char *act = json_string_value(tr_config_field(r, r->root, key));

    if (act != NULL && strcmp(act, tr_act_name(expected)) != 0
        && r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, key,
                             "config.json: %s is \"%.64s\", expected %s", key,
                             act, tr_act_name(expected));
    }
}

static void
check_false(tr_config_reader_t *r, const char *key)
{
    if (tr_config_bool(r, r->root, key, false) && r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, key,
                             "config.json: %s is true, expected false", key);
    }
}

static void
check_only(tr_config_reader_t *r, const tr_config_key_t *k)
{
    json_t *v = tr_config_field(r, r->root, k->name);
    char shown[TR_CONFIG_SHOWN], text[TR_CONFIG_SHOWN];
    json_t *number = v && json_is_number(v) ? json_real(json_number_value(v))
                                            : json_incref(v);

    tr_config_show(number, text); /* 7 is 7.0 */
    json_decref(number);
    if (v != NULL && strcmp(text, k->reason) != 0 && r->rc == TR_OK) {
        tr_config_show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, k->name,
                             "config.json: %s is %s, expected %s", k->name,
                             shown, k->reason);
    }
}

static void
read_key(tr_config_reader_t *r, const tr_config_key_t *k, tr_model_config_t *c)
{
    void *to = (uint8_t *) c + k->at;

    switch (k->kind) {
    case TR_KEY_UINT:
        *(uint32_t *) to = tr_config_uint(r, r->root, k->name,
                                          (int64_t) k->otherwise,
                                          (uint32_t) k->min, (uint32_t) k->max);
        break;
    case TR_KEY_FLOAT:
        *(float *) to = (float) tr_config_number(r, r->root, k->name,
                                                 k->otherwise, k->min, k->max);
        break;
    case TR_KEY_BOOL:
        *(bool *) to = tr_config_bool(r, r->root, k->name, k->otherwise != 0);
        break;
    case TR_KEY_TOKEN:
        *(int32_t *) to = (int32_t) tr_config_uint(r, r->root, k->name,
                                                   UINT32_MAX, 0, INT32_MAX);
        break;
    case TR_KEY_ACT:
        check_act(r, k->name, c->family->layer.act);
        break;
    case TR_KEY_FALSE:
        check_false(r, k->name);
        break;
    case TR_KEY_ABSENT:
        if (tr_config_field(r, r->root, k->name) != NULL) {
            tr_config_fail(r, TR_ERR_UNSUPPORTED, k->name, k->reason);
        }
        break;
    case TR_KEY_ONLY:
        check_only(r, k);
        break;
    }
}

/* All layers as the row has them, and what follows from the keys. */
static void
fill_layers(tr_config_reader_t *r, tr_model_config_t *c)
{
    for (uint32_t l = 0; l < c->recipe.layers; l++) {
        c->recipe.layer[l] = c->family->layer;
    }
    if (c->family->fold != NULL) {
        c->family->fold(r, c);
    }
}

/* ---- heads and positions -------------------------------------------------- */

/* Sizes that were left out, and whether all fit together. */
static void
complete_heads(tr_config_reader_t *r, tr_recipe_t *c)
{
    c->kv_heads = c->kv_heads != 0 ? c->kv_heads : c->query_heads;
    if (c->head_dim == 0 && c->hidden % c->query_heads) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "hidden_size",
                             "config.json: hidden_size %u is not a multiple of "
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
    if (c->attn_scale == 0) {
        c->attn_scale = 1.0f / sqrtf((float) c->head_dim);
    }
}

/* Does layer l slide?  By layer_types, else by the family's rule. */
static bool
layer_slides(tr_config_reader_t *r, const tr_model_config_t *c, uint32_t l,
             uint32_t from, uint32_t pattern)
{
    json_t *types = tr_config_field(r, r->root, "layer_types");
    json_t *type = json_array_get(types, l);
    const char *text = json_string_value(type);
    char shown[TR_CONFIG_SHOWN];

    if (types == NULL) {
        return pattern != 0 ? (l + 1) % pattern != 0 : l >= from;
    }
    if (text != NULL && json_array_size(types) == c->recipe.layers
        && strcmp(text, "sliding_attention") == 0) {
        return true;
    }
    /* Granite 4 writes it so */
    if (text != NULL && strcmp(text, "attention") == 0) {
        text = "full_attention";
    }
    if (text == NULL || json_array_size(types) != c->recipe.layers
        || strcmp(text, "full_attention") != 0) {
        tr_config_show(type ? type : types, shown);
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "layer_types",
                             "config.json: layer_types holds %s for layer %u, "
                             "expected full_attention or sliding_attention for "
                             "each of %u layers",
                             shown, l, c->recipe.layers);
    }
    return false;
}

/* Which layers see only the last sliding_window positions. */
static void
read_window(tr_config_reader_t *r, tr_model_config_t *c)
{
    tr_recipe_t *recipe = &c->recipe;
    uint32_t window = tr_config_uint(r, r->root, "sliding_window", 0, 0,
                                     UINT32_MAX);
    uint32_t from = tr_config_uint(r, r->root, "max_window_layers", 0, 0,
                                   UINT32_MAX);
    bool on = tr_config_bool(r, r->root, "use_sliding_window",
                             c->family->always_slides);
    uint32_t pattern = c->family->slide_pattern;

    if (pattern != 0) {
        pattern = tr_config_uint(r, r->root, "sliding_window_pattern", pattern,
                                 1, TR_LAYERS_MAX);
    }
    for (uint32_t l = 0; l < recipe->layers && r->rc == TR_OK; l++) {
        if (layer_slides(r, c, l, from, pattern) && on && window != 0) {
            recipe->layer[l].reach = window;
            recipe->layer[l].rope = c->family->local_rope ? 1 : 0;
        }
    }
}

/* A reach as long as a sequence is none. */
static void
drop_long_reach(tr_recipe_t *r)
{
    for (uint32_t l = 0; l < r->layers; l++) {
        if (r->layer[l].reach >= r->max_positions) {
            r->layer[l].reach = 0;
        }
    }
}

/* ---- files -------------------------------------------------------------- */

/* Python writes NaN and Infinity, which JSON has not: they become null, which
 * says as little.  out has room for 4 bytes for each of text's, and one. */
static void
drop_wild_numbers(const char *text, char *out)
{
    static const char *const wild[] = { "-Infinity", "Infinity", "NaN" };
    bool string = false;
    size_t i;

    while (*text != '\0') {
        for (i = 0; !string && i < 3; i++) {
            if (strncmp(text, wild[i], strlen(wild[i])) == 0) {
                break;
            }
        }
        if (!string && i < 3) {
            out = stpcpy(out, "null");
            text += strlen(wild[i]);
            continue;
        }
        if (string && text[0] == '\\' && text[1] != '\0') {
            *out++ = *text++;
        } else if (text[0] == '"') {
            string = !string;
        }
        *out++ = *text++;
    }
    *out = '\0';
}

static json_t *
load_file(const char *path, json_error_t *je)
{
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, je);
    FILE *file = root == NULL ? fopen(path, "r") : NULL;
    char *text = NULL, *plain;
    size_t size = 0;

    if (file == NULL) {
        return root;
    }
    if (getdelim(&text, &size, '\0', file) > 0) {
        plain = malloc(4 * strlen(text) + 1);
        if (plain != NULL) {
            drop_wild_numbers(text, plain);
            root = strcmp(text, plain) == 0
                       ? NULL /* the error is what it was */
                       : json_loads(plain, JSON_REJECT_DUPLICATES, je);
        }
        free(plain);
    }
    free(text);
    fclose(file);
    return root;
}

tr_status_t
tr_config_load_json(const char *dir, const char *name, json_t **out,
                    tr_error_t *err)
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
    *out = load_file(path, &je);
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

/* Can that many experts be chosen. */
static void
check_experts(tr_config_reader_t *r, const tr_moe_t *moe)
{
    const tr_route_t *t = &moe->route;

    if (r->rc != TR_OK || t->experts == 0) {
        return;
    }
    if (t->experts % t->groups != 0 || t->top_groups > t->groups) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "n_group",
                             "config.json: %u of %u groups of %u experts, "
                             "expected groups of equal size",
                             t->top_groups, t->groups, t->experts);
    } else if (t->top_k > t->experts / t->groups * t->top_groups) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "num_experts_per_tok",
                             "config.json: num_experts_per_tok is %u, expected "
                             "at most %u, the experts to choose from",
                             t->top_k, t->experts / t->groups * t->top_groups);
    }
}

static void
read_recipe(tr_config_reader_t *r, tr_model_config_t *c)
{
    c->recipe.embed_scale = 1;
    c->recipe.residual_scale = 1;
    c->recipe.logit_scale = 1;
    c->recipe.norm_plus_one = c->family->norm_plus_one;
    for (const tr_config_key_t *k = c->family->keys; k->name != NULL; k++) {
        read_key(r, k, c);
    }
    if (r->rc == TR_OK) {
        complete_heads(r, &c->recipe);
    }
    if (r->rc == TR_OK) {
        fill_layers(r, c);
        read_window(r, c);
        tr_config_ropes(r, c);
        drop_long_reach(&c->recipe);
        check_experts(r, &c->recipe.moe);
    }
}

/* What may stand beside a text_config as well as in it. */
static void
read_outer(tr_config_reader_t *r, tr_model_config_t *c)
{
    if (tr_config_field(r, r->root, "tie_word_embeddings") == NULL) {
        c->recipe.tied = tr_config_bool(r, r->outer, "tie_word_embeddings",
                                        c->recipe.tied);
    }
    tr_config_eos(r, c, "config.json", r->outer);
}

tr_status_t
tr_model_config_load(const char *dir, const char *ignore, tr_model_config_t *c,
                     tr_error_t *err)
{
    tr_config_reader_t r = { .err = err, .ignore = ignore };
    json_t *file;

    *c = (tr_model_config_t){ 0 };
    tr_generation_init(&c->generation);
    r.rc = tr_config_load_json(dir, "config.json", &r.root, err);
    if (r.rc != TR_OK) {
        return r.rc;
    }
    file = r.root;
    enter_text_config(&r);
    read_family(&r, c);
    if (r.rc == TR_OK) {
        read_recipe(&r, c);
    }
    if (r.rc == TR_OK && r.outer != NULL) {
        read_outer(&r, c);
    }
    tr_config_eos(&r, c, "config.json", r.root);
    tr_config_quantization(&r, dir, c);
    tr_config_check_unread(&r);
    tr_config_unwatch(&r);
    if (r.rc == TR_OK) {
        tr_config_generation(&r, dir, c);
    }
    json_decref(file);
    return r.rc;
}
