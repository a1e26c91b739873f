/*
 * kv_policy auto: the cheapest KV policy that suits a model.
 *
 * Measured at start, with the weights that will serve: a text is computed and
 * compressed under each candidate (kv_measure.h), from cheapest to dearest, and
 * the first whose errors are at most TR_KV_CHOOSE_KEYS and _VALUES is taken; `full`
 * when none is.  These are well below the guard's bounds, at which answers are
 * surely lost: users will send other texts than this one.
 *
 * A policy that gives tokens several levels must bear its lowest one for all of
 * them, too, window and sinks apart: keys then at most TR_KV_CHOOSE_LOWEST.  Which
 * tokens have which level is settled by the scores of one prompt; where attention
 * falls apart without the tokens that were spared, answers hang on them.  So a
 * model whose first token's key is far off the rest is found
 * (models/stress/first):
 * its large value hides in the norm that errors are shares of.
 *
 * The text is kv_calibration.txt in the model's directory, of which the first
 * TR_KV_CHOOSE_TOKENS tokens count; without that file, one that is built in.
 */
#ifndef TR_KV_CHOOSE_H
#define TR_KV_CHOOSE_H

#include "engine/config/config.h"
#include "engine/kv/kv_guard.h"
#include "engine/model/model_config.h"

typedef struct tr_model tr_model_t; /* engine/model/cpu/model.h */

#define TR_KV_CHOOSE_FILE "kv_calibration.txt"
#define TR_KV_CHOOSE_FILE_MAX (1u << 20)
#define TR_KV_CHOOSE_TOKENS 2048u
#define TR_KV_CHOOSE_TOKENS_MIN 256u
#define TR_KV_CHOOSE_KEYS 0.05
#define TR_KV_CHOOSE_VALUES 0.40
#define TR_KV_CHOOSE_LOWEST 0.20
#define TR_KV_CHOOSE_WHY 1024u

typedef struct {
    char spec[TR_KV_SPEC_MAX + 1]; /* as kv_policy would have it */
    char why[TR_KV_CHOOSE_WHY];    /* "uniform:levels=4/2 keys 8%.., .." */
} tr_kv_choice_t;

/* Is that what the configuration asks for? */
bool tr_kv_chooses(const tr_config_t *config);

/* A model, and who measures with it: tr_kv_measure's arguments, after arg. */
typedef struct {
    const tr_recipe_t *recipe;
    uint32_t max_len; /* tokens of a sequence */
    tr_status_t (*measure)(void *arg, const tr_kv_policy_t *const *policies,
                           uint32_t n_policies, const int32_t *tokens,
                           uint32_t n, tr_kv_guard_error_t *error,
                           double *memory, tr_error_t *err);
    void *arg;
} tr_kv_subject_t;

tr_status_t tr_kv_choose_for(const tr_kv_subject_t *s,
                             const tr_config_t *config, tr_kv_choice_t *out,
                             tr_error_t *err);
/* On the CPU: the model is open, and nothing of it under way. */
tr_status_t tr_kv_choose(tr_model_t *m, const tr_config_t *config,
                         tr_kv_choice_t *out, tr_error_t *err);
/* The configuration with what was chosen. */
void tr_kv_chosen(const tr_config_t *config, const tr_kv_choice_t *choice,
                  tr_config_t *out);

#endif
