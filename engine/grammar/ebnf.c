/*
 * Grammars in the two spellings that clients send: llama.cpp's GBNF and
 * XGrammar's EBNF.
 *
 *   root  ::= greeting (" " name)? "!"      # the answer is a root
 *   name  ::= [A-Z] [a-z]{1,30}
 *
 * Texts are quoted, with escapes as in C and \uXXXX; [..] is a class of
 * characters, . any character; | ( ) * + ? {n} {n,} {n,m} are as in regular
 * expressions.  A rule ends where the next one begins ("name ::=").
 */
#include "grammar_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

#define DEPTH_MAX 64
#define REPEAT_MAX (1u << 30)
#define RULES_MAX 16384u

typedef struct {
    const char *name;
    size_t len;
    uint32_t rule;
    size_t called_at; /* first call, for errors */
    bool defined;
} named_t;

typedef struct {
    tr_rules_t *b;
    const char *text, *param;
    size_t len, at;
    named_t *named;
    uint32_t n_named;
    uint32_t *slots, n_slots; /* of a hash table of them, index + 1 */
    int depth;
    tr_status_t rc;
    tr_error_t *err;
} ebnf_t;

static void
fail(ebnf_t *e, size_t at, const char *what)
{
    size_t line = 1, column = 1;

    if (e->rc != TR_OK) {
        return;
    }
    for (size_t i = 0; i < at && i < e->len; i++) {
        column = e->text[i] == '\n' ? 1 : column + 1;
        line += e->text[i] == '\n';
    }
    e->rc = tr_error_set(e->err, TR_ERR_INVALID, e->param,
                         "Invalid grammar in '%s': %s, at line %zu, column "
                         "%zu.",
                         e->param, what, line, column);
}

static bool
going(const ebnf_t *e)
{
    return e->rc == TR_OK && e->b->failed == TR_OK;
}

static void
skip_space(ebnf_t *e)
{
    while (e->at < e->len) {
        char c = e->text[e->at];

        if (c == '#') {
            while (e->at < e->len && e->text[e->at] != '\n') {
                e->at++;
            }
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            e->at++;
        } else {
            return;
        }
    }
}

static bool
skip(ebnf_t *e, char c)
{
    if (e->at < e->len && e->text[e->at] == c) {
        e->at++;
        return true;
    }
    return false;
}

static size_t
name_length(const ebnf_t *e)
{
    size_t n = 0;

    while (e->at + n < e->len) {
        char c = e->text[e->at + n];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'
              || c == '-' || c == '.' || (n > 0 && c >= '0' && c <= '9'))
            || (n == 0 && c == '.')) {
            break;
        }
        n++;
    }
    return n;
}

/* Does "name ::=" stand here? */
static bool
at_definition(ebnf_t *e)
{
    size_t from = e->at, n = name_length(e);
    bool found;

    if (n == 0) {
        return false;
    }
    e->at += n;
    while (e->at < e->len
           && (e->text[e->at] == ' ' || e->text[e->at] == '\t')) {
        e->at++;
    }
    found = e->len - e->at >= 3 && memcmp(e->text + e->at, "::=", 3) == 0;
    e->at = from;
    return found;
}

/* ---- names */

static uint32_t
slot_of(const ebnf_t *e, const char *name, size_t len)
{
    uint32_t h = tr_fnv1a_32(TR_FNV1A_32, name, len);

    for (h %= e->n_slots; e->slots[h] != 0; h = (h + 1) % e->n_slots) {
        const named_t *n = &e->named[e->slots[h] - 1];

        if (n->len == len && memcmp(n->name, name, len) == 0) {
            break;
        }
    }
    return h;
}

/* The rule of a name, made when the name is new; NULL when there is no room. */
static named_t *
rule_named(ebnf_t *e, const char *name, size_t len)
{
    uint32_t slot = slot_of(e, name, len);
    named_t *n;

    if (e->slots[slot] != 0) {
        return &e->named[e->slots[slot] - 1];
    }
    if (e->n_named == RULES_MAX) {
        fail(e, e->at, "there are more than 16384 rules");
        return NULL;
    }
    n = &e->named[e->n_named];
    n->name = tr_rules_name(e->b, name, len);
    n->len = len;
    n->called_at = e->at;
    n->rule = tr_rules_rule(e->b, n->name);
    if (e->b->failed != TR_OK) {
        return NULL;
    }
    e->slots[slot] = ++e->n_named;
    return n;
}

/* ---- characters */

static uint32_t
hex(ebnf_t *e, uint32_t digits)
{
    uint32_t v = 0;

    for (uint32_t i = 0; i < digits; i++, e->at++) {
        char c = e->at < e->len ? e->text[e->at] : '\0';
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;

        if (d < 0) {
            fail(e, e->at, "a hexadecimal escape is incomplete");
            return 0;
        }
        v = v << 4 | (uint32_t) d;
    }
    if (v >= TR_CODE_POINTS || (v >= 0xd800 && v < 0xe000)) {
        fail(e, e->at, "not a valid character");
        return 0;
    }
    return v;
}

/* Behind a backslash. */
static uint32_t
escape(ebnf_t *e)
{
    static const char from[] = "ntrbfv0ae", to[] = "\n\t\r\b\f\v\0\a\x1b";
    char c = e->at < e->len ? e->text[e->at++] : '\0';
    const char *at = c == '\0' ? NULL : strchr(from, c);

    if (at != NULL) {
        return (uint8_t) to[at - from];
    }
    switch (c) {
    case 'x':
        return hex(e, 2);
    case 'u':
        return hex(e, 4);
    case 'U':
        return hex(e, 8);
    default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
            || (c >= '0' && c <= '9') || c == '\0') {
            fail(e, e->at, "this escape is not known");
        }
        return (uint8_t) c;
    }
}

static uint32_t
character(ebnf_t *e)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n;

    if (skip(e, '\\')) {
        return escape(e);
    }
    n = utf8proc_iterate((const utf8proc_uint8_t *) e->text + e->at,
                         (utf8proc_ssize_t) (e->len - e->at), &c);
    if (n <= 0) {
        fail(e, e->at, "invalid UTF-8");
        return 0;
    }
    e->at += (size_t) n;
    return (uint32_t) c;
}

static void
one_character(ebnf_t *e, uint32_t from, uint32_t c, uint32_t to)
{
    tr_range_t range = { c, c };
    tr_charset_t set = { &range, 1, 1, false };

    tr_charset_rules(e->b, from, &set, false, to);
}

static void
read_text(ebnf_t *e, uint32_t from, uint32_t to)
{
    size_t begun = e->at;

    while (going(e) && !skip(e, '"')) {
        uint32_t next;

        if (e->at >= e->len || e->text[e->at] == '\n') {
            fail(e, begun, "a string has no closing quote");
            return;
        }
        next = tr_rules_state(e->b);
        one_character(e, from, character(e), next);
        from = next;
    }
    tr_rules_empty(e->b, from, to);
}

static void
read_class(ebnf_t *e, uint32_t from, uint32_t to)
{
    tr_charset_t set = { 0 };
    size_t begun = e->at;
    bool negative = skip(e, '^');

    while (going(e) && !skip(e, ']')) {
        uint32_t lo, hi;

        if (e->at >= e->len) {
            fail(e, begun, "[ without ]");
            break;
        }
        hi = lo = character(e);
        if (e->at + 1 < e->len && e->text[e->at] == '-'
            && e->text[e->at + 1] != ']') {
            e->at++;
            hi = character(e);
        }
        if (lo > hi) {
            fail(e, e->at, "a range is the wrong way round");
        }
        tr_charset_add(&set, lo, hi);
    }
    if (negative) {
        tr_charset_negate(&set);
    }
    tr_charset_normalise(&set);
    if (set.failed) {
        e->b->failed = TR_ERR_NOMEM;
    } else if (going(e)) {
        tr_charset_rules(e->b, from, &set, false, to);
    }
    tr_charset_free(&set);
}

/* ---- structure */

static void read_alternatives(ebnf_t *e, uint32_t from, uint32_t to);

static void
read_element(ebnf_t *e, uint32_t from, uint32_t to)
{
    tr_range_t all = { 0, TR_CODE_POINTS - 1 };
    tr_charset_t any = { 0 };
    size_t n;

    if (skip(e, '"')) {
        read_text(e, from, to);
    } else if (skip(e, '[')) {
        read_class(e, from, to);
    } else if (skip(e, '.')) {
        tr_charset_add(&any, all.lo, all.hi);
        tr_charset_normalise(&any);
        if (any.failed) {
            e->b->failed = TR_ERR_NOMEM;
        }
        tr_charset_rules(e->b, from, &any, false, to);
        tr_charset_free(&any);
    } else if (skip(e, '(')) {
        if (e->at < e->len && e->text[e->at] == '=') {
            fail(e, e->at, "lookahead is not supported");
            return;
        }
        if (++e->depth > DEPTH_MAX) {
            fail(e, e->at, "groups are nested too deep");
            return;
        }
        read_alternatives(e, from, to);
        e->depth--;
        skip_space(e);
        if (!skip(e, ')')) {
            fail(e, e->at, "( without )");
        }
    } else if ((n = name_length(e)) > 0) {
        const named_t *rule = rule_named(e, e->text + e->at, n);

        e->at += n;
        if (e->at < e->len && e->text[e->at] == '(') {
            fail(e, e->at, "functions are not supported");
        } else if (rule != NULL) {
            tr_rules_call(e->b, from, rule->rule, to);
        }
    } else {
        fail(e, e->at, "expected a string, a class, a group or a rule's name");
    }
}

static bool
read_number(ebnf_t *e, uint32_t *out)
{
    size_t from = e->at;
    uint32_t v = 0;

    skip_space(e);
    while (e->at < e->len && e->text[e->at] >= '0' && e->text[e->at] <= '9') {
        v = v * 10 + (uint32_t) (e->text[e->at++] - '0');
        if (v > REPEAT_MAX / 10) {
            fail(e, from, "a bound is above 107374182");
            return false;
        }
    }
    *out = v;
    from = e->at > from ? from : SIZE_MAX;
    skip_space(e);
    return from != SIZE_MAX;
}

static void
read_bounds(ebnf_t *e, uint32_t *min, uint32_t *max)
{
    bool known = read_number(e, min);

    *max = *min;
    if (skip(e, ',')) {
        if (!read_number(e, max)) {
            *max = TR_UNBOUNDED;
        }
        known = true;
    }
    if (!known || !skip(e, '}')) {
        fail(e, e->at, "expected {n}, {n,} or {n,m}");
    } else if (*min > *max) {
        fail(e, e->at, "bounds are the wrong way round");
    }
}

/* An element and what repeats it. */
static void
read_repeated(ebnf_t *e, uint32_t from, uint32_t to)
{
    uint32_t in = tr_rules_state(e->b), out = tr_rules_state(e->b);
    uint32_t min = 1, max = 1;

    read_element(e, in, out);
    if (!going(e)) {
        return;
    }
    if (skip(e, '*')) {
        min = 0;
        max = TR_UNBOUNDED;
    } else if (skip(e, '+')) {
        max = TR_UNBOUNDED;
    } else if (skip(e, '?')) {
        min = 0;
    } else if (skip(e, '{')) {
        read_bounds(e, &min, &max);
        if (going(e)) {
            tr_rules_repeat(e->b, from,
                            tr_rules_rule_of(e->b, "repetition", in, out), min,
                            max, to);
        }
        return;
    }
    tr_rules_empty(e->b, from, in);
    tr_rules_empty(e->b, out, to);
    if (min == 0) {
        tr_rules_empty(e->b, from, to);
    }
    if (max == TR_UNBOUNDED) {
        tr_rules_empty(e->b, out, in);
    }
}

static void
read_sequence(ebnf_t *e, uint32_t from, uint32_t to)
{
    for (;;) {
        uint32_t next;
        char c;

        skip_space(e);
        c = e->at < e->len ? e->text[e->at] : '\0';
        if (!going(e) || c == '\0' || c == '|' || c == ')'
            || at_definition(e)) {
            break;
        }
        next = tr_rules_state(e->b);
        read_repeated(e, from, next);
        from = next;
    }
    tr_rules_empty(e->b, from, to);
}

static void
read_alternatives(ebnf_t *e, uint32_t from, uint32_t to)
{
    do {
        /* states of its own: what repeats it must not reach the others */
        uint32_t in = tr_rules_state(e->b);

        tr_rules_empty(e->b, from, in);
        read_sequence(e, in, to);
        skip_space(e);
    } while (going(e) && skip(e, '|'));
}

static void
read_rule(ebnf_t *e)
{
    size_t n = name_length(e), begun = e->at;
    named_t *rule;
    uint32_t number;

    if (!at_definition(e)) {
        fail(e, e->at, "expected a rule: name ::= ...");
        return;
    }
    rule = rule_named(e, e->text + e->at, n);
    if (rule == NULL) {
        return;
    }
    if (rule->defined) {
        fail(e, begun, "this rule is defined twice");
        return;
    }
    rule->defined = true;
    number = rule->rule;
    e->at = (size_t) (strstr(e->text + e->at, "::=") - e->text) + 3;
    read_alternatives(e, e->b->rules[number].start, e->b->rules[number].accept);
    if (e->at < e->len && e->text[e->at] == ')') {
        fail(e, e->at, ") without (");
    }
}

static void
read_all(ebnf_t *e)
{
    const named_t *root = rule_named(e, "root", 4); /* rule 0 */
    char what[128];

    (void) root;
    for (skip_space(e); going(e) && e->at < e->len; skip_space(e)) {
        read_rule(e);
    }
    for (uint32_t i = 0; going(e) && i < e->n_named; i++) {
        if (!e->named[i].defined) {
            snprintf(what, sizeof(what), "the rule '%.64s' is not there",
                     e->named[i].name);
            fail(e, e->named[i].called_at, what);
        }
    }
}

tr_status_t
tr_ebnf_rules(tr_rules_t *b, const char *text, size_t len, const char *param,
              tr_error_t *err)
{
    ebnf_t e = { .b = b, .len = len, .param = param, .err = err };
    char *copy = strndup(text, len); /* with an end that strstr meets */

    e.text = copy;
    e.n_slots = 2 * RULES_MAX;
    e.slots = calloc(e.n_slots, sizeof(*e.slots));
    e.named = calloc(RULES_MAX, sizeof(*e.named));
    if (copy == NULL || e.slots == NULL || e.named == NULL) {
        e.rc = TR_ERR_NOMEM;
    } else if (memchr(text, '\0', len) != NULL) {
        fail(&e, strlen(copy), "a NUL");
    } else {
        read_all(&e);
    }
    free(copy);
    free(e.slots);
    free(e.named);
    return e.rc;
}
