/*
 * What an answer must be: response_format, structured_outputs and guided_*
 * become r->grammar_spec, which is compiled later (request_parser.h).
 */
#include "openai_internal.h"
#include "openai_params.h"

#include <stdlib.h>
#include <string.h>

#define NAME_MAX_LENGTH 64

typedef struct {
    const tr_openai_t *api;
    tr_request_t *r;
    tr_error_t *err;
} call_t;

/* Another field has constrained the answer already: refused. */
static tr_status_t
take(call_t *c, enum tr_grammar_kind kind, const char *param)
{
    tr_grammar_spec_t *spec = &c->r->grammar_spec;

    if (c->r->constrained) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "'%s' and '%s' both constrain the answer; use "
                            "one of them.",
                            spec->param, param);
    }
    *spec = (tr_grammar_spec_t){ .kind = kind, .param = param };
    c->r->constrained = true;
    return TR_OK;
}

/* A copy in the request's arena. */
static tr_status_t
copy(call_t *c, const char *text, size_t len, const char **out)
{
    char *p = tr_arena_alloc(&c->r->arena, len + 1);

    if (p == NULL) {
        return tr_error_set(c->err, TR_ERR_NOMEM, "", "out of memory");
    }
    memcpy(p, text, len);
    *out = p;
    return TR_OK;
}

static tr_status_t
set_text(call_t *c, const char *text, size_t len)
{
    tr_grammar_spec_t *spec = &c->r->grammar_spec;

    if (len > TR_GRAMMAR_TEXT) {
        return tr_error_set(c->err, TR_ERR_INVALID, spec->param,
                            "Invalid '%s': %zu bytes. Expected at most %u.",
                            spec->param, len, TR_GRAMMAR_TEXT);
    }
    spec->len = len;
    return copy(c, text, len, &spec->text);
}

static tr_status_t
set_json(call_t *c, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    tr_status_t rc;

    if (text == NULL) {
        return tr_error_set(c->err, TR_ERR_NOMEM, "", "out of memory");
    }
    rc = set_text(c, text, strlen(text));
    free(text);
    return rc;
}

/* ---- response_format */

static tr_status_t
read_name(call_t *c, const json_t *name)
{
    static const char field[] = "response_format.json_schema.name";
    const char *text = json_string_value(name);
    size_t n = json_string_length(name), i;

    if (!json_is_string(name)) {
        return tr_json_wrong_type(c->err, field, "a string", name);
    }
    for (i = 0; i < n; i++) {
        if (!((text[i] >= 'a' && text[i] <= 'z')
              || (text[i] >= 'A' && text[i] <= 'Z')
              || (text[i] >= '0' && text[i] <= '9') || text[i] == '_'
              || text[i] == '-')) {
            break;
        }
    }
    if (n == 0 || i < n || n > NAME_MAX_LENGTH) {
        return tr_error_set(c->err, TR_ERR_INVALID, field,
                            "Invalid '%s': \"%.64s\". Expected 1 to %d "
                            "letters, digits, '_' and '-'.",
                            field, text, NAME_MAX_LENGTH);
    }
    return copy(c, text, n, &c->r->grammar_spec.name);
}

static tr_status_t
read_json_schema(call_t *c, const json_t *format)
{
    static const char field[] = "response_format.json_schema";
    json_t *wrapper = tr_json_field(format, "json_schema"), *schema;
    bool strict = false;
    tr_status_t rc;

    if (!json_is_object(wrapper)) {
        return tr_json_wrong_type(c->err, field, "an object", wrapper);
    }
    schema = tr_json_field(wrapper, "schema");
    rc = take(c, schema == NULL ? TR_GRAMMAR_JSON : TR_GRAMMAR_SCHEMA,
              "response_format");
    if (rc == TR_OK) {
        rc = read_name(c, json_object_get(wrapper, "name"));
    }
    if (rc == TR_OK && tr_json_field(wrapper, "strict") != NULL) {
        rc = json_is_boolean(json_object_get(wrapper, "strict"))
                 ? TR_OK
                 : tr_json_wrong_type(c->err,
                                      "response_format.json_schema.strict",
                                      "a boolean",
                                      json_object_get(wrapper, "strict"));
        strict = json_is_true(json_object_get(wrapper, "strict"));
    }
    if (rc != TR_OK || schema == NULL) {
        return rc;
    }
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        return tr_json_wrong_type(c->err, "response_format.json_schema.schema",
                                  "an object", schema);
    }
    c->r->grammar_spec.flags = strict ? TR_GRAMMAR_STRICT : TR_GRAMMAR_LISTED;
    return set_json(c, schema);
}

static tr_status_t
read_response_format(call_t *c, const json_t *root)
{
    json_t *format = tr_json_field(root, "response_format"), *type;
    const char *name;

    if (format == NULL) {
        return TR_OK;
    }
    if (!json_is_object(format)) {
        return tr_json_wrong_type(c->err, "response_format", "an object",
                                  format);
    }
    type = json_object_get(format, "type");
    name = json_string_value(type);
    if (name == NULL) {
        return tr_json_wrong_type(c->err, "response_format.type", "a string",
                                  type);
    }
    if (strcmp(name, "text") == 0) {
        return TR_OK;
    }
    if (strcmp(name, "json_object") == 0) {
        return take(c, TR_GRAMMAR_JSON, "response_format");
    }
    if (strcmp(name, "json_schema") == 0) {
        return read_json_schema(c, format);
    }
    return tr_error_set(c->err, TR_ERR_INVALID, "response_format.type",
                        "'response_format' of type '%.64s' is not supported; "
                        "'text', 'json_object' and 'json_schema' are.",
                        name);
}

/* ---- structured_outputs and guided_* */

/* A value of one of these kinds, wherever it stands.  param: a literal. */
static tr_status_t
read_value(call_t *c, enum tr_grammar_kind kind, const char *param,
           const json_t *value)
{
    tr_status_t rc = take(c, kind, param);

    if (rc != TR_OK) {
        return rc;
    }
    switch (kind) {
    case TR_GRAMMAR_JSON:
        return json_is_true(value)
                   ? TR_OK
                   : tr_json_wrong_type(c->err, param, "a boolean", value);
    case TR_GRAMMAR_SCHEMA:
        c->r->grammar_spec.flags = TR_GRAMMAR_LISTED;
        if (json_is_string(value)) { /* a schema as a text, as vLLM takes it */
            return set_text(c, json_string_value(value),
                            json_string_length(value));
        }
        return json_is_object(value) || json_is_boolean(value)
                   ? set_json(c, value)
                   : tr_json_wrong_type(c->err, param, "an object or a string",
                                        value);
    case TR_GRAMMAR_CHOICE:
        return json_is_array(value)
                   ? set_json(c, value)
                   : tr_json_wrong_type(c->err, param, "an array of strings",
                                        value);
    default:
        return json_is_string(value)
                   ? set_text(c, json_string_value(value),
                              json_string_length(value))
                   : tr_json_wrong_type(c->err, param, "a string", value);
    }
}

typedef struct {
    const char *inside, *guided; /* the two places */
    const char *param;           /* of the first */
    enum tr_grammar_kind kind;
} constraint_t;

static const constraint_t constraints[] = {
    { "json", "guided_json", "structured_outputs.json", TR_GRAMMAR_SCHEMA },
    { "regex", "guided_regex", "structured_outputs.regex", TR_GRAMMAR_REGEX },
    { "choice", "guided_choice", "structured_outputs.choice",
      TR_GRAMMAR_CHOICE },
    { "grammar", "guided_grammar", "structured_outputs.grammar",
      TR_GRAMMAR_EBNF },
    { "json_object", "guided_json_object", "structured_outputs.json_object",
      TR_GRAMMAR_JSON },
};

#define CONSTRAINTS (sizeof(constraints) / sizeof(constraints[0]))

static const constraint_t *
find(const char *inside)
{
    for (size_t i = 0; i < CONSTRAINTS; i++) {
        if (strcmp(constraints[i].inside, inside) == 0) {
            return &constraints[i];
        }
    }
    return NULL;
}

static tr_status_t
read_structured_outputs(call_t *c, const json_t *root)
{
    json_t *list = tr_json_field(root, "structured_outputs"), *value;
    const char *name;
    tr_status_t rc;

    if (list == NULL) {
        return TR_OK;
    }
    if (!json_is_object(list)) {
        return tr_json_wrong_type(c->err, "structured_outputs", "an object",
                                  list);
    }
    json_object_foreach (list, name, value) {
        const constraint_t *what = find(name);

        if (json_is_null(value) || json_is_false(value)) {
            continue;
        }
        if (what == NULL) {
            return tr_error_set(c->err, TR_ERR_INVALID, "structured_outputs",
                                "'structured_outputs.%.64s' is not supported; "
                                "'json', 'regex', 'choice', 'grammar' and "
                                "'json_object' are.",
                                name);
        }
        rc = read_value(c, what->kind, what->param, value);
        if (rc != TR_OK) {
            return rc;
        }
    }
    return TR_OK;
}

static tr_status_t
read_guided(call_t *c, const json_t *root)
{
    for (size_t i = 0; i < CONSTRAINTS; i++) {
        const json_t *value = tr_json_field(root, constraints[i].guided);
        tr_status_t rc;

        if (value == NULL || json_is_false(value)) {
            continue;
        }
        rc = read_value(c, constraints[i].kind, constraints[i].guided, value);
        if (rc != TR_OK) {
            return rc;
        }
    }
    return TR_OK;
}

tr_status_t
tr_openai_check_end(const tr_request_t *r, tr_error_t *err)
{
    return r->params.ignore_eos
               ? tr_error_set(err, TR_ERR_INVALID, "ignore_eos",
                              "'ignore_eos' cannot be used with '%s': the "
                              "answer ends where it is complete.",
                              r->grammar_spec.param)
               : TR_OK;
}

tr_status_t
tr_openai_read_grammar(const tr_openai_t *api, const json_t *root,
                       tr_request_t *r, tr_error_t *err)
{
    call_t c = { api, r, err };
    tr_status_t rc = read_response_format(&c, root);

    if (rc == TR_OK) {
        rc = read_structured_outputs(&c, root);
    }
    if (rc == TR_OK) {
        rc = read_guided(&c, root);
    }
    return rc == TR_OK && r->constrained ? tr_openai_check_end(r, err) : rc;
}
