/*
 * Experts that a file holds in one tensor:
 *
 *     mlp.experts.gate_up_proj   [experts][2 * width][hidden], gates first
 *     mlp.experts.down_proj      [experts][hidden][width]
 *
 * where a family's names (model_families.c) are of one expert each.  A checkpoint
 * may have both kinds, in different layers.
 */
#ifndef TR_MODEL_STACKED_H
#define TR_MODEL_STACKED_H

#include "model_tensors.h"

/* An expert's weight as a part of such a tensor: *out gets all but its name, whose
 * `whole` is NULL where there is none.  TR_ERR_FORMAT, TR_ERR_UNSUPPORTED: there
 * is, of another shape or type; the error has its name. */
tr_status_t tr_model_stacked_part(const tr_model_config_t *c,
                                  const tr_safetensors_t *st,
                                  const tr_model_tensor_t *wanted,
                                  tr_tensor_t *out, tr_error_t *err);

#endif
