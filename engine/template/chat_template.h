/*
 * Chat templates, by name: messages to prompt text.
 *
 * No Jinja here: the layouts in use are few.  tokenizer_config.json's
 * chat_template is recognised by its marks; a configuration may name one
 * instead.  An unknown template is an error at start, never a guess.
 */
#ifndef TR_CHAT_TEMPLATE_H
#define TR_CHAT_TEMPLATE_H

#include "engine/tokenizer/tokenizer.h"

typedef enum {
    TR_TEMPLATE_NONE,   /* no chat: /v1/chat/completions answers 400 */
    TR_TEMPLATE_LLAMA3, /* <|start_header_id|>role<|end_header_id|> ... */
    TR_TEMPLATE_CHATML, /* <|im_start|>role ... <|im_end|> */
    TR_TEMPLATE_LLAMA2, /* [INST] <<SYS>> ... [/INST] */
    TR_TEMPLATE_MISTRAL /* [INST] ... [/INST] without <<SYS>> */
} tr_template_kind_t;

/* Where a Mistral template puts the system message, if it takes one. */
typedef enum {
    TR_SYSTEM_REFUSED,
    TR_SYSTEM_FIRST_USER, /* before the first user message */
    TR_SYSTEM_LAST_USER   /* before the last message, when a user's */
} tr_system_place_t;

/* What a ChatML template does with <think>...</think> of earlier answers. */
typedef enum {
    TR_THINK_KEEP,
    TR_THINK_DROP,             /* only what follows </think> stays */
    TR_THINK_DROP_BUT_LAST,    /* QwQ: the last message stays whole */
    TR_THINK_DROP_BEFORE_QUERY /* Qwen3: kept after the last user message */
} tr_think_t;

/* Whether a template can be told not to think, by `enable_thinking`. */
typedef enum {
    TR_SWITCH_NONE,   /* it does not look at it */
    TR_SWITCH_OFF,    /* false: no_thinking instead of generation (Qwen3) */
    TR_SWITCH_UNKNOWN /* it looks at it in a way that we do not know */
} tr_switch_t;

typedef struct {
    tr_template_kind_t kind;
    bool trim;                /* the template trims message contents */
    char default_system[512]; /* inserted when there is no system message */
    char bos[64]; /* text of the BOS token if the template adds it */
    char eos[64];
    int32_t end_of_turn; /* generation ends here too, -1 if none */
    /* Llama 3.1 and later: a system message always, with dates on top */
    bool date_header;
    char date[32];       /* "26 Jul 2024"; "": the day of the request */
    tr_think_t think;    /* ChatML */
    char generation[32]; /* ChatML: follows "assistant\n" at the end */
    tr_switch_t thinking;
    char no_thinking[32]; /* ChatML */
    /* Mistral: spaces around the marks */
    char user_before[4], user_after[4]; /* " [INST]", "[INST] " */
    char user_last[4];                  /* " [/INST]" */
    char answer_before[4], answer_after[4];
    tr_system_place_t system_place;
} tr_chat_template_t;

typedef struct {
    const char *role;
    uint32_t role_len;
    const char *content; /* UTF-8 */
    size_t content_len;
} tr_chat_message_t;

/* name: "auto" (recognise what dir/chat_template.jinja or the chat_template of
 * dir/tokenizer_config.json does; none there: TR_TEMPLATE_NONE), "llama3",
 * "chatml", "llama2", "mistral" (that family's plain layout), "none". */
tr_status_t tr_chat_template_load(const char *dir, const char *name,
                                  const tr_tokenizer_t *t,
                                  tr_chat_template_t *out, tr_error_t *err);

const char *tr_chat_template_name(tr_template_kind_t kind);

/* enable_thinking of a request: c as it is then, which may be *own, filled for it.
 * As in Jinja, a template that does not look at it takes any value.  NULL: this
 * one does, and we do not know what it would do. */
const tr_chat_template_t *tr_chat_template_thinking(const tr_chat_template_t *c,
                                                    bool enabled,
                                                    tr_chat_template_t *own);

/* Ids of the whole conversation with the generation prompt appended.  Special
 * tokens come from the template only: marks inside a message are plain text.
 * Roles are system (or developer, the same), user and assistant.  A role or an
 * order that the template cannot express: TR_ERR_INVALID with err->param naming
 * messages[i]. */
tr_status_t tr_chat_template_encode(const tr_chat_template_t *c,
                                    const tr_tokenizer_t *t,
                                    tr_tokenizer_scratch_t *s,
                                    const tr_chat_message_t *messages,
                                    uint32_t n, tr_ids_t *out, tr_error_t *err);

#endif
