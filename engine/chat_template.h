/*
 * Chat templates, by name: messages to prompt text.
 *
 * No Jinja here: the layouts in use are few.  tokenizer_config.json's
 * chat_template is recognised by its marks; a configuration may name one
 * instead.  An unknown template is an error at start, never a guess.
 */
#ifndef TR_CHAT_TEMPLATE_H
#define TR_CHAT_TEMPLATE_H

#include "tokenizer.h"

typedef enum {
    TR_TEMPLATE_NONE,    /* no chat: /v1/chat/completions answers 400 */
    TR_TEMPLATE_LLAMA3,  /* <|start_header_id|>role<|end_header_id|> ... */
    TR_TEMPLATE_CHATML,  /* <|im_start|>role ... <|im_end|> */
    TR_TEMPLATE_LLAMA2,  /* [INST] <<SYS>> ... [/INST] */
    TR_TEMPLATE_MISTRAL  /* [INST] ... [/INST] without <<SYS>> */
} tr_template_kind_t;

typedef struct {
    tr_template_kind_t kind;
    bool trim;                 /* the template trims message contents */
    char default_system[512];  /* inserted when there is no system message */
    char bos[64];              /* text of the BOS token if the template adds it */
    char eos[64];
    int32_t end_of_turn;       /* generation ends here too, -1 if none */
} tr_chat_template_t;

typedef struct {
    const char *role;
    uint32_t role_len;
    const char *content; /* UTF-8 */
    size_t content_len;
} tr_chat_message_t;

/* name: "auto" (recognise from dir/tokenizer_config.json), "llama3",
 * "chatml", "llama2", "mistral", "none". */
tr_status_t tr_chat_template_load(const char *dir, const char *name,
    const tr_tokenizer_t *t, tr_chat_template_t *out, tr_error_t *err);

const char *tr_chat_template_name(tr_template_kind_t kind);

/* Ids of the whole conversation with the generation prompt appended.  Special
 * tokens come from the template only: marks inside a message are plain text.
 * A role or an order that the template cannot express: TR_ERR_INVALID with
 * err->param naming messages[i]. */
tr_status_t tr_chat_template_encode(const tr_chat_template_t *c,
    const tr_tokenizer_t *t, tr_tokenizer_scratch_t *s,
    const tr_chat_message_t *messages, uint32_t n, tr_ids_t *out,
    tr_error_t *err);

#endif
