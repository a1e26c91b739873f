/*
 * The plain C that the CUDA kernels are compared with, against the engine's
 * own: 16-bit numbers, angles and norms against the CPU backend, sampling
 * against engine/sampling/sampler.c for random sampling parameters.
 */
#include "tests/unit/fixtures/model_fixture.h"

#include <math.h>

#include "tests/gpu/model/model_reference.h"
#include "engine/sampling/sampler.h"
#include "kernels/kernels.h"

static uint64_t rng;

static uint32_t
below(uint32_t n)
{
    return (uint32_t) (fixture_next(&rng) >> 33) % n;
}

static double
unit(void)
{
    return (double) (fixture_next(&rng) >> 11) * 0x1p-53;
}

/* ---- 16-bit numbers ----------------------------------------------------- */

static void
every_16_bit_number_comes_back(void **state)
{
    (void) state;
    for (uint32_t u = 0; u < 65536; u++) {
        float half = tr_float_from_half((uint16_t) u);
        float b = tr_float_from_bits(u << 16);

        if (isnan(half)) {
            assert_true(isnan(tr_float_from_half(tr_half_from_float(half))));
        } else {
            assert_int_equal(tr_half_from_float(half), u);
        }
        if (isnan(b)) {
            uint32_t back = (uint32_t) tr_bf16_from_float(b) << 16;

            assert_true(isnan(tr_float_from_bits(back)));
        } else {
            assert_int_equal(tr_bf16_from_float(b), u);
        }
    }
}

/* Rounding by the definition: of the numbers on both sides, the nearer one, of
 * two as near the even one. */
static void
check_bf16(float x)
{
    uint16_t got = tr_bf16_from_float(x);
    uint32_t u = tr_float_bits(x) & 0xffff0000;
    double low = (double) tr_float_from_bits(u), high;
    double from_low = fabs((double) x - low), from_high;

    if ((u & 0x7f800000) == 0x7f800000) {
        return;
    }
    high = ((u + 0x10000) & 0x7f800000) == 0x7f800000
               ? copysign(0x1p128, low)
               : (double) tr_float_from_bits(u + 0x10000);
    from_high = fabs(high - (double) x);
    if (from_low < from_high || (from_low == from_high && !(u & 0x10000))) {
        assert_int_equal(got, u >> 16);
    } else {
        assert_int_equal(got, (u + 0x10000) >> 16);
    }
}

static void
floats_are_rounded_to_nearest_even(void **state)
{
    (void) state;
    for (uint32_t i = 0; i < 4000000; i++) {
        uint64_t r = fixture_next(&rng);
        uint32_t u = (uint32_t) (r >> 32);
        float x;

        if (r & 1) { /* among what FP16 has, and halfway */
            u = (u & 0x80000000) | (96u + (u >> 23 & 63)) << 23
                | (u & 0x7fffff);
        }
        u &= r & 2 ? UINT32_MAX : r & 4 ? 0xfffff000 : 0xffff8000;
        x = tr_float_from_bits(u);
        check_bf16(x);
        if (!isnan(x)) {
            _Float16 want = (_Float16) x; /* the compiler's */
            uint16_t bits;

            memcpy(&bits, &want, 2);
            assert_int_equal(tr_half_from_float(x), bits);
        }
    }
}

/* ---- the model ---------------------------------------------------------- */

static void
angles_are_those_of_the_cpu(void **state)
{
    enum { ROWS = 50, HALF = 64 };

    const tr_kernels_t *k = tr_kernels_cpu("c");
    float inv[HALF], amp[HALF], temp[ROWS];
    float got[ROWS * 2 * HALF], want[ROWS * 2 * HALF];
    uint32_t pos[ROWS];
    tr_cuda_angles_t a = { .rows = ROWS,
                           .half = HALF,
                           .row_pos = pos,
                           .inv_freq = inv,
                           .angles = got };

    (void) state;
    for (uint32_t i = 0; i < HALF; i++) {
        inv[i] = powf(500000.0f, -(float) i / HALF);
        amp[i] = 1 + (float) i / HALF;
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        pos[r] = below(131072);
        temp[r] = 1 + 0.1f * logf(1 + (float) (pos[r] / 8192));
    }
    assert_int_equal(k->rope_angles(&(tr_stream_t){ 1, NULL }, pos, ROWS, inv,
                                    NULL, NULL, HALF, want),
                     0);
    assert_int_equal(tr_ref_rope_angles(&a), 0);
    assert_memory_equal(got, want, sizeof(got));
    assert_int_equal(k->rope_angles(&(tr_stream_t){ 1, NULL }, pos, ROWS, inv,
                                    amp, temp, HALF, want),
                     0);
    a.amp = amp;
    a.temp = 0.1f;
    a.temp_original = 8192;
    assert_int_equal(tr_ref_rope_angles(&a), 0);
    for (uint32_t i = 0; i < ROWS * 2 * HALF; i++) {
        assert_true(fabsf(got[i] - want[i]) <= 1e-6f);
    }
}

static void
a_norm_is_that_of_the_cpu(void **state)
{
    enum { ROWS = 3, N = 97 };

    const tr_kernels_t *k = tr_kernels_cpu("c");
    float hidden[ROWS * N], sum[ROWS * N], want[ROWS * N];
    float bias[N], weight[N];
    uint16_t delta[ROWS * N], out[ROWS * N];
    tr_cuda_norm_t a = { .rows = ROWS,
                         .n = N,
                         .hidden = hidden,
                         .ldh = N,
                         .delta = delta,
                         .ldd = N,
                         .bias = bias,
                         .scale = 1,
                         .weight = weight,
                         .eps = 1e-5f,
                         .out = out,
                         .ldo = N,
                         .type = TR_BF16 };

    (void) state;
    for (uint32_t i = 0; i < N; i++) {
        bias[i] = rng_normal(&rng);
        weight[i] = rng_normal(&rng);
    }
    for (uint32_t i = 0; i < ROWS * N; i++) {
        hidden[i] = rng_normal(&rng);
        delta[i] = tr_bf16_from_float(rng_normal(&rng));
        sum[i] = hidden[i] + tr_float_load(delta, i, TR_BF16) + bias[i % N];
    }
    assert_int_equal(k->rmsnorm(&(tr_stream_t){ 1, NULL }, sum, N, ROWS, 1, N,
                                weight, 1e-5f, want, N),
                     0);
    assert_int_equal(tr_ref_norm(&a), 0);
    assert_memory_equal(hidden, sum, sizeof(sum));
    for (uint32_t i = 0; i < ROWS * N; i++) {
        float got = tr_float_load(out, i, TR_BF16);

        assert_true(fabsf(got - want[i]) <= fabsf(want[i]) / 200);
    }
}

/* A layer's products of few rows are its products with the norms and the gate
 * that stand between them, but for what is rounded to 16 bits in between. */
static void
few_rows_are_norm_product_and_gate(void **state)
{
    enum { ROWS = 3, N = 64, INNER = 128 };

    static uint16_t w[N * N], gate_up[2 * INNER * N];
    uint16_t x[ROWS * N], delta[ROWS * N], y[ROWS * N], normed[ROWS * N];
    uint16_t wide[ROWS * 2 * INNER], want[ROWS * INNER], got[ROWS * INNER];
    float hidden[ROWS * N], same[ROWS * N], bias[N], weight[N], squares[ROWS];
    tr_cuda_norm_t norm = { .rows = ROWS,
                            .n = N,
                            .hidden = same,
                            .ldh = N,
                            .delta = delta,
                            .ldd = N,
                            .bias = bias,
                            .scale = 1,
                            .weight = weight,
                            .eps = 1e-5f,
                            .out = normed,
                            .ldo = N,
                            .type = TR_BF16 };
    tr_cuda_small_gemm_t plain = { .mode = TR_CUDA_SMALL_GEMM_PLAIN,
                                   .rows = ROWS,
                                   .n = N,
                                   .k = N,
                                   .x = x,
                                   .w = w,
                                   .y = delta,
                                   .ldx = N,
                                   .ldy = N };
    tr_cuda_small_gemm_t residual = { .mode = TR_CUDA_SMALL_GEMM_RESIDUAL,
                                      .rows = ROWS,
                                      .n = N,
                                      .k = N,
                                      .x = x,
                                      .w = w,
                                      .y = y,
                                      .ldx = N,
                                      .ldy = N,
                                      .hidden = hidden,
                                      .ldh = N,
                                      .bias = bias,
                                      .weight = weight,
                                      .squares_out = squares };
    tr_cuda_small_gemm_t gated = { .mode = TR_CUDA_SMALL_GEMM_GATED,
                                   .rows = ROWS,
                                   .n = 2 * INNER,
                                   .k = N,
                                   .x = y,
                                   .w = gate_up,
                                   .y = got,
                                   .ldx = N,
                                   .ldy = INNER,
                                   .squares = squares,
                                   .parts = 1,
                                   .norm_n = N,
                                   .eps = 1e-5f };
    tr_cuda_small_gemm_t both = gated; /* gate and up, of the norm's results */

    (void) state;
    for (uint32_t i = 0; i < N; i++) {
        bias[i] = rng_normal(&rng);
        weight[i] = rng_normal(&rng);
    }
    for (uint32_t i = 0; i < ROWS * N; i++) {
        hidden[i] = same[i] = rng_normal(&rng);
        x[i] = tr_bf16_from_float(rng_normal(&rng));
    }
    for (uint32_t i = 0; i < N * N; i++) {
        w[i] = tr_bf16_from_float(rng_normal(&rng) / 8);
    }
    for (uint32_t i = 0; i < 2 * INNER * N; i++) {
        gate_up[i] = tr_bf16_from_float(rng_normal(&rng) / 8);
    }
    assert_int_equal(tr_ref_small_gemm(&plain), 0);
    assert_int_equal(tr_ref_norm(&norm), 0);
    assert_int_equal(tr_ref_small_gemm(&residual), 0);
    for (uint32_t i = 0; i < ROWS * N; i++) { /* delta was rounded */
        assert_true(fabsf(hidden[i] - same[i]) <= 0.02f);
    }
    both.mode = TR_CUDA_SMALL_GEMM_PLAIN;
    both.x = normed;
    both.y = wide;
    both.ldy = (size_t) 2 * INNER;
    both.parts = 0;
    assert_int_equal(tr_ref_small_gemm(&both), 0);
    assert_int_equal(tr_ref_act_mul(TR_ACT_SILU, wide, (size_t) 2 * INNER, ROWS,
                                    INNER, TR_BF16, want, INNER),
                     0);
    assert_int_equal(tr_ref_small_gemm(&gated), 0);
    for (uint32_t i = 0; i < ROWS * INNER; i++) {
        float a = tr_float_load(got, i, TR_BF16);
        float b = tr_float_load(want, i, TR_BF16);

        assert_true(fabsf(a - b) <= 0.05f + fabsf(b) / 20);
    }
}

/* ---- sampling ----------------------------------------------------------- */

enum { VOCAB = 300, LEN = 40, LISTED = 6 };

typedef struct {
    tr_cuda_sampling_t sampling;
    tr_sampling_params_t params;
    float logits[VOCAB];
    int32_t history[LEN];
    tr_cuda_bias_t bias[LISTED];
    int32_t bar[LISTED];
    int32_t slot;
    tr_cuda_sampled_t got;
    tr_cuda_top_t top[TR_CUDA_TOP_MAX];
} sampling_case_t;

static void
invent_logits(sampling_case_t *w)
{
    double scale = exp(unit() * 8 - 3);

    for (uint32_t i = 0; i < VOCAB; i++) {
        w->logits[i] = rng_normal(&rng) * (float) scale;
        if (below(4) == 0) { /* equals */
            w->logits[i] = (float) (int32_t) below(5) - 2;
        }
        if (below(20) == 0) {
            w->logits[i] = -INFINITY;
        }
    }
    if (below(15) == 0) {
        w->logits[below(VOCAB)] = below(2) ? NAN : INFINITY;
    }
    for (uint32_t i = 0; below(30) == 0 && i < VOCAB; i++) {
        w->logits[i] = -INFINITY;
    }
}

static void
invent_sampling(sampling_case_t *w)
{
    tr_cuda_sampling_t *p = &w->sampling;

    memset(w, 0, sizeof(*w));
    invent_logits(w);
    p->prompt_len = 1 + below(20);
    p->number = below(20);
    p->pos = p->prompt_len + p->number - 1;
    p->seed = fixture_next(&rng);
    p->temperature = below(4) ? (float) (0.05 + unit() * 1.95) : 0;
    p->top_p = below(2) ? (float) (0.02 + unit() * 0.98) : 1;
    p->min_p = below(3) ? 0 : (float) unit();
    p->top_k = below(2) ? 0 : (int32_t) (1 + below(VOCAB + 10));
    p->repetition = below(2) ? 1 : (float) (0.5 + unit() * 2);
    p->presence = below(2) ? 0 : (float) (unit() * 4 - 2);
    p->frequency = below(2) ? 0 : (float) (unit() * 4 - 2);
    p->n_bias = below(2) ? 0 : below(LISTED);
    p->n_bar = below(2) ? 0 : below(LISTED);
    p->logprobs = (int32_t) below(TR_CUDA_TOP_MAX + 2) - 1;
    p->target = below(5) ? -1 : (int32_t) below(VOCAB + 1);
    for (uint32_t i = 0; i < LISTED; i++) {
        w->bias[i] = (tr_cuda_bias_t){ (int32_t) below(VOCAB + 2) - 1,
                                       (float) (unit() * 200 - 100) };
        w->bar[i] = (int32_t) below(VOCAB + 2) - 1;
    }
    for (uint32_t i = 0; i <= p->pos; i++) {
        w->history[i] = (int32_t) below(below(2) ? 10 : VOCAB + 1) - 1;
    }
}

/* What the engine's sampler says; its status. */
static tr_status_t
ask_engine(sampling_case_t *w, tr_sampled_t *out)
{
    const tr_cuda_sampling_t *p = &w->sampling;
    uint32_t counts[VOCAB];
    float logits[VOCAB];
    void *scratch = malloc(tr_sampler_scratch_size(VOCAB));
    tr_logit_bias_t bias[LISTED];
    tr_status_t rc;
    tr_sampler_t s;

    w->params = (tr_sampling_params_t){ .temperature = p->temperature,
                                        .top_p = p->top_p,
                                        .min_p = p->min_p,
                                        .top_k = p->top_k,
                                        .presence_penalty = p->presence,
                                        .frequency_penalty = p->frequency,
                                        .repetition_penalty = p->repetition,
                                        .logprobs = p->logprobs,
                                        .n_bias = p->n_bias,
                                        .bias = bias,
                                        .n_stop_tokens = p->n_bar,
                                        .stop_tokens = w->bar,
                                        .min_tokens = p->n_bar > 0 ? 1000 : 0 };
    for (uint32_t i = 0; i < LISTED; i++) {
        bias[i] = (tr_logit_bias_t){ w->bias[i].token, w->bias[i].bias };
    }
    tr_sampler_init(&s, &w->params, p->seed, VOCAB,
                    tr_sampler_counts_size(&w->params, VOCAB) ? counts : NULL,
                    NULL, 0, w->history, p->prompt_len);
    for (uint32_t i = 0; i < p->number; i++) {
        tr_sampler_accept(&s, w->history[p->prompt_len + i]);
    }
    memcpy(logits, w->logits, sizeof(logits));
    rc = p->target >= 0 ? tr_sampler_score(logits, VOCAB, p->target,
                                           p->logprobs, scratch, out)
                        : tr_sampler_sample(&s, logits, NULL, scratch, out);
    free(scratch);
    return rc;
}

static void
ask_reference(sampling_case_t *w)
{
    tr_cuda_sample_t a = { .rows = 1,
                           .vocab = VOCAB,
                           .logits = w->logits,
                           .ld = VOCAB,
                           .sampling = &w->sampling,
                           .seq_slot = &w->slot,
                           .bias = w->bias,
                           .bar = w->bar,
                           .history = { w->history, LEN },
                           .out = &w->got,
                           .top = w->top };

    assert_int_equal(tr_ref_sample(&a), 0);
}

static void
sampling_is_the_engines(void **state)
{
    uint32_t failures = 0, drawn = 0;

    (void) state;
    for (uint32_t round = 0; round < 20000; round++) {
        sampling_case_t w;
        tr_sampled_t want;
        tr_status_t rc;
        int32_t next;

        invent_sampling(&w);
        rc = ask_engine(&w, &want);
        next = w.history[w.sampling.pos + 1];
        ask_reference(&w);
        if (rc != TR_OK) {
            assert_int_equal(w.got.token, TR_CUDA_BAD_LOGITS);
            assert_int_equal(w.history[w.sampling.pos + 1], next);
            failures++;
            continue;
        }
        drawn += w.sampling.target < 0 && w.sampling.temperature > 0;
        assert_int_equal(w.got.token, want.token);
        assert_int_equal(w.history[w.sampling.pos + 1],
                         w.sampling.target < 0 ? want.token : next);
        if (w.sampling.target < 0 && w.sampling.logprobs < 0) {
            assert_true(w.got.logprob == 0 && w.got.n_top == 0);
            continue;
        }
        assert_true(fabsf(w.got.logprob - want.logprob) <= 1e-5f);
        assert_int_equal(w.got.n_top, want.n_top);
        for (uint32_t i = 0; i < want.n_top; i++) {
            assert_int_equal(w.top[i].token, want.top[i].token);
            assert_true(fabsf(w.top[i].logprob - want.top[i].logprob) <= 1e-5f);
        }
    }
    assert_true(failures > 100 && drawn > 1000);
}

static void
a_stalled_row_gives_no_token(void **state)
{
    sampling_case_t w;

    (void) state;
    invent_sampling(&w);
    w.slot = -1;
    ask_reference(&w);
    assert_int_equal(w.got.token, TR_CUDA_NO_TOKEN);
    w.slot = 0;
    w.sampling.slot = -1;
    ask_reference(&w);
    assert_int_equal(w.got.token, TR_CUDA_NO_TOKEN);
    assert_int_equal(w.history[w.sampling.pos + 1], 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_number_comes_back),
        cmocka_unit_test(floats_are_rounded_to_nearest_even),
        cmocka_unit_test(angles_are_those_of_the_cpu),
        cmocka_unit_test(a_norm_is_that_of_the_cpu),
        cmocka_unit_test(few_rows_are_norm_product_and_gate),
        cmocka_unit_test(sampling_is_the_engines),
        cmocka_unit_test(a_stalled_row_gives_no_token),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
