/*
 * A conversation as the variables of its template, and the text as ids
 * (chat_template.h).
 *
 * Here every string gets its tag: a checked role is as good as the template's
 * own text, since templates put it into their marks; what an assistant said is
 * A; all else of a client's is U.
 */
#include "chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "jinja_run.h"

#define STEPS_BASE 200000u
#define STEPS_MESSAGE 10000u
#define STEPS_MAX 20000000u
#define MEMORY_BASE ((size_t) 16 << 20)
#define MEMORY_FACTOR 32u

static const char *const token_names[TR_CHAT_TOKENS] = {
    "bos_token", "eos_token", "unk_token", "pad_token"
};
static const char *const reasoning_names[] = {
    [TR_REASONING_NONE] = "reasoning_content",
    [TR_REASONING_CONTENT] = "reasoning_content",
    [TR_REASONING_THINKING] = "thinking",
    [TR_REASONING_PLAIN] = "reasoning",
};

typedef struct {
    const tr_chat_template_t *c;
    const tr_chat_input_t *in;
    uint32_t n;
    string_t *final; /* the last message's content as text */
} conversation_t;

bool
tr_chat_template_reserved(const char *name)
{
    static const char *const names[] = { "messages", "tools", "documents",
                                         "chat_template" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < TR_CHAT_TOKENS; i++) {
        if (strcmp(name, token_names[i]) == 0) {
            return true;
        }
    }
    return tr_jinja_is_global(name);
}

/* ---- messages ----------------------------------------------------------- */

static value_t
own_text(render_t *r, const char *text)
{
    return tr_jinja_text(r, text, strlen(text), TR_JINJA_T);
}

/* Text parts as one text, joined by line feeds. */
static value_t
joined_parts(render_t *r, const json_t *parts, uint8_t tag)
{
    builder_t b = { 0 };

    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");

        if (i > 0) {
            tr_jinja_put_text(&r->arena, &b, "\n", tag);
        }
        tr_jinja_put(&r->arena, &b, json_string_value(text),
                     json_string_length(text), tag);
    }
    return of_string(tr_jinja_built(&r->arena, &b));
}

static value_t
content_of(render_t *r, conversation_t *v, const json_t *content, uint8_t tag)
{
    size_t n = json_array_size(content);

    if (json_is_array(content)) {
        if (!v->c->list_content) {
            return joined_parts(r, content, tag);
        }
        if (n > 0) {
            const json_t *text = json_object_get(json_array_get(content, n - 1),
                                                 "text");

            v->final = tr_jinja_text(r, json_string_value(text),
                                     json_string_length(text), tag)
                           .s;
        }
        return tr_jinja_from_json(r, content, tag);
    }
    if (content == NULL || json_is_null(content)) {
        return v->c->null_content ? NONE : own_text(r, "");
    }
    return tr_jinja_from_json(r, content, tag);
}

/* A call's arguments in the form that the template takes. */
static value_t
arguments_of(render_t *r, const conversation_t *v, uint32_t i, size_t k,
             const json_t *arguments)
{
    value_t text, object;

    if (json_is_object(arguments)) {
        value_t plain[4] = { MISSING, MISSING, MISSING, MISSING };

        object = tr_jinja_from_json(r, arguments, TR_JINJA_U);
        return v->c->string_arguments ? tr_jinja_filter_tojson(r, object, plain)
                                      : object;
    }
    text = tr_jinja_from_json(r, arguments, TR_JINJA_U);
    if (text.kind == K_STRING && text.s->len > 0
        && !tr_jinja_read_json(r, text.s, &object)) {
        tr_jinja_fail_as(&r->arena, TR_ERR_INVALID,
                         "messages[%u].tool_calls[%zu].function.arguments is "
                         "not valid JSON.",
                         i, k);
    }
    if (v->c->string_arguments) {
        return text;
    }
    return text.kind == K_STRING && text.s->len > 0
               ? object
               : of_dict(tr_jinja_dict(&r->arena, 0));
}

static value_t
calls_of(render_t *r, const conversation_t *v, uint32_t i, const json_t *calls)
{
    value_t out = tr_jinja_from_json(r, calls, TR_JINJA_U);

    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *function = json_object_get(json_array_get(calls, k),
                                                 "function");
        const json_t *arguments = json_object_get(function, "arguments");
        value_t *to;

        if (arguments == NULL) {
            continue;
        }
        to = tr_jinja_dict_find(&r->arena, out.list->items[k].dict,
                                own_text(r, "function").s);
        tr_jinja_dict_set(&r->arena, to->dict, own_text(r, "arguments"),
                          arguments_of(r, v, i, k, arguments));
    }
    return out;
}

static bool
is_reasoning(const char *key)
{
    return strcmp(key, "reasoning_content") == 0
           || strcmp(key, "reasoning") == 0 || strcmp(key, "thinking") == 0;
}

static value_t
message_of(render_t *r, conversation_t *v, uint32_t i, const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    bool assistant = strcmp(role, "assistant") == 0;
    uint8_t tag = assistant ? TR_JINJA_A : TR_JINJA_U;
    dict_t *d = tr_jinja_dict(&r->arena,
                              (uint32_t) json_object_size(message) + 1);
    const char *key;
    json_t *field;

    v->final = NULL;
    json_object_foreach ((json_t *) message, key, field) {
        value_t name = tr_jinja_text(r, key, strlen(key), TR_JINJA_U), value;

        if (strcmp(key, "role") == 0) {
            value = own_text(r, strcmp(role, "developer") == 0
                                        && !v->c->knows_developer
                                    ? "system"
                                    : role);
        } else if (strcmp(key, "content") == 0) {
            value = content_of(r, v, field, tag);
            v->final = value.kind == K_STRING ? value.s : v->final;
        } else if (strcmp(key, "tool_calls") == 0 && json_is_array(field)) {
            value = calls_of(r, v, i, field);
        } else if (assistant && is_reasoning(key) && json_is_string(field)) {
            name = own_text(r, reasoning_names[v->c->reasoning]);
            value = tr_jinja_from_json(r, field, TR_JINJA_A);
        } else {
            value = tr_jinja_from_json(r, field, TR_JINJA_U);
        }
        tr_jinja_dict_set(&r->arena, d, name, value);
    }
    if (json_object_get(message, "content") == NULL) {
        tr_jinja_dict_set(&r->arena, d, own_text(r, "content"),
                          content_of(r, v, NULL, tag));
    }
    return of_dict(d);
}

static value_t
or_none(render_t *r, const json_t *json)
{
    return json_array_size(json) > 0 ? tr_jinja_from_json(r, json, TR_JINJA_U)
                                     : NONE;
}

static void
fill(render_t *r, void *arg)
{
    conversation_t *v = arg;
    const tr_chat_input_t *in = v->in;
    list_t *messages = tr_jinja_list(&r->arena, v->n);
    const char *key;
    json_t *value;

    for (uint32_t i = 0; i < v->n; i++) {
        messages->items[i] = message_of(r, v, i,
                                        json_array_get(in->messages, i));
    }
    tr_jinja_set(r, "messages", (value_t){ .kind = K_LIST, .list = messages });
    tr_jinja_set(r, "tools", or_none(r, in->tools));
    tr_jinja_set(r, "documents", or_none(r, in->documents));
    tr_jinja_set(r, "add_generation_prompt",
                 of_bool(!in->no_generation_prompt
                         && !in->continue_final_message));
    for (int i = 0; i < TR_CHAT_TOKENS; i++) {
        if (v->c->tokens[i] != NULL) {
            tr_jinja_set(r, token_names[i], own_text(r, v->c->tokens[i]));
        }
    }
    json_object_foreach ((json_t *) in->variables, key, value) {
        tr_jinja_set(r, key, tr_jinja_from_json(r, value, TR_JINJA_U));
    }
}

/* ---- text --------------------------------------------------------------- */

/* Ends the text behind the last message's content, as transformers does. */
static tr_status_t
cut(const conversation_t *v, tr_jinja_text_t *text, tr_error_t *err)
{
    string_t all = { .data = text->text, .len = (uint32_t) text->len };
    size_t from = 0, to, at;
    uint32_t n;

    if (v->final == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, "continue_final_message",
                            "The last message has no text to continue.");
    }
    to = v->final->len;
    while (from < to && tr_jinja_space(v->final->data + from, &n)) {
        from += n;
    }
    while (to > from) {
        size_t last = to - 1;

        while ((v->final->data[last] & 0xc0) == 0x80) {
            last--;
        }
        if (!tr_jinja_space(v->final->data + last, &n)) {
            break;
        }
        to = last;
    }
    {
        string_t bare = { .data = v->final->data + from,
                          .len = (uint32_t) (to - from) };

        at = to > from ? tr_jinja_find_last(&all, text->len, &bare) : SIZE_MAX;
    }
    if (at == SIZE_MAX) {
        return tr_error_set(err, TR_ERR_INVALID, "continue_final_message",
                            "This model's chat template does not write the "
                            "last message's content as it is, so it cannot be "
                            "continued.");
    }
    n = v->final->len - (uint32_t) from; /* with white space behind it */
    if (text->len - at >= n
        && memcmp(text->text + at, v->final->data + from, n) == 0) {
        text->len = at + n;
    } else {
        text->len = at + (to - from);
    }
    return TR_OK;
}

static tr_jinja_limits_t
limits_of(const tr_chat_input_t *in, uint32_t n)
{
    uint64_t steps = STEPS_BASE + (uint64_t) n * STEPS_MESSAGE;

    return (tr_jinja_limits_t){
        .steps = steps < STEPS_MAX ? steps : STEPS_MAX,
        .memory = MEMORY_BASE + in->body * MEMORY_FACTOR,
        .output = in->max_bytes,
        .now = in->now ? in->now : time(NULL),
    };
}

tr_status_t
tr_chat_template_render(const tr_chat_template_t *c, const tr_chat_input_t *in,
                        tr_jinja_render_t **r, tr_jinja_text_t *text,
                        tr_error_t *err)
{
    uint32_t all = (uint32_t) json_array_size(in->messages);
    conversation_t v = { c, in, in->n && in->n < all ? in->n : all, NULL };
    tr_jinja_limits_t limits = limits_of(in, v.n);
    const tr_jinja_t *t = json_array_size(in->tools) > 0 && c->tool_use
                              ? c->tool_use
                              : c->chat;
    tr_status_t rc;

    *r = NULL;
    if (t == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, "messages",
                            "This model has no chat template; use "
                            "/v1/completions.");
    }
    *r = tr_jinja_render_new(t, &limits);
    if (*r == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    rc = tr_jinja_render(*r, fill, &v, text, err);
    if (rc == TR_OK && in->continue_final_message) {
        rc = cut(&v, text, err);
    }
    return rc;
}

tr_status_t
tr_chat_template_encode(const tr_chat_template_t *c, const tr_tokenizer_t *t,
                        tr_tokenizer_scratch_t *s, const tr_chat_input_t *in,
                        tr_ids_t *out, tr_error_t *err)
{
    tr_jinja_render_t *r;
    tr_jinja_text_t text;
    tr_status_t rc = tr_chat_template_render(c, in, &r, &text, err);

    if (rc == TR_OK) {
        rc = tr_tokenizer_encode_tagged(t, s, text.text, text.tags, text.len,
                                        out, err);
    }
    tr_jinja_render_free(r);
    return rc;
}

void
tr_chat_template_free(tr_chat_template_t *c)
{
    tr_jinja_free(c->chat);
    tr_jinja_free(c->tool_use);
    for (int i = 0; i < TR_CHAT_TOKENS; i++) {
        free(c->tokens[i]);
    }
    memset(c, 0, sizeof(*c));
    c->end_of_turn = -1;
}
