/*
 * What a request asks of the sampler, and what the sampler answers.
 *
 * Parameters are checked where the request is parsed (openai.c) and are valid
 * from then on.  All arrays are borrowed from the request's arena.
 */
#ifndef TR_SAMPLING_H
#define TR_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

#define TR_TOP_LOGPROBS_MAX 20
#define TR_STOP_STRINGS_MAX 16
#define TR_STOP_STRING_BYTES 512
#define TR_STOP_TOKENS_MAX 256
#define TR_LOGIT_BIAS_MAX 1024

typedef struct {
    int32_t token;
    float bias; /* added to the logit, [-100, 100] */
} tr_logit_bias_t;

typedef struct {
    const char *text; /* UTF-8, not NUL-terminated */
    uint32_t len;     /* bytes, 1..TR_STOP_STRING_BYTES */
} tr_stop_string_t;

typedef struct {
    float temperature;        /* 0: greedy; else (0, 2] */
    float top_p;              /* (0, 1], 1: off */
    float min_p;              /* [0, 1], 0: off */
    int32_t top_k;            /* 0: off */
    float presence_penalty;   /* [-2, 2], over output tokens */
    float frequency_penalty;  /* [-2, 2], over output tokens */
    float repetition_penalty; /* [1e-6, 10], over prompt and output, 1: off */
    bool has_seed;            /* else the engine draws one */
    uint64_t seed;
    uint32_t max_tokens; /* of one choice; 0 only with echo */
    uint32_t min_tokens; /* eos and stop tokens are barred before */
    bool ignore_eos;
    int32_t logprobs; /* -1: none; else alternatives wanted, 0..20 */
    uint32_t n_bias;  /* at most TR_LOGIT_BIAS_MAX */
    const tr_logit_bias_t *bias;
    uint32_t n_stop;
    const tr_stop_string_t *stop;
    bool include_stop;      /* keep the stop string in the text (default no) */
    uint32_t n_stop_tokens; /* at most TR_STOP_TOKENS_MAX */
    const int32_t *stop_tokens;
} tr_sampling_params_t;

typedef struct {
    int32_t token;
    float logprob; /* natural log, of the raw (unpenalised) distribution */
} tr_top_t;

/* One sampled (or scored prompt) token. */
typedef struct {
    int32_t token;
    float logprob;
    uint32_t n_top; /* filled up to params->logprobs, best first */
    tr_top_t top[TR_TOP_LOGPROBS_MAX];
} tr_sampled_t;

#endif
