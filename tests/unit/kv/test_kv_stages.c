/*
 * Prompts that are compressed while they are computed (tr_kv_stage): the most
 * pages that one takes, to the page; that in the end each token stands where it
 * stands without stages; and a pool that is short.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <time.h>

#include "tests/unit/fixtures/kv/kv_fixture.h"

#define LONG 32768u

typedef struct {
    uint32_t layers, kv_heads, head_dim, max_len, stage;
    const uint32_t *reach;
} shape_t;

static tr_kv_policy_t *
policy_of(const shape_t *s, const char *spec)
{
    tr_kv_policy_t *p;
    tr_error_t err;

    if (tr_kv_policy_create(spec, s->layers, s->kv_heads, s->head_dim, &p, &err)
        != TR_OK) {
        fail_msg("%s", err.text);
    }
    tr_kv_policy_position(p);
    return p;
}

/* pages 0: as many as anybody could want. */
static tr_kv_cache_t *
make(const shape_t *s, const tr_kv_policy_t *policy, uint64_t pages)
{
    tr_kv_config_t c = { .layers = s->layers,
                         .kv_heads = s->kv_heads,
                         .head_dim = s->head_dim,
                         .slots = 2,
                         .max_len = s->max_len,
                         .reach = s->reach,
                         .memory = UINT64_C(8) << 30,
                         .policies = &policy,
                         .n_policies = 1,
                         .kernels = &fixture_kernels,
                         .stage = s->stage };
    tr_kv_cache_t *kv;
    tr_error_t err;

    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    if (pages != 0) {
        c.memory = pages * tr_kv_page_bytes(kv);
        tr_kv_cache_free(kv);
        assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    }
    return kv;
}

/* Scores of positions [from, to), which are uncompressed: the same in each
 * cache. */
static void
score(const tr_kv_cache_t *kv, int32_t slot, uint32_t from, uint32_t to,
      uint32_t len)
{
    tr_kv_view_t v;

    tr_kv_view(kv, &v);
    for (uint32_t head = 0; head < kv->heads; head++) {
        const int32_t *row = manager_row(&kv->m, slot, head);

        for (uint32_t p = from; p < to; p++) {
            uint32_t hash = (p * 2654435761u + head * 40503u) >> 16 & 1023;
            float f = (float) hash / 512 * 8 / (float) len
                      * (float) (len - 1 - p);

            if (tr_kv_slides(&v, head / v.kv_heads)) {
                continue;
            }
            fixture_put(fixture_uncompressed(&v, &v.seq[slot], row, p), f, p);
        }
    }
}

/* A prompt of len tokens, as far as there is room: how far it came, len when it
 * was compressed.  Chunks of at most `chunk`. */
static uint32_t
prompt(tr_kv_cache_t *kv, int32_t slot, uint32_t len, uint32_t chunk,
       bool scores)
{
    uint32_t stage = tr_kv_stages(kv, NULL), at = 0, n;

    tr_kv_prompt(kv, slot, len);
    while (at < len) {
        n = len - at < chunk ? len - at : chunk;
        if (stage != 0 && n > stage - at % stage) {
            n = stage - at % stage;
        }
        if (tr_kv_stage_due(kv, slot, at)
            && tr_kv_stage(kv, slot, at) != TR_OK) {
            return at;
        }
        if (tr_kv_reserve(kv, slot, at + n) != TR_OK) {
            return at;
        }
        if (scores) {
            score(kv, slot, at, at + n, len);
        }
        at += n;
    }
    return tr_kv_compress(kv, slot, len) == TR_OK ? len : len - 1;
}

/* ---- the most pages ----------------------------------------------------- */

static uint32_t
ceil_of(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

/* By hand: in the end a head has all but the last 512 tokens at the level, these
 * at 16 bits, and a layer has all of them once more. */
static uint64_t
peak_by_hand(const tr_kv_cache_t *kv, const tr_kv_policy_t *p)
{
    const tr_page_plan_t *plan = tr_kv_plan(kv);
    int l = tr_kv_layout_of(plan, &p->level[0]);
    uint32_t each = plan->layout[l].tokens;
    uint32_t window = ceil_of(p->window, each);
    uint64_t held = ceil_of(LONG - TR_KV_STAGE - p->window, each) + window
                    + ceil_of(TR_KV_STAGE, plan->layout[0].tokens);

    return held * kv->heads
           + (ceil_of(LONG - p->window, each) + window) * kv->config.kv_heads;
}

/* same: what is kept of it in the end is as much as was expected. */
static void
peak_is_exact(const char *spec, bool same)
{
    const shape_t s = { 32, 1, 128, LONG, TR_KV_STAGE, NULL };
    tr_kv_policy_t *p = policy_of(&s, spec);
    tr_kv_cache_t *kv = make(&s, p, 0);
    uint64_t whole = ceil_of(LONG, tr_kv_plan(kv)->layout[0].tokens)
                     * kv->heads;
    uint64_t bytes = (uint64_t) LONG * tr_kv_token_bytes(kv);
    uint64_t peak = tr_kv_pages_for(kv, NULL, LONG);
    double share = (double) (peak * tr_kv_page_bytes(kv)) / (double) bytes;

    if (same) {
        assert_int_equal(peak, peak_by_hand(kv, p));
    }
    print_message("%s: %llu pages, of 16 bits %llu, %.4f of keys and values\n",
                  spec, (unsigned long long) peak, (unsigned long long) whole,
                  share);
    assert_true(share <= (same ? 0.43 : 0.45));
    tr_kv_cache_free(kv);
    kv = make(&s, p, peak); /* it is enough, at all times */
    assert_int_equal(prompt(kv, tr_kv_open(kv, NULL), LONG, 512, false), LONG);
    assert_true(tr_kv_sound(kv));
    tr_kv_cache_free(kv);
    if (same) { /* and one less is not */
        kv = make(&s, p, peak - 1);
        assert_int_equal(prompt(kv, tr_kv_open(kv, NULL), LONG, 512, false),
                         LONG - 1);
        assert_true(tr_kv_sound(kv));
        tr_kv_cache_free(kv);
    }
    tr_kv_policy_free(p);
}

static void
peak_of_a_long_prompt(void **state)
{
    (void) state;
    peak_is_exact("uniform:levels=8/4", true);
    peak_is_exact("diffkv:levels=8/4+4/2", false);
}

/* The longest sequence is never refused a page while it is alone. */
static void
longest_fits(void **state)
{
    const shape_t s = { 8, 2, 64, 9000, TR_KV_STAGE, NULL };

    (void) state;
    for (uint32_t i = 0; i < 16; i++) {
        tr_kv_policy_t *p = policy_of(&s, i % 2 == 0 ? "uniform:levels=8/4"
                                                     : "diffkv");
        tr_kv_cache_t *kv = make(&s, p, 600 + random_below(3000));
        uint32_t most = tr_kv_max_len(kv, NULL);

        REQUIRE(most != 0);
        REQUIRE(
            prompt(kv, tr_kv_open(kv, NULL), most, 1 + random_below(700), true)
            == most);
        REQUIRE(tr_kv_sound(kv));
        tr_kv_cache_free(kv);
        tr_kv_policy_free(p);
    }
}

/* ---- where tokens stand ------------------------------------------------- */

/* Of a head: for each position the tier, or IN_WINDOW, and its score. */
static void
read_head(const tr_kv_cache_t *kv, int32_t slot, uint32_t head, int *where,
          float *scores)
{
    const tr_kv_seq_t *q = &kv->m.seq[slot];
    const int32_t *row = manager_row(&kv->m, slot, head);
    tr_kv_view_t v;

    tr_kv_view(kv, &v);
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        uint32_t n = manager_counts(&kv->m, slot, head)[l];

        for (uint32_t i = 0; i < n; i++) {
            fixture_place_t at = fixture_tiered(&v, q, row, l, i);
            uint32_t p = at.position != NULL ? fixture_position(at)
                                             : q->sinks + i;

            REQUIRE(p < q->base && where[p] == GONE);
            where[p] = (int) l;
            scores[p] = fixture_score(at);
        }
    }
    for (uint32_t i = 0; i < tr_kv_windowed(q); i++) {
        uint32_t p = tr_kv_windowed_position(q, i);

        REQUIRE(where[p] == GONE);
        where[p] = IN_WINDOW;
        scores[p] = fixture_score(fixture_windowed(&v, q, row, p));
    }
}

static void
compare(const tr_kv_cache_t *a, const tr_kv_cache_t *b, uint32_t len)
{
    int *where = malloc(2 * len * sizeof(*where));
    float *scores = calloc(2 * len, sizeof(*scores));
    uint32_t kv_heads = a->config.kv_heads;

    for (uint32_t head = 0; head < a->heads; head++) {
        if (tr_kv_slides(&a->view, head / kv_heads)) {
            continue;
        }
        for (uint32_t p = 0; p < 2 * len; p++) {
            where[p] = GONE;
        }
        read_head(a, 0, head, where, scores);
        read_head(b, 0, head, where + len, scores + len);
        for (uint32_t p = 0; p < len; p++) {
            REQUIRE(where[p] == where[len + p]);
            REQUIRE(where[p] != GONE && scores[p] == scores[len + p]);
        }
    }
    free(where);
    free(scores);
}

static void
same_as_at_once(void **state)
{
    static const char *const specs[] = { "uniform:levels=8/4",
                                         "uniform:levels=4/2",
                                         "diffkv",
                                         "diffkv:levels=8/4+4/"
                                         "2,window=64,sinks=4",
                                         "diffkv:levels=16/16+8/4+4/2,window=7",
                                         "diffkv:levels=8/4,window=0",
                                         "int4" };
    static const uint32_t reach[] = { 0, 200, 0, 70 };

    (void) state;
    for (uint32_t i = 0; i < 35; i++) {
        shape_t s = { 4, 2, 64, 2000, 0, random_below(2) != 0 ? reach : NULL };
        tr_kv_policy_t *p = policy_of(&s, specs[i % 7]);
        uint32_t len = 1 + random_below(1900), chunk = 1 + random_below(600);
        tr_kv_cache_t *whole = make(&s, p, 0), *staged;

        s.stage = random_below(2) != 0 ? TR_KV_STAGE : 64 + random_below(200);
        staged = make(&s, p, 0);
        REQUIRE(tr_kv_open(whole, NULL) == 0 && tr_kv_open(staged, NULL) == 0);
        REQUIRE(prompt(whole, 0, len, chunk, true) == len);
        REQUIRE(prompt(staged, 0, len, chunk, true) == len);
        REQUIRE(tr_kv_sound(staged));
        compare(whole, staged, len);
        REQUIRE(tr_kv_held_pages(whole, 0) == tr_kv_held_pages(staged, 0));
        tr_kv_cache_free(whole);
        tr_kv_cache_free(staged);
        tr_kv_policy_free(p);
    }
}

/* ---- a pool that is short ----------------------------------------------- */

/* Another slot takes all pages that are left: nothing changes, and it goes on when
 * they are back. */
static void
short_of_pages(void **state)
{
    const shape_t s = { 4, 2, 64, 4000, 128, NULL };
    tr_kv_policy_t *p = policy_of(&s, "diffkv");

    (void) state;
    for (uint32_t len = 768; len < 2000; len += 256) {
        tr_kv_cache_t *kv = make(&s, p, 900);
        uint64_t pages;
        uint32_t n = 1;

        REQUIRE(tr_kv_open(kv, NULL) == 0 && tr_kv_open(kv, NULL) == 1);
        tr_kv_prompt(kv, 0, 4000);
        for (uint32_t at = 0; at < len; at += 128) {
            REQUIRE(at == 0 || tr_kv_stage(kv, 0, at) == TR_OK);
            REQUIRE(tr_kv_reserve(kv, 0, at + 128) == TR_OK);
            score(kv, 0, at, at + 128, 4000);
        }
        tr_kv_prompt(kv, 1, 4000);
        while (tr_kv_reserve(kv, 1, n) == TR_OK) {
            n++;
        }
        pages = tr_kv_free_pages(kv);
        REQUIRE(tr_kv_stage_due(kv, 0, len));
        REQUIRE(tr_kv_stage(kv, 0, len) == TR_AGAIN);
        REQUIRE(tr_kv_free_pages(kv) == pages && tr_kv_sound(kv));
        REQUIRE(tr_kv_stage_due(kv, 0, len));
        tr_kv_close(kv, 1);
        REQUIRE(tr_kv_stage(kv, 0, len) == TR_OK && tr_kv_sound(kv));
        tr_kv_close(kv, 0);
        REQUIRE(tr_kv_free_pages(kv) == tr_kv_pages(kv));
        tr_kv_cache_free(kv);
    }
    tr_kv_policy_free(p);
}

static void
due_at_multiples_alone(void **state)
{
    const shape_t s = { 2, 1, 64, 4000, 128, NULL };
    tr_kv_policy_t *p = policy_of(&s, "uniform:levels=8/4");
    tr_kv_cache_t *kv = make(&s, p, 0);
    tr_kv_policy_t *full = policy_of(&s, "full");

    (void) state;
    assert_int_equal(tr_kv_stages(kv, NULL), 128);
    assert_int_equal(tr_kv_stages(kv, full), 0);
    assert_int_equal(tr_kv_open(kv, NULL), 0);
    tr_kv_prompt(kv, 0, 300);
    assert_int_equal(tr_kv_reserve(kv, 0, 128), TR_OK);
    assert_false(tr_kv_stage_due(kv, 0, 0));
    assert_false(tr_kv_stage_due(kv, 0, 127));
    assert_true(tr_kv_stage_due(kv, 0, 128));
    assert_int_equal(tr_kv_stage(kv, 0, 128), TR_OK);
    assert_false(tr_kv_stage_due(kv, 0, 128));
    assert_int_equal(tr_kv_reserve(kv, 0, 256), TR_OK);
    assert_int_equal(tr_kv_stage(kv, 0, 256), TR_OK);
    assert_int_equal(tr_kv_reserve(kv, 0, 300), TR_OK);
    assert_int_equal(tr_kv_compress(kv, 0, 300), TR_OK);
    assert_false(tr_kv_stage_due(kv, 0, 384));
    tr_kv_close(kv, 0);
    assert_int_equal(tr_kv_open(kv, NULL), 0);
    tr_kv_prompt(kv, 0, 128); /* ends where a stage would be */
    assert_int_equal(tr_kv_reserve(kv, 0, 128), TR_OK);
    assert_false(tr_kv_stage_due(kv, 0, 128));
    tr_kv_cache_free(kv);
    tr_kv_policy_free(full);
    tr_kv_policy_free(p);
}

/* ---- which policies can ------------------------------------------------- */

static void
refused_by_name(void **state)
{
    static const struct {
        const char *spec, *level, *why;
    } cases[] = {
        { "full", "16/16", NULL },
        { "kivi", "16/16", NULL },
        { "uniform:levels=8/4", "8/4", NULL },
        { "uniform:levels=4/2", "4/2", NULL },
        { "diffkv", "8/4", NULL },
        { "int4", "4/4", NULL },
        { "full", "8/4",
          "prefill_level 8/4: KV policy full leaves all prompts at 16 bits;"
          " expected 16/16" },
        { "quest", "8/4",
          "prefill_level 8/4: KV policy quest leaves all prompts at 16 bits;"
          " expected 16/16" },
        { "snapkv", "8/4",
          "prefill_level 8/4: KV policy snapkv decides by what a whole prompt"
          " has at 16 bits; expected 16/16" },
        { "kivi", "2/2",
          "prefill_level 2/2: KV policy kivi decides by what a whole prompt"
          " has at 16 bits; expected 16/16" },
        { "diffkv:observe=32", "8/4",
          "prefill_level 8/4: KV policy diffkv decides by what a whole prompt"
          " has at 16 bits; expected 16/16" },
        { "diffkv", "8/8",
          "prefill_level 8/8: the best level of KV policy diffkv is 8/4;"
          " expected that, or 16/16" },
        { "uniform:levels=4/2", "8/4",
          "prefill_level 8/4: the best level of KV policy uniform is 4/2;"
          " expected that, or 16/16" },
    };
    const shape_t s = { 2, 1, 64, 100, 0, NULL };

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_kv_policy_t *p = policy_of(&s, cases[i].spec);
        tr_error_t err;

        if (cases[i].why == NULL) {
            assert_int_equal(tr_kv_policy_prefill(p, cases[i].level, &err),
                             TR_OK);
        } else {
            assert_int_not_equal(tr_kv_policy_prefill(p, cases[i].level, &err),
                                 TR_OK);
            assert_string_equal(err.text, cases[i].why);
            assert_string_equal(err.param, "prefill_level");
        }
        tr_kv_policy_free(p);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peak_of_a_long_prompt),
        cmocka_unit_test(longest_fits),
        cmocka_unit_test(same_as_at_once),
        cmocka_unit_test(short_of_pages),
        cmocka_unit_test(due_at_multiples_alone),
        cmocka_unit_test(refused_by_name),
    };

    random_state = (uint64_t) time(NULL) * 2654435761u + 1;
    print_message("seed %llu\n", (unsigned long long) random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
