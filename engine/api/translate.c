/*
 * Bodies of other APIs become those of a chat (translate.h): a copy of the body is
 * begun, messages are added to it part by part, and settled at the end into what
 * a chat's clients write: text where all of it is text, arguments as a string.
 */
#include "translate.h"

#include <stdlib.h>
#include <string.h>

tr_status_t
tr_translate(tr_openai_call_t *c, const tr_field_t *rows, size_t n,
             unsigned where, const tr_translate_step_t *steps)
{
    tr_translation_t t = { .c = c };
    tr_status_t rc = tr_fields_check(rows, n, c->root, where, "", c->err);

    if (rc != TR_OK) {
        return rc;
    }
    t.body = json_copy(c->root);
    t.messages = json_array();
    if (json_object_set_new(t.body, "messages", t.messages) != 0) {
        rc = tr_translate_no_memory(&t);
    }
    for (; rc == TR_OK && *steps != NULL; steps++) {
        rc = (*steps)(&t);
    }
    if (rc != TR_OK) {
        json_decref(t.body);
        return rc;
    }
    json_decref(c->root);
    c->root = t.body;
    return TR_OK;
}

tr_status_t
tr_translate_no_memory(const tr_translation_t *t)
{
    return tr_openai_no_memory(t->c);
}

tr_status_t
tr_translate_wrong_type(const tr_translation_t *t, const char *param,
                        const char *expected, const json_t *got)
{
    return tr_json_wrong_type(t->c->err, param, expected, got);
}

tr_status_t
tr_translate_wrong_value(const tr_translation_t *t, const char *param,
                         const json_t *got, const char *expected)
{
    if (!json_is_string(got)) {
        return tr_translate_wrong_type(t, param, "a string", got);
    }
    return tr_error_set(t->c->err, TR_ERR_INVALID, param,
                        "Invalid '%s': '%.64s'. Expected %s.", param,
                        json_string_value(got), expected);
}

bool
tr_translate_is(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

tr_status_t
tr_translate_set(const tr_translation_t *t, json_t *object, const char *name,
                 json_t *value)
{
    return json_object_set_new(object, name, value) == 0
               ? TR_OK
               : tr_translate_no_memory(t);
}

static tr_status_t
append(const tr_translation_t *t, json_t *array, json_t *value)
{
    return json_array_append_new(array, value) == 0 ? TR_OK
                                                    : tr_translate_no_memory(t);
}

json_t *
tr_translate_message(const tr_translation_t *t, const char *role, bool join)
{
    size_t n = json_array_size(t->messages);
    json_t *last = n == 0 ? NULL : json_array_get(t->messages, n - 1);

    if (join && last != NULL
        && tr_translate_is(json_object_get(last, "role"), role)) {
        return last;
    }
    last = json_pack("{s:s, s:[]}", "role", role, "content");
    return json_array_append_new(t->messages, last) == 0 ? last : NULL;
}

json_t *
tr_translate_result(const tr_translation_t *t, const json_t *id)
{
    json_t *message = json_pack("{s:s, s:O, s:[]}", "role", "tool",
                                "tool_call_id", id, "content");

    return json_array_append_new(t->messages, message) == 0 ? message : NULL;
}

tr_status_t
tr_translate_text(const tr_translation_t *t, json_t *parts, const json_t *text)
{
    return append(t, parts,
                  json_pack("{s:s, s:O}", "type", "text", "text", text));
}

tr_status_t
tr_translate_reasoning(const tr_translation_t *t, json_t *message,
                       const json_t *text)
{
    json_t *parts = json_object_get(message, "reasoning_content");

    if (parts == NULL) {
        parts = json_array();
        if (json_object_set_new(message, "reasoning_content", parts) != 0) {
            return tr_translate_no_memory(t);
        }
    }
    return append(t, parts, json_incref((json_t *) text));
}

tr_status_t
tr_translate_call(const tr_translation_t *t, json_t *message, const json_t *id,
                  const json_t *name, const json_t *arguments)
{
    json_t *calls = json_object_get(message, "tool_calls");

    if (calls == NULL) {
        calls = json_array();
        if (json_object_set_new(message, "tool_calls", calls) != 0) {
            return tr_translate_no_memory(t);
        }
    }
    return append(t, calls,
                  json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type",
                            "function", "function", "name", name, "arguments",
                            arguments));
}

tr_status_t
tr_translate_function(const tr_translation_t *t, json_t *tools,
                      json_t *function)
{
    return json_array_append_new(tools,
                                 json_pack("{s:s, s:o}", "type", "function",
                                           "function", function))
                   == 0
               ? TR_OK
               : tr_translate_no_memory(t);
}

tr_status_t
tr_translate_tools(const tr_translation_t *t, tr_translate_tool_t take)
{
    const json_t *list = tr_json_field(t->c->root, "tools"), *tool;
    tr_status_t rc;
    json_t *tools;
    char param[64];
    size_t i;

    if (list == NULL) {
        return TR_OK;
    }
    if (!json_is_array(list)) {
        return tr_translate_wrong_type(t, "tools", "an array of tools", list);
    }
    tools = json_array();
    rc = tr_translate_set(t, t->body, "tools", tools);
    json_array_foreach ((json_t *) list, i, tool) {
        if (rc != TR_OK) {
            break;
        }
        if (!json_is_object(tool)) {
            snprintf(param, sizeof(param), "tools[%zu]", i);
            return tr_translate_wrong_type(t, param, "an object", tool);
        }
        rc = take(t, tool, i, tools);
    }
    return rc;
}

/* Blocks of reasoning become one text, a line each.  All at once: a body may have
 * a million of them. */
static tr_status_t
join_reasoning(const tr_translation_t *t, json_t *message)
{
    json_t *parts = json_object_get(message, "reasoning_content"), *part;
    size_t len = 0, i;
    tr_status_t rc;
    char *all, *at;

    if (parts == NULL) {
        return TR_OK;
    }
    json_array_foreach (parts, i, part) {
        len += json_string_length(part) + 1;
    }
    at = all = malloc(len);
    if (all == NULL) {
        return tr_translate_no_memory(t);
    }
    json_array_foreach (parts, i, part) {
        memcpy(at, json_string_value(part), json_string_length(part));
        at += json_string_length(part);
        *at++ = '\n';
    }
    rc = tr_translate_set(t, message, "reasoning_content",
                          json_stringn_nocheck(all, len - 1));
    free(all);
    return rc;
}

/* One part is a string; none is "", or null beside calls. */
tr_status_t
tr_translate_settle(const tr_translation_t *t)
{
    json_t *message, *parts;
    tr_status_t rc = TR_OK;
    size_t i;

    json_array_foreach (t->messages, i, message) {
        rc = join_reasoning(t, message);
        if (rc != TR_OK) {
            return rc;
        }
        parts = json_object_get(message, "content");
        if (json_array_size(parts) == 1) {
            parts = json_object_get(json_array_get(parts, 0), "text");
            rc = tr_translate_set(t, message, "content", json_incref(parts));
        } else if (json_array_size(parts) == 0) {
            rc = tr_translate_set(t, message, "content",
                                  json_object_get(message, "tool_calls") != NULL
                                      ? json_null()
                                      : json_string(""));
        }
        if (rc != TR_OK) {
            return rc;
        }
    }
    return rc;
}
