/*
 * The KV cache with levels, by hand-made cases: what a slot holds and is said
 * to hold, that swapping is exact, that a sequence as long as tr_kv_max_len
 * says is never refused while it is alone, and the moves of single tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <time.h>

#include "tests/unit/fixtures/kv/kv_fixture.h"
#include "tests/unit/fixtures/must_abort.h"

#define HIGH                   \
    {                          \
        8, 4, 1, 1, 0, 1, 0, 0 \
    }
#define LOW                    \
    {                          \
        4, 2, 1, 1, 0, 1, 0, 0 \
    }

/* By position: of every ten tokens five high, three low, two forgotten, whose
 * scores say so when a prompt is complete (compressed). */
static float
significance_of(uint32_t position)
{
    return position % 10 < 5 ? 3 : position % 10 < 8 ? 1.5f : 0;
}

static void
half_charge(const tr_kv_policy_t *p, uint32_t layer, uint32_t kv_head,
            uint32_t n, uint32_t tokens[TR_KV_TIERS_MAX])
{
    (void) p;
    (void) layer;
    (void) kv_head;
    tokens[0] = n / 2;
    tokens[1] = n / 4;
}

static const tr_kv_policy_row_t tens_row = { .name = "tens",
                                             .charge = half_charge };

static const tr_kv_policy_t tens = { .name = "tens",
                                     .row = &tens_row,
                                     .kind = TR_KV_RULE_THRESHOLD,
                                     .n_levels = 2,
                                     .level = { HIGH, LOW },
                                     .window = 10,
                                     .window_level = HIGH,
                                     .scored = true,
                                     .leaves = 1,
                                     .alpha_high = 2,
                                     .alpha_low = 1 };

static tr_kv_cache_t *
make(const tr_kv_policy_t *const *policies, uint32_t n, uint32_t heads,
     uint32_t max_len, uint64_t pages, uint64_t swap)
{
    tr_kv_config_t c = { .layers = heads,
                         .kv_heads = 1,
                         .head_dim = 64,
                         .slots = 4,
                         .max_len = max_len,
                         .memory = 1u << 30,
                         .policies = policies,
                         .n_policies = n,
                         .kernels = &fixture_kernels };
    tr_kv_cache_t *kv;
    tr_error_t err;

    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    c.memory = pages * tr_kv_page_bytes(kv);
    c.swap_memory = swap * tr_kv_page_bytes(kv);
    tr_kv_cache_free(kv);
    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    return kv;
}

/* The scores of a prompt of n tokens. */
static void
score_prompt(const tr_kv_cache_t *kv, int32_t slot, uint32_t n)
{
    tr_kv_view_t v;

    tr_kv_view(kv, &v);
    for (uint32_t head = 0; head < kv->heads; head++) {
        for (uint32_t pos = 0; pos < n; pos++) {
            fixture_put(
                fixture_uncompressed(&v, &v.seq[slot],
                                     manager_row(&kv->m, slot, head), pos),
                significance_of(pos) / (float) n * (float) (n - 1 - pos), pos);
        }
    }
}

/* A slot with a compressed prompt of n tokens. */
static int32_t
compressed(tr_kv_cache_t *kv, const tr_kv_policy_t *policy, uint32_t n)
{
    int32_t slot = tr_kv_open(kv, policy);

    tr_kv_prompt(kv, slot, n);
    assert_int_equal(tr_kv_reserve(kv, slot, n), TR_OK);
    assert_true(tr_kv_uncompressed(kv, slot));
    score_prompt(kv, slot, n);
    assert_int_equal(tr_kv_compress(kv, slot, n), TR_OK);
    assert_false(tr_kv_uncompressed(kv, slot));
    return slot;
}

static uint64_t
ceil_of(uint64_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

/* ---- what is held, and said to be held ---------------------------------- */

static void
usage_counts_whole_pages(void **state)
{
    static const tr_kv_policy_t full = { .name = "full", .row = &fixture_row };
    const tr_kv_policy_t *const policies[] = { &tens, &full };
    tr_kv_cache_t *kv = make(policies, 2, 3, 2000, 2000, 0);
    const tr_page_plan_t *plan = tr_kv_plan(kv);
    uint32_t high = plan->layout[1].tokens, low = plan->layout[2].tokens;
    int32_t a = compressed(kv, NULL, 1010);
    int32_t b = tr_kv_open(kv, &full);
    tr_kv_totals_t t;
    tr_kv_usage_t u;
    uint64_t pages;

    (void) state;
    assert_int_equal(plan->n, 3);
    assert_string_equal(tr_kv_slot_policy(kv, a)->name, "tens");
    /* 1,000 tokens outside the window: 500 high, 300 low, 200 forgotten */
    pages = 3 * (1 + ceil_of(500, high) + ceil_of(300, low));
    tr_kv_usage(kv, a, &u);
    assert_int_equal(u.tokens, 1010);
    assert_int_equal(u.bytes, pages * plan->page_bytes);
    assert_int_equal(u.full_bytes, 1010 * 3 * 256);
    assert_true(u.share_high == (float) (510.0 / 1010));
    assert_true(u.share_low == (float) (300.0 / 1010));
    assert_true(u.share_pruned == (float) (200.0 / 1010));
    assert_int_equal(u.at_full, 0); /* the window's level is not 16 bits */
    assert_int_equal(u.at_high, 510);
    assert_int_equal(u.at_low, 300);
    assert_int_equal(u.pruned, 200);

    assert_int_equal(tr_kv_reserve(kv, b, 100), TR_OK);
    tr_kv_totals(kv, &t);
    assert_int_equal(t.tokens, 1110);
    assert_int_equal(t.full_bytes, 1110 * 3 * 256);
    assert_int_equal(t.pages[0], 3 * ceil_of(100, plan->layout[0].tokens));
    assert_int_equal(t.pages[1], 3 * (1 + ceil_of(500, high)));
    assert_int_equal(t.pages[2], 3 * ceil_of(300, low));
    assert_int_equal(t.swapped_pages, 0);
    assert_int_equal(tr_kv_free_pages(kv),
                     2000 - t.pages[0] - t.pages[1] - t.pages[2]);
    tr_kv_close(kv, a);
    tr_kv_close(kv, b);
    tr_kv_cache_free(kv);
}

/* A slot is counted in the pages of an engine with its policy alone. */
static void
usage_in_another_plan(void **state)
{
    static const tr_kv_policy_t other = { .name = "other",
                                          .n_levels = 4,
                                          .level = FIXTURE_LEVELS,
                                          .window = 3,
                                          .window_level = { 16, 16, 1, 1, 0,
                                                            1 },
                                          .leaves = 1,
                                          .kind = TR_KV_RULE_ALL,
                                          .row = &tens_row };
    const tr_kv_policy_t *const policies[] = { &other, &tens };
    tr_kv_cache_t *kv = make(policies, 2, 2, 2000, 2000, 0);
    int32_t a = compressed(kv, &tens, 1010);
    tr_page_plan_t plan;
    tr_kv_usage_t u, own;

    (void) state;
    assert_int_equal(tr_kv_policy_plan(&tens, 64, 100000, &plan), TR_OK);
    assert_int_equal(plan.n, 3);
    /* the published page of head size 64 */
    assert_int_equal(plan.page_bytes, 7168);
    assert_int_equal(plan.layout[1].tokens, 64);
    assert_int_equal(plan.layout[2].tokens, 112);
    tr_kv_usage(kv, a, &own);
    tr_kv_usage_in(kv, a, &plan, &u);
    assert_int_equal(u.bytes,
                     2ull * 7168 * (1 + ceil_of(500, 64) + ceil_of(300, 112)));
    assert_int_equal(u.full_bytes, own.full_bytes);
    assert_true(u.share_high == own.share_high);
    tr_kv_usage_in(kv, a, tr_kv_plan(kv), &u);
    assert_int_equal(u.bytes, own.bytes);
    tr_kv_close(kv, a);
    tr_kv_cache_free(kv);
}

/* Tokens at 16 bits are apart from the highest level, in the window and in tier
 * 0 alike; and averages over heads sum up. */
static void
usage_in_tokens(void **state)
{
    static const tr_kv_level_t exact = { 16, 16, 1, 1, 0, 1, 0, 0 };
    tr_kv_policy_t windowed = tens, tiered = tens, uneven = tens;
    const tr_kv_policy_t *const policies[] = { &windowed };
    tr_kv_cache_t *kv;
    tr_kv_usage_t u;
    tr_kv_standing_t at = { .uncompressed = 3,
                            .window = 6,
                            .tiered = { 4, 5 } };
    int32_t a;

    (void) state;
    windowed.window_level = exact;
    kv = make(policies, 1, 3, 2000, 2000, 0);
    a = compressed(kv, &windowed, 1010);
    tr_kv_usage(kv, a, &u);
    assert_int_equal(u.at_full, 10);
    assert_int_equal(u.at_high, 500);
    assert_int_equal(u.at_low, 300);
    assert_int_equal(u.pruned, 200);
    assert_int_equal(tr_kv_reserve(kv, a, 1011), TR_OK);
    tr_kv_usage(kv, a, &u);
    assert_int_equal(u.at_full + u.at_high + u.at_low + u.pruned, 1011);

    tiered.level[0] = tiered.window_level = exact;
    tr_kv_usage_fill(kv, &tiered, 10, 0, &at, &u);
    assert_int_equal(u.at_full, 4); /* 13 of three heads */
    assert_int_equal(u.at_high, 0);
    assert_int_equal(u.at_low, 2); /* up to 18 of 30 */
    assert_int_equal(u.pruned, 4);
    tr_kv_usage_fill(kv, &uneven, 10, 0, &at, &u);
    assert_int_equal(u.at_full, 1);
    assert_int_equal(u.at_high, 3);
    assert_int_equal(u.at_low, 2);
    assert_int_equal(u.pruned, 4);
    tr_kv_close(kv, a);
    tr_kv_cache_free(kv);
}

static void
charge_for_admission(void **state)
{
    static const tr_kv_policy_t full = { .name = "full", .row = &fixture_row };
    const tr_kv_policy_t *const policies[] = { &tens, &full };
    tr_kv_cache_t *kv = make(policies, 2, 3, 2000, 2000, 0);
    const tr_page_plan_t *plan = tr_kv_plan(kv);
    uint64_t uncompressed = ceil_of(1010, plan->layout[0].tokens);

    (void) state;
    assert_int_equal(tr_kv_pages_for(kv, &full, 1010), 3 * uncompressed);
    assert_int_equal(tr_kv_pages_for(kv, NULL, 1010),
                     3
                         * (uncompressed + 1
                            + ceil_of(505, plan->layout[1].tokens)
                            + ceil_of(252, plan->layout[2].tokens)));
    assert_int_equal(tr_kv_pages_for(kv, NULL, 0), 0);
    assert_true(tr_kv_max_len(kv, NULL) <= tr_kv_max_len(kv, &full));
    tr_kv_cache_free(kv);
}

/* ---- refused and granted ------------------------------------------------ */

static void
compress_waits_for_pages(void **state)
{
    const tr_kv_policy_t *const policies[] = { &tens };
    tr_kv_cache_t *kv = make(policies, 1, 2, 1000, 80, 0);
    uint32_t tokens = tr_kv_plan(kv)->layout[0].tokens;
    int32_t a = tr_kv_open(kv, NULL), b = tr_kv_open(kv, NULL);
    uint64_t left;

    (void) state;
    assert_int_equal(tr_kv_reserve(kv, a, 300), TR_OK);
    left = tr_kv_free_pages(kv);
    assert_int_equal(tr_kv_reserve(kv, b, (uint32_t) (left / 2 * tokens)),
                     TR_OK);
    left = tr_kv_free_pages(kv);
    assert_true(left < 2);
    assert_int_equal(tr_kv_compress(kv, a, 300), TR_AGAIN);
    assert_int_equal(tr_kv_free_pages(kv), left);
    assert_true(tr_kv_uncompressed(kv, a));
    assert_true(tr_kv_sound(kv));
    tr_kv_close(kv, b);
    assert_int_equal(tr_kv_compress(kv, a, 300), TR_OK);
    /* fewer stored than reserved: the rest was never there */
    b = tr_kv_open(kv, NULL);
    assert_int_equal(tr_kv_reserve(kv, b, 200), TR_OK);
    assert_int_equal(tr_kv_compress(kv, b, 123), TR_OK);
    assert_int_equal(tr_kv_reserve(kv, b, 124), TR_OK);
    assert_true(tr_kv_sound(kv));
    tr_kv_close(kv, a);
    tr_kv_close(kv, b);
    assert_int_equal(tr_kv_free_pages(kv), 80);
    tr_kv_cache_free(kv);
}

/* Alone in the pool, with the worst policy, in turns of any length, up to
 * tr_kv_max_len: never refused. */
static void
longest_sequence_is_never_refused(void **state)
{
    tr_kv_policy_t worst = tens;
    const tr_kv_policy_t *const policies[] = { &worst };

    (void) state;
    worst.kind = TR_KV_RULE_ALL;
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t pages = 30 + random_below(300), len = 0, max;
        tr_kv_cache_t *kv;
        int32_t slot;

        worst.level[0] = round % 2 == 0
                             ? (tr_kv_level_t) HIGH
                             : (tr_kv_level_t){ 16, 16, 1, 1, 0, 1, 0, 0 };
        worst.window_level = worst.level[0];
        worst.window = random_below(40);
        kv = make(policies, 1, 1 + random_below(3), 4000, pages, 0);
        max = tr_kv_max_len(kv, NULL);
        assert_in_range(max, 1, 4000);
        slot = tr_kv_open(kv, NULL);
        while (len < max) {
            uint32_t turn = 1 + random_below(max - len), steps;

            turn = random_below(3) == 0 ? 1 : turn;
            len += turn;
            tr_kv_prompt(kv, slot, len);
            assert_int_equal(tr_kv_reserve(kv, slot, len), TR_OK);
            assert_int_equal(tr_kv_compress(kv, slot, len), TR_OK);
            for (steps = random_below(30); steps > 0 && len < max; steps--) {
                assert_int_equal(tr_kv_reserve(kv, slot, ++len), TR_OK);
            }
        }
        assert_true(tr_kv_sound(kv));
        tr_kv_close(kv, slot);
        tr_kv_cache_free(kv);
    }
}

/* ---- swap --------------------------------------------------------------- */

/* All bytes of a slot, page by page in the order of its runs; bytes == NULL:
 * fills them with `seed`'s. */
static uint64_t
slot_bytes(tr_kv_cache_t *kv, int32_t slot, const uint8_t *fill, uint8_t *out)
{
    uint64_t n = 0, size = kv->plan.page_bytes;

    for (uint32_t head = 0; head < kv->heads; head++) {
        manager_run_t run[MANAGER_RUNS];
        uint32_t runs = manager_runs(&kv->m, &kv->m.seq[slot], head,
                                     manager_counts(&kv->m, slot, head), NULL,
                                     manager_dense(&kv->m.slot[slot]), run);

        for (uint32_t i = 0; i < runs; i++) {
            const int32_t *entry = manager_row(&kv->m, slot, head)
                                   + run[i].entry;

            for (uint32_t j = 0; j < run[i].n; j++, n++) {
                uint8_t *page = tr_kv_page_at(&kv->view, *entry);

                if (fill != NULL) {
                    memcpy(page, fill + n * size, size);
                } else {
                    memcpy(out + n * size, page, size);
                }
                entry += run[i].step;
            }
        }
    }
    return n;
}

static void
swap_is_exact(void **state)
{
    const tr_kv_policy_t *const policies[] = { &tens };
    tr_kv_cache_t *kv = make(policies, 1, 3, 1000, 200, 40);
    int32_t a = compressed(kv, NULL, 510), b;
    uint64_t pages = kv->m.slot[a].pages, size = pages * kv->plan.page_bytes;
    uint8_t *before = malloc(size), *after = malloc(size);
    tr_kv_move_t move[3];
    tr_kv_totals_t t;
    int32_t *row;
    uint32_t left;

    (void) state;
    assert_true(before != NULL && after != NULL);
    for (uint64_t i = 0; i < size; i++) {
        before[i] = (uint8_t) random_below(256);
    }
    assert_int_equal(slot_bytes(kv, a, before, NULL), pages);
    assert_int_equal(tr_kv_reserve(kv, a, 511), TR_OK); /* not executed */
    assert_int_equal(kv->m.slot[a].pages, pages);
    memcpy(move, &kv->m.move[manager_head(&kv->m, a, 0)], sizeof(move));

    assert_int_equal(tr_kv_swapped_pages(kv, a), 0);
    assert_int_equal(tr_kv_swap_out(kv, a), TR_OK);
    assert_int_equal(tr_kv_free_pages(kv), 200);
    assert_int_equal(tr_kv_swapped_pages(kv, a), pages);
    tr_kv_totals(kv, &t);
    assert_int_equal(t.swapped_pages, pages);
    assert_int_equal(t.pages[1] + t.pages[2], 0);
    assert_true(tr_kv_sound(kv));

    /* others use the pages meanwhile, and no other fits beside it */
    b = compressed(kv, NULL, 900);
    assert_int_equal(tr_kv_swap_out(kv, b), TR_AGAIN);
    left = (uint32_t) tr_kv_free_pages(kv);
    memset(kv->pool, 0x5a, kv->m.size.pages * kv->plan.page_bytes);
    assert_true(left >= pages);
    assert_int_equal(tr_kv_swap_in(kv, a), TR_OK);
    assert_int_equal(tr_kv_swapped_pages(kv, a), 0);
    assert_int_equal(slot_bytes(kv, a, NULL, after), pages);
    assert_memory_equal(before, after, size);
    assert_memory_equal(move, &kv->m.move[manager_head(&kv->m, a, 0)],
                        sizeof(move));
    assert_int_equal(tr_kv_reserve(kv, a, 511), TR_OK);
    assert_int_equal(tr_kv_reserve(kv, a, 512), TR_OK);

    /* closed while out: its entries go, others are not touched */
    assert_int_equal(tr_kv_swap_out(kv, a), TR_OK);
    assert_int_not_equal(kv->m.seq[a].base, 0);
    row = manager_row(&kv->m, a, 0);
    assert_int_equal(row[kv->view.at_window] & TR_KV_HOST, TR_KV_HOST);
    row[kv->view.at_window - 1] = 4711; /* as of an earlier slot's prompt */
    tr_kv_close(kv, a);
    assert_int_equal(row[kv->view.at_window], -1);
    assert_int_equal(row[kv->view.at_window - 1], 4711);
    tr_kv_close(kv, b);
    assert_int_equal(tr_kv_free_pages(kv), 200);
    assert_int_equal(tr_kv_pages_left(&kv->swap), 40);
    assert_true(tr_kv_sound(kv));
    free(before);
    free(after);
    tr_kv_cache_free(kv);
}

/* Swap memory is the system's until it is used: however often somebody goes out
 * and comes back, as much is touched as was out at once. */
static void
swap_takes_the_same_pages_again(void **state)
{
    const tr_kv_policy_t *const policies[] = { &tens };
    tr_kv_cache_t *kv = make(policies, 1, 3, 1000, 200, 40);

    (void) state;
    for (uint32_t round = 0; round < 4; round++) {
        int32_t a = compressed(kv, NULL, 510);
        uint64_t pages = kv->m.slot[a].pages;

        assert_int_equal(tr_kv_swap_out(kv, a), TR_OK);
        for (uint32_t i = 0; i < kv->swap.n; i++) {
            assert_true((kv->swap.owner[i] == TR_KV_NOBODY) == (i >= pages));
        }
        if (round % 2 == 0) {
            assert_int_equal(tr_kv_swap_in(kv, a), TR_OK);
        }
        tr_kv_close(kv, a);
        assert_true(tr_kv_sound(kv));
    }
    tr_kv_cache_free(kv);
}

static void
without_swap_memory(void **state)
{
    const tr_kv_policy_t *const policies[] = { &tens };
    tr_kv_cache_t *kv = make(policies, 1, 1, 100, 50, 0);
    int32_t a = compressed(kv, NULL, 50);

    (void) state;
    assert_int_equal(tr_kv_swap_out(kv, a), TR_AGAIN);
    tr_kv_close(kv, a);
    tr_kv_cache_free(kv);
}

/* ---- one token's move --------------------------------------------------- */

/* A rule that sends tokens where the policy has no level. */
static void
leave_for_no_level(void *arg)
{
    tr_kv_cache_t *kv = arg;

    kv->m.slot[0].rule.kind = TR_KV_RULE_ALL;
    kv->m.slot[0].rule.n_levels = 0;
    tr_kv_reserve(kv, 0, kv->m.slot[0].tokens + 1);
}

static void
wrong_levels_are_fatal(void **state)
{
    const tr_kv_policy_t *const policies[] = { &tens };
    tr_kv_cache_t *kv = make(policies, 1, 1, 100, 50, 0);
    int32_t slot = compressed(kv, NULL, 50);

    (void) state;
    assert_int_equal(slot, 0);
    must_abort(leave_for_no_level, kv, "rule.n_levels");
    assert_int_equal(tr_kv_reserve(kv, 0, 51), TR_OK);
    tr_kv_close(kv, slot);
    tr_kv_cache_free(kv);
}

/* From now on the first tier has room for ten tokens, the second for all. */
static void
ten_high(tr_kv_cache_t *kv, int32_t slot)
{
    kv->m.slot[slot].rule.fraction[0] = 10.0 / kv->m.slot[slot].tokens;
    kv->m.slot[slot].rule.fraction[1] = 1;
}

static void
set_score(tr_kv_cache_t *kv, int32_t slot, uint32_t pos, float score)
{
    tr_kv_view_t v;

    tr_kv_view(kv, &v);
    memcpy(fixture_windowed(&v, &v.seq[slot], manager_row(&kv->m, slot, 0), pos)
               .score,
           &score, 4);
}

static void
newcomer_against_candidate(void **state)
{
    tr_kv_policy_t p = tens;
    const tr_kv_policy_t *const policies[] = { &p };
    tr_kv_cache_t *kv;
    tr_kv_move_t *m;
    tr_kv_candidate_t *v;
    int32_t a;

    (void) state;
    p.kind = TR_KV_RULE_SHARE;
    p.fraction[0] = p.fraction[1] = 0.5;
    kv = make(policies, 1, 1, 100, 50, 0);
    a = compressed(kv, NULL, 20); /* 0..9 high, 10..19 in the window */
    m = &kv->m.move[manager_head(&kv->m, a, 0)];
    v = &kv->m.candidate[manager_head(&kv->m, a, 0) * TR_KV_TIERS_MAX];

    /* 10 leaves; token 3 is less significant: it makes room */
    v[0] = (tr_kv_candidate_t){ 0.25f, 3 };
    ten_high(kv, a);
    set_score(kv, a, 10, 9 * 0.5f);
    assert_int_equal(tr_kv_reserve(kv, a, 21), TR_OK);
    assert_int_equal(m->to, 0);
    assert_int_equal(m->leave_pos, 10);
    assert_int_equal(m->leaves, 1);
    assert_int_equal(m->index, 3);
    assert_int_equal(m->candidate_from, 0);
    assert_int_equal(m->candidate_index, 3);
    assert_int_equal(m->candidate_to, 1);
    assert_int_equal(m->candidate_target, 0);
    assert_int_equal(manager_counts(&kv->m, a, 0)[0], 10);
    assert_int_equal(manager_counts(&kv->m, a, 0)[1], 1);

    /* 11 leaves and is the least: straight to where the candidate would go */
    v[0] = (tr_kv_candidate_t){ 0.25f, 3 };
    ten_high(kv, a);
    set_score(kv, a, 11, 9 * 0.125f);
    assert_int_equal(tr_kv_reserve(kv, a, 22), TR_OK);
    assert_int_equal(m->to, 1);
    assert_int_equal(m->index, 1);
    assert_int_equal(m->candidate_from, TR_KV_STAYS);
    assert_int_equal(manager_counts(&kv->m, a, 0)[0], 10);
    assert_int_equal(manager_counts(&kv->m, a, 0)[1], 2);

    /* equally significant: the lower position goes */
    v[0] = (tr_kv_candidate_t){ 0.25f, 3 };
    ten_high(kv, a);
    set_score(kv, a, 12, 9 * 0.25f);
    assert_int_equal(tr_kv_reserve(kv, a, 23), TR_OK);
    assert_int_equal(m->to, 0);
    assert_int_equal(m->index, 3);
    assert_int_equal(m->candidate_from, 0);
    assert_int_equal(m->candidate_target, 2);

    /* an empty tier: who comes is its own candidate */
    manager_counts(&kv->m, a, 0)[0] = 0;
    v[0] = (tr_kv_candidate_t){ INFINITY, 0 };
    set_score(kv, a, 13, 100);
    kv->m.slot[a].rule.kind = TR_KV_RULE_BUDGET; /* of no token */
    assert_int_equal(tr_kv_reserve(kv, a, 24), TR_OK);
    assert_int_equal(m->to, TR_KV_NOWHERE);
    assert_int_equal(m->candidate_from, TR_KV_STAYS);
    manager_counts(&kv->m, a, 0)[0] = 10;
    tr_kv_close(kv, a);
    tr_kv_cache_free(kv);
}

/* Until the window is full nobody leaves, and its pages come one by one. */
static void
window_fills_first(void **state)
{
    tr_kv_policy_t p = tens;
    const tr_kv_policy_t *const policies[] = { &p };
    tr_kv_cache_t *kv;
    uint32_t tokens;
    int32_t a;

    (void) state;
    p.kind = TR_KV_RULE_ALL;
    p.window = 150;
    kv = make(policies, 1, 2, 400, 100, 0);
    tokens = tr_kv_plan(kv)->layout[1].tokens;
    a = compressed(kv, NULL, 1);
    for (uint32_t n = 1; n < 150; n++) {
        assert_int_equal(kv->m.slot[a].pages, 2 * ceil_of(n, tokens));
        assert_int_equal(tr_kv_reserve(kv, a, n + 1), TR_OK);
        assert_int_equal(kv->m.move[manager_head(&kv->m, a, 0)].to,
                         TR_KV_STAYS);
        assert_int_equal(kv->m.seq[a].window_from, 0);
    }
    assert_int_equal(tr_kv_reserve(kv, a, 151), TR_OK);
    assert_int_equal(kv->m.move[manager_head(&kv->m, a, 1)].to, 0);
    assert_int_equal(kv->m.move[manager_head(&kv->m, a, 1)].leave_pos, 0);
    assert_int_equal(kv->m.seq[a].window_from, 1);
    tr_kv_close(kv, a);
    tr_kv_cache_free(kv);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_counts_whole_pages),
        cmocka_unit_test(usage_in_another_plan),
        cmocka_unit_test(usage_in_tokens),
        cmocka_unit_test(charge_for_admission),
        cmocka_unit_test(compress_waits_for_pages),
        cmocka_unit_test(longest_sequence_is_never_refused),
        cmocka_unit_test(swap_is_exact),
        cmocka_unit_test(swap_takes_the_same_pages_again),
        cmocka_unit_test(without_swap_memory),
        cmocka_unit_test(wrong_levels_are_fatal),
        cmocka_unit_test(newcomer_against_candidate),
        cmocka_unit_test(window_fills_first),
    };
    const char *seed = getenv("TR_KV_SEED");

    random_state = seed != NULL ? strtoull(seed, NULL, 0)
                                : (uint64_t) time(NULL) << 16 | 1;
    printf("TR_KV_SEED=%llu\n", (unsigned long long) random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
