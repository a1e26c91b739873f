/*
 * Centring of keys (centre.h): what is taken off a pair against sums over all
 * positions; the table against the biases that it is made of; the same logits
 * with and without, of every instruction set and in every basis; and under every
 * policy those of a model that has no such bias.  Models that it does not suit
 * keep their bits.
 */
#include "tests/unit/fixtures/family_model.h"

#include <math.h>

#include "engine/config/log.h"

#define BOTH (TR_ROTATE_KEYS | TR_ROTATE_VALUES)
#define K_BIAS "model.layers.%u.self_attn.k_proj.bias"

/* RoPE turns its last pairs by less than 1e-9 in LEN positions. */
static const family_t slow = { .name = "llama",
                               .config = ",\"attention_bias\":true,"
                                         "\"rope_theta\":1e12",
                               .dtype = TR_BF16,
                               .kv_heads = 2,
                               .dim = 64,
                               .qkv_bias = true,
                               .o_bias = true };

/* ---- a pair -------------------------------------------------------------- */

/* Against sums over the positions, of a turn of w each. */
static void
check_pair(const tr_centre_pair_t *p, double w, uint32_t positions)
{
    uint32_t reach = positions < TR_CENTRE_REACH ? positions : TR_CENTRE_REACH;
    uint32_t n = reach < TR_CENTRE_MEAN ? reach : TR_CENTRE_MEAN;
    double c = (double) p->g * cos((double) p->phi);
    double s = (double) p->g * sin((double) p->phi);
    double mean_c = 0, mean_s = 0, left = 0, most = 0;

    for (uint32_t i = 0; i < reach; i++) {
        double x = cos(i * w), y = sin(i * w);
        double d = (x - c) * (x - c) + (y - s) * (y - s);

        mean_c += i < n ? x / n : 0;
        mean_s += i < n ? y / n : 0;
        left += i < n ? d / n : 0;
        most = fmax(most, sqrt(d));
    }
    assert_true(most <= 1 + 1e-6); /* no key is larger than without */
    assert_true(fabs(sqrt(left) - (double) p->left) <= 1e-5);
    assert_true(p->g >= 0 && (double) p->g <= hypot(mean_c, mean_s) + 1e-6);
    /* all of the mean is taken where nothing forbids it */
    if (w * (double) reach < 1) {
        assert_true(fabs(c - mean_c) <= 1e-5 && fabs(s - mean_s) <= 1e-5);
    }
    if (w * (reach - 1) >= M_PI) {
        assert_true(p->g == 0 && p->left == 1);
    }
}

static void
test_pairs(void **state)
{
    static tr_recipe_t r;
    static const uint32_t positions[] = { 1, 40, 4096, 32768, 131072 };
    tr_centre_pair_t pair[TR_HEAD_DIM_MAX / 2];
    float inv_freq[TR_HEAD_DIM_MAX / 2], amp[TR_HEAD_DIM_MAX / 2];

    (void) state;
    r.head_dim = 64;
    r.rotary_dim = 48;
    r.n_ropes = 1;
    for (uint32_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++) {
        r.max_positions = positions[i];
        r.rope[0] = (tr_rope_t){ .type = TR_ROPE_DEFAULT, .amp = 1 };
        r.rope[0].theta = pow(10, 2 + rng_below(&rng, 1000) / 200.0);
        r.layer[0].rope = 0;
        r.layer[1].rope = TR_ROPE_NONE;
        tr_recipe_rope(&r, 0, false, inv_freq, amp);
        tr_centre_pairs(&r, 0, pair);
        for (uint32_t p = 0; p < 32; p++) {
            check_pair(&pair[p], (double) inv_freq[p], positions[i]);
            assert_true(p < 24 || (pair[p].g == 1 && pair[p].left == 0));
        }
        tr_centre_pairs(&r, 1, pair);
        for (uint32_t p = 0; p < 32; p++) {
            assert_true(pair[p].g == 1 && pair[p].phi == 0);
        }
    }
}

/* What centre.h says of Qwen2.5. */
static void
test_qwen(void **state)
{
    static const struct {
        uint32_t pair;
        double g, left;
    } want[] = { { 45, 0, 1 },
                 { 46, 0.150, 0.851 },
                 { 47, 0.714, 0.288 },
                 { 48, 0.999, 0.037 },
                 { 56, 1, 0.0066 } };
    static tr_recipe_t r = {
        .head_dim = 128,
        .rotary_dim = 128,
        .n_ropes = 1,
        .max_positions = 32768,
        .rope = { { .type = TR_ROPE_DEFAULT, .theta = 1e6, .amp = 1 } }
    };
    tr_centre_pair_t pair[TR_HEAD_DIM_MAX / 2];

    (void) state;
    tr_centre_pairs(&r, 0, pair);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        const tr_centre_pair_t *p = &pair[want[i].pair];

        assert_true(fabs((double) p->g - want[i].g) <= 1e-3);
        assert_true(fabs((double) p->left - want[i].left) <= 1e-3);
    }
}

/* ---- a model ------------------------------------------------------------- */

static void
open_model(fixture_t *fixture, const char *isa, bool centre, uint32_t rotate)
{
    const tr_model_options_t options = { .dir = dir,
                                         .load_format = "auto",
                                         .equalise = true,
                                         .centre = centre,
                                         .rotate = rotate,
                                         .kernels = tr_kernels_cpu(isa),
                                         .threads = 2 };

    fixture_open_options(fixture, options, LEN);
}

/* Puts a policy of its own in the place of `full`. */
static void
use_policy(fixture_t *fixture, const char *spec)
{
    const tr_recipe_t *r = &fixture->model->config.recipe;
    tr_error_t err;
    tr_kv_config_t kv;

    tr_kv_cache_free(fixture->kv);
    tr_kv_policy_free(fixture->policy);
    if (tr_kv_policy_create(spec, r->layers, r->kv_heads, r->head_dim,
                            &fixture->policy, &err)
        != TR_OK) {
        fail_msg("%s: %s", spec, err.text);
    }
    kv = (tr_kv_config_t){
        .layers = r->layers,
        .kv_heads = r->kv_heads,
        .head_dim = r->head_dim,
        .policies = (const tr_kv_policy_t *const *) &fixture->policy,
        .n_policies = 1,
        .kernels = fixture->model->kernels,
        .stream = fixture->model->stream,
        .slots = 8,
        .max_len = LEN,
        .memory = 64u << 20,
    };
    assert_int_equal(tr_kv_cache_create(&kv, &fixture->kv, &err), TR_OK);
}

/* Logits behind a fixed text: a prompt, then nine tokens one by one. */
static void
run_in(fixture_t *fixture, float *logits)
{
    int32_t tokens[LEN], slot = tr_kv_open(fixture->kv, NULL);
    uint32_t n = LEN - 9;

    fixed_text(tokens);
    tr_kv_prompt(fixture->kv, slot, n);
    fixture_step(fixture, &(fixture_item_t){ slot, 0, n, tokens }, 1, logits);
    if (tr_kv_uncompressed(fixture->kv, slot)) {
        assert_int_equal(tr_kv_compress(fixture->kv, slot, n), TR_OK);
    }
    for (uint32_t i = n; i < LEN; i++) {
        fixture_step(fixture, &(fixture_item_t){ slot, i, 1, tokens + i }, 1,
                     logits);
    }
}

static void
run(const char *isa, bool centre, uint32_t rotate, float *logits)
{
    fixture_t fixture;

    open_model(&fixture, isa, centre, rotate);
    run_in(&fixture, logits);
    fixture_close(&fixture);
}

/* Of the largest logit. */
static double
distance(const float *x, const float *y)
{
    double most = 0, size = 0;

    for (uint32_t i = 0; i < VOCAB; i++) {
        double d = fabs((double) (x[i] - y[i]));

        most = d <= most ? most : d; /* a NaN stays */
        size = fmax(size, fabs((double) y[i]));
    }
    return most / size;
}

/* Biases of a channel and its partner in every head of a layer. */
static void
put_bias(const family_t *f, uint32_t layer, uint32_t pair, double x, double y)
{
    double *bias = weight(K_BIAS, layer);

    for (uint32_t h = 0; h < f->kv_heads; h++) {
        bias[h * f->dim + pair] = x;
        bias[h * f->dim + pair + f->dim / 2] = y;
    }
}

/* Keys in 16 bits are rounded otherwise, and no more. */
static void
test_same(void **state)
{
    static const char *const isas[] = { "c", "avx2", "avx512" };
    float plain[VOCAB], centred[VOCAB];

    (void) state;
    for (size_t i = 0; i < KINDS; i++) {
        family_t f = kinds[i];

        f.dim = f.dim == 48 ? 16 : f.dim; /* a power of two */
        make_model(&f);
        for (size_t j = 0; j < 3 * 4; j++) {
            const char *isa = isas[j / 4];
            const uint32_t rotate = j % 4;

            if (tr_kernels_cpu(isa) == NULL) {
                continue;
            }
            run(isa, false, rotate, plain);
            run(isa, true, rotate, centred);
            if (!f.qkv_bias) {
                assert_memory_equal(plain, centred, sizeof(plain));
                continue;
            }
            assert_memory_not_equal(plain, centred, sizeof(plain));
            if (!(distance(centred, plain) <= 1e-3)) {
                fail_msg("%s, %s, rotate %u: off by %g", f.name, isa, rotate,
                         distance(centred, plain));
            }
        }
        free_weights();
    }
}

/* A bias that hardly turns, a thousand times what keys have else, is as if it
 * were not there, whatever becomes of the keys; and without centring it is. */
static void
test_policies(void **state)
{
    static const char *const specs[] = { "full",
                                         "int4",
                                         "uniform",
                                         "uniform:levels=8/4",
                                         "diffkv",
                                         "uniform:levels=4/"
                                         "2,window=16,window_level=16/16",
                                         "snapkv",
                                         "streamingllm",
                                         "h2o:budget=0.5",
                                         "quest",
                                         "kivi" };
#define SPECS (sizeof(specs) / sizeof(specs[0]))
    static float want[SPECS][VOCAB];
    double off[3][SPECS];
    float got[VOCAB];
    fixture_t fixture;

    (void) state;
    make_weights(&slow);
    for (uint32_t pass = 0; pass < 3; pass++) { /* none, centred, not centred */
        for (uint32_t l = 0; l < LAYERS; l++) {
            put_bias(&slow, l, 31 - l, pass ? 1000 : 0, pass ? -2000 : 0);
        }
        write_model(&slow);
        open_model(&fixture, NULL, pass < 2, TR_ROTATE_KEYS);
        assert_int_equal(fixture.model->equalise->pairs,
                         pass < 2 ? 0 : LAYERS * slow.kv_heads);
        for (size_t i = 0; i < SPECS; i++) {
            use_policy(&fixture, specs[i]);
            run_in(&fixture, pass == 0 ? want[i] : got);
            off[pass][i] = pass == 0 ? 0 : distance(got, want[i]);
        }
        fixture_close(&fixture);
    }
    for (size_t i = 0; i < SPECS; i++) {
        print_message("%s: off by %.2g, not centred %.2g\n", specs[i],
                      off[1][i], off[2][i]);
        assert_true(off[1][i] <= 5e-3);
        assert_true(off[2][i] > 4 * off[1][i]);
    }
    free_weights();
}

/* Equalisation counts of a bias what centring leaves: nothing of one that does
 * not turn, all of one that turns fast. */
static void
test_equalised(void **state)
{
    static const struct {
        uint32_t pair;
        bool centre;
        uint32_t pairs;
    } cases[] = { { 30, false, 1 }, { 30, true, 0 }, { 0, true, 1 } };
    fixture_t fixture;

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_weights(&slow);
        put_bias(&slow, 1, cases[i].pair, 40, 0);
        write_model(&slow);
        open_model(&fixture, NULL, cases[i].centre, 0);
        assert_int_equal(fixture.model->equalise->pairs,
                         cases[i].pairs * slow.kv_heads);
        fixture_close(&fixture);
        free_weights();
    }
}

/* The table has the mean of R_n b, of biases as the weights have them. */
static void
test_table(void **state)
{
    const family_t *f = &slow;
    uint32_t half = f->dim / 2;
    fixture_t fixture;

    (void) state;
    make_weights(f);
    put_bias(f, 1, 20, 40, -90);
    write_model(f);
    open_model(&fixture, NULL, true, 0);
    assert_int_equal(fixture.model->centre->layers, LAYERS);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const float *shift = tr_centre_shift(fixture.model->centre, l);
        const float *bias = fixture.model->layers[l].vector[TR_PART_QKV_BIAS]
                            + HEADS * f->dim;
        tr_centre_pair_t pair[TR_HEAD_DIM_MAX / 2];

        tr_centre_pairs(&fixture.model->config.recipe, l, pair);
        for (uint32_t i = 0; i < f->kv_heads * half; i++) {
            uint32_t lo = i / half * f->dim + i % half, hi = lo + half;
            const tr_centre_pair_t *p = &pair[i % half];
            float c = p->g * cosf(p->phi), s = p->g * sinf(p->phi);
            float u = bias[lo], v = bias[hi];
            float size = 1e-5f * (fabsf(u) + fabsf(v));

            assert_true(fabsf(shift[lo] + u * c - v * s) <= size);
            assert_true(fabsf(shift[hi] + v * c + u * s) <= size);
        }
    }
    fixture_close(&fixture);
    free_weights();
}

/* ---- where there is nothing to do ---------------------------------------- */

static void
test_fits(void **state)
{
    static tr_recipe_t r = { .layers = 5 };
    const tr_layer_recipe_t plain = { .biases = TR_BIAS_QKV };
    static const bool want[] = { true, false, false, false, false };

    (void) state;
    for (uint32_t l = 0; l < r.layers; l++) {
        r.layer[l] = plain;
    }
    r.layer[1].biases = TR_BIAS_O;
    r.layer[2].qk_norm = TR_QK_NORM_HEAD;
    r.layer[3].qk_norm = TR_QK_NORM_ROW;
    r.layer[4].sinks = true;
    for (uint32_t l = 0; l < r.layers; l++) {
        assert_int_equal(tr_centre_fits(&r, l), want[l]);
    }
    assert_null(tr_centre_shift(NULL, 0));
}

/* Biases of zero leave the layer, and its bits, alone; so do those that are no
 * numbers, which the log names. */
static void
test_left_out(void **state)
{
    static const double odd[] = { 0, NAN, INFINITY, -INFINITY };
    char log[80], line[400];
    fixture_t fixture;
    FILE *file;

    (void) state;
    snprintf(log, sizeof(log), "%s/log", dir);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        bool named = false;

        make_weights(&slow);
        memset(weight(K_BIAS, 1), 0, slow.kv_heads * slow.dim * sizeof(double));
        weight(K_BIAS, 1)[3] = odd[i];
        write_model(&slow);
        tr_log_open(log, TR_LEVEL_WARN);
        open_model(&fixture, NULL, true, 0);
        tr_log_open(NULL, TR_LEVEL_ERROR);
        assert_int_equal(fixture.model->centre->layers, LAYERS - 1);
        assert_null(tr_centre_shift(fixture.model->centre, 1));
        assert_non_null(tr_centre_shift(fixture.model->centre, 2));
        fixture_close(&fixture);
        file = fopen(log, "r");
        assert_non_null(file);
        while (fgets(line, sizeof(line), file) != NULL) {
            named = named
                    || strstr(line, "kv_centre layer=1: its key bias is not "
                                    "finite")
                           != NULL;
        }
        fclose(file);
        unlink(log);
        assert_int_equal(named, i != 0);
        free_weights();
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),     cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_same),      cmocka_unit_test(test_policies),
        cmocka_unit_test(test_equalised), cmocka_unit_test(test_table),
        cmocka_unit_test(test_fits),      cmocka_unit_test(test_left_out),
    };

    rng = rng_seed();
    tr_log_open(NULL, TR_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
