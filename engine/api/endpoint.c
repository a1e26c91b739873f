/*
 * The table of endpoints (endpoint.h).
 */
#include "endpoint.h"

#include "openai_internal.h"

#include <string.h>

static const tr_endpoint_t table[] = {
    [TR_ENDPOINT_CHAT] = { .prompt_field = "messages",
                           .read_prompts = tr_openai_read_chat,
                           .read_logprobs = tr_openai_logprobs_chat,
                           .max_completion_tokens = true,
                           .fields = TR_FIELD_CHAT,
                           .text = true,
                           .ends_turn = true },
    [TR_ENDPOINT_COMPLETIONS] = { .prompt_field = "prompt",
                                  .read_prompts = tr_openai_read_completions,
                                  .read_logprobs =
                                      tr_openai_logprobs_completions,
                                  .max_tokens = 16,
                                  .fields = TR_FIELD_COMPLETIONS,
                                  .text = true },
    [TR_ENDPOINT_TOKENIZE] = { .prompt_field = "prompt",
                               .read_prompts = tr_openai_read_tokenize,
                               .result = tr_openai_tokenize },
    [TR_ENDPOINT_DETOKENIZE] = { .prompt_field = "tokens",
                                 .read_prompts = tr_openai_read_detokenize,
                                 .result = tr_openai_detokenize },
    [TR_ENDPOINT_RENDER] = { .prompt_field = "messages",
                             .read_prompts = tr_openai_read_chat,
                             .read_logprobs = tr_openai_logprobs_chat,
                             .result = tr_openai_render,
                             .max_completion_tokens = true,
                             .fields = TR_FIELD_CHAT },
    [TR_ENDPOINT_MESSAGES] = { .prompt_field = "messages",
                               .translate = tr_anthropic_translate,
                               .names = tr_anthropic_names,
                               .read_prompts = tr_openai_read_chat,
                               .read_logprobs = tr_openai_logprobs_chat,
                               .max_completion_tokens = true,
                               .fields = TR_FIELD_CHAT,
                               .text = true,
                               .ends_turn = true,
                               .tells_stop = true },
    [TR_ENDPOINT_RESPONSES] = { .prompt_field = "input",
                                .translate = tr_responses_translate,
                                .names = tr_responses_names,
                                .read_prompts = tr_openai_read_chat,
                                .read_logprobs = tr_openai_logprobs_chat,
                                .max_completion_tokens = true,
                                .fields = TR_FIELD_CHAT,
                                .text = true,
                                .ends_turn = true },
    [TR_ENDPOINT_EMBEDDINGS] = { .prompt_field = "input",
                                 .read_prompts = tr_openai_read_embeddings },
    [TR_ENDPOINT_COUNT_TOKENS] = { .prompt_field = "messages",
                                   .translate = tr_anthropic_translate,
                                   .names = tr_anthropic_names,
                                   .read_prompts = tr_openai_read_chat,
                                   .read_logprobs = tr_openai_logprobs_chat,
                                   .result = tr_openai_count,
                                   .max_completion_tokens = true,
                                   .fields = TR_FIELD_CHAT },
};

_Static_assert(sizeof(table) / sizeof(table[0]) == TR_ENDPOINTS,
               "each endpoint has its row");

const tr_endpoint_t *
tr_endpoint(unsigned endpoint)
{
    return endpoint < TR_ENDPOINTS && table[endpoint].read_prompts != NULL
               ? &table[endpoint]
               : NULL;
}

/* Is what stands there the beginning of a name, and not the end of another? */
static bool
begins(const char *text, const char *at, const char *name)
{
    return *name == '.' || at == text || strchr(" '", at[-1]) != NULL;
}

static void
rename_in(char *text, size_t size, const tr_endpoint_name_t *name)
{
    size_t n = strlen(name->chat), own = strlen(name->own);
    char *at = text;

    while ((at = strstr(at, name->chat)) != NULL) {
        size_t rest = strlen(at + n) + 1;

        if (!begins(text, at, name->chat)
            || (size_t) (at - text) + own + rest > size) {
            at += n;
            continue;
        }
        memmove(at + own, at + n, rest);
        memcpy(at, name->own, own);
        at += own;
    }
}

void
tr_endpoint_name_fields(unsigned endpoint, tr_error_t *err)
{
    const tr_endpoint_t *row = tr_endpoint(endpoint);
    const tr_endpoint_name_t *name = row != NULL ? row->names : NULL;

    for (; name != NULL && name->chat != NULL; name++) {
        rename_in(err->param, sizeof(err->param), name);
        rename_in(err->text, sizeof(err->text), name);
    }
}
