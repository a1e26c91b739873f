/*
 * Parameters that are marked-up text, and the JSON that they become
 * (dialect_internal.h).  The tool's schema says what a value is: a string is
 * passed on, escaped, as it comes; another one is held, and is JSON as it stands
 * if it is of a type that the schema allows, else a string.
 */
#include "dialect_internal.h"

#include <ctype.h>
#include <string.h>

enum value_mode { VALUE_STRING, VALUE_HELD, VALUE_BARE };

static void
put(tr_dialect_state_t *s, tr_dialect_out_t *out, const char *text,
    uint32_t len)
{
    tr_dialect_emit(s, out, TR_DIALECT_CALL, text, len);
}

/* As the inside of a JSON string. */
static void
put_escaped(tr_dialect_state_t *s, tr_dialect_out_t *out, const char *text,
            uint32_t len)
{
    static const char hex[] = "0123456789abcdef";

    for (uint32_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char) text[i];
        const char *at;

        if (c == 0xff) {
            i++; /* a special token is no text */
        } else if (c == '"' || c == '\\') {
            const char b[2] = { '\\', (char) c };

            put(s, out, b, 2);
        } else if (c >= 0x20) {
            put(s, out, text + i, 1);
        } else if (c != 0 && (at = strchr("\bb\ff\nn\rr\tt", c)) != NULL) {
            const char b[2] = { '\\', at[1] };

            put(s, out, b, 2);
        } else {
            const char b[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };

            put(s, out, b, 6);
        }
    }
}

static void
put_key(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    put(s, out, s->arg_any ? ", \"" : "\"", s->arg_any ? 3 : 1);
    put_escaped(s, out, s->key_text, s->key_len);
    put(s, out, "\": ", 3);
    s->arg_any = true;
}

void
tr_dialect_open_arguments(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    put(s, out, "{", 1);
}

void
tr_dialect_close_arguments(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    put(s, out, "}", 1);
}

/* Types of the parameter; one that the schema does not know is a string. */
static uint32_t
types_of(const tr_dialect_state_t *s)
{
    for (uint32_t i = 0; s->tool != NULL && i < s->tool->n_params; i++) {
        const tr_dialect_param_t *p = &s->tool->params[i];

        if (p->len == s->key_len
            && memcmp(p->name, s->key_text, s->key_len) == 0) {
            return p->types;
        }
    }
    return TR_TYPE_STRING;
}

void
tr_dialect_begin_value(tr_dialect_state_t *s, uint8_t op)
{
    s->types = op == OP_STRING ? TR_TYPE_STRING
               : op == OP_BARE ? 0
                               : types_of(s);
    s->value = s->types == TR_TYPE_STRING ? VALUE_STRING : VALUE_HELD;
    s->json = op == OP_BARE;
    s->lf = s->opened = false;
}

static void
begin_string(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    put_key(s, out);
    put(s, out, "\"", 1);
}

static void
value_string(tr_dialect_state_t *s, const char *text, uint32_t len,
             tr_dialect_out_t *out)
{
    bool lines = (s->d->form->flags & FORM_LINES) != 0;

    for (uint32_t i = 0; i < len; i++) {
        if (!s->opened) {
            s->opened = true;
            begin_string(s, out);
            if (lines && text[i] == '\n') {
                continue;
            }
        }
        if (s->lf) {
            put(s, out, "\\n", 2);
            s->lf = false;
        }
        if (lines && text[i] == '\n') {
            s->lf = true;
        } else {
            put_escaped(s, out, text + i, 1);
        }
    }
    s->base = s->at;
}

/* Too long to be held: it is what its beginning says. */
static void
decide(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    const char *text = s->buf + s->from;
    uint32_t len = s->at - s->from, i = 0;

    while (i < len && is_space(text[i])) {
        i++;
    }
    if (i < len
        && ((s->json && text[i] == '"')
            || ((text[i] == '{' || text[i] == '[')
                && (s->types == 0
                    || (s->types
                        & (text[i] == '{' ? TR_TYPE_OBJECT
                                          : TR_TYPE_ARRAY)))))) {
        s->value = VALUE_BARE;
        put_key(s, out);
        put(s, out, text + i, len - i);
        s->base = s->at;
        return;
    }
    s->value = VALUE_STRING;
    value_string(s, text, len, out);
}

void
tr_dialect_value(tr_dialect_state_t *s, const char *text, uint32_t len,
                 tr_dialect_out_t *out)
{
    switch (s->value) {
    case VALUE_STRING:
        value_string(s, text, len, out);
        break;
    case VALUE_BARE:
        put(s, out, text, len);
        s->base = s->at;
        break;
    default:
        if (s->at - s->from > TR_DIALECT_HELD) {
            decide(s, out);
        }
        break;
    }
}

/* ---- what a held value is ----------------------------------------------- */

static uint32_t
digits(const char *text, uint32_t len, uint32_t i)
{
    while (i < len && text[i] >= '0' && text[i] <= '9') {
        i++;
    }
    return i;
}

/* TR_TYPE_NUMBER, with INTEGER; 0: no number of JSON's. */
static uint32_t
number_type(const char *text, uint32_t len)
{
    uint32_t i = len != 0 && text[0] == '-', first = i, end;
    uint32_t type = TR_TYPE_NUMBER | TR_TYPE_INTEGER;

    end = digits(text, len, i);
    if (end == i || (text[i] == '0' && end > first + 1)) {
        return 0;
    }
    i = end;
    if (i < len && text[i] == '.') {
        type = TR_TYPE_NUMBER;
        end = digits(text, len, i + 1);
        if (end == i + 1) {
            return 0;
        }
        i = end;
    }
    if (i < len && (text[i] == 'e' || text[i] == 'E')) {
        type = TR_TYPE_NUMBER;
        i++;
        i += i < len && (text[i] == '+' || text[i] == '-');
        end = digits(text, len, i);
        if (end == i) {
            return 0;
        }
        i = end;
    }
    return i == len ? type : 0;
}

/* ---- is it JSON? A held value is, or it is a string; a longer one was passed on
 * as it came. */

#define NESTED_MAX 64

static const char *json_value(const char *p, const char *end, int depth);

static const char *
skip_space(const char *p, const char *end)
{
    while (p < end && is_space(*p)) {
        p++;
    }
    return p;
}

/* Behind the string that begins at p, NULL: it is none. */
static const char *
json_string_end(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++) {
        if ((unsigned char) *p < 0x20) {
            return NULL;
        }
        if (*p != '\\') {
            continue;
        }
        if (++p == end || strchr("\"\\/bfnrtu", *p) == NULL || *p == '\0') {
            return NULL;
        }
        for (int i = 0; *p == 'u' && i < 4; i++) {
            if (end - p < 5 || !isxdigit((unsigned char) p[i + 1])) {
                return NULL;
            }
        }
    }
    return p < end ? p + 1 : NULL;
}

/* An array, or an object, whose members have a name. */
static const char *
json_list_end(const char *p, const char *end, int depth)
{
    char last = *p == '{' ? '}' : ']';

    p = skip_space(p + 1, end);
    if (p < end && *p == last) {
        return p + 1;
    }
    while (p != NULL && p < end) {
        if (last == '}') {
            p = *p == '"' ? json_string_end(p, end) : NULL;
            p = p != NULL ? skip_space(p, end) : NULL;
            if (p == NULL || p == end || *p != ':') {
                return NULL;
            }
            p++;
        }
        p = json_value(p, end, depth + 1);
        p = p != NULL ? skip_space(p, end) : NULL;
        if (p == NULL || p == end || (*p != ',' && *p != last)) {
            return NULL;
        }
        if (*p == last) {
            return p + 1;
        }
        p = skip_space(p + 1, end);
    }
    return NULL;
}

/* Behind the value at p, NULL: there is none. */
static const char *
json_value(const char *p, const char *end, int depth)
{
    static const char *const words[] = { "true", "false", "null" };
    const char *from;

    p = skip_space(p, end);
    if (p == end || depth == NESTED_MAX) {
        return NULL;
    }
    if (*p == '{' || *p == '[') {
        return json_list_end(p, end, depth);
    }
    if (*p == '"') {
        return json_string_end(p, end);
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t n = strlen(words[i]);

        if ((size_t) (end - p) >= n && memcmp(p, words[i], n) == 0) {
            return p + n;
        }
    }
    for (from = p; p < end && strchr("+-.eE0123456789", *p) != NULL; p++) {
        if (*p == '\0') {
            break;
        }
    }
    return number_type(from, (uint32_t) (p - from)) != 0 ? p : NULL;
}

static bool
is(const char *text, uint32_t len, const char *what)
{
    return len == strlen(what) && memcmp(text, what, len) == 0;
}

/* What the text is as JSON; *as: another spelling of it (Python's). */
static uint32_t
type_of(const char *text, uint32_t len, const char **as)
{
    *as = NULL;
    if (is(text, len, "true") || is(text, len, "True")) {
        *as = "true";
        return TR_TYPE_BOOLEAN;
    }
    if (is(text, len, "false") || is(text, len, "False")) {
        *as = "false";
        return TR_TYPE_BOOLEAN;
    }
    if (is(text, len, "null") || is(text, len, "None")) {
        *as = "null";
        return TR_TYPE_NULL;
    }
    if (len != 0 && (text[0] == '{' || text[0] == '[')) {
        return json_value(text, text + len, 0) != text + len ? 0
               : text[0] == '{'                              ? TR_TYPE_OBJECT
                                                             : TR_TYPE_ARRAY;
    }
    return number_type(text, len);
}

uint32_t
tr_dialect_read_type(const char *text, uint32_t len)
{
    const char *as;

    len = tr_dialect_trim(&text, len);
    return type_of(text, len, &as);
}

static void
end_held(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    const char *text = s->buf + s->from, *as;
    uint32_t len = tr_dialect_trim(&text, s->at - s->from), type;

    if (len == 0 && !(s->types & TR_TYPE_STRING)) {
        return; /* left out */
    }
    type = type_of(text, len, &as);
    if (s->json && *text == '"'
        && json_string_end(text, text + len) == text + len) {
        type = TR_TYPE_STRING;
    }
    if (type != 0 && (s->types == 0 || (s->types & type) != 0)) {
        put_key(s, out);
        put(s, out, as != NULL ? as : text,
            as != NULL ? (uint32_t) strlen(as) : len);
        return;
    }
    text = s->buf + s->from;
    value_string(s, text, s->at - s->from, out);
    if (!s->opened) {
        begin_string(s, out);
    }
    put(s, out, "\"", 1);
}

void
tr_dialect_end_value(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    if (s->value == VALUE_HELD) {
        end_held(s, out);
    } else if (s->value == VALUE_STRING) {
        if (!s->opened) {
            begin_string(s, out);
        }
        put(s, out, "\"", 1);
    }
    s->base = s->at;
}
