/*
 * Which dialect a template speaks (dialect.h).
 *
 * Histories with one call and with two are rendered, and the assistant's turn is
 * read back by each form in turn; the first one that reads exactly these calls
 * is the template's.  So nobody has to say what a model is, and a form that does
 * not fit a template is never used with it.
 */
#include "dialect_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#define NAME_1 TR_PROBE_NAME_1
#define NAME_2 TR_PROBE_NAME_2

/* Ids of the history: nine characters for those that insist, then Kimi's. */
static const char *const ids[2][2] = { { TR_PROBE_ID "1", TR_PROBE_ID "2" },
                                       { "functions." NAME_1 ":0",
                                         "functions." NAME_2 ":1" } };

static json_t *
arguments(int which)
{
    return which == 0 ? json_pack("{s:s, s:i}", TR_PROBE_KEY, TR_PROBE_VALUE,
                                  TR_PROBE_KEY_2, TR_PROBE_VALUE_2)
                      : json_pack("{s:s}", "city", "two\nlines");
}

static json_t *
call(int which, const char *id)
{
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function",
                     "function", "name", which == 0 ? NAME_1 : NAME_2,
                     "arguments", arguments(which));
}

static json_t *
tool(const char *name)
{
    return json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}, s:{s:s, "
                     "s:s}}, s:[s]}}}",
                     "type", "function", "function", "name", name,
                     "description", "A tool.", "parameters", "type", "object",
                     "properties", "city", "type", "string", "description",
                     "A city.", "n", "type", "integer", "description",
                     "A number.", "required", "city");
}

static json_t *
tools(void)
{
    return json_pack("[o, o]", tool(NAME_1), tool(NAME_2));
}

/* n calls, with their results or without. */
static json_t *
history(int n, const char *const *id, bool results)
{
    json_t *calls = json_array(), *messages;

    for (int i = 0; i < n; i++) {
        json_array_append_new(calls, call(i, id[i]));
    }
    messages = json_pack("[{s:s, s:s}, {s:s, s:s, s:o}]", "role", "user",
                         "content", "Qprobe", "role", "assistant", "content",
                         "", "tool_calls", calls);
    for (int i = 0; results && i < n; i++) {
        json_array_append_new(messages,
                              json_pack("{s:s, s:s, s:s, s:s}", "role", "tool",
                                        "tool_call_id", id[i], "name",
                                        i == 0 ? NAME_1 : NAME_2, "content",
                                        "Rprobe"));
    }
    return messages;
}

typedef struct {
    char *text;
    uint8_t *tags;
    size_t len;
} text_t;

/* first: so many of the messages, 0: all. */
static bool
render(const tr_chat_template_t *c, const json_t *messages,
       const json_t *tool_list, uint32_t first, bool generation, text_t *out)
{
    tr_chat_input_t in = { .messages = messages,
                           .tools = tool_list,
                           .n = first,
                           .no_generation_prompt = !generation,
                           .now = 1 };
    tr_jinja_render_t *r = NULL;
    tr_jinja_text_t text;
    tr_error_t err;
    bool ok = tr_chat_template_render(c, &in, &r, &text, &err) == TR_OK;

    memset(out, 0, sizeof(*out));
    if (ok) {
        out->text = malloc(text.len + 1);
        out->tags = malloc(text.len + 1);
        ok = out->text != NULL && out->tags != NULL;
    }
    if (ok) {
        memcpy(out->text, text.text, text.len);
        memcpy(out->tags, text.tags, text.len);
        out->text[text.len] = '\0';
        out->len = text.len;
    }
    tr_jinja_render_free(r);
    return ok;
}

static void
text_free(text_t *t)
{
    free(t->text);
    free(t->tags);
}

/* The assistant's turn of a history, from where a prompt ends; the rest is
 * behind it.  Where the prompt for an answer is no beginning of it (it opens
 * reasoning that the history does not have), from the end of the messages. */
static bool
turn(const tr_chat_template_t *c, int n, const char *const *id, text_t *out)
{
    json_t *messages = NULL, *list = tools();
    text_t prompt = { 0 }, before = { 0 };
    bool ok = false;

    for (int results = 0; results < 2 && !ok; results++) {
        json_decref(messages);
        messages = history(n, id, results != 0);
        ok = render(c, messages, list, 0, false, out)
             && strstr(out->text, "Zprobe") != NULL;
        if (!ok) {
            text_free(out);
            memset(out, 0, sizeof(*out));
        }
    }
    if (ok && render(c, messages, list, 1, true, &prompt)) {
        const text_t *from = &prompt;

        if (prompt.len > out->len
            || memcmp(prompt.text, out->text, prompt.len) != 0) {
            ok = render(c, messages, list, 1, false, &before)
                 && before.len <= out->len
                 && memcmp(before.text, out->text, before.len) == 0;
            from = &before;
        }
        if (ok) {
            out->len -= from->len;
            memmove(out->text, out->text + from->len, out->len + 1);
            memmove(out->tags, out->tags + from->len, out->len);
        }
    } else {
        ok = false;
    }
    json_decref(messages);
    json_decref(list);
    text_free(&prompt);
    text_free(&before);
    if (!ok) {
        text_free(out);
    }
    return ok;
}

/* ---- reading back ------------------------------------------------------- */

typedef struct {
    uint32_t n; /* calls */
    char names[3][TR_DIALECT_NAME_MAX + 1];
    char *arguments[3];
    size_t len[3];
} read_t;

static void
take(read_t *r, const tr_dialect_out_t *out)
{
    for (uint32_t i = 0; i < out->n; i++) {
        const tr_dialect_piece_t *p = &out->pieces[i];
        char *grown;

        if (p->kind != TR_DIALECT_CALL) {
            continue;
        }
        if (p->begins && r->n++ < 3) {
            memcpy(r->names[r->n - 1], out->bytes + p->name, p->name_len);
        }
        if (r->n == 0 || r->n > 3) {
            continue;
        }
        grown = realloc(r->arguments[r->n - 1],
                        r->len[r->n - 1] + p->text_len + 1);
        if (grown != NULL) {
            memcpy(grown + r->len[r->n - 1], out->bytes + p->text, p->text_len);
            r->len[r->n - 1] += p->text_len;
            r->arguments[r->n - 1] = grown;
        }
    }
}

static bool
same(const read_t *r, uint32_t n)
{
    if (r->n != n) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        json_t *want = arguments((int) i), *got;
        bool equal;

        got = json_loadb(r->arguments[i] != NULL ? r->arguments[i] : "",
                         r->len[i], 0, NULL);
        equal = json_equal(want, got)
                && strcmp(r->names[i], i == 0 ? NAME_1 : NAME_2) == 0;
        json_decref(want);
        json_decref(got);
        if (!equal) {
            return false;
        }
    }
    return true;
}

/* The turn into a machine: token by token, or as it is without a tokenizer. */
static bool
feed(tr_dialect_state_t *s, const tr_tokenizer_t *t, const text_t *text,
     tr_dialect_out_t *out, read_t *r)
{
    tr_tokenizer_scratch_t *scratch = NULL;
    tr_ids_t tokens = { 0 };
    tr_detok_t detok;
    tr_error_t err;
    char piece[2048];
    bool ok = true;

    if (t == NULL) {
        for (size_t at = 0; at < text->len; at++) {
            tr_dialect_push(s, -1, text->text + at, 1, out);
            take(r, out);
        }
    } else {
        scratch = tr_tokenizer_scratch_new(t);
        ok = scratch != NULL
             && tr_tokenizer_max_token_bytes(t) * 3 + 16 <= sizeof(piece)
             && tr_tokenizer_encode_tagged(t, scratch, text->text, text->tags,
                                           text->len, &tokens, &err)
                    == TR_OK;
        tr_detok_init(&detok, true);
        tr_detok_continue(&detok);
        for (uint32_t i = 0; ok && i < tokens.len; i++) {
            uint32_t n = tr_detok_push(&detok, t, tokens.data[i], piece,
                                       sizeof(piece));

            tr_dialect_push(s, tokens.data[i], piece, n, out);
            take(r, out);
        }
        tr_tokenizer_scratch_free(scratch);
        free(tokens.data);
    }
    tr_dialect_finish(s, out);
    take(r, out);
    return ok;
}

static void *
zeroed(void *arg, size_t n)
{
    (void) arg;
    return calloc(1, n);
}

/* Does d read back the n calls of text? */
static bool
reads_back(const tr_dialect_t *d, const tr_tokenizer_t *t, const text_t *text,
           const tr_dialect_tools_t *list, uint32_t n, tr_dialect_out_t *out)
{
    tr_dialect_start_t start = { .tools = list };
    void *memory = calloc(1, tr_dialect_size(d));
    read_t r = { 0 };
    bool ok = memory != NULL
              && feed(tr_dialect_init(d, &start, memory), t, text, out, &r)
              && same(&r, n);

    for (int i = 0; i < 3; i++) {
        free(r.arguments[i]);
    }
    free(memory);
    return ok;
}

static void
free_tools(tr_dialect_tools_t *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        for (uint32_t k = 0; k < list->tools[i].n_params; k++) {
            free((void *) list->tools[i].params[k].name);
        }
        free((void *) list->tools[i].params);
        free((void *) list->tools[i].name);
    }
    free((void *) list->tools);
}

/* A template that refuses two calls at a time speaks a form that reads one. */
static bool
proves(const form_t *form, const reasoning_t *reasoning,
       const tr_chat_template_t *c, const tr_tokenizer_t *t,
       const tr_dialect_tools_t *list, tr_dialect_out_t *out)
{
    int kind = form->flags & FORM_OWN_IDS ? 1 : 0;
    tr_dialect_t *d = NULL;
    tr_error_t err;
    text_t text;
    bool ok = tr_dialect_make(form, reasoning, t, &d, &err) == TR_OK
              && turn(c, 1, ids[kind], &text);

    if (ok) {
        ok = reads_back(d, t, &text, list, 1, out);
        text_free(&text);
    }
    if (ok && turn(c, 2, ids[kind], &text)) {
        /* some templates write the first one alone */
        ok = strstr(text.text, "two") == NULL
             || reads_back(d, t, &text, list, 2, out);
        text_free(&text);
    }
    tr_dialect_free(d);
    return ok;
}

/* How the form that was found is written. */
static void
read_layout(tr_dialect_t *d, const tr_chat_template_t *c,
            const tr_tokenizer_t *t)
{
    int kind = d->form->flags & FORM_OWN_IDS ? 1 : 0;
    text_t one, two;

    if (!turn(c, 1, ids[kind], &one)) {
        return;
    }
    if (turn(c, 2, ids[kind], &two)) {
        tr_dialect_read_layout(d, t, one.text, two.text);
        text_free(&two);
    } else {
        tr_dialect_read_layout(d, t, one.text, NULL);
    }
    text_free(&one);
}

static const form_t *
find_form(const char *name, const reasoning_t *reasoning,
          const tr_chat_template_t *c, const tr_tokenizer_t *t)
{
    tr_dialect_out_t *out = malloc(sizeof(*out));
    tr_dialect_tools_t list = { 0 };
    const form_t *found = NULL;
    json_t *json = tools();

    if (out != NULL
        && tr_dialect_read_tools(json, zeroed, NULL, &list) == TR_OK) {
        for (uint32_t i = 0; i < tr_dialect_n_forms && found == NULL; i++) {
            const form_t *form = &tr_dialect_forms[i];

            if ((strcmp(name, "auto") == 0 || strcmp(name, form->name) == 0)
                && proves(form, reasoning, c, t, &list, out)) {
                found = form;
            }
        }
    }
    free_tools(&list);
    json_decref(json);
    free(out);
    return found;
}

static bool
mentions(const tr_chat_template_t *c, const char *mark)
{
    return tr_jinja_mentions(c->chat, mark)
           || (c->tool_use != NULL && tr_jinja_mentions(c->tool_use, mark));
}

/* The marks of reasoning that the template writes or looks for.  by_prompt: it
 * names the opening mark alone, with which it ends prompts that ask for
 * reasoning; then both are tokens, and a model that was not asked does not
 * reason. */
static const reasoning_t *
find_reasoning(const tr_chat_template_t *c, const tr_tokenizer_t *t,
               bool *by_prompt)
{
    for (uint32_t i = 0; i < tr_dialect_n_thoughts; i++) {
        const reasoning_t *r = &tr_dialect_thoughts[i];

        if (mentions(c, r->close)) {
            return r;
        }
        if (mentions(c, r->open) && t != NULL
            && tr_tokenizer_find(t, r->open) >= 0
            && tr_tokenizer_find(t, r->close) >= 0) {
            *by_prompt = true;
            return r;
        }
    }
    return NULL;
}

static tr_status_t
check_name(const char *name, tr_error_t *err)
{
    char known[256] = "";
    size_t n = 0;

    if (strcmp(name, "auto") == 0 || strcmp(name, "none") == 0) {
        return TR_OK;
    }
    for (uint32_t i = 0; i < tr_dialect_n_forms; i++) {
        if (strcmp(name, tr_dialect_forms[i].name) == 0) {
            return TR_OK;
        }
        n += (size_t) snprintf(known + n, sizeof(known) - n, ", %s",
                               tr_dialect_forms[i].name);
    }
    return tr_error_set(err, TR_ERR_INVALID, "tool_dialect",
                        "tool_dialect \"%s\" is not known, expected auto, "
                        "none%s",
                        name, known);
}

tr_status_t
tr_dialect_open(const char *name, const tr_chat_template_t *c,
                const tr_tokenizer_t *t, tr_dialect_t **out, tr_error_t *err)
{
    const reasoning_t *reasoning = NULL;
    const form_t *form = NULL;
    bool by_prompt = false;
    tr_status_t rc = check_name(name, err);

    *out = NULL;
    if (rc == TR_OK && c->chat != NULL) {
        reasoning = find_reasoning(c, t, &by_prompt);
        if (strcmp(name, "none") != 0 && c->reads_tools) {
            form = find_form(name, reasoning, c, t);
        }
        if (form == NULL && strcmp(name, "auto") != 0
            && strcmp(name, "none") != 0) {
            rc = tr_error_set(err, TR_ERR_UNSUPPORTED, "tool_dialect",
                              "tool_dialect %s cannot read the tool calls "
                              "that this model's chat template writes",
                              name);
        }
    }
    if (rc == TR_OK) {
        rc = tr_dialect_make(form, reasoning, t, out, err);
    }
    if (rc == TR_OK) {
        (*out)->by_prompt = by_prompt;
    }
    if (rc == TR_OK && form != NULL) {
        read_layout(*out, c, t);
    }
    return rc;
}
