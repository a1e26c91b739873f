/*
 * Tools that are made to cost much: schemas with very many ways through their
 * references, those that would stand in a tree very often, and those that are
 * nested deeper than anything reads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dialect/dialect_internal.h"
#include "engine/grammar/grammar.h"

static const char marked_up[] =
    "{%- for m in messages -%}{{ m.role }}: {{ m.content }}"
    "{%- for c in m.tool_calls %}<tool_call>\n<function={{ c.function.name }}>"
    "\n{% for k, v in c.function.arguments|items %}<parameter={{ k }}>\n"
    "{{ v if v is string else v|tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}\n{% endfor %}";
static const char json_calls[] = "{%- for m in messages -%}{{ m.role }}: {{ "
                                 "m.content }}"
                                 "{%- for c in m.tool_calls %}<tool_call>\n"
                                 "{{ {'name': c.function.name, 'arguments': "
                                 "c.function.arguments}|tojson }}"
                                 "\n</tool_call>{% endfor %}\n{% endfor %}";

static tr_dialect_t *
open_dialect(const char *source, const char *name)
{
    tr_chat_template_t c = { .end_of_turn = -1 };
    tr_dialect_t *d = NULL;
    tr_error_t err = { 0 };

    c.tokens[0] = strdup("<s>");
    c.tokens[1] = strdup("</s>");
    if (tr_jinja_parse(source, strlen(source), "test", &c.chat, &err) != TR_OK
        || tr_chat_template_probe(&c, NULL, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    c.reads_tools = true;
    if (tr_dialect_open("auto", &c, NULL, &d, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_string_equal(tr_dialect_name(d), name);
    assert_true(tr_dialect_holds(d));
    tr_chat_template_free(&c);
    return d;
}

static json_t *
tools_with(json_t *parameters)
{
    return json_pack("[{s:s, s:{s:s, s:o}}]", "type", "function", "function",
                     "name", "f", "parameters", parameters);
}

/* ---- types ---------------------------------------------------------------- */

#define WAYS 4000

/* Four levels of anyOf, each with so many references to the next one: 4000^4
 * ways. */
static json_t *
many_ways(void)
{
    json_t *defs = json_object(), *list;
    char ref[32], name[16];

    for (int level = 0; level < 4; level++) {
        list = json_array();
        snprintf(ref, sizeof(ref), "#/$defs/d%d", level + 1);
        for (int i = 0; i < WAYS; i++) {
            json_array_append_new(list, json_pack("{s:s}", "$ref", ref));
        }
        snprintf(name, sizeof(name), "d%d", level);
        json_object_set_new(defs, name, json_pack("{s:o}", "anyOf", list));
    }
    json_object_set_new(defs, "d4", json_pack("{s:s}", "type", "string"));
    return json_pack("{s:{s:{s:s}, s:{s:s}}, s:o}", "properties", "first",
                     "type", "integer", "many", "$ref", "#/$defs/d0", "$defs",
                     defs);
}

/* What tr_dialect_read_tools takes. */
typedef struct {
    void *blocks[64];
    int n;
} memory_t;

static void *
from_memory(void *arg, size_t n)
{
    memory_t *m = arg;

    assert_true(m->n < 64);
    return m->blocks[m->n++] = calloc(1, n);
}

static void
test_many_ways(void **state)
{
    json_t *tools = tools_with(many_ways());
    tr_dialect_t *d = open_dialect(marked_up, "qwen_xml");
    tr_dialect_hold_t how = { .mode = TR_HOLD_REQUIRED };
    tr_dialect_tools_t list;
    memory_t m = { 0 };
    tr_error_t err = { 0 };
    char *tree;
    size_t len;

    (void) state;
    assert_int_equal(tr_dialect_read_tools(tools, from_memory, &m, &list),
                     TR_OK);
    assert_int_equal(list.tools[0].params[0].types, TR_TYPE_INTEGER);
    assert_int_equal(list.tools[0].params[1].types, 0);
    assert_int_equal(tr_dialect_hold(d, tools, &how, &tree, &len, &err), TR_OK);
    free(tree);
    while (m.n > 0) {
        free(m.blocks[--m.n]);
    }
    tr_dialect_free(d);
    json_decref(tools);
}

/* An enum as long as the compiler takes is read to its end, and so are many
 * parameters. */
static void
test_ordinary_types(void **state)
{
    json_t *values = json_array(), *properties = json_object(), *tools;
    tr_dialect_tools_t list;
    memory_t m = { 0 };
    char name[16];

    (void) state;
    for (int i = 0; i < 10000; i++) {
        json_array_append_new(values, json_integer(i));
    }
    json_array_append_new(values, json_string("x"));
    json_object_set_new(properties, "long", json_pack("{s:o}", "enum", values));
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "p%d", i);
        json_object_set_new(properties, name,
                            json_pack("{s:[{s:s}, {s:s}]}", "anyOf", "$ref",
                                      "#/$defs/a", "type", "null"));
    }
    tools = tools_with(json_pack("{s:o, s:{s:{s:s}}}", "properties", properties,
                                 "$defs", "a", "type", "array"));
    assert_int_equal(tr_dialect_read_tools(tools, from_memory, &m, &list),
                     TR_OK);
    assert_int_equal(list.tools[0].params[0].types,
                     TR_TYPE_INTEGER | TR_TYPE_NUMBER | TR_TYPE_STRING);
    assert_int_equal(list.tools[0].params[40].types,
                     TR_TYPE_ARRAY | TR_TYPE_NULL);
    while (m.n > 0) {
        free(m.blocks[--m.n]);
    }
    json_decref(tools);
}

/* ---- trees ---------------------------------------------------------------- */

/* Each parameter that is no string takes the whole schema along. */
static json_t *
numbers(int n)
{
    json_t *properties = json_object();
    char name[16];

    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "p%d", i);
        json_object_set_new(properties, name,
                            json_pack("{s:s}", "type", "integer"));
    }
    return json_pack("{s:s, s:o}", "type", "object", "properties", properties);
}

static void
test_large_tree(void **state)
{
    tr_dialect_t *d = open_dialect(marked_up, "qwen_xml");
    tr_dialect_hold_t how = { .mode = TR_HOLD_REQUIRED };
    tr_error_t err = { 0 };
    json_t *tools = tools_with(numbers(100));
    char *tree = NULL;
    size_t len = 0;

    (void) state;
    assert_int_equal(tr_dialect_hold(d, tools, &how, &tree, &len, &err), TR_OK);
    assert_true(len < TR_GRAMMAR_TREE_TEXT);
    free(tree);
    json_decref(tools);

    tools = tools_with(numbers(2000)); /* 50 KB, and 100 MB written out */
    assert_int_equal(tr_dialect_hold(d, tools, &how, &tree, &len, &err),
                     TR_ERR_INVALID);
    assert_null(tree);
    assert_string_equal(err.param, "tools[0].function.parameters");
    assert_non_null(strstr(err.text, "exceed 4194304 bytes"));
    /* it stopped: no more than one schema behind the limit */
    assert_true(len < TR_GRAMMAR_TREE_TEXT + (128u << 10));
    json_decref(tools);
    tr_dialect_free(d);
}

/* Many ways to one list of long texts: SHARED alternatives of as many each. */
#define SHARED 32

static json_t *
shared_list(void)
{
    json_t *all = json_array(), *some = json_array(), *texts = json_array();
    char text[1100];

    for (int i = 0; i < SHARED; i++) {
        json_array_append_new(all, json_pack("{s:s}", "$ref", "#/$defs/some"));
        json_array_append_new(some, json_pack("{s:s}", "$ref", "#/$defs/list"));
    }
    memset(text, 'x', sizeof(text));
    for (int i = 0; i < 15; i++) {
        snprintf(text + 1000, 100, "%d", i);
        json_array_append_new(texts, json_string(text));
    }
    return json_pack("{s:s, s:{s:{s:o}}, s:{s:{s:o}, s:{s:s, s:o}}}", "type",
                     "object", "properties", "p", "anyOf", all, "$defs", "some",
                     "anyOf", some, "list", "type", "string", "enum", texts);
}

static void
test_shared_list(void **state)
{
    tr_dialect_t *d = open_dialect(marked_up, "qwen_xml");
    tr_dialect_hold_t how = { .mode = TR_HOLD_REQUIRED };
    tr_error_t err = { 0 };
    json_t *tools = tools_with(shared_list());
    char *tree = NULL;
    size_t len = 0;

    (void) state;
    assert_int_equal(tr_dialect_hold(d, tools, &how, &tree, &len, &err),
                     TR_ERR_INVALID);
    assert_null(tree);
    assert_non_null(strstr(err.text, "exceed 4194304 bytes"));
    assert_true(len < TR_GRAMMAR_TREE_TEXT + (128u << 10));
    json_decref(tools);
    tr_dialect_free(d);
}

static json_t *
nested(int levels)
{
    json_t *value = json_object();

    while (--levels > 1) {
        value = json_pack("{s:o}", "not", value);
    }
    return json_pack("{s:{s:o}}", "$defs", "a", value);
}

static void
test_deep(void **state)
{
    static const struct {
        const char *source, *name;
    } dialects[] = { { marked_up, "qwen_xml" }, { json_calls, "hermes" } };
    tr_dialect_hold_t how = { .mode = TR_HOLD_REQUIRED };

    (void) state;
    for (int i = 0; i < 2; i++) {
        tr_dialect_t *d = open_dialect(dialects[i].source, dialects[i].name);
        tr_error_t err = { 0 };
        json_t *tools = tools_with(nested(200));
        char *tree;
        size_t len;

        assert_int_equal(tr_dialect_hold(d, tools, &how, &tree, &len, &err),
                         TR_OK);
        free(tree);
        json_decref(tools);
        tools = tools_with(nested(2040));
        assert_int_equal(tr_dialect_hold(d, tools, &how, &tree, &len, &err),
                         TR_ERR_INVALID);
        assert_null(tree);
        assert_string_equal(err.param, "tools[0].function.parameters");
        assert_non_null(strstr(err.text, "nested deeper than 256 levels"));
        json_decref(tools);
        tr_dialect_free(d);
    }
}

/* ---- what marked-up text is held to --------------------------------------- */

static void
check_strict(const tr_dialect_t *d, const char *parameters, const char *message)
{
    tr_dialect_hold_t how = { .mode = TR_HOLD_REQUIRED };
    json_t *schema = json_loads(parameters, 0, NULL), *tools;
    tr_error_t err = { 0 };
    char *tree = NULL;
    size_t len;
    tr_status_t rc;

    assert_non_null(schema);
    tools = tools_with(schema);
    json_object_set_new(json_object_get(json_array_get(tools, 0), "function"),
                        "strict", json_true());
    rc = tr_dialect_hold(d, tools, &how, &tree, &len, &err);
    if ((rc == TR_OK) != (message == NULL)
        || (message != NULL && strstr(err.text, message) == NULL)) {
        fail_msg("%s: %s", parameters, rc == TR_OK ? tree : err.text);
    }
    free(tree);
    json_decref(tools);
}

#define P(schema) "{\"type\":\"object\",\"properties\":{\"p\":" schema "}}"
#define STRING "{\"type\":\"string\"}"
#define LONG_KEY                                                      \
    "a23456789a23456789a23456789a23456789a23456789a23456789a23456789" \
    "a23456789a23456789a23456789a23456789a23456789a23456789a23456789"

static void
test_strict_texts(void **state)
{
    static const struct {
        const char *parameters, *message;
    } cases[] = {
        { P("{\"anyOf\":[" STRING ",{\"type\":\"null\"}]}"), NULL },
        { P("{\"allOf\":[{\"enum\":[\"a\"]}],\"default\":\"a\"}"), NULL },
        { P("{\"oneOf\":[" STRING ",{\"type\":\"number\"}]}"), NULL },
        { P("{}"), NULL },
        { P("{\"type\":\"string\",\"maxLength\":3}"), "'maxLength' at /prop" },
        { P("{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"a\"},"
            "{\"type\":\"null\"}]}"),
          "'pattern' at /properties/p" },
        /* "12" would be a number that is too large */
        { P("{\"anyOf\":[" STRING ",{\"type\":\"integer\",\"maximum\":9}]}"),
          "'maximum' at /properties/p" },
        { P("{\"anyOf\":[" STRING ",{\"enum\":[1,2]}]}"), "'anyOf' at" },
        { P("{\"type\":[\"string\",\"object\"]}"), "'type' at" },
        { P("{\"oneOf\":[" STRING ",{\"enum\":[\"a\",null]}]}"), "'oneOf'" },
        { P("{\"anyOf\":[" STRING "],\"enum\":[\"a\"]}"), "'anyOf'" },
        /* no text is read as this one */
        { P("{\"enum\":[\"</parameter>\"]}"), "'enum' at" },
        { P("{\"enum\":[\"</parameter>\",\"<b>\"]}"), NULL },
        { P("{\"type\":[\"string\",\"null\"],\"enum\":[\"null\"]}"),
          "'enum' at" },
        /* names that cannot be written, or of nothing */
        { "{\"properties\":{\"a>b\":" STRING "}}",
          "'properties' at /properties/a>b" },
        { "{\"properties\":{\"" LONG_KEY "\":" STRING "}}", "'properties' at" },
        { "{\"properties\":{\"\u00e9 \u4e2d\":" STRING "}}", NULL },
        { "{\"properties\":{},\"required\":[\"ghost\"]}", "'required' at /" },
        /* arguments are an object, of which nothing else is said */
        { "{\"type\":[\"object\",\"null\"],\"properties\":{}}", NULL },
        { "{\"type\":\"number\",\"properties\":{}}", "'type' at /" },
        { "{\"type\":[\"null\"],\"properties\":{}}", "'type' at /" },
        { "{\"propertyNames\":{\"maxLength\":3}}", "'propertyNames' at /" },
    };
    tr_dialect_t *d = open_dialect(marked_up, "qwen_xml");

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_strict(d, cases[i].parameters, cases[i].message);
    }
    tr_dialect_free(d);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_ways),
        cmocka_unit_test(test_ordinary_types),
        cmocka_unit_test(test_large_tree),
        cmocka_unit_test(test_shared_list),
        cmocka_unit_test(test_deep),
        cmocka_unit_test(test_strict_texts),
    };

    return cmocka_run_group_tests_name("hold_hostile", tests, NULL, NULL);
}
