/*
 * Policies from specs: what is understood, how it is printed, what every
 * mistake is answered with, thresholds from files and from requests, and the
 * levels that come of it.  What policies decide is in test_kv_policy.c.
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

#define HEAD_DIM 128

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

/* ---- specs -------------------------------------------------------------- */

/* front: window,window_level,sinks */
#define DIFFKV(levels, front, groups, top, high, low, rest)               \
    "diffkv:levels=" levels "," front ",groups=" groups ",alpha_top=" top \
    ",alpha_high=" high ",alpha_low=" low "," rest
#define FRONT(window, level, sinks) \
    "window=" window ",window_level=" level ",sinks=" sinks

static const struct {
    const char *spec, *canonical;
} specs[] = {
    { "full", "full" },
    { "uniform",
      "uniform:levels=8/4,window=0,window_level=8/4,sinks=0,groups=1" },
    { "uniform:levels=4/8,window=32",
      "uniform:levels=4/8,window=32,window_level=4/8,sinks=0,groups=1" },
    { "uniform:window=8,window_level=16/16,groups=2,levels=2/16,sinks=4",
      "uniform:levels=2/16,window=8,window_level=16/16,sinks=4,groups=2" },
    { "diffkv", DIFFKV("8/4+4/2", FRONT("44", "8/8", "4"), "1", "4", "9", "0",
                       "base=N,observe=0") },
    { "diffkv:alpha_low=0.020,alpha_high=3.0,base=i,observe=32",
      DIFFKV("8/4+4/2", FRONT("44", "8/8", "4"), "1", "4", "3", "0.02",
             "base=i,observe=32") },
    { "diffkv:levels=16/16+8/4+4/2,alpha_top=1000,alpha_high=1e-3,alpha_low=0",
      DIFFKV("16/16+8/4+4/2", FRONT("44", "16/16", "4"), "1", "1000", "0.001",
             "0", "base=N,observe=0") },
    { "diffkv:levels=16/16+8/4+4/2",
      DIFFKV("16/16+8/4+4/2", FRONT("44", "16/16", "4"), "1", "4", "1", "0",
             "base=N,observe=0") },
    { "diffkv:levels=8/4,alpha_high=0,alpha_low=0,window=0,groups=4",
      DIFFKV("8/4", FRONT("0", "8/4", "0"), "4", "4", "0", "0",
             "base=N,observe=0") },
    { "diffkv:sinks=0,window_level=8/4,alpha_high=8",
      DIFFKV("8/4+4/2", FRONT("44", "8/4", "0"), "1", "4", "8", "0",
             "base=N,observe=0") },
    { "diffkv:groups=2", DIFFKV("8/4+4/2", FRONT("44", "8/4", "4"), "2", "4",
                                "9", "0", "base=N,observe=0") },
    { "diffkv:levels=4/16+4/2",
      DIFFKV("4/16+4/2", FRONT("44", "8/16", "4"), "1", "4", "9", "0",
             "base=N,observe=0") },
    { "static",
      "static:levels=8/4+4/2,window=64,window_level=8/4,sinks=0,groups=1,"
      "high=0.25,low=0.35,observe=0" },
    { "int4", "int4:group=128" },
    { "int4:group=32", "int4:group=32" },
    { "kivi", "kivi:bits=2,window=128" },
    { "kivi:window=32,bits=4", "kivi:bits=4,window=32" },
    { "snapkv:budget=0.25", "snapkv:budget=0.25,pool=7" },
    { "snapkv:budget=1", "snapkv:budget=1,pool=7" },
    { "snapkv:budget=1.0,pool=1", "snapkv:budget=1.0,pool=1" },
    { "h2o", "h2o:budget=0.2" },
    { "h2o:budget=512", "h2o:budget=512" },
    { "streamingllm", "streamingllm:sinks=4,recent=1020" },
    { "streamingllm:recent=0.3333333333333333,sinks=0",
      "streamingllm:sinks=0,recent=0.3333333333333333" },
    { "quest", "quest:budget=1024,from=2" },
};

/* Each is understood, printed in one way, and that is understood alike. */
static void
test_specs(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        tr_kv_policy_t *p = make(specs[i].spec), *again;

        assert_string_equal(p->spec, specs[i].canonical);
        again = make(p->spec);
        assert_string_equal(again->spec, p->spec);
        assert_memory_equal(again, p, sizeof(*p));
        tr_kv_policy_free(p);
        tr_kv_policy_free(again);
    }
}

static void
test_names(void **state)
{
    (void) state;
    assert_string_equal(tr_kv_policy_names(),
                        "full, uniform, diffkv, static, int4, kivi, snapkv,"
                        " h2o, streamingllm, quest");
}

/* Every policy answers every question, and its levels have pages at every head
 * size that is promised. */
static void
test_complete(void **state)
{
    static const uint32_t head_dims[] = { 32, 64, 96, 128, 256 };
    const char *at = tr_kv_policy_names();

    (void) state;
    while (*at != '\0') {
        char name[32];
        size_t n = strcspn(at, ",");

        snprintf(name, sizeof(name), "%.*s", (int) n, at);
        at += n + (at[n] == ',' ? 2 : 0);
        for (size_t i = 0; i < 5; i++) {
            tr_kv_policy_t *p;
            tr_page_plan_t plan;
            tr_error_t err = { 0 };
            tr_page_spec_t spec = { .head_dim = head_dims[i] };

            assert_int_equal(tr_kv_policy_create(name, 2, 2, head_dims[i], &p,
                                                 &err),
                             TR_OK);
            assert_string_equal(p->name, name);
            assert_string_equal(p->row->name, name);
            /* pages alone, or levels with a charge for them */
            assert_int_equal(p->kind == TR_KV_RULE_FULL
                                 || p->kind == TR_KV_RULE_PAGES,
                             p->n_levels == 0);
            assert_true(p->n_levels == 0 || p->row->charge != NULL);
            spec.levels = p->level;
            spec.n_levels = p->n_levels;
            assert_int_equal(tr_page_plan(&spec, &plan), 0);
            spec.levels = &p->window_level;
            spec.n_levels = p->window > 0;
            assert_int_equal(tr_page_plan(&spec, &plan), 0);
            tr_kv_policy_free(p);
        }
    }
}

static const struct {
    const char *spec, *says;
} mistakes[] = {
    { "", "unknown KV policy \"\": known are full, uniform" },
    { "half", "unknown KV policy \"half\": known are full, uniform" },
    { "Full", "unknown KV policy \"Full\"" },
    { "full:", "expected settings after the colon, as in full:KEY=VALUE" },
    { "full:window=1", "full has no setting \"window\": it has none" },
    { "uniform:alpha_low=1",
      "uniform has no setting \"alpha_low\": known are levels window" },
    { "diffkv:", "expected settings after the colon" },
    { "diffkv:beta=1", "diffkv has no setting \"beta\": known are levels" },
    { "diffkv:=1", "no setting \"\"" },
    { "diffkv:window=1,", "no setting \"\"" },
    { "diffkv:window=1,,observe=1", "no setting \"\"" },
    { "diffkv:window", "window=: expected tokens, 0 to 65536" },
    { "diffkv:window=", "window=: expected tokens" },
    { "diffkv:window=-1", "window=-1: expected tokens" },
    { "diffkv:window=65537", "window=65537: expected tokens" },
    { "diffkv:window=99999999999999999999", "expected tokens" },
    { "diffkv:window=1.5", "window=1.5: expected tokens" },
    { "diffkv:window= 4", "window= 4: expected tokens" },
    { "diffkv:window=4,window=4", "window is given twice" },
    { "diffkv:alpha_high=x", "alpha_high=x: expected a number from 0 to 1000" },
    { "diffkv:alpha_high=nan", "alpha_high=nan: expected a number" },
    { "diffkv:alpha_high=inf", "alpha_high=inf: expected a number" },
    { "diffkv:alpha_high=0x1", "alpha_high=0x1: expected a number" },
    { "diffkv:alpha_high=1e", "alpha_high=1e: expected a number" },
    { "diffkv:alpha_high=-1", "alpha_high=-1: expected a number" },
    { "diffkv:alpha_high=1001", "expected a number from 0 to 1000" },
    { "diffkv:alpha_low=10",
      "alpha_low=10 is above alpha_high=9: expected at most that" },
    { "diffkv:levels=16/16+8/4+4/2,alpha_high=5",
      "alpha_high=5 is above alpha_top=4" },
    { "diffkv:window=0,alpha_low=0.02",
      "alpha_low=0.02 without a window would forget each new"
      " token before it is read: expected a window" },
    { "static:window=0", "window=0 would forget new tokens before they" },
    { "diffkv:base=n", "base=n: expected N (tokens so far) or i" },
    { "diffkv:observe=33", "observe=33: expected queries, 0 (all) to 32" },
    { "diffkv:groups=3", "3 metadata groups: expected 1, 2 or 4" },
    { "diffkv:groups=5", "groups=5: expected 1, 2 or 4" },
    { "diffkv:levels=8/4+4/2+", "levels=8/4+4/2+: expected 1 to 3 levels" },
    { "diffkv:levels=", "levels=: expected 1 to 3 levels" },
    { "diffkv:levels=8", "levels=8: expected 1 to 3 levels" },
    { "diffkv:levels=8/3", "levels=8/3: expected" },
    { "diffkv:levels=8/4+4/2+2/2+2/2", "expected 1 to 3 levels" },
    { "diffkv:levels=4/2+8/4",
      "level 8/4 after 4/2: expected fewer bits, best level first" },
    { "diffkv:levels=8/4+8/4", "level 8/4 after 8/4: expected fewer bits" },
    { "diffkv:levels=8/4+4/8", "level 4/8 after 8/4: expected fewer bits" },
    { "uniform:levels=8/4+4/2",
      "levels=8/4+4/2: expected 1 to 1 levels of key bits/value bits" },
    { "diffkv:window_level=8/4+4/2", "window_level=8/4+4/2: expected key" },
    { "diffkv:window_level=4/2",
      "window_level=4/2 is below the level 8/4, to which tokens leave" },
    { "diffkv:window_level=8/2", "window_level=8/2 is below the level 8/4" },
    { "uniform:window=64,window_level=4/16", "window_level=4/16 is below" },
    { "diffkv:alpha_file=", "alpha_file=: expected a path" },
    { "diffkv:alpha_file=/no/such", "alpha_file=/no/such: cannot open: No such"
                                    " file or directory" },
    { "static:high=1.1", "high=1.1: expected a fraction, 0 to 1" },
    { "int4:group=48", "group=48: expected the head size 128, a half or a" },
    { "int4:group=16", "group=16: expected the head size 128, a half or a" },
    { "kivi:bits=8", "bits=8: expected 2 or 4" },
    { "kivi:window=100", "window=100: expected a multiple of 32 above 0" },
    { "kivi:window=0", "window=0: expected a multiple of 32 above 0" },
    { "snapkv:budget=1.5", "budget=1.5: expected tokens (64), or a fraction" },
    { "snapkv:pool=4", "pool=4: expected an odd number" },
    { "h2o:budget=1", "budget=1: expected 2 tokens or more" },
    { "h2o:budget=0.0", "budget=0: expected 2 tokens or more" },
    { "streamingllm:sinks=-4", "sinks=-4: expected tokens" },
    { "uniform:sinks=4", "sinks=4 stand in front of the window: expected a "
                         "window of 1 or more, or 0" },
};

static void
test_mistakes(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        tr_kv_policy_t *p = (void *) 1;
        tr_error_t err = { 0 };

        if (tr_kv_policy_create(mistakes[i].spec, 4, 2, HEAD_DIM, &p, &err)
            == TR_OK) {
            fail_msg("%s was accepted", mistakes[i].spec);
        }
        assert_null(p);
        assert_string_equal(err.param, "kv_policy");
        if (strstr(err.text, mistakes[i].says) == NULL) {
            fail_msg("%s: \"%s\" does not say \"%s\"", mistakes[i].spec,
                     err.text, mistakes[i].says);
        }
    }
}

/* Head sizes that pages cannot hold at that level. */
static void
test_head_sizes(void **state)
{
    tr_kv_policy_t *p;
    tr_error_t err = { 0 };

    (void) state;
    assert_int_equal(tr_kv_policy_create("diffkv", 1, 1, 80, &p, &err),
                     TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "head size 80: levels below 16 bits need"
                                     " a multiple of 32"));
    assert_int_equal(tr_kv_policy_create("int4:group=24", 1, 1, 96, &p, &err),
                     TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "4 metadata groups do not divide a head"
                                     " of 96"));
    assert_int_equal(tr_kv_policy_create("uniform:levels=16/16", 1, 1, 80, &p,
                                         &err),
                     TR_OK);
    tr_kv_policy_free(p);
}

/* A spec of any bytes is refused or understood, and never harms. */
static void
test_hostile(void **state)
{
    const char *given = getenv("TR_TEST_SEED"); /* repeats a run */
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0)
                                  : (uint64_t) time(NULL),
             x = seed * 2 + 1;
    char long_spec[2000];
    tr_kv_policy_t *p;
    tr_error_t err;

    (void) state;
    print_message("TR_TEST_SEED=%llu\n", (unsigned long long) seed);
    for (int round = 0; round < 20000; round++) {
        char spec[300];
        size_t n = strlen(specs[round % 21].canonical);

        memcpy(spec, specs[round % 21].canonical, n + 1);
        for (int i = 0; i < 3; i++) {
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            spec[(x >> 40) % n] = "0123456789=:,./+-eNi\xff%"[(x >> 33) % 22];
        }
        if (tr_kv_policy_create(spec, 4, 2, HEAD_DIM, &p, &err) == TR_OK) {
            tr_kv_policy_free(p);
        }
    }
    memset(long_spec, '9', sizeof(long_spec) - 1);
    long_spec[sizeof(long_spec) - 1] = '\0';
    assert_int_equal(tr_kv_policy_create(long_spec, 4, 2, 128, &p, &err),
                     TR_ERR_INVALID);
    memcpy(long_spec, "diffkv:window=", 14);
    assert_int_equal(tr_kv_policy_create(long_spec, 4, 2, 128, &p, &err),
                     TR_ERR_INVALID);
    memcpy(long_spec, "diffkv:", 7);
    assert_int_equal(tr_kv_policy_create(long_spec, 4, 2, 128, &p, &err),
                     TR_ERR_INVALID);
}

/* ---- levels ------------------------------------------------------------- */

static void
check_level(const tr_kv_level_t *l, uint32_t k, uint32_t v, uint32_t kg,
            uint32_t vg, uint32_t channel, uint32_t scored)
{
    uint8_t narrow = channel == 0 && (k == 2 || v == 2) && HEAD_DIM / vg >= 64;
    tr_kv_level_t want = {
        (uint8_t) k,       (uint8_t) v,      (uint8_t) kg, (uint8_t) vg,
        (uint8_t) channel, (uint8_t) scored, narrow,       0
    };

    assert_true(tr_kv_level_equal(l, &want));
}

/* Metadata as asked; scores only where a policy uses them. */
static void
test_levels(void **state)
{
    tr_kv_policy_t *p = make(
        "diffkv:levels=16/16+8/4+4/2,groups=2,alpha_low=0.02");

    (void) state;
    check_level(&p->level[0], 16, 16, 1, 1, 0, 1);
    check_level(&p->level[1], 8, 4, 2, 2, 0, 1);
    check_level(&p->level[2], 4, 2, 2, 2, 0, 1);
    check_level(&p->window_level, 16, 16, 1, 1, 0, 1);
    assert_true(p->scored && !p->by_sum && p->leaves == 1);
    tr_kv_policy_free(p);

    /* few numbers share a scale: codes from end to end */
    p = make("uniform:levels=4/2,groups=4");
    check_level(&p->level[0], 4, 2, 4, 4, 0, 0);
    assert_int_equal(p->level[0].narrow, 0);
    tr_kv_policy_free(p);

    p = make("int4:group=32");
    check_level(&p->level[0], 4, 4, 4, 4, 0, 0);
    assert_true(!p->scored && p->window == 0);
    tr_kv_policy_free(p);

    p = make("kivi");
    check_level(&p->level[0], 2, 2, 1, 4, 1, 0);
    check_level(&p->window_level, 16, 16, 1, 1, 0, 0);
    assert_int_equal(p->leaves, TR_KV_CHANNEL_TOKENS);
    tr_kv_policy_free(p);

    p = make("h2o");
    check_level(&p->level[0], 16, 16, 1, 1, 0, 1);
    assert_true(p->scored && p->by_sum);
    tr_kv_policy_free(p);

    p = make("snapkv");
    check_level(&p->level[0], 16, 16, 1, 1, 0, 0);
    check_level(&p->window_level, 16, 16, 1, 1, 0, 0);
    assert_true(p->scored && p->observe == 32 && p->window == 32);
    tr_kv_policy_free(p);

    p = make("streamingllm");
    check_level(&p->level[0], 16, 16, 1, 1, 0, 0);
    assert_false(p->scored);
    tr_kv_policy_free(p);
}

/* Bytes a token at head sizes 64 and 128, what stays free in a page included:
 * 6% of those with 8/4 bits, since the page is chosen for 4/2, too.  Published
 * for 128: 212 and 113. */
static void
test_bytes(void **state)
{
    static const double most[2][2] = { { 110, 63 }, { 220, 110 } };
    tr_kv_policy_t *p = make("diffkv:alpha_low=0.02");

    (void) state;
    for (uint32_t i = 0; i < 2; i++) {
        tr_page_plan_t plan;
        tr_page_spec_t spec = { .head_dim = 64 << i,
                                .levels = p->level,
                                .n_levels = 2,
                                .uncompressed_scored = true,
                                .short_positions = true };

        assert_int_equal(tr_page_plan(&spec, &plan), 0);
        assert_true(tr_kv_layout_token_bytes(&plan, 1) <= most[i][0]);
        assert_true(tr_kv_layout_token_bytes(&plan, 2) <= most[i][1]);
    }
    tr_kv_policy_free(p);
}

static tr_kv_stats_t
stats(uint32_t position, uint32_t length, float significance)
{
    return (tr_kv_stats_t){ .position = position,
                            .length = length,
                            .score = significance
                                     * (float) (length - 1 - position) };
}

/* ---- thresholds by head, and by request --------------------------------- */

static tr_status_t
with_file(const char *settings, const char *text, tr_kv_policy_t **p,
          tr_error_t *err)
{
    char path[] = "/tmp/tr_alpha_XXXXXX", spec[200];
    int fd = mkstemp(path);
    tr_status_t rc;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t) strlen(text));
    close(fd);
    snprintf(spec, sizeof(spec), "diffkv:%salpha_file=%s", settings, path);
    rc = tr_kv_policy_create(spec, 4, 2, HEAD_DIM, p, err);
    if (rc == TR_OK) {
        assert_non_null(strstr((*p)->spec, path));
    }
    unlink(path);
    return rc;
}

static void
test_alpha_file(void **state)
{
    static const struct {
        const char *settings, *text, *says;
    } bad[] = {
        { "", "0 0 1 0.5\n1 2 1 0.5\n",
          ":2: \"1 2 1 0.5\": no such head; a line is layer (below 4), KV head "
          "(below 2)" },
        { "", "4 0 1 0.5\n", "no such head" },
        { "", "0.5 0 1 0.5\n", "no such head" },
        { "", "-1 0 1 0.5\n", "no such head" },
        { "", "nan 0 1 0.5\n", ":1: \"nan 0 1 0.5\": not four numbers" },
        { "", "0 0 1\n", "\"0 0 1\": not four numbers" },
        { "", "0 0 1 0.5 3\n", "not four numbers" },
        { "", "# x\n\n0 0 one 0.5\n", ":3: \"0 0 one 0.5\": not four" },
        { "", "0 0 0.5 1\n", "alpha_low=1 is above alpha_high=0.5" },
        { "", "0 0 1001 1\n", "alpha_high=1001: expected a number from 0" },
        { "", "0 0 1 -1\n", "alpha_low=-1: expected a number from 0" },
        { "levels=16/16+8/4+4/2,", "0 0 5 1\n", "=5 is above alpha_top=4" },
        { "alpha_low=0,window=0,", "0 0 1 0.5\n", "without a window" },
        { "", "0 0 1 0\n0 0 1 0\n", ":2: \"0 0 1 0\": this head was given" },
    };
    tr_kv_policy_t *p;
    tr_error_t err;
    tr_kv_stats_t m = stats(10, 128, 0x1p-7f);

    (void) state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(with_file(bad[i].settings, bad[i].text, &p, &err),
                         TR_ERR_INVALID);
        if (strstr(err.text, bad[i].says) == NULL) {
            fail_msg("%s: %s", bad[i].text, err.text);
        }
    }
    assert_int_equal(with_file("alpha_high=1,alpha_low=0.5,",
                               "# layer kv_head high low\n"
                               "3 1 2 1.5 # strict\r\n  2 0 4 0.25",
                               &p, &err),
                     TR_OK);
    assert_int_equal(tr_kv_rule_leave(&p->rule, &m, NULL),
                     0); /* head 0 0: of the policy */
    m.layer = 3;
    m.kv_head = 1;
    assert_int_equal(tr_kv_rule_leave(&p->rule, &m, NULL), TR_KV_NOWHERE);
    m.layer = 2;
    assert_int_equal(tr_kv_rule_leave(&p->rule, &m, NULL), 0);
    m.kv_head = 0;
    assert_int_equal(tr_kv_rule_leave(&p->rule, &m, NULL), 1);
    tr_kv_policy_free(p);
}

static void
test_override(void **state)
{
    tr_kv_policy_t *p = make("diffkv:alpha_low=0.02"), copy = *p;
    tr_error_t err = { 0 };

    (void) state;
    assert_int_equal(tr_kv_policy_override(&copy, NAN, NAN, &err), TR_OK);
    assert_memory_equal(&copy, p, sizeof(copy));
    assert_int_equal(tr_kv_policy_override(&copy, 3, 0.04, &err), TR_OK);
    assert_true(copy.alpha_high == 3 && copy.alpha_low == 0.04);
    assert_non_null(strstr(copy.spec, "alpha_high=3,alpha_low=0.04"));
    assert_int_equal(tr_kv_policy_override(&copy, NAN, 4, &err),
                     TR_ERR_INVALID);
    assert_string_equal(err.param, "kv_alpha_low");
    assert_string_equal(err.text, "kv_alpha_low=4 is above alpha_high=3:"
                                  " expected at most that");
    assert_int_equal(tr_kv_policy_override(&copy, -1, NAN, &err),
                     TR_ERR_INVALID);
    assert_string_equal(err.param, "kv_alpha_high");
    assert_string_equal(err.text, "kv_alpha_high=-1: expected a number from 0"
                                  " to 1000");
    assert_int_equal(tr_kv_policy_override(&copy, INFINITY, NAN, &err),
                     TR_ERR_INVALID);
    assert_true(copy.alpha_high == 3 && copy.alpha_low == 0.04);
    tr_kv_policy_free(p);

    p = make("static");
    copy = *p;
    assert_int_equal(tr_kv_policy_override(&copy, NAN, 1, &err),
                     TR_ERR_INVALID);
    assert_string_equal(err.text, "kv_alpha_low=1: KV policy static has no"
                                  " thresholds");
    tr_kv_policy_free(p);

    p = make("diffkv:levels=8/4");
    copy = *p;
    assert_int_equal(tr_kv_policy_override(&copy, 1, NAN, &err),
                     TR_ERR_INVALID);
    assert_string_equal(err.param, "kv_alpha_high");
    assert_int_equal(tr_kv_policy_override(&copy, NAN, 2, &err), TR_OK);
    tr_kv_policy_free(p);
}

/* Who keeps every token can be cut where each one's place is known: by order, or
 * by positions, which diffkv's last level has when it is told to. */
static void
who_can_be_cut(void **state)
{
    static const struct {
        const char *spec;
        bool cuts, positioned;
        uint8_t settled;
    } cases[] = {
        { "full", false, false, 0 },
        { "uniform:levels=8/4", true, true, 0 },
        { "uniform:levels=4/2,window=32,sinks=4", true, true, 0 },
        { "int4", true, true, 0 },
        { "diffkv:alpha_low=0", false, true, 1 },
        { "diffkv:levels=8/8+8/4+4/2,alpha_low=0", false, true, 1 },
        { "diffkv:levels=8/4,alpha_low=0", true, true, 1 },
        { "diffkv:alpha_low=0.02", false, false, 0 },
        { "static", false, false, 0 },
        { "kivi", false, false, 0 },
        { "snapkv", false, false, 0 },
        { "h2o", false, false, 0 },
        { "streamingllm", false, false, 0 },
        { "quest", false, false, 0 },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_kv_policy_t *p;
        tr_error_t err;

        assert_int_equal(tr_kv_policy_create(cases[i].spec, 2, 2, 64, &p, &err),
                         TR_OK);
        assert_int_equal(tr_kv_policy_cuts(p), cases[i].cuts);
        assert_int_equal(tr_kv_policy_settled(p), cases[i].settled);
        tr_kv_policy_position(p);
        assert_int_equal(tr_kv_policy_cuts(p), cases[i].positioned);
        for (uint32_t l = 0; l < p->n_levels; l++) { /* nobody reads these */
            assert_true(!p->level[l].placed || !p->level[l].scored);
            assert_int_equal(p->level[l].placed, cases[i].positioned
                                                     && !cases[i].cuts
                                                     && l + 1 == p->n_levels);
        }
        tr_kv_policy_free(p);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specs),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_complete),   cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_head_sizes), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_levels),     cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_alpha_file), cmocka_unit_test(test_override),
        cmocka_unit_test(who_can_be_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
