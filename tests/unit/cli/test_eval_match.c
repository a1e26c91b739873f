/*
 * How replies are judged: as models/pocket/world.py judges them, by numbers, and
 * by patterns, which may be hostile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/eval/eval_match.h"
#include "engine/config/log.h"

static bool
right(tr_eval_match_t rule, const char *answer, const char *reply)
{
    return tr_eval_right(rule, answer, reply, strlen(reply));
}

static void
test_texts(void **state)
{
    (void) state;
    assert_true(right(TR_MATCH_EXACT, "a b", " a b\n"));
    assert_false(right(TR_MATCH_EXACT, "a b", "a  b"));
    assert_false(right(TR_MATCH_EXACT, "a b", "a b."));
    assert_false(right(TR_MATCH_EXACT, "a b", "a"));
    assert_false(right(TR_MATCH_EXACT, "a", ""));
    assert_true(right(TR_MATCH_FINAL, "12", "x\nAnswer: 12"));
    assert_true(right(TR_MATCH_FINAL, "12", "Answer: 3\nAnswer: 12 "));
    assert_false(right(TR_MATCH_FINAL, "12", "Answer: 12\nAnswer: 3"));
    assert_false(right(TR_MATCH_FINAL, "12", "12"));
    assert_false(right(TR_MATCH_FINAL, "12", "Answer:12"));
    assert_false(right(TR_MATCH_FINAL, "12", "Answer: 12 and more"));
    assert_false(right(TR_MATCH_FINAL, "12", ""));
    assert_true(right(TR_MATCH_CONTAINS, "Nora|silver candle",
                      "a silver candle of Nora"));
    assert_false(right(TR_MATCH_CONTAINS, "Nora|silver candle",
                       "a silver spoon of Nora"));
    /* bytes after the length are not part of the reply */
    assert_false(tr_eval_right(TR_MATCH_FINAL, "12", "Answer: 12", 9));
    assert_false(tr_eval_right(TR_MATCH_CONTAINS, "Nora", "Nora", 3));
}

static void
test_numbers(void **state)
{
    static const struct {
        const char *answer, *reply;
        bool right;
    } cases[] = {
        { "18", "She makes 9 * 2 = $18 every day.\n#### 18", true },
        { "18", "18.0", true },
        { "18", "The answer is 18.", true },
        { "18", "18 eggs, then 17", false },
        { "1234567", "1,234,567 people", true },
        { "$1,234.50", "costs 1234.5 dollars", true },
        { "3", "1,2,3", true },
        { "23", "12,3 and 1,23", true }, /* no group of three */
        { "-5", "is -5", true },
        { "-5", "it is -$5", false },
        { "5", "10-5", true },
        { "-5", "10-5", false },
        { "50%", "50 %", true },
        { "0.5", "about .5", true },
        { "7", "no number", false },
        { "7", "", false },
        { "1e3", "1000", false }, /* not a plain number */
    };

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (right(TR_MATCH_NUMBER, cases[i].answer, cases[i].reply)
            != cases[i].right) {
            fail_msg("%s in \"%s\"", cases[i].answer, cases[i].reply);
        }
    }
    assert_false(tr_eval_right(TR_MATCH_NUMBER, "18", "18", 1));
}

/* More digits than anything has: no number, and no overflow. */
static void
test_long_numbers(void **state)
{
    char text[5000], why[200];

    (void) state;
    memset(text, '9', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_false(tr_eval_match_check(TR_MATCH_NUMBER, text, why, sizeof(why)));
    assert_false(right(TR_MATCH_NUMBER, "9", text));
    assert_true(
        tr_eval_match_check(TR_MATCH_NUMBER, "-$1,000.25%", why, sizeof(why)));
    assert_false(tr_eval_match_check(TR_MATCH_NUMBER, "", why, sizeof(why)));
    assert_false(tr_eval_match_check(TR_MATCH_NUMBER, "-", why, sizeof(why)));
}

static void
test_patterns(void **state)
{
    char why[200], text[TR_EVAL_PATTERN_MAX + 2];

    (void) state;
    assert_true(
        right(TR_MATCH_REGEX, "\\\\boxed\\{\\s*7\\s*\\}", "so \\boxed{ 7 }."));
    assert_false(
        right(TR_MATCH_REGEX, "\\\\boxed\\{\\s*7\\s*\\}", "so \\boxed{ 77 }."));
    assert_true(right(TR_MATCH_REGEX, "(?i)^(paris|lutetia)", "Paris."));
    assert_false(right(TR_MATCH_REGEX, "b$", "a"));
    assert_false(tr_eval_right(TR_MATCH_REGEX, "ab", "ab", 1));
    /* a reply may be cut within a character */
    assert_true(right(TR_MATCH_REGEX, "ok", "ok \xe2\x82"));
    assert_true(tr_eval_match_check(TR_MATCH_REGEX, "a|b", why, sizeof(why)));
    assert_false(tr_eval_match_check(TR_MATCH_REGEX, "a[", why, sizeof(why)));
    assert_non_null(strstr(why, "a regular expression (missing terminating"));
    memset(text, 'a', sizeof(text));
    text[TR_EVAL_PATTERN_MAX + 1] = '\0';
    assert_false(tr_eval_match_check(TR_MATCH_REGEX, text, why, sizeof(why)));
    assert_non_null(strstr(why, "at most 8192 bytes"));
    text[TR_EVAL_PATTERN_MAX] = '\0';
    assert_true(tr_eval_match_check(TR_MATCH_REGEX, text, why, sizeof(why)));
}

/* Exponential work is given up: without bounds this would take years. */
static void
test_hostile_patterns(void **state)
{
    (void) state;
    tr_log_open("/dev/null", TR_LEVEL_WARN);
    assert_false(right(TR_MATCH_REGEX, "^(a+)+$",
                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"));
    assert_false(right(TR_MATCH_REGEX, "(?:a|a?)*+(?:x+x+)+y",
                       "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"));
}

static void
test_names(void **state)
{
    tr_eval_match_t rule;

    (void) state;
    assert_true(tr_eval_match_named("regex", &rule));
    assert_int_equal(rule, TR_MATCH_REGEX);
    assert_false(tr_eval_match_named("Regex", &rule));
    assert_false(tr_eval_match_named("", &rule));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_long_numbers),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_hostile_patterns),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
