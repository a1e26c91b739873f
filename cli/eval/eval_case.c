/*
 * Reading cases (eval_case.h).
 */
#include "eval_case.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

#include "cli/terminal.h"

#define FILE_BYTES_MAX ((size_t) 4 << 30)

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

/* "match", or "checker" as world.py calls it. */
static tr_status_t
read_match(const json_t *line, tr_eval_match_t *out, const char *where,
           tr_error_t *err)
{
    const json_t *match = json_object_get(line, "match");
    const json_t *checker = json_object_get(line, "checker");
    const json_t *v = match != NULL ? match : checker;

    if (match != NULL && checker != NULL) {
        return bad(err, where, "checker", checker,
                   "one of \"match\" and \"checker\", which are the same");
    }
    if (v == NULL || json_is_null(v)
        || (json_is_string(v)
            && tr_eval_match_named(json_string_value(v), out))) {
        return TR_OK;
    }
    return bad(err, where, match != NULL ? "match" : "checker", v,
               tr_eval_match_names);
}

static tr_status_t
add_stop(tr_eval_case_t *c, const json_t *v, const char *where, tr_error_t *err)
{
    const char *text = json_string_value(v);

    if (text == NULL || text[0] == '\0' || strlen(text) != json_string_length(v)
        || c->n_stops == TR_EVAL_STOPS) {
        return bad(err, where, "stop", v,
                   "a text, or a list of up to 8, none of them empty");
    }
    c->stop[c->n_stops++] = text;
    return TR_OK;
}

static tr_status_t
read_stop(tr_eval_case_t *c, const char *where, tr_error_t *err)
{
    const json_t *v = json_object_get(c->line, "stop");
    tr_status_t rc = TR_OK;

    if (v == NULL || json_is_null(v)) {
        return TR_OK;
    }
    if (!json_is_array(v)) {
        return add_stop(c, v, where, err);
    }
    for (size_t i = 0; i < json_array_size(v) && rc == TR_OK; i++) {
        rc = add_stop(c, json_array_get(v, i), where, err);
    }
    return rc;
}

/* A number may stand without quotes where it is matched as one. */
static tr_status_t
unquote(json_t *line, const char *key, tr_eval_match_t match)
{
    const json_t *v = json_object_get(line, key);
    char *text;

    if (match != TR_MATCH_NUMBER || !json_is_number(v)) {
        return TR_OK;
    }
    text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (text == NULL || json_object_set_new(line, key, json_string(text))) {
        free(text);
        return TR_ERR_NOMEM;
    }
    free(text);
    return TR_OK;
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
read_question(tr_eval_case_t *c, const char *where, tr_error_t *err)
{
    tr_status_t rc = read_text(c->line, "prompt", &c->prompt, where, err);

    c->messages = json_object_get(c->line, "messages");
    if (rc != TR_OK || c->prompt == NULL) {
        return rc != TR_OK ? rc : check_messages(c->messages, where, err);
    }
    if (c->messages != NULL) {
        return bad(err, where, "messages", c->messages,
                   "one of \"messages\" and \"prompt\"");
    }
    return c->prompt[0] != '\0'
               ? TR_OK
               : bad(err, where, "prompt", json_object_get(c->line, "prompt"),
                     "a text that is not empty");
}

/* *out: "answer" or "expected", whichever there is. */
static tr_status_t
read_answer(tr_eval_case_t *c, const char **out, const char *where,
            tr_error_t *err)
{
    const char *answer = NULL, *expected = NULL;
    char what[200];
    tr_status_t rc;

    if (unquote(c->line, "answer", c->match) != TR_OK
        || unquote(c->line, "expected", c->match) != TR_OK) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "%.200s: out of memory",
                            where);
    }
    rc = read_text(c->line, "answer", &answer, where, err);
    if (rc == TR_OK) {
        rc = read_text(c->line, "expected", &expected, where, err);
    }
    if (rc == TR_OK && (answer != NULL) == (expected != NULL)) {
        return bad(err, where, answer ? "expected" : "answer",
                   answer ? json_object_get(c->line, "expected") : NULL,
                   "one of \"answer\" and \"expected\", the right answer");
    }
    *out = answer != NULL ? answer : expected;
    if (rc == TR_OK
        && !tr_eval_match_check(c->match, *out, what, sizeof(what))) {
        rc = bad(err, where, answer ? "answer" : "expected",
                 json_object_get(c->line, answer ? "answer" : "expected"),
                 what);
    }
    return rc;
}

static tr_status_t
read_case(tr_eval_case_t *c, const char *where, tr_error_t *err)
{
    const json_t *line = c->line, *turns = json_object_get(line, "turns");
    const char *answer = NULL, *reply = NULL;
    bool by_turns, as_text;
    tr_status_t rc;

    c->family = "cases";
    if ((rc = read_question(c, where, err)) != TR_OK
        || (rc = read_text(line, "family", &c->family, where, err)) != TR_OK
        || (rc = read_number(line, "difficulty", &c->difficulty, where, err))
               != TR_OK
        || (rc = read_number(line, "max_tokens", &c->max_tokens, where, err))
               != TR_OK
        || (rc = read_text(line, "reply", &reply, where, err)) != TR_OK
        || (rc = read_match(line, &c->match, where, err)) != TR_OK
        || (rc = read_stop(c, where, err)) != TR_OK
        || (rc = read_answer(c, &answer, where, err)) != TR_OK) {
        return rc;
    }
    if (turns != NULL && !json_is_boolean(turns)) {
        return bad(err, where, "turns", turns, "true or false");
    }
    /* what the assistant said earlier is neither a number nor a pattern */
    as_text = c->prompt == NULL && c->match != TR_MATCH_NUMBER
              && c->match != TR_MATCH_REGEX;
    by_turns = turns != NULL ? json_is_true(turns)
                             : as_text && strcmp(c->family, "multi") == 0;
    if (by_turns && !as_text) {
        return bad(err, where, "turns", turns,
                   "false where there is a prompt, or a number or pattern to "
                   "match");
    }
    rc = split_turns(c, by_turns, answer, reply);
    return rc == TR_OK
               ? rc
               : tr_error_set(err, rc, "", "%.200s: out of memory", where);
}

size_t
tr_eval_stopped(const tr_eval_case_t *c, const char *reply, size_t len)
{
    for (uint32_t i = 0; i < c->n_stops; i++) {
        const char *at = memmem(reply, len, c->stop[i], strlen(c->stop[i]));

        len = at != NULL ? (size_t) (at - reply) : len;
    }
    return len;
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
                            "or \"prompt\", and \"answer\"",
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
    c.hash = tr_fnv1a_64(TR_FNV1A_64, canonical, strlen(canonical));
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
                            "line with \"messages\" or \"prompt\", and "
                            "\"answer\"",
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
