/*
 * Reads safetensors: the file formats that Hugging Face directories hold
 * weights in, one file or shards named by an index.
 *
 * A file is { u64 header length, JSON header, data }; the header maps a name to
 * { dtype, shape, data_offsets }.  Files are mapped, never copied; a fault in them
 * has the file's name (engine/base/mapped_file.h).  They are hostile until checked: after a successful open every tensor's data lies
 * inside its file, is as long as dtype and shape say, and overlaps no other.
 * A tensor of a dtype that we do not read may be there, as long as nobody asks
 * for it (tr_model_tensor_find).
 *
 * Quantised weights are several tensors of a file.  weights/packed.h adds one to
 * the reader that stands for all of them: it has no data of its own, and what is
 * read of it is made when it is read.  Experts in one tensor become one each
 * (model_stacked.h).
 */
#ifndef TR_SAFETENSORS_H
#define TR_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include <tokenring/error.h>

#define TR_TENSOR_DIMS 8

/* What a file says of a tensor's elements. */
typedef enum {
    TR_STORED_FLOAT, /* `dtype` says which */
    TR_STORED_F8_E4M3,
    TR_STORED_F8_E8M0,
    TR_STORED_U8,
    TR_STORED_I8,
    TR_STORED_I32,
    TR_STORED_I64,
    TR_STORED_OTHER /* nothing that we read */
} tr_stored_t;

struct tr_packed; /* weights/packed.h */

typedef struct tr_tensor {
    const char *name; /* owned by the reader */
    tr_stored_t stored;
    tr_dtype_t dtype; /* of TR_STORED_FLOAT, and of what is made of packed */
    char other[16];   /* the name of a dtype that is none of these, "": it is */
    uint32_t n_dims;
    uint64_t dims[TR_TENSOR_DIMS];
    const void *data; /* in the mapped file; no alignment is promised.  NULL:
                       * packed */
    uint64_t size;    /* bytes */
    const char *file; /* base name, for messages */
    const struct tr_packed *packed; /* what its elements are made of, or NULL */
    const struct tr_tensor *whole;  /* of which it is a part, or NULL */
} tr_tensor_t;

typedef struct tr_safetensors tr_safetensors_t;

/* Opens dir/model.safetensors, else the shards of
 * dir/model.safetensors.index.json. */
tr_status_t tr_safetensors_open(const char *dir, tr_safetensors_t **out,
                                tr_error_t *err);
void tr_safetensors_close(tr_safetensors_t *st);

/* Bytes of all tensors that tr_safetensors_open(dir) finds; 0: it finds none.
 * Other files that lie there are not counted: a directory often has its weights
 * a second time, in another form. */
uint64_t tr_safetensors_bytes(const char *dir);

/* Adds tensors that stand for several, or are a part of one; find() prefers them to those of the files.
 * The array is taken, with its names and what they are packed of, all from malloc.
 * At most once. */
void tr_safetensors_add(tr_safetensors_t *st, tr_tensor_t *added, uint32_t n);

/* Those of the files. */
uint32_t tr_safetensors_count(const tr_safetensors_t *st);
/* i below the count, by name */
const tr_tensor_t *tr_safetensors_at(const tr_safetensors_t *st, uint32_t i);
/* NULL when there is none of that name. */
const tr_tensor_t *tr_safetensors_find(const tr_safetensors_t *st,
                                       const char *name);

/* Elements [first, first + n), in the file's order, to FP32, exactly.  Of a float
 * or packed tensor. */
void tr_tensor_read(const tr_tensor_t *t, size_t first, size_t n, float *out);

/* TR_ERR_FORMAT when it is a packed tensor with codes that are no numbers: reads
 * all of them, so it is called where they are loaded. */
tr_status_t tr_tensor_check(const tr_tensor_t *t, tr_error_t *err);

/* Element i. */
static inline float
tr_tensor_at(const tr_tensor_t *t, size_t i)
{
    float x;

    if (t->packed == NULL) {
        return tr_float_load(t->data, i, t->dtype);
    }
    tr_tensor_read(t, i, 1, &x);
    return x;
}

/* Reads the tensor's part of the file into memory, where it may stay mapped, as
 * its data, until the reader is closed.  TR_ERR_IO: the file has been cut off, or
 * cannot be read. */
tr_status_t tr_safetensors_keep(const tr_tensor_t *t, tr_error_t *err);

/* The tensor was read and will not be needed again soon: its file pages no
 * longer count as resident. */
void tr_safetensors_release(const tr_tensor_t *t);

#endif
