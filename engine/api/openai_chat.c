/*
 * The prompt of a chat: messages, written as text by the model's chat template.
 * Here a client's conversation is checked; what becomes of it is the template's.
 */
#include "openai_internal.h"

#include <stdlib.h>
#include <string.h>

static tr_status_t
check_role(tr_openai_call_t *c, const json_t *message, size_t i)
{
    static const char *const roles[] = { "system",    "developer", "user",
                                         "assistant", "tool",      "function" };
    json_t *role = json_object_get(message, "role");
    char param[64];

    snprintf(param, sizeof(param), "messages[%zu].role", i);
    if (!json_is_string(role)) {
        return tr_json_wrong_type(c->err, param, "a string", role);
    }
    for (size_t k = 0; k < sizeof(roles) / sizeof(roles[0]); k++) {
        if (strcmp(json_string_value(role), roles[k]) == 0) {
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

/* An assistant's refusal is text that it said. */
static void
settle_part(json_t *part, bool assistant)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    json_t *refusal = json_object_get(part, "refusal");

    if (assistant && type != NULL && strcmp(type, "refusal") == 0
        && json_is_string(refusal)) {
        json_object_set(part, "text", refusal);
        json_object_set_new(part, "type", json_string("text"));
        json_object_del(part, "refusal");
    }
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

/* *bytes grows by the text's. */
static tr_status_t
check_parts(tr_openai_call_t *c, json_t *parts, size_t i, bool assistant,
            uint64_t *bytes)
{
    json_t *part, *text = NULL;
    size_t k;

    if (json_array_size(parts) == 0) {
        char param[64];

        snprintf(param, sizeof(param), "messages[%zu].content", i);
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Invalid '%s': "
                            "empty array. Expected at least one part.",
                            param);
    }
    json_array_foreach (parts, k, part) {
        tr_status_t rc;

        settle_part(part, assistant);
        rc = content_part(c, part, i, k, &text);
        if (rc != TR_OK) {
            return rc;
        }
        *bytes += json_string_length(text);
    }
    return TR_OK;
}

/* What else of a message the template gets. */
static tr_status_t
check_texts(tr_openai_call_t *c, const json_t *message, size_t i)
{
    static const char *const names[] = { "name", "tool_call_id", "reasoning",
                                         "reasoning_content" };
    char param[64];

    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        const json_t *text = tr_json_field(message, names[k]);

        if (text != NULL && !json_is_string(text)) {
            snprintf(param, sizeof(param), "messages[%zu].%s", i, names[k]);
            return tr_json_wrong_type(c->err, param, "a string", text);
        }
    }
    return TR_OK;
}

/* A message without content: what an assistant refused with is its content; of
 * one that was cut within its reasoning it is empty. */
static tr_status_t
settle_content(tr_openai_call_t *c, json_t *message, size_t i, bool assistant)
{
    json_t *content = tr_json_field(message, "content");
    json_t *refusal = tr_json_field(message, "refusal");
    char param[64];

    snprintf(param, sizeof(param), "messages[%zu].refusal", i);
    if (refusal != NULL && !json_is_string(refusal)) {
        return tr_json_wrong_type(c->err, param, "a string", refusal);
    }
    if (refusal != NULL && !assistant) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "'%s': only an assistant message has a refusal.",
                            param);
    }
    if (refusal != NULL && content != NULL) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "'%s' and 'content' cannot both be given.", param);
    }
    if (refusal != NULL) {
        json_object_set(message, "content", refusal);
        json_object_del(message, "refusal");
    } else if (assistant && content == NULL
               && (tr_json_field(message, "reasoning_content") != NULL
                   || tr_json_field(message, "reasoning") != NULL)) {
        json_object_set_new(message, "content", json_string(""));
    }
    return TR_OK;
}

static tr_status_t
check_message(tr_openai_call_t *c, json_t *message, size_t i, uint64_t *bytes)
{
    json_t *content;
    char param[64];
    bool calls, assistant;
    tr_status_t rc;

    snprintf(param, sizeof(param), "messages[%zu]", i);
    if (!json_is_object(message)) {
        return tr_json_wrong_type(c->err, param, "an object", message);
    }
    rc = check_role(c, message, i);
    if (rc != TR_OK) {
        return rc;
    }
    snprintf(param, sizeof(param), "messages[%zu].", i);
    rc = tr_openai_check_fields(message, TR_FIELD_MESSAGE, param, c->err);
    if (rc == TR_OK) {
        rc = check_texts(c, message, i);
    }
    if (rc != TR_OK) {
        return rc;
    }
    rc = tr_openai_check_calls(c, message, i, bytes, &calls);
    assistant = strcmp(json_string_value(json_object_get(message, "role")),
                       "assistant")
                == 0;
    if (rc == TR_OK && !calls) {
        rc = settle_content(c, message, i, assistant);
    }
    if (rc != TR_OK) {
        return rc;
    }
    content = json_object_get(message, "content");
    if (json_is_array(content)) {
        return check_parts(c, content, i, assistant, bytes);
    }
    if (calls && (content == NULL || json_is_null(content))) {
        return TR_OK;
    }
    if (!json_is_string(content)) {
        snprintf(param, sizeof(param), "messages[%zu].content", i);
        return tr_json_wrong_type(c->err, param,
                                  "a string or an array of "
                                  "text parts",
                                  content);
    }
    *bytes += json_string_length(content);
    return TR_OK;
}

/* Variables of the template.  Other names than those that it reads stand for
 * nothing, as in Jinja. */
static tr_status_t
read_variables(tr_openai_call_t *c, tr_chat_input_t *in)
{
    static const char kwargs[] = "chat_template_kwargs";
    const json_t *object = tr_json_field(c->root, kwargs), *value;
    char param[TR_ERROR_PARAM];
    const char *key;

    if (object != NULL && !json_is_object(object)) {
        return tr_json_wrong_type(c->err, kwargs, "an object", object);
    }
    json_object_foreach ((json_t *) object, key, value) {
        snprintf(param, sizeof(param), "%s.%.64s", kwargs, key);
        if (tr_chat_template_reserved(key)) {
            return tr_error_set(c->err, TR_ERR_INVALID, param,
                                "'%s' cannot be set: the server sets this "
                                "template variable itself.",
                                param);
        }
        if (strcmp(key, "enable_thinking") == 0 && !json_is_null(value)
            && !json_is_boolean(value)) {
            return tr_json_wrong_type(c->err, param, "a boolean", value);
        }
    }
    in->variables = object;
    return TR_OK;
}

static tr_status_t
read_documents(tr_openai_call_t *c, tr_chat_input_t *in)
{
    const json_t *documents = tr_json_field(c->root, "documents"), *one;
    char param[64];
    size_t i;

    if (documents != NULL && !json_is_array(documents)) {
        return tr_json_wrong_type(c->err, "documents", "an array of objects",
                                  documents);
    }
    json_array_foreach ((json_t *) documents, i, one) {
        if (!json_is_object(one)) {
            snprintf(param, sizeof(param), "documents[%zu]", i);
            return tr_json_wrong_type(c->err, param, "an object", one);
        }
    }
    if (json_array_size(documents) != 0
        && !c->api->chat_template->reads_documents) {
        return tr_error_set(c->err, TR_ERR_INVALID, "documents",
                            "'documents': the model's chat template does "
                            "not use them; put their text into a message.");
    }
    in->documents = documents;
    return TR_OK;
}

/* How the prompt ends: with the beginning of an answer, behind the last message,
 * or within it. */
static tr_status_t
read_end(tr_openai_call_t *c, tr_chat_input_t *in)
{
    bool generation = true, given;
    tr_status_t rc;

    given = tr_json_field(c->root, "add_generation_prompt") != NULL;
    rc = tr_json_bool(c->root, "add_generation_prompt", &generation, c->err);
    if (rc == TR_OK) {
        rc = tr_json_bool(c->root, "continue_final_message",
                          &in->continue_final_message, c->err);
    }
    if (rc == TR_OK && given && generation && in->continue_final_message) {
        rc = tr_error_set(c->err, TR_ERR_INVALID, "continue_final_message",
                          "'continue_final_message' and "
                          "'add_generation_prompt' cannot both be true.");
    }
    in->no_generation_prompt = !generation;
    return rc;
}

/* The prompt as text, where an endpoint shows it. */
static tr_status_t
keep_text(tr_openai_call_t *c, const tr_jinja_text_t *text)
{
    if (c->endpoint->result != tr_openai_render) {
        return TR_OK;
    }
    c->text = malloc(text->len + 1);
    if (c->text == NULL || text->len > UINT32_MAX) {
        return tr_openai_no_memory(c);
    }
    memcpy(c->text, text->text, text->len);
    c->text_len = (uint32_t) text->len;
    return TR_OK;
}

/* The prompt's ids, and how its answer begins. */
static tr_status_t
encode(tr_openai_call_t *c, tr_chat_input_t *in)
{
    const tr_dialect_t *d = c->api->dialect;
    tr_jinja_render_t *render = NULL;
    tr_jinja_text_t text;
    tr_status_t rc;

    in->now = (time_t) c->r->created;
    rc = tr_chat_template_render(c->api->chat_template, in, &render, &text,
                                 c->err);
    if (rc == TR_OK) {
        rc = keep_text(c, &text);
    }
    if (rc == TR_OK) {
        c->r->inside = tr_dialect_begins_inside(d, text.text, text.tags,
                                                text.len);
        rc = tr_tokenizer_encode_tagged(c->api->tokenizer, c->scratch,
                                        text.text, text.tags, text.len,
                                        &c->prompts[0], c->err);
    }
    tr_jinja_render_free(render);
    if (!c->r->plain && (c->r->tools.n != 0 || tr_dialect_reasons(d))) {
        c->r->dialect = d;
    }
    return rc;
}

static tr_status_t
read_messages(tr_openai_call_t *c, json_t *array)
{
    tr_chat_input_t in = { .messages = array, .body = c->body_len };
    uint64_t bytes = 0;
    json_t *message;
    tr_status_t rc;
    size_t i;

    json_array_foreach (array, i, message) {
        rc = check_message(c, message, i, &bytes);
        if (rc != TR_OK) {
            return rc;
        }
    }
    tr_openai_settle_results(c, array);
    rc = tr_openai_check_bytes(c, bytes);
    if (rc == TR_OK) {
        rc = tr_openai_read_reasoning(c);
    }
    if (rc == TR_OK) {
        rc = read_variables(c, &in);
    }
    if (rc == TR_OK) {
        rc = tr_openai_read_tools(c, &in);
    }
    if (rc == TR_OK) {
        rc = read_documents(c, &in);
    }
    if (rc == TR_OK) {
        rc = read_end(c, &in);
    }
    if (rc != TR_OK) {
        return rc;
    }
    in.max_bytes = tr_openai_max_bytes(c);
    rc = encode(c, &in);
    return rc == TR_ERR_CONTEXT_LENGTH
               ? tr_openai_too_long(c, "at least ",
                                    (uint64_t) c->r->max_len + 1)
               : rc;
}

tr_status_t
tr_openai_read_chat(tr_openai_call_t *c)
{
    json_t *messages = tr_json_field(c->root, "messages");

    if (c->api->chat_template->chat == NULL) {
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
    return read_messages(c, messages);
}
