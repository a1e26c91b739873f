/*
 * The table of filters, and those of single values.  Those of sequences are in
 * jinja_lists.c.
 */
#include "jinja_run.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static string_t *
text_of(render_t *r, value_t v)
{
    return tr_jinja_str(r, v);
}

static bool
flag(render_t *r, value_t v, bool otherwise)
{
    return v.kind == K_MISSING ? otherwise : tr_jinja_truth(r, v);
}

static value_t
filter_length(render_t *r, value_t v, const value_t *args)
{
    int64_t n;

    (void) args;
    if (!tr_jinja_length(r, v, &n)) {
        tr_jinja_fail(&r->arena, "%s has no length", tr_jinja_type(v));
    }
    return of_int(n);
}

static value_t
filter_default(render_t *r, value_t v, const value_t *args)
{
    if (v.kind == K_UNDEFINED
        || (flag(r, args[1], false) && !tr_jinja_truth(r, v))) {
        return args[0].kind == K_MISSING
                   ? of_string(tr_jinja_string(&r->arena, "", 0, TR_JINJA_T))
                   : args[0];
    }
    return v;
}

static value_t
filter_trim(render_t *r, value_t v, const value_t *args)
{
    string_t *s = text_of(r, v);
    string_t *chars = NULL;

    if (args[0].kind == K_STRING) {
        chars = args[0].s;
    } else if (args[0].kind != K_MISSING && args[0].kind != K_NONE) {
        tr_jinja_fail(&r->arena, "trim needs a string, not %s",
                      tr_jinja_type(args[0]));
    }
    return of_string(tr_jinja_strip(&r->arena, s, chars, true, true));
}

static value_t
filter_string(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(text_of(r, v));
}

static value_t
filter_safe(render_t *r, value_t v, const value_t *args)
{
    string_t *s = text_of(r, v);

    (void) args;
    s = tr_jinja_slice(&r->arena, s, 0, s->len);
    s->markup = true;
    return of_string(s);
}

static value_t
filter_escape(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(tr_jinja_escape_html(&r->arena, text_of(r, v)));
}

static value_t
filter_lower(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(tr_jinja_case(&r->arena, text_of(r, v), CASE_LOWER));
}

static value_t
filter_upper(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(tr_jinja_case(&r->arena, text_of(r, v), CASE_UPPER));
}

static value_t
filter_capitalize(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(tr_jinja_case(&r->arena, text_of(r, v), CASE_CAPITAL));
}

static value_t
filter_title(render_t *r, value_t v, const value_t *args)
{
    (void) args;
    return of_string(
        tr_jinja_case(&r->arena, text_of(r, v), CASE_TITLE_FILTER));
}

/* What str() makes of it: no Markup. */
static string_t *
plain(render_t *r, value_t v)
{
    string_t *s = text_of(r, v);

    if (s->markup) {
        s = tr_jinja_slice(&r->arena, s, 0, s->len);
        s->markup = false;
    }
    return s;
}

static value_t
filter_replace(render_t *r, value_t v, const value_t *args)
{
    string_t *s = plain(r, v);
    int64_t count = -1;

    if (args[2].kind == K_INT) {
        count = args[2].i;
    } else if (args[2].kind != K_MISSING && args[2].kind != K_NONE) {
        tr_jinja_fail(&r->arena, "replace counts in integers");
    }
    tr_jinja_charge(r, s->len);
    return of_string(tr_jinja_replace(&r->arena, s, plain(r, args[0]),
                                      plain(r, args[1]), count));
}

static value_t
filter_indent(render_t *r, value_t v, const value_t *args)
{
    bool first = flag(r, args[1], false), blank = flag(r, args[2], false);
    string_t *by = tr_jinja_string(&r->arena, "    ", 4, TR_JINJA_T);
    builder_t b = { 0 };
    string_t *s, *out;
    list_t *lines;

    if (args[0].kind == K_STRING) {
        by = args[0].s;
    } else if (args[0].kind == K_INT || args[0].kind == K_BOOL) {
        by = tr_jinja_repeat(&r->arena,
                             tr_jinja_string(&r->arena, " ", 1, TR_JINJA_T),
                             args[0].kind == K_BOOL ? args[0].b : args[0].i);
    } else if (args[0].kind != K_MISSING) {
        tr_jinja_fail(&r->arena, "indent needs a width or a string");
    }
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (v.kind != K_STRING) {
        tr_jinja_fail(&r->arena, "indent needs a string, not %s",
                      tr_jinja_type(v));
    }
    if (v.s->markup && !by->markup) {
        by = tr_jinja_slice(&r->arena, by, 0, by->len);
        by->markup = true;
    }
    s = tr_jinja_concat(&r->arena, v.s,
                        tr_jinja_string(&r->arena, "\n", 1, TR_JINJA_T));
    lines = tr_jinja_split_lines(&r->arena, s, false);
    for (uint32_t i = 0; i < lines->n; i++) {
        string_t *line = lines->items[i].s;

        if (i > 0) {
            tr_jinja_put_text(&r->arena, &b, "\n", TR_JINJA_T);
        }
        if (i == 0 ? first : (blank || line->len > 0)) {
            tr_jinja_put_string(&r->arena, &b, by);
        }
        tr_jinja_put_string(&r->arena, &b, line);
    }
    out = tr_jinja_built(&r->arena, &b);
    out->markup = v.s->markup;
    return of_string(out);
}

/* ---- numbers ------------------------------------------------------------ */

static bool
parse_float(render_t *r, string_t *s, double *out)
{
    string_t *t = tr_jinja_strip(&r->arena, s, NULL, true, true);
    char text[400], *end;
    uint32_t n = 0;

    if (t->len == 0 || t->len >= sizeof(text)) {
        return false;
    }
    for (uint32_t i = 0; i < t->len; i++) {
        char c = t->data[i];

        if (c == '_' && i > 0 && i + 1 < t->len && t->data[i - 1] >= '0'
            && t->data[i - 1] <= '9' && t->data[i + 1] >= '0'
            && t->data[i + 1] <= '9') {
            continue;
        }
        if (c == 'x' || c == 'X' || c == 'p' || c == 'P' || c == '('
            || c == '\0') {
            return false; /* strtod knows more than Python */
        }
        text[n++] = c;
    }
    text[n] = '\0';
    *out = strtod(text, &end);
    return *end == '\0' && end != text && text[0] != ' ';
}

static bool
parse_int(render_t *r, string_t *s, int64_t base, int64_t *out)
{
    string_t *t = tr_jinja_strip(&r->arena, s, NULL, true, true);
    char text[100], *end;
    uint32_t n = 0;

    if (t->len == 0 || t->len >= sizeof(text) || base < 0 || base > 36
        || base == 1) {
        return false;
    }
    for (uint32_t i = 0; i < t->len; i++) {
        if (t->data[i] == '_' && i > 0 && i + 1 < t->len
            && t->data[i - 1] != '_' && t->data[i + 1] != '_') {
            continue;
        }
        text[n++] = t->data[i];
    }
    text[n] = '\0';
    n = text[0] == '-' || text[0] == '+';
    if (text[n] == '0' && (text[n + 1] | 0x20) == 'b'
        && (base == 2 || base == 0)) {
        memmove(text + n, text + n + 2, strlen(text + n + 2) + 1);
        base = 2;
    } else if (text[n] == '0' && (text[n + 1] | 0x20) == 'o'
               && (base == 8 || base == 0)) {
        memmove(text + n, text + n + 2, strlen(text + n + 2) + 1);
        base = 8;
    }
    if (text[n] == '\0' || text[n] == ' ' || text[n] == '-' || text[n] == '+') {
        return false;
    }
    errno = 0;
    *out = strtoll(text, &end, (int) base);
    if (errno == ERANGE) {
        tr_jinja_fail(&r->arena, "a number is too large");
    }
    return *end == '\0';
}

static value_t
truncated(render_t *r, double f, uint8_t tag)
{
    value_t v;

    if (!(fabs(f) < 9.2e18)) {
        tr_jinja_fail(&r->arena, "a number is too large");
    }
    v = of_int((int64_t) f);
    v.tag = tag;
    return v;
}

static value_t
filter_int(render_t *r, value_t v, const value_t *args)
{
    value_t otherwise = args[0].kind == K_MISSING ? of_int(0) : args[0], out;
    int64_t base = args[1].kind == K_INT ? args[1].i : 10;
    double f;

    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    switch (v.kind) {
    case K_INT:
        return v;
    case K_BOOL:
        return of_int(v.b);
    case K_FLOAT:
        return isfinite(v.f) ? truncated(r, v.f, v.tag) : otherwise;
    case K_STRING:
        out = of_int(0);
        out.tag = v.s->len ? tag_at(v.s, 0) : TR_JINJA_T;
        if (parse_int(r, v.s, base, &out.i)) {
            return out;
        }
        return parse_float(r, v.s, &f) && isfinite(f) ? truncated(r, f, out.tag)
                                                      : otherwise;
    default:
        return otherwise;
    }
}

static value_t
filter_float(render_t *r, value_t v, const value_t *args)
{
    value_t out = of_float(0);

    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (is_number(v)) {
        out = of_float(v.kind == K_FLOAT  ? v.f
                       : v.kind == K_BOOL ? (double) v.b
                                          : (double) v.i);
        out.tag = v.tag;
        return out;
    }
    if (v.kind == K_STRING && parse_float(r, v.s, &out.f)) {
        out.tag = tag_at(v.s, 0);
        return out;
    }
    return args[0].kind == K_MISSING ? of_float(0) : args[0];
}

static double
number(render_t *r, const char *what, value_t v)
{
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    if (!is_number(v)) {
        tr_jinja_fail(&r->arena, "%s needs a number, not %s", what,
                      tr_jinja_type(v));
    }
    return v.kind == K_FLOAT  ? v.f
           : v.kind == K_BOOL ? (double) v.b
                              : (double) v.i;
}

static value_t
filter_round(render_t *r, value_t v, const value_t *args)
{
    double f = number(r, "round", v), scale;
    int64_t digits = args[0].kind == K_INT ? args[0].i : 0;
    char text[400];
    value_t out;

    if (digits < -300 || digits > 300) {
        tr_jinja_fail(&r->arena, "round's precision is out of range");
    }
    if (args[1].kind == K_MISSING
        || (args[1].kind == K_STRING && tr_jinja_is(args[1].s, "common"))) {
        if (v.kind != K_FLOAT && digits >= 0) {
            return of_int(v.kind == K_BOOL ? v.b : v.i);
        }
        if (digits >= 0) { /* correctly rounded, as Python does it */
            snprintf(text, sizeof(text), "%.*f", (int) digits, f);
            f = strtod(text, NULL);
        } else {
            scale = pow(10, (double) -digits);
            f = nearbyint(f / scale) * scale;
        }
        out = v.kind == K_FLOAT ? of_float(f) : of_int((int64_t) f);
    } else if (args[1].kind == K_STRING
               && (tr_jinja_is(args[1].s, "ceil")
                   || tr_jinja_is(args[1].s, "floor"))) {
        scale = pow(10, (double) digits);
        f = args[1].s->len == 4 ? ceil(f * scale) : floor(f * scale);
        out = of_float(f / scale);
    } else {
        tr_jinja_fail(&r->arena, "round's method is common, ceil or floor");
    }
    out.tag = v.tag;
    return out;
}

static value_t
filter_abs(render_t *r, value_t v, const value_t *args)
{
    double f = number(r, "abs", v);

    (void) args;
    if (v.kind == K_FLOAT) {
        v.f = fabs(f);
        return v;
    }
    v.i = v.kind == K_BOOL ? v.b : v.i;
    v.kind = K_INT;
    if (v.i == INT64_MIN) {
        tr_jinja_fail(&r->arena, "a number is too large");
    }
    v.i = v.i < 0 ? -v.i : v.i;
    return v;
}

static value_t
filter_format(render_t *r, value_t v, const arguments_t *args)
{
    list_t *l;
    dict_t *d;

    if (args->n > 0 && args->n_names > 0) {
        tr_jinja_fail(&r->arena, "format takes values or keywords, not both");
    }
    if (args->n_names > 0) {
        d = tr_jinja_dict(&r->arena, args->n_names);
        for (uint32_t i = 0; i < args->n_names; i++) {
            tr_jinja_dict_set(&r->arena, d, of_string(args->names[i]),
                              args->values[i]);
        }
        return tr_jinja_percent(r, text_of(r, v), of_dict(d));
    }
    l = tr_jinja_list(&r->arena, args->n);
    for (uint32_t i = 0; i < args->n; i++) {
        l->items[i] = args->items[i];
    }
    return tr_jinja_percent(r, text_of(r, v),
                            (value_t){ .kind = K_TUPLE, .list = l });
}

/* ---- the table ---------------------------------------------------------- */

static const struct {
    const char *name;
    filter_pt run;
    const char *parameters; /* NULL: `call` takes them as they come */
    uint32_t needed;
    filter_call_pt call;
} table[] = {
    { "abs", filter_abs, "", 0, NULL },
    { "capitalize", filter_capitalize, "", 0, NULL },
    { "count", filter_length, "", 0, NULL },
    { "d", filter_default, "default_value,boolean", 0, NULL },
    { "default", filter_default, "default_value,boolean", 0, NULL },
    { "dictsort", tr_jinja_filter_dictsort, "case_sensitive,by,reverse", 0,
      NULL },
    { "e", filter_escape, "", 0, NULL },
    { "escape", filter_escape, "", 0, NULL },
    { "first", tr_jinja_filter_first, "", 0, NULL },
    { "float", filter_float, "default", 0, NULL },
    { "format", NULL, NULL, 0, filter_format },
    { "from_json", tr_jinja_filter_from_json, "", 0, NULL },
    { "indent", filter_indent, "width,first,blank", 0, NULL },
    { "int", filter_int, "default,base", 0, NULL },
    { "items", tr_jinja_filter_items, "", 0, NULL },
    { "join", tr_jinja_filter_join, "d,attribute", 0, NULL },
    { "last", tr_jinja_filter_last, "", 0, NULL },
    { "length", filter_length, "", 0, NULL },
    { "list", tr_jinja_filter_list, "", 0, NULL },
    { "lower", filter_lower, "", 0, NULL },
    { "map", NULL, NULL, 0, tr_jinja_filter_map },
    { "max", tr_jinja_filter_max, "case_sensitive,attribute", 0, NULL },
    { "min", tr_jinja_filter_min, "case_sensitive,attribute", 0, NULL },
    { "reject", NULL, NULL, 0, tr_jinja_filter_reject },
    { "rejectattr", NULL, NULL, 0, tr_jinja_filter_rejectattr },
    { "replace", filter_replace, "old,new,count", 2, NULL },
    { "reverse", tr_jinja_filter_reverse, "", 0, NULL },
    { "round", filter_round, "precision,method", 0, NULL },
    { "safe", filter_safe, "", 0, NULL },
    { "select", NULL, NULL, 0, tr_jinja_filter_select },
    { "selectattr", NULL, NULL, 0, tr_jinja_filter_selectattr },
    { "sort", tr_jinja_filter_sort, "reverse,case_sensitive,attribute", 0,
      NULL },
    { "string", filter_string, "", 0, NULL },
    { "sum", tr_jinja_filter_sum, "attribute,start", 0, NULL },
    { "title", filter_title, "", 0, NULL },
    { "tojson", tr_jinja_filter_tojson,
      "ensure_ascii,indent,separators,sort_keys", 0, NULL },
    { "trim", filter_trim, "chars", 0, NULL },
    { "unique", tr_jinja_filter_unique, "case_sensitive,attribute", 0, NULL },
    { "upper", filter_upper, "", 0, NULL },
};

uint16_t
tr_jinja_filter_row(const string_t *name)
{
    for (uint16_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (tr_jinja_is(name, table[i].name)) {
            return (uint16_t) (i + 1);
        }
    }
    return 0;
}

value_t
tr_jinja_filter(render_t *r, uint16_t row, const string_t *name, value_t v,
                const arguments_t *args)
{
    value_t out[TR_JINJA_PARAMETERS];

    (void) name;
    row--;
    if (table[row].call != NULL) {
        return table[row].call(r, v, args);
    }
    tr_jinja_bind(r, table[row].name, args, table[row].parameters,
                  table[row].needed, out);
    return table[row].run(r, v, out);
}
