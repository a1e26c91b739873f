/*
 * What a model directory says about its architecture: config.json and
 * generation_config.json, in the spellings of transformers 4 and 5.
 *
 * Everything is checked here; the model may rely on it.  What we cannot run
 * exactly is refused by name, never approximated.
 */
#ifndef TR_MODEL_CONFIG_H
#define TR_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>

#define TR_EOS_MAX 8

typedef enum { TR_ROPE_DEFAULT, TR_ROPE_LINEAR, TR_ROPE_LLAMA3 } tr_rope_type_t;

typedef struct {
    char model_type[32]; /* llama, mistral, qwen2, qwen3 */
    uint32_t vocab, hidden, intermediate, layers;
    uint32_t query_heads, kv_heads, head_dim;
    uint32_t max_positions;  /* bounded by the sliding window where one is on */
    uint32_t sliding_window; /* 0: none is in use */
    float norm_eps;
    bool tied; /* the embedding is the output matrix */
    bool qkv_bias, o_bias, qk_norm;

    tr_rope_type_t rope;
    double rope_theta, rope_factor;
    double rope_low, rope_high; /* llama3: frequency factors */
    uint32_t rope_original;     /* llama3: positions of the first training */

    float init_range; /* standard deviation of load_format dummy */
    int32_t eos[TR_EOS_MAX];
    uint32_t n_eos;
    int32_t bos; /* -1: none */
} tr_model_config_t;

tr_status_t tr_model_config_load(const char *dir, tr_model_config_t *out,
                                 tr_error_t *err);

/* inv_freq[head_dim / 2], with the scaling applied. */
void tr_model_config_rope(const tr_model_config_t *c, float *inv_freq);

/* Tokens of the longest sequence that is to be provided for: `asked`, or with 0
 * all positions; where keys and values have `kv_memory` bytes (0: nobody knows),
 * one more than can be there at 16 bits, as every prompt is at first, so that the
 * KV cache has the last word. */
uint32_t tr_model_config_len(const tr_model_config_t *c, uint32_t asked,
                             uint64_t kv_memory);

/* Weights, embeddings counted once when tied. */
uint64_t tr_model_config_parameters(const tr_model_config_t *c);

#endif
