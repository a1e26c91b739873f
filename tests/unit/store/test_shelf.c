/*
 * The shelf (engine/store/shelf.h) against a plain list of items: what is found is
 * what shares most whole blocks under the same key and policy, to the token; its
 * tokens, counts and pages are those that were put, whatever came and went since;
 * what is held, or being filled, stays; and what goes was used longest ago.
 *
 *   TR_SHELF_OPS=N   operations (default 30,000)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/store/shelf.h"
#include "tests/unit/fixtures/random.h"

#define PAGE 16u
#define CHUNK_PAGES 4u
#define CHUNKS 40u
#define LONGEST 400u
#define COUNTS 3u
#define MOST 64u

typedef struct {
    bool used, filling;
    uint32_t id, n, pages, holds;
    uint64_t at; /* last use */
    uint8_t key, policy;
    int32_t token[LONGEST];
} plain_t;

typedef struct {
    tr_shelf_t *shelf;
    uint8_t memory[CHUNKS * CHUNK_PAGES * PAGE];
    plain_t item[MOST];
    uint64_t now, found, puts, evicted, tight;
} world_t;

/* Of all that decides what an item's pages hold. */
static uint8_t
byte_of(const plain_t *p, uint32_t i)
{
    return (uint8_t) (p->n * 7 + p->token[p->n - 1] * 3 + p->key + i);
}

static void
make_tokens(plain_t *p)
{
    uint32_t same = random_below(LONGEST), text = random_below(3);

    p->n = 1 + random_below(LONGEST);
    p->key = (uint8_t) random_below(2);
    p->policy = (uint8_t) random_below(2);
    for (uint32_t i = 0; i < LONGEST; i++) {
        p->token[i] = i < same ? (int32_t) (text * 5 + i % 11)
                               : (int32_t) random_below(3);
    }
}

static void
describe(plain_t *p, tr_store_item_t *item, uint32_t counts[COUNTS])
{
    memset(item, 0, sizeof(*item));
    item->key.len = 1;
    item->key.bytes[0] = p->key;
    item->policy[3] = p->policy;
    item->n_tokens = p->n;
    item->n_pages = p->pages;
    item->number[1] = p->n * 3;
    item->tokens = p->token;
    item->counts = counts;
    for (uint32_t i = 0; i < COUNTS; i++) {
        counts[i] = p->n + i;
    }
}

static void
each_byte(world_t *w, const plain_t *p, bool check)
{
    uint32_t chunk = tr_shelf_first(w->shelf, p->id), i = 0;

    for (; chunk != TR_SHELF_NONE; chunk = tr_shelf_behind(w->shelf, chunk)) {
        uint8_t *at = tr_shelf_chunk(w->shelf, chunk);

        for (uint32_t k = 0; k < CHUNK_PAGES * PAGE; k++, i++) {
            if (check) {
                assert_int_equal(at[k], byte_of(p, i));
            } else {
                at[k] = byte_of(p, i);
            }
        }
    }
    assert_true(i >= p->pages * PAGE && i < (p->pages + CHUNK_PAGES) * PAGE);
}

static bool
begins(const plain_t *longer, const plain_t *p)
{
    return longer->used && longer->key == p->key && longer->policy == p->policy
           && longer->n >= p->n
           && memcmp(longer->token, p->token, p->n * 4) == 0;
}

static uint32_t
chunks_of(const plain_t *p)
{
    return (p->pages + CHUNK_PAGES - 1) / CHUNK_PAGES;
}

/* Which goes next, of those that can; NULL: none. */
static plain_t *
oldest(world_t *w)
{
    plain_t *best = NULL;

    for (uint32_t i = 0; i < MOST; i++) {
        plain_t *p = &w->item[i];

        if (p->used && !p->filling && p->holds == 0
            && (best == NULL || p->at < best->at)) {
            best = p;
        }
    }
    return best;
}

/* Is there room, when all that may go have gone?  These go. */
static bool
plain_room(world_t *w, uint32_t chunks)
{
    uint32_t used = 0, fixed = 0;

    for (uint32_t i = 0; i < MOST; i++) {
        const plain_t *p = &w->item[i];

        used += p->used ? chunks_of(p) : 0;
        fixed += p->used && (p->filling || p->holds != 0) ? chunks_of(p) : 0;
    }
    if (fixed + chunks > CHUNKS) {
        return false;
    }
    while (used + chunks > CHUNKS) {
        plain_t *p = oldest(w);

        used -= chunks_of(p);
        p->used = false;
        w->evicted++;
    }
    return true;
}

static void
do_put(world_t *w)
{
    uint32_t counts[COUNTS], id, i = 0;
    plain_t p = { 0 };
    tr_store_item_t item;
    bool there, covered = false;

    make_tokens(&p);
    p.pages = 1 + random_below(30);
    p.at = w->now;
    for (uint32_t k = 0; k < MOST && !covered; k++) {
        covered = begins(&w->item[k], &p);
    }
    if (covered) { /* by_hand has that */
        return;
    }
    describe(&p, &item, counts);
    id = tr_shelf_put(w->shelf, &item, w->now, &there);
    assert_false(there);
    if (!plain_room(w, chunks_of(&p))) {
        assert_int_equal(id, TR_SHELF_NONE);
        w->tight++;
        return;
    }
    assert_true(id != TR_SHELF_NONE);
    while (w->item[i].used) {
        i++;
    }
    p.used = p.filling = true;
    p.id = id;
    w->item[i] = p;
    each_byte(w, &w->item[i], false);
    w->puts++;
}

/* What is being filled is whole, or is not wanted. */
static void
do_over(world_t *w, plain_t *p)
{
    bool whole = random_below(5) != 0;

    tr_shelf_put_over(w->shelf, p->id, whole);
    p->filling = false;
    p->used = whole;
    for (uint32_t k = 0; k < MOST && whole; k++) {
        plain_t *o = &w->item[k];

        if (o != p && o->used && !o->filling && o->holds == 0 && begins(p, o)) {
            o->used = false;
        }
    }
}

static uint32_t
common_of(const plain_t *a, const plain_t *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n;

    return tr_prefix_common(a->token, b->token, n);
}

static void
do_find(world_t *w)
{
    uint32_t from = random_below(3) == 0 ? random_below(LONGEST) : 0, blocks;
    uint32_t counts[COUNTS], best = from / TR_STORE_BLOCK, common, id;
    tr_store_item_t item, got;
    plain_t p = { 0 };

    make_tokens(&p);
    describe(&p, &item, counts);
    for (uint32_t k = 0; k < MOST; k++) {
        const plain_t *o = &w->item[k];

        if (o->used && !o->filling && o->key == p.key
            && o->policy == p.policy) {
            blocks = common_of(o, &p) / TR_STORE_BLOCK;
            best = blocks > best ? blocks : best;
        }
    }
    id = tr_shelf_find(w->shelf, &item.key, item.policy, p.token, p.n, from,
                       &common);
    if (id == TR_SHELF_NONE) {
        assert_int_equal(best, from / TR_STORE_BLOCK);
        return;
    }
    assert_true(best > from / TR_STORE_BLOCK && common > from);
    w->found++;
    for (uint32_t k = 0; k < MOST; k++) {
        plain_t *o = &w->item[k];

        if (!o->used || o->filling || o->id != id) {
            continue;
        }
        assert_int_equal(common, common_of(o, &p));
        assert_int_equal(common / TR_STORE_BLOCK, best);
        tr_shelf_item(w->shelf, id, &got);
        assert_true(got.n_tokens == o->n && got.n_pages == o->pages
                    && got.number[1] == o->n * 3 && got.counts[2] == o->n + 2
                    && memcmp(got.tokens, o->token, o->n * 4) == 0);
        each_byte(w, o, true);
        if (random_below(2) == 0) {
            tr_shelf_hold(w->shelf, id, w->now);
            o->holds++;
            o->at = w->now;
        }
        return;
    }
    fail_msg("what was found is not there");
}

static void
do_expire(world_t *w)
{
    uint64_t before = w->now - random_below(200);

    tr_shelf_expire(w->shelf, before);
    for (uint32_t k = 0; k < MOST; k++) {
        plain_t *p = &w->item[k];

        p->used = p->used && (p->filling || p->holds != 0 || p->at >= before);
    }
}

static void
check_stats(const world_t *w)
{
    tr_shelf_stats_t s;
    uint64_t items = 0, chunks = 0;

    for (uint32_t k = 0; k < MOST; k++) {
        items += w->item[k].used;
        chunks += w->item[k].used ? chunks_of(&w->item[k]) : 0;
    }
    tr_shelf_stats(w->shelf, &s);
    assert_int_equal(s.items, items);
    assert_int_equal(s.bytes, chunks * CHUNK_PAGES * PAGE);
}

static void
make(world_t *w)
{
    tr_shelf_config_t c = { .memory = w->memory,
                            .chunks = CHUNKS,
                            .page_bytes = PAGE,
                            .chunk_pages = CHUNK_PAGES,
                            .counts = COUNTS,
                            .max_len = LONGEST };

    w->now = 1000;
    w->shelf = tr_shelf_create(&c);
    assert_non_null(w->shelf);
}

static void
random_operations(void **unused)
{
    const char *ops = getenv("TR_SHELF_OPS");
    uint64_t n = ops != NULL ? strtoull(ops, NULL, 10) : 30000;
    world_t *w = calloc(1, sizeof(*w));

    (void) unused;
    assert_non_null(w);
    make(w);
    for (uint64_t i = 0; i < n; i++) {
        plain_t *p = &w->item[random_below(MOST)];

        w->now++;
        if (p->used && p->filling) {
            do_over(w, p);
        } else if (p->used && p->holds != 0) {
            tr_shelf_drop(w->shelf, p->id, random_below(2) == 0);
            p->holds--;
        } else if (random_below(200) == 0) {
            do_expire(w);
        } else if (random_below(3) == 0) {
            do_put(w);
        } else {
            do_find(w);
        }
        assert_true(tr_shelf_sound(w->shelf));
        check_stats(w);
    }
    print_message("%llu put, %llu found, %llu evicted, %llu without room\n",
                  (unsigned long long) w->puts, (unsigned long long) w->found,
                  (unsigned long long) w->evicted,
                  (unsigned long long) w->tight);
    assert_true(w->puts != 0 && w->found != 0 && w->evicted != 0
                && w->tight != 0);
    tr_shelf_free(w->shelf);
    free(w);
}

/* What is there already is not put again, and is used by that: the other one makes
 * room. */
static void
by_hand(void **unused)
{
    static world_t w;
    uint32_t counts[COUNTS], id[2], common, i;
    plain_t p[3] = { 0 };
    tr_store_item_t item;
    bool there;

    (void) unused;
    make(&w);
    for (i = 0; i < 3; i++) {
        p[i].n = 100;
        p[i].pages = 20 * CHUNK_PAGES;
        memset(p[i].token, (int) i, sizeof(p[i].token));
    }
    for (i = 0; i < 2; i++) {
        describe(&p[i], &item, counts);
        id[i] = tr_shelf_put(w.shelf, &item, i, &there);
        assert_true(id[i] != TR_SHELF_NONE);
        /* it is not found before it is whole */
        assert_int_equal(tr_shelf_find(w.shelf, &item.key, item.policy,
                                       p[i].token, 100, 0, &common),
                         TR_SHELF_NONE);
        tr_shelf_put_over(w.shelf, id[i], true);
    }
    p[0].n = 70; /* a part of the first */
    describe(&p[0], &item, counts);
    assert_int_equal(tr_shelf_put(w.shelf, &item, 7, &there), TR_SHELF_NONE);
    assert_true(there);
    describe(&p[2], &item, counts);
    assert_true(tr_shelf_put(w.shelf, &item, 8, &there) != TR_SHELF_NONE);
    describe(&p[1], &item, counts);
    assert_int_equal(tr_shelf_find(w.shelf, &item.key, item.policy, p[1].token,
                                   100, 0, &common),
                     TR_SHELF_NONE);
    describe(&p[0], &item, counts);
    assert_int_equal(tr_shelf_find(w.shelf, &item.key, item.policy, p[0].token,
                                   100, 0, &common),
                     id[0]);
    assert_int_equal(common, 100);
    tr_shelf_free(w.shelf);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(by_hand),
                                        cmocka_unit_test(random_operations) };

    return cmocka_run_group_tests_name("shelf", tests, NULL, NULL);
}
