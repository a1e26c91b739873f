/*
 * What the files that read an OpenAI body share: openai.c is the order of things
 * and the checks of lengths, openai_params.c the parameters, openai_chat.c and
 * openai_completions.c the prompts, openai_tools.c and openai_reasoning.c what
 * else a chat has, openai_grammar.c what constrains an answer, openai_tier.c how
 * soon it is served, openai_result.c what generates nothing, endpoint.c the table
 * of endpoints; anthropic.c and responses.c turn bodies of other APIs into those
 * of a chat (translate.h).
 */
#ifndef TR_OPENAI_INTERNAL_H
#define TR_OPENAI_INTERNAL_H

#include "endpoint.h"
#include "engine/config/log.h"
#include "openai.h"
#include "openai_fields.h"
#include "openai_json.h"

enum tr_openai_choice {
    CHOICE_AUTO,
    CHOICE_NONE,
    CHOICE_REQUIRED,
    CHOICE_NAMED
};

/* One parse: what it needs, and what is freed at its end. */
struct tr_openai_call {
    const tr_openai_t *api;
    const tr_endpoint_t *endpoint;
    tr_tokenizer_scratch_t *scratch;
    tr_request_t *r;
    tr_error_t *err;
    json_t *root;
    bool translated;    /* root was the body of another API */
    size_t body_len;    /* of the body that it was */
    int64_t max_tokens; /* asked for, -1: open */
    const int32_t *eos;
    uint32_t n_eos;
    tr_ids_t *prompts; /* [r->n_prompts], malloc'ed as their data is */
    /* which tool must be called: openai_tools.c */
    enum tr_openai_choice choice;
    const char *only;    /* CHOICE_NAMED: borrowed from root */
    const json_t *tools; /* that the model sees; NULL: none */
    char *text; /* the prompt of a chat that is to be shown; malloc'ed */
    uint32_t text_len;
};

tr_status_t tr_openai_no_memory(tr_openai_call_t *c);

/* service_tier, into r->tier; and what a tier is called there. */
tr_status_t tr_openai_read_tier(const json_t *root, tr_request_t *r,
                                tr_error_t *err);
const char *tr_openai_tier_name(const tr_request_t *r);

/* How many choices r may have. */
static inline uint32_t
tr_openai_choices(const tr_openai_t *api, const tr_request_t *r)
{
    return r->most_choices != 0 && r->most_choices < api->max_choices
               ? r->most_choices
               : api->max_choices;
}

/* The prompt has `tokens` tokens, more than fit; at_least: "" or "at least ". */
tr_status_t tr_openai_too_long(tr_openai_call_t *c, const char *at_least,
                               uint64_t tokens);

/* Refuses a field whose answer the request's gateway could not tell. */
tr_status_t tr_openai_needs_items(tr_openai_call_t *c, const char *param);

/* Refuses a text of so many bytes that cannot fit in whatever tokens. */
tr_status_t tr_openai_check_bytes(tr_openai_call_t *c, uint64_t bytes);

/* The longest text that may fit. */
uint64_t tr_openai_max_bytes(const tr_openai_call_t *c);

/* The prompts of an endpoint: c->prompts and r->n_prompts. */
tr_status_t tr_openai_read_chat(tr_openai_call_t *c);
tr_status_t tr_openai_read_completions(tr_openai_call_t *c);

/* One or several, as texts or ids, of a field of the endpoint. */
tr_status_t tr_openai_read_prompts(tr_openai_call_t *c, json_t *prompt);

/* openai_embeddings.c: r->pool, and the prompts. */
tr_status_t tr_openai_read_embeddings(tr_openai_call_t *c);

/* openai_tools.c: tools and tool_choice: in->tools, r->tools. */
tr_status_t tr_openai_read_tools(tr_openai_call_t *c, tr_chat_input_t *in);
/* What an answer must be because of the tools, and the reasoning that may come
 * before it: r->grammar_spec.  Needs r->inside. */
tr_status_t tr_openai_hold(tr_openai_call_t *c);
/* The calls of messages[i]; *calls: it has some.  *bytes grows by theirs. */
tr_status_t tr_openai_check_calls(tr_openai_call_t *c, json_t *message,
                                  size_t i, uint64_t *bytes, bool *calls);
/* Completes the results of calls in checked messages: names, ids. */
void tr_openai_settle_results(tr_openai_call_t *c, json_t *messages);

/* openai_reasoning.c: include_reasoning; reasoning_effort becomes a variable of
 * the template. */
tr_status_t tr_openai_read_reasoning(tr_openai_call_t *c);
/* Tokens of reasoning that this effort stands for here, -1: it stands for none
 * (reasoning_effort_budgets). */
int64_t tr_openai_effort_budget(const tr_openai_t *api, const char *effort);

/* A body of /v1/messages, of /v1/responses, becomes one of a chat. */
extern const tr_endpoint_name_t tr_anthropic_names[], tr_responses_names[];
tr_status_t tr_anthropic_translate(tr_openai_call_t *c);
tr_status_t tr_responses_translate(tr_openai_call_t *c);

/* Members of JSON that the response repeats: r->repeated; copied. */
tr_status_t tr_openai_repeat(tr_openai_call_t *c, const char *members,
                             size_t len);

/* openai_result.c: endpoints that generate nothing, and their results. */
tr_status_t tr_openai_read_tokenize(tr_openai_call_t *c);
tr_status_t tr_openai_read_detokenize(tr_openai_call_t *c);
tr_status_t tr_openai_tokenize(tr_openai_call_t *c);
tr_status_t tr_openai_detokenize(tr_openai_call_t *c);
tr_status_t tr_openai_render(tr_openai_call_t *c);
tr_status_t tr_openai_count(tr_openai_call_t *c);

/* How an endpoint asks for logprobs: r->params.logprobs. */
tr_status_t tr_openai_logprobs_chat(const json_t *root, tr_request_t *r,
                                    tr_error_t *err);
tr_status_t tr_openai_logprobs_completions(const json_t *root, tr_request_t *r,
                                           tr_error_t *err);

#endif
