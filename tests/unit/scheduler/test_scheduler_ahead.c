/*
 * The scheduler with a batch under way: what is composed behind it, and what
 * becomes of chunks whose sequence ends, makes way or finds no page meanwhile.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

static tr_sequence_t *
only(tr_request_t *r)
{
    return &r->sequences[0];
}

/* A batch leaves; the one before it, if there is one, arrives. */
static void
ahead(fixture_t *b)
{
    compose(b);
    tr_scheduler_submit(&b->s);
    if (b->s.n_in_flight > 1) {
        land(b, false);
    }
    assert_true(tr_scheduler_sound(&b->s));
}

/* Row 0 of the oldest batch finds no page, or a token that ends it. */
static void
land_one(fixture_t *b, bool computed)
{
    tr_scheduler_chunk_done(&b->s, &b->s.in_flight[b->s.first].chunks[0],
                            computed);
    tr_scheduler_batch_done(&b->s);
    assert_true(tr_scheduler_sound(&b->s));
}

/* Every step composes the next token before the last is known, and nothing
 * behind the last of all. */
static void
one_row_ahead(void **state)
{
    fixture_t b;
    tr_request_t *r;
    uint32_t i;

    (void) state;
    fixture_init(&b, 100, 4, 64);
    r = add(&b, 100, 4);
    ahead(&b); /* 64 of the prompt, then 36 */
    compose(&b);
    assert_int_equal(b.s.chunks[0].pos, 64);
    tr_scheduler_submit(&b.s);
    assert_int_equal(only(r)->computed, 100);
    assert_int_equal(only(r)->under_way, 100);
    land(&b, false);
    assert_int_equal(only(r)->under_way, 36);
    for (i = 0; i < 3; i++) {
        compose(&b);
        assert_int_equal(b.s.n_chunks, 1);
        assert_int_equal(b.s.chunks[0].pos, 100 + i);
        assert_true(b.s.chunks[0].sample);
        assert_int_equal(only(r)->len, 100 + i); /* so it is not known */
        assert_int_equal(only(r)->ahead, 1);
        tr_scheduler_submit(&b.s);
        land(&b, false);
    }
    compose(&b); /* the fourth token is under way: it will be the last */
    assert_int_equal(b.s.n_chunks, 0);
    land(&b, false);
    assert_int_equal(only(r)->state, TR_SEQ_DONE);
    assert_int_equal(only(r)->len, 104);
    tr_request_free(r);
    fixture_free(&b);
}

/* A token that ends its sequence: the chunk behind it is nobody's, and slot and
 * pages are there for others at once. */
static void
ends_with_a_row_behind(void **state)
{
    fixture_t b;
    tr_request_t *r, *other;
    tr_in_flight_t *behind;

    (void) state;
    fixture_init(&b, 100, 1, 64);
    r = add(&b, 10, 100);
    other = add(&b, 10, 100);
    ahead(&b);
    compose(&b);
    behind = &b.s.in_flight[tr_scheduler_next(&b.s)];
    tr_scheduler_submit(&b.s);
    assert_int_equal(b.writer[0].owed, 2);
    tr_scheduler_chunk_done(&b.s, &b.s.in_flight[b.s.first].chunks[0], true);
    tr_scheduler_remove(&b.s, only(r));
    tr_scheduler_batch_done(&b.s);
    tr_request_free(r);
    assert_null(behind->chunks[0].sequence);
    assert_int_equal(b.writer[0].owed, 0);
    compose(&b);
    assert_int_equal(b.s.n_chunks, 1);
    assert_ptr_equal(b.s.chunks[0].sequence, only(other));
    land(&b, false); /* nothing comes of it */
    assert_int_equal(only(other)->computed, 0);
    drop(&b, other);
    fixture_free(&b);
}

/* A chunk without a page takes the chunk behind it back; both are composed
 * again. */
static void
taken_back(void **state)
{
    fixture_t b;
    tr_request_t *r;

    (void) state;
    fixture_init(&b, 100, 1, 64);
    r = add(&b, 10, 100);
    step(&b);
    ahead(&b);
    compose(&b);
    tr_scheduler_submit(&b.s);
    assert_int_equal(only(r)->computed, 12);
    assert_int_equal(only(r)->ahead, 2);
    land_one(&b, false);
    assert_int_equal(only(r)->computed, 10);
    assert_int_equal(only(r)->under_way, 0);
    assert_int_equal(only(r)->ahead, 0);
    compose(&b);
    assert_int_equal(b.s.chunks[0].pos, 10);
    tr_scheduler_submit(&b.s);
    land(&b, false); /* what was behind */
    assert_int_equal(only(r)->ahead, 1);
    land(&b, false);
    assert_int_equal(only(r)->len, 12);
    assert_int_equal(only(r)->computed, 11);
    drop(&b, r);
    fixture_free(&b);
}

/* Who makes way with a chunk under way is computed again when its token has
 * come, and that token with it. */
static void
makes_way_with_a_row_under_way(void **state)
{
    int stalls;

    (void) state;
    for (stalls = 0; stalls < 2; stalls++) {
        fixture_t b;
        tr_request_t *old, *young;

        fixture_init(&b, 4, 4, 1000);
        old = add(&b, 60, 40);
        young = add(&b, 60, 40);
        step(&b);
        while (b.s.preemptions == 0) {
            assert_true(only(old)->len < 70);
            ahead(&b);
            if (b.s.preemptions == 0) {
                continue;
            }
        }
        /* the batch of the preemption left, that before it has arrived */
        assert_int_equal(only(young)->state, TR_SEQ_WAITING);
        assert_int_equal(only(young)->ahead, 0);
        assert_int_equal(only(young)->len, only(old)->len);
        assert_int_equal(only(young)->computed, 0);
        drop(&b, old);
        land(&b, false);
        compose(&b);
        assert_int_equal(b.s.n_chunks, 1);
        assert_int_equal(b.s.chunks[0].pos, 0);
        assert_int_equal(b.s.chunks[0].n, only(young)->len);
        tr_scheduler_submit(&b.s);
        land_one(&b, stalls == 0);
        assert_int_equal(only(young)->computed,
                         stalls == 0 ? only(young)->len : 0);
        drop(&b, young);
        fixture_free(&b);
    }
}

/* The token of one that was swapped out comes nevertheless; where there was no
 * page for it, one less is cached. */
static void
swapped_with_a_row_under_way(void **state)
{
    int stalls;

    (void) state;
    for (stalls = 0; stalls < 2; stalls++) {
        fixture_t b;
        tr_request_t *r[3];
        tr_sequence_t *q;
        uint32_t i, computed, len;

        fixture_init_policy(&b, UNIFORM, 5, 10, 4, 1000);
        for (i = 0; i < 3; i++) {
            r[i] = add(&b, 20, 300);
            step(&b);
            step(&b);
        }
        q = only(r[2]);
        ahead(&b);
        for (;;) {
            assert_true(q->len < 250);
            compose(&b);
            if (b.s.swaps != 0) {
                break;
            }
            tr_scheduler_submit(&b.s);
            land(&b, false);
        }
        assert_int_equal(q->state, TR_SEQ_WAITING);
        assert_int_equal(q->ahead, 1);
        assert_int_equal(q->under_way, 1);
        computed = q->computed;
        len = q->len;
        for (i = 0; i < b.s.in_flight[b.s.first].n_chunks; i++) {
            tr_chunk_t *chunk = &b.s.in_flight[b.s.first].chunks[i];
            bool ok = chunk->sequence != q || stalls == 0;

            chunk->sequence->len += ok;
            tr_scheduler_chunk_done(&b.s, chunk, ok);
        }
        tr_scheduler_batch_done(&b.s);
        assert_true(tr_scheduler_sound(&b.s));
        assert_int_equal(q->computed, computed - (stalls != 0));
        assert_int_equal(q->len, len + (stalls == 0));
        assert_int_equal(q->ahead, 0);
        assert_int_equal(q->computed + 1, q->len);
        drop(&b, r[0]);
        drop(&b, r[1]);
        compose(&b);
        assert_int_equal(row_of(&b, r[2])->pos, q->computed);
        drop(&b, r[2]);
        fixture_free(&b);
    }
}

/* Alone and without room, but the token under way may be its last: it is not
 * given up before that is known. */
static void
not_hopeless_yet(void **state)
{
    fixture_t b;
    tr_request_t *r;

    (void) state;
    fixture_init(&b, 2, 4, 1000);
    r = add(&b, 60, 100); /* 64 tokens have room */
    assert_false(tr_scheduler_fits(b.kv, r));
    step(&b);
    while (only(r)->computed < 63) {
        ahead(&b);
    }
    ahead(&b);
    assert_int_equal(tr_sequence_known(only(r)), 65);
    compose(&b);
    assert_int_equal(b.s.n_chunks, 0);
    assert_null(b.s.hopeless);
    land(&b, false);
    assert_int_equal(only(r)->len, 65);
    compose(&b);
    assert_ptr_equal(b.s.hopeless, only(r));
    drop(&b, r);
    fixture_free(&b);
}

/* What is under way has its room: no chunk is composed that could find none. */
static void
writers_keep_room(void **state)
{
    fixture_t b;
    tr_request_t *r[60];
    uint32_t i, least = UINT32_MAX, most = 0, sum;

    (void) state;
    fixture_init(&b, 600, 64, 512);
    for (i = 0; i < 60; i++) {
        r[i] = make_request(&b, 1, 5000, 1);
        r[i]->writer = &b.writer[1];
        tr_scheduler_add(&b.s, r[i]);
    }
    for (i = 0; i < 600; i++) {
        compose(&b);
        sum = b.s.n_chunks + b.writer[1].owed;
        assert_true(sum <= 40); /* small_ring_rotates: of one batch */
        if (b.s.n_chunks != 0) {
            tr_scheduler_submit(&b.s);
        }
        assert_int_equal(b.writer[1].owed, sum);
        if (b.s.n_in_flight > (b.s.n_chunks != 0)) {
            land(&b, false);
        }
    }
    for (i = 0; i < 60; i++) {
        uint32_t len = only(r[i])->len;

        least = len < least ? len : least;
        most = len > most ? len : most;
        drop(&b, r[i]);
    }
    assert_int_equal(b.writer[1].owed, 0);
    assert_true(least > 100);
    assert_true(most - least <= 4);
    while (b.s.n_in_flight != 0) {
        land(&b, false);
    }
    fixture_free(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_row_ahead),
        cmocka_unit_test(ends_with_a_row_behind),
        cmocka_unit_test(taken_back),
        cmocka_unit_test(makes_way_with_a_row_under_way),
        cmocka_unit_test(swapped_with_a_row_under_way),
        cmocka_unit_test(not_hopeless_yet),
        cmocka_unit_test(writers_keep_room),
    };

    return cmocka_run_group_tests(tests, make_policies, free_policies);
}
