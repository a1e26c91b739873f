/*
 * The script of backend null: what its sequences say, given as token ids.
 *
 * `null_script PATH` names a file with one answer per line, ids separated by
 * spaces.  Sequences take the lines in the order of their first tokens, and start
 * over after the last one; after its line, a sequence continues as backend null
 * does without a script.  So a test can have any answer, through the same path as
 * a real one: detokeniser, dialect, rings, HTTP.
 */
#ifndef TR_NULL_SCRIPT_H
#define TR_NULL_SCRIPT_H

#include <stdint.h>

#include <tokenring/error.h>

typedef struct tr_null_script tr_null_script_t;

/* slots: of the KV cache.  An id beyond vocab, an empty file and an empty line
 * are refused.  *out is freed with tr_null_script_free. */
tr_status_t tr_null_script_open(const char *path, uint32_t vocab,
                                uint32_t slots, tr_null_script_t **out,
                                tr_error_t *err);
void tr_null_script_free(tr_null_script_t *s);

/* Token number n (from 0) of the sequence in this slot, -1: its line is over. */
int32_t tr_null_script_token(tr_null_script_t *s, uint32_t slot, uint32_t n);

#endif
