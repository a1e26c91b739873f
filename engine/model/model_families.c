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
 *   6. A tiny model by tests/models/make.py, which test_model_goldens.c finds by
 *      itself and holds to transformers; where the naive model of
 *      test_families.c can express the layer, a row there; its line in
 *      docs/models.md.
 */
#include "model_config_internal.h"

#include <float.h>
#include <math.h>
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
 * with use_sliding_window, max_window_layers and layer_types, rope_*,
 * quantization_config and eos_token_id.  num_key_value_heads: as many as query
 * heads; head_dim: what hidden_size leaves for each. */
#define COMMON_KEYS                                                       \
    { .name = "mlp_bias", .kind = TR_KEY_FALSE },                         \
        { .name = "attention_bias",                                       \
          .kind = TR_KEY_BOOL,                                            \
          .at = AT(attention_bias) },                                     \
        UINT("hidden_size", recipe.hidden, MUST, 1, HIDDEN_MAX),          \
        UINT("intermediate_size", recipe.intermediate, MUST, 1,           \
             INTERMEDIATE_MAX),                                           \
        UINT("num_hidden_layers", recipe.layers, MUST, 1, TR_LAYERS_MAX), \
        FLOAT("rms_norm_eps", recipe.norm_eps, 1e-6, FLT_MIN, 1),         \
        FLOAT("initializer_range", init_range, 0.02, FLT_MIN, 1e3),       \
    {                                                                     \
        .name = "bos_token_id", .kind = TR_KEY_TOKEN, .at = AT(bos)       \
    }

#define SHAPE_KEYS(vocab_, heads, kv_heads_, dim, positions)                   \
    UINT("vocab_size", recipe.vocab, vocab_, 2, VOCAB_MAX),                    \
        UINT("num_attention_heads", recipe.query_heads, heads, 1, HEADS_MAX),  \
        UINT("num_key_value_heads", recipe.kv_heads, kv_heads_, 1, HEADS_MAX), \
        UINT("head_dim", recipe.head_dim, dim, 1, HEAD_DIM_MAX),               \
        UINT("max_position_embeddings", recipe.max_positions, positions, 1,    \
             TR_POSITIONS_MAX)

#define PLAIN_SHAPE SHAPE_KEYS(MUST, MUST, 0, 0, 2048)

#define TIED(otherwise_)                                    \
    {                                                       \
        .name = "tie_word_embeddings", .kind = TR_KEY_BOOL, \
        .at = AT(recipe.tied), .otherwise = otherwise_      \
    }

static const tr_config_key_t llama_keys[] = { { .name = "hidden_act",
                                                .kind = TR_KEY_ACT },
                                              PLAIN_SHAPE,
                                              COMMON_KEYS,
                                              TIED(false),
                                              { .name = NULL } };

static const tr_config_key_t gemma3_keys[] = {
    { .name = "hidden_activation", .kind = TR_KEY_ACT },
    { .name = "hidden_act",
      .kind = TR_KEY_ONLY,
      .reason = "\"gelu_pytorch_tanh\"" },
    COMMON_KEYS,
    /* published files leave out what transformers has by default */
    SHAPE_KEYS(262208, 8, 4, 256, 131072),
    TIED(true),
    FLOAT("query_pre_attn_scalar", query_scalar, 256, 1e-3, 1e6),
    FLOAT("final_logit_softcapping", recipe.final_softcap, 0, 1e-3, 1e6),
    { .name = "attn_logit_softcapping",
      .kind = TR_KEY_ABSENT,
      .reason = "attn_logit_softcapping is set, expected null: attention "
                "scores cannot be capped" },
    { .name = "use_bidirectional_attention", .kind = TR_KEY_FALSE },
    { .name = NULL }
};

#define EXPERTS_MAX TR_EXPERTS_MAX

static const tr_config_key_t qwen3_moe_keys[] = {
    { .name = "hidden_act", .kind = TR_KEY_ACT },
    PLAIN_SHAPE,
    COMMON_KEYS,
    TIED(false),
    UINT("num_experts", recipe.moe.route.experts, 0, 1, EXPERTS_MAX),
    UINT("num_experts_per_tok", recipe.moe.route.top_k, MUST, 1, TR_TOP_K_MAX),
    UINT("moe_intermediate_size", recipe.moe.width, MUST, 1, INTERMEDIATE_MAX),
    { .name = "norm_topk_prob",
      .kind = TR_KEY_BOOL,
      .at = AT(recipe.moe.route.renorm) },
    { .name = NULL }
};

static const tr_config_key_t gpt_oss_keys[] = {
    { .name = "hidden_act", .kind = TR_KEY_ONLY, .reason = "\"silu\"" },
    { .name = "swiglu_limit", .kind = TR_KEY_ONLY, .reason = "7.0" },
    PLAIN_SHAPE,
    COMMON_KEYS,
    TIED(false),
    UINT("num_local_experts", recipe.moe.route.experts, MUST, 1, EXPERTS_MAX),
    UINT("experts_per_token", recipe.moe.route.top_k, 0, 1, TR_TOP_K_MAX),
    UINT("num_experts_per_tok", recipe.moe.route.top_k, MUST, 1, TR_TOP_K_MAX),
    { .name = NULL }
};

static const tr_config_key_t glm4_moe_keys[] = {
    { .name = "hidden_act", .kind = TR_KEY_ACT },
    PLAIN_SHAPE,
    COMMON_KEYS,
    TIED(false),
    UINT("n_routed_experts", recipe.moe.route.experts, MUST, 1, EXPERTS_MAX),
    UINT("num_experts_per_tok", recipe.moe.route.top_k, MUST, 1, TR_TOP_K_MAX),
    UINT("moe_intermediate_size", recipe.moe.width, MUST, 1, INTERMEDIATE_MAX),
    UINT("n_shared_experts", shared_experts, 0, 0, 64),
    UINT("n_group", recipe.moe.route.groups, 1, 1, EXPERTS_MAX),
    UINT("topk_group", recipe.moe.route.top_groups, 1, 1, EXPERTS_MAX),
    FLOAT("routed_scaling_factor", recipe.moe.route.scale, 1, 1e-6, 1e6),
    { .name = "norm_topk_prob",
      .kind = TR_KEY_BOOL,
      .at = AT(recipe.moe.route.renorm),
      .otherwise = true },
    { .name = "use_qk_norm", .kind = TR_KEY_BOOL, .at = AT(qk_norm) },
    { .name = "scoring_func", .kind = TR_KEY_ONLY, .reason = "\"sigmoid\"" },
    { .name = "topk_method", .kind = TR_KEY_ONLY, .reason = "\"noaux_tc\"" },
    { .name = NULL }
};

#define MULTIPLIERS                                                        \
    FLOAT("embedding_multiplier", recipe.embed_scale, 1, 1e-6, 1e6),       \
        FLOAT("residual_multiplier", recipe.residual_scale, 1, 1e-6, 1e6), \
        FLOAT("attention_multiplier", recipe.attn_scale, 1, 1e-6, 1e6),    \
        FLOAT("logits_scaling", logit_divisor, 1, 1e-6, 1e6)

static const tr_config_key_t granite_keys[] = { { .name = "hidden_act",
                                                  .kind = TR_KEY_ACT },
                                                PLAIN_SHAPE,
                                                COMMON_KEYS,
                                                TIED(false),
                                                MULTIPLIERS,
                                                { .name = NULL } };

static const tr_config_key_t granite_hybrid_keys[] = {
    { .name = "hidden_act", .kind = TR_KEY_ACT },
    { .name = "normalization_function",
      .kind = TR_KEY_ONLY,
      .reason = "\"rmsnorm\"" },
    PLAIN_SHAPE,
    COMMON_KEYS,
    TIED(false),
    MULTIPLIERS,
    { .name = NULL }
};

/* ---- tensors ------------------------------------------------------------- */

#define MODEL_TENSORS                                            \
    { TR_PART_EMBED, "model.embed_tokens.weight", TR_ROWS_ALL }, \
        { TR_PART_HEAD, "lm_head.weight", TR_ROWS_ALL },         \
    {                                                            \
        TR_PART_FINAL_NORM, "model.norm.weight", TR_ROWS_ALL     \
    }

#define QKV_TENSORS                                                     \
    { TR_PART_QKV, "self_attn.q_proj.weight", TR_ROWS_QUERIES },        \
        { TR_PART_QKV, "self_attn.k_proj.weight", TR_ROWS_KEYS },       \
        { TR_PART_QKV, "self_attn.v_proj.weight", TR_ROWS_VALUES },     \
        { TR_PART_QKV_BIAS, "self_attn.q_proj.bias", TR_ROWS_QUERIES }, \
        { TR_PART_QKV_BIAS, "self_attn.k_proj.bias", TR_ROWS_KEYS },    \
    {                                                                   \
        TR_PART_QKV_BIAS, "self_attn.v_proj.bias", TR_ROWS_VALUES       \
    }

#define O_TENSORS                                                   \
    { TR_PART_O, "self_attn.o_proj.weight", TR_ROWS_ALL },          \
        { TR_PART_O_BIAS, "self_attn.o_proj.bias", TR_ROWS_ALL },   \
        { TR_PART_Q_NORM, "self_attn.q_norm.weight", TR_ROWS_ALL }, \
    {                                                               \
        TR_PART_K_NORM, "self_attn.k_norm.weight", TR_ROWS_ALL      \
    }

#define GATE_UP_TENSORS                                              \
    { TR_PART_GATE_UP, "mlp.gate_proj.weight", TR_ROWS_FIRST_HALF }, \
    {                                                                \
        TR_PART_GATE_UP, "mlp.up_proj.weight", TR_ROWS_SECOND_HALF   \
    }

#define DOWN_TENSORS                                      \
    {                                                     \
        TR_PART_DOWN, "mlp.down_proj.weight", TR_ROWS_ALL \
    }

#define EXPERT_TENSORS                                                        \
    { TR_PART_EXPERT_GATE_UP, "mlp.experts.*.gate_proj.weight",               \
      TR_ROWS_EXPERT_FIRST_HALF },                                            \
        { TR_PART_EXPERT_GATE_UP, "mlp.experts.*.up_proj.weight",             \
          TR_ROWS_EXPERT_SECOND_HALF },                                       \
    {                                                                         \
        TR_PART_EXPERT_DOWN, "mlp.experts.*.down_proj.weight", TR_ROWS_EXPERT \
    }

#define PRE_NORM_TENSORS                                                 \
    { TR_PART_ATTN_NORM, "input_layernorm.weight", TR_ROWS_ALL },        \
    {                                                                    \
        TR_PART_MLP_NORM, "post_attention_layernorm.weight", TR_ROWS_ALL \
    }

#define END_TENSORS  \
    {                \
        .name = NULL \
    }

static const tr_tensor_name_t llama_tensors[] = {
    MODEL_TENSORS, QKV_TENSORS,      O_TENSORS,  GATE_UP_TENSORS,
    DOWN_TENSORS,  PRE_NORM_TENSORS, END_TENSORS
};

/* Gemma's names mean what they say: post_attention_layernorm is behind the
 * attention, where Llama's is before the MLP. */
static const tr_tensor_name_t gemma3_tensors[] = {
    MODEL_TENSORS,
    QKV_TENSORS,
    O_TENSORS,
    GATE_UP_TENSORS,
    DOWN_TENSORS,
    { TR_PART_ATTN_NORM, "input_layernorm.weight", TR_ROWS_ALL },
    { TR_PART_POST_ATTN_NORM, "post_attention_layernorm.weight", TR_ROWS_ALL },
    { TR_PART_MLP_NORM, "pre_feedforward_layernorm.weight", TR_ROWS_ALL },
    { TR_PART_POST_MLP_NORM, "post_feedforward_layernorm.weight", TR_ROWS_ALL },
    END_TENSORS
};

static const tr_tensor_name_t glm4_tensors[] = {
    MODEL_TENSORS,
    QKV_TENSORS,
    O_TENSORS,
    { TR_PART_GATE_UP, "mlp.gate_up_proj.weight", TR_ROWS_ALL },
    DOWN_TENSORS,
    { TR_PART_ATTN_NORM, "input_layernorm.weight", TR_ROWS_ALL },
    { TR_PART_POST_ATTN_NORM, "post_self_attn_layernorm.weight", TR_ROWS_ALL },
    { TR_PART_MLP_NORM, "post_attention_layernorm.weight", TR_ROWS_ALL },
    { TR_PART_POST_MLP_NORM, "post_mlp_layernorm.weight", TR_ROWS_ALL },
    END_TENSORS
};

static const tr_tensor_name_t phi3_tensors[] = {
    MODEL_TENSORS,
    { TR_PART_QKV, "self_attn.qkv_proj.weight", TR_ROWS_ALL },
    { TR_PART_O, "self_attn.o_proj.weight", TR_ROWS_ALL },
    { TR_PART_GATE_UP, "mlp.gate_up_proj.weight", TR_ROWS_ALL },
    DOWN_TENSORS,
    PRE_NORM_TENSORS,
    END_TENSORS
};

static const tr_tensor_name_t granite_hybrid_tensors[] = {
    MODEL_TENSORS,
    QKV_TENSORS,
    O_TENSORS,
    { TR_PART_GATE_UP, "shared_mlp.input_linear.weight", TR_ROWS_ALL },
    { TR_PART_DOWN, "shared_mlp.output_linear.weight", TR_ROWS_ALL },
    PRE_NORM_TENSORS,
    END_TENSORS
};

static const tr_tensor_name_t qwen3_moe_tensors[] = {
    MODEL_TENSORS,  QKV_TENSORS,
    O_TENSORS,      GATE_UP_TENSORS,
    DOWN_TENSORS,   { TR_PART_ROUTER, "mlp.gate.weight", TR_ROWS_ALL },
    EXPERT_TENSORS, PRE_NORM_TENSORS,
    END_TENSORS
};

static const tr_tensor_name_t glm4_moe_tensors[] = {
    MODEL_TENSORS,
    QKV_TENSORS,
    O_TENSORS,
    GATE_UP_TENSORS,
    DOWN_TENSORS,
    { TR_PART_ROUTER, "mlp.gate.weight", TR_ROWS_ALL },
    { TR_PART_CHOICE_BIAS, "mlp.gate.e_score_correction_bias", TR_ROWS_ALL },
    EXPERT_TENSORS,
    { TR_PART_SHARED_GATE_UP, "mlp.shared_experts.gate_proj.weight",
      TR_ROWS_FIRST_HALF },
    { TR_PART_SHARED_GATE_UP, "mlp.shared_experts.up_proj.weight",
      TR_ROWS_SECOND_HALF },
    { TR_PART_SHARED_DOWN, "mlp.shared_experts.down_proj.weight", TR_ROWS_ALL },
    PRE_NORM_TENSORS,
    END_TENSORS
};

static const tr_tensor_name_t gpt_oss_tensors[] = {
    MODEL_TENSORS,
    QKV_TENSORS,
    O_TENSORS,
    { TR_PART_SINKS, "self_attn.sinks", TR_ROWS_ALL },
    { TR_PART_ROUTER, "mlp.router.weight", TR_ROWS_ALL },
    { TR_PART_ROUTER_BIAS, "mlp.router.bias", TR_ROWS_ALL },
    { TR_PART_EXPERT_GATE_UP, "mlp.experts.gate_up_proj",
      TR_ROWS_STACKED_TRANSPOSED_PAIRS },
    { TR_PART_EXPERT_GATE_UP_BIAS, "mlp.experts.gate_up_proj_bias",
      TR_ROWS_STACKED_PAIRS },
    { TR_PART_EXPERT_DOWN, "mlp.experts.down_proj",
      TR_ROWS_STACKED_TRANSPOSED },
    { TR_PART_EXPERT_DOWN_BIAS, "mlp.experts.down_proj_bias", TR_ROWS_STACKED },
    PRE_NORM_TENSORS,
    END_TENSORS
};

/* ---- families ------------------------------------------------------------ */

static void
set_biases(tr_model_config_t *c, uint8_t biases)
{
    for (uint32_t l = 0; c->attention_bias && l < c->recipe.layers; l++) {
        c->recipe.layer[l].biases = biases;
    }
}

/* Where config.json switches biases on, all four projections have one. */
static void
with_attention_bias(struct tr_config_reader *r, tr_model_config_t *c)
{
    (void) r;
    set_biases(c, TR_BIAS_QKV | TR_BIAS_O);
}

/* .. but for the last. */
static void
with_qkv_bias(struct tr_config_reader *r, tr_model_config_t *c)
{
    (void) r;
    set_biases(c, TR_BIAS_QKV);
}

static void
fold_granite(struct tr_config_reader *r, tr_model_config_t *c)
{
    (void) r;
    set_biases(c, TR_BIAS_QKV | TR_BIAS_O);
    c->recipe.logit_scale = 1 / c->logit_divisor;
}

/* Granite 4 has one type for all: here are those models whose layers all attend, and
 * have the MLP that is shared where there are experts.  Others are refused, by
 * num_local_experts or layer_types. */
static void
fold_granite_hybrid(struct tr_config_reader *r, tr_model_config_t *c)
{
    /* of layers and experts that there are not */
    static const char *const unused[] = {
        "init_method",     "mamba_chunk_size",   "mamba_conv_bias",
        "mamba_d_conv",    "mamba_d_head",       "mamba_d_state",
        "mamba_expand",    "mamba_n_groups",     "mamba_n_heads",
        "mamba_proj_bias", "time_step_limit",    "time_step_max",
        "time_step_min",   "num_experts_per_tok"
    };
    json_t *type = tr_config_field(r, r->root, "position_embedding_type");
    const char *text = json_string_value(type);
    bool rotates = text != NULL && strcmp(text, "rope") == 0;

    fold_granite(r, c);
    c->recipe.intermediate = tr_config_uint(r, r->root,
                                            "shared_intermediate_size", MUST, 1,
                                            INTERMEDIATE_MAX);
    if (tr_config_uint(r, r->root, "num_local_experts", 8, 0, EXPERTS_MAX)
        != 0) {
        tr_config_fail(r, TR_ERR_UNSUPPORTED, "num_local_experts",
                       "num_local_experts is not 0: of this family models "
                       "without experts are supported alone");
    }
    if (tr_config_field(r, r->root, "layer_types") == NULL) {
        tr_config_fail(r, TR_ERR_UNSUPPORTED, "layer_types",
                       "layer_types is not there, which means layers of Mamba: "
                       "of this family models are supported whose layers are "
                       "attention");
    }
    if (type != NULL && !rotates
        && (text == NULL || strcmp(text, "nope") != 0)) {
        tr_config_fail(r, TR_ERR_UNSUPPORTED, "position_embedding_type",
                       "position_embedding_type is neither rope nor nope");
    }
    for (uint32_t l = 0; l < c->recipe.layers; l++) {
        c->recipe.layer[l].rope = rotates ? 0 : TR_ROPE_NONE;
    }
    for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++) {
        tr_config_field(r, r->root, unused[i]);
    }
}

/* The embeddings' scale is rounded to the type of the weights in transformers. */
static void
fold_gemma3(struct tr_config_reader *r, tr_model_config_t *c)
{
    (void) r;
    set_biases(c, TR_BIAS_QKV | TR_BIAS_O);
    c->recipe.attn_scale = 1 / sqrtf(c->query_scalar);
    c->recipe.embed_scale = sqrtf((float) c->recipe.hidden);
}

/* no_rope_layers: 1 where a layer rotates; without it every
 * no_rope_layer_interval-th does not. */
static void
fold_smollm3(struct tr_config_reader *r, tr_model_config_t *c)
{
    json_t *list = tr_config_field(r, r->root, "no_rope_layers");
    uint32_t every = tr_config_uint(r, r->root, "no_rope_layer_interval", 4, 1,
                                    TR_LAYERS_MAX);
    uint32_t n = c->recipe.layers;

    set_biases(c, TR_BIAS_QKV | TR_BIAS_O);
    if (list != NULL && json_array_size(list) != n) {
        tr_config_fail(r, TR_ERR_FORMAT, "no_rope_layers",
                       "no_rope_layers is not a list with a number for each "
                       "layer");
        return;
    }
    for (uint32_t l = 0; l < n; l++) {
        bool rotates = list ? json_integer_value(json_array_get(list, l)) != 0
                            : (l + 1) % every != 0;

        c->recipe.layer[l].rope = rotates ? 0 : TR_ROPE_NONE;
    }
}

/* Which layers have experts: every decoder_sparse_step-th but those listed. */
static void
fold_qwen3_moe(struct tr_config_reader *r, tr_model_config_t *c)
{
    uint32_t step = tr_config_uint(r, r->root, "decoder_sparse_step", 1, 1,
                                   TR_LAYERS_MAX);
    json_t *dense = tr_config_field(r, r->root, "mlp_only_layers"), *v;
    uint32_t local;
    size_t i;

    set_biases(c, TR_BIAS_QKV | TR_BIAS_O);
    /* transformers 5 writes it so; without the other it must be there */
    local = tr_config_uint(r, r->root, "num_local_experts",
                           c->recipe.moe.route.experts != 0 ? 0 : -1, 1,
                           EXPERTS_MAX);
    if (c->recipe.moe.route.experts == 0) {
        c->recipe.moe.route.experts = local;
    }
    c->recipe.moe.route.score = TR_ROUTE_SOFTMAX;
    c->recipe.moe.route.groups = c->recipe.moe.route.top_groups = 1;
    c->recipe.moe.route.scale = 1;
    for (uint32_t l = 0; l < c->recipe.layers; l++) {
        c->recipe.layer[l].experts = (l + 1) % step == 0;
    }
    json_array_foreach (dense, i, v) {
        json_int_t l = json_integer_value(v);

        if (!json_is_integer(v) || l < 0 || l >= c->recipe.layers) {
            tr_config_fail(r, TR_ERR_FORMAT, "mlp_only_layers",
                           "mlp_only_layers has something that is not the "
                           "number of a layer");
            return;
        }
        c->recipe.layer[l].experts = false;
    }
}

/* Of its config's intermediate_size each expert has that; there is no other
 * MLP.  Biases everywhere. */
static void
fold_gpt_oss(struct tr_config_reader *r, tr_model_config_t *c)
{
    tr_moe_t *moe = &c->recipe.moe;

    (void) r;
    moe->width = c->recipe.intermediate;
    moe->router_bias = moe->biases = true;
    moe->route.score = TR_ROUTE_TOP_SOFTMAX;
    moe->route.groups = moe->route.top_groups = 1;
    moe->route.scale = 1;
}

/* The first first_k_dense_replace layers are dense. */
static void
fold_glm4_moe(struct tr_config_reader *r, tr_model_config_t *c)
{
    uint32_t dense = tr_config_uint(r, r->root, "first_k_dense_replace", 1, 0,
                                    TR_LAYERS_MAX);

    set_biases(c, TR_BIAS_QKV);
    c->recipe.moe.shared = c->shared_experts * c->recipe.moe.width;
    c->recipe.moe.choice_bias = true;
    c->recipe.moe.route.score = TR_ROUTE_SIGMOID;
    for (uint32_t l = 0; l < c->recipe.layers; l++) {
        c->recipe.layer[l].experts = l >= dense;
        c->recipe.layer[l].qk_norm = c->qk_norm ? TR_QK_NORM_HEAD
                                                : TR_QK_NORM_NONE;
    }
}

#define PRE_NORMS (TR_NORM_PRE_ATTN | TR_NORM_PRE_MLP)
#define POST_NORMS (TR_NORM_POST_ATTN | TR_NORM_POST_MLP)

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
    { .model_type = "ministral3",
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
    { .model_type = "gemma3_text",
      .layer = { .norms = PRE_NORMS | POST_NORMS,
                 .act = TR_ACT_GELU_TANH,
                 .qk_norm = TR_QK_NORM_HEAD },
      .always_slides = true,
      .slide_pattern = 6,
      .local_rope = true,
      .theta = 1000000,
      .local_theta = 10000,
      .norm_plus_one = true,
      .keys = gemma3_keys,
      .tensors = gemma3_tensors,
      .fold = fold_gemma3 },
    { .model_type = "phi3", /* 3, 3.5 and 4 */
      .layer = { .norms = PRE_NORMS, .act = TR_ACT_SILU },
      .always_slides = true,
      .keys = llama_keys,
      .tensors = phi3_tensors },
    { .model_type = "olmo2",
      .layer = { .norms = POST_NORMS,
                 .act = TR_ACT_SILU,
                 .qk_norm = TR_QK_NORM_ROW },
      .keys = llama_keys,
      .tensors = gemma3_tensors,
      .fold = with_attention_bias },
    { .model_type = "olmo3",
      .layer = { .norms = POST_NORMS,
                 .act = TR_ACT_SILU,
                 .qk_norm = TR_QK_NORM_ROW },
      .always_slides = true,
      .slide_pattern = 4,
      .local_rope = true,
      .keys = llama_keys,
      .tensors = gemma3_tensors,
      .fold = with_attention_bias },
    { .model_type = "granite", /* 3 */
      .layer = { .norms = PRE_NORMS, .act = TR_ACT_SILU },
      .keys = granite_keys,
      .tensors = llama_tensors,
      .fold = fold_granite },
    { .model_type = "granitemoehybrid", /* 4, dense */
      .layer = { .norms = PRE_NORMS, .act = TR_ACT_SILU },
      .keys = granite_hybrid_keys,
      .tensors = granite_hybrid_tensors,
      .fold = fold_granite_hybrid },
    { .model_type = "smollm3",
      .layer = { .norms = PRE_NORMS, .act = TR_ACT_SILU },
      .keys = llama_keys,
      .tensors = llama_tensors,
      .fold = fold_smollm3 },
    { .model_type = "glm4",
      .layer = { .norms = PRE_NORMS | POST_NORMS, .act = TR_ACT_SILU },
      .partial_rotary = 0.5,
      .rope_interleaved = true,
      .keys = llama_keys,
      .tensors = glm4_tensors,
      .fold = with_qkv_bias },
    { .model_type = "glm4_moe", /* GLM-4.5 */
      .layer = { .norms = PRE_NORMS, .act = TR_ACT_SILU },
      .partial_rotary = 0.5,
      .keys = glm4_moe_keys,
      .tensors = glm4_moe_tensors,
      .fold = fold_glm4_moe },
    { .model_type = "qwen3_moe",
      .layer = { .norms = PRE_NORMS,
                 .act = TR_ACT_SILU,
                 .qk_norm = TR_QK_NORM_HEAD },
      .keys = qwen3_moe_keys,
      .tensors = qwen3_moe_tensors,
      .fold = fold_qwen3_moe },
    { .model_type = "gpt_oss",
      .layer = { .norms = PRE_NORMS,
                 .act = TR_ACT_OAI,
                 .biases = TR_BIAS_QKV | TR_BIAS_O,
                 .experts = true,
                 .sinks = true },
      .always_slides = true,
      .slide_pattern = 2,
      .keys = gpt_oss_keys,
      .tensors = gpt_oss_tensors,
      .fold = fold_gpt_oss },
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
