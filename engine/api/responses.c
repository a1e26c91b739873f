/*
 * OpenAI's Responses API: its body becomes that of a chat, which the rest of
 * this folder reads.  What differs is checked here, so that errors name what the
 * client sent; tools, sampling and lengths are checked where a chat's are.
 *
 *   instructions              a message with the role system, ahead
 *   message items             messages
 *   reasoning items           reasoning_content
 *   function_call items       tool_calls
 *   function_call_output      messages with the role tool
 *
 * What an assistant said in one turn (reasoning, text, calls) is one message.
 * The response repeats members of the request, which are written here (ECHO of
 * wire.h), since the worker parses no JSON.
 */
#include "responses.h"

#include <stdlib.h>
#include <string.h>

#define REPEATED_MAX (256u << 10) /* bytes of a member that is repeated */

/* ---- items -------------------------------------------------------------- */

/* Text parts of these types, or a string, into parts. */
static tr_status_t
take_texts(const tr_translation_t *t, const json_t *content, const char *at,
           json_t *parts)
{
    static const char *const types[] = { "input_text", "output_text", "text",
                                         "summary_text", "reasoning_text" };
    char param[TR_ERROR_PARAM];
    const json_t *part, *type, *text;
    tr_status_t rc = TR_OK;
    bool known;
    size_t i;

    if (json_is_string(content)) {
        return tr_translate_text(t, parts, content);
    }
    if (!json_is_array(content)) {
        return tr_translate_wrong_type(t, at, "a string or an array of parts",
                                       content);
    }
    json_array_foreach ((json_t *) content, i, part) {
        type = json_object_get(part, "type");
        known = false;
        for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
            known |= tr_translate_is(type, types[k]);
        }
        text = json_object_get(part, "text");
        if (tr_translate_is(type, "refusal")) {
            known = true;
            text = json_object_get(part, "refusal");
        }
        snprintf(param, sizeof(param), "%.64s[%zu].type", at, i);
        if (!known) {
            return tr_translate_wrong_value(t, param, type,
                                            "'input_text' or 'output_text': "
                                            "this model reads text only");
        }
        snprintf(param, sizeof(param), "%.64s[%zu].text", at, i);
        if (!json_is_string(text)) {
            return tr_translate_wrong_type(t, param, "a string", text);
        }
        rc = tr_translate_text(t, parts, text);
        if (rc != TR_OK) {
            return rc;
        }
    }
    return rc;
}

static tr_status_t
take_message(const tr_translation_t *t, const json_t *item, size_t i)
{
    static const char *const roles[] = { "user", "assistant", "system",
                                         "developer" };
    const json_t *role = json_object_get(item, "role");
    json_t *message = NULL;
    char param[64];

    for (size_t k = 0; k < sizeof(roles) / sizeof(roles[0]); k++) {
        if (tr_translate_is(role, roles[k])) {
            message = tr_translate_message(t, roles[k], k == 1);
            if (message == NULL) {
                return tr_translate_no_memory(t);
            }
        }
    }
    snprintf(param, sizeof(param), "input[%zu].role", i);
    if (message == NULL) {
        return tr_translate_wrong_value(t, param, role,
                                        "'user', 'assistant', 'system' or "
                                        "'developer'");
    }
    snprintf(param, sizeof(param), "input[%zu].content", i);
    return take_texts(t, json_object_get(item, "content"), param,
                      json_object_get(message, "content"));
}

static tr_status_t
take_call(const tr_translation_t *t, const json_t *item, size_t i)
{
    static const char *const names[] = { "call_id", "name", "arguments" };
    json_t *message = tr_translate_message(t, "assistant", true);
    const json_t *value;
    char param[64];

    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        value = json_object_get(item, names[k]);
        if (!json_is_string(value)) {
            snprintf(param, sizeof(param), "input[%zu].%s", i, names[k]);
            return tr_translate_wrong_type(t, param, "a string", value);
        }
    }
    return message == NULL
               ? tr_translate_no_memory(t)
               : tr_translate_call(t, message, json_object_get(item, "call_id"),
                                   json_object_get(item, "name"),
                                   json_object_get(item, "arguments"));
}

static tr_status_t
take_output(const tr_translation_t *t, const json_t *item, size_t i)
{
    const json_t *id = json_object_get(item, "call_id");
    json_t *message;
    char param[64];

    snprintf(param, sizeof(param), "input[%zu].call_id", i);
    if (!json_is_string(id)) {
        return tr_translate_wrong_type(t, param, "a string", id);
    }
    message = tr_translate_result(t, id);
    if (message == NULL) {
        return tr_translate_no_memory(t);
    }
    snprintf(param, sizeof(param), "input[%zu].output", i);
    return take_texts(t, json_object_get(item, "output"), param,
                      json_object_get(message, "content"));
}

/* What was thought, or a summary where that is all there is. */
static tr_status_t
take_reasoning(const tr_translation_t *t, const json_t *item, size_t i)
{
    const json_t *texts = tr_json_field(item, "content"), *part;
    const char *name = "content";
    json_t *message, *parts;
    char param[64];
    tr_status_t rc;
    size_t k;

    if (json_array_size(texts) == 0) {
        name = "summary";
        texts = tr_json_field(item, name);
    }
    if (texts == NULL) {
        return TR_OK; /* encrypted by another server: nobody can read it */
    }
    parts = json_array();
    snprintf(param, sizeof(param), "input[%zu].%s", i, name);
    rc = take_texts(t, texts, param, parts);
    message = rc == TR_OK ? tr_translate_message(t, "assistant", true) : NULL;
    json_array_foreach (parts, k, part) {
        if (message == NULL) {
            break;
        }
        rc = tr_translate_reasoning(t, message, json_object_get(part, "text"));
        if (rc != TR_OK) {
            break;
        }
    }
    json_decref(parts);
    return rc == TR_OK && message == NULL ? tr_translate_no_memory(t) : rc;
}

static tr_status_t
take_item(const tr_translation_t *t, const json_t *item, size_t i)
{
    const json_t *type = tr_json_field(item, "type");
    char param[64];

    snprintf(param, sizeof(param), "input[%zu]", i);
    if (!json_is_object(item)) {
        return tr_translate_wrong_type(t, param, "an object", item);
    }
    if (type == NULL && json_object_get(item, "role") != NULL) {
        return take_message(t, item, i);
    }
    if (tr_translate_is(type, "message")) {
        return take_message(t, item, i);
    }
    if (tr_translate_is(type, "function_call")) {
        return take_call(t, item, i);
    }
    if (tr_translate_is(type, "function_call_output")) {
        return take_output(t, item, i);
    }
    if (tr_translate_is(type, "reasoning")) {
        return take_reasoning(t, item, i);
    }
    snprintf(param, sizeof(param), "input[%zu].type", i);
    return tr_translate_wrong_value(t, param, type,
                                    "'message', 'function_call', "
                                    "'function_call_output', 'reasoning' or "
                                    "'item_reference'");
}

static tr_status_t
take_input(const tr_translation_t *t)
{
    json_t *input = tr_json_field(t->c->root, "input"), *item, *said;
    json_t *items = NULL; /* input's, with what they refer to */
    const json_t *first = tr_json_field(t->c->root, "instructions");
    tr_status_t rc = TR_OK;
    json_t *message;
    size_t i;

    json_object_del(t->body, "input");
    json_object_del(t->body, "instructions");
    if (first != NULL && !json_is_string(first)) {
        return tr_translate_wrong_type(t, "instructions", "a string", first);
    }
    if (!json_is_string(input) && !json_is_array(input)) {
        return tr_translate_wrong_type(t, "input",
                                       "a string or an array of items", input);
    }
    if (json_is_array(input) && json_array_size(input) == 0) {
        return tr_error_set(t->c->err, TR_ERR_INVALID, "input",
                            "Invalid 'input': empty array. Expected at least "
                            "one item.");
    }
    if (first != NULL) {
        message = tr_translate_message(t, "system", false);
        rc = message == NULL
                 ? tr_translate_no_memory(t)
                 : tr_translate_text(t, json_object_get(message, "content"),
                                     first);
    }
    said = json_array();
    if (rc == TR_OK) {
        rc = tr_responses_conversation(t, said);
    }
    json_array_foreach (said, i, item) {
        if (rc == TR_OK) {
            rc = take_item(t, item, i);
        }
    }
    json_decref(said);
    if (rc == TR_OK) {
        rc = tr_responses_input(t, input, &items);
    }
    json_array_foreach (items, i, item) {
        if (rc == TR_OK) {
            rc = take_item(t, item, i);
        }
    }
    if (rc == TR_OK) {
        rc = tr_responses_keep(t, items);
    }
    json_decref(items);
    return rc == TR_OK ? tr_translate_settle(t) : rc;
}

/* ---- tools -------------------------------------------------------------- */

/* {"type": "function", "name", ...}: a chat has the rest in an object, in the
 * client's order. */
static tr_status_t
take_function(const tr_translation_t *t, const json_t *tool, size_t i,
              json_t *tools)
{
    json_t *function;
    char param[64];

    snprintf(param, sizeof(param), "tools[%zu].name", i);
    if (!json_is_string(json_object_get(tool, "name"))) {
        return tr_translate_wrong_type(t, param, "a string",
                                       json_object_get(tool, "name"));
    }
    function = json_copy((json_t *) tool);
    json_object_del(function, "type");
    return tr_translate_function(t, tools, function);
}

/* What the server would run itself is left out: clients send such tools to
 * servers that they do not know, and can do without. */
static tr_status_t
take_tool(const tr_translation_t *t, const json_t *tool, size_t i,
          json_t *tools)
{
    const json_t *type = json_object_get(tool, "type");
    char param[64];

    if (!json_is_string(type)) {
        snprintf(param, sizeof(param), "tools[%zu].type", i);
        return tr_translate_wrong_type(t, param, "a string", type);
    }
    return tr_translate_is(type, "function") ? take_function(t, tool, i, tools)
                                             : TR_OK;
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

    if (choice == NULL || json_is_string(choice)) {
        return TR_OK; /* as a chat's */
    }
    if (!json_is_object(choice)) {
        return tr_translate_wrong_type(t, "tool_choice",
                                       "a string or an object", choice);
    }
    type = json_object_get(choice, "type");
    if (tr_translate_is(type, "allowed_tools")) {
        return tr_translate_set(t, t->body, "tool_choice",
                                json_pack("{s:s, s:O}", "type", "allowed_tools",
                                          "allowed_tools", choice));
    }
    if (!tr_translate_is(type, "function")) {
        return tr_translate_wrong_value(t, "tool_choice.type", type,
                                        "'function' or 'allowed_tools'");
    }
    if (!json_is_string(json_object_get(choice, "name"))) {
        return tr_translate_wrong_type(t, "tool_choice.name", "a string",
                                       json_object_get(choice, "name"));
    }
    return tr_translate_set(t, t->body, "tool_choice",
                            json_pack("{s:s, s:{s:O}}", "type", "function",
                                      "function", "name",
                                      json_object_get(choice, "name")));
}

/* ---- what else an answer shall be --------------------------------------- */

/* A format whose members stand beside its type: a chat's are in an object. */
static tr_status_t
take_format(const tr_translation_t *t, const json_t *format)
{
    const json_t *type = json_object_get(format, "type");
    json_t *schema;

    if (!json_is_object(format)) {
        return tr_translate_wrong_type(t, "text.format", "an object", format);
    }
    if (tr_translate_is(type, "text") || tr_translate_is(type, "json_object")) {
        return tr_translate_set(t, t->body, "response_format",
                                json_incref((json_t *) format));
    }
    if (!tr_translate_is(type, "json_schema")) {
        return tr_translate_wrong_value(t, "text.format.type", type,
                                        "'text', 'json_object' or "
                                        "'json_schema'");
    }
    if (!json_is_object(json_object_get(format, "schema"))) {
        return tr_translate_wrong_type(t, "text.format.schema", "an object",
                                       json_object_get(format, "schema"));
    }
    schema = json_copy((json_t *) format);
    json_object_del(schema, "type");
    return tr_translate_set(t, t->body, "response_format",
                            json_pack("{s:s, s:o}", "type", "json_schema",
                                      "json_schema", schema));
}

static tr_status_t
take_text(const tr_translation_t *t)
{
    const json_t *text = tr_json_field(t->c->root, "text"), *value;
    tr_status_t rc = TR_OK;
    const char *key;

    json_object_del(t->body, "text");
    if (text != NULL && !json_is_object(text)) {
        return tr_translate_wrong_type(t, "text", "an object", text);
    }
    json_object_foreach ((json_t *) text, key, value) {
        if (rc != TR_OK || json_is_null(value)) {
            continue;
        }
        if (strcmp(key, "format") == 0) {
            rc = take_format(t, value);
        } else if (strcmp(key, "verbosity") == 0) {
            rc = tr_translate_is(value, "medium")
                     ? TR_OK
                     : tr_translate_wrong_value(t, "text.verbosity", value,
                                                "'medium': verbosity cannot "
                                                "be set");
        } else {
            rc = tr_error_set(t->c->err, TR_ERR_INVALID, "text",
                              "'text.%.64s' is not supported; 'format' is.",
                              key);
        }
    }
    return rc;
}

/* "medium" is what a model does that is asked for nothing. */
static tr_status_t
take_effort(const tr_translation_t *t, const json_t *effort)
{
    const tr_chat_template_t *template = t->c->api->chat_template;
    bool none = tr_translate_is(effort, "none");

    if (!json_is_string(effort)) {
        return tr_translate_wrong_type(t, "reasoning.effort", "a string",
                                       effort);
    }
    if (template->reads_effort
        || tr_openai_effort_budget(t->c->api, json_string_value(effort)) >= 0
        || (none
            && (template->reads_thinking
                || !tr_dialect_reasons(t->c->api->dialect)))) {
        return tr_translate_set(t, t->body, "reasoning_effort",
                                json_incref((json_t *) effort));
    }
    return tr_translate_is(effort, "medium")
               ? TR_OK
               : tr_error_set(t->c->err, TR_ERR_INVALID, "reasoning.effort",
                              "'reasoning.effort': '%.64s' is not available "
                              "for this model: its chat template does not "
                              "use it.",
                              json_string_value(effort));
}

/* summary and generate_summary ask for less than what comes: all of it. */
static tr_status_t
take_reasoning_config(const tr_translation_t *t)
{
    const json_t *reasoning = tr_json_field(t->c->root, "reasoning"), *value;
    tr_status_t rc = TR_OK;
    const char *key;

    json_object_del(t->body, "reasoning");
    if (reasoning != NULL && !json_is_object(reasoning)) {
        return tr_translate_wrong_type(t, "reasoning", "an object", reasoning);
    }
    json_object_foreach ((json_t *) reasoning, key, value) {
        if (rc != TR_OK || json_is_null(value) || strcmp(key, "summary") == 0
            || strcmp(key, "generate_summary") == 0) {
            continue;
        }
        rc = strcmp(key, "effort") == 0
                 ? take_effort(t, value)
                 : tr_error_set(t->c->err, TR_ERR_INVALID, "reasoning",
                                "'reasoning.%.64s' is not supported; 'effort' "
                                "is.",
                                key);
    }
    return rc;
}

/* Asks for what does not come here anyhow: reasoning is readable, and tools that a
 * server would run are left out. */
static bool
includes_nothing(const json_t *one)
{
    static const char *const names[] = { "reasoning.encrypted_content",
                                         "file_search_call.results",
                                         "web_search_call.results",
                                         "web_search_call.action.sources",
                                         "code_interpreter_call.outputs",
                                         "computer_call_output.output."
                                         "image_url",
                                         "message.input_image.image_url" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (tr_translate_is(one, names[i])) {
            return true;
        }
    }
    return false;
}

static tr_status_t
take_rest(const tr_translation_t *t)
{
    const json_t *include = tr_json_field(t->c->root, "include"), *one;
    const json_t *options = tr_json_field(t->c->root, "stream_options");
    json_t *most = tr_json_field(t->c->root, "max_output_tokens");
    int64_t ignored = 0;
    tr_status_t rc;
    char param[48];
    size_t i;

    if (include != NULL && !json_is_array(include)) {
        return tr_translate_wrong_type(t, "include", "an array of strings",
                                       include);
    }
    json_array_foreach ((json_t *) include, i, one) {
        snprintf(param, sizeof(param), "include[%zu]", i);
        if (!includes_nothing(one)) {
            return tr_translate_wrong_value(t, param, one,
                                            "'reasoning.encrypted_content', "
                                            "or what belongs to a tool that "
                                            "a server runs");
        }
    }
    if (options != NULL && !json_is_object(options)) {
        return tr_translate_wrong_type(t, "stream_options", "an object",
                                       options);
    }
    json_object_del(t->body, "stream_options"); /* padding against spies */
    rc = tr_json_integer(t->c->root, "max_output_tokens", 1, UINT32_MAX,
                         &ignored, t->c->err);
    return rc == TR_OK && most != NULL
               ? tr_translate_set(t, t->body, "max_tokens", json_incref(most))
               : rc;
}

/* ---- what the response repeats ------------------------------------------ */

/* The client's value, or fallback, which is taken. */
static json_t *
or_else(const json_t *root, const char *name, json_t *fallback)
{
    json_t *value = tr_json_field(root, name);

    if (value == NULL) {
        return fallback;
    }
    json_decref(fallback);
    return json_incref(value);
}

/* Functions alone, as the client wrote them: the others were left out. */
static json_t *
functions_of(const json_t *root)
{
    json_t *tools = json_array(), *tool;
    size_t i;

    json_array_foreach (tr_json_field(root, "tools"), i, tool) {
        if (tr_translate_is(json_object_get(tool, "type"), "function")) {
            json_array_append(tools, tool);
        }
    }
    return tools;
}

static tr_status_t
repeat(const tr_translation_t *t)
{
    const json_t *root = t->c->root;
    const tr_generation_t *g = t->c->api->generation;
    json_t *members, *value;
    const char *name;
    tr_status_t rc = tr_openai_read_tier(root, t->c->r, t->c->err);
    char *text;

    if (rc != TR_OK) {
        return rc;
    }
    members = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:s, "
        "s:b, s:o, s:o}",
        "instructions", or_else(root, "instructions", json_null()),
        "max_output_tokens", or_else(root, "max_output_tokens", json_null()),
        "metadata", or_else(root, "metadata", json_object()),
        "parallel_tool_calls",
        or_else(root, "parallel_tool_calls", json_true()),
        "previous_response_id",
        or_else(root, "previous_response_id", json_null()), "reasoning",
        or_else(root, "reasoning",
                json_pack("{s:n, s:n}", "effort", "summary")),
        "store", t->c->r->kept != NULL, "temperature",
        or_else(root, "temperature",
                json_real(g != NULL && g->temperature >= 0 ? g->temperature
                                                           : 1)),
        "text",
        or_else(root, "text", json_pack("{s:{s:s}}", "format", "type", "text")),
        "tool_choice", or_else(root, "tool_choice", json_string("auto")),
        "tools", functions_of(root), "top_p",
        or_else(root, "top_p",
                json_real(g != NULL && g->top_p >= 0 ? g->top_p : 1)),
        "truncation", "disabled", "background", 0, "user",
        or_else(root, "user", json_null()), "service_tier",
        t->c->r->names_tier ? json_string(tr_openai_tier_name(t->c->r))
                            : json_null());
    json_object_foreach (members, name, value) {
        size_t len = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);

        if (len > REPEATED_MAX) {
            json_object_set_new(members, name,
                                json_is_array(value) ? json_array()
                                                     : json_null());
        }
    }
    text = json_dumps(members, JSON_COMPACT | JSON_REAL_PRECISION(16));
    json_decref(members);
    rc = text == NULL ? tr_translate_no_memory(t)
                      : tr_openai_repeat(t->c, text + 1, strlen(text) - 2);
    free(text);
    return rc;
}

tr_status_t
tr_responses_translate(tr_openai_call_t *c)
{
    static const tr_translate_step_t steps[] = { tr_responses_look_up,
                                                 take_input,
                                                 take_tools,
                                                 take_tool_choice,
                                                 take_text,
                                                 take_reasoning_config,
                                                 take_rest,
                                                 repeat,
                                                 NULL };
    size_t n;
    const tr_field_t *rows = tr_responses_fields(&n);

    return tr_translate(c, rows, n, TR_FIELD_RESPONSES, steps);
}
