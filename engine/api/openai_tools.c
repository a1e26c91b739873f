/*
 * Tools of a chat: their definitions, which of them may be called, and the calls
 * and results that a conversation already has.  Older forms of the API
 * (functions, function_call) become today's here, so that nothing behind this
 * file knows them.
 */
#include "openai_internal.h"
#include "openai_params.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

#define TOOLS_MAX 256

/* ---- can it be done? ---------------------------------------------------- */

/* Can answers be held to calls? */
static bool
can_hold(const tr_openai_call_t *c)
{
    return tr_dialect_holds(c->api->dialect);
}

#define WHY_NOT "in the form in which this model's chat template writes calls"

/* ---- definitions -------------------------------------------------------- */

static tr_status_t
check_name(tr_openai_call_t *c, const json_t *name, const char *param)
{
    const char *text = json_string_value(name);
    size_t len = json_string_length(name), i;

    if (!json_is_string(name)) {
        return tr_json_wrong_type(c->err, param, "a string", name);
    }
    for (i = 0; i < len; i++) {
        char ch = text[i];

        if (!((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')
              || (ch >= '0' && ch <= '9') || ch == '_' || ch == '-')) {
            break;
        }
    }
    if (len == 0 || len > TR_DIALECT_NAME_MAX || i < len) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Invalid '%s': '%.80s'. Expected 1 to %u letters, "
                            "digits, underscores and dashes.",
                            param, text, TR_DIALECT_NAME_MAX);
    }
    return TR_OK;
}

static tr_status_t
check_strict(tr_openai_call_t *c, const json_t *function, const char *param)
{
    const json_t *strict = tr_json_field(function, "strict");

    if (strict != NULL && !json_is_boolean(strict)) {
        return tr_json_wrong_type(c->err, param, "a boolean", strict);
    }
    return json_is_true(strict) && !can_hold(c)
               ? tr_error_set(c->err, TR_ERR_INVALID, param,
                              "'%s': arguments cannot be constrained to a "
                              "schema %s; use false.",
                              param, WHY_NOT)
               : TR_OK;
}

static tr_status_t
check_function(tr_openai_call_t *c, const json_t *function, const char *at)
{
    const json_t *value;
    char param[96];
    tr_status_t rc;

    if (!json_is_object(function)) {
        return tr_json_wrong_type(c->err, at, "an object", function);
    }
    snprintf(param, sizeof(param), "%s.name", at);
    rc = check_name(c, json_object_get(function, "name"), param);
    value = tr_json_field(function, "description");
    if (rc == TR_OK && value != NULL && !json_is_string(value)) {
        snprintf(param, sizeof(param), "%s.description", at);
        rc = tr_json_wrong_type(c->err, param, "a string", value);
    }
    value = tr_json_field(function, "parameters");
    if (rc == TR_OK && value != NULL && !json_is_object(value)) {
        snprintf(param, sizeof(param), "%s.parameters", at);
        rc = tr_json_wrong_type(c->err, param, "an object", value);
    }
    if (rc == TR_OK) {
        snprintf(param, sizeof(param), "%s.strict", at);
        rc = check_strict(c, function, param);
    }
    return rc;
}

static tr_status_t
check_tool(tr_openai_call_t *c, const json_t *tool, size_t i)
{
    const json_t *type = json_object_get(tool, "type");
    char param[64];

    snprintf(param, sizeof(param), "tools[%zu]", i);
    if (!json_is_object(tool)) {
        return tr_json_wrong_type(c->err, param, "an object", tool);
    }
    snprintf(param, sizeof(param), "tools[%zu].type", i);
    if (!json_is_string(type)) {
        return tr_json_wrong_type(c->err, param, "a string", type);
    }
    if (strcmp(json_string_value(type), "function") != 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Tools of type '%.64s' are not supported; only "
                            "'function' is.",
                            json_string_value(type));
    }
    snprintf(param, sizeof(param), "tools[%zu].function", i);
    return check_function(c, json_object_get(tool, "function"), param);
}

static const char *
name_of(const json_t *tool)
{
    return json_string_value(
        json_object_get(json_object_get(tool, "function"), "name"));
}

static const json_t *
find_tool(const json_t *tools, const char *name)
{
    const json_t *tool;
    size_t i;

    json_array_foreach ((json_t *) tools, i, tool) {
        if (strcmp(name_of(tool), name) == 0) {
            return tool;
        }
    }
    return NULL;
}

static tr_status_t
check_tools(tr_openai_call_t *c, const json_t *tools)
{
    const json_t *tool;
    char param[64];
    tr_status_t rc;
    size_t i;

    if (!json_is_array(tools)) {
        return tr_json_wrong_type(c->err, "tools", "an array of tools", tools);
    }
    if (json_array_size(tools) > TOOLS_MAX) {
        return tr_error_set(c->err, TR_ERR_INVALID, "tools",
                            "Invalid 'tools': %zu of them. Expected at most "
                            "%d.",
                            json_array_size(tools), TOOLS_MAX);
    }
    json_array_foreach ((json_t *) tools, i, tool) {
        rc = check_tool(c, tool, i);
        if (rc != TR_OK) {
            return rc;
        }
        if (find_tool(tools, name_of(tool)) != tool) {
            snprintf(param, sizeof(param), "tools[%zu].function.name", i);
            return tr_error_set(c->err, TR_ERR_INVALID, param,
                                "Invalid '%s': another tool is already named "
                                "'%s'.",
                                param, name_of(tool));
        }
    }
    return TR_OK;
}

/* functions: the tools of the older API. */
static tr_status_t
take_functions(tr_openai_call_t *c)
{
    const json_t *functions = tr_json_field(c->root, "functions"), *one;
    json_t *tools;
    size_t i;

    if (functions == NULL || json_array_size(functions) == 0) {
        return functions == NULL || json_is_array(functions)
                   ? TR_OK
                   : tr_json_wrong_type(c->err, "functions",
                                        "an array of objects", functions);
    }
    if (json_array_size(tr_json_field(c->root, "tools")) != 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, "functions",
                            "'functions' and 'tools' cannot both be given.");
    }
    tools = json_array();
    json_array_foreach ((json_t *) functions, i, one) {
        json_array_append_new(tools, json_pack("{s:s, s:O}", "type", "function",
                                               "function", one));
    }
    return json_object_set_new(c->root, "tools", tools) == 0
               ? TR_OK
               : tr_openai_no_memory(c);
}

/* ---- which may be called ------------------------------------------------ */

/* A call must be made, of any tool or (only) of this one. */
static tr_status_t
require(tr_openai_call_t *c, const char *param, const char *only)
{
    if (tr_dialect_name(c->api->dialect) != NULL && !can_hold(c)) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "'%s' requires a tool call, but an answer cannot "
                            "be constrained to one %s; use \"none\" or "
                            "\"auto\".",
                            param, WHY_NOT);
    }
    c->choice = only != NULL ? CHOICE_NAMED : CHOICE_REQUIRED;
    c->only = only;
    return TR_OK;
}

/* The tools that the list names, each once, as an array in *left. */
static tr_status_t
pick_allowed(tr_openai_call_t *c, const json_t *list, const json_t *tools,
             json_t *left)
{
    const json_t *one, *tool;
    const char *name;
    size_t i;

    json_array_foreach ((json_t *) list, i, one) {
        name = name_of(one);
        name = name != NULL ? name
                            : json_string_value(json_object_get(one, "name"));
        tool = name != NULL ? find_tool(tools, name) : NULL;
        if (tool == NULL) {
            return tr_error_set(c->err, TR_ERR_INVALID,
                                "tool_choice.allowed_tools",
                                "Tool choice '%.64s' not found in 'tools' "
                                "parameter.",
                                name != NULL ? name : "");
        }
        if (find_tool(left, name) != NULL) {
            return tr_error_set(c->err, TR_ERR_INVALID,
                                "tool_choice.allowed_tools.tools",
                                "Invalid 'tool_choice.allowed_tools.tools': "
                                "'%.64s' is listed twice.",
                                name);
        }
        json_array_append(left, (json_t *) tool);
    }
    return TR_OK;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}: the others are
 * left out. */
static tr_status_t
take_allowed(tr_openai_call_t *c, const json_t *choice, json_t **tools)
{
    const json_t *allowed = json_object_get(choice, "allowed_tools");
    const char *mode = json_string_value(json_object_get(allowed, "mode"));
    const json_t *list = json_object_get(allowed, "tools");
    bool required = mode != NULL && strcmp(mode, "required") == 0;
    json_t *left;
    tr_status_t rc;

    if (!json_is_array(list) || mode == NULL) {
        return tr_error_set(c->err, TR_ERR_INVALID, "tool_choice.allowed_tools",
                            "Invalid 'tool_choice.allowed_tools': expected an "
                            "object with 'mode' and 'tools'.");
    }
    if (!required && strcmp(mode, "auto") != 0) {
        return tr_error_set(c->err, TR_ERR_INVALID,
                            "tool_choice.allowed_tools.mode",
                            "Invalid value: '%.64s'. Expected 'auto' or "
                            "'required'.",
                            mode);
    }
    if (required && json_array_size(list) == 0) {
        return tr_error_set(c->err, TR_ERR_INVALID,
                            "tool_choice.allowed_tools.tools",
                            "Invalid 'tool_choice.allowed_tools.tools': empty "
                            "array. Mode 'required' expects one tool or more.");
    }
    left = json_array();
    rc = pick_allowed(c, list, *tools, left);
    if (rc != TR_OK) {
        json_decref(left);
        return rc;
    }
    *tools = left;
    if (json_object_set_new(c->root, "tools", left) != 0) {
        return tr_openai_no_memory(c);
    }
    return required ? require(c, "tool_choice", NULL) : TR_OK;
}

/* {"type": "function", "function": {"name"}}, or the older {"name"}. */
static tr_status_t
take_named(tr_openai_call_t *c, const json_t *choice, const json_t *tools,
           const char *param)
{
    const char *name = name_of(choice);

    name = name != NULL ? name
                        : json_string_value(json_object_get(choice, "name"));
    if (name == NULL) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Invalid '%s': expected an object that names a "
                            "function.",
                            param);
    }
    if (find_tool(tools, name) == NULL) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Tool choice '%.64s' not found in 'tools' "
                            "parameter.",
                            name);
    }
    return require(c, param, name);
}

/* c->choice, and the tools that are left. */
static tr_status_t
read_choice(tr_openai_call_t *c, json_t **tools)
{
    const char *param = tr_json_field(c->root, "tool_choice") != NULL
                            ? "tool_choice"
                            : "function_call";
    const json_t *choice = tr_json_field(c->root, param);
    const char *text = json_string_value(choice), *type;

    if (choice == NULL) {
        return TR_OK;
    }
    if (json_array_size(*tools) == 0
        && (text == NULL
            || (strcmp(text, "none") != 0 && strcmp(text, "auto") != 0))) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "'%s' is only allowed when 'tools' are specified.",
                            param);
    }
    if (text != NULL) {
        if (strcmp(text, "none") == 0) {
            c->choice = CHOICE_NONE;
        }
        if (c->choice == CHOICE_NONE || strcmp(text, "auto") == 0) {
            return TR_OK;
        }
        if (strcmp(text, "required") == 0) {
            return require(c, param, NULL);
        }
    }
    type = json_string_value(json_object_get(choice, "type"));
    if (type != NULL && strcmp(type, "allowed_tools") == 0) {
        return take_allowed(c, choice, tools);
    }
    if (json_is_object(choice)) {
        return take_named(c, choice, *tools, param);
    }
    return tr_error_set(c->err, TR_ERR_INVALID, param,
                        "Invalid value: '%.64s'. Expected 'none', 'auto', "
                        "'required' or an object.",
                        text != NULL ? text : tr_json_type(choice));
}

static void *
from_arena(void *arg, size_t n)
{
    return tr_arena_alloc(arg, n);
}

tr_status_t
tr_openai_read_tools(tr_openai_call_t *c, tr_chat_input_t *in)
{
    json_t *tools;
    bool parallel = true;
    tr_status_t rc = take_functions(c);

    tools = tr_json_field(c->root, "tools");
    if (rc == TR_OK && tools != NULL) {
        rc = check_tools(c, tools);
    }
    if (rc == TR_OK) {
        rc = read_choice(c, &tools);
    }
    if (rc == TR_OK) {
        rc = tr_json_bool(c->root, "parallel_tool_calls", &parallel, c->err);
    }
    if (rc != TR_OK || json_array_size(tools) == 0) {
        return rc;
    }
    if (c->r->plain) {
        return tr_openai_needs_items(c, "tools");
    }
    if (tr_dialect_name(c->api->dialect) == NULL) {
        return tr_error_set(c->err, TR_ERR_INVALID, "tools",
                            "This model's chat template has no tool format "
                            "that this server reads.");
    }
    in->tools = c->tools = tools;
    c->r->single_call = !parallel || c->choice == CHOICE_NAMED;
    c->r->named_call = c->choice == CHOICE_NAMED;
    if (c->choice != CHOICE_NONE
        && tr_dialect_read_tools(tools, from_arena, &c->r->arena, &c->r->tools)
               != TR_OK) {
        return tr_openai_no_memory(c);
    }
    return TR_OK;
}

/* ---- what an answer must be --------------------------------------------- */

static bool
any_strict(const json_t *tools)
{
    const json_t *tool;
    size_t i;

    json_array_foreach ((json_t *) tools, i, tool) {
        if (json_is_true(
                json_object_get(json_object_get(tool, "function"), "strict"))) {
            return true;
        }
    }
    return false;
}

/* Beside what content must be, which is in the request already, or alone. */
static tr_status_t
hold_tools(tr_openai_call_t *c, enum tr_dialect_hold_mode mode)
{
    tr_dialect_hold_t how = { .mode = mode,
                              .only = c->only,
                              .inside = c->r->inside,
                              .single = c->r->single_call };
    tr_grammar_spec_t *spec = &c->r->grammar_spec;
    char *tree, *kept = NULL;
    size_t len;
    tr_status_t rc;

    how.json = spec->kind == TR_GRAMMAR_JSON || spec->kind == TR_GRAMMAR_SCHEMA;
    rc = tr_dialect_hold(c->api->dialect, c->tools, &how, &tree, &len, c->err);
    if (rc == TR_OK) {
        kept = tr_arena_alloc(&c->r->arena, len + 1);
    }
    if (kept != NULL) {
        memcpy(kept, tree, len + 1);
    }
    free(tree);
    if (rc != TR_OK) {
        return rc;
    }
    if (kept == NULL) {
        return tr_openai_no_memory(c);
    }
    if (mode == TR_HOLD_FORMAT) {
        spec->around = kept;
        return TR_OK;
    }
    *spec = (tr_grammar_spec_t){ .kind = TR_GRAMMAR_TREE,
                                 .text = kept,
                                 .len = len,
                                 .param = mode == TR_HOLD_STRICT
                                              ? "tools"
                                              : "tool_choice" };
    c->r->constrained = true;
    return mode != TR_HOLD_NONE ? tr_openai_check_end(c->r, c->err) : TR_OK;
}

/* Content must be something, and calls may come instead. */
static tr_status_t
hold_format(tr_openai_call_t *c)
{
    const char *param = c->r->grammar_spec.param;

    return can_hold(c)
               ? hold_tools(c, TR_HOLD_FORMAT)
               : tr_error_set(c->err, TR_ERR_INVALID, param,
                              "'%s' together with 'tools': an answer cannot "
                              "be constrained to either of them %s; use "
                              "'tool_choice': \"none\", or leave one out.",
                              param, WHY_NOT);
}

tr_status_t
tr_openai_hold(tr_openai_call_t *c)
{
    if (c->choice == CHOICE_REQUIRED || c->choice == CHOICE_NAMED) {
        /* there is no content that a format could say something about */
        return c->tools != NULL && can_hold(c) ? hold_tools(c, TR_HOLD_REQUIRED)
                                               : TR_OK;
    }
    if (c->r->constrained && c->r->tools.n > 0) {
        return hold_format(c);
    }
    if (c->r->constrained) {
        c->r->grammar_spec.around = tr_dialect_around(c->api->dialect,
                                                      c->r->inside);
        return TR_OK;
    }
    if (c->tools == NULL || !can_hold(c)) {
        return TR_OK;
    }
    if (c->choice == CHOICE_NONE) {
        return hold_tools(c, TR_HOLD_NONE);
    }
    return any_strict(c->tools) ? hold_tools(c, TR_HOLD_STRICT) : TR_OK;
}

/* ---- calls of the conversation ------------------------------------------ */

static tr_status_t
check_call(tr_openai_call_t *c, const json_t *call, const char *at,
           uint64_t *bytes)
{
    const json_t *function = json_object_get(call, "function"), *value;
    char param[96];

    if (!json_is_object(call)) {
        return tr_json_wrong_type(c->err, at, "an object", call);
    }
    value = json_object_get(call, "type");
    snprintf(param, sizeof(param), "%s.type", at);
    if (value != NULL
        && (!json_is_string(value)
            || strcmp(json_string_value(value), "function") != 0)) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Invalid '%s': expected 'function'.", param);
    }
    value = tr_json_field(call, "id");
    snprintf(param, sizeof(param), "%s.id", at);
    if (value != NULL && !json_is_string(value)) {
        return tr_json_wrong_type(c->err, param, "a string", value);
    }
    snprintf(param, sizeof(param), "%s.function", at);
    if (!json_is_object(function)) {
        return tr_json_wrong_type(c->err, param, "an object", function);
    }
    value = json_object_get(function, "name");
    snprintf(param, sizeof(param), "%s.function.name", at);
    if (!json_is_string(value)) {
        return tr_json_wrong_type(c->err, param, "a string", value);
    }
    value = tr_json_field(function, "arguments");
    snprintf(param, sizeof(param), "%s.function.arguments", at);
    if (value != NULL && !json_is_string(value) && !json_is_object(value)) {
        return tr_json_wrong_type(c->err, param, "a string of JSON", value);
    }
    *bytes += json_string_length(value);
    return TR_OK;
}

/* function_call of an assistant's message: a call of the older API. */
static tr_status_t
take_function_call(tr_openai_call_t *c, json_t *message, size_t i)
{
    json_t *call = tr_json_field(message, "function_call");
    char id[32], param[64];

    if (call == NULL) {
        return TR_OK;
    }
    snprintf(param, sizeof(param), "messages[%zu].function_call", i);
    if (!json_is_object(call)) {
        return tr_json_wrong_type(c->err, param, "an object", call);
    }
    if (tr_json_field(message, "tool_calls") != NULL) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "'%s' and 'tool_calls' cannot both be given.",
                            param);
    }
    snprintf(id, sizeof(id), "call_%zu", i);
    json_object_set_new(message, "tool_calls",
                        json_pack("[{s:s, s:s, s:O}]", "id", id, "type",
                                  "function", "function", call));
    json_object_del(message, "function_call");
    return TR_OK;
}

tr_status_t
tr_openai_check_calls(tr_openai_call_t *c, json_t *message, size_t i,
                      uint64_t *bytes, bool *calls)
{
    const json_t *list, *call;
    char param[64];
    tr_status_t rc = take_function_call(c, message, i);
    size_t k;

    *calls = false;
    list = tr_json_field(message, "tool_calls");
    if (rc != TR_OK || list == NULL) {
        return rc;
    }
    snprintf(param, sizeof(param), "messages[%zu].tool_calls", i);
    if (!json_is_array(list)) {
        return tr_json_wrong_type(c->err, param, "an array of calls", list);
    }
    if (json_array_size(list) == 0) {
        json_object_del(message, "tool_calls");
        return TR_OK;
    }
    if (strcmp(json_string_value(json_object_get(message, "role")), "assistant")
        != 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "'%s': only an assistant message can have tool "
                            "calls.",
                            param);
    }
    if (tr_dialect_name(c->api->dialect) == NULL) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "This model's chat template has no tool format "
                            "that this server reads.");
    }
    json_array_foreach ((json_t *) list, k, call) {
        snprintf(param, sizeof(param), "messages[%zu].tool_calls[%zu]", i, k);
        rc = check_call(c, call, param, bytes);
        if (rc != TR_OK) {
            return rc;
        }
    }
    *calls = true;
    return TR_OK;
}

/* ---- results ------------------------------------------------------------ */

/* The calls of the messages so far: the newest name of an id, and the newest id
 * of a name, as JSON objects. */
typedef struct {
    json_t *names, *ids;
} calls_t;

static void
note_calls(calls_t *calls, const json_t *message)
{
    const json_t *list = json_object_get(message, "tool_calls"), *call;
    size_t k;

    json_array_foreach ((json_t *) list, k, call) {
        const char *id = json_string_value(json_object_get(call, "id"));
        const char *name = name_of(call);

        if (id != NULL && name != NULL) {
            json_object_set_new(calls->names, id, json_string(name));
            json_object_set_new(calls->ids, name, json_string(id));
        }
    }
}

/* Nine letters and digits for any id: the same for a call and its result. */
static void
shorten(json_t *object, const char *key)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "abcdefghijklmnopqrstuvwxyz";
    const char *id = json_string_value(json_object_get(object, key));
    uint64_t hash;
    char brief[10] = "";
    bool good = id != NULL && strlen(id) == 9;

    for (size_t i = 0; id != NULL && id[i] != '\0'; i++) {
        good &= strchr(digits, id[i]) != NULL;
    }
    if (id == NULL || good) {
        return;
    }
    hash = tr_fnv1a_64(TR_FNV1A_64, id, strlen(id));
    for (int i = 0; i < 9; i++) {
        hash ^= hash >> 29;
        hash *= 0xbf58476d1ce4e5b9ull;
        brief[i] = digits[(hash >> 32) % 62];
    }
    json_object_set_new(object, key, json_string(brief));
}

static void
settle_result(const calls_t *calls, json_t *message)
{
    const char *id = json_string_value(
        json_object_get(message, "tool_call_id"));
    const char *name = json_string_value(json_object_get(message, "name"));
    bool older = strcmp(json_string_value(json_object_get(message, "role")),
                        "function")
                 == 0;

    if (older && name != NULL && id == NULL) {
        id = json_string_value(json_object_get(calls->ids, name));
        if (id != NULL) {
            json_object_set_new(message, "tool_call_id", json_string(id));
        }
    } else if (name == NULL && id != NULL) {
        name = json_string_value(json_object_get(calls->names, id));
        if (name != NULL) {
            json_object_set_new(message, "name", json_string(name));
        }
    }
    if (older) {
        json_object_set_new(message, "role", json_string("tool"));
    }
}

void
tr_openai_settle_results(tr_openai_call_t *c, json_t *messages)
{
    calls_t calls = { json_object(), json_object() };
    json_t *message, *call;
    size_t i, k;

    json_array_foreach (messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));

        if (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0) {
            settle_result(&calls, message);
        }
        note_calls(&calls, message);
    }
    json_decref(calls.names);
    json_decref(calls.ids);
    if (!tr_dialect_short_ids(c->api->dialect)) {
        return;
    }
    json_array_foreach (messages, i, message) {
        shorten(message, "tool_call_id");
        json_array_foreach (json_object_get(message, "tool_calls"), k, call) {
            shorten(call, "id");
        }
    }
}
