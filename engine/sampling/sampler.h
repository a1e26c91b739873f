/*
 * The sampler: logits of one position to one token, on the host, in plain C.
 *
 * Order, as in vLLM and transformers: logit_bias, repetition, presence and
 * frequency penalties, min_tokens bar, the mask of a grammar; greedy if
 * temperature is 0; else temperature, top-k, top-p, min-p, draw by ascending
 * id.  The random number of output token i is a pure function of (seed, i):
 * independent of the batch, of preemption and of what other requests do.
 * Logprobs are those of the raw logits.
 */
#ifndef TR_SAMPLER_H
#define TR_SAMPLER_H

#include <stddef.h>

#include "sampling.h"
#include <tokenring/error.h>

/* State of one sequence.  `counts` is NULL when no penalty is in use, else
 * vocab entries (output occurrences in the low 31 bits, bit 31: in the
 * prompt), taken from the request's arena. */
typedef struct {
    const tr_sampling_params_t *params; /* borrowed */
    uint64_t seed;
    uint32_t n_output; /* tokens sampled so far */
    uint32_t vocab;
    uint32_t *counts;
    const int32_t *eos; /* borrowed: tokens barred before min_tokens */
    uint32_t n_eos;
} tr_sampler_t;

/* Bytes of `counts` that these parameters need, 0 when none. */
size_t tr_sampler_counts_size(const tr_sampling_params_t *params,
                              uint32_t vocab);

/* Starts over: counts are cleared and filled from the prompt. */
void tr_sampler_init(tr_sampler_t *s, const tr_sampling_params_t *params,
                     uint64_t seed, uint32_t vocab, uint32_t *counts,
                     const int32_t *eos, uint32_t n_eos, const int32_t *prompt,
                     uint32_t n_prompt);

/* Scratch of one sampling thread, in bytes, for a vocabulary. */
size_t tr_sampler_scratch_size(uint32_t vocab);

/* logits: [vocab] FP32, changed in place.  mask: a bit a token (grammar.h), NULL:
 * any; a token without one is taken as -inf, before top-k and the rest, while
 * log probabilities stay those of the raw logits.  Where it allows nothing but
 * tokens that end the answer, min_tokens does not bar them.  A NaN or all -inf
 * gives TR_ERR_INTERNAL.  Does not advance the state. */
tr_status_t tr_sampler_sample(const tr_sampler_t *s, float *logits,
                              const uint32_t *mask, void *scratch,
                              tr_sampled_t *out);

/* Takes out of a mask what min_tokens bars for output token `number`, where other
 * tokens are left, as tr_sampler_sample does: for who samples elsewhere. */
void tr_sampler_narrow(const tr_sampler_t *s, uint32_t number, uint32_t *mask);

/* The step loop kept this token: n_output and counts advance. */
void tr_sampler_accept(tr_sampler_t *s, int32_t token);

/* Logprob of a given token and the top alternatives, for echoed prompts. */
tr_status_t tr_sampler_score(const float *logits, uint32_t vocab, int32_t token,
                             int32_t top, void *scratch, tr_sampled_t *out);

#endif
