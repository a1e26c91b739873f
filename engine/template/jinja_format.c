/*
 * Values as text: str() and repr(), and the two ways of formatting, "%s" % v and
 * "{}".format(v).  What a format's own bytes are tagged with stays; what is put
 * in keeps its tags.
 */
#include "jinja_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest decimal that reads back as f, laid out as repr() does. */
uint32_t
tr_jinja_float_text(double f, char out[40])
{
    char digits[32], *e;
    int precision, exponent, n;

    if (isnan(f) || isinf(f)) {
        return (uint32_t) snprintf(out, 40, "%s",
                                   isnan(f) ? "nan"
                                   : f > 0  ? "inf"
                                            : "-inf");
    }
    for (precision = 0; precision < 17; precision++) {
        snprintf(digits, sizeof(digits), "%.*e", precision, f);
        if (strtod(digits, NULL) == f) {
            break;
        }
    }
    e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        *e = '\0';
        return (uint32_t) snprintf(out, 40, "%se%c%02d", digits,
                                   exponent < 0 ? '-' : '+', abs(exponent));
    }
    n = precision - exponent;
    return (uint32_t) snprintf(out, 40, "%.*f", n > 0 ? n : 1, f);
}

/* ---- str and repr ------------------------------------------------------- */

static void
put(render_t *r, builder_t *b, const char *text)
{
    tr_jinja_put_text(&r->arena, b, text, TR_JINJA_T);
}

static void
repr_string(render_t *r, builder_t *b, string_t *s)
{
    bool has_single = memchr(s->data, '\'', s->len) != NULL;
    char quote = has_single && !memchr(s->data, '"', s->len) ? '"' : '\'';
    char text[16];
    uint32_t n;

    tr_jinja_put(&r->arena, b, &quote, 1, TR_JINJA_T);
    for (uint32_t i = 0; i < s->len; i += n) {
        uint8_t c = (uint8_t) s->data[i], tag = tag_at(s, i);

        n = tr_jinja_char_bytes(s->data + i);
        if (c == (uint8_t) quote || c == '\\') {
            snprintf(text, sizeof(text), "\\%c", c);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            snprintf(text, sizeof(text), "\\%c",
                     c == '\n'   ? 'n'
                     : c == '\r' ? 'r'
                                 : 't');
        } else if (c < 0x20 || c == 0x7f) {
            snprintf(text, sizeof(text), "\\x%02x", c);
        } else if (!tr_jinja_printable(s->data + i, text)) {
            /* text has its escape */
        } else {
            tr_jinja_put_slice(&r->arena, b, s, i, i + n);
            continue;
        }
        tr_jinja_put_text(&r->arena, b, text, tag);
    }
    tr_jinja_put(&r->arena, b, &quote, 1, TR_JINJA_T);
}

static void
repr_items(render_t *r, builder_t *b, const list_t *l, bool tuple)
{
    put(r, b, tuple ? "(" : "[");
    for (uint32_t i = 0; i < l->n; i++) {
        put(r, b, i > 0 ? ", " : "");
        tr_jinja_repr(r, b, l->items[i]);
    }
    put(r, b, tuple && l->n == 1 ? ",)" : tuple ? ")" : "]");
}

static void
repr_dict(render_t *r, builder_t *b, const dict_t *d)
{
    put(r, b, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        put(r, b, i > 0 ? ", " : "");
        tr_jinja_repr(r, b, d->keys[i]);
        put(r, b, ": ");
        tr_jinja_repr(r, b, d->values[i]);
    }
    put(r, b, "}");
}

static void
repr_other(render_t *r, builder_t *b, value_t v)
{
    static const char *const views[] = { [VIEW_ITEMS] = "dict_items(",
                                         [VIEW_KEYS] = "dict_keys(",
                                         [VIEW_VALUES] = "dict_values(" };
    char text[96];
    list_t l;

    switch (v.kind) {
    case K_RANGE:
        snprintf(text, sizeof(text),
                 v.range->step == 1 ? "range(%lld, %lld)"
                                    : "range(%lld, %lld, %lld)",
                 (long long) v.range->start,
                 (long long) (v.range->start + v.range->n * v.range->step),
                 (long long) v.range->step);
        put(r, b, text);
        break;
    case K_NAMESPACE:
        put(r, b, "<Namespace ");
        repr_dict(r, b, v.dict);
        put(r, b, ">");
        break;
    case K_VIEW:
        put(r, b, views[v.view->what]);
        l = tr_jinja_items(r, v);
        repr_items(r, b, &l, false);
        put(r, b, ")");
        break;
    default:
        /* Python would print an address here */
        tr_jinja_fail(&r->arena, "%s cannot be printed", tr_jinja_type(v));
    }
}

void
tr_jinja_repr(render_t *r, builder_t *b, value_t v)
{
    if (++r->levels > TR_JINJA_LEVELS) {
        tr_jinja_fail(&r->arena, "a value is nested deeper than %u",
                      TR_JINJA_LEVELS);
    }
    r->steps++;
    switch (v.kind) {
    case K_STRING:
        if (v.s->markup) {
            put(r, b, "Markup(");
        }
        repr_string(r, b, v.s);
        put(r, b, v.s->markup ? ")" : "");
        break;
    case K_LIST:
    case K_TUPLE:
        repr_items(r, b, v.list, v.kind == K_TUPLE);
        break;
    case K_DICT:
        repr_dict(r, b, v.dict);
        break;
    case K_UNDEFINED:
        put(r, b, "Undefined");
        break;
    default:
        tr_jinja_print(r, b, v);
        break;
    }
    r->levels--;
}

void
tr_jinja_print(render_t *r, builder_t *b, value_t v)
{
    char text[40];

    switch (v.kind) {
    case K_MISSING:
    case K_UNDEFINED:
        break;
    case K_NONE:
        put(r, b, "None");
        break;
    case K_BOOL:
        put(r, b, v.b ? "True" : "False");
        break;
    case K_INT:
        snprintf(text, sizeof(text), "%lld", (long long) v.i);
        tr_jinja_put_text(&r->arena, b, text, v.tag);
        break;
    case K_FLOAT:
        tr_jinja_float_text(v.f, text);
        tr_jinja_put_text(&r->arena, b, text, v.tag);
        break;
    case K_STRING:
        tr_jinja_put_string(&r->arena, b, v.s);
        break;
    case K_LIST:
    case K_TUPLE:
    case K_DICT:
        tr_jinja_repr(r, b, v);
        break;
    default:
        repr_other(r, b, v);
        break;
    }
}

string_t *
tr_jinja_str(render_t *r, value_t v)
{
    builder_t b = { 0 };

    if (v.kind == K_STRING) {
        return v.s;
    }
    tr_jinja_print(r, &b, v);
    return tr_jinja_built(&r->arena, &b);
}

/* ---- a field ------------------------------------------------------------ */

typedef struct {
    char fill[5];
    char align; /* < > ^ = or '\0' */
    char sign;  /* + - space or '\0' */
    bool alternate, comma;
    int64_t width, precision; /* -1: none */
    char type;                /* '\0': none */
} field_t;

static void
put_padded(render_t *r, builder_t *b, string_t *s, const field_t *f,
           char otherwise)
{
    int64_t n = tr_jinja_chars(s), pad = f->width > n ? f->width - n : 0;
    char align = f->align ? f->align : otherwise;
    int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;

    if (pad > (int64_t) r->arena.limit) {
        tr_jinja_fail(&r->arena, "a width is too large");
    }
    for (int64_t i = 0; i < left; i++) {
        put(r, b, f->fill);
    }
    tr_jinja_put_string(&r->arena, b, s);
    for (int64_t i = left; i < pad; i++) {
        put(r, b, f->fill);
    }
}

static _Noreturn void
bad_type(render_t *r, const field_t *f, value_t v)
{
    if (v.kind == K_UNDEFINED) {
        tr_jinja_undefined(r, v);
    }
    tr_jinja_fail(&r->arena, "the format '%c' does not fit %s",
                  f->type ? f->type : 's', tr_jinja_type(v));
}

/* An integer in base 10, 8, 16 or 2, without a sign. */
static void
digits_of(char *out, uint64_t u, char type)
{
    char text[80];
    uint32_t base = type == 'b'                  ? 2
                    : type == 'o'                ? 8
                    : type == 'x' || type == 'X' ? 16
                                                 : 10;
    int n = sizeof(text);

    text[--n] = '\0';
    do {
        text[--n] = (type == 'X' ? "0123456789ABCDEF"
                                 : "0123456789abcdef")[u % base];
        u /= base;
    } while (u > 0);
    strcpy(out, text + n);
}

/* Commas between thousands, in place. */
static void
group(char *digits, size_t cap)
{
    char text[400];
    size_t whole = strspn(digits, "0123456789"), n = 0;

    for (size_t i = 0; i < whole && n + 2 < sizeof(text); i++) {
        if (i > 0 && (whole - i) % 3 == 0) {
            text[n++] = ',';
        }
        text[n++] = digits[i];
    }
    snprintf(text + n, sizeof(text) - n, "%s", digits + whole);
    snprintf(digits, cap, "%s", text);
}

static void
float_digits(render_t *r, char *out, size_t cap, double f, const field_t *spec)
{
    char format[16], type = spec->type;
    int precision = spec->precision < 0 ? 6 : (int) spec->precision;

    if (spec->precision > 300) {
        tr_jinja_fail(&r->arena, "a precision is too large");
    }
    if (type == '\0' && spec->precision < 0) {
        char text[40];

        tr_jinja_float_text(f, text);
        snprintf(out, cap, "%s", text);
        return;
    }
    if (type == '%') {
        snprintf(out, cap, "%.*f%%", precision, f * 100);
        return;
    }
    snprintf(format, sizeof(format), "%%%s.*%c", spec->alternate ? "#" : "",
             type ? type : 'g');
    snprintf(out, cap, format, precision, f);
}

static void
put_number(render_t *r, builder_t *b, value_t v, const field_t *f, bool real)
{
    double d = v.kind == K_FLOAT  ? v.f
               : v.kind == K_BOOL ? (double) v.b
                                  : (double) v.i;
    int64_t i = v.kind == K_INT ? v.i : v.kind == K_BOOL ? v.b : 0;
    bool negative = real ? signbit(d) && !isnan(d) : i < 0;
    const char *sign = negative         ? "-"
                       : f->sign == '+' ? "+"
                       : f->sign == ' ' ? " "
                                        : "";
    const char *prefix = real || !f->alternate ? ""
                         : f->type == 'x'      ? "0x"
                         : f->type == 'X'      ? "0X"
                         : f->type == 'o'      ? "0o"
                         : f->type == 'b'      ? "0b"
                                               : "";
    char digits[700], text[720];
    builder_t t = { 0 };
    field_t inner = *f;

    if (real) {
        float_digits(r, digits, sizeof(digits), fabs(d), f);
    } else {
        digits_of(digits, i < 0 ? -(uint64_t) i : (uint64_t) i, f->type);
    }
    if (f->comma) {
        group(digits, sizeof(digits));
    }
    if (f->align == '=') { /* the fill stands between sign and digits */
        inner.width -= (int64_t) (strlen(sign) + strlen(prefix));
        tr_jinja_put_text(&r->arena, &t, sign, v.tag);
        tr_jinja_put_text(&r->arena, &t, prefix, v.tag);
        put_padded(r, &t,
                   tr_jinja_copy(&r->arena, digits, strlen(digits), v.tag),
                   &inner, '>');
        tr_jinja_put_string(&r->arena, b, tr_jinja_built(&r->arena, &t));
        return;
    }
    snprintf(text, sizeof(text), "%s%s%s", sign, prefix, digits);
    put_padded(r, b, tr_jinja_copy(&r->arena, text, strlen(text), v.tag), f,
               '>');
}

static void
put_cut(render_t *r, builder_t *b, string_t *s, const field_t *f, char align)
{
    if (f->precision >= 0 && f->precision < (int64_t) tr_jinja_chars(s)) {
        s = tr_jinja_slice(&r->arena, s, 0,
                           tr_jinja_offset(s, (uint32_t) f->precision));
    }
    put_padded(r, b, s, f, align);
}

/* ---- "%s" % v ----------------------------------------------------------- */

typedef struct {
    render_t *r;
    string_t *format;
    uint32_t at;
    value_t args;
    uint32_t next; /* of a tuple */
    bool used;     /* an argument that is no tuple */
} percent_t;

static value_t
next_argument(percent_t *p)
{
    if (p->args.kind == K_TUPLE) {
        if (p->next >= p->args.list->n) {
            tr_jinja_fail(&p->r->arena, "too few values for a format");
        }
        return p->args.list->items[p->next++];
    }
    if (p->used) {
        tr_jinja_fail(&p->r->arena, "too few values for a format");
    }
    p->used = true;
    return p->args;
}

static char
peek(const percent_t *p)
{
    return p->at < p->format->len ? p->format->data[p->at] : '\0';
}

static int64_t
percent_number(percent_t *p)
{
    int64_t n = 0;

    if (peek(p) == '*') {
        value_t v = next_argument(p);

        p->at++;
        if (v.kind != K_INT) {
            tr_jinja_fail(&p->r->arena, "a width is an integer");
        }
        return v.i;
    }
    while (peek(p) >= '0' && peek(p) <= '9' && n < 100000000) {
        n = n * 10 + (p->format->data[p->at++] - '0');
    }
    return n;
}

static value_t
percent_key(percent_t *p)
{
    uint32_t from = ++p->at;
    value_t *there = NULL;

    while (peek(p) != ')' && p->at < p->format->len) {
        p->at++;
    }
    if (p->args.kind == K_DICT) {
        string_t *key = tr_jinja_slice(&p->r->arena, p->format, from, p->at);

        there = tr_jinja_dict_find(&p->r->arena, p->args.dict, key);
    }
    p->at++;
    p->used = true;
    if (there != NULL) {
        return *there;
    }
    tr_jinja_fail(&p->r->arena, "a format asks for a key that is absent");
}

static void
percent_value(percent_t *p, builder_t *b, value_t v, field_t *f)
{
    render_t *r = p->r;
    builder_t t = { 0 };
    string_t *s;

    switch (f->type) {
    case 's':
        s = tr_jinja_str(r, v);
        put_cut(r, b,
                p->format->markup ? tr_jinja_escape_html(&r->arena, s) : s, f,
                '>');
        return;
    case 'r':
    case 'a':
        tr_jinja_repr(r, &t, v);
        put_cut(r, b, tr_jinja_built(&r->arena, &t), f, '>');
        return;
    case 'd':
    case 'i':
    case 'u':
        if (v.kind == K_FLOAT && fabs(v.f) < 9.2e18) {
            v.i = (int64_t) v.f;
            v.kind = K_INT;
        }
        /* fall through */
    case 'x':
    case 'X':
    case 'o':
        if (v.kind != K_INT && v.kind != K_BOOL) {
            bad_type(r, f, v);
        }
        f->precision = -1;
        put_number(r, b, v, f, false);
        return;
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        if (!is_number(v)) {
            bad_type(r, f, v);
        }
        put_number(r, b, v, f, true);
        return;
    default:
        tr_jinja_fail(&r->arena, "'%%%c' is no format that is supported",
                      f->type ? f->type : ' ');
    }
}

static void
percent_field(percent_t *p, builder_t *b)
{
    field_t f = { .fill = " ", .width = -1, .precision = -1 };
    value_t v = MISSING;
    bool zero = false;

    if (peek(p) == '%') {
        tr_jinja_put_slice(&p->r->arena, b, p->format, p->at, p->at + 1);
        p->at++;
        return;
    }
    if (peek(p) == '(') {
        v = percent_key(p);
    }
    for (; peek(p) != '\0' && strchr("-+ #0", peek(p)) != NULL; p->at++) {
        char c = peek(p);

        f.align = c == '-' ? '<' : f.align;
        f.sign = c == '+' || (c == ' ' && f.sign != '+') ? c : f.sign;
        f.alternate |= c == '#';
        zero |= c == '0';
    }
    f.width = percent_number(p);
    if (peek(p) == '.') {
        p->at++;
        f.precision = percent_number(p);
    }
    while (peek(p) == 'l' || peek(p) == 'h' || peek(p) == 'L') {
        p->at++;
    }
    f.type = peek(p);
    p->at++;
    if (zero && f.align != '<' && f.type != 's' && f.type != 'r') {
        f.align = '=';
        strcpy(f.fill, "0");
    }
    percent_value(p, b, v.kind == K_MISSING ? next_argument(p) : v, &f);
}

value_t
tr_jinja_percent(render_t *r, string_t *format, value_t args)
{
    percent_t p = { .r = r, .format = format, .args = args };
    builder_t b = { 0 };
    string_t *out;

    while (p.at < format->len) {
        const char *from = format->data + p.at;
        const char *to = memchr(from, '%', format->len - p.at);
        uint32_t end = to ? (uint32_t) (to - format->data) : format->len;

        tr_jinja_put_slice(&r->arena, &b, format, p.at, end);
        p.at = end + 1;
        if (to != NULL) {
            if (p.at == format->len) {
                tr_jinja_fail(&r->arena, "a format ends within a field");
            }
            percent_field(&p, &b);
        }
    }
    if (args.kind == K_TUPLE
            ? p.next < args.list->n
            : !p.used && args.kind != K_DICT && args.kind != K_LIST) {
        tr_jinja_fail(&r->arena, "not all values of a format are used");
    }
    out = tr_jinja_built(&r->arena, &b);
    out->markup = format->markup;
    return of_string(out);
}

/* ---- "{}".format(v) ----------------------------------------------------- */

static bool
is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static field_t
read_spec(render_t *r, const char *p, const char *end)
{
    field_t f = { .fill = " ", .width = -1, .precision = -1 };
    uint32_t n = p < end ? tr_jinja_char_bytes(p) : 0;

    if (n > 0 && p + n < end && is_align(p[n])) {
        memcpy(f.fill, p, n);
        f.fill[n] = '\0';
        f.align = p[n];
        p += n + 1;
    } else if (n > 0 && is_align(*p)) {
        f.align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) {
        f.sign = *p++;
    }
    if (p < end && *p == '#') {
        f.alternate = true;
        p++;
    }
    if (p < end && *p == '0') {
        if (f.align == '\0') {
            f.align = '=';
            strcpy(f.fill, "0");
        }
        p++;
    }
    while (p < end && *p >= '0' && *p <= '9' && f.width < 100000000) {
        f.width = (f.width < 0 ? 0 : f.width) * 10 + (*p++ - '0');
    }
    if (p < end && *p == ',') {
        f.comma = true;
        p++;
    }
    if (p < end && *p == '.') {
        f.precision = 0;
        for (p++; p < end && *p >= '0' && *p <= '9' && f.precision < 1000000;
             p++) {
            f.precision = f.precision * 10 + (*p - '0');
        }
    }
    if (p < end) {
        f.type = *p++;
    }
    if (p != end || (f.type != '\0' && !strchr("sdxXobfFeEgGn%", f.type))) {
        tr_jinja_fail(&r->arena, "a format's specification is not supported");
    }
    return f;
}

static void
put_formatted(render_t *r, builder_t *b, value_t v, field_t f)
{
    bool real = f.type != '\0' && strchr("fFeEgG%", f.type) != NULL;

    if (v.kind == K_STRING && (f.type == '\0' || f.type == 's')
        && f.align != '=') {
        put_cut(r, b, v.s, &f, '<');
    } else if (is_number(v) && f.type != 's'
               && !(v.kind == K_BOOL && f.type == '\0')
               && !(v.kind == K_FLOAT && f.type != '\0' && !real)) {
        put_number(r, b, v, &f, real || v.kind == K_FLOAT);
    } else if (f.type == '\0' && f.width < 0 && f.precision < 0) {
        tr_jinja_print(r, b, v);
    } else {
        bad_type(r, &f, v);
    }
}

typedef struct {
    render_t *r;
    string_t *format;
    const arguments_t *args;
    uint32_t next; /* of the fields without a number */
} brace_t;

/* "0.name[key]" */
static value_t
field_value(brace_t *p, uint32_t from, uint32_t to)
{
    render_t *r = p->r;
    string_t *f = p->format, *name;
    uint32_t at = from;
    value_t v = MISSING;
    int64_t n;

    while (at < to && f->data[at] != '.' && f->data[at] != '[') {
        at++;
    }
    name = tr_jinja_slice(&r->arena, f, from, at);
    n = name->len == 0 ? p->next++ : INT64_MAX;
    if ((name->len == 0 || tr_jinja_digits(name, &n)) && n < p->args->n) {
        v = p->args->items[n];
    }
    for (uint32_t i = 0; i < p->args->n_names && v.kind == K_MISSING; i++) {
        if (tr_jinja_same(p->args->names[i], name)) {
            v = p->args->values[i];
        }
    }
    if (v.kind == K_MISSING) {
        tr_jinja_fail(&r->arena, "a format has no value for {%.*s}", name->len,
                      name->data);
    }
    while (at < to) {
        bool item = f->data[at] == '[';
        string_t *s;

        from = ++at;
        while (at < to
               && (item ? f->data[at] != ']'
                        : f->data[at] != '.' && f->data[at] != '[')) {
            at++;
        }
        s = tr_jinja_slice(&r->arena, f, from, at);
        at += item;
        if (!item) {
            v = tr_jinja_getattr(r, v, s);
        } else if (tr_jinja_digits(s, &n)) {
            v = tr_jinja_getitem(r, v, of_int(n));
        } else {
            v = tr_jinja_getitem(r, v, of_string(s));
        }
    }
    return v;
}

static void
brace_field(brace_t *p, builder_t *b, uint32_t from, uint32_t to)
{
    const char *d = p->format->data;
    uint32_t name = from, spec;
    builder_t t = { 0 };
    bool inside = false; /* of brackets */
    value_t v;

    for (; name < to && (inside || (d[name] != '!' && d[name] != ':'));
         name++) {
        inside = d[name] == '[' || (inside && d[name] != ']');
    }
    v = field_value(p, from, name);
    spec = name;
    if (spec < to && d[spec] == '!') {
        if (spec + 1 < to && d[spec + 1] == 'r') {
            tr_jinja_repr(p->r, &t, v);
        } else if (spec + 1 < to && d[spec + 1] == 's') {
            tr_jinja_print(p->r, &t, v);
        } else {
            tr_jinja_fail(&p->r->arena, "a conversion is !r or !s");
        }
        v = of_string(tr_jinja_built(&p->r->arena, &t));
        spec += 2;
    }
    spec += spec < to && d[spec] == ':';
    if (memchr(d + spec, '{', to - spec) != NULL) {
        tr_jinja_fail(&p->r->arena, "fields in a field are not supported");
    }
    if (p->format->markup && v.kind == K_STRING) {
        v = of_string(tr_jinja_escape_html(&p->r->arena, v.s));
    }
    put_formatted(p->r, b, v, read_spec(p->r, d + spec, d + to));
}

value_t
tr_jinja_format(render_t *r, string_t *format, const arguments_t *args)
{
    brace_t p = { .r = r, .format = format, .args = args };
    const char *d = format->data;
    builder_t b = { 0 };
    uint32_t at = 0;
    string_t *out;

    while (at < format->len) {
        uint32_t end = at + 1;

        if (d[at] != '{' && d[at] != '}') {
            tr_jinja_put_slice(&r->arena, &b, format, at, at + 1);
            at++;
            continue;
        }
        if (end < format->len && d[end] == d[at]) {
            tr_jinja_put_slice(&r->arena, &b, format, at, at + 1);
            at += 2;
            continue;
        }
        for (uint32_t depth = 1; d[at] == '{' && end < format->len; end++) {
            depth += d[end] == '{';
            depth -= d[end] == '}';
            if (depth == 0) {
                break;
            }
        }
        if (d[at] == '}' || end >= format->len) {
            tr_jinja_fail(&r->arena, "a format has a single '%c'", d[at]);
        }
        brace_field(&p, &b, at + 1, end);
        at = end + 1;
    }
    out = tr_jinja_built(&r->arena, &b);
    out->markup = format->markup;
    return of_string(out);
}
