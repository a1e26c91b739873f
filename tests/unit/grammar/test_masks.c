/*
 * Matchers and masks: each bit of a mask is what stepping through the token's
 * bytes says, at every place of random answers; forks; limits.
 */
#include "../fixtures/grammar_fixture.h"

static const char *const regexes[] = {
    "a*",
    "(abc|abd)+x?",
    "[a-z]{2,5}-\\d{3}",
    "[^\"]{0,40}\"?",
    "(ab|a){3,200}",
    "([0-9]{1,3}\\.){3}[0-9]{1,3}",
    "\xc3\xa9+|[\\u4e00-\\u9fff]{2}",
    ".{10,500}",
    "(a{70,90}b){2,300}",
    "[\\s\\S]*",
};

static void
test_regexes(void **state)
{
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(regexes) / sizeof(regexes[0]); i++) {
        tr_grammar_t *g = compile(b, TR_GRAMMAR_REGEX, regexes[i]);

        check_walk(b, g, (unsigned) i, 12);
        tr_grammar_unref(g);
    }
}

/* Strings whose places are unlike each other, and whole parts of the vocabulary
 * that go on at once. */
static void
test_strings(void **state)
{
    static const char *const strings[] = {
        "{\"pattern\":\"^.*$\"}",
        "{\"pattern\":\"^[^\\\\s]+$\"}",
        "{\"pattern\":\"^\\\\w*$\"}",
        "{\"pattern\":\"^[A-Za-z0-9 .,?&'()@\xc2\xa3]{2,32}$\"}",
        "{\"pattern\":\"^[a-z]{2,}$\",\"maxLength\":9}",
        "{\"pattern\":\"^([a-z.-]+)\\\\.([a-z]{2,6})([/\\\\w .-]*)*/?$\"}",
        "{\"format\":\"email\"}",
    };
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
        char schema[256];
        tr_grammar_t *g;

        snprintf(schema, sizeof(schema), "{\"type\":\"string\",%s",
                 strings[i] + 1);
        g = compile(b, TR_GRAMMAR_SCHEMA, schema);
        check_walk(b, g, (unsigned) i, 10);
        tr_grammar_unref(g);
    }
}

/* So many names that their places are too many to be looked at together, and
 * any other name beside them. */
static void
test_many_names(void **state)
{
    grammar_fixture_t *b = *state;
    char schema[8192];
    size_t len = (size_t) snprintf(schema, sizeof(schema),
                                   "{\"type\":\"object\",\"additionalProperties"
                                   "\":{\"type\":\"null\"},\"properties\":{");
    tr_grammar_t *g;

    for (unsigned i = 0; i < 60; i++) {
        len += (size_t) snprintf(schema + len, sizeof(schema) - len,
                                 "%s\"%c%cxyzname%u\":{\"type\":\"null\"}",
                                 i > 0 ? "," : "", 'a' + (int) (i % 26),
                                 'a' + (int) (i * 7 % 26), i);
    }
    snprintf(schema + len, sizeof(schema) - len, "}}");
    g = compile(b, TR_GRAMMAR_SCHEMA, schema);
    for (unsigned i = 0; i < 3; i++) {
        check_walk(b, g, i, 10);
    }
    tr_grammar_unref(g);
}

static void
test_json(void **state)
{
    grammar_fixture_t *b = *state;
    tr_grammar_t *g = compile(b, TR_GRAMMAR_JSON, NULL);

    for (unsigned i = 0; i < 6; i++) {
        check_walk(b, g, i, 16);
    }
    tr_grammar_unref(g);
}

/* Inside of texts that a walk meets rarely. */
static void
test_places(void **state)
{
    static const char *const texts[] = { "{",
                                         "{\"a",
                                         "{\"a\"",
                                         "{\"a\":",
                                         "{\"a\": 1",
                                         "{\"a\":-",
                                         "{\"a\":1.",
                                         "{\"a\":[",
                                         "{\"a\":[1,",
                                         "{\"a\":[[[\"x",
                                         "{\"a\":{\"b\":[{\"c\":\"",
                                         "{\"a\":\"\\",
                                         "{\"a\":\"\\u",
                                         "{\"a\":\"\\ud8",
                                         "{\"a\":\"\\ud83d",
                                         "{\"a\":\"\xe2",
                                         "{\"a\":\"\xed",
                                         "{\"a\":\"x\",\n   ",
                                         "{\"a\":tr",
                                         "{\"a\":1e+" };
    grammar_fixture_t *b = *state;
    tr_grammar_t *g = compile(b, TR_GRAMMAR_JSON, NULL);

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        tr_matcher_t m;
        tr_frame_pool_t *pool = tr_frame_pool_init(b->memory, POOL_MATCHERS);

        assert_int_equal(tr_matcher_init(&m, g, pool), TR_OK);
        assert_int_equal(tr_matcher_bytes(&m, b->scratch, texts[i],
                                          strlen(texts[i])),
                         TR_OK);
        assert_true(check_mask(b, &m) > 0);
        tr_matcher_drop(&m);
    }
    tr_grammar_unref(g);
}

static void
test_json_texts(void **state)
{
    static const char *const good[] = {
        "{}",
        "{ }",
        "{\"a\":1}",
        "{\"a\": [1, 2.5, -3e-7, true, null]}",
        "{\n  \"a\": {\n    \"b\": \"\\u00e9\\ud83d\\ude00\\n\"\n  }\n}",
        "{\"\":\"\x7f\xf0\x9f\x98\x80\"}",
    };
    static const char *const bad[] = { "",
                                       "[]",
                                       "1",
                                       "{",
                                       "{}{}",
                                       "{} ",
                                       " {}",
                                       "{\"a\":01}",
                                       "{\"a\":1.}",
                                       "{\"a\":\"\n\"}",
                                       "{\"a\":\"\\ud83d\"}",
                                       "{\"a\":\"\\ude00\"}",
                                       "{\"a\":\"\xff\"}",
                                       "{\"a\":\"\xed\xa0\x80\"}",
                                       "{a:1}",
                                       "{\"a\":1,}",
                                       "{\"a\":12345678901234567890}",
                                       "{\"a\":  1}",
                                       "{\"a\":\t1}",
                                       "{\"a\":1e1000}",
                                       "{\"a\":.5}",
                                       "{\"a\":+1}",
                                       "{\"a\":nul}" };
    grammar_fixture_t *b = *state;
    tr_grammar_t *g = compile(b, TR_GRAMMAR_JSON, NULL);

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (!accepts(b, g, good[i])) {
            fail_msg("refused: %s", good[i]);
        }
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (accepts(b, g, bad[i])) {
            fail_msg("accepted: %s", bad[i]);
        }
    }
    tr_grammar_unref(g);
}

static void
test_choices(void **state)
{
    grammar_fixture_t *b = *state;
    tr_grammar_t *g = compile(b, TR_GRAMMAR_CHOICE,
                              "[\"yes\", \"no\", \"yesterday\", \"no\"]");

    assert_true(accepts(b, g, "yes"));
    assert_true(accepts(b, g, "yesterday"));
    assert_true(accepts(b, g, "no"));
    assert_false(accepts(b, g, "yest"));
    assert_false(accepts(b, g, "nope"));
    check_walk(b, g, 1, 8);
    tr_grammar_unref(g);
}

/* A copy goes its own way, and the original stays where it was. */
static void
test_forks(void **state)
{
    grammar_fixture_t *b = *state;
    tr_grammar_t *g = compile(b, TR_GRAMMAR_JSON, NULL);
    tr_frame_pool_t *pool = tr_frame_pool_init(b->memory, POOL_MATCHERS);
    tr_matcher_t m, copy;

    assert_int_equal(tr_matcher_init(&m, g, pool), TR_OK);
    assert_int_equal(tr_matcher_bytes(&m, b->scratch, "{\"a\":[1", 7), TR_OK);
    for (int i = 0; i < 10000; i++) { /* nothing is lost on the way */
        tr_matcher_fork(&copy, &m);
        assert_int_equal(tr_matcher_bytes(&copy, b->scratch, ",{\"b\":2", 7),
                         TR_OK);
        assert_int_equal(tr_matcher_bytes(&copy, b->scratch, "]", 1),
                         TR_ERR_INVALID);
        assert_int_equal(tr_matcher_bytes(&copy, b->scratch, "}]}", 3), TR_OK);
        assert_true(copy.can_end && tr_matcher_over(&copy));
        tr_matcher_drop(&copy);
    }
    assert_int_equal(tr_matcher_bytes(&m, b->scratch, "]}", 2), TR_OK);
    assert_true(m.can_end);
    tr_matcher_drop(&m);
    tr_grammar_unref(g);
}

/* A stack has a depth; at it, only what does not go deeper is allowed. */
static void
test_depth(void **state)
{
    grammar_fixture_t *b = *state;
    tr_grammar_t *g = compile(b, TR_GRAMMAR_JSON, NULL);
    tr_frame_pool_t *pool = tr_frame_pool_init(b->memory, POOL_MATCHERS);
    tr_matcher_t m, other;
    int deep = 0;

    assert_int_equal(tr_matcher_init(&m, g, pool), TR_OK);
    assert_int_equal(tr_matcher_bytes(&m, b->scratch, "{\"a\":", 5), TR_OK);
    while (deep < 1000 && tr_matcher_bytes(&m, b->scratch, "[", 1) == TR_OK) {
        deep++;
    }
    assert_in_range(deep, 100, 256);
    assert_true(check_mask(b, &m) > 0);
    /* what holds there is not kept for places with room below */
    assert_int_equal(tr_matcher_init(&other, g, pool), TR_OK);
    assert_int_equal(tr_matcher_bytes(&other, b->scratch, "{\"a\":[", 6),
                     TR_OK);
    assert_true(check_mask(b, &other) > 10);
    tr_matcher_drop(&other);
    for (; deep > 0; deep--) {
        assert_int_equal(tr_matcher_bytes(&m, b->scratch, "]", 1), TR_OK);
    }
    assert_int_equal(tr_matcher_bytes(&m, b->scratch, "}", 1), TR_OK);
    assert_true(m.can_end);
    tr_matcher_drop(&m);
    tr_grammar_unref(g);
}

static void
test_end_tokens(void **state)
{
    grammar_fixture_t *b = *state;
    tr_grammar_t *g = compile(b, TR_GRAMMAR_REGEX, "ab?");
    tr_frame_pool_t *pool = tr_frame_pool_init(b->memory, POOL_MATCHERS);
    const int32_t end[] = { 2 };
    tr_matcher_t m;

    assert_int_equal(tr_matcher_init(&m, g, pool), TR_OK);
    assert_int_equal(tr_matcher_mask(&m, b->scratch, end, 1, b->mask), TR_OK);
    assert_false(mask_has(b->mask, 2));
    assert_int_equal(tr_matcher_bytes(&m, b->scratch, "a", 1), TR_OK);
    assert_int_equal(tr_matcher_mask(&m, b->scratch, end, 1, b->mask), TR_OK);
    assert_true(mask_has(b->mask, 2));
    assert_int_equal(tr_matcher_bytes(&m, b->scratch, "b", 1), TR_OK);
    assert_int_equal(tr_matcher_mask(&m, b->scratch, end, 1, b->mask), TR_OK);
    for (uint32_t id = 0; id < b->vocab; id++) {
        assert_int_equal(mask_has(b->mask, (int32_t) id), id == 2);
    }
    assert_int_equal(tr_matcher_mask(&m, b->scratch, end, 0, b->mask),
                     TR_ERR_UNSUPPORTED);
    tr_matcher_drop(&m);
    tr_grammar_unref(g);
}

/* ---- several strings at one place -------------------------------------- */

static const char *const unions[] = {
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":6},"
    "{\"type\":\"string\",\"minLength\":3,\"maxLength\":9}]}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":8},"
    "{\"enum\":[\"red\",\"a longer one than that\",7]},{\"type\":\"null\"}]}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":4},"
    "{\"type\":\"string\",\"pattern\":\"^[a-m</]{2,30}$\"}]}",
    "{\"type\":\"object\",\"properties\":{\"abc\":{\"type\":\"string\"}},"
    "\"additionalProperties\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":5}"
    ","
    "{\"type\":\"string\",\"maxLength\":7}]}}",
};

/* A value of a schema, as JSON or (barred) as what stands between marks. */
static tr_grammar_t *
value_of(grammar_fixture_t *b, const char *schema, bool barred)
{
    char text[640];

    if (!barred) {
        return compile(b, TR_GRAMMAR_SCHEMA, schema);
    }
    snprintf(text, sizeof(text),
             "[\"schema\",{\"schema\":%s,\"name\":\"a\",\"param\":\"tools\","
             "\"bar\":[\"</value>\"]}]",
             schema);
    return compile(b, TR_GRAMMAR_TREE, text);
}

static void
test_unions(void **state)
{
    static const char *const begun[] = { "\"", "\"a <", "\"</va",
                                         "\"<</value" };
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(unions) / sizeof(unions[0]); i++) {
        for (int barred = 0; barred < 2; barred++) {
            tr_grammar_t *g = value_of(b, unions[i], barred);

            check_walk(b, g, (unsigned) i, 8);
            for (size_t k = 0; k < sizeof(begun) / sizeof(begun[0]); k++) {
                tr_frame_pool_t *pool = tr_frame_pool_init(b->memory,
                                                           POOL_MATCHERS);
                tr_matcher_t m;

                assert_int_equal(tr_matcher_init(&m, g, pool), TR_OK);
                if (tr_matcher_bytes(&m, b->scratch, begun[k], strlen(begun[k]))
                    == TR_OK) {
                    check_mask(b, &m);
                }
                tr_matcher_drop(&m);
            }
            tr_grammar_unref(g);
        }
    }
}

#define LARGE 150000u

/* Words of 2 to 9 letters, one in five of other scripts, one in eleven a row of up
 * to 60 digits, and some that matter. */
static const char *
large_bytes(void *arg, int32_t id, uint32_t *len)
{
    static char text[64];
    uint32_t seed = (uint32_t) id * 2654435761u, n = 2 + seed % 8;
    bool digits = id % 11 == 0;

    (void) arg;
    *len = 0;
    if ((uint32_t) id < ODD_TOKENS) {
        *len = (uint32_t) strlen(odd_tokens[id]);
        return odd_tokens[id];
    }
    n = digits ? 2 + seed % 59 : n;
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        if (digits) {
            text[(*len)++] = (char) ('0' + (seed >> 16) % 10);
        } else if (id % 5 == 0) {
            text[(*len)++] = (char) 0xe4;
            text[(*len)++] = (char) (0xb8 + (seed >> 12) % 8);
            text[(*len)++] = (char) (0x80 + (seed >> 20) % 64);
        } else {
            text[(*len)++] = (char) ('a' + (seed >> 16) % 26);
        }
    }
    return text;
}

/* Each mask on the way through a text. */
static void
follow_large(grammar_fixture_t *large, tr_grammar_t *g, const char *text)
{
    tr_matcher_t m;

    assert_int_equal(tr_matcher_init(&m, g,
                                     tr_frame_pool_init(large->memory, 1)),
                     TR_OK);
    for (; *text != '\0'; text++) {
        assert_int_equal(tr_matcher_mask(&m, large->scratch, NULL, 0,
                                         large->mask),
                         TR_OK);
        assert_int_equal(tr_matcher_bytes(&m, large->scratch, text, 1), TR_OK);
    }
    tr_matcher_drop(&m);
    tr_grammar_unref(g);
}

/* With a large vocabulary no mask of a string meets its limit: neither where many
 * bounds begin at one place, of which each would walk through it, nor where each
 * of many states would look through those behind it. */
static void
test_large(void **state)
{
    static const char bounded[] = "{\"type\":\"string\",\"maxLength\":%u}";
    static const char text[] = "\"one <b> two </va three </value of it";
    static const char chain[] = "{\"type\":\"string\",\"minLength\":3,"
                                "\"maxLength\":64,\"pattern\":\"[A-z]+\"}";
    grammar_fixture_t large = *(grammar_fixture_t *) *state;
    char schema[512];
    uint32_t len = 0;

    large.vocabulary = tr_vocabulary_new(LARGE, large_bytes, NULL);
    assert_non_null(large.vocabulary);
    large.scratch = tr_grammar_scratch_new(large.vocabulary);
    large.mask = calloc(tr_vocabulary_words(large.vocabulary), 4);
    len += (uint32_t) sprintf(schema, "{\"anyOf\":[");
    for (uint32_t i = 0; i < 5; i++) {
        len += (uint32_t) sprintf(schema + len, bounded, 40 + 20 * i);
        len += (uint32_t) sprintf(schema + len, i < 4 ? "," : "]}");
    }
    for (int barred = 0; barred < 2; barred++) {
        follow_large(&large, value_of(&large, schema, barred), text);
    }
    follow_large(&large, value_of(&large, chain, false), "\"one two");
    tr_grammar_scratch_free(large.scratch);
    tr_vocabulary_free(large.vocabulary);
    free(large.mask);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_texts), cmocka_unit_test(test_choices),
        cmocka_unit_test(test_forks),      cmocka_unit_test(test_depth),
        cmocka_unit_test(test_unions),     cmocka_unit_test(test_large),
        cmocka_unit_test(test_end_tokens), cmocka_unit_test(test_places),
        cmocka_unit_test(test_strings),    cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_json),       cmocka_unit_test(test_regexes),
    };

    return cmocka_run_group_tests(tests, fixture_open, fixture_close);
}
