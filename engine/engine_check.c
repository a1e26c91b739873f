/*
 * What can be said about a configuration without serving it: `--check`, and the
 * part of it that a start begins with (engine_internal.h).
 *
 * A check goes through what a start goes through, but for the weights, of which
 * it reads names and shapes alone, and for the GPU's memory, which is known only
 * when the weights are in it.
 */
#include "engine_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/config/log.h"
#include "engine/executor/cuda_library.h"
#include "engine/executor/executor.h"
#include "engine/model/cpu/model.h"
#include "engine/model/cuda/model_cuda.h"
#include "engine/model/model_config.h"
#include "engine/model/model_directory.h"
#include "engine/model/model_tensors.h"
#include "engine/model/safetensors.h"
#include "engine/redis/redis_tls.h"
#include "engine/store/store.h"

/* ---- the host ----------------------------------------------------------- */

/* A limit of memory in a file of a control group; UINT64_MAX: none. */
static uint64_t
read_limit(const char *path)
{
    unsigned long long value;
    FILE *f = fopen(path, "re");
    bool read;

    if (f == NULL) {
        return UINT64_MAX;
    }
    read = fscanf(f, "%llu", &value) == 1; /* or "max" */
    fclose(f);
    return read ? value : UINT64_MAX;
}

/* What this process can have at most: the machine's, or its control group's. */
static uint64_t
host_memory(void)
{
    uint64_t all = (uint64_t) sysconf(_SC_PHYS_PAGES)
                   * (uint64_t) sysconf(_SC_PAGESIZE);
    char line[256], path[512];
    FILE *f = fopen("/proc/self/cgroup", "re");
    uint64_t limit = read_limit("/sys/fs/cgroup/memory.max");

    all = limit < all ? limit : all;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, "0::/", 4) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max",
                     line + 3);
            limit = read_limit(path);
            all = limit < all ? limit : all;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return all;
}

/* The pool is memory of this host but with a GPU. */
static tr_status_t
check_memory(const tr_config_t *c, tr_error_t *err)
{
    uint64_t all = host_memory();

    if (strcmp(c->backend, "cuda") == 0 || c->kv_memory <= all) {
        return TR_OK;
    }
    return tr_error_set(err, TR_ERR_NOMEM, "kv_memory",
                        "kv_memory is %llu MiB, but this machine has %llu "
                        "MiB of memory in all",
                        (unsigned long long) (c->kv_memory >> 20),
                        (unsigned long long) (all >> 20));
}

/* Is something else in the place of the socket or file? */
static tr_status_t
check_free(const char *key, const char *path, bool socket, tr_error_t *err)
{
    struct stat st;

    if (stat(path, &st) != 0) {
        return TR_OK;
    }
    if (socket && !S_ISSOCK(st.st_mode)) {
        return tr_error_set(err, TR_ERR_INVALID, key,
                            "%s \"%s\" exists and is not a socket; remove it "
                            "or "
                            "choose another path",
                            key, path);
    }
    if (!socket && S_ISDIR(st.st_mode)) {
        return tr_error_set(err, TR_ERR_INVALID, key,
                            "%s \"%s\" is a directory; expected a file", key,
                            path);
    }
    return TR_OK;
}

/* Can a file be made or written at path? */
static tr_status_t
check_place(const char *key, const char *path, tr_error_t *err)
{
    const char *slash = strrchr(path, '/');
    char dir[TR_CONFIG_PATH] = ".";
    struct stat st;

    if (slash != NULL) {
        snprintf(dir, sizeof(dir), "%.*s",
                 slash == path ? 1 : (int) (slash - path), path);
    }
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
    } else if (access(path, F_OK) == 0 ? access(path, W_OK) == 0
                                       : access(dir, W_OK | X_OK) == 0) {
        return check_free(key, path, strcmp(key, "socket") == 0, err);
    }
    return tr_error_set(err, TR_ERR_IO, key,
                        "%s \"%s\": cannot write a file in %s: %s", key, path,
                        dir, strerror(errno));
}

tr_status_t
tr_engine_check_host(const tr_config_t *c, tr_error_t *err)
{
    tr_status_t rc = check_memory(c, err);

    if (rc == TR_OK) {
        rc = check_place("socket", c->socket, err);
    }
    if (rc == TR_OK && strcmp(c->log, "stderr") != 0) {
        rc = check_place("log", c->log, err);
    }
    if (rc == TR_OK && c->pid[0] != '\0') {
        rc = check_place("pid", c->pid, err);
    }
    if (rc == TR_OK && c->null_trace[0] != '\0') {
        rc = check_place("null_trace", c->null_trace, err);
    }
    if (rc == TR_OK && c->cache_dir[0] != '\0') {
        rc = tr_store_check(c->cache_dir, err);
    }
    return rc;
}

/* Is path in a directory that the units make when they start an engine, and that
 * is not there yet? */
static bool
is_made_later(const char *path, const char *dir, FILE *out)
{
    size_t n = strlen(dir);

    if (strncmp(path, dir, n) != 0 || path[n] != '/'
        || access(dir, F_OK) == 0) {
        return false;
    }
    fprintf(out, "%s is not there: tokenring-engine.service makes it\n", dir);
    return true;
}

static tr_status_t
check_host(const tr_config_t *config, FILE *out, tr_error_t *err)
{
    tr_config_t c = *config;

    if (is_made_later(c.socket, "/run/tokenring", out)) {
        snprintf(c.socket, sizeof(c.socket), "/run/x");
    }
    if (is_made_later(c.cache_dir, "/var/cache/tokenring", out)) {
        c.cache_dir[0] = '\0';
    }
    return tr_engine_check_host(&c, err);
}

/* ---- the model ---------------------------------------------------------- */

/* Can it be a model that we run?  Backend null needs a tokenizer alone. */
static tr_status_t
judge_model(const tr_config_t *config, tr_generation_t *generation,
            tr_error_t *err)
{
    bool null = strcmp(config->backend, "null") == 0;
    bool weights = !null && strcmp(config->load_format, "auto") == 0;
    tr_model_config_t model;
    tr_status_t rc = tr_model_directory_check(config->model, weights, err);

    if (rc != TR_OK || null) {
        return rc;
    }
    rc = tr_model_config_load(config->model, config->ignore_config, &model,
                              err);
    if (rc == TR_OK && generation != NULL) {
        *generation = model.generation;
    }
    return rc;
}

tr_status_t
tr_engine_load_text(const tr_config_t *config, tr_generation_t *generation,
                    tr_tokenizer_t **tokenizer,
                    tr_chat_template_t *chat_template, tr_error_t *err)
{
    tr_status_t rc = judge_model(config, generation, err);

    memset(chat_template, 0, sizeof(*chat_template)); /* it is freed anyway */
    if (rc == TR_OK) {
        rc = tr_tokenizer_load(config->model, tokenizer, err);
    }
    if (rc == TR_OK) {
        rc = tr_chat_template_load(config->model, config->chat_template,
                                   *tokenizer, chat_template, err);
    }
    return rc;
}

/* What the model is, for people, and whether the backend can run it. */
static tr_status_t
check_recipe(const tr_config_t *config, tr_recipe_t *recipe, FILE *out,
             tr_error_t *err)
{
    uint32_t rotate = tr_executor_rotate(config);
    char text[TR_RECIPE_TEXT];

    tr_recipe_describe(recipe, text);
    fputs(text, out);
    return strcmp(config->backend, "cuda") == 0
               ? tr_model_cuda_check(recipe, rotate, err)
               : tr_model_check(recipe, rotate, err);
}

/* What the policies are, and where they have their settings from. */
static void
say_policies(const tr_executor_t *e, const tr_config_t *config, FILE *out)
{
    for (uint32_t i = 0; i < e->n_policies; i++) {
        const tr_executor_policy_t *p = &e->policies[i];

        fprintf(out, "kv policy: %s, from %s%s\n", p->policy->spec,
                tr_kv_source_name(p->source),
                tr_kv_policy_uncalibrated(p->policy, p->source)
                    ? " (tokenring calibrate finds the model's own)"
                    : "");
    }
    if (strcmp(config->prefill_level, TR_KV_PREFILL_NONE) != 0) {
        fprintf(out,
                "kv of prompts that are computed: %s, but for the last %u "
                "tokens or less\n",
                config->prefill_level, TR_KV_STAGE);
    }
}

/* Length, policies, and how much of them the pool holds. */
static tr_status_t
check_cache(const tr_config_t *config, const tr_model_config_t *model,
            FILE *out, tr_error_t *err)
{
    bool gpu = strcmp(config->backend, "cuda") == 0;
    tr_stream_t none = { 1, NULL };
    tr_executor_t shape;
    tr_status_t rc;

    memset(&shape, 0, sizeof(shape));
    rc = tr_executor_describe(&shape, config->backend, model, config,
                              config->kv_memory, err);
    if (rc == TR_OK) {
        rc = gpu ? tr_executor_open_policies(&shape, config, err)
                 : tr_executor_open_cache(&shape, config, shape.max_model_len,
                                          NULL, none, err);
    }
    if (rc == TR_OK) {
        say_policies(&shape, config, out);
    }
    if (rc == TR_OK && !gpu) {
        tr_executor_fit_cache(&shape);
        fprintf(out, "kv cache: %llu MiB, requests of up to %u tokens\n",
                (unsigned long long) (config->kv_memory >> 20),
                shape.max_model_len);
    }
    tr_executor_close_cache(&shape);
    return rc;
}

/* All that config.json asks for is there, in its shape. */
static tr_status_t
check_weights(const tr_config_t *config, const tr_model_config_t *model,
              tr_error_t *err)
{
    tr_safetensors_t *files = NULL;
    tr_status_t rc = tr_model_tensors_open(model, config->model, &files, err);

    if (files != NULL) {
        tr_safetensors_close(files);
    }
    return rc;
}

/* That there is a GPU to run it on. */
static tr_status_t
check_device(const tr_config_t *config, tr_error_t *err)
{
    const tr_device_t *cuda;
    tr_cuda_device_info_t info;
    tr_status_t rc = tr_cuda_library_open(config->cuda_library, &cuda, err);

    return rc == TR_OK ? tr_cuda_library_check(cuda, config->device, &info, err)
                       : rc;
}

/* What kv_policy auto would take: this one check computes. */
static tr_status_t
check_choice(const tr_config_t **config, tr_config_t *chosen, FILE *out,
             tr_error_t *err)
{
    tr_kv_choice_t choice;
    tr_status_t rc;

    if (!tr_kv_chooses(*config)) {
        return TR_OK;
    }
    rc = tr_executor_choose(*config, &choice, err);
    if (rc == TR_OK) {
        fprintf(out, "kv policy: auto takes %s: %s\n", choice.spec, choice.why);
        tr_kv_chosen(*config, &choice, chosen);
        *config = chosen;
    }
    return rc;
}

/* What becomes of quantised weights. */
static void
say_quantised(const tr_config_t *config, const tr_model_config_t *model,
              FILE *out)
{
    bool packed = strcmp(config->weights_format, "auto") == 0;

    fprintf(out, "quantised weights: %s, %s (weights_format %s, backend %s)\n",
            tr_quant_method_name(model->quantization.method),
            packed ? "kept packed where there are kernels"
                   : "expanded to 16 bits at load",
            config->weights_format, config->backend);
}

static tr_status_t
check_model(const tr_config_t *config, FILE *out, tr_error_t *err)
{
    tr_model_config_t model;
    tr_config_t chosen;
    tr_status_t rc = tr_model_config_load(config->model, config->ignore_config,
                                          &model, err);

    if (rc == TR_OK) {
        rc = check_recipe(config, &model.recipe, out, err);
    }
    if (rc == TR_OK && model.quantization.method != TR_QUANT_NONE) {
        say_quantised(config, &model, out);
    }
    if (rc == TR_OK) {
        rc = check_choice(&config, &chosen, out, err);
    }
    if (rc == TR_OK) {
        rc = check_cache(config, &model, out, err);
    }
    if (rc == TR_OK && strcmp(config->backend, "cuda") == 0) {
        rc = check_device(config, err);
    }
    if (rc == TR_OK && strcmp(config->load_format, "auto") == 0) {
        rc = check_weights(config, &model, err);
    }
    return rc;
}

/* Of backend null, which needs no more of a model than its tokenizer. */
static tr_status_t
check_null(const tr_config_t *config, uint32_t words, tr_error_t *err)
{
    tr_config_t plain = *config;
    tr_executor_t *executor;
    tr_status_t rc;

    plain.null_trace[0] = '\0'; /* it would be made */
    rc = tr_executor_null_open(&plain, words, &executor, err);
    if (rc == TR_OK) {
        executor->free(executor);
    }
    return rc;
}

static tr_status_t
check_redis(const tr_config_t *config, tr_error_t *err)
{
    tr_redis_tls_t tls;
    tr_status_t rc;

    if (config->redis[0] == '\0') {
        return TR_OK;
    }
    rc = tr_redis_tls_open(&tls, config, err);
    tr_redis_tls_close(&tls);
    return rc;
}

tr_status_t
tr_engine_check(const tr_config_t *config, FILE *out, tr_error_t *err)
{
    tr_chat_template_t chat_template = { 0 };
    tr_tokenizer_t *tokenizer = NULL;
    uint32_t words = 0;
    tr_status_t rc = check_host(config, out, err);

    if (rc == TR_OK) {
        rc = tr_engine_load_text(config, NULL, &tokenizer, &chat_template, err);
        tr_chat_template_free(&chat_template);
    }
    if (tokenizer != NULL) {
        words = tr_tokenizer_vocab_size(tokenizer);
        tr_tokenizer_free(tokenizer);
    }
    if (rc == TR_OK) {
        rc = strcmp(config->backend, "null") == 0
                 ? check_null(config, words, err)
                 : check_model(config, out, err);
    }
    return rc == TR_OK ? check_redis(config, err) : rc;
}
