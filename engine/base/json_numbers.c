/*
 * Integers of any size in JSON (json_numbers.h).
 */
#include "json_numbers.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Is the number, which has no point and no exponent, beyond 64 bits? */
static bool
is_beyond(const char *text, size_t len)
{
    bool negative = len > 0 && *text == '-';
    const char *most = negative ? "9223372036854775808" : "9223372036854775807";

    text += negative;
    len -= negative;
    return len > 19 || (len == 19 && memcmp(text, most, 19) > 0);
}

/* Bytes of the number at text; *whole: it is an integer. */
static size_t
number_bytes(const char *text, size_t len, bool *whole)
{
    size_t n = 0;

    *whole = true;
    while (n < len && strchr("0123456789+-.eE", text[n]) != NULL
           && text[n] != '\0') {
        *whole &= strchr(".eE", text[n]) == NULL;
        n++;
    }
    return n;
}

/* Bytes up to the end of the string at text. */
static size_t
string_bytes(const char *text, size_t len)
{
    size_t n = 1;

    while (n < len && text[n] != '"') {
        n += text[n] == '\\' ? 2 : 1;
    }
    return n < len ? n + 1 : len;
}

char *
tr_json_round(const char *text, size_t len, unsigned depth, size_t *out_len)
{
    char *out = malloc(len + 2 * (len / 19 + 1)), *to = out;
    unsigned brackets = 0;
    bool any = false, whole;

    for (size_t at = 0, n; out != NULL && at < len; at += n) {
        n = 1;
        whole = false;
        if (text[at] == '"') {
            n = string_bytes(text + at, len - at);
        } else if (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')) {
            n = number_bytes(text + at, len - at, &whole);
        }
        brackets += text[at] == '{' || text[at] == '[';
        brackets -= brackets > 0 && (text[at] == '}' || text[at] == ']');
        memcpy(to, text + at, n);
        to += n;
        if (whole && brackets >= depth && is_beyond(text + at, n)) {
            memcpy(to, ".0", 2);
            to += 2;
            any = true;
        }
    }
    if (!any) {
        free(out);
        return NULL;
    }
    *out_len = (size_t) (to - out);
    return out;
}
