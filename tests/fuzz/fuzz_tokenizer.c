/*
 * Fuzzes the tokenizer's loader: the input is tokenizer.json.  One that loads
 * must also encode and decode a text with a bit of everything.
 */
#include <string.h>

#include "fuzz_file.h"
#include "engine/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] = "Hello  world 123\n\t\xc3\xa9\xe2\x82\xac"
                           "\xf0\x9f\x98\x80 <s> </s> don't";

static void
encode_and_decode(const tr_tokenizer_t *t)
{
    tr_tokenizer_scratch_t *s = tr_tokenizer_scratch_new(t);
    tr_ids_t ids = { NULL, 0, 0 };
    tr_error_t err;
    tr_detok_t d;
    uint32_t i;

    if (s == NULL) {
        return;
    }
    if (tr_tokenizer_encode(t, s, text, sizeof(text) - 1, TR_ENCODE_SPECIAL,
                            &ids, &err)
        == TR_OK) {
        tr_detok_init(&d, false);
        for (i = 0; i < ids.len; i++) {
            uint32_t len;
            char *out;

            tr_tokenizer_token_bytes(t, ids.data[i], &len);
            out = malloc((size_t) len * 3 + 16);
            tr_detok_push(&d, t, ids.data[i], out, len * 3 + 16);
            free(out);
        }
    }
    free(ids.data);
    tr_tokenizer_scratch_free(s);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *dir = fuzz_file_write("tokenizer.json", data, size);
    tr_tokenizer_t *t;
    tr_error_t err;

    if (tr_tokenizer_load(dir, &t, &err) != TR_OK) {
        if (t != NULL || err.status >= 0 || err.text[0] == '\0') {
            abort(); /* a refusal without a reason */
        }
        return 0;
    }
    encode_and_decode(t);
    tr_tokenizer_free(t);
    return 0;
}
