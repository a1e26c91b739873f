/*
 * The page pool and the KV cache: wrap-around, exhaustion, all or nothing,
 * forks, random operations against a plain model, and that a double free
 * cannot pass.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_internal.h"
#include "engine/kv/kv_pages.h"
#include "kernels/kv_manager/host.h"
#include "tests/unit/fixtures/must_abort.h"

static uint64_t random_state = 88172645463325252ull;

static uint32_t
random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t) ((random_state >> 32) % n);
}

/* ---- the ring of pages -------------------------------------------------- */

/* A manager of one head, for its ring. */
static tr_kv_manager_t
ring_of(uint32_t pages)
{
    tr_kv_layout_t layout = { .tokens = 16 };
    tr_kv_view_t shape = { .layers = 1,
                           .kv_heads = 1,
                           .n_layouts = 1,
                           .layout = &layout,
                           .page_bytes = 64,
                           .table_len = 8 };
    tr_kv_manager_size_t size = {
        .slots = 2, .pages = pages, .max_len = 64, .max_prompts = 1
    };
    size_t bytes = tr_kv_host_memory(&shape, &size);
    tr_kv_manager_t m;
    void *memory = aligned_alloc(256, tr_pad(bytes + pages * 64, 256));

    assert_non_null(memory);
    memset(memory, 0, bytes + pages * 64);
    shape.pool = (uint8_t *) memory + bytes;
    assert_int_equal(tr_kv_host_create(&shape, &size, memory, &m), 0);
    return m;
}

/* Moves the ring's start, as a grant does, and takes the page there. */
static int32_t
take(const tr_kv_manager_t *m, int32_t owner)
{
    int32_t page = -1;

    manager_fetch(m, m->report->start++, owner, &page);
    return page;
}

static void
give(const tr_kv_manager_t *m, int32_t page, int32_t owner)
{
    manager_store(m, m->report->end++, owner, &page);
    assert_int_equal(page, -1);
}

/* Every page is free once, or has an owner. */
static void
ring_is_whole(const tr_kv_manager_t *m)
{
    uint64_t left = m->report->end - m->report->start, unowned = 0;
    bool seen[16] = { false };

    assert_int_equal(m->report->faults, 0);
    for (uint64_t i = m->report->start; i != m->report->end; i++) {
        int32_t page = m->ring[i % m->size.pages];

        assert_in_range(page, 0, m->size.pages - 1);
        assert_false(seen[page]);
        assert_int_equal(m->owner[page], MANAGER_NOBODY);
        seen[page] = true;
    }
    for (uint32_t i = 0; i < m->size.pages; i++) {
        unowned += m->owner[i] == MANAGER_NOBODY;
    }
    assert_int_equal(unowned, left);
}

static void
pages_wrap_around(void **state)
{
    tr_kv_manager_t m = ring_of(7);
    int32_t held[7];
    uint32_t round, i;

    (void) state;
    /* 5 of 7 at a time: the indices pass the end in every position */
    for (round = 0; round < 1000; round++) {
        for (i = 0; i < 5; i++) {
            held[i] = take(&m, (int32_t) round);
        }
        assert_int_equal(m.report->end - m.report->start, 2);
        ring_is_whole(&m);
        for (i = 0; i < 5; i++) {
            give(&m, held[(i * 3) % 5], (int32_t) round);
        }
        assert_int_equal(m.report->end - m.report->start, 7);
        ring_is_whole(&m);
    }
    free(m.report);
}

static void
pages_full_is_not_empty(void **state)
{
    tr_kv_manager_t m = ring_of(4);
    int32_t held[4];
    uint32_t round, i;

    (void) state;
    for (round = 0; round < 9; round++) {
        for (i = 0; i < 4; i++) {
            held[i] = take(&m, 1);
        }
        assert_int_equal(m.report->end - m.report->start, 0);
        for (i = 0; i < 4; i++) {
            give(&m, held[i], 1);
        }
        assert_int_equal(m.report->end - m.report->start, 4);
        /* shift the indices by one for the next round */
        give(&m, take(&m, 1), 1);
    }
    ring_is_whole(&m);
    free(m.report);
}

/* A page given back to a ring of eight, of which one was taken by 3. */
static uint32_t
faults_of(int32_t page, int32_t owner, bool twice)
{
    tr_kv_manager_t m = ring_of(8);
    int32_t taken = take(&m, 3);
    uint32_t faults;

    assert_int_equal(taken, 0);
    if (twice) {
        give(&m, taken, 3);
    }
    give(&m, page, owner);
    faults = m.report->faults;
    free(m.report);
    return faults;
}

static void
pages_faults_are_counted(void **state)
{
    tr_kv_manager_t m = ring_of(4);

    (void) state;
    assert_int_equal(faults_of(0, 3, false), 0);
    assert_int_equal(faults_of(0, 3, true), 1);
    assert_int_equal(faults_of(0, 4, false), 1); /* another's */
    assert_int_equal(faults_of(1, 3, false), 1); /* nobody's */
    assert_int_equal(faults_of(-1, 3, false), 1);
    assert_int_equal(faults_of(8, 3, false), 1); /* no such page */
    for (uint32_t i = 0; i < 5; i++) {           /* one more than there are */
        take(&m, 1);
    }
    assert_int_equal(m.report->faults, 1);
    free(m.report);
}

/* ---- pages of swapped sequences ----------------------------------------- */

static void
swap_give_twice(void *arg)
{
    int32_t page = tr_kv_pages_take(arg, 0, 3);

    tr_kv_pages_give(arg, 0, page, 3);
    tr_kv_pages_give(arg, 1, page, 3);
}

static void
swap_give_of_another(void *arg)
{
    tr_kv_pages_give(arg, 0, tr_kv_pages_take(arg, 0, 3), 4);
}

static void
swap_give_no_page(void *arg)
{
    tr_kv_pages_give(arg, 0, -1, 3);
}

static void
swap_take_twice(void *arg)
{
    tr_kv_pages_take(arg, 2, 1);
    tr_kv_pages_take(arg, 2, 1);
}

static void
swap_faults_are_fatal(void **state)
{
    tr_kv_pages_t p;
    tr_error_t err;

    (void) state;
    assert_int_equal(tr_kv_pages_init(&p, 8, 64, &err), TR_OK);
    must_abort(swap_give_twice, &p, "kv pages corrupt");
    must_abort(swap_give_of_another, &p, "kv pages corrupt");
    must_abort(swap_give_no_page, &p, "kv pages corrupt");
    must_abort(swap_take_twice, &p, "kv pages corrupt");
    /* a lost page does not go unseen either */
    assert_true(tr_kv_pages_sound(&p));
    p.used++;
    assert_false(tr_kv_pages_sound(&p));
    tr_kv_pages_free(&p);
}

/* A page that its slot lost ends the process when it should come back. */
static void
lose_page(void *arg)
{
    tr_kv_cache_t *kv = arg;
    int32_t slot = tr_kv_open(kv, NULL);

    tr_kv_reserve(kv, slot, 1);
    kv->m.owner[manager_row(&kv->m, slot, 0)[0]] = 77;
    tr_kv_close(kv, slot);
}

/* So does one that it has beyond those that come back, */
static void
lose_count(void *arg)
{
    tr_kv_cache_t *kv = arg;
    int32_t slot = tr_kv_open(kv, NULL);

    tr_kv_reserve(kv, slot, 1);
    kv->m.slot[slot].pages++;
    tr_kv_close(kv, slot);
}

/* and a request that the manager refused. */
static void
go_on_refused(void *arg)
{
    tr_kv_cache_t *kv = arg;
    int32_t slot = tr_kv_open(kv, NULL);

    kv->m.slot[slot].out = true;
    tr_kv_host_prompt(&kv->m, &(tr_kv_begin_t){ slot, 1 }, 1);
    kv->m.slot[slot].out = false;
    tr_kv_prompt(kv, slot, 1);
}

/* ---- the cache ---------------------------------------------------------- */

/* All stays uncompressed. */
static const tr_kv_policy_row_t full_row = { .name = "full" };
static const tr_kv_policy_t full = { .name = "full",
                                     .spec = "full",
                                     .row = &full_row };
static const tr_kv_policy_t *const full_only[] = { &full };

static tr_kv_cache_t *
make(uint32_t layers, uint32_t kv_heads, uint32_t head_dim, uint32_t slots,
     uint32_t max_len, uint32_t pages)
{
    tr_kv_config_t c = { .layers = layers,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .slots = slots,
                         .max_len = max_len,
                         .memory = 1 << 30,
                         .policies = full_only,
                         .n_policies = 1 };
    tr_kv_cache_t *kv;
    tr_error_t err;

    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    c.memory = pages * tr_kv_page_bytes(kv) + 5;
    tr_kv_cache_free(kv);
    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    assert_int_equal(tr_kv_pages(kv), pages);
    return kv;
}

/* Tokens of an uncompressed page of head size 64, and its bytes. */
#define TOKENS 24u
#define BYTES 6144u

static void
cache_geometry(void **state)
{
    static const uint32_t dims[] = { 16, 32, 64, 80, 96, 128, 192, 256 };
    tr_kv_cache_t *kv;
    tr_kv_view_t view;
    uint32_t i, tokens;

    (void) state;
    for (i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        kv = make(3, 2, dims[i], 4, 1000, 1200);
        tr_kv_view(kv, &view);
        tokens = view.layout[0].tokens;
        assert_int_equal(view.page_bytes, (uint64_t) tokens * 4 * dims[i]);
        assert_in_range(view.page_bytes, 6144, 24576);
        assert_int_equal(view.page_bytes % 128, 0);
        assert_int_equal((uintptr_t) view.pool % 64, 0);
        assert_int_equal(view.n_layouts, 1);
        assert_int_equal(tr_kv_token_bytes(kv), 3u * 2 * 4 * dims[i]);
        assert_int_equal(tr_kv_pages_for(kv, NULL, 0), 0);
        assert_int_equal(tr_kv_pages_for(kv, NULL, 1), 6);
        assert_int_equal(tr_kv_pages_for(kv, NULL, tokens), 6);
        assert_int_equal(tr_kv_pages_for(kv, NULL, tokens + 1), 12);
        assert_int_equal(tr_kv_max_len(kv, NULL), 1000);
        tr_kv_cache_free(kv);
    }
}

static void
cache_refuses(void **state)
{
    tr_kv_config_t good = { .layers = 2,
                            .kv_heads = 2,
                            .head_dim = 64,
                            .slots = 4,
                            .max_len = 100,
                            .memory = 1 << 20,
                            .policies = full_only,
                            .n_policies = 1 };
    tr_kv_config_t c;
    tr_kv_cache_t *kv;
    tr_error_t err;

    (void) state;
    c = good;
    c.n_policies = 0;
    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_ERR_INVALID);
    assert_null(kv);
    c = good;
    c.memory = 3 * BYTES; /* four heads want a page each */
    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_ERR_INVALID);
    assert_string_equal(err.param, "kv_memory");
    c = good;
    c.head_dim = 0;
    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_ERR_INVALID);
    c.head_dim = 24;
    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_ERR_INVALID);
    c = good;
    c.slots = 0;
    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_ERR_INVALID);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Who has an address space of 2 GiB is told which setting asks for more. */
static void
cache_names_what_is_too_much(void **state)
{
    struct rlimit space = { 2ull << 30, 2ull << 30 };
    tr_kv_config_t c = { .layers = 32,
                         .kv_heads = 8,
                         .head_dim = 64,
                         .slots = 4,
                         .max_len = 1000,
                         .memory = 1ull << 33,
                         .policies = full_only,
                         .n_policies = 1 };
    tr_kv_cache_t *kv;
    tr_error_t err;
    pid_t pid = fork();
    int status;

    (void) state;
    if (pid == 0) {
        setrlimit(RLIMIT_AS, &space);
        if (tr_kv_cache_create(&c, &kv, &err) != TR_ERR_NOMEM
            || strcmp(err.param, "kv_memory") != 0) {
            _exit(1);
        }
        c.memory = 1ull << 30; /* 170,000 pages, 682 entries a row */
        c.slots = 4096;
        c.max_len = 100000;
        if (tr_kv_cache_create(&c, &kv, &err) != TR_ERR_NOMEM
            || strcmp(err.param, "max_num_seqs") != 0) {
            _exit(2);
        }
        c.slots = 4;
        _exit(tr_kv_cache_create(&c, &kv, &err) == TR_OK ? 0 : 3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
#endif

static void
cache_faults_are_fatal(void **state)
{
    tr_kv_cache_t *kv = make(1, 2, 64, 3, 100, 10);

    (void) state;
    must_abort(lose_page, kv,
               "kv pages corrupt call=close slot=0 faults=1 refused=0");
    must_abort(lose_count, kv, "need[0].pages == pages");
    must_abort(go_on_refused, kv,
               "kv pages corrupt call=prompt slot=0 faults=0 refused=1");
    tr_kv_cache_free(kv);
}

#ifdef TR_KV_POISON
static void
pages_are_poisoned(void **state)
{
    tr_kv_cache_t *kv = make(1, 1, 64, 3, 100, 10);
    int32_t slot = tr_kv_open(kv, NULL);
    uint8_t *page;

    (void) state;
    assert_int_equal(tr_kv_reserve(kv, slot, 1), TR_OK);
    page = tr_kv_page_at(&kv->view, manager_row(&kv->m, slot, 0)[0]);
    assert_int_equal(page[63], TR_KV_POISON);
    page[63] = 1;
    tr_kv_close(kv, slot);
    assert_int_equal(page[63], TR_KV_POISON);
    tr_kv_cache_free(kv);
}
#endif

static uint64_t
cached_tokens(const tr_kv_cache_t *kv)
{
    tr_kv_totals_t t;

    tr_kv_totals(kv, &t);
    assert_int_equal(t.full_bytes, t.tokens * tr_kv_token_bytes(kv));
    assert_int_equal(t.pages[0], tr_kv_pages(kv) - tr_kv_free_pages(kv));
    return t.tokens;
}

static void
cache_exhaustion(void **state)
{
    tr_kv_cache_t *kv = make(2, 2, 64, 3, 10000, 10);
    tr_kv_usage_t u;
    int32_t a, b, c;

    (void) state;
    assert_int_equal(tr_kv_max_len(kv, NULL), 2 * TOKENS); /* of each head */
    a = tr_kv_open(kv, NULL);
    b = tr_kv_open(kv, &full);
    c = tr_kv_open(kv, NULL);
    assert_int_equal(tr_kv_open(kv, NULL), -1);
    assert_int_equal(tr_kv_reserve(kv, a, 2 * TOKENS + 1), TR_AGAIN);
    assert_int_equal(tr_kv_reserve(kv, a, TOKENS), TR_OK);
    assert_int_equal(tr_kv_reserve(kv, b, 1), TR_OK);
    assert_int_equal(tr_kv_free_pages(kv), 2);
    /* four heads, two pages: nothing is given */
    assert_int_equal(tr_kv_reserve(kv, a, TOKENS + 1), TR_AGAIN);
    assert_int_equal(tr_kv_reserve(kv, c, 1), TR_AGAIN);
    assert_int_equal(tr_kv_free_pages(kv), 2);
    tr_kv_usage(kv, a, &u);
    assert_int_equal(u.tokens, TOKENS);
    assert_int_equal(u.bytes, 4 * BYTES);
    assert_int_equal(u.full_bytes, TOKENS * 4 * 256);
    assert_true(u.share_high == 1.0f && u.share_low == 0.0f
                && u.share_pruned == 0.0f);
    tr_kv_usage(kv, c, &u);
    assert_int_equal(u.bytes, 0);
    tr_kv_close(kv, b);
    assert_int_equal(cached_tokens(kv), TOKENS);
    assert_int_equal(tr_kv_reserve(kv, a, TOKENS + 1), TR_OK);
    tr_kv_close(kv, a);
    tr_kv_close(kv, c);
    assert_int_equal(tr_kv_free_pages(kv), 10);
    assert_int_equal(cached_tokens(kv), 0);
    assert_true(tr_kv_sound(kv));
    tr_kv_cache_free(kv);
}

static void
cache_holds_max_len_exactly(void **state)
{
    tr_kv_cache_t *kv = make(1, 2, 64, 1, 50, 100);
    int32_t a = tr_kv_open(kv, NULL);

    (void) state;
    assert_int_equal(tr_kv_max_len(kv, NULL), 50);
    assert_int_equal(tr_kv_reserve(kv, a, 50), TR_OK);
    assert_int_equal(tr_kv_reserve(kv, a, 51), TR_AGAIN);
    tr_kv_close(kv, a);
    tr_kv_cache_free(kv);
}

static uint8_t *
page_of(tr_kv_cache_t *kv, int32_t slot, uint32_t head, uint32_t i)
{
    tr_kv_view_t v;

    tr_kv_view(kv, &v);
    return v.pool
           + (uint64_t) tr_kv_table(&v, slot, head / v.kv_heads,
                                    head % v.kv_heads)[i]
                 * v.page_bytes;
}

static void
cache_fork_copies(void **state)
{
    tr_kv_cache_t *kv = make(2, 3, 64, 3, 1000, 30);
    int32_t a = tr_kv_open(kv, NULL), b = tr_kv_open(kv, NULL),
            c = tr_kv_open(kv, NULL);
    uint32_t head, i;

    (void) state;
    assert_int_equal(tr_kv_reserve(kv, a, 3 * TOKENS),
                     TR_OK); /* 3 pages a head */
    for (head = 0; head < 6; head++) {
        for (i = 0; i < 3; i++) {
            memset(page_of(kv, a, head, i), (int) (1 + head * 3 + i), BYTES);
        }
    }
    assert_int_equal(tr_kv_fork(kv, a, b, TOKENS + 1),
                     TR_OK); /* 2 pages a head */
    assert_int_equal(tr_kv_free_pages(kv), 0);
    assert_int_equal(tr_kv_fork(kv, a, c, 1), TR_AGAIN);
    for (head = 0; head < 6; head++) {
        for (i = 0; i < 2; i++) {
            assert_ptr_not_equal(page_of(kv, a, head, i),
                                 page_of(kv, b, head, i));
            assert_memory_equal(page_of(kv, a, head, i),
                                page_of(kv, b, head, i), BYTES);
        }
    }
    memset(page_of(kv, b, 0, 0), 0, BYTES);
    assert_int_equal(page_of(kv, a, 0, 0)[0], 1);
    tr_kv_close(kv, a);
    tr_kv_close(kv, b);
    tr_kv_close(kv, c);
    assert_true(tr_kv_sound(kv));
    assert_int_equal(tr_kv_free_pages(kv), 30);
    tr_kv_cache_free(kv);
}

static void
close_twice(void *arg)
{
    tr_kv_cache_t *kv = arg;
    int32_t slot = tr_kv_open(kv, NULL);

    tr_kv_reserve(kv, slot, 1);
    tr_kv_close(kv, slot);
    tr_kv_close(kv, slot);
}

static void
cache_double_close_is_fatal(void **state)
{
    tr_kv_cache_t *kv = make(1, 1, 64, 2, 100, 4);

    (void) state;
    must_abort(close_twice, kv, "slot[slot].open");
    tr_kv_cache_free(kv);
}

/* ---- random operations against a plain model ---------------------------- */

#define SLOTS 9
#define HEADS 6
#define PAGES 200

typedef struct {
    int32_t slot; /* -1: closed */
    uint32_t len;
    uint32_t pages; /* of each head */
    uint8_t tag[HEADS][64];
} model_t;

/* What was written in a sequence's pages is still there. */
static void
model_verify(tr_kv_cache_t *kv, const model_t *m)
{
    uint32_t head, i;

    for (head = 0; head < HEADS; head++) {
        for (i = 0; i < m->pages; i++) {
            const uint8_t *page = page_of(kv, m->slot, head, i);

            assert_int_equal(page[0], m->tag[head][i]);
            assert_int_equal(page[BYTES - 1], m->tag[head][i]);
        }
    }
}

static void
model_write(tr_kv_cache_t *kv, model_t *m, uint32_t from)
{
    uint32_t head, i;

    for (head = 0; head < HEADS; head++) {
        for (i = from; i < m->pages; i++) {
            uint8_t *page = page_of(kv, m->slot, head, i);

            m->tag[head][i] = (uint8_t) (1 + random_below(250));
            page[0] = page[BYTES - 1] = m->tag[head][i];
        }
    }
}

static void
model_grow(tr_kv_cache_t *kv, model_t *m, uint32_t *left)
{
    uint32_t len = m->len + random_below(random_below(3) == 0 ? 200 : 3);
    uint32_t pages = (len + TOKENS - 1) / TOKENS, old = m->pages;
    uint32_t want = pages > old ? (pages - old) * HEADS : 0;
    tr_status_t rc = tr_kv_reserve(kv, m->slot, len);

    if (want > *left || len > 1000) {
        assert_int_equal(rc, TR_AGAIN);
        return;
    }
    assert_int_equal(rc, TR_OK);
    m->len = len;
    m->pages = pages;
    *left -= want;
    model_write(kv, m, old);
}

static void
model_fork(tr_kv_cache_t *kv, const model_t *from, model_t *to, uint32_t *left)
{
    uint32_t len, pages;

    if (from->len == 0 || from == to || to->len != 0) {
        return;
    }
    len = 1 + random_below(from->len);
    pages = (len + TOKENS - 1) / TOKENS;
    if (pages * HEADS > *left) {
        assert_int_equal(tr_kv_fork(kv, from->slot, to->slot, len), TR_AGAIN);
        return;
    }
    assert_int_equal(tr_kv_fork(kv, from->slot, to->slot, len), TR_OK);
    *left -= pages * HEADS;
    to->len = len;
    to->pages = pages;
    memcpy(to->tag, from->tag, sizeof(to->tag));
}

static void
cache_random(void **state)
{
    tr_kv_cache_t *kv = make(3, 2, 64, SLOTS, 1000, PAGES);
    model_t m[SLOTS];
    uint32_t left = PAGES, step, i;

    (void) state;
    for (i = 0; i < SLOTS; i++) {
        m[i].slot = -1;
        m[i].len = m[i].pages = 0;
    }
    for (step = 0; step < 60000; step++) {
        model_t *a = &m[random_below(SLOTS)], *b = &m[random_below(SLOTS)];

        if (a->slot < 0) {
            a->slot = tr_kv_open(kv, NULL);
            assert_true(a->slot >= 0);
        } else if (random_below(12) == 0) {
            model_verify(kv, a);
            tr_kv_close(kv, a->slot);
            left += a->pages * HEADS;
            a->slot = -1;
            a->len = a->pages = 0;
        } else if (b->slot >= 0 && random_below(4) == 0) {
            model_fork(kv, a, b, &left);
        } else {
            model_grow(kv, a, &left);
        }
        assert_int_equal(tr_kv_free_pages(kv), left);
        if (step % 101 == 0) {
            assert_true(tr_kv_sound(kv));
        }
    }
    for (i = 0; i < SLOTS; i++) {
        if (m[i].slot >= 0) {
            model_verify(kv, &m[i]);
            tr_kv_close(kv, m[i].slot);
        }
    }
    assert_int_equal(tr_kv_free_pages(kv), PAGES);
    assert_true(tr_kv_sound(kv));
    tr_kv_cache_free(kv);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_wrap_around),
        cmocka_unit_test(pages_full_is_not_empty),
        cmocka_unit_test(pages_faults_are_counted),
        cmocka_unit_test(swap_faults_are_fatal),
        cmocka_unit_test(cache_faults_are_fatal),
#ifdef TR_KV_POISON
        cmocka_unit_test(pages_are_poisoned),
#endif
        cmocka_unit_test(cache_geometry),
        cmocka_unit_test(cache_refuses),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(cache_names_what_is_too_much),
#endif
        cmocka_unit_test(cache_exhaustion),
        cmocka_unit_test(cache_holds_max_len_exactly),
        cmocka_unit_test(cache_fork_copies),
        cmocka_unit_test(cache_double_close_is_fatal),
        cmocka_unit_test(cache_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
