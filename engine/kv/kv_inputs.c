/*
 * Chunks of host memory for rows (kv_inputs.h).
 */
#include "kv_inputs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

tr_status_t
tr_kv_inputs_open(tr_kv_inputs_t *in, uint8_t *memory, uint64_t bytes,
                  uint32_t layers, size_t row_bytes, tr_error_t *err)
{
    size_t each = tr_kv_inputs_chunk_bytes(layers, row_bytes);
    uint64_t chunks = bytes / each;

    memset(in, 0, sizeof(*in));
    chunks = chunks < INT32_MAX ? chunks : INT32_MAX;
    if (chunks == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "swap_memory",
                            "swap_memory %llu: with swap_recompute %u tokens"
                            " take %zu bytes, expected more",
                            (unsigned long long) bytes, TR_KV_INPUTS_TOKENS,
                            each);
    }
    in->next = calloc(chunks + 1, sizeof(*in->next));
    if (in->next == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "swap_memory", "no memory");
    }
    in->memory = memory;
    in->chunks = in->n_free = (uint32_t) chunks;
    in->layers = layers;
    in->row_bytes = row_bytes;
    in->first = 1;
    for (uint32_t i = 1; i < in->chunks; i++) {
        in->next[i - 1] = i + 1;
    }
    return TR_OK;
}

void
tr_kv_inputs_close(tr_kv_inputs_t *in)
{
    free(in->next);
    memset(in, 0, sizeof(*in));
}

uint32_t
tr_kv_inputs_take(tr_kv_inputs_t *in)
{
    uint32_t chunk = in->first;

    if (chunk != 0) {
        in->first = in->next[chunk - 1];
        in->n_free--;
    }
    return chunk;
}

void
tr_kv_inputs_give(tr_kv_inputs_t *in, uint32_t chunk)
{
    assert(chunk != 0 && chunk <= in->chunks && in->n_free < in->chunks);
    in->next[chunk - 1] = in->first;
    in->first = chunk;
    in->n_free++;
}
