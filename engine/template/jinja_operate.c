/*
 * Operators as Python has them: arithmetic, comparisons, iteration.
 */
#include "jinja_run.h"

#include <math.h>
#include <string.h>

const char *
tr_jinja_type(value_t v)
{
    static const char *const names[] = {
        [K_MISSING] = "nothing",
        [K_UNDEFINED] = "an undefined value",
        [K_NONE] = "None",
        [K_BOOL] = "a boolean",
        [K_INT] = "an integer",
        [K_FLOAT] = "a float",
        [K_STRING] = "a string",
        [K_LIST] = "a list",
        [K_TUPLE] = "a tuple",
        [K_DICT] = "a mapping",
        [K_RANGE] = "a range",
        [K_NAMESPACE] = "a namespace",
        [K_VIEW] = "a view of a mapping",
        [K_ITER] = "a generator",
        [K_LOOP] = "loop",
        [K_MACRO] = "a macro",
        [K_FUNCTION] = "a function",
        [K_METHOD] = "a method",
    };

    return names[v.kind];
}

void
tr_jinja_undefined(render_t *r, value_t v)
{
    if (v.s != NULL) {
        tr_jinja_fail(&r->arena, "'%.*s' is undefined",
                      v.s->len < 80 ? (int) v.s->len : 80, v.s->data);
    }
    tr_jinja_fail(&r->arena, "a value is undefined");
}

/* ---- arithmetic --------------------------------------------------------- */

static _Noreturn void
no_operator(render_t *r, node_kind_t op, value_t a, value_t b)
{
    static const char *const signs[] = {
        [N_ADD - N_ADD] = "+",       [N_SUB - N_ADD] = "-",
        [N_MUL - N_ADD] = "*",       [N_DIV - N_ADD] = "/",
        [N_FLOORDIV - N_ADD] = "//", [N_MOD - N_ADD] = "%",
        [N_POW - N_ADD] = "**",
    };

    if (a.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, a);
    }
    if (b.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, b);
    }
    tr_jinja_fail(&r->arena, "%s %s %s is not possible", tr_jinja_type(a),
                  signs[op - N_ADD], tr_jinja_type(b));
}

static double
as_float(value_t v)
{
    return v.kind == K_FLOAT  ? v.f
           : v.kind == K_BOOL ? (double) v.b
                              : (double) v.i;
}

static bool
power(int64_t base, int64_t n, int64_t *out)
{
    *out = 1;
    for (; n > 0; n--) {
        if (base == 0 || base == 1) {
            *out = base;
            return true;
        }
        if (base == -1) {
            *out = n % 2 ? -*out : *out;
            return true;
        }
        if (__builtin_mul_overflow(*out, base, out)) {
            return false;
        }
    }
    return true;
}

static value_t
floats(render_t *r, node_kind_t op, double x, double y)
{
    double m;

    if (y == 0 && (op == N_DIV || op == N_FLOORDIV || op == N_MOD)) {
        tr_jinja_fail(&r->arena, "division by zero");
    }
    switch (op) {
    case N_ADD:
        return of_float(x + y);
    case N_SUB:
        return of_float(x - y);
    case N_MUL:
        return of_float(x * y);
    case N_DIV:
        return of_float(x / y);
    case N_POW:
        return of_float(pow(x, y));
    default:
        m = fmod(x, y);
        if (m != 0 && (m < 0) != (y < 0)) {
            m += y;
        }
        return of_float(op == N_MOD ? m : round((x - m) / y));
    }
}

static value_t
integers(render_t *r, node_kind_t op, int64_t x, int64_t y)
{
    int64_t out = 0;
    bool over = false;

    if (y == 0 && (op == N_FLOORDIV || op == N_MOD)) {
        tr_jinja_fail(&r->arena, "division by zero");
    }
    switch (op) {
    case N_ADD:
        over = __builtin_add_overflow(x, y, &out);
        break;
    case N_SUB:
        over = __builtin_sub_overflow(x, y, &out);
        break;
    case N_MUL:
        over = __builtin_mul_overflow(x, y, &out);
        break;
    case N_POW:
        if (y < 0) {
            return floats(r, op, (double) x, (double) y);
        }
        over = !power(x, y, &out);
        break;
    case N_FLOORDIV:
    case N_MOD:
        if (y == -1) {
            over = op == N_FLOORDIV && __builtin_sub_overflow(0, x, &out);
            break;
        }
        out = op == N_MOD ? x % y : x / y;
        if (x % y != 0 && (x < 0) != (y < 0)) {
            out += op == N_MOD ? y : -1;
        }
        break;
    default:
        return floats(r, op, (double) x, (double) y);
    }
    if (over) {
        tr_jinja_fail(&r->arena, "a number is too large");
    }
    return of_int(out);
}

static value_t
add_strings(render_t *r, string_t *a, string_t *b)
{
    string_t *s;

    if (!a->markup && !b->markup) {
        return of_string(tr_jinja_concat(&r->arena, a, b));
    }
    s = tr_jinja_concat(&r->arena, tr_jinja_escape_html(&r->arena, a),
                        tr_jinja_escape_html(&r->arena, b));
    s = tr_jinja_slice(&r->arena, s, 0, s->len);
    s->markup = true;
    return of_string(s);
}

static value_t
repeat(render_t *r, value_t v, int64_t n)
{
    list_t *out;

    if (v.kind == K_STRING) {
        return of_string(tr_jinja_repeat(&r->arena, v.s, n));
    }
    n = n < 0 ? 0 : n;
    if (v.list->n > 0 && (uint64_t) n > UINT32_MAX / v.list->n) {
        tr_jinja_fail(&r->arena, "a list is too long");
    }
    out = tr_jinja_list(&r->arena, (uint32_t) n * v.list->n);
    for (uint32_t i = 0; i < out->n; i++) {
        out->items[i] = v.list->items[i % v.list->n];
    }
    return (value_t){ .kind = v.kind, .list = out };
}

static value_t
join_lists(render_t *r, value_t a, value_t b)
{
    list_t *l = tr_jinja_list(&r->arena, a.list->n + b.list->n);

    tr_jinja_charge(r, (uint64_t) l->n * 16);
    if (a.list->n > 0) {
        memcpy(l->items, a.list->items, a.list->n * sizeof(value_t));
    }
    if (b.list->n > 0) {
        memcpy(l->items + a.list->n, b.list->items,
               b.list->n * sizeof(value_t));
    }
    return (value_t){ .kind = a.kind, .list = l };
}

static bool
repeatable(value_t v, value_t n)
{
    return (v.kind == K_STRING || v.kind == K_LIST || v.kind == K_TUPLE)
           && (n.kind == K_INT || n.kind == K_BOOL);
}

value_t
tr_jinja_arithmetic(render_t *r, node_kind_t op, value_t a, value_t b)
{
    value_t v;

    if (op == N_ADD && a.kind == K_STRING && b.kind == K_STRING) {
        return add_strings(r, a.s, b.s);
    }
    if (is_number(a) && is_number(b)) {
        if (a.kind == K_FLOAT || b.kind == K_FLOAT) {
            v = floats(r, op, as_float(a), as_float(b));
        } else {
            v = integers(r, op, a.kind == K_BOOL ? a.b : a.i,
                         b.kind == K_BOOL ? b.b : b.i);
        }
        v.tag = a.tag > b.tag ? a.tag : b.tag;
        return v;
    }
    if (op == N_ADD && a.kind == b.kind
        && (a.kind == K_LIST || a.kind == K_TUPLE)) {
        return join_lists(r, a, b);
    }
    if (op == N_MUL && repeatable(a, b)) {
        return repeat(r, a, b.kind == K_BOOL ? b.b : b.i);
    }
    if (op == N_MUL && repeatable(b, a)) {
        return repeat(r, b, a.kind == K_BOOL ? a.b : a.i);
    }
    if (op == N_MOD && a.kind == K_STRING) {
        return tr_jinja_percent(r, a.s, b);
    }
    no_operator(r, op, a, b);
}

/* ---- iteration ---------------------------------------------------------- */

static list_t
characters(render_t *r, string_t *s)
{
    list_t *l = tr_jinja_list(&r->arena, tr_jinja_chars(s));
    size_t at = 0;

    for (uint32_t i = 0; i < l->n; i++) {
        size_t next = at + tr_jinja_char_bytes(s->data + at);

        l->items[i] = of_string(tr_jinja_slice(&r->arena, s, at, next));
        at = next;
    }
    return *l;
}

static list_t
of_view(render_t *r, const view_t *v)
{
    list_t l = { v->dict->keys, v->dict->n };

    if (v->what == VIEW_VALUES) {
        l.items = v->dict->values;
    } else if (v->what == VIEW_ITEMS) {
        l.items = tr_jinja_alloc(&r->arena, l.n * sizeof(value_t));
        for (uint32_t i = 0; i < l.n; i++) {
            l.items[i] = tr_jinja_pair(&r->arena, v->dict->keys[i],
                                       v->dict->values[i]);
        }
    }
    return l;
}

bool
tr_jinja_iterable(value_t v)
{
    switch (v.kind) {
    case K_UNDEFINED:
    case K_STRING:
    case K_LIST:
    case K_TUPLE:
    case K_DICT:
    case K_RANGE:
    case K_VIEW:
    case K_ITER:
    case K_LOOP:
        return true;
    default:
        return false;
    }
}

list_t
tr_jinja_items(render_t *r, value_t v)
{
    list_t l = { NULL, 0 };

    switch (v.kind) {
    case K_UNDEFINED:
        return l;
    case K_STRING:
        return characters(r, v.s);
    case K_LIST:
    case K_TUPLE:
        return *v.list;
    case K_DICT:
        return (list_t){ v.dict->keys, v.dict->n };
    case K_VIEW:
        return of_view(r, v.view);
    case K_RANGE:
        l.n = v.range->n;
        l.items = tr_jinja_alloc(&r->arena, l.n * sizeof(value_t));
        for (uint32_t i = 0; i < l.n; i++) {
            l.items[i] = of_int(v.range->start + v.range->step * i);
        }
        return l;
    case K_ITER:
        if (v.iter->make != NULL) {
            v.iter->values = v.iter->make(r, v.iter);
            v.iter->make = NULL;
        }
        l.n = v.iter->values.n - v.iter->next;
        l.items = l.n > 0 ? v.iter->values.items + v.iter->next : NULL;
        v.iter->next = v.iter->values.n; /* they come once */
        return l;
    default:
        tr_jinja_fail(&r->arena, "%s cannot be iterated", tr_jinja_type(v));
    }
}

bool
tr_jinja_length(render_t *r, value_t v, int64_t *out)
{
    (void) r;
    switch (v.kind) {
    case K_UNDEFINED:
        *out = 0;
        return true;
    case K_STRING:
        *out = tr_jinja_chars(v.s);
        return true;
    case K_LIST:
    case K_TUPLE:
        *out = v.list->n;
        return true;
    case K_DICT:
        *out = v.dict->n;
        return true;
    case K_VIEW:
        *out = v.view->dict->n;
        return true;
    case K_RANGE:
        *out = v.range->n;
        return true;
    default:
        return false;
    }
}

/* ---- comparisons -------------------------------------------------------- */

static int
order_strings(const string_t *a, const string_t *b)
{
    uint32_t n = a->len < b->len ? a->len : b->len;
    int c = n > 0 ? memcmp(a->data, b->data, n) : 0;

    return c != 0 ? c : a->len < b->len ? -1 : a->len > b->len;
}

int
tr_jinja_order(render_t *r, value_t a, value_t b)
{
    if (is_number(a) && is_number(b)) {
        if (a.kind != K_FLOAT && b.kind != K_FLOAT) {
            int64_t x = a.kind == K_BOOL ? a.b : a.i;
            int64_t y = b.kind == K_BOOL ? b.b : b.i;

            return x < y ? -1 : x > y;
        }
        return as_float(a) < as_float(b) ? -1 : as_float(a) > as_float(b);
    }
    if (a.kind == K_STRING && b.kind == K_STRING) {
        return order_strings(a.s, b.s);
    }
    if (a.kind == b.kind && (a.kind == K_LIST || a.kind == K_TUPLE)) {
        for (uint32_t i = 0; i < a.list->n && i < b.list->n; i++) {
            if (!tr_jinja_equal(a.list->items[i], b.list->items[i])) {
                return tr_jinja_order(r, a.list->items[i], b.list->items[i]);
            }
        }
        return a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
    }
    if (a.kind == K_UNDEFINED || b.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, a.kind == K_UNDEFINED ? a : b);
    }
    tr_jinja_fail(&r->arena, "%s and %s have no order", tr_jinja_type(a),
                  tr_jinja_type(b));
}

bool
tr_jinja_contains(render_t *r, value_t in, value_t what)
{
    list_t l;

    if (in.kind == K_STRING) {
        if (what.kind != K_STRING) {
            tr_jinja_fail(&r->arena, "%s in a string is not possible",
                          tr_jinja_type(what));
        }
        tr_jinja_charge(r, in.s->len);
        return tr_jinja_find_text(in.s, 0, what.s) != SIZE_MAX;
    }
    if (in.kind == K_DICT
        || (in.kind == K_VIEW && in.view->what == VIEW_KEYS)) {
        if (!tr_jinja_hashable(what)) {
            tr_jinja_fail(&r->arena, "%s cannot be a key", tr_jinja_type(what));
        }
        return tr_jinja_dict_get(&r->arena,
                                 in.kind == K_DICT ? in.dict : in.view->dict,
                                 what)
               != NULL;
    }
    l = tr_jinja_items(r, in);
    tr_jinja_charge(r, (uint64_t) l.n * 64);
    for (uint32_t i = 0; i < l.n; i++) {
        if (tr_jinja_equal(l.items[i], what)) {
            return true;
        }
    }
    return false;
}

bool
tr_jinja_compare(render_t *r, compare_t op, value_t a, value_t b)
{
    if (a.kind == K_STRING && b.kind == K_STRING && a.s->len == b.s->len) {
        tr_jinja_charge(r, a.s->len);
    }
    switch (op) {
    case OP_EQ:
        return tr_jinja_equal(a, b);
    case OP_NE:
        return !tr_jinja_equal(a, b);
    case OP_IN:
        return tr_jinja_contains(r, b, a);
    case OP_NOTIN:
        return !tr_jinja_contains(r, b, a);
    default:
        break;
    }
    if ((a.kind == K_FLOAT && isnan(a.f))
        || (b.kind == K_FLOAT && isnan(b.f))) {
        return false;
    }
    {
        int c = tr_jinja_order(r, a, b);

        return op == OP_LT   ? c < 0
               : op == OP_LE ? c <= 0
               : op == OP_GT ? c > 0
                             : c >= 0;
    }
}
