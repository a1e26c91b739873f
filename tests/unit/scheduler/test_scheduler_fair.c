/*
 * Fairness among clients: who was served least is next, by its share; nobody
 * saves up by being away; a full house makes room for who comes; steps are short
 * while several are around.  The bound is that of the paper (fair.h).
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

static tr_request_t *
add_in(fixture_t *b, uint8_t tier, uint64_t tenant, uint32_t share,
       uint32_t prompt, uint32_t max_tokens, uint32_t n)
{
    tr_request_t *r = make_request(b, prompt, max_tokens, n);

    r->tier = tier;
    r->tenant = tenant;
    r->share = share;
    tr_scheduler_add(&b->s, r);
    return r;
}

static tr_request_t *
add_of(fixture_t *b, uint64_t tenant, uint32_t share, uint32_t prompt,
       uint32_t max_tokens, uint32_t n)
{
    return add_in(b, 0, tenant, share, prompt, max_tokens, n);
}

/* n alike, into r. */
static void
add_all_of(fixture_t *b, tr_request_t **r, uint32_t n, uint64_t tenant,
           uint32_t share, uint32_t prompt, uint32_t max_tokens,
           uint32_t choices)
{
    for (uint32_t i = 0; i < n; i++) {
        r[i] = add_of(b, tenant, share, prompt, max_tokens, choices);
    }
}

static uint64_t
served(const tr_request_t *r)
{
    return r->client->served / TR_FAIR_SCALE;
}

static uint32_t
tokens_of(const fixture_t *b, uint64_t tenant)
{
    uint32_t n = 0, i;

    for (i = 0; i < b->s.n_chunks; i++) {
        if (b->s.chunks[i].sequence->request->tenant == tenant) {
            n += b->s.chunks[i].n;
        }
    }
    return n;
}

/* A client that has sent much before is not before one that comes now. */
static void
the_flood_waits(void **state)
{
    fixture_t b;
    tr_request_t *flood[12], *one;
    uint32_t i;

    (void) state;
    fixture_init(&b, 1000, 4, 64);
    add_all_of(&b, flood, 12, 1, 0, 40, 5, 1);
    steps(&b, 3);
    one = add_of(&b, 2, 0, 40, 5, 1);
    for (i = 0; one->sequences[0].state == TR_SEQ_WAITING; i++) {
        assert_true(i < 12); /* when the first place is free */
        step(&b);
    }
    assert_int_equal(flood[11]->sequences[0].state, TR_SEQ_WAITING);
    drop_all(&b, flood, 12);
    drop(&b, one);
    fixture_free(&b);
}

/* First come, first served: then it waits for all of them. */
static void
fifo(void **state)
{
    fixture_t b;
    tr_request_t *flood[12], *one;

    (void) state;
    fixture_init(&b, 1000, 4, 64);
    b.s.fair = false;
    add_all_of(&b, flood, 12, 1, 0, 40, 5, 1);
    one = add_of(&b, 2, 0, 40, 5, 1);
    while (one->sequences[0].state == TR_SEQ_WAITING) {
        step(&b);
    }
    assert_int_not_equal(flood[11]->sequences[0].state, TR_SEQ_WAITING);
    drop_all(&b, flood, 12);
    drop(&b, one);
    fixture_free(&b);
}

/* Nor is a tenant's own flood of another tier, which is not shut out either. */
static void
own_batch_waits(void **state)
{
    fixture_t b;
    tr_request_t *flood[12], *one;
    uint32_t i;

    (void) state;
    fixture_init(&b, 1000, 4, 64);
    for (i = 0; i < 12; i++) {
        flood[i] = add_in(&b, TR_TIER_FLEX, 1, 0, 40, 5, 1);
    }
    steps(&b, 3);
    one = add_of(&b, 1, 0, 40, 5, 1);
    assert_ptr_not_equal(one->client, flood[0]->client);
    for (i = 0; one->sequences[0].state == TR_SEQ_WAITING; i++) {
        assert_true(i < 12);
        step(&b);
    }
    assert_int_equal(flood[11]->sequences[0].state, TR_SEQ_WAITING);
    drop_all(&b, flood, 12);
    drop(&b, one);
    fixture_free(&b);
}

/* A tenant is another client in each tier, whatever it is called. */
static void
tiers_are_apart(void **state)
{
    static const uint64_t names[] = { 0, 1, UINT64_MAX, 0x5555555555555555ull,
                                      0xaaaaaaaaaaaaaaaaull };
    fixture_t b;
    tr_request_t *r[3];
    uint32_t i;

    (void) state;
    fixture_init(&b, 1000, 4, 64);
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        r[0] = add_in(&b, TR_TIER_FLEX, names[i], 0, 40, 5, 1);
        r[1] = add_in(&b, TR_TIER_DEFAULT, names[i], 0, 40, 5, 1);
        r[2] = add_in(&b, TR_TIER_PRIORITY, names[i], 0, 40, 5, 1);
        assert_ptr_not_equal(r[0]->client, r[1]->client);
        assert_ptr_not_equal(r[1]->client, r[2]->client);
        assert_ptr_not_equal(r[2]->client, r[0]->client);
        drop_all(&b, r, 3);
    }
    fixture_free(&b);
}

/* Two that always have something waiting are served alike, within what the
 * places and the batch hold; with shares, or the second in a tier, by these. */
static void
backlogged(uint32_t share, uint32_t size, uint8_t tier)
{
    tr_request_t *queue[2][8];
    uint64_t begun[2], got[2], bound;
    fixture_t b;
    uint32_t i, k, j;

    fixture_init(&b, 4000, 4, 64);
    for (k = 0; k < 2; k++) {
        for (j = 0; j < 8; j++) {
            queue[k][j] = add_in(&b, k == 0 ? 0 : tier, k + 1,
                                 k == 0 ? 1 : share, k == 0 ? size : 40,
                                 k == 0 ? 30 : 9, 1);
        }
    }
    begun[0] = served(queue[0][0]);
    begun[1] = served(queue[1][0]);
    for (i = 0; i < 4000; i++) {
        step(&b);
        for (k = 0; k < 2; k++) {
            for (j = 0; j < 8; j++) {
                if (queue[k][j]->open_sequences == 0) {
                    tr_request_free(queue[k][j]);
                    queue[k][j] = add_in(&b, k == 0 ? 0 : tier, k + 1,
                                         k == 0 ? 1 : share, k == 0 ? size : 40,
                                         k == 0 ? 30 : 9, 1);
                }
            }
        }
    }
    got[0] = served(queue[0][0]) - begun[0];
    got[1] = served(queue[1][0]) - begun[1];
    /* a prompt, or all places with two for each token of an answer */
    bound = 2 * (size > 4 * 2 * 30 ? size : 4 * 2 * 30);
    if (tier == TR_TIER_FLEX) { /* a token counts for more */
        bound *= TR_FAIR_TIER;
    }
    assert_true(got[0] > 10 * bound && got[1] > 10 * bound);
    assert_true(got[0] + bound >= got[1] && got[1] + bound >= got[0]);
    for (k = 0; k < 2; k++) {
        for (j = 0; j < 8; j++) {
            drop(&b, queue[k][j]);
        }
    }
    fixture_free(&b);
}

static void
alike(void **state)
{
    (void) state;
    backlogged(1, 40, 0);
    backlogged(1, 500, 0);
    backlogged(3, 40, 0);
}

static void
by_tiers(void **state)
{
    (void) state;
    backlogged(1, 40, TR_TIER_DEFAULT);
    backlogged(1, 40, TR_TIER_PRIORITY);
    backlogged(1, 40, TR_TIER_FLEX);
}

/* Who was away for long comes back with no more than the others have. */
static void
nobody_saves(void **state)
{
    fixture_t b;
    tr_request_t *busy, *idle, *again;

    (void) state;
    fixture_init(&b, 1000, 4, 64);
    idle = add_of(&b, 2, 0, 10, 1, 1);
    step(&b);
    assert_int_equal(idle->open_sequences, 0);
    tr_request_free(idle);
    busy = add_of(&b, 1, 0, 10, 500, 1);
    steps(&b, 300);
    assert_true(served(busy) >= 600);
    again = add_of(&b, 2, 0, 10, 5, 1);
    assert_true(served(again) >= served(busy));
    drop(&b, again);
    drop(&b, busy);
    fixture_free(&b);
}

/* Who stands still is as one who is away: a paused stream saves nothing up, for
 * what its client asks next or for itself, and newcomers do not start from it. */
static void
nobody_saves_by_a_pause(void **state)
{
    fixture_t b;
    tr_request_t *busy, *still, *next, *other, *alone;

    (void) state;
    fixture_init(&b, 1000, 8, 64);
    still = add_of(&b, 2, 0, 10, 500, 1);
    alone = add_of(&b, 3, 0, 10, 500, 1);
    busy = add_of(&b, 1, 0, 10, 2000, 1);
    step(&b);
    still->commands = alone->commands = TR_CONTROL_PAUSE;
    steps(&b, 300);
    assert_true(served(busy) >= 600);
    other = add_of(&b, 4, 0, 10, 5, 1);
    assert_true(served(other) >= served(busy));
    next = add_of(&b, 2, 0, 10, 5, 1);
    assert_true(served(next) >= served(busy));
    alone->commands = 0;
    compose(&b);
    assert_true(served(alone) >= served(busy));
    apply(&b);
    drop(&b, next);
    drop(&b, other);
    /* with all of them still, the last that was not counts */
    alone->commands = busy->commands = TR_CONTROL_PAUSE;
    compose(&b);
    apply(&b);
    other = add_of(&b, 4, 0, 10, 5, 1);
    assert_true(served(other) >= 600);
    drop(&b, other);
    drop(&b, still);
    drop(&b, alone);
    drop(&b, busy);
    fixture_free(&b);
}

/* The same where nobody reads the answers. */
static void
nobody_saves_by_not_reading(void **state)
{
    fixture_t b;
    tr_request_t *busy, *still;

    (void) state;
    fixture_init(&b, 1000, 4, 64);
    still = make_request(&b, 10, 500, 1);
    still->tenant = 2;
    still->writer = &b.writer[1];
    tr_scheduler_add(&b.s, still);
    busy = add_of(&b, 1, 0, 10, 2000, 1);
    step(&b);
    writer_fill(&b.writer[1]);
    step(&b);
    b.now += TR_SCHEDULER_FULL_US;
    steps(&b, 300);
    writer_drain(&b.peer[1]);
    compose(&b);
    assert_non_null(row_of(&b, still));
    assert_true(served(still) >= served(busy) && served(busy) >= 600);
    apply(&b);
    drop(&b, still);
    drop(&b, busy);
    fixture_free(&b);
}

/* A token of an answer is no cheaper for one whose share divides it badly. */
static void
shares_divide(void **state)
{
    tr_client_t small = { .share = 667 }, large = { .share = 667 };
    uint32_t i;

    (void) state;
    for (i = 0; i < 1000; i++) {
        tr_fair_charge(&small, TR_FAIR_OUTPUT);
    }
    tr_fair_charge(&large, 1000 * TR_FAIR_OUTPUT);
    assert_true(small.served >= large.served - large.served / 1000);
}

/* What the device computes for one that has been given up is no gift. */
static void
aborts_are_charged(void **state)
{
    fixture_t b;
    tr_request_t *r;
    tr_client_t *k;

    (void) state;
    fixture_init(&b, 1000, 4, 64);
    r = add_of(&b, 1, 0, 200, 5, 1);
    step(&b);
    k = r->client;
    compose(&b);
    tr_scheduler_submit(&b.s);
    compose(&b); /* another behind it */
    tr_scheduler_submit(&b.s);
    assert_int_equal(k->served / TR_FAIR_SCALE, 64);
    drop(&b, r);
    assert_int_equal(k->served / TR_FAIR_SCALE, 3 * 64);
    assert_int_equal(k->coming, 0);
    land(&b, false);
    land(&b, false);
    assert_int_equal(k->served / TR_FAIR_SCALE, 3 * 64);
    fixture_free(&b);
}

/* A prompt that had to make way is not coming before it runs again. */
static void
what_made_way_is_not_coming(void **state)
{
    fixture_t b;
    tr_request_t *old, *late;
    uint64_t end;

    (void) state;
    fixture_init(&b, 20, 4, 64);
    old = add_of(&b, 1, 0, 100, 500, 1);
    late = add_of(&b, 2, 0, 400, 5, 1);
    step(&b);
    assert_int_equal(late->sequences[0].state, TR_SEQ_RUNNING);
    assert_true(late->client->coming > 300);
    late->commands = TR_CONTROL_PAUSE;
    while (late->sequences[0].state == TR_SEQ_RUNNING) {
        step(&b); /* until the other wants its pages */
    }
    assert_int_equal(late->client->coming, 0);
    drop(&b, old);
    late->commands = 0;
    compose(&b);
    assert_int_equal(late->sequences[0].state, TR_SEQ_RUNNING);
    assert_true(late->client->coming > 300);
    end = served(late) + late->client->coming + 2 * 5;
    apply(&b);
    while (late->open_sequences != 0) {
        step(&b);
    }
    assert_int_equal(served(late), end);
    tr_request_free(late);
    fixture_free(&b);
}

/* A house full of one client: another waits for a moment, then the youngest
 * sequence makes way, and one alone. */
static void
a_place_in_a_full_house(void **state)
{
    fixture_t b;
    tr_request_t *crowd[20], *one;
    uint32_t i, running = 0;

    (void) state;
    fixture_init(&b, 2000, 16, 256);
    add_all_of(&b, crowd, 20, 1, 0, 8, 2000, 1);
    steps(&b, 4);
    assert_int_equal(b.s.n_running, 16);
    one = add_of(&b, 2, 0, 8, 30, 1);
    step(&b);
    assert_int_equal(one->sequences[0].state, TR_SEQ_WAITING);
    b.now += TR_SCHEDULER_PATIENCE_US;
    step(&b);
    step(&b);
    assert_int_equal(one->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(b.s.preemptions, 1);
    assert_int_equal(crowd[15]->sequences[0].state, TR_SEQ_WAITING);
    assert_int_equal(crowd[15]->preemptions, 1);
    for (i = 0; i < 40; i++) {
        b.now += TR_SCHEDULER_PATIENCE_US;
        step(&b);
    }
    assert_int_equal(b.s.preemptions, 1);
    assert_int_equal(one->open_sequences, 0);
    /* a moment later its place is still kept */
    for (i = 0; i < 20; i++) {
        running += crowd[i]->sequences[0].state == TR_SEQ_RUNNING;
    }
    assert_int_equal(running, 15);
    b.now += TR_FAIR_AROUND_US;
    step(&b);
    step(&b);
    assert_int_equal(b.s.n_running, 16);
    drop_all(&b, crowd, 20);
    tr_request_free(one);
    fixture_free(&b);
}

/* The same with pages: 40 of them, all taken by four long sequences. */
static void
pages_in_a_full_house(void **state)
{
    fixture_t b;
    tr_request_t *crowd[4], *one;

    (void) state;
    fixture_init(&b, 40, 16, 512);
    add_all_of(&b, crowd, 4, 1, 0, 300, 300, 1);
    steps(&b, 6);
    assert_int_equal(b.s.n_running, 4);
    one = add_of(&b, 2, 0, 100, 5, 1);
    step(&b);
    assert_int_equal(one->sequences[0].state, TR_SEQ_WAITING);
    b.now += TR_SCHEDULER_PATIENCE_US;
    step(&b);
    step(&b);
    assert_int_equal(one->sequences[0].state, TR_SEQ_RUNNING);
    assert_int_equal(b.s.preemptions, 1);
    drop_all(&b, crowd, 4);
    drop(&b, one);
    fixture_free(&b);
}

/* Three turns after a wait. */
static void
be_patient(fixture_t *b)
{
    uint32_t i;

    b->now += TR_SCHEDULER_PATIENCE_US;
    for (i = 0; i < 3; i++) {
        step(b);
    }
}

/* Where one is not enough, the next goes after another wait. */
static void
one_makes_way_at_a_time(void **state)
{
    fixture_t b;
    tr_request_t *crowd[9], *one;
    uint32_t i;

    (void) state;
    fixture_init(&b, 40, 16, 512);
    add_all_of(&b, crowd, 9, 1, 0, 120, 300, 1);
    steps(&b, 6);
    one = add_of(&b, 2, 0, 400, 5, 1);
    step(&b);
    be_patient(&b);
    assert_int_equal(b.s.preemptions, 1);
    be_patient(&b);
    assert_int_equal(b.s.preemptions, 2);
    for (i = 0; i < 4; i++) {
        be_patient(&b);
    }
    assert_int_equal(one->open_sequences, 0);
    tr_request_free(one);
    drop_all(&b, crowd, 9);
    fixture_free(&b);
}

/* Two sequences of a client beside one of another that fills the rest: nobody
 * makes way for a prompt if it would still find no room, or the client would
 * have less than it then. */
static uint32_t
ways_made(uint32_t older, uint32_t younger, uint32_t prompt)
{
    fixture_t b;
    tr_request_t *two[2], *other, *one;
    uint32_t i, n;

    fixture_init(&b, 40, 16, 512);
    other = add_of(&b, 3, 0, 32 * 38 - older - younger - 64, 60, 1);
    two[0] = add_of(&b, 1, 0, older, 400, 1);
    two[1] = add_of(&b, 1, 0, younger, 400, 1);
    steps(&b, 6);
    assert_int_equal(b.s.n_running, 3);
    one = add_of(&b, 2, 0, prompt, 5, 1);
    step(&b);
    for (i = 0; i < 3; i++) {
        assert_int_equal(one->sequences[0].state, TR_SEQ_WAITING);
        be_patient(&b);
        if (b.s.preemptions != 0) {
            break;
        }
    }
    n = (uint32_t) b.s.preemptions;
    assert_int_equal(one->sequences[0].state == TR_SEQ_WAITING, n == 0);
    drop(&b, one);
    drop(&b, other);
    drop(&b, two[0]);
    drop(&b, two[1]);
    fixture_free(&b);
    return n;
}

static void
nobody_makes_way_in_vain(void **state)
{
    (void) state;
    assert_int_equal(ways_made(300, 300, 250), 1);
    assert_int_equal(ways_made(300, 300, 400), 0); /* 300 would be left */
    assert_int_equal(ways_made(300, 60, 250), 0);  /* 2 pages of 8 */
}

/* Prompts hold as much as they may: those that answer cannot help, another
 * prompt can. */
static void
prompts_make_way_for_prompts(void **state)
{
    fixture_t b;
    tr_request_t *crowd[4], *long_one, *young, *one;
    uint32_t i, k;

    (void) state;
    for (k = 0; k < 2; k++) {
        fixture_init_policy(&b, UNIFORM, 400, 100, 16, 64);
        for (i = 0; i < 4; i++) {
            crowd[i] = add_of(&b, 1, 0, 1000, 2000, 1);
            while (crowd[i]->sequences[0].len < 1010) {
                step(&b);
            }
        }
        /* of the crowd's client, or a third one's */
        long_one = add_of(&b, k == 0 ? 3 : 1, 0, 2500, 50, 1);
        step(&b);
        young = add_of(&b, 1, 0, 10, 2000, 1);
        while (young->sequences[0].len < 12) {
            step(&b);
        }
        assert_int_equal(long_one->sequences[0].state, TR_SEQ_RUNNING);
        one = add_of(&b, 2, 0, 2000, 5, 1);
        step(&b);
        assert_int_equal(b.s.lack, TR_LACK_PROMPTS);
        be_patient(&b);
        be_patient(&b);
        assert_int_equal(b.s.preemptions, k);
        assert_int_equal(long_one->preemptions, k);
        assert_int_equal(one->sequences[0].state,
                         k == 0 ? TR_SEQ_WAITING : TR_SEQ_RUNNING);
        for (i = 0; i < 4; i++) {
            drop(&b, crowd[i]);
        }
        drop(&b, long_one);
        drop(&b, young);
        drop(&b, one);
        fixture_free(&b);
    }
}

/* Alone a client fills its batches; beside another they are short, and the first
 * prompt of the other is whole in the next one. */
static void
short_steps(void **state)
{
    fixture_t b;
    tr_request_t *flood[4], *one;

    (void) state;
    fixture_init(&b, 4000, 64, 256);
    add_all_of(&b, flood, 4, 1, 0, 5000, 5, 1);
    compose(&b);
    assert_int_equal(b.s.n_tokens, 256);
    apply(&b);
    one = add_of(&b, 2, 0, 150, 5, 1);
    compose(&b);
    assert_int_equal(tokens_of(&b, 2), 150);
    assert_int_equal(tokens_of(&b, 1), 0);
    apply(&b);
    step(&b);
    compose(&b);
    assert_int_equal(tokens_of(&b, 2), 1);
    assert_int_equal(tokens_of(&b, 1), 64);
    apply(&b);
    drop_all(&b, flood, 4);
    drop(&b, one);
    fixture_free(&b);
}

/* Rows of answers: an eighth of the batch for a client, all of its sequences by
 * turns. */
static void
rows_by_turns(void **state)
{
    fixture_t b;
    tr_request_t *crowd[20], *one;
    uint32_t i, least = UINT32_MAX, most = 0;

    (void) state;
    fixture_init(&b, 2000, 32, 64);
    add_all_of(&b, crowd, 20, 1, 0, 1, 1000, 1);
    one = add_of(&b, 2, 0, 1, 1000, 1);
    steps(&b, 4);
    for (i = 0; i < 100; i++) {
        compose(&b);
        assert_int_equal(tokens_of(&b, 1), 8);
        assert_int_equal(tokens_of(&b, 2), 1);
        apply(&b);
    }
    for (i = 0; i < 20; i++) {
        uint32_t n = crowd[i]->sequences[0].len;

        least = n < least ? n : least;
        most = n > most ? n : most;
        drop(&b, crowd[i]);
    }
    assert_true(most - least <= 2);
    drop(&b, one);
    fixture_free(&b);
}

/* A crowd of choices beside a prompt of the same client. */
static void
choices_take_turns(void **state)
{
    fixture_t b;
    tr_request_t *crowd, *one;

    (void) state;
    fixture_init(&b, 4000, 64, 64);
    crowd = add_of(&b, 1, 0, 1, 1000, 40);
    steps(&b, 4);
    compose(&b);
    assert_int_equal(b.s.n_tokens, 40);
    apply(&b);
    one = add_of(&b, 1, 0, 30, 5, 1);
    compose(&b);
    assert_non_null(row_of(&b, one));
    assert_int_equal(row_of(&b, one)->n, 30);
    assert_int_equal(b.s.n_tokens, 30 + 8);
    apply(&b);
    compose(&b);
    assert_int_equal(b.s.n_tokens, 41);
    apply(&b);
    drop(&b, crowd);
    drop(&b, one);
    fixture_free(&b);
}

/* More clients than the table has places: some share one, all come to their
 * end, and nothing is lost. */
static void
many_clients(void **state)
{
    const uint32_t n = TR_FAIR_SETS * TR_FAIR_WAYS + 500;
    tr_request_t **r = calloc(n, sizeof(tr_request_t *));
    fixture_t b;
    uint32_t i;

    (void) state;
    fixture_init(&b, 2000, 256, 512);
    for (i = 0; i < n; i++) {
        r[i] = add_of(&b, 1000 + i, 0, 2, 2, 1);
    }
    assert_true(tr_scheduler_sound(&b.s));
    for (i = 0; b.s.clients.n_inside != 0; i++) {
        assert_true(i < 1000);
        tr_scheduler_compose(&b.s, b.now++);
        apply(&b);
    }
    for (i = 0; i < n; i++) {
        assert_int_equal(r[i]->open_sequences, 0);
        tr_request_free(r[i]);
    }
    free(r);
    fixture_free(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_flood_waits),
        cmocka_unit_test(fifo),
        cmocka_unit_test(alike),
        cmocka_unit_test(by_tiers),
        cmocka_unit_test(own_batch_waits),
        cmocka_unit_test(tiers_are_apart),
        cmocka_unit_test(nobody_saves),
        cmocka_unit_test(nobody_saves_by_a_pause),
        cmocka_unit_test(nobody_saves_by_not_reading),
        cmocka_unit_test(shares_divide),
        cmocka_unit_test(aborts_are_charged),
        cmocka_unit_test(what_made_way_is_not_coming),
        cmocka_unit_test(a_place_in_a_full_house),
        cmocka_unit_test(pages_in_a_full_house),
        cmocka_unit_test(one_makes_way_at_a_time),
        cmocka_unit_test(nobody_makes_way_in_vain),
        cmocka_unit_test(prompts_make_way_for_prompts),
        cmocka_unit_test(short_steps),
        cmocka_unit_test(rows_by_turns),
        cmocka_unit_test(choices_take_turns),
        cmocka_unit_test(many_clients),
    };

    return cmocka_run_group_tests(tests, make_policies, free_policies);
}
