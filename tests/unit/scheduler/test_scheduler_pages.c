/*
 * The scheduler when KV pages run out: who is preempted, by recomputation or by
 * swap, and when prompts are compressed.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"
#include "kernels/kernels.h"

/* ---- preemption --------------------------------------------------------- */

static void
youngest_goes_first(void **state)
{
    fixture_t b;
    tr_request_t *r[3];
    uint32_t i;

    (void) state;
    fixture_init(&b, 6, 4, 1000);
    for (i = 0; i < 3; i++) { /* two pages each, a third comes at 65 */
        r[i] = add(&b, 60, 100);
    }
    steps(&b, 5);
    assert_int_equal(b.s.n_running, 3);
    step(&b); /* r[0] wants its third page */
    assert_int_equal(r[2]->sequences[0].state, TR_SEQ_WAITING);
    assert_int_equal(r[2]->sequences[0].computed, 0);
    assert_int_equal(r[2]->sequences[0].len, 65); /* what it said stays */
    assert_int_equal(r[2]->preemptions, 1);
    assert_int_equal(r[0]->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(r[1]->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(r[0]->preemptions + r[1]->preemptions, 0);
    /* it keeps its place before those that came later */
    drop(&b, r[1]);
    r[1] = add(&b, 1, 1);
    step(&b);
    assert_int_equal(r[2]->sequences[0].state, TR_SEQ_RUNNING);
    drop_all(&b, r, 3);
    fixture_free(&b);
}

static void
paused_goes_before_youngest(void **state)
{
    fixture_t b;
    tr_request_t *r[3];

    (void) state;
    fixture_init(&b, 6, 4, 1000);
    add_all(&b, r, 3, 60, 100);
    steps(&b, 5);
    r[0]->commands = TR_CONTROL_PAUSE; /* the oldest of all */
    step(&b);
    assert_int_equal(r[0]->sequences[0].state, TR_SEQ_WAITING);
    assert_int_equal(r[1]->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(r[2]->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(r[2]->preemptions, 0);
    drop_all(&b, r, 3);
    fixture_free(&b);
}

/* Paused ones also make way for one that waits: for a slot, and for pages. */
static void
paused_make_way(void **state)
{
    fixture_t b;
    tr_request_t *a, *c, *d;

    (void) state;
    fixture_init(&b, 10, 2, 1000);
    a = add(&b, 100, 100);
    c = add(&b, 100, 100);
    step(&b);
    assert_int_equal(b.s.n_running, 2);
    d = add(&b, 200, 100);
    step(&b);
    assert_int_equal(d->sequences[0].state, TR_SEQ_WAITING);
    a->commands = c->commands = TR_CONTROL_PAUSE;
    step(&b);
    assert_int_equal(d->sequences[0].state, TR_SEQ_RUNNING);
    a->commands = c->commands = 0;
    drop(&b, d);
    step(&b);
    assert_int_equal(b.s.n_running, 2);
    drop(&b, a);
    drop(&b, c);
    fixture_free(&b);
}

/* ---- compression -------------------------------------------------------- */

static uint64_t
used(const fixture_t *b)
{
    return tr_kv_pages(b->kv) - tr_kv_free_pages(b->kv);
}

/* uniform 8/4 at head size 64: 24 tokens a page at 16 bits, 64 compressed. */
static void
compressed_after_its_prompt(void **state)
{
    const tr_page_plan_t *plan;
    fixture_t b;
    tr_request_t *r;
    tr_sequence_t *q;
    uint32_t uncompressed, list;

    (void) state;
    fixture_init_policy(&b, UNIFORM, 100, 10, 4, 200);
    plan = tr_kv_plan(b.kv);
    uncompressed = plan->layout[0].tokens;
    list = plan->layout[1].tokens;
    assert_true(list >= 2 * uncompressed);
    r = add(&b, 10 * list, 3);
    q = &r->sequences[0];
    while (q->computed < 10 * list) {
        step(&b);
        assert_int_equal(used(&b),
                         (10 * list + uncompressed - 1) / uncompressed);
        assert_true(b.s.prompt_pages > used(&b));
    }
    assert_int_equal(q->len, 10 * list + 1);
    compose(&b); /* compressed, and its second token is on its way */
    assert_int_equal(b.s.n_chunks, 1);
    assert_int_equal(b.s.chunks[0].pos, 10 * list);
    assert_int_equal(used(&b), 11);
    assert_int_equal(b.s.prompt_pages + b.s.promised, 0);
    apply(&b);
    drop(&b, r);
    fixture_free(&b);
}

/* A prompt without room for its copy keeps others out, but not when its client
 * does not read: then it makes way. */
static void
blocked_prompt_makes_way(void **state)
{
    fixture_t b;
    tr_request_t *older, *q, *d;
    uint32_t uncompressed, len;
    int32_t hog;

    (void) state;
    fixture_init_policy(&b, UNIFORM, 60, 0, 4, 400);
    uncompressed = tr_kv_plan(b.kv)->layout[0].tokens;
    len = 10 * uncompressed;
    older = add(&b, 2, 300);
    step(&b);
    q = add(&b, len, 300);
    while (q->sequences[0].computed < len) {
        step(&b);
    }
    hog = tr_kv_open(b.kv, NULL); /* takes all that is free */
    assert_true(hog >= 0);
    assert_int_equal(tr_kv_reserve(b.kv, hog,
                                   (uint32_t) tr_kv_free_pages(b.kv)
                                       * uncompressed),
                     TR_OK);
    assert_int_equal(tr_kv_free_pages(b.kv), 0);
    d = add(&b, 1, 2);
    compose(&b); /* they wait for the older one */
    assert_int_equal(q->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(d->sequences[0].state, TR_SEQ_WAITING);
    assert_true(b.s.stalled);
    older->commands = q->commands = TR_CONTROL_PAUSE;
    compose(&b);
    assert_false(b.s.stalled);
    assert_int_equal(q->sequences[0].state, TR_SEQ_WAITING);
    assert_int_equal(d->sequences[0].state, TR_SEQ_RUNNING);
    tr_kv_close(b.kv, hog);
    drop(&b, older);
    drop(&b, q);
    drop(&b, d);
    fixture_free(&b);
}

static int
refuse_compress(const tr_stream_t *s, const tr_kv_view_t *kv,
                const tr_kv_compress_t *c, void *work)
{
    (void) s;
    (void) kv;
    (void) c;
    (void) work;
    return TR_KERNEL_BADARG;
}

/* A prompt that the kernel refuses to compress is named, and no chunk of it is
 * in a batch that runs after its end; those beside it go on. */
static void
refused_prompt(void **state)
{
    static tr_kernels_t refusing;
    fixture_t b;
    tr_request_t *old, *r;

    (void) state;
    refusing = *tr_kernels_cpu(NULL);
    kernels = &refusing;
    fixture_init_policy(&b, UNIFORM, 60, 0, 4, 400);
    kernels = NULL;
    old = add(&b, 30, 300);
    step(&b);
    step(&b);
    r = add(&b, 100, 300);
    step(&b);
    refusing.kv_compress = refuse_compress;
    compose(&b);
    assert_ptr_equal(b.s.hopeless, &r->sequences[0]);
    assert_int_equal(b.s.n_chunks, 0);
    drop(&b, r);
    compose(&b);
    assert_null(b.s.hopeless);
    assert_non_null(row_of(&b, old));
    apply(&b);
    drop(&b, old);
    fixture_free(&b);
}

/* Half of the pool is for prompts, but one may have more. */
static void
prompts_have_a_share(void **state)
{
    fixture_t b;
    tr_request_t *r[3], *big;
    uint32_t uncompressed;

    (void) state;
    fixture_init_policy(&b, UNIFORM, 100, 10, 4, 4);
    uncompressed = tr_kv_plan(b.kv)->layout[0].tokens;
    add_all(&b, r, 3, 15 * uncompressed, 3);
    compose(&b);
    assert_int_equal(b.s.n_running, 2);
    assert_int_equal(used(&b), 30);
    assert_in_range(b.s.prompt_pages, 31, 50);
    apply(&b);
    while (r[0]->sequences[0].state != TR_SEQ_DONE) {
        step(&b);
    }
    compose(&b);
    assert_int_equal(r[2]->sequences[0].state, TR_SEQ_RUNNING);
    drop_all(&b, r, 3);
    big = add(&b, 60 * uncompressed, 3);
    assert_true(tr_scheduler_fits(b.kv, big));
    compose(&b);
    assert_int_equal(big->sequences[0].state, TR_SEQ_RUNNING);
    assert_true(used(&b) > 50);
    drop(&b, big);
    fixture_free(&b);
}

/* The first choice stops before the last token, the others copy what is there,
 * and each computes that token. */
static void
choices_share_before_the_end(void **state)
{
    int policy;

    (void) state;
    for (policy = UNIFORM; policy <= QUEST; policy++) {
        fixture_t b;
        tr_request_t *r;
        uint32_t i, computed = 0, ends = 0;

        fixture_init_policy(&b, policy, 200, 10, 8, 64);
        r = make_request(&b, 100, 3, 4);
        tr_scheduler_add(&b.s, r);
        while (r->open_sequences != 0) {
            compose(&b);
            for (i = 0; i < b.s.n_chunks; i++) {
                const tr_chunk_t *chunk = &b.s.chunks[i];

                computed += chunk->n;
                ends += chunk->pos == 99 && chunk->n == 1;
                if (chunk->sequence->choice != 0) {
                    assert_true(chunk->pos >= 99);
                }
            }
            assert_true(b.s.n_chunks != 0);
            apply(&b);
        }
        assert_int_equal(computed, 99 + 4 * 3);
        assert_int_equal(ends, 4);
        tr_request_free(r);
        fixture_free(&b);
    }
}

/* What is compressed keeps what it has computed. */
static void
swapped_and_back(void **state)
{
    fixture_t b;
    tr_request_t *r[3];
    tr_sequence_t *q;
    uint32_t i, computed = 0, list;

    (void) state;
    fixture_init_policy(&b, UNIFORM, 5, 10, 4, 1000);
    list = tr_kv_plan(b.kv)->layout[1].tokens;
    for (i = 0; i < 3; i++) { /* a page each, a second when that is full */
        r[i] = add(&b, 20, 300);
        step(&b);
        step(&b);
    }
    q = &r[2]->sequences[0];
    while (b.s.preemptions == 0) {
        assert_true(q->len < list + 10);
        computed = q->computed;
        step(&b);
    }
    assert_int_equal(q->state, TR_SEQ_WAITING);
    assert_true(q->kv_slot >= 0);
    assert_int_equal(q->computed, computed);
    assert_int_equal(b.s.swaps, 1);
    assert_int_equal(b.s.recomputations, 0);
    assert_int_equal(r[2]->preemptions, 1);
    /* it comes back before who came later */
    drop(&b, r[0]);
    r[0] = add(&b, 1, 1);
    compose(&b);
    assert_int_equal(q->state, TR_SEQ_RUNNING);
    assert_int_equal(q->computed, computed);
    assert_non_null(row_of(&b, r[2]));
    assert_int_equal(row_of(&b, r[2])->pos, computed);
    drop_all(&b, r, 3);
    fixture_free(&b);
}

/* Without room there, prompt and output so far are one prompt. */
static void
no_room_to_swap(void **state)
{
    fixture_t b;
    tr_request_t *r[3];
    tr_sequence_t *q;
    uint32_t i, list, len;

    (void) state;
    fixture_init_policy(&b, UNIFORM, 5, 0, 4, 1000);
    list = tr_kv_plan(b.kv)->layout[1].tokens;
    for (i = 0; i < 3; i++) {
        r[i] = add(&b, 20, 300);
        step(&b);
        step(&b);
    }
    q = &r[2]->sequences[0];
    while (b.s.preemptions == 0) {
        assert_true(q->len < list + 10);
        step(&b);
    }
    len = q->len;
    assert_int_equal(q->state, TR_SEQ_WAITING);
    assert_int_equal(q->kv_slot, -1);
    assert_int_equal(q->computed, 0);
    assert_int_equal(b.s.recomputations, 1);
    drop(&b, r[0]);
    drop(&b, r[1]);
    compose(&b);
    assert_int_equal(row_of(&b, r[2])->pos, 0);
    assert_int_equal(row_of(&b, r[2])->n, len - 1);
    assert_false(row_of(&b, r[2])->sample); /* the newest comes after it */
    apply(&b);
    compose(&b);
    assert_int_equal(row_of(&b, r[2])->pos, len - 1);
    assert_true(row_of(&b, r[2])->sample);
    drop(&b, r[2]);
    fixture_free(&b);
}

/* A paused one that is swapped out still has a slot, until nobody else finds
 * one. */
static void
swapped_give_up_slots(void **state)
{
    fixture_t b;
    tr_request_t *r[6];
    uint32_t i;

    (void) state;
    fixture_init_policy(&b, UNIFORM, 200, 200, 1, 1000);
    for (i = 0; i < 6; i++) {
        r[i] = add(&b, 50, 100);
        step(&b);
        step(&b);
        assert_int_equal(r[i]->sequences[0].state, TR_SEQ_RUNNING);
        r[i]->commands = TR_CONTROL_PAUSE;
    }
    assert_true(b.s.recomputations > 0);
    for (i = 0; i < 6; i++) {
        uint32_t k;

        for (k = 0; k < 6; k++) {
            r[k]->commands = k == i ? 0 : TR_CONTROL_PAUSE;
        }
        while (r[i]->sequences[0].state != TR_SEQ_DONE) {
            compose(&b);
            assert_true(b.s.n_chunks != 0 || b.s.changes != 0);
            apply(&b);
        }
    }
    for (i = 0; i < 6; i++) {
        assert_int_equal(r[i]->sequences[0].len, 150);
        tr_request_free(r[i]);
    }
    fixture_free(&b);
}

/* What outgrows the whole pool is named, so that the loop ends it. */
static void
hopeless(void **state)
{
    int policy;

    (void) state;
    for (policy = FULL; policy <= DIFFKV; policy++) {
        fixture_t b;
        tr_request_t *r;
        uint32_t i;

        fixture_init_policy(&b, policy, 14, 5, 4, 1000);
        r = add(&b, 20, 5000);
        assert_false(tr_scheduler_fits(b.kv, r)); /* nobody asked */
        for (i = 0; b.s.hopeless == NULL; i++) {
            assert_true(i < 5000);
            step(&b);
        }
        assert_ptr_equal(b.s.hopeless, &r->sequences[0]);
        assert_int_equal(b.s.n_chunks, 0);
        assert_true(r->sequences[0].len > 100);
        drop(&b, r);
        fixture_free(&b);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(youngest_goes_first),
        cmocka_unit_test(paused_goes_before_youngest),
        cmocka_unit_test(paused_make_way),
        cmocka_unit_test(compressed_after_its_prompt),
        cmocka_unit_test(blocked_prompt_makes_way),
        cmocka_unit_test(refused_prompt),
        cmocka_unit_test(prompts_have_a_share),
        cmocka_unit_test(choices_share_before_the_end),
        cmocka_unit_test(swapped_and_back),
        cmocka_unit_test(no_room_to_swap),
        cmocka_unit_test(swapped_give_up_slots),
        cmocka_unit_test(hopeless),
    };

    return cmocka_run_group_tests(tests, make_policies, free_policies);
}
