/*
 * One flat schema from several that must all hold: allOf, what stands beside a
 * reference, and what stands beside alternatives.
 */
#include "schema_internal.h"

#include <stdlib.h>
#include <string.h>

#define MERGES_DEEP 32

json_t *
tr_schema_keep(schema_t *c, json_t *made)
{
    if (made == NULL || json_array_append_new(c->made, made) != 0) {
        c->rc = TR_ERR_NOMEM;
        return NULL;
    }
    c->kept += 256 + 128 * json_object_size(made);
    if (c->kept > TR_GRAMMAR_MEMORY && c->b->failed == TR_OK) {
        c->b->failed = TR_ERR_UNSUPPORTED;
    }
    return made;
}

/* Keywords that say nothing of values. */
static bool
is_annotation(const char *key)
{
    static const char *const names[] = { "title",
                                         "description",
                                         "default",
                                         "examples",
                                         "example",
                                         "$comment",
                                         "$schema",
                                         "$id",
                                         "$anchor",
                                         "$defs",
                                         "definitions",
                                         "readOnly",
                                         "writeOnly",
                                         "deprecated",
                                         "$vocabulary",
                                         "contentEncoding",
                                         "contentMediaType",
                                         "contentSchema",
                                         "$dynamicAnchor",
                                         "$recursiveAnchor" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(key, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool
is_keyword(const char *key)
{
    static const char *const names[] = { "type",
                                         "enum",
                                         "const",
                                         "properties",
                                         "required",
                                         "additionalProperties",
                                         "patternProperties",
                                         "propertyNames",
                                         "minProperties",
                                         "maxProperties",
                                         "items",
                                         "prefixItems",
                                         "additionalItems",
                                         "minItems",
                                         "maxItems",
                                         "uniqueItems",
                                         "contains",
                                         "minContains",
                                         "maxContains",
                                         "minLength",
                                         "maxLength",
                                         "pattern",
                                         "format",
                                         "minimum",
                                         "maximum",
                                         "exclusiveMinimum",
                                         "exclusiveMaximum",
                                         "multipleOf",
                                         "anyOf",
                                         "oneOf",
                                         "allOf",
                                         "not",
                                         "if",
                                         "then",
                                         "else",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies",
                                         "unevaluatedProperties",
                                         "unevaluatedItems",
                                         "$ref",
                                         "$dynamicRef",
                                         "$recursiveRef" };

    if (key[0] == '\x01') {
        return true;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(key, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

bool
tr_schema_says(const json_t *schema, const char *except)
{
    const char *key;
    json_t *value;

    if (json_is_false(schema)) {
        return true;
    }
    json_object_foreach ((json_t *) (uintptr_t) schema, key, value) {
        if (is_keyword(key) && (except == NULL || strcmp(key, except) != 0)) {
            return true;
        }
    }
    return false;
}

/* ---- single keywords, present on both sides */

static json_t *
both_types(schema_t *c, json_t *a, json_t *b)
{
    static const char *const names[] = { "null",   "boolean", "object", "array",
                                         "number", "integer", "string" };
    json_t *left = json_pack("{sO}", "type", a),
           *right = json_pack("{sO}", "type", b);
    unsigned x = tr_schema_types(c, left), y = tr_schema_types(c, right), both;
    json_t *out = json_array();

    x |= x & TYPE_NUMBER ? TYPE_INTEGER : 0;
    y |= y & TYPE_NUMBER ? TYPE_INTEGER : 0;
    both = x & y;
    for (unsigned i = 0; i < 7; i++) {
        if ((both & 1u << i)
            && !(1u << i == TYPE_INTEGER && (both & TYPE_NUMBER))) {
            json_array_append_new(out, json_string(names[i]));
        }
    }
    json_decref(left);
    json_decref(right);
    return out;
}

static json_t *
both_lists(json_t *a, json_t *b, bool union_of)
{
    json_t *out = union_of ? json_copy(a) : json_array(), *x, *y;
    size_t i, k;

    json_array_foreach (b, i, x) {
        bool found = false;

        json_array_foreach (a, k, y) {
            if (tr_schema_equal(x, y)) {
                found = true;
                break;
            }
        }
        if (found != union_of) {
            json_array_append(out, x);
        }
    }
    return out;
}

static json_t *
all_of(json_t *a, json_t *b)
{
    if (json_is_true(a) || json_equal(a, b)) {
        return json_incref(b);
    }
    if (json_is_true(b)) {
        return json_incref(a);
    }
    return json_pack("{s[OO]}", "allOf", a, b);
}

static int64_t
common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;

    while (y != 0) {
        int64_t r = x % y;

        x = y;
        y = r;
    }
    return a / x <= INT64_MAX / b ? a / x * b : 0;
}

/* Bounds: which of two numbers is the stricter one. */
static int
stricter(const char *key)
{
    static const char *const least[] = { "minimum", "exclusiveMinimum",
                                         "minLength", "minItems",
                                         "minProperties" };
    static const char *const most[] = { "maximum", "exclusiveMaximum",
                                        "maxLength", "maxItems",
                                        "maxProperties" };

    for (int i = 0; i < 5; i++) {
        if (strcmp(key, least[i]) == 0) {
            return 1;
        }
        if (strcmp(key, most[i]) == 0) {
            return -1;
        }
    }
    return 0;
}

/* Both sides have `key`, with values that differ. */
static void
merge_keyword(schema_t *c, json_t *out, const char *key, json_t *a, json_t *b)
{
    int way = stricter(key);
    json_t *value = NULL;

    if (way != 0 && json_is_number(a) && json_is_number(b)) {
        double d = (json_number_value(b) - json_number_value(a)) * way;

        value = json_incref(d > 0 ? b : a);
    } else if (strcmp(key, "type") == 0) {
        value = both_types(c, a, b);
    } else if (strcmp(key, "enum") == 0) {
        value = both_lists(a, b, false);
    } else if (strcmp(key, "required") == 0) {
        value = both_lists(a, b, true);
    } else if (strcmp(key, "const") == 0) {
        if (tr_schema_equal(a, b)) {
            return;
        }
        json_object_set_new(out, SCHEMA_NEVER, json_true());
        return;
    } else if (strcmp(key, "multipleOf") == 0 && json_is_integer(a)
               && json_is_integer(b) && json_integer_value(a) > 0
               && json_integer_value(b) > 0) {
        value = json_integer(
            common_multiple(json_integer_value(a), json_integer_value(b)));
    } else if (strcmp(key, "uniqueItems") == 0) {
        value = json_boolean(json_is_true(a) || json_is_true(b));
    } else if (strcmp(key, "items") == 0 || strcmp(key, "propertyNames") == 0) {
        value = all_of(a, b);
    } else if (strcmp(key, SCHEMA_PATTERNS) == 0
               || strcmp(key, SCHEMA_FORMATS) == 0
               || strcmp(key, SCHEMA_CHOICES) == 0) {
        value = json_copy(a);
        json_array_extend(value, b);
    } else {
        tr_schema_unsupported(c, "allOf");
        return;
    }
    json_object_set_new(out, key, value);
}

/* Properties of one side alone must be what the other one says of additional
 * ones. */
static json_t *
merge_properties(json_t *a, json_t *b)
{
    json_t *mine = json_object_get(a, "properties"), *p;
    json_t *other = json_object_get(b, "properties");
    json_t *more_a = json_object_get(a, "additionalProperties");
    json_t *more_b = json_object_get(b, "additionalProperties");
    json_t *out = json_object();
    const char *name;

    json_object_foreach (mine, name, p) {
        json_t *q = json_object_get(other, name);

        q = q != NULL ? q : more_b;
        json_object_set_new(out, name, q ? all_of(p, q) : json_incref(p));
    }
    json_object_foreach (other, name, p) {
        if (json_object_get(mine, name) == NULL) {
            json_object_set_new(out, name,
                                more_a ? all_of(more_a, p) : json_incref(p));
        }
    }
    return out;
}

/* Likewise for items by place. */
static json_t *
merge_prefixes(json_t *a, json_t *b)
{
    json_t *x = json_object_get(a, "prefixItems");
    json_t *y = json_object_get(b, "prefixItems");
    size_t n = json_array_size(x), m = json_array_size(y), i;
    json_t *out = json_array();

    for (i = 0; i < n || i < m; i++) {
        json_t *p = i < n ? json_array_get(x, i) : json_object_get(a, "items");
        json_t *q = i < m ? json_array_get(y, i) : json_object_get(b, "items");

        json_array_append_new(out, p == NULL   ? json_incref(q)
                                   : q == NULL ? json_incref(p)
                                               : all_of(p, q));
    }
    return out;
}

/* A copy in which anyOf and oneOf are choices: lists of which one each holds. */
static json_t *
with_choices(schema_t *c, json_t *flat)
{
    static const char *const keys[] = { "anyOf", "oneOf" };
    json_t *out = tr_schema_keep(c, json_copy(flat));

    for (int i = 0; i < 2 && out != NULL; i++) {
        json_t *list = json_object_get(out, keys[i]);
        json_t *choices = json_object_get(out, SCHEMA_CHOICES);

        if (list == NULL) {
            continue;
        }
        if (i == 1 && !tr_schema_all_apart(c, list)) {
            tr_schema_unsupported(c, "oneOf");
        }
        choices = choices == NULL ? json_array() : json_copy(choices);
        json_array_append(choices, list);
        json_object_set_new(out, SCHEMA_CHOICES, choices);
        json_object_del(out, keys[i]);
    }
    return out;
}

/* Values in it, with itself; NULL: 0. */
static uint64_t
values_in(const json_t *v)
{
    json_t *within = (json_t *) (uintptr_t) v, *item;
    uint64_t n = v != NULL;
    const char *key;
    size_t i;

    json_object_foreach (within, key, item) {
        n += values_in(item);
    }
    json_array_foreach (within, i, item) {
        n += values_in(item);
    }
    return n;
}

/* Bytes that a list or an object takes with so many members, about. */
static uint64_t
bytes_of(const json_t *v)
{
    return 16 * json_array_size(v) + 128 * json_object_size(v);
}

/* Counts what merging compares, and what it copies besides the keywords. */
static bool
affords(schema_t *c, const json_t *a, json_t *b)
{
    static const char *const by_member[] = { "properties", "prefixItems" };
    uint64_t work = 64 + json_object_size(a) + json_object_size(b);
    const char *key;
    json_t *value;

    for (int i = 0; i < 2; i++) {
        const json_t *x = json_object_get(a, by_member[i]);
        const json_t *y = json_object_get(b, by_member[i]);
        uint64_t n = values_in(x), m = values_in(y);

        work += n + m;
        c->kept += bytes_of(x) + bytes_of(y) + 512 * (n < m ? n : m);
    }
    json_object_foreach (b, key, value) {
        const json_t *mine = json_object_get(a, key);

        if (mine == NULL || mine == value || strcmp(key, by_member[0]) == 0
            || strcmp(key, by_member[1]) == 0) {
            continue;
        }
        work += values_in(mine) + values_in(value);
        c->kept += bytes_of(mine) + bytes_of(value);
        if (json_is_array(mine) && key[0] != '\x01') { /* each with each */
            work += json_array_size(mine) * json_array_size(value);
        }
    }
    return tr_rules_count(c->b, work);
}

json_t *
tr_schema_merge(schema_t *c, json_t *a, json_t *b)
{
    json_t *out, *value;
    const char *key;

    a = with_choices(c, a);
    b = a == NULL ? NULL : with_choices(c, b);
    out = b == NULL || !affords(c, a, b) ? NULL : json_copy(a);
    if (out == NULL) {
        return NULL;
    }
    if (json_object_get(a, "properties") || json_object_get(b, "properties")) {
        json_object_set_new(out, "properties", merge_properties(a, b));
    }
    if (json_object_get(a, "prefixItems")
        || json_object_get(b, "prefixItems")) {
        json_object_set_new(out, "prefixItems", merge_prefixes(a, b));
    }
    json_object_foreach (b, key, value) {
        json_t *mine = json_object_get(a, key);

        if (is_annotation(key) || strcmp(key, "properties") == 0
            || strcmp(key, "prefixItems") == 0) {
            continue;
        }
        if (strcmp(key, "additionalProperties") == 0 && mine != NULL) {
            json_object_set_new(out, key, all_of(mine, value));
        } else if (mine == NULL) {
            json_object_set(out, key, value);
        } else if (!json_equal(mine, value)
                   || strcmp(key, SCHEMA_CHOICES) == 0) {
            merge_keyword(c, out, key, mine, value);
        }
    }
    return tr_schema_keep(c, out);
}

/* ---- flat schemas */

/* What can stand several times is a list, so that merging is appending; tuples
 * are written as 2020-12 does. */
static json_t *
normalise(schema_t *c, json_t *schema)
{
    static const struct {
        const char *key, *list;
    } lists[] = { { "pattern", SCHEMA_PATTERNS },
                  { "format", SCHEMA_FORMATS } };
    json_t *out = json_object(), *value, *low, *high;
    const char *key;

    json_object_foreach (schema, key, value) {
        if (is_keyword(key)) {
            json_object_set(out, key, value);
        }
    }
    value = json_object_get(out, "items");
    json_object_del(out, "allOf");
    json_object_del(out, "$ref");
    if (json_is_array(value)) {
        json_t *more = json_object_get(out, "additionalItems");

        json_object_set(out, "prefixItems", value);
        json_object_del(out, "items");
        if (more != NULL) {
            json_object_set(out, "items", more);
        }
    }
    json_object_del(out, "additionalItems");
    for (int i = 0; i < 2; i++) {
        value = json_object_get(out, lists[i].key);
        if (value != NULL) {
            json_object_set_new(out, lists[i].list, json_pack("[O]", value));
            json_object_del(out, lists[i].key);
        }
    }
    /* draft 4: exclusiveMinimum is a boolean beside minimum */
    low = json_object_get(out, "exclusiveMinimum");
    high = json_object_get(out, "exclusiveMaximum");
    if (json_is_boolean(low)) {
        if (json_is_true(low) && json_object_get(out, "minimum")) {
            json_object_set(out, "exclusiveMinimum",
                            json_object_get(out, "minimum"));
        } else {
            json_object_del(out, "exclusiveMinimum");
        }
    }
    if (json_is_boolean(high)) {
        if (json_is_true(high) && json_object_get(out, "maximum")) {
            json_object_set(out, "exclusiveMaximum",
                            json_object_get(out, "maximum"));
        } else {
            json_object_del(out, "exclusiveMaximum");
        }
    }
    return tr_schema_keep(c, out);
}

json_t *
tr_schema_flat(schema_t *c, json_t *schema, int depth)
{
    json_t *parts, *ref, *out, *part;
    size_t i;

    if (!tr_schema_going(c)
        || !tr_rules_count(c->b, 16 + 16 * json_object_size(schema))) {
        return NULL;
    }
    if (json_is_boolean(schema)) {
        return tr_schema_keep(c, json_is_true(schema)
                                     ? json_object()
                                     : json_pack("{sb}", SCHEMA_NEVER, 1));
    }
    if (!json_is_object(schema)) {
        tr_schema_invalid(c, "a schema is neither an object nor a boolean");
        return NULL;
    }
    if (json_object_get(schema, SCHEMA_NEVER)
        || json_object_get(schema, SCHEMA_PATTERNS)
        || json_object_get(schema, SCHEMA_FORMATS)
        || json_object_get(schema, SCHEMA_CHOICES)) {
        return schema; /* made here */
    }
    if (depth > MERGES_DEEP) {
        tr_schema_unsupported(c, "allOf");
        return NULL;
    }
    parts = json_object_get(schema, "allOf");
    ref = json_object_get(schema, "$ref");
    out = ref != NULL && c->draft7 ? tr_schema_keep(c, json_object())
                                   : normalise(c, schema);
    if (parts != NULL && !json_is_array(parts)) {
        tr_schema_invalid(c, "'allOf' is not an array");
        return NULL;
    }
    if (ref != NULL && json_is_string(ref)) {
        json_t *target = tr_schema_target(c, json_string_value(ref));

        target = target == NULL ? NULL : tr_schema_flat(c, target, depth + 1);
        if (target != NULL && out != NULL && tr_schema_says(out, NULL)) {
            out = tr_schema_merge(c, out, target);
        } else if (target != NULL) {
            out = target;
        }
        if (c->draft7) {
            return out;
        }
    }
    json_array_foreach (parts, i, part) {
        part = out == NULL ? NULL : tr_schema_flat(c, part, depth + 1);
        if (part == NULL || !tr_schema_going(c)) {
            return NULL;
        }
        out = tr_schema_merge(c, out, part);
    }
    return out;
}
