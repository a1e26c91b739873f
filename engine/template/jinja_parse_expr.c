/*
 * Expressions, in the order of jinja2's grammar, the loosest first:
 *
 *   a if b else c; or; and; not; comparisons, in; + -; ~; * / // %; **;
 *   - + before; . [] () behind; | filters, is tests
 */
#include "jinja_ast.h"

#include <string.h>

static node_t *or_expression(parser_t *p);
static node_t *unary(parser_t *p, bool with_filter);

node_t *
tr_jinja_node(parser_t *p, node_kind_t kind, uint32_t place)
{
    node_t *n = tr_jinja_zalloc(p->a, sizeof(*n));

    n->kind = (uint8_t) kind;
    n->place = place;
    return n;
}

static node_t *
node_of(parser_t *p, node_kind_t kind, uint32_t place, node_t *a, node_t *b)
{
    node_t *n = tr_jinja_node(p, kind, place);

    n->a = a;
    n->b = b;
    return n;
}

/* Nodes that are being gathered. */
typedef struct {
    node_t **items;
    uint32_t n, cap;
} nodes_t;

static void
push(parser_t *p, nodes_t *l, node_t *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;

        l->items = tr_jinja_grow(p->a, l->items, l->n * sizeof(node_t *),
                                 cap * sizeof(node_t *));
        l->cap = cap;
    }
    l->items[l->n++] = n;
}

/* ---- tokens ------------------------------------------------------------- */

void
tr_jinja_unexpected(parser_t *p, const char *expected)
{
    const token_t *t = p->at;
    char op[3] = { (char) (t->op > 255 ? t->op >> 8 : t->op),
                   (char) (t->op > 255 ? t->op : '\0'), '\0' };

    p->a->place = t->place;
    switch (t->kind) {
    case T_NAME:
        tr_jinja_fail(p->a, "unexpected \"%.*s\", expected %s",
                      t->value.s->len < 40 ? (int) t->value.s->len : 40,
                      t->value.s->data, expected);
    case T_OPERATOR:
        tr_jinja_fail(p->a, "unexpected '%s', expected %s", op, expected);
    case T_VARIABLE_END:
        tr_jinja_fail(p->a, "unexpected '}}', expected %s", expected);
    case T_BLOCK_END:
        tr_jinja_fail(p->a, "unexpected '%%}', expected %s", expected);
    case T_EOF:
        tr_jinja_fail(p->a, "unexpected end of the template, expected %s",
                      expected);
    default:
        tr_jinja_fail(p->a, "unexpected literal, expected %s", expected);
    }
}

bool
tr_jinja_at_name(const parser_t *p, const char *name)
{
    return p->at->kind == T_NAME && tr_jinja_is(p->at->value.s, name);
}

bool
tr_jinja_at_op(const parser_t *p, uint32_t op)
{
    return p->at->kind == T_OPERATOR && p->at->op == op;
}

bool
tr_jinja_skip_name(parser_t *p, const char *name)
{
    bool there = tr_jinja_at_name(p, name);

    p->at += there;
    return there;
}

bool
tr_jinja_skip_op(parser_t *p, uint32_t op)
{
    bool there = tr_jinja_at_op(p, op);

    p->at += there;
    return there;
}

string_t *
tr_jinja_expect_name(parser_t *p)
{
    if (p->at->kind != T_NAME) {
        tr_jinja_unexpected(p, "a name");
    }
    return (p->at++)->value.s;
}

void
tr_jinja_expect_op(parser_t *p, uint32_t op)
{
    char text[4] = { '\'', (char) op, '\'', '\0' };

    if (!tr_jinja_skip_op(p, op)) {
        tr_jinja_unexpected(p, text);
    }
}

void
tr_jinja_deeper(parser_t *p)
{
    if (++p->depth > TR_JINJA_NESTING) {
        p->a->place = p->at->place;
        tr_jinja_fail(p->a, "the template nests deeper than %u",
                      TR_JINJA_NESTING);
    }
}

/* ---- literals, brackets ------------------------------------------------- */

static node_t *
constant(parser_t *p, uint32_t place, value_t v)
{
    node_t *n = tr_jinja_node(p, N_CONST, place);

    n->value = v;
    if (v.kind == K_STRING) {
        tr_jinja_append(p->a, &p->t->literals, &p->t->literals_cap, v);
    }
    return n;
}

static node_t *
name_or_word(parser_t *p)
{
    const token_t *t = p->at++;
    const string_t *s = t->value.s;
    node_t *n;

    if (tr_jinja_is(s, "true") || tr_jinja_is(s, "True")) {
        return constant(p, t->place, of_bool(true));
    }
    if (tr_jinja_is(s, "false") || tr_jinja_is(s, "False")) {
        return constant(p, t->place, of_bool(false));
    }
    if (tr_jinja_is(s, "none") || tr_jinja_is(s, "None")) {
        return constant(p, t->place, NONE);
    }
    n = tr_jinja_node(p, N_NAME, t->place);
    n->name = t->value.s;
    return n;
}

static node_t *
list_or_dict(parser_t *p, bool dict)
{
    char closes = dict ? '}' : ']';
    nodes_t items = { 0 };
    node_t *n = tr_jinja_node(p, dict ? N_DICT : N_LIST, p->at->place);

    p->at++;
    while (!tr_jinja_at_op(p, (uint32_t) closes)) {
        if (items.n > 0) {
            tr_jinja_expect_op(p, ',');
            if (tr_jinja_at_op(p, (uint32_t) closes)) {
                break;
            }
        }
        push(p, &items, tr_jinja_expression(p, true));
        if (dict) {
            tr_jinja_expect_op(p, ':');
            push(p, &items, tr_jinja_expression(p, true));
        }
    }
    p->at++;
    n->items = items.items;
    n->n = items.n;
    return n;
}

static node_t *
primary(parser_t *p)
{
    const token_t *t = p->at;
    node_t *n = NULL;

    tr_jinja_deeper(p);
    if (t->kind == T_NAME) {
        n = name_or_word(p);
    } else if (t->kind == T_STRING) {
        string_t *s = t->value.s;

        for (p->at++; p->at->kind == T_STRING; p->at++) {
            s = tr_jinja_concat(p->a, s, p->at->value.s);
        }
        s->builder = NULL;
        s->tags = NULL;
        tr_jinja_chars(s);
        n = constant(p, t->place, of_string(s));
    } else if (t->kind == T_INTEGER || t->kind == T_FLOAT) {
        p->at++;
        n = constant(p, t->place, t->value);
    } else if (tr_jinja_skip_op(p, '(')) {
        if (tr_jinja_skip_op(p, ')')) {
            n = tr_jinja_node(p, N_TUPLE, t->place);
        } else {
            n = tr_jinja_tuple(p, true, NULL);
            tr_jinja_expect_op(p, ')');
        }
    } else if (tr_jinja_at_op(p, '[') || tr_jinja_at_op(p, '{')) {
        n = list_or_dict(p, tr_jinja_at_op(p, '{'));
    } else {
        tr_jinja_unexpected(p, "an expression");
    }
    p->depth--;
    return n;
}

/* ---- behind an expression ----------------------------------------------- */

static call_t *
arguments(parser_t *p)
{
    call_t *c = tr_jinja_zalloc(p->a, sizeof(*c));
    nodes_t items = { 0 }, values = { 0 };
    uint32_t names_cap = 0;

    tr_jinja_expect_op(p, '(');
    while (!tr_jinja_at_op(p, ')')) {
        if (items.n + values.n > 0 || c->star || c->star_star) {
            tr_jinja_expect_op(p, ',');
            if (tr_jinja_at_op(p, ')')) {
                break;
            }
        }
        if (c->star_star != NULL) {
            tr_jinja_unexpected(p, "')' behind **");
        }
        if (c->star == NULL && tr_jinja_skip_op(p, '*')) {
            c->star = tr_jinja_expression(p, true);
        } else if (tr_jinja_skip_op(p, OP2('*', '*'))) {
            c->star_star = tr_jinja_expression(p, true);
        } else if (p->at->kind == T_NAME && p->at[1].kind == T_OPERATOR
                   && p->at[1].op == '=') {
            if (values.n == names_cap) {
                uint32_t cap = names_cap ? names_cap * 2 : 4;

                c->names = tr_jinja_grow(p->a, c->names,
                                         values.n * sizeof(string_t *),
                                         cap * sizeof(string_t *));
                names_cap = cap;
            }
            c->names[values.n] = p->at->value.s;
            for (uint32_t i = 0; i < values.n; i++) {
                if (tr_jinja_same(c->names[i], p->at->value.s)) {
                    tr_jinja_unexpected(p, "each keyword once");
                }
            }
            p->at += 2;
            push(p, &values, tr_jinja_expression(p, true));
        } else if (values.n > 0 || c->star != NULL) {
            tr_jinja_unexpected(p, "a keyword argument");
        } else {
            push(p, &items, tr_jinja_expression(p, true));
        }
    }
    p->at++;
    c->items = items.items;
    c->n = items.n;
    c->values = values.items;
    c->n_names = values.n;
    return c;
}

/* One part of a subscript: an expression or a slice. */
static node_t *
subscript_part(parser_t *p)
{
    node_t *parts[3] = { NULL, NULL, NULL }, *n;
    uint32_t place = p->at->place;

    if (!tr_jinja_at_op(p, ':')) {
        parts[0] = tr_jinja_expression(p, true);
        if (!tr_jinja_at_op(p, ':')) {
            return parts[0];
        }
    }
    for (int i = 1; i < 3 && tr_jinja_skip_op(p, ':'); i++) {
        if (!tr_jinja_at_op(p, ':') && !tr_jinja_at_op(p, ']')
            && !tr_jinja_at_op(p, ',')) {
            parts[i] = tr_jinja_expression(p, true);
        }
    }
    n = node_of(p, N_SLICE, place, parts[0], parts[1]);
    n->c = parts[2];
    return n;
}

static node_t *
subscript(parser_t *p, node_t *of)
{
    uint32_t place = p->at->place;
    nodes_t parts = { 0 };
    node_t *n;

    if (tr_jinja_skip_op(p, '.')) {
        if (p->at->kind == T_INTEGER) {
            n = constant(p, p->at->place, p->at->value);
            p->at++;
            return node_of(p, N_GETITEM, place, of, n);
        }
        n = node_of(p, N_GETATTR, place, of, NULL);
        n->name = tr_jinja_expect_name(p);
        return n;
    }
    tr_jinja_expect_op(p, '[');
    do {
        push(p, &parts, subscript_part(p));
    } while (tr_jinja_skip_op(p, ','));
    tr_jinja_expect_op(p, ']');
    if (parts.n == 1) {
        return node_of(p, N_GETITEM, place, of, parts.items[0]);
    }
    n = tr_jinja_node(p, N_TUPLE, place);
    n->items = parts.items;
    n->n = parts.n;
    return node_of(p, N_GETITEM, place, of, n);
}

static node_t *
call_of(parser_t *p, node_t *of)
{
    node_t *n = node_of(p, N_CALL, p->at->place, of, NULL);

    n->call = arguments(p);
    return n;
}

static node_t *
postfix(parser_t *p, node_t *n)
{
    for (;;) {
        if (tr_jinja_at_op(p, '.') || tr_jinja_at_op(p, '[')) {
            n = subscript(p, n);
        } else if (tr_jinja_at_op(p, '(')) {
            n = call_of(p, n);
        } else {
            return n;
        }
    }
}

static string_t *
dotted_name(parser_t *p)
{
    string_t *s = tr_jinja_expect_name(p);

    while (tr_jinja_skip_op(p, '.')) {
        s = tr_jinja_concat(p->a, s, tr_jinja_string(p->a, ".", 1, TR_JINJA_T));
        s = tr_jinja_concat(p->a, s, tr_jinja_expect_name(p));
    }
    return s;
}

node_t *
tr_jinja_filters_of(parser_t *p, node_t *of, bool begun)
{
    while (begun || tr_jinja_skip_op(p, '|')) {
        node_t *n = node_of(p, N_FILTER, p->at->place, of, NULL);

        n->name = dotted_name(p);
        n->known = tr_jinja_filter_row(n->name);
        n->call = tr_jinja_at_op(p, '(')
                      ? arguments(p)
                      : tr_jinja_zalloc(p->a, sizeof(*n->call));
        of = n;
        begun = false;
    }
    return of;
}

static bool
begins_argument(const parser_t *p)
{
    switch (p->at->kind) {
    case T_NAME:
        return !tr_jinja_at_name(p, "else") && !tr_jinja_at_name(p, "or")
               && !tr_jinja_at_name(p, "and");
    case T_STRING:
    case T_INTEGER:
    case T_FLOAT:
        return true;
    default:
        return tr_jinja_at_op(p, '[') || tr_jinja_at_op(p, '{');
    }
}

static node_t *
test_of(parser_t *p, node_t *of)
{
    uint32_t place = p->at->place;
    node_t *n, *argument;
    bool negated;

    p->at++; /* is */
    negated = tr_jinja_skip_name(p, "not");
    n = node_of(p, N_TEST, place, of, NULL);
    n->name = dotted_name(p);
    n->known = tr_jinja_test_row(n->name);
    if (tr_jinja_at_op(p, '(')) {
        n->call = arguments(p);
    } else {
        n->call = tr_jinja_zalloc(p->a, sizeof(*n->call));
        if (begins_argument(p)) {
            if (tr_jinja_at_name(p, "is")) {
                tr_jinja_unexpected(p, "no second test");
            }
            argument = postfix(p, primary(p));
            n->call->items = tr_jinja_alloc(p->a, sizeof(node_t *));
            n->call->items[0] = argument;
            n->call->n = 1;
        }
    }
    return negated ? node_of(p, N_NOT, place, n, NULL) : n;
}

static node_t *
filters_and_tests(parser_t *p, node_t *n)
{
    for (;;) {
        if (tr_jinja_at_op(p, '|')) {
            n = tr_jinja_filters_of(p, n, false);
        } else if (tr_jinja_at_name(p, "is")) {
            n = test_of(p, n);
        } else if (tr_jinja_at_op(p, '(')) {
            n = call_of(p, n);
        } else {
            return n;
        }
    }
}

/* ---- operators ---------------------------------------------------------- */

static node_t *
unary(parser_t *p, bool with_filter)
{
    uint32_t place = p->at->place;
    node_t *n;

    tr_jinja_deeper(p);
    if (tr_jinja_skip_op(p, '-')) {
        n = node_of(p, N_NEG, place, unary(p, false), NULL);
    } else if (tr_jinja_skip_op(p, '+')) {
        n = node_of(p, N_POS, place, unary(p, false), NULL);
    } else {
        n = primary(p);
    }
    p->depth--;
    n = postfix(p, n);
    return with_filter ? filters_and_tests(p, n) : n;
}

/* The node of the operator here, N_CONST for none. */
static node_kind_t
operator_here(const parser_t *p, int level)
{
    static const struct {
        uint32_t op;
        int level;
        node_kind_t kind;
    } operators[] = {
        { '+', 0, N_ADD },           { '-', 0, N_SUB },
        { '*', 1, N_MUL },           { '/', 1, N_DIV },
        { '%', 1, N_MOD },           { OP2('/', '/'), 1, N_FLOORDIV },
        { OP2('*', '*'), 2, N_POW },
    };

    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        if (operators[i].level == level && tr_jinja_at_op(p, operators[i].op)) {
            return operators[i].kind;
        }
    }
    return N_CONST;
}

static node_t *arithmetic(parser_t *p, int level);

static node_t *
concat(parser_t *p)
{
    uint32_t place = p->at->place;
    node_t *first = arithmetic(p, 1), *n;
    nodes_t items = { 0 };

    if (!tr_jinja_at_op(p, '~')) {
        return first;
    }
    push(p, &items, first);
    while (tr_jinja_skip_op(p, '~')) {
        push(p, &items, arithmetic(p, 1));
    }
    n = tr_jinja_node(p, N_CONCAT, place);
    n->items = items.items;
    n->n = items.n;
    return n;
}

/* Level 0: + and -, whose operands are joined by ~ first; 1: * and so on; 2:
 * **, which associates to the left here as in jinja2. */
static node_t *
arithmetic(parser_t *p, int level)
{
    node_t *left = level == 0   ? concat(p)
                   : level == 1 ? arithmetic(p, 2)
                                : unary(p, true);
    node_kind_t kind;

    while ((kind = operator_here(p, level)) != N_CONST) {
        uint32_t place = (p->at++)->place;
        node_t *right = level == 0   ? concat(p)
                        : level == 1 ? arithmetic(p, 2)
                                     : unary(p, true);

        left = node_of(p, kind, place, left, right);
    }
    return left;
}

static bool
comparison_here(parser_t *p, compare_t *op)
{
    static const struct {
        uint32_t op;
        compare_t compare;
    } operators[] = {
        { OP2('=', '='), OP_EQ }, { OP2('!', '='), OP_NE },
        { '<', OP_LT },           { OP2('<', '='), OP_LE },
        { '>', OP_GT },           { OP2('>', '='), OP_GE },
    };

    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        if (tr_jinja_skip_op(p, operators[i].op)) {
            *op = operators[i].compare;
            return true;
        }
    }
    if (tr_jinja_skip_name(p, "in")) {
        *op = OP_IN;
        return true;
    }
    if (tr_jinja_at_name(p, "not") && p->at[1].kind == T_NAME
        && tr_jinja_is(p->at[1].value.s, "in")) {
        p->at += 2;
        *op = OP_NOTIN;
        return true;
    }
    return false;
}

static node_t *
comparison(parser_t *p)
{
    node_t *first = arithmetic(p, 0), *n;
    uint32_t place = p->at->place;
    nodes_t operands = { 0 };
    compare_t op;

    while (comparison_here(p, &op)) {
        node_t *operand = tr_jinja_node(p, N_OPERAND, p->at[-1].place);

        operand->op = (uint8_t) op;
        operand->a = arithmetic(p, 0);
        push(p, &operands, operand);
    }
    if (operands.n == 0) {
        return first;
    }
    n = node_of(p, N_COMPARE, place, first, NULL);
    n->items = operands.items;
    n->n = operands.n;
    return n;
}

static node_t *
not_expression(parser_t *p)
{
    uint32_t place = p->at->place;
    node_t *n;

    if (!tr_jinja_skip_name(p, "not")) {
        return comparison(p);
    }
    tr_jinja_deeper(p);
    n = node_of(p, N_NOT, place, not_expression(p), NULL);
    p->depth--;
    return n;
}

static node_t *
and_expression(parser_t *p)
{
    node_t *n = not_expression(p);

    while (tr_jinja_at_name(p, "and")) {
        uint32_t place = (p->at++)->place;

        n = node_of(p, N_AND, place, n, not_expression(p));
    }
    return n;
}

static node_t *
or_expression(parser_t *p)
{
    node_t *n = and_expression(p);

    while (tr_jinja_at_name(p, "or")) {
        uint32_t place = (p->at++)->place;

        n = node_of(p, N_OR, place, n, and_expression(p));
    }
    return n;
}

node_t *
tr_jinja_expression(parser_t *p, bool with_condition)
{
    node_t *n;

    tr_jinja_deeper(p);
    n = or_expression(p);
    while (with_condition && tr_jinja_at_name(p, "if")) {
        uint32_t place = (p->at++)->place;
        node_t *test = or_expression(p);

        n = node_of(p, N_COND, place, n, test);
        if (tr_jinja_skip_name(p, "else")) {
            n->c = tr_jinja_expression(p, true);
        }
    }
    p->depth--;
    return n;
}

/* ---- tuples and targets ------------------------------------------------- */

static bool
tuple_ends(const parser_t *p, const char *end)
{
    return p->at->kind == T_VARIABLE_END || p->at->kind == T_BLOCK_END
           || tr_jinja_at_op(p, ')')
           || (end != NULL && tr_jinja_at_name(p, end));
}

node_t *
tr_jinja_tuple(parser_t *p, bool with_condition, const char *end)
{
    uint32_t place = p->at->place;
    nodes_t items = { 0 };
    bool is_tuple = false;
    node_t *n;

    while (!tuple_ends(p, end)) {
        push(p, &items, tr_jinja_expression(p, with_condition));
        if (!tr_jinja_skip_op(p, ',')) {
            break;
        }
        is_tuple = true;
    }
    if (items.n == 0) {
        tr_jinja_unexpected(p, "an expression");
    }
    if (!is_tuple) {
        return items.items[0];
    }
    n = tr_jinja_node(p, N_TUPLE, place);
    n->items = items.items;
    n->n = items.n;
    return n;
}

static node_t *
one_target(parser_t *p, bool with_namespace)
{
    uint32_t place = p->at->place;
    node_t *n;

    if (tr_jinja_skip_op(p, '(')) {
        tr_jinja_deeper(p);
        n = tr_jinja_target(p, false, NULL);
        tr_jinja_expect_op(p, ')');
        p->depth--;
        return n;
    }
    if (p->at->kind != T_NAME) {
        tr_jinja_unexpected(p, "a name to assign to");
    }
    n = name_or_word(p);
    if (n->kind != N_NAME) {
        p->at--;
        tr_jinja_unexpected(p, "a name to assign to");
    }
    if (p->fors > 0 && tr_jinja_is(n->name, "loop")
        && !(with_namespace && tr_jinja_at_op(p, '.'))) {
        p->at--;
        tr_jinja_unexpected(p, "another name: loop belongs to the for");
    }
    if (with_namespace && tr_jinja_skip_op(p, '.')) {
        n->kind = N_NSREF;
        n->attr = tr_jinja_expect_name(p);
    }
    n->place = place;
    return n;
}

node_t *
tr_jinja_target(parser_t *p, bool with_namespace, const char *end)
{
    uint32_t place = p->at->place;
    nodes_t items = { 0 };
    bool is_tuple = false;
    node_t *n;

    while (items.n == 0 || !(tuple_ends(p, end) || tr_jinja_at_op(p, '='))) {
        push(p, &items, one_target(p, with_namespace));
        if (!tr_jinja_skip_op(p, ',')) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple) {
        return items.items[0];
    }
    n = tr_jinja_node(p, N_TUPLE, place);
    n->items = items.items;
    n->n = items.n;
    return n;
}

void
tr_jinja_parse_parameters(parser_t *p, function_t *f)
{
    uint32_t cap = 0;
    bool fallbacks = false;

    tr_jinja_expect_op(p, '(');
    while (!tr_jinja_at_op(p, ')')) {
        if (f->n > 0) {
            tr_jinja_expect_op(p, ',');
        }
        if (f->n == cap) {
            uint32_t more = cap ? cap * 2 : 4;

            f->parameters = tr_jinja_grow(p->a, f->parameters,
                                          f->n * sizeof(parameter_t),
                                          more * sizeof(parameter_t));
            cap = more;
        }
        f->parameters[f->n] = (parameter_t){ .name = tr_jinja_expect_name(p) };
        if (tr_jinja_skip_op(p, '=')) {
            f->parameters[f->n].fallback = tr_jinja_expression(p, true);
            fallbacks = true;
        } else if (fallbacks) {
            tr_jinja_unexpected(p, "a default, as before");
        }
        f->n++;
    }
    p->at++;
}
