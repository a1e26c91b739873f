/*
 * A chat whose model calls tools and reasons: which tools a choice leaves, what
 * is refused before an answer is held to them, and where reasoning is closed.
 */
#include "tests/unit/fixtures/openai_fixture.h"

static tr_openai_t with_tools;
static tr_dialect_t *dialect;

static int
open_tools(void **state)
{
    tr_error_t err = { 0 };

    if (setup(state) != 0
        || tr_dialect_open("auto", &chat_template, tokenizer, &dialect, &err)
               != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_true(tr_dialect_holds(dialect));
    with_tools = api;
    with_tools.dialect = dialect;
    with_tools.max_model_len = 512;
    with_tools.policies = NULL;
    with_tools.n_policies = 0;
    return 0;
}

static int
close_tools(void **state)
{
    tr_dialect_free(dialect);
    return teardown(state);
}

#define TOOL(name) \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define ALLOWED(mode, list)                                              \
    "{" HI ",\"tools\":[" TOOL("a") "," TOOL(                            \
        "b") "],\"tool_choice\":{\"type\":\"allowed_tools\","            \
             "\"allowed_tools\":{\"mode\":\"" mode "\",\"tools\":[" list \
             "]}}}"

static void
check_at(uint16_t endpoint, const char *body, tr_status_t status,
         const char *param, const char *message)
{
    tr_request_t *r = parse_bytes(&with_tools, endpoint, body, strlen(body));

    if (r->error.status != status || strcmp(r->error.param, param) != 0
        || strstr(r->error.text, message) == NULL) {
        fail_msg("%.400s\n  %d: %s (%s)", body, r->error.status, r->error.text,
                 r->error.param);
    }
    tr_request_free(r);
}

static void
check(const char *body, tr_status_t status, const char *param,
      const char *message)
{
    check_at(CHAT, body, status, param, message);
}

static void
test_allowed(void **state)
{
    (void) state;
    check(ALLOWED("auto", TOOL("a")), TR_OK, "", "");
    check(ALLOWED("auto", ""), TR_OK, "", "");
    check(ALLOWED("required", TOOL("b") "," TOOL("a")), TR_OK, "", "");
    check(ALLOWED("required", TOOL("c")), TR_ERR_INVALID,
          "tool_choice.allowed_tools", "'c' not found");
    check(ALLOWED("auto", TOOL("a") "," TOOL("b") ",{\"name\":\"a\"}"),
          TR_ERR_INVALID, "tool_choice.allowed_tools.tools",
          "'a' is listed twice");
    check(ALLOWED("required", ""), TR_ERR_INVALID,
          "tool_choice.allowed_tools.tools", "expects one tool or more");
}

/* A body with a tool whose parameters have so many levels. */
static void
write_nested(char *out, size_t size, int levels)
{
    FILE *f = fmemopen(out, size, "w");

    assert_non_null(f);
    fprintf(f, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
               "\"tool_choice\":\"required\",\"tools\":[{\"type\":"
               "\"function\",\"function\":{\"name\":\"a\",\"parameters\":");
    for (int i = 1; i < levels; i++) {
        fprintf(f, "{\"n\":");
    }
    fprintf(f, "{}");
    for (int i = 1; i < levels; i++) {
        fprintf(f, "}");
    }
    fprintf(f, "}}]}");
    assert_int_equal(fclose(f), 0);
}

static void
test_deep(void **state)
{
    static char body[32768];

    (void) state;
    with_tools.max_model_len = 8192;
    write_nested(body, sizeof(body), 200);
    check(body, TR_OK, "", "");
    write_nested(body, sizeof(body), 1900);
    check(body, TR_ERR_INVALID, "tools[0].function.parameters",
          "nested deeper than 256 levels");
    /* nothing is held for a prompt that does not fit */
    with_tools.max_model_len = 512;
    write_nested(body, sizeof(body), 300);
    check(body, TR_ERR_CONTEXT_LENGTH, "messages", "512 tokens");
}

#define THINKING(members) "{" HI ",\"max_tokens\":9,\"thinking\":{" members "}}"
#define BUDGET "thinking.budget_tokens"

static void
test_thinking_budget(void **state)
{
    static const char thought[] = "{% for m in messages %}<think>{{ "
                                  "m.reasoning_content }}</think>"
                                  "{{ m.content }}{% endfor %}";
    static const char body[] = THINKING("\"type\":\"enabled\","
                                        "\"budget_tokens\":7");
    tr_chat_template_t thinks = { .end_of_turn = -1 };
    tr_dialect_t *d = NULL;
    tr_error_t err = { 0 };
    tr_request_t *r;

    (void) state;
    thinks.tokens[0] = strdup("<s>");
    thinks.tokens[1] = strdup("</s>");
    if (tr_jinja_parse(thought, sizeof(thought) - 1, "test", &thinks.chat, &err)
            != TR_OK
        || tr_dialect_open("none", &thinks, tokenizer, &d, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_non_null(tr_dialect_thought_end(d));
    with_tools.dialect = d;
    r = parse_bytes(&with_tools, TR_ENDPOINT_MESSAGES, body, strlen(body));
    assert_int_equal(r->error.status, TR_OK);
    assert_int_equal(r->thought_budget, 7);
    assert_true(r->n_thought_end > 0);
    tr_request_free(r);
    check_at(TR_ENDPOINT_MESSAGES,
             THINKING("\"type\":\"disabled\",\"budget_tokens\":7"),
             TR_ERR_INVALID, BUDGET, "belongs to the type 'enabled'");
    check_at(TR_ENDPOINT_MESSAGES,
             THINKING("\"type\":\"enabled\",\"budget_tokens\":-1"),
             TR_ERR_INVALID, BUDGET, "-1. Expected 1 to 4294967295");
    with_tools.dialect = dialect;
    tr_dialect_free(d);
    tr_chat_template_free(&thinks);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_deep),
        cmocka_unit_test(test_thinking_budget),
    };

    return cmocka_run_group_tests(tests, open_tools, close_tools);
}
