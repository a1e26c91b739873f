/*
 * Judging replies (eval_match.h).
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "eval_match.h"

#include <ctype.h>
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#define MARK "Answer: "
#define NUMBER_BYTES 64u
#define MATCH_LIMIT 1000000u
#define HEAP_LIMIT_KIB 65536u

static const struct {
    const char *name;
    tr_eval_match_t rule;
} rules[] = { { "exact", TR_MATCH_EXACT },
              { "final", TR_MATCH_FINAL },
              { "contains", TR_MATCH_CONTAINS },
              { "number", TR_MATCH_NUMBER },
              { "regex", TR_MATCH_REGEX } };

#define N_RULES (sizeof(rules) / sizeof(rules[0]))

const char tr_eval_match_names[] = "\"exact\", \"final\", \"contains\", "
                                   "\"number\" or \"regex\"";

bool
tr_eval_match_named(const char *name, tr_eval_match_t *out)
{
    for (size_t i = 0; i < N_RULES; i++) {
        if (strcmp(name, rules[i].name) == 0) {
            *out = rules[i].rule;
            return true;
        }
    }
    return false;
}

/* ---- texts -------------------------------------------------------------- */

/* text[0..n) without blanks around it. */
static const char *
strip(const char *text, size_t *n)
{
    while (*n > 0 && isspace((unsigned char) text[0])) {
        text++;
        --*n;
    }
    while (*n > 0 && isspace((unsigned char) text[*n - 1])) {
        --*n;
    }
    return text;
}

static bool
same(const char *answer, const char *text, size_t n)
{
    text = strip(text, &n);
    return strlen(answer) == n && memcmp(answer, text, n) == 0;
}

static bool
contains_all(const char *answer, const char *reply, size_t len)
{
    for (;;) {
        size_t n = strcspn(answer, "|");

        if (n != 0 && memmem(reply, len, answer, n) == NULL) {
            return false;
        }
        if (answer[n] == '\0') {
            return true;
        }
        answer += n + 1;
    }
}

static bool
final_is(const char *answer, const char *reply, size_t len)
{
    const char *at = reply, *tail = NULL, *end = reply + len;

    while ((at = memmem(at, (size_t) (end - at), MARK, strlen(MARK))) != NULL) {
        tail = at += strlen(MARK);
    }
    return tail != NULL && same(answer, tail, (size_t) (end - tail));
}

/* ---- numbers ------------------------------------------------------------ */

static bool
digit(const char *at, const char *end)
{
    return at < end && *at >= '0' && *at <= '9';
}

/* The number that begins at *at, a digit or a point before one; *at goes behind
 * it.  false: it has too many digits. */
static bool
read_number(const char **at, const char *end, double *out)
{
    char text[NUMBER_BYTES];
    size_t n = 0;
    bool point = false, fits = true;

    for (; *at < end; ++*at) {
        if (digit(*at, end)) {
            fits = fits && n + 1 < sizeof(text);
            if (fits) {
                text[n++] = **at;
            }
        } else if (**at == '.' && !point && digit(*at + 1, end)) {
            point = true;
            if (fits && n + 1 < sizeof(text)) {
                text[n++] = '.';
            }
        } else if (!(**at == ',' && !point && digit(*at + 1, end)
                     && digit(*at + 2, end) && digit(*at + 3, end)
                     && !digit(*at + 4, end))) {
            break; /* a comma stays inside where three digits follow */
        }
    }
    text[n] = '\0';
    *out = fits ? strtod(text, NULL) : NAN;
    return fits;
}

/* The last number; false: there is none, or it has too many digits. */
static bool
last_number(const char *text, size_t len, double *out)
{
    const char *at = text, *end = text + len;
    bool found = false;

    while (at < end) {
        const char *before = at;
        bool minus;

        if (!digit(at, end) && !(*at == '.' && digit(at + 1, end))) {
            at++;
            continue;
        }
        /* -5 and $-5, but not the 5 of 3-5 */
        minus = before > text && before[-1] == '-'
                && (before - 1 == text || !isalnum((unsigned char) before[-2]));
        found = read_number(&at, end, out);
        *out = minus ? -*out : *out;
    }
    return found;
}

/* Is the whole text one number? */
static bool
is_number(const char *text, double *out)
{
    size_t len = strlen(text);
    const char *at = strip(text, &len), *end = at + len;
    bool minus;

    at += at < end && *at == '$';
    minus = at < end && *at == '-';
    at += minus;
    at += at < end && *at == '$';
    if (!digit(at, end) && !(at < end && *at == '.' && digit(at + 1, end))) {
        return false;
    }
    if (!read_number(&at, end, out)) {
        return false;
    }
    at += at < end && *at == '%';
    *out = minus ? -*out : *out;
    return at == end;
}

static bool
number_is(const char *answer, const char *reply, size_t len)
{
    double want, got;

    return is_number(answer, &want) && last_number(reply, len, &got)
           && fabs(got - want) <= 1e-9 * fmax(1, fabs(want));
}

/* ---- patterns ----------------------------------------------------------- */

static pcre2_code *
compile(const char *pattern, char *why, size_t size)
{
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR text[120];
    pcre2_code *re;

    if (strlen(pattern) > TR_EVAL_PATTERN_MAX) {
        snprintf(why, size, "a regular expression of at most %u bytes",
                 TR_EVAL_PATTERN_MAX);
        return NULL;
    }
    re = pcre2_compile((PCRE2_SPTR) pattern, strlen(pattern),
                       PCRE2_UTF | PCRE2_MATCH_INVALID_UTF
                           | PCRE2_NEVER_BACKSLASH_C,
                       &code, &at, NULL);
    if (re == NULL) {
        pcre2_get_error_message(code, text, sizeof(text));
        snprintf(why, size, "a regular expression (%s at byte %zu)",
                 (const char *) text, (size_t) at);
    }
    return re;
}

static bool
finds(const char *pattern, const char *reply, size_t len)
{
    char why[200];
    pcre2_code *re = compile(pattern, why, sizeof(why));
    pcre2_match_context *bounds = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    int rc = PCRE2_ERROR_NOMEMORY;

    if (re != NULL && bounds != NULL && data != NULL) {
        pcre2_set_match_limit(bounds, MATCH_LIMIT);
        pcre2_set_heap_limit(bounds, HEAP_LIMIT_KIB);
        rc = pcre2_match(re, (PCRE2_SPTR) reply, len, 0, 0, data, bounds);
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
        tr_log(TR_LEVEL_WARN,
               "matching a case's regular expression took too long: its "
               "answer counts as wrong error=%d pattern=\"%.60s\"",
               rc, pattern);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(bounds);
    pcre2_code_free(re);
    return rc >= 0;
}

/* ---- all of them -------------------------------------------------------- */

bool
tr_eval_match_check(tr_eval_match_t rule, const char *answer, char *expected,
                    size_t size)
{
    pcre2_code *re;
    double number;

    switch (rule) {
    case TR_MATCH_NUMBER:
        snprintf(expected, size, "a number, as in -1,234.5");
        return is_number(answer, &number);
    case TR_MATCH_REGEX:
        re = compile(answer, expected, size);
        pcre2_code_free(re);
        return re != NULL;
    default:
        return true;
    }
}

bool
tr_eval_right(tr_eval_match_t rule, const char *answer, const char *reply,
              size_t len)
{
    switch (rule) {
    case TR_MATCH_EXACT:
        return same(answer, reply, len);
    case TR_MATCH_FINAL:
        return final_is(answer, reply, len);
    case TR_MATCH_CONTAINS:
        return contains_all(answer, reply, len);
    case TR_MATCH_NUMBER:
        return number_is(answer, reply, len);
    case TR_MATCH_REGEX:
        return finds(answer, reply, len);
    }
    return false;
}
