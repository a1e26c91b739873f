/*
 * What a dialect needs of a request's tools: names, and the types of their
 * parameters (dialect.h).
 */
#include "dialect_internal.h"

#include <string.h>

static uint32_t
type_bit(const char *name)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } types[] = {
        { "string", TR_TYPE_STRING },   { "number", TR_TYPE_NUMBER },
        { "integer", TR_TYPE_INTEGER }, { "boolean", TR_TYPE_BOOLEAN },
        { "object", TR_TYPE_OBJECT },   { "array", TR_TYPE_ARRAY },
        { "null", TR_TYPE_NULL },
    };

    for (size_t i = 0; name != NULL && i < sizeof(types) / sizeof(types[0]);
         i++) {
        if (strcmp(name, types[i].name) == 0) {
            return types[i].bit;
        }
    }
    return 0;
}

uint32_t
tr_dialect_type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        return TR_TYPE_STRING;
    case JSON_INTEGER:
        return TR_TYPE_INTEGER | TR_TYPE_NUMBER;
    case JSON_REAL:
        return TR_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TR_TYPE_BOOLEAN;
    case JSON_NULL:
        return TR_TYPE_NULL;
    case JSON_OBJECT:
        return TR_TYPE_OBJECT;
    default:
        return TR_TYPE_ARRAY;
    }
}

const json_t *
tr_dialect_target(const json_t *whole, const char *ref)
{
    char step[128];

    if (ref == NULL || strncmp(ref, "#/", 2) != 0) {
        return NULL;
    }
    for (ref++; whole != NULL && *ref == '/';) {
        size_t n = strcspn(++ref, "/");

        if (n >= sizeof(step)) {
            return NULL;
        }
        memcpy(step, ref, n);
        step[n] = '\0';
        whole = json_object_get(whole, step);
        ref += n;
    }
    return whole;
}

/* References make a schema a graph in which there may be very many ways. */
bool
tr_dialect_step(uint32_t *steps, size_t items)
{
    size_t cost = 1 + items / 16;

    if (*steps < cost) {
        *steps = 0;
        return false;
    }
    *steps -= (uint32_t) cost;
    return true;
}

uint32_t
tr_dialect_own_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    uint32_t types = type_bit(json_string_value(type));
    size_t i;

    json_array_foreach ((json_t *) type, i, one) {
        types |= type_bit(json_string_value(one));
    }
    return types;
}

static uint32_t types_of(const json_t *whole, const json_t *schema, int depth,
                         uint32_t *steps);

/* anyOf or oneOf: all of what each of them allows; false: not known. */
static bool
types_of_each(const json_t *whole, const json_t *list, int depth,
              uint32_t *steps, uint32_t *types)
{
    const json_t *one;
    uint32_t each;
    size_t i;

    json_array_foreach ((json_t *) list, i, one) {
        each = depth < 8 ? types_of(whole, one, depth + 1, steps) : 0;
        if (each == 0) {
            return false;
        }
        *types |= each;
    }
    return true;
}

static uint32_t
types_of(const json_t *whole, const json_t *schema, int depth, uint32_t *steps)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    const json_t *list = json_object_get(schema, "anyOf");
    uint32_t types = tr_dialect_own_types(schema);
    size_t i;

    one = json_object_get(schema, "$ref");
    if (!tr_dialect_step(steps,
                         json_string_length(one) + json_array_size(type))) {
        return 0;
    }
    if (one != NULL && type == NULL) {
        one = tr_dialect_target(whole, json_string_value(one));
        return one != NULL && depth < 8 ? types_of(whole, one, depth + 1, steps)
                                        : 0;
    }
    if (types != 0 || json_is_string(type)) {
        return types;
    }
    list = list != NULL ? list : json_object_get(schema, "oneOf");
    one = json_object_get(schema, "allOf");
    list = list == NULL && json_array_size(one) == 1 ? one : list;
    if (!types_of_each(whole, list, depth, steps, &types)) {
        return 0;
    }
    list = json_object_get(schema, "enum");
    if (!tr_dialect_step(steps, json_array_size(list))) {
        return 0;
    }
    json_array_foreach ((json_t *) list, i, one) {
        types |= tr_dialect_type_of(one);
    }
    one = json_object_get(schema, "const");
    return one != NULL ? types | tr_dialect_type_of(one) : types;
}

uint32_t
tr_dialect_types(const json_t *whole, const json_t *schema, uint32_t *steps)
{
    return types_of(whole, schema, 0, steps);
}

static const char *
copy(tr_dialect_alloc_pt alloc, void *arg, const char *text, size_t len)
{
    char *out = alloc(arg, len + 1);

    if (out != NULL) {
        memcpy(out, text, len);
        out[len] = '\0';
    }
    return out;
}

static tr_status_t
read_tool(const json_t *function, tr_dialect_alloc_pt alloc, void *arg,
          tr_dialect_tool_t *out)
{
    const json_t *name = json_object_get(function, "name"), *schema;
    const json_t *whole = json_object_get(function, "parameters");
    const json_t *properties = json_object_get(whole, "properties");
    tr_dialect_param_t *params;
    uint32_t steps = TR_DIALECT_STEPS;
    const char *key;

    out->len = (uint32_t) json_string_length(name);
    out->name = copy(alloc, arg, json_string_value(name), out->len);
    params = alloc(arg, (json_object_size(properties) + 1) * sizeof(*params));
    if (out->name == NULL || params == NULL) {
        return TR_ERR_NOMEM;
    }
    out->params = params;
    json_object_foreach ((json_t *) properties, key, schema) {
        tr_dialect_param_t *p = &params[out->n_params];

        p->len = (uint32_t) strlen(key);
        p->name = copy(alloc, arg, key, p->len);
        p->types = tr_dialect_types(whole, schema, &steps);
        if (p->name == NULL) {
            return TR_ERR_NOMEM;
        }
        out->n_params++;
    }
    return TR_OK;
}

tr_status_t
tr_dialect_read_tools(const json_t *json, tr_dialect_alloc_pt alloc, void *arg,
                      tr_dialect_tools_t *out)
{
    size_t n = json_array_size(json);
    tr_dialect_tool_t *tools = alloc(arg, (n + 1) * sizeof(*tools));
    tr_status_t rc = tools != NULL ? TR_OK : TR_ERR_NOMEM;

    out->n = 0;
    out->tools = tools;
    while (rc == TR_OK && out->n < n) {
        rc = read_tool(json_object_get(json_array_get(json, out->n),
                                       "function"),
                       alloc, arg, &tools[out->n]);
        out->n++;
    }
    return rc;
}
