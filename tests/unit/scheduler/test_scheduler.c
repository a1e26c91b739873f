/*
 * The scheduler alone: who is admitted, what a batch holds, what a full
 * response writer stops.  Requests are made by hand and "run" by counting.  Who
 * has to make way for whom is test_scheduler_pages.c; test_scheduler_storm.c
 * plays at random.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- batches ------------------------------------------------------------ */

static void
one_request(void **state)
{
    fixture_t b;
    tr_request_t *r;
    uint32_t i;

    (void) state;
    fixture_init(&b, 100, 4, 64);
    compose(&b);
    assert_int_equal(b.s.n_chunks, 0);
    r = add(&b, 100, 3);
    compose(&b);
    assert_int_equal(b.s.n_chunks, 1);
    assert_int_equal(b.s.chunks[0].pos, 0);
    assert_int_equal(b.s.chunks[0].n, 64);
    assert_false(b.s.chunks[0].sample);
    apply(&b);
    compose(&b);
    assert_int_equal(b.s.chunks[0].pos, 64);
    assert_int_equal(b.s.chunks[0].n, 36);
    assert_true(b.s.chunks[0].sample);
    apply(&b);
    for (i = 0; i < 2; i++) {
        compose(&b);
        assert_int_equal(b.s.chunks[0].pos, 100 + i);
        assert_int_equal(b.s.chunks[0].n, 1);
        assert_true(b.s.chunks[0].sample);
        apply(&b);
    }
    assert_int_equal(r->sequences[0].state, TR_SEQ_DONE);
    tr_request_free(r);
    fixture_free(&b);
}

static void
decode_before_prompts(void **state)
{
    fixture_t b;
    tr_request_t *old[3], *prompt;
    uint32_t i;

    (void) state;
    fixture_init(&b, 100, 8, 32);
    add_all(&b, old, 3, 4, 50);
    step(&b);
    prompt = add(&b, 200, 1);
    compose(&b);
    assert_int_equal(b.s.n_chunks, 4);
    assert_int_equal(b.s.n_tokens, 32);
    for (i = 0; i < 3; i++) {
        assert_ptr_equal(b.s.chunks[i].sequence->request, old[i]);
        assert_int_equal(b.s.chunks[i].n, 1);
    }
    assert_ptr_equal(b.s.chunks[3].sequence->request, prompt);
    assert_int_equal(b.s.chunks[3].n, 29);
    apply(&b);
    drop_all(&b, old, 3);
    drop(&b, prompt);
    fixture_free(&b);
}

/* More decoding sequences than a batch takes: all advance alike, and a prompt
 * is not starved. */
static void
decode_more_than_a_batch(void **state)
{
    fixture_t b;
    tr_request_t *r[20], *prompt;
    uint32_t i;

    (void) state;
    fixture_init(&b, 200, 32, 8);
    add_all(&b, r, 20, 1, 1000);
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
    drop_all(&b, r, 20);
    tr_request_free(prompt);
    fixture_free(&b);
}

static void
prompts_alternate(void **state)
{
    fixture_t b;
    tr_request_t *a, *c, *late;
    uint32_t i;

    (void) state;
    fixture_init(&b, 500, 8, 64);
    a = add(&b, 1000, 1);
    c = add(&b, 1000, 1);
    for (i = 0; i < 6; i++) {
        compose(&b);
        assert_int_equal(b.s.n_chunks, 1);
        assert_ptr_equal(b.s.chunks[0].sequence->request, i % 2 == 0 ? a : c);
        apply(&b);
    }
    /* a short one that comes later has its turn at once */
    late = add(&b, 10, 1);
    compose(&b);
    assert_ptr_equal(b.s.chunks[0].sequence->request, late);
    assert_int_equal(b.s.chunks[0].n, 10);
    assert_ptr_equal(b.s.chunks[1].sequence->request, a);
    assert_int_equal(b.s.chunks[1].n, 54);
    apply(&b);
    drop(&b, a);
    drop(&b, c);
    tr_request_free(late);
    fixture_free(&b);
}

/* Turns are between requests: many prompts in one do not get more. */
static void
prompts_alternate_by_request(void **state)
{
    fixture_t b;
    tr_request_t *many, *one;
    uint32_t i, of_one = 0, of_many = 0;

    (void) state;
    fixture_init(&b, 2000, 16, 64);
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
    fixture_free(&b);
}

/* After the loss of an engine: the shortest is ready first, whoever came first,
 * and has not to share its steps with the others. */
static void
moved_shortest_first(void **state)
{
    static const uint32_t lens[] = { 300, 100, 200 };
    fixture_t b;
    tr_request_t *r[3];
    uint32_t i, k, ready[3] = { 0, 0, 0 };

    (void) state;
    fixture_init(&b, 500, 8, 50);
    for (i = 0; i < 3; i++) {
        r[i] = make_request(&b, lens[i], 1000, 1);
        r[i]->migrations = 1;
        tr_scheduler_add(&b.s, r[i]);
    }
    for (k = 1; k < 20; k++) {
        step(&b);
        for (i = 0; i < 3; i++) {
            if (ready[i] == 0 && r[i]->sequences[0].len > lens[i]) {
                ready[i] = k;
            }
        }
    }
    assert_int_equal(ready[1], 2);
    assert_int_equal(ready[2], 7); /* 200 in steps of 49, with the first's */
    assert_true(ready[0] > ready[2]);
    drop_all(&b, r, 3);
    fixture_free(&b);
}

/* Half of a batch, as long as a new prompt is there. */
static void
moved_leave_half(void **state)
{
    fixture_t b;
    tr_request_t *moved[2], *new;
    uint32_t i, left = 100;

    (void) state;
    fixture_init(&b, 500, 8, 64);
    for (i = 0; i < 2; i++) {
        moved[i] = make_request(&b, 1000, 1, 1);
        moved[i]->migrations = 1;
        tr_scheduler_add(&b.s, moved[i]);
    }
    step(&b);
    assert_int_equal(b.s.n_tokens, 64);
    new = add(&b, 100, 1);
    while (left != 0) {
        const tr_chunk_t *row;

        compose(&b);
        row = row_of(&b, new);
        assert_non_null(row);
        assert_true(row->n >= 32 || row->n == left);
        left -= row->n;
        apply(&b);
    }
    step(&b);
    assert_int_equal(b.s.n_tokens, 64);
    drop_all(&b, moved, 2);
    tr_request_free(new);
    fixture_free(&b);
}

static void
paused_are_left_out(void **state)
{
    fixture_t b;
    tr_request_t *a, *c;

    (void) state;
    fixture_init(&b, 100, 8, 64);
    a = add(&b, 10, 100);
    a->commands = TR_CONTROL_PAUSE;
    c = add(&b, 100, 100);
    compose(&b);
    assert_null(row_of(&b, a)); /* paused before it started */
    apply(&b);
    a->commands = 0;
    step(&b);
    step(&b);
    a->commands = c->commands = TR_CONTROL_PAUSE;
    compose(&b);
    assert_int_equal(b.s.n_chunks, 0);
    a->commands = 0;
    compose(&b);
    assert_non_null(row_of(&b, a));
    assert_null(row_of(&b, c));
    drop(&b, a);
    drop(&b, c);
    fixture_free(&b);
}

static void
due_times(void **state)
{
    fixture_t b;
    tr_request_t *a, *c;

    (void) state;
    fixture_init(&b, 100, 8, 64);
    a = add(&b, 1, 100);
    c = add(&b, 1, 100);
    step(&b);
    b.now = 1000;
    a->sequences[0].due_us = 1500;
    c->sequences[0].due_us = 1200;
    compose(&b);
    assert_int_equal(b.s.n_chunks, 0);
    assert_int_equal(b.s.next_due_us, 1200);
    b.now = 1200;
    compose(&b);
    assert_null(row_of(&b, a));
    assert_non_null(row_of(&b, c));
    assert_int_equal(b.s.next_due_us, 1500);
    drop(&b, a);
    drop(&b, c);
    fixture_free(&b);
}

/* An echoed prompt's last position waits until its text is out; with scores
 * the positions before it are scored. */
static void
echo_goes_first(void **state)
{
    fixture_t b;
    tr_request_t *r;
    tr_sampled_t scores[10];

    (void) state;
    fixture_init(&b, 100, 8, 64);
    r = make_request(&b, 10, 5, 1);
    r->echo = true;
    r->sequences[0].prompt_scores = scores;
    tr_scheduler_add(&b.s, r);
    compose(&b);
    assert_int_equal(b.s.chunks[0].n, 9);
    assert_false(b.s.chunks[0].sample);
    assert_true(b.s.chunks[0].score);
    apply(&b);
    compose(&b);
    assert_int_equal(b.s.n_chunks, 0);
    r->sequences[0].echoed = 10;
    compose(&b);
    assert_int_equal(b.s.chunks[0].pos, 9);
    assert_true(b.s.chunks[0].sample);
    assert_false(b.s.chunks[0].score);
    drop(&b, r);

    r = make_request(&b, 10, 0, 1); /* nothing to sample, nothing to score */
    r->echo = true;
    tr_scheduler_add(&b.s, r);
    compose(&b);
    assert_int_equal(b.s.n_chunks, 0);
    assert_int_equal(r->sequences[0].state, TR_SEQ_RUNNING);
    drop(&b, r);
    fixture_free(&b);
}

/* ---- admission ---------------------------------------------------------- */

static void
admission_in_order(void **state)
{
    fixture_t b;
    tr_request_t *r[5], *big, *small;
    uint32_t i;

    (void) state;
    fixture_init(&b, 100, 3, 64);
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
    drop_all(&b, r, 5);
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
    fixture_free(&b);
}

/* A step of those that run looks at who is next, and at nobody behind: their
 * memory is out of reach meanwhile. */
static void
who_waits_is_left_alone(void **state)
{
    const size_t page = (size_t) sysconf(_SC_PAGESIZE);
    fixture_t b;
    tr_request_t *old[2], *next, *hidden;
    tr_sequence_t *own;
    uint32_t i;

    (void) state;
    fixture_init(&b, 100, 2, 64);
    add_all(&b, old, 2, 4, 50);
    step(&b);
    next = add(&b, 4, 50);
    hidden = make_request(&b, 4, 50, 1);
    own = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
               -1, 0);
    assert_ptr_not_equal(own, MAP_FAILED);
    memcpy(own, hidden->sequences, sizeof(*own));
    hidden->sequences = own;
    tr_scheduler_add(&b.s, hidden);
    for (i = 0; i < 3; i++) {
        assert_int_equal(mprotect(own, page, PROT_NONE), 0);
        tr_scheduler_compose(&b.s, b.now++);
        assert_int_equal(b.s.n_chunks, 2);
        assert_int_equal(mprotect(own, page, PROT_READ | PROT_WRITE), 0);
        assert_true(tr_scheduler_sound(&b.s));
        apply(&b);
    }
    assert_int_equal(next->sequences[0].state, TR_SEQ_WAITING);
    drop_all(&b, old, 2);
    step(&b);
    assert_int_equal(own->state, TR_SEQ_RUNNING);
    drop(&b, next);
    drop(&b, hidden);
    munmap(own, page);
    fixture_free(&b);
}

static void
never_fits(void **state)
{
    fixture_t b;
    tr_request_t *r;

    (void) state;
    fixture_init(&b, 10, 3, 64);
    r = make_request(&b, 300, 20, 1);
    assert_true(tr_scheduler_fits(b.kv, r)); /* 320 tokens, 10 pages */
    tr_scheduler_add(&b.s, r);
    while (r->sequences[0].state != TR_SEQ_DONE) {
        step(&b);
        assert_true(b.s.n_chunks != 0);
    }
    tr_request_free(r);
    r = make_request(&b, 300, 21, 1);
    assert_false(tr_scheduler_fits(b.kv, r));
    tr_request_free(r);
    fixture_free(&b);
}

static void
choices_copy_the_prompt(void **state)
{
    fixture_t b;
    tr_request_t *r;
    uint32_t i, computed = 0;

    (void) state;
    fixture_init(&b, 200, 8, 64);
    r = make_request(&b, 100, 3, 4);
    tr_scheduler_add(&b.s, r);
    while (r->open_sequences != 0) {
        compose(&b);
        for (i = 0; i < b.s.n_chunks; i++) {
            const tr_chunk_t *chunk = &b.s.chunks[i];

            computed += chunk->n;
            if (chunk->sequence->choice != 0) {
                assert_true(chunk->pos >= 99);
            }
        }
        apply(&b);
    }
    /* one prompt, and for each choice the last position and two tokens */
    assert_int_equal(computed, 99 + 4 * 3);
    tr_request_free(r);
    fixture_free(&b);
}

/* ---- response writers
 * ------------------------------------------------------------ */

/* The linker (Makefile) sends the scheduler's questions here. */
bool __real_tr_response_writer_has_room(tr_response_writer_t *o, uint32_t n,
                                        uint32_t logprobs);
bool __wrap_tr_response_writer_has_room(tr_response_writer_t *o, uint32_t n,
                                        uint32_t logprobs);

static uint32_t asked;

bool
__wrap_tr_response_writer_has_room(tr_response_writer_t *o, uint32_t n,
                                   uint32_t logprobs)
{
    asked++;
    return __real_tr_response_writer_has_room(o, n, logprobs);
}

static void
full_ring_stops_its_own(void **state)
{
    fixture_t b;
    tr_request_t *a, *c, *d;

    (void) state;
    fixture_init(&b, 10, 2, 1000);
    a = make_request(&b, 32 * 4, 100, 1);
    a->writer = &b.writer[1];
    tr_scheduler_add(&b.s, a);
    c = add(&b, 10, 1000);
    step(&b);
    step(&b);
    writer_fill(&b.writer[1]);
    b.now = 5000;
    compose(&b);
    assert_null(row_of(&b, a));
    assert_non_null(row_of(&b, c));
    assert_int_equal(b.writer[1].full_since_us, 5000);
    apply(&b);
    step(&b);
    assert_int_equal(b.writer[1].full_since_us, 5000);
    /* not at once, but after a while it gives up its slot and pages */
    d = add(&b, 32 * 4, 10);
    step(&b);
    assert_int_equal(d->sequences[0].state, TR_SEQ_WAITING);
    b.now = 5000 + TR_SCHEDULER_FULL_US;
    step(&b);
    assert_int_equal(d->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(a->sequences[0].state, TR_SEQ_WAITING);
    drop(&b, d);
    writer_drain(&b.peer[1]);
    compose(&b);
    assert_non_null(row_of(&b, a));
    assert_int_equal(b.writer[1].full_since_us, 0);
    drop(&b, a);
    drop(&b, c);
    fixture_free(&b);
}

/* A response writer that takes a few sequences a step serves all of them
 * alike. */
static void
small_ring_rotates(void **state)
{
    fixture_t b;
    tr_request_t *r[60];
    uint32_t i, least = UINT32_MAX, most = 0;

    (void) state;
    fixture_init(&b, 600, 64, 512);
    for (i = 0; i < 60; i++) {
        r[i] = make_request(&b, 1, 5000, 1);
        r[i]->writer = &b.writer[1];
        tr_scheduler_add(&b.s, r[i]);
    }
    for (i = 0; i < 300; i++) {
        step(&b);
        assert_in_range(b.s.n_chunks, 10, 40);
        assert_int_equal(b.writer[1].full_since_us, 0);
    }
    for (i = 0; i < 60; i++) {
        uint32_t len = r[i]->sequences[0].len;

        least = len < least ? len : least;
        most = len > most ? len : most;
        drop(&b, r[i]);
    }
    assert_true(most - least <= 4);
    fixture_free(&b);
}

/* Of many that wait for one response writer, one asks; and once a batch has
 * taken what there was, nobody else does. */
static void
full_ring_is_asked_once(void **state)
{
    fixture_t b;
    tr_request_t *r[60];
    uint32_t i;

    (void) state;
    fixture_init(&b, 600, 64, 512);
    for (i = 0; i < 60; i++) {
        r[i] = make_request(&b, 1, 5000, 1);
        r[i]->writer = &b.writer[1];
        r[i]->params.logprobs = i < 50 ? -1 : 0;
        tr_scheduler_add(&b.s, r[i]);
    }
    writer_fill(&b.writer[1]);
    asked = 0;
    compose(&b); /* all wait, those without logprobs first */
    assert_int_equal(b.s.n_chunks, 0);
    assert_int_equal(asked, 1);
    writer_drain(&b.peer[1]);
    step(&b); /* all are admitted, and as many run as there is room for */
    assert_in_range(b.s.n_chunks, 10, 40);
    assert_int_equal(b.s.n_running, 60);
    asked = 0;
    compose(&b);
    assert_in_range(b.s.n_chunks, 10, 40);
    /* each whether it is full, and for its chunk; one of each kind in vain */
    assert_in_range(asked, 60 + b.s.n_chunks, 60 + b.s.n_chunks + 2);
    apply(&b);
    drop_all(&b, r, 60);
    fixture_free(&b);
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
        cmocka_unit_test(moved_shortest_first),
        cmocka_unit_test(moved_leave_half),
        cmocka_unit_test(paused_are_left_out),
        cmocka_unit_test(due_times),
        cmocka_unit_test(echo_goes_first),
        cmocka_unit_test(admission_in_order),
        cmocka_unit_test(who_waits_is_left_alone),
        cmocka_unit_test(never_fits),
        cmocka_unit_test(choices_copy_the_prompt),
        cmocka_unit_test(full_ring_stops_its_own),
        cmocka_unit_test(small_ring_rotates),
        cmocka_unit_test(full_ring_is_asked_once),
    };

    return cmocka_run_group_tests(tests, make_policies, free_policies);
}
