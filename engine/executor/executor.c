/*
 * What executors share (executor.h): steps, the card, the KV policies and the
 * cache.
 */
#include "executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "engine/kv/kv_store.h"
#include "engine/model/rotate.h"
#include "kernels/kv_manager/manager.h"

/* ---- steps -------------------------------------------------------------- */

tr_status_t
tr_executor_run(tr_executor_t *e, const tr_batch_t *batch)
{
    tr_status_t rc = e->submit(e, batch);

    if (rc == TR_OK && e->sample != NULL) {
        e->sample(e, batch);
    }
    return rc == TR_OK ? e->complete(e, batch) : rc;
}

tr_status_t
tr_executor_complete_computed(tr_executor_t *e, const tr_batch_t *batch)
{
    (void) e;
    (void) batch;
    return TR_OK;
}

/* ---- the card ----------------------------------------------------------- */

static tr_status_t
bound_length(tr_executor_t *e, const tr_recipe_t *r, const tr_config_t *config,
             uint64_t kv_memory, tr_error_t *err)
{
    e->max_model_len = tr_recipe_len(r, config->max_model_len, kv_memory);
    if (config->max_model_len > r->max_positions) {
        return tr_error_set(err, TR_ERR_INVALID, "max_model_len",
                            "max_model_len is %u, expected at most the model's "
                            "%u",
                            config->max_model_len, r->max_positions);
    }
    return TR_OK;
}

tr_status_t
tr_executor_describe(tr_executor_t *e, const char *backend,
                     const tr_model_config_t *model, const tr_config_t *config,
                     uint64_t kv_memory, tr_error_t *err)
{
    const tr_recipe_t *r = &model->recipe;

    e->backend = backend;
    e->vocab = r->vocab;
    e->long_from = tr_recipe_long_from(r);
    e->layers = r->layers;
    e->kv_heads = r->kv_heads;
    tr_recipe_reaches(r, e->reach);
    e->query_heads = r->query_heads;
    e->head_dim = r->head_dim;
    e->parameters = tr_recipe_parameters(r);
    memcpy(e->eos, model->eos, sizeof(e->eos));
    e->n_eos = model->n_eos;
    return bound_length(e, r, config, kv_memory, err);
}

/* Is `full` the only policy there is? */
static bool
only_full(const tr_config_t *config)
{
    const char *at = config->kv_policies;

    if (strcmp(config->kv_policy, "full") != 0) {
        return false;
    }
    while (*(at += strspn(at, " \t")) != '\0') {
        size_t n = strcspn(at, " \t");

        if (n != 4 || strncmp(at, "full", 4) != 0) {
            return false;
        }
        at += n;
    }
    return true;
}

uint32_t
tr_executor_rotate(const tr_config_t *config)
{
    uint32_t bits = tr_rotate_bits(config->kv_rotate);

    return bits == TR_ROTATE_AUTO && only_full(config) ? 0 : bits;
}

bool
tr_executor_centre(const tr_config_t *config)
{
    return strcmp(config->kv_centre, "auto") == 0 && !only_full(config);
}

/* ---- policies ----------------------------------------------------------- */

static tr_status_t
add_policy(tr_executor_t *e, const char *dir, const char *key, const char *spec,
           size_t n, tr_error_t *err)
{
    tr_executor_policy_t *p = &e->policies[e->n_policies];
    tr_status_t rc;

    if (e->n_policies == TR_EXECUTOR_POLICIES || n >= sizeof(p->given)) {
        return tr_error_set(err, TR_ERR_INVALID, key,
                            "%s \"%.*s\": expected at most %d policies of %zu"
                            " bytes each",
                            key, n > 64 ? 64 : (int) n, spec,
                            TR_EXECUTOR_POLICIES, sizeof(p->given) - 1);
    }
    memcpy(p->given, spec, n);
    p->given[n] = '\0';
    rc = tr_kv_policy_open(dir, p->given, e->layers, e->kv_heads, e->head_dim,
                           &p->policy, &p->source, err);
    if (rc == TR_OK) {
        e->kv_policies[e->n_policies++] = p->policy;
    } else {
        tr_error_t story = *err;

        tr_error_set(err, rc, key, "%s: %s", key, story.text);
    }
    return rc;
}

bool
tr_executor_reuses_compressed(const tr_config_t *config)
{
    return strcmp(config->kv_reuse, "no") != 0
           && strcmp(config->backend, "null") != 0;
}

/* All that compress, of which there must be one: with another, 16 bits is what is
 * asked for. */
static tr_status_t
check_prefill(const tr_executor_t *e, const tr_config_t *config,
              tr_error_t *err)
{
    bool none = !tr_executor_compresses(e);
    tr_status_t rc = TR_OK;

    for (uint32_t i = 0; i < e->n_policies && rc == TR_OK; i++) {
        const tr_kv_policy_t *p = e->policies[i].policy;

        if (none || p->n_levels != 0) {
            rc = tr_kv_policy_prefill(p, config->prefill_level, err);
        }
    }
    return rc;
}

tr_status_t
tr_executor_open_policies(tr_executor_t *e, const tr_config_t *config,
                          tr_error_t *err)
{
    const char *at = config->kv_policies;
    tr_status_t rc = add_policy(e, config->model, "kv_policy",
                                config->kv_policy, strlen(config->kv_policy),
                                err);

    while (rc == TR_OK && *(at += strspn(at, " \t")) != '\0') {
        size_t n = strcspn(at, " \t");

        rc = add_policy(e, config->model, "kv_policies", at, n, err);
        at += n;
    }
    if (rc == TR_OK) {
        rc = check_prefill(e, config, err);
    }
    if (tr_executor_reuses_compressed(config)) {
        for (uint32_t i = 0; i < e->n_policies; i++) {
            tr_kv_policy_position(e->policies[i].policy);
        }
    }
    return rc;
}

bool
tr_executor_compresses(const tr_executor_t *e)
{
    for (uint32_t i = 0; i < e->n_policies; i++) {
        if (e->policies[i].policy->n_levels != 0) {
            return true;
        }
    }
    return false;
}

/* ---- levels ------------------------------------------------------------- */

uint32_t
tr_executor_levels(const tr_executor_t *e, uint8_t level_of[TR_KV_LAYOUTS_MAX],
                   char name[TR_STATUS_LEVELS][16],
                   uint64_t token_bytes[TR_STATUS_LEVELS])
{
    const tr_page_plan_t *plan = tr_kv_plan(e->kv);
    uint32_t n = 0, i, k;

    _Static_assert(TR_STATUS_LEVELS >= TR_KV_LAYOUTS_MAX, "a name for each");
    for (i = 0; i < plan->n; i++) {
        const tr_kv_level_t *l = &plan->layout[i].level;
        uint64_t bytes = (uint64_t) (tr_kv_layout_token_bytes(plan, i)
                                         * e->layers * e->kv_heads
                                     + 0.5);
        char text[16];

        snprintf(text, sizeof(text), "%u/%u", l->key_bits, l->value_bits);
        for (k = 0; k < n && strcmp(name[k], text) != 0; k++) {
        }
        if (k == n) {
            memcpy(name[n], text, sizeof(text));
            token_bytes[n++] = 0;
        }
        token_bytes[k] = bytes > token_bytes[k] ? bytes : token_bytes[k];
        level_of[i] = (uint8_t) k;
    }
    return n;
}

/* ---- the cache ---------------------------------------------------------- */

static void
describe_policy(const tr_executor_t *e, uint32_t i, const tr_config_t *config)
{
    const tr_executor_policy_t *p = &e->policies[i];

    tr_log(TR_LEVEL_NOTICE, "kv policy %s%s from=%s prefill_level=%s reuse=%s",
           p->policy->spec, i == 0 ? " (default)" : "",
           tr_kv_source_name(p->source), config->prefill_level,
           strcmp(config->kv_reuse, "no") == 0 ? "off"
           : tr_kv_reuses(e->kv, p->policy)    ? "yes"
                                               : "cannot");
    if (tr_kv_policy_uncalibrated(p->policy, p->source)) {
        tr_log(TR_LEVEL_NOTICE,
               "kv policy %s has the default thresholds, since the model has "
               "no " TR_KV_POLICY_FILE
               " for it: tokenring calibrate -m %s -c CASES"
               " makes one",
               p->policy->name, config->model);
    }
}

/* Is there a policy whose prefixes are kept? */
static bool
reusing(const tr_executor_t *e)
{
    for (uint32_t i = 0; i < e->n_policies; i++) {
        if (tr_kv_reuses(e->kv, e->policies[i].policy)) {
            return true;
        }
    }
    return false;
}

tr_status_t
tr_executor_check_reuse(const tr_executor_t *e, const tr_config_t *config,
                        tr_error_t *err)
{
    if (strcmp(config->kv_reuse, "yes") != 0 || reusing(e)) {
        return TR_OK;
    }
    return tr_error_set(err, TR_ERR_UNSUPPORTED, "kv_reuse",
                        "kv_reuse yes, but the KV policy is %s: prefixes are "
                        "reused under full, uniform, int4, and diffkv that "
                        "drops nothing; choose one of them, or kv_reuse auto",
                        e->policies[0].policy->name);
}

void
tr_executor_describe_cache(const tr_executor_t *e, const tr_config_t *config)
{
    const tr_page_plan_t *plan = tr_kv_plan(e->kv);
    uint32_t i;

    tr_log(TR_LEVEL_NOTICE,
           "kv cache page_bytes=%u pages=%llu memory_mib=%llu swap_mib=%llu "
           "fp16_token_bytes=%llu reuse=%s",
           plan->page_bytes, (unsigned long long) tr_kv_pages(e->kv),
           (unsigned long long) (tr_kv_pages(e->kv) * plan->page_bytes) >> 20,
           (unsigned long long) config->swap_memory >> 20,
           (unsigned long long) tr_kv_token_bytes(e->kv),
           reusing(e) ? "yes" : "no");
    for (i = 0; i < plan->n; i++) {
        const tr_kv_layout_t *l = &plan->layout[i];

        tr_log(TR_LEVEL_NOTICE,
               "kv level k%uv%u%s page_tokens=%u head_token_bytes=%g",
               l->level.key_bits, l->level.value_bits,
               i == 0                ? " uncompressed"
               : l->level.by_channel ? " by_channel"
                                     : "",
               l->tokens, tr_kv_layout_token_bytes(plan, i));
    }
    for (i = 0; i < e->n_policies; i++) {
        describe_policy(e, i, config);
    }
}

uint32_t
tr_executor_load_slots(const tr_config_t *config)
{
    return (config->cache_dir[0] != '\0' ? TR_KV_FILE_GETS : 0)
           + (config->cache_memory != 0 ? TR_KV_SHELF_GETS : 0);
}

/* Sequences that are swapped out keep their slots, and what comes from files or
 * the shelf has some: as far as a page manager has so many. */
static uint32_t
slots(const tr_executor_t *e, const tr_config_t *config)
{
    uint32_t n = config->max_num_seqs + tr_executor_load_slots(config), i;
    bool swaps = false;

    for (i = 0; i < e->n_policies; i++) {
        swaps = swaps
                || (config->swap_memory != 0
                    && (e->policies[i].policy->n_levels != 0
                        || e->policies[i].policy->minmax));
    }
    n += swaps ? config->max_num_seqs : 0;
    return n < TR_KV_SLOTS_MAX ? n : TR_KV_SLOTS_MAX;
}

static uint32_t
stage(const tr_config_t *config)
{
    if (strcmp(config->prefill_level, TR_KV_PREFILL_NONE) == 0) {
        return 0;
    }
    return config->prefill_stage != 0 ? config->prefill_stage : TR_KV_STAGE;
}

static uint64_t
piece(const tr_config_t *config)
{
    return config->swap_piece != 0 ? config->swap_piece : TR_KV_PIECE;
}

void
tr_executor_cache_config(const tr_executor_t *e, const tr_config_t *config,
                         uint32_t max_len, tr_kv_config_t *out)
{
    *out = (tr_kv_config_t){ .layers = e->layers,
                             .kv_heads = e->kv_heads,
                             .head_dim = e->head_dim,
                             .slots = slots(e, config),
                             .max_len = max_len,
                             .reach = e->reach,
                             .memory = config->kv_memory,
                             .swap_memory = config->swap_memory,
                             .reuse = strcmp(config->kv_reuse, "no") != 0,
                             .reuse_compressed = tr_executor_reuses_compressed(
                                 config),
                             .guard = e->guard,
                             .stage = stage(config),
                             .piece = piece(config),
                             .policies = e->kv_policies,
                             .n_policies = e->n_policies };
}

void
tr_executor_fit_cache(tr_executor_t *e)
{
    uint32_t i;

    if (tr_kv_max_len(e->kv, NULL) < e->max_model_len) {
        e->max_model_len = tr_kv_max_len(e->kv, NULL);
        tr_log(TR_LEVEL_NOTICE,
               "max_model_len is bounded by kv_memory max_model_len=%u",
               e->max_model_len);
    }
    for (i = 0; i < e->n_policies; i++) {
        uint32_t most = tr_kv_max_len(e->kv, e->policies[i].policy);

        e->policies[i].reuses = tr_kv_reuses(e->kv, e->policies[i].policy);
        e->policies[i].max_len = most < e->max_model_len ? most
                                                         : e->max_model_len;
    }
}

tr_status_t
tr_executor_check_files(const tr_executor_t *e, const tr_config_t *config,
                        tr_error_t *err)
{
    bool null = strcmp(config->backend, "null") == 0;

    if (config->cache_memory != 0 && !reusing(e)) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "cache_memory",
                            "cache_memory %llu, but prefixes are not reused:"
                            " the KV policy is %s, kv_reuse %s",
                            (unsigned long long) config->cache_memory,
                            e->policies[0].policy->name, config->kv_reuse);
    }
    if (config->cache_dir[0] == '\0' || (!null && reusing(e))) {
        return TR_OK;
    }
    if (null) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "cache_dir",
                            "cache_dir %.200s with backend null, which computes"
                            " nothing that could be kept in files",
                            config->cache_dir);
    }
    return tr_error_set(err, TR_ERR_UNSUPPORTED, "cache_dir",
                        "cache_dir %.200s, but prefixes are not reused: the KV"
                        " policy is %s, kv_reuse %s",
                        config->cache_dir, e->policies[0].policy->name,
                        config->kv_reuse);
}

tr_status_t
tr_executor_check_inputs(const tr_executor_t *e, uint32_t hidden,
                         tr_error_t *err)
{
    uint32_t both = 2 * e->kv_heads * e->head_dim;

    for (uint32_t i = 0; i < e->n_policies; i++) {
        if (e->policies[i].policy->n_levels != 0
            || e->policies[i].policy->minmax) {
            return tr_error_set(err, TR_ERR_UNSUPPORTED, "swap_recompute",
                                "swap_recompute with kv_policy %s: expected"
                                " full alone, others go to swap_memory as they"
                                " are",
                                e->policies[i].policy->name);
        }
    }
    if (hidden >= both) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "swap_recompute",
                            "swap_recompute: a layer's row has %u bytes at 16"
                            " bits, keys and values of its %u heads %u:"
                            " expected a model whose rows are smaller",
                            2 * hidden, e->kv_heads, 2 * both);
    }
    if (e->long_from != 0) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "swap_recompute",
                            "swap_recompute with a model whose sequences are"
                            " computed anew at %u tokens",
                            e->long_from);
    }
    return TR_OK;
}

tr_status_t
tr_executor_open_inputs(tr_executor_t *e, const tr_config_t *config,
                        uint8_t *memory, size_t row_bytes, tr_error_t *err)
{
    e->inputs = calloc(1, sizeof(*e->inputs));
    if (e->inputs == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "swap_recompute", "no memory");
    }
    return tr_kv_inputs_open(e->inputs, memory, config->swap_memory, e->layers,
                             row_bytes, err);
}

tr_status_t
tr_executor_open_cache(tr_executor_t *e, const tr_config_t *config,
                       uint32_t max_len, const tr_kernels_t *kernels,
                       tr_stream_t stream, tr_error_t *err)
{
    tr_kv_config_t kv;
    tr_status_t rc = TR_OK;

    if (e->n_policies == 0) {
        rc = tr_executor_open_policies(e, config, err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    tr_executor_cache_config(e, config, max_len, &kv);
    kv.kernels = kernels;
    kv.stream = stream;
    rc = tr_kv_cache_create(&kv, &e->kv, err);
    if (rc == TR_OK) {
        rc = tr_executor_check_reuse(e, config, err);
    }
    if (rc == TR_OK) {
        rc = tr_executor_check_files(e, config, err);
    }
    if (rc == TR_OK) {
        tr_executor_describe_cache(e, config);
    }
    return rc;
}

void
tr_executor_close_cache(tr_executor_t *e)
{
    if (e->kv != NULL) {
        tr_kv_cache_free(e->kv);
    }
    tr_kv_guard_free(e->guard);
    if (e->inputs != NULL) {
        tr_kv_inputs_close(e->inputs);
    }
    free(e->inputs);
    while (e->n_policies != 0) {
        tr_kv_policy_free(e->policies[--e->n_policies].policy);
    }
}
