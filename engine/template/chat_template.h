/*
 * Chat templates: a conversation to the ids of a prompt.
 *
 * The model's own Jinja template writes the text (jinja.h); this says which one
 * it is, in which form it wants a message's fields, and which bytes may become
 * special tokens: those that the template wrote, never a client's.
 */
#ifndef TR_CHAT_TEMPLATE_H
#define TR_CHAT_TEMPLATE_H

#include <time.h>

#include <jansson.h>

#include "engine/template/jinja.h"
#include "engine/tokenizer/tokenizer.h"

/* The template's special tokens by name, such as bos_token. */
#define TR_CHAT_TOKENS 4

/* In which field a template looks for an assistant's reasoning. */
typedef enum {
    TR_REASONING_NONE,
    TR_REASONING_CONTENT, /* reasoning_content */
    TR_REASONING_THINKING,
    TR_REASONING_PLAIN /* reasoning */
} tr_chat_reasoning_t;

typedef struct {
    tr_jinja_t *chat;     /* NULL: no chat, /v1/chat/completions is 400 */
    tr_jinja_t *tool_use; /* used when tools are given; NULL: chat */
    char *tokens[TR_CHAT_TOKENS]; /* NULL: the configuration has none */
    int32_t end_of_turn;          /* generation ends here too, -1 if none */

    /* found out at load, by rendering conversations (chat_probe.c) */
    bool string_arguments; /* a call's arguments as text, not as an object */
    bool null_content;     /* content may be None beside calls, not "" */
    bool list_content;     /* text parts as a list, not as one text */
    tr_chat_reasoning_t reasoning;
    bool reads_tools, reads_documents, reads_thinking, reads_effort;
    bool knows_developer; /* role developer; else it is written as system */
} tr_chat_template_t;

/* A conversation.  All is borrowed; messages are checked already: an array of
 * objects, each with a known role, and content as a string, as an array of text
 * parts or null. */
typedef struct {
    const json_t *messages;
    uint32_t n;              /* the first so many of them; 0: all */
    const json_t *tools;     /* NULL: none */
    const json_t *documents; /* NULL: none */
    const json_t *variables; /* chat_template_kwargs, NULL: none */
    bool no_generation_prompt;
    bool continue_final_message; /* the prompt ends behind its content */
    time_t now;                  /* 0: the time of the call */
    size_t body;        /* bytes of the request, for the limit of memory */
    uint64_t max_bytes; /* TR_ERR_CONTEXT_LENGTH beyond; 0: no limit */
} tr_chat_input_t;

/* name: "auto" (dir/chat_template.jinja or the chat_template of
 * dir/tokenizer_config.json; none there: no chat), "llama3", "chatml",
 * "llama2", "mistral" (that family's plain layout), "none".  On success *out is
 * to be freed. */
tr_status_t tr_chat_template_load(const char *dir, const char *name,
                                  const tr_tokenizer_t *t,
                                  tr_chat_template_t *out, tr_error_t *err);
void tr_chat_template_free(tr_chat_template_t *c);

/* A variable of a request's must not have the name of one that the server
 * sets, nor of a function. */
bool tr_chat_template_reserved(const char *name);

/* The prompt's ids.  TR_ERR_INVALID: the template refused, err->text says why
 * in its words, err->param is "messages" or a part of it. */
tr_status_t tr_chat_template_encode(const tr_chat_template_t *c,
                                    const tr_tokenizer_t *t,
                                    tr_tokenizer_scratch_t *s,
                                    const tr_chat_input_t *in, tr_ids_t *out,
                                    tr_error_t *err);

/* The prompt as text with its tags, in a render that the caller frees also on
 * failure (*r may be NULL then). */
tr_status_t tr_chat_template_render(const tr_chat_template_t *c,
                                    const tr_chat_input_t *in,
                                    tr_jinja_render_t **r,
                                    tr_jinja_text_t *text, tr_error_t *err);

/* chat_probe.c: the fields of c that say what its templates do.  t: NULL, all
 * but end_of_turn. */
tr_status_t tr_chat_template_probe(tr_chat_template_t *c,
                                   const tr_tokenizer_t *t, tr_error_t *err);

/* chat_named.c: the text of a layout that a configuration names, NULL: unknown;
 * marks: up to two tokens that it needs, tokens: bos_token and eos_token where
 * the configuration has none. */
typedef struct {
    const char *name, *source, *bos, *eos;
    const char *marks[3];
} tr_chat_named_t;
const tr_chat_named_t *tr_chat_template_named(const char *name);

#endif
