/*
 * How the engine reads the body of each endpoint: the engine's half of
 * <tokenring/endpoint.h>.  A new endpoint is a row of the table in endpoint.c
 * and the functions that it names.
 */
#ifndef TR_ENDPOINT_H
#define TR_ENDPOINT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <tokenring/endpoint.h>

#include "engine/scheduler/request.h"

typedef struct tr_openai_call tr_openai_call_t;

/* A field of a chat, or a part of its name that begins with a point, and what the
 * clients of another API call it. */
typedef struct {
    const char *chat, *own;
} tr_endpoint_name_t;

typedef struct {
    const char *prompt_field; /* where the prompt stands, for errors */
    /* the body of another API, c->root, becomes one of OpenAI's chat, with its
     * own names in errors; NULL: it is one of OpenAI's */
    tr_status_t (*translate)(tr_openai_call_t *c);
    const tr_endpoint_name_t *names; /* those names, up to a NULL */
    /* prompts of the body to token ids (openai_internal.h) */
    tr_status_t (*read_prompts)(tr_openai_call_t *c);
    tr_status_t (*read_logprobs)(const json_t *root, tr_request_t *r,
                                 tr_error_t *err);
    /* makes r->result of the prompts at once; NULL: the model runs */
    tr_status_t (*result)(tr_openai_call_t *c);
    uint32_t max_tokens;        /* if the client names none; 0: what fits */
    bool max_completion_tokens; /* the newer name of max_tokens is known */
    unsigned fields;            /* TR_FIELD_* (openai_fields.h) */
    bool text;       /* it gives text, which can be kept and gone on with */
    bool ends_turn;  /* the template's end of turn ends it, too */
    bool tells_stop; /* which stop string ended an answer */
} tr_endpoint_t;

/* The row of an enum tr_endpoint; NULL: this engine does not serve it. */
const tr_endpoint_t *tr_endpoint(unsigned endpoint);

/* What is wrong with a chat becomes what is wrong with the body that it was. */
void tr_endpoint_name_fields(unsigned endpoint, tr_error_t *err);

#endif
