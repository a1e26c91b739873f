/*
 * What a parameter that may be a string is held to where arguments are marked-up
 * text (tr_dialect_texts_t): any text, or one of those that its schema lists.
 * References and alternatives are looked through, so that an optional string or
 * an enumeration behind a $ref is held as well as one that stands there itself.
 *
 * Such a text is read back by the parameter's types (dialect_value.c): where a
 * number is allowed, "12" is one.  So any text will do only where each other
 * type is allowed as a whole.
 */
#include "dialect_internal.h"

#include <string.h>

#define DEPTH_MAX 8
#define LISTED_ITEMS 4 /* what a text costs of the steps, beside a type */

typedef struct {
    const json_t *whole;
    uint32_t *steps;
    uint32_t all; /* types of which each value is allowed */
    bool numbers; /* any number is */
    tr_dialect_texts_t *out;
} search_t;

static void visit(search_t *s, const json_t *schema, int depth);

static void
beyond(search_t *s, const char *what)
{
    if (s->out->beyond == NULL) {
        s->out->beyond = what;
    }
}

/* The first of these keywords, up to a NULL, that the schema has; NULL: none. */
static const char *
has(const json_t *schema, const char *const *names)
{
    for (; *names != NULL; names++) {
        if (json_object_get(schema, *names) != NULL) {
            return *names;
        }
    }
    return NULL;
}

/* ---- alternatives */

/* Of oneOf just one may fit: none has a type that an earlier one has. */
static bool
are_apart(search_t *s, const json_t *list)
{
    uint32_t seen = 0;
    const json_t *one;
    size_t i;

    json_array_foreach ((json_t *) list, i, one) {
        uint32_t types = tr_dialect_types(s->whole, one, s->steps);

        if (types & TR_TYPE_INTEGER) {
            types |= TR_TYPE_NUMBER;
        }
        if (types == 0 || (seen & types) != 0) {
            return false;
        }
        seen |= types;
    }
    return true;
}

/* Schemas of which one holds; false: it has none.  What stands beside them would
 * have to hold as well. */
static bool
visit_parts(search_t *s, const json_t *schema, int depth)
{
    static const char *const ways[] = { "$ref", "anyOf", "oneOf", "allOf",
                                        NULL };
    static const char *const own[] = { "type", "enum", "const", NULL };
    const char *way = has(schema, ways);
    const json_t *parts = json_object_get(schema, way != NULL ? way : ""), *one;
    size_t i;

    if (way == NULL) {
        return false;
    }
    for (i = 0; ways[i] != NULL; i++) {
        if (strcmp(ways[i], way) != 0
            && json_object_get(schema, ways[i]) != NULL) {
            beyond(s, ways[i]);
            return true;
        }
    }
    if (has(schema, own) != NULL
        || (strcmp(way, "allOf") == 0 && json_array_size(parts) != 1)
        || (strcmp(way, "oneOf") == 0 && !are_apart(s, parts))) {
        beyond(s, way);
    } else if (json_is_string(parts)) {
        visit(s, tr_dialect_target(s->whole, json_string_value(parts)), depth);
    }
    json_array_foreach ((json_t *) parts, i, one) {
        if (s->out->beyond == NULL) {
            visit(s, one, depth);
        }
    }
    return true;
}

/* ---- values */

static bool
is_of(const json_t *schema, uint32_t type)
{
    uint32_t types = tr_dialect_own_types(schema);

    return types == 0 || (types & type) != 0
           || ((types & TR_TYPE_NUMBER) && (type & TR_TYPE_INTEGER));
}

static void
list(search_t *s, const json_t *schema, const json_t *value)
{
    uint32_t type = tr_dialect_type_of(value);

    if (!is_of(schema, type)) {
        return; /* its own type forbids it */
    }
    if (type & (TR_TYPE_OBJECT | TR_TYPE_ARRAY)) {
        beyond(s, "enum");
    } else if (type == TR_TYPE_STRING) {
        json_array_append(s->out->strings, (json_t *) value);
    } else {
        json_array_append(s->out->others, (json_t *) value);
        s->all |= type & TR_TYPE_NULL;
    }
}

/* enum or const; false: neither is there. */
static bool
visit_values(search_t *s, const json_t *schema)
{
    const json_t *values = json_object_get(schema, "enum"), *one;
    const json_t *only = json_object_get(schema, "const");
    size_t i;

    if (values == NULL && only == NULL) {
        return false;
    }
    json_array_foreach ((json_t *) values, i, one) {
        if (only == NULL || json_equal(only, one)) {
            list(s, schema, one);
        }
    }
    if (values == NULL) {
        list(s, schema, only);
    }
    return true;
}

/* Does the schema say anything of a value? */
static bool
is_any(const json_t *schema)
{
    static const char *const notes[] = {
        "title",    "description", "default",   "examples", "$comment",
        "readOnly", "deprecated",  "writeOnly", NULL
    };
    size_t n = json_object_size(schema);

    for (const char *const *note = notes; *note != NULL; note++) {
        n -= json_object_get(schema, *note) != NULL;
    }
    return n == 0;
}

static void
visit_types(search_t *s, const json_t *schema, uint32_t types)
{
    static const char *const bounds[] = { "minimum",          "maximum",
                                          "exclusiveMinimum", "multipleOf",
                                          "exclusiveMaximum", NULL };
    json_t *others = s->out->others;

    if (types == 0 && is_any(schema)) {
        s->out->free = true;
        return;
    }
    if (types == 0 || (types & (TR_TYPE_OBJECT | TR_TYPE_ARRAY))) {
        beyond(s, "type");
    }
    s->out->free |= (types & TR_TYPE_STRING) != 0;
    if (types & TR_TYPE_NULL) {
        json_array_append_new(others, json_null());
    }
    if (types & TR_TYPE_BOOLEAN) {
        json_array_append_new(others, json_true());
        json_array_append_new(others, json_false());
    }
    if (types & (TR_TYPE_NUMBER | TR_TYPE_INTEGER)) {
        s->numbers = true;
        if (has(schema, bounds) != NULL) {
            beyond(s, has(schema, bounds));
        }
    }
    s->all |= types;
}

static void
visit(search_t *s, const json_t *schema, int depth)
{
    static const char *const never[] = { "not", "if", NULL };
    static const char *const texts[] = { "pattern", "format", "minLength",
                                         "maxLength", NULL };
    uint32_t types = tr_dialect_own_types(schema);

    size_t listed = json_array_size(json_object_get(schema, "enum"));

    if (schema == NULL || depth == DEPTH_MAX
        || !tr_dialect_step(s->steps, LISTED_ITEMS * listed)) {
        beyond(s, "$ref");
        return;
    }
    if (has(schema, never) != NULL) {
        beyond(s, has(schema, never));
    }
    if ((types == 0 || (types & TR_TYPE_STRING)) && has(schema, texts)) {
        beyond(s, has(schema, texts));
    }
    if (s->out->beyond == NULL && !visit_parts(s, schema, depth + 1)
        && !visit_values(s, schema)) {
        visit_types(s, schema, types);
    }
}

void
tr_dialect_find_texts(const json_t *whole, const json_t *schema, uint32_t types,
                      uint32_t *steps, tr_dialect_texts_t *out)
{
    search_t s = { .whole = whole, .steps = steps, .out = out };

    *out = (tr_dialect_texts_t){ .strings = json_array(),
                                 .others = json_array() };
    visit(&s, schema, 0);
    if (out->free ? (types & ~(TR_TYPE_STRING | s.all)) != 0
                  : s.numbers
                        || json_array_size(out->strings)
                                   + json_array_size(out->others)
                               == 0) {
        beyond(&s, json_object_get(schema, "anyOf") != NULL ? "anyOf" : "type");
    }
}

void
tr_dialect_free_texts(tr_dialect_texts_t *texts)
{
    json_decref(texts->strings);
    json_decref(texts->others);
}
