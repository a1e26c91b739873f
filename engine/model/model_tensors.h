/*
 * The tensors of a model: names, shapes, and where each belongs.
 *
 * Query, key and value rows form one matrix, gate and up rows another; what a
 * backend keeps is a list of such parts.  This is the one place that knows what
 * Hugging Face's files call them; both backends load what it lists, in its
 * order.
 */
#ifndef TR_MODEL_TENSORS_H
#define TR_MODEL_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "model_config.h"
#include "safetensors.h"

#define TR_TENSOR_NAME 128

/* What a backend keeps: matrices [outputs][inputs], then vectors. */
typedef enum {
    TR_PART_EMBED, /* the head, too, when they are tied */
    TR_PART_HEAD,
    TR_PART_QKV,
    TR_PART_O,
    TR_PART_GATE_UP,
    TR_PART_DOWN,
    TR_PART_FINAL_NORM,
    TR_PART_INPUT_NORM,
    TR_PART_POST_NORM,
    TR_PART_Q_NORM,
    TR_PART_K_NORM,
    TR_PART_QKV_BIAS,
    TR_PART_O_BIAS,
    TR_PARTS
} tr_part_t;

#define TR_PART_MATRICES TR_PART_FINAL_NORM

/* Is there one of it in every layer? */
static inline bool
tr_part_layered(tr_part_t part)
{
    return part != TR_PART_EMBED && part != TR_PART_HEAD
           && part != TR_PART_FINAL_NORM;
}

/* Rows and columns (1 of a vector); {0, 0}: the model has no such part. */
typedef struct {
    uint32_t rows, columns;
} tr_part_shape_t;

tr_part_shape_t tr_part_shape(const tr_model_config_t *c, tr_part_t part);

typedef struct {
    char name[TR_TENSOR_NAME];
    tr_part_t part;
    uint32_t layer;   /* 0 where there are none */
    uint32_t row;     /* of the part, where the tensor begins */
    uint32_t rows;    /* of the tensor */
    uint32_t columns; /* as the part's */
} tr_model_tensor_t;

/* The i-th tensor; false: there are no more. */
bool tr_model_tensor(const tr_model_config_t *c, uint32_t i,
                     tr_model_tensor_t *out);

/* Finds it in the files; TR_ERR_FORMAT: missing, or of another shape. */
tr_status_t tr_model_tensor_find(const tr_safetensors_t *st,
                                 const tr_model_tensor_t *tensor,
                                 const tr_tensor_t **out, tr_error_t *err);

/* load_format dummy: element i of a tensor is a function of (tensor_seed, i)
 * alone, the same on every machine and backend: uniform, with standard
 * deviation sd. */
uint64_t tr_model_tensor_seed(uint64_t seed, const char *name);
void tr_model_fill_random(float *x, size_t n, uint64_t seed, uint64_t first,
                          float sd);

#endif
