/*
 * Anthropic's Messages API: its body becomes that of a chat, which the rest of
 * this folder reads.  What differs is checked here, so that errors name what the
 * client sent; tools, sampling and lengths are checked where a chat's are.
 *
 *   system                    a message with the role system, as are those
 *                             among the messages
 *   text blocks               content
 *   thinking blocks           reasoning_content
 *   tool_use blocks           tool_calls
 *   tool_result blocks        messages with the role tool
 *   an assistant's at the end continue_final_message
 *
 * Neighbours of one role become one message, as that API says.
 */
#include "translate.h"

#include <string.h>

/* ---- content ------------------------------------------------------------ */

/* The text of a block of type text; `at`: its place. */
static tr_status_t
block_text(const tr_translation_t *t, const json_t *block, const char *at,
           json_t **text)
{
    char param[TR_ERROR_PARAM];

    *text = json_object_get(block, "text");
    snprintf(param, sizeof(param), "%.80s.text", at);
    return json_is_string(*text)
               ? TR_OK
               : tr_translate_wrong_type(t, param, "a string", *text);
}

static tr_status_t
refuse_block(const tr_translation_t *t, const char *at, const json_t *type,
             const char *expected)
{
    char param[TR_ERROR_PARAM];

    snprintf(param, sizeof(param), "%.80s.type", at);
    return tr_translate_wrong_value(t, param, type, expected);
}

/* Text blocks alone, or a string, into parts.  system: what a client bills by
 * stands in its own block, changes with each request, and is not for the model. */
static tr_status_t
take_texts(const tr_translation_t *t, const json_t *content, const char *at,
           bool system, json_t *parts)
{
    static const char billing[] = "x-anthropic-billing-header:";
    char place[TR_ERROR_PARAM];
    json_t *block, *text;
    tr_status_t rc = TR_OK;
    size_t i;

    if (json_is_string(content)) {
        return tr_translate_text(t, parts, (json_t *) content);
    }
    if (!json_is_array(content)) {
        return tr_translate_wrong_type(t, at,
                                       "a string or an array of text blocks",
                                       content);
    }
    json_array_foreach ((json_t *) content, i, block) {
        snprintf(place, sizeof(place), "%.64s[%zu]", at, i);
        if (!json_is_object(block)) {
            return tr_translate_wrong_type(t, place, "an object", block);
        }
        if (!tr_translate_is(json_object_get(block, "type"), "text")) {
            return refuse_block(t, place, json_object_get(block, "type"),
                                "'text': this model reads text only");
        }
        rc = block_text(t, block, place, &text);
        if (rc == TR_OK
            && !(system
                 && strncmp(json_string_value(text), billing,
                            sizeof(billing) - 1)
                        == 0)) {
            rc = tr_translate_text(t, parts, text);
        }
        if (rc != TR_OK) {
            return rc;
        }
    }
    return TR_OK;
}

/* ---- messages ----------------------------------------------------------- */

static tr_status_t
take_tool_result(const tr_translation_t *t, const json_t *block, const char *at)
{
    const json_t *id = json_object_get(block, "tool_use_id");
    const json_t *content = tr_json_field(block, "content");
    char param[TR_ERROR_PARAM];
    json_t *message;

    snprintf(param, sizeof(param), "%.80s.tool_use_id", at);
    if (!json_is_string(id)) {
        return tr_translate_wrong_type(t, param, "a string", id);
    }
    message = tr_translate_result(t, id);
    if (message == NULL) {
        return tr_translate_no_memory(t);
    }
    if (content == NULL) {
        return TR_OK;
    }
    snprintf(param, sizeof(param), "%.80s.content", at);
    return take_texts(t, content, param, false,
                      json_object_get(message, "content"));
}

static tr_status_t
take_thinking(const tr_translation_t *t, json_t *message, const json_t *block,
              const char *at)
{
    const json_t *text = json_object_get(block, "thinking");
    char param[TR_ERROR_PARAM];

    snprintf(param, sizeof(param), "%.80s.thinking", at);
    return json_is_string(text)
               ? tr_translate_reasoning(t, message, text)
               : tr_translate_wrong_type(t, param, "a string", text);
}

static tr_status_t
take_tool_use(const tr_translation_t *t, json_t *message, const json_t *block,
              const char *at)
{
    const json_t *id = json_object_get(block, "id");
    const json_t *name = json_object_get(block, "name");
    const json_t *input = json_object_get(block, "input");
    char param[TR_ERROR_PARAM];

    snprintf(param, sizeof(param), "%.80s.id", at);
    if (!json_is_string(id)) {
        return tr_translate_wrong_type(t, param, "a string", id);
    }
    snprintf(param, sizeof(param), "%.80s.name", at);
    if (!json_is_string(name)) {
        return tr_translate_wrong_type(t, param, "a string", name);
    }
    snprintf(param, sizeof(param), "%.80s.input", at);
    if (!json_is_object(input)) {
        return tr_translate_wrong_type(t, param, "an object", input);
    }
    return tr_translate_call(t, message, id, name, input);
}

static tr_status_t
take_block(const tr_translation_t *t, const json_t *block, const char *role,
           const char *at)
{
    const json_t *type = json_object_get(block, "type");
    bool user = strcmp(role, "user") == 0;
    json_t *message, *text;
    tr_status_t rc;

    if (!json_is_object(block)) {
        return tr_translate_wrong_type(t, at, "an object", block);
    }
    if (user && tr_translate_is(type, "tool_result")) {
        return take_tool_result(t, block, at);
    }
    message = tr_translate_message(t, role, true);
    if (message == NULL) {
        return tr_translate_no_memory(t);
    }
    if (tr_translate_is(type, "text")) {
        rc = block_text(t, block, at, &text);
        return rc == TR_OK
                   ? tr_translate_text(t, json_object_get(message, "content"),
                                       text)
                   : rc;
    }
    if (!user && tr_translate_is(type, "thinking")) {
        return take_thinking(t, message, block, at);
    }
    if (!user && tr_translate_is(type, "redacted_thinking")) {
        return TR_OK; /* encrypted by another server: nobody can read it */
    }
    if (!user && tr_translate_is(type, "tool_use")) {
        return take_tool_use(t, message, block, at);
    }
    return refuse_block(t, at, type,
                        user ? "'text' or 'tool_result': this model reads "
                               "text only"
                             : "'text', 'thinking', 'redacted_thinking' or "
                               "'tool_use'");
}

/* A system message among the others.  One that is there for a while alone, or
 * that sets something, is more than a text. */
static tr_status_t
take_system(const tr_translation_t *t, const json_t *message, size_t i)
{
    const json_t *until = tr_json_field(message, "clear_at");
    char at[TR_ERROR_PARAM];
    json_t *own;

    snprintf(at, sizeof(at), "messages[%zu].clear_at", i);
    if (until != NULL && !tr_translate_is(until, "never")) {
        return tr_translate_wrong_value(t, at, until,
                                        "'never': messages are not edited");
    }
    snprintf(at, sizeof(at), "messages[%zu].output_config", i);
    if (json_object_size(tr_json_field(message, "output_config")) != 0) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, at,
                            "'%s': use 'output_config' of the request.", at);
    }
    own = tr_translate_message(t, "system", true);
    if (own == NULL) {
        return tr_translate_no_memory(t);
    }
    snprintf(at, sizeof(at), "messages[%zu].content", i);
    return take_texts(t, json_object_get(message, "content"), at, false,
                      json_object_get(own, "content"));
}

static tr_status_t
take_message(const tr_translation_t *t, const json_t *message, size_t i)
{
    const json_t *role = json_object_get(message, "role"), *content, *block;
    char at[TR_ERROR_PARAM];
    tr_status_t rc;
    json_t *own;
    size_t k;

    snprintf(at, sizeof(at), "messages[%zu]", i);
    if (!json_is_object(message)) {
        return tr_translate_wrong_type(t, at, "an object", message);
    }
    if (tr_translate_is(role, "system")) {
        return take_system(t, message, i);
    }
    snprintf(at, sizeof(at), "messages[%zu].role", i);
    if (!tr_translate_is(role, "user") && !tr_translate_is(role, "assistant")) {
        return tr_translate_wrong_value(t, at, role,
                                        "'user', 'assistant' or 'system'");
    }
    content = json_object_get(message, "content");
    snprintf(at, sizeof(at), "messages[%zu].content", i);
    if (json_is_string(content)) {
        own = tr_translate_message(t, json_string_value(role), true);
        return own == NULL
                   ? tr_translate_no_memory(t)
                   : tr_translate_text(t, json_object_get(own, "content"),
                                       (json_t *) content);
    }
    if (!json_is_array(content)) {
        return tr_translate_wrong_type(t, at, "a string or an array of blocks",
                                       content);
    }
    json_array_foreach ((json_t *) content, k, block) {
        snprintf(at, sizeof(at), "messages[%zu].content[%zu]", i, k);
        rc = take_block(t, block, json_string_value(role), at);
        if (rc != TR_OK) {
            return rc;
        }
    }
    return TR_OK;
}

/* An answer goes on where an assistant's text ends; where there is none yet, it
 * begins. */
static tr_status_t
settle_end(const tr_translation_t *t)
{
    size_t n = json_array_size(t->messages), len = 0, i;
    const json_t *last = n == 0 ? NULL : json_array_get(t->messages, n - 1);
    const json_t *part;

    if (!tr_translate_is(json_object_get(last, "role"), "assistant")
        || json_object_get(last, "tool_calls") != NULL) {
        return TR_OK;
    }
    json_array_foreach (json_object_get(last, "content"), i, part) {
        len += json_string_length(json_object_get(part, "text"));
    }
    if (len != 0) {
        return tr_translate_set(t, t->body, "continue_final_message",
                                json_true());
    }
    if (json_object_get(last, "reasoning_content") != NULL) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, "messages",
                            "'messages' ends with thinking and no text: an "
                            "answer cannot continue from there.");
    }
    json_array_remove(t->messages, n - 1);
    return TR_OK;
}

static tr_status_t
take_messages(const tr_translation_t *t)
{
    const json_t *list = tr_json_field(t->c->root, "messages"), *message;
    const json_t *system = tr_json_field(t->c->root, "system");
    tr_status_t rc = TR_OK;
    json_t *own;
    size_t i;

    if (!json_is_array(list)) {
        return tr_translate_wrong_type(t, "messages", "an array of objects",
                                       list);
    }
    json_object_del(t->body, "system");
    if (system != NULL) {
        own = tr_translate_message(t, "system", true);
        if (own == NULL) {
            return tr_translate_no_memory(t);
        }
        rc = take_texts(t, system, "system", true,
                        json_object_get(own, "content"));
        if (rc == TR_OK
            && json_array_size(json_object_get(own, "content")) == 0) {
            json_array_clear(t->messages);
        }
    }
    if (rc == TR_OK && json_array_size(list) == 0) {
        json_array_clear(t->messages); /* refused as a chat's are */
        return TR_OK;
    }
    json_array_foreach ((json_t *) list, i, message) {
        if (rc == TR_OK) {
            rc = take_message(t, message, i);
        }
    }
    if (rc == TR_OK) {
        rc = settle_end(t);
    }
    return rc == TR_OK ? tr_translate_settle(t) : rc;
}

/* ---- tools -------------------------------------------------------------- */

/* The model calls tools itself; there is no program of its that would. */
static tr_status_t
check_callers(const tr_translation_t *t, const json_t *tool, size_t i)
{
    const json_t *list = tr_json_field(tool, "allowed_callers"), *one;
    bool direct = list == NULL;
    char param[64];
    size_t k;

    json_array_foreach ((json_t *) list, k, one) {
        direct |= tr_translate_is(one, "direct");
    }
    snprintf(param, sizeof(param), "tools[%zu].allowed_callers", i);
    return direct ? TR_OK
                  : tr_error_set(t->c->err, TR_ERR_INVALID, param,
                                 "'%s': expected an array with 'direct': no "
                                 "other caller is supported.",
                                 param);
}

/* The schema, to which input_examples is what "examples" says. */
static tr_status_t
with_examples(const tr_translation_t *t, const json_t *tool, size_t i,
              const json_t *schema, json_t **out)
{
    const json_t *list = tr_json_field(tool, "input_examples");
    char param[64];

    snprintf(param, sizeof(param), "tools[%zu].input_examples", i);
    *out = NULL;
    if (list != NULL && !json_is_array(list)) {
        return tr_translate_wrong_type(t, param, "an array of objects", list);
    }
    *out = json_array_size(list) == 0 ? json_incref((json_t *) schema)
                                      : json_copy((json_t *) schema);
    return *out != NULL && json_array_size(list) != 0
               ? tr_translate_set(t, *out, "examples",
                                  json_incref((json_t *) list))
               : TR_OK;
}

static tr_status_t
take_tool(const tr_translation_t *t, const json_t *tool, size_t i,
          json_t *tools)
{
    const json_t *type = tr_json_field(tool, "type"), *value;
    char param[64];
    json_t *function, *schema = NULL;
    tr_status_t rc;

    snprintf(param, sizeof(param), "tools[%zu].type", i);
    if (type != NULL && !tr_translate_is(type, "custom")) {
        return tr_translate_wrong_value(t, param, type,
                                        "'custom': a client's own tools alone "
                                        "are "
                                        "supported");
    }
    snprintf(param, sizeof(param), "tools[%zu].name", i);
    value = json_object_get(tool, "name");
    if (!json_is_string(value)) {
        return tr_translate_wrong_type(t, param, "a string", value);
    }
    snprintf(param, sizeof(param), "tools[%zu].input_schema", i);
    value = json_object_get(tool, "input_schema");
    if (!json_is_object(value)) {
        return tr_translate_wrong_type(t, param, "an object", value);
    }
    if (json_is_true(json_object_get(tool, "defer_loading"))) {
        snprintf(param, sizeof(param), "tools[%zu].defer_loading", i);
        return tr_error_set(t->c->err, TR_ERR_INVALID, param,
                            "'%s': tool search is not supported.", param);
    }
    rc = check_callers(t, tool, i);
    if (rc == TR_OK) {
        rc = with_examples(t, tool, i, value, &schema);
    }
    if (rc != TR_OK) {
        return rc;
    }
    function = json_pack("{s:O, s:O*, s:o, s:O*}", "name",
                         json_object_get(tool, "name"), "description",
                         tr_json_field(tool, "description"), "parameters",
                         schema, "strict", tr_json_field(tool, "strict"));
    return tr_translate_function(t, tools, function);
}

static tr_status_t
take_tools(const tr_translation_t *t)
{
    return tr_translate_tools(t, take_tool);
}

static tr_status_t
take_tool_choice(const tr_translation_t *t)
{
    const json_t *choice = tr_json_field(t->c->root, "tool_choice"), *type;
    const json_t *one, *name;
    json_t *value;

    if (choice == NULL) {
        return TR_OK;
    }
    if (!json_is_object(choice)) {
        return tr_translate_wrong_type(t, "tool_choice", "an object", choice);
    }
    one = tr_json_field(choice, "disable_parallel_tool_use");
    if (one != NULL && !json_is_boolean(one)) {
        return tr_translate_wrong_type(t,
                                       "tool_choice.disable_parallel_tool_use",
                                       "a boolean", one);
    }
    if (json_is_true(one)
        && json_object_set_new(t->body, "parallel_tool_calls", json_false())
               != 0) {
        return tr_translate_no_memory(t);
    }
    type = json_object_get(choice, "type");
    name = json_object_get(choice, "name");
    if (tr_translate_is(type, "auto") || tr_translate_is(type, "none")) {
        value = json_incref((json_t *) type);
    } else if (tr_translate_is(type, "any")) {
        value = json_string("required");
    } else if (!tr_translate_is(type, "tool")) {
        return tr_translate_wrong_value(t, "tool_choice.type", type,
                                        "'auto', 'any', 'tool' or 'none'");
    } else if (!json_is_string(name)) {
        return tr_translate_wrong_type(t, "tool_choice.name", "a string", name);
    } else {
        value = json_pack("{s:s, s:{s:O}}", "type", "function", "function",
                          "name", name);
    }
    return tr_translate_set(t, t->body, "tool_choice", value);
}

/* ---- what else an answer shall be --------------------------------------- */

static tr_status_t
take_stop_sequences(const tr_translation_t *t)
{
    const json_t *list = tr_json_field(t->c->root, "stop_sequences"), *one;
    char param[48];
    size_t i, len;

    if (list == NULL) {
        return TR_OK;
    }
    if (!json_is_array(list)) {
        return tr_translate_wrong_type(t, "stop_sequences",
                                       "an array of strings", list);
    }
    if (json_array_size(list) > TR_STOP_STRINGS_MAX) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, "stop_sequences",
                            "Invalid 'stop_sequences': %zu of them. Expected "
                            "at most %d.",
                            json_array_size(list), TR_STOP_STRINGS_MAX);
    }
    json_array_foreach ((json_t *) list, i, one) {
        snprintf(param, sizeof(param), "stop_sequences[%zu]", i);
        if (!json_is_string(one)) {
            return tr_translate_wrong_type(t, param, "a string", one);
        }
        len = json_string_length(one);
        if (len == 0 || len > TR_STOP_STRING_BYTES) {
            return tr_error_set(t->c->err, TR_ERR_INVALID, param,
                                "Invalid '%s': %zu bytes. Expected 1 to %d.",
                                param, len, TR_STOP_STRING_BYTES);
        }
    }
    json_object_del(t->body, "stop_sequences");
    return tr_translate_set(t, t->body, "stop", json_incref((json_t *) list));
}

/* enable_thinking of the chat template, unless the client says it itself. */
static tr_status_t
set_thinking(const tr_translation_t *t, bool on)
{
    static const char kwargs[] = "chat_template_kwargs";
    const json_t *given = tr_json_field(t->body, kwargs);
    json_t *own;

    if (given != NULL && !json_is_object(given)) {
        return tr_translate_wrong_type(t, kwargs, "an object", given);
    }
    if (json_object_get(given, "enable_thinking") != NULL) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, "thinking",
                            "'thinking' and '%s.enable_thinking' cannot both "
                            "be given.",
                            kwargs);
    }
    own = given != NULL ? json_copy((json_t *) given) : json_object();
    json_object_set_new(own, "enable_thinking", json_boolean(on));
    return tr_translate_set(t, t->body, kwargs, own);
}

/* budget_tokens: thinking_token_budget of a chat, by which the engine closes
 * reasoning.  Those of less than Anthropic's 1024 are taken, too. */
static tr_status_t
take_budget(const tr_translation_t *t, const json_t *thinking, bool enabled)
{
    static const char param[] = "thinking.budget_tokens";
    const json_t *budget = tr_json_field(thinking, "budget_tokens");

    if (budget == NULL) {
        return TR_OK;
    }
    if (!json_is_integer(budget)) {
        return tr_translate_wrong_type(t, param, "an integer", budget);
    }
    if (json_integer_value(budget) < 1
        || json_integer_value(budget) > UINT32_MAX) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, param,
                            "Invalid '%s': %lld. Expected 1 to %u.", param,
                            (long long) json_integer_value(budget), UINT32_MAX);
    }
    if (!enabled) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, param,
                            "'%s' belongs to the type 'enabled'; leave it out.",
                            param);
    }
    if (tr_json_field(t->body, "thinking_token_budget") != NULL) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, param,
                            "'%s' and 'thinking_token_budget' cannot both be "
                            "given.",
                            param);
    }
    return tr_translate_set(t, t->body, "thinking_token_budget",
                            json_incref((json_t *) budget));
}

static tr_status_t
take_thinking_config(const tr_translation_t *t)
{
    const json_t *thinking = tr_json_field(t->c->root, "thinking"), *type;
    const json_t *display;
    tr_status_t rc;
    bool on;

    json_object_del(t->body, "thinking");
    if (thinking == NULL) {
        return TR_OK;
    }
    if (!json_is_object(thinking)) {
        return tr_translate_wrong_type(t, "thinking", "an object", thinking);
    }
    type = json_object_get(thinking, "type");
    on = tr_translate_is(type, "enabled") || tr_translate_is(type, "adaptive");
    if (!on && !tr_translate_is(type, "disabled")) {
        return tr_translate_wrong_value(t, "thinking.type", type,
                                        "'enabled', 'adaptive' or 'disabled'");
    }
    rc = take_budget(t, thinking, tr_translate_is(type, "enabled"));
    if (rc != TR_OK) {
        return rc;
    }
    display = tr_json_field(thinking, "display");
    if (display != NULL && !tr_translate_is(display, "summarized")
        && !tr_translate_is(display, "omitted")) {
        return tr_translate_wrong_value(t, "thinking.display", display,
                                        "'summarized' or 'omitted'");
    }
    if (tr_translate_is(display, "omitted")
        && json_object_set_new(t->body, "include_reasoning", json_false())
               != 0) {
        return tr_translate_no_memory(t);
    }
    if (t->c->api->chat_template->reads_thinking) {
        return set_thinking(t, on);
    }
    return on || !tr_dialect_reasons(t->c->api->dialect)
               ? TR_OK
               : tr_error_set(t->c->err, TR_ERR_INVALID, "thinking.type",
                              "'thinking.type': this model's reasoning cannot "
                              "be disabled.");
}

/* {"type": "json_schema", "schema"} */
static tr_status_t
take_format(const tr_translation_t *t, const json_t *format, const char *at)
{
    const json_t *schema = json_object_get(format, "schema");
    char param[64];

    if (!json_is_object(format)) {
        return tr_translate_wrong_type(t, at, "an object", format);
    }
    snprintf(param, sizeof(param), "%s.type", at);
    if (!tr_translate_is(json_object_get(format, "type"), "json_schema")) {
        return tr_translate_wrong_value(t, param,
                                        json_object_get(format, "type"),
                                        "'json_schema'");
    }
    snprintf(param, sizeof(param), "%s.schema", at);
    if (!json_is_object(schema)) {
        return tr_translate_wrong_type(t, param, "an object", schema);
    }
    if (tr_json_field(t->body, "response_format") != NULL) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, at,
                            "'%s' and 'output_config.format' cannot both be "
                            "given.",
                            at);
    }
    return tr_translate_set(t, t->body, "response_format",
                            json_pack("{s:s, s:{s:s, s:b, s:O}}", "type",
                                      "json_schema", "json_schema", "name",
                                      "output", "strict", 1, "schema", schema));
}

/* "high" is what a model does that is asked for nothing. */
static tr_status_t
take_effort(const tr_translation_t *t, const json_t *effort)
{
    if (!json_is_string(effort)) {
        return tr_translate_wrong_type(t, "output_config.effort", "a string",
                                       effort);
    }
    if (t->c->api->chat_template->reads_effort
        || tr_openai_effort_budget(t->c->api, json_string_value(effort)) >= 0) {
        return tr_translate_set(t, t->body, "reasoning_effort",
                                json_incref((json_t *) effort));
    }
    return tr_translate_is(effort, "high")
               ? TR_OK
               : tr_error_set(t->c->err, TR_ERR_INVALID, "output_config.effort",
                              "'output_config.effort': '%.64s' is not "
                              "available for this model: its chat template "
                              "does not use it.",
                              json_string_value(effort));
}

static tr_status_t
take_output_config(const tr_translation_t *t)
{
    const json_t *config = tr_json_field(t->c->root, "output_config");
    const json_t *format = tr_json_field(t->c->root, "output_format");
    const json_t *value;
    const char *key;
    tr_status_t rc = TR_OK;

    json_object_del(t->body, "output_config");
    json_object_del(t->body, "output_format");
    if (config != NULL && !json_is_object(config)) {
        return tr_translate_wrong_type(t, "output_config", "an object", config);
    }
    json_object_foreach ((json_t *) config, key, value) {
        if (rc != TR_OK || json_is_null(value)) {
            continue;
        }
        if (strcmp(key, "format") == 0) {
            rc = take_format(t, value, "output_config.format");
        } else if (strcmp(key, "effort") == 0) {
            rc = take_effort(t, value);
        } else {
            rc = tr_error_set(t->c->err, TR_ERR_INVALID, "output_config",
                              "'output_config.%.64s' is not supported; "
                              "'format' and 'effort' are.",
                              key);
        }
    }
    if (rc == TR_OK && format != NULL) {
        rc = take_format(t, format, "output_format");
    }
    return rc;
}

tr_status_t
tr_anthropic_translate(tr_openai_call_t *c)
{
    static const tr_translate_step_t steps[] = { take_messages,
                                                 take_tools,
                                                 take_tool_choice,
                                                 take_stop_sequences,
                                                 take_output_config,
                                                 take_thinking_config,
                                                 NULL };
    size_t n;
    const tr_field_t *rows = tr_anthropic_fields(&n);

    return tr_translate(c, rows, n, TR_FIELD_ANTHROPIC, steps);
}
