/*
 * model_config.h: reading, checking and the rotary frequencies.
 *
 * Spellings.  transformers 4 writes rope_theta and rope_scaling { rope_type or
 * type, factor, ... }; transformers 5 writes rope_parameters with both inside.
 * null counts as absent everywhere.
 */
#include "model_config.h"

#include <errno.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"

#include "engine/config/log.h"

/* Several times what the largest models have, and small enough that no product
 * of sizes overflows, nor is a row of the workspace gigabytes.  Positions: as
 * many as max_model_len may say. */
#define VOCAB_MAX (1u << 22)
#define HIDDEN_MAX (1u << 18)
#define INTERMEDIATE_MAX (1u << 20)
#define LAYERS_MAX 1024u
#define HEADS_MAX 1024u
#define POSITIONS_MAX (1u << 24)

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

static void
read_family(reader_t *r, tr_model_config_t *c)
{
    static const char *const families[] = { "llama", "mistral", "qwen2",
                                            "qwen3" };
    const char *type = json_string_value(field(r->root, "model_type"));
    const char *act = json_string_value(field(r->root, "hidden_act"));

    for (size_t i = 0; type && i < sizeof(families) / sizeof(families[0]);
         i++) {
        if (strcmp(type, families[i]) == 0) {
            snprintf(c->model_type, sizeof(c->model_type), "%s", type);
        }
    }
    if (c->model_type[0] == '\0') {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "model_type",
                             "config.json: model_type is \"%.64s\", expected "
                             "llama, mistral, "
                             "qwen2 or qwen3",
                             type ? type : "");
        return;
    }
    if (act != NULL && strcmp(act, "silu") != 0) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "hidden_act",
                             "config.json: hidden_act is \"%.64s\", expected "
                             "silu",
                             act);
    }
    if (json_object_get(r->root, "quantization_config") != NULL
        && field(r->root, "quantization_config") != NULL) {
        fail(r, TR_ERR_UNSUPPORTED, "quantization_config",
             "quantization_config is set, expected unquantised weights "
             "(F32, F16 or BF16)");
    }
    if (read_bool(r, "mlp_bias", false)) {
        fail(r, TR_ERR_UNSUPPORTED, "mlp_bias",
             "mlp_bias is true, expected false");
    }
    /* Llama's switch covers the output projection, Qwen2 has always had a bias
     * on query, key and value alone */
    c->o_bias = read_bool(r, "attention_bias", false);
    c->qkv_bias = c->o_bias || strcmp(c->model_type, "qwen2") == 0;
    if (strcmp(c->model_type, "qwen2") == 0) {
        c->o_bias = false;
    }
    c->qk_norm = strcmp(c->model_type, "qwen3") == 0;
}

static void
read_shape(reader_t *r, tr_model_config_t *c)
{
    uint32_t derived;

    c->vocab = read_uint(r, r->root, "vocab_size", -1, 2, VOCAB_MAX);
    c->hidden = read_uint(r, r->root, "hidden_size", -1, 1, HIDDEN_MAX);
    c->intermediate = read_uint(r, r->root, "intermediate_size", -1, 1,
                                INTERMEDIATE_MAX);
    c->layers = read_uint(r, r->root, "num_hidden_layers", -1, 1, LAYERS_MAX);
    c->query_heads = read_uint(r, r->root, "num_attention_heads", -1, 1,
                               HEADS_MAX);
    c->kv_heads = read_uint(r, r->root, "num_key_value_heads", c->query_heads,
                            1, HEADS_MAX);
    derived = c->query_heads ? c->hidden / c->query_heads : 0;
    c->head_dim = read_uint(r, r->root, "head_dim", derived, 1, 65536);
    c->norm_eps = (float) read_number(r, r->root, "rms_norm_eps", 1e-6, FLT_MIN,
                                      1);
    c->init_range = (float) read_number(r, r->root, "initializer_range", 0.02,
                                        FLT_MIN, 1e3);
    if (r->rc != TR_OK) {
        return;
    }
    if (field(r->root, "head_dim") == NULL && c->hidden % c->query_heads) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "hidden_size",
                             "config.json: hidden_size %u is no multiple of "
                             "num_attention_heads %u, and head_dim is missing",
                             c->hidden, c->query_heads);
        return;
    }
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
}

static void
read_positions(reader_t *r, tr_model_config_t *c)
{
    uint32_t window;

    c->max_positions = read_uint(r, r->root, "max_position_embeddings", 2048, 1,
                                 POSITIONS_MAX);
    window = read_uint(r, r->root, "sliding_window", 0, 0, UINT32_MAX);
    /* Qwen carries a window and a switch that is off; Mistral has no switch */
    if (window == 0
        || !read_bool(r, "use_sliding_window",
                      strcmp(c->model_type, "mistral") == 0)) {
        return;
    }
    /* up to the window's length, sliding attention is plain attention */
    if (window < c->max_positions) {
        c->sliding_window = window;
        c->max_positions = window;
    }
}

static void
read_llama3(reader_t *r, json_t *rope, tr_model_config_t *c)
{
    c->rope = TR_ROPE_LLAMA3;
    c->rope_factor = read_number(r, rope, "factor", -1, ROPE_MIN, ROPE_MAX);
    c->rope_low = read_number(r, rope, "low_freq_factor", -1, ROPE_MIN,
                              ROPE_MAX);
    c->rope_high = read_number(r, rope, "high_freq_factor", -1, ROPE_MIN,
                               ROPE_MAX);
    c->rope_original = read_uint(r, rope, "original_max_position_embeddings",
                                 -1, 1, POSITIONS_MAX);
    if (r->rc == TR_OK && !(c->rope_high > c->rope_low)) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "high_freq_factor",
                             "config.json: high_freq_factor is %g, expected "
                             "more than the low_freq_factor %g",
                             c->rope_high, c->rope_low);
    }
}

static void
read_rope(reader_t *r, tr_model_config_t *c)
{
    json_t *rope = field(r->root, "rope_parameters"), *name;
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
    c->rope_theta = read_number(r, r->root, "rope_theta", 10000.0, ROPE_MIN,
                                ROPE_MAX);
    if (rope == NULL) {
        return;
    }
    c->rope_theta = read_number(r, rope, "rope_theta", c->rope_theta, ROPE_MIN,
                                ROPE_MAX);
    name = field(rope, "rope_type");
    name = name ? name : field(rope, "type");
    if (name == NULL) {
        /* it scales, and does not say how */
        if (r->rc == TR_OK && field(rope, "factor") != NULL) {
            show(field(rope, "factor"), shown);
            r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "rope_type",
                                 "config.json: rope_type is missing beside "
                                 "factor %s, expected default, linear or "
                                 "llama3",
                                 shown);
        }
        return;
    }
    show(name, shown);
    if (strcmp(shown, "\"default\"") == 0) {
        return;
    }
    if (strcmp(shown, "\"linear\"") == 0) {
        c->rope = TR_ROPE_LINEAR;
        c->rope_factor = read_number(r, rope, "factor", -1, ROPE_MIN, ROPE_MAX);
    } else if (strcmp(shown, "\"llama3\"") == 0) {
        read_llama3(r, rope, c);
    } else if (r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "rope_scaling",
                             "config.json: rope type %s is not supported, "
                             "expected default, linear or llama3",
                             shown);
    }
}

static void
add_eos(reader_t *r, tr_model_config_t *c, const char *file, json_t *v)
{
    json_int_t id = json_integer_value(v);

    if (r->rc != TR_OK) {
        return;
    }
    if (!json_is_integer(v) || id < 0 || id >= (json_int_t) c->vocab) {
        char shown[SHOWN];

        show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "eos_token_id",
                             "%s: eos_token_id holds %s, expected a token id "
                             "below %u",
                             file, shown, c->vocab);
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
    read_shape(&r, c);
    read_positions(&r, c);
    read_rope(&r, c);
    c->tied = read_bool(&r, "tie_word_embeddings", false);
    c->bos = (int32_t) read_uint(&r, r.root, "bos_token_id", UINT32_MAX, 0,
                                 INT32_MAX);
    read_eos(&r, c, "config.json", r.root);
    if (r.rc == TR_OK) {
        read_generation(&r, dir, c);
    }
    json_decref(r.root);
    return r.rc;
}

/* Llama 3.1: long wavelengths are stretched by `factor`, short ones kept,
 * those between are blended. */
static double
llama3_frequency(const tr_model_config_t *c, double f)
{
    double wavelength = 2 * M_PI / f;
    double smooth;

    if (wavelength < c->rope_original / c->rope_high) {
        return f;
    }
    if (wavelength > c->rope_original / c->rope_low) {
        return f / c->rope_factor;
    }
    smooth = (c->rope_original / wavelength - c->rope_low)
             / (c->rope_high - c->rope_low);
    return (1 - smooth) * f / c->rope_factor + smooth * f;
}

void
tr_model_config_rope(const tr_model_config_t *c, float *inv_freq)
{
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        double f = pow(c->rope_theta, -2.0 * i / c->head_dim);

        if (c->rope == TR_ROPE_LINEAR) {
            f /= c->rope_factor;
        } else if (c->rope == TR_ROPE_LLAMA3) {
            f = llama3_frequency(c, f);
        }
        inv_freq[i] = (float) f;
    }
}

uint32_t
tr_model_config_len(const tr_model_config_t *c, uint32_t asked,
                    uint64_t kv_memory)
{
    uint64_t token = (uint64_t) c->layers * c->kv_heads * c->head_dim * 4;
    uint32_t len = asked != 0 ? asked : c->max_positions;

    return kv_memory == 0 || kv_memory / token >= len
               ? len
               : (uint32_t) (kv_memory / token) + 1;
}

uint64_t
tr_model_config_parameters(const tr_model_config_t *c)
{
    uint64_t h = c->hidden, q = (uint64_t) c->query_heads * c->head_dim;
    uint64_t kv = (uint64_t) c->kv_heads * c->head_dim;
    uint64_t layer = h * (q + 2 * kv) + q * h + 3 * h * c->intermediate + 2 * h;

    layer += c->qkv_bias ? q + 2 * kv : 0;
    layer += c->o_bias ? h : 0;
    layer += c->qk_norm ? 2 * c->head_dim : 0;
    return c->layers * layer + h + (c->tied ? 1 : 2) * h * c->vocab;
}
