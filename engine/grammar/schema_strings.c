/*
 * Strings of a schema.
 *
 * A length alone is counted while the string is written, whatever the bounds
 * are; so is a pattern that is one class of characters, ^[a-z]{1,5000}$.  Any
 * other pattern, or several, become one deterministic automaton together with
 * the length, from which all that could not be ended is cut away.
 */
#include "schema_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A class of characters, so many of them. */
typedef struct {
    const tr_charset_t *set;
    uint32_t min, max;
} run_t;

/* ^[..]{n,m}$ and the like. */
static bool
is_run(const tr_regex_tree_t *t, run_t *out)
{
    const tr_regex_node_t *n = t->nodes, *root = &n[t->root], *x;

    /* (BEGIN x) END */
    if (root->kind != TR_REGEX_CAT || n[root->b].kind != TR_REGEX_END
        || n[root->a].kind != TR_REGEX_CAT
        || n[n[root->a].a].kind != TR_REGEX_BEGIN) {
        return false;
    }
    x = &n[n[root->a].b];
    out->min = out->max = 1;
    if (x->kind == TR_REGEX_REPEAT) {
        out->min = x->min;
        out->max = x->max;
        x = &n[x->a];
    }
    if (x->kind != TR_REGEX_SET) {
        return false;
    }
    out->set = &t->sets[x->a];
    return true;
}

bool
tr_schema_pattern(schema_t *c, const char *keyword, const json_t *pattern,
                  tr_chars_t *out)
{
    tr_regex_tree_t tree;
    char why[128], what[200];
    tr_status_t rc;

    memset(out, 0, sizeof(*out));
    if (!tr_schema_going(c)) {
        return false;
    }
    if (!json_is_string(pattern)) {
        tr_schema_invalid(c, "a pattern is not a string");
        return false;
    }
    rc = tr_regex_parse(json_string_value(pattern), json_string_length(pattern),
                        &tree, why);
    if (rc == TR_OK) {
        rc = tr_chars_of_regex(&tree, out);
    } else if (rc == TR_ERR_INVALID) {
        snprintf(what, sizeof(what), "'%s' is no regular expression (%s)",
                 keyword, why);
        tr_schema_invalid(c, what);
    }
    tr_rules_count(c->b, tree.work + out->work);
    tr_regex_free(&tree);
    if (rc == TR_ERR_NOMEM) {
        c->rc = rc;
    } else if (rc == TR_ERR_UNSUPPORTED) {
        tr_schema_unsupported(c, keyword);
    }
    if (rc != TR_OK) {
        tr_chars_free(out);
    }
    return rc == TR_OK;
}

/* A run as a rule whose characters are counted, unless one is enough. */
static void
emit_run(schema_t *c, const run_t *run, uint32_t from, uint32_t to)
{
    uint32_t rule = tr_rules_rule(c->b, "characters");
    uint32_t at = tr_rules_state(c->b), done = tr_rules_state(c->b);
    bool counts = run->min > 1 || run->max != TR_UNBOUNDED;

    if (c->b->failed != TR_OK) {
        return;
    }
    c->b->tick[done] = counts;
    tr_rules_empty(c->b, c->b->rules[rule].start, at);
    tr_rules_empty(c->b, done, at);
    tr_charset_rules(c->b, at, run->set, true, done);
    tr_rules_bytes(c->b, run->min == 1 && !counts ? done : at, '"', '"',
                   c->b->rules[rule].accept);
    if (counts) {
        tr_rules_length(c->b, from, rule, run->min, run->max, to);
    } else {
        tr_rules_call(c->b, from, rule, to);
    }
}

/* The one pattern of a string, if it is a run, within the length's bounds. */
static bool
try_run(schema_t *c, const json_t *pattern, uint32_t min, uint32_t max,
        uint32_t from, uint32_t to)
{
    tr_regex_tree_t tree;
    char why[128];
    run_t run;
    bool good;

    if (!json_is_string(pattern)) {
        return false;
    }
    good = tr_regex_parse(json_string_value(pattern),
                          json_string_length(pattern), &tree, why)
               == TR_OK
           && is_run(&tree, &run);
    tr_rules_count(c->b, tree.work);
    if (good) {
        run.min = run.min > min ? run.min : min;
        run.max = run.max < max ? run.max : max;
        if (run.min <= run.max) {
            emit_run(c, &run, from, to);
        }
    }
    tr_regex_free(&tree);
    return good;
}

/* Patterns and formats, intersected; false: there is none. */
static bool
all_patterns(schema_t *c, const json_t *patterns, const json_t *formats,
             tr_chars_t *out)
{
    const json_t *lists[2] = { patterns, formats };
    bool have = false;

    memset(out, 0, sizeof(*out));
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < json_array_size(lists[k]); i++) {
            json_t *item = json_array_get(lists[k], i);
            const char *regex = k == 1 && json_is_string(item)
                                    ? tr_schema_format(json_string_value(item))
                                    : NULL;
            tr_chars_t one, both;
            tr_status_t rc;
            bool good;

            if (k == 1 && regex == NULL) {
                continue; /* an unknown format is an annotation */
            }
            item = k == 1 ? json_string(regex) : json_incref(item);
            good = tr_schema_pattern(c, k == 1 ? "format" : "pattern", item,
                                     &one);
            json_decref(item);
            if (!good) {
                continue;
            }
            if (!have) {
                *out = one;
                have = true;
                continue;
            }
            rc = tr_chars_both(out, &one, false, &both);
            tr_rules_count(c->b, both.work);
            if (rc != TR_OK) {
                tr_schema_unsupported(c, "pattern");
                tr_chars_free(&both);
                tr_chars_free(&one);
                continue;
            }
            tr_chars_free(out);
            tr_chars_free(&one);
            *out = both;
        }
    }
    return have;
}

static bool
has_format(const json_t *formats)
{
    for (size_t i = 0; i < json_array_size(formats); i++) {
        const json_t *item = json_array_get(formats, i);

        if (json_is_string(item)
            && tr_schema_format(json_string_value(item)) != NULL) {
            return true;
        }
    }
    return false;
}

void
tr_schema_string(schema_t *c, json_t *flat, uint32_t from, uint32_t to)
{
    const json_t *patterns = json_object_get(flat, SCHEMA_PATTERNS);
    const json_t *formats = json_object_get(flat, SCHEMA_FORMATS);
    uint32_t min = tr_schema_count(c, flat, "minLength", 0);
    uint32_t max = tr_schema_count(c, flat, "maxLength", TR_UNBOUNDED);
    uint32_t inside = tr_rules_state(c->b);
    tr_chars_t chars, bounded;

    if (!tr_schema_going(c) || min > max) {
        return;
    }
    tr_rules_bytes(c->b, from, '"', '"', inside);
    if (patterns == NULL && !has_format(formats)) {
        if (min == 0 && max == TR_UNBOUNDED) {
            tr_rules_call(c->b, inside, c->json.chars, to);
        } else {
            tr_rules_length(c->b, inside, c->json.chars, min, max, to);
        }
        return;
    }
    if (json_array_size(patterns) == 1 && !has_format(formats)
        && try_run(c, json_array_get(patterns, 0), min, max, inside, to)) {
        return;
    }
    if (!all_patterns(c, patterns, formats, &chars)) {
        tr_rules_length(c->b, inside, c->json.chars, min, max, to);
        return;
    }
    if (min > 0 || max != TR_UNBOUNDED) {
        tr_status_t rc = tr_chars_length(&chars, min, max, &bounded);

        tr_rules_count(c->b, bounded.work);
        if (rc == TR_OK) {
            tr_chars_free(&chars);
            chars = bounded;
        } else {
            tr_chars_free(&bounded);
            tr_schema_unsupported(c, max == TR_UNBOUNDED ? "minLength"
                                                         : "maxLength");
        }
    }
    tr_chars_rules(c->b, &chars, inside, to);
    tr_chars_free(&chars);
}

uint32_t
tr_schema_characters(const char *text, size_t len)
{
    uint32_t n = 0;

    for (size_t i = 0; i < len; i++) {
        n += ((uint8_t) text[i] & 0xc0) != 0x80;
    }
    return n;
}

void
tr_schema_name(schema_t *c, const char *name, size_t len, uint32_t from,
               uint32_t to)
{
    json_t *text = json_stringn(name, len);
    char *written = json_dumps(text, JSON_ENCODE_ANY | JSON_COMPACT);

    if (written == NULL) {
        c->rc = TR_ERR_NOMEM;
    } else {
        tr_rules_text(c->b, from, written, strlen(written), to);
    }
    free(written);
    json_decref(text);
}
