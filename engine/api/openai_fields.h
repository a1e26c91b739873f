/*
 * The table of request fields: what becomes of each.  docs/api.md has the same
 * table for users, and a test holds one against the other.
 *
 * A field that would change the answer is honoured, or refused by its name; it
 * is never dropped.  A field that only others understand (billing, caching,
 * scheduling of another server) is ignored.  So is a name that is not in the
 * table: it is an extension that we never heard of.
 */
#ifndef TR_OPENAI_FIELDS_H
#define TR_OPENAI_FIELDS_H

#include <jansson.h>
#include <stddef.h>

#include <tokenring/error.h>

enum tr_field_kind {
    TR_FIELD_SUPPORTED,
    TR_FIELD_REFUSED, /* unless its value asks for nothing */
    TR_FIELD_IGNORED
};

/* Where a field is known. */
#define TR_FIELD_CHAT 0x1u
#define TR_FIELD_COMPLETIONS 0x2u
#define TR_FIELD_BOTH 0x3u
#define TR_FIELD_MESSAGE 0x4u /* of messages[] */
#define TR_FIELD_STREAM 0x8u  /* of stream_options */
#define TR_FIELD_ANTHROPIC 0x10u
#define TR_FIELD_RESPONSES 0x20u
#define TR_FIELD_EMBEDDINGS 0x40u

typedef struct {
    const char *name;
    unsigned where; /* TR_FIELD_* */
    enum tr_field_kind kind;
    const char *why; /* REFUSED: ends the message "'NAME': ..." */
    /* REFUSED: a JSON value that asks for nothing, beside null, false, "", []
     * and {}; NULL: none; "null": nothing but null does */
    const char *harmless;
} tr_field_t;

#define TR_FIELD_ROW(name, where, kind, why, harmless)         \
    {                                                          \
        name, TR_FIELD_##where, TR_FIELD_##kind, why, harmless \
    }

/* All rows of OpenAI's chat and completions, *n of them, and of the other APIs,
 * whose fields go before those of a chat; a field without a row there is what
 * it is in a chat. */
const tr_field_t *tr_openai_fields(size_t *n);
const tr_field_t *tr_anthropic_fields(size_t *n);
const tr_field_t *tr_responses_fields(size_t *n);
const tr_field_t *tr_embeddings_fields(size_t *n);

/* Refuses the fields of object that are REFUSED in these rows. */
tr_status_t tr_fields_check(const tr_field_t *rows, size_t n,
                            const json_t *object, unsigned where,
                            const char *prefix, tr_error_t *err);

/* Refuses the fields of object that are REFUSED in `where` (one TR_FIELD_*
 * bit); prefix: of the error's param, "messages[1]." or "". */
tr_status_t tr_openai_check_fields(const json_t *object, unsigned where,
                                   const char *prefix, tr_error_t *err);

#endif
