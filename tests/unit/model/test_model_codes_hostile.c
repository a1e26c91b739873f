/*
 * Quantised checkpoints whose codes the CPU keeps (model_codes.c), with groups of
 * 32 columns and more: wrong in tensors or in config.json, each is refused by the
 * name of what is wrong; odd sizes of groups and zero points at their ends are
 * kept or expanded, and answer as the expanded file does.
 */
#include "tests/unit/fixtures/packed_fixture.h"

#include <math.h>

#define Q "self_attn.q_proj."
#define EXPERTS "mlp.experts."
#define GROUP 32u
#define PROMPT 24u
#define VOCAB 64u
#define KEPT_TOLERANCE 0.05 /* the largest error, of the largest logit */

static tr_status_t
open_model(bool packed, tr_model_t **m, tr_error_t *err)
{
    tr_model_options_t options = { .dir = dir,
                                   .load_format = "auto",
                                   .packed = packed,
                                   .kernels = tr_kernels_cpu("c"),
                                   .threads = 1,
                                   .max_rows = 8,
                                   .max_seqs = 1 };

    *err = (tr_error_t){ 0 };
    return tr_model_open(&options, m, err);
}

static void
expect_refused(const char *what, const char *name, const char *words)
{
    tr_model_t *m = NULL;
    tr_error_t err;

    if (open_model(true, &m, &err) == TR_OK) {
        fail_msg("%s was not refused", what);
    }
    if (strstr(err.text, name) == NULL || strstr(err.text, words) == NULL) {
        fail_msg("%s: \"%s\", expected %s and \"%s\"", what, err.text, name,
                 words);
    }
}

/* ---- tensors --------------------------------------------------------------- */

/* clang-format off */
static const wrong_t wrong[] = {
    { "awq", Q "scales", GONE, NULL, { 0 }, "is missing", NULL },
    { "awq", Q "qzeros", GONE, NULL, { 0 }, "is missing", NULL },
    { "awq", Q "qweight", SHAPE, NULL, { 64, 7 }, "expected [64, 8]", NULL },
    { "awq", Q "qweight", SHAPE, NULL, { 65, 8 }, "expected [64, 8]", NULL },
    { "awq", Q "qweight", SHAPE, NULL, { 512 }, "expected [64, 8]", NULL },
    { "awq", Q "scales", SHAPE, NULL, { 4, 64 }, "expected [2, 64]", NULL },
    { "awq", Q "scales", SHAPE, NULL, { 64, 2 }, "expected [2, 64]", NULL },
    { "awq", Q "qzeros", SHAPE, NULL, { 2, 9 }, "expected [2, 8]", NULL },
    { "awq", Q "scales", BYTES, "0000007c", { 0 }, "holds inf at 1", NULL },
    { "awq", Q "scales", BYTES, "ff7b", { 0 },
      "holds 65504 at 0, and F16 cannot represent a weight of 15 times that", NULL },
    { "awq", Q "qweight", DTYPE, "I8", { 64, 8 }, "is missing", Q "weight" },
    { "gptq", Q "qweight", SHAPE, NULL, { 7, 64 }, "expected [8, 64]", NULL },
    { "gptq", Q "qzeros", SHAPE, NULL, { 2, 7 }, "expected [2, 8]", NULL },
    { "gptq", Q "scales", SHAPE, NULL, { 1, 64 }, "expected [2, 64]", NULL },
    { "gptq", Q "scales", BYTES, "01fe", { 0 }, "nan at 0", NULL },
    { "gptq-v2", Q "g_idx", BYTES, "02000000", { 0 },
      "puts column 0 into group 2, expected 0 to 1", NULL },
    { "int4", Q "weight_packed", SHAPE, NULL, { 64, 9 }, "[64, 8]", NULL },
    { "int4", Q "weight_packed", SHAPE, NULL, { 63, 8 }, "[64, 8]", NULL },
    { "int4", Q "weight_scale", SHAPE, NULL, { 64, 1 }, "[64, 2]", NULL },
    { "int4", Q "weight_scale", BYTES, "80ff", { 0 }, "-inf at 0", NULL },
    { "int4", Q "weight_scale", BYTES, "7f7f", { 0 },
      "and BF16 cannot represent a weight of 8 times that", NULL },
    { "int4-zero", Q "weight_zero_point", SHAPE, NULL, { 9, 2 }, "[8, 2]",
      NULL },
    { "int8", Q "weight", SHAPE, NULL, { 64, 65 }, "[64, 64]", NULL },
    { "int8", Q "weight_scale", GONE, NULL, { 0 }, "is missing", NULL },
    { "int8", Q "weight_scale", BYTES, "c0ff", { 0 }, "nan at 0", NULL },
    { "int8", Q "weight_scale", SHAPE, NULL, { 64, 2 }, "[64, 1]", NULL },
    { "mxfp4", EXPERTS "down_proj_scales", GONE, NULL, { 0 }, "is missing",
      NULL },
    { "mxfp4", EXPERTS "down_proj_blocks", GONE, NULL, { 0 }, "is missing",
      EXPERTS "down_proj" },
    { "mxfp4", EXPERTS "down_proj_blocks", SHAPE, NULL, { 9, 64, 1, 16 },
      "[8, 64, 1, 16]", NULL },
    { "mxfp4", EXPERTS "gate_up_proj_blocks", SHAPE, NULL, { 8, 64, 32 },
      "[8, 64, 2, 16]", NULL },
    { "mxfp4", EXPERTS "gate_up_proj_scales", SHAPE, NULL, { 8, 65, 2 },
      "[8, 64, 2]", NULL },
    { "mxfp4", EXPERTS "down_proj_scales", BYTES, "00ff", { 0 }, "nan at 1",
      NULL },
    { "mxfp4", EXPERTS "down_proj_scales", BYTES, "fe", { 0 },
      "and BF16 cannot represent a weight of 6 times that", NULL },
};
/* clang-format on */

static void
test_tensors(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const wrong_t *c = &wrong[i];
        bool grouped = strcmp(c->model, "int8") && strcmp(c->model, "mxfp4");
        char name[200], what[300];

        snprintf(what, sizeof(what), "%s: %s, change %d to %s", c->model,
                 write_wrong(c, grouped ? GROUP : 0), c->change, c->words);
        snprintf(name, sizeof(name), "\"model.layers.0.%s",
                 c->named ? c->named : c->tensor);
        expect_refused(what, name, c->words);
    }
}

/* ---- config.json ----------------------------------------------------------- */

static const wrong_t nothing = {
    NULL, "input_layernorm.weight", BYTES, "", { 0 }, NULL, NULL
};

static void
write_model(const char *model, uint32_t group)
{
    wrong_t as_it_is = nothing;

    as_it_is.model = model;
    write_wrong(&as_it_is, group);
}

static void
test_config(void **state)
{
    static const struct {
        const char *model, *key, *value, *name, *words;
    } rows[] = {
        { "awq", "group_size", "0", "group_size", "is 0, expected" },
        { "awq", "group_size", "-2", "group_size", "is -2, expected" },
        { "awq", "group_size", "2147483648", "group_size", "2147483648" },
        { "awq", "group_size", "\"32\"", "group_size", "is \"32\", expected" },
        { "awq", "group_size", "32.5", "group_size", "expected an integer" },
        { "awq", "group_size", "24", Q "qzeros", "expected [3, 8]" },
        { "awq", "group_size", "48", "mlp.down_proj", "expected [2, 8]" },
        { "awq", "group_size", "64", Q "qzeros", "expected [1, 8]" },
        { "awq", "group_size", "-1", Q "qzeros", "expected [1, 8]" },
        { "awq", "bits", "8", "bits", "is 8, expected 4" },
        { "gptq", "group_size", "0", "group_size", "is 0, expected" },
        { "gptq", "bits", "0", "bits", "is 0, expected" },
        { "gptq", "bits", "3", "bits", "is 3, expected 4 or 8" },
        { "gptq", "bits", "8", Q "qweight", "expected [16, 64]" },
        { "gptq", "group_size", "31", Q "qzeros", "expected [3, 8]" },
        { "int4", "group_size", "0", "group_size", "is 0, expected" },
        { "int4", "group_size", "4294967296", "group_size", "4294967296" },
        { "int4", "group_size", "16", Q "weight_scale", "expected [64, 4]" },
        { "int4", "num_bits", "2", "num_bits", "is 2, expected 4 or 8" },
        { "int4", "num_bits", "8", Q "weight_packed", "expected [64, 16]" },
        { "int4-zero", "strategy", "\"row\"", "strategy", "expected tensor" },
        { "mxfp4", "num_local_experts", "2147483648", "num_local_experts",
          "is 2147483648, expected an integer from 1 to 1024" },
        { "mxfp4", "num_local_experts", "4294967304", "num_local_experts",
          "is 4294967304, expected" },
        { "mxfp4", "num_local_experts", "-8", "num_local_experts", "is -8" },
        { "mxfp4", "num_local_experts", "0", "num_local_experts", "is 0" },
        { "mxfp4", "num_local_experts", "7", "layers.0.mlp.", "has shape [8" },
        { "mxfp4", "num_local_experts", "1024", "layers.0.mlp.",
          "has shape [8" },
        { "mxfp4", "num_experts_per_tok", "9", "num_experts_per_tok",
          "is 9, expected at most 8" },
        { "mxfp4", "num_experts_per_tok", "2147483648", "num_experts_per_tok",
          "is 2147483648" },
        { "mxfp4", "intermediate_size", "33", EXPERTS "gate_up_proj_blocks",
          "expected [8, 66, 2, 16]" },
        { "mxfp4", "intermediate_size", "2147483648", "intermediate_size",
          "is 2147483648" },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool mxfp4 = strcmp(rows[i].model, "mxfp4") == 0;
        json_t *config,
            *value = json_loads(rows[i].value, JSON_DECODE_ANY, NULL);
        char what[200];

        assert_non_null(value);
        write_model(rows[i].model, mxfp4 ? 0 : GROUP);
        config = load_json(dir, "config.json");
        json_object_set_new(mxfp4 ? config : group_config(config), rows[i].key,
                            value);
        write_config(config);
        snprintf(what, sizeof(what), "%s: %s %s", rows[i].model, rows[i].key,
                 rows[i].value);
        expect_refused(what, rows[i].name, rows[i].words);
    }
}

/* ---- what is odd and right -------------------------------------------------- */

/* Logits of a prompt's end, and whether the query rows kept their codes. */
static bool
answer(bool packed, float *logits)
{
    int32_t ids[PROMPT];
    fixture_t f;
    bool kept;

    for (uint32_t i = 0; i < PROMPT; i++) {
        ids[i] = (int32_t) (i * 37 % VOCAB);
    }
    fixture_open_options(&f,
                         (tr_model_options_t){ .dir = dir,
                                               .load_format = "auto",
                                               .packed = packed,
                                               .kernels = tr_kernels_cpu(NULL),
                                               .threads = 2 },
                         64);
    kept = f.model->layers[0].matrix[TR_PART_QKV].codes.codes != TR_CODES_NONE;
    fixture_step(&f,
                 &(fixture_item_t){ tr_kv_open(f.kv, NULL), 0, PROMPT, ids }, 1,
                 logits);
    fixture_close(&f);
    return kept;
}

static void
expect_alike(const char *what, bool should_keep)
{
    float kept[VOCAB], expanded[VOCAB];
    double most = 0, error = 0;

    if (answer(true, kept) != should_keep) {
        fail_msg("%s: was %s", what, should_keep ? "expanded" : "kept");
    }
    assert_false(answer(false, expanded));
    for (uint32_t i = 0; i < VOCAB; i++) {
        most = fmax(most, fabs(expanded[i]));
        error = fmax(error, fabs(kept[i] - expanded[i]));
    }
    if (!(error <= KEPT_TOLERANCE * most) || (!should_keep && error != 0)) {
        fail_msg("%s: off by %.3g of %.3g", what, error, most);
    }
}

/* Groups that a product has no form for, or that the columns are no multiple of,
 * are expanded; those longer than the row are the row. */
static void
test_groups(void **state)
{
    static const char *const models[] = { "awq", "gptq", "gptq-v2", "int4",
                                          "int4-zero" };
    static const struct {
        uint32_t group;
        bool kept;
    } rows[] = { { 24, false }, { 32, true }, { 48, false },
                 { 64, true },  { 80, true }, { INT32_MAX, true } };

    (void) state;
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            char what[100];

            snprintf(what, sizeof(what), "%s in groups of %u", models[m],
                     rows[i].group);
            write_model(models[m], rows[i].group);
            expect_alike(what, rows[i].kept);
        }
    }
}

/* All zero points are the largest, or 0: GPTQ's first form has them less 1, so
 * that its largest stands for 0. */
static void
test_zero_points(void **state)
{
    static const struct {
        const char *model, *tensor;
    } rows[] = { { "awq", Q "qzeros" },
                 { "gptq", Q "qzeros" },
                 { "gptq-v2", Q "qzeros" },
                 { "int4-zero", Q "weight_zero_point" } };
    static const char *const ends[] = { "ffffffff", "00000000" };

    (void) state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t e = 0; e < 2; e++) {
            wrong_t change = { rows[i].model, rows[i].tensor, BYTES, ends[e],
                               { 0 },         NULL,           NULL };
            char what[100];

            snprintf(what, sizeof(what), "%s with zero points %s",
                     rows[i].model, ends[e]);
            write_wrong(&change, GROUP);
            expect_alike(what, true);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_zero_points),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
