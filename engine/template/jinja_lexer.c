/*
 * A template's text to tokens, by the rules of jinja2's lexer with trim_blocks
 * and lstrip_blocks: a line end behind a block's tag goes, and so does white
 * space between the beginning of a line and a block's tag; "-" takes all white
 * space on its side, "+" keeps it.
 */
#include "jinja_ast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja_text.h"

typedef struct {
    tr_jinja_arena_t *a;
    tokens_t *out;
    const char *text;
    size_t len;
    size_t at;
    bool line_starting;
    char open[TR_JINJA_NESTING]; /* brackets */
    uint32_t depth;
} lexer_t;

static token_t *
add(lexer_t *l, token_kind_t kind, size_t place)
{
    tokens_t *t = l->out;

    if (t->n == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 256;

        t->items = tr_jinja_grow(l->a, t->items, t->n * sizeof(*t->items),
                                 cap * sizeof(*t->items));
        t->cap = cap;
    }
    t->items[t->n] = (token_t){ .kind = kind, .place = (uint32_t) place };
    return &t->items[t->n++];
}

static bool
looking_at(const lexer_t *l, size_t at, const char *text)
{
    size_t n = strlen(text);

    return l->len - at >= n && memcmp(l->text + at, text, n) == 0;
}

static size_t
skip_space(const lexer_t *l, size_t at)
{
    uint32_t n;

    while (at < l->len && tr_jinja_space(l->text + at, &n)) {
        at += n;
    }
    return at;
}

static size_t
back_over_space(const lexer_t *l, size_t from, size_t to)
{
    while (to > from) {
        size_t at = to - 1;
        uint32_t n;

        while (at > from && (l->text[at] & 0xc0) == 0x80) {
            at--;
        }
        if (!tr_jinja_space(l->text + at, &n)) {
            break;
        }
        to = at;
    }
    return to;
}

/* Behind the end tag at `at`, whose first bytes are there ("%}", "#}"). */
static size_t
past_end(lexer_t *l, size_t at, const char *tag, bool trims)
{
    bool minus = l->text[at] == '-';

    at += (l->text[at] == '-' || l->text[at] == '+' ? 1 : 0) + strlen(tag);
    if (minus) {
        at = skip_space(l, at);
    } else if (trims && l->text[at - strlen(tag) - 1] != '+' && at < l->len
               && l->text[at] == '\n') {
        at++;
    }
    l->line_starting = l->text[at - 1] == '\n';
    return at;
}

/* Length of an end tag with its sign at `at`, 0 if there is none. */
static bool
at_end(const lexer_t *l, size_t at, const char *tag, bool plus)
{
    return looking_at(l, at, tag)
           || (at < l->len
               && (l->text[at] == '-' || (plus && l->text[at] == '+'))
               && looking_at(l, at + 1, tag));
}

static void
add_data(lexer_t *l, size_t from, size_t to, char sign, bool variable)
{
    if (sign == '-') {
        to = back_over_space(l, from, to);
    } else if (sign != '+' && !variable) {
        size_t line = to;

        while (line > from && l->text[line - 1] != '\n') {
            line--;
        }
        if ((line > from || l->line_starting)
            && back_over_space(l, line, to) == line) {
            to = line;
        }
    }
    if (to > from) {
        add(l, T_DATA, from)->value = of_string(
            tr_jinja_string(l->a, l->text + from, to - from, TR_JINJA_T));
    }
}

/* `{% raw %}` at `at`: where its text begins, 0 if it is none. */
static size_t
raw_begin(lexer_t *l, size_t at)
{
    at += 2 + (l->text[at + 2] == '-' || l->text[at + 2] == '+');
    at = skip_space(l, at);
    if (!looking_at(l, at, "raw")) {
        return 0;
    }
    at = skip_space(l, at + 3);
    if (looking_at(l, at, "-%}")) {
        return skip_space(l, at + 3);
    }
    return looking_at(l, at, "%}") ? at + 2 : 0;
}

static size_t
raw(lexer_t *l, size_t begin, size_t from)
{
    l->line_starting = l->text[from - 1] == '\n';
    for (size_t at = from; at < l->len; at++) {
        size_t end;
        char sign;

        if (!looking_at(l, at, "{%") || at + 2 == l->len) {
            continue;
        }
        sign = l->text[at + 2];
        end = skip_space(l, at + 2 + (sign == '-' || sign == '+'));
        if (!looking_at(l, end, "endraw")) {
            continue;
        }
        end = skip_space(l, end + 6);
        if (at_end(l, end, "%}", true)) {
            add_data(l, from, at, sign, false);
            return past_end(l, end, "%}", true);
        }
    }
    if (from == l->len) { /* jinja2 lets this pass */
        return from;
    }
    l->a->place = (uint32_t) begin;
    tr_jinja_fail(l->a, "the raw block does not end");
}

static size_t
comment(lexer_t *l, size_t begin, size_t body)
{
    for (size_t at = body; at < l->len; at++) {
        if (at_end(l, at, "#}", true)) {
            return past_end(l, at, "#}", true);
        }
    }
    if (body >= l->len) {
        return l->len;
    }
    l->a->place = (uint32_t) begin;
    tr_jinja_fail(l->a, "the comment does not end");
}

/* ---- inside of tags ----------------------------------------------------- */

static bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them: behind them. */
static size_t
digits(const lexer_t *l, size_t at)
{
    while (at < l->len
           && (is_digit(l->text[at])
               || (l->text[at] == '_' && at + 1 < l->len
                   && is_digit(l->text[at + 1])))) {
        at++;
    }
    return at;
}

static size_t
float_end(const lexer_t *l, size_t from)
{
    size_t at = digits(l, from), end = 0;

    if (at == from || (from > 0 && l->text[from - 1] == '.')) {
        return 0;
    }
    if (at + 1 < l->len && l->text[at] == '.' && is_digit(l->text[at + 1])) {
        end = at = digits(l, at + 1);
    }
    if (at < l->len && (l->text[at] == 'e' || l->text[at] == 'E')) {
        at += 1
              + (at + 1 < l->len
                 && (l->text[at + 1] == '+' || l->text[at + 1] == '-'));
        if (at < l->len && is_digit(l->text[at])) {
            end = digits(l, at);
        }
    }
    return end;
}

static size_t
number(lexer_t *l, size_t from)
{
    size_t end = float_end(l, from), to = end;
    bool real = end != 0;
    char plain[400], *stop;
    size_t n = 0;
    token_t *t;
    int base = 10;

    if (!real) {
        to = digits(l, from);
        if (l->text[from] == '0' && from + 2 < l->len) {
            char c = (char) (l->text[from + 1] | 0x20);

            base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
            while (base != 10 && to < l->len
                   && (to == from + 1
                       || strchr("0123456789abcdefABCDEF_", l->text[to]))) {
                to++;
            }
        }
    }
    for (size_t i = from + (base == 10 ? 0 : 2); i < to; i++) {
        if (l->text[i] != '_' && n + 1 < sizeof(plain)) {
            plain[n++] = l->text[i];
        }
    }
    plain[n] = '\0';
    l->a->place = (uint32_t) from;
    t = add(l, real ? T_FLOAT : T_INTEGER, from);
    errno = 0;
    t->value = real ? of_float(strtod(plain, &stop))
                    : of_int(strtoll(plain, &stop, base));
    if (*stop != '\0' || (errno != 0 && !real)
        || (!real && base == 10 && n > 1 && plain[0] == '0'
            && strspn(plain, "0") != n)) {
        tr_jinja_fail(l->a, "\"%s\" is no number that fits", plain);
    }
    return to;
}

static size_t
name(lexer_t *l, size_t from)
{
    size_t at = from;
    uint32_t n;

    while (at < l->len && tr_jinja_word(l->text + at, &n)) {
        at += n;
    }
    add(l, T_NAME, from)->value = of_string(
        tr_jinja_string(l->a, l->text + from, at - from, TR_JINJA_T));
    return at;
}

/* Up to n hexadecimal (or octal) digits. */
static uint32_t
code(const lexer_t *l, size_t *at, uint32_t n, uint32_t base)
{
    uint32_t c = 0;

    while (n > 0 && *at < l->len) {
        char d = l->text[*at];
        uint32_t v = is_digit(d)            ? (uint32_t) (d - '0')
                     : d >= 'a' && d <= 'f' ? (uint32_t) (d - 'a' + 10)
                     : d >= 'A' && d <= 'F' ? (uint32_t) (d - 'A' + 10)
                                            : 99;

        if (v >= base) {
            break;
        }
        c = c * base + v;
        (*at)++;
        n--;
    }
    if (n > 0 && base == 16) {
        tr_jinja_fail(l->a, "a \\x or \\u in a string needs all its digits");
    }
    return c;
}

/* One escape, `at` behind its backslash; returns what follows it. */
static size_t
escape(lexer_t *l, size_t at, builder_t *b)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->text[at];
    const char *known = c ? strchr(from, c) : NULL;
    uint32_t u;

    if (c == '\n') {
        return at + 1;
    }
    if (known != NULL) {
        tr_jinja_put(l->a, b, &to[known - from], 1, TR_JINJA_T);
        return at + 1;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        at++;
        u = code(l, &at, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
        if (u >= 0xd800 && u < 0xdc00 && looking_at(l, at, "\\u")) {
            size_t second = at + 2;
            uint32_t low = code(l, &second, 4, 16);

            if (low >= 0xdc00 && low < 0xe000) {
                u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
                at = second;
            }
        }
        if ((u >= 0xd800 && u < 0xe000) || u > 0x10ffff) {
            tr_jinja_fail(l->a, "U+%04X in a string is not a character", u);
        }
    } else if (c >= '0' && c <= '7') {
        u = code(l, &at, 3, 8);
    } else if (c == 'N') {
        tr_jinja_fail(l->a, "\\N{...} in a string is not supported");
    } else {
        tr_jinja_put(l->a, b, "\\", 1, TR_JINJA_T);
        return at;
    }
    tr_jinja_put_char(l->a, b, u, TR_JINJA_T);
    return at;
}

static size_t
literal(lexer_t *l, size_t from)
{
    char quote = l->text[from];
    size_t at = from + 1, part = at;
    builder_t b = { 0 };
    string_t *s;

    l->a->place = (uint32_t) from;
    while (at < l->len && l->text[at] != quote) {
        if (l->text[at] != '\\' || at + 1 == l->len) {
            at++;
            continue;
        }
        tr_jinja_put(l->a, &b, l->text + part, at - part, TR_JINJA_T);
        part = at = escape(l, at + 1, &b);
    }
    if (at >= l->len) {
        tr_jinja_fail(l->a, "the string does not end");
    }
    if (b.len == 0) {
        s = tr_jinja_string(l->a, l->text + part, at - part, TR_JINJA_T);
    } else {
        tr_jinja_put(l->a, &b, l->text + part, at - part, TR_JINJA_T);
        s = tr_jinja_string(l->a, b.data, b.len, TR_JINJA_T);
    }
    tr_jinja_chars(s); /* now: nobody may write into the tree later */
    add(l, T_STRING, from)->value = of_string(s);
    return at + 1;
}

static size_t
operator(lexer_t *l, size_t at)
{
    static const char pairs[] = "// ** == != >= <= ";
    static const char singles[] = "+-*/%~[](){}><=.:|,;";
    char c = l->text[at], closes;
    char two[4] = { c, at + 1 < l->len ? l->text[at + 1] : '\0', ' ', '\0' };

    l->a->place = (uint32_t) at;
    if (two[1] != '\0' && strstr(pairs, two) != NULL) {
        add(l, T_OPERATOR, at)->op = OP2((uint32_t) c, (uint32_t) two[1]);
        return at + 2;
    }
    if (c == '\0' || strchr(singles, c) == NULL) {
        tr_jinja_fail(l->a, "unexpected character '%.*s'",
                      (int) tr_jinja_char_bytes(l->text + at), l->text + at);
    }
    closes = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : '\0';
    if (closes != '\0') {
        if (l->depth == TR_JINJA_NESTING) {
            tr_jinja_fail(l->a, "brackets nest deeper than %u",
                          TR_JINJA_NESTING);
        }
        l->open[l->depth++] = closes;
    } else if (c == ')' || c == ']' || c == '}') {
        if (l->depth == 0 || l->open[--l->depth] != c) {
            tr_jinja_fail(l->a, "unexpected '%c'", c);
        }
    }
    add(l, T_OPERATOR, at)->op = (uint32_t) c;
    return at + 1;
}

/* From behind "{%" or "{{" to behind its end. */
static size_t
inside(lexer_t *l, size_t at, bool variable)
{
    const char *tag = variable ? "}}" : "%}";
    uint32_t n;

    l->depth = 0;
    while (at < l->len) {
        char c = l->text[at];

        if (l->depth == 0 && at_end(l, at, tag, !variable)) {
            add(l, variable ? T_VARIABLE_END : T_BLOCK_END, at);
            return past_end(l, at, tag, !variable);
        }
        if (tr_jinja_space(l->text + at, &n)) {
            at += n;
        } else if (is_digit(c)) {
            at = number(l, at);
        } else if (tr_jinja_word(l->text + at, &n)) {
            at = name(l, at);
        } else if (c == '\'' || c == '"') {
            at = literal(l, at);
        } else {
            at = operator(l, at);
        }
    }
    return at;
}

void
tr_jinja_tokens(tr_jinja_arena_t *a, tokens_t *out)
{
    lexer_t l = { .a = a,
                  .out = out,
                  .text = a->source,
                  .len = a->source_len,
                  .line_starting = true };
    size_t from = 0, at = 0;

    while (at + 1 < l.len) {
        char kind = l.text[at + 1], sign;
        size_t body;

        if (l.text[at] != '{' || (kind != '%' && kind != '{' && kind != '#')) {
            at++;
            continue;
        }
        sign = at + 2 < l.len ? l.text[at + 2] : '\0';
        add_data(&l, from, at, sign, kind == '{');
        body = kind == '%' && at + 2 < l.len ? raw_begin(&l, at) : 0;
        if (body != 0) {
            from = raw(&l, at, body);
        } else if (kind == '#') {
            from = comment(&l, at, at + 2 + (sign == '-' || sign == '+'));
        } else {
            add(&l, kind == '{' ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN, at);
            from = inside(&l, at + 2 + (sign == '-' || sign == '+'),
                          kind == '{');
        }
        at = from;
    }
    if (from < l.len) {
        add(&l, T_DATA, from)->value = of_string(
            tr_jinja_string(a, l.text + from, l.len - from, TR_JINJA_T));
    }
    add(&l, T_EOF, l.len);
}
