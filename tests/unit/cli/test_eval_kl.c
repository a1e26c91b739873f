/*
 * `tokenring eval --kl` on the shipped model: the divergences are those of two
 * sequences alone, one under the first policy and one under another, whose
 * logits are compared token by token; whatever they shared a prompt and batches
 * with, in whichever group of policies, with a little cache as well, and after a
 * run that had only a part of the policies.
 */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/eval/eval_report.h"
#include "cli/eval/eval_session.h"

#define POCKET "models/pocket"
#define WINDOW 128u
#define PREFIX 90u
#define WINDOWS 2u
#define STEPS (WINDOW - PREFIX - 1)

/* Two that weigh the last queries of a prompt apart, by 8 and by 32. */
static const char *const specs[] = {
    "uniform:levels=8/8", "full", "uniform:levels=4/2",
    "diffkv:alpha_high=2,alpha_low=0.3,window=16,observe=8", "snapkv:budget=16"
};

#define N_SPECS (sizeof(specs) / sizeof(specs[0]))

static char text[] = "/tmp/tr-test-kl-text.XXXXXX";
static char resume[] = "/tmp/tr-test-kl.XXXXXX";

static void
step(tr_executor_t *x, tr_batch_item_t *item)
{
    tr_batch_t batch = { item, 1, item->n };

    assert_int_equal(tr_kv_reserve(x->kv, item->kv_slot, item->pos + item->n),
                     TR_OK);
    assert_int_equal(tr_executor_run(x, &batch), TR_OK);
    assert_int_equal(item->status, TR_OK);
}

/* Logits of a window's tokens behind its prompt, [STEPS][vocab]. */
static float *
logits_alone(tr_eval_engine_t *e, uint32_t policy, const tr_ids_t *ids)
{
    tr_executor_t *x = e->x;
    float *out = malloc(sizeof(*out) * STEPS * x->vocab);
    int32_t slot = tr_kv_open(x->kv, e->policy[policy]);
    tr_batch_item_t item = { .kv_slot = slot,
                             .n = PREFIX,
                             .tokens = ids->data };
    tr_sampled_t score;

    assert_non_null(out);
    tr_kv_prompt(x->kv, slot, PREFIX);
    step(x, &item);
    assert_int_equal(tr_kv_compress(x->kv, slot, PREFIX), TR_OK);
    for (uint32_t i = 0; i < STEPS; i++) {
        item = (tr_batch_item_t){ .kv_slot = slot,
                                  .pos = PREFIX + i,
                                  .n = 1,
                                  .tokens = ids->data + PREFIX + i,
                                  .scores = &score,
                                  .logits = out + (size_t) i * x->vocab };
        step(x, &item);
    }
    tr_kv_close(x->kv, slot);
    return out;
}

/* By the definition, with probabilities as such. */
static double
divergence(const float *a, const float *b, uint32_t n)
{
    long double za = 0, zb = 0, sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        za += expl(a[i]);
        zb += expl(b[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        long double p = expl(a[i]) / za, q = expl(b[i]) / zb;

        sum += p * logl(p / q);
    }
    return (double) sum;
}

static void
check_window(tr_eval_session_t *s, uint32_t window, uint32_t policy)
{
    const tr_eval_record_t *r = tr_eval_at(&s->results, window, policy);
    const tr_ids_t *ids = &s->windows[window];
    uint32_t vocab = s->engine.x->vocab, n[TR_EVAL_PARTS] = { 0 };
    float *a = logits_alone(&s->engine, 0, ids);
    float *b = logits_alone(&s->engine, policy, ids);
    double kl[TR_EVAL_PARTS] = { 0 };

    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t part = i * TR_EVAL_PARTS / STEPS;

        kl[part] += divergence(a + (size_t) i * vocab, b + (size_t) i * vocab,
                               vocab);
        n[part]++;
    }
    for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
        if (!(fabs(r->kl_by[i] - kl[i] / n[i]) <= 1e-9 + 1e-6 * kl[i] / n[i])) {
            fail_msg("%s, window %u, part %u: %.9g, alone %.9g", specs[policy],
                     window, i, r->kl_by[i], kl[i] / n[i]);
        }
    }
    assert_true(policy == 0 || r->kl_by[0] > 0);
    free(a);
    free(b);
}

static tr_eval_session_t
run(uint32_t n_specs, const char *kv_memory, uint32_t batch)
{
    tr_eval_options_t o = TR_EVAL_DEFAULTS;
    tr_eval_session_t s = { 0 };
    tr_error_t err;

    o.dir = POCKET;
    o.text = text;
    o.kl = true;
    o.window = WINDOW;
    o.prefix = PREFIX;
    o.windows = WINDOWS;
    o.resume = resume;
    o.kv_memory = kv_memory;
    o.threads = 2;
    o.batch = batch;
    if (tr_eval_session_run(&s, &o, specs, n_specs, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    return s;
}

/* What went through a file has 9 digits. */
static void
check_summary(const tr_eval_session_t *s)
{
    for (uint32_t p = 0; p < N_SPECS; p++) {
        tr_eval_text_t t;
        double sum = 0, nll = 0;

        tr_eval_text(&s->results, p, &t);
        assert_true(t.with_kl && t.n == WINDOWS);
        assert_true(t.part[0].from == PREFIX);
        assert_true(t.part[TR_EVAL_PARTS - 1].to == WINDOW - 1);
        for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
            const tr_eval_part_t *part = &t.part[i];

            assert_true(i == 0 || part->from == t.part[i - 1].to);
            sum += part->kl * (part->to - part->from);
            nll += log(part->perplexity) * (part->to - part->from);
        }
        assert_true(fabs(t.kl - sum / STEPS) < 1e-7);
        assert_true(fabs(log(t.perplexity) - nll / STEPS) < 1e-7);
        assert_true(t.kl_low <= t.kl && t.kl <= t.kl_high);
    }
}

static void
test_as_two_sequences_alone(void **state)
{
    bool wanted[TR_EVAL_POLICIES_MAX] = { true, true, true, true, true };
    tr_eval_session_t s = run(N_SPECS, "64m", 3);
    tr_error_t err;

    (void) state;
    assert_int_equal(s.found, 0);
    assert_int_equal(tr_eval_engine_start(&s.engine, wanted, &err), TR_OK);
    for (uint32_t i = 0; i < WINDOWS; i++) {
        for (uint32_t p = 0; p < N_SPECS; p++) {
            check_window(&s, i, p);
        }
    }
    check_summary(&s);
    tr_eval_session_close(&s);
}

/* The first policy's answers are there, but not its logits. */
static void
test_the_rest_of_a_run(void **state)
{
    tr_eval_session_t s, whole;

    (void) state;
    assert_int_equal(unlink(resume), 0);
    s = run(2, "64m", 12);
    tr_eval_session_close(&s);
    s = run(N_SPECS, "4m", 1);
    assert_int_equal(s.found, 2 * WINDOWS);
    check_summary(&s);
    assert_int_equal(unlink(resume), 0);
    whole = run(N_SPECS, "64m", 12);
    for (uint32_t i = 0; i < WINDOWS; i++) {
        for (uint32_t p = 0; p < N_SPECS; p++) {
            const tr_eval_record_t *a = tr_eval_at(&s.results, i, p),
                                   *b = tr_eval_at(&whole.results, i, p);

            assert_true(fabs(a->nll - b->nll) <= 1e-7 * b->nll);
            for (uint32_t k = 0; k < TR_EVAL_PARTS; k++) {
                assert_true(fabs(a->kl_by[k] - b->kl_by[k])
                            <= 1e-7 * b->kl_by[k]);
            }
        }
    }
    tr_eval_session_close(&whole);
    tr_eval_session_close(&s);
}

static int
setup(void **state)
{
    FILE *f = fdopen(mkstemp(text), "w");

    (void) state;
    for (int i = 0; f != NULL && i < 40; i++) {
        fprintf(f, "The %s key opens locker %d. It was quiet on Monday.\n",
                i % 2 ? "brass" : "blue", 1000 + i * 37);
    }
    close(mkstemp(resume));
    return f != NULL && fclose(f) == 0 ? 0 : -1;
}

static int
teardown(void **state)
{
    (void) state;
    unlink(text);
    unlink(resume);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_two_sequences_alone),
        cmocka_unit_test(test_the_rest_of_a_run),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
