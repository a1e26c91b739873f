/*
 * Prompts in stages that begin with a compressed prefix are charged for what they
 * take beside the pages that they borrow, and so several of them run at once where
 * one of them, from its first token, would fill what prompts may hold; each ends
 * without having others make way.  Pages have nothing in them, so this is of a policy
 * that does not ask what they hold; test_loop_kept.c has the others' bounds.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

#define FIRST 1000u /* tokens of the first prompt */
#define MORE 100u
#define ANSWER 20u
#define TALKS 3u

/* Its prompt begins as the others', and goes on with words of its own. */
static tr_request_t *
ask(fixture_t *b, uint32_t same, uint32_t n, uint32_t answer, int32_t own)
{
    tr_request_t *r = make_request(b, n, answer, 1);
    tr_sequence_t *q = &r->sequences[0];

    r->kv_reuse = true;
    q->tokens = tr_arena_alloc(&r->arena, q->cap * sizeof(*q->tokens));
    for (uint32_t i = 0; i < q->cap; i++) {
        q->tokens[i] = (int32_t) i + (i < same ? 0 : own);
    }
    tr_scheduler_add(&b->s, r);
    return r;
}

/* It takes no more than it is charged for; the most that there was of it. */
static uint64_t
charged(const fixture_t *b, const tr_request_t *r, uint64_t most)
{
    const tr_sequence_t *q = &r->sequences[0];

    if (q->charge == 0) {
        return most;
    }
    assert_true(tr_kv_held_pages(b->kv, q->kv_slot) <= q->charge);
    return q->charge > most ? q->charge : most;
}

/* same: tokens with which the later ones begin as the first did. */
static void
behind(uint32_t same)
{
    tr_request_t *first, *r[TALKS];
    uint64_t all, most = 0;
    uint32_t spent = 0;
    fixture_t b;

    reuse = true;
    stage = 64;
    fixture_init_policy(&b, UNIFORM, 1000, 0, 4, 4096);
    all = tr_kv_pages_for(b.kv, NULL, same + MORE);
    fixture_free(&b);
    /* half of it is for prompts: one */
    fixture_init_policy(&b, UNIFORM, (uint32_t) (3 * all), 0, 4, 4096);
    first = ask(&b, 0, FIRST, 1, 0);
    while (first->open_sequences != 0) {
        assert_true(spent++ < 500);
        step(&b);
    }
    drop(&b, first);
    for (uint32_t i = 0; i < TALKS; i++) {
        r[i] = ask(&b, same, same + MORE, ANSWER, (int32_t) (10000 * (i + 1)));
    }
    compose(&b);
    for (uint32_t i = 0; i < TALKS; i++) {
        assert_int_equal(r[i]->sequences[0].state, TR_SEQ_RUNNING);
        assert_int_equal(r[i]->cached_tokens, same);
    }
    apply(&b);
    for (bool open = true; open;) {
        assert_true(spent++ < 1000);
        open = false;
        for (uint32_t i = 0; i < TALKS; i++) {
            open = open || r[i]->open_sequences != 0;
            most = charged(&b, r[i], most);
        }
        step(&b);
    }
    assert_int_equal(b.s.preemptions, 0);
    print_message("%s: %llu pages for %u tokens, %llu behind %u of them\n",
                  specs[UNIFORM], (unsigned long long) all, same + MORE,
                  (unsigned long long) most, same);
    assert_true(most != 0 && most <= all / 2);
    drop_all(&b, r, TALKS);
    tr_kv_expire(b.kv, UINT64_MAX - 1);
    fixture_free(&b);
    reuse = false;
    stage = 0;
}

static void
several(void **unused)
{
    (void) unused;
    behind(FIRST); /* its next turn */
    behind(FIRST - 100);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(several) };

    return cmocka_run_group_tests_name("scheduler_behind", tests, make_policies,
                                       free_policies);
}
