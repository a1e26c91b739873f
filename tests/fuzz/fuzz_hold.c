/*
 * Fuzzes answers that are held to a tool (tr_dialect_hold).  The first byte of an
 * input chooses the template, the mode and whether the tool is strict; the rest
 * is the tool's parameters, a JSON schema.  Whatever it says: it is refused in
 * words, or a grammar comes of it; a walk over that grammar's masks that comes to
 * its end is a call of the tool, whose arguments are a JSON object and, if the
 * tool is strict, fit the schema as a grammar of its own reads it.
 *
 * Arguments of marked-up text are what two sides must agree on: what the grammar
 * lets a model write, and how the machine reads it.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dialect/dialect_internal.h"
#include "engine/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define STEPS 160
#define TEXT_MAX 8192
#define END 256
#define TEMPLATES 4

#define TURNS "{%- for m in messages -%}{{ m.role }}: {{ m.content }}"
#define CALLS "{%- for c in m.tool_calls %}"
#define ENDS "{% endfor %}\n{% endfor %}"

static const char *const sources[TEMPLATES] = {
    TURNS CALLS
    "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in "
    "c.function.arguments|items %}<parameter={{ k }}>\n{{ v if v is string "
    "else v|tojson }}\n</parameter>\n{% endfor "
    "%}</function>\n</tool_call>" ENDS,
    TURNS CALLS
    "<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments|items "
    "%}<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v|tojson "
    "}}</arg_value>{% endfor %}</tool_call>" ENDS,
    TURNS "{% if m.tool_calls %}<\xef\xbd\x9c"
          "DSML\xef\xbd\x9c"
          "function_calls>\n" CALLS "<\xef\xbd\x9c"
          "DSML\xef\xbd\x9cinvoke name=\"{{ c.function.name }}\">\n{% for k, v "
          "in c.function.arguments|items %}<\xef\xbd\x9c"
          "DSML\xef\xbd\x9cparameter name=\"{{ k }}\" string=\"{{ 'true' if v "
          "is string else 'false' }}\">{{ v if v is string else v|tojson "
          "}}</\xef\xbd\x9c"
          "DSML\xef\xbd\x9cparameter>\n{% endfor %}</\xef\xbd\x9c"
          "DSML\xef\xbd\x9cinvoke>\n{% endfor %}</\xef\xbd\x9c"
          "DSML\xef\xbd\x9c"
          "function_calls>{% endif %}\n{% endfor %}",
    TURNS CALLS "<tool_call>\n{{ {'name': c.function.name, 'arguments': "
                "c.function.arguments}|tojson }}\n</tool_call>" ENDS,
};

static tr_dialect_t *dialects[TEMPLATES];
static tr_vocabulary_t *vocabulary;
static tr_grammar_scratch_t *scratch;
static void *memory;
static tr_dialect_out_t out;
static char text[TEXT_MAX], arguments[4 * TEXT_MAX];
static size_t text_len, arguments_len;
static uint32_t calls;

static const char *
bytes_of(void *arg, int32_t id, uint32_t *len)
{
    static char byte[1];

    (void) arg;
    byte[0] = (char) id;
    *len = id < 256;
    return byte;
}

static void
open_dialect(int which)
{
    tr_chat_template_t c = { .end_of_turn = -1 };
    tr_error_t err = { 0 };

    c.tokens[0] = strdup("<s>");
    c.tokens[1] = strdup("</s>");
    if (tr_jinja_parse(sources[which], strlen(sources[which]), "fuzz", &c.chat,
                       &err)
            != TR_OK
        || tr_chat_template_probe(&c, NULL, &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    c.reads_tools = true;
    if (tr_dialect_open("auto", &c, NULL, &dialects[which], &err) != TR_OK
        || !tr_dialect_holds(dialects[which])) {
        fprintf(stderr, "template %d: %s\n", which, err.text);
        exit(1);
    }
    tr_chat_template_free(&c);
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void) argc;
    (void) argv;
    for (int i = 0; i < TEMPLATES; i++) {
        open_dialect(i);
    }
    vocabulary = tr_vocabulary_new(END + 1, bytes_of, NULL);
    scratch = tr_grammar_scratch_new(vocabulary);
    memory = malloc(tr_frame_pool_size(2));
    return 0;
}

/* A walk to its end, into text; false: it did not come to one. */
static bool
walk(tr_grammar_t *g, unsigned seed)
{
    const int32_t end = END;
    uint32_t mask[(END + 32) / 32];
    tr_matcher_t m;
    bool ended = false;

    text_len = 0;
    if (tr_matcher_init(&m, g, tr_frame_pool_init(memory, 2)) != TR_OK) {
        return false;
    }
    for (int i = 0; i < 4 * STEPS && text_len < TEXT_MAX; i++) {
        int32_t first = rand_r(&seed) % END, id = -1;

        if (tr_matcher_mask(&m, scratch, &end, 1, mask) != TR_OK) {
            break;
        }
        if (m.can_end && (i > STEPS || rand_r(&seed) % 2)) {
            ended = true;
            break;
        }
        for (int32_t k = i > STEPS ? -3 : 0; k < END && id < 0; k++) {
            /* at last what closes something, before all others */
            int32_t one = k < 0 ? "</\""[k + 3] : (first + k) % END;

            id = mask[one / 32] >> (one % 32) & 1 ? one : -1;
        }
        if (id < 0) {
            ended = m.can_end;
            if (!ended) {
                fprintf(stderr, "an empty mask behind: %.*s\n", (int) text_len,
                        text);
                abort();
            }
            break;
        }
        text[text_len++] = (char) id;
        assert(tr_matcher_token(&m, scratch, id) == TR_OK);
    }
    tr_matcher_drop(&m);
    return ended;
}

static void
take(void)
{
    for (uint32_t i = 0; i < out.n; i++) {
        const tr_dialect_piece_t *p = &out.pieces[i];

        assert(p->kind == TR_DIALECT_CALL);
        if (p->begins) {
            calls++;
        }
        assert(arguments_len + p->text_len < sizeof(arguments));
        memcpy(arguments + arguments_len, out.bytes + p->text, p->text_len);
        arguments_len += p->text_len;
    }
}

/* The text through the machine, a character at a time. */
static void
read_back(const tr_dialect_t *d, const tr_dialect_tools_t *tools)
{
    tr_dialect_start_t start = { .tools = tools, .single = true };
    void *state = calloc(1, tr_dialect_size(d));
    tr_dialect_state_t *s = tr_dialect_init(d, &start, state);

    arguments_len = calls = 0;
    for (size_t at = 0, n; at < text_len; at += n) {
        n = 1;
        while (at + n < text_len && (text[at + n] & 0xc0) == 0x80) {
            n++;
        }
        tr_dialect_push(s, -1, text + at, (uint32_t) n, &out);
        take();
    }
    tr_dialect_finish(s, &out);
    take();
    free(state);
}

static void
fits(tr_grammar_t *g)
{
    tr_matcher_t m;

    if (tr_matcher_init(&m, g, tr_frame_pool_init(memory, 2)) != TR_OK) {
        return;
    }
    if (tr_matcher_bytes(&m, scratch, arguments, arguments_len)
        == TR_ERR_INVALID) {
        fprintf(stderr, "arguments: %.*s\nof: %.*s\n", (int) arguments_len,
                arguments, (int) text_len, text);
        abort();
    }
    tr_matcher_drop(&m);
}

/* Blocks of tr_dialect_read_tools. */
static void *blocks[4096];
static size_t n_blocks;

static void *
block(void *arg, size_t n)
{
    (void) arg;
    return n_blocks < sizeof(blocks) / sizeof(blocks[0])
               ? (blocks[n_blocks++] = calloc(1, n))
               : NULL;
}

static void
check(const tr_dialect_t *d, const json_t *tools, tr_grammar_t *held,
      tr_grammar_t *schema, unsigned seed)
{
    tr_dialect_tools_t list = { 0 };

    if (tr_dialect_read_tools(tools, block, NULL, &list) == TR_OK
        && walk(held, seed)) {
        json_t *object;

        read_back(d, &list);
        object = json_loadb(arguments, arguments_len, JSON_ALLOW_NUL, NULL);
        if (calls != 1 || (object == NULL && schema != NULL)) {
            fprintf(stderr, "%u calls, arguments: %.*s\nof: %.*s\n", calls,
                    (int) arguments_len, arguments, (int) text_len, text);
            abort();
        }
        json_decref(object);
        if (schema != NULL) {
            fits(schema);
        }
    }
    while (n_blocks > 0) {
        free(blocks[--n_blocks]);
    }
}

static tr_grammar_t *
compile(enum tr_grammar_kind kind, const char *source, size_t len)
{
    tr_grammar_spec_t spec = { .kind = kind,
                               .flags = kind == TR_GRAMMAR_SCHEMA
                                            ? TR_GRAMMAR_STRICT
                                            : 0,
                               .text = source,
                               .len = len,
                               .param = "tools" };
    tr_error_t err = { 0 };
    tr_grammar_t *g = NULL;

    if (tr_grammar_compile(vocabulary, &spec, &g, &err) == TR_ERR_INTERNAL) {
        fprintf(stderr, "%s: %.*s\n", err.text, (int) len, source);
        abort();
    }
    return g;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_dialect_hold_t how = { .mode = TR_HOLD_REQUIRED, .single = true };
    tr_error_t err = { 0 };
    tr_grammar_t *held = NULL, *schema = NULL;
    const tr_dialect_t *d;
    json_t *tools, *parameters;
    char *tree, *plain;
    size_t len;
    bool strict;

    if (size < 2 || size > 4096) {
        return 0;
    }
    d = dialects[data[0] % TEMPLATES];
    strict = data[0] & 0x40;
    parameters = json_loadb((const char *) data + 1, size - 1, 0, NULL);
    if (!json_is_object(parameters)) {
        json_decref(parameters);
        return 0;
    }
    plain = json_dumps(parameters, JSON_COMPACT);
    tools = json_pack("[{s:s, s:{s:s, s:b, s:o}}]", "type", "function",
                      "function", "name", "f", "strict", strict, "parameters",
                      parameters);
    if (tr_dialect_hold(d, tools, &how, &tree, &len, &err) == TR_OK) {
        held = compile(TR_GRAMMAR_TREE, tree, len);
        schema = strict ? compile(TR_GRAMMAR_SCHEMA, plain, strlen(plain))
                        : NULL;
        for (unsigned seed = 0; held != NULL && seed < 3; seed++) {
            check(d, tools, held, schema, seed);
        }
        free(tree);
    } else if (err.text[0] == '\0') {
        abort();
    }
    tr_grammar_unref(held);
    tr_grammar_unref(schema);
    free(plain);
    json_decref(tools);
    return 0;
}
