/*
 * Characters and texts (jinja_text.h).
 */
#include "jinja_text.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/tokenizer/tokenizer_internal.h"

static bool
is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0
           || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028
           || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool
tr_jinja_space(const char *p, uint32_t *len)
{
    return is_space(tr_utf8_next(p, len));
}

bool
tr_jinja_word(const char *p, uint32_t *len)
{
    uint32_t c = tr_utf8_next(p, len);
    utf8proc_category_t k;

    if (c < 0x80) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')
               || (c >= 'A' && c <= 'Z') || c == '_';
    }
    k = utf8proc_category((utf8proc_int32_t) c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO)
           || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC
           || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL
           || k == UTF8PROC_CATEGORY_PC;
}

bool
tr_jinja_printable(const char *p, char out[16])
{
    uint32_t n, c = tr_utf8_next(p, &n);
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t) c);

    if (c < 0x7f || (k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS)) {
        return true;
    }
    snprintf(out, 16,
             c < 0x100     ? "\\x%02x"
             : c < 0x10000 ? "\\u%04x"
                           : "\\U%08x",
             c);
    return false;
}

uint32_t
tr_jinja_char_bytes(const char *p)
{
    uint32_t n;

    tr_utf8_next(p, &n);
    return n;
}

uint32_t
tr_jinja_valid(const char *p, size_t len)
{
    return tr_utf8_valid(p, len);
}

size_t
tr_jinja_offset(string_t *s, uint32_t i)
{
    size_t at = 0;

    if (tr_jinja_chars(s) == s->len) {
        return i;
    }
    while (i > 0 && at < s->len) {
        at += tr_jinja_char_bytes(s->data + at);
        i--;
    }
    return at;
}

uint32_t
tr_jinja_index(string_t *s, size_t at)
{
    uint32_t n = 0;

    if (tr_jinja_chars(s) == s->len) {
        return (uint32_t) at;
    }
    for (size_t i = 0; i < at; i++) {
        n += (s->data[i] & 0xc0) != 0x80;
    }
    return n;
}

bool
tr_jinja_digits(const string_t *s, int64_t *out)
{
    int64_t n = 0;

    for (uint32_t i = 0; i < s->len; i++) {
        if (s->data[i] < '0' || s->data[i] > '9') {
            return false;
        }
        n = n * 10 + (s->data[i] - '0');
        if (i == 9) {
            return false;
        }
    }
    *out = s->len > 0 ? n : *out;
    return s->len > 0;
}

size_t
tr_jinja_find_text(const string_t *s, size_t from, const string_t *what)
{
    const char *p;

    if (what->len == 0) {
        return from;
    }
    p = memmem(s->data + from, s->len - from, what->data, what->len);
    return p ? (size_t) (p - s->data) : SIZE_MAX;
}

/* The last one that ends at or before `to`. */
size_t
tr_jinja_find_last(const string_t *s, size_t to, const string_t *what)
{
    for (size_t at = to - (to >= what->len ? what->len : to) + 1;
         to >= what->len && at-- > 0;) {
        if (memcmp(s->data + at, what->data, what->len) == 0) {
            return at;
        }
    }
    return SIZE_MAX;
}

static bool
strips(const string_t *chars, const char *p, uint32_t *n)
{
    if (chars == NULL) {
        return tr_jinja_space(p, n);
    }
    *n = tr_jinja_char_bytes(p);
    for (uint32_t i = 0; i < chars->len;) {
        uint32_t k = tr_jinja_char_bytes(chars->data + i);

        if (k == *n && memcmp(chars->data + i, p, k) == 0) {
            return true;
        }
        i += k;
    }
    return false;
}

string_t *
tr_jinja_strip(tr_jinja_arena_t *a, string_t *s, const string_t *chars,
               bool left, bool right)
{
    size_t from = 0, to = s->len;
    uint32_t n;

    while (left && from < to && strips(chars, s->data + from, &n)) {
        from += n;
    }
    while (right && to > from) {
        size_t at = to - 1;

        while ((s->data[at] & 0xc0) == 0x80) {
            at--;
        }
        if (!strips(chars, s->data + at, &n)) {
            break;
        }
        to = at;
    }
    return to - from == s->len ? s : tr_jinja_slice(a, s, from, to);
}

string_t *
tr_jinja_replace(tr_jinja_arena_t *a, string_t *s, string_t *old, string_t *by,
                 int64_t count)
{
    builder_t b = { 0 };
    size_t from = 0, at;
    string_t *out;

    if (count == 0
        || (old->len > 0 && tr_jinja_find_text(s, 0, old) == SIZE_MAX)) {
        return s;
    }
    while (count != 0) {
        at = tr_jinja_find_text(s, from, old);
        if (old->len == 0) {
            /* before each character, and at the end */
            tr_jinja_put_string(a, &b, by);
            if (from == s->len) {
                break;
            }
            at = from + tr_jinja_char_bytes(s->data + from);
            tr_jinja_put_slice(a, &b, s, from, at);
            from = at;
        } else {
            if (at == SIZE_MAX) {
                break;
            }
            tr_jinja_put_slice(a, &b, s, from, at);
            tr_jinja_put_string(a, &b, by);
            from = at + old->len;
        }
        count--;
    }
    tr_jinja_put_slice(a, &b, s, from, s->len);
    out = tr_jinja_built(a, &b);
    out->markup = s->markup;
    return out;
}

static void
add_part(tr_jinja_arena_t *a, list_t *l, uint32_t *cap, const string_t *s,
         size_t from, size_t to)
{
    tr_jinja_append(a, l, cap, of_string(tr_jinja_slice(a, s, from, to)));
}

static void
split_space(tr_jinja_arena_t *a, list_t *l, string_t *s, int64_t most)
{
    size_t at = 0, from;
    uint32_t n, cap = 0;

    for (;;) {
        while (at < s->len && tr_jinja_space(s->data + at, &n)) {
            at += n;
        }
        if (at == s->len) {
            return;
        }
        from = at;
        if (most >= 0 && l->n == (uint64_t) most) {
            string_t *rest = tr_jinja_slice(a, s, from, s->len);

            tr_jinja_append(a, l, &cap,
                            of_string(
                                tr_jinja_strip(a, rest, NULL, false, true)));
            return;
        }
        while (at < s->len && !tr_jinja_space(s->data + at, &n)) {
            at += n;
        }
        add_part(a, l, &cap, s, from, at);
    }
}

/* Found from the end on, so they are turned round at last. */
static void
split_right(tr_jinja_arena_t *a, list_t *l, string_t *s, string_t *sep,
            int64_t most)
{
    size_t to = s->len, at;
    uint32_t cap = 0;

    while (most < 0 || l->n < (uint64_t) most) {
        at = tr_jinja_find_last(s, to, sep);
        if (at == SIZE_MAX) {
            break;
        }
        add_part(a, l, &cap, s, at + sep->len, to);
        to = at;
    }
    add_part(a, l, &cap, s, 0, to);
    for (uint32_t i = 0; i < l->n / 2; i++) {
        value_t v = l->items[i];

        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

list_t *
tr_jinja_split(tr_jinja_arena_t *a, string_t *s, string_t *sep, int64_t most,
               bool right)
{
    list_t *l = tr_jinja_list(a, 0);
    size_t from = 0, at;
    uint32_t cap = 0;

    l->items = NULL;
    if (sep == NULL) {
        split_space(a, l, s, most);
        return l;
    }
    if (right) {
        split_right(a, l, s, sep, most);
        return l;
    }
    while ((most < 0 || l->n < (uint64_t) most)
           && (at = tr_jinja_find_text(s, from, sep)) != SIZE_MAX) {
        add_part(a, l, &cap, s, from, at);
        from = at + sep->len;
    }
    add_part(a, l, &cap, s, from, s->len);
    return l;
}

/* Bytes of the line end at p, 0 if there is none: those of str.splitlines. */
static uint32_t
line_end(const char *p, size_t len)
{
    uint8_t c = (uint8_t) p[0];

    if (c == '\r') {
        return len > 1 && p[1] == '\n' ? 2 : 1;
    }
    if ((c >= 10 && c <= 12) || (c >= 28 && c <= 30)) {
        return 1;
    }
    if (len > 1 && c == 0xc2 && (uint8_t) p[1] == 0x85) {
        return 2;
    }
    return len > 2 && c == 0xe2 && (uint8_t) p[1] == 0x80
                   && ((uint8_t) p[2] == 0xa8 || (uint8_t) p[2] == 0xa9)
               ? 3
               : 0;
}

list_t *
tr_jinja_split_lines(tr_jinja_arena_t *a, string_t *s, bool keep)
{
    list_t *l = tr_jinja_list(a, 0);
    size_t from = 0, at = 0;
    uint32_t cap = 0;

    l->items = NULL;
    while (at < s->len) {
        uint32_t n = line_end(s->data + at, s->len - at);

        if (n == 0) {
            at++;
            continue;
        }
        add_part(a, l, &cap, s, from, keep ? at + n : at);
        from = at += n;
    }
    if (from < s->len) {
        add_part(a, l, &cap, s, from, s->len);
    }
    return l;
}

string_t *
tr_jinja_repeat(tr_jinja_arena_t *a, string_t *s, int64_t n)
{
    builder_t b = { 0 };
    string_t *out;

    if (n > 0 && s->len > 0 && (uint64_t) n > a->limit / s->len) {
        tr_jinja_fail_as(a, TR_ERR_INVALID,
                         "The chat template exceeded its limit of %zu bytes of "
                         "memory.",
                         a->limit);
    }
    for (int64_t i = 0; i < n && s->len > 0; i++) {
        tr_jinja_put_string(a, &b, s);
    }
    out = tr_jinja_built(a, &b);
    out->markup = s->markup;
    return out;
}

string_t *
tr_jinja_escape_html(tr_jinja_arena_t *a, string_t *s)
{
    builder_t b = { 0 };
    string_t *out;

    if (s->markup) {
        return s;
    }
    for (uint32_t i = 0; i < s->len; i++) {
        const char *by = s->data[i] == '&'    ? "&amp;"
                         : s->data[i] == '<'  ? "&lt;"
                         : s->data[i] == '>'  ? "&gt;"
                         : s->data[i] == '\'' ? "&#39;"
                         : s->data[i] == '"'  ? "&#34;"
                                              : NULL;

        if (by != NULL) {
            tr_jinja_put_text(a, &b, by, tag_at(s, i));
        } else {
            tr_jinja_put_slice(a, &b, s, i, i + 1);
        }
    }
    out = tr_jinja_built(a, &b);
    out->markup = true;
    return out;
}

/* ---- letters ------------------------------------------------------------ */

static bool
is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t) c);

    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL
           || k == UTF8PROC_CATEGORY_LT;
}

static void
put_upper(tr_jinja_arena_t *a, builder_t *b, uint32_t c, uint8_t tag,
          bool title)
{
    if (c == 0xdf) { /* sharp s becomes two letters */
        tr_jinja_put_text(a, b, title ? "Ss" : "SS", tag);
        return;
    }
    tr_jinja_put_char(a, b,
                      (uint32_t) (title
                                      ? utf8proc_totitle((utf8proc_int32_t) c)
                                      : utf8proc_toupper((utf8proc_int32_t) c)),
                      tag);
}

/* A capital sigma at a word's end has a form of its own. */
static bool
final_sigma(const string_t *s, size_t at)
{
    bool before = false;
    uint32_t n;

    for (size_t i = at; i > 0;) {
        i--;
        while ((s->data[i] & 0xc0) == 0x80) {
            i--;
        }
        before = is_cased(tr_utf8_next(s->data + i, &n));
        break;
    }
    return before
           && (at + 2 >= s->len
               || !is_cased(tr_utf8_next(s->data + at + 2, &n)));
}

static void
put_lower(tr_jinja_arena_t *a, builder_t *b, const string_t *s, size_t at,
          uint32_t c)
{
    if (c == 0x130) { /* I with dot above */
        tr_jinja_put_text(a, b, "i\xcc\x87", tag_at(s, at));
    } else if (c == 0x3a3 && final_sigma(s, at)) {
        tr_jinja_put_char(a, b, 0x3c2, tag_at(s, at));
    } else {
        tr_jinja_put_char(a, b,
                          (uint32_t) utf8proc_tolower((utf8proc_int32_t) c),
                          tag_at(s, at));
    }
}

static bool
begins_word(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<'
           || is_space(c);
}

string_t *
tr_jinja_case(tr_jinja_arena_t *a, string_t *s, enum letter_case how)
{
    builder_t b = { 0 };
    bool first = true; /* of the text or of a word */
    string_t *out;
    uint32_t n;

    for (uint32_t i = 0; i < s->len; i += n) {
        uint32_t c = tr_utf8_next(s->data + i, &n);
        bool up = how == CASE_UPPER || (first && how != CASE_LOWER);

        if (up) {
            put_upper(a, &b, c, tag_at(s, i),
                      how == CASE_CAPITAL || how == CASE_TITLE);
        } else {
            put_lower(a, &b, s, i, c);
        }
        first = how == CASE_TITLE          ? !is_cased(c)
                : how == CASE_TITLE_FILTER ? begins_word(c)
                                           : false;
    }
    out = tr_jinja_built(a, &b);
    out->markup = s->markup && how != CASE_TITLE_FILTER;
    return out;
}
