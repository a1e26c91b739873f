/*
 * The executor on a GPU, over the software device (tests/soft): what the CPU
 * executor says of models/pocket, in batches of any composition, with a batch
 * under way; masks, which come late; graphs against direct launches; what breaks
 * the contract.
 *
 * Weights are FP16 here, so that logits are within 3e-4 of the CPU's FP32 and
 * greedy tokens the same, but where two logits are as close as that.
 */
#include "tests/unit/fixtures/executor_fixture.h"

#include <math.h>

#include "tests/unit/fixtures/device_library.h"
#include "engine/executor/executor_cuda.h"
#include "engine/config/log.h"

#define POCKET "models/pocket"
#define SEQS 12u

/* Some of the golden prompts' words, as ids; random ones would make a model of
 * this size undecided between near-equal logits. */
static const int32_t words[] = { 0, 2, 3213, 3, 872, 3013, 11,
                                 4, 2, 3217, 3, 872, 3013, 11 };

static tr_config_t
settings(const char *backend)
{
    tr_config_t c;
    tr_error_t err;

    tr_config_defaults(&c);
    snprintf(c.model, sizeof(c.model), "%s", POCKET);
    snprintf(c.backend, sizeof(c.backend), "%s", backend);
    snprintf(c.cuda_library, sizeof(c.cuda_library), "%s", device_library());
    snprintf(c.dtype, sizeof(c.dtype), "f16");
    c.threads = 2;
    c.kv_memory = 48u << 20;
    c.max_num_seqs = 16;
    c.max_batch_tokens = 96;
    c.max_model_len = 384;
    assert_int_equal(tr_config_finish(&c, &err), TR_OK);
    return c;
}

static tr_executor_t *
open_with(tr_config_t *c)
{
    tr_executor_t *e;
    tr_error_t err;

    if (tr_executor_open(c, &e, &err) != TR_OK) {
        fail_msg("%s: %s", c->backend, err.text);
    }
    return e;
}

static tr_executor_t *
open_executor(const char *backend, const char *policy)
{
    tr_config_t c = settings(backend);

    snprintf(c.kv_policy, sizeof(c.kv_policy), "%s", policy);
    return open_with(&c);
}

/* Sequences sampled in all ways. */
static void
make_gens(gen_t *gens, uint32_t n, uint64_t *rng)
{
    static const int32_t stop[] = { 3013, 3014 };
    static const tr_logit_bias_t bias[] = { { 3013, -8 }, { 900, 3 } };

    for (uint32_t i = 0; i < n; i++) {
        gen_t *g = &gens[i];

        memset(g, 0, sizeof(*g));
        g->n_prompt = 20 + rng_below(rng, 80);
        g->n_out = 4 + rng_below(rng, 16);
        g->seed = fixture_next(rng);
        g->params = gen_greedy();
        g->score = i % 4 == 1;
        for (uint32_t k = 0; k < g->n_prompt; k++) {
            g->prompt[k] = words[(k + i) % 14];
        }
        switch (i % 6) {
        case 1:
            g->params.logprobs = 5;
            break;
        case 2:
            g->params.repetition_penalty = 1.3f;
            g->params.presence_penalty = 0.5f;
            g->params.frequency_penalty = 0.25f;
            break;
        case 3:
            g->params.min_tokens = 6;
            g->params.stop_tokens = stop;
            g->params.n_stop_tokens = 2;
            break;
        case 4:
            g->params.bias = bias;
            g->params.n_bias = 2;
            break;
        }
    }
}

static uint32_t
same_tokens(const gen_t *a, const gen_t *b, uint32_t n)
{
    uint32_t same = 0;

    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(a[i].n_known, b[i].n_known);
        for (uint32_t k = 0; k < a[i].n_known; k++) {
            same += a[i].out[k] == b[i].out[k];
        }
    }
    return same;
}

static uint32_t
all_tokens(const gen_t *a, uint32_t n)
{
    uint32_t all = 0;

    for (uint32_t i = 0; i < n; i++) {
        all += a[i].n_known;
    }
    return all;
}

static void
test_card(void **state)
{
    tr_executor_t *e = open_executor("cuda", "full");
    tr_executor_cuda_t *x = (tr_executor_cuda_t *) e;

    (void) state;
    assert_string_equal(e->backend, "cuda");
    assert_true(e->vocab == 4096 && e->max_model_len == 384 && e->layers == 8);
    assert_true(e->kv_heads == 2 && e->query_heads == 6 && e->head_dim == 64);
    assert_int_equal(e->parameters, 14162304);
    assert_true(e->n_eos == 2 && e->eos[0] == 4 && e->eos[1] == 1);
    assert_int_equal(e->ahead, 1);
    assert_int_equal(x->n_buckets, 5); /* 1, 2, 4, 8, 16 */
    assert_int_equal(x->bucket[4], 16);
    assert_int_equal(x->decode_paths, 1u << TR_ATTENTION_DECODE);
    e->free(e);
}

/* What the CPU says, token by token, logprob by logprob. */
static void
test_like_cpu(void **state)
{
    static gen_t cpu[SEQS], gpu[SEQS];
    tr_executor_t *a = open_executor("cpu", "full");
    tr_executor_t *b = open_executor("cuda", "full");
    uint64_t rng = rng_seed();
    uint32_t same, all;
    double worst = 0;

    (void) state;
    make_gens(cpu, SEQS, &rng);
    memcpy(gpu, cpu, sizeof(gpu));
    gen_run(a, cpu, SEQS, 7, NULL);
    gen_run(b, gpu, SEQS, 7, &rng);
    same = same_tokens(cpu, gpu, SEQS);
    all = all_tokens(cpu, SEQS);
    for (uint32_t i = 0; i < SEQS; i++) {
        for (uint32_t k = 0; gpu[i].score && k + 1 < gpu[i].n_prompt; k++) {
            const tr_sampled_t *x = &cpu[i].scores[k], *y = &gpu[i].scores[k];

            assert_int_equal(y->token, gpu[i].prompt[k + 1]);
            assert_int_equal(y->n_top, 2);
            assert_true(y->top[0].logprob >= y->top[1].logprob);
            /* of logprobs of -20 and less: no number of the prompt is likely */
            worst = fmax(worst, fabs(x->logprob - y->logprob)
                                    / fmax(1, fabs(x->logprob)));
        }
    }
    print_message("%u of %u tokens, logprobs within %.2g of themselves\n", same,
                  all, worst);
    assert_true(same * 100 >= all * 95);
    assert_true(worst < 0.004);
    assert_true(((tr_executor_cuda_t *) b)->times.graphs > 0);
    assert_true(((tr_executor_cuda_t *) b)->times.graphs
                < ((tr_executor_cuda_t *) b)->times.steps);
    a->free(a);
    b->free(b);
}

/* A prompt, then `n` sequences of it score one token each, with logits. */
static void
score_with_logits(tr_executor_t *e, uint32_t n, float *logits,
                  tr_sampled_t *scores)
{
    static const int32_t next[] = { 3013, 11 };
    tr_batch_item_t items[4];

    for (uint32_t i = 0; i < n; i++) {
        int32_t slot = tr_kv_open(e->kv, NULL);

        assert_int_equal(tr_kv_reserve(e->kv, slot, 12 + i), TR_OK);
        items[i] = (tr_batch_item_t){ .kv_slot = slot,
                                      .n = 11 + i,
                                      .tokens = words };
    }
    assert_int_equal(
        tr_executor_run(e, &(tr_batch_t){ items, n, n * 11 + n * (n - 1) / 2 }),
        TR_OK);
    for (uint32_t i = 0; i < n; i++) {
        items[i].pos = items[i].n;
        items[i].n = 1;
        items[i].tokens = next;
        items[i].scores = &scores[i];
        items[i].logits = logits + (size_t) i * e->vocab;
        memset(items[i].logits, 0xff, e->vocab * sizeof(float));
    }
    assert_int_equal(tr_executor_run(e, &(tr_batch_t){ items, n, n }), TR_OK);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(items[i].status, TR_OK);
        tr_kv_close(e->kv, items[i].kv_slot);
    }
}

/* They are the CPU's, and what the score comes from. */
static void
test_logits(void **state)
{
    enum { N = 3 };
    tr_executor_t *e[] = { open_executor("cpu", "full"),
                           open_executor("cuda", "full") };
    float *logits[2];
    tr_sampled_t scores[2][N];

    (void) state;
    for (int k = 0; k < 2; k++) {
        logits[k] = malloc(sizeof(float) * N * e[k]->vocab);
        score_with_logits(e[k], N, logits[k], scores[k]);
        for (uint32_t i = 0; i < N; i++) {
            const float *row = logits[k] + (size_t) i * e[k]->vocab;
            double sum = 0;

            for (uint32_t v = 0; v < e[k]->vocab; v++) {
                sum += exp(row[v]);
            }
            assert_true(fabs(row[11] - log(sum) - scores[k][i].logprob) < 1e-4);
        }
    }
    for (uint32_t i = 0; i < N * e[0]->vocab; i++) {
        float x = logits[0][i], y = logits[1][i];

        assert_true(fabsf(x - y) <= 0.02f * (1 + fabsf(x)));
    }
    for (int k = 0; k < 2; k++) {
        free(logits[k]);
        e[k]->free(e[k]);
    }
}

/* Another batch may have overwritten them. */
static void
test_logits_behind_a_batch(void **state)
{
    tr_executor_t *e = open_executor("cuda", "full");
    float *logits = malloc(sizeof(float) * e->vocab);
    tr_sampled_t score;
    tr_batch_item_t item = { .kv_slot = tr_kv_open(e->kv, NULL),
                             .n = 1,
                             .tokens = words,
                             .scores = &score,
                             .logits = logits },
                    next = { .kv_slot = item.kv_slot,
                             .pos = 1,
                             .n = 1,
                             .tokens = words + 1 };
    tr_batch_t first = { &item, 1, 1 }, second = { &next, 1, 1 };

    (void) state;
    assert_int_equal(tr_kv_reserve(e->kv, item.kv_slot, 2), TR_OK);
    assert_int_equal(e->submit(e, &first), TR_OK);
    assert_int_equal(e->submit(e, &second), TR_OK);
    assert_int_equal(e->complete(e, &first), TR_OK);
    assert_int_equal(item.status, TR_ERR_UNSUPPORTED);
    assert_int_equal(e->complete(e, &second), TR_OK);
    assert_int_equal(next.status, TR_OK);
    tr_kv_close(e->kv, item.kv_slot);
    free(logits);
    e->free(e);
}

/* Every second one with masks, from nearly anything to one token or two. */
static void
make_masked(gen_t *gens, uint32_t n, uint64_t *rng)
{
    static const uint32_t allow[] = { 2, 9, 700, 5000 };

    make_gens(gens, n, rng);
    for (uint32_t i = 0; i < n; i += 2) {
        gens[i].allow = allow[i / 2 % 4];
        if (i % 3 == 0) {
            gens[i].params.temperature = 0.8f;
            gens[i].params.top_p = 0.95f;
        }
        if (i % 4 == 0) {
            gens[i].params.logprobs = 3;
        }
    }
}

/* Rows with masks among others say what they say on the CPU. */
static void
test_masks(void **state)
{
    static gen_t cpu[SEQS], gpu[SEQS];
    tr_executor_t *a = open_executor("cpu", "full");
    tr_executor_t *b = open_executor("cuda", "full");
    uint64_t rng = rng_seed();
    uint32_t same, all;

    (void) state;
    make_masked(cpu, SEQS, &rng);
    memcpy(gpu, cpu, sizeof(gpu));
    gen_run(a, cpu, SEQS, 7, NULL);
    gen_run(b, gpu, SEQS, 7, &rng);
    same = same_tokens(cpu, gpu, SEQS);
    all = all_tokens(cpu, SEQS);
    print_message("%u of %u tokens with masks\n", same, all);
    assert_true(same * 100 >= all * 90);
    assert_true(((tr_executor_cuda_t *) b)->times.graphs > 0);
    a->free(a);
    b->free(b);
}

/* More rows than have their logits at once: those of late ones are made again,
 * to the same bits. */
static void
test_masks_in_pieces(void **state)
{
    static gen_t one[SEQS], two[SEQS];
    tr_executor_t *a = open_executor("cuda", "full");
    tr_executor_t *b = open_executor("cuda", "full");
    uint64_t rng = rng_seed(), again;

    (void) state;
    make_masked(one, SEQS, &rng);
    memcpy(two, one, sizeof(two));
    again = rng;
    ((tr_executor_cuda_t *) b)->model->logit_rows = 3;
    gen_run(a, one, SEQS, 9, &rng);
    gen_run(b, two, SEQS, 9, &again);
    assert_int_equal(same_tokens(one, two, SEQS), all_tokens(one, SEQS));
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_memory_equal(&one[i].last.logprob, &two[i].last.logprob,
                            sizeof(float));
    }
    a->free(a);
    b->free(b);
}

/* The same sequences with graphs and with direct launches: the same bits, in
 * the same batches. */
static void
test_graphs(void **state)
{
    static gen_t one[SEQS], two[SEQS];
    tr_executor_t *a = open_executor("cuda",
                                     "diffkv:alpha_high=1,alpha_low=0.02");
    tr_executor_t *b = open_executor("cuda",
                                     "diffkv:alpha_high=1,alpha_low=0.02");
    uint64_t rng = rng_seed();

    (void) state;
    make_gens(one, SEQS, &rng);
    for (uint32_t i = 0; i < SEQS; i++) {
        one[i].params.logprobs = 3;
        one[i].score = false;
        if (i % 2) {
            one[i].params.temperature = 0.8f;
            one[i].params.top_p = 0.95f;
            one[i].params.top_k = 40;
        }
    }
    memcpy(two, one, sizeof(two));
    ((tr_executor_cuda_t *) b)->direct = true;
    gen_run(a, one, SEQS, 64, NULL);
    gen_run(b, two, SEQS, 64, NULL);
    assert_int_equal(same_tokens(one, two, SEQS), all_tokens(one, SEQS));
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_memory_equal(&one[i].last, &two[i].last, sizeof(one[i].last));
    }
    assert_true(((tr_executor_cuda_t *) a)->times.graphs > 0);
    assert_int_equal(((tr_executor_cuda_t *) b)->times.graphs, 0);
    a->free(a);
    b->free(b);
}

/* Every policy, side by side in one engine: each way of attention, and slots
 * that are compressed while others decode.  Codes and thresholds turn on 1e-4
 * of a score, and once a token differs so do all behind it: so of several rounds
 * together. */
static void
run_policies(tr_executor_t *a, tr_executor_t *b, uint64_t *rng, uint32_t *same,
             uint32_t *all)
{
    static gen_t cpu[SEQS], gpu[SEQS];

    make_gens(cpu, SEQS, rng);
    for (uint32_t i = 0; i < SEQS; i++) {
        cpu[i].score = false;
    }
    memcpy(gpu, cpu, sizeof(gpu));
    for (uint32_t i = 0; i < SEQS; i++) {
        cpu[i].policy = a->kv_policies[i % a->n_policies];
        gpu[i].policy = b->kv_policies[i % b->n_policies];
    }
    gen_run(a, cpu, SEQS, 90, NULL);
    gen_run(b, gpu, SEQS, 30, rng);
    for (uint32_t i = 0; i < SEQS; i++) {
        same[i % a->n_policies] += same_tokens(&cpu[i], &gpu[i], 1);
        all[i % a->n_policies] += cpu[i].n_known;
    }
}

static void
test_policies(void **state)
{
    const char *chosen = getenv("TR_TEST_POLICIES");
    tr_config_t c = settings("cpu");
    tr_executor_t *a, *b;
    uint64_t rng = rng_seed();
    uint32_t same_of[SEQS] = { 0 }, all_of[SEQS] = { 0 }, same = 0, all = 0;

    (void) state;
    snprintf(c.kv_policy, sizeof(c.kv_policy), "full");
    snprintf(c.kv_policies, sizeof(c.kv_policies), "%s",
             chosen != NULL ? chosen
                            : "diffkv:alpha_high=1,alpha_low=0.02 "
                              "static:sinks=4 uniform kivi quest:budget=48");
    a = open_with(&c);
    snprintf(c.backend, sizeof(c.backend), "cuda");
    b = open_with(&c);
    if (chosen == NULL) {
        assert_int_equal(((tr_executor_cuda_t *) b)->decode_paths,
                         1u << TR_ATTENTION_DECODE
                             | 1u << TR_ATTENTION_GENERIC);
    }
    assert_true(a->n_policies <= SEQS);
    for (uint32_t round = 0; round < 3; round++) {
        run_policies(a, b, &rng, same_of, all_of);
    }
    for (uint32_t i = 0; i < a->n_policies; i++) {
        print_message("%s: %u of %u tokens\n", a->kv_policies[i]->name,
                      same_of[i], all_of[i]);
        assert_true(same_of[i] * 100 >= all_of[i] * 40);
        same += same_of[i];
        all += all_of[i];
    }
    print_message("%u of %u tokens\n", same, all);
    assert_true(same * 100 >= all * 80);
    assert_true(tr_kv_sound(b->kv));
    a->free(a);
    b->free(b);
}

/* Prompts one after the other, each compared when it is compressed. */
static void
run_guarded(tr_executor_t *e, gen_t *gens, uint32_t n, uint64_t *rng,
            tr_kv_guard_state_t *out)
{
    for (uint32_t i = 0; i < n; i++) {
        gen_run(e, &gens[i], 1, 90, rng);
    }
    tr_kv_guard_state(e->guard, out);
}

/* What the guard measures is what it measures on the CPU, whatever the batches
 * that a prompt came in; a crowd of them disturbs nobody. */
static void
test_guard(void **state)
{
    static const char *const specs[] = { "diffkv:alpha_high=2,alpha_low=0.02",
                                         "uniform:levels=4/2,window=32,sinks=4",
                                         "kivi" };
    static gen_t cpu[SEQS], gpu[SEQS];
    uint64_t rng = rng_seed();

    (void) state;
    for (size_t s = 0; s < sizeof(specs) / sizeof(specs[0]); s++) {
        tr_kv_guard_state_t want, got;
        tr_config_t c = settings("cpu");
        tr_executor_t *a, *b;

        snprintf(c.kv_policy, sizeof(c.kv_policy), "%s", specs[s]);
        c.kv_guard_every = 1;
        a = open_with(&c);
        snprintf(c.backend, sizeof(c.backend), "cuda");
        b = open_with(&c);
        make_gens(cpu, SEQS, &rng);
        for (uint32_t i = 0; i < SEQS; i++) {
            cpu[i].n_prompt = 130 + rng_below(&rng, 120);
            cpu[i].score = false;
            for (uint32_t k = 0; k < cpu[i].n_prompt; k++) {
                cpu[i].prompt[k] = words[(k * (1 + k / 14) + i) % 14];
            }
        }
        memcpy(gpu, cpu, sizeof(gpu));
        run_guarded(a, cpu, 4, NULL, &want);
        run_guarded(b, gpu, 4, &rng, &got);
        print_message("%s: keys %.4f, %.4f; values %.4f, %.4f\n", specs[s],
                      want.error.keys, got.error.keys, want.error.values,
                      got.error.values);
        assert_int_equal(want.prompts, 4);
        assert_int_equal(got.prompts, 4);
        assert_true(want.error.keys > 0 && want.error.values > 0);
        assert_true(fabs(got.error.keys - want.error.keys)
                    <= 0.1 * want.error.keys);
        assert_true(fabs(got.error.values - want.error.values)
                    <= 0.1 * want.error.values);
        gen_run(b, gpu + 4, SEQS - 4, 30, &rng);
        tr_kv_guard_state(b->guard, &got);
        assert_true(got.prompts > 4);
        assert_true(tr_kv_sound(b->kv));
        a->free(a);
        b->free(b);
    }
}

/* kv_policy auto takes what it takes on the CPU, and serves with it. */
static void
test_auto(void **state)
{
    tr_config_t c = settings("cpu");
    tr_kv_choice_t want, got;
    tr_executor_t *e;
    tr_error_t err;

    (void) state;
    snprintf(c.kv_policy, sizeof(c.kv_policy), "auto");
    assert_int_equal(tr_executor_model_choose(&c, &want, &err), TR_OK);
    snprintf(c.backend, sizeof(c.backend), "cuda");
    if (tr_executor_cuda_choose(&c, &got, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    print_message("CPU: %s\nGPU: %s\n", want.why, got.why);
    assert_string_equal(got.spec, want.spec);
    assert_non_null(strstr(got.why, "384 tokens of the built-in text"));
    e = open_with(&c);
    assert_string_equal(tr_executor_policy_name(&e->policies[0]), want.spec);
    assert_int_equal(e->max_model_len, 384);
    e->free(e);
    c.max_model_len = 255;
    assert_int_equal(tr_executor_cuda_choose(&c, &got, &err), TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "expected 256 or more"));
}

/* A token outside the vocabulary fails its item and no other. */
static void
test_bad_token(void **state)
{
    tr_executor_t *e = open_executor("cuda", "full");
    tr_sampling_params_t params = gen_greedy();
    const int32_t bad[] = { 0, 4096, -1 };
    tr_sampler_t sampler;
    tr_sampled_t out[2];
    tr_batch_item_t items[2];
    tr_batch_t batch = { items, 2, 14 + 3 };

    (void) state;
    tr_sampler_init(&sampler, &params, 1, e->vocab, NULL, NULL, 0, NULL, 0);
    for (int i = 0; i < 2; i++) {
        items[i] = (tr_batch_item_t){ .kv_slot = tr_kv_open(e->kv, NULL),
                                      .n = i == 0 ? 3 : 14,
                                      .tokens = i == 0 ? bad : words,
                                      .sample = true,
                                      .sampler = &sampler,
                                      .out = &out[i] };
        tr_kv_prompt(e->kv, items[i].kv_slot, items[i].n);
        assert_int_equal(tr_kv_reserve(e->kv, items[i].kv_slot, items[i].n),
                         TR_OK);
    }
    assert_int_equal(tr_executor_run(e, &batch), TR_OK);
    assert_int_equal(items[0].status, TR_ERR_INVALID);
    assert_int_equal(items[1].status, TR_OK);
    assert_true(out[1].token >= 0);
    e->free(e);
}

/* The token that follows `words` with these tokens barred. */
static int32_t
next_token(tr_executor_t *e, const int32_t *eos, uint32_t n_eos,
           const int32_t *stop, uint32_t n_stop)
{
    tr_sampling_params_t params = gen_greedy();
    tr_sampler_t sampler;
    tr_sampled_t out;
    tr_batch_item_t item = { .kv_slot = tr_kv_open(e->kv, NULL),
                             .n = 14,
                             .tokens = words,
                             .sample = true,
                             .sampler = &sampler,
                             .out = &out };
    tr_batch_t batch = { &item, 1, 14 };

    params.min_tokens = 1;
    params.stop_tokens = stop;
    params.n_stop_tokens = n_stop;
    tr_sampler_init(&sampler, &params, 1, e->vocab, NULL, eos, n_eos, NULL, 0);
    tr_kv_prompt(e->kv, item.kv_slot, item.n);
    assert_int_equal(tr_kv_reserve(e->kv, item.kv_slot, item.n), TR_OK);
    assert_int_equal(tr_executor_run(e, &batch), TR_OK);
    assert_int_equal(item.status, TR_OK);
    tr_kv_close(e->kv, item.kv_slot);
    return out.token;
}

/* As many as the model's configuration and a request may name, and the end of a
 * chat's turn, which stands last. */
static void
test_all_barred(void **state)
{
    tr_executor_t *e = open_executor("cuda", "full");
    int32_t eos[TR_EOS_MAX + 1], stop[TR_STOP_TOKENS_MAX], best;

    (void) state;
    for (int32_t i = 0; i < TR_EOS_MAX; i++) {
        eos[i] = 4000 + i;
    }
    for (int32_t i = 0; i < TR_STOP_TOKENS_MAX; i++) {
        stop[i] = 3700 + i;
    }
    best = next_token(e, eos, TR_EOS_MAX, stop, TR_STOP_TOKENS_MAX);
    eos[TR_EOS_MAX] = best;
    assert_int_not_equal(next_token(e, eos, TR_EOS_MAX + 1, stop,
                                    TR_STOP_TOKENS_MAX),
                         best);
    e->free(e);
}

/* Batches larger than the buffers are refused before anything is launched, and
 * an empty one is fine. */
static void
test_contract(void **state)
{
    tr_executor_t *e = open_executor("cuda", "full");
    static int32_t tokens[97];
    tr_batch_item_t items[17];
    tr_batch_t batch = { items, 1, 97 };
    const tr_batch_t none = { items, 0, 0 };

    (void) state;
    tr_log_open("/dev/null", TR_LEVEL_ERROR);
    items[0] = (tr_batch_item_t){ .n = 97, .tokens = tokens };
    assert_int_equal(e->submit(e, &batch), TR_ERR_INTERNAL);
    items[0] = (tr_batch_item_t){ .pos = 384, .n = 1, .tokens = tokens };
    assert_int_equal(e->submit(e, &batch), TR_ERR_INTERNAL);
    items[0] = (tr_batch_item_t){ .pos = UINT32_MAX, .n = 1, .tokens = tokens };
    assert_int_equal(e->submit(e, &batch), TR_ERR_INTERNAL);
    items[0] = (tr_batch_item_t){ .n = 0, .tokens = tokens };
    assert_int_equal(e->submit(e, &batch), TR_ERR_INTERNAL);
    items[0] = (tr_batch_item_t){ .n = 2, .tokens = NULL };
    assert_int_equal(e->submit(e, &batch), TR_ERR_INTERNAL);
    for (int i = 0; i < 17; i++) {
        items[i] = (tr_batch_item_t){ .n = 1, .tokens = tokens };
    }
    batch = (tr_batch_t){ items, 17, 17 };
    assert_int_equal(e->submit(e, &batch), TR_ERR_INTERNAL);
    assert_int_equal(tr_executor_run(e, &none), TR_OK);
    assert_int_equal(e->submit(e, &none), TR_OK);
    assert_int_equal(e->submit(e, &none), TR_OK);
    assert_int_equal(e->submit(e, &none), TR_ERR_INTERNAL); /* two under way */
    assert_int_equal(e->complete(e, &none), TR_OK);
    assert_int_equal(e->complete(e, &none), TR_OK);
    assert_int_equal(e->complete(e, &none), TR_ERR_INTERNAL);
    tr_log_open("stderr", TR_LEVEL_WARN);
    e->free(e);
}

static void
refuses(tr_config_t *c, tr_status_t rc, const char *param, const char *text)
{
    tr_executor_t *e = NULL;
    tr_error_t err;

    assert_int_equal(tr_executor_cuda_open(c, &e, &err), rc);
    assert_null(e);
    assert_string_equal(err.param, param);
    if (strstr(err.text, text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, err.text);
    }
}

static void
test_refused(void **state)
{
    tr_config_t c = settings("cuda");

    (void) state;
    c.max_model_len = 4097;
    refuses(&c, TR_ERR_INVALID, "max_model_len",
            "is 4097, expected at most the model's 4096");
    c = settings("cuda");
    c.device = 99;
    refuses(&c, TR_ERR_UNSUPPORTED, "device", "device 99");
    c = settings("cuda");
    c.kv_memory = 1ull << 44;
    refuses(&c, TR_ERR_NOMEM, "device", "kv_memory need 16384.00 GiB");
    c = settings("cuda");
    c.kv_memory = 0;
    c.gpu_memory_utilization = 1e-6;
    refuses(&c, TR_ERR_NOMEM, "gpu_memory_utilization",
            "leaves nothing for the KV cache");
    c = settings("cuda");
    snprintf(c.cuda_library, sizeof(c.cuda_library), "/nonexistent.so");
    refuses(&c, TR_ERR_NOT_FOUND, "cuda_library", "/nonexistent.so");
    snprintf(c.cuda_library, sizeof(c.cuda_library), "libm.so.6");
    refuses(&c, TR_ERR_FORMAT, "cuda_library", "is not a CUDA backend");
    c = settings("cuda");
    snprintf(c.model, sizeof(c.model), "/nonexistent");
    refuses(&c, TR_ERR_NOT_FOUND, "model", "/nonexistent/config.json");
    c = settings("cuda");
    strcpy(c.kv_reuse, "yes");
    strcpy(c.kv_policy, "static");
    strcpy(c.kv_policies, "");
    refuses(&c, TR_ERR_UNSUPPORTED, "kv_reuse",
            "prefixes are reused under full, uniform, int4, and diffkv");
}

/* Memory by share: all of it is used, and the pool is what is left. */
static void
test_memory(void **state)
{
    tr_config_t c = settings("cuda");
    tr_executor_cuda_t *x;
    tr_cuda_device_info_t info;
    double used;

    (void) state;
    c.kv_memory = 0;
    c.gpu_memory_utilization = 0.75;
    x = (tr_executor_cuda_t *) open_with(&c);
    assert_int_equal(x->cuda->device_info(0, &info), 0);
    used = (double) (info.memory - info.free_memory) / (double) info.memory;
    print_message("%.3f of %g in use\n", used, c.gpu_memory_utilization);
    assert_true(used > 0.70 && used <= 0.76);
    x->base.free(&x->base);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_card),
        cmocka_unit_test(test_like_cpu),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_logits_behind_a_batch),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_masks_in_pieces),
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_bad_token),
        cmocka_unit_test(test_all_barred),
        cmocka_unit_test(test_contract),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory),
    };

    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    tr_log_open("stderr", TR_LEVEL_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
