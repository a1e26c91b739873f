/*
 * Reads safetensors: the file formats that Hugging Face directories hold
 * weights in, one file or shards named by an index.
 *
 * A file is { u64 header length, JSON header, data }; the header maps a name to
 * { dtype, shape, data_offsets }.  Files are mapped, never copied.  They are
 * hostile until checked: after a successful open every tensor's data lies
 * inside its file, is as long as dtype and shape say, and overlaps no other.
 * A tensor of a dtype that we do not read may be there, as long as nobody asks
 * for it (tr_model_tensor_find).
 */
#ifndef TR_SAFETENSORS_H
#define TR_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include <tokenring/error.h>

#define TR_TENSOR_DIMS 8

typedef struct {
    const char *name; /* owned by the reader */
    tr_dtype_t dtype;
    char other[16]; /* the name of another dtype, of which we read nothing; "":
                     * it is `dtype` */
    uint32_t n_dims;
    uint64_t dims[TR_TENSOR_DIMS];
    const void *data; /* in the mapped file; no alignment is promised */
    uint64_t size;    /* bytes */
    const char *file; /* base name, for messages */
} tr_tensor_t;

typedef struct tr_safetensors tr_safetensors_t;

/* Opens dir/model.safetensors, else the shards of
 * dir/model.safetensors.index.json. */
tr_status_t tr_safetensors_open(const char *dir, tr_safetensors_t **out,
                                tr_error_t *err);
void tr_safetensors_close(tr_safetensors_t *st);

uint32_t tr_safetensors_count(const tr_safetensors_t *st);
/* i below the count, by name */
const tr_tensor_t *tr_safetensors_at(const tr_safetensors_t *st, uint32_t i);
/* NULL when there is none of that name. */
const tr_tensor_t *tr_safetensors_find(const tr_safetensors_t *st,
                                       const char *name);

/* Converts all elements to FP32, exactly. */
void tr_tensor_expand(const tr_tensor_t *t, float *out);

/* The tensor was read and will not be needed again soon: its file pages no
 * longer count as resident. */
void tr_safetensors_release(const tr_tensor_t *t);

#endif
