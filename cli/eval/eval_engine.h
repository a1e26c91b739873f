/*
 * A model to evaluate, in this process: tokenizer and template, the policies,
 * and an executor whose cache takes all of them.
 *
 * Two steps, because what is known already need not be run: open() reads
 * everything but the weights, so that results can be looked up by the policies'
 * canonical specs; start() loads the model with a cache for some of the
 * policies.  A page has one layout for each level, and there is room for few of
 * them: start() takes policies as long as their levels fit one cache, and the
 * rest is for another start().
 */
#ifndef TR_EVAL_ENGINE_H
#define TR_EVAL_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/template/chat_template.h"
#include "engine/config/config.h"
#include "engine/executor/executor.h"
#include "engine/kv/kv_cache.h"
#include "engine/tokenizer/tokenizer.h"

#include "cli/options.h"

#define TR_EVAL_POLICIES_MAX 64u

typedef struct {
    tr_config_t config;
    tr_tokenizer_t *tokenizer;
    tr_tokenizer_scratch_t *scratch;
    tr_chat_template_t chat;
    uint64_t model_hash; /* of the model's files, kv_equalise, kv_rotate and
                          * kv_centre, for results' keys */
    uint32_t max_len;    /* of a sequence, as model and configuration say */
    uint32_t layers, kv_heads, head_dim;

    /* as given, and as the policy says it: where prefixes are reused with a word
     * of that */
    char *label[TR_EVAL_POLICIES_MAX], *spec[TR_EVAL_POLICIES_MAX];
    bool reused[TR_EVAL_POLICIES_MAX];
    tr_kv_policy_t *policy[TR_EVAL_POLICIES_MAX];
    tr_page_plan_t plan[TR_EVAL_POLICIES_MAX]; /* with this policy alone */
    uint32_t n_policies;

    /* after start() */
    tr_executor_t *x;
    bool running[TR_EVAL_POLICIES_MAX]; /* its cache takes this policy */
    uint32_t batch;                     /* answers at once */
} tr_eval_engine_t;

typedef struct {
    const char *dir;
    const tr_option_list_t *set; /* engine settings KEY=VALUE */
    const char *kv_memory;       /* as in the configuration, or NULL */
    int64_t threads;             /* 0: all cores */
    int64_t batch;               /* answers at once */
    bool reuse; /* each policy once more, behind cached prefixes */
    bool verbose;
} tr_eval_engine_options_t;

/* specs: borrowed for the call. */
tr_status_t tr_eval_engine_open(const tr_eval_engine_options_t *options,
                                const char *const *specs, uint32_t n,
                                tr_eval_engine_t *e, tr_error_t *err);
/* wanted: [n_policies]; at least one is taken. */
tr_status_t tr_eval_engine_start(tr_eval_engine_t *e, const bool *wanted,
                                 tr_error_t *err);
void tr_eval_engine_stop(tr_eval_engine_t *e);
void tr_eval_engine_close(tr_eval_engine_t *e);

/* Does generation end with this token? */
bool tr_eval_is_end(const tr_eval_engine_t *e, int32_t token);

#endif
