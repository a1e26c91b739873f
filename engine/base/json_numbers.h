/*
 * Integers of any size in JSON.
 *
 * JSON has them, agents' calls and tools' schemas have them, and jansson refuses
 * those beyond 64 bits.  Here they become decimal numbers, which are as close as
 * 64 bits of floating point are.
 */
#ifndef TR_JSON_NUMBERS_H
#define TR_JSON_NUMBERS_H

#include <stddef.h>

/* A copy of the JSON in which each integer beyond 64 bits that stands in at least
 * `depth` brackets ends with ".0"; malloc'ed, *out_len bytes.  NULL: there is none,
 * or no memory. */
char *tr_json_round(const char *text, size_t len, unsigned depth,
                    size_t *out_len);

#endif
