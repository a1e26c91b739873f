/*
 * device_sampling.h: logits to tokens, as part of the device's interface
 * (device.h), in the order and with the meaning of engine/sampling/sampler.h:
 * bias, penalties, bars, masks; greedy, or temperature, top-k, top-p, min-p and a
 * draw that depends on seed and the token's number alone; logprobs of the raw
 * logits.
 *
 * Weights are whole numbers, multiples of 2^-44 of the best token's weight, so
 * that the order of sums has no influence: a row's bits do not depend on its
 * batch.  They are rounded other than on the host, so that a draw on the very
 * edge of two tokens' shares may differ, and a token that is less likely than
 * 2^-44 of the best one never comes; greedy never differs.
 */
#ifndef TR_CUDA_DEVICE_SAMPLING_H
#define TR_CUDA_DEVICE_SAMPLING_H

#include "kernels/cuda/launch_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TR_CUDA_TOP_MAX 20 /* engine/sampling/sampling.h: TR_TOP_LOGPROBS_MAX */

/* In place of a token.  Bad: NaN, +inf, or nothing but -inf, raw or with
 * penalties; or a target beyond the vocabulary. */
#define TR_CUDA_NO_TOKEN (-1) /* the row was stalled, or is padding */
#define TR_CUDA_BAD_LOGITS (-2)

typedef struct {
    int32_t token;
    float bias;
} tr_cuda_bias_t;

/* What one row of logits is for. */
typedef struct {
    int32_t slot; /* -1: padding */
    uint32_t pos; /* the sampled token stands at pos + 1 in history; what
                   * penalties count is [0, pos] */
    uint32_t
        prompt_len;  /* history [0, prompt_len) is prompt, the rest output */
    uint32_t number; /* of the token in its output, from 0 */
    uint64_t seed;
    float temperature, top_p, min_p; /* as tr_sampling_params_t */
    int32_t top_k;
    float presence, frequency, repetition;
    uint32_t bias_at, n_bias; /* in tr_cuda_sample_t.bias */
    uint32_t bar_at, n_bar;   /* in tr_cuda_sample_t.bar: tokens that may not
                               * come; not looked at where there is a mask */
    int32_t logprobs;         /* -1: none; else alternatives wanted */
    int32_t target;           /* >= 0: no sampling; this token's logprob and
                               * the alternatives are wanted */
    uint32_t sequence;        /* in seq_slot */
    uint32_t late;            /* 1: it is for a launch with `late`, 0: for the
                               * others */
} tr_cuda_sampling_t;

typedef struct {
    int32_t token; /* or TR_CUDA_NO_TOKEN, TR_CUDA_BAD_LOGITS */
    float logprob; /* with logprobs >= 0 or a target, else 0 */
    uint32_t n_top;
} tr_cuda_sampled_t; /* logprob and n_top are 0 without a token */

typedef struct {
    int32_t token;
    float logprob;
} tr_cuda_top_t;

typedef struct {
    uint32_t rows, vocab;
    const float *logits; /* [rows][ld], not changed */
    size_t ld;
    const tr_cuda_sampling_t *sampling; /* [rows] on the device */
    const int32_t *seq_slot;    /* [sequences] as the manager's step left it:
                                 * -1: stalled, nothing is entered */
    const tr_cuda_bias_t *bias; /* on the device */
    const int32_t *bar;         /* on the device */
    /* Which tokens may come at all, of rows that are sampled: mask_at[rows] is a
     * row of mask, -1: any; NULL: any of all rows.  mask: [..][ceil(vocab / 32)],
     * bit id % 32 of word id / 32 is a token's. */
    const int32_t *mask_at;
    const uint32_t *mask;
    bool late; /* rows with `late` are sampled, all others stay as they are */
    tr_cuda_history_t history; /* penalties read it, sampled tokens enter, but
                                 * not targets, and not beyond its end; token
                                 * NULL: neither */
    tr_cuda_sampled_t *out;    /* [rows] */
    tr_cuda_top_t *top;        /* [rows][TR_CUDA_TOP_MAX], best first */
    void *work;                /* tr_cuda_sample_work() bytes */
} tr_cuda_sample_t;

/* Can be captured: what depends on the parameters is read on the device. */
int tr_cuda_sample(const tr_cuda_stream_t *s, const tr_cuda_sample_t *a);
/* Bytes, 256-byte aligned, needs no clearing. */
size_t tr_cuda_sample_work(const tr_device_props_t *d, uint32_t rows,
                           uint32_t vocab);

#ifdef __cplusplus
}
#endif

#endif
