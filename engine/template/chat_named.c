/*
 * The layouts that a configuration names instead of a model's template.
 */
#include "chat_template.h"

#include <string.h>

#define FOLDED_SYSTEM                                                        \
    "{%- set found = namespace(system=none, turn=0) -%}"                     \
    "{%- for message in messages -%}"                                        \
    "{%- if message.role == 'system' and loop.first -%}"                     \
    "{%- set found.system = message.content -%}"                             \
    "{%- elif message.role not in ['user', 'assistant'] -%}"                 \
    "{{- raise_exception('expected role user or assistant here: this chat '" \
    " 'template takes a system message only at the beginning') -}}"          \
    "{%- elif (message.role == 'user') != (found.turn % 2 == 0) -%}"         \
    "{{- raise_exception('this chat template needs the roles user and '"     \
    " 'assistant to alternate') -}}"                                         \
    "{%- else -%}"

#define FOLDED_END                                                         \
    "{%- set found.turn = found.turn + 1 -%}"                              \
    "{%- endif -%}{%- endfor -%}"                                          \
    "{%- if found.turn == 0 -%}"                                           \
    "{{- raise_exception('this chat template needs a user message after '" \
    " 'the system message') -}}"                                           \
    "{%- endif -%}"

#define PLAIN_ROLES                                                          \
    "{%- if message.role not in ['system', 'user', 'assistant'] -%}"         \
    "{{- raise_exception('this chat template knows the roles system, user '" \
    " 'and assistant') -}}"                                                  \
    "{%- endif -%}"

static const tr_chat_named_t table[] = {
    { .name = "llama3",
      .source = "{{- bos_token -}}{%- for message in messages -%}" PLAIN_ROLES
                "{{- '<|start_header_id|>' + message.role + "
                "'<|end_header_id|>\n\n' "
                "+ message.content | trim + '<|eot_id|>' -}}{%- endfor -%}"
                "{%- if add_generation_prompt -%}"
                "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}"
                "{%- endif -%}",
      .bos = "<|begin_of_text|>",
      .marks = { "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>" } },
    { .name = "chatml",
      .source = "{%- for message in messages -%}" PLAIN_ROLES
                "{{- '<|im_start|>' + message.role + '\n' + message.content + "
                "'<|im_end|>\n' -}}{%- endfor -%}"
                "{%- if add_generation_prompt -%}"
                "{{- '<|im_start|>assistant\n' -}}{%- endif -%}",
      .marks = { "<|im_start|>", "<|im_end|>" } },
    { .name = "llama2",
      .source = FOLDED_SYSTEM
      "{%- if message.role == 'assistant' -%}"
      "{{- ' ' + message.content.strip() + ' ' + eos_token -}}"
      "{%- elif found.turn == 0 and found.system is not none -%}"
      "{{- bos_token + '[INST] ' + ('<<SYS>>\n' + found.system + "
      "'\n<</SYS>>\n\n' + message.content).strip() + ' [/INST]' -}}"
      "{%- else -%}"
      "{{- bos_token + '[INST] ' + message.content.strip() + "
      "' [/INST]' -}}{%- endif -%}" FOLDED_END,
      .bos = "<s>",
      .eos = "</s>" },
    { .name = "mistral",
      .source = "{{- bos_token -}}" FOLDED_SYSTEM
                "{%- if message.role == 'assistant' -%}"
                "{{- message.content + eos_token -}}"
                "{%- elif found.turn == 0 and found.system is not none -%}"
                "{{- '[INST] ' + found.system + '\n\n' + message.content + "
                "' [/INST]' -}}"
                "{%- else -%}{{- '[INST] ' + message.content + ' [/INST]' -}}"
                "{%- endif -%}" FOLDED_END,
      .bos = "<s>",
      .eos = "</s>" },
};

const tr_chat_named_t *
tr_chat_template_named(const char *name)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    return NULL;
}
