/*
 * The families: small models with random weights, written as safetensors, run
 * by the engine and by a second forward pass that is deliberately naive: double
 * precision, one token at a time, plain loops from the published formulas.
 * Also load_format dummy.
 */
#include "tests/unit/fixtures/family_model.h"
#include "kernels/kernels.h"

#include <math.h>

/* ---- the naive forward pass ---- */

static void
naive_product(const double *w, uint32_t n, uint32_t k, const double *x,
              const double *bias, double *y)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = bias ? bias[i] : 0;
        for (uint32_t j = 0; j < k; j++) {
            y[i] += w[i * k + j] * x[j];
        }
    }
}

static void
naive_norm(const double *x, const double *w, uint32_t n, double *y)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        y[i] = x[i] / sqrt(sum / n + 1e-5) * w[i];
    }
}

/* Frequencies with scaling, from the papers and Meta's reference code. */
static double
naive_frequency(const family_t *f, uint32_t i)
{
    double freq = 1.0 / pow(f->theta, 2.0 * i / f->dim);
    double wavelength = 2 * M_PI / freq, smooth;

    if (f->linear > 0) {
        return freq / f->linear;
    }
    if (!f->llama3 || wavelength < 64.0 / 4) {
        return freq;
    }
    if (wavelength > 64.0 / 1) {
        return freq / 8;
    }
    smooth = (64.0 / wavelength - 1) / (4 - 1);
    return (1 - smooth) * freq / 8 + smooth * freq;
}

static void
naive_rope(const family_t *f, double *x, uint32_t pos)
{
    for (uint32_t i = 0; i < f->dim / 2; i++) {
        double a = pos * naive_frequency(f, i);
        double u = x[i], v = x[i + f->dim / 2];

        x[i] = u * cos(a) - v * sin(a);
        x[i + f->dim / 2] = v * cos(a) + u * sin(a);
    }
}

static double cache_k[LAYERS][HEADS][LEN][DIM_MAX];
static double cache_v[LAYERS][HEADS][LEN][DIM_MAX];

static void
naive_attention(const family_t *f, uint32_t l, uint32_t pos, const double *x,
                double *out)
{
    double q[HEADS * DIM_MAX], k[HEADS * DIM_MAX], v[HEADS * DIM_MAX];
    uint32_t dim = f->dim;

    naive_product(weight("model.layers.%u.self_attn.q_proj.weight", l),
                  HEADS * dim, HIDDEN, x,
                  f->qkv_bias
                      ? weight("model.layers.%u.self_attn.q_proj.bias", l)
                      : NULL,
                  q);
    naive_product(weight("model.layers.%u.self_attn.k_proj.weight", l),
                  f->kv_heads * dim, HIDDEN, x,
                  f->qkv_bias
                      ? weight("model.layers.%u.self_attn.k_proj.bias", l)
                      : NULL,
                  k);
    naive_product(weight("model.layers.%u.self_attn.v_proj.weight", l),
                  f->kv_heads * dim, HIDDEN, x,
                  f->qkv_bias
                      ? weight("model.layers.%u.self_attn.v_proj.bias", l)
                      : NULL,
                  v);
    for (uint32_t h = 0; h < f->kv_heads; h++) {
        if (f->qk_norm) {
            naive_norm(k + h * dim,
                       weight("model.layers.%u.self_attn.k_norm.weight", l),
                       dim, k + h * dim);
        }
        naive_rope(f, k + h * dim, pos);
        for (uint32_t d = 0; d < dim; d++) { /* as the cache keeps them */
            cache_k[l][h][pos][d] = (double) (_Float16) (float) k[h * dim + d];
            cache_v[l][h][pos][d] = (double) (_Float16) (float) v[h * dim + d];
        }
    }
    for (uint32_t h = 0; h < HEADS; h++) {
        uint32_t kh = h / (HEADS / f->kv_heads);
        double score[LEN], sum = 0;

        if (f->qk_norm) {
            naive_norm(q + h * dim,
                       weight("model.layers.%u.self_attn.q_norm.weight", l),
                       dim, q + h * dim);
        }
        naive_rope(f, q + h * dim, pos);
        for (uint32_t p = 0; p <= pos; p++) {
            score[p] = 0;
            for (uint32_t d = 0; d < dim; d++) {
                score[p] += q[h * dim + d] * cache_k[l][kh][p][d];
            }
            score[p] = exp(score[p] / sqrt(dim));
            sum += score[p];
        }
        for (uint32_t d = 0; d < dim; d++) {
            out[h * dim + d] = 0;
            for (uint32_t p = 0; p <= pos; p++) {
                out[h * dim + d] += score[p] / sum * cache_v[l][kh][p][d];
            }
        }
    }
}

static void
naive_token(const family_t *f, int32_t token, uint32_t pos, double *logits)
{
    double x[HIDDEN], n[HIDDEN], y[HIDDEN], a[HEADS * DIM_MAX];
    double gate[INTER], up[INTER];

    memcpy(x, weight("model.embed_tokens.weight", 0) + token * HIDDEN,
           sizeof(x));
    for (uint32_t l = 0; l < LAYERS; l++) {
        naive_norm(x, weight("model.layers.%u.input_layernorm.weight", l),
                   HIDDEN, n);
        naive_attention(f, l, pos, n, a);
        naive_product(weight("model.layers.%u.self_attn.o_proj.weight", l),
                      HIDDEN, HEADS * f->dim, a,
                      f->o_bias
                          ? weight("model.layers.%u.self_attn.o_proj.bias", l)
                          : NULL,
                      y);
        for (uint32_t i = 0; i < HIDDEN; i++) {
            x[i] += y[i];
        }
        naive_norm(x,
                   weight("model.layers.%u.post_attention_layernorm.weight", l),
                   HIDDEN, n);
        naive_product(weight("model.layers.%u.mlp.gate_proj.weight", l), INTER,
                      HIDDEN, n, NULL, gate);
        naive_product(weight("model.layers.%u.mlp.up_proj.weight", l), INTER,
                      HIDDEN, n, NULL, up);
        for (uint32_t i = 0; i < INTER; i++) {
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        }
        naive_product(weight("model.layers.%u.mlp.down_proj.weight", l), HIDDEN,
                      INTER, gate, NULL, y);
        for (uint32_t i = 0; i < HIDDEN; i++) {
            x[i] += y[i];
        }
    }
    naive_norm(x, weight("model.norm.weight", 0), HIDDEN, n);
    naive_product(weight(f->tied ? "model.embed_tokens.weight"
                                 : "lm_head.weight",
                         0),
                  VOCAB, HIDDEN, n, NULL, logits);
}

/* ---- the comparison ---- */

static void
compare_family(const family_t *f, const char *isa)
{
    static float logits[VOCAB];
    double want[VOCAB], size, worst = 0;
    int32_t tokens[LEN], slot;
    fixture_t fixture;

    fixture_open(&fixture, dir, "auto", isa, 2, LEN);
    slot = tr_kv_open(fixture.kv, NULL);
    for (uint32_t i = 0; i < LEN; i++) {
        tokens[i] = (int32_t) rng_below(&rng, VOCAB);
    }
    for (uint32_t i = 0; i < LEN; i++) {
        naive_token(f, tokens[i], i, want);
        if (i < 20) { /* the rest token by token */
            continue;
        }
        fixture_step(&fixture,
                     i == 20 ? &(fixture_item_t){ slot, 0, 21, tokens }
                             : &(fixture_item_t){ slot, i, 1, tokens + i },
                     1, logits);
        size = 0;
        for (uint32_t j = 0; j < VOCAB; j++) {
            size = fmax(size, fabs(want[j]));
        }
        for (uint32_t j = 0; j < VOCAB; j++) {
            double e = fabs(logits[j] - want[j]) / size;

            if (!(e <= 2e-3)) {
                fail_msg("%s%s, %s: position %u token %u: %g, expected %g",
                         f->name, f->config, isa, i, j, logits[j], want[j]);
            }
            worst = fmax(worst, e);
        }
    }
    print_message("%s%s %s: worst %.2g\n", f->name, f->config, isa, worst);
    fixture_close(&fixture);
}

/* By every kind of kernels that this machine has. */
static void
compute_family(const family_t *f)
{
    static const char *const isas[] = { "c", "avx2", "avx512" };

    make_model(f);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        if (tr_kernels_cpu(isas[i]) != NULL) {
            compare_family(f, isas[i]);
        }
    }
    free_weights();
}

#define LLAMA3                                                          \
    "\"rope_theta\":10000.0,\"factor\":8.0,\"low_freq_factor\":1.0,"    \
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64," \
    "\"rope_type\":\"llama3\"}"

/* The kinds of the fixture, and scaled or windowed positions. */
static void
test_families(void **state)
{
    static const family_t families[] = {
        { .name = "llama",
          .config = ",\"rope_parameters\":{" LLAMA3,
          .dtype = TR_BF16,
          .kv_heads = 3,
          .dim = 64,
          .theta = 10000,
          .llama3 = true,
          .tied = true },
        { .name = "llama",
          .config = ",\"attention_bias\":true,"
                    "\"rope_scaling\":{\"type\":\"linear\","
                    "\"factor\":2.5}",
          .dtype = TR_F32,
          .kv_heads = 6,
          .dim = 16,
          .theta = 10000,
          .linear = 2.5,
          .qkv_bias = true,
          .o_bias = true },
        { .name = "mistral",
          .config = ",\"sliding_window\":null",
          .dtype = TR_F32,
          .kv_heads = 2,
          .dim = 16,
          .theta = 10000 },
    };

    (void) state;
    for (size_t i = 0; i < KINDS; i++) {
        compute_family(&kinds[i]);
    }
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        compute_family(&families[i]);
    }
}

/* What the files hold and what config.json asks for must agree. */
static void
test_mismatch(void **state)
{
    family_t f = { .name = "llama",
                   .config = "",
                   .dtype = TR_F32,
                   .kv_heads = 2,
                   .dim = 32,
                   .theta = 10000 };
    tr_model_options_t o = { .dir = dir,
                             .load_format = "auto",
                             .kernels = tr_kernels_cpu(NULL),
                             .threads = 1,
                             .max_rows = 8,
                             .max_seqs = 1 };
    tr_model_t *m = NULL;
    tr_error_t err;

    (void) state;
    make_weights(&f);
    write_weights(TR_F32);
    f.name = "qwen2"; /* which needs biases */
    write_config(&f);
    assert_int_equal(tr_model_open(&o, &m, &err), TR_ERR_FORMAT);
    assert_non_null(strstr(err.text, "q_proj.bias\" is missing"));
    f.name = "llama";
    f.kv_heads = 3;
    write_config(&f);
    assert_int_equal(tr_model_open(&o, &m, &err), TR_ERR_FORMAT);
    assert_non_null(strstr(err.text, "k_proj.weight\" has shape [64, 96], "
                                     "config.json says [96, 96]"));
    assert_null(m);
    free_weights();
}

static void
dummy_logits(uint64_t seed, float *logits)
{
    fixture_t fixture;
    tr_model_options_t o = { .dir = dir,
                             .load_format = "dummy",
                             .dummy_seed = seed,
                             .kernels = tr_kernels_cpu(NULL),
                             .threads = 2,
                             .max_rows = 512,
                             .max_seqs = 64 };
    tr_kv_config_t kc = {
        .layers = LAYERS,
        .kv_heads = 2,
        .head_dim = 32,
        .slots = 1,
        .max_len = LEN,
        .memory = 8u << 20,
        .policies = (const tr_kv_policy_t *const *) &fixture.policy,
        .n_policies = 1
    };
    int32_t tokens[9] = { 1, 5, 9, 13, 17, 21, 25, 29, 33 };
    tr_error_t err;

    assert_int_equal(tr_model_open(&o, &fixture.model, &err), TR_OK);
    assert_int_equal(tr_kv_policy_create("full", LAYERS, 2, 32, &fixture.policy,
                                         &err),
                     TR_OK);
    assert_int_equal(tr_kv_cache_create(&kc, &fixture.kv, &err), TR_OK);
    fixture_step(&fixture,
                 &(fixture_item_t){ tr_kv_open(fixture.kv, NULL), 0, 9,
                                    tokens },
                 1, logits);
    fixture_close(&fixture);
}

/* No weight file is needed; the seed decides. */
static void
test_dummy(void **state)
{
    family_t f = { .name = "llama", .config = "", .kv_heads = 2, .dim = 32 };
    float a[VOCAB], b[VOCAB], c[VOCAB];
    char path[128];
    double sum = 0;

    (void) state;
    write_config(&f);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    dummy_logits(3, a);
    dummy_logits(3, b);
    dummy_logits(4, c);
    assert_memory_equal(a, b, sizeof(a));
    assert_memory_not_equal(a, c, sizeof(a));
    for (uint32_t i = 0; i < VOCAB; i++) {
        sum += (double) a[i] * a[i];
    }
    assert_true(sum > 1e-6 && sum < 1e6);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_dummy),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
