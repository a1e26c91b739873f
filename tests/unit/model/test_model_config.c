/*
 * config.json and generation_config.json: what published models write, in both
 * spellings, and a table of configurations that must be refused, with the words
 * of the error.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model/model_config.h"

static char dir[64];

static int
make_dir(void **state)
{
    (void) state;
    snprintf(dir, sizeof(dir), "/tmp/tr-config-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static void
write_file(const char *name, const char *text)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (text == NULL) {
        unlink(path);
        return;
    }
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

static int
remove_dir(void **state)
{
    (void) state;
    write_file("config.json", NULL);
    write_file("generation_config.json", NULL);
    return rmdir(dir);
}

static tr_model_config_t
load(const char *config, const char *generation)
{
    tr_model_config_t c;
    tr_error_t err = { 0 };

    write_file("config.json", config);
    write_file("generation_config.json", generation);
    if (tr_model_config_load(dir, NULL, &c, &err) != TR_OK) {
        fail_msg("%s: %s", config, err.text);
    }
    return c;
}

#define SHAPE                                                            \
    "\"vocab_size\":1000,\"hidden_size\":256,\"intermediate_size\":512," \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4"
#define LLAMA(more) "{\"model_type\":\"llama\"," SHAPE more "}"
#define GLM(more)                                                              \
    "{\"model_type\":\"glm4_moe\"," SHAPE ",\"moe_intermediate_size\":32" more \
    "}"
#define GRANITE(experts, more)                                              \
    "{\"model_type\":\"granitemoehybrid\"," SHAPE                           \
    ",\"shared_intermediate_size\":640,\"num_local_experts\":" experts more \
    "}"
#define ATTEND ",\"layer_types\":[\"attention\",\"full_attention\"]"

/* All layers are alike. */
static void
check_layers(const tr_model_config_t *c, uint32_t biases, tr_qk_norm_t qk_norm,
             uint32_t reach)
{
    for (uint32_t l = 0; l < c->recipe.layers; l++) {
        const tr_layer_recipe_t *r = &c->recipe.layer[l];

        assert_int_equal(r->norms, TR_NORM_PRE_ATTN | TR_NORM_PRE_MLP);
        assert_int_equal(r->biases, biases);
        assert_int_equal(r->qk_norm, qk_norm);
        assert_int_equal(r->act, TR_ACT_SILU);
        assert_int_equal(r->rope, 0);
        assert_int_equal(r->reach, reach);
    }
}

static void
test_llama(void **state)
{
    tr_model_config_t c = load(LLAMA(""), NULL);

    (void) state;
    assert_string_equal(c.model_type, "llama");
    assert_true(c.recipe.vocab == 1000 && c.recipe.hidden == 256
                && c.recipe.intermediate == 512);
    assert_true(c.recipe.layers == 2 && c.recipe.query_heads == 4
                && c.recipe.kv_heads == 4);
    assert_true(c.recipe.head_dim == 64 && c.recipe.max_positions == 2048);
    assert_true(!c.recipe.tied && c.recipe.attn_scale == 0.125f);
    check_layers(&c, 0, TR_QK_NORM_NONE, 0);
    assert_true(c.recipe.n_ropes == 1);
    assert_true(c.recipe.rope[0].type == TR_ROPE_DEFAULT
                && c.recipe.rope[0].theta == 10000);
    assert_true(c.n_eos == 0 && c.bos == -1);
    c = load(LLAMA(",\"attention_bias\":true,\"tie_word_embeddings\":true,"
                   "\"num_key_value_heads\":2,\"rope_scaling\":null,"
                   "\"head_dim\":128,\"rms_norm_eps\":1e-5,"
                   "\"bos_token_id\":7,\"eos_token_id\":[5,6,5]"),
             "{\"eos_token_id\":[6,9]}");
    check_layers(&c, TR_BIAS_QKV | TR_BIAS_O, TR_QK_NORM_NONE, 0);
    assert_true(c.recipe.tied && c.recipe.kv_heads == 2);
    assert_true(c.recipe.head_dim == 128 && c.recipe.norm_eps == 1e-5f
                && c.bos == 7);
    assert_true(c.n_eos == 3 && c.eos[0] == 5 && c.eos[1] == 6
                && c.eos[2] == 9);
}

static void
test_families(void **state)
{
    tr_model_config_t c;

    (void) state;
    c = load("{\"model_type\":\"qwen2\"," SHAPE ",\"sliding_window\":100,"
             "\"use_sliding_window\":false,\"rope_theta\":1000000.0,"
             "\"max_position_embeddings\":32768}",
             NULL);
    check_layers(&c, TR_BIAS_QKV, TR_QK_NORM_NONE, 0);
    assert_true(c.recipe.max_positions == 32768);
    assert_true(c.recipe.rope[0].theta == 1e6);
    /* its biases are not switched */
    c = load("{\"model_type\":\"qwen2\"," SHAPE ",\"attention_bias\":true}",
             NULL);
    check_layers(&c, TR_BIAS_QKV, TR_QK_NORM_NONE, 0);
    c = load("{\"model_type\":\"qwen3\"," SHAPE ",\"head_dim\":128}", NULL);
    check_layers(&c, 0, TR_QK_NORM_HEAD, 0);
    assert_true(c.recipe.head_dim == 128);
    c = load("{\"model_type\":\"mistral\"," SHAPE ",\"sliding_window\":null,"
             "\"max_position_embeddings\":32768}",
             NULL);
    check_layers(&c, 0, TR_QK_NORM_NONE, 0);
    assert_true(c.recipe.max_positions == 32768);
    c = load("{\"model_type\":\"mistral\"," SHAPE ",\"sliding_window\":4096,"
             "\"max_position_embeddings\":32768}",
             NULL);
    check_layers(&c, 0, TR_QK_NORM_NONE, 4096);
    assert_true(c.recipe.max_positions == 32768);
    c = load("{\"model_type\":\"mistral\"," SHAPE ",\"sliding_window\":32768,"
             "\"max_position_embeddings\":32768}",
             NULL);
    check_layers(&c, 0, TR_QK_NORM_NONE, 0);
    assert_true(c.recipe.max_positions == 32768);
}

/* Llama 3.1's values in both spellings, and its published frequencies. */
static void
test_rope(void **state)
{
    static const char *const spellings[] = {
        LLAMA(",\"head_dim\":128,\"rope_theta\":500000.0,\"rope_scaling\":{"
              "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
              "\"original_max_position_embeddings\":8192,"
              "\"rope_type\":\"llama3\"}"),
        LLAMA(",\"head_dim\":128,\"rope_parameters\":{\"rope_theta\":500000.0,"
              "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
              "\"original_max_position_embeddings\":8192,"
              "\"rope_type\":\"llama3\"}"),
    };
    tr_model_config_t c;
    const tr_rope_t *t;
    float f[64], amp[64];

    (void) state;
    for (int i = 0; i < 2; i++) {
        c = load(spellings[i], NULL);
        t = &c.recipe.rope[0];
        assert_true(t->type == TR_ROPE_LLAMA3 && t->theta == 500000
                    && t->factor == 8 && t->low == 1 && t->high == 4
                    && t->original == 8192);
        tr_recipe_rope(&c.recipe, 0, false, f, amp);
        assert_true(f[0] == 1);
        /* wavelengths 2048 and 8192 divide the three ranges: 28 is kept
         * (1963), 29 blended (2410), 35 stretched (8236) */
        assert_true(fabsf(f[28] / powf(500000, -56 / 128.0f) - 1) < 1e-5f);
        assert_true(fabsf(f[35] / powf(500000, -70 / 128.0f) - 0.125f) < 1e-5f);
        assert_true(fabsf(f[63] / powf(500000, -126 / 128.0f) - 0.125f)
                    < 1e-5f);
        {
            double plain = pow(500000, -58 / 128.0);
            double s = (8192 * plain / (2 * M_PI) - 1) / 3;

            assert_true(fabs(f[29] - plain * ((1 - s) / 8 + s)) < 1e-9);
        }
    }
    c = load(LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}"),
             NULL);
    tr_recipe_rope(&c.recipe, 0, false, f, amp);
    assert_true(t->type == TR_ROPE_LINEAR && f[0] == 0.25f);
    c = load(LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\","
                   "\"rope_theta\":5e5}"),
             NULL);
    assert_true(t->type == TR_ROPE_DEFAULT && t->theta == 5e5);
}

static void
test_pocket(void **state)
{
    tr_model_config_t c;
    tr_error_t err;

    (void) state;
    assert_int_equal(tr_model_config_load("models/pocket", NULL, &c, &err),
                     TR_OK);
    assert_true(c.n_eos == 2 && c.eos[0] == 4 && c.eos[1] == 1);
    /* two bytes each, by the index file */
    assert_int_equal(tr_recipe_parameters(&c.recipe), 28324608 / 2);
}

/* Two layers, four heads of 64: 2048 bytes of keys and values a token. */
static void
test_len(void **state)
{
    tr_model_config_t c = load(LLAMA(""), NULL);

    (void) state;
    assert_int_equal(tr_recipe_len(&c.recipe, 0, 0), 2048);
    assert_int_equal(tr_recipe_len(&c.recipe, 100, 0), 100);
    assert_int_equal(tr_recipe_len(&c.recipe, 0, 2048 * 2048), 2048);
    assert_int_equal(tr_recipe_len(&c.recipe, 0, 2048 * 2048 - 1), 2048);
    assert_int_equal(tr_recipe_len(&c.recipe, 0, 2048 * 2047 - 1), 2047);
    assert_int_equal(tr_recipe_len(&c.recipe, 100, 2048 * 50), 51);
    assert_int_equal(tr_recipe_len(&c.recipe, 0, 1), 1);
    assert_int_equal(tr_recipe_len(&c.recipe, 0, UINT64_MAX), 2048);
}

#define HEADS(h)                                                              \
    "{\"model_type\":\"llama\",\"vocab_size\":1000,"                          \
    "\"hidden_size\":256,\"intermediate_size\":512,\"num_hidden_layers\":2" h \
    "}"

#define SIZES(vocab, hidden, intermediate, layers, heads)             \
    "{\"model_type\":\"llama\",\"vocab_size\":" vocab                 \
    ",\"hidden_size\":" hidden ",\"intermediate_size\":" intermediate \
    ",\"num_hidden_layers\":" layers ",\"num_attention_heads\":" heads "}"

#define QUANT(config) LLAMA(",\"quantization_config\":" config)
#define COMPRESSED(format, weights)                                       \
    QUANT("{\"quant_method\":\"compressed-tensors\",\"format\":\"" format \
          "\",\"config_groups\":{\"group_0\":{\"weights\":" weights "}}}")

static const struct {
    const char *config, *generation;
    tr_status_t status;
    const char *param, *words;
} refused[] = {
    { NULL, NULL, TR_ERR_NOT_FOUND, "model", "cannot read" },
    { "{", NULL, TR_ERR_FORMAT, "", "config.json: line 1" },
    { "[]", NULL, TR_ERR_FORMAT, "", "not a JSON object" },
    { "{}", NULL, TR_ERR_UNSUPPORTED, "model_type", "model_type is \"\"" },
    { "{\"model_type\":\"gemma\"}", NULL, TR_ERR_UNSUPPORTED, "model_type",
      "\"gemma\", expected llama" },
    { "{\"model_type\":\"llama\"}", NULL, TR_ERR_FORMAT, "vocab_size",
      "vocab_size is missing" },
    { LLAMA(",\"hidden_act\":\"gelu\""), NULL, TR_ERR_UNSUPPORTED, "hidden_act",
      "\"gelu\", expected silu" },
    { LLAMA(",\"mlp_bias\":true"), NULL, TR_ERR_UNSUPPORTED, "mlp_bias",
      "mlp_bias is true" },
    { LLAMA(",\"mlp_bias\":1"), NULL, TR_ERR_FORMAT, "mlp_bias",
      "mlp_bias is 1, expected true or false" },
    { QUANT("{}"), NULL, TR_ERR_UNSUPPORTED, "quantization_config",
      "quant_method is \"\", expected one of fp8, modelopt" },
    { QUANT("[]"), NULL, TR_ERR_FORMAT, "quantization_config", "no object" },
    { QUANT("{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}"), NULL,
      TR_ERR_UNSUPPORTED, "quantization_config",
      "quant_method is \"bitsandbytes\", expected" },
    { QUANT("{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}"), NULL,
      TR_ERR_UNSUPPORTED, "quant_algo", "is \"NVFP4\", expected FP8" },
    { QUANT("{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}"), NULL,
      TR_ERR_UNSUPPORTED, "fmt", "fmt is \"e5m2\", expected e4m3" },
    { QUANT("{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}"), NULL,
      TR_ERR_FORMAT, "weight_block_size", "is [128], expected two sizes" },
    { QUANT("{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}"), NULL,
      TR_ERR_FORMAT, "weight_block_size", "is [0,128]" },
    { QUANT("{\"quant_method\":\"fp8\",\"x_y\":1}"), NULL, TR_ERR_UNSUPPORTED,
      "x_y", "quantization_config.x_y is 1, which this engine does not know" },
    { QUANT("{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,"
            "\"version\":\"gemv\"}"),
      NULL, TR_ERR_UNSUPPORTED, "version", "\"gemv\", expected gemm" },
    { QUANT("{\"quant_method\":\"awq\",\"bits\":8,\"group_size\":128}"), NULL,
      TR_ERR_UNSUPPORTED, "bits", "is 8, expected 4 in awq" },
    { QUANT("{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,"
            "\"zero_point\":false}"),
      NULL, TR_ERR_UNSUPPORTED, "zero_point", "expected true" },
    { QUANT("{\"quant_method\":\"awq\",\"bits\":4}"), NULL, TR_ERR_FORMAT,
      "group_size", "group_size is missing" },
    { QUANT("{\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":128}"), NULL,
      TR_ERR_UNSUPPORTED, "bits", "bits is 3, expected 4 or 8" },
    { QUANT("{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":0}"), NULL,
      TR_ERR_FORMAT, "group_size", "group_size is 0" },
    { QUANT("{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,"
            "\"dynamic\":{\"-:.*down.*\":{}}}"),
      NULL, TR_ERR_UNSUPPORTED, "dynamic", "quantization_config.dynamic is" },
    { QUANT("{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,"
            "\"checkpoint_format\":\"marlin\"}"),
      NULL, TR_ERR_UNSUPPORTED, "checkpoint_format",
      "\"marlin\", expected gptq or gptq_v2" },
    { COMPRESSED("nvfp4-pack-quantized", "{}"), NULL, TR_ERR_UNSUPPORTED,
      "format", "\"nvfp4-pack-quantized\", expected pack-quantized or" },
    { QUANT("{\"quant_method\":\"compressed-tensors\"}"), NULL, TR_ERR_FORMAT,
      "config_groups", "config_groups is missing" },
    { COMPRESSED("pack-quantized", "{\"num_bits\":3,\"type\":\"int\","
                                   "\"strategy\":\"channel\"}"),
      NULL, TR_ERR_UNSUPPORTED, "num_bits", "num_bits is 3, expected 4 or 8" },
    { COMPRESSED("float-quantized", "{\"num_bits\":4,\"type\":\"float\","
                                    "\"strategy\":\"channel\"}"),
      NULL, TR_ERR_UNSUPPORTED, "num_bits", "num_bits is 4, expected 8" },
    { COMPRESSED("pack-quantized", "{\"num_bits\":4,\"type\":\"int\","
                                   "\"strategy\":\"token\"}"),
      NULL, TR_ERR_UNSUPPORTED, "strategy", "\"token\", expected tensor or" },
    { COMPRESSED("pack-quantized", "{\"num_bits\":4,\"type\":\"int\","
                                   "\"strategy\":\"group\"}"),
      NULL, TR_ERR_FORMAT, "group_size", "group_size is missing" },
    { COMPRESSED("pack-quantized", "{\"num_bits\":4,\"type\":\"int\","
                                   "\"strategy\":\"channel\",\"x_y\":1}"),
      NULL, TR_ERR_UNSUPPORTED, "x_y", "config_groups.weights.x_y is 1" },
    { HEADS(",\"num_attention_heads\":0"), NULL, TR_ERR_FORMAT,
      "num_attention_heads", "is 0, expected an integer from 1" },
    { HEADS(",\"num_attention_heads\":\"4\""), NULL, TR_ERR_FORMAT,
      "num_attention_heads", "is \"4\", expected an integer" },
    { HEADS(",\"num_attention_heads\":7"), NULL, TR_ERR_FORMAT, "hidden_size",
      "256 is not a multiple of" },
    { HEADS(",\"num_attention_heads\":32"), NULL, TR_ERR_UNSUPPORTED,
      "head_dim", "head_dim is 8, expected a multiple of 16" },
    { LLAMA(",\"head_dim\":512"), NULL, TR_ERR_UNSUPPORTED, "head_dim",
      "head_dim is 512" },
    { LLAMA(",\"num_key_value_heads\":3"), NULL, TR_ERR_FORMAT,
      "num_key_value_heads", "4 query heads on 3" },
    { LLAMA(",\"num_key_value_heads\":-1"), NULL, TR_ERR_FORMAT,
      "num_key_value_heads", "is -1" },
    { HEADS(",\"num_attention_heads\":64,\"head_dim\":16,"
            "\"num_key_value_heads\":1"),
      NULL, TR_ERR_FORMAT, "num_key_value_heads", "64 query heads on 1" },
    { LLAMA(",\"rms_norm_eps\":0"), NULL, TR_ERR_FORMAT, "rms_norm_eps",
      "rms_norm_eps is 0, expected a positive number" },
    { LLAMA(",\"rope_theta\":\"x\""), NULL, TR_ERR_FORMAT, "rope_theta",
      "rope_theta is \"x\", expected a positive number" },
    { LLAMA(",\"rope_scaling\":[]"), NULL, TR_ERR_FORMAT, "rope_scaling",
      "rope_scaling is [], expected an object or null" },
    { LLAMA(",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}"), NULL,
      TR_ERR_UNSUPPORTED, "rope_scaling", "\"dynamic\" is not" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"ntk\",\"factor\":4}"), NULL,
      TR_ERR_UNSUPPORTED, "rope_scaling", "\"ntk\" is not" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":7}"), NULL, TR_ERR_UNSUPPORTED,
      "rope_scaling", "type 7 is not supported" },
    { LLAMA(",\"rope_scaling\":{\"factor\":4}"), NULL, TR_ERR_FORMAT,
      "rope_type", "rope_type is missing beside factor 4" },
    { LLAMA(",\"rope_parameters\":{\"rope_type\":null,\"factor\":4}"), NULL,
      TR_ERR_FORMAT, "rope_type", "rope_type is missing" },
    { LLAMA(",\"rope_scaling\":{\"type\":\"linear\"}"), NULL, TR_ERR_FORMAT,
      "factor", "config.json: factor is missing" },
    { LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":-1}"), NULL,
      TR_ERR_FORMAT, "factor", "factor is -1, expected a positive" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
            "\"low_freq_factor\":4,\"high_freq_factor\":4,"
            "\"original_max_position_embeddings\":8192}"),
      NULL, TR_ERR_FORMAT, "high_freq_factor",
      "high_freq_factor is 4, expected more than the low_freq_factor 4" },
    { LLAMA(",\"max_position_embeddings\":0"), NULL, TR_ERR_FORMAT,
      "max_position_embeddings", "is 0" },
    /* promises that nobody could keep */
    { LLAMA(",\"max_position_embeddings\":16777217"), NULL, TR_ERR_FORMAT,
      "max_position_embeddings",
      "config.json: max_position_embeddings is 16777217, expected an integer "
      "from 1 to 16777216" },
    { LLAMA(",\"max_position_embeddings\":9223372036854775807"), NULL,
      TR_ERR_FORMAT, "max_position_embeddings", "is 9223372036854775807" },
    { LLAMA(",\"max_position_embeddings\":9223372036854775808"), NULL,
      TR_ERR_FORMAT, "", "too big integer near '9223372036854775808'" },
    { SIZES("4194305", "256", "512", "2", "4"), NULL, TR_ERR_FORMAT,
      "vocab_size", "is 4194305, expected an integer from 2 to 4194304" },
    { SIZES("1000", "262145", "512", "2", "4"), NULL, TR_ERR_FORMAT,
      "hidden_size", "is 262145, expected an integer from 1 to 262144" },
    { SIZES("1000", "256", "1048577", "2", "4"), NULL, TR_ERR_FORMAT,
      "intermediate_size", "is 1048577, expected an integer from 1 to" },
    { SIZES("1000", "256", "512", "1025", "4"), NULL, TR_ERR_FORMAT,
      "num_hidden_layers", "is 1025, expected an integer from 1 to 1024" },
    { SIZES("1000", "256", "512", "2", "1025"), NULL, TR_ERR_FORMAT,
      "num_attention_heads", "is 1025, expected an integer from 1 to 1024" },
    { LLAMA(",\"num_key_value_heads\":1025"), NULL, TR_ERR_FORMAT,
      "num_key_value_heads", "is 1025, expected an integer from 1 to 1024" },
    /* nothing, and infinity, as a float */
    { LLAMA(",\"rms_norm_eps\":1e-300"), NULL, TR_ERR_FORMAT, "rms_norm_eps",
      "rms_norm_eps is 1e-300, expected a positive number" },
    { LLAMA(",\"initializer_range\":1e300"), NULL, TR_ERR_FORMAT,
      "initializer_range", "initializer_range is 1e300, expected a positive" },
    { LLAMA(",\"rope_theta\":1e300"), NULL, TR_ERR_FORMAT, "rope_theta",
      "rope_theta is 1e300, expected a positive number, from" },
    { LLAMA(",\"eos_token_id\":[1,\"x\"]"), NULL, TR_ERR_FORMAT, "eos_token_id",
      "holds \"x\", expected a token id below 1000" },
    { LLAMA(",\"eos_token_id\":1.5"), NULL, TR_ERR_FORMAT, "eos_token_id",
      "config.json: eos_token_id holds 1.5" },
    { LLAMA(""), "{\"eos_token_id\":\"</s>\"}", TR_ERR_FORMAT, "eos_token_id",
      "generation_config.json: eos_token_id holds \"</s>\"" },
    { LLAMA(",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]"), NULL, TR_ERR_FORMAT,
      "eos_token_id", "more than 8" },
    { LLAMA(""), "{,}", TR_ERR_FORMAT, "", "generation_config.json: line" },
    { GLM(",\"n_routed_experts\":8,\"num_experts_per_tok\":9"), NULL,
      TR_ERR_FORMAT, "num_experts_per_tok",
      "num_experts_per_tok is 9, expected at most 8" },
    { GLM(",\"n_routed_experts\":8,\"num_experts_per_tok\":3,\"n_group\":4"),
      NULL, TR_ERR_FORMAT, "num_experts_per_tok",
      "num_experts_per_tok is 3, expected at most 2" },
    { GLM(",\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"n_group\":3"),
      NULL, TR_ERR_FORMAT, "n_group", "1 of 3 groups of 8 experts" },
    { GLM(",\"n_routed_experts\":2147483648,\"num_experts_per_tok\":2"), NULL,
      TR_ERR_FORMAT, "n_routed_experts",
      "n_routed_experts is 2147483648, expected an integer from 1 to 1024" },
    { LLAMA(",\"layer_types\":[\"full_attention\"]"), NULL, TR_ERR_UNSUPPORTED,
      "layer_types", "for each of 2 layers" },
    { LLAMA(",\"layer_types\":[\"full_attention\",\"linear_attention\"]"), NULL,
      TR_ERR_UNSUPPORTED, "layer_types",
      "layer_types holds \"linear_attention\" for layer 1" },
    { LLAMA(",\"partial_rotary_factor\":0.01"), NULL, TR_ERR_FORMAT,
      "partial_rotary_factor", "rotates 0 of 64 dims" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":1e-6,"
            "\"original_max_position_embeddings\":1}"),
      NULL, TR_ERR_FORMAT, "factor", "factor is 1e-6, expected a positive" },
    { LLAMA(",\"rope_parameters\":{\"full_attention\":{},"
            "\"sliding_attention\":{\"rope_theta\":1e4}}"),
      NULL, TR_ERR_UNSUPPORTED, "rope_parameters", "expected one table" },
    { LLAMA(",\"rope_parameters\":{\"sliding_attention\":{}}"), NULL,
      TR_ERR_UNSUPPORTED, "rope_parameters", "no full_attention" },
    { LLAMA(",\"vocab_size\":1000"), NULL, TR_ERR_FORMAT, "", "duplicate" },
    { LLAMA(",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],"
            "\"long_factor\":[1,2]},\"original_max_position_embeddings\":64"),
      NULL, TR_ERR_FORMAT, "long_factor",
      "1 short and 2 long factors of longrope, expected 32" },
    { LLAMA(",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[0],"
            "\"long_factor\":[1]},\"original_max_position_embeddings\":64"),
      NULL, TR_ERR_FORMAT, "short_factor", "is not a positive number" },
    { LLAMA(",\"rope_scaling\":{\"type\":\"longrope\"}"), NULL, TR_ERR_FORMAT,
      "original_max_position_embeddings", "is missing" },
    { GRANITE("0", ",\"layer_types\":[\"attention\",\"mamba\"]"), NULL,
      TR_ERR_UNSUPPORTED, "layer_types",
      "layer_types holds \"mamba\" for layer 1" },
    { GRANITE("0", ""), NULL, TR_ERR_UNSUPPORTED, "layer_types",
      "layer_types is not there" },
    { GRANITE("62", ATTEND), NULL, TR_ERR_UNSUPPORTED, "num_local_experts",
      "num_local_experts is not 0" },
    { GRANITE("2147483648", ATTEND), NULL, TR_ERR_FORMAT, "num_local_experts",
      "num_local_experts is 2147483648, expected an integer" },
    { GRANITE("0", ATTEND ",\"position_embedding_type\":\"alibi\""), NULL,
      TR_ERR_UNSUPPORTED, "position_embedding_type", "neither rope nor nope" },
    { GRANITE("0", ATTEND ",\"normalization_function\":\"layernorm\""), NULL,
      TR_ERR_UNSUPPORTED, "normalization_function",
      "is \"layernorm\", expected \"rmsnorm\"" },
    /* keys that nobody reads */
    { LLAMA(",\"embedding_multiplier\":12"), NULL, TR_ERR_UNSUPPORTED,
      "embedding_multiplier",
      "config.json: embedding_multiplier is 12, which this engine does not "
      "know; name it in ignore_config if it has no effect" },
    { LLAMA(",\"num_experts\":8"), NULL, TR_ERR_UNSUPPORTED, "num_experts",
      "num_experts is 8" },
    { LLAMA(",\"use_parallel_residual\":true"), NULL, TR_ERR_UNSUPPORTED,
      "use_parallel_residual", "is true" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"default\",\"factor\":8}"), NULL,
      TR_ERR_UNSUPPORTED, "factor", "rope_scaling.factor is 8" },
    { LLAMA(",\"rope_parameters\":{\"rope_theta\":1e4,"
            "\"mrope_section\":[16,24,24]}"),
      NULL, TR_ERR_UNSUPPORTED, "mrope_section",
      "rope_parameters.mrope_section is [16,24,24]" },
    { GLM(",\"n_routed_experts\":8,\"num_experts_per_tok\":2,"
          "\"scoring_func\":\"softmax\""),
      NULL, TR_ERR_UNSUPPORTED, "scoring_func",
      "scoring_func is \"softmax\", expected \"sigmoid\"" },
    { "{\"model_type\":\"llava\",\"text_config\":{\"model_type\":\"gemma\"}}",
      NULL, TR_ERR_UNSUPPORTED, "model_type", "\"gemma\", expected llama" },
    { "{\"model_type\":\"llava\",\"cross_attention_layers\":[3],"
      "\"text_config\":" LLAMA("") "}",
      NULL, TR_ERR_UNSUPPORTED, "cross_attention_layers", "is [3]" },
    { "{\"model_type\":\"llava\",\"text_config\":" LLAMA(",\"x_y\":1") "}",
      NULL, TR_ERR_UNSUPPORTED, "x_y", "config.json: text_config.x_y is 1" },
    { "{\"model_type\":\"llava\",\"quantization_config\":{\"bits\":4},"
      "\"text_config\":" LLAMA("") "}",
      NULL, TR_ERR_UNSUPPORTED, "quantization_config", "quant_method is \"\"" },
};

static void
test_refused(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        tr_model_config_t c;
        tr_error_t err = { 0 };
        tr_status_t rc;

        write_file("config.json", refused[i].config);
        write_file("generation_config.json", refused[i].generation);
        rc = tr_model_config_load(dir, NULL, &c, &err);
        if (rc != refused[i].status || err.status != rc
            || strcmp(err.param, refused[i].param)
            || strstr(err.text, refused[i].words) == NULL) {
            fail_msg("%s: status %d param \"%s\" \"%s\", expected %d \"%s\" "
                     "\"%s\"",
                     refused[i].config, rc, err.param, err.text,
                     refused[i].status, refused[i].param, refused[i].words);
        }
    }
}

/* What published files hold beside the model: training, storage, defaults. */
static void
test_keys_without_effect(void **state)
{
    static const char wide[] = LLAMA(
        ",\"architectures\":[\"LlamaForCausalLM\"],\"torch_dtype\":"
        "\"bfloat16\","
        "\"transformers_version\":\"4.51.3\",\"attention_dropout\":0.1,"
        "\"pretraining_tp\":2,\"use_cache\":true,\"_name_or_path\":\"x\","
        "\"unsloth_fixed\":true,\"pad_token_id\":5,\"head_dim\":64,"
        "\"embedding_multiplier\":1.0,\"num_experts\":0,\"tail\":[],"
        "\"rope_scaling\":{\"type\":\"default\",\"factor\":1.0},"
        "\"original_max_position_embeddings\":4096,\"auto_map\":{\"A\":\"b\"}");
    tr_model_config_t c = load(wide, NULL);
    tr_error_t err;

    (void) state;
    assert_int_equal(c.recipe.head_dim, 64);
    write_file("config.json", LLAMA(",\"x_y\":1,\"z\":[2]"));
    assert_int_equal(tr_model_config_load(dir, "x_y", &c, &err),
                     TR_ERR_UNSUPPORTED);
    assert_string_equal(err.param, "z");
    assert_int_equal(tr_model_config_load(dir, "z, x_y", &c, &err), TR_OK);
    assert_int_equal(tr_model_config_load(dir, "zz x_", &c, &err),
                     TR_ERR_UNSUPPORTED);
}

/* Gemma 3 4B and Mistral Small 3.1, as their directories have it (shortened). */
static void
test_text_config(void **state)
{
    tr_model_config_t c = load(
        "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],"
        "\"boi_token_index\":255999,\"eoi_token_index\":256000,"
        "\"eos_token_id\":[1,106],\"image_token_index\":262144,"
        "\"initializer_range\":0.02,\"mm_tokens_per_image\":256,"
        "\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":2560,"
        "\"intermediate_size\":10240,\"model_type\":\"gemma3_text\","
        "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,"
        "\"rope_type\":\"linear\"},\"sliding_window\":1024},"
        "\"torch_dtype\":\"bfloat16\",\"vision_config\":{\"hidden_size\":1152}"
        "}",
        NULL);

    (void) state;
    assert_string_equal(c.model_type, "gemma3_text");
    assert_true(c.recipe.vocab == 262208 && c.recipe.query_heads == 8
                && c.recipe.kv_heads == 4 && c.recipe.head_dim == 256);
    assert_true(c.recipe.max_positions == 131072 && c.recipe.tied);
    assert_true(c.recipe.rope[0].theta == 1000000
                && c.recipe.rope[0].type == TR_ROPE_LINEAR
                && c.recipe.rope[1].theta == 10000
                && c.recipe.rope[1].type == TR_ROPE_DEFAULT);
    assert_true(c.recipe.layer[0].reach == 1024
                && c.recipe.layer[5].reach == 0);
    assert_true(c.n_eos == 2 && c.eos[0] == 1 && c.eos[1] == 106);
    c = load("{\"architectures\":[\"Mistral3ForConditionalGeneration\"],"
             "\"image_token_index\":10,\"model_type\":\"mistral3\","
             "\"multimodal_projector_bias\":false,"
             "\"projector_hidden_act\":\"gelu\",\"spatial_merge_size\":2,"
             "\"tie_word_embeddings\":true,"
             "\"text_config\":{\"model_type\":\"mistral\"," SHAPE
             ",\"head_dim\":128,\"rope_theta\":1e9,\"sliding_window\":null,"
             "\"max_position_embeddings\":131072},"
             "\"vision_feature_layer\":-1,\"vision_config\":{}}",
             NULL);
    assert_string_equal(c.model_type, "mistral");
    assert_true(c.recipe.head_dim == 128 && c.recipe.rope[0].theta == 1e9);
    assert_true(c.recipe.tied && c.recipe.layer[0].reach == 0);
}

/* Granite 4.0 Micro (shortened), and one whose layers do not rotate. */
static void
test_granite_4(void **state)
{
    tr_model_config_t c = load(
        GRANITE("0", ATTEND ",\"attention_multiplier\":0.015625,"
                            "\"embedding_multiplier\":12,\"init_method\":"
                            "\"mup\",\"logits_scaling\":10,"
                            "\"mamba_conv_bias\":true,\"mamba_d_conv\":4,"
                            "\"mamba_d_head\":\"auto\",\"mamba_expand\":2,"
                            "\"normalization_function\":\"rmsnorm\","
                            "\"num_experts_per_tok\":0,"
                            "\"position_embedding_type\":\"rope\","
                            "\"router_aux_loss_coef\":0.01,"
                            "\"rope_theta\":10000000"),
        NULL);

    (void) state;
    assert_string_equal(c.model_type, "granitemoehybrid");
    assert_true(c.recipe.intermediate == 640 && c.recipe.embed_scale == 12
                && c.recipe.attn_scale == 0.015625f
                && c.recipe.logit_scale == 0.1f);
    assert_true(c.recipe.layer[0].rope == 0
                && c.recipe.rope[0].theta == 10000000);
    c = load(GRANITE("0", ATTEND), NULL);
    assert_true(c.recipe.layer[0].rope == TR_ROPE_NONE
                && c.recipe.layer[1].rope == TR_ROPE_NONE);
}

/* An end token that the model cannot say is none. */
static void
test_eos_beyond_the_vocabulary(void **state)
{
    tr_model_config_t c = load(LLAMA(",\"eos_token_id\":[1000,7,-1]"),
                               "{\"eos_token_id\":[99999,8]}");

    (void) state;
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.eos[1], 8);
}

/* What Python writes and JSON has not; in a text it is text. */
static void
test_wild_numbers(void **state)
{
    tr_model_config_t c = load(
        LLAMA(",\"_a\":[NaN,-Infinity],\"_b\":\"\\\"NaN\",\"eos_token_id\":3"),
        "{\"top_p\":NaN,\"temperature\":0.5,\"x\":Infinity,\"y\":\"NaN\"}");

    (void) state;
    assert_int_equal(c.n_eos, 1);
    assert_true(c.generation.temperature == 0.5);
    assert_true(isnan(c.generation.top_p));
}

static void
test_sampling_defaults(void **state)
{
    tr_model_config_t c = load(LLAMA(""), NULL);

    (void) state;
    assert_true(isnan(c.generation.temperature));
    assert_true(isnan(c.generation.top_k));
    c = load(LLAMA(""), "{\"temperature\":0.6,\"top_p\":0.9,\"top_k\":20,"
                        "\"min_p\":0.1,\"repetition_penalty\":1.05,"
                        "\"do_sample\":false}");
    assert_true(c.generation.temperature == 0.6);
    assert_true(c.generation.top_p == 0.9);
    assert_true(c.generation.top_k == 20);
    assert_true(c.generation.min_p == 0.1);
    assert_true(c.generation.repetition_penalty == 1.05);
    /* what no request may say is nobody's default */
    c = load(LLAMA(""), "{\"temperature\":-1,\"top_p\":\"x\",\"top_k\":5}");
    assert_true(isnan(c.generation.temperature));
    assert_true(isnan(c.generation.top_p));
    assert_true(c.generation.top_k == 5);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eos_beyond_the_vocabulary),
        cmocka_unit_test(test_wild_numbers),
        cmocka_unit_test(test_sampling_defaults),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_pocket),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_keys_without_effect),
        cmocka_unit_test(test_text_config),
        cmocka_unit_test(test_granite_4),
        cmocka_unit_test(test_len),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
