/*
 * Fuzzes constrained decoding.  The first byte of an input says what the rest is:
 * a schema, a regular expression, choices or a grammar.  Whatever it is, it is
 * compiled or refused in words; then each token of its masks is accepted, no
 * other one of a sample is, and a mask is never empty.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define STEPS 12
#define END 290

static tr_vocabulary_t *vocabulary;
static tr_grammar_scratch_t *scratch;
static void *memory;

/* All bytes, and some tokens that cross the borders of rules. */
static const char *
bytes_of(void *arg, int32_t id, uint32_t *len)
{
    static const char *const more[] = {
        "\"}",          "\",\"",    "\":",   "{\"",  "]}",     "\"\"",
        "\\\"",         "\\u00",    "\n  ",  "true", "null",   "12",
        "345678901234", "-1.",      "}}",    "[[",   "aa",     "abc",
        "\xc3",         "\xe2\x82", "\xac,", "aaaa", "\": \"", "],"
    };
    static char byte[1];

    (void) arg;
    if (id < 256) {
        byte[0] = (char) id;
        *len = 1;
        return byte;
    }
    if ((size_t) id - 256 < sizeof(more) / sizeof(more[0])) {
        *len = (uint32_t) strlen(more[id - 256]);
        return more[id - 256];
    }
    *len = 0;
    return "";
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void) argc;
    (void) argv;
    vocabulary = tr_vocabulary_new(END + 1, bytes_of, NULL);
    scratch = tr_grammar_scratch_new(vocabulary);
    memory = malloc(tr_frame_pool_size(2));
    return 0;
}

static void
check(tr_grammar_t *g, unsigned seed)
{
    const int32_t end = END;
    uint32_t mask[(END + 32) / 32];
    tr_matcher_t m, copy;

    if (tr_matcher_init(&m, g, tr_frame_pool_init(memory, 2)) != TR_OK) {
        return;
    }
    for (int i = 0; i < STEPS; i++) {
        int32_t token = -1, first = rand_r(&seed) % END;
        tr_status_t rc = tr_matcher_mask(&m, scratch, &end, 1, mask);

        if (rc != TR_OK) {
            break; /* a limit; an empty mask is no such thing, but says so */
        }
        for (int32_t k = 0; k < END; k++) {
            int32_t id = (first + k) % END;
            bool allowed = (mask[id / 32] >> (id % 32) & 1) != 0;

            tr_matcher_fork(&copy, &m);
            rc = tr_matcher_token(&copy, scratch, id);
            tr_matcher_drop(&copy);
            if (rc != TR_ERR_UNSUPPORTED && (rc == TR_OK) != allowed) {
                abort();
            }
            token = allowed && rc == TR_OK ? id : token;
        }
        if (token < 0 || tr_matcher_token(&m, scratch, token) != TR_OK) {
            if (token < 0 && !m.can_end) {
                abort(); /* nothing could come */
            }
            break;
        }
    }
    tr_matcher_drop(&m);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum tr_grammar_kind kinds[] = {
        TR_GRAMMAR_SCHEMA, TR_GRAMMAR_REGEX, TR_GRAMMAR_EBNF, TR_GRAMMAR_CHOICE,
        TR_GRAMMAR_SCHEMA
    };
    tr_grammar_spec_t spec = { .param = "field" };
    tr_error_t err = { 0 };
    tr_grammar_t *g;
    char *text;

    if (size < 1) {
        return 0;
    }
    text = malloc(size); /* exactly: sanitizers see more */
    memcpy(text, data + 1, size - 1);
    spec.kind = kinds[data[0] % 5];
    spec.flags = data[0] % 5 == 4 ? 0 : TR_GRAMMAR_REFUSE;
    spec.text = text;
    spec.len = size - 1;
    if (tr_grammar_compile(vocabulary, &spec, &g, &err) == TR_OK) {
        check(g, (unsigned) size);
        tr_grammar_unref(g);
    } else if (err.text[0] == '\0') {
        abort();
    }
    free(text);
    return 0;
}
