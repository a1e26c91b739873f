/*
 * How a body of another API becomes that of a chat: what anthropic.c and
 * responses.c share.  A message is built with an array of text parts as its
 * content, which tr_translate_settle makes what a chat's clients write.
 *
 * Errors stand in t->c->err; `param` and `at` are places in the client's body.
 */
#ifndef TR_TRANSLATE_H
#define TR_TRANSLATE_H

#include "openai_internal.h"

typedef struct {
    tr_openai_call_t *c;
    json_t *body;     /* of a chat, in the making: a copy of the client's */
    json_t *messages; /* of it, borrowed; empty at first */
} tr_translation_t;

typedef tr_status_t (*tr_translate_step_t)(const tr_translation_t *t);

/* Refuses what the n rows refuse, then takes the steps, to the NULL behind them
 * or to the first that fails.  After all of them body is the request's root. */
tr_status_t tr_translate(tr_openai_call_t *c, const tr_field_t *rows, size_t n,
                         unsigned where, const tr_translate_step_t *steps);

tr_status_t tr_translate_no_memory(const tr_translation_t *t);
tr_status_t tr_translate_wrong_type(const tr_translation_t *t,
                                    const char *param, const char *expected,
                                    const json_t *got);
/* expected: ends "Expected ...", such as "'a' or 'b'". */
tr_status_t tr_translate_wrong_value(const tr_translation_t *t,
                                     const char *param, const json_t *got,
                                     const char *expected);
/* Is it this string? */
bool tr_translate_is(const json_t *value, const char *text);

/* object[name] = value, which is taken. */
tr_status_t tr_translate_set(const tr_translation_t *t, json_t *object,
                             const char *name, json_t *value);

/* A message at the end: the last one if `join` and it has this role, else a new
 * one.  NULL without memory. */
json_t *tr_translate_message(const tr_translation_t *t, const char *role,
                             bool join);
/* A part of its content; more of its reasoning, which settling joins; a call,
 * whose arguments are an object or a string. */
tr_status_t tr_translate_text(const tr_translation_t *t, json_t *parts,
                              const json_t *text);
tr_status_t tr_translate_reasoning(const tr_translation_t *t, json_t *message,
                                   const json_t *text);
tr_status_t tr_translate_call(const tr_translation_t *t, json_t *message,
                              const json_t *id, const json_t *name,
                              const json_t *arguments);
/* The result of a call, without content yet; NULL without memory. */
json_t *tr_translate_result(const tr_translation_t *t, const json_t *id);

/* Each of the client's tools, which are objects, in turn; take() has
 * tr_translate_function add what a chat has of it to `tools`. */
typedef tr_status_t (*tr_translate_tool_t)(const tr_translation_t *t,
                                           const json_t *tool, size_t i,
                                           json_t *tools);
tr_status_t tr_translate_tools(const tr_translation_t *t,
                               tr_translate_tool_t take);
/* function is taken. */
tr_status_t tr_translate_function(const tr_translation_t *t, json_t *tools,
                                  json_t *function);

tr_status_t tr_translate_settle(const tr_translation_t *t);

#endif
