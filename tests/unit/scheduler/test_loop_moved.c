/*
 * Requests that come from another engine, with a real model and policies that
 * compress: with `replay decode` each gives what it gives where nothing disturbs
 * it, wherever it was when it moved, in a cache that is too small, too, where
 * requests make way in the middle of that.  Several choices do so without the
 * setting: their output is always computed token by token.
 */
#include "tests/unit/fixtures/policy_fixture.h"

#include "engine/scheduler/replay.h"

#define TRIES 5 /* until somebody has made way */

/* The block of a request that goes on behind `at` tokens, its further choices
 * two tokens further each, as far as they went. */
static void
add_block(tr_request_t *r, const ask_t *ask, uint32_t at)
{
    static const uint8_t model[TR_MODEL_ID] = "a model";
    tr_wire_replay_t head = { .seed = r->params.seed,
                              .choices = r->n_sequences,
                              .prompt_tokens = r->prompt_tokens,
                              .epoch = 1 };
    char *p = r->ahead = malloc(sizeof(head) + CHOICES * (16 + 4 * 600));

    memcpy(head.model_id, model, sizeof(model));
    memcpy(p, &head, sizeof(head));
    p += sizeof(head);
    for (uint32_t k = 0; k < r->n_sequences; k++) {
        const answer_t *was = &ask->alone[k];
        tr_wire_replay_choice_t one = { .tokens = at + 2 * k };

        one.tokens = one.tokens < was->n_ids ? one.tokens : was->n_ids - 1;
        while (one.tokens != 0 && !was->told[one.tokens]) {
            one.tokens--; /* within a character */
        }
        memcpy(p, &one, sizeof(one));
        p += sizeof(one);
        memcpy(p, was->ids, 4 * one.tokens);
        p += 4 * one.tokens;
    }
    r->replay_len = (uint32_t) (p - r->ahead);
    assert_int_equal(tr_replay_begin(r, model), TR_OK);
    assert_int_equal(tr_replay(r, tokenizer, 4096), TR_OK);
}

/* What comes behind the move is the end of what was said alone. */
static bool
goes_on(const answer_t *alone, const answer_t *moved)
{
    return moved->n_ids < alone->n_ids && moved->len <= alone->len
           && moved->reason == alone->reason
           && memcmp(alone->ids + alone->n_ids - moved->n_ids, moved->ids,
                     4 * moved->n_ids)
                  == 0
           && memcmp(alone->text + alone->len - moved->len, moved->text,
                     moved->len)
                  == 0;
}

/* All of asks at once, each moved behind a number of tokens that is drawn.
 * Returns how many choices went on as they would have alone. */
static uint32_t
move_all(const tr_config_t *config, ask_t *asks, uint32_t n, bool late,
         uint32_t *swaps)
{
    uint64_t state = seed + 3;
    uint32_t same = 0;
    fixture_loop_t l;

    start_with(&l, config, late);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 1 + rng_below(&state, asks[i].alone[0].n_ids - 1);
        tr_request_t *r = make(&l, &asks[i], i);

        memset(asks[i].together, 0, sizeof(asks[i].together));
        add_block(r, &asks[i], at);
        hand_over(&l, r, i);
    }
    while (l.open != 0) {
        turn(&l, asks, true);
    }
    *swaps = atomic_load(&l.counters.kv_swaps);
    assert_int_equal(atomic_load(&l.counters.kv_recomputations), 0);
    stop(&l);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < asks[i].n; k++) {
            same += goes_on(&asks[i].alone[k], &asks[i].together[k]);
        }
        assert_int_equal(asks[i].last.migrations, 1);
    }
    return same;
}

/* n requests, in a cache that is so small that some make way.  rows: in a step at
 * most; 0: as ever, else nobody may have to make way. */
static void
run_policy(const char *spec, uint64_t small, uint32_t n, uint32_t choices,
           uint32_t rows)
{
    ask_t *asks = calloc(n, sizeof(*asks));
    uint64_t state = seed;
    tr_config_t c = settings(spec, small, 64 << 20);

    c.max_batch_tokens = rows != 0 ? rows : c.max_batch_tokens;
    strcpy(c.replay, choices == 1 ? "decode" : "prefill");
    for (uint32_t i = 0; i < n; i++) {
        asks[i].prompt_len = 1 + rng_below(&state, i % 4 == 0 ? 250 : 90);
        asks[i].params = plain(i, 60 + rng_below(&state, 60));
        asks[i].n = choices;
        asks[i].tells = true;
    }
    run_alone(spec, asks, n);
    for (int late = 0; late < 2; late++) {
        uint32_t swaps = 0;

        /* on a busy machine requests may come so late that all find room */
        for (int i = 0; i < TRIES && swaps == 0 && (i == 0 || rows == 0); i++) {
            assert_int_equal(move_all(&c, asks, n, late, &swaps), n * choices);
        }
        assert_true(swaps != 0 || rows != 0);
    }
    free(asks);
}

static void
test_diffkv(void **state)
{
    (void) state;
    run_policy("diffkv:alpha_high=1,alpha_low=0.02", 7 << 19, 20, 1, 0);
}

static void
test_quest(void **state)
{
    (void) state;
    run_policy("quest:budget=64", 3 << 20, 20, 1, 0);
    /* prompts come a row at a time, too, and are not read in part for that */
    run_policy("quest:budget=64", 3 << 20, 10, 1, 12);
}

static void
test_choices(void **state)
{
    (void) state;
    run_policy("diffkv:alpha_high=1,alpha_low=0.02", 7 << 19, 12, 2, 0);
}

/* It is the setting that does it: else output is a part of the prompt. */
static void
test_prefill(void **state)
{
    ask_t asks[6] = { 0 };
    tr_config_t c = settings("diffkv:alpha_high=1,alpha_low=0.02", 64 << 20, 0);
    uint64_t random = seed;
    uint32_t swaps;

    (void) state;
    for (uint32_t i = 0; i < 6; i++) {
        asks[i].prompt_len = 100 + rng_below(&random, 120);
        asks[i].params = plain(i, 100);
        asks[i].n = 1;
        asks[i].tells = true;
    }
    run_alone(c.kv_policy, asks, 6);
    assert_in_range(move_all(&c, asks, 6, false, &swaps), 0, 5);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diffkv),
        cmocka_unit_test(test_quest),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_prefill),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
