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
#include "tests/unit/fixtures/model_fixture.h"

#include <jansson.h>
#include <math.h>

#include "engine/executor/cuda_library.h"
#include "tests/unit/fixtures/device_library.h"
#include "engine/config/log.h"
#include "engine/model/cuda/model_cuda.h"

#define POCKET "models/pocket"
#define SLOTS 4u
#define MAX_LEN 1024u
#define MAX_ROWS 512u
#define VOCAB 4096u

/* A device with one model, and the page manager without the engine's cache. */
typedef struct {
    const tr_device_t *cuda;
    tr_device_props_t device;
    tr_cuda_stream_t stream;
    tr_model_cuda_t *model;
    tr_kv_policy_t *policy;
    tr_kv_cache_t *kv; /* geometry alone */
    tr_kv_manager_t manager;
    uint8_t *pool, *memory, *upload, *pinned;
    tr_cuda_sampled_t *sampled, *sampled_host;
    float *logits; /* pinned */
} device_fixture_t;

static void
ok(const device_fixture_t *b, int rc)
{
    if (rc != 0) {
        fail_msg("%s: %s",
                 b->model != NULL && b->model->failed != NULL ? b->model->failed
                                                              : "call",
                 b->cuda->reason());
    }
}

static void
open_manager(device_fixture_t *b)
{
    const tr_recipe_t *c = &b->model->config.recipe;
    tr_kv_config_t kv = {
        .layers = c->layers,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .policies = (const tr_kv_policy_t *const *) &b->policy,
        .n_policies = 1,
        .slots = SLOTS,
        .max_len = MAX_LEN,
        .memory = 32u << 20
    };
    tr_kv_manager_size_t size = { SLOTS, 0, MAX_LEN, 1 };
    tr_kv_view_t shape;
    tr_error_t err;

    assert_int_equal(tr_kv_policy_create("full", kv.layers, kv.kv_heads,
                                         kv.head_dim, &b->policy, &err),
                     TR_OK);
    assert_int_equal(tr_kv_cache_create(&kv, &b->kv, &err), TR_OK);
    tr_kv_view(b->kv, &shape);
    size.pages = (uint32_t) tr_kv_pages(b->kv);
    b->pool = b->cuda->alloc(size.pages * shape.page_bytes);
    b->memory = b->cuda->alloc(b->cuda->manager_memory(&shape, &size));
    assert_non_null(b->pool);
    assert_non_null(b->memory);
    shape.pool = b->pool;
    ok(b, b->cuda->manager_create(&b->stream, &shape, &size, b->memory,
                                  &b->manager));
}

static void
open_fixture(device_fixture_t *b, const char *dir, const char *dtype,
             bool fused, uint32_t rotate)
{
    tr_model_cuda_options_t options = { .dir = dir,
                                        .load_format = "auto",
                                        .equalise = true,
                                        .rotate = rotate,
                                        .dtype = dtype,
                                        .stream = &b->stream };
    tr_model_cuda_limits_t limits = { .max_rows = MAX_ROWS,
                                      .max_seqs = SLOTS,
                                      .max_len = MAX_LEN,
                                      .slots = SLOTS,
                                      .fused = fused };
    tr_cuda_device_info_t info;
    tr_error_t err;

    memset(b, 0, sizeof(*b));
    if (tr_cuda_library_open(device_library(), &b->cuda, &err) != TR_OK
        || tr_cuda_library_check(b->cuda, 0, &info, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    ok(b, b->cuda->open(0, &b->device));
    ok(b, b->cuda->stream_open(&b->device, &b->stream));
    options.cuda = b->cuda;
    if (tr_model_cuda_open(&options, &b->model, &err) != TR_OK
        || tr_model_cuda_prepare(b->model, &limits, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    open_manager(b);
    b->upload = b->cuda->alloc(1u << 20);
    b->pinned = b->cuda->pin(1u << 20);
    b->sampled = b->cuda->alloc(MAX_ROWS * sizeof(*b->sampled));
    b->sampled_host = b->cuda->pin(MAX_ROWS * sizeof(*b->sampled));
    b->logits = b->cuda->pin((size_t) TR_CUDA_LOGIT_ROWS * VOCAB * 4);
    assert_true(b->upload && b->pinned && b->sampled && b->sampled_host
                && b->logits);
}

static void
close_fixture(device_fixture_t *b)
{
    ok(b, b->cuda->stream_wait(&b->stream));
    tr_model_cuda_free(b->model);
    tr_kv_cache_free(b->kv);
    tr_kv_policy_free(b->policy);
    b->cuda->release(b->pool);
    b->cuda->release(b->memory);
    b->cuda->release(b->upload);
    b->cuda->release(b->sampled);
    b->cuda->unpin(b->pinned);
    b->cuda->unpin(b->sampled_host);
    b->cuda->unpin(b->logits);
    b->cuda->stream_close(&b->stream);
}

/* Copies n bytes to the device, side by side with what was put there before;
 * where they are. */
static void *
put(device_fixture_t *b, size_t *at, const void *from, size_t n)
{
    void *to = b->upload + *at;

    memcpy(b->pinned + *at, from, n);
    ok(b, b->cuda->copy(&b->stream, to, b->pinned + *at, n));
    *at += tr_pad(n, 256);
    assert_true(*at <= 1u << 20);
    return to;
}

static void
open_slot(device_fixture_t *b, int32_t slot, uint32_t prompt)
{
    tr_kv_open_t open = { .slot = slot,
                          .seq = { .recent_from = UINT32_MAX },
                          .rule = b->policy->rule };
    tr_kv_begin_t begin = { slot, prompt };
    size_t at = 0;

    ok(b, b->cuda->manager_open(&b->stream, &b->manager,
                                put(b, &at, &open, sizeof(open)), 1));
    ok(b, b->cuda->manager_prompt(&b->stream, &b->manager,
                                  put(b, &at, &begin, sizeof(begin)), 1));
    ok(b, b->cuda->stream_wait(&b->stream));
}

static void
close_slot(device_fixture_t *b, int32_t slot)
{
    size_t at = 0;

    ok(b, b->cuda->manager_close(&b->stream, &b->manager,
                                 put(b, &at, &slot, sizeof(slot)), 1));
    ok(b, b->cuda->stream_wait(&b->stream));
}

/* Positions [pos, pos + n) of a slot, by this path; b->logits has the last
 * position's, and its greedy token is returned. */
static int32_t
run(device_fixture_t *b, int32_t slot, uint32_t pos, uint32_t n,
    const int32_t *tokens, tr_attention_path_t path)
{
    static int32_t row_slot[MAX_ROWS];
    static uint32_t row_pos[MAX_ROWS];
    const uint32_t seq_row[] = { 0, n }, last = n - 1;
    const uint8_t paths[] = { (uint8_t) path };
    tr_kv_page_request_t ask = { slot, pos, pos + n };
    tr_cuda_sampling_t sampling = { .slot = slot,
                                    .pos = pos + n - 1,
                                    .prompt_len = pos + n,
                                    .top_p = 1,
                                    .repetition = 1,
                                    .logprobs = -1,
                                    .target = -1 };
    tr_cuda_step_t step = { .n_rows = n, .n_seqs = 1, .n_samples = 1 };
    size_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        row_slot[i] = slot;
        row_pos[i] = pos + i;
    }
    step.token = put(b, &at, tokens, n * sizeof(*tokens));
    step.row_slot = put(b, &at, row_slot, n * sizeof(*row_slot));
    step.row_pos = put(b, &at, row_pos, n * sizeof(*row_pos));
    step.seq_row = put(b, &at, seq_row, sizeof(seq_row));
    step.path = put(b, &at, paths, 1);
    step.host_path = paths;
    step.paths = 1u << path;
    step.gather = put(b, &at, &last, sizeof(last));
    step.sampling = put(b, &at, &sampling, sizeof(sampling));
    step.sampled = b->sampled;
    tr_model_cuda_begin(b->model, &step);
    ok(b, b->cuda->manager_step(&b->stream, &b->manager,
                                put(b, &at, &ask, sizeof(ask)), 1));
    ok(b, tr_model_cuda_step(b->model, &b->manager.view, b->manager.seq_slot,
                             &step));
    ok(b, b->cuda->copy(&b->stream, b->logits, b->model->logits, VOCAB * 4));
    ok(b, b->cuda->copy(&b->stream, b->sampled_host, b->sampled,
                        sizeof(*b->sampled)));
    ok(b, b->cuda->stream_wait(&b->stream));
    return b->sampled_host[0].token;
}

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
golden(device_fixture_t *b, json_t *g, tr_attention_path_t decode,
       tr_attention_path_t prompt, uint32_t *same, uint32_t *all)
{
    static int32_t ids[MAX_LEN];
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
    open_slot(b, 1, n_prompt);
    for (; at < json_array_size(first); at++) {
        run(b, 1, at, 1, ids + at, decode);
        worst = fmax(worst, worst_of(b->logits, json_array_get(first, at)));
    }
    token = run(b, 1, at, n_prompt - at, ids + at, prompt);
    worst = fmax(worst,
                 worst_of(b->logits, json_object_get(g, "top5_last_position")));
    for (at = n_prompt; at < n; at++) {
        ++*all;
        *same += token == ids[at];
        token = run(b, 1, at, 1, ids + at, decode);
    }
    close_slot(b, 1);
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
    device_fixture_t b;

    assert_non_null(root);
    open_fixture(&b, dir, dtype, fused, rotate);
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
    close_fixture(&b);
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
        { 128, 32, 8, "int4:group=32", TR_ATTENTION_DECODE,
          TR_ATTENTION_GENERIC, TR_ATTENTION_PROMPT },
        { 128, 32, 8, "quest", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
          TR_ATTENTION_PROMPT },
        { 96, 32, 8, "full", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
          TR_ATTENTION_GENERIC },
        { 128, 32, 2, "full", TR_ATTENTION_GENERIC, TR_ATTENTION_GENERIC,
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
        assert_int_equal(tr_model_cuda_path(&m, p, 0, 1),
                         cases[i].uncompressed);
        assert_int_equal(tr_model_cuda_path(&m, p, 9, 1), cases[i].compressed);
        assert_int_equal(tr_model_cuda_path(&m, p, 0, 2), cases[i].prompt);
        /* a later turn stands behind what was compressed */
        assert_int_equal(tr_model_cuda_path(&m, p, 9, 2), TR_ATTENTION_GENERIC);
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
