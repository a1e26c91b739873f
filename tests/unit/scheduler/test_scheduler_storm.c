/*
 * The scheduler in a storm: random requests come, pause, hang up; after every
 * step it is held to its invariants, and in the end everything has come to its
 * own.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

#define ALIVE 40

typedef struct {
    fixture_t b;
    tr_request_t *r[ALIVE];
    uint32_t finished, aborted;
} storm_t;

static void
storm_change(storm_t *st)
{
    uint32_t i = random_below(ALIVE);
    tr_request_t *r = st->r[i];

    if (r == NULL) {
        uint32_t prompt = 1 + random_below(random_below(4) == 0 ? 500 : 40);
        uint32_t n = random_below(5) == 0 ? 1 + random_below(5) : 1;

        r = make_request(&st->b, prompt, 1 + random_below(100), n);
        r->tenant = random_below(4);
        r->share = random_below(3);
        if (!tr_scheduler_fits(st->b.kv, r)) {
            tr_request_free(r);
            return;
        }
        tr_scheduler_add(&st->b.s, r);
        st->r[i] = r;
    } else if (random_below(10) == 0) {
        drop(&st->b, r);
        st->r[i] = NULL;
        st->aborted++;
    } else if (random_below(3) == 0) {
        r->commands ^= TR_CONTROL_PAUSE;
    }
}

static void
storm_batch(const storm_t *st)
{
    const tr_scheduler_t *s = &st->b.s;
    uint32_t tokens = 0, i, k;

    for (i = 0; i < s->n_chunks; i++) {
        const tr_chunk_t *chunk = &s->chunks[i];
        const tr_sequence_t *q = chunk->sequence;
        tr_kv_usage_t u;

        assert_int_equal(q->state, TR_SEQ_RUNNING);
        assert_int_equal(chunk->pos, q->computed);
        assert_true(chunk->n >= 1
                    && chunk->pos + chunk->n <= tr_sequence_known(q));
        assert_int_equal(chunk->sample,
                         chunk->pos + chunk->n == tr_sequence_known(q));
        /* what nobody knows comes alone, and it is not the last */
        assert_true(chunk->pos + chunk->n <= q->len || chunk->n == 1);
        assert_true(chunk->pos + chunk->n < q->cap);
        assert_int_equal(q->request->commands & TR_CONTROL_PAUSE, 0);
        tr_kv_usage(st->b.kv, q->kv_slot, &u);
        assert_true(u.tokens >= chunk->pos + chunk->n);
        for (k = 0; k < i; k++) {
            assert_ptr_not_equal(q, s->chunks[k].sequence);
        }
        tokens += chunk->n;
    }
    assert_int_equal(tokens, s->n_tokens);
    assert_true(tokens <= s->max_batch_tokens);
}

static void
storm_reap(storm_t *st)
{
    uint32_t i;

    for (i = 0; i < ALIVE; i++) {
        if (st->r[i] != NULL && st->r[i]->open_sequences == 0) {
            tr_request_free(st->r[i]);
            st->r[i] = NULL;
            st->finished++;
        }
    }
}

static bool
storm_can_work(const storm_t *st)
{
    uint32_t i;

    for (i = 0; i < ALIVE; i++) {
        if (st->r[i] != NULL && st->r[i]->commands == 0) {
            return true;
        }
    }
    return false;
}

static void
storm_policy(uint64_t seed, int policy, uint32_t pages, uint32_t swap_pages,
             uint32_t seqs, uint32_t tokens, bool late)
{
    storm_t *st = calloc(1, sizeof(*st));
    uint32_t i, k, idle = 0;
    bool composed;

    random_state = seed;
    fixture_init_policy(&st->b, policy, pages, swap_pages, seqs, tokens);
    for (i = 0; i < 6000; i++) {
        for (k = random_below(3); k != 0; k--) {
            storm_change(st);
        }
        compose(&st->b);
        storm_batch(st);
        /* somebody who can run does, at the latest after a preemption */
        composed = st->b.s.n_chunks != 0;
        idle = !composed && st->b.s.n_in_flight == 0 && storm_can_work(st)
                   ? idle + 1
                   : 0;
        assert_true(idle < 3);
        if (!late) {
            apply(&st->b);
        } else {
            if (composed) {
                tr_scheduler_submit(&st->b.s);
            }
            if (st->b.s.n_in_flight > composed) {
                land(&st->b, true);
            }
        }
        assert_true(tr_scheduler_sound(&st->b.s));
        storm_reap(st);
    }
    while (st->b.s.n_in_flight != 0) {
        land(&st->b, false);
    }
    storm_reap(st);
    assert_int_equal(st->b.writer[0].owed, 0);
    /* without arrivals and pauses, everything comes to its end */
    for (i = 0; i < ALIVE; i++) {
        if (st->r[i] != NULL) {
            st->r[i]->commands = 0;
        }
    }
    for (i = 0; storm_can_work(st); i++) {
        assert_true(i < 100000);
        step(&st->b);
        storm_reap(st);
    }
    assert_true(st->finished > 50 && st->aborted > 20);
    if (pages < 40) {
        assert_true(st->b.s.preemptions > 20);
        assert_int_equal(st->b.s.swaps > 20, swap_pages != 0);
    }
    assert_true(st->b.s.swaps <= st->b.s.preemptions);
    fixture_free(&st->b);
    free(st);
}

static void
storm(uint64_t seed, uint32_t pages, uint32_t seqs, uint32_t tokens)
{
    storm_policy(seed, FULL, pages, 0, seqs, tokens, false);
    storm_policy(seed, FULL, pages, 0, seqs, tokens, true);
}

static void
storms(void **state)
{
    (void) state;
    storm(1, 20, 8, 64);
    storm(2, 30, 40, 16);
    storm(3, 25, 3, 512);
    storm(4, 1000, 64, 32);
    storm(5, 16, 200, 5);
    storm(6, 20, 200, 1);
}

static void
storms_of_policies(void **state)
{
    int policy, late;

    (void) state;
    for (policy = UNIFORM; policy <= QUEST; policy++) {
        for (late = 0; late < 2; late++) {
            storm_policy(11, policy, 14, 30, 8, 64, late);
            storm_policy(12, policy, 20, 6, 40, 16, late);
            storm_policy(13, policy, 14, 0, 3, 512, late);
            storm_policy(14, policy, 1000, 1000, 64, 32, late);
            storm_policy(15, policy, 12, 40, 200, 5, late);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storms),
        cmocka_unit_test(storms_of_policies),
    };

    return cmocka_run_group_tests(tests, make_policies, free_policies);
}
