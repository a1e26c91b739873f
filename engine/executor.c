/*
 * What executors share (executor.h): the KV policies and the cache.
 */
#include "executor.h"

#include <stdlib.h>

tr_status_t
tr_executor_open_cache(tr_executor_t *e, const tr_config_t *config,
                       uint32_t max_len, const tr_kernels_t *kernels,
                       tr_stream_t stream, tr_error_t *err)
{
    tr_kv_config_t kv = {
        .layers = e->layers,
        .lists = e->kv_heads,
        .head_dim = e->head_dim,
        .slots = config->max_num_seqs,
        .max_len = max_len,
        .memory = config->kv_memory,
        .policies = e->policies,
        .n_policies = 1,
        .kernels = kernels,
        .stream = stream,
    };
    tr_status_t rc = tr_kv_policy_create(config->kv_policy, e->layers,
                                         e->kv_heads, e->head_dim, &e->policy,
                                         err);

    if (rc != TR_OK) {
        return rc;
    }
    e->policies[0] = e->policy;
    e->n_policies = 1;
    return tr_kv_cache_create(&kv, &e->kv, err);
}

void
tr_executor_close_cache(tr_executor_t *e)
{
    if (e->kv != NULL) {
        tr_kv_cache_free(e->kv);
    }
    if (e->policy != NULL) {
        tr_kv_policy_free(e->policy);
    }
}
