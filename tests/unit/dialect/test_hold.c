/*
 * Answers that are held to a dialect: for each real template (template_corpus.h)
 * random walks over the masks of what an answer may be are read by the machine of
 * its dialect, and each call is one of the tools', with arguments that keep the
 * tool's schema.
 */
#include "../fixtures/grammar_fixture.h"
#include "../fixtures/template_corpus.h"

#include "engine/dialect/dialect_internal.h"

#define STEPS 120
#define TEXT 65536

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":true,"
    "\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\",\"minimum\":3,"
    "\"maximum\":40},\"kind\":{\"enum\":[\"a\",\"long one\"]},"
    "\"at\":{\"$ref\":\"#/$defs/point\"},\"none\":{\"type\":\"null\"},"
    "\"on\":{\"type\":\"boolean\"}},\"required\":[\"city\",\"n\"],"
    "\"$defs\":{\"point\":{\"type\":\"object\",\"properties\":{\"x\":{"
    "\"type\":\"integer\"}},\"required\":[\"x\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"noop\",\"strict\":true,"
    "\"parameters\":{\"type\":\"object\",\"properties\":{}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"opt\",\"strict\":true,"
    "\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"unit\":{\"anyOf\":[{\"$ref\":\"#/$defs/unit\"},{\"type\":\"null\"}]},"
    "\"note\":{\"type\":[\"string\",\"null\"]},"
    "\"pick\":{\"type\":[\"string\",\"null\"],\"enum\":[\"a\",\"null\","
    "\"x < y\",null]},\"both\":{\"enum\":[\"one\",\"2\",2,true,null]},"
    "\"any\":{\"description\":\"what you like\"}},\"required\":[\"unit\","
    "\"note\",\"pick\",\"both\"],\"$defs\":{\"unit\":{\"type\":\"string\","
    "\"enum\":[\"C\",\"F\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"mark\",\"strict\":true,"
    "\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"text\":{\"type\":\"string\"},"
    "\"list\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"some\":{\"type\":\"object\",\"properties\":{\"</p\":{\"enum\":["
    "\"</parameter>\",\"b\"]},\"c\":{\"type\":\"string\",\"pattern\":"
    "\"^[a-z<>/_]{3}.*$\",\"maxLength\":60}},\"additionalProperties\":{"
    "\"type\":\"string\",\"maxLength\":60}}},\"required\":[\"list\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"odd\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{\"q\":{\"type\":\"nonsense\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"open\"}}]";

#define STRICT 4 /* the first so many of them */
#define ALL 6

typedef struct {
    grammar_fixture_t *b;
    json_t *tools;
    tr_dialect_tools_t list;
    tr_grammar_t *schemas[ALL]; /* NULL: any object */
    tr_dialect_out_t out;
    char text[TEXT], arguments[TEXT];
    size_t len, n_arguments;
    int tool;   /* of the call that is read, -1: none */
    bool cut;   /* what is left of an answer that did not end */
    bool loose; /* calls may have any arguments */
    uint32_t calls, content;
    uint32_t walks, ended, bars, marks; /* of all templates: looked at */
} hold_fixture_t;

static void *
zeroed(void *arg, size_t n)
{
    (void) arg;
    return calloc(1, n);
}

static int
open_fixture(void **state)
{
    hold_fixture_t *t = calloc(1, sizeof(*t));
    void *grammars;

    fixture_open(&grammars);
    t->b = grammars;
    t->tools = json_loads(tools_json, 0, NULL);
    assert_non_null(t->tools);
    assert_int_equal(tr_dialect_read_tools(t->tools, zeroed, NULL, &t->list),
                     TR_OK);
    for (size_t i = 0; i < STRICT; i++) {
        char *text = json_dumps(
            json_object_get(json_object_get(json_array_get(t->tools, i),
                                            "function"),
                            "parameters"),
            0);
        tr_grammar_spec_t spec = { .kind = TR_GRAMMAR_SCHEMA,
                                   .flags = TR_GRAMMAR_STRICT,
                                   .text = text,
                                   .len = strlen(text),
                                   .param = "tools" };
        tr_error_t err;

        assert_int_equal(tr_grammar_compile(t->b->vocabulary, &spec,
                                            &t->schemas[i], &err),
                         TR_OK);
        free(text);
    }
    *state = t;
    return 0;
}

static int
close_fixture(void **state)
{
    hold_fixture_t *t = *state;
    void *grammars = t->b;

    for (uint32_t i = 0; i < t->list.n; i++) {
        for (uint32_t k = 0; k < t->list.tools[i].n_params; k++) {
            free((void *) t->list.tools[i].params[k].name);
        }
        free((void *) t->list.tools[i].params);
        free((void *) t->list.tools[i].name);
    }
    free((void *) t->list.tools);
    for (size_t i = 0; i < STRICT; i++) {
        tr_grammar_unref(t->schemas[i]);
    }
    json_decref(t->tools);
    fixture_close(&grammars);
    free(t);
    return 0;
}

/* ---- reading what was written -------------------------------------------- */

static void
end_call(hold_fixture_t *t, bool whole)
{
    json_t *json;

    if (t->tool < 0) {
        return;
    }
    if (whole && !t->loose) {
        json = json_loadb(t->arguments, t->n_arguments, JSON_ALLOW_NUL, NULL);
        if (!json_is_object(json)
            || (t->schemas[t->tool] != NULL
                && !accepts(t->b, t->schemas[t->tool], t->arguments))) {
            fail_msg("arguments of %s: %s\nof: %.*s",
                     t->list.tools[t->tool].name, t->arguments, (int) t->len,
                     t->text);
        }
        json_decref(json);
    }
    t->calls++;
    t->tool = -1;
}

static void
take(hold_fixture_t *t)
{
    for (uint32_t i = 0; i < t->out.n; i++) {
        const tr_dialect_piece_t *p = &t->out.pieces[i];

        if (p->begins) {
            end_call(t, !t->cut);
        }
        if (p->kind == TR_DIALECT_TEXT) {
            t->content += p->text_len;
        }
        if (p->kind != TR_DIALECT_CALL) {
            continue;
        }
        if (p->begins) {
            for (uint32_t k = 0; k < t->list.n; k++) {
                if (t->list.tools[k].len == p->name_len
                    && memcmp(t->list.tools[k].name, t->out.bytes + p->name,
                              p->name_len)
                           == 0) {
                    t->tool = (int) k;
                }
            }
            if (t->tool < 0) {
                fail_msg("a call of no tool: %.*s", (int) t->len, t->text);
            }
            t->n_arguments = 0;
        }
        memcpy(t->arguments + t->n_arguments, t->out.bytes + p->text,
               p->text_len);
        t->n_arguments += p->text_len;
        t->arguments[t->n_arguments] = '\0';
    }
}

/* The text through the machine.  whole: the answer came to its end. */
static void
read_text(hold_fixture_t *t, const tr_dialect_t *d,
          const tr_dialect_start_t *start, bool whole)
{
    void *memory = calloc(1, tr_dialect_size(d));
    tr_dialect_state_t *s = tr_dialect_init(d, start, memory);

    t->tool = -1;
    t->cut = false;
    t->calls = t->content = 0;
    for (size_t at = 0; at < t->len;) {
        uint32_t n = 1;

        while (at + n < t->len && (t->text[at + n] & 0xc0) == 0x80) {
            n++;
        }
        tr_dialect_push(s, -1, t->text + at, n, &t->out);
        take(t);
        at += n;
    }
    t->cut = !whole && !tr_dialect_over(s);
    tr_dialect_finish(s, &t->out);
    take(t);
    end_call(t, !t->cut);
    free(memory);
}

/* ---- walks ---------------------------------------------------------------- */

/* Goes on from the end of t->text; true: to an end. */
static bool
walk(hold_fixture_t *t, tr_grammar_t *g, unsigned *seed)
{
    grammar_fixture_t *b = t->b;
    tr_matcher_t m;
    bool ended = false;

    assert_int_equal(
        tr_matcher_init(&m, g, tr_frame_pool_init(b->memory, POOL_MATCHERS)),
        TR_OK);
    if (tr_matcher_bytes(&m, b->scratch, t->text, t->len) != TR_OK) {
        fail_msg("refused: %.*s", (int) t->len, t->text);
    }
    for (uint32_t i = 0; i < STEPS && !ended; i++) {
        int32_t ids[64], id;
        uint32_t n = 0, len;
        const char *bytes;

        if (m.can_end && rand_r(seed) % 4 != 0) {
            ended = true;
            break;
        }
        if (tr_matcher_mask(&m, b->scratch, NULL, 0, b->mask) != TR_OK) {
            ended = m.can_end;
            assert_true(m.can_end);
            break;
        }
        /* the closing marks are a few of very many */
        for (int tries = 0; tries < 40000 && n < 64; tries++) {
            id = rand_r(seed) % (int) b->vocab;
            if (mask_has(b->mask, id)) {
                ids[n++] = id;
            }
        }
        for (id = 0; n == 0 && id < (int) b->vocab; id++) {
            if (mask_has(b->mask, id)) {
                ids[n++] = id;
            }
        }
        if (n == 0) {
            fail_msg("an empty mask behind: %.*s", (int) t->len, t->text);
        }
        id = ids[rand_r(seed) % n];
        for (uint32_t k = 0; k < n && rand_r(seed) % 2; k++) {
            bytes = fixture_bytes(b, ids[k], &len);
            if (memchr(bytes, '"', len) || memchr(bytes, '<', len)
                || memchr(bytes, '}', len)) {
                id = ids[k];
                break;
            }
        }
        bytes = fixture_bytes(b, id, &len);
        if (t->len + len >= TEXT) {
            break;
        }
        memcpy(t->text + t->len, bytes, len);
        t->len += len;
        if (tr_matcher_token(&m, b->scratch, id) != TR_OK) {
            fail_msg("a token of the mask is refused: %.*s", (int) t->len,
                     t->text);
        }
    }
    tr_matcher_drop(&m);
    t->walks++;
    t->ended += ended;
    return ended;
}

static tr_grammar_t *
held(hold_fixture_t *t, const tr_dialect_t *d, const tr_dialect_hold_t *how,
     const char *name)
{
    tr_grammar_spec_t spec = { .kind = TR_GRAMMAR_TREE, .param = "tools" };
    tr_grammar_t *g = NULL;
    tr_error_t err = { 0 };
    char *tree;

    if (tr_dialect_hold(d, t->tools, how, &tree, &spec.len, &err) != TR_OK) {
        fail_msg("%s: %s", name, err.text);
    }
    if (how->mode == TR_HOLD_FORMAT) {
        spec = (tr_grammar_spec_t){ .kind = TR_GRAMMAR_CHOICE,
                                    .text = "[\"Yes.\",\"No.\"]",
                                    .len = strlen("[\"Yes.\",\"No.\"]"),
                                    .param = "guided_choice",
                                    .around = tree };
    } else {
        spec.text = tree;
    }
    if (tr_grammar_compile(t->b->vocabulary, &spec, &g, &err) != TR_OK) {
        fail_msg("%s: %s: %s", name, err.text, tree);
    }
    free(tree);
    return g;
}

static void
check_required(hold_fixture_t *t, const tr_dialect_t *d, const char *name,
               bool single, bool inside, const char *only)
{
    tr_dialect_hold_t how = { .mode = TR_HOLD_REQUIRED,
                              .only = only,
                              .inside = inside,
                              .single = single };
    tr_dialect_start_t start = { .tools = &t->list,
                                 .inside = inside,
                                 .single = single };
    tr_grammar_t *g = held(t, d, &how, name);

    for (unsigned seed = 1; seed < 4; seed++) {
        unsigned state = seed;
        bool ended;

        t->len = 0;
        ended = walk(t, g, &state);
        read_text(t, d, &start, ended);
        if (ended && (t->calls == 0 || t->content != 0)) {
            fail_msg("%s: %u calls and %u bytes of content: %.*s", name,
                     t->calls, t->content, (int) t->len, t->text);
        }
        if (single && t->calls > 1) {
            fail_msg("%s: %u calls", name, t->calls);
        }
    }
    tr_grammar_unref(g);
}

/* Content goes as it likes; what follows a mark is a call of the tools'. */
static void
check_strict(hold_fixture_t *t, const tr_dialect_t *d, const char *name)
{
    tr_dialect_hold_t how = { .mode = TR_HOLD_STRICT };
    tr_dialect_start_t start = { .tools = &t->list };
    tr_grammar_t *g = held(t, d, &how, name);
    json_t *head = json_loads(d->layout->head,
                              JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, NULL);

    for (unsigned seed = 1; seed < 4; seed++) {
        unsigned state = seed;
        bool ended;

        t->len = (size_t) snprintf(t->text, TEXT, "%s%s",
                                   d->layout->starts ? "" : "It <is> so.\n",
                                   head != NULL ? json_string_value(head) : "");
        ended = walk(t, g, &state);
        read_text(t, d, &start, ended);
        assert_true(head == NULL || t->calls >= ended);
    }
    json_decref(head);
    tr_grammar_unref(g);
}

/* Content is what another field says, or there are calls instead. */
static void
check_format(hold_fixture_t *t, const tr_dialect_t *d, const char *name)
{
    tr_dialect_hold_t how = { .mode = TR_HOLD_FORMAT };
    tr_dialect_start_t start = { .tools = &t->list };
    tr_grammar_t *g = held(t, d, &how, name);
    const char *before = d->layout != NULL ? "" : "<|channel|>final<|message|>";
    char text[64];

    snprintf(text, sizeof(text), "%sYes.", before);
    assert_true(accepts(t->b, g, text));
    snprintf(text, sizeof(text), "%sMaybe.", before);
    assert_false(accepts(t->b, g, text));
    for (unsigned seed = 1; seed < 4; seed++) {
        unsigned state = seed;
        bool ended;

        t->len = 0;
        ended = walk(t, g, &state);
        read_text(t, d, &start, ended);
        if (ended && t->content != (t->calls > 0 ? 0 : strlen("Yes."))
            && t->content != (t->calls > 0 ? 0 : strlen("No."))) {
            fail_msg("%s: %u calls and %u bytes of content: %.*s", name,
                     t->calls, t->content, (int) t->len, t->text);
        }
    }
    tr_grammar_unref(g);
}

static void
check_none(hold_fixture_t *t, const tr_dialect_t *d, const char *name)
{
    tr_dialect_hold_t how = { .mode = TR_HOLD_NONE };
    tr_grammar_t *g = held(t, d, &how, name);
    json_t *bars;
    char list[1024];

    snprintf(list, sizeof(list), "[%s]",
             d->layout != NULL ? d->layout->bars : "");
    bars = json_loads(list, 0, NULL);
    assert_non_null(bars);
    t->bars += (uint32_t) json_array_size(bars);
    assert_true(accepts(t->b, g,
                        d->layout != NULL
                            ? "Hello <there> {\"a\": 1}"
                            : "<|channel|>final<|message|>Hello"));
    for (size_t i = 0; i < json_array_size(bars); i++) {
        char text[256];

        snprintf(text, sizeof(text), "Hello%s",
                 json_string_value(json_array_get(bars, i)));
        assert_false(accepts(t->b, g, text));
    }
    json_decref(bars);
    tr_grammar_unref(g);
}

/* ---- marks in strings of JSON ------------------------------------------------ */

/* Texts of a list of nodes. */
static void
add_nodes(char *to, const char *nodes)
{
    char list[1024];
    json_t *all, *one;
    size_t i;

    snprintf(list, sizeof(list), "[%s]", nodes);
    all = json_loads(list, 0, NULL);
    assert_non_null(all);
    json_array_foreach (all, i, one) {
        assert_true(json_is_string(one)); /* no tokenizer, no special tokens */
        strcat(to, json_string_value(one));
    }
    json_decref(all);
}

/* A call of "mark" with this in its text, where it has one, and in the string of
 * its list, as JSON has it. */
static void
write_marked(hold_fixture_t *t, const layout_t *l, const char *in_text,
             const char *in_list)
{
    t->text[0] = '\0';
    add_nodes(t->text, l->head);
    strcat(t->text, "mark");
    add_nodes(t->text, l->after);
    if (in_text != NULL) {
        add_nodes(t->text, l->open);
        strcat(t->text, "text");
        add_nodes(t->text, l->is_string);
        sprintf(t->text + strlen(t->text), "x%sy", in_text);
        add_nodes(t->text, l->close);
    }
    add_nodes(t->text, l->open);
    strcat(t->text, "list");
    add_nodes(t->text, l->is_other);
    sprintf(t->text + strlen(t->text), "[\"x%sy\"]", in_list);
    add_nodes(t->text, l->close);
    add_nodes(t->text, l->tail);
    t->len = strlen(t->text);
}

/* Is what was written read as one call with these arguments? */
static bool
reads_marked(hold_fixture_t *t, const tr_dialect_t *d, const char *in_text,
             const char *in_list)
{
    tr_dialect_start_t start = { .tools = &t->list };
    json_t *got, *want = json_object();
    char text[256];
    bool same;

    if (in_text != NULL) {
        snprintf(text, sizeof(text), "x%sy", in_text);
        json_object_set_new(want, "text", json_string(text));
    }
    snprintf(text, sizeof(text), "x%sy", in_list);
    json_object_set_new(want, "list", json_pack("[s]", text));
    t->loose = true;
    read_text(t, d, &start, true);
    t->loose = false;
    got = json_loads(t->arguments, 0, NULL);
    same = t->calls == 1 && t->content == 0 && json_equal(got, want);
    json_decref(got);
    json_decref(want);
    return same;
}

/* A pattern of the machine as a text, with this for its white space. */
static void
pattern_as_text(const char *pattern, const char *space, char *out)
{
    for (*out = '\0'; *pattern != '\0'; pattern++) {
        char c[2] = { *pattern, '\0' };

        strcat(out, *pattern == P_SPACE ? space : *pattern == P_KEEP ? "" : c);
    }
}

/* What would end a value may not be written in it; in JSON it may with each "<"
 * escaped.  A text that may have the mark is read with it. */
static void
check_mark(hold_fixture_t *t, const tr_dialect_t *d, tr_grammar_t *g,
           const char *mark, const char *name)
{
    char escaped[256] = "";

    write_marked(t, d->layout, NULL, mark);
    if (accepts(t->b, g, t->text)) {
        fail_msg("%s: JSON may have %s", name, mark);
    }
    if (reads_marked(t, d, NULL, mark)) {
        fail_msg("%s: JSON with %s is read", name, mark);
    }
    for (const char *p = mark; *p != '\0'; p++) {
        char c[2] = { *p, '\0' };

        strcat(escaped, *p == '<' ? "\\u003c" : c);
    }
    write_marked(t, d->layout, NULL, escaped);
    if (!accepts(t->b, g, t->text) || !reads_marked(t, d, NULL, mark)) {
        fail_msg("%s: no escape of %s", name, mark);
    }
    write_marked(t, d->layout, mark, "");
    if (accepts(t->b, g, t->text) && !reads_marked(t, d, mark, "")) {
        fail_msg("%s: a text may have %s", name, mark);
    }
    t->marks++;
}

static void
check_marks(hold_fixture_t *t, const tr_dialect_t *d, const char *name)
{
    static const char *const spaces[] = { "", " ", "   " };
    tr_dialect_hold_t how = { .mode = TR_HOLD_REQUIRED, .only = "mark" };
    tr_grammar_t *g = held(t, d, &how, name);

    for (int pc = 0; pc < OPS; pc++) {
        const op_t *op = &d->form->ops[pc];

        for (int i = 0; i < ALTS && op->alts[i].pattern != NULL; i++) {
            for (int k = 0; k < 3; k++) {
                char mark[128];

                pattern_as_text(op->alts[i].pattern, spaces[k], mark);
                if ((op->kind == OP_VALUE || op->kind == OP_BARE)
                    && strchr(mark, '"') == NULL) {
                    check_mark(t, d, g, mark, name);
                }
            }
        }
    }
    tr_grammar_unref(g);
}

/* Content that is JSON and has a call in one of its strings is no call. */
static void
check_call_in_json(hold_fixture_t *t, const tr_dialect_t *d, const char *name)
{
    tr_dialect_hold_t how = { .mode = TR_HOLD_FORMAT, .json = true };
    tr_dialect_start_t start = { .tools = &t->list };
    tr_grammar_spec_t spec = { .kind = TR_GRAMMAR_JSON,
                               .param = "response_format" };
    tr_grammar_t *g = NULL;
    char call[512] = "", *tree;
    tr_error_t err = { 0 };
    size_t len;

    add_nodes(call, d->layout->head);
    strcat(call, "noop");
    add_nodes(call, d->layout->after);
    add_nodes(call, d->layout->tail);
    for (char *p = call; *p != '\0'; p++) {
        *p = *p == '\n' ? ' ' : *p;
    }
    if (strchr(call, '"') != NULL) {
        return; /* a string of JSON cannot have it as it stands */
    }
    assert_int_equal(tr_dialect_hold(d, t->tools, &how, &tree, &len, &err),
                     TR_OK);
    spec.around = tree;
    if (tr_grammar_compile(t->b->vocabulary, &spec, &g, &err) != TR_OK) {
        fail_msg("%s: %s: %s", name, err.text, tree);
    }
    free(tree);
    assert_true(accepts(t->b, g, "{\"a\": \"<b>\"}"));
    t->len = (size_t) sprintf(t->text, "{\"a\": \"%s\"}", call);
    read_text(t, d, &start, true);
    if (t->calls != 1 || accepts(t->b, g, t->text)) {
        fail_msg("%s: %s: %u calls", name, t->text, t->calls);
    }
    tr_grammar_unref(g);
    t->marks++;
}

typedef struct {
    hold_fixture_t *fixture;
    uint32_t found, holds;
} held_t;

static void
hold(const char *file, tr_dialect_t *d, void *arg)
{
    held_t *held = arg;
    hold_fixture_t *t = held->fixture;
    const layout_t *l = d->layout;

    if (tr_dialect_name(d) == NULL) {
        return;
    }
    held->found++;
    if (getenv("TR_TEST_VERBOSE") != NULL) {
        printf("%s: %s\n", tr_dialect_name(d), file);
        if (l != NULL) {
            printf("  head %s\n  after %s\n  between %s\n  tail %s\n  "
                   "open %s close %s is %s\n",
                   l->head, l->after, l->between, l->tail, l->open, l->close,
                   l->is_string);
        }
    }
    if (!tr_dialect_holds(d)) {
        printf("not held: %s (%s)\n", file, tr_dialect_name(d));
        return;
    }
    held->holds++;
    check_required(t, d, file, false, false, NULL);
    check_required(t, d, file, true, tr_dialect_reasons(d), "get");
    check_required(t, d, file, true, false, "opt");
    check_required(t, d, file, true, false, "open");
    check_required(t, d, file, true, false, "mark");
    check_none(t, d, file);
    check_format(t, d, file);
    if (l != NULL && l->open != NULL) {
        check_marks(t, d, file);
        check_call_in_json(t, d, file);
    }
    if (l != NULL) {
        check_strict(t, d, file);
    }
}

static void
test_real_templates(void **state)
{
    held_t held = { .fixture = *state };
    hold_fixture_t *t = *state;

    corpus_dialects(hold, &held);
    printf("%u of %u templates can be held; %u of %u walks came to an end; %u "
           "bars, %u marks in JSON\n",
           held.holds, held.found, t->ended, t->walks, t->bars, t->marks);
    assert_true(held.found >= 40);
    /* of each enough to mean something */
    assert_true(t->ended > held.holds && t->bars > held.holds);
    assert_true(t->marks >= 3 * held.holds);
    /* one writes the arguments before the name */
    assert_int_equal(held.holds, held.found - 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_templates),
    };

    return cmocka_run_group_tests_name("hold", tests, open_fixture,
                                       close_fixture);
}
