/*
 * Fuzzes the safetensors reader: the input is model.safetensors.  Every tensor
 * that an accepted file offers is read to its last byte.
 */
#include <stdint.h>

#include "fuzz_file.h"
#include "engine/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink; /* for reads that nobody else wants */

static const char *const names[] = { "a", "b", "w", "weight" };

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *dir = fuzz_file_write("model.safetensors", data, size);
    tr_safetensors_t *st;
    tr_error_t err;
    size_t i;

    if (tr_safetensors_open(dir, &st, &err) != TR_OK) {
        if (err.status >= 0 || err.text[0] == '\0') {
            abort(); /* a refusal without a reason */
        }
        return 0;
    }
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const tr_tensor_t *t = tr_safetensors_find(st, names[i]);

        if (t != NULL && t->size != 0) {
            sink += ((const uint8_t *) t->data)[0];
            sink += ((const uint8_t *) t->data)[t->size - 1];
        }
    }
    tr_safetensors_close(st);
    return 0;
}
