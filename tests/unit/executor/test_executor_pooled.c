/*
 * Vectors of prompts (tr_batch_item_t.pooled) over the software device: what the
 * CPU executor gives, of the last token and as a mean, of prompts cut into chunks
 * anywhere, beside sequences that sample, and in pieces where all rows do not
 * pass through the memory of logits at once.
 */
#include "tests/unit/fixtures/executor_fixture.h"

#include <math.h>

#include "engine/config/log.h"
#include "engine/executor/executor_cuda.h"
#include "tests/unit/fixtures/device_library.h"

#define TEXTS 9u
#define WIDTH 384u

typedef struct {
    int32_t prompt[GEN_PROMPT], slot;
    uint32_t n, computed;
    bool mean, wanted;
    float vector[WIDTH];
} text_t;

static tr_executor_t *
open_executor(const char *backend)
{
    tr_config_t c;
    tr_executor_t *e;
    tr_error_t err;

    tr_config_defaults(&c);
    snprintf(c.model, sizeof(c.model), "models/pocket");
    snprintf(c.backend, sizeof(c.backend), "%s", backend);
    snprintf(c.cuda_library, sizeof(c.cuda_library), "%s", device_library());
    snprintf(c.dtype, sizeof(c.dtype), "f16");
    snprintf(c.kv_policy, sizeof(c.kv_policy), "full");
    c.threads = 2;
    c.kv_memory = 48u << 20;
    c.max_num_seqs = TEXTS + 1;
    c.max_batch_tokens = 96;
    c.max_model_len = 384;
    assert_int_equal(tr_config_finish(&c, &err), TR_OK);
    if (tr_executor_open(&c, &e, &err) != TR_OK) {
        fail_msg("%s: %s", backend, err.text);
    }
    assert_int_equal(e->width, WIDTH);
    return e;
}

static void
make_texts(text_t *texts, uint64_t *rng)
{
    for (uint32_t i = 0; i < TEXTS; i++) {
        text_t *t = &texts[i];

        memset(t, 0, sizeof(*t));
        t->n = i == 0 ? 1 : 1 + rng_below(rng, 120);
        t->mean = i % 2;
        t->wanted = i != 3;
        for (uint32_t k = 0; k < t->n; k++) {
            t->prompt[k] = (int32_t) (5 + rng_below(rng, 4000));
        }
        for (uint32_t k = 0; k < WIDTH; k++) {
            t->vector[k] = NAN; /* nothing is added to what was there */
        }
    }
}

static void
add_text(tr_executor_t *e, text_t *t, tr_batch_t *batch, uint64_t *rng)
{
    uint32_t left = t->n - t->computed, room = 96 - batch->n_tokens;
    uint32_t n = 1 + rng_below(rng, 40);

    n = n < left ? n : left;
    if (n == 0 || n > room) {
        return;
    }
    assert_int_equal(tr_kv_reserve(e->kv, t->slot, t->computed + n), TR_OK);
    batch->items[batch->n_items++] = (tr_batch_item_t){
        .kv_slot = t->slot,
        .pos = t->computed,
        .n = n,
        .tokens = t->prompt + t->computed,
        .sample = n == left,
        .pooled = t->vector,
        .pool_mean = t->mean,
    };
    batch->n_tokens += n;
    t->computed += n;
}

/* All texts, in batches of random composition; beside: one that samples. */
static void
run_texts(tr_executor_t *e, text_t *texts, bool beside, uint64_t rng)
{
    const int32_t hello[] = { 0, 2, 3213 };
    tr_sampling_params_t params = gen_greedy();
    tr_sampler_t sampler;
    tr_sampled_t out = { .token = -1 };
    int32_t slot = tr_kv_open(e->kv, NULL);
    uint32_t done = 0;

    tr_sampler_init(&sampler, &params, 1, e->vocab, NULL, e->eos, e->n_eos,
                    hello, 3);
    tr_kv_prompt(e->kv, slot, 3);
    assert_int_equal(tr_kv_reserve(e->kv, slot, 3), TR_OK);
    for (uint32_t i = 0; i < TEXTS; i++) {
        texts[i].computed = 0;
        texts[i].slot = tr_kv_open(e->kv, NULL);
        tr_kv_prompt(e->kv, texts[i].slot, texts[i].n);
    }
    for (uint32_t round = 0; done < TEXTS; round++) {
        tr_batch_item_t items[TEXTS + 1];
        tr_batch_t batch = { .items = items };

        assert_true(round < GEN_ROUNDS);
        if (round == 2 && beside) {
            items[batch.n_items++] = (tr_batch_item_t){ .kv_slot = slot,
                                                        .n = 3,
                                                        .tokens = hello,
                                                        .sample = true,
                                                        .sampler = &sampler,
                                                        .out = &out };
            batch.n_tokens = 3;
        }
        for (uint32_t i = 0; i < TEXTS; i++) {
            if (rng_below(&rng, 2)) {
                add_text(e, &texts[i], &batch, &rng);
            }
        }
        assert_int_equal(e->submit(e, &batch), TR_OK);
        for (uint32_t i = 0; i < batch.n_items && e->ahead != 0; i++) {
            /* whoever wanted it has gone */
            if (items[i].pooled == texts[3].vector) {
                items[i].pooled = NULL;
            }
        }
        if (e->sample != NULL) {
            e->sample(e, &batch);
        }
        assert_int_equal(e->complete(e, &batch), TR_OK);
        for (uint32_t i = 0; i < batch.n_items; i++) {
            assert_int_equal(items[i].status, TR_OK);
            done += items[i].sample && items[i].sampler == NULL;
        }
    }
    assert_true(out.token >= 0 || !beside);
    tr_kv_close(e->kv, slot);
    for (uint32_t i = 0; i < TEXTS; i++) {
        tr_kv_close(e->kv, texts[i].slot);
    }
}

/* Both begin with NAN everywhere, which must be gone. */
static double
worst_of(const text_t *a, const text_t *b)
{
    double worst = 0;

    for (uint32_t i = 0; i < TEXTS; i++) {
        double length = 0, off = 0;

        for (uint32_t k = 0; k < WIDTH; k++) {
            double x = (double) a[i].vector[k], y = (double) b[i].vector[k];

            assert_true(isfinite(x));
            assert_true(isfinite(y) == a[i].wanted);
            length += x * x;
            off += (x - y) * (x - y);
        }
        if (a[i].wanted) {
            worst = fmax(worst, sqrt(off / length));
        }
    }
    return worst;
}

static void
compare(bool pieces)
{
    static text_t cpu[TEXTS], gpu[TEXTS];
    tr_executor_t *a = open_executor("cpu"), *b = open_executor("cuda");
    tr_model_cuda_t *m = ((tr_executor_cuda_t *) b)->model;
    uint64_t rng = rng_seed();
    double worst;

    make_texts(cpu, &rng);
    memcpy(gpu, cpu, sizeof(gpu));
    run_texts(a, cpu, !pieces, rng);
    if (pieces) {
        m->logit_rows = 1; /* no logits are made: eight rows at a time */
        m->ld_logits = 400;
    }
    run_texts(b, gpu, !pieces, rng + 1);
    worst = worst_of(cpu, gpu);
    print_message("vectors within %.2g of their length\n", worst);
    assert_true(worst < 0.004);
    a->free(a);
    b->free(b);
}

static void
test_vectors(void **state)
{
    (void) state;
    compare(false);
}

static void
test_vectors_in_pieces(void **state)
{
    (void) state;
    compare(true);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_vectors_in_pieces),
    };

    tr_log_open("stderr", TR_LEVEL_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
