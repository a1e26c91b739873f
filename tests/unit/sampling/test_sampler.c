/*
 * The sampler: what each parameter does, against the plain formula; that draws
 * follow the distribution (chi-square, fixed seeds); that a token depends on
 * its seed and position alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "engine/sampling/sampler.h"

#define VOCAB 71 /* not whole vectors */

typedef struct {
    tr_sampling_params_t p;
    tr_sampler_t s;
    uint32_t *counts;
    void *scratch;
    float logits[VOCAB];
} fixture_t;

static const tr_sampling_params_t defaults = { .temperature = 1,
                                               .top_p = 1,
                                               .repetition_penalty = 1,
                                               .max_tokens = 100,
                                               .logprobs = -1 };

/* Logits that differ everywhere, in no order. */
static float
some_logit(uint32_t i)
{
    return (float) ((i * 37 + 11) % VOCAB) * 0.1f - 3.0f;
}

static void
fixture_begin(fixture_t *r, uint64_t seed, const int32_t *prompt,
              uint32_t n_prompt)
{
    size_t size = tr_sampler_counts_size(&r->p, VOCAB);

    r->counts = size > 0 ? malloc(size) : NULL;
    r->scratch = malloc(tr_sampler_scratch_size(VOCAB));
    assert_non_null(r->scratch);
    tr_sampler_init(&r->s, &r->p, seed, VOCAB, r->counts, NULL, 0, prompt,
                    n_prompt);
    for (uint32_t i = 0; i < VOCAB; i++) {
        r->logits[i] = some_logit(i);
    }
}

static void
fixture_end(fixture_t *r)
{
    free(r->counts);
    free(r->scratch);
}

static int32_t
sample(fixture_t *r)
{
    float logits[VOCAB];
    tr_sampled_t out;

    memcpy(logits, r->logits, sizeof(logits));
    assert_int_equal(tr_sampler_sample(&r->s, logits, NULL, r->scratch, &out),
                     TR_OK);
    return out.token;
}

static int
best_first(const void *a, const void *b)
{
    const tr_top_t *x = a, *y = b;

    return x->logprob > y->logprob   ? -1
           : x->logprob < y->logprob ? 1
                                     : x->token - y->token;
}

/* The distribution by sorting and the definitions, for `draws` below. */
static void
expected_distribution(const fixture_t *r, double *share)
{
    tr_top_t sorted[VOCAB];
    double weight[VOCAB] = { 0 }, sum = 0, kept = 0;
    uint32_t n = VOCAB, m = 0;

    for (uint32_t i = 0; i < VOCAB; i++) {
        sorted[i] = (tr_top_t){ (int32_t) i, r->logits[i] };
        share[i] = 0;
    }
    qsort(sorted, VOCAB, sizeof(sorted[0]), best_first);
    if (r->p.top_k > 0 && r->p.top_k < VOCAB) {
        n = (uint32_t) r->p.top_k;
    }
    for (uint32_t i = 0; i < n; i++) {
        weight[i] = exp(((double) sorted[i].logprob - sorted[0].logprob)
                        / r->p.temperature);
        sum += weight[i];
    }
    while (m < n && kept < r->p.top_p * sum * (1 - 1e-9)) {
        kept += weight[m++];
    }
    while (m > 1 && weight[m - 1] < r->p.min_p) {
        kept -= weight[--m];
    }
    for (uint32_t i = 0; i < m; i++) {
        share[sorted[i].token] = weight[i] / kept;
    }
}

/* Draws and compares with the distribution: chi-square over the tokens that
 * are expected at least 10 times, and nothing outside of the allowed set. */
static void
check_draws(fixture_t *r, uint32_t draws)
{
    uint32_t seen[VOCAB] = { 0 };
    double share[VOCAB], chi = 0, freedom = -1;

    expected_distribution(r, share);
    for (uint32_t i = 0; i < draws; i++) {
        r->s.n_output = i;
        seen[sample(r)]++;
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        double e = share[i] * draws;

        if (share[i] == 0) {
            assert_int_equal(seen[i], 0);
        } else if (e >= 10) {
            chi += (seen[i] - e) * (seen[i] - e) / e;
            freedom++;
        }
    }
    /* beyond five standard deviations a wrong distribution is the reason */
    assert_true(chi < freedom + 5 * sqrt(2 * freedom) + 5);
}

static void
greedy_takes_the_largest_and_of_equals_the_lowest(void **state)
{
    fixture_t r = { .p = defaults };

    (void) state;
    r.p.temperature = 0;
    fixture_begin(&r, 1, NULL, 0);
    r.logits[40] = r.logits[7] = r.logits[63] = 9;
    assert_int_equal(sample(&r), 7);
    r.logits[0] = 10;
    assert_int_equal(sample(&r), 0);
    fixture_end(&r);
}

static void
draws_follow_the_distribution(void **state)
{
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k;
    } cases[] = {
        { 1, 1, 0, 0 },
        { 0.5f, 1, 0, 0 },
        { 2, 1, 0, 0 },
        { 1, 1, 0, 1 },
        { 1, 1, 0, 5 },
        { 1, 1, 0, 63 },
        { 1, 1, 0, 64 },
        { 1, 1, 0, 1000 },
        { 1, 0.9f, 0, 0 },
        { 1, 0.5f, 0, 0 },
        { 1, 0.01f, 0, 0 },
        { 1, 0.999f, 0, 0 },
        { 1, 1, 0.3f, 0 },
        { 1, 1, 1, 0 },
        { 1, 0.8f, 0, 20 },
        { 0.7f, 0.9f, 0.1f, 30 },
        { 1.5f, 0.95f, 0.02f, 50 },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_t r = { .p = defaults };

        r.p.temperature = cases[i].temperature;
        r.p.top_p = cases[i].top_p;
        r.p.min_p = cases[i].min_p;
        r.p.top_k = cases[i].top_k;
        fixture_begin(&r, 1000 + i, NULL, 0);
        check_draws(&r, 20000);
        fixture_end(&r);
    }
}

/* Many equal logits at the border: the lower ids are in. */
static void
ties_at_the_border_go_to_the_lower_ids(void **state)
{
    fixture_t r = { .p = defaults };

    (void) state;
    r.p.top_k = 10;
    fixture_begin(&r, 5, NULL, 0);
    for (uint32_t i = 0; i < VOCAB; i++) {
        r.logits[i] = i >= 60 ? 1.0f : 0.0f;
    }
    check_draws(&r, 20000);
    r.p.top_k = 0;
    r.p.top_p = 0.4f;
    check_draws(&r, 20000);
    fixture_end(&r);
}

static void
a_token_depends_on_seed_and_position_alone(void **state)
{
    fixture_t r = { .p = defaults };
    int32_t first[200];
    uint32_t differ = 0;

    (void) state;
    fixture_begin(&r, 42, NULL, 0);
    for (uint32_t i = 0; i < 200; i++) {
        r.s.n_output = i;
        first[i] = sample(&r);
    }
    for (uint32_t i = 200; i-- > 0;) { /* backwards, and each twice */
        r.s.n_output = i;
        assert_int_equal(sample(&r), first[i]);
        assert_int_equal(sample(&r), first[i]);
    }
    r.s.seed = 43;
    for (uint32_t i = 0; i < 200; i++) {
        r.s.n_output = i;
        differ += sample(&r) != first[i];
    }
    assert_true(differ > 150);
    fixture_end(&r);
}

/* Neighbouring seeds and positions must not be related: pairs of tokens of
 * (seed, 0) and (seed, 1), and of (seed, 0) and (seed + 1, 0). */
static void
neighbours_are_independent(void **state)
{
    enum { N = 4096 };
    uint32_t pairs[2][16] = { { 0 } };
    fixture_t r = { .p = defaults };

    (void) state;
    fixture_begin(&r, 0, NULL, 0);
    for (uint32_t i = 0; i < VOCAB; i++) {
        r.logits[i] = i < 4 ? 0 : -INFINITY;
    }
    for (uint32_t i = 0; i < N; i++) {
        int32_t here, later, beside;

        r.s.seed = i;
        r.s.n_output = 0;
        here = sample(&r);
        r.s.n_output = 1;
        later = sample(&r);
        r.s.seed = i + 1;
        r.s.n_output = 0;
        beside = sample(&r);
        pairs[0][here * 4 + later]++;
        pairs[1][here * 4 + beside]++;
    }
    for (int k = 0; k < 2; k++) {
        double chi = 0, e = N / 16.0;

        for (int i = 0; i < 16; i++) {
            chi += (pairs[k][i] - e) * (pairs[k][i] - e) / e;
        }
        assert_true(chi < 15 + 5 * sqrt(30));
    }
    fixture_end(&r);
}

static void
penalties_follow_their_formulas(void **state)
{
    static const int32_t prompt[] = { 3, 5, 5, 9 }, output[] = { 5, 9, 9, 20 };
    fixture_t r = { .p = defaults };
    float logits[VOCAB];
    tr_sampled_t out;

    (void) state;
    r.p.presence_penalty = 0.5f;
    r.p.frequency_penalty = -0.25f;
    r.p.repetition_penalty = 1.3f;
    fixture_begin(&r, 7, prompt, 4);
    for (int i = 0; i < 4; i++) {
        tr_sampler_accept(&r.s, output[i]);
    }
    assert_int_equal(r.s.n_output, 4);
    memcpy(logits, r.logits, sizeof(logits));
    assert_int_equal(tr_sampler_sample(&r.s, logits, NULL, r.scratch, &out),
                     TR_OK);
    for (uint32_t i = 0; i < VOCAB; i++) {
        float want = some_logit(i);
        int n = 0, seen = 0;

        for (int k = 0; k < 4; k++) {
            n += output[k] == (int32_t) i;
            seen |= output[k] == (int32_t) i || prompt[k] == (int32_t) i;
        }
        if (seen) {
            want = want > 0 ? want / 1.3f : want * 1.3f;
        }
        want -= 0.5f * (n > 0);
        want -= -0.25f * n;
        assert_true(fabsf(logits[i] - want) < 1e-6f);
    }
    fixture_end(&r);
}

static void
no_penalty_needs_no_counts(void **state)
{
    tr_sampling_params_t p = defaults;

    (void) state;
    assert_int_equal(tr_sampler_counts_size(&p, VOCAB), 0);
    p.presence_penalty = -1;
    assert_int_equal(tr_sampler_counts_size(&p, VOCAB), VOCAB * 4);
}

static void
logit_bias_is_added(void **state)
{
    static const tr_logit_bias_t bias[] = {
        { 12, 100 }, { 13, -100 }, { VOCAB, 100 }, { -1, 100 }
    };
    fixture_t r = { .p = defaults };

    (void) state;
    r.p.bias = bias;
    r.p.n_bias = 4;
    fixture_begin(&r, 7, NULL, 0);
    for (int i = 0; i < 50; i++) {
        r.s.n_output = (uint32_t) i;
        assert_int_equal(sample(&r), 12);
    }
    fixture_end(&r);
}

static void
min_tokens_bars_eos_and_stop_tokens(void **state)
{
    static const int32_t eos[] = { 1, 2 }, stop[] = { 3 };
    fixture_t r = { .p = defaults };

    (void) state;
    r.p.min_tokens = 2;
    r.p.stop_tokens = stop;
    r.p.n_stop_tokens = 1;
    r.p.temperature = 0;
    fixture_begin(&r, 7, NULL, 0);
    r.s.eos = eos;
    r.s.n_eos = 2;
    r.logits[1] = 12;
    r.logits[2] = 11;
    r.logits[3] = 10;
    r.logits[4] = 9;
    assert_int_equal(sample(&r), 4);
    tr_sampler_accept(&r.s, 4);
    assert_int_equal(sample(&r), 4);
    tr_sampler_accept(&r.s, 4);
    assert_int_equal(sample(&r), 1);
    fixture_end(&r);
}

/* Logprobs are of the raw logits, whatever was done to them for sampling. */
static void
logprobs_are_of_the_raw_logits(void **state)
{
    static const tr_logit_bias_t bias[] = { { 12, 50 } };
    fixture_t r = { .p = defaults };
    float logits[VOCAB];
    double sum = 0;
    tr_sampled_t out;

    (void) state;
    r.p.logprobs = 5;
    r.p.bias = bias;
    r.p.n_bias = 1;
    r.p.temperature = 0.3f;
    fixture_begin(&r, 7, NULL, 0);
    r.logits[30] = r.logits[31] = 5; /* a tie: the lower id first */
    r.logits[50] = -INFINITY;
    memcpy(logits, r.logits, sizeof(logits));
    assert_int_equal(tr_sampler_sample(&r.s, logits, NULL, r.scratch, &out),
                     TR_OK);
    assert_int_equal(out.token, 12);
    for (int i = 0; i < VOCAB; i++) {
        sum += exp(r.logits[i]);
    }
    assert_true(fabs(out.logprob - (r.logits[12] - log(sum))) < 1e-5);
    assert_int_equal(out.n_top, 5);
    assert_int_equal(out.top[0].token, 30);
    assert_int_equal(out.top[1].token, 31);
    for (uint32_t i = 0; i < 5; i++) {
        double want = r.logits[out.top[i].token] - log(sum);

        assert_true(fabs(out.top[i].logprob - want) < 1e-5);
        assert_true(i == 0 || out.top[i].logprob <= out.top[i - 1].logprob);
    }
    assert_int_equal(tr_sampler_score(r.logits, VOCAB, 50, 0, r.scratch, &out),
                     TR_OK);
    assert_true(out.logprob == -9999.0f);
    assert_int_equal(out.n_top, 0);
    fixture_end(&r);
}

static void
logits_that_are_no_numbers_are_an_error(void **state)
{
    static const float bad[] = { NAN, INFINITY };
    fixture_t r = { .p = defaults };
    float logits[VOCAB];
    tr_sampled_t out;

    (void) state;
    fixture_begin(&r, 7, NULL, 0);
    for (int i = 0; i < 2 * VOCAB; i++) {
        memcpy(logits, r.logits, sizeof(logits));
        logits[i / 2] = bad[i % 2];
        assert_int_equal(tr_sampler_sample(&r.s, logits, NULL, r.scratch, &out),
                         TR_ERR_INTERNAL);
        assert_int_equal(tr_sampler_score(logits, VOCAB, 0, 0, r.scratch, &out),
                         TR_ERR_INTERNAL);
    }
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = -INFINITY;
    }
    assert_int_equal(tr_sampler_sample(&r.s, logits, NULL, r.scratch, &out),
                     TR_ERR_INTERNAL);
    for (int i = 0; i < VOCAB; i++) { /* one token is enough */
        logits[i] = -80;
        assert_int_equal(tr_sampler_sample(&r.s, logits, NULL, r.scratch, &out),
                         TR_OK);
        assert_int_equal(out.token, i);
        logits[i] = -INFINITY;
    }
    fixture_end(&r);
}

/* A mask bars before everything else, and logprobs do not know of it. */
static void
test_mask(void **state)
{
    fixture_t r = { .p = defaults };
    uint32_t mask[(VOCAB + 31) / 32] = { 0 };
    const int32_t eos[] = { 7 };
    float logits[VOCAB];
    tr_sampled_t out, free_out;
    bool seen[VOCAB] = { false };

    (void) state;
    r.p.logprobs = 3;
    fixture_begin(&r, 1, NULL, 0);
    mask[0] = 1u << 5 | 1u << 7;
    mask[2] = 1u << 3; /* token 67 */
    for (uint32_t i = 0; i < 300; i++) {
        memcpy(logits, r.logits, sizeof(logits));
        r.s.seed = i;
        assert_int_equal(tr_sampler_sample(&r.s, logits, mask, r.scratch, &out),
                         TR_OK);
        seen[out.token] = true;
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        assert_int_equal(seen[i], i == 5 || i == 7 || i == 67);
    }
    memcpy(logits, r.logits, sizeof(logits));
    assert_int_equal(tr_sampler_score(r.logits, VOCAB, out.token, 3, r.scratch,
                                      &free_out),
                     TR_OK);
    assert_float_equal(out.logprob, free_out.logprob, 1e-6);
    assert_int_equal(out.top[0].token, free_out.top[0].token);
    /* min_tokens bars the end, unless there is nothing else */
    r.s.eos = eos;
    r.s.n_eos = 1;
    r.p.min_tokens = 10;
    r.p.temperature = 0;
    mask[0] = 1u << 7;
    for (int i = 0; i < 2; i++) {
        mask[2] = i == 0 ? 1u << 3 : 0;
        memcpy(logits, r.logits, sizeof(logits));
        assert_int_equal(tr_sampler_sample(&r.s, logits, mask, r.scratch, &out),
                         TR_OK);
        assert_int_equal(out.token, i == 0 ? 67 : 7);
    }
    mask[0] = 0;
    memcpy(logits, r.logits, sizeof(logits));
    assert_int_equal(tr_sampler_sample(&r.s, logits, mask, r.scratch, &out),
                     TR_ERR_INTERNAL);
    fixture_end(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask),
        cmocka_unit_test(greedy_takes_the_largest_and_of_equals_the_lowest),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(ties_at_the_border_go_to_the_lower_ids),
        cmocka_unit_test(a_token_depends_on_seed_and_position_alone),
        cmocka_unit_test(neighbours_are_independent),
        cmocka_unit_test(penalties_follow_their_formulas),
        cmocka_unit_test(no_penalty_needs_no_counts),
        cmocka_unit_test(logit_bias_is_added),
        cmocka_unit_test(min_tokens_bars_eos_and_stop_tokens),
        cmocka_unit_test(logprobs_are_of_the_raw_logits),
        cmocka_unit_test(logits_that_are_no_numbers_are_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
