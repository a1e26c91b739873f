/*
 * Dialects: what models write, cut at every border, is the same items; what is
 * no call is content, byte for byte; and the real templates in the folder
 * TEMPLATE_CORPUS (left out without) get the dialects that fit them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dialect/dialect_internal.h"
#include "tests/unit/fixtures/template_corpus.h"
#include "tests/unit/fixtures/tokenizer_fixture.h"

static tr_dialect_out_t out;

static void *
zeroed(void *arg, size_t n)
{
    (void) arg;
    return test_calloc(1, n);
}

/* ---- tools --------------------------------------------------------------- */

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"n\":{\"type\":\"integer\"},\"x\":{\"type\":\"number\"},"
    "\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},"
    "\"l\":{\"type\":\"array\"},\"any\":{},"
    "\"s\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"noop\"}}]";

static tr_dialect_tools_t tools;

static int
make_tools(void **state)
{
    json_t *json = json_loads(tools_json, 0, NULL);

    (void) state;
    assert_int_equal(tr_dialect_read_tools(json, zeroed, NULL, &tools), TR_OK);
    json_decref(json);
    return 0;
}

static int
free_tools(void **state)
{
    (void) state;
    for (uint32_t i = 0; i < tools.n; i++) {
        for (uint32_t k = 0; k < tools.tools[i].n_params; k++) {
            test_free((void *) tools.tools[i].params[k].name);
        }
        test_free((void *) tools.tools[i].params);
        test_free((void *) tools.tools[i].name);
    }
    test_free((void *) tools.tools);
    return 0;
}

/* ---- items as text ------------------------------------------------------- */

/* "T:content|R:thought|C:name(arguments)|" */
typedef struct {
    char text[65536];
    size_t len;
    char content[65536]; /* content alone */
    size_t content_len;
} shown_t;

static void
show(shown_t *s, const char *text, size_t len)
{
    assert_true(s->len + len < sizeof(s->text));
    memcpy(s->text + s->len, text, len);
    s->len += len;
    s->text[s->len] = '\0';
}

static void
take(shown_t *s)
{
    for (uint32_t i = 0; i < out.n; i++) {
        const tr_dialect_piece_t *p = &out.pieces[i];

        if (p->begins || s->len == 0) {
            show(s, s->len != 0 ? "|" : "", s->len != 0);
            show(s, &" TRC"[p->kind], 1);
            show(s, ":", 1);
        }
        if (p->kind == TR_DIALECT_CALL && p->begins) {
            assert_true(p->id_len >= 9 || p->id_len > 0);
            show(s, out.bytes + p->name, p->name_len);
            show(s, " ", 1);
        }
        show(s, out.bytes + p->text, p->text_len);
        if (p->kind == TR_DIALECT_TEXT) {
            memcpy(s->content + s->content_len, out.bytes + p->text,
                   p->text_len);
            s->content_len += p->text_len;
        }
    }
}

static const form_t *
form_of(const char *name)
{
    for (uint32_t i = 0; i < tr_dialect_n_forms; i++) {
        if (strcmp(tr_dialect_forms[i].name, name) == 0) {
            return &tr_dialect_forms[i];
        }
    }
    return NULL;
}

typedef struct {
    const tr_dialect_t *d;
    tr_dialect_start_t start;
} machine_t;

static uint64_t random_state = 88172645463325252ull;

static uint32_t
pick(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t) (random_state % n);
}

/* most: bytes of a push at most, which end with a character; 0: all. */
static void
run(const machine_t *m, const char *text, size_t len, uint32_t most, shown_t *s)
{
    void *memory = test_calloc(1, tr_dialect_size(m->d));
    tr_dialect_state_t *state = tr_dialect_init(m->d, &m->start, memory);
    size_t at = 0;

    s->len = s->content_len = 0;
    s->text[0] = '\0';
    while (at < len) {
        size_t n = most == 0 ? 64 : 1 + pick(most);

        n = n < len - at ? n : len - at;
        while (at + n < len && (text[at + n] & 0xc0) == 0x80) {
            n++;
        }
        tr_dialect_push(state, -1, text + at, (uint32_t) n, &out);
        take(s);
        at += n;
    }
    tr_dialect_finish(state, &out);
    take(s);
    test_free(memory);
}

static shown_t whole, cut;

static void
same_however_cut(const machine_t *m, const char *text, size_t len)
{
    run(m, text, len, 0, &whole);
    for (uint32_t most = 1; most < 12; most++) {
        run(m, text, len, most, &cut);
        if (cut.len != whole.len
            || memcmp(cut.text, whole.text, cut.len) != 0) {
            fail_msg("cut into %u: %s\nwhole: %s\nof: %.*s", most, cut.text,
                     whole.text, (int) len, text);
        }
    }
}

static tr_dialect_t *
make(const char *form, const char *open, const char *close)
{
    reasoning_t r;
    tr_dialect_t *d;
    tr_error_t err;

    snprintf(r.open, sizeof(r.open), "%s", open ? open : "");
    snprintf(r.close, sizeof(r.close), "%s", close ? close : "");
    assert_non_null(form_of(form));
    assert_int_equal(tr_dialect_make(form_of(form), open ? &r : NULL, NULL, &d,
                                     &err),
                     TR_OK);
    return d;
}

/* ---- what models write --------------------------------------------------- */

static const struct {
    const char *form, *text, *items;
} cases[] = {
    { "hermes", "Hello world \n", "T:Hello world \n" },
    { "hermes",
      "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"P\"}}\n"
      "</tool_call>",
      "C:get {\"city\": \"P\"}" },
    { "hermes",
      "Wait.\n<tool_call>\n{\"name\":\"get\",\"arguments\":{\"a\":[1,{\"b\":"
      "\"}\\\"\"}]}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, "
      "\"name\": \"noop\"}\n</tool_call>\n",
      "T:Wait.|C:get {\"a\":[1,{\"b\":\"}\\\"\"}]}|C:noop {}" },
    { "hermes", "<tool_call>{\"name\": \"noop\"}</tool_call>", "C:noop {}" },
    { "hermes",
      "<tool_call>{\"name\": \"noop\", \"arguments\": null}{\"name\": \"get\"}"
      "</tool_call> bye",
      "C:noop {}|C:get {}|T: bye" },
    { "hermes",
      "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"get\", "
      "\"arguments\": \"{\\\"city\\\": \\\"\\u00e9\\\"}\"}}</tool_call>",
      "C:get {\"city\": \"\xc3\xa9\"}" },
    { "hermes", "<tool_call>not JSON</tool_call>",
      "T:<tool_call>not JSON</tool_call>" },
    { "hermes", "<tool_call>{\"name\": \"get\", \"city\": 1}</tool_call>",
      "T:<tool_call>{\"name\": \"get\", \"city\": 1}</tool_call>" },
    { "hermes", "<tool_call>{\"name\": \"a b\", \"arguments\": {}}",
      "T:<tool_call>{\"name\": \"a b\", \"arguments\": {}}" },
    { "hermes", "a <tool_call>{\"name\": \"ge",
      "T:a <tool_call>{\"name\": \"ge" },
    { "hermes",
      "<tool_call><tool_call>{\"name\": \"get\", \"arguments\": "
      "{}}</tool_call>",
      "T:<tool_call>|C:get {}" },
    { "hermes", "<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": \"x",
      "C:get {\"a\": \"x" },
    { "hermes",
      "<tool_call>{\"name\":\"get\",\"arguments\":{}}</tool_call>\n"
      "<tool_call>oops",
      "C:get {}|T:\n<tool_call>oops" },
    { "llama3", "{\"name\": \"get\", \"parameters\": {\"city\": \"P\"}}",
      "C:get {\"city\": \"P\"}" },
    { "llama3",
      "<|python_tag|>{\"name\": \"get\", \"parameters\": {}}; {\"name\": "
      "\"noop\", \"parameters\": {}}",
      "C:get {}|C:noop {}" },
    { "llama3", "{\"name\": \"Bob\", \"parameters\": {}}",
      "T:{\"name\": \"Bob\", \"parameters\": {}}" },
    { "llama3", "{\"name\": \"get\"}", "T:{\"name\": \"get\"}" },
    { "llama3", "Is it {\"name\": \"get\", \"parameters\": {}}?",
      "T:Is it {\"name\": \"get\", \"parameters\": {}}?" },
    { "mistral",
      "[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"city\": \"P\"}, "
      "\"id\": \"abcdefgh1\"}, {\"name\": \"noop\", \"arguments\": {}}]",
      "C:get {\"city\": \"P\"}|C:noop {}" },
    { "mistral",
      "So[TOOL_CALLS]get[ARGS]{\"city\": \"P\"}[TOOL_CALLS]noop[CALL_ID]abc"
      "[ARGS]{}",
      "T:So|C:get {\"city\": \"P\"}|C:noop {}" },
    { "deepseek",
      "<\xef\xbd\x9ctool\xe2\x96\x81"
      "calls\xe2\x96\x81"
      "begin\xef\xbd\x9c>"
      "<\xef\xbd\x9ctool\xe2\x96\x81"
      "call\xe2\x96\x81"
      "begin\xef\xbd\x9c>"
      "function<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>get\n```json\n"
      "{\"city\": \"P\"}\n```"
      "<\xef\xbd\x9ctool\xe2\x96\x81"
      "call\xe2\x96\x81"
      "end\xef\xbd\x9c>\n"
      "<\xef\xbd\x9ctool\xe2\x96\x81"
      "call\xe2\x96\x81"
      "begin\xef\xbd\x9c>noop"
      "<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>{}"
      "<\xef\xbd\x9ctool\xe2\x96\x81"
      "call\xe2\x96\x81"
      "end\xef\xbd\x9c>"
      "<\xef\xbd\x9ctool\xe2\x96\x81"
      "calls\xe2\x96\x81"
      "end\xef\xbd\x9c>",
      "C:get {\"city\": \"P\"}|C:noop {}" },
    { "kimi",
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0"
      "<|tool_call_argument_begin|>{\"city\": \"P\"}<|tool_call_end|>"
      "<|tool_call_begin|>functions.noop:1<|tool_call_argument_begin|>"
      "<|tool_call_end|><|tool_calls_section_end|>",
      "C:get {\"city\": \"P\"}|C:noop {}" },
    { "harmony",
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
      "<|channel|>commentary to=functions.get <|constrain|>json<|message|>"
      "{\"city\": \"P\"}<|call|>",
      "R:Hm.|C:get {\"city\": \"P\"}" },
    { "harmony",
      " to=functions.get<|channel|>commentary json<|message|>{}<|call|>",
      "C:get {}" },
    { "harmony",
      "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>"
      "final<|message|>Yes.",
      "R:Hm|T:Yes." },
    { "harmony", "<|channel|>nonsense<|message|>x",
      "T:<|channel|>nonsense<|message|>x" },
    { "qwen_xml",
      "<tool_call>\n<function=get>\n<parameter=city>\nSay \"hi\"\n\n"
      "</parameter>\n<parameter=n>\n3\n</parameter>\n<parameter=x>\n1.50\n"
      "</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=o>\n"
      "{\"a\": [1]}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
      "<function=noop>\n</function>\n</tool_call>",
      "C:get {\"city\": \"Say \\\"hi\\\"\\n\", \"n\": 3, \"x\": 1.50, \"b\": "
      "true, \"o\": {\"a\": [1]}}|C:noop {}" },
    { "qwen_xml",
      "<tool_call><function=get><parameter=n>three</parameter>"
      "<parameter=x></parameter><parameter=city></parameter>"
      "<parameter=s>null</parameter><parameter=any>[1]</parameter>"
      "<parameter=new>5</parameter></function></tool_call>",
      "C:get {\"n\": \"three\", \"city\": \"\", \"s\": null, \"any\": [1], "
      "\"new\": \"5\"}" },
    { "qwen_xml",
      "<tool_call><function=get><parameter=city>a </parameter> b\n"
      "</parameter></function></tool_call>",
      "C:get {\"city\": \"a </parameter> b\"}" },
    { "qwen_xml",
      "<tool_call><function=get><parameter=city>a<parameter=n>4</parameter>"
      "</function></tool_call>",
      "C:get {\"city\": \"a\", \"n\": 4}" },
    /* what is no JSON, though its brackets match, is a string */
    { "qwen_xml",
      "<tool_call><function=get><parameter=o>{a}</parameter>"
      "<parameter=any>[1, tru]</parameter><parameter=b>\n {\"k\": \"a\nb\"}"
      "</parameter></function></tool_call>",
      "C:get {\"o\": \"{a}\", \"any\": \"[1, tru]\", \"b\": \" {\\\"k\\\": "
      "\\\"a\\nb\\\"}\"}" },
    { "qwen_xml",
      "<tool_call><function=get><parameter=o> {\"a\" : [ -1.5e+3 , "
      "\"\\u00e9\", "
      "true,null , {} , []]}\n</parameter></function></tool_call>",
      "C:get {\"o\": {\"a\" : [ -1.5e+3 , \"\\u00e9\", true,null , {} , "
      "[]]}}" },
    { "qwen_xml", "<tool_call>\n<func>\n</tool_call>",
      "T:<tool_call>\n<func>\n</tool_call>" },
    { "glm",
      "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>P</arg_value>\n"
      "<arg_key>n</arg_key><arg_value>3</arg_value>\n</tool_call>\n"
      "<tool_call>noop</tool_call>",
      "C:get {\"city\": \"P\", \"n\": 3}|C:noop {}" },
    { "minimax",
      "<minimax:tool_call>\n<invoke name=\"get\">\n<parameter name=\"city\">P"
      "</parameter>\n</invoke>\n<invoke name=\"noop\">\n</invoke>\n"
      "</minimax:tool_call>",
      "C:get {\"city\": \"P\"}|C:noop {}" },
    { "dsml",
      "Hm\n\n<\xef\xbd\x9c"
      "DSML\xef\xbd\x9c"
      "function_calls>\n"
      "<\xef\xbd\x9c"
      "DSML\xef\xbd\x9cinvoke name=\"get\">\n"
      "<\xef\xbd\x9c"
      "DSML\xef\xbd\x9cparameter name=\"city\" string=\"true\">P"
      "</\xef\xbd\x9c"
      "DSML\xef\xbd\x9cparameter>\n"
      "<\xef\xbd\x9c"
      "DSML\xef\xbd\x9cparameter name=\"n\" string=\"false\">3"
      "</\xef\xbd\x9c"
      "DSML\xef\xbd\x9cparameter>\n"
      "<\xef\xbd\x9c"
      "DSML\xef\xbd\x9cparameter name=\"s\" string=\"false\"> \"a \\\"b\" "
      "</\xef\xbd\x9c"
      "DSML\xef\xbd\x9cparameter>\n"
      "</\xef\xbd\x9c"
      "DSML\xef\xbd\x9cinvoke>\n"
      "</\xef\xbd\x9c"
      "DSML\xef\xbd\x9c"
      "function_calls>",
      "T:Hm|C:get {\"city\": \"P\", \"n\": 3, \"s\": \"a \\\"b\"}" },
    { "command",
      "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": "
      "\"get\", "
      "\"parameters\": {\"city\": \"P\"}}\n]<|END_ACTION|>",
      "C:get {\"city\": \"P\"}" },
};

static void
test_what_models_write(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_dialect_t *d = make(cases[i].form, NULL, NULL);
        machine_t m = { d, { .tools = &tools, .seed = 1 } };

        same_however_cut(&m, cases[i].text, strlen(cases[i].text));
        assert_string_equal(whole.text, cases[i].items);
        tr_dialect_free(d);
    }
}

static void
test_reasoning(void **state)
{
    static const struct {
        bool inside;
        const char *text, *items;
    } thoughts[] = {
        { true, "\nhm\n</think>\n\nYes", "R:hm|T:Yes" },
        { false, "<think>\nhm\n</think>\n\nYes", "R:hm|T:Yes" },
        { false, "<think>\n\n</think>\n\nYes", "T:Yes" },
        { false, "Yes, <think> is a mark", "T:Yes, <think> is a mark" },
        { true, "hm </thin", "R:hm </thin" },
        { true, "hm\n</think>\n<tool_call>{\"name\":\"noop\"}</tool_call>",
          "R:hm|C:noop {}" },
        { false, "\n\nYes", "T:\n\nYes" },
    };
    tr_dialect_t *d = make("hermes", "<think>", "</think>");

    (void) state;
    for (size_t i = 0; i < sizeof(thoughts) / sizeof(thoughts[0]); i++) {
        machine_t m = { d, { .tools = &tools, .inside = thoughts[i].inside } };

        same_however_cut(&m, thoughts[i].text, strlen(thoughts[i].text));
        assert_string_equal(whole.text, thoughts[i].items);
    }
    assert_true(tr_dialect_begins_inside(d, "x<think>\n", NULL, 9));
    assert_false(tr_dialect_begins_inside(d, "<think>\n</think>", NULL, 16));
    assert_false(tr_dialect_begins_inside(d, "<think>",
                                          (const uint8_t *) "\2\2\2\2\2\2\2",
                                          7));
    tr_dialect_free(d);
}

/* Without tools marks are text, and with `single` the first call is the last. */
static void
test_tools_of_the_request(void **state)
{
    static const char call[] = "<tool_call>{\"name\": \"noop\"}</tool_call>";
    tr_dialect_t *d = make("hermes", NULL, NULL);
    machine_t none = { d, { .tools = NULL } };
    machine_t single = { d, { .tools = &tools, .single = true } };
    char two[256];

    (void) state;
    same_however_cut(&none, call, strlen(call));
    assert_int_equal(whole.content_len, strlen(call));
    assert_memory_equal(whole.content, call, strlen(call));
    snprintf(two, sizeof(two), "%s\n%s and", call, call);
    same_however_cut(&single, two, strlen(two));
    assert_string_equal(whole.text, "C:noop {}");
    tr_dialect_free(d);
}

/* ---- marks that are special tokens --------------------------------------- */

/* In a text of these tests, the special token of that number. */
static const char *const special[] = { NULL, "<tool_call>", "</tool_call>",
                                       "<arg_value>", "</arg_value>" };

#define SPECIALS (sizeof(special) / sizeof(special[0]))

static tr_tokenizer_t *
make_specials(void)
{
    static char added[1024];
    size_t n = 0;

    for (size_t i = 1; i < SPECIALS; i++) {
        n += (size_t) snprintf(added + n, sizeof(added) - n,
                               "%s{\"id\": %zu, \"content\": \"%s\", "
                               "\"special\": true}",
                               i > 1 ? ", " : "", 255 + i, special[i]);
    }
    return fixture_make((fixture_parts_t){ .added = added });
}

/* Pushes each special token, and the text between them in pieces of `most`. */
static void
run_specials(const machine_t *m, const tr_tokenizer_t *t, const char *text,
             size_t most, shown_t *s)
{
    void *memory = test_calloc(1, tr_dialect_size(m->d));
    tr_dialect_state_t *state = tr_dialect_init(m->d, &m->start, memory);

    s->len = s->content_len = 0;
    s->text[0] = '\0';
    while (*text != '\0') {
        size_t n = 0;

        if ((unsigned char) *text < SPECIALS) {
            tr_dialect_push(state, tr_tokenizer_find(t, special[(int) *text++]),
                            NULL, 0, &out);
        } else {
            while (n < most && (unsigned char) text[n] >= SPECIALS) {
                n++;
            }
            tr_dialect_push(state, -1, text, (uint32_t) n, &out);
            text += n;
        }
        take(s);
    }
    tr_dialect_finish(state, &out);
    take(s);
    test_free(memory);
}

static void
check_specials(const char *form, const char *text, const char *items)
{
    tr_tokenizer_t *t = make_specials();
    tr_dialect_t *d;
    tr_error_t err;

    assert_int_equal(tr_dialect_make(form_of(form), NULL, t, &d, &err), TR_OK);
    assert_true(d->n_tokens >= 2);
    for (size_t most = 1; most < 64; most++) {
        machine_t m = { d, { .tools = &tools } };

        run_specials(&m, t, text, most, &whole);
        assert_string_equal(whole.text, items);
    }
    tr_dialect_free(d);
    tr_tokenizer_free(t);
}

/* It is no text: it leaves nothing behind in a value, held or not. */
static void
test_special_token_in_a_value(void **state)
{
    static const struct {
        const char *form, *text, *items;
    } values[] = {
        { "qwen_xml",
          "\1<function=get><parameter=n>\n4\0012\n</parameter>"
          "<parameter=s>no\1 \"n\2\"</parameter><parameter=o>\2{\"a\": "
          "\1[1]}</parameter><parameter=city>\1P\2</parameter></function>\2",
          "C:get {\"n\": 42, \"s\": \"no \\\"n\\\"\", \"o\": {\"a\": "
          "[1]}, \"city\": \"P\"}" },
        { "qwen_xml", "\1<function=get><parameter=n>4\2", "C:get {\"n\": 4" },
        /* the answer ends behind what may close the value */
        { "glm", "\1get<arg_key>n</arg_key>\0033\4", "C:get {\"n\": 3" },
        { "glm", "\1get<arg_key>city</arg_key>\3P\4",
          "C:get {\"city\": \"P\"" },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        check_specials(values[i].form, values[i].text, values[i].items);
    }
}

/* So also where the value is too long to be held. */
static void
test_special_token_in_a_long_value(void **state)
{
    static const struct {
        const char *param, *open, *close, *shown_open, *shown_close;
    } values[] = {
        { "o", "{\"a\": \"", "\"}", "{\"a\": \"", "\"}" },
        { "l", "[\"", "\"]", "[\"", "\"]" },
        { "s", "{", "}", "\"{", "}\"" },
    };
    static char text[8192], items[8192], filled[TR_DIALECT_HELD];

    (void) state;
    memset(filled, 'x', sizeof(filled) - 1);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        snprintf(text, sizeof(text),
                 "\1<function=get><parameter=%s>%s\1%s\2y\1%s</parameter>"
                 "</function>\2",
                 values[i].param, values[i].open, filled, values[i].close);
        snprintf(items, sizeof(items), "C:get {\"%s\": %s%sy%s}",
                 values[i].param, values[i].shown_open, filled,
                 values[i].shown_close);
        check_specials("qwen_xml", text, items);
    }
}

/* ---- noise --------------------------------------------------------------- */

/* Pieces of all dialects, put together at random. */
static size_t
noise(char *text, size_t cap)
{
    static const char *const bits[] = {
        "{\"name\": \"get\"",
        ", \"arguments\": ",
        "{\"city\": \"P\"}",
        "}",
        "{",
        "[",
        "]",
        "\"",
        "\\",
        "\n",
        " ",
        "text ",
        "\xc3\xa9",
        "<",
        "/",
        "<function=get>",
        "</function>",
        "<parameter=n>",
        "</parameter>",
        "3",
        "<think>",
        "</think>",
        "get",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[ARGS]",
        ";",
        "null",
        "\x01\x02",
        ",",
    };
    size_t len = 0, n = pick(40);

    while (n-- > 0) {
        const form_t *form = &tr_dialect_forms[pick(tr_dialect_n_forms)];
        const char *bit = bits[pick(sizeof(bits) / sizeof(bits[0]))];

        for (int i = (int) pick(6); i >= 0 && form->marks[i] != NULL; i--) {
            if (pick(8) == 0) {
                bit = form->marks[i];
            }
        }
        if (len + strlen(bit) > cap) {
            break;
        }
        memcpy(text + len, bit, strlen(bit));
        len += strlen(bit);
    }
    return len;
}

static void
test_noise(void **state)
{
    char text[4096];

    (void) state;
    for (uint32_t i = 0; i < tr_dialect_n_forms; i++) {
        tr_dialect_t *d = make(tr_dialect_forms[i].name, "<think>", "</think>");

        for (int k = 0; k < 400; k++) {
            machine_t m = { d, { .tools = &tools, .inside = pick(2) } };
            size_t len = noise(text, sizeof(text));

            same_however_cut(&m, text, len);
            if (strstr(whole.text, "C:") == NULL
                && strstr(whole.text, "R:") == NULL && !m.start.inside
                && memmem(text, len, "think>", 6) == NULL
                && !(tr_dialect_forms[i].flags & FORM_HARMONY)) {
                assert_int_equal(whole.content_len, len);
                assert_memory_equal(whole.content, text, len);
            }
        }
        tr_dialect_free(d);
    }
}

/* A text of any length that may yet become a call is held no longer than the
 * limit, and nothing of it is lost. */
static void
test_what_is_held_is_bounded(void **state)
{
    static char text[40000];
    tr_dialect_t *d = make("hermes", NULL, NULL);
    machine_t m = { d, { .tools = &tools } };
    size_t len;

    (void) state;
    len = (size_t) snprintf(text, sizeof(text),
                            "<tool_call>{\"arguments\": {\"a\": \"");
    memset(text + len, 'x', sizeof(text) - len);
    same_however_cut(&m, text, sizeof(text));
    assert_int_equal(whole.content_len, sizeof(text));
    assert_memory_equal(whole.content, text, sizeof(text));
    len = (size_t) snprintf(text, sizeof(text), "a<tool_call>");
    memset(text + len, ' ', sizeof(text) - len);
    same_however_cut(&m, text, sizeof(text));
    assert_int_equal(whole.content_len, sizeof(text));
    tr_dialect_free(d);
}

/* ---- real templates ------------------------------------------------------ */

/* The dialects of templates, by a part of their names. */
static const struct {
    const char *name, *dialect;
} real[] = {
    { "Qwen2.5-7B", "hermes" },
    { "Qwen3-0.6B", "hermes" },
    { "QwQ-32B", "hermes" },
    { "Hermes-2-Pro", "hermes" },
    { "granite-4.0", "hermes" },
    { "exaone", "hermes" },
    { "Qwen3-Coder", "qwen_xml" },
    { "Qwen3.5-4B", "qwen_xml" },
    { "Seed-OSS", "qwen_xml" },
    { "Nemotron-3-Nano", "qwen_xml" },
    { "Llama-3.1-8B", "llama3" },
    { "Llama-3.2-3B", "llama3" },
    { "Mistral-Nemo", "mistral" },
    { "Mistral-Small-3.2", "mistral" },
    { "Devstral", "mistral" },
    { "Ministral-3-14B", "mistral" },
    { "DeepSeek-R1.jinja", "deepseek" },
    { "DeepSeek-V3.1", "deepseek" },
    { "DeepSeek-V3.2", "dsml" },
    { "gpt-oss-20b", "harmony" },
    { "GLM-4.6", "glm" },
    { "GLM-5.1", "glm" },
    { "Kimi-K2.jinja", "kimi" },
    { "MiniMax-M2", "minimax" },
    { "command-a-03", "command" },
    { "Nemotron-Nano-v2", "nemotron" },
};

typedef struct {
    uint32_t found, wanted;
} real_count_t;

static void
real_dialect(const char *file, tr_dialect_t *d, void *arg)
{
    real_count_t *count = arg;
    const char *name = tr_dialect_name(d);

    count->found += name != NULL;
    if (getenv("TR_TEST_VERBOSE") != NULL) {
        printf("%-60s %-10s %s\n", file, name != NULL ? name : "-",
               d->plain_close);
    }
    for (size_t i = 0; i < sizeof(real) / sizeof(real[0]); i++) {
        if (strstr(file, real[i].name) != NULL) {
            count->wanted++;
            if (name == NULL || strcmp(name, real[i].dialect) != 0) {
                fail_msg("%s: %s, not %s", file, name != NULL ? name : "none",
                         real[i].dialect);
            }
        }
    }
}

static void
test_real_templates(void **state)
{
    real_count_t count = { 0 };
    uint32_t all = corpus_dialects(real_dialect, &count);

    (void) state;
    printf("%u of %u templates have calls that are read back\n", count.found,
           all);
    assert_true(count.wanted >= 20);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_models_write),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_tools_of_the_request),
        cmocka_unit_test(test_special_token_in_a_value),
        cmocka_unit_test(test_special_token_in_a_long_value),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_what_is_held_is_bounded),
        cmocka_unit_test(test_real_templates),
    };

    return cmocka_run_group_tests_name("dialect", tests, make_tools,
                                       free_tools);
}
