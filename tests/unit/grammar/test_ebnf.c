/*
 * Grammars as clients write them: what they accept, and what is said of those
 * that are none.
 */
#include "../fixtures/grammar_fixture.h"

typedef struct {
    const char *grammar, *good[6], *bad[6];
} case_t;

static const case_t cases[] = {
    { "root ::= \"a\" \"b\"?", { "a", "ab" }, { "", "b", "abb" } },
    { "root ::= x+ | y{2,3}\nx ::= [0-9] # a digit\ny ::= [^0-9a]",
      { "0", "0123", "bc", "\xc3\xa9zz" },
      { "", "b", "bbbb", "0b", "aa" } },
    { "root ::= \"(\" root \")\" | \"\\u00e9\\x41\\n\"",
      { "\xc3\xa9"
        "A\n",
        "((\xc3\xa9"
        "A\n))" },
      { "()", "(\xc3\xa9"
              "A\n" } },
    { "root ::= (\n  \"a\" |\n  \"b\"\n)* \"c\"\n\n\n",
      { "c", "abac" },
      { "", "ab" } },
    { "root ::= list\nlist ::= item (\",\" ws item)*\nitem ::= [a-z]{1,}\n"
      "ws ::= \" \"?",
      { "a", "abc,d, e" },
      { "a,", ",a", "a,  b" } },
    { "root ::= item{3}\nitem ::= \"x\" | \"\"",
      { "", "x", "xxx" },
      { "xxxx", "y" } },
    { "expr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"\n"
      "root ::= expr",
      { "1", "1+2", "(1+(2+3))+4" },
      { "1+", "(1" } },
    { "root ::= . .", { "ab", "\xf0\x9f\x98\x80\n" }, { "a", "abc" } },
    { "root ::= \"a\"{100000} \"b\"", { NULL }, { "ab" } },
};

static void
test_texts(void **state)
{
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_grammar_t *g = compile(b, TR_GRAMMAR_EBNF, cases[i].grammar);

        for (int k = 0; k < 6 && cases[i].good[k] != NULL; k++) {
            if (!accepts(b, g, cases[i].good[k])) {
                fail_msg("%s refuses %s", cases[i].grammar, cases[i].good[k]);
            }
        }
        for (int k = 0; k < 6 && cases[i].bad[k] != NULL; k++) {
            if (accepts(b, g, cases[i].bad[k])) {
                fail_msg("%s accepts %s", cases[i].grammar, cases[i].bad[k]);
            }
        }
        check_walk(b, g, (unsigned) i, 6);
        tr_grammar_unref(g);
    }
}

static const char *const refused[][2] = {
    { "", "'root' is not there" },
    { "root ::= x", "'x' is not there" },
    { "root = \"a\"", "expected a rule" },
    { "root ::= \"a", "no closing quote, at line 1, column 11" },
    { "root ::= \"a\"\nroot ::= \"b\"", "twice, at line 2, column 1" },
    { "root ::= root \"a\" | \"b\"", "'root' calls itself before" },
    { "root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= a \"y\" | \"z\"",
      "calls itself before" },
    { "root ::= \"a\" root", "no text could match" },
    { "root ::= [z-a]", "wrong way round" },
    { "root ::= (\"a\"", "( without )" },
    { "root ::= \"a\")", ") without (" },
    { "root ::= \"a\"{3,2}", "wrong way round" },
    { "root ::= \"a\" (=\"b\")", "lookahead" },
    { "root ::= \"\\q\"", "escape" },
    { "root ::= [", "[ without ]" },
};

static void
test_refused(void **state)
{
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        tr_grammar_spec_t spec = spec_of(TR_GRAMMAR_EBNF, refused[i][0]);
        tr_error_t err = { 0 };
        tr_grammar_t *g;

        assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err),
                         TR_ERR_INVALID);
        assert_null(g);
        if (strstr(err.text, refused[i][1]) == NULL) {
            fail_msg("%s: %s", refused[i][0], err.text);
        }
        assert_string_equal(err.param, "field");
    }
}

static const char *const bad_regexes[][2] = {
    { "(", "( without )" },         { "a)", ") without (" },
    { "[a", "[ without ]" },        { "*", "nothing to repeat" },
    { "a{3,2}", "wrong way" },      { "\\bx", "word boundary" },
    { "(?=a)", "lookaround" },      { "(a)\\1", "reference to a group" },
    { "a^b", "an anchor" },         { "[b-a]", "wrong way" },
    { "a**", "nothing to repeat" }, { "a{2}{3}", "nothing to repeat" },
    { "\\", "backslash" },          { "[^\\s\\S]", "no text could match" },
};

static void
test_refused_regexes(void **state)
{
    grammar_fixture_t *b = *state;

    for (size_t i = 0; i < sizeof(bad_regexes) / sizeof(bad_regexes[0]); i++) {
        tr_grammar_spec_t spec = spec_of(TR_GRAMMAR_REGEX, bad_regexes[i][0]);
        tr_error_t err = { 0 };
        tr_grammar_t *g;

        assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err),
                         TR_ERR_INVALID);
        if (strstr(err.text, bad_regexes[i][1]) == NULL) {
            fail_msg("%s: %s", bad_regexes[i][0], err.text);
        }
    }
}

/* A text that asks for much is refused, and soon. */
/* An expression of `n` times the same is refused. */
static void
costly(grammar_fixture_t *b, const char *begin, const char *part, int n,
       const char *words)
{
    char *text = malloc(300000), *at = text;
    tr_grammar_spec_t spec;
    tr_error_t err = { 0 };
    tr_grammar_t *g;

    at += sprintf(at, "%sa", begin);
    for (int i = 0; i < n; i++) {
        at = stpcpy(at, part);
    }
    strcpy(at, begin[0] == '[' ? "]" : "");
    spec = spec_of(TR_GRAMMAR_REGEX, text);
    assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err),
                     TR_ERR_INVALID);
    if (strstr(err.text, words) == NULL) {
        fail_msg("%s: %s", part, err.text);
    }
    free(text);
}

static void
test_hostile(void **state)
{
    grammar_fixture_t *b = *state;
    char *text = malloc(300000), *at = text;
    tr_grammar_spec_t spec;
    tr_error_t err = { 0 };
    tr_grammar_t *g;

    memset(text, 'x', 299999);
    text[299999] = '\0';
    spec = spec_of(TR_GRAMMAR_REGEX, text);
    assert_int_equal(tr_grammar_compile(b->vocabulary, &spec, &g, &err),
                     TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "299999 bytes"));
    costly(b, "", "*", 100000, "nothing to repeat");
    costly(b, "[", "\\p{L}", 40000, "too complex");
    costly(b, "(?i)", "[\\0-\\uffff]", 15000, "too complex");
    at += sprintf(at, "root ::= r0\n");
    for (int i = 0; i < 2000; i++) { /* each takes twice the one before */
        at += sprintf(at, "r%d ::= r%d r%d | \"\"\n", i, i + 1, i + 1);
    }
    sprintf(at, "r2000 ::= \"a\" | \"\"");
    spec = spec_of(TR_GRAMMAR_EBNF, text);
    g = NULL;
    if (tr_grammar_compile(b->vocabulary, &spec, &g, &err) == TR_OK) {
        tr_matcher_t m;

        assert_int_equal(tr_matcher_init(&m, g,
                                         tr_frame_pool_init(b->memory, 1)),
                         TR_OK);
        /* too deep: nothing but the end, or an error, in bounded time */
        (void) tr_matcher_mask(&m, b->scratch, NULL, 0, b->mask);
        tr_matcher_drop(&m);
        tr_grammar_unref(g);
    }
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_regexes),
        cmocka_unit_test(test_hostile),
    };

    return cmocka_run_group_tests(tests, fixture_open, fixture_close);
}
