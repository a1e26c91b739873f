/*
 * The executor: runs one batch through a model and samples.
 *
 * The step loop knows models only through this interface.  executor_model.c
 * runs a model on the CPU, executor_cuda.c on a GPU; executor_null.c emits
 * tokens at a set rate, to measure everything else.
 *
 * The result for a sequence depends on that sequence alone: not on the other
 * rows of the batch, not on how its prompt was cut into chunks.  Tests hold
 * this bit for bit on the CPU; on a GPU sums are formed in an order that
 * depends on the size of the batch.
 */
#ifndef TR_EXECUTOR_H
#define TR_EXECUTOR_H

#include <string.h>

#include "engine/config/config.h"
#include "engine/grammar/grammar.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_inputs.h"
#include "engine/kv/policy/kv_policy_file.h"
#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"
#include "engine/sampling/sampler.h"
#include "engine/tokenizer/tokenizer.h"
#include "kv_choose.h"
#include <tokenring/status.h>

/* One sequence's share of a step: tokens at positions [pos, pos + n).  What it
 * points to is read by submit alone (by `sample`, of late items with a mask), and
 * may be gone by complete.  The places
 * of results are written by complete (by submit, where that computes). */
typedef struct {
    int32_t kv_slot; /* room for pos + n tokens is reserved */
    uint32_t pos, n;
    /* [n]; NULL, n = 1: the token that the slot's row in the batch before
     * samples, which nobody knows yet */
    const int32_t *tokens;
    bool is_long; /* its sequence has more tokens than long_from, or will when
                   * this is computed: the same for all its items, so the others
                   * must be computed anew when it begins */
    /* NULL, or the chunks of these tokens' rows (kv_inputs.h), by position: they
     * are kept, or where the item returns, its keys and values are made of them,
     * and nothing else: all items of such a batch do, and want no more. */
    const uint32_t *inputs;
    bool returns;
    bool sample;                 /* the last position's logits give a token */
    const tr_sampler_t *sampler; /* with sample */
    uint32_t number;             /* of that token in its output; what sampler
                                  * counts may be behind */
    const uint32_t *mask; /* with sample: tokens that may come (grammar.h),
                           * [ceil(vocab / 32)]; NULL: any */
    /* with sample: mask comes with the executor's `sample`, where that is not
     * NULL the only way */
    bool late;
    tr_sampled_t *out; /* with sample; NULL by complete: not wanted any
                                  * more */
    /* NULL (also by complete, as out), or [width]: in the place of a token, what the final norm gives for
     * the last position, with sample; with pool_mean the sum over all
     * positions, which begins at position 0 */
    float *pooled;
    bool pool_mean;
    /* NULL, or [n]: score of the token that follows each position, i.e.
     * scores[i] is for tokens[i + 1]; the caller gives n tokens + 1 known */
    tr_sampled_t *scores;
    int32_t top; /* alternatives wanted in scores */
    /* NULL, or [vocab]: raw logits of the last position, with sample, or with
     * scores and n = 1.  For measuring: not while another batch is under way,
     * and of at most 256 rows a batch whose logits are wanted; else the item
     * fails with TR_ERR_UNSUPPORTED. */
    float *logits;
    /* by complete: TR_OK; TR_AGAIN: no page was left for its one token, behind
     * a prompt, and nothing of it was stored; or this item alone failed.  When
     * a row is TR_AGAIN, so is that of its slot in the batch behind. */
    tr_status_t status;
} tr_batch_item_t;

typedef struct {
    tr_batch_item_t *items;
    uint32_t n_items;
    uint32_t n_tokens; /* sum of n, at most the executor's max_batch_tokens */
} tr_batch_t;

#define TR_EXECUTOR_POLICIES 16

/* A policy that requests may run with, as the configuration names it. */
typedef struct {
    tr_kv_policy_t *policy;
    tr_kv_source_t source; /* of its settings */
    char given[TR_KV_SPEC_MAX + 1];
    uint32_t max_len; /* of a sequence with it, at most max_model_len */
    bool reuses;      /* prefixes of its sequences serve others */
} tr_executor_policy_t;

typedef struct tr_executor tr_executor_t;

struct tr_executor {
    const char *backend; /* "cpu", "cuda", "null" */
    const char *device;  /* the GPU's name, owned; NULL: it computes here */
    uint32_t vocab;
    uint32_t max_model_len; /* after the configuration's bound */
    uint32_t layers, kv_heads, query_heads, head_dim;
    uint32_t reach[TR_LAYERS_MAX]; /* [layers] as in tr_layer_recipe_t */
    uint64_t parameters;
    tr_weights_cost_t weights; /* all 0: there are none */
    uint32_t long_from; /* tr_recipe_long_from; 0: is_long means nothing */
    int32_t eos[8];     /* config.json, generation_config.json */
    uint32_t n_eos;
    tr_kv_cache_t *kv;      /* owned by the executor, as are its policies */
    tr_kv_guard_t *guard;   /* of the cache, owned; NULL: none */
    tr_kv_inputs_t *inputs; /* owned; NULL: swap_recompute is off */
    tr_executor_policy_t policies[TR_EXECUTOR_POLICIES];     /* default first */
    const tr_kv_policy_t *kv_policies[TR_EXECUTOR_POLICIES]; /* the same */
    uint32_t n_policies;
    /* How many batches may be under way when the next is submitted: 0 where
     * submit computes (CPU), 1 where it only starts the work (GPU).  What was
     * asked of `kv` takes effect before the next batch and after those under
     * way. */
    uint32_t ahead;
    uint64_t device_memory; /* bytes of a GPU that it has */
    uint32_t width;         /* of pooled; 0: items may not have it */
    /* Threads that others may use while none of the functions below runs. */
    tr_stream_t pool;
    /* Of its tokenizer, set by who opened it, NULL: no item has a mask;
     * borrowed. */
    const tr_vocabulary_t *vocabulary;
    /* Starts a batch, which may be empty where the cache is not settled
     * (tr_kv_settled): its answers come with complete.  A failure of the whole
     * step is returned here, and then it is not completed, or by its
     * complete. */
    tr_status_t (*submit)(tr_executor_t *e, const tr_batch_t *batch);
    /* NULL where submit computes.  Called behind submit, when the batches in front
     * are complete and before anything else is asked: only now are masks of late
     * items known, which depend on the tokens of those batches.  Their tokens are
     * sampled then; the rest of the batch is computed in the meantime.  Without
     * late items it does nothing. */
    void (*sample)(tr_executor_t *e, const tr_batch_t *batch);
    /* Waits for the oldest batch under way, which is `batch`, and writes its
     * results.  All three are called by the step loop only. */
    tr_status_t (*complete)(tr_executor_t *e, const tr_batch_t *batch);
    /* NULL: always at once.  Else asked after each token (now: CLOCK_MONOTONIC,
     * us): when may the sequence in kv_slot be in a batch again?  The loop
     * sleeps until the earliest of these times, or until something happens,
     * so an executor that paces never waits. */
    uint64_t (*due)(tr_executor_t *e, int32_t kv_slot, uint64_t now);
    /* Set by who opened it, NULL: nobody.  Called once, by the step loop's
     * thread, when the device is gone for good: every batch fails from now on,
     * with TR_ERR_LOST, and the process should end. */
    void (*lost)(void *arg, const char *why);
    void *lost_arg;
    void (*free)(tr_executor_t *e);
};

/* Submits, samples and completes, for those who have nothing to do in between. */
tr_status_t tr_executor_run(tr_executor_t *e, const tr_batch_t *batch);

/* The complete of an executor whose submit computes (ahead 0). */
tr_status_t tr_executor_complete_computed(tr_executor_t *e,
                                          const tr_batch_t *batch);

/* kv_rotate as bits (rotate.h): auto is off where nothing is compressed. */
uint32_t tr_executor_rotate(const tr_config_t *config);
/* kv_centre (centre.h): auto is off where nothing is compressed. */
bool tr_executor_centre(const tr_config_t *config);

/* The model's card, and how long its sequences may be: the model's bound, or
 * the configured one when that is lower, or what about fits kv_memory bytes,
 * before tr_executor_fit_cache knows it exactly. */
tr_status_t tr_executor_describe(tr_executor_t *e, const char *backend,
                                 const tr_model_config_t *model,
                                 const tr_config_t *config, uint64_t kv_memory,
                                 tr_error_t *err);

/* How a request names this policy: as the configuration does, but for one with
 * a file, whose path is nobody's business.  Borrowed. */
static inline const char *
tr_executor_policy_name(const tr_executor_policy_t *p)
{
    return strstr(p->given, "alpha_file") != NULL ? p->policy->name : p->given;
}

/* What executors share (executor.c): the policies and the cache that the
 * configuration asks for, with the shape in *e.  kernels: NULL for an executor
 * that stores nothing and keeps all uncompressed. */
tr_status_t tr_executor_open_policies(tr_executor_t *e,
                                      const tr_config_t *config,
                                      tr_error_t *err);
/* Does any of them compress? */
bool tr_executor_compresses(const tr_executor_t *e);
/* Policies that were opened before are taken as they are. */
tr_status_t tr_executor_open_cache(tr_executor_t *e, const tr_config_t *config,
                                   uint32_t max_len,
                                   const tr_kernels_t *kernels,
                                   tr_stream_t stream, tr_error_t *err);
/* The parts of that for an executor with a cache of its own kind: what it is to
 * be (after the policies; kernels and stream are left out), and, when e->kv is
 * there, a line in the log. */
void tr_executor_cache_config(const tr_executor_t *e, const tr_config_t *config,
                              uint32_t max_len, tr_kv_config_t *out);
/* Of these slots, those of what comes from files, or from the shelf. */
uint32_t tr_executor_load_slots(const tr_config_t *config);
/* Are compressed prefixes reused, under policies that allow it? */
bool tr_executor_reuses_compressed(const tr_config_t *config);
/* kv_reuse yes wants a policy that reuses. */
tr_status_t tr_executor_check_reuse(const tr_executor_t *e,
                                    const tr_config_t *config, tr_error_t *err);
/* cache_dir and cache_memory want prefixes that are reused, too. */
tr_status_t tr_executor_check_files(const tr_executor_t *e,
                                    const tr_config_t *config, tr_error_t *err);
/* swap_recompute: refuses by name where rows do not pay, or cannot be kept. */
tr_status_t tr_executor_check_inputs(const tr_executor_t *e, uint32_t hidden,
                                     tr_error_t *err);
/* The store of rows in this memory, of swap_memory bytes, which stays the
 * caller's; e->inputs is closed by tr_executor_close_cache. */
tr_status_t tr_executor_open_inputs(tr_executor_t *e, const tr_config_t *config,
                                    uint8_t *memory, size_t row_bytes,
                                    tr_error_t *err);
void tr_executor_describe_cache(const tr_executor_t *e,
                                const tr_config_t *config);
/* One sequence must always be able to run to its end: max_model_len, for the
 * default policy, and max_len of each. */
void tr_executor_fit_cache(tr_executor_t *e);
/* Both, as far as they were opened. */
void tr_executor_close_cache(tr_executor_t *e);

/* Levels as users see them, by bits of keys and values: what the layouts of a
 * plan share.  level_of[layout] is an index into name, bytes a token of all
 * heads (of the largest that share it).  Returns how many there are. */
uint32_t tr_executor_levels(const tr_executor_t *e,
                            uint8_t level_of[TR_KV_LAYOUTS_MAX],
                            char name[TR_STATUS_LEVELS][16],
                            uint64_t token_bytes[TR_STATUS_LEVELS]);

/* Opens config->model with the backend named there, cpu or cuda.  Says what it
 * does through log.h (progress on long work). */
tr_status_t tr_executor_open(const tr_config_t *config, tr_executor_t **out,
                             tr_error_t *err);
/* What kv_policy auto takes for the configuration's model; the model is loaded
 * for that, and let go. */
tr_status_t tr_executor_choose(const tr_config_t *config, tr_kv_choice_t *out,
                               tr_error_t *err);
tr_status_t tr_executor_model_choose(const tr_config_t *config,
                                     tr_kv_choice_t *out, tr_error_t *err);
tr_status_t tr_executor_cuda_choose(const tr_config_t *config,
                                    tr_kv_choice_t *out, tr_error_t *err);
/* One backend's own.  The device's leaves kv_policy auto to tr_executor_open()
 * and refuses it, so that a program with CUDA alone needs nothing of the CPU. */
tr_status_t tr_executor_model_open(const tr_config_t *config,
                                   tr_executor_t **out, tr_error_t *err);
tr_status_t tr_executor_cuda_open(const tr_config_t *config,
                                  tr_executor_t **out, tr_error_t *err);
tr_status_t tr_executor_null_open(const tr_config_t *config, uint32_t vocab,
                                  tr_executor_t **out, tr_error_t *err);

#endif
