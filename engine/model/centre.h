/*
 * Centring of keys: a vector that the model's key biases tell is taken off all
 * keys of a KV head, so that codes of few bits span what tells tokens apart.
 *
 * Softmax does not change when all keys of a head lose the same vector c: every
 * query's products lose the same q c.  So keys enter the cache as k - c, behind
 * RoPE and in front of the rotation (rotate.h), and queries stay as they are.  A
 * key is R_n (W x + b), R_n being RoPE at position n.  Where RoPE turns slowly,
 * R_n b is about the same at all positions, and Qwen2.5 has biases there that
 * are tens of times the rest.  c is that part, pair by pair of RoPE:
 *
 *     c = g R_phi b,  phi the middle of the angles at the first N positions
 *     g = min(D, 2 cos(a)),  or 0 where a is a quarter of a turn or more
 *
 * D R_phi b is the mean of R_n b over the first N = TR_CENTRE_MEAN positions: a
 * pair that turns fast has about none (D = sin(N w / 2) / (N sin(w / 2)), w its
 * angle a position).  a is the largest angle between R_n b and c up to position H
 * = TR_CENTRE_REACH, or as far as the model goes: with g <= 2 cos(a) no R_n b - c
 * up to there is longer than b, so no bias costs more bits than without centring.
 * Beyond H it can be (1 + g) |b|: one bit more.
 *
 * Qwen2.5 (theta 1e6, heads of 128, H = 32,768): pair i turns by w = 10^(-6 i /
 * 64).  Pairs 48 to 63 lose their mean: of pair 48 (w = 3.2e-5, D = 0.999) 4% of
 * b are left in the first 4,096 positions (root of the mean square), at 32,767
 * 2 sin(0.97 / 2) = 93%; of pair 56 (w = 5.6e-6) 0.7% and 17%.  Pairs 47 and 46
 * lose 0.71 and 0.15 of b.  Pair 45 (w = 6.0e-5, a = 1.86) would lose its mean and
 * be up to 1.6 times as large, so it keeps it, as all that are faster do.
 * Channels that do not turn lose all of b.
 *
 * c depends on the model's files alone: pages are shared between sequences, and
 * between engines by way of files.  Of LongRoPE's tables it is that of short
 * sequences which counts; the other's stretches are larger as a rule, and then
 * its angles are smaller.
 *
 * A layer is left alone where it has no key bias, where keys are normalised
 * behind it (then it is no longer a term of its own), and where softmax has a
 * learned sink, whose logit would not shift.  (Softcaps of attention, which would
 * bend the difference, are refused by model_families.c.)  All else that looks at
 * queries by keys here takes softmax over all that a sequence has, or compares
 * within one head: Quest's bounds of pages shift alike.
 */
#ifndef TR_CENTRE_H
#define TR_CENTRE_H

#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "equalise.h"
#include "model_tensors.h"

#define TR_CENTRE_MEAN 4096u
#define TR_CENTRE_REACH 32768u

typedef struct {
    const tr_recipe_t *recipe; /* borrowed */
    uint32_t layers;           /* that are centred */
    bool *has;                 /* [recipe->layers] */
    float *shift; /* -c, [recipe->layers][kv_heads][head_dim] as the parts have
                   * them */
} tr_centre_t;

/* May the keys of a layer be centred? */
bool tr_centre_fits(const tr_recipe_t *r, uint32_t layer);

/* What centring makes of a pair's bias: c = g R_phi b; left: the root of the
 * mean square of |R_n b - c| / |b| over the first N positions. */
typedef struct {
    float g, phi, left;
} tr_centre_pair_t;

/* Of all pairs (i, i + head_dim / 2) of a layer. */
void tr_centre_pairs(const tr_recipe_t *r, uint32_t layer,
                     tr_centre_pair_t pair[TR_HEAD_DIM_MAX / 2]);

/* Reads the biases as equalisation leaves them (NULL: there is none), and logs
 * how many layers are centred; one whose bias is not finite is left out by name.
 * c outlives the table.  TR_ERR_FORMAT: a bias is missing or of another shape. */
tr_status_t tr_centre_choose(const tr_model_config_t *c,
                             const tr_safetensors_t *st,
                             const tr_equalise_t *equalise, tr_centre_t **out,
                             tr_error_t *err);
void tr_centre_free(tr_centre_t *c); /* NULL is fine */

/* What is added to the keys of a layer, [kv_heads][head_dim]; NULL: nothing.  c
 * NULL: nothing is centred. */
const float *tr_centre_shift(const tr_centre_t *c, uint32_t layer);

#endif
