/*
 * Calls that are JSON objects with a name and arguments, and arguments that are
 * JSON behind a name (dialect_internal.h).  Arguments are passed on as they
 * came, byte for byte, as soon as the name is known.
 */
#include "dialect_internal.h"

#include <string.h>

#include <utf8proc.h>

static enum scan_result
scan_close(scan_t *s, bool brace)
{
    if (s->depth == 0 || ((s->stack >> (s->depth - 1)) & 1) != brace) {
        return SCAN_BAD;
    }
    s->depth--;
    s->stack &= ~(UINT64_C(1) << s->depth);
    return s->depth == 0 ? SCAN_DONE : SCAN_MORE;
}

static enum scan_result
scan_open(scan_t *s, bool brace)
{
    if (s->depth == 64) {
        return SCAN_BAD;
    }
    s->stack |= (uint64_t) brace << s->depth++;
    return SCAN_MORE;
}

enum scan_result
tr_dialect_scan(scan_t *s, char c)
{
    if (s->string) {
        if ((unsigned char) c == 0xff) {
            return SCAN_BAD; /* a special token */
        }
        if (s->escape) {
            s->escape = false;
        } else if (c == '\\') {
            s->escape = true;
        } else if (c == '"') {
            s->string = false;
            return s->depth == 0 ? SCAN_DONE : SCAN_MORE;
        }
        return SCAN_MORE;
    }
    switch (c) {
    case '"':
        s->string = true;
        return SCAN_MORE;
    case '{':
    case '[':
        return scan_open(s, c == '{');
    case '}':
    case ']':
        return scan_close(s, c == '}');
    default:
        return c != '\0'
                       && (is_space(c)
                           || strchr("0123456789+-.eE,:truefalsn", c) != NULL)
                   ? SCAN_MORE
                   : SCAN_BAD;
    }
}

/* ---- arguments behind a name -------------------------------------------- */

/* The op that follows in the program. */
static enum step
next_op(tr_dialect_state_t *s)
{
    s->pc++;
    s->from = s->at;
    s->phase = CALL_OPEN;
    s->nested = 0;
    memset(&s->scan, 0, sizeof(s->scan));
    return STEP_ON;
}

/* One byte of arguments that are passed on. */
static enum step
pass(tr_dialect_state_t *s, tr_dialect_out_t *out, bool *done)
{
    enum scan_result r = tr_dialect_scan(&s->scan, s->buf[s->at]);

    if (r == SCAN_BAD) {
        return STEP_FAIL;
    }
    tr_dialect_emit(s, out, TR_DIALECT_CALL, s->buf + s->at, 1);
    s->base = ++s->at;
    *done = r == SCAN_DONE;
    return STEP_ON;
}

enum step
tr_dialect_step_json(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    char c = s->buf[s->at];
    bool done = false;

    if (!s->begun) {
        if (is_space(c)) {
            s->at++;
            return s->at - s->base > TR_DIALECT_HELD ? STEP_FAIL : STEP_ON;
        }
        if (!tr_dialect_begin_call(s, out)) {
            return STEP_FAIL;
        }
        if (c != '{') { /* no arguments are none */
            tr_dialect_emit(s, out, TR_DIALECT_CALL, "{}", 2);
            tr_dialect_end_call(s);
            return next_op(s);
        }
    }
    if (pass(s, out, &done) == STEP_FAIL) {
        return STEP_FAIL;
    }
    if (done) {
        tr_dialect_end_call(s);
        return next_op(s);
    }
    return STEP_ON;
}

/* ---- a call as an object ------------------------------------------------ */

enum { KEY_OTHER, KEY_NAME, KEY_ARGUMENTS, KEY_FUNCTION };

static bool
is(const char *text, uint32_t len, const char *what)
{
    return len == strlen(what) && memcmp(text, what, len) == 0;
}

/* -1: no key of a call's. */
static int
key_of(const char *text, uint32_t len)
{
    static const char *const others[] = { "id", "type", "tool_call_id" };

    if (is(text, len, "name") || is(text, len, "tool_name")) {
        return KEY_NAME;
    }
    if (is(text, len, "arguments") || is(text, len, "parameters")) {
        return KEY_ARGUMENTS;
    }
    if (is(text, len, "function")) {
        return KEY_FUNCTION;
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (is(text, len, others[i])) {
            return KEY_OTHER;
        }
    }
    return -1;
}

static enum step
begin(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    return tr_dialect_begin_call(s, out) ? STEP_ON : STEP_FAIL;
}

/* The object is complete: arguments that came first, or none, go out now. */
static enum step
end_object(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    uint32_t from = s->from, to = s->to;

    if (s->nested != 0) {
        s->nested--;
        s->phase = CALL_AFTER;
        s->at++;
        return STEP_ON;
    }
    if (!s->begun) {
        bool known = (s->d->form->flags & FORM_KNOWN) != 0;

        if (s->name_len == 0 || (known && to == 0)) {
            return STEP_FAIL;
        }
        s->at++;
        if (begin(s, out) == STEP_FAIL) {
            return STEP_FAIL;
        }
        if (to > from) {
            tr_dialect_emit(s, out, TR_DIALECT_CALL, s->buf + from, to - from);
        } else {
            tr_dialect_emit(s, out, TR_DIALECT_CALL, "{}", 2);
        }
    } else {
        s->at++;
    }
    tr_dialect_end_call(s);
    return next_op(s);
}

static enum step
begin_value(tr_dialect_state_t *s, tr_dialect_out_t *out, char c)
{
    switch (s->key) {
    case KEY_NAME:
        s->phase = CALL_NAME;
        s->name_len = 0;
        s->at++;
        return c == '"' ? STEP_ON : STEP_FAIL;
    case KEY_FUNCTION:
        if (c == '{' && s->nested == 0) {
            s->nested = 1;
            s->phase = CALL_KEY;
            s->at++;
            return STEP_ON;
        }
        if (c != '"') {
            return STEP_FAIL;
        }
        s->phase = CALL_NAME; /* "function": "NAME" */
        s->name_len = 0;
        s->at++;
        return STEP_ON;
    case KEY_ARGUMENTS:
        if (s->begun || s->to != 0) {
            return STEP_FAIL; /* twice */
        }
        if (c == 'n') {
            s->phase = CALL_NULL;
            return STEP_ON;
        }
        if (c != '{' && (c != '"' || s->name_len == 0)) {
            return STEP_FAIL;
        }
        s->phase = c == '{' ? CALL_ARGUMENTS : CALL_STRING;
        s->from = s->at;
        s->at += c == '"';
        s->unescape = 0;
        return s->name_len != 0 ? begin(s, out) : STEP_ON;
    default:
        s->phase = c == '"' || c == '{' || c == '[' ? CALL_OTHER
                                                    : CALL_OTHER_SCALAR;
        return STEP_ON;
    }
}

static void
put_char(tr_dialect_state_t *s, tr_dialect_out_t *out, uint32_t c)
{
    utf8proc_uint8_t b[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t) c, b);

    tr_dialect_emit(s, out, TR_DIALECT_CALL, (const char *) b, (uint32_t) n);
}

static void
put_code(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    uint32_t c = s->code;

    if (c >= 0xd800 && c < 0xdc00) {
        s->high = c;
        return;
    }
    if (c >= 0xdc00 && c < 0xe000) {
        c = s->high != 0 ? 0x10000 + ((s->high - 0xd800) << 10) + (c - 0xdc00)
                         : 0xfffd;
    }
    s->high = 0;
    put_char(s, out, c);
}

static int
hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Arguments as a string of JSON: what it says is passed on. */
static enum step
step_string(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = s->buf[s->at++];
    const char *at;

    s->base = s->at;
    if (s->unescape == 2) {
        int digit = hex(c);

        if (digit < 0) {
            return STEP_FAIL;
        }
        s->code = s->code << 4 | (uint32_t) digit;
        if (++s->n_hex == 4) {
            put_code(s, out);
            s->unescape = 0;
        }
    } else if (s->unescape == 1) {
        s->unescape = 0;
        at = c != '\0' ? strchr(from, c) : NULL;
        if (c == 'u') {
            s->unescape = 2;
            s->code = s->n_hex = 0;
        } else if (at != NULL) {
            put_char(s, out, (unsigned char) to[at - from]);
        } else {
            return STEP_FAIL;
        }
    } else if (c == '\\') {
        s->unescape = 1;
    } else if (c == '"') {
        s->phase = CALL_AFTER;
    } else if ((unsigned char) c == 0xff) {
        return STEP_FAIL;
    } else {
        tr_dialect_emit(s, out, TR_DIALECT_CALL, &c, 1);
    }
    return STEP_ON;
}

static enum step
step_name(tr_dialect_state_t *s, char c)
{
    s->at++;
    if (c == '"') {
        s->phase = CALL_AFTER;
        return tr_dialect_name_ok(s->name, s->name_len) ? STEP_ON : STEP_FAIL;
    }
    if (s->name_len == TR_DIALECT_NAME_MAX) {
        return STEP_FAIL;
    }
    s->name[s->name_len++] = c;
    return STEP_ON;
}

static enum step
step_key_text(tr_dialect_state_t *s, char c)
{
    int key;

    s->at++;
    if (c != '"') {
        if (s->key_len == sizeof(s->key_text)) {
            return STEP_FAIL;
        }
        s->key_text[s->key_len++] = c;
        return STEP_ON;
    }
    key = key_of(s->key_text, s->key_len);
    if (key < 0) {
        return STEP_FAIL;
    }
    s->key = (uint8_t) key;
    s->phase = CALL_COLON;
    return STEP_ON;
}

/* A value that is of no use: a string, an object or an array. */
static enum step
step_other(tr_dialect_state_t *s, char c)
{
    enum scan_result r = tr_dialect_scan(&s->scan, c);

    s->at++;
    if (r == SCAN_DONE) {
        s->phase = CALL_AFTER;
        memset(&s->scan, 0, sizeof(s->scan));
    }
    return r == SCAN_BAD ? STEP_FAIL : STEP_ON;
}

/* Arguments before the name is known are held. */
static enum step
step_arguments(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    enum scan_result r;
    bool done = false;

    if (s->begun) {
        if (pass(s, out, &done) == STEP_FAIL) {
            return STEP_FAIL;
        }
    } else {
        r = tr_dialect_scan(&s->scan, s->buf[s->at]);
        if (r == SCAN_BAD) {
            return STEP_FAIL;
        }
        s->at++;
        done = r == SCAN_DONE;
        s->to = done ? s->at : 0;
    }
    if (done) {
        s->phase = CALL_AFTER;
        memset(&s->scan, 0, sizeof(s->scan));
    }
    return STEP_ON;
}

static enum step
step_structure(tr_dialect_state_t *s, tr_dialect_out_t *out, char c)
{
    switch (s->phase) {
    case CALL_OPEN:
        s->name_len = s->to = 0;
        s->phase = CALL_KEY;
        s->at++;
        return c == '{' ? STEP_ON : STEP_FAIL;
    case CALL_KEY:
    case CALL_KEY_NEXT:
        if (c == '}' && s->phase == CALL_KEY) {
            return end_object(s, out);
        }
        s->phase = CALL_KEY_TEXT;
        s->key_len = 0;
        s->at++;
        return c == '"' ? STEP_ON : STEP_FAIL;
    case CALL_COLON:
        if (c == ':') {
            s->phase = CALL_VALUE;
            s->at++;
            return STEP_ON;
        }
        return STEP_FAIL;
    case CALL_VALUE:
        return begin_value(s, out, c);
    case CALL_AFTER:
        if (c == ',') {
            s->phase = CALL_KEY_NEXT;
            s->at++;
            return STEP_ON;
        }
        return c == '}' ? end_object(s, out) : STEP_FAIL;
    default:
        return STEP_FAIL;
    }
}

static enum step
step_scalar(tr_dialect_state_t *s, char c)
{
    if (c == ',' || c == '}' || is_space(c)) {
        s->phase = CALL_AFTER;
        return STEP_ON;
    }
    s->at++;
    return c != '\0' && strchr("0123456789+-.eEtrufalsn", c) != NULL
               ? STEP_ON
               : STEP_FAIL;
}

enum step
tr_dialect_step_call(tr_dialect_state_t *s, tr_dialect_out_t *out)
{
    char c = s->buf[s->at];
    enum step step;

    switch (s->phase) {
    case CALL_KEY_TEXT:
        step = step_key_text(s, c);
        break;
    case CALL_NAME:
        step = step_name(s, c);
        break;
    case CALL_ARGUMENTS:
        step = step_arguments(s, out);
        break;
    case CALL_STRING:
        step = step_string(s, out);
        break;
    case CALL_OTHER:
        step = step_other(s, c);
        break;
    case CALL_NULL:
    case CALL_OTHER_SCALAR:
        step = step_scalar(s, c);
        break;
    default:
        if (is_space(c)) {
            s->at++;
            step = STEP_ON;
        } else {
            step = step_structure(s, out, c);
        }
        break;
    }
    if (s->begun && step == STEP_ON) {
        s->base = s->at;
    }
    return s->at - s->base > TR_DIALECT_HELD ? STEP_FAIL : step;
}
