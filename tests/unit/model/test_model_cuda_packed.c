/*
 * Quantised checkpoints whose weights stay packed on a device, over the software
 * device (tests/soft): a random model in each format gives the logits of the same
 * files expanded to 16 bits at load, in long prompts (whose products unpack), in
 * short ones and in single tokens (which read packed weights), fused or not.  What
 * cannot stay packed is expanded, alone.  Of long prompts rows are rounded to FP8
 * where that is wanted: by the checkpoint, or by the settings.
 */
#include "tests/unit/fixtures/model_cuda_fixture.h"
#include "tests/unit/fixtures/packed_fixture.h"

#include <math.h>

#define HIDDEN 256u
#define INNER 256u
#define HEADS 4u
#define KV_HEADS 2u
#define HEAD 64u
#define LAYERS 2u
#define VOCAB 64u
#define LONG 140u
#define SHORT 20u
#define TOLERANCE 3e-2 /* of the largest logit: rounding of weights to BF16 */
#define TOLERANCE_FP8 6e-2 /* .. and of rows to FP8 */

static uint64_t rng;

typedef enum { FP8_BLOCK, FP8_CHANNEL, WORDS, AWQ, GPTQ } kind_t;

typedef struct {
    const char *name;
    const char *quantization; /* config.json */
    kind_t kind;
    uint32_t group;
    bool shuffled; /* GPTQ: columns are in an order of their own */
    bool declared; /* rows are FP8, too */
    tr_weight_form_t form;
} case_t;

#define COMPRESSED(weights)                                           \
    "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {" \
    "\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {" weights \
    ", \"dynamic\": false}, \"input_activations\": null}}, \"format\": "

static const case_t cases[] = {
    { "FP8 by block",
      "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}",
      FP8_BLOCK,
      128,
      false,
      true,
      { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 128 } },
    { "FP8 by row",
      COMPRESSED("\"symmetric\": true, \"num_bits\": 8, \"type\": \"float\", "
                 "\"strategy\": \"channel\"") "\"float-quantized\"}",
      FP8_CHANNEL,
      0,
      false,
      false,
      { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 0 } },
    { "INT4, zero points, groups of 32",
      COMPRESSED(
          "\"symmetric\": false, \"num_bits\": 4, \"type\": \"int\", "
          "\"strategy\": \"group\", \"group_size\": 32") "\"pack-quantized\"}",
      WORDS,
      32,
      false,
      false,
      { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 32 } },
    { "AWQ, groups of 64",
      "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64, "
      "\"zero_point\": true, \"version\": \"gemm\"}",
      AWQ,
      64,
      false,
      false,
      { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 64 } },
    { "GPTQ, groups of 128",
      "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, "
      "\"desc_act\": false, \"sym\": false}",
      GPTQ,
      128,
      false,
      false,
      { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 128 } },
    { "GPTQ, columns reordered",
      "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 64, "
      "\"desc_act\": true, \"sym\": false}",
      GPTQ,
      64,
      true,
      false,
      { TR_WEIGHT_16, TR_WEIGHT_PLAIN, 0 } },
};

/* ---- a checkpoint --------------------------------------------------------- */

/* A tensor [a][b] (b 0: [a]) of random elements of one type. */
static void
put(writer_t *w, const char *stem, const char *part, const char *dtype,
    size_t a, size_t b, double low, double high)
{
    json_t *shape = b == 0
                        ? json_pack("[I]", (json_int_t) a)
                        : json_pack("[I, I]", (json_int_t) a, (json_int_t) b);
    char name[200];

    snprintf(name, sizeof(name), "%s%s", stem, part);
    put_random(w, &rng, name, dtype, shape, a * (b == 0 ? 1 : b), low, high);
}

/* The group of each column. */
static void
put_groups(writer_t *w, const char *stem, const case_t *c, uint32_t k)
{
    uint32_t *group = calloc(k, sizeof(*group));
    json_t *shape = json_pack("[I]", (json_int_t) k);
    char name[200];

    assert_non_null(group);
    for (uint32_t i = 0; i < k; i++) {
        group[i] = c->shuffled ? i % (k / c->group) : i / c->group;
    }
    snprintf(name, sizeof(name), "%s.g_idx", stem);
    put_tensor(w, name, "I32", shape, group, k * sizeof(*group));
    json_decref(shape);
    free(group);
}

static void
put_weight(writer_t *w, const case_t *c, uint32_t layer, const char *name,
           uint32_t n, uint32_t k)
{
    double most = (c->kind <= FP8_CHANNEL ? 0.7 : 0.2) / sqrt(k);
    uint32_t g = c->group;
    char stem[120];

    snprintf(stem, sizeof(stem), "model.layers.%u.%s", layer, name);
    switch (c->kind) {
    case FP8_BLOCK:
        put(w, stem, ".weight", "F8_E4M3", n, k, 0, 0);
        put(w, stem, ".weight_scale_inv", "F32", (n + 127) / 128,
            (k + 127) / 128, most / 2, most);
        break;
    case FP8_CHANNEL:
        put(w, stem, ".weight", "F8_E4M3", n, k, 0, 0);
        put(w, stem, ".weight_scale", "BF16", n, 1, most / 2, most);
        break;
    case WORDS:
        put(w, stem, ".weight_packed", "I32", n, k / 8, 0, 0);
        put(w, stem, ".weight_scale", "BF16", n, k / g, most / 2, most);
        put(w, stem, ".weight_zero_point", "I32", n / 8, k / g, 0, 0);
        break;
    case AWQ:
        put(w, stem, ".qweight", "I32", k, n / 8, 0, 0);
        put(w, stem, ".qzeros", "I32", k / g, n / 8, 0, 0);
        put(w, stem, ".scales", "F16", k / g, n, most / 2, most);
        break;
    case GPTQ:
        put(w, stem, ".qweight", "I32", k / 8, n, 0, 0);
        put(w, stem, ".qzeros", "I32", k / g, n / 8, 0, 0);
        put(w, stem, ".scales", "F16", k / g, n, most / 2, most);
        put_groups(w, stem, c, k);
        break;
    }
}

static void
write_model(const case_t *c)
{
    writer_t w = { .header = json_object() };
    json_t *config = load_json(MODELS "/int4", "config.json");
    json_error_t je;
    json_t *q = json_loads(c->quantization, 0, &je);

    if (q == NULL) {
        fail_msg("%s: %s", c->name, je.text);
    }
    json_object_set_new(config, "quantization_config", q);
    json_object_set_new(config, "attention_bias", json_false());
    json_object_set_new(config, "hidden_size", json_integer(HIDDEN));
    json_object_set_new(config, "intermediate_size", json_integer(INNER));
    json_object_set_new(config, "num_attention_heads", json_integer(HEADS));
    json_object_set_new(config, "num_key_value_heads", json_integer(KV_HEADS));
    json_object_set_new(config, "head_dim", json_integer(HEAD));
    json_object_set_new(config, "num_hidden_layers", json_integer(LAYERS));
    write_config(config);
    put(&w, "model.embed_tokens", ".weight", "BF16", VOCAB, HIDDEN, -1, 1);
    put(&w, "lm_head", ".weight", "BF16", VOCAB, HIDDEN, -0.2, 0.2);
    put(&w, "model.norm", ".weight", "BF16", HIDDEN, 0, 0.5, 1.5);
    for (uint32_t l = 0; l < LAYERS; l++) {
        char stem[80];

        snprintf(stem, sizeof(stem), "model.layers.%u.input_layernorm", l);
        put(&w, stem, ".weight", "BF16", HIDDEN, 0, 0.5, 1.5);
        snprintf(stem, sizeof(stem), "model.layers.%u.post_attention_layernorm",
                 l);
        put(&w, stem, ".weight", "BF16", HIDDEN, 0, 0.5, 1.5);
        put_weight(&w, c, l, "self_attn.q_proj", HEADS * HEAD, HIDDEN);
        put_weight(&w, c, l, "self_attn.k_proj", KV_HEADS * HEAD, HIDDEN);
        put_weight(&w, c, l, "self_attn.v_proj", KV_HEADS * HEAD, HIDDEN);
        put_weight(&w, c, l, "self_attn.o_proj", HIDDEN, HEADS * HEAD);
        put_weight(&w, c, l, "mlp.gate_proj", INNER, HIDDEN);
        put_weight(&w, c, l, "mlp.up_proj", INNER, HIDDEN);
        put_weight(&w, c, l, "mlp.down_proj", HIDDEN, INNER);
    }
    write_tensors(&w);
}

/* ---- its logits ----------------------------------------------------------- */

static const uint32_t pieces[] = { LONG, SHORT, 1, 1, 70 };
#define PIECES (sizeof(pieces) / sizeof(pieces[0]))

static void
compare(const char *name, float want[PIECES][VOCAB], float got[PIECES][VOCAB],
        double tolerance)
{
    double worst = 0;

    for (size_t i = 0; i < PIECES; i++) {
        double largest = 0;

        for (uint32_t j = 0; j < VOCAB; j++) {
            largest = fmax(largest, fabs((double) want[i][j]));
        }
        assert_true(largest > 0.1);
        for (uint32_t j = 0; j < VOCAB; j++) {
            double apart = fabs((double) got[i][j] - (double) want[i][j])
                           / largest;

            if (!(apart <= tolerance)) {
                fail_msg("%s, piece %zu: logit %u is %g, expanded %g", name, i,
                         j, (double) got[i][j], (double) want[i][j]);
            }
            worst = fmax(worst, apart);
        }
    }
    print_message("%s: worst error %.2g\n", name, worst);
}

static void
check_forms(const case_t *c, const tr_model_cuda_t *m)
{
    static const tr_part_t parts[] = { TR_PART_QKV, TR_PART_O, TR_PART_GATE_UP,
                                       TR_PART_DOWN };

    for (uint32_t l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < 4; i++) {
            tr_weight_form_t f = m->layers[l].form[parts[i]];

            assert_int_equal(f.format, c->form.format);
            assert_int_equal(f.group, c->form.group);
            assert_int_equal(f.order, f.format != TR_WEIGHT_16
                                              && parts[i] == TR_PART_GATE_UP
                                          ? TR_WEIGHT_PAIRS
                                          : TR_WEIGHT_PLAIN);
        }
    }
}

/* Rows in FP8 where that is wanted: other bits than in 16. */
static void
in_fp8(const case_t *c, const int32_t *tokens, float want[PIECES][VOCAB],
       float in_16[PIECES][VOCAB])
{
    float got[PIECES][VOCAB];
    model_cuda_t b;

    for (int always = 0; always < 2; always++) {
        model_cuda_fp8 = always ? TR_FP8_ALWAYS : TR_FP8_DECLARED;
        model_cuda_open_packed(&b, dir, "auto", true, 0, true, false);
        assert_int_equal(b.model->fp8_columns,
                         always || c->declared ? HIDDEN : 0);
        model_cuda_pieces(&b, tokens, pieces, PIECES, got[0]);
        if (b.model->fp8_columns != 0) {
            compare(c->name, want, got, TOLERANCE_FP8);
            assert_memory_not_equal(in_16[0], got[0], sizeof(got[0]));
        }
        model_cuda_close(&b);
    }
}

static void
one_case(const case_t *c)
{
    float want[PIECES][VOCAB], got[PIECES][VOCAB];
    int32_t tokens[256];
    size_t expanded;
    model_cuda_t b;

    write_model(c);
    for (size_t i = 0; i < 256; i++) {
        tokens[i] = (int32_t) rng_below(&rng, VOCAB);
    }
    model_cuda_open_packed(&b, dir, "bf16", true, 0, false, false);
    check_forms(&(case_t){ .form = { TR_WEIGHT_16, TR_WEIGHT_PLAIN, 0 } },
                b.model);
    expanded = b.model->weights_size;
    model_cuda_pieces(&b, tokens, pieces, PIECES, want[0]);
    model_cuda_close(&b);
    for (int fused = 0; fused < 2; fused++) {
        model_cuda_fp8 = TR_FP8_NEVER;
        model_cuda_open_packed(&b, dir, "auto", fused, 0, true, false);
        assert_int_equal(b.model->fp8_columns, 0);
        check_forms(c, b.model);
        if (c->form.format != TR_WEIGHT_16) {
            assert_int_equal(b.model->type, TR_BF16);
            assert_true(b.model->weights_size < expanded);
        }
        model_cuda_pieces(&b, tokens, pieces, PIECES, got[0]);
        compare(c->name, want, got, TOLERANCE);
        model_cuda_close(&b);
    }
    if (c->form.format == TR_WEIGHT_FP8) {
        in_fp8(c, tokens, want, got);
    }
}

static void
test_formats(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        one_case(&cases[i]);
    }
}

/* F16 that is asked for, and another basis, which no codes have. */
static void
test_expanded(void **state)
{
    case_t c = cases[0];
    model_cuda_t b;

    (void) state;
    c.form = (tr_weight_form_t){ TR_WEIGHT_16, TR_WEIGHT_PLAIN, 0 };
    write_model(&c);
    model_cuda_open_packed(&b, dir, "f16", true, 0, true, false);
    check_forms(&c, b.model);
    model_cuda_close(&b);
    model_cuda_open_packed(&b, dir, "bf16", true, TR_ROTATE_VALUES, true,
                           false);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const tr_weight_form_t *f = b.model->layers[l].form;

        assert_int_equal(f[TR_PART_QKV].format, TR_WEIGHT_16);
        assert_int_equal(f[TR_PART_O].format, TR_WEIGHT_16);
        assert_int_equal(f[TR_PART_DOWN].format, TR_WEIGHT_FP8);
    }
    model_cuda_close(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_expanded),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
