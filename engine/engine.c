/*
 * The engine (engine.h): puts the parts together, in the order in which they
 * need each other, and takes them apart in reverse.
 *
 *   check_host: memory, directories (engine_check.c)
 *   lock the socket path      (a second engine fails before it loads anything)
 *   tokenizer, template, executor
 *   status page, request parser, publisher, step loop
 *   bind the socket, frontend thread
 *
 * The socket appears last: whoever can connect finds a ready engine.
 */
#include "engine.h"

#include "engine_internal.h"
#include "gpu_meter.h"

#include <signal.h>
#include <stdatomic.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <tokenring/version.h>

#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/kv/kv_store.h"
#include "engine/template/chat_template.h"
#include "engine/executor/executor.h"
#include "engine/frontend/frontend.h"
#include "engine/api/request_parser.h"
#include "engine/transport/listener.h"
#include "engine/config/log.h"
#include "engine/scheduler/loop.h"
#include "engine/api/openai.h"
#include "engine/model/model_id.h"
#include "engine/redis/redis_publisher.h"
#include "engine/tokenizer/tokenizer.h"

/* n * prompts of one request. */

struct tr_engine {
    tr_config_t config;
    tr_listener_t listener;
    tr_tokenizer_t *tokenizer;
    tr_generation_t generation;
    tr_chat_template_t chat_template;
    tr_dialect_t *dialect;
    tr_embedding_t embedding;
    tr_vocabulary_t *vocabulary;
    tr_grammar_cache_t *grammars;
    tr_executor_t *executor;
    tr_status_page_t *status;
    int status_fd;
    int wake_fd;
    tr_openai_t api;
    tr_request_parser_t *parser; /* the frontend thread's once that runs */
    tr_loop_t *loop;             /* the same */
    tr_frontend_t *frontend;
    tr_redis_publisher_t *publisher; /* NULL: no Redis */
    tr_gpu_meter_t *meter;           /* NULL: no figures of a GPU */
    bool ended;
    atomic_bool lost; /* the GPU is */
};

/* Requests fail, one batch after the other; who supervises the process starts
 * it again.  It ends as at any SIGTERM, so that all of them hear of it. */
static void
device_lost(void *arg, const char *what)
{
    tr_engine_t *e = arg;

    (void) what;
    atomic_store(&e->lost, true);
    kill(getpid(), SIGTERM);
}

bool
tr_engine_lost(const tr_engine_t *e)
{
    return atomic_load(&e->lost);
}

/* The sampling of a request that says nothing, where the model's authors said
 * something. */
static void
say_generation(const tr_config_t *c, const tr_generation_t *g)
{
    const char *source = strcmp(c->generation_config, "vllm") == 0 ? "taken"
                                                                   : "ignored";

    if (!isnan(g->temperature) || !isnan(g->top_p) || !isnan(g->top_k)
        || !isnan(g->min_p) || !isnan(g->repetition_penalty)) {
        tr_log(TR_LEVEL_NOTICE,
               "sampling defaults of generation_config.json %s (setting "
               "generation_config %s) temperature=%g top_p=%g top_k=%g "
               "min_p=%g repetition_penalty=%g",
               source, c->generation_config, g->temperature, g->top_p, g->top_k,
               g->min_p, g->repetition_penalty);
    }
}

static tr_status_t
load_model(tr_engine_t *e, tr_error_t *err)
{
    const tr_config_t *c = &e->config;
    uint32_t words;
    tr_status_t rc;

    tr_generation_init(&e->generation);
    rc = tr_engine_load_text(c, &e->generation, &e->tokenizer,
                             &e->chat_template, err);
    if (rc != TR_OK) {
        return rc;
    }
    say_generation(c, &e->generation);
    rc = tr_dialect_open(c->tool_dialect, &e->chat_template, e->tokenizer,
                         &e->dialect, err);
    if (rc != TR_OK) {
        return rc;
    }
    if (c->reasoning_end[0] != '\0') {
        rc = tr_dialect_end_thoughts(e->dialect, c->reasoning_end, err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    tr_log(TR_LEVEL_NOTICE, "dialect tools=%s reasoning=%s",
           tr_dialect_name(e->dialect) ? tr_dialect_name(e->dialect) : "none",
           tr_dialect_reasons(e->dialect) ? "yes" : "no");
    rc = tr_embedding_load(c->model, c->embedding_pooling, &e->embedding, err);
    if (rc != TR_OK) {
        return rc;
    }
    words = tr_tokenizer_vocab_size(e->tokenizer);
    if (strcmp(c->backend, "null") == 0) {
        return tr_executor_null_open(c, words, &e->executor, err);
    }
    rc = tr_executor_open(c, &e->executor, err);
    if (rc == TR_OK) {
        e->executor->lost = device_lost;
        e->executor->lost_arg = e;
    }
    if (rc == TR_OK && words > e->executor->vocab) {
        /* what it adds can not be asked for; openai.c refuses such ids */
        tr_log(TR_LEVEL_WARN,
               "the tokenizer knows more tokens than the model "
               "tokenizer=%u model=%u",
               words, e->executor->vocab);
    }
    return rc;
}

/* What is needed to constrain answers. */
static tr_status_t
open_grammars(tr_engine_t *e, tr_error_t *err)
{
    e->vocabulary = tr_vocabulary_of(e->tokenizer, e->executor->vocab);
    e->grammars = e->vocabulary == NULL ? NULL
                                        : tr_grammar_cache_new(e->vocabulary);
    e->executor->vocabulary = e->vocabulary;
    return e->grammars != NULL
               ? TR_OK
               : tr_error_set(err, TR_ERR_NOMEM, "",
                              "no memory for the vocabulary as a trie");
}

/* ---- status page -------------------------------------------------------- */

/* The names by which requests choose a policy, as far as they fit. */
static void
list_policies(const tr_executor_t *x, char *out, size_t size)
{
    size_t used = 0;
    uint32_t i;

    for (i = 0; i < x->n_policies; i++) {
        const char *name = tr_executor_policy_name(&x->policies[i]);
        size_t n = strlen(name);

        if (used + n + 2 > size) {
            break;
        }
        if (used != 0) {
            out[used++] = ' ';
        }
        memcpy(out + used, name, n + 1);
        used += n;
    }
}

static void
fill_card(const tr_engine_t *e, tr_status_card_t *card)
{
    const tr_executor_t *x = e->executor;
    uint8_t level_of[TR_KV_LAYOUTS_MAX];

    memcpy(card->model, e->config.served_names, sizeof(card->model));
    snprintf(card->engine, sizeof(card->engine), "%s", e->config.name);
    snprintf(card->backend, sizeof(card->backend), "%s", x->backend);
    snprintf(card->kv_policy, sizeof(card->kv_policy), "%s",
             x->policies[0].policy->spec);
    list_policies(x, card->kv_policies, sizeof(card->kv_policies));
    card->created = (int64_t) time(NULL);
    card->parameters = x->parameters;
    card->max_model_len = x->max_model_len;
    card->vocab_size = x->vocab;
    card->layers = x->layers;
    card->kv_heads = x->kv_heads;
    card->query_heads = x->query_heads;
    card->head_dim = x->head_dim;
    card->kv_page_bytes = tr_kv_page_bytes(x->kv);
    card->kv_pages = tr_kv_pages(x->kv);
    card->max_queue = e->config.max_queue;
    card->kv_full_token_bytes = tr_kv_token_bytes(x->kv);
    card->kv_levels = tr_executor_levels(x, level_of, card->level_name,
                                         card->level_token_bytes);
}

static void
fill_weights(const tr_executor_t *x, tr_status_counters_t *c)
{
    atomic_store(&c->weights_file_bytes, x->weights.file_bytes);
    atomic_store(&c->weights_bytes, x->weights.bytes);
    snprintf(c->weights_format, sizeof(c->weights_format), "%s",
             x->weights.format);
}

/* Who may continue whose requests.  Without an id nobody may. */
static void
fill_identity(const tr_engine_t *e, tr_status_card_t *card)
{
    char settings[1024];
    uint64_t exact;

    bool staged = strcmp(e->config.prefill_level, TR_KV_PREFILL_NONE) != 0;

    snprintf(settings, sizeof(settings), "%s|%s|%s|%s%s%s",
             e->config.chat_template, e->config.tool_dialect,
             e->config.generation_config, card->kv_policy, staged ? "|" : "",
             staged ? e->config.prefill_level : "");
    if (tr_model_identify(e->config.model, settings, card->model_id) != TR_OK) {
        tr_log(TR_LEVEL_WARN,
               "the model has no identity: requests do not move to or from "
               "this engine");
        return;
    }
    snprintf(settings, sizeof(settings), "%s|%s|%s|%u|%d|%d|%s|%s|%s|%s|%s|%d",
             card->backend,
             e->executor->device != NULL ? e->executor->device : "",
             e->config.dtype, tr_executor_rotate(&e->config),
             e->config.kv_equalise, tr_executor_centre(&e->config), TR_VERSION,
             e->config.load_format, e->config.weights_format,
             e->config.cpu_weights, e->config.cuda_activations,
             e->config.cuda_trial);
    exact = tr_model_hash(0, card->model_id, sizeof(card->model_id));
    card->exact_id = tr_model_hash(exact, settings, strlen(settings));
}

/* Prefixes in files are of this model, with all that its numbers depend on.  Files
 * outlive the engine, and its weights may be changed meanwhile: the model's id,
 * for which large files are not read whole, does not tell such weights apart. */
static tr_status_t
open_store(tr_engine_t *e, const tr_status_card_t *card, tr_error_t *err)
{
    uint8_t identity[TR_STORE_ID_BYTES];
    uint64_t stamp;
    tr_status_t rc = TR_OK;

    if (e->config.cache_memory != 0) {
        rc = tr_kv_shelf_open(e->executor->kv, e->config.cache_memory, err);
    }
    if (rc != TR_OK || e->config.cache_dir[0] == '\0') {
        return rc;
    }
    if (card->exact_id == 0
        || tr_model_stamp(e->config.model, &stamp) != TR_OK) {
        return tr_error_set(err, TR_ERR_IO, "cache_dir",
                            "cache_dir %.200s: the model has no identity, so "
                            "its files could not be told from those of "
                            "another model",
                            e->config.cache_dir);
    }
    memcpy(identity, card->model_id, sizeof(identity));
    for (uint32_t i = 0; i < sizeof(card->exact_id); i++) {
        identity[i] ^= (uint8_t) (card->exact_id >> (8 * i));
        identity[sizeof(stamp) + i] ^= (uint8_t) (stamp >> (8 * i));
    }
    return tr_kv_store_open(e->executor->kv, e->config.cache_dir,
                            e->config.cache_disk, e->config.cache_ttl_us,
                            identity, err);
}

static tr_status_t
open_status(tr_engine_t *e, tr_error_t *err)
{
    uint64_t generation;
    tr_status_t rc;

    if (getrandom(&generation, sizeof(generation), 0)
        != (ssize_t) sizeof(generation)) {
        return tr_error_set(err, TR_ERR_IO, "", "getrandom failed");
    }
    rc = tr_status_create(generation, &e->status, &e->status_fd);
    if (rc != TR_OK) {
        return tr_error_set(err, rc, "", "cannot make the status page");
    }
    fill_card(e, &e->status->card);
    fill_weights(e->executor, &e->status->counters);
    fill_identity(e, &e->status->card);
    return open_store(e, &e->status->card, err);
}

/* ---- threads ------------------------------------------------------------ */

static tr_status_t
start_parser(tr_engine_t *e, tr_error_t *err)
{
    const tr_executor_t *x = e->executor;

    e->api = (tr_openai_t){
        .model = e->config.served_model_name,
        .names = e->config.served_names,
        .tokenizer = e->tokenizer,
        .chat_template = &e->chat_template,
        .dialect = e->dialect,
        .max_model_len = x->max_model_len,
        .vocab = x->vocab,
        .model_id = e->status->card.model_id,
        .eos = x->eos,
        .n_eos = x->n_eos,
        .generation = strcmp(e->config.generation_config, "vllm") == 0
                          ? &e->generation
                          : NULL,
        .embedding = e->embedding,
        .width = x->width,
        .max_choices = e->config.max_choices,
        .policies = x->policies,
        .n_policies = x->n_policies,
        .grammars = e->grammars,
        .grammar_threads = e->config.grammar_threads,
        .effort_budgets = e->config.effort_budgets,
        .keeps_responses = e->config.redis[0] != '\0'
                           && e->config.redis_responses,
        .request_alpha = e->config.kv_request_alpha,
    };
    return tr_request_parser_start(&e->api, e->config.tokenizer_threads,
                                   e->config.max_queue, e->wake_fd, &e->parser,
                                   err);
}

/* Figures of the GPU, where it can be asked; serving goes on without. */
static void
start_meter(tr_engine_t *e)
{
    tr_error_t err = { 0 };
    tr_nvml_t nvml;

    if (strcmp(e->executor->backend, "cuda") != 0) {
        return;
    }
    if (tr_nvml_open(&nvml, &err) != TR_OK
        || tr_gpu_meter_start(&nvml, (unsigned) getpid(), &e->status->counters,
                              &e->meter, &err)
               != TR_OK) {
        tr_log(TR_LEVEL_NOTICE, "the GPU's use and power cannot be read: %s",
               err.text);
    }
}

static tr_status_t
start_threads(tr_engine_t *e, tr_error_t *err)
{
    tr_frontend_options_t options;
    tr_status_t rc;

    e->wake_fd = tr_doorbell_create();
    if (e->wake_fd == -1) {
        return tr_error_set(err, TR_ERR_IO, "", "cannot make an eventfd");
    }
    rc = start_parser(e, err);
    if (rc == TR_OK && e->config.redis[0] != '\0') {
        rc = tr_redis_publisher_start(&e->config, e->status, e->wake_fd,
                                      &e->publisher, err);
    }
    if (rc == TR_OK) {
        rc = tr_loop_start(&e->config, e->executor, e->tokenizer,
                           &e->status->counters, e->wake_fd, &e->loop, err);
    }
    if (rc == TR_OK) {
        rc = tr_listener_open(&e->listener, e->config.socket_mode, err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    options = (tr_frontend_options_t){
        .config = &e->config,
        .listener = &e->listener,
        .status = e->status,
        .status_fd = e->status_fd,
        .wake_fd = e->wake_fd,
        .parser = e->parser,
        .loop = e->loop,
        .events = e->publisher != NULL ? tr_redis_publisher_events(e->publisher)
                                       : NULL,
    };
    return tr_frontend_start(&options, &e->frontend, err);
}

tr_status_t
tr_engine_start(const tr_config_t *config, tr_engine_t **out, tr_error_t *err)
{
    uint64_t begun = tr_now_us() / 1000;
    tr_engine_t *e = calloc(1, sizeof(*e));
    tr_status_t rc;

    *out = NULL;
    if (e == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory for an engine");
    }
    e->config = *config;
    e->status_fd = e->wake_fd = -1;
    tr_listener_init(&e->listener);
    rc = tr_engine_check_host(config, err);
    if (rc == TR_OK) {
        rc = tr_listener_lock(&e->listener, config->socket, true, err);
    }
    if (rc == TR_OK) {
        e->config.gpu_left = e->listener.left;
        rc = load_model(e, err);
    }
    if (rc == TR_OK) {
        tr_listener_note(&e->listener, e->executor->device_memory);
    }
    if (rc == TR_OK) {
        rc = open_grammars(e, err);
    }
    if (rc == TR_OK) {
        rc = open_status(e, err);
    }
    if (rc == TR_OK) {
        tr_crash_tell(&e->status->counters.crashed);
        start_meter(e);
        rc = start_threads(e, err);
    }
    if (rc != TR_OK) {
        tr_engine_stop(e);
        return rc;
    }
    tr_log(TR_LEVEL_NOTICE,
           "engine ready version=%s name=%s model=%s backend=%s "
           "parameters=%llu max_model_len=%u kv_pages=%llu socket=%s "
           "start_ms=%llu",
           TR_VERSION, config->name, config->served_model_name,
           e->executor->backend, (unsigned long long) e->executor->parameters,
           e->executor->max_model_len,
           (unsigned long long) tr_kv_pages(e->executor->kv), config->socket,
           (unsigned long long) (tr_now_us() / 1000 - begun));
    *out = e;
    return TR_OK;
}

/* ---- the end ------------------------------------------------------------ */

static void
end_threads(tr_engine_t *e, uint64_t drain_us)
{
    if (e->frontend != NULL && !e->ended) {
        tr_frontend_end(e->frontend, drain_us);
        e->ended = true;
        e->parser = NULL;
        e->loop = NULL;
    }
}

void
tr_engine_drain(tr_engine_t *e)
{
    tr_log(TR_LEVEL_NOTICE, "engine draining name=%s timeout_ms=%llu",
           e->config.name,
           (unsigned long long) (e->config.drain_timeout_us / 1000));
    end_threads(e, e->config.drain_timeout_us);
}

void
tr_engine_hurry(tr_engine_t *e)
{
    tr_frontend_hurry(e->frontend);
}

void
tr_engine_stop(tr_engine_t *e)
{
    if (e == NULL) {
        return;
    }
    end_threads(e, 0);
    if (e->frontend != NULL) {
        tr_frontend_free(e->frontend);
    }
    if (e->loop != NULL) {
        tr_loop_stop(e->loop);
    }
    if (e->parser != NULL) {
        tr_request_parser_stop(e->parser);
    }
    if (e->publisher != NULL) {
        tr_redis_publisher_stop(
            e->publisher); /* nobody tells it anything any more */
    }
    tr_gpu_meter_stop(e->meter);
    tr_listener_close(&e->listener);
    if (e->wake_fd != -1) {
        close(e->wake_fd);
    }
    if (e->status != NULL) {
        tr_crash_tell(NULL);
        tr_status_unmap(e->status);
        close(e->status_fd);
    }
    if (e->executor != NULL) {
        e->executor->free(e->executor);
    }
    tr_dialect_free(e->dialect);
    tr_grammar_cache_free(e->grammars);
    tr_vocabulary_free(e->vocabulary);
    tr_chat_template_free(&e->chat_template);
    if (e->tokenizer != NULL) {
        tr_tokenizer_free(e->tokenizer);
    }
    free(e);
}
