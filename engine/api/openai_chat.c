/*
 * The prompt of a chat: messages, written as text by the model's chat template.
 */
#include "openai_internal.h"

#include <stdlib.h>
#include <string.h>

static tr_status_t
message_role(tr_openai_call_t *c, json_t *message, size_t i,
             tr_chat_message_t *out)
{
    static const char *const roles[] = { "system",    "developer", "user",
                                         "assistant", "tool",      "function" };
    json_t *role = json_object_get(message, "role");
    char param[64];
    size_t k;

    snprintf(param, sizeof(param), "messages[%zu].role", i);
    if (!json_is_string(role)) {
        return tr_json_wrong_type(c->err, param, "a string", role);
    }
    for (k = 0; k < sizeof(roles) / sizeof(roles[0]); k++) {
        if (strcmp(json_string_value(role), roles[k]) == 0) {
            /* templates know one name for who sets the rules */
            out->role = k == 1 ? "system" : roles[k];
            out->role_len = (uint32_t) strlen(out->role);
            return TR_OK;
        }
    }
    return tr_error_set(c->err, TR_ERR_INVALID, param,
                        "Invalid value: "
                        "'%.64s'. Supported values are: 'system', "
                        "'developer', 'user', 'assistant', 'tool' and "
                        "'function'.",
                        json_string_value(role));
}

/* Text of part k; other kinds of parts are refused. */
static tr_status_t
content_part(tr_openai_call_t *c, json_t *part, size_t i, size_t k,
             json_t **text)
{
    char param[96];
    json_t *type;

    snprintf(param, sizeof(param), "messages[%zu].content[%zu]", i, k);
    if (!json_is_object(part)) {
        return tr_json_wrong_type(c->err, param, "an object", part);
    }
    type = json_object_get(part, "type");
    snprintf(param, sizeof(param), "messages[%zu].content[%zu].type", i, k);
    if (!json_is_string(type)) {
        return tr_json_wrong_type(c->err, param, "a string", type);
    }
    if (strcmp(json_string_value(type), "text") != 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Content parts of "
                            "type '%.64s' are not supported; this model reads "
                            "'text' only.",
                            json_string_value(type));
    }
    *text = json_object_get(part, "text");
    snprintf(param, sizeof(param), "messages[%zu].content[%zu].text", i, k);
    if (!json_is_string(*text)) {
        return tr_json_wrong_type(c->err, param, "a string", *text);
    }
    return TR_OK;
}

/* Parts are joined by line feeds, as vLLM does it. */
static tr_status_t
content_parts(tr_openai_call_t *c, json_t *parts, size_t i, tr_arena_t *arena,
              tr_chat_message_t *out)
{
    size_t k, total = 0;
    json_t *part, *text = NULL;
    tr_status_t rc;
    char *at;

    if (json_array_size(parts) == 0) {
        char param[64];

        snprintf(param, sizeof(param), "messages[%zu].content", i);
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Invalid '%s': "
                            "empty array. Expected at least one part.",
                            param);
    }
    json_array_foreach (parts, k, part) {
        rc = content_part(c, part, i, k, &text);
        if (rc != TR_OK) {
            return rc;
        }
        total += json_string_length(text) + 1;
    }
    at = tr_arena_alloc(arena, total);
    if (at == NULL) {
        return tr_openai_no_memory(c);
    }
    out->content = at;
    out->content_len = total - 1;
    json_array_foreach (parts, k, part) {
        text = json_object_get(part, "text");
        memcpy(at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
        *at++ = '\n';
    }
    return TR_OK;
}

static tr_status_t
read_message(tr_openai_call_t *c, json_t *message, size_t i, tr_arena_t *arena,
             tr_chat_message_t *out)
{
    json_t *content;
    char param[64];
    tr_status_t rc;

    snprintf(param, sizeof(param), "messages[%zu]", i);
    if (!json_is_object(message)) {
        return tr_json_wrong_type(c->err, param, "an object", message);
    }
    rc = message_role(c, message, i, out);
    if (rc != TR_OK) {
        return rc;
    }
    snprintf(param, sizeof(param), "messages[%zu].", i);
    rc = tr_openai_check_fields(message, TR_FIELD_MESSAGE, param, c->err);
    if (rc != TR_OK) {
        return rc;
    }
    content = json_object_get(message, "content");
    if (json_is_array(content)) {
        return content_parts(c, content, i, arena, out);
    }
    if (!json_is_string(content)) {
        snprintf(param, sizeof(param), "messages[%zu].content", i);
        return tr_json_wrong_type(c->err, param,
                                  "a string or an array of "
                                  "text parts",
                                  content);
    }
    out->content = json_string_value(content);
    out->content_len = json_string_length(content);
    return TR_OK;
}

/* The template as chat_template_kwargs wants it.  enable_thinking is what clients
 * of vLLM send; other names stand for nothing in the templates that we know, and
 * are let pass like a variable that a template does not use. */
static tr_status_t
choose_template(tr_openai_call_t *c, tr_chat_template_t *own,
                const tr_chat_template_t **out)
{
    static const char kwargs[] = "chat_template_kwargs";
    static const char name[] = "chat_template_kwargs.enable_thinking";
    const json_t *object = tr_json_field(c->root, kwargs), *value;

    *out = c->api->chat_template;
    if (object != NULL && !json_is_object(object)) {
        return tr_json_wrong_type(c->err, kwargs, "an object", object);
    }
    value = tr_json_field(object, "enable_thinking");
    if (value == NULL) {
        return TR_OK;
    }
    if (!json_is_boolean(value)) {
        return tr_json_wrong_type(c->err, name, "a boolean", value);
    }
    *out = tr_chat_template_thinking(*out, json_is_true(value), own);
    return *out != NULL
               ? TR_OK
               : tr_error_set(c->err, TR_ERR_INVALID, name,
                              "'%s' is %s, and this server does not know what "
                              "the model's chat template does with it; leave "
                              "it out.",
                              name, json_is_true(value) ? "true" : "false");
}

static tr_status_t
read_messages(tr_openai_call_t *c, json_t *array, tr_arena_t *arena)
{
    const tr_chat_template_t *template;
    tr_chat_template_t own;
    size_t n = json_array_size(array), i;
    tr_chat_message_t *messages;
    uint64_t bytes = 0;
    json_t *message;
    tr_status_t rc;

    messages = tr_arena_alloc(arena, n * sizeof(*messages));
    if (messages == NULL) {
        return tr_openai_no_memory(c);
    }
    json_array_foreach (array, i, message) {
        rc = read_message(c, message, i, arena, &messages[i]);
        if (rc != TR_OK) {
            return rc;
        }
        bytes += messages[i].content_len;
    }
    rc = tr_openai_check_bytes(c, bytes);
    if (rc != TR_OK) {
        return rc;
    }
    rc = choose_template(c, &own, &template);
    return rc != TR_OK
               ? rc
               : tr_chat_template_encode(template, c->api->tokenizer,
                                         c->scratch, messages, (uint32_t) n,
                                         &c->prompts[0], c->err);
}

tr_status_t
tr_openai_read_chat(tr_openai_call_t *c)
{
    json_t *messages = tr_json_field(c->root, "messages");
    tr_arena_t arena;
    tr_status_t rc;

    if (c->api->chat_template->kind == TR_TEMPLATE_NONE) {
        return tr_error_set(c->err, TR_ERR_INVALID, "messages",
                            "This model "
                            "has no chat template; use /v1/completions.");
    }
    if (!json_is_array(messages)) {
        return tr_json_wrong_type(c->err, "messages", "an array of objects",
                                  messages);
    }
    if (json_array_size(messages) == 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, "messages",
                            "Invalid "
                            "'messages': empty array. Expected an array with "
                            "minimum length 1, but got an empty array "
                            "instead.");
    }
    c->prompts = calloc(1, sizeof(*c->prompts));
    if (c->prompts == NULL) {
        return tr_openai_no_memory(c);
    }
    c->r->n_prompts = 1;
    memset(&arena, 0, sizeof(arena));
    rc = read_messages(c, messages, &arena);
    tr_arena_free(&arena);
    return rc;
}
