/*
 * Objects of a schema.
 *
 * Properties come in the order in which the schema has them: state i stands
 * before the name of property i.  An optional one is passed by.  Behind the last
 * come other names, if any may, which are never those of properties.
 *
 * With maxProperties there is such a row of states for each number of members
 * so far.
 */
#include "schema_internal.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 16384u /* states of an object with maxProperties */

typedef struct {
    const char *name;
    size_t len;
    json_t *schema; /* NULL: anything */
    bool required;
    uint32_t rule; /* of the member, when there are several rows */
} property_t;

typedef struct {
    schema_t *c;
    uint32_t to;
    property_t *list; /* [n] */
    uint32_t n, n_required;
    uint32_t min, max; /* members */
    json_t *more;      /* schema of other members; NULL: anything */
    bool open;         /* there may be others */
    tr_chars_t names;  /* of others */
    bool has_names;    /* else: any string */
    uint32_t more_rule;
    bool root; /* the whole answer: no blanks lead its end into a column */
} object_t;

static void
space(schema_t *c, uint32_t from, uint32_t to)
{
    tr_rules_call(c->b, from, c->json.space, to);
}

static uint32_t
colon(schema_t *c, uint32_t from)
{
    uint32_t before = tr_rules_state(c->b), behind = tr_rules_state(c->b);
    uint32_t value = tr_rules_state(c->b);

    space(c, from, before);
    tr_rules_bytes(c->b, before, ':', ':', behind);
    space(c, behind, value);
    return value;
}

/* Name, colon and value of a property. */
static void
member(object_t *o, const property_t *p, uint32_t from, uint32_t to)
{
    schema_t *c = o->c;
    uint32_t named = tr_rules_state(c->b), value;
    size_t mark = tr_schema_enter(c, "properties", p->name);

    tr_schema_name(c, p->name, p->len, from, named);
    value = colon(c, named);
    if (p->schema == NULL) {
        tr_rules_call(c->b, value, c->json.value, to);
    } else {
        tr_schema_any(c, p->schema, value, to);
    }
    tr_schema_leave(c, mark);
}

/* A member with another name, as a rule. */
static void
make_more_rule(object_t *o)
{
    schema_t *c = o->c;
    uint32_t quote = tr_rules_state(c->b), named = tr_rules_state(c->b), value;
    size_t mark = tr_schema_enter(c, "additionalProperties", NULL);

    o->more_rule = tr_rules_rule(c->b, "member");
    if (c->b->failed != TR_OK) {
        return;
    }
    tr_rules_bytes(c->b, c->b->rules[o->more_rule].start, '"', '"', quote);
    if (o->has_names) {
        tr_chars_rules(c->b, &o->names, quote, named);
    } else {
        tr_rules_call(c->b, quote, c->json.chars, named);
    }
    value = colon(c, named);
    if (o->more == NULL) {
        tr_rules_call(c->b, value, c->json.value,
                      c->b->rules[o->more_rule].accept);
    } else {
        tr_schema_any(c, o->more, value, c->b->rules[o->more_rule].accept);
    }
    tr_schema_leave(c, mark);
}

static void
close_object(object_t *o, uint32_t spaced)
{
    tr_rules_bytes(o->c->b, spaced, '}', '}', o->to);
}

/* Behind a member, before property i: a comma and on, or the end. */
static void
behind(object_t *o, uint32_t done, uint32_t next, bool may_end)
{
    schema_t *c = o->c;
    uint32_t spaced = tr_rules_state(c->b), comma = tr_rules_state(c->b);

    if (o->root) {
        tr_rules_empty(c->b, done, spaced);
        tr_rules_bytes(c->b, done, ' ', ' ', spaced);
        tr_rules_bytes(c->b, done, '\n', '\n', spaced);
    } else {
        space(c, done, spaced);
    }
    if (may_end) {
        close_object(o, spaced);
    }
    if (next != UINT32_MAX) {
        tr_rules_bytes(c->b, spaced, ',', ',', comma);
        space(c, comma, next);
    }
}

/* Without maxProperties: one row. */
static void
one_row(object_t *o, uint32_t first)
{
    tr_rules_t *b = o->c->b;
    uint32_t at = first, required = o->n_required;

    for (uint32_t i = 0; i < o->n && tr_schema_going(o->c); i++) {
        uint32_t done = tr_rules_state(b), next = tr_rules_state(b);

        member(o, &o->list[i], at, done);
        required -= o->list[i].required;
        behind(o, done, i + 1 < o->n || o->open ? next : UINT32_MAX,
               required == 0);
        if (!o->list[i].required) {
            tr_rules_empty(b, at, next);
        }
        at = next;
    }
    if (o->open) {
        uint32_t done = tr_rules_state(b);

        tr_rules_call(b, at, o->more_rule, done);
        behind(o, done, at, true);
    }
}

/* With maxProperties: state (i, k) stands before property i behind k members. */
static void
many_rows(object_t *o, uint32_t first)
{
    tr_rules_t *b = o->c->b;
    uint32_t rows = o->max < o->n ? o->max : o->n, i, k;
    uint32_t *states, required = o->n_required;

    states = calloc((size_t) (o->n + 1) * (rows + 1), sizeof(*states));
    if (states == NULL) {
        o->c->rc = TR_ERR_NOMEM;
        return;
    }
#define AT(i, k) states[(size_t) (i) * (rows + 1) + (k)]
    for (i = 0; i <= o->n; i++) {
        for (k = 0; k <= rows; k++) {
            AT(i, k) = i == 0 && k == 0 ? first : tr_rules_state(b);
        }
    }
    for (i = 0; i < o->n && tr_schema_going(o->c); i++) {
        property_t *p = &o->list[i];

        p->rule = tr_rules_rule(b, "member");
        if (b->failed != TR_OK) {
            break;
        }
        member(o, p, b->rules[p->rule].start, b->rules[p->rule].accept);
        required -= p->required;
        for (k = 0; k <= rows && k <= i; k++) {
            uint32_t done = tr_rules_state(b);
            bool last = i + 1 == o->n && !o->open;

            if (!p->required) {
                tr_rules_empty(b, AT(i, k), AT(i + 1, k));
            }
            if (k + 1 > o->max || k == rows) {
                continue;
            }
            tr_rules_call(b, AT(i, k), p->rule, done);
            behind(o, done,
                   last || k + 1 == o->max ? UINT32_MAX : AT(i + 1, k + 1),
                   required == 0);
        }
    }
    for (k = 0; o->open && k <= rows && k < o->max && tr_schema_going(o->c);
         k++) {
        /* one member, and then as many as there is room for */
        uint32_t done = tr_rules_state(b), all = tr_rules_state(b);
        uint32_t rule = tr_rules_rule(b, "members"), item = tr_rules_state(b);

        if (b->failed != TR_OK) {
            break;
        }
        tr_rules_call(b, AT(o->n, k), o->more_rule, done);
        behind(o, b->rules[rule].start, item, false);
        tr_rules_call(b, item, o->more_rule, b->rules[rule].accept);
        tr_rules_repeat(b, done, rule, 0, o->max - k - 1, all);
        behind(o, all, UINT32_MAX, true);
    }
#undef AT
    free(states);
}

/* ---- reading */

static int
find(const object_t *o, const char *name)
{
    for (uint32_t i = 0; i < o->n; i++) {
        if (strcmp(o->list[i].name, name) == 0) {
            return (int) i;
        }
    }
    return -1;
}

/* Names that are required, but no properties, become properties at the end. */
static void
read_required(object_t *o, const json_t *required)
{
    for (size_t i = 0; i < json_array_size(required); i++) {
        const json_t *name = json_array_get(required, i);
        int at;

        if (!json_is_string(name)) {
            tr_schema_invalid(o->c, "'required' is not a list of names");
            return;
        }
        tr_rules_count(o->c->b, o->n / 8 + 1);
        at = find(o, json_string_value(name));
        if (at < 0) {
            at = (int) o->n;
            /* not allowed, it must be there, and must not */
            o->list[o->n++] = (property_t){ json_string_value(name),
                                            json_string_length(name),
                                            o->open ? o->more : json_false(),
                                            false, 0 };
        }
        o->n_required += !o->list[at].required;
        o->list[at].required = true;
    }
}

static void
read_properties(object_t *o, json_t *flat)
{
    json_t *properties = json_object_get(flat, "properties"), *schema;
    const json_t *required = json_object_get(flat, "required");
    const char *name;

    if ((properties != NULL && !json_is_object(properties))
        || (required != NULL && !json_is_array(required))) {
        tr_schema_invalid(o->c,
                          properties != NULL && !json_is_object(properties)
                              ? "'properties' is not an object"
                              : "'required' is not an array");
        return;
    }
    o->c->n_properties += (uint32_t) json_object_size(properties);
    if (o->c->n_properties > SCHEMA_PROPERTIES
        || json_array_size(required) > SCHEMA_PROPERTIES) {
        tr_schema_invalid(o->c, "there are more than 5000 properties");
        return;
    }
    o->list = calloc(json_object_size(properties) + json_array_size(required)
                         + 1,
                     sizeof(*o->list));
    if (o->list == NULL) {
        o->c->rc = TR_ERR_NOMEM;
        return;
    }
    json_object_foreach (properties, name, schema) {
        o->list[o->n++] = (property_t){ name, strlen(name), schema, false, 0 };
    }
    read_required(o, required);
}

/* What propertyNames says of names; false: any will do. */
static bool
names_of_schema(schema_t *c, json_t *schema, tr_chars_t *out)
{
    json_t *flat = tr_schema_flat(c, schema, 0), *value;
    uint32_t min, max;
    const char *key;
    tr_chars_t bounded;

    memset(out, 0, sizeof(*out));
    if (flat == NULL) {
        return false;
    }
    json_object_foreach (flat, key, value) {
        if (strcmp(key, SCHEMA_PATTERNS) != 0 && strcmp(key, "minLength") != 0
            && strcmp(key, "maxLength") != 0 && strcmp(key, "type") != 0
            && strcmp(key, SCHEMA_NEVER) != 0 && strcmp(key, "title") != 0
            && strcmp(key, "description") != 0) {
            tr_schema_unsupported(c, "propertyNames");
            return false;
        }
    }
    if (json_object_get(flat, SCHEMA_NEVER) != NULL
        || !(tr_schema_types(c, flat) & TYPE_STRING)) {
        return tr_chars_of_texts(NULL, 0, out) == TR_OK;
    }
    value = json_object_get(flat, SCHEMA_PATTERNS);
    min = tr_schema_count(c, flat, "minLength", 0);
    max = tr_schema_count(c, flat, "maxLength", TR_UNBOUNDED);
    if (json_array_size(value) > 1) {
        tr_schema_unsupported(c, "propertyNames");
        return false;
    }
    if (value == NULL && min == 0 && max == TR_UNBOUNDED) {
        return false;
    }
    value = value == NULL ? json_string("")
                          : json_incref(json_array_get(value, 0));
    if (!tr_schema_pattern(c, "propertyNames", value, out)) {
        json_decref(value);
        return false;
    }
    json_decref(value);
    if (min > 0 || max != TR_UNBOUNDED) {
        tr_status_t rc = tr_chars_length(out, min, max, &bounded);

        tr_rules_count(c->b, bounded.work);
        if (rc != TR_OK) {
            tr_chars_free(&bounded);
            tr_schema_unsupported(c, "propertyNames");
            return true;
        }
        tr_chars_free(out);
        *out = bounded;
    }
    return true;
}

/* Names of other members: what propertyNames says, without those of
 * properties. */
static void
read_names(object_t *o, json_t *flat)
{
    json_t *schema = json_object_get(flat, "propertyNames");
    tr_text_t *texts;
    tr_chars_t declared, all, rest;
    tr_status_t rc = TR_OK;

    if (schema != NULL) {
        size_t mark = tr_schema_enter(o->c, "propertyNames", NULL);

        o->has_names = names_of_schema(o->c, schema, &o->names);
        for (uint32_t i = 0; o->has_names && i < o->n; i++) {
            if (!tr_chars_accepts(&o->names, o->list[i].name, o->list[i].len)) {
                o->list[i].schema = json_false();
            }
        }
        tr_schema_leave(o->c, mark);
    }
    if (o->n == 0 || !o->open || !tr_schema_going(o->c)) {
        return;
    }
    if (!o->has_names) {
        json_t *any = json_string("");

        o->has_names = tr_schema_pattern(o->c, "properties", any, &o->names);
        json_decref(any);
    }
    all = o->names;
    texts = calloc(o->n, sizeof(*texts));
    for (uint32_t i = 0; texts != NULL && i < o->n; i++) {
        texts[i] = (tr_text_t){ o->list[i].name, o->list[i].len };
    }
    memset(&rest, 0, sizeof(rest));
    rc = texts == NULL ? TR_ERR_NOMEM
                       : tr_chars_of_texts(texts, o->n, &declared);
    free(texts);
    if (rc == TR_OK) {
        rc = tr_chars_both(&all, &declared, true, &rest);
        tr_rules_count(o->c->b, rest.work);
        tr_chars_free(&declared);
    }
    if (rc != TR_OK) { /* their names are too long: there are no others */
        tr_chars_free(&rest);
        o->open = false;
        return;
    }
    tr_chars_free(&all);
    o->names = rest;
}

/* It lists its properties, and no other keyword speaks of them. */
static bool
listed(json_t *flat)
{
    static const char *const others[] = { "patternProperties",
                                          "propertyNames",
                                          "minProperties",
                                          "dependencies",
                                          "dependentSchemas",
                                          "dependentRequired",
                                          "anyOf",
                                          "oneOf",
                                          "allOf",
                                          "not",
                                          "if",
                                          "$ref",
                                          "$dynamicRef",
                                          "unevaluatedProperties" };

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (json_object_get(flat, others[i]) != NULL) {
            return false;
        }
    }
    return json_object_size(json_object_get(flat, "properties")) > 0;
}

static void
read_more(object_t *o, json_t *flat)
{
    uint32_t flags = o->c->spec->flags;
    json_t *more = json_object_get(flat, "additionalProperties");
    json_t *by_pattern = json_object_get(flat, "patternProperties");

    o->open = more != NULL
                  ? !json_is_false(more)
                  : !(flags & TR_GRAMMAR_CLOSED)
                        && !(flags & TR_GRAMMAR_LISTED && listed(flat));
    o->more = json_is_true(more) ? NULL : more;
    if (json_object_size(by_pattern) > 0) {
        tr_schema_unsupported(o->c, "patternProperties");
    }
}

void
tr_schema_object(schema_t *c, json_t *flat, uint32_t from, uint32_t to)
{
    object_t o = { .c = c, .to = to, .root = c->path[0] == '\0' };
    uint32_t opened = tr_rules_state(c->b), first = tr_rules_state(c->b);

    o.min = tr_schema_count(c, flat, "minProperties", 0);
    o.max = tr_schema_count(c, flat, "maxProperties", TR_UNBOUNDED);
    read_more(&o, flat);
    read_properties(&o, flat);
    if (tr_schema_going(c)) {
        read_names(&o, flat);
    }
    if (tr_schema_going(c) && o.min > o.n_required) {
        tr_schema_unsupported(c, "minProperties");
    }
    if (tr_schema_going(c) && o.max != TR_UNBOUNDED && o.max <= o.n
        && (uint64_t) (o.n + 1) * (o.max + 1) > ROWS_MAX) {
        tr_schema_unsupported(c, "maxProperties");
        o.max = TR_UNBOUNDED;
    }
    if (tr_schema_going(c) && o.n_required <= o.max && o.min <= o.max) {
        /* apart from `first`, to which a comma may lead */
        uint32_t inside = tr_rules_state(c->b);

        tr_rules_bytes(c->b, from, '{', '{', opened);
        space(c, opened, inside);
        tr_rules_empty(c->b, inside, first);
        if (o.n_required == 0) {
            close_object(&o, inside);
        }
        if (o.open && o.max > 0) {
            make_more_rule(&o);
        }
        if (o.max == TR_UNBOUNDED) {
            one_row(&o, first);
        } else if (o.max > 0) {
            many_rows(&o, first);
        }
    }
    tr_chars_free(&o.names);
    free(o.list);
}
