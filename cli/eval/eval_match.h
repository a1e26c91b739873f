/*
 * Is a reply right?  By the match rule of its case:
 *
 *   exact     all of it is the answer
 *   final     what follows the last "Answer: " is
 *   contains  every "|"-separated word of the answer occurs in it
 *   number    its last number equals the answer's: 1,234.50 is 1234.5; signs of
 *             currency, percent signs and units around it do not count
 *   regex     the answer is a regular expression (PCRE2) that finds something
 *             in it
 *
 * Blanks around a reply never count, as in models/pocket/evaluate.py.  Patterns
 * come with question sets from anywhere: their length, and the work and memory
 * of a match, are bounded.
 */
#ifndef TR_EVAL_MATCH_H
#define TR_EVAL_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#define TR_EVAL_PATTERN_MAX 8192u

typedef enum {
    TR_MATCH_EXACT,
    TR_MATCH_FINAL,
    TR_MATCH_CONTAINS,
    TR_MATCH_NUMBER,
    TR_MATCH_REGEX
} tr_eval_match_t;

/* "exact", ..; false: no such rule. */
bool tr_eval_match_named(const char *name, tr_eval_match_t *out);
/* "\"exact\", \"final\", .." for messages */
extern const char tr_eval_match_names[];

/* Does the answer make sense for the rule?  If not, `expected` says what
 * would. */
bool tr_eval_match_check(tr_eval_match_t rule, const char *answer,
                         char *expected, size_t size);

/* reply: len bytes, not terminated.  A pattern that takes more work than is
 * allowed finds nothing, and a warning in the log says so. */
bool tr_eval_right(tr_eval_match_t rule, const char *answer, const char *reply,
                   size_t len);

#endif
