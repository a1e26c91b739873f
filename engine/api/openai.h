/*
 * The OpenAI request body: JSON to a checked tr_request_t.
 *
 * What becomes of each field is in openai_fields.c.  A field of a wrong type or
 * value is refused with TR_ERR_INVALID, r->error.param naming it the way OpenAI
 * does ("messages[1].content", "temperature") and a message that says what was
 * given and what is right.  Runs on the parser threads (jansson: strict UTF-8,
 * 64-bit integers).
 */
#ifndef TR_OPENAI_H
#define TR_OPENAI_H

#include "embedding.h"
#include "engine/dialect/dialect.h"
#include "engine/template/chat_template.h"
#include "engine/executor/executor.h"
#include "engine/model/model_config.h"
#include "engine/scheduler/request.h"
#include "engine/tokenizer/tokenizer.h"

typedef struct {
    const char *model; /* the served name */
    /* all of them, each ended by a NUL, to an empty one; another one is
     * TR_ERR_MODEL_NOT_FOUND; NULL: model alone; borrowed */
    const char *names;
    const tr_tokenizer_t *tokenizer;
    const tr_chat_template_t *chat_template;
    const tr_dialect_t *dialect; /* of its answers */
    uint32_t max_model_len;
    uint32_t vocab;
    const int32_t *eos;
    uint32_t n_eos;
    /* sampling of a request that says nothing; NULL: as OpenAI; borrowed */
    const tr_generation_t *generation;
    const uint8_t *model_id; /* [TR_MODEL_ID] of the status page's card */
    uint32_t max_choices;    /* n * prompts */
    /* what may be chosen with kv_policy, the default first; borrowed */
    const tr_executor_policy_t *policies;
    uint32_t n_policies;
    tr_grammar_cache_t *grammars; /* for what constrains answers */
    uint32_t grammar_threads;
    tr_embedding_t embedding;   /* how this model makes them */
    uint32_t width;             /* of its vectors; 0: the backend makes none */
    const char *effort_budgets; /* config.h; NULL: none; borrowed */
    bool keeps_responses;       /* of requests that are told to the publisher */
    bool request_alpha;         /* kv_alpha_high and kv_alpha_low are allowed */
} tr_openai_t;

/* Parses r->body, fills the request (params, sequences) and frees the body.
 * The result stands in r->error.status too.  TR_AGAIN: once r->lookup has been
 * answered, it must be parsed once more. */
tr_status_t tr_openai_parse(const tr_openai_t *api, tr_tokenizer_scratch_t *s,
                            tr_request_t *r);

#endif
