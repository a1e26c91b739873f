/*
 * The tiny models of tests/models through the executor on a GPU, over the
 * software device (tests/soft): prompts in pieces and decoding side by side,
 * graphs and a batch under way.  Each sequence says what it says alone, and what
 * transformers said where that was no close call.
 */
#include "tests/unit/fixtures/executor_fixture.h"
#include "tests/unit/fixtures/golden_fixture.h"

#include "tests/unit/fixtures/device_library.h"
#include "engine/executor/executor_cuda.h"
#include "engine/config/log.h"

#define MARGIN 0.5 /* of logits, the largest of which are about 15 */
#define OUT 12u

static uint64_t rng;
static uint32_t sure; /* tokens that were no close call, of all models */

static tr_executor_t *
open_model(const char *name, const char *policy)
{
    tr_executor_t *e;
    tr_config_t c;
    tr_error_t err;

    tr_config_defaults(&c);
    snprintf(c.model, sizeof(c.model), MODELS "/%.60s", name);
    snprintf(c.backend, sizeof(c.backend), "cuda");
    snprintf(c.cuda_library, sizeof(c.cuda_library), "%s", device_library());
    snprintf(c.kv_policy, sizeof(c.kv_policy), "%s", policy);
    snprintf(c.dtype, sizeof(c.dtype), "f16");
    c.threads = 2;
    c.kv_memory = 16u << 20;
    c.max_num_seqs = 4;
    c.max_batch_tokens = 96;
    assert_int_equal(tr_config_finish(&c, &err), TR_OK);
    if (tr_executor_cuda_open(&c, &e, &err) != TR_OK) {
        fail_msg("%s: %s", name, err.text);
    }
    return e;
}

/* Those that fit; returns how many. */
static uint32_t
make_gens(const tr_executor_t *e, const golden_t *prompts, gen_t *gens)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < GOLDEN_PROMPTS; i++) {
        gen_t *g = &gens[n];

        if (prompts[i].n + OUT > e->max_model_len) {
            continue;
        }
        memset(g, 0, sizeof(*g));
        g->n_prompt = prompts[i].n;
        g->n_out = OUT;
        g->params = gen_greedy();
        memcpy(g->prompt, prompts[i].ids, g->n_prompt * sizeof(int32_t));
        n++;
    }
    return n;
}

static void
follows(const gen_t *g, const golden_t *p, const char *what)
{
    json_t *margins = json_object_get(p->json, "margins");

    for (uint32_t s = 0; s < OUT; s++) {
        bool close = !(json_number_value(json_array_get(margins, s)) > MARGIN);

        sure += !close;
        if (g->out[s] == p->ids[p->n + s]) {
            continue;
        }
        if (!close) {
            fail_msg("%s: token %u is %d, golden %d", what, s, g->out[s],
                     p->ids[p->n + s]);
        }
        return; /* another text from here on */
    }
}

static void
one_policy(const char *name, const char *policy)
{
    static gen_t together[GOLDEN_PROMPTS], alone[GOLDEN_PROMPTS];
    golden_t prompts[GOLDEN_PROMPTS];
    tr_executor_t *e = open_model(name, policy);
    char dir[300];
    json_t *root;
    uint32_t n;

    snprintf(dir, sizeof(dir), MODELS "/%s", name);
    root = golden_load(dir, prompts);
    n = make_gens(e, prompts, together);
    make_gens(e, prompts, alone);
    if (e->long_from == 0) { /* else the scheduler says which are long */
        gen_run(e, together, n, 30, &rng);
        for (uint32_t i = 0; i < n; i++) {
            gen_run(e, &alone[i], 1, 96, NULL);
            assert_memory_equal(alone[i].out, together[i].out,
                                OUT * sizeof(int32_t));
            follows(&alone[i], &prompts[i], name);
        }
        print_message("%s, %s: %u prompts\n", name, policy, n);
    }
    e->free(e);
    json_decref(root);
}

/* At 16 bits, and in tiers that lose nothing, beside layers that slide. */
static bool
one_model(const char *name)
{
    one_policy(name, "full");
    one_policy(name, "diffkv:levels=16/16,window=5");
    return true;
}

static void
test_families(void **state)
{
    (void) state;
    golden_models(one_model, 16);
    print_message("%u tokens that transformers is sure of\n", sure);
    assert_true(sure >= (getenv("TR_TEST_MODEL") ? 1 : 100));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
    };

    rng = rng_seed();
    tr_log_open("stderr", TR_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
