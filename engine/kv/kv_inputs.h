/*
 * kv_inputs.h: rows from which keys and values are made again (swap_recompute).
 *
 * A layer's keys and values of a token follow from one row, the input of its QKV
 * product.  Where all heads have keys of their own, that row has half the bytes of
 * both.  So a sequence that makes way under `full` leaves its pages and keeps its
 * rows, in host memory; when it comes back, K and V are computed of them, and of
 * no row anything else (after KVPR and HCache).
 *
 * The memory is cut into chunks of TR_KV_INPUTS_TOKENS tokens, all layers.  The
 * scheduler says which chunk a sequence's tokens have, executors write and read
 * rows.  The step loop is the only caller of what takes and gives.
 */
#ifndef TR_KV_INPUTS_H
#define TR_KV_INPUTS_H

#include <stddef.h>
#include <stdint.h>

#include <tokenring/error.h>

#define TR_KV_INPUTS_TOKENS 64u

typedef struct {
    uint8_t *memory; /* [chunks][layers][TR_KV_INPUTS_TOKENS] rows; borrowed */
    uint32_t chunks, layers;
    size_t row_bytes;
    uint32_t *next; /* [chunks] of those that are free, and 1; 0: the last */
    uint32_t first, n_free;
    uint64_t returned; /* tokens whose keys and values were made of rows */
} tr_kv_inputs_t;

static inline size_t
tr_kv_inputs_chunk_bytes(uint32_t layers, size_t row_bytes)
{
    return (size_t) layers * TR_KV_INPUTS_TOKENS * row_bytes;
}

/* memory: of so many bytes, which stay the caller's.  *err names
 * swap_memory. */
tr_status_t tr_kv_inputs_open(tr_kv_inputs_t *in, uint8_t *memory,
                              uint64_t bytes, uint32_t layers, size_t row_bytes,
                              tr_error_t *err);
void tr_kv_inputs_close(tr_kv_inputs_t *in);

/* A chunk, and 1; 0: none is left. */
uint32_t tr_kv_inputs_take(tr_kv_inputs_t *in);
void tr_kv_inputs_give(tr_kv_inputs_t *in, uint32_t chunk);

/* The row of a token at this position, whose sequence has these chunks. */
static inline uint8_t *
tr_kv_inputs_row(const tr_kv_inputs_t *in, const uint32_t *chunks, uint32_t pos,
                 uint32_t layer)
{
    size_t chunk = chunks[pos / TR_KV_INPUTS_TOKENS] - 1;

    return in->memory
           + ((chunk * in->layers + layer) * TR_KV_INPUTS_TOKENS
              + pos % TR_KV_INPUTS_TOKENS)
                 * in->row_bytes;
}

#endif
