/*
 * How far KV policies move a model's attention on a text: the guard's error
 * (engine/kv/kv_guard.h), measured before an engine's cache is made, in a small
 * one.
 */
#ifndef TR_KV_MEASURE_H
#define TR_KV_MEASURE_H

#include "engine/kv/kv_cache.h"

typedef struct tr_model tr_model_t; /* engine/model/cpu/model.h */

/* A cache with a guard, and who computes in it. */
typedef struct {
    tr_kv_cache_t *kv;
    tr_kv_guard_t *guard;
    uint32_t head_dim, max_len; /* of the model */
    /* All tokens of a slot, which has been told of them. */
    tr_status_t (*compute)(void *arg, int32_t slot, const int32_t *tokens,
                           uint32_t n);
    /* Carries out what was asked of kv; NULL: it is at once. */
    tr_status_t (*settle)(void *arg);
    void *arg;
} tr_kv_meter_t;

/* As tr_kv_measure, with policies of the cache. */
tr_status_t tr_kv_meter_run(const tr_kv_meter_t *t,
                            const tr_kv_policy_t *const *policies,
                            uint32_t n_policies, const int32_t *tokens,
                            uint32_t n, tr_kv_guard_error_t *error,
                            double *memory, tr_error_t *err);

/* In a cache of its own, on the CPU.  Computes the text once, and compresses a
 * copy of it for each policy.
 * tokens: [n], at least TR_KV_GUARD_TOKENS and at most the model's max_len;
 * error, memory: [n_policies], memory over 16 bits. */
tr_status_t tr_kv_measure(tr_model_t *m, const tr_kv_policy_t *const *policies,
                          uint32_t n_policies, const int32_t *tokens,
                          uint32_t n, tr_kv_guard_error_t *error,
                          double *memory, tr_error_t *err);

#endif
