/*
 * How far KV policies move a model's attention on a text: the guard's error
 * (engine/kv/kv_guard.h), measured before a cache is made, in a small one of its
 * own.
 */
#ifndef TR_KV_MEASURE_H
#define TR_KV_MEASURE_H

#include "engine/model/cpu/model.h"

#define TR_KV_MEASURE_POLICIES 8u

/* Computes the text once, and compresses a copy of it for each policy.
 * tokens: [n], at least TR_KV_GUARD_TOKENS and at most the model's max_len;
 * error, memory: [n_policies], memory over 16 bits. */
tr_status_t tr_kv_measure(tr_model_t *m, const tr_kv_policy_t *const *policies,
                          uint32_t n_policies, const int32_t *tokens,
                          uint32_t n, tr_kv_guard_error_t *error,
                          double *memory, tr_error_t *err);

#endif
