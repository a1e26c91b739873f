/*
 * Recipes: what follows from one, its words for people, and a table of recipes
 * that a plain backend must refuse, with the words of the error, and the backends
 * of today run or refuse.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/cpu/model.h"
#include "engine/model/cuda/model_cuda.h"
#include "engine/model/model_families.h"

#define LAYERS 4u

static const tr_layer_recipe_t usual = { .norms = TR_NORM_PRE_ATTN
                                                  | TR_NORM_PRE_MLP };

/* Heads of 16, two on each of two KV heads. */
static tr_recipe_t
recipe(void)
{
    tr_recipe_t r = { .vocab = 100,
                      .hidden = 32,
                      .intermediate = 48,
                      .layers = LAYERS,
                      .query_heads = 4,
                      .kv_heads = 2,
                      .head_dim = 16,
                      .max_positions = 2048,
                      .norm_eps = 1e-6f,
                      .attn_scale = 0.25f,
                      .embed_scale = 1,
                      .residual_scale = 1,
                      .logit_scale = 1,
                      .rotary_dim = 16,
                      .n_ropes = 1,
                      .rope = { { .theta = 10000, .amp = 1 } } };

    for (uint32_t l = 0; l < LAYERS; l++) {
        r.layer[l] = usual;
    }
    return r;
}

/* Counted by hand: embedding 3200, q, k, v 4096, o 2048, MLP 4608, norms. */
static void
test_parameters(void **state)
{
    const uint64_t layer = 4096 + 2048 + 4608 + 64;
    tr_recipe_t r = recipe();

    (void) state;
    assert_int_equal(tr_recipe_parameters(&r), 2 * 3200 + 32 + LAYERS * layer);
    r.tied = true;
    assert_int_equal(tr_recipe_parameters(&r), 3200 + 32 + LAYERS * layer);
    r.layer[1].biases = TR_BIAS_QKV;
    r.layer[2].biases = TR_BIAS_O;
    r.layer[3].qk_norm = TR_QK_NORM_HEAD;
    assert_int_equal(tr_recipe_parameters(&r),
                     3200 + 32 + LAYERS * layer + 128 + 32 + 2 * 16);
}

/* A layer has the parts that its own recipe lists. */
static void
test_parts(void **state)
{
    static const struct {
        tr_part_t part;
        uint32_t layer, rows, columns;
    } cases[] = {
        { TR_PART_QKV, 0, 128, 32 },    { TR_PART_O, 0, 32, 64 },
        { TR_PART_GATE_UP, 3, 96, 32 }, { TR_PART_DOWN, 3, 32, 48 },
        { TR_PART_QKV_BIAS, 0, 0, 0 },  { TR_PART_QKV_BIAS, 1, 128, 1 },
        { TR_PART_O_BIAS, 1, 0, 0 },    { TR_PART_O_BIAS, 2, 32, 1 },
        { TR_PART_Q_NORM, 2, 0, 0 },    { TR_PART_Q_NORM, 3, 16, 1 },
        { TR_PART_HEAD, 0, 100, 32 },
    };
    tr_recipe_t r = recipe();

    (void) state;
    r.layer[1].biases = TR_BIAS_QKV;
    r.layer[2].biases = TR_BIAS_O;
    r.layer[3].qk_norm = TR_QK_NORM_HEAD;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_part_shape_t s = tr_part_shape(&r, cases[i].part, cases[i].layer);

        assert_int_equal(s.rows, cases[i].rows);
        assert_int_equal(s.columns, cases[i].columns);
    }
}

/* Tensors are listed layer by layer, those that a layer has. */
static void
test_tensors(void **state)
{
    static const char *const expected[] = {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.k_proj.bias",
        "model.layers.3.post_attention_layernorm.weight",
    };
    tr_model_config_t c = { .family = tr_family_find("llama"),
                            .recipe = recipe() };
    uint32_t at = 0, n = 0, found = 0;
    tr_model_tensor_t t;

    (void) state;
    c.recipe.tied = true;
    c.recipe.layer[1].biases = TR_BIAS_QKV;
    while (tr_model_tensor_next(&c, &at, &t)) {
        n++;
        if (found < 6 && strcmp(t.name, expected[found]) == 0) {
            found++;
        }
        if (strcmp(t.name, "model.layers.1.self_attn.k_proj.bias") == 0) {
            assert_true(t.part == TR_PART_QKV_BIAS && t.layer == 1
                        && t.row == 64 && t.rows == 32 && t.columns == 1);
        }
    }
    assert_int_equal(found, 6);
    assert_int_equal(n, 2 + LAYERS * 9 + 3);
    assert_false(tr_model_tensor_next(&c, &at, &t));
}

static void
test_describe(void **state)
{
    tr_recipe_t r = recipe();
    char text[TR_RECIPE_TEXT];

    (void) state;
    r.tied = true;
    r.layer[1].reach = 512;
    r.layer[3].qk_norm = TR_QK_NORM_HEAD;
    r.layer[3].biases = TR_BIAS_QKV | TR_BIAS_O;
    r.layer[3].rope = TR_ROPE_NONE;
    r.rope[0] = (tr_rope_t){ .type = TR_ROPE_LLAMA3,
                             .theta = 5e5,
                             .factor = 8,
                             .low = 1,
                             .high = 4,
                             .original = 8192,
                             .amp = 1 };
    tr_recipe_describe(&r, text);
    assert_string_equal(
        text,
        "model: 4 layers, hidden 32, mlp 48, 4 query heads on 2 KV heads of "
        "16, vocabulary 100, tied head, 2048 positions, 46688 parameters\n"
        "layer 0: norms pre_attn, pre_mlp; qk_norm none; biases none; "
        "act silu; rope 0\n"
        "layer 1: norms pre_attn, pre_mlp; qk_norm none; biases none; "
        "act silu; rope 0; reach 512\n"
        "layer 2: norms pre_attn, pre_mlp; qk_norm none; biases none; "
        "act silu; rope 0\n"
        "layer 3: norms pre_attn, pre_mlp; qk_norm head; biases qkv, o; "
        "act silu; no rope\n"
        "rope 0: llama3, theta 500000, factor 8, low 1, high 4, original "
        "8192\n");
    /* however many kinds of layers there are, it ends in time */
    r.layers = TR_LAYERS_MAX;
    for (uint32_t l = 0; l < TR_LAYERS_MAX; l++) {
        r.layer[l] = usual;
        r.layer[l].reach = l % 2 ? 16 : 0;
    }
    tr_recipe_describe(&r, text);
    assert_int_equal(strlen(text), TR_RECIPE_TEXT - 1);
}

/* ---- refusals ------------------------------------------------------------ */

static void
missing_norm(tr_recipe_t *r)
{
    r->layer[2].norms = TR_NORM_PRE_MLP;
}

static void
post_norms(tr_recipe_t *r)
{
    r->layer[0].norms |= TR_NORM_POST_ATTN | TR_NORM_POST_MLP;
}

static void
row_norm(tr_recipe_t *r)
{
    r->layer[1].qk_norm = TR_QK_NORM_ROW;
}

static void
gelu(tr_recipe_t *r)
{
    r->layer[3].act = TR_ACT_GELU_TANH;
}

static void
other_bias(tr_recipe_t *r)
{
    r->layer[3].biases = TR_BIAS_O | TR_BIAS_MLP;
}

static void
second_table(tr_recipe_t *r)
{
    r->n_ropes = 2;
}

static void
table_of_another(tr_recipe_t *r)
{
    r->layer[2].rope = 1;
}

static void
no_rope(tr_recipe_t *r)
{
    r->layer[2].rope = TR_ROPE_NONE;
}

static void
slides(tr_recipe_t *r)
{
    r->layer[1].reach = 2047;
}

static void
scaled(tr_recipe_t *r)
{
    r->embed_scale = 12;
    r->final_softcap = 30;
}

static void
partial(tr_recipe_t *r)
{
    r->rotary_dim = 8;
}

static const struct {
    void (*change)(tr_recipe_t *r);
    const char *words; /* behind "backend NAME: " */
    bool all;          /* refused by cpu and cuda, too */
} refused[] = {
    { .change = missing_norm,
      .words = "layer 2 of the model has norms pre_mlp, expected "
               "pre_attn, pre_mlp" },
    { .change = post_norms,
      .words = "layer 0 of the model has norms pre_attn, post_attn, "
               "pre_mlp, post_mlp, expected pre_attn, pre_mlp" },
    { .change = row_norm,
      .words = "layer 1 of the model has qk_norm row, expected none, head" },
    { .change = gelu,
      .words = "layer 3 of the model has act gelu_pytorch_tanh, expected "
               "silu" },
    { .change = other_bias,
      .words = "layer 3 of the model has biases o, mlp, expected qkv, o",
      .all = true },
    { .change = second_table,
      .words = "the model has 2 tables of rotary frequencies with "
               "amplitude 1 on 16 dims and query temperature 0, expected "
               "1, 1, 16 and 0" },
    { .change = partial,
      .words = "the model has 1 tables of rotary frequencies with amplitude 1 "
               "on 8 dims and query temperature 0, expected 1, 1, 16 and 0" },
    { .change = scaled,
      .words = "the model scales embeddings by 12, residuals by 1, logits by 1 "
               "and caps logits at 30, expected 1, 1, 1 and 0" },
    { .change = table_of_another,
      .words = "layer 2 of the model has rope 1, expected 0" },
    { .change = no_rope,
      .words = "layer 2 of the model has rope none, expected 0" },
    { .change = slides,
      .words = "layer 1 of the model has reach 2047, expected at least the "
               "2048 positions of a sequence" },
};

/* A backend with nothing but what every one has. */
static tr_status_t
plain_check(const tr_recipe_t *r, uint32_t rotate, tr_error_t *err)
{
    static const tr_recipe_support_t support = {
        .name = "plain",
        .biases = TR_BIAS_QKV | TR_BIAS_O,
        .qk_norms = 1u << TR_QK_NORM_NONE | 1u << TR_QK_NORM_HEAD,
        .acts = 1u << TR_ACT_SILU,
    };

    assert_int_equal(rotate, 0);
    return tr_recipe_check(r, &support, err);
}

static const struct {
    const char *name;
    tr_status_t (*check)(const tr_recipe_t *r, uint32_t rotate,
                         tr_error_t *err);
    bool plain;
} backends[] = {
    { "cpu", tr_model_check, false },
    { "cuda", tr_model_cuda_check, false },
    { "plain", plain_check, true },
};

#define BACKENDS (sizeof(backends) / sizeof(backends[0]))

static void
test_refused(void **state)
{
    (void) state;
    for (size_t i = 0; i < BACKENDS * sizeof(refused) / sizeof(refused[0]);
         i++) {
        size_t backend = i % BACKENDS, row = i / BACKENDS;
        tr_recipe_t r = recipe();
        char words[256];
        tr_error_t err = { 0 };

        assert_int_equal(backends[backend].check(&r, 0, &err), TR_OK);
        refused[row].change(&r);
        if (!backends[backend].plain && !refused[row].all) {
            assert_int_equal(backends[backend].check(&r, 0, &err), TR_OK);
            continue;
        }
        snprintf(words, sizeof(words), "backend %s: %s", backends[backend].name,
                 refused[row].words);
        assert_int_equal(backends[backend].check(&r, 0, &err),
                         TR_ERR_UNSUPPORTED);
        assert_string_equal(err.text, words);
    }
}

static void
test_reaches(void **state)
{
    tr_recipe_t r = recipe();
    uint32_t reach[TR_LAYERS_MAX];

    (void) state;
    assert_int_equal(tr_recipe_reach(&r), 0);
    r.layer[1].reach = 512;
    r.layer[2].reach = 128;
    tr_recipe_reaches(&r, reach);
    assert_int_equal(tr_recipe_reach(&r), 128);
    assert_true(reach[0] == 0 && reach[1] == 512 && reach[2] == 128);
}

/* Pairs that the files have elsewhere: (i, i + 3) and (2 i, 2 i + 1) of the first
 * six dims of ten. */
static void
test_rotary_source(void **state)
{
    static const uint32_t halves[] = { 0, 1, 2, 6, 7, 3, 4, 5, 8, 9 };
    static const uint32_t neighbours[] = { 0, 2, 4, 6, 7, 1, 3, 5, 8, 9 };
    tr_recipe_t r = { .head_dim = 10, .rotary_dim = 6 };

    (void) state;
    for (uint32_t d = 0; d < 10; d++) {
        r.rope_interleaved = false;
        assert_int_equal(tr_recipe_rotary_source(&r, d), halves[d]);
        r.rope_interleaved = true;
        assert_int_equal(tr_recipe_rotary_source(&r, d), neighbours[d]);
    }
}

/* What every backend runs. */
static void
test_run(void **state)
{
    (void) state;
    for (size_t i = 0; i < BACKENDS; i++) {
        tr_recipe_t r = recipe();
        tr_error_t err = { 0 };

        r.layer[0].biases = TR_BIAS_QKV;
        r.layer[1].biases = TR_BIAS_QKV | TR_BIAS_O;
        r.layer[2].qk_norm = TR_QK_NORM_HEAD;
        r.layer[3].reach = 2048; /* as far as a sequence goes */
        assert_int_equal(tr_recipe_reach(&r), 2048);
        assert_int_equal(backends[i].check(&r, 0, &err), TR_OK);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters), cmocka_unit_test(test_parts),
        cmocka_unit_test(test_tensors),    cmocka_unit_test(test_describe),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_run),
        cmocka_unit_test(test_reaches),    cmocka_unit_test(test_rotary_source),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
