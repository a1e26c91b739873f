/*
 * Chooses the executor that a configuration asks for (executor.h); a file of
 * its own, so that programs with one backend need not be linked with the other.
 */
#include "executor.h"

#include <string.h>

tr_status_t
tr_executor_open(const tr_config_t *config, tr_executor_t **out,
                 tr_error_t *err)
{
    return strcmp(config->backend, "cuda") == 0
               ? tr_executor_cuda_open(config, out, err)
               : tr_executor_model_open(config, out, err);
}

tr_status_t
tr_executor_choose(const tr_config_t *config, tr_kv_choice_t *out,
                   tr_error_t *err)
{
    return strcmp(config->backend, "cuda") == 0
               ? tr_executor_cuda_choose(config, out, err)
               : tr_executor_model_choose(config, out, err);
}
