/*
 * Reuse of prefixes in a device's KV cache, on a software device that runs late
 * (tests/soft), against plain lists of tokens: up to two batches are under way
 * while sequences come, find what others computed, cut it, fork, end, are aborted
 * with rows of theirs under way, in a pool so small that nearly everybody who
 * comes evicts.  Each token writes itself into the pages of every head and into
 * the history, in the order of the stream; whenever the device has caught up, what
 * a sequence has must be there, whoever computed it.  Beside them run compressed
 * sequences, which share nothing, or find and cut what others of them left
 * (kv_kept.c): of a head's numbers, which are all the same, the zero of a token's
 * codes says which it is.  Some worlds have files, in which more is found than the
 * pool can keep, also by the world behind them, or a shelf in pinned memory.  The books are sound after each
 * turn, no row is refused a page that was granted, and at the end none is missing.
 *
 *   TR_PREFIX_OPS=N   turns (default 4,000)
 *   TR_PREFIX_SEED=N  the seed that a failure printed
 */
#include "tests/unit/fixtures/kv/kv_device_world.h"

static uint64_t borrowers, swaps; /* of all worlds */

/* ---- operations --------------------------------------------------------- */

static void
make_prompt(const world_t *w, actor_t *r)
{
    uint32_t same = random_below(LONGEST), text = random_below(TEXTS);

    r->goal = 2 + random_below(LONGEST - 2);
    if (w->cuts && random_below(2) == 0) { /* a short prefix is not copied */
        same = LONGEST - random_below(LONGEST / 4);
        r->goal = LONGEST - random_below(LONGEST / 4);
    }
    actor_prompt(r, w->text[text], same);
    r->dense = w->cuts ? random_below(3) == 0 : random_below(4) != 0;
    r->reuse = (r->dense || w->cuts) && random_below(8) != 0;
    r->complete = r->out = false;
    r->n = r->fed = 0;
}

static void
now_and_then(void *world)
{
    if (random_below(3) == 0) {
        drain(world);
    }
}

static void
do_start(world_t *w, actor_t *r)
{
    const tr_kv_policy_t *policy;
    tr_kv_found_t found;

    make_prompt(w, r);
    policy = r->dense ? w->full : w->tight;
    if (r->reuse && elsewhere(w)) {
        actor_ask_more(w->kv, r, policy, now_and_then, w);
    }
    r->life = ++w->lives;
    r->slot = tr_kv_open(w->kv, policy);
    REQUIRE(r->slot >= 0);
    if (!r->reuse || r->dense) {
        tr_kv_prompt(w->kv, r->slot, r->goal);
    }
    if (!r->reuse) {
        return;
    }
    actor_find(w->kv, r, policy, &found);
    w->found += found.tokens;
    w->n_cuts += found.match.part_tokens != 0;
    w->copies += found.kept != 0;
    if (tr_kv_adopt(w->kv, r->slot, &r->key, &found) != TR_OK) {
        actor_close(w->kv, r);
    } else if (!r->dense) { /* behind what it adopted */
        tr_kv_prompt(w->kv, r->slot, r->goal);
    }
}

static void
do_fork(world_t *w, const actor_t *from, actor_t *to)
{
    if (actor_fork(w->kv, w->full, from, to, 1 + random_below(from->n))) {
        to->life = ++w->lives;
        w->forks++;
    }
}

/* Room for more tokens; it is refused exactly when there is none.  More than was
 * known of is found only where a lender was absorbed (tr_kv_lend_more). */
static bool
reserve(world_t *w, actor_t *r, uint32_t to)
{
    int64_t left = tr_kv_bound(w->g) + (int64_t) tr_kv_reuse_idle(w->kv);
    uint32_t had = tr_kv_slot(w->kv, r->slot)->uncompressed_pages;
    uint32_t want = (to + w->page_tokens - 1) / w->page_tokens;
    uint32_t lenders = w->kv->reuse->n_lenders;
    bool good = tr_kv_reserve(w->kv, r->slot, to) == TR_OK;

    if (r->dense && want > had) {
        bool fits = (int64_t) (want - had) * HEADS <= left;

        REQUIRE(good || !fits);
        REQUIRE(fits || !good || w->kv->reuse->n_lenders < lenders);
    }
    return good;
}

/* Does it join the coming batch? */
static void
do_run(world_t *w, actor_t *r, flight_t *f)
{
    uint32_t to, most = ROWS - f->rows;

    if (r->n == r->goal && !r->dense) {
        if (!r->complete) {
            r->complete = tr_kv_compress(w->kv, r->slot, r->n) == TR_OK;
            if (r->complete && r->reuse && random_below(2) == 0) {
                w->kept += tr_kv_keep_copy(w->kv, r->slot, r->token, r->n,
                                           random_below(2) == 0);
            }
            return;
        }
        r->goal = r->goal < LONGEST ? r->goal + 1 : r->goal;
    }
    if (r->n == r->goal || most == 0) {
        return;
    }
    to = r->n + 1 + random_below(r->goal - r->n);
    to = to - r->n < most ? to : r->n + most;
    if (!reserve(w, r, to)) {
        if (random_below(3) == 0) {
            actor_close(w->kv, r);
        }
        return;
    }
    f->seq_row[f->n] = f->rows;
    f->item[f->n].who = (uint32_t) (r - w->who);
    f->item[f->n].life = r->life;
    f->item[f->n++].row = (tr_kv_device_row_t){ r->slot, r->n, to - r->n };
    for (; r->n < to; r->n++) {
        fill_row(w, f, r, r->n);
    }
}

/* A compressed one goes out to host memory, with what it borrows, or comes back. */
static void
do_swap(world_t *w, actor_t *r)
{
    tr_status_t rc = r->out ? tr_kv_swap_in(w->kv, r->slot)
                            : tr_kv_swap_out(w->kv, r->slot);

    if (rc == TR_OK) {
        r->out = !r->out;
        w->swaps += r->out;
    } else if (r->out && random_below(3) == 0) {
        actor_close(w->kv, r);
    }
}

static void
operate(world_t *w)
{
    actor_t *r = &w->who[random_below(SLOTS)],
            *other = &w->who[random_below(SLOTS)];
    uint32_t what = random_below(24);

    w->now += random_below(3);
    tr_kv_time(w->kv, w->now);
    if (what == 0) {
        tr_kv_expire(w->kv, w->now > 60 ? w->now - random_below(60) : 0);
    } else if (r->slot < 0) {
        do_start(w, r);
    } else if (what == 1) { /* whatever is under way */
        actor_close(w->kv, r);
        w->aborts++;
    } else if (r->out || (what == 3 && r->complete && !rows_under_way(w, r))) {
        do_swap(w, r);
    } else if (what == 2
               || (r->n == r->goal && what < 12
                   && (r->dense || (r->complete && w->cuts)))) {
        if (r->reuse) {
            tr_kv_keep(w->kv, r->slot, r->token, r->fed, true);
            w->ends++;
        }
        actor_close(w->kv, r);
    } else if (what < 9 && other->slot < 0 && r->dense && r->n != 0) {
        do_fork(w, r, other);
    }
}

static void
turn(world_t *w)
{
    flight_t *f;

    while (under_way(w) == TR_KV_IN_FLIGHT
           || (under_way(w) != 0 && random_below(3) == 0)) {
        collect(w);
    }
    tr_kv_store_turn(w->kv);
    for (uint32_t n = random_below(4); n != 0; n--) {
        operate(w);
    }
    f = coming(w);
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (w->who[i].slot >= 0 && !w->who[i].out && random_below(3) != 0) {
            do_run(w, &w->who[i], f);
        }
    }
    submit(w, f);
    REQUIRE(tr_kv_sound(w->kv) && tr_kv_shelf_sound(w->kv));
    if (random_below(8) == 0) {
        drain(w);
        REQUIRE(tr_kv_sound(w->kv));
        verify(w);
    }
}

/* Nobody has anything, and every page is there. */
static void
check_end(world_t *w)
{
    tr_prefix_stats_t s;

    tr_kv_store_flush(w->kv, UINT64_MAX);
    tr_kv_store_stats(w->kv, &w->files);
    tr_kv_shelf_stats(w->kv, &w->on_shelf);
    tr_kv_store_close(w->kv);
    REQUIRE(w->files.failed == 0);

    for (uint32_t i = 0; i < SLOTS; i++) {
        if (w->who[i].slot >= 0) {
            actor_close(w->kv, &w->who[i]);
        }
    }
    drain(w);
    tr_kv_prefixes(w->kv, &s);
    REQUIRE(s.held == 0 && s.evicted != 0);
    REQUIRE(tr_kv_free_pages(w->kv) == tr_kv_pages(w->kv));
    REQUIRE(w->g->report.pages[0] == 0);
    tr_kv_time(w->kv, w->now + 1);
    tr_kv_expire(w->kv, w->now + 1);
    drain(w);
    tr_kv_prefixes(w->kv, &s);
    REQUIRE(s.nodes == 0 && tr_kv_sound(w->kv));
    REQUIRE(w->g->free == tr_kv_pages(w->kv));
    REQUIRE(w->g->report.faults == 0 && w->g->report.n_refused == 0);
}

/* Did too few come and go, as yet? */
static bool
few_files(world_t *w)
{
    tr_kv_store_stats(w->kv, &w->files);
    tr_kv_shelf_stats(w->kv, &w->on_shelf);
    return (w->dir != NULL
            && (w->files.stored < 10
                || (w->files.loaded < 10 && w->shelf == 0)))
           || (w->shelf != 0
               && (w->on_shelf.stored < 10 || w->on_shelf.loaded < 10));
}

static void
play_in(const char *dir, uint32_t shelf, uint32_t blocks, bool overflow,
        const char *spec)
{
    uint64_t n = given("TR_PREFIX_OPS", 4000);
    world_t *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    n = dir != NULL || shelf != 0 ? n / 12 /* there are many of these, */
        : spec != NULL            ? n / 4  /* and four of those */
                                  : n;
    w->dir = dir;
    w->shelf = shelf;
    seed = given("TR_PREFIX_SEED", (uint64_t) time(NULL));
    fixture_state = seed * 0x9e3779b97f4a7c15u + 1;
    create(w, blocks, spec);
    if (overflow) { /* the list is launched early, again and again */
        w->g->list.room = 5;
        w->g->list.share_room = 3;
    }
    actor_texts(w->text, TEXTS);
    for (uint64_t i = 0; i < n || (few_files(w) && i < 20 * n); i++) {
        turn(w);
        if (i % 4 == 0) { /* or what is evicted at once is never written */
            tr_kv_store_flush(w->kv, UINT64_MAX);
        }
    }
    check_end(w);
    print_message("seed %llu: %llu tokens found, %llu cuts, %llu forks, %llu "
                  "ends, %llu aborts, %llu tokens verified\n",
                  (unsigned long long) seed, (unsigned long long) w->found,
                  (unsigned long long) w->n_cuts, (unsigned long long) w->forks,
                  (unsigned long long) w->ends, (unsigned long long) w->aborts,
                  (unsigned long long) w->verified);
    REQUIRE(w->found != 0 && w->n_cuts != 0 && w->ends != 0
            && (w->forks != 0 || spec != NULL || elsewhere(w)) && w->aborts != 0
            && w->verified != 0);
    if (spec != NULL) {
        print_message("%s: %llu prefixes taken, %llu kept, %llu tokens "
                      "verified, borrowers seen %llu times, %llu went out\n",
                      spec, (unsigned long long) w->copies,
                      (unsigned long long) w->kept,
                      (unsigned long long) w->tight_verified,
                      (unsigned long long) w->borrowers,
                      (unsigned long long) w->swaps);
        REQUIRE(w->copies != 0 && w->kept != 0 && w->tight_verified != 0);
        borrowers += w->borrowers;
        swaps += w->swaps;
    }
    if (dir != NULL) {
        print_message("files: %llu written, %llu read, %llu skipped\n",
                      (unsigned long long) w->files.stored,
                      (unsigned long long) w->files.loaded,
                      (unsigned long long) w->files.skipped);
        REQUIRE(w->files.stored >= 10
                && (w->files.loaded >= 10 || w->shelf != 0));
    }
    if (shelf != 0) {
        print_message("shelf: %llu stored, %llu read, %llu evicted, %llu"
                      " skipped\n",
                      (unsigned long long) w->on_shelf.stored,
                      (unsigned long long) w->on_shelf.loaded,
                      (unsigned long long) w->on_shelf.evicted,
                      (unsigned long long) w->on_shelf.skipped);
        REQUIRE(w->on_shelf.stored >= 10 && w->on_shelf.loaded >= 10);
    }
    destroy(w);
    free(w);
}

static void
play(uint32_t blocks, bool overflow, const char *spec)
{
    play_in(NULL, 0, blocks, overflow, spec);
}

static void
tiny_pool(void **unused)
{
    (void) unused;
    play(14, false, NULL);
}

static void
roomy_pool(void **unused)
{
    (void) unused;
    play(40, false, NULL);
}

static void
short_list(void **unused)
{
    (void) unused;
    play(24, true, NULL);
}

/* Compressed ones are kept and cut, in order, by position, with a window and
 * without one. */
static void
compressed(void **unused)
{
    (void) unused;
    play(40, false, "uniform:levels=8/4,window=9");
    play(50, false, "int4");
    play(40, false, "diffkv:alpha_high=1,alpha_low=0,window=16,sinks=3");
    play(40, true, "uniform:levels=8/8");
    REQUIRE(borrowers != 0 && swaps != 0);
}

/* Twice in a directory: the second one finds what the first has left. */
static void
files_of(uint32_t shelf, uint32_t blocks, bool overflow, const char *spec)
{
    char dir[] = "/tmp/tokenring-device-XXXXXX";

    assert_non_null(mkdtemp(dir));
    play_in(dir, shelf, blocks, overflow, spec);
    play_in(dir, shelf, blocks, overflow, spec);
    remove_files(dir);
}

static void
with_files(void **unused)
{
    (void) unused;
    files_of(0, 14, false, NULL);
    files_of(0, 30, true, NULL);
    files_of(0, 40, false, "uniform:levels=8/4,window=9");
    files_of(0, 50, true, "int4");
    files_of(0, 40, false, "diffkv:alpha_high=1,alpha_low=0,window=16,sinks=3");
}

static void
with_a_shelf(void **unused)
{
    (void) unused;
    play_in(NULL, 300, 14, false, NULL);
    play_in(NULL, 120, 30, true, NULL);
    play_in(NULL, 120, 40, false, "uniform:levels=8/4,window=9");
    play_in(NULL, 60, 50, true, "int4");
    play_in(NULL, 120, 40, false,
            "diffkv:alpha_high=1,alpha_low=0,window=16,sinks=3");
    files_of(60, 30, false, "uniform:levels=8/8");
}

/* However many blocks a prompt has, they are lent by one launch, and kept by
 * one. */
static void
one_launch_each(void **unused)
{
    world_t *w = calloc(1, sizeof(*w));
    actor_t *r;
    flight_t *f;
    tr_kv_found_t found;

    (void) unused;
    assert_non_null(w);
    fixture_state = 1;
    create(w, 60, NULL);
    r = &w->who[0];
    *r = (actor_t){
        .dense = true, .reuse = true, .goal = 4 * w->page_tokens, .life = 1
    };
    r->slot = tr_kv_open(w->kv, w->full);
    tr_kv_find(w->kv, w->full, &r->key, r->token, r->goal - 1, &found);
    assert_int_equal(tr_kv_adopt(w->kv, r->slot, &r->key, &found), TR_OK);
    r->reuse = false; /* collect keeps nothing */
    while (r->n < r->goal) {
        f = coming(w);
        do_run(w, r, f);
        submit(w, f);
        collect(w);
    }
    tr_kv_keep(w->kv, r->slot, r->token, r->n, false);
    assert_int_equal(w->g->list.n_groups, 1);
    tr_kv_find(w->kv, w->full, &r->key, r->token, r->goal, &found);
    assert_int_equal(found.match.blocks, 4);
    w->who[1].slot = tr_kv_open(w->kv, w->full);
    assert_int_equal(tr_kv_adopt(w->kv, w->who[1].slot, &r->key, &found),
                     TR_OK);
    assert_int_equal(w->g->list.n_groups, 3); /* cede, open, lend */
    drain(w);
    assert_true(tr_kv_sound(w->kv));
    destroy(w);
    free(w);
}

static int
setup(void **state)
{
    (void) state;
    soft_load();
    return 0;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch_each), cmocka_unit_test(tiny_pool),
        cmocka_unit_test(roomy_pool),      cmocka_unit_test(short_list),
        cmocka_unit_test(compressed),      cmocka_unit_test(with_files),
        cmocka_unit_test(with_a_shelf)
    };

    cmocka_set_test_filter(argc > 1 ? argv[1] : "*");
    return cmocka_run_group_tests_name("kv_device_prefix", tests, setup, NULL);
}
