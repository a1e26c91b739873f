/*
 * The tiny models of tests/models on the CUDA backend, over the software device
 * (tests/soft): what each family asks of a step, against what transformers
 * computed in FP32.  Prompts in one piece and in pieces, and continuations one
 * token at a time; keys and values in another basis, too.
 *
 * Tolerances are relative to the largest logit: everything between two products
 * is rounded to 16 bits, and the models are made so that each part of a layer
 * weighs in them.
 */
#include "tests/unit/fixtures/golden_fixture.h"
#include "tests/unit/fixtures/model_cuda_fixture.h"

#include "kernels/hadamard.h"

#define F16_TOLERANCE 1e-2
#define BF16_TOLERANCE 5e-2
#define ROTATED_TOLERANCE 2e-2

static uint64_t rng;
static uint32_t sure; /* tokens that were no close call, of all models */

static tr_attention_path_t
path_of(const model_cuda_t *b, uint32_t n)
{
    return tr_model_cuda_path(b->model, b->policy, 0, n);
}

/* Logits of [0, n) of a prompt, whole or in pieces of random lengths, in slot
 * 1. */
static void
prompt_logits(model_cuda_t *b, const golden_t *p, bool whole, float *out)
{
    size_t ld = b->model->ld_logits;

    for (uint32_t at = 0; at < p->n;) {
        uint32_t n = whole ? p->n : 1 + rng_below(&rng, p->n - at);

        model_cuda_rows(b, 1, at, n, p->ids + at, path_of(b, n), true);
        for (uint32_t i = 0; i < n; i++) {
            memcpy(out + (size_t) (at + i) * GOLDEN_VOCAB, b->logits + i * ld,
                   GOLDEN_VOCAB * sizeof(float));
        }
        at += n;
    }
}

/* The continuation, as long as the sequence does not become a long one: every
 * token that is ahead by `margin`. */
static void
follow(model_cuda_t *b, const golden_t *p, double margin, const char *what)
{
    json_t *margins = json_object_get(p->json, "margins");
    uint32_t from = tr_recipe_long_from(&b->model->config.recipe);
    uint32_t steps = (uint32_t) json_array_size(margins);
    int32_t id = fixture_argmax(b->logits, GOLDEN_VOCAB);

    for (uint32_t s = 0; s < steps; s++) {
        uint32_t at = p->n + s;

        if (json_number_value(json_array_get(margins, s)) > margin) {
            sure++;
            if (id != p->ids[at]) {
                fail_msg("%s: token %u is %d, golden %d", what, s, id,
                         p->ids[at]);
            }
        }
        if (at + 1 > b->model->config.recipe.max_positions
            || b->is_long != (from != 0 && at + 1 > from)) {
            return;
        }
        id = model_cuda_run(b, 1, at, 1, p->ids + at, path_of(b, 1));
        assert_int_equal(id, fixture_argmax(b->logits, GOLDEN_VOCAB));
    }
}

static void
one_prompt(model_cuda_t *b, const golden_t *p, double tolerance,
           const char *what)
{
    static float logits[GOLDEN_LEN * GOLDEN_VOCAB];
    uint32_t from = tr_recipe_long_from(&b->model->config.recipe);
    double worst = 0;

    b->is_long = from != 0 && p->n > from;
    for (int whole = 1; whole >= 0; whole--) {
        model_cuda_slot(b, 1, p->n);
        prompt_logits(b, p, whole, logits);
        worst = fmax(worst, golden_compare(logits, p, tolerance, what));
        /* the last position's are in front */
        memcpy(b->logits, logits + (size_t) (p->n - 1) * GOLDEN_VOCAB,
               GOLDEN_VOCAB * sizeof(float));
        if (whole) {
            follow(b, p, 2 * tolerance * golden_largest(p), what);
        }
        model_cuda_slot_close(b, 1);
    }
    print_message("%s, %u tokens: worst error %.2g\n", what, p->n, worst);
}

static void
one_model(const char *name, const char *dtype, uint32_t rotate, bool centre,
          double tolerance)
{
    char dir[300], what[400];
    golden_t prompts[GOLDEN_PROMPTS];
    model_cuda_t b;
    json_t *root;
    bool few;

    snprintf(dir, sizeof(dir), MODELS "/%s", name);
    snprintf(what, sizeof(what), "%s, %s, rotate %u%s", name, dtype, rotate,
             centre ? ", centred" : "");
    root = golden_load(dir, prompts);
    model_cuda_open_packed(&b, dir, dtype, true, rotate, true, centre);
    /* between two experts that are nearly as good BF16 may choose otherwise, and
     * long prompts have such; so may a device that rounds nothing between gate and
     * product down, as for few places: the software device does not here */
    few = b.model->config.recipe.moe.route.experts != 0
          && (b.model->type == TR_BF16 || b.device.code != 0);
    if (b.device.code == 0 && !few) {
        b.device.blocks = 0;
    }
    for (uint32_t i = 0; i < (few ? 1 : GOLDEN_PROMPTS); i++) {
        one_prompt(&b, &prompts[i], tolerance, what);
    }
    model_cuda_close(&b);
    json_decref(root);
}

/* What the backend does not run yet is refused by name. */
static bool
refused(const char *name)
{
    tr_model_config_t config;
    char dir[300];
    tr_error_t err;

    snprintf(dir, sizeof(dir), MODELS "/%s", name);
    assert_int_equal(tr_model_config_load(dir, "", &config, &err), TR_OK);
    if (tr_model_cuda_check(&config.recipe, 0, &err) == TR_OK) {
        return false;
    }
    assert_int_equal(err.status, TR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "backend cuda: layer "));
    print_message("%s: %s\n", name, err.text);
    return true;
}

static bool
every_way(const char *name)
{
    if (refused(name)) {
        return false;
    }
    one_model(name, "f16", 0, false, F16_TOLERANCE);
    one_model(name, "bf16", 0, false, BF16_TOLERANCE);
    model_cuda_trial = true; /* few rows by other products */
    one_model(name, "bf16", 0, false, BF16_TOLERANCE);
    model_cuda_trial = false;
    one_model(name, "f16", TR_ROTATE_KEYS | TR_ROTATE_VALUES, true,
              ROTATED_TOLERANCE);
    one_model(name, "f16", 0, true, ROTATED_TOLERANCE);
    return true;
}

static void
test_goldens(void **state)
{
    (void) state;
    golden_models(every_way, 14);
    print_message("%u tokens that transformers is sure of\n", sure);
    assert_true(sure >= (getenv("TR_TEST_MODEL") ? 1 : 1000));
}

/* The first key of each layer's KV heads, in slot 1. */
static void
first_keys(model_cuda_t *b, float *out)
{
    const tr_kv_view_t *v = &b->manager.view;
    int32_t *page = b->cuda->pin(sizeof(*page));
    uint16_t *key = b->cuda->pin(2ul * TR_HEAD_DIM_MAX);

    assert_true(page != NULL && key != NULL);
    for (uint32_t l = 0; l < v->layers; l++) {
        for (uint32_t h = 0; h < v->kv_heads; h++) {
            model_cuda_ok(b, b->cuda->copy(&b->stream, page,
                                           tr_kv_table(v, 1, l, h),
                                           sizeof(*page)));
            model_cuda_ok(b, b->cuda->stream_wait(&b->stream));
            model_cuda_ok(b, b->cuda->copy(&b->stream, key,
                                           b->pool + *page * v->page_bytes,
                                           2ul * v->head_dim));
            model_cuda_ok(b, b->cuda->stream_wait(&b->stream));
            for (uint32_t d = 0; d < v->head_dim; d++) {
                *out++ = tr_float_from_half(key[d]);
            }
        }
    }
    b->cuda->unpin(page);
    b->cuda->unpin(key);
}

/* Centred keys are less by what centre.h says, in front of the rotation. */
static void
test_centred(void **state)
{
    static float keys[2][1024];
    golden_t prompts[GOLDEN_PROMPTS];
    const char *dir = MODELS "/qwen2";
    json_t *root = golden_load(dir, prompts);

    (void) state;
    for (uint32_t rotate = 0; rotate <= TR_ROTATE_KEYS; rotate++) {
        float *got = keys[1], *plain = keys[0];

        for (int centre = 0; centre < 2; centre++) {
            const tr_recipe_t *r;
            model_cuda_t b;

            model_cuda_open_packed(&b, dir, "f16", true, rotate, true, centre);
            r = &b.model->config.recipe;
            model_cuda_slot(&b, 1, 5);
            model_cuda_run(&b, 1, 0, 5, prompts[0].ids, path_of(&b, 5));
            first_keys(&b, keys[centre]);
            for (uint32_t l = 0; centre && l < r->layers; l++) {
                const float *shift = tr_centre_shift(b.model->centre, l);

                assert_non_null(shift);
                for (uint32_t h = 0; h < r->kv_heads; h++) {
                    float x[TR_HEAD_DIM_MAX];

                    memcpy(x, shift + h * r->head_dim,
                           r->head_dim * sizeof(float));
                    if (rotate != 0) {
                        tr_hadamard(x, 1, r->head_dim);
                    }
                    for (uint32_t d = 0; d < r->head_dim; d++) {
                        assert_true(fabsf(*got++ - *plain++ - x[d]) <= 0.05f);
                    }
                }
            }
            model_cuda_slot_close(&b, 1);
            model_cuda_close(&b);
        }
    }
    json_decref(root);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_centred),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
