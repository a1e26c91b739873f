/*
 * JSON for request bodies: parsing a hostile body, and reading checked values
 * out of it.  An absent field and a null one are the same everywhere: the
 * getters leave *out untouched and return TR_OK.  Errors carry OpenAI's wording
 * and name the field in err->param.
 */
#ifndef TR_OPENAI_JSON_H
#define TR_OPENAI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>
#include <tokenring/error.h>

/* Once per process, before the first parse: memory of a parse is counted. */
void tr_json_init(void);

/* Parses a body into *root (an object, the caller's, json_decref).  The values
 * may take up to a fixed multiple of the body's size: a body made of millions
 * of empty arrays is refused before it has eaten the machine. */
tr_status_t tr_json_parse(const char *body, size_t len, json_t **root,
                          tr_error_t *err);

/* Offset of the first byte that is not UTF-8, len if there is none. */
size_t tr_utf8_check(const char *text, size_t len);

/* The field, NULL when absent or null. */
json_t *tr_json_field(const json_t *object, const char *name);

/* "a string", "an array", ... for messages. */
const char *tr_json_type(const json_t *value);

tr_status_t tr_json_wrong_type(tr_error_t *err, const char *param,
                               const char *expected, const json_t *got);

/* The same where an integer was expected; says the value of a decimal number. */
tr_status_t tr_json_not_integer(tr_error_t *err, const char *param,
                                const json_t *got);

tr_status_t tr_json_bool(const json_t *object, const char *name, bool *out,
                         tr_error_t *err);
tr_status_t tr_json_integer(const json_t *object, const char *name, int64_t min,
                            int64_t max, int64_t *out, tr_error_t *err);
tr_status_t tr_json_number(const json_t *object, const char *name, double min,
                           double max, float *out, tr_error_t *err);

#endif
