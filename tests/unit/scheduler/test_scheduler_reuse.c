/*
 * Reuse in pools that are too small for it: ten thousand requests that begin
 * alike, of which hardly two fit at once, so that every admission evicts.
 * Somebody who can run always does, whoever pauses or hangs up; with a shelf, from
 * which prefixes come back into pages that others want, too.
 *
 *   TR_REUSE_REQUESTS=N   how many, in each pool
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

#include "engine/kv/kv_store.h"

#define ALIVE 12
#define ALL 10000
/* Turns without a batch: what comes from the shelf is waited for, four times by
 * each. */
#define IDLE 3u
#define IDLE_SHELF 40u

typedef struct {
    fixture_t b;
    tr_request_t *r[ALIVE];
    uint32_t all, made, finished, aborted;
} many_t;

/* A beginning that several have, and an end of its own. */
static tr_request_t *
make_prompt(many_t *c, uint32_t most)
{
    uint32_t prompt = 1 + random_below(most), text = random_below(3), i, k;
    uint32_t n = random_below(8) == 0 ? 1 + random_below(3) : 1;
    uint32_t same = random_below(prompt + 1);
    tr_request_t *r = make_request(&c->b, prompt, 1 + random_below(30), n);

    r->kv_reuse = random_below(16) != 0;
    r->kv_key.len = random_below(6) == 0;
    for (i = 0; i < n; i++) {
        tr_sequence_t *q = &r->sequences[i];

        q->tokens = tr_arena_alloc(&r->arena, q->cap * sizeof(*q->tokens));
        for (k = 0; k < q->cap; k++) {
            q->tokens[k] = (int32_t) (k < same ? text * 1000 + k
                                               : 5000 + c->made % 7);
        }
    }
    return r;
}

static void
change(many_t *c, uint32_t most)
{
    uint32_t i = random_below(ALIVE);

    if (c->r[i] == NULL && c->made < c->all) {
        tr_request_t *r = make_prompt(c, most);

        c->made++;
        if (!tr_scheduler_fits(c->b.kv, r)) {
            tr_request_free(r);
            c->finished++; /* it is refused */
            return;
        }
        tr_scheduler_add(&c->b.s, r);
        c->r[i] = r;
    } else if (c->r[i] != NULL && random_below(40) == 0) {
        drop(&c->b, c->r[i]);
        c->r[i] = NULL;
        c->aborted++;
    } else if (c->r[i] != NULL && random_below(6) == 0) {
        c->r[i]->commands ^= TR_CONTROL_PAUSE;
    }
}

static bool
reap(many_t *c, bool resume)
{
    bool can = false;

    for (uint32_t i = 0; i < ALIVE; i++) {
        tr_request_t *r = c->r[i];

        if (r != NULL && r->open_sequences == 0) {
            tr_request_free(r);
            c->r[i] = NULL;
            c->finished++;
        } else if (r != NULL) {
            r->commands = resume ? 0 : r->commands;
            can |= r->commands == 0;
        }
    }
    return can;
}

static void
open_shelf(many_t *c, uint32_t pages)
{
    tr_error_t err;

    if (pages != 0) {
        assert_int_equal(tr_kv_shelf_open(c->b.kv,
                                          pages * tr_kv_page_bytes(c->b.kv),
                                          &err),
                         TR_OK);
    }
}

/* What came and went; nothing is left on its way. */
static void
close_shelf(many_t *c, uint32_t pages)
{
    tr_shelf_stats_t s;

    tr_kv_shelf_stats(c->b.kv, &s);
    assert_true(tr_kv_shelf_sound(c->b.kv));
    assert_true(pages == 0 || (s.stored > 50 && s.loaded > 10));
    tr_kv_store_close(c->b.kv);
}

/* Who was admitted takes no more than it is charged for. */
static void
keeps_to_charge(const many_t *c)
{
    for (const tr_sequence_t *q = c->b.s.running.first; q != NULL;
         q = q->next) {
        uint64_t held = tr_kv_held_pages(c->b.kv, q->kv_slot);
        uint64_t borrowed = tr_kv_borrowed_pages(c->b.kv, q->kv_slot);

        if (q->staged && q->charge != 0) {
            held += borrowed < q->lent ? borrowed : q->lent;
            assert_true(held <= q->charge + q->lent);
        }
    }
}

static void
many_requests(int policy, uint32_t pages, uint32_t swap, uint32_t most,
              uint32_t shelf)
{
    const char *given = getenv("TR_REUSE_REQUESTS");
    many_t *c = calloc(1, sizeof(*c));
    uint32_t idle = 0, turn = 0, longest = 0;
    tr_prefix_stats_t s;
    bool can = false;

    random_state = pages * 31 + most;
    c->all = given != NULL ? (uint32_t) strtoul(given, NULL, 10) : ALL;
    reuse = true;
    fixture_init_policy(&c->b, policy, pages, swap, 6, 64);
    reuse = false;
    open_shelf(c, shelf);
    while (c->made < c->all || can) {
        bool ran;

        change(c, most);
        tr_kv_store_turn(c->b.kv);
        compose(&c->b);
        keeps_to_charge(c);
        ran = c->b.s.n_chunks != 0;
        apply(&c->b);
        can = reap(c, c->made == c->all || ++turn % 64 == 0);
        idle = ran || !can ? 0 : idle + 1;
        longest = idle > longest ? idle : longest;
        assert_true(idle < (shelf != 0 ? IDLE_SHELF : IDLE));
    }
    print_message("%u requests, %u pages, %u swapped, shelf of %u: %llu"
                  " preemptions, %llu swaps, idle for %u turns\n",
                  c->all, pages, swap, shelf,
                  (unsigned long long) c->b.s.preemptions,
                  (unsigned long long) c->b.s.swaps, longest);
    assert_int_equal(c->finished + c->aborted, c->all);
    tr_kv_prefixes(c->b.kv, &s);
    assert_true(c->b.s.counts.hits > 100 && c->b.s.counts.cuts > 10);
    assert_true(s.evicted > 100 && s.held == 0);
    close_shelf(c, shelf);
    fixture_free(&c->b);
    free(c);
}

static void
full_pools(void **state)
{
    (void) state;
    many_requests(FULL, 4, 0, 100, 0);
    many_requests(FULL, 7, 0, 200, 0);
    many_requests(FULL, 24, 0, 200, 0);
}

/* The order of tokens says where they stand: pages that nobody fills will do. */
static void
compressed_pools(void **state)
{
    (void) state;
    many_requests(UNIFORM, 14, 6, 200, 0);
    many_requests(UNIFORM, 20, 30, 400, 0);
    many_requests(UNIFORM, 60, 0, 400, 0);
}

static void
shelves(void **state)
{
    (void) state;
    many_requests(FULL, 7, 0, 200, 40);
    many_requests(UNIFORM, 14, 6, 200, 20);
    many_requests(UNIFORM, 20, 30, 400, 60);
}

/* Prompts are compressed behind each 32 tokens. */
static void
stages(void **state)
{
    (void) state;
    stage = 32;
    many_requests(UNIFORM, 14, 6, 200, 0);
    many_requests(UNIFORM, 40, 30, 600, 60);
    stage = 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(full_pools),
                                        cmocka_unit_test(compressed_pools),
                                        cmocka_unit_test(shelves),
                                        cmocka_unit_test(stages) };

    return cmocka_run_group_tests_name("scheduler_reuse", tests, make_policies,
                                       free_policies);
}
