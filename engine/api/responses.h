/*
 * What the files that read a body of /v1/responses share: responses.c translates
 * it, responses_kept.c knows what it goes on from and what is kept of it.
 */
#ifndef TR_RESPONSES_H
#define TR_RESPONSES_H

#include "translate.h"

/* 'store', 'previous_response_id', and references in 'input'.  TR_AGAIN: c->r
 * has a lookup, to be answered first. */
tr_status_t tr_responses_look_up(const tr_translation_t *t);

/* What was said before, by both sides, onto `items`. */
tr_status_t tr_responses_conversation(const tr_translation_t *t, json_t *items);

/* The items of the body's input: a string is a message, references are what they
 * refer to.  *items is the caller's, NULL: no memory. */
tr_status_t tr_responses_input(const tr_translation_t *t, json_t *input,
                               json_t **items);

/* c->r->kept, if the response is to be kept. */
tr_status_t tr_responses_keep(const tr_translation_t *t, const json_t *items);

#endif
