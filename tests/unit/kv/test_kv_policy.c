/*
 * Each policy's decisions, on small cases made by hand.  What diffkv decides
 * within the cache, token by token, is in test_kv_policy_oracle.c; how policies
 * are read from specs in test_kv_policy_spec.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/kv/kv_cache.h"
#include "engine/kv/policy/kv_policy.h"
#include "engine/kv/policy/kv_policy_internal.h"
#include "kernels/kv_manager/manager_prompt.h"

#define HEAD_DIM 128
#define N_MAX 256

static tr_kv_policy_t *
make(const char *spec)
{
    tr_kv_policy_t *p;
    tr_error_t err = { 0 };

    if (tr_kv_policy_create(spec, 4, 2, HEAD_DIM, &p, &err) != TR_OK) {
        fail_msg("%s: %s", spec, err.text);
    }
    return p;
}

/* ---- decisions ---------------------------------------------------------- */

/* Head 0 of a prompt of `length` whose first n tokens are outside the window;
 * scores are given as significances. */
typedef struct {
    uint32_t n, length;
    uint32_t position[N_MAX];
    int8_t from[N_MAX], to[N_MAX];
    float score[N_MAX], recent[N_MAX];
} prompt_t;

static prompt_t *
prompt_of(uint32_t n, uint32_t length, float significance)
{
    static prompt_t c;

    memset(&c, 0, sizeof(c));
    c.n = n;
    c.length = length;
    for (uint32_t i = 0; i < n; i++) {
        c.position[i] = i;
        c.from[i] = TR_KV_NOWHERE;
        c.score[i] = significance * (float) (length - 1 - i);
    }
    memset(c.to, 77, sizeof(c.to));
    return &c;
}

static void
signify(prompt_t *c, uint32_t i, float significance)
{
    c->score[i] = significance * (float) (c->length - 1 - c->position[i]);
}

/* Its key in the order of those that are ranked. */
static uint64_t
key_of(const tr_kv_rule_t *r, const prompt_t *c, uint32_t i,
       const tr_kv_stats_t *m)
{
    float most = 0;

    if (r->kind != TR_KV_RULE_RECENT) {
        return tr_kv_rank_key(tr_kv_rule_rank_value(r, m), m->position);
    }
    if (!tr_kv_recent_counts(c->from[i], c->recent[i])) {
        return tr_kv_rank_key(TR_KV_KEPT, m->position);
    }
    for (uint32_t j = 0; j < c->n; j++) {
        if (tr_kv_recent_counts(c->from[j], c->recent[j])) {
            most = tr_kv_recent_pool(r, most, c->position[i], c->position[j],
                                     c->recent[j]);
        }
    }
    return tr_kv_rank_key(most, m->position);
}

/* What the rule makes of all of them. */
static void
decide(const tr_kv_policy_t *p, prompt_t *c)
{
    const tr_kv_rule_t *r = &p->rule;
    uint64_t key[N_MAX];
    manager_prompt_t s = { .n = c->n, .key = key };
    float t[TR_KV_TIERS_MAX];
    tr_kv_stats_t m[N_MAX];
    uint32_t ranks, counting = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        m[i] = (tr_kv_stats_t){ .position = c->position[i],
                                .length = c->length,
                                .score = c->score[i] };
        counting += tr_kv_recent_counts(c->from[i], c->recent[i]);
    }
    for (uint32_t i = 0; i < c->n; i++) {
        key[i] = key_of(r, c, i, &m[i]);
    }
    ranks = tr_kv_rule_ranks(r, c->length, c->n, counting, s.rank);
    for (uint32_t l = 0; l < ranks; l++) {
        manager_cut(NULL, 0, l, &s);
    }
    for (uint32_t i = 0; i < c->n; i++) {
        if (r->kind == TR_KV_RULE_THRESHOLD) {
            tr_kv_thresholds(r, 0, 0, m[i].position, c->length, t);
        }
        c->to[i] = (int8_t) tr_kv_rule_place(r, &m[i], c->from[i], t, key[i],
                                             s.cut);
    }
}

static tr_kv_stats_t
stats(uint32_t position, uint32_t length, float significance)
{
    return (tr_kv_stats_t){ .position = position,
                            .length = length,
                            .score = significance
                                     * (float) (length - 1 - position) };
}

/* Powers of two, so that significances and thresholds are exact. */
static void
test_diffkv_prompt(void **state)
{
    tr_kv_policy_t *p = make("diffkv:alpha_high=1,alpha_low=0.25,window=4");
    prompt_t *c = prompt_of(60, 64, 0x1p-8f);

    (void) state;
    signify(c, 0, 0x1p-6f); /* exactly 1 / N */
    signify(c, 1, 0x1p-6f);
    c->score[1] = nextafterf(c->score[1], 0);
    c->score[2] = nextafterf(c->score[2], 0); /* below 0.25 / N */
    signify(c, 3, 0);
    signify(c, 4, 1);
    c->from[5] = 1; /* of an earlier turn: not promoted */
    signify(c, 5, 1);
    c->from[6] = 0;
    c->from[7] = 0;
    signify(c, 7, 0);
    c->score[8] = NAN;
    decide(p, c);
    assert_int_equal(c->to[0], 0);
    assert_int_equal(c->to[1], 1);
    assert_int_equal(c->to[2], TR_KV_NOWHERE);
    assert_int_equal(c->to[3], TR_KV_NOWHERE);
    assert_int_equal(c->to[4], 0);
    assert_int_equal(c->to[5], 1);
    assert_int_equal(c->to[6], 1);
    assert_int_equal(c->to[7], TR_KV_NOWHERE);
    assert_int_equal(c->to[8], TR_KV_NOWHERE);
    for (uint32_t i = 9; i < 60; i++) {
        assert_int_equal(c->to[i], 1); /* exactly 0.25 / N */
    }
    assert_int_equal(c->to[60], 77);
    tr_kv_policy_free(p);
}

/* Base i: the threshold of token i is alpha / (i + 1). */
static void
test_diffkv_base(void **state)
{
    tr_kv_policy_t *p = make(
        "diffkv:alpha_high=1,alpha_low=0.25,window=1,base=i");
    prompt_t *c = prompt_of(64, 65, 0x1p-4f);
    tr_kv_stats_t m = stats(14, 65, 0x1p-4f);

    (void) state;
    decide(p, c);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(c->to[i],
                         i + 1 >= 16 ? 0 : (i + 1 >= 4 ? 1 : TR_KV_NOWHERE));
    }
    assert_int_equal(tr_kv_rule_leave(&p->rule, &m, NULL), 1);
    m = stats(15, 65, 0x1p-4f);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &m, NULL), 0);
    tr_kv_policy_free(p);
}

static void
test_diffkv_step(void **state)
{
    tr_kv_policy_t *p = make("diffkv:alpha_high=1,alpha_low=0.25");
    tr_kv_stats_t high = stats(10, 128, 0x1p-7f), low = stats(10, 128, 0x1p-8f),
                  none = stats(10, 128, 0x1p-10f), fresh = stats(127, 128, 1);

    (void) state;
    assert_int_equal(tr_kv_rule_leave(&p->rule, &high, NULL), 0);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &low, NULL), 1);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &none, NULL), TR_KV_NOWHERE);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &fresh, NULL), TR_KV_NOWHERE);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, &high, NULL),
                     TR_KV_STAYS);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, &low, NULL), 1);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, &none, NULL),
                     TR_KV_NOWHERE);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 1, &high, NULL),
                     TR_KV_STAYS);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 1, &low, NULL),
                     TR_KV_STAYS);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 1, &none, NULL),
                     TR_KV_NOWHERE);
    tr_kv_policy_free(p);

    p = make("diffkv:alpha_low=0"); /* nobody is forgotten */
    assert_int_equal(tr_kv_rule_leave(&p->rule, &fresh, NULL), 1);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 1, &fresh, NULL),
                     TR_KV_STAYS);
    tr_kv_policy_free(p);
}

static void
test_diffkv_levels(void **state)
{
    tr_kv_policy_t *p = make("diffkv:levels=16/16+8/4+4/2,alpha_top=4,"
                             "alpha_high=1,alpha_low=0.25");
    tr_kv_stats_t top = stats(10, 128, 0x1p-5f), high = stats(10, 128, 0x1p-6f),
                  low = stats(10, 128, 0x1p-8f),
                  none = stats(10, 128, 0x1p-10f);

    (void) state;
    assert_int_equal(tr_kv_rule_leave(&p->rule, &top, NULL), 0);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &high, NULL), 1);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &low, NULL), 2);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &none, NULL), TR_KV_NOWHERE);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, &high, NULL), 1);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, &low, NULL), 2);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 1, &top, NULL),
                     TR_KV_STAYS);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 2, &low, NULL),
                     TR_KV_STAYS);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 2, &none, NULL),
                     TR_KV_NOWHERE);
    tr_kv_policy_free(p);

    p = make("diffkv:levels=8/4,alpha_low=1"); /* alpha_high has no say */
    assert_int_equal(tr_kv_rule_leave(&p->rule, &high, NULL), 0);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &low, NULL), TR_KV_NOWHERE);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, &low, NULL),
                     TR_KV_NOWHERE);
    tr_kv_policy_free(p);
}

static void
test_charge(void **state)
{
    static const char *const some[] = { "uniform",
                                        "diffkv",
                                        "diffkv:alpha_high=3,alpha_low=1",
                                        "static",
                                        "int4",
                                        "kivi",
                                        "snapkv",
                                        "h2o",
                                        "streamingllm:recent=0.25",
                                        "h2o:budget=64",
                                        "diffkv:levels=8/4,alpha_low=0",
                                        "diffkv:levels=16/16+8/4+4/2" };

    (void) state;
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        tr_kv_policy_t *p = make(some[i]), at;

        for (uint32_t n = 1; n < 100000; n = n * 3 / 2 + 1) {
            uint32_t tokens[TR_KV_TIERS_MAX] = { 0 }, sum = 0;

            tr_kv_policy_for(p, n, &at);
            at.row->charge(&at, 1, 1, n, tokens);
            for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
                assert_true(l < p->n_levels || tokens[l] == 0);
                sum += tokens[l];
            }
            assert_true(sum <= (n > at.window ? n - at.window : 0));
        }
        tr_kv_policy_free(p);
    }
}

static void
test_static(void **state)
{
    tr_kv_policy_t *p = make("static:high=0.1,low=0.2,window=1");
    prompt_t *c = prompt_of(40, 40, 0.5f); /* 4 high, 8 low */
    uint32_t count[TR_KV_TIERS_MAX] = { 3, 8 };
    tr_kv_stats_t m = stats(39, 40, 0);

    (void) state;
    signify(c, 5, 0.9f);
    signify(c, 6, 0.8f);
    c->from[6] = 1;
    signify(c, 7, 0.1f);
    decide(p, c);
    assert_int_equal(c->to[5], 0);
    assert_int_equal(c->to[6], 1); /* ranks high, but nobody goes up */
    for (uint32_t i = 0; i < 40; i++) {
        /* of equals the lowest positions go; token 39 has had no query */
        if (i != 5 && i != 6) {
            assert_int_equal(c->to[i],
                             i == 37 || i == 38
                                 ? 0
                                 : (i >= 29 && i < 37 ? 1 : TR_KV_NOWHERE));
        }
    }
    /* 11 of 12: there is room, the tier's least goes down when it is over 4 */
    assert_int_equal(tr_kv_rule_leave(&p->rule, &m, count), 0);
    count[0]++;
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, &m, count), TR_KV_STAYS);
    count[0]++;
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, &m, count), 1);
    /* 12 of 12: to the last level, whose least goes */
    count[0] = 4;
    assert_int_equal(tr_kv_rule_leave(&p->rule, &m, count), 1);
    count[1]++;
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 1, &m, count),
                     TR_KV_NOWHERE);
    count[1]--;
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 1, &m, count), TR_KV_STAYS);
    tr_kv_policy_free(p);
}

/* The cut against sorting. */
static int
by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

    return x < y ? 1 : (x > y ? -1 : 0);
}

static void
test_rank(void **state)
{
    const char *given = getenv("TR_TEST_SEED"); /* repeats a run */
    unsigned seed = given != NULL ? (unsigned) strtoul(given, NULL, 0)
                                  : (unsigned) time(NULL);

    (void) state;
    print_message("TR_TEST_SEED=%u\n", seed);
    srand(seed);
    for (int round = 0; round < 2000; round++) {
        float value[64];
        uint32_t position[64], n = (uint32_t) rand() % 64 + 1;
        uint32_t k = (uint32_t) rand() % (n + 2);
        uint64_t keys[64], sorted[64];
        manager_prompt_t s = { .n = n, .rank = { k }, .key = keys };

        for (uint32_t i = 0; i < n; i++) {
            value[i] = rand() % 4 == 0 ? 0 : (float) (rand() % 8) * 1e-3f;
            if (rand() % 16 == 0) {
                value[i] = NAN;
            }
            position[i] = i * 977 % 64; /* distinct, not in order */
            keys[i] = tr_kv_rank_key(value[i], position[i]);
        }
        memcpy(sorted, keys, sizeof(sorted));
        qsort(sorted, n, sizeof(sorted[0]), by_key);
        manager_cut(NULL, 0, 0, &s);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(sorted[i] >= s.cut[0], i < k);
        }
    }
}

static void
test_snapkv(void **state)
{
    tr_kv_policy_t *p = make("snapkv:budget=7");
    prompt_t *c = prompt_of(100, 132, 0);

    (void) state;
    c->recent[50] = 1; /* and its three neighbours on both sides */
    c->from[0] = 0;    /* kept in an earlier turn */
    c->recent[0] = -1;
    c->recent[1] = -1; /* leaves the window: was generated */
    decide(p, c);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(c->to[i],
                         i < 2 || (i >= 47 && i <= 53) ? 0 : TR_KV_NOWHERE);
    }
    tr_kv_policy_free(p);

    p = make("snapkv:budget=0.1,pool=1");
    c = prompt_of(100, 132, 0);
    for (uint32_t i = 0; i < 100; i++) {
        c->recent[i] = (float) (i * 37 % 100);
    }
    decide(p, c);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(c->to[i], i * 37 % 100 >= 90 ? 0 : TR_KV_NOWHERE);
    }
    assert_int_equal(tr_kv_rule_leave(&p->rule, NULL, NULL), 0);
    assert_int_equal(tr_kv_rule_downgrade(&p->rule, 0, NULL, NULL),
                     TR_KV_STAYS);
    tr_kv_policy_free(p);
}

static void
test_h2o(void **state)
{
    tr_kv_policy_t *p = make("h2o:budget=0.2"), at;
    prompt_t *c = prompt_of(90, 100, 0);
    uint32_t count[TR_KV_TIERS_MAX] = { 10 };

    (void) state;
    tr_kv_policy_for(p, 100, &at);
    assert_int_equal(at.window, 10);
    for (uint32_t i = 0; i < 90; i++) {
        c->score[i] = (float) (i * 7 % 90); /* sums, not means */
    }
    decide(&at, c);
    for (uint32_t i = 0; i < 90; i++) {
        assert_int_equal(c->to[i], i * 7 % 90 >= 80 ? 0 : TR_KV_NOWHERE);
    }
    assert_int_equal(tr_kv_rule_leave(&at.rule, NULL, count), 0);
    assert_int_equal(tr_kv_rule_downgrade(&at.rule, 0, NULL, count),
                     TR_KV_STAYS);
    count[0]++;
    assert_int_equal(tr_kv_rule_downgrade(&at.rule, 0, NULL, count),
                     TR_KV_NOWHERE);
    tr_kv_policy_free(p);

    p = make("h2o:budget=33");
    tr_kv_policy_for(p, 1000, &at);
    assert_int_equal(at.window, 16);
    assert_int_equal(at.budget[1], 17);
    tr_kv_policy_free(p);
}

static void
test_streamingllm(void **state)
{
    tr_kv_policy_t *p = make("streamingllm:sinks=4,recent=0.25"), at;
    prompt_t *c = prompt_of(48, 64, 1);
    tr_kv_stats_t sink = stats(3, 64, 0), other = stats(4, 64, 1);

    (void) state;
    tr_kv_policy_for(p, 64, &at);
    assert_int_equal(at.window, 16);
    decide(&at, c);
    for (uint32_t i = 0; i < 48; i++) {
        assert_int_equal(c->to[i], i < 4 ? 0 : TR_KV_NOWHERE);
    }
    assert_int_equal(tr_kv_rule_leave(&at.rule, &sink, NULL), 0);
    assert_int_equal(tr_kv_rule_leave(&at.rule, &other, NULL), TR_KV_NOWHERE);
    tr_kv_policy_free(p);
}

static void
test_quest(void **state)
{
    tr_kv_policy_t *p = make("quest:budget=100,from=2");

    (void) state;
    assert_true(p->n_levels == 0 && p->minmax && p->read_from == 2);
    assert_int_equal(tr_kv_rule_read(&p->rule, 50, 32),
                     4); /* 128 tokens hold 100 */
    assert_int_equal(tr_kv_rule_read(&p->rule, 5, 32), 4);
    assert_int_equal(tr_kv_rule_read(&p->rule, 4, 32), 0); /* all */
    assert_int_equal(tr_kv_rule_read(&p->rule, 0, 32), 0);
    tr_kv_policy_free(p);
    p = make("quest:budget=0.25");
    assert_int_equal(tr_kv_rule_read(&p->rule, 100, 32), 25);
    assert_int_equal(tr_kv_rule_read(&p->rule, 101, 32), 26);
    assert_int_equal(tr_kv_rule_read(&p->rule, 2, 32), 1);
    tr_kv_policy_free(p);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diffkv_prompt),
        cmocka_unit_test(test_diffkv_base),
        cmocka_unit_test(test_diffkv_step),
        cmocka_unit_test(test_diffkv_levels),
        cmocka_unit_test(test_charge),
        cmocka_unit_test(test_static),
        cmocka_unit_test(test_rank),
        cmocka_unit_test(test_snapkv),
        cmocka_unit_test(test_h2o),
        cmocka_unit_test(test_streamingllm),
        cmocka_unit_test(test_quest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
