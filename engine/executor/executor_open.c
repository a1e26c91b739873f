/*
 * Chooses the executor that a configuration asks for (executor.h); a file of
 * its own, so that programs with one backend need not be linked with the other.
 */
#include "executor.h"
#include "kv_choose.h"

#include <string.h>

/* With kv_policy auto, a small engine chooses and goes before this one opens. */
static tr_status_t
open_cuda(const tr_config_t *config, tr_executor_t **out, tr_error_t *err)
{
    tr_kv_choice_t choice;
    tr_config_t chosen;
    tr_status_t rc;

    if (!tr_kv_chooses(config)) {
        return tr_executor_cuda_open(config, out, err);
    }
    rc = tr_executor_cuda_choose(config, &choice, err);
    if (rc != TR_OK) {
        return rc;
    }
    tr_kv_chosen(config, &choice, &chosen);
    return tr_executor_cuda_open(&chosen, out, err);
}

tr_status_t
tr_executor_open(const tr_config_t *config, tr_executor_t **out,
                 tr_error_t *err)
{
    return strcmp(config->backend, "cuda") == 0
               ? open_cuda(config, out, err)
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
