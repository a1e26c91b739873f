/*
 * JSON schemas to rules (schema_internal.h): 2020-12, and drafts 4 to 7 where
 * they say the same in other words.
 *
 * Each reference is a rule, compiled once.  Everything else is compiled where it
 * stands, so that the automaton of an object is one piece.  What cannot be held
 * is refused, with its place, or dropped and counted: never half held.
 */
#include "schema_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool
tr_schema_going(const schema_t *c)
{
    return c->rc == TR_OK && c->b->failed == TR_OK;
}

static const char *
what_of(const schema_t *c)
{
    return c->spec->what != NULL ? c->spec->what : c->spec->param;
}

static const char *
name_of(const schema_t *c)
{
    return c->spec->name == NULL ? "" : c->spec->name;
}

void
tr_schema_invalid(schema_t *c, const char *what)
{
    if (tr_schema_going(c)) {
        c->rc = tr_error_set(c->err, TR_ERR_INVALID, c->spec->param,
                             "Invalid schema for %s '%.64s': %s at %.200s.",
                             what_of(c), name_of(c), what,
                             c->path[0] == '\0' ? "/" : c->path);
    }
}

void
tr_schema_unsupported(schema_t *c, const char *keyword)
{
    if (!(c->spec->flags & TR_GRAMMAR_REFUSE)) {
        ++*c->dropped;
        return;
    }
    if (tr_schema_going(c)) {
        c->rc = tr_error_set(c->err, TR_ERR_INVALID, c->spec->param,
                             "Invalid schema for %s '%.64s': '%.64s' at "
                             "%.200s is not supported.",
                             what_of(c), name_of(c), keyword,
                             c->path[0] == '\0' ? "/" : c->path);
    }
}

size_t
tr_schema_enter(schema_t *c, const char *keyword, const char *name)
{
    size_t mark = strlen(c->path), at = mark;
    const char *parts[2] = { keyword, name };

    for (int i = 0; i < 2; i++) {
        const char *p = parts[i];

        if (p == NULL || at + 1 >= sizeof(c->path)) {
            continue;
        }
        c->path[at++] = '/';
        for (; *p != '\0' && at + 3 < sizeof(c->path); p++) {
            if (*p == '~' || *p == '/') {
                c->path[at++] = '~';
                c->path[at++] = *p == '~' ? '0' : '1';
            } else {
                c->path[at++] = *p;
            }
        }
    }
    c->path[at] = '\0';
    return mark;
}

void
tr_schema_leave(schema_t *c, size_t mark)
{
    c->path[mark] = '\0';
}

uint32_t
tr_schema_count(schema_t *c, const json_t *flat, const char *key,
                uint32_t otherwise)
{
    const json_t *value = json_object_get(flat, key);
    double v = json_number_value(value);

    if (value == NULL) {
        return otherwise;
    }
    if (!json_is_number(value) || !(v >= 0) || v != (double) (int64_t) v) {
        char what[64];

        snprintf(what, sizeof(what), "'%s' is not a count", key);
        tr_schema_invalid(c, what);
        return otherwise;
    }
    return v < UINT32_MAX - 1 ? (uint32_t) v : UINT32_MAX - 1;
}

/* ---- references */

/* A step of a JSON pointer, undone: ~0, ~1 and %XX. */
static bool
unescape(const char *from, size_t len, char *out, size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        char ch = from[i];
        unsigned code;

        if (ch == '%' && i + 2 < len + 0
            && sscanf(from + i + 1, "%2x", &code) == 1) {
            ch = (char) code;
            i += 2;
        }
        if (ch == '~' && i + 1 < len) {
            ch = from[++i] == '0' ? '~' : '/';
        }
        if (n + 1 >= cap) {
            return false;
        }
        out[n++] = ch;
    }
    out[n] = '\0';
    return true;
}

static json_t *
find_anchor(json_t *schema, const char *anchor, int depth)
{
    const char *key;
    json_t *value;
    size_t i;

    if (depth > SCHEMA_DEPTH) {
        return NULL;
    }
    if (json_is_array(schema)) {
        json_array_foreach (schema, i, value) {
            json_t *found = find_anchor(value, anchor, depth + 1);

            if (found != NULL) {
                return found;
            }
        }
        return NULL;
    }
    value = json_object_get(schema, "$anchor");
    if (json_is_string(value)
        && strcmp(json_string_value(value), anchor) == 0) {
        return schema;
    }
    value = json_object_get(schema, "$id"); /* draft 6 and 7 */
    if (json_is_string(value) && json_string_value(value)[0] == '#'
        && strcmp(json_string_value(value) + 1, anchor) == 0) {
        return schema;
    }
    json_object_foreach (schema, key, value) {
        json_t *found = strcmp(key, "enum") == 0 || strcmp(key, "const") == 0
                            ? NULL
                            : find_anchor(value, anchor, depth + 1);

        if (found != NULL) {
            return found;
        }
    }
    return NULL;
}

/* Has a schema inside another one a name of its own, all that is said of paths
 * would be relative to it. */
static bool
has_inner_id(json_t *schema, int depth)
{
    const char *key;
    json_t *value;
    size_t i;

    if (depth > SCHEMA_DEPTH) {
        return false;
    }
    json_array_foreach (schema, i, value) {
        if (has_inner_id(value, depth + 1)) {
            return true;
        }
    }
    value = json_object_get(schema, "$id");
    if (depth > 0 && json_is_string(value)
        && json_string_value(value)[0] != '#') {
        return true;
    }
    json_object_foreach (schema, key, value) {
        if (strcmp(key, "enum") != 0 && strcmp(key, "const") != 0
            && has_inner_id(value, depth + 1)) {
            return true;
        }
    }
    return false;
}

json_t *
tr_schema_target(schema_t *c, const char *ref)
{
    json_t *at = c->root;
    char step[512];

    if (c->inner_id == INNER_ID_UNKNOWN) {
        c->inner_id = has_inner_id(c->root, 0) ? INNER_ID_YES : INNER_ID_NO;
    }
    if (ref[0] != '#' || c->inner_id == INNER_ID_YES) {
        tr_schema_unsupported(c, "$ref");
        return NULL;
    }
    ref++;
    if (*ref != '\0' && *ref != '/') {
        at = unescape(ref, strlen(ref), step, sizeof(step))
                 ? find_anchor(c->root, step, 0)
                 : NULL;
        ref = "";
    }
    while (at != NULL && *ref == '/') {
        size_t len = strcspn(++ref, "/");

        if (!unescape(ref, len, step, sizeof(step))) {
            at = NULL;
        } else if (json_is_array(at)) {
            char *end;
            unsigned long i = strtoul(step, &end, 10);

            at = *step != '\0' && *end == '\0' ? json_array_get(at, i) : NULL;
        } else {
            at = json_object_get(at, step);
        }
        ref += len;
    }
    if (at == NULL) {
        tr_schema_invalid(c, "'$ref' points to nothing");
    }
    return at;
}

uint32_t
tr_schema_rule(schema_t *c, json_t *schema)
{
    uint32_t n = c->n_rules;

    for (uint32_t i = 0; i < n; i++) {
        tr_rules_count(c->b, 1);
        if (c->rules[i].schema == schema) {
            return c->rules[i].rule;
        }
    }
    if (n == c->cap_rules) {
        uint32_t cap = n == 0 ? 64 : 2 * n;
        schema_rule_t *rules = realloc(c->rules, cap * sizeof(*rules));

        if (rules == NULL) {
            c->rc = TR_ERR_NOMEM;
            return 0;
        }
        c->rules = rules;
        c->cap_rules = cap;
    }
    c->rules[n] = (schema_rule_t){ schema, tr_rules_rule(c->b, "schema") };
    return c->rules[c->n_rules++].rule;
}

/* ---- values */

void
tr_schema_value(schema_t *c, const json_t *value, uint32_t from, uint32_t to)
{
    double v = json_number_value(value);
    char *text = NULL, number[32];

    if (json_is_real(value) && v == (double) (int64_t) v && v > -9e15
        && v < 9e15) {
        snprintf(number, sizeof(number), "%lld", (long long) v);
        tr_rules_text(c->b, from, number, strlen(number), to);
        return;
    }
    for (int precision = 15; json_is_real(value) && precision <= 17;
         precision++) {
        snprintf(number, sizeof(number), "%.*g", precision, v);
        if (strtod(number, NULL) == v) {
            tr_rules_text(c->b, from, number, strlen(number), to);
            return;
        }
    }
    text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL) {
        c->rc = TR_ERR_NOMEM;
        return;
    }
    tr_rules_text(c->b, from, text, strlen(text), to);
    free(text);
}

/* Values of an enum that the rest of the schema allows. */
static void
compile_enum(schema_t *c, json_t *flat, uint32_t from, uint32_t to)
{
    json_t *only = json_object_get(flat, "const"), *value;
    json_t *list = json_object_get(flat, "enum");
    size_t i;

    if (list != NULL && !json_is_array(list)) {
        tr_schema_invalid(c, "'enum' is not an array");
        return;
    }
    c->n_enum += (uint32_t) json_array_size(list);
    if (c->n_enum > SCHEMA_ENUM) {
        tr_schema_invalid(c, "there are more than 10000 values in 'enum'");
        return;
    }
    if (only != NULL && list == NULL) {
        if (tr_schema_holds(c, flat, only, 0) != HOLDS_NO) {
            tr_schema_value(c, only, from, to);
        }
        return;
    }
    json_array_foreach (list, i, value) {
        int holds = tr_schema_holds(c, flat, value, 0);

        if (!tr_schema_going(c)) {
            return;
        }
        if (holds == HOLDS_UNKNOWN) {
            tr_schema_unsupported(c, "enum");
        }
        if (holds != HOLDS_NO) {
            tr_schema_value(c, value, from, to);
        }
    }
}

/* ---- alternatives */

static bool
same_number_type(unsigned a, unsigned b)
{
    unsigned numbers = TYPE_NUMBER | TYPE_INTEGER;

    return (a & numbers) != 0 && (b & numbers) != 0;
}

/* Values that a schema is limited to, as an array; NULL: none.  Given. */
static json_t *
values_of(json_t *flat)
{
    json_t *only = json_object_get(flat, "const");
    json_t *list = json_object_get(flat, "enum");

    if (only != NULL) {
        return json_pack("[O]", only);
    }
    return json_is_array(list) ? json_incref(list) : NULL;
}

static bool
values_apart(json_t *a, json_t *b)
{
    json_t *x, *y;
    size_t i, k;

    json_array_foreach (a, i, x) {
        json_array_foreach (b, k, y) {
            if (tr_schema_equal(x, y)) {
                return false;
            }
        }
    }
    return true;
}

static bool requires(const json_t *flat, const char *name)
{
    json_t *item;
    size_t i;

    json_array_foreach (json_object_get(flat, "required"), i, item) {
        if (json_is_string(item)
            && strcmp(json_string_value(item), name) == 0) {
            return true;
        }
    }
    return false;
}

/* Objects that need a property whose values differ. */
static bool
objects_apart(schema_t *c, json_t *a, json_t *b)
{
    json_t *mine = json_object_get(a, "properties"), *p;
    const char *name;

    json_object_foreach (mine, name, p) {
        json_t *q = json_object_get(json_object_get(b, "properties"), name);
        json_t *x, *y;
        bool apart;

        if (q == NULL || !requires(a, name) || !requires(b, name)) {
            continue;
        }
        p = tr_schema_flat(c, p, 0);
        q = tr_schema_flat(c, q, 0);
        x = p == NULL ? NULL : values_of(p);
        y = q == NULL ? NULL : values_of(q);
        apart = x != NULL && y != NULL && values_apart(x, y);
        json_decref(x);
        json_decref(y);
        if (apart) {
            return true;
        }
    }
    return false;
}

static bool
apart(schema_t *c, json_t *a, json_t *b)
{
    unsigned x = tr_schema_types(c, a), y = tr_schema_types(c, b);
    json_t *v = values_of(a), *w = values_of(b);
    bool result = false;

    if (json_object_get(a, SCHEMA_NEVER) || json_object_get(b, SCHEMA_NEVER)) {
        result = true;
    } else if (v != NULL && w != NULL) {
        result = values_apart(v, w);
    } else if ((x & y) == 0 && !same_number_type(x, y)) {
        result = true;
    } else if (x == TYPE_OBJECT && y == TYPE_OBJECT) {
        result = objects_apart(c, a, b);
    }
    json_decref(v);
    json_decref(w);
    return result;
}

bool
tr_schema_all_apart(schema_t *c, json_t *list)
{
    size_t n = json_array_size(list);
    json_t **flats = calloc(n + 1, sizeof(*flats));
    bool good = flats != NULL;

    for (size_t i = 0; good && i < n; i++) {
        flats[i] = tr_schema_flat(c, json_array_get(list, i), 0);
        good = flats[i] != NULL
               && json_object_get(flats[i], SCHEMA_CHOICES) == NULL
               && json_object_get(flats[i], "anyOf") == NULL
               && json_object_get(flats[i], "oneOf") == NULL;
        for (size_t k = 0; good && k < i; k++) {
            good = tr_rules_count(c->b, 8) && apart(c, flats[i], flats[k]);
        }
    }
    free(flats);
    return good;
}

static void
compile_choices(schema_t *c, json_t *flat, const char *key, uint32_t from,
                uint32_t to)
{
    json_t *lists = json_object_get(flat, key), *list, *rest, *branch;
    bool merged = strcmp(key, SCHEMA_CHOICES) == 0;
    size_t mark, i;
    char number[24];

    rest = json_copy(flat);
    if (merged && json_array_size(lists) > 1) {
        json_t *fewer = json_copy(lists);

        json_array_remove(fewer, 0);
        json_object_set_new(rest, key, fewer);
    } else {
        json_object_del(rest, key);
    }
    tr_schema_keep(c, rest);
    list = merged ? json_array_get(lists, 0) : lists;
    if (!json_is_array(list) || json_array_size(list) == 0) {
        tr_schema_invalid(c, "alternatives are not a list");
        return;
    }
    if (strcmp(key, "oneOf") == 0 && !tr_schema_all_apart(c, list)) {
        tr_schema_unsupported(c, "oneOf");
    }
    mark = tr_schema_enter(c, merged ? "anyOf" : key, NULL);
    json_array_foreach (list, i, branch) {
        size_t inner;

        snprintf(number, sizeof(number), "%zu", i);
        inner = tr_schema_enter(c, number, NULL);
        if (!tr_schema_going(c) || !tr_rules_count(c->b, 64)) {
            return;
        }
        if (tr_schema_says(rest, NULL)) {
            json_t *other = tr_schema_flat(c, branch, 0);

            branch = other == NULL ? NULL : tr_schema_merge(c, rest, other);
        }
        if (branch != NULL) {
            tr_schema_any(c, branch, from, to);
        }
        tr_schema_leave(c, inner);
    }
    tr_schema_leave(c, mark);
}

/* ---- types */

static unsigned
type_named(schema_t *c, const json_t *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } types[] = { { "null", TYPE_NULL },     { "boolean", TYPE_BOOLEAN },
                  { "object", TYPE_OBJECT }, { "array", TYPE_ARRAY },
                  { "number", TYPE_NUMBER }, { "integer", TYPE_INTEGER },
                  { "string", TYPE_STRING } };

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (json_is_string(name)
            && strcmp(types[i].name, json_string_value(name)) == 0) {
            return types[i].type;
        }
    }
    tr_schema_invalid(c, "'type' is none of null, boolean, object, array, "
                         "number, integer, string");
    return 0;
}

unsigned
tr_schema_types(schema_t *c, const json_t *flat)
{
    json_t *type = json_object_get(flat, "type"), *name;
    unsigned types = 0;
    size_t i;

    if (type == NULL) {
        return TYPE_ALL;
    }
    if (!json_is_array(type)) {
        return type_named(c, type);
    }
    json_array_foreach (type, i, name) {
        types |= type_named(c, name);
    }
    return types;
}

/* Keywords that nobody here holds; what a type does not have does not matter. */
static void
check_keywords(schema_t *c, const json_t *flat, unsigned types)
{
    static const struct {
        const char *key;
        unsigned types;
    } refused[] = {
        { "not", 0 },
        { "dependentRequired", TYPE_OBJECT },
        { "dependentSchemas", TYPE_OBJECT },
        { "dependencies", TYPE_OBJECT },
        { "unevaluatedProperties", TYPE_OBJECT },
        { "unevaluatedItems", TYPE_ARRAY },
        { "contains", TYPE_ARRAY },
        { "$dynamicRef", 0 },
        { "$recursiveRef", 0 },
    };

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (json_object_get(flat, refused[i].key) != NULL
            && (refused[i].types == 0 || (refused[i].types & types))) {
            tr_schema_unsupported(c, refused[i].key);
        }
    }
    if (json_object_get(flat, "if") != NULL
        && (json_object_get(flat, "then") != NULL
            || json_object_get(flat, "else") != NULL)) {
        tr_schema_unsupported(c, "if");
    }
    if (json_is_true(json_object_get(flat, "uniqueItems"))
        && (types & TYPE_ARRAY)) {
        tr_schema_unsupported(c, "uniqueItems");
    }
}

static void
compile_types(schema_t *c, json_t *flat, uint32_t from, uint32_t to)
{
    unsigned types = tr_schema_types(c, flat);

    check_keywords(c, flat, types);
    if (types & TYPE_NULL) {
        tr_rules_text(c->b, from, "null", 4, to);
    }
    if (types & TYPE_BOOLEAN) {
        tr_rules_text(c->b, from, "true", 4, to);
        tr_rules_text(c->b, from, "false", 5, to);
    }
    if (types & TYPE_OBJECT) {
        tr_schema_object(c, flat, from, to);
    }
    if (types & TYPE_ARRAY) {
        tr_schema_array(c, flat, from, to);
    }
    if (types & (TYPE_NUMBER | TYPE_INTEGER)) {
        tr_schema_number(c, flat, !(types & TYPE_NUMBER), from, to);
    }
    if (types & TYPE_STRING) {
        tr_schema_string(c, flat, from, to);
    }
}

/* ---- any schema */

static void
compile_flat(schema_t *c, json_t *flat, uint32_t from, uint32_t to)
{
    static const char *const choices[] = { SCHEMA_CHOICES, "anyOf", "oneOf" };

    if (json_object_get(flat, SCHEMA_NEVER) != NULL) {
        return;
    }
    for (int i = 0; i < 3; i++) {
        if (json_object_get(flat, choices[i]) != NULL) {
            compile_choices(c, flat, choices[i], from, to);
            return;
        }
    }
    if (json_object_get(flat, "enum") != NULL
        || json_object_get(flat, "const") != NULL) {
        compile_enum(c, flat, from, to);
        return;
    }
    if (!tr_schema_says(flat, NULL) && !(c->spec->flags & TR_GRAMMAR_CLOSED)) {
        tr_rules_call(c->b, from, c->json.value, to);
        return;
    }
    compile_types(c, flat, from, to);
}

void
tr_schema_any(schema_t *c, json_t *schema, uint32_t from, uint32_t to)
{
    const json_t *ref = json_object_get(schema, "$ref");
    json_t *flat;

    if (!tr_schema_going(c)) {
        return;
    }
    if (json_is_true(schema)
        || (json_is_object(schema) && !tr_schema_says(schema, NULL))) {
        tr_rules_call(c->b, from, c->json.value, to);
        return;
    }
    if (json_is_false(schema)) {
        return;
    }
    if (!json_is_object(schema)) {
        tr_schema_invalid(c, "a schema is neither an object nor a boolean");
        return;
    }
    if (ref != NULL) {
        json_t *target = schema;

        if (!json_is_string(ref)) {
            tr_schema_invalid(c, "'$ref' is not a string");
            return;
        }
        if (c->draft7 || !tr_schema_says(schema, "$ref")) {
            target = tr_schema_target(c, json_string_value(ref));
            if (target == NULL) { /* dropped */
                tr_rules_call(c->b, from, c->json.value, to);
            } else {
                tr_rules_call(c->b, from, tr_schema_rule(c, target), to);
            }
            return;
        }
        /* with something beside it: a rule, too, in which both are merged */
        if (c->rules[c->done - 1].schema != schema) {
            tr_rules_call(c->b, from, tr_schema_rule(c, schema), to);
            return;
        }
    }
    if (++c->depth > SCHEMA_DEPTH) {
        tr_schema_invalid(c, "schemas are nested deeper than 64");
    }
    flat = tr_schema_flat(c, schema, 0);
    if (flat != NULL && tr_schema_going(c)) {
        compile_flat(c, flat, from, to);
    }
    c->depth--;
}

static uint32_t
compile_all(schema_t *c, const tr_schema_part_t *part)
{
    json_t *first = c->root;
    uint32_t whole;

    if (part->property != NULL) {
        first = json_object_get(json_object_get(first, "properties"),
                                part->property);
    }
    whole = tr_schema_rule(c, first);
    if (part->json != NULL) {
        c->json = *part->json;
    } else {
        tr_json_rules(c->b, &c->json);
    }
    while (c->done < c->n_rules && tr_schema_going(c)) {
        json_t *schema = (json_t *) (uintptr_t) c->rules[c->done].schema;
        tr_rule_t rule = c->b->rules[c->rules[c->done].rule];

        c->done++;
        c->path[0] = '\0';
        if (schema == first && part->property != NULL) {
            tr_schema_enter(c, "properties", part->property);
        }
        c->depth = 0;
        tr_schema_any(c, schema, rule.start, rule.accept);
    }
    return whole;
}

tr_status_t
tr_schema_rules(tr_rules_t *b, const tr_grammar_spec_t *spec,
                const tr_schema_part_t *part, uint32_t *rule, uint32_t *dropped,
                tr_error_t *err)
{
    schema_t c = { .b = b, .spec = spec, .dropped = dropped, .err = err };
    json_error_t where;
    const char *draft;

    c.root = json_loadb(spec->text, spec->len,
                        JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &where);
    if (c.root == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, spec->param,
                            "Invalid schema for %s '%.64s': %s at byte %d.",
                            what_of(&c), name_of(&c), where.text,
                            where.position);
    }
    c.made = json_array();
    if (memmem(spec->text, spec->len, "\\u0001", 6) != NULL) {
        tr_schema_invalid(&c, "U+0001");
    }
    draft = json_string_value(json_object_get(c.root, "$schema"));
    c.draft7 = draft != NULL
               && (strstr(draft, "draft-07") || strstr(draft, "draft-06")
                   || strstr(draft, "draft-04") || strstr(draft, "draft-03"));
    if (c.made == NULL) {
        c.rc = TR_ERR_NOMEM;
    } else {
        *rule = compile_all(&c, part);
    }
    if (c.pattern != NULL) {
        tr_chars_free(&c.pattern_chars);
    }
    json_decref(c.made);
    json_decref(c.root);
    free(c.rules);
    return c.rc;
}
