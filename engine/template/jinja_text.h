/*
 * Characters, and what Python's str does with them.  Positions are bytes unless
 * a name says characters; a text that is plain ASCII is never walked for them.
 */
#ifndef TR_JINJA_TEXT_H
#define TR_JINJA_TEXT_H

#include "jinja_value.h"

/* p: at a character of valid UTF-8, or at the NUL behind a source. */
bool tr_jinja_space(const char *p, uint32_t *len); /* as str.isspace */
bool tr_jinja_word(const char *p, uint32_t *len);  /* of an identifier */
/* Does repr() show it as it is?  Otherwise its escape is in out. */
bool tr_jinja_printable(const char *p, char out[16]);
uint32_t tr_jinja_char_bytes(const char *p);
uint32_t tr_jinja_valid(const char *p, size_t len); /* 0: not UTF-8 */

/* Byte position of character i, which may be the end. */
size_t tr_jinja_offset(string_t *s, uint32_t i);
/* Characters before byte `at`. */
uint32_t tr_jinja_index(string_t *s, size_t at);

/* Is the text nothing but up to nine digits?  Their number. */
bool tr_jinja_digits(const string_t *s, int64_t *out);

/* First occurrence at or after `from`, SIZE_MAX for none. */
size_t tr_jinja_find_text(const string_t *s, size_t from, const string_t *what);
size_t tr_jinja_find_last(const string_t *s, size_t to, const string_t *what);

/* chars NULL: white space. */
string_t *tr_jinja_strip(tr_jinja_arena_t *a, string_t *s,
                         const string_t *chars, bool left, bool right);
string_t *tr_jinja_replace(tr_jinja_arena_t *a, string_t *s, string_t *old,
                           string_t *by, int64_t count);
/* sep NULL: white space; from the right or the left; most < 0: no bound. */
list_t *tr_jinja_split(tr_jinja_arena_t *a, string_t *s, string_t *sep,
                       int64_t most, bool right);
list_t *tr_jinja_split_lines(tr_jinja_arena_t *a, string_t *s, bool keep);
string_t *tr_jinja_repeat(tr_jinja_arena_t *a, string_t *s, int64_t n);
string_t *tr_jinja_escape_html(tr_jinja_arena_t *a, string_t *s);

enum letter_case {
    CASE_UPPER,
    CASE_LOWER,
    CASE_CAPITAL,     /* str.capitalize */
    CASE_TITLE,       /* str.title */
    CASE_TITLE_FILTER /* the filter's, which has words of its own */
};
string_t *tr_jinja_case(tr_jinja_arena_t *a, string_t *s, enum letter_case c);

#endif
