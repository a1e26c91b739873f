/*
 * Rules of any JSON (RFC 8259).
 *
 * UTF-8 alone; \u escapes of surrogates in pairs.  Integers have at most 19
 * digits, fractions 17, exponents 3, and the space between tokens is nothing, a
 * blank, or a line feed and at most 24 blanks: a model that begins to write
 * zeros or blanks for ever is led back.
 */
#include "grammar_internal.h"

#define INTEGER_DIGITS 19u
#define FRACTION_DIGITS 17u
#define EXPONENT_DIGITS 3u
#define BLANKS 24u

static void
byte(tr_rules_t *b, uint32_t from, char c, uint32_t to)
{
    tr_rules_bytes(b, from, (uint8_t) c, (uint8_t) c, to);
}

static void
hex_digit(tr_rules_t *b, uint32_t from, uint32_t to)
{
    tr_rules_bytes(b, from, '0', '9', to);
    tr_rules_bytes(b, from, 'A', 'F', to);
    tr_rules_bytes(b, from, 'a', 'f', to);
}

/* Behind "\u": four digits, or two halves of a pair. */
static void
unicode_escape(tr_rules_t *b, uint32_t from, uint32_t to)
{
    uint32_t three = tr_rules_state(b), two = tr_rules_state(b);
    uint32_t one = tr_rules_state(b), d = tr_rules_state(b);
    uint32_t high[3], low[4];

    tr_rules_bytes(b, from, '0', '9', three);
    tr_rules_bytes(b, from, 'A', 'C', three);
    tr_rules_bytes(b, from, 'a', 'c', three);
    tr_rules_bytes(b, from, 'E', 'F', three);
    tr_rules_bytes(b, from, 'e', 'f', three);
    byte(b, from, 'D', d);
    byte(b, from, 'd', d);
    tr_rules_bytes(b, d, '0', '7', two);
    hex_digit(b, three, two);
    hex_digit(b, two, one);
    hex_digit(b, one, to);
    for (uint32_t i = 0; i < 3; i++) {
        high[i] = tr_rules_state(b);
    }
    for (uint32_t i = 0; i < 4; i++) {
        low[i] = tr_rules_state(b);
    }
    tr_rules_bytes(b, d, '8', '9', high[0]);
    tr_rules_bytes(b, d, 'A', 'B', high[0]);
    tr_rules_bytes(b, d, 'a', 'b', high[0]);
    hex_digit(b, high[0], high[1]);
    hex_digit(b, high[1], high[2]);
    tr_rules_text(b, high[2], "\\u", 2, low[0]);
    byte(b, low[0], 'D', low[1]);
    byte(b, low[0], 'd', low[1]);
    tr_rules_bytes(b, low[1], 'C', 'F', low[2]);
    tr_rules_bytes(b, low[1], 'c', 'f', low[2]);
    hex_digit(b, low[2], low[3]);
    hex_digit(b, low[3], to);
}

/* The characters of a string, and the quote that closes it. */
static uint32_t
chars_rule(tr_rules_t *b)
{
    static const char shorts[] = "\"\\/bfnrt";
    uint32_t rule = tr_rules_rule(b, "string characters");
    uint32_t at = tr_rules_state(b), done = tr_rules_state(b);
    uint32_t escape = tr_rules_state(b), unicode = tr_rules_state(b);
    tr_charset_t plain = { 0 };

    if (b->failed != TR_OK) {
        return 0;
    }
    b->tick[done] = true;
    tr_rules_empty(b, b->rules[rule].start, at);
    tr_rules_empty(b, done, at);
    tr_charset_add(&plain, 0x20, '"' - 1);
    tr_charset_add(&plain, '"' + 1, '\\' - 1);
    tr_charset_add(&plain, '\\' + 1, TR_CODE_POINTS - 1);
    tr_charset_normalise(&plain);
    tr_charset_rules(b, at, &plain, false, done);
    if (plain.failed) {
        b->failed = TR_ERR_NOMEM;
    }
    tr_charset_free(&plain);
    byte(b, at, '\\', escape);
    for (uint32_t i = 0; shorts[i] != '\0'; i++) {
        byte(b, escape, shorts[i], done);
    }
    byte(b, escape, 'u', unicode);
    unicode_escape(b, unicode, done);
    byte(b, at, '"', b->rules[rule].accept);
    return rule;
}

/* 1 to n digits more. */
static void
digits(tr_rules_t *b, uint32_t from, uint32_t n, uint32_t to)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t next = tr_rules_state(b);

        tr_rules_bytes(b, from, '0', '9', next);
        tr_rules_empty(b, next, to);
        from = next;
    }
}

static void
integer(tr_rules_t *b, uint32_t from, uint32_t to)
{
    uint32_t magnitude = tr_rules_state(b), more = tr_rules_state(b);

    tr_rules_empty(b, from, magnitude);
    byte(b, from, '-', magnitude);
    byte(b, magnitude, '0', to);
    tr_rules_bytes(b, magnitude, '1', '9', more);
    tr_rules_empty(b, more, to);
    digits(b, more, INTEGER_DIGITS - 1, to);
}

static uint32_t
integer_rule(tr_rules_t *b)
{
    uint32_t rule = tr_rules_rule(b, "integer");

    if (b->failed == TR_OK) {
        integer(b, b->rules[rule].start, b->rules[rule].accept);
    }
    return rule;
}

static uint32_t
number_rule(tr_rules_t *b)
{
    uint32_t rule = tr_rules_rule(b, "number"), whole = tr_rules_state(b);
    uint32_t point = tr_rules_state(b), part = tr_rules_state(b);
    uint32_t e = tr_rules_state(b), sign = tr_rules_state(b), to;

    if (b->failed != TR_OK) {
        return 0;
    }
    to = b->rules[rule].accept;
    integer(b, b->rules[rule].start, whole);
    tr_rules_empty(b, whole, part);
    byte(b, whole, '.', point);
    digits(b, point, FRACTION_DIGITS, part);
    tr_rules_empty(b, part, to);
    byte(b, part, 'e', e);
    byte(b, part, 'E', e);
    tr_rules_empty(b, e, sign);
    byte(b, e, '+', sign);
    byte(b, e, '-', sign);
    digits(b, sign, EXPONENT_DIGITS, to);
    return rule;
}

static uint32_t
space_rule(tr_rules_t *b)
{
    uint32_t rule = tr_rules_rule(b, "white space"), at = tr_rules_state(b), to;

    if (b->failed != TR_OK) {
        return 0;
    }
    to = b->rules[rule].accept;
    tr_rules_empty(b, b->rules[rule].start, to);
    byte(b, b->rules[rule].start, ' ', to);
    byte(b, b->rules[rule].start, '\n', at);
    for (uint32_t i = 0; i < BLANKS; i++) {
        uint32_t next = tr_rules_state(b);

        tr_rules_empty(b, at, to);
        byte(b, at, ' ', next);
        at = next;
    }
    tr_rules_empty(b, at, to);
    return rule;
}

/* `open` space (`close` | one (`comma` one)* `close`), where `one` goes from
 * item to done and space stands around the commas. */
static void
list(tr_rules_t *b, const tr_json_rules_t *json, uint32_t rule, char open,
     char close, uint32_t item, uint32_t done)
{
    uint32_t opened = tr_rules_state(b), inside = tr_rules_state(b);
    uint32_t spaced = tr_rules_state(b), comma = tr_rules_state(b);

    byte(b, b->rules[rule].start, open, opened);
    tr_rules_call(b, opened, json->space, inside);
    byte(b, inside, close, b->rules[rule].accept);
    tr_rules_empty(b, inside, item);
    tr_rules_call(b, done, json->space, spaced);
    byte(b, spaced, close, b->rules[rule].accept);
    byte(b, spaced, ',', comma);
    tr_rules_call(b, comma, json->space, item);
}

static void
object_rule(tr_rules_t *b, const tr_json_rules_t *json)
{
    uint32_t key = tr_rules_state(b), chars = tr_rules_state(b);
    uint32_t named = tr_rules_state(b), colon = tr_rules_state(b);
    uint32_t behind = tr_rules_state(b), value = tr_rules_state(b);
    uint32_t done = tr_rules_state(b);

    byte(b, key, '"', chars);
    tr_rules_call(b, chars, json->chars, named);
    tr_rules_call(b, named, json->space, colon);
    byte(b, colon, ':', behind);
    tr_rules_call(b, behind, json->space, value);
    tr_rules_call(b, value, json->value, done);
    list(b, json, json->object, '{', '}', key, done);
}

void
tr_json_rules(tr_rules_t *b, tr_json_rules_t *out)
{
    uint32_t item, done, start, to;

    out->space = space_rule(b);
    out->chars = chars_rule(b);
    out->integer = integer_rule(b);
    out->number = number_rule(b);
    out->string = tr_rules_rule(b, "string");
    out->value = tr_rules_rule(b, "value");
    out->object = tr_rules_rule(b, "object");
    out->array = tr_rules_rule(b, "array");
    item = tr_rules_state(b);
    done = tr_rules_state(b);
    if (b->failed != TR_OK) {
        return;
    }
    byte(b, b->rules[out->string].start, '"', item);
    tr_rules_call(b, item, out->chars, b->rules[out->string].accept);
    item = tr_rules_state(b);
    tr_rules_call(b, item, out->value, done);
    list(b, out, out->array, '[', ']', item, done);
    object_rule(b, out);
    start = b->rules[out->value].start;
    to = b->rules[out->value].accept;
    tr_rules_call(b, start, out->object, to);
    tr_rules_call(b, start, out->array, to);
    tr_rules_call(b, start, out->string, to);
    tr_rules_call(b, start, out->number, to);
    tr_rules_text(b, start, "true", 4, to);
    tr_rules_text(b, start, "false", 5, to);
    tr_rules_text(b, start, "null", 4, to);
}
