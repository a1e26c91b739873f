/*
 * quantization_config: what a checkpoint's weights were quantised with.
 *
 * A row for each quant_method, with the keys that we read, and those that say
 * nothing about weights: how they were found, how activations or somebody's KV
 * cache are quantised (ours are not, or by their own rules), which modules were
 * left alone (the files say it).  A key in neither list is refused by name, as
 * everywhere in config.json.
 */
#include "model_config_internal.h"

#include <string.h>

#include "engine/config/log.h"

#define KEYS 40

typedef struct {
    const char *name; /* quant_method */
    tr_quant_method_t method;
    void (*read)(tr_config_reader_t *r, json_t *q, tr_quantization_t *out);
    const char *without_effect[KEYS]; /* up to a NULL */
} method_t;

/* A key's text must be one of these, up to a NULL, or absent; returns it. */
static const char *
one_of(tr_config_reader_t *r, json_t *q, const char *key,
       const char *const *words)
{
    json_t *v = tr_config_field(r, q, key);
    const char *text = json_string_value(v);
    char shown[TR_CONFIG_SHOWN], expected[200] = "";

    for (size_t i = 0; words[i] != NULL; i++) {
        size_t n = strlen(expected);

        if (v == NULL || (text != NULL && strcmp(text, words[i]) == 0)) {
            return text;
        }
        snprintf(expected + n, sizeof(expected) - n, "%s%s",
                 i == 0 ? "" : " or ", words[i]);
    }
    tr_config_show(v, shown);
    if (r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, key,
                             "config.json: quantization_config: %s is %s, "
                             "expected %s",
                             key, shown, expected);
    }
    return NULL;
}

#define ONE_OF(r, q, key, ...) \
    one_of(r, q, key, (const char *const[]){ __VA_ARGS__, NULL })

static void
add_scheme(tr_config_reader_t *r, tr_quantization_t *out,
           tr_quant_scheme_t scheme)
{
    if (out->n_schemes == TR_QUANT_SCHEMES) {
        tr_config_fail(r, TR_ERR_UNSUPPORTED, "config_groups",
                       "quantization_config: more than 8 ways of quantising");
        return;
    }
    out->scheme[out->n_schemes++] = scheme;
}

/* An array of two sizes. */
static void
read_block(tr_config_reader_t *r, json_t *block, const char *key,
           tr_quant_scheme_t *scheme)
{
    json_int_t rows = json_integer_value(json_array_get(block, 0));
    json_int_t columns = json_integer_value(json_array_get(block, 1));

    if (json_array_size(block) != 2 || rows < 1 || columns < 1
        || rows > INT32_MAX || columns > INT32_MAX) {
        char shown[TR_CONFIG_SHOWN];

        tr_config_show(block, shown);
        if (r->rc == TR_OK) {
            r->rc = tr_error_set(r->err, TR_ERR_FORMAT, key,
                                 "config.json: quantization_config: %s is %s, "
                                 "expected two sizes, as [128, 128]",
                                 key, shown);
        }
        return;
    }
    scheme->rows = (uint32_t) rows;
    scheme->columns = (uint32_t) columns;
}

/* group_size: columns that share a scale; -1: all. */
static uint32_t
read_group(tr_config_reader_t *r, json_t *q, bool must)
{
    json_t *v = tr_config_field(r, q, "group_size");

    if (json_is_integer(v) && json_integer_value(v) == -1) {
        return 0;
    }
    return tr_config_uint(r, q, "group_size", must ? -1 : 0, 1, INT32_MAX);
}

static uint32_t
read_bits(tr_config_reader_t *r, json_t *q, const char *key, bool four)
{
    uint32_t bits = tr_config_uint(r, q, key, -1, 1, 64);

    if (r->rc == TR_OK && bits != 8 && !(four && bits == 4)) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, key,
                             "config.json: quantization_config: %s is %u, "
                             "expected %s",
                             key, bits, four ? "4 or 8" : "8");
    }
    return bits;
}

/* ---- methods -------------------------------------------------------------- */

static void
read_fp8(tr_config_reader_t *r, json_t *q, tr_quantization_t *out)
{
    tr_quant_scheme_t s = { .is_float = true, .symmetric = true, .bits = 8 };
    json_t *block = tr_config_field(r, q, "weight_block_size");

    ONE_OF(r, q, "fmt", "e4m3", "float8_e4m3fn");
    out->fp8_activations = true;
    if (block != NULL) {
        read_block(r, block, "weight_block_size", &s);
        add_scheme(r, out, s);
        return;
    }
    add_scheme(r, out, s);
    s.rows = 1; /* a scale a row */
    add_scheme(r, out, s);
}

static void
read_modelopt(tr_config_reader_t *r, json_t *q, tr_quantization_t *out)
{
    ONE_OF(r, q, "quant_algo", "FP8");
    out->fp8_activations = true;
    add_scheme(r, out,
               (tr_quant_scheme_t){
                   .is_float = true, .symmetric = true, .bits = 8 });
}

/* Is column / group_size not the group of a column?  "weight" and "static" order
 * columns only while they are quantised. */
static bool
read_actorder(tr_config_reader_t *r, json_t *w)
{
    json_t *v = tr_config_field(r, w, "actorder");
    const char *order;

    if (v == NULL || json_is_boolean(v)) {
        return json_is_true(v);
    }
    order = ONE_OF(r, w, "actorder", "group", "dynamic", "weight", "static");
    return order != NULL
           && (strcmp(order, "group") == 0 || strcmp(order, "dynamic") == 0);
}

/* One of config_groups. */
static void
read_weights(tr_config_reader_t *r, json_t *w, tr_quantization_t *out)
{
    static const char *const without_effect[] = {
        "dynamic",  "observer", "observer_kwargs", "scale_dtype",
        "zp_dtype", "is_mx",    "clip_ratio",
    };
    tr_quant_scheme_t s = { 0 };
    const char *type, *strategy;
    json_t *block;

    tr_config_watch(r, "config_groups.weights", w);
    for (size_t i = 0; i < sizeof(without_effect) / sizeof(char *); i++) {
        tr_config_field(r, w, without_effect[i]);
    }
    type = ONE_OF(r, w, "type", "int", "float");
    s.is_float = type != NULL && strcmp(type, "float") == 0;
    s.bits = read_bits(r, w, "num_bits", !s.is_float);
    s.symmetric = tr_config_bool(r, w, "symmetric", true);
    strategy = ONE_OF(r, w, "strategy", "tensor", "channel", "group", "block");
    s.reordered = read_actorder(r, w);
    block = tr_config_field(r, w, "block_structure");
    s.columns = read_group(r, w, strategy && strcmp(strategy, "group") == 0);
    s.rows = strategy == NULL || strcmp(strategy, "tensor") == 0 ? 0 : 1;
    if (strategy != NULL && strcmp(strategy, "block") == 0) {
        read_block(r, block, "block_structure", &s);
    }
    add_scheme(r, out, s);
}

/* Are a group's activations FP8? */
static bool
group_in_fp8(json_t *group)
{
    json_t *x = json_object_get(group, "input_activations");
    const char *type = json_string_value(json_object_get(x, "type"));

    return type != NULL && strcmp(type, "float") == 0
           && json_integer_value(json_object_get(x, "num_bits")) == 8;
}

static void
read_compressed(tr_config_reader_t *r, json_t *q, tr_quantization_t *out)
{
    json_t *groups = tr_config_field(r, q, "config_groups"), *group;
    json_t *sparsity = tr_config_field(r, q, "sparsity_config");
    const char *name;

    ONE_OF(r, q, "format", "pack-quantized", "float-quantized",
           "naive-quantized", "int-quantized", "mixed-precision");
    if (json_object_size(sparsity) != 0) {
        ONE_OF(r, sparsity, "format", "dense");
    }
    if (json_object_size(groups) == 0) {
        tr_config_fail(r, TR_ERR_FORMAT, "config_groups",
                       "quantization_config: config_groups is missing");
    }
    out->fp8_activations = true;
    json_object_foreach (groups, name, group) {
        json_t *w = json_object_get(group, "weights");

        if (json_is_object(w) && r->rc == TR_OK) {
            read_weights(r, w, out);
            out->fp8_activations = out->fp8_activations && group_in_fp8(group);
        }
    }
}

static void
read_awq(tr_config_reader_t *r, json_t *q, tr_quantization_t *out)
{
    tr_quant_scheme_t s = { .rows = 1 };

    ONE_OF(r, q, "version", "gemm", "GEMM");
    s.bits = read_bits(r, q, "bits", true);
    s.columns = read_group(r, q, true);
    if (r->rc == TR_OK && s.bits != 4) {
        tr_config_fail(r, TR_ERR_UNSUPPORTED, "bits",
                       "quantization_config: bits is 8, expected 4 in awq");
    }
    if (!tr_config_bool(r, q, "zero_point", true)) {
        tr_config_fail(r, TR_ERR_UNSUPPORTED, "zero_point",
                       "quantization_config: zero_point is false, expected "
                       "true in awq");
    }
    add_scheme(r, out, s);
}

static void
read_gptq(tr_config_reader_t *r, json_t *q, tr_quantization_t *out)
{
    tr_quant_scheme_t s = { .rows = 1 };
    const char *form = ONE_OF(r, q, "checkpoint_format", "gptq", "gptq_v2");

    ONE_OF(r, q, "pack_dtype", "int32");
    s.bits = read_bits(r, q, "bits", true);
    s.columns = read_group(r, q, true);
    /* static groups are those of the columns in order */
    s.reordered = tr_config_bool(r, q, "desc_act", false)
                  && !tr_config_bool(r, q, "static_groups", false);
    out->zero_less = form == NULL || strcmp(form, "gptq") == 0 ? 1 : 0;
    add_scheme(r, out, s);
}

static void
read_mxfp4(tr_config_reader_t *r, json_t *q, tr_quantization_t *out)
{
    (void) q;
    add_scheme(r, out,
               (tr_quant_scheme_t){ .is_float = true,
                                    .symmetric = true,
                                    .bits = 4,
                                    .rows = 1,
                                    .columns = 32 });
}

/* clang-format off */
static const method_t methods[] = {
    { "fp8", TR_QUANT_FP8, read_fp8,
      { "activation_scheme", "scale_fmt", "ignored_layers",
        "modules_to_not_convert", "kv_cache_scheme", "dequantize" } },
    { "modelopt", TR_QUANT_MODELOPT, read_modelopt,
      { "config_groups", "ignore", "exclude_modules", "kv_cache_quant_algo",
        "kv_cache_scheme", "producer" } },
    { "compressed-tensors", TR_QUANT_COMPRESSED, read_compressed,
      { "ignore", "kv_cache_scheme", "quantization_status",
        "global_compression_ratio", "version" } },
    { "awq", TR_QUANT_AWQ, read_awq,
      { "modules_to_not_convert", "backend", "exllama_config", "do_fuse",
        "fuse_max_seq_len", "modules_to_fuse" } },
    { "gptq", TR_QUANT_GPTQ, read_gptq,
      { "sym", "true_sequential",
        "damp_percent", "damp_auto_increment", "lm_head", "meta",
        "model_name_or_path", "model_file_base_name", "tokenizer", "dataset",
        "block_name_to_quantize", "cache_block_outputs", "exllama_config",
        "max_input_length", "model_seqlen", "batch_size",
        "module_name_preceding_first_block", "modules_in_block_to_quantize",
        "pad_token_id", "use_cuda_fp16", "use_exllama", "disable_exllama",
        "mse", "format", "quant_type", "backend", "act_group_aware",
        "offload_to_disk", "hessian_chunk_size" } },
    { "mxfp4", TR_QUANT_MXFP4, read_mxfp4, { "modules_to_not_convert" } },
};
/* clang-format on */

static const method_t *
find_method(tr_config_reader_t *r, const char *name)
{
    char names[200] = "";

    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        size_t n = strlen(names);

        if (name != NULL && strcmp(methods[i].name, name) == 0) {
            return &methods[i];
        }
        snprintf(names + n, sizeof(names) - n, "%s%s", i == 0 ? "" : ", ",
                 methods[i].name);
    }
    if (r->rc == TR_OK) {
        r->rc = tr_error_set(r->err, TR_ERR_UNSUPPORTED, "quantization_config",
                             "config.json: quantization_config: quant_method "
                             "is \"%.64s\", expected one of %s",
                             name ? name : "", names);
    }
    return NULL;
}

static void
read_method(tr_config_reader_t *r, json_t *q, const char *name,
            tr_quantization_t *out)
{
    const method_t *m = find_method(r, name);

    if (m == NULL) {
        return;
    }
    tr_config_watch(r, "quantization_config", q);
    tr_config_field(r, q, "quant_method");
    for (size_t i = 0; m->without_effect[i] != NULL; i++) {
        tr_config_field(r, q, m->without_effect[i]);
    }
    out->method = m->method;
    m->read(r, q, out);
}

/* modelopt's own file, which older checkpoints have instead. */
static void
read_modelopt_file(tr_config_reader_t *r, const char *dir,
                   tr_quantization_t *out)
{
    json_t *file, *q;
    tr_error_t err;
    tr_status_t rc = tr_config_load_json(dir, "hf_quant_config.json", &file,
                                         &err);

    if (rc == TR_ERR_NOT_FOUND) {
        return;
    }
    if (rc != TR_OK) {
        *r->err = err;
        r->rc = rc;
        return;
    }
    q = json_object_get(file, "quantization");
    if (tr_config_field(r, q, "quant_algo") != NULL) {
        out->method = TR_QUANT_MODELOPT;
        read_modelopt(r, q, out);
    }
    json_decref(file);
}

void
tr_config_quantization(tr_config_reader_t *r, const char *dir,
                       tr_model_config_t *c)
{
    json_t *q = tr_config_field(r, r->root, "quantization_config");

    if (q == NULL && r->outer != NULL) {
        q = tr_config_field(r, r->outer, "quantization_config");
    }
    if (r->rc != TR_OK) {
        return;
    }
    if (q == NULL) {
        read_modelopt_file(r, dir, &c->quantization);
    } else if (!json_is_object(q)) {
        tr_config_fail(r, TR_ERR_FORMAT, "quantization_config",
                       "quantization_config is no object");
    } else {
        read_method(r, q, json_string_value(json_object_get(q, "quant_method")),
                    &c->quantization);
    }
}
