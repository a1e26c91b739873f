/*
 * Evaluation cases: a conversation and the answer that is expected, one JSON
 * object a line.
 *
 * models/pocket/world.py writes them:
 *
 *   {"family", "difficulty", "messages", "reply", "answer", "checker"}
 *
 * and question sets that users bring (docs/eval.md):
 *
 *   {"messages" or "prompt", "answer" (or "expected")}
 *
 * with family, difficulty, match (or checker), reply, max_tokens, stop and turns
 * where they are wanted.  A prompt goes to the model as it is, without the chat
 * template, as in /v1/completions.  A case of the family multi (or with
 * "turns": true) is run turn by turn: every answer of the assistant within its
 * messages is what is expected at that turn.  In other cases such messages are
 * context.
 */
#ifndef TR_EVAL_CASE_H
#define TR_EVAL_CASE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tokenring/error.h>

#include "eval_match.h"

#define TR_EVAL_STOPS 8u

typedef struct {
    uint32_t n_messages; /* of the case that make this turn's prompt */
    const char *answer;  /* what is expected */
    const char *reply;   /* a reference reply, or NULL */
} tr_eval_turn_t;

typedef struct {
    json_t *line;        /* owns all texts below */
    const char *family;  /* "cases" when the line names none */
    uint32_t difficulty; /* 0: not given */
    uint32_t max_tokens; /* 0: not given */
    tr_eval_match_t match;
    const json_t *messages;          /* NULL: a prompt */
    const char *prompt;              /* NULL: messages */
    const char *stop[TR_EVAL_STOPS]; /* a reply ends before the first of them */
    uint32_t n_stops;
    tr_eval_turn_t *turns;
    uint32_t n_turns;
    uint64_t hash; /* of all the line says */
} tr_eval_case_t;

typedef struct {
    tr_eval_case_t *items;
    size_t n, cap;
} tr_eval_cases_t;

/* Appends the cases of a file ("-": standard input).  A bad line is an error
 * that names file, line, the value and what was expected. */
tr_status_t tr_eval_cases_read(tr_eval_cases_t *cases, const char *path,
                               tr_error_t *err);
/* One line; `where` begins the error ("cases.jsonl:12"). */
tr_status_t tr_eval_cases_add(tr_eval_cases_t *cases, const char *text,
                              size_t len, const char *where, tr_error_t *err);
/* Keeps the first `limit` cases (0: all) of each family and difficulty, and of
 * the families named (none named: all). */
void tr_eval_cases_select(tr_eval_cases_t *cases, size_t limit,
                          const char *const *families, size_t n_families);
void tr_eval_cases_free(tr_eval_cases_t *cases);

/* Where the reply ends by the case's stop texts: its length, or less. */
size_t tr_eval_stopped(const tr_eval_case_t *c, const char *reply, size_t len);

#endif
