/*
 * Tests: `v is name`.
 */
#include "jinja_run.h"

#include <math.h>
#include <string.h>

typedef enum {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_STRING,
    IS_MAPPING,
    IS_ITERABLE,
    IS_SEQUENCE,
    IS_NUMBER,
    IS_INTEGER,
    IS_FLOAT,
    IS_BOOLEAN,
    IS_TRUE,
    IS_FALSE,
    IS_CALLABLE,
    IS_LOWER,
    IS_UPPER,
    IS_ODD,
    IS_EVEN,
    IS_DIVISIBLE,
    IS_SAME,
    IS_EQ,
    IS_NE,
    IS_GT,
    IS_GE,
    IS_LT,
    IS_LE,
    IS_IN
} test_t;

static const struct {
    const char *name;
    test_t test;
    uint8_t arguments;
} table[] = {
    { "!=", IS_NE, 1 },
    { "<", IS_LT, 1 },
    { "<=", IS_LE, 1 },
    { "==", IS_EQ, 1 },
    { ">", IS_GT, 1 },
    { ">=", IS_GE, 1 },
    { "boolean", IS_BOOLEAN, 0 },
    { "callable", IS_CALLABLE, 0 },
    { "defined", IS_DEFINED, 0 },
    { "divisibleby", IS_DIVISIBLE, 1 },
    { "eq", IS_EQ, 1 },
    { "equalto", IS_EQ, 1 },
    { "even", IS_EVEN, 0 },
    { "false", IS_FALSE, 0 },
    { "float", IS_FLOAT, 0 },
    { "ge", IS_GE, 1 },
    { "greaterthan", IS_GT, 1 },
    { "gt", IS_GT, 1 },
    { "in", IS_IN, 1 },
    { "integer", IS_INTEGER, 0 },
    { "iterable", IS_ITERABLE, 0 },
    { "le", IS_LE, 1 },
    { "lessthan", IS_LT, 1 },
    { "lower", IS_LOWER, 0 },
    { "lt", IS_LT, 1 },
    { "mapping", IS_MAPPING, 0 },
    { "ne", IS_NE, 1 },
    { "none", IS_NONE, 0 },
    { "number", IS_NUMBER, 0 },
    { "odd", IS_ODD, 0 },
    { "sameas", IS_SAME, 1 },
    { "sequence", IS_SEQUENCE, 0 },
    { "string", IS_STRING, 0 },
    { "true", IS_TRUE, 0 },
    { "undefined", IS_UNDEFINED, 0 },
    { "upper", IS_UPPER, 0 },
};

uint16_t
tr_jinja_test_row(const string_t *name)
{
    for (uint16_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (tr_jinja_is(name, table[i].name)) {
            return (uint16_t) (i + 1);
        }
    }
    return 0;
}

/* str.islower and str.isupper: letters of that case, and none of the other. */
static bool
all_of_case(render_t *r, value_t v, enum letter_case c)
{
    string_t *s = tr_jinja_str(r, v);

    return tr_jinja_same(s, tr_jinja_case(&r->arena, s, c))
           && !tr_jinja_same(s, tr_jinja_case(&r->arena, s,
                                              c == CASE_LOWER ? CASE_UPPER
                                                              : CASE_LOWER));
}

static bool
divisible(render_t *r, value_t v, value_t by)
{
    value_t rest = tr_jinja_arithmetic(r, N_MOD, v, by);

    if (rest.kind == K_STRING) {
        return false; /* a format */
    }
    return rest.kind == K_FLOAT ? rest.f == 0 : rest.i == 0;
}

static bool
same(value_t a, value_t b)
{
    return a.kind == b.kind && (a.kind < K_LIST || a.dict == b.dict)
           && tr_jinja_equal(a, b);
}

static bool
is_sequence(value_t v)
{
    return v.kind == K_UNDEFINED || v.kind == K_STRING || v.kind == K_LIST
           || v.kind == K_TUPLE || v.kind == K_DICT || v.kind == K_RANGE;
}

/* Of what kind is it? */
static bool
is_kind(test_t test, value_t v)
{
    switch (test) {
    case IS_DEFINED:
        return v.kind != K_UNDEFINED;
    case IS_UNDEFINED:
        return v.kind == K_UNDEFINED;
    case IS_NONE:
        return v.kind == K_NONE;
    case IS_STRING:
        return v.kind == K_STRING;
    case IS_MAPPING:
        return v.kind == K_DICT;
    case IS_ITERABLE:
        return tr_jinja_iterable(v);
    case IS_SEQUENCE:
        return is_sequence(v);
    case IS_NUMBER:
        return is_number(v);
    case IS_INTEGER:
        return v.kind == K_INT;
    case IS_FLOAT:
        return v.kind == K_FLOAT;
    case IS_BOOLEAN:
        return v.kind == K_BOOL;
    case IS_TRUE:
        return v.kind == K_BOOL && v.b;
    case IS_FALSE:
        return v.kind == K_BOOL && !v.b;
    default: /* IS_CALLABLE */
        return v.kind == K_UNDEFINED || v.kind == K_MACRO
               || v.kind == K_FUNCTION || v.kind == K_METHOD
               || v.kind == K_LOOP;
    }
}

bool
tr_jinja_test(render_t *r, uint16_t row, const string_t *name, value_t v,
              const arguments_t *args)
{
    value_t arg = MISSING;

    (void) name;
    row--;
    if (args->n != table[row].arguments || args->n_names > 0) {
        tr_jinja_fail(&r->arena, "the test %s takes %u arguments",
                      table[row].name, table[row].arguments);
    }
    if (args->n > 0) {
        arg = args->items[0];
    }
    switch (table[row].test) {
    case IS_LOWER:
        return all_of_case(r, v, CASE_LOWER);
    case IS_UPPER:
        return all_of_case(r, v, CASE_UPPER);
    case IS_ODD:
        return !divisible(r, v, of_int(2));
    case IS_EVEN:
        return divisible(r, v, of_int(2));
    case IS_DIVISIBLE:
        return divisible(r, v, arg);
    case IS_SAME:
        return same(v, arg);
    case IS_EQ:
        return tr_jinja_compare(r, OP_EQ, v, arg);
    case IS_NE:
        return tr_jinja_compare(r, OP_NE, v, arg);
    case IS_GT:
        return tr_jinja_compare(r, OP_GT, v, arg);
    case IS_GE:
        return tr_jinja_compare(r, OP_GE, v, arg);
    case IS_LT:
        return tr_jinja_compare(r, OP_LT, v, arg);
    case IS_LE:
        return tr_jinja_compare(r, OP_LE, v, arg);
    case IS_IN:
        return tr_jinja_compare(r, OP_IN, v, arg);
    default:
        return is_kind(table[row].test, v);
    }
}
