/*
 * The step loop with requests that come from another engine: each goes on as if
 * nothing had happened, whenever it moved, and waits out a drain where it could
 * not move again.  test_loop_moved.c does so with a model and KV policies.
 */
#include "tests/unit/fixtures/loop_fixture.h"

/* A block for the first k tokens of every choice that was told more, and the end
 * of the others. */
static tr_request_t *
moved(tr_request_t *r, const client_t *was, uint32_t k)
{
    static const uint8_t model[TR_MODEL_ID] = "a model";
    tr_wire_replay_t head = { .seed = r->params.seed,
                              .choices = was->n,
                              .prompt_tokens = r->prompt_tokens,
                              .epoch = 1 };
    char *at = r->ahead = malloc(sizeof(head) + 4 * (16 + 4 * IDS));
    uint32_t i;

    memcpy(head.model_id, model, sizeof(model));
    memcpy(at, &head, sizeof(head));
    at += sizeof(head);
    for (i = 0; i < was->n; i++) {
        const choice_t *ch = &was->choice[i];
        tr_wire_replay_choice_t one = { .tokens = k };

        if (ch->n_ids <= k) {
            one.tokens = ch->n_ids;
            one.reason = ch->reason;
        }
        memcpy(at, &one, sizeof(one));
        at += sizeof(one);
        if (one.reason == 0) {
            memcpy(at, ch->ids, 4 * k);
            at += 4 * k;
        }
    }
    r->replay_len = (uint32_t) (at - r->ahead);
    assert_int_equal(tr_replay_begin(r, model), TR_OK);
    return r;
}

/* Moved after any number of tokens, a request goes on as if nothing had
 * happened: the same tokens, ends and totals, and nothing is told twice. */
static void
moved_at_every_token(void **state)
{
    fixture_t b = { 0 };
    const uint64_t draw = 12345; /* the same prompt and seed each time */
    client_t *first, *again;
    uint32_t k, i, most = 0;
    tr_request_t *r;

    (void) state;
    fixture_start(&b, 100, 60);
    random_state = draw;
    r = request(20, 40);
    r->n = 3;
    r->params.ignore_eos = false;
    r->submit_flags = TR_SUBMIT_IDS;
    first = submit(&b, r, 0);
    frontend_until_ended(&b, first);
    for (i = 0; i < first->n; i++) {
        most = first->choice[i].n_ids > most ? first->choice[i].n_ids : most;
    }
    for (k = 0; k < most; k++) {
        random_state = draw;
        r = request(20, 40);
        r->n = 3;
        r->params.ignore_eos = false;
        r->submit_flags = TR_SUBMIT_IDS;
        again = submit(&b, moved(r, first, k), 0);
        frontend_until_ended(&b, again);
        assert_int_equal(again->last.migrations, 1);
        assert_int_equal(again->last.completion_tokens,
                         first->last.completion_tokens);
        for (i = 0; i < first->n; i++) {
            const choice_t *a = &first->choice[i], *c = &again->choice[i];
            uint32_t told = a->n_ids < k ? a->n_ids : k;

            assert_int_equal(c->n_ids, a->n_ids - told);
            assert_memory_equal(c->ids, a->ids + told, 4 * c->n_ids);
            assert_int_equal(c->finished, a->n_ids > k);
        }
    }
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* Behind k tokens of `was`, which ended. */
static client_t *
submit_moved(fixture_t *b, const client_t *was, uint64_t draw, uint32_t k)
{
    tr_request_t *r;

    random_state = draw;
    r = request(20, 40);
    r->submit_flags = TR_SUBMIT_IDS;
    return submit(b, moved(r, was, k), 0);
}

/* A drain sends those away who have not begun here, but for one that has begun
 * elsewhere and may move no more: it would be its end. */
static void
drained_while_they_wait(void **state)
{
    fixture_t b = { .config = { .max_num_seqs = 1 } };
    const uint64_t draw = 4711;
    client_t *was, *runs, *new, *moves, *stays;
    tr_request_t *r;

    (void) state;
    fixture_start(&b, 100, 20);
    random_state = draw;
    r = request(20, 40);
    r->submit_flags = TR_SUBMIT_IDS;
    was = submit(&b, r, 0);
    frontend_until_ended(&b, was);
    atomic_store(&b.fake.gated, 1);
    runs = submit(&b, request(5, 3), 0);
    while (atomic_load(&b.fake.waits) == 0) {
        usleep(50);
    }
    new = submit(&b, request(5, 3), 0);
    moves = submit_moved(&b, was, draw, 10);
    stays = submit_moved(&b, was, draw, 10);
    control(&b, stays, TR_CONTROL_STAY);
    tr_loop_drain(b.loop);
    atomic_store(&b.fake.gated, 0);
    while (b.open != 0) {
        frontend_turn(&b, true);
    }
    check(runs);
    assert_int_equal(new->error.status, TR_ERR_DRAINING);
    assert_int_equal(moves->error.status, TR_ERR_DRAINING);
    assert_int_equal(stays->error.status, TR_OK);
    assert_int_equal(stays->last.migrations, 1);
    assert_int_equal(stays->last.completion_tokens, 40);
    assert_int_equal(stays->choice[0].n_ids, 30);
    assert_memory_equal(stays->choice[0].ids, was->choice[0].ids + 10, 4 * 30);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moved_at_every_token),
        cmocka_unit_test(drained_while_they_wait),
    };

    int failed = cmocka_run_group_tests_name("at once", tests, setup, teardown);

    late = true;
    return failed + cmocka_run_group_tests_name("late", tests, setup, teardown);
}
