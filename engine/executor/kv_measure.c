/*
 * kv_measure.h: a prompt in a cache of its own, and its copies.
 */
#include "kv_measure.h"

#include <stdlib.h>

#include "engine/config/log.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/cpu/model.h"

typedef struct {
    tr_model_t *model;
    tr_kv_cache_t *kv;
    tr_kv_guard_t *guard;
    uint32_t *pos; /* [max_rows] */
} measure_t;

static tr_status_t
failed(tr_error_t *err, tr_status_t rc, const char *what)
{
    return tr_error_set(err, rc, "kv_policy",
                        "kv_policy auto: cannot %s the calibration text (%s)",
                        what, tr_status_info(rc).name);
}

/* ---- a text ------------------------------------------------------------- */

/* Turns that a compression may take which the first one refuses. */
#define TURNS 4

static tr_status_t
compress(const tr_kv_meter_t *t, int32_t slot, uint32_t n)
{
    tr_status_t rc = TR_AGAIN, settled = TR_OK;

    for (uint32_t i = 0; i < TURNS && rc == TR_AGAIN && settled == TR_OK; i++) {
        rc = tr_kv_compress(t->kv, slot, n);
        settled = t->settle != NULL ? t->settle(t->arg) : TR_OK;
    }
    return settled != TR_OK ? settled : rc;
}

/* A copy of the prompt under a policy, compressed. */
static tr_status_t
measure_one(const tr_kv_meter_t *t, int32_t from, const tr_kv_policy_t *policy,
            uint32_t n, tr_kv_guard_error_t *error, double *memory)
{
    int32_t slot = tr_kv_open(t->kv, policy);
    tr_page_plan_t plan;
    tr_kv_usage_t u;
    tr_status_t rc;

    tr_kv_prompt(t->kv, slot, n);
    rc = tr_kv_fork(t->kv, from, slot, n);
    if (rc == TR_OK) {
        tr_kv_guard_follow(t->guard, slot);
        rc = compress(t, slot, n);
    }
    if (rc == TR_OK) {
        rc = tr_kv_policy_plan(policy, t->head_dim, t->max_len, &plan);
    }
    if (rc == TR_OK) {
        tr_kv_usage_in(t->kv, slot, &plan, &u);
        *memory = (double) u.bytes / (double) u.full_bytes;
        /* no error is not one of 0 */
        rc = tr_kv_guard_last(t->guard, error) ? TR_OK : TR_ERR_INTERNAL;
    }
    tr_kv_close(t->kv, slot);
    return rc;
}

/* What the prompt is computed under: its scores serve the others. */
static const tr_kv_policy_t *
scored(const tr_kv_policy_t *const *policies, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (policies[i]->scored) {
            return policies[i];
        }
    }
    return policies[0];
}

tr_status_t
tr_kv_meter_run(const tr_kv_meter_t *t, const tr_kv_policy_t *const *policies,
                uint32_t n_policies, const int32_t *tokens, uint32_t n,
                tr_kv_guard_error_t *error, double *memory, tr_error_t *err)
{
    int32_t from = tr_kv_open(t->kv, scored(policies, n_policies));
    tr_status_t rc;

    tr_kv_prompt(t->kv, from, n);
    tr_kv_guard_watch(t->guard, from, n);
    rc = t->compute(t->arg, from, tokens, n);
    if (rc != TR_OK) {
        failed(err, rc, "compute");
    }
    for (uint32_t i = 0; i < n_policies && rc == TR_OK; i++) {
        rc = measure_one(t, from, policies[i], n, &error[i], &memory[i]);
        if (rc != TR_OK) {
            failed(err, rc, "compress and compare");
        }
    }
    return rc;
}

/* ---- on the CPU --------------------------------------------------------- */

/* All rows of the prompt, as many at a time as the workspace has. */
static tr_status_t
compute(void *arg, int32_t slot, const int32_t *tokens, uint32_t n)
{
    measure_t *t = arg;
    tr_model_t *m = t->model;
    const bool *seq_long = m->seq_long;
    const bool is_long = n > tr_recipe_long_from(&m->config.recipe);
    tr_status_t rc = TR_OK;
    tr_kv_view_t view;

    tr_kv_view(t->kv, &view);
    m->seq_long = tr_recipe_long_from(&m->config.recipe) != 0 ? &is_long : NULL;
    m->guard = t->guard;
    for (uint32_t at = 0; at < n && rc == TR_OK;) {
        uint32_t rows = n - at < m->max_rows ? n - at : m->max_rows;
        uint32_t seq_row[2] = { 0, rows };
        tr_rows_t r = { rows, 1, t->pos, &slot, seq_row };

        for (uint32_t i = 0; i < rows; i++) {
            t->pos[i] = at + i;
        }
        rc = tr_kv_reserve(t->kv, slot, at + rows);
        if (rc == TR_OK) {
            rc = tr_model_forward(m, &view, &r, tokens + at);
        }
        at += rows;
    }
    m->guard = NULL;
    m->seq_long = seq_long;
    return rc;
}

static tr_status_t
open(measure_t *t, const tr_kv_policy_t *const *policies, uint32_t n_policies,
     uint32_t n, tr_error_t *err)
{
    tr_model_t *m = t->model;
    const tr_recipe_t *r = &m->config.recipe;
    uint64_t heads = (uint64_t) r->layers * r->kv_heads;
    tr_kv_config_t kv = {
        .layers = r->layers,
        .kv_heads = r->kv_heads,
        .head_dim = r->head_dim,
        .slots = 2,
        .max_len = n,
        .reach = m->reach,
        /* the prompt, its copy, and that compressed, with pages begun */
        .memory = heads * ((uint64_t) n * 4 * r->head_dim * 4 + (1u << 20)),
        .policies = policies,
        .n_policies = n_policies,
        .kernels = m->kernels,
        .stream = m->stream,
    };
    tr_status_t rc = tr_model_guard(m, 0, &t->guard, err);

    kv.guard = t->guard;
    if (rc == TR_OK) {
        rc = tr_kv_cache_create(&kv, &t->kv, err);
    }
    t->pos = calloc(m->max_rows, sizeof(*t->pos));
    if (rc == TR_OK && t->pos == NULL) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "kv_policy", "out of memory");
    }
    return rc;
}

tr_status_t
tr_kv_measure(tr_model_t *m, const tr_kv_policy_t *const *policies,
              uint32_t n_policies, const int32_t *tokens, uint32_t n,
              tr_kv_guard_error_t *error, double *memory, tr_error_t *err)
{
    measure_t t = { .model = m };
    tr_status_t rc = open(&t, policies, n_policies, n, err);
    const tr_kv_meter_t meter = { .kv = t.kv,
                                  .guard = t.guard,
                                  .head_dim = m->config.recipe.head_dim,
                                  .max_len = m->max_len,
                                  .compute = compute,
                                  .arg = &t };

    if (rc == TR_OK) {
        rc = tr_kv_meter_run(&meter, policies, n_policies, tokens, n, error,
                             memory, err);
    }
    tr_kv_cache_free(t.kv);
    tr_kv_guard_free(t.guard);
    free(t.pos);
    return rc;
}
