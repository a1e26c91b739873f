/*
 * The option table: what is given arrives, what is wrong is refused, and only
 * what was given enters a request body.
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

#include "cli/options.h"

static struct {
    const char *text;
    tr_option_list_t list;
    int64_t integer, any;
    double number;
    bool flag;
} g;

static tr_option_t options[] = {
    { "A heading", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false },
    { "text", 'x', TR_OPTION_TEXT, &g.text, "T", "h", 0, 0, "text", false },
    { "stop", 0, TR_OPTION_LIST, &g.list, "T", "h", 0, 0, "stop", false },
    { "max-tokens", 'n', TR_OPTION_INT, &g.integer, "N", "h", 1, 100,
      "max_tokens", false },
    { "any", 0, TR_OPTION_INT, &g.any, "N", "h", 0, 0, NULL, false },
    { "top-p", 0, TR_OPTION_NUMBER, &g.number, "X", "h", 0.1, 1, "top_p",
      false },
    { "flag", 'f', TR_OPTION_FLAG, &g.flag, NULL, "h", 0, 0, "flag", false },
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

static const tr_command_t command = { "tokenring test [options]", "A test.",
                                      NULL, options };

/* Splits at blanks and parses; stderr is silenced. */
static int
parse(const char *line, char *words)
{
    char *argv[16] = { "test" }, *word;
    int argc = 1, rc, saved = dup(STDERR_FILENO);
    size_t i;

    memset(&g, 0, sizeof(g));
    for (i = 0; options[i].name != NULL; i++) {
        options[i].seen = false;
    }
    strcpy(words, line);
    for (word = strtok(words, " "); word != NULL && argc < 16;
         word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    assert_non_null(freopen("/dev/null", "w", stderr));
    rc = tr_options_parse(&command, argc, argv);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    return rc == argc ? 0 : rc;
}

static const struct {
    const char *line;
    int rc; /* 0: all was taken; > 0: index of the first operand */
} lines[] = {
    { "", 0 },
    { "--text a --flag", 0 },
    { "--text=a=b", 0 },
    { "--text=", 0 },
    { "-x a -f", 0 },
    { "-xa", 0 },
    { "-n5", 0 },
    { "--max-tokens 1", 0 },
    { "--max-tokens=100", 0 },
    { "--any -5", 0 },
    { "--top-p 0.5", 0 },
    { "--top-p 1e-1", 0 },
    { "--stop a --stop b", 0 },
    { "operand --flag", 1 },
    { "--flag operand", 2 },
    { "--flag -- --text", 3 },
    { "-", 1 },
    { "--tex a", TR_OPTIONS_ERROR },
    { "--textt a", TR_OPTIONS_ERROR },
    { "--nope", TR_OPTIONS_ERROR },
    { "-q", TR_OPTIONS_ERROR },
    { "--A", TR_OPTIONS_ERROR },
    { "--text", TR_OPTIONS_ERROR },
    { "--flag --text", TR_OPTIONS_ERROR },
    { "--flag=1", TR_OPTIONS_ERROR },
    { "-f1", TR_OPTIONS_ERROR },
    { "--max-tokens 0", TR_OPTIONS_ERROR },
    { "--max-tokens 101", TR_OPTIONS_ERROR },
    { "--max-tokens -1", TR_OPTIONS_ERROR },
    { "--max-tokens 1.5", TR_OPTIONS_ERROR },
    { "--max-tokens x", TR_OPTIONS_ERROR },
    { "--max-tokens 5x", TR_OPTIONS_ERROR },
    { "--max-tokens=", TR_OPTIONS_ERROR },
    { "--any 99999999999999999999", TR_OPTIONS_ERROR },
    { "--top-p 0", TR_OPTIONS_ERROR },
    { "--top-p 1.01", TR_OPTIONS_ERROR },
    { "--top-p nan", TR_OPTIONS_ERROR },
    { "--top-p inf", TR_OPTIONS_ERROR },
    { "--top-p 1e999", TR_OPTIONS_ERROR },
};

static void
test_lines_are_taken_or_refused(void **state)
{
    char words[256];
    size_t i;

    (void) state;
    for (i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        int rc = parse(lines[i].line, words);

        if (rc != lines[i].rc) {
            fail_msg("\"%s\" gave %d, expected %d", lines[i].line, rc,
                     lines[i].rc);
        }
    }
}

static void
test_values_arrive(void **state)
{
    char words[256];

    (void) state;
    assert_int_equal(parse("-x a=b --stop s --stop= -n7 --top-p=0.25 -f",
                           words),
                     0);
    assert_string_equal(g.text, "a=b");
    assert_int_equal(g.list.n, 2);
    assert_string_equal(g.list.item[0], "s");
    assert_string_equal(g.list.item[1], "");
    assert_int_equal(g.integer, 7);
    assert_true(g.number == 0.25);
    assert_true(g.flag);
}

static void
test_only_what_was_given_enters_the_body(void **state)
{
    char words[256], *text;
    json_t *body = json_object();

    (void) state;
    assert_int_equal(parse("--stop a --stop b -n 9 --any 3", words), 0);
    tr_options_to_json(options, body);
    text = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"max_tokens\":9,\"stop\":[\"a\",\"b\"]}");
    free(text);
    json_decref(body);
}

static void
test_a_list_is_bounded(void **state)
{
    char *argv[2 * TR_OPTION_LIST_MAX + 3] = { "test" };
    int argc = 1, i;

    (void) state;
    memset(&g, 0, sizeof(g));
    for (i = 0; i < TR_OPTION_LIST_MAX; i++) {
        argv[argc++] = "--stop";
        argv[argc++] = "s";
    }
    assert_int_equal(tr_options_parse(&command, argc, argv), argc);
    assert_int_equal(g.list.n, TR_OPTION_LIST_MAX);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_are_taken_or_refused),
        cmocka_unit_test(test_values_arrive),
        cmocka_unit_test(test_only_what_was_given_enters_the_body),
        cmocka_unit_test(test_a_list_is_bounded),
    };

    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
