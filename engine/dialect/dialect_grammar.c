/*
 * What an answer may be, where it is held: the tools of a request in the layout
 * of the template (layout_t), and the reasoning before them, as a tree
 * (engine/grammar/grammar.h).
 */
#include "dialect_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "engine/grammar/grammar.h"

/* ---- reasoning */

#define NOTHING "\"\""
#define LINES "[\"or\",\"\",\"\\n\",\"\\n\\n\"]"

/* Harmony's marks as nodes, one behind the other. */
static void
put_marks(FILE *f, const tr_dialect_t *d, const char *text)
{
    char *nodes = tr_dialect_nodes(d->tokenizer, text, strlen(text));

    fprintf(f, "[\"seq\",%s]", nodes != NULL ? nodes : NOTHING);
    free(nodes);
}

/* One mark, as itself. */
static void
put_mark(FILE *f, const tr_dialect_t *d, const char *text)
{
    char *node = tr_dialect_nodes(d->tokenizer, text, strlen(text));

    fputs(node != NULL ? node : NOTHING, f);
    free(node);
}

/* A message of harmony's up to its end, and the header of the next one. */
static void
put_message(FILE *f, const tr_dialect_t *d, const char *header)
{
    fputs("[\"seq\",", f);
    put_marks(f, d, header);
    fputs(",[\"free\",{\"stop\":[[", f);
    put_mark(f, d, "<|end|>");
    fputs("," NOTHING "]]}],", f);
    put_marks(f, d, "<|start|>assistant");
    fputs("]", f);
}

static void
put_analysis(FILE *f, const tr_dialect_t *d)
{
    fputs("[\"or\"," NOTHING ",[\"many\",", f);
    put_message(f, d, "<|channel|>analysis<|message|>");
    fputs("," NOTHING "]]", f);
}

/* Reasoning up to its closing mark, which is opened here or (inside) was opened
 * by the prompt.  ends: the answer may end in it. */
static void
put_reasoning(FILE *f, const tr_dialect_t *d, bool inside, bool ends)
{
    if (!inside) {
        fputs("[\"or\"," NOTHING ",[\"seq\",", f);
        put_mark(f, d, d->plain_open);
        fputs(",", f);
    }
    fputs("[\"free\",{\"stop\":[[", f);
    put_mark(f, d, d->plain_close);
    fprintf(f, "," LINES "]],\"end\":%s}]%s", ends ? "true" : "false",
            inside ? "" : "]]");
}

static bool
is_harmony(const tr_dialect_t *d)
{
    return d->form != NULL && (d->form->flags & FORM_HARMONY);
}

static char *
make_around(const tr_dialect_t *d, bool inside)
{
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);

    if (f == NULL) {
        return NULL;
    }
    fputs("[\"seq\",", f);
    if (is_harmony(d)) {
        put_analysis(f, d);
        fputs(",", f);
        put_marks(f, d, "<|channel|>final<|message|>");
    } else {
        put_reasoning(f, d, inside, false);
    }
    fputs(",[\"inner\"]]", f);
    fclose(f);
    return out;
}

void
tr_dialect_make_around(tr_dialect_t *d, const tr_tokenizer_t *t)
{
    d->tokenizer = t;
    if (!is_harmony(d) && d->open.len == 0) {
        return;
    }
    d->around[0] = make_around(d, false);
    d->around[1] = make_around(d, true);
    d->thought_end = strdup(is_harmony(d) ? "<|end|>" : d->plain_close);
}

const char *
tr_dialect_around(const tr_dialect_t *d, bool inside)
{
    return d != NULL && (inside || !d->by_prompt) ? d->around[inside] : NULL;
}

const char *
tr_dialect_thought_end(const tr_dialect_t *d)
{
    return d != NULL ? d->thought_end : NULL;
}

tr_status_t
tr_dialect_end_thoughts(tr_dialect_t *d, const char *text, tr_error_t *err)
{
    const char *mark = d->thought_end;
    char *out, *at, *found;

    if (mark == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, "reasoning_end",
                            "reasoning_end is set, but nothing closes this "
                            "model's reasoning");
    }
    out = strdup(text);
    if (out == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "reasoning_end",
                            "out of memory");
    }
    for (at = out; *text != '\0'; text++) {
        bool lf = text[0] == '\\' && text[1] == 'n';

        *at++ = lf ? '\n' : *text;
        text += lf;
    }
    *at = '\0';
    found = strstr(out, mark);
    if (found == NULL || found[strlen(mark)] != '\0') {
        free(out);
        return tr_error_set(err, TR_ERR_INVALID, "reasoning_end",
                            "reasoning_end: expected a text that ends with "
                            "%s, which closes this model's reasoning, and "
                            "contains it only there",
                            mark);
    }
    free(d->thought_end);
    d->thought_end = out;
    return TR_OK;
}

/* ---- arguments */

typedef struct {
    const tr_dialect_t *d;
    const tr_dialect_hold_t *how;
    FILE *f;
    const char *name; /* of the function */
    char param[64];   /* of its parameters, for errors */
    bool strict;
    uint32_t steps; /* left of it: TR_DIALECT_STEPS */
    tr_error_t *err;
    tr_status_t rc;
} hold_t;

static void
put_json(FILE *f, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

    fputs(text != NULL ? text : "null", f);
    free(text);
}

static void
unsupported(hold_t *h, const char *what, const char *property)
{
    if (h->rc == TR_OK) {
        h->rc = tr_error_set(h->err, TR_ERR_INVALID, h->param,
                             "Invalid schema for function '%.64s': '%.64s' at "
                             "%s%.64s is not supported.",
                             h->name, what,
                             property != NULL ? "/properties/" : "/",
                             property != NULL ? property : "");
    }
}

/* Levels of JSON in a tool's parameters: the compiler takes 64 levels of schemas
 * (SCHEMA_DEPTH), each of which is two of JSON, and jansson reads a tree of no
 * more than 2048. */
#define LEVELS_MAX 256

static bool
is_deeper(const json_t *value, int levels)
{
    const json_t *one;
    const char *key;
    size_t i;

    if (!json_is_object(value) && !json_is_array(value)) {
        return false;
    }
    if (levels == 0) {
        return true;
    }
    json_array_foreach ((json_t *) value, i, one) {
        if (is_deeper(one, levels - 1)) {
            return true;
        }
    }
    json_object_foreach ((json_t *) value, key, one) {
        if (is_deeper(one, levels - 1)) {
            return true;
        }
    }
    return false;
}

/* Has the tree room left?  It is looked at before each part of it, so that a
 * tree in which a schema stands many times is not written to its end. */
static bool
has_room(hold_t *h)
{
    if (h->rc == TR_OK && ftell(h->f) > (long) TR_GRAMMAR_TREE_TEXT) {
        h->rc = tr_error_set(h->err, TR_ERR_INVALID, h->param,
                             "Invalid '%s': the schemas that constrain an "
                             "answer, counted once per parameter, exceed %u "
                             "bytes at this point. Use fewer or smaller ones.",
                             h->param, TR_GRAMMAR_TREE_TEXT);
    }
    return h->rc == TR_OK;
}

/* property: of this one alone; NULL: of the whole. */
static void
put_schema(hold_t *h, const json_t *schema, const char *property)
{
    fprintf(h->f,
            "[\"schema\",{\"flags\":%u,\"name\":\"%s\",\"param\":\"%s\","
            "\"schema\":",
            h->strict ? TR_GRAMMAR_STRICT : TR_GRAMMAR_LISTED, h->name,
            h->param);
    put_json(h->f, schema);
    if (property != NULL) {
        json_t *name = json_string(property);

        fputs(",\"property\":", h->f);
        put_json(h->f, name);
        json_decref(name);
    }
    if (h->d->layout != NULL && h->d->layout->open != NULL) {
        fprintf(h->f, ",\"bar\":[%s]", h->d->layout->json_bars);
    }
    fputs("}]", h->f);
}

/* Arguments are an object: may they be one? */
static bool
allows_object(const json_t *schema)
{
    uint32_t types = tr_dialect_own_types(schema);

    return types == 0 || (types & TR_TYPE_OBJECT) != 0;
}

/* An object of JSON by the schema. */
static void
put_object(hold_t *h, const json_t *schema)
{
    json_t *whole = schema != NULL ? json_copy((json_t *) schema)
                                   : json_object();

    if (!h->strict && json_object_size(whole) == 0) {
        fputs("[\"json\"]", h->f);
    } else if (!allows_object(whole)) {
        if (h->strict) {
            unsupported(h, "type", NULL);
        }
        fputs("[\"json\"]", h->f);
    } else {
        json_object_set_new(whole, "type", json_string("object"));
        put_schema(h, whole, NULL);
    }
    json_decref(whole);
}

/* Any text up to what closes the value. */
static void
put_free_value(hold_t *h)
{
    const layout_t *l = h->d->layout;

    fprintf(h->f, "[\"free\",{\"stop\":[%s],\"bar\":[%s],\"special\":false}]",
            l->value_end, l->value_bars);
}

/* Does the text hold what would end a value, or another mark? */
static bool
is_barred(const json_t *bars, const char *text, size_t len)
{
    const json_t *one;
    size_t i;

    json_array_foreach ((json_t *) bars, i, one) {
        if (memmem(text, len, json_string_value(one), json_string_length(one))
            != NULL) {
            return true;
        }
    }
    return false;
}

/* Leaves out what would not be read back as the string that it is. */
static void
drop_misread(const layout_t *l, tr_dialect_texts_t *texts, uint32_t types)
{
    bool told = strcmp(l->is_string, l->is_other) != 0;
    char list[4 * PATTERN_MAX + 8];
    json_t *bars, *kept = json_array(), *one;
    size_t i;

    snprintf(list, sizeof(list), "[%s]", l->value_bars);
    bars = json_loads(list, 0, NULL);
    json_array_foreach (texts->strings, i, one) {
        const char *text = json_string_value(one);
        uint32_t len = (uint32_t) json_string_length(one);

        if (!is_barred(bars, text, len)
            && (told || !(tr_dialect_read_type(text, len) & types))) {
            json_array_append(kept, one);
        }
    }
    json_decref(bars);
    json_decref(texts->strings);
    texts->strings = kept;
    if (!texts->free && texts->beyond == NULL
        && json_array_size(texts->strings) + json_array_size(texts->others)
               == 0) {
        texts->beyond = "enum";
    }
}

/* Texts of a list, each as it stands, or its other values as JSON. */
static void
put_listed(hold_t *h, const tr_dialect_texts_t *texts)
{
    const layout_t *l = h->d->layout;
    const json_t *one;
    size_t i;

    fprintf(h->f, "[\"seq\",%s,[\"or\"", l->is_string);
    json_array_foreach (texts->strings, i, one) {
        if (!has_room(h)) { /* many ways may lead to one list */
            return;
        }
        fputs(",", h->f);
        put_json(h->f, one);
    }
    fprintf(h->f, "],%s],[\"seq\",%s,[\"or\"", l->close, l->is_other);
    json_array_foreach (texts->others, i, one) {
        char *text = json_dumps(one, JSON_ENCODE_ANY);
        json_t *quoted = json_string(text);

        fputs(",", h->f);
        put_json(h->f, quoted);
        json_decref(quoted);
        free(text);
    }
    fprintf(h->f, "],%s]", l->close);
}

/* Any text, or (others) JSON by the schema, where the form tells a string from
 * another value. */
static void
put_any_text(hold_t *h, const json_t *whole, const char *key, bool others)
{
    const layout_t *l = h->d->layout;

    fprintf(h->f, "[\"seq\",%s,", l->is_string);
    put_free_value(h);
    fputs("]", h->f);
    if (others && strcmp(l->is_string, l->is_other) != 0) {
        fprintf(h->f, ",[\"seq\",%s,", l->is_other);
        put_schema(h, whole, key);
        fprintf(h->f, ",%s]", l->close);
    }
}

/* A value that may be a string. */
static void
put_text(hold_t *h, const json_t *whole, const char *key,
         const json_t *property, uint32_t types)
{
    const layout_t *l = h->d->layout;
    tr_dialect_texts_t texts;

    tr_dialect_find_texts(whole, property, types, &h->steps, &texts);
    drop_misread(l, &texts, types);
    if (h->strict && texts.beyond != NULL) {
        unsupported(h, texts.beyond, key);
    }
    fputs("[\"or\",", h->f);
    if (texts.beyond == NULL && !texts.free) {
        put_listed(h, &texts);
    } else {
        put_any_text(h, whole, key, types != TR_TYPE_STRING);
    }
    fputs("]", h->f);
    tr_dialect_free_texts(&texts);
}

/* With what is behind the parameter's name, and what closes it. */
static void
put_value(hold_t *h, const json_t *whole, const char *key,
          const json_t *property)
{
    const layout_t *l = h->d->layout;
    uint32_t types = tr_dialect_types(whole, property, &h->steps);

    if (types == 0 || (types & TR_TYPE_STRING)) {
        put_text(h, whole, key, property, types);
        return;
    }
    fprintf(h->f, "%s,", l->is_other);
    put_schema(h, whole, key);
    fprintf(h->f, ",%s", l->close);
}

/* The names of "required", as those of an object. */
static json_t *
required_of(const json_t *schema)
{
    json_t *names = json_object(), *one;
    size_t i;

    json_array_foreach (json_object_get(schema, "required"), i, one) {
        if (json_is_string(one)) {
            json_object_set(names, json_string_value(one), one);
        }
    }
    return names;
}

static void
put_parameter(hold_t *h, const json_t *whole, const char *key,
              const json_t *property, bool must)
{
    json_t *name = json_string(key);

    fprintf(h->f, ",%s[\"seq\",%s,", must ? "" : "[\"or\"," NOTHING ",",
            h->d->layout->open);
    put_json(h->f, name);
    fputs(",", h->f);
    put_value(h, whole, key, property);
    fprintf(h->f, "]%s", must ? "" : "]");
    json_decref(name);
}

/* Parameters of a schema that lists none: any, whose names are words. */
static void
put_unlisted(hold_t *h)
{
    fprintf(h->f,
            ",[\"or\"," NOTHING ",[\"many\",[\"seq\",%s,[\"chars\","
            "\"AZaz09__--\",1,64],[\"or\",",
            h->d->layout->open);
    put_any_text(h, json_true(), NULL, true);
    fputs("]]," NOTHING "]]", h->f);
}

/* What parameters as marked-up text are not held to. */
static void
refuse_parameters(hold_t *h, const json_t *schema, const json_t *required)
{
    static const char *const refused[] = { "$ref",
                                           "anyOf",
                                           "oneOf",
                                           "allOf",
                                           "not",
                                           "if",
                                           "enum",
                                           "const",
                                           "minProperties",
                                           "maxProperties",
                                           "patternProperties",
                                           "propertyNames",
                                           "dependentRequired",
                                           "dependentSchemas",
                                           "dependencies",
                                           "unevaluatedProperties",
                                           "$dynamicRef",
                                           "$recursiveRef" };
    json_t *properties = json_object_get(schema, "properties"), *one;
    const char *key;

    if (!allows_object(schema)) {
        unsupported(h, "type", NULL);
    }
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (json_object_get(schema, refused[i]) != NULL) {
            unsupported(h, refused[i], NULL);
        }
    }
    json_object_foreach (properties, key, one) {
        if (!tr_dialect_key_ok(h->d, key, strlen(key))) {
            unsupported(h, "properties", key);
        }
    }
    json_object_foreach ((json_t *) required, key, one) {
        if (json_object_get(properties, key) == NULL) {
            unsupported(h, "required", NULL);
        }
    }
}

/* Parameters as marked-up text, in the schema's order; those whose names cannot
 * be written are left out. */
static void
put_parameters(hold_t *h, const json_t *schema)
{
    json_t *properties = json_object_get(schema, "properties"), *one;
    json_t *required = required_of(schema);
    const char *key;

    if (h->strict) {
        refuse_parameters(h, schema, required);
    } else if (json_object_size(properties) == 0
               && !json_is_false(
                   json_object_get(schema, "additionalProperties"))) {
        fputs(NOTHING, h->f);
        put_unlisted(h);
        json_decref(required);
        return;
    }
    fputs(NOTHING, h->f);
    json_object_foreach (properties, key, one) {
        if (!has_room(h)) {
            break;
        }
        if (tr_dialect_key_ok(h->d, key, strlen(key))) {
            put_parameter(h, schema, key, one,
                          json_object_get(required, key) != NULL);
        }
    }
    json_decref(required);
}

/* ---- calls */

static void
put_arguments(hold_t *h, const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters");

    schema = json_is_object(schema) ? schema : NULL;
    if (is_deeper(schema, LEVELS_MAX)) {
        h->rc = tr_error_set(h->err, TR_ERR_INVALID, h->param,
                             "Invalid schema for function '%.64s': '%s' is "
                             "nested deeper than %d levels.",
                             h->name, h->param, LEVELS_MAX);
        return;
    }
    if (is_harmony(h->d) || h->d->layout->open == NULL) {
        put_object(h, schema);
    } else {
        put_parameters(h, schema);
    }
}

/* One of the tools: its name, what stands behind names, and its arguments. */
static void
put_call(hold_t *h, const json_t *tools)
{
    const json_t *tool;
    size_t i;

    fputs("[\"or\"", h->f);
    json_array_foreach ((json_t *) tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");

        h->name = json_string_value(json_object_get(function, "name"));
        h->strict = json_is_true(json_object_get(function, "strict"));
        if (h->how->only != NULL && strcmp(h->how->only, h->name) != 0) {
            continue;
        }
        snprintf(h->param, sizeof(h->param), "tools[%zu].function.parameters",
                 i);
        h->steps = TR_DIALECT_STEPS;
        if (!has_room(h)) {
            break;
        }
        fprintf(h->f, ",[\"seq\",\"%s\",", h->name);
        if (is_harmony(h->d)) {
            fputs("\" \",", h->f);
            put_marks(h->f, h->d, "<|constrain|>json<|message|>");
        } else {
            fputs(h->d->layout->after, h->f);
        }
        fputs(",", h->f);
        put_arguments(h, function);
        fputs("]", h->f);
    }
    fputs("]", h->f);
}

/* From the name of the first call to the end of the last one. */
static void
put_calls(hold_t *h, const json_t *tools)
{
    const layout_t *l = h->d->layout;

    fputs("[\"seq\",", h->f);
    if (l->between != NULL && !h->how->single) {
        fputs("[\"many\",", h->f);
        put_call(h, tools);
        fprintf(h->f, ",[\"seq\",%s]]", l->between);
    } else {
        put_call(h, tools);
    }
    fprintf(h->f, ",%s]", l->tail);
}

/* Content up to a mark that begins a call.  calls: none may come. */
static void
put_content(hold_t *h, bool calls, bool start)
{
    const layout_t *l = h->d->layout;
    bool reasons = h->d->open.len != 0;

    fputs("[\"free\",{\"end\":true", h->f);
    if (calls) {
        fprintf(h->f, ",\"stop\":[%s]", l->stops);
    }
    fprintf(h->f, ",\"bar\":[%s", l->bars);
    if (reasons && calls) {
        fputs(",", h->f);
        put_mark(h->f, h->d, h->d->plain_open);
    }
    fprintf(h->f, "]%s}]", start ? ",\"first\":\"{\"" : "");
}

static void
put_answer(hold_t *h, const json_t *tools)
{
    const layout_t *l = h->d->layout;
    bool single = h->how->single || l->between == NULL;

    switch (h->how->mode) {
    case TR_HOLD_REQUIRED:
        fprintf(h->f, "%s,", l->head);
        put_calls(h, tools);
        break;
    case TR_HOLD_FORMAT:
        fprintf(h->f, "[\"or\",[\"inner\",[%s]],[\"seq\",%s,",
                h->how->json ? l->json_bars : "", l->head);
        put_calls(h, tools);
        fputs("]]", h->f);
        break;
    case TR_HOLD_NONE:
        put_content(h, false, false);
        break;
    case TR_HOLD_STRICT:
        if (l->starts) { /* what begins as a call does is one */
            fprintf(h->f, "[\"or\",[\"seq\",%s,", l->head);
            put_calls(h, tools);
            fputs("],[\"seq\",", h->f);
            put_content(h, true, true);
            fputs(",", h->f);
            put_calls(h, tools);
            fputs("]]", h->f);
            break;
        }
        fprintf(h->f, "%s[\"seq\",", single ? "" : "[\"many\",");
        put_content(h, true, false);
        fputs(",", h->f);
        put_calls(h, tools);
        fprintf(h->f, "]%s", single ? "" : "," NOTHING "]");
        break;
    }
}

/* Harmony: a call is a message to a function, and ends the answer. */
static void
put_harmony(hold_t *h, const json_t *tools)
{
    bool free = h->how->mode != TR_HOLD_REQUIRED;

    put_analysis(h->f, h->d);
    fputs(",[\"or\"", h->f);
    if (free) {
        fputs(",[\"seq\",", h->f);
        put_marks(h->f, h->d, "<|channel|>final<|message|>");
        fputs(h->how->mode == TR_HOLD_FORMAT ? ",[\"inner\"]]"
                                             : ",[\"free\",{\"end\":true}]]",
              h->f);
    }
    if (h->how->mode != TR_HOLD_NONE) {
        fputs(",[\"seq\",", h->f);
        if (free) {
            fputs("[\"or\"," NOTHING ",", h->f);
            put_message(h->f, h->d, "<|channel|>commentary<|message|>");
            fputs("],", h->f);
        }
        put_marks(h->f, h->d, "<|channel|>commentary to=functions.");
        fputs(",", h->f);
        put_call(h, tools);
        fputs("]", h->f);
    }
    fputs("]", h->f);
}

bool
tr_dialect_holds(const tr_dialect_t *d)
{
    return d != NULL && (d->layout != NULL || is_harmony(d));
}

tr_status_t
tr_dialect_hold(const tr_dialect_t *d, const json_t *tools,
                const tr_dialect_hold_t *how, char **out, size_t *len,
                tr_error_t *err)
{
    hold_t h = { .d = d, .how = how, .err = err };

    *out = NULL;
    h.f = open_memstream(out, len);
    if (h.f == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    fputs("[\"seq\",", h.f);
    if (is_harmony(d)) {
        put_harmony(&h, tools);
    } else {
        if (d->open.len != 0 && (how->inside || !d->by_prompt)) {
            put_reasoning(h.f, d, how->inside,
                          how->mode == TR_HOLD_STRICT
                              || how->mode == TR_HOLD_NONE);
            fputs(",", h.f);
        }
        put_answer(&h, tools);
    }
    fputs("]", h.f);
    if (fclose(h.f) != 0 || *out == NULL) {
        h.rc = tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    if (h.rc != TR_OK) {
        free(*out);
        *out = NULL;
    }
    return h.rc;
}
