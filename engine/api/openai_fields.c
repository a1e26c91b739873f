/*
 * The table of request fields (openai_fields.h).
 *
 * Names are those of OpenAI's API and of the servers that speak it: vLLM,
 * SGLang, TGI, llama.cpp, Ollama.
 */
#include "openai_fields.h"

#include <stdio.h>
#include <string.h>

#include "engine/config/log.h"
#include "openai_json.h"

#define SUPPORTED(name, where) TR_FIELD_ROW(name, where, SUPPORTED, "", NULL)
#define IGNORED(name, where) TR_FIELD_ROW(name, where, IGNORED, "", NULL)
#define REFUSED(name, where, why, harmless) \
    TR_FIELD_ROW(name, where, REFUSED, why, harmless)

#define NO_GRAMMAR "use 'response_format' or 'structured_outputs'"
#define NO_SAMPLER "this way of sampling is not supported"
#define NO_PREFILL "use 'continue_final_message'"
#define NO_CHAT "this belongs to a chat"
#define NO_REASONING "this server cannot set how a model reasons"
#define NO_TEMPLATE "a template of the request is not supported"
#define USE_MAX_TOKENS "use 'max_tokens'"
#define NO_PROMPT_LOGPROBS "use 'echo' with 'logprobs' on /v1/completions"

static const tr_field_t fields[] = {
    SUPPORTED("model", BOTH),
    SUPPORTED("messages", CHAT),
    SUPPORTED("prompt", COMPLETIONS),
    SUPPORTED("stream", BOTH),
    SUPPORTED("stream_options", BOTH),
    SUPPORTED("n", BOTH),
    SUPPORTED("best_of", BOTH),
    SUPPORTED("service_tier", BOTH),
    SUPPORTED("max_tokens", BOTH),
    SUPPORTED("max_completion_tokens", CHAT),
    SUPPORTED("min_tokens", BOTH),
    SUPPORTED("temperature", BOTH),
    SUPPORTED("top_p", BOTH),
    SUPPORTED("top_k", BOTH),
    SUPPORTED("min_p", BOTH),
    SUPPORTED("presence_penalty", BOTH),
    SUPPORTED("frequency_penalty", BOTH),
    SUPPORTED("repetition_penalty", BOTH),
    SUPPORTED("logit_bias", BOTH),
    SUPPORTED("seed", BOTH),
    SUPPORTED("stop", BOTH),
    SUPPORTED("stop_token_ids", BOTH),
    SUPPORTED("include_stop_str_in_output", BOTH),
    SUPPORTED("ignore_eos", BOTH),
    SUPPORTED("logprobs", BOTH),
    SUPPORTED("top_logprobs", CHAT),
    SUPPORTED("echo", COMPLETIONS),
    SUPPORTED("add_special_tokens", COMPLETIONS),
    SUPPORTED("chat_template_kwargs", CHAT),
    SUPPORTED("documents", CHAT),
    SUPPORTED("add_generation_prompt", CHAT),
    SUPPORTED("continue_final_message", CHAT),
    SUPPORTED("response_format", BOTH),
    SUPPORTED("tools", CHAT),
    SUPPORTED("tool_choice", CHAT),
    SUPPORTED("parallel_tool_calls", CHAT),
    SUPPORTED("functions", CHAT),
    SUPPORTED("function_call", CHAT),
    SUPPORTED("thinking_token_budget", CHAT),
    SUPPORTED("reasoning_effort", CHAT),
    SUPPORTED("kv_policy", BOTH),
    SUPPORTED("kv_alpha_high", BOTH),
    SUPPORTED("kv_alpha_low", BOTH),
    SUPPORTED("kv_reuse", BOTH),
    SUPPORTED("cache_salt", BOTH),

    SUPPORTED("include_usage", STREAM),
    SUPPORTED("continuous_usage_stats", STREAM),
    SUPPORTED("include_kv", STREAM),
    IGNORED("include_obfuscation", STREAM),

    SUPPORTED("role", MESSAGE),
    SUPPORTED("content", MESSAGE),
    SUPPORTED("name", MESSAGE),
    SUPPORTED("refusal", MESSAGE),
    IGNORED("annotations", MESSAGE),
    SUPPORTED("tool_call_id", MESSAGE),
    SUPPORTED("reasoning", MESSAGE),
    SUPPORTED("reasoning_content", MESSAGE),
    SUPPORTED("tool_calls", MESSAGE),
    SUPPORTED("function_call", MESSAGE),
    REFUSED("audio", MESSAGE, "audio is not supported", NULL),
    REFUSED("prefix", MESSAGE, NO_PREFILL, NULL),
    REFUSED("partial", MESSAGE, NO_PREFILL, NULL),

    /* tools, and what comes with them */
    REFUSED("tools", COMPLETIONS, NO_CHAT, NULL),
    REFUSED("functions", COMPLETIONS, NO_CHAT, NULL),
    REFUSED("tool_choice", COMPLETIONS, NO_CHAT, "\"none\""),
    REFUSED("function_call", COMPLETIONS, NO_CHAT, "\"none\""),
    REFUSED("web_search_options", BOTH, "web search is not supported", "null"),
    REFUSED("documents", COMPLETIONS, NO_CHAT, NULL),

    /* constraints on the output */
    SUPPORTED("structured_outputs", BOTH),
    SUPPORTED("guided_json", BOTH),
    SUPPORTED("guided_regex", BOTH),
    SUPPORTED("guided_choice", BOTH),
    SUPPORTED("guided_grammar", BOTH),
    SUPPORTED("guided_json_object", BOTH),
    REFUSED("json_schema", BOTH, NO_GRAMMAR, "null"),
    REFUSED("grammar", BOTH, NO_GRAMMAR, NULL),
    REFUSED("regex", BOTH, NO_GRAMMAR, NULL),
    REFUSED("ebnf", BOTH, NO_GRAMMAR, NULL),
    REFUSED("structural_tag", BOTH, NO_GRAMMAR, NULL),
    REFUSED("format", BOTH, NO_GRAMMAR, NULL),
    REFUSED("stop_regex", BOTH, "stop takes strings, not expressions", NULL),

    /* the prompt */
    REFUSED("suffix", BOTH, "insertion is not supported", NULL),
    REFUSED("prediction", BOTH, "predicted output is not supported", NULL),
    REFUSED("prompt_embeds", BOTH, "prompt embeddings are not supported", NULL),
    REFUSED("input_embeds", BOTH, "prompt embeddings are not supported", NULL),
    REFUSED("chat_template", BOTH, NO_TEMPLATE, NULL),
    REFUSED("template", BOTH, NO_TEMPLATE, NULL),
    REFUSED("system", BOTH, "send a message with the role 'system'", NULL),
    REFUSED("add_generation_prompt", COMPLETIONS, NO_CHAT, NULL),
    REFUSED("continue_final_message", COMPLETIONS, NO_CHAT, NULL),
    REFUSED("add_special_tokens", CHAT,
            "the chat template alone decides about special tokens", NULL),
    REFUSED("truncate_prompt_tokens", BOTH, "prompts are not cut", NULL),
    REFUSED("truncation", BOTH, "prompts are not cut", "\"disabled\""),
    REFUSED("lora_path", BOTH, "adapters are not supported", NULL),
    REFUSED("mm_processor_kwargs", BOTH, "this model reads text only", NULL),

    /* reasoning */
    REFUSED("reasoning_effort", COMPLETIONS, NO_CHAT, NULL),
    REFUSED("reasoning", BOTH, NO_REASONING, NULL),
    REFUSED("thinking", BOTH, NO_REASONING, NULL),
    REFUSED("enable_thinking", BOTH,
            "use 'chat_template_kwargs': {\"enable_thinking\": ...}", "null"),
    REFUSED("thinking_budget", BOTH, "use 'thinking_token_budget'", NULL),
    REFUSED("thinking_token_budget", COMPLETIONS, NO_CHAT, NULL),
    SUPPORTED("include_reasoning", CHAT),
    IGNORED("include_reasoning", COMPLETIONS),
    REFUSED("separate_reasoning", CHAT,
            "reasoning is never part of the content; use 'include_reasoning'",
            "true"),
    IGNORED("separate_reasoning", COMPLETIONS),

    /* sampling */
    REFUSED("use_beam_search", BOTH, "beam search is not supported", NULL),
    REFUSED("length_penalty", BOTH, "beam search is not supported", "1"),
    REFUSED("early_stopping", BOTH, "beam search is not supported", NULL),
    REFUSED("bad_words", BOTH, "use 'logit_bias'", NULL),
    REFUSED("allowed_token_ids", BOTH, "use 'logit_bias'", NULL),
    REFUSED("logits_processors", BOTH, NO_SAMPLER, NULL),
    REFUSED("custom_logit_processor", BOTH, NO_SAMPLER, NULL),
    REFUSED("samplers", BOTH, NO_SAMPLER, NULL),
    REFUSED("typical_p", BOTH, NO_SAMPLER, "1"),
    REFUSED("tfs_z", BOTH, NO_SAMPLER, "1"),
    REFUSED("top_a", BOTH, NO_SAMPLER, "0"),
    REFUSED("top_n_sigma", BOTH, NO_SAMPLER, "-1"),
    REFUSED("mirostat", BOTH, NO_SAMPLER, "0"),
    REFUSED("dynatemp_range", BOTH, NO_SAMPLER, "0"),
    REFUSED("xtc_probability", BOTH, NO_SAMPLER, "0"),
    REFUSED("dry_multiplier", BOTH, NO_SAMPLER, "0"),
    REFUSED("repeat_penalty", BOTH, "use 'repetition_penalty'", "1"),
    REFUSED("watermark", BOTH, NO_SAMPLER, NULL),
    REFUSED("options", BOTH, "give these fields beside the others", NULL),

    /* other names of what we have */
    REFUSED("max_new_tokens", BOTH, USE_MAX_TOKENS, NULL),
    REFUSED("n_predict", BOTH, USE_MAX_TOKENS, "-1"),
    REFUSED("num_predict", BOTH, USE_MAX_TOKENS, "-1"),
    REFUSED("max_completion_tokens", COMPLETIONS, USE_MAX_TOKENS, NULL),
    REFUSED("min_new_tokens", BOTH, "use 'min_tokens'", "0"),

    /* the answer */
    REFUSED("audio", BOTH, "audio output is not supported", NULL),
    REFUSED("modalities", BOTH, "this model writes text only", "[\"text\"]"),
    REFUSED("verbosity", BOTH, "verbosity cannot be set", "\"medium\""),
    REFUSED("echo", CHAT, "it is supported on /v1/completions only", NULL),
    REFUSED("top_logprobs", COMPLETIONS,
            "say with 'logprobs' how many alternatives you want", NULL),
    REFUSED("prompt_logprobs", BOTH, NO_PROMPT_LOGPROBS, NULL),
    REFUSED("logprob_token_ids", BOTH, "use 'logprobs'", NULL),
    REFUSED("n_probs", BOTH, "use 'logprobs'", "0"),
    REFUSED("return_token_ids", BOTH, "token ids are not returned", NULL),
    REFUSED("return_tokens_as_token_ids", BOTH, "token ids are not returned",
            NULL),
    REFUSED("skip_special_tokens", BOTH,
            "special tokens are never part of the text", "true"),
    REFUSED("detokenize", BOTH, "the answer is text", "true"),
    REFUSED("no_stop_trim", BOTH, "use 'include_stop_str_in_output'", NULL),

    /* other servers' own affairs */
    IGNORED("user", BOTH),
    IGNORED("metadata", BOTH),
    IGNORED("store", BOTH),
    IGNORED("safety_identifier", BOTH),
    IGNORED("prompt_cache_key", BOTH),
    IGNORED("prompt_cache_retention", BOTH),
    IGNORED("cache_prompt", BOTH),
    IGNORED("id_slot", BOTH),
    IGNORED("keep_alive", BOTH),
    IGNORED("priority", BOTH),
    IGNORED("request_id", BOTH),
    IGNORED("spaces_between_special_tokens", BOTH),
    IGNORED("guided_decoding_backend", BOTH),
    IGNORED("kv_transfer_params", BOTH),
};

const tr_field_t *
tr_openai_fields(size_t *n)
{
    *n = sizeof(fields) / sizeof(fields[0]);
    return fields;
}

static bool
equals(const json_t *value, const char *text)
{
    json_t *want = json_loads(text, JSON_DECODE_ANY, NULL);
    bool same = json_is_number(want) && json_is_number(value)
                    ? json_number_value(want) == json_number_value(value)
                    : json_equal(want, value);

    json_decref(want);
    return same;
}

static bool
asks_for_nothing(const json_t *value, const char *harmless)
{
    if (harmless != NULL && equals(value, harmless)) {
        return true;
    }
    switch (json_typeof(value)) {
    case JSON_NULL:
        return true;
    case JSON_FALSE: /* may mean something where true does not */
        return harmless == NULL
               || (strcmp(harmless, "null") != 0
                   && strcmp(harmless, "true") != 0);
    case JSON_STRING:
        return harmless == NULL && json_string_length(value) == 0;
    case JSON_ARRAY:
        return json_array_size(value) == 0;
    case JSON_OBJECT:
        return harmless == NULL && json_object_size(value) == 0;
    default:
        return false;
    }
}

tr_status_t
tr_fields_check(const tr_field_t *rows, size_t n, const json_t *object,
                unsigned where, const char *prefix, tr_error_t *err)
{
    char param[TR_ERROR_PARAM];
    size_t i;

    for (i = 0; i < n; i++) {
        const tr_field_t *f = &rows[i];
        json_t *value;

        if (f->kind != TR_FIELD_REFUSED || !(f->where & where)) {
            continue;
        }
        value = json_object_get(object, f->name);
        if (value != NULL && !asks_for_nothing(value, f->harmless)) {
            snprintf(param, sizeof(param), "%s%s", prefix, f->name);
            return tr_error_set(err, TR_ERR_INVALID, param, "'%s': %s.", param,
                                f->why);
        }
    }
    return TR_OK;
}

tr_status_t
tr_openai_check_fields(const json_t *object, unsigned where, const char *prefix,
                       tr_error_t *err)
{
    return tr_fields_check(fields, sizeof(fields) / sizeof(fields[0]), object,
                           where, prefix, err);
}
