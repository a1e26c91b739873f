/*
 * Rotation of keys and values (kernels/hadamard.h): codes of few bits then span
 * channels of about equal size, whichever channel of a token is large.
 *
 *     keys     behind RoPE, as they enter the cache, and queries with them: work
 *              of each step
 *     values   in the weights that make them and that read them, at load: rows of
 *              Wv of a KV head and their biases become R Wv, columns of Wo of a
 *              query head Wo R^T
 *
 * Equalisation (equalise.h) comes first.  The basis is the engine's, not a
 * policy's: all pages of all sequences have it.  FP32 results change by
 * rounding; weights of 16 bits are rounded anew.
 */
#ifndef TR_ROTATE_H
#define TR_ROTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "model_tensors.h"

/* Bits. */
#define TR_ROTATE_KEYS 1u
#define TR_ROTATE_VALUES 2u
#define TR_ROTATE_AUTO 4u /* what suits the model */

/* Of the setting kv_rotate: auto, off, k, v or kv. */
uint32_t tr_rotate_bits(const char *setting);

/* And back. */
const char *tr_rotate_name(uint32_t bits);

/* The bits without TR_ROTATE_AUTO: both where the head size has a rotation, keys
 * alone where weights stay packed, since rotated values would expand them.
 * packed: weights that files have packed stay so; quantised: others are packed
 * at load. */
uint32_t tr_rotate_resolve(const tr_model_config_t *m, uint32_t bits,
                           bool packed, bool quantised);

/* TR_ERR_UNSUPPORTED: the model's head size has no rotation, and one was asked
 * for by name. */
tr_status_t tr_rotate_check(const tr_recipe_t *r, uint32_t bits,
                            tr_error_t *err);

/* How many rows of a tensor must be rotated together; 0: none of it is. */
uint32_t tr_rotate_rows(const tr_recipe_t *r, uint32_t bits,
                        const tr_model_tensor_t *t);

/* x[rows][t->columns]: rows [row, row + rows) of such a tensor, both multiples
 * of tr_rotate_rows, become what they are in the rotated model. */
void tr_rotate_weights(const tr_recipe_t *r, const tr_model_tensor_t *t,
                       uint32_t row, uint32_t rows, float *x);

#endif
