/*
 * The forward pass of the CUDA backend, over the software device (tests/soft):
 * models/pocket with 16-bit weights against its golden logits, in every way
 * that attention can go and with outlier channels equalised at load, and the
 * choice of those ways.
 *
 * Tolerances are relative to the largest logit of the position.  The goldens
 * are of FP32 arithmetic; here everything between two products is rounded to T,
 * 2^-12 relative with FP16 and 2^-9 with BF16, some ten times in each of eight
 * layers.  What is seen is 3e-4 and 4e-3; a wrong angle or a missed token is
 * 1e-1.
 */
#include "tests/unit/fixtures/model_cuda_fixture.h"

#include <jansson.h>
#include <math.h>

#include "engine/config/log.h"

#define POCKET "models/pocket"
#define VOCAB 4096u

/* The five logits of one position, relative to how far they reach; the
 * worst. */
static double
worst_of(const float *x, json_t *top5)
{
    double worst = 0, reach = 0;

    for (uint32_t i = 0; i < VOCAB; i++) {
        reach = fmax(reach, fabs(x[i]));
    }
    assert_int_equal(json_array_size(top5), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *pair = json_array_get(top5, i);
        json_int_t id = json_integer_value(json_array_get(pair, 0));
        double want = json_number_value(json_array_get(pair, 1));
        double error = fabs(x[id] - want) / reach;

        if (!(error < 1)) {
            fail_msg("token %lld: logit %.6f, golden %.6f", (long long) id,
                     x[id], want);
        }
        worst = fmax(worst, error);
    }
    return worst;
}

/* One golden prompt: its first positions one by one, its rest at once, then its
 * continuation as far as the greedy token is the same. */
static double
golden(model_cuda_t *b, json_t *g, tr_attention_path_t decode,
       tr_attention_path_t prompt, uint32_t *same, uint32_t *all)
{
    static int32_t ids[MODEL_CUDA_LEN];
    json_t *first = json_object_get(g, "top5_first_positions"), *value;
    json_t *more = json_object_get(g, "continuation_ids");
    uint32_t n = 0, at = 0, n_prompt;
    double worst = 0;
    int32_t token;
    size_t i;

    json_array_foreach (json_object_get(g, "ids"), i, value) {
        ids[n++] = (int32_t) json_integer_value(value);
    }
    n_prompt = n;
    json_array_foreach (more, i, value) {
        ids[n++] = (int32_t) json_integer_value(value);
    }
    model_cuda_slot(b, 1, n_prompt);
    for (; at < json_array_size(first); at++) {
        model_cuda_run(b, 1, at, 1, ids + at, decode);
        worst = fmax(worst, worst_of(b->logits, json_array_get(first, at)));
    }
    token = model_cuda_run(b, 1, at, n_prompt - at, ids + at, prompt);
    worst = fmax(worst,
                 worst_of(b->logits, json_object_get(g, "top5_last_position")));
    for (at = n_prompt; at < n; at++) {
        ++*all;
        *same += token == ids[at];
        token = model_cuda_run(b, 1, at, 1, ids + at, decode);
    }
    model_cuda_slot_close(b, 1);
    return worst;
}

static void
goldens(const char *dir, const char *dtype, bool fused,
        tr_attention_path_t decode, tr_attention_path_t prompt,
        double tolerance, double share, uint32_t rotate)
{
    json_t *root = json_load_file(POCKET "/golden.json", 0, NULL), *g;
    uint32_t same = 0, all = 0;
    double worst = 0;
    size_t i;
    model_cuda_t b;

    assert_non_null(root);
    model_cuda_open(&b, dir, dtype, fused, rotate);
    assert_true((b.model->equalise->largest != 0)
                == (strcmp(dir, POCKET) != 0));
    assert_true((b.model->small_gemm_classes != 0)
                == (fused && b.model->type == TR_BF16
                    && b.cuda->small_gemm_fits(&b.device, 512, 512)));
    json_array_foreach (json_object_get(root, "prompts"), i, g) {
        worst = fmax(worst, golden(&b, g, decode, prompt, &same, &all));
    }
    print_message("%s%s: worst %.2g of the reach, %u of %u greedy tokens\n",
                  dtype, fused ? ", fused" : "", worst, same, all);
    assert_true(worst <= tolerance);
    assert_true(same >= share * all && all > 100);
    model_cuda_close(&b);
    json_decref(root);
}

static void
test_golden_f16(void **state)
{
    (void) state;
    goldens(POCKET, "f16", true, TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT, 1e-3,
            0.98, 0);
}

/* Keys in another basis; values, too, by weights that are rounded anew. */
static void
test_golden_rotated(void **state)
{
    const uint32_t both = TR_ROTATE_KEYS | TR_ROTATE_VALUES;

    (void) state;
    goldens(POCKET, "f16", true, TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT, 1e-3,
            0.98, TR_ROTATE_VALUES);
    goldens(POCKET, "f16", true, TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT, 2e-3,
            0.98, both);
    goldens(POCKET, "auto", true, TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT,
            1.5e-2, 0.95, both);
    goldens(POCKET, "f16", true, TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
            2e-3, 0.98, both);
}

/* With outlier channels that equalisation takes back. */
static void
test_golden_equalised(void **state)
{
    char dir[] = "/tmp/tr-stress-XXXXXX", text[256];

    (void) state;
    assert_non_null(mkdtemp(dir));
    snprintf(text, sizeof(text),
             "python3 models/pocket/stress.py both --out %s >%s/log", dir, dir);
    assert_int_equal(system(text), 0);
    snprintf(text, sizeof(text), "%s/both", dir);
    goldens(text, "f16", true, TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT, 1e-3,
            0.98, 0);
    goldens(text, "auto", true, TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT,
            1.5e-2, 0.95, 0);
    snprintf(text, sizeof(text), "rm -r %s", dir);
    assert_int_equal(system(text), 0);
}

static void
test_golden_bf16(void **state)
{
    (void) state;
    goldens(POCKET, "auto", true, TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT,
            1.5e-2, 0.95, 0);
}

static void
test_golden_unfused(void **state)
{
    (void) state;
    goldens(POCKET, "auto", false, TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT,
            1.5e-2, 0.95, 0);
}

static void
test_golden_generic(void **state)
{
    (void) state;
    goldens(POCKET, "f16", true, TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
            1e-3, 0.98, 0);
}

/* ---- attention paths ---------------------------------------------------- */

static void
test_ways(void **state)
{
    static const struct {
        uint32_t dim, heads, kv_heads;
        const char *spec;
        tr_attention_path_t uncompressed, compressed; /* of one row */
        tr_attention_path_t prompt; /* of many, from position 0 */
    } cases[] = {
        { 128, 32, 8, "full", TR_ATTENTION_DECODE, TR_ATTENTION_DECODE,
          TR_ATTENTION_PROMPT },
        { 64, 6, 2, "diffkv:alpha_high=1,alpha_low=0.02", TR_ATTENTION_DECODE,
          TR_ATTENTION_DECODE, TR_ATTENTION_PROMPT },
        { 128, 28, 4, "static", TR_ATTENTION_DECODE, TR_ATTENTION_DECODE,
          TR_ATTENTION_PROMPT },
        { 128, 32, 8, "kivi", TR_ATTENTION_DECODE, TR_ATTENTION_GENERIC,
          TR_ATTENTION_PROMPT },
        { 128, 32, 8, "int4:group=32", TR_ATTENTION_DECODE, TR_ATTENTION_DECODE,
          TR_ATTENTION_PROMPT },
        { 64, 6, 2, "diffkv:groups=4", TR_ATTENTION_DECODE, TR_ATTENTION_DECODE,
          TR_ATTENTION_PROMPT },
        { 128, 32, 8, "uniform:levels=8/8,groups=2", TR_ATTENTION_DECODE,
          TR_ATTENTION_GENERIC, TR_ATTENTION_PROMPT },
        { 128, 32, 8, "quest", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
          TR_ATTENTION_PROMPT },
        { 96, 32, 8, "full", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
          TR_ATTENTION_GENERIC },
        { 128, 32, 2, "full", TR_ATTENTION_DECODE, TR_ATTENTION_DECODE,
          TR_ATTENTION_PROMPT },
        { 128, 34, 2, "full", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
          TR_ATTENTION_GENERIC },
        { 128, 32, 2, "diffkv", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
          TR_ATTENTION_GENERIC },
        { 256, 32, 4, "full", TR_ATTENTION_DECODE, TR_ATTENTION_DECODE,
          TR_ATTENTION_PROMPT },
        { 256, 36, 4, "full", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
          TR_ATTENTION_GENERIC },
        { 256, 8, 4, "int4", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
          TR_ATTENTION_GENERIC },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_model_cuda_t m = { .config.recipe = {
                                  .head_dim = cases[i].dim,
                                  .query_heads = cases[i].heads,
                                  .kv_heads = cases[i].kv_heads } };
        tr_kv_policy_t *p;
        tr_error_t err;

        if (tr_kv_policy_create(cases[i].spec, 4, cases[i].kv_heads,
                                cases[i].dim, &p, &err)
            != TR_OK) {
            fail_msg("%s", err.text);
        }
        m.fast = tr_model_cuda_fast(&m.config.recipe, p->n_levels == 0, true);
        assert_int_equal(tr_model_cuda_path(&m, p, 0, 1),
                         cases[i].uncompressed);
        assert_int_equal(tr_model_cuda_path(&m, p, 9, 1), cases[i].compressed);
        assert_int_equal(tr_model_cuda_path(&m, p, 0, 2), cases[i].prompt);
        /* a later turn stands behind what was compressed */
        assert_int_equal(tr_model_cuda_path(&m, p, 9, 2),
                         cases[i].prompt == TR_ATTENTION_PROMPT
                             ? TR_ATTENTION_BEHIND
                             : TR_ATTENTION_GENERIC);
        assert_true(cases[i].dim != 256
                    || !tr_model_cuda_fast(&m.config.recipe, true, false));
        tr_kv_policy_free(p);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_golden_f16),
        cmocka_unit_test(test_golden_equalised),
        cmocka_unit_test(test_golden_rotated),
        cmocka_unit_test(test_golden_bf16),
        cmocka_unit_test(test_golden_unfused),
        cmocka_unit_test(test_golden_generic),
    };

    tr_log_open("stderr", TR_LEVEL_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
