/*
 * Quantised checkpoints that are wrong in every way: the tiny models of
 * tests/models/quantised, each with one tensor that is missing, renamed, of another
 * shape or type, or holds other bytes.  Each is refused, with a message that names
 * the tensor and says what it has and what was expected; what is odd but means
 * the same is taken.
 */
#include "tests/unit/fixtures/packed_fixture.h"

#define Q "self_attn.q_proj."
static const wrong_t wrong[] = {
    { "awq", Q "scales", GONE, NULL, { 0 }, "is missing, AWQ weights", NULL },
    { "awq", Q "qzeros", GONE, NULL, { 0 }, "is missing, AWQ weights", NULL },
    { "awq", Q "qweight", GONE, NULL, { 0 }, "is missing", Q "weight" },
    { "awq",
      Q "qweight",
      SHAPE,
      NULL,
      { 64, 9 },
      "has shape [64, 9], expected [64, 8] for 64 x 64 weights in AWQ",
      NULL },
    { "awq", Q "qweight", SHAPE, NULL, { 63, 8 }, "has shape [63, 8]", NULL },
    { "awq", Q "qzeros", SHAPE, NULL, { 4, 7 }, "expected [4, 8]", NULL },
    { "awq", Q "scales", SHAPE, NULL, { 3, 64 }, "expected [4, 64]", NULL },
    { "awq", Q "scales", BYTES, "007e", { 0 }, "holds nan at 0", NULL },
    { "awq", Q "scales", BYTES, "00fc", { 0 }, "holds -inf at 0", NULL },
    { "awq", Q "scales", DTYPE, "I8", { 4, 64 }, "dtype I8", NULL },
    { "gptq", Q "qweight", SHAPE, NULL, { 8, 63 }, "expected [8, 64]", NULL },
    { "gptq",
      Q "qweight",
      SHAPE,
      NULL,
      { 8, 64, 1 },
      "shape [8, 64, 1]",
      NULL },
    { "gptq", Q "qzeros", SHAPE, NULL, { 5, 8 }, "expected [4, 8]", NULL },
    { "gptq-v2",
      Q "g_idx",
      BYTES,
      "04000000",
      { 0 },
      "puts column 0 into group 4, expected 0 to 3",
      NULL },
    { "gptq-v2", Q "g_idx", BYTES, "ffffffff", { 0 }, "group -1", NULL },
    { "gptq-v2", Q "g_idx", SHAPE, NULL, { 65 }, "expected [64]", NULL },
    { "int4", Q "weight_packed", SHAPE, NULL, { 64, 7 }, "[64, 8]", NULL },
    { "int4", Q "weight_scale", SHAPE, NULL, { 64, 5 }, "[64, 4]", NULL },
    { "int4", Q "weight_scale", BYTES, "c07f", { 0 }, "holds nan at 0", NULL },
    { "int4",
      Q "weight_shape",
      BYTES,
      "3f",
      { 0 },
      "holds [63, 64], config.json says [64, 64]",
      NULL },
    { "int4-zero",
      Q "weight_zero_point",
      GONE,
      NULL,
      { 0 },
      "has no zero points, but quantization_config says symmetric false",
      Q "weight" },
    { "int4-zero",
      Q "weight_zero_point",
      SHAPE,
      NULL,
      { 64, 4 },
      "[8, 4]",
      NULL },
    { "int4-zero",
      Q "weight_g_idx",
      BYTES,
      "00000080",
      { 0 },
      "group -",
      NULL },
    { "fp8-block",
      Q "weight_scale_inv",
      GONE,
      NULL,
      { 0 },
      "is missing",
      Q "weight_scale" },
    { "fp8-block",
      Q "weight_scale_inv",
      SHAPE,
      NULL,
      { 4, 3 },
      "[4, 4]",
      NULL },
    { "fp8-block",
      Q "weight_scale_inv",
      BYTES,
      "0000c07f",
      { 0 },
      "holds nan at 0",
      NULL },
    { "fp8-block", Q "weight", SHAPE, NULL, { 64, 63 }, "[64, 64]", NULL },
    { "fp8-block",
      Q "weight",
      DTYPE,
      "F8_E5M2",
      { 64, 64 },
      "has dtype \"F8_E5M2\"",
      NULL },
    { "fp8-modelopt", Q "weight_scale", SHAPE, NULL, { 2 }, "[1, 1]", NULL },
    { "fp8-channel",
      Q "weight_scale",
      SHAPE,
      NULL,
      { 63, 1 },
      "[64, 1]",
      NULL },
    { "int8", Q "weight_scale", SHAPE, NULL, { 65, 1 }, "[64, 1]", NULL },
    { "int8",
      Q "weight",
      DTYPE,
      "F8_E4M3",
      { 64, 64 },
      "holds 8-bit floats, which quantization_config does not mention",
      NULL },
    { "mxfp4",
      "mlp.experts.gate_up_proj_scales",
      GONE,
      NULL,
      { 0 },
      "is missing, MXFP4",
      NULL },
    { "mxfp4",
      "mlp.experts.gate_up_proj_scales",
      BYTES,
      "ff",
      { 0 },
      "holds nan at 0",
      NULL },
    { "mxfp4",
      "mlp.experts.gate_up_proj_blocks",
      SHAPE,
      NULL,
      { 8, 64, 2, 15 },
      "[8, 64, 2, 16]",
      NULL },
    { "mxfp4",
      "mlp.experts.down_proj_scales",
      SHAPE,
      NULL,
      { 7, 64, 1 },
      "[8, 64, 1]",
      NULL },
    { "int4",
      Q "weight_packed",
      RENAMED,
      "model.layers.0.extra",
      { 0 },
      "is missing",
      Q "weight" },
    { "gptq-v2",
      Q "g_idx",
      GONE,
      NULL,
      { 0 },
      "has no .g_idx, but quantization_config says that its columns are "
      "reordered",
      Q "weight" },
    { "int4-zero",
      Q "weight_g_idx",
      GONE,
      NULL,
      { 0 },
      "has no .weight_g_idx, but",
      Q "weight" },
};

static void
test_wrong(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const wrong_t *c = &wrong[i];
        const char *full = write_wrong(c, 0);
        tr_safetensors_t *st = NULL;
        char named[200];
        tr_model_config_t config;
        tr_error_t err = { 0 };

        snprintf(named, sizeof(named), "\"model.layers.0.%s\"",
                 c->named ? c->named : c->tensor);
        assert_int_equal(tr_model_config_load(dir, NULL, &config, &err), TR_OK);
        if (tr_model_tensors_open(&config, dir, &st, &err) == TR_OK) {
            fail_msg("%s: %s, change %d, was not refused", c->model, full,
                     c->change);
        }
        if (strstr(err.text, named) == NULL
            || strstr(err.text, c->words) == NULL) {
            fail_msg("%s: %s: \"%s\", expected %s and \"%s\"", c->model, full,
                     err.text, named, c->words);
        }
    }
}

/* A list of groups is needed only where groups are not those in order. */
static void
test_groups_in_order(void **state)
{
    static const wrong_t gone = { "gptq-v2", Q "g_idx", GONE, NULL,
                                  { 0 },     NULL,      NULL };
    static const struct {
        const char *name;
        json_t *(*value)(void);
    } settings[] = { { "desc_act", json_false },
                     { "static_groups", json_true } };

    (void) state;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        tr_safetensors_t *st = NULL;
        tr_model_config_t c;
        tr_error_t err;
        json_t *config;

        write_wrong(&gone, 0);
        config = load_json(dir, "config.json");
        json_object_set_new(json_object_get(config, "quantization_config"),
                            settings[i].name, settings[i].value());
        write_config(config);
        assert_int_equal(tr_model_config_load(dir, NULL, &c, &err), TR_OK);
        if (tr_model_tensors_open(&c, dir, &st, &err) != TR_OK) {
            fail_msg("%s: %s", settings[i].name, err.text);
        }
        tr_safetensors_close(st);
    }
}

/* Both codes of FP8 that are no numbers, in the words that are looked at together
 * and anywhere in them. */
static void
test_fp8_nan(void **state)
{
    static const struct {
        const char *bytes, *words; /* as hexadecimal; of the error, or NULL */
    } rows[] = {
        { "7f", "holds nan (0x7f) at 0, expected finite weights" },
        { "0000ff", "holds nan (0xff) at 2, expected" },
        { "7e00fe807e00fe807e00fe80807eff",
          "holds nan (0xff) at 14, expected" },
        { "7efe00807efe00807e", NULL },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        wrong_t change = { "fp8-channel", "mlp.down_proj.weight",
                           BYTES,         rows[i].bytes,
                           { 0 },         NULL,
                           NULL };
        const char *full = write_wrong(&change, 0);
        tr_model_options_t options = { .dir = dir,
                                       .load_format = "auto",
                                       .kernels = tr_kernels_cpu("c"),
                                       .threads = 1,
                                       .max_rows = 8,
                                       .max_seqs = 1 };
        tr_model_t *m = NULL;
        tr_error_t err = { 0 };
        tr_status_t rc = tr_model_open(&options, &m, &err);

        if (rc == TR_OK) {
            tr_model_free(m);
        }
        assert_int_equal(rc, rows[i].words == NULL ? TR_OK : TR_ERR_FORMAT);
        if (rows[i].words != NULL
            && (strstr(err.text, full) == NULL
                || strstr(err.text, rows[i].words) == NULL)) {
            fail_msg("\"%s\", expected %s and \"%s\"", err.text, full,
                     rows[i].words);
        }
    }
}

/* A bias that nobody reads may stay when it adds nothing. */
static void
test_zero_bias(void **state)
{
    static const wrong_t bias = {
        "gptq", "mlp.up_proj.bias", BYTES, "003c", { 0 }, NULL, NULL
    };
    tr_safetensors_t *st = NULL;
    tr_model_config_t config;
    tr_error_t err;

    (void) state;
    write_wrong(&bias, 0);
    assert_int_equal(tr_model_config_load(dir, NULL, &config, &err), TR_OK);
    assert_int_equal(tr_model_tensors_open(&config, dir, &st, &err),
                     TR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "mlp.up_proj.bias\" is not used"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_zero_bias),
        cmocka_unit_test(test_groups_in_order),
        cmocka_unit_test(test_fp8_nan),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
