/*
 * The step loop: aborts at every stage, pauses, stop strings, choices, echo,
 * response writers that fill up, failures, and thousands of random requests
 * each of which must give what it gives alone.  At the end of each test no
 * request, page or slot may be left.
 */
#include "tests/unit/fixtures/loop_fixture.h"

#include <time.h>

static void
one_after_another(void **state)
{
    fixture_t b = { 0 };
    uint32_t i;

    (void) state;
    fixture_start(&b, 100, 20);
    for (i = 0; i < 20; i++) {
        client_t *c = submit(&b, request(1 + i * 17, 1 + i), i % WRITERS);

        frontend_until_ended(&b, c);
        check(c);
        assert_int_equal(c->last.prompt_tokens, 1 + i * 17);
        assert_int_equal(c->last.preemptions, 0);
    }
    loop_is_empty(&b);
    assert_int_equal(atomic_load(&b.counters.requests_length), 20);
    assert_int_equal(atomic_load(&b.counters.generation_tokens), 210);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* The ids of all tokens are told, with the one that ends an answer and those of
 * text that was held, or is none; nobody else gets any. */
static void
ids_are_told(void **state)
{
    fixture_t b = { 0 };
    tr_request_t *r = request(20, 100);
    client_t *c, *other;
    uint32_t i, k;

    (void) state;
    fixture_start(&b, 100, 20);
    r->submit_flags = TR_SUBMIT_IDS;
    c = submit(&b, r, 0);
    other = submit(&b, request(20, 100), 0);
    frontend_until_ended(&b, c);
    frontend_until_ended(&b, other);
    check(c);
    check(other);
    for (i = 0; i < c->n; i++) {
        choice_t *ch = &c->choice[i];
        uint32_t text = 0;

        assert_int_equal(ch->n_ids, ch->tokens);
        for (k = 0; k < ch->n_ids; k++) {
            if (ch->ids[k] == EOS) {
                assert_int_equal(k + 1, ch->n_ids);
                assert_int_equal(ch->reason, TR_FINISH_STOP);
                continue;
            }
            assert_int_equal(ch->ids[k], LETTER_A + (ch->text[text] - 'a'));
            text++;
        }
        assert_int_equal(text, ch->len);
    }
    assert_int_equal(other->choice[0].n_ids, 0);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* Lets n steps pass; returns when the next one stands at the gate. */
static void
steps(fixture_t *b, uint32_t n)
{
    atomic_store(&b->fake.allowed, n);
    while (atomic_load(&b->fake.allowed) != 0) {
        usleep(50);
    }
    atomic_store(&b->fake.waits, 0);
    while (atomic_load(&b->fake.waits) == 0) {
        usleep(50);
    }
}

static void
open_gate(fixture_t *b)
{
    atomic_store(&b->fake.gated, 0);
}

/* The end of the queue is told before the step that ends it is run, once, and
 * to nobody who still waits. */
static void
started_before_the_step(void **state)
{
    fixture_t b = { .config = { .max_num_seqs = 1 } };
    client_t *first, *second;

    (void) state;
    fixture_start(&b, 100, 20);
    atomic_store(&b.fake.gated, 1);
    first = submit(&b, request(100, 5), 0); /* three chunks */
    second = submit(&b, request(1, 5), 0);
    while (atomic_load(&b.fake.waits) == 0) {
        usleep(50);
    }
    frontend_turn(&b, false);
    assert_int_equal(first->started, 1);
    steps(&b, 4);
    frontend_turn(&b, false);
    assert_int_equal(second->started, 0);
    open_gate(&b);
    frontend_until_ended(&b, second);
    check(first);
    check(second);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* A request may arrive after the time of the turn that takes it. */
static void
younger_than_the_turn(void **state)
{
    fixture_t b = { 0 };
    tr_request_t *r = request(5, 3);
    client_t *c;

    (void) state;
    fixture_start(&b, 100, 20);
    r->arrival_us = UINT64_MAX / 2;
    c = submit(&b, r, 0);
    frontend_until_ended(&b, c);
    check(c);
    assert_int_equal(atomic_load(&b.counters.queue_time.sum_us), 0);
    assert_int_equal(atomic_load(&b.counters.queue_time.count[0]), 1);
    assert_int_equal(atomic_load(&b.counters.ttft.count[0]), 1);
    assert_int_equal(atomic_load(&b.counters.e2e.count[0]), 1);
    assert_int_equal(c->last.queue_us, 0);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

static uint64_t
now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t) ts.tv_sec * 1000000u + (uint64_t) ts.tv_nsec / 1000u;
}

/* What is held of the KV cache: told with the first token, not again for a
 * while, and at the end of each choice; to nobody else. */
static void
kv_is_told(void **state)
{
    fixture_t b = { 0 };
    tr_request_t *r = request(50, 30);
    uint64_t begun = now_us(), most;
    client_t *c, *other;
    uint32_t i;

    (void) state;
    fixture_start(&b, 100, 20);
    r->usage_stats = r->include_kv = true;
    c = submit(&b, r, 0);
    other = submit(&b, request(50, 30), 0);
    frontend_until_ended(&b, c);
    frontend_until_ended(&b, other);
    most = 2 + (now_us() - begun) / TR_KV_PERIOD_US;
    check(c);
    for (i = 0; i < c->n; i++) {
        assert_in_range(c->choice[i].kvs, 2, most);
        assert_int_equal(c->choice[i].held.full_bytes,
                         (50 + 30 - 1) * 4ull * HEAD_DIM);
        assert_int_equal(other->choice[i].kvs, 0);
    }
    assert_memory_equal(&c->choice[0].held, &c->last.kv, sizeof(c->last.kv));
    assert_int_equal(c->last.choice_tokens, 30);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
abort_at_every_stage(void **state)
{
    fixture_t b = { .config = { .max_num_seqs = 2 } };
    client_t *decoding, *prefilling, *queued, *unseen;

    (void) state;
    fixture_start(&b, 100, 20);
    atomic_store(&b.fake.gated, 1);
    decoding = submit(&b, request(1, 1000), 0);
    steps(&b, 10);
    frontend_turn(&b, false);
    assert_int_equal(decoding->choice[0].len, late ? 9 : 10);
    prefilling = submit(&b, request(1500, 10), 1);
    steps(&b, 3); /* two chunks, of 32 that it needs */
    queued = submit(&b, request(10, 10), 1);
    unseen = submit(&b, request(10, 10), 2);
    decoding->aborted = prefilling->aborted = true;
    queued->aborted = unseen->aborted = true;
    control(&b, decoding, TR_CONTROL_ABORT);
    control(&b, prefilling, TR_CONTROL_ABORT);
    control(&b, queued, TR_CONTROL_ABORT);
    control(&b, unseen, TR_CONTROL_ABORT);
    atomic_store(&b.fake.allowed, 1); /* after this step nobody is left */
    frontend_until_ended(&b, decoding);
    frontend_until_ended(&b, prefilling);
    frontend_until_ended(&b, queued);
    frontend_until_ended(&b, unseen);
    open_gate(&b);
    check(decoding);
    /* what is under way when the abort is seen is dropped */
    assert_int_equal(decoding->choice[0].len, late ? 13 : 14);
    assert_int_equal(decoding->choice[0].reason, TR_FINISH_ABORTED);
    /* usage is exact: what was sampled is what was sent */
    assert_int_equal(decoding->last.completion_tokens,
                     decoding->choice[0].tokens);
    assert_int_equal(prefilling->choice[0].reason, TR_FINISH_ABORTED);
    assert_int_equal(prefilling->last.completion_tokens, 0);
    assert_int_equal(queued->choice[0].reason, TR_FINISH_ABORTED);
    assert_int_equal(queued->choice[0].len, 0);
    assert_int_equal(queued->started, 0);
    assert_int_equal(unseen->choice[0].reason, TR_FINISH_ABORTED);
    loop_is_empty(&b);
    assert_int_equal(atomic_load(&b.counters.requests_aborted), 4);
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
pause_and_resume(void **state)
{
    fixture_t b = { 0 };
    client_t *c, *other;

    (void) state;
    fixture_start(&b, 100, 4);
    atomic_store(&b.fake.gated, 1);
    c = submit(&b, request(10, 500), 0);
    steps(&b, 5);
    control(&b, c, TR_CONTROL_PAUSE);
    other = submit(&b, request(3, 100), 1);
    open_gate(&b);
    frontend_until_ended(&b, other);
    frontend_turn(&b, false);
    /* five, and the step that was under way */
    assert_int_equal(c->choice[0].len, 6);
    control(&b, c, 0);
    frontend_until_ended(&b, c);
    check(c);
    /* paused from the start, then aborted */
    c = submit(&b, request(10, 500), 0);
    c->aborted = true;
    control(&b, c, TR_CONTROL_PAUSE);
    control(&b, c, TR_CONTROL_PAUSE | TR_CONTROL_ABORT);
    frontend_until_ended(&b, c);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
paused_for_too_long(void **state)
{
    fixture_t b = { .config = { .paused_timeout_us = 3000 } };
    client_t *c, *other;

    (void) state;
    fixture_start(&b, 100, 4);
    c = submit(&b, request(10, 1000), 0);
    control(&b, c, TR_CONTROL_PAUSE);
    frontend_until_ended(&b, c);
    assert_int_equal(c->error.status, TR_ERR_TIMEOUT);
    other = submit(&b, request(3, 20), 0);
    frontend_until_ended(&b, other);
    check(other);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* Nobody reads one response writer: its requests end, the others do not
 * notice. */
static void
ring_full_for_too_long(void **state)
{
    fixture_t b = { .config = { .channel_stall_timeout_us = 3000 } };
    client_t *stuck[8], *other;
    uint32_t i;

    (void) state;
    fixture_start(&b, 100, 20);
    b.deaf[2] = true;
    for (i = 0; i < 8; i++) {
        stuck[i] = submit(&b, request(10, 1900), 2);
    }
    while (atomic_load(&b.counters.requests_error) != 8) {
        other = submit(&b, request(10, 30), 0);
        frontend_until_ended(&b, other);
        check(other);
        b.n_clients--;
    }
    b.deaf[2] = false;
    for (i = 0; i < 8; i++) {
        frontend_until_ended(&b, stuck[i]);
        assert_int_equal(stuck[i]->error.status, TR_ERR_TIMEOUT);
        check(stuck[i]);
    }
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

/* A full response writer that is read again in time loses nothing. */
static void
ring_full_for_a_while(void **state)
{
    fixture_t b = { 0 };
    client_t *slow[4], *other;
    uint32_t i;

    (void) state;
    fixture_start(&b, 1000, 60);
    b.deaf[2] = true;
    for (i = 0; i < 4; i++) {
        slow[i] = submit(&b, request(10, 1900), 2);
    }
    for (i = 0; i < 50; i++) {
        other = submit(&b, request(10, 60), 1);
        frontend_until_ended(&b, other);
    }
    b.deaf[2] = false;
    for (i = 0; i < 4; i++) {
        frontend_until_ended(&b, slow[i]);
        check(slow[i]);
    }
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
refused(void **state)
{
    fixture_t b = { .config = { .max_num_seqs = 1, .max_queue = 2 } };
    static const int32_t eos = EOS;
    int32_t ids[10] = { LETTER_A, LETTER_A };
    tr_ids_t prompt = { ids, 2, 10 };
    tr_request_t *r;

    (void) state;
    fixture_start(&b, 4, 8); /* 128 tokens fit */
    r = request(2, 127);
    assert_int_equal(tr_request_layout(r, &prompt, 1, 4096, &eos, 1, tokenizer),
                     TR_OK);
    assert_int_equal(tr_loop_reserve(b.loop, r), TR_ERR_CONTEXT_LENGTH);
    tr_request_free(r);
    r = request(2, 2000);
    assert_int_equal(tr_request_layout(r, &prompt, 1, 4096, &eos, 1, tokenizer),
                     TR_OK);
    assert_int_equal(tr_loop_reserve(b.loop, r), TR_ERR_CONTEXT_LENGTH);
    tr_request_free(r);

    atomic_store(&b.fake.gated, 1);
    submit(&b, request(2, 100), 0);
    steps(&b, 5);
    submit(&b, request(2, 5), 0);
    submit(&b, request(2, 5), 1);
    r = request(2, 5);
    assert_int_equal(tr_request_layout(r, &prompt, 1, 4096, &eos, 1, tokenizer),
                     TR_OK);
    assert_int_equal(tr_loop_reserve(b.loop, r), TR_ERR_QUEUE_FULL);
    tr_request_free(r);
    open_gate(&b);
    while (b.open != 0) {
        frontend_turn(&b, true);
    }
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
one_fails_alone(void **state)
{
    fixture_t b = { 0 };
    client_t *bad, *good;
    tr_request_t *r;

    (void) state;
    fixture_start(&b, 100, 4);
    good = submit(&b, request(10, 300), 0);
    r = request(20, 10);
    r->n = 3;
    r->error.param[0] = '!';
    bad = submit(&b, r, 0);
    frontend_until_ended(&b, bad);
    assert_int_equal(bad->error.status, TR_ERR_INTERNAL);
    frontend_until_ended(&b, good);
    check(good);
    assert_int_equal(good->error.status, TR_OK);
    /* a whole step fails: all that were in it end, and it goes on */
    atomic_store(&b.fake.gated, 1);
    good = submit(&b, request(10, 1000), 0);
    steps(&b, 3);
    atomic_store(&b.fake.broken, 1);
    open_gate(&b);
    frontend_until_ended(&b, good);
    assert_int_equal(good->error.status, TR_ERR_INTERNAL);
    atomic_store(&b.fake.broken, 0);
    good = submit(&b, request(10, 10), 1);
    frontend_until_ended(&b, good);
    check(good);
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
stop_strings(void **state)
{
    /* the executor says a, b, c, d: these come soon */
    static const tr_stop_string_t stops[] = {
        { "abc", 3 }, { "ddd", 3 }, { "bad", 3 }, { "q", 1 }
    };
    fixture_t b = { 0 };
    uint32_t i, stopped = 0;

    (void) state;
    fixture_start(&b, 100, 64);
    for (i = 0; i < 64; i++) {
        tr_request_t *r = request(5, 60);

        r->params.stop = stops;
        r->params.n_stop = 1 + i % 4;
        r->params.include_stop = i % 5 == 0;
        r->params.min_tokens = i % 3 == 0 ? 20 : 0;
        submit(&b, r, i % WRITERS);
    }
    while (b.open != 0) {
        frontend_turn(&b, true);
    }
    for (i = 0; i < 64; i++) {
        check(&b.client[i]);
        stopped += b.client[i].choice[0].reason == TR_FINISH_STOP;
    }
    assert_in_range(stopped, 20, 63);
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
echo(void **state)
{
    fixture_t b = { 0 };
    uint32_t i;

    (void) state;
    fixture_start(&b, 400, 40);
    for (i = 0; i < 40; i++) {
        tr_request_t *r = request(1 + i * 37, i % 4 == 0 ? 0 : 5);

        r->echo = true;
        r->params.logprobs = i % 2 == 0 ? -1 : (int32_t) i % 5;
        r->n = 1 + i % 3;
        submit(&b, r, i % WRITERS);
    }
    while (b.open != 0) {
        frontend_turn(&b, true);
    }
    for (i = 0; i < 40; i++) {
        const client_t *c = &b.client[i];
        uint32_t k;

        for (k = 0; k < c->n; k++) {
            const choice_t *got = &c->choice[k];

            assert_int_equal(got->len, c->want[k].len);
            assert_memory_equal(got->text, c->want[k].text, got->len);
            assert_int_equal(got->reason, c->want[k].reason);
            if (i % 2 != 0) {
                assert_int_equal(got->logprobs,
                                 1 + i * 37 + (i % 4 == 0 ? 0 : 5));
            }
        }
    }
    loop_is_empty(&b);
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
stop_with_requests_inside(void **state)
{
    fixture_t b = { .config = { .max_num_seqs = 4 } };
    uint32_t i;

    (void) state;
    fixture_start(&b, 100, 30);
    atomic_store(&b.fake.gated, 1);
    for (i = 0; i < 30; i++) {
        client_t *c = submit(&b, request(100, 1800), i % WRITERS);

        if (i % 7 == 0) {
            control(&b, c, TR_CONTROL_PAUSE);
        }
    }
    steps(&b, 20);
    open_gate(&b);
    fixture_halt(&b);
    frontend_turn(&b, false);
    for (i = 0; i < 30; i++) {
        const client_t *c = &b.client[i];

        /* those that were not paused may have been quicker */
        assert_true(c->error.status == TR_ERR_DRAINING
                    || (i % 7 != 0 && c->choice[0].finished));
        check(c);
    }
    fixture_stop(&b);
}

/* Thousands of random requests, a small cache, three channels, pauses, aborts:
 * each gives what it gives alone. */
static void
random_change(fixture_t *b)
{
    client_t *c = &b->client[random_below(b->n_clients)];

    if (c->r == NULL) {
        return;
    }
    switch (random_below(8)) {
    case 0:
        c->aborted = true;
        control(b, c, TR_CONTROL_ABORT);
        break;
    case 1:
    case 2:
        if (!c->aborted) {
            c->paused = !c->paused;
            control(b, c, c->paused ? TR_CONTROL_PAUSE : 0);
        }
        break;
    default:
        break;
    }
}

static tr_request_t *
random_request(void)
{
    static const tr_stop_string_t stops[] = { { "abcd", 4 }, { "bbbb", 4 } };
    uint32_t most = random_below(8) == 0 ? 300 : 30;
    tr_request_t *r = request(1 + random_below(most), 1 + random_below(most));

    r->n = random_below(4) == 0 ? 1 + random_below(4) : 1;
    r->params.ignore_eos = random_below(2) == 0;
    r->params.min_tokens = random_below(3) == 0 ? random_below(10) : 0;
    r->params.stop = stops;
    r->params.n_stop = random_below(3);
    r->params.logprobs = random_below(5) == 0 ? (int32_t) random_below(4) : -1;
    if (random_below(6) == 0) {
        r->echo = true;
    }
    if (random_below(50) == 0) {
        r->error.param[0] = '!';
    }
    return r;
}

static void
storm(uint64_t seed, uint32_t pages, uint32_t seqs, uint32_t tokens,
      uint32_t requests)
{
    fixture_t b = { .config = { .max_num_seqs = seqs,
                                .max_batch_tokens = tokens },
                    .stalls = 5 };
    uint32_t i;

    random_state = seed;
    fixture_start(&b, pages, requests);
    while (b.n_clients < requests) {
        if (b.open < 60) {
            submit(&b, random_request(), random_below(WRITERS));
        }
        random_change(&b);
        /* many at first, however slow this thread is: pages become few */
        atomic_store(&b.fake.gated,
                     pages < 100 && b.n_clients < 500 && b.open < 30);
        frontend_turn(&b, false);
        if (random_below(200) == 0) { /* a channel is slow for a while */
            i = random_below(WRITERS);
            b.deaf[i] = !b.deaf[i];
        }
    }
    for (i = 0; i < WRITERS; i++) {
        b.deaf[i] = false;
    }
    for (i = 0; i < requests; i++) {
        if (!b.client[i].aborted) {
            control(&b, &b.client[i], 0);
        }
    }
    while (b.open != 0) {
        frontend_turn(&b, true);
    }
    for (i = 0; i < requests; i++) {
        check(&b.client[i]);
    }
    loop_is_empty(&b);
    assert_true(!late || b.later.n_stalled > 100);
    if (pages < 100) {
        assert_true(atomic_load(&b.counters.preemptions) != 0);
    }
    fixture_halt(&b);
    fixture_stop(&b);
}

static void
storms(void **state)
{
    (void) state;
    storm(1, 20, 16, 48, 3000);
    storm(2, 400, 64, 512, 3000);
    storm(3, 19, 3, 7, 1500);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_told),
        cmocka_unit_test(one_after_another),
        cmocka_unit_test(started_before_the_step),
        cmocka_unit_test(younger_than_the_turn),
        cmocka_unit_test(kv_is_told),
        cmocka_unit_test(abort_at_every_stage),
        cmocka_unit_test(pause_and_resume),
        cmocka_unit_test(paused_for_too_long),
        cmocka_unit_test(ring_full_for_too_long),
        cmocka_unit_test(ring_full_for_a_while),
        cmocka_unit_test(refused),
        cmocka_unit_test(one_fails_alone),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(echo),
        cmocka_unit_test(stop_with_requests_inside),
        cmocka_unit_test(storms),
    };

    int failed = cmocka_run_group_tests_name("at once", tests, setup, teardown);

    late = true;
    return failed + cmocka_run_group_tests_name("late", tests, setup, teardown);
}
