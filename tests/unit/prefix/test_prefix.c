/*
 * The prefix tree against a plain model: a list of token lists, searched from
 * end to end.  Every operation is done in both, the tree is sound after each, and
 * in the end nothing is held and every page has come back.
 *
 *   TR_PREFIX_OPS=N   operations of the random test (default 20,000)
 *   TR_PREFIX_SEED=N  the seed that a failure printed
 */
#include "engine/prefix/prefix.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/fixtures/random.h"

#define BLOCK 4u
#define BLOCKS 40u
#define KEYS 3u /* at once, of OWNERS */
#define OWNERS 5u
#define LONGEST 30u
#define RUNNING 6u

static uint64_t seed;

#define REQUIRE(x)                                  \
    do {                                            \
        if (!(x)) {                                 \
            fail_msg("%s, TR_PREFIX_SEED=%llu", #x, \
                     (unsigned long long) seed);    \
        }                                           \
    } while (0)

/* ---- the model ---------------------------------------------------------- */

/* A block: all tokens from the first one to its last. */
typedef struct {
    bool there;
    uint32_t owner, n, pins;
    int32_t token[LONGEST];
    uint64_t used;
    uint32_t node; /* what the tree calls it */
} block_t;

/* A sequence that runs: its prompt, and the block that it has pinned. */
typedef struct {
    bool there;
    uint32_t owner, n, goal;
    int32_t token[LONGEST];
    uint32_t node, blocks; /* pinned, and how deep that is */
} running_t;

typedef struct {
    tr_prefix_t *t;
    block_t block[BLOCKS];
    bool page[BLOCKS]; /* has pages: it is there, or may soon be */
    running_t running[RUNNING];
    uint64_t now;
    uint32_t gone; /* blocks, in the last operation */
    uint32_t last; /* the newest of them */
} world_t;

static void
make_key(uint32_t owner, tr_prefix_key_t *key)
{
    memset(key, 0, sizeof(*key));
    /* one is the beginning of another */
    key->len = owner;
    memset(key->bytes, 7, owner);
}

static bool
begins(const block_t *b, const int32_t *token, uint32_t n)
{
    return b->n <= n && memcmp(b->token, token, b->n * sizeof(*token)) == 0;
}

static uint32_t
alike(const block_t *b, const int32_t *token, uint32_t n)
{
    uint32_t i = 0;

    while (i < n && i < b->n && b->token[i] == token[i]) {
        i++;
    }
    return i;
}

/* Blocks that b is the beginning of, with their pins. */
static uint32_t
behind(const world_t *w, const block_t *b, uint32_t *pins)
{
    uint32_t n = 0;

    *pins = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const block_t *o = &w->block[i];

        if (o->there && o->owner == b->owner && b->n % BLOCK == 0 && o->n > b->n
            && begins(b, o->token, o->n)) {
            n++;
            *pins += o->pins;
        }
    }
    return n;
}

static bool
can_go(const world_t *w, const block_t *b)
{
    uint32_t pins;

    return b->there && b->pins == 0 && behind(w, b, &pins) == 0;
}

/* What the tree calls `node`. */
static block_t *
block_of(world_t *w, uint32_t node)
{
    uint32_t i = 0;

    while (i < BLOCKS && !(w->block[i].there && w->block[i].node == node)) {
        i++;
    }
    REQUIRE(i < BLOCKS);
    return &w->block[i];
}

/* The tree says that a block has gone: one that could. */
static void
give(void *arg, uint32_t node)
{
    world_t *w = arg;
    block_t *b = block_of(w, node), *parent = NULL;
    uint32_t i = (uint32_t) (b - w->block);

    REQUIRE(w->page[i] && can_go(w, b));
    w->page[i] = b->there = false;
    w->gone++;
    w->last = i;
    for (uint32_t j = 0; j < BLOCKS; j++) { /* its parent is as young as it */
        block_t *o = &w->block[j];

        if (o->there && o->owner == b->owner && o->n < b->n && o->n % BLOCK == 0
            && o->n / BLOCK == (b->n - 1) / BLOCK
            && begins(o, b->token, b->n)) {
            parent = o;
        }
    }
    if (parent != NULL && parent->used < b->used) {
        parent->used = b->used;
    }
}

static uint32_t
count(const world_t *w, uint32_t owner)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < BLOCKS; i++) {
        n += w->block[i].there
             && (owner == OWNERS || w->block[i].owner == owner);
    }
    return n;
}

static void
verify(const world_t *w)
{
    uint32_t held = 0, tokens = 0, held_tokens = 0, keys = 0, i, pins;
    tr_prefix_stats_t s;

    REQUIRE(tr_prefix_sound(w->t));
    for (i = 0; i < BLOCKS; i++) {
        const block_t *b = &w->block[i];
        uint32_t own;

        if (!b->there) {
            continue;
        }
        behind(w, b, &pins);
        own = (b->n - 1) % BLOCK + 1;
        tokens += own;
        held += b->pins + pins != 0;
        held_tokens += b->pins + pins != 0 ? own : 0;
    }
    for (i = 0; i < OWNERS; i++) {
        keys += count(w, i) != 0;
    }
    tr_prefix_stats(w->t, &s);
    REQUIRE(s.nodes == count(w, OWNERS) && s.held == held);
    REQUIRE(s.tokens == tokens && s.held_tokens == held_tokens);
    REQUIRE(s.keys == keys);
}

/* ---- operations --------------------------------------------------------- */

/* Few tokens and common beginnings, so that much is shared. */
static uint32_t
make_tokens(const world_t *w, int32_t *token)
{
    uint32_t n = 1 + random_below(LONGEST), from = 0;
    const block_t *b = &w->block[random_below(BLOCKS)];

    if (b->there && random_below(4) != 0) {
        from = random_below(b->n + 1);
        from = from < n ? from : n;
        memcpy(token, b->token, from * sizeof(*token));
    }
    for (uint32_t i = from; i < n; i++) {
        token[i] = (int32_t) random_below(random_below(2) == 0 ? 2 : 50);
    }
    return n;
}

static void
match(world_t *w, uint32_t owner, const int32_t *token, uint32_t n,
      tr_prefix_match_t *m)
{
    uint32_t most = 0, i, blocks;
    tr_prefix_key_t key;

    for (i = 0; i < BLOCKS; i++) {
        if (w->block[i].there && w->block[i].owner == owner) {
            uint32_t c = alike(&w->block[i], token, n);

            most = c > most ? c : most;
        }
    }
    make_key(owner, &key);
    tr_prefix_match(w->t, &key, token, n, m);
    REQUIRE(m->tokens == most);
    blocks = most / BLOCK;
    REQUIRE(m->blocks == blocks && m->part_tokens == most % BLOCK);
    REQUIRE((m->node != TR_PREFIX_NONE) == (blocks != 0));
    REQUIRE((m->part != TR_PREFIX_NONE) == (most % BLOCK != 0));
    if (m->part != TR_PREFIX_NONE) { /* a cut: these tokens are in it */
        const block_t *b = block_of(w, m->part);

        REQUIRE(b->there && b->node == m->part && b->owner == owner);
        REQUIRE(alike(b, token, n) == most);
        REQUIRE(tr_prefix_parent(w->t, m->part) == m->node);
    }
    for (uint32_t node = m->node; blocks != 0; blocks--) {
        const block_t *b = block_of(w, node);

        REQUIRE(b->there && b->node == node && b->owner == owner);
        REQUIRE(b->n == blocks * BLOCK && begins(b, token, n));
        node = tr_prefix_parent(w->t, node);
        REQUIRE((node == TR_PREFIX_NONE) == (blocks == 1));
    }
}

/* All that are pinned, or in front of one that is, are as young as now. */
static void
model_unpin(world_t *w, uint32_t node)
{
    block_t *b = block_of(w, node);
    uint32_t pins;

    REQUIRE(b->pins != 0);
    b->pins--;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        block_t *o = &w->block[i];

        if (o->there && o->owner == b->owner && o->pins == 0
            && (o == b || (o->n % BLOCK == 0 && begins(o, b->token, b->n)))) {
            behind(w, o, &pins);
            /* what is still held learns later */
            if (pins == 0) {
                o->used = w->now;
            }
        }
    }
}

static void
pin(world_t *w, uint32_t node)
{
    if (node != TR_PREFIX_NONE) {
        tr_prefix_pin(w->t, node);
        block_of(w, node)->pins++;
    }
}

static void
unpin(world_t *w, uint32_t node)
{
    if (node != TR_PREFIX_NONE) {
        model_unpin(w, node);
        tr_prefix_unpin(w->t, node, w->now);
    }
}

static bool
evict(world_t *w, uint32_t owner)
{
    uint64_t oldest = UINT64_MAX, own = UINT64_MAX;
    uint32_t keys = 0, i;
    tr_prefix_key_t key;
    uint64_t used[BLOCKS];
    bool some, share;

    for (i = 0; i < BLOCKS; i++) {
        const block_t *b = &w->block[i];

        used[i] = b->used;
        if (can_go(w, b)) {
            oldest = b->used < oldest ? b->used : oldest;
            if (b->owner == owner && b->used < own) {
                own = b->used;
            }
        }
    }
    for (i = 0; i < OWNERS; i++) {
        keys += count(w, i) != 0;
    }
    share = own != UINT64_MAX && count(w, owner) * keys > count(w, OWNERS);
    make_key(owner, &key);
    w->gone = 0;
    some = tr_prefix_evict(w->t, owner == OWNERS ? NULL : &key);
    REQUIRE(some == (oldest != UINT64_MAX) && w->gone == some);
    if (some) {
        REQUIRE(used[w->last] == (share ? own : oldest));
        REQUIRE(!share || w->block[w->last].owner == owner);
    }
    return some;
}

/* The pages of a block, which have a number here; none: -1. */
static int32_t
take_pages(world_t *w, uint32_t owner)
{
    for (;;) {
        for (uint32_t i = 0; i < BLOCKS; i++) {
            if (!w->page[i]) {
                w->page[i] = true;
                return (int32_t) i;
            }
        }
        if (!evict(w, owner)) {
            return -1;
        }
    }
}

/* The next block of a sequence joins the tree, as far as it is said. */
static bool
add_block(world_t *w, running_t *r, uint32_t n)
{
    uint32_t first = r->blocks * BLOCK, node, keys = 0, i;
    int32_t at = take_pages(w, r->owner);
    block_t *b, before = { 0 };
    tr_prefix_key_t key;
    tr_prefix_add_t what;

    if (at < 0) {
        return false;
    }
    for (i = 0; i < OWNERS; i++) {
        keys += count(w, i) != 0;
    }
    /* what the new one makes superfluous */
    for (i = 0; i < BLOCKS; i++) {
        const block_t *o = &w->block[i];

        if (o->there && o->owner == r->owner && o->n > first && o->n < first + n
            && begins(o, r->token, first + n) && can_go(w, o)) {
            before = *o;
        }
    }
    make_key(r->owner, &key);
    b = &w->block[at];
    w->gone = 0;
    /* before the call: give looks for the parent of what goes */
    *b = (block_t){ .owner = r->owner, .n = first + n, .used = w->now };
    memcpy(b->token, r->token, b->n * sizeof(*r->token));
    what = tr_prefix_add(w->t, &key, r->node, r->token + first, n, w->now,
                         &node);
    if (what == TR_PREFIX_NEW) {
        b->there = true;
        b->node = node;
        REQUIRE(node < BLOCKS);
        REQUIRE(tr_prefix_parent(w->t, node) == r->node);
        REQUIRE(w->gone == before.there);
    } else {
        w->page[at] = false;
        REQUIRE(w->gone == 0);
        if (what == TR_PREFIX_FULL) {
            REQUIRE(keys == KEYS && count(w, r->owner) == 0);
            return false;
        }
        b = block_of(w, node);
        REQUIRE(b->there && b->owner == r->owner
                && alike(b, r->token, first + n) == first + n);
    }
    if (n == BLOCK) { /* the sequence goes on behind it */
        pin(w, node);
        unpin(w, r->node);
        r->node = node;
        r->blocks++;
    }
    return true;
}

/* A request: its match is pinned, then it runs, or there is no room. */
static void
do_start(world_t *w, running_t *r)
{
    tr_prefix_match_t m;

    r->owner = random_below(OWNERS);
    r->goal = make_tokens(w, r->token);
    match(w, r->owner, r->token, r->goal - 1, &m);
    pin(w, m.node);
    pin(w, m.part);
    if (random_below(5) == 0) { /* it was not admitted */
        unpin(w, m.part);
        unpin(w, m.node);
        return;
    }
    for (uint32_t i = random_below(3); i != 0;
         i--) { /* it takes pages of its own */
        evict(w, r->owner);
    }
    unpin(w, m.part);
    r->there = true;
    r->node = m.node;
    r->blocks = m.blocks;
    r->n = m.tokens;
}

static void
do_run(world_t *w, running_t *r)
{
    switch (random_below(8)) {
    case 0: /* aborted, or preempted */
        break;
    case 1: /* the end of an answer: all of it is kept */
        r->n = r->goal;
        while ((r->blocks + 1) * BLOCK <= r->n) {
            if (!add_block(w, r, BLOCK)) {
                break;
            }
        }
        if ((r->blocks + 1) * BLOCK > r->n && r->n % BLOCK != 0) {
            add_block(w, r, r->n % BLOCK);
        }
        break;
    default: /* a chunk is computed */
        if (r->n < r->goal) {
            r->n += 1 + random_below(r->goal - r->n);
        }
        while ((r->blocks + 1) * BLOCK <= r->n && add_block(w, r, BLOCK)) {
        }
        return;
    }
    unpin(w, r->node);
    r->there = false;
}

static void
do_expire(world_t *w)
{
    uint64_t before = w->now - random_below(50);

    tr_prefix_expire(w->t, before);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        REQUIRE(!can_go(w, &w->block[i]) || w->block[i].used >= before);
    }
}

static void
random_operations(void **unused)
{
    const char *ops = getenv("TR_PREFIX_OPS"),
               *given = getenv("TR_PREFIX_SEED");
    uint64_t n = ops != NULL ? strtoull(ops, NULL, 10) : 20000;
    world_t *w = calloc(1, sizeof(*w));
    tr_prefix_config_t config = { .block_tokens = BLOCK,
                                  .blocks = BLOCKS,
                                  .keys = KEYS,
                                  .give = give,
                                  .arg = w };
    tr_prefix_match_t m;
    int32_t token[LONGEST];

    (void) unused;
    assert_non_null(w);
    seed = given != NULL ? strtoull(given, NULL, 10) : 20261126;
    random_state = config.seed = seed;
    w->t = tr_prefix_create(&config);
    assert_non_null(w->t);
    w->now = 100;
    for (uint64_t i = 0; i < n; i++) {
        running_t *r = &w->running[random_below(RUNNING)];
        uint32_t what = random_below(20), len;

        w->now += random_below(3);
        if (what == 0) {
            do_expire(w);
        } else if (what < 3) {
            evict(w, random_below(OWNERS + 1));
        } else if (what < 6) {
            len = make_tokens(w, token);
            match(w, random_below(OWNERS), token, len, &m);
        } else if (r->there) {
            do_run(w, r);
        } else {
            do_start(w, r);
        }
        verify(w);
    }
    for (uint32_t i = 0; i < RUNNING; i++) {
        if (w->running[i].there) {
            unpin(w, w->running[i].node);
        }
    }
    verify(w);
    while (evict(w, OWNERS)) {
        verify(w);
    }
    REQUIRE(count(w, OWNERS) == 0);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        REQUIRE(!w->page[i]);
    }
    tr_prefix_free(w->t);
    free(w);
}

/* ---- by hand ------------------------------------------------------------ */

static void
give_count(void *arg, uint32_t node)
{
    (void) node;
    ++*(uint32_t *) arg;
}

/* Two users behind one system prompt, and a third under another key. */
static void
two_users(void **unused)
{
    static const int32_t system[] = { 1, 2, 3, 4, 5, 6, 7, 8 },
                         one[] = { 9, 10, 11 }, two[] = { 9, 10, 12, 13 },
                         ask[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 99 };
    uint32_t gave = 0, first, second, a, b;
    tr_prefix_config_t config = { .block_tokens = 4,
                                  .blocks = 10,
                                  .keys = 2,
                                  .give = give_count,
                                  .arg = &gave };
    tr_prefix_t *t = tr_prefix_create(&config);
    tr_prefix_key_t key = { 1, { 5 } }, other = { 2, { 5, 0 } };
    tr_prefix_match_t m;
    tr_prefix_stats_t s;

    (void) unused;
    assert_non_null(t);
    assert_int_equal(tr_prefix_add(t, &key, TR_PREFIX_NONE, system, 4, 1,
                                   &first),
                     TR_PREFIX_NEW);
    tr_prefix_pin(t, first);
    assert_int_equal(tr_prefix_add(t, &key, first, system + 4, 4, 2, &second),
                     TR_PREFIX_NEW);
    tr_prefix_pin(t, second);
    assert_int_equal(tr_prefix_add(t, &key, second, one, 3, 3, &a),
                     TR_PREFIX_NEW);
    assert_int_equal(tr_prefix_add(t, &key, second, two, 4, 4, &b),
                     TR_PREFIX_NEW);
    tr_prefix_match(t, &key, ask, 12, &m);
    assert_int_equal(m.tokens, 11);
    assert_int_equal(m.node, second);
    assert_int_equal(m.part, b);
    assert_int_equal(m.part_tokens, 3);
    tr_prefix_match(t, &key, ask, 10, &m); /* no more than is asked for */
    assert_int_equal(m.tokens, 10);
    tr_prefix_match(t, &other, ask, 12, &m);
    assert_int_equal(m.tokens, 0);
    assert_int_equal(tr_prefix_add(t, &key, second, two, 2, 5, &a),
                     TR_PREFIX_THERE); /* the tree says it already */
    tr_prefix_unpin(t, first, 6);
    tr_prefix_stats(t, &s);
    assert_int_equal(s.held, 2);
    assert_true(tr_prefix_evict(t, NULL));
    assert_true(tr_prefix_evict(t, NULL));
    assert_false(tr_prefix_evict(t, NULL)); /* the system prompt is held */
    assert_int_equal(gave, 2);
    tr_prefix_unpin(t, second, 7);
    assert_true(tr_prefix_sound(t));
    tr_prefix_expire(t, 8);
    tr_prefix_stats(t, &s);
    assert_int_equal(s.nodes, 0);
    assert_int_equal(s.keys, 0);
    assert_int_equal(gave, 4);
    tr_prefix_free(t);
}

/* An answer that goes on takes the place of the block where it stopped. */
static void
longer_tail(void **unused)
{
    static const int32_t text[] = { 4, 5, 6, 7 };
    uint32_t gave = 0, a, b;
    tr_prefix_config_t config = { .block_tokens = 4,
                                  .blocks = 3,
                                  .keys = 1,
                                  .give = give_count,
                                  .arg = &gave };
    tr_prefix_t *t = tr_prefix_create(&config);
    tr_prefix_key_t key = { 0, { 0 } };
    tr_prefix_stats_t s;

    (void) unused;
    assert_non_null(t);
    tr_prefix_add(t, &key, TR_PREFIX_NONE, text, 2, 1, &a);
    tr_prefix_pin(t, a); /* somebody copies it */
    assert_int_equal(tr_prefix_add(t, &key, TR_PREFIX_NONE, text, 3, 2, &b),
                     TR_PREFIX_NEW);
    assert_int_equal(gave, 0);
    tr_prefix_unpin(t, a, 3);
    assert_int_equal(tr_prefix_add(t, &key, TR_PREFIX_NONE, text, 4, 4, &a),
                     TR_PREFIX_NEW);
    assert_int_equal(gave, 1); /* the one of three tokens */
    tr_prefix_stats(t, &s);
    assert_int_equal(s.nodes, 2);
    assert_int_equal(tr_prefix_add(t, &key, TR_PREFIX_NONE, text + 1, 3, 5, &b),
                     TR_PREFIX_NEW);
    assert_int_equal(tr_prefix_add(t, &key, TR_PREFIX_NONE, text + 2, 2, 5, &b),
                     TR_PREFIX_FULL);
    assert_true(tr_prefix_sound(t));
    tr_prefix_free(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(two_users),
                                        cmocka_unit_test(longer_tail),
                                        cmocka_unit_test(random_operations) };

    return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
