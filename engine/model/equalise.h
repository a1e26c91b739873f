/*
 * Load-time equalisation: channels of keys and values that stand out are made
 * smaller, and who reads them larger, so that the model computes the same.
 *
 * The codes of a token span what the largest channel of its head needs, so one
 * channel that is sixteen times the others takes four bits from all of them.
 * Factors are powers of two and move between weights:
 *
 *     keys     rows of Wk and their biases by 2^-e, rows of Wq of the query heads
 *              that share the KV head by 2^e.  RoPE mixes the channels of a pair:
 *              both have the same e; channels that it leaves alone have their own.
 *              Where queries and keys are normalised, the weights of these norms
 *              take the factors.  When all heads share them, a pair moves as far
 *              as it stands out in every head.
 *     values   rows of Wv and their biases by 2^-e, columns of Wo by 2^e
 *
 * That is exact in FP32.  What is stored in 16 bits keeps its bits but for what
 * becomes subnormal: FP16 is then off by 2^-25 at most.
 *
 * What stands out is told by weights alone: the norm of a row of W diag(g), g
 * being the weights of the norm in front, with its bias, over the median of its
 * head.  Of a bias of keys that are centred (centre.h) only what is left counts.
 * Norms are not magnitudes, so what is within STANDS_OUT of the median
 * stays as it is (equalise.c).
 *
 * How far it moves: a code's error is as large as the head's spread, the root of
 * the sum of k^2 / f^2 over its channels, and reaches a score (or an output) as
 * the root of the sum of q^2 f^2, q being what reads a channel.  By Cauchy and
 * Schwarz the product is least at f^2 = k / q, and so f is the root of that, both
 * over the medians of their heads.  A channel whose reader is as much smaller as
 * it is larger moves all the way; a bias that queries care about moves less.
 *
 * The factors are a table of the model.  Weights of 16 and 32 bits take them
 * while they are loaded, on both backends by tr_equalise_scale.
 */
#ifndef TR_EQUALISE_H
#define TR_EQUALISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/thread_pool.h"
#include <tokenring/error.h>

#include "model_tensors.h"

typedef struct {
    const tr_recipe_t *recipe; /* borrowed */
    uint32_t pairs, channels;  /* that move: of keys (a channel that RoPE leaves
                                * alone counts as a pair), of values */
    int largest;               /* e; 0: nothing moves */
    int8_t *key, *value;       /* e, [layers][kv_heads][head_dim] */
} tr_equalise_t;

/* Reads what it needs of the files, layers side by side on the stream's threads,
 * and logs what moves.  centre: keys will be centred where they may be.  c
 * outlives the table.  TR_ERR_FORMAT: a tensor is
 * missing or of another shape. */
tr_status_t tr_equalise_choose(const tr_model_config_t *c,
                               const tr_safetensors_t *st, tr_stream_t stream,
                               bool centre, tr_equalise_t **out,
                               tr_error_t *err);
void tr_equalise_free(tr_equalise_t *e); /* NULL is fine */

/* Does anything of this tensor change?  e NULL: nothing does. */
bool tr_equalise_has(const tr_equalise_t *e, const tr_model_tensor_t *t);

/* x[n]: elements [first, first + n) of the tensor, row by row, become what they
 * are in the equalised model. */
void tr_equalise_scale(const tr_equalise_t *e, const tr_model_tensor_t *t,
                       size_t first, size_t n, float *x);

#endif
