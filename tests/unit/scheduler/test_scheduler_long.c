/*
 * Sequences that grow beyond long_from (LongRoPE): what was cached of them is
 * given back, and everything is computed once more, as in a long sequence.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

#define FROM 50u

/* Steps until everything is done, each composed with the one before under way or
 * not.  Every token of a sequence must have been computed as its length at the
 * end of a chunk says, and in order. */
static void
run(fixture_t *b, tr_request_t *r, uint32_t total, bool ahead)
{
    uint32_t at[8] = { 0 };
    bool is_long[8] = { false };

    for (uint32_t steps = 0; r->open_sequences != 0; steps++) {
        assert_true(steps < 1000);
        compose(b);
        for (uint32_t i = 0; i < b->s.n_chunks; i++) {
            const tr_chunk_t *c = &b->s.chunks[i];
            tr_sequence_t *q = c->sequence;

            assert_true(q->len <= total);
            if (q->is_long != is_long[q->choice]) {
                assert_true(
                    q->is_long
                    && (at[q->choice] == 0 || at[q->choice] >= FROM - 1));
                /* from the beginning, or behind another long one's prompt */
                assert_true(c->pos == 0
                            || (r->n > 1 && c->pos == q->prompt_len - 1));
                is_long[q->choice] = true;
                at[q->choice] = 0;
            }
            /* copies begin where their source stands */
            assert_true(c->pos == at[q->choice]
                        || (at[q->choice] == 0 && c->pos == q->prompt_len - 1));
            at[q->choice] = c->pos + c->n;
            assert_true(is_long[q->choice] == (tr_sequence_known(q) > FROM));
        }
        tr_scheduler_submit(&b->s);
        if (!ahead || b->s.n_in_flight > 1) {
            land(b, false);
        }
    }
    while (b->s.n_in_flight != 0) { /* of nobody */
        land(b, false);
    }
    for (uint32_t i = 0; i < r->n; i++) {
        assert_int_equal(r->sequences[i].len, total);
        assert_true(is_long[i] == (total - 1 > FROM));
    }
    tr_request_free(r);
}

static void
check_so(int policy, uint32_t prompt, uint32_t max_tokens, uint32_t n,
         uint32_t stretches, bool ahead)
{
    fixture_t b;
    tr_request_t *r;

    fixture_init_policy(&b, policy, 400, 100, 8, 32);
    b.s.long_from = FROM;
    r = make_request(&b, prompt, max_tokens, n);
    tr_scheduler_add(&b.s, r);
    run(&b, r, prompt + max_tokens, ahead);
    assert_int_equal(b.s.stretches, stretches);
    assert_int_equal(b.s.preemptions, 0);
    fixture_free(&b);
}

static void
check(int policy, uint32_t prompt, uint32_t max_tokens, uint32_t n,
      uint32_t stretches)
{
    check_so(policy, prompt, max_tokens, n, stretches, false);
    check_so(policy, prompt, max_tokens, n, stretches, true);
}

static void
test_grows(void **state)
{
    static const int all[] = { FULL, UNIFORM, DIFFKV };

    (void) state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        check(all[i], 20, 60, 1, 1);
        check(all[i], FROM, 10, 1, 1);     /* at its first token */
        check(all[i], FROM + 1, 10, 1, 0); /* from the beginning */
        check(all[i], 120, 10, 1, 0);
        check(all[i], 20, FROM - 20, 1, 0);
        check(all[i], 20, FROM - 19, 1, 0); /* the last is never computed */
        check(all[i], 20, FROM - 18, 1, 1);
        check(all[i], 40, 30, 3, 3); /* each choice by itself */
    }
}

/* In a pool with room for little, long and short ones side by side. */
static void
test_in_a_small_pool(void **state)
{
    fixture_t b;
    tr_request_t *r[6];
    uint32_t open = 6;

    (void) state;
    fixture_init(&b, 14, 8, 24);
    b.s.long_from = FROM;
    for (uint32_t i = 0; i < 6; i++) {
        r[i] = add(&b, 10 + 15 * i, 60);
    }
    for (uint32_t steps = 0; open != 0; steps++) {
        assert_true(steps < 3000);
        step(&b);
        open = 0;
        for (uint32_t i = 0; i < 6; i++) {
            open += r[i]->open_sequences;
        }
    }
    assert_int_equal(b.s.stretches, 3); /* of 10, 25, 40 tokens */
    assert_true(b.s.preemptions > 0);
    for (uint32_t i = 0; i < 6; i++) {
        tr_request_free(r[i]);
    }
    fixture_free(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grows),
        cmocka_unit_test(test_in_a_small_pool),
    };

    return cmocka_run_group_tests(tests, make_policies, free_policies);
}
