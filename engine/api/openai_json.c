/*
 * Checked JSON (openai_json.h), on jansson: it is strict about UTF-8 and about
 * what follows the value, keeps integers at 64 bits (json_numbers.h), takes \u0000
 * in a text but not in a key, and lets the last of two equal keys win.
 */
#include "openai_json.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_numbers.h"
#include "engine/config/log.h"

/* jansson takes about 40 bytes for a token id and 100 for an empty array, so
 * this lets every reasonable body through and stops the unreasonable. */
#define BUDGET_BASE ((size_t) 16 << 20)
#define BUDGET_FACTOR 16

#define NUMBER_SHOWN 40 /* digits in a message */

/* Numbers in fewer brackets are fields of ours, which have 64 bits; others are of
 * a schema or of a call, and may have any size. */
#define NUMBER_DEPTH 4

#define VALUES_MAX 262144u /* a parse of so many takes a tenth of a second */
#define NUMBER_MAX 1024u   /* bytes of a number: longer ones are no numbers */

/* Memory of the parse that this thread is in; 0: no parse, no limit. */
static _Thread_local size_t budget_limit, budget_used;
static _Thread_local bool budget_hit;

static void *
counted_malloc(size_t n)
{
    void *p;

    if (budget_limit != 0
        && (n > budget_limit || budget_used > budget_limit - n)) {
        budget_hit = true;
        return NULL;
    }
    p = malloc(n);
    if (p != NULL && budget_limit != 0) {
        budget_used += malloc_usable_size(p);
    }
    return p;
}

static void
counted_free(void *p)
{
    if (p != NULL && budget_limit != 0) {
        budget_used -= malloc_usable_size(p);
    }
    free(p);
}

void
tr_json_init(void)
{
    json_set_alloc_funcs(counted_malloc, counted_free);
}

/* Length of the character at p with its bytes all right, 0 if they are not.
 * RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
static size_t
character_length(const unsigned char *p, size_t left)
{
    unsigned char lo = 0x80, hi = 0xbf;
    size_t n, i;

    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4) {
        return 0;
    }
    n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (n > left) {
        return 0;
    }
    switch (p[0]) {
    case 0xe0:
        lo = 0xa0;
        break;
    case 0xed:
        hi = 0x9f;
        break;
    case 0xf0:
        lo = 0x90;
        break;
    case 0xf4:
        hi = 0x8f;
        break;
    default:
        break;
    }
    if (p[1] < lo || p[1] > hi) {
        return 0;
    }
    for (i = 2; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}

size_t
tr_utf8_check(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *) text;
    size_t at = 0, n;

    while (at < len) {
        uint64_t word;

        while (len - at >= sizeof(word)) { /* plain ASCII, eight at a time */
            memcpy(&word, p + at, sizeof(word));
            if (word & 0x8080808080808080ull) {
                break;
            }
            at += sizeof(word);
        }
        if (at == len) {
            break;
        }
        n = character_length(p + at, len - at);
        if (n == 0) {
            return at;
        }
        at += n;
    }
    return len;
}

/* The field of the outermost object whose value begins at `at`, into name; ""
 * where there is none.  The parser has passed all that stands before. */
static void
field_at(const char *body, size_t at, char name[TR_ERROR_PARAM])
{
    size_t key = 0, len = 0, i;
    bool string = false, value = false;
    unsigned depth = 0;

    for (i = 0; i < at; i++) {
        if (string) {
            string = body[i] != '"';
            len = i - key;
            i += body[i] == '\\';
        } else if (body[i] == '"') {
            string = true;
            key = i + 1;
        } else if (strchr(" \t\r\n", body[i]) == NULL) {
            value = body[i] == ':';
            depth += body[i] == '{' || body[i] == '[';
            depth -= body[i] == '}' || body[i] == ']';
        }
    }
    value = value && depth == 1 && len < TR_ERROR_PARAM;
    snprintf(name, TR_ERROR_PARAM, "%.*s", value ? (int) len : 0, body + key);
}

/* JSON has numbers of any size, which jansson calls errors where they end. */
static tr_status_t
too_large_number(const json_error_t *e, const char *body, tr_error_t *err)
{
    size_t end = (size_t) e->position, begin;
    char name[TR_ERROR_PARAM];
    bool real = false;
    int len;

    for (begin = end; begin > 0 && strchr("0123456789+-.eE", body[begin - 1]);
         begin--) {
        real = real || strchr(".eE", body[begin - 1]) != NULL;
    }
    len = end - begin < NUMBER_SHOWN ? (int) (end - begin) : NUMBER_SHOWN;
    field_at(body, begin, name);
    return tr_error_set(err, TR_ERR_INVALID, name,
                        "Invalid %s%s%s: number out of range. Expected a 64-bit"
                        " %s, but got %.*s%s instead (line %d column %d, byte"
                        " %d).",
                        name[0] != '\0' ? "'"
                                        : "number in the JSON body of your"
                                          " request",
                        name, name[0] != '\0' ? "'" : "",
                        real ? "decimal number" : "integer", len, body + begin,
                        end - begin > NUMBER_SHOWN ? "..." : "", e->line,
                        e->column, e->position);
}

/* In our words: the library's are for programmers, and change with it. */
static const char *
what_failed(const json_error_t *e)
{
    static const struct {
        const char *theirs, *ours;
    } texts[] = {
        { "'[' or '{' expected", "expected an object" },
        { "':' expected", "expected ':' after the name of a field" },
        { "string or '}' expected", "expected the name of a field, or '}'" },
        { "'}' expected", "expected ',' or '}'" },
        { "']' expected", "expected ',' or ']'" },
        { "unexpected newline", "a line feed in a text must be written \\n" },
        { "control character",
          "a control character in a text must be escaped" },
        { "invalid Unicode", "half of a surrogate pair is not a character" },
        { "invalid escape", "there is no such escape in JSON" },
    };
    size_t i;

    switch (json_error_code(e)) {
    case json_error_premature_end_of_input:
        return "it ends too early";
    case json_error_end_of_input_expected:
        return "something follows its end";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "a key with the character U+0000 (\\u0000) is not supported";
    default:
        break;
    }
    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (strncmp(e->text, texts[i].theirs, strlen(texts[i].theirs)) == 0) {
            return texts[i].ours;
        }
    }
    return "it is not valid JSON";
}

static tr_status_t
parse_failed(const json_error_t *e, const char *body, size_t len,
             tr_error_t *err)
{
    if (budget_hit) {
        return tr_error_set(err, TR_ERR_TOO_LARGE, "",
                            "The JSON body of your "
                            "request holds too many values for its %zu bytes "
                            "(parsing it may take %zu MiB)",
                            len, budget_limit >> 20);
    }
    if (json_error_code(e) == json_error_stack_overflow) {
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "We could not parse the "
                            "JSON body of your request: it is nested too "
                            "deeply (byte %d)",
                            e->position);
    }
    if (json_error_code(e) == json_error_numeric_overflow && e->position >= 0
        && (size_t) e->position <= len) {
        return too_large_number(e, body, err);
    }
    return tr_error_set(err, TR_ERR_INVALID, "",
                        "We could not parse the JSON "
                        "body of your request: %s (line %d column %d, byte "
                        "%d)",
                        what_failed(e), e->line, e->column, e->position);
}

/* Refuses what would take long to parse, in one pass over the bytes: too many
 * values, as commas and brackets outside of strings tell, or too long a number.
 * What is no JSON at all is the parser's to say. */
static tr_status_t
check_shape(const char *body, size_t len, tr_error_t *err)
{
    size_t values = 1, number = 0, i;
    bool string = false;

    for (i = 0; i < len; i++) {
        char c = body[i];

        if (string) {
            string = c != '"';
            i += c == '\\';
            continue;
        }
        string = c == '"';
        values += c == ',' || c == '[' || c == '{';
        number = (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+'
                         || (number != 0 && (c == 'e' || c == 'E'))
                     ? number + 1
                     : 0;
        if (values > VALUES_MAX) {
            return tr_error_set(err, TR_ERR_TOO_LARGE, "",
                                "The JSON body of your request holds too many "
                                "values: more than %u before byte %zu",
                                VALUES_MAX, i);
        }
        if (number > NUMBER_MAX) {
            return tr_error_set(err, TR_ERR_INVALID, "",
                                "We could not parse the JSON body of your "
                                "request: it has a number of more than %u "
                                "characters (byte %zu)",
                                NUMBER_MAX, i);
        }
    }
    return TR_OK;
}

static json_t *
load_rounded(const char *body, size_t len)
{
    size_t n;
    char *rounded = tr_json_round(body, len, NUMBER_DEPTH, &n);
    json_t *root = rounded == NULL
                       ? NULL
                       : json_loadb(rounded, n, JSON_ALLOW_NUL, NULL);

    free(rounded);
    return root;
}

tr_status_t
tr_json_parse(const char *body, size_t len, json_t **root, tr_error_t *err)
{
    json_error_t e;
    tr_status_t rc = TR_OK;
    size_t bad;

    *root = NULL;
    if (len == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "The body of your request "
                            "is empty; expected a JSON object");
    }
    bad = tr_utf8_check(body, len);
    if (bad != len) {
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "We could not parse the "
                            "JSON body of your request: it is not valid UTF-8 "
                            "(byte 0x%02x at offset %zu)",
                            (unsigned char) body[bad], bad);
    }
    rc = check_shape(body, len, err);
    if (rc != TR_OK) {
        return rc;
    }
    memset(&e, 0, sizeof(e));
    budget_limit = BUDGET_BASE + BUDGET_FACTOR * len;
    budget_used = 0;
    budget_hit = false;
    *root = json_loadb(body, len, JSON_ALLOW_NUL, &e);
    if (*root == NULL && !budget_hit
        && json_error_code(&e) == json_error_numeric_overflow) {
        *root = load_rounded(body, len);
    }
    if (*root == NULL) {
        rc = parse_failed(&e, body, len, err);
    }
    budget_limit = 0;
    if (rc == TR_OK && !json_is_object(*root)) {
        rc = tr_error_set(err, TR_ERR_INVALID, "",
                          "The JSON body of your "
                          "request is %s; expected an object",
                          tr_json_type(*root));
        json_decref(*root);
        *root = NULL;
    }
    return rc;
}

json_t *
tr_json_field(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);

    return json_is_null(value) ? NULL : value;
}

const char *
tr_json_type(const json_t *value)
{
    if (value == NULL) {
        return "null";
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a decimal number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

tr_status_t
tr_json_wrong_type(tr_error_t *err, const char *param, const char *expected,
                   const json_t *got)
{
    return tr_error_set(err, TR_ERR_INVALID, param,
                        "Invalid type for '%s': "
                        "expected %s, but got %s instead.",
                        param, expected, tr_json_type(got));
}

tr_status_t
tr_json_not_integer(tr_error_t *err, const char *param, const json_t *got)
{
    if (!json_is_real(got)) {
        return tr_json_wrong_type(err, param, "an integer", got);
    }
    return tr_error_set(err, TR_ERR_INVALID, param,
                        "Invalid type for '%s': expected an integer, but got a "
                        "decimal number instead: %.15g.",
                        param, json_real_value(got));
}

tr_status_t
tr_json_bool(const json_t *object, const char *name, bool *out, tr_error_t *err)
{
    json_t *value = tr_json_field(object, name);

    if (value == NULL) {
        return TR_OK;
    }
    if (!json_is_boolean(value)) {
        return tr_json_wrong_type(err, name, "a boolean", value);
    }
    *out = json_is_true(value);
    return TR_OK;
}

tr_status_t
tr_json_integer(const json_t *object, const char *name, int64_t min,
                int64_t max, int64_t *out, tr_error_t *err)
{
    json_t *value = tr_json_field(object, name);
    int64_t v;

    if (value == NULL) {
        return TR_OK;
    }
    if (!json_is_integer(value)) {
        return tr_json_not_integer(err, name, value);
    }
    v = json_integer_value(value);
    if (v < min) {
        return tr_error_set(err, TR_ERR_INVALID, name,
                            "Invalid '%s': integer "
                            "below minimum value. Expected a value >= %lld, "
                            "but got %lld instead.",
                            name, (long long) min, (long long) v);
    }
    if (v > max) {
        return tr_error_set(err, TR_ERR_INVALID, name,
                            "Invalid '%s': integer "
                            "above maximum value. Expected a value <= %lld, "
                            "but got %lld instead.",
                            name, (long long) max, (long long) v);
    }
    *out = v;
    return TR_OK;
}

tr_status_t
tr_json_number(const json_t *object, const char *name, double min, double max,
               float *out, tr_error_t *err)
{
    json_t *value = tr_json_field(object, name);
    double v;

    if (value == NULL) {
        return TR_OK;
    }
    if (!json_is_number(value)) {
        return tr_json_wrong_type(err, name, "a decimal number", value);
    }
    v = json_number_value(value);
    if (!(v >= min)) {
        return tr_error_set(err, TR_ERR_INVALID, name,
                            "Invalid '%s': decimal "
                            "below minimum value. Expected a value >= %g, but "
                            "got %g instead.",
                            name, min, v);
    }
    if (!(v <= max)) {
        return tr_error_set(err, TR_ERR_INVALID, name,
                            "Invalid '%s': decimal "
                            "above maximum value. Expected a value <= %g, but "
                            "got %g instead.",
                            name, max, v);
    }
    *out = (float) v;
    return TR_OK;
}
