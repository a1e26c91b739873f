/*
 * How far a KV policy moves a model's attention on a given text: the error that
 * the guard (engine/kv/kv_guard.h) measures, but before the engine starts, in a
 * small cache made for it.  So an engine can choose among policies.
 */
#ifndef TR_KV_MEASURE_H
#define TR_KV_MEASURE_H

#include "engine/kv/kv_cache.h"

typedef struct tr_model tr_model_t; /* engine/model/cpu/model.h */

/* A cache with a guard, and the model that computes in it. */
typedef struct {
    tr_kv_cache_t *kv;
    tr_kv_guard_t *guard;
    uint32_t head_dim, max_len; /* of the model */
    /* Computes tokens[n], the prompt of a slot that is open for it. */
    tr_status_t (*compute)(void *arg, int32_t slot, const int32_t *tokens,
                           uint32_t n);
    /* Carries out what was asked of kv; NULL: it does so at once. */
    tr_status_t (*settle)(void *arg);
    void *arg;
} tr_kv_meter_t;

/* What tr_kv_measure does, in a given cache; the policies are its own. */
tr_status_t tr_kv_meter_run(const tr_kv_meter_t *t,
                            const tr_kv_policy_t *const *policies,
                            uint32_t n_policies, const int32_t *tokens,
                            uint32_t n, tr_kv_guard_error_t *error,
                            double *memory, tr_error_t *err);

/* On the CPU, in a cache of its own: computes the text once, and compresses a
 * copy of it with each policy.
 *   tokens   [n], n from TR_KV_GUARD_TOKENS to the model's max_len
 *   error    [n_policies]
 *   memory   [n_policies], bytes over those of 16 bits */
tr_status_t tr_kv_measure(tr_model_t *m, const tr_kv_policy_t *const *policies,
                          uint32_t n_policies, const int32_t *tokens,
                          uint32_t n, tr_kv_guard_error_t *error,
                          double *memory, tr_error_t *err);

#endif
