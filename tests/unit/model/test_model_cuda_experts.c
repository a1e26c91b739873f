/*
 * Checkpoints whose experts are quantised and stay packed on a device, over the
 * software device (tests/soft): a random model in each format gives, bit for bit,
 * the logits of the same files expanded to 16 bits at load, in prompts and in
 * single tokens, in less memory.  An expert that is in 16 bits, and sides that kernels do
 * not have, expand their part alone.
 */
#include "tests/unit/fixtures/model_cuda_fixture.h"
#include "tests/unit/fixtures/packed_fixture.h"

#include "engine/config/log.h"

#include <math.h>

#define HIDDEN 256u
#define VOCAB 256u
#define LONG 100u

static uint64_t rng;

typedef struct {
    const char *name;
    const char *model;        /* of tests/models */
    const char *quantization; /* config.json */
    const char *width;        /* the key of the experts' width */
    uint32_t inner;           /* it */
    tr_weight_format_t format;
    uint32_t group;
    uint32_t plain; /* how many of the last layers have `down` in 16 bits */
} case_t;

#define FP8 "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"
#define INT4                                                            \
    "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {"   \
    "\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {"           \
    "\"symmetric\": false, \"num_bits\": 4, \"type\": \"int\", "        \
    "\"strategy\": \"group\", \"group_size\": 32, \"dynamic\": false}," \
    "\"input_activations\": null}}, \"format\": \"pack-quantized\"}"
#define MXFP4 "{\"quant_method\": \"mxfp4\"}"

static const case_t cases[] = {
    { "MXFP4", "gpt_oss", MXFP4, "intermediate_size", 64, TR_WEIGHT_MXFP4, 32,
      0 },
    { "MXFP4, a width that is no multiple of 64", "gpt_oss", MXFP4,
      "intermediate_size", 32, TR_WEIGHT_MXFP4, 32, 4 },
    { "FP8", "qwen3_moe", FP8, "moe_intermediate_size", 256, TR_WEIGHT_FP8, 128,
      0 },
    { "INT4", "qwen3_moe", INT4, "moe_intermediate_size", 64, TR_WEIGHT_INT4,
      32, 0 },
    { "INT4, one expert plain", "qwen3_moe", INT4, "moe_intermediate_size", 64,
      TR_WEIGHT_INT4, 32, 1 },
};

static bool
of_experts(tr_part_t part)
{
    return part == TR_PART_EXPERT_GATE_UP || part == TR_PART_EXPERT_DOWN;
}

/* ---- a checkpoint --------------------------------------------------------- */

static json_t *
shape_of(uint32_t n, const size_t *dims)
{
    json_t *shape = json_array();

    for (uint32_t i = 0; i < n; i++) {
        json_array_append_new(shape, json_integer((json_int_t) dims[i]));
    }
    return shape;
}

static void
put(writer_t *w, const char *name, const char *part, const char *dtype,
    uint32_t n, const size_t *dims, double low, double high)
{
    char whole[200];
    size_t all = 1;

    snprintf(whole, sizeof(whole), "%s%s", name, part);
    for (uint32_t i = 0; i < n; i++) {
        all *= dims[i];
    }
    put_random(w, &rng, whole, dtype, shape_of(n, dims), all, low, high);
}

static void
put_plain(writer_t *w, const tr_model_tensor_t *t)
{
    double most = t->part >= TR_PART_MATRICES ? 0.5
                                              : 1.7 / sqrt((double) t->columns);
    size_t dims[3];
    uint32_t n = 0;

    if (t->experts != 0) {
        dims[n++] = t->experts;
    }
    if (t->transposed) {
        dims[n++] = t->columns;
    }
    dims[n++] = t->experts != 0 ? t->rows / t->experts : t->rows;
    if (t->part < TR_PART_MATRICES && !t->transposed) {
        dims[n++] = t->columns;
    }
    put(w, t->name, "", "BF16", n, dims,
        t->part >= TR_PART_MATRICES ? 0.1 : -most, most);
}

static void
put_codes(writer_t *w, const case_t *c, const tr_model_tensor_t *t)
{
    size_t n = t->rows, k = t->columns, one = n / (t->experts ? t->experts : 1);
    double most = 0.4 / sqrt((double) k);
    char stem[TR_TENSOR_NAME];

    snprintf(stem, sizeof(stem), "%s", t->name);
    if (c->format != TR_WEIGHT_FP8 && strstr(stem, ".weight") != NULL) {
        *strstr(stem, ".weight") = '\0';
    }
    if (strcmp(c->quantization, MXFP4) == 0) {
        put(w, stem, "_blocks", "U8", 4,
            (size_t[]){ t->experts, one, k / 32, 16 }, 0, 256);
        put(w, stem, "_scales", "U8", 3, (size_t[]){ t->experts, one, k / 32 },
            120, 124);
    } else if (c->format == TR_WEIGHT_FP8) {
        put(w, stem, "", "F8_E4M3", 2, (size_t[]){ n, k }, 0, 0);
        put(w, stem, "_scale_inv", "F32", 2,
            (size_t[]){ (n + 127) / 128, k / 128 }, most, 2 * most);
    } else {
        put(w, stem, ".weight_packed", "I32", 2, (size_t[]){ n, k / 8 }, 0, 0);
        put(w, stem, ".weight_scale", "BF16", 2, (size_t[]){ n, k / 32 },
            most / 2, most);
        put(w, stem, ".weight_zero_point", "I32", 2,
            (size_t[]){ n / 8, k / 32 }, 0, 0);
    }
}

static void
write_model(const case_t *c)
{
    writer_t w = { .header = json_object() };
    char from[100];
    json_t *config;
    tr_model_config_t model;
    tr_model_tensor_t t;
    tr_error_t err;
    uint32_t at = 0;

    snprintf(from, sizeof(from), "tests/models/%s", c->model);
    config = load_json(from, "config.json");
    json_object_set_new(config, "quantization_config",
                        json_loads(c->quantization, 0, NULL));
    json_object_set_new(config, "hidden_size", json_integer(HIDDEN));
    json_object_set_new(config, c->width, json_integer(c->inner));
    write_config(config);
    if (tr_model_config_load(dir, NULL, &model, &err) != TR_OK) {
        fail_msg("%s: %s", c->name, err.text);
    }
    while (tr_model_tensor_next(&model, &at, &t)) {
        bool plain = c->plain == 1 && t.part == TR_PART_EXPERT_DOWN
                     && t.layer + 1 == model.recipe.layers
                     && t.row + t.rows
                            == HIDDEN * model.recipe.moe.route.experts;

        if (of_experts(t.part) && !plain) {
            put_codes(&w, c, &t);
        } else {
            put_plain(&w, &t);
        }
    }
    write_tensors(&w);
}

/* ---- its logits ----------------------------------------------------------- */

static const uint32_t pieces[] = { LONG, 1, 1, 20 };
#define PIECES (sizeof(pieces) / sizeof(pieces[0]))

static void
check_forms(const case_t *c, const tr_model_cuda_t *m)
{
    const tr_recipe_t *r = &m->config.recipe;

    for (uint32_t l = 0; l < r->layers; l++) {
        for (tr_part_t part = 0; part < TR_PART_MATRICES; part++) {
            tr_weight_form_t f = m->layers[l].form[part];
            bool plain = l + c->plain >= r->layers
                         && part == TR_PART_EXPERT_DOWN;

            if (!of_experts(part) || plain
                || tr_part_shape(r, part, l).rows == 0) {
                assert_int_equal(f.format, TR_WEIGHT_16);
            } else {
                assert_int_equal(f.format, c->format);
                assert_int_equal(f.group, c->group);
                assert_int_equal(f.order, TR_WEIGHT_EIGHTS);
            }
        }
    }
}

/* With cuda_trial single tokens have their other products by small_gemm: the same
 * logits but for rounding. */
static void
in_trial(const case_t *c, const int32_t *tokens, float want[PIECES][VOCAB],
         float most)
{
    float got[PIECES][VOCAB];
    model_cuda_t b;

    model_cuda_trial = true;
    model_cuda_open_packed(&b, dir, "auto", false, 0, true, false);
    model_cuda_trial = false;
    model_cuda_pieces(&b, tokens, pieces, PIECES, got[0]);
    model_cuda_close(&b);
    for (size_t i = 0; i < PIECES; i++) {
        for (uint32_t j = 0; j < VOCAB; j++) {
            if (!(fabsf(got[i][j] - want[i][j]) <= 1e-2f * most)) {
                fail_msg("%s, piece %zu: logit %u is %g in trial, %g else",
                         c->name, i, j, (double) got[i][j],
                         (double) want[i][j]);
            }
        }
    }
}

static void
one_case(const case_t *c)
{
    float want[PIECES][VOCAB], got[PIECES][VOCAB], most = 0;
    int32_t tokens[256];
    size_t expanded;
    model_cuda_t b;

    write_model(c);
    for (size_t i = 0; i < 256; i++) {
        tokens[i] = (int32_t) rng_below(&rng, VOCAB);
    }
    model_cuda_open_packed(&b, dir, "bf16", false, 0, false, false);
    expanded = b.model->weights_size;
    model_cuda_pieces(&b, tokens, pieces, PIECES, want[0]);
    model_cuda_close(&b);
    for (size_t i = 0; i < PIECES; i++) {
        for (uint32_t j = 0; j < VOCAB; j++) {
            most = fmaxf(most, fabsf(want[i][j]));
        }
    }
    assert_true(most > 0.1f && most < 1e6f);
    model_cuda_open_packed(&b, dir, "auto", false, 0, true, false);
    check_forms(c, b.model);
    assert_true(b.model->weights_size < expanded);
    model_cuda_pieces(&b, tokens, pieces, PIECES, got[0]);
    model_cuda_close(&b);
    if (memcmp(want, got, sizeof(want)) != 0) {
        fail_msg("%s: packed experts give other logits than in 16 bits",
                 c->name);
    }
    in_trial(c, tokens, got, most);
}

static void
test_formats(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        one_case(&cases[i]);
    }
}

/* Each tensor that is kept in 16 bits is named in the log. */
static void
test_said(void **state)
{
    char path[100], line[400];
    uint32_t said = 0;
    model_cuda_t b;
    FILE *f;

    (void) state;
    write_model(&cases[1]);
    snprintf(path, sizeof(path), "%s/log", dir);
    tr_log_open(path, TR_LEVEL_INFO);
    model_cuda_open_packed(&b, dir, "auto", false, 0, true, false);
    model_cuda_close(&b);
    tr_log_open(NULL, TR_LEVEL_NOTICE);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        said += strstr(line, "info weights expanded tensor=\"model.layers.")
                    != NULL
                && strstr(line, "mlp.experts.down_proj\" format=\"MXFP4\"")
                       != NULL;
    }
    fclose(f);
    unlink(path);
    assert_int_equal(said, cases[1].plain);
}

/* Without files a model has the forms that its configuration names. */
static void
test_dummy(void **state)
{
    float got[PIECES][VOCAB];
    int32_t tokens[256];
    model_cuda_t b;

    (void) state;
    for (size_t i = 0; i < 256; i++) {
        tokens[i] = (int32_t) rng_below(&rng, VOCAB);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const tr_weight_form_t *f;
        double sum = 0;

        write_model(&cases[i]);
        model_cuda_open_with(&b, dir, "dummy", "auto", false, 0, true, false);
        f = b.model->layers[0].form;
        assert_int_equal(f[TR_PART_EXPERT_GATE_UP].format, cases[i].format);
        assert_int_equal(f[TR_PART_EXPERT_GATE_UP].group, cases[i].group);
        assert_int_equal(f[TR_PART_ROUTER].format, TR_WEIGHT_16);
        model_cuda_pieces(&b, tokens, pieces, PIECES, got[0]);
        for (uint32_t j = 0; j < VOCAB; j++) {
            sum += fabs((double) got[0][j]);
        }
        assert_true(sum > 1e-3 && sum < 1e6);
        model_cuda_close(&b);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_said),
        cmocka_unit_test(test_dummy),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
