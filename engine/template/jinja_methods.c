/*
 * Methods of strings, mappings, lists and `loop`.  Those that would change their
 * object exist, and refuse.
 */
#include "jinja_run.h"

#include <string.h>

typedef value_t (*method_pt)(render_t *r, value_t v, const value_t *args);

static bool
given(value_t v)
{
    return v.kind != K_MISSING && v.kind != K_NONE;
}

static string_t *
text(render_t *r, const char *what, value_t v)
{
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (v.kind != K_STRING) {
        tr_jinja_fail(&r->arena, "%s needs a string, not %s", what,
                      tr_jinja_type(v));
    }
    return v.s;
}

static int64_t
integer(render_t *r, const char *what, value_t v, int64_t otherwise)
{
    if (v.kind == K_MISSING) {
        return otherwise;
    }
    if (v.kind != K_INT && v.kind != K_BOOL) {
        tr_jinja_fail(&r->arena, "%s needs an integer, not %s", what,
                      tr_jinja_type(v));
    }
    return v.kind == K_BOOL ? v.b : v.i;
}

static value_t
list_of(list_t *l)
{
    return (value_t){ .kind = K_LIST, .list = l };
}

/* ---- strings ------------------------------------------------------------ */

static value_t
split(render_t *r, value_t v, const value_t *args, bool right)
{
    string_t *sep = given(args[0]) ? text(r, "split", args[0]) : NULL;
    int64_t most = integer(r, "split", args[1], -1);

    if (sep != NULL && sep->len == 0) {
        tr_jinja_fail(&r->arena, "split by an empty string");
    }
    if (right && sep == NULL && most >= 0) {
        tr_jinja_fail(&r->arena, "rsplit with a bound needs a separator");
    }
    tr_jinja_charge(r, v.s->len);
    return list_of(tr_jinja_split(&r->arena, v.s, sep, most, right));
}

static value_t
string_split(render_t *r, value_t v, const value_t *args)
{
    return split(r, v, args, false);
}

static value_t
string_rsplit(render_t *r, value_t v, const value_t *args)
{
    return split(r, v, args, true);
}

static value_t
strip(render_t *r, value_t v, value_t chars, bool left, bool right)
{
    return of_string(
        tr_jinja_strip(&r->arena, v.s,
                       given(chars) ? text(r, "strip", chars) : NULL, left,
                       right));
}

static value_t
string_strip(render_t *r, value_t v, const value_t *args)
{
    return strip(r, v, args[0], true, true);
}

static value_t
string_lstrip(render_t *r, value_t v, const value_t *args)
{
    return strip(r, v, args[0], true, false);
}

static value_t
string_rstrip(render_t *r, value_t v, const value_t *args)
{
    return strip(r, v, args[0], false, true);
}

/* Bytes of the part that start and end (in characters) leave; false: it begins
 * behind the end. */
static bool
part(render_t *r, string_t *s, value_t start, value_t end, size_t *from,
     size_t *to)
{
    int64_t n = tr_jinja_chars(s);
    int64_t a = given(start) ? integer(r, "a position", start, 0) : 0;
    int64_t b = given(end) ? integer(r, "a position", end, n) : n;
    bool inside;

    a += a < 0 ? n : 0;
    b += b < 0 ? n : 0;
    a = a < 0 ? 0 : a;
    b = b < 0 ? 0 : b > n ? n : b;
    inside = a <= n && a <= b;
    tr_jinja_charge(r, s->len);
    *from = inside ? tr_jinja_offset(s, (uint32_t) a) : 0;
    *to = inside ? tr_jinja_offset(s, (uint32_t) b) : 0;
    return inside;
}

static value_t
affix(render_t *r, value_t v, const value_t *args, bool end)
{
    list_t one = { (value_t *) &args[0], 1 };
    const list_t *l = args[0].kind == K_TUPLE ? args[0].list : &one;
    size_t from, to;
    bool inside;

    inside = given(args[1]) || given(args[2])
                 ? part(r, v.s, args[1], args[2], &from, &to)
                 : (from = 0, to = v.s->len, true);
    for (uint32_t i = 0; i < l->n; i++) {
        string_t *s = text(r, end ? "endswith" : "startswith", l->items[i]);

        if (inside && s->len <= to - from
            && memcmp(v.s->data + (end ? to - s->len : from), s->data, s->len)
                   == 0) {
            return of_bool(true);
        }
    }
    return of_bool(false);
}

static value_t
string_startswith(render_t *r, value_t v, const value_t *args)
{
    return affix(r, v, args, false);
}

static value_t
string_endswith(render_t *r, value_t v, const value_t *args)
{
    return affix(r, v, args, true);
}

static value_t
string_replace(render_t *r, value_t v, const value_t *args)
{
    string_t *old = text(r, "replace", args[0]);
    string_t *by = text(r, "replace", args[1]);

    if (v.s->markup) {
        by = tr_jinja_escape_html(&r->arena, by);
    }
    tr_jinja_charge(r, v.s->len);
    return of_string(tr_jinja_replace(&r->arena, v.s, old, by,
                                      integer(r, "replace", args[2], -1)));
}

static value_t
string_upper(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(tr_jinja_case(&r->arena, v.s, CASE_UPPER));
}

static value_t
string_lower(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(tr_jinja_case(&r->arena, v.s, CASE_LOWER));
}

static value_t
string_title(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(tr_jinja_case(&r->arena, v.s, CASE_TITLE));
}

static value_t
string_capitalize(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(tr_jinja_case(&r->arena, v.s, CASE_CAPITAL));
}

static value_t
string_find(render_t *r, value_t v, const value_t *args)
{
    string_t *what = text(r, "find", args[0]);
    size_t from, to, at;

    if (!part(r, v.s, args[1], args[2], &from, &to)) {
        return of_int(-1);
    }
    at = tr_jinja_find_text(v.s, from, what);
    return of_int(at == SIZE_MAX || at + what->len > to
                      ? -1
                      : (int64_t) tr_jinja_index(v.s, at));
}

static value_t
string_count(render_t *r, value_t v, const value_t *args)
{
    string_t *what = text(r, "count", args[0]);
    size_t from, to, at;
    int64_t n = 0;

    if (!part(r, v.s, args[1], args[2], &from, &to)) {
        return of_int(0);
    }
    if (what->len == 0) {
        return of_int(tr_jinja_index(v.s, to) - tr_jinja_index(v.s, from) + 1);
    }
    while ((at = tr_jinja_find_text(v.s, from, what)) != SIZE_MAX
           && at + what->len <= to) {
        n++;
        from = at + what->len;
    }
    return of_int(n);
}

static value_t
string_join(render_t *r, value_t v, const value_t *args)
{
    list_t l = tr_jinja_items(r, args[0]);

    list_t *parts = tr_jinja_list(&r->arena, l.n);
    string_t *s;

    for (uint32_t i = 0; i < l.n; i++) {
        s = text(r, "join", l.items[i]);
        parts->items[i] = of_string(
            v.s->markup ? tr_jinja_escape_html(&r->arena, s) : s);
    }
    s = tr_jinja_join(r, parts, v.s);
    s->markup = v.s->markup;
    return of_string(s);
}

static value_t
string_splitlines(render_t *r, value_t v, const value_t *args)
{
    bool keep = args[0].kind != K_MISSING && tr_jinja_truth(r, args[0]);

    tr_jinja_charge(r, v.s->len);
    return list_of(tr_jinja_split_lines(&r->arena, v.s, keep));
}

static value_t
string_removeprefix(render_t *r, value_t v, const value_t *args)
{
    string_t *s = text(r, "removeprefix", args[0]);

    return s->len <= v.s->len && memcmp(v.s->data, s->data, s->len) == 0
               ? of_string(tr_jinja_slice(&r->arena, v.s, s->len, v.s->len))
               : v;
}

static value_t
string_removesuffix(render_t *r, value_t v, const value_t *args)
{
    string_t *s = text(r, "removesuffix", args[0]);

    return s->len <= v.s->len
                   && memcmp(v.s->data + v.s->len - s->len, s->data, s->len)
                          == 0
               ? of_string(tr_jinja_slice(&r->arena, v.s, 0, v.s->len - s->len))
               : v;
}

static value_t
string_isdigit(render_t *r, value_t v, const value_t *args)
{
    (void) r;
    (void) args;
    for (uint32_t i = 0; i < v.s->len; i++) {
        if (v.s->data[i] < '0' || v.s->data[i] > '9') {
            return of_bool(false);
        }
    }
    return of_bool(v.s->len > 0);
}

/* ---- mappings ----------------------------------------------------------- */

static value_t
dict_get(render_t *r, value_t v, const value_t *args)
{
    value_t *there;

    if (!tr_jinja_hashable(args[0])) {
        tr_jinja_fail(&r->arena, "%s cannot be a key", tr_jinja_type(args[0]));
    }
    there = tr_jinja_dict_get(&r->arena, v.dict, args[0]);
    return there != NULL ? *there : args[1].kind == K_MISSING ? NONE : args[1];
}

static value_t
view(render_t *r, value_t v, enum view_what what)
{
    view_t *w = tr_jinja_alloc(&r->arena, sizeof(*w));

    *w = (view_t){ v.dict, what };
    return (value_t){ .kind = K_VIEW, .view = w };
}

static value_t
dict_items(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return view(r, v, VIEW_ITEMS);
}

static value_t
dict_keys(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return view(r, v, VIEW_KEYS);
}

static value_t
dict_values(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return view(r, v, VIEW_VALUES);
}

static value_t
itself(render_t *r, value_t v, const value_t *args)
{
    (void) r;
    (void) args;
    return v;
}

/* ---- lists, loop -------------------------------------------------------- */

static value_t
list_count(render_t *r, value_t v, const value_t *args)
{
    int64_t n = 0;

    tr_jinja_charge(r, (uint64_t) v.list->n * 64);
    for (uint32_t i = 0; i < v.list->n; i++) {
        n += tr_jinja_equal(v.list->items[i], args[0]);
    }
    return of_int(n);
}

static value_t
list_index(render_t *r, value_t v, const value_t *args)
{
    tr_jinja_charge(r, (uint64_t) v.list->n * 64);
    for (uint32_t i = 0; i < v.list->n; i++) {
        if (tr_jinja_equal(v.list->items[i], args[0])) {
            return of_int(i);
        }
    }
    tr_jinja_fail(&r->arena, "the list does not hold this value");
}

static value_t
loop_cycle(render_t *r, value_t v, const arguments_t *args)
{
    if (args->n > 0) {
        return args->items[v.loop->index0 % args->n];
    }
    tr_jinja_fail(&r->arena, "loop.cycle needs values");
}

static value_t
loop_changed(render_t *r, value_t v, const arguments_t *args)
{
    list_t *l = tr_jinja_list(&r->arena, args->n);
    value_t now = { .kind = K_TUPLE, .list = l };
    bool changed;

    for (uint32_t i = 0; i < args->n; i++) {
        l->items[i] = args->items[i];
    }
    changed = v.loop->seen.kind == K_MISSING
              || !tr_jinja_equal(v.loop->seen, now);
    v.loop->seen = now;
    return of_bool(changed);
}

static value_t
string_format(render_t *r, value_t v, const arguments_t *args)
{
    return tr_jinja_format(r, v.s, args);
}

/* ---- the table ---------------------------------------------------------- */

typedef value_t (*method_call_pt)(render_t *r, value_t v,
                                  const arguments_t *args);

static const struct {
    uint8_t kind;
    const char *name;
    method_pt run; /* NULL: `call`; neither: not allowed in a template */
    const char *parameters;
    uint32_t needed;
    method_call_pt call;
} table[] = {
    { K_STRING, "capitalize", string_capitalize, "", 0, NULL },
    { K_STRING, "count", string_count, "sub,start,end", 1, NULL },
    { K_STRING, "endswith", string_endswith, "suffix,start,end", 1, NULL },
    { K_STRING, "find", string_find, "sub,start,end", 1, NULL },
    { K_STRING, "format", NULL, NULL, 0, string_format },
    { K_STRING, "isdigit", string_isdigit, "", 0, NULL },
    { K_STRING, "join", string_join, "iterable", 1, NULL },
    { K_STRING, "lower", string_lower, "", 0, NULL },
    { K_STRING, "lstrip", string_lstrip, "chars", 0, NULL },
    { K_STRING, "removeprefix", string_removeprefix, "prefix", 1, NULL },
    { K_STRING, "removesuffix", string_removesuffix, "suffix", 1, NULL },
    { K_STRING, "replace", string_replace, "old,new,count", 2, NULL },
    { K_STRING, "rsplit", string_rsplit, "sep,maxsplit", 0, NULL },
    { K_STRING, "rstrip", string_rstrip, "chars", 0, NULL },
    { K_STRING, "split", string_split, "sep,maxsplit", 0, NULL },
    { K_STRING, "splitlines", string_splitlines, "keepends", 0, NULL },
    { K_STRING, "startswith", string_startswith, "prefix,start,end", 1, NULL },
    { K_STRING, "strip", string_strip, "chars", 0, NULL },
    { K_STRING, "title", string_title, "", 0, NULL },
    { K_STRING, "upper", string_upper, "", 0, NULL },
    { K_DICT, "copy", itself, "", 0, NULL },
    { K_DICT, "get", dict_get, "key,default", 1, NULL },
    { K_DICT, "items", dict_items, "", 0, NULL },
    { K_DICT, "keys", dict_keys, "", 0, NULL },
    { K_DICT, "values", dict_values, "", 0, NULL },
    { K_DICT, "clear", NULL, NULL, 0, NULL },
    { K_DICT, "pop", NULL, NULL, 0, NULL },
    { K_DICT, "popitem", NULL, NULL, 0, NULL },
    { K_DICT, "setdefault", NULL, NULL, 0, NULL },
    { K_DICT, "update", NULL, NULL, 0, NULL },
    { K_LIST, "copy", itself, "", 0, NULL },
    { K_LIST, "count", list_count, "value", 1, NULL },
    { K_LIST, "index", list_index, "value", 1, NULL },
    { K_LIST, "append", NULL, NULL, 0, NULL },
    { K_LIST, "clear", NULL, NULL, 0, NULL },
    { K_LIST, "extend", NULL, NULL, 0, NULL },
    { K_LIST, "insert", NULL, NULL, 0, NULL },
    { K_LIST, "pop", NULL, NULL, 0, NULL },
    { K_LIST, "remove", NULL, NULL, 0, NULL },
    { K_LIST, "reverse", NULL, NULL, 0, NULL },
    { K_LIST, "sort", NULL, NULL, 0, NULL },
    { K_TUPLE, "count", list_count, "value", 1, NULL },
    { K_TUPLE, "index", list_index, "value", 1, NULL },
    { K_LOOP, "changed", NULL, NULL, 0, loop_changed },
    { K_LOOP, "cycle", NULL, NULL, 0, loop_cycle },
};

/* What else Python's types have: a template that asks for it is told so,
 * instead of finding it undefined. */
static const struct {
    uint8_t kind;
    const char *name;
} others[] = {
    { K_STRING, "casefold" },     { K_STRING, "center" },
    { K_STRING, "encode" },       { K_STRING, "expandtabs" },
    { K_STRING, "format_map" },   { K_STRING, "index" },
    { K_STRING, "isalnum" },      { K_STRING, "isalpha" },
    { K_STRING, "isascii" },      { K_STRING, "isdecimal" },
    { K_STRING, "isidentifier" }, { K_STRING, "islower" },
    { K_STRING, "isnumeric" },    { K_STRING, "isprintable" },
    { K_STRING, "isspace" },      { K_STRING, "istitle" },
    { K_STRING, "isupper" },      { K_STRING, "ljust" },
    { K_STRING, "maketrans" },    { K_STRING, "partition" },
    { K_STRING, "rfind" },        { K_STRING, "rindex" },
    { K_STRING, "rjust" },        { K_STRING, "rpartition" },
    { K_STRING, "swapcase" },     { K_STRING, "translate" },
    { K_STRING, "zfill" },        { K_DICT, "fromkeys" },
};

#define OTHERS 0x8000u

value_t
tr_jinja_method(render_t *r, value_t v, const string_t *name)
{
    size_t rows = sizeof(table) / sizeof(table[0]);
    size_t more = sizeof(others) / sizeof(others[0]);
    uint32_t row = UINT32_MAX;
    method_t *m;

    if (v.kind != K_STRING && v.kind != K_DICT && v.kind != K_LIST
        && v.kind != K_TUPLE && v.kind != K_LOOP) {
        return MISSING;
    }
    for (size_t i = 0; i < rows && row == UINT32_MAX; i++) {
        if (table[i].kind == v.kind && tr_jinja_is(name, table[i].name)) {
            row = (uint32_t) i;
        }
    }
    for (size_t i = 0; i < more && row == UINT32_MAX; i++) {
        if (others[i].kind == v.kind && tr_jinja_is(name, others[i].name)) {
            row = OTHERS | (uint32_t) i;
        }
    }
    if (row == UINT32_MAX) {
        return MISSING;
    }
    if (row < rows && table[row].run == NULL && table[row].call == NULL) {
        /* jinja2's sandbox: undefined until it is called */
        return of_undefined(tr_jinja_string(&r->arena, table[row].name,
                                            strlen(table[row].name),
                                            TR_JINJA_T));
    }
    m = tr_jinja_alloc(&r->arena, sizeof(*m));
    *m = (method_t){ (uint16_t) row, v };
    return (value_t){ .kind = K_METHOD, .method = m };
}

value_t
tr_jinja_call_method(render_t *r, const method_t *m, const arguments_t *args)
{
    value_t out[TR_JINJA_PARAMETERS];

    if (m->row & OTHERS) {
        tr_jinja_fail(&r->arena, "the method %s is not supported",
                      others[m->row & ~OTHERS].name);
    }
    if (table[m->row].call != NULL) {
        return table[m->row].call(r, m->of, args);
    }
    tr_jinja_bind(r, table[m->row].name, args, table[m->row].parameters,
                  table[m->row].needed, out);
    return table[m->row].run(r, m->of, out);
}
