/*
 * Prefixes on their way to the shelf and from it, turn by turn (kv_store_out.c,
 * kv_shelf.c), over a link that is as slow as a test wants it: how many pieces a
 * turn begins by how long the last one took, that small conversations go and come
 * one behind the other in one turn, and that what still waits to go leaves the pool
 * last.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

#include "engine/kv/kv_store_internal.h"

#define BUFFERS 32u /* of the link, at most */
#define TURN_US 1000u
#define LONG 1500u /* tokens of a conversation */
#define SHORT 128u /* and of one that is soon there */
#define TALKS 6u

static struct {
    tr_kv_ops_t ops;
    tr_kv_files_t files;
    const tr_kv_files_t *real;
    bool held; /* nothing arrives */
    bool flying[2][BUFFERS];
    uint32_t begun[2]; /* pieces: in, out */
    uint32_t slots;    /* that come */
} slow;

typedef struct {
    tr_kv_cache_t *kv;
    uint64_t now;
    int32_t tokens[TALKS][LONG];
} pool_t;

static const tr_prefix_key_t nobodys;

/* ---- a link -------------------------------------------------------------- */

static tr_status_t
slow_out(tr_kv_cache_t *kv, tr_kv_lane_t lane, const tr_kv_piece_t *piece)
{
    slow.begun[true]++;
    slow.flying[true][piece->buffer] = true;
    return slow.real->out(kv, lane, piece);
}

static tr_status_t
slow_begin(tr_kv_cache_t *kv, tr_kv_lane_t lane, int32_t slot,
           const int32_t *tokens, uint32_t n)
{
    slow.slots++;
    return slow.real->begin(kv, lane, slot, tokens, n);
}

static tr_status_t
slow_in(tr_kv_cache_t *kv, tr_kv_lane_t lane, const tr_kv_piece_t *piece)
{
    slow.begun[false]++;
    slow.flying[false][piece->buffer] = true;
    return slow.real->in(kv, lane, piece);
}

static tr_status_t
slow_moved(const tr_kv_cache_t *kv, tr_kv_lane_t lane, bool out,
           uint32_t buffer)
{
    (void) kv;
    (void) lane;
    if (slow.flying[out][buffer] && slow.held) {
        return TR_AGAIN;
    }
    slow.flying[out][buffer] = false;
    return TR_OK;
}

static void
pool_open(pool_t *p, uint32_t buffers, uint32_t at_once)
{
    tr_error_t err;

    memset(p, 0, sizeof(*p));
    for (uint32_t i = 0; i < TALKS * LONG; i++) {
        p->tokens[i / LONG][i % LONG] = (int32_t) (i / LONG * 10000 + i % LONG);
    }
    reuse = true;
    p->kv = make_kv(UNIFORM, 120, 0, 4);
    reuse = false;
    memset(&slow, 0, sizeof(slow));
    slow.ops = *p->kv->ops;
    slow.real = slow.ops.files;
    slow.files = *slow.real;
    slow.files.buffers[TR_KV_SHELF] = buffers;
    slow.files.at_once[TR_KV_SHELF] = at_once;
    slow.files.turn_us = TURN_US;
    slow.files.out = slow_out;
    slow.files.begin = slow_begin;
    slow.files.in = slow_in;
    slow.files.moved = slow_moved;
    slow.ops.files = &slow.files;
    p->kv->ops = &slow.ops;
    /* pieces of a page */
    assert_int_equal(tr_kv_shelf_open(p->kv, 200 * tr_kv_page_bytes(p->kv),
                                      &err),
                     TR_OK);
}

static void
pool_close(pool_t *p)
{
    slow.held = false;
    tr_kv_store_close(p->kv);
    tr_kv_expire(p->kv, UINT64_MAX - 1);
    assert_int_equal(tr_kv_free_pages(p->kv), tr_kv_pages(p->kv));
    assert_true(tr_kv_sound(p->kv));
    tr_kv_cache_free(p->kv);
}

/* ---- conversations ------------------------------------------------------- */

static void
tick(pool_t *p)
{
    tr_kv_time(p->kv, ++p->now);
}

/* One ends here; its pages, and *slot. */
static uint32_t
keep(pool_t *p, uint32_t talk, uint32_t n, uint32_t *slot)
{
    int32_t to = tr_kv_open(p->kv, NULL);
    tr_kv_found_t none;
    uint32_t pages;

    tick(p);
    tr_kv_find(p->kv, NULL, &nobodys, p->tokens[talk], n, &none);
    assert_int_equal(none.tokens, 0);
    assert_int_equal(tr_kv_adopt(p->kv, to, &nobodys, &none), TR_OK);
    tr_kv_prompt(p->kv, to, n);
    assert_int_equal(tr_kv_reserve(p->kv, to, n), TR_OK);
    assert_int_equal(tr_kv_compress(p->kv, to, n), TR_OK);
    pages = p->kv->m.slot[to].pages;
    tr_kv_keep(p->kv, to, p->tokens[talk], n, true);
    tr_kv_close(p->kv, to);
    if (slot != NULL) {
        *slot = (uint32_t) to;
    }
    return pages;
}

/* Is so much of it in the pool?  Then it was used just now. */
static bool
is_here(pool_t *p, uint32_t talk, uint32_t n)
{
    tr_kv_found_t found;
    bool is;

    tick(p);
    tr_kv_find(p->kv, NULL, &nobodys, p->tokens[talk], n, &found);
    is = found.tokens == n;
    tr_kv_drop_found(p->kv, &found);
    return is;
}

static void
ask(pool_t *p, uint32_t talk, uint32_t n)
{
    tick(p);
    assert_int_equal(tr_kv_store_look(p->kv, p->tokens[talk], NULL, &nobodys,
                                      p->tokens[talk], n, 0),
                     TR_KV_LOOK_COMES);
}

static bool
comes(const pool_t *p, uint32_t talk)
{
    return tr_kv_store_looks(p->kv, p->tokens[talk]);
}

/* A turn behind one that took so long; pieces that it begins. */
static uint32_t
turn(pool_t *p, bool out, uint64_t us)
{
    uint32_t before = slow.begun[out];

    tr_kv_computed(p->kv, 0, us);
    tick(p);
    tr_kv_store_turn(p->kv);
    assert_true(tr_kv_sound(p->kv) && tr_kv_shelf_sound(p->kv));
    return slow.begun[out] - before;
}

static uint64_t
stored(const pool_t *p)
{
    tr_shelf_stats_t s;

    tr_kv_shelf_stats(p->kv, &s);
    return s.stored;
}

/* ---- tests --------------------------------------------------------------- */

/* Eight pieces can be under way, and a short turn begins two. */
static void
paced(pool_t *p, bool out)
{
    slow.held = true;
    assert_int_equal(turn(p, out, TURN_US / 10), 2);
    assert_int_equal(turn(p, out, 2 * TURN_US), 4);
    assert_int_equal(turn(p, out, 1000 * TURN_US), 2);
    assert_int_equal(turn(p, out, 1000 * TURN_US), 0);
    slow.held = false;
    assert_int_equal(turn(p, out, 1000 * TURN_US), 8);
    assert_int_equal(turn(p, out, 0), 2);
}

static void
long_turns(void **unused)
{
    static pool_t p;
    uint32_t pages;

    (void) unused;
    pool_open(&p, 8, 2);
    pages = keep(&p, 0, LONG, NULL);
    assert_true(pages > 18);
    paced(&p, true);
    while (stored(&p) == 0) {
        assert_true(turn(&p, true, 0) <= 2);
    }
    assert_int_equal(slow.begun[true], pages);
    tr_kv_expire(p.kv, UINT64_MAX - 1);
    assert_false(is_here(&p, 0, LONG));
    ask(&p, 0, LONG);
    paced(&p, false);
    while (comes(&p, 0)) {
        assert_true(turn(&p, false, 0) <= 2);
    }
    assert_int_equal(slow.begun[false], pages);
    assert_true(is_here(&p, 0, LONG));
    pool_close(&p);
}

/* Of three small ones a short turn takes one, a long one the others. */
static void
several_at_once(void **unused)
{
    static pool_t p;
    uint32_t pages;

    (void) unused;
    pool_open(&p, 16, 1);
    pages = keep(&p, 0, SHORT, NULL);
    assert_true(pages > 1 && 2 * pages <= 16);
    slow.files.at_once[TR_KV_SHELF] = pages;
    assert_int_equal(keep(&p, 1, SHORT, NULL), pages);
    assert_int_equal(keep(&p, 2, SHORT, NULL), pages);
    assert_int_equal(turn(&p, true, TURN_US), pages);
    assert_int_equal(stored(&p), 1);
    assert_int_equal(turn(&p, true, 2 * TURN_US), 2 * pages);
    assert_int_equal(stored(&p), 3);
    tr_kv_expire(p.kv, UINT64_MAX - 1);
    for (uint32_t i = 0; i < 3; i++) {
        ask(&p, i, SHORT);
    }
    assert_int_equal(turn(&p, false, TURN_US), pages);
    assert_true(!comes(&p, 0) && comes(&p, 1) && comes(&p, 2));
    assert_int_equal(slow.slots, 1); /* none without a piece */
    assert_int_equal(turn(&p, false, 2 * TURN_US), 2 * pages);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(!comes(&p, i) && is_here(&p, i, SHORT));
    }
    pool_close(&p);
}

/* Who is seen not to be wanted takes its part of a turn. */
static void
unwanted(void **unused)
{
    static pool_t p;
    uint32_t slot;

    (void) unused;
    pool_open(&p, 8, 2);
    keep(&p, 0, SHORT, &slot);
    while (stored(&p) == 0) {
        turn(&p, true, 0);
    }
    for (uint32_t i = 0; i < 7; i++) {
        tr_kv_store_want(p.kv, true, slot);
    }
    assert_int_equal(turn(&p, true, 0), 0);
    assert_int_equal(p.kv->store->put[TR_KV_SHELF].n_queue, 5);
    turn(&p, true, 2 * TURN_US);
    assert_int_equal(p.kv->store->put[TR_KV_SHELF].n_queue, 1);
    pool_close(&p);
}

/* begun: it is on its way, else in the queue. */
static void
waits_last(bool begun)
{
    static pool_t p;
    tr_shelf_stats_t s;

    pool_open(&p, 8, 8);
    keep(&p, 0, SHORT, NULL);
    while (stored(&p) == 0) {
        turn(&p, true, 0);
    }
    keep(&p, 1, SHORT, NULL);
    slow.held = true;
    assert_true(!begun || turn(&p, true, 0) != 0);
    assert_true(is_here(&p, 0, SHORT)); /* the one used last */
    assert_true(tr_kv_kept_evict(p.kv, UINT64_MAX));
    assert_true(!is_here(&p, 0, SHORT) && is_here(&p, 1, SHORT));
    assert_true(tr_kv_kept_evict(p.kv, UINT64_MAX)); /* there is nothing else */
    assert_false(is_here(&p, 1, SHORT));
    tr_kv_shelf_stats(p.kv, &s);
    assert_int_equal(s.skipped, begun);
    assert_false(tr_kv_kept_evict(p.kv, UINT64_MAX));
    /* what it had of the shelf is there for the next */
    keep(&p, 2, SHORT, NULL);
    keep(&p, 3, SHORT, NULL);
    slow.held = false;
    while (stored(&p) != 3) {
        turn(&p, true, 0);
    }
    /* both are there: the one used first goes */
    assert_true(is_here(&p, 2, SHORT));
    assert_true(tr_kv_kept_evict(p.kv, UINT64_MAX));
    assert_true(is_here(&p, 2, SHORT) && !is_here(&p, 3, SHORT));
    pool_close(&p);
}

static void
what_waits_leaves_last(void **unused)
{
    (void) unused;
    waits_last(false);
    waits_last(true);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_turns),
        cmocka_unit_test(several_at_once),
        cmocka_unit_test(unwanted),
        cmocka_unit_test(what_waits_leaves_last),
    };

    return cmocka_run_group_tests_name("kv_shelf", tests, make_policies,
                                       free_policies);
}
