/*
 * What a model directory says about its architecture: config.json and
 * generation_config.json, in the spellings of transformers 4 and 5.
 *
 * Everything is checked here; the model may rely on it.  What we cannot run
 * exactly is refused by name, never approximated.  What a key means is up to the
 * family (model_families.h).
 */
#ifndef TR_MODEL_CONFIG_H
#define TR_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "model_recipe.h"
#include "weights/quantization.h"

#define TR_EOS_MAX 8

/* What generation_config.json says about sampling; NAN: nothing. */
typedef struct {
    double temperature, top_p, top_k, min_p, repetition_penalty;
} tr_generation_t;

void tr_generation_init(tr_generation_t *g);

typedef struct {
    const char *model_type; /* of config.json */
    const struct tr_family *family;
    tr_recipe_t recipe;
    tr_quantization_t quantization;
    bool attention_bias;     /* as it stands there */
    float query_scalar;      /* Gemma: attention's scale is 1 / sqrt of it */
    float logit_divisor;     /* Granite */
    uint32_t shared_experts; /* GLM: each of them is as wide as others */
    bool qk_norm;            /* GLM: use_qk_norm */
    float init_range;        /* standard deviation of load_format dummy */
    int32_t eos[TR_EOS_MAX];
    uint32_t n_eos;
    tr_generation_t generation;
    int32_t bos; /* -1: none */
} tr_model_config_t;

/* `ignore`: names of keys, separated by blanks or commas, that may stand there
 * although we do not know them (the setting ignore_config), or NULL. */
tr_status_t tr_model_config_load(const char *dir, const char *ignore,
                                 tr_model_config_t *out, tr_error_t *err);

#endif
