/*
 * One answer on the terminal: what generate and chat do with a call.  Text is
 * written to standard output as it comes, and kept; times are taken.
 */
#ifndef TR_ANSWER_H
#define TR_ANSWER_H

#include "client.h"
#include "wrap.h"

typedef struct {
    tr_call_result_t result;
    uint64_t begin_us, first_us, last_us;
    uint32_t tokens; /* as counted while streaming */
    char *text;      /* all of it, NUL-terminated; NULL when there is none */
    size_t len, cap;
    char *reasoning; /* likewise; shown on a terminal alone, dim */
    size_t reasoning_len, reasoning_cap;
    bool thinking; /* what is shown is reasoning */
    bool over;
    bool silent; /* kept, but not shown */
    tr_wrap_t wrap;
} tr_answer_t;

extern const tr_call_events_t tr_answer_events;

/* Runs one call to its end; Ctrl-C aborts it.  show: false keeps the text to
 * itself.  Not TR_OK: *err tells what happened (the client may be unusable).
 * Free with tr_answer_free. */
tr_status_t tr_answer_get(tr_client_t *c, uint16_t endpoint, json_t *body,
                          bool show, tr_answer_t *answer, tr_error_t *err);
void tr_answer_free(tr_answer_t *answer);

/* As an object: text, finish_reason, usage, times and rate. */
json_t *tr_answer_json(const tr_answer_t *answer);

/* "[12 prompt + 57 tokens, first after 45 ms, 61.2 tokens/s, KV cache 0.1 MiB
 * (0.40 of 16 bits), stop]" on stderr.  The rate is by the engine's times; over
 * HTTP, where they are not known, by ours, and left out where all came at once.
 */
void tr_answer_summary(const tr_answer_t *answer);

#endif
