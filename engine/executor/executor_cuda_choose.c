/*
 * kv_policy auto on a GPU: an engine of two sequences, with the candidates as
 * its policies, is opened for the measurement, and let go; the one that serves is
 * opened afterwards with what was taken.  So weights are loaded twice, and the
 * kernels that measure are those that will serve.
 */
#include <stdio.h>
#include <string.h>

#include "executor.h"
#include "kv_measure.h"

#include "engine/model/model_config.h"

/* What is computed goes through the executor as anywhere. */
static tr_status_t
turn(tr_executor_t *e, tr_batch_item_t *item)
{
    tr_batch_t batch = { item, item != NULL, item != NULL ? item->n : 0 };
    tr_status_t rc = e->submit(e, &batch);

    if (rc == TR_OK) {
        rc = e->complete(e, &batch);
    }
    return rc == TR_OK && item != NULL ? item->status : rc;
}

typedef struct {
    const tr_config_t *config;
    tr_executor_t *executor;
} subject_t;

static tr_status_t
compute(void *arg, int32_t slot, const int32_t *tokens, uint32_t n)
{
    const subject_t *s = arg;
    tr_executor_t *e = s->executor;
    uint32_t most = s->config->max_batch_tokens;
    tr_status_t rc = TR_OK;

    for (uint32_t at = 0; at < n && rc == TR_OK; at += most) {
        uint32_t rows = n - at < most ? n - at : most;
        tr_batch_item_t item = { .kv_slot = slot,
                                 .pos = at,
                                 .n = rows,
                                 .tokens = tokens + at,
                                 .is_long = e->long_from != 0
                                            && n > e->long_from };

        rc = tr_kv_reserve(e->kv, slot, at + rows);
        rc = rc == TR_OK ? turn(e, &item) : rc;
    }
    return rc;
}

static tr_status_t
settle(void *arg)
{
    return turn(((const subject_t *) arg)->executor, NULL);
}

/* The configuration of the engine that measures. */
static void
configure(const tr_config_t *config, const tr_kv_policy_t *const *policies,
          uint32_t n_policies, uint32_t n, tr_config_t *out)
{
    size_t at = 0;

    *out = *config;
    snprintf(out->kv_policy, sizeof(out->kv_policy), "%s", policies[0]->spec);
    out->kv_policies[0] = '\0';
    for (uint32_t i = 1; i < n_policies && at < sizeof(out->kv_policies); i++) {
        at += (size_t) snprintf(out->kv_policies + at,
                                sizeof(out->kv_policies) - at, " %s",
                                policies[i]->spec);
    }
    snprintf(out->kv_reuse, sizeof(out->kv_reuse), "no");
    out->kv_measures = true;
    out->kv_guard_every = 0;
    out->max_model_len = n;
    out->max_num_seqs = 2;
    out->max_batch_tokens = config->max_batch_tokens < n
                                ? config->max_batch_tokens
                                : n;
    out->swap_memory = 0;
}

typedef struct {
    const tr_config_t *config;
    tr_kv_subject_t model;
} chooser_t;

static tr_status_t
measure(void *arg, const tr_kv_policy_t *const *policies, uint32_t n_policies,
        const int32_t *tokens, uint32_t n, tr_kv_guard_error_t *error,
        double *memory, tr_error_t *err)
{
    const chooser_t *c = arg;
    const tr_recipe_t *r = c->model.recipe;
    uint64_t heads = (uint64_t) r->layers * r->kv_heads;
    tr_config_t config;
    subject_t s = { &config, NULL };
    tr_kv_meter_t meter = { .head_dim = r->head_dim,
                            .max_len = c->model.max_len,
                            .compute = compute,
                            .settle = settle,
                            .arg = &s };
    tr_status_t rc;

    configure(c->config, policies, n_policies, n, &config);
    /* the prompt, its copy, and that compressed, with pages begun */
    config.kv_memory = heads * ((uint64_t) n * 4 * r->head_dim * 4 + (1u << 20))
                       + (32u << 20);
    rc = tr_executor_cuda_open(&config, &s.executor, err);
    if (rc != TR_OK) {
        return rc;
    }
    meter.kv = s.executor->kv;
    meter.guard = s.executor->guard;
    rc = tr_kv_meter_run(&meter, s.executor->kv_policies, n_policies, tokens, n,
                         error, memory, err);
    s.executor->free(s.executor);
    return rc;
}

tr_status_t
tr_executor_cuda_choose(const tr_config_t *config, tr_kv_choice_t *out,
                        tr_error_t *err)
{
    tr_model_config_t model;
    chooser_t c = { .config = config, .model = { .measure = measure } };
    tr_status_t rc = tr_model_config_load(config->model, config->ignore_config,
                                          &model, err);

    if (rc != TR_OK) {
        return rc;
    }
    c.model.recipe = &model.recipe;
    c.model.max_len = tr_recipe_len(&model.recipe, config->max_model_len,
                                    config->kv_memory);
    c.model.arg = &c;
    return tr_kv_choose_for(&c.model, config, out, err);
}
