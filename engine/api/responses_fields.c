/*
 * The fields of /v1/responses, OpenAI's newer API, that are others than a chat's
 * or mean something else there (openai_fields.h).
 */
#include "openai_fields.h"

#include "endpoint.h"

#define SUPPORTED(name) TR_FIELD_ROW(name, RESPONSES, SUPPORTED, "", NULL)
#define IGNORED(name) TR_FIELD_ROW(name, RESPONSES, IGNORED, "", NULL)
#define REFUSED(name, why, harmless) \
    TR_FIELD_ROW(name, RESPONSES, REFUSED, why, harmless)

#define ONE_ANSWER "a response is one answer"
#define NO_LOGPROBS "log probabilities are not part of responses here"
#define NO_EDITING "prompts are not edited"

static const tr_field_t fields[] = {
    SUPPORTED("model"),
    SUPPORTED("input"),
    SUPPORTED("instructions"),
    SUPPORTED("max_output_tokens"),
    SUPPORTED("stream"),
    SUPPORTED("temperature"),
    SUPPORTED("top_p"),
    SUPPORTED("tools"),
    SUPPORTED("tool_choice"),
    SUPPORTED("parallel_tool_calls"),
    SUPPORTED("text"),
    SUPPORTED("reasoning"),
    SUPPORTED("include"),
    SUPPORTED("stream_options"),
    SUPPORTED("service_tier"),

    SUPPORTED("store"),
    SUPPORTED("previous_response_id"),

    REFUSED("conversation", "use 'previous_response_id'", NULL),
    REFUSED("background", "an answer ends with its client; use false", NULL),
    REFUSED("prompt", "prompts are not kept; use 'instructions' and 'input'",
            NULL),
    REFUSED("context_management", NO_EDITING, NULL),
    REFUSED("truncation", NO_EDITING, "\"disabled\""),

    /* a chat's names of what has another name here, or no place */
    REFUSED("messages", "use 'input'", NULL),
    REFUSED("max_tokens", "use 'max_output_tokens'", NULL),
    REFUSED("max_completion_tokens", "use 'max_output_tokens'", NULL),
    REFUSED("functions", "use 'tools'", NULL),
    REFUSED("function_call", "use 'tool_choice'", NULL),
    REFUSED("response_format", "use 'text.format'", NULL),
    REFUSED("reasoning_effort", "use 'reasoning.effort'", NULL),
    REFUSED("verbosity", "use 'text.verbosity'", NULL),
    REFUSED("n", ONE_ANSWER, "1"),
    REFUSED("best_of", ONE_ANSWER, "1"),
    REFUSED("logprobs", NO_LOGPROBS, NULL),
    REFUSED("top_logprobs", NO_LOGPROBS, "0"),

    IGNORED("metadata"),
    IGNORED("user"),
    IGNORED("safety_identifier"),
    IGNORED("prompt_cache_key"),
    IGNORED("prompt_cache_retention"),
    IGNORED("max_tool_calls"),
};

const tr_endpoint_name_t tr_responses_names[] = {
    { "response_format.json_schema", "text.format" },
    { "response_format", "text.format" },
    { "reasoning_effort", "reasoning.effort" },
    { ".function.", "." },
    { NULL, NULL },
};

const tr_field_t *
tr_responses_fields(size_t *n)
{
    *n = sizeof(fields) / sizeof(fields[0]);
    return fields;
}
