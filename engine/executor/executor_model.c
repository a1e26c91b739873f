/*
 * The executor that runs a real model: executor.h over model.h, the KV cache
 * and the sampler.
 *
 * A step flattens the batch into rows, runs them through the model, then takes
 * logits for the rows that are sampled or scored, as many at a time as the
 * logits buffer holds.  All memory is taken at open.
 */
#include "executor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/thread_pool.h"

#include "engine/base/clock.h"
#include "engine/config/log.h"
#include "engine/model/cpu/model.h"
#include "kv_choose.h"
#include "kernels/kernels.h"

/* A row whose logits are needed. */
typedef struct {
    tr_batch_item_t *item;
    uint32_t index; /* of the token within the item */
    bool score, sample;
} want_t;

typedef struct {
    tr_executor_t base;
    tr_model_t *model;
    uint32_t max_rows, max_items;
    tr_rows_t rows; /* arrays of max_rows, max_items, max_items + 1 */
    bool *seq_long; /* of rows */
    const uint32_t **seq_inputs; /* the same */
    uint8_t *inputs;             /* mapped, swap_memory; NULL: none */
    size_t inputs_size;
    int32_t *tokens;
    want_t *wants;       /* [max_rows] */
    uint32_t *want_rows; /* [max_rows] */
    uint32_t n_wants;
    want_t *pools;       /* [max_rows], with their rows */
    uint32_t *pool_rows; /* [max_rows] */
    uint32_t n_pools;
    uint8_t *scratch; /* [threads][scratch_size] of the sampler */
    size_t scratch_size;
} executor_t;

/* A batch that breaks the contract would overrun the workspaces. */
static bool
batch_fits(const executor_t *x, const tr_batch_t *batch)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < batch->n_items; i++) {
        const tr_batch_item_t *item = &batch->items[i];

        if (item->n == 0 || item->kv_slot < 0 || item->tokens == NULL
            || (uint64_t) item->pos + item->n > x->base.max_model_len) {
            return false;
        }
        n += item->n;
    }
    return batch->n_items <= x->max_items && n <= x->max_rows;
}

/* Copies an item's tokens; one outside the vocabulary fails the item, and its
 * row runs with token 0 so that the others need not care. */
static void
add_rows(executor_t *x, tr_batch_item_t *item, uint32_t row)
{
    for (uint32_t i = 0; i < item->n; i++) {
        int32_t token = item->tokens[i];
        bool last = i + 1 == item->n;
        bool pool = item->pooled != NULL
                    && (item->pool_mean || (item->sample && last));
        bool sample = item->sample && last && item->pooled == NULL;
        bool score = item->scores != NULL && !sample;

        if (token < 0 || (uint32_t) token >= x->base.vocab) {
            item->status = TR_ERR_INVALID;
            token = 0;
        }
        x->tokens[row + i] = token;
        ((uint32_t *) x->rows.row_pos)[row + i] = item->pos + i;
        if (pool) {
            x->pools[x->n_pools] = (want_t){ item, i, false, false };
            x->pool_rows[x->n_pools++] = row + i;
        }
        if (sample || score) {
            x->wants[x->n_wants] = (want_t){ item, i, score, sample };
            x->want_rows[x->n_wants++] = row + i;
        }
    }
}

static void
flatten(executor_t *x, const tr_batch_t *batch)
{
    uint32_t row = 0;

    x->n_wants = x->n_pools = 0;
    for (uint32_t i = 0; i < batch->n_items; i++) {
        tr_batch_item_t *item = &batch->items[i];

        item->status = TR_OK;
        ((int32_t *) x->rows.seq_slot)[i] = item->kv_slot;
        ((uint32_t *) x->rows.seq_row)[i] = row;
        x->seq_long[i] = item->is_long;
        x->seq_inputs[i] = item->inputs;
        add_rows(x, item, row);
        row += item->n;
    }
    ((uint32_t *) x->rows.seq_row)[batch->n_items] = row;
    x->rows.n_rows = row;
    x->rows.n_seqs = batch->n_items;
}

/* Samples or scores one row. */
static tr_status_t
finish_row(executor_t *x, const want_t *w, float *logits, void *scratch)
{
    tr_batch_item_t *item = w->item;

    if (item->logits != NULL && w->index + 1 == item->n) {
        memcpy(item->logits, logits, x->base.vocab * sizeof(*logits));
    }
    if (w->score) {
        return tr_sampler_score(logits, x->base.vocab,
                                item->tokens[w->index + 1], item->top, scratch,
                                &item->scores[w->index]);
    }
    return tr_sampler_sample(item->sampler, logits, item->mask, scratch,
                             item->out);
}

typedef struct {
    executor_t *x;
    uint32_t first; /* of the wants, in row 0 of the logits */
} finish_t;

static void
finish_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const finish_t *a = arg;
    executor_t *x = a->x;
    tr_model_t *m = x->model;

    for (uint32_t i = first; i < end; i++) {
        const want_t *w = &x->wants[a->first + i];
        tr_status_t rc = finish_row(x, w, m->logits + i * m->ld_logits,
                                    x->scratch + worker * x->scratch_size);

        if (rc != TR_OK) { /* several rows may fail alike */
            __atomic_store_n(&w->item->status, rc, __ATOMIC_RELAXED);
        }
    }
}

static tr_status_t
finish(executor_t *x)
{
    tr_model_t *m = x->model;
    finish_t a = { x, 0 };

    for (uint32_t first = 0; first < x->n_wants; first += m->logit_rows) {
        uint32_t n = x->n_wants - first;

        n = n < m->logit_rows ? n : m->logit_rows;
        if (tr_model_logits(m, x->want_rows + first, n) != TR_OK) {
            return TR_ERR_INTERNAL;
        }
        a.first = first;
        tr_thread_pool_run(m->stream.thread_pool, m->stream.threads, n, 1,
                           finish_rows, &a);
    }
    return TR_OK;
}

/* The rows that are pooled, in the order of their positions. */
static tr_status_t
pool(executor_t *x)
{
    tr_model_t *m = x->model;
    uint32_t width = x->base.width;

    if (x->n_pools != 0
        && tr_model_final(m, x->pool_rows, x->n_pools) != TR_OK) {
        return TR_ERR_INTERNAL;
    }
    for (uint32_t i = 0; i < x->n_pools; i++) {
        const want_t *w = &x->pools[i];
        const float *row = m->normed + i * m->ld_hidden;
        float *sum = w->item->pooled;

        if (!w->item->pool_mean || w->item->pos + w->index == 0) {
            memcpy(sum, row, width * sizeof(*sum));
            continue;
        }
        for (uint32_t k = 0; k < width; k++) {
            sum[k] += row[k];
        }
    }
    return TR_OK;
}

static tr_status_t
submit(tr_executor_t *e, const tr_batch_t *batch)
{
    executor_t *x = (executor_t *) e;
    tr_kv_view_t view;
    tr_status_t rc;

    if (!batch_fits(x, batch)) {
        tr_log(TR_LEVEL_ERROR,
               "a batch exceeds the executor items=%u tokens=%u max_items=%u "
               "max_tokens=%u",
               batch->n_items, batch->n_tokens, x->max_items, x->max_rows);
        return TR_ERR_INTERNAL;
    }
    flatten(x, batch);
    tr_kv_view(e->kv, &view);
    if (batch->n_items != 0 && batch->items[0].returns) {
        return tr_model_return(x->model, &view, &x->rows);
    }
    rc = tr_model_forward(x->model, &view, &x->rows, x->tokens);
    if (rc == TR_OK) {
        rc = pool(x);
    }
    return rc == TR_OK ? finish(x) : rc;
}

static void
executor_free(tr_executor_t *e)
{
    executor_t *x = (executor_t *) e;

    tr_executor_close_cache(e);
    tr_model_free(x->model);
    free(x->tokens);
    free((void *) x->rows.row_pos);
    free(x->seq_long);
    free(x->seq_inputs);
    if (x->inputs != NULL) {
        munmap(x->inputs, x->inputs_size);
    }
    free((void *) x->rows.seq_slot);
    free((void *) x->rows.seq_row);
    free(x->wants);
    free(x->want_rows);
    free(x->pools);
    free(x->pool_rows);
    free(x->scratch);
    free(x);
}

static tr_status_t
take_arrays(executor_t *x, int threads, tr_error_t *err)
{
    size_t rows = x->max_rows, items = x->max_items;

    x->scratch_size = tr_pad(tr_sampler_scratch_size(x->base.vocab), 64);
    x->tokens = calloc(rows, sizeof(int32_t));
    x->rows.row_pos = calloc(rows, sizeof(uint32_t));
    x->rows.seq_slot = calloc(items, sizeof(int32_t));
    x->seq_long = calloc(items, sizeof(bool));
    x->seq_inputs = calloc(items, sizeof(*x->seq_inputs));
    x->model->seq_inputs = x->seq_inputs;
    x->model->seq_long = x->base.long_from != 0 ? x->seq_long : NULL;
    x->rows.seq_row = calloc(items + 1, sizeof(uint32_t));
    x->wants = calloc(rows, sizeof(want_t));
    x->want_rows = calloc(rows, sizeof(uint32_t));
    x->pools = calloc(rows, sizeof(want_t));
    x->pool_rows = calloc(rows, sizeof(uint32_t));
    x->scratch = aligned_alloc(64, (size_t) threads * x->scratch_size);
    if (!x->tokens || !x->rows.row_pos || !x->rows.seq_slot || !x->rows.seq_row
        || !x->seq_long || !x->seq_inputs || !x->wants || !x->want_rows
        || !x->pools || !x->pool_rows || !x->scratch) {
        return tr_error_set(err, TR_ERR_NOMEM, "max_batch_tokens",
                            "out of memory: tables for %zu rows", rows);
    }
    return TR_OK;
}

static tr_status_t
open_model(executor_t *x, const tr_config_t *config, int threads,
           tr_error_t *err)
{
    tr_model_options_t options = {
        .dir = config->model,
        .ignore_config = config->ignore_config,
        .load_format = config->load_format,
        .dummy_seed = config->dummy_seed,
        .dummy_dtype = TR_BF16, /* as most files have them */
        .packed = strcmp(config->weights_format, "auto") == 0,
        .quantise = strcmp(config->cpu_weights, "int8") == 0   ? TR_CODES_INT8
                    : strcmp(config->cpu_weights, "int4") == 0 ? TR_CODES_INT4
                                                               : TR_CODES_NONE,
        .mapped = strcmp(config->load_format, "copy") != 0,
        .equalise = config->kv_equalise,
        .centre = tr_executor_centre(config),
        .rotate = tr_executor_rotate(config),
        .kernels = tr_kernels_cpu(NULL),
        .threads = threads,
        .max_rows = config->max_batch_tokens,
        .max_seqs = config->max_num_seqs,
        .max_len = config->max_model_len,
        .kv_memory = config->kv_memory,
    };
    uint64_t begun = tr_now_us();
    tr_status_t rc;

    rc = tr_model_open(&options, &x->model, err);
    if (rc != TR_OK) {
        return rc;
    }
    tr_log(TR_LEVEL_NOTICE,
           "model loaded type=%s parameters=%" PRIu64
           " weights_mib=%zu mapped_mib=%" PRIu64
           " kernels=%s threads=%d ms=%.0f",
           x->model->config.model_type,
           tr_recipe_parameters(&x->model->config.recipe),
           x->model->weights_size >> 20, x->model->mapped >> 20,
           options.kernels->name, threads,
           (double) (tr_now_us() - begun) * 1e-3);
    return TR_OK;
}

static tr_status_t
open_guard(executor_t *x, const tr_config_t *config, tr_error_t *err)
{
    tr_status_t rc = TR_OK;

    if (config->kv_guard_every != 0 && tr_executor_compresses(&x->base)) {
        rc = tr_model_guard(x->model, config->kv_guard_every, &x->base.guard,
                            err);
        x->model->guard = x->base.guard;
    }
    return rc;
}

/* Rows are kept as they are, so that what is made of them has the same bits. */
static tr_status_t
open_inputs(executor_t *x, const tr_config_t *config, tr_error_t *err)
{
    uint32_t hidden = x->model->config.recipe.hidden;
    tr_status_t rc;

    if (!config->swap_recompute) {
        return TR_OK;
    }
    rc = tr_executor_check_inputs(&x->base, hidden, err);
    if (rc != TR_OK) {
        return rc;
    }
    x->inputs_size = config->swap_memory;
    x->inputs = config->swap_memory == 0 ? NULL
                                         : tr_arena_map(config->swap_memory);
    if (x->inputs == NULL && config->swap_memory != 0) {
        return tr_error_set(err, TR_ERR_NOMEM, "swap_memory", "no memory");
    }
    rc = tr_executor_open_inputs(&x->base, config, x->inputs,
                                 hidden * sizeof(float), err);
    x->model->inputs = x->base.inputs;
    return rc;
}

static tr_status_t
open_cache(executor_t *x, const tr_config_t *config, tr_error_t *err)
{
    const tr_model_t *m = x->model;
    tr_status_t rc = tr_executor_open_policies(&x->base, config, err);

    if (rc == TR_OK) {
        rc = open_guard(x, config, err);
    }
    if (rc == TR_OK) {
        rc = tr_executor_open_cache(&x->base, config, x->base.max_model_len,
                                    m->kernels, m->stream, err);
    }
    if (rc == TR_OK) {
        tr_executor_fit_cache(&x->base);
        rc = open_inputs(x, config, err);
    }
    return rc;
}

static int
threads_of(const tr_config_t *config)
{
    return config->threads ? (int) config->threads : tr_thread_pool_cores();
}

/* With kv_policy auto, *chosen becomes the configuration with what was taken. */
static tr_status_t
choose_policy(executor_t *x, const tr_config_t **config, tr_config_t *chosen,
              tr_error_t *err)
{
    tr_kv_choice_t choice;
    tr_status_t rc;

    if (!tr_kv_chooses(*config)) {
        return TR_OK;
    }
    rc = tr_kv_choose(x->model, *config, &choice, err);
    if (rc == TR_OK) {
        tr_kv_chosen(*config, &choice, chosen);
        *config = chosen;
    }
    return rc;
}

tr_status_t
tr_executor_model_choose(const tr_config_t *config, tr_kv_choice_t *out,
                         tr_error_t *err)
{
    executor_t x = { .max_rows = config->max_batch_tokens };
    tr_status_t rc = open_model(&x, config, threads_of(config), err);

    if (rc == TR_OK) {
        rc = tr_kv_choose(x.model, config, out, err);
    }
    tr_model_free(x.model);
    return rc;
}

tr_status_t
tr_executor_model_open(const tr_config_t *config, tr_executor_t **out,
                       tr_error_t *err)
{
    int threads = threads_of(config);
    tr_config_t chosen;
    executor_t *x = calloc(1, sizeof(*x));
    tr_status_t rc;

    if (x == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    x->max_rows = config->max_batch_tokens;
    x->max_items = config->max_num_seqs;
    rc = open_model(x, config, threads, err);
    if (rc == TR_OK) {
        rc = choose_policy(x, &config, &chosen, err);
    }
    if (rc == TR_OK) {
        x->base.submit = submit;
        x->base.complete = tr_executor_complete_computed;
        x->base.free = executor_free;
        x->base.pool = x->model->stream;
        x->base.width = x->model->config.recipe.hidden;
        x->base.weights = x->model->cost;
        rc = tr_executor_describe(&x->base, "cpu", &x->model->config, config,
                                  config->kv_memory, err);
    }
    if (rc == TR_OK) {
        rc = open_cache(x, config, err);
    }
    if (rc == TR_OK) {
        rc = take_arrays(x, threads, err);
    }
    if (rc != TR_OK) {
        executor_free(&x->base);
        return rc;
    }
    *out = &x->base;
    return TR_OK;
}
