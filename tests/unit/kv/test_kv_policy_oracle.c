/*
 * diffkv, static and h2o within the real cache against an oracle (kv_oracle.h),
 * token by token.
 *
 * The real thing is tr_kv_cache with the CPU kernels, which append, move and
 * compress.  Attention is simulated: at each step the same increments are added
 * to the oracle's sums and, through the view, to the scores in the pages, and
 * the candidates are computed as the contract says.  Increments are multiples
 * of 2^-16, so that sums are exact in both.  After each step every token must
 * be where the oracle has it, with the same sum.
 */
#include "tests/unit/fixtures/kv/kv_oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/kv/kv_cache.h"
#include "engine/kv/policy/kv_policy.h"
#include "kernels/kernels.h"

#define DIM 32u
#define NO_SETTING UINT32_MAX /* for a window that follows the prompt */

/* ---- attention, simulated ----------------------------------------------- */

typedef enum {
    SPARSE,   /* few tokens get much, as in real heads */
    ANYTHING, /* uniform noise */
    EQUAL,    /* all tokens the same: means of a head are all equal */
    TIES,     /* one of two values */
    SPIKE,    /* one token gets it all */
    ZERO,     /* nobody gets anything */
    DRIFT,    /* what mattered once does not later */
    FRESH,    /* only recent tokens matter: everything is downgraded */
    PATTERNS
} pattern_t;

static uint64_t seed;

static uint32_t
hash(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t x = seed + a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull
                 + c * 0x94d049bb133111ebull;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (uint32_t) (x >> 32);
}

/* What the query at position n pays to token t, in 2^-16. */
static uint32_t
paid(pattern_t pattern, uint32_t head, uint32_t t, uint32_t n)
{
    uint32_t noise = hash(head, t, n), own = hash(head, t, TOKENS_MAX);

    switch (pattern) {
    case SPARSE:
        return own % 16 == 0 ? noise % 8192 : noise % 64;
    case ANYTHING:
        return noise % 1024;
    case EQUAL:
        return 512;
    case TIES:
        return (own & 1) * 1024;
    case SPIKE:
        return t == 3 ? 65536 : 0;
    case ZERO:
    case PATTERNS:
        return 0;
    case DRIFT:
        return (t / 16 + head) % 4 == n / 40 % 4 ? 2048 + noise % 256
                                                 : noise % 16;
    case FRESH:
        return n - t < 12 ? 4096 : 0;
    }
    return 0;
}

/* ---- the real thing ----------------------------------------------------- */

typedef struct {
    tr_kv_policy_t *policy;
    const tr_kernels_t *kernels;
    tr_stream_t stream;
    tr_kv_cache_t *kv;
    tr_kv_view_t view;
    int32_t slot;
    uint32_t recent_from; /* queries from here on count as recent */
    pattern_t pattern;
    oracle_t *oracle;
} fixture_t;

/* Stores tokens [from, to), as a model's layers would. */
static void
append(fixture_t *r, uint32_t from, uint32_t to)
{
    static float k[TOKENS_MAX * KV_HEADS * DIM], v[TOKENS_MAX * KV_HEADS * DIM],
        angles[TOKENS_MAX * DIM];
    static uint32_t row_pos[TOKENS_MAX];
    uint32_t seq_row[2] = { 0, to - from };
    tr_rows_t rows = { .n_rows = to - from,
                       .n_seqs = 1,
                       .row_pos = row_pos,
                       .seq_slot = &r->slot,
                       .seq_row = seq_row };

    for (uint32_t i = 0; i < rows.n_rows; i++) {
        row_pos[i] = from + i;
        for (uint32_t j = 0; j < KV_HEADS * DIM; j++) {
            k[i * KV_HEADS * DIM + j] = (float) (hash(i, j, from) % 100) - 50;
            v[i * KV_HEADS * DIM + j] = (float) (hash(j, i, from) % 100) - 50;
        }
        for (uint32_t j = 0; j < DIM; j++) {
            angles[i * DIM + j] = j < DIM / 2; /* cos 1, sin 0 */
        }
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(r->kernels->kv_append(&r->stream, &r->view, layer,
                                               &rows, k, v, KV_HEADS * DIM,
                                               angles),
                         TR_KERNEL_OK);
    }
}

/* The page and the place in it of a token of a head: tier l, the window
 * (position) or uncompressed pages (position). */
static uint8_t *
page_of(const fixture_t *r, uint32_t head, int place, uint32_t i,
        const tr_kv_layout_t **layout, uint32_t *at)
{
    const tr_kv_view_t *v = &r->view;
    const tr_kv_seq_t *q = &v->seq[r->slot];
    const int32_t *row = tr_kv_table(v, r->slot, head / KV_HEADS,
                                     head % KV_HEADS);
    uint32_t entry;

    if (place == IN_WINDOW) {
        *layout = &v->layout[q->window_layout];
        if (i >= r->oracle->fixed) {
            i = r->oracle->fixed + (i - r->oracle->fixed) % q->window;
        }
        entry = v->at_window + i / (*layout)->tokens;
    } else if (place == GONE) { /* uncompressed */
        *layout = &v->layout[0];
        i -= q->base;
        entry = i / (*layout)->tokens;
    } else {
        *layout = &v->layout[q->tier_layout[place]];
        entry = tr_kv_tier_entry(v, (uint32_t) place, i / (*layout)->tokens);
    }
    *at = i % (*layout)->tokens;
    assert_true(row[entry] >= 0);
    return tr_kv_page_at(v, row[entry]);
}

static void
pay(const fixture_t *r, uint8_t *page, uint32_t score, uint32_t at,
    uint32_t head, uint32_t t, uint32_t n)
{
    float sum, more = (float) paid(r->pattern, head, t, n) * 0x1p-16f;

    (void) r;
    assert_true(score != 0);
    memcpy(&sum, page + score + at * 4, 4);
    sum += more;
    memcpy(page + score + at * 4, &sum, 4);
}

static uint32_t
position_of(const uint8_t *page, const tr_kv_layout_t *layout, uint32_t at)
{
    return tr_kv_position_at(layout, page, at);
}

/* The tiers of one head: pays their tokens and finds their candidates. */
static void
attend_tiers(fixture_t *r, uint32_t head, uint32_t n)
{
    const tr_kv_view_t *v = &r->view;
    size_t base = tr_kv_head(v, r->slot, head / KV_HEADS, head % KV_HEADS)
                  * TR_KV_TIERS_MAX;

    for (uint32_t l = 0; l < v->seq[r->slot].n_tiers; l++) {
        tr_kv_candidate_t candidate = { INFINITY, 0 };
        uint32_t lowest = 0;

        for (uint32_t i = 0; i < v->count[base + l]; i++) {
            const tr_kv_layout_t *layout;
            uint32_t at, t;
            uint8_t *page = page_of(r, head, (int) l, i, &layout, &at);
            float score, significance;

            if (layout->score == 0) { /* nobody leaves this tier */
                break;
            }
            t = position_of(page, layout, at);
            if (t < n) {
                pay(r, page, layout->score, at, head, t, n);
            }
            memcpy(&score, page + layout->score + at * 4, 4);
            significance = t < n ? score / (float) (n - t) : 0;
            significance = v->seq[r->slot].by_sum ? score : significance;
            if (significance < candidate.significance
                || (significance == candidate.significance && t < lowest)) {
                candidate = (tr_kv_candidate_t){ significance, i };
                lowest = t;
            }
        }
        v->candidate[base + l] = candidate;
    }
}

/* The query at position n attends; the oracle's tokens get the same. */
static void
attend(fixture_t *r, uint32_t n)
{
    const tr_kv_seq_t *q = &r->view.seq[r->slot];
    const tr_kv_layout_t *layout;
    uint32_t at;

    for (uint32_t head = 0; head < HEADS; head++) {
        attend_tiers(r, head, n);
        for (uint32_t t = 0; t < q->base && t < n; t++) {
            uint8_t *page;

            if (t >= r->oracle->fixed && t < q->window_from) {
                continue;
            }
            page = page_of(r, head, IN_WINDOW, t, &layout, &at);
            pay(r, page, layout->score, at, head, t, n);
        }
        for (uint32_t t = q->base; t < n; t++) {
            uint8_t *page = page_of(r, head, GONE, t, &layout, &at);

            pay(r, page, layout->score, at, head, t, n);
            if (n >= r->recent_from) {
                pay(r, page, layout->recent, at, head, t, n);
            }
        }
        for (uint32_t t = 0; t < n; t++) {
            token_t *o = &r->oracle->token[head][t];
            double more = paid(r->pattern, head, t, n) * 0x1p-16;

            if (o->level != GONE) {
                o->sum += more;
                o->single += (float) more;
                o->recent += n >= r->recent_from ? more : 0;
            }
        }
    }
}

/* A tier without positions: takes those that the oracle has there, and says
 * how many they are. */
static uint32_t
find_all(const fixture_t *r, uint32_t head, int l, int *found)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < r->oracle->length; t++) {
        if (r->oracle->token[head][t].level == l) {
            assert_int_equal(found[t], GONE);
            found[t] = l;
            n++;
        }
    }
    return n;
}

/* Is every token where the oracle has it? */
static void
compare(const fixture_t *r, const char *when)
{
    const tr_kv_view_t *v = &r->view;
    const tr_kv_seq_t *q = &v->seq[r->slot];

    assert_int_equal(q->base, r->oracle->length);
    for (uint32_t head = 0; head < HEADS; head++) {
        size_t base = tr_kv_head(v, r->slot, head / KV_HEADS, head % KV_HEADS)
                      * TR_KV_TIERS_MAX;
        int found[TOKENS_MAX];

        for (uint32_t t = 0; t < q->base; t++) {
            found[t] = t < r->oracle->fixed || t >= q->window_from ? IN_WINDOW
                                                                   : GONE;
        }
        for (int l = 0; l < q->n_tiers; l++) {
            if (v->layout[q->tier_layout[l]].position == 0) {
                assert_int_equal(v->count[base + (uint32_t) l],
                                 find_all(r, head, l, found));
                continue;
            }
            for (uint32_t i = 0; i < v->count[base + (uint32_t) l]; i++) {
                const tr_kv_layout_t *layout;
                uint32_t at, t;
                const uint8_t *page = page_of(r, head, l, i, &layout, &at);
                float score;

                t = position_of(page, layout, at);
                assert_true(t < q->base);
                assert_int_equal(found[t], GONE); /* nobody is there twice */
                found[t] = l;
                memcpy(&score, page + layout->score + at * 4, 4);
                if (score != r->oracle->token[head][t].single) {
                    fail_msg("%s, head %u, %u tokens, token %u: sum %g, the"
                             " oracle's %g",
                             when, head, q->base, t, (double) score,
                             r->oracle->token[head][t].sum);
                }
            }
        }
        for (uint32_t t = 0; t < q->base; t++) {
            if (found[t] != r->oracle->token[head][t].level) {
                fail_msg("%s, %s, pattern %d, head %u, %u tokens: token %u is"
                         " at %d, the oracle has it at %d",
                         r->policy->spec, when, (int) r->pattern, head, q->base,
                         t, found[t], r->oracle->token[head][t].level);
            }
        }
    }
    assert_true(tr_kv_sound(r->kv));
}

/* Tokens [from, to) are a prompt (or a later turn's). */
static void
prompt(fixture_t *r, uint32_t from, uint32_t to, uint32_t chunk)
{
    uint32_t observe = r->policy->observe;

    tr_kv_prompt(r->kv, r->slot, to);
    r->recent_from = observe > 0 ? (to > observe ? to - observe : 0) : to;
    if (r->recent_from < from) {
        r->recent_from = from;
    }
    for (uint32_t at = from; at < to; at += chunk) {
        uint32_t end = at + chunk < to ? at + chunk : to;

        assert_int_equal(tr_kv_reserve(r->kv, r->slot, end), TR_OK);
        append(r, at, end);
        for (uint32_t n = at; n < end; n++) {
            attend(r, n);
        }
    }
    r->recent_from = UINT32_MAX;
    assert_int_equal(tr_kv_compress(r->kv, r->slot, to), TR_OK);
    oracle_prompt(r->oracle, from, to);
    compare(r, "prompt");
}

static void
generate(fixture_t *r, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t n = r->oracle->length;

        assert_int_equal(tr_kv_reserve(r->kv, r->slot, n + 1), TR_OK);
        append(r, n, n + 1);
        oracle_step(r->oracle);
        compare(r, "step");
        attend(r, n);
    }
}

/* ---- cases -------------------------------------------------------------- */

/* Thresholds by layer and KV head, high and low, that test_by_head writes to a
 * file; the head that it leaves out has those of the policy. */
static const double by_head[HEADS][2] = {
    { 1, 0.25 }, { 2.5, 0.75 }, { 0.5, 0 }, { 4, 2 }
};
#define NOT_NAMED 0u

/* The settings, by another reading. */
static void
oracle_of(const tr_kv_policy_t *p, oracle_t *o)
{
    o->rule = strcmp(p->name, "static") == 0
                  ? STATIC
                  : (strcmp(p->name, "h2o") == 0 ? H2O : DIFFKV);
    o->n_levels = p->n_levels;
    o->window = p->window;
    o->observe = p->observe;
    o->sinks = p->sinks;
    o->base_position = p->base_position;
    for (uint32_t head = 0; head < HEADS; head++) {
        bool own = p->alpha_file[0] != '\0' && head != NOT_NAMED;
        double by_level[3] = { p->alpha_top,
                               own ? by_head[head][0] : p->alpha_high,
                               own ? by_head[head][1] : p->alpha_low };

        memcpy(o->alpha[head], by_level + 3 - p->n_levels,
               p->n_levels * sizeof(by_level[0]));
    }
    memcpy(o->share, p->fraction, sizeof(o->share));
}

static void
open_fixture(fixture_t *r, const char *levels, uint32_t window,
             pattern_t pattern)
{
    char spec[200];
    static oracle_t oracle;
    tr_error_t err = { 0 };
    const tr_kv_policy_t *p;
    tr_kv_config_t config = {
        .layers = LAYERS,
        .kv_heads = KV_HEADS,
        .head_dim = DIM,
        .slots = 2,
        /* or with positions of four bytes */
        .max_len = TOKENS_MAX + (hash(pattern, window, 1) % 2 * TR_KV_SHORT),
        .memory = 8 << 20,
        .n_policies = 1
    };

    memset(r, 0, sizeof(*r));
    memset(&oracle, 0, sizeof(oracle));
    snprintf(spec, sizeof(spec), "%s", levels);
    if (window != NO_SETTING) {
        snprintf(spec, sizeof(spec), "%s,window=%u", levels,
                 window > 0 ? window : 1);
    }
    if (tr_kv_policy_create(spec, LAYERS, KV_HEADS, DIM, &r->policy, &err)
        != TR_OK) {
        fail_msg("%s: %s", spec, err.text);
    }
    /* users may not ask for this, since a token would be forgotten before it is
     * ever read; the algorithm is the same */
    if (window == 0) {
        r->policy->window = r->policy->sinks = 0;
    }
    p = r->policy;
    r->kernels = tr_kernels_cpu(NULL);
    r->stream.threads = 1;
    config.policies = &p;
    config.kernels = r->kernels;
    config.stream = r->stream;
    if (tr_kv_cache_create(&config, &r->kv, &err) != TR_OK) {
        fail_msg("%s: %s", spec, err.text);
    }
    tr_kv_view(r->kv, &r->view);
    r->slot = tr_kv_open(r->kv, NULL);
    assert_true(r->slot >= 0);
    r->pattern = pattern;
    r->oracle = &oracle;
    oracle_of(p, &oracle);
}

static void
close_fixture(fixture_t *r)
{
    tr_kv_close(r->kv, r->slot);
    assert_int_equal(tr_kv_free_pages(r->kv), tr_kv_pages(r->kv));
    tr_kv_cache_free(r->kv);
    tr_kv_policy_free(r->policy);
}

static const char *const specs[] = {
    "diffkv:levels=8/4+4/2,alpha_high=1,alpha_low=0.25",
    "diffkv:levels=8/4+4/2,alpha_high=1,alpha_low=0.02,base=i",
    "diffkv:levels=16/16+8/4+4/2,alpha_top=3,alpha_high=1,alpha_low=0.3",
    "diffkv:levels=8/4,alpha_low=0.5",
    "diffkv:levels=8/8+4/4,alpha_high=2,alpha_low=0",
    "diffkv:levels=16/16+2/2,alpha_high=4,alpha_low=1,base=i",
    "diffkv:levels=8/4+4/2,alpha_high=1,alpha_low=0.25,observe=32",
    "diffkv:levels=16/16+8/4+4/2,alpha_low=0.1,observe=7",
};

static const uint32_t lengths[] = { 1, 2, 15, 16, 17, 31, 64, 65, 150 };
/* One conversation: a prompt, an answer, and a second turn of both. */
static void
conversation(const char *levels, pattern_t pattern, uint32_t length,
             uint32_t window)
{
    fixture_t r;

    open_fixture(&r, levels, window, pattern);
    prompt(&r, 0, length, length > 64 ? 64 : 7);
    generate(&r, (window == NO_SETTING ? 60 : window) + 40);
    prompt(&r, r.oracle->length, r.oracle->length + length / 2 + 1, 50);
    generate(&r, 20);
    close_fixture(&r);
}

static void
conversations(const char *spec, const uint32_t *window, size_t n_windows)
{
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
            for (size_t w = 0; w < n_windows; w++) {
                conversation(spec, (pattern_t) pattern, lengths[n], window[w]);
            }
        }
    }
}

/* That the precisions disagreed is rare, or they were not compared. */
static void
account(uint64_t at_least)
{
    print_message("%llu decisions, %llu too near to a threshold or tie to be"
                  " held against double precision\n",
                  (unsigned long long) decisions,
                  (unsigned long long) near_cases);
    assert_true(decisions > at_least);
    assert_true(near_cases * 1000 < decisions);
    decisions = near_cases = 0;
}

static void
test_diffkv(void **state)
{
    static const uint32_t windows[] = { 0, 1, 16, 64 };

    (void) state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        conversations(specs[i], windows, 4);
    }
    account(1000000);
}

static void
test_by_head(void **state)
{
    static const uint32_t windows[] = { 1, 16 };
    static const char *const some[] = {
        "diffkv:alpha_high=1,alpha_low=0.25",
        "diffkv:levels=16/16+8/4+4/2,alpha_top=6,alpha_high=2,alpha_low=0.1",
        "diffkv:levels=8/4,alpha_low=0.5,base=i"
    };
    char path[] = "/tmp/tr_alpha_XXXXXX", spec[150];
    FILE *f = fdopen(mkstemp(path), "w");

    (void) state;
    assert_non_null(f);
    for (uint32_t head = 0; head < HEADS; head++) {
        if (head != NOT_NAMED) {
            fprintf(f, "%u %u %g %g\n", head / KV_HEADS, head % KV_HEADS,
                    by_head[head][0], by_head[head][1]);
        }
    }
    assert_int_equal(fclose(f), 0);
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        snprintf(spec, sizeof(spec), "%s,alpha_file=%s", some[i], path);
        conversations(spec, windows, 2);
    }
    unlink(path);
    account(100000);
}

static void
test_static(void **state)
{
    static const uint32_t windows[] = { 1, 16, 64 };

    (void) state;
    conversations("static:high=0.25,low=0.35", windows, 3);
    conversations("static:levels=16/16+4/2,high=0.1,low=0.05,observe=32",
                  windows, 3);
    account(100000);
}

/* The first tokens in front of the window, fewer where the prompt is shorter. */
static void
test_sinks(void **state)
{
    static const uint32_t windows[] = { 1, 16, 64 };
    static const char *const some[] = {
        "diffkv:alpha_high=1,alpha_low=0.25,sinks=4",
        "diffkv:levels=16/16+8/4+4/2,alpha_low=0.1,observe=7,sinks=33",
        "diffkv:levels=8/4+4/2,alpha_low=0,window_level=16/16,sinks=16",
        "static:high=0.25,low=0.35,sinks=3",
    };

    (void) state;
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        conversations(some[i], windows, 3);
    }
    account(100000);
}

static void
test_h2o(void **state)
{
    static const uint32_t none[] = { NO_SETTING };

    (void) state;
    conversations("h2o:budget=0.2", none, 1);
    conversations("h2o:budget=0.75", none, 1);
    account(50000);
}

/* A long text with every pattern in turn: tiers of several pages. */
static void
test_long(void **state)
{
    (void) state;
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        fixture_t r;

        open_fixture(&r, "diffkv:alpha_high=1.5,alpha_low=0.4", 64,
                     (pattern_t) pattern);
        prompt(&r, 0, 400, 128);
        r.pattern = (pattern_t) ((pattern + 2) % PATTERNS);
        generate(&r, 230);
        close_fixture(&r);
    }
    account(10000);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diffkv), cmocka_unit_test(test_by_head),
        cmocka_unit_test(test_static), cmocka_unit_test(test_h2o),
        cmocka_unit_test(test_long),   cmocka_unit_test(test_sinks),
    };

    const char *given = getenv("TR_TEST_SEED"); /* repeats a run */

    seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t) time(NULL);
    print_message("TR_TEST_SEED=%llu\n", (unsigned long long) seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
