/*
 * Prompts whose beginnings come from the shelf (kv_shelf.c), and whose pages others
 * want before they are taken: they ask again, a few times, then they are computed.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

#include "engine/kv/kv_store_internal.h"

#define TOKENS 200u

typedef struct {
    fixture_t b;
    int32_t tokens[TOKENS];
    tr_request_t *r;
    uint32_t asked;
} shelf_t;

static uint64_t
stored(const shelf_t *d)
{
    tr_shelf_stats_t s;

    tr_kv_shelf_stats(d->b.kv, &s);
    return s.stored;
}

/* The pool is empty, and the shelf has the conversation. */
static void
make(shelf_t *d)
{
    tr_prefix_key_t key = { 0 };
    tr_kv_found_t none;
    tr_error_t err;
    int32_t slot;

    memset(d, 0, sizeof(*d));
    for (uint32_t i = 0; i < TOKENS; i++) {
        d->tokens[i] = (int32_t) i;
    }
    reuse = true;
    fixture_init(&d->b, 40, 4, 2048);
    reuse = false;
    assert_int_equal(tr_kv_shelf_open(d->b.kv, 40 * tr_kv_page_bytes(d->b.kv),
                                      &err),
                     TR_OK);
    slot = tr_kv_open(d->b.kv, NULL);
    tr_kv_find(d->b.kv, NULL, &key, d->tokens, TOKENS, &none);
    assert_int_equal(tr_kv_adopt(d->b.kv, slot, &key, &none), TR_OK);
    assert_int_equal(tr_kv_reserve(d->b.kv, slot, TOKENS), TR_OK);
    tr_kv_keep(d->b.kv, slot, d->tokens, TOKENS, true);
    tr_kv_close(d->b.kv, slot);
    while (stored(d) == 0) {
        assert_true(tr_kv_store_turn(d->b.kv));
    }
    tr_kv_expire(d->b.kv, UINT64_MAX - 1);
    d->r = make_request(&d->b, TOKENS, 20, 1);
    d->r->kv_reuse = true;
    d->r->sequences[0].tokens = tr_arena_alloc(&d->r->arena,
                                               4ull * (TOKENS + 20));
    memcpy(d->r->sequences[0].tokens, d->tokens, sizeof(d->tokens));
    tr_scheduler_add(&d->b.s, d->r);
}

static void
unmake(shelf_t *d)
{
    drop(&d->b, d->r);
    tr_kv_store_close(d->b.kv);
    tr_kv_expire(d->b.kv, UINT64_MAX - 1);
    fixture_free(&d->b);
}

/* A turn of the loop.  yield: others want the pages of what comes. */
static void
turn(shelf_t *d, bool yield)
{
    bool came = d->b.kv->store->n_gets != 0;

    tr_kv_store_turn(d->b.kv);
    if (yield && came) {
        assert_true(tr_kv_store_pages(d->b.kv) != 0);
        assert_true(tr_kv_store_yield(d->b.kv));
        assert_int_equal(tr_kv_store_pages(d->b.kv), 0);
    }
    came = d->b.kv->store->n_gets != 0;
    compose(&d->b);
    d->asked += !came && d->b.kv->store->n_gets != 0;
}

static bool
runs(const shelf_t *d)
{
    return d->r->sequences[0].state == TR_SEQ_RUNNING;
}

/* What it began with is there after so many times that it was not. */
static void
given_up(uint32_t times)
{
    bool computed = times >= TR_SCHEDULER_LOOKS;
    uint32_t spent = 0;
    shelf_t d;

    make(&d);
    for (uint32_t i = 0; i < times; i++) {
        turn(&d, i != 0);
        assert_false(runs(&d));
        assert_int_equal(d.asked, i + 1);
    }
    turn(&d, times != 0);
    while (!runs(&d)) {
        assert_true(!computed && spent++ < 50);
        turn(&d, false);
    }
    assert_int_equal(d.asked, computed ? TR_SCHEDULER_LOOKS : times + 1);
    assert_int_equal(d.b.s.counts.reused, computed ? 0 : TOKENS - 1);
    assert_int_equal(d.r->cached_tokens, computed ? 0 : TOKENS - 1);
    unmake(&d);
}

static void
lost_on_its_way(void **unused)
{
    (void) unused;
    for (uint32_t i = 0; i <= TR_SCHEDULER_LOOKS; i++) {
        given_up(i);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(lost_on_its_way) };

    return cmocka_run_group_tests_name("scheduler_shelf", tests, make_policies,
                                       free_policies);
}
