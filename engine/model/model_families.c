/*
 * The families of models that we can run, and what their config.json and tensors
 * say.  Their chat templates are engine/template's.
 *
 * To add one:
 *   1. A row in `families`: config.json's model_type, and the layer that its
 *      models have (model_recipe.h lists what a layer can say).
 *   2. Keys of config.json of its own: a copy of llama_keys with these rows, or
 *      other defaults.  A key that changes the result must not go unread.
 *   3. Tensors by other names: a table like llama_tensors.
 *   4. What depends on values, or differs from layer to layer: a short function,
 *      `fold`, as with_attention_bias.
 *   5. If a backend refuses the recipe ("backend cpu: layer 0 ... has act ..."),
 *      teach model/cpu and model/cuda the step, then add it to their `support`.
 *   6. Its row in tests/unit/model/test_families.c, where a naive model checks it.
 */
#include "model_families.h"

#include <float.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- keys ---------------------------------------------------------------- */

/* Several times what the largest models have, and small enough that no product
 * of sizes overflows, nor is a row of the workspace gigabytes. */
#define VOCAB_MAX (1u << 22)
#define HIDDEN_MAX (1u << 18)
#define INTERMEDIATE_MAX (1u << 20)
#define HEADS_MAX 1024u
#define HEAD_DIM_MAX 65536u

#define MUST (-1) /* the key must be there */
#define AT(field) offsetof(tr_model_config_t, field)
/* clang-format off */
#define NUMBER(kind, key, field, otherwise, min, max) \
    { key, kind, AT(field), otherwise, min, max, NULL }
/* clang-format on */
#define UINT(...) NUMBER(TR_KEY_UINT, __VA_ARGS__)
#define FLOAT(...) NUMBER(TR_KEY_FLOAT, __VA_ARGS__)

/* In this order.  Beside these model_config.c reads model_type, sliding_window
 * with use_sliding_window, rope_* and eos_token_id.  num_key_value_heads: as
 * many as query heads; head_dim: what hidden_size leaves for each. */
static const tr_config_key_t llama_keys[] = {
    { .name = "hidden_act", .kind = TR_KEY_ACT },
    { .name = "quantization_config",
      .kind = TR_KEY_ABSENT,
      .reason = "quantization_config is set, expected unquantised weights "
                "(F32, F16 or BF16)" },
    { .name = "mlp_bias", .kind = TR_KEY_FALSE },
    { .name = "attention_bias", .kind = TR_KEY_BOOL, .at = AT(attention_bias) },
    UINT("vocab_size", recipe.vocab, MUST, 2, VOCAB_MAX),
    UINT("hidden_size", recipe.hidden, MUST, 1, HIDDEN_MAX),
    UINT("intermediate_size", recipe.intermediate, MUST, 1, INTERMEDIATE_MAX),
    UINT("num_hidden_layers", recipe.layers, MUST, 1, TR_LAYERS_MAX),
    UINT("num_attention_heads", recipe.query_heads, MUST, 1, HEADS_MAX),
    UINT("num_key_value_heads", recipe.kv_heads, 0, 1, HEADS_MAX),
    UINT("head_dim", recipe.head_dim, 0, 1, HEAD_DIM_MAX),
    FLOAT("rms_norm_eps", recipe.norm_eps, 1e-6, FLT_MIN, 1),
    FLOAT("initializer_range", init_range, 0.02, FLT_MIN, 1e3),
    UINT("max_position_embeddings", recipe.max_positions, 2048, 1,
         TR_POSITIONS_MAX),
    { .name = "tie_word_embeddings",
      .kind = TR_KEY_BOOL,
      .at = AT(recipe.tied) },
    { .name = "bos_token_id", .kind = TR_KEY_TOKEN, .at = AT(bos) },
    { .name = NULL }
};

/* ---- tensors ------------------------------------------------------------- */

static const tr_tensor_name_t llama_tensors[] = {
    { TR_PART_EMBED, "model.embed_tokens.weight", TR_ROWS_ALL },
    { TR_PART_HEAD, "lm_head.weight", TR_ROWS_ALL },
    { TR_PART_FINAL_NORM, "model.norm.weight", TR_ROWS_ALL },
    { TR_PART_QKV, "self_attn.q_proj.weight", TR_ROWS_QUERIES },
    { TR_PART_QKV, "self_attn.k_proj.weight", TR_ROWS_KEYS },
    { TR_PART_QKV, "self_attn.v_proj.weight", TR_ROWS_VALUES },
    { TR_PART_QKV_BIAS, "self_attn.q_proj.bias", TR_ROWS_QUERIES },
    { TR_PART_QKV_BIAS, "self_attn.k_proj.bias", TR_ROWS_KEYS },
    { TR_PART_QKV_BIAS, "self_attn.v_proj.bias", TR_ROWS_VALUES },
    { TR_PART_O, "self_attn.o_proj.weight", TR_ROWS_ALL },
    { TR_PART_O_BIAS, "self_attn.o_proj.bias", TR_ROWS_ALL },
    { TR_PART_Q_NORM, "self_attn.q_norm.weight", TR_ROWS_ALL },
    { TR_PART_K_NORM, "self_attn.k_norm.weight", TR_ROWS_ALL },
    { TR_PART_GATE_UP, "mlp.gate_proj.weight", TR_ROWS_FIRST_HALF },
    { TR_PART_GATE_UP, "mlp.up_proj.weight", TR_ROWS_SECOND_HALF },
    { TR_PART_DOWN, "mlp.down_proj.weight", TR_ROWS_ALL },
    { TR_PART_ATTN_NORM, "input_layernorm.weight", TR_ROWS_ALL },
    { TR_PART_MLP_NORM, "post_attention_layernorm.weight", TR_ROWS_ALL },
    { .name = NULL }
};

/* ---- families ------------------------------------------------------------ */

/* Where config.json switches biases on, all four projections have one. */
static void
with_attention_bias(tr_model_config_t *c)
{
    for (uint32_t l = 0; c->attention_bias && l < c->recipe.layers; l++) {
        c->recipe.layer[l].biases = TR_BIAS_QKV | TR_BIAS_O;
    }
}

#define PRE_NORMS (TR_NORM_PRE_ATTN | TR_NORM_PRE_MLP)

static const tr_family_t families[] = {
    { .model_type = "llama", /* 2 and 3 */
      .layer = { .norms = PRE_NORMS, .act = TR_ACT_SILU },
      .keys = llama_keys,
      .tensors = llama_tensors,
      .fold = with_attention_bias },
    { .model_type = "mistral",
      .layer = { .norms = PRE_NORMS, .act = TR_ACT_SILU },
      .always_slides = true,
      .keys = llama_keys,
      .tensors = llama_tensors,
      .fold = with_attention_bias },
    { .model_type = "qwen2", /* and 2.5: biases on query, key and value, always,
                              * whatever attention_bias says */
      .layer = { .norms = PRE_NORMS,
                 .act = TR_ACT_SILU,
                 .biases = TR_BIAS_QKV },
      .keys = llama_keys,
      .tensors = llama_tensors },
    { .model_type = "qwen3",
      .layer = { .norms = PRE_NORMS,
                 .act = TR_ACT_SILU,
                 .qk_norm = TR_QK_NORM_HEAD },
      .keys = llama_keys,
      .tensors = llama_tensors,
      .fold = with_attention_bias },
};

#define FAMILIES (sizeof(families) / sizeof(families[0]))

const tr_family_t *
tr_family_find(const char *model_type)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i].model_type, model_type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

void
tr_family_names(char text[TR_FAMILY_NAMES])
{
    size_t n = 0;

    for (size_t i = 0; i < FAMILIES && n < TR_FAMILY_NAMES; i++) {
        const char *before = i == 0 ? "" : i + 1 < FAMILIES ? ", " : " or ";

        n += (size_t) snprintf(text + n, TR_FAMILY_NAMES - n, "%s%s", before,
                               families[i].model_type);
    }
}
