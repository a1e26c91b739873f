/*
 * JSON schemas: what they accept, masks at every place of random answers, what
 * is refused and how that is said, bounds that cost nothing.
 */
#include "../fixtures/grammar_fixture.h"

typedef struct {
    const char *schema, *good[5], *bad[6];
} case_t;

static const case_t cases[] = {
    { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},"
      "\"b\":{\"type\":\"string\"}},\"required\":[\"b\"],"
      "\"additionalProperties\":false}",
      { "{\"b\":\"\"}", "{\"a\":1,\"b\":\"x\"}", "{\n  \"b\" : \"\" }" },
      { "{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":\"\",\"c\":1}",
        "{\"a\":1.5,\"b\":\"\"}" } },
    { "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"}}}",
      { "{}", "{\"ab\":null}", "{\"a\":1,\"abc\":2}", "{\"\":[{}]}" },
      { "{\"ab\":1}", "{\"a\":1,\"ab\":2}", "{\"\\u0061b\":1}" } },
    { "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
      { "\"ab\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\ud83d\\ude00\\n.\"" },
      { "\"a\"", "\"abcd\"", "\"\"", "1" } },
    { "{\"type\":\"string\",\"pattern\":\"^[a-f]{2,5000}$\","
      "\"maxLength\":4}",
      { "\"ab\"", "\"abcd\"" },
      { "\"a\"", "\"abcde\"", "\"ag\"" } },
    { "{\"type\":\"string\",\"pattern\":\"(ab)+\",\"minLength\":3,"
      "\"maxLength\":4}",
      { "\"abx\"", "\"\\\"ab\"", "\"abab\"" },
      { "\"ab\"", "\"xyz\"", "\"xabab\"" } },
    { "{\"type\":\"string\",\"pattern\":\"^(ab)*$\",\"minLength\":3,"
      "\"maxLength\":5}",
      { "\"abab\"" },
      { "\"ab\"", "\"aba\"", "\"ababab\"" } },
    { "{\"type\":\"integer\",\"minimum\":-7,\"exclusiveMaximum\":120,"
      "\"multipleOf\":3}",
      { "0", "-6", "117", "9" },
      { "-9", "120", "4", "3.0", "01" } },
    { "{\"type\":\"number\",\"exclusiveMinimum\":-1.25,\"maximum\":10.5}",
      { "-1.2", "0", "10.5", "10.50", "9.99" },
      { "-1.25", "-1.250", "10.51", "11", "1e1" } },
    { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,"
      "\"maxItems\":1000000}",
      { "[1,2]", "[1, 2,\n3,4]" },
      { "[]", "[1]", "[1,\"\"]" } },
    { "{\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"null\"}],"
      "\"items\":{\"type\":\"boolean\"},\"maxItems\":3,\"type\":\"array\"}",
      { "[]", "[\"\"]", "[\"\",null]", "[\"\",null,true]" },
      { "[1]", "[\"\",null,1]", "[\"\",null,true,true]" } },
    { "{\"enum\":[\"a\",\"ab\",1,1.5,null,{\"x\":[1]}],"
      "\"type\":[\"string\",\"object\"]}",
      { "\"a\"", "\"ab\"", "{\"x\":[1]}" },
      { "1", "null", "\"b\"" } },
    { "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{"
      "\"$ref\":\"#/$defs/n\"}},\"additionalProperties\":false}},"
      "\"$ref\":\"#/$defs/n\"}",
      { "{}", "{\"n\":{\"n\":{}}}" },
      { "{\"n\":1}", "{\"n\":{\"m\":{}}}" } },
    { "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":1},"
      "\"v\":{\"type\":\"string\"}},\"required\":[\"k\",\"v\"]},"
      "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":2},"
      "\"v\":{\"type\":\"null\"}},\"required\":[\"k\",\"v\"]},"
      "{\"type\":\"null\"}]}",
      { "{\"k\":1,\"v\":\"\"}", "{\"k\":2,\"v\":null}", "null" },
      { "{\"k\":1,\"v\":null}", "{\"k\":3,\"v\":null}" } },
    { "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"minimum\":3}},"
      "\"required\":[\"a\"]},{\"properties\":{\"a\":{\"type\":\"integer\","
      "\"maximum\":5}}}],\"maxProperties\":2}",
      { "{\"a\":3}", "{\"a\":5,\"b\":0}" },
      { "{\"a\":2}", "{\"a\":6}", "{\"b\":1}", "{\"a\":3,\"b\":0,\"c\":0}" } },
    { "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},"
      "\"maxProperties\":2,\"required\":[\"c\"]}",
      { "{\"c\":1}", "{\"a\":1,\"c\":1}", "{\"c\":1,\"d\":1}" },
      { "{\"a\":1,\"b\":1,\"c\":1}", "{\"a\":1,\"b\":1}",
        "{\"a\":1,\"c\":1,\"d\":1}" } },
    { "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^x\","
      "\"maxLength\":2},\"additionalProperties\":{\"type\":\"boolean\"}}",
      { "{}", "{\"x\":true,\"xy\":false}" },
      { "{\"a\":true}", "{\"xyz\":true}", "{\"x\":1}" } },
    { "{\"type\":\"string\",\"format\":\"date\"}",
      { "\"2024-02-29\"", "\"1999-12-31\"" },
      { "\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"" } },
    { "{\"type\":\"string\",\"format\":\"ipv6\"}",
      { "\"::1\"", "\"1:2:3:4:5:6:7:8\"", "\"::ffff:1.2.3.4\"" },
      { "\"1:2\"", "\":::\"", "\"1::2::3\"" } },
    { "true", { "{}", "[1]", "null" }, { "", "nul" } },
    { "{\"type\":\"object\",\"properties\":{}}",
      { "{}", "{\"a\":1}" },
      { "{,}", "{\"a\":1,}", "{\"a\":1 , }" } },
    /* an answer ends in the first column; what is nested may be indented */
    { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\"}}}",
      { "{\n  \"a\": {\n    \"b\": 1\n  }\n}", "{\"a\":{} }" },
      { "{\"a\":{}\n }", "{\"a\":{}  }" } },
    { "{\"type\":\"object\",\"maxProperties\":3}",
      { "{}", "{\"a\":1,\"b\":1,\"c\":1}" },
      { "{,}", "{\"a\":1,}", "{\"a\":1,\"b\":1,\"c\":1,\"d\":1}" } },
};

static void
test_schemas(void **state)
{
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_grammar_t *g = compile(b, TR_GRAMMAR_SCHEMA, cases[i].schema);

        for (int k = 0; k < 5 && cases[i].good[k] != NULL; k++) {
            if (!accepts(b, g, cases[i].good[k])) {
                fail_msg("%s refuses %s", cases[i].schema, cases[i].good[k]);
            }
        }
        for (int k = 0; k < 6 && cases[i].bad[k] != NULL; k++) {
            if (accepts(b, g, cases[i].bad[k])) {
                fail_msg("%s accepts %s", cases[i].schema, cases[i].bad[k]);
            }
        }
        check_walk(b, g, (unsigned) i, 10);
        tr_grammar_unref(g);
    }
}

/* Strict: an object is closed unless it says otherwise. */
static void
test_strict(void **state)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{"
                                 "\"type\":\"object\"}}}";
    grammar_fixture_t *b = *state;
    tr_grammar_spec_t spec = spec_of(TR_GRAMMAR_SCHEMA, schema);
    tr_grammar_t *g;
    tr_error_t err;

    spec.flags = TR_GRAMMAR_STRICT;
    assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err), TR_OK);
    assert_true(accepts(b, g, "{\"a\":{}}"));
    assert_false(accepts(b, g, "{\"b\":1}"));
    assert_false(accepts(b, g, "{\"a\":{\"b\":1}}"));
    tr_grammar_unref(g);
}

/* Listed: so is an object that lists its properties, unless a keyword speaks of
 * others. */
static void
test_listed(void **state)
{
    static const struct {
        const char *schema, *good, *bad;
    } listed[] = {
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}",
          "{\"a\":1}", "{\"a\":1,\"b\":2}" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\"}}}",
          "{\"a\":{\"b\":2}}", "{\"b\":{}}" },
        { "{\"type\":\"object\"}", "{\"b\":2}", "[]" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{}},"
          "\"additionalProperties\":{\"type\":\"integer\"}}",
          "{\"b\":2}", "{\"b\":true}" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},"
          "\"propertyNames\":{\"maxLength\":2}}",
          "{\"bc\":2}", "{\"bcd\":2}" },
    };
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++) {
        tr_grammar_spec_t spec = spec_of(TR_GRAMMAR_SCHEMA, listed[i].schema);
        tr_grammar_t *g;
        tr_error_t err;

        spec.flags = TR_GRAMMAR_LISTED;
        assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err),
                         TR_OK);
        assert_true(accepts(b, g, listed[i].good));
        assert_false(accepts(b, g, listed[i].bad));
        tr_grammar_unref(g);
    }
}

static const char *const refused[][2] = {
    { "{\"not\":{}}", "'not' at / is not supported" },
    { "{\"properties\":{\"a/b\":{\"type\":\"array\",\"uniqueItems\":true}}}",
      "'uniqueItems' at /properties/a~1b is not supported" },
    { "{\"type\":\"array\",\"items\":{\"oneOf\":[{\"type\":\"integer\"},"
      "{\"minimum\":2}]}}",
      "'oneOf' at /items is not supported" },
    { "{\"$ref\":\"http://example.com/x\"}", "'$ref' at / is not supported" },
    { "{\"$ref\":\"#/no\"}", "'$ref' points to nothing" },
    { "{\"type\":\"strin\"}", "'type' is none of" },
    { "{\"type\":\"string\",\"pattern\":\"(\"}", "no regular expression" },
    { "{\"type\":\"string\",\"pattern\":\"(?=a)\"}",
      "'pattern' at / is not supported" },
    { "{\"type\":\"object\",\"minProperties\":1}",
      "'minProperties' at / is not supported" },
    { "{\"enum\":[]}", "no text could match" },
    { "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}",
      "no text could match" },
    { "{\"$ref\":\"#\"}", "calls itself" },
    { "{", "Invalid schema for field 'test': " },
    { "[]", "neither an object nor a boolean" },
};

static void
test_refused(void **state)
{
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        tr_grammar_spec_t spec = spec_of(TR_GRAMMAR_SCHEMA, refused[i][0]);
        tr_error_t err = { 0 };
        tr_grammar_t *g;

        assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err),
                         TR_ERR_INVALID);
        if (strstr(err.text, refused[i][1]) == NULL) {
            fail_msg("%s: %s", refused[i][0], err.text);
        }
        assert_null(strchr(err.text, '\n'));
    }
}

/* Without REFUSE the same is dropped and counted. */
static void
test_dropped(void **state)
{
    grammar_fixture_t *b = *state;
    tr_grammar_spec_t spec = spec_of(TR_GRAMMAR_SCHEMA,
                                     "{\"type\":\"array\",\"uniqueItems\":true,"
                                     "\"items\":{\"not\":{}}}");
    tr_grammar_t *g;
    tr_error_t err;

    spec.flags = 0;
    assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err), TR_OK);
    assert_int_equal(tr_grammar_dropped(g), 2);
    assert_true(accepts(b, g, "[1,1]"));
    tr_grammar_unref(g);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas), cmocka_unit_test(test_strict),
        cmocka_unit_test(test_listed),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_dropped),
    };

    return cmocka_run_group_tests(tests, fixture_open, fixture_close);
}
