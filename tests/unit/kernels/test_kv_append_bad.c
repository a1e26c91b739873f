/*
 * Steps and plans that kv_append and kv_compress cannot follow: each is refused
 * and changes nothing.
 */
#include "tests/unit/fixtures/kv/kv_append_step.h"

/* A slot with tiers and window, ready for a step of one token. */
static kv_fixture_t *
fixture_ready(const case_t *c, uint32_t len)
{
    kv_fixture_t *b = kv_fixture_open(c);
    uint32_t n[SLOTS] = { 60, 0, 0 };

    for (uint32_t i = 0; i < len / 60; i++) {
        append(b, n);
    }
    compress(b, 0);
    n[0] = 1;
    for (uint32_t i = 0; i < 2 * c->leaves + 8; i++) {
        append(b, n);
    }
    check_slot(b, 0);
    return b;
}

static uint8_t *
pool_copy(const kv_fixture_t *b)
{
    uint8_t *copy = some(b->pages * b->kv.page_bytes);

    memcpy(copy, b->kv.pool, b->pages * b->kv.page_bytes);
    return copy;
}

static int
try_step(kv_fixture_t *b, uint32_t n_rows)
{
    uint32_t pos[2] = { b->seq[0].base - 1, b->seq[0].base };
    uint32_t seq_row[2] = { 0, n_rows };
    int32_t slot = 0;
    tr_rows_t rows = { n_rows, 1, pos, &slot, seq_row };
    float x[4 * KV_HEADS * 128] = { 0 };
    tr_stream_t s = any_stream();

    return any_kernels()->kv_append(&s, &b->kv, 1, &rows, x, x,
                                    (size_t) KV_HEADS * b->c->dim, x);
}

static void
test_bad_steps(void **state)
{
    kv_fixture_t *b = fixture_ready(&cases[0], 180);
    tr_kv_seq_t seq;
    tr_kv_move_t *m = &b->move[HEADS - 1], good;
    uint8_t *before;

    (void) state;
    while (m->candidate_from < 0 || m->candidate_to < 0) {
        append(b, (uint32_t[]){ 1, 0, 0 });
    }
    good = *m;
    seq = b->seq[0];
    before = pool_copy(b);
    for (uint32_t i = 0; i < 26; i++) {
        uint32_t *count = &b->count[(HEADS - 1) * TR_KV_TIERS_MAX], had;
        uint32_t n_rows = 1;
        int32_t *row = row_of(b, 0, HEADS - 1), saved = row[b->kv.at_window];

        had = count[m->to];
        /* clang-format off */
        switch (i) {
        case 0: m->to = 2; break;
        case 1: m->to = -3; break;
        case 2: m->index = b->head[HEADS - 1].count[m->to]; break;
        case 3: m->index = UINT32_MAX; break;
        case 4: m->leaves = 0; break;
        case 5: m->leaves = 33; break;
        case 6: m->leave_pos = b->seq[0].base - 1; break;
        case 7: m->leave_pos -= 1; break;
        case 8: m->leave_pos = UINT32_MAX; break;
        case 9: m->candidate_from = 2; break;
        case 10: m->candidate_from = -1; break;
        case 11: m->candidate_to = 2; break;
        case 12: m->candidate_to = -3; break;
        case 13: m->candidate_index = UINT32_MAX; break;
        case 14: m->candidate_index = LEN_MAX * 16; break;
        case 15: m->candidate_target += 1; break;
        case 16: m->candidate_from = 1; m->candidate_to = 0; break; /* up */
        case 17: b->seq[0].tier_layout[0] = 9; break;
        case 18: b->seq[0].tier_layout[1] = 0; break;
        case 19: b->seq[0].window_layout = 9; break;
        case 20: b->seq[0].window_from -= 1; break;
        case 21: n_rows = 2; break;
        case 22: b->seq[0].n_tiers = 0; break;
        case 23: b->seq[0].n_tiers = 5; break;
        case 24: m->index = count[m->to] = 0; break;
        default: row[b->kv.at_window] = -1; break; /* one page a window */
        }
        /* clang-format on */
        if (try_step(b, n_rows) != TR_KERNEL_BADARG) {
            fail_msg("case %u was not refused", i);
        }
        *m = good;
        count[m->to] = had;
        b->seq[0] = seq;
        row[b->kv.at_window] = saved;
    }
    assert_memory_equal(before, b->kv.pool, b->pages * b->kv.page_bytes);
    assert_int_equal(try_step(b, 1), TR_KERNEL_OK);
    free(before);
    kv_fixture_close(b);
}

/* Tiers by channel have no candidates, and take whole tiles. */
static void
test_bad_tiles(void **state)
{
    kv_fixture_t *b = fixture_ready(&cases[6], 180);
    tr_kv_move_t *m = &b->move[HEADS - 1], good;
    uint32_t last = b->count[(HEADS - 1) * TR_KV_TIERS_MAX] - 32;
    uint8_t *before;

    (void) state;
    /* 32 tokens leave a full window */
    *m = (tr_kv_move_t){ 0,
                         TR_KV_STAYS,
                         TR_KV_NOWHERE,
                         32,
                         b->seq[0].base - 1 - b->c->window,
                         last,
                         0,
                         0 };
    b->seq[0].window_from = b->seq[0].base - 32;
    for (uint32_t i = 0; i < HEADS; i++) {
        part_room(b, row_of(b, 0, i), b->kv.at_window, b->seq[0].window_layout,
                  b->c->window);
    }
    for (uint32_t i = 0; i + 1 < HEADS; i++) {
        b->move[i].to = TR_KV_NOWHERE;
        b->move[i].candidate_from = TR_KV_STAYS;
    }
    good = *m;
    before = pool_copy(b);
    for (uint32_t i = 0; i < 4; i++) {
        /* clang-format off */
        switch (i) {
        case 0: m->candidate_from = 0; break;
        case 1: m->leaves = 1; break;
        case 2: m->leaves = 31; break;
        default: m->index -= 1; break;
        }
        /* clang-format on */
        if (try_step(b, 1) != TR_KERNEL_BADARG) {
            fail_msg("case %u was not refused", i);
        }
        *m = good;
    }
    assert_memory_equal(before, b->kv.pool, b->pages * b->kv.page_bytes);
    assert_int_equal(try_step(b, 1), TR_KERNEL_OK);
    free(before);
    kv_fixture_close(b);
}

/* What a compression of slot 0 needs, made by hand. */
typedef struct {
    kv_fixture_t *b;
    tr_kv_compress_t c;
    uint32_t n; /* sources of head 0 */
} plan_t;

static plan_t
plan_good(kv_fixture_t *b)
{
    plan_t p = { .b = b,
                 .c = { .slot = 0,
                        .n_uncompressed = b->len[0] - b->seq[0].base,
                        .to = &b->to,
                        .to_tables = b->to_tables,
                        .dest = b->dest,
                        .dest_len = 2 * LEN_MAX } };
    source_t *s = some(2 * LEN_MAX * sizeof(*s));

    compress_target(b, 0);
    for (uint32_t i = 0; i < HEADS; i++) {
        uint32_t n = sources(b, 0, i, 0, s);

        choose(b, s, n, b->dest + i * p.c.dest_len);
        p.n = i == 0 ? n : p.n;
    }
    /* every entry has a page: what is written is not looked at */
    for (size_t i = 0; i < (size_t) HEADS * b->kv.table_len; i++) {
        b->to_tables[i] = b->free_page[i % b->n_free];
    }
    free(s);
    return p;
}

static void
refused(const plan_t *p, const char *what)
{
    const tr_kernels_t *k = any_kernels();
    tr_stream_t s = any_stream();
    uint8_t work[256];

    assert_in_range(k->kv_compress_work(&s, p->b->c->dim), 0, sizeof(work));
    if (k->kv_compress(&s, &p->b->kv, &p->c, work) != TR_KERNEL_BADARG) {
        fail_msg("%s was not refused", what);
    }
}

#define REFUSED(what, ...)                                               \
    do {                                                                 \
        p = plan_good(b);                                                \
        __VA_ARGS__;                                                     \
        refused(&p, what);                                               \
        memcpy(b->seq, seq, sizeof(seq));                                \
        memcpy(row_of(b, 0, 0), row, sizeof(int32_t) * b->kv.table_len); \
    } while (0)

static void
test_bad_plans(void **state)
{
    kv_fixture_t *b = fixture_ready(&cases[0], 180),
                 *channel = fixture_ready(&cases[6], 180);
    tr_kv_seq_t seq[SLOTS];
    uint8_t *before;
    int32_t *row;
    plan_t p;

    (void) state;
    append(b, (uint32_t[]){ 60, 0, 0 });
    memcpy(seq, b->seq, sizeof(seq));
    row = some(sizeof(int32_t) * b->kv.table_len);
    memcpy(row, row_of(b, 0, 0), sizeof(int32_t) * b->kv.table_len);
    before = pool_copy(b);
    REFUSED("too little room for choices", p.c.dest_len = p.n - 1);
    REFUSED("an unknown tier", b->dest[p.n / 2] = 2);
    REFUSED("an unknown place", b->dest[p.n / 2] = -4);
    REFUSED("STAYS", b->dest[p.n / 2] = TR_KV_STAYS);
    REFUSED("bits that go up", b->dest[b->count[0]] = 0);
    REFUSED("a tiered token for the window", b->dest[0] = TR_KV_WINDOW);
    REFUSED("a window with a hole", b->dest[p.n - 1] = 0);
    REFUSED("a window that is too long", b->to.window_from--);
    REFUSED("an old token for the window", b->dest[p.n - 30] = TR_KV_WINDOW);
    REFUSED("an old token for a new one in the window",
            b->dest[p.n - 30] = TR_KV_WINDOW, b->dest[p.n - 1] = 0);
    REFUSED("a base elsewhere", b->to.base++);
    REFUSED("no tiers", b->to.n_tiers = 0);
    REFUSED("too many tiers", b->to.n_tiers = 5);
    REFUSED("a tier without layout", b->to.tier_layout[1] = 0);
    REFUSED("a layout too many", b->to.tier_layout[1] = 9);
    REFUSED("a window without layout", b->to.window_layout = 9);
    REFUSED("a tier without page", memset(b->to_tables + b->kv.at_pair[0], 0xff,
                                          4 * b->kv.pair_len[0]));
    REFUSED("a window without page", b->to_tables[b->kv.at_window] = -1);
    REFUSED("a source without page", row_of(b, 0, 0)[b->kv.at_pair[0]] = -1);
    REFUSED("uncompressed tokens without page", row_of(b, 0, 0)[0] = -1);
    REFUSED("more uncompressed tokens than pages",
            p.c.n_uncompressed += LEN_MAX, b->to.base += LEN_MAX);
    assert_memory_equal(before, b->kv.pool, b->pages * b->kv.page_bytes);
    free(before);
    free(row);
    kv_fixture_close(b);

    b = fixture_ready(&cases[0], 180);
    append(b, (uint32_t[]){ 10, 0, 0 });
    p = plan_good(b);
    b->to.window = 100; /* begins among tokens that are in tiers */
    b->to.window_from = b->to.base - 100;
    for (uint32_t i = 0; i < HEADS; i++) {
        const uint32_t *had = &b->count[i * TR_KV_TIERS_MAX];

        memset(b->dest + i * p.c.dest_len + had[0] + had[1], TR_KV_WINDOW,
               b->to.base - b->seq[0].window_from);
    }
    refused(&p, "a window of tokens that are tiered");
    p = plan_good(b);
    b->dest[p.n - 30] = TR_KV_WINDOW; /* it was in the old window */
    b->dest[p.n - 1] = 0;
    refused(&p, "an old token of the old window");
    p = plan_good(b);
    b->dest[p.n - 15] = 0; /* it was in the old window, too, and stays */
    b->dest[p.n - 30] = TR_KV_WINDOW;
    refused(&p, "a token of the old window for another");
    kv_fixture_close(b);

    b = channel;
    append(b, (uint32_t[]){ 60, 0, 0 });
    before = pool_copy(b);
    p = plan_good(b);
    for (uint32_t i = 0; i < p.n; i++) {
        if (b->dest[i] == 0) {
            b->dest[i] = TR_KV_NOWHERE;
            break;
        }
    }
    refused(&p, "a tile by channel that is not full");
    assert_memory_equal(before, b->kv.pool, b->pages * b->kv.page_bytes);
    free(before);
    kv_fixture_close(b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_steps),
        cmocka_unit_test(test_bad_tiles),
        cmocka_unit_test(test_bad_plans),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
