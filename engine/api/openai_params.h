/*
 * The parameters that the OpenAI endpoints share: sampling, stopping,
 * streaming, logprobs, and the features that are refused because a client that
 * asks for them could not use an answer without.
 */
#ifndef TR_OPENAI_PARAMS_H
#define TR_OPENAI_PARAMS_H

#include "endpoint.h"
#include "openai.h"
#include "openai_json.h"

/* Fills r->stream, include_usage, echo, n, kv_policy, max_len and params, all
 * but max_tokens; that comes out as *max_tokens, -1 when the client left it open. */
tr_status_t tr_openai_params(const tr_openai_t *api,
                             const tr_endpoint_t *endpoint, const json_t *root,
                             tr_request_t *r, int64_t *max_tokens,
                             tr_error_t *err);

/* openai_grammar.c: what the answer must be: r->grammar_spec. */
tr_status_t tr_openai_read_grammar(const tr_openai_t *api, const json_t *root,
                                   tr_request_t *r, tr_error_t *err);

/* ignore_eos is not for an answer that must be something. */
tr_status_t tr_openai_check_end(const tr_request_t *r, tr_error_t *err);

#endif
