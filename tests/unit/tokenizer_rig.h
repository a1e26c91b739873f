/*
 * Small tokenizers for tests: tokenizer.json from pieces of text, in a
 * directory that is gone when the call returns.
 */
#ifndef TR_TEST_TOKENIZER_RIG_H
#define TR_TEST_TOKENIZER_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tokenizer.h"

/* Writes dir/name. */
static inline void
rig_write(const char *dir, const char *name, const char *text, size_t len)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static inline void
rig_remove(const char *dir, const char *name)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    unlink(path);
}

/* Loads a file of these bytes. */
static inline tr_status_t
rig_load(const char *json, size_t len, tr_tokenizer_t **out, tr_error_t *err)
{
    char dir[] = "/tmp/tr_tokenizer_XXXXXX";
    tr_status_t rc;

    memset(err, 0, sizeof(*err));
    assert_non_null(mkdtemp(dir));
    rig_write(dir, "tokenizer.json", json, len);
    rc = tr_tokenizer_load(dir, out, err);
    rig_remove(dir, "tokenizer.json");
    rmdir(dir);
    assert_true((rc == TR_OK) == (*out != NULL));
    assert_true(rc == TR_OK || err->status == rc);
    return rc;
}

/* The character that a byte-level file writes for a byte, as UTF-8. */
static inline int
rig_byte_char(int byte, char *out)
{
    int c, n = 0;

    for (int b = 0; b < byte; b++) {
        n += !((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac)
               || b >= 0xae);
    }
    c = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac)
                || byte >= 0xae
            ? byte
            : 0x100 + n;
    if (c < 0x80) {
        out[0] = (char) c;
        return 1;
    }
    out[0] = (char) (0xc0 | c >> 6);
    out[1] = (char) (0x80 | (c & 0x3f));
    return 2;
}

/* A JSON object of vocabulary: the 256 bytes as ids 0 to 255, then the given
 * entries, such as "\"ab\": 256". */
static inline void
rig_byte_vocab(char *out, size_t cap, const char *more)
{
    size_t n = 0;

    for (int b = 0; b < 256; b++) {
        char c[3] = { 0 };

        rig_byte_char(b, c);
        n += (size_t) snprintf(out + n, cap - n, "\"%s%s\": %d, ",
                               c[0] == '"' || c[0] == '\\' ? "\\" : "", c, b);
    }
    n -= *more == '\0' ? 2 : 0;
    n += (size_t) snprintf(out + n, cap - n, "%s", more);
    assert_true(n < cap);
}

/* What differs between test tokenizers; NULL is JSON null or []. */
typedef struct {
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder;
    const char *added, *vocab, *merges, *options;
} rig_parts_t;

#define RIG_BYTE_LEVEL "{\"type\": \"ByteLevel\", \"use_regex\": false}"

/* vocab NULL: the 256 bytes. */
static inline tr_status_t
rig_build(const rig_parts_t *p, tr_tokenizer_t **out, tr_error_t *err)
{
    static char vocab[16384], json[65536];
    int n;

    rig_byte_vocab(vocab, sizeof(vocab), "");
    n = snprintf(json, sizeof(json),
                 "{\"normalizer\": %s, \"pre_tokenizer\": %s, "
                 "\"post_processor\": %s, \"decoder\": %s, "
                 "\"added_tokens\": [%s], \"model\": {\"type\": \"BPE\", "
                 "\"vocab\": {%s}, \"merges\": [%s]%s%s}}",
                 p->normalizer ? p->normalizer : "null",
                 p->pre_tokenizer ? p->pre_tokenizer : "null",
                 p->post_processor ? p->post_processor : "null",
                 p->decoder ? p->decoder : "{\"type\": \"ByteLevel\"}",
                 p->added ? p->added : "", p->vocab ? p->vocab : vocab,
                 p->merges ? p->merges : "", p->options ? ", " : "",
                 p->options ? p->options : "");
    assert_true(n > 0 && (size_t) n < sizeof(json));
    return rig_load(json, (size_t) n, out, err);
}

static inline tr_tokenizer_t *
rig_make(rig_parts_t p)
{
    tr_tokenizer_t *t;
    tr_error_t err;

    if (rig_build(&p, &t, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    return t;
}

#endif
