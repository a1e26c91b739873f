/*
 * Evaluation cases: what is read from a line, what is refused and how it is
 * said.  How replies are judged is in test_eval_match.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/eval/eval_case.h"

#define USER "{\"role\":\"user\",\"content\":\"q\"}"
#define ASSISTANT "{\"role\":\"assistant\",\"content\":\"one\"}"

static tr_status_t
add(tr_eval_cases_t *cases, const char *line, tr_error_t *err)
{
    return tr_eval_cases_add(cases, line, strlen(line), "f.jsonl:7", err);
}

static void
test_a_line_of_world_py_is_read_whole(void **state)
{
    tr_eval_cases_t cases = { 0 };
    tr_error_t err;

    (void) state;
    assert_int_equal(add(&cases,
                         "{\"family\":\"trace\",\"difficulty\":3,\"messages\":"
                         "[" USER "],\"reply\":\"a\\nAnswer: 5\",\"answer\":"
                         "\"5\",\"checker\":\"final\"}",
                         &err),
                     TR_OK);
    assert_int_equal(cases.n, 1);
    assert_string_equal(cases.items[0].family, "trace");
    assert_int_equal(cases.items[0].difficulty, 3);
    assert_int_equal(cases.items[0].match, TR_MATCH_FINAL);
    assert_int_equal(cases.items[0].n_turns, 1);
    assert_int_equal(cases.items[0].turns[0].n_messages, 1);
    assert_string_equal(cases.items[0].turns[0].answer, "5");
    assert_string_equal(cases.items[0].turns[0].reply, "a\nAnswer: 5");
    tr_eval_cases_free(&cases);
}

static void
test_only_conversations_go_turn_by_turn(void **state)
{
    static const char *const lines[] = {
        "{\"family\":\"multi\",\"messages\":[" USER "," ASSISTANT "," USER
        "],\"answer\":\"two\"}",
        "{\"messages\":[" USER "," ASSISTANT "," USER
        "],\"expected\":\"two\",\"turns\":true}",
        "{\"messages\":[" USER "," ASSISTANT "," USER "],\"expected\":\"two\"}",
        "{\"family\":\"multi\",\"turns\":false,\"messages\":[" USER
        "," ASSISTANT "," USER "],\"expected\":\"two\"}"
    };
    tr_eval_cases_t cases = { 0 };
    tr_error_t err;

    (void) state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(add(&cases, lines[i], &err), TR_OK);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cases.items[i].n_turns, 2);
        assert_int_equal(cases.items[i].turns[0].n_messages, 1);
        assert_string_equal(cases.items[i].turns[0].answer, "one");
        assert_int_equal(cases.items[i].turns[1].n_messages, 3);
        assert_string_equal(cases.items[i].turns[1].answer, "two");
    }
    for (int i = 2; i < 4; i++) {
        assert_int_equal(cases.items[i].n_turns, 1);
        assert_int_equal(cases.items[i].turns[0].n_messages, 3);
    }
    assert_string_equal(cases.items[1].family, "cases");
    tr_eval_cases_free(&cases);
}

static void
test_the_hash_is_of_what_a_line_says_not_of_how(void **state)
{
    static const char *const lines[] = {
        "{\"messages\":[" USER "],\"expected\":\"a\"}",
        "{ \"expected\": \"a\",  \"messages\": [" USER "]}",
        "{\"messages\":[" USER "],\"expected\":\"b\"}",
        "{\"messages\":[" USER "],\"expected\":\"a\",\"max_tokens\":3}"
    };
    tr_eval_cases_t cases = { 0 };
    tr_error_t err;

    (void) state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(add(&cases, lines[i], &err), TR_OK);
    }
    assert_true(cases.items[0].hash == cases.items[1].hash);
    assert_true(cases.items[0].hash != cases.items[2].hash);
    assert_true(cases.items[0].hash != cases.items[3].hash);
    tr_eval_cases_free(&cases);
}

static void
test_bad_lines_are_refused_with_place_and_reason(void **state)
{
    static const struct {
        const char *line, *said;
    } bad[] = {
        { "nonsense", "one JSON object a line" },
        { "[1]", "expected a JSON object" },
        { "{\"expected\":\"a\"}", "messages is missing" },
        { "{\"messages\":[],\"expected\":\"a\"}", "messages is []" },
        { "{\"messages\":{},\"expected\":\"a\"}", "messages is {}" },
        { "{\"messages\":[3],\"expected\":\"a\"}", "messages[0].role" },
        { "{\"messages\":[{\"role\":\"robot\",\"content\":\"\"}],"
          "\"expected\":\"a\"}",
          "messages[0].role is \"robot\", expected \"system\"" },
        { "{\"messages\":[{\"role\":\"user\"}],\"expected\":\"a\"}",
          "messages[0].content is missing" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":7}],"
          "\"expected\":\"a\"}",
          "messages[0].content is 7, expected a text" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}],"
          "\"expected\":\"a\"}",
          "f.jsonl:7" },
        { "{\"messages\":[" USER "," ASSISTANT "],\"expected\":\"a\"}",
          "in the last message" },
        { "{\"messages\":[" USER "]}", "answer is missing" },
        { "{\"messages\":[" USER "],\"expected\":\"a\",\"answer\":\"a\"}",
          "one of" },
        { "{\"messages\":[" USER "],\"expected\":4}", "expected is 4" },
        { "{\"messages\":[" USER "],\"expected\":\"a\",\"checker\":\"fuzzy\"}",
          "checker is \"fuzzy\", expected \"exact\", \"final\", \"contains\", "
          "\"number\" or \"regex\"" },
        { "{\"messages\":[" USER "],\"answer\":\"a\",\"match\":\"exact\","
          "\"checker\":\"exact\"}",
          "one of \"match\" and \"checker\"" },
        { "{\"messages\":[" USER "],\"answer\":\"a\",\"prompt\":\"b\"}",
          "one of \"messages\" and \"prompt\"" },
        { "{\"prompt\":\"\",\"answer\":\"a\"}", "prompt is \"\"" },
        { "{\"prompt\":[1],\"answer\":\"a\"}", "prompt is [1], expected a" },
        { "{\"prompt\":\"q\",\"answer\":\"x\",\"match\":\"number\"}",
          "answer is \"x\", expected a number, as in -1,234.5" },
        { "{\"prompt\":\"q\",\"answer\":4}", "answer is 4, expected a text" },
        { "{\"prompt\":\"q\",\"answer\":\"a(b\",\"match\":\"regex\"}",
          "expected a regular expression (missing closing parenthesis at byte "
          "3)" },
        { "{\"prompt\":\"q\",\"answer\":\"a\",\"turns\":true}",
          "turns is true, expected false where there is a prompt" },
        { "{\"prompt\":\"q\",\"answer\":\"a\",\"stop\":\"\"}",
          "stop is \"\", expected a text, or a list of up to 8" },
        { "{\"prompt\":\"q\",\"answer\":\"a\",\"stop\":[\"b\",3]}",
          "stop is 3" },
        { "{\"prompt\":\"q\",\"answer\":\"a\",\"stop\":[\"1\",\"2\",\"3\","
          "\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]}",
          "stop is \"9\"" },
        { "{\"messages\":[" USER "],\"expected\":\"a\",\"difficulty\":-1}",
          "difficulty is -1" },
        { "{\"messages\":[" USER "],\"expected\":\"a\",\"max_tokens\":1.5}",
          "max_tokens is 1.5" },
        { "{\"messages\":[" USER "],\"expected\":\"a\",\"turns\":1}",
          "turns is 1" },
        { "{\"messages\":[" USER "],\"expected\":\"a\",\"family\":[]}",
          "family is []" },
    };
    tr_eval_cases_t cases = { 0 };
    tr_error_t err;

    (void) state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(add(&cases, bad[i].line, &err), TR_ERR_INVALID);
        assert_non_null(strstr(err.text, "f.jsonl:7"));
        if (strstr(err.text, bad[i].said) == NULL) {
            fail_msg("line %zu: \"%s\" does not say \"%s\"", i, err.text,
                     bad[i].said);
        }
    }
    assert_int_equal(cases.n, 0);
    tr_eval_cases_free(&cases);
}

static void
test_a_file_names_its_bad_line(void **state)
{
    char path[] = "/tmp/tr-test-cases.XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    tr_eval_cases_t cases = { 0 };
    tr_error_t err;
    char place[64];

    (void) state;
    assert_non_null(f);
    fprintf(f,
            "{\"messages\":[" USER "],\"expected\":\"a\"}\n\n  \n{\"x\":1}\n");
    fclose(f);
    assert_int_equal(tr_eval_cases_read(&cases, path, &err), TR_ERR_INVALID);
    snprintf(place, sizeof(place), "%s:4:", path);
    assert_non_null(strstr(err.text, place));
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(tr_eval_cases_read(&cases, path, &err), TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "has no cases"));
    unlink(path);
    assert_int_equal(tr_eval_cases_read(&cases, path, &err), TR_ERR_IO);
    tr_eval_cases_free(&cases);
}

static void
test_selection_keeps_the_first_of_each_kind(void **state)
{
    static const char *const families[] = { "copy", "arith" };
    tr_eval_cases_t cases = { 0 };
    tr_error_t err;
    char line[200];

    (void) state;
    for (int i = 0; i < 24; i++) {
        snprintf(line, sizeof(line),
                 "{\"family\":\"%s\",\"difficulty\":%d,\"messages\":[" USER
                 "],\"expected\":\"%d\"}",
                 i % 3 == 0   ? "copy"
                 : i % 3 == 1 ? "arith"
                              : "trace",
                 i / 3 % 2 + 1, i);
        assert_int_equal(add(&cases, line, &err), TR_OK);
    }
    tr_eval_cases_select(&cases, 3, families, 2);
    assert_int_equal(cases.n, 12); /* 2 families, 2 difficulties, 3 each */
    assert_string_equal(cases.items[0].turns[0].answer, "0");
    for (size_t i = 0; i < cases.n; i++) {
        assert_string_not_equal(cases.items[i].family, "trace");
        assert_true(atoi(cases.items[i].turns[0].answer) < 18);
    }
    tr_eval_cases_free(&cases);
}

static void
test_a_prompt_stands_for_messages(void **state)
{
    tr_eval_cases_t cases = { 0 };
    tr_error_t err;
    const tr_eval_case_t *c;

    (void) state;
    if (add(&cases,
            "{\"prompt\":\"Question: 1+1?\\nAnswer:\",\"answer\":2,\"match\":"
            "\"number\",\"stop\":[\"\\n\\n\",\"Question:\"]}",
            &err)
        != TR_OK) {
        fail_msg("%s", err.text);
    }
    c = &cases.items[0];
    assert_null(c->messages);
    assert_string_equal(c->prompt, "Question: 1+1?\nAnswer:");
    assert_int_equal(c->match, TR_MATCH_NUMBER);
    assert_int_equal(c->n_turns, 1);
    assert_string_equal(c->turns[0].answer, "2");
    assert_int_equal(tr_eval_stopped(c, " 2\nQuestion: 5", 13), 3);
    assert_int_equal(tr_eval_stopped(c, " 2\n\nQuestion: 5", 14), 2);
    assert_int_equal(tr_eval_stopped(c, " 2\nQuest", 8), 8);
    tr_eval_cases_free(&cases);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line_of_world_py_is_read_whole),
        cmocka_unit_test(test_only_conversations_go_turn_by_turn),
        cmocka_unit_test(test_the_hash_is_of_what_a_line_says_not_of_how),
        cmocka_unit_test(test_bad_lines_are_refused_with_place_and_reason),
        cmocka_unit_test(test_a_file_names_its_bad_line),
        cmocka_unit_test(test_selection_keeps_the_first_of_each_kind),
        cmocka_unit_test(test_a_prompt_stands_for_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
