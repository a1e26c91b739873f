/*
 * Trees: literal texts, free texts with their marks, special tokens, schemas,
 * and what stands around another grammar; masks there are what stepping says.
 */
#include "../fixtures/grammar_fixture.h"

#include "engine/grammar/grammar_internal.h"

static int
open_bed(void **state)
{
    grammar_fixture_t *b;

    fixture_open(state);
    b = *state;
    for (uint32_t id = 0; id < tr_tokenizer_vocab_size(b->tokenizer); id++) {
        if (tr_tokenizer_is_special(b->tokenizer, (int32_t) id)) {
            tr_vocabulary_add_special(b->vocabulary, id);
        }
    }
    return 0;
}

static int32_t
special(const grammar_fixture_t *b, const char *text)
{
    int32_t id = tr_tokenizer_find(b->tokenizer, text);

    assert_true(id >= 0);
    return id;
}

static void
test_texts(void **state)
{
    static const struct {
        const char *tree, *good[4], *bad[6];
    } cases[] = {
        { "[\"seq\",\"a\",[\"or\",\"b\",\"cd\"],\"e\"]",
          { "abe", "acde" },
          { "ae", "abcde", "abee" } },
        { "[\"many\",[\"chars\",\"09\",1,2],\",\"]",
          { "1", "12,3", "1,2,34" },
          { "", "123", "1,", ",1" } },
        { "[\"seq\",\"<\",[\"json\"],\">\"]",
          { "<{}>", "<{\"a\": [1]}>" },
          { "<[]>", "<>", "<{}" } },
        /* the mark ends it where it first stands */
        { "[\"free\",{\"stop\":[[\"<x>\",\"!\"]]}]",
          { "<x>!", "a<<x>!", "<x<x>!" },
          { "", "<x>", "a<x>b<x>!", "a!" } },
        /* of two that end at one place the longer one counts */
        { "[\"free\",{\"stop\":[[\"\\n</p>\",\"\"]],\"bar\":[\"</"
          "p>\",\"<q>\"]}]",
          { "a\n</p>", "\n</p>", "a<b\n\n</p>" },
          { "a</p>", "a</p>\n</p>", "<q>\n</p>", "a" } },
        { "[\"free\",{\"end\":true,\"first\":\"{\",\"bar\":[\"no\"]}]",
          { "", "a{", " }" },
          { "{", " {", "\n{a", "a no" } },
        { "[\"seq\",[\"schema\",{\"schema\":{\"type\":\"object\","
          "\"properties\":"
          "{\"a\":{\"$ref\":\"#/$defs/n\"}},\"$defs\":{\"n\":{\"type\":"
          "\"integer\"}}},\"property\":\"a\",\"flags\":3,\"name\":\"f\","
          "\"param\":\"tools\"}],\";\"]",
          { "1;", "-20;" },
          { "{};", "1.5;", "\"a\";" } },
        /* no string of it has a text that is barred: not a free one, nor a
         * name, one of a list, one with a pattern or a length */
        { "[\"seq\",[\"schema\",{\"schema\":{\"type\":\"object\","
          "\"properties\":{\"<b>\":{\"enum\":[\"<b>\",1]},\"p\":{\"type\":"
          "\"string\",\"pattern\":\"^[<b>]*$\"},\"n\":{\"type\":\"string\","
          "\"maxLength\":4},\"f\":{\"type\":\"string\"}},"
          "\"additionalProperties\":{\"$ref\":\"#\"}},\"flags\":3,\"name\":"
          "\"f\",\"param\":\"tools\",\"bar\":[\"<b>\",\"<<\"]}],\";\"]",
          { "{\"\\u003cb>\":\"\\u003cb>\",\"p\":\"<bb\\u003cb>\"};",
            "{\"n\":\"<\\u003c<b\",\"<bx\":{\"f\":\"<\xc3\xa9<b \\u003cb>\"}};",
            "{\"<\":{}};", "{\"f\":\"<\",\"b>\":{\"n\":\"b><\"}};" },
          { "{\"<b>\":1};", "{\"f\":\"a<b>\"};", "{\"p\":\"<b>\"};",
            "{\"x\":{\"n\":\"<b>\"}};", "{\"x<b>\":{}};",
            "{\"n\":\"<\\u003cab<\"};" } },
        { "[\"many\",[\"schema\",{\"schema\":true,\"flags\":0,\"name\":\"f\","
          "\"param\":\"tools\",\"bar\":[\"<b>\"]}],\",\"]",
          { "\"<b\",[\"b>\",{\"<a\":\"\\u003cb>\"}]", "1,{},\"\"" },
          { "\"<b>\"", "{\"<b>\":1}", "1,[[\"<<b>>\"]]" } },
        /* one that is none is any object, and nothing of it is left */
        { "[\"or\",[\"schema\",{\"schema\":{\"type\":\"object\",\"properties\":"
          "{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"odd\"}}},"
          "\"flags\":0,\"name\":\"f\",\"param\":\"tools\"}],\"x\"]",
          { "x", "{}", "{\"a\":\"b\"}" },
          { "[]", "1" } },
    };
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_grammar_t *g = compile(b, TR_GRAMMAR_TREE, cases[i].tree);

        for (int k = 0; k < 4 && cases[i].good[k] != NULL; k++) {
            if (!accepts(b, g, cases[i].good[k])) {
                fail_msg("%s refuses %s", cases[i].tree, cases[i].good[k]);
            }
        }
        for (int k = 0; k < 6 && cases[i].bad[k] != NULL; k++) {
            if (accepts(b, g, cases[i].bad[k])) {
                fail_msg("%s takes %s", cases[i].tree, cases[i].bad[k]);
            }
        }
        for (unsigned seed = 0; seed < 3; seed++) {
            check_walk(b, g, seed, 8);
        }
        tr_grammar_unref(g);
    }
}

/* Is the token in the mask at m, whose end tokens are `end`? */
static bool
may_come(grammar_fixture_t *b, tr_matcher_t *m, int32_t token, int32_t end)
{
    assert_int_equal(tr_matcher_mask(m, b->scratch, &end, 1, b->mask), TR_OK);
    return mask_has(b->mask, token);
}

/* A mark that is a token; any other passes, but for those that end an answer
 * and those that the tree names elsewhere. */
static void
test_special_tokens(void **state)
{
    grammar_fixture_t *b = *state;
    int32_t mark = special(b, "<|start_header_id|>");
    int32_t other = special(b, "<|end_header_id|>");
    int32_t barred = special(b, "<|begin_of_text|>");
    int32_t end = special(b, "<|eot_id|>");
    tr_matcher_t m;
    tr_grammar_t *g;
    char tree[256];

    snprintf(tree, sizeof(tree),
             "[\"free\",{\"stop\":[[%d,\"x\"]],\"bar\":[%d]}]", mark, barred);
    g = compile(b, TR_GRAMMAR_TREE, tree);
    assert_int_equal(
        tr_matcher_init(&m, g, tr_frame_pool_init(b->memory, POOL_MATCHERS)),
        TR_OK);
    for (int i = 0; i < 2; i++) {
        assert_true(check_mask(b, &m) > 1000);
        assert_true(may_come(b, &m, mark, end));
        assert_true(may_come(b, &m, other, end));
        assert_false(may_come(b, &m, barred, end));
        assert_false(may_come(b, &m, end, end));
        assert_int_equal(tr_matcher_token(&m, b->scratch, barred),
                         TR_ERR_INVALID);
        assert_int_equal(tr_matcher_token(&m, b->scratch, other), TR_OK);
        assert_int_equal(tr_matcher_bytes(&m, b->scratch, "text", 4), TR_OK);
    }
    assert_int_equal(tr_matcher_token(&m, b->scratch, mark), TR_OK);
    assert_false(may_come(b, &m, other, end));
    assert_int_equal(tr_matcher_bytes(&m, b->scratch, "x", 1), TR_OK);
    assert_true(may_come(b, &m, end, end));
    tr_matcher_drop(&m);
    tr_grammar_unref(g);
}

/* Reasoning, and behind it what the spec says. */
static void
test_around(void **state)
{
    static const char around[] =
        "[\"seq\",[\"or\",\"\",[\"seq\",\"<think>\",[\"free\",{\"stop\":[["
        "\"</think>\",[\"or\",\"\",\"\\n\\n\"]]]}]]],[\"inner\"]]";
    static const struct {
        enum tr_grammar_kind kind;
        const char *text, *good, *bad;
    } inner[] = {
        { TR_GRAMMAR_SCHEMA,
          "{\"$defs\":{\"a\":{\"type\":\"array\",\"items\":{"
          "\"$ref\":\"#\"}}},\"$ref\":\"#/$defs/a\"}",
          "[[],[[]]]", "[1]" },
        { TR_GRAMMAR_REGEX, "[ab]+", "abba", "c" },
        { TR_GRAMMAR_CHOICE, "[\"yes\", \"no\"]", "no", "nay" },
        { TR_GRAMMAR_EBNF, "root ::= \"(\" root? \")\"", "(())", "(()" },
        { TR_GRAMMAR_JSON, NULL, "{\"a\":{}}", "[]" },
    };
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]); i++) {
        tr_grammar_spec_t spec = spec_of(inner[i].kind, inner[i].text);
        tr_error_t err = { 0 };
        tr_grammar_t *g;
        char text[128];

        spec.around = around;
        if (tr_grammar_compile(b->vocabulary, &spec, &g, &err) != TR_OK) {
            fail_msg("%s: %s", inner[i].text, err.text);
        }
        assert_true(accepts(b, g, inner[i].good));
        assert_false(accepts(b, g, inner[i].bad));
        snprintf(text, sizeof(text), "<think>hm {</think>\n\n%s",
                 inner[i].good);
        assert_true(accepts(b, g, text));
        snprintf(text, sizeof(text), "<think>hm</think>%s", inner[i].bad);
        assert_false(accepts(b, g, text));
        assert_false(accepts(b, g, "<think>hm</think>"));
        check_walk(b, g, (unsigned) i, 6);
        tr_grammar_unref(g);
    }
}

/* What stands within a tree is JSON, and keeps the tree's marks out. */
static void
test_inner_barred(void **state)
{
    grammar_fixture_t *b = *state;
    tr_grammar_spec_t spec = spec_of(TR_GRAMMAR_SCHEMA,
                                     "{\"type\":\"array\",\"items\":{\"type\":"
                                     "\"string\"}}");
    tr_error_t err = { 0 };
    tr_grammar_t *g;

    spec.around = "[\"or\",[\"inner\",[\"<call>\"]],[\"seq\",\"<call>\","
                  "[\"json\"]]]";
    if (tr_grammar_compile(b->vocabulary, &spec, &g, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_true(accepts(b, g, "<call>{\"a\":\"<call>\"}"));
    assert_true(accepts(b, g, "[\"<calls\",\"\\u003ccall>\"]"));
    assert_false(accepts(b, g, "[\"a <call>\"]"));
    check_walk(b, g, 1, 8);
    tr_grammar_unref(g);
}

/* A strict schema that is not held is named as its function's. */
static void
test_strict_schema(void **state)
{
    grammar_fixture_t *b = *state;
    tr_grammar_spec_t spec = spec_of(
        TR_GRAMMAR_TREE,
        "[\"schema\",{\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{"
        "\"type\":\"array\",\"uniqueItems\":true}}},\"flags\":3,\"name\":\"f\","
        "\"param\":\"tools[0].function.parameters\"}]");
    tr_error_t err = { 0 };
    tr_grammar_t *g;

    assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err),
                     TR_ERR_INVALID);
    assert_string_equal(err.param, "tools[0].function.parameters");
    assert_string_equal(err.text, "Invalid schema for function 'f': "
                                  "'uniqueItems' at /properties/a is not "
                                  "supported.");
}

/* Masks that use up what they may leave the states theirs. */
static void
test_memory_by_kind(void **state)
{
    tr_grammar_arena_t masks, states;
    grammar_fixture_t *b = *state;
    tr_grammar_t *g;

    assert_true(tr_grammar_arena_init(&masks,
                                      2 * (size_t) TR_GRAMMAR_MEMORY_KIND,
                                      TR_ARENA_MASKS));
    assert_false(tr_grammar_memory_tight());
    while (tr_grammar_alloc(&masks, 1u << 20) != NULL) {
    }
    assert_true(tr_grammar_memory_tight());
    assert_true(tr_grammar_arena_init(&states, 1u << 20, TR_ARENA_STATES));
    assert_non_null(tr_grammar_alloc(&states, 4096));
    /* they are made anew each time, and are the same */
    g = compile(b, TR_GRAMMAR_REGEX, "([a-z]{3}[0-9]?)+");
    check_walk(b, g, 1, 6);
    tr_grammar_unref(g);
    tr_grammar_arena_free(&states);
    tr_grammar_arena_free(&masks);
    assert_false(tr_grammar_memory_tight());
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_around),
        cmocka_unit_test(test_inner_barred),
        cmocka_unit_test(test_strict_schema),
        cmocka_unit_test(test_memory_by_kind),
    };

    return cmocka_run_group_tests_name("tree", tests, open_bed, fixture_close);
}
