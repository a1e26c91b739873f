/*
 * The fields of /v1/messages, Anthropic's API, that are others than a chat's or
 * mean something else there (openai_fields.h).
 */
#include "openai_fields.h"

#include "endpoint.h"

#define SUPPORTED(name) TR_FIELD_ROW(name, ANTHROPIC, SUPPORTED, "", NULL)
#define IGNORED(name) TR_FIELD_ROW(name, ANTHROPIC, IGNORED, "", NULL)
#define REFUSED(name, why, harmless) \
    TR_FIELD_ROW(name, ANTHROPIC, REFUSED, why, harmless)

#define ONE_ANSWER "a message has one answer"
#define NO_LOGPROBS "a message has no place for log probabilities"

static const tr_field_t fields[] = {
    SUPPORTED("model"),
    SUPPORTED("messages"),
    SUPPORTED("system"),
    SUPPORTED("max_tokens"),
    SUPPORTED("stop_sequences"),
    SUPPORTED("stream"),
    SUPPORTED("temperature"),
    SUPPORTED("top_p"),
    SUPPORTED("top_k"),
    SUPPORTED("tools"),
    SUPPORTED("tool_choice"),
    SUPPORTED("thinking"),
    SUPPORTED("output_config"),
    SUPPORTED("output_format"),
    SUPPORTED("service_tier"),

    REFUSED("container", "there are no containers", NULL),
    REFUSED("mcp_servers", "this server calls no others", NULL),
    REFUSED("context_management", "prompts are not edited", NULL),
    REFUSED("compaction", "prompts are not edited", NULL),
    REFUSED("fallbacks", "no other model is asked", NULL),
    REFUSED("thread", "threads are not kept", NULL),

    /* a chat's names of what has another name here, or no place */
    REFUSED("stop", "use 'stop_sequences'", NULL),
    REFUSED("max_completion_tokens", "use 'max_tokens'", NULL),
    REFUSED("parallel_tool_calls",
            "use 'tool_choice.disable_parallel_tool_use'", "true"),
    REFUSED("functions", "use 'tools'", NULL),
    REFUSED("function_call", "use 'tool_choice'", NULL),
    REFUSED("response_format", "use 'output_config.format'", NULL),
    REFUSED("reasoning_effort", "use 'output_config.effort'", NULL),
    REFUSED("continue_final_message", "end with an assistant's message", NULL),
    REFUSED("add_generation_prompt", "end with an assistant's message", "true"),
    REFUSED("n", ONE_ANSWER, "1"),
    REFUSED("best_of", ONE_ANSWER, "1"),
    REFUSED("logprobs", NO_LOGPROBS, NULL),
    REFUSED("top_logprobs", NO_LOGPROBS, "0"),
    REFUSED("stream_options", "a stream always ends with its usage", NULL),

    IGNORED("cache_control"),
    IGNORED("metadata"),
    IGNORED("inference_geo"),
    IGNORED("speed"),
    IGNORED("diagnostics"),
    IGNORED("user_profile_id"),
    IGNORED("workspace_id"),
    IGNORED("billing_policy"),
    IGNORED("fallback_credit_token"),
};

const tr_endpoint_name_t tr_anthropic_names[] = {
    { "response_format.json_schema", "output_config.format" },
    { "response_format", "output_config.format" },
    { "reasoning_effort", "output_config.effort" },
    { ".function.parameters", ".input_schema" },
    { ".function.", "." },
    { NULL, NULL },
};

const tr_field_t *
tr_anthropic_fields(size_t *n)
{
    *n = sizeof(fields) / sizeof(fields[0]);
    return fields;
}
