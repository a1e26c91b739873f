/*
 * Reuse of prefixes in the KV cache, against plain lists of tokens: each token
 * writes itself into the pages of every head, and what a sequence has found, cut,
 * forked or computed twice must be there when it looks, in every head, whatever
 * was evicted for others meanwhile.  Beside them run compressed sequences that
 * take and give pages, go out and come in.  The cache is sound after each
 * operation, and at the end no page is missing.  With files, with a shelf, or with
 * both what was evicted also comes back from there, out of files after a restart
 * too, or is given up on the way when its pages are wanted.
 *
 *   TR_PREFIX_OPS=N   operations (default 20,000)
 *   TR_PREFIX_SEED=N  the seed that a failure printed
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/fixtures/random.h"

#include "tests/unit/fixtures/prefix_actor.h"

#define LAYERS 2u
#define KV_HEADS 2u
#define HEADS (LAYERS * KV_HEADS)
#define DIM 32u
#define SLOTS 8u
#define TEXTS 6u
/* operations from one wait for what is being stored to the next */
#define WRITER_WAITS(w) ((w)->shelf != 0 ? 8u : 40u)

typedef struct {
    tr_kv_cache_t *kv;
    tr_kv_view_t view;
    uint32_t page_tokens;
    tr_kv_policy_t *full, *uniform;
    actor_t run[SLOTS];
    int32_t text[TEXTS][LONGEST]; /* what prompts begin with */
    uint64_t now, found, cuts, forks;
    const char *dir; /* of files; NULL: none */
    uint32_t shelf;  /* blocks of it, 0: none */
    tr_store_stats_t files;
    tr_shelf_stats_t on_shelf;
} world_t;

static void
open_files(world_t *w)
{
    const uint8_t identity[TR_STORE_ID_BYTES] = "a model";
    tr_error_t err;

    if (w->shelf != 0) {
        assert_int_equal(tr_kv_shelf_open(w->kv,
                                          tr_kv_page_bytes(w->kv) * w->shelf
                                              * HEADS,
                                          &err),
                         TR_OK);
    }
    if (w->dir != NULL) {
        assert_int_equal(tr_kv_store_open(w->kv, w->dir, 1 << 20, 0, identity,
                                          &err),
                         TR_OK);
    }
}

static void
create(world_t *w, uint32_t blocks, bool reuse)
{
    const tr_kv_policy_t *policies[2];
    tr_kv_config_t c = { .layers = LAYERS,
                         .kv_heads = KV_HEADS,
                         .head_dim = DIM,
                         .slots = SLOTS + (w->dir != NULL)
                                  + (w->shelf != 0 ? TR_KV_SHELF_GETS : 0),
                         .max_len = LONGEST + 1,
                         .memory = 1 << 20,
                         .policies = policies,
                         .n_policies = 2,
                         .reuse = reuse };
    tr_error_t err;

    assert_int_equal(tr_kv_policy_create("full", LAYERS, KV_HEADS, DIM,
                                         &w->full, &err),
                     TR_OK);
    assert_int_equal(tr_kv_policy_create("uniform:levels=8/8", LAYERS, KV_HEADS,
                                         DIM, &w->uniform, &err),
                     TR_OK);
    policies[0] = w->full;
    policies[1] = w->uniform;
    assert_int_equal(tr_kv_cache_create(&c, &w->kv, &err), TR_OK);
    c.memory = tr_kv_page_bytes(w->kv) * blocks * HEADS;
    c.swap_memory = c.memory;
    tr_kv_cache_free(w->kv);
    assert_int_equal(tr_kv_cache_create(&c, &w->kv, &err), TR_OK);
    tr_kv_view(w->kv, &w->view);
    w->page_tokens = w->view.layout[0].tokens;
    for (uint32_t i = 0; i < SLOTS; i++) {
        w->run[i].slot = -1;
    }
    open_files(w);
}

static void
destroy(world_t *w)
{
    tr_kv_cache_free(w->kv);
    tr_kv_policy_free(w->full);
    tr_kv_policy_free(w->uniform);
}

static int32_t *
place(const world_t *w, int32_t slot, uint32_t head, uint32_t pos)
{
    const int32_t *row = tr_kv_table(&w->view, slot, head / KV_HEADS,
                                     head % KV_HEADS);
    uint8_t *page = tr_kv_page_at(&w->view, row[pos / w->page_tokens]);

    return (int32_t *) (void *) (page
                                 + tr_kv_key_row(&w->view.layout[0],
                                                 pos % w->page_tokens));
}

static void
write_tokens(const world_t *w, const actor_t *r, uint32_t from, uint32_t to)
{
    const tr_kv_seq_t *q = &w->view.seq[r->slot];

    REQUIRE(from >= q->shared * w->page_tokens); /* nobody else's */
    for (uint32_t head = 0; head < HEADS; head++) {
        for (uint32_t pos = from; pos < to; pos++) {
            *place(w, r->slot, head, pos) = (int32_t) actor_sum(r, head, pos);
        }
    }
}

static void
verify(const world_t *w, const actor_t *r)
{
    for (uint32_t head = 0; head < HEADS && r->slot >= 0 && r->dense; head++) {
        for (uint32_t pos = 0; pos < r->n; pos++) {
            REQUIRE(*place(w, r->slot, head, pos)
                    == (int32_t) actor_sum(r, head, pos));
        }
    }
}

/* ---- operations --------------------------------------------------------- */

static void
do_start(world_t *w, actor_t *r)
{
    uint32_t same = random_below(LONGEST), text = random_below(TEXTS);
    tr_kv_found_t found;

    r->goal = 2 + random_below(LONGEST - 2);
    actor_prompt(r, w->text[text], same);
    r->reuse = random_below(8) != 0;
    r->dense = random_below(4) != 0;
    r->out = false;
    r->n = 0;
    r->reuse = r->reuse && r->dense;
    r->slot = tr_kv_open(w->kv, r->dense ? w->full : w->uniform);
    REQUIRE(r->slot >= 0);
    tr_kv_prompt(w->kv, r->slot, r->goal);
    if (!r->reuse) {
        return;
    }
    if (w->dir != NULL || w->shelf != 0) {
        actor_ask_more(w->kv, r, w->full, NULL, NULL);
    }
    actor_find(w->kv, r, NULL, &found);
    w->found += found.tokens;
    w->cuts += found.match.part_tokens != 0;
    if (tr_kv_adopt(w->kv, r->slot, &r->key, &found) != TR_OK) {
        actor_close(w->kv, r);
        return;
    }
    REQUIRE(tr_kv_slot(w->kv, r->slot)->tokens >= r->n);
    verify(w, r);
}

static void
do_dense(world_t *w, actor_t *r)
{
    uint32_t what = random_below(10), to;

    if (what == 0) { /* aborted */
        actor_close(w->kv, r);
    } else if (what == 1 || r->n == r->goal) {
        tr_kv_keep(w->kv, r->slot, r->token, r->n, true);
        actor_close(w->kv, r);
    } else {
        uint64_t left = tr_kv_free_pages(w->kv);
        uint32_t had = tr_kv_slot(w->kv, r->slot)->uncompressed_pages, want;
        tr_status_t rc;

        to = r->n + 1 + random_below(r->goal - r->n);
        want = (to + w->page_tokens - 1) / w->page_tokens;
        rc = tr_kv_reserve(w->kv, r->slot, to);
        /* it is refused exactly when there are too few */
        REQUIRE((rc == TR_OK)
                == (want <= had || (uint64_t) (want - had) * HEADS <= left));
        if (rc == TR_OK) {
            write_tokens(w, r, r->n, to);
            r->n = to;
            tr_kv_keep(w->kv, r->slot, r->token, r->n, false);
        } else if (random_below(2) == 0) {
            actor_close(w->kv, r);
        }
    }
}

static void
do_compressed(world_t *w, actor_t *r)
{
    if (r->out) {
        if (tr_kv_swap_in(w->kv, r->slot) == TR_OK) {
            r->out = false;
        } else if (random_below(3) == 0) {
            actor_close(w->kv, r);
        }
    } else if (r->n < r->goal) {
        uint32_t to = r->n + 1 + random_below(r->goal - r->n);

        if (tr_kv_reserve(w->kv, r->slot, to) == TR_OK) {
            r->n = to;
        } else {
            actor_close(w->kv, r);
        }
    } else if (tr_kv_uncompressed(w->kv, r->slot)) {
        if (tr_kv_compress(w->kv, r->slot, r->n) != TR_OK
            && random_below(3) == 0) {
            actor_close(w->kv, r);
        }
    } else if (random_below(3) == 0) {
        r->out = tr_kv_swap_out(w->kv, r->slot) == TR_OK;
    } else if (random_below(3) == 0 || r->n == LONGEST) {
        actor_close(w->kv, r);
    } else if (tr_kv_reserve(w->kv, r->slot, r->n + 1) == TR_OK) {
        r->goal = ++r->n;
    }
}

static void
do_fork(world_t *w, const actor_t *from, actor_t *to)
{
    uint32_t len = 1 + random_below(from->n);
    uint64_t shares = tr_kv_fork_shares(w->kv, from->slot, len);

    if (actor_fork(w->kv, w->full, from, to, len)) {
        REQUIRE(w->view.seq[to->slot].shared * HEADS == shares);
        verify(w, to);
        w->forks++;
    }
}

static void
step(world_t *w)
{
    actor_t *r = &w->run[random_below(SLOTS)],
            *other = &w->run[random_below(SLOTS)];

    w->now += random_below(3);
    tr_kv_time(w->kv, w->now);
    tr_kv_store_turn(w->kv);
    if (w->shelf != 0 && random_below(1000) == 0) {
        tr_kv_shelf_expire(w->kv, w->now > 60 ? w->now - 60 : 0);
    }
    if (random_below(30) == 0) {
        tr_kv_expire(w->kv, w->now > 60 ? w->now - random_below(60) : 0);
    } else if (r->slot < 0) {
        do_start(w, r);
    } else if (!r->dense) {
        do_compressed(w, r);
    } else if (other->slot < 0 && r->n != 0 && random_below(6) == 0) {
        do_fork(w, r, other);
    } else {
        do_dense(w, r);
    }
}

static void
play_on(world_t *w, uint64_t n)
{
    tr_prefix_stats_t s;
    tr_store_stats_t files;

    for (uint64_t i = 0; i < n; i++) {
        step(w);
        REQUIRE(tr_kv_sound(w->kv) && tr_kv_shelf_sound(w->kv));
        if (i % WRITER_WAITS(w) == 0) { /* or a slow one would write nothing */
            tr_kv_store_flush(w->kv, UINT64_MAX);
        }
        verify(w, &w->run[random_below(SLOTS)]);
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (w->run[i].slot >= 0) {
            actor_close(w->kv, &w->run[i]);
        }
    }
    tr_kv_store_flush(w->kv, UINT64_MAX);
    tr_kv_store_stats(w->kv, &files);
    w->files.stored += files.stored;
    w->files.loaded += files.loaded;
    tr_kv_shelf_stats(w->kv, &w->on_shelf);
    REQUIRE(files.failed == 0);
    tr_kv_store_close(w->kv);
    tr_kv_prefixes(w->kv, &s);
    REQUIRE(s.held == 0 && s.evicted != 0);
    REQUIRE(tr_kv_free_pages(w->kv) == tr_kv_pages(w->kv));
    tr_kv_time(w->kv, w->now + 1);
    tr_kv_expire(w->kv, w->now + 1);
    tr_kv_prefixes(w->kv, &s);
    REQUIRE(s.nodes == 0 && tr_kv_sound(w->kv));
}

/* In a pool so small that nearly everybody who comes evicts. */
static void
play(uint32_t blocks)
{
    world_t *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    create(w, blocks, true);
    actor_texts(w->text, TEXTS);
    play_on(w, given("TR_PREFIX_OPS", 20000));
    REQUIRE(w->found != 0 && w->cuts != 0 && w->forks != 0);
    destroy(w);
    free(w);
}

/* With files, and a restart in the middle. */
static void
play_files(uint32_t blocks, uint32_t shelf)
{
    world_t *w = calloc(1, sizeof(*w));
    char dir[] = "/tmp/tokenring-prefix-XXXXXX";

    assert_non_null(w);
    assert_non_null(mkdtemp(dir));
    w->dir = dir;
    w->shelf = shelf;
    actor_texts(w->text, TEXTS);
    for (uint32_t i = 0; i < 2; i++) {
        create(w, blocks, true);
        play_on(w, given("TR_PREFIX_OPS", 20000) / 4);
        destroy(w);
    }
    print_message("%llu written, %llu came back\n",
                  (unsigned long long) w->files.stored,
                  (unsigned long long) w->files.loaded);
    REQUIRE(w->files.stored > 20 && w->files.loaded > 20);
    remove_files(dir);
    free(w);
}

/* With a shelf, which what is evicted comes back from. */
static void
play_shelf(uint32_t blocks)
{
    world_t *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->shelf = 200;
    create(w, blocks, true);
    actor_texts(w->text, TEXTS);
    play_on(w, given("TR_PREFIX_OPS", 20000) / 4);
    print_message("%llu to the shelf, %llu came back, %llu evicted there,"
                  " %llu skipped\n",
                  (unsigned long long) w->on_shelf.stored,
                  (unsigned long long) w->on_shelf.loaded,
                  (unsigned long long) w->on_shelf.evicted,
                  (unsigned long long) w->on_shelf.skipped);
    REQUIRE(w->on_shelf.stored > 20 && w->on_shelf.loaded > 10);
    REQUIRE(w->on_shelf.evicted > 20);
    destroy(w);
    free(w);
}

static void
random_operations(void **unused)
{
    (void) unused;
    seed = given("TR_PREFIX_SEED", 7);
    random_state = seed;
    play(14);
}

static void
roomy_operations(void **unused)
{
    (void) unused;
    seed = given("TR_PREFIX_SEED", 8);
    random_state = seed;
    play(24);
}

static void
operations_with_files(void **unused)
{
    (void) unused;
    seed = given("TR_PREFIX_SEED", 9);
    random_state = seed;
    play_files(14, 0);
    play_files(24, 0);
}

static void
operations_with_a_shelf(void **unused)
{
    (void) unused;
    seed = given("TR_PREFIX_SEED", 10);
    random_state = seed;
    play_shelf(14);
    play_shelf(24);
    play_files(14, 30); /* what the shelf has lost is in files */
}

/* ---- by hand ------------------------------------------------------------ */

/* Without the setting, or under a policy that compresses, nothing is kept. */
static void
only_where_it_can_be(void **unused)
{
    world_t *w = calloc(1, sizeof(*w));

    (void) unused;
    assert_non_null(w);
    create(w, 10, false);
    assert_false(tr_kv_reuses(w->kv, w->full));
    destroy(w);
    create(w, 10, true);
    assert_true(tr_kv_reuses(w->kv, NULL));
    assert_true(tr_kv_reuses(w->kv, w->full));
    assert_false(tr_kv_reuses(w->kv, w->uniform));
    destroy(w);
    free(w);
}

/* Fifty tokens that two sequences share count once; each holds, by its own
 * account, what it would hold alone. */
static void
counts_once(void **unused)
{
    world_t *w = calloc(1, sizeof(*w));
    actor_t *a, *b;
    tr_kv_found_t found;
    tr_kv_totals_t t;
    tr_kv_usage_t u;
    uint32_t p, i;

    (void) unused;
    assert_non_null(w);
    create(w, 40, true);
    p = w->page_tokens;
    a = &w->run[0];
    b = &w->run[1];
    for (i = 0; i < LONGEST; i++) {
        a->token[i] = b->token[i] = (int32_t) i;
    }
    for (i = 0; i < 2; i++) {
        w->run[i].dense = true;
        w->run[i].key.len = 0;
        w->run[i].slot = tr_kv_open(w->kv, w->full);
        tr_kv_find(w->kv, NULL, &a->key, a->token, 2 * p + 4, &found);
        assert_int_equal(found.tokens, i == 0 ? 0 : 2 * p);
        assert_int_equal(tr_kv_adopt(w->kv, w->run[i].slot, &a->key, &found),
                         TR_OK);
        assert_int_equal(tr_kv_reserve(w->kv, w->run[i].slot, 2 * p + 5),
                         TR_OK);
        if (i == 0) {
            write_tokens(w, a, 0, 2 * p + 5);
            tr_kv_keep(w->kv, a->slot, a->token, 2 * p + 5, false);
        }
    }
    tr_kv_totals(w->kv, &t);
    assert_int_equal(t.tokens, 2 * p + 5 + 5);
    assert_int_equal(t.pages[0], 4 * HEADS);
    assert_int_equal(t.cached_pages, 0);
    for (i = 0; i < 2; i++) {
        tr_kv_usage(w->kv, w->run[i].slot, &u);
        assert_int_equal(u.bytes, 3 * HEADS * tr_kv_page_bytes(w->kv));
        assert_int_equal(u.tokens, 2 * p + 5);
    }
    tr_kv_keep(w->kv, a->slot, a->token, 2 * p + 5, true);
    actor_close(w->kv, a);
    actor_close(w->kv, b);
    tr_kv_totals(w->kv, &t);
    assert_int_equal(t.tokens, 0);
    assert_int_equal(t.pages[0], 0);
    assert_int_equal(t.cached_pages, 3 * HEADS);
    assert_true(tr_kv_sound(w->kv));
    destroy(w);
    free(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(only_where_it_can_be),
                                        cmocka_unit_test(counts_once),
                                        cmocka_unit_test(random_operations),
                                        cmocka_unit_test(roomy_operations),
                                        cmocka_unit_test(operations_with_files),
                                        cmocka_unit_test(
                                            operations_with_a_shelf) };

    return cmocka_run_group_tests_name("kv_prefix", tests, NULL, NULL);
}
