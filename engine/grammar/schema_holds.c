/*
 * Does a value that a schema lists keep the rest of that schema?  Needed for
 * enum and const beside other keywords; unknown where we do not look.
 */
#include "schema_internal.h"

#include <math.h>
#include <string.h>

bool
tr_schema_equal(const json_t *a, const json_t *b)
{
    size_t i;
    json_t *x;
    const char *key;

    if (json_is_number(a) && json_is_number(b)) {
        return json_is_integer(a) && json_is_integer(b)
                   ? json_integer_value(a) == json_integer_value(b)
                   : json_number_value(a) == json_number_value(b);
    }
    if (json_is_array(a) && json_is_array(b)) {
        if (json_array_size(a) != json_array_size(b)) {
            return false;
        }
        json_array_foreach ((json_t *) (uintptr_t) a, i, x) {
            if (!tr_schema_equal(x, json_array_get(b, i))) {
                return false;
            }
        }
        return true;
    }
    if (json_is_object(a) && json_is_object(b)) {
        if (json_object_size(a) != json_object_size(b)) {
            return false;
        }
        json_object_foreach ((json_t *) (uintptr_t) a, key, x) {
            json_t *y = json_object_get(b, key);

            if (y == NULL || !tr_schema_equal(x, y)) {
                return false;
            }
        }
        return true;
    }
    return json_equal(a, b);
}

static unsigned
type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_STRING;
    default:
        return json_number_value(value) == floor(json_number_value(value))
                   ? TYPE_NUMBER | TYPE_INTEGER
                   : TYPE_NUMBER;
    }
}

static int
worse(int a, int b)
{
    return a == HOLDS_NO || b == HOLDS_NO             ? HOLDS_NO
           : a == HOLDS_UNKNOWN || b == HOLDS_UNKNOWN ? HOLDS_UNKNOWN
                                                      : HOLDS_YES;
}

static int
holds_schema(schema_t *c, json_t *schema, json_t *value, int depth)
{
    json_t *flat = tr_schema_flat(c, schema, 0);

    return flat == NULL ? HOLDS_UNKNOWN
                        : tr_schema_holds(c, flat, value, depth + 1);
}

static int
within(const json_t *flat, const char *least, const char *most, double n)
{
    const json_t *lo = json_object_get(flat, least);
    const json_t *hi = json_object_get(flat, most);

    return (lo == NULL || n >= json_number_value(lo))
                   && (hi == NULL || n <= json_number_value(hi))
               ? HOLDS_YES
               : HOLDS_NO;
}

static int
holds_number(const json_t *flat, const json_t *value)
{
    double v = json_number_value(value), d;
    const json_t *above = json_object_get(flat, "exclusiveMinimum");
    const json_t *below = json_object_get(flat, "exclusiveMaximum");
    const json_t *divisor = json_object_get(flat, "multipleOf");

    if (within(flat, "minimum", "maximum", v) == HOLDS_NO
        || (above != NULL && !(v > json_number_value(above)))
        || (below != NULL && !(v < json_number_value(below)))) {
        return HOLDS_NO;
    }
    if (divisor == NULL) {
        return HOLDS_YES;
    }
    d = v / json_number_value(divisor);
    return d == floor(d) ? HOLDS_YES : HOLDS_NO;
}

static int
holds_string(schema_t *c, const json_t *flat, const json_t *value)
{
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    const json_t *patterns = json_object_get(flat, SCHEMA_PATTERNS);
    int result = within(flat, "minLength", "maxLength",
                        tr_schema_characters(text, len));

    for (size_t i = 0; i < json_array_size(patterns); i++) {
        const json_t *pattern = json_array_get(patterns, i);

        if (c->pattern != pattern) { /* the values of an enum share one */
            if (c->pattern != NULL) {
                tr_chars_free(&c->pattern_chars);
                c->pattern = NULL;
            }
            if (!tr_schema_pattern(c, "pattern", pattern, &c->pattern_chars)) {
                return HOLDS_UNKNOWN;
            }
            c->pattern = pattern;
        }
        result = worse(result, tr_chars_accepts(&c->pattern_chars, text, len)
                                   ? HOLDS_YES
                                   : HOLDS_NO);
    }
    /* an author who lists values knows that they have the format */
    return result;
}

static int
holds_array(schema_t *c, const json_t *flat, json_t *value, int depth)
{
    const json_t *prefix = json_object_get(flat, "prefixItems");
    json_t *items = json_object_get(flat, "items"), *item;
    int result = within(flat, "minItems", "maxItems",
                        (double) json_array_size(value));
    size_t i;

    if (json_object_get(flat, "contains")
        || json_object_get(flat, "uniqueItems")
        || json_object_get(flat, "unevaluatedItems")) {
        result = worse(result, HOLDS_UNKNOWN);
    }
    json_array_foreach (value, i, item) {
        json_t *schema = i < json_array_size(prefix) ? json_array_get(prefix, i)
                                                     : items;

        if (schema != NULL) {
            result = worse(result, holds_schema(c, schema, item, depth));
        }
    }
    return result;
}

static int
holds_object(schema_t *c, const json_t *flat, json_t *value, int depth)
{
    static const char *const unknown[] = {
        "patternProperties", "propertyNames", "dependentRequired",
        "dependentSchemas",  "dependencies",  "unevaluatedProperties",
        "minProperties",     "maxProperties"
    };
    json_t *more = json_object_get(flat, "additionalProperties"), *item;
    int result = HOLDS_YES;
    const char *key;
    size_t i;

    for (i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        if (json_object_get(flat, unknown[i]) != NULL) {
            result = HOLDS_UNKNOWN;
        }
    }
    json_array_foreach (json_object_get(flat, "required"), i, item) {
        if (json_is_string(item)
            && json_object_get(value, json_string_value(item)) == NULL) {
            return HOLDS_NO;
        }
    }
    json_object_foreach (value, key, item) {
        json_t *schema = json_object_get(json_object_get(flat, "properties"),
                                         key);

        schema = schema != NULL ? schema : more;
        if (schema != NULL) {
            result = worse(result, holds_schema(c, schema, item, depth));
        }
    }
    return result;
}

/* One of a list at least. */
static int
holds_any(schema_t *c, json_t *list, json_t *value, int depth)
{
    int result = HOLDS_NO;
    json_t *schema;
    size_t i;

    json_array_foreach (list, i, schema) {
        int one = holds_schema(c, schema, value, depth);

        if (one == HOLDS_YES) {
            return HOLDS_YES;
        }
        result = one == HOLDS_UNKNOWN ? HOLDS_UNKNOWN : result;
    }
    return result;
}

static int
holds_alternatives(schema_t *c, const json_t *flat, json_t *value, int depth)
{
    json_t *list, *choices = json_object_get(flat, SCHEMA_CHOICES);
    int result = HOLDS_YES;
    size_t i;

    json_array_foreach (choices, i, list) {
        result = worse(result, holds_any(c, list, value, depth));
    }
    list = json_object_get(flat, "anyOf");
    if (list != NULL) {
        result = worse(result, holds_any(c, list, value, depth));
    }
    list = json_object_get(flat, "oneOf");
    if (list != NULL) { /* alternatives are apart, or refused */
        result = worse(result, holds_any(c, list, value, depth));
    }
    if (json_object_get(flat, "not") || json_object_get(flat, "if")) {
        result = worse(result, HOLDS_UNKNOWN);
    }
    return result;
}

int
tr_schema_holds(schema_t *c, json_t *flat, json_t *value, int depth)
{
    const json_t *only = json_object_get(flat, "const"), *item;
    json_t *list = json_object_get(flat, "enum");
    unsigned types = tr_schema_types(c, flat);
    bool listed = list == NULL;

    if (depth > SCHEMA_DEPTH || !tr_rules_count(c->b, 4)) {
        return HOLDS_UNKNOWN;
    }
    for (size_t i = 0; !listed && i < json_array_size(list); i++) {
        item = json_array_get(list, i);
        listed = item == value || tr_schema_equal(item, value);
        /* the enum that is being asked about is long, and holds by itself */
        if (depth == 0) {
            listed = true;
        }
    }
    if (json_object_get(flat, SCHEMA_NEVER) != NULL || !listed
        || (only != NULL && !tr_schema_equal(only, value))
        || !(types & type_of(value))) {
        return HOLDS_NO;
    }
    types = (unsigned) holds_alternatives(c, flat, value, depth);
    switch (json_typeof(value)) {
    case JSON_INTEGER:
    case JSON_REAL:
        return worse((int) types, holds_number(flat, value));
    case JSON_STRING:
        return worse((int) types, holds_string(c, flat, value));
    case JSON_ARRAY:
        return worse((int) types, holds_array(c, flat, value, depth));
    case JSON_OBJECT:
        return worse((int) types, holds_object(c, flat, value, depth));
    default:
        return (int) types;
    }
}
