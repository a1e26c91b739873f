/*
 * Rotated keys and values (rotate.h): the same logits in another basis, for
 * every family, and what has no rotation is refused.
 */
#include "tests/unit/fixtures/family_model.h"

#include <math.h>

#include "kernels/hadamard.h"

#define BOTH (TR_ROTATE_KEYS | TR_ROTATE_VALUES)

/* Logits behind a fixed text. */
static void
run(const char *format, uint32_t rotate, float *logits)
{
    fixture_t fixture;
    int32_t tokens[LEN], slot;

    fixture_open_with(&fixture, dir, format, NULL, 2, LEN, true, rotate);
    fixed_text(tokens);
    slot = tr_kv_open(fixture.kv, NULL);
    fixture_step(&fixture, &(fixture_item_t){ slot, 0, LEN - 9, tokens }, 1,
                 logits);
    for (uint32_t i = LEN - 9; i < LEN; i++) {
        fixture_step(&fixture, &(fixture_item_t){ slot, i, 1, tokens + i }, 1,
                     logits);
    }
    fixture_close(&fixture);
}

/* Pages of 16 bits are rounded in another basis; other than that it is the same
 * model, and not the same bits. */
static void
compare(const char *format, uint32_t rotate, const float *plain)
{
    float logits[VOCAB], size = 0;

    run(format, rotate, logits);
    for (uint32_t i = 0; i < VOCAB; i++) {
        size = fmaxf(size, fabsf(plain[i]));
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        if (!(fabsf(logits[i] - plain[i]) <= 1e-3f * size)) {
            fail_msg("rotate %u, token %u: %g, expected %g of %g", rotate, i,
                     logits[i], plain[i], size);
        }
    }
    assert_memory_not_equal(logits, plain, sizeof(logits));
}

static void
test_same(void **state)
{
    float plain[VOCAB];

    (void) state;
    for (size_t i = 0; i < KINDS; i++) {
        family_t f = kinds[i];

        f.dim = f.dim == 48 ? 16 : f.dim; /* a power of two */
        make_model(&f);
        run("auto", 0, plain);
        compare("auto", TR_ROTATE_KEYS, plain);
        compare("auto", TR_ROTATE_VALUES, plain);
        compare("auto", BOTH, plain);
        free_weights();
    }
}

static void
test_dummy(void **state)
{
    float plain[VOCAB];

    (void) state;
    write_config(&kinds[1]);
    run("dummy", 0, plain);
    compare("dummy", BOTH, plain);
}

/* A pair that is alone large no longer is. */
static void
test_spreads(void **state)
{
    float x[64] = { 0 }, most = 0, sum = 0;

    (void) state;
    x[5] = x[37] = 16;
    tr_hadamard(x, 1, 64);
    for (uint32_t i = 0; i < 64; i++) {
        most = fmaxf(most, fabsf(x[i]));
        sum += x[i] * x[i];
    }
    assert_true(most <= 4);
    assert_true(fabsf(sum - 512) < 1e-3f);
}

static void
test_refused(void **state)
{
    family_t f = { .name = "llama", .config = "", .kv_heads = 2, .dim = 48 };
    tr_model_options_t o = { .dir = dir,
                             .load_format = "dummy",
                             .rotate = TR_ROTATE_KEYS,
                             .kernels = tr_kernels_cpu(NULL),
                             .threads = 1,
                             .max_rows = 8,
                             .max_seqs = 1 };
    tr_model_t *m = NULL;
    tr_recipe_t recipe = { .head_dim = 96 };
    tr_error_t err;

    (void) state;
    write_config(&f);
    assert_int_equal(tr_model_open(&o, &m, &err), TR_ERR_UNSUPPORTED);
    assert_string_equal(err.text,
                        "kv_rotate is k, but the model has heads of 48, "
                        "expected a power of two from 16 to 256");
    assert_int_equal(tr_rotate_check(&recipe, 0, &err), TR_OK);
    for (uint32_t bits = TR_ROTATE_KEYS; bits <= BOTH; bits++) {
        assert_int_equal(tr_rotate_check(&recipe, bits, &err),
                         TR_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "but the model has heads of 96"));
    }
    assert_int_equal(tr_rotate_bits("off"), 0);
    assert_int_equal(tr_rotate_bits("kv"), BOTH);
}

/* What kv_rotate auto becomes; what was asked for by name stays. */
static void
test_auto(void **state)
{
    static const struct {
        uint32_t head_dim;
        tr_quant_method_t method;
        bool packed, quantised;
        uint32_t bits;
    } cases[] = { { 64, TR_QUANT_NONE, true, false, BOTH },
                  { 64, TR_QUANT_NONE, true, true, TR_ROTATE_KEYS },
                  { 128, TR_QUANT_AWQ, true, false, TR_ROTATE_KEYS },
                  { 128, TR_QUANT_AWQ, false, false, BOTH },
                  { 96, TR_QUANT_NONE, true, false, 0 },
                  { 96, TR_QUANT_AWQ, true, true, 0 } };
    tr_model_config_t model = { .recipe.head_dim = 96 };
    tr_error_t err;

    (void) state;
    assert_int_equal(tr_rotate_bits("auto"), TR_ROTATE_AUTO);
    assert_int_equal(tr_rotate_check(&model.recipe, TR_ROTATE_AUTO, &err),
                     TR_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        model.recipe.head_dim = cases[i].head_dim;
        model.quantization.method = cases[i].method;
        assert_int_equal(tr_rotate_resolve(&model, TR_ROTATE_AUTO,
                                           cases[i].packed, cases[i].quantised),
                         cases[i].bits);
        for (uint32_t bits = 0; bits <= BOTH; bits++) {
            assert_int_equal(tr_rotate_resolve(&model, bits, cases[i].packed,
                                               cases[i].quantised),
                             bits);
            assert_int_equal(tr_rotate_bits(tr_rotate_name(bits)), bits);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),    cmocka_unit_test(test_dummy),
        cmocka_unit_test(test_spreads), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_auto),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
