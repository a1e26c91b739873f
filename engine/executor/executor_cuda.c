/*
 * The executor that runs a model on a GPU (executor_cuda.h): opening.
 *
 *   library, device                  cuda_library.c
 *   memory that others still hold    executor_cuda_wait.c
 *   weights                          model_cuda_weights.c
 *   workspaces, uploads, results     sized by the configuration
 *   KV cache                         what is left of gpu_memory_utilization
 *   two idle steps, then a graph for each bucket
 *
 * All memory is taken here.
 */
#include "executor_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_library.h"
#include "engine/base/clock.h"
#include "engine/config/log.h"
#include "kernels/thread_pool.h"

/* What compressing prompts takes, by which their number before one batch is
 * bounded. */
#define PROMPT_BYTES (256ull << 20)
#define PROMPTS_MAX 8u

/* Threads that make masks, unless `threads` says how many. */
#define MASK_THREADS 16

static tr_status_t
device_error(tr_executor_cuda_t *x, const char *what, tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_INTERNAL, "device",
                        "backend cuda: %s failed: %s", what, x->cuda->reason());
}

/* ---- device and model --------------------------------------------------- */

static tr_status_t
open_device(tr_executor_cuda_t *x, const tr_config_t *config, tr_error_t *err)
{
    tr_status_t rc = tr_cuda_library_open(config->cuda_library, &x->cuda, err);

    if (rc == TR_OK) {
        rc = tr_cuda_library_check(x->cuda, config->device, &x->info, err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    if (x->cuda->open((int) config->device, &x->device) != 0
        || x->cuda->stream_open(&x->device, &x->stream) != 0) {
        return device_error(x, "opening the device", err);
    }
    x->device.trial = config->cuda_trial;
    tr_log(TR_LEVEL_NOTICE,
           "gpu device=%u name=\"%s\" compute=%u.%u memory_mib=%" PRIu64
           " free_mib=%" PRIu64 " driver=%u.%u",
           config->device, x->info.name, x->info.major, x->info.minor,
           x->info.memory >> 20, x->info.free_memory >> 20,
           x->info.driver / 1000, x->info.driver % 1000 / 10);
    return tr_executor_cuda_await(x, config, err);
}

static tr_status_t
open_model(tr_executor_cuda_t *x, const tr_config_t *config, tr_error_t *err)
{
    const tr_model_cuda_options_t options = {
        .dir = config->model,
        .ignore_config = config->ignore_config,
        .load_format = config->load_format,
        .dtype = config->dtype,
        .packed = strcmp(config->weights_format, "auto") == 0,
        .dummy_seed = config->dummy_seed,
        .fp8 = strcmp(config->cuda_activations, "16") == 0  ? TR_FP8_NEVER
               : strcmp(config->cuda_activations, "8") == 0 ? TR_FP8_ALWAYS
                                                            : TR_FP8_DECLARED,
        .equalise = config->kv_equalise,
        .centre = tr_executor_centre(config),
        .rotate = tr_executor_rotate(config),
        .cuda = x->cuda,
        .stream = &x->stream,
    };
    uint64_t begun = tr_now_us();
    tr_status_t rc = tr_model_cuda_open(&options, &x->model, err);

    if (rc == TR_OK) {
        tr_log(TR_LEVEL_NOTICE,
               "model loaded type=%s parameters=%" PRIu64
               " weights_mib=%zu dtype=%s ms=%.0f",
               x->model->config.model_type,
               tr_recipe_parameters(&x->model->config.recipe),
               x->model->weights_size >> 20, tr_dtype_name(x->model->type),
               (double) (tr_now_us() - begun) * 1e-3);
    }
    return rc;
}

/* ---- workspaces --------------------------------------------------------- */

/* Bytes that may be used by the engine and others together. */
static double
budget(const tr_executor_cuda_t *x, const tr_config_t *config)
{
    return config->gpu_memory_utilization * (double) x->info.memory;
}

/* What the KV cache may take at most. */
static uint64_t
cache_memory(const tr_executor_cuda_t *x, const tr_config_t *config)
{
    return config->kv_memory != 0 ? config->kv_memory
                                  : (uint64_t) budget(x, config);
}

/* With uncompressed pages alone, every layer has its share of the pool; what
 * may be compressed can be anywhere.  Only scores take room by the token: nobody
 * shares what has some. */
static uint64_t
max_tokens(const tr_executor_cuda_t *x, const tr_config_t *config)
{
    uint64_t token = (uint64_t) x->base.layers * x->base.kv_heads
                     * x->base.head_dim * 4;

    for (uint32_t i = 0; i < x->base.n_policies; i++) {
        if (x->base.policies[i].policy->n_levels != 0) {
            return 0;
        }
    }
    return cache_memory(x, config) / token + 1;
}

static tr_status_t
open_inputs(tr_executor_cuda_t *x, const tr_config_t *config, tr_error_t *err)
{
    const tr_recipe_t *r = &x->model->config.recipe;
    uint64_t bytes = config->swap_memory;
    size_t pieces = x->max_rows / TR_KV_INPUTS_TOKENS + 2ull * x->max_seqs + 1;
    tr_status_t rc;

    if (!config->swap_recompute) {
        return TR_OK;
    }
    rc = tr_executor_check_inputs(&x->base, r->hidden, err);
    if (rc != TR_OK) {
        return rc;
    }
    x->returns = calloc(pieces, sizeof(*x->returns));
    x->inputs = bytes != 0 ? x->cuda->pin(bytes) : NULL;
    if (x->returns == NULL || (x->inputs == NULL && bytes != 0)) {
        return tr_error_set(err, TR_ERR_NOMEM, "swap_memory",
                            "swap_memory takes %llu MiB of pinned host memory:"
                            " %s",
                            (unsigned long long) bytes >> 20,
                            x->cuda->reason());
    }
    /* rows there stand as they do in the model's buffers */
    rc = tr_executor_open_inputs(&x->base, config, x->inputs,
                                 2 * tr_pad(r->hidden, 8), err);
    x->model->inputs = x->base.inputs;
    return rc;
}

static tr_status_t
prepare_model(tr_executor_cuda_t *x, const tr_kv_config_t *kv,
              const tr_config_t *config, tr_error_t *err)
{
    const tr_model_cuda_limits_t limits = {
        .max_rows = x->max_rows,
        .max_seqs = x->max_seqs,
        .max_len = x->base.max_model_len,
        .slots = tr_kv_all_slots(kv),
        .max_tokens = max_tokens(x, config),
        .compresses = tr_executor_compresses(&x->base),
        .timed = true,
        /* their chain leaves no rows to be kept */
        .fused = config->cuda_fused_products && !config->swap_recompute,
    };

    return tr_model_cuda_prepare(x->model, &limits, err);
}

/* The device's side of uploads and results; with base NULL only counts. */
static size_t
lay_memory(tr_executor_cuda_t *x, uint8_t *base)
{
    size_t rows = x->max_rows, seqs = x->max_seqs, at = 0;
    tr_cuda_upload_t l;

    tr_cuda_lay_upload(x->max_rows, x->max_seqs, x->max_rows, x->max_rows, &l);
#define TAKE(field, bytes)                             \
    do {                                               \
        x->field = base ? (void *) (base + at) : NULL; \
        at += tr_pad(bytes, 256);                      \
    } while (0)
    TAKE(upload, l.size);
    TAKE(bias, seqs * TR_LOGIT_BIAS_MAX * sizeof(*x->bias));
    TAKE(bar, seqs * TR_CUDA_BAR_MAX * sizeof(*x->bar));
    TAKE(sampled, rows * sizeof(*x->sampled));
    TAKE(top, rows * TR_CUDA_TOP_MAX * sizeof(*x->top));
    TAKE(pooled, seqs * x->base.width * sizeof(*x->pooled));
    TAKE(late,
         tr_cuda_lay_masks(&x->masks, x->base.vocab, x->max_rows, x->max_seqs));
#undef TAKE
    return at;
}

static bool
take_slot(tr_executor_cuda_t *x, tr_cuda_slot_t *t)
{
    const tr_device_t *cuda = x->cuda;
    size_t rows = x->max_rows, seqs = x->max_seqs;
    tr_cuda_upload_t l;

    tr_cuda_lay_upload(x->max_rows, x->max_seqs, x->max_rows, x->max_rows, &l);
    t->upload = cuda->pin(l.size);
    t->bias = cuda->pin(seqs * TR_LOGIT_BIAS_MAX * sizeof(*t->bias));
    t->bar = cuda->pin(seqs * TR_CUDA_BAR_MAX * sizeof(*t->bar));
    t->sampled = cuda->pin(rows * sizeof(*t->sampled));
    t->top = cuda->pin(rows * TR_CUDA_TOP_MAX * sizeof(*t->top));
    t->pooled = cuda->pin(seqs * x->base.width * sizeof(*t->pooled));
    t->wants = calloc(rows, sizeof(*t->wants));
    t->pools = calloc(seqs, sizeof(*t->pools));
    t->status = calloc(seqs, sizeof(*t->status));
    t->stalled = calloc(seqs, sizeof(*t->stalled));
    return t->upload != NULL && t->bias != NULL && t->bar != NULL
           && t->sampled != NULL && t->top != NULL && t->pooled != NULL
           && t->wants != NULL && t->pools != NULL && t->status != NULL
           && t->stalled != NULL && cuda->event_open(&t->begun) == 0
           && cuda->event_open(&t->done) == 0;
}

static bool
take_masks(tr_executor_cuda_t *x)
{
    const tr_device_t *cuda = x->cuda;
    tr_cuda_masks_t *m = &x->masks;

    m->pinned = cuda->pin(
        tr_cuda_lay_masks(m, x->base.vocab, x->max_rows, x->max_seqs));
    tr_cuda_lay_masks(m, x->base.vocab, x->max_rows, x->max_seqs);
    return m->pinned != NULL && cuda->stream_open(&x->device, &m->stream) == 0
           && cuda->event_open(&m->arrived) == 0;
}

static tr_status_t
take_buffers(tr_executor_cuda_t *x, tr_error_t *err)
{
    size_t bytes = lay_memory(x, NULL);
    bool pinned = true;

    x->memory_size = bytes;
    x->memory = x->cuda->alloc(bytes);
    if (x->memory == NULL) {
        return tr_model_cuda_no_memory(x->model, "uploads and results", bytes,
                                       err);
    }
    lay_memory(x, x->memory);
    x->rows = calloc(x->max_seqs, sizeof(*x->rows));
    x->bases = calloc(x->max_seqs, sizeof(*x->bases));
    for (int i = 0; i < TR_CUDA_SLOTS; i++) {
        pinned = pinned && take_slot(x, &x->slots[i]);
    }
    pinned = pinned && take_masks(x);
    return pinned && x->rows != NULL && x->bases != NULL
               ? TR_OK
               : tr_error_set(err, TR_ERR_NOMEM, "max_batch_tokens",
                              "out of memory: %zu bytes of pinned memory for "
                              "batches of %u tokens",
                              2 * bytes, x->max_rows);
}

/* ---- the cache ---------------------------------------------------------- */

static tr_status_t
open_guard(tr_executor_cuda_t *x, const tr_config_t *config, tr_error_t *err)
{
    const tr_recipe_t *r = &x->model->config.recipe;
    const tr_kv_guard_config_t guard = { .every = config->kv_guard_every,
                                         .layers = r->layers,
                                         .heads = r->query_heads,
                                         .kv_heads = r->kv_heads,
                                         .head_dim = r->head_dim,
                                         .reach = x->base.reach,
                                         .scale = r->attn_scale,
                                         .work = TR_KV_GUARD_WORK_GPU };

    return (config->kv_guard_every != 0 || config->kv_measures)
                   && tr_executor_compresses(&x->base)
               ? tr_kv_guard_create(&guard, &x->base.guard, err)
               : TR_OK;
}

static tr_status_t
configure_cache(const tr_executor_cuda_t *x, const tr_config_t *config,
                tr_kv_config_t *kv, tr_error_t *err)
{
    if (config->max_num_seqs > TR_KV_SLOTS_MAX) {
        return tr_error_set(err, TR_ERR_INVALID, "max_num_seqs",
                            "max_num_seqs is %u, expected at most %u with "
                            "backend cuda",
                            config->max_num_seqs, TR_KV_SLOTS_MAX);
    }
    tr_executor_cache_config(&x->base, config, x->base.max_model_len, kv);
    /* nobody is ever swapped out */
    if (kv->slots <= config->max_num_seqs + tr_executor_load_slots(config)) {
        kv->swap_memory = 0;
    }
    return TR_OK;
}

/* What weights and workspaces leave of our share. */
static tr_status_t
find_memory(tr_executor_cuda_t *x, const tr_config_t *config,
            tr_kv_config_t *kv, tr_error_t *err)
{
    double used, left;

    if (x->cuda->device_info(x->device.ordinal, &x->info) != 0) {
        return device_error(x, "asking for free memory", err);
    }
    used = (double) (x->info.memory - x->info.free_memory);
    left = budget(x, config) - used;
    if (config->kv_memory != 0) {
        return config->kv_memory <= x->info.free_memory
                   ? TR_OK
                   : tr_model_cuda_no_memory(x->model, "kv_memory",
                                             config->kv_memory, err);
    }
    if (left < 1 << 20) {
        return tr_error_set(err, TR_ERR_NOMEM, "gpu_memory_utilization",
                            "backend cuda: out of memory: "
                            "gpu_memory_utilization %g of %.2f GiB leaves "
                            "nothing for the KV cache: %.2f GiB are in use "
                            "(weights %.2f, workspaces %.2f)",
                            config->gpu_memory_utilization,
                            (double) x->info.memory * 0x1p-30, used * 0x1p-30,
                            (double) x->model->weights_size * 0x1p-30,
                            (double) x->model->work_size * 0x1p-30);
    }
    kv->memory = (uint64_t) left >> 20 << 20;
    return TR_OK;
}

static uint32_t
prompts_at_once(const tr_kv_config_t *kv)
{
    uint64_t each = (uint64_t) kv->layers * kv->kv_heads * kv->max_len * 5;
    uint64_t n = PROMPT_BYTES / (each + 1);

    n = n < 1 ? 1 : n < PROMPTS_MAX ? n : PROMPTS_MAX;
    return n < kv->slots ? (uint32_t) n : kv->slots;
}

static tr_status_t
open_cache(tr_executor_cuda_t *x, const tr_config_t *config, tr_kv_config_t *kv,
           tr_error_t *err)
{
    const tr_kv_device_t device = {
        .cuda = x->cuda,
        .stream = &x->stream,
        .max_seqs = x->max_seqs,
        .max_prompts = prompts_at_once(kv),
        .history = x->model->history,
        .guard_ld = x->model->ld_qkv,
        .guard_type = x->model->type,
        .guard_sinks = x->model->sinks,
    };
    tr_status_t rc = find_memory(x, config, kv, err);

    if (rc == TR_OK) {
        rc = tr_kv_device_create(kv, &device, &x->base.kv, err);
    }
    if (rc == TR_OK) {
        rc = tr_executor_check_reuse(&x->base, config, err);
    }
    if (rc == TR_OK) {
        rc = tr_executor_check_files(&x->base, config, err);
    }
    if (rc == TR_OK) {
        tr_executor_describe_cache(&x->base, config);
        tr_executor_fit_cache(&x->base);
    }
    return rc;
}

/* ---- graphs ------------------------------------------------------------- */

/* 1, 2, 4, 8, then in steps that grow with the batch, as the products' do. */
static void
list_buckets(tr_executor_cuda_t *x)
{
    uint32_t n = 1;

    while (n < x->max_seqs && x->n_buckets + 1 < TR_CUDA_BUCKETS_MAX) {
        x->bucket[x->n_buckets++] = n;
        n = n < 8 ? 2 * n : n < 32 ? n + 8 : tr_cuda_matmul_rows(n + 1);
    }
    x->bucket[x->n_buckets++] = x->max_seqs;
}

/* Ways of attention that a decode step of these policies may need, before and
 * after compression. */
static uint32_t
decode_paths(const tr_executor_cuda_t *x)
{
    uint32_t paths = 0;

    for (uint32_t i = 0; i < x->base.n_policies; i++) {
        const tr_kv_policy_t *p = x->base.policies[i].policy;

        paths |= 1u << tr_model_cuda_path(x->model, p, 0, 1);
        paths |= 1u << tr_model_cuda_path(x->model, p, 1, 1);
    }
    return paths;
}

static tr_status_t
capture(tr_executor_cuda_t *x, uint32_t b, tr_error_t *err)
{
    int rc = x->cuda->graph_begin(&x->stream), end;

    x->model->failed = NULL;
    if (rc == 0) {
        rc = tr_executor_cuda_launch(x, x->bucket[b]);
        end = x->cuda->graph_end(&x->stream, &x->graph[b]);
        rc = rc != 0 ? rc : end;
    }
    return rc == 0 ? TR_OK
                   : tr_error_set(err, TR_ERR_INTERNAL, "device",
                                  "backend cuda: a decode step of %u sequences "
                                  "cannot be captured: %s: %s",
                                  x->bucket[b],
                                  x->model->failed != NULL ? x->model->failed
                                                           : "the graph",
                                  rc == TR_KERNEL_BADARG ? "arguments"
                                                         : x->cuda->reason());
}

static tr_status_t
open_graphs(tr_executor_cuda_t *x, tr_error_t *err)
{
    uint64_t begun = tr_now_us(), said = begun;
    tr_status_t rc;

    list_buckets(x);
    x->decode_paths = decode_paths(x);
    rc = tr_executor_cuda_idle(x, 1);
    if (rc == TR_OK) {
        rc = tr_executor_cuda_idle(x, x->max_seqs);
    }
    if (rc != TR_OK) {
        return device_error(x, "the first step", err);
    }
    for (uint32_t b = 0; rc == TR_OK && b < x->n_buckets; b++) {
        rc = capture(x, b, err);
        if (tr_now_us() - said > 2000000) {
            said = tr_now_us();
            tr_log(TR_LEVEL_NOTICE, "capturing graphs done=%u of=%u", b + 1,
                   x->n_buckets);
        }
    }
    memset(&x->times, 0, sizeof(x->times));
    if (rc == TR_OK) {
        tr_log(TR_LEVEL_NOTICE, "graphs captured buckets=%u largest=%u ms=%.0f",
               x->n_buckets, x->max_seqs,
               (double) (tr_now_us() - begun) * 1e-3);
    }
    return rc;
}

/* ---- open and free ------------------------------------------------------ */

static void
free_slot(const tr_executor_cuda_t *x, tr_cuda_slot_t *t)
{
    void *const pinned[] = { t->upload,  t->bias, t->bar,
                             t->sampled, t->top,  t->pooled };

    for (size_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]); i++) {
        if (pinned[i] != NULL) {
            x->cuda->unpin(pinned[i]);
        }
    }
    if (t->begun != NULL) {
        x->cuda->event_close(t->begun);
    }
    if (t->done != NULL) {
        x->cuda->event_close(t->done);
    }
    free(t->wants);
    free(t->pools);
    free(t->status);
    free(t->stalled);
}

static void
free_masks(tr_executor_cuda_t *x)
{
    tr_cuda_masks_t *m = &x->masks;

    if (m->stream.stream != NULL) {
        x->cuda->stream_wait(&m->stream);
        x->cuda->stream_close(&m->stream);
    }
    if (m->arrived != NULL) {
        x->cuda->event_close(m->arrived);
    }
    if (m->pinned != NULL) {
        x->cuda->unpin(m->pinned);
    }
    tr_thread_pool_free(x->base.pool.thread_pool);
}

static void
executor_free(tr_executor_t *e)
{
    tr_executor_cuda_t *x = (tr_executor_cuda_t *) e;

    if (x->stream.stream != NULL) {
        x->cuda->stream_wait(&x->stream);
    }
    for (uint32_t b = 0; b < x->n_buckets; b++) {
        if (x->graph[b] != NULL) {
            x->cuda->graph_close(x->graph[b]);
        }
    }
    tr_executor_close_cache(e);
    for (int i = 0; i < TR_CUDA_SLOTS && x->cuda != NULL; i++) {
        free_slot(x, &x->slots[i]);
    }
    free_masks(x);
    if (x->logits != NULL) {
        x->cuda->unpin(x->logits);
    }
    if (x->inputs != NULL) {
        x->cuda->unpin(x->inputs);
    }
    if (x->memory != NULL) {
        x->cuda->release(x->memory);
    }
    tr_model_cuda_free(x->model);
    if (x->stream.stream != NULL) {
        x->cuda->stream_close(&x->stream);
    }
    free(x->rows);
    free(x->bases);
    free(x->returns);
    free(x);
}

static tr_status_t
open_pool(tr_executor_cuda_t *x, const tr_config_t *config, tr_error_t *err)
{
    tr_stream_t *pool = &x->base.pool;
    int cores = tr_thread_pool_cores();

    pool->threads = config->threads != 0   ? (int) config->threads
                    : cores < MASK_THREADS ? cores
                                           : MASK_THREADS;
    pool->thread_pool = tr_thread_pool_new(pool->threads);
    return pool->thread_pool != NULL
               ? TR_OK
               : tr_error_set(err, TR_ERR_NOMEM, "threads",
                              "no memory or threads for %d threads",
                              pool->threads);
}

/* What all of it takes, for who starts in its place after a kill.  What the
 * device has less than before is no measure of that: others come and go
 * meanwhile. */
static void
count_memory(tr_executor_cuda_t *x, const tr_kv_config_t *kv)
{
    x->base.device_memory = x->model->weights_size + x->model->work_size
                            + x->memory_size + kv->memory;
}

static tr_status_t
open_parts(tr_executor_cuda_t *x, const tr_config_t *config, tr_error_t *err)
{
    tr_kv_config_t kv;
    tr_status_t rc = open_pool(x, config, err);

    if (rc == TR_OK) {
        rc = open_device(x, config, err);
    }
    if (rc == TR_OK) {
        rc = open_model(x, config, err);
    }
    if (rc == TR_OK) {
        x->base.weights = x->model->cost;
        x->base.width = x->model->config.recipe.hidden;
        rc = tr_executor_describe(&x->base, "cuda", &x->model->config, config,
                                  cache_memory(x, config), err);
    }
    if (rc == TR_OK) {
        rc = tr_executor_open_policies(&x->base, config, err);
    }
    if (rc == TR_OK) {
        rc = open_guard(x, config, err);
    }
    if (rc == TR_OK) {
        rc = configure_cache(x, config, &kv, err);
    }
    if (rc == TR_OK) {
        rc = open_inputs(x, config, err);
    }
    if (rc == TR_OK) {
        rc = prepare_model(x, &kv, config, err);
    }
    if (rc == TR_OK) {
        rc = take_buffers(x, err);
    }
    if (rc == TR_OK) {
        rc = open_cache(x, config, &kv, err);
    }
    if (rc == TR_OK) {
        rc = open_graphs(x, err);
    }
    if (rc == TR_OK) {
        count_memory(x, &kv);
    }
    return rc;
}

tr_status_t
tr_executor_cuda_open(const tr_config_t *config, tr_executor_t **out,
                      tr_error_t *err)
{
    tr_executor_cuda_t *x = calloc(1, sizeof(*x));
    tr_status_t rc;

    if (x == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    x->base.device = x->info.name;
    x->base.ahead = TR_CUDA_SLOTS - 1;
    x->base.submit = tr_executor_cuda_submit;
    x->base.sample = tr_executor_cuda_sample;
    x->base.complete = tr_executor_cuda_complete;
    x->base.free = executor_free;
    x->max_rows = config->max_batch_tokens;
    x->max_seqs = config->max_num_seqs;
    rc = open_parts(x, config, err);
    if (rc != TR_OK) {
        executor_free(&x->base);
        return rc;
    }
    *out = &x->base;
    return TR_OK;
}
