/*
 * Reading cases and judging replies (eval_case.h).
 */
#include "eval_case.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#include "cli/terminal.h"

#define FILE_BYTES_MAX ((size_t) 4 << 30)
#define MARK "Answer: "

static const struct {
    const char *name;
    tr_checker_t checker;
} checkers[] = { { "exact", TR_CHECK_EXACT },
                 { "final", TR_CHECK_FINAL },
                 { "contains", TR_CHECK_CONTAINS } };

#define N_CHECKERS (sizeof(checkers) / sizeof(checkers[0]))

uint64_t
tr_eval_hash(uint64_t hash, const void *data, size_t len)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ p[i]) * 0x100000001b3u;
    }
    return hash;
}

/* ---- one line ----------------------------------------------------------- */

/* "cases.jsonl:12: checker is "fuzzy", expected ..."; value: NULL, or what
 * stands there. */
static tr_status_t
bad(tr_error_t *err, const char *where, const char *field, const json_t *value,
    const char *expected)
{
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY) : NULL;

    tr_error_set(err, TR_ERR_INVALID, field,
                 "%.200s: %s %s%.60s%s, expected %s", where, field,
                 value != NULL ? "is " : "is missing", text != NULL ? text : "",
                 text != NULL && strlen(text) > 60 ? ".." : "", expected);
    free(text);
    return TR_ERR_INVALID;
}

/* A text that may be absent. */
static tr_status_t
read_text(const json_t *line, const char *key, const char **out,
          const char *where, tr_error_t *err)
{
    const json_t *v = json_object_get(line, key);

    if (v == NULL || json_is_null(v)) {
        return TR_OK;
    }
    if (!json_is_string(v)) {
        return bad(err, where, key, v, "a text");
    }
    if (strlen(json_string_value(v)) != json_string_length(v)) {
        return bad(err, where, key, v, "a text without NUL");
    }
    *out = json_string_value(v);
    return TR_OK;
}

static tr_status_t
read_number(const json_t *line, const char *key, uint32_t *out,
            const char *where, tr_error_t *err)
{
    const json_t *v = json_object_get(line, key);

    if (v == NULL || json_is_null(v)) {
        return TR_OK;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 1
        || json_integer_value(v) > 1 << 24) {
        return bad(err, where, key, v, "a whole number from 1 to 16777216");
    }
    *out = (uint32_t) json_integer_value(v);
    return TR_OK;
}

static tr_status_t
read_checker(const json_t *line, tr_checker_t *out, const char *where,
             tr_error_t *err)
{
    const json_t *v = json_object_get(line, "checker");
    const char *name = json_string_value(v);

    if (v == NULL || json_is_null(v)) {
        return TR_OK;
    }
    for (size_t i = 0; i < N_CHECKERS && name != NULL; i++) {
        if (strcmp(name, checkers[i].name) == 0) {
            *out = checkers[i].checker;
            return TR_OK;
        }
    }
    return bad(err, where, "checker", v,
               "\"exact\", \"final\" or \"contains\"");
}

static tr_status_t
check_messages(const json_t *messages, const char *where, tr_error_t *err)
{
    static const char *const roles = "\"system\", \"user\" or \"assistant\"";
    size_t i, n = json_array_size(messages);

    if (n == 0) {
        return bad(err, where, "messages", messages,
                   "a list of {\"role\", \"content\"}");
    }
    for (i = 0; i < n; i++) {
        const json_t *m = json_array_get(messages, i);
        const json_t *role = json_object_get(m, "role");
        const json_t *content = json_object_get(m, "content");
        const char *name = json_string_value(role);
        char field[48];

        snprintf(field, sizeof(field), "messages[%zu].role", i);
        if (name == NULL
            || (strcmp(name, "system") != 0 && strcmp(name, "user") != 0
                && strcmp(name, "assistant") != 0)) {
            return bad(err, where, field, role, roles);
        }
        if (i + 1 == n && strcmp(name, "user") != 0) {
            return bad(err, where, field, role,
                       "\"user\" in the last message, which is answered");
        }
        snprintf(field, sizeof(field), "messages[%zu].content", i);
        if (!json_is_string(content)) {
            return bad(err, where, field, content, "a text");
        }
        if (strlen(json_string_value(content)) != json_string_length(content)) {
            return bad(err, where, field, content, "a text without NUL");
        }
    }
    return TR_OK;
}

/* The turns of a case: those before the last one where it goes by turns. */
static tr_status_t
split_turns(tr_eval_case_t *c, bool by_turns, const char *answer,
            const char *reply)
{
    uint32_t n = (uint32_t) json_array_size(c->messages);

    c->turns = calloc(n + 1, sizeof(*c->turns));
    if (c->turns == NULL) {
        return TR_ERR_NOMEM;
    }
    for (uint32_t i = 0; by_turns && i < n; i++) {
        const json_t *m = json_array_get(c->messages, i);

        if (strcmp(json_string_value(json_object_get(m, "role")), "assistant")
            == 0) {
            const char *text = json_string_value(json_object_get(m, "content"));

            c->turns[c->n_turns++] = (tr_eval_turn_t){ i, text, text };
        }
    }
    c->turns[c->n_turns++] = (tr_eval_turn_t){ n, answer, reply };
    return TR_OK;
}

static tr_status_t
read_case(tr_eval_case_t *c, const char *where, tr_error_t *err)
{
    const json_t *line = c->line, *turns = json_object_get(line, "turns");
    const char *answer = NULL, *expected = NULL, *reply = NULL;
    tr_status_t rc;

    c->family = "cases";
    c->messages = json_object_get(line, "messages");
    if ((rc = check_messages(c->messages, where, err)) != TR_OK
        || (rc = read_text(line, "family", &c->family, where, err)) != TR_OK
        || (rc = read_number(line, "difficulty", &c->difficulty, where, err))
               != TR_OK
        || (rc = read_number(line, "max_tokens", &c->max_tokens, where, err))
               != TR_OK
        || (rc = read_text(line, "reply", &reply, where, err)) != TR_OK
        || (rc = read_text(line, "answer", &answer, where, err)) != TR_OK
        || (rc = read_text(line, "expected", &expected, where, err)) != TR_OK
        || (rc = read_checker(line, &c->checker, where, err)) != TR_OK) {
        return rc;
    }
    if ((answer != NULL) == (expected != NULL)) {
        return bad(err, where, answer ? "expected" : "answer",
                   answer ? json_object_get(line, "expected") : NULL,
                   "one of \"answer\" and \"expected\", the right answer");
    }
    if (turns != NULL && !json_is_boolean(turns)) {
        return bad(err, where, "turns", turns, "true or false");
    }
    rc = split_turns(c,
                     turns != NULL ? json_is_true(turns)
                                   : strcmp(c->family, "multi") == 0,
                     answer != NULL ? answer : expected, reply);
    return rc == TR_OK
               ? rc
               : tr_error_set(err, rc, "", "%.200s: out of memory", where);
}

static void
case_free(tr_eval_case_t *c)
{
    free(c->turns);
    json_decref(c->line);
}

/* Room for one more, unless memory is out. */
static void
grow(tr_eval_cases_t *cases)
{
    size_t cap = cases->cap ? cases->cap * 2 : 256;
    tr_eval_case_t *grown = realloc(cases->items, cap * sizeof(*grown));

    if (grown != NULL) {
        cases->items = grown;
        cases->cap = cap;
    }
}

tr_status_t
tr_eval_cases_add(tr_eval_cases_t *cases, const char *text, size_t len,
                  const char *where, tr_error_t *err)
{
    json_error_t why;
    tr_eval_case_t c = { 0 };
    char *canonical;
    tr_status_t rc;

    c.line = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (c.line == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "%.200s: %.120s (byte %d), expected one JSON "
                            "object a line",
                            where, why.text, why.position);
    }
    if (!json_is_object(c.line)) {
        json_decref(c.line);
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "%.200s: expected a JSON object with \"messages\" "
                            "and \"expected\"",
                            where);
    }
    rc = read_case(&c, where, err);
    canonical = json_dumps(c.line, JSON_COMPACT | JSON_SORT_KEYS);
    if (rc == TR_OK && cases->n == cases->cap) {
        grow(cases);
    }
    if (rc == TR_OK && (canonical == NULL || cases->n == cases->cap)) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "", "%.200s: out of memory",
                          where);
    }
    if (rc != TR_OK) {
        free(canonical);
        case_free(&c);
        return rc;
    }
    c.hash = tr_eval_hash(TR_EVAL_HASH, canonical, strlen(canonical));
    free(canonical);
    cases->items[cases->n++] = c;
    return TR_OK;
}

/* ---- files -------------------------------------------------------------- */

tr_status_t
tr_eval_cases_read(tr_eval_cases_t *cases, const char *path, tr_error_t *err)
{
    char why[300], where[300], *text, *at, *end;
    size_t len, line = 0, before = cases->n;
    tr_status_t rc = TR_OK;

    text = tr_read_file(path, FILE_BYTES_MAX, &len, why, sizeof(why));
    if (text == NULL) {
        return tr_error_set(err, TR_ERR_IO, "cases", "%s", why);
    }
    for (at = text; at < text + len && rc == TR_OK; at = end + 1) {
        end = memchr(at, '\n', (size_t) (text + len - at));
        end = end != NULL ? end : text + len;
        line++;
        if (strspn(at, " \t\r") < (size_t) (end - at)) {
            snprintf(where, sizeof(where), "%.200s:%zu", path, line);
            rc = tr_eval_cases_add(cases, at, (size_t) (end - at), where, err);
        }
    }
    free(text);
    if (rc == TR_OK && cases->n == before) {
        return tr_error_set(err, TR_ERR_INVALID, "cases",
                            "%.200s has no cases, expected one JSON object a "
                            "line with \"messages\" and \"expected\"",
                            path);
    }
    return rc;
}

static bool
named(const char *family, const char *const *families, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(family, families[i]) == 0) {
            return true;
        }
    }
    return n == 0;
}

void
tr_eval_cases_select(tr_eval_cases_t *cases, size_t limit,
                     const char *const *families, size_t n_families)
{
    size_t kept = 0;

    for (size_t i = 0; i < cases->n; i++) {
        tr_eval_case_t *c = &cases->items[i];
        size_t alike = 0;

        for (size_t j = 0; j < kept && limit != 0; j++) {
            alike += cases->items[j].difficulty == c->difficulty
                     && strcmp(cases->items[j].family, c->family) == 0;
        }
        if ((limit == 0 || alike < limit)
            && named(c->family, families, n_families)) {
            cases->items[kept++] = *c;
        } else {
            case_free(c);
        }
    }
    cases->n = kept;
}

void
tr_eval_cases_free(tr_eval_cases_t *cases)
{
    for (size_t i = 0; i < cases->n; i++) {
        case_free(&cases->items[i]);
    }
    free(cases->items);
    *cases = (tr_eval_cases_t){ 0 };
}

/* ---- judging ------------------------------------------------------------ */

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

bool
tr_eval_right(tr_checker_t checker, const char *answer, const char *reply,
              size_t len)
{
    const char *at = reply, *tail = NULL, *end = reply + len;

    switch (checker) {
    case TR_CHECK_EXACT:
        return same(answer, reply, len);
    case TR_CHECK_CONTAINS:
        return contains_all(answer, reply, len);
    default:
        break;
    }
    while ((at = memmem(at, (size_t) (end - at), MARK, strlen(MARK))) != NULL) {
        tail = at += strlen(MARK);
    }
    return tail != NULL && same(answer, tail, (size_t) (end - tail));
}
