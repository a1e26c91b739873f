/*
 * What the files that read JSON schemas share:
 *
 *   schema.c          the order of things: references, alternatives, types
 *   schema_merge.c    allOf, and what stands beside a reference: one flat schema
 *   schema_holds.c    does a value of an enum keep the rest of its schema?
 *   schema_strings.c  strings: lengths, patterns, formats
 *   schema_formats.c  formats as regular expressions
 *   schema_numbers.c  integers and numbers with bounds and multiples
 *   schema_objects.c  objects
 *   schema_arrays.c   arrays
 *
 * A flat schema has neither allOf nor $ref.  Keys of our own, which no schema
 * can have (they begin with a NUL-free "\x01"): see SCHEMA_*.
 */
#ifndef TR_SCHEMA_INTERNAL_H
#define TR_SCHEMA_INTERNAL_H

#include <jansson.h>

#include "engine/config/log.h"
#include "grammar_internal.h"

#define SCHEMA_NEVER "\x01never"       /* true: nothing matches */
#define SCHEMA_PATTERNS "\x01patterns" /* all of them hold */
#define SCHEMA_FORMATS \
    "\x01"             \
    "formats"
#define SCHEMA_CHOICES \
    "\x01"             \
    "choices" /* lists of alternatives; one of each */

#define SCHEMA_DEPTH 64
#define SCHEMA_PROPERTIES 5000u
#define SCHEMA_ENUM 10000u

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_OBJECT = 4,
    TYPE_ARRAY = 8,
    TYPE_NUMBER = 16,  /* any number */
    TYPE_INTEGER = 32, /* of those, integers alone, when NUMBER is not set */
    TYPE_STRING = 64,
    TYPE_ALL = 1 | 2 | 4 | 8 | 16 | 64
};

typedef struct {
    const json_t *schema;
    uint32_t rule;
} schema_rule_t;

typedef struct {
    tr_rules_t *b;
    const tr_grammar_spec_t *spec;
    json_t *root;
    json_t *made; /* array: schemas that merging made, until the end */
    size_t kept;  /* bytes of them, about */
    enum { INNER_ID_UNKNOWN, INNER_ID_NO, INNER_ID_YES } inner_id;
    /* the last pattern that values were held against; NULL: none */
    const json_t *pattern;
    tr_chars_t pattern_chars;
    tr_json_rules_t json;
    schema_rule_t *rules; /* references; compiled from `done` on */
    uint32_t n_rules, cap_rules, done;
    uint32_t n_properties, n_enum;
    int depth;
    bool draft7; /* or older: nothing counts beside a reference */
    uint32_t *dropped;
    char path[256]; /* JSON pointer of what is being compiled */
    tr_error_t *err;
    tr_status_t rc;
} schema_t;

/* Not failed yet? */
bool tr_schema_going(const schema_t *c);
/* The schema is none: refused always. */
void tr_schema_invalid(schema_t *c, const char *what);
/* A keyword that is not held: refused, or dropped and counted. */
void tr_schema_unsupported(schema_t *c, const char *keyword);
/* The path goes down by a keyword and perhaps a name; returns what to restore
 * it with. */
size_t tr_schema_enter(schema_t *c, const char *keyword, const char *name);
void tr_schema_leave(schema_t *c, size_t mark);

/* Compiles any schema between two states. */
void tr_schema_any(schema_t *c, json_t *schema, uint32_t from, uint32_t to);
/* The rule of a schema, compiled once, at the end. */
uint32_t tr_schema_rule(schema_t *c, json_t *schema);
/* What a local reference means; NULL: nothing (unsupported was said). */
json_t *tr_schema_target(schema_t *c, const char *ref);
unsigned tr_schema_types(schema_t *c, const json_t *flat);

/* Are alternatives apart by type, by values, or by the values of a property
 * that all of them need? */
bool tr_schema_all_apart(schema_t *c, json_t *list);

/* Does it say anything of values? */
bool tr_schema_says(const json_t *schema, const char *except);
/* Borrowed; NULL after a failure. */
json_t *tr_schema_flat(schema_t *c, json_t *schema, int depth);
json_t *tr_schema_merge(schema_t *c, json_t *a, json_t *b);
/* Keeps what was made until the end. */
json_t *tr_schema_keep(schema_t *c, json_t *made);

enum { HOLDS_NO, HOLDS_YES, HOLDS_UNKNOWN };
int tr_schema_holds(schema_t *c, json_t *flat, json_t *value, int depth);
bool tr_schema_equal(const json_t *a, const json_t *b);
/* All of a text's characters. */
uint32_t tr_schema_characters(const char *text, size_t len);
/* pattern to an automaton; false: refused or dropped. */
bool tr_schema_pattern(schema_t *c, const char *keyword, const json_t *pattern,
                       tr_chars_t *out);

void tr_schema_string(schema_t *c, json_t *flat, uint32_t from, uint32_t to);
void tr_schema_number(schema_t *c, json_t *flat, bool integer, uint32_t from,
                      uint32_t to);
void tr_schema_object(schema_t *c, json_t *flat, uint32_t from, uint32_t to);
void tr_schema_array(schema_t *c, json_t *flat, uint32_t from, uint32_t to);
void tr_schema_value(schema_t *c, const json_t *value, uint32_t from,
                     uint32_t to);
/* The expression of a known format, else NULL. */
const char *tr_schema_format(const char *name);
/* Name of a member and its quotes, from `from` to `to`. */
void tr_schema_name(schema_t *c, const char *name, size_t len, uint32_t from,
                    uint32_t to);

/* A count: minItems etc.; not there: otherwise. */
uint32_t tr_schema_count(schema_t *c, const json_t *flat, const char *key,
                         uint32_t otherwise);

#endif
