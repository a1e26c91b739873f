/*
 * kernels.h: the one interface to what computes.
 *
 * This folder knows nobody: it takes pointers, shapes and tables.  cpu/ holds
 * the C implementations, cuda/ (later) the same behind a C ABI.
 */
#ifndef TR_KERNELS_H
#define TR_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Where cached keys and values lie.  The pool is an array of equal pages; the
 * table of (slot, layer, list) names the pages of its tokens in order, token
 * position p being in entry p / page_tokens at index p % page_tokens.  A 16-bit
 * page holds keys, FP16 [page_tokens][head_dim], then values, FP16
 * [page_tokens][head_dim].  lists = KV heads.  All borrowed from the KV cache.
 */
typedef struct {
    uint8_t *pool;         /* [pages * page_bytes], 64-byte aligned */
    uint64_t page_bytes;
    uint32_t page_tokens;
    uint32_t layers, lists, head_dim;
    const int32_t *tables; /* [slots][layers][lists][table_len], page ids */
    uint32_t table_len;
} tr_kv_view_t;

static inline const int32_t *
tr_kv_table(const tr_kv_view_t *v, int32_t slot, uint32_t layer, uint32_t list)
{
    return v->tables
           + (((size_t) slot * v->layers + layer) * v->lists + list)
                 * v->table_len;
}

#endif
