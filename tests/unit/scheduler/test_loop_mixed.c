/*
 * The step loop with everything at once: every policy, requests with all that a
 * sampler can be asked for, stops, echoes, several choices, and constraints, in pools so tiny
 * that somebody always makes way, late and with chunks that find no page.  Each
 * gets bit for bit, logprobs and ends included, what it gets alone.
 */
#include "tests/unit/fixtures/policy_fixture.h"

#define TOGETHER 20
#define MOST_PROMPT 120u
#define MOST_TOKENS 150u

static const tr_stop_string_t stops[] = { { "e", 1 },
                                          { "th", 2 },
                                          { " a", 2 } };

/* A request of any kind. */
static void
random_ask(ask_t *ask, uint32_t i, uint64_t *state)
{
    tr_sampling_params_t *p = &ask->params;

    ask->prompt_len = 1 + rng_below(state, i % 6 == 0 ? MOST_PROMPT : 60);
    ask->n = i % 4 == 0 ? 1 + rng_below(state, CHOICES) : 1;
    ask->echo = rng_below(state, 6) == 0;
    *p = plain(i, 1 + rng_below(state, i % 3 != 0 ? MOST_TOKENS : 30));
    p->temperature = rng_below(state, 3) == 0 ? 0 : 1.2f;
    p->top_k = rng_below(state, 3) == 0 ? 20 : 0;
    p->top_p = rng_below(state, 3) == 0 ? 0.9f : 1;
    if (rng_below(state, 3) == 0) { /* counts of what was said */
        p->presence_penalty = 0.7f;
        p->frequency_penalty = 0.4f;
        p->repetition_penalty = 1.3f;
    }
    p->ignore_eos = rng_below(state, 3) != 0;
    p->min_tokens = rng_below(state, 3) == 0 ? p->max_tokens / 2 : 0;
    p->stop = stops;
    p->n_stop = rng_below(state, 3) == 0 ? 1 + rng_below(state, 3) : 0;
    if (rng_below(state, 4) == 0) {
        p->logprobs = (int32_t) rng_below(state, 4);
    }
    if (i % 5 == 2 || i % 5 == 3) {
        ask->constraint = 1 + rng_below(state, CONSTRAINTS);
    }
    if (i == 2) { /* one of a few words: an answer that is whole for sure */
        ask->constraint = 1 + CONSTRAINT_CHOICE;
        p->max_tokens = 30;
        p->ignore_eos = false;
        p->min_tokens = 0;
        p->n_stop = 0;
    }
}

/* Of the answers that were not cut short by a stop string, whole ones. */
static uint32_t
check_constraints(const ask_t *asks)
{
    uint32_t whole = 0;

    for (uint32_t i = 0; i < TOGETHER; i++) {
        for (uint32_t k = 0; k < asks[i].n && asks[i].constraint != 0; k++) {
            const answer_t *a = &asks[i].alone[k];
            bool all = a->reason == TR_FINISH_STOP
                       && asks[i].params.n_stop == 0;

            if (!asks[i].echo
                && !constraint_holds(asks[i].constraint - 1, a->text, a->len,
                                     all)) {
                fail_msg("constraint %u: %.*s", asks[i].constraint,
                         (int) a->len, a->text);
            }
            whole += all;
        }
    }
    return whole;
}

/* The smallest pool that takes the longest of them, alone. */
static uint64_t
least_memory(const char *spec)
{
    uint64_t memory = 512 << 10;

    for (;; memory += 128 << 10) {
        tr_config_t c = settings(spec, memory, 0);
        tr_executor_t *e = NULL;
        tr_error_t err;

        if (tr_executor_model_open(&c, &e, &err) == TR_OK) {
            uint32_t len = e->max_model_len;

            e->free(e);
            if (len >= MOST_PROMPT + MOST_TOKENS) {
                return memory;
            }
        }
    }
}

static uint32_t preemptions, swaps, n_whole; /* of all */

/* Long prompts are compressed while they are computed: behind each 32 tokens. */
static void run_mixed(void **state);

static void
run_staged(void **state)
{
    stages_taken = 0;
    prefill_level = "8/4";
    run_mixed(state);
    prefill_level = NULL;
    assert_true(stages_taken > 0);
}

static void
run_mixed(void **state)
{
    const char *spec = *state;
    ask_t *asks = calloc(TOGETHER, sizeof(*asks));
    uint64_t random = seed;
    uint32_t stopped = 0;
    made_way_t done;

    for (uint32_t i = 0; i < TOGETHER; i++) {
        random_ask(&asks[i], i, &random);
    }
    run_alone(spec, asks, TOGETHER);
    for (uint32_t i = 0; i < TOGETHER; i++) {
        stopped += asks[i].last.reason == TR_FINISH_STOP;
    }
    assert_in_range(stopped, 1, TOGETHER - 1);
    n_whole += check_constraints(asks);
    done = run_together(spec, asks, TOGETHER, least_memory(spec), 64 << 20,
                        true);
    assert_int_equal(done.recomputed, 0);
    preemptions += done.preemptions;
    swaps += done.swaps;
    compare(spec, asks, TOGETHER);
    free(asks);
}

static void
somebody_made_way(void **state)
{
    (void) state;
    assert_true(preemptions > 0 && swaps > 0 && n_whole > 0);
}

static int
setup_constraints(void **state)
{
    int rc = setup(state);

    if (rc == 0) {
        constraints_open(tokenizer, tr_tokenizer_vocab_size(tokenizer), seed);
    }
    return rc;
}

static int
teardown_constraints(void **state)
{
    constraints_close();
    return teardown(state);
}

#define MIXED(spec)                       \
    {                                     \
        spec, run_mixed, NULL, NULL, spec \
    }

#define STAGED(spec)                                             \
    {                                                            \
        "in stages " spec, run_staged, NULL, NULL, (void *) spec \
    }

int
main(void)
{
    const struct CMUnitTest tests[] = {
        MIXED("full"),
        MIXED("int4"),
        MIXED("uniform:levels=8/4"),
        MIXED("kivi:window=32"),
        MIXED("snapkv:budget=64"),
        MIXED("h2o:budget=0.3"),
        MIXED("streamingllm:recent=48"),
        MIXED("diffkv:alpha_high=1,alpha_low=0.02"),
        MIXED("static:sinks=4,window_level=16/16"),
        MIXED("quest:budget=64,from=0"),
        STAGED("uniform:levels=8/4"),
        STAGED("diffkv:alpha_high=1,alpha_low=0.02"),
        STAGED("diffkv:window=16"),
        cmocka_unit_test(somebody_made_way),
    };

    return cmocka_run_group_tests(tests, setup_constraints,
                                  teardown_constraints);
}
