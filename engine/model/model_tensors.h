/*
 * The tensors of a model: where each belongs in a backend's parts
 * (model_recipe.h), and what it is called in the files.
 *
 * The names are those of the family (model_families.c).  Both backends load what
 * is listed here, in its order.
 */
#ifndef TR_MODEL_TENSORS_H
#define TR_MODEL_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "model_config.h"
#include "safetensors.h"

#define TR_TENSOR_NAME 128

typedef struct {
    char name[TR_TENSOR_NAME];
    tr_part_t part;
    uint32_t layer;   /* 0 where there are none */
    uint32_t row;     /* of the part, where the tensor begins */
    uint32_t rows;    /* of the tensor */
    uint32_t columns; /* as the part's */
    uint32_t experts; /* 0, or the file has that many experts in a dimension in
                       * front, each with rows / experts rows; then also: */
    bool transposed;  /* columns before rows */
    bool pairs;       /* rows of the halves alternate */
} tr_model_tensor_t;

/* The next tensor; *at: 0 to begin with, moved on.  False: there are no more. */
bool tr_model_tensor_next(const tr_model_config_t *c, uint32_t *at,
                          tr_model_tensor_t *out);

/* A tensor of that name in the files of a text model, or of a model for text and
 * more; NULL: there is none. */
const tr_tensor_t *tr_model_tensor_named(const tr_safetensors_t *st,
                                         const char *name);

/* Finds it in the files; TR_ERR_FORMAT: missing, or of another shape. */
tr_status_t tr_model_tensor_find(const tr_safetensors_t *st,
                                 const tr_model_tensor_t *tensor,
                                 const tr_tensor_t **out, tr_error_t *err);

/* Opens the model's files and checks them against its configuration: each tensor
 * that it asks for is there, in its shape, and none of the text model's is left
 * over, since a part that nobody reads makes another model of it.  Quantised ones
 * become tensors like others (weights/packed.h); the log says what they take. */
tr_status_t tr_model_tensors_open(const tr_model_config_t *c, const char *dir,
                                  tr_safetensors_t **out, tr_error_t *err);

/* What a model's weights are, for people: in its files, and at a backend. */
typedef struct {
    char format[32];     /* of most of them: "BF16", "MXFP4 4.25 bits" */
    uint64_t file_bytes; /* of all tensors that are read */
    uint64_t bytes;      /* in memory, mapped files included; of the backend */
} tr_weights_cost_t;

/* format and file_bytes, of the files of a model that were opened. */
void tr_model_tensors_cost(const tr_model_config_t *c,
                           const tr_safetensors_t *st, tr_weights_cost_t *out);

/* Does the tensor's data hold other than the part's rows, one behind the other:
 * rows in another order, as those of heads that rotate (tr_recipe_rotary_source)
 * or of stacked experts, or codes?  tr_model_row_load knows them all. */
bool tr_model_tensor_reordered(const tr_recipe_t *r, const tr_model_tensor_t *t,
                               const tr_tensor_t *tensor);

/* Which of the file's rows is row `row` of the tensor. */
uint32_t tr_model_tensor_source(const tr_recipe_t *r,
                                const tr_model_tensor_t *t, uint32_t row);

/* Row `row` of a matrix as the part has it, [t->columns] in FP32. */
void tr_model_row_load(const tr_recipe_t *r, const tr_model_tensor_t *t,
                       const tr_tensor_t *tensor, uint32_t row, float *out);

/* A vector as the part has it, [t->rows]: in FP32, in the part's order, norms
 * with the 1 that some files leave out. */
void tr_model_vector_expand(const tr_recipe_t *r, const tr_model_tensor_t *t,
                            const tr_tensor_t *tensor, float *out);

/* load_format dummy: element i of a tensor is a function of (tensor_seed, i)
 * alone, the same on every machine and backend: uniform, with standard
 * deviation sd. */
uint64_t tr_model_tensor_seed(uint64_t seed, const char *name);
void tr_model_fill_random(float *x, size_t n, uint64_t seed, uint64_t first,
                          float sd);

#endif
