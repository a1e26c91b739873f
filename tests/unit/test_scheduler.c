/*
 * The scheduler alone: who is admitted, what a batch holds, who is preempted.
 * Requests are made by hand and "run" by counting; a storm of random requests
 * is held to the invariants after every step.
 */
#include "scheduler_bench.h"

/* ---- batches ------------------------------------------------------------ */

static void
one_request(void **state)
{
    bench_t b;
    tr_request_t *r;
    uint32_t i;

    (void) state;
    bench_init(&b, 100, 4, 64);
    compose(&b);
    assert_int_equal(b.s.n_rows, 0);
    r = add(&b, 100, 3);
    compose(&b);
    assert_int_equal(b.s.n_rows, 1);
    assert_int_equal(b.s.rows[0].pos, 0);
    assert_int_equal(b.s.rows[0].n, 64);
    assert_false(b.s.rows[0].sample);
    apply(&b);
    compose(&b);
    assert_int_equal(b.s.rows[0].pos, 64);
    assert_int_equal(b.s.rows[0].n, 36);
    assert_true(b.s.rows[0].sample);
    apply(&b);
    for (i = 0; i < 2; i++) {
        compose(&b);
        assert_int_equal(b.s.rows[0].pos, 100 + i);
        assert_int_equal(b.s.rows[0].n, 1);
        assert_true(b.s.rows[0].sample);
        apply(&b);
    }
    assert_int_equal(r->sequences[0].state, TR_SEQ_DONE);
    tr_request_free(r);
    bench_free(&b);
}

static void
decode_before_prompts(void **state)
{
    bench_t b;
    tr_request_t *old[3], *prompt;
    uint32_t i;

    (void) state;
    bench_init(&b, 100, 8, 32);
    for (i = 0; i < 3; i++) {
        old[i] = add(&b, 4, 50);
    }
    step(&b);
    prompt = add(&b, 200, 1);
    compose(&b);
    assert_int_equal(b.s.n_rows, 4);
    assert_int_equal(b.s.n_tokens, 32);
    for (i = 0; i < 3; i++) {
        assert_ptr_equal(b.s.rows[i].sequence->request, old[i]);
        assert_int_equal(b.s.rows[i].n, 1);
    }
    assert_ptr_equal(b.s.rows[3].sequence->request, prompt);
    assert_int_equal(b.s.rows[3].n, 29);
    apply(&b);
    for (i = 0; i < 3; i++) {
        drop(&b, old[i]);
    }
    drop(&b, prompt);
    bench_free(&b);
}

/* More decoding sequences than a batch takes: all advance alike, and a prompt
 * is not starved. */
static void
decode_more_than_a_batch(void **state)
{
    bench_t b;
    tr_request_t *r[20], *prompt;
    uint32_t i;

    (void) state;
    bench_init(&b, 200, 32, 8);
    for (i = 0; i < 20; i++) {
        r[i] = add(&b, 1, 1000);
    }
    for (i = 0; i < 100; i++) {
        step(&b);
        assert_in_range(b.s.n_tokens, 1, 8);
    }
    for (i = 0; i < 20; i++) {
        assert_in_range(r[i]->sequences[0].len, 1 + 38, 1 + 42);
    }
    prompt = add(&b, 50, 1);
    for (i = 0; prompt->sequences[0].state != TR_SEQ_DONE; i++) {
        assert_true(i < 60);
        step(&b);
    }
    for (i = 0; i < 20; i++) {
        drop(&b, r[i]);
    }
    tr_request_free(prompt);
    bench_free(&b);
}

static void
prompts_alternate(void **state)
{
    bench_t b;
    tr_request_t *a, *c, *late;
    uint32_t i;

    (void) state;
    bench_init(&b, 500, 8, 64);
    a = add(&b, 1000, 1);
    c = add(&b, 1000, 1);
    for (i = 0; i < 6; i++) {
        compose(&b);
        assert_int_equal(b.s.n_rows, 1);
        assert_ptr_equal(b.s.rows[0].sequence->request, i % 2 == 0 ? a : c);
        apply(&b);
    }
    /* a short one that comes later has its turn at once */
    late = add(&b, 10, 1);
    compose(&b);
    assert_ptr_equal(b.s.rows[0].sequence->request, late);
    assert_int_equal(b.s.rows[0].n, 10);
    assert_ptr_equal(b.s.rows[1].sequence->request, a);
    assert_int_equal(b.s.rows[1].n, 54);
    apply(&b);
    drop(&b, a);
    drop(&b, c);
    tr_request_free(late);
    bench_free(&b);
}

/* Turns are between requests: many prompts in one do not get more. */
static void
prompts_alternate_by_request(void **state)
{
    bench_t b;
    tr_request_t *many, *one;
    uint32_t i, of_one = 0, of_many = 0;

    (void) state;
    bench_init(&b, 2000, 16, 64);
    many = make_request(&b, 1000, 1, 8);
    many->n = 1; /* eight prompts, not eight choices */
    tr_scheduler_add(&b.s, many);
    one = add(&b, 1000, 1);
    for (i = 0; i < 20; i++) {
        compose(&b);
        of_one += row_of(&b, one) != NULL;
        of_many += row_of(&b, many) != NULL;
        apply(&b);
    }
    assert_int_equal(of_one, 10);
    assert_int_equal(of_many, 10);
    drop(&b, many);
    drop(&b, one);
    bench_free(&b);
}

static void
paused_are_left_out(void **state)
{
    bench_t b;
    tr_request_t *a, *c;

    (void) state;
    bench_init(&b, 100, 8, 64);
    a = add(&b, 10, 100);
    a->wishes = TR_CONTROL_PAUSE;
    c = add(&b, 100, 100);
    compose(&b);
    assert_null(row_of(&b, a)); /* paused before it started */
    apply(&b);
    a->wishes = 0;
    step(&b);
    step(&b);
    a->wishes = c->wishes = TR_CONTROL_PAUSE;
    compose(&b);
    assert_int_equal(b.s.n_rows, 0);
    a->wishes = 0;
    compose(&b);
    assert_non_null(row_of(&b, a));
    assert_null(row_of(&b, c));
    drop(&b, a);
    drop(&b, c);
    bench_free(&b);
}

static void
due_times(void **state)
{
    bench_t b;
    tr_request_t *a, *c;

    (void) state;
    bench_init(&b, 100, 8, 64);
    a = add(&b, 1, 100);
    c = add(&b, 1, 100);
    step(&b);
    b.now = 1000;
    a->sequences[0].due_us = 1500;
    c->sequences[0].due_us = 1200;
    compose(&b);
    assert_int_equal(b.s.n_rows, 0);
    assert_int_equal(b.s.next_due_us, 1200);
    b.now = 1200;
    compose(&b);
    assert_null(row_of(&b, a));
    assert_non_null(row_of(&b, c));
    assert_int_equal(b.s.next_due_us, 1500);
    drop(&b, a);
    drop(&b, c);
    bench_free(&b);
}

/* An echoed prompt's last position waits until its text is out; with scores
 * the positions before it are scored. */
static void
echo_goes_first(void **state)
{
    bench_t b;
    tr_request_t *r;
    tr_sampled_t scores[10];

    (void) state;
    bench_init(&b, 100, 8, 64);
    r = make_request(&b, 10, 5, 1);
    r->echo = true;
    r->sequences[0].prompt_scores = scores;
    tr_scheduler_add(&b.s, r);
    compose(&b);
    assert_int_equal(b.s.rows[0].n, 9);
    assert_false(b.s.rows[0].sample);
    assert_true(b.s.rows[0].score);
    apply(&b);
    compose(&b);
    assert_int_equal(b.s.n_rows, 0);
    r->sequences[0].echoed = 10;
    compose(&b);
    assert_int_equal(b.s.rows[0].pos, 9);
    assert_true(b.s.rows[0].sample);
    assert_false(b.s.rows[0].score);
    drop(&b, r);

    r = make_request(&b, 10, 0, 1); /* nothing to sample, nothing to score */
    r->echo = true;
    tr_scheduler_add(&b.s, r);
    compose(&b);
    assert_int_equal(b.s.n_rows, 0);
    assert_int_equal(r->sequences[0].state, TR_SEQ_RUNNING);
    drop(&b, r);
    bench_free(&b);
}

/* ---- admission ---------------------------------------------------------- */

static void
admission_in_order(void **state)
{
    bench_t b;
    tr_request_t *r[5], *big, *small;
    uint32_t i;

    (void) state;
    bench_init(&b, 100, 3, 64);
    for (i = 0; i < 5; i++) {
        r[i] = add(&b, 4, 2 + i);
    }
    compose(&b);
    assert_int_equal(b.s.n_running, 3); /* max_num_seqs */
    assert_int_equal(b.s.n_running_requests, 3);
    assert_int_equal(r[2]->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(r[3]->sequences[0].state, TR_SEQ_WAITING);
    apply(&b);
    step(&b); /* r[0] is done */
    compose(&b);
    assert_int_equal(r[3]->sequences[0].state, TR_SEQ_RUNNING);
    for (i = 0; i < 5; i++) {
        drop(&b, r[i]);
    }
    /* a small one does not overtake a big one that waits for pages */
    r[0] = add(&b, 60 * 32, 2);
    step(&b);
    big = add(&b, 60 * 32, 2);
    small = add(&b, 1, 2);
    step(&b);
    assert_int_equal(big->sequences[0].state, TR_SEQ_WAITING);
    assert_int_equal(small->sequences[0].state, TR_SEQ_WAITING);
    drop(&b, r[0]);
    step(&b);
    assert_int_equal(big->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(small->sequences[0].state, TR_SEQ_RUNNING);
    drop(&b, big);
    drop(&b, small);
    bench_free(&b);
}

static void
never_fits(void **state)
{
    bench_t b;
    tr_request_t *r;

    (void) state;
    bench_init(&b, 10, 3, 64);
    r = make_request(&b, 300, 20, 1);
    assert_true(tr_scheduler_fits(b.kv, r)); /* 320 tokens, 10 pages */
    tr_scheduler_add(&b.s, r);
    while (r->sequences[0].state != TR_SEQ_DONE) {
        step(&b);
        assert_true(b.s.n_rows != 0);
    }
    tr_request_free(r);
    r = make_request(&b, 300, 21, 1);
    assert_false(tr_scheduler_fits(b.kv, r));
    tr_request_free(r);
    bench_free(&b);
}

static void
choices_copy_the_prompt(void **state)
{
    bench_t b;
    tr_request_t *r;
    uint32_t i, computed = 0;

    (void) state;
    bench_init(&b, 200, 8, 64);
    r = make_request(&b, 100, 3, 4);
    tr_scheduler_add(&b.s, r);
    while (r->open_sequences != 0) {
        compose(&b);
        for (i = 0; i < b.s.n_rows; i++) {
            const tr_row_t *row = &b.s.rows[i];

            computed += row->n;
            if (row->sequence->choice != 0) {
                assert_true(row->pos >= 99);
            }
        }
        apply(&b);
    }
    /* one prompt, and for each choice the last position and two tokens */
    assert_int_equal(computed, 99 + 4 * 3);
    tr_request_free(r);
    bench_free(&b);
}

/* ---- preemption --------------------------------------------------------- */

static void
youngest_goes_first(void **state)
{
    bench_t b;
    tr_request_t *r[3];
    uint32_t i;

    (void) state;
    bench_init(&b, 6, 4, 1000);
    for (i = 0; i < 3; i++) { /* two pages each, a third comes at 65 */
        r[i] = add(&b, 60, 100);
    }
    for (i = 0; i < 5; i++) {
        step(&b);
    }
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
    for (i = 0; i < 3; i++) {
        drop(&b, r[i]);
    }
    bench_free(&b);
}

static void
paused_goes_before_youngest(void **state)
{
    bench_t b;
    tr_request_t *r[3];
    uint32_t i;

    (void) state;
    bench_init(&b, 6, 4, 1000);
    for (i = 0; i < 3; i++) {
        r[i] = add(&b, 60, 100);
    }
    for (i = 0; i < 5; i++) {
        step(&b);
    }
    r[0]->wishes = TR_CONTROL_PAUSE; /* the oldest of all */
    step(&b);
    assert_int_equal(r[0]->sequences[0].state, TR_SEQ_WAITING);
    assert_int_equal(r[1]->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(r[2]->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(r[2]->preemptions, 0);
    for (i = 0; i < 3; i++) {
        drop(&b, r[i]);
    }
    bench_free(&b);
}

/* Paused ones also make way for one that waits: for a slot, and for pages. */
static void
paused_make_way(void **state)
{
    bench_t b;
    tr_request_t *a, *c, *d;

    (void) state;
    bench_init(&b, 10, 2, 1000);
    a = add(&b, 100, 100);
    c = add(&b, 100, 100);
    step(&b);
    assert_int_equal(b.s.n_running, 2);
    d = add(&b, 200, 100);
    step(&b);
    assert_int_equal(d->sequences[0].state, TR_SEQ_WAITING);
    a->wishes = c->wishes = TR_CONTROL_PAUSE;
    step(&b);
    assert_int_equal(d->sequences[0].state, TR_SEQ_RUNNING);
    a->wishes = c->wishes = 0;
    drop(&b, d);
    step(&b);
    assert_int_equal(b.s.n_running, 2);
    drop(&b, a);
    drop(&b, c);
    bench_free(&b);
}

/* ---- compression -------------------------------------------------------- */

static uint64_t
used(const bench_t *b)
{
    return tr_kv_pages(b->kv) - tr_kv_free_pages(b->kv);
}

/* uniform 8/4 at head size 64: 24 tokens a page at 16 bits, 64 compressed. */
static void
compressed_after_its_prompt(void **state)
{
    const tr_page_plan_t *plan;
    bench_t b;
    tr_request_t *r;
    tr_sequence_t *q;
    uint32_t dense, list;

    (void) state;
    bench_init_policy(&b, UNIFORM, 100, 10, 4, 200);
    plan = tr_kv_plan(b.kv);
    dense = plan->layout[0].tokens;
    list = plan->layout[1].tokens;
    assert_true(list >= 2 * dense);
    r = add(&b, 10 * list, 3);
    q = &r->sequences[0];
    while (q->computed < 10 * list) {
        step(&b);
        assert_int_equal(used(&b), (10 * list + dense - 1) / dense);
        assert_true(b.s.prompt_pages > used(&b));
    }
    assert_int_equal(q->len, 10 * list + 1);
    compose(&b); /* compressed, and its second token is on its way */
    assert_int_equal(b.s.n_rows, 1);
    assert_int_equal(b.s.rows[0].pos, 10 * list);
    assert_int_equal(used(&b), 11);
    assert_int_equal(b.s.prompt_pages + b.s.promised, 0);
    apply(&b);
    drop(&b, r);
    bench_free(&b);
}

/* A prompt without room for its copy keeps others out, but not when its client
 * does not read: then it makes way. */
static void
blocked_prompt_makes_way(void **state)
{
    bench_t b;
    tr_request_t *older, *q, *d;
    uint32_t dense, len;
    int32_t hog;

    (void) state;
    bench_init_policy(&b, UNIFORM, 60, 0, 4, 400);
    dense = tr_kv_plan(b.kv)->layout[0].tokens;
    len = 10 * dense;
    older = add(&b, 2, 300);
    step(&b);
    q = add(&b, len, 300);
    while (q->sequences[0].computed < len) {
        step(&b);
    }
    hog = tr_kv_open(b.kv, NULL); /* takes all that is free */
    assert_true(hog >= 0);
    assert_int_equal(tr_kv_reserve(b.kv, hog,
                                   (uint32_t) tr_kv_free_pages(b.kv) * dense),
                     TR_OK);
    assert_int_equal(tr_kv_free_pages(b.kv), 0);
    d = add(&b, 1, 2);
    compose(&b); /* they wait for the older one */
    assert_int_equal(q->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(d->sequences[0].state, TR_SEQ_WAITING);
    assert_true(b.s.stalled);
    older->wishes = q->wishes = TR_CONTROL_PAUSE;
    compose(&b);
    assert_false(b.s.stalled);
    assert_int_equal(q->sequences[0].state, TR_SEQ_WAITING);
    assert_int_equal(d->sequences[0].state, TR_SEQ_RUNNING);
    tr_kv_close(b.kv, hog);
    drop(&b, older);
    drop(&b, q);
    drop(&b, d);
    bench_free(&b);
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

/* A prompt that the kernel refuses to compress is named, and no row of it is in
 * a batch that runs after its end; those beside it go on. */
static void
refused_prompt(void **state)
{
    static tr_kernels_t refusing;
    bench_t b;
    tr_request_t *old, *r;

    (void) state;
    refusing = *tr_kernels_cpu(NULL);
    kernels = &refusing;
    bench_init_policy(&b, UNIFORM, 60, 0, 4, 400);
    kernels = NULL;
    old = add(&b, 30, 300);
    step(&b);
    step(&b);
    r = add(&b, 100, 300);
    step(&b);
    refusing.kv_compress = refuse_compress;
    compose(&b);
    assert_ptr_equal(b.s.hopeless, &r->sequences[0]);
    assert_int_equal(b.s.n_rows, 0);
    drop(&b, r);
    compose(&b);
    assert_null(b.s.hopeless);
    assert_non_null(row_of(&b, old));
    apply(&b);
    drop(&b, old);
    bench_free(&b);
}

/* Half of the pool is for prompts, but one may have more. */
static void
prompts_have_a_share(void **state)
{
    bench_t b;
    tr_request_t *r[3], *big;
    uint32_t i, dense;

    (void) state;
    bench_init_policy(&b, UNIFORM, 100, 10, 4, 4);
    dense = tr_kv_plan(b.kv)->layout[0].tokens;
    for (i = 0; i < 3; i++) {
        r[i] = add(&b, 15 * dense, 3);
    }
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
    for (i = 0; i < 3; i++) {
        drop(&b, r[i]);
    }
    big = add(&b, 60 * dense, 3);
    assert_true(tr_scheduler_fits(b.kv, big));
    compose(&b);
    assert_int_equal(big->sequences[0].state, TR_SEQ_RUNNING);
    assert_true(used(&b) > 50);
    drop(&b, big);
    bench_free(&b);
}

/* The first choice stops before the last token, the others copy what is there,
 * and each computes that token. */
static void
choices_share_before_the_end(void **state)
{
    int policy;

    (void) state;
    for (policy = UNIFORM; policy <= QUEST; policy++) {
        bench_t b;
        tr_request_t *r;
        uint32_t i, computed = 0, ends = 0;

        bench_init_policy(&b, policy, 200, 10, 8, 64);
        r = make_request(&b, 100, 3, 4);
        tr_scheduler_add(&b.s, r);
        while (r->open_sequences != 0) {
            compose(&b);
            for (i = 0; i < b.s.n_rows; i++) {
                const tr_row_t *row = &b.s.rows[i];

                computed += row->n;
                ends += row->pos == 99 && row->n == 1;
                if (row->sequence->choice != 0) {
                    assert_true(row->pos >= 99);
                }
            }
            assert_true(b.s.n_rows != 0);
            apply(&b);
        }
        assert_int_equal(computed, 99 + 4 * 3);
        assert_int_equal(ends, 4);
        tr_request_free(r);
        bench_free(&b);
    }
}

/* What is compressed keeps what it has computed. */
static void
swapped_and_back(void **state)
{
    bench_t b;
    tr_request_t *r[3];
    tr_sequence_t *q;
    uint32_t i, computed = 0, list;

    (void) state;
    bench_init_policy(&b, UNIFORM, 5, 10, 4, 1000);
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
    for (i = 0; i < 3; i++) {
        drop(&b, r[i]);
    }
    bench_free(&b);
}

/* Without room there, prompt and output so far are one prompt. */
static void
no_room_to_swap(void **state)
{
    bench_t b;
    tr_request_t *r[3];
    tr_sequence_t *q;
    uint32_t i, list, len;

    (void) state;
    bench_init_policy(&b, UNIFORM, 5, 0, 4, 1000);
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
    bench_free(&b);
}

/* A paused one that is swapped out still has a slot, until nobody else finds
 * one. */
static void
swapped_give_up_slots(void **state)
{
    bench_t b;
    tr_request_t *r[6];
    uint32_t i;

    (void) state;
    bench_init_policy(&b, UNIFORM, 200, 200, 1, 1000);
    for (i = 0; i < 6; i++) {
        r[i] = add(&b, 50, 100);
        step(&b);
        step(&b);
        assert_int_equal(r[i]->sequences[0].state, TR_SEQ_RUNNING);
        r[i]->wishes = TR_CONTROL_PAUSE;
    }
    assert_true(b.s.recomputations > 0);
    for (i = 0; i < 6; i++) {
        uint32_t k;

        for (k = 0; k < 6; k++) {
            r[k]->wishes = k == i ? 0 : TR_CONTROL_PAUSE;
        }
        while (r[i]->sequences[0].state != TR_SEQ_DONE) {
            compose(&b);
            assert_true(b.s.n_rows != 0 || b.s.changes != 0);
            apply(&b);
        }
    }
    for (i = 0; i < 6; i++) {
        assert_int_equal(r[i]->sequences[0].len, 150);
        tr_request_free(r[i]);
    }
    bench_free(&b);
}

/* What outgrows the whole pool is named, so that the loop ends it. */
static void
hopeless(void **state)
{
    int policy;

    (void) state;
    for (policy = FULL; policy <= DIFFKV; policy++) {
        bench_t b;
        tr_request_t *r;
        uint32_t i;

        bench_init_policy(&b, policy, 14, 5, 4, 1000);
        r = add(&b, 20, 5000);
        assert_false(tr_scheduler_fits(b.kv, r)); /* nobody asked */
        for (i = 0; b.s.hopeless == NULL; i++) {
            assert_true(i < 5000);
            step(&b);
        }
        assert_ptr_equal(b.s.hopeless, &r->sequences[0]);
        assert_int_equal(b.s.n_rows, 0);
        assert_true(r->sequences[0].len > 100);
        drop(&b, r);
        bench_free(&b);
    }
}

/* ---- outlets ------------------------------------------------------------ */

static void
fill(tr_outlet_t *o)
{
    static const char text[1000];

    while (tr_outlet_delta(o, 1, 0, 1, text, sizeof(text), NULL, 0) == TR_OK) {
    }
    outlet_show(o);
}

static void
drain(tr_ring_consumer_t *peer)
{
    static uint8_t buf[1 << 18];
    tr_record_t rec;

    while (tr_ring_get(peer, &rec, buf, sizeof(buf)) == TR_OK) {
    }
    tr_ring_release(peer);
}

static void
full_outlet_stops_its_own(void **state)
{
    bench_t b;
    tr_request_t *a, *c, *d;

    (void) state;
    bench_init(&b, 10, 2, 1000);
    a = make_request(&b, 32 * 4, 100, 1);
    a->outlet = &b.outlet[1];
    tr_scheduler_add(&b.s, a);
    c = add(&b, 10, 1000);
    step(&b);
    step(&b);
    fill(&b.outlet[1]);
    b.now = 5000;
    compose(&b);
    assert_null(row_of(&b, a));
    assert_non_null(row_of(&b, c));
    assert_int_equal(b.outlet[1].full_since_us, 5000);
    apply(&b);
    step(&b);
    assert_int_equal(b.outlet[1].full_since_us, 5000);
    /* not at once, but after a while it gives up its slot and pages */
    d = add(&b, 32 * 4, 10);
    step(&b);
    assert_int_equal(d->sequences[0].state, TR_SEQ_WAITING);
    b.now = 5000 + TR_SCHEDULER_FULL_US;
    step(&b);
    assert_int_equal(d->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(a->sequences[0].state, TR_SEQ_WAITING);
    drop(&b, d);
    drain(&b.peer[1]);
    compose(&b);
    assert_non_null(row_of(&b, a));
    assert_int_equal(b.outlet[1].full_since_us, 0);
    drop(&b, a);
    drop(&b, c);
    bench_free(&b);
}

/* An outlet that takes a few sequences a step serves all of them alike. */
static void
small_outlet_rotates(void **state)
{
    bench_t b;
    tr_request_t *r[60];
    uint32_t i, least = UINT32_MAX, most = 0;

    (void) state;
    bench_init(&b, 600, 64, 512);
    for (i = 0; i < 60; i++) {
        r[i] = make_request(&b, 1, 5000, 1);
        r[i]->outlet = &b.outlet[1];
        tr_scheduler_add(&b.s, r[i]);
    }
    for (i = 0; i < 300; i++) {
        step(&b);
        assert_in_range(b.s.n_rows, 10, 40);
        assert_int_equal(b.outlet[1].full_since_us, 0);
    }
    for (i = 0; i < 60; i++) {
        uint32_t len = r[i]->sequences[0].len;

        least = len < least ? len : least;
        most = len > most ? len : most;
        drop(&b, r[i]);
    }
    assert_true(most - least <= 4);
    bench_free(&b);
}

/* ---- a storm ------------------------------------------------------------ */

#define ALIVE 40

typedef struct {
    bench_t b;
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
        r->wishes ^= TR_CONTROL_PAUSE;
    }
}

static void
storm_batch(const storm_t *st)
{
    const tr_scheduler_t *s = &st->b.s;
    uint32_t tokens = 0, i, k;

    for (i = 0; i < s->n_rows; i++) {
        const tr_row_t *row = &s->rows[i];
        const tr_sequence_t *q = row->sequence;
        tr_kv_usage_t u;

        assert_int_equal(q->state, TR_SEQ_RUNNING);
        assert_int_equal(row->pos, q->computed);
        assert_true(row->n >= 1 && row->pos + row->n <= tr_sequence_known(q));
        assert_int_equal(row->sample,
                         row->pos + row->n == tr_sequence_known(q));
        /* what nobody knows comes alone, and it is not the last */
        assert_true(row->pos + row->n <= q->len || row->n == 1);
        assert_true(row->pos + row->n < q->cap);
        assert_int_equal(q->request->wishes & TR_CONTROL_PAUSE, 0);
        tr_kv_usage(st->b.kv, q->kv_slot, &u);
        assert_true(u.tokens >= row->pos + row->n);
        for (k = 0; k < i; k++) {
            assert_ptr_not_equal(q, s->rows[k].sequence);
        }
        tokens += row->n;
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
        if (st->r[i] != NULL && st->r[i]->wishes == 0) {
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
    bench_init_policy(&st->b, policy, pages, swap_pages, seqs, tokens);
    for (i = 0; i < 6000; i++) {
        for (k = random_below(3); k != 0; k--) {
            storm_change(st);
        }
        compose(&st->b);
        storm_batch(st);
        /* somebody who can run does, at the latest after a preemption */
        composed = st->b.s.n_rows != 0;
        idle = !composed && st->b.s.n_flying == 0 && storm_can_work(st)
                   ? idle + 1
                   : 0;
        assert_true(idle < 3);
        if (!late) {
            apply(&st->b);
        } else {
            if (composed) {
                tr_scheduler_depart(&st->b.s);
            }
            if (st->b.s.n_flying > composed) {
                land(&st->b, true);
            }
        }
        assert_true(tr_scheduler_sound(&st->b.s));
        storm_reap(st);
    }
    while (st->b.s.n_flying != 0) {
        land(&st->b, false);
    }
    storm_reap(st);
    assert_int_equal(st->b.outlet[0].owed, 0);
    /* without arrivals and pauses, everything comes to its end */
    for (i = 0; i < ALIVE; i++) {
        if (st->r[i] != NULL) {
            st->r[i]->wishes = 0;
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
    bench_free(&st->b);
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
        cmocka_unit_test(one_request),
        cmocka_unit_test(decode_before_prompts),
        cmocka_unit_test(decode_more_than_a_batch),
        cmocka_unit_test(prompts_alternate),
        cmocka_unit_test(prompts_alternate_by_request),
        cmocka_unit_test(paused_are_left_out),
        cmocka_unit_test(due_times),
        cmocka_unit_test(echo_goes_first),
        cmocka_unit_test(admission_in_order),
        cmocka_unit_test(never_fits),
        cmocka_unit_test(choices_copy_the_prompt),
        cmocka_unit_test(youngest_goes_first),
        cmocka_unit_test(paused_goes_before_youngest),
        cmocka_unit_test(paused_make_way),
        cmocka_unit_test(full_outlet_stops_its_own),
        cmocka_unit_test(small_outlet_rotates),
        cmocka_unit_test(compressed_after_its_prompt),
        cmocka_unit_test(blocked_prompt_makes_way),
        cmocka_unit_test(refused_prompt),
        cmocka_unit_test(prompts_have_a_share),
        cmocka_unit_test(choices_share_before_the_end),
        cmocka_unit_test(swapped_and_back),
        cmocka_unit_test(no_room_to_swap),
        cmocka_unit_test(swapped_give_up_slots),
        cmocka_unit_test(hopeless),
        cmocka_unit_test(storms),
        cmocka_unit_test(storms_of_policies),
    };

    return cmocka_run_group_tests(tests, make_policies, free_policies);
}
